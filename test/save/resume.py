#!/usr/bin/env python3
"""resume.py PROGRAM [--kills N] [--saves M] [--terms T] [--short] [--seed S] [MODE]... -- kills trainings at random.

For each mode of test/save/resumable.c: runs the training once without a kill. Then runs it again, kills it N times with
SIGKILL at random moments, M of them while a checkpoint is being written, and starts it again each time. The results must
be equal to the byte: the weights, the optimizer, the numbers and the CSV file. With --terms, SIGTERM is sent T times
instead; then no step may be lost or done twice.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

RESTART = 42
LIMIT = 300  # seconds for a run that is not killed


def files(folder):
    """What must be equal: the result, and the log if there is one."""
    found = {}
    for name in ('result', 'log.csv'):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, 'rb') as f:
                found[name] = f.read()
    return found


def is_writing(folder):
    """Whether a checkpoint is being written: its data file has a temporary name or no index yet."""
    names = set(os.listdir(folder)) if os.path.isdir(folder) else set()
    return any('.data-' in n and (n.startswith('.') or n.split('.data-')[0] + '.index' not in names) for n in names)


def run(program, mode, folder, short):
    # The program ends as a killed one does, without freeing its memory: leaks are looked for in other tests.
    env = dict(os.environ, ASAN_OPTIONS=os.environ.get('ASAN_OPTIONS', '') + ':detect_leaks=0')
    return subprocess.Popen([program, mode, folder] + (['short'] if short else []), stderr=subprocess.PIPE, env=env)


def finish(process, what):
    try:
        _, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        sys.exit(f'{what}: does not end')
    if process.returncode not in (0, RESTART, -signal.SIGTERM):
        sys.exit(f'{what}: exit code {process.returncode}: {errors.decode()[-2000:]}')
    return process.returncode


def wait_until(process, condition, seconds):
    """Waits until the condition holds. Returns false if the process ends, or after some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            return False
        if condition():
            return True
    return False


def interrupted(program, mode, folder, a, duration, dice):
    """Runs the training with interruptions. Returns the number of kills, and of those inside a save."""
    kills, inside, rest = 0, 0, a.terms if a.terms else a.kills
    while kills < rest:
        process = run(program, mode, folder, a.short)
        if not a.terms and inside < a.saves:
            begin = time.monotonic() + dice.uniform(0, duration / 2)
            hit = wait_until(process, lambda: time.monotonic() >= begin and is_writing(folder), duration * 2)
            inside += hit
        else:
            begin = time.monotonic() + dice.uniform(0, duration)
            hit = wait_until(process, lambda: time.monotonic() >= begin, duration * 2)
        if hit:
            process.send_signal(signal.SIGTERM if a.terms else signal.SIGKILL)
        if not hit or a.terms:
            code = finish(process, mode)
            kills += code == RESTART  # a signal before ch_fit begins ends the process, and does not count
            if code == 0:
                break
        else:
            process.communicate()
            kills += 1
    return kills, inside


def main():
    parser = argparse.ArgumentParser(description='kills trainings and compares their results')
    parser.add_argument('program')
    parser.add_argument('--kills', type=int, default=50)
    parser.add_argument('--saves', type=int, default=10)
    parser.add_argument('--terms', type=int, default=0)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--short', action='store_true')
    parser.add_argument('mode', nargs='*', default=['fit', 'fit-servers', 'loop', 'servers'])
    a = parser.parse_intermixed_args()
    dice = random.Random(a.seed)
    bad = 0
    for mode in a.mode:
        top = tempfile.mkdtemp(prefix='cohort-resume-')
        whole, killed = os.path.join(top, 'whole'), os.path.join(top, 'killed')
        os.mkdir(whole)
        os.mkdir(killed)
        begin = time.monotonic()
        finish(run(a.program, mode, whole, a.short), mode)
        duration = time.monotonic() - begin
        total = total_inside = rounds = 0
        goal = a.terms or a.kills
        while total < goal:  # a training may end before it was killed often enough
            shutil.rmtree(killed)
            os.mkdir(killed)
            a_now = argparse.Namespace(**vars(a))
            a_now.kills = goal - total
            a_now.terms = goal - total if a.terms else 0
            a_now.saves = a.saves - total_inside
            kills, inside = interrupted(a.program, mode, killed, a_now, duration, dice)
            total, total_inside, rounds = total + kills, total_inside + inside, rounds + 1
            while finish(run(a.program, mode, killed, a.short), mode) == RESTART:
                pass
            if files(killed) != files(whole) or 'result' not in files(whole):
                bad += 1
                print(f'{mode}: the result differs after {kills} kills; see {top}')
                break
        else:
            shutil.rmtree(top)
            print(f'{mode}: {total} kills, {total_inside} inside a save, in {rounds} trainings: equal')
    sys.exit(bad != 0)


main()
