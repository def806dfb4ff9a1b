# cause: max_split_size_mb and max_non_split_rounding_mb give whole large blocks to small requests
# codes: max_split|rounding|limit|other_pool|settings
# says: max_split_size|max_non_split|round
# line: fail/split_size.py:22 in encode
# fails: fail/split_size.py:22 in encode
# fix: run without max_split_size_mb and max_non_split_rounding_mb
# fix says: max_split_size|max_non_split
# conf: max_split_size_mb:512,max_non_split_rounding_mb:8192
# fix conf:
# device: whole
"""Frees large blocks. Requests of half their size take them whole, because no large block may be split."""

import torch
from failing import fixed, save, start


def warm_up(unit):
    return len([torch.zeros(5 * unit, dtype=torch.uint8, device="cuda") for _ in range(12)])


def encode(unit):
    return torch.zeros(5 * unit // 2, dtype=torch.uint8, device="cuda")  # holds fails


def main():
    unit = start()
    warm_up(unit)
    kept = []
    try:
        for _ in range(20):
            kept.append(encode(unit))
        torch.cuda.synchronize()
        print("ok", "fixed" if fixed() else "without a fix")
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
