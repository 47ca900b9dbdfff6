"""What `ett.Startup` refuses before anything runs, and the order it settles on."""

import pytest

import ettrain as ett
from ettrain.boost.startup.graph import critical_chain, plan_of, stage_of
from ettrain.errors import UsageError


def refused(start):
    with pytest.raises(UsageError) as caught:
        start.run()
    return str(caught.value)


def test_an_unknown_dependency_is_refused_by_name_before_any_stage_begins():
    start, ran = ett.Startup(), []

    @start.stage
    def loader():
        ran.append("loader")

    @start.stage
    def model(laoder):
        ran.append("model")

    message = refused(start)
    assert "'model'" in message and "'laoder'" in message and "loader" in message and __file__ in message
    assert ran == []


def test_a_circle_is_refused_with_its_links():
    start = ett.Startup()

    @start.stage
    def a(c): ...

    @start.stage
    def b(a): ...

    @start.stage
    def c(b): ...

    message = refused(start)
    assert all(f"'{one}' needs '{other}'" in message for one, other in (("a", "c"), ("c", "b"), ("b", "a")))


def test_an_order_of_collectives_against_their_dependencies_is_refused_with_its_cure():
    start = ett.Startup()

    @start.stage(collective=True)
    def ddp(group): ...

    @start.stage(collective=True)
    def group(): ...

    message = refused(start)
    assert "'ddp' needs 'group'" in message and "'group' is declared after, and as collective=True runs after, 'ddp'" in message
    assert "Declare them in the order" in message


def test_a_second_stage_of_one_name_is_refused_with_both_places():
    start = ett.Startup()

    def declare():
        def model(): ...

        return model

    start.stage(declare())
    with pytest.raises(UsageError, match="two stages are named 'model'.*test_startup_plan.py:.* and .*test_startup_plan.py:"):
        start.stage(declare())


@pytest.mark.parametrize("also", ["main", "collective", "rng"])
def test_a_stage_elsewhere_can_be_nothing_that_belongs_to_this_process(also):
    def index(): ...

    with pytest.raises(UsageError, match=f"'index'.*process=True and {also}=True"):
        ett.Startup().stage(process=True, **{also: True})(index)


def test_a_function_that_cannot_be_sent_is_refused_before_anything_runs():
    start, ran = ett.Startup(), []

    @start.stage
    def first():
        ran.append(1)

    @start.stage(process=True)
    def index(): ...

    assert "'index'" in refused(start)
    assert ran == []


def test_parameters_that_name_no_stage_are_refused():
    with pytest.raises(UsageError, match=r"'\*parts' names no stage"):

        @ett.Startup().stage
        def model(*parts): ...


def stages(**needs):
    space = {}
    for name, parameters in needs.items():
        exec(f"def {name}({', '.join(parameters)}): ...", space)
    return [stage_of(space[name], collective=name.startswith("c"), process=False, main=False, rng=name.startswith("r"), bill="") for name in needs]


def test_the_order_is_the_declared_one_where_dependencies_allow():
    plan = plan_of(stages(a=["b"], b=[], d=[], e=["a"]))
    assert [plan.stages[i].name for i in plan.order] == ["b", "a", "d", "e"]


def test_collectives_and_drawing_stages_wait_for_those_declared_before():
    plan = plan_of(stages(c1=[], r1=[], c2=[], r2=["c1"], c3=["c2"]))
    assert plan.after == ((), (), (0,), (1,), ())


def test_the_chain_goes_back_over_what_was_waited_for_longest():
    plan = plan_of(stages(a=[], b=[], d=["a", "b"], e=["d"], f=["a"]))
    assert critical_chain(plan.waits_for, {0: 5, 1: 9, 2: 12, 3: 20, 4: 7}) == [1, 2, 3]
    assert critical_chain(plan.waits_for, {0: 5, 1: 9, 2: 12, 3: 20, 4: 7}, last=4) == [0, 4]
    assert critical_chain(plan.waits_for, {}) == []


def test_a_parameter_with_a_default_is_no_dependency():
    start = ett.Startup()

    @start.stage
    def size(): ...

    @start.stage
    def model(width=3, *, size=5):
        return width, size

    assert start.run().model == (3, 5)


def test_a_coroutine_is_refused():
    with pytest.raises(UsageError, match="'loader'.*coroutine"):

        @ett.Startup().stage
        async def loader(): ...
