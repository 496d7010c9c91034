/* fuzz/csv.c -- the CSV parser, with arbitrary text.
 *
 * The first byte selects the options: header, separator, and the number of bytes of each read.
 * The records are compared with those of a model, which is a simple reader of the whole text
 * (struct naive). Numbers are compared with those of the C library.
 *
 * covers: src/data/format/csv.c src/data/format/csv_text.c src/data/format/number.c src/data/format/decimal.c
 * longest: 250
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/sys.h"
#include "data/format/csv.h"
#include "data/format/csv_text.h"
#include "data/format/number.h"
#include "element.h"
#include "tokens.h"

enum { N_COLUMNS = 5, MOST_BYTES = 1500 };

static const ch_csv_column column[N_COLUMNS] = {
    {.name = "a", .dtype = CH_F64, .missing = "nan"},
    {.name = "b", .dtype = CH_STR, .missing = "none"},
    {.name = "c", .dtype = CH_I32},
    {.name = "d", .dtype = CH_STR},
    {.name = "e", .dtype = CH_BOOL, .missing = "1", .field = 6}};
static const char separators[] = {',', ';', '\t', 'a'};

static ch_csv_schema *schema[2][sizeof(separators)]; /* without and with a header */
static ch_block_pool *pool;
static int            file; /* descriptor of a file in memory */
static char           path[64];

static ch_reader *open_text(const char *text, size_t size)
{
    ch_reader *r = NULL;

    MUST(ftruncate(file, 0) == 0);
    MUST(pwrite(file, text, size, 0) == (ssize_t)size);
    MUST(ch__reader_open(path, NULL, pool, &r) == CH_OK);
    return r;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof(separators); i++)
            MUST(ch__csv_schema_new(N_COLUMNS, column, separators[i], k, &schema[k][i]) ==
                 CH_OK);
    MUST(ch__block_pool_new(&pool) == CH_OK);
    file = memfd_create("text", 0);
    MUST(file >= 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    ch__reader_close(open_text("", 0)); /* the pool allocates its block */
    (void)argc, (void)argv;
    return 0;
}

/* ---- the model ---- */

typedef struct naive {
    char        separator;
    const char *text;
    size_t      size, at;
    char       *field; /* contents of the record's fields, without separators and quotes */
    size_t      n_bytes, end[5000];
    int         n_fields;
} naive;

static char peek(const naive *m, size_t ahead)
{
    return m->at + ahead < m->size ? m->text[m->at + ahead] : '\n';
}

static bool is_line_end(const naive *m)
{
    return peek(m, 0) == '\n' ||
           (peek(m, 0) == '\r' && m->at + 1 < m->size && peek(m, 1) == '\n');
}

static void keep_byte(naive *m)
{
    m->field[m->n_bytes++] = m->text[m->at++];
}

/* Reads a quoted field. Returns false if the quote is not closed, or text follows it. */
static bool naive_quoted(naive *m)
{
    for (m->at++; m->at < m->size; keep_byte(m)) {
        if (m->text[m->at] != '"')
            continue;
        m->at++;
        if (m->at >= m->size || m->text[m->at] != '"')
            return m->at >= m->size || m->text[m->at] == m->separator || is_line_end(m);
    }
    return false;
}

/* Reads a record. Sets *there to false at the end. Returns false if a quote is wrong. */
static bool naive_next(naive *m, bool *there)
{
    while (m->at < m->size && is_line_end(m))
        m->at += 1 + (m->text[m->at] == '\r');
    *there = m->at < m->size;
    m->n_fields = 0;
    m->n_bytes = 0;
    while (*there) {
        if (m->at < m->size && m->text[m->at] == '"') {
            if (!naive_quoted(m))
                return false;
        } else {
            while (m->at < m->size && m->text[m->at] != m->separator && !is_line_end(m))
                keep_byte(m);
        }
        m->end[m->n_fields++] = m->n_bytes;
        if (m->at >= m->size || m->text[m->at] != m->separator)
            return true;
        m->at++;
    }
    return true;
}

/* Checks that the fields are equal to those of the model. Returns false if a quote is wrong. */
static bool check_fields(const naive *m, bool is_good, const ch_csv_record *record)
{
    const char  *at = record->data, *end = at + record->size;
    size_t       from = 0;
    int          i = 0;
    ch_csv_field f;

    for (;; at++, i++) {
        char text[5000];

        at = ch__csv_field(m->separator, at, end, &f);
        if (at == NULL) {
            MUST(!is_good);
            return false;
        }
        MUST(!is_good || i < m->n_fields);
        if (is_good) {
            size_t n = ch__csv_unquote(&f, text);

            MUST(n == m->end[i] - from && memcmp(text, m->field + from, n) == 0);
            from = m->end[i];
        }
        if (at == end)
            break;
    }
    MUST(is_good && i + 1 == m->n_fields);
    return true;
}

/* ---- numbers ---- */

/* Parses the number in every type and compares it with the result of strtod. */
static void check_integers(ch_str s, const char *text)
{
    for (int t = 0; t < CH_DTYPE_COUNT; t++) {
        char   x[8];
        double want;

        if (t == CH_STR || ch__number_parse((ch_dtype)t, s, x) != CH_PARSED)
            continue;
        want = strtod(text, NULL);
        if (ch_dtype_is_int((ch_dtype)t))
            MUST(ch__load((ch_dtype)t, x) == want);
    }
}

static void check_number(ch_str s)
{
    char   text[5000];
    double x = 0;
    float  y = 0;

    if (s.size >= sizeof(text))
        return;
    memcpy(text, s.data, s.size);
    text[s.size] = '\0';
    check_integers(s, text);
    if (ch__number_parse(CH_F64, s, &x) != CH_PARSED)
        return;
    double want = strtod(text, NULL);
    float  want_y = strtof(text, NULL);
    MUST(isnan(x) ? isnan(want) : fuzz_same_bits(&x, &want, sizeof(x)));
    MUST(ch__number_parse(CH_F32, s, &y) == CH_PARSED);
    MUST(isnan(y) ? isnan(want_y) : fuzz_same_bits(&y, &want_y, sizeof(y)));
}

static void check_numbers(const naive *m)
{
    size_t from = 0;

    for (int i = 0; i < m->n_fields; from = m->end[i++])
        check_number((ch_str){m->field + from, m->end[i] - from});
}

/* ---- records ---- */

static void parse_record(const ch_csv_schema *s, const ch_csv_layout *l,
                         const ch_csv_record *record)
{
    const ch_tensor_spec *spec;
    char                 *alone = fuzz_alone(record->data, record->size);
    ch_element           *e = NULL;
    ch_status             rc = ch__csv_parse(l, (ch_str){alone, record->size}, &e);

    free(alone);
    MUST(rc == CH_OK || rc == CH_DATA_LOSS || rc == CH_RESOURCE_EXHAUSTED);
    MUST((e != NULL) == (rc == CH_OK));
    if (rc == CH_OK)
        fuzz_check_element(e, ch__csv_schema_spec(s, &spec), spec);
    ch__element_free(e);
}

/* Returns the layout for a header; NULL if the header is invalid. */
static ch_csv_layout *make_layout(const ch_csv_schema *s, const ch_csv_record *header)
{
    ch_csv_layout *l = NULL;
    ch_str         text = {NULL, 0};
    ch_status      rc;

    if (header != NULL)
        text = (ch_str){header->data, header->size};
    rc = ch__csv_layout_new(s, header != NULL ? &text : NULL, &l);
    MUST((l != NULL) == (rc == CH_OK));
    return l;
}

/* Reads the text as a pipeline does. */
static void check_parse(const ch_csv_schema *s, ch_reader *r)
{
    ch_csv_layout *l = NULL;
    ch_csv_record  record;

    if (!ch__csv_schema_has_header(s))
        l = make_layout(s, NULL);
    while (ch__csv_next(r, ch__csv_schema_separator(s), MOST_BYTES, &record) == CH_OK &&
           record.data != NULL) {
        if (l != NULL)
            parse_record(s, l, &record);
        else if (ch__csv_schema_has_header(s) && (l = make_layout(s, &record)) == NULL)
            break;
    }
    ch__csv_layout_free(l);
}

/* Compares the records with those of the model, up to the first error. */
static void check_model(char separator, ch_reader *r, const char *text, size_t size)
{
    naive         m = {.separator = separator, .text = text, .size = size};
    ch_csv_record record;

    m.field = malloc(size + 1);
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        m.at = 3;
    for (;;) {
        bool      there, is_good = naive_next(&m, &there);
        ch_status rc = ch__csv_next(r, separator, MOST_BYTES, &record);

        if (rc != CH_OK) {
            MUST(rc == CH_RESOURCE_EXHAUSTED || (rc == CH_DATA_LOSS && !is_good));
            break;
        }
        MUST((record.data != NULL) == there);
        if (!there || !check_fields(&m, is_good, &record))
            break;
        check_numbers(&m);
    }
    free(m.field);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t  live = ch__mem_live();
    unsigned h = fuzz_hash(data, size);

    if (size == 0 || size > 4096)
        return 0;
    const ch_csv_schema *s = schema[data[0] & 1][data[0] >> 1 & 3];
    const char          *text = (const char *)data + 1;
    ch_reader           *r = open_text(text, size - 1);

    ch__file_limit_io(h % 4 == 1 ? data[0] >> 3 & 7 : 0);
    check_model(ch__csv_schema_separator(s), r, text, size - 1);
    MUST(ch__reader_seek(r, 0) == CH_OK);
    if (h % 8 == 0)
        ch__mem_fail_at(1 + h / 8 % 8);
    check_parse(s, r);
    ch__mem_fail_at(0);
    ch__file_limit_io(0);
    ch__reader_close(r);
    MUST(ch__mem_live() == live);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static const char *const token[] = {",",
                                        ",",
                                        ";",
                                        "\t",
                                        "\"",
                                        "\"\"",
                                        "\",",
                                        ",\"",
                                        "\n",
                                        "\r\n",
                                        "\r",
                                        "1",
                                        "-1",
                                        "0.5",
                                        "e9",
                                        "E-320",
                                        "true",
                                        "inf",
                                        "NaN",
                                        " ",
                                        ".",
                                        "+",
                                        "00000000000000000000",
                                        "2147483648",
                                        "9007199254740993",
                                        "123456789012345678901234567890",
                                        "a,b,c,d,e,f\n",
                                        "\"a\",d,x,b,c,\n",
                                        "1,x,2,0,z,1\n",
                                        ",,7,y,,\n",
                                        "\xef\xbb\xbf",
                                        "1.00000005960464477539062",
                                        "4.9406564584124654e-324",
                                        NULL};
    dice                     d = {seed};
    size_t                   n = fuzz_mutate_text(&d, data, size, max_size, 1, token);

    return n > 0 ? n : LLVMFuzzerMutate(data, size, max_size);
}
