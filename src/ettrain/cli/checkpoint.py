"""`ett checkpoint ls|show|verify FOLDER [NAME]`: look at the checkpoints of a job. Needs no torch, and changes nothing."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any, Final

from ettrain import clock
from ettrain.boost.checkpoint.folder import DCP_METADATA, CheckpointFolder, Found, Verdict, parse
from ettrain.boost.checkpoint.manifest import Manifest
from ettrain.errors import CheckpointInvalidError, UsageError
from ettrain.report.units import clean, day_and_time, duration, instant, plural, size

_ACTIONS: Final = {
    "ls": "list what there is, newest first, with the state of each by its manifest and the sizes of its files",
    "show": "show what one of them holds (default: the newest that is whole)",
    "verify": "read the files of all, or of one, and compare their checksums; ends with 1 where one is damaged",
}
_WORDS: Final = {"finished": "ok", "unfinished": "unfinished", "damaged": "DAMAGED", "foreign": "not ours"}
_NS: Final = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=_ACTIONS, help="; ".join(f"{name}: {doc}" for name, doc in _ACTIONS.items()))
    parser.add_argument("folder", help="folder or fsspec address of a job's checkpoints, or one of them")
    parser.add_argument("name", nargs="?", help="one of them, e.g. step-00000120")
    parser.add_argument("--fast", action="store_true", help="verify: compare sizes only, read no file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do it; `verify` ends with 1 where a checkpoint is damaged, or the one named is not whole."""
    folder, name = _place(arguments.folder, arguments.name)
    if arguments.action == "show":
        return _show(folder, name, as_json=arguments.json)
    found = folder.found() if name is None else [folder.get(name)]
    deep = arguments.action == "verify" and not arguments.fast
    rows = []
    for one in found:
        row = _Row(folder, one, deep=deep)
        rows.append(row)
        if not arguments.json:
            print(row.verified() if arguments.action == "verify" else row.listed(), flush=True)
    if arguments.json:
        print(json.dumps([row.as_json() for row in rows], indent=1))
    elif not rows:
        print(_nothing(folder))
    if arguments.action != "verify":
        return 0
    return int(any(row.damaged or (name is not None and not row.ok) for row in rows))


def _place(address: str, name: str | None) -> tuple[CheckpointFolder, str | None]:
    """The folder, and which one of it where the address is that of a single checkpoint."""
    parent, _, last = address.rstrip("/").rpartition("/")
    if name is None and parse(last) is not None:
        address, name = parent or ("/" if address.startswith("/") else "."), last
    folder = CheckpointFolder(address)
    if folder.local and not os.path.isdir(folder.address):
        raise UsageError(f"{address}: no such folder.")
    return folder, name


def _nothing(folder: CheckpointFolder) -> str:
    if folder.local and os.path.exists(os.path.join(folder.address, DCP_METADATA)):
        return f"{folder.address} is a plain DCP checkpoint itself, without a manifest: torch reads it, but nothing here says whether it is whole"
    return f"no checkpoint in {folder.address}"


class _Row:
    """One checkpoint, and what is wrong with it."""

    def __init__(self, folder: CheckpointFolder, found: Found, *, deep: bool) -> None:
        self.folder, self.found, self.deep = folder, found, deep
        self.verdict: Verdict | None = None
        if found.manifest is not None:
            try:
                with folder.reading(found.name):
                    self.verdict = folder.verify(found.name, deep=deep)
            except CheckpointInvalidError as error:
                self.verdict = Verdict(ok=False, why=error.why, bytes_read=0, seconds=0.0)

    @property
    def ok(self) -> bool:
        """Whether it is a checkpoint, as far as was looked."""
        return self.verdict is not None and self.verdict.ok

    @property
    def damaged(self) -> bool:
        """Whether it was one, or should be."""
        return self.found.state == "damaged" or (self.verdict is not None and not self.verdict.ok)

    @property
    def why(self) -> str:
        """What is wrong with it; of a sound one, what does not belong to it."""
        return self.found.why if self.verdict is None else self.verdict.why

    @property
    def state(self) -> str:
        """Its state in one word."""
        return _WORDS["damaged" if self.damaged else self.found.state]

    def listed(self) -> str:
        """A line of `ls`."""
        told = self.found.manifest
        if told is None:
            return f"{self.found.name:18}  {'':>11}  {'':>8}  {'':8}  {self.state}: {clean(self.why)}{_begun(self.found.begun)}"
        job = f"  job {clean(told.job)}" if told.job else ""
        why = f": {clean(self.why)}" if self.damaged else ""
        ranks = plural(told.world, "rank")
        return f"{self.found.name:18}  {_age(told.created_ns):>11}  {size(told.size):>8}  {ranks:8}  {self.state}{why}{job}"

    def verified(self) -> str:
        """A line of `verify`."""
        line = f"{self.found.name:18}  {self.state}"
        if not self.ok or self.verdict is None:
            return f"{line}: {clean(self.why)}{_begun(self.found.begun)}"
        note = f"  ({clean(self.why)})" if self.why else ""
        if not self.deep:
            return f"{line}  by sizes only{note}"
        return f"{line}  {size(self.verdict.bytes_read)} read in {duration(int(self.verdict.seconds * _NS))}{note}"

    def as_json(self) -> dict[str, Any]:
        """The same as JSON's own types."""
        told = self.found.manifest
        state = "damaged" if self.damaged else self.found.state
        row: dict[str, Any] = {
            "name": self.found.name, "step": self.found.step, "state": state, "ok": self.ok, "why": self.why or None,
            "path": self.folder.path(self.found.name), "deep": self.deep and self.verdict is not None,
        }  # fmt: skip
        if told is None:
            return row | {"begun": dict(self.found.begun) or None}
        return row | {"created": instant(told.created_ns), "age_s": _age_ns(told.created_ns) / _NS, "bytes": told.size, "world": told.world,
                      "job": told.job or None, "attempt": told.attempt, "bytes_read": self.verdict.bytes_read if self.verdict else 0}  # fmt: skip


def _show(folder: CheckpointFolder, name: str | None, *, as_json: bool) -> int:
    found = folder.get(name) if name is not None else next(folder.newest(), None)
    if found is None:
        if folder.found():
            raise UsageError(f"no finished checkpoint in {folder.address}. What there is, and why: ett checkpoint ls {folder.address}")
        raise UsageError(f"{_nothing(folder)}.")
    if found.manifest is None:
        raise CheckpointInvalidError(folder.path(found.name), clean(found.why) + _begun(found.begun))
    if as_json:
        print(folder.read(found.name, "manifest.json").decode(), end="")
        return 0
    for line in _described(folder, found, found.manifest):
        print(line)
    return 0


def _described(folder: CheckpointFolder, found: Found, told: Manifest) -> list[str]:
    job = f"{clean(told.job)}, attempt {told.attempt}" if told.job else "not under ett run"
    rows = {
        "step": f"{told.step:,}",
        "saved": f"{day_and_time(told.created_ns)}, {_age(told.created_ns)}",
        "job": job,
        "ranks": str(told.world),
        "generation": f"{told.generation}: the training had gone back to an older checkpoint" if told.generation else "",
        "size": f"{size(told.size)} in {plural(len(told.files), 'file')}",
        "position": _pairs(told.position),
        "metrics": _pairs(told.metrics),
        "save took": ", ".join(f"{clean(name)} {duration(int(value * _NS)) if value >= 0 else '?'}" for name, value in told.seconds.items()),
        "versions": _pairs(told.versions),
        "more": _pairs(told.more),
    }
    lines = [f"{found.name} in {folder.address}"]
    lines += [f"  {name:10} {text}" for name, text in rows.items() if text]
    lines.append("  files")
    lines += [f"    {size(entry.bytes):>8}  {entry.crc32}  {clean(file)}" for file, entry in sorted(told.files.items())]
    return lines


def _pairs(told: Mapping[str, Any]) -> str:
    return ", ".join(f"{clean(name)} {_value(value)}" for name, value in told.items())


def _value(value: Any) -> str:
    if isinstance(value, bool | str) or value is None:
        return clean(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else clean(json.dumps(value))


def _begun(told: Mapping[str, Any]) -> str:
    """Who was saving, in words."""
    if not told.get("host"):
        return ""
    job = f"job {clean(str(told['job']))}, " if told.get("job") else ""
    since = told.get("since_ns")
    when = f", begun {_age(since)}" if isinstance(since, int) else ""
    return f" ({job}process {told.get('pid')} on {clean(str(told['host']))}{when})"


def _age_ns(created_ns: int) -> int:
    return max(0, clock.wall_pair()[0] - created_ns)


def _age(created_ns: int) -> str:
    return f"{duration(_age_ns(created_ns) // _NS * _NS)} ago"
