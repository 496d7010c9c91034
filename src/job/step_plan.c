/* job/step_plan.c -- cutting the graph of a step whose variables are elsewhere.
 *
 * In this order: which calls go to the servers, place by place (mark_servers); which of them belong together, as one
 * update (join_updates); what the worker needs, back from the step's results and from what updates take (mark_worker);
 * after how many exchanges with servers each value is there, and hence the segments (set_levels, set_segments);
 * then the parts are taken out of the graph.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/step_plan.h"

#include <string.h>

#include "graph/extract.h"
#include "job/step_exec.h"
#include "ops/apply.h"
#include "ops/lookup.h"
#include "ops/ops.h"

enum { NOBODY = -1 };

typedef struct cutter {
    const ch_graph *g;
    const int      *place; /* of each resource */
    int             n_calls;
    ch_node       **call; /* in order */
    ch_step_plan   *plan;

    /* By value id; what is said of a call is said of its head. */
    int *
        update; /* of a call: whose it is, as the root of a tree (find); NOBODY: the worker's */
    int            *at;         /* of such a call: at which place */
    unsigned char  *can;        /* while one place is looked at: it could be computed there */
    unsigned char  *wanted;     /* by the worker */
    unsigned char  *whole;      /* of a read: all of it is wanted */
    unsigned char  *run;        /* of a call: by the worker */
    unsigned char  *returned;   /* what an update wrote, which the worker wants */
    unsigned char  *take;       /* while a part is taken out */
    int            *level;      /* exchanges with servers before it is there */
    int            *local_part; /* of a call of the worker's */
    int            *number;     /* of a value that passes between parts; NOBODY: it does not */
    int            *remote;     /* that gives it; NOBODY: none */
    const ch_node **maker;      /* by symbol: the first value that has such a size */
    bool            no_returns;
} cutter;

/* ---- sizes ---- */

static bool has_symbol(const ch_node *n, int sym)
{
    for (int k = 0; k < n->dims.rank; k++)
        if (n->dims.dim[k].sym == sym)
            return true;
    return false;
}

static void find_makers(cutter *c)
{
    for (int i = 0; i < c->n_calls; i++)
        for (int o = 0; o < c->call[i]->n_out; o++)
            for (int k = 0; k < c->call[i][o].dims.rank; k++) {
                int sym = c->call[i][o].dims.dim[k].sym;

                if (sym != 0 && c->maker[sym] == NULL)
                    c->maker[sym] = &c->call[i][o];
            }
}

/* A call may have a size that comes with none of its inputs: then it needs the value that brought it as it needs these. Inputs of
 * the step are there in any case. NULL: axis k has no such size. */
static const ch_node *size_from(const cutter *c, const ch_node *n, int k)
{
    int            sym = n->dims.dim[k].sym;
    const ch_node *maker = sym != 0 ? c->maker[sym] : NULL;

    if (maker == NULL || maker->head == n->head || maker->op == ch__roles.input)
        return NULL;
    for (int i = 0; i < n->n_in; i++)
        if (has_symbol(n->in[i], sym))
            return NULL;
    return maker;
}

/* What a call needs, and how many there may be of that; NULL: nothing. */
static int count_needs(const ch_node *n)
{
    return n->n_in + n->dims.rank;
}

static const ch_node *need(const cutter *c, const ch_node *n, int k)
{
    return k < n->n_in ? n->in[k] : size_from(c, n, k - n->n_in);
}

/* ---- what goes to the servers ---- */

/* True if output 0 of the call has the sizes of input i and is cut as that is. */
static bool keeps_sizes(const ch_node *n, const ch_factors *f, int i)
{
    const ch_dims *in = &n->in[i]->dims;

    if (i >= f->n_in || in->rank > n->dims.rank || (in->rank < n->dims.rank && in->rank != 1))
        return false;
    for (int k = 0; k < in->rank; k++)
        if (!ch__dim_same(in->dim[k], n->dims.dim[k]) ||
            (f->in[i][k] != f->out[0][k] && !ch__dim_is(in->dim[k], 1)))
            return false;
    return in->rank == n->dims.rank || f->n_out > 1; /* a number for each row is a slot's */
}

/* Nothing at a server may fail, be random, or differ from what the worker would have computed. */
static bool fits_server(const ch_node *n)
{
    const unsigned never = CH_OP_RANDOM | CH_OP_EFFECT | CH_OP_COLLECTIVE | CH_OP_CAN_FAIL |
                           CH_OP_HOST | CH_OP_READS_ENV | CH_OP_VARIES;

    return n->op->factors != NULL && (n->op->flags & never) == 0 && n->n_in <= 8 &&
           n->n_out <= 8;
}

static bool can_run_there(const cutter *c, const ch_node *n)
{
    ch_factors f = {0};

    if (!fits_server(n) || n->op->factors(n, &f) != CH_OK || f.n_out == 0)
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (c->can[n->in[i]->id] && keeps_sizes(n, &f, i))
            return true;
    return false;
}

static void mark_can(cutter *c, int place)
{
    memset(c->can, 0, (size_t)c->g->n_values);
    for (int i = 0; i < c->g->n_resources; i++)
        if (c->place[i] == place && c->g->resource[i].read != NULL)
            c->can[c->g->resource[i].read->id] = 1;
    for (int i = 0; i < c->n_calls; i++)
        if (can_run_there(c, c->call[i]))
            for (int k = 0; k < c->call[i]->n_out; k++)
                c->can[c->call[i][k].id] = 1;
}

static bool is_written(const ch_resource *r)
{
    return r->value != r->read;
}

static bool is_read(const ch_node *n)
{
    return n->head->op == ch__roles.read;
}

static void send(cutter *c, const ch_node *n, int place)
{
    int id = n->head->id;

    if (!c->can[n->id] || c->update[id] != NOBODY)
        return;
    c->update[id] = id;
    c->at[id] = place;
}

/* The calls that lead to what is written at a place, as far as they can run there and are not at another. */
static void mark_servers(cutter *c, int place)
{
    mark_can(c, place);
    for (int i = 0; i < c->g->n_resources; i++)
        if (c->place[i] == place && is_written(&c->g->resource[i]))
            send(c, c->g->resource[i].value, place);
    for (int i = c->n_calls - 1; i >= 0; i--) {
        const ch_node *n = c->call[i];

        for (int k = 0; c->update[n->id] != NOBODY && c->at[n->id] == place && k < n->n_in; k++)
            send(c, n->in[k], place);
    }
}

/* ---- what belongs together ---- */

static int find(cutter *c, int id)
{
    while (c->update[id] != id)
        id = c->update[id] = c->update[c->update[id]];
    return id;
}

static bool is_server(const cutter *c, const ch_node *n)
{
    return c->update[n->head->id] != NOBODY;
}

/* Whether input k of a server's call is computed beside it. */
static bool is_beside(const cutter *c, const ch_node *n, int k)
{
    return is_server(c, n->in[k]) && c->at[n->in[k]->head->id] == c->at[n->id];
}

/* Whether a resource is read by calls that run where it is. */
static bool is_read_there(const cutter *c, const ch_resource *r)
{
    return r->read != NULL && is_server(c, r->read);
}

/* True if what is written to a resource is not computed where it is. */
static bool is_assigned(const cutter *c, int resource)
{
    const ch_resource *r = &c->g->resource[resource];

    return is_written(r) &&
           (!is_server(c, r->value) || c->at[r->value->head->id] != c->place[resource]);
}

/* Calls that take each other's results are one update: reads, which many take, join them too. So are
 * those that read a variable and those that write it, because the former read its old value. */
static void join_updates(cutter *c)
{
    for (int i = 0; i < c->n_calls; i++) {
        const ch_node *n = c->call[i];

        for (int k = 0; is_server(c, n) && !is_read(n) && k < n->n_in; k++)
            if (is_beside(c, n, k))
                c->update[find(c, n->in[k]->head->id)] = find(c, n->id);
    }
    for (int i = 0; i < c->g->n_resources; i++) {
        const ch_resource *r = &c->g->resource[i];

        if (is_written(r) && !is_assigned(c, i) && is_read_there(c, r))
            c->update[find(c, r->read->id)] = find(c, r->value->head->id);
    }
}

/* ---- what the worker needs ---- */

/* Rows of a variable that is not here: they alone are asked for. */
static bool looks_up(const ch_node *n)
{
    return n->op == &ch__op_gather && is_read(n->in[0]) && ch__gather_is_rows(n);
}

/* Norms of a variable and slots that are together elsewhere: each shard gives its part of the sum. */
static bool adds_up(const cutter *c, const ch_node *n)
{
    int place = NOBODY;

    if (n->op != &ch__op_apply_norms)
        return false;
    for (int k = 0; k < n->n_in; k++) {
        const ch_read_attrs *a;

        if (!ch__norms_read(k))
            continue;
        if (!is_read(n->in[k]))
            return false;
        a = ch__attrs(n->in[k]);
        if (place != NOBODY && c->place[a->resource] != place)
            return false;
        place = c->place[a->resource];
    }
    return true;
}

static void want(cutter *c, const ch_node *n)
{
    c->wanted[n->id] = 1;
    if (is_read(n))
        c->whole[n->id] = 1;
}

/* Not what has sizes: a shard would need its part of it. */
static bool is_free_there(const ch_node *n)
{
    return n->dims.rank == 0 && ch__call_is_free(n->head);
}

/* What updates take that is not theirs, but for what is as easily made there. */
static void want_update_inputs(cutter *c, const ch_node *n)
{
    for (int k = 0; k < n->n_in; k++)
        if (!is_beside(c, n, k) && !is_free_there(n->in[k]))
            want(c, n->in[k]);
}

static void mark_returned(cutter *c)
{
    for (int i = 0; i < c->g->n_resources && !c->no_returns; i++) {
        const ch_resource *r = &c->g->resource[i];

        if (is_written(r) && is_server(c, r->value) && !is_read(r->value))
            c->returned[r->value->id] = 1;
    }
}

static bool is_wanted(const cutter *c, const ch_node *n)
{
    bool wanted = ch__call_is_root(n);

    for (int k = 0; k < n->n_out; k++)
        wanted |= c->wanted[n[k].id] && !c->returned[n[k].id];
    return wanted;
}

/* What a call of the worker's takes, but for what stays on servers: a table, or a variable and its slots. */
static void want_inputs(cutter *c, const ch_node *n)
{
    bool adds = adds_up(c, n), looks = looks_up(n);

    for (int k = 0; k < count_needs(n); k++) {
        const ch_node *in = need(c, n, k);
        bool           stays = looks ? k == 0 : adds && k < n->n_in && ch__norms_read(k);

        if (in != NULL && !stays)
            want(c, in);
    }
}

static void mark_worker(cutter *c)
{
    const ch_graph *g = c->g;

    mark_returned(c);
    for (int i = 0; i < g->n_outputs; i++)
        want(c, g->output[i].node);
    for (int i = 0; i < g->n_resources; i++)
        if (is_assigned(c, i) && !is_free_there(g->resource[i].value))
            want(c, g->resource[i].value);
    for (int i = c->n_calls - 1; i >= 0; i--) {
        const ch_node *n = c->call[i];

        if (is_server(c, n) && !is_read(n))
            want_update_inputs(c, n);
        if (is_read(n) || n->op == ch__roles.input || !is_wanted(c, n))
            continue;
        c->run[n->id] = 1;
        want_inputs(c, n);
    }
}

/* A lookup that the servers do. */
static bool is_lookup(const cutter *c, const ch_node *n)
{
    return c->run[n->id] && looks_up(n) && !c->whole[n->in[0]->id];
}

/* ---- remotes ---- */

static void *room(cutter *c, int n, size_t size)
{
    return ch__arena_alloc(&c->plan->arena, (size_t)(n > 0 ? n : 1) * size);
}

static int number_of(cutter *c, const ch_node *n)
{
    if (c->number[n->id] == NOBODY)
        c->number[n->id] = c->plan->n_values++;
    return c->number[n->id];
}

static ch_status give(cutter *c, ch_remote_part *r, const ch_node *n)
{
    if (r->out == NULL && (r->out = room(c, CH_MAX_OUT, sizeof(int))) == NULL)
        return ch__fail_memory("a route");
    if (r->n_out == CH_MAX_OUT)
        return ch__fail(CH_UNIMPLEMENTED, "%s: an update gives more than %d values", c->g->name,
                        CH_MAX_OUT);
    r->out[r->n_out++] = number_of(c, n);
    c->remote[n->id] = (int)(r - c->plan->remote);
    return CH_OK;
}

/* A remote over these resources. */
static ch_status set_variables(cutter *c, ch_remote_part *r, int n, const int *resource)
{
    r->place = c->place[resource[0]];
    r->n_variables = n;
    r->variable = room(c, n, sizeof(int));
    if (r->variable == NULL)
        return ch__fail_memory("a route");
    memcpy(r->variable, resource, (size_t)n * sizeof(int));
    return CH_OK;
}

static ch_status add_read(cutter *c, int resource)
{
    ch_remote_part *r = &c->plan->remote[c->plan->n_remote_parts++];
    ch_status       rc;

    *r = (ch_remote_part){.kind = CH_REMOTE_READ};
    rc = set_variables(c, r, 1, &resource);
    return rc == CH_OK ? give(c, r, c->g->resource[resource].read) : rc;
}

static ch_status add_lookup(cutter *c, const ch_node *n)
{
    ch_remote_part      *r = &c->plan->remote[c->plan->n_remote_parts++];
    const ch_read_attrs *a = ch__attrs(n->in[0]);
    int                  resource = (int)a->resource;
    ch_status            rc;

    *r = (ch_remote_part){.kind = CH_REMOTE_ROWS,
                          .or_zero = ch__gather_gives_zeros(n),
                          .n_in = 1,
                          .in = room(c, 1, sizeof(ch_plan_input))};
    rc = r->in == NULL ? ch__fail_memory("a route") : set_variables(c, r, 1, &resource);
    if (rc != CH_OK)
        return rc;
    r->in[0] = (ch_plan_input){number_of(c, n->in[1]), CH_SHARD_IDS, NOBODY};
    c->run[n->id] = 0;
    return give(c, r, n);
}

static ch_status add_reads(cutter *c)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < c->g->n_resources && rc == CH_OK; i++)
        if (c->g->resource[i].read != NULL && c->whole[c->g->resource[i].read->id])
            rc = add_read(c, i);
    for (int i = 0; i < c->n_calls && rc == CH_OK; i++)
        if (is_lookup(c, c->call[i]))
            rc = add_lookup(c, c->call[i]);
    return rc;
}

/* ---- updates ---- */

typedef struct updating {
    int             n_resources, n_in, n_out;
    int            *resource;
    const ch_node **in, **out;
    ch_remote_part *remote;
} updating;

static int input_at(updating *u, const ch_node *n)
{
    for (int i = 0; i < u->n_in; i++)
        if (u->in[i] == n)
            return i;
    u->in[u->n_in] = n;
    return u->n_in++;
}

/* Whether input k lies along the variable, as far as it goes: not so the numbers of a rule. */
static bool lies_along(const ch_node *n, const ch_factors *f, int k)
{
    int rank = n->in[k]->dims.rank, skip = n->dims.rank - rank;

    for (int d = 0; d < rank && skip >= 0 && k < f->n_in; d++)
        if (f->in[k][d] >= 0 && f->in[k][d] == f->out[0][d + skip])
            return true;
    return false;
}

static bool goes_by_id(const ch_node *n, const ch_factors *f)
{
    return n->dims.rank > 0 && f->in[0][0] >= 0 && f->kind[f->in[0][0]] == CH_IDX;
}

/* What a shard gets of input k of a call. */
static ch_status note_input(cutter *c, updating *u, const ch_node *n, int k)
{
    ch_factors    f = {0};
    ch_status     rc = n->op->factors(n, &f);
    ch_plan_input in = {number_of(c, n->in[k]), CH_SHARD_WHOLE, NOBODY};

    if (goes_by_id(n, &f) && k == 1) {
        in.role = CH_SHARD_IDS;
    } else if (goes_by_id(n, &f) && k == 2 && is_beside(c, n, 1)) {
        in.role = CH_SHARD_CUT; /* ids that servers make are one for each row of theirs */
    } else if (goes_by_id(n, &f) && k == 2) {
        in.role = CH_SHARD_ROWS;
        in.ids = input_at(u, n->in[1]);
    } else if (lies_along(n, &f, k)) {
        in.role = CH_SHARD_CUT;
    }
    u->remote->in[input_at(u, n->in[k])] = in;
    return rc;
}

static ch_status note_call(cutter *c, updating *u, const ch_node *n)
{
    ch_status rc = CH_OK;

    c->take[n->id] = 1;
    for (int k = 0; k < n->n_in && rc == CH_OK; k++)
        if (!is_beside(c, n, k) && !is_free_there(n->in[k]))
            rc = note_input(c, u, n, k);
    for (int k = 0; k < n->n_out && rc == CH_OK; k++)
        if (c->returned[n[k].id] && c->wanted[n[k].id]) {
            u->out[u->n_out++] = &n[k];
            rc = give(c, u->remote, &n[k]);
        }
    return rc;
}

static void note_resource(updating *u, int i)
{
    u->resource[u->n_resources++] = i;
}

static ch_status begin_update(cutter *c, updating *u, int most_in)
{
    u->remote = &c->plan->remote[c->plan->n_remote_parts++];
    *u->remote = (ch_remote_part){.kind = CH_REMOTE_UPDATE,
                                  .in = room(c, most_in, sizeof(ch_plan_input))};
    u->n_resources = u->n_in = u->n_out = 0;
    memset(c->take, 0, (size_t)c->g->n_values);
    return u->remote->in == NULL ? ch__fail_memory("a route") : CH_OK;
}

static ch_status end_update(cutter *c, updating *u)
{
    char       name[64];
    ch_extract e = {.name = name,
                    .take = c->take,
                    .n_in = u->n_in,
                    .n_out = u->n_out,
                    .in = u->in,
                    .out = u->out,
                    .n_resources = u->n_resources,
                    .resource = u->resource,
                    .only_reads = u->remote->is_sum};

    snprintf(name, sizeof(name), "%.40s update %d", c->g->name,
             (int)(u->remote - c->plan->remote));
    u->remote->n_in = u->n_in;
    if (set_variables(c, u->remote, u->n_resources, u->resource) != CH_OK)
        return CH_RESOURCE_EXHAUSTED;
    return ch__graph_extract(c->g, &e, &u->remote->graph);
}

/* Makes the value that is assigned to a resource an input of the update, unless the server makes it as
 * easily. A shard gets its part, and no other call of the update may need another part. */
static ch_status note_assigned(cutter *c, updating *u, int resource)
{
    const ch_node *w = c->g->resource[resource].value;
    int            n_in = u->n_in, at;

    if (is_free_there(w))
        return CH_OK;
    at = input_at(u, w);
    if (at < n_in && u->remote->in[at].role != CH_SHARD_CUT)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: variable %s: its new value is also what another update on its "
                        "server takes, but not row by row; assign it in a step of its own",
                        c->g->name, c->g->resource[resource].name);
    u->remote->in[at] = (ch_plan_input){number_of(c, w), CH_SHARD_CUT, NOBODY};
    return CH_OK;
}

/* The update whose root this is. */
static ch_status add_update(cutter *c, updating *u, int root)
{
    ch_status rc = begin_update(c, u, c->g->n_values);

    for (int i = 0; i < c->n_calls && rc == CH_OK; i++)
        if (is_server(c, c->call[i]) && !is_read(c->call[i]) && find(c, c->call[i]->id) == root)
            rc = note_call(c, u, c->call[i]);
    for (int i = 0; i < c->g->n_resources && rc == CH_OK; i++) {
        const ch_resource *r = &c->g->resource[i];
        bool               reads = is_read_there(c, r) && find(c, r->read->id) == root;
        bool               writes =
            is_written(r) && !is_assigned(c, i) && find(c, r->value->head->id) == root;

        if (reads || writes)
            note_resource(u, i);
        if (reads && is_assigned(c, i))
            rc = note_assigned(c, u, i);
    }
    return rc == CH_OK ? end_update(c, u) : rc;
}

/* An update that only assigns. */
static ch_status add_assign(cutter *c, updating *u, int resource)
{
    ch_status rc = begin_update(c, u, 1);

    if (rc == CH_OK)
        rc = note_assigned(c, u, resource);
    if (rc != CH_OK)
        return rc;
    note_resource(u, resource);
    return end_update(c, u);
}

/* Writes nothing: what shards give is added up. */
static ch_status add_norms(cutter *c, updating *u, const ch_node *n)
{
    ch_status rc = begin_update(c, u, n->n_in);

    if (rc != CH_OK)
        return rc;
    u->remote->is_sum = true;
    c->take[n->id] = 1;
    for (int k = 0; k < n->n_in; k++) {
        bool is_like =
            n->in[k]->dims.rank > 0 && ch__dims_same(&n->in[k]->dims, &n->in[0]->dims);

        if (ch__norms_read(k))
            note_resource(u, (int)((const ch_read_attrs *)ch__attrs(n->in[k]))->resource);
        else
            u->remote->in[input_at(u, n->in[k])] = (ch_plan_input){
                number_of(c, n->in[k]), is_like ? CH_SHARD_CUT : CH_SHARD_WHOLE, NOBODY};
    }
    u->out[u->n_out++] = n;
    c->run[n->id] = 0;
    rc = give(c, u->remote, n);
    return rc == CH_OK ? end_update(c, u) : rc;
}

static ch_status add_updates(cutter *c)
{
    updating  u = {.resource = room(c, c->g->n_resources, sizeof(int)),
                   .in = room(c, c->g->n_values, sizeof(ch_node *)),
                   .out = room(c, c->g->n_values, sizeof(ch_node *))};
    ch_status rc = u.resource == NULL || u.in == NULL || u.out == NULL
                       ? ch__fail_memory("a route")
                       : CH_OK;

    for (int i = 0; i < c->n_calls && rc == CH_OK; i++) {
        int id = c->call[i]->id;

        if (c->update[id] == id)
            rc = add_update(c, &u, id);
        else if (c->run[id] && adds_up(c, c->call[i]))
            rc = add_norms(c, &u, c->call[i]);
    }
    for (int i = 0; i < c->g->n_resources && rc == CH_OK; i++)
        if (is_assigned(c, i) && !is_read_there(c, &c->g->resource[i]))
            rc = add_assign(c, &u, i);
    return rc;
}

/* ---- in which order ---- */

static bool writes(const ch_remote_part *r, int variable)
{
    for (int i = 0; i < r->n_variables; i++)
        if (r->variable[i] == variable)
            return is_written(&r->graph->resource[i]);
    return false;
}

bool ch__remote_follows(const ch_remote_part *r, const ch_remote_part *other)
{
    if (r->kind != CH_REMOTE_UPDATE || r->is_sum ||
        (other->kind == CH_REMOTE_UPDATE && !other->is_sum))
        return false;
    for (int i = 0; i < other->n_variables; i++)
        if (writes(r, other->variable[i]))
            return true;
    return false;
}

/* When a value is there for a remote: behind the segment that computes it, or as soon as whoever gives it does. */
static int ready(const cutter *c, const ch_node *n)
{
    return c->level[n->id] + c->run[n->head->id];
}

static const ch_node *value_node(const cutter *c, int number)
{
    for (int i = 0; i < c->n_calls; i++)
        for (int k = 0; k < c->call[i]->n_out; k++)
            if (c->number[c->call[i][k].id] == number)
                return &c->call[i][k];
    return NULL;
}

/* Raises the levels of a remote's results; true if that changed any. */
static bool raise_remote(cutter *c, const ch_remote_part *r, const ch_node *const *node)
{
    bool changed = false;
    int  level = 0;

    for (int i = 0; i < r->n_in; i++)
        if (ready(c, node[r->in[i].value]) > level)
            level = ready(c, node[r->in[i].value]);
    for (int i = 0; i < c->plan->n_remote_parts; i++) {
        const ch_remote_part *other = &c->plan->remote[i];

        if (ch__remote_follows(r, other) && c->level[node[other->out[0]]->id] > level)
            level = c->level[node[other->out[0]]->id];
    }
    for (int i = 0; i < r->n_out; i++) {
        int *at = &c->level[node[r->out[i]]->id];

        changed |= *at < level;
        *at = level > *at ? level : *at;
    }
    return changed;
}

static bool raise_call(cutter *c, const ch_node *n)
{
    bool changed = false;
    int  level = 0;

    for (int k = 0; k < count_needs(n); k++)
        if (need(c, n, k) != NULL && c->level[need(c, n, k)->id] > level)
            level = c->level[need(c, n, k)->id];
    for (int k = 0; k < n->n_out; k++)
        if (c->remote[n[k].id] == NOBODY && c->level[n[k].id] < level) {
            c->level[n[k].id] = level;
            changed = true;
        }
    return changed;
}

/* False: an update takes what depends on its own results. */
static bool set_levels(cutter *c, const ch_node *const *node)
{
    const ch_step_plan *r = c->plan;
    bool                changed = true;

    for (int round = 0; changed; round++) {
        if (round > r->n_remote_parts + 1)
            return false;
        changed = false;
        for (int i = 0; i < c->n_calls; i++)
            changed |= c->run[c->call[i]->id] && raise_call(c, c->call[i]);
        for (int i = 0; i < r->n_remote_parts; i++)
            changed |= raise_remote(c, &r->remote[i], node);
    }
    return true;
}

static void limit(cutter *c, const ch_node *n, int most)
{
    int *at = &c->local_part[n->head->id];

    *at = *at < most ? *at : most;
}

/* Every call as late as its users allow: what a lookup does not need does not make it wait. Returns how many
 * segments there are. */
static int set_local_parts(cutter *c, const ch_node *const *node)
{
    const ch_step_plan *r = c->plan;
    int                 last = 0;

    for (int i = 0; i < c->n_calls; i++)
        for (int k = 0; c->run[c->call[i]->id] && k < count_needs(c->call[i]); k++) {
            const ch_node *in = need(c, c->call[i], k);

            last = in != NULL && c->level[in->id] > last ? c->level[in->id] : last;
        }
    for (int i = 0; i < c->n_calls; i++)
        c->local_part[c->call[i]->id] = last;
    for (int i = 0; i < r->n_remote_parts; i++)
        for (int k = 0; k < r->remote[i].n_in && r->remote[i].n_out > 0; k++)
            limit(c, node[r->remote[i].in[k].value],
                  c->level[node[r->remote[i].out[0]]->id] - 1);
    for (int i = c->n_calls - 1; i >= 0; i--)
        for (int k = 0; c->run[c->call[i]->id] && k < count_needs(c->call[i]); k++)
            if (need(c, c->call[i], k) != NULL)
                limit(c, need(c, c->call[i], k), c->local_part[c->call[i]->id]);
    return last + 1;
}

/* ---- segments ---- */

typedef struct segmenting {
    const ch_node **in, **out;
    int             n_in, n_out, n_calls;
    unsigned char  *is_in, *is_out; /* by value id */
} segmenting;

static bool is_here(const cutter *c, const ch_node *n, int at)
{
    return c->run[n->head->id] && c->local_part[n->head->id] == at &&
           c->remote[n->id] == NOBODY;
}

static void note_crossing(cutter *c, segmenting *s, const ch_node *n, bool into)
{
    unsigned char  *seen = into ? s->is_in : s->is_out;
    const ch_node **list = into ? s->in : s->out;

    if (seen[n->id])
        return;
    seen[n->id] = 1;
    list[into ? s->n_in++ : s->n_out++] = n;
    (void)number_of(c, n);
}

/* A size that comes with an input of the step may stand in a call that does not take it. */
static void note_sizes(cutter *c, segmenting *s)
{
    for (int i = 0; i < c->g->n_inputs; i++)
        for (int k = 0; k < c->g->input[i]->dims.rank; k++)
            if (c->g->input[i]->dims.dim[k].sym != 0)
                note_crossing(c, s, c->g->input[i], true);
}

/* What segment `at` takes from others, and what others take from it. What is free they have themselves, unless somebody
 * who runs no segment wants it. */
static void find_crossings(cutter *c, segmenting *s, int at)
{
    for (int i = 0; i < c->n_calls; i++) {
        const ch_node *n = c->call[i];
        bool           here = c->run[n->id] && c->local_part[n->id] == at;

        c->take[n->id] = here;
        s->n_calls += here;
        for (int k = 0; c->run[n->id] && k < count_needs(n); k++) {
            const ch_node *in = need(c, n, k);

            if (in == NULL || ch__call_is_free(in->head))
                continue;
            if (here && !is_here(c, in, at))
                note_crossing(c, s, in, true);
            if (!here && is_here(c, in, at))
                note_crossing(c, s, in, false);
        }
        for (int k = 0; k < n->n_out; k++)
            if (c->number[n[k].id] != NOBODY && is_here(c, &n[k], at))
                note_crossing(c, s, &n[k], false);
    }
}

static ch_status keep_values(cutter *c, int n, const ch_node *const *node, int **out)
{
    *out = room(c, n, sizeof(int));
    if (*out == NULL)
        return ch__fail_memory("a route");
    for (int i = 0; i < n; i++)
        (*out)[i] = c->number[node[i]->id];
    return CH_OK;
}

static ch_status add_local_part(cutter *c, segmenting *s, int at)
{
    char           name[64];
    ch_local_part *to = &c->plan->local_part[c->plan->n_local_parts];
    ch_extract     e = {.name = name, .take = c->take, .in = s->in, .out = s->out};
    ch_status      rc;

    s->n_in = s->n_out = s->n_calls = 0;
    memset(s->is_in, 0, (size_t)c->g->n_values);
    memset(s->is_out, 0, (size_t)c->g->n_values);
    memset(c->take, 0, (size_t)c->g->n_values);
    find_crossings(c, s, at);
    if (s->n_calls == 0)
        return CH_OK;
    note_sizes(c, s);
    snprintf(name, sizeof(name), "%.40s part %d", c->g->name, at);
    e.n_in = s->n_in;
    e.n_out = s->n_out;
    rc = ch__graph_extract(c->g, &e, &to->graph);
    if (rc != CH_OK)
        return rc;
    c->plan->n_local_parts++;
    to->n_in = s->n_in;
    to->n_out = s->n_out;
    rc = keep_values(c, s->n_in, s->in, &to->in);
    return rc == CH_OK ? keep_values(c, s->n_out, s->out, &to->out) : rc;
}

static ch_status add_local_parts(cutter *c, int n)
{
    size_t     values = (size_t)c->g->n_values;
    segmenting s = {.in = room(c, c->g->n_values, sizeof(ch_node *)),
                    .out = room(c, c->g->n_values, sizeof(ch_node *)),
                    .is_in = room(c, (int)values, 1),
                    .is_out = room(c, (int)values, 1)};
    ch_status  rc = CH_OK;

    c->plan->local_part = room(c, n, sizeof(ch_local_part));
    if (s.in == NULL || s.out == NULL || s.is_in == NULL || s.is_out == NULL ||
        c->plan->local_part == NULL)
        return ch__fail_memory("a route");
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = add_local_part(c, &s, i);
    return rc;
}

/* ---- the whole ---- */

/* The rows of a step are those of its first input or, if that is half of a ragged component, those
 * that the splits cut. */
static void find_rows(const ch_graph *g, ch_step_plan *plan)
{
    const ch_input_attrs *first = g->n_inputs > 0 ? ch__attrs(g->input[0]) : NULL;

    if (first == NULL)
        return;
    plan->rows_are_split = first->rows.rank == 1;
    for (int i = 0; i < g->n_inputs && first->splits != 0 && !plan->rows_are_split; i++) {
        const ch_input_attrs *a = ch__attrs(g->input[i]);

        if (a->rows.rank == 1 && a->dims.dim[0].sym == first->splits) {
            plan->rows = i;
            plan->rows_are_split = true;
        }
    }
}

/* Results and inputs have numbers in any case, inputs the first. A result that is a constant is computed by the
 * last segment. */
static ch_status set_ends(cutter *c)
{
    const ch_graph *g = c->g;

    c->plan->n_inputs = g->n_inputs;
    find_rows(g, c->plan);
    for (int i = 0; i < g->n_inputs; i++)
        (void)number_of(c, g->input[i]);
    c->plan->n_outputs = g->n_outputs;
    c->plan->output = room(c, g->n_outputs, sizeof(int));
    if (c->plan->output == NULL)
        return ch__fail_memory("a route");
    for (int i = 0; i < g->n_outputs; i++)
        c->plan->output[i] = number_of(c, g->output[i].node);
    return CH_OK;
}

static bool is_first_there(const cutter *c, int resource)
{
    for (int i = 0; i < resource; i++)
        if (c->place[i] == c->place[resource])
            return false;
    return true;
}

static ch_status cut(cutter *c)
{
    const ch_node **node;
    ch_status       rc = set_ends(c);

    for (int i = 0; i < c->g->n_resources; i++)
        if (is_first_there(c, i))
            mark_servers(c, c->place[i]);
    join_updates(c);
    mark_worker(c);
    c->plan->remote = room(c, c->g->n_calls + 2 * c->g->n_resources, sizeof(ch_remote_part));
    if (rc == CH_OK && c->plan->remote == NULL)
        rc = ch__fail_memory("a route");
    if (rc == CH_OK)
        rc = add_reads(c);
    if (rc == CH_OK)
        rc = add_updates(c);
    node = rc == CH_OK ? room(c, c->plan->n_values, sizeof(ch_node *)) : NULL;
    if (rc == CH_OK && node == NULL)
        rc = ch__fail_memory("a route");
    for (int i = 0; rc == CH_OK && i < c->plan->n_values; i++)
        node[i] = value_node(c, i);
    if (rc != CH_OK)
        return rc;
    if (!set_levels(c, node))
        return CH_ABORTED; /* again, without what an update gives */
    return add_local_parts(c, set_local_parts(c, node));
}

static ch_status make_room(cutter *c)
{
    size_t n = (size_t)c->g->n_values + 1;

    c->update = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->at = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->level = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->local_part = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->number = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->remote = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->maker =
        ch__arena_alloc(&c->plan->arena, ((size_t)c->g->n_symbols + 1) * sizeof(*c->maker));
    c->can = ch__arena_alloc(&c->plan->arena, 6 * n);
    c->call = ch__arena_alloc(&c->plan->arena, ((size_t)c->g->n_calls + 1) * sizeof(*c->call));
    if (c->update == NULL || c->at == NULL || c->level == NULL || c->local_part == NULL ||
        c->number == NULL || c->remote == NULL || c->maker == NULL || c->can == NULL ||
        c->call == NULL)
        return ch__fail_memory("a route");
    c->wanted = c->can + n;
    c->whole = c->wanted + n;
    c->run = c->whole + n;
    c->returned = c->run + n;
    c->take = c->returned + n;
    for (size_t i = 0; i < n; i++)
        c->update[i] = c->number[i] = c->remote[i] = NOBODY;
    ch__graph_calls(c->g, c->call);
    c->n_calls = c->g->n_calls;
    find_makers(c);
    return CH_OK;
}

void ch__step_plan_free(ch_step_plan *r)
{
    if (r == NULL)
        return;
    for (int i = 0; i < r->n_remote_parts; i++)
        ch_graph_unref(r->remote[i].graph);
    for (int i = 0; i < r->n_local_parts; i++)
        ch_graph_unref(r->local_part[i].graph);
    ch__step_exec_cache_free(r->store);
    ch__arena_drop(&r->arena);
    ch__free(r);
}

ch_status ch__step_plan_new(const ch_graph *g, const int *place, ch_step_plan **out)
{
    ch_status rc = CH_ABORTED;

    for (int k = 0; k < 2 && rc == CH_ABORTED; k++) {
        cutter c = {.g = g, .place = place, .no_returns = k == 1};

        c.plan = ch__calloc(1, sizeof(*c.plan));
        if (c.plan == NULL)
            return ch__fail_memory("a route");
        rc = make_room(&c);
        if (rc == CH_OK)
            rc = cut(&c);
        if (rc == CH_OK)
            *out = c.plan;
        else
            ch__step_plan_free(c.plan);
    }
    return rc;
}
