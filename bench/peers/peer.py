"""The protocol of peers (bench/bench.h): reads lines "run N" and prints the seconds of N runs, until the input ends. A
line "result" may come first; the reply is a number that our program must have too.

SPDX-License-Identifier: Apache-2.0
"""
import sys
import time


def serve_many(work, result=None):
    """Calls `work` with N for each line and prints the seconds that the call took."""
    for line in sys.stdin:
        if line.strip() == 'result':
            print(result(), flush=True)
            continue
        n = int(line.split()[1])
        begin = time.perf_counter()
        work(n)
        print(time.perf_counter() - begin, flush=True)


def serve(work, result=None):
    """The same for a function that does the work once in each call."""
    def many(n):
        for _ in range(n):
            work()
    serve_many(many, result)
