"""Python runs this file at its start under `millpond-replay run`.

It lets the recording show Python's frames, and moves frameworks to the stack that `--stack` names. Then it
runs the `sitecustomize` that Python would have run without it. It has no syntax that old versions lack.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _say(what):
    sys.stderr.write("millpond run: " + str(what) + "\n")


def _show_frames():
    """Let `faulthandler` print frames into the library's file, at a signal that the library sends."""
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "millpond_run_python_file"):
        return  # this process was started without the library
    file = library.millpond_run_python_file()
    if file < 0:
        return
    import faulthandler
    import signal

    number = int(signal.SIGRTMAX) - 3
    faulthandler.register(number, file=file, all_threads=False, chain=False)
    library.millpond_run_python_signal(number)


def _use(framework, stack):
    """Let a framework allocate from a stack of millpond."""
    import importlib

    module = importlib.import_module("millpond." + framework.split(".")[0])
    module.use(stack)


class _Finder(object):
    """Calls `_use` after a framework is imported."""

    def __init__(self, stack):
        self._stack = stack
        self._waiting = {"torch", "cupy", "numba.cuda"}

    def find_spec(self, name, path=None, target=None):
        if name not in self._waiting:
            return None
        self._waiting.discard(name)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        plain, stack = spec.loader.exec_module, self._stack

        def exec_module(module):
            plain(module)
            try:
                _use(name, stack)
            except Exception as error:  # the program must run on
                _say(name + " keeps its own allocator: " + str(error))

        spec.loader.exec_module = exec_module
        return spec


def _run_next():
    """Run the `sitecustomize` that this file hides."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _FOLDER]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if "sitecustomize" not in str(error):
            raise
        sys.modules["sitecustomize"] = own


try:
    if sys.version_info >= (3, 5):
        _show_frames()
        if os.environ.get("MILLPOND_RUN_STACK"):
            sys.meta_path.insert(0, _Finder(os.environ["MILLPOND_RUN_STACK"]))
except Exception as _error:  # the program must run on
    _say(_error)
_run_next()
