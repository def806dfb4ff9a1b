#!/usr/bin/env python3
"""Runs numba-cuda's own memory tests over memory managers of this folder, on a GPU.

Needs numba-cuda, pytest, filecheck, and libmillpond_numba.so in the folder of this
file for millpond_numba, or CuPy for cupy_numba. Prints a line for each phase and the failed tests. The exit
code is 0 if all tests passed. With --baseline the same tests also run over Numba's own manager; a failure
there is not the other managers' fault.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
TESTS = "numba.cuda.tests"
# This test's child processes give up after some seconds, so it runs alone.
ALONE = [f"{TESTS}.cudapy.test_ipc"]
MEMORY = [
    f"{TESTS}.cudadrv",
    f"{TESTS}.nrt",
    *(
        f"{TESTS}.cudapy.test_{name}"
        for name in (
            "array cuda_array_interface device_array_capture multigpu multithreads multiprocessing "
            "stream_api retrieve_autoconverted_arrays reduction transpose gufunc gufunc_scalar "
            "gufunc_scheduling"
        ).split()
    ),
]
# These tests fill managed memory, which no plug-in manages, up to the device's capacity.
LEFT_OUT = "not subscribe"

# Set-up that the suite's own configuration provides, which is not in the wheel. It also proves that memory
# came from the chosen manager.
PLUGIN = '''
import json, os, pytest

def pytest_addoption(parser):
    parser.addoption("--dump-failed-filechecks", action="store_true")

@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = request.config.getoption("dump_failed_filechecks")

calls = 0

def pytest_configure(config):
    from numba.cuda.cudadrv import driver
    driver._ensure_memory_manager()
    manager = driver._memory_manager
    original = manager.memalloc
    def counted(self, size):
        global calls
        calls += 1
        return original(self, size)
    manager.memalloc = counted

def pytest_sessionfinish(session):
    from numba.cuda.cudadrv import driver
    with open(os.environ["MILLPOND_SUITE_PROOF"], "w") as file:
        json.dump({"manager": driver._memory_manager.__name__, "calls": calls}, file)
'''
# The tests are in a package that is laid over numba's own.
CONFIGURATION = """
[pytest]
consider_namespace_packages = true
"""
# For child processes as well. NumPy 2.5 no longer has row_stack, which numba-cuda needs up to 0.30.
SITE = '''
try:
    import numpy
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
except ImportError:
    pass
'''


def outcomes(path):
    """Counts each outcome, and lists the failures."""
    counts, failed = dict.fromkeys(("passed", "failed", "skipped"), 0), []
    for case in xml.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[outcome] += 1
        if outcome == "failed":
            failed.append(f"{case.get('classname')}.{case.get('name')}")
    return counts, failed


def phase(name, manager, modules, options, folder):
    """Runs pytest in a separate process. Returns whether all tests passed."""
    report, proof = (folder / f"{name}.{kind}" for kind in ("xml", "json"))
    log = options.out / f"numba-{name}.log"
    paths = [str(folder), str(HERE), str(HERE / "site"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NUMBA_CUDA_MEMORY_MANAGER": manager,
        "MILLPOND_SUITE_PROOF": str(proof),
    }
    pytest = [sys.executable, "-W", "ignore", "-m", "pytest", "-p", "millpond_suite"]
    pytest += ["-p", "no:cacheprovider"]
    flags = ["-q", "--tb=short", "-k", LEFT_OUT, f"--junitxml={report}", f"--rootdir={folder}"]
    flags += ["--pyargs", "-c", f"{folder}/pytest.ini", "--continue-on-collection-errors"]
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as file:
        command = [*pytest, *flags, *modules]
        try:
            output = {"stdout": file, "stderr": subprocess.STDOUT, "cwd": folder}
            subprocess.run(command, env=environment, timeout=options.seconds, check=False, **output)
        except subprocess.TimeoutExpired:
            file.write(f"\nended after {options.seconds} s\n")
    seconds = time.monotonic() - start
    if not (report.exists() and proof.exists()):
        print(f"{name}: no report after {seconds:.0f} s; the end of {log}:")
        print(*log.read_text(encoding="utf-8").splitlines()[-15:], sep="\n")
        return False
    counts, failed = outcomes(report)
    seen = json.loads(proof.read_text(encoding="utf-8"))
    numbers = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    served = f"{seen['calls']} allocations from {seen['manager']}"
    print(f"{name}: {numbers}; {served}; {seconds:.0f} s", flush=True)
    for test in failed:
        print(f"  failed: {test}")
    return counts["passed"] > 0 and not failed and seen["calls"] > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = "the module of a manager (millpond_numba); repeatable"
    parser.add_argument("--manager", action="append", metavar="NAME", help=which)
    parser.add_argument("--baseline", action="store_true", help="run them over Numba's own manager, too")
    parser.add_argument("--whole", action="store_true", help="run all of its tests")
    parser.add_argument("--seconds", type=float, default=150, help="the longest that a phase may take")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="where logs go")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    managers = {name.removesuffix("_numba"): name for name in options.manager or ["millpond_numba"]}
    if options.baseline:
        managers["numba"] = "default"
    fine = True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "millpond_suite.py").write_text(PLUGIN, encoding="utf-8")
        (folder / "pytest.ini").write_text(CONFIGURATION, encoding="utf-8")
        (folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")
        for label, manager in managers.items():
            memory = [TESTS] if options.whole else MEMORY
            both = [phase(f"{label}-ipc", manager, ALONE, options, folder)]
            both.append(phase(f"{label}-memory", manager, memory, options, folder))
            fine = fine and (all(both) or manager == "default")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
