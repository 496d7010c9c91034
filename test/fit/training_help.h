/* test/fit/training_help.h -- a simulated training, for tests of callbacks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_FIT_TRAINING_HELP_H
#define TEST_FIT_TRAINING_HELP_H

#include "../strategy/help.h"

#include <math.h>

#include "base/mem.h"
#include "base/thread.h"
#include "fit/training.h"

static inline ch_status t_tell(ch_callback *c, ch_training *t, ch_event event)
{
    return ch__callbacks_notify(1, &c, t, event);
}

static inline void t_log(ch_training *t, const char *name, double value)
{
    t_ok(ch__logs_set(&t->logs, name, value));
}

static inline void t_begin(ch_callback *c, ch_training *t)
{
    t->began_ns = ch__now_ns();
    t->epoch = 0;
    t->step = 0;
    t->stops = false;
    t_ok(t_tell(c, t, CH_ON_BEGIN));
}

/* Ends an epoch with a single number. Returns whether the callback requests a stop. */
static inline bool t_epoch(ch_callback *c, ch_training *t, int epoch, const char *name,
                           double value)
{
    t->epoch = epoch;
    ch__logs_drop(&t->logs);
    t_log(t, name, value);
    t_ok(t_tell(c, t, CH_ON_EPOCH_BEGIN));
    t_ok(t_tell(c, t, CH_ON_EPOCH_END));
    return t->stops;
}

static inline void t_end(ch_callback *c, ch_training *t)
{
    t_ok(t_tell(c, t, CH_ON_END));
    ch__logs_drop(&t->logs);
}

/* Returns a number that depends only on the seed. */
static inline unsigned t_random(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

/* A sink of the log: the number of records, and the last record. */
typedef struct t_logged {
    int  n;
    char text[512];
} t_logged;

static inline void t_sink(const ch_log_record *r, void *arg)
{
    t_logged *l = arg;

    l->n++;
    snprintf(l->text, sizeof(l->text), "%s", r->text);
}

#endif
