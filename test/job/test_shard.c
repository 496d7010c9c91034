/* test/job/test_shard.c -- division of rows among shards, and of ids and rows by shard.
 *
 * ch__part_begin and ch__part_of divide the rows of a variable. ch_id_split divides a list of
 * ids among shards, and joins the rows that the shards return. Random lists are compared with
 * simple models.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"
#include "base/mem.h"
#include "job/shard.h"

/* PT-5: and the table of worked examples. */
static void part_begin_divides_rows_as_equally_as_possible(void **state)
{
    static const struct {
        int64_t size;
        int     n;
        int     rows[8];
    } row[] = {
        {10, 4, {3, 3, 2, 2}}, {13, 5, {3, 3, 3, 2, 2}},
        {5, 2, {3, 2}},        {3, 3, {1, 1, 1}},
        {7, 3, {3, 2, 2}},     {8, 3, {3, 3, 2}},
        {10, 3, {4, 3, 3}},    {100, 7, {15, 15, 14, 14, 14, 14, 14}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        assert_int_equal(ch__part_begin(row[i].size, row[i].n, row[i].n), row[i].size);
        for (int k = 0; k < row[i].n; k++)
            assert_int_equal(ch__part_begin(row[i].size, row[i].n, k + 1) -
                                 ch__part_begin(row[i].size, row[i].n, k),
                             row[i].rows[k]);
    }
}

/* SV-15, EM-3: base 10 extra 2; 13 ids in 5 shards. */
static void part_of_finds_the_shard_of_a_row(void **state)
{
    (void)state;
    assert_int_equal(ch__part_of(32, 3, 10), 0);
    assert_int_equal(ch__part_of(32, 3, 22), 2);
    for (int64_t size = 1; size < 40; size++)
        for (int n = 1; n <= size && n < 9; n++)
            for (int64_t at = 0; at < size; at++) {
                int i = ch__part_of(size, n, at);

                assert_true(ch__part_begin(size, n, i) <= at);
                assert_true(at < ch__part_begin(size, n, i + 1));
            }
}

/* ---- ids ---- */

static unsigned draw(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Returns random ids: a few are out of range, and many occur twice. */
static ch_tensor *random_ids(unsigned *seed, ch_dtype dtype, int n, int64_t size)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(dtype, ch_shape_of(n), &t));
    for (int i = 0; i < n; i++)
        t_ok(ch_tensor_set(t, (int64_t[]){i}, (double)(draw(seed) % (size + 2)) - 1));
    return t;
}

static int64_t id_at(const ch_tensor *t, int i)
{
    double x = 0;

    t_ok(ch_tensor_get(t, (int64_t[]){i}, &x));
    return (int64_t)x;
}

/* Returns the rows of shard k for the requested ids. The contents of a row identify it. */
static ch_tensor *give(const ch_tensor *asked, int64_t begin)
{
    ch_tensor *t = t_f32(ch_shape_of(ch_tensor_count(asked), 2), NULL);

    for (int64_t i = 0; i < ch_tensor_count(asked); i++) {
        float *at = (float *)ch_tensor_data_mut(t) + 2 * i;

        at[0] = (float)(begin + ((const int64_t *)ch_tensor_data(asked))[i]);
        at[1] = -at[0];
    }
    return t;
}

static void check_lookup(ch_id_split *s, const ch_tensor *ids, int64_t size, int n)
{
    ch_tensor *part[8] = {NULL}, *out = NULL;
    char       seen[64] = {0};

    for (int k = 0; k < n; k++) {
        ch_tensor *asked = NULL;
        int64_t    begin = ch__part_begin(size, n, k);

        t_ok(ch__id_split_lookup_ids(s, k, &asked));
        for (int64_t i = 0; asked != NULL && i < ch_tensor_count(asked); i++) {
            int64_t id = begin + id_at(asked, (int)i);

            assert_true(id < ch__part_begin(size, n, k + 1));
            assert_false(seen[id]); /* once */
            seen[id] = 1;
        }
        part[k] = asked != NULL ? give(asked, begin) : NULL;
        ch_tensor_unref(asked);
    }
    t_ok(ch__id_split_lookup_rows(s, CH_F32, ch_shape_of(2), part, &out));
    for (int i = 0; i < ch_tensor_count(ids); i++) {
        const float *at = (const float *)ch_tensor_data(out) + 2 * (int64_t)i;
        int64_t      id = id_at(ids, i);
        bool         is_stray = id < 0 || id >= size;

        assert_true(at[0] == (is_stray ? 0 : (float)id) && at[1] == -at[0]);
    }
    for (int k = 0; k < n; k++)
        ch_tensor_unref(part[k]);
    ch_tensor_unref(out);
}

/* Checks that every shard gets the ids of its rows, in order, with their rows, and -1 after
 * them. */
static void check_update(ch_id_split *s, const ch_tensor *ids, int64_t size, int n)
{
    int        count = (int)ch_tensor_count(ids);
    ch_tensor *rows = t_noise(ch_shape_of(count, 3), 7);

    for (int k = 0; k < n; k++) {
        ch_tensor *sent = NULL, *of = NULL;
        int        at = 0;

        t_ok(ch__id_split_update_ids(s, k, &sent));
        t_ok(ch__id_split_update_rows(s, rows, k, &of));
        assert_int_equal(ch_tensor_count(sent), ch_tensor_shape(of).dim[0]);
        for (int i = 0; i < count; i++) {
            int64_t id = id_at(ids, i);

            if (id < 0 || id >= size || ch__part_of(size, n, id) != k)
                continue;
            assert_int_equal(id_at(sent, at), id - ch__part_begin(size, n, k));
            assert_memory_equal((const float *)ch_tensor_data(of) + (int64_t)3 * at,
                                (const float *)ch_tensor_data(rows) + (int64_t)3 * i, 12);
            at++;
        }
        for (; at < ch_tensor_count(sent); at++)
            assert_int_equal(id_at(sent, at), -1);
        ch_tensor_unref(sent);
        ch_tensor_unref(of);
    }
    ch_tensor_unref(rows);
}

static void id_split_sends_ids_to_their_shards(void **state)
{
    ch_id_split *s = NULL;
    unsigned     seed = 1;

    (void)state;
    t_ok(ch__id_split_new(&s));
    for (int c = 0; c < 200; c++) {
        int64_t size = 1 + draw(&seed) % 60;
        int n = 1 + (int)(draw(&seed) % (size < 8 ? size : 8)), k = (int)(draw(&seed) % 300);
        ch_tensor *ids = random_ids(&seed, c % 2 == 0 ? CH_I64 : CH_I32, k, size);
        int64_t    stray = -1;

        for (int i = k - 1; i >= 0; i--)
            stray = id_at(ids, i) < 0 || id_at(ids, i) >= size ? i : stray;
        t_ok(ch__id_split(s, ids, size, n));
        assert_int_equal(ch__id_split_first_invalid(s), stray);
        check_lookup(s, ids, size, n);
        check_update(s, ids, size, n);
        ch_tensor_unref(ids);
    }
    ch__id_split_free(s);
}

/* If any allocation fails, the call returns an error and leaks nothing. */
static void id_split_reports_lack_of_memory(void **state)
{
    ch_tensor *ids = NULL;
    unsigned   seed = 3;
    int64_t    live;
    bool       ok = false;

    (void)state;
    ids = random_ids(&seed, CH_I64, 50, 20);
    live = ch__mem_live();
    for (int n = 1; !ok; n++) {
        ch_id_split *s = NULL;
        ch_tensor   *t = NULL;
        ch_status    rc;

        ch__mem_fail_at(n);
        rc = ch__id_split_new(&s);
        if (rc == CH_OK)
            rc = ch__id_split(s, ids, 20, 3);
        if (rc == CH_OK)
            rc = ch__id_split_update_ids(s, 1, &t);
        ch__mem_fail_at(0);
        ok = rc == CH_OK;
        assert_true(ok || rc == CH_RESOURCE_EXHAUSTED);
        ch_tensor_unref(t);
        ch__id_split_free(s);
        assert_int_equal(ch__mem_live(), live);
    }
    ch_tensor_unref(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(part_begin_divides_rows_as_equally_as_possible),
        cmocka_unit_test(part_of_finds_the_shard_of_a_row),
        cmocka_unit_test(id_split_sends_ids_to_their_shards),
        cmocka_unit_test(id_split_reports_lack_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
