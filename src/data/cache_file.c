/* data/cache_file.c -- keeping elements in a file.
 *
 * The first whole pass writes what it gives; later ones, and later processes, read that and do not
 * ask below at all. The file is one of records (file/record.h), each a message Cached: a head, which
 * tells what dataset it is of, an element each, and an end that counts them. It is written aside and
 * gets its name when it is whole, so there is all of it or nothing; a pass that ends early, or that
 * has an error in it, leaves nothing. Of several who write at the same time the first is kept, so
 * that a file, once there, does not change.
 *
 * A cache gives the elements of the first pass below, in every pass: where it has to ask below
 * again, it opens what is there anew.
 *
 * A place in the file is an offset; if the file is gone by then, it is written again up to there. A
 * place in a pass that writes goes on with what comes from below and does not write: the next pass
 * does.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/position.h"
#include "data/stages.h"
#include "file/record.h"
#include "file/sys.h"
#include "file/writer.h"

enum {
    FORMAT = 1,
    END_BYTES = 16 /* at most, of the record that ends a file; a shorter element does no harm */
};

#define RECORD_BYTES ((int64_t)1 << 40) /* at most: elements may be of any size */

typedef enum mode {
    BEGINS, /* nothing was asked for in this pass */
    READS,  /* from the file */
    WRITES, /* what comes from below */
    PASSES, /* that on, and does not write: this pass cannot be kept */
    N_MODES
} mode;

typedef struct keeping {
    ch_cursor         base;
    uint64_t          fingerprint;
    ch_block_pool    *pool;
    mode              mode;
    int64_t           n;      /* elements of this pass that were pulled */
    ch_reader        *reader; /* READS */
    ch_record_writer *writer; /* WRITES */
} keeping;

static ch_status cache_file_infer(ch_dataset *d)
{
    if (CH_ATTRS_OF(d, Cohort__CacheFile)->path[0] == '\0')
        return ch__dataset_fail(d, "the file has no name");
    return ch__dataset_like(d, d->in[0]);
}

static const char *path_of(const ch_cursor *c)
{
    return CH_ATTRS(c, Cohort__CacheFile)->path;
}

/* ---- writing ---- */

static void stop_writing(keeping *x)
{
    ch_record_writer_drop(x->writer);
    x->writer = NULL;
    x->mode = PASSES;
}

static ch_status put(keeping *x, const Cohort__Cached *m)
{
    void     *bytes = NULL;
    size_t    n = 0;
    ch_status rc = ch__protobuf_pack(&m->base, &bytes, &n);

    if (rc == CH_OK)
        rc = ch_record_writer_add(x->writer, (ch_str){bytes, n});
    ch__free(bytes);
    return rc;
}

static ch_status put_head(keeping *x)
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
        rc = put(x, &m);
    ch__arena_drop(&arena);
    return rc;
}

static ch_status put_element(keeping *x, const ch_element *e)
{
    Cohort__Element element;
    Cohort__Cached  m = COHORT__CACHED__INIT;
    ch_arena        arena = {0};
    ch_status       rc;

    cohort__element__init(&element);
    m.element = &element;
    rc = ch__element_encode(&arena, e, &element);
    if (rc == CH_OK)
        rc = put(x, &m);
    ch__arena_drop(&arena);
    return rc;
}

static bool is_there(const char *path)
{
    int fd = ch__sys_open(path, O_RDONLY, 0);

    if (fd >= 0)
        ch__sys_close(fd);
    return fd >= 0;
}

/* The pass is whole: the file gets its name, unless another was quicker. */
static ch_status finish(keeping *x)
{
    Cohort__Cached m = COHORT__CACHED__INIT;
    ch_status      rc;

    m.end = (uint64_t)x->n + 1;
    rc = put(x, &m);
    if (rc == CH_OK && !is_there(path_of(&x->base))) {
        rc = ch_record_writer_close(x->writer);
        x->writer = NULL;
    }
    stop_writing(x);
    return rc;
}

static ch_status begin_writing(keeping *x)
{
    ch_status rc;

    ch__writer_tidy(path_of(&x->base));
    rc = ch_record_writer_open(path_of(&x->base), NULL, &x->writer);
    x->mode = WRITES;
    if (rc == CH_OK)
        rc = put_head(x);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "cache");
}

/* ---- reading ---- */

static ch_status unpack(const ch_record *r, const char *path, Cohort__Cached **out)
{
    ch_status rc = ch__record_check(r, path);

    if (rc != CH_OK)
        return rc;
    *out = (Cohort__Cached *)ch__protobuf_unpack_within(&cohort__cached__descriptor, r->data,
                                                        r->size, (16 << 20) + 2 * r->size);
    if (*out == NULL)
        return ch__fail(CH_DATA_LOSS,
                        "%s: the record at byte %lld is none of a cache, or there is no memory "
                        "for it",
                        path, (long long)r->offset);
    return CH_OK;
}

static ch_status check_head(const keeping *x, const Cohort__Cached *m)
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
                        "%s: it holds the elements of another dataset; remove it, or give this "
                        "cache another file",
                        path);
    return CH_OK;
}

/* NOT_FOUND: there is no such file. */
static ch_status begin_reading(keeping *x)
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
        rc = ch__fail(rc,
                      "%s; this is no cache, or a damaged one: remove it, or give this cache "
                      "another file",
                      ch_error_message());
    return ch__fail_at(rc == CH_NOT_FOUND ? CH_DATA_LOSS : rc, "cache");
}

/* Behind the last element: it says how many there were. */
static ch_status check_end(const keeping *x, const ch_record *r, uint64_t end)
{
    const char *path = path_of(&x->base);

    if (end != (uint64_t)x->n + 1)
        return ch__fail(CH_DATA_LOSS,
                        "cache: %s: %lld elements are there at byte %lld, where it says that "
                        "they are %llu",
                        path, (long long)x->n, (long long)r->offset,
                        (unsigned long long)(end - 1));
    return CH_OK;
}

/* Whether the record ends the file; *rc if it does so wrongly. */
static bool is_end(const keeping *x, const ch_record *r, ch_status *rc)
{
    Cohort__Cached *m = NULL;
    uint64_t        end;

    if (r->data == NULL) {
        *rc =
            ch__fail(CH_DATA_LOSS, "cache: %s: truncated: it ends at byte %lld without an end",
                     path_of(&x->base), (long long)r->offset);
        return true;
    }
    if (r->size > END_BYTES || unpack(r, path_of(&x->base), &m) != CH_OK)
        return false; /* what is wrong with it is said when it is made an element */
    end = m->end;
    ch__protobuf_free(&m->base);
    if (end != 0)
        *rc = check_end(x, r, end);
    return end != 0;
}

/* A record in the place of its element; `make` does the rest. */
static void add_record(keeping *x, const ch_record *r, ch_data_job *i)
{
    ch_element *raw = ch__element_new(0, 1, sizeof(*r));
    int         at = i->n;

    if (raw == NULL) {
        ch__data_job_add_error(i, ch__fail_memory("cache"));
        return;
    }
    *(ch_record *)raw->room = *r;
    raw->owner[0] = ch__buffer_ref(x->reader->block);
    ch__data_job_add(i, raw);
    if (i->n > at)
        i->slot[at].extra = 1;
}

static ch_status element_of(const ch_cursor *c, const ch_record *r, ch_element **out)
{
    Cohort__Cached *m = NULL;
    ch_status       rc = unpack(r, path_of(c), &m);

    if (rc != CH_OK)
        return ch__fail_at(rc, "cache");
    if (m->element == NULL)
        rc = ch__fail(CH_DATA_LOSS, "it is no element");
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

static void cache_file_make(ch_cursor *c, ch_data_job *i)
{
    for (int k = 0; k < i->n; k++) {
        ch_job_result *s = &i->slot[k];
        ch_element    *raw = s->element, *e = NULL;
        ch_status      rc;

        if (raw == NULL || s->extra == 0)
            continue;
        rc = element_of(c, raw->room, &e);
        ch__element_free(raw);
        s->element = e;
        if (rc != CH_OK)
            ch__job_result_fail(s, rc);
    }
}

/* ---- pulling ---- */

/* Reads the file or, if there is none, writes it. After an error the pass does neither. */
static void begin(keeping *x, ch_data_job *i)
{
    ch_status rc = begin_reading(x);

    if (rc == CH_OK)
        return;
    if (rc == CH_NOT_FOUND)
        rc = begin_writing(x);
    if (rc != CH_OK) {
        ch__data_job_add_error(i, rc);
        ch__reader_close(x->reader);
        x->reader = NULL;
        stop_writing(x);
    }
    rc = ch__cursor_reopen(&x->base);
    if (rc != CH_OK)
        ch__data_job_add_error(i, rc);
    i->has_end = rc != CH_OK;
}

static void pull_record(keeping *x, ch_data_job *i)
{
    ch_record r = {0};
    ch_status rc = ch__record_next(x->reader, RECORD_BYTES, &r);

    if (rc != CH_OK)
        rc = ch__fail_at(rc, "cache");
    i->has_end = rc != CH_OK || is_end(x, &r, &rc);
    if (rc != CH_OK)
        ch__data_job_add_error(i, rc);
    if (i->has_end)
        return;
    x->n++;
    add_record(x, &r, i);
}

/* The next one from below, NULL at the end: what came is given also where it cannot be written. A
 * pass with an error in it is not whole. */
static ch_status take_from_below(keeping *x, ch_element **out, bool *is_end)
{
    ch_status rc = ch__cursor_next(x->base.in[0], out);

    *is_end = rc == CH_OK && *out == NULL;
    x->n += *out != NULL;
    if (rc == CH_OK && x->mode == WRITES) {
        rc = *is_end ? finish(x) : put_element(x, *out);
        rc = rc == CH_OK ? CH_OK : ch__fail_at(rc, "cache");
    }
    if (rc != CH_OK && x->mode == WRITES)
        stop_writing(x);
    return rc;
}

static ch_status pull_from_below(keeping *x, ch_data_job *i)
{
    ch_element *e = NULL;
    ch_status   rc = take_from_below(x, &e, &i->has_end);

    if (rc != CH_OK)
        ch__data_job_add_error(i, rc);
    if (e != NULL)
        ch__data_job_add(i, e);
    return rc;
}

static void cache_file_pull(ch_cursor *c, ch_data_job *i)
{
    keeping  *x = (keeping *)c;
    ch_status rc = CH_OK;

    while (i->n < i->want && !i->has_end && !i->has_lost && rc != CH_CANCELLED)
        if (x->mode == BEGINS)
            begin(x, i);
        else if (x->mode == READS)
            pull_record(x, i);
        else
            rc = pull_from_below(x, i);
}

/* ---- the stage ---- */

static ch_status cache_file_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {cache_file_pull, cache_file_make};
    keeping                      *x = (keeping *)c;
    ch_status                     rc;

    if (ch__cursor_runner(c) != NULL)
        return ch__fail(CH_UNIMPLEMENTED,
                        "cache: %s would be written for each element that the function of a "
                        "flat_map, interleave or window is given; put the cache behind that "
                        "stage",
                        path_of(c));
    x->fingerprint = ch__dataset_fingerprint(c->dataset->in[0]);
    rc = ch__block_pool_new(&x->pool);
    return rc == CH_OK ? ch__workqueue_open(c, &ops, &(ch_workqueue_options){.want = 0}) : rc;
}

static void forget(keeping *x)
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
    forget((keeping *)c);
    ch__workqueue_resume(c->workqueue);
    return CH_OK;
}

static void cache_file_save(ch_cursor *c, ch_saver *s)
{
    keeping *x = (keeping *)c;
    mode     saved;

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

/* The file that was read is gone: what was in it comes from below again. */
static ch_status write_again(keeping *x, int64_t n)
{
    const ch_cursor *c = &x->base;
    bool             is_end = false;
    ch_status        rc;

    if (c->it->unordered || c->dataset->is_unordered)
        return ch__fail_at(CH_NOT_FOUND,
                           "restore: the cache that was read; it cannot be made again, since "
                           "stages before it are unordered");
    rc = begin_writing(x);
    if (rc == CH_OK)
        rc = ch__cursor_reopen(&x->base);
    while (rc == CH_OK && x->n < n && !is_end) {
        ch_element *e = NULL;

        rc = take_from_below(x, &e, &is_end);
        ch__element_free(e);
    }
    if (rc == CH_OK && x->n < n)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "restore: the data has only %lld elements before a cache, the place was "
                      "behind %lld",
                      (long long)x->n, (long long)n);
    return rc;
}

static ch_status read_from(keeping *x, int64_t n, int64_t offset)
{
    ch_status rc = begin_reading(x);

    if (rc == CH_NOT_FOUND)
        return write_again(x, n);
    x->n = n;
    return rc == CH_OK ? ch__reader_seek(x->reader, offset) : rc;
}

static ch_status load_held(keeping *x, ch_loader *l)
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
    rc = load_held((keeping *)c, l);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

static void cache_file_close(ch_cursor *c)
{
    forget((keeping *)c);
    ch__block_pool_unref(((keeping *)c)->pool);
}

const ch_stage ch__stage_cache_file = {
    .name = "cache_file",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_KEEPS_NAMES | CH_DIVIDES | CH_ONE_BY_ONE,
    .n_in = 1,
    .attrs = &cohort__cache_file__descriptor,
    .cursor_bytes = sizeof(keeping),
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
