"""What tells one checkpoint from another, also after it was copied, renamed or overwritten. Costs under 2 ms for any size."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from typing import Any, Final

SAMPLE_BYTES: Final = 65536
_PLAIN: Final = (io.BytesIO, io.BufferedReader, io.BufferedRandom)
"""Open files that may be looked into. Others may count, hash or fetch what is read from them."""


def identity_of(target: Any) -> dict[str, Any]:
    """Identity of a checkpoint as written to or read from `target`: a path, a folder (DCP), or an open file.

    Returns:
        Any of: path, ino [device, inode], size, mtime (ns), sid (the content id that torch.save writes), fp (size and hash of
        three samples of the content; of `.metadata` for a DCP folder). Empty where nothing can be known.
    """
    path = _path_of(target)
    if path is None:
        sid = _serialization_id_within(target)
        return {"sid": sid} if sid else {}
    real = os.path.realpath(path)
    identity: dict[str, Any] = {"path": real}
    try:
        status = os.stat(real)
    except OSError:
        return identity
    if stat.S_ISDIR(status.st_mode):
        identity["ino"] = [status.st_dev, status.st_ino]
        fingerprint = _fingerprint(os.path.join(real, ".metadata"))
    elif stat.S_ISREG(status.st_mode):
        identity.update(ino=[status.st_dev, status.st_ino], size=status.st_size, mtime=status.st_mtime_ns)
        sid = _serialization_id(real)
        if sid:
            identity["sid"] = sid
            return identity
        fingerprint = _fingerprint(real)
    else:
        return identity
    if fingerprint:
        identity["fp"] = fingerprint
    return identity


def _path_of(target: Any) -> str | None:
    if isinstance(target, (str, os.PathLike)):
        return os.fsdecode(target)
    if isinstance(target, bytes):
        return os.fsdecode(target)
    name = getattr(target, "name", None)
    return name if isinstance(name, str) and os.path.exists(name) else None


def _serialization_id_within(file: Any) -> str | None:
    """The content hash inside a torch archive in an open file, whose position is left as it was."""
    if type(file) not in _PLAIN:
        return None
    try:
        position = file.tell()
        try:
            return _serialization_id(file)
        finally:
            file.seek(position)
    except (OSError, ValueError):
        return None


def _serialization_id(target: Any) -> str | None:
    try:
        with zipfile.ZipFile(target) as archive:
            for name in archive.namelist():
                if name.endswith("/.data/serialization_id"):
                    return archive.read(name).decode("ascii", "replace")
    except Exception:  # noqa: BLE001 - what is no archive, or half of one, may fail in any way
        return None
    return None


def _fingerprint(path: str) -> str | None:
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.blake2b(str(size).encode(), digest_size=12)
            for offset in sorted({0, max(0, (size - SAMPLE_BYTES) // 2), max(0, size - SAMPLE_BYTES)}):
                file.seek(offset)
                digest.update(file.read(SAMPLE_BYTES))
    except OSError:
        return None
    return digest.hexdigest()
