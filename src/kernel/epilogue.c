/* kernel/epilogue.c -- a bias and an activation, applied to a tile of a product.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/epilogue.h"

enum { CHUNK = 256 }; /* elements that are widened at a time */

bool ch__epilogue_make(ch_dtype dtype, bool has_bias, int64_t activation, ch_epilogue *out)
{
#define BLOCK_OF(name) [CH_ACTIVATION_##name] = CH_BLOCK_##name,
    static const ch_block_code code[CH_ACTIVATION_COUNT] = {CH_ACTIVATIONS(BLOCK_OF)};
#undef BLOCK_OF
    const ch_block_table *t = ch__blocks();
    bool                  is_short = dtype == CH_BF16 || dtype == CH_F16;
    ch_dtype              compute = is_short ? CH_F32 : dtype;

    if (activation < 0 || activation >= CH_ACTIVATION_COUNT)
        return false;
    *out = (ch_epilogue){.dtype = dtype, .has_bias = has_bias};
    if (has_bias)
        out->add = t->fn[CH_BLOCK_add][compute];
    if (activation != CH_ACTIVATION_none)
        out->activate = t->fn[code[activation]][compute];
    if (is_short) {
        out->widen = t->widen[dtype];
        out->round = t->round[dtype];
        out->narrow = t->narrow[dtype];
    }
    return (!has_bias || out->add != NULL) &&
           (activation == CH_ACTIVATION_none || out->activate != NULL);
}

static void run_wide(const ch_epilogue *e, int64_t n, uint16_t *c, const uint16_t *bias)
{
    float x[CHUNK], b[CHUNK];

    for (int64_t from = 0; from < n; from += CHUNK) {
        int64_t count = n - from < CHUNK ? n - from : CHUNK;

        e->widen(count, (const void *const[]){c + from}, x, NULL);
        if (e->add != NULL) {
            e->widen(count, (const void *const[]){bias + from}, b, NULL);
            e->add(count, (const void *const[]){x, b}, x, NULL);
        }
        if (e->add != NULL && e->activate != NULL)
            e->round(count, (const void *const[]){x}, x, NULL);
        if (e->activate != NULL)
            e->activate(count, (const void *const[]){x}, x, NULL);
        e->narrow(count, (const void *const[]){x}, c + from, NULL);
    }
}

void ch__epilogue_run(const ch_epilogue *e, int64_t rows, int64_t cols, int64_t step, void *c,
                      const void *bias)
{
    int64_t bytes = (int64_t)ch_dtype_bytes(e->dtype);
    char   *row = c;

    for (int64_t i = 0; i < rows; i++, row += step * bytes) {
        if (e->widen != NULL) {
            run_wide(e, cols, (uint16_t *)(void *)row, bias);
            continue;
        }
        if (e->add != NULL)
            e->add(cols, (const void *const[]){row, bias}, row, NULL);
        if (e->activate != NULL)
            e->activate(cols, (const void *const[]){row}, row, NULL);
    }
}
