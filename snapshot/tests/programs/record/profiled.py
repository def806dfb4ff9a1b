# stacks: python
# verdict: fine
"""Trains under PyTorch's profiler, with ranges that the user named."""

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def step(model, optimizer):
    x = torch.randn(8192, 1024, device="cuda")
    with record_function("forward"):
        loss = model(x).square().mean()
    with record_function("backward"):
        loss.backward()
    with record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def main():
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace("trace.json.gz"),
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
    ) as profiler:
        for _ in range(5):
            step(model, optimizer)
            profiler.step()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
