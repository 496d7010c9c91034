/* data/shuffle.c -- elements in random order, out of a buffer.
 *
 * Which element is drawn depends on the seed, the pass and how many were drawn before, so a place is
 * a number and the elements in the buffer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/random.h"

typedef struct shuffling {
    ch_cursor    base;
    int64_t      n_drawn;
    bool         has_ended; /* the input */
    int          n, cap;
    ch_element **buffer;
} shuffling;

static ch_status shuffle_infer(ch_dataset *d)
{
    const Cohort__Shuffle *a = CH_ATTRS_OF(d, Cohort__Shuffle);

    if (a->buffer < 1 || a->buffer > INT32_MAX)
        return ch__dataset_fail(d, "a buffer of %lld elements, want 1 to %d",
                                (long long)a->buffer, INT32_MAX);
    return ch__dataset_like(d, d->in[0]);
}

static ch_status fill(shuffling *x, int64_t size)
{
    while (x->n < size && !x->has_ended) {
        ch_element *e = NULL;
        ch_status   rc = ch__cursor_next(x->base.in[0], &e);

        if (rc != CH_OK)
            return rc;
        if (e == NULL) {
            x->has_ended = true;
        } else if (ch__grow((void **)&x->buffer, &x->cap, x->n + 1, sizeof(e))) {
            x->buffer[x->n++] = e;
        } else {
            ch__element_free(e);
            return ch__fail_memory("buffer of shuffle");
        }
    }
    return CH_OK;
}

static ch_status shuffle_next(ch_cursor *c, ch_element **out)
{
    const Cohort__Shuffle *a = CH_ATTRS(c, Cohort__Shuffle);
    shuffling             *x = (shuffling *)c;
    ch_status              rc = fill(x, a->buffer);

    if (rc != CH_OK || x->n == 0)
        return rc;
    int64_t pass = a->same_each_time ? 0 : c->pass;
    int     at = (int)ch__draw_below(a->seed, pass, x->n_drawn++, x->n);
    *out = x->buffer[at];
    x->buffer[at] = x->buffer[--x->n];
    return CH_OK;
}

static void empty(shuffling *x)
{
    for (int i = 0; i < x->n; i++)
        ch__element_free(x->buffer[i]);
    x->n = 0;
    x->n_drawn = 0;
    x->has_ended = false;
}

static ch_status shuffle_rewind(ch_cursor *c)
{
    empty((shuffling *)c);
    return ch__rewind_inputs(c);
}

static void shuffle_save(ch_cursor *c, ch_saver *s)
{
    shuffling *x = (shuffling *)c;

    ch__save_int(s, x->n_drawn);
    ch__save_int(s, x->has_ended);
    ch__save_int(s, x->n);
    for (int i = 0; i < x->n; i++)
        ch__save_element(s, x->buffer[i]);
    ch__save_inputs(c, s);
}

static ch_status shuffle_load(ch_cursor *c, ch_loader *l)
{
    shuffling *x = (shuffling *)c;
    int64_t    n;

    x->n_drawn = ch__load_int(l, 0, INT64_MAX);
    x->has_ended = ch__load_int(l, 0, 1) != 0;
    n = ch__load_int(l, 0, CH_ATTRS(c, Cohort__Shuffle)->buffer);
    for (int64_t i = 0; i < n && !ch__load_fails(l); i++) {
        ch_element *e = ch__load_element(l, c->dataset);

        if (e == NULL)
            break;
        if (!ch__grow((void **)&x->buffer, &x->cap, x->n + 1, sizeof(e))) {
            ch__element_free(e);
            return ch__fail_memory("buffer of shuffle");
        }
        x->buffer[x->n++] = e;
    }
    return ch__load_fails(l) ? ch__load_status(l) : ch__load_inputs(c, l);
}

static void shuffle_close(ch_cursor *c)
{
    empty((shuffling *)c);
    ch__free(((shuffling *)c)->buffer);
}

const ch_stage ch__stage_shuffle = {
    .name = "shuffle",
    .version = 1,
    .n_in = 1,
    .attrs = &cohort__shuffle__descriptor,
    .cursor_bytes = sizeof(shuffling),
    .infer = shuffle_infer,
    .open = ch__open_nothing,
    .next = shuffle_next,
    .rewind = shuffle_rewind,
    .save = shuffle_save,
    .load = shuffle_load,
    .close = shuffle_close,
};

ch_dataset *ch_dataset_shuffle(ch_dataset *d, int64_t buffer, const ch_shuffle_options *opt)
{
    Cohort__Shuffle a = COHORT__SHUFFLE__INIT;

    a.buffer = buffer;
    if (opt != NULL) {
        a.seed = opt->seed;
        a.same_each_time = opt->same_each_time;
    }
    return ch__dataset_new(&ch__stage_shuffle,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &d});
}
