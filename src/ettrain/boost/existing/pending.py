"""What the program believes done and is still to be done: saves, and the renames and removals that followed them, in their order.

One thread does it. The order is the program's: a rename of a file that is being written happens after the writing, and so does the
removal of an older checkpoint; where a writing fails, nothing that came after it is done. Whoever needs a result waits here.
Not here: which of the program's calls have to wait (see `sights`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ettrain import clock
from ettrain.boost.checkpoint import marks
from ettrain.record.guard import guard

NICE: Final = 10
"""The training's threads come first where cores are scarce."""
GIVE_UP_S: Final = 1800.0
"""A disk that has not answered by then is told as a failed save; nobody waits for ever."""


class _Ours(threading.local):
    depth = 0


ours = _Ours()
"""Not 0 on a thread that does our own file operations: these wait for nothing."""


@contextlib.contextmanager
def our_own() -> Iterator[None]:
    """What is done to files inside is ours, not the program's."""
    ours.depth += 1
    try:
        yield
    finally:
        ours.depth -= 1


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """One thing to do."""

    what: str
    """For messages, e.g. the file."""
    run: Callable[[], None]
    paths: tuple[str, ...]
    """What of the file system is not yet as the program believes; of a folder, also all that is in it."""
    moves: tuple[str, str] | None = None
    """A rename: from, to."""
    result: str = ""
    """A save: the path that holds it in the end."""
    save: int = 0
    """Number of the save in the journal; 0 = none."""
    begun_ns: int = 0
    step: int = 0
    """Optimizer steps done when it was saved."""
    inode: tuple[int, int] | None = None
    """(device, inode) of the program's own open file."""
    after: Callable[[], None] = field(default=lambda: None)
    """Called when it is over, well or not: gives memory back."""


class Pending:
    """The queue of one process."""

    def __init__(self) -> None:
        self.active = False
        """Whether anything is pending, or failed and was not told: the only thing that most calls look at."""
        self._changed = threading.Condition()
        self._works: deque[Work] = deque()
        self._done: list[Work] = []
        self._failure: tuple[str, BaseException] | None = None
        self.results: set[str] = set()
        """Files that exist once all is done, and were written or renamed in it."""
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def forget(self) -> None:
        """In a forked child: the saves are its parent's."""
        self.__init__()  # type: ignore[misc]

    # ---- the program's side

    def follow(self, work: Work) -> bool:
        """Have it done after the saves that are pending; False where there is none any more, or one failed."""
        with self._changed:
            if not self._works or self._failure is not None or (work.moves is not None and work.moves[0] not in self.results):
                return False
            self.add(work)
            return True

    def add(self, work: Work) -> None:
        """Have it done after all that is pending."""
        with self._changed:
            self._works.append(work)
            self.active = True
            if work.result:
                self.results.add(work.result)
            if work.moves is not None:
                self.results.discard(work.moves[0])
                self.results.add(work.moves[1])
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="ettrain saves", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def concerns(self, path: str) -> bool:
        """Whether this path, or a folder it is in, is not yet as the program believes."""
        with self._changed:
            return any(path == one or path.startswith(f"{one}/") for work in self._works for one in work.paths)

    def within(self, folder: str) -> bool:
        """Whether a list of this folder is not yet as the program believes."""
        with self._changed:
            return any(
                os.path.dirname(one) == folder or folder == one or folder.startswith(f"{one}/")
                for work in self._works
                for one in work.paths
            )

    def holds(self, inode: tuple[int, int]) -> bool:
        """Whether that file is being written."""
        with self._changed:
            return any(work.inode == inode for work in self._works)

    def of_earlier_step(self, step: int) -> bool:
        """Whether a save of an earlier step is pending."""
        with self._changed:
            return any(work.result and work.step != step for work in self._works)

    def wait(self) -> None:
        """Until nothing is pending."""
        if not self._works or ours.depth or os.getpid() != self._pid:
            return
        with marks.blocked("checkpoint_save", part="save in the background: wait"):
            deadline = clock.monotonic_ns() + int(GIVE_UP_S * 1e9)
            with self._changed:
                while self._works and clock.monotonic_ns() < deadline:
                    self._changed.wait(1.0)
            if self._works:
                self._fail(self._works[0], TimeoutError(f"the disk did not answer within {GIVE_UP_S:.0f} s"))

    def settle(self) -> None:
        """Until nothing is pending; before something that relies on the saves.

        Raises:
            Exception: what a save in the background raised, once.
        """
        if ours.depth:
            return
        self.wait()
        self.tell()

    def tell(self) -> None:
        """Raise what a save in the background raised, once.

        Raises:
            Exception: that.
        """
        with self._changed:
            failure, self._failure = self._failure, None
            self.active = bool(self._works)
        if failure is not None:
            what, error = failure
            error.add_note(f"ettrain: raised by the save of {what} in the background; the file before it is untouched")
            raise error

    @property
    def untold(self) -> bool:
        """Whether a save failed and the program was not told."""
        return self._failure is not None

    # ---- the thread's side

    def _serve(self) -> None:
        ours.depth = 1
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        with marks.apart():
            while True:
                with self._changed:
                    while not self._works:
                        self._changed.wait()
                    work = self._works[0]
                self._do(work)

    def _do(self, work: Work) -> None:
        if work.result:
            self._commit()
        try:
            work.run()
        except BaseException as error:  # noqa: BLE001 - it is raised in the program's own thread later
            self._fail(work, error)
            return
        finally:
            self._over(work)
        self._done = [self._moved(done, work) for done in self._done]
        if work.result:
            self._done.append(work)
        with self._changed:
            if len(self._works) == 1:
                self._commit()
            self._next(work)

    def _moved(self, done: Work, work: Work) -> Work:
        if work.moves is not None and done.result == work.moves[0]:
            done.result = work.moves[1]
        return done

    def _commit(self) -> None:
        """The saves that are done are where the program will look for them."""
        for done in self._done:
            if done.save:
                marks.committed(done.save, done.begun_ns, done.result)
        self._done.clear()

    def _fail(self, work: Work, error: BaseException) -> None:
        """Nothing that came after it is done: the program would not have come so far."""
        try:
            sys.stderr.write(
                f"ettrain: saving {work.what} in the background failed: {type(error).__name__}: {error}; what it was to replace stays\n"
            )
        except (OSError, ValueError):  # the program closed its standard error
            pass
        self._commit()
        with self._changed:
            dropped = list(self._works)
            self._failure = self._failure or (work.what, error)
            for one in dropped:
                self._next(one)
        for one in dropped:
            if one.save:
                marks.committed(one.save, one.begun_ns, "")
            if one is not work:
                self._over(one)

    def _over(self, work: Work) -> None:
        try:
            work.after()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("save in the background", error)

    def _next(self, work: Work) -> None:
        with self._changed:
            if self._works and self._works[0] is work:
                self._works.popleft()
            if not self._works:
                self.active = self._failure is not None
                self.results.clear()
            self._changed.notify_all()
