# stacks: default
# verdict: any
"""Trains torchvision's ResNet on images whose resolution changes."""

import torch
import torchvision


def train(model, sizes):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for size in sizes:
        images = torch.randn(16, 3, size, size, device="cuda")
        labels = torch.randint(0, 10, (16,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history()
    model = torchvision.models.resnet18(weights=None, num_classes=10).cuda()
    train(model, [128, 224, 160])
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
