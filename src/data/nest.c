/* data/nest.c -- the stages that run a dataset for each element: flat_map, interleave, window.
 *
 * The dataset that is run for each element is called the body. It is described once: the
 * program's function is called with a placeholder, a dataset of the stage `element`, and
 * returns the body. At run time the stage opens a cursor of the body for each element or window
 * (ch__body_open). The placeholder then returns that element, or the elements of that window.
 *
 * Cursors: `flattening` has at most one open body, `interleaving` has up to `cycle` of them,
 * and `windowing` has at most one and keeps the elements that later windows share.
 *
 * Invariants:
 *   1. Bodies are numbered in the order in which they are opened in a pass (n_opened). Random
 *      numbers in a body depend on its number, so the numbers are part of the position.
 *   2. A position holds the open bodies with the elements they were opened with.
 *   3. A body must not contain a generator without `make`, because all bodies would share its
 *      state.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/stages.h"

/* ---- describing the body ---- */

/* Creates the placeholder for elements of `d`. `many`: it stands for any number of elements;
 * else for a single element. */
static ch_dataset *placeholder(const ch_dataset *d, bool many)
{
    Cohort__ElementSpec *a = NULL;
    ch_arena             arena = {0};
    ch_dataset          *e = NULL;

    if (ch__spec_encode(&arena, d->n_parts, d->spec, &a) == CH_OK) {
        a->same_rows = d->same_rows;
        a->many = many;
        e = ch__dataset_new(&ch__stage_element, &(ch_dataset_make){.attrs = &a->base});
    }
    ch__arena_drop(&arena);
    return e;
}

/* Creates a stage with one input and the body that `fn` returns. Takes over `d`. `many` as in
 * placeholder. Returns NULL on an error. */
static ch_dataset *with_body(const ch_stage *stage, const ProtobufCMessage *attrs,
                             ch_dataset *d, ch_dataset_fn fn, void *arg, bool many)
{
    ch_dataset_make m = {.attrs = attrs, .n_in = 1, .in = &d};
    uint64_t        mark;

    if (d == NULL || fn == NULL) {
        if (d != NULL)
            (void)ch__fail(CH_INVALID_ARGUMENT, "%s: the function is NULL", stage->name);
        ch_dataset_unref(d);
        return NULL;
    }
    m.element = placeholder(d, many);
    mark = ch__fail_mark();
    if (m.element != NULL)
        m.body = fn(ch_dataset_ref(m.element), arg);
    if (m.body == NULL) {
        if (m.element != NULL && mark == ch__fail_mark())
            (void)ch__fail(CH_INVALID_ARGUMENT,
                           "it returned NULL and set no error; report the error with ch_fail");
        (void)ch__fail_earlier("%s: the function's dataset", stage->name);
        ch_dataset_unref(m.element);
        ch_dataset_unref(d);
        return NULL;
    }
    return ch__dataset_new(stage, &m);
}

/* Checks that the body accepts the elements of the input, and sets the specs of the body. */
static ch_status infer_body(ch_dataset *d)
{
    ch_status rc;

    if (d->body == NULL || d->element == NULL || d->element->stage != &ch__stage_element)
        return ch__dataset_fail(d, "it has no body");
    if (d->body->shares_state)
        return ch__dataset_fail(d,
                                "its body has a generator without `make`, so all bodies would "
                                "share its state; give ch_dataset_generator a function `make`");
    if (d->element->n_parts != d->in[0]->n_parts)
        return ch__dataset_fail(d, "its body takes elements of %d components, the input has %d",
                                d->element->n_parts, d->in[0]->n_parts);
    for (int i = 0; i < d->element->n_parts; i++)
        if (d->element->spec[i].dtype != d->in[0]->spec[i].dtype ||
            !ch_shape_equal(d->element->spec[i].shape, d->in[0]->spec[i].shape))
            return ch__dataset_fail(
                d, "component %d: its dtype or shape is not the one that the body takes", i);
    rc = ch__dataset_like(d, d->body);
    d->cardinality = d->in[0]->cardinality == 0 ? 0 : CH_UNKNOWN;
    return rc;
}

/* ---- flat_map ---- */

typedef struct flattening {
    ch_cursor  base;
    ch_cursor *body;     /* of the current element; owned; NULL: none is open */
    int64_t    n_opened; /* bodies opened in this pass */
} flattening;

static void flat_drop(ch_cursor *c)
{
    flattening *x = (flattening *)c;

    ch__cursor_close(x->body);
    x->body = NULL;
}

/* Opens the body of the next element. x->body stays NULL if the input has ended. */
static ch_status flat_advance(flattening *x)
{
    ch_element *e = NULL;
    ch_status   rc = ch__cursor_next(x->base.in[0], &e);

    if (rc != CH_OK || e == NULL)
        return rc;
    return ch__body_open(&x->base, x->n_opened++, 1, &e, &x->body);
}

static ch_status flat_next(ch_cursor *c, ch_element **out)
{
    flattening *x = (flattening *)c;

    for (;;) {
        ch_status rc;

        if (x->body == NULL && ((rc = flat_advance(x)) != CH_OK || x->body == NULL))
            return rc;
        rc = ch__cursor_next(x->body, out);
        if (rc != CH_OK || *out != NULL)
            return rc;
        flat_drop(c);
    }
}

static ch_status flat_rewind(ch_cursor *c)
{
    flat_drop(c);
    ((flattening *)c)->n_opened = 0;
    return ch__rewind_inputs(c);
}

static void flat_save(ch_cursor *c, ch_saver *s)
{
    flattening *x = (flattening *)c;

    ch__save_int(s, x->body != NULL);
    ch__save_int(s, x->n_opened);
    ch__save_inputs(c, s);
    if (x->body != NULL)
        ch__cursor_save(x->body, s);
}

static ch_status flat_load(ch_cursor *c, ch_loader *l)
{
    flattening *x = (flattening *)c;
    bool        has_body = ch__load_int(l, 0, 1) != 0;
    ch_status   rc;

    x->n_opened = ch__load_count(l);
    rc = ch__load_fails(l) ? ch__load_status(l) : ch__load_inputs(c, l);
    return rc == CH_OK && has_body ? ch__body_load(c, l, &x->body) : rc;
}

const ch_stage ch__stage_flat_map = {
    .name = "flat_map",
    .version = 1,
    .traits = CH_DIVIDES,
    .n_in = 1,
    .cursor_bytes = sizeof(flattening),
    .infer = infer_body,
    .open = ch__open_nothing,
    .next = flat_next,
    .rewind = flat_rewind,
    .save = flat_save,
    .load = flat_load,
    .close = flat_drop,
};

ch_dataset *ch_dataset_flat_map(ch_dataset *d, ch_dataset_fn fn, void *arg)
{
    return with_body(&ch__stage_flat_map, NULL, d, fn, arg, false);
}

/* ---- interleave ----
 *
 * Up to `cycle` bodies are open, each in an entry of `body`. The stage returns `block` elements
 * of each body in turn. When a body ends, the body of the next input element replaces it. Each
 * body has a workqueue that prefetches, so several files are read at the same time; the order
 * of the elements does not depend on which body is ready first.
 *
 * If the stage is unordered, all free entries are filled first, and the turn goes to a body
 * that has a result ready. */

typedef struct interleaving {
    ch_cursor   base;
    int         cycle;     /* entries of `body` */
    ch_cursor **body;      /* owned; NULL: the entry is free */
    int         at;        /* index of the body that has the turn */
    int64_t     n_block;   /* elements returned in this turn */
    int64_t     n_opened;  /* bodies opened in this pass */
    bool        has_ended; /* the input has ended */
    bool        is_unordered;
} interleaving;

static ch_status interleave_infer(ch_dataset *d)
{
    const Cohort__Interleave *a = CH_ATTRS_OF(d, Cohort__Interleave);

    if (a->cycle < 0 || a->cycle > 1024 || a->block < 0)
        return ch__dataset_fail(d, "cycle is %d, want 0 to 1024; block is %d, want 0 or more",
                                a->cycle, a->block);
    return infer_body(d);
}

static ch_status interleave_open(ch_cursor *c)
{
    const Cohort__Interleave *a = CH_ATTRS(c, Cohort__Interleave);
    interleaving             *x = (interleaving *)c;

    /* The default must be the same on every machine, because the order depends on it. */
    x->cycle = a->cycle > 0 ? a->cycle : 8;
    x->is_unordered = a->unordered || c->it->unordered;
    x->body = ch__calloc((size_t)x->cycle, sizeof(ch_cursor *));
    return x->body == NULL ? ch__fail_memory("interleave") : CH_OK;
}

/* Gives the turn to the next entry. */
static void next_turn(interleaving *x)
{
    x->at = (x->at + 1) % x->cycle;
    x->n_block = 0;
}

/* Returns true if no body is open. */
static bool is_idle(const interleaving *x)
{
    for (int i = 0; i < x->cycle; i++)
        if (x->body[i] != NULL)
            return false;
    return true;
}

/* Opens the body of the next input element in entry `at`. Sets has_ended if there is none. */
static ch_status fill_entry(interleaving *x, int at)
{
    ch_element *e = NULL;
    ch_status   rc = ch__cursor_next(x->base.in[0], &e);

    if (rc != CH_OK)
        return rc;
    x->has_ended = e == NULL;
    if (at == x->at)
        x->n_block = 0;
    if (e == NULL)
        return CH_OK;
    return ch__body_open_prefetch(&x->base, x->n_opened++, 1, &e, &x->body[at]);
}

/* Fills all free entries, beginning with the entry that has the turn. */
static ch_status fill_entries(interleaving *x)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < x->cycle && rc == CH_OK && !x->has_ended; i++)
        if (x->body[(x->at + i) % x->cycle] == NULL)
            rc = fill_entry(x, (x->at + i) % x->cycle);
    return rc;
}

/* Fills all free entries and blocks until a body has a result or its end ready. Gives the turn
 * to that body. The turn does not move if no body is open, which means that the input has
 * ended. */
static ch_status turn_to_ready(interleaving *x)
{
    int       at = x->at;
    ch_status rc = fill_entries(x);

    if (rc == CH_OK && !is_idle(x))
        rc = ch__workqueue_any(&x->base, x->body, x->cycle, x->at, &at);
    if (at != x->at)
        x->n_block = 0;
    x->at = at;
    return rc;
}

static ch_status interleave_next(ch_cursor *c, ch_element **out)
{
    interleaving *x = (interleaving *)c;
    int64_t       block = CH_ATTRS(c, Cohort__Interleave)->block;

    for (;;) {
        ch_status rc = CH_OK;

        if (x->n_block == (block > 0 ? block : 1))
            next_turn(x);
        if (x->is_unordered)
            rc = turn_to_ready(x);
        else if (x->body[x->at] == NULL && !x->has_ended)
            rc = fill_entry(x, x->at);
        if (rc != CH_OK)
            return rc;
        if (x->body[x->at] == NULL) {
            if (x->has_ended && is_idle(x))
                return CH_OK;
            next_turn(x);
            continue;
        }
        rc = ch__cursor_next(x->body[x->at], out);
        if (rc != CH_OK || *out != NULL) {
            x->n_block += rc == CH_OK;
            return rc;
        }
        ch__cursor_close(x->body[x->at]);
        x->body[x->at] = NULL;
        next_turn(x);
    }
}

static void interleave_drop(interleaving *x)
{
    for (int i = 0; x->body != NULL && i < x->cycle; i++) {
        ch__cursor_close(x->body[i]);
        x->body[i] = NULL;
    }
    x->at = 0;
    x->n_block = x->n_opened = 0;
    x->has_ended = false;
}

static ch_status interleave_rewind(ch_cursor *c)
{
    interleave_drop((interleaving *)c);
    return ch__rewind_inputs(c);
}

static void interleave_save(ch_cursor *c, ch_saver *s)
{
    interleaving *x = (interleaving *)c;

    ch__save_int(s, x->at);
    ch__save_int(s, x->n_block);
    ch__save_int(s, x->n_opened);
    ch__save_int(s, x->has_ended);
    for (int i = 0; i < x->cycle; i++)
        ch__save_int(s, x->body[i] != NULL);
    ch__save_inputs(c, s);
    for (int i = 0; i < x->cycle; i++)
        if (x->body[i] != NULL)
            ch__cursor_save(x->body[i], s);
}

static ch_status interleave_load(ch_cursor *c, ch_loader *l)
{
    interleaving  *x = (interleaving *)c;
    unsigned char *is_open = ch__calloc((size_t)x->cycle, 1);
    ch_status      rc = is_open == NULL ? ch__fail_memory("interleave") : CH_OK;

    x->at = (int)ch__load_int(l, 0, x->cycle - 1);
    x->n_block = ch__load_count(l);
    x->n_opened = ch__load_count(l);
    x->has_ended = ch__load_int(l, 0, 1) != 0;
    for (int i = 0; i < x->cycle && rc == CH_OK; i++)
        is_open[i] = ch__load_int(l, 0, 1) != 0;
    if (rc == CH_OK)
        rc = ch__load_fails(l) ? ch__load_status(l) : ch__load_inputs(c, l);
    for (int i = 0; i < x->cycle && rc == CH_OK; i++)
        if (is_open[i])
            rc = ch__body_load_prefetch(c, l, &x->body[i]);
    ch__free(is_open);
    return rc;
}

static void interleave_close(ch_cursor *c)
{
    interleave_drop((interleaving *)c);
    ch__free(((interleaving *)c)->body);
}

static bool interleave_is_unordered(const ch_dataset *d)
{
    return CH_ATTRS_OF(d, Cohort__Interleave)->unordered != 0;
}

const ch_stage ch__stage_interleave = {
    .name = "interleave",
    .version = 1,
    .traits = CH_DIVIDES,
    .n_in = 1,
    .attrs = &cohort__interleave__descriptor,
    .cursor_bytes = sizeof(interleaving),
    .infer = interleave_infer,
    .is_unordered = interleave_is_unordered,
    .open = interleave_open,
    .next = interleave_next,
    .rewind = interleave_rewind,
    .save = interleave_save,
    .load = interleave_load,
    .close = interleave_close,
};

ch_dataset *ch_dataset_interleave(ch_dataset *d, ch_dataset_fn fn, void *arg,
                                  const ch_interleave_options *opt)
{
    Cohort__Interleave a = COHORT__INTERLEAVE__INIT;

    if (opt != NULL) {
        a.cycle = opt->cycle;
        a.block = opt->block;
        a.unordered = opt->unordered;
    }
    return with_body(&ch__stage_interleave, &a.base, d, fn, arg, false);
}

/* ---- window ----
 *
 * Window w has the input elements w * shift + k * stride, for k from 0 to size - 1. The
 * elements that later windows may need are kept. */

typedef struct windowing {
    ch_cursor   base;
    ch_cursor  *body;      /* of the current window; owned; NULL: none is open */
    bool        has_ended; /* the input has ended */
    int64_t     n_skip;    /* input elements to discard before the next window */
    int64_t     n_opened;  /* windows opened in this pass */
    ch_elements kept;      /* input elements from the first of the next window on */
} windowing;

static int64_t shift_of(const Cohort__Window *a)
{
    return a->shift > 0 ? a->shift : a->size;
}

/* Returns the number of input elements from the first to the last of a window. */
static int64_t span_of(const Cohort__Window *a)
{
    return (a->size - 1) * (a->stride > 0 ? a->stride : 1) + 1;
}

/* Returns true if the body batches the whole window, so that each window gives one element. */
static bool is_whole_batch(const ch_dataset *d, const Cohort__Window *a)
{
    return d->body->stage == &ch__stage_batch && d->body->in[0] == d->element &&
           CH_ATTRS_OF(d->body, Cohort__Batch)->size == a->size &&
           CH_ATTRS_OF(d->body, Cohort__Batch)->drop_remainder == a->drop_remainder;
}

/* Returns the number of windows over `n` input elements; `n` may be CH_UNKNOWN or
 * CH_INFINITE. */
static int64_t n_windows(const Cohort__Window *a, int64_t n)
{
    if (n < 0)
        return n;
    if (!a->drop_remainder)
        return n / shift_of(a) + (n % shift_of(a) > 0);
    return n < span_of(a) ? 0 : (n - span_of(a)) / shift_of(a) + 1;
}

static ch_status window_infer(ch_dataset *d)
{
    const Cohort__Window *a = CH_ATTRS_OF(d, Cohort__Window);
    ch_status             rc;

    if (a->size < 1 || a->shift < 0 || a->stride < 0 || a->size > INT32_MAX ||
        a->shift > INT32_MAX || a->stride > INT32_MAX || span_of(a) > INT32_MAX)
        return ch__dataset_fail(d,
                                "size, shift or stride is out of range (got %lld, %lld, %lld; "
                                "want a size of 1 or more, the others 0 or more)",
                                (long long)a->size, (long long)a->shift, (long long)a->stride);
    rc = infer_body(d);
    if (rc == CH_OK && is_whole_batch(d, a))
        d->cardinality = n_windows(a, d->in[0]->cardinality);
    return rc;
}

/* Reads input elements until `kept` has the `span` elements of the next window, or the input
 * has ended. */
static ch_status window_fill(windowing *x, int64_t span)
{
    ch_status rc = CH_OK;

    while (rc == CH_OK && !x->has_ended && (x->n_skip > 0 || x->kept.n < span)) {
        ch_element *e = NULL;

        rc = ch__cursor_next(x->base.in[0], &e);
        x->has_ended = rc == CH_OK && e == NULL;
        if (e != NULL && x->n_skip > 0) {
            x->n_skip--;
            ch__element_free(e);
        } else if (e != NULL) {
            rc = ch__elements_add(&x->kept, e, "window");
        }
    }
    return rc == CH_OK ? CH_OK : ch__error_between(rc);
}

/* Removes `shift` elements from `kept`. The elements that are not read yet are counted in
 * n_skip. */
static void window_shift(windowing *x, int64_t shift)
{
    ch_elements *k = &x->kept;
    int          gone = shift < k->n ? (int)shift : k->n;

    for (int i = 0; i < gone; i++)
        ch__element_free(k->at[i]);
    k->n -= gone;
    memmove(k->at, k->at + gone, (size_t)k->n * sizeof(ch_element *));
    x->n_skip = shift - gone;
}

/* Opens the body over the elements of the window. It gets new elements that share their data
 * with the kept elements. */
static ch_status window_begin(windowing *x, const Cohort__Window *a)
{
    int          stride = a->stride > 0 ? (int)a->stride : 1, n = 0;
    int64_t      most = (x->kept.n - 1) / stride + 1; /* elements of the window that exist */
    ch_element **given = ch__calloc((size_t)ch__min(a->size, most), sizeof(ch_element *));
    ch_status    rc = given == NULL ? ch__fail_memory("window") : CH_OK;

    for (int i = 0; i < x->kept.n && n < a->size && rc == CH_OK; i += stride) {
        rc = ch__element_share(x->kept.at[i], &given[n]);
        n += rc == CH_OK;
    }
    if (rc == CH_OK)
        rc = ch__body_open(&x->base, x->n_opened++, n, given, &x->body);
    else
        for (int i = 0; i < n; i++)
            ch__element_free(given[i]);
    ch__free(given);
    return rc;
}

static ch_status window_next(ch_cursor *c, ch_element **out)
{
    const Cohort__Window *a = CH_ATTRS(c, Cohort__Window);
    windowing            *x = (windowing *)c;

    for (;;) {
        ch_status rc = CH_OK;

        if (x->body == NULL) {
            rc = window_fill(x, span_of(a));
            if (rc != CH_OK || x->kept.n == 0 || (a->drop_remainder && x->kept.n < span_of(a)))
                return rc;
            rc = window_begin(x, a);
            if (rc == CH_OK)
                window_shift(x, shift_of(a));
        }
        if (rc == CH_OK)
            rc = ch__cursor_next(x->body, out);
        if (rc != CH_OK || *out != NULL)
            return rc;
        ch__cursor_close(x->body);
        x->body = NULL;
    }
}

static void window_drop(windowing *x)
{
    ch__cursor_close(x->body);
    x->body = NULL;
    ch__elements_empty(&x->kept);
    x->n_skip = x->n_opened = 0;
    x->has_ended = false;
}

static ch_status window_rewind(ch_cursor *c)
{
    window_drop((windowing *)c);
    return ch__rewind_inputs(c);
}

static void window_save(ch_cursor *c, ch_saver *s)
{
    windowing *x = (windowing *)c;

    ch__save_int(s, x->has_ended);
    ch__save_int(s, x->n_skip);
    ch__save_int(s, x->n_opened);
    ch__save_int(s, x->body != NULL);
    ch__save_elements(s, &x->kept);
    ch__save_inputs(c, s);
    if (x->body != NULL)
        ch__cursor_save(x->body, s);
}

static ch_status window_load(ch_cursor *c, ch_loader *l)
{
    windowing *x = (windowing *)c;
    bool       has_body;
    ch_status  rc;

    x->has_ended = ch__load_int(l, 0, 1) != 0;
    x->n_skip = ch__load_int(l, 0, INT32_MAX);
    x->n_opened = ch__load_count(l);
    has_body = ch__load_int(l, 0, 1) != 0;
    rc =
        ch__load_elements(l, span_of(CH_ATTRS(c, Cohort__Window)), c->dataset->in[0], &x->kept);
    if (rc == CH_OK)
        rc = ch__load_inputs(c, l);
    return rc == CH_OK && has_body ? ch__body_load(c, l, &x->body) : rc;
}

static void window_close(ch_cursor *c)
{
    window_drop((windowing *)c);
    ch__elements_drop(&((windowing *)c)->kept);
}

const ch_stage ch__stage_window = {
    .name = "window",
    .version = 1,
    .traits = CH_DIVIDES_IF_ASKED,
    .n_in = 1,
    .attrs = &cohort__window__descriptor,
    .cursor_bytes = sizeof(windowing),
    .infer = window_infer,
    .open = ch__open_nothing,
    .next = window_next,
    .rewind = window_rewind,
    .save = window_save,
    .load = window_load,
    .close = window_close,
};

static ch_dataset *batch_all(ch_dataset *window, void *arg)
{
    const Cohort__Window *a = arg;

    return ch_dataset_batch(window, a->size,
                            &(ch_batch_options){.drop_remainder = a->drop_remainder});
}

ch_dataset *ch_dataset_window(ch_dataset *d, int64_t size, ch_dataset_fn fn, void *arg,
                              const ch_window_options *opt)
{
    Cohort__Window a = COHORT__WINDOW__INIT;

    a.size = size;
    if (opt != NULL) {
        a.shift = opt->shift;
        a.stride = opt->stride;
        a.drop_remainder = opt->drop_remainder;
    }
    if (fn == NULL)
        return with_body(&ch__stage_window, &a.base, d, batch_all, &a, true);
    return with_body(&ch__stage_window, &a.base, d, fn, arg, true);
}
