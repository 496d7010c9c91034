/* test/ckpt/test_delta.c -- deltas against a model that holds the whole tensors in memory.
 *
 * A random base is changed in random rows. The delta with these rows must read like the changed
 * tensors, by any region and in any range, and so must the full checkpoint that is folded from
 * both. Then deltas that do not match their base, and failures of every call.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>

#include "ckpt/directory.h"
#include "ckpt/fold.h"
#include "help.h"

static const ch_ckpt_write_options quick = {.no_sync = true};

static uint64_t dice = 1;

static int64_t roll(int64_t n)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(dice >> 33) % n;
}

enum { N_TABLES = 3 };

/* A tensor with rows, before and after the change. */
typedef struct table {
    char     name[32], ids_name[64], values_name[64];
    ch_dtype dtype;
    ch_shape shape;
    int64_t  row_bytes;
    char    *before, *after; /* whole tensors */
    int64_t *id;             /* of the rows that have changed */
    char    *rows;           /* their values */
    int64_t  n_ids;
} table;

static void table_make(table *t, int number, ch_dtype dtype, ch_shape shape, int one_of)
{
    int64_t bytes = ch__ckpt_bytes(dtype, shape);

    *t = (table){.dtype = dtype, .shape = shape, .row_bytes = bytes / shape.dim[0]};
    snprintf(t->name, sizeof(t->name), "t%d", number);
    snprintf(t->ids_name, sizeof(t->ids_name), "%s" CH_DELTA_IDS, t->name);
    snprintf(t->values_name, sizeof(t->values_name), "%s" CH_DELTA_VALUES, t->name);
    t->before = t_noise((size_t)bytes, (unsigned)roll(1000000));
    t->after = malloc((size_t)bytes + 1);
    t->rows = malloc((size_t)bytes + 1);
    t->id = malloc((size_t)shape.dim[0] * sizeof(*t->id) + 1);
    memcpy(t->after, t->before, (size_t)bytes);
    for (int64_t i = 0; i < shape.dim[0]; i++) {
        char *row = t->after + i * t->row_bytes;

        if (one_of == 0 || roll(one_of) != 0)
            continue;
        for (int64_t k = 0; k < t->row_bytes; k += 1 + t->row_bytes / 50)
            row[k] = (char)roll(256);
        memcpy(t->rows + t->n_ids * t->row_bytes, row, (size_t)t->row_bytes);
        t->id[t->n_ids++] = i;
    }
}

static void table_drop(table *t)
{
    free(t->before);
    free(t->after);
    free(t->rows);
    free(t->id);
}

/* Adds a tensor whole or, if it can be divided, in two slices of rows. */
static void add_rows(t_bundle *b, const char *name, ch_dtype dtype, ch_shape shape,
                     const void *data)
{
    int64_t   cut = shape.dim[0] > 1 ? 1 + roll(shape.dim[0] - 1) : 0;
    ch_region r = {.begin = {0}};

    if (cut == 0 || roll(2) == 0) {
        t_add(b, name, dtype, shape, data);
        return;
    }
    memcpy(r.size, shape.dim, sizeof(r.size));
    r.size[0] = cut;
    t_add_slice(b, name, dtype, shape, r, data);
    r.begin[0] = cut;
    r.size[0] = shape.dim[0] - cut;
    t_add_slice(b, name, dtype, shape, r,
                (const char *)data + cut * ch__ckpt_bytes(dtype, shape) / shape.dim[0]);
}

static const float            dense[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
static const ch_str           words[2] = {{"some", 4}, {"words", 5}};
static const ch_ckpt_metadata base_metadata = {.id = 17, .step = 10};

/* Writes a base, and adds the items of a delta to `delta`; `text` keeps the strings. */
static void write_base(const table *t, int n, const char *prefix, t_bundle *delta,
                       ch_bytes_builder *text)
{
    static t_bundle  b;
    ch_ckpt_metadata m = base_metadata;

    b = (t_bundle){0};
    *delta = (t_bundle){0};
    m.format = CH_CKPT_FORMAT;
    t_add(&b, "dense", CH_F32, ch_shape_of(4), dense[0]);
    t_add(&b, "gone", CH_F32, ch_shape_of(4), dense[0]);
    t_add(delta, "dense", CH_F32, ch_shape_of(4), dense[1]);
    t_add_strings(delta, "words", ch_shape_of(2), words, text);
    for (int i = 0; i < n; i++) {
        ch_shape rows = t[i].shape;

        rows.dim[0] = t[i].n_ids;
        add_rows(&b, t[i].name, t[i].dtype, t[i].shape, t[i].before);
        add_rows(delta, t[i].ids_name, CH_I64, ch_shape_of(t[i].n_ids), t[i].id);
        add_rows(delta, t[i].values_name, t[i].dtype, rows, t[i].rows);
    }
    t_assert_error(t_write_checkpoint(&b, prefix, &m, &quick), CH_OK, "");
}

static ch_status write_delta(t_bundle *delta, const char *prefix, const char *base)
{
    ch_ckpt_metadata m = {.format = CH_CKPT_FORMAT,
                          .id = 18,
                          .step = 20,
                          .time = 1600000000000000,
                          .base_id = 17,
                          .base = base};

    return t_write_checkpoint(delta, prefix, &m, &quick);
}

/* Copies a region of a whole tensor element by element. */
static void copy_region(const table *t, const ch_region *r, char *to)
{
    size_t  element = ch_dtype_bytes(t->dtype);
    int64_t n = 1;

    for (int k = 0; k < t->shape.rank; k++)
        n *= r->size[k];
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, step = 1;

        for (int k = t->shape.rank - 1; k >= 0; k--) {
            at += (r->begin[k] + rest % r->size[k]) * step;
            rest /= r->size[k];
            step *= t->shape.dim[k];
        }
        memcpy(to + (size_t)i * element, t->after + (size_t)at * element, element);
    }
}

static void check_table(ch_ckpt *c, const table *t)
{
    int64_t bytes = ch__ckpt_bytes(t->dtype, t->shape),
            element = (int64_t)ch_dtype_bytes(t->dtype);
    char *want = malloc((size_t)bytes + 1), *have = malloc((size_t)bytes + 1);

    for (int round = 0; round < 5; round++) {
        ch_region r = {.begin = {0}};
        int64_t   n = 1, from, to;

        for (int k = 0; k < t->shape.rank; k++) {
            r.begin[k] = round == 0 ? 0 : roll(t->shape.dim[k]);
            r.size[k] = t->shape.dim[k] - r.begin[k];
            r.size[k] = round % 2 == 1 ? 1 + roll(r.size[k]) : r.size[k];
            n *= r.size[k];
        }
        copy_region(t, &r, want);
        t_assert_error(ch__ckpt_read(c, t->name, &r, have), CH_OK, "");
        assert_memory_equal(have, want, (size_t)(n * element));
        from = roll(n);
        to = from + roll(n - from + 1);
        t_assert_error(ch__ckpt_read_range(c, t->name, &r, from, to - from, have), CH_OK, "");
        assert_memory_equal(have, want + from * element, (size_t)((to - from) * element));
        assert_int_equal(ch__ckpt_read_range(c, t->name, &r, from, n - from + 1, have),
                         CH_INVALID_ARGUMENT);
    }
    free(want);
    free(have);
}

static void check_state(ch_ckpt *c, const table *t, int n)
{
    float   back[4];
    ch_str *strings = NULL;

    assert_int_equal(ch__ckpt_count(c), n + 3); /* and dense, words, metadata */
    assert_int_equal(ch__ckpt_find(c, "gone"), -1);
    for (int i = 0; i < ch__ckpt_count(c); i++) {
        ch_ckpt_entry e;

        ch__ckpt_entry(c, i, &e);
        assert_int_equal(ch__ckpt_find(c, e.name), i);
        assert_null(strstr(e.name, ".ROWS"));
    }
    for (int i = 0; i < n; i++)
        check_table(c, &t[i]);
    assert_int_equal(ch__ckpt_read(c, "dense", NULL, back), CH_OK);
    assert_memory_equal(back, dense[1], sizeof(back));
    assert_int_equal(ch__ckpt_read_strings(c, "words", &strings), CH_OK);
    assert_memory_equal(strings[1].data, "words", 5);
    ch__free(strings);
    for (int i = 0; i < ch__ckpt_count(c); i++)
        t_assert_error(ch__ckpt_verify(c, i), CH_OK, "");
}

/* Reads a checkpoint in parts of some bytes. Each tensor that `c` has must be in one of them. */
static void check_parts(const char *prefix, const ch_ckpt *c, int64_t bytes)
{
    char     after[64] = "";
    int      n = 0;
    bool     has_more = true;
    ch_ckpt *part = NULL;

    while (has_more) {
        t_assert_error(ch__ckpt_open_some(prefix, n > 0 ? after : NULL, bytes, &part), CH_OK,
                       "");
        assert_int_equal(ch__ckpt_count_all(part), ch__ckpt_count(c));
        assert_int_equal(ch__ckpt_metadata(part)->id, ch__ckpt_metadata(c)->id);
        assert_int_equal(ch__ckpt_file_bytes(part, 0), ch__ckpt_file_bytes(c, 0));
        assert_true(ch__ckpt_count(part) > 0);
        for (int i = 0; i < ch__ckpt_count(part); i++, n++) {
            ch_ckpt_entry have, want;

            ch__ckpt_entry(part, i, &have);
            ch__ckpt_entry(c, n, &want);
            assert_string_equal(have.name, want.name);
            assert_true(have.bytes == want.bytes && have.n_rows == want.n_rows &&
                        have.n_parts == want.n_parts && have.dtype == want.dtype &&
                        ch_shape_equal(have.shape, want.shape));
            t_assert_error(ch__ckpt_verify(part, i), CH_OK, "");
        }
        has_more = ch__ckpt_last_name(part) != NULL;
        snprintf(after, sizeof(after), "%s", has_more ? ch__ckpt_last_name(part) : "");
        ch__ckpt_close(part);
    }
    assert_int_equal(n, ch__ckpt_count(c));
}

/* Folds the delta in parts of some bytes. All tensors must be as in the state `t`. */
static void check_fold_in_parts(const table *t, int n)
{
    ch_ckpt *c = NULL;

    t_assert_error(ch__ckpt_open_some(t_path("delta"), NULL, 1 + roll(600), &c), CH_OK, "");
    assert_int_equal(ch__ckpt_remove(t_path("parts"), true), CH_OK);
    t_assert_error(ch__ckpt_fold(c, t_path("parts"), &quick), CH_OK, "");
    ch__ckpt_close(c);
    t_assert_error(ch__ckpt_open(t_path("parts"), &c), CH_OK, "");
    for (int i = 0; i < ch__ckpt_count(c); i++)
        t_assert_error(ch__ckpt_verify(c, i), CH_OK, "");
    assert_true(ch__ckpt_metadata(c)->step == 20 && ch__ckpt_base(c) == NULL);
    check_state(c, t, n);
    ch__ckpt_close(c);
}

/* Writes base and delta, and reads the delta and the folded checkpoint. */
static void check_delta(const table *t, int n)
{
    static t_bundle         delta;
    ch_bytes_builder        text = {0};
    ch_ckpt                *c = NULL;
    const ch_ckpt_metadata *m;
    ch_ckpt_entry           e;

    write_base(t, n, t_path("base"), &delta, &text);
    t_assert_error(write_delta(&delta, t_path("delta"), "base"), CH_OK, "");
    t_assert_error(ch__ckpt_open(t_path("delta"), &c), CH_OK, "");
    assert_non_null(ch__ckpt_base(c));
    for (int i = 0; i < n; i++) {
        ch__ckpt_entry(c, ch__ckpt_find(c, t[i].name), &e);
        assert_true(e.n_rows == t[i].n_ids && e.n_parts == 0 && e.dtype == t[i].dtype);
        assert_true(ch_shape_equal(e.shape, t[i].shape));
        assert_int_equal(e.bytes, t[i].n_ids * (8 + t[i].row_bytes));
    }
    check_state(c, t, n);
    check_parts(t_path("delta"), c, 1 + roll(600));
    assert_int_equal(ch__ckpt_remove(t_path("full"), true), CH_OK);
    t_assert_error(ch__ckpt_fold(c, t_path("full"), &quick), CH_OK, "");
    ch__ckpt_close(c);
    check_fold_in_parts(t, n);
    t_assert_error(ch__ckpt_open(t_path("full"), &c), CH_OK, "");
    m = ch__ckpt_metadata(c);
    assert_true(m->step == 20 && m->time == 1600000000000000 && m->base == NULL && m->id != 18);
    check_state(c, t, n);
    check_parts(t_path("full"), c, 1 + roll(600));
    t_assert_error(ch__ckpt_fold(c, t_path("other"), &quick), CH_INVALID_ARGUMENT, "full");
    ch__ckpt_close(c);
    ch__bytes_builder_drop(&text);
}

static void delta_reads_like_the_full_state_by_any_regions(void **state)
{
    static const ch_dtype types[] = {CH_F32, CH_F64, CH_BF16, CH_I8, CH_I64, CH_F16};

    for (int round = 0; round < 60; round++) {
        table t[N_TABLES];

        for (int i = 0; i < N_TABLES; i++) {
            ch_shape shape = {.rank = 1 + (int)roll(3)};

            for (int k = 0; k < shape.rank; k++)
                shape.dim[k] = 1 + roll(k == 0 ? 200 : 6);
            table_make(&t[i], i, types[roll(6)], shape, (int)roll(5));
        }
        check_delta(t, N_TABLES);
        for (int i = 0; i < N_TABLES; i++)
            table_drop(&t[i]);
    }
    (void)state;
}

static void delta_reads_many_rows_and_large_rows_in_pieces(void **state)
{
    table t[2];

    table_make(&t[0], 0, CH_I16, ch_shape_of(200000), 2); /* more ids than are read at a time */
    table_make(&t[1], 1, CH_F32, ch_shape_of(4, 300000), 1); /* rows above a megabyte */
    check_delta(t, 2);
    table_drop(&t[0]);
    table_drop(&t[1]);
    (void)state;
}

/* ---- deltas that do not match ---- */

static table fault_table;

static void delta_open_rejects_a_missing_or_other_base(void **state)
{
    static t_bundle  b, delta;
    ch_bytes_builder text = {0};
    ch_ckpt         *c = NULL;

    table_make(&fault_table, 0, CH_F32, ch_shape_of(9, 2), 1);
    write_base(&fault_table, 1, t_path("base"), &delta, &text);
    b = delta;
    assert_int_equal(write_delta(&b, t_path("lost"), "nowhere"), CH_OK);
    t_assert_error(ch__ckpt_open(t_path("lost"), &c), CH_NOT_FOUND, "lost", "base",
                   "nowhere.index");
    b = delta;
    assert_int_equal(write_delta(&b, t_path("delta"), "base"), CH_OK);
    b = delta;
    assert_int_equal(write_delta(&b, t_path("chain"), "delta"), CH_OK);
    t_assert_error(ch__ckpt_open(t_path("chain"), &c), CH_DATA_LOSS, "0000000000000011",
                   "0000000000000012");
    ch_ckpt_metadata m = {.format = CH_CKPT_FORMAT, .id = 17, .base_id = 18, .base = "delta"};
    b = delta;
    assert_int_equal(t_write_checkpoint(&b, t_path("base"), &m, &quick), CH_OK);
    t_assert_error(ch__ckpt_open(t_path("delta"), &c), CH_DATA_LOSS, "is a delta too");
    b = (t_bundle){0};
    t_add(&b, "dense", CH_F32, ch_shape_of(4), dense[0]); /* from TensorFlow: no metadata */
    assert_int_equal(t_write_bundle(&b, t_path("base"), 1, true, &quick), CH_OK);
    t_assert_error(ch__ckpt_open(t_path("delta"), &c), CH_DATA_LOSS, "0000000000000000");
    ch__bytes_builder_drop(&text);
    (void)state;
}

/* Writes a delta with these items for the tensor t0 of shape (9, 2), and opens it. */
static ch_status open_rows(ch_dtype ids_dtype, ch_shape ids, const void *id, ch_dtype dtype,
                           ch_shape values, const char *name, ch_ckpt **c)
{
    static t_bundle  b, delta;
    ch_bytes_builder text = {0};
    char             ids_name[64], values_name[64];

    fault_table.n_ids = 0;
    write_base(&fault_table, 1, t_path("base"), &delta, &text);
    b = (t_bundle){0};
    snprintf(ids_name, sizeof(ids_name), "%s" CH_DELTA_IDS, name);
    snprintf(values_name, sizeof(values_name), "%s" CH_DELTA_VALUES, name);
    t_add(&b, ids_name, ids_dtype, ids, id);
    t_add(&b, values_name, dtype, values, fault_table.after);
    assert_int_equal(write_delta(&b, t_path("delta"), "base"), CH_OK);
    ch__bytes_builder_drop(&text);
    return ch__ckpt_open(t_path("delta"), c);
}

static void delta_open_rejects_rows_that_do_not_match_the_base(void **state)
{
    static const int64_t id[] = {1, 3, 5, 7, 8, 9, 10, 11, 12, 13};
    static t_bundle      b;
    ch_ckpt             *c = NULL;
    const ch_shape       two = ch_shape_of(2, 2);

    t_assert_error(open_rows(CH_I32, ch_shape_of(2), id, CH_F32, two, "t0", &c), CH_DATA_LOSS,
                   "\"t0\"", "not of dtype i64");
    t_assert_error(open_rows(CH_I64, ch_shape_of(2, 1), id, CH_F32, two, "t0", &c),
                   CH_DATA_LOSS, "not of dtype i64");
    t_assert_error(open_rows(CH_I64, ch_shape_of(2), id, CH_I32, two, "t0", &c), CH_DATA_LOSS,
                   "another dtype or rank");
    t_assert_error(open_rows(CH_I64, ch_shape_of(2), id, CH_F32, ch_shape_of(2), "t0", &c),
                   CH_DATA_LOSS, "another dtype or rank");
    t_assert_error(open_rows(CH_I64, ch_shape_of(3), id, CH_F32, two, "t0", &c), CH_DATA_LOSS,
                   "the numbers of its rows and ids");
    t_assert_error(open_rows(CH_I64, ch_shape_of(10), id, CH_F32, ch_shape_of(10, 1), "t0", &c),
                   CH_DATA_LOSS, "the numbers of its rows and ids");
    t_assert_error(open_rows(CH_I64, ch_shape_of(2), id, CH_F32, ch_shape_of(2, 3), "t0", &c),
                   CH_DATA_LOSS, "another shape");
    t_assert_error(open_rows(CH_I64, ch_shape_of(2), id, CH_F32, two, "x", &c), CH_DATA_LOSS,
                   "\"x\"", "not in the base");
    b = (t_bundle){0};
    t_add(&b, "t0" CH_DELTA_IDS, CH_I64, ch_shape_of(2), id);
    assert_int_equal(write_delta(&b, t_path("delta"), "base"), CH_OK);
    t_assert_error(ch__ckpt_open(t_path("delta"), &c), CH_DATA_LOSS,
                   "ids of rows are 1, those with values 0");
    b = (t_bundle){0};
    t_add(&b, "t0" CH_DELTA_IDS, CH_I64, ch_shape_of(2), id);
    t_add(&b, "x" CH_DELTA_VALUES, CH_F32, two, fault_table.after);
    assert_int_equal(write_delta(&b, t_path("delta"), "base"), CH_OK);
    t_assert_error(ch__ckpt_open(t_path("delta"), &c), CH_DATA_LOSS, "no values");
    b = (t_bundle){0};
    t_add(&b, "t0", CH_F32, ch_shape_of(4), dense[0]);
    t_add(&b, "t0" CH_DELTA_IDS, CH_I64, ch_shape_of(2), id);
    t_add(&b, "t0" CH_DELTA_VALUES, CH_F32, two, fault_table.after);
    assert_int_equal(write_delta(&b, t_path("delta"), "base"), CH_OK);
    t_assert_error(ch__ckpt_open(t_path("delta"), &c), CH_DATA_LOSS, "itself and as rows");
    (void)state;
}

static void delta_read_rejects_ids_that_do_not_ascend(void **state)
{
    static const int64_t bad[][2] = {{3, 3}, {5, 2}, {-1, 2}, {2, 9}};
    float                back[18];
    ch_ckpt             *c = NULL;

    for (int i = 0; i < 4; i++) {
        assert_int_equal(
            open_rows(CH_I64, ch_shape_of(2), bad[i], CH_F32, ch_shape_of(2, 2), "t0", &c),
            CH_OK);
        t_assert_error(ch__ckpt_read(c, "t0", NULL, back), CH_DATA_LOSS, "row id", "below 9");
        t_assert_error(ch__ckpt_verify(c, ch__ckpt_find(c, "t0")), CH_DATA_LOSS, "row id");
        ch__ckpt_close(c);
    }
    (void)state;
}

/* ---- failures ---- */

static ch_status open_and_fold(const char *to)
{
    char      back[18 * 4];
    ch_region r = t_region(2, (int64_t[]){2, 0}, (int64_t[]){5, 2});
    ch_ckpt  *c = NULL;
    ch_status rc = ch__ckpt_open(t_path("delta"), &c);

    if (rc == CH_OK)
        rc = ch__ckpt_read(c, "t0", &r, back);
    if (rc == CH_OK)
        rc = ch__ckpt_fold(c, to, NULL);
    ch__ckpt_close(c);
    return rc;
}

static bool is_there(const char *name)
{
    return access(t_path(name), F_OK) == 0;
}

static void write_pair(void)
{
    static t_bundle  delta;
    ch_bytes_builder text = {0};

    table_drop(&fault_table);
    table_make(&fault_table, 0, CH_F32, ch_shape_of(9, 2), 1);
    write_base(&fault_table, 1, t_path("base"), &delta, &text);
    assert_int_equal(write_delta(&delta, t_path("delta"), "base"), CH_OK);
    ch__bytes_builder_drop(&text);
}

static void fold_refuses_to_replace_a_checkpoint(void **state)
{
    write_pair();
    t_assert_error(open_and_fold(t_path("base")), CH_ALREADY_EXISTS, "base", "another name");
    (void)state;
}

static void fold_leaves_no_file_when_a_call_fails(void **state)
{
    static const int errors[] = {EIO, ENOSPC};

    write_pair();
    for (int e = 0; e < 2; e++) {
        bool done = false;

        for (int64_t n = 1; !done; n++) {
            int       files = t_count_files();
            ch_status rc;

            if (errors[e] == ENOSPC)
                ch__file_fail_from(n, ENOSPC); /* from then on */
            else
                ch__file_fail_at(n, EIO);
            rc = open_and_fold(t_path("new"));
            ch__file_fail_at(0, EIO);
            done = rc == CH_OK;
            assert_true(done || rc == CH_DATA_LOSS || rc == CH_RESOURCE_EXHAUSTED);
            assert_int_equal(t_count_files(), files + (done ? 2 : 0));
        }
        assert_true(is_there("new.index"));
        assert_int_equal(ch__ckpt_remove(t_path("new"), true), CH_OK);
    }
    (void)state;
}

static void fold_returns_an_error_when_memory_is_exhausted(void **state)
{
    bool done = false;

    write_pair();
    for (int64_t n = 1; !done; n++) {
        int64_t   live = ch__mem_live();
        ch_status rc;

        ch__mem_fail_at(n);
        rc = open_and_fold(t_path("new"));
        ch__mem_fail_at(0);
        done = rc == CH_OK;
        if (!done)
            assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
        assert_int_equal(ch__mem_live(), live);
        assert_int_equal(is_there("new.index"), done);
    }
    table_drop(&fault_table);
    (void)state;
}

static void fold_rejects_damaged_rows(void **state)
{
    ch_ckpt     *c = NULL;
    ch_ckpt_part part = {0};
    char         byte;

    write_pair();
    assert_int_equal(ch__ckpt_open(t_path("base"), &c), CH_OK);
    ch__ckpt_part(c, ch__ckpt_find(c, "t0"), 0, &part);
    ch__ckpt_close(c);
    FILE *f = fopen(t_path("base.data-00000-of-00001"), "r+b");
    fseek(f, (long)part.offset, SEEK_SET);
    byte = (char)fgetc(f);
    fseek(f, (long)part.offset, SEEK_SET);
    fputc(byte + 1, f);
    fclose(f);
    assert_int_equal(ch__ckpt_remove(t_path("new"), true), CH_OK);
    t_assert_error(open_and_fold(t_path("new")), CH_DATA_LOSS, "base.data", "t0", "Checksum");
    assert_false(is_there("new.data-00000-of-00001"));
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delta_reads_like_the_full_state_by_any_regions),
        cmocka_unit_test(delta_reads_many_rows_and_large_rows_in_pieces),
        cmocka_unit_test(delta_open_rejects_a_missing_or_other_base),
        cmocka_unit_test(delta_open_rejects_rows_that_do_not_match_the_base),
        cmocka_unit_test(delta_read_rejects_ids_that_do_not_ascend),
        cmocka_unit_test(fold_refuses_to_replace_a_checkpoint),
        cmocka_unit_test(fold_leaves_no_file_when_a_call_fails),
        cmocka_unit_test(fold_rejects_damaged_rows),
        cmocka_unit_test(fold_returns_an_error_when_memory_is_exhausted),
    };

    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}
