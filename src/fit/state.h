/* fit/state.h -- writes and reads the state of callbacks and trainings: tuples of named
 * tensors.
 *
 *     ch_state s = {0};
 *     ch__state_put_int(&s, "wait", e->wait);
 *     ch__state_put_number(&s, "best", e->best);
 *     return ch__state_end(&s, out);
 *
 *     rc = ch__state_get_int(state, "wait", &wait);
 *
 * The first error of a put is kept. Later puts then do nothing, and ch__state_end returns the
 * error. States are read from checkpoints, so every get checks the dtype and the shape.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_STATE_H
#define FIT_STATE_H

#include "cohort/value.h"
#include "fit/training.h"

/* A state that is being written. All zeros is an empty state. */
typedef struct ch_state {
    int n, capacity;
    struct ch_state_leaf {
        char     *name; /* owned; NULL: no name */
        ch_value *value;
    } * at;
    ch_status rc; /* the first error */
} ch_state;

/* Add a leaf: a tensor, which is referenced and not copied; an i64 or f64 scalar; a text; n
 * numbers. `name` is copied. */
void ch__state_put(ch_state *s, const char *name, ch_tensor *t);
void ch__state_put_int(ch_state *s, const char *name, int64_t x);
void ch__state_put_number(ch_state *s, const char *name, double x);
void ch__state_put_text(ch_state *s, const char *name, const char *text);
void ch__state_put_numbers(ch_state *s, const char *name, int n, const double *x);
/* Adds two leaves: "<name>/names" and "<name>/values". */
void ch__state_put_logs(ch_state *s, const char *name, const ch_logs *logs);
/* Adds the leaves of a tuple as "<name>/<leaf>". A leaf without a name becomes "<name>". */
void ch__state_put_tuple(ch_state *s, const char *name, const ch_tuple *t);
/* Creates the tuple, and frees the leaves of `s` also on an error. The caller unrefs the
 * tuple. */
ch_status ch__state_end(ch_state *s, ch_tuple **out);

/* Read a leaf. INVALID_ARGUMENT: there is no such leaf, or it has another dtype or shape.
 * ch__state_get_str and ch__state_get_numbers return data of the tuple; borrowed.
 * ch__state_get_text copies at most size - 1 bytes of a text. ch__state_get_logs replaces the
 * logs. */
ch_status ch__state_get_int(const ch_tuple *t, const char *name, int64_t *out);
ch_status ch__state_get_number(const ch_tuple *t, const char *name, double *out);
ch_status ch__state_get_str(const ch_tuple *t, const char *name, ch_str *out);
ch_status ch__state_get_text(const ch_tuple *t, const char *name, char *text, size_t size);
ch_status ch__state_get_numbers(const ch_tuple *t, const char *name, int *n,
                                const double **out);
ch_status ch__state_get_logs(const ch_tuple *t, const char *name, ch_logs *out);
/* Reads the logs [from, to) of those that ch__state_put_logs wrote; `to` -1: all others. */
ch_status ch__state_get_logs_in(const ch_tuple *t, const char *name, int from, int to,
                                ch_logs *out);
/* Reads an integer in [least, most] as an int. */
ch_status ch__state_get_int_in(const ch_tuple *t, const char *name, int least, int most,
                               int *out);
/* Returns the tensor of the leaf, borrowed; NULL if there is no such leaf. */
ch_tensor *ch__state_get(const ch_tuple *t, const char *name);
/* Returns the leaves that ch__state_put_tuple added under `name` as a tuple, which the caller
 * unrefs. *out is NULL if there are none. */
ch_status ch__state_get_tuple(const ch_tuple *t, const char *name, ch_tuple **out);

#endif
