/* graph/turns.h -- whether the replicas of a program run on a thread each, or in turns.
 *
 * Waking a thread costs tens of microseconds, and much more if the cores are busy. The replicas of a
 * short program are done sooner if the caller's thread runs all of them, in turns from collective to
 * collective. Both ways give the same bits, so the choice may follow measured times.
 *
 * A program runs in the way whose runs were shorter in the mean. From time to time a few runs (a trial)
 * use the other way. Trials take at most 1/64 of the time, and less if they keep losing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_TURNS_H
#define GRAPH_TURNS_H

#include <stdbool.h>
#include <stdint.h>

/* How long runs in one way take. Old runs count less and less. */
typedef struct ch_turns_way {
    double  n, sum_ns; /* of earlier blocks, each block counted less than the next */
    int     block_n;   /* runs of the block at hand, */
    int64_t block_ns;  /* and their time */
} ch_turns_way;

/* Of one program. The caller serialises the calls. */
typedef struct ch_turns {
    bool         in_turns; /* the better way, as far as is known */
    bool         on_trial; /* runs use the other way for now */
    bool         is_warm;  /* the way in use has made a run since it was taken up */
    ch_turns_way way[2];   /* [1]: in turns */
    double
        reference_ns; /* the better way's mean when the last trial ended; 0: there was none */
    int64_t trial_ns; /* that the last trial took */
    int64_t since_ns; /* that the runs since then took */
    int     trial_ratio;   /* since_ns must be so many times trial_ns before the next trial */
} ch_turns;

/* `in_turns` is a guess: the way that is measured first. */
void ch__turns_init(ch_turns *t, bool in_turns);
/* Returns true if the next run is to be in turns. */
bool ch__turns_next(const ch_turns *t);
/* Takes note of how long the run took that ch__turns_next decided on. */
void ch__turns_note(ch_turns *t, int64_t ns);

#endif
