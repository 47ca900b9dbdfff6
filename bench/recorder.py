"""What recording costs the training, next to its peer in the same run: `python bench/recorder.py [--quick] [--peer] [--json FILE]`.

Every alternative lives in a process of its own, and all take turns in bursts of calls, so a busy machine hits all alike; each call is
timed, and what the clock itself costs (measured in the same turns) is taken off. `tight` calls follow each other at once; before a
`cold` one the process sleeps and copies 8 MB, as a training step in between would leave the caches.

  step     `ett.step(n)` with a job's folder on disk. At the end the process gets SIGKILL, and its beat page must hold the last step.
  hooks    all zero-code hooks of a step: batch, backward, optimizer. They are installed on stubs by the functions that install them on
           torch's leaf modules, and the same stubs without them are taken off; so this is what the hooks add, to the nanosecond, and
           nothing of torch. What it means for a real training loop is `throughput`.
  off      `ett.step(n)` in a program that runs outside `ett run`.
  stage    `with ett.stage(...)`, empty: begin, end and a journal line that is written when it returns.
  peer     ml-goodput-measurement 0.2.3: record_step_start_time, and its README's loop of three records a step; into a list in memory,
           and through the writer that it ships, whose remote call is a stub. Neither survives SIGKILL.
  start-up CPU of a short process that never imports torch, with and without the injection, in turns; and the same for OpenTelemetry.
  import   CPU of `import torch` with and without.
  throughput  a tiny torch program in which the per-step hooks are put on and taken off, block by block.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import injected
import peer
from figures import Spread, interval, keep, machine, progress, ratio, rows, say, spread
from turns import CHILDREN, Worker, take_turns

from ettrain.beat import read_beat
from ettrain.jobpaths import JobPaths, attempt_name

SHORT_PROGRAM = "import json, logging, subprocess, argparse"
NAMES = {
    "step": "ett.step(n), durable",
    "hooks": "all zero-code hooks of a step, durable",
    "stage": "ett.stage enter + exit, durable",
    "off": "ett.step(n) outside a job",
    "memory": "peer: one record, list in memory",
    "memory_loop": "peer: README loop, list in memory",
    "shipped": "peer: one record, shipped writer",
    "shipped_loop": "peer: README loop, shipped writer",
}
COMPARED = (("step", "memory"), ("step", "shipped"), ("hooks", "memory_loop"), ("hooks", "shipped_loop"), ("stage", "shipped"))


@dataclass(frozen=True, slots=True)
class Plan:
    """How calls are measured."""

    kind: str
    rounds: int
    count: int
    rest_s: float


PLANS = (Plan("tight", 20, 2000, 0.0), Plan("cold", 10, 80, 0.005))
QUICK_PLANS = (Plan("tight", 4, 500, 0.0), Plan("cold", 2, 30, 0.005))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What recording costs the training.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: under a minute")
    parser.add_argument(
        "--peer", action="store_true", help="install the peer (330 MB, in a virtual environment of its own) if it is missing"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    quick = arguments.quick
    python, why = peer.python(install=arguments.peer)
    results: dict[str, Any] = {"machine": machine(), "quick": quick}
    say(f"{results['machine']}{' quick' if quick else ''}")
    if python is None:
        say(f"peer not measured: {why}")
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as name:
        folder = Path(name)
        results["calls"] = calls(folder / "calls", python, QUICK_PLANS if quick else PLANS)
        package = injected.package_copy(folder)
        results["startup"] = startup(package, folder / "startup", python, pairs=15 if quick else 150)
        if importlib.util.find_spec("torch") is None:
            say("import and throughput not measured: torch is not installed")
        else:
            results["import_torch"] = import_torch(package, folder / "import", pairs=1 if quick else 9)
            results["throughput"] = throughput(package, folder / "train", pairs=60 if quick else 600)
    keep(arguments.json, results)


def calls(job: Path, python: Path | None, plans: Sequence[Plan]) -> dict[str, Any]:
    """Cost per call of every alternative."""
    told: dict[str, Any] = {}
    steps = 0
    with ExitStack() as stack:
        explicit = stack.enter_context(Worker("ours.py", "explicit", env=injected.with_ettrain(injected.SOURCE, job / "explicit")))
        hooks = stack.enter_context(Worker("ours.py", "hooks", env=injected.with_ettrain(injected.SOURCE, job / "hooks")))
        off = stack.enter_context(Worker("ours.py", "explicit", env=injected.bare()))
        workers = {"timer": explicit, "step": explicit, "stage": explicit, "off": off, "hooked": hooks, "bare": hooks}
        if python is not None:
            theirs = stack.enter_context(Worker("peer_recorder.py", python=python, env=injected.bare()))
            workers |= dict.fromkeys(("memory", "memory_loop", "shipped", "shipped_loop"), theirs)
        for plan in plans:
            progress(f"calls, {plan.kind}")

            def run(name: str, plan: Plan = plan) -> list[float]:
                return [float(ns) for ns in workers[name].burst("step" if name == "off" else name, plan.count, plan.rest_s)]

            take_turns(list(workers), run, 1)
            told[plan.kind] = _tell_calls(take_turns(list(workers), run, plan.rounds), plan.kind)
            steps += plan.count * (plan.rounds + 1)
        explicit.kill()
        hooks.kill()
    told["durable"] = _killed_with(job / "explicit", steps) and _killed_with(job / "hooks", steps)
    say(f"  after SIGKILL the beat pages hold the last step and no fault: {'yes' if told['durable'] else 'NO'}")
    return told


def _killed_with(job: Path, steps: int) -> bool:
    """Whether the beat page of a killed process holds exactly those steps, and no fault of the recorder's own."""
    beats = [read_beat(path) for path in JobPaths(job).attempt(attempt_name(0)).glob("*.beat")]
    return [(beat.step, beat.faults) for beat in beats if beat is not None] == [(steps, 0)]


def _tell_calls(found: dict[str, list[list[float]]], kind: str) -> dict[str, Any]:
    timer = spread([ns for samples in found["timer"] for ns in samples]).median
    bare = spread([ns for samples in found["bare"] for ns in samples]).median
    cost = {"hooks": bare} | {name: timer for name in NAMES if name != "hooks"}
    measured = {name: found["hooked" if name == "hooks" else name] for name in NAMES if name == "hooks" or name in found}
    spreads: dict[str, Spread] = {
        name: spread([ns for each in rounds for ns in each]).less(cost[name]) for name, rounds in measured.items()
    }
    say(f"\ncalls, {kind}: microseconds (the clock's own {timer / 1000:.2f} taken off)")
    rows([("", "median", "p99"), *((NAMES[name], _us(s.median), _us(s.p99)) for name, s in spreads.items())])
    by_round = {name: [spread(samples).less(cost[name]).median for samples in rounds] for name, rounds in measured.items()}
    ratios = {f"{ours}/{theirs}": ratio(by_round[ours], by_round[theirs]) for ours, theirs in COMPARED if theirs in by_round}
    if ratios:
        say("  ettrain / peer, median over turns [95% interval]")
        rows([(f"  {name}", str(value)) for name, value in ratios.items()])
    return {"ns": spreads, "timer_ns": timer, "ratio": ratios}


def _us(ns: float) -> str:
    return f"{ns / 1000:.2f}"


def startup(package: Path, job: Path, python: Path | None, *, pairs: int) -> dict[str, Any]:
    """CPU that the injection adds to a short process."""
    progress("start-up")
    variants: dict[str, tuple[Path, dict[str, str]]] = {
        "bare": (Path(sys.executable), injected.bare()),
        "ettrain": (Path(sys.executable), injected.with_ettrain(package, job)),
    }
    otel = peer.otel_folder(python)
    if otel is not None and python is not None:
        quiet = {f"OTEL_{kind}_EXPORTER": "none" for kind in ("TRACES", "METRICS", "LOGS")}
        variants["otel bare"] = (python, injected.bare())
        variants["otel"] = (python, {**injected.bare(), **quiet, "PYTHONPATH": str(otel)})
    for interpreter, env in variants.values():
        injected.cpu_ms([str(interpreter), "-c", SHORT_PROGRAM], env)

    def run(name: str) -> list[float]:
        interpreter, env = variants[name]
        return [injected.cpu_ms([str(interpreter), "-c", SHORT_PROGRAM], env)]

    few = take_turns([name for name in variants if name.startswith("otel")], run, max(3, pairs // 10))
    found = take_turns(["bare", "ettrain"], run, pairs) | few
    say(
        f"\nstart-up of a process that never imports torch (`{SHORT_PROGRAM}`): CPU ms, median of {pairs} turns [95% interval of the difference]"
    )
    told = {"ettrain": _added(found, "bare", "ettrain")}
    if few:
        told["otel"] = _added(found, "otel bare", "otel")
    return told


def _added(found: dict[str, list[list[float]]], bare: str, name: str) -> dict[str, float]:
    before, after = [spread([each[0] for each in found[key]]).median for key in (bare, name)]
    low, added, high = interval([b[0] - a[0] for a, b in zip(found[bare], found[name], strict=True)])
    say(f"  {name}: {before:.2f} -> {after:.2f}, adds {added:.2f} [{low:.2f}, {high:.2f}]")
    return {"bare_ms": before, "ms": after, "added_ms": added, "low_ms": low, "high_ms": high}


def import_torch(package: Path, job: Path, *, pairs: int) -> dict[str, Any]:
    """CPU of `import torch`, with and without."""
    progress("import torch")
    envs = {"without": injected.bare(), "with": injected.with_ettrain(package, job)}

    def run(name: str) -> list[float]:
        return [json.loads(injected.output([str(CHILDREN / "torchloop.py"), "import"], envs[name]))["cpu_s"]]

    run("without")
    found = {name: [each[0] for each in rounds] for name, rounds in take_turns(list(envs), run, pairs).items()}
    value = ratio(found["with"], found["without"])
    say(f"\nimport torch: {spread(found['without']).median:.2f} s CPU; with/without {value}, {pairs} turns")
    return {"cpu_s": {name: spread(samples) for name, samples in found.items()}, "ratio": value}


def throughput(package: Path, job: Path, *, pairs: int) -> dict[str, Any]:
    """A training loop with the hooks on and off in turns."""
    progress("throughput")
    words: Sequence[str] = [str(CHILDREN / "torchloop.py"), "train", str(pairs)]
    times: dict[str, list[float]] = json.loads(injected.output(words, injected.with_ettrain(package, job)))
    speed = ratio(times["without"], times["with"])
    cpu = ratio(times["with_cpu"], times["without_cpu"])
    step_ms = 1000 * spread(times["without"]).median
    say(f"\nthroughput of a {step_ms:.2f} ms step, hooks on / off: {speed}; CPU per step on / off: {cpu}; {pairs} pairs of blocks")
    return {"step_ms": step_ms, "ratio": speed, "cpu_ratio": cpu}


if __name__ == "__main__":
    main()
