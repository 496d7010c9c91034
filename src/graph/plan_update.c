/* graph/plan_update.c -- step 3 of planning: decides which resources are updated in place, and
 * reorders the calls.
 *
 * A resource can be updated in place if there is a chain of calls from its new value back to
 * its read in which every call may overwrite its input. All values of the chain are then stored
 * in the resource (they are claimed for it). The calls of all chains, and all calls that depend
 * on them, are late: they must run after every call that can fail.
 *
 * ch__plan_updates assumes at first that all written resources can be updated in place, and
 * drops resources until the rest is consistent (find_in_place). Then it reorders the calls
 * (reorder), and checks the chains again, because the new order may break some.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "graph/plan.h"

/* Returns true if the call can fail. Collectives and calls with effects count as such. */
static bool is_fallible(const ch_node *n)
{
    return (n->op->flags & CH_OP_CAN_FAIL) != 0 || ch__call_effects(n) != 0;
}

/* Sets position, born and last_use for the current schedule. */
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

/* Returns true if the kernel of call c can compute output k in place of input j. */
static bool is_over(const ch_planner *pl, const ch_node *c, int k, int j)
{
    unsigned over = pl->prep[pl->position[c->id]].over[k];

    return j < (int)(8 * sizeof(over)) && (over >> j & 1) != 0;
}

/* Returns true if another input of call c has the same root value as input j, and overwriting
 * is not allowed for that input too, or that input has another offset or other dims. */
static bool has_conflicting_alias(ch_planner *pl, const ch_node *c, int k, int j)
{
    for (int i = 0; i < c->n_in; i++)
        if (i != j && ch__plan_root(pl, c->in[i]) == ch__plan_root(pl, c->in[j]) &&
            (!is_over(pl, c, k, i) ||
             pl->value[c->in[i]->id].offset != pl->value[c->in[j]->id].offset ||
             !ch__dims_same(&c->in[i]->dims, &c->in[j]->dims)))
            return true;
    return false;
}

/* Returns true if the kernel of call c may write output k over input j, c is the last call that
 * reads input j, and both fill the whole root value. */
bool ch__plan_may_overwrite(ch_planner *pl, const ch_node *c, int k, int j)
{
    const ch_planned_value *in = &pl->value[c->in[j]->id];

    return is_over(pl, c, k, j) && !has_conflicting_alias(pl, c, k, j) && in->offset == 0 &&
           ch__plan_root(pl, c->in[j])->last_use == pl->position[c->id] &&
           ch__bytes(c->in[j]) == ch__bytes(&c[k]) &&
           ch__bytes(ch__plan_root(pl, c->in[j])->node) == ch__bytes(&c[k]);
}

/* Returns true if value v may be stored in resource r: v owns its memory, has no location yet,
 * and is not claimed by another resource. */
static bool may_claim(ch_planner *pl, int r, const ch_node *v)
{
    int claim = pl->value[v->id].claim;

    return pl->value[v->id].root == v->id && pl->value[v->id].location.kind == CH_AT_NOWHERE &&
           (claim == 0 || claim == r + 1);
}

/* Returns the input that v overwrites in the chain of resource r: the read of r if possible,
 * else an input that r may claim; -1: none. */
static int overwritten_input(ch_planner *pl, int r, const ch_node *v)
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

/* Follows the chain of resource r from its new value back to its read. Returns false if there
 * is no chain. Calls `visit` for every value of the chain; `visit` may be NULL. */
static bool chain_to_read(ch_planner *pl, int r, void (*visit)(ch_planner *, int r, ch_node *v))
{
    ch_node *v = pl->g->resource[r].value;

    for (;;) {
        ch_node *c = v->head;
        int      j;

        if (pl->kernel[pl->position[c->id]] == NULL || !may_claim(pl, r, v))
            return false;
        j = overwritten_input(pl, r, v);
        if (j < 0)
            return false;
        if (visit != NULL)
            visit(pl, r, v);
        v = c->in[j];
        if (v == pl->g->resource[r].read)
            return true;
    }
}

static void claim(ch_planner *pl, int r, ch_node *v)
{
    pl->value[v->id].claim = r + 1;
}

/* Drops resources from in_place that have no chain, or a chain that conflicts with another
 * resource. Returns true if a resource was dropped. */
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

/* Marks all calls that depend on a late call. Returns false if one of them can fail. */
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
 * A late call, and the calls that are computed only for it, move to the earliest position at
 * which everything that they depend on is complete. Then the values that only a late call still
 * needs, mostly gradients, are still in the cache, and their memory becomes free for the next
 * values. If a late call must wait for a later call that can fail, such as an exchange, a
 * gradient that only it reads waits too, unless its inputs need more memory than its result.
 * Checks move up to the values that they check, so that late calls can start early. All
 * other calls keep their order. */

/* Values of order_entry.owner that are not positions of late calls. */
enum { NO_OWNER = -1, SEVERAL = -2, STAYS = -3, CHECKS = -4 };

typedef struct order_entry {
    /* The call is moved directly after call `after`. Both are positions in the old order. */
    int after, index;
    /* Position of the late call that needs this call, or of the call itself if it is late.
     * SEVERAL: several late calls need it. STAYS: it does not move. CHECKS: it is a check. */
    int  owner;
    int  before;    /* of calls with equal `after`: sorted by this, then by index */
    bool is_leaf;   /* depends on no input of the step */
    bool is_direct; /* only late calls read its outputs */
} order_entry;

/* Order of calls with equal `after`: first the call that stays there, then checks, then the
 * others. */
static int rank_of(const order_entry *x)
{
    return x->owner == STAYS ? 0 : x->owner == CHECKS ? 1 : 2;
}

static int by_order(const void *a, const void *b)
{
    const order_entry *x = a, *y = b;

    if (x->after != y->after)
        return x->after < y->after ? -1 : 1;
    if (rank_of(x) != rank_of(y))
        return rank_of(x) - rank_of(y);
    if (x->before != y->before)
        return x->before < y->before ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static void find_leaves(ch_planner *pl, order_entry *order)
{
    for (int i = 0; i < pl->n_calls; i++) {
        const ch_node *c = pl->call[i];

        order[i] = (order_entry){.after = i, .index = i, .before = i, .is_direct = true};
        order[i].is_leaf = !is_fallible(c) && c->op != ch__roles.input;
        for (int k = 0; k < c->n_in; k++)
            order[i].is_leaf &= order[pl->position[c->in[k]->head->id]].is_leaf;
    }
}

static int join_owners(int a, int b)
{
    if (a == NO_OWNER || a == b)
        return b;
    return a == STAYS || b == STAYS ? STAYS : SEVERAL;
}

/* Returns true if the only purpose of the call is to fail for some inputs. Its outputs are not
 * larger than its inputs, so moving it does not increase the memory. */
static bool is_check(const ch_node *c)
{
    int64_t in = 0, out = 0;

    if ((c->op->flags & CH_OP_CAN_FAIL) == 0 ||
        (c->op->flags & (CH_OP_RANDOM | CH_OP_HOST)) != 0 || ch__call_effects(c) != 0)
        return false;
    for (int k = 0; k < c->n_in; k++)
        in += ch__bytes(c->in[k]);
    for (int k = 0; k < c->n_out; k++)
        out += ch__bytes(&c[k]);
    return out <= in;
}

/* Sets order[i].owner. `owner` is working memory by value id: the owner of the calls that use
 * the value. */
static void find_owners(ch_planner *pl, order_entry *order, int *owner)
{
    for (int i = 0; i < pl->n_values; i++)
        owner[i] = NO_OWNER;
    for (int i = 0; i < pl->g->n_outputs; i++)
        owner[pl->g->output[i].node->id] = STAYS;
    for (int i = pl->n_calls - 1; i >= 0; i--) {
        ch_node *c = pl->call[i];
        int      mine = is_fallible(c) ? STAYS : NO_OWNER;

        for (int k = 0; k < c->n_out; k++)
            if (owner[c[k].id] != NO_OWNER)
                mine = join_owners(mine, owner[c[k].id]);
        if (mine == NO_OWNER || (mine == SEVERAL && !order[i].is_leaf))
            mine = STAYS;
        order[i].owner = pl->late[c->id] ? i : mine;
        for (int k = 0; k < c->n_in; k++)
            owner[c->in[k]->id] = join_owners(owner[c->in[k]->id], order[i].owner);
        for (int k = 0; k < c->n_in && !pl->late[c->id]; k++)
            order[pl->position[c->in[k]->head->id]].is_direct = false;
        if (is_check(c))
            order[i].owner = CHECKS;
    }
}

static int later(int a, int b)
{
    return a > b ? a : b;
}

/* Returns the position after which all inputs of c are computed. */
static int after_inputs(ch_planner *pl, const ch_node *c, const order_entry *order)
{
    int after = -1;

    for (int k = 0; k < c->n_in; k++)
        after = later(after, order[pl->position[c->in[k]->head->id]].after);
    return after;
}

/* Returns true if the memory in use becomes smaller if call c, which only a late call reads,
 * runs after position `last` instead of its own. Inputs that no call uses after `last` must
 * live longer then. Returns false if c reads a resource, which the late call of another
 * resource may overwrite before c. */
static bool is_smaller_later(const ch_planner *pl, const ch_node *c, int last)
{
    int64_t bytes = 0;

    for (int k = 0; k < c->n_out; k++)
        if (pl->value[c[k].id].root == c[k].id) /* a view has no memory of its own */
            bytes += ch__bytes(&c[k]);
    for (int j = 0; j < c->n_in; j++) {
        const ch_planned_value *root = &pl->value[pl->value[c->in[j]->id].root];

        if (root->location.kind == CH_AT_RESOURCE)
            return false;
        if (root->location.kind == CH_AT_NOWHERE && root->last_use < last)
            bytes -= ch__bytes(root->node);
    }
    return bytes > 0;
}

/* Returns the position after which call c may run. A late call must run after its inputs, after
 * all calls that can fail, and after all calls that read the memory that it overwrites. Another
 * call must run after its inputs; moving it before the first possible late call has no benefit.
 * last_user: by root value, position of the last call so far that uses it. */
static int earliest_position(ch_planner *pl, ch_node *c, int last_fallible,
                             const order_entry *order, const int *last_user)
{
    int at = pl->position[c->id], after = after_inputs(pl, c, order);

    if (!pl->late[c->id])
        return later(after, at < last_fallible && !order[at].is_leaf && order[at].is_direct &&
                                    is_smaller_later(pl, c, last_fallible)
                                ? last_fallible
                                : (int)ch__min(at, last_fallible));
    after = later(after, last_fallible);
    for (int k = 0; k < c->n_out; k++) {
        int claim = pl->value[c[k].id].claim;
        int j = claim > 0 ? overwritten_input(pl, claim - 1, &c[k]) : -1;

        if (j >= 0)
            after = later(after, last_user[pl->value[c->in[j]->id].root]);
    }
    return after;
}

/* Moves each check directly after its inputs. Calls that can fail keep their order, so that the
 * first failing check in recorded order is reported. Returns the position of the last call that
 * can fail. */
static int schedule_checks(ch_planner *pl, order_entry *order)
{
    int last = -1;

    for (int i = 0; i < pl->n_calls; i++) {
        if (order[i].owner == CHECKS)
            order[i].after = later(last, after_inputs(pl, pl->call[i], order));
        if (is_fallible(pl->call[i]))
            last = later(last, order[i].after);
    }
    return last;
}

/* Sets `after` of late calls and of the calls that are computed for them. A single pass is
 * sufficient, because calls depend on earlier calls only. */
static void schedule_late(ch_planner *pl, order_entry *order, int last_fallible, int *last_user)
{
    for (int i = 0; i < pl->n_values; i++)
        last_user[i] = -1;
    for (int i = 0; i < pl->n_calls; i++) {
        ch_node *c = pl->call[i];

        if (order[i].owner != STAYS && order[i].owner != CHECKS)
            order[i].after = earliest_position(pl, c, last_fallible, order, last_user);
        if (order[i].owner >= 0 && order[i].after > i)
            order[i].before = order[i].owner; /* directly before its late call */
        for (int k = 0; k < c->n_in; k++) {
            int root = pl->value[c->in[k]->id].root;

            last_user[root] = later(last_user[root], order[i].after);
        }
    }
}

/* Moves leaves that only a single late call needs to their first use, which shortens their
 * lifetime. `first` is working memory by value id: the position of the first use. */
static void schedule_leaves(ch_planner *pl, order_entry *order, int *first)
{
    for (int i = 0; i < pl->n_values; i++)
        first[i] = CH_AT_END;
    for (int i = pl->n_calls - 1; i >= 0; i--) {
        const ch_node *c = pl->call[i];

        if (order[i].is_leaf && order[i].owner >= 0 && order[i].owner != i) {
            order[i].after = first[c->id];
            for (int k = 1; k < c->n_out; k++)
                order[i].after = (int)ch__min(order[i].after, first[c[k].id]);
        }
        for (int k = 0; k < c->n_in; k++)
            first[c->in[k]->id] = (int)ch__min(first[c->in[k]->id], order[i].after);
    }
}

/* If there are shared resources, moves late calls behind all other calls, because replicas must
 * not read old values after the barrier. The calls of the first replica come first. */
static void schedule_shared(ch_planner *pl, order_entry *order)
{
    for (int i = 0; i < pl->n_calls && pl->opt->shared != NULL; i++)
        if (pl->late[pl->call[i]->id])
            order[i].after = pl->n_calls + !pl->first_only[pl->call[i]->id];
}

/* Sorts call, prep and kernel by `order`. Sets n_commit to the position of the first late call,
 * and shared_end to the position after the last call of the first replica. */
static ch_status apply_order(ch_planner *pl, const order_entry *order)
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
    pl->shared_end = 0;
    for (int k = n - 1; k >= 0; k--) {
        int i = order[k].index;

        if (pl->shared_end == 0 && pl->first_only[pl->call[i]->id])
            pl->shared_end = k + 1;

        call[k] = pl->call[i];
        prep[k] = pl->prep[i];
        kernel[k] = pl->kernel[i];
        if (pl->late[call[k]->id])
            pl->p->n_commit = k;
    }
    if (pl->shared_end == 0)
        pl->shared_end = pl->p->n_commit;
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
    order_entry *order = ch__calloc((size_t)pl->n_calls + 1, sizeof(*order));
    int         *by_value = ch__calloc((size_t)pl->n_values + 1, sizeof(*by_value));
    ch_status    rc = CH_OK;

    if (order == NULL || by_value == NULL)
        rc = ch__fail_memory("a program");
    if (rc == CH_OK) {
        find_leaves(pl, order);
        find_owners(pl, order, by_value);
        schedule_late(pl, order, schedule_checks(pl, order), by_value);
        schedule_leaves(pl, order, by_value);
        schedule_shared(pl, order);
        qsort(order, (size_t)pl->n_calls, sizeof(*order), by_order);
        rc = apply_order(pl, order);
    }
    ch__free(order);
    ch__free(by_value);
    return rc;
}

/* Checks the new order. An error in the code above would otherwise cause wrong results without
 * notice. */
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

/* Drops resources from in_place until every remaining chain is valid and no late call can
 * fail. */
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

/* Decides in_place for all resources, and reorders the calls. */
static ch_status choose_in_place(ch_planner *pl)
{
    bool      is_possible = true;
    ch_status rc;

    for (int r = 0; r < pl->g->n_resources; r++) {
        const ch_resource *res = &pl->g->resource[r];

        pl->in_place[r] = res->read != NULL && res->value != res->read && !pl->opt->keep_all;
        pl->p->writes |= res->value != res->read;
    }
    find_in_place(pl);
    rc = ch__plan_share(pl, &is_possible);
    if (!is_possible) {
        for (int r = 0; r < pl->g->n_resources; r++)
            pl->in_place[r] &= !ch__plan_is_shared(pl, r);
        find_in_place(pl);
        rc = ch__plan_share(pl, &is_possible);
    }
    if (rc == CH_OK)
        rc = reorder(pl);
    if (rc == CH_OK)
        rc = check_order(pl);
    if (rc != CH_OK)
        return rc;
    /* The new order may have moved a reader of an old value behind its writer. */
    while (drop_broken_chains(pl))
        ;
    return CH_OK;
}

static void locate_in_resource(ch_planner *pl, int r, ch_node *v)
{
    pl->value[v->id].location = (ch_location){.kind = CH_AT_RESOURCE, .index = r};
    pl->p->writes_all[r] |= v->head->op->changed_rows == 0;
}

ch_status ch__plan_updates(ch_planner *pl)
{
    ch_status rc = choose_in_place(pl);

    for (int r = 0; r < pl->g->n_resources && rc == CH_OK; r++) {
        const ch_resource *res = &pl->g->resource[r];

        pl->p->writes_all[r] = res->value != res->read && !pl->in_place[r];
        if (pl->in_place[r])
            chain_to_read(pl, r, locate_in_resource);
    }
    return rc;
}
