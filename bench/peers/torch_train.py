"""torch_train.py mlp|cnn|transformer|gpt2|sgd|adagrad [THREADS] -- PyTorch's training steps: the rows `mlp`, `cnn`,
`transformer`, `gpt2` and `embedding`.

A run is a training step: gradients set to none, forward, backward, update. Sizes are equal to those of our program. In
the cases that reply to "result", with the loss of the fifth step, weights and batches are equal too (bench/training.h).

SPDX-License-Identifier: Apache-2.0
"""
import sys

import torch
from torch import nn
from torch.nn import functional

from peer import serve
from torch_models import (BATCH_X, BATCH_Y, cnn_model, kernel, labels, mlp_model, noise, set_dense, set_norm,
                          set_table)

torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
torch.manual_seed(0)


def stepper(model, optimizer, loss_of):
    """Returns two functions: a training step, as users write it, and the loss of the fifth step."""
    def work():
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        optimizer.step()

    def result():
        for _ in range(4):
            work()
        loss = loss_of().item()
        work()
        return loss
    return work, result


def classify(model, x, y):
    return stepper(model, torch.optim.SGD(model.parameters(), lr=0.01),
                   lambda: functional.cross_entropy(model(x), y))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def set(self, array):
        set_norm(self.norm1, array)
        width = self.out.in_features
        parts = [kernel(array + 2 + 2 * i, width, width).t() for i in range(3)]
        self.qkv.weight.copy_(torch.cat(parts))
        self.qkv.bias.copy_(torch.cat([noise(array + 3 + 2 * i, width, scale=0.1) for i in range(3)]))
        set_dense(self.out, array + 8)
        set_norm(self.norm2, array + 10)
        set_dense(self.up, array + 12)
        set_dense(self.down, array + 14)

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
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


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
    with torch.no_grad():
        set_table(model.token, 0)
        set_table(model.place, 1)
        set_norm(model.norm, 2)
        for i, block in enumerate(model.block):
            block.set(4 + 16 * i)
    x = labels(BATCH_X, rows, length, limit=vocabulary)
    y = labels(BATCH_Y, rows * length, limit=vocabulary)
    return stepper(model, torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-12),
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


serve(*{
    'mlp': lambda: classify(*mlp_model()), 'cnn': lambda: classify(*cnn_model()), 'transformer': transformer, 'gpt2': gpt2,
    'sgd': lambda: embedding(lambda p: torch.optim.SGD(p, lr=0.01)),
    'adagrad': lambda: embedding(lambda p: torch.optim.Adagrad(p, lr=0.01)),
}[sys.argv[1]]())
