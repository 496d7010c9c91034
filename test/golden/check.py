#!/usr/bin/env python3
"""check.py -- golden files are what their scripts give, to within the last digits.

Wants numpy and PyTorch, of this Python or of the system's; without them it is skipped, 77.

SPDX-License-Identifier: Apache-2.0
"""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FILES = {'csv_texts.py': 'csv_texts.inc', 'layers.py': 'layers.h', 'optimizers.py': 'optimizers.inc',
         'philox.py': 'philox.inc', 'runs.py': 'runs.inc'}
NUMBER = re.compile(r'[-+]?\d+\.?\d*(?:e[-+]?\d+)?')


def python():
    for name in (sys.executable, '/usr/bin/python3'):
        try:
            if subprocess.run([name, '-c', 'import numpy, torch'], stderr=subprocess.DEVNULL,
                              check=False).returncode == 0:
                return name
        except OSError:
            pass
    return None


def differs(made, kept):
    """Where two texts differ by more than rounding; None if they do not."""
    if NUMBER.sub('#', made) != NUMBER.sub('#', kept):
        return 'other words'
    for a, b in zip(NUMBER.findall(made), NUMBER.findall(kept)):
        if abs(float(a) - float(b)) > 2e-6 * (1e-3 + abs(float(b))):
            return '%s, where %s is kept' % (a, b)
    return None


def main():
    name = python()
    if name is None:
        print('skipped: no python3 with numpy and torch')
        return 77
    bad = 0
    for script, file in FILES.items():
        made = subprocess.run([name, HERE / script], stdout=subprocess.PIPE, check=True, text=True)
        why = differs(made.stdout, (HERE / file).read_text())
        if why is not None:
            print('%s gives %s in %s' % (script, why, file))
            bad = 1
    return bad


sys.exit(main())
