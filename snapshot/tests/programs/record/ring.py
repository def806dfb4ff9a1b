# stacks: python
# history: wrapped
# verdict: too_little
"""Records only the last 300 events of a longer program."""

import torch
from torch import nn


def step(model, optimizer):
    x = torch.randn(2048, 1024, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def main():
    torch.cuda.memory._record_memory_history(max_entries=300, stacks="python")
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(12):
        step(model, optimizer)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
