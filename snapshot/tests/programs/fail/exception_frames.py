# cause: the saved exception keeps the frames and tensors of the first try
# codes: leak|does_not_fit|retained|failed_before
# says: fit|exception|first|earlier
# line: fail/exception_frames.py:16 in forward
# fails: fail/exception_frames.py:17 in forward
# fix: keep the message of the exception only
# fix says: exception|traceback|smaller|keep
# device: whole
"""Tries again with half the batch after it runs out of memory, but keeps the exception."""

import torch
from failing import fixed, save, start


def forward(batch, unit):
    hidden = torch.zeros(batch * unit, dtype=torch.uint8, device="cuda")  # holds
    return torch.cat([hidden, hidden])  # fails


def first_try(unit):
    try:
        return forward(30, unit), None
    except Exception as error:
        return None, str(error) if fixed() else error


def main():
    unit = start()
    result, saved = first_try(unit)
    print("first try:", type(saved).__name__, flush=True)
    try:
        result = forward(15, unit)
        torch.cuda.synchronize()
        print("ok", len(result))
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
