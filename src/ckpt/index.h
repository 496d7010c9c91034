/* ckpt/index.h -- an open checkpoint in memory, for the files of ckpt/.
 *
 * A checkpoint may be open in part (ch__ckpt_open_some): then the arrays hold the tensors of a
 * range of names. The arrays have exactly the needed size and never move after ch__ckpt_open.
 * An open delta holds its base, an open checkpoint too, and reads tensors that are stored as
 * rows through it (ckpt/delta.h).
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
    int         rows; /* in a delta: index in ch_ckpt.rows; -1: the tensor is stored itself */
} ckpt_tensor;

/* A tensor of which a delta stores the rows that have changed since its base was saved. */
typedef struct ckpt_rows {
    const ckpt_tensor *ids;        /* of the rows: i64, ascending */
    const ckpt_tensor *values;     /* of the rows, in the same order */
    int                base;       /* index of the tensor in the base */
    atomic_uchar       is_checked; /* the ids ascend, and the tensor has such rows */
} ckpt_rows;

/* A range of names: after < name <= last. NULL: no bound. Ids and values of rows are in the
 * range if the tensor is to which they belong. */
typedef struct ckpt_range {
    char *after, *last; /* owned */
} ckpt_range;

struct ch_ckpt {
    char          *prefix;
    int64_t        index_bytes; /* of the index file */
    ch_ckpt_header header;
    ckpt_range     range;    /* of the tensors that are open */
    bool           has_more; /* tensors follow the range */
    int64_t        room;  /* bytes of memory that the part may use; 0: all tensors are open */
    int64_t        n_all; /* names of tensors in the index; -1: all are open */
    int64_t        n_values; /* those that end with CH_DELTA_VALUES */
    uint8_t       *is_named; /* data files that the index names; NULL: not known */
    int            n_tensors, n_slices;
    ckpt_tensor   *tensor; /* in ascending order of names; in a delta, ids and values follow */
    /* spans of all slices, in the order of their keys, then those of whole tensors */
    ckpt_span       *span;
    ckpt_slice      *slice;
    atomic_uchar    *is_verified; /* for each span: its checksum was verified */
    char            *names;       /* memory of all names */
    int64_t         *dims;        /* memory of all shapes */
    ch_ckpt_extent  *extents;     /* memory of all extents */
    int             *fd;          /* of each data file; -1: no tensor is in it */
    int64_t         *file_bytes;
    ch_ckpt_metadata metadata;  /* id 0: the checkpoint is not from Cohort */
    ch_ckpt         *base;      /* of a delta; NULL: the checkpoint is full */
    ckpt_rows       *rows;      /* of a delta */
    char            *row_names; /* memory of the names of the tensors in `rows` */
};

/* Reads the index file at `path` into the arrays of c, whose prefix and range are set. If
 * `room` is not 0, first finds the end of the range: as many names as need so many bytes. After
 * an error ch__ckpt_close must be called too. */
CH_MUST_CHECK ch_status ch__ckpt_load_index(ch_ckpt *c, const char *path, int64_t room);
/* Returns true if a tensor with this name of n bytes, or the tensor whose ids or values it
 * names, is in the range of c. */
bool ch__ckpt_is_in_range(const ch_ckpt *c, const char *name, size_t n);
/* Gives a part of a tensor that is stored itself. */
void ch__ckpt_get_part(const ch_ckpt *c, const ckpt_tensor *t, int part, ch_ckpt_part *out);
/* Read and verify a tensor that is stored itself, as ch__ckpt_read and ch__ckpt_verify do. */
CH_MUST_CHECK ch_status ch__ckpt_read_stored(ch_ckpt *c, const ckpt_tensor *t,
                                             const ch_region *region, void *to);
CH_MUST_CHECK ch_status ch__ckpt_verify_stored(ch_ckpt *c, const ckpt_tensor *t);
/* Reads bytes [from, from + n) of a part of tensor i as they are in the data file. Verifies no
 * checksum. */
CH_MUST_CHECK ch_status ch__ckpt_read_raw(ch_ckpt *c, int i, int part, int64_t from, int64_t n,
                                          void *to);

/* Returns the bytes that the path of a data file or an index needs. */
size_t ch__ckpt_path_room(const char *prefix);
/* Opens a regular file for reading and gives its size. */
CH_MUST_CHECK ch_status ch__ckpt_open_file(const char *path, int *fd, int64_t *bytes);

#endif
