/* net/frame.c -- encodes frames as bytes. frame_read.c decodes them.
 *
 * The wires that need bytes call ch__frame_encode; doc/transport.md describes the format. Each
 * put_ function writes to a `writer`. A frame is written twice: first without memory, to
 * measure it, then into a block of that size.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/frame.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/pbwire.h"
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

static void put_frame(writer *p, const ch_frame *f, ch_tensor *const *tensor, const sizes *s)
{
    int     n = f->message != NULL ? f->message->n_tensors : 0;
    uint8_t prefix[CH_FRAME_PREFIX] = {'C', 'H'};
    writer  header = {0};

    put_header(&header, f, s);
    prefix[2] = (uint8_t)header.n;
    prefix[3] = (uint8_t)(header.n >> 8);
    put_bytes(p, prefix, sizeof(prefix));
    put_header(p, f, s);
    put_tensor_headers(p, n, tensor);
    put_message(p, f);
    put_tensors(p, n, tensor);
}

static ch_status encode_dense(const ch_frame *f, ch_tensor *const *tensor, void **bytes,
                              size_t *size)
{
    int    n = f->message != NULL ? f->message->n_tensors : 0;
    writer headers = {0}, message = {0}, tensors = {0}, all = {0};
    sizes  s;

    put_tensor_headers(&headers, n, tensor);
    put_message(&message, f);
    put_tensors(&tensors, n, tensor);
    s = (sizes){headers.n, message.n, tensors.n};
    put_frame(&all, f, tensor, &s);
    writer out = {.at = ch__malloc(all.n)};
    if (out.at == NULL)
        return ch__fail_memory("frame");
    put_frame(&out, f, tensor, &s);
    *bytes = out.at;
    *size = out.n;
    return CH_OK;
}

static void unref_all(int n, ch_tensor **tensor)
{
    for (int i = 0; i < n; i++)
        ch_tensor_unref(tensor[i]);
    ch__free(tensor);
}

ch_status ch__frame_encode(const ch_frame *f, void **bytes, size_t *size)
{
    int         n = f->message != NULL ? f->message->n_tensors : 0;
    ch_tensor **dense = ch__calloc((size_t)n + 1, sizeof(ch_tensor *));
    ch_status   st = dense != NULL ? CH_OK : ch__fail_memory("frame");

    if (n > CH_FRAME_TENSORS)
        st = ch__fail(CH_INVALID_ARGUMENT, "frame: %d tensors (want at most %d)", n,
                      CH_FRAME_TENSORS);
    for (int i = 0; i < n && st == CH_OK; i++)
        st = ch_tensor_contiguous(f->message->tensor[i], &dense[i]);
    if (st == CH_OK)
        st = encode_dense(f, dense, bytes, size);
    if (dense != NULL)
        unref_all(n, dense);
    return st;
}
