"""Measures an allocation and its free in Python, with millpond and with the libraries' own allocators.

python python/benches/frameworks.py [--calls 20000] [--rounds 11] [--json FILE] [PART ...]

Each part runs in separate processes, because PyTorch accepts an allocator only once. Times are nanoseconds
for one allocation and its free: the median of the rounds. A floor is an allocator that returns a fixed
address. If a part's package or GPU is missing, the part is skipped with a message.
"""

import argparse
import ctypes
import itertools
import json
import os
import statistics
import subprocess
import sys
import time

SIZES = (256, 64 << 10, 1 << 20, 64 << 20)
#: The number of turns of a part's processes, if its allocators cannot share a process.
TURNS = 3
#: A new pool has 2 MiB and does not cache a 1 MiB block, which then takes about 600 ns more.
STACK = "cuda+pool:initial=64MiB"
SKIPPED = 77


def skip(why):
    """End a part that cannot run."""
    print(why, file=sys.stderr)
    sys.exit(SKIPPED)


def needs_gpu():
    """Skip the part if the machine has no GPU."""
    import millpond

    if millpond.Device().is_simulated:
        skip("the machine has no GPU")


def imported(name):
    """Import a package, or skip the part."""
    try:
        return __import__(name)
    except ImportError as error:
        return skip(f"{name} cannot be imported: {error}")


def nanoseconds(call, calls):
    """Return the mean time of a call. The results are dropped."""
    start = time.perf_counter_ns()
    for _ in itertools.repeat(None, calls):
        call()
    return (time.perf_counter_ns() - start) / calls


def in_turns(options, candidates):
    """Measure each candidate at each size in turn. A candidate maps a size to a call."""
    times = {name: {size: [] for size in SIZES} for name in candidates}
    for size in SIZES:
        for _ in range(options.rounds):
            for name, prepare in candidates.items():
                call = prepare(size)
                for _ in range(10):
                    call()
                times[name][size].append(nanoseconds(call, options.calls))
    return times


# --- The parts: each returns the times of all rounds, by candidate and size ---


def buffer(options):
    """Measure `DeviceBuffer(size=n)` of millpond and of RMM."""
    import millpond

    stack = millpond.stack("cuda+pool:initial=1GiB")
    millpond.mr.set_current_device_resource(stack)
    candidates = {"millpond": lambda size: lambda: millpond.DeviceBuffer(size=size)}
    try:
        import rmm
    except ImportError:
        print("RMM is not measured, because rmm is not installed", file=sys.stderr)
    else:
        if millpond.Device().is_simulated:
            print("RMM is not measured, because the machine has no GPU", file=sys.stderr)
        else:
            pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 30)
            rmm.mr.set_current_device_resource(pool)
            candidates["rmm"] = lambda size: lambda: rmm.DeviceBuffer(size=size)
    times = in_turns(options, candidates)
    assert stack.counts()["allocations"] >= options.calls * options.rounds
    return times


def history(options):
    """Measure `DeviceBuffer(size=n)` while the history is off, and on with each kind of stacks."""
    import millpond

    millpond.mr.set_current_device_resource(millpond.stack("cuda+pool:initial=1GiB"))

    def prepare(stacks, size):
        millpond.stop_memory_history()
        if stacks != "history off":
            millpond.record_memory_history(stacks=stacks)
        return lambda: _in_frames(20, size)

    # As in a program, 20 frames are below the allocation.
    def _in_frames(frames, size):
        return millpond.DeviceBuffer(size=size) if frames == 0 else _in_frames(frames - 1, size)

    kinds = ("history off", "off", "allocations", "all")
    return in_turns(options, {it: lambda size, it=it: prepare(it, size) for it in kinds})


def _returns_its_first_argument():
    """Return the address of `memmove`: with a third argument of 0, it only returns its first argument."""
    return ctypes.cast(ctypes.CDLL(None).memmove, ctypes.c_void_p).value


def cupy(options):
    """Measure `cupy.empty(n)` with millpond, CuPy's own pool and the floor."""
    needs_gpu()
    cp = imported("cupy")
    import millpond
    import millpond.cupy

    own = cp.cuda.MemoryPool().malloc
    millpond.cupy.use(STACK)
    # For device 0, `memmove(address, size, device)` copies nothing and returns the address.
    function = _returns_its_first_argument()
    floor = cp.cuda.memory.CFunctionAllocator(1 << 21, function, function, None).malloc
    allocators = {"millpond": cp.cuda.memory.get_allocator(), "cupy": own, "floor": floor}

    def prepare(allocator, size):
        cp.cuda.set_allocator(allocator)
        empty, kind = cp.empty, cp.uint8
        return lambda: empty(size, kind)

    times = in_turns(
        options,
        {name: lambda size, it=it: prepare(it, size) for name, it in allocators.items()},
    )
    served = millpond.mr.get_current_device_resource().counts()["allocations"]
    assert served >= options.calls * options.rounds * len(SIZES), served
    return times


def _torch(options, name):
    torch = imported("torch")
    device, kind, empty = torch.device("cuda", 0), torch.uint8, torch.empty

    def prepare(size):
        return lambda: empty(size, dtype=kind, device=device)

    return in_turns(options, {name: prepare})


def torch_own(options):
    """Measure `torch.empty(n)` with PyTorch's own allocator."""
    needs_gpu()
    return _torch(options, "torch")


def torch_millpond(options):
    """Measure the same with millpond's process-wide mode."""
    needs_gpu()
    imported("torch")
    import millpond
    import millpond.torch

    millpond.torch.use(STACK)
    times = _torch(options, "millpond")
    served = millpond.mr.get_current_device_resource().counts()["allocations"]
    assert served >= options.calls * options.rounds * len(SIZES), served
    return times


def torch_floor(options):
    """Measure the same with an allocator that returns the size as the address."""
    needs_gpu()
    torch = imported("torch")
    # On the default stream, `memmove(size, device, stream)` copies nothing and returns the size.
    library = "libc.so.6"
    made = torch.cuda.memory.CUDAPluggableAllocator(library, "memmove", "memmove")
    torch.cuda.memory.change_current_allocator(made)
    return _torch(options, "floor")


PARTS = {
    "buffer": [buffer],
    "history": [history],
    "cupy": [cupy],
    "torch": [torch_own, torch_millpond, torch_floor],
}
FUNCTIONS = {function.__name__: function for functions in PARTS.values() for function in functions}


# --- The runner ---


def run(function, options):
    """Run one function of a part in a separate process. Return its times, or None if it is skipped."""
    command = [sys.executable, __file__, "--function", function.__name__]
    command += ["--calls", str(options.calls), "--rounds", str(options.rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stderr.splitlines():
        print(f"# {function.__name__}: {line}", file=sys.stderr)
    if done.returncode == SKIPPED:
        print(f"SKIPPED: {function.__name__}: {done.stderr.strip().splitlines()[-1]}")
        return None
    if done.returncode:
        sys.exit(f"{function.__name__} failed with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(part, options):
    """Return the median time of each candidate of a part, by size."""
    rounds = {}
    functions = PARTS[part]
    for _ in range(TURNS if len(functions) > 1 else 1):
        for function in list(functions):
            times = run(function, options)
            if times is None:
                functions.remove(function)
                continue
            for name, by_size in times.items():
                for size, found in by_size.items():
                    rounds.setdefault(name, {}).setdefault(int(size), []).extend(found)
    return {
        name: {size: statistics.median(found) for size, found in by_size.items()}
        for name, by_size in rounds.items()
    }


def main():
    """Run the parts, print a table for each, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--calls", type=int, default=20_000, help="calls in a round")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--function", choices=FUNCTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.function:
        print(json.dumps(FUNCTIONS[options.function](options)))
        return
    import millpond

    figures = {
        "device": millpond.Device().name,
        "is_simulated": millpond.Device().is_simulated,
        "python": sys.version.split()[0],
        "millpond": millpond.__version__,
        "cpus": os.cpu_count(),
        "calls": options.calls,
        "rounds": options.rounds,
        "nanoseconds": {},
    }
    print(f"{figures['device']}{' (simulated)' if figures['is_simulated'] else ''}; nanoseconds")
    for part in options.parts:
        medians = figures["nanoseconds"][part] = measure(part, options)
        if not medians:
            continue
        print(f"\n{part:<10}" + "".join(f"{name:>12}" for name in medians) + "   millpond over the other")
        for size in SIZES:
            line = f"{size:>10}" + "".join(f"{by_size[size]:>12.0f}" for by_size in medians.values())
            other = next((name for name in ("rmm", "cupy", "torch") if name in medians), None)
            if other and "millpond" in medians:
                line += f"   {medians['millpond'][size] / medians[other][size]:.2f}"
            print(line)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
