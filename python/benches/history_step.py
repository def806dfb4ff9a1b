"""Measures what a recorded history costs a training step of PyTorch on millpond, and reads the snapshot.

python python/benches/history_step.py [--rounds 12] [--steps 10] [--out snapshot.pickle]

Rounds without a history and with one take turns in one process. The times are medians over the rounds. Then
PyTorch's own viewer reads the snapshot. Needs PyTorch and a GPU.
"""

import argparse
import pickle
import statistics
import time

import torch

import millpond.torch

WIDTH, LAYERS, LENGTH, BATCH = 512, 8, 512, 8


def model():
    """Return a small transformer."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, LAYERS).cuda()


def step(net, optimizer, length):
    """Run one training step."""
    x = torch.randn(BATCH, length, WIDTH, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def seconds(net, optimizer, steps):
    """Return the time of a step."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for number in range(steps):
        step(net, optimizer, LENGTH - 32 * (number % 4))
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", default="snapshot.pickle")
    options = parser.parse_args()
    millpond.torch.use("cuda+pool")
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    seconds(net, optimizer, options.steps)
    kinds = {
        "off": {"enabled": None},
        "no stacks": {"context": None},
        'stacks="python"': {"stacks": "python"},
        'stacks="all"': {"stacks": "all"},
    }
    times = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, arguments in kinds.items():
            torch.cuda.memory._record_memory_history(**arguments)
            times[kind].append(seconds(net, optimizer, options.steps))
    base = statistics.median(times["off"])
    for kind, found in times.items():
        median = statistics.median(found)
        print(f"{kind:16} {1e3 * median:8.3f} ms a step  {median / base:.4f}")

    torch.cuda.memory._record_memory_history(stacks="python")
    seconds(net, optimizer, 2)
    torch.cuda.memory._dump_snapshot(options.out)
    torch.cuda.memory._record_memory_history(enabled=None)
    with open(options.out, "rb") as file:
        snapshot = pickle.load(file)
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    active = sum(segment["active_size"] for segment in snapshot["segments"])
    print(f"segments {reserved} bytes, memory_reserved {torch.cuda.memory_reserved()}")
    print(f"active {active} bytes, memory_allocated {torch.cuda.memory_allocated()}")
    from torch.cuda import _memory_viz

    # `memory` and `compare` would download a program.
    for read in (_memory_viz.segsum, _memory_viz.trace, _memory_viz.trace_plot, _memory_viz.segment_plot):
        print(f"{read.__name__}: {len(read(snapshot))} characters")


if __name__ == "__main__":
    main()
