/* graph/turns.c -- chooses whether the replicas of a program run on threads or in turns.
 *
 * Means are compared, not medians, because on a busy machine a few runs that wait for a core
 * take most of the time. Such runs are a few milliseconds apart, so a mean needs many
 * milliseconds of runs, over several trials.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/turns.h"

/* A block is complete after BLOCK_RUNS runs that took BLOCK_NS together, or after LONG_NS. */
enum { BLOCK_RUNS = 8, BLOCK_NS = 500000, LONG_NS = 4000000 };
/* Trials take at most 1 / MIN_TRIAL_RATIO of the time. If a mode keeps losing clearly, the
 * ratio is doubled up to MAX_TRIAL_RATIO. */
enum { MIN_TRIAL_RATIO = 64, MAX_TRIAL_RATIO = 1024 };

/* weight of a block relative to the next block */
static const double decay = 0.9375;
/* The mode changes if the other mode's mean is below this part of the current mean. Otherwise
 * noise would cause changes. */
static const double switch_ratio = 0.95;
/* A mode loses a trial clearly if its mean exceeds the other mean by this factor. */
static const double lost_ratio = 1.25;
/* If the mean changes by this factor, the load of the machine is different from that at the
 * last trial. */
static const double changed_ratio = 2;

static bool block_is_whole(const ch_turns_mode *w)
{
    return (w->block_n >= BLOCK_RUNS && w->block_ns >= BLOCK_NS) || w->block_ns >= LONG_NS;
}

static void end_block(ch_turns_mode *w)
{
    w->n = w->n * decay + w->block_n;
    w->sum_ns = w->sum_ns * decay + (double)w->block_ns;
    w->block_n = 0;
    w->block_ns = 0;
}

static double mean_of(const ch_turns_mode *w)
{
    return w->sum_ns / w->n;
}

static bool is_changed(const ch_turns *t, double mean_ns)
{
    return mean_ns > changed_ratio * t->reference_ns ||
           changed_ratio * mean_ns < t->reference_ns;
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
    ch_turns_mode *other = &t->mode[!t->in_turns];

    /* If the load has changed, the other mode's mean is outdated: give it less weight. */
    if (is_changed(t, mean_of(&t->mode[t->in_turns]))) {
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
    double now = mean_of(&t->mode[t->in_turns]), other = mean_of(&t->mode[!t->in_turns]);

    if (other < switch_ratio * now) {
        t->in_turns = !t->in_turns;
        t->trial_ratio = MIN_TRIAL_RATIO;
    } else if (other > lost_ratio * now) {
        t->trial_ratio =
            t->trial_ratio < MAX_TRIAL_RATIO ? 2 * t->trial_ratio : MAX_TRIAL_RATIO;
    } else {
        t->trial_ratio = MIN_TRIAL_RATIO;
    }
    t->reference_ns = mean_of(&t->mode[t->in_turns]);
    t->on_trial = t->is_warm = false;
    t->since_ns = 0;
}

static bool is_time_for_trial(const ch_turns *t)
{
    int trial_ratio =
        is_changed(t, mean_of(&t->mode[t->in_turns])) ? MIN_TRIAL_RATIO : t->trial_ratio;

    return t->reference_ns == 0 || t->since_ns >= trial_ratio * t->trial_ns;
}

/* Returns true if a run counts. The first run after a change of mode has cold caches and
 * sleeping threads, so it counts only if it is long. */
static bool is_counted(ch_turns *t, int64_t ns)
{
    bool was_warm = t->is_warm;

    t->is_warm = true;
    return was_warm || ns >= LONG_NS;
}

void ch__turns_note(ch_turns *t, int64_t ns)
{
    ch_turns_mode *w = &t->mode[ch__turns_next(t)];

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
