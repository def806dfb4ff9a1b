"""Runs programs without and with `millpond-replay run`, and compares results, times and bytes.

    python run/gpu/measure.py FOLDER [NAME]...

FOLDER has `millpond-replay` and `libmillpond_run.so`, and in its folder `site` the Python package millpond.
NAME is a name of `MEASUREMENTS`; without names, all are made. Needs GPUs that no other program uses, and for
the programs PyTorch, JAX, CuPy and nvcc. A program that cannot run is reported and left out.
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
    """The used bytes of all devices, by NVIDIA's management library."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint()
        assert self._nvml.nvmlInit_v2() == 0
        assert self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        self._devices = [ctypes.c_void_p() for _ in range(count.value)]
        for number, device in enumerate(self._devices):
            assert self._nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)) == 0

    def used(self) -> int:
        numbers, used = (ctypes.c_ulonglong * 3)(), 0
        for device in self._devices:
            assert self._nvml.nvmlDeviceGetMemoryInfo(device, numbers) == 0
            used += numbers[2]
        return used


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
    """Return the most live bytes of a recording, and the bytes of each tag at that moment.

    The processes of a program write files of their own. Their rows are read in the order of time.
    """
    rows = []
    for part in file.parent.glob(f"{file.stem}.*csv"):
        with part.open() as lines:
            rows += [{**row, "file": part.name} for row in csv.DictReader(lines) if row["UnixNs"]]
    live, total, most, at_most = {}, 0, 0, {}
    tags: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: int(row["UnixNs"])):
        size, tag, block = int(row["Size"]), row["Tag"], (row["file"], row["Pointer"])
        if row["Action"] == "allocate":
            live[block] = (size, tag)
            total, tags[tag] = total + size, tags.get(tag, 0) + size
            if total > most:
                most, at_most = total, dict(tags)
        elif row["Action"] == "free" and block in live:
            size, tag = live.pop(block)
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
    plain, under, took, rows = [], [], 0, Path(f"/dev/shm/record_{name}.csv")
    first, took_without = run(command, memory, **env)
    if first.returncode:
        print(f"{name}: cannot run: {first.stderr[-400:]}", flush=True)
        return
    same = True
    for _ in range(ROUNDS):
        done, plain_took = run(command, memory, **env)
        took_without = max(took_without, plain_took)
        plain.append(seconds(done))
        for old in rows.parent.glob(f"{rows.stem}.*csv"):
            old.unlink()
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
        f"taken {took / 2**20:.0f} MiB (without {took_without / 2**20:.0f}), "
        f"recorded {bytes_ / 2**20:.0f} MiB ({bytes_ / took:.4f}); {sizes}",
        flush=True,
    )


PYTHON = sys.executable


def script(name: str) -> list[str]:
    return [PYTHON, str(HERE / name)]


def plain(memory: Memory) -> None:
    """Compare C++ programs with both forms of CUDA's runtime."""
    for kind in ("static", "shared"):
        program = f"/dev/shm/plain_{kind}"
        command = ["nvcc", "-O2", "-g", f"-cudart={kind}", "-o", program, str(HERE / "plain.cu")]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            print(f"plain_{kind}: {built.stderr[-400:]}")
            continue
        compare(f"plain_{kind}", [program], memory)
        serve(f"plain_{kind}", [program], memory)


def torch(memory: Memory) -> None:
    """Compare a training with PyTorch, which `--stack` serves through the Python package."""
    fixed = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    compare("torch", script("torch_train.py"), memory, **fixed)
    serve("torch", script("torch_train.py"), memory, PYTHONPATH=str(FOLDER / "site"), **fixed)


def cupy(memory: Memory) -> None:
    compare("cupy", script("cupy_blas.py"), memory)
    serve("cupy", script("cupy_blas.py"), memory, PYTHONPATH=str(FOLDER / "site"))


def jax(memory: Memory) -> None:
    """Compare a training with JAX: its own allocator, CUDA's pool, and a stack of millpond."""
    lazy = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    # Without them, the results differ from run to run. A version of XLA ends if it does not know a flag.
    for flags in ("--xla_gpu_exclude_nondeterministic_ops=true", "--xla_gpu_deterministic_ops=true"):
        command = [PYTHON, "-c", "import jax; print(jax.numpy.ones(1))"]
        flags += " --xla_gpu_autotune_level=0"
        done, _ = run(command, memory, XLA_FLAGS=flags, **lazy)
        if done.returncode == 0:
            print(f"jax: XLA_FLAGS={flags}")
            lazy["XLA_FLAGS"] = flags
            break
    is_async = {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}
    compare("jax", script("jax_train.py"), memory, **lazy)
    compare("jax_async", script("jax_train.py"), memory, **lazy, **is_async)
    serve("jax", script("jax_train.py"), memory, **lazy)


def nccl(memory: Memory) -> None:
    """Compare a training on all GPUs, whose processes exchange gradients with NCCL."""
    fixed = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_NVLS_ENABLE": "0"}
    compare("nccl", script("nccl_train.py"), memory, **fixed)
    serve("nccl", script("nccl_train.py"), memory, **fixed)


def budget(memory: Memory) -> None:
    """Limit programs that want more, and one that does not."""
    for program, gibibytes in (("torch_grow.py", 10), ("torch_train.py", 4)):
        command = [*RUN, "--budget", f"{gibibytes}GiB", "--explain", "--", *script(program)]
        done, took = run(command, memory)
        limit = gibibytes << 10
        print(
            f"{program} within {limit} MiB: at most {took / 2**20:.1f} MiB, status {done.returncode}",
            flush=True,
        )
        print("\n".join(done.stdout.splitlines()[:14]), flush=True)
        print(done.stderr[-300:], flush=True)


MEASUREMENTS = {each.__name__: each for each in (plain, torch, cupy, jax, nccl, budget)}

for measurement in sys.argv[2:] or MEASUREMENTS:
    MEASUREMENTS[measurement](Memory())
