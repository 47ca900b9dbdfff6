"""The publisher: obeys one request, alone in its target, with retries, and leaves word of every stage. What `ett publish run` executes.

It makes no process group and needs no device. Killed anywhere, it leaves the model before it current, and goes on when it is run again.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ettrain import clock
from ettrain.boost.publish import progress
from ettrain.boost.publish.bill import Bill, cpu_ns
from ettrain.boost.publish.progress import Status, note, status_of
from ettrain.boost.publish.request import Request
from ettrain.boost.publish.target import MANIFEST, Place, Target, write_whole
from ettrain.errors import EttrainError

if TYPE_CHECKING:
    from ettrain.boost.publish.made import Made

PAUSE_S: Final = 2.0
"""Before the second try; twice as long before each further one."""
_TURN_S: Final = 0.5
Say = Callable[[str], None]


class Publisher:
    """Works on one request.

    Args:
        place: the request's folder.
        say: takes a line for the log.
        pause_s: before the second try.
    """

    def __init__(self, place: Place, say: Say = print, *, pause_s: float = PAUSE_S) -> None:
        self.place = place
        self.request: Request = place.request()
        self.target = Target(self.request.to, self.request.name)
        self._say = say
        self._pause_s = pause_s
        self._try = 0
        self._stage = ""
        self._bill: Bill | None = None

    def run(self) -> Status:
        """Publish, unless it is published or another process is at it.

        Returns:
            What has become of the request. Raises nothing that a request can cause.
        """
        with self.place.claimed() as mine:
            if not mine:
                self._say("another process works on this request")
                return status_of(self.place)
            if self._is_done():
                return status_of(self.place)
            self._bill = Bill(self.request, self.place.root, "publisher")
            self._bill.write("began")
            try:
                self._wait_for_turn_and_work()
            finally:
                self._bill.close()
        return status_of(self.place)

    def _is_done(self) -> bool:
        """Whether it is published already, with word of it or without."""
        status = status_of(self.place)
        there = self.target.version_of(self.request.id)
        if status.state in progress.DONE and there:
            self._say(f"{status.state} already: {there}")
            return True
        return False

    def _wait_for_turn_and_work(self) -> None:
        self._told("turn")
        while True:
            with self.target.alone() as alone:
                if alone:
                    self._work()
                    return
            clock.sleep_s(_TURN_S)

    def _work(self) -> None:
        """Try, at most as often as was said. What cannot get better by trying again is not tried again."""
        for number in range(1, self.request.tries + 1):
            self._try = number
            try:
                self._once()
            except EttrainError as error:
                self._failed(str(error))
                return
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the model's code may raise anything; it ends in the log and the state
                import traceback

                traceback.print_exc()
                why = _in_words(error, self.request)
                if self._try == self.request.tries or isinstance(error, MemoryError):
                    self._failed(why)
                    return
                pause_s = self._pause_s * 2 ** (self._try - 1)
                self._say(f"try {self._try} failed in {self._stage}: {why}; again in {pause_s:g} s")
                clock.sleep_s(pause_s)
            else:
                return

    def _once(self) -> None:
        version = self.target.version_of(self.request.id)
        if not version:
            from ettrain.boost.publish import made

            prepared = made.prepare(self.request, self.place, self._told)
            version = self._install(prepared)
            made.forget(self.place)
        self._told("switch")
        current = self.target.manifest(self.target.current_version())
        if int(current.get("asked_ns") or 0) > self.request.asked_ns:
            why = f"{current.get('version')} is current and was asked for later"
            self._ended(progress.SUPERSEDED, version=version, why=why)
            return
        self.target.switch(version)
        self._ended(progress.PUBLISHED, version=version)

    def _install(self, prepared: Made) -> str:
        from ettrain.boost.publish import made

        self._told("install")
        step = prepared.told["checkpoint"].get("step")
        number = self.request.id.rpartition("-")[2]
        version = f"step-{step:08d}-{number}" if isinstance(step, int) else number
        more = {"published_ns": clock.wall_pair()[0], "cpu_s": round(cpu_ns() / 1e9, 3), "tries": self._try, "host": os.uname().nodename}
        write_whole(prepared.folder / MANIFEST, made.manifest_of(self.request, prepared, version, more))
        self.target.install(prepared.folder, version)
        return version

    # ---- word of it

    def _told(self, stage: str) -> None:
        self._stage = stage
        self._say(f"{stage}")
        note(self.place, progress.RUNNING, stage=stage, **{"try": self._try})
        if self._bill is not None:
            self._bill.write("stage", stage=stage)

    def _ended(self, state: str, *, version: str = "", why: str = "") -> None:
        told = self.target.manifest(version) if version else {}
        checkpoint = told.get("checkpoint") or {}
        more: dict[str, Any] = {"step": checkpoint.get("step"), "created": checkpoint.get("created_ns"), "version": version, "why": why}
        note(self.place, state, version=version, why=why, stage=self._stage, cpu_s=round(cpu_ns() / 1e9, 3), **{"try": self._try})
        if self._bill is not None:
            self._bill.write(
                "ended", outcome=state, stage=self._stage, tries=self._try, **{key: one for key, one in more.items() if one is not None}
            )
        self._say(f"{state}{f': {version}' if version else ''}{f': {why}' if why else ''}")

    def _failed(self, why: str) -> None:
        self._ended(progress.FAILED, why=why)


def _in_words(error: BaseException, request: Request) -> str:
    text = " ".join(str(error).split())[:400]
    if request.memory_bytes is not None and (isinstance(error, MemoryError) or "can't allocate memory" in text):
        return f"it needs more memory than was said (memory={request.memory_bytes >> 20}MiB): {text or 'MemoryError'}"
    return f"{type(error).__name__}: {text}"


def run(place: Place) -> Status:
    """Publish in this process, made what the request needs it to be: its paths first, no device, no process group."""
    request = place.request()
    sys.path[:0] = [path for path in request.paths if path not in sys.path]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if request.cwd and os.path.isdir(request.cwd):
        os.chdir(request.cwd)
    _limit_memory(request)
    return Publisher(place, say=_say).run()


def _limit_memory(request: Request) -> None:
    """Let the kernel refuse this process more memory than was said, rather than take it from others on the host."""
    if request.memory_bytes is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = request.memory_bytes if hard == resource.RLIM_INFINITY else min(hard, request.memory_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _say(line: str) -> None:
    print(f"{cpu_ns() / 1e9:8.2f} s of CPU  {line}", flush=True)
