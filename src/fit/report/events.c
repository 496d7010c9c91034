/* fit/report/events.c -- event files for TensorBoard (EV-1 to EV-6).
 *
 * The first part encodes Event messages of protobuf by hand. The others make histograms, and
 * write the messages as TFRecords to a file. A ch_events buffers records and appends them
 * to its file. tensorboard.c is the caller.
 *
 * Invariant: the buffer (`pending`) contains only whole records, so a reader sees a partial
 * record only if a write was interrupted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fit/report/events.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/pbwire.h"
#include "base/sys.h"
#include "base/thread.h"
#include "file/folder.h"
#include "file/record.h"
#include "tensor/tensor.h"

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

static uint64_t bits_of_f64(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static uint32_t bits_of_f32(double x)
{
    float    f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static void put_wall_time(ch_bytes_builder *p, double wall_time)
{
    ch__wire_put_fixed64(p, EVENT_WALL_TIME, bits_of_f64(wall_time));
}

void ch__event_version(ch_bytes_builder *p, double wall_time)
{
    put_wall_time(p, wall_time);
    ch__wire_put_text(p, EVENT_FILE_VERSION, "brain.Event:2");
}

static void put_scalar(ch_bytes_builder *p, double x)
{
    size_t tensor = ch__wire_begin(p, VALUE_TENSOR);

    ch__wire_put_number(p, TENSOR_DTYPE, DT_FLOAT);
    ch__wire_end(p, ch__wire_begin(p, TENSOR_SHAPE));
    size_t content = ch__wire_begin(p, TENSOR_CONTENT);
    ch__bytes_builder_fixed32(p, bits_of_f32(x));
    ch__wire_end(p, content);
    ch__wire_end(p, tensor);
}

/* Writes a dimension. A size of 0 is written too, as an empty message. */
static void put_dim(ch_bytes_builder *p, int64_t size)
{
    size_t dim = ch__wire_begin(p, SHAPE_DIM);

    ch__wire_put_number(p, DIM_SIZE, (uint64_t)size);
    ch__wire_end(p, dim);
}

/* Writes a tensor of the shape (buckets, 3). */
static void put_histogram(ch_bytes_builder *p, const ch_histogram *h)
{
    size_t tensor = ch__wire_begin(p, VALUE_TENSOR);

    ch__wire_put_number(p, TENSOR_DTYPE, DT_DOUBLE);
    size_t shape = ch__wire_begin(p, TENSOR_SHAPE);
    put_dim(p, h->n);
    put_dim(p, 3);
    ch__wire_end(p, shape);
    size_t content = ch__wire_begin(p, TENSOR_CONTENT);
    for (int i = 0; i < h->n; i++)
        for (int k = 0; k < 3; k++)
            ch__bytes_builder_fixed64(p, bits_of_f64(h->bucket[i][k]));
    ch__wire_end(p, content);
    ch__wire_end(p, tensor);
}

static void put_string(ch_bytes_builder *p, ch_str text)
{
    size_t tensor = ch__wire_begin(p, VALUE_TENSOR);

    ch__wire_put_number(p, TENSOR_DTYPE, DT_STRING);
    ch__wire_end(p, ch__wire_begin(p, TENSOR_SHAPE));
    ch__wire_put_bytes(p, TENSOR_STRING, text.data, text.size);
    ch__wire_end(p, tensor);
}

static void put_metadata(ch_bytes_builder *p, const char *plugin, int data_class)
{
    size_t metadata = ch__wire_begin(p, VALUE_METADATA),
           data = ch__wire_begin(p, METADATA_PLUGIN);

    ch__wire_put_text(p, PLUGIN_NAME, plugin);
    ch__wire_end(p, data);
    ch__wire_put_number(p, METADATA_CLASS, (uint64_t)data_class);
    ch__wire_end(p, metadata);
}

static void put_value(ch_bytes_builder *p, const ch_summary *s)
{
    ch__wire_put_text(p, VALUE_TAG, s->tag);
    switch (s->kind) {
    case CH_SUMMARY_SIMPLE:
        ch__wire_put_fixed32(p, VALUE_SIMPLE, bits_of_f32(s->value));
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
    ch__wire_put_number(p, EVENT_STEP, (uint64_t)step);
    size_t summary = ch__wire_begin(p, EVENT_SUMMARY), value = ch__wire_begin(p, SUMMARY_VALUE);
    put_value(p, s);
    ch__wire_end(p, value);
    ch__wire_end(p, summary);
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
        f = ch__record_frame(e->message.at, e->message.n);
        ch__bytes_builder_add(&e->pending, f.head, sizeof(f.head));
        ch__bytes_builder_add(&e->pending, e->message.at, e->message.n);
        ch__bytes_builder_add(&e->pending, f.foot, sizeof(f.foot));
    }
    if (e->message.has_failed || e->pending.has_failed)
        return e->failed = ch__fail_memory(e->path);
    ch__bytes_builder_clear(&e->message);
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
