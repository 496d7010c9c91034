/* strategy/default.c -- no strategy: everything on the current device.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/strategy.h"

static ch_device *const *default_devices(ch_strategy *st)
{
    static _Thread_local ch_device *current;

    (void)st;
    current = ch_device_current();
    return &current;
}

/* It is never let go of for the last time. */
static void default_close(ch_strategy *st)
{
    (void)st;
}

static const ch_strategy_ops default_ops = {"Default", default_devices, default_close};

static ch_strategy    the_default;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_default(void)
{
    ch__strategy_init(&the_default, &default_ops, 1);
}

/* It has no state but its variables' names: any program may share it with any other. */
ch_strategy *ch__strategy_default(void)
{
    pthread_once(&once, make_default);
    return &the_default;
}
