"""Compiles the C++ bridge between the installed RMM and millpond.

`python -m millpond.rmm_bridge build` compiles the bridge. Then `millpond.rmm.use()` uses it, and RAPIDS calls
libmillpond without the GIL and without Python code. The build needs a C++20 compiler, Cython, and the headers
of RMM and of CUDA's runtime. The environment variable CXX can name the compiler. The environment variable
MILLPOND_RMM_BRIDGE can name the folder for the bridge; the default is the user's cache.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import stat
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

from . import __version__, _library, library_path

_HERE = Path(__file__).parent
_SOURCE = _HERE / "_rmm_resource.pyx"
_MODULE = "_rmm_resource"
#: One header of each required package.
_HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h", "cuda/memory_resource", "rmm/resource_ref.hpp")


def folder() -> Path:
    """Return the folder that holds compiled bridges.

    Returns:
        The folder that MILLPOND_RMM_BRIDGE names, or else `millpond` in the user's cache.

    Example:
        >>> from millpond import rmm_bridge
        >>> isinstance(rmm_bridge.folder().name, str)
        True
    """
    named = os.environ.get("MILLPOND_RMM_BRIDGE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millpond"


def _librmm() -> Path:
    """Return the path of RMM's library in its wheel, or else in the environment's `lib` folder (conda)."""
    spec = importlib.util.find_spec("librmm")
    roots = [] if spec is None else [Path(root) for root in spec.submodule_search_locations or ()]
    places = [root / "lib64" for root in roots] + [Path(sys.prefix) / "lib"]
    for place in places:
        if (place / "librmm.so").exists():
            return place / "librmm.so"
    searched = ", ".join(map(str, places))
    raise RuntimeError(f"librmm.so was not found in {searched}; run: pip install rmm-cu13 (or rmm-cu12)")


def path() -> Path:
    """Return the path of the bridge for the installed RMM. The file may not exist yet.

    The path depends on the versions of RMM, Python and millpond. So a bridge for other versions is never
    loaded.

    Raises:
        ImportError: RMM is not installed.
        RuntimeError: RMM's library is missing.

    Example:
        >>> from millpond import rmm_bridge
        >>> rmm_bridge.path().exists()  # doctest: +SKIP
        False
    """
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    headers = sorted((_HERE / "include").rglob("*.h*"))
    content = hashlib.sha256()
    for file in (_librmm(), _SOURCE, Path(__file__), *headers):
        content.update(file.read_bytes())
    content.update(f"{__version__} {sysconfig.get_config_var('SOABI')}".encode())
    return folder() / f"rmm-{getattr(rmm, '__version__', '')}-{content.hexdigest()[:16]}" / f"{_MODULE}.so"


def _include_folders() -> list[Path]:
    """Return the folders of all headers. Each wheel has its own folder."""
    prefix = Path(sys.prefix)
    librmm = _librmm().parent.parent
    folders = [_HERE / "include", Path(sysconfig.get_path("include"))]
    folders += [librmm / "include", librmm / "include/rapids"]
    # `pip install --user` and `--target` put packages elsewhere, so the folder with librmm comes first.
    sites = [librmm.parent, *(Path(sysconfig.get_path(key)) for key in ("platlib", "purelib"))]
    for site in dict.fromkeys(sites):
        folders.append(site / "rapids_logger/include")
        folders += sorted(site.glob("nvidia/cu*/include"))  # `cu13`, or `cuda_*` for CUDA 12
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            folders.append(Path(os.environ[variable]) / "include")
    folders += [prefix / "targets/x86_64-linux/include", Path("/usr/local/cuda/include")]
    found = [folder for folder in dict.fromkeys(folders) if folder.is_dir()]
    missing = [name for name in _HEADERS if not any((folder / name).exists() for folder in found)]
    if missing:
        raise RuntimeError(f"the headers {', '.join(missing)} were not found: {_advice()}, or set CUDA_HOME")
    return found


def _advice() -> str:
    names = {name.lower() for name in importlib.metadata.packages_distributions().get("rmm", ())}
    if "rmm-cu12" in names:
        return "pip install nvidia-cuda-runtime-cu12 nvidia-cuda-nvcc-cu12"
    return "pip install 'nvidia-cuda-runtime<14' 'nvidia-cuda-crt<14'"


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f"{what} cannot be run ({error}); set CXX to a C++ compiler") from error
    if done.returncode:
        said = (done.stderr or done.stdout)[-4000:]
        raise RuntimeError(f"{what} failed: {shlex.join(command)}\n{said}")


def _limits() -> list[str]:
    """Return the compiler's flags for Python's limited API, if RMM's class is built with it.

    With the limited API, each object holds a reference to its class, and the function that ends the object
    drops this reference. Our class inherits that function from RMM's class. So both classes must be built in
    the same way.
    """
    base = importlib.util.find_spec("rmm.pylibrmm.memory_resource._memory_resource")
    is_limited = base is not None and str(base.origin).endswith(".abi3.so")
    return ["-DPy_LIMITED_API=0x030B0000"] if is_limited else []


def build() -> Path:
    """Compile the bridge for the installed RMM, unless it is already compiled.

    Returns:
        The path of the bridge.

    Raises:
        ImportError: RMM is not installed.
        RuntimeError: Cython, a C++ compiler or a header is missing. The message says what to install.

    Example:
        >>> from millpond import rmm_bridge
        >>> rmm_bridge.build().exists()  # doctest: +SKIP
        True
    """
    made = path()
    if made.exists():
        return made
    if importlib.util.find_spec("Cython") is None:
        raise RuntimeError("Cython is not installed; run: pip install cython")
    includes = [f"-I{folder}" for folder in _include_folders()]
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as work:
        code, library = Path(work) / f"{_MODULE}.cpp", Path(work) / f"{_MODULE}.so"
        _run([sys.executable, "-m", "cython", "-3", "--cplus", str(_SOURCE), "-o", str(code)], "Cython")
        compiler = shlex.split(os.environ.get("CXX") or "c++")
        options = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", *_limits(), *includes]
        # The linker stores the names of both libraries. The process has already loaded them, so the bridge
        # finds them by name.
        libraries = [str(_librmm()), library_path()]
        _run([*compiler, *options, str(code), *libraries, "-o", str(library)], "the C++ compiler")
        library.replace(made)
    return made


def _is_own(file: Path) -> bool:
    """Return whether only this user and root can replace the file."""
    file = file.resolve()
    for place in (file, *file.parents):
        known = place.stat()
        # In a folder with the sticky bit, each user can replace only own files.
        is_open = known.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not known.st_mode & stat.S_ISVTX
        if is_open or known.st_uid not in (0, os.geteuid()):
            return False
    return True


@functools.cache
def _import(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"millpond.{_MODULE}", file)
    assert spec is not None and spec.loader is not None  # Python always has a loader for `.so`
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load() -> ModuleType | None:
    """Return the module of the bridge.

    Returns:
        The module. It is None if the bridge is not compiled. It is also None, with a warning, if the bridge
        cannot be loaded, or if another user can replace it.

    Raises:
        ImportError: RMM is not installed.

    Example:
        >>> from millpond import rmm_bridge
        >>> rmm_bridge.load() is None  # doctest: +SKIP
        True
    """
    try:
        file = path()
        if not file.exists():
            return None
        is_own = _is_own(file)
    except (RuntimeError, OSError):  # RMM's library was not found
        return None
    if not is_own:
        advice = "compile it in a folder of your own, which MILLPOND_RMM_BRIDGE can name"
        warnings.warn(f"another user can replace RMM's bridge {file}; {advice}", stacklevel=3)
        return None
    try:
        return _import(file)
    except (ImportError, OSError, TypeError, ValueError) as error:  # RMM's classes may differ
        advice = f"delete the folder {file.parent}"
        warnings.warn(f"RMM's bridge cannot be loaded ({error}); {advice}", stacklevel=3)
        return None


def main(arguments: list[str]) -> None:
    """Compile the bridge, or print its path (`python -m millpond.rmm_bridge build|show`).

    Args:
        arguments: `["build"]` or `["show"]`.

    Raises:
        SystemExit: The arguments are unknown, or the bridge cannot be compiled.

    Example:
        >>> from millpond import rmm_bridge
        >>> rmm_bridge.main(["show"])  # doctest: +SKIP
    """
    if arguments not in (["build"], ["show"]):
        sys.exit("usage: python -m millpond.rmm_bridge build|show")
    try:
        made = build() if arguments == ["build"] else path()
    except (RuntimeError, ImportError, OSError) as error:
        sys.exit(str(error))
    print(made if made.exists() else f"not compiled: {made}")


if __name__ == "__main__":
    main(sys.argv[1:])
