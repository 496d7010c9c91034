/* net/frame.c -- writing frames as bytes. read.c reads them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/frame.h"

#include <string.h>

#include "base/mem.h"
#include "base/pbwire.h"
#include "tensor/tensor.h"

/* Writes if there is room, and counts in any case: called once to measure, once to write. */
typedef struct pen {
    uint8_t *at; /* NULL: only count */
    size_t   n;
} pen;

static void put_bytes(pen *p, const void *bytes, size_t n)
{
    if (p->at != NULL && n > 0)
        memcpy(p->at + p->n, bytes, n);
    p->n += n;
}

static void put_varint(pen *p, uint64_t v)
{
    uint8_t  text[10];
    unsigned n = 0;

    for (; v >= 0x80; v >>= 7)
        text[n++] = (uint8_t)(v | 0x80);
    text[n++] = (uint8_t)v;
    put_bytes(p, text, n);
}

/* A field that is 0 is left out, as proto3 has it. */
static void put_number(pen *p, int field, uint64_t v)
{
    if (v == 0)
        return;
    put_varint(p, (uint64_t)field << 3 | CH_WIRE_VARINT);
    put_varint(p, v);
}

static void put_field(pen *p, int field, const void *bytes, size_t n)
{
    put_varint(p, (uint64_t)field << 3 | CH_WIRE_BYTES);
    put_varint(p, n);
    put_bytes(p, bytes, n);
}

static void put_text(pen *p, int field, const char *text, size_t most)
{
    size_t n = strnlen(text, most);

    if (n > 0)
        put_field(p, field, text, n);
}

/* ---- tensors ---- */

/* Bytes of its elements in a frame: strings as a table of lengths and their texts. */
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

static void put_strings(pen *p, const ch_str *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint64_t row[2] = {s[i].size, 0};

        put_bytes(p, row, sizeof(row));
    }
    for (int64_t i = 0; i < n; i++)
        put_bytes(p, s[i].data, s[i].size);
}

static void put_look(pen *p, ch_tensor *t)
{
    uint8_t text[16 * (CH_MAX_RANK + 2)];
    uint8_t sizes[10 * CH_MAX_RANK];
    pen     look = {.at = text}, shape = {.at = sizes};

    put_number(&look, 1, (uint64_t)t->dtype);
    for (int i = 0; i < t->shape.rank; i++)
        put_varint(&shape, (uint64_t)t->shape.dim[i]);
    if (shape.n > 0)
        put_field(&look, 2, sizes, shape.n);
    put_number(&look, 3, (uint64_t)tensor_bytes(t, strings_of(t)));
    put_field(p, 1, text, look.n);
}

/* ---- frames ---- */

typedef struct sizes {
    size_t looks, message, tensors;
} sizes;

static void put_header(pen *p, const ch_frame *f, const sizes *s)
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
    put_number(p, 10, s->looks);
    put_number(p, 11, s->message);
    put_number(p, 12, s->tensors);
    put_number(p, 13, f->message != NULL ? (uint64_t)f->message->n_tensors : 0);
}

static void put_message(pen *p, const ch_frame *f)
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

static void put_looks(pen *p, int n, ch_tensor *const *tensor)
{
    for (int i = 0; i < n; i++)
        put_look(p, tensor[i]);
}

static void put_tensors(pen *p, int n, ch_tensor *const *tensor)
{
    for (int i = 0; i < n; i++)
        if (tensor[i]->dtype == CH_STR)
            put_strings(p, strings_of(tensor[i]), ch_tensor_count(tensor[i]));
        else
            put_bytes(p, tensor[i]->data, ch_tensor_bytes(tensor[i]));
}

static void put_frame(pen *p, const ch_frame *f, ch_tensor *const *tensor, const sizes *s)
{
    int     n = f->message != NULL ? f->message->n_tensors : 0;
    uint8_t prefix[CH_FRAME_PREFIX] = {'C', 'H'};
    pen     header = {0};

    put_header(&header, f, s);
    prefix[2] = (uint8_t)header.n;
    prefix[3] = (uint8_t)(header.n >> 8);
    put_bytes(p, prefix, sizeof(prefix));
    put_header(p, f, s);
    put_looks(p, n, tensor);
    put_message(p, f);
    put_tensors(p, n, tensor);
}

static ch_status encode_dense(const ch_frame *f, ch_tensor *const *tensor, void **bytes,
                              size_t *size)
{
    int   n = f->message != NULL ? f->message->n_tensors : 0;
    pen   looks = {0}, message = {0}, tensors = {0}, all = {0};
    sizes s;

    put_looks(&looks, n, tensor);
    put_message(&message, f);
    put_tensors(&tensors, n, tensor);
    s = (sizes){looks.n, message.n, tensors.n};
    put_frame(&all, f, tensor, &s);
    pen out = {.at = ch__malloc(all.n)};
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
        st = ch__fail(CH_INVALID_ARGUMENT, "a frame of %d tensors; at most %d", n,
                      CH_FRAME_TENSORS);
    for (int i = 0; i < n && st == CH_OK; i++)
        st = ch_tensor_contiguous(f->message->tensor[i], &dense[i]);
    if (st == CH_OK)
        st = encode_dense(f, dense, bytes, size);
    if (dense != NULL)
        unref_all(n, dense);
    return st;
}
