/* ckpt/ckpt.h -- checkpoint files: maps names to tensors on disk, and back.
 *
 * The format is TensorBundle V2 (doc/checkpoint-format.md). A checkpoint with the prefix
 * "run/ckpt-7" is the file run/ckpt-7.index, which lists the tensors, and data files
 * run/ckpt-7.data-00000-of-00002 and so on, which hold their bytes.
 *
 *     ch__ckpt_layout(n, item);                              // one data file
 *     rc = ch__ckpt_writer_open("run/ckpt-7", 1, NULL, &w);
 *     rc = ch__ckpt_writer_add_file(w, 0, n, item, fetch, arg, NULL);
 *     rc = ch__ckpt_writer_begin_index(w);
 *     rc = ch__ckpt_writer_add_keys(w, n, item, CH_CKPT_SLICES | CH_CKPT_TENSORS);
 *     rc = ch__ckpt_writer_commit(w);
 *     ch__ckpt_writer_close(w);
 *
 *     rc = ch__ckpt_open("run/ckpt-7", &c);
 *     rc = ch__ckpt_read(c, "w", NULL, to);
 *     ch__ckpt_close(c);
 *
 * A checkpoint may be a delta: it then holds only the changed rows of some tensors, and needs
 * the full checkpoint that it is based on. ch__ckpt_open opens both and joins them.
 *
 * The module has no threads. Different data files may be written by different threads at the
 * same time. Several threads may read from an open checkpoint.
 *
 * Files are untrusted. The memory of a reader is at most 16 MiB plus twice the size of the
 * files. A checkpoint has at most 2^20 tensors and 2^20 slices; a name has at most 4096 bytes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include "base/bytes_builder.h"
#include "ckpt/metadata.h"
#include "tensor/layout.h"

enum { CH_CKPT_MAX_NAME = 4096, CH_CKPT_MAX_ITEMS = 1 << 20, CH_CKPT_MAX_FILES = 99999 };

/* ---- writing ---- */

/* A tensor, or a slice of a tensor, in a data file. */
typedef struct ch_ckpt_item {
    const char *name; /* the key; borrowed */
    ch_dtype    dtype;
    ch_shape    whole;    /* shape of the tensor */
    bool        is_slice; /* the file holds `region` of the tensor only */
    ch_region   region;
    int64_t     bytes;  /* of the item in the file, without padding */
    int         file;   /* number of the data file */
    int64_t     offset; /* in the data file; set by ch__ckpt_layout */
    uint32_t    crc;    /* masked; set by the writer, of strings by the encoder */
} ch_ckpt_item;

/* Returns the bytes of a tensor of numbers; -1 if the shape is invalid. */
int64_t ch__ckpt_bytes(ch_dtype dtype, ch_shape shape);
/* Returns the rows (elements of axis 0) of each slice of a tensor, or of a shard, of this
 * shape. Slices have at most 64 MiB, unless a row has more. Returns all rows if the tensor must
 * stay whole, because TensorFlow cannot join slices of its dtype (f16, u16, u32, u64, strings),
 * or if it has at most 64 MiB. The last slice may have fewer rows. */
int64_t ch__ckpt_slice_rows(ch_dtype dtype, ch_shape shape);
/* Sets the offsets of n items that follow each other in a data file: multiples of 4096 for
 * items of 1 MiB and more, of 64 for others. Returns the size of the file. */
int64_t ch__ckpt_layout(int n, ch_ckpt_item *item);
/* The same for items that follow others, which end at byte `end`. */
int64_t ch__ckpt_layout_after(int64_t end, int n, ch_ckpt_item *item);

/* Encodes n strings as the bytes of an item and computes the item's checksum (TBF-15). On
 * exhausted memory out->has_failed is set. */
void ch__ckpt_encode_strings(int64_t n, const ch_str *s, ch_bytes_builder *out, uint32_t *crc);

/* Gives the bytes [from, from + n) of item i in *bytes. They must stay valid and unchanged
 * until the next call for this file. The writer asks for the bytes of each item in order. */
typedef ch_status (*ch_ckpt_fetch)(void *arg, int i, int64_t from, int64_t n,
                                   const void **bytes);

enum { CH_CKPT_BUFFER_BYTES = (1 << 20) + 4096 };

typedef struct ch_ckpt_write_options {
    bool  no_sync;   /* omits fsync */
    bool  no_direct; /* writes through the page cache */
    bool  replace;   /* removes the checkpoint at the prefix when the new one is complete */
    void *buffer;    /* CH_CKPT_BUFFER_BYTES of the caller; NULL: the writer allocates them */
} ch_ckpt_write_options;

/* Writes a checkpoint. Its files get temporary names, are synced, and get their names in
 * ch__ckpt_writer_commit. After an error the only call that may follow is
 * ch__ckpt_writer_close. */
typedef struct ch_ckpt_writer ch_ckpt_writer;

/* Keys of the index: those of slices come before those of tensors. */
typedef enum ch_ckpt_key_kind { CH_CKPT_SLICES = 1, CH_CKPT_TENSORS = 2 } ch_ckpt_key_kind;

/* Begins a checkpoint with n_files data files. `opt` may be NULL. opt->buffer must live as long
 * as the writer. */
CH_MUST_CHECK ch_status ch__ckpt_writer_open(const char *prefix, int n_files,
                                             const ch_ckpt_write_options *opt,
                                             ch_ckpt_writer             **out);
/* Writes a data file: the items, at their offsets, and zeros between them. Sets their
 * checksums. The offsets must ascend. Uses direct I/O if the file system has it. If the address
 * that `fetch` gives has the same remainder modulo 4096 as the offset in the file, large items
 * are written from there without a copy. Several threads may write different files at the same
 * time. `buffer` has CH_CKPT_BUFFER_BYTES for this call; NULL: the call allocates them. */
CH_MUST_CHECK ch_status ch__ckpt_writer_add_file(ch_ckpt_writer *w, int file, int n,
                                                 ch_ckpt_item *item, ch_ckpt_fetch fetch,
                                                 void *arg, void *buffer);
/* Begins the index. All data files must be there. */
CH_MUST_CHECK ch_status ch__ckpt_writer_begin_index(ch_ckpt_writer *w);
/* Adds the keys of items to the index: `which` is CH_CKPT_SLICES, CH_CKPT_TENSORS or both.
 * INVALID_ARGUMENT: two items have the same name and are not different slices of a tensor. */
CH_MUST_CHECK ch_status ch__ckpt_writer_add_keys(ch_ckpt_writer *w, int n,
                                                 const ch_ckpt_item *item, unsigned which);
/* Completes the index, removes the old checkpoint with `replace`, and gives all files their
 * names: that of the index last, which is the commit. If an error comes before the old index is
 * removed, the old checkpoint is as it was; later, there is none. */
CH_MUST_CHECK ch_status ch__ckpt_writer_commit(ch_ckpt_writer *w);
/* Returns the bytes of all files that were written, of the index after the commit. */
int64_t ch__ckpt_writer_bytes(const ch_ckpt_writer *w);
/* Removes the files that were not committed. w may be NULL. */
void ch__ckpt_writer_close(ch_ckpt_writer *w);

/* Adds items to data file 0, the only one, in place of ch__ckpt_writer_add_file. So the items
 * of a checkpoint need not be in memory together:
 *
 *     for each portion: rc = ch__ckpt_writer_add_data(w, n, item, fetch, arg);
 *     rc = ch__ckpt_writer_begin_index(w);            // the data file is complete
 *     for each portion: rc = ch__ckpt_writer_add_keys(w, n, item, CH_CKPT_SLICES);
 *     for each portion: rc = ch__ckpt_writer_add_keys(w, n, item, CH_CKPT_TENSORS);
 *     rc = ch__ckpt_writer_commit(w);
 *
 * All names of a portion must be above those of the portion before when keys are added; all
 * items of a name are in one portion. The offsets of data must ascend. */
CH_MUST_CHECK ch_status ch__ckpt_writer_add_data(ch_ckpt_writer *w, int n, ch_ckpt_item *item,
                                                 ch_ckpt_fetch fetch, void *arg);

/* ---- deltas ----
 *
 * A delta is a checkpoint that needs another, its base: a full checkpoint in the same
 * directory, which its metadata names by name and id. A delta stores a tensor with the key K in
 * one of two ways:
 *
 *   - itself, under K, as a full checkpoint does;
 *   - as the rows (elements of axis 0) that have changed since the base was saved. Their ids,
 *     i64 of shape (n), are under K CH_DELTA_IDS in ascending order. Their values, of shape
 *     (n, ...), are under K CH_DELTA_VALUES in the same order. n may be 0. All other rows are
 *     in the base.
 *
 * Tensors that are only in the base do not belong to the delta. Ids and values may be stored in
 * slices. TensorFlow finds no key K in a delta, and restores nothing. */

#define CH_DELTA_IDS    "/.ROWS/ids"
#define CH_DELTA_VALUES "/.ROWS/values"

/* ---- reading ---- */

typedef struct ch_ckpt ch_ckpt;

/* A tensor of an open checkpoint. */
typedef struct ch_ckpt_entry {
    const char *name;         /* valid until the checkpoint is closed */
    ch_dtype    dtype;        /* CH_DTYPE_COUNT: Cohort has no such dtype */
    int         dtype_number; /* TensorFlow's (TBF-12) */
    ch_shape    shape;
    int         n_parts;  /* slices; 1 if the tensor is stored whole; 0 if as changed rows */
    bool        is_whole; /* the tensor is not stored as slices */
    int64_t     bytes;    /* of all parts, or of ids and changed rows; without padding */
    int64_t     n_rows;   /* in a delta: number of changed rows; -1: not stored as rows */
} ch_ckpt_entry;

/* Returns the name of TensorFlow's dtype: that of ch_dtype_name, if Cohort has the dtype. */
const char *ch__ckpt_dtype_name(int number);

/* A tensor or slice in a data file. */
typedef struct ch_ckpt_part {
    ch_region region;
    int       file;
    int64_t   offset, bytes;
    uint32_t  crc; /* masked */
} ch_ckpt_part;

/* Opens a checkpoint: reads and checks the whole index, opens the data files that it names, and
 * checks that each tensor lies inside its file. The files stay readable until ch__ckpt_close,
 * even if they are removed. If the checkpoint is a delta, opens its base too. The functions
 * below then give the state of the delta: a tensor whose changed rows are stored has the name,
 * shape and values that it has in a full checkpoint.
 *
 * NOT_FOUND: the index, a data file or the base does not exist. DATA_LOSS: the index is
 * damaged, a data file is from another save, or the base is another checkpoint. OUT_OF_RANGE: a
 * data file is truncated. UNIMPLEMENTED: the checkpoint has a newer format. */
CH_MUST_CHECK ch_status ch__ckpt_open(const char *prefix, ch_ckpt **out);
/* The same for a part of the tensors: those that follow the name `after` in the order of names
 * (NULL: the first ones), as many as need about `bytes` of memory, and at least one. For tools
 * that walk through checkpoints of any size. All data files are opened. */
CH_MUST_CHECK ch_status ch__ckpt_open_some(const char *prefix, const char *after, int64_t bytes,
                                           ch_ckpt **out);
/* Reads the metadata of a checkpoint, of a delta also if its base is missing. out->id is 0 if
 * Cohort did not write the checkpoint. The caller must free out->memory with ch__free. */
CH_MUST_CHECK ch_status ch__ckpt_load_metadata(const char *prefix, ch_ckpt_metadata *out);
void                    ch__ckpt_close(ch_ckpt *c); /* c may be NULL */

int ch__ckpt_count(const ch_ckpt *c); /* tensors that are open */
/* Returns the number of tensors of the checkpoint. */
int64_t ch__ckpt_count_all(const ch_ckpt *c);
/* Returns the last name of the part that ch__ckpt_open_some has opened; NULL: no tensors
 * follow. */
const char *ch__ckpt_last_name(const ch_ckpt *c);
int         ch__ckpt_n_files(const ch_ckpt *c); /* data files that the index states */
/* Returns the metadata (ckpt/metadata.h); NULL: Cohort did not write the checkpoint. */
const ch_ckpt_metadata *ch__ckpt_metadata(const ch_ckpt *c);
/* Returns the base of a delta, owned by c; NULL: the checkpoint is full. */
ch_ckpt    *ch__ckpt_base(const ch_ckpt *c);
const char *ch__ckpt_prefix(const ch_ckpt *c);
int64_t     ch__ckpt_index_bytes(const ch_ckpt *c); /* size of the index file */
/* Returns the size of a data file in bytes; -1 if no tensor is in it. */
int64_t ch__ckpt_file_bytes(const ch_ckpt *c, int file);
/* Gives tensor i. Tensors are in ascending order of their names' bytes. */
void ch__ckpt_entry(const ch_ckpt *c, int i, ch_ckpt_entry *out);
void ch__ckpt_part(const ch_ckpt *c, int i, int part, ch_ckpt_part *out);
/* Returns the bytes of tensor i in the data files: less than those of its shape if slices are
 * missing. The bytes of a tensor that is stored as rows are those in the base. */
int64_t ch__ckpt_stored_bytes(const ch_ckpt *c, int i);
/* Writes the path of a data file of a checkpoint to `path` of `room` bytes. A prefix of n bytes
 * needs n + 64 bytes. */
void ch__ckpt_data_path(const char *prefix, int file, int n_files, char *path, size_t room);
/* Returns the index of the tensor with this name, or -1. */
int ch__ckpt_find(const ch_ckpt *c, const char *name);

/* Reads a region of a tensor of numbers to `to`, contiguous; region NULL: the whole tensor. The
 * region may intersect any of the stored slices. Parts whose checksum was not verified since
 * the checkpoint was opened are verified while they are read; after an error the contents of
 * `to` are undefined. NOT_FOUND: no such name. INVALID_ARGUMENT: the slices do not cover the
 * region, or the region does not fit. DATA_LOSS: a checksum is wrong; the message names the
 * file and the byte. UNIMPLEMENTED: Cohort has no such dtype. */
CH_MUST_CHECK ch_status ch__ckpt_read(ch_ckpt *c, const char *name, const ch_region *region,
                                      void *to);
/* Reads elements [from, from + n) of a region, in row-major order, to `to`; region NULL: of the
 * whole tensor. So a tensor of any shape can be read in pieces of any size. The errors are
 * those of ch__ckpt_read. */
CH_MUST_CHECK ch_status ch__ckpt_read_range(ch_ckpt *c, const char *name,
                                            const ch_region *region, int64_t from, int64_t n,
                                            void *to);
/* Reads all strings of a tensor. *out is a single block of memory, with the bytes behind the
 * array; the caller must free it with ch__free. */
CH_MUST_CHECK ch_status ch__ckpt_read_strings(ch_ckpt *c, const char *name, ch_str **out);
/* Verifies the checksums of tensor i, unless they were verified before; in a delta, also those
 * of the tensor in the base. The message of an error names file and byte. Needs at most 1 MiB
 * of memory. */
CH_MUST_CHECK ch_status ch__ckpt_verify(ch_ckpt *c, int i);
/* Makes the next reads of tensor i verify its checksums again. */
void ch__ckpt_verify_again(ch_ckpt *c, int i);

#endif
