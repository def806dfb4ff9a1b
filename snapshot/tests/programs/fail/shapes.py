# cause: batches of changing shapes leave free pieces that fit no later batch
# codes: fragmentation
# says: fragment
# line: fail/shapes.py:26 in embed
# fails: fail/shapes.py:19 in activations
# fix: expandable segments
# fix says: expandable_segments
# fix conf: expandable_segments:True
# device: whole
"""Embeds batches that get longer. The result of each batch takes a part of its freed activations."""

import torch
from failing import fixed, save, start

WIDTH = 4096


def activations(rows):
    return torch.zeros(rows, WIDTH, device="cuda")  # fails


def embed(rows):
    hidden = activations(rows)
    mean = hidden.mean(dim=0)
    del hidden
    return mean.expand(rows * 11 // 20, WIDTH).contiguous()  # holds


def main():
    unit = start()
    kept = []
    try:
        for batch in range(24):
            kept.append(embed((16 + batch) * unit // 8 // (4 * WIDTH)))
        torch.cuda.synchronize()
        print("ok", "fixed" if fixed() else "without a fix")
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
