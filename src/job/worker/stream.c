/* job/worker/stream.c -- a stream: reading a dataset by element number (stream.h).
 *
 * A ch_stream has an iterator, which returns elements in order. To read an element, the stream
 * restores the iterator to a saved position at or before the element, unless the iterator is
 * there already, and reads forward. The stream keeps the last N_RECENT results and the last
 * N_POSITIONS positions. Callers are worker.c and run.c.
 *
 * Invariants:
 *   1. `next` is the number of the iterator's next element, or LOST. It is LOST after an error
 *      that is not of the data: an element may then be missing from a buffer of the iterator,
 *      so the number of its next element is not known. The iterator is restored before the next
 *      read.
 *   2. A saved position contains no such error. From there, every element has the same number
 *      on every worker.
 *   3. `base` is the oldest position. It is never dropped, so every element that was read can
 *      be read again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/worker/stream.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pbwire.h"
#include "data/iterator.h"
#include "tensor/tensor.h"

enum {
    N_POSITIONS = 4, /* positions that are kept, besides the base */
    N_RECENT = 8,    /* results that are kept */
    /* Limit of the bytes of all positions except the base. The newest is kept regardless. */
    POSITIONS_BYTES = 64 << 20,
    RECENT_BYTES = 32 << 20, /* limit of the bytes of recent elements, likewise */
    /* Least number of bytes that an element counts, because reading it takes time too. */
    MIN_ELEMENT_BYTES = 1 << 10,
    LOST = -1
};

/* A position of the iterator, saved by ch_iterator_save. */
typedef struct saved_position {
    int64_t number; /* of the next element at this position */
    void   *bytes;
    size_t  n;
} saved_position;

/* The result of reading a number: an element, or an error of the data. */
typedef struct result {
    int64_t   number;  /* LOST: the entry is empty */
    ch_tuple *element; /* NULL: an error, or the entry is empty */
    int64_t   bytes;   /* of the element */
    ch_status rc;
    char      text[CH_FAULT_TEXT];
} result;

struct ch_stream {
    char                name[64];
    ch_dataset         *dataset;
    ch_iterator_options opt;
    ch_device         **device;      /* opt.device points here */
    ch_stream_name      random_name; /* selects the random numbers */
    ch_iterator        *it;          /* NULL: not opened yet */
    int64_t             next;        /* see invariant 1 */
    int64_t             end;         /* number of elements; INT64_MAX: not known yet */
    /* The oldest position. Without bytes it is the beginning; they are saved when the iterator
     * is opened. */
    saved_position base;
    int            n_positions;
    saved_position position[N_POSITIONS]; /* saved positions, the newest last */
    int64_t        position_bytes;        /* of the position that was saved or restored last */
    int64_t        bytes_read;            /* since then */
    int64_t        n_results; /* number of results so far; result i is recent[i % N_RECENT] */
    result         recent[N_RECENT];
};

/* Returns true for an error of the data itself, which every worker gets when it reads the
 * element. A limit on the size of records (RESOURCE_EXHAUSTED) is such an error too, but cannot
 * be told from exhausted memory here. */
static bool is_of_data(ch_status rc)
{
    return rc == CH_DATA_LOSS || rc == CH_INVALID_ARGUMENT || rc == CH_OUT_OF_RANGE;
}

/* ---- recent results ---- */

/* Returns the bytes of a tensor, with the text of its strings. */
static int64_t tensor_bytes(const ch_tensor *t)
{
    int64_t       bytes = (int64_t)ch_tensor_bytes(t);
    const ch_str *s = t->dtype == CH_STR && t->contiguous ? ch_tensor_data(t) : NULL;

    for (int64_t i = 0; s != NULL && i < ch_tensor_count(t); i++)
        bytes += (int64_t)s[i].size;
    return bytes;
}

static int64_t element_bytes(const ch_tuple *t)
{
    int64_t bytes = 0;

    for (int i = 0; i < ch_tuple_count(t); i++) {
        const ch_value *v = ch_tuple_at(t, i);

        for (int k = 0; k < ch_value_count(v); k++)
            bytes += tensor_bytes(ch_value_at(v, k));
    }
    return bytes;
}

static void drop_result(result *r)
{
    ch_tuple_unref(r->element);
    r->element = NULL;
    r->rc = CH_OK;
    r->bytes = 0;
    r->number = LOST;
}

/* Drops the oldest results until the rest takes at most RECENT_BYTES. Keeps the newest. */
static void drop_old_results(ch_stream *s)
{
    int64_t bytes = 0;

    for (int i = 0; i < N_RECENT; i++)
        bytes += s->recent[i].bytes;
    for (int i = 0; i < N_RECENT - 1 && bytes > RECENT_BYTES; i++) {
        result *oldest = &s->recent[(s->n_results + i) % N_RECENT];

        bytes -= oldest->bytes;
        drop_result(oldest);
    }
}

/* Stores the result for number s->next: an element (taken over) or this thread's error. */
static void store_result(ch_stream *s, ch_tuple *element, ch_status rc)
{
    result *r = &s->recent[s->n_results++ % N_RECENT];

    drop_result(r);
    r->number = s->next;
    r->element = element;
    r->bytes = element != NULL ? element_bytes(element) : 0;
    r->rc = rc;
    if (rc != CH_OK)
        (void)snprintf(r->text, sizeof(r->text), "%s", ch_error_message());
    s->bytes_read += r->bytes > MIN_ELEMENT_BYTES ? r->bytes : MIN_ELEMENT_BYTES;
    drop_old_results(s);
}

static const result *find_result(const ch_stream *s, int64_t number)
{
    for (int i = 0; i < N_RECENT; i++)
        if (s->recent[i].number == number)
            return &s->recent[i];
    return NULL;
}

/* Returns a stored result: a reference to the element, or the error. */
static ch_status return_result(const result *r, ch_tuple **out)
{
    if (r->rc != CH_OK)
        return ch__fail(r->rc, "%s", r->text);
    *out = ch_tuple_ref(r->element);
    return CH_OK;
}

/* ---- positions ---- */

static void drop_position(saved_position *p)
{
    ch__free(p->bytes);
    *p = (saved_position){0};
}

static void drop_oldest_position(ch_stream *s)
{
    drop_position(&s->position[0]);
    s->n_positions--;
    memmove(&s->position[0], &s->position[1], (size_t)s->n_positions * sizeof(saved_position));
}

/* Adds a position and takes over its bytes. Drops the oldest positions if there are too
 * many, or too many bytes. */
static void add_position(ch_stream *s, saved_position p)
{
    size_t bytes = p.n;

    for (int i = 0; i < s->n_positions; i++)
        bytes += s->position[i].n;
    while (s->n_positions > 0 && (s->n_positions == N_POSITIONS || bytes > POSITIONS_BYTES)) {
        bytes -= s->position[0].n;
        drop_oldest_position(s);
    }
    s->position[s->n_positions++] = p;
}

/* Returns the last position at or before `number`, which must not be before the base. */
static const saved_position *position_before(const ch_stream *s, int64_t number)
{
    const saved_position *best = &s->base;

    for (int i = 0; i < s->n_positions; i++)
        if (s->position[i].number <= number && s->position[i].number >= best->number)
            best = &s->position[i];
    return best;
}

/* Returns true if an encoded position contains an error that is not of the data, in the buffer
 * of a stage. `message` is a message of proto/dataset.proto: at depth 0 a Position, which has
 * states; at depth 1 a State, which has elements; at depth 2 an Element. */
static bool has_passing_error(ch_wire *w, ch_wire_span message, int depth)
{
    enum { STATES = 3, ELEMENTS = 3, CODE = 2 };
    uint32_t      inner = depth == 0 ? STATES : ELEMENTS;
    ch_wire_field f;
    uint64_t      code = 0;

    while (ch__wire_next(w, &message, &f)) {
        if (depth < 2 && f.type == CH_WIRE_BYTES && f.number == inner &&
            has_passing_error(w, f.data, depth + 1))
            return true;
        if (depth == 2 && f.type == CH_WIRE_VARINT && f.number == CODE &&
            ch__wire_varint(w, &f.data, &code) && code != CH_OK && !is_of_data((ch_status)code))
            return true;
    }
    return w->fault != NULL;
}

/* Saves a position if CH_STREAM_POSITION_INTERVAL elements have been read since the last, and
 * as many bytes as the last position has; so saving costs less than reading. If it fails, a
 * later call tries again. */
static void save_position(ch_stream *s)
{
    saved_position p = {.number = s->next};
    ch_wire        w;

    if (s->next - position_before(s, s->next)->number < CH_STREAM_POSITION_INTERVAL ||
        s->bytes_read < s->position_bytes)
        return;
    s->bytes_read = 0;
    if (ch_iterator_save(s->it, &p.bytes, &p.n) != CH_OK)
        return;
    s->position_bytes = (int64_t)p.n;
    w = ch__wire(p.bytes, p.n);
    if (has_passing_error(&w, w.all, 0))
        drop_position(&p);
    else
        add_position(s, p);
}

/* Restores the iterator to a position. */
static ch_status restore_to(ch_stream *s, const saved_position *p)
{
    ch_status rc = ch_iterator_restore(s->it, p->bytes, p->n);

    if (rc != CH_OK)
        return ch__fail_at(rc, "%s: going to the position of element %lld", s->name,
                           (long long)p->number);
    s->next = p->number;
    s->bytes_read = 0;
    s->position_bytes = (int64_t)p->n;
    return CH_OK;
}

/* ---- reading ---- */

/* Opens the iterator if it is not open. Saves the beginning as the base if there is none. */
static ch_status open_iterator(ch_stream *s)
{
    ch_iterator *it = NULL;
    ch_status    rc;

    if (s->it != NULL)
        return CH_OK;
    rc = ch__iterator_new_named(s->dataset, &s->opt, s->random_name, &it);
    if (rc == CH_OK && s->base.bytes == NULL) {
        rc = ch_iterator_save(it, &s->base.bytes, &s->base.n);
        s->next = rc == CH_OK ? s->base.number : LOST;
    }
    if (rc == CH_OK) {
        s->it = it;
        return CH_OK;
    }
    ch_iterator_unref(it);
    return ch__fail_at(rc, "%s: opening its dataset", s->name);
}

/* Reads the next element, stores the result, and sets `end` if there is none. Returns only
 * errors that are not of the data. */
static ch_status read_next(ch_stream *s)
{
    ch_tuple *t = NULL;
    ch_status rc = ch_iterator_next(s->it, &t);

    if (rc != CH_OK)
        rc = ch__fail_at(rc, "%s: element %lld", s->name, (long long)s->next);
    if (rc != CH_OK && !is_of_data(rc)) {
        s->next = LOST;
        return rc;
    }
    if (rc == CH_OK && t == NULL) {
        s->end = s->next;
        return CH_OK;
    }
    store_result(s, t, rc);
    s->next++;
    save_position(s);
    return CH_OK;
}

/* Moves the iterator to the last position from which `number` can be read, unless it is between
 * that position and `number` already. */
static ch_status seek_before(ch_stream *s, int64_t number)
{
    const saved_position *from = position_before(s, number);

    if (s->next != LOST && s->next >= from->number && s->next <= number)
        return CH_OK;
    return restore_to(s, from);
}

/* Reads up to and including `number`, or to the end. */
static ch_status read_until(ch_stream *s, int64_t number)
{
    ch_status rc = CH_OK;

    while (rc == CH_OK && s->next <= number && number < s->end)
        rc = read_next(s);
    return rc;
}

/* Reads `number`. If there is an error that is not of the data, tries once more, because a
 * prefetching thread may have met the error some time ago. */
static ch_status read_to(ch_stream *s, int64_t number)
{
    ch_status rc = open_iterator(s);

    if (rc == CH_OK)
        rc = seek_before(s, number);
    if (rc == CH_OK && read_until(s, number) != CH_OK) {
        rc = seek_before(s, number);
        if (rc == CH_OK)
            rc = read_until(s, number);
    }
    return rc;
}

ch_status ch__stream_element(ch_stream *s, int64_t number, ch_tuple **out)
{
    const result *r;
    ch_status     rc = CH_OK;

    if (number < s->base.number)
        return ch__fail(CH_OUT_OF_RANGE,
                        "%s: element %lld is before the position at which the stream began, "
                        "element %lld; create the stream at an earlier position",
                        s->name, (long long)number, (long long)s->base.number);
    r = find_result(s, number);
    if (r == NULL && number < s->end) {
        rc = read_to(s, number);
        r = find_result(s, number);
    }
    if (rc != CH_OK)
        return rc;
    if (r != NULL)
        return return_result(r, out);
    *out = NULL;
    return CH_OK;
}

bool ch__stream_position(const ch_stream *s, int64_t *number, const void **bytes, size_t *n)
{
    const saved_position *p;

    if (s->n_positions == 0)
        return false;
    p = &s->position[s->n_positions - 1];
    *number = p->number;
    *bytes = p->bytes;
    *n = p->n;
    return true;
}

static ch_status copy_position(int64_t number, const void *bytes, size_t n, saved_position *out)
{
    void *copy = ch__malloc(n > 0 ? n : 1);

    if (copy == NULL)
        return ch__fail_memory("a position of a stream");
    if (n > 0)
        memcpy(copy, bytes, n);
    *out = (saved_position){number, copy, n};
    return CH_OK;
}

/* ---- create and free ---- */

static ch_status check_options(const ch_stream_options *opt, const char *name)
{
    if (opt->dataset == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the options have no dataset", name);
    if (opt->reader < 0 || opt->pass < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: reader %lld in pass %lld; want 0 or more",
                        name, (long long)opt->reader, (long long)opt->pass);
    if (opt->first < 0 || (opt->position == NULL && opt->first != 0))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: first is element %lld; want a number of 0 or more, and a position "
                        "if it is not 0",
                        name, (long long)opt->first);
    if (opt->n_replicas < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %d replicas; want 0 or more", name,
                        opt->n_replicas);
    return CH_OK;
}

/* Decodes the dataset. If it has unordered stages, switches its threads off, because the order
 * of their elements depends on the threads. */
static ch_status set_dataset(ch_stream *s, const void *bytes, size_t n)
{
    ch_dataset *d = NULL;
    ch_status   rc = ch_dataset_decode(bytes, n, &d);

    if (rc != CH_OK)
        return rc;
    if ((d->is_unordered || d->options.unordered) && d->options.threads != CH_OFF) {
        ch__log(CH_LOG_INFO, "serial-stream",
                "%s: the dataset has unordered stages; it is read without threads, so that "
                "repeated steps read the same elements",
                s->name);
        d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
    }
    s->dataset = d;
    return d != NULL ? CH_OK : ch__fail_earlier("reading it without threads");
}

static ch_status set_devices(ch_stream *s, const ch_stream_options *opt)
{
    int n = opt->n_replicas > 0 ? opt->n_replicas : 1;

    s->opt = (ch_iterator_options){.go_on = true, .n_replicas = n};
    if (opt->device == NULL)
        return CH_OK;
    s->device = ch__calloc((size_t)n, sizeof(*s->device));
    if (s->device == NULL)
        return ch__fail_memory("devices");
    memcpy(s->device, opt->device, (size_t)n * sizeof(*s->device));
    s->opt.device = s->device;
    return CH_OK;
}

ch_status ch__stream_new(const ch_stream_options *opt, ch_stream **out)
{
    const char *name = opt->name != NULL ? opt->name : "stream";
    ch_stream  *s;
    ch_status   rc = check_options(opt, name);

    if (rc != CH_OK)
        return rc;
    s = ch__calloc(1, sizeof(*s));
    if (s == NULL)
        return ch__fail_memory(name);
    (void)snprintf(s->name, sizeof(s->name), "%s", name);
    s->random_name = (ch_stream_name){opt->reader, opt->pass};
    s->next = LOST;
    s->end = INT64_MAX;
    s->base.number = opt->first;
    for (int i = 0; i < N_RECENT; i++)
        s->recent[i].number = LOST;
    rc = set_dataset(s, opt->dataset, opt->n_dataset);
    if (rc == CH_OK)
        rc = set_devices(s, opt);
    if (rc == CH_OK && opt->position != NULL)
        rc = copy_position(opt->first, opt->position, opt->n_position, &s->base);
    if (rc != CH_OK) {
        ch__stream_free(s);
        return ch__fail_at(rc, "%s", name);
    }
    *out = s;
    return CH_OK;
}

void ch__stream_free(ch_stream *s)
{
    if (s == NULL)
        return;
    ch_iterator_unref(s->it);
    for (int i = 0; i < N_RECENT; i++)
        drop_result(&s->recent[i]);
    while (s->n_positions > 0)
        drop_oldest_position(s);
    drop_position(&s->base);
    ch_dataset_unref(s->dataset);
    ch__free(s->device);
    ch__free(s);
}
