#!/usr/bin/env python3
"""test_demo.py PROGRAM -- the output of examples/fashion_mnist on a terminal of 80 columns.

SPDX-License-Identifier: Apache-2.0
"""
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import unittest
from fcntl import ioctl

PROGRAM = sys.argv.pop()
COLUMNS = 80
SEQUENCE = re.compile(r'\033\[[0-9;?]*[A-Za-z]')
SKIPPED = 77  # exit code that meson reports as skipped


def run(args, interrupt_at=None, **more):
    """Returns the exit status and the output. Sends Ctrl-C when the output contains `interrupt_at`."""
    reader, writer = pty.openpty()
    ioctl(writer, termios.TIOCSWINSZ, struct.pack('HHHH', 50, COLUMNS, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ('NO_COLOR', 'COLUMNS', 'LC_CTYPE')}
    env.update(TERM='xterm-256color', LC_ALL='C.UTF-8', COHORT_DEVICES='CPU=2', **more)
    with subprocess.Popen([PROGRAM, *args], stdin=writer, stdout=writer, stderr=writer,
                          env=env) as child:
        os.close(writer)
        text = b''
        while True:
            try:
                got = os.read(reader, 65536)
            except OSError:  # the other end was closed
                break
            if not got:
                break
            text += got
            if interrupt_at and interrupt_at in text:
                child.send_signal(signal.SIGINT)
                interrupt_at = None
    os.close(reader)
    return child.returncode, text.decode('utf-8').replace('\r\n', '\n')


class Demo(unittest.TestCase):
    def check_lines(self, text, columns=COLUMNS):
        """Checks for complete escape sequences, and that no line is wider than the window or ends in a color."""
        self.assertNotIn('\033', SEQUENCE.sub('', text))
        self.assertNotIn('\ufffd', text)
        for line in text.split('\n'):
            if re.match('(Steps|Replicas) wait for ', line):  # advice on a busy machine is long
                continue
            for part in line.split('\r'):  # drawn over each other
                self.assertLessEqual(len(SEQUENCE.sub('', part)), columns, part)
                colors = re.findall(r'\033\[([0-9;]*)m', part)
                self.assertIn(colors[-1] if colors else '0', ('0', ''), part)

    def test_pictures_are_whole_and_fit(self):
        code, text = run(['short', '/none'])
        self.assertEqual(code, 0, text)
        self.check_lines(text)
        rows = [line for line in SEQUENCE.sub('', text).split('\n') if '\u2580' in line]
        self.assertEqual([len(row) for row in rows], [78] * 14)
        self.assertIn(' step 1 ', text)
        self.assertIn('What to try next', text)

    def test_what_stands_in_for_clothes_says_so(self):
        _, text = run(['short', '/none'])
        self.assertIn('Fashion-MNIST is not in /none.\nThe example trains on synthetic striped images.', text)
        self.assertIn('stripes, kind ', text)
        self.assertNotIn('T-shirt', text)

    def test_narrower_on_request(self):
        _, text = run(['short', '/none'], COLUMNS='50', NO_COLOR='1')
        self.assertNotIn('m', ''.join(s[-1] for s in SEQUENCE.findall(text)))
        live = text[:text.index('where the time went')]
        self.check_lines(live[live.index('Epoch'):], 50)

    def test_an_interrupt_leaves_a_number(self):
        code, text = run(['3', '/none'], interrupt_at=b'ETA')
        self.assertEqual(code, 0, text)
        self.check_lines(text)
        self.assertIn('Stopped: interrupted', text)
        self.assertRegex(text, r'test accuracy \d+\.\d %')

    def test_what_is_no_number_of_epochs_is_refused(self):
        for word in ('abc', '0', '-1', '3x', ''):
            code, text = run([word, '/none'])
            self.assertEqual(code, 1)
            self.assertIn('1 to 1000 epochs', text)


if __name__ == '__main__':
    try:
        pty.openpty()
    except OSError:
        sys.exit(SKIPPED)
    unittest.main(verbosity=0)
