/* data/text.c -- the stages that read text files: lines, csv, libsvm.
 *
 * All are ch_reading stages (data/reading.h). `pull` runs in one thread at a time and finds the
 * end of each record. It adds a raw element: the text of the record in the reader's block,
 * without a copy, with its line number and offset. `make` runs in several threads and parses
 * raw elements with data/format/csv.c or data/format/libsvm.c. The elements of `lines` stay
 * raw.
 *
 * Invariants:
 *   1. r->n is the number of lines read from the open file, so that messages name the line.
 *   2. A raw element references the block of its text and, for csv, the layout of its file.
 *   3. A record above max_record_bytes is skipped in constant memory, in parts of
 *      CH_SKIP_BYTES.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/format/csv.h"
#include "data/format/csv_text.h"
#include "data/format/libsvm.h"
#include "data/format/lines.h"
#include "data/iterator.h"
#include "data/reading.h"

/* The content of a raw element's room. */
typedef struct text_room {
    ch_str  text;         /* data of the part: the record, in the block */
    int64_t line, offset; /* line number from 1 and byte offset of the record in the file */
} text_room;

/* Creates a raw element. `layout` is the layout of a CSV file, or NULL. Returns NULL if memory
 * is exhausted. */
static ch_element *raw_element(ch_reading *r, ch_str text, ch_buffer *layout)
{
    ch_element *e = ch__element_note(1, 2, sizeof(text_room), r->reader->block);
    text_room  *room;

    if (e == NULL)
        return NULL;
    room = e->room;
    *room = (text_room){text, r->n, ch__reader_offset(r->reader) - (r->reader->at - text.data)};
    e->part[0] = (ch_part){.dtype = CH_STR, .data = &room->text};
    e->owner[1] = layout != NULL ? ch__buffer_ref(layout) : NULL;
    return e;
}

static void add_raw(ch_reading *r, ch_data_job *job, ch_str text, ch_buffer *layout)
{
    ch_element *e = raw_element(r, text, layout);

    if (e != NULL)
        ch__data_job_add(job, e);
    else
        ch__data_job_add_error(job, ch__fail_memory(r->base.stage->name));
}

/* Handles the error `rc` of a record: replaces the result `s` by the error. If skip_bad is set
 * and the record is damaged, drops the result and counts it as skipped. */
static void fail_at_line(ch_cursor *c, const Cohort__Read *read, ch_data_job *job,
                         ch_job_result *s, ch_status rc, const text_room *at)
{
    rc = ch__fail_at(rc, "%s, line %lld, byte %lld", job->note != NULL ? job->note : "a file",
                     (long long)at->line, (long long)at->offset);
    if (read == NULL || !read->skip_bad || rc != CH_DATA_LOSS) {
        ch__job_result_fail(s, rc);
        return;
    }
    ch__job_result_drop(s);
    ch__cursor_skipped(c, 1);
}

/* Parses a raw element. *out may be NULL: the record has no element. */
typedef ch_status (*parse_fn)(const ch_cursor *c, const ch_element *raw, ch_element **out);

/* Implements ch_workqueue_ops.make: parses all raw elements of the job. */
static void make_text(ch_cursor *c, const Cohort__Read *read, ch_data_job *job, parse_fn parse)
{
    for (int k = 0; k < job->n; k++) {
        ch_job_result *s = &job->result[k];
        ch_element    *raw = s->element, *e = NULL;
        text_room      room;
        ch_status      rc;

        if (raw == NULL)
            continue;
        room = *(const text_room *)raw->room;
        rc = parse(c, raw, &e);
        s->element = e;
        ch__element_free(raw);
        if (rc != CH_OK)
            fail_at_line(c, read, job, s, rc, &room);
    }
    ch__data_job_close_gaps(job);
}

/* ---- lines ---- */

/* Implements ch_reading.skip: skips a line. `skipping` is 1 inside a line that was skipped in
 * part. */
static ch_status skip_line(ch_reading *r)
{
    bool      has_end = true;
    ch_status rc = ch__line_skip(r->reader, CH_SKIP_BYTES, &has_end);

    r->n += r->skipping == 0;
    r->skipping = !has_end;
    return rc;
}

/* Implements ch_pull_record. */
static bool pull_line(ch_reading *r, const Cohort__Read *read, ch_data_job *job)
{
    ch_str    line;
    ch_status rc = ch__line_next(r->reader, ch__read_max_bytes(read), &line);

    if (ch__reading_is_large(rc))
        return ch__reading_skip_large(r, read, job);
    if (rc != CH_OK)
        ch__reading_damage(r, read, job, rc);
    if (rc != CH_OK || line.data == NULL)
        return false;
    r->n++;
    add_raw(r, job, line, NULL);
    return true;
}

static void lines_pull(ch_cursor *c, ch_data_job *job)
{
    ch__reading_pull(c, CH_ATTRS(c, Cohort__Records)->read, job, pull_line);
}

static ch_status lines_infer(ch_dataset *d)
{
    return ch__reading_infer_strings(d, CH_ATTRS_OF(d, Cohort__Records)->read);
}

static ch_status lines_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {lines_pull, NULL};

    ((ch_reading *)c)->skip = skip_line;
    return ch__reading_open((ch_reading *)c, &ops);
}

const ch_stage ch__stage_lines = {
    .name = "lines",
    .version = 1,
    .traits = CH_READS_FILES,
    .n_in = 1,
    .attrs = &cohort__records__descriptor,
    .cursor_bytes = sizeof(ch_reading),
    .infer = lines_infer,
    .open = lines_open,
    .next = ch__queued_next,
    .rewind = ch__reading_rewind,
    .save = ch__reading_save,
    .load = ch__reading_load,
    .close = ch__reading_close,
};

ch_dataset *ch_dataset_lines(ch_dataset *files, const ch_read_options *opt)
{
    Cohort__Records a = COHORT__RECORDS__INIT;
    Cohort__Read    read;

    ch__read_message(&read, opt);
    a.read = &read;
    return ch__dataset_new(&ch__stage_lines,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &files});
}

/* ---- CSV ---- */

typedef struct csv_cursor {
    ch_reading     reading;
    ch_csv_schema *schema; /* the columns; owned */
    ch_buffer     *layout; /* a layout_buffer, of the open file; referenced; NULL: none */
} csv_cursor;

/* A counted layout: which field each column of a file is. It lives as long as raw elements that
 * are parsed with it, which may outlive the open file. */
typedef struct layout_buffer {
    ch_buffer      base; /* must be first */
    ch_csv_layout *layout;
} layout_buffer;

static void release_layout(ch_buffer *b)
{
    ch__csv_layout_free(((layout_buffer *)b)->layout);
    ch__free(b);
}

static void csv_leave(ch_reading *r)
{
    csv_cursor *x = (csv_cursor *)r;

    if (x->layout != NULL)
        ch__buffer_unref(x->layout);
    x->layout = NULL;
}

/* Implements ch_reading.begin: reads the header of a file and creates the file's layout. */
static ch_status csv_begin(ch_reading *r)
{
    const Cohort__Csv *a = CH_ATTRS(&r->base, Cohort__Csv);
    csv_cursor        *x = (csv_cursor *)r;
    ch_csv_record      head = {0};
    ch_str             text = {"", 0};
    layout_buffer     *b = ch__calloc(1, sizeof(*b));
    ch_status          rc = CH_OK;

    if (b == NULL)
        return ch__fail_memory("csv");
    atomic_init(&b->base.refs, 1);
    b->base.release = release_layout;
    if (!a->no_header)
        rc = ch__csv_next(r->reader, ch__csv_schema_separator(x->schema),
                          ch__read_max_bytes(a->read), &head);
    if (head.data != NULL)
        text = (ch_str){head.data, head.size};
    r->n = head.n_blank + head.n_lines;
    if (rc == CH_OK && !a->no_header && head.data == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: byte %lld: the file ends before the header",
                      ch__reader_path(r->reader), (long long)ch__reader_offset(r->reader));
    if (rc == CH_OK &&
        (rc = ch__csv_layout_new(x->schema, a->no_header ? NULL : &text, &b->layout)) != CH_OK)
        rc = ch__fail_at(rc, "%s", ch__reader_path(r->reader));
    if (rc != CH_OK) {
        ch__free(b);
        return rc;
    }
    x->layout = &b->base;
    return CH_OK;
}

/* Implements ch_reading.skip: skips a record up to the end that its quotes define. Continuing
 * at the next line instead would take quadratic time on a hostile file, in which each line
 * begins a record that is too large. `skipping` is the state of the scan
 * (ch_csv_scan). */
static ch_status skip_csv(ch_reading *r)
{
    ch_csv_scan s = {.separator = ch__csv_schema_separator(((csv_cursor *)r)->schema),
                     .state = r->skipping};
    bool        has_end = true;
    ch_status   rc = ch__csv_skip(r->reader, CH_SKIP_BYTES, &s, &has_end);

    r->n += (int64_t)s.n_lines + (r->skipping == 0);
    r->skipping = has_end ? 0 : s.state;
    return rc;
}

/* Implements ch_pull_record. The line number of a record is that of its first line. */
static bool pull_csv(ch_reading *r, const Cohort__Read *read, ch_data_job *job)
{
    csv_cursor   *x = (csv_cursor *)r;
    ch_csv_record record = {0};
    ch_status     rc = ch__csv_next(r->reader, ch__csv_schema_separator(x->schema),
                                    ch__read_max_bytes(read), &record);

    if (ch__reading_is_large(rc)) {
        r->n += record.n_blank;
        return ch__reading_skip_large(r, read, job);
    }
    if (rc != CH_OK)
        ch__reading_damage(r, read, job, rc);
    if (rc != CH_OK || record.data == NULL)
        return false;
    r->n += record.n_blank + 1;
    add_raw(r, job, (ch_str){record.data, record.size}, x->layout);
    r->n += record.n_lines - 1;
    return true;
}

static void csv_pull(ch_cursor *c, ch_data_job *job)
{
    ch__reading_pull(c, CH_ATTRS(c, Cohort__Csv)->read, job, pull_csv);
}

static ch_status csv_parse(const ch_cursor *c, const ch_element *raw, ch_element **out)
{
    const text_room *room = raw->room;

    (void)c;
    return ch__csv_parse(((const layout_buffer *)raw->owner[1])->layout, room->text, out);
}

static void csv_make(ch_cursor *c, ch_data_job *job)
{
    make_text(c, CH_ATTRS(c, Cohort__Csv)->read, job, csv_parse);
}

/* Creates the schema of the attributes, and checks them. */
static ch_status csv_schema(const ch_dataset *d, ch_csv_schema **out)
{
    const Cohort__Csv *a = CH_ATTRS_OF(d, Cohort__Csv);
    ch_csv_column     *column;
    ch_status          rc = CH_OK;

    if (a->n_columns < 1 || a->n_columns > CH_MAX_PARTS || a->separator > 127)
        return ch__dataset_fail(
            d,
            "%zu columns, want 1 to %d (a column can have several `fields`); "
            "separator %u, want a byte below 128",
            a->n_columns, CH_MAX_PARTS, a->separator);
    column = ch__calloc(a->n_columns, sizeof(*column));
    if (column == NULL)
        return ch__fail_memory("csv");
    for (size_t i = 0; i < a->n_columns && rc == CH_OK; i++) {
        const Cohort__CsvColumn *m = a->columns[i];

        column[i] = (ch_csv_column){.name = m->name[0] != '\0' ? m->name : NULL,
                                    .missing = m->has_missing ? m->missing : NULL,
                                    .field = (int)m->field,
                                    .fields = (int)m->fields};
        if (ch_dtype_parse(m->dtype, &column[i].dtype) != CH_OK)
            rc = ch__dataset_fail(d, "column %zu has the unknown dtype \"%.20s\"", i, m->dtype);
    }
    if (rc == CH_OK)
        rc = ch__csv_schema_new((int)a->n_columns, column, (char)a->separator, !a->no_header,
                                out);
    ch__free(column);
    return rc;
}

static ch_status csv_infer(ch_dataset *d)
{
    ch_csv_schema        *schema = NULL;
    const ch_tensor_spec *spec;
    ch_status             rc = ch__reading_infer(d, CH_ATTRS_OF(d, Cohort__Csv)->read);
    int                   n;

    if (rc == CH_OK)
        rc = csv_schema(d, &schema);
    if (rc != CH_OK)
        return rc;
    n = ch__csv_schema_spec(schema, &spec);
    rc = ch__dataset_set_parts(d, n, spec);
    ch__csv_schema_free(schema);
    return rc;
}

static ch_status csv_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {csv_pull, csv_make};
    csv_cursor                   *x = (csv_cursor *)c;
    ch_status                     rc = csv_schema(c->dataset, &x->schema);

    x->reading.begin = csv_begin;
    x->reading.leave = csv_leave;
    x->reading.skip = skip_csv;
    return rc == CH_OK ? ch__reading_open(&x->reading, &ops) : rc;
}

static void csv_close(ch_cursor *c)
{
    ch__reading_close(c);
    ch__csv_schema_free(((csv_cursor *)c)->schema);
}

const ch_stage ch__stage_csv = {
    .name = "csv",
    .version = 1,
    .traits = CH_READS_FILES,
    .n_in = 1,
    .attrs = &cohort__csv__descriptor,
    .cursor_bytes = sizeof(csv_cursor),
    .infer = csv_infer,
    .open = csv_open,
    .next = ch__queued_next,
    .rewind = ch__reading_rewind,
    .save = ch__reading_save,
    .load = ch__reading_load,
    .close = csv_close,
};

static ch_status column_message(ch_arena *a, const ch_csv_column *column,
                                Cohort__CsvColumn **out)
{
    Cohort__CsvColumn *m = ch__arena_alloc(a, sizeof(*m));

    if (m == NULL)
        return ch__fail_memory("csv");
    cohort__csv_column__init(m);
    m->dtype = ch__arena_strdup(a, ch_dtype_name(column->dtype));
    m->field = (uint32_t)column->field;
    m->fields = (uint32_t)column->fields;
    m->has_missing = column->missing != NULL;
    if (column->name != NULL)
        m->name = ch__arena_strdup(a, column->name);
    if (column->missing != NULL)
        m->missing = ch__arena_strdup(a, column->missing);
    *out = m;
    return m->dtype == NULL || m->name == NULL || m->missing == NULL ? ch__fail_memory("csv")
                                                                     : CH_OK;
}

ch_dataset *ch_dataset_csv(ch_dataset *files, int n, const ch_csv_column *column,
                           const ch_csv_options *opt)
{
    Cohort__Csv  a = COHORT__CSV__INIT;
    Cohort__Read read;
    ch_arena     arena = {0};
    bool         fits = n >= 0 && n <= CH_MAX_PARTS && (n == 0 || column != NULL);
    ch_status    rc = CH_OK;

    ch__read_message(&read, opt != NULL ? &opt->read : NULL);
    a.read = &read;
    a.no_header = opt != NULL && opt->no_header;
    a.separator = opt != NULL ? (uint32_t)(unsigned char)opt->separator : 0;
    a.columns = ch__arena_alloc(&arena, ((size_t)(fits ? n : 0) + 1) * sizeof(*a.columns));
    if (!fits)
        rc = ch__fail(CH_INVALID_ARGUMENT, "csv: columns%s (got %d, want 1 to %d)",
                      n > 0 && column == NULL ? ": the list is NULL" : ": wrong number", n,
                      CH_MAX_PARTS);
    else if (a.columns == NULL)
        rc = ch__fail_memory("csv");
    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = column_message(&arena, &column[i], &a.columns[i]);
        a.n_columns++;
    }
    files = ch__dataset_new(
        &ch__stage_csv,
        &(ch_dataset_make){.rc = rc, .attrs = &a.base, .n_in = 1, .in = &files});
    ch__arena_drop(&arena);
    return files;
}

/* ---- LibSVM ---- */

static ch_libsvm libsvm_of(const Cohort__LibSvm *a)
{
    return (ch_libsvm){a->n_features, a->from_zero != 0, a->sparse != 0};
}

static ch_status libsvm_infer(ch_dataset *d)
{
    const Cohort__LibSvm *a = CH_ATTRS_OF(d, Cohort__LibSvm);
    ch_libsvm             o = libsvm_of(a);
    ch_tensor_spec        spec[3];
    ch_status             rc = ch__reading_infer(d, a->read);

    if (rc == CH_OK)
        rc = ch__libsvm_check(&o);
    return rc == CH_OK ? ch__dataset_set_parts(d, ch__libsvm_spec(&o, spec), spec) : rc;
}

static void libsvm_pull(ch_cursor *c, ch_data_job *job)
{
    ch__reading_pull(c, CH_ATTRS(c, Cohort__LibSvm)->read, job, pull_line);
}

/* Implements parse_fn. A line that is empty or a comment has no element. */
static ch_status libsvm_parse(const ch_cursor *c, const ch_element *raw, ch_element **out)
{
    const text_room *room = raw->room;
    ch_libsvm        o = libsvm_of(CH_ATTRS(c, Cohort__LibSvm));

    return ch__libsvm_parse(&o, room->text, out);
}

static void libsvm_make(ch_cursor *c, ch_data_job *job)
{
    make_text(c, CH_ATTRS(c, Cohort__LibSvm)->read, job, libsvm_parse);
}

static ch_status libsvm_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {libsvm_pull, libsvm_make};

    ((ch_reading *)c)->skip = skip_line;
    return ch__reading_open((ch_reading *)c, &ops);
}

const ch_stage ch__stage_libsvm = {
    .name = "libsvm",
    .version = 1,
    .traits = CH_READS_FILES,
    .n_in = 1,
    .attrs = &cohort__lib_svm__descriptor,
    .cursor_bytes = sizeof(ch_reading),
    .infer = libsvm_infer,
    .open = libsvm_open,
    .next = ch__queued_next,
    .rewind = ch__reading_rewind,
    .save = ch__reading_save,
    .load = ch__reading_load,
    .close = ch__reading_close,
};

ch_dataset *ch_dataset_libsvm(ch_dataset *files, int64_t n_features,
                              const ch_libsvm_options *opt)
{
    Cohort__LibSvm a = COHORT__LIB_SVM__INIT;
    Cohort__Read   read;

    ch__read_message(&read, opt != NULL ? &opt->read : NULL);
    a.read = &read;
    a.n_features = n_features;
    a.from_zero = opt != NULL && opt->from_zero;
    a.sparse = opt != NULL && opt->sparse;
    return ch__dataset_new(&ch__stage_libsvm,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &files});
}
