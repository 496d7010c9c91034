/* file/idx.c -- reads and writes IDX files.
 *
 *     0, 0, u8 type, u8 rank
 *     size          u32 for each axis, big endian as all numbers here
 *     elements
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/idx.h"

#include "base/bytes.h"
#include "base/fault.h"

enum { FIXED_BYTES = 4, SIZE_BYTES = 4 };

static const struct type_row {
    unsigned char type;
    ch_dtype      dtype;
} types[] = {
    {0x08, CH_U8},  {0x09, CH_I8},  {0x0b, CH_I16},
    {0x0c, CH_I32}, {0x0d, CH_F32}, {0x0e, CH_F64},
};
enum { N_TYPES = sizeof(types) / sizeof(*types) };

static const bool is_little_endian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

/* ---- reading ---- */

static ch_status fail_head(const ch_reader *r, const char *problem)
{
    return ch__fail(CH_DATA_LOSS, "%s: not an IDX file: %s, at byte %lld", ch__reader_path(r),
                    problem, (long long)ch__reader_offset(r));
}

/* Buffers at least n bytes. DATA_LOSS: the file ends before. */
static ch_status need_bytes(ch_reader *r, size_t n)
{
    ch_status rc = ch__reader_want(r, n);

    if (rc == CH_OK && r->left < n)
        rc = fail_head(r, "the file ends in the header");
    return rc;
}

static bool find_dtype(unsigned char type, ch_dtype *out)
{
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].type == type) {
            *out = types[i].dtype;
            return true;
        }
    return false;
}

ch_status ch__idx_head(ch_reader *r, ch_array *out)
{
    ch_array  a = {.is_swapped = is_little_endian};
    ch_status rc = need_bytes(r, FIXED_BYTES);

    if (rc != CH_OK)
        return rc;
    if (r->at[0] != 0 || r->at[1] != 0 || !find_dtype((unsigned char)r->at[2], &a.dtype))
        return fail_head(r, "it does not begin with 0, 0 and a type (8, 9 or 11 to 14)");
    a.shape.rank = (unsigned char)r->at[3];
    if (a.shape.rank > CH_MAX_RANK)
        return ch__fail(CH_UNIMPLEMENTED, "%s: an array of %d axes; a tensor has at most %d",
                        ch__reader_path(r), a.shape.rank, CH_MAX_RANK);
    size_t n = FIXED_BYTES + (size_t)a.shape.rank * SIZE_BYTES;
    rc = need_bytes(r, n);
    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < a.shape.rank; i++)
        a.shape.dim[i] = ch__be32(r->at + FIXED_BYTES + i * SIZE_BYTES);
    ch__reader_borrow(r, n);
    if (ch__array_derive(&a) != CH_OK)
        return ch__fail_at(CH_DATA_LOSS, "%s: invalid header, which ends at byte %lld",
                           ch__reader_path(r), (long long)ch__reader_offset(r));
    a.offset = ch__reader_offset(r);
    *out = a;
    return CH_OK;
}

ch_status ch_idx_load(const char *path, const ch_load_options *opt, ch_tensor **out)
{
    return ch__array_load_file(path, opt, ch__idx_head, out);
}

/* ---- writing ---- */

static ch_status put_head(ch_writer *w, const ch_tensor *t)
{
    unsigned char head[FIXED_BYTES + CH_MAX_RANK * SIZE_BYTES] = {0}, *at = head + FIXED_BYTES;

    for (int i = 0; i < N_TYPES; i++)
        if (types[i].dtype == t->dtype)
            head[2] = types[i].type;
    if (head[2] == 0)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: IDX cannot store %s; its dtypes are u8, i8, i16, i32, f32 and f64",
                        ch__writer_path(w), ch_dtype_name(t->dtype));
    head[3] = (unsigned char)t->shape.rank;
    for (int i = 0; i < t->shape.rank; i++) {
        if (t->shape.dim[i] > INT32_MAX)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: axis %d has %lld elements; IDX stores at most %d",
                            ch__writer_path(w), i, (long long)t->shape.dim[i], INT32_MAX);
        at = ch__put_be32(at, (uint32_t)t->shape.dim[i]);
    }
    return ch__writer_put(w, head, (size_t)(at - head));
}

static ch_status put_all(ch_writer *w, ch_tensor *t)
{
    ch_status rc = put_head(w, t);

    return rc == CH_OK ? ch__array_put(w, t, is_little_endian) : rc;
}

ch_status ch_idx_save(const char *path, ch_tensor *t, const ch_save_options *opt)
{
    return ch__array_save_file(path, t, opt, put_all);
}
