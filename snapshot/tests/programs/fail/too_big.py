# cause: one request is larger than the device
# codes: does_not_fit|too_big|beyond
# says: fit|larger than the device|beyond
# line: fail/too_big.py:18 in distances
# fails: fail/too_big.py:18 in distances
# fix: compute the distances in parts
# fix says: smaller|batch|part|chunk
# device: whole
"""Asks for the distances of all pairs of points at once: twice the memory of the device."""

import math

import torch
from failing import fixed, save, start


def distances(points, others):
    return torch.cdist(points, others)  # holds fails


def mean_distances(points):
    if fixed():
        return torch.cat([distances(part, points).mean(dim=1) for part in points.split(4096)])
    return distances(points, points).mean(dim=1)


def main():
    unit = start()
    points = torch.randn(math.isqrt(2 * 64 * unit // 4), 16, device="cuda")
    try:
        mean_distances(points).sum().item()
        print("ok")
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
