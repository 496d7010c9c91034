/* graph/step_call.c -- records calls: checks the inputs of an op, and appends a call to the
 * graph.
 *
 * Ops call ch__node and ch__source (graph/op.h) for each call of user code; gradients and
 * composite ops do the same. graph/specialise.c, decode.c and extract.c call ch__call_infer for
 * copies of calls. A call is recorded in these steps: find the step, capture nodes of outer
 * graphs (ch__step_capture), cast weak inputs, check the context, run the shape rule, append
 * the call, and set its properties.
 *
 * Invariants:
 *   1. If a call is rejected, the step keeps the error (graph/step.c), and the functions return
 *      NULL. After that no call is recorded in the step.
 *   2. The shape rule sees only inputs of the graph of the step, after all casts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/step.h"

/* ---- shape rules ---- */

bool ch__size_is_supported(ch_dtype dtype, const ch_dims *d)
{
    int64_t product = (int64_t)ch_dtype_bytes(dtype);

    if (d->rank < 0 || d->rank > CH_MAX_RANK)
        return false;
    for (int i = 0; i < d->rank; i++)
        if (d->dim[i].n < 0 ||
            (d->dim[i].n > 0 && !ch__mul_size(product, d->dim[i].n, &product)))
            return false;
    return product < (int64_t)1 << 48;
}

/* Runs the shape rule, and checks the number and size of the outputs. Only ops with
 * CH_OP_STRINGS accept strings, and no op produces them. */
static ch_status infer(ch_infer *c, const ch_op *op)
{
    for (int i = 0; i < c->n_in && (op->flags & CH_OP_STRINGS) == 0; i++)
        if (c->dtype[i] == CH_STR)
            return ch__infer_fail(c,
                                  "input %d holds strings, which this op does not accept; "
                                  "ch_table_lookup converts words to numbers",
                                  i);
    ch_status rc = op->infer(c);

    if (rc != CH_OK)
        return rc;
    if (op->n_out >= 0 && c->n_out != op->n_out)
        return ch__fail(CH_INTERNAL, "%s: its shape rule set %d outputs of %d", op->name,
                        c->n_out, op->n_out);
    for (int i = 0; i < c->n_out; i++)
        if (!ch__size_is_supported(c->out_dtype[i], &c->out[i]))
            return ch__infer_fail(c, "the result would have 2^48 bytes or more");
    return CH_OK;
}

ch_status ch__call_infer(ch_graph *g, const ch_op *op, const void *attrs, int n_in,
                         ch_node *const *in, ch_infer *c)
{
    ch_dims  *dims = ch__calloc((size_t)n_in + 1, sizeof(*dims));
    ch_dtype *dtype = ch__calloc((size_t)n_in + 1, sizeof(*dtype));
    ch_status rc;

    if (dims == NULL || dtype == NULL) {
        rc = ch__fail_memory(op->name);
        goto done;
    }
    for (int i = 0; i < n_in; i++) {
        dims[i] = in[i]->dims;
        dtype[i] = in[i]->dtype;
    }
    c->op = op;
    c->attrs = attrs;
    c->n_in = n_in;
    c->in = dims;
    c->dtype = dtype;
    c->graph = g;
    if (op->n_in >= 0 && n_in != op->n_in)
        rc = ch__infer_fail(c, "%d inputs, want %d", n_in, op->n_in);
    else
        rc = infer(c, op);
done:
    ch__free(dims);
    ch__free(dtype);
    c->in = NULL;
    c->dtype = NULL;
    return rc;
}

/* ---- inputs ---- */

/* Returns the step in which a call with these inputs is recorded. If no input belongs to a
 * recording in progress, returns the current recording of this thread, which receives the
 * error. */
static ch_step *step_of(int n_in, ch_node *const *in)
{
    ch_step *recording = ch__step_recording();

    for (int i = 0; i < n_in; i++)
        if (in[i] != NULL && !ch__node_has_ended(in[i]))
            return ch_node_step(in[i]);
    return recording != NULL ? recording->active : NULL;
}

/* Returns input i as a node of the graph of s. If this is not possible, records an error and
 * returns NULL. */
static ch_node *resolve_input(ch_step *s, const ch_op *op, const void *attrs, int i,
                              ch_node *in, const void *caller)
{
    char      name[128];
    ch_status rc;

    if (in != NULL && !ch__node_has_ended(in) && ch__step_can_use(s, in))
        return ch__step_capture(s, in);
    ch__call_name(op, attrs, name, sizeof(name));
    if (in == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: input %d is NULL", name, i);
    else if (ch__node_has_ended(in))
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "%s: input %d belongs to a branch, loop body or step that has ended; to "
                      "use the value outside, make it an output",
                      name, i);
    else
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: input %d belongs to another step", name, i);
    ch__step_record_error(s, rc, caller);
    return NULL;
}

/* Returns the node of the outermost graph that an input of a body represents; n itself if it is
 * not a capture. */
static const ch_node *origin(const ch_node *n)
{
    for (const ch_step *s = n->graph->step; s != NULL && s->outer != NULL; s = s->outer) {
        int i = 0;

        while (i < s->n_captures && s->capture[i] != n)
            i++;
        if (i == s->n_captures)
            break;
        n = s->captured[i];
    }
    return n;
}

/* Returns true if n is a constant scalar that dtype t represents exactly, such as ch_number(s,
 * 2) for i32. */
static bool fits(const ch_node *n, ch_dtype t)
{
    const ch_node           *from = origin(n)->head;
    const ch_constant_attrs *a = from->attrs;
    double                   x;

    return from->op == ch__roles.constant && ch_tensor_item(a->value, &x) == CH_OK &&
           ch__dtype_holds(t, x);
}

/* Casts x at the source line `caller`, unless a composite op has set another line. */
static ch_node *cast_at(ch_step *s, const void *caller, ch_node *x, ch_dtype to)
{
    const void *before = s->caller;
    ch_node    *y;

    if (s->caller == NULL)
        s->caller = caller;
    y = ch__roles.cast_to(x, to);
    s->caller = before;
    return y;
}

/* Casts weak inputs to the dtype of the inputs that are not weak. If all are weak and some are
 * floats, the integers are cast to float. Returns false if a cast fails. */
static bool settle_dtypes(ch_step *s, const void *caller, const ch_op *op, int n_in,
                          ch_node **in)
{
    ch_node *strong = NULL;

    if ((op->flags & CH_OP_SAME_DTYPE) == 0)
        return true;
    for (int i = 0; i < n_in; i++)
        if (strong == NULL || (strong->weak && !in[i]->weak) ||
            (strong->weak && in[i]->weak && ch_dtype_is_float(in[i]->dtype) &&
             !ch_dtype_is_float(strong->dtype)))
            strong = in[i];
    for (int i = 0; i < n_in; i++) {
        bool narrows = ch_dtype_is_float(in[i]->dtype) && !ch_dtype_is_float(strong->dtype) &&
                       !fits(in[i], strong->dtype);

        if (!in[i]->weak || in[i]->dtype == strong->dtype || narrows)
            continue;
        in[i] = cast_at(s, caller, in[i], strong->dtype);
        if (in[i] == NULL)
            return false;
    }
    return true;
}

/* ---- calls ---- */

/* Returns true if replicas may have different results. The result of a collective is the same
 * for all replicas unless the op has CH_OP_VARIES. A call with bodies is judged by its
 * inputs. */
static bool varies(const ch_op *op, int n_in, ch_node *const *in)
{
    bool any = false;

    if ((op->flags & CH_OP_COLLECTIVE) != 0)
        return (op->flags & CH_OP_VARIES) != 0;
    for (int i = 0; i < n_in; i++)
        any |= in[i]->varies;
    return any || (op->flags & (CH_OP_RANDOM | CH_OP_HOST | CH_OP_VARIES)) != 0;
}

static bool has_body(const ch_op *op)
{
    for (const ch_attr *row = op->attrs; row != NULL && row->name != NULL; row++)
        if (row->kind == CH_ATTR_KIND_GRAPH)
            return true;
    return false;
}

/* Returns true for a constant, and for results that are computed from literals only and are the
 * same on every replica. The result of ch_identity is never a literal: it belongs to each
 * replica. */
static bool is_literal(const ch_op *op, int n_in, ch_node *const *in)
{
    const unsigned own = CH_OP_RANDOM | CH_OP_HOST | CH_OP_VARIES | CH_OP_COLLECTIVE;

    if (n_in == 0 || op == ch__roles.identity || (op->flags & own) != 0 || has_body(op))
        return op == ch__roles.constant;
    for (int i = 0; i < n_in; i++)
        if (!in[i]->is_literal)
            return false;
    return true;
}

/* Sets varies, is_literal and is_per_replica of the outputs. */
static void set_replica_flags(ch_step *s, ch_node *n)
{
    bool may_differ = varies(n->op, n->n_in, n->in);
    bool literal = is_literal(n->op, n->n_in, n->in);
    bool is_replica = ch__step_outermost(s)->context == CH_STEP_CONTEXT_REPLICA;

    for (int i = 0; i < n->n_out; i++) {
        n[i].varies = may_differ;
        n[i].is_literal = literal;
        n[i].is_per_replica =
            is_replica && n->n_in > 0 && !literal && (n->op->flags & CH_OP_COLLECTIVE) == 0;
    }
}

/* In a merge call, rejects ops of replica context and per-replica inputs. */
static ch_status check_context(ch_step *s, const ch_op *op, const void *attrs, int n_in,
                               ch_node *const *in)
{
    char name[128];

    if (ch__step_outermost(s)->context != CH_STEP_CONTEXT_CROSS)
        return CH_OK;
    if ((op->flags & CH_OP_COLLECTIVE) != 0)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "%s: it must be called in replica context; in a merge call use "
                        "ch_merge_reduce or ch_merge_gather",
                        op->name);
    if ((op->flags & CH_OP_HOST) != 0)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "%s: it must not be called in a merge call, because each replica makes "
                        "the call; use ch_replica_call",
                        ch__call_name(op, attrs, name, sizeof(name)));
    if ((op->flags & (CH_OP_RANDOM | CH_OP_VARIES)) != 0)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "%s: it must not be called in a merge call, because the result differs "
                        "between replicas",
                        op->name);
    for (int i = 0; i < n_in; i++)
        if (in[i]->varies)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "%s: input %d is per-replica, and this is not inside a replica context; in a "
                "merge call reduce it, gather it or pass it to an update",
                op->name, i);
    return CH_OK;
}

/* Returns the scope of new calls, in the arena of the graph. NULL: none, or out of memory. */
static const char *scope_of(ch_step *s)
{
    if (s->scope[0] == '\0')
        return NULL;
    if (s->scope_copy == NULL)
        s->scope_copy = ch__arena_strdup(&s->graph->arena, s->scope);
    return s->scope_copy;
}

static ch_node *add_call(ch_step *s, const void *caller, const ch_op *op, const void *attrs,
                         int n_in, ch_node *const *in)
{
    ch_dims   out[CH_MAX_OUT];
    ch_dtype  dtype[CH_MAX_OUT];
    ch_infer  c = {.out = out, .out_dtype = dtype};
    ch_status rc = check_context(s, op, attrs, n_in, in);
    ch_node  *n;

    if (rc == CH_OK)
        rc = ch__call_infer(s->graph, op, attrs, n_in, in, &c);
    if (rc == CH_OK && s->outer != NULL && (op->flags & CH_OP_COLLECTIVE) != 0)
        rc = ch__fail(CH_FAILED_PRECONDITION,
                      "%s: a collective must not be recorded inside a cond, while or scan, "
                      "because not all replicas might execute it",
                      op->name);
    if (rc != CH_OK) {
        ch__step_record_error(s, rc, caller);
        return NULL;
    }
    n = ch__graph_add(s->graph, op, attrs, n_in, in, c.n_out);
    if (n == NULL) {
        ch__step_record_error(s, ch__fail_memory(op->name), caller);
        return NULL;
    }
    n->scope = scope_of(s);
    if (n->scope == NULL && s->scope[0] != '\0') {
        ch__step_record_error(s, ch__fail_memory(op->name), caller);
        return NULL;
    }
    n->caller = s->caller != NULL ? s->caller : caller;
    n->composite = s->composite;
    n->chosen_device = s->chosen_device;
    n->ordinal = ch__graph_root(s->graph)->n_ordinals;
    if ((op->flags & CH_OP_UNNUMBERED) == 0)
        ch__graph_root(s->graph)->n_ordinals++;
    if ((op->flags & CH_OP_COLLECTIVE) == 0)
        n->work = s->work;
    n->weak = n_in > 0;
    for (int i = 0; i < n_in; i++)
        n->weak &= in[i]->weak;
    for (int i = 0; i < c.n_out; i++) {
        n[i].dtype = dtype[i];
        n[i].dims = out[i];
        n[i].weak = n->weak;
    }
    set_replica_flags(s, n);
    return n;
}

ch_node *ch__node_at(const void *caller, const ch_op *op, const void *attrs, int n_in,
                     ch_node *const *in)
{
    ch_step *s = step_of(n_in, in);
    ch_node *few[8], **own = few, *n = NULL;
    bool     ok = true;

    if (s == NULL || s->rc != CH_OK)
        return NULL;
    if (n_in > 8 && (own = ch__calloc((size_t)n_in, sizeof(*own))) == NULL) {
        ch__step_record_error(s, ch__fail_memory(op->name), caller);
        return NULL;
    }
    for (int i = 0; i < n_in && ok; i++) {
        own[i] = resolve_input(s, op, attrs, i, in[i], caller);
        ok = own[i] != NULL;
    }
    if (ok && settle_dtypes(s, caller, op, n_in, own))
        n = add_call(s, caller, op, attrs, n_in, own);
    if (own != few)
        ch__free(own);
    return n;
}

ch_node *ch__source_at(const void *caller, ch_step *s, const ch_op *op, const void *attrs)
{
    if (s == NULL || s->rc != CH_OK)
        return NULL;
    return add_call(s, caller, op, attrs, 0, NULL);
}

ch_node *ch__null_input_at(const void *caller, const char *op, int n, ch_node *const *in)
{
    ch_step *s = step_of(n, in);
    int      i = 0;

    while (i < n - 1 && in[i] != NULL)
        i++;
    if (s != NULL && s->rc == CH_OK)
        ch__step_record_error(s, ch__fail(CH_INVALID_ARGUMENT, "%s: input %d is NULL", op, i),
                              caller);
    return NULL;
}
