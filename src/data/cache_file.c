/* data/cache_file.c -- the stage `cache_file`: keeps elements in a file.
 *
 * The first complete pass writes the elements of the input to a file. Later passes, and later
 * processes, read the file and do not open the input. The file consists of records
 * (file/record.h), each a message Cached: a head that identifies the dataset, the elements, and
 * an end with their number. A `file_cache` is the cursor; its `mode` says whether this pass
 * reads or writes.
 *
 * Invariants:
 *   1. The file is written under a temporary name and renamed when it is complete. So the file
 *      is complete or does not exist. A pass that ends early or has an error leaves no file.
 *   2. If several processes write at the same time, the first file stays. A file never changes
 *      once it exists.
 *   3. Every pass returns the elements of the first pass of the input. So whenever the cache
 *      has to read the input again, it opens the input again.
 *   4. A position in a pass that reads is an offset in the file. If the file is gone at the
 *      restore, it is written again up to this position. After the restore of a pass that
 *      writes, the pass continues with the input and does not write; the next pass writes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "data/iterator.h"
#include "data/position.h"
#include "data/stages.h"
#include "file/record.h"
#include "file/temp.h"
#include "file/writer.h"

enum {
    FORMAT = 1,
    /* Limit for the size of the end record. Only records up to this size are unpacked to find
     * out whether they are the end; an element of this size is recognised as an element. */
    END_BYTES = 16
};

#define RECORD_BYTES ((int64_t)1 << 40) /* limit of a record; elements may be of any size */

typedef enum mode {
    BEGINS, /* no element was read in this pass */
    READS,  /* reads the file */
    WRITES, /* reads the input and writes the file */
    PASSES, /* reads the input and does not write, because this pass is not complete */
    N_MODES
} mode;

typedef struct file_cache {
    ch_cursor         base;
    uint64_t          fingerprint;
    ch_block_pool    *pool;
    mode              mode;
    int64_t           n;      /* elements pulled in this pass */
    ch_reader        *reader; /* in mode READS, else NULL */
    ch_record_writer *writer; /* in mode WRITES, else NULL */
} file_cache;

static ch_status cache_file_infer(ch_dataset *d)
{
    if (CH_ATTRS_OF(d, Cohort__CacheFile)->path[0] == '\0')
        return ch__dataset_fail(d, "the path is empty");
    return ch__dataset_like(d, d->in[0]);
}

static const char *path_of(const ch_cursor *c)
{
    return CH_ATTRS(c, Cohort__CacheFile)->path;
}

/* ---- writing ---- */

/* Discards the temporary file. The rest of the pass is not written. */
static void stop_writing(file_cache *x)
{
    ch_record_writer_drop(x->writer);
    x->writer = NULL;
    x->mode = PASSES;
}

static ch_status write_message(file_cache *x, const Cohort__Cached *m)
{
    void     *bytes = NULL;
    size_t    n = 0;
    ch_status rc = ch__protobuf_pack(&m->base, &bytes, &n);

    if (rc == CH_OK)
        rc = ch_record_writer_add(x->writer, (ch_str){bytes, n});
    ch__free(bytes);
    return rc;
}

static ch_status write_head(file_cache *x)
{
    Cohort__CacheHead head = COHORT__CACHE_HEAD__INIT;
    Cohort__Cached    m = COHORT__CACHED__INIT;
    ch_arena          arena = {0};
    const ch_dataset *d = x->base.dataset;
    ch_status         rc = ch__spec_encode(&arena, d->n_parts, d->spec, &head.spec);

    head.format = FORMAT;
    head.dataset = x->fingerprint;
    m.head = &head;
    if (rc == CH_OK)
        rc = write_message(x, &m);
    ch__arena_drop(&arena);
    return rc;
}

static ch_status write_element(file_cache *x, const ch_element *e)
{
    Cohort__Element element;
    Cohort__Cached  m = COHORT__CACHED__INIT;
    ch_arena        arena = {0};
    ch_status       rc;

    cohort__element__init(&element);
    m.element = &element;
    rc = ch__element_encode(&arena, e, &element);
    if (rc == CH_OK)
        rc = write_message(x, &m);
    ch__arena_drop(&arena);
    return rc;
}

static bool file_exists(const char *path)
{
    int fd = ch__sys_open(path, O_RDONLY, 0);

    if (fd >= 0)
        ch__sys_close(fd);
    return fd >= 0;
}

/* Ends a complete pass: writes the end record and renames the file, unless the file exists by
 * now. */
static ch_status finish(file_cache *x)
{
    Cohort__Cached m = COHORT__CACHED__INIT;
    ch_status      rc;

    m.end = (uint64_t)x->n + 1;
    rc = write_message(x, &m);
    if (rc == CH_OK && !file_exists(path_of(&x->base))) {
        rc = ch_record_writer_close(x->writer);
        x->writer = NULL;
    }
    stop_writing(x);
    return rc;
}

/* Starts a new file, after removing temporary files that crashed processes left. */
static ch_status begin_writing(file_cache *x)
{
    ch_status rc;

    ch__temp_tidy(path_of(&x->base));
    rc = ch_record_writer_open(path_of(&x->base), NULL, &x->writer);
    x->mode = WRITES;
    if (rc == CH_OK)
        rc = write_head(x);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "cache");
}

/* ---- reading ---- */

static ch_status unpack(const ch_record *r, const char *path, Cohort__Cached **out)
{
    ProtobufCMessage *m = NULL;
    ch_status         rc = ch__record_check(r, path);

    if (rc != CH_OK)
        return rc;
    rc = ch__protobuf_unpack_within(&cohort__cached__descriptor, r->data, r->size,
                                    (16 << 20) + 2 * r->size, &m);
    if (rc == CH_INVALID_ARGUMENT)
        return ch__fail(CH_DATA_LOSS, "%s: the record at byte %lld is not a record of a cache",
                        path, (long long)r->offset);
    *out = (Cohort__Cached *)m;
    return rc;
}

static ch_status check_head(const file_cache *x, const Cohort__Cached *m)
{
    const char *path = path_of(&x->base);

    if (m->head == NULL)
        return ch__fail(CH_DATA_LOSS, "%s: the record at byte 0 is not the head of a cache",
                        path);
    if (m->head->format != FORMAT)
        return ch__fail(CH_UNIMPLEMENTED, "%s: a cache of format %u, this library reads %d",
                        path, m->head->format, FORMAT);
    if (m->head->dataset != x->fingerprint)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the file holds the elements of another dataset; remove the file, "
                        "or use another path for this cache",
                        path);
    return CH_OK;
}

/* Opens the file and checks its head. Returns CH_NOT_FOUND only if the file does not exist. */
static ch_status begin_reading(file_cache *x)
{
    const char     *path = path_of(&x->base);
    Cohort__Cached *m = NULL;
    ch_record       head = {0};
    ch_status       rc = ch__reader_open(path, NULL, x->pool, &x->reader);

    if (rc != CH_OK)
        return rc;
    rc = ch__record_next(x->reader, RECORD_BYTES, &head);
    if (rc == CH_OK && head.data == NULL)
        rc = ch__fail(CH_DATA_LOSS, "%s: an empty file, want a cache", path);
    if (rc == CH_OK)
        rc = unpack(&head, path, &m);
    if (rc == CH_OK)
        rc = check_head(x, m);
    if (m != NULL)
        ch__protobuf_free(&m->base);
    x->mode = READS;
    if (rc == CH_OK)
        return CH_OK;
    if (rc == CH_DATA_LOSS)
        rc =
            ch__fail(rc,
                     "%s; the file is not a cache, or damaged: remove the file, or use another "
                     "path for this cache",
                     ch_error_message());
    return ch__fail_at(rc == CH_NOT_FOUND ? CH_DATA_LOSS : rc, "cache");
}

/* Checks the number of elements in the end record (`end` is that number plus 1). */
static ch_status check_end(const file_cache *x, const ch_record *r, uint64_t end)
{
    const char *path = path_of(&x->base);

    if (end != (uint64_t)x->n + 1)
        return ch__fail(CH_DATA_LOSS,
                        "cache: %s: %lld elements up to the end record at byte %lld, which "
                        "gives their number as %llu",
                        path, (long long)x->n, (long long)r->offset,
                        (unsigned long long)(end - 1));
    return CH_OK;
}

/* Returns true if the record is the end record or the file has ended. Sets *rc to an error if
 * the number of elements is wrong or the end record is missing. */
static bool is_end(const file_cache *x, const ch_record *r, ch_status *rc)
{
    Cohort__Cached *m = NULL;
    uint64_t        end;

    if (r->data == NULL) {
        *rc = ch__fail(CH_DATA_LOSS, "cache: %s: truncated: no end record at byte %lld",
                       path_of(&x->base), (long long)r->offset);
        return true;
    }
    if (r->size > END_BYTES || unpack(r, path_of(&x->base), &m) != CH_OK)
        return false; /* cache_file_make reports the error of a damaged record */
    end = m->end;
    ch__protobuf_free(&m->base);
    if (end != 0)
        *rc = check_end(x, r, end);
    return end != 0;
}

/* Adds an unparsed record as a result, marked by `extra`. cache_file_make turns it into an
 * element. */
static void add_record(file_cache *x, const ch_record *r, ch_data_job *job)
{
    ch_element *raw = ch__element_new(0, 1, sizeof(*r));
    int         at = job->n;

    if (raw == NULL) {
        ch__data_job_add_error(job, ch__fail_memory("cache"));
        return;
    }
    *(ch_record *)raw->room = *r;
    raw->owner[0] = ch__buffer_ref(x->reader->block);
    ch__data_job_add(job, raw);
    if (job->n > at)
        job->result[at].extra = 1;
}

/* Creates the element of a record, and checks it against the spec of the dataset. */
static ch_status parse_record(const ch_cursor *c, const ch_record *r, ch_element **out)
{
    Cohort__Cached *m = NULL;
    ch_status       rc = unpack(r, path_of(c), &m);

    if (rc != CH_OK)
        return ch__fail_at(rc, "cache");
    if (m->element == NULL)
        rc = ch__fail(CH_DATA_LOSS, "the record holds no element");
    else
        rc = ch__parts_decode(m->element->n_parts, m->element->parts, out);
    if (rc == CH_OK && (rc = ch__dataset_check(c->dataset, *out)) != CH_OK) {
        ch__element_free(*out);
        *out = NULL;
    }
    ch__protobuf_free(&m->base);
    return rc == CH_OK ? CH_OK
                       : ch__fail_at(rc == CH_INVALID_ARGUMENT ? CH_DATA_LOSS : rc,
                                     "cache: %s, the record at byte %lld", path_of(c),
                                     (long long)r->offset);
}

static void cache_file_make(ch_cursor *c, ch_data_job *job)
{
    for (int k = 0; k < job->n; k++) {
        ch_job_result *s = &job->result[k];
        ch_element    *raw = s->element, *e = NULL;
        ch_status      rc;

        if (raw == NULL || s->extra == 0)
            continue;
        rc = parse_record(c, raw->room, &e);
        ch__element_free(raw);
        s->element = e;
        if (rc != CH_OK)
            ch__job_result_fail(s, rc);
    }
}

/* ---- pulling ---- */

/* Chooses the mode of a pass: READS if the file exists, else WRITES. After an error the pass
 * neither reads nor writes the file (PASSES). */
static void begin(file_cache *x, ch_data_job *job)
{
    ch_status rc = begin_reading(x);

    if (rc == CH_OK)
        return;
    if (rc == CH_NOT_FOUND)
        rc = begin_writing(x);
    if (rc != CH_OK) {
        ch__data_job_add_error(job, rc);
        ch__reader_close(x->reader);
        x->reader = NULL;
        stop_writing(x);
    }
    rc = ch__cursor_reopen(&x->base);
    if (rc != CH_OK)
        ch__data_job_add_error(job, rc);
    job->has_end = rc != CH_OK;
}

static void pull_record(file_cache *x, ch_data_job *job)
{
    ch_record r = {0};
    ch_status rc = ch__record_next(x->reader, RECORD_BYTES, &r);

    if (rc != CH_OK)
        rc = ch__fail_at(rc, "cache");
    job->has_end = rc != CH_OK || is_end(x, &r, &rc);
    if (rc != CH_OK)
        ch__data_job_add_error(job, rc);
    if (job->has_end)
        return;
    x->n++;
    add_record(x, &r, job);
}

/* Returns the next element of the input, NULL at the end, and writes it in mode WRITES. If
 * writing fails, returns both the error and the element. After any error the pass is not
 * complete, so writing stops. */
static ch_status next_from_input(file_cache *x, ch_element **out, bool *is_end)
{
    ch_status rc = ch__cursor_next(x->base.in[0], out);

    *is_end = rc == CH_OK && *out == NULL;
    x->n += *out != NULL;
    if (rc == CH_OK && x->mode == WRITES) {
        rc = *is_end ? finish(x) : write_element(x, *out);
        rc = rc == CH_OK ? CH_OK : ch__fail_at(rc, "cache");
    }
    if (rc != CH_OK && x->mode == WRITES)
        stop_writing(x);
    return rc;
}

static ch_status pull_from_input(file_cache *x, ch_data_job *job)
{
    ch_element *e = NULL;
    ch_status   rc = next_from_input(x, &e, &job->has_end);

    if (rc != CH_OK)
        ch__data_job_add_error(job, rc);
    if (e != NULL)
        ch__data_job_add(job, e);
    return rc;
}

static void cache_file_pull(ch_cursor *c, ch_data_job *job)
{
    file_cache *x = (file_cache *)c;
    ch_status   rc = CH_OK;

    while (job->n < job->want && !job->has_end && !job->has_lost && rc != CH_CANCELLED)
        if (x->mode == BEGINS)
            begin(x, job);
        else if (x->mode == READS)
            pull_record(x, job);
        else
            rc = pull_from_input(x, job);
}

/* ---- the stage ---- */

static ch_status cache_file_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {cache_file_pull, cache_file_make};
    file_cache                   *x = (file_cache *)c;
    ch_status                     rc;

    if (ch__cursor_runner(c) != NULL)
        return ch__fail(CH_UNIMPLEMENTED,
                        "cache: %s: a cache in a file cannot be used inside the function of a "
                        "flat_map, interleave or window, because each element would write the "
                        "file; put the cache behind that stage",
                        path_of(c));
    x->fingerprint = ch__dataset_fingerprint(c->dataset->in[0]);
    rc = ch__block_pool_new(&x->pool);
    return rc == CH_OK ? ch__workqueue_open(c, &ops, &(ch_workqueue_options){.want = 0}) : rc;
}

/* Returns to the beginning of a pass. */
static void reset(file_cache *x)
{
    ch__reader_close(x->reader);
    x->reader = NULL;
    stop_writing(x);
    x->mode = BEGINS;
    x->n = 0;
}

static ch_status cache_file_rewind(ch_cursor *c)
{
    ch__workqueue_pause(c->workqueue);
    ch__workqueue_clear(c->workqueue);
    reset((file_cache *)c);
    ch__workqueue_resume(c->workqueue);
    return CH_OK;
}

static void cache_file_save(ch_cursor *c, ch_saver *s)
{
    file_cache *x = (file_cache *)c;
    mode        saved;

    ch__workqueue_pause(c->workqueue);
    saved = x->mode == WRITES ? PASSES : x->mode;
    ch__save_int(s, saved);
    ch__save_int(s, x->n);
    ch__save_int(s, saved == READS ? ch__reader_offset(x->reader) : 0);
    ch__workqueue_save(c->workqueue, s);
    if (saved == PASSES)
        ch__save_inputs(c, s);
    ch__workqueue_resume(c->workqueue);
}

/* Writes the file again up to its first n elements, because it existed when the position was
 * saved and is gone now. */
static ch_status rewrite_file(file_cache *x, int64_t n)
{
    const ch_cursor *c = &x->base;
    bool             is_end = false;
    ch_status        rc;

    if (c->it->unordered || c->dataset->is_unordered)
        return ch__fail_at(CH_NOT_FOUND,
                           "restore: the cache file was removed, and it cannot be written "
                           "again because stages before it are unordered");
    rc = begin_writing(x);
    if (rc == CH_OK)
        rc = ch__cursor_reopen(&x->base);
    while (rc == CH_OK && x->n < n && !is_end) {
        ch_element *e = NULL;

        rc = next_from_input(x, &e, &is_end);
        ch__element_free(e);
    }
    if (rc == CH_OK && x->n < n)
        rc =
            ch__fail(CH_INVALID_ARGUMENT,
                     "restore: cache: its input has only %lld elements, but the saved position "
                     "is behind element %lld; the data has changed",
                     (long long)x->n, (long long)n);
    return rc;
}

static ch_status read_from(file_cache *x, int64_t n, int64_t offset)
{
    ch_status rc = begin_reading(x);

    if (rc == CH_NOT_FOUND)
        return rewrite_file(x, n);
    x->n = n;
    return rc == CH_OK ? ch__reader_seek(x->reader, offset) : rc;
}

/* Loads a position. The workqueue must be paused. */
static ch_status load_paused(file_cache *x, ch_loader *l)
{
    mode      saved = (mode)ch__load_int(l, 0, N_MODES - 1);
    int64_t   n = ch__load_int(l, 0, INT64_MAX - 1), offset = ch__load_count(l);
    ch_status rc = ch__workqueue_load(x->base.workqueue, l);

    if (rc != CH_OK || saved == BEGINS)
        return rc;
    if (saved == READS)
        return read_from(x, n, offset);
    x->n = n;
    x->mode = PASSES;
    rc = ch__cursor_reopen(&x->base);
    return rc == CH_OK ? ch__load_inputs(&x->base, l) : rc;
}

static ch_status cache_file_load(ch_cursor *c, ch_loader *l)
{
    ch_status rc;

    ch__workqueue_pause(c->workqueue);
    rc = load_paused((file_cache *)c, l);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

static void cache_file_close(ch_cursor *c)
{
    reset((file_cache *)c);
    ch__block_pool_unref(((file_cache *)c)->pool);
}

const ch_stage ch__stage_cache_file = {
    .name = "cache_file",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_KEEPS_NAMES | CH_DIVIDES | CH_ONE_BY_ONE,
    .n_in = 1,
    .attrs = &cohort__cache_file__descriptor,
    .cursor_bytes = sizeof(file_cache),
    .infer = cache_file_infer,
    .opens_inputs = true,
    .open = cache_file_open,
    .next = ch__queued_next,
    .rewind = cache_file_rewind,
    .save = cache_file_save,
    .load = cache_file_load,
    .close = cache_file_close,
};

ch_dataset *ch__dataset_cache_file(ch_dataset *d, const char *path)
{
    Cohort__CacheFile a;
    ch_arena          arena = {0};
    ch_status         rc = CH_OK;

    cohort__cache_file__init(&a);
    a.path = ch__arena_strdup(&arena, path);
    if (a.path == NULL)
        rc = ch__fail_memory("cache_file");
    d = ch__dataset_new(&ch__stage_cache_file,
                        &(ch_dataset_make){.rc = rc, .attrs = &a.base, .n_in = 1, .in = &d});
    ch__arena_drop(&arena);
    return d;
}
