/* fit/callback.h -- what the library's own callbacks share.   SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_CALLBACK_H
#define FIT_CALLBACK_H

#include "fit/training.h"

/* As ch_callback_new, but takes `self` over, on an error too. NULL: there was no memory for it. */
ch_status ch__callback_make(const ch_callback_ops *ops, void *self, ch_callback **out);
/* The state of a callback that has this function; NULL: it is another's. */
void *ch__callback_self(const ch_callback *c,
                        ch_status (*on)(void *self, ch_training *t, ch_event event));

/* A number by its name that a callback follows. */
typedef struct ch_monitor {
    const char *who; /* the callback's name, for messages; borrowed */
    char       *name;
    ch_goal     goal;
    double      delta;
    double      best;
    bool        has_warned;
} ch_monitor;

/* `name` is copied; `delta` is finite, and not negative. */
ch_status ch__monitor_init(ch_monitor *m, const char *who, const char *name, ch_goal goal,
                           double delta);
void      ch__monitor_drop(ch_monitor *m);
void      ch__monitor_reset(ch_monitor *m); /* nothing was seen yet */
/* The number as it is now. False: the training has none of that name, of which the log warns
 * once. */
bool ch__monitor_read(ch_monitor *m, ch_training *t, double *out);
bool ch__monitor_find(const ch_monitor *m, ch_training *t,
                      double *out); /* without the warning */
/* "loss, val_loss"; "none". */
void ch__training_names(ch_training *t, char *text, size_t size);
bool ch__monitor_is_better(const ch_monitor *m, double value, double than);

#endif
