"""Runs programs without and with `millpond-replay run`, and compares results, times and bytes.

    python run/gpu/measure.py FOLDER

FOLDER has `millpond-replay` and `libmillpond_run.so`. Needs a GPU that no other program uses, and for the
programs PyTorch, JAX, CuPy and nvcc. A program that cannot run is reported and left out.
"""

import csv
import ctypes
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = Path(sys.argv[1]).absolute()
RUN = [str(FOLDER / "millpond-replay"), "run"]
ROUNDS = 3


class Memory:
    """The used bytes of device 0, by NVIDIA's management library."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        assert self._nvml.nvmlInit_v2() == 0
        assert self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device)) == 0

    def used(self) -> int:
        numbers = (ctypes.c_ulonglong * 3)()
        assert self._nvml.nvmlDeviceGetMemoryInfo(self._device, numbers) == 0
        return numbers[2]


def run(command: list[str], memory: Memory, **env: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a command, and return it with the most bytes that it took, sampled every 5 ms."""
    before, most, is_over = memory.used(), [0], threading.Event()

    def sample() -> None:
        while not is_over.is_set():
            most[0] = max(most[0], memory.used() - before)
            time.sleep(0.005)

    sampler = threading.Thread(target=sample)
    sampler.start()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=240)
    is_over.set()
    sampler.join()
    return done, most[0]


def seconds(done: subprocess.CompletedProcess[str]) -> float:
    return next(float(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("loop "))


def recorded(file: Path) -> tuple[int, dict[str, int]]:
    """Return the most live bytes of a recording, and the bytes of each tag at that moment."""
    live, total, most, at_most = {}, 0, 0, {}
    tags: dict[str, int] = {}
    with file.open() as rows:
        for row in csv.DictReader(rows):
            size, tag = int(row["Size"]), row["Tag"]
            if row["Action"] == "allocate":
                live[row["Pointer"]] = (size, tag)
                total, tags[tag] = total + size, tags.get(tag, 0) + size
                if total > most:
                    most, at_most = total, dict(tags)
            elif row["Action"] == "free" and row["Pointer"] in live:
                size, tag = live.pop(row["Pointer"])
                total, tags[tag] = total - size, tags[tag] - size
    return most, {tag: size for tag, size in at_most.items() if size}


def serve(name: str, command: list[str], memory: Memory, **env: str) -> None:
    """Compare a program with and without a stack that serves it."""
    plain, under, took, first_took = [], [], 0, 0
    for _ in range(ROUNDS):
        done, first_took = run(command, memory, **env)
        seen, took = run([*RUN, "--stack", "cuda+pool", "--", *command], memory, **env)
        if done.returncode or seen.returncode:
            print(f"{name} served: {done.returncode} {seen.returncode} {seen.stderr[-800:]}", flush=True)
            return
        plain.append(seconds(done))
        under.append(seconds(seen))
        if seen.stdout != done.stdout:
            print(f"{name} served: differs: {done.stdout[-200:]} {seen.stdout[-200:]}")
    print(
        f"{name} served: time {min(under) / min(plain):.4f} ({min(plain):.4f} s without); "
        f"taken {took / 2**20:.0f} MiB ({first_took / 2**20:.0f} without)",
        flush=True,
    )


def compare(name: str, command: list[str], memory: Memory, **env: str) -> None:
    plain, under, took, rows = [], [], 0, Path(f"/dev/shm/{name}.csv")
    first, first_took = run(command, memory, **env)
    if first.returncode:
        print(f"{name}: cannot run: {first.stderr[-400:]}", flush=True)
        return
    same = True
    for _ in range(ROUNDS):
        done, _ = run(command, memory, **env)
        plain.append(seconds(done))
        seen, took = run([*RUN, "--record", str(rows), "--", *command], memory, **env)
        if seen.returncode != 0:
            print(f"{name}: status {seen.returncode}: {seen.stderr[-800:]}", flush=True)
            return
        under.append(seconds(seen))
        same &= seen.stdout == done.stdout == first.stdout
    bytes_, tags = recorded(rows)
    ratio = statistics.median(u / p for u, p in zip(under, plain, strict=True))
    sizes = {tag: f"{size / 2**20:.0f} MiB" for tag, size in sorted(tags.items(), key=lambda it: -it[1])}
    print(
        f"{name}: equal {same}; time {ratio:.4f} (fastest {min(under) / min(plain):.4f}); "
        f"taken {took / 2**20:.0f} MiB (without {first_took / 2**20:.0f}), "
        f"recorded {bytes_ / 2**20:.0f} MiB ({bytes_ / took:.4f}); {sizes}",
        flush=True,
    )


def main() -> None:
    memory, python = Memory(), sys.executable
    flags = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    lazy = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": flags}
    for kind in ("static", "shared"):
        program = f"/dev/shm/plain_{kind}"
        command = ["nvcc", "-O2", "-g", f"-cudart={kind}", "-o", program, str(HERE / "plain.cu")]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            print(f"plain_{kind}: {built.stderr[-400:]}")
            continue
        compare(f"plain_{kind}", [program], memory)
        serve(f"plain_{kind}", [program], memory)
    compare("torch", [python, str(HERE / "torch_train.py")], memory, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    compare("cupy", [python, str(HERE / "cupy_blas.py")], memory)
    compare("jax", [python, str(HERE / "jax_train.py")], memory, **lazy)
    is_async = {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}
    compare("jax_async", [python, str(HERE / "jax_train.py")], memory, **lazy, **is_async)
    serve("jax", [python, str(HERE / "jax_train.py")], memory, **lazy)
    for program, gibibytes in (("torch_grow.py", 10), ("torch_train.py", 4)):
        command = [*RUN, "--budget", f"{gibibytes}GiB", "--explain", "--", python, str(HERE / program)]
        done, took = run(command, memory)
        limit = gibibytes << 10
        print(
            f"{program} within {limit} MiB: at most {took / 2**20:.1f} MiB, status {done.returncode}",
            flush=True,
        )
        print("\n".join(done.stdout.splitlines()[:14]), flush=True)
        print(done.stderr[-300:], flush=True)


main()
