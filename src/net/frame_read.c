/* net/frame_read.c -- decodes frames from untrusted bytes.
 *
 * A ch_frame_reader (frame.h) receives bytes in pieces of any size. It reads a frame part by
 * part: prefix, header, body (tensor headers and message), the elements of each tensor, then
 * the checksums. For each part it says where the bytes belong (ch__frame_next): elements are
 * received into the memory in which they stay. Wires call ch__frame_next and ch__frame_got, or
 * ch__frame_read if the bytes are elsewhere; fuzz/frame.c tests both.
 *
 * Invariants:
 *   1. Every number is checked against numbers that were checked before: the sizes of the
 *      header against `max_bytes`, the tensor headers against the header, the elements against
 *      the tensor headers.
 *   2. The memory follows the bytes received, at most 16 MiB ahead of them. Blocks grow by at
 *      most 8 MiB beyond the bytes received. A message has at most 8 MiB, because it is in
 *      memory twice for a moment. A kept block of the pool has its whole size at once.
 *   3. With checksums, no number of a header is used before the header's checksum was compared,
 *      and no frame is complete before all others were.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/pbwire.h"
#include "file/crc32c.h"
#include "net/frame.h"
#include "net/hello.h"
#include "tensor/tensor.h"

static const uint64_t max_message_bytes = CH_MESSAGE_MAX_BYTES, max_headers_bytes = 1 << 20;
static const size_t   growth_bytes = 8 << 20; /* of a block, beyond the bytes received */

/* The type and size of a tensor. */
typedef struct ch_tensor_header {
    ch_dtype dtype;
    ch_shape shape;
    int64_t  count; /* elements */
    size_t   bytes; /* of the elements in the frame */
} ch_tensor_header;

static ch_status fail_damaged(const char *why)
{
    return ch__fail(CH_DATA_LOSS, "frame from a peer: damaged: %s", why);
}

static ch_status fail_wire(const ch_wire *w)
{
    return fail_damaged(w->fault);
}

static uint64_t number_of(const ch_wire_field *f)
{
    ch_wire      w = ch__wire(f->data.at, ch__wire_bytes(f->data));
    ch_wire_span s = f->data;
    uint64_t     v = 0;

    ch__wire_varint(&w, &s, &v); /* cannot fail: ch__wire_next has read it */
    return v;
}

/* ---- the header ---- */

/* One more than the largest field number of cohort.FrameHeader. */
enum { N_FIELDS = 14 };

/* Reads the header into field[], by field number. Skips unknown fields. */
static ch_status read_numbers(const uint8_t *bytes, size_t n, uint64_t field[N_FIELDS])
{
    ch_wire       w = ch__wire(bytes, n);
    ch_wire_span  s = w.all;
    ch_wire_field f;

    while (ch__wire_next(&w, &s, &f))
        if (f.number < N_FIELDS) {
            if (f.type != CH_WIRE_VARINT)
                return fail_damaged("a header field is not a number");
            field[f.number] = number_of(&f);
        }
    return w.fault != NULL ? fail_wire(&w) : CH_OK;
}

/* Checks that a frame has the fields of its kind, and no others. */
static ch_status check_kind(const uint64_t *v)
{
    bool has_message = v[2] == CH_FRAME_CALL || (v[2] == CH_FRAME_REPLY && v[7] == CH_ENDED_OK);
    bool has_text = (v[2] == CH_FRAME_REPLY && v[7] == CH_ENDED_ERROR) ||
                    v[2] == CH_FRAME_HELLO || v[2] == CH_FRAME_REFUSAL;

    if (v[2] < CH_FRAME_CALL || v[2] > CH_FRAME_BYE)
        return fail_damaged("its kind is unknown");
    if (v[2] == CH_FRAME_REPLY ? v[7] > CH_ENDED_NO_ROOM : v[7] != 0)
        return fail_damaged("its ending is unknown, or it is not a reply");
    if (v[8] >= CH_STATUS_COUNT)
        return fail_damaged("its status is unknown");
    if (v[6] > INT64_MAX || v[9] > UINT32_MAX)
        return fail_damaged("a number in the header is too large");
    if (!has_message && (v[9] | v[10] | v[12] | v[13]) != 0)
        return fail_damaged("it has a method or tensors, which only calls and replies have");
    if (!has_message && !has_text && v[11] != 0)
        return fail_damaged("it has a message, which this kind of frame must not have");
    return CH_OK;
}

static ch_status check_sizes(const ch_frame_reader *r, const uint64_t *v)
{
    uint64_t all;

    if (v[13] > CH_FRAME_TENSORS || v[10] > max_headers_bytes || v[11] > max_message_bytes)
        return ch__fail_limit("frame from a peer: %llu tensors and a message of %llu "
                              "bytes (want at most %d and %llu)",
                              (unsigned long long)v[13], (unsigned long long)v[11],
                              CH_FRAME_TENSORS, (unsigned long long)max_message_bytes);
    if (v[2] == CH_FRAME_HELLO && v[11] > CH_HELLO_BYTES)
        return ch__fail_limit("frame from a peer: a hello of %llu bytes (want at most %d)",
                              (unsigned long long)v[11], CH_HELLO_BYTES);
    if (__builtin_add_overflow(v[10] + v[11], v[12], &all) || all > (uint64_t)r->max_bytes)
        return ch__fail_limit(
            "frame from a peer: too large (tensors of %llu bytes; want at most %lld in all)",
            (unsigned long long)v[12], (long long)r->max_bytes);
    return CH_OK;
}

/* Hellos and refusals are the same in all versions, so that two releases can say which they
 * are. */
static bool is_known_version(const uint64_t *v)
{
    return v[1] == CH_FRAME_VERSION ||
           (v[1] > CH_FRAME_VERSION && (v[2] == CH_FRAME_HELLO || v[2] == CH_FRAME_REFUSAL));
}

static ch_status check_header_sum(const ch_frame_reader *r)
{
    if (!r->has_checksums)
        return CH_OK;
    return ch__crc32c(r->head_crc, r->head, r->header_bytes) ==
                   ch__le32(r->head + r->header_bytes)
               ? CH_OK
               : fail_damaged("the checksum of its header differs");
}

static ch_status read_header(ch_frame_reader *r)
{
    uint64_t  v[N_FIELDS] = {0};
    ch_status st = check_header_sum(r);

    if (st == CH_OK)
        st = read_numbers(r->head, r->header_bytes, v);
    if (st == CH_OK && !is_known_version(v))
        return ch__fail(
            CH_DATA_LOSS,
            "frame from a peer: version %llu (want %d); both programs must be of the "
            "same release",
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
    r->tensor_headers_bytes = v[10];
    r->message_bytes = v[11];
    r->tensors_bytes = v[12];
    r->n_tensors = (int)v[13];
    return CH_OK;
}

/* ---- tensor headers ---- */

static ch_status read_shape(const ch_wire_field *f, ch_shape *shape)
{
    ch_wire      w = ch__wire(f->data.at, ch__wire_bytes(f->data));
    ch_wire_span s = f->data;
    uint64_t     v;

    /* Packed, as frame.c writes it, or an axis per field. */
    do {
        if (!ch__wire_varint(&w, &s, &v))
            return s.at == s.end ? CH_OK : fail_wire(&w);
        if (shape->rank == CH_MAX_RANK || v > INT64_MAX)
            return fail_damaged("a tensor has too many axes, or an axis is too large");
        shape->dim[shape->rank++] = (int64_t)v;
    } while (s.at < s.end);
    return CH_OK;
}

static ch_status check_tensor_header(ch_tensor_header *h)
{
    int64_t bytes;

    if (ch__tensor_size(h->dtype, h->shape, &h->count, &bytes) != CH_OK)
        return fail_damaged("a tensor is larger than the address space");
    if (h->dtype == CH_STR ? h->bytes < (uint64_t)bytes : h->bytes != (uint64_t)bytes)
        return fail_damaged("the bytes of a tensor do not match its shape");
    return CH_OK;
}

static ch_status read_tensor_header(ch_wire_span s, ch_tensor_header *h)
{
    ch_wire       w = ch__wire(s.at, ch__wire_bytes(s));
    ch_wire_field f;
    ch_status     st = CH_OK;

    while (st == CH_OK && ch__wire_next(&w, &s, &f)) {
        if (f.number == 2 && (f.type == CH_WIRE_BYTES || f.type == CH_WIRE_VARINT))
            st = read_shape(&f, &h->shape);
        else if (f.number <= 3 && f.type != CH_WIRE_VARINT)
            st = fail_damaged("a field of a tensor header is not a number");
        else if (f.number == 1 && number_of(&f) >= CH_DTYPE_COUNT)
            st = fail_damaged("the dtype of a tensor is unknown");
        else if (f.number == 1)
            h->dtype = (ch_dtype)number_of(&f);
        else if (f.number == 3)
            h->bytes = (size_t)number_of(&f);
    }
    if (st == CH_OK && w.fault != NULL)
        st = fail_wire(&w);
    return st == CH_OK ? check_tensor_header(h) : st;
}

static ch_status parse_tensor_headers(ch_frame_reader *r)
{
    ch_wire       w = ch__wire(r->body, r->tensor_headers_bytes);
    ch_wire_span  s = w.all;
    ch_wire_field f;
    int           n = 0;
    uint64_t      left = r->tensors_bytes;
    ch_status     st = CH_OK;

    while (st == CH_OK && ch__wire_next(&w, &s, &f)) {
        if (f.number != 1 || f.type != CH_WIRE_BYTES)
            continue;
        if (n == r->n_tensors)
            return fail_damaged("it has more tensors than its header says");
        st = read_tensor_header(f.data, &r->tensor_header[n]);
        if (st == CH_OK && r->tensor_header[n].bytes > left)
            return fail_damaged("its tensors have more bytes than its header says");
        left -= r->tensor_header[n++].bytes;
    }
    if (st != CH_OK || w.fault != NULL)
        return st != CH_OK ? st : fail_wire(&w);
    return n == r->n_tensors && left == 0
               ? CH_OK
               : fail_damaged("its tensors are fewer or smaller than its header says");
}

static ch_status read_tensor_headers(ch_frame_reader *r)
{
    if (r->n_tensors == 0)
        return r->tensors_bytes == 0 ? CH_OK
                                     : fail_damaged("it has bytes of tensors, but no tensor");
    r->tensor_header = ch__calloc((size_t)r->n_tensors, sizeof(*r->tensor_header));
    r->tensor = ch__calloc((size_t)r->n_tensors, sizeof(*r->tensor));
    if (r->tensor_header == NULL || r->tensor == NULL)
        return ch__fail_memory("tensors of a frame");
    return parse_tensor_headers(r);
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
        return ch__fail_memory("fault of a frame");
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
    ch__fault_publish(fault);
    return w.fault != NULL ? fail_wire(&w) : CH_OK;
}

/* ---- elements ---- */

/* Replaces the table of lengths by ch_str, in place. The texts stay behind the table. */
static ch_status set_strings(uint8_t *data, const ch_tensor_header *h)
{
    ch_str  *s = (ch_str *)(void *)data;
    uint8_t *text = data + (size_t)h->count * sizeof(ch_str);
    size_t   left = h->bytes - (size_t)h->count * sizeof(ch_str);
    uint64_t row[2];

    _Static_assert(sizeof(row) == sizeof(ch_str),
                   "an entry of the table is as large as a ch_str");
    for (int64_t i = 0; i < h->count; i++) {
        memcpy(row, &s[i], sizeof(row));
        if (row[0] > left)
            return fail_damaged("a string is longer than the rest of its tensor");
        s[i] = (ch_str){(const char *)text, (size_t)row[0]};
        text += row[0];
        left -= (size_t)row[0];
    }
    return left == 0 ? CH_OK : fail_damaged("a tensor has text that belongs to no string");
}

/* Creates the tensor of which all elements were read. It takes over r->data. */
static ch_status end_tensor(ch_frame_reader *r)
{
    const ch_tensor_header *h = &r->tensor_header[r->n_done];
    ch_status               st = CH_OK;

    if (r->data == NULL)
        st = ch_tensor_new(h->dtype, h->shape, &r->tensor[r->n_done]);
    else if (h->dtype == CH_STR)
        st = set_strings(r->data, h);
    if (st == CH_OK && r->data != NULL)
        st = ch_tensor_wrap(h->dtype, h->shape, r->data, ch__receive_block_release, r->data,
                            &r->tensor[r->n_done]);
    if (st != CH_OK)
        return st;
    r->data = NULL;
    r->n_data = r->cap_data = 0;
    r->n_done++;
    return CH_OK;
}

/* ---- whole frames ---- */

/* Frees everything except r->frame, and prepares for the next frame. Keeps a small buffer if
 * `keeps` is true. */
static void reader_clear(ch_frame_reader *r, bool keeps)
{
    enum { KEPT_BYTES = 64 << 10 };

    for (int i = 0; r->tensor != NULL && i < r->n_tensors; i++)
        ch_tensor_unref(r->tensor[i]);
    ch__free(r->tensor);
    ch__free(r->tensor_header);
    ch__receive_block_release(r->data);
    if (!keeps || r->cap_body > KEPT_BYTES) {
        ch__free(r->body);
        r->body = NULL;
        r->cap_body = 0;
    }
    ch__free(r->sums.sum);
    ch__free(r->sent);
    *r = (ch_frame_reader){.max_bytes = r->max_bytes,
                           .has_checksums = r->has_checksums,
                           .pool = r->pool,
                           .frame = r->frame,
                           .body = r->body,
                           .cap_body = r->cap_body};
}

void ch__frame_reader_drop(ch_frame_reader *r)
{
    ch__frame_drop(&r->frame);
    reader_clear(r, false);
}

static ch_status end_frame(ch_frame_reader *r)
{
    bool has_message = r->frame.kind == CH_FRAME_CALL || r->frame.kind == CH_FRAME_HELLO ||
                       (r->frame.kind == CH_FRAME_REPLY && r->frame.ending == CH_ENDED_OK);
    void     *bytes;
    ch_status st = CH_OK;

    if (has_message) {
        st = ch__message_new(r->method, r->message_bytes, &bytes, r->n_tensors, r->tensor,
                             &r->frame.message);
        ch__free(r->tensor); /* ch__message_new has taken the tensors over */
        r->tensor = NULL;
        if (st == CH_OK && r->message_bytes > 0)
            memcpy(bytes, r->body + r->tensor_headers_bytes, r->message_bytes);
    } else if (r->frame.ending == CH_ENDED_ERROR || r->frame.kind == CH_FRAME_REFUSAL) {
        st = read_fault(r);
    }
    if (st == CH_OK)
        reader_clear(r, true);
    return st;
}

/* Returns the bytes behind the header that checksums cover. */
static uint64_t checked_bytes(const ch_frame_reader *r)
{
    return r->tensor_headers_bytes + r->message_bytes + r->tensors_bytes;
}

/* Returns how many more bytes this part needs. */
static size_t part_left(const ch_frame_reader *r)
{
    switch (r->part) {
    case CH_READ_PREFIX:
        return CH_FRAME_PREFIX - r->n_head;
    case CH_READ_HEADER:
        return r->header_bytes + (r->has_checksums ? CH_FRAME_CHECKSUM : 0) - r->n_head;
    case CH_READ_BODY:
        return (size_t)(r->tensor_headers_bytes + r->message_bytes) - r->n_body;
    case CH_READ_TENSOR:
        return r->n_done < r->n_tensors ? r->tensor_header[r->n_done].bytes - r->n_data : 0;
    case CH_READ_SUMS:
        return r->has_checksums ? ch__frame_sums_bytes(checked_bytes(r)) - r->n_sent : 0;
    }
    return 0;
}

/* Returns the size that a block of n bytes should have, which will have `want` bytes in the
 * end. */
static size_t next_size(size_t n, size_t want)
{
    return want - n < growth_bytes ? want : n + growth_bytes;
}

/* Makes room in r->body for the next bytes. */
static ch_status grow_body(ch_frame_reader *r)
{
    size_t   size = next_size(r->n_body, (size_t)(r->tensor_headers_bytes + r->message_bytes));
    uint8_t *larger;

    if (r->n_body < r->cap_body)
        return CH_OK;
    larger = ch__realloc(r->body, size);
    if (larger == NULL)
        return ch__fail_memory("bytes of a frame");
    r->body = larger;
    r->cap_body = size;
    return CH_OK;
}

/* Makes room in r->data for the next elements of a tensor. */
static ch_status grow_data(ch_frame_reader *r)
{
    size_t   want = r->tensor_header[r->n_done].bytes, size = next_size(r->n_data, want);
    uint8_t *larger;

    if (r->data != NULL && r->n_data < r->cap_data)
        return CH_OK;
    if (r->data == NULL)
        larger = ch__receive_block(r->pool, size, want, &r->cap_data);
    else
        larger = ch__receive_block_grow(r->data, size);
    if (larger == NULL)
        return ch__fail_memory("tensor of a frame");
    if (r->data != NULL)
        r->cap_data = size;
    r->data = larger;
    return CH_OK;
}

/* Makes room for the checksums of `n` further bytes. */
static ch_status grow_sums(ch_frame_reader *r, size_t n)
{
    size_t   need = r->sums.n + ch__frame_sums_bytes(r->sums.n_last + n);
    uint8_t *larger;

    if (need <= r->sums.cap)
        return CH_OK;
    need = need > 2 * r->sums.cap ? need : 2 * r->sums.cap;
    larger = ch__realloc(r->sums.sum, need);
    if (larger == NULL)
        return ch__fail_memory("checksums of a frame");
    r->sums.sum = larger;
    r->sums.cap = need;
    return CH_OK;
}

/* ---- the parts in sequence ---- */

/* Returns the place of the next byte of the part, for which there is memory. */
static uint8_t *place_of(ch_frame_reader *r)
{
    switch (r->part) {
    case CH_READ_BODY:
        return r->body + r->n_body;
    case CH_READ_TENSOR:
        return r->data + r->n_data;
    case CH_READ_SUMS:
        return r->sent + r->n_sent;
    default:
        return r->head + r->n_head;
    }
}

/* Returns how many bytes of the part there is memory for. */
static size_t room_of(const ch_frame_reader *r)
{
    size_t left = part_left(r), room = left;

    if (r->part == CH_READ_BODY)
        room = r->cap_body - r->n_body;
    else if (r->part == CH_READ_TENSOR)
        room = r->cap_data - r->n_data;
    return left < room ? left : room;
}

ch_status ch__frame_next(ch_frame_reader *r, void **at, size_t *n)
{
    ch_status st = CH_OK;

    if (r->part == CH_READ_BODY)
        st = grow_body(r);
    else if (r->part == CH_READ_TENSOR)
        st = grow_data(r);
    else if (r->part == CH_READ_SUMS && r->sent == NULL &&
             (r->sent = ch__malloc(r->sums.n)) == NULL)
        st = ch__fail_memory("checksums of a frame");
    if (st != CH_OK)
        return st;
    *at = place_of(r);
    *n = room_of(r);
    return CH_OK;
}

/* Counts n bytes that were written to their place, and adds them to the checksums. */
static ch_status part_add(ch_frame_reader *r, size_t n)
{
    const uint8_t *at = place_of(r);
    bool           is_checked = r->part == CH_READ_BODY || r->part == CH_READ_TENSOR;

    if (is_checked && r->has_checksums) {
        ch_status st = grow_sums(r, n);

        if (st != CH_OK)
            return st;
        ch__frame_sums_add(&r->sums, at, n);
    }
    if (r->part == CH_READ_BODY)
        r->n_body += n;
    else if (r->part == CH_READ_TENSOR)
        r->n_data += n;
    else if (r->part == CH_READ_SUMS)
        r->n_sent += n;
    else
        r->n_head += n;
    return CH_OK;
}

static ch_status end_prefix(ch_frame_reader *r)
{
    unsigned length = r->head[2] | (unsigned)r->head[3] << 8;

    if (r->head[0] != 'C' || r->head[1] != 'H' || length == 0 || length > CH_FRAME_HEADER)
        return fail_damaged("it does not begin with the prefix of a frame");
    r->head_crc = ch__crc32c(0, r->head, CH_FRAME_PREFIX);
    r->header_bytes = length;
    r->n_head = 0;
    r->part = CH_READ_HEADER;
    return CH_OK;
}

/* Compares the checksums, and completes the frame. */
static ch_status end_sums(ch_frame_reader *r, bool *is_whole)
{
    ch_status st = CH_OK;

    if (r->n_sent > 0 && memcmp(r->sent, r->sums.sum, r->n_sent) != 0)
        st = fail_damaged("a checksum differs");
    if (st == CH_OK)
        st = end_frame(r);
    *is_whole = st == CH_OK;
    return st;
}

/* Handles a complete part, and goes on to the next. Sets *is_whole after the last part. */
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
        return read_tensor_headers(r);
    case CH_READ_TENSOR:
        if (r->n_done < r->n_tensors)
            st = end_tensor(r);
        if (st == CH_OK && r->n_done == r->n_tensors) {
            ch__frame_sums_end(&r->sums);
            r->part = CH_READ_SUMS;
        }
        return st;
    case CH_READ_SUMS:
        return end_sums(r, is_whole);
    }
    return st;
}

ch_status ch__frame_got(ch_frame_reader *r, size_t n, bool *is_whole)
{
    ch_status st = part_add(r, n);

    *is_whole = false;
    while (st == CH_OK && !*is_whole && part_left(r) == 0)
        st = part_end(r, is_whole);
    return st;
}

ch_status ch__frame_read(ch_frame_reader *r, const void *bytes, size_t n, size_t *used,
                         bool *is_whole)
{
    const uint8_t *from = bytes;
    ch_status      st = CH_OK;

    *is_whole = false;
    *used = 0;
    while (st == CH_OK && !*is_whole && *used < n) {
        void  *at;
        size_t room;

        st = ch__frame_next(r, &at, &room);
        if (st != CH_OK)
            break;
        room = room < n - *used ? room : n - *used;
        memcpy(at, from + *used, room);
        *used += room;
        st = ch__frame_got(r, room, is_whole);
    }
    return st;
}
