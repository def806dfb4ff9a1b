# cause: another process holds most of the device
# codes: other_process|outside|does_not_fit
# says: process
# line: fail/other_process.py:27 in load
# fails: fail/other_process.py:31 in forward
# fix: end the other process
# fix says: process|nvidia-smi
# device: whole
"""Starts while another process holds three quarters of the device."""

import subprocess
import sys

import torch
from failing import fixed, save, start


def hold(bytes):
    """Runs in the other process, until its input ends."""
    kept = torch.zeros(bytes, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    print("holding", len(kept), flush=True)
    sys.stdin.read()


def load(unit):
    return [torch.zeros(2 * unit, dtype=torch.uint8, device="cuda") for _ in range(5)]  # holds


def forward(unit):
    return torch.zeros(8 * unit, dtype=torch.uint8, device="cuda")  # fails


def main():
    unit = start()
    words = [sys.executable, __file__, "--hold", str(48 * unit)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(other.stdout.readline().strip(), flush=True)
    if fixed():
        other.communicate()
    try:
        weights = load(unit)
        answer = forward(unit)
        torch.cuda.synchronize()
        print("ok", len(weights), len(answer))
    except torch.OutOfMemoryError as error:
        save(error)
    finally:
        if other.poll() is None:
            other.communicate()


if __name__ == "__main__":
    if "--hold" in sys.argv:
        hold(int(sys.argv[sys.argv.index("--hold") + 1]))
    else:
        main()
