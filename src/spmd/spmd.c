/* spmd/spmd.c -- divides the graphs of the replicas of a run: the passes in their order.
 *
 * strategy/cores.c calls ch__spmd_divide. The file makes one division (ch_core_division), on
 * the graph of the replica with the largest inputs, and repeats pass 1 while calls must be
 * expanded. Then it writes the graphs of the cores of each different replica. The functions for
 * divisions are also used by search.c, which resets a division and makes it again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/spmd.h"

#include <string.h>

#include "spmd/divide.h"

const ch_core_layout *ch__division_replicated(ch_core_division *d, int rank)
{
    const ch_core_layout *unique = NULL;
    ch_core_layout        l;

    ch__layout_replicated(d->opt->n_cores, rank, &l);
    return ch__layout_intern(d->layouts, &l, &unique) == CH_OK ? unique : NULL;
}

const ch_core_layout *ch__division_default(ch_core_division *d, int rank)
{
    const ch_core_layout *unique = NULL;
    ch_core_layout        l;

    if (!d->opt->defaults_to_core_0)
        return ch__division_replicated(d, rank);
    ch__layout_on_core(d->opt->n_cores, rank, 0, &l);
    return ch__layout_intern(d->layouts, &l, &unique) == CH_OK ? unique : NULL;
}

void ch__division_end(ch_core_division *d)
{
    for (int i = 0; d->call != NULL && i < d->n_calls; i++)
        for (int k = 0; d->call[i].bodies != NULL && k < d->call[i].bodies->n; k++)
            ch__division_end(&d->call[i].bodies->body[k]);
    ch__arena_drop(&d->base);
    ch__arena_drop(&d->arena);
    *d = (ch_core_division){.opt = d->opt, .cost = d->cost};
}

void ch__division_reset(ch_core_division *d)
{
    ch__arena_drop(&d->arena);
    d->peak = NULL;
    memset(d->value, 0, ((size_t)d->g->n_values + 1) * sizeof(*d->value));
    memset(d->tiles, 0, ((size_t)d->g->n_resources + 1) * sizeof(*d->tiles));
    for (int i = 0; i < d->n_calls; i++) {
        ch_call_plan *p = &d->call[i];

        p->n_seen[0] = p->n_seen[1] = 0;
        p->ranges = NULL;
        p->stays_partial = 0;
        p->array = NULL;
        if (p->bodies != NULL)
            ch__bodies_reset(p);
    }
}

static void end_division(ch_core_division *d)
{
    ch_layout_table *layouts = d->layouts;

    ch__division_end(d);
    ch__layout_table_free(layouts);
}

/* Returns the numbers of n values, those of most bytes first; equal ones keep their order.
 * `outputs` are the outputs of a call, or NULL. NULL: out of memory. */
static const int *by_bytes(ch_core_division *d, int n, ch_node *const *value,
                           const ch_node *outputs)
{
    int     *order = ch__arena_alloc(&d->base, ((size_t)n + 1) * sizeof(*order));
    int64_t *bytes = ch__arena_alloc(&d->base, ((size_t)n + 1) * sizeof(*bytes));

    if (order == NULL || bytes == NULL)
        return NULL;
    for (int i = 0; i < n; i++) {
        int k = i;

        bytes[i] = ch__bytes(outputs != NULL ? &outputs[i] : value[i]);
        for (; k > 0 && bytes[order[k - 1]] < bytes[i]; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    return order;
}

ch_status ch__division_begin(ch_core_division *d, ch_graph *g)
{
    ch_status rc = CH_OK;
    int       i = 0;

    d->g = g;
    d->n_calls = g->n_calls;
    d->call = ch__arena_alloc(&d->base, ((size_t)g->n_calls + 1) * sizeof(*d->call));
    d->value = ch__arena_alloc(&d->base, ((size_t)g->n_values + 1) * sizeof(*d->value));
    d->tiles = ch__arena_alloc(&d->base, ((size_t)g->n_resources + 1) * sizeof(*d->tiles));
    if (d->call == NULL || d->value == NULL || d->tiles == NULL)
        return ch__fail_memory("the layouts of a step");
    for (const ch_node *n = g->first; n != NULL && rc == CH_OK; n = n->next, i++) {
        d->call[i].call = n;
        d->call[i].in_order = by_bytes(d, n->n_in, n->in, NULL);
        d->call[i].out_order = by_bytes(d, n->n_out, NULL, n);
        if (d->call[i].in_order == NULL || d->call[i].out_order == NULL)
            return ch__fail_memory("the layouts of a step");
        rc = ch__factors_of(n, &d->base, &d->call[i].rule);
        if (rc == CH_OK && n->op->ties != NULL)
            rc = ch__bodies_begin(d, &d->call[i]);
    }
    return rc;
}

static int64_t input_elements(const ch_graph *g)
{
    int64_t sum = 0;

    for (int i = 0; i < g->n_inputs; i++)
        sum += ch__count(g->input[i]);
    return sum;
}

int ch__largest_replica(int n, ch_graph *const *graph)
{
    int largest = 0;

    for (int r = 1; r < n; r++)
        if (input_elements(graph[r]) > input_elements(graph[largest]))
            largest = r;
    return largest;
}

/* Makes the division of the replica with the largest inputs. Expands calls in the graphs of all
 * replicas until nothing must be expanded. */
static ch_status divide(ch_core_division *d, int n, ch_graph **graph)
{
    int largest = ch__largest_replica(n, graph);

    for (;;) {
        bool      any = false;
        ch_status rc = ch__layout_table_new(d->opt->n_cores, &d->layouts);

        if (rc == CH_OK)
            rc = ch__division_begin(d, graph[largest]);
        if (rc == CH_OK)
            rc = ch__propagate(d);
        if (rc == CH_OK)
            rc = ch__expand(d, n, graph, &any);
        if (rc != CH_OK || !any)
            return rc == CH_OK ? ch__choose(d) : rc;
        end_division(d);
    }
}

/* Lists the different graphs, and sets index[r] to that of replica r. Returns their number. */
static int find_variants(int n, ch_graph *const *graph, ch_graph **own, int *index)
{
    int n_own = 0;

    for (int r = 0; r < n; r++) {
        int same = 0;

        while (same < r && graph[same] != graph[r])
            same++;
        index[r] = same < r ? index[same] : n_own;
        if (same == r)
            own[n_own++] = ch_graph_ref(graph[r]);
    }
    return n_own;
}

ch_status ch__spmd_divide(const ch_spmd_options *opt, int n_replicas, ch_graph *const *graph,
                          ch_graph **core, ch_step_report **report)
{
    ch_core_division d = {.opt = opt};
    ch_step_report  *own_report = NULL;
    size_t           n = (size_t)n_replicas, cores = (size_t)opt->n_cores;
    ch_graph       **own = ch__calloc(n, sizeof(ch_graph *));
    ch_graph       **part = ch__calloc(n * cores, sizeof(ch_graph *)); /* by variant and core */
    int             *index = ch__calloc(n, sizeof(int)), n_own = 0;
    ch_status        rc = CH_OK;

    if (own == NULL || part == NULL || index == NULL) {
        rc = ch__fail_memory("the layouts of a step");
        goto done;
    }
    n_own = find_variants(n_replicas, graph, own, index);
    rc = divide(&d, n_own, own);
    if (rc == CH_OK && report != NULL)
        rc = ch__step_report_new(&own_report);
    for (int i = 0; i < n_own && rc == CH_OK; i++)
        rc = ch__partition(&d, own[i], &part[(size_t)i * cores], i == 0 ? own_report : NULL);
    for (size_t i = 0; i < n * cores && rc == CH_OK; i++)
        core[i] = ch_graph_ref(part[(size_t)index[i / cores] * cores + i % cores]);
    if (rc == CH_OK && report != NULL) {
        ch__step_report_log(own_report);
        *report = own_report;
        own_report = NULL;
    }
done:
    ch__step_report_free(own_report);
    end_division(&d);
    for (size_t i = 0; part != NULL && i < n * cores; i++)
        ch_graph_unref(part[i]);
    for (int i = 0; i < n_own; i++)
        ch_graph_unref(own[i]);
    ch__free(part);
    ch__free(own);
    ch__free(index);
    return rc;
}
