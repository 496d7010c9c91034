/* test/kernel/test_lanes.c -- reductions, row kernels and sorts: equal bits at every SIMD
 * level.
 *
 * The tests run each kernel at every length that has its own code path, at every level, and
 * compare the bits with those of the base level or of a scalar loop. Others check NaN, signed
 * zeros and the limits of integers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/norm.h"
#include "kernel/ortho.h"
#include "kernel/reduce.h"
#include "kernel/sort.h"

enum { N = 5000 };

static const ch_fold_table *const  folds[] = CH_SIMD_LIST(ch__fold_table);
static const ch_norm_table *const  norms[] = CH_SIMD_LIST(ch__norm_table);
static const ch_ortho_table *const orthos[] = CH_SIMD_LIST(ch__ortho_table);
static const ch_sort_table *const  orders[] = CH_SIMD_LIST(ch__sort_table);

/* Lengths that use each code path of a kernel. */
static const int64_t counts[] = {0, 1, 3, 4, 7, 15, 16, 17, 31, 32, 33, 100, 511, 512, 1500, N};
enum { N_COUNTS = sizeof(counts) / sizeof(counts[0]) };

typedef union numbers {
    float   f32[N];
    double  f64[N];
    int64_t i64[N];
} numbers;

static numbers x, y, z, out[2], more[2][2];

static uint64_t bits(uint64_t *state)
{
    uint64_t v = *state += 0x9e3779b97f4a7c15u;

    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9u;
    v = (v ^ (v >> 27)) * 0x94d049bb133111ebu;
    return v ^ (v >> 31);
}

static double unit(uint64_t *state)
{
    return (double)(bits(state) >> 11) * 0x1p-53 * 4 - 2;
}

static void fill(numbers *to, ch_fold_type t, uint64_t seed)
{
    for (int i = 0; i < N; i++)
        if (t == CH_FOLD_F32)
            to->f32[i] = (float)unit(&seed);
        else if (t == CH_FOLD_F64)
            to->f64[i] = unit(&seed);
        else
            to->i64[i] = (int64_t)bits(&seed);
}

static bool has(ch_simd level)
{
    return level <= ch__simd_best();
}

/* ---- no level differs ---- */

static void folds_have_the_same_bits_at_every_level(void **state)
{
    for (int level = 1; level < CH_SIMD_LEVELS && has((ch_simd)level); level++)
        for (int t = 0; t < 3; t++)
            for (int kind = 0; kind < 4; kind++)
                for (int c = 0; c < N_COUNTS; c++) {
                    ch_fold_acc acc[2];

                    /* Loops for products of f32 read f64. */
                    fill(&x,
                         t == CH_FOLD_F32 && kind == CH_FOLD_PROD ? CH_FOLD_F64
                                                                  : (ch_fold_type)t,
                         (uint64_t)kind);
                    memset(out, 0, sizeof(out));
                    for (int i = 0; i < 2; i++) {
                        const ch_fold_loops *f = &folds[i * level]->loops[kind][t];

                        f->first(1, NULL, &acc[i]);
                        f->run(counts[c], &x, &acc[i]);
                        f->first(counts[c] / 6, &out[i], NULL);
                        f->rows(6, counts[c] / 6, &x, counts[c] / 6, &out[i]);
                    }
                    assert_memory_equal(&acc[0], &acc[1], sizeof(acc[0]));
                    assert_memory_equal(&out[0], &out[1], sizeof(out[0]));
                }
    (void)state;
}

/* Compares every level, including the base level, with a loop that the compiler does not
 * vectorise. */
static void folds_of_integers_are_exact_at_every_length(void **state)
{
    fill(&x, CH_FOLD_I64, 7);
    for (int level = 0; level < CH_SIMD_LEVELS && has((ch_simd)level); level++)
        for (int64_t n = 0; n <= 150; n++) {
            volatile uint64_t sum = 0, prod = 1;
            volatile int64_t  max = INT64_MIN, min = INT64_MAX;
            ch_fold_acc       acc[4];

            for (int64_t i = 0; i < n; i++) {
                sum += (uint64_t)x.i64[i];
                prod *= (uint64_t)x.i64[i];
                max = x.i64[i] > max ? x.i64[i] : max;
                min = x.i64[i] < min ? x.i64[i] : min;
            }
            for (int kind = 0; kind < 4; kind++) {
                folds[level]->loops[kind][CH_FOLD_I64].first(1, NULL, &acc[kind]);
                folds[level]->loops[kind][CH_FOLD_I64].run(n, &x, &acc[kind]);
            }
            assert_int_equal(acc[CH_FOLD_SUM].u, sum);
            assert_int_equal(acc[CH_FOLD_PROD].u, prod);
            assert_int_equal(acc[CH_FOLD_MAX].i, max);
            assert_int_equal(acc[CH_FOLD_MIN].i, min);
        }
    (void)state;
}

typedef void (*row_fn)(const ch_norm_loops *l, int64_t n, void *to, numbers *sums);

static void do_softmax(const ch_norm_loops *l, int64_t n, void *to, numbers *sums)
{
    (void)sums;
    l->softmax(n, &x, to);
}
static void do_log_softmax(const ch_norm_loops *l, int64_t n, void *to, numbers *sums)
{
    (void)sums;
    l->log_softmax(n, &x, to);
}
static void do_softmax_grad(const ch_norm_loops *l, int64_t n, void *to, numbers *sums)
{
    (void)sums;
    l->softmax_grad(n, &x, &y, to);
}
static void do_log_softmax_grad(const ch_norm_loops *l, int64_t n, void *to, numbers *sums)
{
    (void)sums;
    l->log_softmax_grad(n, &x, &y, to);
}
static void do_losses(const ch_norm_loops *l, int64_t n, void *to, numbers *sums)
{
    sums->f64[0] = l->logsumexp(n, &x);
    sums->f64[1] = l->cross(n, &x, &y, sums->f64[0]);
    sums->f64[2] = l->sum(n, &x);
    l->exp_grad(n, &x, 3, 0.5, &y, 0.25, to);
}
static void do_layer(const ch_norm_loops *l, int64_t n, void *to, numbers *sums)
{
    l->layer(n, &x, &y, &z, 1e-5, true, to, sums->f64);
}
static void do_layer_grad(const ch_norm_loops *l, int64_t n, void *to, numbers *sums)
{
    double stat[2] = {0.25, 1.5};

    l->layer_grad(n, &x, &y, stat, &z, true, to, &sums[0], &sums[1]);
}
static void do_moments(const ch_norm_loops *l, int64_t n, void *to, numbers *sums)
{
    l->moments(4, n / 4, &x, &y, &sums[0], &sums[1]);
    l->dy_moments(4, n / 4, &x, &z, &y, &sums[0], &sums[1]);
    l->scale(4, n / 4, &x, &y, &z, &y, to);
}
static void do_mix(const ch_norm_loops *l, int64_t n, void *to, numbers *sums)
{
    (void)sums;
    l->mix(4, n / 4, &x, &y, &z, &x, &y, &z, to);
}

static void row_kernels_have_the_same_bits_at_every_level(void **state)
{
    static const row_fn each[] = {do_softmax,          do_log_softmax, do_softmax_grad,
                                  do_log_softmax_grad, do_losses,      do_layer,
                                  do_layer_grad,       do_moments,     do_mix};

    for (int level = 1; level < CH_SIMD_LEVELS && has((ch_simd)level); level++)
        for (int t = 0; t < 2; t++) {
            fill(&x, (ch_fold_type)t, 1);
            fill(&y, (ch_fold_type)t, 2);
            fill(&z, (ch_fold_type)t, 3);
            for (size_t k = 0; k < sizeof(each) / sizeof(each[0]); k++)
                for (int c = 1; c < N_COUNTS; c++) {
                    memset(out, 0, sizeof(out));
                    memset(more, 0, sizeof(more));
                    for (int i = 0; i < 2; i++) {
                        const ch_norm_table *n = norms[i * level];

                        each[k](t == 0 ? &n->f32 : &n->f64, counts[c], &out[i], more[i]);
                    }
                    assert_memory_equal(&out[0], &out[1], sizeof(out[0]));
                    assert_memory_equal(&more[0], &more[1], sizeof(more[0]));
                }
        }
    (void)state;
}

static void sort_keys_and_extremes_have_the_same_bits_at_every_level(void **state)
{
    static uint64_t key[2][N], best[2][N];
    static int64_t  where[2][N];

    for (int level = 1; level < CH_SIMD_LEVELS && has((ch_simd)level); level++)
        for (int c = 0; c < N_COUNTS; c++) {
            int64_t  n = counts[c];
            uint64_t most[2];

            fill(&x, CH_FOLD_F32, 5);
            x.f32[0] = NAN;
            memset(best, 0, sizeof(best));
            memset(where, 0, sizeof(where));
            for (int i = 0; i < 2; i++) {
                orders[i * level]->keys_f32(n, &x, (ch_sort_order){7, 9}, key[i]);
                orders[i * level]->update_largest(n, key[i], 1, best[i], where[i]);
                orders[i * level]->keys_f64(n, &x, (ch_sort_order){7, 9}, key[i]);
                orders[i * level]->update_largest(n, key[i], 2, best[i], where[i]);
                most[i] = orders[i * level]->largest(n, key[i]);
            }
            assert_memory_equal(key[0], key[1], sizeof(key[0]));
            assert_memory_equal(where[0], where[1], sizeof(where[0]));
            assert_true(most[0] == most[1]);
        }
    (void)state;
}

/* ---- exactness ---- */

/* 1 to 6 rows minus as many other rows, of every length. */
static void row_differences_have_the_same_bits_at_every_level(void **state)
{
    enum { MOST = 6 };

    for (int level = 0; level < CH_SIMD_LEVELS && has((ch_simd)level); level++)
        for (int c = 0; c < N_COUNTS; c++)
            for (int k = 1; k <= MOST && counts[c] * MOST <= N; k++) {
                double share[2][MOST * MOST] = {{0}};

                fill(&x, CH_FOLD_F64, 1);
                fill(&out[0], CH_FOLD_F64, 2);
                out[1] = out[0];
                for (int i = 0; i < 2; i++) {
                    const ch_ortho_table *t = orthos[i * level];

                    t->dots(k, MOST + 1 - k, counts[c], out[i].f64, x.f64, counts[c], share[i],
                            MOST);
                    t->subtract(k, MOST + 1 - k, counts[c], out[i].f64, x.f64, counts[c],
                                share[i], MOST);
                }
                assert_memory_equal(share[0], share[1], sizeof(share[0]));
                assert_memory_equal(&out[0], &out[1], sizeof(out[0]));
            }
    (void)state;
}

static void fold_of_a_long_f32_sum_is_exact(void **state)
{
    const int64_t n = 1 << 22;
    float        *v = malloc((size_t)n * sizeof(*v)), got = 0;
    double        want = 0;
    uint64_t      seed = 1;
    ch_fold       f;

    for (int64_t i = 0; i < n; i++)
        want += v[i] = (float)(unit(&seed) + 2);
    ch__fold_init(&f, CH_FOLD_SUM, CH_F32, ch_shape_of(n), (bool[]){true}, 1);
    ch__fold_tile(&f, 0, v, &got, NULL);
    assert_true(fabs(got - want) <= 0.75 * want * 0x1p-24 * 2);
    ch__fold_init(&f, CH_FOLD_SUM, CH_F32, ch_shape_of(n / 4, 4), (bool[]){true, false}, 1);
    ch__fold_tile(&f, 0, v, &out[0], NULL);
    got = out[0].f32[0] + out[0].f32[1] + out[0].f32[2] + out[0].f32[3];
    assert_true(fabs(got - want) <= want * 1e-6);
    free(v);
    (void)state;
}

/* ---- edges of orders ---- */

static void sort_puts_nan_last_and_keeps_equal_zeros_in_order(void **state)
{
    const float   v[] = {NAN, 0.0f, -1, -0.0f, INFINITY, -INFINITY, -NAN, 1};
    const int64_t up[] = {5, 2, 1, 3, 7, 4, 0, 6}, down[] = {0, 6, 4, 7, 1, 3, 2, 5};
    ch_axis_view  a = ch__axis_view(CH_F32, ch_shape_of(8), 0);
    ch_ranked     room[16];
    float         sorted[8];
    int64_t       index[8];

    ch__sort(&a, false, 0, 1, v, sorted, index, room);
    assert_memory_equal(index, up, sizeof(up));
    assert_true(signbit(sorted[2]) == 0 && signbit(sorted[3]) != 0 && isnan(sorted[7]));
    ch__sort(&a, true, 0, 1, v, sorted, index, room);
    assert_memory_equal(index, down, sizeof(down));
    ch__top_k(&a, 3, 0, 1, v, sorted, index, room);
    assert_memory_equal(index, down, 3 * sizeof(index[0]));
    (void)state;
}

static void argmax_and_argmin_find_the_first_nan(void **state)
{
    const double v[] = {1, -INFINITY, NAN, INFINITY, NAN};
    ch_axis_view line = ch__axis_view(CH_F64, ch_shape_of(5), 0);
    ch_axis_view column = ch__axis_view(CH_F64, ch_shape_of(1, 5, 1), 1);
    int64_t      where = 0;

    for (int smallest = 0; smallest < 2; smallest++) {
        ch__argmax(&line, smallest, 0, 1, v, &where);
        assert_int_equal(where, 2);
        ch__argmax(&column, smallest, 0, 1, v, &where);
        assert_int_equal(where, 2);
    }
    line.n = 2;
    ch__argmax(&line, true, 0, 1, v, &where);
    assert_int_equal(where, 1);
    (void)state;
}

static void argmax_and_folds_find_the_limits_of_integers(void **state)
{
    const int64_t v[] = {INT64_MIN, INT64_MAX, INT64_MIN};
    ch_axis_view  a = ch__axis_view(CH_I64, ch_shape_of(3), 0);
    int64_t       where = 9;
    int8_t        least = 0;
    ch_fold       f;

    ch__argmax(&a, false, 0, 1, v, &where);
    assert_int_equal(where, 1);
    ch__argmax(&a, true, 0, 1, v, &where);
    assert_int_equal(where, 0);
    ch__fold_init(&f, CH_FOLD_MAX, CH_I8, ch_shape_of(0), (bool[]){true}, 1);
    ch__fold_tile(&f, 0, v, &least, NULL);
    assert_int_equal(least, INT8_MIN);
    (void)state;
}

static void sort_of_a_long_line_is_stable_and_right(void **state)
{
    enum { LONG = 20000 };
    double      *v = malloc(LONG * sizeof(*v)), *sorted = malloc(LONG * sizeof(*v));
    int64_t     *index = malloc(LONG * sizeof(*index));
    ch_ranked   *room = malloc(2 * LONG * sizeof(*room));
    ch_axis_view a = ch__axis_view(CH_F64, ch_shape_of(LONG), 0);
    uint64_t     seed = 3;

    for (int i = 0; i < LONG; i++)
        v[i] = (double)(bits(&seed) % 1000) * pow(10, (double)(bits(&seed) % 7));
    ch__sort(&a, false, 0, 1, v, sorted, index, room);
    for (int i = 0; i < LONG; i++) {
        assert_true(sorted[i] == v[index[i]]);
        assert_true(i == 0 || sorted[i - 1] < sorted[i] ||
                    (sorted[i - 1] == sorted[i] && index[i - 1] < index[i]));
    }
    free(v);
    free(sorted);
    free(index);
    free(room);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folds_have_the_same_bits_at_every_level),
        cmocka_unit_test(folds_of_integers_are_exact_at_every_length),
        cmocka_unit_test(row_kernels_have_the_same_bits_at_every_level),
        cmocka_unit_test(row_differences_have_the_same_bits_at_every_level),
        cmocka_unit_test(sort_keys_and_extremes_have_the_same_bits_at_every_level),
        cmocka_unit_test(fold_of_a_long_f32_sum_is_exact),
        cmocka_unit_test(sort_puts_nan_last_and_keeps_equal_zeros_in_order),
        cmocka_unit_test(argmax_and_argmin_find_the_first_nan),
        cmocka_unit_test(argmax_and_folds_find_the_limits_of_integers),
        cmocka_unit_test(sort_of_a_long_line_is_stable_and_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
