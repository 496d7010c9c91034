/* file/npy.c -- .npy files of numpy.
 *
 *     "\x93NUMPY"   u8 major, u8 minor
 *     length        u16 in version 1, u32 in 2 and 3, little endian
 *     header        length bytes: a Python dict as text, blanks, a newline:
 *                   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 *     elements
 *
 * A recursive descent parser over a `cursor` fills a `dict` from the header; make_array()
 * converts the dict to a ch_array (file/array.h), which reads the elements. Headers are
 * untrusted: the parser never reads past the cursor's end, and the header's size is limited.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/npy.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"

enum {
    FIXED_BYTES = 8,            /* bytes of magic and version */
    MAX_HEADER_BYTES = 1 << 16, /* numpy itself reads at most 10000 */
    ALIGN_BYTES = 64,           /* alignment of the first element in the file */
};

static const char magic[] = "\x93NUMPY";

static const struct dtype_row {
    const char *code; /* without the byte order */
    ch_dtype    dtype;
} dtypes[] = {
    {"f4", CH_F32}, {"f8", CH_F64}, {"f2", CH_F16}, {"i1", CH_I8},
    {"i2", CH_I16}, {"i4", CH_I32}, {"i8", CH_I64}, {"u1", CH_U8},
    {"u2", CH_U16}, {"u4", CH_U32}, {"u8", CH_U64}, {"b1", CH_BOOL},
};
enum { N_DTYPES = sizeof(dtypes) / sizeof(*dtypes) };

static const bool is_big_endian = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

/* ---- the dict ---- */

/* The unread part of a text. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_blanks(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n'))
        c->at++;
}

/* Skips blanks, then the character. Returns false and skips only the blanks if another
 * character follows. The functions below do the same for larger units. */
static bool accept(cursor *c, char expected)
{
    skip_blanks(c);
    if (c->at == c->end || *c->at != expected)
        return false;
    c->at++;
    return true;
}

static bool accept_word(cursor *c, const char *word)
{
    size_t n = strlen(word);

    skip_blanks(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

/* Parses a quoted string without escapes. *out is the text between the quotes. */
static bool parse_string(cursor *c, cursor *out)
{
    char quote = '\'';

    if (!accept(c, quote)) {
        quote = '"';
        if (!accept(c, quote))
            return false;
    }
    const char *end = memchr(c->at, quote, (size_t)(c->end - c->at));
    if (end == NULL)
        return false;
    *out = (cursor){c->at, end};
    c->at = end + 1;
    return true;
}

static bool is_digit(const cursor *c)
{
    return c->at < c->end && *c->at >= '0' && *c->at <= '9';
}

static bool parse_number(cursor *c, int64_t *out)
{
    int64_t x = 0;

    skip_blanks(c);
    if (!is_digit(c))
        return false;
    for (; is_digit(c); c->at++)
        if (__builtin_mul_overflow(x, 10, &x) || __builtin_add_overflow(x, *c->at - '0', &x))
            return false;
    *out = x;
    return true;
}

/* Parses "()", "(3,)", "(2, 3)" or "(2, 3,)". Sizes after the first CH_MAX_RANK are counted in
 * the rank, but not stored. */
static bool parse_shape(cursor *c, ch_shape *out)
{
    int64_t size;
    bool    comma = true;

    *out = (ch_shape){0};
    if (!accept(c, '('))
        return false;
    while (comma && parse_number(c, &size)) {
        if (out->rank < CH_MAX_RANK)
            out->dim[out->rank] = size;
        out->rank++;
        comma = accept(c, ',');
    }
    return accept(c, ')') && (out->rank != 1 || comma); /* "(3)" is a number in Python */
}

static bool is_text(const cursor *c, const char *text)
{
    size_t n = (size_t)(c->end - c->at);

    return n == strlen(text) && memcmp(c->at, text, n) == 0;
}

/* The entries of the header. `descr` points into the reader's block. */
typedef struct dict {
    cursor   descr;
    bool     is_structure; /* descr is a list of fields; the parser stops there */
    bool     is_fortran;
    ch_shape shape;
} dict;

enum { HAS_DESCR = 1, HAS_ORDER = 2, HAS_SHAPE = 4, HAS_ALL = 7 };

/* Parses an entry. Returns its HAS_ bit, or 0 if there is no valid entry. */
static int parse_entry(cursor *c, dict *d)
{
    cursor key;

    if (!parse_string(c, &key) || !accept(c, ':'))
        return 0;
    if (is_text(&key, "descr")) {
        skip_blanks(c);
        d->is_structure = c->at < c->end && *c->at == '[';
        return d->is_structure || parse_string(c, &d->descr) ? HAS_DESCR : 0;
    }
    if (is_text(&key, "fortran_order")) {
        d->is_fortran = accept_word(c, "True");
        return d->is_fortran || accept_word(c, "False") ? HAS_ORDER : 0;
    }
    return is_text(&key, "shape") && parse_shape(c, &d->shape) ? HAS_SHAPE : 0;
}

/* Parses a dict with the three entries in any order, each exactly once, and blanks at the
 * end. */
static bool parse_dict(cursor *c, dict *d)
{
    int  seen = 0;
    bool comma = true;

    if (!accept(c, '{'))
        return false;
    while (!accept(c, '}')) {
        int which = comma ? parse_entry(c, d) : 0;

        if (d->is_structure)
            return true;
        if (which == 0 || (seen & which) != 0)
            return false;
        seen |= which;
        comma = accept(c, ',');
    }
    skip_blanks(c);
    return seen == HAS_ALL && c->at == c->end;
}

/* ---- dict to array ---- */

static ch_status fail_descr(const ch_reader *r, const dict *d)
{
    int         n = (int)(d->descr.end - d->descr.at);
    char        kind = n > 1 ? d->descr.at[1] : '\0';
    const char *contents = kind == 'S' || kind == 'U' || kind == 'a' ? "strings"
                           : kind == 'O'                             ? "Python objects"
                           : kind == 'c'                             ? "complex numbers"
                           : kind == 'M' || kind == 'm'              ? "times"
                           : kind == 'V' ? "raw bytes (numpy stores bfloat16 like this)"
                                         : "elements of an unknown type";

    return ch__fail(
        CH_UNIMPLEMENTED,
        "%s: an array of %s, dtype '%.*s'; only arrays of numbers and bools are supported",
        ch__reader_path(r), contents, n < 40 ? n : 40, d->descr.at);
}

/* Parses a dtype such as "<f4": byte order, kind, size. Returns false if no ch_dtype
 * matches. */
static bool parse_descr(const cursor *text, ch_array *a)
{
    cursor code = {text->at + 1, text->end};

    if (text->end - text->at < 2)
        return false;
    for (int i = 0; i < N_DTYPES; i++) {
        if (!is_text(&code, dtypes[i].code))
            continue;
        a->dtype = dtypes[i].dtype;
        switch (*text->at) {
        case '<':
            a->is_swapped = is_big_endian;
            return true;
        case '>':
            a->is_swapped = !is_big_endian;
            return true;
        case '=':
            a->is_swapped = false;
            return true;
        case '|':
            a->is_swapped = false;
            return ch_dtype_bytes(a->dtype) == 1;
        default:
            return false;
        }
    }
    return false;
}

/* Converts the dict to a ch_array. The reader must be at the first element. */
static ch_status make_array(const ch_reader *r, const dict *d, ch_array *out)
{
    ch_array a = {.shape = d->shape, .is_fortran = d->is_fortran};

    if (d->is_structure)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: an array of structures (its dtype has fields); only arrays of "
                        "numbers and bools are supported",
                        ch__reader_path(r));
    if (!parse_descr(&d->descr, &a))
        return fail_descr(r, d);
    if (d->shape.rank > CH_MAX_RANK)
        return ch__fail(CH_UNIMPLEMENTED, "%s: an array of %d axes; a tensor has at most %d",
                        ch__reader_path(r), d->shape.rank, CH_MAX_RANK);
    if (ch__array_derive(&a) != CH_OK)
        return ch__fail_at(CH_DATA_LOSS, "%s: invalid header, which ends at byte %lld",
                           ch__reader_path(r), (long long)ch__reader_offset(r));
    a.offset = ch__reader_offset(r);
    *out = a;
    return CH_OK;
}

/* ---- reading ---- */

static ch_status fail_head(const ch_reader *r, const char *problem)
{
    return ch__fail(CH_DATA_LOSS, "%s: not a .npy file: %s, at byte %lld", ch__reader_path(r),
                    problem, (long long)ch__reader_offset(r));
}

/* Buffers at least n bytes. DATA_LOSS: the file ends before. */
static ch_status need_bytes(ch_reader *r, size_t n)
{
    ch_status rc = ch__reader_want(r, n);

    if (rc == CH_OK && r->left < n)
        rc = fail_head(r, "the file ends in the header");
    return rc;
}

ch_status ch__npy_head(ch_reader *r, ch_array *out)
{
    dict      d = {0};
    ch_status rc = need_bytes(r, FIXED_BYTES + 2);

    if (rc != CH_OK)
        return rc;
    if (memcmp(r->at, magic, sizeof(magic) - 1) != 0)
        return fail_head(r, "it does not begin with the magic bytes");
    int version = (unsigned char)r->at[6];
    if (version < 1 || version > 3 || r->at[7] != 0)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: .npy version %d.%d; only 1.0, 2.0 and 3.0 are supported",
                        ch__reader_path(r), version, (unsigned char)r->at[7]);
    size_t before = FIXED_BYTES + (version == 1 ? 2 : 4);
    rc = need_bytes(r, before);
    if (rc != CH_OK)
        return rc;
    size_t n = version == 1 ? ch__le16(r->at + FIXED_BYTES) : ch__le32(r->at + FIXED_BYTES);
    if (n > MAX_HEADER_BYTES)
        return fail_head(r, "its header is longer than 65536 bytes");
    rc = need_bytes(r, before + n);
    if (rc != CH_OK)
        return rc;
    cursor c = {r->at + before, r->at + before + n};
    if (!parse_dict(&c, &d))
        return ch__fail(CH_DATA_LOSS,
                        "%s: not a .npy file: its header is damaged near byte %lld",
                        ch__reader_path(r), (long long)(ch__reader_offset(r) + (c.at - r->at)));
    /* d.descr points to borrowed bytes, which stay valid because nothing more is read here. */
    ch__reader_borrow(r, before + n);
    return make_array(r, &d, out);
}

ch_status ch_npy_load(const char *path, const ch_load_options *opt, ch_tensor **out)
{
    return ch__array_load_file(path, opt, ch__npy_head, out);
}

/* ---- writing ---- */

typedef struct head {
    char   text[512]; /* enough for CH_MAX_RANK sizes of 19 digits */
    size_t n;
} head;

static ch_status make_head(const ch_tensor *t, head *h)
{
    const char *code = NULL;
    char        shape[256];
    size_t      before = FIXED_BYTES + 2, n;

    for (int i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == t->dtype)
            code = dtypes[i].code;
    if (code == NULL)
        return ch__fail(CH_UNIMPLEMENTED, "numpy has no dtype for %s%s",
                        ch_dtype_name(t->dtype), t->dtype == CH_BF16 ? "; save it as f32" : "");
    /* The form is Python's, except for tuples of one element. */
    ch_shape_print(t->shape, shape, sizeof(shape));
    if (t->shape.rank == 1)
        snprintf(shape, sizeof(shape), "(%lld,)", (long long)t->shape.dim[0]);
    n = (size_t)snprintf(h->text + before, sizeof(h->text) - before,
                         "{'descr': '%c%s', 'fortran_order': False, 'shape': %s, }",
                         ch_dtype_bytes(t->dtype) == 1 ? '|'
                         : is_big_endian               ? '>'
                                                       : '<',
                         code, shape);
    /* at least one byte for the newline */
    h->n = (before + n + ALIGN_BYTES) / ALIGN_BYTES * ALIGN_BYTES;
    memset(h->text + before + n, ' ', h->n - before - n);
    h->text[h->n - 1] = '\n';
    /* the byte after \x01, a 0, is the minor version */
    memcpy(h->text, "\x93NUMPY\x01", FIXED_BYTES);
    ch__put_le((unsigned char *)h->text + FIXED_BYTES, h->n - before, 2);
    return CH_OK;
}

ch_status ch__npy_put(ch_writer *w, ch_tensor *t)
{
    head      h;
    ch_status rc = make_head(t, &h);

    if (rc != CH_OK)
        return ch__fail_at(rc, "%s", ch__writer_path(w));
    rc = ch__writer_put(w, h.text, h.n);
    return rc == CH_OK ? ch__array_put(w, t, false) : rc;
}

ch_status ch_npy_save(const char *path, ch_tensor *t, const ch_save_options *opt)
{
    return ch__array_save_file(path, t, opt, ch__npy_put);
}
