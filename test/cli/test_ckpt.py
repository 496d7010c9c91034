#!/usr/bin/env python3
"""test_ckpt.py COHORT SAMPLES KIND -- `cohort ckpt` with checkpoints that another program wrote.

SAMPLES is the program of test/ckpt/samples.c. KIND is "plain", or "sanitized" if the memory of the command is not to be measured.

SPDX-License-Identifier: Apache-2.0
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'ckpt'))
import bundle  # noqa: E402

COHORT, SAMPLES, KIND = sys.argv[1:4]
MOST_MEMORY = 64 << 10  # KiB
F32, I64, BF16, F16, COMPLEX64 = 1, 9, 14, 19, 8


def floats(*values):
    return struct.pack(f'<{len(values)}f', *values)


def crc_of_zeros(n):
    """The CRC-32C of n zero bytes, by squaring the linear map of a zero byte."""
    step = [1 << i >> 8 ^ bundle.TABLE[1 << i & 255] for i in range(32)]

    def apply(columns, x):
        out = 0
        for i in range(32):
            out ^= columns[i] if x >> i & 1 else 0
        return out

    state = 0xffffffff
    while n:
        if n & 1:
            state = apply(step, state)
        step = [apply(step, column) for column in step]
        n >>= 1
    return state ^ 0xffffffff


def write_zeros(prefix, tensors, slices):
    """Writes a checkpoint with the tensor `zeros`, i8 of 64 MiB in each of `slices`, as a sparse file."""
    size = 64 << 20
    bundle.write(prefix, tensors, per_block=100)
    path = prefix + '.data-00000-of-00001'
    begin = os.path.getsize(path)
    os.truncate(path, begin + slices * size)
    with open(prefix + '.index', 'rb') as file:
        entries = dict(bundle.read_table(file.read()))
    crc, listed = struct.pack('<I', bundle.mask(crc_of_zeros(size))), b''
    for i in range(slices):
        extent = bundle.field(1, i * size) + bundle.field(2, size)
        listed += bundle.field(7, bundle.field(1, extent))
        entries[bundle.slice_key(b'zeros', [(i * size, size)])] = (
            bundle.field(1, 6) + bundle.shape_message((size,)) + bundle.field(4, begin + i * size) +
            bundle.field(5, size) + b'\x35' + crc)
    entries[b'zeros'] = bundle.field(1, 6) + bundle.shape_message((slices * size,)) + listed
    with open(prefix + '.index', 'wb') as file:
        file.write(bundle.TableWriter().write(sorted(entries.items()), 100))


class Ckpt(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.top = self.folder.name
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.top, name)

    def run_ckpt(self, *words, code=0):
        """Returns standard output and standard error."""
        with open(self.path('.out'), 'w+', encoding='utf-8') as out, open(self.path('.err'), 'w+', encoding='utf-8') as err:
            process = subprocess.Popen([COHORT, 'ckpt', *words], stdout=out, stderr=err, env={**os.environ, 'TZ': 'UTC'})
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read())
        self.assertEqual(process.returncode, code, texts)
        if KIND == 'plain':
            self.assertLess(usage.ru_maxrss, MOST_MEMORY)
        return texts

    def lines(self, *words, code=0):
        """Returns the JSON objects that the command prints."""
        return [json.loads(line) for line in self.run_ckpt(*words, '--json', code=code)[0].splitlines()]

    def write_run(self):
        """Writes a full checkpoint, a delta, a damaged one and an incomplete one."""
        table = {'w': (F32, (3, 2), floats(1, 2, 3, 4, 5, 6)), 'names': (bundle.STRING, (2,), [b'a', b'bc'])}
        bundle.write_cohort(self.path('ckpt-1'), table, 11, step=100, time=1600000000250000)
        bundle.write_cohort(self.path('ckpt-2'), {**bundle.rows('w', F32, (2,), {1: floats(-3, math.nan)}), **{'n': (I64, (), bytes(8))}},
                            12, step=200, time=1600000010000000, base_id=11, base='ckpt-1')
        bundle.write_cohort(self.path('ckpt-9'), table, 13, step=300)
        os.truncate(self.path('ckpt-9.data-00000-of-00001'), 3)
        bundle.write(self.path('ckpt-10'), table)
        os.remove(self.path('ckpt-10.index'))
        with open(self.path('checkpoint'), 'w', encoding='utf-8') as file:
            file.write('model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-2"\n')

    def test_ls_lists_checkpoints_with_their_state(self):
        self.write_run()
        text = self.run_ckpt('ls', self.top)[0].splitlines()
        self.assertEqual([line.split()[0] for line in text], ['name', 'ckpt-1', 'ckpt-2', 'ckpt-9', 'ckpt-10'])
        self.assertRegex(text[1], r'^ckpt-1 +100  2020-09-13 12:26:40 +\d+ B  full$')
        self.assertRegex(text[2], r' 200 .* delta of ckpt-1, latest$')
        self.assertRegex(text[3], r' damaged: .*ckpt-9.data-00000-of-00001: .*truncated')
        self.assertRegex(text[4], r' incomplete: no index')
        one, two, nine, ten = self.lines('ls', self.top)
        self.assertEqual((one['checkpoint'], one['step'], one['time'], one['state'], one['latest']),
                         (self.path('ckpt-1'), 100, 1600000000.25, 'full', False))
        self.assertEqual((two['state'], two['base'], two['latest']), ('delta', self.path('ckpt-1'), True))
        self.assertEqual((nine['state'], ten['state']), ('damaged', 'incomplete'))
        self.assertEqual(one['bytes'], sum(os.path.getsize(self.path('ckpt-1' + s)) for s in ('.index', '.data-00000-of-00001')))
        self.assertEqual(len(self.lines('ls', self.path('ckpt-1'), self.top)), 5)
        self.assertEqual([x['latest'] for x in self.lines('ls', self.path('ckpt-1'), self.path('ckpt-2'))], [False, True])
        self.assertRegex(text[4], r'the save did not end, or the index was removed$')
        self.assertIn('nowhere', self.run_ckpt('ls', self.path('nowhere'), code=1)[1])

    def test_checkpoint_of_a_newer_format_is_unreadable_and_not_damaged(self):
        bundle.write_cohort(self.path('ckpt-1'), {'w': (F32, (1,), floats(1))}, 1, format_number=9)
        self.assertRegex(self.run_ckpt('ls', self.top)[0].splitlines()[1], r'  unreadable: .*format')
        self.run_ckpt('verify', self.path('ckpt-1'), code=2)

    def test_file_that_is_a_directory_or_a_pipe_is_damage(self):
        for suffix in ('.index', '.data-00000-of-00001'):
            for make in (os.mkdir, os.mkfifo):
                name = f'ckpt-{make.__name__}{suffix[1]}'
                bundle.write_cohort(self.path(name), {'w': (F32, (1,), floats(1))}, 1)
                os.remove(self.path(name + suffix))
                make(self.path(name + suffix))
                self.assertIn(suffix + ': byte 0: not a regular file', self.run_ckpt('verify', self.path(name), code=1)[0])
                self.assertRegex(self.run_ckpt('ls', self.top)[0], name + '.* damaged: ')

    def test_show_prints_tensors_with_statistics(self):
        self.write_run()
        text = self.run_ckpt('show', self.top)[0]
        self.assertRegex(text, r'ckpt-2: delta of ckpt-1, step 200, saved 2020-09-13 12:26:50, 3 tensors in 1 data file')
        self.assertRegex(text, r'f32 +\(3, 2\) +16 B +-3 +6 +2.2 +1  w\n +1 of 3 rows have changed')
        head, *tensors = self.lines('show', self.path('ckpt-2.index'))
        self.assertEqual((head['id'], head['base'], head['tensors']), (f'{12:016x}', self.path('ckpt-1'), 3))
        w = next(t for t in tensors if t['tensor'] == 'w')
        self.assertEqual((w['min'], w['max'], w['nan'], w['rows'], w['shape']), (-3, 6, 1, 1, [3, 2]))

    def test_show_prints_slices_and_every_dtype(self):
        numbers = floats(*range(6))
        bundle.write(self.path('t'), {
            'w': ('slices', F32, (2, 3), [((0, 0), (2, 1), numbers[:8]), ((0, 1), (2, 2), numbers[8:])]),
            'half': (F16, (4,), struct.pack('<4e', -2, 6e-5, 0.5, math.inf)), 'brain': (BF16, (2,), bytes.fromhex('803f00c0')),
            'complex': (COMPLEX64, (1,), bytes(8)), 'empty': (F32, (0, 3), b''), 'big': (23, (1,), b'\xff' * 8),
            'evil\x1b[2J"\x07': (10, (2,), b'\0\1')})
        text = self.run_ckpt('show', self.path('t'))[0]
        self.assertIn('slice [0:2, 1:3] at byte 8 of t.data-00000-of-00001, 16 B, checksum ', text)
        self.assertRegex(text, r'complex64 +\(1,\) .* complex\n')
        self.assertNotIn('\x1b', text)
        self.assertIn('evil\\x1b[2J"\\x07', text)
        _, *tensors = self.lines('show', self.path('t'))
        by_name = {t['tensor']: t for t in tensors}
        self.assertEqual([s['begin'] for s in by_name['w']['slices']], [[0, 0], [0, 1]])
        self.assertEqual(by_name['w']['slices'][0]['crc'], f'{bundle.mask(bundle.crc32c(numbers[:8])):08x}')
        self.assertEqual((by_name['half']['min'], by_name['half']['max']), (-2, None))
        self.assertEqual((by_name['brain']['min'], by_name['brain']['max']), (-2, 1))
        self.assertEqual(by_name['big']['max'], float(2 ** 64))
        self.assertEqual((by_name['empty']['min'], by_name['evil\x1b[2J"\x07']['mean']), (None, 0.5))

    def test_verify_names_file_and_byte(self):
        self.write_run()
        self.assertRegex(self.run_ckpt('verify', self.path('ckpt-1'), self.path('ckpt-2'))[0], r'ckpt-1: ok, 3 tensors, .*\n.*ckpt-2: ok')
        with open(self.path('ckpt-1.data-00000-of-00001'), 'r+b') as file:
            file.seek(5)
            file.write(b'!')
        text = self.run_ckpt('verify', self.path('ckpt-2'), code=1)[0]
        self.assertRegex(text, r'ckpt-1.data-00000-of-00001: tensor "w": Checksum .* at byte 0\)')
        self.assertIn('1 of 3 tensors are damaged', text)
        damage, end = self.lines('verify', self.path('ckpt-1'), code=1)
        self.assertEqual((damage['tensor'], end['damaged'], end['tensors']), ('w', 1, 3))
        self.assertIn('truncated', self.lines('verify', self.path('ckpt-9'), code=1)[0]['error'])
        os.remove(self.path('ckpt-9.data-00000-of-00001'))
        self.assertIn('cannot be opened', self.run_ckpt('verify', self.path('ckpt-9'), code=1)[0])

    def test_verify_of_no_checkpoint_is_an_error(self):
        for words in (['nowhere'], ['nowhere', '--json'], ['.']):
            out, err = self.run_ckpt('verify', self.path(words[0]), *words[1:], code=2)
            self.assertEqual(out, '')
            self.assertIn('cohort: ', err)

    def test_files_that_are_symbolic_links_are_not_followed(self):
        self.write_run()
        os.mkdir(self.path('run'))
        for suffix in ('.index', '.data-00000-of-00001'):
            os.rename(self.path('ckpt-1' + suffix), self.path('run/ckpt-1' + suffix))
        self.run_ckpt('verify', self.path('run/ckpt-1'))
        for suffix in ('.data-00000-of-00001', '.index'):
            os.rename(self.path('run/ckpt-1' + suffix), self.path('elsewhere' + suffix))
            os.symlink('../elsewhere' + suffix, self.path('run/ckpt-1' + suffix))
            self.assertIn(suffix + ': is a symbolic link', self.run_ckpt('verify', self.path('run/ckpt-1'), code=1)[0])

    def test_diff_prints_names_types_and_values(self):
        same = {'a': (F32, (2,), floats(1, 2)), 'b': (F32, (), floats(1)), 's': (bundle.STRING, (1,), [b'x'])}
        bundle.write_cohort(self.path('one'), {**same, 'old': (F32, (1,), floats(1)), 'z': (F32, (3,), floats(1, 2, 3))}, 1)
        bundle.write_cohort(self.path('two'), {**same, 'new': (F32, (1,), floats(1)), 'z': (F32, (1, 3), floats(1, 2, 3))}, 2)
        bundle.write_cohort(self.path('three'), {'a': (F32, (2,), floats(1, 4.5)), 'b': (F32, (), floats(3)), 's': (bundle.STRING, (1,), [b'y']),
                                                 'old': (F32, (1,), floats(1)), 'z': (F32, (3,), floats(1, 3, 7))}, 3)
        text = self.run_ckpt('diff', self.path('one'), self.path('two'), code=1)[0]
        self.assertEqual(text.splitlines(), ['+ new  f32 (1,)', '- old  f32 (1,)', '! z  f32 (3,) -> f32 (1, 3)'])
        self.assertEqual(self.run_ckpt('diff', self.path('one'), self.path('three'))[0], '')
        text = self.run_ckpt('diff', '--values', self.path('one'), self.path('three'), code=1)[0]
        self.assertEqual(text.splitlines(), ['! a  f32 (2,): 1 of 2 values differs, by 2.5, at [1]',
                                             '! b  f32 (): the value differs, by 2', '! s  string (1,): the contents differ',
                                             '! z  f32 (3,): 2 of 3 values differ, by at most 4, the first at [1]'])
        changes = self.lines('diff', '--values', self.path('one'), self.path('three'), code=1)
        self.assertEqual([(c['tensor'], c['change']) for c in changes], [(name, 'values') for name in 'absz'])
        self.assertEqual([c['change'] for c in self.lines('diff', self.path('one'), self.path('two'), code=1)],
                         ['added', 'removed', 'type'])
        self.run_ckpt('diff', '--values', self.path('one'), self.path('one'))
        self.run_ckpt('diff', self.path('one'), self.path('nowhere'), code=2)

    def test_fold_makes_a_full_checkpoint(self):
        self.write_run()
        self.assertRegex(self.run_ckpt('fold', self.top, self.path('full'))[0], r'full: step 200, .* 3 tensors in 1 data file')
        self.run_ckpt('diff', '--values', self.path('ckpt-2'), self.path('full'))
        tensors = bundle.read(self.path('full'))
        self.assertEqual(tensors['w'][:2], (F32, (3, 2)))
        self.assertEqual(tensors['w'][2][:12], floats(1, 2, -3))
        self.run_ckpt('fold', self.top, self.path('new/folders/full'))
        self.run_ckpt('diff', '--values', self.path('ckpt-2'), self.path('new/folders/full'))
        self.assertIn('add a name', self.run_ckpt('fold', self.top, self.path('new/'), code=1)[1])
        self.assertIn('another name', self.run_ckpt('fold', self.path('ckpt-2'), self.path('full'), code=1)[1])
        self.assertIn('full checkpoint already', self.run_ckpt('fold', self.path('ckpt-1'), self.path('x'), code=1)[1])

    def test_wrong_arguments_give_exit_code_2(self):
        for words in ([], ['show'], ['list', 'x'], ['ls', '--values'], ['diff', 'a'], ['fold', 'a', 'b', 'c'], ['show', '--jason', 'x']):
            self.assertIn('cohort ckpt --help', self.run_ckpt(*words, code=2)[1])
        self.assertIn('usage: cohort ckpt ls', self.run_ckpt('--help')[0])
        self.assertIn('no-such', self.run_ckpt('show', '--', '--no-such', code=1)[1])

    def test_large_checkpoints_need_64_mebibytes_of_memory(self):
        write_zeros(self.path('zeros'), {'w': (F32, (1,), floats(1))}, 3)
        self.assertIn('192.0 MiB', self.run_ckpt('show', self.path('zeros'))[0])
        self.run_ckpt('verify', self.path('zeros'))
        self.run_ckpt('diff', '--values', self.path('zeros'), self.path('zeros'))

    def test_many_names_need_64_mebibytes_of_memory(self):
        subprocess.run([SAMPLES, 'names', self.path('names')], check=True)
        self.assertIn(': ok, 16000 tensors', self.run_ckpt('verify', self.path('names'))[0])
        self.assertEqual(self.run_ckpt('diff', self.path('names'), self.path('names'))[0], '')

    def test_fold_of_many_names_needs_64_mebibytes_of_memory(self):
        for kind, n in (('long-delta', 16000), ('many-delta', 50000)):
            subprocess.run([SAMPLES, kind, self.top], check=True)
            self.run_ckpt('fold', self.path('delta'), self.path(kind))
            self.assertIn(f': ok, {n + 3} tensors', self.run_ckpt('verify', self.path(kind))[0])
            if n < 20000:  # the fold of a part equals the whole; test/ckpt/test_delta.c compares more values
                self.assertEqual(self.run_ckpt('diff', '--values', self.path('delta'), self.path(kind))[0], '')

    def test_fold_copies_large_tensors_in_pieces(self):
        base = self.path('base')
        message = bundle.metadata(21, [0])
        write_zeros(base, {'_COHORT': (bundle.STRING, (), [message])}, 2)
        size = os.path.getsize(base + '.data-00000-of-00001')
        write_zeros(base, {'_COHORT': (bundle.STRING, (), [bundle.metadata(21, [size])])}, 2)
        bundle.write_cohort(self.path('delta'), bundle.rows('zeros', 6, (), {7: b'\5', 100 << 20: b'\6'}), 22, base_id=21, base='base')
        self.run_ckpt('fold', self.path('delta'), self.path('full'))
        zeros = next(t for t in self.lines('show', self.path('full')) if t.get('tensor') == 'zeros')
        self.assertEqual((zeros['min'], zeros['max'], zeros['shape']), (0, 6, [128 << 20]))


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
