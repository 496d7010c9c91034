/* job/step_plan/codec.c -- encodes step plans, and decodes untrusted ones (step_plan.h).
 *
 * The format is the message StepPlan of proto/job.proto. ch__step_plan_encode builds the
 * message in an arena and packs it. ch__step_plan_decode unpacks a message and checks it, so
 * that the code that executes a plan need not check again:
 *   1. Numbers of values, variables, kinds and roles are in range.
 *   2. Each value is produced once: it is an input, or an output of one part. Each value that
 *      is used is produced.
 *   3. The graphs have the inputs, outputs and resources that their parts describe.
 *   4. The variables of an update are sharded alike, on the same servers.
 * The decoder does not check whether parts depend on each other in a cycle.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "job/job.pb-c.h"
#include "job/step_plan.h"
#include "tensor/tensor.h"

/* Limits, checked by encoder and decoder. */
enum { MAX_VALUES = 1 << 16, MAX_PARTS = 1 << 14, MAX_SHARDS = 1 << 12 };

/* ---- encoding ---- */

typedef struct encoder {
    ch_arena  a;  /* memory of the message */
    ch_status rc; /* the first error */
} encoder;

/* Allocates n objects, at least one, in the arena. NULL: out of memory; sets e->rc. */
static void *alloc(encoder *e, size_t n, size_t size)
{
    void *p = ch__arena_alloc(&e->a, (n > 0 ? n : 1) * size);

    if (p == NULL && e->rc == CH_OK)
        e->rc = ch__fail_memory("a step plan");
    return p;
}

static uint32_t *encode_ints(encoder *e, int n, const int *from)
{
    uint32_t *to = alloc(e, (size_t)n, sizeof(*to));

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
        e->rc = ch__fail_memory("a step plan");
    ch_bytes_free(bytes);
    return to;
}

static Cohort__PlanVariable *encode_variable(encoder *e, const ch_plan_variable *v)
{
    Cohort__PlanVariable *m = alloc(e, 1, sizeof(*m));
    Cohort__PlanShard    *shard = alloc(e, (size_t)v->n_shards, sizeof(*shard));
    const char           *dtype = ch_dtype_name(v->dtype);

    if (e->rc != CH_OK)
        return NULL;
    cohort__plan_variable__init(m);
    m->name = ch__arena_strdup(&e->a, v->name);
    m->dtype = ch__arena_strdup(&e->a, dtype);
    m->shape = ch__arena_copy(&e->a, v->shape.dim, (size_t)v->shape.rank * sizeof(int64_t) + 1);
    m->shards = alloc(e, (size_t)v->n_shards, sizeof(*m->shards));
    if (m->name == NULL || m->dtype == NULL || m->shape == NULL || m->shards == NULL) {
        e->rc = ch__fail_memory("a step plan");
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
    Cohort__PlanLocalPart *m = alloc(e, 1, sizeof(*m));

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
                                             uint64_t update)
{
    Cohort__PlanRemotePart *m = alloc(e, 1, sizeof(*m));
    Cohort__PlanInput      *in = alloc(e, (size_t)r->n_in, sizeof(*in));

    if (e->rc != CH_OK)
        return NULL;
    cohort__plan_remote_part__init(m);
    m->kind = (uint32_t)r->kind;
    m->variables = encode_ints(e, r->n_variables, r->variable);
    m->n_variables = (size_t)r->n_variables;
    m->or_zero = r->or_zero;
    m->is_sum = r->is_sum;
    m->graph = encode_graph(e, r->graph);
    m->update = update;
    m->in = alloc(e, (size_t)r->n_in, sizeof(*m->in));
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

/* Builds the message of a plan in the arena. */
static ch_status build_message(encoder *e, const ch_placed_plan *r, Cohort__StepPlan *m)
{
    const ch_step_plan *plan = r->plan;

    cohort__step_plan__init(m);
    m->values = (uint32_t)plan->n_values;
    m->inputs = (uint32_t)plan->n_inputs;
    m->rows = (uint32_t)plan->rows;
    m->rows_are_split = plan->rows_are_split;
    m->variables = alloc(e, (size_t)r->n_variables, sizeof(*m->variables));
    m->local_parts = alloc(e, (size_t)plan->n_local_parts, sizeof(*m->local_parts));
    m->remote_parts = alloc(e, (size_t)plan->n_remote_parts, sizeof(*m->remote_parts));
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
        m->remote_parts[i] = encode_remote(e, &plan->remote[i], r->update[i]);
    return e->rc;
}

ch_status ch__step_plan_encode(const ch_placed_plan *r, void **bytes, size_t *n)
{
    encoder          e = {.rc = CH_OK};
    Cohort__StepPlan m;
    ch_status        rc;

    if (r->plan->n_values > MAX_VALUES || r->plan->n_remote_parts > MAX_PARTS ||
        r->n_variables > MAX_PARTS)
        return ch__fail(CH_UNIMPLEMENTED,
                        "step plan: %d values between %d remote parts; at most %d and %d are "
                        "supported",
                        r->plan->n_values, r->plan->n_remote_parts, MAX_VALUES, MAX_PARTS);
    rc = build_message(&e, r, &m);
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
    uint64_t         *update;
    unsigned char    *is_produced; /* by value: it is an input or an output of a part */
} decoder;

static ch_status fail(const char *problem)
{
    return ch__fail(CH_INVALID_ARGUMENT, "step plan: %s", problem);
}

/* Allocates n objects, at least one, in the arena of the plan. NULL: out of memory. */
static void *plan_alloc(decoder *d, size_t n, size_t size)
{
    return ch__arena_alloc(&d->plan->arena, (n > 0 ? n : 1) * size);
}

/* Copies a list of numbers, which must be below `limit`. `problem` is the error text. */
static ch_status decode_ints(decoder *d, const char *problem, size_t n, const uint32_t *from,
                             int limit, int **out)
{
    *out = plan_alloc(d, n, sizeof(int));
    if (*out == NULL)
        return ch__fail_memory("a step plan");
    for (size_t i = 0; i < n; i++) {
        if (from[i] >= (uint32_t)limit)
            return fail(problem);
        (*out)[i] = (int)from[i];
    }
    return CH_OK;
}

/* Decodes the outputs of a part. No other part may produce the same value. */
static ch_status decode_outputs(decoder *d, size_t n, const uint32_t *from, int **out)
{
    ch_status rc = decode_ints(d, "a part produces a value that does not exist", n, from,
                               d->plan->n_values, out);

    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        if (d->is_produced[from[i]])
            return fail("two parts produce the same value");
        d->is_produced[from[i]] = 1;
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
        return fail("a variable has an unknown dtype");
    return ch__tensor_size(v->dtype, v->shape, &count, &bytes);
}

static ch_status decode_variable(decoder *d, const Cohort__PlanVariable *m, ch_plan_variable *v)
{
    struct ch_plan_shard *shard = plan_alloc(d, m->n_shards, sizeof(*shard));
    ch_status             rc = decode_shape(m, v);

    if (rc != CH_OK)
        return rc;
    v->name = ch__arena_strdup(&d->plan->arena, m->name);
    if (shard == NULL || v->name == NULL)
        return ch__fail_memory("a step plan");
    if (m->n_shards < 1 || m->n_shards > MAX_SHARDS ||
        (m->n_shards > 1 && m->axis >= m->n_shape))
        return fail("a variable has no shards, too many shards, or no such axis");
    v->axis = (int)m->axis;
    v->n_shards = (int)m->n_shards;
    if (v->n_shards > 1 && v->shape.dim[v->axis] < v->n_shards)
        return fail("a variable has more shards than elements along the sharded axis");
    for (int i = 0; i < v->n_shards; i++) {
        if (m->shards[i]->server >= MAX_PARTS)
            return fail("the index of a server is too large");
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
        rc = decode_ints(d, "a local part uses a value that does not exist", m->n_in, m->in,
                         d->plan->n_values, &s->in);
    if (rc == CH_OK)
        rc = decode_outputs(d, m->n_out, m->out, &s->out);
    if (rc != CH_OK)
        return rc;
    s->n_in = (int)m->n_in;
    s->n_out = (int)m->n_out;
    if (s->graph->n_inputs != s->n_in || s->graph->n_outputs != s->n_out ||
        s->graph->n_resources != 0)
        return fail(
            "the graph of a local part has other inputs, outputs or variables than the part");
    return CH_OK;
}

/* Checks that the graph of an update fits its variables, and that these are sharded alike. */
static ch_status check_update(const decoder *d, const ch_remote_part *r)
{
    if (r->n_variables < 1 || r->graph->n_resources != r->n_variables ||
        r->graph->n_inputs != r->n_in || r->graph->n_outputs != r->n_out)
        return fail(
            "the graph of an update has other inputs, outputs or variables than the part");
    for (int i = 0; i < r->n_variables; i++) {
        const ch_plan_variable *v = &d->variable[r->variable[i]],
                               *first = &d->variable[r->variable[0]];
        const ch_resource *of = &r->graph->resource[i];

        if (of->dtype != v->dtype || !ch_shape_equal(of->shape, v->shape))
            return fail("the graph of an update has another dtype or shape for a variable");
        if (v->n_shards != first->n_shards ||
            (v->n_shards > 1 && (v->axis != first->axis ||
                                 v->shape.dim[v->axis] != first->shape.dim[first->axis])))
            return fail("the variables of an update are not sharded alike");
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
        return fail("a read or a lookup must have one variable and one output");
    if (r->kind == CH_REMOTE_ROWS && d->variable[r->variable[0]].shape.rank < 1)
        return fail("a lookup in a scalar");
    return CH_OK;
}

static ch_status decode_inputs(decoder *d, const Cohort__PlanRemotePart *m, ch_remote_part *r)
{
    r->in = plan_alloc(d, m->n_in, sizeof(*r->in));
    if (r->in == NULL)
        return ch__fail_memory("a step plan");
    r->n_in = (int)m->n_in;
    for (int i = 0; i < r->n_in; i++) {
        const Cohort__PlanInput *in = m->in[i];
        bool                     rows = in->role == CH_SHARD_ROWS;

        if (in->value >= (uint32_t)d->plan->n_values || in->role > CH_SHARD_ROWS)
            return fail("a remote part uses a value or a role that does not exist");
        if (rows ? in->ids < 0 || in->ids >= r->n_in || m->in[in->ids]->role != CH_SHARD_IDS
                 : in->ids != -1)
            return fail("rows must refer to an input with ids, and other inputs must not");
        r->in[i] = (ch_plan_input){(int)in->value, (ch_shard_role)in->role, in->ids};
    }
    return CH_OK;
}

static ch_status decode_remote(decoder *d, const Cohort__PlanRemotePart *m, ch_remote_part *r)
{
    ch_status rc = m->kind <= CH_REMOTE_UPDATE ? decode_inputs(d, m, r)
                                               : fail("a remote part of unknown kind");

    r->kind = (ch_remote_kind)m->kind;
    r->or_zero = m->or_zero;
    r->is_sum = m->is_sum && r->kind == CH_REMOTE_UPDATE;
    r->n_variables = (int)m->n_variables;
    r->n_out = (int)m->n_out;
    if (rc == CH_OK)
        rc = decode_ints(d, "a remote part uses a variable that does not exist", m->n_variables,
                         m->variables, d->n_variables, &r->variable);
    if (rc == CH_OK)
        rc = decode_outputs(d, m->n_out, m->out, &r->out);
    if (rc == CH_OK && m->graph.len > 0)
        rc = ch_graph_decode(m->graph.data, m->graph.len, &r->graph);
    if (rc == CH_OK && r->kind == CH_REMOTE_UPDATE && r->graph == NULL)
        rc = fail("an update without a graph");
    return rc == CH_OK ? check_remote(d, r) : rc;
}

static ch_status check_sizes(const Cohort__StepPlan *m)
{
    if (m->values > MAX_VALUES || m->inputs > m->values || m->rows > m->inputs ||
        m->n_remote_parts > MAX_PARTS || m->n_local_parts > MAX_PARTS ||
        m->n_variables > MAX_PARTS || m->n_outputs > MAX_VALUES)
        return fail("it is too large");
    return CH_OK;
}

static ch_status alloc_tables(decoder *d, const Cohort__StepPlan *m)
{
    d->plan->n_values = (int)m->values;
    d->plan->n_inputs = (int)m->inputs;
    d->plan->rows = (int)m->rows;
    d->plan->rows_are_split = m->rows_are_split != 0;
    d->plan->remote = plan_alloc(d, m->n_remote_parts, sizeof(ch_remote_part));
    d->plan->local_part = plan_alloc(d, m->n_local_parts, sizeof(ch_local_part));
    d->variable = plan_alloc(d, m->n_variables, sizeof(*d->variable));
    d->update = plan_alloc(d, m->n_remote_parts, sizeof(*d->update));
    d->is_produced = plan_alloc(d, m->values, 1);
    if (d->plan->remote == NULL || d->plan->local_part == NULL || d->variable == NULL ||
        d->update == NULL || d->is_produced == NULL)
        return ch__fail_memory("a step plan");
    memset(d->is_produced, 1, m->inputs);
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
        d->update[i] = m->remote_parts[i]->update;
        rc = decode_remote(d, m->remote_parts[i], &d->plan->remote[d->plan->n_remote_parts++]);
    }
    d->plan->n_outputs = (int)m->n_outputs;
    return rc != CH_OK ? rc
                       : decode_ints(d, "a result is a value that does not exist", m->n_outputs,
                                     m->outputs, d->plan->n_values, &d->plan->output);
}

/* Checks that every value that is used is produced. Otherwise a step would wait for ever. */
static ch_status check_values(const decoder *d)
{
    const ch_step_plan *r = d->plan;
    bool                ok = true;

    for (int i = 0; i < r->n_local_parts; i++)
        for (int k = 0; k < r->local_part[i].n_in; k++)
            ok &= d->is_produced[r->local_part[i].in[k]];
    for (int i = 0; i < r->n_remote_parts; i++)
        for (int k = 0; k < r->remote[i].n_in; k++)
            ok &= d->is_produced[r->remote[i].in[k].value];
    for (int i = 0; i < r->n_outputs; i++)
        ok &= d->is_produced[r->output[i]];
    return ok ? CH_OK : fail("a part uses a value that no part produces");
}

ch_status ch__step_plan_decode(const void *bytes, size_t n, ch_placed_plan *r)
{
    /* Limit of the memory of the unpacked message: BASE bytes, and PER_BYTE for each byte. */
    enum { BASE = 1 << 16, PER_BYTE = 16 };
    decoder                 d = {.plan = ch__calloc(1, sizeof(*d.plan))};
    ProtobufCMessage       *message = NULL;
    const Cohort__StepPlan *m;
    ch_status               rc = d.plan == NULL ? ch__fail_memory("a step plan") : CH_OK;

    if (rc == CH_OK)
        rc = ch__protobuf_unpack_within(&cohort__step_plan__descriptor, bytes, n,
                                        BASE + PER_BYTE * n, &message);
    if (rc == CH_INVALID_ARGUMENT)
        rc = fail("the bytes are not a step plan");
    m = (const void *)message;
    if (rc == CH_OK)
        rc = check_sizes(m);
    if (rc == CH_OK)
        rc = alloc_tables(&d, m);
    if (rc == CH_OK)
        rc = decode_parts(&d, m);
    if (rc == CH_OK)
        rc = check_values(&d);
    ch__protobuf_free(message);
    if (rc != CH_OK) {
        ch__step_plan_free(d.plan);
        return rc;
    }
    *r = (ch_placed_plan){d.plan, d.n_variables, d.variable, d.update};
    return CH_OK;
}
