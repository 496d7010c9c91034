/* test/ops/test_levels.c -- every op computes the same at every SIMD level, at every length.
 *
 * Each sample runs again with one of its sizes replaced by n, for n from 0 to 67: every axis of
 * that size in every input, a limit of ids that equals it, and, for a call without inputs, the
 * sizes among its attributes. So inner and outer axes take every length from nothing to more
 * than four of the widest vectors, with every remainder. Each case runs in every dtype, with
 * ids of i64 and of i32, at the base level and at every other level of the machine. Results
 * must have the same bits; results of matrix products, which add up in blocks of the level's
 * size, must be within their tolerance. A case that the op refuses at the base level must be
 * refused at every level.
 *
 * An op must run with every n, 0 included, in every dtype and with every type of ids that it
 * takes. Cases have few elements, so an op needs a sample that is small but for one axis.
 *
 * With the argument "every", n is every number; without it, only those beside powers of two.
 * The release build, whose flags are those that users get, runs with it.
 *
 * Collective ops have no samples: test/kernel/test_accumulate.c tests their loops likewise.
 *
 * T_FAMILIES lists, as X(name), the families whose samples are built.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <string.h>

#include "base/mem.h"
#include "graph/attr.h"
#include "graph/step.h"
#include "harness.h"
#include "kernel/simd.h"
#include "tensor/device.h"

enum { LAST = 67, MOST_SIZES = 8, MOST_OPS = 1000 };
enum { MOST_ELEMENTS = 1 << 11 }; /* of a case's inputs */

#define T_FAMILY_ADDRESS(name) &name,
static const t_family *const families[] = {T_FAMILIES(T_FAMILY_ADDRESS) NULL};

/* Ops whose last bits depend on the level (doc/guide/determinism.md). */
static const char *const products[] = {
    "matmul",         "conv2d", "conv2d_input_grad", "conv2d_filter_grad", "attention",
    "attention_grad", NULL};

static bool is_product(const char *op)
{
    for (int i = 0; products[i] != NULL; i++)
        if (strcmp(products[i], op) == 0)
            return true;
    return false;
}

/* ---- a sample with another size ---- */

/* The sizes of a sample that can be replaced; all are over 1. */
typedef struct sizes {
    int     n;
    int64_t at[MOST_SIZES];
} sizes;

static void add_size(sizes *s, int64_t size)
{
    for (int i = 0; i < s->n; i++)
        if (s->at[i] == size)
            return;
    if (size > 1 && s->n < MOST_SIZES)
        s->at[s->n++] = size;
}

/* Returns false if the inputs would have too many elements. */
static bool resize(const t_sample *x, int64_t size, int64_t n, t_sample *out)
{
    int64_t all = 0;

    *out = *x;
    for (int i = 0; i < x->n_in; i++) {
        t_input *in = &out->in[i];

        for (int k = 0; k < in->shape.rank; k++)
            if (in->shape.dim[k] == size)
                in->shape.dim[k] = n;
        if (in->limit == size)
            in->limit = (int)n;
        all += ch_shape_count(in->shape);
    }
    return all <= MOST_ELEMENTS;
}

/* The case that `record_resized` records, in a global because a record function has no
 * argument. */
static struct {
    const t_sample *x;
    int64_t         size, n; /* size becomes n */
    sizes          *seen;    /* if not NULL: the sizes among attributes are added here */
} asked;

static int64_t resize_attr(int64_t n)
{
    if (asked.seen != NULL)
        add_size(asked.seen, n);
    return n == asked.size ? asked.n : n;
}

static void resize_attrs(const ch_op *op, void *attrs)
{
    for (const ch_attr *row = op->attrs; row->name != NULL; row++) {
        void    *at = (char *)attrs + row->offset;
        int64_t *n = at;
        ch_dims *dims = at;

        if (row->kind == CH_ATTR_KIND_INT)
            *n = resize_attr(*n);
        for (int i = 0; row->kind == CH_ATTR_KIND_DIMS && i < dims->rank; i++)
            dims->dim[i].n = resize_attr(dims->dim[i].n);
    }
}

/* Records the sample. A call without inputs is recorded again with resized attributes. */
static void record_resized(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *call;
    void    *attrs;

    asked.x->record(s, in, out);
    for (call = s->graph->first; call != NULL; call = ch__next(call))
        if (strcmp(call->op->name, asked.x->op) == 0)
            break;
    if (call == NULL || call->n_in > 0 || call->op->attrs == NULL)
        return;
    attrs = ch__attrs_copy(&s->graph->arena, call->op, call->attrs);
    resize_attrs(call->op, attrs);
    out[0] = ch__source(s, call->op, attrs);
    ch__attrs_drop(call->op, attrs);
}

/* ---- running at each level ---- */

static ch_simd best;
static bool    every_length;

static bool is_tried(int n)
{
    return every_length || (n & (n - 1)) == 0 || ((n + 1) & n) == 0 || ((n - 1) & (n - 2)) == 0;
}

/* Records and plans the case again, because plans hold functions of the level. */
static ch_status run_at(ch_simd level, t_case *c, t_result **out)
{
    ch_function *f = t_case_function(c, 0);
    ch_tuple    *in = t_arguments(c);
    ch_status    rc;

    ch__simd_set(level);
    rc = t_try(c, f, in, out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    return rc;
}

/* Checks the result at a level. `want` is the result at the base level; NULL: the op refused
 * the case. */
static void compare(t_case *c, ch_simd level, double tolerance, const t_result *want)
{
    t_result *got = NULL;
    ch_status rc = run_at(level, c, &got);
    char      how[64];

    snprintf(how, sizeof(how), "at level %s, with size %lld in place of %lld",
             ch__simd_name(level), (long long)asked.n, (long long)asked.size);
    if (rc == CH_OK && want == NULL)
        t_fail(c, "%s: it runs, and is refused at the base level", how);
    if (rc != CH_OK && want != NULL)
        t_fail(c, "%s: %s", how, ch_error_message());
    if (want == NULL)
        return;
    if (!is_product(c->op))
        t_assert_same_bits(c, how, got, want);
    else
        for (int i = 0; i < got->n; i++)
            t_assert_near(c, how, got->dtype[i], &got->value[i], &want->value[i],
                          2 * t_tolerance(tolerance, c->dtype, got->dtype[i]));
}

/* The dtypes that a case runs with: of its inputs, and of its ids. */
typedef struct types {
    ch_dtype dtype, ids;
} types;

/* Returns true if the sample ran, false if the op refuses it. */
static bool check_case(const t_sample *x, types t)
{
    t_case   *c = t_case_of(x, t.dtype, t.ids, 0);
    t_result *want = NULL;

    c->record = record_resized;
    if (run_at(CH_SIMD_BASE, c, &want) != CH_OK)
        want = NULL;
    for (int level = CH_SIMD_BASE + 1; level <= (int)best; level++)
        compare(c, (ch_simd)level, x->tolerance, want);
    t_case_drop(c);
    t_forget();
    return want != NULL;
}

/* The sizes of a sample's inputs and attributes; none if the op does not take these types. A
 * large sample does not run in its own size here, because test_ops.c runs it at every level. */
static sizes sizes_of(const t_sample *x, types t)
{
    sizes    s = {0};
    t_sample same;

    for (int i = 0; i < x->n_in; i++)
        for (int k = 0; k < x->in[i].shape.rank; k++)
            add_size(&s, x->in[i].shape.dim[k]);
    asked.size = -1;
    asked.seen = &s;
    if (resize(x, -1, 0, &same) ? !check_case(x, t) : (x->dtypes & 1u << t.dtype) == 0)
        s.n = 0;
    asked.seen = NULL;
    return s;
}

/* The number of runs of an op with each size, for given types. has_sizes: some size can be
 * replaced. */
typedef struct coverage {
    bool has_sizes;
    int  ran[LAST + 1];
} coverage;

static void check_sample(const t_sample *x, types t, coverage *all)
{
    sizes s;

    asked.x = x;
    s = sizes_of(x, t);
    all->has_sizes |= s.n > 0;
    for (int i = 0; i < s.n; i++)
        for (int n = 0; n <= LAST; n++) {
            t_sample other;

            asked.size = s.at[i];
            asked.n = n;
            if (is_tried(n) && resize(x, s.at[i], n, &other))
                all->ran[n] += check_case(&other, t);
        }
}

/* Returns true if another dtype, or another type of ids, would make a different case of the
 * sample. */
static bool has_dtype(const t_sample *x)
{
    for (int i = 0; i < x->n_in; i++)
        if (!x->in[i].is_ids && x->in[i].fill != T_BOOL)
            return true;
    return false;
}

static bool has_ids(const t_sample *x)
{
    for (int i = 0; i < x->n_in; i++)
        if (x->in[i].is_ids)
            return true;
    return false;
}

/* Checks all samples of an op whose cases with these types differ from those with earlier
 * types. */
static void check_types(const char *op, types t)
{
    coverage all = {0};

    for (int i = 0; families[i] != NULL; i++)
        for (const t_sample *x = families[i]->samples; x->op != NULL; x++)
            if (strcmp(x->op, op) == 0 && (t.dtype == 0 || has_dtype(x)) &&
                (t.ids == CH_I64 || has_ids(x)))
                check_sample(x, t, &all);
    for (int n = 0; n <= LAST && all.has_sizes; n++)
        if (is_tried(n) && all.ran[n] == 0)
            fail_msg("%s in %s, ids %s: no sample runs with size %d", op,
                     ch_dtype_name(t.dtype), ch_dtype_name(t.ids), n);
}

static void check_op(void **state)
{
    int64_t live = ch__mem_live();

    for (int d = 0; d < CH_STR; d++) {
        check_types(*state, (types){(ch_dtype)d, CH_I64});
        check_types(*state, (types){(ch_dtype)d, CH_I32});
    }
    assert_int_equal(ch__mem_live(), live);
}

/* ---- the program: a test for each op ---- */

static int forget(void **state)
{
    (void)state;
    t_forget();
    return 0;
}

/* Starts the threads, so that tests count only their own allocations. */
static int start(void **state)
{
    ch_devices_options opt = {.spec = "CPU=1", .threads = 1};
    ch_team           *team;
    ch_workspace       w;

    (void)state;
    best = ch__simd_best(); /* slow in a virtual machine, so it is called once */
    return ch_devices_configure(&opt) != CH_OK ||
           ch__device_team(ch_device_at(0), &team) != CH_OK ||
           ch__device_workspace(ch_device_at(0), 4096, false, &w) != CH_OK;
}

static int stop(void **state)
{
    (void)state;
    ch__devices_reset();
    return 0;
}

static bool is_listed(size_t n, const struct CMUnitTest *t, const char *op)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(t[i].name, op) == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[MOST_OPS];
    size_t                   n = 0;

    every_length = argc > 1 && strcmp(argv[1], "every") == 0;
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 1 << 30); /* keep large blocks, because they are needed again */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
    for (int i = 0; families[i] != NULL; i++)
        for (const t_sample *x = families[i]->samples; x->op != NULL; x++)
            if (n < MOST_OPS && !is_listed(n, tests, x->op)) {
                tests[n] = (struct CMUnitTest){
                    .name = x->op, .test_func = check_op, .teardown_func = forget};
                memcpy(&tests[n++].initial_state, &x->op, sizeof(x->op));
            }
    return _cmocka_run_group_tests("levels", tests, n, start, stop);
}
