# cause: set_per_process_memory_fraction limits the process to 1.5 GiB
# codes: limit|fraction
# says: limit|fraction
# line: fail/fraction.py:23 in forward
# fails: fail/fraction.py:23 in forward
# fix: raise set_per_process_memory_fraction
# fix says: set_per_process_memory_fraction
# device: part
"""Trains with larger batches under a limit that forbids most of the device."""

import torch
from failing import MIB, fixed, save, start
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # holds fails
        return x


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in (16_384, 32_768, 65_536, 131_072):
        loss = model(torch.randn(batch, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    start(stacks="all")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if fixed() else 1536 * MIB / total)
    model = Net().cuda()
    try:
        train(model)
        torch.cuda.synchronize()
        print("ok")
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
