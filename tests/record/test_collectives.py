"""The collectives of the start: what is counted, under which name and from where, and that nothing is changed by counting."""

import json
import os
import subprocess
import sys

import pytest
from launching import PROGRAMS, Job, free_port

from ettrain.report.comms import start_traffic


@pytest.fixture(scope="module")
def two_ranks(module_job):
    program = PROGRAMS / "collectives.py"
    words = ("-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", free_port(), program, module_job.cwd / "saved")
    done = module_job.run(*words)
    return json.loads(done.stdout.strip().splitlines()[-1]), module_job


@pytest.fixture(scope="module")
def comms(two_ranks):
    """Rank -> its `comm` records."""
    journals = two_ranks[1].journals()
    return {rank: [r for r in journals[f"rank-{rank:05}"] if r["k"] == "comm"] for rank in (0, 1)}


def found(records, op, **fields):
    return [r for r in records if r["op"] == op and all(r.get(key) == value for key, value in fields.items())]


def test_the_program_ran_as_it_would_and_the_recorder_had_no_fault(two_ranks):
    told, job = two_ranks
    assert told == {"value": 8.0, "name": "all_reduce", "same": True}
    assert [r for records in job.journals().values() for r in records if r["k"] == "fault"] == []


@pytest.mark.parametrize(("op", "via", "calls", "wire"), [
    ("scatter", "_api.distribute_tensor", 4, 4),
    ("all_gather_object", "DTensor.from_local", 1, 2),
    ("all_gather_object", None, 1, 2),
    ("all_gather_object", "ShardedTensor._init_from_local_shards", 3, 6),
    ("verify_params", "DistributedDataParallel.__init__", 1, 2),
    ("broadcast_coalesced", "DistributedDataParallel.__init__", 1, 2),
    ("gather_object", "state_dict_saver.save", 2, 4),
    ("scatter_object_list", "state_dict_saver.save", 1, 3),
    ("broadcast_object_list", "state_dict_saver.save", 1, 2),
    ("broadcast", "state_dict.set_model_state_dict", 2, 2),
    ("all_gather_single", "state_dict.get_model_state_dict", 2, 2),
    ("barrier", None, 1, 1),
])  # fmt: skip
def test_calls_are_counted_once_with_the_wire_operations_beneath(comms, op, via, calls, wire):
    for records in comms.values():
        (record,) = found(records, op, via=via)
        assert (record["n"], record["wire"], record["size"]) == (calls, wire, 2)
        assert record["ns"] >= record["max"] > 0


def test_the_line_is_the_programs(comms):
    lines = (PROGRAMS / "collectives.py").read_text().splitlines()
    (record,) = found(comms[0], "barrier")
    path, number = record["site"].rsplit(":", 1)
    assert path == str(PROGRAMS / "collectives.py")
    assert "dist.barrier()" in lines[int(number) - 1]
    (record,) = found(comms[0], "scatter")
    assert "distribute_tensor(" in lines[int(record["site"].rsplit(":", 1)[1]) - 1]


def test_bytes_are_those_of_the_tensors(comms):
    assert found(comms[0], "all_reduce", **{"async": 1})[0]["bytes"] == 4000
    assert found(comms[0], "scatter")[0]["bytes"] == 4 * 64
    parameters = 4 * (10 * 10 + 10 + 10 + 10)
    buffers = 4 * (10 + 10) + 8
    assert found(comms[0], "broadcast_coalesced")[0]["bytes"] == parameters + buffers
    assert found(comms[0], "all_gather_object", via=None)[0]["bytes"] > 2 * 8


def test_the_first_iteration_is_told_apart_and_later_ones_are_not_recorded(comms):
    late = [record for record in comms[0] if record.get("late")]
    assert [(record["op"], record["n"]) for record in late] == [("all_reduce", 1)]
    assert found(comms[0], "broadcast", via=None) == []


def test_groups_are_described_where_the_rank_is_a_member(two_ranks):
    journals = two_ranks[1].journals()
    groups = {rank: [r for r in journals[f"rank-{rank:05}"] if r["k"] == "group"] for rank in (0, 1)}
    assert [(g["size"], g["ranks"]) for g in groups[0]][:3] == [(2, "0-1"), (2, "0-1"), (1, "0")]
    assert [g["size"] for g in groups[1]][:2] == [2, 2]
    assert all(g["backend"] == "gloo" for g in groups[0])


def test_a_rank_that_is_no_member_called_new_group_all_the_same(comms):
    assert found(comms[1], "new_group", group="", via=None)[0]["n"] == 1


def test_the_report_knows_what_was_avoidable_and_who_waited(two_ranks):
    traffic = start_traffic(two_ranks[1].history())
    assert {saving.key for saving in traffic.savings} == {
        "ddp_init", "distribute_tensor", "from_local_check", "sharded_tensor", "broadcast_from_rank0", "full_state_dict", "dcp_planning",
        "not_a_member", "duplicate_groups", "second_mesh",
    }  # fmt: skip
    (barrier,) = [calls for calls in traffic.calls if calls.op == "barrier"]
    assert barrier.wait_ns > 100_000_000
    waited = {wait.rank: wait.wait_ns for wait in traffic.waits}
    assert waited[0] > 200_000_000


def run_compiled(job, recorded, *words):
    env = job.env() if recorded else {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "PYTHONPATH"))}
    command = [sys.executable, "-W", "ignore", PROGRAMS / "collectives_compiled.py", *words]
    done = subprocess.run(command, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True, cwd=job.cwd)
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_dynamo_takes_collectives_as_without_the_recorder(job):
    bare, recorded = run_compiled(job, False), run_compiled(job, True, "eager first")
    assert bare["captured"][1:3] == [0, 1]
    assert recorded == bare


def test_a_collective_keeps_its_budget(job):
    costs = job.program("collectives_cost")
    assert (costs["seen"], costs["on"]) == ([["all_reduce", 60 * 200]], False)
    assert costs["first"] < 20_000
    assert costs["after"] < 1000


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    job = Job(tmp_path_factory.mktemp("odd") / "job")
    return job.program("collectives_odd"), job


def test_a_group_that_torch_did_not_make_has_its_size_and_no_fault(odd):
    told, job = odd
    assert told["foreign"] == {"init_process_group 0 8": 1, "all_reduce foreign 7": 1}
    assert job.records(kind="fault") == []


def test_calls_of_other_threads_count_and_a_fork_begins_anew(odd):
    assert odd[0]["threads"] == 2
    assert odd[0]["child"] == {}


def test_more_places_than_are_told_apart_are_summed_up(odd):
    told, job = odd
    assert told["kinds"]
    assert told["all"] == 600
    (rest,) = [record for record in job.records(kind="comm") if record.get("more") and record["group"] == "0"]
    assert rest["n"] > 100
    assert "site" not in rest


def test_a_process_that_never_steps_is_not_looked_at_for_ever(odd):
    told, job = odd
    assert told["gives up"] == [False, 0]
    assert max(record["n"] for record in job.records(kind="comm") if record["group"] == "foreign") == 3


def test_ranks_are_written_in_short(odd):
    assert odd[0]["ranks"] == [["0-2,5", "0-2,5"], ["3", "3"]]
    assert odd[0]["long"] == [True, True, True]
