/* data/map.c -- stages that do something with each element: map, filter, take_while, select.
 *
 * What is done is a recorded step or a C function of the program's; each element is by itself, so
 * threads share them (data/workqueue.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/call.h"
#include "data/iterator.h"

typedef struct mapping {
    ch_cursor  base;
    ch_caller *caller; /* of a step; NULL: a C function */
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

/* Which element it was, for those who look for it. */
static ch_status at_element(ch_status rc, const ch_cursor *c, int64_t place)
{
    return ch__fail_at(rc, "%s, element %lld", c->stage->name, (long long)place);
}

/* Nobody takes what is made now, and somebody waits: a call may take long. */
static bool is_let_go(const ch_cursor *c)
{
    return atomic_load_explicit(&c->it->stops, memory_order_relaxed);
}

/* ---- map ---- */

/* A C function that did not ask for more is called by one thread at a time. */
static bool takes_turns(const ch_dataset *d)
{
    return d->call.filter != NULL ||
           (d->call.map != NULL && CH_ATTRS_OF(d, Cohort__Map)->parallel <= 1);
}

/* CANCELLED: nobody wants the result any more; there is no turn to end. */
static ch_status begin_turn(const ch_cursor *c)
{
    if (!takes_turns(c->dataset))
        return CH_OK;
    pthread_mutex_lock(&c->dataset->call.turn->lock);
    if (!is_let_go(c))
        return CH_OK;
    pthread_mutex_unlock(&c->dataset->call.turn->lock);
    return ch__fail(CH_CANCELLED, "the iterator was let go");
}

static void end_turn(const ch_cursor *c)
{
    if (takes_turns(c->dataset))
        pthread_mutex_unlock(&c->dataset->call.turn->lock);
}

static ch_status map_infer(ch_dataset *d)
{
    const Cohort__Map *a = CH_ATTRS_OF(d, Cohort__Map);
    ch_status          rc = CH_OK;

    if (a->parallel < 0 || a->parallel > 1024)
        return ch__dataset_fail(d, "%d calls at the same time, want 0 to 1024", a->parallel);
    if (d->call.map != NULL) {
        rc = ch__dataset_warn_once(d, a->gives);
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

/* By a C function: as a tuple and back. */
static ch_status map_call(ch_cursor *c, ch_element *e, ch_element **out)
{
    const ch_data_call *call = &c->dataset->call;
    ch_tuple           *in = NULL, *given = NULL;
    ch_status           rc = ch__element_to_tuple(e, c->dataset->in[0]->spec, &in);

    if (rc == CH_OK && (rc = begin_turn(c)) == CH_OK) {
        uint64_t mark = ch__fail_mark();

        rc = ch__fail_since(mark, call->map(call->arg, in, &given));
        end_turn(c);
    }
    ch_tuple_unref(in);
    if (rc == CH_OK && given == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "the function gave nothing");
    if (rc == CH_OK)
        rc = ch__element_of_tuple(given, out);
    ch_tuple_unref(given);
    if (rc == CH_OK && (rc = ch__dataset_check(c->dataset, *out)) != CH_OK)
        ch__element_free(*out);
    return rc;
}

static ch_status map_one(ch_cursor *c, int64_t place, ch_element *e, ch_element **out)
{
    mapping  *m = (mapping *)c;
    ch_status rc;

    if (m->caller == NULL)
        return map_call(c, e, out);
    rc = ch__caller_run(m->caller, c, place, e, out);
    ch__element_free(e);
    return rc;
}

static void map_make(ch_cursor *c, ch_data_job *i)
{
    for (int k = 0; k < i->n && !is_let_go(c); k++) {
        ch_element *e = i->slot[k].element, *out = NULL;
        ch_status   rc;

        if (e == NULL)
            continue;
        i->slot[k].element = NULL;
        rc = map_one(c, i->first + k, e, &out);
        if (rc == CH_OK)
            i->slot[k].element = out;
        else
            ch__job_result_fail(&i->slot[k], at_element(rc, c, i->first + k));
    }
}

static ch_status map_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {ch__workqueue_pull_input, map_make};
    const Cohort__Map            *a = CH_ATTRS(c, Cohort__Map);
    ch_workqueue_options          opt = {.at_once = takes_turns(c->dataset) ? 1 : a->parallel,
                                         .unordered = a->unordered != 0 || c->it->unordered};

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

/* A stage of one input with a recorded step. */
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

static ch_dataset *no_function(const ch_stage *stage, ch_dataset *d)
{
    (void)ch__fail(CH_INVALID_ARGUMENT, "%s: no function", stage->name);
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
        rc = ch__dataset_fail(d, "its step should have one output, a bool scalar");
    return rc;
}

static ch_status ask_call(ch_cursor *c, const ch_element *e, bool *keep)
{
    const ch_data_call *call = &c->dataset->call;
    ch_element         *shared = NULL;
    ch_tuple           *in = NULL;
    ch_status           rc = ch__element_share(e, &shared);

    if (rc == CH_OK)
        rc = ch__element_to_tuple(shared, c->dataset->in[0]->spec, &in);
    if (rc == CH_OK && (rc = begin_turn(c)) == CH_OK) {
        uint64_t mark = ch__fail_mark();

        rc = ch__fail_since(mark, call->filter(call->arg, in, keep));
        end_turn(c);
    }
    ch_tuple_unref(in);
    return rc;
}

static ch_status ask(ch_cursor *c, int64_t place, const ch_element *e, bool *keep)
{
    mapping    *m = (mapping *)c;
    ch_element *answer = NULL;
    ch_status   rc;

    if (m->caller == NULL)
        return ask_call(c, e, keep);
    rc = ch__caller_run(m->caller, c, place, e, &answer);
    if (rc == CH_OK)
        *keep = *(const bool *)answer->part[0].data;
    ch__element_free(answer);
    return rc;
}

/* What is in the slot stays there, be it an error. */
static bool keeps(ch_cursor *c, ch_data_job *i, int k)
{
    bool      keep = true;
    ch_status rc = CH_OK;

    if (i->slot[k].element != NULL)
        rc = ask(c, i->first + k, i->slot[k].element, &keep);
    if (rc != CH_OK)
        ch__job_result_fail(&i->slot[k], at_element(rc, c, i->first + k));
    return rc != CH_OK || keep;
}

static void filter_make(ch_cursor *c, ch_data_job *i)
{
    for (int k = 0; k < i->n && !is_let_go(c); k++)
        if (!keeps(c, i, k))
            ch__job_result_drop(&i->slot[k]);
    ch__data_job_close_gaps(i);
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

/* What was pulled behind the end is passed over with it. */
static void take_while_make(ch_cursor *c, ch_data_job *i)
{
    for (int k = 0; k < i->n && !is_let_go(c); k++) {
        if (keeps(c, i, k))
            continue;
        for (int rest = k; rest < i->n; rest++)
            ch__job_result_drop(&i->slot[rest]);
        i->n = k;
        i->is_last = true;
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
