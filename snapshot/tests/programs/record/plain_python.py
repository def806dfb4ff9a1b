# stacks: python
# verdict: fine
"""Trains a small network in a plain loop."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(1024, 4096)
        self.second = nn.Linear(4096, 10)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.second(hidden)


def train(model, steps):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        images = torch.randn(4096, 1024, device="cuda")
        labels = torch.randint(0, 10, (4096,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    train(Net().cuda(), 8)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
