/* data/turns.c -- the stage in_turn: an element of each input in turn, in rounds.
 *
 * It is used if every replica has a pipeline of its own. Element k of a round always comes from
 * input k. An input that has ended is replaced by elements without rows while another input has
 * data. If an error interrupts a round, the elements read so far are kept, and the next call
 * continues the round. A failed element is replaced by an element without rows, so that other
 * inputs keep their places. A round in which all elements failed is left out.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/stages.h"

typedef struct turning {
    ch_cursor    base;
    ch_element **round;     /* the elements of this round; owned. NULL: it failed, or the end */
    bool        *has_ended; /* for each input: it has ended */
    int          n_filled, at; /* entries of `round` that were read, and that were returned */
} turning;

/* ---- specs and cardinality ---- */

/* Returns the larger of two cardinalities. */
static int64_t rounds_of(int64_t a, int64_t b)
{
    if (a == CH_INFINITE || b == CH_INFINITE)
        return CH_INFINITE;
    if (a == CH_UNKNOWN || b == CH_UNKNOWN)
        return CH_UNKNOWN;
    return a > b ? a : b;
}

static ch_status turns_infer(ch_dataset *d)
{
    ch_status rc = ch__dataset_like(d, d->in[0]);
    int64_t   rounds = d->in[0]->cardinality;

    for (int i = 1; i < d->n_in && rc == CH_OK; i++) {
        rc = ch__dataset_widen(d, d->in[i]);
        rounds = rounds_of(rounds, d->in[i]->cardinality);
    }
    d->cardinality = rounds;
    if (rounds > 0 && !ch__mul_size(rounds, d->n_in, &d->cardinality))
        d->cardinality = CH_UNKNOWN;
    return rc;
}

/* ---- running ---- */

static void drop_round(turning *x)
{
    for (int i = x->at; x->round != NULL && i < x->n_filled; i++)
        ch__element_free(x->round[i]);
    x->n_filled = 0;
    x->at = x->base.n_in;
}

static ch_status turns_open(ch_cursor *c)
{
    turning *x = (turning *)c;

    x->round = ch__calloc((size_t)c->n_in, sizeof(ch_element *));
    x->has_ended = ch__calloc((size_t)c->n_in, sizeof(bool));
    x->at = c->n_in;
    return x->round == NULL || x->has_ended == NULL ? ch__fail_memory("in_turn") : CH_OK;
}

/* Starts a round if the last is complete, and reads an element of each input that is missing.
 * The error of an element is marked with ch__error_between, because the element's place in the
 * round is returned later, without rows. */
static ch_status fill_round(turning *x)
{
    const ch_cursor *c = &x->base;

    if (x->at == c->n_in)
        x->at = x->n_filled = 0;
    while (x->n_filled < c->n_in) {
        ch_element *e = NULL;
        int         i = x->n_filled;
        ch_status   rc = x->has_ended[i] ? CH_OK : ch__cursor_next(c->in[i], &e);

        if (rc != CH_OK && (ch__error_is_between() || atomic_load(&c->it->stops)))
            return rc;
        x->has_ended[i] = rc == CH_OK && e == NULL;
        x->round[i] = e;
        x->n_filled++;
        if (rc != CH_OK)
            return ch__error_between(rc);
    }
    return CH_OK;
}

/* Returns true if no entry of the round has an element. */
static bool is_empty(const turning *x)
{
    for (int i = 0; i < x->n_filled; i++)
        if (x->round[i] != NULL)
            return false;
    return true;
}

static bool have_all_ended(const turning *x)
{
    for (int i = 0; i < x->base.n_in; i++)
        if (!x->has_ended[i])
            return false;
    return true;
}

static ch_status turns_next(ch_cursor *c, ch_element **out)
{
    turning  *x = (turning *)c;
    ch_status rc = x->at < x->n_filled && x->n_filled == c->n_in ? CH_OK : fill_round(x);

    while (rc == CH_OK && x->at == 0 && is_empty(x)) {
        drop_round(x);
        if (have_all_ended(x))
            return CH_OK;
        rc = fill_round(x); /* all elements failed */
    }
    if (rc != CH_OK)
        return rc;
    if (x->round[x->at] == NULL)
        rc = ch__element_of_no_rows(c->dataset, &x->round[x->at]);
    if (rc == CH_OK)
        *out = x->round[x->at++];
    return rc;
}

static ch_status turns_rewind(ch_cursor *c)
{
    turning *x = (turning *)c;

    drop_round(x);
    for (int i = 0; i < c->n_in; i++)
        x->has_ended[i] = false;
    return ch__rewind_inputs(c);
}

/* ---- positions ---- */

static void turns_save(ch_cursor *c, ch_saver *s)
{
    const turning *x = (const turning *)c;

    ch__save_int(s, x->at);
    ch__save_int(s, x->n_filled);
    for (int i = 0; i < c->n_in; i++)
        ch__save_int(s, x->has_ended[i]);
    for (int i = x->at; i < x->n_filled; i++) {
        ch__save_int(s, x->round[i] != NULL);
        if (x->round[i] != NULL)
            ch__save_element(s, x->round[i]);
    }
    ch__save_inputs(c, s);
}

static ch_status turns_load(ch_cursor *c, ch_loader *l)
{
    turning *x = (turning *)c;
    int      at = (int)ch__load_int(l, 0, c->n_in), n = (int)ch__load_int(l, 0, c->n_in);

    for (int i = 0; i < c->n_in; i++)
        x->has_ended[i] = ch__load_int(l, 0, 1) != 0;
    drop_round(x);
    x->at = x->n_filled = at;
    for (; x->n_filled < n && !ch__load_fails(l); x->n_filled++)
        x->round[x->n_filled] =
            ch__load_int(l, 0, 1) != 0 ? ch__load_element(l, c->dataset) : NULL;
    if (n < at) /* no valid position has this; begin a new round */
        x->at = c->n_in;
    if (ch__load_fails(l))
        return ch__load_status(l);
    return ch__load_inputs(c, l);
}

static void turns_close(ch_cursor *c)
{
    turning *x = (turning *)c;

    drop_round(x);
    ch__free(x->round);
    ch__free(x->has_ended);
}

const ch_stage ch__stage_in_turn = {
    .name = "in_turn",
    .version = 1,
    .n_in = -1,
    .cursor_bytes = sizeof(turning),
    .infer = turns_infer,
    .open = turns_open,
    .next = turns_next,
    .rewind = turns_rewind,
    .save = turns_save,
    .load = turns_load,
    .close = turns_close,
};

ch_dataset *ch__dataset_in_turn(int n, ch_dataset *const *d)
{
    return ch__dataset_new(&ch__stage_in_turn, &(ch_dataset_make){.n_in = n, .in = d});
}
