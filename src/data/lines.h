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
/* Passes over what is left of a line, whatever its size, without holding it. Where it has not ended after
 * `most` bytes, or a block more, *has_end is false, and the next call goes on. */
CH_MUST_CHECK ch_status ch__line_pass(ch_reader *r, int64_t most, bool *has_end);

#endif
