"""What is known of collectives that a start can do without: which they are, and how they are avoided. Data, and one look-up.

A rule speaks of a call's way, not of the program's reasons: whether the cure is right (do all ranks really start equal?) is the reader's
to say, so each names its condition. Not here: any count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ettrain.account.history import Comm


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of traffic that can be had for less."""

    key: str
    """Its name in JSON."""
    what: str
    """What the traffic is for."""
    cure: str
    """How to avoid it, and on what condition."""
    left: str
    """What is left of the operations: 'none', or what stays."""
    meets: Callable[[Comm], bool]


def _via(*ends: str) -> Callable[[Comm], bool]:
    """Whether the way into torch ends in one of these."""
    return lambda comm: comm.via.endswith(ends)


def _state_dict(verb: str, op: str) -> Callable[[Comm], bool]:
    return lambda comm: comm.via.startswith(f"state_dict.{verb}_") and comm.op.startswith(op)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        key="ddp_init",
        what="DDP sends the model of rank 0 to all ranks",
        cure="where all ranks start equal (same seed, or all load the checkpoint): DistributedDataParallel(..., init_sync=False)",
        left="none",
        meets=lambda comm: comm.via.startswith("DistributedDataParallel.__init__") and comm.op in ("verify_params", "broadcast_coalesced"),
    ),
    Rule(
        key="fsdp_sync_module_states",
        what="FSDP sends the model of rank 0 to all ranks",
        cure="where all ranks start equal, or load a sharded checkpoint: sync_module_states=False",
        left="none",
        meets=lambda comm: comm.via.startswith("FullyShardedDataParallel.") and comm.op == "broadcast_coalesced",
    ),
    Rule(
        key="distribute_tensor",
        what="distribute_tensor sends each tensor from one rank",
        cure="where all ranks hold the same tensor: distribute_tensor(..., src_data_rank=None) keeps each rank's own part",
        left="none",
        meets=_via(".distribute_tensor", ".distribute_module"),
    ),
    Rule(
        key="from_local_check",
        what="DTensor.from_local checks with all ranks",
        cure="run_check=False, which is the default; give shape= and stride= where shards are uneven",
        left="none",
        meets=_via("DTensor.from_local"),
    ),
    Rule(
        key="sharded_tensor",
        what="each sharded table gathers its metadata from all ranks",
        cure=(
            "all ranks know the plan, so each can build it: ettrain.boost.comms.sharded_tensor; for TorchRec run the construction "
            "inside ettrain.boost.comms.local_shard_metadata()"
        ),
        left="none",
        meets=lambda comm: comm.op == "all_gather_object" and "init_from_local_shards" in comm.via,
    ),
    Rule(
        key="broadcast_from_rank0",
        what="a full state is sent from rank 0 into the model",
        cure="let each rank read its own part: dcp.load into the sharded state dict",
        left="none",
        meets=_state_dict("set", "broadcast"),
    ),
    Rule(
        key="full_state_dict",
        what="the whole state is gathered on the ranks",
        cure="take the sharded state dict (full_state_dict=False) and save it with dcp.save",
        left="none",
        meets=_state_dict("get", "all_gather"),
    ),
    Rule(
        key="dcp_planning",
        what="a sharded save plans anew",
        cure="DefaultSavePlanner(enable_plan_caching=True): from the second save on only what changed is sent",
        left="as many, with fewer bytes",
        meets=lambda comm: "state_dict_saver." in comm.via and comm.op in ("gather_object", "scatter_object_list"),
    ),
    Rule(
        key="sharding_plan",
        what="one rank computes the sharding plan, the others wait for it",
        cure="keep the plan for the next start: ettrain.boost.comms.plan_cache(planner, folder)",
        left="the broadcast, without the wait",
        meets=lambda comm: comm.op == "broadcast_object_list" and comm.api.endswith("collective_plan"),
    ),
    Rule(
        key="not_a_member",
        what="new_group is called for groups this rank is no member of",
        cure="ettrain.process_groups(ranks) is called by members only",
        left="none",
        meets=lambda comm: comm.op == "new_group" and not comm.group,
    ),
)


def rule_of(comm: Comm) -> Rule | None:
    """The rule that a kind of call falls under."""
    return next((rule for rule in RULES if rule.meets(comm)), None)
