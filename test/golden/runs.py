#!/usr/bin/env python3
"""runs.py -- losses of small training runs, computed without Cohort.

    python3 test/golden/runs.py > test/golden/runs.inc

Gradients are PyTorch's, in f64; update rules are Keras's, written out below. Data and initial
weights are numbers of a linear congruential generator, which test/train/test_golden.c has too.
Debian: python3-torch.

SPDX-License-Identifier: Apache-2.0
"""
import math

import torch
import torch.nn.functional as F


class Numbers:
    """x' = x * 1664525 + 1013904223 mod 2^32; the upper 24 bits are used."""

    def __init__(self, seed):
        self.x = seed

    def bits(self):
        self.x = (self.x * 1664525 + 1013904223) % 2**32
        return self.x >> 8

    def floats(self, scale, *shape):
        """In [-scale, scale); a scale that is a power of two keeps them exact in f32."""
        n = math.prod(shape)
        values = [(self.bits() / 2**23 - 1) * scale for _ in range(n)]
        return torch.tensor(values, dtype=torch.float64).reshape(shape)

    def ids(self, limit, *shape):
        return torch.tensor([self.bits() % limit for _ in range(math.prod(shape))]).reshape(shape)


def weights(*specs):
    """Returns variable i of (scale, shape) from seed 100 + i, plus 1 if it is a gain."""
    out = []
    for i, (scale, *shape) in enumerate(specs):
        w = Numbers(100 + i).floats(abs(scale), *shape)
        out.append((w + 1 if scale < 0 else w).requires_grad_())
    return out


# ---- rules: arguments are (w, its gradient, its slots, the step from 1 on) ----

def sgd(rate, momentum):
    def rule(w, g, slot, t):
        m = slot.setdefault('m', torch.zeros_like(w))
        m.mul_(momentum).sub_(rate * g)
        w.add_(m)
    return rule


def adam(rate, decay=0.0, b1=0.9, b2=0.999, eps=1e-7):
    def rule(w, g, slot, t):
        m, v = (slot.setdefault(k, torch.zeros_like(w)) for k in 'mv')
        m.mul_(b1).add_((1 - b1) * g)
        v.mul_(b2).add_((1 - b2) * g * g)
        w.sub_(rate * decay * w)
        w.sub_(rate * math.sqrt(1 - b2**t) / (1 - b1**t) * m / (v.sqrt() + eps))
    return rule


def adagrad(rate, initial=0.1, eps=1e-7):
    def rule(w, g, slot, t):
        a = slot.setdefault('a', torch.full_like(w, initial))
        a.add_(g * g)
        w.sub_(rate * g / (a + eps).sqrt())
    return rule


def touched(rule):
    """Applies the rule to the rows that have a gradient: other rows, and their slots, stay unchanged."""
    def on_rows(w, g, slot, t):
        rows = g.abs().sum(1).nonzero().flatten()
        part, some = w[rows], {k: v[rows] for k, v in slot.items()}
        rule(part, g[rows], some, t)
        w[rows] = part
        for k, v in some.items():
            slot.setdefault(k, torch.full_like(w, 0.1 if k == 'a' else 0))[rows] = v
    return on_rows


def run(name, steps, w, loss_of, rule, table=False):
    """`table`: the first variable is a table, of which a step uses some rows."""
    slots, losses = [{} for _ in w], []
    for t in range(steps):
        loss = loss_of(Numbers(1000 + t % 4))  # four batches, in turn
        grads = torch.autograd.grad(loss, w)
        losses.append(loss.item())
        with torch.no_grad():
            for i, (x, g, slot) in enumerate(zip(w, grads, slots)):
                (touched(rule) if table and i == 0 else rule)(x, g, slot, t + 1)
    print(f'static const double {name}[] = {{')
    for loss in losses:
        print(f'    {loss:.10f},')
    print('};')


# ---- models ----

def mlp(name, rule):
    w = weights((0.5, 8, 16), (0.25, 16), (0.5, 16, 4), (0.25, 4))

    def loss_of(n):
        x, y = n.floats(1, 16, 8), n.ids(4, 16)
        return F.cross_entropy(F.relu(x @ w[0] + w[1]) @ w[2] + w[3], y)
    run(name, 20, w, loss_of, rule)


def cnn(name, rule):
    w = weights((0.5, 3, 3, 1, 4), (0.25, 4), (0.25, 3, 3, 4, 8), (0.25, 8), (0.25, 32, 3),
                (0.25, 3))

    def conv(x, i):
        return F.relu(F.conv2d(x, w[i].permute(3, 2, 0, 1), w[i + 1], padding=1))

    def loss_of(n):
        x, y = n.floats(1, 6, 8, 8, 1), n.ids(3, 6)
        h = F.max_pool2d(conv(x.permute(0, 3, 1, 2), 0), 2)
        h = F.avg_pool2d(conv(h, 2), 2).permute(0, 2, 3, 1)
        return F.cross_entropy(h.reshape(6, 32) @ w[4] + w[5], y)
    run(name, 15, w, loss_of, rule)


def embedding(name, rule):
    w = weights((0.5, 20, 4), (0.5, 12, 1), (0.25, 1))

    def loss_of(n):
        ids, y = n.ids(20, 10, 3), n.ids(2, 10)
        logit = w[0][ids].reshape(10, 12) @ w[1] + w[2]
        return F.binary_cross_entropy_with_logits(logit.reshape(10), y.double())
    run(name, 20, w, loss_of, rule, table=True)


T, WIDTH, HEADS, CHARS = 6, 8, 2, 11


def transformer(name, rule):
    d = WIDTH
    w = weights((0.5, CHARS, d), (-0.25, d), (0.25, d), (0.5, d, d), (0.25, d), (0.5, d, d),
                (0.25, d), (0.5, d, d), (0.25, d), (0.5, d, d), (0.25, d), (-0.25, d), (0.25, d),
                (0.5, d, 4 * d), (0.25, 4 * d), (0.25, 4 * d, d), (0.25, d), (0.5, d, CHARS),
                (0.25, CHARS))
    mask = torch.full((T, T), -math.inf, dtype=torch.float64).triu(1)

    def heads(x, i):
        return (x @ w[i] + w[i + 1]).reshape(-1, T, HEADS, d // HEADS).transpose(1, 2)

    def loss_of(n):
        ids, y = n.ids(CHARS, 4, T), n.ids(CHARS, 4, T)
        x = w[0][ids]
        h = F.layer_norm(x, (d,), w[1], w[2], 1e-5)
        q, k, v = heads(h, 3), heads(h, 5), heads(h, 7)
        a = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(d // HEADS) + mask, -1) @ v
        x = x + a.transpose(1, 2).reshape(-1, T, d) @ w[9] + w[10]
        h = F.layer_norm(x, (d,), w[11], w[12], 1e-5)
        x = x + F.gelu(h @ w[13] + w[14]) @ w[15] + w[16]
        logits = x @ w[17] + w[18]
        return F.cross_entropy(logits.reshape(-1, CHARS), y.reshape(-1))
    run(name, 15, w, loss_of, rule, table=True)


print('/* Made by test/golden/runs.py. */')
mlp('mlp_sgd', sgd(0.5, 0))
mlp('mlp_adam', adam(0.01))
cnn('cnn_momentum', sgd(0.1, 0.9))
embedding('embedding_adagrad', adagrad(0.5))
transformer('transformer_adamw', adam(0.01, decay=0.01))
