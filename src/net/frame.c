/* net/frame.c -- encodes frames as bytes. frame_read.c decodes them.
 *
 * doc/transport.md describes the format. A ch_frame_vec (frame.h) is one block of memory: the
 * parts, the checksums, the head block (prefix, header, tensor headers, message) and the
 * strings, whose form in a frame differs from that in memory. All other tensors are sent from
 * where they are. The checksums of the bytes are computed just before the bytes are sent, while
 * the processor's cache has use for them.
 *
 * Each put_ function writes to a `writer`. Everything is written twice: first without memory,
 * to measure it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/frame.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/pbwire.h"
#include "file/crc32c.h"
#include "tensor/tensor.h"

/* Counts the bytes, and writes them unless `at` is NULL. */
typedef struct writer {
    uint8_t *at; /* NULL: count only */
    size_t   n;  /* bytes so far */
} writer;

static void put_bytes(writer *p, const void *bytes, size_t n)
{
    if (p->at != NULL && n > 0)
        memcpy(p->at + p->n, bytes, n);
    p->n += n;
}

static void put_varint(writer *p, uint64_t v)
{
    uint8_t text[CH_VARINT_BYTES];

    put_bytes(p, text, (size_t)(ch__put_varint(text, v) - text));
}

/* Omits a field that is 0, as proto3 does. */
static void put_number(writer *p, int field, uint64_t v)
{
    if (v == 0)
        return;
    put_varint(p, (uint64_t)field << 3 | CH_WIRE_VARINT);
    put_varint(p, v);
}

static void put_field(writer *p, int field, const void *bytes, size_t n)
{
    put_varint(p, (uint64_t)field << 3 | CH_WIRE_BYTES);
    put_varint(p, n);
    put_bytes(p, bytes, n);
}

static void put_text(writer *p, int field, const char *text, size_t max_bytes)
{
    size_t n = strnlen(text, max_bytes);

    if (n > 0)
        put_field(p, field, text, n);
}

/* ---- tensors ---- */

/* Returns the bytes of the elements in a frame. Strings `s` are a table of lengths, then the
 * texts; NULL: the tensor has no strings. */
static int64_t tensor_bytes(ch_tensor *t, const ch_str *s)
{
    int64_t bytes = (int64_t)ch_tensor_bytes(t);

    for (int64_t i = 0; s != NULL && i < ch_tensor_count(t); i++)
        bytes += (int64_t)s[i].size;
    return bytes;
}

static const ch_str *strings_of(const ch_tensor *t)
{
    return t->dtype == CH_STR ? (const ch_str *)(const void *)t->data : NULL;
}

/* Writes 16 bytes for each string, its length and 8 bytes of 0, and then all texts. */
static void put_strings(writer *p, const ch_str *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint64_t row[2] = {s[i].size, 0};

        put_bytes(p, row, sizeof(row));
    }
    for (int64_t i = 0; i < n; i++)
        put_bytes(p, s[i].data, s[i].size);
}

static void put_tensor_header(writer *p, ch_tensor *t)
{
    uint8_t text[16 * (CH_MAX_RANK + 2)];
    uint8_t sizes[CH_VARINT_BYTES * CH_MAX_RANK];
    writer  header = {.at = text}, shape = {.at = sizes};

    put_number(&header, 1, (uint64_t)t->dtype);
    for (int i = 0; i < t->shape.rank; i++)
        put_varint(&shape, (uint64_t)t->shape.dim[i]);
    if (shape.n > 0)
        put_field(&header, 2, sizes, shape.n);
    put_number(&header, 3, (uint64_t)tensor_bytes(t, strings_of(t)));
    put_field(p, 1, text, header.n);
}

/* ---- frames ---- */

/* Sizes of the parts behind the header, in bytes. */
typedef struct sizes {
    size_t headers, message, tensors;
} sizes;

static void put_header(writer *p, const ch_frame *f, const sizes *s)
{
    put_number(p, 1, CH_FRAME_VERSION);
    put_number(p, 2, (uint64_t)f->kind);
    put_number(p, 3, f->call);
    put_number(p, 4, f->from);
    put_number(p, 5, f->to);
    put_number(p, 6, (uint64_t)f->timeout);
    put_number(p, 7, (uint64_t)f->ending);
    put_number(p, 8, (uint64_t)f->status);
    put_number(p, 9, f->message != NULL ? f->message->method : 0);
    put_number(p, 10, s->headers);
    put_number(p, 11, s->message);
    put_number(p, 12, s->tensors);
    put_number(p, 13, f->message != NULL ? (uint64_t)f->message->n_tensors : 0);
}

static void put_message(writer *p, const ch_frame *f)
{
    const ch_fault *fault = f->fault;

    if (f->message != NULL)
        put_bytes(p, f->message->bytes, f->message->n_bytes);
    if (fault == NULL)
        return;
    put_text(p, 1, fault->text, sizeof(fault->text));
    put_text(p, 2, fault->op, sizeof(fault->op));
    put_text(p, 3, fault->task, sizeof(fault->task));
    put_number(p, 4, (uint32_t)fault->replica << 1 ^ (uint32_t)(fault->replica >> 31));
    put_number(p, 5, fault->is_limit);
}

static void put_tensor_headers(writer *p, int n, ch_tensor *const *tensor)
{
    for (int i = 0; i < n; i++)
        put_tensor_header(p, tensor[i]);
}

static void put_tensors(writer *p, int n, ch_tensor *const *tensor)
{
    for (int i = 0; i < n; i++)
        if (tensor[i]->dtype == CH_STR)
            put_strings(p, strings_of(tensor[i]), ch_tensor_count(tensor[i]));
        else
            put_bytes(p, tensor[i]->data, ch_tensor_bytes(tensor[i]));
}

/* ---- checksums ---- */

size_t ch__frame_sums_bytes(uint64_t n)
{
    return (size_t)(n / CH_FRAME_PIECE + (n % CH_FRAME_PIECE > 0)) * CH_FRAME_CHECKSUM;
}

void ch__frame_sums_end(ch_frame_sums *s)
{
    if (s->n_last == 0)
        return;
    ch__put_le(s->sum + s->n, s->crc, CH_FRAME_CHECKSUM);
    s->n += CH_FRAME_CHECKSUM;
    s->crc = 0;
    s->n_last = 0;
}

void ch__frame_sums_add(ch_frame_sums *s, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;

    while (n > 0) {
        size_t left = CH_FRAME_PIECE - s->n_last, part = n < left ? n : left;

        s->crc = ch__crc32c(s->crc, at, part);
        s->n_last += part;
        at += part;
        n -= part;
        if (s->n_last == CH_FRAME_PIECE)
            ch__frame_sums_end(s);
    }
}

/* ---- frames as parts ---- */

/* Writes everything that is not sent from where it is: the head block, then strings. */
static void put_head(writer *p, const ch_frame *f, ch_tensor *const *tensor, const sizes *s,
                     bool has_checksum)
{
    int     n = f->message != NULL ? f->message->n_tensors : 0;
    uint8_t prefix[CH_FRAME_PREFIX] = {'C', 'H'}, sum[CH_FRAME_CHECKSUM] = {0};
    writer  header = {0};

    put_header(&header, f, s);
    prefix[2] = (uint8_t)header.n;
    prefix[3] = (uint8_t)(header.n >> 8);
    put_bytes(p, prefix, sizeof(prefix));
    put_header(p, f, s);
    if (has_checksum && p->at != NULL)
        ch__put_le(sum, ch__crc32c(0, p->at, p->n), sizeof(sum));
    if (has_checksum)
        put_bytes(p, sum, sizeof(sum));
    put_tensor_headers(p, n, tensor);
    put_message(p, f);
}

static size_t strings_bytes(int n, ch_tensor *const *tensor)
{
    writer p = {0};

    for (int i = 0; i < n; i++)
        if (tensor[i]->dtype == CH_STR)
            put_strings(&p, strings_of(tensor[i]), ch_tensor_count(tensor[i]));
    return p.n;
}

/* Adds a part, unless it is empty. */
static void add_part(ch_frame_vec *v, const void *at, size_t n)
{
    if (n > 0)
        v->part[v->n_parts++] = (struct iovec){.iov_base = (void *)(uintptr_t)at, .iov_len = n};
    v->size += n;
}

/* Allocates a vector with room for the parts of n tensors and for `bytes` bytes behind them,
 * which *room is set to. */
static ch_frame_vec *vec_alloc(int n, size_t bytes, uint8_t **room)
{
    size_t        tensors = (size_t)n * sizeof(ch_tensor *);
    size_t        parts = ((size_t)n + 2) * sizeof(struct iovec);
    ch_frame_vec *v = ch__malloc(sizeof(*v) + tensors + parts + bytes);

    if (v == NULL)
        return NULL;
    *v = (ch_frame_vec){.part = (struct iovec *)(void *)((char *)(v + 1) + tensors)};
    *room = (uint8_t *)v->part + parts;
    return v;
}

/* Encodes a frame whose tensors are contiguous, and takes over the references to them. */
static ch_status vec_of(const ch_frame *f, ch_tensor *const *tensor, bool has_checksums,
                        ch_frame_vec **out)
{
    int           n = f->message != NULL ? f->message->n_tensors : 0;
    writer        headers = {0}, message = {0}, tensors = {0}, head = {0}, strings;
    size_t        sum_bytes = 0;
    uint8_t      *room;
    sizes         s;
    ch_frame_vec *v;

    put_tensor_headers(&headers, n, tensor);
    put_message(&message, f);
    put_tensors(&tensors, n, tensor);
    s = (sizes){headers.n, message.n, tensors.n};
    put_head(&head, f, tensor, &s, has_checksums);
    if (has_checksums)
        sum_bytes = ch__frame_sums_bytes((uint64_t)headers.n + message.n + tensors.n);
    v = vec_alloc(n, head.n + strings_bytes(n, tensor) + sum_bytes, &room);
    if (v == NULL)
        return ch__fail_memory("frame");
    v->has_checksums = has_checksums;
    v->n_tensors = n;
    v->header = head.n - headers.n - message.n;
    v->sums.sum = room;
    head = (writer){.at = room + sum_bytes};
    put_head(&head, f, tensor, &s, has_checksums);
    add_part(v, head.at, head.n);
    strings = (writer){.at = head.at + head.n};
    for (int i = 0; i < n; i++) {
        size_t before = strings.n;

        v->tensor[i] = tensor[i];
        if (tensor[i]->dtype != CH_STR) {
            add_part(v, tensor[i]->data, ch_tensor_bytes(tensor[i]));
            continue;
        }
        put_strings(&strings, strings_of(tensor[i]), ch_tensor_count(tensor[i]));
        add_part(v, strings.at + before, strings.n - before);
    }
    add_part(v, v->sums.sum, sum_bytes);
    *out = v;
    return CH_OK;
}

static void unref_all(int n, ch_tensor *const *tensor)
{
    for (int i = 0; i < n; i++)
        ch_tensor_unref(tensor[i]);
}

ch_status ch__frame_vec_new(const ch_frame *f, bool has_checksums, ch_frame_vec **out)
{
    enum { FEW = 16 };
    int         n = f->message != NULL ? f->message->n_tensors : 0;
    ch_tensor  *few[FEW] = {NULL};
    ch_tensor **dense = few;
    ch_status   st = CH_OK;

    if (n > CH_FRAME_TENSORS)
        return ch__fail(CH_INVALID_ARGUMENT, "frame: %d tensors (want at most %d)", n,
                        CH_FRAME_TENSORS);
    if (n > FEW)
        dense = ch__calloc((size_t)n, sizeof(ch_tensor *));
    if (dense == NULL)
        return ch__fail_memory("frame");
    for (int i = 0; i < n && st == CH_OK; i++)
        st = ch_tensor_contiguous(f->message->tensor[i], &dense[i]);
    if (st == CH_OK)
        st = vec_of(f, dense, has_checksums, out);
    if (st != CH_OK)
        unref_all(n, dense);
    if (dense != few)
        ch__free(dense);
    return st;
}

/* Computes the checksums of the bytes of a part from `at` on, as far as that was not done.
 * `place` is the place of these bytes in the frame. */
static void sum_part(ch_frame_vec *v, size_t place, const uint8_t *at, size_t n)
{
    size_t done = v->header + v->summed;

    if (place + n <= done)
        return;
    if (place < done) {
        at += done - place;
        n -= done - place;
    }
    ch__frame_sums_add(&v->sums, at, n);
    v->summed += n;
}

int ch__frame_vec_next(ch_frame_vec *v, size_t max_bytes, struct iovec *part, int max_parts)
{
    size_t at = v->first_at, place = v->sent;
    int    n = 0;

    for (int i = v->first; i < v->n_parts && n < max_parts && max_bytes > 0; i++, at = 0) {
        bool           is_sums = v->has_checksums && i == v->n_parts - 1 && i > 0;
        const uint8_t *from = (const uint8_t *)v->part[i].iov_base + at;
        size_t         bytes = v->part[i].iov_len - at;

        bytes = bytes < max_bytes ? bytes : max_bytes;
        if (is_sums)
            ch__frame_sums_end(&v->sums);
        else if (v->has_checksums)
            sum_part(v, place, from, bytes);
        part[n++] =
            (struct iovec){.iov_base = (char *)v->part[i].iov_base + at, .iov_len = bytes};
        place += bytes;
        max_bytes -= bytes;
    }
    return n;
}

void ch__frame_vec_sent(ch_frame_vec *v, size_t n)
{
    v->sent += n;
    n += v->first_at;
    while (v->first < v->n_parts && n >= v->part[v->first].iov_len)
        n -= v->part[v->first++].iov_len;
    v->first_at = n;
}

void ch__frame_vec_free(ch_frame_vec *v)
{
    if (v == NULL)
        return;
    unref_all(v->n_tensors, v->tensor);
    ch__free(v);
}

ch_status ch__frame_encode(const ch_frame *f, bool has_checksums, void **bytes, size_t *size)
{
    ch_frame_vec *v = NULL;
    ch_status     st = ch__frame_vec_new(f, has_checksums, &v);
    struct iovec  part;
    uint8_t      *to;

    if (st != CH_OK)
        return st;
    to = ch__malloc(v->size);
    if (to == NULL) {
        ch__frame_vec_free(v);
        return ch__fail_memory("frame");
    }
    while (v->sent < v->size && ch__frame_vec_next(v, v->size, &part, 1) == 1) {
        memcpy(to + v->sent, part.iov_base, part.iov_len);
        ch__frame_vec_sent(v, part.iov_len);
    }
    *bytes = to;
    *size = v->size;
    ch__frame_vec_free(v);
    return CH_OK;
}
