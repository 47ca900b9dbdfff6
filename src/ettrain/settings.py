"""One table of settings: name, environment variable, type, default, meaning. Argument beats environment beats default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ettrain.errors import UsageError

ENV_JOB_DIR: Final = "ETT_JOB_DIR"
ENV_ATTEMPT: Final = "ETT_ATTEMPT"
ENV_SUPERVISOR: Final = "ETT_SUPERVISOR_PID"
ENV_HOME: Final = "ETT_HOME"
ENV_BOOST: Final = "ETT_BOOST"
"""How the wings meet: set by the supervisor for every process below it, read by the recorder. ETT_HOME is the package's folder;
ETT_BOOST is there where `ett run` was asked to improve something inside the program (`boost.entry`)."""
ENV_DETACHED: Final = "ETT_DETACHED"
"""'1': a process that is meant to outlive the attempt that started it, with all below it; the supervisor does not end it."""
ENV_AUTOTUNE: Final = "ETT_AUTOTUNE"
"""File of autotuning's winners to pin; the setting of that name as well."""
ENV_ASYNC_CHECKPOINT: Final = "ETT_ASYNC_CHECKPOINT"
"""'1': saves of programs that know nothing of ettrain are written in the background; the setting of that name as well."""
ENV_STARTUP_SEQUENTIAL: Final = "ETT_STARTUP_SEQUENTIAL"
"""'1': `ett.Startup` runs its stages one after another, for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting."""

    name: str
    env: str
    default: str | int | float
    doc: str


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(name="runs", env="ETT_RUNS", default="ett-runs", doc="folder that holds one folder per job"),
    Setting(name="restarts", env="ETT_RESTARTS", default=0, doc="how often a failed attempt is started again"),
    Setting(name="restart_delay_s", env="ETT_RESTART_DELAY", default=0.0, doc="pause before a restart, seconds"),
    Setting(name="devices_per_rank", env="ETT_DEVICES_PER_RANK", default=1, doc="devices that one rank counts as"),
    Setting(
        name="hang_timeout_s",
        env="ETT_HANG_TIMEOUT",
        default=0.0,
        doc="end the attempt when no rank makes progress for this long once training; 0 = never",
    ),
    Setting(name="grace_s", env="ETT_GRACE", default=30.0, doc="time between SIGTERM and SIGKILL when an attempt is ended, seconds"),
    Setting(
        name="compile_cache",
        env="ETT_COMPILE_CACHE",
        default="",
        doc="folder or fsspec address of the compile cache; empty = none",
    ),
    Setting(
        name="cache_key",
        env="ETT_CACHE_KEY",
        default="",
        doc="key that archives of the compile cache are signed with, or @FILE; empty = unsigned, a folder of one's own only",
    ),
    Setting(
        name="dynamic_sources",
        env="ETT_DYNAMIC_SOURCES",
        default="",
        doc="sources that torch.compile takes as dynamic from the start: auto = what earlier attempts taught, or a value; empty or off = none",
    ),
    Setting(name="autotune", env=ENV_AUTOTUNE, default="", doc="file of autotuning's winners to pin; empty = none"),
    Setting(
        name="stop_signals",
        env="ETT_STOP_SIGNALS",
        default="SIGTERM",
        doc="signals before which a checkpoint is saved, separated by commas, e.g. SIGTERM,SIGUSR1",
    ),
    Setting(
        name="end_time",
        env="ETT_END_TIME",
        default=0.0,
        doc="when the hardware is taken away, epoch seconds: a checkpoint is saved before; 0 = as SLURM_JOB_END_TIME says, if it does",
    ),
    Setting(
        name="async_checkpoint",
        env=ENV_ASYNC_CHECKPOINT,
        default=0,
        doc="1 = the program's torch.save and dcp.save are written in the background",
    ),
    Setting(
        name="submitted",
        env="ETT_SUBMITTED",
        default=0.0,
        doc="when the job entered the queue, epoch seconds; 0 = unknown",
    ),
)

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def value_of(name: str, given: str | float | None = None, env: Mapping[str, str] | None = None) -> str | int | float:
    """Value of a setting: `given` if not None, else the environment's, else the default.

    Raises:
        UsageError: the text is not a number where one is needed, or is negative.
    """
    setting = _BY_NAME[name]
    source = "argument"
    raw: str | float | None = given
    if raw is None:
        raw = (os.environ if env is None else env).get(setting.env)
        source = setting.env
    if raw is None:
        return setting.default
    if isinstance(setting.default, str):
        return str(raw)
    kind = type(setting.default)
    try:
        value = kind(raw)
    except ValueError:
        raise UsageError(f"{source}: {name} must be a number, not {raw!r}") from None
    if value < 0:
        raise UsageError(f"{source}: {name} must not be negative, got {raw!r}")
    return value


def end_time_s(env: Mapping[str, str] | None = None) -> float:
    """When the hardware is taken away, in seconds since the epoch, as the setting `end_time` or Slurm says; 0 = nobody said.

    Raises:
        UsageError: the setting is no number.
    """
    told = (os.environ if env is None else env).get("SLURM_JOB_END_TIME", "")
    return float(value_of("end_time", env=env)) or (float(told) if told.isdecimal() else 0.0)
