"""The accounting agrees with a second-by-second opinion that was written from the words, not from the code."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given
from oracle import Oracle

from ettrain.account.ledger import Account, account
from ettrain.jobreader import JobReader
from ettrain.testing import Story, stories

SECOND = 1_000_000_000


def accounted(story: Story) -> Account:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        job = story.tell(folder)
        return account(JobReader(job.paths).read(job.wall_ns))
    finally:
        shutil.rmtree(folder)


def seconds_of(found: Account) -> list[str]:
    life: list[str] = []
    for start, end, path in found.ledger.slices:
        assert (end - start) % SECOND == 0
        life += [path] * ((end - start) // SECOND)
    return life


@given(stories())
def test_every_second_of_a_job_is_what_the_words_say(story):
    found, oracle = accounted(story), Oracle(story)
    assert seconds_of(found) == oracle.paths()


@given(stories())
def test_device_time_is_what_the_words_say(story):
    found, oracle = accounted(story), Oracle(story)
    device = Counter({leaf.path: leaf.device_ns // SECOND for leaf in found.ledger.leaves if leaf.device_ns})
    device["effective"] = found.ledger.effective_device_ns // SECOND
    assert +device == +oracle.device_seconds()
