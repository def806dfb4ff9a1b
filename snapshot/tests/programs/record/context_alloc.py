# stacks: all
# context: alloc
# verdict: fine
"""Trains a small network and records the stacks of allocations."""

import torch
from torch import nn


def train(model, optimizer, batch):
    x = torch.randn(batch, 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def main():
    torch.cuda.memory._record_memory_history(context="alloc", stacks="all")
    model = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1024)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(6):
        train(model, optimizer, 8192 + 4096 * (step % 2))
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
