/* fuzz/npy.c -- reads arbitrary files as .npy files.
 *
 * If a file loads, loading it by rows must give the same tensor, and so must saving and loading
 * it again.
 *
 * covers: src/file/npy.c src/file/array.c
 * longest: 1000
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/npy.h"

#include "file/help.h"

static void load(const char *path)
{
    ch_tensor *t = NULL;

    if (ch_npy_load(path, NULL, &t) == CH_OK)
        ch_tensor_unref(t);
}

static void load_and_save(const char *path)
{
    ch_tensor *t = NULL;

    if (ch_npy_load(path, NULL, &t) == CH_OK && ch_npy_save(file_to_write(), t, NULL) == CH_OK)
        MUST(ch_tensor_bytes(t) < 1 << 20);
    ch_tensor_unref(t);
}

/* Checks that loading by rows gives the same tensor; `t` is NULL if the file did not load. */
static void check_rows(const char *path, const ch_tensor *t)
{
    ch_reader  *r = NULL;
    ch_array    a;
    const char *row;
    ch_status   rc;
    int64_t     i = 0;

    MUST(ch__reader_open(path, NULL, NULL, &r) == CH_OK);
    rc = ch__npy_head(r, &a);
    MUST(rc == CH_OK || t == NULL);
    if (rc == CH_OK && ch__array_check_rows(r, &a) == CH_OK) {
        for (; rc == CH_OK && i < a.n_rows && i < 1000; i++) {
            rc = ch__array_row(r, &a, &row);
            if (rc == CH_OK && t != NULL && a.row_bytes > 0)
                MUST(memcmp(row, t->data + i * a.row_bytes, (size_t)a.row_bytes) == 0);
        }
        if (rc == CH_OK && i == a.n_rows)
            rc = ch__array_end(r, &a);
        MUST(i < a.n_rows || (rc == CH_OK) == (t != NULL));
    }
    ch__reader_close(r);
}

static void check_saved(ch_tensor *t)
{
    ch_tensor *back = NULL;

    MUST(ch_npy_save(file_to_write(), t, &(ch_save_options){.no_sync = true}) == CH_OK);
    MUST(ch_npy_load(file_to_write(), NULL, &back) == CH_OK);
    MUST(same_tensors(t, back));
    ch_tensor_unref(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = file_of(data, size);
    int64_t     live = ch__mem_live();
    unsigned    h = fuzz_hash(data, size);
    ch_tensor  *t = NULL;

    if (h % 16 == 0)
        with_failures(h / 16, h % 512 == 0 ? load_and_save : load, path);
    if (ch_npy_load(path, NULL, &t) != CH_OK)
        t = NULL;
    check_rows(path, t);
    if (t != NULL && h % 32 == 1)
        check_saved(t);
    ch_tensor_unref(t);
    MUST(ch__mem_live() == live);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    dice   d = {seed};
    size_t n = roll(&d, 3) > 0 ? alter_npy(&d, data, size, max_size) : 0;

    return n > 0 ? n : LLVMFuzzerMutate(data, size, max_size);
}
