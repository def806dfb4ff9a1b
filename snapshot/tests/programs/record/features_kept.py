# stacks: python
# verdict: any
"""Extracts features and keeps them on the GPU, so live memory grows until the end."""

import torch
from torch import nn


class Extractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 64, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(64)

    def forward(self, images):
        return torch.relu(self.norm(self.convolution(images)))


@torch.no_grad()
def extract(model, batches):
    features = []
    for _ in range(batches):
        images = torch.randn(32, 3, 128, 128, device="cuda")
        features.append(model(images))
    return torch.cat(features)


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    features = extract(Extractor().cuda().eval(), 24)
    print(features.shape)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
