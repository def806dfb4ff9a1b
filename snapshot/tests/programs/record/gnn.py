# stacks: python
# verdict: fine
"""Trains a graph network of torch-geometric."""

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GCNConv(64, 128)
        self.second = GATConv(128, 16, heads=4)
        self.last = torch.nn.Linear(64, 8)

    def forward(self, x, edges):
        x = torch.relu(self.first(x, edges))
        x = torch.relu(self.second(x, edges))
        return self.last(x)


def random_graph(nodes, edges):
    ends = torch.randint(0, nodes, (2, edges))
    return Data(x=torch.randn(nodes, 64), edge_index=ends, y=torch.randint(0, 8, (nodes,)))


def main():
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    model = Network().to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        data = random_graph(20_000 + 5_000 * step, 200_000 + 60_000 * step).to("cuda")
        loss = torch.nn.functional.cross_entropy(model(data.x, data.edge_index), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
