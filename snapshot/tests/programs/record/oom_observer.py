# stacks: default
# verdict: limit
"""Dumps the snapshot in an observer that PyTorch calls when it runs out of memory."""

import torch
from torch import nn


def oom_observer(device, alloc, device_alloc, device_free):
    # snapshot right after an OOM happened
    print("saving allocated state during OOM")
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


def train(model, batch):
    x = torch.randn(batch, 2048, device="cuda")
    model(x).square().mean().backward()
    model.zero_grad()


def largest_batch(model):
    batch = 1024
    while True:
        try:
            train(model, batch)
        except torch.OutOfMemoryError:
            return batch // 2
        batch *= 2


if __name__ == "__main__":
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((2 << 30) / total)
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    torch._C._cuda_attach_out_of_memory_observer(oom_observer)
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
    print(largest_batch(model))
