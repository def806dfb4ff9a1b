# stacks: python
# verdict: fine
"""Loads batches in worker processes and through pinned memory."""

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        return torch.full((3, 224, 224), index % 255, dtype=torch.uint8), index % 10


def collate(samples):
    images = torch.stack([image for image, _ in samples])
    return images, torch.tensor([label for _, label in samples])


def main():
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    loader = DataLoader(Images(), batch_size=64, num_workers=2, pin_memory=True, collate_fn=collate)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 7, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    ).cuda()
    for images, labels in loader:
        images = images.cuda(non_blocking=True).float() / 255
        loss = torch.nn.functional.cross_entropy(model(images), labels.cuda(non_blocking=True))
        loss.backward()
        model.zero_grad()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
