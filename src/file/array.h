/* file/array.h -- arrays in .npy and IDX files: their description, their rows, whole arrays.
 *
 *     rc = ch__npy_head(r, &a);                       // or ch__idx_head
 *     for (int64_t i = 0; rc == CH_OK && i < a.n_rows; i++)
 *         rc = ch__array_row(r, &a, &row);            // a.row_bytes bytes at row
 *     if (rc == CH_OK)
 *         rc = ch__array_end(r, &a);
 *
 * Row i is at a.offset + i * a.row_bytes, for ch__reader_seek.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_ARRAY_H
#define FILE_ARRAY_H

#include "file/reader.h"
#include "file/writer.h"

typedef struct ch_array {
    ch_dtype dtype;
    ch_shape shape;
    bool     is_fortran;        /* column-major: the first axis varies fastest */
    bool     is_swapped;        /* the byte order in the file is not the machine's */
    int64_t  offset;            /* of the first element in the file, in bytes */
    int64_t  bytes;             /* size of all elements */
    int64_t  n_rows, row_bytes; /* along axis 0, and bytes of a row; 0 for a scalar */
} ch_array;

/* Computes the fields that follow from dtype and shape, except `offset`. INVALID_ARGUMENT: the
 * shape is invalid or too large. */
CH_MUST_CHECK ch_status ch__array_derive(ch_array *a);

/* Returns UNIMPLEMENTED with the reason if the array cannot be read by rows: a scalar, a
 * column-major array, or more than a million rows of 0 bytes (a file of 128 bytes can declare
 * any number of such rows). */
CH_MUST_CHECK ch_status ch__array_check_rows(const ch_reader *r, const ch_array *a);
/* Reads the next row, converted to the machine's byte order. *row is borrowed from the reader.
 * The caller must limit a->row_bytes. DATA_LOSS: the file ends before the end of the row. */
CH_MUST_CHECK ch_status ch__array_row(ch_reader *r, const ch_array *a, const char **row);
/* Must be called after the last row. DATA_LOSS: the file has more bytes. */
CH_MUST_CHECK ch_status ch__array_end(ch_reader *r, const ch_array *a);

/* Reads the whole array into a tensor. The reader must be at the first element. The caller owns
 * *out. */
CH_MUST_CHECK ch_status ch__array_load(ch_reader *r, const ch_array *a, ch_tensor **out);

/* Writes the elements of a tensor in row-major order. If `is_swapped` is true, reverses the
 * bytes of each element. */
CH_MUST_CHECK ch_status ch__array_put(ch_writer *w, ch_tensor *t, bool is_swapped);

/* Load and save files with a single array. `head` reads the header, `put` writes header and
 * elements. The caller owns *out. */
typedef ch_status (*ch_array_head)(ch_reader *r, ch_array *out);
typedef ch_status (*ch_array_put)(ch_writer *w, ch_tensor *t);
CH_MUST_CHECK ch_status ch__array_load_file(const char *path, const ch_load_options *opt,
                                            ch_array_head head, ch_tensor **out);
CH_MUST_CHECK ch_status ch__array_save_file(const char *path, ch_tensor *t,
                                            const ch_save_options *opt, ch_array_put put);

#endif
