"""torch_dispatch.py chain|grad|mlp [THREADS] -- the overhead of an op in PyTorch: the row `dispatch`.

chain: 1000 additions of scalars. grad: 200 of them forward and backward. mlp: an SGD step of a
784-64-10 perceptron on 32 rows.

SPDX-License-Identifier: Apache-2.0
"""
import sys

import torch

from peer import serve

torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
torch.manual_seed(0)


def chain():
    one = torch.ones(())

    def work():
        x = one
        for _ in range(1000):
            x = x + one
    return work


def grad():
    one = torch.ones((), requires_grad=True)

    def work():
        x = one
        for _ in range(200):
            x = x + one
        x.backward()
        one.grad = None
    return work


def mlp():
    model = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = torch.nn.CrossEntropyLoss()
    x, y = torch.randn(32, 784), torch.randint(0, 10, (32,))

    def work():
        sgd.zero_grad(set_to_none=True)
        loss_of(model(x), y).backward()
        sgd.step()
    return work


serve({'chain': chain, 'grad': grad, 'mlp': mlp}[sys.argv[1]]())
