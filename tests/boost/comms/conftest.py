"""What three real ranks told, once for all tests."""

import pytest
from commranks import run_ranks


@pytest.fixture(scope="session")
def three_ranks(tmp_path_factory):
    """Program -> what each rank told."""
    told = run_ranks("three", 3, tmp_path_factory.mktemp("comms"))
    return {name: [one[name] for one in told] for name in told[0]}
