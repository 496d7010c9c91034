"""torch_input.py [WORKERS] -- PyTorch's DataLoader over TFRecord files of examples: the row `input`.

PyTorch has no reader of TFRecord files, so this file has a reader in Python. It finds records by their lengths, does
not compute checksums, and reads the feature "x" and the label of each example. Examples are shuffled in a buffer of 10,000
and batched by 256. A run is a pass over the file $INPUT.

SPDX-License-Identifier: Apache-2.0
"""
import os
import random
import struct
import sys

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from peer import serve

PIXELS = 3072


def records(path, worker, workers):
    with open(path, 'rb', buffering=1 << 20) as f:
        for i in range(1 << 62):
            head = f.read(12)
            if not head:
                return
            size = struct.unpack_from('<Q', head)[0]
            data = f.read(size)
            f.read(4)
            if i % workers == worker:
                yield data


def varint(data, at):
    x, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        x |= (byte & 127) << shift
        if byte < 128:
            return x, at
        shift += 7


def fields(data, at, end):
    """(number, first, last) of the fields of a message, all of which have a length."""
    while at < end:
        tag, at = varint(data, at)
        size, at = varint(data, at)
        yield tag >> 3, at, at + size
        at += size


def parse(data):
    image, label = None, None
    for _, a, b in fields(data, 0, len(data)):
        for _, c, d in fields(data, a, b):
            parts = {n: (x, y) for n, x, y in fields(data, c, d)}
            key = data[slice(*parts[1])]
            kind, x, y = next(fields(data, *parts[2]))
            _, x, y = next(fields(data, x, y))
            if key == b'x':
                image = torch.from_numpy(numpy.frombuffer(data, numpy.uint8, y - x, x).copy())
            else:
                label = varint(data, x)[0]
    return image, label


class Examples(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        buffer = []
        for data in records(os.environ['INPUT'], worker, workers):
            if len(buffer) < 10000:
                buffer.append(data)
                continue
            at = random.randrange(10000)
            buffer[at], data = data, buffer[at]
            yield parse(data)
        random.shuffle(buffer)
        yield from map(parse, buffer)


def work():
    rows = 0
    for x, _ in DataLoader(Examples(), batch_size=256, num_workers=int(sys.argv[1])):
        rows += len(x)


torch.set_num_threads(1)
serve(work)
