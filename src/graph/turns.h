/* graph/turns.h -- chooses whether the replicas of a program run on threads or in turns.
 *
 * Waking a thread costs tens of microseconds, and much more if the cores are busy. So the
 * replicas of a short program finish earlier if the calling thread runs all of them in turns,
 * from collective to collective. Both modes give the same bits, so measured times may decide.
 *
 * A program uses the mode with the shorter mean time. From time to time a few runs (a trial)
 * use the other mode. Trials take at most 1/64 of the time, and less if the other mode keeps
 * losing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_TURNS_H
#define GRAPH_TURNS_H

#include <stdbool.h>
#include <stdint.h>

/* The measured time of runs in a mode. The weight of old runs decays. */
typedef struct ch_turns_mode {
    double  n, sum_ns; /* weighted number and time (ns) of the runs of completed blocks */
    int     block_n;   /* number of runs of the current block */
    int64_t block_ns;  /* their time in ns */
} ch_turns_mode;

/* The state of a program's choice. The caller must serialise the calls. */
typedef struct ch_turns {
    bool in_turns; /* the mode that is better as far as measured */
    bool on_trial; /* runs currently use the other mode */
    /* at least one run has been made in the current mode since the last change of mode */
    bool          is_warm;
    ch_turns_mode mode[2]; /* by mode; [1]: in turns */
    /* mean time of the better mode at the end of the last trial; 0: no trial yet */
    double  reference_ns;
    int64_t trial_ns; /* duration of the last trial in ns */
    int64_t since_ns; /* time in ns of the runs since that trial */
    int trial_ratio;  /* the next trial begins when since_ns reaches trial_ratio * trial_ns */
} ch_turns;

/* Initialises the state. `in_turns` is a guess: the mode that is measured first. */
void ch__turns_init(ch_turns *t, bool in_turns);
/* Returns true if the next run must be in turns. */
bool ch__turns_next(const ch_turns *t);
/* Records the time in ns of the run whose mode ch__turns_next returned. */
void ch__turns_note(ch_turns *t, int64_t ns);

#endif
