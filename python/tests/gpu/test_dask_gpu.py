"""A Dask cluster with one worker for each of two GPUs. CuPy's arrays are in millpond's memory."""

import os
import subprocess
import sys
import time

import harness

if __name__ != "__main__":
    harness.needs("distributed", "cupy", "dask")

import pytest

SIDE, CHUNK = 20_000, 5_000  # 3.2 GB of doubles


def gpus():
    """Return the number of GPUs, counted in another process."""
    program = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout)


def start_worker(address, ordinal):
    """Start a worker that sees one GPU. millpond is configured before anything else in it."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address]
    command += ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "32GiB"]
    command += ["--preload", "millpond.dask", "--millpond-stack", "cuda+pool"]
    command += ["--millpond-frameworks", "cupy"]
    return subprocess.Popen(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": str(ordinal)})


def metrics(client):
    """Return the memory that each worker reported with its last heartbeat."""
    return client.run_on_scheduler(
        lambda dask_scheduler: [w.metrics.get("millpond") for w in dask_scheduler.workers.values()]
    )


def job():
    import cupy
    import dask.array as da

    x = da.arange(SIDE * SIDE, chunks=CHUNK * SIDE).reshape(SIDE, SIDE).rechunk(CHUNK)
    x = x.map_blocks(cupy.asarray, dtype="f8", meta=cupy.empty((0, 0)))
    y = (x + x.T).persist()
    total = float(cupy.asnumpy(y.sum().compute()))
    assert total == float((SIDE * SIDE - 1) * (SIDE * SIDE)), total
    return y


def two_workers():
    import distributed

    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = [start_worker(cluster.scheduler_address, ordinal) for ordinal in range(2)]
        try:
            client.wait_for_workers(2, timeout=120)
            start = time.monotonic()
            kept = job()
            seconds = time.monotonic() - start
            share = SIDE * SIDE * 8 // 4  # a worker has half of the result, or slightly less
            for _ in range(100):  # workers report at their heartbeats
                seen = metrics(client)
                if all(m["bytes_in_use"] > share for m in seen):
                    break
                time.sleep(0.1)
            assert [m["stack"] for m in seen] == ["cuda+pool"] * 2
            assert all(m["bytes_in_use"] > share for m in seen), seen
            spilled = client.run(lambda dask_worker: dask_worker.data.spilled_total.disk)
            assert set(spilled.values()) == {0}, spilled
            for m in seen:
                print(f"peak {m['peak_bytes_in_use'] >> 20} MiB, {m['allocations']} allocations")
            print(f"{seconds:.1f} s")
            del kept
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(30)


def test_two_workers():
    if gpus() < 2:
        pytest.skip("SKIPPED: there are not two GPUs")
    harness.run(__file__, "two_workers")


if __name__ == "__main__":
    harness.main(globals())
