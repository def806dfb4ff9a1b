"""Trains ResNet-50, while a side stream copies the next images to the GPU.

python prefetch.py LOG.pickle [STEPS]

Writes a memory snapshot. `millpond-replay import LOG.pickle -o LOG.csv.gz` turns it into a log.
"""

import sys

import torch
import torchvision

BATCH = 32


def batches(steps):
    """Yield batches of changing resolution, each copied on a side stream while the step before runs."""
    side = torch.cuda.Stream()
    sizes = [160, 192, 224, 176, 208]

    def load(step):
        size = sizes[step % len(sizes)]
        images = torch.empty(BATCH, 3, size, size, pin_memory=True).normal_()
        labels = torch.randint(0, 1000, (BATCH,)).pin_memory()
        with torch.cuda.stream(side):
            return images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)

    following = load(0)
    for step in range(steps):
        torch.cuda.current_stream().wait_stream(side)
        images, labels = following
        for tensor in (images, labels):
            tensor.record_stream(torch.cuda.current_stream())
        following = load(step + 1)
        yield images, labels


def main():
    path, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30
    torch.manual_seed(1)
    torch.cuda.memory._record_memory_history(max_entries=10_000_000, context=None, stacks="python")
    model = torchvision.models.resnet50(weights=None).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for images, labels in batches(steps):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(path)


if __name__ == "__main__":
    main()
