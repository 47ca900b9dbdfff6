"""Jobs with known truth, told by the recorder's own files, come out exactly: every category, to the nanosecond."""

from __future__ import annotations

import pytest
from scenarios import Told, found_in, names, scenario, truth_of

from ettrain.account.ledger import account, number_of
from ettrain.jobreader import JobReader


@pytest.mark.parametrize("name", names() or [pytest.param("none", marks=pytest.mark.skip(reason="../shared/data/scenarios is not there"))])
def test_a_scenario_told_by_the_recorder_comes_out_exactly(name, tmp_path):
    data = scenario(name)
    job = Told(tmp_path, data).tell()
    ledger = account(JobReader(job.paths).read(job.wall_ns)).ledger
    assert found_in(ledger) == truth_of(data)
    assert number_of(ledger, "failure") == data["failures_truth"]
    assert ledger.status == "finished"
