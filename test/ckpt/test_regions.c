/* test/ckpt/test_regions.c -- random checkpoints against a simple model, and failures of every
 * call.
 *
 * The model copies regions element by element. The tests write tensors in random slices and
 * read them by random regions, then let each system call and each allocation fail once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>

#include "ckpt/entry.h"
#include "ckpt/sstable.h"
#include "help.h"

static const ch_ckpt_write_options quick = {.no_sync = true};

static uint64_t dice = 1;

static int64_t roll(int64_t n)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(dice >> 33) % n;
}

enum { N_TENSORS = 6, MOST_PARTS = 24 };

/* A tensor of the model, and its parts in memory. */
typedef struct model_tensor {
    char     name[32];
    ch_dtype dtype;
    ch_shape shape;
    char    *data;
    int      n_parts;
    char    *part[MOST_PARTS];
} model_tensor;

/* Copies a region between a whole tensor and contiguous memory, element by element. */
static void copy_region(const model_tensor *t, const ch_region *r, char *region, bool to_region)
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
        if (to_region)
            memcpy(region + (size_t)i * element, t->data + (size_t)at * element, element);
        else
            memcpy(t->data + (size_t)at * element, region + (size_t)i * element, element);
    }
}

static void make_tensor(model_tensor *t, int i)
{
    static const ch_dtype types[] = {CH_F32, CH_F64, CH_BF16, CH_I8, CH_I64, CH_BOOL, CH_F16};
    int64_t               bytes;

    *t = (model_tensor){.dtype = types[roll(7)]};
    snprintf(t->name, sizeof(t->name), "%c/t%d", (char)('a' + roll(3)), i);
    t->shape.rank = (int)roll(4);
    for (int k = 0; k < t->shape.rank; k++)
        t->shape.dim[k] = 1 + roll(k == 0 && roll(8) == 0 ? 40000 : 9);
    bytes = ch__ckpt_bytes(t->dtype, t->shape);
    t->data = t_noise((size_t)bytes, (unsigned)roll(1000000));
}

/* Adds the tensor to the bundle, in slices of a grid or whole. */
static void add_tensor(t_bundle *b, model_tensor *t, int n_files)
{
    int64_t cuts[CH_MAX_RANK] = {0}, n = 1;

    for (int k = 0; k < t->shape.rank; k++) {
        cuts[k] =
            n * t->shape.dim[k] <= MOST_PARTS && roll(2) == 0 ? t->shape.dim[k] : 1 + roll(2);
        cuts[k] = cuts[k] > t->shape.dim[k] ? t->shape.dim[k] : cuts[k];
        cuts[k] = n * cuts[k] > MOST_PARTS ? 1 : cuts[k];
        n *= cuts[k];
    }
    for (int64_t i = 0; i < n; i++) {
        ch_region     r = {.begin = {0}};
        int64_t       rest = i, bytes = (int64_t)ch_dtype_bytes(t->dtype);
        ch_ckpt_item *x;

        for (int k = t->shape.rank - 1; k >= 0; k--) {
            int part = (int)(rest % cuts[k]);

            rest /= cuts[k];
            r.begin[k] = ch__part_begin(t->shape.dim[k], (int)cuts[k], part);
            r.size[k] = ch__part_begin(t->shape.dim[k], (int)cuts[k], part + 1) - r.begin[k];
            bytes *= r.size[k];
        }
        t->part[i] = malloc((size_t)bytes + 1);
        copy_region(t, &r, t->part[i], true);
        x = t_add_slice(b, t->name, t->dtype, t->shape, r, t->part[i]);
        x->file = (int)(i % n_files);
    }
    t->n_parts = (int)n;
}

/* Sorts the items by file; items of a file keep their order. */
static void sort_files(t_bundle *b, int n_files)
{
    static t_bundle sorted;

    sorted = (t_bundle){0};
    for (int f = 0; f < n_files; f++)
        for (int i = 0; i < b->n; i++)
            if (b->item[i].file == f) {
                sorted.item[sorted.n] = b->item[i];
                sorted.data[sorted.n++] = b->data[i];
            }
    *b = sorted;
}

static void check_region(ch_ckpt *c, const model_tensor *t, const ch_region *r)
{
    int64_t n = (int64_t)ch_dtype_bytes(t->dtype);

    for (int k = 0; k < t->shape.rank; k++)
        n *= r->size[k];
    char *want = malloc((size_t)n + 1), *have = malloc((size_t)n + 1);
    copy_region(t, r, want, true);
    t_assert_error(ch__ckpt_read(c, t->name, r, have), CH_OK, "");
    assert_memory_equal(want, have, (size_t)n);
    free(want);
    free(have);
}

/* TBF-13, TBF-17, TBF-21, SS-5: any slices, read by any regions */
static void random_checkpoints_read_back_by_any_regions(void **state)
{
    static model_tensor tensor[N_TENSORS];
    static t_bundle     b;

    for (int round = 0; round < 60; round++) {
        int      n_files = 1 + (int)roll(4);
        ch_ckpt *c = NULL;

        b = (t_bundle){0};
        for (int i = 0; i < N_TENSORS; i++) {
            make_tensor(&tensor[i], i);
            add_tensor(&b, &tensor[i], n_files);
        }
        sort_files(&b, n_files);
        ch__file_limit_io(round % 4 == 3 ? 1 + (size_t)roll(5000) : 0);
        t_assert_error(t_write_bundle(&b, t_path("r"), n_files, round % 2 == 0, &quick), CH_OK,
                       "");
        t_assert_error(ch__ckpt_open(t_path("r"), &c), CH_OK, "");
        assert_int_equal(ch__ckpt_count(c), N_TENSORS);
        assert_int_equal(ch__ckpt_n_files(c), n_files);
        for (int i = 0; i < N_TENSORS; i++) {
            const model_tensor *t = &tensor[i];
            ch_ckpt_entry       e;
            int                 at = ch__ckpt_find(c, t->name);

            assert_true(at >= 0);
            ch__ckpt_entry(c, at, &e);
            assert_int_equal(e.n_parts, t->n_parts);
            assert_true(e.dtype == t->dtype && ch_shape_equal(e.shape, t->shape));
            for (int k = 0; k < 6; k++) { /* after the checksums are verified */
                ch_region r = {.begin = {0}};

                for (int a = 0; a < t->shape.rank; a++) {
                    r.begin[a] = k == 0 ? 0 : roll(t->shape.dim[a]);
                    r.size[a] = t->shape.dim[a] - r.begin[a];
                    r.size[a] = k % 2 == 1 ? 1 + roll(r.size[a]) : r.size[a];
                }
                check_region(c, t, &r);
            }
            assert_int_equal(ch__ckpt_verify(c, at), CH_OK);
        }
        ch__file_limit_io(0);
        ch__ckpt_close(c);
        for (int i = 0; i < N_TENSORS; i++) {
            for (int k = 0; k < tensor[i].n_parts; k++)
                free(tensor[i].part[k]);
            free(tensor[i].data);
        }
    }
    (void)state;
}

/* TBF-13, TBF-29: alignment; large items are written and read in place */
static void large_items_begin_at_multiples_of_4096(void **state)
{
    enum { LARGE = (5 << 20) + 12345, MEDIUM = (1 << 20) + 4 };
    static t_bundle b;
    char           *large = NULL, *back = malloc(LARGE), *medium = t_noise(MEDIUM, 3);
    ch_ckpt_part    part;
    ch_ckpt        *c = NULL;
    struct stat     about;

    assert_int_equal(posix_memalign((void **)&large, 4096, LARGE), 0);
    for (int i = 0; i < LARGE; i++)
        large[i] = (char)(i * 7 + i / 256);
    b = (t_bundle){0};
    t_add(&b, "a", CH_I8, ch_shape_of(3), "abc");
    t_add(&b, "b", CH_I8, ch_shape_of(LARGE), large);
    t_add(&b, "c", CH_I8, ch_shape_of(5), "vwxyz");
    t_add(&b, "d", CH_I8, ch_shape_of(MEDIUM), medium);
    assert_int_equal(t_write_bundle(&b, t_path("l"), 1, false, NULL), CH_OK);
    assert_int_equal(b.item[1].offset, 4096);
    assert_int_equal(b.item[2].offset % 64, 0);
    assert_int_equal(b.item[3].offset % 4096, 0);
    assert_int_equal(stat(t_path("l.data-00000-of-00001"), &about), 0);
    assert_int_equal(about.st_size, b.item[3].offset + MEDIUM);
    assert_int_equal(ch__ckpt_open(t_path("l"), &c), CH_OK);
    assert_int_equal(ch__ckpt_file_bytes(c, 0), about.st_size);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(ch__ckpt_read(c, "b", NULL, back), CH_OK);
        assert_memory_equal(back, large, LARGE);
        assert_int_equal(ch__ckpt_read(c, "d", NULL, back), CH_OK);
        assert_memory_equal(back, medium, MEDIUM);
    }
    ch__ckpt_part(c, 1, 0, &part);
    assert_int_equal(part.crc, ch__crc32c_mask(ch__crc32c(0, large, LARGE)));
    ch__ckpt_close(c);
    free(large);
    free(back);
    free(medium);
    (void)state;
}

/* TBF-23: these dtypes cannot be joined from slices by TensorFlow */
static void slices_have_at_most_64_mebibytes(void **state)
{
    assert_int_equal(ch__ckpt_slice_rows(CH_F32, ch_shape_of(1 << 20, 64)), 262144);
    assert_int_equal(ch__ckpt_slice_rows(CH_F32, ch_shape_of(1 << 18, 64)), 1 << 18);
    assert_int_equal(ch__ckpt_slice_rows(CH_F32, ch_shape_of((1 << 18) + 1, 64)), 1 << 18);
    assert_int_equal(ch__ckpt_slice_rows(CH_BF16, ch_shape_of(3, 1 << 26)), 1);
    assert_int_equal(ch__ckpt_slice_rows(CH_F16, ch_shape_of(1 << 20, 64)), 1 << 20);
    assert_int_equal(ch__ckpt_slice_rows(CH_U64, ch_shape_of(1 << 20, 64)), 1 << 20);
    assert_int_equal(ch__ckpt_slice_rows(CH_F32, ch_shape_scalar()), 1);
    (void)state;
}

/* ---- failures ---- */

static float        numbers[700];
static const ch_str words[2] = {{"ab", 2}, {"", 0}};

static ch_status save_some(const char *prefix)
{
    static t_bundle  b;
    ch_bytes_builder e = {0};
    ch_status        rc;

    b = (t_bundle){0};
    t_add_slice(&b, "x", CH_F32, ch_shape_of(700), t_range(0, 300), numbers);
    t_add_strings(&b, "words", ch_shape_of(2), words, &e)->file = 0;
    t_add_slice(&b, "x", CH_F32, ch_shape_of(700), t_range(300, 400), numbers + 300)->file = 1;
    rc = e.has_failed ? CH_RESOURCE_EXHAUSTED : t_write_bundle(&b, prefix, 2, false, NULL);
    ch__bytes_builder_drop(&e);
    return rc;
}

static ch_status load_some(const char *prefix)
{
    float     back[500];
    ch_region r = t_range(100, 500);
    ch_str   *strings = NULL;
    ch_ckpt  *c = NULL;
    ch_status rc = ch__ckpt_open(prefix, &c);

    if (rc == CH_OK)
        rc = ch__ckpt_read(c, "x", &r, back);
    if (rc == CH_OK)
        assert_memory_equal(back, numbers + 100, sizeof(back));
    if (rc == CH_OK)
        rc = ch__ckpt_read_strings(c, "words", &strings);
    for (int i = 0; c != NULL && i < ch__ckpt_count(c) && rc == CH_OK; i++)
        rc = ch__ckpt_verify(c, i);
    ch__free(strings);
    ch__ckpt_close(c);
    return rc;
}

/* TBF-26 */
static void checkpoint_write_leaves_no_temporary_file_when_a_call_fails(void **state)
{
    int64_t n = 0;
    bool    done = false;

    for (int i = 0; i < 700; i++)
        numbers[i] = (float)i;
    while (!done) {
        int       files = t_count_files();
        ch_status rc;

        ch__file_fail_at(++n, EIO);
        rc = save_some(t_path("f"));
        ch__file_fail_at(0, EIO);
        done = rc == CH_OK;
        assert_true(done || rc == CH_DATA_LOSS);
        assert_true(t_count_files() <= files + 3);
        DIR *d = opendir(t_folder);
        for (struct dirent *x; (x = readdir(d)) != NULL;)
            assert_null(strstr(x->d_name, ".tmp-"));
        closedir(d);
        if (access(t_path("f.index"), F_OK) == 0)
            assert_int_equal(load_some(t_path("f")), CH_OK);
        unlink(t_path("f.index"));
    }
    assert_true(n > 15);
    assert_int_equal(save_some(t_path("f")), CH_OK);
    for (n = 0, done = false; !done;) {
        ch_status rc;

        ch__file_fail_at(++n, EIO);
        rc = load_some(t_path("f"));
        ch__file_fail_at(0, EIO);
        done = rc == CH_OK;
        assert_true(done || rc == CH_DATA_LOSS);
    }
    assert_true(n > 8);
    (void)state;
}

static bool has_temporary_file(void)
{
    DIR *d = opendir(t_folder);
    bool found = false;

    for (struct dirent *x; (x = readdir(d)) != NULL;)
        found |= strstr(x->d_name, ".tmp-") != NULL;
    closedir(d);
    return found;
}

/* TBF-26: every write fails from some call on */
static void older_checkpoints_stay_when_the_disk_is_full(void **state)
{
    bool done = false;

    assert_int_equal(save_some(t_path("old")), CH_OK);
    for (int64_t n = 1; !done; n++) {
        ch_status rc;

        ch__file_fail_from(n, ENOSPC);
        rc = save_some(t_path("full"));
        ch__file_fail_from(0, ENOSPC);
        done = rc == CH_OK;
        assert_true(done || rc == CH_RESOURCE_EXHAUSTED);
        assert_false(has_temporary_file());
        assert_int_equal(load_some(t_path("old")), CH_OK);
        if (access(t_path("full.index"), F_OK) == 0)
            assert_int_equal(load_some(t_path("full")), CH_OK);
        unlink(t_path("full.index"));
    }
    (void)state;
}

/* Writes an index with n tensors without elements. Returns its size. */
static int64_t write_names(const char *path, int n)
{
    ch_sst_writer    w = {.has_ended = false};
    ch_bytes_builder value = {0};
    ch_ckpt_item     item = {.dtype = CH_F32, .whole = ch_shape_of(0)};
    int64_t          bytes;
    char             name[64];
    FILE            *f = fopen(path, "wb");

    ch__ckpt_emit_header(&value, 1);
    ch__sst_add(&w, (ch_str){"", 0}, value.at, value.n);
    for (int i = 0; i < n; i++) {
        ch__bytes_builder_clear(&value);
        ch__ckpt_emit_entry(&value, &item, item.whole);
        snprintf(name, sizeof(name), "model/layer-%07d/.ATTRIBUTES/VARIABLE_VALUE", i);
        ch__sst_add(&w, (ch_str){name, strlen(name)}, value.at, value.n);
    }
    ch__sst_end(&w);
    bytes = (int64_t)w.out.n;
    assert_true(!w.out.has_failed && fwrite(w.out.at, 1, w.out.n, f) == w.out.n);
    fclose(f);
    ch__sst_drop(&w);
    ch__bytes_builder_drop(&value);
    return bytes;
}

static void index_of_a_million_names_needs_limited_memory(void **state)
{
    enum { NAMES = CH_CKPT_MAX_ITEMS };
    ch_ckpt *c = NULL;
    int64_t  bytes = write_names(t_path("n.index"), NAMES), data = 64 * (int64_t)NAMES;

    /* Names that the table compresses are not worth the memory without any data. */
    t_write("n.data-00000-of-00001", "", 0);
    t_assert_error(ch__ckpt_open(t_path("n"), &c), CH_RESOURCE_EXHAUSTED, "n.index",
                   "1048576 tensors");
    assert_int_equal(truncate(t_path("n.data-00000-of-00001"), data), 0);
    ch__mem_watch(true);
    t_assert_error(ch__ckpt_open(t_path("n"), &c), CH_OK, "");
    assert_true(ch__mem_peak() <= (16 << 20) + 2 * (bytes + data));
    ch__mem_watch(false);
    assert_int_equal(ch__ckpt_count(c), NAMES);
    ch__ckpt_close(c);
    write_names(t_path("n.index"), NAMES + 1);
    t_assert_error(ch__ckpt_open(t_path("n"), &c), CH_RESOURCE_EXHAUSTED, "more than 1048576");
    (void)state;
}

/* Walks through all names in parts, with little memory. */
static void checkpoint_of_many_names_is_read_in_parts(void **state)
{
    enum { NAMES = 100000, PART = 4 << 20 };
    char     name[64], after[64] = "";
    ch_ckpt *c = NULL;
    int      n = 0, n_parts = 0;
    bool     has_more = true;

    write_names(t_path("p.index"), NAMES);
    t_write("p.data-00000-of-00001", "", 0);
    ch__mem_watch(true);
    for (; has_more; n_parts++) {
        ch_ckpt_entry e;

        t_assert_error(ch__ckpt_open_some(t_path("p"), n > 0 ? after : NULL, PART, &c), CH_OK,
                       "");
        assert_int_equal(ch__ckpt_count_all(c), NAMES);
        assert_true(ch__ckpt_count(c) > 0);
        for (int i = 0; i < ch__ckpt_count(c); i++, n++) {
            ch__ckpt_entry(c, i, &e);
            snprintf(name, sizeof(name), "model/layer-%07d/.ATTRIBUTES/VARIABLE_VALUE", n);
            assert_string_equal(e.name, name);
        }
        has_more = ch__ckpt_last_name(c) != NULL;
        snprintf(after, sizeof(after), "%s", has_more ? ch__ckpt_last_name(c) : "");
        ch__ckpt_close(c);
    }
    assert_true(ch__mem_peak() <= PART + (8 << 20)); /* blocks of the index need 8 MiB */
    ch__mem_watch(false);
    assert_int_equal(n, NAMES);
    assert_true(n_parts > 2);
    (void)state;
}

static void checkpoint_calls_fail_without_leak_when_out_of_memory(void **state)
{
    for (int which = 0; which < 2; which++)
        for (int64_t n = 1, done = 0; !done; n++) {
            int64_t   live = ch__mem_live();
            ch_status rc;

            ch__mem_fail_at(n);
            rc = which == 0 ? save_some(t_path("m")) : load_some(t_path("m"));
            ch__mem_fail_at(0);
            done = rc == CH_OK;
            assert_true(done || rc == CH_RESOURCE_EXHAUSTED);
            assert_int_equal(ch__mem_live(), live);
        }
    (void)state;
}

/* SS-4, SS-8: the same slice twice, and other contradictions */
static void checkpoint_write_rejects_items_that_contradict_themselves(void **state)
{
    static t_bundle b;
    char            name[5000];

    memset(name, 'n', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    for (int i = 0; i < 9; i++) {
        ch_ckpt_item   *x;
        ch_ckpt_writer *w = NULL;
        t_source        source = {&b, 0};

        b = (t_bundle){0};
        x = t_add_slice(&b, "x", CH_F32, ch_shape_of(700), t_range(0, 300), numbers);
        if (i == 8) { /* the same slice twice */
            t_add_slice(&b, "x", CH_F32, ch_shape_of(700), t_range(0, 300), numbers);
            t_assert_error(t_write_bundle(&b, t_path("i"), 1, false, &quick),
                           CH_INVALID_ARGUMENT, "the same");
            break;
        }
        if (i == 7) { /* slices of different tensors */
            t_add_slice(&b, "x", CH_F32, ch_shape_of(800), t_range(300, 300), numbers);
            t_assert_error(t_write_bundle(&b, t_path("i"), 1, false, &quick),
                           CH_INVALID_ARGUMENT, "different");
            continue;
        }
        if (i == 6) {
            x->file = 1;
            assert_int_equal(ch__ckpt_writer_open(t_path("i"), 1, &quick, &w), CH_OK);
            t_assert_error(ch__ckpt_writer_add_keys(w, 1, x, CH_CKPT_TENSORS),
                           CH_INVALID_ARGUMENT, "data file 1 of 1");
            ch__ckpt_writer_close(w);
            continue;
        }
        x->name = i == 0 ? "" : i == 1 ? name : "x";
        x->bytes += i == 2;
        x->region.begin[0] = i == 3 ? 401 : 0;
        x->offset = i == 4 ? -1 : 0;
        x->dtype = i == 5 ? CH_DTYPE_COUNT : CH_F32;
        assert_int_equal(ch__ckpt_writer_open(t_path("i"), 1, &quick, &w), CH_OK);
        t_assert_error(ch__ckpt_writer_add_file(w, 0, 1, x, t_fetch, &source, NULL),
                       CH_INVALID_ARGUMENT, "writing a checkpoint");
        ch__ckpt_writer_close(w);
    }
    mkdir(t_path("d.data-00000-of-00001"), 0700);
    b.n = 1;
    t_assert_error(t_write_bundle(&b, t_path("d"), 1, false, &quick), CH_INVALID_ARGUMENT,
                   "regular file");
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_checkpoints_read_back_by_any_regions),
        cmocka_unit_test(large_items_begin_at_multiples_of_4096),
        cmocka_unit_test(slices_have_at_most_64_mebibytes),
        cmocka_unit_test(checkpoint_write_leaves_no_temporary_file_when_a_call_fails),
        cmocka_unit_test(older_checkpoints_stay_when_the_disk_is_full),
        cmocka_unit_test(index_of_a_million_names_needs_limited_memory),
        cmocka_unit_test(checkpoint_of_many_names_is_read_in_parts),
        cmocka_unit_test(checkpoint_calls_fail_without_leak_when_out_of_memory),
        cmocka_unit_test(checkpoint_write_rejects_items_that_contradict_themselves),
    };

    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}
