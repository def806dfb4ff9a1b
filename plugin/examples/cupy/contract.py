#!/usr/bin/env python3
"""Runs the contract of NBEP 7 over CuPy's default memory pool, on a GPU.

Needs CuPy, and libmillpond_cupy_contract.so in the folder of this file. Prints a line for each clause. The
exit code is 0 if all clauses passed.
"""

import ctypes
import itertools
import os
import pathlib
import sys
import traceback

import cupy

DEVICE = 0
NUMBER = ctypes.c_uint64
pool = cupy.get_default_memory_pool()
blocks = {}
numbers = itertools.count(1)


def stream_of(handle):
    """Returns CuPy's stream for a handle; the handles 0 and 1 are the legacy default stream."""
    return cupy.cuda.Stream.null if handle < 2 else cupy.cuda.ExternalStream(handle)


def malloc(size, stream, block):
    try:
        with cupy.cuda.Device(DEVICE), stream_of(stream):
            memory = pool.malloc(size)
        number = next(numbers)
        blocks[number] = memory
        block[0], block[1] = number, memory.ptr
        return 0
    except cupy.cuda.memory.OutOfMemoryError:
        return 1
    except Exception:
        traceback.print_exc()
        return 2


def free(number):
    del blocks[number]


def of_device(call):
    """Makes a callback that calls CuPy on the device."""

    def called():
        with cupy.cuda.Device(DEVICE):
            return call()

    return called


def report(name, failure):
    print(f"{'FAILED' if failure else 'ok':6} {name.decode()}", flush=True)
    if failure:
        print(f"       {failure.decode()}", flush=True)


class Functions(ctypes.Structure):
    _fields_ = [
        ("malloc", ctypes.CFUNCTYPE(ctypes.c_int32, NUMBER, NUMBER, ctypes.POINTER(NUMBER))),
        ("free", ctypes.CFUNCTYPE(None, NUMBER)),
        ("free_all_blocks", ctypes.CFUNCTYPE(None)),
        ("free_bytes", ctypes.CFUNCTYPE(NUMBER)),
        ("total_bytes", ctypes.CFUNCTYPE(NUMBER)),
        ("report", ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)),
    ]


def main():
    shipped = pathlib.Path(__file__).with_name("libmillpond_cupy_contract.so")
    library = ctypes.CDLL(os.environ.get("MILLPOND_CUPY_LIBRARY", str(shipped)))
    # CuPy's first allocation makes the context, whose own memory must not count below.
    cupy.empty(1, dtype=cupy.uint8)
    pool.free_all_blocks()
    calls = (malloc, free, of_device(pool.free_all_blocks), of_device(pool.free_bytes))
    calls += (of_device(pool.total_bytes), report)
    functions = Functions(*(kind(call) for (_, kind), call in zip(Functions._fields_, calls, strict=True)))
    failed = library.millpond_contract(ctypes.byref(functions), ctypes.c_uint32(DEVICE))
    left = pool.total_bytes()
    print(f"CuPy {cupy.__version__}: {failed} clauses failed; {left} bytes stayed in CuPy's pool", flush=True)
    return 0 if failed == 0 and left == 0 and not blocks else 1


if __name__ == "__main__":
    sys.exit(main())
