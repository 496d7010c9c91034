#!/usr/bin/env python3
"""philox.py -- initial values of a variable, from a second Philox4x32-10; writes philox.inc.

The generator is that of Salmon and others (2011). Its normals are quantiles of Python's standard
library. Neither uses Cohort. src/kernel/philox.h and src/kernel/init.c document how the name of a
variable becomes a stream, and how words become numbers.

    python3 test/golden/philox.py > test/golden/philox.inc

SPDX-License-Identifier: Apache-2.0
"""
from statistics import NormalDist

M32 = 2**32 - 1
NAME, SEED, N = 'net/dense/kernel', 7, 70


def block(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & M32, (a >> 32) ^ c[3] ^ k[1], a & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def fnv1a(name):
    h = 0xcbf29ce484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001b3) % 2**64
    return h


def stream(seed, own):
    """Returns the key and the upper half of the counter; keys are digits of pi."""
    c = block([seed & M32, seed >> 32, own & M32, own >> 32], [0x243f6a88, 0x85a308d3])
    c = block(c, [0x13198a2e, 0x03707344])
    return c[:2], c[2:]


def words(n, key, high):
    """Returns groups of 16 blocks: word 0 of all blocks, then word 1 of all blocks, and so on."""
    out = []
    for group in range((n + 63) // 64):
        blocks = [block([16 * group + i, 0] + high, key) for i in range(16)]
        out += [b[k] for k in range(4) for b in blocks]
    return out[:n]


def table(name, values):
    print('static const double %s[] = {' % name)
    for i in range(0, len(values), 5):
        print('    ' + ', '.join('%.10g' % x for x in values[i:i + 5]) + ',')
    print('};')


print('/* Made by test/golden/philox.py.   SPDX-License-Identifier: Apache-2.0 */')
print('/* clang-format off */')
print('#define G_PHILOX_NAME "%s"' % NAME)
print('enum { G_PHILOX_SEED = %d, G_PHILOX_N = %d };' % (SEED, N))
drawn = words(N, *stream(SEED, fnv1a(NAME)))
table('g_philox_uniform', [(w >> 8) / 2**24 for w in drawn])
table('g_philox_normal', [NormalDist().inv_cdf((w + 0.5) / 2**32) for w in drawn])
print('/* clang-format on */')
