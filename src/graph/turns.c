/* graph/turns.c -- whether the replicas of a program run on a thread each, or in turns.
 *
 * Means are compared, not medians: on a busy machine a few runs that wait for a core make most of the
 * time. They come a few milliseconds apart, so a mean needs the runs of many milliseconds, over several
 * trials.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/turns.h"

/* A block is whole after so many runs that took so long together, or after LONG_NS. */
enum { BLOCK_RUNS = 8, BLOCK_NS = 500000, LONG_NS = 4000000 };
/* Trials take at most 1 / OFTEN of the time; a way that keeps losing is tried less, to 1 / SELDOM. */
enum { MIN_TRIAL_RATIO = 64, MAX_TRIAL_RATIO = 1024 };

/* What a block counts when the next one is whole. */
static const double decay = 0.9375;
/* The other way must be faster by this to be taken up: noise is no reason for a change. */
static const double switch_ratio = 0.95;
/* A way that takes this much longer has lost clearly. */
static const double lost_ratio = 1.25;
/* If the mean changes by this factor, the machine is not as it was when the ways were compared. */
static const double changed_ratio = 2;

static bool block_is_whole(const ch_turns_way *w)
{
    return (w->block_n >= BLOCK_RUNS && w->block_ns >= BLOCK_NS) || w->block_ns >= LONG_NS;
}

static void end_block(ch_turns_way *w)
{
    w->n = w->n * decay + w->block_n;
    w->sum_ns = w->sum_ns * decay + (double)w->block_ns;
    w->block_n = 0;
    w->block_ns = 0;
}

static double mean_of(const ch_turns_way *w)
{
    return w->sum_ns / w->n;
}

static bool is_changed(const ch_turns *t, double mean_ns)
{
    return mean_ns > changed_ratio * t->reference_ns || changed_ratio * mean_ns < t->reference_ns;
}

void ch__turns_init(ch_turns *t, bool in_turns)
{
    *t = (ch_turns){.in_turns = in_turns, .trial_ratio = MIN_TRIAL_RATIO};
}

bool ch__turns_next(const ch_turns *t)
{
    return t->in_turns != t->on_trial;
}

static void begin_trial(ch_turns *t)
{
    ch_turns_way *other = &t->way[!t->in_turns];

    /* If the machine has changed, the other way's mean is as old as its last trial. */
    if (is_changed(t, mean_of(&t->way[t->in_turns]))) {
        other->n /= 16;
        other->sum_ns /= 16;
        t->trial_ratio = MIN_TRIAL_RATIO;
    }
    t->on_trial = true;
    t->is_warm = false;
    t->trial_ns = 0;
}

static void end_trial(ch_turns *t)
{
    double now = mean_of(&t->way[t->in_turns]), other = mean_of(&t->way[!t->in_turns]);

    if (other < switch_ratio * now) {
        t->in_turns = !t->in_turns;
        t->trial_ratio = MIN_TRIAL_RATIO;
    } else if (other > lost_ratio * now) {
        t->trial_ratio = t->trial_ratio < MAX_TRIAL_RATIO ? 2 * t->trial_ratio : MAX_TRIAL_RATIO;
    } else {
        t->trial_ratio = MIN_TRIAL_RATIO;
    }
    t->reference_ns = mean_of(&t->way[t->in_turns]);
    t->on_trial = t->is_warm = false;
    t->since_ns = 0;
}

static bool is_time_for_trial(const ch_turns *t)
{
    int trial_ratio = is_changed(t, mean_of(&t->way[t->in_turns])) ? MIN_TRIAL_RATIO : t->trial_ratio;

    return t->reference_ns == 0 || t->since_ns >= trial_ratio * t->trial_ns;
}

/* The first run after a change finds cold caches and sleeping threads. It counts only if it is long. */
static bool is_counted(ch_turns *t, int64_t ns)
{
    bool was_warm = t->is_warm;

    t->is_warm = true;
    return was_warm || ns >= LONG_NS;
}

void ch__turns_note(ch_turns *t, int64_t ns)
{
    ch_turns_way *w = &t->way[ch__turns_next(t)];

    *(t->on_trial ? &t->trial_ns : &t->since_ns) += ns;
    if (!is_counted(t, ns))
        return;
    w->block_n++;
    w->block_ns += ns;
    if (!block_is_whole(w))
        return;
    end_block(w);
    if (t->on_trial)
        end_trial(t);
    else if (is_time_for_trial(t))
        begin_trial(t);
}
