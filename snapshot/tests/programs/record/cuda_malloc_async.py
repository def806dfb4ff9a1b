# stacks: python
# conf: backend:cudaMallocAsync
# verdict: unsupported
"""Tries to record with CUDA's own pool, which PyTorch may refuse; keeps the message then."""

import torch


def main():
    torch.cuda.memory._record_memory_history(stacks="python")
    kept = [torch.zeros(k << 20, dtype=torch.uint8, device="cuda") for k in range(1, 40)]
    del kept[::3]
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        if "support" not in str(error):
            raise
        with open("unsupported.txt", "w") as file:
            file.write(f"{type(error).__name__}: {error}\n")
        print(error)
