/* ckpt/sstable.h -- sorted string tables: the files that hold the index of a checkpoint.
 *
 * A table is a sequence of keys with values, in ascending order of the keys' bytes. The format
 * is LevelDB's (TBF-3 to TBF-8): data blocks, an empty metaindex block, an index block and a
 * footer. Blocks are written uncompressed; snappy blocks are read too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_SSTABLE_H
#define CKPT_SSTABLE_H

#include "base/bytes_builder.h"
#include "base/pbwire.h"
#include "cohort/shape.h"

/* A block under construction. */
typedef struct ch_sst_block {
    ch_bytes_builder entries, restarts;
    ch_bytes_builder last_key; /* of the last entry */
    int              n_entries;
    int              interval; /* entries between two restarts */
} ch_sst_block;

typedef struct ch_sst_writer {
    ch_bytes_builder out;     /* bytes of the table so far, without those that were taken */
    size_t           n_taken; /* bytes that the caller has taken from `out` */
    ch_sst_block     data, index;
    ch_bytes_builder ended;                     /* last key of the block that ended */
    size_t           ended_offset, ended_bytes; /* the block that ended */
    bool             has_ended; /* a block has no entry in the index block yet */
} ch_sst_writer;

/* A writer begins as zeros. ch__sst_add appends an entry; keys must ascend. ch__sst_end
 * completes the table: w->out holds its bytes, unless w->out.has_failed. The caller may take
 * the bytes in `out` after any call: it adds their number to n_taken and sets out.n to 0.
 * ch__sst_drop frees the memory. */
void ch__sst_add(ch_sst_writer *w, ch_str key, const void *value, size_t n);
void ch__sst_end(ch_sst_writer *w);
void ch__sst_drop(ch_sst_writer *w);

/* Receives an entry of a table. The bytes are valid during the call. */
typedef ch_status (*ch_sst_visit)(void *arg, ch_str key, ch_str value);

/* Reads an untrusted table from the open file `fd` of `bytes` bytes and calls `visit` for each
 * entry in order. Ends with the first error of `visit`. `path` is for messages. DATA_LOSS: the
 * file is no table, or damaged. RESOURCE_EXHAUSTED: a block is larger than 2 MiB. The memory in
 * use is at most 8 MiB. */
CH_MUST_CHECK ch_status ch__sst_read(int fd, int64_t bytes, const char *path,
                                     ch_sst_visit visit, void *arg);

#endif
