"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import pytest
from harness import Job


@pytest.fixture
def job(tmp_path):
    """A job of two ranks under torchrun."""
    return Job(tmp_path / "job")


@pytest.fixture
def solo(tmp_path):
    """A job of one process."""
    return Job(tmp_path / "job", world=1)
