"""`millpond-replay top` watches a program in Python that was started with MILLPOND_WATCH."""

import json
import os
import subprocess
import sys

PROGRAM = """
import os, socket
import millpond

def hold():
    return [pool.allocate(1000) for _ in range(3)]

def ask():
    with socket.socket(socket.AF_UNIX) as to:
        to.connect(os.path.join(os.environ["MILLPOND_WATCH"], f"{os.getpid()}.sock"))
        return to.makefile().read()

pool = millpond.stack("cuda+pool+recording:stacks=live")
blocks = hold()
print(ask())
for block in blocks:
    pool.deallocate(block, 1000)
del pool
print(ask())
"""


def test_a_program_answers_with_its_stacks_and_call_sites(tmp_path):
    folder = tmp_path / "sockets"
    environment = {**os.environ, "MILLPOND_WATCH": str(folder), "MILLPOND_DEVICE": "sim:1GiB"}
    told = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    held, freed = map(json.loads, told.stdout.splitlines())
    (stack,) = held["stacks"]
    assert stack["report"]["stack"] == "cuda+pool+recording:stacks=live"
    (holder,) = stack["report"]["layers"][0]["holders"]
    assert (holder["blocks"], holder["bytes"]) == (3, 3000)
    assert "hold" in holder["backtrace"]
    assert freed["stacks"] == []
    assert list(folder.iterdir()) == [], "the socket is removed at the end"


def test_without_the_variable_there_is_no_thread():
    environment = {**os.environ, "MILLPOND_WATCH": "0", "MILLPOND_DEVICE": "sim:1GiB"}
    program = "import millpond; millpond.stack('cuda+pool'); import os; print(os.listdir('/proc/self/task'))"
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert len(told.stdout.split(",")) == 1, told
