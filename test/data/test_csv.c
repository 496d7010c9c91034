/* test/data/test_csv.c -- records, fields and columns of CSV.
 *
 * There are two models: texts that Python's csv module has read (test/golden/csv_texts.py), and
 * a writer below, whose fields are known.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include "data/format/csv.h"
#include "data/format/csv_text.h"
#include "random.h"

/* ---- records and fields ---- */

typedef struct golden {
    const char *text;
    int         size;
    const char *read;
    bool        is_error;
} golden;

static const golden texts[] = {
#include "../golden/csv_texts.inc"
};

enum { N_TEXTS = sizeof(texts) / sizeof(texts[0]) };

/* Adds the fields of a record to `out`, in the form of the table. Returns false at a fault. */
static bool add_fields(const ch_csv_record *record, char *out, size_t *n)
{
    const char  *at = record->data, *end = at + record->size;
    size_t       before = *n;
    ch_csv_field f;

    for (;; at++) {
        at = ch__csv_field(',', at, end, &f);
        if (at == NULL) {
            *n = before;
            return false;
        }
        *n += ch__csv_unquote(&f, out + *n);
        out[(*n)++] = at < end ? '\037' : '\036';
        if (at == end)
            return true;
    }
}

static void csv_records_are_read_as_by_python(void **state)
{
    for (int i = 0; i < N_TEXTS; i++) {
        ch_reader    *r = t_reader(texts[i].text, (size_t)texts[i].size);
        ch_csv_record record;
        char          out[200];
        size_t        n = 0;
        bool          is_error = false, at_end = false;

        while (!is_error && !at_end) {
            is_error = ch__csv_next(r, ',', 1000, &record) != CH_OK;
            at_end = !is_error && record.data == NULL;
            if (!is_error && !at_end)
                is_error = !add_fields(&record, out, &n);
        }
        out[n] = '\0';
        if (is_error != texts[i].is_error || strcmp(out, texts[i].read) != 0)
            fail_msg("text %d \"%s\": read \"%s\", error %d", i, texts[i].text, out, is_error);
        ch__reader_close(r);
    }
    (void)state;
}

static void csv_scan_continues_at_its_position_when_text_grows(void **state)
{
    for (int i = 0; i < N_TEXTS; i++) {
        size_t      n = (size_t)texts[i].size;
        char       *text = t_alone(texts[i].text, n);
        ch_csv_scan whole = {.separator = ','};
        bool        found = ch__csv_scan(&whole, text, n);

        for (size_t step = 1; step <= 3; step++) {
            ch_csv_scan s = {.separator = ','};
            size_t      at = 0;
            bool        found_here = false;

            while (!found_here && at < n) {
                at = at + step < n ? at + step : n;
                found_here = ch__csv_scan(&s, text, at);
            }
            assert_int_equal(found_here, found);
            assert_int_equal(s.seen, whole.seen);
            assert_int_equal(s.n_lines, whole.n_lines);
            assert_int_equal(ch__csv_is_open(&s), ch__csv_is_open(&whole));
        }
        free(text);
    }
    (void)state;
}

static void csv_records_have_offset_and_number_of_lines(void **state)
{
    const char   *text = "\xef\xbb\xbf"
                         "a,b\n\r\n\n\"x\n\ny\",\"z\n\"\n1,2";
    ch_reader    *r = t_reader(text, strlen(text));
    ch_csv_record x;

    assert_int_equal(ch__csv_next(r, ',', 100, &x), CH_OK);
    assert_int_equal(x.offset, 3); /* behind the byte order mark */
    assert_int_equal(x.size, 3);
    assert_int_equal(x.n_blank, 0);
    assert_int_equal(x.n_lines, 1);
    assert_int_equal(ch__csv_next(r, ',', 100, &x), CH_OK);
    assert_int_equal(x.offset, 10);
    assert_int_equal(x.n_blank, 2);
    assert_int_equal(x.n_lines, 4);
    assert_int_equal(ch__csv_next(r, ',', 100, &x), CH_OK);
    assert_memory_equal(x.data, "1,2", 3);
    assert_int_equal(x.n_lines, 1);
    assert_int_equal(ch__csv_next(r, ',', 100, &x), CH_OK);
    assert_null(x.data);
    ch__reader_close(r);
    (void)state;
}

static void csv_error_names_the_byte_of_an_unclosed_quote(void **state)
{
    const char   *text = "a,b\n1,\"2\n3,4\n5,6\n";
    ch_reader    *r = t_reader(text, strlen(text));
    ch_csv_record x;

    assert_int_equal(ch__csv_next(r, ',', 100, &x), CH_OK);
    t_assert_error(ch__csv_next(r, ',', 100, &x), CH_DATA_LOSS, t_folder, "byte 6", "closed");
    ch__reader_close(r);
    (void)state;
}

static void csv_rejects_a_record_of_more_than_max_record_bytes(void **state)
{
    char         *text = malloc(1 << 20);
    ch_csv_record x;
    ch_reader    *r;

    memset(text, '\n', 1 << 20);
    text[4] = '"'; /* quoted newlines without end */
    r = t_reader(text, 1 << 20);
    t_assert_error(ch__csv_next(r, ',', 5000, &x), CH_RESOURCE_EXHAUSTED, "byte 4", "5000");
    ch__reader_close(r);
    r = t_reader("1234\r\n12345\n", 12);
    assert_int_equal(ch__csv_next(r, ',', 4, &x), CH_OK);
    t_assert_error(ch__csv_next(r, ',', 4, &x), CH_RESOURCE_EXHAUSTED, "byte 6");
    ch__reader_close(r);
    free(text);
    (void)state;
}

static void csv_records_across_blocks_are_whole(void **state)
{
    enum { N = 20000 };
    char         *text = malloc(N * 60);
    size_t        n = 0;
    ch_csv_record x;
    ch_reader    *r;

    for (int i = 0; i < N; i++)
        n += (size_t)snprintf(text + n, 60, i % 3 ? "%d,\"line\n%d\",\"\"\"\"\n" : "%d,%d,\r\n",
                              i, i);
    r = t_reader(text, n);
    for (int i = 0; i < N; i++) {
        char   want[60];
        size_t got = 0;
        char   out[80];

        assert_int_equal(ch__csv_next(r, ',', 100, &x), CH_OK);
        assert_non_null(x.data);
        assert_true(add_fields(&x, out, &got));
        out[got] = '\0';
        snprintf(want, sizeof(want), i % 3 ? "%d\037line\n%d\037\"\036" : "%d\037%d\037\036", i,
                 i);
        assert_string_equal(out, want);
    }
    ch__reader_close(r);
    free(text);
    (void)state;
}

/* ---- columns ---- */

static ch_csv_schema *schema_of(int n, const ch_csv_column *c, bool has_header)
{
    ch_csv_schema *s = NULL;

    assert_int_equal(ch__csv_schema_new(n, c, 0, has_header, &s), CH_OK);
    return s;
}

static ch_csv_layout *layout_of(const ch_csv_schema *s, const char *header)
{
    ch_csv_layout *l = NULL;
    ch_str         text = header != NULL ? t_text(header) : (ch_str){NULL, 0};

    if (ch__csv_layout_new(s, header != NULL ? &text : NULL, &l) != CH_OK)
        fail_msg("%s", ch_error_message());
    return l;
}

static ch_status parse(const ch_csv_layout *l, const void *text, size_t n, ch_element **out)
{
    char     *alone = t_alone(text, n);
    ch_status rc = ch__csv_parse(l, (ch_str){alone, n}, out);

    free(alone); /* the element refers to no other memory */
    return rc;
}

static ch_element *parsed(const ch_csv_layout *l, const char *text)
{
    ch_element *e = NULL;

    if (parse(l, text, strlen(text), &e) != CH_OK)
        fail_msg("%s", ch_error_message());
    return e;
}

static double number_at(const ch_element *e, int i)
{
    assert_int_equal(e->part[i].shape.rank, 0);
    return ch__load(e->part[i].dtype, e->part[i].data);
}

static void assert_text(const ch_element *e, int i, const char *want)
{
    const ch_str *s = e->part[i].data;

    assert_int_equal(s->size, strlen(want));
    assert_memory_equal(s->data, want, s->size);
}

static void csv_columns_are_found_by_name(void **state)
{
    const ch_csv_column c[] = {{.name = "city", .dtype = CH_STR},
                               {.name = "a \"b\"", .dtype = CH_F32},
                               {.name = "age", .dtype = CH_I32}};
    ch_csv_schema      *s = schema_of(3, c, true);
    ch_csv_layout      *l = layout_of(s, "id,age,\"a \"\"b\"\"\",,city,rest");
    ch_element         *e = parsed(l, "1,42,0.5,x,\"K\xc3\xb6ln, \"\"Rhein\"\"\",");

    assert_int_equal(e->n, 3);
    assert_text(e, 0, "K\xc3\xb6ln, \"Rhein\"");
    assert_true(number_at(e, 1) == 0.5);
    assert_true(number_at(e, 2) == 42);
    ch__element_free(e);
    ch__csv_layout_free(l);

    l = layout_of(s, "age,\"city\",\"a \"\"b\"\"\""); /* another file may have another order */
    e = parsed(l, "\"7\",Paris, -1e3 ");
    assert_text(e, 0, "Paris");
    assert_true(number_at(e, 1) == -1000);
    assert_true(number_at(e, 2) == 7);
    ch__element_free(e);
    ch__csv_layout_free(l);
    ch__csv_schema_free(s);
    (void)state;
}

static void csv_rejects_a_header_without_the_columns_and_lists_it(void **state)
{
    const ch_csv_column c[] = {{.name = "a"}, {.name = "b"}};
    const ch_csv_column far[] = {{.name = "a", .field = 3}};
    ch_csv_schema      *s = schema_of(2, c, true), *t = schema_of(1, far, true);
    ch_csv_layout      *l = NULL;

    t_assert_error(ch__csv_layout_new(s, &(ch_str){"a,c,\"d\"", 7}, &l), CH_INVALID_ARGUMENT,
                   "\"b\" is not in the header", "\"a\", \"c\", \"d\"");
    t_assert_error(ch__csv_layout_new(s, &(ch_str){"a,b,a,\"", 7}, &l), CH_INVALID_ARGUMENT,
                   "\"a\" is twice", "\"a\", \"b\", \"a\"");
    t_assert_error(ch__csv_layout_new(s, &(ch_str){"a,\"b\"x", 6}, &l), CH_DATA_LOSS,
                   "csv: header: field", "field 2", "quote");
    t_assert_error(ch__csv_layout_new(s, &(ch_str){NULL, 0}, &l), CH_INVALID_ARGUMENT,
                   "\"a\" is not");
    t_assert_error(ch__csv_layout_new(s, &(ch_str){",,,,,,,,,,,,,,,,,,,,", 20}, &l),
                   CH_INVALID_ARGUMENT, "\"\", ...");
    t_assert_error(ch__csv_layout_new(t, &(ch_str){"a,b", 3}, &l), CH_INVALID_ARGUMENT,
                   "field 3", "has 2");
    assert_null(l);
    ch__csv_schema_free(s);
    ch__csv_schema_free(t);
    (void)state;
}

static void csv_columns_without_a_header_are_in_order_or_by_number(void **state)
{
    const ch_csv_column c[] = {{.dtype = CH_I64},
                               {.name = "third", .dtype = CH_I64, .field = 3},
                               {.dtype = CH_I64},
                               {.name = "again", .dtype = CH_STR, .field = 1}};
    ch_csv_schema      *s = schema_of(4, c, false);
    ch_csv_layout      *l = layout_of(s, NULL);
    ch_element         *e = parsed(l, "10,20,30,40,50,60"), *out = NULL;

    assert_true(number_at(e, 0) == 10);
    assert_true(number_at(e, 1) == 30);
    assert_true(number_at(e, 2) == 40);
    assert_text(e, 3, "10");
    ch__element_free(e);
    t_assert_error(parse(l, "1,2,3", 5, &out), CH_DATA_LOSS, "3 fields", "field 4");
    ch__csv_layout_free(l);
    ch__csv_schema_free(s);
    (void)state;
}

/* MNIST as CSV: 785 fields in two components. */
static void csv_adjacent_fields_form_a_vector(void **state)
{
    const ch_csv_column c[] = {
        {.name = "pixel0", .dtype = CH_U8, .fields = 784, .missing = "9"},
        {.name = "label", .dtype = CH_I64},
        {.name = "texts", .dtype = CH_STR, .field = 2, .fields = 3}};
    char        header[8000] = "label", line[4000] = "7", mnist[4000];
    ch_element *out = NULL;

    for (int i = 0; i < 784; i++) {
        snprintf(header + strlen(header), 16, ",pixel%d", i);
        snprintf(line + strlen(line), 8, i == 2 ? "," : ",%d", i % 256);
    }
    for (int has_header = 0; has_header < 2; has_header++) {
        ch_csv_column  both[] = {c[1], c[0]};
        ch_csv_schema *s = schema_of(2, both, has_header);
        ch_csv_layout *l = layout_of(s, has_header ? header : NULL);
        ch_element    *e = parsed(l, line);

        assert_int_equal(e->part[1].shape.rank, 1);
        assert_int_equal(e->part[1].shape.dim[0], 784);
        for (int i = 0; i < 784; i++)
            assert_int_equal(((const uint8_t *)e->part[1].data)[i], i == 2 ? 9 : i % 256);
        assert_true(number_at(e, 0) == 7);
        ch__element_free(e);
        ch__csv_layout_free(l);
        ch__csv_schema_free(s);
    }
    ch_csv_schema *s = schema_of(3, c, true);
    ch_csv_layout *l = layout_of(s, header);
    memcpy(mnist, line, sizeof(mnist));
    t_assert_error(parse(l, mnist, strlen(mnist), &out), CH_DATA_LOSS, "field 4", "texts",
                   "missing");
    memcpy(strrchr(mnist, ','), ",x", 3);
    t_assert_error(parse(l, mnist, strlen(mnist), &out), CH_DATA_LOSS, "field 785", "pixel0");
    ch__csv_layout_free(l);
    t_assert_error(ch__csv_layout_new(s, &(ch_str){"label,a,pixel0,b", 16}, &l),
                   CH_INVALID_ARGUMENT, "field 786", "has 4");
    ch__csv_schema_free(s);
    t_assert_error(ch__csv_schema_new(2,
                                      (ch_csv_column[]){{.name = "a", .fields = 1 << 20}, c[0]},
                                      ',', true, &s),
                   CH_INVALID_ARGUMENT, "784 fields", "1048576");
    (void)state;
}

static void csv_columns_may_be_numbered_when_there_is_a_header(void **state)
{
    const ch_csv_column c[] = {{.name = "x", .dtype = CH_I64, .field = 2},
                               {.name = "a", .dtype = CH_I64}};
    ch_csv_schema      *s = schema_of(2, c, true);
    ch_csv_layout      *l = layout_of(s, "a,b,x");
    ch_element         *e = parsed(l, "1,2,3"), *out = NULL;

    assert_true(number_at(e, 0) == 2);
    assert_true(number_at(e, 1) == 1);
    ch__element_free(e);
    t_assert_error(parse(l, "1,2", 3, &out), CH_DATA_LOSS, "2 fields", "has 3");
    t_assert_error(parse(l, "1,2,3,", 6, &out), CH_DATA_LOSS, "4 fields", "has 3");
    t_assert_error(parse(l, "1", 1, &out), CH_DATA_LOSS, "1 field,", "has 3");
    ch__csv_layout_free(l);
    ch__csv_schema_free(s);
    (void)state;
}

static void csv_empty_field_has_the_missing_value_of_its_column(void **state)
{
    const ch_csv_column c[] = {
        {.name = "a", .dtype = CH_F64, .missing = "nan"},
        {.name = "b", .dtype = CH_STR, .missing = "none"},
        {.name = "c", .dtype = CH_U64, .missing = "18446744073709551615"},
        {.name = "d", .dtype = CH_STR, .missing = ""},
        {.name = "e", .dtype = CH_BOOL},
        {.name = "f", .dtype = CH_STR}};
    ch_csv_schema *s = schema_of(6, c, false);
    ch_csv_layout *l = layout_of(s, NULL);
    ch_element    *e = parsed(l, ",\"\",,,1,x"), *out = NULL;
    uint64_t       x;

    assert_true(number_at(e, 0) != number_at(e, 0));
    assert_text(e, 1, "none");
    memcpy(&x, e->part[2].data, sizeof(x));
    assert_true(x == UINT64_MAX);
    assert_text(e, 3, "");
    ch__element_free(e);
    t_assert_error(parse(l, ",,,,,x", 6, &out), CH_DATA_LOSS, "field 5", "\"e\"", "empty");
    t_assert_error(parse(l, ",,,,1,", 6, &out), CH_DATA_LOSS, "field 6", "\"f\"", "empty");
    ch__csv_layout_free(l);
    ch__csv_schema_free(s);
    (void)state;
}

static void csv_error_names_field_column_and_text_of_an_invalid_number(void **state)
{
    const ch_csv_column c[] = {{.name = "n", .dtype = CH_U8, .field = 2}};
    ch_csv_schema      *s = schema_of(1, c, false);
    ch_csv_layout      *l = layout_of(s, NULL);
    ch_element         *e = NULL;

    t_assert_error(parse(l, "x,12a,", 6, &e), CH_DATA_LOSS, "field 2", "\"n\"",
                   "\"12a\" is not a valid u8");
    t_assert_error(parse(l, "x,\"1\"\"2\"", 8, &e), CH_DATA_LOSS,
                   "\"1\\\"\\\"2\" is not a valid u8");
    t_assert_error(parse(l, "x,256", 5, &e), CH_DATA_LOSS, "\"256\" is out of range for u8");
    t_assert_error(parse(l, "x,\"1\"2", 6, &e), CH_DATA_LOSS, "field 2", "quote");
    t_assert_error(parse(l, "x,\"1", 4, &e), CH_DATA_LOSS, "field 2", "quote");
    t_assert_error(parse(l, "x", 1, &e), CH_DATA_LOSS, "1 field,", "field 2");
    t_assert_error(parse(l, "", 0, &e), CH_DATA_LOSS, "1 field,");
    t_assert_error(parse(l, "x,1\0,", 5, &e), CH_DATA_LOSS, "zero byte at offset 3");
    assert_null(e);
    ch__csv_layout_free(l);
    ch__csv_schema_free(s);
    (void)state;
}

static void csv_schema_rejects_invalid_columns(void **state)
{
    const ch_csv_column rows[] = {{.name = "x", .dtype = CH_DTYPE_COUNT},
                                  {.name = "x", .dtype = (ch_dtype)-1},
                                  {.name = "x", .field = -1},
                                  {.name = NULL},
                                  {.name = "x", .dtype = CH_I8, .missing = "128"},
                                  {.name = "x", .dtype = CH_I8, .missing = ""}};
    const ch_csv_column twice[] = {{.name = "x"}, {.name = "x"}};
    ch_csv_schema      *s = NULL;
    int64_t             live = ch__mem_live();

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        t_assert_error(ch__csv_schema_new(1, &rows[i], 0, true, &s), CH_INVALID_ARGUMENT,
                       "csv: column");
    t_assert_error(ch__csv_schema_new(2, twice, 0, true, &s), CH_INVALID_ARGUMENT, "\"x\"",
                   "twice");
    t_assert_error(ch__csv_schema_new(0, twice, 0, true, &s), CH_INVALID_ARGUMENT, "got 0");
    t_assert_error(ch__csv_schema_new(1, twice, '"', true, &s), CH_INVALID_ARGUMENT,
                   "separator");
    t_assert_error(ch__csv_schema_new(1, twice, '\n', true, &s), CH_INVALID_ARGUMENT,
                   "separator");
    assert_null(s);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void csv_schema_spec_has_names_dtypes_and_shapes(void **state)
{
    char                  name[] = "x";
    ch_csv_column         c = {.name = name, .dtype = CH_I16};
    ch_csv_schema        *s = NULL;
    const ch_tensor_spec *spec = NULL;

    assert_int_equal(ch__csv_schema_new(1, &c, '\t', false, &s), CH_OK);
    name[0] = '?';
    assert_int_equal(ch__csv_schema_spec(s, &spec), 1);
    assert_string_equal(spec[0].name, "x");
    assert_int_equal(spec[0].dtype, CH_I16);
    assert_int_equal(spec[0].shape.rank, 0);
    assert_int_equal(ch__csv_schema_separator(s), '\t');
    assert_false(ch__csv_schema_has_header(s));
    ch__csv_schema_free(s);
    ch__csv_schema_free(NULL);
    (void)state;
}

/* ---- every form of the same table ---- */

enum { N_COLUMNS = 70 }; /* too many for the stack */

typedef struct table {
    ch_csv_column column[N_COLUMNS];
    char          name[N_COLUMNS][8];
    char          value[N_COLUMNS][24]; /* the value that is written */
} table;

static void roll_value(dice *d, ch_dtype dtype, char *out)
{
    static const char letters[] = "ab \"\",;\n\r'";
    int               n = 1 + (int)roll(d, 8);

    if (dtype == CH_STR) {
        for (int i = 0; i < n; i++)
            out[i] = letters[roll(d, sizeof(letters) - 1)];
        out[n] = '\0';
    } else if (dtype == CH_I64) {
        snprintf(out, 24, "%lld", (long long)(roll_bits(d) >> roll(d, 64)));
    } else {
        snprintf(out, 24, "%.17g", (double)(int64_t)roll_bits(d) / (double)(1 + roll(d, 1000)));
    }
}

/* Writes a value as a field, in quotes if they are needed, and sometimes if not. */
static size_t write_field(dice *d, const char *value, char separator, char *out)
{
    bool in_quotes =
        strpbrk(value, "\"\n\r") != NULL || strchr(value, separator) || !roll(d, 4);
    size_t n = 0;

    if (in_quotes)
        out[n++] = '"';
    for (; *value != '\0'; value++) {
        if (*value == '"')
            out[n++] = '"';
        out[n++] = *value;
    }
    if (in_quotes)
        out[n++] = '"';
    return n;
}

static size_t write_record(dice *d, const table *t, char separator, char *out)
{
    size_t n = 0;

    for (int i = 0; i < N_COLUMNS; i++) {
        if (i > 0)
            out[n++] = separator;
        n += write_field(d, t->value[i], separator, out + n);
    }
    return n;
}

static void roll_table(dice *d, table *t)
{
    static const ch_dtype dtype[] = {CH_STR, CH_I64, CH_F64};

    for (int i = 0; i < N_COLUMNS; i++) {
        snprintf(t->name[i], sizeof(t->name[i]), "c%d", i);
        t->column[i] = (ch_csv_column){.name = t->name[i], .dtype = dtype[roll(d, 3)]};
        roll_value(d, t->column[i].dtype, t->value[i]);
    }
}

static void assert_is(const ch_element *e, int i, const char *value)
{
    if (e->part[i].dtype == CH_STR) {
        assert_text(e, i, value);
    } else if (e->part[i].dtype == CH_I64) {
        assert_int_equal(*(const int64_t *)e->part[i].data, strtoll(value, NULL, 10));
    } else {
        assert_true(*(const double *)e->part[i].data == strtod(value, NULL));
    }
}

static void csv_reads_random_tables_as_written(void **state)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        dice           d = {seed};
        table          t;
        char           text[N_COLUMNS * 50], separator = seed % 2 ? ';' : ',';
        ch_csv_schema *s = NULL;
        ch_csv_record  record;

        roll_table(&d, &t);
        assert_int_equal(ch__csv_schema_new(N_COLUMNS, t.column, separator, false, &s), CH_OK);
        ch_csv_layout *l = layout_of(s, NULL);
        size_t         n = write_record(&d, &t, separator, text);
        ch_reader     *r = t_reader(text, n);
        ch_element    *e = NULL;
        assert_int_equal(ch__csv_next(r, separator, 1 << 20, &record), CH_OK);
        assert_int_equal(record.size, n);
        assert_int_equal(parse(l, record.data, record.size, &e), CH_OK);
        for (int i = 0; i < N_COLUMNS; i++)
            assert_is(e, i, t.value[i]);
        ch__element_free(e);
        ch__reader_close(r);
        ch__csv_layout_free(l);
        ch__csv_schema_free(s);
    }
    (void)state;
}

static void csv_parse_survives_a_record_cut_or_changed_anywhere(void **state)
{
    dice        d = {11};
    table       t;
    char        text[N_COLUMNS * 50];
    ch_element *e = NULL;
    int64_t     live = ch__mem_live();

    roll_table(&d, &t);
    ch_csv_schema *s = schema_of(N_COLUMNS, t.column, false);
    ch_csv_layout *l = layout_of(s, NULL);
    size_t         n = write_record(&d, &t, ',', text);
    for (size_t i = 0; i < n; i++) {
        char was = text[i];

        if (parse(l, text, i, &e) == CH_OK)
            ch__element_free(e);
        text[i] = "\",\n\0x"[roll(&d, 5)];
        if (parse(l, text, n, &e) == CH_OK)
            ch__element_free(e);
        text[i] = was;
    }
    ch__csv_layout_free(l);
    ch__csv_schema_free(s);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void csv_parse_leaks_nothing_when_out_of_memory(void **state)
{
    dice      d = {12};
    table     t;
    char      text[N_COLUMNS * 50], header[N_COLUMNS * 8];
    size_t    at = 0;
    int64_t   live = ch__mem_live();
    ch_status rc = CH_RESOURCE_EXHAUSTED;

    roll_table(&d, &t);
    t.column[0].missing = t.value[0];
    size_t n = write_record(&d, &t, ',', text);
    for (int i = 0; i < N_COLUMNS; i++)
        at += (size_t)snprintf(header + at, 8, i > 0 ? ",%s" : "%s", t.name[i]);
    for (int k = 1; rc != CH_OK; k++) {
        ch_csv_schema *s = NULL;
        ch_csv_layout *l = NULL;
        ch_element    *e = NULL;

        ch__mem_fail_at(k);
        rc = ch__csv_schema_new(N_COLUMNS, t.column, 0, true, &s);
        if (rc == CH_OK)
            rc = ch__csv_layout_new(s, &(ch_str){header, at}, &l);
        if (rc == CH_OK)
            rc = ch__csv_parse(l, (ch_str){text, n}, &e);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch__element_free(e);
        ch__csv_layout_free(l);
        ch__csv_schema_free(s);
        assert_int_equal(ch__mem_live(), live);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_records_are_read_as_by_python),
        cmocka_unit_test(csv_scan_continues_at_its_position_when_text_grows),
        cmocka_unit_test(csv_records_have_offset_and_number_of_lines),
        cmocka_unit_test(csv_error_names_the_byte_of_an_unclosed_quote),
        cmocka_unit_test(csv_rejects_a_record_of_more_than_max_record_bytes),
        cmocka_unit_test(csv_records_across_blocks_are_whole),
        cmocka_unit_test(csv_columns_are_found_by_name),
        cmocka_unit_test(csv_rejects_a_header_without_the_columns_and_lists_it),
        cmocka_unit_test(csv_columns_without_a_header_are_in_order_or_by_number),
        cmocka_unit_test(csv_adjacent_fields_form_a_vector),
        cmocka_unit_test(csv_columns_may_be_numbered_when_there_is_a_header),
        cmocka_unit_test(csv_empty_field_has_the_missing_value_of_its_column),
        cmocka_unit_test(csv_error_names_field_column_and_text_of_an_invalid_number),
        cmocka_unit_test(csv_schema_rejects_invalid_columns),
        cmocka_unit_test(csv_schema_spec_has_names_dtypes_and_shapes),
        cmocka_unit_test(csv_reads_random_tables_as_written),
        cmocka_unit_test(csv_parse_survives_a_record_cut_or_changed_anywhere),
        cmocka_unit_test(csv_parse_leaks_nothing_when_out_of_memory),
    };
    return cmocka_run_group_tests_name("csv", tests, t_setup, t_folder_remove);
}
