"""The history of memory while Python collects garbage in the middle of a recorded call."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys, threading
import millpond

millpond.record_memory_history(stacks=sys.argv[1])
pool = millpond.stack("cuda+pool")

class Node:
    pass

def cycle():
    node = Node()
    node.own = node
    node.buffer = millpond.DeviceBuffer(size=1000, mr=pool)

def deep(frames):
    return deep(frames - 1) if frames else millpond.DeviceBuffer(size=512, mr=pool)

def work():
    for _ in range(400):
        cycle()
        deep(100)

gc.set_threshold(50, 10, 10)
threads = [threading.Thread(target=work) for _ in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
events = millpond.memory_snapshot(resource=pool)["device_traces"][0]
names = {frame["name"] for event in events for frame in event.get("frames", ())}
print(sorted(names & {"cycle", "deep", "work"}))
"""


@pytest.mark.parametrize(("stacks", "threads"), [("all", "1"), ("allocations", "4")])
def test_a_collection_during_a_capture_may_free_blocks(stacks, threads):
    """In Python 3.11, walking the frames makes objects, which may start a collection."""
    environment = {**os.environ, "MILLPOND_DEVICE": "sim:1GiB"}
    command = [sys.executable, "-c", PROGRAM, stacks, threads]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stdout) == (0, "['cycle', 'deep', 'work']\n"), told.stderr
