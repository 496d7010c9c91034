/* data/csv_text.h -- where records and fields of CSV text begin and end.
 *
 *     record:  field (separator field)*, up to \n, \r\n or the end of the file
 *     field:   "anything, with "" for a quote, ends of lines too", or else anything at all; quotes
 *              that do not begin a field are as other characters
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_CSV_TEXT_H
#define DATA_CSV_TEXT_H

#include "file/reader.h"

/* ---- records ---- */

/* A search for a record's end that goes on when more of the text is there. Zero but for the
 * separator to begin. */
typedef struct ch_csv_scan {
    char   separator;
    int    state;
    size_t seen;    /* bytes that were looked at */
    size_t quote;   /* where the last quoted field began */
    size_t n_lines; /* that ended within quotes */
} ch_csv_scan;

/* Looks for the end of the record at `at`, of which n bytes are there, those of the last call
 * among them. True: it was found, and `seen` is where its \n is. */
bool ch__csv_scan(ch_csv_scan *s, const char *at, size_t n);
/* Whether the text, which has ended, did so within quotes. */
bool ch__csv_is_open(const ch_csv_scan *s);

typedef struct ch_csv_record {
    const char *data; /* without its end, in the reader's block; NULL: the file has ended */
    size_t      size;
    int64_t     offset;  /* of its first byte in the file */
    int64_t     n_blank; /* empty lines before it, which are passed over */
    int64_t     n_lines; /* that it has; 1 but for line ends in quotes */
} ch_csv_record;

/* The next record. DATA_LOSS if the file ends within quotes, RESOURCE_EXHAUSTED if it has more than
 * `max_bytes`; both leave the reader in front of it, and say n_blank. A byte order mark at the file's beginning is
 * passed over. */
CH_MUST_CHECK ch_status ch__csv_next(ch_reader *r, char separator, int64_t max_bytes,
                                     ch_csv_record *out);

/* Passes over what is left of a record, of any size, without holding it, as ch__line_pass does. `s` is zero
 * but for the separator at its beginning, and goes on with its state, which is not 0 then. DATA_LOSS if
 * the file ends within quotes. */
CH_MUST_CHECK ch_status ch__csv_pass(ch_reader *r, int64_t most, ch_csv_scan *s, bool *has_end);

/* ---- fields ---- */

typedef struct ch_csv_field {
    const char *data; /* within its quotes, if it has some */
    size_t      size;
    bool        has_quotes; /* doubled ones, in it */
} ch_csv_field;

/* Takes the field at `at`; returns where it ended, which is `end` or a separator. NULL: something
 * is behind a closing quote, or none closes. */
const char *ch__csv_field(char separator, const char *at, const char *end, ch_csv_field *out);
/* Writes what the field means, which is never longer than it is; returns how long it is. */
size_t ch__csv_unquote(const ch_csv_field *f, char *to);

#endif
