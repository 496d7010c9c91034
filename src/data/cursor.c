/* data/cursor.c -- cursors: the tree of running stages, and the bodies in it.
 *
 * A ch_cursor is a running stage. This file opens, times and closes cursors, passes elements
 * from a cursor to its parent, and has the default operations of simple stages. Stages like
 * flat_map open a body for each element: a `frame` is the root cursor of a body, and the stage
 * `element` is its source. The iterator opens the root cursor; stages call their inputs.
 *
 * The depth of the tree is at most CH_MAX_DATASET_DEPTH, so functions may recurse over it.
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
    FIRST_CALLS = 64,     /* these calls are all timed, because they may fill a buffer */
    MAX_SPARSITY = 256,   /* largest sparsity: of the later calls, at least 1 in 256 is timed */
    LONG_CALL_NS = 200000 /* calls this long are all timed; timing takes about a microsecond */
};

/* Returns the weight of the next call, that is the number of calls that its time stands for; 0:
 * the call is not timed. A hash of the call number chooses the timed calls, because other
 * stages also do their work every 2^k calls. The hash differs for each cursor, because a timed
 * call inside a timed call would make the outer time longer. */
static int sample_weight(const ch_cursor *c, int64_t n)
{
    uint32_t chance = ((uint32_t)n * 2654435761u + (uint32_t)(c->path >> 32)) >> 24;

    if (n < FIRST_CALLS)
        return 1;
    return (chance & (uint32_t)(c->counts.sparsity - 1)) == 0 ? c->counts.sparsity : 0;
}

/* Updates the average and the sparsity after a timed call. The shorter the calls of a cursor
 * are, the fewer are timed. */
static void choose_sparsity(ch_counts *k, int64_t ns)
{
    k->mean_ns += (ns - k->mean_ns) / 8;
    for (k->sparsity = 1;
         k->sparsity < MAX_SPARSITY && k->sparsity * k->mean_ns < LONG_CALL_NS;)
        k->sparsity *= 2;
}

/* Adds to a counter that only the thread of the cursor writes, and that other threads may
 * read. */
static void add_relaxed(_Atomic int64_t *to, int64_t n)
{
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* Calls `next` and adds its time, multiplied by `weight`. The cost of reading the clock exceeds
 * that of a cheap stage, so it is measured and subtracted: it is the time between the second
 * and the third reading, because the first is slower. A single correction may be too large; on
 * average it is right. */
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
    add_relaxed(&c->counts.ns, weight * (to - from - (from - first) - helped));
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

/* Returns the path of the next input of `parent`. Several inputs are opened in order, so n_in
 * is the index of the next. A single input always has index 0, because it may be opened again
 * (ch__cursor_reopen). */
static uint64_t path_of(const ch_cursor *parent)
{
    int at;

    if (parent == NULL)
        return CH_HASH_START;
    at = parent->dataset->n_in > 1 ? parent->n_in : 0;
    return ch__hash(parent->path, &at, sizeof(at));
}

/* Returns the reader of a new cursor. Below a shard it is 0: each worker takes another part of
 * the same elements there, so all workers must draw the same random numbers. */
static int64_t reader_of(const ch_iterator *it, const ch_cursor *parent)
{
    if (parent == NULL)
        return it->name.reader;
    return ch__dataset_is_shard(parent->dataset) ? 0 : parent->reader;
}

/* Returns a cursor without inputs; NULL: out of memory. */
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

/* Closes the workqueue first, because its jobs use the state of the stage and of the inputs. */
void ch__cursor_close(ch_cursor *c)
{
    if (c == NULL)
        return;
    ch__workqueue_close(c->workqueue);
    ch__budget_refund_all(c);
    c->stage->close(c);
    atomic_fetch_add_explicit(&c->skips->gone, c->n_skipped, memory_order_relaxed);
    for (int i = 0; i < c->n_in; i++)
        ch__cursor_close(c->in[i]);
    ch__free(c->in);
    ch__free(c);
}

/* Changes the tree with the lock held, because other threads walk the tree with the lock
 * held. */
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

/* Moves the charge of an element from `c` to its parent. On error, frees the element. */
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
    int       weight = sample_weight(c, n);
    ch_status rc;

    if (atomic_load_explicit(&c->it->stops, memory_order_relaxed))
        return ch__fail(CH_CANCELLED, "%s: the iterator was closed", c->stage->name);
    *out = NULL;
    rc = weight == 0 ? c->stage->next(c, out) : timed_next(c, weight, out);
    add_relaxed(&c->counts.n_elements, rc == CH_OK && *out != NULL);
    return rc == CH_OK && *out != NULL && c->it->budget.most > 0 ? count_bytes(c, out) : rc;
}

/* Number of the error that ch__error_between marked; 0: none. The next error of the thread has
 * another number, so it is not marked. */
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
        ch__budget_refund_all(c);
    return c->stage->rewind(c);
}

/* ---- operations of stages without state ---- */

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

bool ch__input_can_step_back(ch_cursor *c, ch_back to)
{
    return c->n_in == 1 && c->in[0]->stage->can_step_back != NULL &&
           c->in[0]->stage->can_step_back(c->in[0], to);
}

void ch__save_input_back(ch_cursor *c, ch_saver *s, ch_back to)
{
    for (int i = 0; i < c->n_in; i++)
        ch__cursor_save_back(c->in[i], s, to);
}

void ch__save_passing(ch_cursor *c, ch_saver *s)
{
    ch__save_input_back(c, s, ch__save_place(s));
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
 * A stage like flat_map opens its body for each element. A frame is a cursor between that stage
 * and the body. It holds the elements that the body reads. A cursor of the stage `element`,
 * anywhere in the body, finds its frame by walking up the tree. */

typedef struct frame {
    ch_cursor    base;
    ch_dataset  *element; /* the stage `element` that reads from this frame */
    int64_t      number;  /* index of this body in the pass */
    int          n;
    ch_element **given; /* n elements; owned */
} frame;

/* Adds the index of the body to an error, because each body numbers its elements from 0. Keeps
 * the mark of ch__error_between. */
static ch_status fail_in_body(ch_status rc, const ch_cursor *of, int64_t number)
{
    bool is_between = ch__error_is_between();

    rc = ch__fail_at(rc, "%s, element %lld", of->stage->name, (long long)number);
    return is_between ? ch__error_between(rc) : rc;
}

static ch_status frame_next(ch_cursor *c, ch_element **out)
{
    ch_status rc =
        c->workqueue != NULL ? ch__queued_next(c, out) : ch__cursor_next(c->in[0], out);

    return rc == CH_OK ? CH_OK : fail_in_body(rc, c->parent, ((frame *)c)->number);
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

/* Loads the cursors below the frame. body_load reads the elements of the frame before. */
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

/* Returns a random 61-bit epoch, so that two bodies of a pipeline hardly ever share an
 * epoch. */
static int64_t first_epoch_of(const ch_cursor *of, int64_t number)
{
    return (int64_t)(ch__draw((ch_draws){0, of->epoch}, number) >> 3);
}

typedef struct body_options {
    int64_t number, first_epoch;
    bool    prefetch; /* the body has a workqueue */
} body_options;

/* Opens a frame and the body below it. Takes ownership of the elements, even on error. */
static ch_status body_open(ch_cursor *of, body_options options, int n, ch_element *const *given,
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
        f->number = options.number;
        f->base.epoch = f->base.first_epoch = options.first_epoch;
        rc = ch__cursor_open(of->it, of->dataset->body, &f->base, &f->base.in[0]);
        f->base.n_in = rc == CH_OK;
        if (rc == CH_OK && options.prefetch)
            rc = ch__workqueue_open(&f->base, &ops,
                                    &(ch_workqueue_options){.prefetch = 2, .per_result = 1});
    }
    if (rc == CH_OK) {
        *out = &f->base;
        return CH_OK;
    }
    ch__cursor_close(f != NULL ? &f->base : NULL);
    return fail_in_body(rc, of, options.number);
}

/* Opens a body at a saved position. The number of elements is untrusted, so the list grows with
 * each element that is really there. */
static ch_status body_load(ch_cursor *of, bool prefetch, ch_loader *l, ch_cursor **out)
{
    body_options options = {.prefetch = prefetch};
    ch_elements  given = {0};
    ch_status    rc = CH_OK;
    int64_t      n;

    ch__load_begin(l, frame_stage.name);
    options.first_epoch = ch__load_count(l); /* the saved epoch: a frame is never rewound */
    options.number = ch__load_count(l);
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
    rc = body_open(of, options, given.n, given.at, out);
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
    body_options options = {number, first_epoch_of(of, number), false};

    return body_open(of, options, n, given, out);
}

ch_status ch__body_open_prefetch(ch_cursor *of, int64_t number, int n, ch_element *const *given,
                                 ch_cursor **out)
{
    body_options options = {number, first_epoch_of(of, number), true};

    return body_open(of, options, n, given, out);
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
    int       at; /* index of the next element of the frame */
} element_cursor;

static ch_status element_infer(ch_dataset *d)
{
    const Cohort__ElementSpec *a = (const Cohort__ElementSpec *)(void *)d->attrs;
    ch_status                  rc = ch__dataset_set_spec(d, a);

    d->cardinality = a->many ? CH_UNKNOWN : 1;
    return rc;
}

static ch_status element_open(ch_cursor *c)
{
    ch_cursor *up = c->parent;

    while (up != NULL && (up->stage != &frame_stage || ((frame *)up)->element != c->dataset))
        up = up->parent;
    if (up == NULL)
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "element: the dataset that a function of flat_map, interleave or window "
            "receives can only be used in the dataset that the function returns");
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
