"""Stages that are found in an unchanged program, stages that must not be found, and the program's own."""

import pytest
from launching import Job, free_port

MS = 1_000_000


@pytest.fixture(scope="module")
def cases(module_job):
    return module_job.program("stages", TEST_PORT=free_port()), module_job.root.parent / "jobs"


class Case:
    def __init__(self, cases, name):
        results, jobs = cases
        self.result, code = results[name]
        assert code == 0
        self.job = Job(jobs / name)
        self.records = next(iter(self.job.journals().values()))
        self.account = self.job.accounted()
        self.leaves = {row.path: row.wall_ns for row in self.account.ledger.leaves}

    def spans(self, name, user=False):
        by = "user" if user else "found"
        return [r for r in self.records if r["k"] == "span" and r["name"] == name and r["by"] == by]

    def lengths(self, name, user=False):
        return [(r["end"] - r["t"]) / MS for r in self.spans(name, user)]

    def leaf(self, path):
        return self.leaves.get(path, 0) / MS


@pytest.fixture
def case(cases, request):
    found = Case(cases, request.param)
    assert found.result["depth"] == 0, "every stage was closed"
    assert not [r for r in found.records if r["k"] == "fault"]
    return found


def of(name):
    return pytest.mark.parametrize("case", [name], indirect=True)


def test_what_is_taken_from_the_steps_is_taken_once(cases):
    """`lost_ns` decides what a stall is: it is no more than the spans cover and the short waits sum up to."""
    for name in cases[0]:
        case = Case(cases, name)
        covered, until = 0, 0
        for begin, end in sorted((r["t"], r["end"]) for r in case.records if r["k"] == "span" and not r.get("lane") and not r.get("steps")):
            covered += max(0, end - max(begin, until))
            until = max(until, end)
        stalls = sum(r["end"] - r["t"] for r in case.records if r["k"] == "slow")
        nested_imports = sum(r["end"] - r["t"] for r in case.records if r.get("name") == "imports")
        assert case.result["lost_ns"] <= covered + case.result["wait_ns"] + stalls + nested_imports, name


# ---- evaluation


@of("evaluation_by_loader")
def test_a_pass_over_a_loader_without_a_backward_is_an_evaluation(case):
    assert len(case.lengths("evaluation")) == 2
    assert all(length >= 40 for length in case.lengths("evaluation"))
    assert case.leaf("idle/steady/evaluation") >= 80


@of("evaluation_by_mode")
def test_eval_and_train_without_a_loader_are_an_evaluation_also_before_the_first_step(case):
    assert len(case.lengths("evaluation")) == 2
    assert all(length >= 30 for length in case.lengths("evaluation"))
    assert case.leaf("idle/start/evaluation") >= 30
    assert case.leaf("idle/steady/evaluation") >= 30


@of("evaluation_by_both")
def test_an_evaluation_found_twice_is_billed_once(case):
    longest = max(case.lengths("evaluation"))
    assert 80 <= case.leaf("idle/steady/evaluation") <= 2 * longest + 1


@of("evaluation_of_the_inner_module")
def test_the_outer_module_ends_the_evaluation_of_the_inner_one(case):
    assert [length >= 30 for length in case.lengths("evaluation")] == [True, True]


@of("evaluation_of_a_copy")
def test_a_copy_that_is_never_trained_is_evaluated_by_its_loader(case):
    assert [length >= 40 for length in case.lengths("evaluation")] == [True, True]


@of("evaluation_at_the_end")
def test_a_program_may_end_in_an_evaluation(case):
    assert [length >= 50 for length in case.lengths("evaluation")] == [True]


@pytest.mark.parametrize("case", ["frozen_norm_each_iteration", "teacher_in_eval"], indirect=True)
def test_a_frozen_layer_or_a_teacher_is_no_evaluation(case):
    assert case.spans("evaluation") == []
    assert case.leaf("effective") == 0
    assert case.account.ledger.effective_ns / MS >= 7 * 5
    assert case.job.beat().eval_t == 0


@of("frozen_norm_by_override")
def test_a_model_that_freezes_a_layer_in_train_is_evaluated_all_the_same(case):
    assert case.leaf("idle/steady/evaluation") >= 80
    assert case.account.ledger.effective_ns / MS >= 11 * 5


@of("evaluation_cut_off")
def test_a_loop_left_after_one_batch_does_not_disturb(case):
    assert case.result["steps"] == 8


# ---- data


@of("first_batch")
def test_the_first_batch_is_what_the_loader_took_not_what_lay_between(case):
    lengths = case.lengths("get_first_batch_data")
    assert len(lengths) == 2
    assert 100 <= sum(lengths) < 1000, "the second between iter() and next() is not its own"


@of("waits_long_and_short")
def test_long_waits_are_spans_and_short_ones_a_sum(case):
    assert [length >= 300 for length in case.lengths("data_wait")] == [True, True]
    assert case.result["wait_ns"] / MS >= 5 * 5 - 1
    assert case.leaf("idle/steady/data_wait") >= 600 + 5 * 5 - 10


@of("waits_of_zipped_loaders")
def test_waits_of_zipped_loaders_are_counted_once_each(case):
    assert 14 * 10 <= case.result["wait_ns"] / MS
    wall = (case.records[-1]["t"] - case.records[0]["t"]) / MS
    assert case.result["wait_ns"] / MS < wall
    assert case.result["batches"] == 16


@of("prefetching_loader")
def test_a_loader_that_is_one_batch_ahead_trains(case):
    assert case.spans("evaluation") == []
    assert case.result["steps"] == 6


@of("preprocessing_pass")
def test_a_pass_before_any_forward_is_preprocessing(case):
    assert case.spans("evaluation") == []
    assert [length >= 40 for length in case.lengths("preproc_creation")] == [True]
    assert case.leaf("idle/start/preproc_creation") >= 40


@of("files_of_a_dataset")
def test_files_that_a_dataset_loads_are_no_checkpoints(case):
    assert case.spans("checkpoint_load") == []
    assert len(case.spans("checkpoint_save")) == 1


@of("stateful_loader")
def test_torchdatas_loader_is_seen(case):
    pytest.importorskip("torchdata")
    assert case.result["batches"] == 16
    assert case.result["steps"] == 8
    assert len(case.spans("evaluation")) == 2


# ---- parallel


@of("distributed")
def test_process_groups_and_wrappers_are_stages(case):
    assert len(case.spans("process_group_init")) == 2, "by way of a device mesh, which has its own name for the function; and new_group"
    assert len(case.spans("train_module_creation")) == 2
    assert len(case.spans("teardown")) == 1
    assert [(r["rank"], r["world"]) for r in case.records if r["k"] == "rank"] == [(0, 1)]
    assert case.job.history().attempts[0].ranks[0].world == 1


# ---- the program's own


@of("users_stages_win")
def test_a_stage_of_the_program_wins_over_what_is_found(case):
    assert case.spans("preproc_creation", user=True)[0]["part"] == "vocabulary"
    assert case.leaf("idle/start/preproc_creation") >= 50, "also over the save inside it"
    assert case.leaf("idle/steady/evaluation") >= 50
    assert case.leaf("idle/steady/report to the boss") >= 40
    assert case.leaf("idle/shutdown/publish") >= 20
    assert case.spans("publish", user=True)[0]["part"] == "7"


@of("users_frames")
def test_a_stage_of_the_program_around_steps_bills_nothing(case):
    assert [r["steps"] for r in case.spans("epoch", user=True)] == [4, 4]
    assert not [path for path in case.leaves if "epoch" in path]
    assert case.account.ledger.effective_ns / MS >= 7 * 5
    assert case.result["lost_ns"] / MS < sum(case.lengths("epoch", user=True)), "a frame takes nothing away from its steps"


@of("steps_of_a_generator")
def test_ett_steps_counts_and_times_what_torch_never_sees(case):
    assert case.result["steps"] == case.result["batches"] == 6
    assert case.result["wait_ns"] / MS >= 49
    assert len(case.spans("get_first_batch_data")) == 1
    row = case.account.ledger.attempts[0]
    assert (row.first_step, row.last_step) == (100, 105)


@of("steps_left_by_break")
def test_a_step_left_by_break_counts_if_an_optimizer_stepped_in_it(case):
    assert case.result["steps"] == 4 + 2


@of("steps_by_hand")
def test_what_the_program_calls_a_step_is_one(case):
    assert case.result["steps"] == 5
    row = case.account.ledger.attempts[0]
    assert (row.first_step, row.last_step) == (40, 44)
    assert case.account.ledger.step_sources == ("program",)


# ---- compilation


@of("compilation")
def test_compilations_say_which_function_and_why_again(case):
    spans = case.spans("compile")
    assert [(r["trigger"], r["part"]) for r in spans] == [
        ("DYNAMO", "forward_pass"), ("LAZY_BACKWARD", "forward_pass"), ("DYNAMO", "forward_pass"), ("LAZY_BACKWARD", "forward_pass"),
        ("DYNAMO", "forward_pass"),
    ]
    assert ["reason" in r for r in spans] == [False, False, True, False, False]
    assert "size mismatch at index 0" in spans[2]["reason"]
    assert all("programs/stages.py:" in r["where"] for r in spans if r["trigger"] == "DYNAMO")
    assert case.leaf("idle/start/compile") > 0
    assert case.leaf("idle/steady/recompile") > 0


@of("compiled_module_first")
def test_a_compiled_module_may_be_the_first_that_is_called(case):
    assert [r["part"] for r in case.records if r["k"] == "mark" and r["name"] == "first_forward"] == ["torch.compile"]
    assert len(case.spans("compile")) == 1
    assert case.result["steps"] == 3


@of("failed_compilation")
def test_a_compilation_that_fails_is_closed(case):
    assert len(case.spans("compile")) == 1


def test_first_steps_and_first_batches_come_in_order(cases):
    for name in ("evaluation_by_loader", "first_batch", "compilation"):
        records = Case(cases, name).records
        marks = {r["name"]: r["t"] for r in records if r["k"] == "mark"}
        assert marks["first_forward"] < marks["first_backward"] < marks["first_step"]
        assert records[0]["k"] == "head"
        assert records[-1]["k"] == "exit"
