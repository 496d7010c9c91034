/* test/train/test_init.c -- initial values of variables: their range, spread and independence.
 *
 * The tests compute means, deviations and fans from the values. Initial values depend on name
 * and seed only, so a part of a variable has the values of the whole; golden values come from
 * test/golden/philox.py.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "../golden/philox.inc"
#include "../strategy/help.h"
#include "kernel/init.h"
#include "tensor/layout.h"

static ch_tensor *make(ch_init init, const char *name, ch_dtype dtype, ch_shape shape)
{
    ch_tensor *t = NULL;

    t_ok(ch_init_tensor(&init, name, dtype, shape, &t));
    return t;
}

static double at(const ch_tensor *t, int64_t row, int64_t column)
{
    double x;

    t_ok(ch_tensor_get(t, (int64_t[]){row, column}, &x));
    return x;
}

typedef struct summary {
    double least, most, mean, deviation;
} summary;

/* Takes ownership of the matrix. */
static summary summed(ch_tensor *t)
{
    summary  s = {INFINITY, -INFINITY, 0, 0};
    ch_shape shape = ch_tensor_shape(t);
    double   n = (double)ch_tensor_count(t), squares = 0;

    for (int64_t i = 0; i < shape.dim[0]; i++)
        for (int64_t j = 0; j < shape.dim[1]; j++) {
            double x = at(t, i, j);

            s.least = fmin(s.least, x);
            s.most = fmax(s.most, x);
            s.mean += x / n;
            squares += x * x / n;
        }
    s.deviation = sqrt(squares - s.mean * s.mean);
    ch_tensor_unref(t);
    return s;
}

static void near(double have, double want, double off)
{
    if (!(fabs(have - want) <= off))
        fail_msg("%.9g, want %.9g within %g", have, want, off);
}

static void init_of_an_empty_struct_gives_zeros(void **state)
{
    ch_tensor *t = make((ch_init){0}, "w", CH_I64, ch_shape_of(2, 3));

    for (int i = 0; i < 6; i++)
        assert_true(((const int64_t *)ch_tensor_data(t))[i] == 0);
    ch_tensor_unref(t);
    (void)state;
}

static void init_constant_and_identity_are_exact_in_every_dtype(void **state)
{
    for (int d = 0; d < CH_DTYPE_COUNT; d++) {
        ch_tensor *t, *eye;

        if (d == CH_STR)
            continue;
        t = make(ch_init_constant(1), "", (ch_dtype)d, ch_shape_of(2, 2));
        eye = make(ch_init_identity(1), "", (ch_dtype)d, ch_shape_of(2, 3));
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 3; j++) {
                near(at(eye, i, j), i == j, 0);
                near(at(t, i, j % 2), 1, 0);
            }
        ch_tensor_unref(t);
        ch_tensor_unref(eye);
    }
    (void)state;
}

static void init_uniform_fills_its_interval(void **state)
{
    static const ch_dtype dtype[] = {CH_F32, CH_F64, CH_BF16, CH_F16};

    for (int i = 0; i < 4; i++) {
        summary s = summed(make(ch_init_uniform(-1, 3), "w", dtype[i], ch_shape_of(100, 300)));

        assert_true(s.least >= -1 && s.least < -0.98 && s.most <= 3 && s.most > 2.98);
        near(s.mean, 1, 0.03);
        near(s.deviation, 4 / sqrt(12), 0.02);
    }
    (void)state;
}

static void init_normal_has_its_mean_and_deviation(void **state)
{
    static const ch_dtype dtype[] = {CH_F32, CH_F64, CH_BF16, CH_F16};

    for (int i = 0; i < 4; i++) {
        ch_shape shape = ch_shape_of(200, 301);
        summary  n = summed(make(ch_init_normal(2, 0.5), "w", dtype[i], shape));
        summary  t = summed(make(ch_init_truncated_normal(2, 0.5), "w", dtype[i], shape));

        near(n.mean, 2, 0.01);
        near(n.deviation, 0.5, 0.01);
        assert_true(n.least < 0.6 && n.most > 3.4);
        near(t.mean, 2, 0.01);
        near(t.deviation, 0.5 * 0.87962566, 0.01);
        assert_true(t.least >= 0.99 && t.most <= 3.01);
    }
    (void)state;
}

/* Keras: limits sqrt(6 / (in + out)), sqrt(6 / in); a window multiplies both fans. */
static void init_fans_are_those_of_keras(void **state)
{
    ch_tensor *conv = make(ch_init_glorot_uniform(), "w", CH_F32, ch_shape_of(3, 3, 20, 50));
    ch_tensor *flat = NULL;
    summary    s;

    t_ok(ch_tensor_reshape(conv, ch_shape_of(90, 100), &flat));
    ch_tensor_unref(conv);
    s = summed(flat);
    near(s.most, sqrt(6. / (9 * 70)), 1e-4);
    near(s.least, -sqrt(6. / (9 * 70)), 1e-4);
    s = summed(make(ch_init_he_uniform(), "w", CH_F32, ch_shape_of(60, 400)));
    near(s.most, sqrt(6. / 60), 1e-3);
    s = summed(make(ch_init_glorot_normal(), "w", CH_F32, ch_shape_of(100, 300)));
    near(s.deviation, sqrt(2. / 400), 1e-3);
    s = summed(make(ch_init_he_normal(), "w", CH_F32, ch_shape_of(100, 300)));
    near(s.deviation, sqrt(2. / 100), 2e-3);
    assert_true(s.most <= 2 * sqrt(2. / 100) / 0.8796);
    (void)state;
}

/* The vectors of the shorter side are orthonormal, times the gain. */
static void check_orthogonal(int64_t rows, int64_t columns)
{
    ch_tensor *t = make(ch_init_orthogonal(2), "w", CH_F64, ch_shape_of(rows, columns));
    bool       by_row = rows < columns;
    int64_t    few = by_row ? rows : columns, many = by_row ? columns : rows;

    for (int64_t a = 0; a < few; a++)
        for (int64_t b = 0; b <= a; b++) {
            double sum = 0;

            for (int64_t k = 0; k < many; k++)
                sum += by_row ? at(t, a, k) * at(t, b, k) : at(t, k, a) * at(t, k, b);
            near(sum, a == b ? 4 : 0, 1e-12);
        }
    ch_tensor_unref(t);
}

static void init_orthogonal_gives_orthogonal_matrices(void **state)
{
    check_orthogonal(7, 7);
    check_orthogonal(40, 13);
    check_orthogonal(13, 40);
    check_orthogonal(70, 70); /* several blocks, of which the last is short */
    check_orthogonal(1030, 33);
    check_orthogonal(1, 1);
    (void)state;
}

static bool same(ch_tensor *a, ch_tensor *b)
{
    bool equal = memcmp(ch_tensor_data(a), ch_tensor_data(b), ch_tensor_bytes(a)) == 0;

    ch_tensor_unref(a);
    ch_tensor_unref(b);
    return equal;
}

static void init_numbers_depend_on_name_and_seed_and_not_on_size(void **state)
{
    ch_init    one = ch_init_normal(0, 1), other = one;
    ch_shape   shape = ch_shape_of(5, 5);
    ch_tensor *small, *large;

    other.seed = 1;
    assert_true(same(make(one, "w", CH_F32, shape), make(one, "w", CH_F32, shape)));
    assert_false(same(make(one, "w", CH_F32, shape), make(one, "v", CH_F32, shape)));
    assert_false(same(make(one, "w", CH_F32, shape), make(other, "w", CH_F32, shape)));
    small = make(one, "w", CH_F32, shape);
    large = make(one, "w", CH_F32, ch_shape_of(3000, 1));
    assert_memory_equal(ch_tensor_data(small), ch_tensor_data(large), 25 * sizeof(float));
    ch_tensor_unref(small);
    ch_tensor_unref(large);
    (void)state;
}

/* The values are the same in every process and on every machine. test/golden/philox.py, which
 * has its own Philox, computes the same values. */
static void init_numbers_agree_with_the_golden_philox(void **state)
{
    ch_shape   shape = ch_shape_of(1, G_PHILOX_N);
    ch_init    uniform = ch_init_uniform(0, 1), normal = ch_init_normal(0, 1);
    ch_tensor *u, *n;

    uniform.seed = normal.seed = G_PHILOX_SEED;
    u = make(uniform, G_PHILOX_NAME, CH_F32, shape);
    n = make(normal, G_PHILOX_NAME, CH_F32, shape);
    for (int i = 0; i < G_PHILOX_N; i++) {
        near(at(u, 0, i), g_philox_uniform[i], 1e-9);
        near(at(n, 0, i), g_philox_normal[i], 2e-6);
    }
    ch_tensor_unref(u);
    ch_tensor_unref(n);
    (void)state;
}

/* Returns a random number below n. */
static int64_t below(uint64_t *seed, int64_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(*seed >> 33) % n;
}

/* Checks that a random box has the bits of the whole. Some boxes have the whole size along an
 * axis, some have no elements. */
static void box_has_bits_of_whole(ch_init init, ch_dtype dtype, ch_tensor *whole,
                                  uint64_t *seed)
{
    ch_shape   shape = ch_tensor_shape(whole), all = shape;
    ch_tensor *view = NULL, *want = NULL, *part = NULL;
    ch_region  box;

    for (int k = 0; k < shape.rank; k++) {
        bool is_whole = below(seed, 3) == 0;

        box.begin[k] = is_whole ? 0 : below(seed, shape.dim[k]);
        box.size[k] = is_whole ? shape.dim[k] : below(seed, shape.dim[k] - box.begin[k] + 1);
        shape.dim[k] = box.size[k];
    }
    t_ok(ch__tensor_region(whole, &box, &view));
    t_ok(ch_tensor_new(dtype, shape, &want));
    t_ok(ch_tensor_copy(view, want));
    t_ok(ch_tensor_new(dtype, shape, &part));
    ch__init_part(&init, "w", all, box.begin, part);
    assert_memory_equal(ch_tensor_data(part), ch_tensor_data(want), ch_tensor_bytes(want));
    ch_tensor_unref(view);
    ch_tensor_unref(want);
    ch_tensor_unref(part);
}

static void init_of_a_box_has_the_bits_of_the_whole(void **state)
{
    static const ch_dtype dtype[] = {CH_F32, CH_F64, CH_BF16, CH_F16};
    static const ch_shape shape[] = {{2, {70, 45}}, {4, {3, 50, 7, 5}}, {1, {5000}}, {0, {0}}};
    const ch_init         init[] = {ch_init_constant(2),      ch_init_uniform(-1, 3),
                                    ch_init_normal(0, 1),     ch_init_truncated_normal(1, 2),
                                    ch_init_glorot_uniform(), ch_init_he_normal(),
                                    ch_init_identity(3)};
    uint64_t              seed = 1;

    for (size_t k = 0; k < sizeof(init) / sizeof(init[0]); k++)
        for (size_t i = 0; i < 4; i++)
            for (size_t d = 0; d < 4; d++) {
                if (init[k].kind == CH_INIT_IDENTITY && shape[i].rank != 2)
                    continue;
                ch_tensor *whole = make(init[k], "w", dtype[d], shape[i]);

                for (int n = 0; n < 12; n++)
                    box_has_bits_of_whole(init[k], dtype[d], whole, &seed);
                ch_tensor_unref(whole);
            }
    assert_false(ch__init_has_parts(&(ch_init){.kind = CH_INIT_ORTHOGONAL}));
    (void)state;
}

static void init_accepts_empty_shapes(void **state)
{
    ch_tensor_unref(make(ch_init_orthogonal(1), "", CH_F32, ch_shape_of(0, 3)));
    ch_tensor_unref(make(ch_init_he_normal(), "", CH_F32, ch_shape_of(3, 0)));
    ch_tensor_unref(make(ch_init_identity(1), "", CH_F32, ch_shape_of(0, 0)));
    (void)state;
}

static void refused(ch_init init, ch_dtype dtype, ch_shape shape, const char *word)
{
    ch_tensor *t = NULL;

    t_refused(ch_init_tensor(&init, "w", dtype, shape, &t), CH_INVALID_ARGUMENT, word, "");
    assert_null(t);
}

static void init_rejects_invalid_arguments(void **state)
{
    ch_shape m = ch_shape_of(2, 2);

    refused((ch_init){.kind = (ch_init_kind)77}, CH_F32, m, "kind 77");
    refused(ch_init_uniform(1, 1), CH_F32, m, "uniform in [1, 1)");
    refused(ch_init_normal(0, -1), CH_F32, m, "deviation is -1");
    refused(ch_init_normal(NAN, 1), CH_F32, m, "must both be finite");
    refused(ch_init_normal(0, 1), CH_I32, m, "i32 cannot have random values");
    refused(ch_init_constant(1), CH_STR, m, "string");
    refused(ch_init_orthogonal(1), CH_F32, ch_shape_of(2), "at least 2 axes (got 1)");
    refused(ch_init_identity(1), CH_F32, ch_shape_of(2, 2, 2), "2 axes (got 3)");
    refused((ch_init){.kind = CH_INIT_FAN_NORMAL}, CH_F32, m, "scale is 0");
    refused(ch_init_zeros(), CH_F32, ch_shape_of(-1, 2), "-1");
    (void)state;
}

static void variable_takes_dtype_shape_and_initialiser(void **state)
{
    ch_strategy *st = NULL;
    ch_var      *a = NULL, *b = NULL, *c = NULL;
    ch_var_spec  spec = {.name = "w", .shape = ch_shape_of(4, 5), .init = ch_init_he_normal()};
    ch_tensor   *want = make(ch_init_he_normal(), "w", CH_F32, spec.shape);

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_var_new(st, &spec, &a));
    t_ok(ch_var_new(st, &spec, &b));
    assert_string_equal(ch_var_name(b), "w_1");
    for (int i = 0; i < 20; i++) {
        assert_true(t_copy_of(a, 0, i) == ((const float *)ch_tensor_data(want))[i]);
        assert_true(t_copy_of(a, 0, i) == t_copy_of(a, 1, i));
        assert_true(t_copy_of(a, 0, i) != t_copy_of(b, 0, i));
    }
    ch_tensor_unref(want);
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "n", .dtype = CH_I64}, &c));
    assert_int_equal(ch_var_dtype(c), CH_I64);
    assert_int_equal(ch_var_shape(c).rank, 0);
    ch_var_unref(a);
    ch_var_unref(b);
    ch_var_unref(c);
    spec.init = ch_init_normal(0, -1);
    t_refused(ch_var_new(st, &spec, &a), CH_INVALID_ARGUMENT, "variable w", "deviation");
    spec.init = ch_init_zeros();
    t_ok(ch_var_new(st, &spec, &a)); /* the name is free again */
    assert_string_equal(ch_var_name(a), "w");
    ch_var_unref(a);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_of_an_empty_struct_gives_zeros),
        cmocka_unit_test(init_constant_and_identity_are_exact_in_every_dtype),
        cmocka_unit_test(init_uniform_fills_its_interval),
        cmocka_unit_test(init_normal_has_its_mean_and_deviation),
        cmocka_unit_test(init_fans_are_those_of_keras),
        cmocka_unit_test(init_orthogonal_gives_orthogonal_matrices),
        cmocka_unit_test(init_numbers_depend_on_name_and_seed_and_not_on_size),
        cmocka_unit_test(init_numbers_agree_with_the_golden_philox),
        cmocka_unit_test(init_of_a_box_has_the_bits_of_the_whole),
        cmocka_unit_test(init_accepts_empty_shapes),
        cmocka_unit_test(init_rejects_invalid_arguments),
        cmocka_unit_test(variable_takes_dtype_shape_and_initialiser),
    };

    if (ch_devices_configure(&(ch_devices_options){.spec = "CPU=2"}) != CH_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
