/* test/ops/calls.c -- samples call by call (calls.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- memory of values ---- */

typedef struct block {
    struct block *next;
    void         *data;
} block;

static block *blocks;

void *t_block(int64_t bytes)
{
    block *b = calloc(1, sizeof(*b));

    assert_non_null(b);
    b->data = ch__alloc_aligned((size_t)bytes + 1);
    assert_non_null(b->data);
    memset(b->data, 0xff, (size_t)bytes + 1);
    b->next = blocks;
    blocks = b;
    return b->data;
}

const void *t_last_block(void)
{
    return blocks;
}

void t_forget_blocks(const void *last)
{
    while (blocks != last) {
        block *b = blocks;

        blocks = b->next;
        ch__free_aligned(b->data);
        free(b);
    }
}

/* ---- running a graph call by call ---- */

/* Returns the values of the inputs of a call. */
static const void **inputs_of(const t_values *v, const ch_node *n)
{
    const void **in = t_alloc(((size_t)n->n_in + 1) * sizeof(*in));

    for (int i = 0; i < n->n_in; i++)
        in[i] = v->at[n->in[i]->id];
    return in;
}

ch_status t_run_calls(t_values *v)
{
    ch_status rc = CH_OK;

    for (const ch_node *n = v->graph->first; n != NULL && rc == CH_OK; n = ch__next(n)) {
        void *out[CH_MAX_OUT];

        if (v->at[n->id] != NULL)
            continue;
        if (n->op == ch__roles.constant) {
            v->at[n->id] = t_block(ch__bytes(n));
            memcpy(v->at[n->id],
                   ch_tensor_data(((const ch_constant_attrs *)ch__attrs(n))->value),
                   (size_t)ch__bytes(n));
            continue;
        }
        for (int i = 0; i < n->n_out; i++)
            v->at[n[i].id] = out[i] = t_block(ch__bytes(&n[i]));
        rc = ch__call_run(n, ch__kernel_for(n), inputs_of(v, n), out, &v->env, NULL);
    }
    return rc;
}

/* Sets *v to the graph that f has recorded, specialised for the inputs of the case, and its
 * values. Returns false if a call fails. */
static bool evaluate(t_case *c, ch_function *f, t_values *v)
{
    static const int variant = 0;
    const ch_graph  *g = ch_function_graph(f);
    ch_shape         shape[T_MAX_IN];
    void            *data[T_MAX_IN];
    const ch_shape  *shapes = shape;
    ch_signature     sig = {
            .n_replicas = 1, .n_variants = 1, .variant = &variant, .shape = &shapes};
    int n = 0;

    for (int i = 0; i < c->n_in[c->level]; i++)
        if (!c->in[i].is_static) {
            shape[n] = c->in[i].value.shape;
            data[n++] = ch_tensor_data_mut(c->in[i].tensor);
        }
    *v = (t_values){.c = c, .env = {.n_replicas = 1, .step = c->step, .seed = c->seed}};
    v->env.global_rows = n > 0 && shape[0].rank > 0 ? shape[0].dim[0] : 1;
    if (ch__specialise(g, &sig, &v->graph) != CH_OK)
        t_fail(c, "specialised: %s", ch_error_message());
    v->at = t_alloc(((size_t)v->graph->n_values + 1) * sizeof(*v->at));
    for (int i = 0; i < v->graph->n_inputs; i++)
        v->at[v->graph->input[i]->id] = data[i];
    for (int i = 0; i < v->graph->n_resources; i++) {
        const ch_resource *r = &v->graph->resource[i];

        if (r->read != NULL)
            v->at[r->read->id] = ch_tensor_data_mut(((const t_made *)r->key)->tensor);
    }
    return t_run_calls(v) == CH_OK;
}

/* ---- comparing ---- */

t_array t_array_of(const ch_node *n, const void *data)
{
    t_array a;
    size_t  size = ch_dtype_bytes(n->dtype);

    t_out(&a, ch__shape(n));
    for (int64_t k = 0; k < ch__count(n); k++)
        a.v[k] = ch__load(n->dtype, (const char *)data + (size_t)k * size);
    return a;
}

static bool is_whole(const ch_node *n, const void *data)
{
    t_array a;

    if (n->dtype == CH_STR)
        return true;
    if (n->dtype == CH_BF16 || n->dtype == CH_F16) /* their partial sums are rounded */
        return false;
    a = t_array_of(n, data);
    for (int64_t k = 0; k < ch__count(n); k++)
        if (!(fabs(a.v[k]) < 0x1p20 && a.v[k] == rint(a.v[k])))
            return false;
    return true;
}

bool t_is_exact(const t_values *v, const ch_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (!is_whole(n->in[i], v->at[n->in[i]->id]))
            return false;
    for (int i = 0; i < n->n_out; i++)
        if (!is_whole(&n[i], v->at[n[i].id]))
            return false;
    return true;
}

double t_rms(const t_array *a)
{
    int64_t n = ch_shape_count(a->shape);
    double  sum = 0;

    for (int64_t k = 0; k < n; k++)
        sum += a->v[k] * a->v[k];
    return n > 0 && isfinite(sum) ? sqrt(sum / (double)n) : 0;
}

enum { MOST_ELEMENTS = 1 << 13 };

bool t_is_large(const ch_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (ch__count(n->in[i]) > MOST_ELEMENTS)
            return true;
    for (int i = 0; i < n->n_out; i++)
        if (ch__count(&n[i]) > MOST_ELEMENTS)
            return true;
    return false;
}

/* ---- samples ---- */

t_sample t_in_whole_numbers(const t_sample *x)
{
    t_sample y = *x;

    for (int i = 0; i < y.n_in; i++)
        if (y.in[i].fill == T_UNIT || y.in[i].fill == T_POSITIVE)
            y.in[i].fill = T_SMALL;
    return y;
}

/* Passes all calls of the case at a level to `see`. Returns the results; NULL: the run was
 * refused. */
static t_result *see_level(t_case *c, int level, bool may_fail, double tolerance,
                           void (*see)(t_values *v, double tolerance))
{
    ch_function *f = t_case_function(c, level);
    ch_tuple    *in = t_arguments(c);
    t_result    *r = NULL;
    t_values     v;
    ch_status    rc;

    if (level > 0) /* the weights have a number of rows */
        ch_function_static_rows(f);
    rc = t_try(c, f, in, &r);
    if (rc == CH_OK && evaluate(c, f, &v)) {
        see(&v, tolerance);
        ch_graph_unref(v.graph);
    } else if (!may_fail) {
        t_fail(c, "level %d: %s", level, ch_error_message());
    }
    ch_tuple_unref(in);
    ch_function_unref(f);
    return r;
}

static bool has_gradient(const t_sample *x, ch_dtype dtype)
{
    return (x->flags & T_NO_GRAD) == 0 && ch_dtype_is_float(dtype);
}

void t_see_calls(const t_sample *x, ch_dtype dtype, bool may_fail, bool with_gradients,
                 void (*see)(t_values *v, double tolerance))
{
    t_case   *c = t_case_of(x, dtype, CH_I64, 0);
    t_result *low = see_level(c, 0, may_fail, x->tolerance, see);

    if (with_gradients && low != NULL && has_gradient(x, dtype)) {
        t_case_raise(c, low);
        (void)see_level(c, 1, may_fail, x->tolerance, see);
    }
    t_case_drop(c);
}

ch_dtype t_dtype_at(const t_sample *x, int i)
{
    static const ch_dtype order[] = {CH_F32, CH_F64,  CH_I64, CH_I32, CH_U8,
                                     CH_I8,  CH_BF16, CH_F16, CH_BOOL};

    for (size_t k = 0; k < sizeof(order) / sizeof(order[0]); k++)
        if ((x->dtypes >> order[k] & 1) != 0 && i-- == 0)
            return order[k];
    return CH_STR;
}

/* ---- the list of tests ---- */

static int forget(void **state)
{
    (void)state;
    t_forget_blocks(NULL);
    t_forget();
    return 0;
}

static struct CMUnitTest new_test(const t_sample *x, void (*each)(void **state))
{
    struct CMUnitTest t = {.test_func = each, .teardown_func = forget};
    size_t            size = strlen(x->op) + strlen(x->name) + 3;
    char             *text = malloc(size);

    if (text == NULL)
        abort();
    (void)snprintf(text, size, "%s: %s", x->op, x->name);
    t.name = text;
    memcpy(&t.initial_state, &x, sizeof(x));
    return t;
}

int t_run_sample_tests(const t_family *const *families, const t_sample_tests *tests)
{
    size_t             n = 0, n_samples;
    struct CMUnitTest *t;
    int                rc;

#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 1 << 30); /* keep large blocks, because they are needed again */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
    for (int i = 0; families[i] != NULL; i++)
        for (const t_sample *x = families[i]->samples; x->op != NULL; x++)
            n++;
    t = calloc(n + 1, sizeof(*t));
    if (t == NULL)
        abort();
    n = 0;
    for (int i = 0; families[i] != NULL; i++)
        for (const t_sample *x = families[i]->samples; x->op != NULL; x++)
            t[n++] = new_test(x, tests->each);
    n_samples = n;
    if (tests->last != NULL)
        t[n++] = (struct CMUnitTest){.name = "every op", .test_func = tests->last};
    rc = _cmocka_run_group_tests(tests->name, t, n, tests->start, tests->stop);
    for (size_t i = 0; i < n_samples; i++) {
        char *name;

        memcpy(&name, &t[i].name, sizeof(name));
        free(name);
    }
    free(t);
    return rc;
}
