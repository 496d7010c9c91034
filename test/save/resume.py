#!/usr/bin/env python3
"""resume.py PROGRAM [--kills N] [--saves M] [--terms T] [--short] [--seed S] [MODE]... -- kills trainings at random.

For each mode of test/save/resumable.c: runs the training once without a kill, and starts it again when it has finished:
it must train no step. Then runs it anew, kills it N times with SIGKILL at random moments, M of them while a checkpoint
is being written, and starts it again each time. The results must be equal to the byte: the weights, the optimizer, the
numbers and the CSV file. Then does the same with SIGTERM, T times; now the file "steps", which belongs to no
checkpoint, must have the number of each step once. N is 50 unless said, or 0 with --terms; M is 10, or N if that is
less.

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
POLL = 0.001  # seconds between two looks at the files, for a signal inside a save
TRIES = 20  # signals for each that must come inside a save


def files(folder, terms):
    """What must be equal: the result, the log if there is one, and after SIGTERM the steps."""
    found = {}
    for name in ('result', 'log.csv') + (('steps',) if terms else ()):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, 'rb') as f:
                found[name] = f.read()
    return found


def unfinished(folder):
    """The data files of checkpoints that are being written, or were: a temporary name, or no index."""
    names = set(os.listdir(folder))
    return {n for n in names
            if '.data-' in n and (n.startswith('.') or n.split('.data-')[0] + '.index' not in names)}


class Writing:
    """Tells whether a checkpoint is being written, apart from what killed processes have left."""

    def __init__(self, folder):
        self.folder = folder
        self.left = unfinished(folder)

    def __call__(self):
        now = unfinished(self.folder)
        self.left &= now  # the next process removes them, and may use their names again
        return not now <= self.left


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


def wait(process, seconds, condition, limit):
    """Waits for some seconds, and then until the condition holds. Returns false if the process ends, or after `limit`
    further seconds."""
    try:
        process.wait(timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        end = time.monotonic() + limit
    while not condition():
        if process.poll() is not None or time.monotonic() >= end:
            return False
        time.sleep(POLL)
    return True


def interrupted(a, mode, folder, sig, count, saves, duration, dice):
    """Runs the training, interrupts it `count` times at most, and lets it end. Returns the number of signals, and of
    those inside a save, of which `saves` are wanted."""
    done = inside = 0
    while done < count:
        is_writing = Writing(folder)
        process = run(a.program, mode, folder, a.short)
        wants_save = inside < saves
        seconds = dice.uniform(0, duration / 2 if wants_save else duration)
        hit = wait(process, seconds, is_writing if wants_save else lambda: True, duration * 2)
        if hit:
            process.send_signal(sig)
        if hit and sig == signal.SIGKILL:
            process.communicate()
            done += 1
            inside += wants_save and is_writing()  # the signal came before the save had ended
            continue
        code = finish(process, mode)
        done += code == RESTART  # a SIGTERM before the training begins ends the process, and does not count
        if code == 0:
            return done, inside
    while finish(run(a.program, mode, folder, a.short), mode) != 0:
        pass
    return done, inside


def is_resumed(a, mode, top, sig, goal, saves, duration, dice):
    """Interrupts trainings until there were `goal` signals, `saves` of them inside a save. Returns whether all of the
    trainings have ended like the one that was never interrupted."""
    whole, stopped = os.path.join(top, 'whole'), os.path.join(top, 'stopped')
    want = files(whole, sig == signal.SIGTERM)
    total = total_inside = rounds = 0
    # A training may end before it was interrupted often enough, and a save before the signal comes.
    while total < goal or total_inside < saves:
        if total >= goal + TRIES * saves:
            print(f'{mode}: only {total_inside} of {total} signals came inside a save, want {saves}')
            return False
        shutil.rmtree(stopped, ignore_errors=True)
        os.mkdir(stopped)
        done, inside = interrupted(a, mode, stopped, sig, max(goal - total, 1), saves - total_inside, duration, dice)
        total, total_inside, rounds = total + done, total_inside + inside, rounds + 1
        if files(stopped, sig == signal.SIGTERM) != want:
            print(f'{mode}: the result differs after {done} {sig.name}; see {top}')
            return False
    if goal > 0:
        print(f'{mode}: {total} {sig.name}, {total_inside} inside a save, in {rounds} trainings: equal')
    return True


def main():
    parser = argparse.ArgumentParser(description='kills trainings and compares their results')
    parser.add_argument('program')
    parser.add_argument('--kills', type=int)
    parser.add_argument('--saves', type=int)
    parser.add_argument('--terms', type=int, default=0)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--short', action='store_true')
    parser.add_argument('mode', nargs='*', default=['fit', 'fit-servers', 'loop', 'servers'])
    a = parser.parse_intermixed_args()
    if a.kills is None:
        a.kills = 0 if a.terms else 50
    if a.saves is None:
        a.saves = min(10, a.kills)
    if a.saves > a.kills:
        sys.exit(f'--saves {a.saves} is more than --kills {a.kills}')
    dice = random.Random(a.seed)
    bad = 0
    for mode in a.mode:
        top = tempfile.mkdtemp(prefix='cohort-resume-')
        whole = os.path.join(top, 'whole')
        os.mkdir(whole)
        begin = time.monotonic()
        finish(run(a.program, mode, whole, a.short), mode)
        duration = time.monotonic() - begin
        found = files(whole, True)
        steps = found['steps'].split()
        if 'result' not in found or not steps or steps != [b'%d' % (i + 1) for i in range(len(steps))]:
            sys.exit(f'{mode}: has no result, or the numbers of its steps are not 1, 2, ...; see {top}')
        if finish(run(a.program, mode, whole, a.short), mode) != 0 or files(whole, True) != found:
            sys.exit(f'{mode}: a finished training that is started again trains a step or has another result; see {top}')
        if (is_resumed(a, mode, top, signal.SIGKILL, a.kills, a.saves, duration, dice) and
                is_resumed(a, mode, top, signal.SIGTERM, a.terms, 0, duration, dice)):
            shutil.rmtree(top)
        else:
            bad += 1
    sys.exit(bad != 0)


main()
