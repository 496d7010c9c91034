/* ops/loop.c -- scan, and while, which is a kind of scan.
 *
 * A scan runs its body `length` times.
 *   - Inputs: the carries, the xs (each iteration gets a slice along axis 0), the captures.
 *   - Outputs: the last carries, the ys (stacked along axis 0), and the trace: for each carry,
 *     its values at the beginning of every iteration, stacked.
 * Only the gradient reads the trace. If no call reads the trace, it takes neither time nor
 * memory. The gradient of a scan is a scan in the opposite direction, which computes each
 * iteration again from the trace.
 *
 * A while is a scan with a stop carry, a bool: the scan ends when this carry is false. Its
 * length is only a limit, and its cost must depend on the iterations made:
 *   - The scan has the count of its iterations as an output. It replaces the trace of the stop
 *     carry, which would be true throughout.
 *   - The gradient of a while is a counted scan: it has that count as an input and makes this
 *     number of iterations. The gradient of a counted scan is a counted scan with the same
 *     count.
 *   - The stacked outputs of both have `length` slices, but only the slices before the count
 *     are written and read. The program reserves memory for all slices and does not touch the
 *     rest.
 *   - Without a gradient the limit may be any number. So the number of slices is a symbol while
 *     the step is recorded. When the step is specialised it becomes `length`, or 0 if the trace
 *     would be too large (settle_trace). Then a gradient is not possible; it fails in
 *     check_memory.
 *
 * Main structs: scan_attrs (the call), scan_state (the kernel), scan_parts (arguments of
 * record_scan), scan_backward (the gradient).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "ops/body.h"
#include "ops/ops.h"

typedef struct scan_attrs {
    ch_graph *body; /* (carries, slices of xs, captures) -> (carries, ys) */
    int64_t   n_carry, n_x;
    ch_dims   length;  /* rank 1: the number of iterations; with `stop` or `counted`, a limit */
    bool      reverse; /* iterations go from the last slice to the first */
    int64_t   stop;    /* 1 + index of the stop carry; 0: none */
    bool      counted; /* the input after the xs, an i64 scalar, is the count of iterations */
} scan_attrs;

static const ch_attr scan_rows[] = {
    CH_ATTR_GRAPH(scan_attrs, body),   CH_ATTR_INT(scan_attrs, n_carry),
    CH_ATTR_INT(scan_attrs, n_x),      CH_ATTR_DIMS(scan_attrs, length),
    CH_ATTR_BOOL(scan_attrs, reverse), CH_ATTR_INT(scan_attrs, stop),
    CH_ATTR_BOOL(scan_attrs, counted), CH_ATTR_END,
};

/* Sets output i to a stack of `length` values of dims d. */
static ch_status stacked(ch_infer *c, int i, ch_dtype dtype, ch_dim length, const ch_dims *d)
{
    ch_dim dim[CH_MAX_RANK + 1] = {length};

    for (int k = 0; k < d->rank; k++)
        dim[k + 1] = d->dim[k];
    return ch__infer_out(c, i, dtype, d->rank + 1, dim);
}

/* Returns the bytes of memory of this machine, or INT64_MAX if they are not known. */
static int64_t machine_bytes(void)
{
    int64_t pages = sysconf(_SC_PHYS_PAGES), bytes = 0;

    return pages > 0 && ch__mul_size(pages, sysconf(_SC_PAGESIZE), &bytes) ? bytes : INT64_MAX;
}

/* Adds the bytes of `length` values to *sum; the sum becomes INT64_MAX if it overflows. The
 * sizes of a value are those of d from axis `from` on; a symbol and 0 count as 1. A negative
 * length, which is possible in a decoded graph, adds nothing. */
static void add_bytes(int64_t *sum, int64_t length, ch_dtype dtype, const ch_dims *d, int from)
{
    int64_t bytes = (int64_t)ch_dtype_bytes(dtype);
    bool    fits = ch__mul_size(bytes, length > 0 ? length : 0, &bytes);

    for (int k = from; k < d->rank && fits; k++)
        fits = ch__mul_size(bytes, d->dim[k].n > 0 ? d->dim[k].n : 1, &bytes);
    *sum = fits && bytes <= INT64_MAX - *sum ? *sum + bytes : INT64_MAX;
}

/* Returns true for a while and for its gradients. Their length is a limit. */
static bool is_while(const scan_attrs *a)
{
    return a->stop > 0 || a->counted;
}

/* Fails if `need`, the bytes of a trace, exceeds the memory of this machine. */
static ch_status check_memory(const scan_attrs *a, int64_t need)
{
    const char *length = is_while(a) ? "limit" : "length";
    int64_t     have = machine_bytes();

    if (need <= have)
        return CH_OK;
    return ch__fail(CH_RESOURCE_EXHAUSTED,
                    "%s: %s %lld: the gradient stores the state of every iteration (needs "
                    "%s%lld bytes, this machine has %lld); lower the %s or use a smaller state",
                    is_while(a) ? "while" : "scan", length, (long long)a->length.dim[0].n,
                    need == INT64_MAX ? "over " : "", (long long)need, (long long)have, length);
}

/* Checks the xs of the gradient of a while, which are its trace. Their number of slices must be
 * the limit, and they must fit in the memory of this machine. */
static ch_status check_counted(const ch_infer *c, const scan_attrs *a)
{
    const ch_dims *x = &c->in[a->n_carry];
    int64_t        need = 0, limit = a->length.dim[0].n;
    ch_status      rc;

    for (int i = 0; i < a->n_x; i++) {
        if (x[i].rank == 0 || !ch__dim_same(x[i].dim[0], x[0].dim[0]))
            return ch__infer_fail(c, "x %d is %s, want the same number of slices as x 0", i,
                                  ch__type_text(c->dtype[a->n_carry + i], &x[i]));
        add_bytes(&need, limit, c->dtype[a->n_carry + i], &x[i], 1);
    }
    rc = check_memory(a, need);
    if (rc == CH_OK && a->n_x > 0 && x[0].dim[0].sym == 0 && x[0].dim[0].n != limit)
        rc = ch__infer_fail(c, "the xs have %s slices, want %lld", ch__dim_text(c, x[0].dim[0]),
                            (long long)limit);
    return rc;
}

/* Fails unless every x has a slice for each iteration. */
static ch_status check_xs(const ch_infer *c, const scan_attrs *a)
{
    if (a->counted)
        return check_counted(c, a);
    for (int i = 0; i < a->n_x; i++)
        if (c->in[a->n_carry + i].rank == 0 ||
            !ch__dim_same(c->in[a->n_carry + i].dim[0], a->length.dim[0]))
            return ch__infer_fail(
                c, "x %d is %s, want %s slices along axis 0", i,
                ch__type_text(c->dtype[a->n_carry + i], &c->in[a->n_carry + i]),
                ch__dim_text(c, a->length.dim[0]));
    return CH_OK;
}

/* Checks attributes, body and inputs, except the dtypes and dims of the body's inputs. */
static ch_status scan_check(const ch_infer *c, const scan_attrs *a)
{
    const ch_graph *g = a->body;
    int             n_in = c->n_in - a->counted; /* number of inputs of the body */

    if (g == NULL || a->length.rank != 1)
        return ch__infer_fail(c, "the body or the length is missing");
    if (a->n_carry < 0 || a->n_x < 0 || a->n_carry > CH_MAX_OUT || a->n_x > n_in ||
        n_in != g->n_inputs || n_in < a->n_carry + a->n_x || g->n_outputs < a->n_carry)
        return ch__infer_fail(c,
                              "the body takes %d values and returns %d, which does not match "
                              "the carries, xs and captures",
                              g->n_inputs, g->n_outputs);
    for (int i = 0; i < a->n_carry; i++) {
        const ch_node *in = g->input[i], *out = g->output[i].node;

        if (in->dtype != out->dtype || !ch__dims_same(&in->dims, &out->dims))
            return ch__infer_fail(c, "carry %d goes into the body as %s and comes out as %s", i,
                                  ch__type_text(in->dtype, &in->dims),
                                  ch__type_text(out->dtype, &out->dims));
    }
    if (a->stop < 0 || a->stop > a->n_carry ||
        (a->stop > 0 &&
         (g->input[a->stop - 1]->dtype != CH_BOOL || g->input[a->stop - 1]->dims.rank != 0)))
        return ch__infer_fail(
            c,
            "stop is %lld, want 0, or 1 + the index of a carry that is a bool "
            "scalar",
            (long long)a->stop);
    if (a->stop > 0 && (a->reverse || a->counted || g->n_outputs > a->n_carry))
        return ch__infer_fail(c, "a scan with a stop carry must not %s",
                              a->reverse   ? "be reversed"
                              : a->counted ? "have a count"
                                           : "have ys");
    if (a->counted &&
        (c->dtype[a->n_carry + a->n_x] != CH_I64 || c->in[a->n_carry + a->n_x].rank != 0))
        return ch__infer_fail(
            c, "the count is %s, want i64()",
            ch__type_text(c->dtype[a->n_carry + a->n_x], &c->in[a->n_carry + a->n_x]));
    return check_xs(c, a);
}

/* Returns the number of slices of stacked outputs: see the head of this file. */
static ch_dim count_slices(ch_infer *c, const scan_attrs *a)
{
    if (!is_while(a))
        return a->length.dim[0];
    if (a->n_x > 0)
        return c->in[a->n_carry].dim[0];
    return c->graph->is_concrete ? a->length.dim[0] : ch__infer_symbol(c);
}

/* If the trace of a while has 2^48 bytes or more (ch__size_is_supported), sets its number of
 * slices to 0. For a gradient, which has xs, fails instead if the machine has too little
 * memory, because its trace must have as many slices as the xs. */
static ch_status settle_trace(ch_infer *c, const scan_attrs *a)
{
    int     first = a->body->n_outputs;
    int64_t need = 0;
    bool    fits = true;

    for (int i = first; i < c->n_out; i++) {
        fits = fits && ch__size_is_supported(c->out_dtype[i], &c->out[i]);
        add_bytes(&need, a->length.dim[0].n, c->out_dtype[i], &c->out[i], 1);
    }
    if (fits || !is_while(a))
        return CH_OK;
    if (a->n_x > 0)
        return check_memory(a, need);
    for (int i = first; i < c->n_out; i++)
        if (i != first + a->stop - 1)
            c->out[i].dim[0] = ch__dim(0);
    return CH_OK;
}

static ch_status scan_infer(ch_infer *c)
{
    const scan_attrs *a = c->attrs;
    const ch_graph   *g = a->body;
    ch_status         rc = scan_check(c, a);
    int               carry = (int)a->n_carry, x = (int)a->n_x;
    ch_dim            slices = {0};

    if (rc == CH_OK)
        rc = ch__body_check(c, g, 0, 0, carry, false);
    if (rc == CH_OK)
        rc = ch__body_check(c, g, carry, carry, x, true);
    if (rc == CH_OK)
        rc = ch__body_check(c, g, carry + x + a->counted, carry + x, g->n_inputs - carry - x,
                            false);
    if (rc == CH_OK)
        slices = count_slices(c, a);
    for (int i = 0; i < carry && rc == CH_OK; i++)
        rc = ch__infer_like(c, i, i);
    for (int i = carry; rc == CH_OK && i < g->n_outputs; i++)
        rc = stacked(c, i, g->output[i].node->dtype, slices, &g->output[i].node->dims);
    /* The trace; for the stop carry, the count. */
    for (int i = 0; i < carry && rc == CH_OK; i++)
        rc = i == a->stop - 1 ? ch__infer_out(c, g->n_outputs + i, CH_I64, 0, NULL)
                              : stacked(c, g->n_outputs + i, c->dtype[i], slices, &c->in[i]);
    return rc == CH_OK ? settle_trace(c, a) : rc;
}

typedef struct scan_state {
    ch_body body;
    int     n_carry, n_x, n_y, stop;
    int64_t length;
    bool    reverse, counted;
    bool    wants_count;        /* there is a stop carry, and a call reads the count */
    bool    clears_rest;        /* set slices that no iteration writes to 0 */
    bool    traced[CH_MAX_OUT]; /* for each carry: a call reads its trace */
    size_t  carry_at[2];        /* offsets in scratch of two sets of carries, used in turns */
    size_t *offset;             /* offset of each carry in such a set */
    size_t *bytes;              /* bytes of a slice: of the carries, then the xs, then the ys */
} scan_state;

static void scan_drop(void *state)
{
    ch__program_unref(((scan_state *)state)->body.program);
}

static ch_status scan_prepare(const ch_node *n, ch_prep *p)
{
    const scan_attrs *a = n->attrs;
    const ch_graph   *g = a->body;
    scan_state       *s = ch__prep_state(p, sizeof(*s));
    size_t            used = 0, carries = 0;
    int               n_slices = (int)(a->n_carry + a->n_x) + g->n_outputs;

    if (s == NULL)
        return ch__fail_memory("scan");
    s->n_carry = (int)a->n_carry;
    s->n_x = (int)a->n_x;
    s->n_y = g->n_outputs - s->n_carry;
    s->stop = (int)a->stop;
    s->length = a->length.dim[0].n;
    s->reverse = a->reverse;
    s->counted = a->counted;
    s->clears_rest = p->watched;
    s->offset = ch__arena_alloc(p->arena, (size_t)n_slices * sizeof(*s->offset) + 8);
    s->bytes = ch__arena_alloc(p->arena, (size_t)n_slices * sizeof(*s->bytes) + 8);
    if (s->offset == NULL || s->bytes == NULL)
        return ch__fail_memory("scan");
    for (int i = 0; i < s->n_carry + s->n_x; i++)
        s->bytes[i] = (size_t)ch__bytes(g->input[i]);
    for (int i = 0; i < s->n_y; i++)
        s->bytes[s->n_carry + s->n_x + i] = (size_t)ch__bytes(g->output[s->n_carry + i].node);
    for (int i = 0; i < s->n_carry; i++) {
        s->offset[i] = ch__scratch_alloc(&carries, s->bytes[i]);
        s->traced[i] = !p->unused[g->n_outputs + i] && i != s->stop - 1 &&
                       n[g->n_outputs + i].dims.dim[0].n == s->length;
        p->touches_part |= s->traced[i] && (a->counted || s->stop > 0) && !p->watched;
    }
    s->wants_count = s->stop > 0 && !p->unused[g->n_outputs + s->stop - 1];
    p->touches_part |= a->counted && s->n_y > 0 && !p->watched;
    s->carry_at[0] = ch__scratch_alloc(&used, carries);
    s->carry_at[1] = ch__scratch_alloc(&used, carries);
    p->skips_unused = true;
    for (int i = 0; i < g->n_outputs; i++) /* the kernel can skip the trace only */
        p->unused[i] = false;
    {
        ch_status rc = ch__body_prepare(&s->body, a->body, p, &used);

        p->scratch_bytes = used;
        return rc;
    }
}

/* memcpy that accepts NULL pointers if there are no bytes. */
static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, bytes);
}

/* Sets the addresses of slice `at` of the xs and ys for an iteration, and writes the carries
 * that it begins with to the trace. */
static void set_slices(const scan_state *s, const ch_call *c, ch_body_run *r, int64_t at,
                       char *carry)
{
    const size_t *bytes = s->bytes + s->n_carry;

    for (int i = 0; i < s->n_x; i++)
        r->in[s->n_carry + i] = (const char *)c->in[s->n_carry + i] + (size_t)at * bytes[i];
    for (int i = 0; i < s->n_y; i++)
        r->out[s->n_carry + i] =
            (char *)c->out[s->n_carry + i] + (size_t)at * bytes[s->n_x + i];
    for (int i = 0; i < s->n_carry; i++)
        if (s->traced[i])
            copy((char *)c->out[s->n_carry + s->n_y + i] + (size_t)at * s->bytes[i],
                 carry + s->offset[i], s->bytes[i]);
}

/* Clears the slices of the ys and the trace from `done` on. Needed when a user watches all
 * outputs (ch_prep.watched). */
static void clear_rest(const scan_state *s, const ch_call *c, int64_t done)
{
    for (int i = 0; i < s->n_y + s->n_carry; i++) {
        size_t bytes = s->bytes[i < s->n_y ? s->n_carry + s->n_x + i : i - s->n_y];

        if ((i < s->n_y || s->traced[i - s->n_y]) && done < s->length && bytes > 0)
            memset((char *)c->out[s->n_carry + i] + (size_t)done * bytes, 0,
                   (size_t)(s->length - done) * bytes);
    }
}

/* Returns the number of iterations that the call may make at most: the count if the scan is
 * counted, otherwise the length. */
static int64_t most_iterations(const scan_state *s, const ch_call *c)
{
    int64_t count = s->length;

    if (s->counted)
        memcpy(&count, c->in[s->n_carry + s->n_x], sizeof(count));
    if (count < 0 || count > s->length) /* possible in a decoded graph, which is untrusted */
        count = count < 0 ? 0 : s->length;
    return count;
}

/* Sets the addresses of iteration r->iteration, which works on slice `at`. */
static void begin_iteration(const scan_state *s, const ch_call *c, ch_body_run *r,
                            char *const *carry, int64_t at)
{
    int odd = (int)(r->iteration & 1);

    for (int i = 0; i < s->n_carry; i++) {
        r->in[i] = carry[odd] + s->offset[i];
        r->out[i] = carry[!odd] + s->offset[i];
    }
    set_slices(s, c, r, at, carry[odd]);
    /* Depends on the position, not on the order of iterations, so that the gradient draws
     * the same random numbers for an iteration. */
    r->env.iteration =
        (int64_t)((uint64_t)c->env->iteration * (uint64_t)s->length + (uint64_t)at + 1);
}

static ch_status scan_run(const ch_call *c, ch_kernel_tile tile)
{
    const scan_state *s = c->state;
    char *carry[2] = {(char *)c->scratch + s->carry_at[0], (char *)c->scratch + s->carry_at[1]};
    int64_t      most = most_iterations(s, c);
    ch_body_run *r = ch__body_start(&s->body, c);

    (void)tile;
    for (int i = 0; i < s->n_carry && !c->is_repeated; i++)
        copy(carry[0] + s->offset[i], c->in[i], s->bytes[i]);
    for (int i = s->n_carry + s->n_x; i < s->body.n_in; i++)
        r->in[i] = c->in[i + s->counted];
    for (; r->iteration < most; r->iteration++) {
        int64_t     t = r->iteration;
        const char *now = carry[t & 1];
        ch_status   rc;

        if (!r->is_blocked && s->stop > 0 && !*(const bool *)(now + s->offset[s->stop - 1]))
            break;
        if (!r->is_blocked)
            begin_iteration(s, c, r, carry, s->reverse ? most - 1 - t : t);
        rc = ch__body_run(r);
        if (rc != CH_OK)
            return rc;
    }
    if (s->clears_rest)
        clear_rest(s, c, r->iteration);
    if (s->wants_count)
        memcpy(c->out[s->n_carry + s->n_y + s->stop - 1], &r->iteration, sizeof(r->iteration));
    for (int i = 0; i < s->n_carry; i++)
        copy(c->out[i], carry[r->iteration & 1] + s->offset[i], s->bytes[i]);
    return CH_OK;
}

/* A carry lies alike in all iterations, and so does its trace. The stop carry and the count of
 * iterations are on every core. */
static void scan_ties(const ch_node *n, ch_body_ties *t)
{
    const scan_attrs *a = ch__attrs(n);
    int               n_carry = (int)a->n_carry, n_slices = n_carry + (int)a->n_x;
    int               n_out = a->body->n_outputs;

    t->iterations = is_while(a) ? -1 : a->length.dim[0].n;
    for (int i = 0; i < a->body->n_inputs; i++)
        ch__tie_in(t, i < n_slices ? i : i + a->counted, 0, i, i >= n_carry && i < n_slices);
    for (int i = 0; i < n_out; i++)
        ch__tie_out(t, i, 0, true, i, i >= n_carry);
    for (int i = 0; i < n_carry; i++) {
        ch__tie_out(t, i, 0, false, i, false);
        if (i != a->stop - 1)
            ch__tie_out(t, n_out + i, 0, false, i, true);
    }
}

static const ch_kernel scan_plain = {"bodies", .prepare = scan_prepare, .run = scan_run,
                                     .drop = scan_drop};

static void scan_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[]);

const ch_op ch__op_scan = {
    .name = "scan",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_CAN_FAIL | CH_OP_READS_ENV,
    .attrs = scan_rows,
    .attrs_bytes = sizeof(scan_attrs),
    .infer = scan_infer,
    .replicated = "its body is divided call by call (spmd/body.c)",
    .ties = scan_ties,
    .grad = scan_grad,
    .kernels = (const ch_kernel *const[]){&scan_plain, NULL},
};

/* The arguments of record_scan. */
typedef struct scan_parts {
    int             n_carry, n_x, n_y;
    ch_node *const *carry;
    ch_node *const *x; /* n_x nodes; if counted, the count of iterations after them */
    ch_dim          length;
    bool            reverse, counted;
    int             stop; /* as in scan_attrs */
} scan_parts;

/* Records the body with `record` and `arg`, and then the call. Sets `out` to the last carries
 * and the ys. */

static void record_scan(ch_step *s, const scan_parts *p, ch_body_fn record, void *arg,
                        ch_node **out)
{
    int        n = p->n_carry + p->n_x, n_captures = 0;
    ch_node  **captures = NULL;
    ch_dtype  *dtype = ch__arena_alloc(&s->graph->arena, ((size_t)n + 1) * sizeof(*dtype));
    ch_dims   *dims = ch__arena_alloc(&s->graph->arena, ((size_t)n + 1) * sizeof(*dims));
    scan_attrs a = {.n_carry = p->n_carry,
                    .n_x = p->n_x,
                    .length = {1, {p->length}},
                    .reverse = p->reverse,
                    .stop = p->stop,
                    .counted = p->counted};

    if (dtype == NULL || dims == NULL) {
        ch__step_record_error(s, ch__fail_memory("scan"), NULL);
        return;
    }
    for (int i = 0; i < n; i++) {
        const ch_node *from = i < p->n_carry ? p->carry[i] : p->x[i - p->n_carry];

        dtype[i] = from->dtype;
        dims[i] = from->dims;
        if (i >= p->n_carry) {
            dims[i].rank--;
            memmove(dims[i].dim, dims[i].dim + 1, (CH_MAX_RANK - 1) * sizeof(ch_dim));
        }
    }
    a.body = ch__step_body(s, "body", n, dtype, dims, record, arg, &n_captures, &captures);
    if (a.body != NULL)
        ch__record_call(s, &ch__op_scan, &a, p->n_carry, p->carry, p->n_x + p->counted, p->x,
                        n_captures, captures, p->n_carry + p->n_y, out);
    ch_graph_unref(a.body);
}

/* The argument of record_scan_body: a function of the user. */
typedef struct scan_record {
    ch_scan_fn fn;
    void      *arg;
    int        n_carry, n_y;
} scan_record;

/* Calls the user's function to record a body. */
static void record_scan_body(ch_step *s, int n, ch_node *const *in, void *arg)
{
    scan_record *r = arg;
    ch_node     *next[CH_MAX_OUT] = {0}, *y[CH_MAX_OUT] = {0};
    ch_site      mine = ch__step_save_site(s);

    (void)n;
    r->fn(s, r->arg, in, in + r->n_carry, next, y);
    ch__step_restore_site(s, mine);
    for (int i = 0; i < r->n_carry; i++)
        ch__body_out(s, next[i] != NULL && next[i]->weak ? ch_cast(next[i], in[i]->dtype)
                                                         : next[i]);
    for (int i = 0; i < r->n_y; i++)
        ch__body_out(s, y[i]);
}

/* Returns true if n is in [0, most]. Otherwise records an error in the step, as the functions
 * below do. `what` names the number. */
static bool check_number(ch_step *s, const char *op, const char *what, int64_t n, int64_t most)
{
    if (n >= 0 && n <= most)
        return true;
    ch__step_record_error(s,
                          ch__fail(CH_INVALID_ARGUMENT, "%s: %s is %lld, want %s%lld", op, what,
                                   (long long)n, n < 0 ? "at least " : "at most ",
                                   (long long)(n < 0 ? 0 : most)),
                          NULL);
    return false;
}

/* Returns true if the list has n nodes and, if `cut`, none is a scalar. */
static bool check_values(ch_step *s, const char *op, const char *what, int n,
                         ch_node *const *list, bool cut)
{
    for (int i = 0; i < n; i++) {
        const ch_node *x = list != NULL ? list[i] : NULL;

        if (x != NULL && (!cut || x->dims.rank > 0))
            continue;
        ch__step_record_error(s,
                              ch__fail(CH_INVALID_ARGUMENT, "%s: %s %d is %s", op, what, i,
                                       x == NULL ? "NULL" : "a scalar, which has no slices"),
                              NULL);
        return false;
    }
    return true;
}

/* Returns the number of entries of the caller's result list to write. Returns 0 if n is larger
 * than any loop allows, because then the length of the list is not known. */
static int n_written(int n)
{
    return n <= CH_MAX_OUT ? n : 0;
}

void ch_scan(ch_step *s, const ch_scan_spec *spec, ch_scan_fn fn, void *arg,
             ch_node *const *carry, ch_node *const *x, ch_node **last, ch_node **y)
{
    scan_record r = {.fn = fn, .arg = arg};
    scan_parts  p = {.carry = carry, .x = x};
    ch_node    *out[CH_MAX_OUT] = {0};
    const void *before;

    if (!ch__step_want(s, spec != NULL && fn != NULL, "scan", "the description or the function",
                       __builtin_return_address(0)))
        return;
    r.n_carry = p.n_carry = spec->n_carry;
    r.n_y = p.n_y = spec->n_y;
    p.n_x = spec->n_x;
    p.reverse = spec->reverse;
    p.length = ch__dim(spec->length);
    before = ch__step_begin(s);
    if (s->rc == CH_OK && check_number(s, "scan", "n_carry", spec->n_carry, CH_MAX_OUT / 2) &&
        check_number(s, "scan", "n_x", spec->n_x, INT_MAX) &&
        check_number(s, "scan", "n_y", spec->n_y, CH_MAX_OUT - spec->n_carry * 2) &&
        ch__fits_outputs(s, "scan", spec->n_carry * 2 + spec->n_y) &&
        check_values(s, "scan", "carry", spec->n_carry, carry, false) &&
        check_values(s, "scan", "x", spec->n_x, x, true) &&
        (spec->n_x > 0 || check_number(s, "scan", "length", spec->length, INT64_MAX))) {
        if (spec->n_x > 0)
            p.length = x[0]->dims.dim[0];
        record_scan(s, &p, record_scan_body, &r, out);
    }
    for (int i = 0; i < n_written(spec->n_carry) && last != NULL; i++)
        last[i] = s->rc == CH_OK ? out[i] : NULL;
    for (int i = 0; i < n_written(spec->n_y) && y != NULL; i++)
        y[i] = s->rc == CH_OK ? out[spec->n_carry + i] : NULL;
    ch__step_end(s, before);
}

/* ---- the gradient of a scan ----
 *
 * The backward scan goes through the iterations in the opposite direction.
 *   - Carries: the gradients of the float carries, and the sums of the gradients of the float
 *     captures.
 *   - xs: the trace, the xs, the gradients of the ys, the gradients of the trace. A gradient
 *     that does not exist is left out.
 *   - ys: the gradients of the float xs.
 *
 * The stop carry has no trace. Every iteration made began with true in the stop carry. So the
 * backward body uses the first value of the stop carry, which is true if there was an
 * iteration. */

typedef struct scan_backward {
    const ch_node  *call; /* the scan that is differentiated */
    const ch_graph *body; /* its body */
    int             n_carry, n_x, n_y, n_captures;
    int             stop;          /* as in scan_attrs */
    int             first_capture; /* index among the inputs of the call */
    int             n_float_carry, n_float_x, n_float_capture;
    const bool     *has_dy;     /* for each y: it has a gradient */
    const bool     *has_dtrace; /* for each carry: its trace has a gradient */
} scan_backward;

/* Sets the gradients of the body's outputs, from the carries and the slices dy of the backward
 * scan. */
static void collect_douts(const scan_backward *b, ch_node *const *carry, ch_node *const *dy,
                          ch_node **dout)
{
    for (int i = 0, k = 0; i < b->n_carry; i++)
        if (ch_dtype_is_float(b->body->output[i].node->dtype))
            dout[i] = carry[k++];
    for (int i = 0, k = 0; i < b->n_y; i++)
        if (b->has_dy[i])
            dout[b->n_carry + i] = dy[k++];
}

/* Records the gradients of the float carries that an iteration began with. The body used a
 * carry, and the trace contains it, so the gradient is a sum of both. */
static void record_carry_gradients(ch_step *s, const scan_backward *b, ch_node *const *d,
                                   ch_node *const *dy)
{
    ch_node *const *dtrace = dy;

    for (int i = 0; i < b->n_y; i++)
        dtrace += b->has_dy[i];
    for (int i = 0, k = 0; i < b->n_carry; i++)
        if (ch_dtype_is_float(b->body->input[i]->dtype)) {
            ch__body_out(s, b->has_dtrace[i] ? ch_add(d[k], *dtrace++) : d[k]);
            k++;
        }
}

/* Records the body of the backward scan. */
static void record_backward(ch_step *s, int n, ch_node *const *in, void *arg)
{
    scan_backward  *b = arg;
    int             n_in = b->n_carry + b->n_x + b->n_captures;
    int             n_sums = b->n_float_carry + b->n_float_capture;
    ch_node *const *slice = in + n_sums; /* of the trace, the xs, the dys and the dtraces */
    ch_node       **fwd = ch__step_nodes(s, "gradient", n_in * 2 + 2), **d = fwd + n_in + 1;
    ch_node        *dout[CH_MAX_OUT] = {0};

    (void)n;
    if (fwd == NULL)
        return;
    for (int i = 0; i < b->n_carry + b->n_x; i++)
        fwd[i] = i == b->stop - 1 ? ch__step_capture(s, b->call->in[i]) : *slice++;
    for (int i = 0; i < b->n_captures; i++)
        fwd[b->n_carry + b->n_x + i] = ch__step_capture(s, b->call->in[b->first_capture + i]);
    collect_douts(b, in, slice, dout);
    ch__body_gradient(s, b->body, fwd, dout, d);
    record_carry_gradients(s, b, d, slice);
    for (int i = 0; i < b->n_float_capture; i++)
        ch__body_out(s,
                     ch_add(in[b->n_float_carry + i], d[b->n_float_carry + b->n_float_x + i]));
    for (int i = 0; i < b->n_float_x; i++)
        ch__body_out(s, d[b->n_float_carry + i]);
}

/* Returns true if the trace of scan n fits in the memory of this machine. Otherwise records an
 * error in the step. A size that is a symbol counts as 1; for a while, check_counted checks
 * again when sizes are numbers. */
static bool check_trace(ch_step *s, const ch_node *n)
{
    const scan_attrs *a = n->attrs;
    int64_t           need = 0;
    ch_status         rc;

    for (int i = 0; i < a->n_carry; i++)
        if (i != a->stop - 1)
            add_bytes(&need, a->length.dim[0].n, n[i].dtype, &n[i].dims, 0);
    rc = check_memory(a, need);
    if (rc != CH_OK)
        ch__step_record_error(s, rc, NULL);
    return rc == CH_OK;
}

static void scan_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const scan_attrs *a = n->attrs;
    const ch_graph   *g = a->body;
    int               n_carry = (int)a->n_carry, n_x = (int)a->n_x, k = 0, n_slices = 0;
    int               first_capture = n_carry + n_x + a->counted;
    bool              has_dy[CH_MAX_OUT] = {0}, has_dtrace[CH_MAX_OUT] = {0};
    scan_backward     b = {n,
                           g,
                           n_carry,
                           n_x,
                           g->n_outputs - n_carry,
                           n->n_in - first_capture,
                           (int)a->stop,
                           first_capture,
                           ch__count_floats(g, 0, n_carry),
                           ch__count_floats(g, n_carry, n_carry + n_x),
                           ch__count_floats(g, n_carry + n_x, g->n_inputs),
                           has_dy,
                           has_dtrace};
    ch_node         **nodes = ch__step_nodes(s, "gradient", (n->n_in + n->n_out) * 2 + 2);
    ch_node         **carry = nodes, **x = nodes + n->n_in + n->n_out, *out[CH_MAX_OUT] = {0};
    scan_parts        p = {.n_carry = b.n_float_carry + b.n_float_capture,
                           .n_y = b.n_float_x,
                           .length = a->length.dim[0],
                           .reverse = !a->reverse,
                           .counted = a->counted || a->stop > 0};

    if (nodes == NULL)
        return;
    for (int i = 0; i < n_carry; i++)
        if (ch_dtype_is_float(n[i].dtype))
            carry[k++] = dout[i] != NULL ? dout[i] : ch__full_like(ch__out(n, i), 0);
    for (int i = first_capture; i < n->n_in; i++)
        if (ch_dtype_is_float(n->in[i]->dtype))
            carry[k++] = ch__full_like(n->in[i], 0);
    for (int i = 0; i < n_carry; i++)
        if (i != a->stop - 1)
            x[n_slices++] = ch__out(n, g->n_outputs + i);
    for (int i = 0; i < n_x; i++)
        x[n_slices++] = n->in[n_carry + i];
    for (int i = 0; i < b.n_y; i++)
        if ((has_dy[i] = dout[n_carry + i] != NULL))
            x[n_slices++] = dout[n_carry + i];
    for (int i = 0; i < n_carry; i++)
        if ((has_dtrace[i] = dout[g->n_outputs + i] != NULL))
            x[n_slices++] = dout[g->n_outputs + i];
    if (p.counted)
        x[n_slices] =
            a->counted ? n->in[n_carry + n_x] : ch__out(n, g->n_outputs + (int)a->stop - 1);
    p.carry = carry;
    p.x = x;
    p.n_x = n_slices;
    if (s->rc == CH_OK && check_trace(s, n) &&
        ch__fits_outputs(s, "the gradient of scan", p.n_carry * 2 + p.n_y))
        record_scan(s, &p, record_backward, &b, out);
    k = 0;
    for (int i = 0; i < n_carry; i++)
        if (ch_dtype_is_float(n->in[i]->dtype))
            din[i] = out[k++];
    for (int i = first_capture; i < n->n_in; i++)
        if (ch_dtype_is_float(n->in[i]->dtype))
            din[i] = out[k++];
    for (int i = n_carry; i < n_carry + n_x; i++)
        if (ch_dtype_is_float(n->in[i]->dtype))
            din[i] = out[k++];
}

/* ---- while: a scan with a stop carry, which is its last carry ---- */

/* The argument of record_while: functions of the user. */
typedef struct while_record {
    int           n;
    ch_while_test test;
    ch_while_body body;
    void         *arg;
} while_record;

/* Calls the user's function to record the test. Returns NULL and records an error in the step
 * if the result is not a bool scalar. */
static ch_node *record_test(ch_step *s, const while_record *w, ch_node *const *state)
{
    ch_site  mine = ch__step_save_site(s);
    ch_node *test = w->test(s, w->arg, state);

    ch__step_restore_site(s, mine);
    if (test != NULL && test->dtype == CH_BOOL && test->dims.rank == 0)
        return test;
    ch__step_record_error(
        s,
        ch__fail(CH_INVALID_ARGUMENT, "while: the test returns %s, want bool()",
                 test != NULL ? ch__type_text(test->dtype, &test->dims) : "NULL"),
        NULL);
    return NULL;
}

/* Returns value i of the body as the next iteration gets it; a weak value is cast. Returns NULL
 * and records an error in the step if its dtype or shape differs from that of the input. */
static ch_node *next_value(ch_step *s, int i, ch_node *next, const ch_node *in)
{
    if (next != NULL && next->weak)
        next = ch_cast(next, in->dtype);
    if (next != NULL && next->dtype == in->dtype && ch__dims_same(&next->dims, &in->dims))
        return next;
    ch__step_record_error(
        s,
        ch__fail(CH_INVALID_ARGUMENT,
                 "while: value %d goes into the body as %s and comes out as %s", i,
                 ch__type_text(in->dtype, &in->dims),
                 next != NULL ? ch__type_text(next->dtype, &next->dims) : "NULL"),
        NULL);
    return NULL;
}

/* Records the body: an iteration, then the test of its results. The scan and its gradient make
 * an iteration only if the test before it was true. */
static void record_while(ch_step *s, int n, ch_node *const *in, void *arg)
{
    while_record *w = arg;
    ch_node      *next[CH_MAX_OUT] = {0};
    ch_site       mine = ch__step_save_site(s);

    (void)n;
    w->body(s, w->arg, in, next);
    ch__step_restore_site(s, mine);
    for (int i = 0; i < w->n; i++) {
        next[i] = next_value(s, i, next[i], in[i]);
        ch__body_out(s, next[i]);
    }
    ch__body_out(s, record_test(s, w, next));
}

void ch_while(ch_step *s, int n, int64_t limit, ch_while_test test, ch_while_body body,
              void *arg, ch_node *const *state, ch_node **last)
{
    while_record w = {n, test, body, arg};
    ch_node     *carry[CH_MAX_OUT], *out[CH_MAX_OUT] = {0};
    scan_parts   p = {.carry = carry, .length = ch__dim(limit)};
    const void  *before;

    if (!ch__step_want(
            s, test != NULL && body != NULL && (n <= 0 || (state != NULL && last != NULL)),
            "while", "the test, the body or a list of values", __builtin_return_address(0)))
        return;
    before = ch__step_begin(s);
    if (s->rc == CH_OK && check_number(s, "while", "n", n, CH_MAX_OUT / 2 - 1) &&
        check_number(s, "while", "limit", limit, INT64_MAX) &&
        check_values(s, "while", "value", n, state, false)) {
        p.n_carry = p.stop = n + 1;
        for (int i = 0; i < n; i++)
            carry[i] = state[i];
        carry[n] = record_test(s, &w, state);
        if (carry[n] != NULL)
            record_scan(s, &p, record_while, &w, out);
    }
    for (int i = 0; i < n_written(n); i++)
        last[i] = s->rc == CH_OK ? out[i] : NULL;
    ch__step_end(s, before);
}
