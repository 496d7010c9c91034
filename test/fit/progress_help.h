/* test/fit/progress_help.h -- a simulated training with its own clock, for tests of the
 * progress callback.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_FIT_PROGRESS_HELP_H
#define TEST_FIT_PROGRESS_HELP_H

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../strategy/help.h"
#include "base/mem.h"
#include "fit/report/progress.h"
#include "fit/training.h"

static int64_t t_now; /* ns */

static inline int64_t t_clock(void)
{
    return t_now;
}

static inline void t_pass(double ms)
{
    t_now += (int64_t)(ms * 1e6);
}

/* Sets the environment of a user with a modern terminal. */
static inline void t_environment(void)
{
    setenv("TERM", "xterm-256color", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    unsetenv("NO_COLOR");
    unsetenv("COLUMNS");
}

static inline void t_tell(ch_callback *c, ch_training *t, ch_event event)
{
    t_ok(ch__callbacks_notify(1, &c, t, event));
}

static inline void t_log(ch_training *t, const char *name, double value)
{
    t_ok(ch__logs_set(&t->logs, name, value));
}

static inline void t_begin_epoch(ch_callback *c, ch_training *t)
{
    t->epoch_step = t->epoch_examples = t->validation_step = 0;
    ch__logs_drop(&t->logs);
    t_tell(c, t, CH_ON_EPOCH_BEGIN);
}

/* Runs n steps of 32 rows that take `ms` milliseconds each. */
static inline void t_steps(ch_callback *c, ch_training *t, int n, double ms)
{
    for (int i = 0; i < n; i++) {
        t_pass(ms);
        t->step++;
        t->epoch_step++;
        t->epoch_examples += 32;
        t->is_stale = true;
        t_log(t, "loss", 1.0 / (double)t->step);
        t_log(t, "accuracy", 0.5);
        t_tell(c, t, CH_ON_STEP);
    }
}

static inline ch_callback *t_progress(ch_progress how, int fd)
{
    ch_callback *c = NULL;

    ch__progress_clock(t_clock);
    t_ok(ch__progress_new(how, fd, &c));
    return c;
}

static inline void t_drop(ch_callback *c, ch_training *t)
{
    ch_callback_unref(c);
    ch__logs_drop(&t->logs);
    ch__progress_clock(NULL);
}

#endif
