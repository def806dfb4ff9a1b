# stacks: default
# verdict: fine
"""Trains a small GPT-2 with the trainer of transformers."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.cuda.memory._record_memory_history(max_entries=100_000)


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 1000, (128,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main():
    config = GPT2Config(
        vocab_size=1000, n_positions=256, n_embd=256, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir="trained",
        max_steps=2,
        per_device_train_batch_size=16,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
    trainer.train()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    main()
