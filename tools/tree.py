#!/usr/bin/env python3
"""tree.py PATTERN... -- the files of the project that match, one a line; none given: all.

What git tracks and what is new to it; where git has nothing to say (a release archive, a
test's own small tree), every file but those in build directories. Also a module: the checks
import `files` and `code`.

SPDX-License-Identifier: Apache-2.0
"""
import fnmatch
import os
import re
import shutil
import subprocess
import sys

TOKEN = re.compile(r'''//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ''',
                   re.DOTALL | re.VERBOSE)


def everything():
    if shutil.which('git'):
        git = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
                             capture_output=True, text=True, check=False)
        if git.returncode == 0:
            return [f for f in git.stdout.split('\0') if f and os.path.isfile(f)]
    found = []
    for where, folders, names in os.walk('.'):
        folders[:] = [d for d in folders if not d.startswith(('build', '.git', '__pycache__'))]
        found += [os.path.relpath(os.path.join(where, n), '.') for n in names]
    return found


def files(*patterns):
    """Sorted paths that match one of the patterns ('src/*.c' matches in folders below, too)."""
    return sorted({f for f in everything()
                   if not patterns or any(fnmatch.fnmatch(f, p) for p in patterns)})


def read(path):
    with open(path, encoding='utf-8', errors='replace') as f:
        return f.read()


def code(text, strings=False):
    """C text with comments, and unless `strings` also literals, blanked; lines keep numbers."""
    def blank(token):
        t = token.group()
        if strings and t[0] in '"\'':
            return t
        return re.sub(r'[^\n]', ' ', t)
    return TOKEN.sub(blank, text)


def report(faults):
    """Prints "path:line: what" lines and gives the exit code."""
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == '__main__':
    print('\n'.join(files(*sys.argv[1:])))
