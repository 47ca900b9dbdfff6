"""A folder of published models: every file in it named here, and the two changes that others see, each in one step.

    TO/<name>/current -> versions/<version>     switched atomically; what was current stays until then
    TO/<name>/versions/<version>/               a model and its manifest.json; complete from the first instant
    TO/<name>/requests/<id>/                    request.json, batch.pt, state.jsonl, log.txt, work/
    TO/<name>/requests/.lock                    who publishes now: one at a time, freed by the kernel

Standard library only. Not here: how a model is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ettrain import clock
from ettrain.boost.publish.request import Request
from ettrain.errors import UsageError

MANIFEST: Final = "manifest.json"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CHUNK: Final = 1 << 22
_PATIENCE, _PAUSE_S = 10, 0.05


class Target:
    """One model's folder: all its versions.

    Args:
        to: folder of all published models.
        name: the model's.
    """

    def __init__(self, to: str | os.PathLike[str], name: str) -> None:
        self.name = name
        self.root = Path(to) / name
        self.versions = self.root / "versions"
        self.requests = self.root / "requests"
        self.current = self.root / "current"

    def request(self, number: str) -> Place:
        """Where the request of that id lies."""
        return Place(self.requests / number)

    def current_version(self) -> str:
        """Name of the version that is current, '' = none is."""
        try:
            return os.path.basename(os.readlink(self.current))
        except OSError:
            return ""

    def manifest(self, version: str) -> dict[str, Any]:
        """A version's manifest; empty where there is none."""
        try:
            told = json.loads((self.versions / version / MANIFEST).read_bytes())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def version_of(self, number: str) -> str:
        """The version that the request of that id made, '' = none. A version is named after its request."""
        names = os.listdir(self.versions) if self.versions.is_dir() else []
        return next((name for name in sorted(names) if self.manifest(name).get("id") == number), "")

    def install(self, prepared: Path, version: str) -> None:
        """Let a prepared folder be a version: durable, then in one step."""
        self.versions.mkdir(parents=True, exist_ok=True)
        for path in [*prepared.rglob("*"), prepared]:
            _sync(path)
        os.rename(prepared, self.versions / version)
        _sync(self.versions)

    def switch(self, version: str) -> None:
        """Make a version current, in one step."""
        fresh = self.root / f".current-{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(Path("versions") / version)
        os.replace(fresh, self.current)
        _sync(self.root)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether this process is the only one that publishes here, for as long as the block lasts. Does not wait."""
        self.requests.mkdir(parents=True, exist_ok=True)
        with (self.requests / ".lock").open("ab") as file:
            yield _locked(file.fileno())


class Place:
    """One request's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.request_file = root / "request.json"
        self.batch = root / "batch.pt"
        self.state = root / "state.jsonl"
        self.log = root / "log.txt"
        self.work = root / "work"
        self.busy = root / ".busy"

    def request(self) -> Request:
        """The request in it.

        Raises:
            UsageError: there is none.
        """
        try:
            return Request.from_bytes(self.request_file.read_bytes(), str(self.request_file))
        except OSError as error:
            raise UsageError(f"{self.request_file}: cannot be read: {error.strerror}. See what there is: ett publish ls") from None

    @contextlib.contextmanager
    def claimed(self) -> Iterator[bool]:
        """Whether this process is the only one that works on the request, for as long as the block lasts."""
        with self.busy.open("ab") as file:
            for _ in range(_PATIENCE):  # who only asks whether it is busy holds the lock for an instant
                if _locked(file.fileno()):
                    yield True
                    return
                clock.sleep_s(_PAUSE_S)
            yield False

    @property
    def is_busy(self) -> bool:
        """Whether some process of this host works on it."""
        try:
            with self.busy.open("rb") as file:
                return not _locked(file.fileno())
        except OSError:
            return False


def places(to: Path) -> list[Place]:
    """All requests below a folder of models, a model's folder, or a request's own; oldest first."""
    found = [
        path.parent for pattern in ("request.json", "requests/*/request.json", "*/requests/*/request.json") for path in to.glob(pattern)
    ]
    return [Place(root) for root in sorted(set(found), key=lambda root: ((root / "request.json").stat().st_mtime_ns, root.name))]


def ask(target: Target, request: Request, batch: bytes) -> tuple[Place, bool]:
    """Write a request durably, in one step.

    Returns:
        (its place, whether it is new).
    """
    place = target.request(request.id)
    if place.request_file.exists():
        return place, False
    target.requests.mkdir(parents=True, exist_ok=True)
    fresh = target.requests / f".new-{request.id}-{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    (fresh / "batch.pt").write_bytes(batch)
    (fresh / "request.json").write_bytes(request.to_bytes())
    for path in [*fresh.iterdir(), fresh]:
        _sync(path)
    try:
        os.rename(fresh, place.root)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if place.request_file.exists():  # somebody else asked for the same at this instant
            return place, False
        raise
    _sync(target.requests)
    return place, True


def contents(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative name -> size and checksum of every file in a folder."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "crc32": crc32(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def crc32(path: Path) -> str:
    """zlib.crc32 of a file, eight hexadecimal digits."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return f"{value:08x}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file durably, in one step."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    fresh.write_bytes(data)
    _sync(fresh)
    os.replace(fresh, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    """Whether the lock was free, and is this process's now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
