#!/usr/bin/env python3
"""test_python.py SAMPLES -- bundle.py reads checkpoints of the library, and the reverse.

SAMPLES is the program of test/ckpt/samples.c: `samples write PREFIX` writes a checkpoint, and `samples dump PREFIX`
prints the tensors of a checkpoint.

SPDX-License-Identifier: Apache-2.0
"""
import os
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import bundle  # noqa: E402

samples = None


def dump(prefix):
    """Returns {name: (dtype number, shape, bytes or list of bytes)}, as the library reads them."""
    text = subprocess.run([samples, 'dump', prefix], check=True, stdout=subprocess.PIPE).stdout.decode()
    out = {}
    for line in text.splitlines():
        name, dtype, shape, *values = line.split('\t')
        shape = tuple(int(n) for n in shape.split(',') if n)
        values = [bytes.fromhex(v) for v in values]
        out[name] = (int(dtype), shape, values if int(dtype) == bundle.STRING else values[0])
    return out


def floats(*values):
    return struct.pack(f'<{len(values)}f', *values)


class Bundles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.prefix = os.path.join(self.folder.name, 'ckpt-1')

    def tearDown(self):
        self.folder.cleanup()

    def test_python_reads_our_files(self):
        subprocess.run([samples, 'write', self.prefix], check=True)
        self.assertEqual(sorted(os.listdir(self.folder.name)),
                         ['ckpt-1.data-00000-of-00002', 'ckpt-1.data-00001-of-00002', 'ckpt-1.index'])
        grid = [float(i) for i in range(12)]
        self.assertEqual(bundle.read(self.prefix), {
            'a/scalar': (9, (), struct.pack('<q', -7)),
            'empty': (1, (0, 3), b''),
            'texts': (bundle.STRING, (2, 2), [b'one', b'', b'\xff\0x', b'y' * 300]),
            'w': ('slices', 1, (4, 3), [((0, 0), (3, 3), floats(*grid[:9])), ((3, 0), (1, 3), floats(*grid[9:]))])})

    def test_library_reads_files_of_python(self):
        tensors = {f'model/layer_{i}/kernel': (1, (i % 5, 2), floats(*range(i % 5 * 2))) for i in range(100)}
        tensors['texts'] = (bundle.STRING, (3,), [b'a', b'', b'b' * 1000])
        tensors['n'] = (10, (), b'\1')
        plain = dict(tensors)
        plain['split'] = (3, (2, 4), struct.pack('<8i', 0, 1, 2, 3, 4, 5, 6, 7))
        tensors['split'] = ('slices', 3, (2, 4), [((0, 0), (2, 1), struct.pack('<2i', 0, 4)),
                                                  ((0, 1), (2, 3), struct.pack('<6i', 1, 2, 3, 5, 6, 7))])
        for files, per_block, compress in ((1, 1000, False), (3, 7, False), (2, 16, True)):
            bundle.write(self.prefix, tensors, files, per_block, compress)
            self.assertEqual(dump(self.prefix), plain)
            self.assertEqual(bundle.read(self.prefix), tensors)

    def test_python_and_library_join_deltas(self):
        """Both read the same tensors, whether the library or Python has written the delta and its base."""
        delta = os.path.join(self.folder.name, 'ckpt-2')
        table = bytes(range(240))
        part = [((begin, 0), (n, 6), table[begin * 24:(begin + n) * 24]) for begin, n in ((0, 4), (4, 6))]
        base = {'table': ('slices', 1, (10, 6), part), 'columns': (3, (5, 2), table[:40]), 'same': (5, (3, 1), b'abcdef'),
                'n': (9, (), bytes(8)), 'lost': (9, (), bytes(8)), 'dense': (1, (4,), table[:16])}
        changed = {0: b'\x01' * 24, 5: b'\x02' * 24, 9: b'\x03' * 24}
        ids, values = bundle.rows('table', 1, (6,), changed).items()
        in_slices = ('slices', 1, (3, 6), [((0, 0), (2, 6), values[1][2][:48]), ((2, 0), (1, 6), values[1][2][48:])])
        tensors = {ids[0]: ids[1], values[0]: in_slices, **bundle.rows('columns', 3, (2,), {4: b'12345678'}),
                   **bundle.rows('same', 5, (1,), {}), 'n': (9, (), b'\1' * 8), 'dense': (1, (4,), table[16:32]),
                   'texts': (bundle.STRING, (2,), [b'new', b''])}
        bundle.write_cohort(self.prefix, base, 77, 2)
        bundle.write_cohort(delta, tensors, 78, 3, base_id=77, base='ckpt-1')
        want = bytearray(table)
        for row, value in changed.items():
            want[row * 24:row * 24 + 24] = value
        have = bundle.read_whole(delta)
        del have['_COHORT']
        self.assertEqual(have, {'table': (1, (10, 6), bytes(want)), 'columns': (3, (5, 2), table[:32] + b'12345678'),
                                'same': base['same'], 'n': tensors['n'], 'dense': tensors['dense'],
                                'texts': tensors['texts']})
        self.assertEqual(dump(delta), bundle.read_whole(delta))

        subprocess.run([samples, 'delta', self.folder.name], check=True)
        prefix = os.path.join(self.folder.name, 'delta')
        have = bundle.read_whole(prefix)
        self.assertEqual(dump(prefix), have)
        self.assertEqual(have['table'], (1, (5, 2), floats(0, 1, -1, -2, 4, 5, 6, 7, -3, -4)))
        self.assertEqual(have['scalar'], (9, (), struct.pack('<q', 20)))


if __name__ == '__main__':
    samples = sys.argv.pop(1)
    unittest.main()
