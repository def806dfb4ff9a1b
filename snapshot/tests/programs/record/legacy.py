# stacks: python
# verdict: fine
"""Records with the arguments of PyTorch 2.0, and pickles the snapshot itself."""

import pickle

import torch


def convolutions(size):
    x = torch.randn(16, 8, size, size, device="cuda")
    weight = torch.randn(8, 8, 3, 3, device="cuda")
    outputs = []
    for _ in range(4):
        x = torch.nn.functional.conv2d(x, weight, padding=1)
        outputs.append(x)
    return outputs


torch.cuda.memory._record_memory_history(
    True,
    # keep 100,000 alloc/free events from before the snapshot
    trace_alloc_max_entries=100_000,
    # record stack information for the trace events
    trace_alloc_record_context=True,
)
for size in (128, 192, 256):
    kept = convolutions(size)
snapshot = torch.cuda.memory._snapshot()
with open("snapshot.pickle", "wb") as file:
    pickle.dump(snapshot, file)
