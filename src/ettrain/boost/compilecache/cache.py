"""`ett.CompileCache`: when archives are fetched and published in the course of a training process."""

from __future__ import annotations

import atexit
import os
import threading
from types import ModuleType
from typing import Any, Final

from ettrain import clock
from ettrain.boost.compilecache import artifacts
from ettrain.boost.compilecache.archive import Entry
from ettrain.boost.compilecache.artifacts import PROFILE, Torch
from ettrain.boost.compilecache.headers import without_needless_headers
from ettrain.boost.compilecache.key import environment_key, program_file, program_name
from ettrain.boost.compilecache.store import ENV_SECRET, MAX_AGE_DAYS, MAX_BYTES, Store, secret_from, today
from ettrain.record.guard import guard
from ettrain.record.hooks.compiling import watch_compiles
from ettrain.record.rank import rank_of_environment
from ettrain.record.recorder import recorder

ENV_ADDRESS: Final = "ETT_COMPILE_CACHE"
SETTLE_S: Final = 10.0
OTHERS_LATER_S: Final = 20.0
"""Ranks other than 0 wait so much longer: what they compiled is then mostly there already."""
OTHERS_AT_EXIT_S: Final = 1.0
"""And so long where the program ends before that, if they have something new."""
REFRESH_DAYS: Final = 7
"""Entries in use are marked so only when the mark is older than this: a run that compiles nothing writes nothing."""
_POLL_S: Final = 1.0


class CompileCache:
    """The shared archive of what `torch.compile` made: fetched before the first compilation, published when something new was compiled.

    `ett.CompileCache("s3://bucket/compile").attach()` anywhere before the first compiled call; without a code change:
    `ett run --compile-cache s3://bucket/compile -- ...`. Whatever goes wrong, the program compiles as it would without.

    Args:
        address: a folder, or any fsspec address.
        program: name under which this program's archives lie; by default that of its file or module, without its path.
        secret: key that archives are signed with and must be signed with (setting `ETT_CACHE_KEY`). Without one only a folder is
            accepted, and in it only files of this user's that no other may write.
        publish: whether to publish; False = only fetch.
        max_bytes: bound of an archive, uncompressed; the entries used least recently go.
        max_age_days: entries that no run has used for so long go.

    Raises:
        UsageError: the address is none, its file system's package is missing, or it needs a key.
    """

    def __init__(
        self,
        address: str,
        *,
        program: str | None = None,
        secret: bytes | None = None,
        publish: bool = True,
        max_bytes: int = MAX_BYTES,
        max_age_days: int = MAX_AGE_DAYS,
    ) -> None:
        self._store = Store(address, secret if secret is not None else secret_from(os.environ.get(ENV_SECRET)))
        self.program = program or program_name()
        self._main = program_file()
        self._publishes = publish
        self._bounds = {"max_bytes": max_bytes, "max_age_days": max_age_days}
        self._torch: Torch | None = None
        self._fetched: tuple[Entry, ...] = ()
        """What is known to be stored."""
        self._at_first: tuple[Entry, ...] = ()
        """What was stored when this process began."""
        self._profile_key: str | None = None
        self._pid = 0
        self._begun = self._compiling = False
        self._since = 0
        """When the last compilation ended."""
        self.status = "not used yet"
        """What came of the last fetch or publication, in words."""

    def attach(self) -> CompileCache:
        """Fetch right before the first compilation of this process, and publish in the background once compiling has settled."""
        import torch

        if torch.compiler.config.job_id is None:  # torch keeps what it learns about shapes only under an id that runs share
            torch.compiler.config.job_id = f"ettrain-{self.program}"
        watch_compiles(self._compile_starts, self._compile_ended)
        return self

    def _compile_starts(self) -> None:
        self._compiling = True
        if self._begun:
            return
        self._begun = True
        self.fetch()
        if self._publishes and self._torch is not None:
            self._pid = os.getpid()
            threading.Thread(target=self._publish_when_settled, name="ettrain-compile-cache", daemon=True).start()
            atexit.register(self._publish_at_exit)

    def _compile_ended(self) -> None:
        self._compiling = False
        self._since = clock.monotonic_ns()

    def fetch(self) -> int:
        """Put what is stored for this machine and program into torch's caches. Call it before the first compilation.

        Returns:
            Number of entries.
        """
        begin = clock.monotonic_ns()
        try:
            torch = Torch.found()
            key = environment_key(self.program, self._main)
            found = self._store.find(key)
            entries = self._fetched = self._at_first = found.entries
            failed = artifacts.install(torch, entries)
            self._torch, self._profile_key = torch, artifacts.profile_key(torch)
            if any(entry.kind == artifacts.LIBRARY for entry in entries):
                without_needless_headers()
        except Exception as error:  # noqa: BLE001 - the guard's rule: without the archive everything is compiled
            self._tell("fetch", begin, reason=f"{type(error).__name__}: {error}")
            return 0
        reasons = [*found.refused, *failed]
        if not entries:
            reasons.append(self._why_nothing(key))
        self._tell("fetch", begin, entries=len(entries), bytes=found.size, reason="; ".join(reasons))
        return len(entries)

    def publish(self) -> bool:
        """Publish what this process compiled or used and the store does not hold. Returns whether there was anything.

        Raises:
            Nothing: what goes wrong is in `status` and in the report.
        """
        begin = clock.monotonic_ns()
        torch = self._torch
        if torch is None:
            return False
        try:
            if not self._fresh(torch, self._fetched):
                return False
            key = environment_key(self.program, self._main)
            stored = self._store.find(key).entries
            fresh = self._fresh(torch, stored)
            if fresh:
                profiles = {entry.name for entry in stored if entry.kind == PROFILE}
                replaced = {(PROFILE, name) for name in profiles} if any(entry.kind == PROFILE for entry in fresh) else set()
                self._store.publish(key, fresh, **self._bounds, without=replaced)
                self._tell("publish", begin, entries=len(fresh), bytes=sum(len(entry.content) for entry in fresh))
            self._fetched = (*stored, *fresh)
        except Exception as error:  # noqa: BLE001 - the guard's rule: what is not published is compiled again
            self._tell("publish", begin, reason=f"{type(error).__name__}: {error}")
            return False
        return bool(fresh)

    def _fresh(self, torch: Torch, stored: tuple[Entry, ...]) -> list[Entry]:
        """Of what was used, what is not stored, or not marked to be in use any more; and the profile, if it says more now."""
        day = today()
        fetched = {(entry.kind, entry.name) for entry in self._at_first} if artifacts.has_compiled() else set()
        fresh = fresh_entries(artifacts.used_artifacts(torch, day), stored, compiled_again=fetched, since=day - REFRESH_DAYS)
        profile = artifacts.new_profile(torch, self._profile_key, stored, day)
        return fresh if profile is None else [*fresh, profile]

    def _why_nothing(self, key: dict[str, Any]) -> str:
        try:
            return self._store.why_nothing(key)
        except Exception as error:  # noqa: BLE001 - the reason is a comfort, no more
            return f"no archive ({error})"

    # ---- in the background

    def _publish_when_settled(self) -> None:
        rank, _ = rank_of_environment()
        patience = SETTLE_S + (OTHERS_LATER_S if rank else 0.0)
        published = 0
        while True:
            clock.sleep_s(_POLL_S)
            since = self._since
            if self._compiling or since == published or clock.monotonic_ns() - since < patience * 1e9:
                continue
            published = since
            try:
                self.publish()
            except Exception as error:  # noqa: BLE001 - the guard's rule
                guard.fault("compile cache", error)
                return

    def _publish_at_exit(self) -> None:
        """What the thread had no time for. Other ranks let rank 0 go first: mostly it has compiled the same."""
        if os.getpid() != self._pid or self._torch is None:
            return
        try:
            if rank_of_environment()[0] and self._fresh(self._torch, self._fetched):
                clock.sleep_s(OTHERS_AT_EXIT_S)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("compile cache", error)
        self.publish()

    def _tell(self, act: str, begin: int, *, entries: int = 0, bytes: int = 0, reason: str = "") -> None:  # noqa: A002 - the record's word
        self.status = f"{act}: {entries} entries, {bytes} bytes" + (f"; {reason}" if reason else "")
        end = clock.monotonic_ns()
        recorder.emit({"k": "cache", "t": begin, "end": end, "act": act, "entries": entries, "bytes": bytes, "reason": reason[:1000]})


def fresh_entries(used: list[Entry], stored: tuple[Entry, ...], *, compiled_again: set[tuple[str, str]], since: int) -> list[Entry]:
    """What is worth publishing of what a process used.

    An artifact that is stored under the same key is the same, as ranks compile one graph to different bytes; unless it was there when this
    process began and something was compiled all the same: then the guards of the stored one did not hold, and this is another.

    Args:
        used: what the process used.
        stored: what the store holds.
        compiled_again: (kind, name) that were there from the beginning, where this process has compiled anything.
        since: day; a stored entry last used before it is marked anew.
    """
    marks: dict[tuple[str, str], int] = {}
    for entry in stored:
        marks[entry.kind, entry.name] = max(entry.used, marks.get((entry.kind, entry.name), 0))
    identities = {entry.identity for entry in stored}
    fresh = []
    for entry in used:
        key = entry.kind, entry.name
        variant = entry.kind not in artifacts.FILES and key in compiled_again and entry.identity not in identities
        if variant or marks.get(key, 0) < since:
            fresh.append(entry)
    return fresh


def attach_asked(module: ModuleType) -> None:
    """Called right after `torch._dynamo.callback` was imported below `ett run --compile-cache ADDRESS`."""
    CompileCache(os.environ[ENV_ADDRESS]).attach()
