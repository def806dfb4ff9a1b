# stacks: all
# verdict: fine
"""Samples from a small GPT-2 of random weights, with C++ frames in each stack."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.cuda.memory._record_memory_history(stacks="all")

config = GPT2Config(
    vocab_size=2000, n_positions=512, n_embd=256, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config).to("cuda").eval()
prompt = torch.randint(1, 2000, (32, 128), device="cuda")
with torch.no_grad():
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        min_new_tokens=6,
        max_new_tokens=6,
        do_sample=True,
        top_k=50,
        pad_token_id=0,
    )
torch.cuda.memory._dump_snapshot("snapshot.pickle")
