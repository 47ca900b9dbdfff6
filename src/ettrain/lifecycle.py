"""The stages of a training job, the leaves their time lands in, and who owns them: data, no behaviour beyond look-ups.

The words are those of docs/accounting.md. Two tables decide everything that could be argued about:
`PRIORITY` (which found stage wins where two overlap on one rank) and `ORDER` (which rank is furthest behind).
"""

from __future__ import annotations

from typing import Final

EFFECTIVE: Final = "effective"
UNTRACKED: Final = "untracked"
UNSAVED: Final = "failure/unsaved"
DETECT: Final = "failure/detect"
RESCHEDULE: Final = "failure/reschedule"

START: Final = "start"
STEADY: Final = "steady"
SHUTDOWN: Final = "shutdown"

COMPONENT: Final[dict[str, str]] = {
    "launch": "launcher",
    "imports": "runtime",
    "setup": "user code",
    "device_init": "hardware",
    "process_group_init": "comms",
    "preproc_creation": "data",
    "train_module_creation": "model",
    "init_plugins": "runtime",
    "pre_train": "user code",
    "checkpoint_load": "checkpoint",
    "get_first_batch_data": "data",
    "compile": "compiler",
    "data_wait": "data",
    "recompile": "compiler",
    "checkpoint_blocking": "checkpoint",
    "final_checkpoint": "checkpoint",
    "evaluation": "evaluation",
    "stall": "runtime",
    "publish": "publish",
    "teardown": "runtime",
    "unsaved": "checkpoint",
    "detect": "launcher",
    "reschedule": "scheduler",
    "effective": "training",
    "untracked": "untracked",
}
"""Stage or leaf name -> component. A user's own stage is billed to `user code` unless it bears one of these names."""

PRIORITY: Final[tuple[str, ...]] = (
    "checkpoint_save",
    "checkpoint_load",
    "process_group_init",
    "device_init",
    "publish",
    "compile",
    "imports",
    "train_module_creation",
    "preproc_creation",
    "init_plugins",
    "pre_train",
    "get_first_batch_data",
    "evaluation",
    "teardown",
    "data_wait",
    "setup",
)
"""Found stages, strongest first: where spans of different kinds overlap on one rank, the first in this list is billed.
A stage marked by the user beats all of them; among the user's own, and among equals, the innermost (latest begun) wins."""

ORDER: Final[tuple[str, ...]] = (
    "start/launch",
    "start/imports",
    "start/setup",
    "start/device_init",
    "start/process_group_init",
    "start/preproc_creation",
    "start/train_module_creation",
    "start/init_plugins",
    "start/pre_train",
    "start/checkpoint_load",
    "start/get_first_batch_data",
    "start/*",
    "start/compile",
    "steady/stall",
    "steady/checkpoint_load",
    "steady/data_wait",
    "steady/recompile",
    "steady/evaluation",
    "steady/checkpoint_blocking",
    "steady/*",
    "untracked",
    "shutdown/*",
    "shutdown/final_checkpoint",
    "shutdown/publish",
    "shutdown/teardown",
    "effective",
)
"""Lifecycle order for the wall view, furthest behind first. Training stands last: the job trains only while all ranks do."""

_STEADY_NAME: Final = {"compile": "recompile", "get_first_batch_data": "data_wait"}


def leaf_of(stage: str, phase: str) -> str:
    """Leaf below `start`, `steady` or `shutdown` in which a stage's time lands, e.g. ('compile', 'steady') -> 'steady/recompile'."""
    if stage == "checkpoint_save":
        name = "final_checkpoint" if phase == SHUTDOWN else "checkpoint_blocking"
        return f"{phase}/{name}"
    if phase == STEADY:
        return f"{STEADY}/{_STEADY_NAME.get(stage, stage)}"
    if phase == SHUTDOWN and stage in ("evaluation", "data_wait", "get_first_batch_data"):
        return f"{STEADY}/{_STEADY_NAME.get(stage, stage)}"
    return f"{phase}/{stage}"


def leaf_path(leaf: str, *, restart: bool) -> str:
    """Full path in the tree of categories: `idle/...`, or `failure/restart/...` for start stages after an interruption."""
    if leaf in (EFFECTIVE, UNTRACKED) or leaf.startswith("failure/"):
        return leaf
    if restart and leaf.startswith("start/"):
        return f"failure/restart/{leaf.removeprefix('start/')}"
    return f"idle/{leaf}"


def order_of(leaf: str) -> int:
    """Position of a leaf (without `idle/`) in `ORDER`; a user's stage takes the place of its phase's `*`."""
    found = _ORDER_INDEX.get(leaf)
    return _ORDER_INDEX[f"{leaf.split('/', 1)[0]}/*"] if found is None else found


_ORDER_INDEX: Final = {leaf: index for index, leaf in enumerate(ORDER)}


def component_of(path: str) -> str:
    """Component that owns a leaf's time; `path` is a leaf or a full path."""
    return COMPONENT.get(path.rsplit("/", 1)[-1], "user code")


FAILURE: Final = "failure"
USER_ERROR: Final = "user_error"
PREEMPTION: Final = "preemption"
STOP: Final = "stop"

CLASSES: Final[dict[str, tuple[str, str]]] = {
    "killed": (FAILURE, "hardware"),
    "host_oom": (FAILURE, "hardware"),
    "cuda_oom": (USER_ERROR, "user code"),
    "gpu_hardware": (FAILURE, "hardware"),
    "device_assert": (USER_ERROR, "data"),
    "segfault": (FAILURE, "runtime"),
    "aborted": (FAILURE, "runtime"),
    "bus_error": (FAILURE, "hardware"),
    "hang": (FAILURE, "comms"),
    "collective_timeout": (FAILURE, "comms"),
    "peer_lost": (FAILURE, "comms"),
    "network": (FAILURE, "comms"),
    "rendezvous_timeout": (FAILURE, "launcher"),
    "port_in_use": (FAILURE, "launcher"),
    "disk_full": (FAILURE, "checkpoint"),
    "storage_io": (FAILURE, "checkpoint"),
    "checkpoint_corrupt": (FAILURE, "checkpoint"),
    "shm_full": (FAILURE, "data"),
    "data_worker": (FAILURE, "data"),
    "supervisor_lost": (FAILURE, "hardware"),
    "node_failure": (FAILURE, "hardware"),
    "missing_file": (USER_ERROR, "user code"),
    "permission": (USER_ERROR, "user code"),
    "env_mismatch": (USER_ERROR, "runtime"),
    "numeric_divergence": (USER_ERROR, "user code"),
    "user_exception": (USER_ERROR, "user code"),
    "exception": (FAILURE, "user code"),
    "exit_code": (FAILURE, "user code"),
    "command_not_found": (USER_ERROR, "user code"),
    "preemption": (PREEMPTION, "scheduler"),
    "interrupted": (STOP, "user code"),
    "stopped": (STOP, "user code"),
    "unknown": (FAILURE, "runtime"),
}
"""Class of an interruption -> (kind, component). Only kind `failure` counts in the number of failures."""
