"""Collectives in odd company: groups that torch does not know, no member of the group, many places, a fork, threads."""

import json
import threading

import torch
import torch.distributed as dist
from lab import in_child
from torch.testing._internal.distributed.fake_pg import FakeStore

from ettrain.record.hooks import collectives
from ettrain.record.recorder import recorder


class Foreign:
    group_name = "foreign"

    def size(self):
        return 7


def all_reduce(tensor, op=None, group=None, async_op=False):
    if op == "fail":
        raise ValueError(op)


def rows():
    return {f"{op} {group} {size}": n for (op, group, _, _), n, size in ((key, row.n, collectives.traffic.groups.get(key[1], 0)) for key, row in collectives.traffic.rows.items())}


dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
counted = collectives._counted(all_reduce, collectives._Arguments(all_reduce, "all_reduce", ("tensor",)))
value = torch.ones(4)
counted(value, group=Foreign())
counted(tensor=value, group=dist.GroupMember.NON_GROUP_MEMBER)
try:
    counted(value, "fail", group=Foreign())
except ValueError:
    pass
told = {"foreign": rows()}
thread = threading.Thread(target=counted, args=(value, None, Foreign()))
thread.start()
thread.join()
told["child"], _ = in_child(rows)
exec("call(value)\n" * 600, {"call": counted, "value": value})
told["kinds"] = len(collectives.traffic.rows) <= collectives.MAX_ROWS + 2
told["all"] = sum(row.n for (op, group, _, _), row in collectives.traffic.rows.items() if (op, group) == ("all_reduce", "0"))
told["threads"] = sum(row.n for (op, group, _, _), row in collectives.traffic.rows.items() if group == "foreign")
told["ranks"] = [collectives.ranks_text(ranks) for ranks in ([0, 1, 2, 5], [3])]
long, same = collectives.ranks_text(list(range(0, 4000, 2)))
told["long"] = [long.endswith("…"), len(long) < 1010, same != collectives.ranks_text(list(range(0, 4002, 2)))[1]]
collectives.MAX_CALLS = collectives.traffic.calls + 3
for _ in range(10):
    counted(value, group=Foreign())
told["gives up"] = [collectives.traffic.on, len(collectives.traffic.rows)]
recorder.promote()
print(json.dumps(told), flush=True)
