/* test/job/test_init.c -- initial values of variables that servers compute from a description.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "job/server/init.h"
#include "steps.h"
#include "tensor/device.h"

static ch_device *device;

static ch_tensor *made(const Cohort__PsInit *m)
{
    ch_tensor *t = NULL;

    t_ok(ch__init_spec_compute(m, device, 0, &t));
    return t;
}

/* Compares each shard of a variable, bit by bit, with the same region of the whole variable. */
static void shards_are_cut_out(ch_init init, ch_dtype dtype, ch_shape shape, ch_layout l)
{
    char         name[] = "table";
    ch_init_spec f = {.init = &init, .name = name, .dtype = dtype, .whole = shape};
    ch_tensor   *whole = NULL;

    t_ok(ch_init_tensor(&init, name, dtype, shape, &whole));
    for (int i = 0; i < ch__layout_parts(l); i++) {
        Cohort__PsInit m;
        ch_tensor     *want = NULL, *have;

        ch__init_spec_pack(&f, l, i, &m);
        have = made(&m);
        t_ok(ch__layout_cut(l, shape, whole, i, &want));
        assert_true(ch_shape_equal(ch_tensor_shape(have), ch_tensor_shape(want)));
        assert_int_equal(ch_tensor_dtype(have), dtype);
        assert_memory_equal(ch_tensor_data(have), ch_tensor_data(want), ch_tensor_bytes(want));
        ch_tensor_unref(have);
        ch_tensor_unref(want);
    }
    ch_tensor_unref(whole);
}

/* IV-4, IV-8 */
static void ps_init_gives_shards_the_numbers_of_the_whole_variable(void **state)
{
    const ch_init init[] = {ch_init_zeros(),          ch_init_constant(3),
                            ch_init_uniform(-1, 1),   ch_init_normal(0, 1),
                            ch_init_glorot_uniform(), ch_init_he_normal(),
                            ch_init_identity(2),      ch_init_truncated_normal(0, 1)};

    (void)state;
    for (size_t k = 0; k < sizeof(init) / sizeof(init[0]); k++) {
        shards_are_cut_out(init[k], CH_F32, ch_shape_of(700, 9), ch__layout_along(0, 1));
        shards_are_cut_out(init[k], CH_F32, ch_shape_of(700, 9), ch__layout_along(0, 3));
        shards_are_cut_out(init[k], CH_F64, ch_shape_of(40, 70), ch__layout_along(1, 4));
    }
    shards_are_cut_out(ch_init_constant(7), CH_I32, ch_shape_scalar(), ch__layout_along(0, 1));
    shards_are_cut_out(ch_init_normal(0, 1), CH_F32, ch_shape_of((int64_t)1 << 50, 0),
                       ch__layout_along(1, 1));
    shards_are_cut_out(ch_init_identity(1), CH_F32, ch_shape_of((int64_t)1 << 50, 0),
                       ch__layout_along(0, 1));
    shards_are_cut_out(ch_init_uniform(0, 1), CH_BF16, ch_shape_of(5, 0, 3),
                       ch__layout_along(0, 2));
}

static void write_text(char *to, const char *text)
{
    memcpy(to, text, strlen(text) + 1);
}

static void refuses(const Cohort__PsInit *m, ch_status rc, const char *word)
{
    ch_tensor *t = NULL;

    ch__mem_watch(true);
    assert_int_equal(ch__init_spec_compute(m, device, 1 << 20, &t), rc);
    assert_true(ch__mem_peak() < 1 << 16);
    ch__mem_watch(false);
    assert_null(t);
    if (strstr(ch_error_message(), word) == NULL)
        fail_msg("\"%s\" says nothing of %s", ch_error_message(), word);
}

static void ps_init_rejects_invalid_fields_without_allocating(void **state)
{
    char           name[] = "x", kind[32] = "uniform", fan[] = "in", dtype[16] = "f32";
    int64_t        shape[9] = {8, 4};
    Cohort__PsInit good, m;

    (void)state;
    cohort__ps_init__init(&good);
    good.name = name;
    good.kind = kind;
    good.fan = fan;
    good.dtype = dtype;
    good.b = 1;
    good.shape = shape;
    good.n_shape = 2;
    good.size = 8;
    ch_tensor_unref(made(&good));

    write_text(kind, "gaussian");
    refuses(&good, CH_INVALID_ARGUMENT, "gaussian");
    write_text(kind, "orthogonal");
    refuses(&good, CH_INVALID_ARGUMENT, "orthogonal");
    write_text(kind, "uniform");
    write_text(dtype, "f33");
    refuses(&good, CH_INVALID_ARGUMENT, "f33");
    write_text(dtype, "i32");
    refuses(&good, CH_INVALID_ARGUMENT, "random");
    write_text(dtype, "f32");
    m = good;
    m.b = -1;
    refuses(&m, CH_INVALID_ARGUMENT, "uniform");
    m = good;
    m.n_shape = 9;
    refuses(&m, CH_INVALID_ARGUMENT, "9 axes");
    m = good;
    m.axis = 2;
    refuses(&m, CH_INVALID_ARGUMENT, "axis 2");
    m = good;
    m.n_shape = 0;
    refuses(&m, CH_INVALID_ARGUMENT, "scalar");
    m.size = 0;
    m.begin = INT64_MAX;
    refuses(&m, CH_INVALID_ARGUMENT, "scalar");
    m = good;
    m.begin = 4;
    m.size = 5;
    refuses(&m, CH_INVALID_ARGUMENT, "5 from 4");
    m.begin = INT64_MAX;
    refuses(&m, CH_INVALID_ARGUMENT, "along axis 0");
    m.begin = -1;
    refuses(&m, CH_INVALID_ARGUMENT, "-1");
    shape[1] = -4;
    refuses(&good, CH_INVALID_ARGUMENT, "-4");
    shape[0] = shape[1] = INT64_MAX / 2;
    refuses(&good, CH_INVALID_ARGUMENT, "");
    shape[0] = good.size = 1 << 20;
    shape[1] = 4;
    refuses(&good, CH_RESOURCE_EXHAUSTED, "more shards");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ps_init_gives_shards_the_numbers_of_the_whole_variable),
        cmocka_unit_test(ps_init_rejects_invalid_fields_without_allocating),
    };

    if (ch__device_of_task("ps", 0, 0, &device) != CH_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
