/* data/sample.c -- the stage sample: each element comes from an input that is drawn by weight.
 *
 * The cursor `sampling` draws an input for each element and returns the input's next element.
 * If the input has ended, it draws again among the others; with stop_on_empty the stage ends
 * instead. Draw k is number k of the random sequence (data/random.h), so the position is the
 * number of draws and the set of inputs that have ended.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/random.h"

typedef struct sampling {
    ch_cursor      base;
    int64_t        n_drawn;   /* draws in this epoch: the index of the next random number */
    int            n_ended;   /* inputs that have ended */
    unsigned char *has_ended; /* for each input: 1 if it has ended */
} sampling;

/* Returns the cardinality. Without stop_on_empty it is the sum over the inputs with a weight
 * above 0; with it, the end depends on the draws. */
static int64_t sample_count(const ch_dataset *d, const Cohort__Sample *a)
{
    bool    all_endless = true, any_endless = false, all_known = true;
    int64_t sum = 0;

    for (int i = 0; i < d->n_in; i++) {
        int64_t n = d->in[i]->cardinality;

        if (a->n_weights > 0 && !(a->weights[i] > 0))
            continue;
        all_endless &= n == CH_INFINITE;
        any_endless |= n == CH_INFINITE;
        all_known = all_known && n >= 0 && n <= INT64_MAX - sum;
        sum += all_known ? n : 0;
    }
    if (all_endless || (any_endless && !a->stop_on_empty))
        return CH_INFINITE;
    return all_known && !a->stop_on_empty ? sum : CH_UNKNOWN;
}

static ch_status sample_infer(ch_dataset *d)
{
    const Cohort__Sample *a = CH_ATTRS_OF(d, Cohort__Sample);
    ch_status             rc = ch__dataset_like(d, d->in[0]);
    double                sum = 0;

    if (a->n_weights > 0 && a->n_weights != (size_t)d->n_in)
        return ch__dataset_fail(
            d, "weights: wrong number (got %zu, want %d, one for each dataset)", a->n_weights,
            d->n_in);
    for (size_t i = 0; i < a->n_weights; i++) {
        if (!(a->weights[i] >= 0) || isinf(a->weights[i]))
            return ch__dataset_fail(d, "weight %zu is %g, want a finite number of 0 or more", i,
                                    a->weights[i]);
        sum += a->weights[i];
    }
    if (a->n_weights > 0 && !(sum > 0))
        return ch__dataset_fail(d, "all weights are 0");
    for (int i = 1; i < d->n_in && rc == CH_OK; i++)
        rc = ch__dataset_widen(d, d->in[i]);
    d->cardinality = sample_count(d, a);
    return rc;
}

static ch_status sample_open(ch_cursor *c)
{
    sampling *x = (sampling *)c;

    x->has_ended = ch__calloc((size_t)c->n_in, 1);
    return x->has_ended == NULL ? ch__fail_memory("sample") : CH_OK;
}

/* Returns the weight of input i; 0 if it has ended. */
static double weight_of(const sampling *x, int i)
{
    const Cohort__Sample *a = CH_ATTRS(&x->base, Cohort__Sample);

    if (x->has_ended[i])
        return 0;
    return a->n_weights > 0 ? a->weights[i] : 1;
}

/* Draws an input. Returns -1 if no input with a weight above 0 is left. */
static int draw(sampling *x)
{
    const Cohort__Sample *a = CH_ATTRS(&x->base, Cohort__Sample);
    ch_draws              draws = ch__draws(&x->base, a->seed, a->same_each_time);
    double                sum = 0, at;
    int                   last = -1;

    for (int i = 0; i < x->base.n_in; i++)
        sum += weight_of(x, i);
    at = sum * ch__draw_unit(draws, x->n_drawn++);
    for (int i = 0; i < x->base.n_in; i++) {
        double w = weight_of(x, i);

        if (w <= 0)
            continue;
        last = i;
        if (at < w)
            return i;
        at -= w;
    }
    return last;
}

static ch_status sample_next(ch_cursor *c, ch_element **out)
{
    sampling *x = (sampling *)c;
    bool      stop = CH_ATTRS(c, Cohort__Sample)->stop_on_empty;

    while (x->n_ended == 0 || !stop) {
        int       i = draw(x);
        ch_status rc;

        if (i < 0)
            return CH_OK;
        rc = ch__cursor_next(c->in[i], out);
        if (rc != CH_OK || *out != NULL)
            return rc;
        x->has_ended[i] = 1;
        x->n_ended++;
    }
    return CH_OK;
}

static ch_status sample_rewind(ch_cursor *c)
{
    sampling *x = (sampling *)c;

    memset(x->has_ended, 0, (size_t)c->n_in);
    x->n_ended = 0;
    x->n_drawn = 0;
    return ch__rewind_inputs(c);
}

static void sample_save(ch_cursor *c, ch_saver *s)
{
    sampling *x = (sampling *)c;

    ch__save_int(s, x->n_drawn);
    for (int i = 0; i < c->n_in; i++)
        ch__save_int(s, x->has_ended[i]);
    ch__save_inputs(c, s);
}

static ch_status sample_load(ch_cursor *c, ch_loader *l)
{
    sampling *x = (sampling *)c;

    x->n_drawn = ch__load_count(l);
    x->n_ended = 0;
    for (int i = 0; i < c->n_in; i++) {
        x->has_ended[i] = (unsigned char)ch__load_int(l, 0, 1);
        x->n_ended += x->has_ended[i];
    }
    return ch__load_fails(l) ? ch__load_status(l) : ch__load_inputs(c, l);
}

static void sample_close(ch_cursor *c)
{
    ch__free(((sampling *)c)->has_ended);
}

const ch_stage ch__stage_sample = {
    .name = "sample",
    .version = 1,
    .traits = CH_DIVIDES_IF_ASKED,
    .n_in = -1,
    .attrs = &cohort__sample__descriptor,
    .cursor_bytes = sizeof(sampling),
    .infer = sample_infer,
    .open = sample_open,
    .next = sample_next,
    .rewind = sample_rewind,
    .save = sample_save,
    .load = sample_load,
    .close = sample_close,
};

ch_dataset *ch_dataset_sample_from(int n, ch_dataset *const *d, const double *weight,
                                   const ch_sample_options *opt)
{
    Cohort__Sample a = COHORT__SAMPLE__INIT;
    ch_arena       arena = {0};
    ch_dataset    *out;
    ch_status      rc = CH_OK;

    if (n < 1 || d == NULL) {
        (void)ch__fail(CH_INVALID_ARGUMENT,
                       "sample: datasets: wrong number (got %d%s, want at least 1)", n,
                       d == NULL ? " at NULL" : "");
        return NULL;
    }
    if (weight != NULL) {
        a.weights = ch__arena_copy(&arena, weight, (size_t)n * sizeof(*weight));
        a.n_weights = a.weights != NULL ? (size_t)n : 0;
    }
    if (opt != NULL) {
        a.seed = opt->seed;
        a.stop_on_empty = opt->stop_on_empty;
        a.same_each_time = opt->same_each_time;
    }
    if (weight != NULL && a.weights == NULL)
        rc = ch__fail_memory("sample");
    out = ch__dataset_new(&ch__stage_sample,
                          &(ch_dataset_make){.rc = rc, .attrs = &a.base, .n_in = n, .in = d});
    ch__arena_drop(&arena);
    return out;
}
