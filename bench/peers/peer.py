"""The peer's side of bench/bench.h: lines "run N" in, seconds out, until the input ends. And "result", before any of
them: the number that the row's own program must come to as well.

SPDX-License-Identifier: Apache-2.0
"""
import sys
import time


def serve_many(work, result=None):
    """Calls `work` with N for each line and answers with the seconds that took."""
    for line in sys.stdin:
        if line.strip() == 'result':
            print(result(), flush=True)
            continue
        n = int(line.split()[1])
        begin = time.perf_counter()
        work(n)
        print(time.perf_counter() - begin, flush=True)


def serve(work, result=None):
    """The same for work that is done once in a call."""
    def many(n):
        for _ in range(n):
            work()
    serve_many(many, result)
