"""Jobs of two ranks on two GPUs: a short run of `ddp_job.py`."""

import subprocess
import sys
from pathlib import Path

import harness
import pytest

harness.needs("torch")


def count_of_gpus():
    """Return the number of GPUs, counted in another process."""
    program = (
        "import millpond\n"
        "try: print(millpond.Device('cuda:1').ordinal + 1)\n"
        "except millpond.NoDeviceError: print(1)\n"
    )
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout)


@pytest.mark.skipif(count_of_gpus() < 2, reason="SKIPPED: there is one GPU")
def test_a_job_of_two_ranks_is_right_and_touches_its_own_gpus():
    job = [sys.executable, str(Path(__file__).with_name("ddp_job.py")), "--steps", "60"]
    done = subprocess.run(job, capture_output=True, text=True, timeout=420)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]
