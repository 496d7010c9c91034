/* data/map.c -- the stages that call a function for each element: map, filter, take_while.
 *
 * The function is a recorded step (data/call.h) or a C function of the program. Elements do not
 * depend on each other, so each stage has a workqueue (data/workqueue.h) and calls the function
 * in worker threads. The cursors of all three stages are a `mapping`.
 *
 * Invariants:
 *   1. A step may run in any number of threads. A C function is called by one thread at a time
 *      (ch_call_lock), unless it is for map and ch_map_options.parallel is above 1.
 *   2. An element for which the function fails is replaced by the error. The elements after it
 *      keep their numbers.
 *   3. When the iterator is being freed, jobs stop between two elements and do not call the
 *      function again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/call.h"
#include "data/iterator.h"

typedef struct mapping {
    ch_cursor  base;
    ch_caller *caller; /* runs the recorded step; NULL: the stage calls a C function */
} mapping;

static ch_status open_workqueue(ch_cursor *c, const ch_workqueue_ops *ops,
                                const ch_workqueue_options *opt)
{
    mapping  *m = (mapping *)c;
    ch_status rc = CH_OK;

    if (c->dataset->graph != NULL)
        rc = ch__caller_new(c->dataset->graph, &m->caller);
    return rc == CH_OK ? ch__workqueue_open(c, ops, opt) : rc;
}

static void map_close(ch_cursor *c)
{
    ch__caller_free(((mapping *)c)->caller);
}

/* Adds the stage and the number of the element to the error message. Returns `rc`. */
static ch_status at_element(ch_status rc, const ch_cursor *c, int64_t number)
{
    return ch__fail_at(rc, "%s, element %lld", c->stage->name, (long long)number);
}

/* Returns true if the iterator is being freed. Results are not needed then, and the freeing
 * thread waits for the jobs to end. */
static bool is_cancelled(const ch_cursor *c)
{
    return atomic_load_explicit(&c->it->stops, memory_order_relaxed);
}

/* ---- map ---- */

/* Returns true if the stage's function must be called by one thread at a time: a C function of
 * filter or take_while always, a C function of map unless ch_map_options.parallel is above
 * 1. */
static bool is_serial(const ch_dataset *d)
{
    return d->call.filter != NULL ||
           (d->call.map != NULL && CH_ATTRS_OF(d, Cohort__Map)->parallel <= 1);
}

/* Locks the C function if it is serial. Returns CANCELLED, without the lock, if the iterator is
 * being freed. After CH_OK the caller must call unlock_call. */
static ch_status lock_call(const ch_cursor *c)
{
    if (!is_serial(c->dataset))
        return CH_OK;
    pthread_mutex_lock(&c->dataset->call.call_lock->lock);
    if (!is_cancelled(c))
        return CH_OK;
    pthread_mutex_unlock(&c->dataset->call.call_lock->lock);
    return ch__fail(CH_CANCELLED, "the iterator was freed");
}

static void unlock_call(const ch_cursor *c)
{
    if (is_serial(c->dataset))
        pthread_mutex_unlock(&c->dataset->call.call_lock->lock);
}

static ch_status map_infer(ch_dataset *d)
{
    const Cohort__Map *a = CH_ATTRS_OF(d, Cohort__Map);
    ch_status          rc = CH_OK;

    if (a->parallel < 0 || a->parallel > 1024)
        return ch__dataset_fail(d, "parallel is out of range (got %d, want 0 to 1024)",
                                a->parallel);
    if (d->call.map != NULL) {
        rc = ch__dataset_set_spec(d, a->gives);
    } else {
        rc = ch__call_check(d, d->graph, d->in[0]);
        if (rc == CH_OK)
            rc = ch__dataset_parts(d, d->graph->n_outputs);
        for (int i = 0; i < d->n_parts && rc == CH_OK; i++)
            rc = ch__dataset_set_part(d, i,
                                      &(ch_tensor_spec[]){ch__call_output(d->graph, i)}[0]);
        if (rc == CH_OK)
            d->same_rows = d->in[0]->same_rows && ch__call_same_rows(d, d->graph);
    }
    d->cardinality = d->in[0]->cardinality;
    return rc;
}

/* Calls the C function: converts the element to a tuple, and the result back to an element.
 * Takes over `e`. */
static ch_status map_call(ch_cursor *c, ch_element *e, ch_element **out)
{
    const ch_data_call *call = &c->dataset->call;
    ch_tuple           *in = NULL, *given = NULL;
    ch_status           rc = ch__element_to_tuple(e, c->dataset->in[0]->spec, &in);

    if (rc == CH_OK && (rc = lock_call(c)) == CH_OK) {
        uint64_t mark = ch__fail_mark();

        rc = ch__fail_since(mark, call->map(call->arg, in, &given));
        unlock_call(c);
    }
    ch_tuple_unref(in);
    if (rc == CH_OK && given == NULL)
        rc =
            ch__fail(CH_INVALID_ARGUMENT, "the function returned CH_OK and no tuple; set *out");
    if (rc == CH_OK)
        rc = ch__element_of_tuple(given, out);
    ch_tuple_unref(given);
    if (rc == CH_OK && (rc = ch__dataset_check(c->dataset, *out)) != CH_OK)
        ch__element_free(*out);
    return rc;
}

/* Maps an element; takes over `e`. `number` is its index in this pass. */
static ch_status map_one(ch_cursor *c, int64_t number, ch_element *e, ch_element **out)
{
    mapping  *m = (mapping *)c;
    ch_status rc;

    if (m->caller == NULL)
        return map_call(c, e, out);
    rc = ch__caller_run(m->caller, c, number, e, out);
    ch__element_free(e);
    return rc;
}

static void map_make(ch_cursor *c, ch_data_job *job)
{
    for (int k = 0; k < job->n && !is_cancelled(c); k++) {
        ch_element *e = job->result[k].element, *out = NULL;
        ch_status   rc;

        if (e == NULL)
            continue;
        job->result[k].element = NULL;
        rc = map_one(c, job->first + k, e, &out);
        if (rc == CH_OK)
            job->result[k].element = out;
        else
            ch__job_result_fail(&job->result[k], at_element(rc, c, job->first + k));
    }
}

static ch_status map_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {ch__workqueue_pull_input, map_make};
    const Cohort__Map            *a = CH_ATTRS(c, Cohort__Map);
    ch_workqueue_options          opt = {.at_once = is_serial(c->dataset) ? 1 : a->parallel,
                                         .unordered = a->unordered != 0 || c->it->unordered,
                                         .per_result = c->dataset->graph != NULL};

    return open_workqueue(c, &ops, &opt);
}

static bool map_is_unordered(const ch_dataset *d)
{
    return CH_ATTRS_OF(d, Cohort__Map)->unordered != 0;
}

const ch_stage ch__stage_map = {
    .name = "map",
    .version = 1,
    .traits = CH_DIVIDES | CH_ONE_BY_ONE,
    .n_in = 1,
    .attrs = &cohort__map__descriptor,
    .cursor_bytes = sizeof(mapping),
    .infer = map_infer,
    .is_unordered = map_is_unordered,
    .open = map_open,
    CH_QUEUED_STAGE,
    .close = map_close,
};

static Cohort__Map map_attrs(const ch_map_options *opt)
{
    Cohort__Map a = COHORT__MAP__INIT;

    if (opt != NULL) {
        a.parallel = opt->parallel;
        a.unordered = opt->unordered;
    }
    return a;
}

/* Creates a stage with one input and a recorded step. Takes over `d`. Returns NULL on an
 * error. */
static ch_dataset *of_step(const ch_stage *stage, const ProtobufCMessage *attrs, ch_dataset *d,
                           ch_step_fn step, void *arg)
{
    ch_graph *g = NULL;

    if (d == NULL || ch__call_record(stage->name, step, arg, d, &g) != CH_OK) {
        ch_dataset_unref(d);
        return NULL;
    }
    return ch__dataset_new(stage,
                           &(ch_dataset_make){.attrs = attrs, .n_in = 1, .in = &d, .graph = g});
}

/* Fails because the function is NULL. Takes over `d`. */
static ch_dataset *no_function(const ch_stage *stage, ch_dataset *d)
{
    (void)ch__fail(CH_INVALID_ARGUMENT, "%s: the function is NULL", stage->name);
    ch_dataset_unref(d);
    return NULL;
}

ch_dataset *ch_dataset_map(ch_dataset *d, ch_step_fn step, void *arg, const ch_map_options *opt)
{
    Cohort__Map a = map_attrs(opt);

    return of_step(&ch__stage_map, &a.base, d, step, arg);
}

ch_dataset *ch_dataset_map_call(ch_dataset *d, ch_map_fn fn, void *arg, int n_spec,
                                const ch_tensor_spec *spec, const ch_map_options *opt)
{
    Cohort__Map  a = map_attrs(opt);
    ch_data_call call = {.map = fn, .arg = arg};
    ch_arena     arena = {0};
    ch_status    rc = CH_OK;

    if (fn == NULL)
        return no_function(&ch__stage_map, d);
    if (d != NULL)
        rc = ch__spec_encode(&arena, n_spec, spec, &a.gives);
    d = ch__dataset_new(
        &ch__stage_map,
        &(ch_dataset_make){.rc = rc, .attrs = &a.base, .n_in = 1, .in = &d, .call = &call});
    ch__arena_drop(&arena);
    return d;
}

/* ---- filter, take_while ---- */

static ch_status filter_infer(ch_dataset *d)
{
    ch_status rc = ch__dataset_like(d, d->in[0]);

    d->cardinality = d->cardinality == 0 ? 0 : CH_UNKNOWN;
    if (rc != CH_OK || d->call.filter != NULL)
        return rc;
    rc = ch__call_check(d, d->graph, d->in[0]);
    if (rc == CH_OK &&
        (d->graph->n_outputs != 1 || d->graph->output[0].node->dtype != CH_BOOL ||
         d->graph->output[0].node->dims.rank != 0))
        rc = ch__dataset_fail(d, "the step must have exactly one output, a bool scalar");
    return rc;
}

/* Calls the C function on a shared copy of the element. */
static ch_status call_filter(ch_cursor *c, const ch_element *e, bool *keep)
{
    const ch_data_call *call = &c->dataset->call;
    ch_element         *shared = NULL;
    ch_tuple           *in = NULL;
    ch_status           rc = ch__element_share(e, &shared);

    if (rc == CH_OK)
        rc = ch__element_to_tuple(shared, c->dataset->in[0]->spec, &in);
    if (rc == CH_OK && (rc = lock_call(c)) == CH_OK) {
        uint64_t mark = ch__fail_mark();

        rc = ch__fail_since(mark, call->filter(call->arg, in, keep));
        unlock_call(c);
    }
    ch_tuple_unref(in);
    return rc;
}

/* Calls the step or the C function. Sets *keep to its result. Borrows `e`. */
static ch_status run_filter(ch_cursor *c, int64_t number, const ch_element *e, bool *keep)
{
    mapping    *m = (mapping *)c;
    ch_element *result = NULL;
    ch_status   rc;

    if (m->caller == NULL)
        return call_filter(c, e, keep);
    rc = ch__caller_run(m->caller, c, number, e, &result);
    if (rc == CH_OK)
        *keep = *(const bool *)result->part[0].data;
    ch__element_free(result);
    return rc;
}

/* Returns true if result k of the job stays: the function returned true, the function failed
 * and the result is now the error, or the result was an error already. */
static bool keeps(ch_cursor *c, ch_data_job *job, int k)
{
    bool      keep = true;
    ch_status rc = CH_OK;

    if (job->result[k].element != NULL)
        rc = run_filter(c, job->first + k, job->result[k].element, &keep);
    if (rc != CH_OK)
        ch__job_result_fail(&job->result[k], at_element(rc, c, job->first + k));
    return rc != CH_OK || keep;
}

static void filter_make(ch_cursor *c, ch_data_job *job)
{
    for (int k = 0; k < job->n && !is_cancelled(c); k++)
        if (!keeps(c, job, k))
            ch__job_result_drop(&job->result[k]);
    ch__data_job_close_gaps(job);
}

static ch_status filter_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {ch__workqueue_pull_input, filter_make};

    return open_workqueue(c, &ops,
                          &(ch_workqueue_options){.at_once = c->dataset->call.filter != NULL,
                                                  .unordered = c->it->unordered});
}

const ch_stage ch__stage_filter = {
    .name = "filter",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_DIVIDES,
    .n_in = 1,
    .cursor_bytes = sizeof(mapping),
    .infer = filter_infer,
    .open = filter_open,
    CH_QUEUED_STAGE,
    .close = map_close,
};

/* Ends the job at the first element for which the function is false. is_last ends the stage
 * there; results of later jobs do not count. */
static void take_while_make(ch_cursor *c, ch_data_job *job)
{
    for (int k = 0; k < job->n && !is_cancelled(c); k++) {
        if (keeps(c, job, k))
            continue;
        for (int rest = k; rest < job->n; rest++)
            ch__job_result_drop(&job->result[rest]);
        job->n = k;
        job->is_last = true;
    }
}

static ch_status take_while_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {ch__workqueue_pull_input, take_while_make};

    return open_workqueue(c, &ops,
                          &(ch_workqueue_options){.at_once = c->dataset->call.filter != NULL});
}

const ch_stage ch__stage_take_while = {
    .name = "take_while",
    .version = 1,
    .traits = CH_DIVIDES_IF_ASKED,
    .n_in = 1,
    .cursor_bytes = sizeof(mapping),
    .infer = filter_infer,
    .open = take_while_open,
    CH_QUEUED_STAGE,
    .close = map_close,
};

static ch_dataset *of_filter(const ch_stage *stage, ch_dataset *d, ch_filter_fn fn, void *arg)
{
    ch_data_call call = {.filter = fn, .arg = arg};

    if (fn == NULL)
        return no_function(stage, d);
    return ch__dataset_new(stage, &(ch_dataset_make){.n_in = 1, .in = &d, .call = &call});
}

ch_dataset *ch_dataset_filter(ch_dataset *d, ch_step_fn step, void *arg)
{
    return of_step(&ch__stage_filter, NULL, d, step, arg);
}

ch_dataset *ch_dataset_filter_call(ch_dataset *d, ch_filter_fn fn, void *arg)
{
    return of_filter(&ch__stage_filter, d, fn, arg);
}

ch_dataset *ch_dataset_take_while(ch_dataset *d, ch_step_fn step, void *arg)
{
    return of_step(&ch__stage_take_while, NULL, d, step, arg);
}

ch_dataset *ch_dataset_take_while_call(ch_dataset *d, ch_filter_fn fn, void *arg)
{
    return of_filter(&ch__stage_take_while, d, fn, arg);
}
