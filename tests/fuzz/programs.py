#!/usr/bin/env python3
"""Runs random programs over the Python package for some time, each with its own seed.

    python3 tests/fuzz/programs.py SECONDS [JOBS [FIRST_SEED]]

It runs the programs of `python/tests/test_order.py` under the checks of the simulated device. The package
must be installed. If a program fails, the script prints the program's seed, and ends with an error.
"""

import multiprocessing
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "tests"))

import test_order


def run(job, jobs, seconds, first):
    """Runs every seed of this job. Returns the number of programs and calls, and what went wrong."""
    end, seed, programs, calls = time.monotonic() + seconds, first + job, 0, 0
    while time.monotonic() < end:
        size = test_order.SHORTEST * (1 + seed % 10)
        if wrong := test_order.program(seed, size):
            return programs, calls, f"{wrong} ({size} calls)"
        programs, calls, seed = programs + 1, calls + size, seed + jobs
    return programs, calls, ""


def main():
    seconds = float(sys.argv[1])
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count()
    first = int(sys.argv[3]) if len(sys.argv) > 3 else int(time.time())
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        results = pool.starmap(run, [(job, jobs, seconds, first) for job in range(jobs)])
    programs, calls = (sum(result[part] for result in results) for part in (0, 1))
    mistakes = [result[2] for result in results if result[2]]
    print(
        f"programs in Python: {programs} programs, {calls} calls, seeds from {first}, {jobs} processes, "
        f"{len(mistakes)} mistakes"
    )
    print("\n".join(mistakes), end="\n" if mistakes else "")
    sys.exit(bool(mistakes))


if __name__ == "__main__":
    main()
