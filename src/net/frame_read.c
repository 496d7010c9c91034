/* net/frame_read.c -- reading frames, from whoever may have sent them.
 *
 * Nothing is believed before it is checked against what was already checked: the header's sizes against `most`, the looks
 * against the header, the elements against the looks. Memory follows the bytes that come, at most 16 MiB ahead of them:
 * what is read into grows by 8 MiB, and a message is at most 8 MiB, because it is there twice for a moment.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "base/pbwire.h"
#include "net/frame.h"
#include "tensor/tensor.h"

static const uint64_t most_message = CH_MESSAGE_MAX_BYTES, most_looks = 1 << 20;
static const size_t   ahead = 8 << 20;

/* What a tensor will be. */
typedef struct ch_tensor_header {
    ch_dtype dtype;
    ch_shape shape;
    int64_t  count;
    size_t   bytes;
} ch_tensor_header;

static ch_status refuse(const char *why)
{
    return ch__fail(CH_DATA_LOSS, "a frame from a peer is damaged: %s", why);
}

static ch_status refuse_wire(const ch_wire *w)
{
    return refuse(w->fault);
}

static uint64_t number_of(const ch_wire_field *f)
{
    ch_wire      w = ch__wire(f->data.at, ch__wire_bytes(f->data));
    ch_wire_span s = f->data;
    uint64_t     v = 0;

    ch__wire_varint(&w, &s, &v); /* it was read once already */
    return v;
}

/* ---- the header ---- */

/* Numbers of the fields, by field. */
enum { N_FIELDS = 14 };

static ch_status read_numbers(const uint8_t *bytes, size_t n, uint64_t field[N_FIELDS])
{
    ch_wire       w = ch__wire(bytes, n);
    ch_wire_span  s = w.all;
    ch_wire_field f;

    while (ch__wire_next(&w, &s, &f))
        if (f.number < N_FIELDS) {
            if (f.type != CH_WIRE_VARINT)
                return refuse("a field of its header is no number");
            field[f.number] = number_of(&f);
        }
    return w.fault != NULL ? refuse_wire(&w) : CH_OK;
}

/* What kinds of frames have, and what they do not have. */
static ch_status check_kind(const uint64_t *v)
{
    bool has_parcel = v[2] == CH_FRAME_CALL || (v[2] == CH_FRAME_REPLY && v[7] == CH_ENDED_OK);

    if (v[2] < CH_FRAME_CALL || v[2] > CH_FRAME_CANCEL)
        return refuse("it is neither call nor answer nor cancel");
    if (v[2] == CH_FRAME_REPLY ? v[7] > CH_ENDED_NO_ROOM : v[7] != 0)
        return refuse("it ends in a way that nothing ends in");
    if (v[8] >= CH_STATUS_COUNT)
        return refuse("its status is none");
    if (v[6] > INT64_MAX || v[9] > UINT32_MAX)
        return refuse("a number of its header is too large");
    if (!has_parcel && (v[9] | v[10] | v[12] | v[13]) != 0)
        return refuse("it holds what only calls and answers hold");
    if (!has_parcel && !(v[2] == CH_FRAME_REPLY && v[7] == CH_ENDED_ERROR) && v[11] != 0)
        return refuse("it holds a message that nobody reads");
    return CH_OK;
}

static ch_status check_sizes(const ch_frame_reader *r, const uint64_t *v)
{
    uint64_t all;

    if (v[13] > CH_FRAME_TENSORS || v[10] > most_looks || v[11] > most_message)
        return ch__fail_limit("a frame from a peer has %llu tensors and a message of %llu "
                              "bytes; at most %d and %llu are read",
                              (unsigned long long)v[13], (unsigned long long)v[11],
                              CH_FRAME_TENSORS, (unsigned long long)most_message);
    if (__builtin_add_overflow(v[10] + v[11], v[12], &all) || all > (uint64_t)r->most)
        return ch__fail_limit(
            "a frame from a peer says that it has %llu bytes; at most %lld are read",
            (unsigned long long)v[12], (long long)r->most);
    return CH_OK;
}

static ch_status read_header(ch_frame_reader *r)
{
    uint64_t  v[N_FIELDS] = {0};
    ch_status st = read_numbers(r->head, r->n_head, v);

    if (st == CH_OK && v[1] != CH_FRAME_VERSION)
        return ch__fail(
            CH_DATA_LOSS,
            "a frame from a peer has version %llu, this program reads %d: both must "
            "be of one release",
            (unsigned long long)v[1], CH_FRAME_VERSION);
    if (st == CH_OK)
        st = check_kind(v);
    if (st == CH_OK)
        st = check_sizes(r, v);
    if (st != CH_OK)
        return st;
    r->frame = (ch_frame){.kind = (ch_frame_kind)v[2],
                          .ending = (ch_ending)v[7],
                          .status = (ch_status)v[8],
                          .call = v[3],
                          .from = v[4],
                          .to = v[5],
                          .timeout = (int64_t)v[6]};
    r->method = (uint32_t)v[9];
    r->looks_bytes = v[10];
    r->message_bytes = v[11];
    r->tensors_bytes = v[12];
    r->n_tensors = (int)v[13];
    return CH_OK;
}

/* ---- what tensors look like ---- */

static ch_status read_shape(const ch_wire_field *f, ch_shape *shape)
{
    ch_wire      w = ch__wire(f->data.at, ch__wire_bytes(f->data));
    ch_wire_span s = f->data;
    uint64_t     v;

    /* Packed, as writers write it, or one by one. */
    do {
        if (!ch__wire_varint(&w, &s, &v))
            return s.at == s.end ? CH_OK : refuse_wire(&w);
        if (shape->rank == CH_MAX_RANK || v > INT64_MAX)
            return refuse("a tensor has too many axes, or too large ones");
        shape->dim[shape->rank++] = (int64_t)v;
    } while (s.at < s.end);
    return CH_OK;
}

static ch_status check_look(ch_tensor_header *l)
{
    int64_t bytes;

    if (ch__tensor_size(l->dtype, l->shape, &l->count, &bytes) != CH_OK)
        return refuse("a tensor is larger than memory");
    if (l->dtype == CH_STR ? l->bytes < (uint64_t)bytes : l->bytes != (uint64_t)bytes)
        return refuse("a tensor has not as many bytes as its shape needs");
    return CH_OK;
}

static ch_status read_look(ch_wire_span s, ch_tensor_header *l)
{
    ch_wire       w = ch__wire(s.at, ch__wire_bytes(s));
    ch_wire_field f;
    ch_status     st = CH_OK;

    while (st == CH_OK && ch__wire_next(&w, &s, &f)) {
        if (f.number == 2 && (f.type == CH_WIRE_BYTES || f.type == CH_WIRE_VARINT))
            st = read_shape(&f, &l->shape);
        else if (f.number <= 3 && f.type != CH_WIRE_VARINT)
            st = refuse("what a tensor looks like is no number");
        else if (f.number == 1 && number_of(&f) >= CH_DTYPE_COUNT)
            st = refuse("a tensor's elements are of a type that none is");
        else if (f.number == 1)
            l->dtype = (ch_dtype)number_of(&f);
        else if (f.number == 3)
            l->bytes = (size_t)number_of(&f);
    }
    if (st == CH_OK && w.fault != NULL)
        st = refuse_wire(&w);
    return st == CH_OK ? check_look(l) : st;
}

static ch_status read_each_look(ch_frame_reader *r)
{
    ch_wire       w = ch__wire(r->body, r->looks_bytes);
    ch_wire_span  s = w.all;
    ch_wire_field f;
    int           n = 0;
    uint64_t      left = r->tensors_bytes;
    ch_status     st = CH_OK;

    while (st == CH_OK && ch__wire_next(&w, &s, &f)) {
        if (f.number != 1 || f.type != CH_WIRE_BYTES)
            continue;
        if (n == r->n_tensors)
            return refuse("it has more tensors than it says");
        st = read_look(f.data, &r->look[n]);
        if (st == CH_OK && r->look[n].bytes > left)
            return refuse("its tensors have more bytes than it says");
        left -= r->look[n++].bytes;
    }
    if (st != CH_OK || w.fault != NULL)
        return st != CH_OK ? st : refuse_wire(&w);
    return n == r->n_tensors && left == 0 ? CH_OK : refuse("it has fewer tensors than it says");
}

static ch_status read_looks(ch_frame_reader *r)
{
    if (r->n_tensors == 0)
        return r->tensors_bytes == 0 ? CH_OK : refuse("it has bytes of no tensor");
    r->look = ch__calloc((size_t)r->n_tensors, sizeof(*r->look));
    r->tensor = ch__calloc((size_t)r->n_tensors, sizeof(*r->tensor));
    if (r->look == NULL || r->tensor == NULL)
        return ch__fail_memory("a frame's tensors");
    return read_each_look(r);
}

/* ---- faults ---- */

static void copy_text(ch_wire_span s, char *to, size_t size)
{
    size_t n = ch__wire_bytes(s) < size - 1 ? ch__wire_bytes(s) : size - 1;

    memcpy(to, s.at, n);
    to[n] = '\0';
}

static ch_status read_fault(ch_frame_reader *r)
{
    ch_wire       w = ch__wire(r->body, r->message_bytes);
    ch_wire_span  s = w.all;
    ch_wire_field f;
    ch_fault     *fault = ch__malloc(sizeof(*fault));

    if (fault == NULL)
        return ch__fail_memory("a frame's fault");
    r->frame.fault = fault;
    ch__fault_clear(fault);
    fault->code = r->frame.status != CH_OK ? r->frame.status : CH_UNKNOWN;
    fault->replica = 0;
    fault->is_limit = false;
    while (ch__wire_next(&w, &s, &f)) {
        uint64_t v = f.type == CH_WIRE_VARINT ? number_of(&f) : 0;

        if (f.type == CH_WIRE_BYTES && f.number == 1)
            copy_text(f.data, fault->text, sizeof(fault->text));
        else if (f.type == CH_WIRE_BYTES && f.number == 2)
            copy_text(f.data, fault->op, sizeof(fault->op));
        else if (f.type == CH_WIRE_BYTES && f.number == 3)
            copy_text(f.data, fault->task, sizeof(fault->task));
        else if (f.type == CH_WIRE_VARINT && f.number == 4)
            fault->replica = (int)((uint32_t)v >> 1 ^ -((uint32_t)v & 1));
        else if (f.type == CH_WIRE_VARINT && f.number == 5)
            fault->is_limit = v != 0;
    }
    ch__fault_set(fault);
    return w.fault != NULL ? refuse_wire(&w) : CH_OK;
}

/* ---- elements ---- */

static void release_data(void *data)
{
    ch__free(data);
}

/* Rows of the lengths become strings in place: the texts lie behind them. */
static ch_status set_strings(uint8_t *data, const ch_tensor_header *l)
{
    ch_str  *s = (ch_str *)(void *)data;
    uint8_t *text = data + (size_t)l->count * sizeof(ch_str);
    size_t   left = l->bytes - (size_t)l->count * sizeof(ch_str);
    uint64_t row[2];

    _Static_assert(sizeof(row) == sizeof(ch_str), "a row of the wire is as long as a string");
    for (int64_t i = 0; i < l->count; i++) {
        memcpy(row, &s[i], sizeof(row));
        if (row[0] > left)
            return refuse("a string is longer than what is left");
        s[i] = (ch_str){(const char *)text, (size_t)row[0]};
        text += row[0];
        left -= (size_t)row[0];
    }
    return left == 0 ? CH_OK : refuse("there is text that no string has");
}

static ch_status end_tensor(ch_frame_reader *r)
{
    const ch_tensor_header *l = &r->look[r->n_done];
    ch_status               st = CH_OK;

    if (r->data == NULL)
        st = ch_tensor_new(l->dtype, l->shape, &r->tensor[r->n_done]);
    else if (l->dtype == CH_STR)
        st = set_strings(r->data, l);
    if (st == CH_OK && r->data != NULL)
        st = ch_tensor_wrap(l->dtype, l->shape, r->data, release_data, r->data,
                            &r->tensor[r->n_done]);
    if (st != CH_OK)
        return st;
    r->data = NULL;
    r->n_data = r->cap_data = 0;
    r->n_done++;
    return CH_OK;
}

/* ---- whole frames ---- */

static void forget(ch_frame_reader *r)
{
    for (int i = 0; r->tensor != NULL && i < r->n_tensors; i++)
        ch_tensor_unref(r->tensor[i]);
    ch__free(r->tensor);
    ch__free(r->look);
    ch__free(r->body);
    ch__free(r->data);
    *r = (ch_frame_reader){.most = r->most, .frame = r->frame};
}

void ch__frame_reader_drop(ch_frame_reader *r)
{
    ch__frame_drop(&r->frame);
    forget(r);
}

static ch_status end_frame(ch_frame_reader *r)
{
    bool has_parcel = r->frame.kind == CH_FRAME_CALL ||
                      (r->frame.kind == CH_FRAME_REPLY && r->frame.ending == CH_ENDED_OK);
    void     *bytes;
    ch_status st = CH_OK;

    if (has_parcel) {
        st = ch__message_new(r->method, r->message_bytes, &bytes, r->n_tensors, r->tensor,
                             &r->frame.message);
        ch__free(r->tensor); /* the tensors are the parcel's, or gone */
        r->tensor = NULL;
        if (st == CH_OK && r->message_bytes > 0)
            memcpy(bytes, r->body + r->looks_bytes, r->message_bytes);
    } else if (r->frame.ending == CH_ENDED_ERROR) {
        st = read_fault(r);
    }
    if (st == CH_OK)
        forget(r);
    return st;
}

/* Takes bytes into a block of `want`, which grows with what comes. */
static ch_status fill(uint8_t **block, size_t *n, size_t *cap, size_t want,
                      const uint8_t *bytes, size_t some)
{
    if (*n + some > *cap) {
        size_t   size = *n + some + ahead < want ? *n + some + ahead : want;
        uint8_t *larger = ch__realloc(*block, size);

        if (larger == NULL)
            return ch__fail_memory("a frame's bytes");
        *block = larger;
        *cap = size;
    }
    memcpy(*block + *n, bytes, some);
    *n += some;
    return CH_OK;
}

/* How many bytes this part still needs. */
static size_t part_left(const ch_frame_reader *r)
{
    switch (r->part) {
    case CH_READ_PREFIX:
        return CH_FRAME_PREFIX - r->n_head;
    case CH_READ_HEADER:
        return r->header_bytes - r->n_head;
    case CH_READ_BODY:
        return (size_t)(r->looks_bytes + r->message_bytes) - r->n_body;
    case CH_READ_TENSOR:
        return r->n_done < r->n_tensors ? r->look[r->n_done].bytes - r->n_data : 0;
    }
    return 0;
}

static ch_status part_take(ch_frame_reader *r, const uint8_t *bytes, size_t n)
{
    if (r->part == CH_READ_BODY)
        return fill(&r->body, &r->n_body, &r->cap_body,
                    (size_t)(r->looks_bytes + r->message_bytes), bytes, n);
    if (r->part == CH_READ_TENSOR)
        return fill(&r->data, &r->n_data, &r->cap_data, r->look[r->n_done].bytes, bytes, n);
    memcpy(r->head + r->n_head, bytes, n);
    r->n_head += n;
    return CH_OK;
}

static ch_status end_prefix(ch_frame_reader *r)
{
    unsigned length = r->head[2] | (unsigned)r->head[3] << 8;

    if (r->head[0] != 'C' || r->head[1] != 'H' || length == 0 || length > CH_FRAME_HEADER)
        return refuse("it does not begin as one");
    r->header_bytes = length;
    r->n_head = 0;
    r->part = CH_READ_HEADER;
    return CH_OK;
}

/* The part is there: on to the next. */
static ch_status part_end(ch_frame_reader *r, bool *is_whole)
{
    ch_status st = CH_OK;

    switch (r->part) {
    case CH_READ_PREFIX:
        return end_prefix(r);
    case CH_READ_HEADER:
        r->part = CH_READ_BODY;
        return read_header(r);
    case CH_READ_BODY:
        r->part = CH_READ_TENSOR;
        return read_looks(r);
    case CH_READ_TENSOR:
        if (r->n_done < r->n_tensors)
            st = end_tensor(r);
        if (st == CH_OK && r->n_done == r->n_tensors) {
            st = end_frame(r);
            *is_whole = st == CH_OK;
        }
        return st;
    }
    return st;
}

ch_status ch__frame_read(ch_frame_reader *r, const void *bytes, size_t n, size_t *used,
                         bool *is_whole)
{
    const uint8_t *at = bytes;
    ch_status      st = CH_OK;

    *is_whole = false;
    *used = 0;
    while (st == CH_OK && !*is_whole) {
        size_t left = part_left(r), some = left < n - *used ? left : n - *used;

        if (some > 0)
            st = part_take(r, at + *used, some);
        *used += some;
        if (st == CH_OK && some == left)
            st = part_end(r, is_whole);
        else if (st == CH_OK)
            break; /* more must come */
    }
    return st;
}
