/* test/data/test_exactly_once.c -- no row is lost or repeated by any division of the data.
 *
 * The tests run random pipelines over every kind of source, for W workers of R replicas each.
 * The model works on a list of numbers, without stages or threads. T_CASES is the number of
 * cases; T_SEED selects them.
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

enum { FILES = 5, ROWS = 7 }; /* file f has ROWS * f rows, so file 0 is empty */

static const char *file_of(int f, const char *end)
{
    static char text[200];

    snprintf(text, sizeof(text), "%s/%d.%s", t_folder, f, end);
    return text;
}

static void save_tuple(const char *path, ch_tensor *t)
{
    ch_value *v = NULL;
    ch_tuple *all = NULL;

    t_ok(ch_value_new(CH_PLAIN, 1, &t, &v));
    t_ok(ch_tuple_new(1, &v, (const char *[]){"x"}, &all));
    t_ok(ch_npz_save(path, all, &(ch_save_options){.no_sync = true}));
    ch_tuple_unref(all);
    ch_value_unref(v);
}

/* Writes the same numbers as lines, LibSVM text, records of 8 bytes, IDX, npz and compressed
 * lines. */
static void write_other_kinds(int f, ch_tensor *t)
{
    const int64_t *x = ch_tensor_data(t);
    FILE          *lines = fopen(file_of(f, "txt"), "w"), *svm = fopen(file_of(f, "svm"), "w");
    FILE          *fixed = fopen(file_of(f, "bin"), "w");
    char           command[500];
    ch_tensor     *small = NULL;

    t_ok(ch_tensor_new(CH_I32, ch_shape_of(ch_tensor_count(t)), &small));
    for (int64_t i = 0; i < ch_tensor_count(t); i++) {
        ((int32_t *)ch_tensor_data_mut(small))[i] = (int32_t)x[i];
        fprintf(lines, "%lld\n", (long long)x[i]);
        fprintf(svm, "%lld 1:0.5\n", (long long)x[i]);
        fprintf(fixed, "%8lld", (long long)x[i]);
    }
    assert_int_equal(fclose(lines) | fclose(svm) | fclose(fixed), 0);
    t_ok(ch_idx_save(file_of(f, "idx"), small, &(ch_save_options){.no_sync = true}));
    save_tuple(file_of(f, "npz"), t);
    snprintf(command, sizeof(command), "gzip -c %s >%s/%d.z.gz", file_of(f, "txt"), t_folder,
             f);
    assert_int_equal(system(command), 0);
    ch_tensor_unref(small);
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
        write_other_kinds(f, t);
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

/* Parses a number from text. */
static ch_status parse(void *arg, ch_tuple *in, ch_tuple **out)
{
    ch_str     s = *(const ch_str *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));
    char       text[32];
    int64_t    x;
    ch_tensor *t = NULL;
    ch_status  rc;

    (void)arg;
    snprintf(text, sizeof(text), "%.*s", (int)s.size, s.data);
    x = strtoll(text, NULL, 10);
    rc = ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &x, &t);
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

static ch_dataset *parsed(ch_dataset *texts)
{
    return ch_dataset_map_call(texts, parse, NULL, 1, &(ch_tensor_spec){.dtype = CH_I64}, NULL);
}

static void last_as_i64(ch_step *s, void *arg)
{
    ch_step_out(s, NULL, ch_cast(ch_step_in(s, *(const int *)arg), CH_I64));
}

typedef struct counter {
    int64_t next, n;
} counter;

static ch_status count_on(void *arg, ch_tuple **out)
{
    counter   *c = arg;
    ch_tensor *t = NULL;
    ch_status  rc;

    if (c->next == c->n)
        return CH_OK;
    rc = ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &c->next, &t);
    c->next++;
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

static ch_status count_again(void *arg)
{
    ((counter *)arg)->next = 0;
    return CH_OK;
}

static ch_status make_counter(void *arg, void **out)
{
    counter *c = calloc(1, sizeof(*c));

    *out = c;
    if (c != NULL)
        c->n = *(const int64_t *)arg;
    return c != NULL ? CH_OK : CH_RESOURCE_EXHAUSTED;
}

static ch_dataset *from_function(int n)
{
    static int64_t       n_given; /* of the current case */
    const ch_tensor_spec one = {.dtype = CH_I64};
    const ch_generator   g = {
          .spec = &one, .n_spec = 1, .next = count_on, .restart = count_again};

    n_given = n;
    return ch_dataset_generator(&g, make_counter, free, &n_given);
}

enum { N_KINDS = 13, FIRST_OF_FILES = 3 };

static ch_dataset *source_of_files(int kind)
{
    static int first = 0, second = 1;

    switch (kind) {
    case 3:
        return examples(names_of("tfrecord"), NULL);
    case 4:
        return ch_dataset_interleave(
            names_of("tfrecord"), examples, NULL,
            &(ch_interleave_options){.cycle = 1 + draw(4), .block = 1 + draw(3)});
    case 5:
        return ch_dataset_csv(names_of("csv"), 1,
                              &(ch_csv_column){.name = "x", .dtype = CH_I64}, NULL);
    case 6:
        return ch_dataset_npy(names_of("npy"), &(ch_tensor_spec){.dtype = CH_I64}, NULL);
    case 7:
        return ch_dataset_npz(names_of("npz"), 1,
                              &(ch_tensor_spec){.name = "x", .dtype = CH_I64}, NULL);
    case 8:
        return ch_dataset_map(
            ch_dataset_idx(names_of("idx"), &(ch_tensor_spec){.dtype = CH_I32}, NULL),
            last_as_i64, &first, NULL);
    case 9:
        return parsed(ch_dataset_lines(names_of("txt"), NULL));
    case 10:
        return parsed(ch_dataset_lines(names_of("z.gz"), NULL));
    case 11:
        return ch_dataset_map(ch_dataset_libsvm(names_of("svm"), 1, NULL), last_as_i64, &second,
                              NULL);
    default:
        return parsed(ch_dataset_fixed_records(names_of("bin"), 8, 0, 0, NULL));
    }
}

/* Returns a dataset of the numbers 0 .. n - 1. Sets *any_order if files may be shuffled. */
static ch_dataset *source(int kind, list *l, bool *any_order)
{
    int n = kind < FIRST_OF_FILES ? draw(70) : ROWS * (FILES - 1) * FILES / 2;

    l->n = 0;
    for (int i = 0; i < n; i++)
        l->at[l->n++] = i;
    *any_order = kind >= FIRST_OF_FILES;
    return kind == 0   ? ch_dataset_range(0, n, 1)
           : kind == 1 ? from_memory(n)
           : kind == 2 ? from_function(n)
                       : source_of_files(kind);
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

/* Adds a stage to the dataset and to the model. Stages that depend on the order are used only
 * if the order is known. */
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

/* Returns x repeated |x| % 4 times, and x: both components must belong to the same row. */
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

/* ---- rows that the workers got ---- */

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

/* Reads all replicas of workers first .. last - 1, step by step. */
static void run_workers(ch_dataset *d, int n_workers, int first, int last, int n_local,
                        ch_batch_split split, list *got)
{
    ch_iterator *it[4] = {NULL};
    bool         more = true;

    got->n = 0;
    for (int w = first; w < last; w++) {
        ch_dataset *mine = NULL;

        t_ok(ch_dataset_distribute(d,
                                   &(ch_input_context){.n_pipelines = n_workers,
                                                       .pipeline = w,
                                                       .n_replicas = n_workers * n_local,
                                                       .split = split},
                                   &mine));
        t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = n_local}, &it[w]));
        ch_dataset_unref(mine);
    }
    while (more) {
        more = false;
        for (int w = first; w < last; w++) {
            ch_tuple *t = NULL;

            t_ok(ch_iterator_next(it[w], &t));
            for (int r = 0; t != NULL && r < n_local; r++)
                add_rows(got, t, r);
            more |= t != NULL;
            ch_tuple_unref(t);
        }
    }
    for (int w = first; w < last; w++)
        ch_iterator_unref(it[w]);
}

/* Chooses a policy and prepares the pipeline for it. Policies FILE and HINT divide the input of
 * all other stages, so stages that depend on the order would differ on each worker. */
static ch_shard_policy policy_for(int kind, ch_dataset **d, bool *any_order)
{
    switch (draw(6)) {
    case 0:
        return CH_SHARD_OFF;
    case 1:
        *any_order = true;
        *d = ch_dataset_shard(*d, CH_BY_HINT, 0);
        return CH_SHARD_HINT;
    case 2:
        *any_order |= kind >= FIRST_OF_FILES;
        return kind >= FIRST_OF_FILES ? CH_SHARD_FILE : CH_SHARD_AUTO;
    case 3:
    case 4:
        return CH_SHARD_DATA;
    default:
        return CH_SHARD_AUTO;
    }
}

/* Returns true if `want` contains all rows of `got`, each at least as often. Both are
 * sorted. */
static bool is_part_of(const list *got, const list *want)
{
    int k = 0;

    for (int i = 0; i < got->n; i++, k++) {
        while (k < want->n && want->at[k] < got->at[i])
            k++;
        if (k == want->n || want->at[k] != got->at[i])
            return false;
    }
    return true;
}

/* Returns true if the number of rows is possible when each of `n` workers may drop the
 * remainder of a batch of `size`. */
static bool fits(const list *got, const list *want, int size, int n)
{
    if (n == 1)
        return got->n == want->n / size * size;
    return got->n <= want->n && got->n >= want->n - n * (size - 1);
}

static bool is_as_wanted(list *got, list *want, bool any_order, int n_dropping, int size)
{
    if (any_order) {
        sort(want);
        sort(got);
    } else if (n_dropping > 0) {
        model_cut(want, 0, want->n / size * size);
    }
    if (any_order && n_dropping > 0) /* the dropped rows are unknown */
        return fits(got, want, size, n_dropping) && is_part_of(got, want);
    return got->n == want->n &&
           memcmp(got->at, want->at, (size_t)want->n * sizeof(want->at[0])) == 0;
}

/* Checks the rows of all workers together. With policy OFF, checks each worker by itself,
 * because each has all the data. */
static void check_workers(int number, ch_dataset *d, ch_shard_policy policy, int size,
                          bool drop, const list *model, bool any_order)
{
    static list    want, got;
    int            n_workers = 1 + draw(4), n_local = 1 + draw(4);
    ch_batch_split split = draw(2) ? CH_SPLIT_NOMINAL : CH_SPLIT_EVEN;
    bool           apart = policy == CH_SHARD_FILE || policy == CH_SHARD_HINT;
    int            first = 0, last = n_workers;
    char           text[2000];

    do {
        want = *model;
        if (policy == CH_SHARD_OFF)
            last = first + 1;
        run_workers(d, n_workers, first, last, n_local, split, &got);
        if (!is_as_wanted(&got, &want, any_order, drop ? (apart ? n_workers : 1) : 0, size)) {
            ch_dataset_print(d, text, sizeof(text));
            fail_msg("case %d, policy %d, %d x %d: %d rows, want %d, or others\n%s", number,
                     (int)policy, n_workers, n_local, got.n, want.n, text);
        }
    } while (policy == CH_SHARD_OFF && ++first < n_workers);
}

static void one_case(int number)
{
    static list     want;
    int             kind = draw(N_KINDS), n_stages = draw(4), size = 1 + draw(12);
    bool            any_order, drop = draw(2) != 0;
    ch_dataset     *d = source(kind, &want, &any_order);
    ch_shard_policy policy = policy_for(kind, &d, &any_order);

    for (int i = 0; i < n_stages; i++)
        d = stage(4 * number + i, d, &want, &any_order);
    d = draw(3) == 0 ? ragged_batches(d, size, drop)
                     : ch_dataset_batch(d, size, &(ch_batch_options){.drop_remainder = drop});
    d = ch_dataset_with_options(d,
                                &(ch_dataset_options){.threads = draw(3) - 1, .shard = policy});
    if (d == NULL)
        fail_msg("case %d: %s", number, ch_error_message());
    check_workers(number, d, policy, size, drop, &want, any_order);
    ch_dataset_unref(d);
}

static void distribute_gives_each_row_to_one_replica_once(void **state)
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribute_gives_each_row_to_one_replica_once)};

    return cmocka_run_group_tests(tests, make_directory, t_folder_remove);
}
