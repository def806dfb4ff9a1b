"""CuPy's memory pool on the workloads of `millpond-replay bench` that have one thread. See README.md.

Times contain the interpreter's: that of a loop whose steps do nothing is taken off, that of the calls is not.
"""

import argparse
import json
import math
import time

MASK = (1 << 64) - 1
SAMPLE_EVERY = 16


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


def measured(steps, limit_s, step):
    """Does `steps` steps; returns how many were done, their time and the times of samples, in ns."""
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
    """What measuring costs: ns in a sample, and ns in each step."""
    tries = [measured(20_000, 60, lambda index: None) for _ in range(5)]
    return min(min(samples) for _, _, samples in tries), min(ns / done for done, ns, _ in tries)


def cases():
    for size in (256, 4 << 10, 64 << 10, 1 << 20, 64 << 20):
        yield "pair", 1, (size, size)
    for live in (1000, 10_000, 100_000, 1_000_000):
        yield "churn", live, (256, 1 << 20)
    yield "churn_large", 2000, (1 << 20, 64 << 20)


def plan(seed, live, sizes, warm_up, steps):
    random = Random(seed, live << 16)
    fill = [random.size(*sizes) for _ in range(live)]
    replacements = [(random.below(live), random.size(*sizes)) for _ in range(warm_up + steps)]
    slots, current = list(fill), sum(fill)
    peak = current
    for slot, size in replacements:
        current += size - slots[slot]
        slots[slot] = size
        peak = max(peak, current)
    return fill, replacements[:warm_up], replacements[warm_up:], peak


def run(cupy, workload, live, sizes, options):
    steps, most_warm_up, limit_s = (20_000, 5_000, 0.05) if options.quick else (200_000, 2_000_000, 3.0)
    steps = steps // 4 if workload == "churn_large" else steps
    result = {"workload": workload, "stack": "cupy", "threads": 1, "live": live, "bytes": sizes[1]}
    if workload != "pair":
        before = min(2 * live, most_warm_up)
        fill, warm_up, replacements, peak = plan(options.seed, live, sizes, before, steps)
        result["bytes"] = peak
    free, _ = cupy.cuda.runtime.memGetInfo()
    if result["bytes"] > free:
        return result | {"status": "skipped", "reason": "more is live at once than the device has free"}
    pool = cupy.cuda.MemoryPool()
    allocate = pool.malloc
    with cupy.cuda.Stream(non_blocking=True):
        if workload == "pair":
            size = sizes[1]

            def step(index):
                allocate(size)  # what nobody holds is freed

            measured(100, limit_s, step)
        else:
            blocks = [allocate(size) for size in fill]

            def stepper(planned):
                def step(index):
                    slot, size = planned[index]
                    blocks[slot] = None
                    blocks[slot] = allocate(size)

                return step

            measured(len(warm_up), limit_s, stepper(warm_up))
            step = stepper(replacements)
        done, ns, samples = measured(steps, limit_s, step)
        blocks = None
    pool.free_all_blocks()
    sample_ns, step_ns = cost()
    ns_per_step = max(ns / done - step_ns, 0.0)
    p99 = max(sorted(samples)[len(samples) * 99 // 100] - sample_ns, 0)
    return result | {
        "steps": done,
        "ns_per_step": round(ns_per_step, 2),
        "p99_ns": p99,
        "steps_per_second": round(1e9 / max(ns_per_step, 0.01)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", help="for the other peers: Python runs one thread at a time")
    options = parser.parse_args()
    import cupy

    for workload, live, sizes in cases():
        try:
            result = run(cupy, workload, live, sizes, options)
        except cupy.cuda.memory.OutOfMemoryError:
            result = {"workload": workload, "stack": "cupy", "threads": 1, "live": live, "bytes": sizes[1]}
            result |= {"status": "out_of_memory", "reason": "out of memory"}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
