"""The history of memory on threads that another library started."""

import os
import shutil
import subprocess
import sys

import pytest

import millpond

SOURCE = """
#include <millpond.h>
#include <pthread.h>

static void *taken;

static void *take(void *device) {
    taken = millpond_malloc(1000, *(int *)device, 0);
    return 0;
}

void *take_on_a_thread(int device) {
    pthread_t thread;
    if (pthread_create(&thread, 0, take, &device) || pthread_join(thread, 0))
        return 0;
    return taken;
}
"""

PROGRAM = """
import ctypes, sys
import millpond

millpond.record_memory_history(stacks="all")
device = millpond.Device("sim:1GiB")
pool = millpond.stack("cuda+pool", device=device)
millpond.mr.set_per_device_resource(device, pool)
user = ctypes.PyDLL(sys.argv[1])
user.take_on_a_thread.restype = ctypes.c_void_p
assert user.take_on_a_thread(device.ordinal)
events = millpond.memory_snapshot(resource=pool)["device_traces"][device.ordinal]
print([entry.get("frames", []) for entry in events if entry["action"] == "alloc"])
"""


def test_a_thread_without_python_allocates_while_another_thread_waits_for_it_with_the_gil(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("SKIPPED: there is no C compiler")
    source, library = tmp_path / "user.c", tmp_path / "user.so"
    source.write_text(SOURCE)
    files = [f"-I{millpond.get_include()}", source, millpond.library_path(), "-o", library]
    subprocess.run([compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", *files], check=True)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", PROGRAM, library]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (told.returncode, told.stdout) == (0, "[[]]\n"), told.stderr
