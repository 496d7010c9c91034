/* data/format/csv_text.h -- finds the ends of records and fields in CSV text.
 *
 *     record:  field (separator field)*, up to \n, \r\n or the end of the file
 *     field:   "any text, with "" for a quote; it may contain line ends", or any text without
 *              separator and line end; a quote that does not begin a field has no meaning
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_CSV_TEXT_H
#define DATA_FORMAT_CSV_TEXT_H

#include "file/reader.h"

/* ---- records ---- */

/* State of a search for the end of a record, which can continue when more text is available. To
 * begin, all fields except the separator must be 0. */
typedef struct ch_csv_scan {
    char   separator;
    int    state;
    size_t seen;    /* bytes scanned so far */
    size_t quote;   /* offset of the quote that began the last quoted field */
    size_t n_lines; /* line ends within quotes */
} ch_csv_scan;

/* Searches for the end of the record at `at`. n bytes are available, including those of the
 * last call. Returns true if the end was found; s->seen is then the offset of its \n. */
bool ch__csv_scan(ch_csv_scan *s, const char *at, size_t n);
/* Returns true if the scanned text ends within quotes. */
bool ch__csv_is_open(const ch_csv_scan *s);

typedef struct ch_csv_record {
    const char
           *data; /* without the line end, in the reader's block; NULL: the file has ended */
    size_t  size;
    int64_t offset;  /* of its first byte in the file */
    int64_t n_blank; /* empty lines before it, which are skipped */
    int64_t n_lines; /* lines of the record; more than 1 if quotes contain line ends */
} ch_csv_record;

/* Reads the next record. Returns CH_DATA_LOSS if the file ends within quotes, and
 * CH_RESOURCE_EXHAUSTED if the record has more than `max_bytes`. Both errors leave the reader
 * in front of the record and set n_blank. Skips a byte order mark at the beginning of the
 * file. */
CH_MUST_CHECK ch_status ch__csv_next(ch_reader *r, char separator, int64_t max_bytes,
                                     ch_csv_record *out);

/* Skips the rest of a record of any size without holding it in memory, as ch__line_skip does.
 * Stops after `most` bytes or more; *has_end is true if the end was found. At the first call
 * for a record, all fields of `s` except the separator must be 0. After an incomplete call
 * s->state is not 0, and the next call continues with it. Returns CH_DATA_LOSS if the file ends
 * within quotes. */
CH_MUST_CHECK ch_status ch__csv_skip(ch_reader *r, int64_t most, ch_csv_scan *s, bool *has_end);

/* ---- fields ---- */

typedef struct ch_csv_field {
    const char *data; /* without its enclosing quotes */
    size_t      size;
    bool        has_quotes; /* contains doubled quotes */
} ch_csv_field;

/* Parses the field at `at`. Returns its end, which is `end` or the position of a separator.
 * Returns NULL if a quoted field is not closed, or if text follows its closing quote. */
const char *ch__csv_field(char separator, const char *at, const char *end, ch_csv_field *out);
/* Writes the field with doubled quotes replaced by single quotes, and returns the number of
 * bytes written. `to` must have room for f->size bytes. */
size_t ch__csv_unquote(const ch_csv_field *f, char *to);

#endif
