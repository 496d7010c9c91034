/* fuzz/cache.c -- the file of ch_dataset_cache, with arbitrary contents.
 *
 * The cache must return elements with the dtypes and shapes of the dataset, or an error. It
 * must restore a position in the file, or return an error. A file that the cache has written
 * must have all elements, even if calls failed while it was written. The mutator starts with
 * such a file, changes fields of its records, and corrects lengths and checksums.
 *
 * covers: src/data/cache_file.c
 * longest: 1500
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/sys.h"
#include "cohort/cohort.h"
#include "dataset/alter.h"
#include "file/crc32c.h"
#include "file/help.h"

enum { ROWS = 5, MOST_RECORD = 1000, MOST_FILE = 4096 };

/* ---- the dataset that is cached ---- */

static const ch_tensor_spec spec[] = {{.dtype = CH_I64},
                                      {.dtype = CH_F32, .shape = {1, {-1}}},
                                      {.dtype = CH_STR, .shape = {1, {1}}}};

/* An element is x, x % 3 copies of x, and a text. If `fails` is set, the last element fails. */
static bool fails;

static ch_status row_of(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t    x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0)), at = 0;
    float      some[2] = {(float)x, (float)x};
    ch_tensor *t[3] = {NULL};
    ch_status  rc = fails && x == ROWS - 1 ? CH_INTERNAL : CH_OK;

    (void)arg;
    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &x, &t[0]);
    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_F32, ch_shape_of(x % 3), some, &t[1]);
    if (rc == CH_OK)
        rc = ch_tensor_new(CH_STR, ch_shape_of(1), &t[2]);
    if (rc == CH_OK)
        rc = ch_tensor_set_str(t[2], &at, (ch_str){"texts", (size_t)x});
    if (rc == CH_OK)
        rc = ch_tuple_of(3, t, out);
    for (int i = 0; i < 3; i++)
        ch_tensor_unref(t[i]);
    return rc;
}

/* Returns the dataset with its cache at `path`. Both paths are constant, so both datasets are
 * kept. */
static ch_dataset *cached(const char *path)
{
    static ch_dataset *made[2];
    ch_dataset       **kept = &made[path == file_to_write()], *d = *kept;

    if (d != NULL)
        return d;
    d = ch_dataset_map_call(ch_dataset_range(0, ROWS, 1), row_of, NULL, 3, spec, NULL);
    d = ch_dataset_with_options(ch_dataset_cache(d, path),
                                &(ch_dataset_options){.threads = CH_OFF});
    MUST(d != NULL);
    return *kept = d;
}

/* ---- reading ---- */

static void check_tuple(ch_tuple *t)
{
    static volatile unsigned sink;

    MUST(ch_tuple_count(t) == 3);
    for (int i = 0; i < 3; i++) {
        const ch_tensor *x = ch_value_at(ch_tuple_at(t, i), 0);

        MUST(ch_tensor_dtype(x) == spec[i].dtype);
        MUST(ch_tensor_shape(x).rank == spec[i].shape.rank);
        if (i < 2 && ch_tensor_bytes(x) > 0)
            sink = sink + fuzz_hash(ch_tensor_data(x), ch_tensor_bytes(x));
    }
    ch_str s = *(const ch_str *)ch_tensor_data(ch_value_at(ch_tuple_at(t, 2), 0));
    if (s.size > 0)
        sink = sink + fuzz_hash((const uint8_t *)s.data, s.size);
}

/* Reads up to `most` elements. Returns their number, or -1 if a read has failed. */
static int take(ch_iterator *it, int most)
{
    int  n = 0;
    bool has_failed = false;

    for (int i = 0; i < most; i++) {
        ch_tuple *t = NULL;

        if (ch_iterator_next(it, &t) != CH_OK)
            has_failed = true;
        else if (t == NULL)
            break;
        else
            check_tuple(t);
        n += t != NULL;
        ch_tuple_unref(t);
    }
    return has_failed ? -1 : n;
}

static const ch_iterator_options go_on = {.go_on = true};

/* Reads from the position of `it` with another iterator. Before that, removes the file `gone`
 * if it is not NULL. */
static void go_there(ch_dataset *d, ch_iterator *it, const char *gone)
{
    ch_iterator *other = NULL;
    void        *bytes = NULL;
    size_t       n = 0;

    if (ch_iterator_save(it, &bytes, &n) == CH_OK && gone != NULL)
        (void)remove(gone);
    if (bytes != NULL && ch_iterator_new(d, &go_on, &other) == CH_OK &&
        ch_iterator_restore(other, bytes, n) == CH_OK)
        (void)take(other, 200);
    ch_bytes_free(bytes);
    ch_iterator_unref(other);
}

static void read_file(const char *path)
{
    ch_dataset  *d = cached(path);
    ch_iterator *it = NULL;

    if (ch_iterator_new(d, &go_on, &it) == CH_OK) {
        (void)take(it, 200);
        if (ch_iterator_restart(it) == CH_OK)
            (void)take(it, 2);
        go_there(d, it, NULL);
    }
    ch_iterator_unref(it);
}

/* ---- writing ---- */

static void write_file(const char *path)
{
    ch_dataset  *d = cached(path);
    ch_iterator *it = NULL;

    if (ch_iterator_new(d, &go_on, &it) == CH_OK) {
        (void)take(it, 2);
        go_there(d, it, NULL);
        (void)take(it, 200);
        if (ch_iterator_restart(it) == CH_OK)
            (void)take(it, 3);
        go_there(d, it, path);
    }
    ch_iterator_unref(it);
}

/* Checks that the cache returns all elements. If the file does not exist, the cache writes
 * it. */
static void check_written(const char *path)
{
    ch_dataset  *d = cached(path);
    ch_iterator *it = NULL;

    MUST(ch_iterator_new(d, &go_on, &it) == CH_OK);
    MUST(take(it, 200) == ROWS);
    ch_iterator_unref(it);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned    h = fuzz_hash(data, size);
    const char *path = file_of(data, size);
    int64_t     live = (cached(path), cached(file_to_write()), ch__mem_live());

    read_file(path);
    if (h % 16 == 0)
        with_failures(h / 16, read_file, path);
    if (h % 64 == 1) {
        path = file_to_write();
        (void)remove(path);
        fails = h / 64 % 4 == 0;
        with_failures(h / 256, write_file, path);
        fails = false;
        check_written(path);
        (void)remove(path);
    }
    MUST(ch__mem_live() == live);
    return 0;
}

/* ---- mutating ---- */

static uint32_t masked(const uint8_t *data, size_t n)
{
    return ch__crc32c_mask(ch__crc32c(0, data, n));
}

static size_t put_record(dice *d, const uint8_t *data, size_t size, uint8_t *to)
{
    uint64_t n = roll(d, 60) == 0 ? some_size(d) : size;
    uint32_t crc;

    memcpy(to, &n, 8);
    crc = masked(to, 8) ^ (roll(d, 100) == 0);
    memcpy(to + 8, &crc, 4);
    memcpy(to + 12, data, size);
    crc = masked(data, size) ^ (roll(d, 60) == 0);
    memcpy(to + 12 + size, &crc, 4);
    return 16 + size;
}

/* Copies the records of a file. Changes, drops or repeats a record. */
static size_t alter_file(dice *d, const uint8_t *data, size_t size, uint8_t *out, size_t room)
{
    static uint8_t one[MOST_RECORD];
    int            which = roll(d, 6) == 0 ? 0 : 1 + (int)roll(d, ROWS + 1);
    int            what = (int)roll(d, 8);
    size_t         n = 0, at = 0;

    for (int i = 0; size - at >= 16; i++) {
        uint64_t length;
        size_t   m;

        memcpy(&length, data + at, 8);
        m = length <= size - at - 16 ? (size_t)length : size - at - 16;
        m = m < MOST_RECORD / 2 ? m : MOST_RECORD / 2;
        memcpy(one, data + at + 12, m);
        at += 16 + m;
        if (i == which && what == 0)
            continue;
        if (i == which && what == 1)
            m = LLVMFuzzerMutate(one, m, MOST_RECORD);
        else if (i == which && what > 2)
            m = alter_cached(d, one, m, MOST_RECORD);
        for (int times = i == which && what == 2 ? 2 : 1; times > 0; times--)
            if (n + 16 + m <= room)
                n += put_record(d, one, m, out + n);
    }
    return roll(d, 16) == 0 && n > 0 ? roll(d, n) : n;
}

/* Stores a file that the cache has written. */
static size_t good_file(uint8_t *out, size_t room)
{
    const char *path = file_to_write();
    FILE       *f;
    size_t      n;

    check_written(path);
    f = fopen(path, "rb");
    MUST(f != NULL);
    n = fread(out, 1, room, f);
    fclose(f);
    (void)remove(path);
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static uint8_t good[MOST_FILE], altered[MOST_FILE];
    static size_t  n_good;
    dice           d = {seed};
    size_t         n;

    if (n_good == 0)
        n_good = good_file(good, sizeof(good));
    if (roll(&d, 16) == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    if (size < 100 || roll(&d, 32) == 0)
        n = alter_file(&d, good, n_good, altered, sizeof(altered));
    else
        n = alter_file(&d, data, size, altered, sizeof(altered));
    if (n == 0 || n > max_size)
        return LLVMFuzzerMutate(data, size, max_size);
    memcpy(data, altered, n);
    return n;
}
