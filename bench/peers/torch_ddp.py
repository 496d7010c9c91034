"""torch_ddp.py mlp|cnn -- a training step of two PyTorch processes with DistributedDataParallel over gloo.

Each process has half of the rows and a single thread. The first process implements the protocol of peers
(bench/bench.h) and broadcasts each request to the second. Weights and batches are those of torch_train.py.

SPDX-License-Identifier: Apache-2.0
"""
import os
import socket
import subprocess
import sys

import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from peer import serve_many
from torch_models import cnn_model, mlp_model

torch.set_num_threads(1)
RANK = int(os.environ.get('RANK', '0'))
END, RESULT = 0, -1


def start_other():
    """Starts the second process, with a free port."""
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), WORLD_SIZE='2')
    return subprocess.Popen([sys.executable, *sys.argv], stdin=subprocess.DEVNULL,
                            env={**os.environ, 'RANK': '1'})


def tell(number):
    """Returns the number of the first process in both processes."""
    said = torch.tensor([number])
    distributed.broadcast(said, 0)
    return int(said)


def main():
    other = start_other() if RANK == 0 else None
    distributed.init_process_group('gloo', rank=RANK, world_size=2)
    model, x, y = {'mlp': mlp_model, 'cnn': cnn_model}[sys.argv[1]]()
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

    def result():
        for _ in range(4):
            step()
        loss = step()
        distributed.all_reduce(loss)
        return loss.item() / 2

    if RANK == 1:
        while (number := tell(0)) != END:
            if number == RESULT:
                result()
            for _ in range(max(number, 0)):
                step()
        return

    def steps(n):
        for _ in range(n):
            step()
    serve_many(lambda n: (tell(n), steps(n)), lambda: (tell(RESULT), result())[1])
    tell(END)
    other.wait()


main()
