/* fit/callback.h -- helpers for the callbacks of the library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_CALLBACK_H
#define FIT_CALLBACK_H

#include "fit/state.h"
#include "fit/training.h"

/* Creates a callback as ch_callback_new does, but its events may contain save points, and the
 * callback always takes ownership of `self`: on an error calls ops->drop. If `self` is NULL,
 * returns RESOURCE_EXHAUSTED, so that the caller need not check its own allocation. */
ch_status ch__callback_make(const ch_callback_ops *ops, void *self, ch_callback **out);
/* Returns the state of the callback if its event function is `on`, that is, if the callback is
 * of the expected kind. Returns NULL otherwise, or if `c` is NULL. The state is borrowed. */
void *ch__callback_self(const ch_callback *c,
                        ch_status (*on)(void *self, ch_training *t, ch_event event));

const char *ch__callback_name(const ch_callback *c);
unsigned    ch__callback_events(const ch_callback *c);
/* Saves the state of the callback. *out is NULL if it has none; the caller unrefs it. */
ch_status ch__callback_save(const ch_callback *c, ch_tuple **out);
/* Loads a saved state. Does nothing if the callback has no `load`. */
ch_status ch__callback_load(const ch_callback *c, ch_tuple *state);

/* A log that a callback follows, and its best value so far. */
typedef struct ch_monitor {
    const char *callback; /* name of the callback, for messages; borrowed */
    char       *name;     /* of the log; owned */
    ch_goal     goal;
    double      delta; /* least improvement that counts */
    double      best;  /* the callback updates it; the worst possible value after a reset */
    bool        has_warned;
} ch_monitor;

/* Initialises a monitor. `name` is copied. INVALID_ARGUMENT: `delta` is negative or not finite,
 * `goal` is not in the enum, or `name` is "". ch__monitor_drop is allowed after an error. */
ch_status ch__monitor_init(ch_monitor *m, const char *callback, const char *name, ch_goal goal,
                           double delta);
void      ch__monitor_drop(ch_monitor *m);
/* Forgets the best value and the warning: for a new training. */
void ch__monitor_reset(ch_monitor *m);
/* Reads the value of the log. Returns false if the training has no log of that name. Then
 * ch__monitor_read logs a warning, once until the next reset; ch__monitor_find does not. */
bool ch__monitor_read(ch_monitor *m, ch_training *t, double *out);
bool ch__monitor_find(const ch_monitor *m, ch_training *t, double *out);
/* Writes the names of all logs to `text`: "loss, val_loss". Writes "none" if there are none. */
void ch__training_names(ch_training *t, char *text, size_t size);
bool ch__monitor_is_better(const ch_monitor *m, double value, double than);
/* Add the name of the log and the best value to a state, and read them. INVALID_ARGUMENT: the
 * saved state is of another log. */
void      ch__monitor_save(const ch_monitor *m, ch_state *s);
ch_status ch__monitor_load(ch_monitor *m, const ch_tuple *state);

#endif
