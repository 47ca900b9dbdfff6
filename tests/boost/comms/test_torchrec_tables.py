"""TorchRec's tables without a gathering each, and its plans kept. Needs torchrec and fbgemm, which the other tests do without.

With torch 2.13 on CPU: `pip install --no-deps torchrec==1.9.2 fbgemm-gpu-cpu==1.8.0 tensordict torchmetrics pyre-extensions
lightning-utilities tqdm`, and what these need in turn, in an environment of its own.
"""

import importlib.util

import pytest
from commranks import run_ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="torchrec is not installed; this file says how")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return run_ranks("tables", 2, tmp_path_factory.mktemp("tables"))


@pytest.mark.parametrize(("what", "tables"), [("tables", 6), ("collisions", 2 + 2 * 4)])
def test_every_table_is_built_without_a_gathering_and_is_equal(told, what, tables):
    for one in told:
        gathered, left, built, not_built, checked, after, same = one[what]
        assert gathered == built == checked == after == tables
        assert (left, not_built, same) == (0, 0, True)


def test_the_model_can_be_saved_and_loaded(told):
    assert all(one["loaded"] for one in told)


def test_a_plan_is_kept_until_something_changes_that_it_follows_from(told):
    assert told[0]["plans"] == [[False, True], [True, True], [False, True], [False, True]]
    assert [same for _, same in told[1]["plans"]] == [True] * 4


def test_an_untested_torchrec_is_left_alone_and_said(told):
    assert all(one["unknown version"] == [0, True] for one in told)
