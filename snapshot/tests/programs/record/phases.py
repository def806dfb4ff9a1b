# stacks: python
# verdict: any
"""Names its phases for the recorder, and keeps one more tensor in each."""

import torch
from torch.profiler import record_function


def step(model, history):
    x = torch.randn(4096, 1024, device="cuda")
    with record_function("## forward ##"):
        loss = model(x).square().mean()
    with record_function("## backward ##"):
        loss.backward()
    with record_function("## keep ##"):
        history.append(x.clone())
    model.zero_grad()


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(
        max_entries=100_000, stacks="python", global_record_annotations=True
    )
    torch.cuda.memory._set_memory_metadata("build")
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)
    ).cuda()
    history = []
    for number in range(8):
        torch.cuda.memory._set_memory_metadata(f"step {number}")
        with record_function("step"):
            step(model, history)
    torch.cuda.memory._set_memory_metadata("")
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
