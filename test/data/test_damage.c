/* test/data/test_damage.c -- files that cannot be read, are damaged or hostile, in whole
 * pipelines.
 *
 * Every source that reads files gets every kind of damage. The pipeline must give the good
 * elements before the damage, and then an error that names the file and the byte, or count the
 * damage if it is skipped. Its memory must be limited by the bytes that were read. No thread,
 * block or open file may be left behind.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../file/folder.h"
#include "base/config.h"
#include "base/mem.h"
#include "base/sys.h"
#include "file/crc32c.h"
#include "file/writer.h"
#include "pipeline.h"

static void write_file(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(t_path(name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static char *read_file(const char *name, size_t *n)
{
    static char data[1 << 16];
    FILE       *f = fopen(t_path(name), "rb");

    assert_non_null(f);
    *n = fread(data, 1, sizeof(data), f);
    fclose(f);
    return data;
}

/* ---- sources ---- */

static const ch_save_options unsynced = {.no_sync = true};

static ch_dataset *names(const char *a, const char *b)
{
    const char *path[2] = {t_path(a), b != NULL ? t_path(b) : NULL};

    return ch_dataset_file_list(b != NULL ? 2 : 1, path);
}

static ch_dataset *of_tfrecord(ch_dataset *files, const ch_read_options *o)
{
    return ch_dataset_tfrecord(files, o);
}

static ch_dataset *of_examples(ch_dataset *files, const ch_read_options *o)
{
    return ch_dataset_parse_examples(ch_dataset_tfrecord(files, o), 1,
                                     &(ch_feature){.name = "x", .dtype = CH_I64});
}

static ch_dataset *of_fixed(ch_dataset *files, const ch_read_options *o)
{
    return ch_dataset_fixed_records(files, 5, 3, 2, o);
}

static ch_dataset *of_lines(ch_dataset *files, const ch_read_options *o)
{
    return ch_dataset_lines(files, o);
}

static ch_dataset *of_csv(ch_dataset *files, const ch_read_options *o)
{
    const ch_csv_column  column[] = {{.name = "x", .dtype = CH_I64},
                                     {.name = "s", .dtype = CH_STR}};
    const ch_csv_options opt = {.read = o != NULL ? *o : (ch_read_options){0}};

    return ch_dataset_csv(files, 2, column, &opt);
}

static ch_dataset *of_libsvm(ch_dataset *files, const ch_read_options *o)
{
    const ch_libsvm_options opt = {.read = o != NULL ? *o : (ch_read_options){0}};

    return ch_dataset_libsvm(files, 4, &opt);
}

static const ch_tensor_spec two_ints = {.name = "a", .dtype = CH_I32, .shape = {1, {2}}};

static ch_dataset *of_npy(ch_dataset *files, const ch_read_options *o)
{
    return ch_dataset_npy(files, &two_ints, o);
}

static ch_dataset *of_idx(ch_dataset *files, const ch_read_options *o)
{
    return ch_dataset_idx(files, &two_ints, o);
}

static ch_dataset *of_npz(ch_dataset *files, const ch_read_options *o)
{
    return ch_dataset_npz(files, 1, &two_ints, o);
}

typedef struct kind {
    const char *file;
    ch_dataset *(*make)(ch_dataset *files, const ch_read_options *o);
    bool is_summed; /* a checksum covers every byte */
    bool is_text;   /* almost any bytes are a valid file of this kind */
} kind;

static const kind kinds[] = {
    {"a.tfrecord", of_tfrecord, .is_summed = true},
    {"b.tfrecord.gz", of_tfrecord, .is_summed = true},
    {"c.tfrecord", of_examples, .is_summed = true},
    {"d.fixed", of_fixed, .is_text = true},
    {"e.txt", of_lines, .is_text = true},
    {"f.txt.zst", of_lines, .is_summed = true},
    {"g.csv", of_csv, .is_text = true},
    {"h.csv.gz", of_csv, .is_summed = true},
    {"i.svm", of_libsvm, .is_text = true},
    {"j.npy", of_npy, .is_summed = false},
    {"k.npy.gz", of_npy, .is_summed = true},
    {"l.idx", of_idx, .is_summed = false},
    {"m.npz", of_npz, .is_summed = false},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), ROWS = 5 };

static void write_records(const char *name, ch_compression c)
{
    ch_record_writer *w = NULL;
    ch_example       *e = NULL;

    t_ok(ch_example_new(&e));
    t_ok(ch_record_writer_open(t_path(name),
                               &(ch_save_options){.compression = c, .no_sync = true}, &w));
    for (int64_t i = 0; i < ROWS; i++) {
        ch_tensor *x = NULL;

        t_ok(ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &i, &x));
        t_ok(ch_example_set(e, "x", x));
        t_ok(ch_record_writer_add_example(w, e));
        ch_tensor_unref(x);
    }
    ch_example_free(e);
    t_ok(ch_record_writer_close(w));
}

static void write_text(const char *name, const char *text)
{
    ch_writer *w = NULL;

    t_ok(ch__writer_open(t_path(name), &unsynced, &w));
    t_ok(ch__writer_put(w, text, strlen(text)));
    t_ok(ch__writer_commit(w));
}

static void write_arrays(void)
{
    const int32_t data[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    ch_tensor    *t = NULL;
    ch_value     *v = NULL;
    ch_tuple     *tuple = NULL;

    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(ROWS, 2), data, &t));
    t_ok(ch_npy_save(t_path("j.npy"), t, &unsynced));
    t_ok(ch_npy_save(t_path("k.npy.gz"), t, &unsynced));
    t_ok(ch_idx_save(t_path("l.idx"), t, &unsynced));
    t_ok(ch_value_new(CH_PLAIN, 1, &t, &v));
    t_ok(ch_tuple_new(1, &v, (const char *[]){"a"}, &tuple));
    t_ok(ch_npz_save(t_path("m.npz"), tuple, &unsynced));
    ch_tuple_unref(tuple);
    ch_value_unref(v);
    ch_tensor_unref(t);
}

static void write_files(void)
{
    write_records("a.tfrecord", CH_UNCOMPRESSED);
    write_records("b.tfrecord.gz", CH_GZIP);
    write_records("c.tfrecord", CH_UNCOMPRESSED);
    write_text("d.fixed", "HHHaaaaabbbbbcccccdddddeeeeeFF");
    write_text("e.txt", "one\ntwo\nthree\nfour\nfive\n");
    write_text("f.txt.zst", "one\ntwo\nthree\nfour\nfive\n");
    write_text("g.csv", "x,s\n1,a\n2,\"b\nb\"\n3,c\n4,\"d\"\"d\"\n5,e\n");
    write_text("h.csv.gz", "x,s\n1,a\n2,b\n3,c\n4,d\n5,e\n");
    write_text("i.svm", "1 1:2\n0 2:3 4:5\n1\n1 1:1 2:1 3:1\n0 4:9\n");
    write_arrays();
}

/* ---- running ---- */

/* The elements of a file, and its first error. */
typedef struct outcome {
    t_given   given;
    int       n_errors;
    ch_status rc; /* status of the first error */
    char      text[1024];
    int64_t   n_skipped;
    int64_t   most_bytes; /* most bytes of memory that were held */
} outcome;

static ch_dataset *with_threads(ch_dataset *d, int threads)
{
    return ch_dataset_with_options(d, &(ch_dataset_options){.threads = threads});
}

/* Reads all elements and errors. Fails if there is no end. Releases `d`. */
static void take_all(ch_dataset *d, outcome *o)
{
    ch_iterator *it = NULL;

    memset(o, 0, sizeof(*o));
    ch__mem_watch(true);
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
    for (int i = 0;; i++) {
        ch_tuple *t = NULL;
        ch_status rc = ch_iterator_next(it, &t);

        assert_true(i < 1000);
        if (rc != CH_OK && o->n_errors++ == 0) {
            o->rc = rc;
            snprintf(o->text, sizeof(o->text), "%s", ch_error_message());
        }
        if (rc == CH_OK && t == NULL)
            break;
        if (rc == CH_OK)
            t_add_tuple(&o->given, t);
        ch_tuple_unref(t);
    }
    o->n_skipped = ch_iterator_skipped(it);
    ch_iterator_unref(it);
    o->most_bytes = ch__mem_peak();
    ch__mem_watch(false);
    ch_dataset_unref(d);
}

static void fail_outcome(const kind *k, const char *what, int64_t at, const outcome *o)
{
    fail_msg("%s, %s at %lld: %d elements, %s (%s), %lld skipped, %lld bytes: %s", k->file,
             what, (long long)at, o->given.n, ch_status_name(o->rc), o->text,
             (long long)o->n_skipped, (long long)o->most_bytes, o->given.text);
}

/* "... byte 12 ..." */
static bool names_byte(const char *text)
{
    for (const char *at = text; (at = strstr(at, "byte ")) != NULL; at += 5)
        if (at[5] >= '0' && at[5] <= '9')
            return true;
    return false;
}

static bool is_prefix(const char *a, const char *b)
{
    return strncmp(a, b, strlen(a)) == 0;
}

/* Returns true if the file is not damaged, but differs from the request. */
static bool is_other(ch_status rc)
{
    return rc == CH_INVALID_ARGUMENT || rc == CH_NOT_FOUND || rc == CH_UNIMPLEMENTED;
}

enum { ROOM = 16 << 20 };

/* Checks the properties that every outcome must have. */
static void check_outcome(const kind *k, const char *what, int64_t at, size_t read,
                          const outcome *o)
{
    bool ok = o->most_bytes <= (int64_t)read + ROOM;

    if (o->n_errors > 0)
        ok &= strstr(o->text, k->file) != NULL && (is_other(o->rc) || names_byte(o->text));
    if (!ok)
        fail_outcome(k, what, at, o);
}

/* ---- damage, byte by byte ---- */

static outcome good[KINDS];

static void readers_give_all_rows_of_undamaged_files(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];

        take_all(with_threads(k->make(names(k->file, NULL), NULL), CH_OFF), &good[i]);
        if (good[i].n_errors > 0 || good[i].given.n != ROWS)
            fail_outcome(k, "as it is", 0, &good[i]);
    }
}

/* Reads `data` in place of a file, from a file of the same name in another folder. */
static void damaged(const kind *k, const char *data, size_t n, const ch_read_options *opt,
                    int threads, outcome *o)
{
    char name[100];

    snprintf(name, sizeof(name), "bad/%s", k->file);
    write_file(name, data, n);
    take_all(with_threads(k->make(names(name, NULL), opt), threads), o);
}

static void readers_report_a_file_cut_at_any_byte(void **state)
{
    static outcome o;
    size_t         n;

    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        char       *data = read_file(k->file, &n);

        for (size_t cut = 0; cut < n; cut++) {
            damaged(k, data, cut, NULL, cut % 16 == 0 ? 2 : CH_OFF, &o);
            check_outcome(k, "cut", (int64_t)cut, cut, &o);
            if (!k->is_text && (!is_prefix(o.given.text, good[i].given.text) ||
                                (o.n_errors == 0 && o.given.n > 0 && !k->is_summed)))
                fail_outcome(k, "cut", (int64_t)cut, &o);
            damaged(k, data, cut, &(ch_read_options){.skip_bad = true}, CH_OFF, &o);
            if (o.n_errors > 0 && !is_other(o.rc))
                fail_outcome(k, "cut and left out", (int64_t)cut, &o);
        }
    }
}

static void readers_report_a_changed_byte_or_give_another_value(void **state)
{
    static const char change[] = {1, (char)0x80, (char)0xff};
    static outcome    o;
    size_t            n;

    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        char       *data = read_file(k->file, &n);

        for (size_t at = 0; at < n; at++) {
            char was = data[at];

            data[at] ^= change[at % 3];
            damaged(k, data, n, NULL, at % 16 == 0 ? 2 : CH_OFF, &o);
            check_outcome(k, "changed", (int64_t)at, n, &o);
            if (k->is_summed && o.n_errors == 0 &&
                strcmp(o.given.text, good[i].given.text) != 0)
                fail_outcome(k, "changed", (int64_t)at, &o);
            damaged(k, data, n, &(ch_read_options){.skip_bad = true}, CH_OFF, &o);
            if ((o.n_errors > 0 && !is_other(o.rc)) ||
                (k->is_summed && o.n_errors == 0 && o.given.n < ROWS && o.n_skipped == 0))
                fail_outcome(k, "changed and left out", (int64_t)at, &o);
            data[at] = was;
        }
    }
}

/* ---- reading fails ---- */

static int n_open(void)
{
    DIR *d = opendir("/proc/self/fd");
    int  n = 0;

    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

/* Reads two files while a system call fails. */
static void readers_report_a_failed_system_call_and_leak_nothing(void **state)
{
    static outcome o;

    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];

        for (int threads = CH_OFF; threads <= 2; threads += 3) {
            int64_t first, most, live;
            int     fds;

            take_all(with_threads(k->make(names(k->file, k->file), NULL), threads), &o);
            live = ch__mem_live();
            fds = n_open();
            first = ch__file_calls();
            take_all(with_threads(k->make(names(k->file, k->file), NULL), threads), &o);
            assert_int_equal(o.given.n, 2 * ROWS);
            most = ch__file_calls() - first;
            assert_true(most > 4);
            for (int64_t n = 1; n <= most; n++) {
                ch__file_fail_at(n, EIO);
                take_all(with_threads(k->make(names(k->file, k->file), NULL), threads), &o);
                ch__file_fail_at(0, 0);
                if (o.n_errors != 1 || o.rc != CH_DATA_LOSS ||
                    strstr(o.text, k->file) == NULL ||
                    (strstr(o.text, "cannot be") == NULL && !names_byte(o.text)) ||
                    o.given.n < ROWS || ch__mem_live() != live || n_open() != fds)
                    fail_outcome(k, "a failing call", n, &o);
            }
        }
    }
}

static void readers_give_the_same_rows_after_short_reads(void **state)
{
    static outcome o;

    (void)state;
    for (int i = 0; i < KINDS; i++)
        for (size_t cut = 1; cut < 40; cut += cut < 4 ? 1 : 11) {
            const kind *k = &kinds[i];

            ch__file_limit_io(cut);
            take_all(with_threads(k->make(names(k->file, NULL), NULL), 2), &o);
            ch__file_limit_io(0);
            if (strcmp(o.given.text, good[i].given.text) != 0 || o.n_errors > 0)
                fail_outcome(k, "short reads", (int64_t)cut, &o);
        }
}

static void readers_report_one_error_for_a_missing_file(void **state)
{
    static outcome o;

    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];

        take_all(k->make(names("none", k->file), NULL), &o);
        if (o.n_errors != 1 || o.given.n != ROWS || o.rc != CH_NOT_FOUND ||
            strstr(o.text, "none") == NULL)
            fail_outcome(k, "a missing file", 0, &o);
        take_all(k->make(names("bad", k->file), NULL), &o);
        if (o.n_errors != 1 || o.given.n != ROWS || strstr(o.text, "directory") == NULL)
            fail_outcome(k, "a directory", 0, &o);
        take_all(k->make(ch_dataset_files(t_path("none-*"), NULL), NULL), &o);
        if (o.n_errors != 1 || o.given.n != 0 || o.rc != CH_NOT_FOUND)
            fail_outcome(k, "a pattern", 0, &o);
    }
}

/* ---- hostile files ---- */

static const kind *kind_of(const char *file)
{
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].file, file) == 0)
            return &kinds[i];
    fail();
    return NULL;
}

/* Checks that the file gives `n` elements and then this error. With skip_bad, it must give the
 * same elements and count the damage. */
static void is_refused(const char *file, const char *data, size_t size, int n, ch_status rc,
                       const char *words)
{
    static outcome o;
    const kind    *k = kind_of(file);

    damaged(k, data, size, NULL, CH_OFF, &o);
    check_outcome(k, words, 0, size, &o);
    if (o.n_errors != 1 || o.given.n != n || o.rc != rc || strstr(o.text, words) == NULL)
        fail_outcome(k, words, n, &o);
    damaged(k, data, size, &(ch_read_options){.skip_bad = true}, 2, &o);
    if (o.n_errors != is_other(rc) || o.n_skipped != !is_other(rc))
        fail_outcome(k, words, n, &o);
}

/* Writes the head of a record with a correct length and checksum, but without data. */
static void put_head(char *to, uint64_t length)
{
    uint32_t crc;

    memcpy(to, &length, 8);
    crc = ch__crc32c_mask(ch__crc32c(0, to, 8));
    memcpy(to + 8, &crc, 4);
}

static void tfrecord_rejects_a_false_length_without_allocating_it(void **state)
{
    static const uint64_t length[] = {UINT64_MAX, UINT64_MAX - 15,     INT64_MAX,
                                      1ull << 62, 1000000000000000000, (64 << 20) + 1};
    size_t                n;
    char                 *data = read_file("a.tfrecord", &n);

    (void)state;
    for (size_t i = 0; i < sizeof(length) / sizeof(length[0]); i++) {
        put_head(data + n, length[i]);
        is_refused("a.tfrecord", data, n + 200, ROWS, CH_RESOURCE_EXHAUSTED,
                   "max_record_bytes");
    }
    put_head(data + n, 64 << 20);
    is_refused("a.tfrecord", data, n + 200, ROWS, CH_DATA_LOSS, "truncated");
}

static size_t npy(char *to, const char *header)
{
    static const char magic[] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0};
    size_t            n = strlen(header);

    memcpy(to, magic, sizeof(magic));
    to[8] = (char)(n & 255);
    to[9] = (char)(n >> 8);
    memcpy(to + 10, header, n + 1);
    memset(to + 10 + n, 7, 40);
    return n + 50;
}

static void npy_rejects_false_headers(void **state)
{
    static const struct {
        const char *header, *words;
        ch_status   rc;
    } row[] = {
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (1000000000000000000, 2), }", "",
         CH_DATA_LOSS},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904, 2), }", "",
         CH_DATA_LOSS},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999, 2), }", "",
         CH_DATA_LOSS},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (-5, 2), }", "", CH_DATA_LOSS},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (5, 2), }", "", CH_DATA_LOSS},
        {"{'descr': '<i4', 'shape': (5, 2), }", "", CH_DATA_LOSS},
        {"{{{{{{{{{{{{{{{{{{{{{{{{", "", CH_DATA_LOSS},
        {"", "", CH_DATA_LOSS},
    };
    static char    data[1000];
    static outcome o;

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        const kind *k = kind_of("j.npy");
        size_t      n = npy(data, row[i].header);

        damaged(k, data, n, NULL, CH_OFF, &o);
        check_outcome(k, row[i].header, (int64_t)i, n, &o);
        if (o.n_errors != 1)
            fail_outcome(k, row[i].header, (int64_t)i, &o);
    }
}

/* Each axis has a size of 32 bits, but the product of the sizes needs more. */
static void idx_rejects_too_many_axes_or_elements(void **state)
{
    static const char many[] =
        "\0\0\x0c\x08"
        "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
        "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff";
    static const char rows[] = "\0\0\x0c\x02\xff\xff\xff\xff\0\0\0\x02\0\0\0\0";

    (void)state;
    is_refused("l.idx", many, sizeof(many) - 1, 0, CH_DATA_LOSS, "63 bits");
    is_refused("l.idx", "\0\0\x0c\xff", 4, 0, CH_UNIMPLEMENTED, "255 axes");
    is_refused("l.idx", rows, sizeof(rows) - 1, 0, CH_DATA_LOSS, "ends at byte");
}

static void readers_do_not_end_text_at_a_nul_byte(void **state)
{
    static const char csv[] = "x,s\n1,ab\n2\0,c\n3,d\n", svm[] = "1 1:2\n1 1:\0002\n0 2:1\n";
    static const char name[] = "/tmp/a\0b";
    static outcome    o;
    ch_tensor        *t = NULL;

    (void)state;
    damaged(kind_of("e.txt"), "a\0b\n\0\n", 6, NULL, CH_OFF, &o);
    assert_int_equal(o.given.n, 2);
    assert_int_equal(o.n_errors, 0);
    is_refused("g.csv", csv, sizeof(csv) - 1, 2, CH_DATA_LOSS, "line 3, byte 9");
    is_refused("i.svm", svm, sizeof(svm) - 1, 2, CH_DATA_LOSS, "line 2, byte 6");
    t_ok(ch_tensor_new(CH_STR, ch_shape_of(1), &t));
    t_ok(ch_tensor_set_str(t, (int64_t[]){0}, (ch_str){name, sizeof(name) - 1}));
    take_all(ch_dataset_lines(ch_dataset_slices(1, &t, NULL), NULL), &o);
    ch_tensor_unref(t);
    assert_int_equal(o.n_errors, 1);
    assert_non_null(strstr(o.text, "NUL"));
}

/* Writes a sparse file of zeros, which takes no space on the disk. */
static void write_zeros(const char *name, int64_t n)
{
    write_file(name, "", 0);
    assert_int_equal(truncate(t_path(name), n), 0);
}

static void readers_stop_endless_lines_and_records_at_max_record_bytes(void **state)
{
    static const char *const file[] = {"e.txt", "g.csv", "i.svm"};
    static outcome           o;
    char                     head[12];
    FILE                    *f;

    (void)state;
    write_zeros("endless", (int64_t)1 << 27); /* skipped, and not held in memory */
    for (int i = 0; i < 3; i++)
        for (int64_t most = 1000; most <= 8 << 20; most *= 8192) {
            const kind     *k = kind_of(file[i]);
            ch_read_options opt = {.max_record_bytes = most};

            take_all(with_threads(k->make(names("endless", k->file), &opt), CH_OFF), &o);
            if (o.n_errors != 1 || o.given.n != ROWS || o.rc != CH_RESOURCE_EXHAUSTED ||
                strstr(o.text, "endless") == NULL || !names_byte(o.text) ||
                o.most_bytes > most + ROOM)
                fail_outcome(k, "endless", most, &o);
        }
    put_head(head, 8 << 20); /* the data is there, but its checksum is wrong */
    f = fopen(t_path("endless"), "r+b");
    assert_int_equal(fwrite(head, 1, 12, f), 12);
    fclose(f);
    assert_int_equal(truncate(t_path("endless"), (8 << 20) + 16), 0);
    take_all(of_tfrecord(names("endless", NULL), NULL), &o);
    if (o.n_errors != 1 || o.rc != CH_DATA_LOSS || strstr(o.text, "checksum") == NULL ||
        o.most_bytes > (8 << 20) + ROOM)
        fail_outcome(&kinds[0], "zeros", 0, &o);
}

/* ---- records that exceed max_record_bytes ---- */

static ch_dataset *of_csv_text(ch_dataset *files, const ch_read_options *o)
{
    const ch_csv_options opt = {.read = *o, .no_header = true};

    return ch_dataset_csv(files, 2, (ch_csv_column[]){{.dtype = CH_I64}, {.dtype = CH_STR}},
                          &opt);
}

static void write_lines_as_records(const char *name, const char *text)
{
    ch_record_writer *w = NULL;

    t_ok(ch_record_writer_open(t_path(name), &unsynced, &w));
    for (const char *end; *text != '\0'; text = end + 1) {
        end = strchr(text, '\n');
        t_ok(ch_record_writer_add(w, (ch_str){text, (size_t)(end - text)}));
    }
    t_ok(ch_record_writer_close(w));
}

static void readers_skip_only_the_record_that_is_too_large(void **state)
{
    static const char lines[] = "one\ntwo-is-too-long\nthree\nfour\n-five-too\n";
    static const struct {
        const char *file, *text;
        ch_dataset *(*make)(ch_dataset *files, const ch_read_options *o);
        int         n_large;
        const char *given;
    } row[] = {
        {"large.txt", lines, of_lines, 2, "one | three | four"},
        {"large.txt.gz", lines, of_lines, 2, "one | three | four"},
        {"large.tfrecord", lines, of_tfrecord, 2, "one | three | four"},
        {"large.txt", "seven77", of_lines, 1, ""},
        {"large.csv", "1,a\n\n2,\"b\n\nb\"\"bbbb\n4,x\"\n3,c\n4,dddddddd\n5,e", of_csv_text, 2,
         "1, a | 3, c | 5, e"},
        {"large.svm", "1 1:2\n0 1:2 2:3\n1 2:1\n", of_libsvm, 1, "2 0 0 0, 1 | 0 1 0 0, 1"},
    };
    static outcome o;

    (void)state;
    for (size_t k = 0; k < 4 * sizeof(row) / sizeof(row[0]); k++) {
        ch_read_options opt = {.max_record_bytes = 6, .skip_bad = k % 2};
        size_t          i = k / 4;

        if (row[i].make == of_tfrecord)
            write_lines_as_records(row[i].file, row[i].text);
        else
            write_text(row[i].file, row[i].text);
        take_all(
            with_threads(row[i].make(names(row[i].file, NULL), &opt), k % 4 < 2 ? CH_OFF : 2),
            &o);
        assert_string_equal(o.given.text, row[i].given);
        assert_int_equal(o.n_errors, k % 2 ? 0 : row[i].n_large);
        assert_int_equal(o.n_skipped, k % 2 ? row[i].n_large : 0);
        if (k % 2 == 0 && (o.rc != CH_RESOURCE_EXHAUSTED || !names_byte(o.text) ||
                           strstr(o.text, row[i].file) == NULL))
            fail_msg("%s: %s", row[i].file, o.text);
    }
}

/* Neither an error nor the release of an iterator waits for the end of the record: reading
 * these records would take minutes. */
static void iterator_error_does_not_wait_for_the_end_of_an_endless_line(void **state)
{
    static const char *const file[] = {"e.txt", "g.csv", "i.svm"};

    (void)state;
    write_zeros("vast", (int64_t)1 << 40);
    for (int i = 0; i < 6; i++) {
        const kind  *k = kind_of(file[i / 2]);
        const char  *path = t_path("vast");
        ch_dataset  *d = with_threads(k->make(ch_dataset_file_list(1, &path), NULL), i % 2 + 1);
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;

        t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
        t_refused(ch_iterator_next(it, &t), CH_RESOURCE_EXHAUSTED, "vast", "max_record_bytes");
        ch_iterator_unref(it); /* its threads are skipping the rest */
        ch_dataset_unref(d);
    }
    assert_int_equal(unlink(t_path("vast")), 0);
}

/* The record is too large to be skipped in a single call: later calls skip the rest, also after
 * a restore. */
static void readers_skip_a_very_large_record_in_several_calls(void **state)
{
    static const struct {
        const char *file, *head, *tail, *given;
        ch_dataset *(*make)(ch_dataset *files, const ch_read_options *o);
    } row[] = {
        {"v.txt", "one\n", "\nthree\n", "one | !RESOURCE_EXHAUSTED | three", of_lines},
        {"v.csv", "1,a\n2,\"", "\n7,x\n\"\"\"\n3,c\n", "1, a | !RESOURCE_EXHAUSTED | 3, c",
         of_csv_text},
    };
    const ch_read_options opt = {.max_record_bytes = 100};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(row) / sizeof(row[0]); i++) {
        const char    *path = t_path(row[i / 2].file);
        ch_iterator   *it[2] = {NULL, NULL};
        ch_dataset    *d;
        static t_given g;
        void          *bytes = NULL;
        size_t         n = 0;
        FILE          *f;

        write_text(row[i / 2].file, row[i / 2].head);
        assert_int_equal(truncate(path, 40 << 20), 0);
        assert_non_null(f = fopen(path, "ab"));
        assert_int_equal(fwrite(row[i / 2].tail, strlen(row[i / 2].tail), 1, f), 1);
        fclose(f);
        d = with_threads(row[i / 2].make(ch_dataset_file_list(1, &path), &opt),
                         i % 2 ? 2 : CH_OFF);
        memset(&g, 0, sizeof(g));
        for (int k = 0; k < 2; k++)
            t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it[k]));
        t_take(it[0], 2, &g);
        t_ok(ch_iterator_save(it[0], &bytes, &n));
        t_ok(ch_iterator_restore(it[1], bytes, n));
        t_take(it[1], -1, &g);
        assert_string_equal(g.text, row[i / 2].given);
        ch_bytes_free(bytes);
        ch_iterator_unref(it[0]);
        ch_iterator_unref(it[1]);
        ch_dataset_unref(d);
    }
}

/* A FIFO without a writer has no end, and a device may have none: neither is opened. */
static void readers_reject_fifos_devices_and_directories(void **state)
{
    static outcome o;
    const char    *name[] = {t_path("fifo"), "/dev/zero", t_folder};
    ch_tensor     *t = NULL;

    (void)state;
    assert_int_equal(mkfifo(name[0], 0600), 0);
    for (int i = 0; i < 3; i++) {
        take_all(ch_dataset_lines(ch_dataset_file_list(1, &name[i]), NULL), &o);
        assert_int_equal(o.n_errors, 1);
        assert_int_equal(o.rc, CH_INVALID_ARGUMENT);
        assert_non_null(strstr(o.text, name[i]));
        t_refused(ch_npy_load(name[i], NULL, &t), CH_INVALID_ARGUMENT, name[i],
                  "file is needed");
    }
}

/* Line numbers behind a skipped record are correct, and so is a saved position. */
static void readers_count_lines_right_after_a_skipped_record(void **state)
{
    static const char     text[] = "1,a\n\n2,\"b\n\nbbbbb\"\nx,c\n5,e\n";
    const ch_read_options opt = {.max_record_bytes = 6};
    static outcome        o;
    ch_dataset           *d;
    ch_iterator          *it = NULL;
    void                 *bytes = NULL;
    size_t                n = 0;
    static t_given        rest;

    (void)state;
    write_text("large.csv", text);
    d = with_threads(of_csv_text(names("large.csv", NULL), &opt), CH_OFF);
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
    t_take(it, 2, &rest);
    t_ok(ch_iterator_save(it, &bytes, &n));
    t_ok(ch_iterator_restart(it));
    t_ok(ch_iterator_restore(it, bytes, n));
    ch_tuple *t = NULL;
    t_refused(ch_iterator_next(it, &t), CH_DATA_LOSS, "line 6, byte 18", "large.csv");
    t_take(it, -1, &rest);
    assert_string_equal(rest.text, "1, a | !RESOURCE_EXHAUSTED | 5, e");
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_dataset_unref(d);

    /* Every line could begin another large record. It is reported as a single record and read
     * once. */
    FILE *f = fopen(t_path("large.csv"), "wb");
    for (int i = 0; i < 500000; i++)
        assert_int_equal(fwrite("a\",\"\"\"\n", 1, 7, f), 7);
    fclose(f);
    take_all(with_threads(of_csv_text(names("large.csv", NULL),
                                      &(ch_read_options){.max_record_bytes = 1 << 20}),
                          CH_OFF),
             &o);
    assert_int_equal(o.given.n, 0);
    assert_int_equal(o.n_errors, 1);
    assert_non_null(strstr(o.text, "cannot be found"));
}

static void readers_reject_a_file_that_expands_too_much(void **state)
{
    static const char *const file[] = {"bomb.gz", "bomb.zst", "bomb.gz", "bomb.zst"};
    static char              zeros[1 << 20];
    static outcome           o;

    (void)state;
    for (int i = 0; i < 4; i++) {
        const int   level[] = {1, 1, 9, 19}; /* the last file has a window of 8 MiB */
        struct stat about;
        ch_writer  *w = NULL;

        t_ok(ch__writer_open(t_path(file[i]),
                             &(ch_save_options){.no_sync = true, .level = level[i]}, &w));
        for (int n = 0; n < 40; n++)
            t_ok(ch__writer_put(w, zeros, sizeof(zeros)));
        t_ok(ch__writer_commit(w));
        assert_int_equal(stat(t_path(file[i]), &about), 0);
        assert_true(about.st_size < 200000);
        take_all(with_threads(of_lines(names(file[i], NULL), NULL), CH_OFF), &o);
        if (o.n_errors != 1 || o.rc != CH_RESOURCE_EXHAUSTED ||
            strstr(o.text, file[i]) == NULL || !names_byte(o.text) ||
            o.most_bytes > about.st_size + ROOM)
            fail_outcome(&kinds[0], file[i], 0, &o);
    }
}

/* The file is not damaged, so neither the file nor any of its records is skipped. */
static void skip_bad_does_not_skip_records_when_out_of_memory(void **state)
{
    static outcome        o;
    const ch_read_options opt = {.skip_bad = true};

    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];

        for (int64_t n = 1, failed = 1; failed > 0 && n < 500; n++) {
            ch_dataset  *d = with_threads(k->make(names(k->file, NULL), &opt), CH_OFF);
            ch_iterator *it = NULL;
            ch_tuple    *t = NULL;
            ch_status    rc = CH_OK;

            memset(&o, 0, sizeof(o));
            failed = 0;
            t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
            ch__mem_fail_at(n);
            do {
                t = NULL;
                rc = ch_iterator_next(it, &t);
                failed += rc != CH_OK;
                o.rc = rc != CH_OK ? rc : o.rc;
                o.given.n += t != NULL;
                ch_tuple_unref(t);
            } while (rc != CH_OK || t != NULL);
            ch__mem_fail_at(0);
            if (ch_iterator_skipped(it) > 0 || (failed > 0 && o.rc != CH_RESOURCE_EXHAUSTED) ||
                (failed == 0 && o.given.n != ROWS))
                fail_msg("%s, allocation %lld: %lld left out, %d errors, %d rows, %s", k->file,
                         (long long)n, (long long)ch_iterator_skipped(it), (int)failed,
                         o.given.n, ch_status_name(o.rc));
            ch_iterator_unref(it);
            ch_dataset_unref(d);
        }
    }
}

static void skip_bad_does_not_skip_records_when_a_system_call_fails(void **state)
{
    static outcome        o;
    const ch_read_options opt = {.skip_bad = true};

    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        int64_t     before = ch__file_calls(), most;

        take_all(with_threads(k->make(names(k->file, k->file), &opt), CH_OFF), &o);
        most = ch__file_calls() - before;
        for (int64_t n = 1; n <= most; n++) {
            ch__file_fail_at(n, EIO);
            take_all(with_threads(k->make(names(k->file, k->file), &opt), CH_OFF), &o);
            ch__file_fail_at(0, 0);
            if (o.n_errors != 1 || o.rc != CH_DATA_LOSS || o.n_skipped != 0)
                fail_outcome(k, "a failing call", n, &o);
        }
    }
}

static int64_t take_some(ch_iterator *it, int most)
{
    ch_tuple *t = NULL;

    for (int i = 0; i != most && (t_ok(ch_iterator_next(it, &t)), t != NULL); i++) {
        ch_tuple_unref(t);
        t = NULL;
    }
    return ch_iterator_skipped(it);
}

/* With and without a cache, behind which an iterator reads elements again when it restores a
 * position. */
static void iterator_skipped_continues_its_count_after_restore(void **state)
{
    enum { N = 200, EACH = 7, BAD = N / EACH + 1 };
    FILE *f = fopen(t_path("some-bad.csv"), "w");

    (void)state;
    fprintf(f, "x\n");
    for (int i = 0; i < N; i++)
        fprintf(f, i % EACH == 0 ? "bad\n" : "%d\n", i);
    fclose(f);
    for (int i = 0; i < 4 * 30; i++) {
        ch_csv_options opt = {.read = {.skip_bad = true}};
        ch_dataset    *d = ch_dataset_csv(names("some-bad.csv", NULL), 1,
                                          &(ch_csv_column){.name = "x", .dtype = CH_I64}, &opt);
        ch_iterator   *it = NULL, *other = NULL;
        void          *bytes = NULL;
        size_t         n = 0;
        int64_t        so_far;

        d = with_threads(i % 2 ? ch_dataset_cache(d, NULL) : d, i % 4 < 2 ? CH_OFF : 2);
        t_ok(ch_iterator_new(d, NULL, &it));
        t_ok(ch_iterator_new(d, NULL, &other));
        take_some(it, i / 4 * 7);
        t_ok(ch_iterator_save(it, &bytes, &n));
        so_far = ch_iterator_skipped(it);
        take_some(other, 1);
        t_ok(ch_iterator_restore(other, bytes, n));
        if (i % 4 < 2) /* without threads, which would continue to read */
            assert_int_equal(ch_iterator_skipped(other), so_far);
        assert_int_equal(take_some(it, -1), BAD);
        assert_int_equal(take_some(other, -1), BAD);
        ((char *)bytes)[n / 2] ^= 1;
        if (ch_iterator_restore(other, bytes, n / 2) != CH_OK)
            assert_int_equal(ch_iterator_skipped(other), BAD);
        ch_bytes_free(bytes);
        ch_iterator_unref(it);
        ch_iterator_unref(other);
        ch_dataset_unref(d);
    }
}

/* ---- files that change while they are read ---- */

static void write_much(const kind *k)
{
    enum { N = 100000 };
    size_t n;
    char  *data = read_file(k->file, &n);

    if (k->make == of_npy || k->make == of_idx || k->make == of_npz) {
        ch_tensor *t = NULL;
        ch_value  *v = NULL;
        ch_tuple  *tuple = NULL;

        t_ok(ch_tensor_new(CH_I32, ch_shape_of(N, 2), &t));
        t_ok(ch_value_new(CH_PLAIN, 1, &t, &v));
        t_ok(ch_tuple_new(1, &v, (const char *[]){"a"}, &tuple));
        if (k->make == of_npz)
            t_ok(ch_npz_save(t_path("much"), tuple, &unsynced));
        else
            t_ok(k->make == of_npy ? ch_npy_save(t_path("much"), t, &unsynced)
                                   : ch_idx_save(t_path("much"), t, &unsynced));
        ch_tuple_unref(tuple);
        ch_value_unref(v);
        ch_tensor_unref(t);
    } else {
        FILE *f = fopen(t_path("much"), "wb");
        /* a header, and then the rest of the file again and again */
        size_t head = k->make == of_fixed ? 3 : k->make == of_csv ? 4 : 0;
        size_t tail = k->make == of_fixed ? 2 : 0;

        assert_int_equal(fwrite(data, 1, head, f), head);
        for (int64_t at = 0; at < 1 << 20; at += (int64_t)(n - head - tail))
            assert_int_equal(fwrite(data + head, 1, n - head - tail, f), n - head - tail);
        assert_int_equal(fwrite("FF", 1, tail, f), tail);
        fclose(f);
    }
}

static void readers_report_a_file_truncated_while_it_is_read(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind  *k = &kinds[i];
        ch_dataset  *d;
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;
        ch_status    rc;
        int          n = 0;

        if (strstr(k->file, ".gz") != NULL || strstr(k->file, ".zst") != NULL)
            continue; /* see readers_report_a_file_cut_at_any_byte */
        write_much(k);
        d = ch_dataset_batch(k->make(names("much", NULL), NULL), 64, NULL);
        d = with_threads(d, i % 2 ? CH_OFF : 2);
        t_ok(ch_iterator_new(d, NULL, &it));
        t_ok(ch_iterator_get_next(it, &t));
        ch_tuple_unref(t);
        assert_int_equal(truncate(t_path("much"), 300000), 0);
        do {
            t = NULL;
            rc = ch_iterator_next(it, &t);
            ch_tuple_unref(t);
        } while (rc == CH_OK && t != NULL && n++ < 1000000);
        if (rc != CH_DATA_LOSS || strstr(ch_error_message(), "much") == NULL ||
            !names_byte(ch_error_message()))
            fail_msg("%s: %s %s", k->file, ch_status_name(rc), ch_error_message());
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
}

static void restore_rejects_a_position_in_a_file_that_has_changed(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind  *k = &kinds[i];
        ch_dataset  *d;
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;
        void        *bytes = NULL;
        size_t       n = 0;
        struct stat  about;
        char         sizes[80];

        if (strstr(k->file, ".gz") != NULL || strstr(k->file, ".zst") != NULL)
            continue;
        write_much(k);
        assert_int_equal(stat(t_path("much"), &about), 0);
        d = ch_dataset_batch(k->make(names("much", NULL), NULL), 64, NULL);
        d = with_threads(d, i % 2 ? CH_OFF : 2);
        t_ok(ch_iterator_new(d, NULL, &it));
        t_ok(ch_iterator_get_next(it, &t));
        ch_tuple_unref(t);
        t_ok(ch_iterator_save(it, &bytes, &n));
        t_ok(ch_iterator_restore(it, bytes, n));
        assert_int_equal(truncate(t_path("much"), about.st_size + 7), 0);
        snprintf(sizes, sizeof(sizes), "much has %lld bytes and had %lld",
                 (long long)about.st_size + 7, (long long)about.st_size);
        t_refused(ch_iterator_restore(it, bytes, n), CH_FAILED_PRECONDITION, sizes,
                  "restore the old file");
        assert_int_equal(truncate(t_path("much"), about.st_size), 0);
        t_ok(ch_iterator_restore(it, bytes, n));
        ch_bytes_free(bytes);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
}

static void silence(const ch_log_record *r, void *arg)
{
    (void)r;
    (void)arg;
}

static int make_directory(void **state)
{
    (void)state;
    if (t_folder_make(NULL) != 0 || mkdir(t_path("bad"), 0700) != 0)
        return -1;
    ch_log_set_sink(silence, NULL, CH_LOG_ERROR); /* no messages about skipped records */
    ch_device_current();                          /* made once, so it is not counted */
    write_files();
    return 0;
}

/* ---- intact records that are not examples ---- */

enum { BAD_ONE = 2, RECORD_HEAD = 12, RECORD_TAIL = 4 };

/* Writes four records: x = 0, 1, `bad` and 3. Returns the offset of `bad`. */
static int64_t write_one_that_is_none(const char *name, ch_str bad)
{
    ch_record_writer *w = NULL;
    int64_t           offset = 0;

    t_ok(ch_record_writer_open(t_path(name), &unsynced, &w));
    for (int64_t i = 0; i < 4; i++) {
        ch_example *e = NULL;
        ch_tensor  *x = NULL;
        ch_str      whole = {NULL, 0};

        t_ok(ch_example_new(&e));
        t_ok(ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &i, &x));
        t_ok(ch_example_set(e, "x", x));
        t_ok(ch_example_encode(e, &whole));
        t_ok(ch_record_writer_add(w, i == BAD_ONE ? bad : whole));
        if (i < BAD_ONE)
            offset += RECORD_HEAD + (int64_t)whole.size + RECORD_TAIL;
        ch_tensor_unref(x);
        ch_example_free(e);
    }
    t_ok(ch_record_writer_close(w));
    return offset;
}

static ch_dataset *read_each(ch_dataset *file, void *arg)
{
    return ch_dataset_tfrecord(file, arg);
}

/* Reads the files one by one, or several at once without order. */
static ch_dataset *examples_of(const char *name, const ch_read_options *o, bool mixed)
{
    ch_read_options own = *o;
    ch_dataset     *d = names(name, NULL);

    d = mixed ? ch_dataset_shuffle(ch_dataset_interleave(d, read_each, &own, NULL), 2,
                                   &(ch_shuffle_options){.seed = 1})
              : ch_dataset_tfrecord(d, o);
    return ch_dataset_parse_examples(d, 1, &(ch_feature){.name = "x", .dtype = CH_I64});
}

static void record_that_is_no_example_is_an_error_or_skipped(void **state)
{
    static const ch_str   garbage = {"\x0a\xff\xffgarbage", 10}, empty = {"", 0};
    const ch_read_options stop = {0}, skip = {.skip_bad = true};
    static outcome        o;
    char                  byte[40];

    (void)state;
    for (int k = 0; k < 8; k++) {
        bool    mixed = k % 2, skips = k / 2 % 2, is_empty = k / 4;
        int64_t offset = write_one_that_is_none("x.tfrecord", is_empty ? empty : garbage);

        take_all(with_threads(examples_of("x.tfrecord", skips ? &skip : &stop, mixed), 2), &o);
        assert_int_equal(o.given.n, 3);
        if (!mixed)
            assert_string_equal(o.given.text, "0 | 1 | 3");
        if (skips && !is_empty) {
            assert_int_equal(o.n_errors, 0);
            assert_int_equal(o.n_skipped, 1);
            continue;
        }
        /* an example without features is valid, but lacks the requested feature */
        assert_int_equal(o.n_errors, 1);
        assert_int_equal(o.n_skipped, 0);
        assert_int_equal(o.rc, is_empty ? CH_INVALID_ARGUMENT : CH_DATA_LOSS);
        snprintf(byte, sizeof(byte),
                 "x.tfrecord, byte %lld: parse_examples: ", (long long)offset);
        if (strstr(o.text, byte) == NULL || strstr(o.text, "examples, record") != NULL)
            fail_msg("%s: has no %s", o.text, byte);
    }
}

/* ---- a slow input ---- */

static atomic_int n_named; /* notices that name the stage and the file */

static void hear_notice(const ch_log_record *r, void *arg)
{
    n_named += strcmp(r->code, "slow-input") == 0 && strstr(r->text, "waits for map") != NULL &&
               strstr(r->text, *(const char **)arg) != NULL;
}

/* Takes as long as two messages about a slow input need. */
static ch_status slow_call(void *arg, ch_tuple *in, ch_tuple **out)
{
    (void)arg;
    for (int i = 0; i < 20000 && n_named < 2; i++)
        (void)poll(NULL, 0, 1);
    *out = ch_tuple_ref(in);
    return CH_OK;
}

static void iterator_wait_notice_names_the_file_of_a_slow_input(void **state)
{
    static const ch_tensor_spec text = {.dtype = CH_STR};
    const char                 *path = t_path("slow.txt");
    ch_dataset                 *d = ch_dataset_lines(ch_dataset_file_list(1, &path), NULL);
    ch_iterator                *it = NULL;
    ch_tuple                   *t = NULL;

    (void)state;
    write_text("slow.txt", "a\n");
    d = ch_dataset_map_call(d, slow_call, NULL, 1, &text, NULL);
    t_ok(ch__config_set("wait_notice_ms", "1"));
    ch_log_set_sink(hear_notice, &path, CH_LOG_WARNING);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_ok(ch_iterator_next(it, &t));
    ch_log_set_sink(silence, NULL, CH_LOG_ERROR);
    t_ok(ch__config_set("wait_notice_ms", "10000"));
    assert_true(n_named >= 2);
    ch_tuple_unref(t);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(iterator_wait_notice_names_the_file_of_a_slow_input),
        cmocka_unit_test(readers_give_all_rows_of_undamaged_files),
        cmocka_unit_test(readers_report_a_file_cut_at_any_byte),
        cmocka_unit_test(readers_report_a_changed_byte_or_give_another_value),
        cmocka_unit_test(readers_report_a_failed_system_call_and_leak_nothing),
        cmocka_unit_test(readers_give_the_same_rows_after_short_reads),
        cmocka_unit_test(readers_report_one_error_for_a_missing_file),
        cmocka_unit_test(tfrecord_rejects_a_false_length_without_allocating_it),
        cmocka_unit_test(npy_rejects_false_headers),
        cmocka_unit_test(idx_rejects_too_many_axes_or_elements),
        cmocka_unit_test(readers_do_not_end_text_at_a_nul_byte),
        cmocka_unit_test(readers_stop_endless_lines_and_records_at_max_record_bytes),
        cmocka_unit_test(iterator_error_does_not_wait_for_the_end_of_an_endless_line),
        cmocka_unit_test(readers_skip_a_very_large_record_in_several_calls),
        cmocka_unit_test(readers_reject_fifos_devices_and_directories),
        cmocka_unit_test(readers_skip_only_the_record_that_is_too_large),
        cmocka_unit_test(readers_count_lines_right_after_a_skipped_record),
        cmocka_unit_test(restore_rejects_a_position_in_a_file_that_has_changed),
        cmocka_unit_test(readers_reject_a_file_that_expands_too_much),
        cmocka_unit_test(skip_bad_does_not_skip_records_when_out_of_memory),
        cmocka_unit_test(skip_bad_does_not_skip_records_when_a_system_call_fails),
        cmocka_unit_test(iterator_skipped_continues_its_count_after_restore),
        cmocka_unit_test(readers_report_a_file_truncated_while_it_is_read),
        cmocka_unit_test(record_that_is_no_example_is_an_error_or_skipped),
    };

    return cmocka_run_group_tests(tests, make_directory, t_folder_remove);
}
