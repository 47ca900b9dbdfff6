"""Hooks on stand-ins for what is not installed here or needs a device; the guard; identities; the agent's journal."""

import io
import os
import signal
import sys
import threading
import zipfile
from types import ModuleType, SimpleNamespace

import pytest
from launching import Job, read_lines

from ettrain.record import hooks
from ettrain.record.guard import Guard, guard
from ettrain.record.hooks import checkpoint, identity, launcher, parallel, training, wrap
from ettrain.record.recorder import recorder


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The process's recorder, as if this were a job's process; as it was afterwards."""
    monkeypatch.setenv("ETT_JOB_DIR", str(tmp_path / "job"))
    monkeypatch.delenv("RANK", raising=False)
    recorder.in_child()
    recorder.promote()
    yield Job(tmp_path / "job")
    monkeypatch.delenv("ETT_JOB_DIR")
    recorder.in_child()


# ---- the guard


def test_a_fault_is_told_once_on_one_line_and_counted(capsys):
    own, seen = Guard(), []
    own.on_fault = lambda *told: seen.append(told)
    own.fault("here", ValueError("two\nlines"))
    own.fault("there", "text")
    assert capsys.readouterr().err == "ettrain: here: ValueError: two lines (training goes on; further faults are counted, not shown)\n"
    assert seen == [("here", "ValueError: two lines", 1), ("there", "text", 2)]


def test_nothing_gets_past_the_guard(monkeypatch):
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    own = Guard()
    own.on_fault = lambda *told: 1 / 0
    own.fault("x", Bad())
    own.fault("x", "y")
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=lambda text: 1 / 0))
    own._said = False
    own.fault("x", "y")
    assert own.count == 3


@pytest.mark.parametrize("kind", ["function", "method", "callable", "partial"])
def test_what_a_signal_handler_of_the_programs_raises_is_handed_on(kind):
    import functools

    class Timeout(Exception):
        pass

    class Handlers:
        def method(self, number, frame):
            raise Timeout

        __call__ = method

    def function(number, frame):
        raise Timeout

    handler = {"function": function, "method": Handlers().method, "callable": Handlers(), "partial": functools.partial(function)}[kind]
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Timeout):
            try:
                os.kill(os.getpid(), signal.SIGUSR1)
                threading.Event().wait(1)
            except Timeout as error:
                guard.fault("ours", error)
    finally:
        signal.signal(signal.SIGUSR1, before)


# ---- devices


def test_only_the_first_touch_of_the_devices_that_succeeds_is_a_stage(job):
    tries = []

    def _lazy_init():
        """Doc."""
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("no devices")
        return "there"

    cuda = ModuleType("torch.cuda")
    cuda._lazy_init, cuda.is_initialized = _lazy_init, lambda: False
    parallel.on_cuda(cuda)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no devices"):
            cuda._lazy_init()
    assert [cuda._lazy_init() for _ in range(4)] == ["there"] * 4
    assert cuda._lazy_init.__doc__ == "Doc."
    assert len(job.records(kind="span", name="device_init")) == 1
    assert job.beat().stack == ()


# ---- frameworks


def test_the_hf_trainers_count_names_the_step(job):
    class CallbackHandler:
        def on_step_end(self, args, state, control, *rest, **kwargs):
            return ("control", args, state.global_step, control, rest, kwargs)

    module = ModuleType("transformers.trainer_callback")
    module.CallbackHandler = CallbackHandler
    training.on_transformers(module)
    for number in range(61, 64):
        recorder.rule.activity += 1
        recorder.optimizer_done(1)
        assert CallbackHandler().on_step_end("a", SimpleNamespace(global_step=number), "c", x=1) == ("control", "a", number, "c", (), {"x": 1})
    CallbackHandler().on_step_end("a", SimpleNamespace(global_step=float("nan")), "c")
    assert [(r["local"], r["step"]) for r in job.records(kind="said")] == [(1, 61)]
    assert guard.count == 1


def test_torchrecs_parallel_model_is_a_stage(job):
    class DistributedModelParallel:
        def __init__(self, module, *, plan=None):
            self.made = (module, plan)

    module = ModuleType("torchrec.distributed.model_parallel")
    module.DistributedModelParallel = DistributedModelParallel
    parallel.on_torchrec(module)
    assert module.DistributedModelParallel(1, plan=2).made == (1, 2)
    assert len(job.records(kind="span", name="train_module_creation")) == 1


def test_a_hook_that_cannot_be_installed_is_a_fault_and_nothing_more(job):
    hooks.run("on_ddp", ModuleType("torch.nn.parallel.distributed"))
    assert guard.count == 1
    assert "cannot hook torch.nn.parallel.distributed" in job.records(kind="fault")[0]["where"]


# ---- wrapping


def test_of_stages_in_stages_only_the_outermost_is_one_per_thread(job):
    inner = wrap.staged(lambda: "inner", "checkpoint_save")
    outer = wrap.staged(lambda: inner() + "+outer", "checkpoint_load")
    assert outer() == "inner+outer"
    assert [r["name"] for r in job.records(kind="span")] == ["checkpoint_load"]
    thread = threading.Thread(target=inner)
    thread.start()
    thread.join()
    assert [("lane" in r) for r in job.records(kind="span")] == [False, True]


def test_a_warning_is_blamed_on_the_programs_line(job):
    import warnings

    def warns():
        warnings.warn("old", DeprecationWarning, stacklevel=2)

    staged = wrap.staged(warns, "checkpoint_save")
    with pytest.warns(DeprecationWarning) as seen:
        staged()
    assert seen[0].filename == __file__


def test_an_error_passes_through_a_stage_and_is_named(job):
    def fails():
        raise LookupError("x")

    with pytest.raises(LookupError):
        wrap.staged(fails, "checkpoint_save", after=lambda args, kwargs: {"id": 1})()
    (record,) = job.records(kind="span")
    assert record["err"] == "LookupError"
    assert "id" not in record
    assert wrap.nesting.depth == 0


def test_what_threads_write_during_a_dcp_save_is_part_of_it(job):
    part = wrap.staged(lambda: None, "checkpoint_save")
    seen = []

    def save(state, *, checkpoint_id=None, storage_writer=None):
        thread = threading.Thread(target=lambda: seen.append(part()))
        thread.start()
        thread.join()

    module = ModuleType("torch.distributed.checkpoint.state_dict_saver")
    module.save = module.async_save = save
    checkpoint.on_dcp_save(module)
    module.save({}, checkpoint_id="x")
    assert seen == [None]
    assert [r["part"] for r in job.records(kind="span")] == ["dcp.save"]
    assert not wrap.Parts.under_way


# ---- identities


def torch_archive(path, sid="123"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/.data/serialization_id", sid)


def test_an_archive_has_the_same_content_id_wherever_it_lies(tmp_path):
    torch_archive(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes((tmp_path / "a.pt").read_bytes())
    buffer = io.BytesIO((tmp_path / "a.pt").read_bytes())
    buffer.seek(5)
    with (tmp_path / "a.pt").open("rb") as file:
        sids = [identity.identity_of(x).get("sid") for x in (tmp_path / "a.pt", str(tmp_path / "b.pt"), os.fsencode(tmp_path / "b.pt"), buffer, file)]
        assert file.tell() == 0
    assert sids == ["123"] * 5
    assert buffer.tell() == 5


def test_other_files_and_dcp_folders_have_a_fingerprint(tmp_path):
    for name, data in (("a", b"x" * 300_000), ("b", b"x" * 300_000), ("c", b"x" * 299_999 + b"y")):
        (tmp_path / name).write_bytes(data)
        (tmp_path / f"d{name}").mkdir()
        (tmp_path / f"d{name}/.metadata").write_bytes(data)
    prints = [identity.identity_of(tmp_path / name)["fp"] for name in "abc"]
    assert prints[0] == prints[1] != prints[2]
    folders = [identity.identity_of(tmp_path / f"d{name}")["fp"] for name in "abc"]
    assert folders == prints


def test_half_an_archive_or_none_has_no_content_id(tmp_path):
    torch_archive(tmp_path / "a.pt")
    whole = (tmp_path / "a.pt").read_bytes()
    for number in range(len(whole)):
        (tmp_path / "half.pt").write_bytes(whole[:number])
        assert "sid" not in identity.identity_of(tmp_path / "half.pt")
    assert identity.identity_of(tmp_path / "missing") == {"path": str(tmp_path / "missing")}
    assert identity.identity_of(None) == identity.identity_of(object()) == identity.identity_of(3) == {}


def test_what_is_no_plain_file_is_never_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert set(identity.identity_of(tmp_path / "pipe")) == {"path"}
    assert set(identity.identity_of("/dev/null")) == {"path"}

    class Foreign:
        name = 7

        def __getattr__(self, what):
            raise AssertionError(what)

    assert identity.identity_of(Foreign()) == {}


# ---- torchrun's agent


@pytest.mark.parametrize("failed", [False, True])
def test_the_agent_writes_down_how_each_rank_ended(job, monkeypatch, failed):
    results = [None, SimpleNamespace(failures={1: SimpleNamespace(exitcode=-9)} if failed else {})]

    class PContext:
        envs = {n: {"RANK": str(n + 4), "TORCHELASTIC_RESTART_COUNT": "1"} for n in range(2)}

        def pids(self):
            return {0: 100, 1: 101}

        def wait(self, timeout=-1, period=1):
            return results.pop(0)

    module = ModuleType("torch.distributed.elastic.multiprocessing.api")
    module.PContext = PContext
    launcher.on_elastic(module)
    context = PContext()
    assert context.wait(0) is None
    outcome = context.wait(timeout=0)
    assert outcome.failures == ({} if not failed else outcome.failures)
    records = read_lines(job.paths.attempt("000-r1") / f"agent-p{os.getpid()}.jsonl")
    assert records[0]["role"] == "agent"
    gone = [(r["pid"], r["rank"], r["code"]) for r in records if r["k"] == "gone"]
    assert gone == ([(101, 5, -9)] if failed else [(100, 4, 0), (101, 5, 0)])
    assert [r["k"] for r in records][-1] == ("noticed" if failed else "gone")
    assert recorder.off, "who waits for workers is no rank"


# ---- the tables


def test_every_hook_has_a_home_and_is_asked_for_by_a_module():
    sys.path.insert(0, str(hooks.__file__).rsplit("/hooks", 1)[0] + "/inject")
    try:
        import _ettrain_boot as boot
    finally:
        del sys.path[0]
    try:
        assert set(boot.HOOKED.values()) == set(hooks._HOME)
        assert set(hooks.PRIVATE) <= set(boot.HOOKED)
        for hook, home in hooks._HOME.items():
            assert callable(getattr(__import__(f"ettrain.record.hooks.{home}", fromlist=["x"]), hook))
    finally:
        del sys.modules["_ettrain_boot"]
