"""The critical path by recorded times, and journals that hold runs in parts, of other versions, or damaged."""

from ettrain.account.assemble import RankBuilder
from ettrain.account.history import StartRun, StartStage
from ettrain.account.startruns import critical_path
from ettrain.boost.startup import trace
from ettrain.boost.startup.graph import plan_of, stage_of

HEAD = {"k": "head", "t": 1000, "rank": 0, "pid": 1}


def run_of(*stages, end=100, sequential=False, error=""):
    rows = [StartStage(name, "thread", start, stop, 0, needs, ()) for name, start, stop, needs in stages]
    return StartRun(1, end, sequential, error, "", tuple(rows))


def test_the_longest_chain_by_time_is_the_critical_path_also_where_nothing_overlapped():
    path = critical_path(run_of(("a", 1, 31, ()), ("b", 31, 81, ()), ("c", 81, 101, (0,)), end=101, sequential=True))
    assert (path.path_ns, path.sum_ns, path.took_ns) == (50, 100, 100)


def test_slack_is_how_much_longer_a_stage_could_take():
    path = critical_path(run_of(("a", 1, 11, ()), ("b", 1, 31, ()), ("c", 31, 61, (0, 1)), end=61))
    assert {row.stage.name: row.slack_ns for row in path.rows} == {"a": 20, "b": 0, "c": 0}
    assert {row.stage.name for row in path.rows if row.critical} == {"b", "c"}


def test_stages_that_never_began_are_left_out_and_a_failed_run_has_no_critical_path():
    path = critical_path(run_of(("a", 1, 11, ()), ("b", 11, 0, (0,)), ("c", 0, 0, (1,)), end=31, error="ValueError"))
    assert [(row.stage.name, row.took_ns, row.critical) for row in path.rows] == [("a", 10, False), ("b", 20, False)]


class FakeRun:
    """What `trace.records` looks at."""

    def __init__(self, count):
        space, long = {}, "long_" * 20
        for number in range(count):
            exec(f"def stage_{long}{number}({f'stage_{long}{number - 1}' if number else ''}): ...", space)
        functions = [space[name] for name in space if name.startswith("stage_")]
        self.plan = plan_of([stage_of(f, collective=False, process=False, main=False, rng=False, bill="") for f in functions])
        self.begins = {index: 2000 + index for index in range(count)}
        self.ends = {index: 2001 + index for index in range(count)}
        self.cpu_ns, self.on_caller, self.error, self.failed, self.sequential = {}, [], None, None, False

    def waits_for(self, index):
        return self.plan.waits_for(index)


def test_a_long_graph_takes_several_records_that_are_one_run_again():
    from ettrain import events

    run = FakeRun(60)
    records = trace.records(run, 2000, 3000)
    assert len(records) > 1 and all(len(events.encode(record)) <= events.MAX_LINE for record in records)
    builder = RankBuilder(HEAD, 0)
    builder.feed([events.decode(events.encode(record)) for record in records])
    (built,) = builder.build(None, end=4000, now=4000).start_runs
    assert [stage.start for stage in built.stages] == [2000 + index for index in range(60)]
    assert built.stages[59].needs == (58,)
    assert critical_path(built).path_ns == 60


def test_a_damaged_record_is_counted_and_not_fatal():
    builder = RankBuilder(HEAD, 0)
    builder.feed([{"k": "startup", "t": 1, "end": 2, "stages": [["a"]]}, {"k": "startup", "t": 1, "end": "x", "stages": []}, {"k": "startup", "t": 1}])
    assert builder.unknown_kinds == 3
    assert builder.build(None, end=10, now=10).start_runs == []
