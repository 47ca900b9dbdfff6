"""Stage 0 of the recorder: runs in every Python process below `ett run` before anything else, and costs well under a
millisecond. It times outermost imports and, when torch is imported, loads `ettrain.record` to hook torch's leaf modules
right after each was executed, so that every later `from torch import ...` sees the hooked function.

Imports sys, os and time only. Not here: anything that knows torch.
"""
import _thread
import os
import sys
import time

ENTERED = time.monotonic_ns()
MAIN = _thread.get_ident()
SHORT_NS = 1000000
"""Imports shorter than this are not worth a record."""

HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "torch._inductor.compile_worker",
    "torch/_inductor/compile_worker/",
    "torch/_inductor/__autotune_main__",
)
"""Processes that never train: left alone entirely."""

HOOKED = {
    "torch": "on_torch",
    "torch.serialization": "on_serialization",
    "torch.autograd": "on_autograd",
    "torch.optim.optimizer": "on_optimizer",
    "torch.nn.modules.module": "on_module",
    "torch.amp.grad_scaler": "on_grad_scaler",
    "torch.cuda": "on_cuda",
    "torch.utils.data.dataloader": "on_dataloader",
    "torch.distributed.distributed_c10d": "on_c10d",
    "torch.distributed.utils": "on_distributed_utils",
    "torch.distributed._functional_collectives": "on_functional",
    "torch.nn.parallel.distributed": "on_ddp",
    "torch.distributed.fsdp._fully_shard._fully_shard": "on_fully_shard",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "on_fsdp",
    "torch.distributed.checkpoint.state_dict_saver": "on_dcp_save",
    "torch.distributed.checkpoint.state_dict_loader": "on_dcp_load",
    "torch.distributed.checkpoint._async_process_executor": "on_dcp_process",
    "torch.distributed.elastic.multiprocessing.api": "on_elastic",
    "torch._dynamo.callback": "on_dynamo_callback",
    "torch._dynamo.utils": "on_dynamo_utils",
    "torch._dynamo.eval_frame": "on_eval_frame",
    "torch._dynamo.trace_rules": "on_trace_rules",
    "torch._dynamo.pgo": "on_pgo",
    "torch._inductor.select_algorithm": "on_select_algorithm",
    "triton.runtime.autotuner": "on_triton_autotuner",
    "torchrec.distributed.model_parallel": "on_torchrec",
    "torchdata.stateful_dataloader.stateful_dataloader": "on_stateful_dataloader",
    "safetensors.torch": "on_safetensors",
    "transformers.trainer_callback": "on_transformers",
}
"""Leaf module -> function of `ettrain.record.hooks` that is called with it right after it was executed."""

imports = []
"""(module, begin, end) of imports on the main thread, until a recorder takes them."""
sink = None
"""Set by the recorder: called with (module, begin, end) from then on."""
before = None
"""The excepthook that `failed` stands in for."""


class _State:
    depth = 0
    hooking = set()
    said = False


class Finder:
    """First on sys.meta_path; finds nothing itself, but brackets what those behind it find."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        hook = HOOKED.get(name)
        if hook is None and (_State.depth or _thread.get_ident() != MAIN):
            return None
        behind = False
        for finder in list(sys.meta_path):
            if finder is Finder:
                behind = True
                continue
            find = getattr(finder, "find_spec", None) if behind else None
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is None or isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return spec
        try:
            loader.exec_module = _bracket(loader, loader.exec_module, name, hook)
        except Exception:  # noqa: BLE001 - a loader that takes no attributes is left as it is
            pass
        return spec


def _bracket(loader, execute, name, hook):
    def exec_module(module):
        try:
            del loader.exec_module  # the loader is as it was before: same type, same methods
        except AttributeError:
            pass
        outermost = not _State.depth and _thread.get_ident() == MAIN
        hooks = None
        if hook is not None and name not in _State.hooking and module.__name__ == name:
            hooks = _load_hooks()
            _State.hooking.add(name)
        begin = time.monotonic_ns()
        if outermost:
            _State.depth = 1
        try:
            execute(module)
        finally:
            if outermost:
                _State.depth = 0
            if outermost or name == "torch":
                _note(name, begin, time.monotonic_ns())
            if hooks is not None:
                _State.hooking.discard(name)
        if hooks is not None:
            hooks.run(hook, module)
            _boost(module)

    return exec_module


def _boost(module):
    """Let what `ett run` was asked to improve take hold of the module."""
    if "ETT_BOOST" not in os.environ:
        return
    try:
        from ettrain.boost import entry
    except Exception as error:  # noqa: BLE001 - nothing of ours may break a process
        if not _State.said:
            _State.said = True
            sys.stderr.write("ettrain: nothing is improved in this process (%r)\n" % (error,))
        return
    entry.run(module)


def _note(name, begin, end):
    if end - begin < SHORT_NS:
        return
    if sink is not None:
        sink(name, begin, end)
    elif len(imports) < 4096:
        imports.append((name, begin, end))


def _load_hooks():
    """The hooks, or None where they cannot be loaded; that is said once."""
    begin = time.monotonic_ns() if "ettrain.record.hooks" not in sys.modules and not _State.depth and _thread.get_ident() == MAIN else 0
    if begin:
        _State.depth = 1
    try:
        _load_package()
        from ettrain.record import hooks

        return hooks
    except Exception as error:  # noqa: BLE001 - nothing of ours may break a process
        if not _State.said:
            _State.said = True
            sys.stderr.write("ettrain: not recording this process (%r)\n" % (error,))
        return None
    finally:
        if begin:
            _State.depth = 0
            _note("ettrain", begin, time.monotonic_ns())


def _load_package():
    """Make `import ettrain` work where it is not installed, without a change of sys.path."""
    if "ettrain" in sys.modules:
        return
    import _frozen_importlib
    import _frozen_importlib_external as external

    home = os.environ["ETT_HOME"]
    init = os.path.join(home, "__init__.py")
    spec = external.spec_from_file_location("ettrain", init, submodule_search_locations=[home])
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["ettrain"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["ettrain"]
        raise


def failed(kind, error, trace):
    """An exception leaves the program, and torch was never imported: the recorder is loaded to write down why the process fails."""
    hooks = None if kind is KeyboardInterrupt else _load_hooks()  # to load a module makes Python forget that it was interrupted
    if hooks is not None:
        hooks.failed(error)
    before(kind, error, trace)


def boot():
    """Enter this process, unless it is a helper or has no job."""
    global before
    if "ETT_JOB_DIR" not in os.environ or "ETT_HOME" not in os.environ or Finder in sys.meta_path:
        return
    words = getattr(sys, "orig_argv", [])[1:5]
    if any(helper in word for word in words for helper in HELPERS):
        return
    sys.meta_path.insert(0, Finder)
    if "RANK" in os.environ or str(os.getppid()) == os.environ.get("ETT_SUPERVISOR_PID"):
        before = sys.excepthook
        sys.excepthook = failed
    for name, hook in HOOKED.items():
        if name in sys.modules:  # some .pth file imported torch before us: better late than never
            hooks = _load_hooks()
            if hooks is not None:
                hooks.run(hook, sys.modules[name])
                _boost(sys.modules[name])
