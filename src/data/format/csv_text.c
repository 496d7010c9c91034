/* data/format/csv_text.c -- finds the ends of records and fields in CSV text.
 *
 * A ch_csv_scan is a small state machine over the bytes of a record. As long as a record has no
 * quote, memchr finds its end; from the first quote on, every byte is examined. ch__csv_next
 * reads the next record through a ch_reader, and ch__csv_field splits a record. The stage `csv`
 * (data/text.c) and data/format/csv.c call them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/csv_text.h"

#include <string.h>

#include "base/fault.h"

/* ---- records ---- */

enum state {
    NO_QUOTE_YET, /* no quote so far in the record; the next \n ends it */
    FIELD_START,
    IN_FIELD,
    IN_QUOTES,
    BEHIND_QUOTE /* behind a quote that closes the field, unless another quote follows */
};

/* Scans byte by byte, for records with quotes. Returns true if the end of the record was
 * found. */
static bool scan_bytes(ch_csv_scan *s, const char *at, size_t n)
{
    for (; s->seen < n; s->seen++) {
        char c = at[s->seen];

        if (s->state == IN_QUOTES) {
            s->state = c == '"' ? BEHIND_QUOTE : IN_QUOTES;
            s->n_lines += c == '\n';
        } else if (c == '\n') {
            return true;
        } else if (c == '"' && s->state == BEHIND_QUOTE) {
            s->state = IN_QUOTES;
        } else if (c == '"' && s->state == FIELD_START) {
            s->state = IN_QUOTES;
            s->quote = s->seen;
        } else {
            s->state = c == s->separator ? FIELD_START : IN_FIELD;
        }
    }
    return false;
}

bool ch__csv_scan(ch_csv_scan *s, const char *at, size_t n)
{
    if (s->state == NO_QUOTE_YET && n > s->seen) {
        const char *newline = memchr(at + s->seen, '\n', n - s->seen);
        size_t      end = newline != NULL ? (size_t)(newline - at) : n;

        if (memchr(at + s->seen, '"', end - s->seen) == NULL) {
            s->seen = end;
            return newline != NULL;
        }
        s->seen = 0;
        s->state = FIELD_START;
    }
    return scan_bytes(s, at, n);
}

bool ch__csv_is_open(const ch_csv_scan *s)
{
    return s->state == IN_QUOTES;
}

static ch_status fail_long(const ch_reader *r, int64_t max_bytes)
{
    return ch__fail_limit("%s: the record at byte %lld is larger than max_record_bytes (%lld)",
                          ch__reader_path(r), (long long)ch__reader_offset(r),
                          (long long)max_bytes);
}

static ch_status fail_open(const ch_reader *r, const ch_csv_scan *s)
{
    return ch__fail(CH_DATA_LOSS,
                    "%s: the quoted field that begins at byte %lld is never closed",
                    ch__reader_path(r), (long long)(ch__reader_offset(r) + (int64_t)s->quote));
}

/* Fills the reader until it holds the next record completely. */
static ch_status read_record(ch_reader *r, int64_t max_bytes, ch_csv_scan *s, bool *has_end)
{
    *has_end = false;
    while (!(*has_end = ch__csv_scan(s, r->at, r->left))) {
        size_t    before = r->left;
        ch_status rc;

        if (before > (size_t)max_bytes + 1) /* plus 1, because the record may end in \r\n */
            return fail_long(r, max_bytes);
        rc = ch__reader_fill(r, before + 1);
        if (rc != CH_OK)
            return rc;
        if (r->left == before)
            return ch__csv_is_open(s) ? fail_open(r, s) : CH_OK;
    }
    return CH_OK;
}

/* Skips a byte order mark at the beginning of the file. */
static ch_status skip_mark(ch_reader *r)
{
    if (ch__reader_offset(r) != 0)
        return CH_OK;
    ch_status rc = ch__reader_want(r, 3);
    if (rc == CH_OK && r->left >= 3 && memcmp(r->at, "\xef\xbb\xbf", 3) == 0)
        ch__reader_borrow(r, 3);
    return rc;
}

ch_status ch__csv_next(ch_reader *r, char separator, int64_t max_bytes, ch_csv_record *out)
{
    ch_status rc = skip_mark(r);
    int64_t   n_blank = 0;

    while (rc == CH_OK) {
        ch_csv_scan s = {.separator = separator};
        bool        has_end;

        out->n_blank = n_blank;
        rc = read_record(r, max_bytes, &s, &has_end);
        if (rc != CH_OK)
            return rc;
        size_t size = s.seen - (has_end && s.seen > 0 && r->at[s.seen - 1] == '\r');
        if (size > (size_t)max_bytes)
            return fail_long(r, max_bytes);
        bool is_there = size > 0 || !has_end;
        if (is_there)
            *out = (ch_csv_record){size > 0 ? r->at : NULL, size, ch__reader_offset(r), n_blank,
                                   (int64_t)s.n_lines + 1};
        ch__reader_borrow(r, s.seen + has_end);
        if (is_there)
            return CH_OK;
        n_blank++;
    }
    return rc;
}

ch_status ch__csv_skip(ch_reader *r, int64_t most, ch_csv_scan *s, bool *has_end)
{
    bool at_end = false;

    if (s->state == NO_QUOTE_YET)
        s->state = FIELD_START;
    *has_end = false;
    for (int64_t n = 0; !*has_end && n < most; n += (int64_t)s->seen) {
        ch_status rc = ch__reader_want(r, 1);

        if (rc != CH_OK)
            return rc;
        at_end = r->left == 0;
        s->seen = 0;
        *has_end = at_end || scan_bytes(s, r->at, r->left);
        ch__reader_borrow(r, s->seen + (*has_end && !at_end));
    }
    if (at_end && ch__csv_is_open(s))
        return ch__fail(CH_DATA_LOSS, "%s: the file ends within a quoted field",
                        ch__reader_path(r));
    return CH_OK;
}

/* ---- fields ---- */

/* Parses a field that begins with a quote. */
static const char *quoted_field(char separator, const char *at, const char *end,
                                ch_csv_field *out)
{
    const char *begin = ++at;

    out->has_quotes = false;
    for (;;) {
        const char *quote = at < end ? memchr(at, '"', (size_t)(end - at)) : NULL;

        if (quote == NULL)
            return NULL;
        at = quote + 1;
        if (at == end || *at != '"') {
            out->data = begin;
            out->size = (size_t)(quote - begin);
            return at == end || *at == separator ? at : NULL;
        }
        out->has_quotes = true;
        at++;
    }
}

const char *ch__csv_field(char separator, const char *at, const char *end, ch_csv_field *out)
{
    const char *begin = at;

    if (at < end && *at == '"')
        return quoted_field(separator, at, end, out);
    while (at < end && *at != separator)
        at++;
    *out = (ch_csv_field){begin, (size_t)(at - begin), false};
    return at;
}

size_t ch__csv_unquote(const ch_csv_field *f, char *to)
{
    size_t n = 0;

    if (!f->has_quotes) {
        if (f->size > 0)
            memcpy(to, f->data, f->size);
        return f->size;
    }
    for (size_t i = 0; i < f->size; i++) {
        to[n++] = f->data[i];
        i += f->data[i] == '"'; /* skips the second of two quotes */
    }
    return n;
}
