/* data/call.c -- runs recorded steps on elements.
 *
 * The first half records a step as a graph and checks graphs that were decoded. The second half
 * runs a graph: a ch_caller has a list of idle runners, each a program specialised for the
 * shapes of the inputs. The stages of data/map.c use both.
 *
 * Invariants:
 *   1. A thread removes a runner from the list, uses it alone, and returns it. The lock guards
 *      only the list.
 *   2. Steps do not compute strings: an output of strings is an unchanged input.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/call.h"

#include <pthread.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/rows.h"
#include "graph/program.h"
#include "graph/step.h"

/* ---- recording ---- */

/* Returns true if the part is the values or the splits of a ragged component. The first size of
 * such a part is not the number of rows. */
static bool is_ragged(const ch_dataset *d, int part)
{
    return ch__rows_splits_of(d, part) >= 0 || ch__rows_values_of(d, part) >= 0;
}

/* Returns the symbol for the rows of a batch, which all parts share. *rows is its number; 0:
 * the symbol is not allocated yet. */
static ch_dim rows_symbol(int *n_symbols, int *rows)
{
    if (*rows == 0)
        *rows = ++*n_symbols;
    return (ch_dim){1, *rows};
}

/* Returns the sizes of a part. Unknown sizes are symbols: the same symbol for the rows of all
 * parts of a batch, and a new symbol for every other size. */
static ch_dims dims_of(const ch_dataset *d, int part, int *n_symbols, int *rows)
{
    ch_shape s = d->spec[part].shape;
    ch_dims  dims = {.rank = s.rank};

    for (int i = 0; i < s.rank; i++) {
        if (s.dim[i] >= 0) {
            dims.dim[i] = (ch_dim){s.dim[i], 0};
        } else if (i == 0 && d->same_rows && !is_ragged(d, part)) {
            dims.dim[i] = rows_symbol(n_symbols, rows);
        } else {
            dims.dim[i] = (ch_dim){1, ++*n_symbols};
        }
    }
    return dims;
}

static ch_status record(ch_step *s, ch_step_fn step, void *arg, const ch_dataset *in,
                        ch_graph **out)
{
    int n_symbols = 0, rows = 0;

    for (int i = 0; i < in->n_parts; i++) {
        ch_input_attrs a = {.dtype = in->spec[i].dtype};

        a.dims = dims_of(in, i, &n_symbols, &rows);
        if (in->same_rows && ch__rows_values_of(in, i) >= 0 && a.dims.dim[0].sym != 0)
            a.rows = (ch_dims){.rank = 1, .dim = {rows_symbol(&n_symbols, &rows)}};
        s->graph->n_symbols = n_symbols;
        ch__step_add_input_of(s, in->spec[i].name, &a);
    }
    step(s, arg);
    return ch__step_finish(s, out);
}

ch_status ch__call_record(const char *name, ch_step_fn step, void *arg, const ch_dataset *in,
                          ch_graph **out)
{
    ch_step  *s = NULL;
    ch_status rc;

    if (step == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the step is NULL", name);
    rc = ch__step_new(name, NULL, &s);
    if (rc != CH_OK)
        return rc;
    rc = record(s, step, arg, in, out);
    ch__step_free(s);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "recording %s", name);
}

/* Returns the index of the input that output i passes on unchanged; -1: none. */
static int find_passed_input(const ch_graph *g, int i)
{
    for (int k = 0; k < g->n_inputs; k++)
        if (g->output[i].node == g->input[k])
            return k;
    return -1;
}

ch_status ch__call_check(const ch_dataset *d, const ch_graph *g, const ch_dataset *in)
{
    if (g == NULL)
        return ch__dataset_fail(d, "the stage has no step");
    if (g->n_resources > 0)
        return ch__dataset_fail(
            d,
            "its step uses variable \"%s\"; steps of a dataset pipeline must not use variables",
            g->resource[0].name);
    if (g->n_inputs != in->n_parts || g->n_outputs == 0)
        return ch__dataset_fail(d,
                                "its step has %d inputs and %d outputs; want an input for each "
                                "of the %d components, and at least one output",
                                g->n_inputs, g->n_outputs, in->n_parts);
    for (int i = 0; i < g->n_inputs; i++)
        if (g->input[i]->dtype != in->spec[i].dtype ||
            g->input[i]->dims.rank != in->spec[i].shape.rank)
            return ch__dataset_fail(
                d, "input %d of its step has another dtype or rank than component %d", i, i);
    for (int i = 0; i < g->n_outputs; i++)
        if (g->output[i].node->dtype == CH_STR && find_passed_input(g, i) < 0)
            return ch__dataset_fail(
                d, "output %d of its step computes strings; want an unchanged input", i);
    return CH_OK;
}

ch_tensor_spec ch__call_output(const ch_graph *g, int i)
{
    const ch_node *n = g->output[i].node;

    return (ch_tensor_spec){g->output[i].name, n->dtype, ch__dims_shape(&n->dims)};
}

bool ch__call_same_rows(const ch_dataset *d, const ch_graph *g)
{
    ch_dim rows = {0, 0};

    for (int i = 0; i < g->n_outputs; i++) {
        const ch_dims *dims = &g->output[i].node->dims;

        if (dims->rank == 0 || dims->dim[0].sym == 0 || is_ragged(d, i))
            continue;
        if (rows.sym == 0)
            rows = dims->dim[0];
        else if (rows.sym != dims->dim[0].sym || rows.n != dims->dim[0].n)
            return false;
    }
    return true;
}

/* Returns true if part i of `a` and part k of `b` are of the same kind: values of a ragged
 * component, splits, or neither. */
static bool are_alike(const ch_dataset *a, int i, const ch_dataset *b, int k)
{
    return (ch__rows_splits_of(a, i) >= 0) == (ch__rows_splits_of(b, k) >= 0) &&
           (ch__rows_values_of(a, i) >= 0) == (ch__rows_values_of(b, k) >= 0);
}

bool ch__call_keeps_rows(const ch_dataset *d)
{
    const ch_graph *g = d->graph;

    for (int i = 0; i < g->n_outputs; i++) {
        const ch_dims *out = &g->output[i].node->dims;
        bool           is_kept = false;

        for (int k = 0; out->rank > 0 && out->dim[0].sym != 0 && k < g->n_inputs; k++) {
            const ch_dims *in = &g->input[k]->dims;

            is_kept |= in->rank > 0 && are_alike(d, i, d->in[0], k) &&
                       in->dim[0].sym == out->dim[0].sym && in->dim[0].n == out->dim[0].n;
        }
        if (!is_kept)
            return false;
    }
    return true;
}

/* ---- running ---- */

/* A program for inputs of certain shapes, with its own memory. */
typedef struct runner {
    struct runner *next;
    ch_program    *program;
    ch_instance   *instance;
    char          *arena;
    const void   **input;
    void         **output;
    char         **staged;  /* for each input an aligned copy; NULL: not needed so far */
    ch_shape       shape[]; /* of each input */
} runner;

struct ch_caller {
    ch_graph       *graph;
    pthread_mutex_t lock;
    runner         *idle; /* list, the last used first */
    int             n_idle;
    int passed_input[]; /* for each output the input that it passes on unchanged; -1: none */
};

enum { MOST_IDLE = 64 };

static void runner_free(runner *r)
{
    if (r == NULL)
        return;
    for (int i = 0; r->staged != NULL && i < r->program->graph->n_inputs; i++)
        ch__free_aligned(r->staged[i]);
    if (r->instance != NULL)
        ch__instance_free(r->instance);
    ch__program_unref(r->program);
    ch__free_aligned(r->arena);
    ch__free(r->input);
    ch__free(r->output);
    ch__free(r->staged);
    ch__free(r);
}

static ch_status make_program(const ch_graph *g, const ch_shape *shape, ch_program **out)
{
    const int    variant = 0;
    ch_graph    *special = NULL;
    ch_signature sig = {.n_replicas = 1, .n_variants = 1, .variant = &variant, .shape = &shape};
    ch_status    rc = ch__specialise(g, &sig, &special);

    if (rc == CH_OK)
        rc = ch__program_new(special, &(ch_plan_options){.threads = 1}, out);
    ch_graph_unref(special);
    return rc;
}

static ch_status runner_new(const ch_graph *g, const ch_element *e, runner **out)
{
    size_t    n = (size_t)g->n_inputs;
    runner   *r = ch__calloc(1, sizeof(*r) + n * sizeof(ch_shape));
    ch_status rc;

    if (r == NULL)
        return ch__fail_memory("program of a pipeline");
    for (int i = 0; i < g->n_inputs; i++)
        r->shape[i] = ch_shape_make(e->part[i].shape.rank, e->part[i].shape.dim);
    rc = make_program(g, r->shape, &r->program);
    if (rc == CH_OK)
        rc = ch__instance_new(r->program, &r->instance);
    if (rc == CH_OK) {
        size_t bytes = r->program->arena_bytes + CH_ALIGN;

        r->arena =
            r->program->touches_part ? ch__alloc_untouched(bytes) : ch__alloc_aligned(bytes);
        r->input = ch__calloc(n + 1, sizeof(void *));
        r->staged = ch__calloc(n + 1, sizeof(char *));
        r->output = ch__calloc((size_t)g->n_outputs + 1, sizeof(void *));
        if (r->arena == NULL || r->input == NULL || r->staged == NULL || r->output == NULL)
            rc = ch__fail_memory("program of a pipeline");
    }
    if (rc == CH_OK)
        *out = r;
    else
        runner_free(r);
    return rc;
}

/* Returns true if the shapes of the element are those of the runner. */
static bool shapes_match(const runner *r, const ch_element *e)
{
    for (int i = 0; i < e->n; i++)
        if (!ch_shape_equal(r->shape[i], e->part[i].shape))
            return false;
    return true;
}

/* Removes a runner for the shapes of `e` from the list, or creates a runner. */
static ch_status get_runner(ch_caller *c, const ch_element *e, runner **out)
{
    runner *r = NULL;

    pthread_mutex_lock(&c->lock);
    for (runner **at = &c->idle; *at != NULL; at = &(*at)->next)
        if (shapes_match(*at, e)) {
            r = *at;
            *at = r->next;
            c->n_idle--;
            break;
        }
    pthread_mutex_unlock(&c->lock);
    if (r == NULL)
        return runner_new(c->graph, e, out);
    *out = r;
    return CH_OK;
}

/* Adds the runner to the list. If the list is too long, frees the least recently used
 * runner. */
static void return_runner(ch_caller *c, runner *r)
{
    runner *last = NULL;

    pthread_mutex_lock(&c->lock);
    r->next = c->idle;
    c->idle = r;
    if (++c->n_idle > MOST_IDLE) {
        runner **at = &c->idle;

        while ((*at)->next != NULL)
            at = &(*at)->next;
        last = *at;
        *at = NULL;
        c->n_idle--;
    }
    pthread_mutex_unlock(&c->lock);
    runner_free(last);
}

/* Sets the inputs of the program. Kernels need data that is aligned for its dtype, so unaligned
 * data is copied. */
static ch_status bind_inputs(runner *r, const ch_element *e)
{
    for (int i = 0; i < e->n; i++) {
        const ch_part *p = &e->part[i];
        size_t         bytes = (size_t)ch_shape_count(p->shape) * ch_dtype_bytes(p->dtype);

        if (p->dtype == CH_STR || (uintptr_t)p->data % ch_dtype_bytes(p->dtype) == 0) {
            r->input[i] = p->data;
            continue;
        }
        if (r->staged[i] == NULL && (r->staged[i] = ch__alloc_aligned(bytes + 1)) == NULL)
            return ch__fail_memory("program of a pipeline");
        memcpy(r->staged[i], p->data, bytes);
        r->input[i] = r->staged[i];
    }
    return CH_OK;
}

static size_t aligned(size_t bytes)
{
    return (bytes + CH_ALIGN - 1) & ~(size_t)(CH_ALIGN - 1);
}

/* Returns the component of strings that output i passes on; NULL: output i is not strings. */
static const ch_part *passed_strings(const ch_caller *c, int i, const ch_element *in)
{
    int k = c->passed_input[i];

    return k >= 0 && in->part[k].dtype == CH_STR ? &in->part[k] : NULL;
}

/* Returns the bytes of the array and of the contents of its strings. */
static size_t string_bytes(const ch_part *p)
{
    int64_t n = ch_shape_count(p->shape);
    size_t  bytes = (size_t)n * sizeof(ch_str);

    for (int64_t i = 0; i < n; i++)
        bytes += ((const ch_str *)p->data)[i].size;
    return bytes;
}

/* Copies strings to `to`, their contents behind the array. */
static void copy_strings(const ch_part *p, ch_str *to)
{
    int64_t       n = ch_shape_count(p->shape);
    const ch_str *from = p->data;
    char         *text = (char *)(to + n);

    for (int64_t i = 0; i < n; i++) {
        if (from[i].size > 0)
            memcpy(text, from[i].data, from[i].size);
        to[i] = (ch_str){text, from[i].size};
        text += from[i].size;
    }
}

static size_t output_bytes(const ch_caller *c, const ch_graph *g, int i, const ch_element *in)
{
    const ch_part *strings = passed_strings(c, i, in);

    return aligned(strings != NULL ? string_bytes(strings)
                                   : (size_t)ch__bytes(g->output[i].node));
}

/* Creates the element of the results. The program writes into its memory. */
static ch_status bind_outputs(const ch_caller *c, runner *r, const ch_element *in,
                              ch_element **out)
{
    const ch_graph *g = r->program->graph;
    size_t          bytes = CH_ALIGN;
    ch_element     *e;

    for (int i = 0; i < g->n_outputs; i++)
        bytes += output_bytes(c, g, i, in);
    e = ch__element_new(g->n_outputs, 0, bytes);
    if (e == NULL)
        return ch__fail_memory("element");
    char *at = (char *)e->room + (aligned((size_t)e->room) - (size_t)e->room);
    for (int i = 0; i < g->n_outputs; i++) {
        const ch_node *n = g->output[i].node;

        e->part[i] = (ch_part){.dtype = n->dtype, .shape = ch__shape(n), .data = at};
        r->output[i] = at;
        at += output_bytes(c, g, i, in);
    }
    *out = e;
    return CH_OK;
}

static ch_status run(const ch_caller *c, runner *r, const ch_cursor *at, int64_t index,
                     const ch_element *in, ch_element **out)
{
    uint64_t  seed = (uint64_t)at->epoch ^ at->pass_key;
    ch_env    env = {.n_replicas = 1, .step = index, .seed = seed};
    ch_bind   bind = {.input = r->input,
                      .output = r->output,
                      .arena = r->arena,
                      .arena_generation = 1,
                      .env = &env};
    ch_status rc = bind_inputs(r, in);

    if (rc == CH_OK)
        rc = bind_outputs(c, r, in, out);
    if (rc == CH_OK)
        rc = ch__instance_run(r->instance, &bind);
    for (int i = 0; i < c->graph->n_outputs && rc == CH_OK; i++)
        if (passed_strings(c, i, in) != NULL)
            copy_strings(passed_strings(c, i, in), r->output[i]);
    return rc;
}

ch_status ch__caller_run(ch_caller *c, const ch_cursor *at, int64_t index, const ch_element *in,
                         ch_element **out)
{
    runner     *r = NULL;
    ch_element *e = NULL;
    ch_status   rc = get_runner(c, in, &r);

    if (rc != CH_OK)
        return rc;
    rc = run(c, r, at, index, in, &e);
    return_runner(c, r);
    if (rc == CH_OK)
        *out = e;
    else
        ch__element_free(e);
    return rc;
}

ch_status ch__caller_new(ch_graph *g, ch_caller **out)
{
    ch_caller *c =
        ch__calloc(1, sizeof(*c) + (size_t)g->n_outputs * sizeof(c->passed_input[0]));

    if (c == NULL)
        return ch__fail_memory("program of a pipeline");
    for (int i = 0; i < g->n_outputs; i++)
        c->passed_input[i] = find_passed_input(g, i);
    c->graph = ch_graph_ref(g);
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return CH_OK;
}

void ch__caller_free(ch_caller *c)
{
    if (c == NULL)
        return;
    while (c->idle != NULL) {
        runner *r = c->idle;

        c->idle = r->next;
        runner_free(r);
    }
    ch_graph_unref(c->graph);
    pthread_mutex_destroy(&c->lock);
    ch__free(c);
}
