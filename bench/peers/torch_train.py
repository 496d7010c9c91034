"""torch_train.py mlp|cnn|transformer|gpt2|sgd|adagrad [THREADS] -- PyTorch's training steps: the rows `mlp`, `cnn`,
`transformer`, `gpt2` and `embedding`.

Each run is a whole step: gradients set to none, forward, backward, update. Sizes are those of the row's own program.

SPDX-License-Identifier: Apache-2.0
"""
import sys

import torch
from torch import nn
from torch.nn import functional

from peer import serve

torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
torch.manual_seed(0)


def stepper(model, optimizer, loss_of):
    """One step of training, as users write it."""
    def work():
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        optimizer.step()
    return work


def mlp():
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                          nn.Linear(512, 10))
    x, y = torch.randn(128, 784), torch.randint(0, 10, (128,))
    return stepper(model, torch.optim.SGD(model.parameters(), lr=0.01),
                   lambda: functional.cross_entropy(model(x), y))


def cnn():
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(64 * 5 * 5, 128), nn.ReLU(), nn.Linear(128, 10))
    x, y = torch.randn(128, 1, 28, 28), torch.randint(0, 10, (128,))
    return stepper(model, torch.optim.SGD(model.parameters(), lr=0.01),
                   lambda: functional.cross_entropy(model(x), y))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        n, t, width = x.shape
        parts = self.qkv(x).view(n, t, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if hasattr(functional, 'scaled_dot_product_attention'):
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            score = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            y = score.masked_fill(~mask, float('-inf')).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate='tanh'))


class Gpt(nn.Module):
    def __init__(self, vocabulary, layers, width, heads, length):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.block = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        return functional.linear(self.norm(self.block(x)), self.token.weight)


def language(vocabulary, layers, width, heads, rows, length):
    model = Gpt(vocabulary, layers, width, heads, length)
    ids = torch.randint(0, vocabulary, (rows, length + 1))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)
    return stepper(model, torch.optim.AdamW(model.parameters(), lr=1e-4),
                   lambda: functional.cross_entropy(model(x).view(-1, vocabulary), y))


def transformer():
    return language(1000, 6, 384, 6, 8, 128)


def gpt2():
    return language(50257, 12, 768, 12, 4, 64)


def embedding(make):
    table = nn.EmbeddingBag(4 << 20, 64, mode='sum', sparse=True)
    ids = torch.randint(0, 4 << 20, (16, 2048, 26))
    turn = [0]

    def loss_of():
        turn[0] = (turn[0] + 1) % len(ids)
        return table(ids[turn[0]]).sum()
    return stepper(table, make(table.parameters()), loss_of)


serve({
    'mlp': mlp, 'cnn': cnn, 'transformer': transformer, 'gpt2': gpt2,
    'sgd': lambda: embedding(lambda p: torch.optim.SGD(p, lr=0.01)),
    'adagrad': lambda: embedding(lambda p: torch.optim.Adagrad(p, lr=0.01)),
}[sys.argv[1]]())
