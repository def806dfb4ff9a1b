# cause: the private pools of CUDA graphs keep their free memory
# codes: other_pool|private_pool|graph
# says: pool|graph
# line: fail/graph_pools.py:16 in run_model
# fails: fail/graph_pools.py:35 in main
# fix: share one pool among the graphs
# fix says: pool
# device: whole
"""Captures a graph for each batch size, each with a pool of its own."""

import torch
from failing import fixed, save, start


def run_model(unit):
    hidden = torch.zeros(12 * unit, dtype=torch.uint8, device="cuda")  # holds
    return hidden[:1024] * 2


def capture(unit, pool):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = run_model(unit)
    return graph, output


def main():
    unit = start()
    _warm_up = torch.zeros(1024, dtype=torch.uint8, device="cuda") * 2
    captured = []
    try:
        for _ in range(5):
            pool = captured[0][0].pool() if captured and fixed() else None
            captured.append(capture(unit, pool))
        images = torch.zeros(8 * unit, dtype=torch.uint8, device="cuda")  # fails
        for graph, _ in captured:
            graph.replay()
        torch.cuda.synchronize()
        print("ok", len(images))
    except torch.OutOfMemoryError as error:
        save(error)


if __name__ == "__main__":
    main()
