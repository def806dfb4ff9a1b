# stacks: python
# history: late
# verdict: too_little
"""Begins to record after the model and the optimizer have their memory."""

import torch
from torch import nn


def train(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(4096, 2048, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(10)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    train(model, optimizer, 3)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
