"""torch_rpc.py CASE SIZE -- a parameter server with PyTorch's RPC (TensorPipe).

  pull|push|step BYTES, null WINDOW   the row `ps-dense`: a server and a client
  uniform|zipf ROWS                   the row `ps-embed`: two servers with half of the table each, and two workers. The
                                      loss is half the sum of squares, so the gradient of a row is the row itself.
  empty|busy WINDOW                   the row `schedule`: two workers run steps, at most WINDOW at a time. A step is
                                      empty, or takes 100 us.

Every task is a process with a single thread for arithmetic. The first process implements the protocol of peers
(bench/bench.h).

SPDX-License-Identifier: Apache-2.0
"""
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault('GLOG_minloglevel', '2')  # must be set before torch is imported

import torch
from torch.distributed import rpc

from peer import serve_many

WIDTH, IDS, TURNS = 64, 2048 * 26, 16
WHAT, SIZE = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ.get('RANK', '0'))
IS_EMBED = WHAT in ('uniform', 'zipf')
WORKERS = 2 if IS_EMBED else 1
IS_SCHEDULE = WHAT in ('empty', 'busy')
SERVERS = 2 if IS_SCHEDULE else WORKERS
RATE = 0.01

torch.set_num_threads(1)
table = None  # the variable of a server, or its shard


def start_others():
    """The other processes, on a port that is free now."""
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(s.getsockname()[1]))
    return [subprocess.Popen([sys.executable, *sys.argv], stdin=subprocess.DEVNULL,
                             env={**os.environ, 'RANK': str(rank)})
            for rank in range(1, WORKERS + SERVERS)]


# ---- functions that run on servers ----

def null():
    pass


def read():
    return table


def apply(gradient):
    table.sub_(gradient, alpha=RATE)


def read_rows(ids):
    return table.index_select(0, ids)


def apply_rows(ids, rows):
    table.index_add_(0, ids, rows, alpha=-RATE)


def busy():
    end = time.perf_counter() + 100e-6
    while time.perf_counter() < end:
        pass


def schedule(n):
    window = []
    step = null if WHAT == 'empty' else busy
    for i in range(n):
        if len(window) == SIZE:
            window.pop(0).wait()
        window.append(rpc.rpc_async(f'task{1 + i % 2}', step))
    for call in window:
        call.wait()


# ---- dense ----

def dense_steps(n):
    gradient = dense_steps.gradient
    for _ in range(n):
        if WHAT in ('pull', 'step'):
            kept = rpc.rpc_sync('task1', read)
        if WHAT in ('push', 'step'):
            rpc.rpc_sync('task1', apply, (gradient,))
    return kept if WHAT == 'pull' else None


def null_calls(n):
    window = []
    for i in range(n):
        if len(window) == SIZE:
            window.pop(0).wait()
        window.append(rpc.rpc_async('task1', null))
    for call in window:
        call.wait()


# ---- rows ----

def make_ids():
    torch.manual_seed(RANK)
    if WHAT == 'uniform':
        return [torch.randint(SIZE, (IDS,)) for _ in range(TURNS)]
    weight = torch.arange(1, SIZE + 1, dtype=torch.float64).pow(-1.05).cumsum(0)
    return [torch.searchsorted(weight, torch.rand(IDS, dtype=torch.float64) * weight[-1]) * 2654435761 % SIZE
            for _ in range(TURNS)]


def embed_step(ids):
    half = SIZE // 2
    parts = [ids[ids < half], ids[ids >= half] - half]
    pulls = [rpc.rpc_async(f'task{WORKERS + k}', read_rows, (part,)) for k, part in enumerate(parts)]
    pushes = [rpc.rpc_async(f'task{WORKERS + k}', apply_rows, (part, pull.wait()))
              for k, (part, pull) in enumerate(zip(parts, pulls))]
    for push in pushes:
        push.wait()


def embed_steps(n):
    for i in range(n):
        embed_step(embed_steps.ids[i % TURNS])


def both_workers(n):
    other = rpc.rpc_async('task1', embed_steps, (n,), timeout=0)
    embed_steps(n)
    other.wait()


def main():
    global table
    others = start_others() if RANK == 0 else []
    if RANK >= WORKERS:
        table = torch.rand(SIZE // 2, WIDTH) if IS_EMBED else torch.zeros(max(SIZE // 4, 1))
    elif IS_EMBED:
        embed_steps.ids = make_ids()
    else:
        dense_steps.gradient = torch.ones(max(SIZE // 4, 1))
    rpc.init_rpc(f'task{RANK}', rank=RANK, world_size=WORKERS + SERVERS,
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=0))
    if RANK == 0:
        serve_many(both_workers if IS_EMBED else schedule if IS_SCHEDULE else null_calls if WHAT == 'null' else dense_steps)
    rpc.shutdown()
    for process in others:
        process.wait()


main()
