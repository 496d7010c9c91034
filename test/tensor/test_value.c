/* test/tensor/test_value.c -- values with a tensor for each replica, and tuples of named
 * values.
 *
 * The tests cover references, the number of components, per-replica and mirrored values, the
 * lookup of tuple leaves by index and name, printing, and allocation failures.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "cohort/value.h"

static ch_tensor *scalar(double x)
{
    ch_tensor *t = NULL;

    assert_int_equal(ch_tensor_scalar(CH_F32, x, &t), CH_OK);
    return t;
}

static ch_value *value(ch_value_kind kind, int n, ch_tensor *const *tensor)
{
    ch_value *v = NULL;

    assert_int_equal(ch_value_new(kind, n, tensor, &v), CH_OK);
    return v;
}

static void a_value_references_its_tensors(void **state)
{
    ch_device_current(); /* the devices are made before the count begins */
    int64_t    live = ch__mem_live();
    ch_tensor *t[] = {scalar(1), scalar(2)};
    ch_value  *v = value(CH_PER_REPLICA, 2, t);

    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    assert_int_equal(ch_value_kind_of(v), CH_PER_REPLICA);
    assert_int_equal(ch_value_count(v), 2);
    assert_ptr_equal(ch_value_at(v, 1), t[1]);
    assert_null(ch_value_at(v, 2));
    assert_null(ch_value_at(v, -1));
    assert_ptr_equal(ch_value_ref(v), v);
    ch_value_unref(v);
    ch_value_unref(v);
    ch_value_unref(NULL);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void a_plain_value_is_the_same_for_every_replica(void **state)
{
    ch_tensor *t = scalar(1);
    ch_value  *v = value(CH_PLAIN, 1, &t);

    assert_int_equal(ch_value_count(v), 1);
    assert_ptr_equal(ch_value_at(v, 0), t);
    assert_ptr_equal(ch_value_at(v, 7), t);
    assert_null(ch_value_at(v, -1));
    ch_value_unref(v);
    ch_tensor_unref(t);
    (void)state;
}

static void a_value_of_the_wrong_number_of_tensors_is_refused(void **state)
{
    ch_tensor *t = scalar(1), *two[] = {t, t}, *gap[] = {t, NULL};
    ch_value  *v = NULL;

    assert_int_equal(ch_value_new(CH_PLAIN, 2, two, &v), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "exactly one"));
    assert_int_equal(ch_value_new(CH_PER_REPLICA, 0, two, &v), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_value_new(CH_MIRRORED, 2, gap, &v), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "component 1 of 2"));
    assert_int_equal(ch_value_new((ch_value_kind)9, 1, two, &v), CH_INVALID_ARGUMENT);
    assert_null(v);
    ch_tensor_unref(t);
    (void)state;
}

static void assert_value_prints(const ch_value *v, const char *want)
{
    char text[256];

    assert_int_equal(ch_value_print(v, text, sizeof(text)), strlen(want));
    assert_string_equal(text, want);
}

/* 2.1.7 */
static void a_value_prints_its_kind_and_its_components(void **state)
{
    ch_tensor *t[] = {scalar(1), scalar(2.5)};
    ch_value  *per_replica = value(CH_PER_REPLICA, 2, t), *mirrored = value(CH_MIRRORED, 1, t),
             *plain = value(CH_PLAIN, 1, t);

    assert_value_prints(per_replica,
                        "PerReplica:{\n  0: tensor(f32 () 1),\n  1: tensor(f32 () 2.5)\n}");
    assert_value_prints(mirrored, "Mirrored:{\n  0: tensor(f32 () 1)\n}");
    assert_value_prints(plain, "tensor(f32 () 1)");
    ch_value_unref(plain);
    ch_value_unref(mirrored);
    ch_value_unref(per_replica);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    (void)state;
}

static void tuple_finds_its_leaves_by_index_and_by_name(void **state)
{
    ch_tensor *x = scalar(1), *y = scalar(2);
    ch_value  *v[] = {value(CH_PLAIN, 1, &x), value(CH_PLAIN, 1, &y)};
    ch_tuple  *t = NULL;

    assert_int_equal(ch_tuple_new(2, v, (const char *const[]){"a/b", NULL}, &t), CH_OK);
    assert_int_equal(ch_tuple_count(t), 2);
    assert_ptr_equal(ch_tuple_at(t, 1), v[1]);
    assert_null(ch_tuple_at(t, 2));
    assert_null(ch_tuple_at(t, -1));
    assert_string_equal(ch_tuple_name(t, 0), "a/b");
    assert_null(ch_tuple_name(t, 1));
    assert_null(ch_tuple_name(t, 2));
    assert_ptr_equal(ch_tuple_get(t, "a/b"), v[0]);
    assert_null(ch_tuple_get(t, "b"));
    assert_null(ch_tuple_get(t, NULL));
    assert_ptr_equal(ch_tuple_ref(t), t);
    ch_tuple_unref(t);
    ch_tuple_unref(t);
    ch_tuple_unref(NULL);
    for (int i = 0; i < 2; i++)
        ch_value_unref(v[i]);
    ch_tensor_unref(x);
    ch_tensor_unref(y);
    (void)state;
}

static void tuple_new_rejects_two_leaves_of_one_name(void **state)
{
    ch_tensor *x = scalar(1);
    ch_value  *v = value(CH_PLAIN, 1, &x);
    ch_tuple  *t = NULL;

    assert_int_equal(
        ch_tuple_new(2, (ch_value *[]){v, v}, (const char *const[]){"loss", "loss"}, &t),
        CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "\"loss\""));
    assert_int_equal(ch_tuple_new(2, (ch_value *[]){v, NULL}, NULL, &t), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tuple_new(-1, NULL, NULL, &t), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tuple_of(1, (ch_tensor *[]){NULL}, &t), CH_INVALID_ARGUMENT);
    assert_null(t);
    ch_value_unref(v);
    ch_tensor_unref(x);
    (void)state;
}

static void assert_tuple_prints(const ch_tuple *t, const char *want)
{
    char text[256];

    assert_int_equal(ch_tuple_print(t, text, sizeof(text)), strlen(want));
    assert_string_equal(text, want);
}

static void tuple_print_shows_names_or_indices(void **state)
{
    ch_tensor *x = scalar(1);
    ch_value  *v = value(CH_PLAIN, 1, &x);
    ch_tuple  *t = NULL, *empty = NULL;

    assert_int_equal(
        ch_tuple_new(2, (ch_value *[]){v, v}, (const char *const[]){"loss", NULL}, &t), CH_OK);
    assert_tuple_prints(t, "(\n  loss: tensor(f32 () 1),\n  1: tensor(f32 () 1)\n)");
    assert_int_equal(ch_tuple_of(0, NULL, &empty), CH_OK);
    assert_tuple_prints(empty, "()");
    ch_tuple_unref(empty);
    ch_tuple_unref(t);
    ch_value_unref(v);
    ch_tensor_unref(x);
    (void)state;
}

/* Makes and frees values and tuples of every kind; the first failure ends the sequence. */
static ch_status scenario(void)
{
    ch_tensor *x = NULL, *y = NULL;
    ch_value  *v = NULL;
    ch_tuple  *named = NULL, *plain = NULL;
    ch_status  st = ch_tensor_scalar(CH_F32, 1, &x);

    if (st == CH_OK)
        st = ch_tensor_of_text("text", &y);
    if (st == CH_OK)
        st = ch_value_new(CH_MIRRORED, 2, (ch_tensor *[]){x, x}, &v);
    if (st == CH_OK)
        st = ch_tuple_new(2, (ch_value *[]){v, v}, (const char *const[]){"a", "b"}, &named);
    if (st == CH_OK)
        st = ch_tuple_of(2, (ch_tensor *[]){x, y}, &plain);
    ch_tuple_unref(plain);
    ch_tuple_unref(named);
    ch_value_unref(v);
    ch_tensor_unref(y);
    ch_tensor_unref(x);
    return st;
}

static void values_and_tuples_leak_nothing_when_out_of_memory(void **state)
{
    ch_status st = scenario();
    int64_t   live = ch__mem_live();

    assert_int_equal(st, CH_OK);
    for (int64_t n = 1;; n++) {
        ch__mem_fail_at(n);
        st = scenario();
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
        if (st == CH_OK)
            break;
        assert_int_equal(st, CH_RESOURCE_EXHAUSTED);
        assert_true(n < 100);
    }
    (void)state;
}

static void tuple_print_indents_its_leaves(void **state)
{
    ch_tensor *matrix = NULL;
    ch_value  *each;
    ch_tuple  *t = NULL;

    assert_int_equal(ch_tensor_new(CH_I8, ch_shape_of(2, 2), &matrix), CH_OK);
    each = value(CH_PER_REPLICA, 2, (ch_tensor *[]){matrix, matrix});
    assert_int_equal(ch_tuple_new(1, &each, (const char *const[]){"x"}, &t), CH_OK);
    assert_tuple_prints(t,
                        "(\n  x: PerReplica:{\n    0: tensor(i8 (2, 2) [[0 0]\n     [0 0]]),\n"
                        "    1: tensor(i8 (2, 2) [[0 0]\n     [0 0]])\n  }\n)");
    ch_tuple_unref(t);
    ch_value_unref(each);
    ch_tensor_unref(matrix);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_references_its_tensors),
        cmocka_unit_test(a_plain_value_is_the_same_for_every_replica),
        cmocka_unit_test(a_value_of_the_wrong_number_of_tensors_is_refused),
        cmocka_unit_test(a_value_prints_its_kind_and_its_components),
        cmocka_unit_test(tuple_finds_its_leaves_by_index_and_by_name),
        cmocka_unit_test(tuple_new_rejects_two_leaves_of_one_name),
        cmocka_unit_test(tuple_print_shows_names_or_indices),
        cmocka_unit_test(tuple_print_indents_its_leaves),
        cmocka_unit_test(values_and_tuples_leak_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
