# cause: free memory belongs to another stream
# codes: other_pool|stream
# says: stream
# line: fail/streams.py:23 in prefetch
# fails: fail/streams.py:29 in forward
# fix: expandable segments, which return the other stream's free pages
# fix says: expandable_segments|stream
# fix conf: expandable_segments:True
# device: whole
"""Prepares data on a second stream, whose free memory the first stream cannot use."""

import torch
from failing import fixed, save, start


def prefetch(stream, unit):
    kept = []
    with torch.cuda.stream(stream):
        for _ in range(10):
            raw = torch.zeros(4 * unit, dtype=torch.uint8, device="cuda")
            total = raw[:1].clone()
            del raw
            kept.append((torch.zeros(11 * unit // 5, dtype=torch.uint8, device="cuda"), total))  # holds
    torch.cuda.current_stream().wait_stream(stream)
    return kept


def forward(unit):
    return [torch.zeros(3 * unit // 2, dtype=torch.uint8, device="cuda") for _ in range(22)]  # fails


def main():
    unit = start()
    kept = prefetch(torch.cuda.Stream(), unit)
    try:
        activations = forward(unit)
        torch.cuda.synchronize()
        print("ok", "fixed" if fixed() else "without a fix", len(kept), len(activations))
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
