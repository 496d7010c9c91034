/* base/bytes_builder.h -- a growable buffer of bytes.
 *
 * A builder that is all zeros is empty. If memory is exhausted, has_failed is set, and later
 * calls add nothing: the caller must look at has_failed before it uses the bytes.
 * ch__bytes_builder_write does. base/pbwire.h appends fields of protobuf messages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_BYTES_BUILDER_H
#define BASE_BYTES_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/status.h"

typedef struct ch_bytes_builder {
    char  *at;          /* owned; NULL: nothing was allocated yet */
    size_t n, capacity; /* bytes used and allocated */
    bool   has_failed;  /* memory was exhausted */
} ch_bytes_builder;

/* Appends n bytes for the caller to fill, and returns their address. Returns NULL if memory is
 * exhausted. The address is valid until the next call that appends. */
char *ch__bytes_builder_reserve(ch_bytes_builder *p, size_t n);
/* Append a copy of n bytes, or of a text without its final zero. */
void ch__bytes_builder_add(ch_bytes_builder *p, const void *data, size_t n);
void ch__bytes_builder_text(ch_bytes_builder *p, const char *text);
/* Append an integer as a varint, or as four or eight bytes, little-endian. */
void ch__bytes_builder_varint(ch_bytes_builder *p, uint64_t x);
void ch__bytes_builder_fixed32(ch_bytes_builder *p, uint32_t x);
void ch__bytes_builder_fixed64(ch_bytes_builder *p, uint64_t x);
/* Appends n as a varint, and then a copy of n bytes. */
void ch__bytes_builder_sized(ch_bytes_builder *p, const void *data, size_t n);
/* Empties the builder and keeps its memory. Clears has_failed. */
void ch__bytes_builder_clear(ch_bytes_builder *p);
/* Frees the buffer. The builder is empty afterwards, and may be used again. */
void ch__bytes_builder_drop(ch_bytes_builder *p);

/* Writes all bytes to the open file `fd`, and then empties the builder. `path` is used in
 * messages only. Returns RESOURCE_EXHAUSTED if has_failed is set. On an error the bytes stay in
 * the builder; some may have been written. */
CH_MUST_CHECK ch_status ch__bytes_builder_write(ch_bytes_builder *p, int fd, const char *path);
/* Appends the bytes of the open file `fd` from its position to its end. */
CH_MUST_CHECK ch_status ch__bytes_builder_read(ch_bytes_builder *p, int fd, const char *path);

#endif
