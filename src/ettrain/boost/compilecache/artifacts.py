"""What torch has to do with it: which artifacts this process used, how they get into torch's cache folder, and the profiles of all ranks.

torch's own archive carries the generated C++ source and not what the compiler made of it, so the libraries that this process has
loaded from the cache folder go along. Every private name of torch that is used stands in `PRIVATE`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ettrain.boost.compilecache.archive import Entry

LIBRARY: Final = "library"
TIMINGS: Final = "timings"
FILES: Final = (LIBRARY, TIMINGS)
PROFILE: Final = "pgo"
PRECOMPILE: Final = "precompile"
PRIVATE: Final[dict[str, tuple[str, ...]]] = {
    "torch.compiler._cache": (
        "CacheArtifactManager._seen_artifacts",
        "CacheArtifactManager._ensure_cache_artifacts_registered",
        "CacheArtifactFactory.create",
    ),
    "torch._dynamo.pgo": ("get_cache_key", "write_local_impl", "PGOCacheArtifact", "CodeId", "CodeState", "FrameStateSizeEntry.__ior__"),
    "torch._inductor.runtime.cache_dir_utils": ("cache_dir",),
}
"""Looked up before anything is done; where this torch lacks one, nothing is."""
_PROBE: Final = b"__avx_chk_kernel"
"""Stands in the source of the library with which Inductor tries out an instruction set."""
_SHARED_OBJECT: Final = ".so"
_TIMINGS_FOLDER: Final = "cache"
"""Where Inductor keeps what it measured of matrix products: JSON, a file per kind of device."""


class UnsupportedTorchError(RuntimeError):
    """A private name that is needed is missing in the torch at hand; the text says which."""


@dataclass(frozen=True, slots=True)
class Torch:
    """The private names, found."""

    manager: Any
    create: Callable[[str, str, bytes], Any]
    pgo: Any
    cache_dir: Callable[[], str]

    @classmethod
    def found(cls) -> Torch:
        """Look them all up.

        Raises:
            UnsupportedTorchError: this torch lacks one.
        """
        modules = {}
        for name, attributes in PRIVATE.items():
            try:
                module: Any = import_module(name)
                for attribute in attributes:
                    value = module
                    for part in attribute.split("."):
                        value = getattr(value, part)
            except (ImportError, AttributeError) as error:
                raise UnsupportedTorchError(f"this torch has another {name}: {error}") from None
            modules[name] = module
        cache, pgo, folder = modules.values()
        cache.CacheArtifactManager._ensure_cache_artifacts_registered()
        return cls(cache.CacheArtifactManager, cache.CacheArtifactFactory.create, pgo, folder.cache_dir)


def has_compiled() -> bool:
    """Whether a graph had to be compiled in this process, as far as torch tells: then not all came out of caches."""
    return bool(getattr(import_module("torch._dynamo.utils"), "counters", {}).get("inductor", {}).get("fxgraph_cache_miss"))


def used_artifacts(torch: Torch, day: int) -> list[Entry]:
    """Everything of torch's caches that this process compiled or hit, and the libraries it has loaded from the cache folder.

    The profile is not among them: see `new_profile`.
    """
    entries = [
        Entry(kind=artifact.type(), name=artifact.key, content=artifact.content, used=day)
        for artifact in _snapshot(torch.manager)
        if artifact.type() not in (PROFILE, PRECOMPILE)
    ]
    folder = Path(torch.cache_dir())
    files = [(LIBRARY, path) for path in sorted({*_loaded_libraries(folder), *_probes(folder)})]
    files += [(TIMINGS, path) for path in sorted(folder.glob(f"{_TIMINGS_FOLDER}/*")) if path.is_file()]
    for kind, path in files:
        with contextlib.suppress(OSError):
            entries.append(Entry(kind=kind, name=str(path.relative_to(folder)), content=path.read_bytes(), used=day))
    return entries


def _snapshot(manager: Any) -> list[Any]:
    """The artifacts seen so far; a compilation in another thread may be adding some."""
    for _ in range(100):
        with contextlib.suppress(RuntimeError):
            return list(manager._seen_artifacts)
    return []


def _loaded_libraries(folder: Path) -> set[Path]:
    """The shared objects below `folder` that are mapped into this process."""
    inside = f"{folder}/"
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if inside in line}
    return {Path(path) for path in paths if path.startswith(inside) and path.endswith(_SHARED_OBJECT)}


def _probes(folder: Path) -> set[Path]:
    """What Inductor built to try out the CPU: loaded by a child of its only, and built anew on each machine otherwise."""
    found = set()
    for library in folder.glob(f"*/*{_SHARED_OBJECT}"):
        source = library.with_suffix(".cpp")
        with contextlib.suppress(OSError):
            if source.stat().st_size < 4096 and _PROBE in source.read_bytes():
                found.add(library)
    return found


def install(torch: Torch, entries: Iterable[Entry]) -> list[str]:
    """Put entries where torch looks for them; what is there already stays. Returns what could not be put there, and why."""
    folder = torch.cache_dir()
    failed: list[str] = []
    profiles: list[bytes] = []
    for entry in entries:
        try:
            if entry.kind == LIBRARY:
                _install_library(folder, entry)
            elif entry.kind == TIMINGS:
                _install_timings(folder, entry)
            elif entry.kind == PROFILE:
                profiles.append(entry.content)
            elif entry.kind != PRECOMPILE:
                torch.create(entry.kind, entry.name, entry.content).populate_cache()
        except Exception as error:  # noqa: BLE001 - one bad entry must not stop a training job
            failed.append(f"{entry.kind} {entry.name[:60]}: {error}")
    if profiles:
        try:
            _install_profile(torch, profiles)
        except Exception as error:  # noqa: BLE001 - as above
            failed.append(f"{PROFILE}: {error}")
    return failed


def _install_library(folder: str, entry: Entry) -> None:
    path = _inside(folder, entry.name, _SHARED_OBJECT)
    if not os.path.exists(path):
        _write(path, entry.content, 0o755)


def _install_timings(folder: str, entry: Entry) -> None:
    """Add what was measured elsewhere to what was measured here."""
    path = _inside(folder, entry.name)
    told = json.loads(entry.content)
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        told = _deep_merged(told, json.load(file))
    _write(path, json.dumps(told).encode(), 0o644)


def _deep_merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {key: _deep_merged(old.get(key), new[key]) if key in new else old[key] for key in {**old, **new}}


def _inside(folder: str, name: str, suffix: str = "") -> str:
    path = os.path.normpath(os.path.join(folder, name))
    if not path.startswith(folder + os.sep) or not path.endswith(suffix):
        raise ValueError("its path leads out of the cache folder")
    return path


def _write(path: str, content: bytes, mode: int) -> None:
    """All or nothing: other ranks of this host do the same at this moment."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
    os.chmod(temporary, mode)
    os.replace(temporary, path)


# ---- profiles: what each rank has learned about shapes


def profile_key(torch: Torch) -> str | None:
    """Under what torch keeps this rank's profile; to be asked while the process group is there, since the rank is part of it."""
    key: str | None = torch.pgo.get_cache_key()
    return key


def new_profile(torch: Torch, key: str | None, stored: Iterable[Entry], day: int) -> Entry | None:
    """What is known of shapes by now: the stored profiles and this process's own in one, if its own says more than they do.

    Args:
        torch: the private names.
        key: this rank's `profile_key`.
        stored: entries, of which the profiles count.
        day: today.
    """
    known = [entry.content for entry in stored if entry.kind == PROFILE]
    mine = [artifact.content for artifact in _snapshot(torch.manager) if artifact.type() == PROFILE and artifact.key == key]
    if key is None or not mine:
        return None
    whole = merged_profiles(torch, [*known, mine[-1]])
    if known and whole == merged_profiles(torch, known):
        return None
    content = pickle.dumps(whole)
    return Entry(kind=PROFILE, name=hashlib.sha256(content).hexdigest()[:16], content=content, used=day)


def merged_profiles(torch: Torch, profiles: Iterable[bytes]) -> Any:
    """One profile of many: what varies for one rank, or between two, is dynamic for all."""
    whole: Any = None
    for content in profiles:
        state = pickle.loads(content)  # noqa: S301 - authenticated before, and torch would load it all the same
        if not all(isinstance(told, torch.pgo.CodeState) for told in state.values()):
            raise TypeError("not a profile of this torch")
        if whole is None:
            whole = state
            continue
        for code, told in state.items():
            known = whole[code].automatic_dynamic
            for source, entry in told.automatic_dynamic.items():
                if source in known:
                    known[source] |= entry
                else:
                    known[source] = entry
    return whole


def _install_profile(torch: Torch, profiles: list[bytes]) -> None:
    """Make the profile of all ranks this rank's own, before torch reads it."""
    key = profile_key(torch)
    if key is not None:
        torch.pgo.write_local_impl(key, pickle.dumps(merged_profiles(torch, profiles)))
