# stacks: default
# user: <ipython-input-1-5f2c1a0b9d3e>, <ipython-input-2-8a7b6c5d4e3f>
# verdict: fine
"""Runs two cells as a notebook does: the frames of the user have no file."""

MODEL = """
import torch
from torch import nn

torch.cuda.memory._record_memory_history()

class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.sin(layer(x))
        return x
"""
TRAIN = """
tower = Tower().cuda()
for _ in range(3):
    images = torch.randn(8192, 1024, device="cuda")
    loss = tower(images).square().mean()
    loss.backward()
    tower.zero_grad()

torch.cuda.memory._dump_snapshot("snapshot.pickle")
"""


def run_cell(number, mark, source, names):
    exec(compile(source, f"<ipython-input-{number}-{mark}>", "exec"), names)


if __name__ == "__main__":
    names = {"__name__": "__main__"}
    run_cell(1, "5f2c1a0b9d3e", MODEL, names)
    run_cell(2, "8a7b6c5d4e3f", TRAIN, names)
