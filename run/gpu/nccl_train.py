"""Trains a small network on all GPUs with NCCL, one process for each, and prints its result bit by bit."""

import os
import sys
import time

import torch
from torch.distributed import all_gather_object, destroy_process_group, init_process_group
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, ranks: int) -> None:
    """Train as one of the processes."""
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    init_process_group("nccl", rank=rank, world_size=ranks, device_id=device)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(4096, 4096), torch.nn.Tanh())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    adam = torch.optim.Adam(model.parameters())
    torch.manual_seed(rank)
    batches = [torch.randn(size, 4096, device=device) for size in (512, 768, 1024)]
    start = 0.0
    for number in range(200):
        if number == 10:
            torch.cuda.synchronize()
            start = time.perf_counter()
        loss = model(batches[number % 3]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    results: list[list[str]] = [[] for _ in range(ranks)]
    all_gather_object(results, [parameter.double().sum().item().hex() for parameter in model.parameters()])
    if rank == 0:
        print(f"loop {seconds:.6f}", file=sys.stderr)
        print(results)
    destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    count = torch.cuda.device_count()
    spawn(train, (count,), count)
