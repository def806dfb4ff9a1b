"""The package's benchmarks and examples, as far as they need no GPU."""

import json
import pathlib
import subprocess
import sys

import millpond

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
BENCH = pathlib.Path(__file__).parents[1] / "benches" / "frameworks.py"


def test_the_benchmark_measures_buffers_and_says_what_it_skips(tmp_path):
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(BENCH), "--calls", "100", "--rounds", "1", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    known = json.loads(figures.read_text())
    assert known["device"] == millpond.Device().name
    assert set(known["nanoseconds"]) == {"buffer", "history", "cupy", "torch"}
    assert all(time > 0 for time in known["nanoseconds"]["buffer"]["millpond"].values())
    for part in ("cupy", "torch"):
        assert known["nanoseconds"][part] or "SKIPPED: " + part in done.stdout


def test_two_sides_share_a_thousand_blocks_each():
    """On simulated devices, two threads are the two processes."""
    command = [sys.executable, str(EXAMPLES / "shared_pools.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    *sides, last = done.stdout.splitlines()
    assert last == "both sides agree"
    for side in map(json.loads, sides):
        assert (side["blocks"], side["used"]) == (1000, 0)
        assert side["used_high"] < side["bytes"] // 10, "blocks are freed and reused"
