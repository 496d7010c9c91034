/* test/tools/bench_program.c -- a benchmark with known results, for test_tools.py.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "../../bench/bench.h"

/* Runs n times, at least a millisecond each. */
static void a_millisecond(void *arg, int64_t n)
{
    double until = bench_now() + 1e-3 * (double)n;

    while (bench_now() < until)
        ;
    (void)arg;
}

static bool is_wrong(void *arg, char *why, size_t size)
{
    (void)arg;
    snprintf(why, size, "1 is not 2");
    return false;
}

static double is_two(void *arg)
{
    (void)arg;
    return 2;
}

/* A peer that prints the result 2.02, or a millisecond for each run. */
#define COMES_TO_2_02                                                                          \
    "while read -r run n; do "                                                                 \
    "if [ $run = result ]; then echo 2.02; else echo $((n * 1))e-3; fi; done"

#define ANSWERS(ms) "while read -r run n; do echo $((n * " ms "))e-3; done"

int main(int argc, char **argv)
{
    bench     *b = bench_open("program", argc, argv);
    bench_side ours = {.run = a_millisecond};

    bench_run(b, &(bench_case){.name = "best of two",
                               .unit = "ms",
                               .scale = 1e3,
                               .ours = ours,
                               .peer = {{"slow", .command = ANSWERS("100")},
                                        {"quick", .command = ANSWERS("10")}},
                               .limit_figure = 0.5});
    bench_run(b, &(bench_case){.name = "rate",
                               .unit = "kB/s",
                               .better = BENCH_HIGHER,
                               .scale = 1,
                               .ours = ours,
                               .peer = {{"in the process", .run = a_millisecond}},
                               .limit = {.run = a_millisecond}});
    bench_run(b, &(bench_case){.name = "wrong", .ours = ours, .check = is_wrong});
    for (int i = 0; i < 2; i++)
        bench_run(b, &(bench_case){.name = i == 0 ? "agrees" : "differs",
                                   .unit = "ms",
                                   .scale = 1e3,
                                   .ours = ours,
                                   .peer = {{"other", .command = COMES_TO_2_02}},
                                   .result = is_two,
                                   .tolerance = i == 0 ? 0.02 : 0.005});
    bench_run(b, &(bench_case){.name = "lost",
                               .unit = "ms",
                               .scale = 1e3,
                               .ours = ours,
                               .peer = {{"gone", .command = "exit 1"}}});
    bench_add(b, "bytes", "B", BENCH_LOWER, 0, 0);
    bench_add(b, "bytes of a case whose name is longer than the column of names", "B",
              BENCH_LOWER, 0, 0);
    return bench_close(b);
}
