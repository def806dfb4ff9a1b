# stacks: python
# verdict: fine
"""Trains in half precision with a gradient scaler."""

import torch
from torch import nn


def loss_of(model, x, target):
    with torch.autocast("cuda", dtype=torch.float16):
        prediction = model(x)
        return nn.functional.mse_loss(prediction, target)


def main():
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    model = nn.Sequential(nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 2048)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(5):
        x = torch.randn(8192, 2048, device="cuda")
        target = torch.randn(8192, 2048, device="cuda")
        scaler.scale(loss_of(model, x, target)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
