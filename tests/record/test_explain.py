"""`--explain-startup`: set-up time has the names of what ran in it."""

PROGRAM = """
import time
import ettrain as ett
from ettrain.record import startup
from ettrain.record.recorder import recorder
startup.explain(recorder)
def build_vocabulary():
    time.sleep(.2)
def main():
    build_vocabulary()
main()
recorder.promote()
ett.step()
time.sleep(.1)
"""


def test_it_names_what_ran_until_the_first_step(job):
    job.run("-c", PROGRAM)
    spans = job.records(kind="span", name="setup")
    assert any(r["part"].startswith("main") and r["end"] - r["t"] > 100_000_000 for r in spans)
    (first,) = job.records(kind="mark", name="first_step")
    assert all(r["end"] <= first["t"] + 100_000_000 for r in spans)
