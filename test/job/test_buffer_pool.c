/* test/job/test_buffer_pool.c -- buffers that a pool reuses, and tensors that lend their
 * memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"
#include "base/mem.h"
#include "job/shard.h"
#include "tensor/buffer_pool.h"
#include "tensor/device.h"

enum { MANY = 1 << 16 }; /* elements */

static ch_tensor *take(ch_buffer_pool *s, ch_dtype dtype, ch_shape shape)
{
    ch_tensor *t = NULL;

    t_ok(ch__buffer_pool_get(s, ch_device_current(), dtype, shape, &t));
    assert_true(ch_shape_equal(ch_tensor_shape(t), shape));
    assert_true(ch_tensor_is_contiguous(t));
    memset(ch_tensor_data_mut(t), 0xAB, ch_tensor_bytes(t));
    return t;
}

static void buffer_pool_reuses_a_buffer_without_references(void **state)
{
    ch_buffer_pool s = {0};
    ch_tensor     *a = take(&s, CH_F32, ch_shape_of(MANY)), *b;
    const void    *at = ch_tensor_data(a);

    (void)state;
    ch_tensor_unref(a);
    b = take(&s, CH_I64, ch_shape_of(8, MANY / 16)); /* the same number of bytes */
    assert_ptr_equal(ch_tensor_data(b), at);
    a = take(&s, CH_F32, ch_shape_of(MANY));
    assert_ptr_not_equal(ch_tensor_data(a), at);
    ch_tensor_unref(a);
    ch_tensor_unref(b);
    ch__buffer_pool_drop(&s);
}

/* A view keeps the buffer in use, as the tensor itself does. */
static void buffer_pool_does_not_reuse_a_buffer_that_a_view_holds(void **state)
{
    ch_buffer_pool s = {0};
    ch_tensor     *a = take(&s, CH_F32, ch_shape_of(4, MANY)), *row = NULL, *b;

    (void)state;
    t_ok(ch_tensor_rows(a, 1, 2, &row));
    ch_tensor_unref(a);
    b = take(&s, CH_F32, ch_shape_of(4, MANY));
    memset(ch_tensor_data_mut(b), 0, ch_tensor_bytes(b));
    assert_int_equal(*(const unsigned char *)ch_tensor_data(row), 0xAB);
    ch__buffer_pool_drop(&s);
    assert_int_equal(*(const unsigned char *)ch_tensor_data(row), 0xAB);
    ch_tensor_unref(row);
    ch_tensor_unref(b);
}

/* The pool keeps at most CH_BUFFER_POOL_SIZE buffers, and frees buffers of sizes that are no
 * longer requested. */
static void buffer_pool_memory_is_bounded(void **state)
{
    ch_buffer_pool s = {0};
    ch_tensor     *t[3 * CH_BUFFER_POOL_SIZE];
    int64_t        live = ch__mem_live();

    (void)state;
    for (int i = 0; i < 3 * CH_BUFFER_POOL_SIZE; i++)
        t[i] = take(&s, CH_F32, ch_shape_of(MANY));
    for (int i = 0; i < 3 * CH_BUFFER_POOL_SIZE; i++)
        ch_tensor_unref(t[i]);
    assert_true(ch__mem_live() <= live + 2 * CH_BUFFER_POOL_SIZE); /* a buffer and its header */
    for (int i = 0; i < 1000; i++)
        ch_tensor_unref(take(&s, CH_F32, ch_shape_of(4 * MANY)));
    assert_true(ch__mem_live() <= live + 2);
    ch__buffer_pool_drop(&s);
    assert_int_equal(ch__mem_live(), live);
}

static void buffer_pool_rejects_a_negative_size_and_reports_lack_of_memory(void **state)
{
    ch_buffer_pool s = {0};
    ch_tensor     *t = NULL;

    (void)state;
    t_refused(ch__buffer_pool_get(&s, ch_device_current(), CH_F32, ch_shape_of(-1), &t),
              CH_INVALID_ARGUMENT, "-1", "");
    ch__mem_fail_at(1);
    t_refused(ch__buffer_pool_get(&s, ch_device_current(), CH_F32, ch_shape_of(MANY), &t),
              CH_RESOURCE_EXHAUSTED, "memory", "");
    ch__mem_fail_at(0);
    assert_null(t);
    ch__buffer_pool_drop(&s);
}

/* ch__tensor_share gives a tensor of another device with the same memory. The memory stays
 * until its last reference is released. */
static void lend_shares_the_memory_of_the_tensor(void **state)
{
    ch_device *other = NULL;
    ch_tensor *t = t_noise(ch_shape_of(3, 4), 1), *lent = NULL, *same = NULL;
    int64_t    live;

    (void)state;
    t_ok(ch__device_of_task("ps", 7, 0, &other));
    live = ch__mem_live();
    t_ok(ch__tensor_share(t, other, &lent));
    assert_ptr_equal(ch_tensor_data(lent), ch_tensor_data(t));
    assert_ptr_equal(ch_tensor_device(lent), other);
    t_ok(ch__tensor_share(lent, other, &same));
    assert_ptr_equal(same, lent);
    for (int i = 1; i <= 2; i++) {
        ch_tensor *none = NULL;

        ch__mem_fail_at(i);
        t_refused(ch__tensor_share(t, other, &none), CH_RESOURCE_EXHAUSTED, "memory", "");
        ch__mem_fail_at(0);
    }
    ch_tensor_unref(t);
    assert_true(ch_tensor_bytes(lent) == 48);
    ch_tensor_unref(same);
    assert_true(ch__mem_live() > live - 3);
    ch_tensor_unref(lent);
    assert_true(ch__mem_live() < live);
}

/* The lists of ids and rows of a step use the memory of the step before. */
static void id_split_reuses_its_memory_from_step_to_step(void **state)
{
    ch_tensor   *rows = t_noise(ch_shape_of(4096, 16), 1), *ids = NULL;
    ch_id_split *s = NULL;

    (void)state;
    t_ok(ch_tensor_new(CH_I64, ch_shape_of(4096), &ids));
    for (int64_t i = 0; i < 4096; i++)
        ((int64_t *)ch_tensor_data_mut(ids))[i] = i * 37 % 3000;
    t_ok(ch__id_split_new(&s));
    for (int k = 0; k < 6; k++) {
        ch_tensor *sent = NULL, *of = NULL, *out = NULL;

        if (k == 2)
            ch__mem_watch(true);
        t_ok(ch__id_split(s, ids, 5000, 1));
        t_ok(ch__id_split_update_ids(s, 0, &sent));
        t_ok(ch__id_split_update_rows(s, rows, 0, &of));
        t_ok(ch__id_split_lookup_rows(s, CH_F32, ch_shape_of(16), &of, &out));
        ch_tensor_unref(sent);
        ch_tensor_unref(of);
        ch_tensor_unref(out);
        if (k >= 2)
            assert_true(ch__mem_peak() < 65536); /* the split itself needs 256 KiB and more */
    }
    ch__mem_watch(false);
    ch__id_split_free(s);
    ch_tensor_unref(ids);
    ch_tensor_unref(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffer_pool_reuses_a_buffer_without_references),
        cmocka_unit_test(buffer_pool_does_not_reuse_a_buffer_that_a_view_holds),
        cmocka_unit_test(buffer_pool_memory_is_bounded),
        cmocka_unit_test(buffer_pool_rejects_a_negative_size_and_reports_lack_of_memory),
        cmocka_unit_test(lend_shares_the_memory_of_the_tensor),
        cmocka_unit_test(id_split_reuses_its_memory_from_step_to_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
