/* fuzz/idx.c -- reads arbitrary files as IDX files.
 *
 * If a file loads, the saved tensor must have the same bytes. The mutator writes headers whose
 * sizes fit.
 *
 * covers: src/file/idx.c
 * longest: 500
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/idx.h"

#include "file/help.h"

static void load(const char *path)
{
    ch_tensor *t = NULL;

    if (ch_idx_load(path, NULL, &t) == CH_OK)
        ch_tensor_unref(t);
}

static void check_saved(ch_tensor *t, const uint8_t *data, size_t size)
{
    uint8_t back[8192];
    FILE   *f;

    MUST(ch_idx_save(file_to_write(), t, &(ch_save_options){.no_sync = true}) == CH_OK);
    f = fopen(file_to_write(), "rb");
    MUST(f != NULL && fread(back, 1, sizeof(back), f) == size && memcmp(back, data, size) == 0);
    fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = file_of(data, size);
    int64_t     live = ch__mem_live();
    unsigned    h = fuzz_hash(data, size);
    ch_tensor  *t = NULL;

    if (h % 16 == 0)
        with_failures(h / 16, load, path);
    if (ch_idx_load(path, NULL, &t) == CH_OK) {
        bool fits = true; /* a size may exceed INT32_MAX if another size is 0 */

        for (int i = 0; i < t->shape.rank; i++)
            fits = fits && t->shape.dim[i] <= INT32_MAX;
        if (h % 16 == 1 && fits)
            check_saved(t, data, size);
        ch_tensor_unref(t);
    } else if (h % 64 == 2) { /* saving such a tensor must fail */
        MUST(ch_tensor_new(h % 128 == 2 ? CH_I64 : CH_U8, ch_shape_of(0, (int64_t)1 << 40),
                           &t) == CH_OK);
        MUST(ch_idx_save(file_to_write(), t, NULL) != CH_OK);
        ch_tensor_unref(t);
    }
    MUST(ch__mem_live() == live);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static const uint8_t bytes[] = {[8] = 1, [9] = 1, [11] = 2, [12] = 4, [13] = 4, [14] = 8};
    dice                 d = {seed};
    uint64_t             n_data;

    if (roll(&d, 3) == 0 || max_size < 64)
        return LLVMFuzzerMutate(data, size, max_size);
    uint8_t type = (uint8_t)(roll(&d, 16) == 0 ? roll(&d, 15) : 11 + roll(&d, 4));
    size_t  rank = roll(&d, 16) == 0 ? roll(&d, 256) : roll(&d, 5), at = 4;
    memcpy(data, (uint8_t[]){0, 0, type, (uint8_t)rank}, 4);
    n_data = bytes[type];
    for (size_t i = 0; i < rank && at + 4 <= max_size; i++, at += 4) {
        uint32_t x = (uint32_t)(roll(&d, 8) == 0 ? some_size(&d) : roll(&d, 4));

        for (int k = 0; k < 4; k++)
            data[at + (size_t)k] = (uint8_t)(x >> (24 - 8 * k));
        n_data *= x;
    }
    n_data += roll(&d, 8) == 0;
    for (size_t i = 0; i < n_data && i < 500 && at < max_size; i++)
        data[at++] = (uint8_t)roll(&d, 256);
    return at;
}
