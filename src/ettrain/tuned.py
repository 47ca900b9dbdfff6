"""Winners of autotuning: one of them as data, and the file to check in that holds them. Standard library only; opens no file.

A winner names what was tuned (operation or kernel, its inputs), where (device, version of torch or triton) and what won, by how much.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ettrain.errors import UsageError

FORMAT: Final = 1
GEMM, TRITON = "gemm", "triton"
"""A choice of Inductor's between templates and libraries; a kernel of the program's own under `@triton.autotune`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """One winner."""

    kind: str
    """`gemm` or `triton`."""
    op: str
    """`bmm`, `mm`, ...; for a kernel its name and a digest of its source."""
    inputs: tuple[str, ...]
    """Each as `float32[4,64,64](4096,64,1)`, `?` where a size is dynamic; for a kernel the values of its tuning key."""
    device: str
    """What it was measured on."""
    version: str
    """`torch 2.13.0` or `triton 3.5.0`."""
    winner: str
    """Name of the choice."""
    config: str = ""
    """Its parameters, where the name alone does not tell."""
    best_ms: float | None = None
    runner_up: str = ""
    runner_up_ms: float | None = None
    choices: int = 0
    """How many were tried."""
    search_s: float = 0.0
    """What it took to find out, compiling the choices included."""

    @property
    def key(self) -> tuple[str, str, tuple[str, ...], str, str]:
        """What a pin must agree with."""
        return self.kind, self.op, self.inputs, self.device, self.version


_HEADER: Final = """\
# Winners of autotuning, written by `ett autotune JOB --write`. Check this file in; `ett run --autotune FILE` or
# ettrain.boost.autotune.pin(FILE) skips the search for what stands here. An entry that does not fit (another device, version or
# shape, a choice no longer offered) is ignored, and searched for as ever.
"""


def to_toml(winners: Iterable[Tuned]) -> str:
    """The file's text."""
    lines = [_HEADER, f"format = {FORMAT}"]
    for winner in winners:
        lines += ["", f"[[{winner.kind}]]"]
        lines += [f"{name} = {_toml(getattr(winner, name))}" for name in _FIELDS if getattr(winner, name) not in (None, "", 0)]
    return "\n".join(lines) + "\n"


_FIELDS: Final = (
    "op", "inputs", "device", "version", "winner", "config", "best_ms", "runner_up", "runner_up_ms", "choices", "search_s",
)  # fmt: skip


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def from_toml(text: str, name: str = "file") -> list[Tuned]:
    """The winners in a file's text.

    Raises:
        UsageError: it is no such file; says what is wrong where.
    """
    mend = "Write it anew with: ett autotune JOB --write FILE"
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: no TOML: {error}. {mend}") from None
    if told.get("format") != FORMAT:
        raise UsageError(f"{name}: format is {told.get('format')!r}, this version of ettrain reads {FORMAT}. {mend}")
    found: list[Tuned] = []
    for kind in (GEMM, TRITON):
        entries = told.get(kind, [])
        for number, entry in enumerate(entries if isinstance(entries, list) else [None], 1):
            winner = tuned_from(entry, kind=kind)
            if winner is None:
                raise UsageError(f"{name}: [[{kind}]] number {number} lacks op, inputs, device, version or winner. {mend}")
            found.append(winner)
    return found


def tuned_from(told: Any, *, kind: str) -> Tuned | None:
    """A winner as read from a file; None where it is none."""
    if not isinstance(told, Mapping) or not isinstance(told.get("inputs"), list | tuple):
        return None
    texts = {name: told.get(name) for name in ("op", "device", "version", "winner")}
    if not all(isinstance(text, str) and text for text in texts.values()):
        return None
    return Tuned(
        kind=kind,
        op=str(told["op"]),
        inputs=tuple(map(str, told["inputs"])),
        device=str(told["device"]),
        version=str(told["version"]),
        winner=str(told["winner"]),
        config=str(told.get("config") or ""),
        best_ms=_number(told.get("best_ms")),
        runner_up=str(told.get("runner_up") or ""),
        runner_up_ms=_number(told.get("runner_up_ms")),
        choices=int(_number(told.get("choices")) or 0),
        search_s=_number(told.get("search_s")) or 0.0,
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e15 else None
