r"""The bytes of a compile-cache archive: entries under a header, authenticated as a whole. Pure; knows neither torch nor any store.

    ETTCACHE1\n                       magic and version
    32 bytes                          HMAC-SHA256 of all that follows under the user's key; SHA-256 where there is none
    one line of JSON                  {"key": {...}, "made": epoch s, "signed": bool, "entries": [[kind, name, sha256, size, used], ...]}
    the entries' contents, one after another, zlib-compressed as a whole

An archive holds native code and pickles: whoever can write one can run code in every job that loads it. So nothing of it is
looked at before the whole is authenticated.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

MAGIC: Final = b"ETTCACHE1\n"
MAC_BYTES: Final = 32
MIN_SECRET_BYTES: Final = 16
MAX_UNPACKED_BYTES: Final = 8 << 30
"""An archive that claims more is refused unread."""
EPOCH_DAY_S: Final = 86_400


class ArchiveRefusedError(ValueError):
    """An archive that is not used; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One artifact."""

    kind: str
    """What it is: a type of torch's cache artifacts (`inductor`, `aot_autograd`, `pgo`, `autotune`), or `library`."""
    name: str
    """torch's cache key, or the file's path below the cache folder."""
    content: bytes
    used: int
    """Day on which a job last used it, days since the epoch."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Two entries with the same identity are the same."""
        return self.kind, self.name, hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an archive says."""

    key: dict[str, Any]
    """All that makes its artifacts valid."""
    made: int
    """Epoch seconds."""
    signed: bool
    entries: tuple[Entry, ...]


def pack(key: Mapping[str, Any], entries: Iterable[Entry], *, made: int, secret: bytes | None) -> bytes:
    """An archive's bytes. The same entries give the same bytes, in whatever order they come."""
    ordered = sorted(entries, key=lambda entry: entry.identity)
    rows = [[*entry.identity, len(entry.content), entry.used] for entry in ordered]
    header = {"key": dict(key), "made": made, "signed": secret is not None, "entries": rows}
    body = json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    body += zlib.compress(b"".join(entry.content for entry in ordered), 1)
    return MAGIC + _mac(body, secret) + body


def unpack(data: bytes, *, secret: bytes | None) -> Archive:
    """The archive in `data`.

    Args:
        secret: the user's key; None accepts an unsigned archive, so the store must be the user's own.

    Raises:
        ArchiveRefusedError: it is no archive, was cut short or altered, was signed with another key, or is not signed although a
            key is asked for.
    """
    if not data.startswith(MAGIC):
        raise ArchiveRefusedError("not a compile-cache archive of this version")
    mac, body = data[len(MAGIC) : len(MAGIC) + MAC_BYTES], data[len(MAGIC) + MAC_BYTES :]
    if not hmac.compare_digest(mac, _mac(body, secret)):
        raise ArchiveRefusedError(_why_not_authentic(mac, body, secret))
    line, _, packed = body.partition(b"\n")
    try:
        header = json.loads(line)
        rows = [(str(kind), str(name), str(sha), int(size), int(used)) for kind, name, sha, size, used in header["entries"]]
        entries = tuple(_entries(rows, _unzip(packed, sum(row[3] for row in rows))))
        return Archive(key=dict(header["key"]), made=int(header["made"]), signed=bool(header["signed"]), entries=entries)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise ArchiveRefusedError(f"authentic, yet malformed: {error}") from None


def merged(old: Iterable[Entry], new: Iterable[Entry]) -> tuple[Entry, ...]:
    """All entries of both; of the same one, the later day of use."""
    found: dict[tuple[str, str, str], Entry] = {}
    for entry in (*old, *new):
        before = found.get(entry.identity)
        if before is None or entry.used > before.used:
            found[entry.identity] = entry
    return tuple(found.values())


def bounded(entries: Iterable[Entry], *, max_bytes: int, oldest_day: int) -> tuple[Entry, ...]:
    """The entries to keep: none last used before `oldest_day`, the most recently used that fit in `max_bytes`."""
    kept, total = [], 0
    for entry in sorted(entries, key=lambda entry: (-entry.used, entry.identity)):
        if entry.used < oldest_day or total + len(entry.content) > max_bytes:
            continue
        total += len(entry.content)
        kept.append(entry)
    return tuple(kept)


def _unzip(packed: bytes, size: int) -> bytes:
    if not 0 <= size <= MAX_UNPACKED_BYTES:
        raise ArchiveRefusedError(f"authentic, yet claims to unpack to {size} bytes")
    content = zlib.decompressobj().decompress(packed, size + 1)
    if len(content) != size:
        raise ArchiveRefusedError("authentic, yet its entries do not add up to its size")
    return content


def _entries(rows: list[tuple[str, str, str, int, int]], content: bytes) -> Iterable[Entry]:
    at = 0
    for kind, name, sha, size, used in rows:
        entry = Entry(kind=kind, name=name, content=content[at : at + size], used=used)
        if entry.identity[2] != sha:
            raise ArchiveRefusedError(f"authentic, yet {kind} {name} is not what its header says")
        at += size
        yield entry


def _mac(body: bytes, secret: bytes | None) -> bytes:
    return hmac.new(secret, body, hashlib.sha256).digest() if secret is not None else hashlib.sha256(body).digest()


def _why_not_authentic(mac: bytes, body: bytes, secret: bytes | None) -> str:
    if secret is not None and hmac.compare_digest(mac, _mac(body, None)):
        return "not signed, and a key is set: only archives signed with it are accepted"
    if b'"signed":true' in body.partition(b"\n")[0]:
        return "signed with another key, cut short or altered" if secret is not None else "signed, and no key is set to check it with"
    return "cut short or altered"
