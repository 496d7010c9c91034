/* data/format/csv_schema.c -- creates CSV schemas: checks the columns and builds a table of
 * their names.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/csv_schema.h"

#include <string.h>

#include "base/fault.h"
#include "data/format/number.h"
#include "data/format/show.h"

static ch_status check_column(const ch_csv_schema *s, int i, const ch_csv_column *c)
{
    const char *name = c->name != NULL ? c->name : "";

    if (c->dtype < 0 || c->dtype >= CH_DTYPE_COUNT)
        return ch__fail(CH_INVALID_ARGUMENT, "csv: column %d \"%s\": invalid dtype %d", i, name,
                        (int)c->dtype);
    if (c->field < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "csv: column %d \"%s\": field %d, want 1 or more, or 0 for none", i,
                        name, c->field);
    if (c->fields < 0 || c->fields > CH_CSV_FIELDS - s->n_fields)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "csv: column %d \"%s\": %d fields, want 0 or more, and at most %d in all columns",
            i, name, c->fields, CH_CSV_FIELDS);
    if (c->name == NULL && c->field == 0 && s->has_header)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "csv: column %d has neither a name nor a field; set one of them to find "
            "the column in the file",
            i);
    if (c->name != NULL && ch__names_find(&s->names, name, strlen(name)) >= 0)
        return ch__fail(CH_INVALID_ARGUMENT, "csv: column \"%s\" is given twice", name);
    return CH_OK;
}

/* Sets the value of empty fields of a column. */
static ch_status add_missing(ch_csv_schema *s, ch_csv_column_info *to, const char *text)
{
    ch_str given = {text, strlen(text)};
    char  *copy = ch__arena_strdup(&s->arena, text);

    if (copy == NULL)
        return ch__fail_memory("schema of csv");
    to->declared.missing = copy;
    if (to->declared.dtype == CH_STR) {
        to->missing.text = (ch_str){copy, given.size};
        return CH_OK;
    }
    if (ch__number_parse(to->declared.dtype, given, &to->missing) == CH_PARSED)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "csv: column \"%s\": the default %s (`missing`) is not a valid %s",
                    to->declared.name != NULL ? to->declared.name : "", ch__show(given).text,
                    ch_dtype_name(to->declared.dtype));
}

/* Assigns the indices of the column's fields and the offset of its component. */
static void place_column(ch_csv_schema *s, ch_csv_column_info *to)
{
    enum {
        ALIGNMENT = sizeof(ch_str)
    }; /* offsets are multiples, so each component is aligned */
    size_t bytes;

    to->n = to->declared.fields > 0 ? to->declared.fields : 1;
    to->first = s->n_fields;
    to->offset = s->room_bytes;
    s->n_fields += to->n;
    bytes = (size_t)to->n * ch_dtype_bytes(to->declared.dtype);
    s->room_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static ch_status add_column(ch_csv_schema *s, int i, const ch_csv_column *c)
{
    ch_csv_column_info *to = &s->column[i];
    ch_status           rc = check_column(s, i, c);

    if (rc != CH_OK)
        return rc;
    to->declared = *c;
    if (c->name != NULL) {
        if (!ch__names_put(&s->names, &s->arena, i, c->name))
            return ch__fail_memory("schema of csv");
        to->declared.name = s->names.name[i].text;
    }
    place_column(s, to);
    s->spec[i] = (ch_tensor_spec){to->declared.name, c->dtype,
                                  c->fields > 0 ? ch_shape_of(c->fields) : ch_shape_scalar()};
    return c->missing != NULL ? add_missing(s, to, c->missing) : CH_OK;
}

static ch_status make_room(ch_csv_schema *s, int n)
{
    s->n = n;
    s->column = ch__arena_alloc(&s->arena, (size_t)n * sizeof(*s->column));
    s->spec = ch__arena_alloc(&s->arena, (size_t)n * sizeof(*s->spec));
    if (s->column == NULL || s->spec == NULL || !ch__names_new(n, &s->arena, &s->names))
        return ch__fail_memory("schema of csv");
    return CH_OK;
}

ch_status ch__csv_schema_new(int n, const ch_csv_column *column, char separator,
                             bool has_header, ch_csv_schema **out)
{
    if (n < 1 || column == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "csv: number of columns (got %d, want 1 or more)",
                        n);
    if (separator == '"' || separator == '\n' || separator == '\r')
        return ch__fail(CH_INVALID_ARGUMENT,
                        "csv: the separator must not be a quote or a line end");
    ch_csv_schema *s = ch__calloc(1, sizeof(*s));
    if (s == NULL)
        return ch__fail_memory("schema of csv");
    s->separator = separator != 0 ? separator : ',';
    s->has_header = has_header;
    ch_status rc = make_room(s, n);
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = add_column(s, i, &column[i]);
    if (rc != CH_OK) {
        ch__csv_schema_free(s);
        return rc;
    }
    *out = s;
    return CH_OK;
}

void ch__csv_schema_free(ch_csv_schema *s)
{
    if (s == NULL)
        return;
    ch__arena_drop(&s->arena);
    ch__free(s);
}

int ch__csv_schema_spec(const ch_csv_schema *s, const ch_tensor_spec **out)
{
    *out = s->spec;
    return s->n;
}

char ch__csv_schema_separator(const ch_csv_schema *s)
{
    return s->separator;
}

bool ch__csv_schema_has_header(const ch_csv_schema *s)
{
    return s->has_header;
}
