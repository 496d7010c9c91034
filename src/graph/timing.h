/* graph/timing.h -- where the time of a run goes.
 *
 * Every call knows what it is for. A run that is timed has a clock for each replica, which is
 * told what the replica turns to and looks at the time when that is something else; a run that
 * is not has none, and pays a branch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_TIMING_H
#define GRAPH_TIMING_H

#include <stdint.h>

typedef enum ch_work_kind {
    CH_WORK_FORWARD,  /* what is none of the others */
    CH_WORK_BACKWARD, /* recorded while gradients are */
    CH_WORK_REDUCE,   /* collectives, and agreeing that nothing failed */
    CH_WORK_UPDATE,   /* recorded by an optimizer, and copies to variables */
    CH_WORKS_OF_NODES,
    CH_WORK_WAIT = CH_WORKS_OF_NODES, /* for other replicas: in meetings, and for their end */
    CH_WORK_OTHER,                    /* recording, planning, launching */
    CH_WORKS
} ch_work_kind;

/* "forward"; for tables and messages. */
const char *ch__work_name(ch_work_kind work);

/* Of one run: the mean over its replicas, or the sum if they ran in turns. It adds up to the caller's time. */
typedef struct ch_timing {
    int64_t ns[CH_WORKS];
    int64_t total_ns;
} ch_timing;

/* One replica's, during a run. */
typedef struct ch_clock {
    ch_work_kind work; /* what it does now, */
    int64_t      since_ns;
    int64_t      began_ns, ended_ns;
    int64_t      ns[CH_WORKS]; /* and what it did before that */
    const char  *track;        /* of the trace; NULL: it is not on */
} ch_clock;

void ch__clock_start(ch_clock *c, const char *track);
/* The run was this function's; `failed` is for the trace. */
void ch__clock_stop(ch_clock *c, const char *function, int failed);

/* From now on it does this. Returns what it did until now. */
ch_work_kind ch__clock_switch(ch_clock *c, ch_work_kind work);

/* Around what is a span of its own in the trace, if there is one: the time when it began, and its end. What
 * has no scope has its work's name for one: "backward/matmul". */
int64_t ch__clock_begin_span(const ch_clock *c);
void    ch__clock_end_span(const ch_clock *c, int64_t began_ns, const char *scope, const char *name);

/* Around the turns of other replicas, which are no time of this one. */
void ch__clock_suspend(ch_clock *c);
void ch__clock_continue(ch_clock *c);

/* Around waiting for others in a meeting. */
typedef struct ch_pause {
    ch_work_kind before;
    int64_t      began_ns;
} ch_pause;
ch_pause ch__clock_pause(ch_clock *c);
void     ch__clock_resume(ch_clock *c, ch_pause p, const char *what);

/* The mean of n clocks that were stopped. Who ended before the others waited for them. */
void ch__timing_mean(ch_timing *t, int n, const ch_clock *clock);
/* The sum of n clocks that were stopped, of replicas that ran in turns: none of them waited. */
void ch__timing_sum(ch_timing *t, int n, const ch_clock *clock);
/* Makes the entries add up to the total: what is not known is CH_WORK_OTHER. */
void ch__timing_close(ch_timing *t, int64_t total_ns);

#endif
