# stacks: python
# history: state
# verdict: too_little
"""Records the live blocks and no history."""

import torch
from torch import nn


def build():
    layers = [nn.Linear(2048, 2048) for _ in range(6)]
    return nn.Sequential(*layers).cuda()


def features(model, count):
    kept = []
    with torch.no_grad():
        for _ in range(count):
            x = torch.randn(4096, 2048, device="cuda")
            kept.append(model(x))
    return kept


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(enabled="state", stacks="python")
    model = build()
    kept = features(model, 10)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
