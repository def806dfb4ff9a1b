# stacks: python
# verdict: fine
"""Captures the inference of two batch sizes as CUDA graphs and replays them."""

import torch
from torch import nn


def capture(model, batch):
    static = torch.zeros(batch, 1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            model(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = model(static)
    return graph, static, output


@torch.no_grad()
def main():
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda().eval()
    graphs = {batch: capture(model, batch) for batch in (2048, 8192)}
    answers = []
    for graph, static, output in graphs.values():
        static.copy_(torch.randn_like(static))
        graph.replay()
        answers.append(output.clone())
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
