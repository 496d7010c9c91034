/* data/format/lines.h -- reads the lines of a file without copying them.
 *
 *     while ((rc = ch__line_next(r, max_bytes, &line)) == CH_OK && line.data != NULL)
 *         ...
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_LINES_H
#define DATA_FORMAT_LINES_H

#include "file/reader.h"

/* Reads the next line. *out is the line without its end (\n, \r\n or the end of the file). Its
 * bytes are in the reader's block and stay valid until the reader needs another block.
 * out->data is NULL if the file has ended. Returns RESOURCE_EXHAUSTED if the line has more than
 * `max_bytes` bytes; the reader then stays at the beginning of the line. */
CH_MUST_CHECK ch_status ch__line_next(ch_reader *r, int64_t max_bytes, ch_str *out);
/* Skips the rest of a line of any size, in constant memory. Stops after the block in which the
 * count of skipped bytes reaches `most`. *has_end is false if the line has not ended there; the
 * next call then continues to skip it. */
CH_MUST_CHECK ch_status ch__line_skip(ch_reader *r, int64_t most, bool *has_end);

#endif
