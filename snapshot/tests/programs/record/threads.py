# stacks: python
# verdict: fine
"""Serves requests in a pool of threads; the main thread allocates nothing."""

from concurrent.futures import ThreadPoolExecutor

import torch


class Server:
    def __init__(self, width=2048):
        self.width = width
        self.cache = {}

    def weight(self, name):
        if name not in self.cache:
            self.cache[name] = torch.randn(self.width, self.width, device="cuda")
        return self.cache[name]

    def answer(self, request):
        x = torch.randn(512 * (1 + request % 4), self.width, device="cuda")
        for name in ("query", "key", "value"):
            x = torch.relu(x @ self.weight(name))
        return x.sum().item()


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    server = Server()
    with ThreadPoolExecutor(max_workers=4) as pool:
        sums = list(pool.map(server.answer, range(32)))
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
