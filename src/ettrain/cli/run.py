"""`ett run -- COMMAND`: run it, record it, and say at the end what came of it."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

from ettrain import clock, experience
from ettrain.account.ledger import account, number_of
from ettrain.cli import dynamicsources, publishing
from ettrain.errors import EttrainError, UsageError
from ettrain.jobpaths import JOB_NAME, JobPaths
from ettrain.jobreader import JobReader
from ettrain.learned import Lessons, program_of
from ettrain.lifecycle import FAILURE
from ettrain.settings import ENV_ASYNC_CHECKPOINT, ENV_AUTOTUNE, ENV_BOOST, ENV_STARTUP_SEQUENTIAL, value_of
from ettrain.supervise.recording import job_name_for, tell
from ettrain.supervise.run import Outcome, Plan, Supervisor, working_folder
from ettrain.tuned import from_toml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "ett run [options] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("--job", help="name of the job; the same name again adds attempts to it (default: command and time)")
    parser.add_argument("--runs", help="folder of all jobs (default: ett-runs, or ETT_RUNS)")
    parser.add_argument("--restarts", help="start a failed attempt again, at most so often (default 0)")
    parser.add_argument("--restart-delay", help="pause before a restart, seconds (default 0)")
    parser.add_argument(
        "--hang-timeout", help="end an attempt in which no rank makes progress for so many seconds once training (default: never)"
    )
    parser.add_argument("--devices-per-rank", help="devices that one rank counts as (default 1)")
    parser.add_argument("--submitted", help="when the job entered the queue, epoch seconds")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="a label, e.g. team=ranking; may be repeated")
    parser.add_argument(
        "--compile-cache", metavar="ADDRESS", help="folder or fsspec address of compiled artifacts to share: fetched before the first compilation"
    )
    parser.add_argument(
        "--dynamic-sources", metavar="auto|VALUE", help="what torch.compile takes as dynamic from the start: auto = what earlier attempts taught"
    )
    parser.add_argument(
        "--async-checkpoint", action="store_const", const=1, help="write what the program saves by torch.save and dcp.save in the background"
    )
    parser.add_argument("--autotune", metavar="FILE", help="pin the winners of autotuning that FILE holds: ett autotune JOB --write FILE")
    parser.add_argument("--explain-startup", action="store_true", help="sample the stack until the first step: name what ran in set-up")
    parser.add_argument("--sequential", action="store_true", help="run the stages of ett.Startup without overlap, for comparison")
    publishing.add_argument(parser)
    parser.add_argument("--quiet", action="store_true", help="print nothing of ettrain's own unless something is wrong")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command, after --")


def run(arguments: argparse.Namespace) -> int:
    """Do it; returns the command's exit code (128 + n for signal n)."""
    plan = _plan(arguments)
    supervisor, began_ns = Supervisor(plan), clock.wall_pair()[0]
    if supervisor.recording.on and not arguments.quiet:
        tell(f"recording job {plan.paths.name}  (ett watch {plan.paths.name})")
    outcome = supervisor.run()
    if outcome.recorded and outcome.started:
        _lessons(plan.paths, plan.command).keep(plan.paths)
        _say(plan, outcome, quiet=arguments.quiet)
    code = outcome.code if outcome.code >= 0 else 128 - outcome.code
    return publishing.settle(plan.paths.root, began_ns, code, wait_s=arguments.wait_publish, quiet=arguments.quiet)


def _plan(arguments: argparse.Namespace) -> Plan:
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise UsageError("nothing to run. Example: ett run -- torchrun --nproc-per-node 2 train.py")
    job = arguments.job if arguments.job is not None else job_name_for(words)
    if not JOB_NAME.fullmatch(job):
        raise UsageError(f"--job {job!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 100")
    submitted = float(value_of("submitted", arguments.submitted))
    runs = Path(str(value_of("runs", arguments.runs))).absolute()
    if os.path.exists(runs) and not os.path.isdir(runs):
        raise UsageError(f"--runs {runs}: is not a folder")
    _environment(arguments)  # what is wrong with them is said before anything starts
    paths = JobPaths(runs / job)
    return Plan(
        command=tuple(words),
        paths=paths,
        restarts=int(value_of("restarts", arguments.restarts)),
        restart_delay_s=float(value_of("restart_delay_s", arguments.restart_delay)),
        hang_timeout_s=float(value_of("hang_timeout_s", arguments.hang_timeout)),
        grace_s=float(value_of("grace_s")),
        devices_per_rank=int(value_of("devices_per_rank", arguments.devices_per_rank)),
        submitted_ns=int(submitted * 1e9) or None,
        labels=_labels(arguments.label),
        explain_startup=arguments.explain_startup,
        environment=partial(_for_attempt, arguments, paths, tuple(words)),
    )


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    """What the parts that were asked for need in the environment of the next attempt."""
    dynamicsources.check(str(value_of("dynamic_sources", arguments.dynamic_sources)))
    return {**_compile_cache(arguments), **_startup(arguments), **_autotune(arguments), **_async_checkpoint(arguments)}


def _for_attempt(arguments: argparse.Namespace, paths: JobPaths, words: tuple[str, ...]) -> dict[str, str]:
    """The same, with what earlier attempts taught."""
    dynamic = str(value_of("dynamic_sources", arguments.dynamic_sources))
    learned = dynamicsources.environment(dynamic, _lessons(paths, words), paths, quiet=arguments.quiet)
    experience.before_attempt(paths)
    return {**_environment(arguments), **learned}


def _lessons(paths: JobPaths, words: tuple[str, ...]) -> Lessons:
    return Lessons(paths.root.parent, program_of(words, working_folder()))


def _compile_cache(arguments: argparse.Namespace) -> dict[str, str]:
    address = str(value_of("compile_cache", arguments.compile_cache))
    if not address:
        return {}
    remote = "://" in address and not address.startswith("file://")
    if remote and not value_of("cache_key"):
        raise UsageError(
            f"--compile-cache {address}: archives hold code, and others may be able to write there. "
            "Set ETT_CACHE_KEY to a key of your own (or @FILE) to have them signed."
        )
    return {"ETT_COMPILE_CACHE": address if remote else os.path.abspath(address.removeprefix("file://")), ENV_BOOST: "1"}


def _autotune(arguments: argparse.Namespace) -> dict[str, str]:
    name = str(value_of("autotune", arguments.autotune))
    if not name:
        return {}
    path = Path(name).absolute()
    try:
        from_toml(path.read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--autotune {name}: cannot be read: {error}. Write one with: ett autotune JOB --write {name}") from None
    return {ENV_AUTOTUNE: str(path), ENV_BOOST: "1"}


def _async_checkpoint(arguments: argparse.Namespace) -> dict[str, str]:
    return {ENV_ASYNC_CHECKPOINT: "1", ENV_BOOST: "1"} if value_of("async_checkpoint", arguments.async_checkpoint) else {}


def _startup(arguments: argparse.Namespace) -> dict[str, str]:
    return {ENV_STARTUP_SEQUENTIAL: "1"} if arguments.sequential else {}


def _labels(texts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--label {text!r}: write KEY=VALUE, e.g. team=ranking")
        labels[key] = value
    return labels


def _say(plan: Plan, outcome: Outcome, *, quiet: bool) -> None:
    name = plan.paths.name
    if not outcome.ranks_seen:
        tell(f"no training process was seen. Did the command overwrite PYTHONPATH, or run Python with -E, -I or -S? (ett doctor {name})")
        return
    try:
        history = JobReader(plan.paths).read()
        ledger = account(history).ledger
    except EttrainError as error:
        if not quiet:
            tell(str(error))
        return
    experience.at_end(plan.paths, history, ledger)
    if quiet:
        return
    pct = "-" if ledger.ett_pct is None else f"{ledger.ett_pct:.1f}%"
    failures = number_of(ledger, FAILURE)
    tell(f"ETT {pct} of {ledger.wall_ns / 1e9:.1f} s, {failures} failure(s), {ledger.steps} steps.  Next: ett report {name}")
