/* graph/fuse.c -- pass that merges chains of elementwise calls into fused calls, which store no
 * intermediate values.
 *
 * A walk over the calls in order puts them into groups. A call joins the groups that compute
 * its inputs, if these groups are open and have its shape. A call that uses a value of a group
 * without joining closes the group. Then each group becomes a fused call at the position of its
 * last member.
 *
 * The order of calls stays valid and the results do not change, because:
 *   1. A call outside a group that uses a value of the group comes after its last member, since
 *      the first such use closes the group. So no call uses a value before it is computed.
 *   2. Elementwise calls have no effects, so moving them to a later position changes nothing.
 *   3. Members keep their order, and the fused kernel calls the same block functions.
 *
 * Calls that compute the new value of a variable, and calls that depend on them, are late: they
 * run after all calls that can fail (graph/plan.c). A value that other calls wait for must not
 * become late by fusion with a late call. Such a group is cut before its first late member.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/graph.h"

enum { NONE = -1 };

/* A group of calls. Merged groups form a union-find forest by `into`. */
typedef struct group {
    int  into; /* group that this group was merged into; itself if not merged */
    bool open; /* further calls may join */
    int  n_steps;
    int  n_in;                /* number of values from outside the group */
    int  in[CH_FUSED_INPUTS]; /* their ids */
    int  first, last;         /* positions of the first and last member; set by list_members */
    /* has a late member; computes a value that is not late and that another group uses */
    bool has_late, is_waited_for;
} group;

typedef struct fuser {
    ch_graph *g;
    int       n_calls, n_values; /* of the graph before the pass */
    ch_node **call;
    int      *position; /* by value id: position of its call */
    group    *group;    /* by position of the call */
    int      *next;     /* by position: the next member of the same group; NONE: last */
    int      *step;     /* by position: number of the call in its chain; NONE: not fused */
    bool     *late;     /* by position */
    bool     *used;     /* by value id: used outside its group, or a root */
    ch_node **to;       /* by value id: the value that replaces it; NULL: none */
} fuser;

static int group_of(fuser *f, int position)
{
    int i = position;

    while (f->group[i].into != i) /* path halving */
        i = f->group[i].into = f->group[f->group[i].into].into;
    return i;
}

/* Returns the group of the call that computes the value. */
static int producer(fuser *f, int value)
{
    return group_of(f, f->position[value]);
}

/* ---- grouping ---- */

static bool can_fuse(const ch_node *n)
{
    ch_block b = {0};

    return n->op->block != NULL && n->n_out == 1 && n->n_in <= 4 && ch__count(n) > 0 &&
           (n->op->flags & (CH_OP_EFFECT | CH_OP_COLLECTIVE | CH_OP_RANDOM | CH_OP_CAN_FAIL |
                            CH_OP_HOST)) == 0 &&
           n->op->block(n, &b);
}

/* Adds the inputs of group `from` that neither group a nor b computes to the list. Returns
 * false if there are too many. */
static bool add_inputs(fuser *f, const group *from, int a, int b, int *list, int *n)
{
    for (int i = 0; i < from->n_in; i++) {
        int by = producer(f, from->in[i]), k = 0;

        if (by == a || by == b)
            continue;
        while (k < *n && list[k] != from->in[i])
            k++;
        if (k == CH_FUSED_INPUTS)
            return false;
        list[k] = from->in[i];
        *n += k == *n;
    }
    return true;
}

/* Merges group `from` into group `into`. Returns false if this is not allowed. */
static bool merge(fuser *f, int from, int into)
{
    group *a = &f->group[from], *b = &f->group[into];
    int    list[CH_FUSED_INPUTS], n = 0;

    if (!a->open || a->n_steps + b->n_steps > CH_FUSED_STEPS ||
        !ch__dims_same(&f->call[from]->dims, &f->call[into]->dims) ||
        !add_inputs(f, a, from, into, list, &n) || !add_inputs(f, b, from, into, list, &n))
        return false;
    a->into = into;
    b->n_steps += a->n_steps;
    b->n_in = n;
    memcpy(b->in, list, (size_t)n * sizeof(*list));
    return true;
}

/* Puts all calls into groups. */
static void group_calls(fuser *f)
{
    for (int i = 0; i < f->n_calls; i++) {
        ch_node *n = f->call[i];
        group   *own = &f->group[i];

        *own = (group){.into = i, .open = can_fuse(n), .n_steps = 1, .first = NONE};
        for (int k = 0; k < n->n_in && own->open; k++) {
            int m = 0;

            while (m < own->n_in && own->in[m] != n->in[k]->id)
                m++;
            own->in[m] = n->in[k]->id;
            own->n_in += m == own->n_in;
        }
        for (int k = 0; k < n->n_in; k++) {
            int by = producer(f, n->in[k]->id);

            if (by != i && !(own->open && merge(f, by, i)))
                f->group[by].open = false;
        }
    }
}

/* ---- late calls ---- */

static void find_late(fuser *f)
{
    for (int r = 0; r < f->g->n_resources; r++) {
        const ch_resource *res = &f->g->resource[r];

        if (res->value != NULL && res->value != res->read)
            f->late[f->position[res->value->id]] = true;
    }
    for (int i = 0; i < f->n_calls; i++)
        for (int k = 0; k < f->call[i]->n_in && !f->late[i]; k++)
            f->late[i] = f->late[f->position[f->call[i]->in[k]->id]];
}

/* Returns true if the call at this position is not in the group that computes the value. */
static bool is_outside(fuser *f, int position, int value)
{
    return group_of(f, position) != producer(f, value);
}

/* Sets has_late and is_waited_for of all groups. */
static void find_waits(fuser *f)
{
    for (int i = 0; i < f->n_calls; i++) {
        f->group[group_of(f, i)].has_late |= f->late[i];
        for (int k = 0; k < f->call[i]->n_in; k++) {
            int value = f->call[i]->in[k]->id;

            if (is_outside(f, i, value) && !f->late[f->position[value]])
                f->group[producer(f, value)].is_waited_for = true;
        }
    }
}

/* ---- members ---- */

/* Lists the members of all groups, and cuts groups before a late member where necessary. */
static void list_members(fuser *f)
{
    for (int i = f->n_calls - 1; i >= 0; i--) {
        group *g = &f->group[group_of(f, i)];

        f->next[i] = g->first;
        if (g->first == NONE)
            g->last = i;
        g->first = i;
    }
    for (int i = 0; i < f->n_calls; i++) {
        group *g = &f->group[i];
        int    before = NONE, m = g->into == i ? g->first : NONE;

        if (!g->has_late || !g->is_waited_for)
            continue;
        while (m != NONE && !f->late[m])
            before = m, m = f->next[m];
        g->last = before; /* NONE: the first member is late, so the group is not fused */
        if (before != NONE)
            f->next[before] = NONE;
    }
}

/* Sets f->step for all calls. */
static void number_members(fuser *f)
{
    for (int i = 0; i < f->n_calls; i++)
        f->step[i] = NONE;
    for (int i = 0; i < f->n_calls; i++) {
        group *g = &f->group[i];

        if (g->into != i || g->last == NONE || g->first == g->last)
            continue;
        g->n_steps = 0;
        for (int m = g->first; m != NONE; m = f->next[m])
            f->step[m] = g->n_steps++;
    }
}

static bool is_member(fuser *f, int position, int of)
{
    return f->step[position] != NONE && group_of(f, position) == of;
}

static void find_used(fuser *f)
{
    for (int i = 0; i < f->n_calls; i++)
        for (int k = 0; k < f->call[i]->n_in; k++) {
            int value = f->call[i]->in[k]->id;

            f->used[value] |=
                f->step[i] == NONE || !is_member(f, f->position[value], group_of(f, i));
        }
    for (int i = 0; i < f->g->n_outputs; i++)
        f->used[f->g->output[i].node->id] = true;
    for (int i = 0; i < f->g->n_resources; i++)
        if (f->g->resource[i].value != NULL)
            f->used[f->g->resource[i].value->id] = true;
}

/* ---- the fused calls ---- */

/* Returns the index of x in the inputs of a chain, and adds x if it is new. */
static int input_number(ch_node **in, int *n_in, ch_node *x)
{
    int k = 0;

    while (k < *n_in && in[k] != x)
        k++;
    in[k] = x;
    *n_in += k == *n_in;
    return k;
}

/* Returns true if the chain of group `of` computes x itself. */
static bool is_inner(fuser *f, const ch_node *x, int of)
{
    return x->id < f->n_values && is_member(f, f->position[x->id], of);
}

static ch_node *insert_after(ch_graph *g, ch_node *at, const ch_fused_attrs *a, int n_in,
                             ch_node *const *in, int n_out)
{
    ch_node *tail = at->next, *last = g->last;
    ch_node *c = ch__graph_add(g, ch__roles.fused, a, n_in, in, n_out);

    if (c != NULL && at != last) { /* move it from the end of the list */
        last->next = NULL;
        g->last = last;
        at->next = c;
        c->next = tail;
    }
    return c;
}

/* Inserts the fused call of group `of` after its last member. */
static ch_status fuse_group(fuser *f, int of)
{
    const group   *g = &f->group[of];
    ch_node       *in[CH_FUSED_INPUTS], *c, *last = f->call[g->last];
    ch_fused_attrs a = {.n_steps = g->n_steps};
    int            n_in = 0, n_out = 0;

    a.step = ch__arena_alloc(&f->g->arena, (size_t)g->n_steps * sizeof(*a.step));
    if (a.step == NULL)
        return ch__fail_memory("a program");
    for (int m = g->first; m != NONE; m = f->next[m])
        for (int k = 0; k < f->call[m]->n_in; k++)
            if (!is_inner(f, f->call[m]->in[k], of))
                input_number(in, &n_in, f->call[m]->in[k]);
    for (int m = g->first; m != NONE; m = f->next[m]) {
        ch_node       *n = f->call[m];
        ch_fused_step *s = &a.step[f->step[m]];

        n->op->block(n, &s->block);
        s->out = n->dtype;
        s->n_in = n->n_in;
        s->result = f->used[n->id] ? n_out++ : NONE;
        for (int k = 0; k < n->n_in; k++)
            s->in[k] = is_inner(f, n->in[k], of) ? n_in + f->step[f->position[n->in[k]->id]]
                                                 : input_number(in, &n_in, n->in[k]);
    }
    c = insert_after(f->g, last, &a, n_in, in, n_out);
    if (c == NULL)
        return ch__fail_memory("a program");
    c->scope = last->scope;
    c->caller = last->caller;
    c->composite = last->composite;
    c->work = f->call[g->first]->work;
    for (int m = g->first, k = 0; m != NONE; m = f->next[m])
        if (f->used[f->call[m]->id]) {
            c[k].dtype = f->call[m]->dtype;
            c[k].dims = f->call[m]->dims;
            f->to[f->call[m]->id] = &c[k++];
        }
    return CH_OK;
}

/* Returns the node that replaces n; n itself if there is none. */
static ch_node *replacement(fuser *f, ch_node *n)
{
    return n != NULL && n->id < f->n_values && f->to[n->id] != NULL ? f->to[n->id] : n;
}

static ch_status fuse_groups(fuser *f)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < f->n_calls && rc == CH_OK; i++) {
        int of = group_of(f, i);

        for (int k = 0; k < f->call[i]->n_in; k++)
            f->call[i]->in[k] = replacement(f, f->call[i]->in[k]);
        if (f->step[i] != NONE && f->group[of].last == i)
            rc = fuse_group(f, of);
    }
    for (int i = 0; i < f->g->n_outputs; i++)
        f->g->output[i].node = replacement(f, f->g->output[i].node);
    for (int i = 0; i < f->g->n_resources; i++)
        f->g->resource[i].value = replacement(f, f->g->resource[i].value);
    return rc;
}

/* ---- the pass ---- */

static ch_status new_fuser(fuser *f)
{
    size_t calls = (size_t)f->n_calls + 1, values = (size_t)f->n_values + 1;

    f->call = ch__calloc(calls, sizeof(*f->call));
    f->position = ch__calloc(values, sizeof(*f->position));
    f->group = ch__calloc(calls, sizeof(*f->group));
    f->next = ch__calloc(calls, sizeof(*f->next));
    f->step = ch__calloc(calls, sizeof(*f->step));
    f->late = ch__calloc(calls, sizeof(*f->late));
    f->used = ch__calloc(values, sizeof(*f->used));
    f->to = ch__calloc(values, sizeof(*f->to));
    if (f->call == NULL || f->position == NULL || f->group == NULL || f->next == NULL ||
        f->step == NULL || f->late == NULL || f->used == NULL || f->to == NULL)
        return ch__fail_memory("a program");
    ch__graph_calls(f->g, f->call);
    for (int i = 0; i < f->n_calls; i++)
        for (int k = 0; k < (f->call[i]->n_out > 0 ? f->call[i]->n_out : 1); k++)
            f->position[f->call[i][k].id] = i;
    return CH_OK;
}

static void drop_fuser(fuser *f)
{
    ch__free(f->call);
    ch__free(f->position);
    ch__free(f->group);
    ch__free(f->next);
    ch__free(f->step);
    ch__free(f->late);
    ch__free(f->used);
    ch__free(f->to);
}

ch_status ch__pass_fuse(ch_graph *g)
{
    fuser     f = {.g = g, .n_calls = g->n_calls, .n_values = g->n_values};
    ch_status rc = new_fuser(&f);

    if (rc == CH_OK) {
        group_calls(&f);
        find_late(&f);
        find_waits(&f);
        list_members(&f);
        number_members(&f);
        find_used(&f);
        rc = fuse_groups(&f);
    }
    drop_fuser(&f);
    return rc == CH_OK ? ch__pass_dead(g) : rc;
}
