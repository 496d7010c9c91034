/* data/memory.c -- sources in memory: tensors, their rows, ranges of numbers, generators.
 *
 * The stages `tensors`, `slices` and `range` have a `counting` cursor: its position is a
 * number, and element i can be computed from i alone. The elements of `tensors` and `slices`
 * reference the tensors' memory, so nothing is copied. The stage `generator` has a `generating`
 * cursor, which calls C functions of the program.
 *
 * Invariants of generators:
 *   1. With `make`, each cursor has its own state. Without it, `arg` is the only state. A
 *      ch_call_lock then admits a single user: one cursor of one iterator, and the new cursor
 *      at the same path that replaces it during a restore.
 *   2. `make` and `drop` are called by one thread at a time. The other functions are called by
 *      the thread that uses the cursor.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"

typedef struct counting {
    ch_cursor base;
    int64_t   at; /* number of the next element; the cardinality at the end */
} counting;

static ch_status counting_rewind(ch_cursor *c)
{
    ((counting *)c)->at = 0;
    return CH_OK;
}

static bool counting_can_step_back(ch_cursor *c, ch_back to)
{
    return to.n <= (to.passes > 0 ? c->dataset->cardinality : ((counting *)c)->at);
}

static void counting_save(ch_cursor *c, ch_saver *s)
{
    ch_back to = ch__save_place(s);

    ch__save_int(s, to.passes > 0 ? to.n : ((counting *)c)->at - to.n);
}

static ch_status counting_load(ch_cursor *c, ch_loader *l)
{
    ((counting *)c)->at = ch__load_int(l, 0, c->dataset->cardinality);
    return ch__load_status(l);
}

/* ---- tensors ---- */

/* Creates a tuple of the tensors. Tensors that are not contiguous are copied, so that a row is
 * a range of bytes. */
static ch_status tuple_of(int n, ch_tensor *const *t, const char *const *name, ch_tuple **out)
{
    ch_value **value = ch__calloc((size_t)(n > 0 ? n : 0) + 1, sizeof(ch_value *));
    ch_status  rc = value == NULL ? ch__fail_memory("dataset") : CH_OK;

    if (rc == CH_OK && n <= 0)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "dataset: tensors: wrong number (got %d, want at least 1)", n);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        ch_tensor *whole = NULL;

        if (t == NULL || t[i] == NULL)
            rc = ch__fail(CH_INVALID_ARGUMENT, "dataset: tensor %d is NULL", i);
        else
            rc = ch_tensor_contiguous(t[i], &whole);
        if (rc == CH_OK)
            rc = ch_value_new(CH_PLAIN, 1, &whole, &value[i]);
        ch_tensor_unref(whole);
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(n, value, name, out);
    for (int i = 0; value != NULL && i < n; i++)
        ch_value_unref(value[i]);
    ch__free(value);
    return rc;
}

static ch_tensor *tensor_at(const ch_dataset *d, int i)
{
    return ch_value_at(ch_tuple_at(d->data, i), 0);
}

/* Sets the specs of the tensors or, with `rows`, of their rows. */
static ch_status infer_tensors(ch_dataset *d, bool rows)
{
    int       n = d->data != NULL ? ch_tuple_count(d->data) : 0;
    ch_status rc = n == 0 ? ch__dataset_fail(d, "the description has no tensors")
                          : ch__dataset_parts(d, n);

    for (int i = 0; i < n && rc == CH_OK; i++) {
        const ch_tensor *t = tensor_at(d, i);
        ch_tensor_spec   spec = {ch_tuple_name(d->data, i), t->dtype, t->shape};

        if (rows && (t->shape.rank == 0 || t->shape.dim[0] != tensor_at(d, 0)->shape.dim[0]))
            return ch__dataset_fail(
                d, "tensor %d: wrong shape (got %s, want as many rows as tensor 0, %s)", i,
                ch__label(t->dtype, t->shape).text,
                ch__label(tensor_at(d, 0)->dtype, tensor_at(d, 0)->shape).text);
        if (rows)
            spec.shape = ch_shape_make(t->shape.rank - 1, t->shape.dim + 1);
        rc = ch__dataset_set_part(d, i, &spec);
    }
    if (rc == CH_OK)
        d->cardinality = rows ? tensor_at(d, 0)->shape.dim[0] : 1;
    return rc;
}

static ch_status tensors_infer(ch_dataset *d)
{
    return infer_tensors(d, false);
}

static ch_status slices_infer(ch_dataset *d)
{
    return infer_tensors(d, true);
}

/* Returns row `at` of the tensors (stage `slices`), or the whole tensors (stage `tensors`). */
static ch_status tensors_next(ch_cursor *c, ch_element **out)
{
    counting         *x = (counting *)c;
    const ch_dataset *d = c->dataset;

    if (x->at == d->cardinality)
        return CH_OK;
    ch_element *e = ch__element_new(d->n_parts, d->n_parts, 0);
    if (e == NULL)
        return ch__fail_memory(c->stage->name);
    for (int i = 0; i < d->n_parts; i++) {
        const ch_tensor *t = tensor_at(d, i);
        ch_shape         shape = d->spec[i].shape;
        size_t           bytes = (size_t)ch_shape_count(shape) * ch_dtype_bytes(t->dtype);

        e->part[i] = (ch_part){
            .dtype = t->dtype, .shape = shape, .data = t->data + (size_t)x->at * bytes};
        e->owner[i] = ch__buffer_ref(t->buffer);
    }
    e->is_row = true;
    x->at++;
    *out = e;
    return CH_OK;
}

const ch_stage ch__stage_tensors = {
    .name = "tensors",
    .version = 1,
    .cursor_bytes = sizeof(counting),
    .infer = tensors_infer,
    .open = ch__open_nothing,
    .next = tensors_next,
    .rewind = counting_rewind,
    .can_step_back = counting_can_step_back,
    .save = counting_save,
    .load = counting_load,
    .close = ch__close_nothing,
};

const ch_stage ch__stage_slices = {
    .name = "slices",
    .version = 1,
    .cursor_bytes = sizeof(counting),
    .infer = slices_infer,
    .open = ch__open_nothing,
    .next = tensors_next,
    .rewind = counting_rewind,
    .can_step_back = counting_can_step_back,
    .save = counting_save,
    .load = counting_load,
    .close = ch__close_nothing,
};

static ch_dataset *of_tensors(const ch_stage *stage, int n, ch_tensor *const *t,
                              const char *const *name)
{
    ch_tuple *data = NULL;

    if (n > CH_MAX_PARTS) {
        (void)ch__fail(CH_INVALID_ARGUMENT,
                       "%s: components: wrong number (got %d, want 1 to %d)", stage->name, n,
                       CH_MAX_PARTS);
        return NULL;
    }
    if (tuple_of(n, t, name, &data) != CH_OK)
        return NULL;
    return ch__dataset_new(stage, &(ch_dataset_make){.data = data});
}

ch_dataset *ch_dataset_of(int n, ch_tensor *const *t, const char *const *name)
{
    return of_tensors(&ch__stage_tensors, n, t, name);
}

ch_dataset *ch_dataset_slices(int n, ch_tensor *const *t, const char *const *name)
{
    return of_tensors(&ch__stage_slices, n, t, name);
}

/* ---- ranges ---- */

/* Computes how many of the numbers from, from + step, ... come before `to`. */
static ch_status range_count(const ch_dataset *d, const Cohort__Range *a, int64_t *out)
{
    int64_t span, step = a->step;

    if (step == 0)
        return ch__dataset_fail(d, "the step is 0");
    if ((step > 0) != (a->to > a->from)) {
        *out = 0;
        return CH_OK;
    }
    if (__builtin_sub_overflow(a->to, a->from, &span) || step == INT64_MIN || span == INT64_MIN)
        return ch__dataset_fail(d, "the range from %lld to %lld is too large",
                                (long long)a->from, (long long)a->to);
    span = span < 0 ? -span : span;
    step = step < 0 ? -step : step;
    *out = span / step + (span % step != 0);
    return CH_OK;
}

static ch_status range_infer(ch_dataset *d)
{
    const Cohort__Range *a = CH_ATTRS_OF(d, Cohort__Range);
    ch_status            rc = ch__dataset_parts(d, 1);

    if (rc == CH_OK)
        rc = ch__dataset_set_part(d, 0, &(ch_tensor_spec){.dtype = CH_I64});
    return rc == CH_OK ? range_count(d, a, &d->cardinality) : rc;
}

static ch_status range_next(ch_cursor *c, ch_element **out)
{
    const Cohort__Range *a = CH_ATTRS(c, Cohort__Range);
    counting            *x = (counting *)c;

    if (x->at == c->dataset->cardinality)
        return CH_OK;
    return ch__element_of_int(a->from + x->at++ * a->step, out);
}

const ch_stage ch__stage_range = {
    .name = "range",
    .version = 1,
    .attrs = &cohort__range__descriptor,
    .cursor_bytes = sizeof(counting),
    .infer = range_infer,
    .open = ch__open_nothing,
    .next = range_next,
    .rewind = counting_rewind,
    .can_step_back = counting_can_step_back,
    .save = counting_save,
    .load = counting_load,
    .close = ch__close_nothing,
};

ch_dataset *ch_dataset_range(int64_t from, int64_t to, int64_t step)
{
    Cohort__Range a = COHORT__RANGE__INIT;

    a.from = from;
    a.to = to;
    a.step = step;
    return ch__dataset_new(&ch__stage_range, &(ch_dataset_make){.attrs = &a.base});
}

/* ---- generators ---- */

typedef struct generating {
    ch_cursor base;
    void     *state; /* argument of the program's functions: the result of `make`, or `arg` */
    /* is_made: `state` is valid, and `drop` must be called. is_user: the cursor is counted in
     * n_users of the ch_call_lock. has_ended: `next` returned the end. */
    bool is_made, is_user, has_ended;
} generating;

static ch_status generator_infer(ch_dataset *d)
{
    if (d->call.generator.next == NULL)
        return ch__dataset_fail(d, "it calls a C function, which an encoded dataset does not "
                                   "include; create the dataset "
                                   "in this process");
    d->shares_state = d->call.make == NULL;
    return ch__dataset_set_spec(d, CH_ATTRS_OF(d, Cohort__ElementSpec));
}

/* Registers the cursor as a user of the only state. Returns FAILED_PRECONDITION if the state
 * has another user. During a restore the old and the new cursor are both users: they have the
 * same iterator and the same path. */
static ch_status acquire_state(generating *g)
{
    ch_cursor    *c = &g->base;
    ch_call_lock *t = c->dataset->call.call_lock;
    bool          same_iterator;

    pthread_mutex_lock(&t->lock);
    same_iterator = t->user == c->it;
    g->is_user = t->n_users == 0 || (same_iterator && t->path == c->path);
    if (g->is_user) {
        t->user = c->it;
        t->path = c->path;
        t->n_users++;
    }
    pthread_mutex_unlock(&t->lock);
    if (g->is_user)
        return CH_OK;
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "generator: it has no `make`, so there is a single state, and %s uses it already; give "
        "ch_dataset_generator a function `make` that creates a state for each iterator",
        same_iterator ? "another stage of this dataset" : "another iterator");
}

static void release_state(generating *g)
{
    ch_call_lock *t = g->base.dataset->call.call_lock;

    if (!g->is_user)
        return;
    pthread_mutex_lock(&t->lock);
    t->n_users--;
    pthread_mutex_unlock(&t->lock);
}

/* Checks the status that a C function of the program returned. If the function set no message
 * since `mark`, the message is that of the status. Adds the name of the function to it. */
static ch_status check_returned(const char *function, uint64_t mark, ch_status rc)
{
    rc = ch__fail_since(mark, rc);
    return rc == CH_OK ? rc : ch__fail_at(rc, "generator: `%s`", function);
}

static ch_status generator_open(ch_cursor *c)
{
    generating         *g = (generating *)c;
    const ch_data_call *call = &c->dataset->call;
    uint64_t            mark = ch__fail_mark();
    ch_status           rc = CH_OK;

    g->state = call->arg;
    if (call->make != NULL) { /* locked, because several threads open bodies */
        pthread_mutex_lock(&call->call_lock->lock);
        rc = check_returned("make", mark, call->make(call->arg, &g->state));
        pthread_mutex_unlock(&call->call_lock->lock);
    } else {
        rc = acquire_state(g);
    }
    g->is_made = rc == CH_OK;
    if (rc == CH_OK && call->make == NULL && call->generator.restart != NULL)
        rc = check_returned("restart", mark, call->generator.restart(g->state));
    return rc;
}

static ch_status generator_next(ch_cursor *c, ch_element **out)
{
    generating *g = (generating *)c;
    ch_tuple   *t = NULL;
    ch_element *e = NULL;
    uint64_t    mark = ch__fail_mark();
    ch_status   rc = CH_OK;

    if (!g->has_ended)
        rc = ch__fail_since(mark, c->dataset->call.generator.next(g->state, &t));
    if (rc != CH_OK)
        return ch__fail_at(rc, "generator");
    g->has_ended = t == NULL;
    if (t == NULL)
        return CH_OK;
    rc = ch__element_of_tuple(t, &e);
    ch_tuple_unref(t);
    if (rc == CH_OK)
        rc = ch__dataset_check(c->dataset, e);
    if (rc == CH_OK)
        *out = e;
    else
        ch__element_free(e);
    return rc;
}

static ch_status generator_rewind(ch_cursor *c)
{
    generating         *g = (generating *)c;
    const ch_data_call *call = &c->dataset->call;
    uint64_t            mark = ch__fail_mark();

    g->has_ended = false;
    if (call->generator.restart != NULL)
        return check_returned("restart", mark, call->generator.restart(g->state));
    return ch__fail(CH_UNIMPLEMENTED, "generator: it has no function `restart`, so it can be "
                                      "read only once");
}

/* Calls the program's `save`. *out is the tensor that it returned, as an element. */
static ch_status save_state(const generating *g, const ch_generator *call, ch_element **out)
{
    ch_tensor *position = NULL;
    ch_tuple  *t = NULL;
    uint64_t   mark = ch__fail_mark();
    ch_status  rc;

    if (call->save == NULL || call->restore == NULL)
        return ch__fail(CH_UNIMPLEMENTED,
                        "generator: its position cannot be saved; give it the "
                        "functions `save` and `restore`");
    rc = check_returned("save", mark, call->save(g->state, &position));
    if (rc == CH_OK && position == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "generator: `save` returned CH_OK and no tensor; set *out");
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &position, &t);
    if (rc == CH_OK)
        rc = ch__element_of_tuple(t, out);
    ch_tuple_unref(t);
    ch_tensor_unref(position);
    return rc;
}

static void generator_save(ch_cursor *c, ch_saver *s)
{
    generating *g = (generating *)c;
    ch_element *position = NULL;
    ch_status   rc = save_state(g, &c->dataset->call.generator, &position);

    ch__save_int(s, g->has_ended);
    if (rc != CH_OK)
        ch__save_fail(s, rc);
    else
        ch__save_element(s, position);
    ch__element_free(position);
}

static ch_status generator_load(ch_cursor *c, ch_loader *l)
{
    generating         *g = (generating *)c;
    const ch_generator *call = &c->dataset->call.generator;
    ch_element         *position;
    ch_tuple           *t = NULL;
    uint64_t            mark = ch__fail_mark();
    ch_status           rc;

    g->has_ended = ch__load_int(l, 0, 1) != 0;
    position = ch__load_element(l, NULL);
    if (ch__load_fails(l))
        return ch__load_status(l);
    if (call->restore == NULL || position->n != 1) {
        ch__element_free(position);
        return ch__fail(CH_UNIMPLEMENTED, "generator: it has no function `restore`");
    }
    rc = ch__element_to_tuple(position, NULL, &t);
    if (rc == CH_OK)
        rc = check_returned("restore", mark,
                            call->restore(g->state, ch_value_at(ch_tuple_at(t, 0), 0)));
    ch_tuple_unref(t);
    return rc;
}

static void generator_close(ch_cursor *c)
{
    generating         *g = (generating *)c;
    const ch_data_call *call = &c->dataset->call;

    if (g->is_made && call->drop != NULL) {
        pthread_mutex_lock(&call->call_lock->lock);
        call->drop(g->state);
        pthread_mutex_unlock(&call->call_lock->lock);
    }
    release_state(g);
}

const ch_stage ch__stage_generator = {
    .name = "generator",
    .version = 1,
    .attrs = &cohort__element_spec__descriptor,
    .cursor_bytes = sizeof(generating),
    .infer = generator_infer,
    .open = generator_open,
    .next = generator_next,
    .rewind = generator_rewind,
    .save = generator_save,
    .load = generator_load,
    .close = generator_close,
};

ch_dataset *ch_dataset_generator(const ch_generator *g,
                                 ch_status (*make)(void *arg, void **out),
                                 void (*drop)(void *state), void *arg)
{
    ch_data_call         call = {.make = make, .drop = drop, .arg = arg};
    Cohort__ElementSpec *spec = NULL;
    ch_arena             a = {0};
    ch_dataset          *d = NULL;

    if (g == NULL || g->next == NULL) {
        (void)ch__fail(CH_INVALID_ARGUMENT, "generator: the function `next` is NULL");
        return NULL;
    }
    call.generator = *g;
    call.generator.spec = NULL; /* the description has a copy */
    if (ch__spec_encode(&a, g->n_spec, g->spec, &spec) == CH_OK)
        d = ch__dataset_new(&ch__stage_generator,
                            &(ch_dataset_make){.attrs = &spec->base, .call = &call});
    ch__arena_drop(&a);
    return d;
}
