"""A stage in another process, seen from its parent: start the process, hand over the call, wait for the answer, kill it if need be."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import spawn
from pathlib import Path
from typing import Any, Final

from ettrain.boost.startup.graph import Stage
from ettrain.errors import UsageError
from ettrain.settings import ENV_JOB_DIR

_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from ettrain.boost.startup.child import serve; serve(int(sys.argv[2]))"
)
_WAITS_FOR_END_S: Final = 5.0


class RemoteError(Exception):
    """The traceback of an exception in another process, as its text: the cause of the exception that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Helper:
    """One process for one call of one stage."""

    def __init__(self, stage: Stage, arguments: Mapping[str, Any]) -> None:
        self._stage = stage
        self._call = self._packed(arguments)
        reader, writer = os.pipe()
        path = [*sys.path, str(Path(__file__).resolve().parents[3])]
        environment = {name: value for name, value in os.environ.items() if name != ENV_JOB_DIR}  # it is no rank: not recorded
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(path), str(writer)],
                stdin=subprocess.PIPE, pass_fds=(writer,), env=environment,
            )  # fmt: skip
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._answer = os.fdopen(reader, "rb")

    def _packed(self, arguments: Mapping[str, Any]) -> bytes:
        try:
            return pickle.dumps(_preparation(self._stage.name)) + pickle.dumps((self._stage.call, dict(arguments)))
        except Exception as error:
            raise UsageError(f"{self._stage} runs in another process, and what it needs cannot be sent there: {error}") from error

    def result(self) -> Any:
        """Wait for the answer.

        Raises:
            BaseException: what the stage raised, with its traceback there as the cause.
            ChildProcessError: it ended without an answer, or its exception cannot be sent.
        """
        try:
            answer = self._exchange()
        finally:
            self.close()
        if not answer:
            code = self._process.returncode
            how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            raise ChildProcessError(f"{self._stage}: its process {how} before it had a result")
        ok, value, *text = pickle.loads(answer)  # noqa: S301 - our own child's
        if ok:
            return value
        if value is None:
            raise ChildProcessError(f"{self._stage} failed in its process:\n{text[0]}")
        raise value from RemoteError(text[0])

    def _exchange(self) -> bytes:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(self._call)
            self._process.stdin.flush()
        return self._answer.read()

    def kill(self) -> None:
        """End it at once; `result` then returns by an exception."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Close the pipes and wait until it is gone."""
        self._answer.close()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_WAITS_FOR_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _preparation(name: str) -> dict[str, Any]:
    """What Python's own `spawn` tells a child so that it finds the same modules, the main program among them."""
    data: dict[str, Any] = spawn.get_preparation_data(name)
    data.pop("authkey", None)
    return data
