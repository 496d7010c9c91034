#!/usr/bin/env python3
"""test_python.py SAMPLES -- Python reads the files that the library writes.

SAMPLES is the program of test/file/samples.c, which writes files into a folder. Python's own modules
read the formats. If numpy is installed, it reads .npy and .npz too.

SPDX-License-Identifier: Apache-2.0
"""
import ast
import gzip
import io
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile
import zlib

try:
    import numpy
except ImportError:
    numpy = None

# Name of the dtype in Cohort, its code in numpy, its code in struct.
DTYPES = {'f32': ('<f4', 'f'), 'f64': ('<f8', 'd'), 'f16': ('<f2', 'e'), 'i8': ('|i1', 'b'),
          'i16': ('<i2', 'h'), 'i32': ('<i4', 'i'), 'i64': ('<i8', 'q'), 'u8': ('|u1', 'B'),
          'u16': ('<u2', 'H'), 'u32': ('<u4', 'I'), 'u64': ('<u8', 'Q'), 'bool': ('|b1', '?')}
IDX = {8: 'u8', 9: 'i8', 11: 'i16', 12: 'i32', 13: 'f32', 14: 'f64'}

folder = None


def elements(name):
    if name == 'bool':
        return [0, 1] * 3
    return [i if name[0] == 'u' else i - 2 for i in range(6)]


def data(name):
    with open(os.path.join(folder, name), 'rb') as f:
        return f.read()


def parse_npy(text):
    assert text[:8] == b'\x93NUMPY\x01\x00'
    end = 10 + struct.unpack('<H', text[8:10])[0]
    assert end % 64 == 0 and text[end - 1:end] == b'\n'
    head = ast.literal_eval(text[10:end].decode())
    assert sorted(head) == ['descr', 'fortran_order', 'shape'] and not head['fortran_order']
    return head['descr'], head['shape'], text[end:]


def crc32c(text):
    crc = 0xffffffff
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked(text):
    crc = crc32c(text)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(text):
    out = []
    while text:
        size, crc = struct.unpack('<QI', text[:12])
        assert crc == masked(text[:8])
        out.append(text[12:12 + size])
        assert struct.unpack('<I', text[12 + size:16 + size])[0] == masked(out[-1])
        text = text[16 + size:]
    return out


def varint(text, at):
    value = shift = 0
    while True:
        value |= (text[at] & 127) << shift
        shift += 7
        at += 1
        if text[at - 1] < 128:
            return value, at


def fields(text):
    """Yields (number, bytes) of a message whose fields all have a length."""
    at = 0
    while at < len(text):
        tag, at = varint(text, at)
        assert tag & 7 == 2
        size, at = varint(text, at)
        yield tag >> 3, text[at:at + size]
        at += size


def example(text):
    out = {}
    (_, features), = fields(text)
    for _, entry in fields(features):
        (_, name), (_, feature) = fields(entry)
        (kind, values), = fields(feature)
        values = [v for _, v in fields(values)]
        if kind == 2:
            values = list(struct.unpack(f'<{len(values[0]) // 4}f', values[0]))
        elif kind == 3:
            packed, at, values = values[0], 0, []
            while at < len(packed):
                value, at = varint(packed, at)
                values.append(value - (1 << 64) if value >> 63 else value)
        out[name.decode()] = values
    return out


class Files(unittest.TestCase):
    def test_npy(self):
        for name, (code, letter) in DTYPES.items():
            descr, shape, rest = parse_npy(data(name + '.npy'))
            self.assertEqual((descr, shape), (code, (2, 3)))
            self.assertEqual(list(struct.unpack(f'<6{letter}', rest)), elements(name))

    @unittest.skipIf(numpy is None, 'numpy is not installed')
    def test_numpy(self):
        for name, (code, _) in DTYPES.items():
            x = numpy.load(os.path.join(folder, name + '.npy'))
            self.assertEqual(x.dtype, numpy.dtype(code))
            self.assertEqual(x.tolist(), [elements(name)[:3], elements(name)[3:]])
        for name in 'stored', 'deflated':
            with numpy.load(os.path.join(folder, name + '.npz')) as z:
                self.assertEqual(sorted(z), ['arr_1', 'x', 'zeros'])
                self.assertEqual(z['x'].tolist(), [[-2, -1, 0], [1, 2, 3]])
                self.assertEqual(z['arr_1'].dtype, numpy.int64)
                self.assertEqual(z['zeros'].shape, (100000,))

    def test_npz(self):
        for name, method in (('stored', 0), ('deflated', 8)):
            with zipfile.ZipFile(os.path.join(folder, name + '.npz')) as z:
                self.assertIsNone(z.testzip())
                self.assertEqual(z.namelist(), ['x.npy', 'arr_1.npy', 'zeros.npy'])
                self.assertEqual({i.compress_type for i in z.infolist()}, {method})
                descr, shape, rest = parse_npy(z.read('arr_1.npy'))
                self.assertEqual((descr, shape), ('<i8', (2, 3)))
                self.assertEqual(list(struct.unpack('<6q', rest)), elements('i64'))
                self.assertEqual(parse_npy(z.read('zeros.npy')), ('<i4', (100000,), bytes(400000)))
        self.assertLess(len(data('deflated.npz')), 3000)

    def test_idx(self):
        for name in IDX.values():
            text = gzip.GzipFile(fileobj=io.BytesIO(data(name + '.idx.gz'))).read()
            self.assertEqual(text[:2], b'\0\0')
            self.assertEqual(IDX[text[2]], name)
            self.assertEqual(struct.unpack('>B2I', text[3:12]), (2, 2, 3))
            self.assertEqual(list(struct.unpack(f'>6{DTYPES[name][1]}', text[12:])), elements(name))

    def test_records(self):
        for text in (data('plain.tfrecord'), gzip.decompress(data('gzip.tfrecord')),
                     zlib.decompress(data('zlib.tfrecord'))):
            all_of_them = records(text)
            self.assertEqual(len(all_of_them), 100)
            self.assertEqual(example(all_of_them[99]), {
                'float': elements('f32'), 'int': elements('i64'),
                'image': [bytes(range(6))], 'words': [b'one', b'two']})


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv.pop(1), folder], check=True)
        unittest.main()
