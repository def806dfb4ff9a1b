# cause: objects in reference cycles keep their memory, and the garbage collector is off
# codes: leak|does_not_fit|growth
# says: leak|grow|fit
# line: fail/cycle.py:19 in __init__
# fails: fail/cycle.py:19 in __init__
# fix: call gc.collect(), or break the cycle
# fix says: gc|cycle|keep|smaller
# device: whole
"""Creates an object in a cycle for each step, with `gc.disable()`."""

import gc

import torch
from failing import fixed, save, start


class Step:
    def __init__(self, bytes):
        self.buffer = torch.zeros(bytes, dtype=torch.uint8, device="cuda")  # holds fails
        self.on_end = self.finish  # The bound method refers to this object: a cycle.

    def finish(self):
        return self.buffer[0].item()


def train(unit):
    for _ in range(12):
        Step(7 * unit).on_end()
        if fixed():
            gc.collect()


def main():
    unit = start()
    gc.disable()
    try:
        train(unit)
        print("ok")
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
