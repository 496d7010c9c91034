#!/usr/bin/env python3
"""files.py -- files written by numpy, gzip, zlib and zipfile; writes files.inc.

An array of shape (2, 3) holds 1.5 * i - 4 (floats), 3 * i - 4 (signed), 3 * i (unsigned), i % 2
(bool), for i from 0 to 5.

    python3 test/golden/files.py > test/golden/files.inc
    python3 test/golden/files.py --seeds fuzz/corpus        # of the fuzz targets

SPDX-License-Identifier: Apache-2.0
"""
import gzip
import io
import os
import struct
import sys
import zipfile
import zlib

import numpy as np


def array(dtype):
    i = np.arange(6)
    kind = np.dtype(dtype).kind
    x = {'f': 1.5 * i - 4, 'i': 3 * i - 4, 'u': 3 * i, 'b': i % 2}[kind]
    return x.astype(dtype).reshape(2, 3)


def npy(x, version=(1, 0)):
    out = io.BytesIO()
    np.lib.format.write_array(out, x, version=version)
    return out.getvalue()


def head(text, major=1):
    """Returns a .npy with this header, and no elements."""
    text = text.encode() + b'\n'
    return b'\x93NUMPY' + bytes([major, 0]) + struct.pack('<H' if major == 1 else '<I',
                                                          len(text)) + text


def show(name, data):
    print(f'static const unsigned char {name}[] = {{')
    for i in range(0, len(data), 20):
        print('    ' + ', '.join(str(b) for b in data[i:i + 20]) + ',')
    print('};')


def rows(name, entries):
    """Prints a table of files: their names and their bytes."""
    for key, data in entries:
        show(f'{name}_{key}', data)
    print(f'static const golden {name}[] = {{')
    for key, _ in entries:
        print(f'    {{"{key}", {name}_{key}, sizeof({name}_{key})}},')
    print('};\n')


def npz(save, **arrays):
    out = io.BytesIO()
    save(out, **arrays)
    return out.getvalue()


def streamed_zip():
    """Returns an archive written to a stream that cannot seek, so that sizes are behind the members."""
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.data = b''

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, 'w') as z:
        for name, data in (('x.npy', npy(array('<f4'))), ('notes.txt', b'no array')):
            z.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return pipe.data


def idx(x):
    code = {'u1': 8, 'i1': 9, 'i2': 11, 'i4': 12, 'f4': 13, 'f8': 14}[x.dtype.str[1:]]
    return bytes([0, 0, code, x.ndim]) + struct.pack(f'>{x.ndim}I', *x.shape) + \
        x.astype(x.dtype.newbyteorder('>')).tobytes()


def masked_crc(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return struct.pack('<I', ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff)


def record(data):
    size = struct.pack('<Q', len(data))
    return size + masked_crc(size) + data + masked_crc(data)


def write_seeds(corpus):
    records = record(b'hello') + record(b'') + record(bytes(range(200)))
    arrays = {'x': array('<f4'), 'scalar': np.int8(-3)}
    seeds = {
        'record/plain': b'\0' + records,
        'record/gzip': b'\1' + gzip.compress(records, mtime=0),
        'record/two_members': b'\1' + gzip.compress(records, mtime=0) * 2,
        'record/zlib': b'\2' + zlib.compress(records),
        'npy/f4': npy(array('<f4')),
        'npy/big': npy(array('>i2'), (2, 0)),
        'npy/fortran': npy(np.asfortranarray(array('<f8')), (3, 0)),
        'npy/structure': npy(np.zeros(2, dtype=[('a', '<f4'), ('b', '<i4')])),
        'npz/stored': npz(np.savez, **arrays),
        'npz/deflated': npz(np.savez_compressed, **arrays),
        'npz/streamed': streamed_zip(),
        'idx/u1': idx(array('<u1')),
        'idx/f8': idx(array('<f8')),
    }
    for name, data in seeds.items():
        path = os.path.join(corpus, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as f:
            f.write(data)


def main():
    if sys.argv[1:2] == ['--seeds']:
        write_seeds(sys.argv[2])
        return
    print('/* Made by files.py.   SPDX-License-Identifier: Apache-2.0 */')
    print('#include <stddef.h>\n')
    print('typedef struct golden {')
    print('    const char          *name;\n    const unsigned char *data;\n    size_t n;')
    print('} golden;\n')

    plain = ['f2', 'f4', 'f8', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'b1']
    rows('npy_of', [(order + code, npy(array(sign + code)))
                    for order, sign in (('little_', '<'), ('big_', '>')) for code in plain])
    x = array('<f4')
    rows('npy_like', [
        ('fortran', npy(np.asfortranarray(x))),
        ('version_2', npy(x, (2, 0))),
        ('version_3', npy(x, (3, 0))),
        ('other_order', head("{'shape':(2,3,),'fortran_order':False,\"descr\":'<f4'}") +
         x.tobytes()),
    ])
    rows('npy_other', [
        ('scalar', npy(np.float32(7.5))),
        ('vector', npy(np.arange(4, dtype='<i4'))),
        ('empty', npy(np.zeros((0, 3), '<i4'))),
        ('cube', npy(np.asfortranarray(np.arange(24, dtype='>i2').reshape(2, 3, 4)))),
    ])
    rows('npy_refused', [
        ('strings', npy(np.array([b'ab', b'c']))),
        ('text', npy(np.array(['ab', 'c']))),
        ('complex', npy(np.array([1j]))),
        ('times', npy(np.array(['2020-01-01'], dtype='M8[D]'))),
        ('structure', npy(np.zeros(2, dtype=[('a', '<f4'), ('b', '<i4')]))),
        ('raw', npy(np.zeros(2, dtype='V2'))),
        ('axes', npy(np.zeros((1,) * 9, '<f4'))),
        ('version', b'\x93NUMPY\x04\x00' + npy(x)[8:]),
    ])
    good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    rows('npy_damaged', [(f'case_{i}', head(text) + x.tobytes()) for i, text in enumerate([
        good[1:], good[:-1], good + 'x', good.replace('shape', 'form'),
        good.replace("'shape': (2, 3), ", ''), good.replace('}', "'shape': (2, 3), }"),
        good.replace('}', "'more': 1, }"), good.replace('(2, 3)', '(6)'),
        good.replace('(2, 3)', '(2 3)'), good.replace('(2, 3)', '(2, -3)'),
        good.replace('(2, 3)', '(2, 3'), good.replace('(2, 3)', '2, 3'),
        good.replace('(2, 3)', '(99999999999999999999,)'), good.replace('(2, 3)', '(,)'),
        good.replace('False', 'No'), good.replace("'<f4'", "<f4"), good.replace("'<f4'", "'<f4"),
        good.replace(',', ' ', 1), good.replace(':', ' ', 1), '',
        good.replace('(2, 3)', '(4294967296, 4294967296)'),
    ])])

    arrays = {'x': array('<f4'), 'label': np.arange(3), 'scalar': np.int8(-3)}
    rows('npz_of', [
        ('stored', npz(np.savez, **arrays)),
        ('deflated', npz(np.savez_compressed, **arrays)),
    ])
    rows('npz_other', [('streamed', streamed_zip())])
    rows('idx_of', [(code, idx(array('<' + code))) for code in ['u1', 'i1', 'i2', 'i4', 'f4', 'f8']])

    text = b'one line\nand another\n'
    rows('packed_text', [
        ('gzip', gzip.compress(text, mtime=0)),
        ('gzip_members', gzip.compress(text[:9], mtime=0) + gzip.compress(text[9:], mtime=0)),
        ('zlib', zlib.compress(text)),
    ])


if __name__ == '__main__':
    main()
