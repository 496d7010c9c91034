/* test/job/test_pieces.c -- values of variables on servers that are larger than a piece.
 *
 * ch__message_pack is wrapped by the linker, so that the tests can measure the bytes that a
 * message carries.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include "help.h"
#include "job/message.h"
#include "job/remote_var.h"
#include "strategy/cut.h"

static atomic_llong largest;    /* bytes of the largest message */
static atomic_int   n_carrying; /* messages with tensors */

/* NOLINTBEGIN(bugprone-reserved-identifier): names that the linker gives */
ch_status __real_ch__message_pack(uint32_t method, const ProtobufCMessage *m, int n,
                                  ch_tensor *const *tensor, ch_message **out);
ch_status __wrap_ch__message_pack(uint32_t method, const ProtobufCMessage *m, int n,
                                  ch_tensor *const *tensor, ch_message **out);

ch_status __wrap_ch__message_pack(uint32_t method, const ProtobufCMessage *m, int n,
                                  ch_tensor *const *tensor, ch_message **out)
{
    long long bytes = 0;

    for (int i = 0; i < n; i++)
        bytes += (long long)ch_tensor_bytes(tensor[i]);
    if (bytes > atomic_load(&largest))
        atomic_store(&largest, bytes);
    atomic_fetch_add(&n_carrying, bytes > 0);
    return __real_ch__message_pack(method, m, n, tensor, out);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static ch_tensor *numbered(ch_shape shape, float first)
{
    ch_tensor *t = t_f32(shape, NULL);
    float     *x = ch_tensor_data_mut(t);

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        x[i] = first + (float)(i % 8388593);
    return t;
}

static void check_equal(const ch_tensor *a, const ch_tensor *b)
{
    assert_true(ch_shape_equal(ch_tensor_shape(a), ch_tensor_shape(b)));
    assert_int_equal(memcmp(ch_tensor_data(a), ch_tensor_data(b), ch_tensor_bytes(a)), 0);
}

/* Writes and reads a variable, and reads it from a cut after it has changed. */
static void check_pieces(ch_shape shape, int n_shards, int axis)
{
    ch_partitioner p = ch_partitioner_fixed(n_shards);
    ch_strategy   *st;
    ch_tensor     *value = numbered(shape, 0), *other = numbered(shape, 1), *got = NULL;
    ch_cut        *cut = NULL;
    ch_var        *v = NULL;

    p.axis = -axis;
    st = t_cluster(&(ch_local_cluster_options){.ps = 2},
                   &(ch_parameter_server_options){.partitioner = p}, NULL);
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "table", .shape = shape}, &v));
    atomic_store(&largest, 0);
    atomic_store(&n_carrying, 0);
    t_ok(ch_var_set(v, value));
    t_ok(ch_var_get(v, &got));
    check_equal(got, value);
    t_ok(ch__cut_take(st, CH_MARKS_KEEP, NULL, NULL, &cut));
    t_ok(ch_var_set(v, other));
    t_ok(ch__cut_read(cut, v, NULL, ch_tensor_data_mut(got)));
    check_equal(got, value);
    ch_tensor_unref(got);
    t_ok(ch_var_get(v, &got));
    check_equal(got, other);
    assert_true(atomic_load(&largest) <= CH_REMOTE_PIECE_BYTES);
    assert_true(atomic_load(&n_carrying) >= 10); /* each of five transfers has two pieces */
    ch__cut_end(cut);
    ch_tensor_unref(got);
    ch_tensor_unref(value);
    ch_tensor_unref(other);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

enum { MI = 1 << 20 };

static void large_values_are_read_and_written_in_pieces(void **state)
{
    (void)state;
    check_pieces(ch_shape_of(3, 6 * MI), 1, 0);  /* several rows in a piece */
    check_pieces(ch_shape_of(1, 17 * MI), 2, 1); /* a row is larger than a piece */
}

static void small_region_of_a_large_variable_is_read_alone(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 1}, NULL, NULL);
    ch_region    r = {.begin = {100, 3}, .size = {2, 5}};
    ch_cut      *cut = NULL;
    ch_tensor   *value = numbered(ch_shape_of(1000, 64), 0);
    ch_var      *v = NULL;
    float        got[10];

    (void)state;
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "table", .initial = value}, &v));
    t_ok(ch__cut_take(st, CH_MARKS_KEEP, NULL, NULL, &cut));
    atomic_store(&largest, 0);
    t_ok(ch__cut_read(cut, v, &r, got));
    for (int i = 0; i < 10; i++)
        assert_true(got[i] == (float)((100 + i / 5) * 64 + 3 + i % 5));
    assert_int_equal(atomic_load(&largest), sizeof(got));
    ch__cut_end(cut);
    ch_tensor_unref(value);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_values_are_read_and_written_in_pieces),
        cmocka_unit_test(small_region_of_a_large_variable_is_read_alone),
    };

    return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
