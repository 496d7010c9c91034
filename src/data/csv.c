/* data/csv.c -- a line of CSV as an element of scalars.
 *
 * A record is cut into the fields that are asked for, which says how much room their text takes;
 * then the element is made, and each field becomes its scalar.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/csv.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "data/csv_schema.h"
#include "data/csv_text.h"
#include "data/number.h"
#include "data/show.h"

typedef struct wanted {
    int64_t field; /* 1 is the first */
    int     column;
} wanted;

struct ch_csv_layout {
    const ch_csv_schema *schema;
    int64_t              n_fields; /* of every record; 0: any number */
    wanted               wanted[]; /* of each column, by field */
};

/* ---- layouts ---- */

static ch_status fail_quotes(int64_t field, const char *at, const char *end)
{
    return ch__fail(
        CH_DATA_LOSS,
        "field %lld: %s: a quoted field ends with its closing quote, and one within "
        "it is doubled",
        (long long)field, ch__show((ch_str){at, (size_t)(end - at)}).text);
}

/* The names of a header, as many as fit a message. */
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
                    s->column[column].as_asked.name, what, names);
}

/* Finds the columns that have no number; `room` is for a name without its quotes. */
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
        if (i >= 0 && s->column[i].as_asked.field == 0) {
            if (l->wanted[i].field != 0)
                return fail_header(s, header, i, "is twice in the header");
            l->wanted[i].field = l->n_fields;
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
        if (l->wanted[i].field == 0)
            rc = fail_header(l->schema, header, i, "is not in the header");
        else if (l->wanted[i].field > l->n_fields)
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "csv: column %d is asked for as field %lld, and the header has %lld",
                          i, (long long)l->wanted[i].field, (long long)l->n_fields);
    }
    return rc;
}

/* Those without a number are behind the one before them. */
static void find_in_order(ch_csv_layout *l)
{
    int64_t before = 0;

    for (int i = 0; i < l->schema->n; i++) {
        if (l->wanted[i].field == 0)
            l->wanted[i].field = before + 1;
        before = l->wanted[i].field;
    }
}

static int by_field(const void *a, const void *b)
{
    const wanted *x = a, *y = b;

    return (x->field > y->field) - (x->field < y->field);
}

ch_status ch__csv_layout_new(const ch_csv_schema *s, const ch_str *header, ch_csv_layout **out)
{
    ch_csv_layout *l = ch__calloc(1, sizeof(*l) + (size_t)s->n * sizeof(*l->wanted));
    ch_status      rc = CH_OK;

    if (l == NULL)
        return ch__fail_memory("columns of csv");
    l->schema = s;
    for (int i = 0; i < s->n; i++)
        l->wanted[i] = (wanted){s->column[i].as_asked.field, i};
    if (header != NULL)
        rc = find_by_name(l, header->size > 0 ? *header : (ch_str){"", 0});
    else
        find_in_order(l);
    if (rc != CH_OK) {
        ch__free(l);
        return rc;
    }
    qsort(l->wanted, (size_t)s->n, sizeof(*l->wanted), by_field);
    *out = l;
    return CH_OK;
}

void ch__csv_layout_free(ch_csv_layout *l)
{
    ch__free(l);
}

/* ---- records ---- */

static ch_status fail_fields(const ch_csv_layout *l, int64_t n)
{
    if (l->n_fields > 0)
        return ch__fail(CH_DATA_LOSS, "%lld field%s, and the header has %lld", (long long)n,
                        n == 1 ? "" : "s", (long long)l->n_fields);
    return ch__fail(CH_DATA_LOSS, "%lld field%s, and field %lld is asked for", (long long)n,
                    n == 1 ? "" : "s", (long long)l->wanted[l->schema->n - 1].field);
}

/* Cuts the record: field[i] is that of column i. */
static ch_status cut(const ch_csv_layout *l, ch_str record, ch_csv_field *field)
{
    const char  *at = record.data, *end = at + record.size, *next;
    const int    n = l->schema->n;
    int          k = 0;
    int64_t      number = 1;
    ch_csv_field f;

    for (;; at = next + 1, number++) {
        next = ch__csv_field(l->schema->separator, at, end, &f);
        if (next == NULL)
            return fail_quotes(number, at, end);
        for (; k < n && l->wanted[k].field == number; k++)
            field[l->wanted[k].column] = f;
        if (next == end || (k == n && l->n_fields == 0))
            break;
    }
    if (k < n || (l->n_fields > 0 && number != l->n_fields))
        return fail_fields(l, number);
    return CH_OK;
}

static int64_t field_number(const ch_csv_layout *l, int column)
{
    for (int k = 0; k < l->schema->n; k++)
        if (l->wanted[k].column == column)
            return l->wanted[k].field;
    return 0;
}

static ch_status fail_field(const ch_csv_layout *l, int i, const ch_csv_field *f, ch_parsed why)
{
    const ch_csv_column *c = &l->schema->column[i].as_asked;
    const char          *name = c->name != NULL ? c->name : "";

    if (f->size == 0)
        return ch__fail(CH_DATA_LOSS,
                        "field %lld, column \"%s\": it is empty, and nothing was said of what "
                        "that means",
                        (long long)field_number(l, i), name);
    return ch__fail(CH_DATA_LOSS, "field %lld, column \"%s\": %s is %s %s",
                    (long long)field_number(l, i), name,
                    ch__show((ch_str){f->data, f->size}).text,
                    why == CH_NOT_HELD ? "not held by" : "no", ch_dtype_name(c->dtype));
}

static ch_status fill_text(const ch_csv_layout *l, int i, const ch_csv_field *f,
                           ch_csv_slot *to, char **room)
{
    const ch_csv_known *c = &l->schema->column[i];
    ch_csv_field        text = *f;

    if (f->size == 0) {
        if (c->as_asked.missing == NULL)
            return fail_field(l, i, f, CH_NO_NUMBER);
        text = (ch_csv_field){c->missing.text.data, c->missing.text.size, false};
    }
    to->text = (ch_str){*room, ch__csv_unquote(&text, *room)};
    *room += to->text.size;
    return CH_OK;
}

static ch_status fill_number(const ch_csv_layout *l, int i, const ch_csv_field *f,
                             ch_csv_slot *to)
{
    const ch_csv_known *c = &l->schema->column[i];

    if (f->size == 0 && c->as_asked.missing != NULL) {
        *to = c->missing;
        return CH_OK;
    }
    ch_parsed rc = ch__number_parse(c->as_asked.dtype, (ch_str){f->data, f->size}, to);
    return rc == CH_PARSED ? CH_OK : fail_field(l, i, f, rc);
}

/* Bytes of all texts, as they are in the file: without quotes they are not more. */
static size_t text_bytes(const ch_csv_schema *s, const ch_csv_field *field)
{
    size_t n = 0;

    for (int i = 0; i < s->n; i++)
        if (s->column[i].as_asked.dtype == CH_STR)
            n += field[i].size > 0 ? field[i].size : s->column[i].missing.text.size;
    return n;
}

static ch_status make_element(const ch_csv_layout *l, const ch_csv_field *field,
                              ch_element **out)
{
    const ch_csv_schema *s = l->schema;
    size_t               slots = (size_t)s->n * sizeof(ch_csv_slot);
    ch_element          *e = ch__element_new(s->n, 0, slots + text_bytes(s, field));
    ch_status            rc = CH_OK;

    if (e == NULL)
        return ch__fail_memory("record of csv");
    ch_csv_slot *to = e->room;
    char        *room = (char *)e->room + slots;
    for (int i = 0; i < s->n && rc == CH_OK; i++) {
        ch_dtype dtype = s->column[i].as_asked.dtype;

        e->part[i].dtype = dtype; /* its shape is a scalar's already */
        e->part[i].data = &to[i];
        rc = dtype == CH_STR ? fill_text(l, i, &field[i], &to[i], &room)
                             : fill_number(l, i, &field[i], &to[i]);
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
                        "a zero byte, %zu bytes behind the record's first: this "
                        "is no text",
                        (size_t)(zero - record.data));
    if (record.size == 0)
        record.data = "";
    if (l->schema->n > FEW)
        field = ch__malloc((size_t)l->schema->n * sizeof(*field));
    if (field == NULL)
        return ch__fail_memory("record of csv");
    ch_status rc = cut(l, record, field);
    if (rc == CH_OK)
        rc = make_element(l, field, out);
    if (field != few)
        ch__free(field);
    return rc;
}
