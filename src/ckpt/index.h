/* ckpt/index.h -- an open checkpoint in memory, for the files of ckpt/.
 *
 * The arrays have exactly the needed size and never move after ch__ckpt_open.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_INDEX_H
#define CKPT_INDEX_H

#include <stdatomic.h>

#include "ckpt/ckpt.h"
#include "ckpt/entry.h"

/* Bytes in a data file: a whole tensor or a slice. */
typedef struct ckpt_span {
    int64_t  offset, bytes;
    uint32_t crc; /* masked */
    int      file;
} ckpt_span;

/* A slice. Its span has the same index. */
typedef struct ckpt_slice {
    const char     *name;   /* of its tensor */
    ch_ckpt_extent *extent; /* of `rank` axes */
    int             rank, dtype;
    bool            is_listed; /* its tensor lists it */
} ckpt_slice;

typedef struct ckpt_tensor {
    const char *name;
    int64_t    *dim;     /* of `rank` axes */
    int         first;   /* its first span */
    int         n_parts; /* its spans follow each other */
    uint8_t     rank, dtype;
    bool        is_whole;
} ckpt_tensor;

struct ch_ckpt {
    char          *prefix;
    ch_ckpt_header header;
    int            n_tensors, n_slices;
    ckpt_tensor   *tensor; /* in ascending order of names */
    /* spans of all slices, in the order of their keys, then those of whole tensors */
    ckpt_span      *span;
    ckpt_slice     *slice;
    atomic_uchar   *is_verified; /* for each span: its checksum was verified */
    char           *names;       /* memory of all names */
    int64_t        *dims;        /* memory of all shapes */
    ch_ckpt_extent *extents;     /* memory of all extents */
    int            *fd;          /* of each data file; -1: no tensor is in it */
    int64_t        *file_bytes;
};

/* Writes the path of a data file to `path` of `room` bytes. */
void ch__ckpt_data_path(const char *prefix, int file, int n_files, char *path, size_t room);
/* Returns the bytes that such a path needs. */
size_t ch__ckpt_path_room(const char *prefix);
/* Opens a regular file for reading and gives its size. */
CH_MUST_CHECK ch_status ch__ckpt_open_file(const char *path, int *fd, int64_t *bytes);

#endif
