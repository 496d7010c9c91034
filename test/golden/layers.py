#!/usr/bin/env python3
"""layers.py -- outputs and gradients of layers, computed by PyTorch; writes layers.h.

Inputs and variables are the noise of test/strategy/help.h, by seed, so that the test makes the
same numbers. The loss is the mean square of the output.

    python3 test/golden/layers.py > test/golden/layers.h

SPDX-License-Identifier: Apache-2.0
"""
import math

import numpy as np
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def noise(shape, seed):
    """t_noise: a linear congruential generator, in [-1, 1)."""
    values = []
    for _ in range(int(np.prod(shape))):
        seed = (seed * 1664525 + 1013904223) % 2**32
        values.append(np.float32(seed >> 8) / np.float32(1 << 23) - np.float32(1))
    return torch.tensor(np.array(values, dtype=np.float32).reshape(shape), dtype=torch.float64)


def variable(shape, seed):
    return noise(shape, seed).requires_grad_()


def show(name, values):
    values = [f'{v:.8e}f' for v in values.detach().flatten().tolist()]
    print(f'static const float {name}[] = {{')
    for i in range(0, len(values), 5):
        print('    ' + ', '.join(values[i:i + 5]) + ',')
    print('};')


def case(name, y, variables, more=()):
    loss = (y * y).mean()
    loss.backward()
    show(f'{name}_y', y)
    for i, v in enumerate(variables):
        show(f'{name}_d{i}', v.grad)
    for what, values in more:
        show(f'{name}_{what}', values)
    print()


def nchw(x):
    return x.permute(0, 3, 1, 2)


def nhwc(x):
    return x.permute(0, 2, 3, 1)


def conv(x, kernel, stride=1, padding=0, dilation=1, groups=1):
    """kernel (kh, kw, in / groups, out)"""
    return nhwc(F.conv2d(nchw(x), kernel.permute(3, 2, 0, 1), None, stride, padding, dilation,
                         groups))


def depthwise(x, kernel, padding=0):
    """kernel (kh, kw, c, times); output channel c * times + t"""
    kh, kw, c, times = kernel.shape
    w = kernel.permute(2, 3, 0, 1).reshape(c * times, 1, kh, kw)
    return nhwc(F.conv2d(nchw(x), w, None, 1, padding, 1, c))


def convolutions():
    x = noise((2, 5, 6, 4), 1)
    k, b = variable((3, 3, 4, 5), 10), variable((5,), 11)
    case('conv', torch.relu(conv(x, k, stride=(2, 1)) + b), [k, b])

    k, b = variable((3, 3, 2, 6), 10), variable((6,), 11)
    case('grouped', conv(x, k, padding=2, dilation=2, groups=2) + b, [k, b])

    k, b = variable((3, 3, 4, 2), 10), variable((8,), 11)
    case('depthwise', torch.tanh(depthwise(x, k, padding=1) + b), [k, b])

    d, p, b = variable((3, 3, 4, 2), 10), variable((1, 1, 8, 3), 11), variable((3,), 12)
    case('separable', conv(depthwise(x, d), p) + b, [d, p, b])

    # kernel (kh, kw, out, in); SAME with stride 2 and window 3 pads no row before
    # the input of the convolution, and a row after it
    k, b = variable((3, 3, 3, 4), 10), variable((3,), 11)
    full = F.conv_transpose2d(nchw(x), k.permute(3, 2, 0, 1), None, 2)
    case('transpose', nhwc(full) + b, [k, b])
    k, b = variable((3, 3, 3, 4), 10), variable((3,), 11)
    full = F.conv_transpose2d(nchw(x), k.permute(3, 2, 0, 1), None, 2)
    case('transpose_same', nhwc(full[:, :, :10, :12]) + b, [k, b])
    k, b = variable((3, 3, 3, 4), 10), variable((3,), 11)
    case('transpose_padded',
         nhwc(F.conv_transpose2d(nchw(x), k.permute(3, 2, 0, 1), None, 2, 1)) + b, [k, b])


def norms():
    x = noise((3, 2, 2, 4), 1)
    g, b = variable((4,), 10), variable((4,), 11)
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2), unbiased=False)
    y = (x - mean) / torch.sqrt(var + 1e-3) * g + b
    case('batch_norm', y, [g, b],
         [('mean', 0.01 * mean), ('variance', 0.99 + 0.01 * var)])

    x = noise((3, 2, 5), 1)
    g, b = variable((5,), 10), variable((5,), 11)
    case('layer_norm', F.layer_norm(x, (5,), g, b, 1e-5), [g, b])
    g = variable((5,), 10)
    case('rms_norm', x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g, [g])


def embeddings():
    t = variable((7, 3), 10)
    ids = torch.tensor([[0, 6, 2], [2, 2, 5]])
    case('embedding', F.embedding(ids, t), [t])
    t = variable((7, 3), 10)
    bags = [[0, 6], [], [2, 2, 5, 1]]
    zero = torch.zeros(3)
    case('bag', torch.stack([t[b].mean(0) if b else zero for b in bags]), [t])
    t, w = variable((7, 3), 10), noise((6,), 3)
    bags = [([0, 6], w[:2]), ([], None), ([2, 2, 5, 1], w[2:])]
    case('weighted_bag', torch.stack([v @ t[b] if b else zero for b, v in bags]), [t])


def attention(x, memory, heads, causal, w):
    """w: kernel and bias of query, key, value, output"""
    n, t, _ = x.shape
    q, k, v = ((m @ w[2 * i] + w[2 * i + 1]).reshape(n, m.shape[1], heads, -1).transpose(1, 2)
               for i, m in enumerate([x, memory, memory]))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(t, t).triu(1) > 0, -math.inf)
    y = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(n, t, -1)
    return y @ w[6] + w[7]


def weights(shapes, seed=10):
    return [variable(s, seed + i) for i, s in enumerate(shapes)]


def transformers():
    x, memory = noise((2, 3, 4), 1), noise((2, 5, 6), 2)
    w = weights([(4, 4), (4,)] * 4)
    case('attention', attention(x, x, 2, True, w), w)
    w = weights([(4, 6), (6,), (6, 6), (6,), (6, 6), (6,), (6, 4), (4,)])
    case('cross', attention(x, memory, 2, False, w), w)

    w = weights([(4,), (4,)] + [(4, 4), (4,)] * 4 + [(4,), (4,), (4, 16), (16,), (16, 4), (4,)])
    h = F.layer_norm(x, (4,), w[0], w[1], 1e-5)
    h = x + attention(h, h, 2, True, w[2:10])
    y = F.layer_norm(h, (4,), w[10], w[11], 1e-5)
    case('block', h + F.gelu(y @ w[12] + w[13]) @ w[14] + w[15], w)


def recurrent():
    x = noise((2, 4, 3), 1)
    w = weights([(3, 8), (2, 8), (8,)])
    h = c = torch.zeros(2, 2)
    steps = []
    for t in range(4):
        h, c = torch.lstm_cell(x[:, t], (h, c), w[0].T, w[1].T, w[2], torch.zeros(8))
        steps.append(h)
    case('lstm', torch.stack(steps, 1), w)

    w = weights([(3, 6), (2, 6), (2, 6)])
    # PyTorch's gates are r z n; Keras's z r h
    order = [2, 3, 0, 1, 4, 5]
    h = torch.zeros(2, 2)
    for t in range(4):
        h = torch.gru_cell(x[:, t], h, w[0].T[order], w[1].T[order], w[2][0][order],
                           w[2][1][order])
    case('gru', h, w)


print('''/* test/golden/layers.h -- made by layers.py.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GOLDEN_LAYERS_H
#define TEST_GOLDEN_LAYERS_H

/* clang-format off */
''')
convolutions()
norms()
embeddings()
transformers()
recurrent()
print('''/* clang-format on */

#endif''')
