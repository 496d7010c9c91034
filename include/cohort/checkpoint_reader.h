/* cohort/checkpoint_reader.h -- reads checkpoint files: for tools, and for evaluators beside a
 * training.
 *
 * A program that trains needs cohort/checkpoint.h instead, which restores models. This header
 * reads names, shapes and values of any checkpoint, of Cohort or of TensorFlow, without the
 * objects that were saved. The command `cohort ckpt` is written with it.
 *
 *     ch_checkpoint_reader *r = NULL;
 *     ch_checkpoint_item    item;
 *     rc = ch_checkpoint_open("run", &r);                   // the newest checkpoint of run/
 *     for (int i = 0; rc == CH_OK && i < ch_checkpoint_count(r); i++) {
 *         rc = ch_checkpoint_entry(r, i, &item);
 *         ... item.name, item.dtype, item.shape ...
 *     }
 *     rc = ch_checkpoint_read(r, "w", 0, NULL, NULL, &t);   // the whole tensor
 *     ch_checkpoint_close(r);
 *
 *   - A checkpoint "run/ckpt-7" is the index "run/ckpt-7.index" and its data files
 *     (doc/checkpoint-format.md). A reader keeps them open: it can read on if they are removed.
 *   - Files are untrusted. Errors name the file, and the byte if there is one.
 *   - A delta is shown as the full state: a reader opens its base too.
 *   - Ownership: a reader has one owner, which closes it. The caller unrefs tensors.
 *   - Threads: several threads may use a reader at the same time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_CHECKPOINT_READER_H
#define COHORT_CHECKPOINT_READER_H

#include "cohort/tensor.h"

typedef struct ch_checkpoint_reader ch_checkpoint_reader;

/* Opens a checkpoint. `path` is a prefix ("run/ckpt-7"), an index ("run/ckpt-7.index") or a
 * directory, for the newest checkpoint in it (ch_checkpoint_find_latest). A directory of a
 * SavedModel gives its variables.
 *
 * NOT_FOUND: there is no such checkpoint, or the base of a delta is missing. DATA_LOSS: a file
 * is damaged or from another save. OUT_OF_RANGE: a data file is truncated. UNIMPLEMENTED: a
 * newer version of Cohort wrote the checkpoint. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_open(const char *path, ch_checkpoint_reader **out);
/* Opens a part of a checkpoint, for programs that walk through checkpoints of any size with
 * little memory: the tensors that follow the name `after` in the order of names (NULL: the
 * first), as many as need about 8 MiB. The functions below then know these tensors only.
 * ch_checkpoint_info.next is the name to continue with. The errors are those of
 * ch_checkpoint_open. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_open_part(const char *path, const char *after,
                                                       ch_checkpoint_reader **out);
CH_API void                    ch_checkpoint_close(ch_checkpoint_reader *r); /* NULL is fine */

/* ---- the checkpoint ---- */

/* Properties of a checkpoint. Texts are valid until the reader is closed. */
typedef struct ch_checkpoint_info {
    const char *prefix;  /* such as "run/ckpt-7" */
    int         format;  /* of Cohort's metadata; 0: not written by Cohort */
    uint64_t    id;      /* random, a different number in each save; 0: not written by Cohort */
    double      time;    /* of the save, in seconds since 1970; 0: not known */
    int64_t     step;    /* steps that were trained before the save; -1: not known */
    const char *base;    /* prefix of the base of a delta; NULL: the checkpoint is full */
    uint64_t    base_id; /* id of the base; 0: the checkpoint is full */
    int         n_files; /* data files */
    int64_t     n_tensors; /* also those that ch_checkpoint_open_part has not opened */
    /* Of a reader that ch_checkpoint_open_part has opened: the name of its last tensor, if
     * others follow; NULL: none follow. */
    const char *next;
    int64_t     bytes; /* of the index and all data files, without those of the base */
} ch_checkpoint_info;

/* Describes the checkpoint. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_describe(const ch_checkpoint_reader *r,
                                                      ch_checkpoint_info         *out);

/* ---- tensors ---- */

/* A tensor of a checkpoint. Texts are valid until the reader is closed. */
typedef struct ch_checkpoint_item {
    const char *name;
    ch_dtype    dtype;      /* CH_DTYPE_COUNT: Cohort does not have the dtype */
    const char *dtype_name; /* also of a dtype that Cohort does not have, such as "complex64" */
    ch_shape    shape;
    int64_t     bytes;    /* in the data files of this checkpoint, without padding */
    int         n_parts;  /* slices; 1: stored whole; 0: stored as changed rows */
    bool        is_whole; /* the tensor is not stored as slices or rows */
    int64_t     n_rows; /* in a delta: rows that have changed since its base; -1: all stored */
} ch_checkpoint_item;

/* A tensor that is stored whole, or a slice: size[k] elements from begin[k] of each axis k. */
typedef struct ch_checkpoint_part {
    int64_t     begin[CH_MAX_RANK], size[CH_MAX_RANK];
    const char *file;   /* path of the data file; valid until the reader is closed */
    int64_t     offset; /* first byte in the file */
    int64_t     bytes;
    uint32_t    crc; /* masked CRC-32C; doc/checkpoint-format.md describes that of strings */
} ch_checkpoint_part;

/* Returns the number of tensors that are open. */
CH_API int ch_checkpoint_count(const ch_checkpoint_reader *r);
/* Describes tensor i. Tensors are in the order of their names' bytes. INVALID_ARGUMENT: there
 * is no tensor i. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_entry(const ch_checkpoint_reader *r, int i,
                                                   ch_checkpoint_item *out);
/* Describes a part of tensor i. INVALID_ARGUMENT: there is no such tensor or part. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_slice(const ch_checkpoint_reader *r, int i,
                                                   int part, ch_checkpoint_part *out);
/* Returns the index of the tensor with this name, or -1. */
CH_API int ch_checkpoint_find(const ch_checkpoint_reader *r, const char *name);

/* Reads elements [from[k], to[k]) of each axis k < n into a new tensor; the other axes are read
 * whole. n may be 0: the whole tensor. The checksums of all slices that are read are verified,
 * unless they were verified before.
 *
 * NOT_FOUND: no such name. INVALID_ARGUMENT: the tensor has no such elements, or its slices do
 * not cover them. DATA_LOSS: a checksum is wrong. UNIMPLEMENTED: Cohort does not have the
 * dtype. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_read(ch_checkpoint_reader *r, const char *name,
                                                  int n, const int64_t *from, const int64_t *to,
                                                  ch_tensor **out);
/* Reads elements [from, to) in row-major order into a new tensor with one axis, so that a large
 * tensor of any shape can be read in pieces. Strings are UNIMPLEMENTED. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_read_range(ch_checkpoint_reader *r,
                                                        const char *name, int64_t from,
                                                        int64_t to, ch_tensor **out);
/* Verifies the checksums of tensor i; in a delta, also those of the tensor in the base. The
 * message of an error names the file and the byte. Needs at most 1 MiB of memory. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_verify(ch_checkpoint_reader *r, int i);

/* Writes the state of a delta as a full checkpoint at `prefix`, after verifying all checksums.
 * Copies in pieces of 4 MiB. If the reader is of a part (ch_checkpoint_open_part), all tensors
 * are written, with little memory for any number of them. On an error no file is left.
 * INVALID_ARGUMENT: the checkpoint is full. ALREADY_EXISTS: there is a checkpoint at
 * `prefix`. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_fold(ch_checkpoint_reader *r, const char *prefix);

/* ---- directories ---- */

/* The files of a checkpoint in a directory. */
typedef struct ch_checkpoint_found {
    const char *prefix;    /* with the directory; valid during the call */
    bool        has_index; /* false: only data files, of a save that did not end */
    int64_t     bytes;     /* of all files */
} ch_checkpoint_found;

/* Calls `visit` for each checkpoint of a directory, in the order of their names; names that
 * differ only in the number at their end are in the order of these numbers. Ends with the first
 * status that is not CH_OK, and returns it. NOT_FOUND: there is no such directory. */
typedef ch_status (*ch_checkpoint_visit)(void *arg, const ch_checkpoint_found *found);
CH_API CH_MUST_CHECK ch_status ch_checkpoint_list(const char         *directory,
                                                  ch_checkpoint_visit visit, void *arg);
/* Writes the prefix of the newest checkpoint of a directory: that which the state file
 * ("checkpoint") names. A path that does not fit `size` bytes is INVALID_ARGUMENT. NOT_FOUND:
 * there is no state file, or its checkpoint does not exist. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_find_latest(const char *directory, char *path,
                                                         size_t size);
/* Blocks until the path of the newest checkpoint of a directory differs from `after`, a path
 * from an earlier call (NULL: until there is any), and writes its prefix. The directory need
 * not exist yet. It is polled ten times a second. A checkpoint may be removed before the caller
 * opens it. DEADLINE_EXCEEDED: `seconds` are over; INFINITY: no limit. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_wait_next(const char *directory, const char *after,
                                                       double seconds, char *path, size_t size);

#endif
