/* job/step_plan_codec.c -- routes as bytes, and back from anywhere.   SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "job/job.pb-c.h"
#include "job/step_plan.h"
#include "tensor/tensor.h"

/* A route beyond these is refused on both sides (PROMISES S7). */
enum { MOST_VALUES = 1 << 16, MOST_PARTS = 1 << 14, MOST_SHARDS = 1 << 12 };

/* ---- encoding: messages in an arena, then packed ---- */

typedef struct encoder {
    ch_arena  a;
    ch_status rc; /* the first that failed */
} encoder;

static void *room(encoder *e, size_t n, size_t size)
{
    void *p = ch__arena_alloc(&e->a, (n > 0 ? n : 1) * size);

    if (p == NULL && e->rc == CH_OK)
        e->rc = ch__fail_memory("a route");
    return p;
}

static uint32_t *encode_ints(encoder *e, int n, const int *from)
{
    uint32_t *to = room(e, (size_t)n, sizeof(*to));

    for (int i = 0; to != NULL && i < n; i++)
        to[i] = (uint32_t)from[i];
    return to;
}

static ProtobufCBinaryData encode_graph(encoder *e, const ch_graph *g)
{
    ProtobufCBinaryData to = {0, NULL};
    void               *bytes = NULL;
    size_t              n = 0;

    if (g == NULL || e->rc != CH_OK)
        return to;
    e->rc = ch_graph_encode(g, &bytes, &n);
    to.data = e->rc == CH_OK ? ch__arena_copy(&e->a, bytes, n) : NULL;
    to.len = to.data != NULL ? n : 0;
    if (e->rc == CH_OK && to.data == NULL)
        e->rc = ch__fail_memory("a route");
    ch_bytes_free(bytes);
    return to;
}

static Cohort__PlanVariable *encode_variable(encoder *e, const ch_plan_variable *v)
{
    Cohort__PlanVariable *m = room(e, 1, sizeof(*m));
    Cohort__PlanShard    *shard = room(e, (size_t)v->n_shards, sizeof(*shard));
    const char           *dtype = ch_dtype_name(v->dtype);

    if (e->rc != CH_OK)
        return NULL;
    cohort__plan_variable__init(m);
    m->name = ch__arena_strdup(&e->a, v->name);
    m->dtype = ch__arena_strdup(&e->a, dtype);
    m->shape = ch__arena_copy(&e->a, v->shape.dim, (size_t)v->shape.rank * sizeof(int64_t) + 1);
    m->shards = room(e, (size_t)v->n_shards, sizeof(*m->shards));
    if (m->name == NULL || m->dtype == NULL || m->shape == NULL || m->shards == NULL) {
        e->rc = ch__fail_memory("a route");
        return NULL;
    }
    m->n_shape = (size_t)v->shape.rank;
    m->axis = (uint32_t)v->axis;
    m->n_shards = (size_t)v->n_shards;
    for (int i = 0; i < v->n_shards; i++) {
        cohort__plan_shard__init(&shard[i]);
        shard[i].server = (uint32_t)v->shard[i].server;
        shard[i].variable = v->shard[i].variable;
        m->shards[i] = &shard[i];
    }
    return m;
}

static Cohort__PlanLocalPart *encode_local_part(encoder *e, const ch_local_part *s)
{
    Cohort__PlanLocalPart *m = room(e, 1, sizeof(*m));

    if (e->rc != CH_OK)
        return NULL;
    cohort__plan_local_part__init(m);
    m->graph = encode_graph(e, s->graph);
    m->in = encode_ints(e, s->n_in, s->in);
    m->out = encode_ints(e, s->n_out, s->out);
    m->n_in = (size_t)s->n_in;
    m->n_out = (size_t)s->n_out;
    return m;
}

static Cohort__PlanRemotePart *encode_remote(encoder *e, const ch_remote_part *r,
                                             uint64_t function)
{
    Cohort__PlanRemotePart *m = room(e, 1, sizeof(*m));
    Cohort__PlanInput      *in = room(e, (size_t)r->n_in, sizeof(*in));

    if (e->rc != CH_OK)
        return NULL;
    cohort__plan_remote_part__init(m);
    m->kind = (uint32_t)r->kind;
    m->variables = encode_ints(e, r->n_variables, r->variable);
    m->n_variables = (size_t)r->n_variables;
    m->or_zero = r->or_zero;
    m->is_sum = r->is_sum;
    m->graph = encode_graph(e, r->graph);
    m->function = function;
    m->in = room(e, (size_t)r->n_in, sizeof(*m->in));
    m->n_in = (size_t)r->n_in;
    for (int i = 0; i < r->n_in && e->rc == CH_OK; i++) {
        cohort__plan_input__init(&in[i]);
        in[i].value = (uint32_t)r->in[i].value;
        in[i].role = (uint32_t)r->in[i].role;
        in[i].ids = r->in[i].ids;
        m->in[i] = &in[i];
    }
    m->out = encode_ints(e, r->n_out, r->out);
    m->n_out = (size_t)r->n_out;
    return m;
}

static ch_status fill(encoder *e, const ch_placed_plan *r, Cohort__StepPlan *m)
{
    const ch_step_plan *plan = r->plan;

    cohort__step_plan__init(m);
    m->values = (uint32_t)plan->n_values;
    m->inputs = (uint32_t)plan->n_inputs;
    m->rows = (uint32_t)plan->rows;
    m->rows_are_split = plan->rows_are_split;
    m->variables = room(e, (size_t)r->n_variables, sizeof(*m->variables));
    m->local_parts = room(e, (size_t)plan->n_local_parts, sizeof(*m->local_parts));
    m->remote_parts = room(e, (size_t)plan->n_remote_parts, sizeof(*m->remote_parts));
    m->outputs = encode_ints(e, plan->n_outputs, plan->output);
    m->n_variables = (size_t)r->n_variables;
    m->n_local_parts = (size_t)plan->n_local_parts;
    m->n_remote_parts = (size_t)plan->n_remote_parts;
    m->n_outputs = (size_t)plan->n_outputs;
    for (int i = 0; i < r->n_variables && e->rc == CH_OK; i++)
        m->variables[i] = encode_variable(e, &r->variable[i]);
    for (int i = 0; i < plan->n_local_parts && e->rc == CH_OK; i++)
        m->local_parts[i] = encode_local_part(e, &plan->local_part[i]);
    for (int i = 0; i < plan->n_remote_parts && e->rc == CH_OK; i++)
        m->remote_parts[i] = encode_remote(e, &plan->remote[i], r->function[i]);
    return e->rc;
}

ch_status ch__step_plan_encode(const ch_placed_plan *r, void **bytes, size_t *n)
{
    encoder          e = {.rc = CH_OK};
    Cohort__StepPlan m;
    ch_status        rc;

    if (r->plan->n_values > MOST_VALUES || r->plan->n_remote_parts > MOST_PARTS ||
        r->n_variables > MOST_PARTS)
        return ch__fail(CH_UNIMPLEMENTED,
                        "a step of %d values that pass between %d parts, at most %d and %d",
                        r->plan->n_values, r->plan->n_remote_parts, MOST_VALUES, MOST_PARTS);
    rc = fill(&e, r, &m);
    if (rc == CH_OK)
        rc = ch__protobuf_pack(&m.base, bytes, n);
    ch__arena_drop(&e.a);
    return rc;
}

/* ---- decoding ---- */

typedef struct decoder {
    ch_step_plan     *plan;
    ch_plan_variable *variable;
    int               n_variables;
    uint64_t         *function;
    unsigned char    *is_made; /* values that something gives */
} decoder;

static ch_status fail(const char *what)
{
    return ch__fail(CH_INVALID_ARGUMENT, "a route: %s", what);
}

static void *keep(decoder *d, size_t n, size_t size)
{
    return ch__arena_alloc(&d->plan->arena, (n > 0 ? n : 1) * size);
}

/* Numbers below a limit. */
static ch_status decode_ints(decoder *d, const char *what, size_t n, const uint32_t *from,
                             int limit, int **out)
{
    *out = keep(d, n, sizeof(int));
    if (*out == NULL)
        return ch__fail_memory("a route");
    for (size_t i = 0; i < n; i++) {
        if (from[i] >= (uint32_t)limit)
            return fail(what);
        (*out)[i] = (int)from[i];
    }
    return CH_OK;
}

/* What a part gives nobody else gives. */
static ch_status decode_gives(decoder *d, size_t n, const uint32_t *from, int **out)
{
    ch_status rc = decode_ints(d, "a part gives a value that there is not", n, from,
                               d->plan->n_values, out);

    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        if (d->is_made[from[i]])
            return fail("two parts give one value");
        d->is_made[from[i]] = 1;
    }
    return rc;
}

static ch_status decode_shape(const Cohort__PlanVariable *m, ch_plan_variable *v)
{
    int64_t count, bytes;

    if (m->n_shape > CH_MAX_RANK)
        return fail("a variable has too many axes");
    v->shape.rank = (int)m->n_shape;
    for (size_t i = 0; i < m->n_shape; i++)
        v->shape.dim[i] = m->shape[i];
    if (ch_dtype_parse(m->dtype, &v->dtype) != CH_OK)
        return fail("a variable has no dtype");
    return ch__tensor_size(v->dtype, v->shape, &count, &bytes);
}

static ch_status decode_variable(decoder *d, const Cohort__PlanVariable *m, ch_plan_variable *v)
{
    struct ch_plan_shard *shard = keep(d, m->n_shards, sizeof(*shard));
    ch_status             rc = decode_shape(m, v);

    if (rc != CH_OK)
        return rc;
    v->name = ch__arena_strdup(&d->plan->arena, m->name);
    if (shard == NULL || v->name == NULL)
        return ch__fail_memory("a route");
    if (m->n_shards < 1 || m->n_shards > MOST_SHARDS ||
        (m->n_shards > 1 && m->axis >= m->n_shape))
        return fail("a variable is cut in no shards, in too many, or along no axis of its own");
    v->axis = (int)m->axis;
    v->n_shards = (int)m->n_shards;
    if (v->n_shards > 1 && v->shape.dim[v->axis] < v->n_shards)
        return fail("a variable is cut in more shards than it has rows");
    for (int i = 0; i < v->n_shards; i++) {
        if (m->shards[i]->server >= MOST_PARTS)
            return fail("a server has too large a number");
        shard[i].server = (int)m->shards[i]->server;
        shard[i].variable = m->shards[i]->variable;
    }
    v->shard = shard;
    return CH_OK;
}

static ch_status decode_local_part(decoder *d, const Cohort__PlanLocalPart *m, ch_local_part *s)
{
    ch_status rc = ch_graph_decode(m->graph.data, m->graph.len, &s->graph);

    if (rc == CH_OK)
        rc = decode_ints(d, "a segment takes a value that there is not", m->n_in, m->in,
                         d->plan->n_values, &s->in);
    if (rc == CH_OK)
        rc = decode_gives(d, m->n_out, m->out, &s->out);
    if (rc != CH_OK)
        return rc;
    s->n_in = (int)m->n_in;
    s->n_out = (int)m->n_out;
    if (s->graph->n_inputs != s->n_in || s->graph->n_outputs != s->n_out ||
        s->graph->n_resources != 0)
        return fail("a segment's graph does not take and give what it should");
    return CH_OK;
}

/* The variables of an update are cut alike, and its graph is of them. */
static ch_status check_update(const decoder *d, const ch_remote_part *r)
{
    if (r->n_variables < 1 || r->graph->n_resources != r->n_variables ||
        r->graph->n_inputs != r->n_in || r->graph->n_outputs != r->n_out)
        return fail("an update's graph does not take and give what it should");
    for (int i = 0; i < r->n_variables; i++) {
        const ch_plan_variable *v = &d->variable[r->variable[i]],
                               *first = &d->variable[r->variable[0]];
        const ch_resource *of = &r->graph->resource[i];

        if (of->dtype != v->dtype || !ch_shape_equal(of->shape, v->shape))
            return fail("an update's graph is of another variable");
        if (v->n_shards != first->n_shards ||
            (v->n_shards > 1 && (v->axis != first->axis ||
                                 v->shape.dim[v->axis] != first->shape.dim[first->axis])))
            return fail("the variables of an update are not cut alike");
        for (int k = 0; k < v->n_shards; k++)
            if (v->shard[k].server != first->shard[k].server)
                return fail("the variables of an update are not on the same servers");
    }
    return CH_OK;
}

static ch_status check_remote(const decoder *d, const ch_remote_part *r)
{
    if (r->kind == CH_REMOTE_UPDATE)
        return check_update(d, r);
    if (r->n_variables != 1 || r->n_out != 1 || r->n_in != (r->kind == CH_REMOTE_ROWS) ||
        r->graph != NULL)
        return fail("a read does not take and give what it should");
    if (r->kind == CH_REMOTE_ROWS && d->variable[r->variable[0]].shape.rank < 1)
        return fail("rows of a scalar");
    return CH_OK;
}

static ch_status decode_inputs(decoder *d, const Cohort__PlanRemotePart *m, ch_remote_part *r)
{
    r->in = keep(d, m->n_in, sizeof(*r->in));
    if (r->in == NULL)
        return ch__fail_memory("a route");
    r->n_in = (int)m->n_in;
    for (int i = 0; i < r->n_in; i++) {
        const Cohort__PlanInput *in = m->in[i];
        bool                     rows = in->role == CH_SHARD_ROWS;

        if (in->value >= (uint32_t)d->plan->n_values || in->role > CH_SHARD_ROWS)
            return fail("a remote takes a value that there is not");
        if (rows ? in->ids < 0 || in->ids >= r->n_in || m->in[in->ids]->role != CH_SHARD_IDS
                 : in->ids != -1)
            return fail("rows go with ids");
        r->in[i] = (ch_plan_input){(int)in->value, (ch_shard_role)in->role, in->ids};
    }
    return CH_OK;
}

static ch_status decode_remote(decoder *d, const Cohort__PlanRemotePart *m, ch_remote_part *r)
{
    ch_status rc =
        m->kind <= CH_REMOTE_UPDATE ? decode_inputs(d, m, r) : fail("a remote of no kind");

    r->kind = (ch_remote_kind)m->kind;
    r->or_zero = m->or_zero;
    r->is_sum = m->is_sum && r->kind == CH_REMOTE_UPDATE;
    r->n_variables = (int)m->n_variables;
    r->n_out = (int)m->n_out;
    if (rc == CH_OK)
        rc = decode_ints(d, "a remote is of a variable that there is not", m->n_variables,
                         m->variables, d->n_variables, &r->variable);
    if (rc == CH_OK)
        rc = decode_gives(d, m->n_out, m->out, &r->out);
    if (rc == CH_OK && m->graph.len > 0)
        rc = ch_graph_decode(m->graph.data, m->graph.len, &r->graph);
    if (rc == CH_OK && r->kind == CH_REMOTE_UPDATE && r->graph == NULL)
        rc = fail("an update without a graph");
    return rc == CH_OK ? check_remote(d, r) : rc;
}

static ch_status check_sizes(const Cohort__StepPlan *m)
{
    if (m->values > MOST_VALUES || m->inputs > m->values || m->rows > m->inputs ||
        m->n_remote_parts > MOST_PARTS || m->n_local_parts > MOST_PARTS ||
        m->n_variables > MOST_PARTS || m->n_outputs > MOST_VALUES)
        return fail("it is too large");
    return CH_OK;
}

static ch_status make_room(decoder *d, const Cohort__StepPlan *m)
{
    d->plan->n_values = (int)m->values;
    d->plan->n_inputs = (int)m->inputs;
    d->plan->rows = (int)m->rows;
    d->plan->rows_are_split = m->rows_are_split != 0;
    d->plan->remote = keep(d, m->n_remote_parts, sizeof(ch_remote_part));
    d->plan->local_part = keep(d, m->n_local_parts, sizeof(ch_local_part));
    d->variable = keep(d, m->n_variables, sizeof(*d->variable));
    d->function = keep(d, m->n_remote_parts, sizeof(*d->function));
    d->is_made = keep(d, m->values, 1);
    if (d->plan->remote == NULL || d->plan->local_part == NULL || d->variable == NULL ||
        d->function == NULL || d->is_made == NULL)
        return ch__fail_memory("a route");
    memset(d->is_made, 1, m->inputs);
    return CH_OK;
}

static ch_status decode_parts(decoder *d, const Cohort__StepPlan *m)
{
    ch_status rc = CH_OK;

    for (size_t i = 0; i < m->n_variables && rc == CH_OK; i++)
        rc = decode_variable(d, m->variables[i], &d->variable[d->n_variables++]);
    for (size_t i = 0; i < m->n_local_parts && rc == CH_OK; i++)
        rc = decode_local_part(d, m->local_parts[i],
                               &d->plan->local_part[d->plan->n_local_parts++]);
    for (size_t i = 0; i < m->n_remote_parts && rc == CH_OK; i++) {
        d->function[i] = m->remote_parts[i]->function;
        rc = decode_remote(d, m->remote_parts[i], &d->plan->remote[d->plan->n_remote_parts++]);
    }
    d->plan->n_outputs = (int)m->n_outputs;
    return rc != CH_OK ? rc
                       : decode_ints(d, "it gives a value that there is not", m->n_outputs,
                                     m->outputs, d->plan->n_values, &d->plan->output);
}

/* Every value that is taken is given by somebody: else a step would wait for ever. */
static ch_status check_values(const decoder *d)
{
    const ch_step_plan *r = d->plan;
    bool                ok = true;

    for (int i = 0; i < r->n_local_parts; i++)
        for (int k = 0; k < r->local_part[i].n_in; k++)
            ok &= d->is_made[r->local_part[i].in[k]];
    for (int i = 0; i < r->n_remote_parts; i++)
        for (int k = 0; k < r->remote[i].n_in; k++)
            ok &= d->is_made[r->remote[i].in[k].value];
    for (int i = 0; i < r->n_outputs; i++)
        ok &= d->is_made[r->output[i]];
    return ok ? CH_OK : fail("nobody gives a value that somebody takes");
}

ch_status ch__step_plan_decode(const void *bytes, size_t n, ch_placed_plan *r)
{
    enum { LEAST = 1 << 16, TIMES = 16 };
    decoder           d = {.plan = ch__calloc(1, sizeof(*d.plan))};
    Cohort__StepPlan *m = (Cohort__StepPlan *)(void *)ch__protobuf_unpack_within(
        &cohort__step_plan__descriptor, bytes, n, LEAST + TIMES * n);
    ch_status rc = d.plan == NULL ? ch__fail_memory("a route") : CH_OK;

    if (rc == CH_OK)
        rc = m == NULL ? fail("these bytes are none") : check_sizes(m);
    if (rc == CH_OK)
        rc = make_room(&d, m);
    if (rc == CH_OK)
        rc = decode_parts(&d, m);
    if (rc == CH_OK)
        rc = check_values(&d);
    ch__protobuf_free(m != NULL ? &m->base : NULL);
    if (rc != CH_OK) {
        ch__step_plan_free(d.plan);
        return rc;
    }
    *r = (ch_placed_plan){d.plan, d.n_variables, d.variable, d.function};
    return CH_OK;
}
