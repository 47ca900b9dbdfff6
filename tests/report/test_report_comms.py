"""The collectives of the start in the report: sums over ranks, what is avoidable, who waited; nothing where nothing was recorded."""

import json
import re
from copy import deepcopy

import pytest

from ettrain.account.history import Comm, CommGroup
from ettrain.report.commrules import RULES, rule_of
from ettrain.report.comms import comms_dict, start_traffic
from ettrain.report.commsection import place_of
from ettrain.report.text import render_text
from ettrain.report.units import cells, size

MS = 1_000_000
NASTY = "evil\x1b[31m\u202e.py:7"


def comm(op, *, n=1, wire=None, moved=0, ns=MS, group="0", asyncs=0, late=False, via="", site="/job/train.py:17", user="", api="", start=5):
    return Comm(start, start + ns, op, group, 2, n, n if wire is None else wire, moved, ns, ns, asyncs, late, via, site, user, api)


def group(name, ranks="0-1", backend="gloo"):
    return CommGroup(1, name, 2, ranks, ranks, backend, "undefined")


@pytest.fixture
def told(story):
    """A story whose only attempt exchanged this."""
    account, job = deepcopy(story("clean"))
    first, second = job.attempts[-1].ranks[:2]
    shared = [comm("scatter", n=4, moved=4096, ns=8 * MS, via="_api.distribute_tensor"), comm("all_reduce", late=True)]
    first.comms = [*shared, comm("barrier", ns=90 * MS), comm("new_group", wire=0, group="1"), comm("new_group", wire=0, group="2")]
    second.comms = [*shared, comm("barrier", ns=10 * MS), comm("new_group", n=2, wire=0, group="1")]
    first.groups = second.groups = [group("0"), group("1"), group("2", "1-2"), group("3", backend="nccl")]
    return account, job


def text_of(story, width=100, colour=False):
    return render_text(*story, width=width, colour=colour, explain_startup=False, comms=True)


def test_ranks_are_put_together_by_place(told):
    traffic = start_traffic(told[1])
    by_op = {calls.op: calls for calls in traffic.calls}
    assert by_op["scatter"].n == 4
    assert by_op["scatter"].bytes == 4096
    assert (by_op["barrier"].slowest_ns, by_op["barrier"].wait_ns) == (90 * MS, 80 * MS)
    assert by_op["new_group"].n == 2
    assert by_op["all_reduce"] not in traffic.setup


def test_who_waited_is_who_was_in_the_same_calls_longer(told):
    waits = start_traffic(told[1]).waits
    assert [(wait.rank, wait.wait_ns) for wait in waits] == [(0, 80 * MS), (1, 0)]


def test_ranks_of_other_groups_are_not_waited_for(told):
    first, second = told[1].attempts[-1].ranks[:2]
    first.comms, second.comms = [comm("barrier", ns=90 * MS, group="a")], [comm("barrier", ns=10 * MS, group="b")]
    traffic = start_traffic(told[1])
    assert [wait.wait_ns for wait in traffic.waits] == [0, 0]
    assert traffic.calls[0].wait_ns == 0


def test_groups_of_the_same_ranks_and_backend_are_duplicates(told):
    assert [group.duplicate_of for group in start_traffic(told[1]).groups] == ["", "0", "", ""]


def test_savings_name_what_it_took_and_how_to_avoid_it(told):
    savings = {saving.key: saving for saving in start_traffic(told[1]).savings}
    assert set(savings) == {"distribute_tensor", "duplicate_groups"}
    assert (savings["distribute_tensor"].n, savings["distribute_tensor"].ns) == (4, 8 * MS)
    assert "src_data_rank=None" in savings["distribute_tensor"].cure


def test_the_text_shows_them(told):
    text = text_of(told)
    for part in ("COLLECTIVES OF THE START", "scatter *", "job/train.py:17", "4.1 kB", "in the first iteration", "3 distinct sets", "rank 1 waits least"):
        assert part in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_wider_than_the_terminal(told, width):
    text = text_of(told, width)
    assert [line for line in text[: text.index("\nNext: ")].splitlines() if cells(line) > width] == []


def test_colour_changes_nothing_but_colour(told):
    assert re.sub(r"\x1b\[[0-9;]*m", "", text_of(told, colour=True)) == text_of(told)


def test_foreign_texts_cannot_touch_the_terminal(told):
    told[1].attempts[-1].ranks[0].comms.append(comm(NASTY, ns=10**10, via=NASTY, site=NASTY, user=NASTY, api=NASTY))
    told[1].attempts[-1].ranks[0].groups.append(CommGroup(1, NASTY, 2, NASTY, NASTY, NASTY, NASTY))
    text = text_of(told)
    assert "evil" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\u001b" not in json.dumps(comms_dict(start_traffic(told[1])))


def test_without_collectives_it_says_so(any_story):
    assert start_traffic(any_story[1]) is None
    assert "None were recorded" in text_of(any_story)
    assert comms_dict(None) is None


@pytest.mark.parametrize(("key", "record"), [
    ("ddp_init", comm("broadcast_coalesced", via="DistributedDataParallel.__init__")),
    ("fsdp_sync_module_states", comm("broadcast_coalesced", via="FullyShardedDataParallel.__init__")),
    ("distribute_tensor", comm("broadcast", via="_api.distribute_module")),
    ("from_local_check", comm("all_gather_object", via="DTensor.from_local")),
    ("sharded_tensor", comm("all_gather_object", via="ShardedTensor._init_from_local_shards", api="DistributedModelParallel.__init__")),
    ("broadcast_from_rank0", comm("broadcast_object_list", via="state_dict.set_model_state_dict")),
    ("full_state_dict", comm("all_gather_single", via="state_dict.get_state_dict")),
    ("dcp_planning", comm("gather_object", via="state_dict_saver.save")),
    ("sharding_plan", comm("broadcast_object_list", api="EmbeddingShardingPlanner.collective_plan")),
    ("not_a_member", comm("new_group", group="")),
])  # fmt: skip
def test_every_rule_is_found(key, record):
    assert rule_of(record).key == key


def test_no_rule_speaks_of_the_programs_own_traffic():
    assert rule_of(comm("all_reduce")) is None
    assert rule_of(comm("broadcast_object_list")) is None
    assert len({rule.key for rule in RULES}) == len(RULES)


def test_a_place_is_told_with_the_way_to_it():
    library = comm("all_gather_object", via="ShardedTensor.init", site="/env/site-packages/torchrec/embedding.py:9", user="/job/a/train.py:3", api="DMP.__init__")
    assert place_of(library) == "a/train.py:3 → DMP.__init__ → torchrec/embedding.py:9 → ShardedTensor.init"
    assert place_of(comm("barrier", site="")) == "from many places"


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (2_500_000_000, "2.5 GB")])
def test_bytes_are_readable(count, text):
    assert size(count) == text
