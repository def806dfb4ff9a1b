"""The parts that all failing programs share: the beginning, the switch `--fix`, and the report."""

import fcntl
import json
import os
import sys
import time
import traceback

import torch

MIB = 1 << 20
# The device must be free to this share; the rest is the driver's and this process's context.
FREE = 0.96


def fixed():
    """Whether the program runs with its fault mended."""
    return "--fix" in sys.argv or os.environ.get("FIX") == "1"


def wait_for_device():
    """Waits until no other program of this folder uses the GPU, and until its memory is free."""
    if "GPU_LOCK" in os.environ:
        lock = os.open(os.environ["GPU_LOCK"], os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)  # Open until the process ends.
    end = time.monotonic() + 15
    while True:
        free, total = torch.cuda.mem_get_info()
        if free >= FREE * total or time.monotonic() > end:
            return free, total
        time.sleep(0.1)


def start(stacks="python"):
    """Begins to record. Returns a 64th of the device in bytes, so that programs fail on any device."""
    free, total = wait_for_device()
    print(f"device: {free} of {total} bytes free", flush=True)
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks=stacks)
    return total // 64 // (2 * MIB) * 2 * MIB


def save(error):
    """Writes the snapshot, the message and the facts of a failure to files of the program's name."""
    program = os.path.realpath(sys.argv[0])
    name = os.path.splitext(os.path.basename(program))[0]
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    with open(name + ".txt", "w") as file:
        file.write(f"{type(error).__module__}.{type(error).__name__}: {error}\n")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.realpath(frame.filename) == program]
    free, total = torch.cuda.mem_get_info()
    facts = {
        "fails": f"{os.path.basename(program)}:{own[-1].lineno} in {own[-1].name}",
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "device_free": free,
        "device_total": total,
    }
    with open("failure.json", "w") as file:
        json.dump(facts, file)
    print(f"failed: {error}", flush=True)
