/* file/array.c -- reads arrays by rows or whole, and writes them.
 *
 * npy.c, idx.c and npz.c parse headers into a ch_array; the functions here read and write the
 * elements. data/arrays.c reads by rows.
 *
 *   1. Elements are converted in the reader's block, before any other code sees them.
 *   2. Blocks grow as bytes arrive, so a declared shape without elements takes no memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/array.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/print.h"
#include "tensor/tensor.h"

enum { MAX_EMPTY_ROWS = 1 << 20 };

ch_status ch__array_derive(ch_array *a)
{
    int64_t   count;
    int       n_long = 0;
    ch_status rc = ch__tensor_size(a->dtype, a->shape, &count, &a->bytes);

    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < a->shape.rank; i++)
        n_long += a->shape.dim[i] > 1;
    if (n_long < 2)
        a->is_fortran = false; /* both orders are equal then */
    if (ch_dtype_bytes(a->dtype) == 1)
        a->is_swapped = false;
    a->n_rows = a->shape.rank > 0 ? a->shape.dim[0] : 0;
    a->row_bytes = a->n_rows > 0 ? a->bytes / a->n_rows : 0;
    return CH_OK;
}

/* ---- bytes to numbers ---- */

/* Reverses the bytes of each element of `size` bytes; n bytes in total. `from` may equal
 * `to`. */
static void swap_bytes(size_t size, size_t n, const char *from, char *to)
{
    if (size == 2)
        for (size_t i = 0; i < n; i += 2) {
            uint16_t x;

            memcpy(&x, from + i, 2);
            x = __builtin_bswap16(x);
            memcpy(to + i, &x, 2);
        }
    else if (size == 4)
        for (size_t i = 0; i < n; i += 4) {
            uint32_t x;

            memcpy(&x, from + i, 4);
            x = __builtin_bswap32(x);
            memcpy(to + i, &x, 4);
        }
    else
        for (size_t i = 0; i < n; i += 8) {
            uint64_t x;

            memcpy(&x, from + i, 8);
            x = __builtin_bswap64(x);
            memcpy(to + i, &x, 8);
        }
}

/* Converts bytes of the file to elements: the machine's byte order, and bools that are 0 or 1.
 * Works in place, because no other code has seen the bytes yet. */
static void convert_bytes(const ch_array *a, char *at, size_t n)
{
    if (a->is_swapped)
        swap_bytes(ch_dtype_bytes(a->dtype), n, at, at);
    if (a->dtype == CH_BOOL)
        for (size_t i = 0; i < n; i++)
            at[i] = at[i] != 0;
}

/* Borrows the next n bytes from the reader and converts them. *at points into the reader's
 * block. */
static ch_status borrow_bytes(ch_reader *r, const ch_array *a, size_t n, char **at)
{
    ch_status rc = ch__reader_want(r, n);

    if (rc != CH_OK)
        return rc;
    if (r->left < n)
        return ch__fail(
            CH_DATA_LOSS,
            "%s: ends at byte %lld, but its array needs %lld bytes from byte %lld on",
            ch__reader_path(r), (long long)ch__reader_offset(r) + (int64_t)r->left,
            (long long)a->bytes, (long long)a->offset);
    *at = (char *)r->block->data + (r->at - (const char *)r->block->data);
    convert_bytes(a, *at, n);
    ch__reader_borrow(r, n);
    return CH_OK;
}

ch_status ch__array_check_rows(const ch_reader *r, const ch_array *a)
{
    if (a->shape.rank == 0)
        return ch__fail(CH_UNIMPLEMENTED, "%s: holds a scalar, which has no rows",
                        ch__reader_path(r));
    if (a->is_fortran)
        return ch__fail(
            CH_UNIMPLEMENTED,
            "%s: its array is stored column by column (fortran_order), and so cannot "
            "be read by rows; save it from numpy.ascontiguousarray(x)",
            ch__reader_path(r));
    if (a->row_bytes == 0 && a->n_rows > MAX_EMPTY_ROWS)
        return ch__fail(
            CH_UNIMPLEMENTED,
            "%s: its array is of shape %s, with empty rows, of which at most %d are supported",
            ch__reader_path(r), ch__label(a->dtype, a->shape).text, MAX_EMPTY_ROWS);
    return CH_OK;
}

ch_status ch__array_row(ch_reader *r, const ch_array *a, const char **row)
{
    char     *at = NULL;
    ch_status rc = borrow_bytes(r, a, (size_t)a->row_bytes, &at);

    *row = at;
    return rc;
}

ch_status ch__array_end(ch_reader *r, const ch_array *a)
{
    ch_status rc = ch__reader_want(r, 1);

    if (rc == CH_OK && r->left > 0)
        rc = ch__fail(CH_DATA_LOSS,
                      "%s: has more bytes after its array, which ends at byte %lld",
                      ch__reader_path(r), (long long)(a->offset + a->bytes));
    return rc;
}

/* ---- whole arrays ---- */

/* Computes the strides of a column-major array. */
static void fortran_strides(ch_shape shape, int64_t *stride)
{
    int64_t step = 1;

    for (int i = 0; i < shape.rank; i++) {
        stride[i] = step;
        step *= shape.dim[i];
    }
}

/* Creates a row-major tensor from the a->bytes bytes at `at` in `block`. The tensor shares the
 * block's memory if the array is row-major; otherwise it is a copy. Moves the bytes to the
 * beginning of the block if they are not aligned for the dtype. */
static ch_status tensor_at(ch_buffer *block, const ch_array *a, char *at, ch_tensor **out)
{
    int64_t    stride[CH_MAX_RANK];
    ch_tensor *t = NULL;

    if ((uintptr_t)at % ch_dtype_bytes(a->dtype) != 0) {
        memmove(block->data, at, (size_t)a->bytes);
        at = block->data;
    }
    if (a->is_fortran)
        fortran_strides(a->shape, stride);
    else
        ch__strides(a->shape, stride);
    ch_status rc = ch__tensor_view(block, a->dtype, a->shape, stride, at, &t);
    if (rc != CH_OK)
        return rc;
    rc = ch_tensor_contiguous(t, out);
    ch_tensor_unref(t);
    return rc;
}

ch_status ch__array_load(ch_reader *r, const ch_array *a, ch_tensor **out)
{
    char      *at = NULL;
    ch_buffer *block = NULL;
    ch_status  rc = borrow_bytes(r, a, (size_t)a->bytes, &at);

    if (rc != CH_OK)
        return rc;
    /* keeps `at` valid: ch__array_end may read on into another block */
    block = ch__buffer_ref(r->block);
    rc = ch__array_end(r, a);
    if (rc == CH_OK && a->bytes == 0)
        rc = ch_tensor_new(a->dtype, a->shape, out);
    else if (rc == CH_OK)
        rc = tensor_at(block, a, at, out);
    ch__buffer_unref(block);
    return rc;
}

/* ---- writing ---- */

static ch_status put_swapped(ch_writer *w, const ch_tensor *t)
{
    char        piece[4096];
    size_t      size = ch_dtype_bytes(t->dtype), left = ch_tensor_bytes(t);
    const char *at = t->data;
    ch_status   rc = CH_OK;

    while (left > 0 && rc == CH_OK) {
        size_t n = left < sizeof(piece) ? left : sizeof(piece);

        swap_bytes(size, n, at, piece);
        rc = ch__writer_put(w, piece, n);
        at += n;
        left -= n;
    }
    return rc;
}

ch_status ch__array_put(ch_writer *w, ch_tensor *t, bool is_swapped)
{
    ch_tensor *contiguous = NULL;
    ch_status  rc = ch_tensor_contiguous(t, &contiguous);

    if (rc != CH_OK)
        return rc;
    rc = is_swapped && ch_dtype_bytes(t->dtype) > 1
             ? put_swapped(w, contiguous)
             : ch__writer_put(w, contiguous->data, ch_tensor_bytes(contiguous));
    ch_tensor_unref(contiguous);
    return rc;
}

/* ---- whole files ---- */

ch_status ch__array_load_file(const char *path, const ch_load_options *opt, ch_array_head head,
                              ch_tensor **out)
{
    ch_reader *r = NULL;
    ch_array   a;
    ch_status  rc = ch__reader_open(path, opt, NULL, &r);

    if (rc != CH_OK)
        return rc;
    rc = head(r, &a);
    if (rc == CH_OK)
        rc = ch__array_load(r, &a, out);
    ch__reader_close(r);
    return rc;
}

ch_status ch__array_save_file(const char *path, ch_tensor *t, const ch_save_options *opt,
                              ch_array_put put)
{
    ch_writer *w = NULL;
    ch_status  rc = ch__check_not_null("save", "the path", path, "the tensor", t);

    if (rc == CH_OK)
        rc = ch__writer_open(path, opt, &w);
    if (rc != CH_OK)
        return rc;
    rc = put(w, t);
    if (rc == CH_OK)
        return ch__writer_commit(w);
    ch__writer_drop(w);
    return rc;
}
