/* ckpt/entry.h -- the messages and keys of an index: header, entries of tensors, slice keys.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_ENTRY_H
#define CKPT_ENTRY_H

#include "base/bytes_builder.h"
#include "base/pbwire.h"
#include "ckpt/ckpt.h"

/* Returns TensorFlow's number of a dtype, or the dtype of a number. CH_DTYPE_COUNT: Cohort has
 * no such dtype. */
int      ch__ckpt_dtype_number(ch_dtype t);
ch_dtype ch__ckpt_dtype_of(int number);
/* Returns the bytes of an element; 0: the elements have no fixed size, or no such dtype. */
int ch__ckpt_dtype_bytes(int number);

/* The entry with the empty key (TBF-9). */
typedef struct ch_ckpt_header {
    int64_t n_files;
    bool    is_big_endian;
} ch_ckpt_header;

void ch__ckpt_emit_header(ch_bytes_builder *b, int n_files);
/* Decodes and checks the header. *problem describes the fault if the result is not CH_OK. */
ch_status ch__ckpt_parse_header(ch_str message, ch_ckpt_header *out, const char **problem);

/* An axis of a slice. */
typedef struct ch_ckpt_extent {
    int64_t begin, size; /* size -1: the whole axis */
} ch_ckpt_extent;

/* The entry of a tensor or slice (TBF-11). */
typedef struct ch_ckpt_message {
    int      dtype; /* TensorFlow's number */
    ch_shape shape;
    int64_t  file, offset, bytes;
    uint32_t crc;
    int      n_slices;
} ch_ckpt_message;

/* Appends the entry of an item; `shape` is that of the item, not of its tensor. */
void ch__ckpt_emit_entry(ch_bytes_builder *b, const ch_ckpt_item *item, ch_shape shape);
/* Append the entry of a tensor in slices: first the tensor, then each slice. */
void ch__ckpt_emit_tensor(ch_bytes_builder *b, const ch_ckpt_item *item);
void ch__ckpt_emit_slice(ch_bytes_builder *b, int rank, const ch_region *region);

/* Decodes an entry. Returns NULL, or a description of the fault. */
const char *ch__ckpt_parse_entry(ch_str message, ch_ckpt_message *out);
/* Calls `visit` with the extents of each slice in the message, which must have `rank` axes.
 * Returns NULL, or a description of the fault; that of `visit` ends the loop. */
typedef const char *(*ch_ckpt_slice_visit)(void *arg, const ch_ckpt_extent *extent);
const char *ch__ckpt_parse_slices(ch_str message, int rank, ch_ckpt_slice_visit visit,
                                  void *arg);

/* Appends the key of a slice (TBF-18). */
void ch__ckpt_emit_slice_key(ch_bytes_builder *b, const char *name, int rank,
                             const ch_region *region);
/* Decodes the key of a slice. `name` has room for CH_CKPT_MAX_NAME + 1 bytes. Returns NULL, or
 * a description of the fault. */
const char *ch__ckpt_parse_slice_key(ch_str key, char *name, int *rank,
                                     ch_ckpt_extent extent[CH_MAX_RANK]);

#endif
