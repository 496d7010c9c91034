/* data/format/csv.c -- parses a record of CSV to an element of scalars and vectors.
 *
 * ch__csv_parse first finds the fields of the columns in the record. Their sizes determine the
 * memory for text. Then it creates the element and converts each field to a number or a text. A
 * ch_csv_layout maps the columns of a schema to the fields of a file; it is read-only once
 * created. The stage `csv` (data/text.c) calls this file.
 *
 * Fields of a file are numbered from 1. The fields of all columns together, column by column,
 * are numbered from 0 (`which`).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/csv.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "data/format/csv_schema.h"
#include "data/format/csv_text.h"
#include "data/format/number.h"
#include "data/format/show.h"

/* A field that a column reads. */
typedef struct wanted {
    int64_t field; /* number in the file, from 1 */
    int     which; /* index among the fields of all columns */
} wanted;

struct ch_csv_layout {
    const ch_csv_schema *schema;
    int64_t              n_fields; /* of every record; 0: any number */
    int64_t             *from;     /* number of the first field of each column */
    wanted               wanted[]; /* schema->n_fields entries in the order of the file */
};

/* ---- layouts ---- */

static ch_status fail_quotes(int64_t field, const char *at, const char *end)
{
    return ch__fail(
        CH_DATA_LOSS,
        "field %lld: %s: text follows a closing quote, or the quote is not closed; double a "
        "quote inside a quoted field",
        (long long)field, ch__show((ch_str){at, (size_t)(end - at)}).text);
}

/* Prints the names of a header, as many as fit. */
static void list_names(char separator, ch_str header, char *text, size_t size)
{
    const char  *at = header.data, *end = at + header.size;
    ch_text      o = ch__text(text, size);
    ch_csv_field f;

    for (int n = 0; n < 16; n++, at++) {
        at = ch__csv_field(separator, at, end, &f);
        if (at == NULL)
            break;
        ch__text_add(&o, n > 0 ? ", " : "");
        ch__text_bytes(&o, (ch_str){f.data, f.size}, 40);
        if (at == end)
            return;
    }
    ch__text_add(&o, ", ...");
}

static ch_status fail_header(const ch_csv_schema *s, ch_str header, int column,
                             const char *what)
{
    char names[500];

    list_names(s->separator, header, names, sizeof(names));
    return ch__fail(CH_INVALID_ARGUMENT, "csv: column \"%s\" %s; the header has %s",
                    s->column[column].declared.name, what, names);
}

/* Finds the columns that have a name and no field number. `room` must have header.size
 * bytes. */
static ch_status read_header(ch_csv_layout *l, ch_str header, char *room)
{
    const ch_csv_schema *s = l->schema;
    const char          *at = header.data, *end = at + header.size, *next;
    ch_csv_field         f;

    for (;; at = next + 1) {
        l->n_fields++;
        next = ch__csv_field(s->separator, at, end, &f);
        if (next == NULL)
            return ch__fail_at(fail_quotes(l->n_fields, at, end), "csv: header");
        int i = ch__names_find(&s->names, room, ch__csv_unquote(&f, room));
        if (i >= 0 && s->column[i].declared.field == 0) {
            if (l->from[i] != 0)
                return fail_header(s, header, i, "is twice in the header");
            l->from[i] = l->n_fields;
        }
        if (next == end)
            return CH_OK;
    }
}

static ch_status find_by_name(ch_csv_layout *l, ch_str header)
{
    char     *room = ch__malloc(header.size);
    ch_status rc =
        room != NULL ? read_header(l, header, room) : ch__fail_memory("header of csv");

    ch__free(room);
    for (int i = 0; i < l->schema->n && rc == CH_OK; i++) {
        int64_t last = l->from[i] + l->schema->column[i].n - 1;

        if (l->from[i] == 0)
            rc = fail_header(l->schema, header, i, "is not in the header");
        else if (last > l->n_fields)
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "csv: column %d reads field %lld, but the header has %lld fields", i,
                          (long long)last, (long long)l->n_fields);
    }
    return rc;
}

/* Without a header, a column without a field number follows the column before it. */
static void find_in_order(ch_csv_layout *l)
{
    int64_t next = 1;

    for (int i = 0; i < l->schema->n; i++) {
        if (l->from[i] == 0)
            l->from[i] = next;
        next = l->from[i] + l->schema->column[i].n;
    }
}

static int by_field(const void *a, const void *b)
{
    const wanted *x = a, *y = b;

    return (x->field > y->field) - (x->field < y->field);
}

/* Fills in and sorts the fields of all columns. */
static void list_wanted(ch_csv_layout *l)
{
    const ch_csv_schema *s = l->schema;

    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->column[i].n; k++) {
            int which = s->column[i].first + k;

            l->wanted[which] = (wanted){l->from[i] + k, which};
        }
    qsort(l->wanted, (size_t)s->n_fields, sizeof(*l->wanted), by_field);
}

ch_status ch__csv_layout_new(const ch_csv_schema *s, const ch_str *header, ch_csv_layout **out)
{
    ch_csv_layout *l = ch__calloc(1, sizeof(*l) + (size_t)s->n_fields * sizeof(*l->wanted));
    ch_status      rc = CH_OK;

    if (l == NULL)
        return ch__fail_memory("columns of csv");
    l->schema = s;
    l->from = ch__calloc((size_t)s->n, sizeof(*l->from));
    if (l->from == NULL) {
        ch__free(l);
        return ch__fail_memory("columns of csv");
    }
    for (int i = 0; i < s->n; i++)
        l->from[i] = s->column[i].declared.field;
    if (header != NULL)
        rc = find_by_name(l, header->size > 0 ? *header : (ch_str){"", 0});
    else
        find_in_order(l);
    if (rc != CH_OK) {
        ch__csv_layout_free(l);
        return rc;
    }
    list_wanted(l);
    *out = l;
    return CH_OK;
}

void ch__csv_layout_free(ch_csv_layout *l)
{
    if (l != NULL)
        ch__free(l->from);
    ch__free(l);
}

/* ---- records ---- */

static ch_status fail_fields(const ch_csv_layout *l, int64_t n)
{
    if (l->n_fields > 0)
        return ch__fail(CH_DATA_LOSS, "%lld field%s, but the header has %lld", (long long)n,
                        n == 1 ? "" : "s", (long long)l->n_fields);
    return ch__fail(CH_DATA_LOSS, "%lld field%s, but a column reads field %lld", (long long)n,
                    n == 1 ? "" : "s", (long long)l->wanted[l->schema->n_fields - 1].field);
}

/* Finds the fields of all columns in the record. `field` must have schema->n_fields entries. */
static ch_status split_record(const ch_csv_layout *l, ch_str record, ch_csv_field *field)
{
    const char  *at = record.data, *end = at + record.size, *next;
    const int    n = l->schema->n_fields;
    int          k = 0;
    int64_t      number = 1;
    ch_csv_field f;

    for (;; at = next + 1, number++) {
        next = ch__csv_field(l->schema->separator, at, end, &f);
        if (next == NULL)
            return fail_quotes(number, at, end);
        for (; k < n && l->wanted[k].field == number; k++)
            field[l->wanted[k].which] = f;
        if (next == end || (k == n && l->n_fields == 0))
            break;
    }
    if (k < n || (l->n_fields > 0 && number != l->n_fields))
        return fail_fields(l, number);
    return CH_OK;
}

/* Records the error that field k of column i is empty or cannot be converted. */
static ch_status fail_field(const ch_csv_layout *l, int i, int k, const ch_csv_field *f,
                            ch_parsed why)
{
    const ch_csv_column *c = &l->schema->column[i].declared;
    const char          *name = c->name != NULL ? c->name : "";
    long long            number = (long long)l->from[i] + k;

    if (f->size == 0)
        return ch__fail(CH_DATA_LOSS,
                        "field %lld, column \"%s\": the field is empty, and the column has no "
                        "default; set its `missing`",
                        number, name);
    return ch__fail(CH_DATA_LOSS, "field %lld, column \"%s\": %s is %s %s", number, name,
                    ch__show((ch_str){f->data, f->size}).text,
                    why == CH_NOT_HELD ? "out of range for" : "not a valid",
                    ch_dtype_name(c->dtype));
}

static ch_status fill_texts(const ch_csv_layout *l, int i, const ch_csv_field *f, ch_str *to,
                            char **room)
{
    const ch_csv_column_info *c = &l->schema->column[i];

    for (int k = 0; k < c->n; k++) {
        ch_csv_field text = f[k];

        if (text.size == 0) {
            if (c->declared.missing == NULL)
                return fail_field(l, i, k, &f[k], CH_NO_NUMBER);
            text = (ch_csv_field){c->missing.text.data, c->missing.text.size, false};
        }
        to[k] = (ch_str){*room, ch__csv_unquote(&text, *room)};
        *room += to[k].size;
    }
    return CH_OK;
}

static ch_status fill_numbers(const ch_csv_layout *l, int i, const ch_csv_field *f, char *to)
{
    const ch_csv_column_info *c = &l->schema->column[i];
    size_t                    bytes = ch_dtype_bytes(c->declared.dtype);

    for (int k = 0; k < c->n; k++, to += bytes) {
        if (f[k].size == 0 && c->declared.missing != NULL) {
            memcpy(to, &c->missing, bytes);
            continue;
        }
        ch_parsed rc = ch__number_parse(c->declared.dtype, (ch_str){f[k].data, f[k].size}, to);
        if (rc != CH_PARSED)
            return fail_field(l, i, k, &f[k], rc);
    }
    return CH_OK;
}

/* Returns an upper bound of the bytes of all texts: their size in the file. Removing quotes
 * makes them shorter. */
static size_t text_bytes(const ch_csv_schema *s, const ch_csv_field *field)
{
    size_t n = 0;

    for (int i = 0; i < s->n; i++) {
        const ch_csv_column_info *c = &s->column[i];

        for (int k = c->first; k < c->first + c->n && c->declared.dtype == CH_STR; k++)
            n += field[k].size > 0 ? field[k].size : c->missing.text.size;
    }
    return n;
}

static ch_status make_element(const ch_csv_layout *l, const ch_csv_field *field,
                              ch_element **out)
{
    const ch_csv_schema *s = l->schema;
    ch_element          *e = ch__element_new(s->n, 0, s->room_bytes + text_bytes(s, field));
    ch_status            rc = CH_OK;

    if (e == NULL)
        return ch__fail_memory("record of csv");
    char *room = (char *)e->room + s->room_bytes;
    for (int i = 0; i < s->n && rc == CH_OK; i++) {
        const ch_csv_column_info *c = &s->column[i];
        void                     *to = (char *)e->room + c->offset;

        e->part[i] =
            (ch_part){.dtype = c->declared.dtype, .shape = s->spec[i].shape, .data = to};
        rc = c->declared.dtype == CH_STR ? fill_texts(l, i, field + c->first, to, &room)
                                         : fill_numbers(l, i, field + c->first, to);
    }
    if (rc != CH_OK) {
        ch__element_free(e);
        return rc;
    }
    *out = e;
    return CH_OK;
}

ch_status ch__csv_parse(const ch_csv_layout *l, ch_str record, ch_element **out)
{
    enum { FEW = 64 };
    ch_csv_field few[FEW], *field = few;
    const char  *zero = record.size > 0 ? memchr(record.data, '\0', record.size) : NULL;

    if (zero != NULL)
        return ch__fail(CH_DATA_LOSS,
                        "a zero byte at offset %zu of the record; this is not a text file",
                        (size_t)(zero - record.data));
    if (record.size == 0)
        record.data = "";
    if (l->schema->n_fields > FEW)
        field = ch__malloc((size_t)l->schema->n_fields * sizeof(*field));
    if (field == NULL)
        return ch__fail_memory("record of csv");
    ch_status rc = split_record(l, record, field);
    if (rc == CH_OK)
        rc = make_element(l, field, out);
    if (field != few)
        ch__free(field);
    return rc;
}
