"""Runs each program of a file in a separate process, because a framework accepts only one allocator."""

import importlib.util
import os
import subprocess
import sys

import pytest


def has_gpu():
    """Return whether CUDA is available. Another process checks this."""
    program = "import millpond, sys; sys.exit(millpond.Device().is_simulated)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def needs(*modules):
    """Skip a file, with the reason, if there is no GPU or a framework is not installed."""
    if not has_gpu():
        pytest.skip("SKIPPED: no GPU", allow_module_level=True)
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"SKIPPED: {module} is not installed", allow_module_level=True)


def run(file, name, *arguments, environment=None):
    """Run a program of a file. Return its output."""
    done = subprocess.run(
        [sys.executable, file, name, *arguments],
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{name}: {done.stdout}\n{done.stderr}"
    sys.stdout.write(done.stdout)
    return done


def main(programs):
    """Run the program that the command line names."""
    import numpy

    # Without this numba-cuda 0.30 compiles no kernel, and NumPy 2.5 no longer has it.
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
    programs[sys.argv[1]](*sys.argv[2:])


def in_use(ordinal=0):
    """Return the bytes in use from a device's default resource."""
    import millpond

    return millpond.mr.get_per_device_resource(ordinal).counts()["bytes_in_use"]
