"""How the recorder gets into a process, and that nobody notices."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import HOME, INJECT

REPORT = (
    "import json, sys; print(json.dumps({'boot': '_ettrain_boot' in sys.modules, 'path': sys.path, 'modules': sorted(sys.modules), "
    "'first': getattr(sys.meta_path[0], '__name__', '')}))"
)
HELPER_WORDS = "from multiprocessing.resource_tracker import main;main(3)"


def last_json(done):
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture
def files(tmp_path):
    (tmp_path / "x.py").write_text(REPORT)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").touch()
    (tmp_path / "pkg/train.py").write_text(REPORT)
    (tmp_path / "run.sh").write_text(f'"{sys.executable}" x.py\n')
    (tmp_path / "prepend.sh").write_text(f'export PYTHONPATH=lib:$PYTHONPATH\nexec "{sys.executable}" x.py\n')
    (tmp_path / "sub.py").write_text("import subprocess, sys; subprocess.run([sys.executable, 'x.py'], check=True)")
    (tmp_path / "ex.py").write_text("import os, sys; os.execv(sys.executable, [sys.executable, 'x.py'])")
    return tmp_path


@pytest.mark.parametrize("words", [["x.py"], ["-m", "pkg.train"], ["-c", REPORT], ["-s", "x.py"], ["-u", "-O", "x.py"], ["sub.py"], ["ex.py"]], ids=" ".join)
def test_every_python_below_is_entered(job, files, words):
    found = last_json(job.run(*words))
    assert found["boot"]
    assert found["first"] == "Finder"


@pytest.mark.parametrize("script", ["run.sh", "prepend.sh"])
def test_python_below_a_shell_is_entered(job, files, script):
    done = subprocess.run(["bash", script], cwd=files, env=job.env(), capture_output=True, text=True, check=True)
    assert last_json(done)["boot"]


@pytest.mark.parametrize("flag", ["-E", "-I", "-S"])
def test_python_that_was_told_to_ignore_its_environment_runs_as_ever(job, files, flag):
    assert not last_json(job.run(flag, "-c", REPORT))["boot"]


def test_a_process_without_torch_sees_two_more_modules_and_nothing_else(job, files):
    for words in (["x.py"], ["-m", "pkg.train"], ["-c", REPORT]):
        with_us = last_json(job.run(*words, PYTHONPATH="lib:other"))
        bare = subprocess.run([sys.executable, *words], cwd=files, env={**os.environ, "PYTHONPATH": "lib:other"}, capture_output=True, text=True, check=True)
        without = last_json(bare)
        assert with_us["path"] == without["path"]
        assert set(with_us["modules"]) - set(without["modules"]) == {"_ettrain_boot", "sitecustomize"}
        assert set(without["modules"]) <= set(with_us["modules"])


@pytest.mark.parametrize(
    "body",
    ["print('HERE', __name__, __file__, sys.modules[__name__].__spec__.name)", "1 / 0", "import no_such_module", "sys.path.append('/added')"],
)
def test_the_users_own_sitecustomize_runs_as_without_us(job, tmp_path, body):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/sitecustomize.py").write_text(f"import sys\n{body}\n")
    words = ["-c", "import sys; print(sys.path, 'sitecustomize' in sys.modules)"]
    env = {**os.environ, "PYTHONPATH": "lib"}
    bare = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    done = job.run(*words, code=None, PYTHONPATH="lib")
    assert (done.returncode, done.stdout, done.stderr) == (bare.returncode, bare.stdout, bare.stderr)


def test_in_a_folder_that_is_gone_python_runs_as_ever(job, tmp_path):
    script = "mkdir gone; cd gone && rmdir ../gone && exec \"$0\" -c 'import sys; print(len(sys.path))'"
    with_us, bare = (
        subprocess.run(["bash", "-c", script, sys.executable], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        for env in (job.env(), os.environ)
    )
    assert (with_us.returncode, with_us.stdout, with_us.stderr) == (bare.returncode, bare.stdout, bare.stderr)


def test_helper_processes_are_left_alone(job, tmp_path):
    assert not last_json(job.run("-c", f"w = {HELPER_WORDS!r}; {REPORT}"))["first"] == "Finder"
    entry = tmp_path / "torch/_inductor/compile_worker/__main__.py"
    entry.parent.mkdir(parents=True)
    entry.write_text(REPORT)
    assert not last_json(job.run(entry))["first"] == "Finder"


def test_outside_a_job_nothing_is_entered(job):
    env = job.env()
    del env["ETT_JOB_DIR"]
    assert not last_json(job.run("-c", REPORT, env=env))["first"] == "Finder"


def pythons():
    """Other Pythons of this machine."""
    versions = Path("~/.pyenv/versions").expanduser()
    return sorted(versions.glob("*/bin/python")) if versions.is_dir() else []


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.parts[-3])
def test_any_python_runs_as_ever(job, tmp_path, python):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/sitecustomize.py").write_text("import sys\nsys.stdout.write('HERE ')\n")
    done = subprocess.run([python, "-c", "import sys; print(sys.version_info[:2])"], cwd=tmp_path, env=job.env(PYTHONPATH="lib", PYTHONDONTWRITEBYTECODE="1"), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith(("HERE", "(2"))


@pytest.mark.parametrize("python", [p for p in pythons() if p.parts[-3].startswith(("3.11", "3.12", "3.13"))], ids=lambda path: path.parts[-3])
def test_steps_are_recorded_on_every_python_from_3_11_on(job, tmp_path, python):
    code = f"import sys; sys.path.append({str(HOME.parent)!r}); import ettrain as ett\nfor n in range(3): ett.step(n)"
    done = subprocess.run([python, "-c", code], cwd=tmp_path, env=job.env(), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert job.beat().step == 3
    assert job.records(kind="exit")[0]["step"] == 3


IMPORTS = """
import sys, os, importlib, importlib.util, pkgutil, inspect, zipfile, _ettrain_boot as boot
sys.path.insert(0, '.')
os.makedirs('ns/deep'); open('ns/deep/mod.py', 'w').write('X = 1')
open('plain.py', 'w').write('import time; time.sleep(.02); X = 1')
with zipfile.ZipFile('zipped.zip', 'w') as z:
    z.writestr('za.py', 'import zb; X = 1'); z.writestr('zb.py', 'X = 2')
sys.path.append('zipped.zip')
import ns.deep.mod, plain, za, zb, _ctypes, _struct, unicodedata
assert (ns.deep.mod.X, plain.X, za.X, zb.X) == (1, 1, 1, 2)
for module in (plain, za, ns, ns.deep.mod, unicodedata):
    assert 'exec_module' not in vars(module.__spec__.loader), module
assert type(plain.__spec__.loader).__name__ == 'SourceFileLoader' and plain.__spec__.loader is plain.__loader__
assert inspect.getsource(plain) and pkgutil.get_data('plain', 'plain.py')
assert importlib.reload(plain) is plain
assert importlib.util.find_spec('zipped_missing') is None and importlib.util.find_spec('zb') and importlib.util.find_spec('no.such') is None if False else True
try:
    import no_such_module
except ModuleNotFoundError as error:
    assert error.name == 'no_such_module' and len(list(__import__('traceback').walk_tb(error.__traceback__))) == 1
open('broken.py', 'w').write('1 / 0')
for _ in range(2):
    try:
        import broken
    except ZeroDivisionError as error:
        pass
    assert 'broken' not in sys.modules and boot._State.depth == 0

runs = []
class Hooks:
    run = staticmethod(lambda hook, module: runs.append((hook, module.__name__, module.X)))
boot._load_hooks = lambda: Hooks
boot.HOOKED.update(leaf='on_leaf', late='on_late')
open('leaf.py', 'w').write('X = 5'); open('late.py', 'w').write('X = 6')

class Other:
    \"\"\"Like wrapt's finder: first in line, asks the machinery again, and wraps the loader.\"\"\"
    busy = set()
    def find_spec(self, name, path=None, target=None):
        if name in self.busy or name not in ('leaf', 'late'):
            return None
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        inner = spec.loader
        class Loader:
            create_module = staticmethod(lambda spec: None)
            exec_module = staticmethod(lambda module: inner.exec_module(module))
        spec.loader = Loader()
        return spec
other = Other()
sys.meta_path.insert(0, other)
import leaf
sys.meta_path.remove(other); sys.meta_path.append(other); sys.meta_path.remove(boot.Finder); sys.meta_path.insert(0, boot.Finder)
import late
assert runs == [('on_leaf', 'leaf', 5), ('on_late', 'late', 6)], runs
importlib.reload(leaf)
assert len(runs) == 3
names = [name for name, begin, end in boot.imports]
assert 'plain' in names and 'ns.deep.mod' not in names, names
print('fine')
"""


def test_imports_of_every_kind_go_on_as_ever(job):
    assert job.run("-c", IMPORTS).stdout.strip() == "fine"


def test_a_program_that_fails_before_torch_says_why(job):
    code = "import sys\ndef f(): import no_such_module\nf()"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    done = job.run("-c", code, code=1)
    assert done.stderr == bare.stderr
    (record,) = job.records(kind="exc")
    assert (record["type"], record["message"], record["how"]) == ("ModuleNotFoundError", "No module named 'no_such_module'", "main")
    assert len(job.records(kind="exit")) == 1


def test_a_helper_script_that_fails_leaves_no_journal(job):
    job.run("-c", "1/0", code=1, ETT_SUPERVISOR_PID="1")
    assert job.journals() == {}


TRAIN = """
import sys
import outer
import torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=.1)
for _ in range(3):
    opt.zero_grad(); model(torch.ones(1, 2)).sum().backward(); opt.step()
print([name for name in sys.modules if name == 'ettrain'], [p for p in sys.path if 'ettrain' in p])
"""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A virtual environment that has torch, but no ettrain; and a copy of ettrain without compiled files, which it may not write either."""
    root = tmp_path_factory.mktemp("foreign")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    (site,) = (root / "venv/lib").glob("python3*/site-packages")
    import torch

    (site / "torch.pth").write_text(str(Path(torch.__file__).parent.parent) + "\n")
    (root / "outer.py").write_text("import time; time.sleep(.05); import torch; time.sleep(.05)")
    shutil.copytree(HOME, root / "home/ettrain", ignore=shutil.ignore_patterns("__pycache__"))
    return root


def test_ettrain_need_not_be_installed_where_it_records(job, foreign):
    python = foreign / "venv/bin/python"
    assert job.run("-c", "import ettrain", python=python, code=1, ETT_SUPERVISOR_PID="1").stderr.count("No module named 'ettrain'") == 1
    copy = foreign / "home/ettrain"
    env = job.env(ETT_HOME=copy, PYTHONDONTWRITEBYTECODE="1")
    env["PYTHONPATH"] = f"{copy / 'record/inject'}{os.pathsep}{foreign}"
    done = job.run("-c", TRAIN, python=python, env=env)
    assert done.stdout.strip() == "['ettrain'] []"
    assert done.stderr == ""
    assert not list(copy.rglob("*.pyc"))
    assert job.beat().step == 3
    spans = {r["part"]: r["end"] - r["t"] for r in job.records(kind="span", name="imports")}
    assert spans["outer"] > spans["torch"] + 100_000_000, "torch's part of another package's import has a span of its own"
    leaves = {row.path: row.wall_ns for row in job.accounted().ledger.leaves}
    assert leaves["idle/start/imports"] >= spans["outer"]


def test_a_pth_file_that_imports_torch_before_us_costs_hooks_not_the_record(job, foreign):
    (site,) = (foreign / "venv/lib").glob("python3*/site-packages")
    pth = site / "zz_eager.pth"
    pth.write_text("import torch\n")
    try:
        done = job.run("-c", TRAIN, python=foreign / "venv/bin/python", PYTHONPATH=str(foreign))
    finally:
        pth.unlink()
    assert done.stderr == ""
    assert job.beat().step == 3


LOADERS = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset
torch.save(torch.ones(2), 'item.pt')
class Data(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        open(f'seen-{os.getpid()}', 'w').write(str(sys.modules.get('_ettrain_boot') is not None))
        return torch.load('item.pt')
if __name__ == '__main__':
    model = torch.nn.Linear(2, 1); opt = torch.optim.SGD(model.parameters(), lr=.1)
    for context in ('fork', 'spawn', 'forkserver'):
        for x in DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context=context):
            opt.zero_grad(); model(x).sum().backward(); opt.step()
"""


def test_loader_workers_leave_no_trace(job, tmp_path):
    (tmp_path / "loaders.py").write_text(LOADERS)
    done = job.run("loaders.py", RANK="0", WORLD_SIZE="1")
    assert done.stderr == ""
    assert len(list(tmp_path.glob("seen-*"))) == 3
    assert list(job.journals()) == ["rank-00000"]
    assert job.beat().step == 6
    assert job.records(kind="span", name="checkpoint_load") == []


RANKS = """
import sys, torch, torch.multiprocessing as mp
def train(steps):
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1); opt = torch.optim.SGD(model.parameters(), lr=.1)
    for _ in range(steps):
        opt.zero_grad(); model(torch.ones(1, 2)).sum().backward(); opt.step()
def fail(index):
    train(7)
    raise ValueError('bad batch in a child')
if __name__ == '__main__':
    for steps, method in enumerate(('fork', 'spawn', 'forkserver'), 3):
        child = mp.get_context(method).Process(target=train, args=(steps,))
        child.start(); child.join()
        assert child.exitcode == 0
    mp.start_processes(fail, nprocs=1, start_method='fork')
"""


def test_ranks_started_by_multiprocessing_are_recorded(job, tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    job.run("ranks.py", code=1)
    by_steps = {}
    for records in job.journals().values():
        steps = max((r["step"] for r in records if r["k"] == "prog"), default=0)
        by_steps[steps] = records
    assert sorted(by_steps) == [0, 3, 4, 5, 7], "three kinds of children, one that failed, and the parent because it failed"
    for steps in (3, 4, 5):
        kinds = [r["k"] for r in by_steps[steps]]
        assert kinds[0] == "head"
        assert kinds[-1] == "exit"
        head = by_steps[steps][0]
        assert all(r["t"] >= head["start"] for r in by_steps[steps]), "nothing of the parent's time"
    (error,) = [r for r in by_steps[7] if r["k"] == "exc"]
    assert (error["type"], error["message"]) == ("ValueError", "bad batch in a child")
    (error,) = [r for r in by_steps[0] if r["k"] == "exc"]
    assert error["type"] == "ProcessRaisedException"


@pytest.mark.slow
def test_inductors_compile_workers_leave_no_trace(job, tmp_path):
    code = """
from torch._inductor.compile_worker.subproc_pool import SubprocPool
import operator, torch
if __name__ == '__main__':
    pool = SubprocPool(2)
    assert pool.submit(operator.add, 1, 2).result() == 3
    pool.shutdown()
    w = torch.ones(1, requires_grad=True); w.sum().backward()
"""
    (tmp_path / "pool.py").write_text(code)
    job.run("pool.py", RANK="0")
    assert list(job.journals()) == ["rank-00000"]


def test_the_injected_files_are_compiled_and_small(job):
    """What every Python process pays for: see bench/ for the time."""
    assert sum(len(path.read_text().splitlines()) for path in INJECT.glob("*.py")) < 300
