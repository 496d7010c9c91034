/* bench/bench.h -- measuring side by side.
 *
 * A machine is shared and noisy, so a time by itself says little. A case is measured in turns
 * with what it is compared to: peers that do the same work, and the limit that this machine
 * sets. Ours, peer, limit, ours, peer, limit: five rounds or more, each after a warm-up that
 * lasts until the time settles. A side's figure is the median of its rounds' medians.
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
 * A peer that is another program reads lines "run N" and answers each with the seconds that
 * N runs took, and before them perhaps "result"; `command` is a line of shell, in which $PEERS is bench/peers and $PYTHON is
 * Debian's Python. It stands still while it is not asked. Such peers are measured only when asked for (--peers), since they
 * need packages of their own.
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

/* One of those compared: a function that does the work n times, or a command that does. */
typedef struct bench_side {
    const char *name; /* for peers: who, and with which setting, "PyTorch, 1 thread" */
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
    bench_side   peer[BENCH_MAX_PEERS]; /* settings of one peer: the best of them counts */
    bench_side   limit;                 /* no `run`: `limit_figure`, if that is not 0 */
    double       limit_figure;
    bool rest; /* between sides: threads of OpenMP and OpenBLAS spin for 0.1 s after work */
    /* Whether ours gives the right result; if not, `why`, and the row is void. May be NULL. */
    bool (*check)(void *arg, char *why, size_t size);
    /* If not NULL: a number that ours comes to, asked for once, after the check. A peer that is a
     * program comes to the same, within `tolerance` of it, or the row is void. */
    double (*result)(void *arg);
    double tolerance; /* 1e-3: a thousandth of the number */
} bench_case;

/* Reads --json, --peers, --ours (no other side: for a profiler), --quick (one short round: to see that it
 * works), --once (one round of ours after a short warm-up, without checks: tools/compare-bench repeats it)
 * and words, of which a case's name must then contain one. */
bench *bench_open(const char *name, int argc, char **argv);
bool   bench_is_quick(const bench *b);
/* Whether a large row should do a small part of its work: --quick, unless peers do the whole of it. */
bool bench_is_small(const bench *b);
bool bench_wants(const bench *b, const char *case_name);
void bench_run(bench *b, const bench_case *c);
/* A row whose figures were found otherwise, such as bytes; a limit of NAN is not known. */
void bench_add(bench *b, const char *case_name, const char *unit, bench_better better,
               double ours, double limit);
/* Marks a row as void: a result was wrong. */
void bench_void(bench *b, const char *case_name, const char *why);
/* The program's exit code: 1 if a row was void or a peer did not answer. */
int bench_close(bench *b);

double bench_now(void); /* seconds, monotonic */
/* How often anyone in this process has allocated memory. */
int64_t bench_allocations(void);

#endif
