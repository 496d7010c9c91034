/* strategy/parameter_server_per_worker.c -- variables with a copy on each worker.
 *
 * The program has a copy of a per-worker variable in this process, and an initial value that
 * the workers' copies begin with. A step that runs on a worker has the variable as an input
 * (the worker's value when the step begins) and as a result (the value after the step). So the
 * step plan (job/step_plan.h) contains no such variables, and a step that fails or is cancelled
 * changes no copy.
 *
 * A variable of Default becomes an input in the same way. Its value is sent with the step
 * (parameter_server_function.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "graph/extract.h"
#include "strategy/parameter_server.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

/* ---- storage ---- */

/* Copies a tensor to a device. NULL is the current device. */
static ch_status copy_on(ch_device *device, const ch_tensor *t, ch_tensor **out)
{
    ch_tensor *copy = NULL;
    ch_status  rc = ch_tensor_new_on(device, t->dtype, t->shape, &copy);

    if (rc == CH_OK)
        rc = ch_tensor_copy(t, copy);
    if (rc == CH_OK)
        *out = copy;
    else
        ch_tensor_unref(copy);
    return rc;
}

ch_status ch__ps_per_worker_create(ch_ps *ps, ch_var *v, const ch_tensor *initial)
{
    ch_ps_var *s = ch__calloc(1, sizeof(*s));
    ch_status  rc = s == NULL ? ch__fail_memory("a variable") : CH_OK;

    if (rc == CH_OK)
        rc = copy_on(ps->own_device, initial, &s->initial);
    if (rc == CH_OK)
        rc = copy_on(ps->own_device, initial, &v->copy[0]);
    if (rc != CH_OK) {
        if (s != NULL)
            ch_tensor_unref(s->initial);
        ch__free(s);
        return rc;
    }
    s->ps = ps;
    s->number = ch__coord_new_numbers(ps->coord, 1);
    v->storage = s;
    return CH_OK;
}

void ch__ps_per_worker_free(ch_ps_var *s)
{
    ch__coord_forget_per_worker(s->ps->coord, s->number);
    ch_tensor_unref(s->initial);
    ch__free(s);
}

/* Workers create a copy when they receive a step function with a number that they do not have.
 * So a new number starts all copies anew, and step functions with the old number are replaced
 * because the generation changes. */
void ch__ps_per_worker_restart(ch_var *v, ch_tensor *initial)
{
    ch_ps_var *s = v->storage;

    ch__row_marks_add_region(v->marks, NULL);
    if (ch_tensor_bytes(initial) > 0)
        memcpy(v->copy[0]->data, initial->data, ch_tensor_bytes(initial));
    ch__coord_forget_per_worker(s->ps->coord, s->number);
    ch_tensor_unref(s->initial);
    s->initial = ch_tensor_ref(initial);
    s->number = ch__coord_new_numbers(s->ps->coord, 1);
    atomic_fetch_add(&s->ps->strategy->generation, 1);
}

/* ---- in steps ---- */

/* Returns true if the graph assigns to the variable. */
static bool is_written(const ch_resource *r)
{
    return r->value != r->read;
}

/* The nodes that become inputs and results of the worker's graph. */
typedef struct boundary {
    const ch_node **in, **out;
    int            *resource; /* indices of the resources that stay resources */
    unsigned char  *all;      /* 1 for every value of the graph: all calls are copied */
} boundary;

/* Fills the lists in the order that ch__ps_worker_graph documents. */
static void find_boundary(const ch_graph *g, ch_var *const *var, const boundary *o,
                          ch_extract *e)
{
    for (int i = 0; i < g->n_inputs; i++)
        o->in[e->n_in++] = g->input[i];
    for (int i = 0; i < g->n_outputs; i++)
        o->out[e->n_out++] = g->output[i].node;
    for (int i = 0; i < g->n_resources; i++)
        if (ch__is_borrowed(&g->resource[i]))
            o->in[e->n_in++] = g->resource[i].read;
        else if (!ch__ps_is_per_worker(var[i]))
            o->resource[e->n_resources++] = i;
    for (int i = 0; i < g->n_resources; i++) {
        const ch_resource *r = &g->resource[i];

        if (ch__is_borrowed(r) || !ch__ps_is_per_worker(var[i]))
            continue;
        if (r->read != NULL)
            o->in[e->n_in++] = r->read;
        if (is_written(r))
            o->out[e->n_out++] = r->value;
    }
    memset(o->all, 1, (size_t)g->n_values);
}

ch_status ch__ps_worker_graph(const ch_graph *g, ch_var *const *var, ch_graph **out)
{
    size_t     n = (size_t)g->n_resources;
    boundary   o = {.in = ch__calloc((size_t)g->n_inputs + n, sizeof(ch_node *)),
                    .out = ch__calloc((size_t)g->n_outputs + n, sizeof(ch_node *)),
                    .resource = ch__calloc(n, sizeof(int)),
                    .all = ch__calloc((size_t)g->n_values + 1, 1)};
    ch_extract e = {
        .name = g->name, .take = o.all, .in = o.in, .out = o.out, .resource = o.resource};
    ch_status rc = o.in == NULL || o.out == NULL || o.resource == NULL || o.all == NULL
                       ? ch__fail_memory("a step")
                       : CH_OK;

    if (rc == CH_OK) {
        find_boundary(g, var, &o, &e);
        rc = ch__graph_extract(g, &e, out);
    }
    ch__free(o.in);
    ch__free(o.out);
    ch__free(o.resource);
    ch__free(o.all);
    return rc;
}

int ch__ps_per_worker_list(const ch_graph *g, ch_var *const *var, ch_per_worker_spec *out)
{
    int n = 0;

    for (int i = 0; i < g->n_resources; i++) {
        const ch_ps_var *s = var[i]->storage;

        if (!ch__is_borrowed(&g->resource[i]) && ch__ps_is_per_worker(var[i]))
            out[n++] = (ch_per_worker_spec){.number = s->number,
                                            .is_read = g->resource[i].read != NULL,
                                            .is_written = is_written(&g->resource[i]),
                                            .initial = s->initial};
    }
    return n;
}

/* ---- reading all copies ---- */

/* Makes a value from a worker's copy, or from the initial value if `given` is NULL. The tensor
 * is copied because the worker still uses its own. */
static ch_status value_of(const ch_var *v, const ch_tensor *given, ch_value **out)
{
    const ch_ps_var *s = v->storage;
    ch_tensor       *t = NULL;
    ch_status        rc;

    if (given != NULL && (given->dtype != v->dtype || !ch_shape_equal(given->shape, v->shape)))
        return ch__fail(CH_INTERNAL, "a worker sent another dtype or shape for %s", v->name);
    rc = copy_on(NULL, given != NULL ? given : s->initial, &t);
    if (rc == CH_OK)
        rc = ch_value_new(CH_PLAIN, 1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

/* Makes a tuple with the copy of each of n workers. */
static ch_status tuple_of(const ch_var *v, int n, ch_tensor *const *given, ch_tuple **out)
{
    ch_value **value = ch__calloc((size_t)n + 1, sizeof(ch_value *));
    ch_status  rc = value == NULL ? ch__fail_memory("values") : CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = value_of(v, given[i], &value[i]);
    if (rc == CH_OK)
        rc = ch_tuple_new(n, value, NULL, out);
    for (int i = 0; value != NULL && i < n; i++)
        ch_value_unref(value[i]);
    ch__free(value);
    return rc;
}

ch_status ch__ps_per_worker_read(ch_var *v, ch_tuple **out)
{
    const ch_ps_var *s = v->storage;
    ch_tensor      **given = NULL;
    int              n = 0;
    ch_status        rc = ch__coord_read_per_worker(s->ps->coord, s->number, &n, &given);

    if (rc == CH_OK)
        rc = tuple_of(v, n, given, out);
    for (int i = 0; i < n; i++)
        ch_tensor_unref(given[i]);
    ch__free(given);
    return rc;
}
