"""`millpond-replay top` watches a program in Python that was started with MILLPOND_WATCH."""

import contextlib
import json
import os
import signal
import subprocess
import sys

ASK = """
import contextlib, ctypes, json, os, signal, socket, struct, sys, threading
import millpond

folder = os.environ["MILLPOND_WATCH"]

def connect(process):
    to = socket.socket(socket.AF_UNIX)
    to.connect(os.path.join(folder, f"{process}.sock"))
    return to

def ask(process):
    with connect(process) as to:
        return to.makefile().read()

pool = millpond.stack("cuda+pool+recording:stacks=live")
"""

PROGRAM = """
def hold():
    return [pool.allocate(1000) for _ in range(3)]

blocks = hold()
print(ask(os.getpid()))
for block in blocks:
    pool.deallocate(block, 1000)
del pool
print(ask(os.getpid()))
"""

HELD = """
kept = pool.allocate(1000)
libc = ctypes.PyDLL(None)  # Its functions hold the GIL.
answer = ctypes.create_string_buffer(1 << 16)
with connect(os.getpid()) as to:
    to.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 20, 0))
    got = libc.recv(to.fileno(), answer, ctypes.c_size_t(len(answer)), 0)
print("<module>" in answer.raw[:max(got, 0)].decode())
"""

FORKS = """
def poll():
    while True:
        ask(parent)

def child():
    signal.alarm(60)
    assert not os.path.exists(os.path.join(folder, f"{os.getpid()}.sock"))
    assert json.loads(ask(parent))["process"] == parent

parent, kept = os.getpid(), []
threading.Thread(target=poll, daemon=True).start()
for line in range(200):
    # A stack that no answer has named yet.
    exec("\\n" * line + "kept.append(millpond.DeviceBuffer(size=512, mr=pool))")
    process = os.fork()
    if process == 0:
        # Without the locks of modules, which another thread may have held.
        try:
            child()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
print(len(kept))
"""


def run(program, folder):
    """Run a program that has `ask`, and return its output."""
    environment = {**os.environ, "MILLPOND_WATCH": str(folder), "MILLPOND_DEVICE": "sim:1GiB"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ASK + program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, env=environment, **pipes) as running:
        try:
            out, errors = running.communicate(timeout=300)
        finally:
            # A forked child that hangs keeps the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, errors
    return out


def test_a_program_answers_with_its_stacks_and_call_sites(tmp_path):
    folder = tmp_path / "sockets"
    held, freed = map(json.loads, run(PROGRAM, folder).splitlines())
    (stack,) = held["stacks"]
    assert stack["report"]["stack"] == "cuda+pool+recording:stacks=live"
    (holder,) = stack["report"]["layers"][0]["holders"]
    assert (holder["blocks"], holder["bytes"]) == (3, 3000)
    assert "hold" in holder["backtrace"]
    assert freed["stacks"] == []
    assert list(folder.iterdir()) == [], "the socket is removed at the end"


def test_an_answer_names_call_sites_while_the_program_holds_the_gil(tmp_path):
    """If it waited for the GIL, a fork would wait for it, because a fork holds the GIL."""
    assert run(HELD, tmp_path / "sockets") == "True\n"


def test_a_program_forks_while_it_answers(tmp_path):
    """The children neither hang nor answer for their parent."""
    assert run(FORKS, tmp_path / "sockets") == "200\n"


def test_without_the_variable_there_is_no_thread():
    environment = {**os.environ, "MILLPOND_WATCH": "0", "MILLPOND_DEVICE": "sim:1GiB"}
    program = "import millpond; millpond.stack('cuda+pool'); import os; print(os.listdir('/proc/self/task'))"
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert len(told.stdout.split(",")) == 1, told
