/* graph/run.c -- a run of a function: collects inputs, finds the program, starts it, and
 * returns the results.
 *
 * Strategies call ch__run, ch__run_record and ch__run_declare; a ch_launch holds the state of
 * one call. graph/recording.c and graph/function.c provide the recording and the prepared
 * graph, graph/launch.c runs it on every replica.
 *
 * Invariants:
 *   1. If the input shapes were seen before, a run allocates nothing, unless an input must be
 *      made contiguous or moved to the device of its replica.
 *   2. Borrowed variables are fetched before any device is held, because the fetch may wait for
 *      another task.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/run.h"

#include <string.h>

#include "graph/launch.h"

/* ---- inputs ---- */

/* Sets *out to input i of replica r, referenced: contiguous and on the replica's device, or
 * unchanged if `as_is`. */
static ch_status collect_input(const ch_launch *l, int r, int i, bool as_is, ch_tensor **out)
{
    const ch_value *v = ch_tuple_at(l->run->in, i);
    ch_tensor      *t = ch_value_at(v, r), *there;
    ch_status       rc;

    if (t == NULL || (ch_value_count(v) > l->run->n_local && ch_value_count(v) > 1))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: input %d has %d components for %d replicas; want 1, or a "
                        "component for each replica",
                        l->run->function->name, i, ch_value_count(v), l->run->n_local);
    if (as_is) {
        *out = ch_tensor_ref(t);
        return CH_OK;
    }
    rc = ch_tensor_to(t, l->run->device[r * ch__run_cores(l->run)], &there);
    if (rc != CH_OK)
        return rc;
    rc = ch_tensor_contiguous(there, out);
    ch_tensor_unref(there);
    return rc;
}

static ch_status collect_inputs(ch_launch *l, bool as_is)
{
    ch_args *a = &l->args;
    int      n;

    a->n_in = l->run->in != NULL ? ch_tuple_count(l->run->in) : 0;
    a->n_local = l->run->n_local;
    a->n_replicas = l->run->n_replicas;
    n = a->n_in * a->n_local;
    a->tensor = l->few_tensors;
    a->shape = l->few_shapes;
    if (n > CH_LAUNCH_FEW) {
        a->tensor = ch__calloc((size_t)n, sizeof(*a->tensor));
        a->shape = ch__calloc((size_t)n, sizeof(*a->shape));
        if (a->tensor == NULL || a->shape == NULL)
            return ch__fail_memory("inputs");
    }
    memset(a->tensor, 0, (size_t)n * sizeof(*a->tensor));
    for (int r = 0; r < a->n_local; r++)
        for (int i = 0; i < a->n_in; i++) {
            ch_status rc = collect_input(l, r, i, as_is, &a->tensor[r * a->n_in + i]);

            if (rc != CH_OK)
                return rc;
        }
    return CH_OK;
}

static void drop_inputs(ch_launch *l)
{
    for (int i = 0; l->args.tensor != NULL && i < l->args.n_in * l->args.n_local; i++)
        ch_tensor_unref(l->args.tensor[i]);
    if (l->args.tensor != l->few_tensors) {
        ch__free(l->args.tensor);
        ch__free(l->args.shape);
    }
}

/* ---- the program ---- */

static ch_status check_not_recording(ch_function *f)
{
    if (atomic_load(&f->is_recording) && pthread_equal(f->recorder, pthread_self()))
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "%s: the function is being recorded; a step must not run its own function",
            f->name);
    return CH_OK;
}

/* Counts a run with graph g and returns its number. The function's lock must be held. */
static int64_t count_run(ch_function *f, const ch_run *run, ch_graph *g)
{
    if (f->last_graph != g) {
        ch_graph_unref(f->last_graph);
        f->last_graph = ch_graph_ref(g);
    }
    int64_t nth = atomic_fetch_add_explicit(&f->n_runs, 1, memory_order_relaxed);
    return run->step >= 0 ? run->step : nth;
}

/* Sets l->p to the prepared graph for the inputs, referenced, and *number to the number of the
 * run. */
static ch_status find_program(ch_launch *l, int64_t *number)
{
    ch_function *f = l->run->function;
    ch_graph    *g = NULL;
    const bool  *may_have_room = NULL;
    ch_status    rc = check_not_recording(f);

    if (rc != CH_OK)
        return rc;
    pthread_mutex_lock(&f->lock);
    rc = ch__function_record(f, l->run, &l->args, &g, &may_have_room);
    if (rc == CH_OK) {
        ch__function_shapes(f, g, may_have_room, &l->args);
        rc = ch__function_prepare(f, g, may_have_room, l->run, &l->args, &l->p);
    }
    if (rc == CH_OK) {
        ch__prepared_ref(l->p);
        if (f->last_prepared != l->p) {
            ch__prepared_unref(f->last_prepared);
            f->last_prepared = ch__prepared_ref(l->p);
        }
        *number = count_run(f, l->run, g);
        l->see = f->see;
        l->see_arg = f->see_arg;
    } else {
        l->p = NULL;
    }
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static ch_status declare(ch_function *f, const ch_run *run, const ch_args *a)
{
    ch_graph   *g = NULL;
    const bool *may_have_room = NULL;
    ch_status   rc;

    if (f->fixed_graph != NULL)
        return ch__fail(CH_FAILED_PRECONDITION, "declare %s: the function has a graph already",
                        f->name);
    if (f->static_rows && run->rows_unknown)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "declare %s: the step needs the number of rows "
                        "(ch_function_static_rows), but got -1; give the number",
                        f->name);
    rc = ch__function_record(f, run, a, &g, &may_have_room);
    if (rc == CH_OK)
        rc = ch__function_set_graph(f, g);
    if (rc != CH_OK)
        return rc;
    ch_graph_unref(f->last_graph);
    f->last_graph = ch_graph_ref(g);
    return CH_OK;
}

ch_status ch__run_declare(const ch_run *run)
{
    ch_launch l = {.run = run};
    ch_status rc = collect_inputs(&l, false);

    if (rc == CH_OK) {
        pthread_mutex_lock(&run->function->lock);
        rc = declare(run->function, run, &l.args);
        pthread_mutex_unlock(&run->function->lock);
    }
    drop_inputs(&l);
    return rc;
}

ch_status ch__run_record(const ch_run *run, ch_graph **out, int64_t *number)
{
    ch_launch    l = {.run = run};
    ch_function *f = run->function;
    ch_graph    *g = NULL;
    const bool  *may_have_room = NULL;
    ch_status    rc = collect_inputs(&l, true);

    if (rc == CH_OK)
        rc = check_not_recording(f);
    if (rc == CH_OK) {
        pthread_mutex_lock(&f->lock);
        rc = ch__function_record(f, run, &l.args, &g, &may_have_room);
        if (rc == CH_OK) {
            *out = ch_graph_ref(g);
            *number = count_run(f, run, g);
        }
        pthread_mutex_unlock(&f->lock);
    }
    drop_inputs(&l);
    return rc;
}

/* ---- borrowed variables ---- */

/* Fetches the values of borrowed variables for this run. */
static ch_status fetch_borrowed(ch_launch *l)
{
    const ch_graph *g = l->p->graph;
    int             n = g->n_resources * l->run->n_local;
    ch_status       rc = CH_OK;

    for (int i = 0; i < g->n_resources && rc == CH_OK; i++) {
        if (!ch__is_borrowed(&g->resource[i]))
            continue;
        if (l->borrowed == NULL && n <= CH_LAUNCH_FEW)
            l->borrowed = memset(l->few_borrowed, 0, sizeof(l->few_borrowed));
        if (l->borrowed == NULL)
            l->borrowed = ch__calloc((size_t)n, sizeof(*l->borrowed));
        rc = l->borrowed == NULL ? ch__fail_memory("a run")
                                 : l->run->ops->borrow(l->run, &g->resource[i],
                                                       &l->borrowed[i * l->run->n_local]);
    }
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "%s", l->run->function->name);
}

static void drop_borrowed(ch_launch *l)
{
    int n = l->p != NULL ? l->p->graph->n_resources * l->run->n_local : 0;

    for (int i = 0; i < n && l->borrowed != NULL; i++)
        ch_tensor_unref(l->borrowed[i]);
    if (l->borrowed != l->few_borrowed)
        ch__free(l->borrowed);
}

/* ---- strings ---- */

static bool gives_strings(const ch_graph *g)
{
    for (int i = 0; i < g->n_outputs; i++)
        if (g->output[i].node->dtype == CH_STR)
            return true;
    return false;
}

static ch_status copy_value(const ch_value *v, ch_value **out)
{
    int         n = ch_value_count(v);
    ch_tensor **t = ch__calloc((size_t)n, sizeof(*t));
    ch_status   rc = t == NULL ? ch__fail_memory("results") : CH_OK;

    for (int r = 0; r < n && rc == CH_OK; r++) {
        const ch_tensor *from = ch_value_at(v, r);

        rc = ch_tensor_new_on(ch_tensor_device(from), from->dtype, from->shape, &t[r]);
        if (rc == CH_OK)
            rc = ch_tensor_copy(from, t[r]);
    }
    if (rc == CH_OK)
        rc = ch_value_new(ch_value_kind_of(v), n, t, out);
    for (int r = 0; t != NULL && r < n; r++)
        ch_tensor_unref(t[r]);
    ch__free(t);
    return rc;
}

/* Replaces string results by copies. A string result is an unchanged input, and its characters
 * belong to that input. */
static ch_status copy_strings(const ch_graph *g, ch_tuple **results)
{
    size_t       n = (size_t)g->n_outputs;
    ch_value   **v = ch__calloc(n, sizeof(*v));
    const char **name = ch__calloc(n, sizeof(*name));
    ch_tuple    *own = NULL;
    ch_status    rc = v == NULL || name == NULL ? ch__fail_memory("results") : CH_OK;

    for (int i = 0; i < g->n_outputs && rc == CH_OK; i++) {
        ch_value *was = ch_tuple_at(*results, i);

        name[i] = g->output[i].name;
        if (g->output[i].node->dtype == CH_STR)
            rc = copy_value(was, &v[i]);
        else
            v[i] = ch_value_ref(was);
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(g->n_outputs, v, name, &own);
    for (size_t i = 0; v != NULL && i < n; i++)
        ch_value_unref(v[i]);
    ch__free(v);
    ch__free(name);
    ch_tuple_unref(*results);
    *results = own;
    return rc;
}

static ch_status return_results(ch_launch *l, ch_tuple **out)
{
    ch_tuple *results = ch__result_set_tuple(l->result_set);
    ch_status rc = gives_strings(l->p->graph) ? copy_strings(l->p->graph, &results) : CH_OK;

    if (rc == CH_OK)
        *out = results;
    return rc;
}

ch_status ch__run(const ch_run *run, ch_tuple **out)
{
    ch_launch l;
    int64_t   number = 0;
    ch_status rc;

    if (ch__run_is_on_thread())
        return ch__fail(CH_FAILED_PRECONDITION,
                        "run %s: a step is running on this thread; a host function must not "
                        "run another step",
                        run->function->name);
    l.run = run;
    l.p = NULL;
    l.result_set = NULL;
    l.clock = NULL;
    l.borrowed = NULL;
    l.args = (ch_args){0};
    ch__fault_clear(&l.fault);
    rc = collect_inputs(&l, false);
    if (rc == CH_OK)
        rc = find_program(&l, &number);
    if (rc == CH_OK)
        rc = fetch_borrowed(&l);
    if (rc == CH_OK)
        rc = ch__result_set_get(l.p, &l.result_set);
    if (rc == CH_OK)
        rc = ch__launch(&l, number);
    if (l.result_set != NULL && (rc != CH_OK || out == NULL))
        ch_tuple_unref(ch__result_set_tuple(l.result_set));
    else if (rc == CH_OK)
        rc = return_results(&l, out);
    drop_inputs(&l);
    drop_borrowed(&l);
    ch__prepared_unref(l.p);
    return rc;
}
