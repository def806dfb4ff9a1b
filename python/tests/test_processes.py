"""Threads, forked children and the end of the interpreter: no deadlock, no message, no leak."""

import itertools
import os
import random
import subprocess
import sys
import threading
import time

import pytest

import millpond
from millpond import mr


def script(text, **environment):
    """Run a program, and return its output. It must not write to stderr."""
    answer = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout.strip()


#: The seconds for which the threads of `test_threads` run. Without it each thread takes 600 steps.
SECONDS = float(os.environ.get("MILLPOND_THREAD_SECONDS", "0"))


@pytest.mark.parametrize("stack", ["cuda+pool+statistics", "cuda_async+statistics"])
def test_threads(stack):
    resource = millpond.stack(stack)
    mr.set_current_device_resource(resource)
    failures, end = [], time.monotonic() + SECONDS

    def work(seed):
        choose, kept, stream = random.Random(seed), [], millpond.Stream()
        try:
            steps = itertools.count()
            while next(steps) < 600 or time.monotonic() < end:
                if kept and choose.random() < 0.5:
                    kept.pop(choose.randrange(len(kept)))
                else:
                    kept.append(millpond.DeviceBuffer(size=choose.randrange(1 << 16), stream=stream))
                    del kept[:-1000]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    counts = resource.allocation_counts
    assert (counts.current_bytes, counts.current_count) == (0, 0) and counts.total_count > 0


def test_threads_with_callbacks():
    base, lock = mr.CudaMemoryResource(), threading.Lock()

    def allocate(size, stream):
        with lock:
            return base.allocate(size, stream)

    pool = mr.PoolMemoryResource(
        mr.CallbackMemoryResource(allocate, lambda ptr, size, stream: base.deallocate(ptr, size, stream)),
        "1MiB",
    )

    def work():
        for size in range(1, 100):
            millpond.DeviceBuffer(size=size << 12, mr=pool)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert pool.counts()["bytes_in_use"] == 0


def test_the_end_of_the_interpreter():
    for keep in [
        "buffer = make()",
        "import builtins; builtins.kept = make()",
        "cycle = [make()]; cycle.append(cycle)",
    ]:
        assert (
            script(
                "import millpond, sys\n"
                "millpond.reinitialize(stack='cuda+pool+statistics')\n"
                "def make():\n"
                "    stream = millpond.Stream()\n"
                "    other = millpond.from_dlpack(millpond.to_device(b'd'))\n"
                "    return [millpond.to_device(b'abc', stream), other]\n"
                f"{keep}\n"
                "print('end')"
            )
            == "end"
        )


def test_the_end_with_callbacks_and_threads():
    assert (
        script(
            "import millpond, threading, time\n"
            "mr = millpond.mr\n"
            "base = mr.CudaMemoryResource()\n"
            "own = mr.CallbackMemoryResource(base.allocate, base.deallocate)\n"
            "mr.set_current_device_resource(mr.FailureCallbackResourceAdaptor(own, lambda n: False))\n"
            "kept = [millpond.DeviceBuffer(size=100) for _ in range(10)]\n"
            "def work():\n"
            "    while True: millpond.DeviceBuffer(size=100)\n"
            "for _ in range(4): threading.Thread(target=work, daemon=True).start()\n"
            "time.sleep(0.2)\n"
            "print('end')"
        )
        == "end"
    )


def test_a_forked_child_leaves_the_parents_memory_alone():
    assert (
        script(
            "import millpond, os, sys, warnings\n"
            # CUDA's own threads make Python 3.12 and later warn at a fork.
            "warnings.filterwarnings('ignore', '.*multi-threaded', DeprecationWarning)\n"
            "millpond.reinitialize(stack='cuda+pool+statistics')\n"
            "buffers = [millpond.to_device(bytes([i]) * 100, millpond.Stream()) for i in range(20)]\n"
            "capsule = buffers[0].__dlpack__()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    del buffers, capsule\n"
            "    try: millpond.mr.reset_per_device_resource(None)\n"
            "    except millpond.MillpondError: pass  # CUDA cannot be used in a child\n"
            "    sys.exit(0)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "assert all(b.tobytes() == bytes([i]) * 100 for i, b in enumerate(buffers))\n"
            "counts = millpond.mr.get_current_device_resource().allocation_counts\n"
            "assert counts.current_count == 20, counts\n"
            "print('end')"
        )
        == "end"
    )


def test_the_stack_of_the_environment():
    assert (
        script(
            "import millpond; print(millpond.mr.get_current_device_resource().text)",
            MILLPOND_STACK="cuda+pool:initial=1MiB+statistics",
        )
        == "cuda+pool:initial=1MiB+statistics"
    )


def test_the_stack_of_the_environment_is_not_built_to_be_replaced(tmp_path):
    file = tmp_path / "log.csv"
    program = (
        "import millpond\n"
        "millpond.mr.set_current_device_resource(millpond.mr.CudaMemoryResource())\n"
        "print(millpond.mr.get_current_device_resource().text)"
    )
    assert script(program, MILLPOND_STACK=f'cuda+logging:file="{file}"') == "cuda" and not file.exists()


def test_a_device_of_the_environment():
    if not millpond.Device().is_simulated:
        pytest.skip("MILLPOND_DEVICE is for machines without CUDA")
    assert script(
        "import millpond; print(millpond.Device().memory_info()[1])", MILLPOND_DEVICE="sim:8GiB"
    ) == str(8 << 30)


def test_a_device_of_the_environment_that_cannot_be_made_is_named():
    if not millpond.Device().is_simulated:
        pytest.skip("MILLPOND_DEVICE is for machines without CUDA")
    program = (
        "import millpond\n"
        "try: millpond.Device()\n"
        "except millpond.InvalidArgumentError as error: print(error)\n"
    )
    assert "MILLPOND_DEVICE: `sim:foo` is not a device" in script(program, MILLPOND_DEVICE="sim:foo")
    assert script("import millpond; print(millpond.Device().is_simulated)", MILLPOND_DEVICE="") == "True"


def test_frameworks_are_imported_when_they_are_used():
    program = (
        "import millpond, sys\n"
        "assert not any(name in sys.modules for name in ('millpond.cupy', 'millpond.torch'))\n"
        "print(millpond.torch.__name__, callable(millpond.cupy.use), 'numba' in dir(millpond))\n"
        "try: millpond.no_such\n"
        "except AttributeError as error: print(error)\n"
    )
    said = "millpond.torch True True\nmodule 'millpond' has no attribute 'no_such'"
    assert script(program) == said


def test_a_library_that_is_not_there_is_named():
    answer = subprocess.run(
        [sys.executable, "-c", "import millpond"],
        capture_output=True,
        text=True,
        env={**os.environ, "MILLPOND_LIBRARY": "/nowhere/libmillpond.so"},
    )
    assert answer.returncode == 1 and "ImportError: /nowhere/libmillpond.so" in answer.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the path is Linux's")
def test_a_library_that_is_another_one_is_named():
    libc = next(line.split()[-1] for line in open("/proc/self/maps") if "/libc.so" in line)
    answer = subprocess.run(
        [sys.executable, "-c", "import millpond"],
        capture_output=True,
        text=True,
        env={**os.environ, "MILLPOND_LIBRARY": libc},
    )
    assert answer.returncode == 1 and f"ImportError: {libc} is not libmillpond" in answer.stderr


@pytest.mark.parametrize("module", ["millpond.replay", "millpond"])
def test_replay_is_found(tmp_path, module):
    binary = tmp_path / "replay"
    binary.write_text('#!/bin/sh\necho replayed "$@", $MILLPOND_RUN_PYTHON\n')
    binary.chmod(0o755)
    answer = subprocess.run(
        [sys.executable, "-m", module, "run", "--explain", "train.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "MILLPOND_REPLAY": str(binary)},
    )
    python = sys.executable if module == "millpond" else ""
    assert answer.stdout.strip() == f"replayed run --explain train.py, {python}".strip()
