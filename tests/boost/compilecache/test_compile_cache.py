"""The compile cache with the real compiler: a machine is a fresh cache folder, the archive the only thing they share."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ettrain.account.history import CacheUse
from ettrain.boost.compilecache.key import differences, environment_key
from ettrain.boost.compilecache.store import Store
from ettrain.cli import main
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader

PROGRAMS = Path(__file__).parent / "programs"
ETT = str(Path(sys.executable).with_name("ett"))
SO_SLOW = 280


class Machines:
    """Runs programs on machines that have nothing but the archive in common."""

    def __init__(self, folder, shared=None):
        self.folder = folder
        self.shared = shared or folder
        """Where the compiler and its precompiled headers are: those take longer than all the rest."""
        self.store = folder / "store"
        self.calls = self.shared / "compiler-calls"
        self.compiler = self.shared / "c++"
        self.compiler.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\nexec g++ "$@"\n')
        self.compiler.chmod(0o755)
        (self.shared / "tmp").mkdir(exist_ok=True)
        self.count = 0

    def run(self, *words, ranks=1, machine=None, ett=True, code=0, job="job", **env):
        """One program on a fresh machine, or on one that was used before; returns what its ranks printed."""
        self.count += 1
        cache = self.folder / (machine or f"machine-{self.count}")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ETT_", "TORCHINDUCTOR", "PYTHONPATH"))}
        clean |= {"TORCHINDUCTOR_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", "CXX": str(self.compiler), "TMPDIR": str(self.shared / "tmp"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, *map(str, words)]
        if ranks > 1:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *map(str, words)]
        if ett:
            command = [ETT, "run", "--quiet", "--job", job, "--runs", str(self.folder / "runs"), "--compile-cache", str(self.store), "--", *command]
        self.calls.write_text("")
        done = subprocess.run(command, env=clean | {name: str(value) for name, value in env.items()}, capture_output=True, text=True, timeout=SO_SLOW, check=False)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "training goes on" not in done.stderr, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def compiled(self):
        """Calls of the compiler by the last run that made something."""
        return [line for line in self.calls.read_text().splitlines() if " -o " in f" {line} " or "-c " in line]

    def uses(self, job="job"):
        """What the compile cache did in the last attempt, by rank."""
        attempt = JobReader(JobPaths(self.folder / "runs" / job)).read().attempts[-1]
        return [rank.cache_uses for rank in sorted(attempt.ranks, key=lambda rank: rank.rank)]

    def archives(self):
        return sorted(self.store.rglob("*.ettc"))


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    return Machines(tmp_path_factory.mktemp("machines"))


@pytest.fixture(scope="module")
def first(machines):
    """What the first machine printed; it has published."""
    (told,) = machines.run(PROGRAMS / "compiled.py", "one", machine="first")
    assert told["misses"] == 2
    assert machines.compiled()
    return told


def test_a_new_machine_compiles_nothing_and_computes_the_same(machines, first):
    (told,) = machines.run(PROGRAMS / "compiled.py", "one")
    assert (told["hits"], told["misses"]) == (2, 0)
    assert told["one"] == first["one"]
    assert machines.compiled() == []
    ((fetched,),) = machines.uses()
    assert isinstance(fetched, CacheUse)
    assert (fetched.act, fetched.reason) == ("fetch", "")
    assert fetched.entries >= 4
    assert len(machines.archives()) == 1


def test_the_report_says_what_came_out_of_the_cache_and_why_the_rest_did_not(machines, first, capsys):
    job = ["report", "job", "--runs", str(machines.folder / "runs")]
    assert main([*job, "--compiles"]) == 0
    text = capsys.readouterr().out
    assert "0 of 2" in text
    assert "#0 had to compile: no archive yet." in text
    assert "published" in text
    assert main([*job, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["compiles"]
    assert told["functions"][0] | {"wall_s": 0, "where": ""} == {
        "attempt": 0, "function": "one", "where": "", "compiles": 2, "wall_s": 0, "graphs_from_cache": 0, "graphs_compiled": 2, "reason": "no archive yet",
    }  # fmt: skip
    assert [use["act"] for use in told["cache"] if use["attempt"] == 0] == ["fetch", "publish"]


def test_without_the_cache_the_numbers_are_the_same(machines, first):
    (told,) = machines.run(PROGRAMS / "compiled.py", "one", ett=False, machine="first")
    assert told["one"] == first["one"]


@pytest.mark.slow
def test_what_a_run_does_not_use_is_not_lost(machines, first):
    (told,) = machines.run(PROGRAMS / "compiled.py", "two", machine="second")
    assert told["misses"] == 2
    assert len(machines.archives()) == 1
    (told,) = machines.run(PROGRAMS / "compiled.py", "one", "two")
    assert (told["hits"], told["misses"]) == (4, 0)


def test_what_an_archive_is_for_does_not_depend_on_job_folder_or_hash_seed(machines, first, tmp_path):
    moved = tmp_path / "elsewhere" / "compiled.py"
    moved.parent.mkdir()
    moved.write_text((PROGRAMS / "compiled.py").read_text())
    (told,) = machines.run(moved, "one", job="another", PYTHONHASHSEED=7, MASTER_PORT=1, HOSTNAME="other")
    assert (told["hits"], told["misses"]) == (2, 0)
    assert machines.compiled() == []


@pytest.mark.slow
def test_another_instruction_set_is_a_miss_with_the_reason_and_right_numbers(machines, first):
    (told,) = machines.run(PROGRAMS / "compiled.py", "one", ATEN_CPU_CAPABILITY="default")
    assert told["misses"] == 2
    assert told["one"] == pytest.approx(first["one"], rel=1e-5)
    assert "cpu: it needs" in machines.uses()[0][0].reason


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_archive_is_a_miss_with_the_reason(machines, first, damage):
    (path, *_) = [path for path in machines.archives() if path.parent.parent.name == "compiled.py" and "AVX" in path.read_bytes().partition(b"\n")[2][32:2000].decode("latin1")]
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] if damage == "cut" else whole[:500] + bytes([whole[500] ^ 4]) + whole[501:])
    try:
        (told,) = machines.run(PROGRAMS / "compiled.py", "one")
        assert (told["hits"], told["one"]) == (0, first["one"])
        assert "cut short or altered" in machines.uses()[0][0].reason
    finally:
        for other in path.parent.glob("*.ettc"):
            other.unlink()
        path.write_bytes(whole)


@pytest.mark.slow
def test_an_operator_with_another_body_is_a_miss(machines, tmp_path):
    source = (PROGRAMS / "customop.py").read_text()
    program = tmp_path / "customop.py"
    program.write_text(source)
    assert machines.run(program)[0] == {"grad": [2.0] * 4, "hits": 0}
    assert machines.run(program)[0] == {"grad": [2.0] * 4, "hits": 2}
    program.write_text(source.replace("FACTOR = 2.0", "FACTOR = 5.0"))
    assert machines.run(program)[0] == {"grad": [5.0] * 4, "hits": 0}
    assert "custom_ops" in machines.uses()[0][0].reason


@pytest.mark.slow
def test_ranks_with_different_shapes_converge_on_one_graph(machines, tmp_path):
    program = tmp_path / "ragged.py"
    program.write_text((PROGRAMS / "compiled.py").read_text())
    words = program, "one:6", "one:6,9"
    before = machines.run(*words, ranks=2, job="ranks")
    assert sorted(told["frames"] for told in before) == [1, 2], "rank 1 sees a second shape"
    after = machines.run(*words, ranks=2, job="ranks")
    assert [told["frames"] for told in after] == [1, 1]
    assert [told["misses"] for told in after] == [0, 0]
    assert machines.compiled() == []


def test_an_archive_is_published_while_the_program_runs_and_survives_its_kill(machines, tmp_path):
    machines.run(PROGRAMS / "killed.py", tmp_path / "store", ett=False, code=-signal.SIGKILL)
    (stored,) = Store(str(tmp_path / "store")).stored()
    assert stored.program == "killed"
    assert Store(str(tmp_path / "store")).read(stored.path).entries


@pytest.mark.slow
def test_an_address_that_cannot_be_used_costs_nothing_but_the_cache(machines, first, tmp_path):
    blocked = Machines(tmp_path, machines.folder)
    blocked.store.write_text("a file where the folder should be")
    (told,) = blocked.run(PROGRAMS / "compiled.py", "one")
    assert told["one"] == first["one"]
    assert any(use.reason for use in blocked.uses()[0])


@pytest.mark.slow
def test_signed_archives_are_used_with_their_key_only(machines, tmp_path):
    signed = Machines(tmp_path, machines.folder)
    signed.run(PROGRAMS / "compiled.py", "one", ETT_CACHE_KEY="a key of sixteen bytes")
    (told,) = signed.run(PROGRAMS / "compiled.py", "one", ETT_CACHE_KEY="a key of sixteen bytes")
    assert told["hits"] == 2
    (told,) = signed.run(PROGRAMS / "compiled.py", "one", ETT_CACHE_KEY="another one of sixteen bytes")
    assert told["hits"] == 0
    assert "signed with another key" in signed.uses()[0][0].reason


def test_a_remote_address_without_a_key_is_refused_before_anything_starts(tmp_path):
    done = subprocess.run([ETT, "run", "--runs", str(tmp_path), "--compile-cache", "s3://bucket/x", "--", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ETT_CACHE_KEY" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_key_holds_what_makes_an_artifact_valid(monkeypatch):
    import torch

    key = environment_key("p")
    assert key == environment_key("p")
    assert torch.__version__ in key["torch"]
    assert key["compiler"]
    assert key["cpu"][0] == torch.backends.cpu.get_cpu_capability()
    assert differences(key, {**key, "torch": "2.12"}) == [f"torch: '2.12' instead of '{key['torch']}'"]
    assert not {"job", "host", "rank", "pid"} & set(key)


def test_a_torch_without_the_private_names_is_left_alone(monkeypatch, tmp_path):
    from ettrain import CompileCache
    from ettrain.boost.compilecache import artifacts

    monkeypatch.setitem(artifacts.PRIVATE, "torch.compiler._cache", ("CacheArtifactManager._no_such_name",))
    cache = CompileCache(str(tmp_path), program="p")
    assert cache.fetch() == 0
    assert "this torch has another torch.compiler._cache" in cache.status
    assert cache.publish() is False
    assert list(tmp_path.iterdir()) == []


def test_files_of_an_archive_stay_inside_the_cache_folder(tmp_path):
    from ettrain.boost.compilecache.archive import Entry
    from ettrain.boost.compilecache.artifacts import LIBRARY, TIMINGS, Torch, install

    torch = Torch.found()
    inside = Torch(torch.manager, torch.create, torch.pgo, lambda: str(tmp_path / "cache"))
    day = 1
    bad = [Entry(kind=LIBRARY, name=name, content=b"x", used=day) for name in ("../evil.so", "/etc/evil.so", "a/evil.py")]
    assert len(install(inside, [*bad, Entry(kind=TIMINGS, name="../evil", content=b"{}", used=day)])) == 4
    assert not list(tmp_path.rglob("evil*"))
    assert install(inside, [Entry(kind=LIBRARY, name="ab/good.so", content=b"x", used=day)]) == []
    assert stat.S_IMODE((tmp_path / "cache/ab/good.so").stat().st_mode) == 0o755


def test_timings_measured_elsewhere_are_added_to_those_measured_here(tmp_path):
    from ettrain.boost.compilecache.archive import Entry
    from ettrain.boost.compilecache.artifacts import TIMINGS, Torch, install

    torch = Torch.found()
    inside = Torch(torch.manager, torch.create, torch.pgo, lambda: str(tmp_path))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/x").write_text(json.dumps({"mm": {"8x8": {"a": 1.0}}}))
    told = Entry(kind=TIMINGS, name="cache/x", content=json.dumps({"mm": {"8x8": {"b": 2.0}, "4x4": {"a": 3.0}}}).encode(), used=1)
    assert install(inside, [told]) == []
    assert json.loads((tmp_path / "cache/x").read_text()) == {"mm": {"8x8": {"a": 1.0, "b": 2.0}, "4x4": {"a": 3.0}}}
