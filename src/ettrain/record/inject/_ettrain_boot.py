"""Stage 0 of the recorder: runs in every Python process below `ett run` before anything else, and costs well under a
millisecond. It times outermost imports and, when torch is imported, loads `ettrain.record` to hook torch's leaf modules
right after each was executed, so that every later `from torch import ...` sees the hooked function.

Python 3.8+ syntax; imports sys, os and time only. Not here: anything that knows torch.
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
    "multiprocessing.forkserver",
    "multiprocessing.semaphore_tracker",
    "torch._inductor.compile_worker",
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
    "torch.nn.parallel.distributed": "on_ddp",
    "torch.distributed.fsdp._fully_shard._fully_shard": "on_fully_shard",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "on_fsdp",
    "torch.distributed.checkpoint.state_dict_saver": "on_dcp_save",
    "torch.distributed.checkpoint.state_dict_loader": "on_dcp_load",
    "torch.distributed.elastic.multiprocessing.api": "on_elastic",
    "torch._dynamo.callback": "on_dynamo_callback",
    "torch._dynamo.trace_rules": "on_trace_rules",
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


class _State:
    depth = 0


class Finder:
    """First on sys.meta_path; finds nothing itself, but brackets what the others find."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        hook = HOOKED.get(name)
        if hook is None and (_State.depth or _thread.get_ident() != MAIN):
            return None
        for finder in sys.meta_path:
            if finder is Finder:
                continue
            find = getattr(finder, "find_spec", None)
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
        except AttributeError:
            pass
        return spec


def _bracket(loader, execute, name, hook):
    def exec_module(module):
        try:
            del loader.exec_module  # the loader is as it was before: same type, same methods
        except AttributeError:
            pass
        outermost = not _State.depth and _thread.get_ident() == MAIN
        hooks = _load_hooks() if hook is not None else None
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
            hooks.run(hook, module)

    return exec_module


def _note(name, begin, end):
    if end - begin < SHORT_NS:
        return
    if sink is not None:
        sink(name, begin, end)
    elif len(imports) < 4096:
        imports.append((name, begin, end))


def _load_hooks():
    try:
        _load_package()
        import ettrain.record.hooks as hooks

        return hooks
    except Exception as error:
        if not _State.__dict__.get("said"):
            _State.said = True
            sys.stderr.write("ettrain: not recording this process (%r)\n" % (error,))
        return None


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


def boot():
    """Enter this process, unless it is a helper, has no job, or runs a Python that the recorder does not know."""
    if "ETT_JOB_DIR" not in os.environ or "ETT_HOME" not in os.environ or sys.version_info < (3, 11):
        return
    words = getattr(sys, "orig_argv", [])[1:5]
    if any(helper in word for word in words for helper in HELPERS):
        return
    sys.meta_path.insert(0, Finder)
