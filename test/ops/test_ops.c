/* test/ops/test_ops.c -- runs the checks of all samples of a family.
 *
 * The program is built once for each family, which T_FAMILY names. Each sample has a test of
 * results, a test of gradients and a test of allocation failures; each refusal is a test.
 * Finally, the calls of the samples are recorded again with random shapes, dtypes, ids and
 * attributes. These must give a result, or an error with a message.
 *
 * SPDX-License-Identifier: Apache-2.0 */
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

#include "base/config.h"
#include "base/mem.h"
#include "base/thread.h"
#include "graph/attr.h"
#include "graph/room.h"
#include "graph/step.h"
#include "harness.h"

static const t_family *const family = &T_FAMILY;
static ch_team              *team_of_2;

/* ---- results ---- */

static void set_fusion(bool on)
{
    assert_int_equal(ch__config_set("fuse", on ? "1" : "0"), CH_OK);
}

static bool has_ids(const t_sample *x)
{
    for (int i = 0; i < x->n_in; i++)
        if (x->in[i].is_ids)
            return true;
    return false;
}

static void check_reference(const t_sample *x, const t_case *c, const t_result *got)
{
    t_array in[8], want[T_MAX_OUT] = {0};

    for (int i = 0; i < x->n_in; i++)
        in[i] = c->in[i].value;
    if (x->check != NULL)
        x->check(in, got->value);
    if (x->reference == NULL)
        return;
    x->reference(in, want);
    for (int i = 0; i < got->n; i++)
        t_assert_near(c, "result", got->dtype[i], &got->value[i], &want[i],
                      t_tolerance(x->tolerance, c->dtype, got->dtype[i]));
}

/* Checks that the inputs are unchanged: a program must not write them. */
static void check_inputs(const t_case *c)
{
    for (int i = 0; i < c->n_in[c->level]; i++) {
        const t_made *m = &c->in[i];
        const char   *at = ch_tensor_data(m->tensor);

        for (int64_t k = 0; k < ch_tensor_count(m->tensor); k++) {
            double x = ch__load(m->dtype, at + (size_t)k * ch_dtype_bytes(m->dtype));

            if (x != m->value.v[k] && !isnan(x))
                t_fail(c, "input %d was written at element %lld: it was %g and is %g", i,
                       (long long)k, m->value.v[k], x);
        }
    }
}

/* Checks that further runs allocate nothing and give the same result. */
static void check_again(t_case *c, ch_function *f, const t_result *want)
{
    ch_tuple *in = t_arguments(c);
    t_result *got = NULL;
    int64_t   before;
    ch_status rc = t_try(c, f, in, NULL);

    before = ch__mem_allocs();
    if (rc == CH_OK)
        rc = t_try(c, f, in, NULL);
    if (rc == CH_OK && ch__mem_allocs() != before && (c->flags & T_ALLOCATES) == 0)
        t_fail(c, "a run allocates %lld times; it was the third of its kind",
               (long long)(ch__mem_allocs() - before));
    if (rc == CH_OK)
        rc = t_try(c, f, in, &got);
    ch_tuple_unref(in);
    if (rc != CH_OK)
        t_fail(c, "run again: %s", ch_error_message());
    t_assert_same_bits(c, "run again", got, want);
}

/* Runs the same program with other teams. */
static void check_threads(t_case *c, ch_function *f, const t_result *want)
{
    ch_team *team[] = {NULL, team_of_2};

    for (int i = 0; i < 2; i++) {
        t_result *got = NULL;

        if (t_run_program(c, f->last_prepared->program[0], team[i], NULL, NULL, &got) != CH_OK)
            t_fail(c, "on %d threads: %s", i + 1, ch_error_message());
        t_assert_same_bits(c, i == 0 ? "one thread" : "two threads", got, want);
    }
}

static void check_static_rows(t_case *c, int level, const t_result *want)
{
    ch_function *f = t_case_function(c, level);

    ch_function_static_rows(f);
    t_assert_same_bits(c, "rows as numbers", t_run(c, f), want);
    ch_function_unref(f);
}

/* Flat values of ragged components, with garbage behind their last rows, must give the same
 * results as exact sizes. */
static void check_room(t_case *c, int level)
{
    ch_function *exact = t_case_function(c, level), *roomy = t_case_function(c, level);
    ch_tuple    *in = t_arguments_ragged(c);
    t_result    *want = NULL, *got = NULL;
    ch_status    rc;

    ch_function_static_rows(exact);
    rc = t_try(c, exact, in, &want);
    ch__room_poison(true);
    if (rc == CH_OK)
        rc = t_try(c, roomy, in, &got);
    ch__room_poison(false);
    if (rc != CH_OK)
        t_fail(c, "as flat values: %s", ch_error_message());
    t_assert_same_bits(c, "as flat values", got, want);
    ch_tuple_unref(in);
    ch_function_unref(exact);
    ch_function_unref(roomy);
}

static void check_unfused(t_case *c, const t_result *want)
{
    ch_function *f = t_case_function(c, 0);
    t_result    *got;

    set_fusion(false);
    got = t_run(c, f);
    set_fusion(true);
    t_assert_same_bits(c, "not fused", got, want);
    ch_function_unref(f);
}

/* If T_SEEDS=DIR is in the environment, writes the first small graph of each op to that folder.
 * These files are the seeds of fuzz/decode.c. */
static void keep_seed(const t_case *c, const void *bytes, size_t n)
{
    const char *dir = getenv("T_SEEDS");
    char        path[512];
    FILE       *f;

    if (dir == NULL || n > 1500)
        return;
    snprintf(path, sizeof(path), "%s/%s", dir, c->op);
    f = fopen(path, "wbx");
    if (f == NULL)
        return;
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void assert_same_text(t_case *c, const ch_graph *was, const ch_graph *is)
{
    size_t n = (size_t)ch_graph_print(was, NULL, 0) + 1;
    char  *want = t_alloc(n), *got = t_alloc(n);

    ch_graph_print(was, want, n);
    ch_graph_print(is, got, n);
    if (strcmp(want, got) != 0)
        t_fail(c, "encoded and decoded it is\n%s\nand was\n%s", got, want);
}

static void check_encoding(t_case *c, ch_function *f, const t_result *want)
{
    void        *bytes = NULL, *twice = NULL;
    size_t       n = 0, m = 0;
    ch_graph    *g = NULL;
    ch_function *again = NULL;

    if ((c->flags & T_NO_ENCODE) != 0)
        return;
    if (ch_graph_encode(ch_function_graph(f), &bytes, &n) != CH_OK ||
        ch_graph_decode(bytes, n, &g) != CH_OK)
        t_fail(c, "encoded and decoded: %s", ch_error_message());
    assert_same_text(c, ch_function_graph(f), g);
    assert_int_equal(ch_graph_encode(g, &twice, &m), CH_OK);
    if (m != n || memcmp(bytes, twice, n) != 0)
        t_fail(c, "encoded, decoded and encoded again: %zu other bytes, were %zu", m, n);
    keep_seed(c, bytes, n);
    assert_int_equal(ch_function_of_graph(c->op, g, &again), CH_OK);
    t_assert_same_bits(c, "encoded and decoded", t_run(c, again), want);
    ch_function_unref(again);
    ch_graph_unref(g);
    ch_bytes_free(bytes);
    ch_bytes_free(twice);
}

/* ---- kernels ---- */

typedef struct candidates {
    t_case *c;
    double  tolerance;
    int     n_seen;
} candidates;

static t_result *run_candidate(candidates *a, const ch_node *n, const ch_kernel *k,
                               const ch_call *call, ch_team *team)
{
    t_result *r = t_alloc(sizeof(*r));
    void     *out[CH_MAX_OUT];

    r->n = n->n_out;
    r->dtype = t_alloc((size_t)n->n_out * sizeof(*r->dtype));
    r->value = t_alloc((size_t)n->n_out * sizeof(*r->value));
    r->data = t_alloc((size_t)n->n_out * sizeof(*r->data));
    r->bytes = t_alloc((size_t)n->n_out * sizeof(*r->bytes));
    for (int i = 0; i < n->n_out; i++) {
        r->dtype[i] = n[i].dtype;
        r->bytes[i] = (size_t)ch__bytes(&n[i]);
        r->data[i] = t_alloc(r->bytes[i]);
        t_out(&r->value[i], ch__shape(&n[i]));
        out[i] = ch__alloc_aligned(r->bytes[i] + 1);
    }
    if (ch__call_run(n, k, call->in, out, call->env, team) != CH_OK)
        t_fail(a->c, "kernel %s of %s: %s", k->name, n->op->name, ch_error_message());
    for (int i = 0; i < n->n_out; i++) {
        size_t size = ch_dtype_bytes(n[i].dtype);

        memcpy(r->data[i], out[i], r->bytes[i]);
        for (int64_t e = 0; e < ch__count(&n[i]); e++)
            r->value[i].v[e] = ch__load(n[i].dtype, (char *)out[i] + (size_t)e * size);
        ch__free_aligned(out[i]);
    }
    return r;
}

static bool has_id(const ch_node *ids, const void *at, int64_t row)
{
    for (int64_t i = 0; i < ch__count(ids); i++)
        if ((ids->dtype == CH_I64 ? ((const int64_t *)at)[i] : ((const int32_t *)at)[i]) == row)
            return true;
    return false;
}

/* Checks ch_op.changed_rows: an output that may be written over an input equals it in all rows
 * that no id names. */
static void check_changed_rows(t_case *c, const ch_node *n, const ch_call *call)
{
    ch_arena arena = {0};
    ch_prep  p = {.node = n, .threads = 1, .arena = &arena};
    int      ids = n->op->changed_rows - 1;

    assert_int_equal(ch__kernel_for(n)->prepare(n, &p), CH_OK);
    for (int k = 0; k < n->n_out; k++) {
        const char *was = p.over[k] != 0 ? call->in[__builtin_ctz(p.over[k])] : NULL;
        const char *is = call->out[k];
        int64_t     rows = n[k].dims.dim[0].n, bytes = rows > 0 ? ch__bytes(&n[k]) / rows : 0;

        for (int64_t i = 0; i < rows && was != NULL; i++)
            if (!has_id(n->in[ids], call->in[ids], i) &&
                memcmp(was + i * bytes, is + i * bytes, (size_t)bytes) != 0)
                t_fail(c, "%s: row %d of output %d has changed", n->op->name, (int)i, k);
    }
    ch__arena_drop(&arena);
}

static void see_candidates(void *arg, const ch_instr *instr, const ch_call *call)
{
    candidates             *a = arg;
    const ch_node          *n = instr->node;
    const ch_kernel *const *k, *plain = NULL;
    t_result               *want;
    char                    how[160];

    a->n_seen++;
    if (n != NULL && n->op->changed_rows != 0)
        check_changed_rows(a->c, n, call);
    if (n == NULL || n->op->kernels[0] == NULL || n->n_out == 0 ||
        (n->op->flags & (CH_OP_EFFECT | CH_OP_HOST | CH_OP_COLLECTIVE)) != 0)
        return;
    for (k = n->op->kernels; *k != NULL; k++)
        plain = *k;
    if (plain == n->op->kernels[0] || !ch__kernel_fits(plain, n))
        return;
    want = run_candidate(a, n, plain, call, NULL);
    for (k = n->op->kernels; k[1] != NULL; k++) {
        t_result *got;

        if (!ch__kernel_fits(*k, n))
            continue;
        got = run_candidate(a, n, *k, call, NULL);
        snprintf(how, sizeof(how), "kernel %s of %s beside the plain one", (*k)->name,
                 n->op->name);
        for (int i = 0; i < got->n; i++)
            t_assert_near(a->c, how, got->dtype[i], &got->value[i], &want->value[i],
                          2 * t_tolerance(a->tolerance, a->c->dtype, got->dtype[i]));
        snprintf(how, sizeof(how), "kernel %s of %s on two threads", (*k)->name, n->op->name);
        t_assert_same_bits(a->c, how, run_candidate(a, n, *k, call, team_of_2), got);
    }
    snprintf(how, sizeof(how), "kernel %s of %s on two threads", plain->name, n->op->name);
    t_assert_same_bits(a->c, how, run_candidate(a, n, plain, call, team_of_2), want);
}

static void see_nothing(const char *node, int replica, int n, ch_tensor *const *out, void *arg)
{
    (void)node, (void)replica, (void)n, (void)out, (void)arg;
}

/* In a run with `see`, each call has its own memory. So every kernel that fits can be run on
 * the inputs of the call. */
static void check_kernels(t_case *c, int level, double tolerance, const t_result *want)
{
    ch_function *f = t_case_function(c, level);
    candidates   a = {c, tolerance, 0};
    t_result    *got;

    if (level > 0)
        ch_function_static_rows(f);
    ch_function_watch(f, see_nothing, NULL);
    t_assert_same_bits(c, "watched", t_run(c, f), want);
    if (t_run_program(c, f->last_prepared->program[0], NULL, see_candidates, &a, &got) != CH_OK)
        t_fail(c, "watched: %s", ch_error_message());
    t_assert_same_bits(c, "watched, one thread", got, want);
    ch_function_unref(f);
}

/* ---- other numbers of rows, other random keys ---- */

/* A recording with symbols for rows must give the same results for other numbers of rows, 0
 * included, as a recording that was made for those numbers. */
static void check_other_rows(const t_sample *x, ch_dtype dtype, ch_dtype ids, ch_function *f,
                             t_case *recorded)
{
    for (int rows = -1; rows <= 1; rows += 2) {
        t_case      *c = t_case_of(x, dtype, ids, rows);
        ch_function *fresh = t_case_function(c, 0);
        ch_tuple    *in = t_arguments(c);
        t_result    *got = NULL, *want = NULL;
        ch_status    rc = t_try(recorded, f, in, &got), rc_fresh;

        ch_function_static_rows(fresh);
        rc_fresh = t_try(c, fresh, in, &want);
        if (rc == CH_OK && rc_fresh == CH_OK)
            t_assert_same_bits(c, rows < 0 ? "no rows" : "one row more", got, want);
        else if (rc != rc_fresh)
            t_fail(c, "%s: recorded with symbols it is %s, with numbers %s; %s",
                   rows < 0 ? "no rows" : "one row more", ch_status_name(rc),
                   ch_status_name(rc_fresh), ch_error_message());
        ch_tuple_unref(in);
        ch_function_unref(fresh);
        t_case_drop(c);
    }
}

static bool is_same(const t_result *a, const t_result *b)
{
    for (int i = 0; i < a->n; i++)
        if (memcmp(a->data[i], b->data[i], a->bytes[i]) != 0)
            return false;
    return true;
}

static void check_keys(t_case *c, ch_function *f, const t_result *first)
{
    if (first->n == 0 || first->bytes[0] < 16)
        return;
    c->step = 1;
    if (is_same(t_run(c, f), first))
        t_fail(c, "step 1 has the same numbers as step 0");
    c->step = 0;
    c->seed = 1;
    if (is_same(t_run(c, f), first))
        t_fail(c, "seed 1 has the same numbers as seed 0");
    c->seed = 0;
    c->replica = 1;
    if (is_same(t_run(c, f), first))
        t_fail(c, "replica 1 has the same numbers as replica 0");
    c->replica = 0;
    t_assert_same_bits(c, "step 0 again", t_run(c, f), first);
}

static void check_sample(const t_sample *x, ch_dtype dtype, ch_dtype ids)
{
    t_case      *c = t_case_of(x, dtype, ids, 0);
    ch_function *f = t_case_function(c, 0);
    t_result    *got = t_run(c, f);

    if (c->lacks_op)
        t_fail(c, "its record function did not record %s", x->op);
    if (got->n != c->n_out[0])
        t_fail(c, "%d outputs, want %d", got->n, c->n_out[0]);
    check_reference(x, c, got);
    check_again(c, f, got);
    check_threads(c, f, got);
    check_static_rows(c, 0, got);
    check_room(c, 0);
    check_unfused(c, got);
    check_kernels(c, 0, x->tolerance, got);
    check_encoding(c, f, got);
    if ((x->flags & T_RANDOM) != 0)
        check_keys(c, f, got);
    check_other_rows(x, dtype, ids, f, c);
    check_inputs(c);
    ch_function_unref(f);
    t_case_drop(c);
}

static void results(void **state)
{
    const t_sample *x = *state;
    int64_t         live = ch__mem_live();

    for (int d = 0; d < CH_DTYPE_COUNT; d++) {
        if ((x->dtypes >> d & 1) == 0)
            continue;
        check_sample(x, (ch_dtype)d, CH_I64);
        if (has_ids(x))
            check_sample(x, (ch_dtype)d, CH_I32);
    }
    if (ch__mem_live() != live)
        fail_msg("%s, sample \"%s\": %lld allocations were not given back", x->op, x->name,
                 (long long)(ch__mem_live() - live));
}

/* ---- gradients ---- */

/* Computes the results with element k of input i moved by h. */
static t_result *probe(t_case *c, ch_function *low, int i, int64_t k, double h)
{
    double   *at = ch_tensor_data_mut(c->in[i].tensor), was = at[k];
    t_result *r;

    at[k] = was + h;
    r = t_run(c, low);
    at[k] = was;
    return r;
}

/* Returns the weighted sum of differences, not the difference of sums, because sums may be
 * large. */
static double weighed(const t_array *up, const t_array *down, const t_array *weight)
{
    double  sum = 0;
    int64_t n = ch_shape_count(up->shape);

    for (int64_t k = 0; k < n; k++)
        sum += (up->v[k] - down->v[k]) * weight->v[k];
    return sum;
}

static double largest(const t_array *a)
{
    double  most = 0;
    int64_t n = ch_shape_count(a->shape);

    for (int64_t k = 0; k < n; k++)
        most = fmax(most, fabs(a->v[k]));
    return most;
}

static void check_derivative(const t_case *c, const t_array *g, int o, int i, int64_t k,
                             double want, double tolerance)
{
    if (fabs(g->v[k] - want) <= tolerance * fmax(1, largest(g)))
        return;
    t_fail(
        c,
        "gradient %s of output %d (-1: all) with respect to input %d at element %lld is %.9g, "
        "want %.9g by differences",
        c->level == 1 ? "once" : "twice", o, i, (long long)k, g->v[k], want);
}

static void check_element(t_case *c, ch_function *low, const t_result *high, int i, int64_t k,
                          double tolerance)
{
    const double    h = 1e-4;
    const t_result *up = probe(c, low, i, k, h), *down = probe(c, low, i, k, -h);
    int             n_x = 0, x = 0, n = 0, below = c->n_in[c->level - 1];
    double          all = 0;

    for (int j = 0; j < below; j++) {
        x = j == i ? n_x : x;
        n_x += t_smooth(c, c->in[j].dtype);
    }
    for (int o = 0; o < up->n; o++) {
        double want;

        if (!t_smooth(c, up->dtype[o]))
            continue;
        want = weighed(&up->value[o], &down->value[o], &c->in[below + n].value) / (2 * h);
        check_derivative(c, &high->value[n++ * n_x + x], o, i, k, want, tolerance);
        all += want;
    }
    if (n > 1)
        check_derivative(c, &high->value[n * n_x + x], -1, i, k, all, tolerance);
}

static void check_differences(t_case *c, ch_function *low, const t_result *high,
                              double tolerance)
{
    uint64_t state = 0xe1e;

    for (int i = 0; i < c->n_in[c->level - 1]; i++) {
        int64_t n = ch_shape_count(c->in[i].value.shape);
        int64_t few = n <= 24 ? n : n <= 4096 ? 12 : 3;

        if (!t_smooth(c, c->in[i].dtype))
            continue;
        for (int64_t k = 0; k < few; k++)
            check_element(c, low, high, i,
                          few == n ? k : (int64_t)(t_bits(&state) % (uint64_t)n), tolerance);
    }
}

/* With rows as symbols and as numbers, the gradient must be the same. */
static void check_symbolic_gradient(const t_sample *x, const t_result *low)
{
    t_case      *c = t_case_of(x, CH_F64, CH_I64, 0);
    ch_function *f;

    t_case_raise_ones(c, low);
    f = t_case_function(c, 1);
    check_static_rows(c, 1, t_run(c, f));
    check_room(c, 1);
    ch_function_unref(f);
    t_case_drop(c);
}

/* In other float types, the gradient must equal that of f64 within their precision. */
static void check_gradient_dtypes(const t_sample *x)
{
    static const ch_dtype kind[] = {CH_F32, CH_BF16, CH_F16};

    for (int d = 0; d < 3; d++) {
        t_case      *c = t_case_of(x, kind[d], CH_I64, 0), *wide;
        ch_function *f = t_case_function(c, 0), *g, *h;
        t_result    *got, *want;

        if ((x->dtypes >> kind[d] & 1) != 0) {
            t_case_raise(c, t_run(c, f));
            wide = t_case_as(c, CH_F64);
            g = t_case_function(c, 1);
            h = t_case_function(wide, 1);
            ch_function_static_rows(g);
            ch_function_static_rows(h);
            got = t_run(c, g);
            want = t_run(wide, h);
            for (int i = 0; i < got->n && i < want->n; i++)
                t_assert_near(c, "gradient beside f64's", got->dtype[i], &got->value[i],
                              &want->value[i], 8 * t_tolerance(x->tolerance, kind[d], kind[d]));
            check_kernels(c, 1, 8 * x->tolerance, got);
            t_case_drop(wide);
            ch_function_unref(g);
            ch_function_unref(h);
        }
        ch_function_unref(f);
        t_case_drop(c);
    }
}

static void check_gradients(const t_sample *x)
{
    t_case      *c = t_case_of(x, CH_F64, CH_I64, 0);
    ch_function *f = t_case_function(c, 0);
    t_result    *low = t_run(c, f), *first = low;
    int          levels = (x->flags & T_GRAD_ONCE) != 0 ? 1 : 2;
    double       tolerance = 2e-6 * fmax(1, x->tolerance / 1e-5);

    ch_function_unref(f);
    for (int level = 1; level <= levels; level++) {
        ch_function *below, *above;

        t_case_raise(c, low);
        if (c->n_out[level] == 0)
            t_fail(c, "nothing here has a gradient: say T_NO_GRAD");
        below = t_case_function(c, level - 1);
        above = t_case_function(c, level);
        ch_function_static_rows(below);
        ch_function_static_rows(above);
        low = t_run(c, above);
        check_differences(c, below, low, tolerance);
        ch_function_unref(below);
        ch_function_unref(above);
    }
    t_case_drop(c);
    check_symbolic_gradient(x, first);
    check_gradient_dtypes(x);
}

static void gradients(void **state)
{
    const t_sample *x = *state;
    int64_t         live = ch__mem_live();

    check_gradients(x);
    if (ch__mem_live() != live)
        fail_msg("%s, sample \"%s\": its gradient did not give back %lld allocations", x->op,
                 x->name, (long long)(ch__mem_live() - live));
}

/* ---- allocation failures ---- */

static ch_dtype first_dtype(const t_sample *x)
{
    for (int d = 0; d < CH_DTYPE_COUNT; d++)
        if ((x->dtypes >> d & 1) != 0)
            return (ch_dtype)d;
    return CH_F32;
}

/* Whichever allocation fails, the run must return an error and release all memory. */
static void out_of_memory(void **state)
{
    const t_sample *x = *state;
    t_case         *c = t_case_of(x, first_dtype(x), CH_I64, 0);
    ch_tuple       *in = t_arguments(c);
    ch_function    *f = t_case_function(c, 0);
    int64_t         before = ch__mem_allocs(), stride;
    int64_t         live;

    assert_int_equal(t_try(c, f, in, NULL), CH_OK);
    ch_function_unref(f);
    stride = 1 + (ch__mem_allocs() - before) / 64;
    live = ch__mem_live();
    for (int64_t n = 1;; n += stride) {
        ch_status rc;

        f = t_case_function(c, 0);
        ch__mem_fail_at(n);
        rc = t_try(c, f, in, NULL);
        ch__mem_fail_at(0);
        ch_function_unref(f);
        if (rc == CH_OK)
            break;
        if (rc != CH_RESOURCE_EXHAUSTED)
            t_fail(c, "without memory for allocation %lld: %s, %s", (long long)n,
                   ch_status_name(rc), ch_error_message());
        if (ch__mem_live() != live)
            t_fail(c, "without memory for allocation %lld: %lld allocations not given back",
                   (long long)n, (long long)(ch__mem_live() - live));
    }
    ch_tuple_unref(in);
    t_case_drop(c);
}

/* ---- refusals ---- */

static void refusal(void **state)
{
    const t_refusal *x = *state;
    int64_t          live = ch__mem_live();
    t_case          *c = t_case_of_refusal(x, CH_I64);
    ch_function     *f = t_case_function(c, 0);
    ch_tuple        *in = t_arguments(c);
    ch_status        rc = t_try(c, f, in, NULL);

    if (rc == CH_OK)
        t_fail(c, "it went well, and must be refused");
    if (rc != x->code)
        t_fail(c, "%s (%s), want %s", ch_status_name(rc), ch_error_message(),
               ch_status_name(x->code));
    for (int i = 0; i < 3; i++)
        if (x->words[i] != NULL && strstr(ch_error_message(), x->words[i]) == NULL)
            t_fail(c, "the message does not say \"%s\": %s", x->words[i], ch_error_message());
    ch_tuple_unref(in);
    ch_function_unref(f);
    t_case_drop(c);
    if (ch__mem_live() != live)
        t_fail(c, "%lld allocations were not given back", (long long)(ch__mem_live() - live));
}

/* ---- random calls ---- */

static int count_samples(void)
{
    int n = 0;

    while (family->samples[n].op != NULL)
        n++;
    return n;
}

static int64_t cases_to_try(void)
{
    const char *text = getenv("T_CASES");

    return text != NULL ? strtoll(text, NULL, 10) : 2000;
}

static ch_shape random_shape(uint64_t *state, ch_shape like)
{
    static const int64_t size[] = {0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 17};
    ch_shape             s = like;

    if (t_bits(state) % 3 == 0)
        return s;
    if (t_bits(state) % 3 == 0)
        s.rank = (int)(t_bits(state) % 6);
    for (int i = 0; i < s.rank; i++)
        if (i >= like.rank || t_bits(state) % 3 == 0)
            s.dim[i] = size[t_bits(state) % 12];
        else if (t_bits(state) % 4 == 0)
            s.dim[i] = like.dim[i] + (int64_t)(t_bits(state) % 3) - 1;
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = s.dim[i] < 0 ? 0 : s.dim[i];
    while (s.rank > 0 && ch_shape_count(s) > 4096)
        s.dim[t_bits(state) % (uint64_t)s.rank] = 2;
    return ch_shape_make(s.rank, s.dim);
}

/* Returns mostly a valid value; sometimes ids that are out of range, NaN, or numbers that are
 * too large. */
static double random_value(uint64_t *state, double fallback)
{
    static const double odd[] = {-1,    1e9,  -1e9, NAN,   INFINITY, -INFINITY,
                                 1e300, -0.0, 255,  65536, 4.5e15,   3};

    return t_bits(state) % 8 == 0 ? odd[t_bits(state) % 12] : fallback;
}

static void scramble_inputs(t_case *c, uint64_t *state)
{
    for (int i = 0; i < c->n_in[0]; i++) {
        const t_made *m = &c->in[i];
        ch_dtype dtype = t_bits(state) % 6 == 0 ? (ch_dtype)(t_bits(state) % CH_STR) : m->dtype;
        ch_shape shape = random_shape(state, m->value.shape);
        int64_t  n = ch_shape_count(shape), had = ch_shape_count(m->value.shape);
        double  *v = t_alloc((size_t)n * sizeof(*v));

        for (int64_t k = 0; k < n; k++)
            v[k] = random_value(state, had > 0 ? m->value.v[k % had] : 0);
        c->in[i].is_static = t_bits(state) % 2 == 0;
        t_set_input(c, i, dtype, shape, v);
    }
}

static void an_answer(t_case *c, const char *how, uint64_t seed)
{
    ch_function *f = t_case_function(c, 0);
    ch_tuple    *in = t_arguments(c);
    ch_status    rc = t_try(c, f, in, NULL);

    if (rc != CH_OK && (ch_error_message()[0] == '\0' || rc == CH_INTERNAL))
        t_fail(c, "%s %llu: %s, \"%s\"", how, (unsigned long long)seed, ch_status_name(rc),
               ch_error_message());
    ch_tuple_unref(in);
    ch_function_unref(f);
}

static void op_runs_or_rejects_random_shapes_with_a_reason(void **state)
{
    int64_t live = ch__mem_live(), n = cases_to_try();
    int     samples = count_samples();

    for (int64_t i = 0; i < n && samples > 0; i++) {
        uint64_t        seed = (uint64_t)i;
        const t_sample *x = &family->samples[t_bits(&seed) % (uint64_t)samples];
        int64_t         size = 0;
        t_case         *c;

        for (int k = 0; k < x->n_in; k++)
            size += ch_shape_count(x->in[k].shape);
        if (size > 1 << 14 || (x->flags & T_ALLOCATES) != 0)
            continue;
        c = t_case_of(x, first_dtype(x), t_bits(&seed) % 2 == 0 ? CH_I64 : CH_I32, 0);
        scramble_inputs(c, &seed);
        an_answer(c, "random shapes", (uint64_t)i);
        t_case_drop(c);
        t_forget();
        if (ch__mem_live() != live)
            fail_msg("random shapes %lld, %s, sample \"%s\": not all memory was given back",
                     (long long)i, x->op, x->name);
    }
    (void)state;
}

static int64_t odd_int(uint64_t *state)
{
    static const int64_t odd[] = {-1,
                                  0,
                                  1,
                                  2,
                                  3,
                                  7,
                                  8,
                                  9,
                                  16,
                                  17,
                                  -2,
                                  64,
                                  INT32_MAX,
                                  INT32_MIN,
                                  INT64_MAX,
                                  INT64_MIN,
                                  (int64_t)1 << 31,
                                  (int64_t)1 << 40};

    return odd[t_bits(state) % (sizeof(odd) / sizeof(odd[0]))];
}

/* Changes an attribute to a value that a damaged or hostile file could have. */
static void scramble_attr(const ch_attr *row, void *attrs, uint64_t *state)
{
    static const double number[] = {-1, 0, 0.5, 1, 2, NAN, INFINITY, -INFINITY, 1e300, -1e-300};
    void               *at = (char *)attrs + row->offset;
    ch_ints            *ints = at;
    ch_dims            *dims = at;

    switch (row->kind) {
    case CH_ATTR_KIND_BOOL:
        *(bool *)at = !*(bool *)at;
        break;
    case CH_ATTR_KIND_INT:
        *(int64_t *)at = odd_int(state);
        break;
    case CH_ATTR_KIND_FLOAT:
        *(double *)at = number[t_bits(state) % 10];
        break;
    case CH_ATTR_KIND_DTYPE:
        *(ch_dtype *)at = (ch_dtype)(t_bits(state) % CH_DTYPE_COUNT);
        break;
    case CH_ATTR_KIND_INTS:
        if (t_bits(state) % 2 == 0)
            ints->n = (int)(t_bits(state) % (CH_MAX_INTS + 1));
        else if (ints->n > 0 && ints->n <= CH_MAX_INTS)
            ints->at[t_bits(state) % (uint64_t)ints->n] = odd_int(state);
        break;
    case CH_ATTR_KIND_DIMS:
        if (t_bits(state) % 2 == 0)
            dims->rank = (int)(t_bits(state) % (CH_MAX_RANK + 1));
        else if (dims->rank > 0 && dims->rank <= CH_MAX_RANK)
            dims->dim[t_bits(state) % (uint64_t)dims->rank].n = odd_int(state);
        break;
    case CH_ATTR_KIND_TEXT:
    case CH_ATTR_KIND_TENSOR:
    case CH_ATTR_KIND_TABLE:
    case CH_ATTR_KIND_GRAPH:
    case CH_ATTR_KIND_HOST:
        break;
    }
}

/* Calls of the sample's op on the same inputs, with changed attributes. */
typedef struct scrambled {
    const t_case *c;
    uint64_t      state;
} scrambled;

static scrambled scramble;

static bool is_large(const ch_node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        ch_dims d = n[i].dims;
        ch_dim  all;

        for (int k = 0; k < d.rank; k++)
            if (d.dim[k].sym != 0)
                d.dim[k] = ch__dim(d.dim[k].n * 8);
        if (!ch__dims_product(&d, 0, d.rank, &all) || all.n > 1 << 16)
            return true;
    }
    return false;
}

static void record_scrambled(ch_step *s, ch_node *const *in, ch_node **out)
{
    const t_case *c = scramble.c;
    ch_node      *call, *again;
    int           rows = 0;
    void         *attrs;

    c->record(s, in, out);
    for (call = s->graph->first; call != NULL; call = ch__next(call))
        if (strcmp(call->op->name, c->op) == 0)
            break;
    if (call == NULL || call->op->attrs == NULL)
        return;
    attrs = ch__attrs_copy(&s->graph->arena, call->op, call->attrs);
    while (call->op->attrs[rows].name != NULL)
        rows++;
    for (int i = 0; i < 2 && rows > 0; i++)
        scramble_attr(&call->op->attrs[t_bits(&scramble.state) % (uint64_t)rows], attrs,
                      &scramble.state);
    again = ch__node(call->op, attrs, call->n_in, call->in);
    if (call->n_in == 0)
        again = ch__source(s, call->op, attrs);
    ch__attrs_drop(call->op, attrs);
    if (again != NULL && again->n_out > 0 && !is_large(again))
        out[0] = again;
}

static void op_runs_or_rejects_random_attributes_with_a_reason(void **state)
{
    int64_t live = ch__mem_live(), n = cases_to_try();
    int     samples = count_samples();

    for (int64_t i = 0; i < n && samples > 0; i++) {
        uint64_t        seed = (uint64_t)i + 0xa77;
        const t_sample *x = &family->samples[t_bits(&seed) % (uint64_t)samples];
        int64_t         size = 0;
        t_case         *c, *inner;

        for (int k = 0; k < x->n_in; k++)
            size += ch_shape_count(x->in[k].shape);
        if (size > 1 << 14 || (x->flags & T_ALLOCATES) != 0)
            continue;
        inner = t_case_of(x, first_dtype(x), CH_I64, 0);
        c = t_case_as(inner, inner->dtype);
        if (t_bits(&seed) % 4 == 0)
            scramble_inputs(c, &seed);
        scramble = (scrambled){inner, seed};
        c->record = record_scrambled;
        an_answer(c, "random attributes", (uint64_t)i);
        t_case_drop(c);
        t_case_drop(inner);
        t_forget();
        if (ch__mem_live() != live)
            fail_msg("random attributes %lld, %s, sample \"%s\": not all memory was given back",
                     (long long)i, x->op, x->name);
    }
    (void)state;
}

/* ---- the program ---- */

static int forget(void **state)
{
    (void)state;
    set_fusion(true);
    ch__mem_fail_at(0);
    t_forget();
    return 0;
}

static struct CMUnitTest new_test(const char *op, const char *name, const char *what,
                                  CMUnitTestFunction run, const void *row)
{
    size_t            size = strlen(op) + strlen(name) + strlen(what) + 8;
    char             *text = malloc(size);
    struct CMUnitTest t = {.test_func = run, .teardown_func = forget};

    snprintf(text, size, "%s: %s: %s", op, name, what);
    t.name = text;
    memcpy(&t.initial_state, &row, sizeof(row));
    return t;
}

static bool has_f64_gradient(const t_sample *x)
{
    return (x->flags & T_NO_GRAD) == 0 && (x->dtypes >> CH_F64 & 1) != 0;
}

static bool is_first_of_op(const t_sample *x)
{
    return x == family->samples || strcmp(x->op, x[-1].op) != 0;
}

static size_t new_tests(struct CMUnitTest *t)
{
    size_t n = 0;

    for (const t_sample *x = family->samples; x->op != NULL; x++) {
        t[n++] = new_test(x->op, x->name, "results", results, x);
        if (has_f64_gradient(x))
            t[n++] = new_test(x->op, x->name, "gradients", gradients, x);
        if (is_first_of_op(x))
            t[n++] = new_test(x->op, x->name, "out of memory", out_of_memory, x);
    }
    for (const t_refusal *x = family->refusals; x->op != NULL; x++)
        t[n++] = new_test(x->op, x->name, "refused", refusal, x);
    t[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(
        op_runs_or_rejects_random_shapes_with_a_reason, forget);
    t[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(
        op_runs_or_rejects_random_attributes_with_a_reason, forget);
    return n;
}

/* Starts the threads, so that tests count only their own allocations. */
static int start(void **state)
{
    ch_devices_options opt = {.spec = "CPU=1", .threads = T_THREADS};
    ch_team           *team;
    ch_workspace       w;

    (void)state;
    return ch_devices_configure(&opt) != CH_OK ||
           ch__device_team(ch_device_at(0), &team) != CH_OK ||
           ch__device_workspace(ch_device_at(0), 4096, false, &w) != CH_OK ||
           ch__team_new("two", 2, &team_of_2) != CH_OK;
}

static int stop(void **state)
{
    (void)state;
    ch__team_free(team_of_2);
    ch__devices_reset();
    return 0;
}

int main(void)
{
    size_t             rows = 2;
    struct CMUnitTest *t;
    int                rc;

    for (const t_sample *x = family->samples; x->op != NULL; x++)
        rows += 3;
    for (const t_refusal *x = family->refusals; x->op != NULL; x++)
        rows++;
    t = calloc(rows, sizeof(*t));
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 1 << 30); /* keep large blocks, because they are needed again */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
    rows = new_tests(t);
    rc = _cmocka_run_group_tests(family->name, t, rows, start, stop);
    for (size_t i = 0; i + 2 < rows; i++) {
        char *name;

        memcpy(&name, &t[i].name, sizeof(name));
        free(name);
    }
    free(t);
    return rc;
}
