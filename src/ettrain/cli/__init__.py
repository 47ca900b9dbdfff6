"""The command `ett`: one file per subcommand behind a two-method protocol. Here: dispatch and the form of an error.

No arithmetic here: a subcommand reads arguments, calls down, prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast

from ettrain._version import VERSION
from ettrain.errors import EttrainError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "run": ("ettrain.cli.run", "run a training command and record where its time goes"),
    "watch": ("ettrain.cli.watch", "follow a job while it runs"),
    "report": ("ettrain.cli.report", "say where a job's time went"),
    "import": ("ettrain.cli.import_", "turn a foreign log into a job"),
    "cache": ("ettrain.cli.cache", "look after a compile cache"),
    "autotune": ("ettrain.cli.autotune", "rank what autotuning searched for, and keep the winners"),
    "checkpoint": ("ettrain.cli.checkpoint", "look at a job's checkpoints"),
    "publish": ("ettrain.cli.publish", "look after models published off the devices"),
    "doctor": ("ettrain.cli.doctor", "check this machine, the runs folder and a job's files"),
}
"""Name -> (module that has `add_arguments` and `run`, one line of help)."""


class Command(Protocol):
    """What a subcommand's module provides."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; returns the exit code. Raises EttrainError for what the user can mend."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `ett`. Errors are one line on stderr and the error's exit code; `--debug` shows the trace."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="ett", description="Effective Training Time of any PyTorch job.")
    parser.add_argument("--version", action="version", version=f"ettrain {VERSION}")
    parser.add_argument("--debug", action="store_true", help="show the trace of an error")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    named = next((word for word in words if not word.startswith("-")), None)
    for name, (module, doc) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=doc, description=doc[0].upper() + doc[1:] + ".")
        if name == named:
            cast("Command", import_module(module)).add_arguments(subparser)
    arguments = parser.parse_args(words)
    command = cast("Command", import_module(COMMANDS[arguments.command][0]))
    try:
        return command.run(arguments)
    except EttrainError as error:
        if arguments.debug:
            raise
        print(f"ett {arguments.command}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
