/* graph/plan_update.c -- step 3 of planning: which resources are updated in place, and the order
 * that follows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "graph/plan.h"

static bool is_fallible(const ch_node *n)
{
    return (n->op->flags & (CH_OP_CAN_FAIL | CH_OP_COLLECTIVE | CH_OP_EFFECT)) != 0;
}

static void find_lifetimes(ch_planner *pl)
{
    for (int i = 0; i < pl->n_values; i++)
        pl->value[i].last_use = CH_NEVER;
    for (int i = 0; i < pl->n_calls; i++) {
        ch_node *n = pl->call[i];

        pl->position[n->id] = i;
        for (int k = 0; k < n->n_out; k++) {
            pl->value[n[k].id].born = i;
            if (ch__plan_root(pl, &n[k])->last_use < i)
                ch__plan_root(pl, &n[k])->last_use = i;
        }
        for (int k = 0; k < n->n_in; k++)
            ch__plan_root(pl, n->in[k])->last_use = i;
    }
    for (int i = 0; i < pl->g->n_outputs; i++)
        ch__plan_root(pl, pl->g->output[i].node)->last_use = CH_AT_END;
    for (int i = 0; i < pl->g->n_resources; i++) {
        const ch_resource *r = &pl->g->resource[i];

        if (r->value != r->read && !pl->in_place[i])
            ch__plan_root(pl, r->value)->last_use = CH_AT_END;
    }
}

/* True if another input of call c is the same memory, and what the kernel said of overwriting
 * input j with output k does not hold for that one too, or it sees the memory in another way. */
static bool is_seen_twice(ch_planner *pl, const ch_node *c, int k, int j)
{
    unsigned over = pl->prep[pl->position[c->id]].over[k];

    for (int i = 0; i < c->n_in; i++)
        if (i != j && ch__plan_root(pl, c->in[i]) == ch__plan_root(pl, c->in[j]) &&
            ((over >> i & 1) == 0 ||
             pl->value[c->in[i]->id].offset != pl->value[c->in[j]->id].offset ||
             !ch__dims_same(&c->in[i]->dims, &c->in[j]->dims)))
            return true;
    return false;
}

/* True if call c may write output k over the whole of input j and is the last to use it. */
bool ch__plan_may_overwrite(ch_planner *pl, const ch_node *c, int k, int j)
{
    const ch_planned *in = &pl->value[c->in[j]->id];

    return !is_seen_twice(pl, c, k, j) &&
           (pl->prep[pl->position[c->id]].over[k] >> j & 1) != 0 && in->offset == 0 &&
           ch__plan_root(pl, c->in[j])->last_use == pl->position[c->id] &&
           ch__bytes(c->in[j]) == ch__bytes(&c[k]) &&
           ch__bytes(ch__plan_root(pl, c->in[j])->node) == ch__bytes(&c[k]);
}

/* True if resource r's storage may be the value's. */
static bool may_claim(ch_planner *pl, int r, const ch_node *v)
{
    int claim = pl->value[v->id].claim;

    return pl->value[v->id].root == v->id && pl->value[v->id].home.kind == CH_AT_NOWHERE &&
           (claim == 0 || claim == r + 1);
}

/* The input that v may be written over on the way back from resource r's new value: its read if
 * that can be, else one that nobody else claims; -1: none. */
static int input_before(ch_planner *pl, int r, const ch_node *v)
{
    const ch_node *c = v->head, *read = pl->g->resource[r].read;

    for (int j = 0; j < c->n_in; j++)
        if (c->in[j] == read && ch__plan_may_overwrite(pl, c, v->index, j))
            return j;
    for (int j = 0; j < c->n_in; j++)
        if (may_claim(pl, r, c->in[j]) && ch__plan_may_overwrite(pl, c, v->index, j))
            return j;
    return -1;
}

/* Follows the new value of resource r back, over calls that can write in place, to its read. If
 * that works, `each` is called for every call on the way. */
static bool chain_to_read(ch_planner *pl, int r, void (*each)(ch_planner *, int r, ch_node *v))
{
    ch_node *v = pl->g->resource[r].value;

    for (;;) {
        ch_node *c = v->head;
        int      j;

        if (pl->kernel[pl->position[c->id]] == NULL || !may_claim(pl, r, v))
            return false;
        j = input_before(pl, r, v);
        if (j < 0)
            return false;
        if (each != NULL)
            each(pl, r, v);
        v = c->in[j];
        if (v == pl->g->resource[r].read)
            return true;
    }
}

static void claim(ch_planner *pl, int r, ch_node *v)
{
    pl->value[v->id].claim = r + 1;
}

/* Gives up on resources that have no way back, or only one that meets another's. True if there
 * was one. */
static bool drop_broken_chains(ch_planner *pl)
{
    bool any = false;

    find_lifetimes(pl);
    for (int i = 0; i < pl->n_values; i++)
        pl->value[i].claim = 0;
    for (int r = 0; r < pl->g->n_resources; r++) {
        if (pl->in_place[r] && chain_to_read(pl, r, NULL)) {
            chain_to_read(pl, r, claim);
        } else {
            any |= pl->in_place[r];
            pl->in_place[r] = false;
        }
    }
    return any;
}

static void mark_late(ch_planner *pl, int r, ch_node *v)
{
    (void)r;
    pl->late[v->head->id] = true;
}

/* Marks what depends on a late call; false if something that can fail does. */
static bool spread_late(ch_planner *pl)
{
    for (int i = 0; i < pl->n_calls; i++) {
        ch_node *n = pl->call[i];

        for (int k = 0; k < n->n_in && !pl->late[n->id]; k++)
            pl->late[n->id] = pl->late[n->in[k]->head->id];
        if (pl->late[n->id] && is_fallible(n))
            return false;
    }
    return true;
}

static void mark_all_late(ch_planner *pl)
{
    memset(pl->late, 0, (size_t)pl->n_values);
    for (int r = 0; r < pl->g->n_resources; r++)
        if (pl->in_place[r])
            chain_to_read(pl, r, mark_late);
}

/* ---- the order of calls ----
 *
 * Late calls, and what is computed for one of them alone, move to where all they wait for has been done:
 * what a late call is the last to need, a gradient most often, is then in the cache still, and its memory
 * is free for the next one. So that they need not wait long, checks move up to what they check. All others
 * stay in their order. */

enum {
    NOBODY = -1,
    SEVERAL = -2,
    STAYS = -3,
    CHECKS = -4
}; /* instead of a late call's position */

typedef struct turn {
    int after, index; /* goes behind call `after`; both are positions in the old order */
    int owner; /* the late call that it is or is for, or SEVERAL of them, or STAYS, or CHECKS */
    bool is_leaf; /* needs no input of the step */
} turn;

/* Behind the same call: first that call itself, then checks, then the others. */
static int rank_of(const turn *x)
{
    return x->owner == STAYS ? 0 : x->owner == CHECKS ? 1 : 2;
}

static int by_turn(const void *a, const void *b)
{
    const turn *x = a, *y = b;

    if (x->after != y->after)
        return x->after < y->after ? -1 : 1;
    if (rank_of(x) != rank_of(y))
        return rank_of(x) - rank_of(y);
    return (x->index > y->index) - (x->index < y->index);
}

static void find_leaves(ch_planner *pl, turn *turns)
{
    for (int i = 0; i < pl->n_calls; i++) {
        const ch_node *c = pl->call[i];

        turns[i] = (turn){.after = i, .index = i};
        turns[i].is_leaf = !is_fallible(c) && c->op != ch__roles.input;
        for (int k = 0; k < c->n_in; k++)
            turns[i].is_leaf &= turns[pl->position[c->in[k]->head->id]].is_leaf;
    }
}

static int join_owners(int a, int b)
{
    if (a == NOBODY || a == b)
        return b;
    return a == STAYS || b == STAYS ? STAYS : SEVERAL;
}

/* True if all that a call does is to fail, or not: it gives no more than it takes. */
static bool is_check(const ch_node *c)
{
    int64_t in = 0, out = 0;

    if ((c->op->flags & CH_OP_CAN_FAIL) == 0 ||
        (c->op->flags & (CH_OP_COLLECTIVE | CH_OP_EFFECT | CH_OP_RANDOM | CH_OP_HOST)) != 0)
        return false;
    for (int k = 0; k < c->n_in; k++)
        in += ch__bytes(c->in[k]);
    for (int k = 0; k < c->n_out; k++)
        out += ch__bytes(&c[k]);
    return out <= in;
}

/* Whom each call is for. `owner`: by value id, of those that use it. */
static void find_owners(ch_planner *pl, turn *turns, int *owner)
{
    for (int i = 0; i < pl->n_values; i++)
        owner[i] = NOBODY;
    for (int i = 0; i < pl->g->n_outputs; i++)
        owner[pl->g->output[i].node->id] = STAYS;
    for (int i = pl->n_calls - 1; i >= 0; i--) {
        ch_node *c = pl->call[i];
        int      mine = is_fallible(c) ? STAYS : NOBODY;

        for (int k = 0; k < c->n_out; k++)
            if (owner[c[k].id] != NOBODY)
                mine = join_owners(mine, owner[c[k].id]);
        if (mine == NOBODY || (mine == SEVERAL && !turns[i].is_leaf))
            mine = STAYS;
        turns[i].owner = pl->late[c->id] ? i : mine;
        for (int k = 0; k < c->n_in; k++)
            owner[c->in[k]->id] = join_owners(owner[c->in[k]->id], turns[i].owner);
        if (is_check(c))
            turns[i].owner = CHECKS;
    }
}

static int later(int a, int b)
{
    return a > b ? a : b;
}

/* The last of those that make a call's inputs. */
static int behind_inputs(ch_planner *pl, const ch_node *c, const turn *turns)
{
    int after = -1;

    for (int k = 0; k < c->n_in; k++)
        after = later(after, turns[pl->position[c->in[k]->head->id]].after);
    return after;
}

/* Behind which call c may come, besides those that make its inputs: if it is late, all that can fail and
 * all that read what it overwrites; if not, it would come too early where late ones cannot be yet.
 * `seen`: by root, the last that has used it so far. */
static int behind(ch_planner *pl, ch_node *c, int last_fallible, const turn *turns,
                  const int *seen)
{
    int at = pl->position[c->id], after = behind_inputs(pl, c, turns);

    if (!pl->late[c->id])
        return later(after, (int)ch__least(at, last_fallible));
    after = later(after, last_fallible);
    for (int k = 0; k < c->n_out; k++) {
        int claim = pl->value[c[k].id].claim;
        int j = claim > 0 ? input_before(pl, claim - 1, &c[k]) : -1;

        if (j >= 0)
            after = later(after, seen[pl->value[c->in[j]->id].root]);
    }
    return after;
}

/* Checks go right behind what they check, and what can fail keeps its order: who made a check before
 * another wants to hear of that one. Returns the last call of all that can fail. */
static int place_checks(ch_planner *pl, turn *turns)
{
    int last = -1;

    for (int i = 0; i < pl->n_calls; i++) {
        if (turns[i].owner == CHECKS)
            turns[i].after = later(last, behind_inputs(pl, pl->call[i], turns));
        if (is_fallible(pl->call[i]))
            last = later(last, turns[i].after);
    }
    return last;
}

/* What a call waits for was recorded before it: one walk is enough. */
static void place_late(ch_planner *pl, turn *turns, int last_fallible, int *seen)
{
    for (int i = 0; i < pl->n_values; i++)
        seen[i] = -1;
    for (int i = 0; i < pl->n_calls; i++) {
        ch_node *c = pl->call[i];

        if (turns[i].owner != STAYS && turns[i].owner != CHECKS)
            turns[i].after = behind(pl, c, last_fallible, turns, seen);
        for (int k = 0; k < c->n_in; k++) {
            int root = pl->value[c->in[k]->id].root;

            seen[root] = later(seen[root], turns[i].after);
        }
    }
}

/* The leaves of a late call are better made when they are used first than at once. `first`: by value, when
 * that is. */
static void place_leaves(ch_planner *pl, turn *turns, int *first)
{
    for (int i = 0; i < pl->n_values; i++)
        first[i] = CH_AT_END;
    for (int i = pl->n_calls - 1; i >= 0; i--) {
        const ch_node *c = pl->call[i];

        if (turns[i].is_leaf && turns[i].owner >= 0 && turns[i].owner != i) {
            turns[i].after = first[c->id];
            for (int k = 1; k < c->n_out; k++)
                turns[i].after = (int)ch__least(turns[i].after, first[c[k].id]);
        }
        for (int k = 0; k < c->n_in; k++)
            first[c->in[k]->id] = (int)ch__least(first[c->in[k]->id], turns[i].after);
    }
}

/* Where resources are shared, late calls come behind all others: when replicas meet, nobody is reading the old
 * values any more. Those of the first replica come first. */
static void place_shared(ch_planner *pl, turn *turns)
{
    for (int i = 0; i < pl->n_calls && pl->opt->shared != NULL; i++)
        if (pl->late[pl->call[i]->id])
            turns[i].after = pl->n_calls + !pl->first_only[pl->call[i]->id];
}

/* The calls in the order of their turns; late ones begin where nothing can fail any more. */
static ch_status take_turns(ch_planner *pl, const turn *turns)
{
    int               n = pl->n_calls;
    ch_node         **call = ch__calloc((size_t)n + 1, sizeof(*call));
    ch_prep          *prep = ch__calloc((size_t)n + 1, sizeof(*prep));
    const ch_kernel **kernel = ch__calloc((size_t)n + 1, sizeof(*kernel));

    if (call == NULL || prep == NULL || kernel == NULL) {
        ch__free(call);
        ch__free(prep);
        ch__free(kernel);
        return ch__fail_memory("a program");
    }
    pl->p->n_commit = n;
    pl->n_settled = 0;
    for (int k = n - 1; k >= 0; k--) {
        int i = turns[k].index;

        if (pl->n_settled == 0 && pl->first_only[pl->call[i]->id])
            pl->n_settled = k + 1;

        call[k] = pl->call[i];
        prep[k] = pl->prep[i];
        kernel[k] = pl->kernel[i];
        if (pl->late[call[k]->id])
            pl->p->n_commit = k;
    }
    if (pl->n_settled == 0)
        pl->n_settled = pl->p->n_commit;
    ch__free(pl->call);
    ch__free(pl->prep);
    ch__free(pl->kernel);
    pl->call = call;
    pl->prep = prep;
    pl->kernel = kernel;
    return CH_OK;
}

static ch_status reorder(ch_planner *pl)
{
    turn     *turns = ch__calloc((size_t)pl->n_calls + 1, sizeof(*turns));
    int      *by_value = ch__calloc((size_t)pl->n_values + 1, sizeof(*by_value));
    ch_status rc = CH_OK;

    if (turns == NULL || by_value == NULL)
        rc = ch__fail_memory("a program");
    if (rc == CH_OK) {
        find_leaves(pl, turns);
        find_owners(pl, turns, by_value);
        place_late(pl, turns, place_checks(pl, turns), by_value);
        place_leaves(pl, turns, by_value);
        place_shared(pl, turns);
        qsort(turns, (size_t)pl->n_calls, sizeof(*turns), by_turn);
        rc = take_turns(pl, turns);
    }
    ch__free(turns);
    ch__free(by_value);
    return rc;
}

/* A slip in the above would be wrong numbers, and nobody would know. */
static ch_status check_order(ch_planner *pl)
{
    for (int i = 0; i < pl->n_calls; i++)
        pl->position[pl->call[i]->id] = i;
    for (int i = 0; i < pl->n_calls; i++) {
        const ch_node *c = pl->call[i];

        for (int k = 0; k < c->n_in; k++)
            if (pl->position[c->in[k]->head->id] >= i)
                return ch__fail(CH_INTERNAL, "planned %s before %s, which it needs",
                                c->op->name, c->in[k]->head->op->name);
        if (i >= pl->p->n_commit && is_fallible(c))
            return ch__fail(CH_INTERNAL, "planned %s, which can fail, behind an update",
                            c->op->name);
    }
    return CH_OK;
}

static void find_in_place(ch_planner *pl)
{
    for (bool changed = true; changed;) {
        changed = drop_broken_chains(pl);
        mark_all_late(pl);
        for (int r = pl->g->n_resources - 1; r >= 0 && !spread_late(pl); r--) {
            changed |= pl->in_place[r];
            pl->in_place[r] = false;
            mark_all_late(pl);
        }
    }
}

/* Starts from hoping that every written resource can be updated in place, and gives up on those
 * that cannot until the rest holds. */
static ch_status choose_in_place(ch_planner *pl)
{
    bool      works = true;
    ch_status rc;

    for (int r = 0; r < pl->g->n_resources; r++) {
        const ch_resource *res = &pl->g->resource[r];

        pl->in_place[r] = res->read != NULL && res->value != res->read && !pl->opt->keep_all;
        pl->p->writes |= res->value != res->read;
    }
    find_in_place(pl);
    rc = ch__plan_share(pl, &works);
    if (!works) {
        for (int r = 0; r < pl->g->n_resources; r++)
            pl->in_place[r] &= !ch__plan_is_shared(pl, r);
        find_in_place(pl);
        rc = ch__plan_share(pl, &works);
    }
    if (rc == CH_OK)
        rc = reorder(pl);
    if (rc == CH_OK)
        rc = check_order(pl);
    if (rc != CH_OK)
        return rc;
    /* The new order may have put a reader of the old value behind its writer. */
    while (drop_broken_chains(pl))
        ;
    return CH_OK;
}

static void live_in_resource(ch_planner *pl, int r, ch_node *v)
{
    pl->value[v->id].home = (ch_location){.kind = CH_AT_RESOURCE, .index = r};
}

ch_status ch__plan_updates(ch_planner *pl)
{
    ch_status rc = choose_in_place(pl);

    for (int r = 0; r < pl->g->n_resources && rc == CH_OK; r++)
        if (pl->in_place[r])
            chain_to_read(pl, r, live_in_resource);
    return rc;
}
