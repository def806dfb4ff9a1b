# stacks: all
# user: textmodel/model.py
# verdict: fine
"""Trains a small language model, with C++ frames in each stack."""

import torch
from textmodel import TextModel
from textmodel.model import random_tokens


def train_step(model, optimizer, tokens):
    loss = model.loss(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="all")
    model = TextModel(layers=2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(2):
        train_step(model, optimizer, random_tokens(16, 257))
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)
