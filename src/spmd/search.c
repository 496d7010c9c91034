/* spmd/search.c -- finds layouts for the variables and inputs of a step (search.h).
 *
 * Variables whose names differ only in numbers, such as the kernels of equal layers, are a
 * class and have one layout. A plan has a choice for each class, and one for the inputs. Its
 * cost is that of the division of the step that these layouts give, which passes 1 to 3 of the
 * partitioner make (divide.h): bytes that move, 0.1 byte for each operation of all cores, and
 * 32 KiB for each barrier. Of two plans that exceed the memory of a core, the better one
 * exceeds it less.
 *
 * From each of six starting points the search changes the choice of one class at a time, to the
 * one that makes the best plan. It goes around the classes until no change helps, and takes the
 * best plan of all starting points. If the logical mesh has several axes, it goes on from this
 * plan alone with the choices that split axes over single axes of the mesh, because there are
 * many of them. Plans that were evaluated are kept, because the paths from different starting
 * points meet. The search is deterministic.
 *
 * A plan is evaluated in a division of the graph that is used again and again: its calls and
 * rules, the table of layouts, and the costs of reshards in it do not depend on the plan. Calls
 * that must be expanded (expand.c) depend on it, so there is a tree of graphs: a child has the
 * graph of its parent with some calls expanded. Most plans expand the same calls.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/search.h"

#include <string.h>

#include "base/fault.h"
#include "base/map.h"
#include "spmd/divide.h"
#include "tensor/print.h"

static const double bytes_per_barrier = 32 << 10;

enum { STARTS = CH_SEARCH_STARTS };

/* A class of variables that the search gives a layout. */
typedef struct var_class {
    int                    leader; /* resource: the first variable that follows no other */
    int                    n_vars; /* variables of the class that follow no other */
    int64_t                bytes;  /* bytes of these variables */
    int                    n_choices, n_simple; /* n_simple: choices with at most one axis */
    const ch_core_layout **choice; /* layouts of the leader: unique, different, simple first */
    int                    start[3]; /* numbers of the choices: replicated, first, last axis */
} var_class;

/* A variable of the step. */
typedef struct search_var {
    int                    in;     /* its class; -1: the options give its layout */
    const ch_core_layout **choice; /* unique layouts by choice of the class; or a single one */
    const ch_core_layout  *tiles;  /* in the plan that is evaluated */
} search_var;

/* A plan that was evaluated. choice[n_classes] is that of the inputs. */
typedef struct plan {
    ch_division_cost cost;
    double           total;
    int64_t          needs, excess; /* most bytes of a core; most bytes that a core lacks */
    int              core;          /* the core with most bytes */
    int64_t          variables, slots, values; /* the parts of `needs` */
    struct plan     *next;
    uint16_t         choice[];
} plan;

/* A graph in which plans are evaluated. */
typedef struct search_graph {
    ch_graph            *g; /* referenced; NULL: the calls cannot be expanded */
    ch_core_division     d;
    uint64_t             expanded; /* the calls of the parent (ch__expanded_calls) */
    struct search_graph *child, *sibling;
} search_graph;

typedef struct searcher {
    const ch_search_problem *p;
    ch_spmd_options          opt;
    ch_graph                *g;
    ch_arena                 arena;
    ch_layout_table         *layouts;
    ch_map                   by_name;             /* search_var */
    search_var              *var;                 /* by resource */
    int                      n_classes, n_places; /* n_places: with the inputs */
    var_class *class;
    int              n_inputs;   /* choices for the inputs */
    bool             tries_mesh; /* also choices that are not simple */
    search_graph     root;
    int              n_plans;
    plan            *plans;
    ch_division_cost cost; /* of the division that is made */
} searcher;

static ch_status no_memory(void)
{
    return ch__fail_memory("the search for layouts");
}

static void *allocate(searcher *s, size_t n, size_t bytes)
{
    return ch__arena_alloc(&s->arena, (n + 1) * bytes);
}

/* ---- classes ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Returns `at`, after a number there: digits, perhaps after "_". */
static const char *skip_number(const char *at)
{
    const char *digits = at + (*at == '_');

    if (!is_digit(*digits))
        return at;
    while (is_digit(*digits))
        digits++;
    return digits;
}

bool ch__same_class(const char *name, ch_shape shape, const char *other, ch_shape other_shape)
{
    if (!ch_shape_equal(shape, other_shape))
        return false;
    for (;; name++, other++) {
        name = skip_number(name);
        other = skip_number(other);
        if (*name != *other)
            return false;
        if (*name == '\0')
            return true;
    }
}

void ch__layout_beside(ch_shape s, const ch_core_layout *l, ch_shape of, ch_core_layout *out)
{
    int from[CH_MAX_RANK];

    for (int k = 0; k < s.rank; k++)
        from[k] = k < of.rank && s.dim[k] == of.dim[k] ? k : -1;
    ch__layout_project(l, s.rank, from, out);
}

/* Returns the number of a choice of a class, or -1. */
static int find_choice(const var_class *c, const ch_core_layout *unique)
{
    for (int i = 0; i < c->n_choices; i++)
        if (c->choice[i] == unique)
            return i;
    return -1;
}

/* Adds the choice to split axis k over axis m of the mesh and, unless k2 is -1, axis k2 over
 * axis m2. Sets *number to the number of the choice; `number` may be NULL. */
static ch_status add_choice(searcher *s, var_class *c, int k, int m, int k2, int m2,
                            int *number)
{
    ch_shape              shape = s->g->resource[c->leader].shape;
    int                   axis[CH_MAX_RANK];
    const ch_core_layout *unique;
    ch_core_layout        l;
    ch_status             rc;

    for (int i = 0; i < shape.rank; i++)
        axis[i] = i == k && shape.dim[i] > 1 ? m : i == k2 && shape.dim[i] > 1 ? m2 : CH_OFF;
    rc = ch__layout_over_mesh(s->p->step, s->opt.n_mesh, s->opt.mesh, shape.rank, axis, &l);
    if (rc == CH_OK)
        rc = ch__layout_intern(s->layouts, &l, &unique);
    if (rc != CH_OK)
        return rc;
    if (find_choice(c, unique) < 0)
        c->choice[c->n_choices++] = unique;
    if (number != NULL)
        *number = find_choice(c, unique);
    return CH_OK;
}

/* Lists the choices of a class. */
static ch_status add_choices(searcher *s, var_class *c)
{
    int       rank = s->g->resource[c->leader].shape.rank, n = s->opt.n_mesh;
    int       most = 1 + rank + rank * n + rank * rank * n * n; /* of the calls of add_choice */
    ch_status rc;

    c->choice = allocate(s, (size_t)most, sizeof(*c->choice));
    if (c->choice == NULL)
        return no_memory();
    rc = add_choice(s, c, -1, CH_OFF, -1, CH_OFF, &c->start[0]);
    c->start[1] = c->start[2] = c->start[0];
    for (int k = 0; k < rank && rc == CH_OK; k++)
        rc = add_choice(s, c, k, CH_MESH_ALL, -1, CH_OFF,
                        k == 0          ? &c->start[1]
                        : k == rank - 1 ? &c->start[2]
                                        : NULL);
    if (rank == 1)
        c->start[2] = c->start[1];
    c->n_simple = c->n_choices;
    for (int k = 0; k < rank; k++)
        for (int m = 0; m < n && rc == CH_OK; m++)
            rc = add_choice(s, c, k, m, -1, CH_OFF, NULL);
    for (int k = 0; k < rank; k++)
        for (int k2 = 0; k2 < rank; k2++)
            for (int m = 0; m < n * n && rc == CH_OK; m++)
                if (k != k2 && m / n != m % n)
                    rc = add_choice(s, c, k, m / n, k2, m % n, NULL);
    return rc;
}

/* Adds resource i to its class, which may be new. */
static ch_status add_to_class(searcher *s, int i)
{
    const ch_resource *r = &s->g->resource[i];
    int                k = 0;
    var_class         *c;

    while (k < s->n_classes &&
           !ch__same_class(r->name, r->shape, s->g->resource[s->class[k].leader].name,
                           s->g->resource[s->class[k].leader].shape))
        k++;
    c = &s->class[k];
    s->var[i].in = k;
    c->n_vars++;
    c->bytes += ch_shape_count(r->shape) * (int64_t)ch_dtype_bytes(r->dtype);
    if (k < s->n_classes)
        return CH_OK;
    s->n_classes++;
    c->leader = i;
    return add_choices(s, c);
}

/* Sets the layouts of resource i, by choice of its class. */
static ch_status add_layouts(searcher *s, int i)
{
    const ch_resource *r = &s->g->resource[i];
    search_var        *v = &s->var[i];
    int                n = v->in >= 0 ? s->class[v->in].n_choices : 1;
    ch_layout_source   source;
    const char        *rule;
    ch_core_layout     l;
    ch_status          rc = CH_OK;

    v->choice = allocate(s, (size_t)n, sizeof(*v->choice));
    if (v->choice == NULL)
        return no_memory();
    for (int k = 0; k < n && rc == CH_OK; k++) {
        if (v->in < 0)
            rc = s->p->opt->variable(s->p->opt->arg, r, &l, &source, &rule);
        else
            ch__layout_beside(r->shape, s->class[v->in].choice[k],
                              s->g->resource[s->class[v->in].leader].shape, &l);
        if (rc == CH_OK)
            rc = ch__layout_intern(s->layouts, &l, &v->choice[k]);
    }
    v->tiles = v->choice[0];
    return rc == CH_OK ? ch__map_set_name(&s->by_name, r->name, v) : rc;
}

/* Sorts the classes, those of most bytes first: their choices matter most. */
static void sort_classes(searcher *s)
{
    for (int i = 1; i < s->n_classes; i++)
        for (int k = i; k > 0 && s->class[k - 1].bytes < s->class[k].bytes; k--) {
            var_class c = s->class[k];

            s->class[k] = s->class[k - 1];
            s->class[k - 1] = c;
            for (int v = 0; v < s->g->n_resources; v++)
                s->var[v].in = s->var[v].in == k       ? k - 1
                               : s->var[v].in == k - 1 ? k
                                                       : s->var[v].in;
        }
}

/* Finds the classes, and the layouts of all variables. */
static ch_status find_classes(searcher *s)
{
    int       n = s->g->n_resources;
    ch_status rc = CH_OK;

    s->var = allocate(s, (size_t)n, sizeof(*s->var));
    s->class = allocate(s, (size_t)n, sizeof(*s->class));
    if (s->var == NULL || s->class == NULL)
        return no_memory();
    for (int i = 0; i < n && rc == CH_OK; i++) {
        s->var[i].in = -1;
        if (s->p->var[i].is_free && s->p->var[i].leader == i)
            rc = add_to_class(s, i);
    }
    for (int i = 0; i < n; i++)
        if (s->p->var[i].is_free)
            s->var[i].in = s->var[s->p->var[i].leader].in;
    sort_classes(s);
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = add_layouts(s, i);
    return rc;
}

/* Counts the choices for the inputs: whole, along axis 0, along axis 1 of images. */
static void find_inputs(searcher *s)
{
    s->n_inputs = 1;
    s->n_places = s->n_classes;
    for (int i = 0; i < s->g->n_inputs && s->p->splits_inputs; i++) {
        int rank = s->g->input[i]->dims.rank;

        if (rank > 0 && s->n_inputs < 2)
            s->n_inputs = 2;
        if (rank == CH_IMAGE_RANK)
            s->n_inputs = 3;
    }
    s->n_places += s->p->splits_inputs;
}

static int choices_at(const searcher *s, int place)
{
    const var_class *c = &s->class[place];

    if (place >= s->n_classes)
        return s->n_inputs;
    return s->tries_mesh ? c->n_choices : c->n_simple;
}

/* ---- evaluation ---- */

/* Sets *out to the layout of a variable in the plan (ch_spmd_options.variable). */
static ch_status layout_in_plan(void *arg, const ch_resource *r, ch_core_layout *out,
                                ch_layout_source *source, const char **rule)
{
    const searcher   *s = arg;
    const search_var *v = ch__map_find_name(&s->by_name, r->name);

    *source = CH_LAYOUT_SEARCH;
    *rule = NULL;
    if (v == NULL)
        return ch__fail(CH_INTERNAL, "search: no variable %s", r->name);
    ch__layout_copy(v->tiles, out);
    return CH_OK;
}

static void graph_end(search_graph *x)
{
    while (x->child != NULL) {
        search_graph *next = x->child->sibling;

        graph_end(x->child);
        x->child = next;
    }
    ch__division_end(&x->d);
    ch_graph_unref(x->g);
}

/* Lists the calls of graph g, which x references. */
static ch_status graph_begin(searcher *s, search_graph *x, ch_graph *g)
{
    x->g = g;
    x->d = (ch_core_division){.opt = &s->opt, .layouts = s->layouts, .cost = &s->cost};
    return ch__division_begin(&x->d, g);
}

/* Sets *out to the child of x in which some calls are expanded, given its wanted layouts. */
static ch_status find_child(searcher *s, search_graph *x, uint64_t expanded, search_graph **out)
{
    search_graph *child = x->child;
    ch_graph     *g = ch_graph_ref(x->g);
    bool          any = false;
    ch_status     rc;

    while (child != NULL && child->expanded != expanded)
        child = child->sibling;
    *out = child;
    if (child != NULL) {
        ch_graph_unref(g);
        return CH_OK;
    }
    child = allocate(s, 1, sizeof(*child));
    rc = child != NULL ? ch__expand(&x->d, 1, &g, &any) : no_memory();
    if (rc != CH_OK || !any)
        ch_graph_unref(g);
    if (rc != CH_OK)
        return rc;
    child->expanded = expanded;
    child->sibling = x->child;
    x->child = child;
    *out = child;
    return any ? graph_begin(s, child, g) : CH_OK;
}

/* Makes the division of the step in the current plan, and sets *out to it. */
static ch_status divide(searcher *s, const ch_core_division **out)
{
    search_graph *x = &s->root;

    s->cost = (ch_division_cost){.times = 1, .n_replicas = s->p->n_replicas};
    for (int c = 0; c < s->opt.n_cores; c++)
        s->cost.has_peaks |= s->p->memory[c] < INT64_MAX;
    for (;;) {
        search_graph *child;
        uint64_t      expanded;
        ch_status     rc;

        ch__division_reset(&x->d);
        rc = ch__propagate(&x->d);
        expanded = rc == CH_OK ? ch__expanded_calls(&x->d) : 0;
        if (rc == CH_OK && expanded != 0) {
            rc = find_child(s, x, expanded, &child);
            if (rc == CH_OK && child->g != NULL) {
                x = child;
                continue;
            }
        }
        *out = &x->d;
        return rc == CH_OK ? ch__choose(&x->d) : rc;
    }
}

/* Sets the memory that a plan needs on its cores. */
static void set_memory(const searcher *s, const ch_core_division *d, plan *p)
{
    for (int c = 0; c < s->opt.n_cores && d->peak != NULL; c++) {
        int64_t of[2] = {0, 0}, needs; /* variables that follow no other, and those that do */

        for (int i = 0; i < s->g->n_resources; i++) {
            const ch_resource *r = &s->g->resource[i];
            ch_region          at;

            if (!r->is_borrowed && ch__core_region(s->var[i].tiles, r->shape, c, &at))
                of[s->p->var[i].leader != i] +=
                    ch__region_count(&at, r->shape.rank) * (int64_t)ch_dtype_bytes(r->dtype);
        }
        needs = of[0] + of[1] + d->peak[c];
        if (needs - s->p->memory[c] > p->excess)
            p->excess = needs - s->p->memory[c];
        if (needs > p->needs) {
            p->needs = needs;
            p->core = c;
            p->variables = of[0];
            p->slots = of[1];
            p->values = d->peak[c];
        }
    }
}

/* Sets *out to the evaluation of a plan. */
static ch_status evaluate(searcher *s, const uint16_t *choice, const plan **out)
{
    size_t                  n = ((size_t)s->n_classes + 1) * sizeof(*choice);
    const ch_core_division *d;
    plan                   *p;
    ch_status               rc;

    for (p = s->plans; p != NULL; p = p->next)
        if (memcmp(p->choice, choice, n) == 0) {
            *out = p;
            return CH_OK;
        }
    p = ch__arena_alloc(&s->arena, sizeof(*p) + n);
    if (p == NULL)
        return no_memory();
    memcpy(p->choice, choice, n);
    for (int i = 0; i < s->g->n_resources; i++)
        if (s->var[i].in >= 0)
            s->var[i].tiles = s->var[i].choice[choice[s->var[i].in]];
    if (s->p->splits_inputs)
        s->opt.input_axis = choice[s->n_classes];
    rc = divide(s, &d);
    if (rc != CH_OK)
        return rc;
    p->cost = s->cost;
    p->total = s->cost.bytes + ch__bytes_per_operation(&s->opt) * s->cost.operations +
               bytes_per_barrier * s->cost.barriers;
    set_memory(s, d, p);
    p->next = s->plans;
    s->plans = p;
    s->n_plans++;
    *out = p;
    return CH_OK;
}

/* ---- the search ---- */

static bool is_better(const plan *a, const plan *b)
{
    return a->excess != b->excess ? a->excess < b->excess : a->total < b->total;
}

/* Evaluates starting point i: a class of variables has its choice start[i / 2], and the inputs
 * have choice i % 2. */
static ch_status start(searcher *s, int i, const plan **out)
{
    uint16_t *choice = allocate(s, (size_t)s->n_classes + 1, sizeof(*choice));

    if (choice == NULL)
        return no_memory();
    for (int k = 0; k < s->n_classes; k++)
        choice[k] = (uint16_t)s->class[k].start[i / 2];
    choice[s->n_classes] = (uint16_t)(s->n_inputs > 1 ? i % 2 : 0);
    return evaluate(s, choice, out);
}

/* Replaces *best by the best plan that differs from it in one place only, or leaves it. */
static ch_status improve(searcher *s, int place, const plan **best)
{
    size_t    n = (size_t)s->n_classes + 1;
    uint16_t *choice = allocate(s, n, sizeof(*choice));
    ch_status rc = choice == NULL ? no_memory() : CH_OK;

    if (rc == CH_OK)
        memcpy(choice, (*best)->choice, n * sizeof(*choice));
    for (int i = 0; i < choices_at(s, place) && rc == CH_OK; i++) {
        const plan *p = NULL;

        choice[place] = (uint16_t)i;
        rc = evaluate(s, choice, &p);
        if (rc == CH_OK && is_better(p, *best))
            *best = p;
    }
    return rc;
}

/* Changes one place after the other, until no change helps. */
static ch_status descend(searcher *s, const plan **best)
{
    ch_status rc = CH_OK;

    for (int place = 0, unchanged = 0; unchanged < s->n_places && rc == CH_OK;
         place = (place + 1) % s->n_places) {
        const plan *before = *best;

        rc = improve(s, place, best);
        unchanged = *best == before ? unchanged + 1 : 1;
    }
    return rc;
}

static ch_status find_best(searcher *s, const plan **first, const plan **best)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < STARTS && rc == CH_OK; i++) {
        const plan *p = NULL;

        rc = start(s, i, &p);
        first[i] = p;
        if (rc == CH_OK)
            rc = descend(s, &p);
        if (rc == CH_OK && (i == 0 || is_better(p, *best)))
            *best = p;
    }
    s->tries_mesh = true;
    return rc == CH_OK && s->opt.n_mesh > 1 ? descend(s, best) : rc;
}

ch_status ch__search_fail(int n_plans, const ch_search_needs *n)
{
    return ch__fail_limit(
        "no layouts fit the memory of the devices: the best of %d plans needs %lld bytes on "
        "core "
        "%d (%lld for variables, %lld for slots, %lld for values), and %lld are left for them "
        "(memory_bytes, or COHORT_DEVICE_MEMORY)",
        n_plans, (long long)(n->variables + n->slots + n->values), n->core,
        (long long)n->variables, (long long)n->slots, (long long)n->values,
        (long long)n->memory);
}

/* ---- the result ---- */

static ch_status add_class_report(const searcher *s, const plan *best, int k,
                                  ch_search_report *r)
{
    const var_class   *c = &s->class[k];
    const ch_resource *leader = &s->g->resource[c->leader];
    ch_found_class    *to = &r->class[k];
    char               text[256];

    (void)ch__core_layout_print(c->choice[best->choice[k]], text, sizeof(text));
    to->name = ch__arena_strdup(&r->arena, leader->name);
    to->layout = ch__arena_strdup(&r->arena, text);
    to->dtype = leader->dtype;
    to->shape = leader->shape;
    to->n_vars = c->n_vars;
    return to->name == NULL || to->layout == NULL ? no_memory() : CH_OK;
}

static ch_status new_report(const searcher *s, const plan *const *first, const plan *best,
                            ch_search_report **out)
{
    ch_search_report *r = ch__calloc(1, sizeof(*r));
    ch_status         rc = CH_OK;

    *out = r;
    if (r == NULL)
        return no_memory();
    r->n_plans = s->n_plans;
    r->cost = best->total;
    r->bytes = best->cost.bytes;
    r->operations = best->cost.operations;
    r->barriers = best->cost.barriers;
    r->needs = best->needs;
    r->input_axis = s->p->splits_inputs ? best->choice[s->n_classes] : -1;
    for (int i = 0; i < STARTS; i++) {
        r->start_cost[i] = first[i]->total;
        r->start_fits[i] = first[i]->excess == 0;
    }
    r->n_classes = s->n_classes;
    r->class = ch__arena_alloc(&r->arena, ((size_t)s->n_classes + 1) * sizeof(*r->class));
    if (r->class == NULL)
        return no_memory();
    for (int k = 0; k < s->n_classes && rc == CH_OK; k++)
        rc = add_class_report(s, best, k, r);
    return rc;
}

static ch_status new_result(const searcher *s, const plan *const *first, const plan *best,
                            ch_search_result *out)
{
    out->tiles = ch__calloc((size_t)s->g->n_resources + 1, sizeof(*out->tiles));
    if (out->tiles == NULL)
        return no_memory();
    for (int i = 0; i < s->g->n_resources; i++) {
        const search_var *v = &s->var[i];

        ch__layout_copy(v->choice[v->in >= 0 ? best->choice[v->in] : 0], &out->tiles[i]);
    }
    out->input_axis = s->p->splits_inputs ? best->choice[s->n_classes] : s->opt.input_axis;
    out->fits = best->excess == 0;
    out->needs = (ch_search_needs){.core = best->core,
                                   .variables = best->variables,
                                   .slots = best->slots,
                                   .values = best->values,
                                   .memory = s->p->memory[best->core]};
    return new_report(s, first, best, &out->report);
}

void ch__search_drop(ch_search_result *r)
{
    ch__free(r->tiles);
    ch__search_report_free(r->report);
    *r = (ch_search_result){.tiles = NULL};
}

ch_status ch__search(const ch_search_problem *p, ch_graph *g, ch_search_result *out)
{
    searcher    s = {.p = p, .opt = *p->opt, .g = g};
    const plan *first[STARTS] = {NULL}, *best = NULL;
    ch_status   rc = ch__layout_table_new(p->opt->n_cores, &s.layouts);

    *out = (ch_search_result){.tiles = NULL};
    s.opt.variable = layout_in_plan;
    s.opt.arg = &s;
    if (rc == CH_OK)
        rc = find_classes(&s);
    if (rc == CH_OK) {
        find_inputs(&s);
        rc = graph_begin(&s, &s.root, ch_graph_ref(g));
    }
    if (rc == CH_OK)
        rc = find_best(&s, first, &best);
    if (rc == CH_OK)
        rc = new_result(&s, first, best, out);
    if (rc != CH_OK)
        ch__search_drop(out);
    graph_end(&s.root);
    ch__map_drop(&s.by_name);
    ch__layout_table_free(s.layouts);
    ch__arena_drop(&s.arena);
    return rc;
}
