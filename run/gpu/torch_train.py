"""Trains a small network, and prints its result bit by bit."""

import sys
import time

import torch

torch.manual_seed(0)
torch.backends.cudnn.benchmark = False
torch.use_deterministic_algorithms(True, warn_only=True)


def step(model: torch.nn.Module, adam: torch.optim.Optimizer, images: torch.Tensor) -> torch.Tensor:
    loss = model(images).square().mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    return loss.detach()


layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64 * 62 * 62, 256)]
model = torch.nn.Sequential(*layers).cuda()
adam = torch.optim.Adam(model.parameters())
images = [torch.randn(size, 3, 64, 64, device="cuda") for size in (64, 96, 128)]
loss = torch.zeros(())
for number in range(400):
    if number == 10:
        torch.cuda.synchronize()
        start = time.perf_counter()
    loss = step(model, adam, images[number % 3])
torch.cuda.synchronize()
print(f"loop {time.perf_counter() - start:.6f}", file=sys.stderr)
print(loss.cpu().numpy().tobytes().hex(), [p.double().sum().item().hex() for p in model.parameters()])
