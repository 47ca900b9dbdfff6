"""Autotuning: what Inductor and `@triton.autotune` measured, what won, by how much, and what the search took.

Through Inductor's own feedback of selections, and around the autotuner's public `run`. Not here: any influence on the choice.
"""

from __future__ import annotations

import hashlib
import math
import sys
from typing import Any

from ettrain import clock
from ettrain.record.guard import guard
from ettrain.record.hooks.wrap import wraps
from ettrain.record.recorder import recorder
from ettrain.tuned import GEMM, TRITON


def on_select_algorithm(module: Any) -> None:
    """Inductor chooses between templates and libraries for a matrix product or convolution."""
    if not hasattr(module, "add_feedback_saver"):
        recorder.note("not measured: this torch has no torch._inductor.select_algorithm.add_feedback_saver")
        return
    module.add_feedback_saver(selections.chosen)
    cache = getattr(module, "AlgorithmSelectorCache", None)
    run = getattr(cache, "do_autotuning", None)
    if cache is None or run is None:
        recorder.note("not measured: this torch has no AlgorithmSelectorCache.do_autotuning, so not how long a search takes")
        return

    @wraps(run)
    def do_autotuning(*args: Any, **kwargs: Any) -> Any:
        selections.begin, selections.searches = clock.monotonic_ns(), _searches()
        return run(*args, **kwargs)

    cache.do_autotuning = do_autotuning


class Selections:
    """Inductor's selections."""

    def __init__(self) -> None:
        self.begin = 0
        """When the selection under way began; 0 = not known."""
        self.searches = -1
        """Searches that there had been by then; -1 = not known."""

    def chosen(self, timings: Any, name: Any, nodes: Any, choices: Any, *more: Any) -> None:
        """Inductor tells the timings of all choices, in milliseconds, once they are known."""
        try:
            begin, self.begin, before, self.searches = self.begin, 0, self.searches, -1
            finite = {choice: ms for choice, ms in timings.items() if math.isfinite(ms)}
            if not finite:
                return
            ranked = sorted(finite, key=finite.__getitem__)
            best = ranked[0]
            told: dict[str, Any] = {"winner": choice_name(best), "config": choice_config(best), "best_ms": finite[best]}
            if len(ranked) > 1:
                told |= {"runner_up": f"{choice_name(ranked[1])} {choice_config(ranked[1])}".strip(), "runner_up_ms": finite[ranked[1]]}
            place = {"op": str(name), "inputs": inputs_of(nodes), "device": device_of(nodes[0].get_device()), "version": torch_version()}
            state = "cached" if before == _searches() else "searched"
            _write(GEMM, begin, {**place, **told, "choices": len(choices), "state": state})
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("autotuning", error)


selections = Selections()


def _searches() -> int:
    """How often Inductor has measured choices in this process, by its own count."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return 0 if counters is None else int(counters["inductor"]["select_algorithm_autotune"])


def _write(kind: str, begin: int, told: dict[str, Any]) -> None:
    now = clock.monotonic_ns()
    recorder.emit({"k": "tuned", "t": begin or now, "end": now, "kind": kind, **told})


def choice_name(choice: Any) -> str:
    """Name of a choice without the running number that generated kernels bear."""
    name = str(choice.name)
    stem, _, number = name.rpartition("_")
    return stem if stem and number.isdigit() else name


def choice_config(choice: Any) -> str:
    """Parameters of a choice; '' where it has none."""
    return str(getattr(choice, "description", "") or "")


def inputs_of(nodes: Any) -> list[str]:
    """Each input as `float32[4,64,64](4096,64,1)`."""
    return [f"{str(node.get_dtype()).removeprefix('torch.')}[{_numbers(node.get_size())}]({_numbers(_strides(node))})" for node in nodes]


def _strides(node: Any) -> Any:
    try:
        return node.get_stride()
    except Exception:  # noqa: BLE001 - a layout not yet decided has none
        return ("?",)


def _numbers(sizes: Any) -> str:
    return ",".join(str(size) if str(size).isdigit() else "?" for size in sizes)


def device_of(device: Any) -> str:
    """What a timing holds for: the accelerator's name, or the CPU's instructions and the number of threads."""
    import torch

    kind = str(getattr(device, "type", device))
    if kind == "cpu":
        return f"cpu {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} thread(s)"
    part = getattr(torch, kind, None)
    name = part.get_device_name(device) if part is not None and hasattr(part, "get_device_name") else ""
    return f"{kind} {name}".strip()


def torch_version() -> str:
    """The version of torch whose kernels were compared."""
    import torch

    return f"torch {torch.__version__}"


# ---- @triton.autotune


def on_triton_autotuner(module: Any) -> None:
    """A kernel of the program's own tries its configurations on the first call with a new key."""
    run = module.Autotuner.run

    @wraps(run)
    def tuned_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = len(self.cache)
        begin, timings, took = clock.monotonic_ns(), getattr(self, "configs_timings", None), getattr(self, "bench_time", None)
        result = run(self, *args, **kwargs)
        if len(self.cache) != before and getattr(self, "configs_timings", None) is not timings:
            kernel_tuned(self, begin, searched=getattr(self, "bench_time", None) != took)
        return result

    module.Autotuner.run = tuned_run


def kernel_tuned(tuner: Any, begin: int, *, searched: bool) -> None:
    """A kernel's key was tuned, its last one: by a search, or from what the autotuner itself has kept of an earlier one."""
    try:
        key, best = list(tuner.cache.items())[-1]
        timings = {config: _median(ms) for config, ms in dict(getattr(tuner, "configs_timings", None) or {}).items()}
        ranked = sorted(timings, key=timings.__getitem__)
        told: dict[str, Any] = {"winner": config_name(best), "choices": len(ranked) or len(tuner.configs)}
        if best in timings:
            told["best_ms"] = timings[best]
        second = next((config for config in ranked if config != best), None)
        if second is not None:
            told |= {"runner_up": config_name(second), "runner_up_ms": timings[second]}
        place = {"op": kernel_name(tuner), "inputs": list(map(str, key)), "device": accelerator(), "version": triton_version()}
        _write(TRITON, begin, {**place, **told, "state": "searched" if searched else "cached"})
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("autotuning", error)


def _median(timing: Any) -> float:
    return float(timing[0] if isinstance(timing, list | tuple) else timing)


def config_name(config: Any) -> str:
    """A configuration with all its parameters, the same text wherever it was made."""
    settings = dict(config.all_kwargs()) if hasattr(config, "all_kwargs") else dict(config.kwargs)
    return ", ".join(f"{name}={settings[name]}" for name in sorted(settings) if settings[name] is not None)


def kernel_name(tuner: Any) -> str:
    """The kernel's name and a digest of its source: another body is another kernel."""
    function = tuner.fn
    while not hasattr(function, "src") and hasattr(function, "fn"):
        function = function.fn
    digest = hashlib.sha256(str(getattr(function, "src", "")).encode()).hexdigest()[:12]
    return f"{getattr(function, '__name__', 'kernel')}:{digest}"


def accelerator() -> str:
    """Name of the accelerator that a kernel runs on."""
    import torch

    if torch.cuda.is_available():
        return f"cuda {torch.cuda.get_device_name()}"
    return "no accelerator"


def triton_version() -> str:
    """The version of triton that compiled the configurations."""
    return f"triton {getattr(sys.modules.get('triton'), '__version__', '?')}"
