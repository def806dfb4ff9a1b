# cause: torch.cat needs the old and the new cache at the same time
# codes: does_not_fit|fragmentation|growth|leak
# says: fit|grow|fragment
# line: fail/cache.py:23 in append
# fails: fail/cache.py:23 in append
# fix: allocate the cache once at its final length
# fix says: smaller|allocate|once|grow|cat
# device: whole
"""Generates text with a cache of keys and values that grows by `torch.cat`."""

import torch
from failing import fixed, save, start

STEPS = 48
WIDTH = 4096


class GrowingCache:
    def __init__(self, chunk):
        self.entries = [chunk.new_zeros(0, WIDTH), chunk.new_zeros(0, WIDTH)]

    def append(self, which, chunk):
        self.entries[which] = torch.cat([self.entries[which], chunk])  # holds fails
        return self.entries[which]


class StaticCache:
    def __init__(self, chunk):
        self.entries = [chunk.new_zeros(STEPS * len(chunk), WIDTH) for _ in range(2)]
        self.lengths = [0, 0]

    def append(self, which, chunk):
        begin, end = self.lengths[which], self.lengths[which] + len(chunk)
        self.entries[which][begin:end].copy_(chunk)
        self.lengths[which] = end
        return self.entries[which][:end]


def generate(cache, chunk):
    for _ in range(STEPS):
        for which in (0, 1):
            cache.append(which, chunk)


def main():
    unit = start(stacks="all")
    chunk = torch.zeros(unit // 2 // (4 * WIDTH), WIDTH, device="cuda")
    cache = (StaticCache if fixed() else GrowingCache)(chunk)
    try:
        generate(cache, chunk)
        torch.cuda.synchronize()
        print("ok")
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
