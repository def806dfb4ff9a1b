# cause: a list keeps each loss with its graph and all activations
# codes: leak|does_not_fit|growth
# says: leak|grow|fit
# line: fail/leak_list.py:25 in forward
# fails: fail/leak_list.py:25 in forward, fail/leak_list.py:32 in validate
# fix: keep loss.item(), or validate under torch.no_grad()
# fix says: item|no_grad|list|keep
# device: whole
"""Validates without `torch.no_grad()` and keeps each loss."""

import torch
from failing import fixed, save, start
from torch import nn

WIDTH = 1024


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # holds fails
        return x


def validate(model, rows):
    losses = []
    for _ in range(40):
        images = torch.randn(rows, WIDTH, device="cuda")  # fails
        loss = model(images).mean()
        losses.append(loss.item() if fixed() else loss)
    return sum(losses) / len(losses)


def main():
    unit = start()
    model = Net().cuda()
    try:
        print("mean loss", float(validate(model, unit // 2 // (4 * WIDTH))))
        print("ok")
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
