/* test/ops/sample.c -- fills, records, runs and compares cases of samples (harness.h).
 *
 * Cases are filled from a fixed seed, rounded to their dtype, recorded at a level, and run on a
 * device or as a single program. All memory of a test is in a list that t_forget frees.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/step.h"
#include "harness.h"

/* ---- memory of a test ---- */

typedef struct block {
    struct block *next;
    max_align_t   data[];
} block;

static block *blocks;

void *t_alloc(size_t bytes)
{
    block *b = calloc(1, sizeof(*b) + bytes + 1);

    assert_non_null(b);
    b->next = blocks;
    blocks = b;
    return b->data;
}

void t_forget(void)
{
    while (blocks != NULL) {
        block *b = blocks;

        blocks = b->next;
        free(b);
    }
}

void t_out(t_array *out, ch_shape shape)
{
    int64_t n = ch_shape_count(shape);

    assert_true(n >= 0);
    out->shape = shape;
    out->v = t_alloc((size_t)n * sizeof(double));
}

static const t_case *running; /* the last case that ran */

void t_expect(bool holds, const char *format, ...)
{
    char    text[1024];
    va_list args;

    if (holds)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    t_fail(running, "%s", text);
}

/* ---- filling inputs ---- */

uint64_t t_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double t_uniform(uint64_t *state)
{
    return (double)(t_bits(state) >> 11) * 0x1p-53;
}

/* Returns a number in (-1, 1) that is not close to a point where functions are not smooth. */
static double unit(uint64_t *state)
{
    for (;;) {
        double x = 2 * t_uniform(state) - 1;

        if (fabs(x) > 0.05 && fabs(fabs(x) - 0.5) > 0.05)
            return x;
    }
}

static void fill_distinct(int64_t n, double *v, ch_dtype dtype, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t k = (int64_t)(t_bits(state) % (uint64_t)(i + 1));
        double  x = (double)(i - n / 2);

        v[i] = v[k];
        v[k] = ch_dtype_is_float(dtype) ? x / 4 + 0.125 : x;
    }
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void fill(const t_input *in, int64_t n, double *v, ch_dtype dtype, uint64_t *state)
{
    int limit = in->limit > 0 ? in->limit : 1;

    for (int64_t i = 0; i < n; i++)
        switch (in->fill) {
        case T_UNIT:
            v[i] = unit(state);
            break;
        case T_POSITIVE:
            v[i] = 0.2 + 1.8 * t_uniform(state);
            break;
        case T_DISTINCT:
            break;
        case T_IDS:
        case T_SORTED:
        case T_SPLITS:
            v[i] = (double)(t_bits(state) % (uint64_t)limit);
            break;
        case T_BOOL:
            v[i] = (double)(t_bits(state) & 1);
            break;
        case T_SMALL:
            v[i] = (double)(1 + t_bits(state) % 4);
            if ((t_bits(state) & 1) != 0 && dtype != CH_U8 && dtype != CH_BOOL)
                v[i] = -v[i];
            break;
        }
    if (in->fill == T_DISTINCT)
        fill_distinct(n, v, dtype, state);
    if (in->fill == T_SORTED || in->fill == T_SPLITS)
        qsort(v, (size_t)n, sizeof(*v), by_size);
    if (in->fill == T_SPLITS && n > 0)
        v[0] = 0;
}

/* ---- cases ---- */

void t_set_input(t_case *c, int i, ch_dtype dtype, ch_shape shape, const double *value)
{
    t_made *m = &c->in[i];
    size_t  size = ch_dtype_bytes(dtype);
    int64_t n = ch_shape_count(shape);
    char   *at;

    ch_tensor_unref(m->tensor);
    m->tensor = NULL;
    m->dtype = dtype;
    assert_int_equal(ch_tensor_new(dtype, shape, &m->tensor), CH_OK);
    at = ch_tensor_data_mut(m->tensor);
    t_out(&m->value, shape);
    for (int64_t k = 0; k < n; k++, at += size) {
        if (value != NULL)
            ch__store(dtype, at, value[k]);
        m->value.v[k] = ch__load(dtype, at);
    }
}

static void make_input(t_case *c, int i, const t_input *in, ch_dtype ids, int rows)
{
    ch_dtype dtype = in->is_ids ? ids : in->fill == T_BOOL ? CH_BOOL : c->dtype;
    ch_shape shape = in->shape;
    uint64_t state = 0x5eed + (uint64_t)i * 77;
    double  *v;

    if (shape.rank > 0 && !in->is_static)
        shape.dim[0] = rows < 0 ? 0 : shape.dim[0] + rows;
    v = t_alloc((size_t)ch_shape_count(shape) * sizeof(*v));
    fill(in, ch_shape_count(shape), v, dtype, &state);
    c->in[i].is_static = in->is_static;
    t_set_input(c, i, dtype, shape, v);
}

t_case *t_case_of(const t_sample *x, ch_dtype dtype, ch_dtype ids, int rows)
{
    t_case *c = t_alloc(sizeof(*c));

    c->op = x->op;
    c->name = x->name;
    c->record = x->record;
    c->flags = x->flags;
    c->dtype = dtype;
    c->n_in[0] = x->n_in;
    c->n_out[0] = x->n_out > 0 ? x->n_out : 1;
    for (int i = 0; i < x->n_in; i++)
        make_input(c, i, &x->in[i], ids, rows);
    return c;
}

t_case *t_case_of_refusal(const t_refusal *x, ch_dtype ids)
{
    t_sample s = {.op = x->op, .name = x->name, .n_in = x->n_in, .record = x->record};

    memcpy(s.in, x->in, sizeof(s.in));
    return t_case_of(&s, x->dtype, ids, 0);
}

t_case *t_case_as(const t_case *c, ch_dtype dtype)
{
    t_case *to = t_alloc(sizeof(*to));

    *to = *c;
    to->dtype = dtype;
    for (int i = 0; i < c->n_in[c->level]; i++) {
        const t_made *m = &c->in[i];

        to->in[i].tensor = NULL;
        t_set_input(to, i, t_smooth(c, m->dtype) ? dtype : m->dtype, m->value.shape,
                    m->value.v);
    }
    return to;
}

void t_case_drop(t_case *c)
{
    for (int i = 0; i < T_MAX_IN; i++) {
        ch_tensor_unref(c->in[i].tensor);
        c->in[i].tensor = NULL;
    }
}

bool t_smooth(const t_case *c, ch_dtype dtype)
{
    return dtype == c->dtype && ch_dtype_is_float(dtype);
}

static int count_smooth(const t_case *c, int level)
{
    int n = 0;

    for (int i = 0; i < c->n_in[level]; i++)
        n += t_smooth(c, c->in[i].dtype);
    return n;
}

void t_case_raise(t_case *c, const t_result *low)
{
    int      n = c->n_in[c->level], outs = 0, smooth = count_smooth(c, c->level);
    uint64_t state = 0xd1ce + (uint64_t)c->level;

    for (int o = 0; o < low->n; o++) {
        int64_t count = ch_shape_count(low->value[o].shape);
        double *w;

        if (!t_smooth(c, low->dtype[o]))
            continue;
        if (n == T_MAX_IN || (outs + 2) * smooth > T_MAX_OUT)
            t_fail(c, "its gradient has more inputs or outputs than the harness can hold");
        w = t_alloc((size_t)count * sizeof(*w));
        for (int64_t k = 0; k < count; k++)
            w[k] = unit(&state);
        c->in[n].is_static = true;
        t_set_input(c, n++, low->dtype[o], low->value[o].shape, w);
        outs++;
    }
    c->level++;
    c->n_in[c->level] = n;
    c->n_out[c->level] = (outs + (outs > 1)) * smooth;
}

void t_case_raise_ones(t_case *c, const t_result *low)
{
    int outs = 0;

    for (int o = 0; o < low->n; o++)
        outs += t_smooth(c, low->dtype[o]);
    c->ones = true;
    c->level++;
    c->n_in[c->level] = c->n_in[c->level - 1];
    c->n_out[c->level] = (outs + (outs > 1)) * count_smooth(c, c->level);
}

/* ---- recording ---- */

/* Records the gradient of each output of `low` with respect to each input that has a gradient.
 * If several outputs have gradients, also records the gradient of all of them at once. */
static void record_gradients(const t_case *c, int level, ch_node *const *in,
                             ch_node *const *low, ch_node **out)
{
    ch_node *x[T_MAX_IN], *sum = NULL;
    int      n_x = 0, weight = c->n_in[level - 1], n = 0;

    for (int i = 0; i < c->n_in[level - 1]; i++)
        if (t_smooth(c, c->in[i].dtype))
            x[n_x++] = in[i];
    for (int o = 0; o < c->n_out[level - 1]; o++) {
        ch_node *w, *part;

        if (low[o] == NULL || !t_smooth(c, ch_node_dtype(low[o])))
            continue;
        w = c->ones ? NULL : in[weight++];
        ch_gradients(low[o], w, n_x, x, out + n++ * n_x);
        part = ch_sum_all(c->ones ? low[o] : ch_mul(low[o], w));
        sum = sum == NULL ? part : ch_add(sum, part);
    }
    if (n > 1)
        ch_gradients(sum, NULL, n_x, x, out + n * n_x);
}

static void record_level(ch_step *s, t_case *c, int level, ch_node *const *in, ch_node **out)
{
    ch_node *low[T_LEVELS][T_MAX_OUT] = {0};

    c->record(s, in, low[0]);
    for (int k = 1; k <= level; k++)
        record_gradients(c, k, in, low[k - 1], low[k]);
    memcpy(out, low[level], sizeof(low[level]));
}

typedef struct recorder {
    t_case *c;
    int     level;
} recorder;

static bool calls(const ch_graph *g, const char *name)
{
    for (const ch_node *n = g->first; n != NULL; n = ch__next(n))
        if (strcmp(n->op->name, name) == 0)
            return true;
    return false;
}

/* Returns true if the op is in the graph or in the body of a call. */
static bool has_op(const ch_graph *g, const char *name)
{
    if (calls(g, name))
        return true;
    for (const ch_node *n = g->first; n != NULL; n = ch__next(n))
        for (const ch_attr *row = n->op->attrs; row != NULL && row->name != NULL; row++) {
            ch_graph *const *body = (const void *)((const char *)n->attrs + row->offset);

            if (row->kind == CH_ATTR_KIND_GRAPH && *body != NULL && calls(*body, name))
                return true;
        }
    return false;
}

static void record_step(ch_step *s, void *arg)
{
    recorder *r = arg;
    t_case   *c = r->c;
    ch_node  *in[T_MAX_IN], *out[T_MAX_OUT] = {0};

    for (int i = 0, k = 0; i < c->n_in[c->level]; i++) {
        t_made *m = &c->in[i];
        char    name[16];

        snprintf(name, sizeof(name), "in%d", i);
        in[i] = m->is_static ? ch__step_read(s, m, name, m->dtype, m->value.shape)
                             : ch_step_in(s, k++);
    }
    record_level(s, c, r->level, in, out);
    c->lacks_op = !has_op(s->graph, c->op);
    for (int i = 0; i < c->n_out[r->level]; i++)
        ch_step_out(s, NULL, out[i]);
}

ch_function *t_case_function(t_case *c, int level)
{
    recorder    *r = t_alloc(sizeof(*r));
    ch_function *f = NULL;

    *r = (recorder){c, level};
    assert_int_equal(ch_function_new(c->op, record_step, r, &f), CH_OK);
    return f;
}

/* ---- running ---- */

ch_tuple *t_arguments(const t_case *c)
{
    ch_tensor *t[T_MAX_IN];
    ch_tuple  *in = NULL;
    int        n = 0;

    for (int i = 0; i < c->n_in[c->level]; i++)
        if (!c->in[i].is_static)
            t[n++] = c->in[i].tensor;
    assert_int_equal(ch_tuple_of(n, t, &in), CH_OK);
    return in;
}

ch_tuple *t_arguments_ragged(const t_case *c)
{
    ch_tuple   *plain = t_arguments(c), *in = NULL;
    int         n = ch_tuple_count(plain), at = n;
    ch_value   *v[2 * T_MAX_IN];
    const char *name[2 * T_MAX_IN] = {NULL};

    for (int i = 0; i < n; i++) {
        ch_shape   s = ch_tensor_shape(ch_value_at(ch_tuple_at(plain, i), 0));
        ch_tensor *splits = NULL;
        char      *text = t_alloc(64);

        v[i] = ch_value_ref(ch_tuple_at(plain, i));
        if (s.rank == 0)
            continue;
        assert_int_equal(
            ch_tensor_copy_of(CH_I64, ch_shape_of(2), (int64_t[]){0, s.dim[0]}, &splits),
            CH_OK);
        assert_int_equal(ch_value_new(CH_PLAIN, 1, &splits, &v[at]), CH_OK);
        ch_tensor_unref(splits);
        snprintf(text, 32, "%d/values", i);
        snprintf(text + 32, 32, "%d/row_splits", i);
        name[i] = text;
        name[at++] = text + 32;
    }
    assert_int_equal(ch_tuple_new(at, v, name, &in), CH_OK);
    while (at > 0)
        ch_value_unref(v[--at]);
    ch_tuple_unref(plain);
    return in;
}

/* Finds the storage of a static input, which is recorded as a variable. */
static ch_status find_resource(void *owner, const ch_resource *r, int local, int core,
                               void **out)
{
    t_case *c = owner;
    long    i = strtol(r->name + 2, NULL, 10);

    (void)local, (void)core;
    *out = ch_tensor_data_mut(c->in[i].tensor);
    return CH_OK;
}

static t_result *new_result(int n)
{
    t_result *r = t_alloc(sizeof(*r));

    r->n = n;
    r->dtype = t_alloc((size_t)n * sizeof(*r->dtype));
    r->value = t_alloc((size_t)n * sizeof(*r->value));
    r->data = t_alloc((size_t)n * sizeof(*r->data));
    r->bytes = t_alloc((size_t)n * sizeof(*r->bytes));
    return r;
}

static void keep_output(t_result *r, int i, ch_dtype dtype, ch_shape shape, const void *data)
{
    size_t  size = ch_dtype_bytes(dtype);
    int64_t n = ch_shape_count(shape);

    r->dtype[i] = dtype;
    t_out(&r->value[i], shape);
    r->bytes[i] = (size_t)n * size;
    r->data[i] = t_alloc(r->bytes[i]);
    memcpy(r->data[i], data, r->bytes[i]);
    for (int64_t k = 0; k < n; k++)
        r->value[i].v[k] = ch__load(dtype, (const char *)data + (size_t)k * size);
}

ch_status t_try(t_case *c, ch_function *f, ch_tuple *in, t_result **out)
{
    static const ch_run_ops ops = {.resource = find_resource};
    ch_device              *device = ch_device_at(0);
    ch_run                  run = {.function = f,
                                   .owner = c,
                                   .ops = &ops,
                                   .n_local = 1,
                                   .device = &device,
                                   .first_replica = c->replica,
                                   .n_replicas = 1,
                                   .in = in,
                                   .step = c->step,
                                   .seed = c->seed};
    ch_tuple               *got = NULL;
    ch_status               rc = ch__run(&run, &got);

    if (rc == CH_OK && out != NULL) {
        *out = new_result(ch_tuple_count(got));
        for (int i = 0; i < (*out)->n; i++) {
            const ch_tensor *t = ch_value_at(ch_tuple_at(got, i), 0);

            keep_output(*out, i, ch_tensor_dtype(t), ch_tensor_shape(t), ch_tensor_data(t));
        }
    }
    ch_tuple_unref(got);
    return rc;
}

t_result *t_run(t_case *c, ch_function *f)
{
    t_result *r = NULL;
    ch_tuple *in = t_arguments(c);
    ch_status rc = t_try(c, f, in, &r);

    ch_tuple_unref(in);
    if (rc != CH_OK)
        t_fail(c, "%s: %s", ch_status_name(rc), ch_error_message());
    return r;
}

ch_status t_run_program(t_case *c, ch_program *p, ch_team *team,
                        void (*see)(void *arg, const ch_instr *i, const ch_call *call),
                        void *arg, t_result **out)
{
    const ch_graph *g = p->graph;
    const void     *input[T_MAX_IN];
    void           *output[T_MAX_OUT], *resource[T_MAX_IN];
    ch_env          env = {.n_replicas = 1, .step = c->step, .seed = c->seed, .team = team};
    ch_bind         bind = {.input = input, .output = output, .resource = resource};
    ch_instance    *x = NULL;
    ch_status       rc = ch__instance_new(p, &x);

    assert_int_equal(rc, CH_OK);
    env.replica = c->replica;
    bind.env = &env;
    bind.team = team;
    bind.see = see;
    bind.see_arg = arg;
    bind.arena = ch__alloc_aligned(p->arena_bytes + 1);
    for (int i = 0, k = 0; i < c->n_in[c->level]; i++)
        if (!c->in[i].is_static)
            input[k++] = ch_tensor_data(c->in[i].tensor);
    if (g->n_inputs > 0)
        env.global_rows = g->input[0]->dims.rank > 0 ? g->input[0]->dims.dim[0].n : 1;
    for (int i = 0; i < g->n_resources; i++)
        assert_int_equal(find_resource(c, &g->resource[i], 0, 0, &resource[i]), CH_OK);
    for (int i = 0; i < g->n_outputs; i++)
        output[i] = ch__alloc_aligned(p->output_bytes[i] + 1);
    rc = ch__instance_run(x, &bind);
    *out = new_result(g->n_outputs);
    for (int i = 0; i < g->n_outputs; i++) {
        const ch_node *n = g->output[i].node;

        keep_output(*out, i, n->dtype, ch__shape(n), output[i]);
        ch__free_aligned(output[i]);
    }
    ch__free_aligned(bind.arena);
    ch__instance_free(x);
    return rc;
}

/* ---- comparing ---- */

void t_fail(const t_case *c, const char *format, ...)
{
    char    text[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fail_msg("%s, sample \"%s\", %s: %s", c->op, c->name, ch_dtype_name(c->dtype), text);
    abort();
}

static const char *index_text(ch_shape s, int64_t k)
{
    static char text[128];
    int64_t     at[CH_MAX_RANK];
    int         used = 0;

    for (int i = s.rank - 1; i >= 0; i--) {
        at[i] = k % s.dim[i];
        k /= s.dim[i];
    }
    used = snprintf(text, sizeof(text), "(");
    for (int i = 0; i < s.rank; i++)
        used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%lld", i > 0 ? ", " : "",
                         (long long)at[i]);
    snprintf(text + used, sizeof(text) - (size_t)used, ")");
    return text;
}

static void assert_same_shape(const t_case *c, const char *how, ch_shape got, ch_shape want)
{
    char have[160], should[160];

    if (ch_shape_equal(got, want))
        return;
    ch_shape_print(got, have, sizeof(have));
    ch_shape_print(want, should, sizeof(should));
    t_fail(c, "%s: shape is %s, want %s", how, have, should);
}

void t_assert_same_bits(const t_case *c, const char *how, const t_result *got,
                        const t_result *want)
{
    if (got->n != want->n)
        t_fail(c, "%s: %d outputs, want %d", how, got->n, want->n);
    for (int i = 0; i < got->n; i++) {
        size_t size = ch_dtype_bytes(want->dtype[i]);

        assert_same_shape(c, how, got->value[i].shape, want->value[i].shape);
        if (got->dtype[i] != want->dtype[i])
            t_fail(c, "%s: output %d is %s, want %s", how, i, ch_dtype_name(got->dtype[i]),
                   ch_dtype_name(want->dtype[i]));
        if (memcmp(got->data[i], want->data[i], got->bytes[i]) == 0)
            continue;
        for (size_t k = 0; k < got->bytes[i] / size; k++)
            if (memcmp((char *)got->data[i] + k * size, (char *)want->data[i] + k * size,
                       size) != 0)
                t_fail(c, "%s: not the same bits: output %d at %s is %.17g, want %.17g", how, i,
                       index_text(got->value[i].shape, (int64_t)k), got->value[i].v[k],
                       want->value[i].v[k]);
    }
}

double t_tolerance(double asked, ch_dtype sample, ch_dtype out)
{
    double tol = asked > 0 ? asked : 1e-5, more = tol > 4e-5 ? 4 : tol > 1e-5 ? tol / 1e-5 : 1;

    if (!ch_dtype_is_float(out))
        return 0;
    if (sample == CH_BF16 || out == CH_BF16)
        return fmax(tol, more * 0x1p-7);
    if (sample == CH_F16 || out == CH_F16)
        return fmax(tol, more * 0x1p-10);
    return sample == CH_F32 || out == CH_F32 ? tol : tol * 1e-6;
}

static double typical_size(const t_array *a)
{
    double  sum = 0;
    int64_t n = ch_shape_count(a->shape), finite = 0;

    for (int64_t k = 0; k < n; k++)
        if (isfinite(a->v[k])) {
            sum += a->v[k] * a->v[k];
            finite++;
        }
    return finite > 0 ? sqrt(sum / (double)finite) : 0;
}

/* Returns x rounded and limited as a dtype of smaller range holds it. */
static double held(ch_dtype dtype, double x)
{
    double room = 0;

    ch__store(dtype, &room, x);
    return ch__load(dtype, &room);
}

void t_assert_near(const t_case *c, const char *how, ch_dtype dtype, const t_array *got,
                   const t_array *want, double tolerance)
{
    double  typical = typical_size(want);
    int64_t n = ch_shape_count(want->shape);

    assert_same_shape(c, how, got->shape, want->shape);
    for (int64_t k = 0; k < n; k++) {
        double w = want->v[k], off = fabs(got->v[k] - w);

        if (got->v[k] == w || (isnan(w) && isnan(got->v[k])) ||
            off <= tolerance * fmax(fabs(w), typical) ||
            (ch_dtype_is_float(dtype) && got->v[k] == held(dtype, w)))
            continue;
        t_fail(c, "%s: at %s it is %.9g, want %.9g; off by %.2g of %.3g, %.2g is allowed", how,
               index_text(want->shape, k), got->v[k], w, off, fmax(fabs(w), typical),
               tolerance);
    }
}
