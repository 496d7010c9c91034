#!/usr/bin/env python3
"""evaluator.py PARAMETER_SERVER EVALUATOR -- kills and evaluates the example with parameter servers.

Kills examples/parameter_server.c when its second checkpoint exists, starts it again, and runs examples/evaluator.c beside
it. The training must end well, and the evaluator must print a loss and an accuracy of every checkpoint that it can have
seen, each once. $MESON_EXE_WRAPPER is the emulator of programs for another machine.

SPDX-License-Identifier: Apache-2.0
"""
import os
import re
import subprocess
import sys
import tempfile
import time

EPOCHS = 12   # of the example in its short form
KILLED_AT = 2  # checkpoints
SECONDS = 100
LINE = re.compile(r'.*/ckpt-(\d+): loss (\d+\.\d+), accuracy (\d+\.\d) %')


def start(program, folder):
    command = os.environ.get('MESON_EXE_WRAPPER', '').split() + [program, 'short', folder]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process, what):
    try:
        out, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        sys.exit(f'{what}: does not end')
    if process.returncode != 0:
        sys.exit(f'{what}: exit code {process.returncode}')
    return out


def kill_at(process, path):
    """Kills a process when a file exists."""
    end = time.monotonic() + SECONDS
    while not os.path.exists(path):
        if process.poll() is not None or time.monotonic() > end:
            sys.exit(f'the training has ended, or runs, without {path}')
        time.sleep(0.001)
    process.kill()
    process.communicate()


def check(text):
    """Checks the evaluations. The last checkpoints stay, so the evaluator has seen these."""
    found = [LINE.fullmatch(line) for line in text.splitlines()]
    if not found or None in found:
        sys.exit(f'the evaluator has printed:\n{text}')
    numbers = [int(m[1]) for m in found]
    if numbers != sorted(set(numbers)) or numbers[-3:] != [EPOCHS - 2, EPOCHS - 1, EPOCHS]:
        sys.exit(f'the evaluator has evaluated {numbers}, want each in turn, to {EPOCHS}')
    if not 70 < float(found[-1][3]) <= 100:  # the classes have half of the points each
        sys.exit(f'the accuracy of the last checkpoint is {found[-1][3]} %')


def main():
    training, evaluator = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        kill_at(start(training, folder), f'{folder}/ckpt-{KILLED_AT}.index')
        again, beside = start(training, folder), start(evaluator, folder)
        finish(again, 'the training that was killed')
        check(finish(beside, 'the evaluator'))


main()
