# stacks: all
# user: textmodel/model.py
# env: TORCH_SYMBOLIZE_MODE=fast
# verdict: fine
"""Runs one forward pass with C++ frames that have file names and lines."""

import torch
from textmodel import TextModel
from textmodel.model import random_tokens

if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    model = TextModel(layers=1, width=256).cuda()
    with torch.no_grad():
        scores = model(random_tokens(16, 256))
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
