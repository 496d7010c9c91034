/* strategy/found_layouts.c -- layouts of variables and inputs that are found by search
 * (ch_strategy_parts.choose_layouts).
 *
 * A variable whose layout the program has not chosen is open (ch_var.is_open): it is stored in
 * provisional tiles, split along its longest axis, so that a large model fits while it is
 * created. Before the first run of a function, when its step is divided, spmd/search.c finds
 * layouts for the open variables of the step. These are moved to the new tiles, with their
 * values, and are not open any more: later steps use them as they are.
 *
 * The search estimates the memory of a step. If the memory of the devices is limited, the
 * programs of the found layouts are planned before any variable is moved. If a program does not
 * fit, the search is repeated with less memory, and at last for the plan of least memory.
 *
 * Kin are a variable and those that were created beside it, such as the slots of optimizers. An
 * open variable gets the layout of its kin, or of its class, if that has been found before.
 *
 * Invariants:
 *   1. No prepared program uses an open variable. So the tiles of an open variable may be moved
 *      although other functions are running.
 *   2. Searches and moves of a strategy are made one after the other, under st->search_lock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "graph/program.h"
#include "strategy/cores.h"
#include "strategy/strategy.h"
#include "tensor/device.h"

enum { MOST_SEARCHES = 6 }; /* if programs need more memory than the search estimates */

/* The variables of a step. */
typedef struct step_vars {
    ch_strategy   *st;
    ch_graph      *g;   /* of the replica with the largest inputs */
    int            n;   /* number of resources */
    ch_var       **var; /* by resource: referenced; NULL: borrowed */
    ch_search_var *may;
    int            n_all; /* variables of the strategy, referenced */
    ch_var       **all;
} step_vars;

static void step_vars_drop(step_vars *s)
{
    for (int i = 0; s->var != NULL && i < s->n; i++)
        ch_var_unref(s->var[i]);
    for (int i = 0; s->all != NULL && i < s->n_all; i++)
        ch_var_unref(s->all[i]);
    ch__free(s->var);
    ch__free(s->may);
    ch__free(s->all);
}

static ch_status step_vars_find(step_vars *s)
{
    ch_status rc = CH_OK;

    s->n = s->g->n_resources;
    s->var = ch__calloc((size_t)s->n + 1, sizeof(ch_var *));
    s->may = ch__calloc((size_t)s->n + 1, sizeof(*s->may));
    if (s->var == NULL || s->may == NULL)
        return ch__fail_memory("the search for layouts");
    for (int i = 0; i < s->n && rc == CH_OK; i++)
        if (!s->g->resource[i].is_borrowed)
            rc = ch__var_of_resource(s->st, &s->g->resource[i], &s->var[i]);
    return rc == CH_OK ? ch__strategy_vars(s->st, &s->n_all, &s->all) : rc;
}

/* Marks a variable whose layout was found. */
static void close_var(ch_var *v)
{
    pthread_mutex_lock(&v->strategy->lock);
    v->is_open = false;
    v->is_found = true;
    pthread_mutex_unlock(&v->strategy->lock);
}

/* Gives open variables the layouts of kin, or of variables of their class, that were found
 * before. */
static ch_status follow_earlier(const step_vars *s)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->n_all && s->var[i] != NULL && s->var[i]->is_open; k++) {
            ch_var       *v = s->var[i];
            const ch_var *of = s->all[k];
            ch_tile_move  move = {.var = v};

            if (!of->is_found ||
                (of->kin != v->kin && !ch__same_class(v->name, v->shape, of->name, of->shape)))
                continue;
            ch__layout_beside(v->shape, of->tiles, of->shape, &move.to);
            if (!ch__layout_same_tiles(v->tiles, &move.to))
                rc = ch__vars_set_tiles(1, &move);
            if (rc != CH_OK)
                return rc;
            close_var(v);
        }
    return rc;
}

/* Sets what the search may do with each variable. Of kin, the largest leads. Returns the number
 * of variables that are free. */
static int find_leaders(const step_vars *s)
{
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        const ch_var *v = s->var[i];

        s->may[i] = (ch_search_var){.is_free = v != NULL && v->is_open, .leader = i};
        n += s->may[i].is_free;
        for (int k = 0; k < s->n && v != NULL && v->is_open; k++) {
            const ch_var *of = s->var[k], *now = s->var[s->may[i].leader];

            if (of == NULL || of->kin != v->kin)
                continue;
            if (ch_shape_count(of->shape) > ch_shape_count(now->shape) ||
                (ch_shape_count(of->shape) == ch_shape_count(now->shape) &&
                 k < s->may[i].leader))
                s->may[i].leader = k;
        }
    }
    return n;
}

/* Returns the bytes of a device that are left for the variables of the step, which it holds in
 * part, and for the values of a step. `m` is the number of the member. */
static int64_t memory_of(const step_vars *s, const ch_device *d, int m)
{
    int64_t limit = (int64_t)ch__device_limit(d);
    int64_t others = (int64_t)ch__device_reserved(d) - (int64_t)ch__device_workspace_bytes(d);

    if (limit == 0)
        return INT64_MAX;
    for (int i = 0; i < s->n; i++)
        if (s->var[i] != NULL && s->var[i]->copy[m] != NULL)
            others -= (int64_t)ch_tensor_bytes(s->var[i]->copy[m]);
    return limit > others ? limit - others : 0;
}

/* Returns the variable of the step that leads `v`, which is open, or -1. */
static int leader_of(const step_vars *s, const ch_var *v)
{
    for (int i = 0; i < s->n; i++)
        if (s->may[i].is_free && s->may[i].leader == i && v->kin == s->var[i]->kin)
            return i;
    return -1;
}

/* Moves the open variables of the step to the layouts that were found, and their kin that the
 * step does not use. */
static ch_status move_all(const step_vars *s, const ch_search_result *found)
{
    ch_tile_move *move = ch__calloc((size_t)s->n_all + 1, sizeof(*move));
    int           n = 0;
    ch_status     rc = move == NULL ? ch__fail_memory("the search for layouts") : CH_OK;

    for (int k = 0; k < s->n_all && rc == CH_OK; k++) {
        ch_var *v = s->all[k];
        int     i = v->is_open ? leader_of(s, v) : -1;

        if (i < 0)
            continue;
        ch__layout_beside(v->shape, &found->tiles[i], s->var[i]->shape, &move[n].to);
        move[n].var = v;
        n += !ch__layout_same_tiles(v->tiles, &move[n].to);
    }
    if (rc == CH_OK)
        rc = ch__vars_set_tiles(n, move);
    for (int k = 0; k < s->n_all && rc == CH_OK; k++)
        if (s->all[k]->is_open && leader_of(s, s->all[k]) >= 0)
            close_var(s->all[k]);
    ch__free(move);
    return rc;
}

/* ---- programs of found layouts ---- */

/* Layouts that may become those of the step. */
typedef struct trial {
    const step_vars        *s;
    const ch_run           *run;
    ch_graph *const        *variant;
    const ch_spmd_options  *opt;
    const ch_search_result *found;
} trial;

/* Sets *out to the found layout of a variable, or to that which it has
 * (ch_spmd_options.variable). */
static ch_status layout_in_trial(void *arg, const ch_resource *r, ch_core_layout *out,
                                 ch_layout_source *source, const char **rule)
{
    const trial *t = arg;

    for (int i = 0; i < t->s->n; i++)
        if (t->s->may[i].is_free && strcmp(t->s->g->resource[i].name, r->name) == 0) {
            *source = CH_LAYOUT_SEARCH;
            *rule = NULL;
            ch__layout_copy(&t->found->tiles[i], out);
            return CH_OK;
        }
    return t->opt->variable(t->opt->arg, r, out, source, rule);
}

/* Plans the program of member m, which changes its graph. Sets *bytes to the memory for its
 * values. */
static ch_status plan_values(const trial *t, ch_graph *core, int m, int64_t *bytes)
{
    ch_plan_options opt = {.keep_all = ch__function_is_watched(t->run->function),
                           .threads = ch_device_threads(t->run->device[m])};
    ch_program     *p = NULL;
    ch_status       rc = ch__program_new(core, &opt, &p);

    if (rc == CH_OK)
        *bytes = (int64_t)p->arena_bytes;
    ch__program_unref(p);
    return rc;
}

/* Sets values[c] to the memory for values on core c of the replica that needs most. */
static ch_status plan_programs(const trial *t, int64_t *values)
{
    int             n = ch__run_members(t->run), cores = t->opt->n_cores;
    ch_graph      **core = ch__calloc((size_t)n, sizeof(*core));
    int64_t        *bytes = ch__calloc((size_t)n, sizeof(*bytes));
    ch_spmd_options opt = *t->opt;
    trial           own = *t;
    ch_status       rc =
        core == NULL || bytes == NULL ? ch__fail_memory("the search for layouts") : CH_OK;

    opt.variable = layout_in_trial;
    opt.arg = &own;
    opt.input_axis = t->found->input_axis;
    if (rc == CH_OK)
        rc = ch__spmd_divide(&opt, t->run->n_local, t->variant, core, NULL);
    for (int m = 0; m < n && rc == CH_OK; m++) {
        int first = 0;

        while (core[first] != core[m])
            first++;
        bytes[m] = bytes[first];
        if (first == m)
            rc = plan_values(t, core[m], m, &bytes[m]);
        if (bytes[m] > values[m % cores])
            values[m % cores] = bytes[m];
    }
    for (int m = 0; core != NULL && m < n; m++)
        ch_graph_unref(core[m]);
    ch__free(core);
    ch__free(bytes);
    return rc;
}

/* Sets *out to what the step needs, with the found layouts, on the core that lacks most, or has
 * least left. `memory`: by core. */
static ch_status find_needs(const trial *t, const int64_t *memory, ch_search_needs *out)
{
    const step_vars *s = t->s;
    int64_t          values[CH_MAX_CORES] = {0}, most = INT64_MIN;
    ch_status        rc = plan_programs(t, values);

    for (int c = 0; c < t->opt->n_cores && rc == CH_OK; c++) {
        ch_search_needs now = {.core = c, .values = values[c], .memory = memory[c]};

        for (int i = 0; i < s->n; i++) {
            const ch_resource *r = &s->g->resource[i];
            ch_region          at;

            if (!r->is_borrowed && ch__core_region(&t->found->tiles[i], r->shape, c, &at))
                *(s->may[i].leader == i ? &now.variables : &now.slots) +=
                    ch__region_count(&at, r->shape.rank) * (int64_t)ch_dtype_bytes(r->dtype);
        }
        if (now.variables + now.slots + now.values - memory[c] > most) {
            most = now.variables + now.slots + now.values - memory[c];
            *out = now;
        }
    }
    return rc;
}

/* ---- the search ---- */

/* Searches layouts with programs that fit p->memory, which it changes. */
static ch_status find_fitting(trial *t, ch_search_problem *p, ch_search_result *found)
{
    int64_t         memory[CH_MAX_CORES], bytes;
    bool            start_fits[CH_SEARCH_STARTS], is_limited = false;
    ch_search_needs needs;
    ch_status       rc = CH_OK;

    memcpy(memory, p->memory, sizeof(memory));
    for (int c = 0; c < t->opt->n_cores; c++)
        is_limited |= memory[c] < INT64_MAX;
    t->found = found;
    for (int i = 1;; i++) {
        rc = ch__search(p, t->s->g, found);
        if (rc != CH_OK || !is_limited)
            return rc;
        if (i == 1)
            memcpy(start_fits, found->report->start_fits, sizeof(start_fits));
        rc = find_needs(t, memory, &needs);
        bytes = needs.variables + needs.slots + needs.values;
        if (rc == CH_OK && bytes > needs.memory && !found->fits)
            rc = ch__search_fail(found->report->n_plans, &needs);
        if (rc != CH_OK || bytes <= needs.memory)
            break;
        for (int c = 0; c < t->opt->n_cores; c++) {
            double scale = (double)needs.memory / (double)bytes;

            if (memory[c] == INT64_MAX)
                continue;
            p->memory[c] =
                i + 1 < MOST_SEARCHES
                    ? (int64_t)(scale * (double)ch__min(p->memory[c], found->report->needs))
                    : 0;
        }
        ch__search_drop(found);
    }
    if (rc != CH_OK)
        ch__search_drop(found);
    else
        memcpy(found->report->start_fits, start_fits, sizeof(start_fits));
    return rc;
}

/* Searches layouts for the open variables of the step, and for its inputs. */
static ch_status search(const step_vars *s, const ch_run *run, ch_graph *const *variant,
                        ch_spmd_options *opt, ch_search_report **report)
{
    trial             t = {.s = s, .run = run, .variant = variant, .opt = opt};
    ch_search_problem p = {.opt = opt,
                           .step = run->function->name,
                           .var = s->may,
                           .splits_inputs = !s->st->parts.split_rows && s->g->n_inputs > 0,
                           .n_replicas = run->n_replicas};
    ch_search_result  found = {.tiles = NULL};
    ch_status         rc = follow_earlier(s);

    if (rc != CH_OK || (find_leaders(s) == 0 && !p.splits_inputs))
        return rc;
    for (int c = 0; c < opt->n_cores; c++)
        p.memory[c] = INT64_MAX;
    for (int m = 0; m < ch__run_members(run); m++)
        p.memory[m % opt->n_cores] =
            ch__min(p.memory[m % opt->n_cores], memory_of(s, run->device[m], m));
    rc = find_fitting(&t, &p, &found);
    if (rc == CH_OK)
        rc = move_all(s, &found);
    if (rc == CH_OK) {
        opt->input_axis = found.input_axis;
        *report = found.report;
        found.report = NULL;
    }
    ch__search_drop(&found);
    return rc;
}

ch_status ch__find_layouts(ch_strategy *st, const ch_run *run, ch_graph *const *variant,
                           ch_spmd_options *opt, ch_search_report **report)
{
    step_vars s = {.st = st, .g = variant[ch__largest_replica(run->n_local, variant)]};
    ch_status rc;

    pthread_mutex_lock(&st->search_lock);
    rc = step_vars_find(&s);
    if (rc == CH_OK)
        rc = search(&s, run, variant, opt, report);
    pthread_mutex_unlock(&st->search_lock);
    step_vars_drop(&s);
    return rc;
}
