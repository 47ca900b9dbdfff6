"""A folder of checkpoints: one fresh folder per save, whole once its manifest is there, checked, read and removed without a gap.

    FOLDER/step-00000120/           step-00000120.1, .2, ... where that step was saved before
        .metadata, __0_0.distcp     what DCP writes; whatever else the save consists of
        manifest.json.part          who is saving; becomes, last of all and in one step,
        manifest.json               what belongs to it: sizes, checksums
    FOLDER/.owner                   who may save here

A name is never used twice while anything of it is left. Whatever does not bear such a name, or was not begun by `claim`, is left
alone. Standard library only. Not here: what is in the files, and when to save.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ettrain import clock
from ettrain.boost.checkpoint.manifest import NAME as MANIFEST
from ettrain.boost.checkpoint.manifest import Manifest, crc32_text
from ettrain.boost.checkpoint.objectstore import ObjectStorage
from ettrain.boost.checkpoint.owner import Owner
from ettrain.boost.checkpoint.storage import Held, LocalStorage, Storage, note_of, whoami
from ettrain.errors import CheckpointInvalidError, UsageError

MARK: Final = f"{MANIFEST}.part"
DCP_METADATA: Final = ".metadata"
_SHOWN: Final = 4

State = Literal["finished", "unfinished", "damaged", "foreign"]
"""Finished: it has a manifest of its own. Unfinished: its save did not end. Damaged: its manifest cannot be used.
Foreign: it bears such a name, but `claim` did not make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint, or what is left of one."""

    name: str
    step: int
    manifest: Manifest | None
    """None unless it is finished."""
    why: str
    """Why it is not; '' where it is."""
    state: State
    begun: Mapping[str, Any]
    """Of an unfinished one, who is or was saving: job, host, pid, since_ns; may be empty."""

    @property
    def generation(self) -> int:
        """How often the training had gone back before it was saved."""
        return 0 if self.manifest is None else self.manifest.generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What `CheckpointFolder.verify` found."""

    ok: bool
    why: str
    """What is wrong; where nothing is, what is there and does not belong to it."""
    bytes_read: int
    seconds: float


class CheckpointFolder:
    """All checkpoints of one job.

    Args:
        address: a folder, or an fsspec address such as `s3://bucket/folder`. Need not be there yet.

    Raises:
        UsageError: it is no folder, no address, or needs a package that is not installed.
    """

    def __init__(self, address: str | os.PathLike[str]) -> None:
        text = os.fspath(address)
        scheme, is_url, rest = text.partition("://")
        if not is_url:
            rest = text
        self._storage: Storage = LocalStorage(rest) if not is_url or scheme in ("file", "local") else ObjectStorage(text)
        self.address = self._storage.address
        self.local = self._storage.local
        self._saving: dict[str, Held | None] = {}
        self._sound: set[str] = set()
        self._owner: Owner | None = None
        self._generation: int | None = None

    def path(self, name: str) -> str:
        """Where the checkpoint `name` lies, for DCP's writer and reader."""
        return self._storage.path(name)

    # ---- saving

    def own(self, who: Mapping[str, Any]) -> Owner:
        """Exclusive use of the folder for saving, for as long as this process lives or until `Owner.release`.

        No child process inherits it. On an object store it is best effort: a note that counts for an hour after each save.

        Args:
            who: what a message to another job should tell, e.g. {"job": name}.

        Raises:
            UsageError: another job has it; says which.
        """
        self._owner = Owner(self._storage, who)
        return self._owner

    def claim(self, step: int) -> str:
        """Make a fresh folder for a save of `step`, one that nobody else has.

        The owner first removes what earlier saves left that did not finish: a job that dies in each of its saves must not fill the disk.

        Returns:
            Its name: step-00000120, or step-00000120.1 where anything of an earlier save of that step is left.
        """
        if self._owner is not None and self._owner.held:
            self._sweep()
        said = json.dumps({**(self._owner.who if self._owner is not None else whoami()), "since_ns": clock.wall_pair()[0]}).encode()
        while True:
            keys = filter(None, map(parse, self._storage.taken()))
            name = name_of(step, max((again + 1 for saved, again in keys if saved == step), default=0))
            self._saving[name] = None
            try:
                made = self._storage.make(name, MARK, said)
            except BaseException:
                del self._saving[name]
                raise
            if made:
                self._saving[name] = self._storage.hold(name, MARK, alone=False) if self.local else None
                return name
            del self._saving[name]

    def commit(self, name: str, manifest: Manifest) -> None:
        """Let the claimed checkpoint exist: the last step of a save, done by one process once all have written and synced their files.

        Raises:
            CheckpointInvalidError: a file of the manifest is not there or has another size; nothing was committed.
            UsageError: another job has taken over the folder, or the checkpoint is committed already.
            OSError: it cannot be written; nothing was committed.
        """
        parsed = _parsed(name)
        if parsed[0] != manifest.step:
            raise UsageError(f"{self.path(name)}: cannot hold step {manifest.step}.")
        if self._owner is not None:
            self._owner.renew()
        there = self._storage.files(name)
        if MANIFEST in there:
            raise UsageError(f"{self.path(name)}: is committed already.")
        wrong = _differences(manifest, there)
        if wrong:
            raise CheckpointInvalidError(self.path(name), wrong)
        if self._generation is None:  # nobody said: an earlier step than the newest's tells that it went back
            newest = next(self.newest(), None)
            self.continue_from("" if newest is None or newest.step > manifest.step else newest.name)
        data = dataclasses.replace(manifest, name=name, generation=self._generation or 0).to_bytes()
        self._storage.settle(name)
        self._storage.put(name, MANIFEST, data, over=MARK)
        self._let_go(name)

    def continue_from(self, name: str) -> None:
        """Say that training goes on from that checkpoint ('' = from the start): what is committed from now on is newer than all there is.

        Without it a checkpoint of a later step that was passed over or left behind would be the newest again, and mix two histories.
        """
        finished = list(self.newest())
        top = max((found.generation for found in finished), default=0)
        self._generation = top + 1 if finished and finished[0].name != name else top

    def discard(self, name: str) -> None:
        """Remove a checkpoint, or what is left of one, whoever reads it: the manifest first, so that half of it is never taken for a whole."""
        _parsed(name)
        if not self._storage.removable(name):
            raise UsageError(f"{self.path(name)}: is a link or not there; what it leads to is left alone.")
        try:
            self._remove(name)
        finally:
            self._let_go(name)  # what could not be removed now is a leftover like others

    def _let_go(self, name: str) -> None:
        held = self._saving.pop(name, None)
        if held is not None:
            held.release()

    # ---- reading

    def found(self) -> list[Found]:
        """What there is, newest first: by step, and of one step the one saved last; what was left behind by going back comes after all since."""
        parsed = ((key, name) for name in self._storage.names() if (key := parse(name)) is not None)
        looked = [(key, found) for key, name in parsed if (found := self._look(name, key[0])) is not None]
        top = max((found.generation for _, found in looked), default=0)
        looked.sort(key=lambda one: (top if one[1].manifest is None else one[1].generation, one[0]), reverse=True)
        return [found for _, found in looked]

    def newest(self) -> Iterator[Found]:
        """Finished ones, newest first."""
        return (found for found in self.found() if found.manifest is not None)

    def get(self, name: str) -> Found:
        """The checkpoint `name`.

        Raises:
            UsageError: there is none of that name.
        """
        key = parse(name)
        found = self._look(name, key[0]) if key is not None and name in self._storage.names() else None
        if found is None:
            known = ", ".join(one.name for one in self.found()[:_SHOWN]) or "none"
            raise UsageError(f"{self.address}: no checkpoint {name!r} there. Newest: {known}.")
        return found

    def verify(self, name: str, *, deep: bool = True, only: Collection[str] | None = None) -> Verdict:
        """Check a checkpoint against its manifest.

        Args:
            name: which.
            deep: read the files and compare their checksums, not only their sizes.
            only: names of files to look at, so that several processes can share the work; None = all, and what is there beside them.
        """
        began = clock.monotonic_ns()
        read, why = 0, ""
        found = self._look(name, _parsed(name)[0])
        if found is None or found.manifest is None:
            return Verdict(ok=False, why=found.why if found is not None else "is not there", bytes_read=0, seconds=0.0)
        files = {file: entry for file, entry in found.manifest.files.items() if only is None or file in only}
        try:
            there = self._storage.files(name)
            why = _differences(dataclasses.replace(found.manifest, files=files), there)
            for file, entry in files.items() if deep and not why else ():
                crc32, size = self._crc32(name, file)
                read += size
                if size != entry.bytes or crc32 != entry.crc32:
                    why = f"{file} is damaged: its checksum is {crc32} over {size:,} bytes, the manifest says {entry.crc32} over {entry.bytes:,}"
                    break
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
        self._remember(name, ok=not why, whole=deep and only is None)
        strays = () if why or only is not None else sorted(file for file in there if file not in files and not file.startswith(MANIFEST))
        more = f"{_some(strays)} not in the manifest" if strays else ""
        return Verdict(ok=not why, why=why or more, bytes_read=read, seconds=(clock.monotonic_ns() - began) / 1e9)

    def read(self, name: str, file: str) -> bytes:
        """One file of a checkpoint.

        Raises:
            OSError: it cannot be read.
        """
        return self._storage.read(name, file)

    def vouch(self, name: str) -> None:
        """Say that all files of a checkpoint were verified, e.g. by several processes that shared the work: `prune` need not read it."""
        self._sound.add(name)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Manifest]:
        """Keep a checkpoint from being removed by `prune` while it is read.

        Raises:
            CheckpointInvalidError: it is not whole, or was removed meanwhile.
        """
        _parsed(name)
        gone = CheckpointInvalidError(self.path(name), "was removed meanwhile, or never finished")
        try:
            held = self._storage.hold(name, MANIFEST, alone=False)
        except FileNotFoundError:
            raise gone from None
        except OSError as error:
            raise CheckpointInvalidError(self.path(name), f"cannot be read: {error.strerror or error}") from None
        if held is None:  # prune has it, and removes it
            raise gone
        try:
            found = self._look(name, _parsed(name)[0])
            if found is None or found.manifest is None:
                raise CheckpointInvalidError(self.path(name), found.why if found is not None else "is not there")
            yield found.manifest
        finally:
            held.release()

    # ---- retention

    def prune(self, keep: int, *, spare: Collection[str] = (), deep: bool = True) -> list[str]:
        """Remove finished checkpoints beyond the newest `keep` that verify, and what saves left that did not finish.

        Left alone: what is being read or saved, what is damaged and newer than the oldest one kept, and what `claim` did not make.
        As long as fewer than `keep` verify, no finished one is removed.

        Args:
            keep: how many that verify must stay, at least 1.
            spare: names that must stay, too.
            deep: read each of the kept ones once in the life of this object, where `vouch` does not say that it is sound.

        Returns:
            Names of what was removed.

        Raises:
            UsageError: this process does not own the folder, or keep is less than 1.
        """
        if self._owner is None or not self._owner.held:
            raise UsageError(f"{self.address}: only the job that saves there may remove checkpoints: call own() first.")
        if keep < 1:
            raise UsageError(f"keep={keep}: at least one checkpoint must stay.")
        swept, kept, goes = self._sweep(spare), 0, []
        for found in self.newest():
            if kept < keep:
                kept += self._is_sound(found.name, deep=deep)
            elif found.name not in spare:
                goes.append(found.name)
        return swept + [name for name in goes if self._storage.removable(name) and self._remove_unread(name)]

    def _sweep(self, spare: Collection[str] = ()) -> list[str]:
        """Remove what saves left that did not finish and that nobody is writing; names of what was removed."""
        left = [found.name for found in self.found() if found.state == "unfinished" and found.name not in self._saving]
        return [name for name in left if name not in spare and self._storage.removable(name) and self._remove_unread(name)]

    def _is_sound(self, name: str, *, deep: bool) -> bool:
        return self.verify(name, deep=deep and name not in self._sound).ok

    def _remember(self, name: str, *, ok: bool, whole: bool) -> None:
        if not ok:
            self._sound.discard(name)
        elif whole:
            self._sound.add(name)

    def _remove_unread(self, name: str) -> bool:
        """Remove it unless somebody reads or writes it; whether it was removed."""
        for file in (MANIFEST, MARK):
            try:
                held = self._storage.hold(name, file, alone=True)
            except FileNotFoundError:
                continue
            except OSError:
                return False
            if held is None:
                return False
            try:
                return self._removed(name)
            finally:
                held.release()
        return self._removed(name)

    def _removed(self, name: str) -> bool:
        try:
            self._remove(name)
        except OSError:  # no right to, or something of others' in it: what has become of it is said by found()
            return False
        return True

    def _remove(self, name: str) -> None:
        """The manifest becomes the mark of an unfinished save, then the files go, then the mark: killed anywhere, it is never half a checkpoint."""
        self._sound.discard(name)
        try:
            there = self._storage.files(name)
        except FileNotFoundError:
            return
        if MANIFEST in there:
            self._storage.rename(name, MANIFEST, MARK)
        for file in there:
            if file not in (MANIFEST, MARK):
                self._storage.remove(name, file)
        self._storage.remove(name, MARK)
        try:
            self._storage.remove_folder(name)
        except OSError:  # another process wrote into it meanwhile, e.g. a rank that does not know yet that the save failed
            with contextlib.suppress(OSError):
                self._storage.put(name, MARK, json.dumps(whoami()).encode(), over=f"{MARK}.new")
            raise

    # ---- one of them

    def _look(self, name: str, step: int) -> Found | None:
        """What is in the folder `name`; None where it is gone."""

        def told(state: State, why: str, *, manifest: Manifest | None = None, begun: Mapping[str, Any] | None = None) -> Found:
            return Found(name=name, step=step, manifest=manifest, why=why, state=state, begun=begun or {})

        try:
            manifest = Manifest.from_bytes(self._storage.read(name, MANIFEST), name)
        except FileNotFoundError:
            return self._look_unfinished(name, told)
        except CheckpointInvalidError as error:
            return told("damaged", error.why)
        except OSError as error:
            return told("damaged", f"cannot be read: {error.strerror or error}")
        if manifest.name not in ("", name) or manifest.step != step:
            return told("damaged", f"its manifest is that of {manifest.name or f'step {manifest.step}'}: was it copied or renamed?")
        return told("finished", "", manifest=manifest)

    def _look_unfinished(self, name: str, told: Callable[..., Found]) -> Found | None:
        try:
            there = self._storage.files(name)
            begun = note_of(self._storage.read(name, MARK)) if MARK in there else {}
        except FileNotFoundError:
            return None
        except OSError as error:
            return told("damaged", f"cannot be read: {error.strerror or error}")
        if MARK in there:
            return told("unfinished", "its save is under way" if self._is_held(name) else "its save did not finish", begun=begun)
        if not there:
            return told("unfinished", "its save did not even begin to write")
        if DCP_METADATA in there:
            return told("foreign", f"a plain DCP checkpoint without {MANIFEST}: torch reads it, but nothing here says whether it is whole")
        return told("foreign", f"no {MANIFEST}, and no sign of a save of ettrain's")

    def _is_held(self, name: str) -> bool:
        """Whether the process that saves lives, as far as the file system tells."""
        if not self.local or name in self._saving:
            return name in self._saving
        try:
            held = self._storage.hold(name, MARK, alone=True)
        except OSError:
            return False
        if held is not None:
            held.release()
        return held is None

    def _crc32(self, name: str, file: str) -> tuple[str, int]:
        crc32 = size = 0
        for piece in self._storage.chunks(name, file):
            crc32 = zlib.crc32(piece, crc32)
            size += len(piece)
        return crc32_text(crc32), size


def name_of(step: int, again: int = 0) -> str:
    """Folder of a save: step 120 -> step-00000120, its second save -> step-00000120.1."""
    return f"step-{step:08d}" + (f".{again}" if again else "")


def parse(name: str) -> tuple[int, int] | None:
    """(step, how often it was saved before) of a folder's name; None where it is none of ours."""
    match = re.fullmatch(r"step-(\d{8,18})(?:\.(\d{1,9}))?", name, flags=re.ASCII)
    if match is None:
        return None
    key = int(match[1]), int(match[2] or 0)
    return key if name_of(*key) == name else None


def _parsed(name: str) -> tuple[int, int]:
    key = parse(name)
    if key is None:
        raise UsageError(f"{name!r}: not the name of a checkpoint, which is like {name_of(120)} or {name_of(120, 1)}.")
    return key


def _differences(manifest: Manifest, there: Mapping[str, int]) -> str:
    """In words, how the files that are there differ from the manifest's; '' where they do not."""
    missing = sorted(file for file in manifest.files if file not in there)
    if missing:
        return f"{_some(missing)} missing"
    for file, entry in sorted(manifest.files.items()):
        if there[file] != entry.bytes:
            return f"{file} has {there[file]:,} bytes, the manifest says {entry.bytes:,}"
    return ""


def _some(files: Collection[str]) -> str:
    shown = ", ".join(list(files)[:_SHOWN])
    count = len(files)
    return f"{shown}{f' and {count - _SHOWN} more' if count > _SHOWN else ''} {'is' if count == 1 else 'are'}"
