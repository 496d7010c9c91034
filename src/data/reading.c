/* data/reading.c -- common code of the stages that read files, one file after the other.
 *
 * A ch_reading (data/reading.h) is the base of the cursors of data/records.c, data/text.c and
 * data/arrays.c. It opens the files that the input names, and handles damaged and oversized
 * records, the position in a file, and the workqueue.
 *
 * Invariants:
 *   1. The open file and `n`, `name`, `skipping` change only in `pull`, which one thread at a
 *      time runs, or while the workqueue is paused.
 *   2. No record is lost without an error, unless skip_bad is set. Then it is counted
 *      (ch__cursor_skipped).
 *   3. skip_bad skips only damaged data (DATA_LOSS) and records above a size limit. All other
 *      errors are returned, for example if memory is exhausted, a file is missing or a read
 *      fails.
 *   4. The position is the open file, its size and a byte offset. A file that has another size
 *      when it is restored is an error.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/reading.h"

#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/iterator.h"

enum { RECORD_BYTES = 64 << 20 /* default of max_record_bytes */ };

void ch__read_message(Cohort__Read *m, const ch_read_options *opt)
{
    cohort__read__init(m);
    if (opt == NULL)
        return;
    m->compression = (uint32_t)opt->compression;
    m->skip_bad = opt->skip_bad;
    m->max_record_bytes = opt->max_record_bytes;
    m->max_expansion = opt->max_expansion;
}

int64_t ch__read_max_bytes(const Cohort__Read *read)
{
    return read != NULL && read->max_record_bytes > 0 ? read->max_record_bytes : RECORD_BYTES;
}

bool ch__gives_names(const ch_dataset *d)
{
    return d->n_parts == 1 && d->spec[0].dtype == CH_STR && d->spec[0].shape.rank <= 1;
}

ch_status ch__reading_infer(const ch_dataset *d, const Cohort__Read *read)
{
    if (!ch__gives_names(d->in[0]))
        return ch__dataset_fail(d, "its input must give file names: string scalars or string "
                                   "vectors");
    if (read == NULL)
        return CH_OK;
    if (read->compression > CH_ZSTD)
        return ch__dataset_fail(d, "compression %u is unknown", read->compression);
    if (read->max_record_bytes < 0)
        return ch__dataset_fail(d, "max_record_bytes is %lld, want 0 or more",
                                (long long)read->max_record_bytes);
    if (read->max_expansion < 0)
        return ch__dataset_fail(d, "max_expansion is %d, want 0 or more", read->max_expansion);
    return CH_OK;
}

ch_status ch__reading_infer_strings(ch_dataset *d, const Cohort__Read *read)
{
    ch_status rc = ch__reading_infer(d, read);

    d->skips_bad = read != NULL && read->skip_bad;
    return rc == CH_OK ? ch__dataset_set_parts(d, 1, &(ch_tensor_spec){.dtype = CH_STR}) : rc;
}

/* ---- files ---- */

/* Reads input elements until `names` has a name that was not opened yet. r->names stays NULL if
 * the input has ended. */
static ch_status next_names(ch_reading *r)
{
    while (r->names == NULL || r->name >= ch_shape_count(r->names->part[0].shape)) {
        ch_status rc;

        ch__element_free(r->names);
        r->names = NULL;
        r->name = 0;
        rc = ch__cursor_next(r->base.in[0], &r->names);
        if (rc != CH_OK || r->names == NULL)
            return rc;
    }
    return CH_OK;
}

/* Opens the file r->name of r->names. */
static ch_status open_named(ch_reading *r, const Cohort__Read *read)
{
    ch_str          s = ((const ch_str *)r->names->part[0].data)[r->name];
    ch_load_options opt = {0};
    char           *path = ch__malloc(s.size + 1);
    ch_status       rc;

    if (path == NULL)
        return ch__fail_memory(r->base.stage->name);
    memcpy(path, s.data, s.size);
    path[s.size] = '\0';
    if (read != NULL) {
        opt.compression = (ch_compression)read->compression;
        opt.max_expansion = read->max_expansion;
    }
    if (strlen(path) != s.size)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "%s: a file name that begins with \"%.100s\" contains a NUL byte",
                      r->base.stage->name, path);
    else {
        ch__iterator_set_file(r->base.it, path);
        rc = ch__reader_open(path, &opt, r->pool, &r->reader);
    }
    if (rc == CH_OK)
        ch__reader_set_stop(r->reader, &r->base.it->stops);
    ch__free(path);
    return rc;
}

ch_status ch__reading_file(ch_reading *r, const Cohort__Read *read)
{
    ch_status rc;

    if (r->reader != NULL)
        return CH_OK;
    rc = next_names(r);
    if (rc != CH_OK || r->names == NULL)
        return rc;
    r->n = 0;
    rc = open_named(r, read);
    if (rc == CH_OK && r->begin != NULL)
        rc = r->begin(r);
    if (rc != CH_OK)
        ch__reading_close_file(r);
    return rc;
}

/* Frees the reader and the stage's data of the file. */
static void drop_file(ch_reading *r)
{
    if (r->leave != NULL)
        r->leave(r);
    ch__reader_close(r->reader);
    r->reader = NULL;
    r->skipping = 0;
}

void ch__reading_close_file(ch_reading *r)
{
    drop_file(r);
    r->name++;
}

bool ch__reading_is_large(ch_status rc)
{
    return rc == CH_RESOURCE_EXHAUSTED && ch__failed_at_limit();
}

/* Returns true if skip_bad is set and the error means damaged data. A failed system call is
 * DATA_LOSS too (EIO), but the data may be undamaged. */
static bool skips_damage(const Cohort__Read *read, ch_status rc)
{
    return read != NULL && read->skip_bad && rc == CH_DATA_LOSS && !ch__failed_at_io();
}

bool ch__reading_leave_out(ch_reading *r, const Cohort__Read *read, ch_data_job *job,
                           ch_status rc)
{
    bool skips_large = read != NULL && read->skip_bad && ch__reading_is_large(rc);

    if (r->names == NULL || (!skips_damage(read, rc) && !skips_large)) {
        ch__data_job_add_error(job, rc);
        return false;
    }
    ch__cursor_skipped(&r->base, 1);
    return true;
}

void ch__reading_damage(ch_reading *r, const Cohort__Read *read, ch_data_job *job, ch_status rc)
{
    if (ch__reading_leave_out(r, read, job, rc))
        ch__log(CH_LOG_WARNING, "skipped-records", "%s; the rest of the file is skipped",
                ch_error_message());
}

/* If the record's end cannot be found, because the file is damaged there, both problems are
 * reported as one error. Another error, for example exhausted memory or a failed read, is
 * reported alone. */
bool ch__reading_skip_large(ch_reading *r, const Cohort__Read *read, ch_data_job *job)
{
    ch_fault  why;
    ch_status rc;

    ch__fault_clear(&why);
    ch__fault_record(&why, CH_RESOURCE_EXHAUSTED, -1, NULL);
    rc = r->skip(r);
    if (rc == CH_OK) {
        (void)ch__reading_leave_out(r, read, job, ch__fault_raise(&why));
        return true;
    }
    if (rc == CH_DATA_LOSS && !ch__failed_at_io())
        rc = ch__fail_limit("%s; the end of the record cannot be found: %s", why.text,
                            ch_error_message());
    ch__reading_damage(r, read, job, rc);
    return false;
}

/* Continues to skip a record that was reported or counted by an earlier pull. Returns false if
 * the rest of the file cannot be read. */
static bool skip_rest(ch_reading *r, const Cohort__Read *read, ch_data_job *job)
{
    ch_status rc = r->skip(r);

    if (skips_damage(read, rc))
        ch__log(CH_LOG_WARNING, "skipped-records", "%s; the rest of the file is skipped",
                ch_error_message());
    else if (rc != CH_OK)
        ch__data_job_add_error(job, ch__fail_at(rc, "skipping a record that is too large"));
    return rc == CH_OK;
}

void ch__reading_pull(ch_cursor *c, const Cohort__Read *read, ch_data_job *job,
                      ch_pull_record pull)
{
    ch_reading *r = (ch_reading *)c;
    ch_status   rc = ch__reading_file(r, read);
    bool        has_more = true;

    if (rc != CH_OK)
        ch__reading_damage(r, read, job, rc);
    else if (r->reader == NULL)
        job->has_end = true;
    if (rc != CH_OK || r->reader == NULL)
        return;
    ch__data_job_note(job, ch__reader_path(r->reader));
    if (r->skipping != 0)
        has_more = skip_rest(r, read, job);
    /* Skipped records count too, so that a pull over a damaged file does not take long. */
    for (int k = 0; k < job->want && has_more && r->skipping == 0; k++)
        has_more = pull(r, read, job);
    if (!has_more)
        ch__reading_close_file(r);
}

/* ---- the stage ---- */

ch_status ch__reading_open(ch_reading *r, const ch_workqueue_ops *ops)
{
    ch_status rc = ch__block_pool_new(&r->pool);

    if (rc != CH_OK)
        return rc;
    ch__block_pool_reserve_notes(r->pool, CH_BLOCK_BYTES / 4);
    return ch__workqueue_open(&r->base, ops, &(ch_workqueue_options){.want = 0});
}

/* Closes the file and drops the names. */
static void forget(ch_reading *r)
{
    drop_file(r);
    ch__element_free(r->names);
    r->names = NULL;
    r->name = 0;
}

ch_status ch__reading_rewind(ch_cursor *c)
{
    ch_reading *r = (ch_reading *)c;
    ch_status   rc;

    ch__workqueue_pause(c->workqueue);
    ch__workqueue_clear(c->workqueue);
    forget(r);
    rc = ch__rewind_inputs(c);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

void ch__reading_save(ch_cursor *c, ch_saver *s)
{
    ch_reading *r = (ch_reading *)c;

    ch__workqueue_pause(c->workqueue);
    ch__save_int(s, r->names != NULL);
    if (r->names != NULL)
        ch__save_element(s, r->names);
    ch__save_int(s, r->name);
    ch__save_int(s, r->n);
    ch__save_int(s, r->reader != NULL ? ch__reader_offset(r->reader) : -1);
    ch__save_int(s, r->reader != NULL ? ch__reader_file_bytes(r->reader) : -1);
    ch__save_int(s, r->skipping);
    ch__save_int(s, c->n_skipped);
    ch__workqueue_save(c->workqueue, s);
    ch__save_inputs(c, s);
    ch__workqueue_resume(c->workqueue);
}

/* Returns FAILED_PRECONDITION if the size of the file is not `had`. The saved offset may then
 * be in the middle of a record. */
static ch_status check_size(const ch_reader *r, int64_t had)
{
    int64_t has = ch__reader_file_bytes(r);

    if (has == had)
        return CH_OK;
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "restore: %s has %lld bytes and had %lld when the position was saved; restore "
        "the old file, or start from the beginning of the data",
        ch__reader_path(r), (long long)has, (long long)had);
}

/* Opens the current file and seeks to the saved position. `offset` -1: no file was open. The
 * attributes are read as Cohort__Records: the messages of all reading stages begin with
 * `read`. */
static ch_status load_file(ch_reading *r, int64_t offset, int64_t had)
{
    const Cohort__Records *a = CH_ATTRS(&r->base, Cohort__Records);
    int64_t                n = r->n;
    ch_status              rc;

    if (offset < 0)
        return CH_OK;
    rc = open_named(r, a->read);
    if (rc == CH_OK)
        rc = check_size(r->reader, had);
    if (rc == CH_OK && r->begin != NULL)
        rc = r->begin(r);
    r->n = n; /* `begin` has set it */
    return rc == CH_OK && !r->seeks_rows ? ch__reader_seek(r->reader, offset) : rc;
}

/* Loads the state while the workqueue is paused. */
static ch_status load_held(ch_reading *r, ch_loader *l)
{
    bool      has_names = ch__load_int(l, 0, 1) != 0;
    int64_t   offset, had, most = 0;
    int       skipping;
    ch_status rc;

    if (has_names && (r->names = ch__load_element(l, r->base.dataset->in[0])) != NULL)
        most = ch_shape_count(r->names->part[0].shape);
    r->name = ch__load_int(l, 0, most);
    r->n = ch__load_count(l);
    offset = ch__load_int(l, -1, r->name < most ? INT64_MAX : -1);
    had = ch__load_int(l, -1, INT64_MAX);
    skipping = (int)ch__load_int(l, 0, offset >= 0 && r->skip != NULL ? CH_MAX_SKIPPING : 0);
    ch__cursor_skipped(&r->base, ch__load_count(l));
    if (ch__load_fails(l))
        return ch__load_status(l);
    rc = load_file(r, offset, had);
    r->skipping = skipping;
    if (rc == CH_OK)
        rc = ch__workqueue_load(r->base.workqueue, l);
    return rc == CH_OK ? ch__load_inputs(&r->base, l) : rc;
}

ch_status ch__reading_load(ch_cursor *c, ch_loader *l)
{
    ch_reading *r = (ch_reading *)c;
    ch_status   rc;

    ch__workqueue_pause(c->workqueue);
    rc = load_held(r, l);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

void ch__reading_close(ch_cursor *c)
{
    ch_reading *r = (ch_reading *)c;

    forget(r);
    ch__block_pool_unref(r->pool);
}
