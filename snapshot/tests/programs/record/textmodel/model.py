"""The layers of the language model: `model.layers.N.attention` and `model.layers.N.mlp`."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        scores = query @ key.transpose(2, 3) / (width // self.heads) ** 0.5
        mixed = scores.softmax(dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = Mlp(width)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self, words, width, layers, heads):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


class TextModel(nn.Module):
    def __init__(self, words=4000, width=512, layers=3, heads=8):
        super().__init__()
        self.model = Decoder(words, width, layers, heads)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        return self.head(self.model(tokens))

    def loss(self, tokens):
        logits = self(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def random_tokens(batch, length, words=4000):
    return torch.randint(0, words, (batch, length), device="cuda")
