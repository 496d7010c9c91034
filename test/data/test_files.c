/* test/data/test_files.c -- pipelines that read files: their rows, positions, damage and
 * division.
 *
 * The tests cover every kind of file with any number of threads, positions inside files, shard
 * policies that divide files or rows among workers, and the listing of directories.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../file/folder.h"
#include "data/data.h"
#include "pipeline.h"

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(t_path(name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static ch_tensor *ints(int64_t first, ch_shape shape, ch_dtype dtype)
{
    ch_tensor *t = NULL, *flat = NULL;

    t_ok(ch_tensor_new(dtype, shape, &t));
    t_ok(ch_tensor_reshape(t, ch_shape_of(ch_tensor_count(t)), &flat));
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        t_ok(ch_tensor_set(flat, &i, (double)(first + i)));
    ch_tensor_unref(flat);
    return t;
}

static void write_examples(const char *name, int64_t from, int n, ch_compression c)
{
    ch_record_writer *w = NULL;
    ch_example       *e = NULL;

    t_ok(ch_record_writer_open(t_path(name),
                               &(ch_save_options){.compression = c, .no_sync = true}, &w));
    t_ok(ch_example_new(&e));
    for (int i = 0; i < n; i++) {
        ch_tensor *x = ints(10 * (from + i), ch_shape_of(3), CH_F32);
        ch_tensor *y = ints(from + i, ch_shape_scalar(), CH_I64);

        t_ok(ch_example_set(e, "x", x));
        t_ok(ch_example_set(e, "y", y));
        t_ok(ch_record_writer_add_example(w, e));
        ch_tensor_unref(x);
        ch_tensor_unref(y);
    }
    ch_example_free(e);
    t_ok(ch_record_writer_close(w));
}

static const ch_feature features[] = {{.name = "y", .dtype = CH_I64},
                                      {.name = "x", .dtype = CH_F32, .shape = {1, {3}}}};

static ch_dataset *file(const char *name)
{
    const char *path = t_path(name);

    return ch_dataset_file_list(1, &path);
}

static void write_files(void)
{
    ch_tensor *a = ints(0, ch_shape_of(4, 2), CH_I32), *b = ints(50, ch_shape_of(4), CH_F64);
    ch_tensor *u = ints(0, ch_shape_of(5, 2, 2), CH_U8);
    ch_tuple  *both = NULL;
    ch_value  *v[2] = {NULL, NULL};

    write_examples("a-0.tfrecord", 0, 3, CH_UNCOMPRESSED);
    write_examples("a-1.tfrecord", 3, 4, CH_UNCOMPRESSED);
    write_examples("a-2.tfrecord", 7, 2, CH_UNCOMPRESSED);
    write_examples("z.gz", 0, 3, CH_GZIP);
    write_text("lines.txt", "one\ntwo\r\n\nfour");
    write_text("t.csv", "name,age,extra\nAnn,31,x\n\"B, \"\"b\"\"\",,y\nCy,7,z\n");
    write_text("bad.csv", "age\n1\nx\n3\n");
    write_text("s.svm", "1 1:2 3:4.5 # c\n\n-1 2:1\n");
    write_text("fixed.bin", "HDaabbccF");
    t_ok(ch_npy_save(t_path("a.npy"), a, &(ch_save_options){.no_sync = true}));
    t_ok(ch_idx_save(t_path("u.idx"), u, &(ch_save_options){.no_sync = true}));
    t_ok(ch_value_new(CH_PLAIN, 1, &a, &v[0]));
    t_ok(ch_value_new(CH_PLAIN, 1, &b, &v[1]));
    t_ok(ch_tuple_new(2, v, (const char *[]){"a", "b"}, &both));
    t_ok(ch_npz_save(t_path("ab.npz"), both, &(ch_save_options){.no_sync = true}));
    ch_tuple_unref(both);
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    ch_tensor_unref(a);
    ch_tensor_unref(b);
    ch_tensor_unref(u);
}

/* ---- pipelines ---- */

static ch_dataset *p_examples(void)
{
    return ch_dataset_parse_examples(
        ch_dataset_tfrecord(ch_dataset_files(t_path("a-*.tfrecord"), NULL), NULL), 2, features);
}

static ch_dataset *read_one(ch_dataset *name, void *arg)
{
    (void)arg;
    return ch_dataset_parse_examples(ch_dataset_tfrecord(name, NULL), 2, features);
}

static ch_dataset *p_interleaved(void)
{
    return ch_dataset_interleave(ch_dataset_files(t_path("a-*.tfrecord"), NULL), read_one, NULL,
                                 &(ch_interleave_options){.cycle = 2});
}

static ch_dataset *p_compressed(void)
{
    return ch_dataset_parse_examples(ch_dataset_tfrecord(file("z.gz"), NULL), 2, features);
}

static ch_dataset *p_lines(void)
{
    return ch_dataset_lines(file("lines.txt"), NULL);
}

static ch_dataset *p_csv(void)
{
    return ch_dataset_csv(file("t.csv"), 2,
                          (ch_csv_column[]){{.name = "age", .dtype = CH_I32, .missing = "-1"},
                                            {.name = "name", .dtype = CH_STR}},
                          NULL);
}

static ch_dataset *p_libsvm(void)
{
    return ch_dataset_libsvm(file("s.svm"), 3, NULL);
}

static ch_dataset *p_fixed(void)
{
    return ch_dataset_fixed_records(file("fixed.bin"), 2, 2, 1, NULL);
}

static ch_dataset *p_npy(void)
{
    return ch_dataset_npy(file("a.npy"), NULL, NULL);
}

static ch_dataset *p_npz(void)
{
    return ch_dataset_npz(file("ab.npz"), 0, NULL, NULL);
}

static ch_dataset *p_idx(void)
{
    return ch_dataset_repeat(ch_dataset_idx(file("u.idx"), NULL, NULL), 2);
}

static const struct {
    ch_dataset *(*make)(void);
    const char *gives;
} pipelines[] = {
    {p_examples,
     "0, 0 1 2 | 1, 10 11 12 | 2, 20 21 22 | 3, 30 31 32 | 4, 40 41 42 | 5, 50 51 52 | 6, "
     "60 61 62 | 7, 70 71 72 | 8, 80 81 82"},
    {p_interleaved,
     "0, 0 1 2 | 3, 30 31 32 | 1, 10 11 12 | 4, 40 41 42 | 2, 20 21 22 | 5, 50 51 52 | "
     "6, 60 61 62 | 7, 70 71 72 | 8, 80 81 82"},
    {p_compressed, "0, 0 1 2 | 1, 10 11 12 | 2, 20 21 22"},
    {p_lines, "one | two |  | four"},
    {p_csv, "31, Ann | -1, B, \"b\" | 7, Cy"},
    {p_libsvm, "2 0 4.5, 1 | 0 1 0, -1"},
    {p_fixed, "aa | bb | cc"},
    {p_npy, "0 1 | 2 3 | 4 5 | 6 7"},
    {p_npz, "0 1, 50 | 2 3, 51 | 4 5, 52 | 6 7, 53"},
    {p_idx, "0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15 | 16 17 18 19 | 0 1 2 3 | 4 5 6 7 | 8 "
            "9 10 11 "
            "| 12 13 14 15 | 16 17 18 19"},
};

enum { PIPELINES = sizeof(pipelines) / sizeof(pipelines[0]) };

static void file_datasets_give_their_rows_with_any_number_of_threads(void **state)
{
    (void)state;
    for (int p = 0; p < PIPELINES; p++)
        for (int threads = -1; threads < 4; threads++)
            t_gives(ch_dataset_with_options(pipelines[p].make(),
                                            &(ch_dataset_options){.threads = threads}),
                    pipelines[p].gives);
}

static void file_datasets_restore_a_position_in_a_file(void **state)
{
    (void)state;
    for (int p = 0; p < PIPELINES; p++) {
        static t_given whole, rest, head;
        int            n = 0;

        do {
            ch_dataset  *d = pipelines[p].make();
            ch_iterator *it = NULL, *other = NULL;
            void        *bytes = NULL;
            size_t       size = 0;

            d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = n % 4 - 1});
            memset(&whole, 0, sizeof(whole));
            memset(&rest, 0, sizeof(rest));
            memset(&head, 0, sizeof(head));
            t_ok(ch_iterator_new(d, NULL, &it));
            t_take(it, n, &head);
            t_ok(ch_iterator_save(it, &bytes, &size));
            t_take(it, -1, &whole);
            t_ok(ch_iterator_new(d, NULL, &other));
            t_ok(ch_iterator_restore(other, bytes, size));
            t_take(other, -1, &rest);
            if (strcmp(whole.text, rest.text) != 0)
                fail_msg("pipeline %d after %d elements:\n%s\nis not\n%s", p, n, rest.text,
                         whole.text);
            ch_bytes_free(bytes);
            ch_iterator_unref(it);
            ch_iterator_unref(other);
            ch_dataset_unref(d);
            n++;
        } while (whole.n > 0);
    }
}

static void file_datasets_report_damage_or_skip_it(void **state)
{
    const ch_csv_column column = {.name = "age", .dtype = CH_I32};
    ch_csv_options      skip = {.read = {.skip_bad = true}};
    ch_iterator        *it = NULL;
    ch_dataset         *d;
    ch_tuple           *t = NULL;
    static t_given      g;

    (void)state;
    t_gives(ch_dataset_csv(file("bad.csv"), 1, &column, NULL), "1 | !DATA_LOSS | 3");
    d = ch_dataset_csv(file("bad.csv"), 1, &column, &skip);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, -1, &g);
    assert_string_equal(g.text, "1 | 3");
    assert_int_equal(ch_iterator_skipped(it), 1);
    ch_iterator_unref(it);
    ch_dataset_unref(d);

    d = ch_dataset_tfrecord(file("lines.txt"), NULL);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_refused(ch_iterator_next(it, &t), CH_DATA_LOSS, "lines.txt", "0");
    t_refused(ch_iterator_next(it, &t), CH_FAILED_PRECONDITION, "go_on", "error");
    ch_iterator_unref(it);
    ch_dataset_unref(d);

    d = ch_dataset_lines(ch_dataset_files(t_path("none-*"), NULL), NULL);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_refused(ch_iterator_next(it, &t), CH_NOT_FOUND, "none-*", "pattern");
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    assert_null(ch_dataset_npy(file("none.npy"), NULL, NULL));
}

/* 5.5.9, 5.5.10: workers take their own files where there are enough, and their pieces otherwise. */
static void distribute_divides_files_or_rows_among_workers(void **state)
{
    static const char *want[] = {"0 1 2 7 8", "3 4 5 6"};

    (void)state;
    for (int w = 0; w < 2; w++) {
        ch_dataset *d = ch_dataset_select(p_examples(), 1, (const char *[]){"y"}), *mine = NULL;
        ch_iterator   *it = NULL;
        static t_given g;

        memset(&g, 0, sizeof(g));
        d = ch_dataset_batch(d, 10, NULL);
        t_ok(ch_dataset_distribute(
            d, &(ch_input_context){.n_pipelines = 2, .pipeline = w, .n_replicas = 2}, &mine));
        t_ok(ch_iterator_new(mine, NULL, &it));
        t_take(it, -1, &g);
        for (char *at; (at = strstr(g.text, " | ")) != NULL;)
            memmove(at, at + 2, strlen(at + 1));
        assert_string_equal(g.text, want[w]);
        ch_iterator_unref(it);
        ch_dataset_unref(mine);
        ch_dataset_unref(d);
    }
}

/* ---- which files a worker reads ---- */

static char said[512]; /* the last line of the log */

static void listen(const ch_log_record *r, void *arg)
{
    (void)arg;
    snprintf(said, sizeof(said), "%s", r->text);
}

/* Checks the rows of worker w of W, as text, and that the log contains these words. Takes
 * ownership of `d`. */
static void worker_reads(ch_dataset *d, ch_shard_policy policy, int n_workers, int w,
                         const char *want, const char *log)
{
    ch_dataset    *mine = NULL;
    ch_iterator   *it = NULL;
    static t_given g, rows;

    memset(&g, 0, sizeof(g));
    memset(&rows, 0, sizeof(rows));
    ch_log_set_sink(listen, NULL, CH_LOG_INFO);
    d = ch_dataset_with_options(ch_dataset_batch(d, 1, NULL),
                                &(ch_dataset_options){.shard = policy});
    t_ok(ch_dataset_distribute(
        d,
        &(ch_input_context){.n_pipelines = n_workers, .pipeline = w, .n_replicas = n_workers},
        &mine));
    ch_log_set_sink(NULL, NULL, CH_LOG_INFO);
    if (strstr(said, log) == NULL)
        fail_msg("the log says \"%s\", not \"%s\"", said, log);
    t_ok(ch_iterator_new(mine, NULL, &it));
    t_take(it, -1, &g);
    for (char *rest = g.text, *word; (word = strtok_r(rest, "| ", &rest)) != NULL;)
        t_add(&rows, "%s%s", rows.n++ > 0 ? " " : "", word); /* some pieces are empty */
    assert_string_equal(rows.text, want);
    ch_iterator_unref(it);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
}

static ch_dataset *numbers(const char *pattern)
{
    return ch_dataset_lines(ch_dataset_files(t_path(pattern), NULL), NULL);
}

static ch_dataset *lines_of(ch_dataset *name, void *arg)
{
    (void)arg;
    return ch_dataset_lines(name, NULL);
}

static void shard_file_gives_workers_their_own_files(void **state)
{
    ch_dataset *d;

    (void)state;
    for (int i = 0; i < 10; i++) {
        char name[16], text[32];

        snprintf(name, sizeof(name), "n-%d", i);
        snprintf(text, sizeof(text), "%d\n%d\n", 10 * i, 10 * i + 1);
        write_text(name, text);
    }
    /* 5.5.4, 5.5.7, 5.5.9: files w, w + W, ... */
    worker_reads(numbers("n-*"), CH_SHARD_FILE, 5, 3, "30 31 80 81", "policy FILE");
    worker_reads(numbers("n-*"), CH_SHARD_AUTO, 5, 3, "30 31 80 81", "enough files");
    d = ch_dataset_interleave(ch_dataset_files(t_path("n-*"), NULL), lines_of, NULL,
                              &(ch_interleave_options){.cycle = 3});
    worker_reads(d, CH_SHARD_FILE, 5, 0, "0 50 1 51", "policy FILE");
    d = ch_dataset_flat_map(ch_dataset_files(t_path("n-*"), NULL), lines_of, NULL);
    worker_reads(d, CH_SHARD_FILE, 5, 4, "40 41 90 91", "policy FILE");
    d = ch_dataset_concatenate(2, (ch_dataset *[]){numbers("n-*"), numbers("n-*")});
    worker_reads(d, CH_SHARD_FILE, 10, 2, "20 21 20 21", "policy FILE");
    /* 5.5.5: no stage stands in the way if the policy says FILE: each worker takes 4 */
    worker_reads(ch_dataset_take(numbers("n-*"), 4), CH_SHARD_FILE, 2, 0, "0 1 20 21",
                 "policy FILE");
    /* 5.5.13: stages that are about all of the data, and too few files (8.13) */
    worker_reads(ch_dataset_take(numbers("n-*"), 4), CH_SHARD_AUTO, 2, 0, "0 1 10 11",
                 "because files cannot be divided below take");
    worker_reads(ch_dataset_take(numbers("n-*"), 4), CH_SHARD_AUTO, 2, 1, "", "policy DATA");
    worker_reads(numbers("n-1"), CH_SHARD_AUTO, 2, 0, "10 11", "fewer files than workers");
    /* repeated names count once, and are divided before the repeat */
    d = ch_dataset_interleave(ch_dataset_repeat(ch_dataset_files(t_path("n-*"), NULL), 2),
                              lines_of, NULL, &(ch_interleave_options){.cycle = 1});
    worker_reads(d, CH_SHARD_AUTO, 5, 3, "30 31 80 81 30 31 80 81", "enough files");
    d = ch_dataset_lines(ch_dataset_files(t_path("none-*"), NULL), NULL);
    worker_reads(d, CH_SHARD_AUTO, 2, 0, "!NOT_FOUND !FAILED_PRECONDITION",
                 "the number of its files is not known");
    worker_reads(numbers("n-*"), CH_SHARD_OFF, 2, 0,
                 "0 1 10 11 20 21 30 31 40 41 50 51 60 61 70 71 80 81 90 91",
                 "because the options say so");
}

/* 5.5.11 */
static void shard_data_divides_the_records_of_all_files(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        char name[16], text[64];

        snprintf(name, sizeof(name), "ten-%d", i);
        snprintf(text, sizeof(text), "%d0\n%d1\n%d2\n%d3\n%d4\n%d5\n%d6\n%d7\n%d8\n%d9\n", i, i,
                 i, i, i, i, i, i, i, i);
        write_text(name, text);
    }
    for (int w = 0; w < 5; w += 4) {
        ch_dataset    *d, *mine = NULL;
        ch_iterator   *it = NULL;
        static t_given g;

        memset(&g, 0, sizeof(g));
        d = ch_dataset_with_options(ch_dataset_batch(numbers("ten-*"), 5, NULL),
                                    &(ch_dataset_options){.shard = CH_SHARD_DATA});
        t_ok(ch_dataset_distribute(
            d, &(ch_input_context){.n_pipelines = 5, .pipeline = w, .n_replicas = 5}, &mine));
        t_ok(ch_iterator_new(mine, NULL, &it));
        t_take(it, -1, &g);
        assert_string_equal(g.text, w == 0 ? "00 | 05 | 10 | 15 | 20 | 25"
                                           : "04 | 09 | 14 | 19 | 24 | 29");
        ch_iterator_unref(it);
        ch_dataset_unref(mine);
        ch_dataset_unref(d);
    }
}

/* 5.5.4: names that are shuffled, anew in each pass, stay with their worker. */
static void distribute_divides_shuffled_file_names_before_the_shuffle(void **state)
{
    (void)state;
    for (int w = 0; w < 2; w++) {
        ch_dataset *d = ch_dataset_lines(
            ch_dataset_shuffle(ch_dataset_files(t_path("n-*"), NULL), 10, NULL), NULL);
        ch_dataset  *mine = NULL;
        ch_iterator *it = NULL;

        d = ch_dataset_batch(ch_dataset_repeat(d, 3), 2, NULL);
        t_ok(ch_dataset_distribute(
            d, &(ch_input_context){.n_pipelines = 2, .pipeline = w, .n_replicas = 2}, &mine));
        t_ok(ch_iterator_new(mine, NULL, &it));
        for (int pass = 0; pass < 3; pass++)
            for (int n = 0; n < 10;) {
                ch_tuple      *t = NULL;
                static t_given g;

                memset(&g, 0, sizeof(g));
                t_ok(ch_iterator_get_next(it, &t));
                t_add_tuple(&g, t);
                n += (int)ch_tensor_count(ch_value_at(ch_tuple_at(t, 0), 0));
                if (g.used > 0)
                    assert_int_equal(atoi(g.text) / 10 % 2, w);
                ch_tuple_unref(t);
            }
        ch_iterator_unref(it);
        ch_dataset_unref(mine);
        ch_dataset_unref(d);
    }
}

/* 5.5.10, 8.13: every worker gets the error. */
static void shard_file_fails_on_every_worker_when_files_are_too_few(void **state)
{
    (void)state;
    for (int w = 0; w < 20; w++) {
        ch_dataset  *d = ch_dataset_with_options(ch_dataset_batch(numbers("n-*"), 4, NULL),
                                                 &(ch_dataset_options){.shard = CH_SHARD_FILE});
        ch_dataset  *out = NULL;
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;
        ch_status    rc = CH_OK;

        t_refused(ch_dataset_distribute(
                      d,
                      &(ch_input_context){.n_pipelines = 20, .pipeline = w, .n_replicas = 20},
                      &out),
                  CH_INVALID_ARGUMENT, "10 files", "20 workers");
        ch_dataset_unref(d);
        /* and if only the stage can detect it */
        d = ch__dataset_shard(ch_dataset_files(t_path("n-*"), NULL), 20, w, "files");
        t_ok(ch_iterator_new(d, NULL, &it));
        do {
            t = NULL;
            rc = ch_iterator_next(it, &t);
            ch_tuple_unref(t);
        } while (rc == CH_OK && t != NULL);
        t_refused(rc, CH_INVALID_ARGUMENT, "files", "20 workers");
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
    t_gives(ch__dataset_shard(ch_dataset_file_list(0, NULL), 20, 3, "files"), "");
}

/* 5.5.15: the sizes are those of replicas in order. */
static void distribute_splits_batches_of_a_workers_files_for_all_replicas(void **state)
{
    static const char *want[] = {"0 1 | 2 3 | 4", "10 11 | 12 | 13 14", "20 | 21 22 | 23 24"};

    (void)state;
    for (int w = 0; w < 3; w++) {
        char           name[16];
        static t_given g;
        ch_dataset    *d, *mine = NULL;
        ch_iterator   *it = NULL;

        for (int i = 0; i < 3; i++) {
            char text[64];

            snprintf(name, sizeof(name), "r-%d", i);
            snprintf(text, sizeof(text), "%d\n%d\n%d\n%d\n%d\n", 10 * i, 10 * i + 1, 10 * i + 2,
                     10 * i + 3, 10 * i + 4);
            write_text(name, text);
        }
        memset(&g, 0, sizeof(g));
        d = ch_dataset_batch(numbers("r-*"), 5, NULL);
        t_ok(ch_dataset_distribute(
            d, &(ch_input_context){.n_pipelines = 3, .pipeline = w, .n_replicas = 3}, &mine));
        t_ok(ch_iterator_new(mine, NULL, &it));
        t_take(it, -1, &g);
        assert_string_equal(g.text, want[w]);
        ch_iterator_unref(it);
        ch_dataset_unref(mine);
        ch_dataset_unref(d);
    }
}

/* Workers with different locales divide the same files. Uses a locale with another sort order,
 * if it can be made. */
static void dataset_files_sorts_names_by_bytes_in_any_locale(void **state)
{
    static const char *const name[] = {"o-B", "o-a", "o-b", "o-A"};
    char                     command[256];

    (void)state;
    for (int i = 0; i < 4; i++)
        write_text(name[i], name[i]);
    snprintf(command, sizeof(command), "localedef -i en_US -f UTF-8 %s/en 2>/dev/null",
             t_folder);
    if (system(command) != 0 || setenv("LOCPATH", t_folder, 1) != 0 ||
        setlocale(LC_ALL, "en") == NULL || strcoll("a", "B") > 0)
        print_message("no locale that sorts otherwise can be made here\n");
    t_gives(ch_dataset_lines(ch_dataset_files(t_path("o-?"), NULL), NULL),
            "o-A | o-B | o-a | o-b");
    setlocale(LC_ALL, "C");
}

/* If the directory were skipped, its data would be missing. */
static void dataset_files_names_a_directory_that_cannot_be_read(void **state)
{
    const ch_files_options opt = {.may_be_empty = true};
    ch_tuple              *t = NULL;

    (void)state;
    assert_int_equal(mkdir(t_path("dir-a"), 0700), 0);
    write_text("dir-a/x", "x");
    assert_int_equal(symlink("dir-b", t_path("dir-b")), 0); /* a link to itself */
    t_gives(ch_dataset_lines(ch_dataset_files(t_path("dir-a/*"), &opt), NULL), "x");
    t_gives(ch_dataset_lines(ch_dataset_files(t_path("dir-c/*"), &opt), NULL), "");
    for (int i = 0; i < 2; i++) {
        ch_iterator *it = NULL;
        ch_dataset  *d = ch_dataset_files(t_path("dir-b/*"), i > 0 ? &opt : NULL);

        t_ok(ch_iterator_new(d, NULL, &it));
        t_refused(ch_iterator_next(it, &t), CH_INVALID_ARGUMENT, t_path("dir-b"),
                  "cannot be read");
        ch_iterator_unref(it);
        ch_dataset_unref(d);
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
        cmocka_unit_test(file_datasets_give_their_rows_with_any_number_of_threads),
        cmocka_unit_test(file_datasets_restore_a_position_in_a_file),
        cmocka_unit_test(file_datasets_report_damage_or_skip_it),
        cmocka_unit_test(distribute_divides_files_or_rows_among_workers),
        cmocka_unit_test(shard_file_gives_workers_their_own_files),
        cmocka_unit_test(shard_data_divides_the_records_of_all_files),
        cmocka_unit_test(distribute_divides_shuffled_file_names_before_the_shuffle),
        cmocka_unit_test(shard_file_fails_on_every_worker_when_files_are_too_few),
        cmocka_unit_test(distribute_splits_batches_of_a_workers_files_for_all_replicas),
        cmocka_unit_test(dataset_files_sorts_names_by_bytes_in_any_locale),
        cmocka_unit_test(dataset_files_names_a_directory_that_cannot_be_read),
    };

    return cmocka_run_group_tests(tests, make_directory, t_folder_remove);
}
