/* base/bytes_builder.h -- a growable buffer of bytes.
 *
 * A builder that is all zeros is empty. If memory is exhausted, has_failed is set, and later
 * calls add nothing: the caller must look at has_failed before it uses the bytes.
 * ch__bytes_builder_write (file/sys.h) does.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_BYTES_BUILDER_H
#define BASE_BYTES_BUILDER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ch_bytes_builder {
    char *at;          /* owned; NULL: nothing was allocated yet */
    int   n, capacity; /* bytes used and allocated */
    bool  has_failed;  /* memory was exhausted */
} ch_bytes_builder;

/* Appends n bytes for the caller to fill, and returns their address. Returns NULL if memory is
 * exhausted. The address is valid until the next call that appends. */
char *ch__bytes_builder_reserve(ch_bytes_builder *p, size_t n);
/* Append a copy of n bytes, or of a text without its final zero. */
void ch__bytes_builder_add(ch_bytes_builder *p, const void *data, size_t n);
void ch__bytes_builder_text(ch_bytes_builder *p, const char *text);
/* Frees the buffer. The builder is empty afterwards, and may be used again. */
void ch__bytes_builder_drop(ch_bytes_builder *p);

#endif
