"""Two PyTorch processes that compute steps together over gloo, each with a single thread. The first implements the
protocol of peers (bench/bench.h), and broadcasts each request to the second.

SPDX-License-Identifier: Apache-2.0
"""
import os
import socket
import subprocess
import sys

import torch
from torch import distributed

from peer import serve_many

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


def serve_pair(make, finish=float):
    """Calls make(NAME) with the first argument of the program, which returns a function that does a step and returns
    its loss. The result is `finish` of the loss of the fifth step."""
    torch.set_num_threads(1)
    other = start_other() if RANK == 0 else None
    distributed.init_process_group('gloo', rank=RANK, world_size=2)
    step = make(sys.argv[1])

    def steps(n):
        loss = None
        for _ in range(n):
            loss = step()
        return loss

    if RANK == 1:
        while (number := tell(0)) != END:
            if number == RESULT:
                finish(steps(5))
            else:
                steps(number)
        return
    serve_many(lambda n: (tell(n), steps(n)), lambda: (tell(RESULT), finish(steps(5)))[1])
    tell(END)
    other.wait()
