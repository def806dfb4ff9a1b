"""Confirms the predictions of `millpond-replay tune` for three programs on a GPU.

    python confirm.py

Needs an otherwise idle CUDA device, and PyTorch 2.11 or later. Each program runs twice, in separate
processes, with only a part of the device's memory free. With PyTorch's own settings it must fail; with the
line that `tune` prints it must run. `mixed` and `retries` are the programs of make.py without a limit. The
predicted needs in MiB, with PyTorch's own settings and with expandable segments, are: `mixed` 392 and 368,
`retries` 428 and 390, `long` 770 and 734.
"""

import ctypes
import os
import subprocess
import sys

from make import MIB, churn

LINE = "expandable_segments:True"

# For each name, the arguments of churn and the free MiB.
PROGRAMS = {
    "mixed": (dict(rounds=600, seed=7), 380),
    "retries": (dict(rounds=1500, seed=11), 408),
    "long": (dict(rounds=4000, seed=3, live=96), 756),
}


def leave(torch, bytes):
    """Takes all device memory except this many bytes, outside of PyTorch's allocator."""
    torch.cuda.init()
    torch.cuda.synchronize()
    cuda = ctypes.CDLL("libcuda.so.1")
    taken = ctypes.c_uint64()
    while (more := torch.cuda.mem_get_info()[0] - bytes) > 0:
        size = max(more // (2 * MIB) * 2 * MIB, 2 * MIB)
        if cuda.cuMemAlloc_v2(ctypes.byref(taken), ctypes.c_size_t(size)) != 0:
            sys.exit("the rest of the memory cannot be taken")
    return torch.cuda.mem_get_info()[0]


def one(name):
    import torch

    arguments, left = PROGRAMS[name]
    free = leave(torch, left * MIB)
    try:
        churn(torch, **arguments)
        outcome = "ran"
    except torch.cuda.OutOfMemoryError:
        outcome = "out of memory"
    print(f"{outcome} with {free / MIB:.0f} MiB, {torch.cuda.memory_reserved() / MIB:.0f} MiB reserved")


def main():
    if len(sys.argv) > 1:
        return one(sys.argv[1])
    wrong = 0
    for name in PROGRAMS:
        for conf, expected in (("", "out of memory"), (LINE, "ran")):
            environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=conf)
            words = [sys.executable, __file__, name]
            done = subprocess.run(words, env=environment, capture_output=True, text=True)
            said = done.stdout.strip() or done.stderr.strip()[-500:]
            is_right = said.startswith(expected)
            wrong += not is_right
            predicted = "" if is_right else f": NOT AS PREDICTED ({expected})"
            print(f"{name}, {conf or 'default'}: {said}{predicted}")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
