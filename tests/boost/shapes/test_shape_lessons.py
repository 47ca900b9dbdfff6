"""What a process's compilations teach, by rule; and torch's own words for why, of each kind."""

import pytest

from ettrain.account.dynamic import STAYED, VARIED, learn, merged, updated, value_of
from ettrain.account.history import Compile, Dims
from ettrain.account.recompiles import ZERO_ONE, cause_of, source_of
from ettrain.account.sources import Place

X0, X1, N = Place("L['x']", 0), Place("L['x']", 1), Place("L['n']")
F = ("forward", "m.py:1")


def dims(t, seen, was=None, source="L['x']", function=F):
    return Dims(t, *function, source, seen, was)


def again(t, reason, function=F, **more):
    return Compile(t, t + 1, *function, reason, 0, 0, **more)


def size(expected, actual, dim=0):
    return f"0/0: tensor 'x' size mismatch at index {dim}. expected {expected}, actual {actual}"


def test_a_dimension_that_varied_is_marked_and_its_neighbour_is_not():
    known = learn([dims(1, (5, 4)), dims(2, (None, 4), (5, 4))], [again(2, size(5, 6))], "")
    assert known[F] == {X0: VARIED, X1: STAYED}
    assert value_of(known) == "L['x']:0"


def test_a_batch_of_one_alone_is_no_reason_to_mark():
    known = learn([dims(1, (5, 4)), dims(2, (None, 4), (5, 4))], [again(2, size(5, 1))], "")
    assert known[F][X0] == ZERO_ONE
    assert value_of(known) == ""


def test_a_batch_of_one_and_then_another_size_is_one():
    known = learn([dims(1, (5, 4)), dims(2, (None, 4), (5, 4))], [again(2, size(5, 1)), again(3, size(1, 7))], "")
    assert known[F][X0] == VARIED


def test_a_size_that_changed_beside_the_cause_told_is_marked():
    changes = [dims(1, (5, 4)), dims(1, 7, source="L['n']"), dims(2, (None, 4), (5, 4)), dims(2, "int", 7, source="L['n']")]
    assert value_of(learn(changes, [again(2, "0/0: n == 7")], "")) == "L['n'],L['x']:0"


def test_a_tensor_whose_rank_changes_is_left_alone():
    known = learn([dims(1, (5, 4)), dims(2, (None, 4), (5, 4)), dims(3, "rank", (None, 4))], [again(2, size(5, 6))], "")
    assert value_of(known) == ""


def test_a_number_that_is_no_integer_is_left_alone():
    assert value_of(learn([dims(1, 0.5, source="L['n']"), dims(2, "float", 0.5, source="L['n']")], [], "")) == ""


def test_the_same_name_that_stayed_in_another_function_wins():
    other = ("other", "m.py:9")
    known = learn([dims(1, (5, 4)), dims(2, (None, 4), (5, 4)), dims(3, (5, 4), function=other)], [again(2, size(5, 6))], "")
    assert value_of(known) == ""


def test_what_was_dynamic_from_the_start_is_not_known_to_have_stayed():
    known = learn([dims(1, (5, 4))], [], "L['x']:0")
    assert known[F] == {X1: STAYED}
    assert learn([dims(1, (5, 4))], [], None)[F] == {}


def test_without_torchs_profile_the_reasons_alone_teach():
    known = learn([], [again(2, size(5, 6)), again(3, "0/1: n == 7  # x * n"), again(4, "0/2: self.h.k == 7  # x")], "")
    assert known[F] == {X0: VARIED, N: VARIED}


def test_a_compilation_that_was_refused_teaches_too():
    assert learn([dims(1, (5, 4))], [again(2, size(5, 6), refused=True)], "")[F][X0] == VARIED


def test_a_batch_of_one_in_another_function_forbids_nothing():
    assert value_of({F: {X0: VARIED, X1: STAYED}, ("other", "m.py:9"): {X0: ZERO_ONE}}) == "L['x']:0"


def test_where_not_all_sources_are_known_every_entry_names_its_own_alone():
    many = {Place(f"L['ids'][{number}]", 0): VARIED for number in range(3)}
    assert value_of({F: many}) == r"L\['ids'\]\[\d+\]$"
    assert value_of({F: many | {Place("*"): "?"}}) == "L['ids'][0]:0,L['ids'][1]:0,L['ids'][2]:0"


def test_ranks_and_attempts_teach_together_and_what_varied_anywhere_varied():
    assert merged([{F: {X0: STAYED, X1: STAYED}}, {F: {X0: VARIED}}, {F: {X0: ZERO_ONE}}]) == {F: {X0: VARIED, X1: STAYED}}


def test_where_the_code_has_moved_only_what_varied_is_still_believed():
    moved = ("forward", "m.py:7")
    assert updated({F: {X0: VARIED, X1: STAYED}}, {moved: {X0: STAYED}}) == {F: {X0: VARIED}, moved: {X0: STAYED}}
    elsewhere = ("forward", "other.py:7")
    assert updated({F: {X1: STAYED}}, {elsewhere: {X0: STAYED}})[F] == {X1: STAYED}


@pytest.mark.parametrize(
    ("reason", "kind", "name"),
    [
        (size(5, 6), "size", "x"),
        ("0/0: tensor 'd['a b']' size mismatch at index 0. expected 3, actual 4", "size", "d['a b']"),
        (size(5, 1), "zero_one", "x"),
        ("0/1: 2 <= x.size()[0]  # case (user code shown is first use of this value", "zero_one", "x"),
        ("0/1: 2 <= x.size()[0] <= 10  # case", "branch", "x"),
        ("0/1: y.size()[0] == x.size()[0]  # (unknown var s17, please file a bug)", "branch", "y"),
        ("0/0: tensor 'x' rank mismatch. expected 1, actual 2", "rank", "x"),
        ("0/0: tensor 'x' dtype mismatch. expected Float, actual Double", "dtype", "x"),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0", "requires_grad", "x"),
        ("0/7: tensor 'x' stride mismatch at index 0. expected 4, actual 8", "stride", "x"),
        ("0/0: tensor 'p' size mismatch at index 0. expected 3, actual 7. Guard failed on a parameter, consider", "parameter", "p"),
        ("0/0: GLOBAL_STATE changed: grad_mode ", "mode", "grad_mode"),
        ("0/0: s._modules['d'].training == True    # return F.dropout(", "mode", "s._modules['d']"),
        ("0/1: self.step == 2    # r = self.h(x) (HINT: torch.compile considers integer attributes)\nUser stack trace:\n", "number", "self.step"),
        ("0/0: n == -7", "number", "n"),
        ("0/0: s == 0.5      # case", "value", "s"),
        ("0/0: s == 'a == 2'   # case", "value", "s"),
        ("0/0: d == torch.float32  # case", "value", "d"),
        ("0/0: ___check_obj_id(fn, 139870065884464), type=<class 'builtin'>  # def h(x)", "object", "fn"),
        ("0/0: len(d) != 1", "length", "d"),
        ("0/0: something new", "other", ""),
        ("Unable to find recompilation reasons", "other", ""),
    ],
)
def test_torchs_words_are_understood(reason, kind, name):
    cause = cause_of(reason)
    assert (cause.kind, cause.name) == (kind, name)


@pytest.mark.parametrize(
    ("name", "source"),
    [("x", "L['x']"), ("ids[0]", "L['ids'][0]"), ("d['a b']", "L['d']['a b']"), ("self.step", "L['self'].step"), ("G['n']", "G['n']"), ("self.h.k", None), ("a + b", None)],
)
def test_a_users_name_is_turned_into_a_source_where_that_is_certain(name, source):
    assert source_of(name) == source
