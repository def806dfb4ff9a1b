"""Measures `DeviceBuffer(size=n)` and its drop, beside RMM's where rmm is installed, in one run.

python python/benches/buffer.py [CALLS]
"""

import statistics
import sys
import time

import millpond


def nanoseconds(buffer, size, calls):
    """Return the time of a buffer and its drop."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        buffer(size=size)
    return (time.perf_counter_ns() - start) / calls


def main():
    """Print the median of rounds in which both take turns, and their ratio."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    try:
        import rmm
    except ImportError:
        rmm = None
        print("rmm is not installed: no ratio")
    else:
        rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 30))
    millpond.mr.set_current_device_resource(
        millpond.mr.PoolMemoryResource(millpond.mr.CudaMemoryResource(), 1 << 30)
    )
    print(f"{millpond.Device().name}; ns for a buffer and its drop, the median of 11 rounds of {calls}")
    for size in (256, 1 << 10, 64 << 10, 1 << 20, 64 << 20):
        ours, theirs = [], []
        for _ in range(11):
            ours.append(nanoseconds(millpond.DeviceBuffer, size, calls))
            if rmm:
                theirs.append(nanoseconds(rmm.DeviceBuffer, size, calls))
        own = statistics.median(ours)
        line = f"{size:>10} B  millpond {own:8.0f}"
        if rmm:
            other = statistics.median(theirs)
            line += f"  rmm {other:8.0f}  ratio {own / other:.2f}"
        print(line)


if __name__ == "__main__":
    main()
