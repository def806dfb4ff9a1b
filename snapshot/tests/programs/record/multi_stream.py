# stacks: python
# verdict: any
"""Copies batches on a second stream while the first computes."""

import torch


class Prefetcher:
    def __init__(self, batches):
        self.batches = batches
        self.stream = torch.cuda.Stream()

    def __iter__(self):
        for batch in self.batches:
            with torch.cuda.stream(self.stream):
                moved = batch.to("cuda", non_blocking=True)
                scaled = moved.float().div_(255)
            torch.cuda.current_stream().wait_stream(self.stream)
            scaled.record_stream(torch.cuda.current_stream())
            yield scaled


def compute(x, weight):
    for _ in range(20):
        x = torch.tanh(x @ weight)
    return x.mean(dim=0)


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    batches = [
        torch.randint(0, 255, (2048 + 512 * k, 2048), dtype=torch.uint8).pin_memory() for k in range(8)
    ]
    weight = torch.randn(2048, 2048, device="cuda")
    means = [compute(batch, weight) for batch in Prefetcher(batches)]
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
