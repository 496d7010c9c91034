/* test/job/test_snapshot.c -- snapshots of a server's variables, and the memory for copies.
 *
 * The tests use the values of a server alone (job/server/values.h). A write to a variable is
 * ch__values_make_private and a change of the value in place, as in an update.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include "base/mem.h"
#include "job/server/values.h"
#include "tensor/device.h"

enum { ELEMENTS = 1000, BYTES = ELEMENTS * 4, VARIABLES = 3 };

static void open_values(ch_values *s)
{
    memset(s, 0, sizeof(*s));
    t_ok(ch__device_of_task("ps", 0, 0, &s->device));
    for (uint64_t i = 1; i <= VARIABLES; i++) {
        ch_tensor *t = t_f32(ch_shape_of(ELEMENTS), NULL);

        t_ok(ch__values_add(s, i, "v", t, NULL));
        ch_tensor_unref(t);
    }
}

/* Sets element 0 of a variable in place. */
static void set(ch_values *s, uint64_t number, float x)
{
    ch_server_var *v = NULL;

    t_ok(ch__values_find(s, number, &v));
    t_ok(ch__values_make_private(s, v));
    *(float *)(void *)v->value->data = x;
}

static float get(const ch_values *s, uint64_t number, uint64_t snapshot)
{
    ch_tensor *t = NULL;

    t_ok(ch__values_get(s, number, snapshot, &t));
    return *(const float *)(const void *)t->data;
}

static void reserve_all(ch_values *s)
{
    int64_t left = 1;

    while (left > 0)
        t_ok(ch__values_reserve(s, BYTES, &left));
}

/* ---- releases ---- */

/* A checkpoint keeps a snapshot for long, while the snapshots of rounds come and go. */
static void snapshot_stays_when_newer_ones_are_released(void **state)
{
    const uint64_t kept[] = {2};
    ch_values      s;
    ch_tensor     *t = NULL;

    (void)state;
    open_values(&s);
    for (uint64_t i = 1; i <= 5; i++) {
        set(&s, 1, (float)i);
        t_ok(ch__values_snapshot(&s, i, false));
    }
    ch__values_release(&s, 4, 1, kept);
    assert_true(get(&s, 1, 2) == 2 && get(&s, 1, 5) == 5);
    for (uint64_t i = 1; i <= 4; i++)
        if (i != 2)
            t_refused(ch__values_get(&s, 1, i, &t), CH_NOT_FOUND, "snapshot", "here");
    ch__values_release(&s, 3, 1, kept); /* an older call that comes late */
    assert_true(get(&s, 1, 2) == 2);
    t_ok(ch__values_snapshot(&s, 3, false)); /* likewise: the snapshot is not taken */
    t_refused(ch__values_get(&s, 1, 3, &t), CH_NOT_FOUND, "snapshot 3", "here");
    ch__values_release(&s, 4, 0, NULL);
    t_refused(ch__values_get(&s, 1, 2, &t), CH_NOT_FOUND, "snapshot 2", "here");
    assert_true(get(&s, 1, 5) == 5);
    ch__values_drop(&s);
}

/* ---- memory for copies ---- */

static void reserve_prepares_memory_in_pieces(void **state)
{
    ch_values s;
    int64_t   left = 0;

    (void)state;
    open_values(&s);
    for (int64_t done = 1500; done < (int64_t)VARIABLES * BYTES; done += 1500) {
        t_ok(ch__values_reserve(&s, 1500, &left));
        assert_int_equal(left, VARIABLES * BYTES - done);
    }
    t_ok(ch__values_reserve(&s, 1500, &left));
    assert_int_equal(left, 0);
    t_ok(ch__values_reserve(&s, 0, &left));
    assert_int_equal(left, 0);
    ch__values_drop(&s);
}

/* Returns the number of bytes that the variables take on their device. */
static int64_t device_bytes(const ch_values *s)
{
    return (int64_t)ch_device_bytes(s->device);
}

/* Without rounds a variable has two buffers: the value, and that of the checkpoint. */
static void writes_after_a_snapshot_use_the_reserved_memory(void **state)
{
    ch_values s;
    int64_t   bytes;

    (void)state;
    open_values(&s);
    reserve_all(&s);
    bytes = device_bytes(&s);
    for (uint64_t save = 1; save <= 5; save++) {
        t_ok(ch__values_snapshot(&s, save, false));
        for (int i = 0; i < 200; i++) /* many writes, of which only the first copies */
            for (uint64_t v = 1; v <= VARIABLES; v++)
                set(&s, v, (float)(1000 * save) + (float)i);
        assert_true(get(&s, 1, save) == (save > 1 ? (float)(1000 * save - 801) : 0));
        assert_int_equal(device_bytes(&s), bytes);
        ch__values_release(&s, save, 0, NULL);
    }
    assert_int_equal(device_bytes(&s), bytes);
    ch__values_unreserve(&s);
    assert_int_equal(device_bytes(&s), bytes / 2);
    ch__values_drop(&s);
}

/* In rounds there are three: the value, that of the round, and that of the checkpoint. */
static void writes_in_rounds_use_the_reserved_memory_while_a_snapshot_is_kept(void **state)
{
    ch_values s;
    uint64_t  number = 1;
    int64_t   bytes;

    (void)state;
    open_values(&s);
    t_ok(ch__values_snapshot(&s, number, false)); /* of the first round */
    reserve_all(&s);
    bytes = device_bytes(&s);
    assert_int_equal(bytes, 3 * VARIABLES * BYTES);
    for (int save = 0; save < 4; save++) {
        uint64_t kept = ++number;
        float    x = get(&s, 1, 0);

        t_ok(ch__values_snapshot(&s, kept, false));
        for (int round = 0; round < 100; round++) {
            t_ok(ch__values_snapshot(&s, ++number, false));
            ch__values_release(&s, number - 1, 1, &kept);
            for (uint64_t v = 1; v <= VARIABLES; v++)
                set(&s, v, (float)number);
            assert_true(get(&s, 2, kept) == x);
            assert_int_equal(device_bytes(&s), bytes);
        }
        ch__values_release(&s, number - 1, 0, NULL);
    }
    ch__values_drop(&s);
}

static void reserve_leaves_the_values_unchanged_when_memory_is_exhausted(void **state)
{
    ch_values s;
    int64_t   left = 0, n = 1;

    (void)state;
    for (ch_status rc = CH_RESOURCE_EXHAUSTED; rc != CH_OK; n++) {
        open_values(&s);
        set(&s, 2, 7);
        ch__mem_fail_at(n);
        rc = ch__values_reserve(&s, INT64_MAX, &left);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        assert_true(get(&s, 2, 0) == 7);
        ch__values_drop(&s);
    }
    assert_true(n > VARIABLES);
}

/* ---- marks of changed rows ---- */

/* Returns the number of rows of a variable that are marked; -1: all. */
static int count_marks(const ch_values *s, uint64_t number, uint64_t snapshot)
{
    ch_tensor *bits = NULL;
    int64_t    n = -1, *ids = NULL;

    t_ok(ch__values_marks(s, number, snapshot, &bits));
    if (ch_tensor_bytes(bits) > 0)
        t_ok(ch__row_marks_list(ELEMENTS, ch_tensor_data(bits), &n, &ids));
    ch__free(ids);
    ch_tensor_unref(bits);
    return (int)n;
}

/* Writes n elements of a variable from the first on. */
static void write_rows(ch_values *s, uint64_t number, int64_t n)
{
    ch_region  at = {.size = {n}};
    ch_tensor *t = t_f32(ch_shape_of(n), NULL);

    t_ok(ch__values_set(s, 1, &number, &at, &t));
    ch_tensor_unref(t);
}

static void snapshot_begins_marks_once_when_its_call_is_repeated(void **state)
{
    ch_values s;

    (void)state;
    open_values(&s);
    t_ok(ch__values_snapshot(&s, 1, true));
    assert_int_equal(count_marks(&s, 1, 1), -1); /* those from before */
    assert_int_equal(count_marks(&s, 1, 0), 0);
    write_rows(&s, 1, 5);
    t_ok(ch__values_snapshot(&s, 1, true));
    assert_int_equal(count_marks(&s, 1, 0), 5);
    ch__values_release(&s, 1, 0, NULL);
    t_ok(ch__values_snapshot(&s, 1, true)); /* a late call */
    assert_int_equal(count_marks(&s, 1, 0), 5);
    t_ok(ch__values_snapshot(&s, 2, false));
    write_rows(&s, 1, 7);
    assert_int_equal(count_marks(&s, 1, 2), 5);
    assert_int_equal(count_marks(&s, 1, 0), 7);
    t_ok(ch__values_snapshot(&s, 3, true));
    assert_int_equal(count_marks(&s, 1, 3), 7);
    assert_int_equal(count_marks(&s, 1, 0), 0);
    ch__values_end_marks(&s);
    assert_int_equal(count_marks(&s, 1, 0), -1);
    assert_int_equal(count_marks(&s, 1, 3), 7);
    ch__values_drop(&s);
}

static void snapshot_leaves_the_marks_unchanged_when_memory_is_exhausted(void **state)
{
    (void)state;
    for (int begins = 0; begins < 2; begins++) {
        int n = 1;

        for (ch_status rc = CH_RESOURCE_EXHAUSTED; rc != CH_OK; n++) {
            ch_values s;

            open_values(&s);
            t_ok(ch__values_snapshot(&s, 1, true));
            write_rows(&s, 2, 9);
            ch__mem_fail_at(n);
            rc = ch__values_snapshot(&s, 2, begins);
            ch__mem_fail_at(0);
            assert_int_equal(count_marks(&s, 2, 0), rc == CH_OK && begins ? 0 : 9);
            if (rc == CH_OK)
                assert_int_equal(count_marks(&s, 2, 2), 9);
            ch__values_drop(&s);
        }
        assert_true(n > VARIABLES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshot_stays_when_newer_ones_are_released),
        cmocka_unit_test(reserve_prepares_memory_in_pieces),
        cmocka_unit_test(writes_after_a_snapshot_use_the_reserved_memory),
        cmocka_unit_test(writes_in_rounds_use_the_reserved_memory_while_a_snapshot_is_kept),
        cmocka_unit_test(reserve_leaves_the_values_unchanged_when_memory_is_exhausted),
        cmocka_unit_test(snapshot_begins_marks_once_when_its_call_is_repeated),
        cmocka_unit_test(snapshot_leaves_the_marks_unchanged_when_memory_is_exhausted),
    };

    return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
