# cause: the request for pinned host memory is larger than the machine's memory
# codes: pinned|host|too_little
# says: host|pinned|GPU was not full|too little
# line: fail/pinned.py:21 in weights
# fails: fail/pinned.py:25 in stage
# fix: pin one batch and use it again
# fix says: pin|host
# device: part
"""Pins a buffer for a whole data set at once. PyTorch 2.11 does not record pinned memory in snapshots."""

import contextlib

import torch
from failing import fixed, save, start

SAMPLES = 1 << 26
SAMPLE = 1 << 20


def weights():
    return torch.randn(4096, 4096, device="cuda")  # holds


def stage(samples):
    return torch.empty(samples, SAMPLE, dtype=torch.uint8, pin_memory=True)  # fails


def main():
    # If the machine's memory should run out after all, the kernel ends this process and no other.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    start()
    model = weights()
    try:
        buffer = stage(64 if fixed() else SAMPLES)
        moved = buffer.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        print("ok", model.shape, moved.shape)
    except (RuntimeError, MemoryError) as error:
        save(error)


if __name__ == "__main__":
    main()
