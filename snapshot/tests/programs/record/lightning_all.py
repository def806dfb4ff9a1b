# stacks: all
# history: late
# verdict: any
"""Trains an autoencoder with Lightning, with C++ frames in each stack."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STACKS = "all"


class AutoEncoder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 64))
        self.decoder = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 3072))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        code = self.encoder(x)
        return nn.functional.mse_loss(self.decoder(code), x)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Recorder(pl.Callback):
    def on_fit_start(self, trainer, module):
        torch.cuda.memory._record_memory_history(max_entries=100_000, stacks=STACKS)

    def on_train_end(self, trainer, module):
        torch.cuda.memory._dump_snapshot("snapshot.pickle")


if __name__ == "__main__":
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=1,
        limit_train_batches=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Recorder()],
    )
    data = DataLoader(TensorDataset(torch.randn(20_480, 3072)), batch_size=4096)
    trainer.fit(AutoEncoder(), data)
