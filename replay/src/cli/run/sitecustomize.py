"""Python runs this file at its start under `millpond-replay run`.

It lets the recording show Python's frames, and moves frameworks to the stack that `--stack` names. Then it
runs the `sitecustomize` that Python would have run without it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _show_frames() -> None:
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

    number = signal.SIGRTMAX - 3
    faulthandler.register(number, file=file, all_threads=False, chain=False)
    library.millpond_run_python_signal(number)


def _use(framework: str, stack: str) -> None:
    """Let a framework allocate from a stack of millpond."""
    import millpond

    if framework == "torch":
        import millpond.torch

        millpond.torch.use(stack)
    elif framework == "cupy":
        import millpond.cupy

        millpond.cupy.use(stack)
    elif framework == "numba.cuda":
        import millpond.numba

        millpond.numba.use(stack)


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `_use` after a framework is imported."""

    def __init__(self, stack: str) -> None:
        self._stack = stack
        self._waiting = {"torch", "cupy", "numba.cuda"}

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._waiting:
            return None
        self._waiting.discard(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        plain, stack = spec.loader.exec_module, self._stack

        def exec_module(module: ModuleType) -> None:
            plain(module)
            try:
                _use(name, stack)
            except Exception as error:  # noqa: BLE001  (the program must run on)
                print(f"millpond run: {name} keeps its own allocator: {error}", file=sys.stderr)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run_next() -> None:
    """Run the `sitecustomize` that this file hides."""
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _show_frames()
    if _stack := os.environ.get("MILLPOND_RUN_STACK"):
        sys.meta_path.insert(0, _Finder(_stack))
except Exception as _error:  # noqa: BLE001  (the program must run on)
    print(f"millpond run: {_error}", file=sys.stderr)
_run_next()
