"""torch_ddp.py mlp|cnn -- a training step of two PyTorch processes with DistributedDataParallel over gloo.

Each process has half of the rows and a single thread. Weights and batches are those of torch_train.py.

SPDX-License-Identifier: Apache-2.0
"""
import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torch_models import cnn_model, mlp_model
from torch_pair import RANK, serve_pair


def main(name):
    model, x, y = {'mlp': mlp_model, 'cnn': cnn_model}[name]()
    half = len(x) // 2
    x, y = x[RANK * half:(RANK + 1) * half], y[RANK * half:(RANK + 1) * half]
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step


def mean_loss(loss):
    distributed.all_reduce(loss)
    return loss.item() / 2


serve_pair(main, mean_loss)
