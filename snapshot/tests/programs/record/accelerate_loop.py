# stacks: default
# verdict: fine
"""Trains with accelerate in bfloat16."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU())
        self.head = nn.Linear(2048, 100)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    accelerator = Accelerator(mixed_precision="bf16")
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(8192, 1024), torch.randint(0, 100, (8192,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4096))
    for _epoch in range(2):
        for x, labels in loader:
            loss = nn.functional.cross_entropy(model(x), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
