"""Measures an allocation and its free through RMM's objects: the compiled bridge, and Python callbacks.

Needs no GPU. Run `python -m millpond.rmm_bridge build`, and then
`python python/benches/rmm_bridge.py [THREADS]` on the simulated device. Prints nanoseconds for each pair,
medians of 11 rounds.
"""

import statistics
import sys
import threading
import time

import rmm

import millpond.rmm
from millpond import _library

PAIRS, ROUNDS, SIZE = 10_000, 11, 64 << 10


def pairs(resource):
    for _ in range(PAIRS):
        resource.deallocate(resource.allocate(SIZE), SIZE)


def measure(resource, threads):
    """Return the nanoseconds for each pair, over all threads together."""
    rounds = []
    for _ in range(ROUNDS):
        workers = [threading.Thread(target=pairs, args=(resource,)) for _ in range(threads)]
        start = time.perf_counter_ns()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rounds.append((time.perf_counter_ns() - start) / (PAIRS * threads))
    return statistics.median(rounds)


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    ours = _library.prepare("cuda+pool", 0)
    kinds = {
        "floor": rmm.mr.CallbackMemoryResource(lambda size, stream: 256, lambda ptr, size, stream: None),
        "callback": millpond.rmm._over_callbacks(rmm, ours),
    }
    if millpond.rmm.bridge().startswith("compiled"):
        kinds["bridge"] = millpond.rmm.resource()
    for name, resource in kinds.items():
        print(f"{name}: {measure(resource, threads):.0f} ns with {threads} threads")


main()
