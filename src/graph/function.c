/* graph/function.c -- functions: a step with caches of recordings and prepared graphs.
 *
 * graph/run.c calls ch__function_record and ch__function_prepare in every run. A recording is
 * found by the owner, the context, and the names, dtypes and symbolic sizes of the inputs. A
 * prepared graph is found by the graph, the devices and the exact sizes.
 *
 * Before a step is recorded, axis 0 of every input becomes a symbol (assign_symbols). Sizes
 * that are equal on all replicas share a symbol. If recording fails because an op needs a
 * number, the step is recorded again with numbers for all sizes.
 *
 * Invariants:
 *   1. The function's lock is held while its caches are used and while the step is recorded.
 *   2. Both caches are ordered by last use. Removing a recording removes its prepared graphs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/function.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/thread.h"
#include "graph/room.h"
#include "graph/step.h"
#include "tensor/ragged.h"

static ch_status new_function(const char *name, ch_function **out)
{
    ch_function *f = ch__calloc(1, sizeof(*f));

    if (f == NULL)
        return ch__fail_memory("a function");
    f->name = ch__strdup(name);
    if (f->name == NULL) {
        ch__free(f);
        return ch__fail_memory("a function");
    }
    atomic_init(&f->refs, 1);
    pthread_mutex_init(&f->lock, NULL);
    *out = f;
    return CH_OK;
}

ch_status ch_function_new(const char *name, ch_step_fn step, void *arg, ch_function **out)
{
    ch_function *f = NULL;
    ch_status    rc;

    rc = ch__check_not_null("function", "its name", name, "out", out);
    if (rc == CH_OK && step == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "function: the step is NULL");
    if (rc == CH_OK)
        rc = new_function(name, &f);
    if (rc != CH_OK)
        return rc;
    f->step = step;
    f->arg = arg;
    *out = f;
    return CH_OK;
}

ch_status ch_function_of_graph(const char *name, ch_graph *graph, ch_function **out)
{
    ch_function *f = NULL;
    ch_status    rc;

    rc = ch__check_not_null("function", "its name", name, "out", out);
    if (rc == CH_OK)
        rc = ch__check_not_null("function", "its graph", graph, NULL, NULL);
    if (rc == CH_OK)
        rc = new_function(name, &f);
    if (rc == CH_OK && (rc = ch__function_set_graph(f, graph)) != CH_OK)
        ch_function_unref(f);
    if (rc != CH_OK)
        return rc;
    *out = f;
    return CH_OK;
}

ch_function *ch_function_ref(ch_function *f)
{
    if (f != NULL)
        atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

static void free_recording(ch_recording *r)
{
    ch_graph_unref(r->graph);
    ch__free(r->dtype);
    ch__free(r->dims);
    ch__free(r->may_have_room);
    ch__free(r);
}

void ch_function_unref(ch_function *f)
{
    if (f == NULL || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1)
        return;
    while (f->programs != NULL) {
        ch_prepared *p = f->programs;

        f->programs = p->next;
        ch__prepared_unref(p);
    }
    while (f->recordings != NULL) {
        ch_recording *r = f->recordings;

        f->recordings = r->next;
        free_recording(r);
    }
    ch_graph_unref(f->fixed_graph);
    ch__free(f->fixed_may_have_room);
    ch_graph_unref(f->last_graph);
    ch__program_unref(f->last_program);
    pthread_mutex_destroy(&f->lock);
    ch__free(f->name);
    ch__free(f);
}

const char *ch_function_name(const ch_function *f)
{
    return f != NULL ? f->name : NULL;
}

int ch_function_recordings(const ch_function *f)
{
    return f != NULL ? f->n_recordings : 0;
}

int ch_function_programs(const ch_function *f)
{
    return f != NULL ? f->n_programs : 0;
}

int64_t ch__function_planning_ns(ch_function *f)
{
    int64_t ns;

    pthread_mutex_lock(&f->lock);
    ns = f->planning_ns;
    pthread_mutex_unlock(&f->lock);
    return ns;
}

ch_graph *ch_function_graph(ch_function *f)
{
    return f != NULL ? f->last_graph : NULL;
}

int ch_function_print_plan(ch_function *f, char *text, size_t size)
{
    if (f != NULL && f->last_program != NULL)
        return ch__program_print(f->last_program, text, size);
    if (text != NULL && size > 0)
        snprintf(text, size, "%s", f == NULL ? "NULL" : "");
    return f == NULL ? (int)strlen("NULL") : 0;
}

void ch_function_static_rows(ch_function *f)
{
    if (f != NULL)
        f->static_rows = true;
}

void ch_function_watch(ch_function *f, ch_node_see see, void *arg)
{
    if (f == NULL)
        return;
    pthread_mutex_lock(&f->lock);
    f->see = see;
    f->see_arg = arg;
    pthread_mutex_unlock(&f->lock);
}

/* ---- recording ---- */

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
    return in->rows.rank == 1 || in->splits != 0;
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

        if (j != i && d->rank > 0 && d->dim[0].sym != 0 && in[j].splits == 0 &&
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
    in[i].splits = in[splits].dims.dim[0].sym;
    in[i].dims.dim[0] = (ch_dim){1, 0};
    for (int j = 0; j < i && in[i].dims.dim[0].sym == 0; j++)
        if (in[j].splits != 0 && same_sizes(a, i, 0, j, 0))
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

/* Names are compared because a step may look up its inputs by name. */
static bool recording_fits(const ch_recording *r, const ch_run *run, const ch_args *a,
                           const ch_input_attrs *in)
{
    if (r->owner != run->owner || r->context != run->context || r->n_in != a->n_in ||
        r->n_replicas != a->n_replicas)
        return false;
    for (int i = 0; i < a->n_in; i++)
        if (r->dtype[i] != a->tensor[i]->dtype || !ch__dims_same(&r->dims[i], &in[i].dims) ||
            r->graph->input[i]->varies != input_varies(run, i) ||
            !same_name(r->graph->input_name[i], ch_tuple_name(run->in, i)))
            return false;
    return true;
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
    free_recording(*last);
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
             : ch__graph_room(g, r->may_have_room);
    if (rc != CH_OK) {
        free_recording(r);
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
    bool      needs_numbers = false;
    int       n_symbols;
    int64_t   began;
    ch_graph *g = NULL;
    ch_status rc = recorded_inputs(run, a, f->static_rows, in, &n_symbols);

    if (rc != CH_OK)
        return ch__fail_at(rc, "%s", f->name);
    if ((*out = find_recording(f, run, a, in)) != NULL)
        return CH_OK;
    began = ch__now_ns();
    rc = call_step(f, run, a, in, n_symbols, &needs_numbers, &g);
    if (rc != CH_OK && needs_numbers && !f->static_rows && !run->rows_unknown) {
        /* record again, for these sizes only */
        rc = recorded_inputs(run, a, true, in, &n_symbols);
        if (rc != CH_OK)
            return ch__fail_at(rc, "%s", f->name);
        if ((*out = find_recording(f, run, a, in)) != NULL)
            return CH_OK;
        rc = call_step(f, run, a, in, n_symbols, &needs_numbers, &g);
        f->static_rows |= rc == CH_OK; /* it will need numbers again */
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

ch_status ch__function_set_graph(ch_function *f, ch_graph *g)
{
    bool     *may = ch__calloc((size_t)g->n_inputs + 1, sizeof(*may));
    ch_status rc = may == NULL ? ch__fail_memory(f->name) : ch__graph_room(g, may);

    if (rc != CH_OK) {
        ch__free(may);
        return rc;
    }
    f->fixed_graph = ch_graph_ref(g);
    f->fixed_may_have_room = may;
    return CH_OK;
}

/* ---- room ---- */

/* Returns the last row split, that is, the number of flat values; -1: there are no splits. */
static int64_t last_split(const ch_tensor *t)
{
    int64_t n = t->shape.dim[0];

    return n < 1                ? -1
           : t->dtype == CH_I64 ? ((const int64_t *)(const void *)t->data)[n - 1]
                                : ((const int32_t *)(const void *)t->data)[n - 1];
}

/* Returns true if the splits of flat values (input i) end within the values on every replica.
 * If not, the sizes stay exact, so that kernels detect and report the error. */
static bool splits_end_within(const ch_graph *g, const ch_args *a, int i)
{
    int64_t splits = ((const ch_input_attrs *)ch__attrs(g->input[i]))->splits;

    for (int k = 0; k < a->n_in; k++) {
        const ch_input_attrs *in = ch__attrs(g->input[k]);

        if (in->rows.rank != 1 || in->dims.dim[0].sym != splits ||
            (in->dtype != CH_I64 && in->dtype != CH_I32))
            continue;
        for (int r = 0; r < a->n_local; r++)
            if (last_split(a->tensor[r * a->n_in + k]) >
                a->tensor[r * a->n_in + i]->shape.dim[0])
                return false;
    }
    return true;
}

/* Returns the capacity of input i: the same for all replicas, so that they share a program. The
 * step takes as long as its longest replica in any case. */
static int64_t capacity_of(const ch_args *a, int i)
{
    int64_t most = 0;

    for (int r = 0; r < a->n_local; r++) {
        int64_t n = a->tensor[r * a->n_in + i]->shape.dim[0];

        most = n > most ? n : most;
    }
    return ch__ragged_capacity(most);
}

void ch__function_shapes(const ch_function *f, const ch_graph *g, const bool *may_have_room,
                         ch_args *a)
{
    /* Observers are shown live rows only. */
    bool is_watched = f->see != NULL || ch__config()->interpret;

    for (int i = 0; i < a->n_in; i++) {
        bool has_room = may_have_room[i] && !is_watched && splits_end_within(g, a, i);

        for (int r = 0; r < a->n_local; r++) {
            ch_shape *s = &a->shape[r * a->n_in + i];

            *s = a->tensor[r * a->n_in + i]->shape;
            if (has_room)
                s->dim[0] = capacity_of(a, i) + (ch__room_is_poisoned() ? CH_ROOM_POISONED : 0);
        }
    }
}

/* ---- programs ---- */

/* Returns the remedy for a size that changes often. */
static const char *remedy_for(const ch_node *input, int axis)
{
    if (((const ch_input_attrs *)ch__attrs(input))->splits != 0)
        return "use these values only in elementwise ops and ch_embedding_bag, where a program "
               "fits many sizes, or pad the rows (ch_dataset_padded_batch)";
    return axis == 0 ? "make batches of one size (ch_dataset_batch with drop_remainder)"
                     : "pad to a few sizes (ch_dataset_padded_batch, or "
                       "ch_dataset_bucket_by_length with pad_to_boundary)";
}

/* Logs which size changes often: the first size in which the prepared graphs p and `other`
 * differ. */
static void warn_many_programs(const ch_function *f, const ch_prepared *p,
                               const ch_prepared *other)
{
    if (other == NULL || other->n_in != p->n_in || other->n_local != p->n_local)
        return;
    for (int i = 0; i < p->n_local * p->n_in; i++)
        for (int k = 0; k < p->shape[i].rank; k++)
            if (p->shape[i].dim[k] != other->shape[i].dim[k]) {
                const char *name = p->graph->input_name[i % p->n_in];

                ch__log(CH_LOG_WARNING, "program-cache",
                        "%s: ten programs already; axis %d of input %d%s%s%s keeps changing "
                        "(%lld, then %lld), and every size needs a program; %s",
                        f->name, k, i % p->n_in, name != NULL ? " (" : "",
                        name != NULL ? name : "", name != NULL ? ")" : "",
                        (long long)other->shape[i].dim[k], (long long)p->shape[i].dim[k],
                        remedy_for(p->graph->input[i % p->n_in], k));
                return;
            }
}

static bool prepared_fits(const ch_prepared *p, const ch_graph *g, const ch_run *run,
                          const ch_args *a, bool watched)
{
    if (p->graph != g || p->n_local != run->n_local || p->n_in != a->n_in ||
        p->watched != watched)
        return false;
    for (int r = 0; r < run->n_local; r++)
        if (p->device[r] != run->device[r])
            return false;
    for (int i = 0; i < a->n_local * a->n_in; i++)
        if (a->tensor[i]->dtype != g->input[i % a->n_in]->dtype ||
            !ch_shape_equal(p->shape[i], a->shape[i]))
            return false;
    return true;
}

static void evict_program(ch_function *f)
{
    ch_prepared **last = &f->programs;

    while ((*last)->next != NULL)
        last = &(*last)->next;
    ch__prepared_unref(*last);
    *last = NULL;
    f->n_programs--;
}

ch_status ch__function_prepare(ch_function *f, ch_graph *g, const ch_run *run, const ch_args *a,
                               ch_prepared **out)
{
    bool      watched = f->see != NULL || ch__config()->interpret;
    int64_t   began;
    ch_status rc;

    for (ch_prepared **link = &f->programs; *link != NULL; link = &(*link)->next)
        if (prepared_fits(*link, g, run, a, watched)) {
            ch_prepared *p = *link;

            *link = p->next; /* move to the front */
            p->next = f->programs;
            f->programs = p;
            *out = p;
            return CH_OK;
        }
    began = ch__now_ns();
    rc = ch__prepared_new(g, run, a, watched, out);
    f->planning_ns += ch__now_ns() - began;
    if (rc != CH_OK)
        return ch__fail_at(rc, "%s", f->name);
    (*out)->next = f->programs;
    f->programs = *out;
    f->n_programs++;
    if (f->n_programs == 10)
        warn_many_programs(f, *out, (*out)->next);
    if (f->n_programs > CH_MAX_PROGRAMS)
        evict_program(f);
    return CH_OK;
}
