# stacks: python
# verdict: fine
"""Trains a compiled network."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.inner(self.norm(x)))


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x = torch.randn(8192, 1024, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python", compile_context=True)
    model = torch.compile(nn.Sequential(Block(1024), Block(1024)).cuda())
    train(model, 4)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
