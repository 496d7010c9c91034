/* test/strategy/test_partition.c -- partitioners: the number of shards of each variable.
 *
 * The numbers in comments are rows of doc/conformance.md and doc/seed-examples.md. The table of
 * worked numbers is a part of the specification, which is not in the repository.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"
#include "job/shard.h"

typedef struct cut {
    ch_partitioner p;
    ch_dtype       dtype;
    ch_shape       shape;
    int            shards;  /* 1: not sharded */
    int            rows[8]; /* of the first shards, along the axis; 0: not checked */
} cut;

/* Calls a partitioner. Stores the axis that is divided, and the number of its parts. */
static ch_status divide(const ch_partitioner *p, const ch_tensor_spec *of, int *axis, int *n)
{
    ch_layout l = {.parts = {-7}}, before = l;
    ch_status rc = ch_partitioner_divide(p, of, &l);

    if (rc != CH_OK) {
        assert_memory_equal(&l, &before, sizeof(l)); /* unchanged on an error */
        return rc;
    }
    *axis = ch__layout_axis(l);
    *n = ch__layout_parts(l);
    return CH_OK;
}

static void check_cut(const cut *c)
{
    ch_tensor_spec of = {"w", c->dtype, c->shape};
    int            axis = -1, shards = -1;

    t_ok(divide(&c->p, &of, &axis, &shards));
    assert_int_equal(shards, c->shards);
    assert_int_equal(axis, shards > 1 ? (c->p.axis + c->shape.rank) % c->shape.rank : 0);
    for (int i = 0; i < 8 && c->rows[i] != 0; i++)
        assert_int_equal(
            ch__layout_shape(ch__layout_along(axis, shards), c->shape, i).dim[axis],
            c->rows[i]);
}

static void check_cuts(size_t n, const cut *c)
{
    for (size_t i = 0; i < n; i++)
        check_cut(&c[i]);
}

#define CHECK_CUTS(c) check_cuts(sizeof(c) / sizeof((c)[0]), c)

/* ---- a fixed number ---- */

/* PT-3, PT-5, PT-6: rows 1 to 3 of the table of worked numbers. */
static void partitioner_fixed_gives_at_most_one_shard_for_each_row(void **state)
{
    const cut c[] = {
        {ch_partitioner_fixed(2), CH_F32, ch_shape_of(10, 3), 2, {5, 5}},
        {ch_partitioner_fixed(4), CH_F32, ch_shape_of(10), 4, {3, 3, 2, 2}},
        {ch_partitioner_fixed(5), CH_F32, ch_shape_of(13), 5, {3, 3, 3, 2, 2}},
        {ch_partitioner_fixed(2), CH_F32, ch_shape_of(5), 2, {3, 2}},
        {ch_partitioner_fixed(4), CH_F32, ch_shape_of(3), 3, {1, 1, 1}},
        {ch_partitioner_fixed(1), CH_F32, ch_shape_of(10, 3), 1, {0}},
        {ch_partitioner_fixed(4), CH_F32, ch_shape_of(1), 1, {0}},
        {ch_partitioner_fixed(3), CH_F32, ch_shape_of(7), 3, {3, 2, 2}},
        {ch_partitioner_fixed(3), CH_F32, ch_shape_of(8), 3, {3, 3, 2}},
        {ch_partitioner_fixed(3), CH_F32, ch_shape_of(10), 3, {4, 3, 3}},
        {ch_partitioner_fixed(7), CH_F32, ch_shape_of(100, 2), 7, {15, 15, 14, 14, 14, 14, 14}},
        {ch_partitioner_fixed(4), CH_F32, ch_shape_of(10, 0), 4, {3, 3, 2, 2}},
    };

    (void)state;
    CHECK_CUTS(c);
}

/* B22: ids of 13 rows. */
static void partitioner_fixed_divides_thirteen_rows_into_five_shards(void **state)
{
    static const int begin[] = {0, 3, 6, 9, 11, 13};
    ch_partitioner   p = ch_partitioner_fixed(5);
    int              axis = -1, n = -1;

    (void)state;
    t_ok(divide(&p, &(ch_tensor_spec){"ids", CH_F32, ch_shape_of(13)}, &axis, &n));
    assert_int_equal(axis, 0);
    assert_int_equal(n, 5);
    for (int i = 0; i <= n; i++)
        assert_int_equal(ch__part_begin(13, n, i), begin[i]);
}

/* PT-6: a variable without rows is whole. */
static void partitioner_keeps_a_variable_without_rows_whole(void **state)
{
    const cut c[] = {
        {ch_partitioner_fixed(4), CH_F32, ch_shape_of(0, 3), 1, {0}},
        {ch_partitioner_min_size(1, 4), CH_F32, ch_shape_of(0, 3), 1, {0}},
        {ch_partitioner_max_size(1, 0), CH_F32, ch_shape_of(0, 3), 1, {0}},
        {ch_partitioner_min_size(1, 4), CH_F32, ch_shape_of(3, 0), 1, {0}},
        {ch_partitioner_max_size(1, 0), CH_F32, ch_shape_of(3, 0), 1, {0}},
    };

    (void)state;
    CHECK_CUTS(c);
}

/* ---- by size ---- */

/* PT-7: rows 4 and 5 of the table of worked numbers. */
static void partitioner_min_size_makes_as_many_shards_as_allowed(void **state)
{
    const cut c[] = {
        {ch_partitioner_min_size(4, 2), CH_F32, ch_shape_of(6, 1), 2, {3, 3}},
        {ch_partitioner_min_size(4, 10), CH_F32, ch_shape_of(6, 1), 6, {1, 1, 1, 1, 1, 1}},
        {ch_partitioner_min_size(0, 16), CH_F32, ch_shape_of(1024, 1024), 16, {64, 64}},
        {ch_partitioner_min_size(0, 1), CH_F32, ch_shape_of(1024, 1024), 1, {0}},
        {ch_partitioner_min_size(262144, 8), CH_F32, ch_shape_of(1000, 64), 1, {0}},
        {ch_partitioner_min_size(262144, 8), CH_F32, ch_shape_of(1024, 1024), 8, {128, 128}},
        {ch_partitioner_min_size(262144, 100), CH_F32, ch_shape_of(1024, 1024), 16, {64, 64}},
        {ch_partitioner_min_size(INT64_MAX, 100), CH_F32, ch_shape_of(1024, 1024), 1, {0}},
    };

    (void)state;
    CHECK_CUTS(c);
}

/* PT-8: rows 6 and 7 of the table of worked numbers, with "at least" as on the page. */
static void partitioner_min_size_makes_no_shard_below_the_minimum(void **state)
{
    const cut c[] = {
        {ch_partitioner_min_size(262144, 2), CH_F32, ch_shape_of(300, 256), 1, {0}},
        {ch_partitioner_min_size(32, 9), CH_STR, ch_shape_of(5), 2, {3, 2}},
    };

    (void)state;
    CHECK_CUTS(c);
    for (int rows = 1; rows < 60; rows++)
        for (int min = 1; min < 100; min++) {
            ch_partitioner p = ch_partitioner_min_size(min, 1000);
            ch_tensor_spec of = {"w", CH_I16, ch_shape_of(rows, 3)};
            int            axis = -1, n = -1;

            t_ok(divide(&p, &of, &axis, &n));
            assert_true(n == 1 || rows / n * 6 >= min);
            assert_true(n == rows || rows / (n + 1) * 6 < min); /* more would be too small */
        }
}

/* B21: MinSize(256 KiB, at most a shard for each of three servers). */
static void partitioner_min_size_gives_each_server_at_most_one_shard(void **state)
{
    const ch_partitioner p = ch_partitioner_min_size(256 << 10, 3);
    const cut            c[] = {
                   {p, CH_F32, ch_shape_of(1024, 1024), 3, {342, 341, 341}},
                   {p, CH_F32, ch_shape_of(512, 256), 2, {256, 256}},
                   {p, CH_F32, ch_shape_of(2048, 32), 1, {0}},
                   {p, CH_F32, ch_shape_of(1000, 64), 1, {0}},
                   {p, CH_F32, ch_shape_of(300, 256), 1, {0}},
    };

    (void)state;
    CHECK_CUTS(c);
}

/* PT-9: rows 8 to 11 of the table of worked numbers. */
static void partitioner_max_size_makes_as_few_shards_as_allowed(void **state)
{
    const cut c[] = {
        {ch_partitioner_max_size(4, 0), CH_F32, ch_shape_of(6, 1), 6, {1, 1, 1, 1, 1, 1}},
        {ch_partitioner_max_size(4, 2), CH_F32, ch_shape_of(6, 1), 2, {3, 3}},
        {ch_partitioner_max_size(1024, 0), CH_F32, ch_shape_of(6, 1), 1, {0}},
        {ch_partitioner_max_size(40, 0), CH_F32, ch_shape_of(10, 3), 4, {3, 3, 2, 2}},
        {ch_partitioner_max_size(11, 0), CH_F32, ch_shape_of(10, 3), 10, {1, 1, 1, 1}},
        {ch_partitioner_max_size(24, 0), CH_I64, ch_shape_of(7), 3, {3, 2, 2}},
        {ch_partitioner_max_size(24, 0), CH_F64, ch_shape_of(7), 3, {3, 2, 2}},
        {ch_partitioner_max_size(1 << 20, 0), CH_F32, ch_shape_of(1000, 1000), 4, {250, 250}},
        {ch_partitioner_max_size(1 << 20, 2), CH_F32, ch_shape_of(1000, 1000), 2, {500, 500}},
        {ch_partitioner_max_size(INT64_MAX, 0), CH_F32, ch_shape_of(1000, 1000), 1, {0}},
    };

    (void)state;
    CHECK_CUTS(c);
    for (int rows = 1; rows < 60; rows++)
        for (int max = 1; max < 100; max++) {
            ch_partitioner p = ch_partitioner_max_size(max, 0);
            ch_tensor_spec of = {"w", CH_I16, ch_shape_of(rows, 3)};
            int            axis = -1, n = -1;

            t_ok(divide(&p, &of, &axis, &n));
            assert_true(n == rows || (rows - 1) / n * 6 + 6 <= max);
            assert_true(n == 1 || (rows - 1) / (n - 1) * 6 + 6 > max);
        }
}

/* PT-10 */
static void partitioner_counts_strings_by_bytes_per_string(void **state)
{
    const ch_partitioner as_usual = ch_partitioner_max_size(32, 0);
    ch_partitioner       small = as_usual, huge = as_usual;
    const ch_shape       shape = ch_shape_of(6);

    (void)state;
    small.bytes_per_string = 8;
    huge.bytes_per_string = INT64_MAX;
    check_cut(&(cut){as_usual, CH_STR, shape, 3, {2, 2, 2}});
    check_cut(&(cut){small, CH_STR, shape, 2, {3, 3}});
    check_cut(&(cut){huge, CH_STR, ch_shape_of(6, 2), 6, {1, 1, 1}});
    check_cut(&(cut){small, CH_F64, shape, 2, {3, 3}});
    check_cut(&(cut){huge, CH_F64, shape, 2, {3, 3}}); /* for strings only */
}

/* PT-2: any axis may be divided. */
static void partitioner_divides_along_any_axis(void **state)
{
    ch_partitioner fixed = ch_partitioner_fixed(3), min = ch_partitioner_min_size(64, 8);
    ch_partitioner max = ch_partitioner_max_size(64, 0);

    (void)state;
    fixed.axis = 1;
    check_cut(&(cut){fixed, CH_F32, ch_shape_of(4, 8), 3, {3, 3, 2}});
    check_cut(&(cut){fixed, CH_F32, ch_shape_of(4, 2), 2, {1, 1}});
    check_cut(&(cut){fixed, CH_F32, ch_shape_of(4, 1), 1, {0}});
    fixed.axis = min.axis = max.axis = -1;
    check_cut(&(cut){fixed, CH_F32, ch_shape_of(4, 8), 3, {3, 3, 2}});
    check_cut(&(cut){fixed, CH_F32, ch_shape_of(8), 3, {3, 3, 2}});
    check_cut(&(cut){min, CH_F32, ch_shape_of(4, 8), 2, {4, 4}}); /* columns of 16 bytes */
    check_cut(&(cut){min, CH_F32, ch_shape_of(4, 7), 1, {0}});
    check_cut(&(cut){max, CH_F32, ch_shape_of(4, 9), 3, {3, 3, 3}});
    check_cut(&(cut){max, CH_F32, ch_shape_of(2, 2, 9), 3, {3, 3, 3}});
}

/* ---- invalid arguments ---- */

/* Checks that the call writes nothing, and that the error names the variable. */
static void check_refused(ch_partitioner p, ch_tensor_spec of, const char *why)
{
    int axis = -7, shards = -7;

    t_refused(divide(&p, &of, &axis, &shards), CH_INVALID_ARGUMENT, "partitioner", why);
    if (of.name != NULL)
        assert_non_null(strstr(ch_error_message(), of.name));
    assert_int_equal(axis, -7);
    assert_int_equal(shards, -7);
}

/* PT-7, PT-9, PT-6: arguments below 1 are rejected, and 0 if it has no meaning. */
static void partitioner_rejects_limits_below_one(void **state)
{
    ch_partitioner strings = ch_partitioner_max_size(8, 0);
    ch_tensor_spec of = {"table", CH_STR, ch_shape_of(6, 2)};

    (void)state;
    check_refused(ch_partitioner_fixed(0), of, "shards is 0");
    check_refused(ch_partitioner_fixed(-2), of, "shards is -2");
    check_refused(ch_partitioner_min_size(-1, 2), of, "min_shard_bytes is -1");
    check_refused(ch_partitioner_min_size(8, 0), of, "max_shards is 0");
    check_refused(ch_partitioner_min_size(8, -1), of, "max_shards is -1");
    check_refused(ch_partitioner_max_size(0, 2), of, "max_shard_bytes is 0");
    check_refused(ch_partitioner_max_size(-1, 2), of, "max_shard_bytes is -1");
    check_refused(ch_partitioner_max_size(8, -1), of, "max_shards is -1");
    strings.bytes_per_string = -1;
    check_refused(strings, of, "bytes_per_string is -1");
    check_refused((ch_partitioner){.kind = (ch_partitioner_kind)9}, of, "ch_partitioner_kind");
}

/* PT-7 */
static void partitioner_rejects_an_axis_out_of_range(void **state)
{
    ch_partitioner p = ch_partitioner_fixed(2);
    ch_tensor_spec of = {"table", CH_F32, ch_shape_of(6, 2)};

    (void)state;
    p.axis = 2;
    check_refused(p, of, "no axis 2");
    p.axis = -3;
    check_refused(p, of, "no axis -3");
    p = ch_partitioner_min_size(4, 2);
    p.axis = 2;
    check_refused(p, of, "no axis 2");
    p = ch_partitioner_max_size(4, 2);
    p.axis = 2;
    check_refused(p, of, "no axis 2");
}

static void partitioner_rejects_a_variable_of_unknown_size(void **state)
{
    const ch_partitioner p = ch_partitioner_fixed(2), whole = {0};
    ch_shape             deep = {.rank = CH_MAX_RANK + 1};

    (void)state;
    check_refused(p, (ch_tensor_spec){"w", CH_F32, ch_shape_of(-1, 2)}, "axis 0");
    check_refused(p, (ch_tensor_spec){"w", CH_F32, ch_shape_of(INT64_MAX, 2)}, "bytes");
    check_refused(p, (ch_tensor_spec){"w", CH_F32, deep}, "rank");
    check_refused(p, (ch_tensor_spec){"w", CH_DTYPE_COUNT, ch_shape_of(2)}, "element type");
    check_refused(whole, (ch_tensor_spec){"w", CH_F32, ch_shape_of(-1, 2)}, "axis 0");
    check_refused(p, (ch_tensor_spec){NULL, CH_F32, ch_shape_of(-1, 2)}, "f32");
}

static void partitioner_rejects_more_than_4096_shards(void **state)
{
    ch_tensor_spec of = {"table", CH_F32, ch_shape_of(5000)};

    (void)state;
    check_refused(ch_partitioner_fixed(CH_PARTITIONER_SHARDS + 1), of, "4096");
    check_refused(ch_partitioner_max_size(4, 0), of, "4096");
    check_cut(&(cut){ch_partitioner_fixed(4096), CH_F32, ch_shape_of(5000), 4096, {2, 2}});
    check_cut(&(cut){ch_partitioner_fixed(5000), CH_F32, ch_shape_of(10), 10, {1, 1}});
    check_cut(&(cut){ch_partitioner_max_size(4, 7), CH_F32, ch_shape_of(5000), 7, {715, 715}});
    /* A maximum may be above the limit; the number of shards is then the limit. */
    check_cut(
        &(cut){ch_partitioner_min_size(4, INT32_MAX), CH_F32, ch_shape_of(5000), 4096, {2}});
}

static void partitioner_divide_names_the_null_argument(void **state)
{
    const ch_partitioner p = ch_partitioner_fixed(2);
    const ch_tensor_spec of = {"w", CH_F32, ch_shape_of(4)};
    ch_layout            l = {.n_copies = 0};
    int                  axis = -1, n = -1;

    (void)state;
    t_refused(ch_partitioner_divide(&p, NULL, &l), CH_INVALID_ARGUMENT, "partitioner", "spec");
    t_refused(ch_partitioner_divide(&p, &of, NULL), CH_INVALID_ARGUMENT, "out", "NULL");
    t_ok(divide(NULL, &of, &axis, &n));
    assert_int_equal(axis, 0);
    assert_int_equal(n, 1);
}

/* ---- custom partitioners ---- */

/* The result of a custom partitioner, and the arguments of its calls. */
typedef struct own {
    ch_status      rc;
    const char    *why; /* message of the error; NULL: none */
    int64_t        parts[CH_MAX_RANK];
    int            n_calls;
    ch_tensor_spec of;
    bool           were_ones;
} own;

static ch_status own_parts(void *arg, const ch_tensor_spec *of, int64_t *parts)
{
    own *o = arg;

    o->n_calls++;
    o->of = *of;
    o->were_ones = true;
    for (int i = 0; i < of->shape.rank; i++) {
        o->were_ones = o->were_ones && parts[i] == 1;
        if (o->parts[i] != 1)
            parts[i] = o->parts[i];
    }
    return o->why != NULL ? ch_fail(o->rc, "%s", o->why) : o->rc;
}

/* PT-1 */
static void partitioner_function_is_called_once_with_the_variable_spec(void **state)
{
    own            o = {.parts = {2, 1, 1}};
    ch_partitioner p = {.fn = own_parts, .arg = &o};
    ch_tensor_spec of = {"w", CH_F64, ch_shape_of(4, 3, 5)};
    int            axis = -1, n = -1;

    (void)state;
    t_ok(divide(&p, &of, &axis, &n));
    assert_int_equal(o.n_calls, 1);
    assert_string_equal(o.of.name, "w");
    assert_int_equal(o.of.dtype, CH_F64);
    assert_true(ch_shape_equal(o.of.shape, of.shape));
    assert_true(o.were_ones);
    assert_int_equal(axis, 0);
    assert_int_equal(n, 2);
}

/* PT-3, PT-2: any axis may be divided. */
static void partitioner_function_may_divide_one_axis(void **state)
{
    static const struct {
        int64_t parts[3];
        int     axis, n;
    } row[] = {
        {{1, 1, 1}, 0, 1}, {{2, 1, 1}, 0, 2}, {{9, 1, 1}, 0, 4},
        {{1, 3, 1}, 1, 3}, {{1, 1, 9}, 2, 5}, {{1, 1, INT64_MAX}, 2, 5},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        own            o = {.rc = CH_OK};
        ch_partitioner p = {.fn = own_parts, .arg = &o};
        ch_tensor_spec of = {"w", CH_F32, ch_shape_of(4, 3, 5)};
        int            axis = -1, n = -1;

        memcpy(o.parts, row[i].parts, sizeof(row[i].parts));
        t_ok(divide(&p, &of, &axis, &n));
        assert_int_equal(axis, row[i].axis);
        assert_int_equal(n, row[i].n);
    }
}

/* PT-2: invalid results for a variable of rank 3. A missing or empty list is not possible in
 * C. */
static void partitioner_function_with_invalid_counts_is_rejected(void **state)
{
    static const struct {
        int64_t     parts[3];
        const char *why;
    } row[] = {
        {{0, 1, 1}, "0 parts for axis 0"},
        {{2, 2, 1}, "along one"},
        {{1, 2, 2}, "along one"},
        {{1, -1, 1}, "-1 parts for axis 1"},
        {{2, 0, 1}, "0 parts for axis 1"},
        {{1, 1, INT64_MIN}, "parts for axis 2"},
        {{2, 1, INT64_MAX}, "parts for axis 0 and"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        own            o = {.rc = CH_OK};
        ch_partitioner p = {.fn = own_parts, .arg = &o};

        memcpy(o.parts, row[i].parts, sizeof(row[i].parts));
        check_refused(p, (ch_tensor_spec){"kernel", CH_F32, ch_shape_of(4, 3, 5)}, row[i].why);
    }
}

/* Divides axis 5, which is valid for some ranks, but not for this variable. */
static ch_status cut_axis_five(void *arg, const ch_tensor_spec *of, int64_t *parts)
{
    (void)arg;
    (void)of;
    parts[5] = 2;
    return CH_OK;
}

static void partitioner_function_that_divides_a_missing_axis_is_rejected(void **state)
{
    ch_partitioner p = {.fn = cut_axis_five};

    (void)state;
    check_refused(p, (ch_tensor_spec){"kernel", CH_F32, ch_shape_of(4, 3)}, "axis 5");
}

static void partitioner_function_with_too_many_shards_is_rejected(void **state)
{
    own            o = {.parts = {1, 5000}};
    ch_partitioner p = {.fn = own_parts, .arg = &o};

    (void)state;
    check_refused(p, (ch_tensor_spec){"kernel", CH_F32, ch_shape_of(4, 9000)}, "4096");
}

static void partitioner_function_error_is_returned(void **state)
{
    own            o = {.rc = CH_DATA_LOSS, .why = "no table of sizes", .parts = {2}};
    ch_partitioner p = {.fn = own_parts, .arg = &o};
    ch_tensor_spec of = {"kernel", CH_F32, ch_shape_of(4)};
    int            axis = -7, n = -7;

    (void)state;
    t_refused(divide(&p, &of, &axis, &n), CH_DATA_LOSS, "partitioner, for variable kernel",
              "no table of sizes");
    o = (own){.rc = CH_NOT_FOUND}; /* without a message: the earlier message must not be used */
    t_refused(divide(&p, &of, &axis, &n), CH_NOT_FOUND, "kernel", ch_status_text(CH_NOT_FOUND));
    assert_null(strstr(ch_error_message(), "no table of sizes"));
    assert_int_equal(axis, -7);
    assert_int_equal(n, -7);
}

/* PT-4: for scalars, and if there is no partitioner. (Colocated variables are not passed to
 * partitioners either.) */
static void partitioner_is_not_called_for_scalars(void **state)
{
    own            o = {.rc = CH_INTERNAL};
    ch_partitioner p[] = {{.fn = own_parts, .arg = &o},
                          {.arg = &o},
                          ch_partitioner_fixed(0),
                          ch_partitioner_min_size(-1, -1)};
    ch_tensor_spec of = {"n", CH_I64, ch_shape_scalar()};

    (void)state;
    for (int i = 0; i < 4; i++) {
        int axis = -1, n = -1;

        t_ok(divide(&p[i], &of, &axis, &n));
        assert_int_equal(axis, 0);
        assert_int_equal(n, 1);
    }
    assert_int_equal(o.n_calls, 0);
    check_cut(&(cut){{0}, CH_F32, ch_shape_of(1000, 1000), 1, {0}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partitioner_fixed_gives_at_most_one_shard_for_each_row),
        cmocka_unit_test(partitioner_fixed_divides_thirteen_rows_into_five_shards),
        cmocka_unit_test(partitioner_keeps_a_variable_without_rows_whole),
        cmocka_unit_test(partitioner_min_size_makes_as_many_shards_as_allowed),
        cmocka_unit_test(partitioner_min_size_makes_no_shard_below_the_minimum),
        cmocka_unit_test(partitioner_min_size_gives_each_server_at_most_one_shard),
        cmocka_unit_test(partitioner_max_size_makes_as_few_shards_as_allowed),
        cmocka_unit_test(partitioner_counts_strings_by_bytes_per_string),
        cmocka_unit_test(partitioner_divides_along_any_axis),
        cmocka_unit_test(partitioner_rejects_limits_below_one),
        cmocka_unit_test(partitioner_rejects_an_axis_out_of_range),
        cmocka_unit_test(partitioner_rejects_a_variable_of_unknown_size),
        cmocka_unit_test(partitioner_rejects_more_than_4096_shards),
        cmocka_unit_test(partitioner_divide_names_the_null_argument),
        cmocka_unit_test(partitioner_function_is_called_once_with_the_variable_spec),
        cmocka_unit_test(partitioner_function_may_divide_one_axis),
        cmocka_unit_test(partitioner_function_with_invalid_counts_is_rejected),
        cmocka_unit_test(partitioner_function_that_divides_a_missing_axis_is_rejected),
        cmocka_unit_test(partitioner_function_with_too_many_shards_is_rejected),
        cmocka_unit_test(partitioner_function_error_is_returned),
        cmocka_unit_test(partitioner_is_not_called_for_scalars),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
