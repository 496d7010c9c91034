/* test/data/test_exactly_once.c -- nothing is lost and nothing comes twice, however the data is divided.
 *
 * Random pipelines over every kind of source, for W workers of R replicas each, against a model that
 * works on a list of numbers and knows neither stages nor threads. T_CASES says how many; T_SEED
 * which.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

#include "../file/folder.h"
#include "pipeline.h"

static uint64_t seed;

static int draw(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* ---- the model: a list of numbers ---- */

enum { MOST = 4000 };

typedef struct list {
    int     n;
    int64_t at[MOST];
} list;

static void model_filter(list *l)
{
    int n = 0;

    for (int i = 0; i < l->n; i++)
        if (l->at[i] % 3 != 0)
            l->at[n++] = l->at[i];
    l->n = n;
}

static void model_map(list *l)
{
    for (int i = 0; i < l->n; i++)
        l->at[i] = 2 * l->at[i] + 1;
}

static void model_repeat(list *l, int times)
{
    int n = l->n;

    for (int t = 1; t < times; t++)
        for (int i = 0; i < n; i++)
            l->at[l->n++] = l->at[i];
    l->n = times == 0 ? 0 : l->n;
}

static void model_cut(list *l, int from, int to)
{
    int n = 0;

    for (int i = 0; i < l->n; i++)
        if (i >= from && i < to)
            l->at[n++] = l->at[i];
    l->n = n;
}

static void model_shard(list *l, int of, int index)
{
    int n = 0;

    for (int i = index; i < l->n; i += of)
        l->at[n++] = l->at[i];
    l->n = n;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

static void sort(list *l)
{
    qsort(l->at, (size_t)l->n, sizeof(l->at[0]), ascending);
}

/* ---- sources ---- */

enum { FILES = 5, ROWS = 7 }; /* file f has ROWS * f rows: one is empty */

static const char *file_of(int f, const char *end)
{
    static char text[200];

    snprintf(text, sizeof(text), "%s/%d.%s", t_folder, f, end);
    return text;
}

static void write_files(void)
{
    int64_t next = 0;

    for (int f = 0; f < FILES; f++) {
        ch_record_writer *w = NULL;
        ch_tensor        *t = NULL;
        FILE             *lines = fopen(file_of(f, "csv"), "w");
        ch_example       *e = NULL;

        t_ok(ch_example_new(&e));
        t_ok(ch_record_writer_open(file_of(f, "tfrecord"), &(ch_save_options){.no_sync = true},
                                   &w));
        t_ok(ch_tensor_new(CH_I64, ch_shape_of(ROWS * f), &t));
        fprintf(lines, "x\n");
        for (int i = 0; i < ROWS * f; i++, next++) {
            ch_tensor *x = NULL;

            t_ok(ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &next, &x));
            t_ok(ch_example_set(e, "x", x));
            t_ok(ch_record_writer_add_example(w, e));
            ((int64_t *)ch_tensor_data_mut(t))[i] = next;
            fprintf(lines, "%lld\n", (long long)next);
            ch_tensor_unref(x);
        }
        t_ok(ch_record_writer_close(w));
        t_ok(ch_npy_save(file_of(f, "npy"), t, &(ch_save_options){.no_sync = true}));
        assert_int_equal(fclose(lines), 0);
        ch_tensor_unref(t);
        ch_example_free(e);
    }
}

static ch_dataset *examples(ch_dataset *names, void *arg)
{
    (void)arg;
    return ch_dataset_parse_examples(ch_dataset_tfrecord(names, NULL), 1,
                                     &(ch_feature){.name = "x", .dtype = CH_I64});
}

static ch_dataset *names_of(const char *end)
{
    char pattern[200];

    snprintf(pattern, sizeof(pattern), "%s/*.%s", t_folder, end);
    return ch_dataset_files(pattern, &(ch_files_options){.shuffle = draw(2), .seed = 3});
}

static ch_dataset *from_memory(int n)
{
    ch_tensor  *t = NULL;
    ch_dataset *d;

    t_ok(ch_tensor_new(CH_I64, ch_shape_of(n), &t));
    for (int i = 0; i < n; i++)
        ((int64_t *)ch_tensor_data_mut(t))[i] = i;
    d = ch_dataset_slices(1, &t, NULL);
    ch_tensor_unref(t);
    return d;
}

/* A dataset of the numbers 0 .. n - 1; *any_order: files may be shuffled. */
static ch_dataset *source(int kind, list *l, bool *any_order)
{
    int n = kind < 2 ? draw(70) : ROWS * (FILES - 1) * FILES / 2;

    l->n = 0;
    for (int i = 0; i < n; i++)
        l->at[l->n++] = i;
    *any_order = kind >= 2;
    switch (kind) {
    case 0:
        return ch_dataset_range(0, n, 1);
    case 1:
        return from_memory(n);
    case 2:
        return examples(names_of("tfrecord"), NULL);
    case 3:
        return ch_dataset_interleave(
            names_of("tfrecord"), examples, NULL,
            &(ch_interleave_options){.cycle = 1 + draw(4), .block = 1 + draw(3)});
    case 4:
        return ch_dataset_csv(names_of("csv"), 1,
                              &(ch_csv_column){.name = "x", .dtype = CH_I64}, NULL);
    default:
        return ch_dataset_npy(names_of("npy"), &(ch_tensor_spec){.dtype = CH_I64}, NULL);
    }
}

/* ---- stages ---- */

static void keep(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL,
                ch_not_equal(ch_mod(ch_step_in(s, 0), ch_number(s, 3)), ch_number(s, 0)));
}

static void change(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_add(ch_mul(ch_step_in(s, 0), ch_number(s, 2)), ch_number(s, 1)));
}

static ch_dataset *rows_of(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_unbatch(element);
}

static const char *cache_of(int number)
{
    static char text[200];

    snprintf(text, sizeof(text), "%s/%d.cache", t_folder, number);
    return text;
}

/* One more stage on both sides. What depends on the order is only done where it is known. */
static ch_dataset *stage(int number, ch_dataset *d, list *l, bool *any_order)
{
    int n, k;

    switch (draw(*any_order ? 9 : 12)) {
    case 0:
        model_map(l);
        return ch_dataset_map(d, change, NULL, NULL);
    case 1:
        model_filter(l);
        return ch_dataset_filter(d, keep, NULL);
    case 2:
        n = draw(4);
        if (l->n * n > MOST)
            return d;
        model_repeat(l, n);
        return ch_dataset_repeat(d, n);
    case 3:
        *any_order = true;
        return ch_dataset_shuffle(d, 1 + draw(40), &(ch_shuffle_options){.seed = 9});
    case 4:
        return ch_dataset_prefetch(d, draw(4));
    case 5:
        return ch_dataset_cache(d, draw(2) ? cache_of(number) : NULL);
    case 6:
        return ch_dataset_unbatch(ch_dataset_batch(d, 1 + draw(9), NULL));
    case 7:
        return ch_dataset_flat_map(ch_dataset_batch(d, 1 + draw(9), NULL), rows_of, NULL);
    case 8:
        return ch_dataset_unbatch(ch_dataset_rebatch(ch_dataset_batch(d, 1 + draw(9), NULL), 2,
                                                     (int64_t[]){1 + draw(4), draw(4)}, NULL));
    case 9:
        n = draw(60);
        model_cut(l, 0, n);
        return ch_dataset_take(d, n);
    case 10:
        n = draw(30);
        model_cut(l, n, l->n);
        return ch_dataset_skip(d, n);
    default:
        n = 1 + draw(3);
        k = draw(n);
        model_shard(l, n, k);
        return ch_dataset_shard(d, n, k);
    }
}

/* ---- ragged rows ---- */

/* |x| % 4 times x, and x: what the one row is of, the other is of too. */
static ch_status as_often(void *arg, ch_tuple *in, ch_tuple **out)
{
    ch_tensor *number = ch_value_at(ch_tuple_at(in, 0), 0), *t[2] = {NULL, number};
    int64_t    x = *(const int64_t *)ch_tensor_data(number);
    ch_status  rc =
        ch_tensor_copy_of(CH_I64, ch_shape_of(llabs(x) % 4), (int64_t[]){x, x, x}, &t[0]);

    (void)arg;
    if (rc == CH_OK)
        rc = ch_tuple_of(2, t, out);
    ch_tensor_unref(t[0]);
    return rc;
}

static ch_dataset *ragged_batches(ch_dataset *d, int size, bool drop)
{
    const ch_tensor_spec   spec[] = {{.dtype = CH_I64, .shape = ch_shape_of(-1)},
                                     {.dtype = CH_I64}};
    const ch_batch_options opt = {.ragged = true};

    d = ch_dataset_map_call(d, as_often, NULL, 2, spec, NULL);
    if (draw(2)) {
        d = ch_dataset_rebatch(ch_dataset_batch(d, 1 + draw(9), &opt), 2,
                               (int64_t[]){1 + draw(4), draw(4)}, NULL);
        d = ch_dataset_unbatch(d);
    }
    return ch_dataset_batch(d, size,
                            &(ch_batch_options){.ragged = true, .drop_remainder = drop});
}

static void check_ragged(const ch_tensor *values, const ch_tensor *splits, const ch_tensor *x)
{
    const int64_t *v = ch_tensor_data(values), *s = ch_tensor_data(splits),
                  *row = ch_tensor_data(x);
    int64_t n = ch_tensor_count(x);

    assert_int_equal(ch_tensor_count(splits), n + 1);
    assert_int_equal(s[0], 0);
    assert_int_equal(s[n], ch_tensor_count(values));
    for (int64_t r = 0; r < n; r++) {
        assert_int_equal(s[r + 1] - s[r], llabs(row[r]) % 4);
        for (int64_t i = s[r]; i < s[r + 1]; i++)
            assert_int_equal(v[i], row[r]);
    }
}

/* ---- what the workers got ---- */

static void add_rows(list *got, ch_tuple *t, int replica)
{
    bool             is_ragged = ch_tuple_count(t) == 3;
    const ch_tensor *x = ch_value_at(ch_tuple_at(t, is_ragged ? 2 : 0), replica);

    if (is_ragged)
        check_ragged(ch_value_at(ch_tuple_at(t, 0), replica),
                     ch_value_at(ch_tuple_at(t, 1), replica), x);
    for (int64_t i = 0; i < ch_tensor_count(x); i++) {
        assert_true(got->n < MOST);
        got->at[got->n++] = ((const int64_t *)ch_tensor_data(x))[i];
    }
}

/* All replicas of all workers, step by step. */
static void run_workers(ch_dataset *d, int n_workers, int n_local, ch_batch_split split,
                        list *got)
{
    ch_iterator *it[4] = {NULL};
    bool         more = true;

    got->n = 0;
    for (int w = 0; w < n_workers; w++) {
        ch_dataset *mine = NULL;

        t_ok(ch_dataset_distribute(
            d, &(ch_input_context){n_workers, w, n_workers * n_local, split}, &mine));
        t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = n_local}, &it[w]));
        ch_dataset_unref(mine);
    }
    while (more) {
        more = false;
        for (int w = 0; w < n_workers; w++) {
            ch_tuple *t = NULL;

            t_ok(ch_iterator_next(it[w], &t));
            for (int r = 0; t != NULL && r < n_local; r++)
                add_rows(got, t, r);
            more |= t != NULL;
            ch_tuple_unref(t);
        }
    }
    for (int w = 0; w < n_workers; w++)
        ch_iterator_unref(it[w]);
}

static void one_case(int number)
{
    static list want, got;
    int         kind = draw(6), n_stages = draw(4), size = 1 + draw(12);
    int         n_workers = 1 + draw(4), n_local = 1 + draw(4);
    bool        any_order, drop = draw(2) != 0;
    ch_dataset *d = source(kind, &want, &any_order);
    char        text[2000];

    for (int i = 0; i < n_stages; i++)
        d = stage(4 * number + i, d, &want, &any_order);
    d = draw(3) == 0 ? ragged_batches(d, size, drop)
                     : ch_dataset_batch(d, size, &(ch_batch_options){.drop_remainder = drop});
    d = ch_dataset_with_options(
        d, &(ch_dataset_options){.threads = draw(3) - 1,
                                 .shard = draw(2) ? CH_SHARD_AUTO : CH_SHARD_DATA});
    if (d == NULL)
        fail_msg("case %d: %s", number, ch_error_message());
    run_workers(d, n_workers, n_local, draw(2) ? CH_SPLIT_NOMINAL : CH_SPLIT_EVEN, &got);
    ch_dataset_print(d, text, sizeof(text));
    ch_dataset_unref(d);
    if (drop && !any_order)
        model_cut(&want, 0, want.n / size * size);
    if (any_order && drop) { /* which rows were dropped is not known, but how many are */
        if (got.n != want.n / size * size)
            fail_msg("case %d, %d x %d: %d rows of %d\n%s", number, n_workers, n_local, got.n,
                     want.n, text);
        return;
    }
    if (any_order) {
        sort(&want);
        sort(&got);
    }
    if (got.n != want.n || memcmp(got.at, want.at, (size_t)want.n * sizeof(want.at[0])) != 0)
        fail_msg("case %d, %d x %d: %d rows, want %d, or others\n%s", number, n_workers,
                 n_local, got.n, want.n, text);
}

static void every_row_reaches_one_replica_once(void **state)
{
    int      n = getenv("T_CASES") != NULL ? atoi(getenv("T_CASES")) : 1000;
    uint64_t first = getenv("T_SEED") != NULL ? strtoull(getenv("T_SEED"), NULL, 10) : 1;

    (void)state;
    for (int i = 0; i < n; i++) {
        seed = first + (uint64_t)i * 7919;
        draw(2);
        one_case(i);
    }
}

static int make_directory(void **state)
{
    (void)state;
    if (t_folder_make(NULL) != 0)
        return -1;
    write_files();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_row_reaches_one_replica_once)};

    return cmocka_run_group_tests(tests, make_directory, t_folder_remove);
}
