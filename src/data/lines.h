/* data/lines.h -- the lines of a file, where they were read to.
 *
 *     while ((rc = ch__line_next(r, max_bytes, &line)) == CH_OK && line.data != NULL)
 *         ...
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_LINES_H
#define DATA_LINES_H

#include "file/reader.h"

/* The next line without its end, which is \n or \r\n, or the file's; in the reader's block. NULL:
 * the file has ended. RESOURCE_EXHAUSTED if it has more than `max_bytes`, with the reader in front
 * of it. */
CH_MUST_CHECK ch_status ch__line_next(ch_reader *r, int64_t max_bytes, ch_str *out);
/* Passes over up to `n` lines, of any size; fewer only at the end. */
CH_MUST_CHECK ch_status ch__line_skip(ch_reader *r, int64_t n, int64_t *skipped);

#endif
