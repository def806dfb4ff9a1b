"""The training example under all allocators on a GPU, with models small enough to train in a second."""

import pathlib
import subprocess
import sys

import harness

if __name__ != "__main__":
    harness.needs("torch")

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "training.py"


def test_the_losses_of_all_allocators_are_the_same():
    command = [sys.executable, str(EXAMPLE), "--compare", "--small", "--steps", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    print(done.stdout)
    rows = [line.split("|") for line in done.stdout.splitlines()[2:]]
    assert len(rows) == 20
    for row in rows:
        share = float(row[8].strip().rstrip("%"))
        assert share > 95 if row[3].strip() in ("millpond", "mempool") else share == 0, row
