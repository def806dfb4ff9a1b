# stacks: python
# verdict: fine
"""Trains with an operation whose backward pass the user wrote."""

import torch


class ScaledExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        result = torch.exp(x * scale)
        ctx.save_for_backward(result)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        inner = gradient * result
        return inner * ctx.scale, None


def main():
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    weight = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    for _ in range(6):
        x = torch.randn(4096, 2048, device="cuda")
        hidden = ScaledExp.apply(x @ weight, 1e-3)
        hidden.mean().backward()
        with torch.no_grad():
            weight -= 1e-3 * weight.grad
        weight.grad = None
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
