/* test/data/any.h -- random pipelines, each of which is given by a number.
 *
 * Every stage has elements that are i64 scalars, so that any stage may follow any other; the
 * last stage may be a batch. All random choices come from the number, so that another process
 * makes the same pipeline from it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_DATA_ANY_H
#define TEST_DATA_ANY_H

#include <stdlib.h>

#include "pipeline.h"
#include "random.h"

/* ---- functions of pipelines ---- */

static inline void any_noisy(ch_step *s, void *arg)
{
    ch_node *noise = ch_random_uniform(s, CH_F32, ch_shape_scalar(), 0, 1000, 7);

    (void)arg;
    ch_step_out(s, NULL, ch_add(ch_step_in(s, 0), ch_cast(noise, CH_I64)));
}

static inline void any_twice(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_mul(ch_step_in(s, 0), ch_number(s, 2)));
}

static inline void any_pair(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL,
                ch_add(ch_mul(ch_step_in(s, 0), ch_number(s, 1000)), ch_step_in(s, 1)));
}

static inline void any_uneven(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL,
                ch_not_equal(ch_mod(ch_step_in(s, 0), ch_number(s, 3)), ch_number(s, 0)));
}

static inline void any_last_as_i64(ch_step *s, void *arg)
{
    ch_step_out(s, NULL, ch_cast(ch_step_in(s, *(const int *)arg), CH_I64));
}

static inline void any_small(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_less(ch_step_in(s, 0), ch_number(s, 100000)));
}

static inline int64_t any_int(ch_tuple *t)
{
    return *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(t, 0), 0));
}

static inline ch_status any_give(ch_shape shape, const int64_t *data, ch_tuple **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch_tensor_copy_of(CH_I64, shape, data, &t);

    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

/* Parses a number from text. */
static inline ch_status any_parse(void *arg, ch_tuple *in, ch_tuple **out)
{
    ch_str  s = *(const ch_str *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));
    char    text[32];
    int64_t x;

    (void)arg;
    snprintf(text, sizeof(text), "%.*s", (int)s.size, s.data);
    x = strtoll(text, NULL, 10);
    return any_give(ch_shape_scalar(), &x, out);
}

/* Returns the element after a varying time. */
static inline ch_status any_slow(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t x = any_int(in) + 7;

    (void)arg;
    for (volatile int i = 0; i < (int)((uint64_t)x % 13) * 300; i++)
        ;
    return any_give(ch_shape_scalar(), &x, out);
}

static inline ch_status any_long(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t x = any_int(in), data[8];

    (void)arg;
    for (int i = 0; i < 8; i++)
        data[i] = x + i;
    return any_give(ch_shape_of(1 + (int64_t)((uint64_t)x % 8)), data, out);
}

static inline ch_dataset *any_rows(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_unbatch(element);
}

static inline ch_dataset *any_noisy_rows(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_map(ch_dataset_shuffle(ch_dataset_unbatch(element), 3, NULL), any_noisy,
                          NULL, NULL);
}

/* ---- a generator that can be saved ---- */

static inline ch_status any_count_next(void *arg, ch_tuple **out)
{
    int64_t x = *(int64_t *)arg;

    if (x == 60)
        return CH_OK;
    *(int64_t *)arg = x + 1;
    x = x * x;
    return any_give(ch_shape_scalar(), &x, out);
}

static inline ch_status any_count_restart(void *arg)
{
    *(int64_t *)arg = 0;
    return CH_OK;
}

static inline ch_status any_count_save(void *arg, ch_tensor **out)
{
    return ch_tensor_copy_of(CH_I64, ch_shape_scalar(), arg, out);
}

static inline ch_status any_count_restore(void *arg, ch_tensor *place)
{
    *(int64_t *)arg = *(const int64_t *)ch_tensor_data(place);
    return CH_OK;
}

static inline ch_status any_count_make(void *arg, void **out)
{
    (void)arg;
    *out = calloc(1, sizeof(int64_t));
    return *out != NULL ? CH_OK : CH_RESOURCE_EXHAUSTED;
}

static inline ch_dataset *any_generator(void)
{
    const ch_tensor_spec one = {.dtype = CH_I64};
    const ch_generator   g = {.spec = &one,
                              .n_spec = 1,
                              .next = any_count_next,
                              .restart = any_count_restart,
                              .save = any_count_save,
                              .restore = any_count_restore};

    return ch_dataset_generator(&g, any_count_make, free, NULL);
}

/* ---- files ---- */

enum { ANY_FILES = 4 };

static inline const char *any_file(const char *directory, const char *name, const char *end)
{
    static char text[200];

    snprintf(text, sizeof(text), "%s/%s.%s", directory, name, end);
    return text;
}

static inline void any_save_tuple(const char *path, ch_tensor *t)
{
    ch_value *v = NULL;
    ch_tuple *all = NULL;

    t_ok(ch_value_new(CH_PLAIN, 1, &t, &v));
    t_ok(ch_tuple_new(1, &v, (const char *[]){"x"}, &all));
    t_ok(ch_npz_save(path, all, &(ch_save_options){.compression = CH_ZLIB, .no_sync = true}));
    ch_tuple_unref(all);
    ch_value_unref(v);
}

/* Writes the same numbers as lines, plain and compressed, LibSVM text, records of 8 bytes, IDX
 * and npz. */
static inline void any_write_other_kinds(const char *directory, const char *name, ch_tensor *t)
{
    const int64_t *x = ch_tensor_data(t);
    FILE          *lines = fopen(any_file(directory, name, "txt"), "w");
    FILE          *svm = fopen(any_file(directory, name, "svm"), "w");
    FILE          *fixed = fopen(any_file(directory, name, "bin"), "w");
    ch_tensor     *small = NULL;
    char           command[500];

    t_ok(ch_tensor_new(CH_I32, ch_shape_of(ch_tensor_count(t)), &small));
    for (int64_t i = 0; i < ch_tensor_count(t); i++) {
        ((int32_t *)ch_tensor_data_mut(small))[i] = (int32_t)x[i];
        fprintf(lines, "%lld\n", (long long)x[i]);
        fprintf(svm, "%lld 1:0.5\n", (long long)x[i]);
        fprintf(fixed, "%8lld", (long long)x[i]);
    }
    assert_int_equal(fclose(lines) | fclose(svm) | fclose(fixed), 0);
    t_ok(ch_idx_save(any_file(directory, name, "idx"), small,
                     &(ch_save_options){.no_sync = true}));
    any_save_tuple(any_file(directory, name, "npz"), t);
    snprintf(command, sizeof(command), "gzip -c %s/%s.txt >%s/%s.z.gz", directory, name,
             directory, name);
    assert_int_equal(system(command), 0);
    ch_tensor_unref(small);
}

static inline void any_write_file(const char *directory, int f)
{
    ch_record_writer *w = NULL;
    ch_tensor        *t = NULL;
    ch_example       *e = NULL;
    char              name[2] = {(char)('0' + f), '\0'};
    FILE             *lines = fopen(any_file(directory, name, "csv"), "w");

    t_ok(ch_example_new(&e));
    t_ok(ch_record_writer_open(any_file(directory, name, "tfrecord"),
                               &(ch_save_options){.no_sync = true}, &w));
    t_ok(ch_tensor_new(CH_I64, ch_shape_of(9 * f), &t));
    fprintf(lines, "x\n");
    for (int64_t i = 0, x = 100 * f; i < 9 * f; i++, x++) {
        ch_tensor *one = NULL;

        t_ok(ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &x, &one));
        t_ok(ch_example_set(e, "x", one));
        t_ok(ch_record_writer_add_example(w, e));
        ch_tensor_unref(one);
        ((int64_t *)ch_tensor_data_mut(t))[i] = x;
        fprintf(lines, "%lld\n", (long long)x);
    }
    t_ok(ch_record_writer_close(w));
    t_ok(ch_npy_save(any_file(directory, name, "npy"), t, &(ch_save_options){.no_sync = true}));
    assert_int_equal(fclose(lines), 0);
    any_write_other_kinds(directory, name, t);
    ch_tensor_unref(t);
    ch_example_free(e);
}

/* Writes the files that the pipelines read. A file is empty. */
static inline void any_write_files(const char *directory)
{
    for (int f = 0; f < ANY_FILES; f++)
        any_write_file(directory, f);
}

static inline ch_dataset *any_examples(ch_dataset *names, void *arg)
{
    (void)arg;
    return ch_dataset_parse_examples(ch_dataset_tfrecord(names, NULL), 1,
                                     &(ch_feature){.name = "x", .dtype = CH_I64});
}

static inline ch_dataset *any_names(const char *directory, const char *end, dice *d)
{
    return ch_dataset_files(any_file(directory, "*", end),
                            &(ch_files_options){.shuffle = roll(d, 2),
                                                .seed = roll(d, 9),
                                                .reshuffle = roll(d, 2)});
}

/* Returns a source of strings or of other types, converted to i64 scalars. */
static inline ch_dataset *any_other_source(const char *directory, dice *d)
{
    static int           first = 0, second = 1;
    const ch_tensor_spec one = {.dtype = CH_I64};
    ch_dataset          *x;

    switch (roll(d, 6)) {
    case 0:
        return ch_dataset_npz(any_names(directory, "npz", d), 1,
                              &(ch_tensor_spec){.name = "x", .dtype = CH_I64}, NULL);
    case 1:
        x = ch_dataset_idx(any_names(directory, "idx", d), &(ch_tensor_spec){.dtype = CH_I32},
                           NULL);
        return ch_dataset_map(x, any_last_as_i64, &first, NULL);
    case 2:
        return ch_dataset_map(ch_dataset_libsvm(any_names(directory, "svm", d), 1, NULL),
                              any_last_as_i64, &second, NULL);
    case 3:
        x = ch_dataset_fixed_records(any_names(directory, "bin", d), 8, 0, 0, NULL);
        break;
    case 4:
        x = ch_dataset_lines(any_names(directory, "txt", d), NULL);
        break;
    default:
        x = ch_dataset_lines(any_names(directory, "z.gz", d), NULL);
    }
    return ch_dataset_map_call(x, any_parse, NULL, 1, &one, NULL);
}

/* ---- pipelines ---- */

static inline ch_dataset *any_source(const char *directory, dice *d)
{
    switch (roll(d, 12)) {
    case 8:
    case 9:
    case 10:
    case 11:
        return any_other_source(directory, d);
    case 0:
        return ch_dataset_range(0, (int64_t)roll(d, 90), 1);
    case 1:
        return ch_dataset_unbatch(ch_dataset_batch(ch_dataset_range(200, 120, -1), 7, NULL));
    case 2:
        return any_examples(any_names(directory, "tfrecord", d), NULL);
    case 3: {
        ch_interleave_options opt = {.cycle = 1 + (int)roll(d, 4), .block = (int)roll(d, 4)};

        return ch_dataset_interleave(any_names(directory, "tfrecord", d), any_examples, NULL,
                                     &opt);
    }
    case 4:
        return ch_dataset_csv(any_names(directory, "csv", d), 1,
                              &(ch_csv_column){.name = "x", .dtype = CH_I64}, NULL);
    case 5:
        return ch_dataset_npy(any_names(directory, "npy", d),
                              &(ch_tensor_spec){.dtype = CH_I64}, NULL);
    case 6:
        return any_generator();
    default: {
        const double weight[] = {1, 2};

        return ch_dataset_sample_from(
            2, (ch_dataset *[]){any_generator(), ch_dataset_range(5000, 5050, 1)}, weight,
            &(ch_sample_options){.seed = roll(d, 5)});
    }
    }
}

static inline ch_dataset *any_with_place(ch_dataset *d)
{
    return ch_dataset_map(ch_dataset_enumerate(d, 1), any_pair, NULL, NULL);
}

/* Converts elements to rows of unequal lengths and back. */
static inline ch_dataset *any_ragged(ch_dataset *x, int64_t n)
{
    const ch_tensor_spec some = {.dtype = CH_I64, .shape = ch_shape_of(-1)};

    x = ch_dataset_map_call(x, any_long, NULL, 1, &some, NULL);
    x = ch_dataset_batch(x, n, &(ch_batch_options){.ragged = true});
    x = ch_dataset_unbatch(ch_dataset_rebatch(x, 2, (int64_t[]){2, 3}, NULL));
    return ch_dataset_flat_map(x, any_rows, NULL);
}

/* Adds a cache in memory, or in a file that a later pipeline of the same number reads. */
static inline ch_dataset *any_cache(const char *directory, const char *of, ch_dataset *x,
                                    dice *d)
{
    char name[40];

    snprintf(name, sizeof(name), "%s-%llx", of, (unsigned long long)d->state);
    return ch_dataset_cache(x, roll(d, 2) ? any_file(directory, name, "cache") : NULL);
}

static inline ch_dataset *any_stage(const char *directory, ch_dataset *x, dice *d)
{
    const ch_tensor_spec one = {.dtype = CH_I64};
    int64_t              n = 1 + (int64_t)roll(d, 9);

    switch (roll(d, 21)) {
    case 19:
        x = ch_dataset_zip(
            2, (ch_dataset *[]){x, ch_dataset_shuffle(ch_dataset_range(0, 80, 1), 9, NULL)});
        return ch_dataset_map(x, any_pair, NULL, NULL);
    case 20:
        return any_ragged(x, n);
    case 0:
    case 1:
        return ch_dataset_map(x, any_noisy, NULL, NULL);
    case 2:
        return ch_dataset_map_call(x, any_slow, NULL, 1, &one,
                                   &(ch_map_options){.parallel = (int)roll(d, 4)});
    case 3:
        return ch_dataset_filter(x, any_uneven, NULL);
    case 4:
    case 5:
        return ch_dataset_shuffle(
            x, 2 * n, &(ch_shuffle_options){.seed = roll(d, 99), .same_each_time = roll(d, 2)});
    case 6:
        return any_cache(directory, "list", x, d);
    case 7:
        return ch_dataset_repeat(x, (int64_t)roll(d, 4));
    case 8:
        return ch_dataset_unbatch(ch_dataset_batch(x, n, NULL));
    case 9:
        return ch_dataset_flat_map(ch_dataset_batch(x, n, NULL), any_rows, NULL);
    case 10: {
        ch_interleave_options opt = {.cycle = 1 + (int)roll(d, 4), .block = (int)roll(d, 3)};

        return ch_dataset_interleave(ch_dataset_batch(x, n, NULL), any_noisy_rows, NULL, &opt);
    }
    case 11: {
        ch_window_options opt = {.shift = 1 + (int64_t)roll(d, 4),
                                 .stride = 1 + (int64_t)roll(d, 2)};

        return ch_dataset_unbatch(ch_dataset_window(x, 1 + n / 3, NULL, NULL, &opt));
    }
    case 12:
        return roll(d, 2) ? ch_dataset_take(x, 9 * n) : ch_dataset_skip(x, n);
    case 13:
        return ch_dataset_shard(x, n, (int64_t)roll(d, (uint64_t)n));
    case 14:
        return any_with_place(x);
    case 15:
        return ch_dataset_prefetch(x, (int)roll(d, 4));
    case 16:
        return ch_dataset_concatenate(2, (ch_dataset *[]){x, ch_dataset_range(700, 720, 1)});
    case 17:
        return ch_dataset_take_while(x, any_small, NULL);
    default:
        return ch_dataset_unbatch(ch_dataset_rebatch(
            ch_dataset_batch(x, n, NULL), 2, (int64_t[]){1 + (int64_t)roll(d, 4), 3}, NULL));
    }
}

/* Adds a stage that gives the same elements in any order of its input. Some of these stages do
 * not keep the order. */
static inline ch_dataset *any_heap_stage(const char *directory, ch_dataset *x, dice *d)
{
    const ch_tensor_spec one = {.dtype = CH_I64};
    int64_t              n = 1 + (int64_t)roll(d, 9);

    switch (roll(d, 10)) {
    case 0:
    case 1:
        return ch_dataset_map_call(x, any_slow, NULL, 1, &one,
                                   &(ch_map_options){.parallel = 3, .unordered = true});
    case 2:
        return ch_dataset_map(x, any_twice, NULL, &(ch_map_options){.unordered = true});
    case 3:
        return ch_dataset_filter(x, any_uneven, NULL);
    case 4:
        return ch_dataset_shuffle(x, n, NULL);
    case 5:
        return any_cache(directory, "heap", x, d);
    case 6:
        return ch_dataset_repeat(x, (int64_t)roll(d, 4));
    case 7:
        return ch_dataset_interleave(ch_dataset_batch(x, n, NULL), any_rows, NULL,
                                     &(ch_interleave_options){.cycle = 1 + (int)roll(d, 4),
                                                              .block = (int)roll(d, 3),
                                                              .unordered = roll(d, 2)});
    case 8:
        return ch_dataset_unbatch(ch_dataset_batch(x, n, NULL));
    default:
        return ch_dataset_with_options(x, &(ch_dataset_options){.unordered = true});
    }
}

static inline ch_dataset *any_last(ch_dataset *x, dice *d)
{
    const ch_tensor_spec some = {.dtype = CH_I64, .shape = ch_shape_of(-1)};
    int64_t              n = 1 + (int64_t)roll(d, 5);

    switch (roll(d, 5)) {
    case 0:
        return ch_dataset_batch(x, n, NULL);
    case 1:
        return ch_dataset_padded_batch(ch_dataset_map_call(x, any_long, NULL, 1, &some, NULL),
                                       n, NULL);
    case 2:
        return ch_dataset_bucket_by_length(
            ch_dataset_map_call(x, any_long, NULL, 1, &some, NULL), 0, 2, (int64_t[]){3, 6},
            (int64_t[]){2, 3, 1}, NULL);
    default:
        return x;
    }
}

/* Returns pipeline `number` over the files of a directory. If `unordered` is true, some stages
 * do not keep the order of elements. */
static inline ch_dataset *any_pipeline(const char *directory, uint64_t number, bool unordered,
                                       int threads)
{
    dice        d = {number};
    ch_dataset *x = any_source(directory, &d);

    for (uint64_t n = 1 + roll(&d, 5); n > 0; n--)
        x = unordered ? any_heap_stage(directory, x, &d) : any_stage(directory, x, &d);
    if (!unordered)
        x = any_last(ch_dataset_take(x, 300), &d);
    return ch_dataset_with_options(x, &(ch_dataset_options){.threads = threads});
}

#endif
