"""Fine-tunes a small Llama with adapters of low rank and gradient checkpointing, on texts of changing length.

python lora.py LOG.pickle [STEPS]

Writes a memory snapshot. `millpond-replay import LOG.pickle -o LOG.csv.gz` turns it into a log.
"""

import sys

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

RANK = 16


class Adapter(nn.Module):
    """A frozen linear layer, and an update of low rank."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, RANK, bias=False, device="cuda", dtype=base.weight.dtype)
        self.up = nn.Linear(RANK, base.out_features, bias=False, device="cuda", dtype=base.weight.dtype)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapted(model):
    """Freeze a model, and give the projections of its attention adapters."""
    model.requires_grad_(False)
    for layer in model.model.layers:
        attention = layer.self_attn
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(attention, name, Adapter(getattr(attention, name)))
    return model


def main():
    path, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    torch.manual_seed(1)
    torch.cuda.memory._record_memory_history(max_entries=10_000_000, context=None, stacks="python")
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=16,
        use_cache=False,
    )
    model = adapted(LlamaForCausalLM(config).to("cuda", torch.bfloat16))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    for step in range(steps):
        length = 256 + 128 * (step * 7 % 11)
        tokens = torch.randint(0, config.vocab_size, (8, length), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(path)


if __name__ == "__main__":
    main()
