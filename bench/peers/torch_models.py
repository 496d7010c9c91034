"""torch_models.py -- weights, batches and small models, equal to those of bench/training.h, for PyTorch.

SPDX-License-Identifier: Apache-2.0
"""
import numpy
import torch
from torch import nn

BATCH_X, BATCH_Y = 1000, 1001


def mixed(array, count):
    """Returns 24 pseudo-random bits for each element of an array. Every array has its own number."""
    x = numpy.arange(count, dtype=numpy.uint32) * numpy.uint32(2654435761)
    x += numpy.uint32((array + 1) * 40503 % 2**32)
    for _ in range(2):
        x = (x ^ x >> numpy.uint32(16)) * numpy.uint32(73244475)
    return (x ^ x >> numpy.uint32(16)) >> numpy.uint32(8)


def noise(array, *shape, middle=0, scale=1):
    x = mixed(array, numpy.prod(shape)).astype(numpy.float32) / numpy.float32(2**23) - numpy.float32(1)
    return torch.from_numpy(numpy.float32(middle) + numpy.float32(scale) * x).view(shape)


def labels(array, *shape, limit):
    x = mixed(array, numpy.prod(shape)).astype(numpy.int64) * limit >> 24
    return torch.from_numpy(x).view(shape)


def kernel(array, *shape):
    """Returns a kernel in Cohort's shape: outputs are the last axis."""
    return noise(array, *shape, scale=(numpy.prod(shape[:-1]))**-0.5)


def set_dense(layer, array):
    layer.weight.copy_(kernel(array, layer.in_features, layer.out_features).t())
    layer.bias.copy_(noise(array + 1, layer.out_features, scale=0.1))


def set_conv(layer, array):
    shape = (*layer.kernel_size, layer.in_channels, layer.out_channels)
    layer.weight.copy_(kernel(array, *shape).permute(3, 2, 0, 1))
    layer.bias.copy_(noise(array + 1, layer.out_channels, scale=0.1))


def set_norm(layer, array):
    layer.weight.copy_(noise(array, *layer.weight.shape, middle=1, scale=0.1))
    layer.bias.copy_(noise(array + 1, *layer.bias.shape, scale=0.1))


def set_table(layer, array):
    layer.weight.copy_(noise(array, *layer.weight.shape, scale=0.02))


def mlp_model():
    """Returns the model, its batch and labels."""
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                          nn.Linear(512, 10))
    with torch.no_grad():
        for i in range(3):
            set_dense(model[2 * i], 2 * i)
    return model, noise(BATCH_X, 128, 784), labels(BATCH_Y, 128, limit=10)


def cnn_model():
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(64 * 5 * 5, 128), nn.ReLU(), nn.Linear(128, 10))
    with torch.no_grad():
        set_conv(model[0], 0)
        set_conv(model[3], 2)
        set_dense(model[7], 4)
        set_dense(model[9], 6)
        # PyTorch flattens images with the channels first, Cohort with the channels last.
        wide = model[7].weight.view(128, 5, 5, 64).permute(0, 3, 1, 2).reshape(128, -1)
        model[7].weight.copy_(wide)
    return model, noise(BATCH_X, 128, 1, 28, 28), labels(BATCH_Y, 128, limit=10)
