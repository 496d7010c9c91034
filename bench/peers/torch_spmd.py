"""torch_spmd.py mlp|cnn|block -- a training step of one network that two PyTorch processes compute together.

The layers are split by hand: the perceptron by units, the convolutional network by rows of the image, the transformer
block by heads. Sums and halos go over gloo. Each process has a single thread. The first process implements the protocol
of peers (bench/bench.h) and broadcasts each request to the second. Weights and batches are those of torch_train.py.

SPDX-License-Identifier: Apache-2.0
"""
import torch
from torch import distributed, nn
from torch.nn import functional

from torch_models import BATCH_X, BATCH_Y, cnn_model, kernel, labels, mlp_model, noise
from torch_pair import RANK, serve_pair


class Sum(torch.autograd.Function):
    """Adds up the partial results of both processes."""
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        distributed.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Copy(torch.autograd.Function):
    """A value that both processes have: its gradient is the sum of theirs."""
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        distributed.all_reduce(grad)
        return grad


def swap(mine, theirs):
    """Sends an array to the other process, and receives one into `theirs`."""
    sent = distributed.isend(mine.contiguous(), 1 - RANK)
    distributed.recv(theirs, 1 - RANK)
    sent.wait()
    return theirs


class Halo(torch.autograd.Function):
    """Adds the row of an image (axis 2) that is next to the rows of this process."""
    @staticmethod
    def forward(ctx, x):
        mine = x[:, :, -1:] if RANK == 0 else x[:, :, :1]
        theirs = swap(mine, torch.empty_like(mine, memory_format=torch.contiguous_format))
        return torch.cat((x, theirs) if RANK == 0 else (theirs, x), 2)

    @staticmethod
    def backward(ctx, grad):
        own, halo = (grad[:, :, :-1], grad[:, :, -1:]) if RANK == 0 else (grad[:, :, 1:], grad[:, :, :1])
        own = own.clone()
        theirs = swap(halo, torch.empty_like(halo, memory_format=torch.contiguous_format))
        if RANK == 0:
            own[:, :, -1:] += theirs
        else:
            own[:, :, :1] += theirs
        return own


def half(x, axis):
    """Returns this process's half of a parameter."""
    return nn.Parameter(x.detach().chunk(2, axis)[RANK].clone().contiguous())


def whole(x):
    return nn.Parameter(x.detach().clone())


def mlp():
    model, x, y = mlp_model()
    p = [half(model[0].weight, 0), half(model[0].bias, 0), half(model[2].weight, 1), whole(model[2].bias),
         whole(model[4].weight), whole(model[4].bias)]

    def loss():
        hidden = functional.relu(functional.linear(x, p[0], p[1]))
        hidden = functional.relu(Sum.apply(functional.linear(hidden, p[2])) + p[3])
        return functional.cross_entropy(functional.linear(hidden, p[4], p[5]), y)
    return p, [], loss


def cnn():
    """Rows of the image: 14 and 12 of the first convolution, 7 and 6 after pooling, 6 and 5 of the second."""
    model, x, y = cnn_model()
    x = (x[:, :, :16] if RANK == 0 else x[:, :, 14:]).contiguous()
    rows = slice(0, 3) if RANK == 0 else slice(3, 5)
    wide = model[7].weight.view(128, 64, 5, 5)[:, :, rows].reshape(128, -1)
    p = [whole(model[0].weight), whole(model[0].bias), whole(model[3].weight), whole(model[3].bias), whole(wide),
         whole(model[7].bias), whole(model[9].weight), whole(model[9].bias)]

    def loss():
        a = functional.max_pool2d(functional.relu(functional.conv2d(x, p[0], p[1])), 2)
        a = functional.max_pool2d(functional.relu(functional.conv2d(Halo.apply(a), p[2], p[3])), 2)
        a = functional.relu(Sum.apply(functional.linear(a.flatten(1), p[4])) + p[5])
        return functional.cross_entropy(functional.linear(a, p[6], p[7]), y)
    return p, p[:4], loss


def block():
    rows, length, width, heads = 8, 128, 384, 6

    def norm(array):
        return [whole(noise(array, width, middle=1, scale=0.1)), whole(noise(array + 1, width, scale=0.1))]

    def dense(array, n_in, n_out, axis):
        bias = noise(array + 1, n_out, scale=0.1)
        return [half(kernel(array, n_in, n_out).t(), axis), half(bias, 0) if axis == 0 else whole(bias)]

    p = norm(0)
    for array in 2, 4, 6:
        p += dense(array, width, width, 0)
    p += dense(8, width, width, 1) + norm(10) + dense(12, width, 4 * width, 0) + dense(14, 4 * width, width, 1)
    x, y = noise(BATCH_X, rows, length, width), noise(BATCH_Y, rows, length, width)
    mask = torch.ones(length, length, dtype=torch.bool).tril()

    def by_heads(h, i):
        return functional.linear(h, p[i], p[i + 1]).view(rows, length, heads // 2, -1).transpose(1, 2)

    def attend(h):
        q, k, v = (by_heads(h, i) for i in (2, 4, 6))
        if hasattr(functional, 'scaled_dot_product_attention'):
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            score = q @ k.transpose(-1, -2) * (width // heads) ** -0.5
            a = score.masked_fill(~mask, float('-inf')).softmax(-1) @ v
        return functional.linear(a.transpose(1, 2).reshape(rows, length, width // 2), p[8])

    def loss():
        h = functional.layer_norm(x, (width,), p[0], p[1])
        z = x + Sum.apply(attend(Copy.apply(h))) + p[9]
        h = Copy.apply(functional.layer_norm(z, (width,), p[10], p[11]))
        h = functional.gelu(functional.linear(h, p[12], p[13]))
        return functional.mse_loss(z + Sum.apply(functional.linear(h, p[14])) + p[15], y)
    return p, [], loss


def main(name):
    # the parameters, those of them whose gradients are partial sums, and the function of the loss
    parameters, partial, loss_of = {'mlp': mlp, 'cnn': cnn, 'block': block}[name]()
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        if partial:
            grads = torch.cat([x.grad.flatten() for x in partial])
            distributed.all_reduce(grads)
            for x, grad in zip(partial, grads.split([x.numel() for x in partial])):
                x.grad.copy_(grad.view_as(x))
        optimizer.step()
        return loss.detach()
    return step


serve_pair(main)
