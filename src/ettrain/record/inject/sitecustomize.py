"""Found first on PYTHONPATH by every Python process below `ett run`. Takes its own folder out of the path again, enters the
recorder, and runs the sitecustomize it hides, if there is one. Must be harmless in any Python, and import nothing."""
import os
import sys


def _enter():
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        if sys.version_info >= (3, 11):
            import _ettrain_boot

            _ettrain_boot.boot()
    except Exception as error:  # noqa: BLE001 - nothing of ours may break a process
        sys.stderr.write("ettrain: not recording this process (%r)\n" % (error,))
    finally:
        sys.path[:] = [path for path in sys.path if path != here]


def _chain():
    # Only frozen modules, which every interpreter has loaded: importlib.util alone would cost 7 ms of CPU in every process.
    import _frozen_importlib
    import _frozen_importlib_external

    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        module = _frozen_importlib.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_enter()
if sys.version_info >= (3, 5):
    _chain()
