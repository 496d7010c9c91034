/* fit/bytes_builder.h -- bytes that pile up until they are written to a file.
 *
 * That there was no memory sticks, and shows when they are written. Zero-initialise one to
 * begin.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_BYTES_BUILDER_H
#define FIT_BYTES_BUILDER_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/status.h"

typedef struct ch_bytes_builder {
    char *at;
    int   n, capacity;
    bool  has_failed;
} ch_bytes_builder;

/* Room for n bytes more, which now belong to it; NULL: no memory. */
char *ch__bytes_builder_reserve(ch_bytes_builder *p, size_t n);
void  ch__bytes_builder_add(ch_bytes_builder *p, const void *data, size_t n);
void  ch__bytes_builder_text(ch_bytes_builder *p, const char *text);
void  ch__bytes_builder_drop(ch_bytes_builder *p);

/* Writes all of it to an open file, of which `path` is the name, and empties it. */
CH_MUST_CHECK ch_status ch__bytes_builder_write(ch_bytes_builder *p, int fd, const char *path);
/* Adds all of a file. */
CH_MUST_CHECK ch_status ch__bytes_builder_read(ch_bytes_builder *p, int fd, const char *path);

#endif
