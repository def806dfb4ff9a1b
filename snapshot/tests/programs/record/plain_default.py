# stacks: default
# verdict: fine
"""Trains a small network as PyTorch's documentation shows it, with the default stacks."""

import torch
from torch import nn

torch.cuda.memory._record_memory_history()

model = nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 1))
model = model.to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

for _step in range(6):
    x = torch.randn(8192, 2048, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

torch.cuda.memory._dump_snapshot("snapshot.pickle")
