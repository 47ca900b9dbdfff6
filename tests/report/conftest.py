"""Fixtures of the report's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reportjobs import STORIES, Story, tell


@pytest.fixture(params=sorted(STORIES))
def any_story(request: pytest.FixtureRequest) -> Story:
    """Each story in turn."""
    return tell(str(request.param))


@pytest.fixture
def story() -> Callable[[str], Story]:
    """A story by its name."""
    return tell


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare a text with tests/golden/report/NAME; with ETT_UPDATE_GOLDEN=1 write it instead."""
    import os

    folder = Path(__file__).parent.parent / "golden" / "report"

    def check(name: str, text: str) -> None:
        path = folder / name
        if os.environ.get("ETT_UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; if the change is meant: ETT_UPDATE_GOLDEN=1 pytest tests/report"

    return check
