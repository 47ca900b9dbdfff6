"""Who issued a call: the line outside torch, the line of the program itself, and the names through which both went.

Frames are sorted by the file of their code: ours and the standard library's are passed over, torch's name the way in, those of
installed packages and of the program are places. Not here: what is made of it.
"""

from __future__ import annotations

import os
from types import CodeType, FrameType
from typing import Final, NamedTuple

_GLUE, _TORCH, _LIBRARY, _PROGRAM = range(4)
_OWN: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_STDLIB: Final = os.path.dirname(os.__file__) + os.sep
_PACKAGES: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
MAX_TEXT: Final = 300


class Place(NamedTuple):
    """Where a call came from; code objects, since texts are only made once per place."""

    via: CodeType | None
    """The function of torch that the place called, None where it called the operation itself."""
    site: CodeType | None
    """The innermost code outside torch."""
    site_line: int
    api: CodeType | None
    """The function of an installed package that the program called, None where it called torch itself."""
    user: CodeType | None
    """The innermost code of the program itself."""
    user_line: int

    def texts(self) -> dict[str, str]:
        """The place in words, what is not known left out."""
        found = {}
        if self.via is not None:
            found["via"] = name_of(self.via)
        if self.site is not None:
            found["site"] = _line(self.site, self.site_line)
        if self.user is not None and self.user is not self.site:
            found["user"] = _line(self.user, self.user_line)
        if self.api is not None:
            found["api"] = name_of(self.api)
        return found


class CallSites:
    """Finds the places of calls. `torch_root` is the folder of torch's package."""

    __slots__ = ("_kinds", "_torch_root")

    def __init__(self, torch_root: str) -> None:
        self._torch_root = torch_root + os.sep
        self._kinds: dict[str, int] = {}

    def of(self, frame: FrameType | None) -> Place:
        """The place from which `frame` came to run."""
        via = site = api = None
        site_line = 0
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code.co_filename)
            if kind is None:
                kind = kinds[code.co_filename] = self._kind_of(code.co_filename)
            if kind == _TORCH:
                if site is None and "<locals>" not in code.co_qualname:
                    via = code
            elif kind != _GLUE:
                if site is None:
                    site, site_line = code, frame.f_lineno
                if kind == _PROGRAM:
                    return Place(via, site, site_line, api, code, frame.f_lineno)
                if "<locals>" not in code.co_qualname:
                    api = code
            frame = frame.f_back
        return Place(via, site, site_line, api, None, 0)

    def _kind_of(self, path: str) -> int:
        if path.startswith(self._torch_root):
            return _TORCH
        if path.startswith((_OWN, "<frozen")) or not path:
            return _GLUE
        if any(part in path for part in _PACKAGES):
            return _LIBRARY
        return _GLUE if path.startswith(_STDLIB) else _PROGRAM


def name_of(code: CodeType) -> str:
    """`Class.method`, or `module.function`."""
    name = code.co_qualname
    if "." not in name:
        name = f"{os.path.basename(code.co_filename).removesuffix('.py')}.{name}"
    return name[:MAX_TEXT]


def _line(code: CodeType, line: int) -> str:
    return f"{code.co_filename[-MAX_TEXT:]}:{line}"
