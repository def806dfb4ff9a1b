"""An empty environment variable counts as unset."""

import os
import subprocess
import sys

import millpond

VARIABLES = [
    "LOCAL_RANK",
    "MILLPOND_DEVICE",
    "MILLPOND_LOG_FILE",
    "MILLPOND_MEMORY_MANAGER",
    "MILLPOND_REPLAY",
    "MILLPOND_RMM_BRIDGE",
    "MILLPOND_STACK",
    "MILLPOND_WATCH",
    "RMM_DEBUG_LOG_FILE",
    "RMM_LOG_FILE",
]
PROGRAM = """
import millpond, millpond.replay, millpond.rmm_bridge
print(millpond.mr.get_current_device_resource().text)
print(millpond.DeviceBuffer(size=100).nbytes)
print(millpond.replay.binary().name, millpond.rmm_bridge.folder().name)
try:
    millpond.stack("cuda+logging")
except ValueError as error:
    print("has no file" in str(error))
"""


def _run(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_empty_variables_count_as_unset():
    unset = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    expected = subprocess.run([sys.executable, "-c", PROGRAM], env=unset, capture_output=True, text=True)
    assert expected.stdout.split() == ["cuda", "100", "millpond-replay", "millpond", "True"], expected.stderr
    for names in (VARIABLES, *([name] for name in VARIABLES)):
        empty = unset | dict.fromkeys(names, "")
        told = subprocess.run([sys.executable, "-c", PROGRAM], env=empty, capture_output=True, text=True)
        assert (told.stdout, told.stderr) == (expected.stdout, expected.stderr), names


def test_an_empty_name_of_the_library_is_the_one_of_the_package():
    told = _run("import millpond", MILLPOND_LIBRARY="")
    shipped = os.path.join(os.path.dirname(millpond.__file__), "libmillpond.so")
    assert told.returncode == 0 if os.path.exists(shipped) else "libmillpond.so" in told.stderr, told.stderr
