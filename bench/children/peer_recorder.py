"""The peer's side of `bench/recorder.py`; runs in the peer's environment.

`memory`: a logger that appends to a list, passed through the seam that the peer's own tests use (`cloud_logger=`).
`shipped`: the writer that it ships (a queue and a daemon thread of google-cloud-logging); only the remote call is a stub that
returns at once, so nothing leaves this machine. `..._loop` is the loop of its README: two data-loading records and a step's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from bursts import serve
from google.auth.credentials import AnonymousCredentials
from google.cloud import logging as cloud_logging
from google.cloud.logging_v2.handlers import handlers
from google.cloud.logging_v2.resource import Resource
from ml_goodput_measurement.src.goodput import GoodputRecorder


class ListLogger:
    """Keeps entries in a list."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def write_cloud_logging_entry(self, entry: Any) -> None:
        """Take an entry."""
        self.entries.append(entry)


class _Service:
    """Google's logging service, as far as a writer needs it."""

    def write_entries(self, *args: Any, **kwargs: Any) -> None:
        """Take a batch."""


def shipped() -> GoodputRecorder:
    """A recorder as a user gets it, except that its service is a stub."""
    client = cloud_logging.Client(project="bench", credentials=AnonymousCredentials(), _use_grpc=False)
    client._logging_api = _Service()
    where = Resource(type="global", labels={"project_id": "bench"})
    with (
        mock.patch.object(cloud_logging, "Client", return_value=client),
        mock.patch.object(handlers, "detect_resource", return_value=where),
    ):
        return GoodputRecorder("job", "log", logging_enabled=True)


def loop_of(recorder: GoodputRecorder) -> Callable[[int], None]:
    """A step of the README's loop."""
    begin, end, step = recorder.record_data_loading_start_time, recorder.record_data_loading_end_time, recorder.record_step_start_time

    def loop(number: int) -> None:
        begin()
        end()
        step(number)

    return loop


def main() -> None:
    """Serve."""
    logger, sender = ListLogger(), shipped()
    memory = GoodputRecorder("job", "log", logging_enabled=True, cloud_logger=logger)

    def clear() -> None:
        logger.entries.clear()
        sender.flush()

    calls = {
        "memory": memory.record_step_start_time,
        "memory_loop": loop_of(memory),
        "shipped": sender.record_step_start_time,
        "shipped_loop": loop_of(sender),
    }
    serve(calls, after=clear)


if __name__ == "__main__":
    main()
