/* strategy/default.c -- Default, the strategy outside all scopes.
 *
 * It has one replica, on the current device of the thread.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "strategy/strategy.h"

/* Returns the current device of this thread. The array is thread-local, because threads may
 * have different current devices. */
static ch_device *const *devices(void *self)
{
    static _Thread_local ch_device *current;

    (void)self;
    current = ch_device_current();
    return &current;
}

static ch_status place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    (void)spec;
    out->device[0] = *devices(self);
    return CH_OK;
}

/* Never called: the static strategy always has a reference. */
static void close(void *self)
{
    (void)self;
}

static const ch_strategy_ops default_ops = {"Default", devices, place, close};

static ch_strategy    the_default;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_default(void)
{
    (void)ch__strategy_init(&the_default, &default_ops, NULL,
                            &(ch_strategy_parts){.n_replicas = 1, .is_bare = true});
    the_default.uses_current_device = true;
    snprintf(the_default.label, sizeof(the_default.label), "%s", default_ops.name);
}

/* All users in a process share Default, because its only state is the table of its
 * variables. */
ch_strategy *ch__strategy_default(void)
{
    pthread_once(&once, make_default);
    return &the_default;
}
