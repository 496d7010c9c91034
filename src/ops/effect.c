/* ops/effect.c -- identity, stop_gradient, check_numerics, check, print, host_call.
 *
 * identity and stop_gradient are views of their input. The other ops have CH_OP_EFFECT: the
 * planner never drops, merges or moves their calls. check and print have no outputs.
 * check_numerics and check fail the run; host_call calls a function of the program, so its
 * calls cannot be encoded (CH_OP_HOST).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "graph/step.h"
#include "kernel/finite.h"
#include "ops/ops.h"
#include "tensor/print.h"

/* ---- identity, stop_gradient ---- */

static ch_status identity_infer(ch_infer *c)
{
    return ch__infer_like(c, 0, 0);
}

static void identity_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s, (void)n;
    din[0] = dout[0];
}

const ch_op ch__op_identity = {
    .name = "identity",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_LINEAR,
    .infer = identity_infer,
    .grad = identity_grad,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&ch__kernel_view, NULL},
    .room = CH_ROOM_ANY,
};

const ch_op ch__op_stop_gradient = {
    .name = "stop_gradient",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .infer = identity_infer,
    .factors = ch__factors_elementwise,
    .flags = CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&ch__kernel_view, NULL},
    .room = CH_ROOM_ANY,
};

ch_node *ch_identity(ch_node *x)
{
    return ch__node(&ch__op_identity, NULL, 1, &x);
}

ch_node *ch_stop_gradient(ch_node *x)
{
    return ch__node(&ch__op_stop_gradient, NULL, 1, &x);
}

/* ---- check_numerics ---- */

typedef struct check_attrs {
    const char *message;
} check_attrs;

static const ch_attr check_rows[] = {
    CH_ATTR_TEXT(check_attrs, message),
    CH_ATTR_END,
};

static ch_status check_infer(ch_infer *c)
{
    ch_status rc = ch__infer_want_float(c, 0);

    return rc != CH_OK ? rc : ch__infer_like(c, 0, 0);
}

typedef struct check_state {
    int64_t n;
    int     tiles;
    size_t  size;
} check_state;

static ch_status check_prepare(const ch_node *n, ch_prep *p)
{
    check_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("check_numerics");
    s->n = ch__count(n);
    s->size = ch_dtype_bytes(n->dtype);
    s->tiles = ch__tile_count(s->n, 2);
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    p->over[0] = 1;
    return CH_OK;
}

/* Writes the indices of element k, such as "(0, 3)". */
static void index_text(const ch_node *n, int64_t k, char *text, size_t size)
{
    int64_t at[CH_MAX_RANK];
    int     used = 1;

    for (int i = n->dims.rank - 1; i >= 0; i--) {
        at[i] = k % n->dims.dim[i].n;
        k /= n->dims.dim[i].n;
    }
    snprintf(text, size, "(");
    for (int i = 0; i < n->dims.rank; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", i > 0 ? ", " : "",
                         (long long)at[i]);
    snprintf(text + used, size - (size_t)used, ")");
}

/* Fails the run. The message names the first element of the whole array that is not finite, so
 * it does not depend on the tile that found one. */
static ch_status check_fail(const ch_call *c, const check_state *s)
{
    const ch_node     *n = c->node;
    const check_attrs *a = ch__attrs(n);
    int64_t            k = ch__first_not_finite(n->dtype, s->n, c->in[0]);
    double             x = ch__load(n->dtype, (const char *)c->in[0] + (size_t)k * s->size);
    char               index[CH_MAX_RANK * 22 + 3];

    index_text(n, k, index, sizeof(index));
    return ch__call_fail(c, CH_INVALID_ARGUMENT, "%s%s%s at index %s",
                         a->message != NULL ? a->message : "", a->message != NULL ? ": " : "",
                         isnan(x) ? "NaN"
                         : x > 0  ? "Inf"
                                  : "-Inf",
                         index);
}

static ch_status check_run(const ch_call *c, ch_kernel_tile t)
{
    const check_state *s = c->state;
    const char        *in = c->in[0];
    char              *out = c->out[0];
    int64_t            from, to;

    ch__tile_range(s->n, s->tiles, t.index, &from, &to);
    in += (size_t)from * s->size;
    out += (size_t)from * s->size;
    if (!ch__all_finite(c->node->dtype, to - from, in))
        return check_fail(c, s);
    if (out != in)
        memcpy(out, in, (size_t)(to - from) * s->size);
    return CH_OK;
}

static void check_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const check_attrs *a = ch__attrs(n);
    char               message[256];

    (void)s;
    snprintf(message, sizeof(message), "gradient of %s",
             a->message != NULL ? a->message : "check_numerics");
    din[0] = ch_check_numerics(dout[0], message);
}

static const ch_kernel check_kernel = {"plain", .prepare = check_prepare, .run = check_run};

const ch_op ch__op_check_numerics = {
    .name = "check_numerics",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = check_rows,
    .attrs_bytes = sizeof(check_attrs),
    .infer = check_infer,
    .grad = check_grad,
    .factors = ch__factors_elementwise,
    .flags = CH_OP_EFFECT | CH_OP_CAN_FAIL,
    .kernels = (const ch_kernel *const[]){&check_kernel, NULL},
};

ch_node *ch_check_numerics(ch_node *x, const char *message)
{
    check_attrs a = {message};

    return ch__node(&ch__op_check_numerics, &a, 1, &x);
}

/* ---- check; its functions are called claim_... ---- */

static ch_status claim_infer(ch_infer *c)
{
    if (c->dtype[0] != CH_BOOL)
        return ch__infer_fail(c, "input 0 is %s, want bool; compare it first",
                              ch_dtype_name(c->dtype[0]));
    return CH_OK;
}

static ch_status claim_run(const ch_call *c, ch_kernel_tile t)
{
    const check_attrs *a = ch__attrs(c->node);
    const bool        *in = c->in[0];

    (void)t;
    for (int64_t i = 0, n = ch__count(c->node->in[0]); i < n; i++)
        if (!in[i])
            return ch__call_fail(c, CH_INVALID_ARGUMENT, "%s",
                                 a->message != NULL ? a->message
                                                    : "the condition does not hold");
    return CH_OK;
}

static const ch_kernel claim_kernel = {"plain", .run = claim_run};

const ch_op ch__op_check = {
    .name = "check",
    .version = 1,
    .n_in = 1,
    .n_out = 0,
    .attrs = check_rows,
    .attrs_bytes = sizeof(check_attrs),
    .infer = claim_infer,
    .replicated = "it has an effect, so a single core executes it",
    .flags = CH_OP_EFFECT | CH_OP_CAN_FAIL | CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&claim_kernel, NULL},
};

void ch_check(ch_node *condition, const char *message)
{
    check_attrs a = {message};

    (void)ch__node(&ch__op_check, &a, 1, &condition);
}

/* ---- print: ch_print returns its input, so the call needs no output ---- */

typedef struct print_attrs {
    const char *label;
} print_attrs;

static const ch_attr print_rows[] = {
    CH_ATTR_TEXT(print_attrs, label),
    CH_ATTR_END,
};

static ch_status print_infer(ch_infer *c)
{
    (void)c;
    return CH_OK;
}

static ch_status print_run(const ch_call *c, ch_kernel_tile t)
{
    const print_attrs *a = ch__attrs(c->node);
    const ch_node     *x = c->node->in[0];
    char               text[2048], replica[32] = "";
    ch_text            o = ch__text(text, sizeof(text));

    (void)t;
    if (!ch__log_is_enabled(CH_LOG_PRINT))
        return CH_OK;
    ch__text_array(&o, x->dtype, ch__shape(x), c->in[0]);
    for (char *at = text; *at != '\0'; at++) /* each row of a tensor is printed as a line */
        if (*at == '\n')
            *at = ' ';
    if (c->env->n_replicas > 1)
        snprintf(replica, sizeof(replica), "replica %d, ", c->env->replica);
    ch__log(CH_LOG_PRINT, "print", "%s%s%s%s", replica, a->label != NULL ? a->label : "",
            a->label != NULL ? ": " : "", text);
    return CH_OK;
}

static const ch_kernel print_kernel = {"plain", .run = print_run};

const ch_op ch__op_print = {
    .name = "print",
    .version = 1,
    .n_in = 1,
    .n_out = 0,
    .attrs = print_rows,
    .attrs_bytes = sizeof(print_attrs),
    .infer = print_infer,
    .replicated = "it has an effect, so a single core executes it",
    .flags = CH_OP_EFFECT | CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&print_kernel, NULL},
};

ch_node *ch_print(ch_node *x, const char *label)
{
    print_attrs a = {label};

    return ch__node(&ch__op_print, &a, 1, &x) != NULL ? x : NULL;
}

/* ---- host_call ---- */

typedef struct host_attrs {
    const char *name;
    void       *fn; /* a ch_host_fn; attributes of kind HOST are void pointers */
    void       *arg;
    void       *gradient; /* a ch_host_fn, or NULL */
    ch_ints     dtype;    /* of each output */
    ch_dims     dims[CH_MAX_HOST_OUT];
} host_attrs;

#define HOST_DIMS(i)                                                                           \
    {                                                                                          \
        "dims" #i, CH_ATTR_KIND_DIMS, offsetof(host_attrs, dims[i])                            \
    }

static const ch_attr host_rows[] = {
    CH_ATTR_TEXT(host_attrs, name),
    CH_ATTR_HOST(host_attrs, fn),
    CH_ATTR_HOST(host_attrs, arg),
    CH_ATTR_HOST(host_attrs, gradient),
    CH_ATTR_INTS(host_attrs, dtype),
    HOST_DIMS(0),
    HOST_DIMS(1),
    HOST_DIMS(2),
    HOST_DIMS(3),
    HOST_DIMS(4),
    HOST_DIMS(5),
    HOST_DIMS(6),
    HOST_DIMS(7),
    CH_ATTR_END,
};

static const char *host_name(const host_attrs *a)
{
    return a->name != NULL ? a->name : "the function";
}

static ch_status host_infer(ch_infer *c)
{
    const host_attrs *a = c->attrs;

    if (a->fn == NULL)
        return ch__infer_fail(c, "there is no function to call");
    if (c->n_in > CH_MAX_HOST_IN || a->dtype.n < 0 || a->dtype.n > CH_MAX_HOST_OUT)
        return ch__infer_fail(c, "there are %d inputs and %d outputs, want at most %d and %d",
                              c->n_in, a->dtype.n, CH_MAX_HOST_IN, CH_MAX_HOST_OUT);
    for (int i = 0; i < a->dtype.n; i++) {
        ch_status rc;

        if (a->dtype.at[i] < 0 || a->dtype.at[i] >= CH_STR)
            return ch__infer_fail(c, "output %d is %s, want bool or a numeric dtype", i,
                                  a->dtype.at[i] == CH_STR ? "string" : "of unknown dtype");
        rc = ch__infer_dims(c, i, (ch_dtype)a->dtype.at[i], &a->dims[i]);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

/* Calls the program's function. If the function fails, its error message is added to the
 * call's; if the function set no message, the status name is added. */
static ch_status call_host(const ch_call *c, ch_tensor *const *in, ch_tensor *const *out)
{
    const host_attrs *a = ch__attrs(c->node);
    const char       *name = host_name(a);
    uint64_t          mark = ch__fail_mark();
    ch_host_fn        fn;
    ch_status         rc;

    memcpy(&fn, &a->fn, sizeof(fn));
    rc = fn(a->arg, c->node->n_in, in, c->node->n_out, out);
    if (rc == CH_OK)
        return CH_OK;
    if (ch__fail_mark() == mark) /* the function set no message */
        return ch__call_fail(c, rc, "%s returned %s", name, ch_status_name(rc));
    return ch__call_fail(c, rc, "%s: %s", name, ch_error_message());
}

static ch_status host_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_node *n = c->node;
    void          *data[CH_MAX_HOST_IN + CH_MAX_HOST_OUT];
    ch_tensor     *all[CH_MAX_HOST_IN + CH_MAX_HOST_OUT] = {0};
    int            n_in = n->n_in, n_all = n->n_in + n->n_out;
    ch_status      rc = CH_OK;

    (void)t;
    memcpy(data, c->in, (size_t)n_in * sizeof(data[0])); /* fn must not write to its inputs */
    memcpy(data + n_in, c->out, (size_t)n->n_out * sizeof(data[0]));
    for (int i = 0; i < n_all && rc == CH_OK; i++) {
        const ch_node *x = i < n_in ? n->in[i] : &n[i - n_in];

        rc = ch_tensor_wrap(x->dtype, ch__shape(x), data[i], NULL, NULL, &all[i]);
    }
    if (rc == CH_OK)
        rc = call_host(c, all, all + n_in);
    for (int i = 0; i < n_all; i++)
        ch_tensor_unref(all[i]);
    return rc;
}

static const ch_kernel host_kernel = {"host", .run = host_run};

/* Sets *g to the attributes of the call that computes the gradient of call n: an output like
 * each float input. Returns their number. */
static int gradient_attrs(const ch_node *n, const char *name, host_attrs *g)
{
    const host_attrs *a = ch__attrs(n);
    int               n_out = 0;

    *g = (host_attrs){.name = name, .fn = a->gradient, .arg = a->arg};
    for (int i = 0; i < n->n_in; i++) {
        if (!ch_dtype_is_float(n->in[i]->dtype))
            continue;
        if (n_out < CH_MAX_HOST_OUT) {
            g->dtype.at[n_out] = n->in[i]->dtype;
            g->dims[n_out] = n->in[i]->dims;
        }
        n_out++;
    }
    g->dtype.n = n_out;
    return n_out;
}

/* Records a host call of the gradient function, with the inputs of the call and the gradients
 * of its float outputs. */
static void host_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const host_attrs *a = ch__attrs(n);
    ch_node          *in[CH_MAX_HOST_IN + CH_MAX_HOST_OUT], *d;
    char              name[128];
    host_attrs        g;
    int               n_in = 0, n_out;

    snprintf(name, sizeof(name), "the gradient of %s", host_name(a));
    n_out = gradient_attrs(n, name, &g);
    for (int i = 0; i < n->n_in; i++)
        in[n_in++] = n->in[i];
    for (int i = 0; i < n->n_out; i++)
        if (ch_dtype_is_float(n[i].dtype))
            in[n_in++] = dout[i] != NULL ? dout[i] : ch_zeros_like(ch__out(n, i));
    if (a->gradient == NULL || n_in > CH_MAX_HOST_IN || n_out > CH_MAX_HOST_OUT) {
        ch__step_record_error(
            s,
            ch__fail(CH_UNIMPLEMENTED,
                     "gradient: %s has %s; use ch_stop_gradient if it is to be treated as a "
                     "constant",
                     ch__call_name(n->op, n->attrs, name, sizeof(name)),
                     a->gradient == NULL
                         ? "no gradient (ch_host_spec.gradient)"
                         : "too many inputs or outputs for a call of its gradient"),
            s->caller);
        return;
    }
    d = ch__node(&ch__op_host_call, &g, n_in, in);
    for (int i = 0, k = 0; i < n->n_in && d != NULL; i++)
        if (ch_dtype_is_float(n->in[i]->dtype))
            din[i] = ch__out(d, k++);
}

const ch_op ch__op_host_call = {
    .name = "host_call",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .attrs = host_rows,
    .attrs_bytes = sizeof(host_attrs),
    .infer = host_infer,
    .grad = host_grad,
    .replicated = "it has an effect, so a single core executes it",
    .flags = CH_OP_EFFECT | CH_OP_CAN_FAIL | CH_OP_HOST,
    .kernels = (const ch_kernel *const[]){&host_kernel, NULL},
};

/* Sets *a from the user's description. `call` is the name of the call for messages. */
static ch_status host_attrs_of(const char *call, const ch_host_spec *spec, host_attrs *a)
{
    if (spec == NULL || spec->fn == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: there is no function to call", call);
    if (spec->n_out < 0 || spec->n_out > CH_MAX_HOST_OUT)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %d outputs, want 0 to %d", call, spec->n_out,
                        CH_MAX_HOST_OUT);
    memcpy(&a->fn, &spec->fn, sizeof(a->fn));
    memcpy(&a->gradient, &spec->gradient, sizeof(a->gradient));
    a->arg = spec->arg;
    a->dtype.n = spec->n_out;
    for (int i = 0; i < spec->n_out; i++) {
        const ch_host_out *o = &spec->out[i];

        a->dtype.at[i] = o->dtype;
        if (o->like != NULL)
            a->dims[i] = o->like->dims;
        else if (o->shape.rank > CH_MAX_RANK)
            a->dims[i].rank = o->shape.rank; /* too large: the shape rule fails */
        else
            a->dims[i] = ch__dims_of(o->shape);
    }
    return CH_OK;
}

void ch_host_call(ch_step *s, const ch_host_spec *spec, int n_in, ch_node *const *in,
                  ch_node **out)
{
    const void *caller = __builtin_return_address(0);
    host_attrs  a = {.name = spec != NULL ? spec->name : NULL};
    char        call[128];
    ch_node    *n;
    ch_status   rc;

    if (out != NULL && spec != NULL && spec->n_out > 0 && spec->n_out <= CH_MAX_HOST_OUT)
        memset(out, 0, (size_t)spec->n_out * sizeof(*out));
    if (s == NULL || ch_step_status(s) != CH_OK)
        return;
    ch__call_name(&ch__op_host_call, &a, call, sizeof(call));
    rc = host_attrs_of(call, spec, &a);
    if (rc == CH_OK && (n_in < 0 || n_in > CH_MAX_HOST_IN))
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: inputs: wrong number (got %d, want 0 to %d)",
                      call, n_in, CH_MAX_HOST_IN);
    if (rc == CH_OK && in == NULL && n_in > 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: the list of %d inputs is NULL", call, n_in);
    if (rc == CH_OK && out == NULL && spec->n_out > 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: out is NULL, want room for %d outputs", call,
                      spec->n_out);
    if (rc != CH_OK) {
        ch__step_record_error(s, rc, caller);
        return;
    }
    if (n_in > 0)
        n = ch__node_at(caller, &ch__op_host_call, &a, n_in, in);
    else
        n = ch__source_at(caller, s, &ch__op_host_call, &a);
    for (int i = 0; n != NULL && i < spec->n_out; i++)
        out[i] = ch__out(n, i);
}
