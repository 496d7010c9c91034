/* bench/bench.h -- measures code side by side with peers and limits.
 *
 * Machines are shared and noisy, so a single time means little. Therefore a case is measured in
 * turns with peers, which do the same work, and with the limit of this machine: ours, peer,
 * limit, ours, peer, limit. There are at least five rounds, after a warm-up that lasts until
 * the time is stable. The figure of a side is the median of the medians of its rounds.
 *
 *     static void add(void *arg, int64_t n) { for (...n) ...; }
 *
 *     int main(int argc, char **argv)
 *     {
 *         bench *b = bench_open("dispatch", argc, argv);
 *         bench_run(b, &(bench_case){
 *             .name = "chain of 1000 adds", .unit = "ns/node", .scale = 1e9 / 1000,
 *             .ours = {.run = add, .arg = &chain},
 *             .peer = {{"PyTorch", .command = "exec $PYTHON $PEERS/torch_dispatch.py chain"}},
 *         });
 *         return bench_close(b);
 *     }
 *
 * A peer may be another program. It reads lines "run N" and replies to each with the seconds of
 * N runs. If the case has `result`, it first reads a line "result" and replies with a number.
 * `command` is a shell command, in which $PEERS is bench/peers and $PYTHON is Debian's Python.
 * The program is stopped (SIGSTOP) when it is not its turn. Such peers are measured only with
 * --peers, because they need additional packages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_MAX_PEERS 4

typedef struct bench bench;

typedef enum bench_better { BENCH_LOWER, BENCH_HIGHER } bench_better;

/* A side of a comparison: a function that does the work n times, or a command of a peer. */
typedef struct bench_side {
    const char *name; /* of a peer, with its setting: "PyTorch, 1 thread" */
    void (*run)(void *arg, int64_t n);
    void       *arg;
    const char *command;
} bench_side;

typedef struct bench_case {
    const char  *name;
    const char  *unit;
    bench_better better;
    double       scale; /* LOWER: figure = scale * seconds of a run; HIGHER: scale / seconds */
    bench_side   ours;
    bench_side   peer[BENCH_MAX_PEERS]; /* settings of a peer; the best counts */
    bench_side   limit;                 /* `run` is NULL: limit_figure, if not 0 */
    double       limit_figure;
    bool rest; /* sleep between sides, as OpenMP and OpenBLAS spin for 0.1 s after work */
    /* Returns true if our result is right; otherwise sets `why`. May be NULL. */
    bool (*check)(void *arg, char *why, size_t size);
    /* Returns a result of ours. Called once, after the check. The result of a peer program must
     * not differ by more than `tolerance`, or the row is void. May be NULL. */
    double (*result)(void *arg);
    double tolerance; /* relative */
} bench_case;

/* Parses the arguments: --json, --peers, --ours (no other side, for a profiler), --quick (a
 * single short round, as a test), --once (a single round of ours after a short warm-up, without
 * checks, for tools/compare-bench), and words. If there are words, only cases whose names
 * contain any of them run. */
bench *bench_open(const char *name, int argc, char **argv);
bool   bench_is_quick(const bench *b);
/* Returns true if large cases should reduce their work: with --quick, unless --peers is set
 * too. */
bool bench_is_small(const bench *b);
bool bench_wants(const bench *b, const char *case_name);
void bench_run(bench *b, const bench_case *c);
/* Adds a row with figures that are not times, such as bytes. A limit of NAN is unknown. */
void bench_add(bench *b, const char *case_name, const char *unit, bench_better better,
               double ours, double limit);
/* Marks a row as void because a result was wrong. */
void bench_void(bench *b, const char *case_name, const char *why);
/* Returns the exit code of the program: 1 if a row was void or a peer did not reply. */
int bench_close(bench *b);

double bench_now(void); /* seconds, monotonic */
/* Returns the number of allocations in this process so far, including those of libraries. */
int64_t bench_allocations(void);

#endif
