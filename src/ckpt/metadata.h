/* ckpt/metadata.h -- the metadata of a checkpoint: the message under the key _COHORT.
 *
 * Checkpoints of TensorFlow have no such key. The message (proto/checkpoint.proto) is the only
 * element of a string tensor. It identifies the save, so that a data file of another save is
 * noticed, and it links a delta to its base.
 *
 *     m = (ch_ckpt_metadata){.step = 7, .n_files = n, .file_bytes = bytes};     // bytes: zeros
 *     rc = ch__ckpt_metadata_init(&m);
 *     rc = ch__ckpt_metadata_encode(&m, &text, &item->crc);     // item->bytes = text.n
 *     ... ch__ckpt_layout gives the sizes of the files; encode again with these ...
 *
 * save/ writes the message; ch__ckpt_open reads and checks it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_METADATA_H
#define CKPT_METADATA_H

#include <stdint.h>

#include "base/bytes_builder.h"
#include "cohort/shape.h"

#define CH_CKPT_METADATA_KEY "_COHORT"

/* The format that is written. Reading accepts it and the two formats before it. */
enum { CH_CKPT_FORMAT = 1 };

typedef struct ch_ckpt_metadata {
    int            format;
    uint64_t       id;         /* random; 0: there is no metadata */
    int64_t        time;       /* of the save, in microseconds since 1970 */
    int64_t        step;       /* steps that were trained before the save; -1: not known */
    int            n_files;    /* data files */
    const int64_t *file_bytes; /* size of each data file */
    uint64_t       base_id;    /* id of the base of a delta; 0: the checkpoint is full */
    const char    *base;       /* name of the base in the same directory; NULL: full */
    void          *memory;     /* of decoded metadata: all of its memory; else NULL */
} ch_ckpt_metadata;

/* Sets format, id and time. INTERNAL: the system gives no random numbers. */
CH_MUST_CHECK ch_status ch__ckpt_metadata_init(ch_ckpt_metadata *m);
/* Appends the bytes of the item of dtype CH_STR and shape () that holds the message, and gives
 * the checksum of the item. The number of bytes does not depend on the values in file_bytes. */
CH_MUST_CHECK ch_status ch__ckpt_metadata_encode(const ch_ckpt_metadata *m,
                                                 ch_bytes_builder *out, uint32_t *crc);
/* Decodes and checks an untrusted message. The caller must free out->memory with ch__free.
 * DATA_LOSS: the message is damaged. UNIMPLEMENTED: the format is too new or too old for this
 * library; the message of the error names both formats. */
CH_MUST_CHECK ch_status ch__ckpt_metadata_decode(ch_str message, ch_ckpt_metadata *out);
/* Returns whether a format is CH_CKPT_FORMAT or one of the two before it. */
bool ch__ckpt_format_is_readable(uint64_t format);

#endif
