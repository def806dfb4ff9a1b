# stacks: default
# conf: expandable_segments:True
# verdict: fine
"""Trains with expandable segments on batches whose length changes."""

import torch
from torch import nn


def step(model, optimizer, length):
    x = torch.randn(16, length, 256, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for length in (128, 512, 256, 700):
        step(model, optimizer, length)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
