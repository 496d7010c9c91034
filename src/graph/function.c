/* graph/function.c -- functions: their creation, the sizes to plan for, and the cache of
 * prepared graphs.
 *
 * A ch_function is a step or a fixed graph, with a cache of recordings (graph/recording.c) and
 * a cache of prepared graphs (graph/prepared.c). graph/run.c calls ch__function_shapes and
 * ch__function_prepare in every run. A prepared graph is found by the graph, the devices and
 * the sizes. The sizes are exact, except those of flat values with room (graph/room.h): these
 * are capacities.
 *
 * Invariants:
 *   1. The function's lock is held while its caches are used.
 *   2. The cache is ordered by last use. Removing a recording removes its prepared graphs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/function.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/thread.h"
#include "graph/room.h"
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

ch_function *ch_function_ref(ch_function *f)
{
    if (f != NULL)
        atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
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
        ch__recording_free(r);
    }
    ch_graph_unref(f->fixed_graph);
    ch__free(f->fixed_may_have_room);
    ch_graph_unref(f->last_graph);
    ch__prepared_unref(f->last_prepared);
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

int64_t ch_function_runs(const ch_function *f)
{
    return f != NULL ? atomic_load(&f->n_runs) : 0;
}

ch_status ch_function_set_runs(ch_function *f, int64_t runs)
{
    if (f == NULL || runs < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "set the number of runs of %s to %lld: want a function, and 0 or more",
                        f != NULL ? f->name : "NULL", (long long)runs);
    atomic_store(&f->n_runs, runs);
    return CH_OK;
}

void ch__function_traffic(ch_function *f, ch_traffic_counts *out)
{
    ch_prepared *p = ch__function_last(f);

    *out = p != NULL ? p->traffic : (ch_traffic_counts){.calls = {0}};
    ch__prepared_unref(p);
}

ch_prepared *ch__function_last(ch_function *f)
{
    ch_prepared *p;

    pthread_mutex_lock(&f->lock);
    p = f->last_prepared != NULL ? ch__prepared_ref(f->last_prepared) : NULL;
    pthread_mutex_unlock(&f->lock);
    return p;
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
    if (f != NULL && f->last_prepared != NULL)
        return ch__program_print(f->last_prepared->program[0], text, size);
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

/* ---- room ---- */

/* Returns the last row split, that is, the number of flat values; -1: there are no splits. */
static int64_t last_split(const ch_tensor *t)
{
    int64_t n = t->shape.rank == 1 ? t->shape.dim[0] : 0;

    if (n < 1 || (t->dtype != CH_I64 && t->dtype != CH_I32))
        return -1;
    return t->dtype == CH_I64 ? ((const int64_t *)(const void *)t->data)[n - 1]
                              : ((const int32_t *)(const void *)t->data)[n - 1];
}

/* Returns true if the row splits of flat values (input i) end within the values on every
 * replica. Only the splits of the same component are compared: a batch may have several
 * components with as many rows, but different numbers of values. */
static bool splits_end_within(const ch_graph *g, const ch_args *a, int i)
{
    int64_t splits = ((const ch_input_attrs *)ch__attrs(g->input[i]))->splits_input - 1;

    for (int r = 0; r < a->n_local && splits >= 0 && splits < a->n_in; r++)
        if (last_split(a->tensor[r * a->n_in + splits]) >
            a->tensor[r * a->n_in + i]->shape.dim[0])
            return false;
    return true;
}

/* Returns true if flat values i and j have equal lengths on every replica. */
static bool same_lengths(const ch_args *a, int i, int j)
{
    for (int r = 0; r < a->n_local; r++)
        if (a->tensor[r * a->n_in + i]->shape.dim[0] !=
            a->tensor[r * a->n_in + j]->shape.dim[0])
            return false;
    return true;
}

/* Returns true if input i, which may have room, has room in this run. If the row splits or the
 * lengths do not match, the sizes stay exact, so that the error is detected and reported.
 * Inputs that share a symbol have room together, or not at all. */
static bool has_room(const ch_graph *g, const ch_args *a, int i)
{
    int sym = g->input[i]->dims.dim[0].sym;

    for (int j = 0; j < a->n_in; j++)
        if (g->input[j]->dims.rank > 0 && g->input[j]->dims.dim[0].sym == sym &&
            (!splits_end_within(g, a, j) || !same_lengths(a, i, j)))
            return false;
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

/* Returns true if an observer is shown the values of all nodes. Then the sizes are exact,
 * because observers are shown live rows only. */
bool ch__function_is_watched(const ch_function *f)
{
    return f->see != NULL || ch__config()->interpret;
}

void ch__function_shapes(const ch_function *f, const ch_graph *g, const bool *may_have_room,
                         ch_args *a)
{
    for (int i = 0; i < a->n_in; i++) {
        bool has = may_have_room[i] && !ch__function_is_watched(f) && has_room(g, a, i);

        for (int r = 0; r < a->n_local; r++) {
            ch_shape *s = &a->shape[r * a->n_in + i];

            *s = a->tensor[r * a->n_in + i]->shape;
            if (has)
                s->dim[0] = capacity_of(a, i) + (ch__room_is_poisoned() ? CH_ROOM_POISONED : 0);
        }
    }
}

/* ---- programs ---- */

/* Returns the remedy for a size that changes often. */
static const char *remedy_for(const ch_node *input, int axis)
{
    if (axis == 0 && ((const ch_input_attrs *)ch__attrs(input))->splits_input != 0)
        return "use these values only in ops where a program fits many sizes (by element, by "
               "row, ch_gather, ch_embedding_bag; cohort/function.h), or pad the rows "
               "(ch_dataset_padded_batch)";
    return axis == 0 ? "make batches of one size (ch_dataset_batch with drop_remainder)"
                     : "pad to a few sizes (ch_dataset_padded_batch, or "
                       "ch_dataset_bucket_by_length with pad_to_boundary)";
}

/* Finds the first size in which the prepared graphs p and `other` differ: axis *axis of
 * shape[*at]. Capacities are left out, because there are few of them. */
static bool find_changed_size(const ch_prepared *p, const ch_prepared *other,
                              const bool *may_have_room, int *at, int *axis)
{
    if (other == NULL || other->n_in != p->n_in || other->n_local != p->n_local)
        return false;
    for (*at = 0; *at < p->n_local * p->n_in; ++*at) {
        bool is_capacity = may_have_room[*at % p->n_in] && !p->watched;

        for (*axis = is_capacity; *axis < p->shape[*at].rank; ++*axis)
            if (p->shape[*at].dim[*axis] != other->shape[*at].dim[*axis])
                return true;
    }
    return false;
}

/* Counts the programs that were planned because a size changed. Logs the size when the tenth
 * program is planned. p is the new prepared graph, `other` the one that was used before. */
static void warn_many_programs(ch_function *f, const ch_prepared *p, const ch_prepared *other,
                               const bool *may_have_room)
{
    const char *name;
    int         at, axis;

    if (!find_changed_size(p, other, may_have_room, &at, &axis) || ++f->n_resized != 9)
        return;
    name = p->graph->input_name[at % p->n_in];
    ch__log(CH_LOG_WARNING, "program-cache",
            "%s: ten programs already; axis %d of input %d%s%s%s keeps changing "
            "(%lld, then %lld), and every size needs a program; %s",
            f->name, axis, at % p->n_in, name != NULL ? " (" : "", name != NULL ? name : "",
            name != NULL ? ")" : "", (long long)other->shape[at].dim[axis],
            (long long)p->shape[at].dim[axis], remedy_for(p->graph->input[at % p->n_in], axis));
}

static bool prepared_fits(const ch_prepared *p, const ch_graph *g, const ch_run *run,
                          const ch_args *a, bool watched)
{
    if (p->graph != g || p->n_local != run->n_local || p->n_cores != ch__run_cores(run) ||
        p->n_in != a->n_in || p->watched != watched)
        return false;
    for (int m = 0; m < p->n_members; m++)
        if (p->device[m] != run->device[m])
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

/* Returns the prepared graph for these inputs, and moves it to the front of the cache; NULL:
 * none. */
static ch_prepared *find_prepared(ch_function *f, const ch_graph *g, const ch_run *run,
                                  const ch_args *a)
{
    for (ch_prepared **link = &f->programs; *link != NULL; link = &(*link)->next)
        if (prepared_fits(*link, g, run, a, ch__function_is_watched(f))) {
            ch_prepared *p = *link;

            *link = p->next;
            p->next = f->programs;
            f->programs = p;
            return p;
        }
    return NULL;
}

/* The number of programs of a graph from which on capacities are raised. */
enum { RAISE_FROM = 8 };

/* Returns true if inputs of several lengths have room, and each combination of their capacities
 * would need a program. */
static bool has_many_combinations(const ch_function *f, const ch_graph *g,
                                  const bool *may_have_room, const ch_args *a)
{
    int n = 0, sym = 0, n_lengths = 0;

    for (const ch_prepared *p = f->programs; p != NULL; p = p->next)
        n += p->graph == g;
    for (int i = 0; i < a->n_in && n >= RAISE_FROM && !ch__function_is_watched(f); i++)
        if (may_have_room[i] && has_room(g, a, i) && g->input[i]->dims.dim[0].sym != sym) {
            sym = g->input[i]->dims.dim[0].sym;
            n_lengths++;
        }
    return n_lengths > 1;
}

/* Raises the capacities in a->shape to the largest of the graph's programs, and a capacity that
 * is larger than all of them to a power of two. So the program with the largest capacities
 * serves the combinations that have no program of their own, and a capacity is raised at most
 * once for each power of two. With two lengths of up to 4096 values, the first RAISE_FROM
 * programs and those after them are at most 20; each further length adds at most 7. */
static void raise_capacities(const ch_function *f, const ch_graph *g, const bool *may_have_room,
                             const ch_args *a)
{
    int64_t extra = ch__room_is_poisoned() ? CH_ROOM_POISONED : 0;

    for (int i = 0; i < a->n_in; i++) {
        int64_t needs = a->shape[i].dim[0], most = 0;

        if (!may_have_room[i] || !has_room(g, a, i))
            continue;
        for (const ch_prepared *p = f->programs; p != NULL; p = p->next)
            if (p->graph == g && p->n_local == a->n_local && p->shape[i].dim[0] > most)
                most = p->shape[i].dim[0];
        if (needs > most) {
            for (most = CH_RAGGED_LEAST; most < needs - extra;)
                most *= 2;
            most += extra;
        }
        for (int r = 0; r < a->n_local; r++)
            a->shape[r * a->n_in + i].dim[0] = most;
    }
}

ch_status ch__function_prepare(ch_function *f, ch_graph *g, const bool *may_have_room,
                               const ch_run *run, const ch_args *a, ch_prepared **out)
{
    ch_prepared *p = find_prepared(f, g, run, a);
    int64_t      began;
    ch_status    rc;

    if (p == NULL && has_many_combinations(f, g, may_have_room, a)) {
        raise_capacities(f, g, may_have_room, a);
        p = find_prepared(f, g, run, a);
    }
    if (p != NULL) {
        *out = p;
        return CH_OK;
    }
    began = ch__now_ns();
    rc = ch__prepared_new(g, may_have_room, run, a, ch__function_is_watched(f), out);
    f->planning_ns += ch__now_ns() - began;
    if (rc != CH_OK)
        return ch__fail_at(rc, "%s", f->name);
    (*out)->next = f->programs;
    f->programs = *out;
    f->n_programs++;
    warn_many_programs(f, *out, (*out)->next, may_have_room);
    if (f->n_programs > CH_MAX_PROGRAMS)
        evict_program(f);
    return CH_OK;
}
