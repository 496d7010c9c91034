/* graph/decode.c -- decodes a graph from an untrusted message (proto/graph.proto).
 *
 * ch_graph_decode unpacks an Outline, in which calls are bytes, and then unpacks and checks
 * call by call. Main struct: ch_decoder (decode.h). decode_part.c decodes names, types, sizes
 * and attributes.
 *
 * Nothing in the message is trusted. Protection against hostile messages:
 *   1. Memory: the unpacked message, the graph and its tensors are counted together. The limit
 *      is CH_CODEC_MEMORY plus twice the size of the message. Calls are unpacked one at a time,
 *      and bytes that have been read are freed at once.
 *   2. Depth: a body is a bytes field of its call. So protobuf-c does not recurse on the input,
 *      and this file recurses at most CH_CODEC_MAX_DEPTH times.
 *   3. Order: the inputs of a call must be values of earlier calls. So there are no cycles.
 *   4. Shapes: the shape rule of every op infers the outputs again, and they must equal the
 *      outputs in the message. New symbols are the exception: the rule creates a symbol, and
 *      the message gives its number, which must not have been used before.
 *   5. Attributes: only attributes in the op's table, of the right kind and within limits, are
 *      accepted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cohort/logical.h"
#include "graph/attr.h"
#include "graph/codec.h"
#include "graph/graph.h"

#include "graph/decode.h"

/* A graph or body that is being decoded. */
typedef struct level {
    ch_graph *g;
    ch_node **value; /* by value number */
    int       n_values, cap_values;
} level;

/* ---- calls ---- */

static bool is_host(const ch_op *op)
{
    for (const ch_attr *row = op->attrs; row != NULL && row->name != NULL; row++)
        if (row->kind == CH_ATTR_KIND_HOST)
            return true;
    return (op->flags & CH_OP_HOST) != 0;
}

static ch_status find_op(const Cohort__Call *m, const ch_op **out)
{
    *out = m->version <= INT_MAX ? ch__op_find(m->op, (int)m->version) : NULL;
    if (*out != NULL && is_host(*out))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "the op refers to objects of a process, and cannot be decoded");
    if (*out != NULL)
        return CH_OK;
    for (const ch_op *const *op = ch__op_table(); *op != NULL; op++)
        if (strcmp((*op)->name, m->op) == 0)
            return ch__fail(
                CH_UNIMPLEMENTED,
                "version %u of the op is not supported; this library has version %d",
                m->version, (*op)->version);
    return ch__fail(CH_UNIMPLEMENTED, "this library has no such op");
}

static ch_status decode_inputs(ch_decoder *d, const level *l, const Cohort__Call *m)
{
    if (m->n_inputs > CH_CODEC_MAX_INPUTS)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu inputs, want at most %d", m->n_inputs,
                        CH_CODEC_MAX_INPUTS);
    if (!ch__grow((void **)&d->in, &d->cap_in, (int)m->n_inputs + 1, sizeof(d->in[0])))
        return ch__decode_no_memory(d);
    for (size_t i = 0; i < m->n_inputs; i++) {
        if (m->inputs[i] >= (uint32_t)l->n_values)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "input %zu is value %u, but only %d values come before it", i,
                            m->inputs[i], l->n_values);
        d->in[i] = l->value[m->inputs[i]];
    }
    return CH_OK;
}

/* Checks rules of sources beyond their shape rules: inputs are in order, and each resource is
 * read once, with its own type. */
static ch_status check_source(const ch_graph *g, const ch_op *op, const void *attrs,
                              size_t n_inputs)
{
    if (op == ch__roles.input) {
        const ch_input_attrs *a = attrs;

        if (a->index != g->n_inputs || (size_t)a->index >= n_inputs)
            return ch__fail(CH_INVALID_ARGUMENT, "the input has index %lld, want %d of %zu",
                            (long long)a->index, g->n_inputs, n_inputs);
    } else if (op == ch__roles.read) {
        const ch_read_attrs *a = attrs;
        const ch_resource   *r = NULL;
        ch_dims              dims;

        if (a->resource < 0 || a->resource >= g->n_resources)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "there is no variable %lld; the graph has %d variables",
                            (long long)a->resource, g->n_resources);
        r = &g->resource[a->resource];
        dims = ch__dims_of(r->shape);
        if (r->read != NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "variable %s is read twice",
                            ch__quoted(r->name).text);
        if (a->dtype != r->dtype || !ch__dims_same(&a->dims, &dims))
            return ch__fail(CH_INVALID_ARGUMENT, "the read of variable %s has another type",
                            ch__quoted(r->name).text);
    }
    return CH_OK;
}

/* Maps the new symbol `made` to the number `recorded` in all outputs of this call. Returns
 * false if the mapping is not unique, or if the number has been used before. */
static bool rename_symbol(ch_decoder *d, int made, int recorded)
{
    for (int i = 0; i < d->n_fresh; i++)
        if (d->fresh[i].made == made || d->fresh[i].recorded == recorded)
            return d->fresh[i].made == made && d->fresh[i].recorded == recorded;
    if (recorded == 0 || d->defined[recorded])
        return false;
    d->fresh[d->n_fresh++] = (ch_renamed){made, recorded};
    return true;
}

/* Returns true if inferred and recorded dims are equal, after renaming new symbols. */
static bool same_dims(ch_decoder *d, const ch_dims *inferred, const ch_dims *recorded)
{
    bool same = inferred->rank == recorded->rank;

    for (int i = 0; same && i < inferred->rank; i++) {
        ch_dim x = inferred->dim[i], y = recorded->dim[i];

        same = x.n == y.n &&
               (x.sym > d->n_symbols ? rename_symbol(d, x.sym, y.sym) : x.sym == y.sym);
    }
    return same;
}

/* Checks that output i equals the output in the message, and uses the symbols of the
 * message. */
static ch_status check_output(ch_decoder *d, const ch_op *op, const Cohort__Value *m, int i)
{
    ch_dtype  dtype = CH_F32;
    ch_dims   dims;
    ch_status rc = ch__decode_dtype(m->dtype, &dtype);

    if (rc == CH_OK)
        rc = ch__decode_dims(d, m->n_sizes, m->sizes, m->n_symbols, m->symbols, &dims);
    if (rc != CH_OK)
        return ch__fail_at(rc, "output %d", i);
    if (dtype == CH_STR && op != ch__roles.input)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "output %d holds strings; only inputs may hold strings", i);
    if (dtype != d->dtype[i] || !same_dims(d, &d->dims[i], &dims)) {
        char have[160], want[160];

        ch__dims_print(&dims, have, sizeof(have));
        ch__dims_print(&d->dims[i], want, sizeof(want));
        return ch__fail(CH_INVALID_ARGUMENT,
                        "output %d is %s%s in the message, but the op computes %s%s", i,
                        ch_dtype_name(dtype), have, ch_dtype_name(d->dtype[i]), want);
    }
    d->dims[i] = dims;
    return CH_OK;
}

/* Infers the outputs, and compares them with the message. New symbols get the numbers of the
 * message. */
static ch_status check_outputs(ch_decoder *d, ch_graph *g, const ch_op *op, const void *attrs,
                               const Cohort__Call *m)
{
    ch_infer  c = {.out = d->dims, .out_dtype = d->dtype};
    ch_status rc = ch__call_infer(g, op, attrs, (int)m->n_inputs, d->in, &c);

    d->root->n_symbols = d->n_symbols;
    d->n_fresh = 0;
    if (rc == CH_OK && m->n_outputs != (size_t)c.n_out)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%zu outputs in the message, but the op has %d",
                      m->n_outputs, c.n_out);
    for (int i = 0; i < c.n_out && rc == CH_OK; i++)
        rc = check_output(d, op, m->outputs[i], i);
    for (int i = 0; i < d->n_fresh && rc == CH_OK; i++)
        d->defined[d->fresh[i].recorded] = 1;
    return rc;
}

static ch_status add_call(ch_decoder *d, level *l, const ch_op *op, const void *attrs,
                          const Cohort__Call *m)
{
    ch_graph      *g = l->g;
    size_t         before = g->arena.bytes;
    const ch_node *last = g->last;
    ch_node       *n = ch__graph_add(g, op, attrs, (int)m->n_inputs, d->in, (int)m->n_outputs);
    ch_status      rc = CH_OK;

    if (n == NULL || !ch__grow((void **)&l->value, &l->cap_values, l->n_values + n->n_out,
                               sizeof(l->value[0])))
        return ch__decode_no_memory(d);
    if (op == ch__roles.read) {
        ch_resource *r = &g->resource[((const ch_read_attrs *)attrs)->resource];

        r->read = r->value = n;
    }
    n->ordinal = (int)m->ordinal;
    n->chosen_device = (int)m->device;
    if (g->n_ordinals <= n->ordinal)
        g->n_ordinals = n->ordinal + 1;
    for (int i = 0; i < n->n_out; i++) {
        n[i].dtype = d->dtype[i];
        n[i].dims = d->dims[i];
        n[i].weak = m->outputs[i]->weak != 0;
        l->value[l->n_values++] = &n[i];
    }
    if (last != NULL && last->scope != NULL && strcmp(last->scope, m->scope) == 0)
        n->scope = last->scope;
    else
        rc = ch__decode_name(d, g, "scope", m->scope, &n->scope);
    if (rc == CH_OK &&
        !ch__decode_charge(d, g->arena.bytes - before + (size_t)n->n_out * CH_DECODE_VALUE))
        rc = ch__decode_no_memory(d);
    return rc;
}

static ch_status decode_call(ch_decoder *d, level *l, Cohort__Call *m, size_t n_inputs)
{
    const ch_op *op;
    void        *attrs = NULL;
    ch_status    rc = find_op(m, &op);

    if (rc == CH_OK && m->ordinal >= INT_MAX)
        rc = ch__fail(CH_INVALID_ARGUMENT, "ordinal %u is too large", m->ordinal);
    if (rc == CH_OK && m->device > CH_LOGICAL_DEVICES_MAX)
        rc = ch__fail(CH_INVALID_ARGUMENT, "logical device %lld is not from 0 to %d",
                      (long long)m->device - 1, CH_LOGICAL_DEVICES_MAX - 1);
    if (rc == CH_OK && op->attrs != NULL && (attrs = ch__calloc(1, op->attrs_bytes)) == NULL)
        rc = ch__decode_no_memory(d);
    if (rc != CH_OK)
        return rc;
    rc = ch__decode_attrs(d, l->g, op, m, attrs);
    if (rc == CH_OK)
        rc = check_source(l->g, op, attrs, n_inputs);
    if (rc == CH_OK)
        rc = decode_inputs(d, l, m);
    if (rc == CH_OK)
        rc = check_outputs(d, l->g, op, attrs, m);
    if (rc == CH_OK)
        rc = add_call(d, l, op, attrs, m);
    ch__attrs_drop(op, attrs);
    ch__free(attrs);
    return rc;
}

/* Unpacks a call and frees its bytes. */
static ch_status unpack_call(ch_decoder *d, ProtobufCBinaryData *bytes, Cohort__Call **out)
{
    *out = cohort__call__unpack(&d->allocator, bytes->len, bytes->data);
    if (*out == NULL)
        return ch__decode_fail_unpack(d, "a call", bytes->len);
    ch__decode_release(d, bytes);
    return CH_OK;
}

static ch_status decode_calls(ch_decoder *d, level *l, Cohort__Outline *m)
{
    if (m->n_calls > (size_t)(CH_CODEC_MAX_CALLS - d->n_calls))
        return ch__fail(CH_INVALID_ARGUMENT, "more than %d calls", CH_CODEC_MAX_CALLS);
    d->n_calls += (int)m->n_calls;
    for (size_t i = 0; i < m->n_calls; i++) {
        Cohort__Call *call = NULL;
        ch_status     rc = unpack_call(d, &m->calls[i], &call);

        if (rc != CH_OK)
            return ch__fail_at(rc, "call %zu", i);
        rc = decode_call(d, l, call, m->n_inputs);
        if (rc != CH_OK)
            rc =
                ch__fail_at(rc, "call %zu, %s%s%s", i, ch__quoted(call->op).text,
                            call->scope[0] != '\0' ? " in " : "", ch__quoted(call->scope).text);
        cohort__call__free_unpacked(call, &d->allocator);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

/* ---- inputs, outputs and resources ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Checks that resource names are unique. The planner would treat two resources of the same name
 * as different memory, although they share their storage. */
static ch_status check_unique(ch_decoder *d, const ch_graph *g)
{
    size_t       n = (size_t)g->n_resources;
    const char **name = ch__decode_alloc(d, (n + 1) * sizeof(*name));
    ch_status    rc = CH_OK;

    if (name == NULL)
        return ch__decode_no_memory(d);
    for (size_t i = 0; i < n; i++)
        name[i] = g->resource[i].name;
    qsort(name, n, sizeof(*name), compare_names);
    for (size_t i = 1; i < n && rc == CH_OK; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            rc = ch__fail(CH_INVALID_ARGUMENT, "two variables are named %s",
                          ch__quoted(name[i]).text);
    ch__decode_free(d, name);
    return rc;
}

static ch_status decode_resource(ch_decoder *d, ch_graph *g, const Cohort__Resource *m)
{
    ch_resource *r = ch__graph_add_resource(g);
    int64_t      count, bytes;
    ch_status    rc;

    if (r == NULL || !ch__decode_charge(d, sizeof(*r) + strlen(m->name)))
        return ch__decode_no_memory(d);
    if ((rc = ch__decode_name(d, g, "variable", m->name, &r->name)) != CH_OK ||
        (rc = ch__decode_dtype(m->dtype, &r->dtype)) != CH_OK ||
        (rc = ch__decode_shape(m->n_shape, m->shape, &r->shape)) != CH_OK)
        return rc;
    if (r->name == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "the variable has no name");
    return ch__tensor_size(r->dtype, r->shape, &count, &bytes);
}

static ch_status decode_resources(ch_decoder *d, ch_graph *g, const Cohort__Outline *m)
{
    if (d->depth > 0 && m->n_resources > 0)
        return ch__fail(CH_INVALID_ARGUMENT, "a body must not have variables");
    for (size_t i = 0; i < m->n_resources; i++) {
        ch_status rc = decode_resource(d, g, m->resources[i]);

        if (rc != CH_OK)
            return ch__fail_at(rc, "variable %zu, %s", i,
                               ch__quoted(m->resources[i]->name).text);
    }
    return check_unique(d, g);
}

static ch_status decode_input_names(ch_decoder *d, ch_graph *g, const Cohort__Outline *m)
{
    if (m->n_inputs != (size_t)g->n_inputs)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu names for %d inputs", m->n_inputs,
                        g->n_inputs);
    for (int i = 0; i < g->n_inputs; i++) {
        ch_status rc = ch__decode_name(d, g, "input", m->inputs[i]->name, &g->input_name[i]);

        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static ch_status value_of(const level *l, const char *what, size_t i, uint32_t number,
                          ch_node **out)
{
    if (number >= (uint32_t)l->n_values)
        return ch__fail(CH_INVALID_ARGUMENT, "%s %zu is value %u, but there are %d values",
                        what, i, number, l->n_values);
    *out = l->value[number];
    return CH_OK;
}

static ch_status decode_results(ch_decoder *d, const level *l, const Cohort__Outline *m)
{
    for (size_t i = 0; i < m->n_outputs; i++) {
        ch_output *o = ch__graph_add_output(l->g);
        ch_status  rc;

        if (o == NULL || !ch__decode_charge(d, sizeof(*o) + strlen(m->outputs[i]->name)))
            return ch__decode_no_memory(d);
        rc = value_of(l, "output", i, m->outputs[i]->value, &o->node);
        if (rc == CH_OK)
            rc = ch__decode_name(d, l->g, "output", m->outputs[i]->name, &o->name);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static ch_status decode_write(const level *l, const Cohort__Write *m, size_t i)
{
    ch_resource *r;
    ch_node     *n = NULL;
    ch_dims      dims;
    ch_status    rc = value_of(l, "write", i, m->value, &n);

    if (rc != CH_OK)
        return rc;
    if (m->resource >= (uint32_t)l->g->n_resources)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "write %zu is to variable %u, but there are %d variables", i,
                        m->resource, l->g->n_resources);
    r = &l->g->resource[m->resource];
    dims = ch__dims_of(r->shape);
    if (r->value != r->read)
        return ch__fail(CH_INVALID_ARGUMENT, "variable %s is written twice",
                        ch__quoted(r->name).text);
    if (n->dtype != r->dtype || !ch__dims_same(&n->dims, &dims))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "the value written to variable %s has another type",
                        ch__quoted(r->name).text);
    r->value = n;
    return CH_OK;
}

static ch_status decode_parts(ch_decoder *d, level *l, Cohort__Outline *m)
{
    ch_status rc;

    if ((rc = decode_resources(d, l->g, m)) != CH_OK || (rc = decode_calls(d, l, m)) != CH_OK ||
        (rc = decode_input_names(d, l->g, m)) != CH_OK ||
        (rc = decode_results(d, l, m)) != CH_OK)
        return rc;
    for (size_t i = 0; i < m->n_writes && rc == CH_OK; i++)
        rc = decode_write(l, m->writes[i], i);
    return rc;
}

/* Checks the format, the number of symbols and the name. */
static ch_status check_head(const Cohort__Outline *m)
{
    if (m->format == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "the message is not an encoded graph");
    if (m->format != CH_CODEC_FORMAT)
        return ch__fail(CH_UNIMPLEMENTED, "format %u, but this library reads format %d",
                        m->format, CH_CODEC_FORMAT);
    if (m->symbols > CH_CODEC_MAX_SYMBOLS)
        return ch__fail(CH_INVALID_ARGUMENT, "%u symbols, want at most %d", m->symbols,
                        CH_CODEC_MAX_SYMBOLS);
    if (strlen(m->name) > CH_CODEC_MAX_NAME)
        return ch__fail(CH_INVALID_ARGUMENT, "the name of the graph is longer than %d bytes",
                        CH_CODEC_MAX_NAME);
    return CH_OK;
}

/* Sets the number of symbols. Only the outermost graph, the root, has symbols. */
static ch_status decode_symbols(ch_decoder *d, ch_graph *g, const Cohort__Outline *m)
{
    if (d->depth > 0)
        return m->symbols == 0 ? CH_OK
                               : ch__fail(CH_INVALID_ARGUMENT, "a body must not have symbols");
    d->root = g;
    d->n_symbols = g->n_symbols = (int)m->symbols;
    d->defined = ch__calloc((size_t)d->n_symbols + 1, 1);
    return d->defined == NULL ? ch__decode_no_memory(d) : CH_OK;
}

ch_status ch__decode_graph(ch_decoder *d, Cohort__Outline *m, ch_graph *outer, ch_graph **out)
{
    level     l = {0};
    ch_status rc = check_head(m);

    if (rc == CH_OK)
        rc = ch__graph_new(m->name, &l.g);
    if (rc != CH_OK)
        return rc;
    l.g->outer = outer;
    rc = decode_symbols(d, l.g, m);
    if (rc == CH_OK)
        rc = decode_parts(d, &l, m);
    l.g->outer = NULL;
    ch__free(l.value);
    if (rc != CH_OK) {
        ch_graph_unref(l.g);
        return ch__fail_at(rc, "graph %s", ch__quoted(m->name).text);
    }
    *out = l.g;
    return CH_OK;
}

ch_status ch_graph_decode(const void *bytes, size_t n, ch_graph **out)
{
    ch_decoder      *d;
    Cohort__Outline *m;
    ch_status        rc;

    if (out == NULL)
        return ch__check_not_null("decode", "out", out, NULL, NULL);
    if (bytes == NULL && n > 0)
        return ch__fail(CH_INVALID_ARGUMENT, "decode: %zu bytes at NULL", n);
    d = ch__calloc(1, sizeof(*d));
    if (d == NULL)
        return ch__fail_memory("decoding a graph");
    d->allocator = (ProtobufCAllocator){ch__decode_alloc, ch__decode_free, d};
    d->limit = n < SIZE_MAX / 4 ? CH_CODEC_MEMORY + 2 * n - CH_DECODE_SLACK : SIZE_MAX;
    m = cohort__outline__unpack(&d->allocator, n, bytes);
    rc = m == NULL ? ch__decode_fail_unpack(d, "an encoded graph", n)
                   : ch__decode_graph(d, m, NULL, out);
    cohort__outline__free_unpacked(m, &d->allocator);
    for (int i = 0; i < CH_DECODE_NUMBERS; i++)
        ch_tensor_unref(d->number[i]);
    ch__free(d->defined);
    ch__free(d->in);
    ch__free(d);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "decode");
}
