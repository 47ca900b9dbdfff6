"""Starts publishers: a detached process of this host, a Slurm job, or a Job for Kubernetes written to a file. Standard library only.

Not here: what they do (`work`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ettrain.boost.publish import progress
from ettrain.boost.publish.request import Request
from ettrain.boost.publish.target import Place
from ettrain.errors import EttrainError, MissingExtraError, UsageError
from ettrain.settings import ENV_DETACHED

HOME: Final = str(Path(__file__).resolve().parents[3])
"""Folder in which the package lies."""
_OF_A_RANK: Final = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
)
_BEGINNINGS: Final = ("ETT_", "TORCHELASTIC_", "MASTER_", "NCCL_", "TORCH_NCCL_")
_KEPT: Final = ("ETT_RUNS",)
_DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def words(place: Place, python: str, home: str = HOME) -> list[str]:
    """The command that publishes the request."""
    code = f"import sys; sys.path.append({home!r}); from ettrain.cli import main; sys.exit(main())"
    return [python, "-c", code, "publish", "run", str(place.root)]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The trainer's environment without what makes a process a rank, a recorded one, or one with devices."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not (name in _OF_A_RANK or name.startswith(_BEGINNINGS))
    }  # fmt: skip
    inject = str(Path(HOME) / "ettrain" / "record" / "inject")
    paths = [path for path in kept.pop("PYTHONPATH", "").split(os.pathsep) if path and path != inject]
    if paths:
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    return {**kept, **dict.fromkeys(_DEVICES, ""), ENV_DETACHED: "1"}


def start(place: Place, request: Request) -> str:
    """Start a publisher; returns at once.

    Returns:
        What a person should be told.

    Raises:
        UsageError: it cannot be started so.
    """
    progress.note(place, progress.ASKED, where=request.where)
    try:
        return WAYS[request.where](place, request)
    except (OSError, EttrainError) as error:
        progress.note(place, progress.FAILED, stage="start", why=str(error))
        if isinstance(error, OSError):
            raise UsageError(f"where={request.where!r}: the publisher cannot be started: {error}.") from error
        raise


def _process(place: Place, request: Request) -> str:
    """A process in a session of its own, with no descriptor of this one: it outlives the trainer, and holds nothing of it."""
    with place.log.open("ab") as log:
        child = subprocess.Popen(
            words(place, request.python or sys.executable), stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=True,
            start_new_session=True, env=environment(os.environ), cwd="/",
        )  # fmt: skip
    child.returncode = 0  # nobody waits for it: it is meant to outlive this process
    more = "  It ends with this Slurm job: where='slurm' outlives it." if os.environ.get("SLURM_JOB_ID") else ""
    return f"process {child.pid}{more}"


def _slurm(place: Place, request: Request) -> str:
    """A job of its own, through submitit; `resources` are its options, e.g. partition, time, cpus_per_task."""
    try:
        import submitit
    except ImportError:
        raise MissingExtraError("slurm", "where='slurm'") from None
    options = {key: value for key, value in request.resources.items() if key not in ("cluster", "memory")}
    memory = request.memory_bytes
    executor = submitit.AutoExecutor(folder=place.root / "slurm", cluster=request.resources.get("cluster"))
    executor.update_parameters(
        name=f"publish-{request.name}", timeout_min=int(options.pop("timeout_min", 120)), cpus_per_task=int(options.pop("cpus_per_task", 2)),
        **({"mem_gb": -(-memory // (1 << 30)) + 1} if memory else {}), **{_slurm_key(key): value for key, value in options.items()},
    )  # fmt: skip
    logged = ["sh", "-c", 'exec "$@" >> "$0" 2>&1', str(place.log)]
    command = [*logged, *_scrubbed(os.environ), *words(place, request.python or sys.executable)]
    job = executor.submit(subprocess.run, command, check=True)
    return f"Slurm job {job.job_id}"


def _scrubbed(environ: Mapping[str, str]) -> list[str]:
    """`environment` as a command before the command: Slurm hands on the trainer's."""
    wanted = environment(environ)
    gone = [name for name in environ if name not in wanted]
    return [
        "env",
        *(word for name in gone for word in ("-u", name)),
        *(f"{name}={value}" for name, value in wanted.items() if environ.get(name) != value),
    ]


def _slurm_key(key: str) -> str:
    return key if key.startswith("slurm_") else f"slurm_{key}"


def _k8s(place: Place, request: Request) -> str:
    """A Job's manifest, for kubectl."""
    path = place.root / "job.json"
    path.write_text(json.dumps(kubernetes_job(place, request), indent=1) + "\n", encoding="utf-8")
    return f"kubectl apply -f {path}"


def kubernetes_job(place: Place, request: Request) -> dict[str, Any]:
    """A Kubernetes Job that publishes the request: batch/v1, restarted where its node dies.

    Raises:
        UsageError: the image is not named.
    """
    resources = dict(request.resources)
    image = resources.pop("image", None)
    if not isinstance(image, str):
        raise UsageError(
            "where='k8s': name the image that has the program's code, e.g. resources={'image': 'registry/train:1', 'volumes': [...]}."
        )
    stem, _, number = re.sub(r"[^a-z0-9-]", "-", request.id.lower()).rpartition("-")
    amounts = {"cpu": str(resources.get("cpu", 2))} | (
        {"memory": f"{-(-request.memory_bytes // (1 << 20)) + 256}Mi"} if request.memory_bytes else {}
    )
    container: dict[str, Any] = {
        "name": "publish", "image": image, "command": ["ett", "publish", "run", str(place.root)],
        "resources": {"requests": amounts, "limits": amounts}, "volumeMounts": list(resources.get("volume_mounts", [])),
        "env": [{"name": name, "value": str(value)} for name, value in dict(resources.get("env", {})).items()],
    }  # fmt: skip
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": list(resources.get("volumes", []))}
    labels = {"app.kubernetes.io/managed-by": "ettrain", "ettrain/model": request.name[:63].rstrip("-_.")}
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": f"publish-{stem[:40].strip('-')}-{number}", "labels": labels, **({"namespace": resources["namespace"]} if "namespace" in resources else {})},
        "spec": {"backoffLimit": request.tries, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }  # fmt: skip


WAYS: Final[dict[str, Callable[[Place, Request], str]]] = {"process": _process, "slurm": _slurm, "k8s": _k8s}
"""Value of `where` -> what starts a publisher there."""
