"""Functions named so that another process finds them: by module, or by the script's file where the function is `__main__`'s.

Not here: what the functions do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, Final

from ettrain.errors import UsageError

MAIN: Final = "__main__"
_WAYS: Final = "Give a function of a module, or its name as 'module:function'."


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Where a function is found."""

    module: str
    """Import path; `__main__` where `file` tells."""
    name: str
    """Name in the module, dotted for an attribute of a class."""
    file: str = ""
    """The script that holds it; '' = the module is imported by name."""

    def __str__(self) -> str:
        return f"{self.file or self.module}:{self.name}"


def name_of(what: str | Callable[..., Any], role: str) -> Named:
    """The name by which another process finds a function.

    Args:
        what: the function, or 'module:function'.
        role: what it is for, for messages: `model`.

    Raises:
        UsageError: a lambda, a function inside a function, an object: nothing that has a name of its own.
    """
    if isinstance(what, str):
        home, _, attribute = what.partition(":")
        if not _dotted(home) or not _dotted(attribute):
            raise UsageError(f"{role}={what!r}: write 'module:function', e.g. {role}='mypackage.models:build'.")
        return Named(module=home, name=attribute)
    module, name = getattr(what, "__module__", None), getattr(what, "__qualname__", None)
    if not callable(what) or not isinstance(module, str) or not isinstance(name, str):
        raise UsageError(f"{role}={_shown(what)}: has no name by which another process could find it. {_WAYS}")
    if not _dotted(name):
        kind = "a lambda" if name.endswith("<lambda>") else "defined inside a function"
        raise UsageError(f"{role}={_shown(what)}: is {kind}, which another process cannot find. Move it to the top level of a module.")
    named = Named(module=module, name=name, file=_script(role, what) if module == MAIN else "")
    if _attribute(sys.modules.get(module), name) is not what:
        raise UsageError(f"{role}={_shown(what)}: {named} is another object. {_WAYS}")
    return named


def resolve(named: Named, role: str) -> Any:
    """The function.

    Raises:
        UsageError: it is not there, or its module cannot be imported here.
    """
    try:
        module = _load(named.file) if named.file else import_module(named.module)
    except ImportError as error:
        where = named.file or f"module {named.module!r}"
        raise UsageError(
            f"{role}: {where} cannot be imported by the publisher: {error}. Its path: {os.pathsep.join(sys.path[:6])}"
        ) from error
    found = _attribute(module, named.name)
    if found is None:
        raise UsageError(f"{role}: there is no {named.name!r} in {named.file or named.module}.")
    return found


def _load(file: str) -> Any:
    """A script as a module: what stands under its `if __name__ == "__main__"` does not run."""
    name = f"_ett_published_{os.path.splitext(os.path.basename(file))[0]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not os.path.exists(file):
        raise ImportError(f"no Python file {file}")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _script(role: str, what: object) -> str:
    main = sys.modules.get(MAIN)
    spec = getattr(main, "__spec__", None)
    file = getattr(spec, "origin", None) or getattr(main, "__file__", None)
    if not isinstance(file, str) or not os.path.exists(file):
        raise UsageError(f"{role}={_shown(what)}: was typed in or given with -c, so no other process can find it. {_WAYS}")
    return os.path.abspath(file)


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _dotted(name: str) -> bool:
    return bool(name) and all(part.isidentifier() for part in name.split("."))


def _shown(what: object) -> str:
    return str(getattr(what, "__qualname__", "") or repr(what)[:60])
