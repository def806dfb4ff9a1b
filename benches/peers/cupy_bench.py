"""Runs CuPy's memory pool on the workloads of `millpond-replay bench` that have one thread. See README.md.

Times include the interpreter: the time of an empty loop is subtracted, but the time of the calls is not.
"""

import argparse
import json
import math
import sys
import time
from typing import NamedTuple

MASK = (1 << 64) - 1
SAMPLE_EVERY = 16


# ---- the plan: from one seed, plan.hpp and measure/src/bench/plan.rs make the same plan ----


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Random:
    """SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""

    def __init__(self, seed, lane):
        self.state = mix(seed ^ mix(lane + 1))

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        return mix(self.state)

    def below(self, bound):
        return (self.next() * bound) >> 64

    def size(self, smallest, largest):
        unit = (self.next() >> 11) / (1 << 53)
        return min(max(int(smallest * math.exp(unit * math.log(largest / smallest))), smallest), largest)


SMALL, LARGE, OTHER = (256, 1 << 20), (1 << 20, 64 << 20), (64 << 10, 4 << 20)
FRAGMENTS = 20_000
REPLACEMENTS = 4


class Effort(NamedTuple):
    steps: int
    warm_up: int
    warming_s: float
    measured_s: float


FULL, QUICK = Effort(200_000, 4_000_000, 4.0, 1.0), Effort(20_000, 5_000, 0.05, 0.05)


class Case(NamedTuple):
    workload: str
    live: int
    sizes: tuple
    streams: int = 1
    freed_percent: int = 0


def cases():
    for size in (256, 4 << 10, 64 << 10, 1 << 20, 64 << 20):
        yield Case("pair", 1, (size, size))
    for live in (100, 1000, 10_000, 100_000, 1_000_000):
        yield Case("churn", live, SMALL)
    yield Case("churn_large", 2000, LARGE)
    for streams in (1, 4, 16, 64, 256):
        yield Case("streams", 10_000, SMALL, streams=streams)
    for freed in (0, 25, 50, 75, 90):
        yield Case("fragmented", 4000, OTHER, freed_percent=freed)
    yield Case("threads_own_stream", 1000, SMALL)
    yield Case("threads_one_stream", 1000, SMALL)


class Plan:
    """The work of a case. A request is (bytes, stream), a replacement (slot, bytes, stream)."""

    def __init__(self, seed, case, effort):
        self.random, self.case = Random(seed, case.live << 16), case
        count = FRAGMENTS if case.workload == "fragmented" else 0
        steps = effort.steps // 4 if case.workload == "churn_large" else effort.steps
        self.fragments = [self.request(SMALL) for _ in range(count)]
        self.freed = self.some(count, count * case.freed_percent // 100)
        self.fill = [self.request(case.sizes) for _ in range(case.live)]
        self.warm_up = [self.any() for _ in range(min(REPLACEMENTS * case.live, effort.warm_up))]
        self.steps = [self.any() for _ in range(steps)]
        self.peak_bytes = self.most_bytes()

    def request(self, sizes):
        size, streams = self.random.size(*sizes), self.case.streams
        return size, self.random.below(streams) if streams > 1 else 0

    def any(self):
        return self.random.below(self.case.live), *self.request(self.case.sizes)

    def some(self, bound, count):
        """Draws `count` different numbers below `bound`, in random order."""
        numbers = list(range(bound))
        for at in range(count):
            other = at + self.random.below(bound - at)
            numbers[at], numbers[other] = numbers[other], numbers[at]
        return numbers[:count]

    def most_bytes(self):
        slots = [size for size, _ in self.fill]
        live = most = sum(size for size, _ in self.fragments)
        live += sum(slots) - sum(self.fragments[index][0] for index in self.freed)
        most = max(most, live)
        for slot, size, _ in self.warm_up + self.steps:
            live += size - slots[slot]
            slots[slot] = size
            most = max(most, live)
        return most

    def digest(self):
        """Returns the FNV-1a hash over the plan's 32-bit numbers."""
        groups = [self.fragments, ((slot,) for slot in self.freed), self.fill, self.warm_up, self.steps]
        hashed = 0xCBF29CE484222325
        for number in (number for group in groups for row in group for number in row):
            hashed = ((hashed ^ number) * 0x100000001B3) & MASK
        return hashed


def print_digests(options):
    """Prints the lines of plans.txt: one for each case of a quick run."""
    for case in cases():
        if case.workload != "pair" and case.live <= options.most_live:
            digest = Plan(options.seed, case, QUICK).digest()
            where = f"threads=1 streams={case.streams} live={case.live} freed={case.freed_percent}"
            print(f"{case.workload} {where} {digest:016x}")


# ---- measuring ----


def measured(steps, limit_s, step):
    """Runs up to `steps` steps; returns their number, their time and the times of samples, in ns."""
    clock = time.perf_counter_ns
    samples = []
    start = clock()
    done = 0
    while done < steps:
        before = clock()
        step(done)
        after = clock()
        samples.append(after - before)
        group_end = min(done + SAMPLE_EVERY, steps)
        for index in range(done + 1, group_end):
            step(index)
        done = group_end
        if after - start > limit_s * 1e9:
            break
    return done, clock() - start, samples


def cost():
    """Returns the cost of measuring: ns in a sample, and ns in each step."""
    tries = [measured(20_000, 60, lambda index: None) for _ in range(5)]
    return min(min(samples) for _, _, samples in tries), min(ns / done for done, ns, _ in tries)



# ---- running ----


def fill(allocate, streams, requests, blocks):
    """Allocates blocks and appends them; returns the time, in ns."""
    start = time.perf_counter_ns()
    for size, stream in requests:
        if len(streams) > 1:
            streams[stream].use()
        blocks.append(allocate(size))
    return time.perf_counter_ns() - start


def stepper(allocate, streams, blocks, planned):
    """Returns a function that does one replacement. A block without a reference returns to its stream."""
    if len(streams) == 1:

        def step(index):
            slot, size, _ = planned[index]
            blocks[slot] = None
            blocks[slot] = allocate(size)

    else:

        def step(index):
            slot, size, stream = planned[index]
            blocks[slot] = None
            streams[stream].use()
            blocks[slot] = allocate(size)

    return step


def churn(allocate, streams, plan, effort):
    """Returns the measurement, and the ns for each of the first blocks."""
    blocks = []
    ns = fill(allocate, streams, plan.fragments, blocks)
    for index in plan.freed:
        blocks[index] = None
    left = [block for block in blocks if block is not None]
    blocks.clear()
    ns += fill(allocate, streams, plan.fill, blocks)
    streams[0].use()
    measured(len(plan.warm_up), effort.warming_s, stepper(allocate, streams, blocks, plan.warm_up))
    lap = measured(len(plan.steps), effort.measured_s, stepper(allocate, streams, blocks, plan.steps))
    first_blocks = len(plan.fragments) + len(plan.fill)
    del left
    return lap, ns / first_blocks


def pairs(allocate, size, effort):
    def step(index):
        allocate(size)  # CuPy frees a block without a reference

    measured(100, effort.measured_s, step)
    return measured(effort.steps, effort.measured_s, step), None


def run(cupy, case, options, result):
    """Adds the bytes to `result`; returns the measurement."""
    effort = QUICK if options.quick else FULL
    if case.live > options.most_live:
        return {"status": "skipped", "reason": "the interpreter is too slow with this many live blocks"}
    plan = None if case.workload == "pair" else Plan(options.seed, case, effort)
    result["bytes"] = plan.peak_bytes if plan else case.sizes[1]
    free, _ = cupy.cuda.runtime.memGetInfo()
    if result["bytes"] > free:
        return {"status": "skipped", "reason": "more bytes are live at once than the device has free"}
    pool = cupy.cuda.MemoryPool()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(case.streams)]
    with streams[0]:
        if plan is None:
            lap, ns_per_fill = pairs(pool.malloc, case.sizes[1], effort)
        else:
            lap, ns_per_fill = churn(pool.malloc, streams, plan, effort)
    done, ns, samples = lap
    reserved = pool.total_bytes()  # the pool never returns memory by itself
    pool.free_all_blocks()
    sample_ns, step_ns = cost()
    ns_per_step = max(ns / done - step_ns, 0.0)
    return {
        "steps": done,
        "ns_per_step": round(ns_per_step, 2),
        "p99_ns": max(sorted(samples)[len(samples) * 99 // 100] - sample_ns, 0),
        "steps_per_second": round(1e9 / max(ns_per_step, 0.01)),
        "ns_per_fill": ns_per_fill,
        "reserved_bytes": reserved,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--workload", default="", help="names separated by commas; default: all")
    parser.add_argument("--most-live", type=int, default=100_000)
    parser.add_argument("--threads", help="ignored: only the other peers use threads")
    parser.add_argument("--plans", action="store_true", help="print the digests of the plans; run nothing")
    options = parser.parse_args()
    if options.plans:
        return print_digests(options)
    import cupy

    wanted = options.workload.split(",") if options.workload else []
    for case in cases():
        if wanted and case.workload not in wanted:
            continue
        result = {"workload": case.workload, "stack": "cupy", "threads": 1, "streams": case.streams}
        result |= {"live": case.live, "freed_percent": case.freed_percent, "bytes": case.sizes[1]}
        try:
            result |= run(cupy, case, options, result)
        except cupy.cuda.memory.OutOfMemoryError:
            result |= {"status": "out_of_memory", "reason": "out of memory"}
        print(json.dumps(result), flush=True)
    return None


if __name__ == "__main__":
    sys.exit(main())
