# stacks: python
# user: textmodel/model.py
# verdict: fine
"""Trains a small language model whose layers are in a package of the user."""

import torch
from textmodel import TextModel
from textmodel.model import random_tokens


def main():
    torch.cuda.memory._record_memory_history(
        enabled="all", context="all", stacks="python", max_entries=50_000
    )
    model = TextModel().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(3):
        loss = model.loss(random_tokens(16, 257))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
