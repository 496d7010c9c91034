/* file/array.h -- an array in a file: what .npy and IDX say of it, its rows, and all of it.
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
    bool     is_fortran;        /* the first axis is the one that moves fastest */
    bool     is_swapped;        /* the bytes of a number are in the other order than here */
    int64_t  offset;            /* of the first element in the file */
    int64_t  bytes;             /* of all elements */
    int64_t  n_rows, row_bytes; /* along axis 0; a scalar has none */
} ch_array;

/* Fills in what follows from dtype and shape; INVALID_ARGUMENT if that cannot be. */
CH_MUST_CHECK ch_status ch__array_derive(ch_array *a);

/* UNIMPLEMENTED, with the reason, if it cannot be read by rows: a scalar, is_fortran, or a million
 * rows that take no bytes, which a file of 128 can say it has any number of. */
CH_MUST_CHECK ch_status ch__array_check_rows(const ch_reader *r, const ch_array *a);
/* The next row: a span as those of the reader, its numbers in our order. How large a row may be
 * is for the caller to bound. DATA_LOSS if the file ends in it. */
CH_MUST_CHECK ch_status ch__array_row(ch_reader *r, const ch_array *a, const char **row);
/* Behind the last row: DATA_LOSS if there is more in the file. */
CH_MUST_CHECK ch_status ch__array_end(ch_reader *r, const ch_array *a);

/* All of it, from a reader that stands at the first element. */
CH_MUST_CHECK ch_status ch__array_load(ch_reader *r, const ch_array *a, ch_tensor **out);

/* The elements of a tensor in row-major order; with `is_swapped` each number's bytes turned. */
CH_MUST_CHECK ch_status ch__array_put(ch_writer *w, ch_tensor *t, bool is_swapped);

/* Whole files of one array. `head` reads what stands before the elements, `put` writes all. */
typedef ch_status (*ch_array_head)(ch_reader *r, ch_array *out);
typedef ch_status (*ch_array_put)(ch_writer *w, ch_tensor *t);
CH_MUST_CHECK ch_status ch__array_load_file(const char *path, const ch_load_options *opt,
                                            ch_array_head head, ch_tensor **out);
CH_MUST_CHECK ch_status ch__array_save_file(const char *path, ch_tensor *t,
                                            const ch_save_options *opt, ch_array_put put);

#endif
