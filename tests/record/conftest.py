"""The fixtures of `launching`, for all tests of the recorder."""

from launching import job, module_job

__all__ = ["job", "module_job"]
