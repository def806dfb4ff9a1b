"""Multiplies and solves with cuBLAS and cuSOLVER, and prints the result bit by bit."""

import sys
import time

import cupy

random = cupy.random.RandomState(0)
matrix = random.rand(2048, 2048)
start, total = time.perf_counter(), cupy.zeros(2048)
for number in range(200):
    if number == 10:
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
    right = random.rand(2048, 64 * (1 + number % 3))
    total += cupy.linalg.solve(matrix, matrix @ right).sum(axis=1)
cupy.cuda.Device().synchronize()
print(f"loop {time.perf_counter() - start:.6f}", file=sys.stderr)
print(float(total.sum()).hex())
