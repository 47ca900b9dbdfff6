"""`ett cache ls|show|verify|prune ADDRESS`: look after a compile cache."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

from ettrain.boost.compilecache.archive import EPOCH_DAY_S, Archive, ArchiveRefusedError
from ettrain.boost.compilecache.store import ENV_SECRET, MAX_AGE_DAYS, MAX_BYTES, Store, Stored, secret_from, today
from ettrain.errors import UsageError

_ACTIONS: Final = {
    "ls": "list the archives",
    "show": "show what an archive is for and what it holds",
    "verify": "check that every archive is authentic and whole",
    "prune": "remove entries that nobody uses and archives that cannot be used",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=_ACTIONS, help="; ".join(f"{name}: {doc}" for name, doc in _ACTIONS.items()))
    parser.add_argument("address", nargs="?", help="folder or fsspec address (default: ETT_COMPILE_CACHE)")
    parser.add_argument("--program", default="*", help="only archives of this program")
    parser.add_argument("--max-mb", type=int, default=MAX_BYTES >> 20, help=f"prune: keep at most so much of each key (default {MAX_BYTES >> 20})")
    parser.add_argument("--max-days", type=int, default=MAX_AGE_DAYS, help=f"prune: drop what no run used for so long (default {MAX_AGE_DAYS})")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do it; `verify` ends with 1 where an archive cannot be used."""
    address = arguments.address or os.environ.get("ETT_COMPILE_CACHE")
    if not address:
        raise UsageError("which cache? Name its folder or address, e.g. ett cache ls s3://bucket/compile")
    store = Store(address, secret_from(os.environ.get(ENV_SECRET)))
    found = store.stored(arguments.program)
    rows = [_row(store, stored) for stored in found]
    if arguments.action == "prune":
        return _prune(store, rows, arguments)
    if arguments.json:
        print(json.dumps([_as_json(stored, archive, problem) for stored, archive, problem in rows], indent=1))
    elif not rows:
        print(f"no archive in {address}")
    else:
        for stored, archive, problem in rows:
            _print(stored, archive, problem, entries=arguments.action == "show")
    return 1 if arguments.action == "verify" and any(problem for _, _, problem in rows) else 0


Row = tuple[Stored, Archive | None, str]
"""A file, the archive in it, or why it cannot be used."""


def _row(store: Store, stored: Stored) -> Row:
    try:
        return stored, store.read(stored.path), ""
    except FileNotFoundError:
        return stored, None, "removed meanwhile"
    except ArchiveRefusedError as error:
        return stored, None, str(error)


def _prune(store: Store, rows: list[Row], arguments: argparse.Namespace) -> int:
    """Compact what can be read, key by key, and remove what cannot."""
    keys: dict[tuple[str, str], Archive] = {}
    for stored, archive, problem in rows:
        if archive is None:
            store.remove(stored.path)
            print(f"removed  {stored.program}/{stored.digest}  {problem}")
        else:
            keys[stored.program, stored.digest] = archive
    for (program, key_digest), archive in keys.items():
        before = store.stored(program, key_digest)
        store.publish(archive.key, (), max_bytes=arguments.max_mb << 20, max_age_days=arguments.max_days)
        after = store.stored(program, key_digest)
        sizes = " -> ".join(f"{sum(one.size for one in some) / 1e6:.1f} MB" for some in (before, after))
        print(f"kept     {program}/{key_digest}  {sizes}")
    return 0


def _as_json(stored: Stored, archive: Archive | None, problem: str) -> dict[str, Any]:
    told: dict[str, Any] = {"path": stored.path, "program": stored.program, "digest": stored.digest, "bytes": stored.size, "problem": problem or None}
    if archive is not None:
        told |= {"key": archive.key, "signed": archive.signed, "made": archive.made}
        told["entries"] = [
            {"kind": entry.kind, "name": entry.name, "bytes": len(entry.content), "used": entry.used * EPOCH_DAY_S} for entry in archive.entries
        ]
    return told


def _print(stored: Stored, archive: Archive | None, problem: str, *, entries: bool) -> None:
    head = f"{stored.program}/{stored.digest}  {stored.size / 1e6:8.1f} MB"
    if archive is None:
        print(f"{head}  CANNOT BE USED: {problem}")
        return
    kinds = Counter(entry.kind for entry in archive.entries)
    last = max((entry.used for entry in archive.entries), default=today())
    used = datetime.fromtimestamp(last * EPOCH_DAY_S, UTC).date()
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{head}  used {used}  {'signed' if archive.signed else 'unsigned'}  {told or 'empty'}")
    if entries:
        for name, value in archive.key.items():
            text = " ".join(map(str, value)) if isinstance(value, list) else value
            print(f"    {name:13} {text}")
        for entry in sorted(archive.entries, key=lambda entry: entry.identity):
            print(f"      {entry.kind:12} {len(entry.content):>10,}  {entry.name}")
