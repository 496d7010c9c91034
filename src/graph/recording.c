/* graph/recording.c -- recordings of a function: the types of the inputs, the call of the step,
 * and the cache.
 *
 * graph/run.c calls ch__function_record in every run. A ch_recording is found by the owner, the
 * context, and the names, dtypes and symbolic sizes of the inputs.
 *
 * Before a step is recorded, axis 0 of every input becomes a symbol (assign_symbols). Sizes
 * that are equal on all replicas share a symbol. If recording fails because an op needs a
 * number, the step is recorded again with numbers for all sizes.
 *
 * Invariants:
 *   1. The function's lock is held while its caches are used and while the step is recorded.
 *   2. The cache is ordered by last use. Removing a recording removes its prepared graphs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "base/thread.h"
#include "graph/function.h"
#include "graph/room.h"
#include "graph/step.h"
#include "tensor/ragged.h"

/* ---- sizes of the inputs ---- */

/* Returns true if axis k of input i and axis l of input j have equal sizes on every replica. */
static bool same_sizes(const ch_args *a, int i, int k, int j, int l)
{
    for (int r = 0; r < a->n_local; r++)
        if (a->tensor[r * a->n_in + i]->shape.dim[k] !=
            a->tensor[r * a->n_in + j]->shape.dim[l])
            return false;
    return true;
}

/* Returns true if the size of axis k of input i differs between replicas. */
static bool sizes_differ(const ch_args *a, int i, int k)
{
    for (int r = 1; r < a->n_local; r++)
        if (a->tensor[r * a->n_in + i]->shape.dim[k] != a->tensor[i]->shape.dim[k])
            return true;
    return false;
}

/* Checks that input i has the same dtype and rank on all replicas, and with `numbers` the same
 * sizes. */
static ch_status check_alike(const ch_args *a, int i, bool numbers)
{
    const ch_tensor *first = a->tensor[i];

    for (int r = 1; r < a->n_local; r++) {
        const ch_tensor *t = a->tensor[r * a->n_in + i];
        ch_dims          of_first = ch__dims_of(first->shape), of_other = ch__dims_of(t->shape);

        if (t->dtype == first->dtype && t->shape.rank == first->shape.rank &&
            (!numbers || ch__dims_same(&of_first, &of_other)))
            continue;
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "input %d is %s on replica 0 and %s on replica %d; inputs of replicas may differ "
            "in %s",
            i, ch__type_text(first->dtype, &of_first), ch__type_text(t->dtype, &of_other), r,
            numbers ? "nothing, because the step needs the sizes as numbers" : "sizes only");
    }
    return CH_OK;
}

/* Returns true for half of a ragged component. The size of its axis 0 is not the number of
 * rows. */
static bool is_ragged_half(const ch_input_attrs *in)
{
    return in->rows.rank == 1 || in->splits_input != 0;
}

/* Returns the symbol for axis k of input i: the symbol of an earlier axis with equal sizes on
 * every replica, or a new symbol. */
static ch_dim symbol_of(const ch_args *a, const ch_input_attrs *in, int i, int k,
                        int *n_symbols)
{
    for (int j = 0; j < a->n_in; j++)
        for (int l = is_ragged_half(&in[j]); l < in[j].dims.rank && (j != i || l < k); l++)
            if (in[j].dims.dim[l].sym != 0 && same_sizes(a, i, k, j, l))
                return in[j].dims.dim[l];
    return (ch_dim){1, ++*n_symbols};
}

/* Returns true if inputs i and j have the same number of rows on every replica. The number of
 * rows of row splits is their length minus 1. */
static bool same_rows(const ch_args *a, const ch_input_attrs *in, int i, int j)
{
    for (int r = 0; r < a->n_local; r++)
        if (a->tensor[r * a->n_in + i]->shape.dim[0] - (in[i].rows.rank == 1) !=
            a->tensor[r * a->n_in + j]->shape.dim[0] - (in[j].rows.rank == 1))
            return false;
    return true;
}

/* Returns the symbol for the number of rows of row splits: that of an input with as many rows,
 * or a new symbol. */
static ch_dim rows_symbol(const ch_args *a, const ch_input_attrs *in, int i, int *n_symbols)
{
    for (int j = 0; j < a->n_in; j++) {
        const ch_dims *d = in[j].rows.rank == 1 ? &in[j].rows : &in[j].dims;

        if (j != i && d->rank > 0 && d->dim[0].sym != 0 && in[j].splits_input == 0 &&
            same_rows(a, in, i, j))
            return d->dim[0];
    }
    return (ch_dim){1, ++*n_symbols};
}

/* Sets the symbols of row splits (input i): one for the number of rows, and one for their
 * length. Row splits with the same number of rows share both. */
static void assign_splits_symbols(const ch_args *a, ch_input_attrs *in, int i, int *n_symbols)
{
    if (in[i].dims.dim[0].sym != 0)
        return; /* set already, by assign_values_symbols */
    in[i].rows = (ch_dims){.rank = 1};
    in[i].rows.dim[0] = rows_symbol(a, in, i, n_symbols);
    for (int j = 0; j < a->n_in; j++)
        if (j != i && in[j].rows.rank == 1 && in[j].dims.dim[0].sym != 0 &&
            ch__dim_same(in[j].rows.dim[0], in[i].rows.dim[0])) {
            in[i].dims.dim[0] = in[j].dims.dim[0];
            return;
        }
    in[i].dims.dim[0] = (ch_dim){1, ++*n_symbols};
}

/* Sets the symbol of the length of flat values (input i). Only flat values of equal length
 * share it, because other inputs have that length by chance. */
static void assign_values_symbols(const ch_args *a, ch_input_attrs *in, int i, int splits,
                                  int *n_symbols)
{
    assign_splits_symbols(a, in, splits, n_symbols);
    in[i].splits_input = splits + 1;
    in[i].dims.dim[0] = (ch_dim){1, 0};
    for (int j = 0; j < i && in[i].dims.dim[0].sym == 0; j++)
        if (in[j].splits_input != 0 && same_sizes(a, i, 0, j, 0))
            in[i].dims.dim[0] = in[j].dims.dim[0];
    if (in[i].dims.dim[0].sym == 0)
        in[i].dims.dim[0].sym = ++*n_symbols;
}

/* Sets the symbol of axis 0 of an input that is not half of a ragged component: that of row
 * splits with as many rows, or that of an axis with equal sizes. */
static void assign_rows_symbol(const ch_args *a, ch_input_attrs *in, int i, int *n_symbols)
{
    for (int j = 0; j < a->n_in; j++)
        if (in[j].rows.rank == 1 && in[j].rows.dim[0].sym != 0 && same_rows(a, in, i, j)) {
            in[i].dims.dim[0] = in[j].rows.dim[0];
            return;
        }
    in[i].dims.dim[0] = symbol_of(a, in, i, 0, n_symbols);
}

/* Makes axis 0 of every input a symbol, and every other axis whose size differs between
 * replicas. Equal symbols stand for sizes that are equal on every replica. */
static void assign_symbols(const ch_run *run, const ch_args *a, ch_input_attrs *in,
                           int *n_symbols)
{
    for (int i = 0; i < a->n_in; i++) {
        bool is_values = false;
        int  half = in[i].dims.rank > 0 ? ch__tuple_ragged_half(run->in, i, &is_values) : -1;

        if (half >= 0 && is_values)
            assign_values_symbols(a, in, i, half, n_symbols);
        else if (half >= 0)
            assign_splits_symbols(a, in, i, n_symbols);
        else if (in[i].dims.rank > 0)
            assign_rows_symbol(a, in, i, n_symbols);
        for (int k = 1; k < in[i].dims.rank; k++)
            if (sizes_differ(a, i, k))
                in[i].dims.dim[k] = symbol_of(a, in, i, k, n_symbols);
    }
}

/* Sets in[i] to the dtype and dims with which input i is recorded. `numbers`: no size is a
 * symbol. */
static ch_status recorded_inputs(const ch_run *run, const ch_args *a, bool numbers,
                                 ch_input_attrs *in, int *n_symbols)
{
    *n_symbols = 0;
    for (int i = 0; i < a->n_in; i++) {
        ch_status rc = check_alike(a, i, numbers);

        if (rc != CH_OK)
            return rc;
        in[i] = (ch_input_attrs){.dtype = a->tensor[i]->dtype,
                                 .dims = ch__dims_of(a->tensor[i]->shape)};
    }
    if (!numbers)
        assign_symbols(run, a, in, n_symbols);
    return CH_OK;
}

/* ---- recording ---- */

static bool same_name(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* Returns true if replicas may have different values of input i. A plain value is the same on
 * all replicas, for any number of replicas, so a step is recorded alike under every strategy.
 * In an update, a mirrored value counts as a single value too. */
static bool input_varies(const ch_run *run, int i)
{
    ch_value_kind kind = ch_value_kind_of(ch_tuple_at(run->in, i));

    return kind == CH_PER_REPLICA ||
           (kind == CH_MIRRORED && run->context != CH_STEP_CONTEXT_UPDATE);
}

/* Returns true if axis k of input i and axis l of input j may have equal sizes in this run and
 * different symbols in the recording. Lengths of flat values may: they are equal by chance, and
 * a graph for different lengths fits equal lengths too. */
static bool may_coincide(const ch_input_attrs *in, int i, int k, int j, int l)
{
    return k == 0 && l == 0 && in[i].splits_input != 0 && in[j].splits_input != 0;
}

/* Returns true if axis k of input i agrees with the recording: a number, or a symbol that has
 * the same relation to the symbols of all axes before it. */
static bool axis_fits(const ch_recording *r, const ch_input_attrs *in, int i, int k)
{
    ch_dim was = r->dims[i].dim[k], is = in[i].dims.dim[k];

    if (was.n != is.n || (was.sym == 0) != (is.sym == 0))
        return false;
    for (int j = 0; j <= i && is.sym != 0; j++)
        for (int l = 0; l < in[j].dims.rank && (j < i || l < k); l++) {
            bool was_same = r->dims[j].dim[l].sym == was.sym;
            bool is_same = in[j].dims.dim[l].sym == is.sym;

            if (was_same != is_same && (was_same || !may_coincide(in, i, k, j, l)))
                return false;
        }
    return true;
}

static bool dims_fit(const ch_recording *r, const ch_input_attrs *in)
{
    int i = 0;

    while (i < r->n_in && ch__dims_same(&r->dims[i], &in[i].dims))
        i++;
    if (i == r->n_in)
        return true;
    for (i = 0; i < r->n_in; i++) {
        if (r->dims[i].rank != in[i].dims.rank)
            return false;
        for (int k = 0; k < in[i].dims.rank; k++)
            if (!axis_fits(r, in, i, k))
                return false;
    }
    return true;
}

/* Names are compared because a step may look up its inputs by name. */
static bool recording_fits(const ch_recording *r, const ch_run *run, const ch_args *a,
                           const ch_input_attrs *in)
{
    if (r->owner != run->owner || r->context != run->context || r->n_in != a->n_in ||
        r->n_replicas != a->n_replicas)
        return false;
    for (int i = 0; i < a->n_in; i++)
        if (r->dtype[i] != a->tensor[i]->dtype ||
            r->graph->input[i]->varies != input_varies(run, i) ||
            !same_name(r->graph->input_name[i], ch_tuple_name(run->in, i)))
            return false;
    return dims_fit(r, in);
}

/* Records the step. *wants_numbers: recording failed only because a size is a symbol. */
static ch_status call_step(ch_function *f, const ch_run *run, const ch_args *a,
                           const ch_input_attrs *inputs, int n_symbols, bool *wants_numbers,
                           ch_graph **out)
{
    ch_step  *s;
    ch_status rc = ch__step_new(f->name, NULL, &s);

    if (rc != CH_OK)
        return rc;
    s->owner = run->owner;
    s->context = run->context;
    s->graph->n_symbols = n_symbols;
    for (int i = 0; i < a->n_in; i++) {
        ch_node *in = ch__step_add_input_of(s, ch_tuple_name(run->in, i), &inputs[i]);

        if (in != NULL)
            in->varies = input_varies(run, i);
    }
    if (s->rc == CH_OK) {
        f->recorder = pthread_self();
        f->is_recording = true;
        f->step(s, f->arg);
        f->is_recording = false;
    }
    *wants_numbers = s->graph->wants_numbers;
    rc = ch__step_finish(s, out);
    ch__step_free(s);
    if (rc != CH_OK)
        return ch__fail_at(rc, "recording %s", f->name);
    return CH_OK;
}

/* ---- the cache ---- */

void ch__recording_free(ch_recording *r)
{
    ch_graph_unref(r->graph);
    ch__free(r->dtype);
    ch__free(r->dims);
    ch__free(r->may_have_room);
    ch__free(r);
}

/* Removes the least recently used recording and its prepared graphs. */
static void evict_recording(ch_function *f)
{
    ch_recording **last = &f->recordings;

    assert(*last != NULL);
    while ((*last)->next != NULL)
        last = &(*last)->next;
    for (ch_prepared **link = &f->programs; *link != NULL;) {
        ch_prepared *p = *link;

        if (p->graph != (*last)->graph) {
            link = &p->next;
            continue;
        }
        *link = p->next;
        ch__prepared_unref(p);
        f->n_programs--;
    }
    ch__recording_free(*last);
    *last = NULL;
    f->n_cached_recordings--;
}

/* Adds a recording of g to the cache, which takes over the caller's reference to g. */
static ch_status store_recording(ch_function *f, const ch_run *run, const ch_args *a,
                                 const ch_input_attrs *in, ch_graph *g, ch_recording **out)
{
    ch_recording *r = ch__calloc(1, sizeof(*r));
    ch_status     rc;

    if (r == NULL)
        return ch__fail_memory(f->name);
    r->dtype = ch__calloc((size_t)a->n_in + 1, sizeof(*r->dtype));
    r->dims = ch__calloc((size_t)a->n_in + 1, sizeof(*r->dims));
    r->may_have_room = ch__calloc((size_t)a->n_in + 1, sizeof(*r->may_have_room));
    rc = r->dtype == NULL || r->dims == NULL || r->may_have_room == NULL
             ? ch__fail_memory(f->name)
             : CH_OK;
    if (rc == CH_OK && ch__run_cores(run) == 1) /* cores divide live rows, and no room */
        rc = ch__graph_room(g, r->may_have_room);
    if (rc != CH_OK) {
        ch__recording_free(r);
        return rc;
    }
    for (int i = 0; i < a->n_in; i++) {
        r->dtype[i] = in[i].dtype;
        r->dims[i] = in[i].dims;
    }
    r->owner = run->owner;
    r->context = run->context;
    r->n_in = a->n_in;
    r->n_replicas = a->n_replicas;
    r->graph = g;
    if (f->n_cached_recordings == CH_MAX_RECORDINGS)
        evict_recording(f);
    r->next = f->recordings;
    f->recordings = r;
    f->n_cached_recordings++;
    f->n_recordings++;
    *out = r;
    return CH_OK;
}

static ch_recording *find_recording(ch_function *f, const ch_run *run, const ch_args *a,
                                    const ch_input_attrs *in)
{
    for (ch_recording **link = &f->recordings; *link != NULL; link = &(*link)->next)
        if (recording_fits(*link, run, a, in)) {
            ch_recording *r = *link;

            *link = r->next; /* move to the front */
            r->next = f->recordings;
            f->recordings = r;
            return r;
        }
    return NULL;
}

/* Sets *out to the recording for the inputs of `run`. `in` has space for a->n_in inputs. */
static ch_status record(ch_function *f, const ch_run *run, const ch_args *a, ch_input_attrs *in,
                        ch_recording **out)
{
    bool      numbers = f->static_rows, needs_numbers = false;
    int       n_symbols;
    int64_t   began;
    ch_graph *g = NULL;
    ch_status rc = recorded_inputs(run, a, numbers, in, &n_symbols);

    if (rc != CH_OK)
        return ch__fail_at(rc, "%s", f->name);
    if ((*out = find_recording(f, run, a, in)) != NULL)
        return CH_OK;
    began = ch__now_ns();
    rc = call_step(f, run, a, in, n_symbols, &needs_numbers, &g);
    if (rc != CH_OK && needs_numbers && !numbers && !run->rows_unknown) {
        /* record again, for these sizes only */
        rc = recorded_inputs(run, a, true, in, &n_symbols);
        if (rc != CH_OK)
            return ch__fail_at(rc, "%s", f->name);
        if ((*out = find_recording(f, run, a, in)) != NULL)
            return CH_OK;
        rc = call_step(f, run, a, in, n_symbols, &needs_numbers, &g);
        if (rc == CH_OK)
            f->static_rows = true; /* it will need numbers again */
    }
    if (rc == CH_OK)
        rc = store_recording(f, run, a, in, g, out);
    if (rc != CH_OK)
        ch_graph_unref(g);
    f->planning_ns += ch__now_ns() - began;
    return rc;
}

/* Checks that the inputs match the fixed graph in number and, where both have names, in
 * name. */
static ch_status check_given(const ch_function *f, const ch_run *run, const ch_args *a)
{
    const ch_graph *g = f->fixed_graph;

    if (a->n_in != g->n_inputs)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: got %d inputs, want %d as in its graph",
                        f->name, a->n_in, g->n_inputs);
    for (int i = 0; i < a->n_in; i++) {
        const char *have = ch_tuple_name(run->in, i), *want = g->input_name[i];

        if (have != NULL && want != NULL && strcmp(have, want) != 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: input %d is named \"%s\", but \"%s\" in the graph; pass the "
                            "inputs in the graph's order",
                            f->name, i, have, want);
    }
    return CH_OK;
}

ch_status ch__function_record(ch_function *f, const ch_run *run, const ch_args *a,
                              ch_graph **out, const bool **may_have_room)
{
    /* inline, so that a run with a known recording allocates nothing */
    ch_input_attrs few[16], *in = few;
    ch_recording  *r = NULL;
    ch_status      rc;

    if (f->fixed_graph != NULL) {
        *out = f->fixed_graph;
        *may_have_room = f->fixed_may_have_room;
        return check_given(f, run, a);
    }
    if (a->n_in > 16 && (in = ch__calloc((size_t)a->n_in, sizeof(*in))) == NULL)
        return ch__fail_memory(f->name);
    rc = record(f, run, a, in, &r);
    if (in != few)
        ch__free(in);
    if (rc == CH_OK && r != NULL) {
        *out = r->graph;
        *may_have_room = r->may_have_room;
    }
    return rc;
}
