/* data/cursor.c -- running stages: the tree of cursors, and bodies in it.
 *
 * Depth is bounded by CH_MAX_DATASET_DEPTH, so walking the tree may recurse.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/random.h"
#include "data/stages.h"

enum {
    FIRST_CALLS = 64, /* all are timed, because they may fill a buffer */
    SPARSEST = 256,   /* of the calls after them, at least one in so many is timed */
    WORTH_NS = 200000 /* length of a call that is worth the microsecond which timing it takes */
};

/* Returns for how many calls the time of the next one stands; 0: it is not timed. Chance decides
 * which calls are timed, because the work of other stages comes in powers of two as well. It
 * decides differently for each cursor: a timed call within a timed call would make it longer. */
static int stands_for(const ch_cursor *c, int64_t n)
{
    uint32_t chance = ((uint32_t)n * 2654435761u + (uint32_t)(c->path >> 32)) >> 24;

    if (n < FIRST_CALLS)
        return 1;
    return (chance & (uint32_t)(c->counts.sparsity - 1)) == 0 ? c->counts.sparsity : 0;
}

/* Takes note of a timed call. The shorter the calls of a cursor, the fewer are timed. */
static void choose_sparsity(ch_counts *k, int64_t ns)
{
    k->mean_ns += (ns - k->mean_ns) / 8;
    for (k->sparsity = 1; k->sparsity < SPARSEST && k->sparsity * k->mean_ns < WORTH_NS;)
        k->sparsity *= 2;
}

/* By the one thread that has the cursor; others may look. */
static void add(_Atomic int64_t *to, int64_t n)
{
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* The clock's own cost, which a cheap stage does not come up to, is measured along and taken off: by the
 * second and third call, since the first one is slower. By chance that may be too much, which other
 * times make up for. */
static ch_status timed_next(ch_cursor *c, int weight, ch_element **out)
{
    int64_t   helped = ch__workqueue_helped_ns(), first, from, to;
    ch_status rc;

    (void)ch__cpu_ns();
    first = ch__cpu_ns();
    from = ch__cpu_ns();
    rc = c->stage->next(c, out);
    to = ch__cpu_ns();
    helped = ch__workqueue_helped_ns() - helped;
    add(&c->counts.ns, weight * (to - from - (from - first) - helped));
    choose_sparsity(&c->counts, to - from);
    return rc;
}

static ch_status open_inputs(ch_cursor *c)
{
    c->in = ch__calloc((size_t)c->dataset->n_in + 1, sizeof(ch_cursor *));
    if (c->in == NULL)
        return ch__fail_memory(c->stage->name);
    for (int i = 0; i < c->dataset->n_in && !c->stage->opens_inputs; i++) {
        ch_status rc = ch__cursor_open(c->it, c->dataset->in[i], c, &c->in[i]);

        if (rc != CH_OK)
            return rc;
        c->n_in++;
    }
    return CH_OK;
}

/* All inputs are opened in turn, but for one alone, which may be opened again. */
static uint64_t path_of(const ch_cursor *parent)
{
    int at;

    if (parent == NULL)
        return CH_HASH_START;
    at = parent->dataset->n_in > 1 ? parent->n_in : 0;
    return ch__hash(parent->path, &at, sizeof(at));
}

/* A shard keeps every n-th element. Other workers keep the rest, so all must draw alike below it. */
static int64_t reader_of(const ch_iterator *it, const ch_cursor *parent)
{
    if (parent == NULL)
        return it->name.reader;
    return ch__dataset_is_shard(parent->dataset) ? 0 : parent->reader;
}

static ch_cursor *cursor_new(ch_iterator *it, const ch_stage *stage, ch_dataset *d,
                             ch_cursor *parent)
{
    ch_cursor *c = ch__calloc(1, stage->cursor_bytes);

    if (c == NULL)
        return NULL;
    c->stage = stage;
    c->dataset = d;
    c->it = it;
    c->parent = parent;
    c->path = path_of(parent);
    c->skips = parent != NULL ? parent->skips : it->skips_made;
    c->first_epoch = c->epoch = parent != NULL ? parent->first_epoch : 0;
    c->reader = reader_of(it, parent);
    c->pass_key = ch__stream_key(c->reader, it->name.pass);
    c->reader_key = ch__stream_key(c->reader, 0);
    c->counts.sparsity = 1;
    return c;
}

void ch__cursor_skipped(ch_cursor *c, int64_t n)
{
    atomic_fetch_add_explicit(&c->n_skipped, n, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->skips->n, n, memory_order_relaxed);
}

ch_status ch__cursor_open(ch_iterator *it, ch_dataset *d, ch_cursor *parent, ch_cursor **out)
{
    ch_cursor *c = cursor_new(it, d->stage, d, parent);
    ch_status  rc;

    if (c == NULL)
        return ch__fail_memory(d->stage->name);
    rc = open_inputs(c);
    if (rc == CH_OK)
        rc = c->stage->open(c);
    if (rc != CH_OK) {
        ch__cursor_close(c);
        return rc;
    }
    *out = c;
    return CH_OK;
}

/* The belt goes first: it may still be working with what the stage and the inputs have. */
void ch__cursor_close(ch_cursor *c)
{
    if (c == NULL)
        return;
    ch__workqueue_close(c->workqueue);
    c->workqueue = NULL;
    ch__budget_forget(c);
    c->stage->close(c);
    atomic_fetch_add_explicit(&c->skips->gone, c->n_skipped, memory_order_relaxed);
    for (int i = 0; i < c->n_in; i++)
        ch__cursor_close(c->in[i]);
    ch__free(c->in);
    ch__free(c);
}

/* Those who look at the tree hold the lock. */
ch_status ch__cursor_reopen(ch_cursor *c)
{
    ch_cursor *fresh = NULL, *old = c->in[0];
    ch_status  rc = ch__cursor_open(c->it, c->dataset->in[0], c, &fresh);

    if (rc != CH_OK)
        return rc;
    pthread_mutex_lock(&c->it->lock);
    c->in[0] = fresh;
    c->n_in = 1;
    pthread_mutex_unlock(&c->it->lock);
    ch__cursor_close(old);
    return CH_OK;
}

/* An element moves on from `c` to its parent. */
static ch_status count_bytes(ch_cursor *c, ch_element **out)
{
    ch_status rc = CH_OK;

    ch__budget_refund(c, *out);
    if (c->parent != NULL)
        rc = ch__budget_charge(c->parent, *out);
    if (rc != CH_OK) {
        ch__element_free(*out);
        *out = NULL;
    }
    return rc;
}

ch_status ch__cursor_next(ch_cursor *c, ch_element **out)
{
    int64_t   n = atomic_load_explicit(&c->counts.n_elements, memory_order_relaxed);
    int       weight = stands_for(c, n);
    ch_status rc;

    if (atomic_load_explicit(&c->it->stops, memory_order_relaxed))
        return ch__fail(CH_CANCELLED, "%s: the iterator was let go", c->stage->name);
    *out = NULL;
    rc = weight == 0 ? c->stage->next(c, out) : timed_next(c, weight, out);
    add(&c->counts.n_elements, rc == CH_OK && *out != NULL);
    return rc == CH_OK && *out != NULL && c->it->budget.most > 0 ? count_bytes(c, out) : rc;
}

/* The error is known by its number, so that the mark ends with the next error. 0: none. */
static _Thread_local uint64_t fault_between;

ch_status ch__error_between(ch_status rc)
{
    fault_between = ch__fail_mark();
    return rc;
}

bool ch__error_is_between(void)
{
    return fault_between != 0 && fault_between == ch__fail_mark();
}

ch_status ch__cursor_rewind(ch_cursor *c)
{
    c->epoch++;
    if ((c->stage->traits & CH_GIVES_UP_ELEMENTS) != 0)
        ch__budget_forget(c);
    return c->stage->rewind(c);
}

/* ---- what stages that keep nothing do ---- */

ch_status ch__rewind_inputs(ch_cursor *c)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < c->n_in && rc == CH_OK; i++)
        rc = ch__cursor_rewind(c->in[i]);
    return rc;
}

void ch__save_inputs(ch_cursor *c, ch_saver *s)
{
    for (int i = 0; i < c->n_in; i++)
        ch__cursor_save(c->in[i], s);
}

ch_status ch__load_inputs(ch_cursor *c, ch_loader *l)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < c->n_in && rc == CH_OK; i++)
        rc = ch__cursor_load(c->in[i], l);
    return rc;
}

ch_status ch__open_nothing(ch_cursor *c)
{
    (void)c;
    return CH_OK;
}

void ch__close_nothing(ch_cursor *c)
{
    (void)c;
}

/* ---- bodies ----
 *
 * A body is opened anew for each element it is given. Between it and the stage it belongs to
 * stands a frame, which holds what is given; the stage `element` in the body, wherever it is
 * there, finds its frame by going up. */

typedef struct frame {
    ch_cursor    base;
    ch_dataset  *element; /* the stage `element` that this is the frame of */
    int64_t      number;  /* of the bodies of this pass */
    int          n;
    ch_element **given;
} frame;

/* Elements are counted in each body anew: an error says in which. */
static ch_status in_body(ch_status rc, const ch_cursor *of, int64_t number)
{
    bool is_between = ch__error_is_between();

    rc = ch__fail_at(rc, "%s, element %lld", of->stage->name, (long long)number);
    return is_between ? ch__error_between(rc) : rc;
}

static ch_status frame_next(ch_cursor *c, ch_element **out)
{
    ch_status rc =
        c->workqueue != NULL ? ch__queued_next(c, out) : ch__cursor_next(c->in[0], out);

    return rc == CH_OK ? CH_OK : in_body(rc, c->parent, ((frame *)c)->number);
}

static void frame_save(ch_cursor *c, ch_saver *s)
{
    frame *f = (frame *)c;

    ch__save_int(s, f->number);
    ch__save_int(s, f->n);
    for (int i = 0; i < f->n; i++)
        ch__save_element(s, f->given[i]);
    if (c->workqueue != NULL)
        ch__queued_save(c, s);
    else
        ch__save_inputs(c, s);
}

/* What was given is given to ch__body_open anew: body_load. */
static ch_status frame_load(ch_cursor *c, ch_loader *l)
{
    return c->workqueue != NULL ? ch__queued_load(c, l) : ch__load_inputs(c, l);
}

static ch_status frame_rewind(ch_cursor *c)
{
    return c->workqueue != NULL ? ch__queued_rewind(c) : ch__rewind_inputs(c);
}

static void frame_close(ch_cursor *c)
{
    frame *f = (frame *)c;

    for (int i = 0; i < c->n_in; i++)
        ch__cursor_close(c->in[i]);
    c->n_in = 0;
    for (int i = 0; i < f->n; i++)
        ch__element_free(f->given[i]);
    ch__free(f->given);
}

static const ch_stage frame_stage = {
    .name = "body",
    .cursor_bytes = sizeof(frame),
    .next = frame_next,
    .rewind = frame_rewind,
    .save = frame_save,
    .load = frame_load,
    .close = frame_close,
};

/* So many that two bodies of a pipeline hardly have one in common. */
static int64_t first_epoch_of(const ch_cursor *of, int64_t number)
{
    return (int64_t)(ch__draw((ch_draws){0, of->epoch}, number) >> 3);
}

typedef struct which_body {
    int64_t number, first_epoch;
    bool    ahead;
} which_body;

static ch_status body_open(ch_cursor *of, which_body which, int n, ch_element *const *given,
                           ch_cursor **out)
{
    static const ch_workqueue_ops ops = {ch__workqueue_pull_input, NULL};
    frame    *f = (frame *)cursor_new(of->it, &frame_stage, of->dataset, of);
    ch_status rc = CH_OK;

    if (f != NULL)
        f->given = ch__calloc((size_t)n + 1, sizeof(ch_element *));
    if (f != NULL)
        f->base.in = ch__calloc(1, sizeof(ch_cursor *));
    if (f == NULL || f->given == NULL || f->base.in == NULL) {
        for (int i = 0; i < n; i++)
            ch__element_free(given[i]);
        rc = ch__fail_memory(of->stage->name);
    } else {
        if (n > 0)
            memcpy(f->given, given, (size_t)n * sizeof(ch_element *));
        f->n = n;
        f->element = of->dataset->element;
        f->number = which.number;
        f->base.epoch = f->base.first_epoch = which.first_epoch;
        rc = ch__cursor_open(of->it, of->dataset->body, &f->base, &f->base.in[0]);
        f->base.n_in = rc == CH_OK;
        if (rc == CH_OK && which.ahead)
            rc = ch__workqueue_open(&f->base, &ops, &(ch_workqueue_options){.ahead = 2});
    }
    if (rc == CH_OK) {
        *out = &f->base;
        return CH_OK;
    }
    ch__cursor_close(f != NULL ? &f->base : NULL);
    return in_body(rc, of, which.number);
}

/* Room for what is given grows as it comes: how much that is, a stranger says. */
static ch_status body_load(ch_cursor *of, bool ahead, ch_loader *l, ch_cursor **out)
{
    which_body  which = {.ahead = ahead};
    ch_elements given = {0};
    ch_status   rc = CH_OK;
    int64_t     n;

    ch__load_begin(l, frame_stage.name);
    which.first_epoch = ch__load_count(l); /* a body has one epoch */
    which.number = ch__load_count(l);
    n = ch__load_int(l, 0, INT32_MAX / 16);
    for (int64_t i = 0; i < n && rc == CH_OK && !ch__load_fails(l); i++) {
        ch_element *e = ch__load_element(l, of->dataset->element);

        if (e != NULL)
            rc = ch__elements_add(&given, e, of->stage->name);
    }
    if (rc == CH_OK)
        rc = ch__load_status(l);
    if (rc != CH_OK) {
        ch__elements_drop(&given);
        return rc;
    }
    rc = body_open(of, which, given.n, given.at, out);
    ch__free(given.at);
    if (rc != CH_OK)
        return rc;
    rc = frame_load(*out, l);
    if (rc != CH_OK) {
        ch__cursor_close(*out);
        *out = NULL;
    }
    return rc;
}

ch_cursor *ch__cursor_runner(ch_cursor *c)
{
    ch_cursor *runner = NULL;

    for (; c != NULL; c = c->parent)
        if (c->stage == &frame_stage)
            runner = c->parent;
    return runner;
}

ch_status ch__body_open(ch_cursor *of, int64_t number, int n, ch_element *const *given,
                        ch_cursor **out)
{
    which_body which = {number, first_epoch_of(of, number), false};

    return body_open(of, which, n, given, out);
}

ch_status ch__body_open_prefetch(ch_cursor *of, int64_t number, int n, ch_element *const *given,
                                 ch_cursor **out)
{
    which_body which = {number, first_epoch_of(of, number), true};

    return body_open(of, which, n, given, out);
}

ch_status ch__body_load(ch_cursor *of, ch_loader *l, ch_cursor **out)
{
    return body_load(of, false, l, out);
}

ch_status ch__body_load_prefetch(ch_cursor *of, ch_loader *l, ch_cursor **out)
{
    return body_load(of, true, l, out);
}

typedef struct element_cursor {
    ch_cursor base;
    frame    *frame;
    int       at;
} element_cursor;

static ch_status element_infer(ch_dataset *d)
{
    const Cohort__ElementSpec *a = (const Cohort__ElementSpec *)(void *)d->attrs;
    ch_status                  rc = ch__dataset_warn_once(d, a);

    d->cardinality = a->many ? CH_UNKNOWN : 1;
    return rc;
}

static ch_status element_open(ch_cursor *c)
{
    ch_cursor *up = c->parent;

    while (up != NULL && (up->stage != &frame_stage || ((frame *)up)->element != c->dataset))
        up = up->parent;
    if (up == NULL)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "element: it stands for what a stage's function is given, and is of no "
                        "use outside of what that function returns");
    ((element_cursor *)c)->frame = (frame *)up;
    return CH_OK;
}

static ch_status element_next(ch_cursor *c, ch_element **out)
{
    element_cursor *e = (element_cursor *)c;

    if (e->at == e->frame->n) {
        *out = NULL;
        return CH_OK;
    }
    return ch__element_share(e->frame->given[e->at++], out);
}

static ch_status element_rewind(ch_cursor *c)
{
    ((element_cursor *)c)->at = 0;
    return CH_OK;
}

static void element_save(ch_cursor *c, ch_saver *s)
{
    ch__save_int(s, ((element_cursor *)c)->at);
}

static ch_status element_load(ch_cursor *c, ch_loader *l)
{
    element_cursor *e = (element_cursor *)c;

    e->at = (int)ch__load_int(l, 0, e->frame->n);
    return ch__load_status(l);
}

const ch_stage ch__stage_element = {
    .name = "element",
    .version = 1,
    .attrs = &cohort__element_spec__descriptor,
    .cursor_bytes = sizeof(element_cursor),
    .infer = element_infer,
    .open = element_open,
    .next = element_next,
    .rewind = element_rewind,
    .save = element_save,
    .load = element_load,
    .close = ch__close_nothing,
};
