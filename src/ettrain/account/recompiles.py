"""Why a function was compiled again, read from torch's own words; and which of the causes a dynamic source would have cured.

The texts are torch's guard failures (as of torch 2.13). What is not understood is `other`: shown as torch says it, never guessed.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SIZE: Final = "size"
NUMBER: Final = "number"
ZERO_ONE: Final = "zero_one"
CURABLE: Final = (SIZE, NUMBER)


class Cause(NamedTuple):
    """Why a compiled graph did not fit."""

    kind: str
    """`size`, `number`, `zero_one`, `rank`, `dtype`, `stride`, `requires_grad`, `dispatch`, `device`, `mode`, `value`, `length`,
    `type`, `object`, `parameter`, `branch`, `presence`, `other`."""
    name: str
    """What differed, in torch's words for users: `ids[0]`, `self.step`, `grad_mode`; '' = not told."""
    dim: int | None
    expected: str
    actual: str
    """Either is '' where torch does not tell."""


_TENSOR: Final = r"tensor '(?P<name>.*?)' "
_PATTERNS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (kind, re.compile(pattern, re.DOTALL))
    for kind, pattern in (
        ("parameter", _TENSOR + r"size mismatch at index (?P<dim>\d+)\. expected (?P<expected>\S+), actual (?P<actual>\d+)\. Guard failed on a param"),
        (SIZE, _TENSOR + r"size mismatch at index (?P<dim>\d+)\. expected (?P<expected>\S+), actual (?P<actual>\d+)"),
        ("rank", _TENSOR + r"rank mismatch\. expected (?P<expected>\S+), actual (?P<actual>\S+)"),
        ("dtype", _TENSOR + r"dtype mismatch\. expected (?P<expected>\S+), actual (?P<actual>\S+)"),
        ("stride", _TENSOR + r"stride mismatch at index (?P<dim>\d+)\. expected (?P<expected>\S+), actual (?P<actual>\S+)"),
        ("requires_grad", _TENSOR + r"requires_grad mismatch\. expected requires_grad=(?P<expected>\S+)"),
        ("dispatch", _TENSOR + r"dispatch key set mismatch\. expected (?P<expected>.+?), actual (?P<actual>.+)"),
        ("device", _TENSOR + r".*device index"),
        ("mode", r"GLOBAL_STATE changed: (?P<name>.+?)\s*$"),
        ("mode", r"(?P<name>.+?)\.training == (?P<expected>True|False)\b"),
        ("object", r"___check_obj_id\((?P<name>.+?), \d+\)"),
        ("object", r"Cache line invalidated because (?P<name>.+?) got deallocated"),
        ("type", r"___check_type_id\((?P<name>.+?), \d+\)"),
        ("length", r"len\((?P<name>.+?)\) (?:==|!=) (?P<expected>\d+)"),
        (ZERO_ONE, r"2 <= (?P<name>.+)\.size\(\)\[(?P<dim>\d+)\]\s*(?:#|$)"),
        ("branch", r"(?P<expected>.*?(?P<name>[A-Za-z_][\w.\[\]']*)\.size\(\)\[(?P<dim>\d+)\].*?)\s*(?:#|$)"),
        (NUMBER, r"(?P<name>[A-Za-z_][\w.\[\]'\" ]*?) == (?P<expected>-?\d+)\s*(?:#|$)"),
        ("value", r"(?P<name>[A-Za-z_].*?) == (?P<expected>.+?)\s*(?:#|$)"),
        ("presence", r"(?P<name>.+?) is (?:not )?(?P<expected>None)"),
    )
)
_NUMBERED: Final = re.compile(r"^!?\d+(?:/\d+)+: ")
_HINTED: Final = re.compile(r"\s*\(HINT: .*?\)(?=\n|$)", re.DOTALL)


def cause_of(reason: str) -> Cause:
    """The cause that a reason tells; kind `other` where it is none known."""
    text = _NUMBERED.sub("", reason)
    head = _HINTED.sub("", text).split("\nUser stack trace", 1)[0].strip()
    for kind, pattern in _PATTERNS:
        match = pattern.match(head)
        if match:
            told = match.groupdict()
            dim = told.get("dim")
            name, actual = str(told.get("name") or "").strip(), told.get("actual") or ""
            special = kind == SIZE and actual in ("0", "1")
            return Cause(ZERO_ONE if special else kind, name, None if dim is None else int(dim), (told.get("expected") or "").strip(), actual.strip())
    return Cause("other", "", None, "", "")


def user_name(source: str) -> str:
    """dynamo's name of a source as torch prints it to users: `L['ids'][0]` is `ids[0]`."""
    return re.sub(r"^L\['(\w+)'\]", r"\1", source)


def source_of(name: str) -> str | None:
    """The source of that user's name, where it can be told from the name alone; None otherwise."""
    if re.match(r"[LG]\[", name):
        return name
    match = re.fullmatch(r"([A-Za-z_]\w*)((?:\[.+\])?)|(self)(\.\w+)", name)
    if match is None:
        return None
    return f"L['{match[1] or match[3]}']{match[2] or match[4] or ''}"
