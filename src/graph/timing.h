/* graph/timing.h -- measures how a run spends its time.
 *
 * Every call has a kind of work. In a timed run every replica has a clock. The executor and the
 * group switch the clock when the kind of work changes, and the clock adds the elapsed time to
 * the previous kind. A run that is not timed has no clocks, and pays only a branch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_TIMING_H
#define GRAPH_TIMING_H

#include <stdint.h>

typedef enum ch_work_kind {
    CH_WORK_FORWARD,  /* all calls that are not of another kind */
    CH_WORK_BACKWARD, /* recorded by ch_gradients */
    CH_WORK_REDUCE,   /* collectives, and the barrier before variables are written */
    CH_WORK_UPDATE,   /* recorded by an optimizer, and copies into variables */
    CH_WORKS_OF_NODES,
    /* waiting for other replicas: at barriers, and for their end */
    CH_WORK_WAIT = CH_WORKS_OF_NODES,
    CH_WORK_OTHER, /* recording, planning, launching */
    CH_WORKS
} ch_work_kind;

/* Returns the name for tables and messages, such as "forward". */
const char *ch__work_name(ch_work_kind work);

/* The time of a run in ns. The kinds are the mean over the replicas, or the sum if the replicas
 * ran in turns. They add up to total_ns, the time of the caller (ch__timing_close). */
typedef struct ch_timing {
    int64_t ns[CH_WORKS];
    int64_t total_ns;
} ch_timing;

/* The clock of a replica during a run. Only the thread that runs the replica may use it. */
typedef struct ch_clock {
    ch_work_kind work;     /* current kind of work */
    int64_t      since_ns; /* start of the current kind of work */
    int64_t      began_ns, ended_ns;
    int64_t      ns[CH_WORKS]; /* time of each kind before since_ns */
    const char  *track;        /* track of the trace file; NULL: no trace is written */
} ch_clock;

/* Starts the clock, with CH_WORK_OTHER. */
void ch__clock_start(ch_clock *c, const char *track);
/* Stops the clock, and writes a span with the name of the function to the trace. A non-zero
 * `failed` is shown in the span's name. */
void ch__clock_stop(ch_clock *c, const char *function, int failed);

/* Switches to another kind of work. Returns the previous kind. */
ch_work_kind ch__clock_switch(ch_clock *c, ch_work_kind work);

/* Mark the begin and the end of a span in the trace; no effect if no trace is written.
 * begin_span returns the start time, which end_span receives. The name of the span is
 * "scope/name". If scope is NULL, the kind of work is used, as "backward/matmul"; forward calls
 * have no prefix. */
int64_t ch__clock_begin_span(const ch_clock *c);
void    ch__clock_end_span(const ch_clock *c, int64_t began_ns, const char *scope,
                           const char *name);

/* Suspend and continue the clock around the turns of other replicas, whose time is not counted
 * here. */
void ch__clock_suspend(ch_clock *c);
void ch__clock_continue(ch_clock *c);

/* A wait for other replicas at a barrier. pause switches to CH_WORK_WAIT, and resume switches
 * back. `what` is the label of the wait in the trace. */
typedef struct ch_pause {
    ch_work_kind before;
    int64_t      began_ns;
} ch_pause;
ch_pause ch__clock_pause(ch_clock *c);
void     ch__clock_resume(ch_clock *c, ch_pause p, const char *what);

/* Sets *t to the mean of n stopped clocks. A replica that ended earlier than the last counts
 * the difference as CH_WORK_WAIT. */
void ch__timing_mean(ch_timing *t, int n, const ch_clock *clock);
/* Sets *t to the sum of n stopped clocks, for replicas that ran in turns and so did not
 * wait. */
void ch__timing_sum(ch_timing *t, int n, const ch_clock *clock);
/* Sets the total, and CH_WORK_OTHER to the part of the total that no other kind accounts
 * for. */
void ch__timing_close(ch_timing *t, int64_t total_ns);

#endif
