/* data/flow.c -- stages that select, repeat or join elements without computing.
 *
 * The stages are take, skip, repeat, concatenate, zip, enumerate and options. Each section has
 * the cursor, the operations and the public function of a stage. Most cursors are a `counting`,
 * which has a single number as its state. The stages work in the thread of their consumer and
 * have no workqueue, so they are simple examples of stages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"

/* A cursor with a single number as its state. */
typedef struct counting {
    ch_cursor base;
    /* take, enumerate: elements read; skip: elements skipped; concatenate: index of the
     * present input. */
    int64_t n;
} counting;

static ch_status counting_rewind(ch_cursor *c)
{
    ((counting *)c)->n = 0;
    return ch__rewind_inputs(c);
}

/* For take and enumerate, whose number counts elements of the input. */
static bool counting_can_step_back(ch_cursor *c, ch_back to)
{
    return (to.passes > 0 || to.n <= ((counting *)c)->n) && ch__input_can_step_back(c, to);
}

static void counting_save(ch_cursor *c, ch_saver *s)
{
    ch_back to = ch__save_place(s);

    ch__save_int(s, to.passes > 0 ? to.n : ((counting *)c)->n - to.n);
    ch__save_input_back(c, s, to);
}

static ch_status counting_load(ch_cursor *c, ch_loader *l)
{
    ((counting *)c)->n = ch__load_count(l);
    return ch__load_inputs(c, l);
}

static ch_dataset *count_dataset(const ch_stage *stage, ch_dataset *d, int64_t count)
{
    Cohort__Count a = COHORT__COUNT__INIT;

    a.count = count;
    return ch__dataset_new(stage, &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &d});
}

static int64_t count_of(const ch_dataset *d)
{
    return CH_ATTRS_OF(d, Cohort__Count)->count;
}

/* Checks the count, which is 0 or more, or CH_INFINITE. Copies the spec of the input. */
static ch_status infer_counted(ch_dataset *d)
{
    if (count_of(d) < CH_INFINITE)
        return ch__dataset_fail(d, "count %lld, want 0 or more, or CH_INFINITE",
                                (long long)count_of(d));
    return ch__dataset_like(d, d->in[0]);
}

/* ---- take ---- */

static ch_status take_infer(ch_dataset *d)
{
    ch_status rc = infer_counted(d);
    int64_t   n = count_of(d);

    if (n != CH_INFINITE && (d->cardinality == CH_INFINITE || d->cardinality > n))
        d->cardinality = n;
    return rc;
}

static ch_status take_next(ch_cursor *c, ch_element **out)
{
    counting *x = (counting *)c;
    int64_t   limit = count_of(c->dataset);
    ch_status rc;

    if (limit != CH_INFINITE && x->n >= limit)
        return CH_OK;
    rc = ch__cursor_next(c->in[0], out);
    x->n += rc == CH_OK && *out != NULL;
    return rc;
}

const ch_stage ch__stage_take = {
    .name = "take",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_DIVIDES_IF_ASKED,
    .n_in = 1,
    .attrs = &cohort__count__descriptor,
    .cursor_bytes = sizeof(counting),
    .infer = take_infer,
    .open = ch__open_nothing,
    .next = take_next,
    .rewind = counting_rewind,
    .can_step_back = counting_can_step_back,
    .save = counting_save,
    .load = counting_load,
    .close = ch__close_nothing,
};

ch_dataset *ch_dataset_take(ch_dataset *d, int64_t count)
{
    return count_dataset(&ch__stage_take, d, count);
}

/* ---- skip ---- */

static ch_status skip_infer(ch_dataset *d)
{
    ch_status rc = infer_counted(d);
    int64_t   n = count_of(d);

    if (n == CH_INFINITE)
        d->cardinality = 0;
    else if (d->cardinality >= 0)
        d->cardinality = d->cardinality > n ? d->cardinality - n : 0;
    return rc;
}

static ch_status skip_next(ch_cursor *c, ch_element **out)
{
    counting *x = (counting *)c;
    int64_t   n = count_of(c->dataset);

    if (n == CH_INFINITE)
        return CH_OK;
    for (;;) {
        ch_status rc = ch__cursor_next(c->in[0], out);

        if (rc != CH_OK || *out == NULL || x->n >= n)
            return rc;
        x->n++;
        ch__element_free(*out);
        *out = NULL;
    }
}

/* Returns the place of the input that belongs to a place of the stage. */
static ch_back skip_place(const ch_cursor *c, ch_back to)
{
    return (ch_back){to.passes, to.passes > 0 ? to.n + count_of(c->dataset) : to.n};
}

static bool skip_can_step_back(ch_cursor *c, ch_back to)
{
    int64_t sum;

    return !__builtin_add_overflow(to.n, count_of(c->dataset), &sum) &&
           ch__input_can_step_back(c, skip_place(c, to));
}

/* In an earlier pass that gave elements, all were skipped that must be. */
static void skip_save(ch_cursor *c, ch_saver *s)
{
    ch_back to = ch__save_place(s);

    ch__save_int(s, to.passes > 0 ? count_of(c->dataset) : ((counting *)c)->n);
    ch__save_input_back(c, s, skip_place(c, to));
}

const ch_stage ch__stage_skip = {
    .name = "skip",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_DIVIDES_IF_ASKED,
    .n_in = 1,
    .attrs = &cohort__count__descriptor,
    .cursor_bytes = sizeof(counting),
    .infer = skip_infer,
    .open = ch__open_nothing,
    .next = skip_next,
    .rewind = counting_rewind,
    .can_step_back = skip_can_step_back,
    .save = skip_save,
    .load = counting_load,
    .close = ch__close_nothing,
};

ch_dataset *ch_dataset_skip(ch_dataset *d, int64_t count)
{
    return count_dataset(&ch__stage_skip, d, count);
}

/* ---- repeat ---- */

/* A pass of the input. It is kept as numbers in a ch_row_refs, PASS_WORDS for each pass. */
typedef struct pass {
    int64_t epoch;    /* of the repeat */
    int64_t begin;    /* elements that the repeat has returned before, in this epoch */
    int64_t number;   /* complete passes before, in this epoch */
    int64_t in_epoch; /* of the input */
} pass;

enum { PASS_WORDS = sizeof(pass) / sizeof(int64_t) };

typedef struct repeating {
    ch_cursor base;
    int64_t   n;        /* complete passes */
    int64_t   n_given;  /* elements returned, in all passes */
    int64_t   n_pass;   /* and in this pass of the input */
    bool      is_whole; /* this pass has had no error */
    /* The passes before this that had elements and no errors, back to the last error. */
    ch_row_refs passes;
} repeating;

static ch_status repeat_infer(ch_dataset *d)
{
    ch_status rc = infer_counted(d);
    int64_t   n = count_of(d);

    if (n == 0 || d->cardinality == 0)
        d->cardinality = 0;
    else if (n == CH_INFINITE)
        d->cardinality = CH_INFINITE;
    else if (d->cardinality > 0 && !ch__mul_size(d->cardinality, n, &d->cardinality))
        d->cardinality = CH_UNKNOWN;
    return rc;
}

static ch_status repeat_open(ch_cursor *c)
{
    ((repeating *)c)->is_whole = true;
    return CH_OK;
}

static void repeat_close(ch_cursor *c)
{
    ch__row_refs_drop(&((repeating *)c)->passes);
}

/* Returns the present pass of the input. Behind the last, it is the last. */
static pass present_pass(const repeating *x)
{
    const ch_cursor *c = &x->base;

    return (pass){c->epoch, x->n_given - x->n_pass, x->n - (x->n == count_of(c->dataset)),
                  c->in[0]->epoch};
}

/* Records a pass that ends, if places in it can be found again, and begins another. Without
 * memory, earlier passes are forgotten: the next position is larger then. */
static void end_pass(repeating *x, pass p)
{
    const ch_cursor *c = &x->base;
    ch_row_refs     *r = &x->passes;

    if (x->n_pass > 0 && x->is_whole) {
        bool grows = ch__row_refs_is_due(r) && ch__workqueue_most_held(c) > r->capacity / 2;
        ch_row_word *word = ch__row_refs_add(r, true, PASS_WORDS, grows);

        if (word != NULL)
            memcpy(word, &p, sizeof(p));
        else
            ch__row_refs_empty(r);
    }
    x->n_pass = 0;
    x->is_whole = true;
}

/* An error may stand for an element, so the elements before and behind it are not counted
 * alike everywhere. */
static ch_status repeat_failed(repeating *x, ch_status rc)
{
    ch__row_refs_empty(&x->passes);
    x->is_whole = false;
    return rc;
}

enum { MANY_PASSES = 1024 };

/* With more than MANY_PASSES passes, an empty pass is the end. Otherwise a repeat of an empty
 * dataset would run for a very long time or forever. */
static ch_status repeat_next(ch_cursor *c, ch_element **out)
{
    repeating *x = (repeating *)c;
    int64_t    limit = count_of(c->dataset);

    while (limit == CH_INFINITE || x->n < limit) {
        ch_status rc = ch__cursor_next(c->in[0], out);
        pass      p;

        if (rc != CH_OK)
            return repeat_failed(x, rc);
        if (*out != NULL) {
            x->n_pass++;
            x->n_given++;
            return CH_OK;
        }
        if (x->n_pass == 0 && (limit == CH_INFINITE || limit > MANY_PASSES))
            return CH_OK;
        p = present_pass(x);
        if (++x->n == limit)
            return CH_OK;
        end_pass(x, p);
        if ((rc = ch__cursor_rewind(c->in[0])) != CH_OK)
            return repeat_failed(x, rc);
    }
    return CH_OK;
}

/* Rewinds the input until its epoch is that behind all passes of this repeat, whatever number
 * of passes was read or prefetched. So the random orders that a pass draws depend only on its
 * number. An infinite repeat, or a repeat of more than MANY_PASSES, rewinds its input only once
 * and continues with the present epoch. */
static ch_status repeat_rewind(ch_cursor *c)
{
    repeating *x = (repeating *)c;
    int64_t    limit = count_of(c->dataset), left = 1;
    pass       p = present_pass(x);
    ch_status  rc = CH_OK;

    if (limit != CH_INFINITE && limit <= MANY_PASSES && limit > x->n)
        left = limit - x->n;
    p.epoch--; /* the caller has incremented it */
    end_pass(x, p);
    for (; left > 0 && rc == CH_OK; left--)
        rc = ch__rewind_inputs(c);
    x->n = x->n_given = 0;
    return rc == CH_OK ? rc : repeat_failed(x, rc);
}

/* Finds the pass with a place before this pass of the input. Returns false if it is not
 * recorded. */
static bool find_pass(repeating *x, int64_t epoch, int64_t at, pass *out)
{
    for (int64_t i = x->passes.n - 1; i >= 0; i--) {
        memcpy(out, ch__row_refs_at(&x->passes, i), sizeof(*out));
        if (out->epoch == epoch && out->begin <= at)
            return true;
    }
    return false;
}

/* Finds the place `to`: its place in the input, the pass, and the elements of the pass before
 * it. */
static bool find_repeated(repeating *x, ch_back to, ch_back *input, pass *p, int64_t *n_pass)
{
    const ch_cursor *c = &x->base;

    if (to.passes == 0 && to.n <= x->n_pass) {
        *p = present_pass(x);
        if (to.n == 0)
            p->number = x->n;
        *n_pass = x->n_pass - to.n;
        *input = to;
        return true;
    }
    to.n = to.passes == 0 ? x->n_given - to.n : to.n;
    if (!find_pass(x, c->epoch - to.passes, to.n, p))
        return false;
    *n_pass = to.n - p->begin;
    *input = (ch_back){c->in[0]->epoch - p->in_epoch, *n_pass};
    return true;
}

static bool repeat_can_step_back(ch_cursor *c, ch_back to)
{
    pass    p;
    int64_t n_pass;

    return find_repeated((repeating *)c, to, &to, &p, &n_pass) &&
           ch__input_can_step_back(c, to);
}

static void repeat_save(ch_cursor *c, ch_saver *s)
{
    repeating *x = (repeating *)c;
    ch_back    input = {0};
    pass       p = {0};
    int64_t    n_pass = 0;

    (void)find_repeated(x, ch__save_place(s), &input, &p, &n_pass);
    ch__save_int(s, p.number);
    ch__save_int(s, n_pass);
    ch__save_int(s, p.begin);
    ch__save_int(s, input.passes > 0 || x->is_whole);
    ch__save_input_back(c, s, input);
}

/* An older position has only the number of passes, and whether this pass is empty. */
static ch_status repeat_load(ch_cursor *c, ch_loader *l)
{
    repeating *x = (repeating *)c;

    x->n = ch__load_count(l);
    if (ch__load_has_passes(l)) {
        x->n_pass = ch__load_int(l, 0, INT64_MAX / 4);
        x->n_given = x->n_pass + ch__load_int(l, 0, INT64_MAX / 4);
        x->is_whole = ch__load_int(l, 0, 1) != 0;
    } else {
        x->is_whole = ch__load_int(l, 0, 1) != 0;
        x->n_given = x->n_pass = x->is_whole ? 0 : 1;
    }
    return ch__load_inputs(c, l);
}

const ch_stage ch__stage_repeat = {
    .name = "repeat",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_KEEPS_NAMES | CH_DIVIDES,
    .n_in = 1,
    .attrs = &cohort__count__descriptor,
    .cursor_bytes = sizeof(repeating),
    .infer = repeat_infer,
    .open = repeat_open,
    .next = repeat_next,
    .rewind = repeat_rewind,
    .can_step_back = repeat_can_step_back,
    .save = repeat_save,
    .load = repeat_load,
    .close = repeat_close,
};

ch_dataset *ch_dataset_repeat(ch_dataset *d, int64_t count)
{
    return count_dataset(&ch__stage_repeat, d, count);
}

/* ---- concatenate ---- */

static int64_t sum_of(int64_t a, int64_t b)
{
    int64_t sum;

    if (a == CH_INFINITE || b == CH_INFINITE)
        return CH_INFINITE;
    return a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum) ? CH_UNKNOWN : sum;
}

static ch_status concatenate_infer(ch_dataset *d)
{
    ch_status rc = ch__dataset_like(d, d->in[0]);

    for (int i = 1; i < d->n_in && rc == CH_OK; i++) {
        rc = ch__dataset_widen(d, d->in[i]);
        d->cardinality = sum_of(d->cardinality, d->in[i]->cardinality);
    }
    return rc;
}

static ch_status concatenate_next(ch_cursor *c, ch_element **out)
{
    counting *x = (counting *)c;

    while (x->n < c->n_in) {
        ch_status rc = ch__cursor_next(c->in[x->n], out);

        if (rc != CH_OK || *out != NULL)
            return rc;
        x->n++;
    }
    return CH_OK;
}

static ch_status concatenate_load(ch_cursor *c, ch_loader *l)
{
    ((counting *)c)->n = ch__load_int(l, 0, c->n_in);
    return ch__load_inputs(c, l);
}

const ch_stage ch__stage_concatenate = {
    .name = "concatenate",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_DIVIDES,
    .n_in = -1,
    .cursor_bytes = sizeof(counting),
    .infer = concatenate_infer,
    .open = ch__open_nothing,
    .next = concatenate_next,
    .rewind = counting_rewind,
    .save = counting_save,
    .load = concatenate_load,
    .close = ch__close_nothing,
};

static ch_dataset *dataset_of_inputs(const ch_stage *stage, int n, ch_dataset *const *d)
{
    if (n < 1 || d == NULL) {
        (void)ch__fail(CH_INVALID_ARGUMENT, "%s: %d datasets%s, want at least one", stage->name,
                       n, d == NULL ? " at NULL" : "");
        return NULL;
    }
    return ch__dataset_new(stage, &(ch_dataset_make){.n_in = n, .in = d});
}

ch_dataset *ch_dataset_concatenate(int n, ch_dataset *const *d)
{
    return dataset_of_inputs(&ch__stage_concatenate, n, d);
}

/* ---- zip ---- */

/* Creates an element with the parts of n elements. Takes ownership of them, even on error. */
static ch_status join(int n, ch_element *const *from, ch_element **out)
{
    int         n_parts = 0, at = 0;
    ch_element *e;
    bool        is_whole = true, is_row = true;

    for (int i = 0; i < n; i++)
        n_parts += from[i]->n;
    e = ch__element_new(n_parts, n, 0);
    for (int i = 0; i < n; i++) {
        if (e == NULL) {
            ch__element_free(from[i]);
            continue;
        }
        memcpy(&e->part[at], from[i]->part, (size_t)from[i]->n * sizeof(ch_part));
        at += from[i]->n;
        is_row &= from[i]->is_row;
        e->owner[i] = ch__element_buffer(from[i]);
        is_whole &= e->owner[i] != NULL;
    }
    if (e == NULL || !is_whole) {
        ch__element_free(e);
        return ch__fail_memory("zip");
    }
    e->is_row = is_row;
    *out = e;
    return CH_OK;
}

typedef struct zipping {
    ch_cursor    base;
    ch_element **element; /* an entry for each input, used only during a call */
} zipping;

static ch_status zip_infer(ch_dataset *d)
{
    int       n = 0, at = 0;
    ch_status rc;

    for (int i = 0; i < d->n_in; i++)
        n += d->in[i]->n_parts;
    rc = ch__dataset_parts(d, n);
    d->cardinality = CH_INFINITE;
    for (int i = 0; i < d->n_in && rc == CH_OK; i++) {
        int64_t have = d->in[i]->cardinality;

        for (int k = 0; k < d->in[i]->n_parts && rc == CH_OK; k++)
            rc = ch__dataset_set_part(d, at++, &d->in[i]->spec[k]);
        if (have == CH_UNKNOWN || d->cardinality == CH_UNKNOWN)
            d->cardinality = CH_UNKNOWN;
        else if (have >= 0 && (d->cardinality == CH_INFINITE || have < d->cardinality))
            d->cardinality = have;
    }
    return rc;
}

static ch_status zip_open(ch_cursor *c)
{
    zipping *z = (zipping *)c;

    z->element = ch__calloc((size_t)c->n_in, sizeof(ch_element *));
    return z->element == NULL ? ch__fail_memory("zip") : CH_OK;
}

/* Skips an element of each input behind `failed`, so that later elements of all inputs still
 * belong together. Returns the error of input `failed`; errors of the other inputs are ignored,
 * because a single error must stand for a single element. */
static ch_status zip_skip(ch_cursor *c, int failed, ch_status rc)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_record(&why, rc, -1, NULL);
    for (int i = failed + 1; i < c->n_in; i++) {
        ch_element *e = NULL;

        if (ch__cursor_next(c->in[i], &e) == CH_OK)
            ch__element_free(e);
    }
    return ch__fault_raise(&why);
}

static ch_status zip_next(ch_cursor *c, ch_element **out)
{
    ch_element **element = ((zipping *)c)->element;
    ch_status    rc = CH_OK;
    int          n = 0;

    while (n < c->n_in && (rc = ch__cursor_next(c->in[n], &element[n])) == CH_OK &&
           element[n] != NULL)
        n++;
    if (n == c->n_in)
        return join(n, element, out);
    if (rc != CH_OK)
        rc = zip_skip(c, n, rc);
    while (n > 0)
        ch__element_free(element[--n]);
    return rc;
}

static void zip_close(ch_cursor *c)
{
    ch__free(((zipping *)c)->element);
}

const ch_stage ch__stage_zip = {
    .name = "zip",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_DIVIDES_IF_ASKED,
    .n_in = -1,
    .cursor_bytes = sizeof(zipping),
    .infer = zip_infer,
    .open = zip_open,
    .next = zip_next,
    .rewind = ch__rewind_inputs,
    .save = ch__save_inputs,
    .load = ch__load_inputs,
    .close = zip_close,
};

ch_dataset *ch_dataset_zip(int n, ch_dataset *const *d)
{
    return dataset_of_inputs(&ch__stage_zip, n, d);
}

/* ---- enumerate ---- */

static ch_status enumerate_infer(ch_dataset *d)
{
    ch_status rc = ch__dataset_parts(d, d->in[0]->n_parts + 1);

    if (rc == CH_OK)
        rc = ch__dataset_set_part(d, 0, &(ch_tensor_spec){.dtype = CH_I64});
    for (int i = 0; i < d->in[0]->n_parts && rc == CH_OK; i++)
        rc = ch__dataset_set_part(d, i + 1, &d->in[0]->spec[i]);
    d->same_rows = d->in[0]->same_rows;
    d->cardinality = d->in[0]->cardinality;
    return rc;
}

static ch_status enumerate_next(ch_cursor *c, ch_element **out)
{
    counting   *x = (counting *)c;
    ch_element *pair[2] = {NULL, NULL};
    int64_t     number;
    ch_status   rc = ch__cursor_next(c->in[0], &pair[1]);

    if (rc != CH_OK || pair[1] == NULL)
        return rc;
    if (__builtin_add_overflow(count_of(c->dataset), x->n, &number))
        rc = ch__fail(CH_OUT_OF_RANGE, "enumerate: the number of element %lld exceeds 63 bits",
                      (long long)x->n);
    else
        rc = ch__element_of_int(number, &pair[0]);
    if (rc != CH_OK) {
        ch__element_free(pair[1]);
        return rc;
    }
    x->n++;
    return join(2, pair, out);
}

const ch_stage ch__stage_enumerate = {
    .name = "enumerate",
    .version = 1,
    .traits = CH_DIVIDES_IF_ASKED,
    .n_in = 1,
    .attrs = &cohort__count__descriptor,
    .cursor_bytes = sizeof(counting),
    .infer = enumerate_infer,
    .open = ch__open_nothing,
    .next = enumerate_next,
    .rewind = counting_rewind,
    .can_step_back = counting_can_step_back,
    .save = counting_save,
    .load = counting_load,
    .close = ch__close_nothing,
};

ch_dataset *ch_dataset_enumerate(ch_dataset *d, int64_t start)
{
    return count_dataset(&ch__stage_enumerate, d, start);
}

/* ---- options ---- */

static ch_status options_next(ch_cursor *c, ch_element **out)
{
    return ch__cursor_next(c->in[0], out);
}

static ch_status options_infer(ch_dataset *d)
{
    const Cohort__Options *a = CH_ATTRS_OF(d, Cohort__Options);

    if (a->shard < CH_SHARD_OFF || a->shard > CH_SHARD_HINT)
        return ch__dataset_fail(d, "shard is %d, want a ch_shard_policy", a->shard);
    if (a->threads < CH_OFF || a->threads > 1024)
        return ch__dataset_fail(d, "threads is %d, want 0 to 1024, or CH_OFF", a->threads);
    if (a->memory_bytes < 0)
        return ch__dataset_fail(d, "memory_bytes is %lld, want 0 or more",
                                (long long)a->memory_bytes);
    return ch__dataset_like(d, d->in[0]);
}

static bool options_is_unordered(const ch_dataset *d)
{
    return CH_ATTRS_OF(d, Cohort__Options)->unordered != 0;
}

const ch_stage ch__stage_options = {
    .name = "options",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_KEEPS_NAMES | CH_DIVIDES | CH_ONE_BY_ONE,
    .n_in = 1,
    .attrs = &cohort__options__descriptor,
    .cursor_bytes = sizeof(ch_cursor),
    .infer = options_infer,
    .is_unordered = options_is_unordered,
    .open = ch__open_nothing,
    .next = options_next,
    .rewind = ch__rewind_inputs,
    .can_step_back = ch__input_can_step_back,
    .save = ch__save_passing,
    .load = ch__load_inputs,
    .close = ch__close_nothing,
};

ch_dataset_options ch__stage_options_of(const ch_dataset *d)
{
    const Cohort__Options *a = CH_ATTRS_OF(d, Cohort__Options);

    if (d->stage != &ch__stage_options)
        return (ch_dataset_options){0};
    return (ch_dataset_options){(ch_shard_policy)a->shard, a->threads, a->unordered != 0,
                                a->memory_bytes};
}

ch_dataset *ch_dataset_with_options(ch_dataset *d, const ch_dataset_options *opt)
{
    Cohort__Options a = COHORT__OPTIONS__INIT;

    if (opt != NULL) {
        a.shard = opt->shard;
        a.threads = opt->threads;
        a.unordered = opt->unordered;
        a.memory_bytes = opt->memory_bytes;
    }
    return ch__dataset_new(&ch__stage_options,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &d});
}
