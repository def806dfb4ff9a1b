# stacks: python
# verdict: fine
"""Generates text with a small Llama of random weights."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build():
    config = LlamaConfig(
        vocab_size=4000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


@torch.inference_mode()
def answer(model, prompt, count):
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        min_new_tokens=count,
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    model = build()
    prompt = torch.randint(10, 4000, (16, 512), device="cuda")
    answer(model, prompt, 12)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
