"""The peer's side of bench/bench.h: lines "run N" in, seconds out, until the input ends.

SPDX-License-Identifier: Apache-2.0
"""
import sys
import time


def serve(work):
    """Calls `work` N times for each line and answers with the seconds that took."""
    for line in sys.stdin:
        n = int(line.split()[1])
        begin = time.perf_counter()
        for _ in range(n):
            work()
        print(time.perf_counter() - begin, flush=True)
