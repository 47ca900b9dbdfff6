"""Found first on PYTHONPATH by every Python process below `ett run`. Enters the recorder, takes its own folder out of the
path again, and runs the sitecustomize it hides, if there is one. Must run on any Python 3.8+ and import nothing."""
import os
import sys


def _enter():
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        import _ettrain_boot
    except Exception:
        _ettrain_boot = None
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    if _ettrain_boot is not None:
        try:
            _ettrain_boot.boot()
        except Exception as error:
            sys.stderr.write("ettrain: not recording this process (%r)\n" % (error,))


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
_chain()
