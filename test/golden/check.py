#!/usr/bin/env python3
"""check.py SCRIPT -- a golden file equals the output of its script, except for rounding.

The scripts need numpy and PyTorch, of this Python or of the system's. Without them the test is
skipped (exit code 77).

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


def made_by(script):
    """Returns the output of a script, or None if Python lacks a module that it needs."""
    for name in (sys.executable, '/usr/bin/python3'):
        done = subprocess.run([name, HERE / script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              check=False, text=True)
        if done.returncode == 0:
            return done.stdout
        if 'ModuleNotFoundError' not in done.stderr:
            sys.exit(done.stderr)
    return None


def differs(made, kept):
    """Returns the first difference of two texts beyond rounding, or None."""
    if NUMBER.sub('#', made) != NUMBER.sub('#', kept):
        return 'other words'
    for a, b in zip(NUMBER.findall(made), NUMBER.findall(kept)):
        if abs(float(a) - float(b)) > 2e-6 * (1e-3 + abs(float(b))):
            return '%s, where %s is kept' % (a, b)
    return None


def main(script):
    made = made_by(script)
    if made is None:
        print('skipped: no python3 with numpy and torch')
        return 77
    why = differs(made, (HERE / FILES[script]).read_text())
    if why is not None:
        print('%s gives %s in %s' % (script, why, FILES[script]))
    return why is not None


sys.exit(main(sys.argv[1]))
