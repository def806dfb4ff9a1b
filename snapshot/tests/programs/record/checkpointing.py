# stacks: default
# verdict: fine
"""Trains with activation checkpointing, which runs each block again in the backward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        hidden = nn.functional.gelu(self.up(x))
        return x + self.down(hidden)


class Stack(nn.Module):
    def __init__(self, width=512, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history()
    model = Stack().cuda()
    for _ in range(3):
        x = torch.randn(16_384, 512, device="cuda", requires_grad=True)
        model(x).square().mean().backward()
        model.zero_grad()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
