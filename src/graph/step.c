/* graph/step.c -- records steps: adds calls to a graph, and keeps the first error.
 *
 * User code and ops call the public functions (cohort/step.h) and ch__node (graph/op.h).
 * graph/function.c begins and ends recordings. A call is recorded in these steps: check the
 * inputs, capture nodes of outer graphs, cast weak inputs, check the context, run the shape
 * rule, append the call.
 *
 * Invariants:
 *   1. The first error of a step is kept. After an error every recording function returns NULL
 *      and does nothing, so user code need not check each call.
 *   2. An error in a body becomes the error of the step that contains the body.
 *   3. Resources belong to the outermost step; bodies capture their values.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define GRAPH_STEP_C
#include "graph/step.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/where.h"

/* The step of nodes whose recording has ended. No call can be recorded with such nodes. */
static ch_step ended = {.rc = CH_FAILED_PRECONDITION,
                        .error =
                            "the node belongs to a step, branch or loop body that has ended"};

/* The step that this thread is recording, not a body in it. It receives the error of a call
 * without any valid input. */
static _Thread_local ch_step *recording;

ch_step *ch__step_recording(void)
{
    return recording;
}

ch_status ch__step_new(const char *name, ch_step *outer, ch_step **out)
{
    ch_step  *s = ch__calloc(1, sizeof(*s));
    ch_status rc;

    if (s == NULL)
        return ch__fail_memory("recording a step");
    rc = ch__graph_new(name, &s->graph);
    if (rc != CH_OK) {
        ch__free(s);
        return rc;
    }
    s->graph->step = s;
    s->active = s;
    s->outer = outer;
    if (outer != NULL) {
        s->graph->outer = outer->graph;
        s->owner = outer->owner;
        s->caller = outer->caller;
        s->composite = outer->composite;
        s->work = outer->work;
        memcpy(s->scope, outer->scope, sizeof(s->scope));
    } else {
        s->previous = recording;
        recording = s;
    }
    *out = s;
    return CH_OK;
}

void ch__step_free(ch_step *s)
{
    if (s == NULL)
        return;
    if (recording == s)
        recording = s->previous;
    ch_graph_unref(s->graph);
    ch__free(s->captured);
    ch__free(s->capture);
    ch__free(s);
}

ch_status ch__step_finish(ch_step *s, ch_graph **out)
{
    if (s->rc != CH_OK)
        return ch__fail(s->rc, "%s", s->error);
    s->graph->step = &ended;
    s->graph->outer = NULL;
    *out = s->graph;
    s->graph = NULL;
    return CH_OK;
}

/* Returns true if the message begins with the change of a variable that is being recorded, such
 * as "scatter_add of w". The op's name alone is not sufficient: "scatter_add(f32(4), ..." does
 * not name the variable. */
static bool names_change(const ch_step *s, const char *message)
{
    const size_t n = strlen(s->verb);

    return strncmp(message, s->verb, n) == 0 && strncmp(message + n, " of ", 4) == 0;
}

void ch__step_record_error(ch_step *s, ch_status rc, const void *caller)
{
    if (s == NULL || s->rc != CH_OK)
        return;
    if (s->verb != NULL && !names_change(s, ch_error_message()))
        rc = ch__fail_at(rc, "%s of %s", s->verb, s->object);
    s->rc = ch__fail_in(rc, s->composite, s->scope, s->caller != NULL ? s->caller : caller);
    snprintf(s->error, sizeof(s->error), "%s", ch_error_message());
}

bool ch__step_want(ch_step *s, bool ok, const char *op, const char *what, const void *caller)
{
    if (s != NULL && !ok)
        ch__step_record_error(s, ch__fail(CH_INVALID_ARGUMENT, "%s: %s is NULL", op, what),
                              caller);
    return s != NULL && ok && s->rc == CH_OK;
}

ch_status ch_step_status(ch_step *s)
{
    if (s == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "step_status: the step is NULL");
    return s->rc == CH_OK ? CH_OK : ch__fail(s->rc, "%s", s->error);
}

static void fail_as(ch_step *s, ch_status status, const char *format, va_list args,
                    const void *caller)
{
    ch_status rc = status != CH_OK ? status : CH_INVALID_ARGUMENT;

    ch__step_record_error(s, ch__failv(rc, format != NULL ? format : ch_status_text(rc), args),
                          caller);
}

void ch_step_fail_as(ch_step *s, ch_status status, const char *format, ...)
{
    va_list args;

    if (s == NULL)
        return;
    va_start(args, format);
    fail_as(s, status, format, args, __builtin_return_address(0));
    va_end(args);
}

void ch_step_fail(ch_step *s, const char *format, ...)
{
    va_list args;

    if (s == NULL)
        return;
    va_start(args, format);
    fail_as(s, CH_INVALID_ARGUMENT, format, args, __builtin_return_address(0));
    va_end(args);
}

const void *ch__step_begin_at(ch_step *s, const void *caller, const char *name)
{
    const void *before = s->caller;

    if (before == NULL && s->rc == CH_OK) {
        s->caller = caller;
        s->composite = name;
    }
    return before;
}

void ch__step_end(ch_step *s, const void *before)
{
    if (s->rc == CH_OK)
        s->caller = before;
    if (before == NULL && s->rc == CH_OK)
        s->composite = NULL;
}

ch_site ch__step_save_site(ch_step *s)
{
    ch_site site = {s->caller, s->composite};

    s->caller = NULL;
    s->composite = NULL;
    return site;
}

void ch__step_restore_site(ch_step *s, ch_site site)
{
    if (s->rc != CH_OK)
        return;
    s->caller = site.caller;
    s->composite = site.composite;
}

/* ---- scopes ---- */

void ch_step_enter(ch_step *s, const char *scope)
{
    size_t used = s != NULL ? strlen(s->scope) : 0;

    if (s == NULL)
        return;
    scope = scope != NULL ? scope : "NULL"; /* so that ch_step_leave leaves this scope */

    snprintf(s->scope + used, sizeof(s->scope) - used, "%s%s", used > 0 ? "/" : "", scope);
    s->scope_copy = NULL;
}

void ch_step_leave(ch_step *s)
{
    char *slash = s != NULL ? strrchr(s->scope, '/') : NULL;

    if (s == NULL)
        return;

    *(slash != NULL ? slash : s->scope) = '\0';
    s->scope_copy = NULL;
}

static const char *scope_of(ch_step *s)
{
    if (s->scope[0] == '\0')
        return NULL;
    if (s->scope_copy == NULL)
        s->scope_copy = ch__arena_strdup(&s->graph->arena, s->scope);
    return s->scope_copy;
}

/* ---- calls ---- */

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

/* Rejects string inputs of ops that do not accept them. No op produces strings. */
static ch_status check_strings(const ch_infer *c)
{
    for (int i = 0; i < c->n_in && (c->op->flags & CH_OP_STRINGS) == 0; i++)
        if (c->dtype[i] == CH_STR)
            return ch__infer_fail(c,
                                  "input %d holds strings, which this op does not accept; "
                                  "ch_table_lookup converts words to numbers",
                                  i);
    return CH_OK;
}

/* Runs the shape rule, and checks the number and size of the outputs. */
static ch_status infer(ch_infer *c, const ch_op *op)
{
    ch_status rc = check_strings(c);

    if (rc == CH_OK)
        rc = op->infer(c);
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

static ch_step *outermost(ch_step *s)
{
    while (s->outer != NULL)
        s = s->outer;
    return s;
}

ch_node *ch__step_capture(ch_step *s, ch_node *outer)
{
    int      cap = s->cap_captures;
    ch_node *in;

    if (outer == NULL || outer->graph == s->graph)
        return outer;
    for (int i = 0; i < s->n_captures; i++)
        if (s->captured[i] == outer)
            return s->capture[i];
    if (outer->graph != s->outer->graph && (outer = ch__step_capture(s->outer, outer)) == NULL)
        return NULL;
    if (!ch__grow((void **)&s->captured, &cap, s->n_captures + 1, sizeof(*s->captured)) ||
        (cap = s->cap_captures,
         !ch__grow((void **)&s->capture, &cap, s->n_captures + 1, sizeof(*s->capture)))) {
        ch__step_record_error(s, ch__fail_memory("recording a step"), NULL);
        return NULL;
    }
    s->cap_captures = cap;
    in = ch__step_add_input(s, NULL, outer->dtype, &outer->dims);
    if (in == NULL)
        return NULL;
    in->weak = outer->weak;
    in->varies = outer->varies;
    in->is_literal = outer->is_literal;
    s->captured[s->n_captures] = outer;
    s->capture[s->n_captures++] = in;
    return in;
}

static bool is_within(const ch_step *s, const ch_step *outer)
{
    for (; s != NULL; s = s->outer)
        if (s == outer)
            return true;
    return false;
}

bool ch__step_can_use(const ch_step *s, const ch_node *n)
{
    return is_within(s, n->graph->step);
}

/* Returns the step in which a call with these inputs is recorded. If no input belongs to a
 * recording in progress, returns the current recording of this thread, which receives the
 * error. */
static ch_step *step_of(int n_in, ch_node *const *in)
{
    for (int i = 0; i < n_in; i++)
        if (in[i] != NULL && in[i]->graph->step != &ended)
            return ch_node_step(in[i]);
    return recording != NULL ? recording->active : NULL;
}

/* Returns input i as a node of the graph of s. If this is not possible, records an error and
 * returns NULL. */
static ch_node *resolve_input(ch_step *s, const ch_op *op, int i, ch_node *in,
                              const void *caller)
{
    ch_status rc;

    if (in == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: input %d is NULL", op->name, i);
    else if (in->graph->step == &ended)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "%s: input %d belongs to a branch, loop body or step that has ended; to "
                      "use the value outside, make it an output",
                      op->name, i);
    else if (!is_within(s, in->graph->step))
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: input %d belongs to another step", op->name, i);
    else
        return ch__step_capture(s, in);
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

/* Casts weak inputs to the dtype of the inputs that are not weak. If all are weak and some are
 * floats, the integers are cast to float. Returns false if a cast fails. */
static bool settle_dtypes(const ch_op *op, int n_in, ch_node **in)
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
        in[i] = ch__roles.cast_to(in[i], strong->dtype);
        if (in[i] == NULL)
            return false;
    }
    return true;
}

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

/* Sets varies, is_literal and is_each of the outputs. */
static void set_replica_flags(const ch_step *s, ch_node *n)
{
    bool may_differ = varies(n->op, n->n_in, n->in);
    bool literal = is_literal(n->op, n->n_in, n->in);

    while (s->outer != NULL)
        s = s->outer;
    for (int i = 0; i < n->n_out; i++) {
        n[i].varies = may_differ;
        n[i].is_literal = literal;
        n[i].is_per_replica = s->context == CH_STEP_CONTEXT_REPLICA && n->n_in > 0 &&
                              !literal && (n->op->flags & CH_OP_COLLECTIVE) == 0;
    }
}

/* In a merge call, rejects ops of replica context and per-replica inputs. */
static ch_status check_context(const ch_step *s, const ch_op *op, int n_in, ch_node *const *in)
{
    while (s->outer != NULL)
        s = s->outer;
    if (s->context != CH_STEP_CONTEXT_CROSS)
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
                        op->name);
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

static ch_node *add_call(ch_step *s, const void *caller, const ch_op *op, const void *attrs,
                         int n_in, ch_node *const *in)
{
    ch_dims   out[CH_MAX_OUT];
    ch_dtype  dtype[CH_MAX_OUT];
    ch_infer  c = {.out = out, .out_dtype = dtype};
    ch_status rc = check_context(s, op, n_in, in);
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
    n->ordinal = ch__graph_root(s->graph)->n_ordinals++;
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
        own[i] = resolve_input(s, op, i, in[i], caller);
        ok = own[i] != NULL;
    }
    if (ok && settle_dtypes(op, n_in, own))
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

/* ---- inputs, outputs, resources ---- */

ch_node *ch__step_add_input(ch_step *s, const char *name, ch_dtype dtype, const ch_dims *dims)
{
    return ch__step_add_input_of(s, name, &(ch_input_attrs){.dtype = dtype, .dims = *dims});
}

ch_node *ch__step_add_input_of(ch_step *s, const char *name, const ch_input_attrs *attrs)
{
    ch_input_attrs a = *attrs;
    ch_node       *n;

    a.index = s->graph->n_inputs;
    n = ch__source_at(NULL, s, ch__roles.input, &a);

    if (n != NULL)
        n->varies = s->outer == NULL;
    if (n == NULL || name == NULL)
        return n;
    s->graph->input_name[a.index] = ch__arena_strdup(&s->graph->arena, name);
    if (s->graph->input_name[a.index] != NULL)
        return n;
    ch__step_record_error(s, ch__fail_memory("an input"), NULL);
    return NULL;
}

/* Returns the graph of the outermost step. ch_step_in in a body refers to the inputs of the
 * step; the inputs of the body are passed to its function. */
static const ch_graph *graph_of_step(const ch_step *s)
{
    while (s->outer != NULL)
        s = s->outer;
    return s->graph;
}

int ch_step_in_count(const ch_step *s)
{
    return s != NULL ? graph_of_step(s)->n_inputs : 0;
}

ch_node *ch_step_in(ch_step *s, int i)
{
    const ch_graph *g;

    if (s == NULL || s->rc != CH_OK)
        return NULL;
    g = graph_of_step(s);
    if (i >= 0 && i < g->n_inputs)
        return g->input[i];
    ch__step_record_error(s,
                          ch__fail(CH_INVALID_ARGUMENT,
                                   "%s: there is no input %d; the number of inputs is %d",
                                   g->name, i, g->n_inputs),
                          __builtin_return_address(0));
    return NULL;
}

ch_node *ch_step_in_named(ch_step *s, const char *name)
{
    const ch_graph *g;

    if (!ch__step_want(s, name != NULL, "step_in_named", "the name",
                       __builtin_return_address(0)))
        return NULL;
    g = graph_of_step(s);
    for (int i = 0; i < g->n_inputs; i++)
        if (g->input_name[i] != NULL && strcmp(g->input_name[i], name) == 0)
            return g->input[i];
    ch__step_record_error(s,
                          ch__fail(CH_INVALID_ARGUMENT,
                                   "%s: none of its %d inputs is named \"%s\"", g->name,
                                   g->n_inputs, name),
                          __builtin_return_address(0));
    return NULL;
}

static ch_status fail_output(const ch_step *s, const char *name, const ch_node *n)
{
    const char *why = "a node of another step";
    char        what[64];

    if (n == NULL)
        why = "NULL; an op returns NULL if an input is NULL";
    else if (n->graph->step == &ended)
        why = "a node of a branch, loop body or step that has ended";
    snprintf(what, sizeof(what), "%s %d", s->outer != NULL ? "value" : "output",
             s->graph->n_outputs);
    return ch__fail(CH_INVALID_ARGUMENT, "%s: %s%s%s is %s", s->graph->name,
                    name != NULL ? "output \"" : what, name != NULL ? name : "",
                    name != NULL ? "\"" : "", why);
}

static void add_output(ch_step *s, const char *name, ch_node *n, const void *caller)
{
    ch_output *out;
    char      *name_copy = NULL;

    if (s->rc != CH_OK)
        return;
    if (n != NULL && n->graph != s->graph && is_within(s, n->graph->step))
        n = ch__step_capture(s, n);
    if (n == NULL || n->graph != s->graph) {
        ch__step_record_error(s, fail_output(s, name, n), caller);
        return;
    }
    for (int i = 0; name != NULL && i < s->graph->n_outputs; i++)
        if (s->graph->output[i].name != NULL && strcmp(s->graph->output[i].name, name) == 0) {
            ch__step_record_error(s,
                                  ch__fail(CH_INVALID_ARGUMENT,
                                           "%s: two outputs are named \"%s\" (%d and %d)",
                                           s->graph->name, name, i, s->graph->n_outputs),
                                  caller);
            return;
        }
    if ((name != NULL && (name_copy = ch__arena_strdup(&s->graph->arena, name)) == NULL) ||
        (out = ch__graph_add_output(s->graph)) == NULL) {
        ch__step_record_error(s, ch__fail_memory("an output"), NULL);
        return;
    }
    out->name = name_copy;
    out->node = n;
}

void ch_step_out(ch_step *s, const char *name, ch_node *n)
{
    const void *caller = __builtin_return_address(0);

    if (s == NULL)
        return;
    if (s->outer != NULL)
        ch__step_record_error(
            s,
            ch__fail(CH_FAILED_PRECONDITION,
                     "ch_step_out: must not be called inside a cond, while or scan; return the "
                     "value from the body, and make the result an output"),
            caller);
    else
        add_output(s, name, n, caller);
}

void ch__body_out(ch_step *s, ch_node *n)
{
    add_output(s, NULL, n, NULL);
}

/* Returns the index of the resource with this key, and adds the resource if necessary. -1: an
 * error is recorded in s. */
static int resource_of(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape)
{
    ch_graph    *g = s->graph;
    ch_resource *r;

    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].key == key)
            return i;
    r = ch__graph_add_resource(g);
    if (r == NULL || (r->name = ch__arena_strdup(&g->arena, name)) == NULL) {
        g->n_resources -= r != NULL;
        ch__step_record_error(s, ch__fail_memory(name), NULL);
        return -1;
    }
    r->key = key;
    r->dtype = dtype;
    r->shape = shape;
    return g->n_resources - 1;
}

void ch__step_mark_remote(ch_step *s, const void *key)
{
    ch_graph *g = outermost(s)->graph;

    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].key == key)
            g->resource[i].is_remote = true;
}

ch_node *ch__step_read(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape)
{
    ch_read_attrs a = {.dtype = dtype, .dims = ch__dims_of(shape)};

    s = outermost(s); /* resources belong to the outermost step */
    if (s->rc != CH_OK)
        return NULL;
    a.resource = resource_of(s, key, name, dtype, shape);
    if (a.resource < 0)
        return NULL;
    if (s->graph->resource[a.resource].value == NULL) {
        ch_node *n = ch__source_at(NULL, s, ch__roles.read, &a);

        s->graph->resource[a.resource].read = n;
        s->graph->resource[a.resource].value = n;
    }
    return s->graph->resource[a.resource].value;
}

ch_node *ch__step_borrow(ch_step *s, void *key, void (*release)(void *key), const char *name,
                         ch_dtype dtype, ch_shape shape)
{
    int i = -1;

    s = outermost(s);
    if (s->rc == CH_OK)
        i = resource_of(s, key, name, dtype, shape);
    if (i < 0 || ch__is_borrowed(&s->graph->resource[i]))
        release(key); /* resource_of failed, or the graph holds a reference already */
    else
        s->graph->resource[i].release = release;
    return i >= 0 ? ch__step_read(s, key, name, dtype, shape) : NULL;
}

static bool is_number(const ch_dims *d)
{
    for (int i = 0; i < d->rank; i++)
        if (d->dim[i].sym != 0)
            return false;
    return true;
}

static const char wants_static_rows[] =
    "; the number of rows of an input is not known while the step is recorded, unless "
    "ch_function_static_rows was called on the function";

ch_node *ch__step_write(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape,
                        ch_node *value)
{
    ch_dims dims = ch__dims_of(shape);
    int     i;

    if (s->rc != CH_OK || value == NULL)
        return NULL;
    if (s->outer != NULL || value->graph != s->graph) {
        ch__step_record_error(s,
                              ch__fail(CH_FAILED_PRECONDITION,
                                       "must not be called inside a cond, while or scan; "
                                       "return the value from the body, and assign the result"),
                              NULL);
        return NULL;
    }
    if (value->dtype != dtype || !ch__dims_same(&value->dims, &dims)) {
        char have[160], want[160];

        ch__dims_print(&value->dims, have, sizeof(have));
        ch__dims_print(&dims, want, sizeof(want));
        ch__step_record_error(s,
                              ch__fail(CH_INVALID_ARGUMENT, "the value is %s%s, want %s%s%s",
                                       ch_dtype_name(value->dtype), have, ch_dtype_name(dtype),
                                       want, is_number(&value->dims) ? "" : wants_static_rows),
                              NULL);
        return NULL;
    }
    i = resource_of(s, key, name, dtype, shape);
    if (i < 0)
        return NULL;
    return s->graph->resource[i].value = value;
}

ch_graph *ch__step_body(ch_step *outer, const char *name, int n, const ch_dtype *dtype,
                        const ch_dims *dims, ch_body_fn record, void *arg, int *n_captures,
                        ch_node ***captures)
{
    ch_step  *s = NULL;
    ch_graph *g = NULL;
    ch_node **in = ch__arena_alloc(&outer->graph->arena, (size_t)(n + 1) * sizeof(*in));
    ch_step  *before = outermost(outer)->active;
    ch_status rc = in == NULL ? ch__fail_memory(name) : ch__step_new(name, outer, &s);

    for (int i = 0; i < n && rc == CH_OK; i++)
        if ((in[i] = ch__step_add_input(s, NULL, dtype[i], &dims[i])) == NULL)
            rc = ch_step_status(s);
    if (rc == CH_OK) {
        outermost(outer)->active = s;
        record(s, n, in, arg);
        outermost(outer)->active = before;
        rc = ch_step_status(s);
    }
    if (rc == CH_OK) {
        *n_captures = s->n_captures;
        *captures = ch__arena_alloc(&outer->graph->arena,
                                    (size_t)(s->n_captures + 1) * sizeof(ch_node *));
        rc = *captures == NULL ? ch__fail_memory(name) : CH_OK;
    }
    if (rc == CH_OK) {
        for (int i = 0; i < s->n_captures; i++)
            (*captures)[i] = s->captured[i];
        rc = ch__step_finish(s, &g);
    }
    /* the message contains the source line already */
    if (s != NULL && s->rc != CH_OK && outer->rc == CH_OK) {
        outer->rc = s->rc;
        memcpy(outer->error, s->error, sizeof(outer->error));
    } else if (rc != CH_OK) {
        ch__step_record_error(outer, rc, NULL);
    }
    ch__step_free(s);
    return g;
}

/* ---- properties of nodes ---- */

ch_dtype ch_node_dtype(const ch_node *n)
{
    return n != NULL ? n->dtype : CH_F32;
}

ch_shape ch_node_shape(const ch_node *n)
{
    return n != NULL ? ch__dims_shape(&n->dims) : ch_shape_scalar();
}

ch_step *ch_node_step(const ch_node *n)
{
    if (n == NULL || n->graph->step == &ended)
        return n != NULL ? &ended : NULL;
    return outermost(n->graph->step)->active;
}
