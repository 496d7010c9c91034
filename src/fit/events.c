/* fit/events.c -- event files for TensorBoard (EV-1 to EV-6).
 *
 * The first half encodes Event messages of protobuf by hand. The second half makes histograms,
 * and writes the messages as TFRecords to a file. A ch_events buffers records and appends them
 * to its file. tensorboard.c is the caller.
 *
 * Invariant: the buffer (`pending`) contains only whole records, so a reader sees a partial
 * record only if a write was interrupted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fit/events.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "base/thread.h"
#include "file/bytes.h"
#include "file/folder.h"
#include "file/record.h"
#include "tensor/tensor.h"

/* ---- fields of a message ---- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5, VARINT_BYTES = 10 };

static int varint(uint64_t x, unsigned char to[VARINT_BYTES])
{
    int n = 0;

    for (; x >= 0x80; x >>= 7)
        to[n++] = (unsigned char)(x | 0x80);
    to[n++] = (unsigned char)x;
    return n;
}

static void put_varint(ch_bytes_builder *p, uint64_t x)
{
    unsigned char text[VARINT_BYTES];

    ch__bytes_builder_add(p, text, (size_t)varint(x, text));
}

static void put_tag(ch_bytes_builder *p, int field, int type)
{
    put_varint(p, (uint64_t)(field << 3 | type));
}

/* Writes an integer field. Zero is not written, because it is the default of an absent
 * field. */
static void put_number(ch_bytes_builder *p, int field, int64_t x)
{
    if (x == 0)
        return;
    put_tag(p, field, VARINT);
    put_varint(p, (uint64_t)x);
}

static void put_f64_bits(ch_bytes_builder *p, double x)
{
    unsigned char bytes[8];
    uint64_t      bits;

    memcpy(&bits, &x, sizeof(bits));
    ch__put_le(bytes, bits, 8);
    ch__bytes_builder_add(p, bytes, 8);
}

static void put_f32_bits(ch_bytes_builder *p, float x)
{
    unsigned char bytes[4];
    uint32_t      bits;

    memcpy(&bits, &x, sizeof(bits));
    ch__put_le(bytes, bits, 4);
    ch__bytes_builder_add(p, bytes, 4);
}

static void put_bytes(ch_bytes_builder *p, int field, const void *data, size_t n)
{
    put_tag(p, field, BYTES);
    put_varint(p, n);
    ch__bytes_builder_add(p, data, n);
}

static void put_text(ch_bytes_builder *p, int field, const char *text)
{
    put_bytes(p, field, text, strlen(text));
}

/* begin and end enclose a nested message. The length of the message precedes it, but is known
 * only at the end, so `end` moves the message to insert the length. */
static int begin(ch_bytes_builder *p, int field)
{
    put_tag(p, field, BYTES);
    return p->n;
}

static void end(ch_bytes_builder *p, int start)
{
    unsigned char length[VARINT_BYTES];
    size_t        bytes = (size_t)(p->n - start);
    int           n = varint(bytes, length);

    if (ch__bytes_builder_reserve(p, (size_t)n) == NULL)
        return;
    memmove(p->at + start + n, p->at + start, bytes);
    memcpy(p->at + start, length, (size_t)n);
}

/* ---- messages ---- */

/* Field numbers of tensorflow/core/framework/summary.proto and tensor.proto, and of
 * tensorflow/core/util/event.proto. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    METADATA_PLUGIN = 1,
    METADATA_CLASS = 4,
    PLUGIN_NAME = 1,
    TENSOR_DTYPE = 1,
    TENSOR_SHAPE = 2,
    TENSOR_CONTENT = 4,
    TENSOR_STRING = 8,
    SHAPE_DIM = 2,
    DIM_SIZE = 1,

    DT_FLOAT = 1,
    DT_DOUBLE = 2,
    DT_STRING = 7,
    CLASS_SCALAR = 1,
    CLASS_TENSOR = 2
};

static void put_wall_time(ch_bytes_builder *p, double wall_time)
{
    put_tag(p, EVENT_WALL_TIME, FIXED64);
    put_f64_bits(p, wall_time);
}

void ch__event_version(ch_bytes_builder *p, double wall_time)
{
    put_wall_time(p, wall_time);
    put_text(p, EVENT_FILE_VERSION, "brain.Event:2");
}

static void put_simple(ch_bytes_builder *p, double x)
{
    put_tag(p, VALUE_SIMPLE, FIXED32);
    put_f32_bits(p, (float)x);
}

static void put_scalar(ch_bytes_builder *p, double x)
{
    int tensor = begin(p, VALUE_TENSOR);

    put_number(p, TENSOR_DTYPE, DT_FLOAT);
    end(p, begin(p, TENSOR_SHAPE));
    int content = begin(p, TENSOR_CONTENT);
    put_f32_bits(p, (float)x);
    end(p, content);
    end(p, tensor);
}

/* Writes a dimension. A size of 0 is written too, as an empty message. */
static void put_dim(ch_bytes_builder *p, int64_t size)
{
    int dim = begin(p, SHAPE_DIM);

    put_number(p, DIM_SIZE, size);
    end(p, dim);
}

/* Writes a tensor of the shape (buckets, 3). */
static void put_histogram(ch_bytes_builder *p, const ch_histogram *h)
{
    int tensor = begin(p, VALUE_TENSOR);

    put_number(p, TENSOR_DTYPE, DT_DOUBLE);
    int shape = begin(p, TENSOR_SHAPE);
    put_dim(p, h->n);
    put_dim(p, 3);
    end(p, shape);
    int content = begin(p, TENSOR_CONTENT);
    for (int i = 0; i < h->n; i++)
        for (int k = 0; k < 3; k++)
            put_f64_bits(p, h->bucket[i][k]);
    end(p, content);
    end(p, tensor);
}

static void put_string(ch_bytes_builder *p, ch_str text)
{
    int tensor = begin(p, VALUE_TENSOR);

    put_number(p, TENSOR_DTYPE, DT_STRING);
    end(p, begin(p, TENSOR_SHAPE));
    put_bytes(p, TENSOR_STRING, text.data, text.size);
    end(p, tensor);
}

static void put_metadata(ch_bytes_builder *p, const char *plugin, int class)
{
    int metadata = begin(p, VALUE_METADATA), data = begin(p, METADATA_PLUGIN);

    put_text(p, PLUGIN_NAME, plugin);
    end(p, data);
    put_number(p, METADATA_CLASS, class);
    end(p, metadata);
}

static void put_value(ch_bytes_builder *p, const ch_summary *s)
{
    put_text(p, VALUE_TAG, s->tag);
    switch (s->kind) {
    case CH_SUMMARY_SIMPLE:
        put_simple(p, s->value);
        break;
    case CH_SUMMARY_SCALAR:
        put_scalar(p, s->value);
        put_metadata(p, "scalars", CLASS_SCALAR);
        break;
    case CH_SUMMARY_HISTOGRAM:
        put_histogram(p, s->histogram);
        put_metadata(p, "histograms", CLASS_TENSOR);
        break;
    case CH_SUMMARY_TEXT:
        put_string(p, s->text);
        put_metadata(p, "text", CLASS_TENSOR);
        break;
    }
}

void ch__event_summary(ch_bytes_builder *p, double wall_time, int64_t step, const ch_summary *s)
{
    put_wall_time(p, wall_time);
    put_number(p, EVENT_STEP, step);
    int summary = begin(p, EVENT_SUMMARY), value = begin(p, SUMMARY_VALUE);
    put_value(p, s);
    end(p, value);
    end(p, summary);
}

/* ---- histograms ---- */

typedef struct range {
    double  least, most;
    int64_t n; /* number of finite values */
} range;

static range range_of(ch_dtype dtype, int64_t n, const char *x)
{
    range  r = {INFINITY, -INFINITY, 0};
    size_t bytes = ch_dtype_bytes(dtype);

    for (int64_t i = 0; i < n; i++, x += bytes) {
        double v = ch__load(dtype, x);

        if (!isfinite(v))
            continue;
        r.least = fmin(r.least, v);
        r.most = fmax(r.most, v);
        r.n++;
    }
    return r;
}

/* Returns the bucket of v. Computes with halves, so that a difference cannot overflow. */
static int bucket_of(const range *r, double width, double v)
{
    double at = (v / 2 - r->least / 2) / (width / 2);

    return at < CH_HISTOGRAM_BUCKETS - 1 ? (int)at : CH_HISTOGRAM_BUCKETS - 1;
}

ch_histogram ch__histogram_of(ch_dtype dtype, int64_t n, const void *x)
{
    ch_histogram h = {0};
    const char  *at = x;
    range        r = range_of(dtype, n, at);
    double       width = r.most / CH_HISTOGRAM_BUCKETS - r.least / CH_HISTOGRAM_BUCKETS;

    if (r.n == 0)
        return h;
    if (!(width / 2 > 0)) {
        h.n = 1;
        h.bucket[0][0] = r.least - 0.5;
        h.bucket[0][1] = r.most + 0.5;
        h.bucket[0][2] = (double)r.n;
        return h;
    }
    h.n = CH_HISTOGRAM_BUCKETS;
    for (int i = 0; i < h.n; i++) {
        h.bucket[i][0] = r.least + i * width;
        h.bucket[i][1] = i + 1 < h.n ? r.least + (i + 1) * width : r.most;
    }
    for (int64_t i = 0; i < n; i++, at += ch_dtype_bytes(dtype)) {
        double v = ch__load(dtype, at);

        if (isfinite(v))
            h.bucket[bucket_of(&r, width, v)][2]++;
    }
    return h;
}

/* ---- files ---- */

enum { FULL_BYTES = 64 << 10 }; /* size of the buffer that causes a write */

struct ch_events {
    char            *path;
    int              fd;
    ch_bytes_builder pending, message; /* records to be written; message under construction */
    int64_t          flush_ns, flushed_ns; /* flush interval; time of the last flush */
    ch_status        failed;               /* error of a failed write; CH_OK: none */
};

static double wall_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

ch_status ch__events_flush(ch_events *e)
{
    ch_status rc = e->failed;

    if (rc != CH_OK)
        return ch__fail(rc, "%s: an earlier write has failed", e->path);
    rc = ch__bytes_builder_write(&e->pending, e->fd, e->path);
    e->failed = rc;
    e->flushed_ns = ch__now_ns();
    return rc;
}

/* Adds e->message to the buffer as a record, and empties e->message. Writes the buffer if it is
 * full or old. */
static ch_status add_message(ch_events *e)
{
    ch_record_frame f;

    if (!e->message.has_failed) {
        f = ch__record_frame(e->message.at, (size_t)e->message.n);
        ch__bytes_builder_add(&e->pending, f.head, sizeof(f.head));
        ch__bytes_builder_add(&e->pending, e->message.at, (size_t)e->message.n);
        ch__bytes_builder_add(&e->pending, f.foot, sizeof(f.foot));
    }
    if (e->message.has_failed || e->pending.has_failed)
        return e->failed = ch__fail_memory(e->path);
    e->message.n = 0;
    if (e->pending.n < FULL_BYTES && ch__now_ns() - e->flushed_ns < e->flush_ns)
        return CH_OK;
    return ch__events_flush(e);
}

ch_status ch__events_add(ch_events *e, int64_t step, const ch_summary *s)
{
    if (e->failed != CH_OK)
        return ch__events_flush(e);
    ch__event_summary(&e->message, wall_seconds(), step, s);
    return add_message(e);
}

/* Creates the file. If the name exists, another training of this process was started in the
 * same second; then it tries the next number. */
static ch_status make_file(ch_events *e, const char *folder)
{
    char   host[65] = "";
    size_t room = strlen(folder) + 200;

    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof(host), "localhost");
    e->path = ch__malloc(room);
    if (e->path == NULL)
        return ch__fail_memory(folder);
    for (int i = 0; e->fd < 0; i++) {
        snprintf(e->path, room, "%s/events.out.tfevents.%010lld.%s.%ld.%d.v2", folder,
                 (long long)wall_seconds(), host, (long)getpid(), i);
        e->fd = ch__sys_open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0666);
        if (e->fd < 0 && errno != EEXIST)
            return ch__fail_errno(errno, "%s: cannot be created", e->path);
    }
    return CH_OK;
}

static void drop(ch_events *e)
{
    if (e->fd >= 0)
        ch__sys_close(e->fd);
    ch__bytes_builder_drop(&e->pending);
    ch__bytes_builder_drop(&e->message);
    ch__free(e->path);
    ch__free(e);
}

ch_status ch__events_open(const char *folder, int64_t flush_ms, ch_events **out)
{
    ch_events *e;
    ch_status  rc = ch__folder_make(folder);

    if (rc != CH_OK)
        return rc;
    e = ch__calloc(1, sizeof(*e));
    if (e == NULL)
        return ch__fail_memory(folder);
    e->fd = -1;
    e->flush_ns = flush_ms * 1000000;
    rc = make_file(e, folder);
    if (rc == CH_OK) {
        ch__event_version(&e->message, wall_seconds());
        rc = add_message(e);
    }
    if (rc == CH_OK)
        rc = ch__events_flush(e);
    if (rc != CH_OK) {
        drop(e);
        return rc;
    }
    *out = e;
    return CH_OK;
}

ch_status ch__events_close(ch_events *e)
{
    ch_status rc = CH_OK;

    if (e == NULL)
        return CH_OK;
    if (e->failed == CH_OK)
        rc = ch__events_flush(e);
    drop(e);
    return rc;
}

const char *ch__events_path(const ch_events *e)
{
    return e->path;
}
