"""torch_checkpoint.py save|restore MIB -- torch.save with fsync, and torch.load, of 16 tensors with MIB MiB together.

The files are in the folder $FOLDER.

SPDX-License-Identifier: Apache-2.0
"""
import os
import sys

import torch

from peer import serve

PARTS = 16


def main():
    mode, mib = sys.argv[1], int(sys.argv[2])
    state = {f'v{i}': torch.arange(mib * (1 << 20) // PARTS // 4, dtype=torch.float32).reshape(-1, 1024)
             for i in range(PARTS)}
    path = os.path.join(os.environ['FOLDER'], 'torch.pt')

    def save():
        if os.path.exists(path):
            os.unlink(path)
        with open(path, 'wb') as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())

    def restore():
        for name, value in torch.load(path).items():
            state[name].copy_(value)

    if mode == 'restore':
        save()
    serve(save if mode == 'save' else restore)


main()
