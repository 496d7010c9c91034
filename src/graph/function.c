/* graph/function.c -- a step with the graphs that were recorded from it and the programs that
 * were made of those.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/function.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "graph/step.h"

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

    rc = ch__want_given("function", "its name", name, "out", out);
    if (rc == CH_OK && step == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "function: its step is NULL");
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

    rc = ch__want_given("function", "its name", name, "out", out);
    if (rc == CH_OK)
        rc = ch__want_given("function", "its graph", graph, NULL, NULL);
    if (rc == CH_OK)
        rc = new_function(name, &f);
    if (rc != CH_OK)
        return rc;
    f->given = ch_graph_ref(graph);
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
    ch_graph_unref(f->given);
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

/* Returns whether axis k of input i has the same size as axis l of input j, on every replica. */
static bool same_sizes(const ch_args *a, int i, int k, int j, int l)
{
    for (int r = 0; r < a->n_local; r++)
        if (a->tensor[r * a->n_in + i]->shape.dim[k] !=
            a->tensor[r * a->n_in + j]->shape.dim[l])
            return false;
    return true;
}

static bool sizes_differ(const ch_args *a, int i, int k)
{
    for (int r = 1; r < a->n_local; r++)
        if (a->tensor[r * a->n_in + i]->shape.dim[k] != a->tensor[i]->shape.dim[k])
            return true;
    return false;
}

/* Replicas may differ in the sizes of an input, unless the step needs these as numbers. */
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
            "input %d is %s on replica 0 and %s on replica %d: replicas may "
            "differ in %s",
            i, ch__type_text(first->dtype, &of_first), ch__type_text(t->dtype, &of_other), r,
            numbers ? "nothing, since the step needs its sizes as numbers" : "sizes only");
    }
    return CH_OK;
}

/* The symbol of axis k of input i: that of an earlier axis with the same sizes on every replica, or a new
 * one. dims[0 .. i] are set up to there. */
static ch_dim symbol_of(const ch_args *a, const ch_dims *dims, int i, int k, int *n_symbols)
{
    for (int j = 0; j <= i; j++)
        for (int l = 0; l < dims[j].rank && (j < i || l < k); l++)
            if (dims[j].dim[l].sym != 0 && same_sizes(a, i, k, j, l))
                return dims[j].dim[l];
    return (ch_dim){1, ++*n_symbols};
}

/* Sets the dims with which inputs are recorded. Axis 0 is a symbol, and so is every other axis whose size
 * differs between replicas; equal symbols stand for sizes that are equal on every replica. `numbers`: no
 * axis is a symbol. */
static ch_status recorded_dims(const ch_args *a, bool numbers, ch_dims *dims, int *n_symbols)
{
    *n_symbols = 0;
    for (int i = 0; i < a->n_in; i++) {
        ch_status rc = check_alike(a, i, numbers);

        if (rc != CH_OK)
            return rc;
        dims[i] = ch__dims_of(a->tensor[i]->shape);
        for (int k = 0; k < dims[i].rank && !numbers; k++)
            if (k == 0 || sizes_differ(a, i, k))
                dims[i].dim[k] = symbol_of(a, dims, i, k, n_symbols);
    }
    return CH_OK;
}

static bool same_name(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* Returns whether replicas may have different values of input i. A plain value is the same on every
 * replica, however many there are, so a step is recorded alike under every strategy. An update also
 * treats a mirrored value as a single value. */
static bool input_varies(const ch_run *run, int i)
{
    ch_value_kind kind = ch_value_kind_of(ch_tuple_at(run->in, i));

    return kind == CH_PER_REPLICA ||
           (kind == CH_MIRRORED && run->speaks_of != CH_SPEAKS_OF_COPY);
}

/* Names count: a step may ask for its inputs by them. */
static bool recording_fits(const ch_recording *r, const ch_run *run, const ch_args *a,
                           const ch_dims *dims)
{
    if (r->owner != run->owner || r->speaks_of != run->speaks_of || r->n_in != a->n_in ||
        r->n_replicas != a->n_replicas)
        return false;
    for (int i = 0; i < a->n_in; i++)
        if (r->dtype[i] != a->tensor[i]->dtype || !ch__dims_same(&r->dims[i], &dims[i]) ||
            r->graph->input[i]->varies != input_varies(run, i) ||
            !same_name(r->graph->input_name[i], ch_tuple_name(run->in, i)))
            return false;
    return true;
}

/* Calls the user's function. *wants_numbers: it failed only because a size is a symbol. */
static ch_status call_step(ch_function *f, const ch_run *run, const ch_args *a,
                           const ch_dims *dims, int n_symbols, bool *wants_numbers,
                           ch_graph **out)
{
    ch_step  *s;
    ch_status rc = ch__step_new(f->name, NULL, &s);

    if (rc != CH_OK)
        return rc;
    s->owner = run->owner;
    s->speaks_of = run->speaks_of;
    s->graph->n_symbols = n_symbols;
    for (int i = 0; i < a->n_in; i++) {
        ch_node *in =
            ch__step_add_input(s, ch_tuple_name(run->in, i), a->tensor[i]->dtype, &dims[i]);

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
    if (rc == CH_OK && run->ops->lower != NULL)
        rc = run->ops->lower(run->owner, *out);
    if (rc != CH_OK)
        return ch__fail_at(rc, "recording %s", f->name);
    return CH_OK;
}

/* Makes room for another recording: the least recently used goes, with its programs. */
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
    f->n_kept--;
}

static ch_status keep_recording(ch_function *f, const ch_run *run, const ch_args *a,
                                const ch_dims *dims, ch_graph *g)
{
    ch_recording *r = ch__calloc(1, sizeof(*r));

    if (r == NULL)
        return ch__fail_memory(f->name);
    r->dtype = ch__calloc((size_t)a->n_in + 1, sizeof(*r->dtype));
    r->dims = ch__calloc((size_t)a->n_in + 1, sizeof(*r->dims));
    if (r->dtype == NULL || r->dims == NULL) {
        free_recording(r);
        return ch__fail_memory(f->name);
    }
    for (int i = 0; i < a->n_in; i++) {
        r->dtype[i] = a->tensor[i]->dtype;
        r->dims[i] = dims[i];
    }
    r->owner = run->owner;
    r->speaks_of = run->speaks_of;
    r->n_in = a->n_in;
    r->n_replicas = a->n_replicas;
    r->graph = g;
    if (f->n_kept == CH_MAX_RECORDINGS)
        evict_recording(f);
    r->next = f->recordings;
    f->recordings = r;
    f->n_kept++;
    f->n_recordings++;
    return CH_OK;
}

static ch_graph *find_recording(ch_function *f, const ch_run *run, const ch_args *a,
                                const ch_dims *dims)
{
    for (ch_recording **link = &f->recordings; *link != NULL; link = &(*link)->next)
        if (recording_fits(*link, run, a, dims)) {
            ch_recording *r = *link;

            *link = r->next; /* most recently used first */
            r->next = f->recordings;
            f->recordings = r;
            return r->graph;
        }
    return NULL;
}

static ch_status record(ch_function *f, const ch_run *run, const ch_args *a, ch_dims *dims,
                        ch_graph **out)
{
    bool      wants = false;
    int       n_symbols;
    ch_graph *g = NULL;
    ch_status rc = recorded_dims(a, f->static_rows, dims, &n_symbols);

    if (rc != CH_OK)
        return ch__fail_at(rc, "%s", f->name);
    if ((*out = find_recording(f, run, a, dims)) != NULL)
        return CH_OK;
    rc = call_step(f, run, a, dims, n_symbols, &wants, &g);
    if (rc != CH_OK && wants && !f->static_rows && !run->rows_unknown) {
        /* once more, for these sizes alone */
        rc = recorded_dims(a, true, dims, &n_symbols);
        if (rc != CH_OK)
            return ch__fail_at(rc, "%s", f->name);
        if ((*out = find_recording(f, run, a, dims)) != NULL)
            return CH_OK;
        rc = call_step(f, run, a, dims, n_symbols, &wants, &g);
        f->static_rows |= rc == CH_OK; /* it will want them again */
    }
    if (rc == CH_OK)
        rc = keep_recording(f, run, a, dims, g);
    if (rc != CH_OK) {
        ch_graph_unref(g);
        return rc;
    }
    *out = g;
    return CH_OK;
}

/* Inputs are in the order of the graph's; one with a name must be the one of that name. */
static ch_status check_given(const ch_function *f, const ch_run *run, const ch_args *a)
{
    const ch_graph *g = f->given;

    if (a->n_in != g->n_inputs)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %d inputs, its graph has %d", f->name,
                        a->n_in, g->n_inputs);
    for (int i = 0; i < a->n_in; i++) {
        const char *have = ch_tuple_name(run->in, i), *want = g->input_name[i];

        if (have != NULL && want != NULL && strcmp(have, want) != 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: input %d is named \"%s\", in its graph it is \"%s\"; give "
                            "them in the graph's order",
                            f->name, i, have, want);
    }
    return CH_OK;
}

ch_status ch__function_record(ch_function *f, const ch_run *run, const ch_args *a,
                              ch_graph **out)
{
    ch_dims   few[16], *dims = few; /* a run that needs no recording allocates nothing */
    ch_status rc;

    if (f->given != NULL) {
        *out = f->given;
        return check_given(f, run, a);
    }
    if (a->n_in > 16 && (dims = ch__calloc((size_t)a->n_in, sizeof(*dims))) == NULL)
        return ch__fail_memory(f->name);
    rc = record(f, run, a, dims, out);
    if (dims != few)
        ch__free(dims);
    return rc;
}

/* ---- programs ---- */

/* Says which size it is that keeps changing: p and `other` are two of many. */
static void warn_of_many(const ch_function *f, const ch_prepared *p, const ch_prepared *other)
{
    if (other == NULL || other->n_in != p->n_in || other->n_local != p->n_local)
        return;
    for (int i = 0; i < p->n_local * p->n_in; i++)
        for (int k = 0; k < p->shape[i].rank; k++)
            if (p->shape[i].dim[k] != other->shape[i].dim[k]) {
                ch__log(
                    CH_LOG_WARNING, "program-cache",
                    "%s: ten programs already; axis %d of input %d keeps changing (%lld, then "
                    "%lld). Pad it, or expect to plan anew",
                    f->name, k, i % p->n_in, (long long)other->shape[i].dim[k],
                    (long long)p->shape[i].dim[k]);
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
            !ch_shape_equal(p->shape[i], a->tensor[i]->shape))
            return false;
    return true;
}

static void evict(ch_function *f)
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
    ch_status rc;

    for (ch_prepared **link = &f->programs; *link != NULL; link = &(*link)->next)
        if (prepared_fits(*link, g, run, a, watched)) {
            ch_prepared *p = *link;

            *link = p->next; /* most recently used first */
            p->next = f->programs;
            f->programs = p;
            *out = p;
            return CH_OK;
        }
    rc = ch__prepared_new(g, run, a, watched, out);
    if (rc != CH_OK)
        return ch__fail_at(rc, "%s", f->name);
    (*out)->next = f->programs;
    f->programs = *out;
    f->n_programs++;
    if (f->n_programs == 10)
        warn_of_many(f, *out, (*out)->next);
    if (f->n_programs > CH_MAX_PROGRAMS)
        evict(f);
    return CH_OK;
}
