"""Trains a transformer or a ResNet on a GPU with one of four allocators, and prints the time and memory used.

python python/examples/training.py --model transformer --allocator millpond --shapes changing --steps 40
python python/examples/training.py --compare --steps 40      # all of them, as a table in Markdown

Each run prints one line of JSON with these keys, among others:
- `losses`: the loss of each step. It is equal for all allocators, because everything else is deterministic.
- `step_ms`: the median time of a step in milliseconds, without the first three steps.
- `device_peak`: the highest use of the device's memory in bytes, minus the use right after the CUDA context
  was made. The program calls `cudaMemGetInfo` every 5 ms and after each step, so it may miss a short peak.
- `allocated_peak`: the most bytes that tensors used at once, as the allocator counts them.
- `reserved_peak`: the most bytes that the allocator reserved at once.
- `served`: millpond's share of PyTorch's memory at the end.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

ALLOCATORS = ("default", "expandable", "millpond", "mempool")
MODELS = ("transformer", "resnet")
SHAPES = ("fixed", "changing")
WARM_UP = 3

#: A function that makes a step's inputs and targets from the step's number and a random generator.
Batch = Callable[[int, Any], tuple[Any, Any]]


def parse() -> argparse.Namespace:
    """Return the parsed arguments."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="transformer")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="millpond")
    parser.add_argument("--shapes", choices=SHAPES, default="changing")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--small", action="store_true", help="models that train in a second, as a check")
    parser.add_argument("--stack", default="cuda+pool", help="millpond's stack")
    parser.add_argument("--compare", action="store_true", help="run all combinations, and print a table")
    return parser.parse_args()


# --- The models ---


def transformer(torch: Any, options: argparse.Namespace) -> tuple[Any, Batch]:
    """Return a language model, and a function that makes the batch of a step."""
    nn: Any = torch.nn
    width, layers, words = (128, 2, 1000) if options.small else (1024, 12, 32_000)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            layer = nn.TransformerEncoderLayer(
                width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.out = nn.Linear(width, words)

        def forward(self, tokens: Any) -> Any:
            return self.out(self.layers(self.words(tokens))).flatten(0, 1)

    def batch(step: int, generator: Any) -> tuple[Any, Any]:
        longest = 128 if options.small else 1024
        length = longest
        if options.shapes == "changing":
            length = longest // 8 * (1 + step * 5 % 8) + step % 3 * 8
        shape = (8, length + 1)
        tokens = torch.randint(words, shape, generator=generator, device="cuda")
        return tokens[:, :-1], tokens[:, 1:].flatten()

    return Model(), batch


def resnet(torch: Any, options: argparse.Namespace) -> tuple[Any, Batch]:
    """Return a ResNet of bottleneck blocks for images, and a function that makes the batch of a step."""
    nn: Any = torch.nn
    depths, width, classes = ((1, 1), 16, 10) if options.small else ((3, 4, 6, 3), 64, 1000)

    def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> Any:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
        )

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                convolution(inputs, width, 1), nn.ReLU(),
                convolution(width, width, 3, stride), nn.ReLU(),
                convolution(width, 4 * width, 1),
            )
            same = stride == 1 and inputs == 4 * width
            self.past = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.body(x) + self.past(x))

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            parts, inputs = [convolution(3, width, 7, 2), nn.ReLU()], width
            for stage, depth in enumerate(depths):
                for block in range(depth):
                    parts.append(Block(inputs, width << stage, 2 if block == 0 else 1))
                    inputs = 4 * (width << stage)
            self.body, self.out = nn.Sequential(*parts), nn.Linear(inputs, classes)

        def forward(self, images: Any) -> Any:
            return self.out(self.body(images).mean((2, 3)))

    def batch(step: int, generator: Any) -> tuple[Any, Any]:
        images, pixels = (4, 32) if options.small else (64, 224)
        if options.shapes == "changing":
            images, pixels = images // 2 + images // 4 * (step % 3), pixels // 7 * (5 + step * 5 % 6)
        data = torch.randn((images, 3, pixels, pixels), generator=generator, device="cuda")
        return data, torch.randint(classes, (images,), generator=generator, device="cuda")

    return Model(), batch


# --- One run ---


class DeviceMemory:
    """Samples how much memory of the device is in use, and keeps the maximum."""

    def __init__(self, torch: Any) -> None:
        self.ask = torch.cuda.cudart().cudaMemGetInfo
        self.before = self.peak = 0
        self.before = self.sample()
        self.peak, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def sample(self) -> int:
        """Sample now. Return the bytes in use, minus the bytes in use at the start."""
        free, total = self.ask(0)
        used: int = total - free - self.before
        self.peak = max(self.peak, used)
        return used

    def watch(self) -> None:
        """Sample until `end` is called."""
        while not self.done.wait(0.005):
            self.sample()

    def end(self) -> int:
        """Stop sampling, and return the highest sample in bytes."""
        self.done.set()
        self.thread.join()
        return self.peak


def train(options: argparse.Namespace) -> None:
    """Train, and print the results."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if options.allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if options.allocator == "millpond":
        import millpond.torch

        millpond.torch.use(options.stack)
    torch.cuda.init()
    torch.cuda.synchronize()
    memory = DeviceMemory(torch)
    pool = None
    if options.allocator == "mempool":
        import millpond.torch

        pool = millpond.torch.mem_pool(options.stack)
        scope = millpond.torch.use_mem_pool(pool)
    losses, times = [], []
    with scope:
        torch.manual_seed(1)
        generator = torch.Generator("cuda").manual_seed(1)
        model, batch = {"transformer": transformer, "resnet": resnet}[options.model](torch, options)
        model = model.cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for step in range(options.steps):
            torch.cuda.synchronize()
            start = time.perf_counter()
            inputs, targets = batch(step, generator)
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            memory.sample()
        result = {
            "model": options.model,
            "shapes": options.shapes,
            "allocator": options.allocator,
            "steps": options.steps,
            "losses": losses,
            "step_ms": statistics.median(times[WARM_UP:] or times) * 1e3,
            "device_peak": memory.end(),
            "allocated_peak": torch.cuda.max_memory_allocated(),
            "reserved_peak": torch.cuda.max_memory_reserved(),
            "served": served(torch, options, pool),
        }
    print(json.dumps(result))


def served(torch: Any, options: argparse.Namespace, pool: Any) -> float:
    """Return millpond's share of PyTorch's memory at the end."""
    if options.allocator == "mempool":
        sizes = {True: 0, False: 0}
        for segment in torch.cuda.memory_snapshot():
            sizes[tuple(segment["segment_pool_id"]) == tuple(pool.id)] += segment["total_size"]
        return sizes[True] / sum(sizes.values())
    # After `millpond.torch.use()`, all memory comes from millpond.
    return float(options.allocator == "millpond")


# --- All runs ---


def compare(options: argparse.Namespace) -> None:
    """Train with each model, shape and allocator, each in a separate process; print a Markdown table."""
    gib = float(1 << 30)
    print("| model | shapes | allocator | loss | step, ms | device, GiB | tensors, GiB | millpond's |")
    print("|---|---|---|---|---|---|---|---|")
    is_same = True
    for model, shapes in itertools.product(MODELS, SHAPES):
        first = None
        for allocator in ALLOCATORS:
            command = [sys.executable, __file__, "--model", model, "--shapes", shapes]
            command += ["--allocator", allocator, "--steps", str(options.steps), "--stack", options.stack]
            command += ["--small"] * options.small
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(done.stderr, file=sys.stderr)
                sys.exit(f"{model}, {shapes}, {allocator}: failed with {done.returncode}")
            run = json.loads(done.stdout.splitlines()[-1])
            first = first or run["losses"]
            is_equal = run["losses"] == first
            is_same &= is_equal
            print(
                f"| {model} | {shapes} | {allocator} "
                f"| {run['losses'][-1]:.6f}{'' if is_equal else ' DIFFERS'} "
                f"| {run['step_ms']:.1f} | {run['device_peak'] / gib:.2f} "
                f"| {run['allocated_peak'] / gib:.2f} | {run['served']:.1%} |",
                flush=True,
            )
    if not is_same:
        sys.exit("the losses differ")


if __name__ == "__main__":
    arguments = parse()
    if arguments.compare:
        compare(arguments)
    else:
        train(arguments)
