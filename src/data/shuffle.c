/* data/shuffle.c -- the stage shuffle: returns elements in random order, drawn from a buffer.
 *
 * A draw depends on the seed, the stream, the epoch (data/random.h) and the number of draws
 * before. So the position is this number and the elements in the buffer, in their order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "data/iterator.h"
#include "data/random.h"

typedef struct shuffling {
    ch_cursor   base;
    int64_t     n_drawn;   /* draws in this epoch: the index of the next random number */
    bool        has_ended; /* the input has ended */
    ch_elements buffer;    /* elements to draw from */
} shuffling;

static ch_status shuffle_infer(ch_dataset *d)
{
    const Cohort__Shuffle *a = CH_ATTRS_OF(d, Cohort__Shuffle);

    if (a->buffer < 1 || a->buffer > INT32_MAX)
        return ch__dataset_fail(d, "buffer is %lld elements, want 1 to %d",
                                (long long)a->buffer, INT32_MAX);
    return ch__dataset_like(d, d->in[0]);
}

/* Reads input elements until the buffer has `size` elements or the input has ended. */
static ch_status fill(shuffling *x, int64_t size)
{
    ch_status rc = CH_OK;

    while (rc == CH_OK && x->buffer.n < size && !x->has_ended) {
        ch_element *e = NULL;

        rc = ch__cursor_next(x->base.in[0], &e);
        x->has_ended = rc == CH_OK && e == NULL;
        if (e != NULL)
            rc = ch__elements_add(&x->buffer, e, "buffer of shuffle");
    }
    return rc;
}

static ch_status shuffle_next(ch_cursor *c, ch_element **out)
{
    const Cohort__Shuffle *a = CH_ATTRS(c, Cohort__Shuffle);
    shuffling             *x = (shuffling *)c;
    ch_elements           *b = &x->buffer;
    ch_status              rc = fill(x, a->buffer);

    if (rc != CH_OK || b->n == 0)
        return rc;
    int at = (int)ch__draw_below(ch__draws(c, a->seed, a->same_each_time), x->n_drawn++, b->n);
    *out = b->at[at];
    b->at[at] = b->at[--b->n];
    return CH_OK;
}

static ch_status shuffle_rewind(ch_cursor *c)
{
    shuffling *x = (shuffling *)c;

    ch__elements_empty(&x->buffer);
    x->n_drawn = 0;
    x->has_ended = false;
    return ch__rewind_inputs(c);
}

static void shuffle_save(ch_cursor *c, ch_saver *s)
{
    shuffling *x = (shuffling *)c;

    ch__save_int(s, x->n_drawn);
    ch__save_int(s, x->has_ended);
    ch__save_elements(s, &x->buffer);
    ch__save_inputs(c, s);
}

static ch_status shuffle_load(ch_cursor *c, ch_loader *l)
{
    shuffling *x = (shuffling *)c;
    ch_status  rc;

    x->n_drawn = ch__load_count(l);
    x->has_ended = ch__load_int(l, 0, 1) != 0;
    rc = ch__load_elements(l, CH_ATTRS(c, Cohort__Shuffle)->buffer, c->dataset, &x->buffer);
    return rc == CH_OK ? ch__load_inputs(c, l) : rc;
}

static void shuffle_close(ch_cursor *c)
{
    ch__elements_drop(&((shuffling *)c)->buffer);
}

const ch_stage ch__stage_shuffle = {
    .name = "shuffle",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_KEEPS_NAMES | CH_DIVIDES | CH_HOLDS_ELEMENTS |
              CH_GIVES_UP_ELEMENTS,
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
