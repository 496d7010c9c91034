#!/usr/bin/env python3
"""test_man.py SOURCE PAGES -- every function and header has a manual page, and roff reports no fault.

The test finds the functions in the headers by another method than tools/make-man.

SPDX-License-Identifier: Apache-2.0
"""
import glob
import os
import re
import shutil
import subprocess
import sys

API = re.compile(r'\bCH_API\b[^;{]*?\b(ch_\w+)\s*\(')
REQUESTS = {'.\\"', '.TH', '.SH', '.PP', '.RS', '.RE', '.EX', '.EE', '.TP', '.IP', '.B', '.I', '.BR',
            '.RB', '.IR', '.ad', '.nh'}
PAIRS = (('.RS', '.RE'), ('.EX', '.EE'))
# Remains of a comment or a macro that tools/make-man did not convert.
LEFT_OVER = re.compile(r'/\*|\*/|\bCH_API\b|\bCH_MUST_CHECK\b|\bCH_LIKE_PRINTF\b|__attribute__|SPDX')


def read(path):
    with open(path, encoding='utf-8') as f:
        return f.read()


def functions(header):
    text = re.sub(r'/\*.*?\*/', '', read(header), flags=re.DOTALL)
    return API.findall(text)


def missing(source, pages):
    """Returns the functions and headers that have no page, or are not shown on their page."""
    for header in sorted(glob.glob(f'{source}/include/cohort/*.h')):
        name = os.path.basename(header)[:-2]
        if name == 'cohort':
            continue
        path = f'{pages}/man3/cohort_{name}.3'
        page = read(path) if os.path.isfile(path) else ''
        if not page or f'cohort_{name} (3)' not in read(f'{pages}/man7/cohort.7'):
            yield f'cohort/{name}.h: no page, or not in cohort.7'
        for f in functions(header):
            link = f'{pages}/man3/{f}.3'
            if not re.search(rf'^\\fB.*\b{f}\(', page, re.MULTILINE):
                yield f'cohort/{name}.h: {f} is not declared on its page'
            if not os.path.isfile(link) or read(link) != f'.so man3/cohort_{name}.3\n':
                yield f'cohort/{name}.h: {f} does not lead to its page'


def wrong_by_ourselves(path):
    """Returns the faults that roff would report, for machines without roff."""
    text = read(path)
    for number, line in enumerate(text.split('\n'), 1):
        word = line.split(' ')[0]
        if (line.startswith('.') and word not in REQUESTS) or line.startswith("'"):
            yield f'{path}:{number}: {word} is no request that pages have'
        if LEFT_OVER.search(line) and not line.startswith('.\\"'):
            yield f'{path}:{number}: {line}'
    for begin, end in PAIRS:
        if len(re.findall(rf'^\{begin}\b', text, re.M)) != len(re.findall(rf'^\{end}\b', text, re.M)):
            yield f'{path}: {begin} and {end} do not pair'


def wrong_by_roff(paths):
    if shutil.which('groff'):
        done = subprocess.run(['groff', '-man', '-ww', '-z', '-Tutf8', *paths], text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        yield from done.stdout.splitlines()


def main(source, pages):
    real = sorted(glob.glob(f'{pages}/man3/cohort_*.3')) + [f'{pages}/man7/cohort.7']
    faults = list(missing(source, pages)) + list(wrong_by_roff(real))
    for path in real:
        faults += wrong_by_ourselves(path)
    for fault in faults:
        print(fault)
    if len(real) < 30:
        print(f'{pages}: only {len(real)} pages')
    return 1 if faults or len(real) < 30 else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
