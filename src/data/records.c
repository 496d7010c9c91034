/* data/records.c -- the stages tfrecord and fixed_records: records of files as string scalars.
 *
 * Both are ch_reading stages (data/reading.h). `pull` reads the records; there is no `make`. A
 * record is not copied: the element points into the block that the file was read into, and
 * holds a reference to the block.
 *
 * The checksum of a record is computed in `pull`, by the thread that read the record and still
 * has it in its cache. This takes a tenth of the time of the read. In another thread, or later,
 * it would take as long as the read itself.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/record.h"

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/reading.h"

static ch_status tfrecord_infer(ch_dataset *d)
{
    return ch__reading_infer_strings(d, CH_ATTRS_OF(d, Cohort__Records)->read);
}

/* The content of an element's room. */
typedef struct record_room {
    ch_str    text;   /* data of the part: the record, in the block */
    ch_origin origin; /* file and offset of the record, for messages */
} record_room;

/* Creates an element that points to the record in the block. Returns NULL if memory is
 * exhausted. */
static ch_element *element_of(const ch_record *x, ch_buffer *block)
{
    ch_element  *e = ch__element_note(1, 1, sizeof(record_room), block);
    record_room *room;

    if (e == NULL)
        return NULL;
    room = e->room;
    *room = (record_room){{x->data, x->size}, {ch__block_name(block), x->offset}};
    e->origin = &room->origin;
    e->part[0] = (ch_part){.dtype = CH_STR, .data = &room->text};
    return e;
}

/* Implements ch_reading.skip. */
static ch_status skip_record(ch_reading *r)
{
    int64_t skipped;

    r->n++;
    r->skipping = 0; /* the record header has the size, so the whole record is skipped */
    return ch__record_skip(r->reader, 1, &skipped);
}

static void add_record(ch_reading *r, const ch_record *x, ch_data_job *job)
{
    ch_element *e = element_of(x, r->reader->block);

    if (e != NULL)
        ch__data_job_add(job, e);
    else
        ch__data_job_add_error(job, ch__fail_memory(r->base.stage->name));
    r->n++;
}

/* Implements ch_pull_record. */
static bool pull_record(ch_reading *r, const Cohort__Read *read, ch_data_job *job)
{
    ch_record x;
    ch_status rc = ch__record_next(r->reader, ch__read_max_bytes(read), &x);

    if (ch__reading_is_large(rc))
        return ch__reading_skip_large(r, read, job);
    if (rc != CH_OK)
        ch__reading_damage(r, read, job, rc);
    if (rc != CH_OK || x.data == NULL)
        return false;
    rc = ch__record_check(&x, ch__reader_path(r->reader));
    if (rc == CH_OK) {
        add_record(r, &x, job);
    } else {
        (void)ch__reading_leave_out(r, read, job, rc);
        r->n++;
    }
    return true;
}

static void tfrecord_pull(ch_cursor *c, ch_data_job *job)
{
    ch__reading_pull(c, CH_ATTRS(c, Cohort__Records)->read, job, pull_record);
}

static ch_status tfrecord_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {tfrecord_pull, NULL};

    ((ch_reading *)c)->skip = skip_record;
    return ch__reading_open((ch_reading *)c, &ops);
}

const ch_stage ch__stage_tfrecord = {
    .name = "tfrecord",
    .version = 1,
    .traits = CH_READS_FILES,
    .n_in = 1,
    .attrs = &cohort__records__descriptor,
    .cursor_bytes = sizeof(ch_reading),
    .infer = tfrecord_infer,
    .open = tfrecord_open,
    .next = ch__queued_next,
    .rewind = ch__reading_rewind,
    .save = ch__reading_save,
    .load = ch__reading_load,
    .close = ch__reading_close,
};

ch_dataset *ch_dataset_tfrecord(ch_dataset *files, const ch_read_options *opt)
{
    Cohort__Records a;
    Cohort__Read    read;

    cohort__records__init(&a);
    ch__read_message(&read, opt);
    a.read = &read;
    return ch__dataset_new(&ch__stage_tfrecord,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &files});
}

/* ---- records of one size ---- */

static ch_status fixed_infer(ch_dataset *d)
{
    const Cohort__FixedRecords *a = CH_ATTRS_OF(d, Cohort__FixedRecords);

    if (a->bytes < 1 || a->bytes > ch__read_max_bytes(a->read) || a->header < 0 ||
        a->footer < 0 || a->footer > ch__read_max_bytes(a->read))
        return ch__dataset_fail(
            d,
            "record, header or footer size is out of range (got %lld, %lld, %lld "
            "bytes); want a record of 1 to max_record_bytes",
            (long long)a->bytes, (long long)a->header, (long long)a->footer);
    return ch__reading_infer_strings(d, a->read);
}

/* Skips the header of a file. */
static ch_status fixed_begin(ch_reading *r)
{
    int64_t   header = CH_ATTRS(&r->base, Cohort__FixedRecords)->header, skipped = 0;
    ch_status rc = ch__reader_skip(r->reader, header, &skipped);

    if (rc == CH_OK && skipped < header)
        rc = ch__fail(CH_DATA_LOSS,
                      "%s: the file ends at byte %lld, inside its header of %lld bytes",
                      ch__reader_path(r->reader), (long long)skipped, (long long)header);
    return rc;
}

/* Implements ch_pull_record. The file must end with a footer behind the last record. */
static bool pull_fixed(ch_reading *r, const Cohort__Read *read, ch_data_job *job)
{
    const Cohort__FixedRecords *a = CH_ATTRS(&r->base, Cohort__FixedRecords);
    size_t                      size = (size_t)a->bytes, footer = (size_t)a->footer;
    ch_status                   rc = ch__reader_want(r->reader, size + footer);

    if (rc == CH_OK && r->reader->left < size + footer) {
        if (r->reader->left != footer)
            rc = ch__fail(
                CH_DATA_LOSS,
                "%s, byte %lld: %zu bytes are left; a record needs %zu and the footer %zu",
                ch__reader_path(r->reader), (long long)ch__reader_offset(r->reader),
                r->reader->left, size, footer);
        if (rc == CH_OK)
            return false;
    }
    if (rc == CH_OK) {
        ch_record x = {
            .data = r->reader->at, .size = size, .offset = ch__reader_offset(r->reader)};
        add_record(r, &x, job);
        ch__reader_borrow(r->reader, size);
    }
    if (rc != CH_OK)
        ch__reading_damage(r, read, job, rc);
    return rc == CH_OK;
}

static void fixed_pull(ch_cursor *c, ch_data_job *job)
{
    ch__reading_pull(c, CH_ATTRS(c, Cohort__FixedRecords)->read, job, pull_fixed);
}

static ch_status fixed_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {fixed_pull, NULL};

    ((ch_reading *)c)->begin = fixed_begin;
    return ch__reading_open((ch_reading *)c, &ops);
}

const ch_stage ch__stage_fixed_records = {
    .name = "fixed_records",
    .version = 1,
    .traits = CH_READS_FILES,
    .n_in = 1,
    .attrs = &cohort__fixed_records__descriptor,
    .cursor_bytes = sizeof(ch_reading),
    .infer = fixed_infer,
    .open = fixed_open,
    .next = ch__queued_next,
    .rewind = ch__reading_rewind,
    .save = ch__reading_save,
    .load = ch__reading_load,
    .close = ch__reading_close,
};

ch_dataset *ch_dataset_fixed_records(ch_dataset *files, int64_t bytes, int64_t header,
                                     int64_t footer, const ch_read_options *opt)
{
    Cohort__FixedRecords a = COHORT__FIXED_RECORDS__INIT;
    Cohort__Read         read;

    ch__read_message(&read, opt);
    a.read = &read;
    a.bytes = bytes;
    a.header = header;
    a.footer = footer;
    return ch__dataset_new(&ch__stage_fixed_records,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &files});
}
