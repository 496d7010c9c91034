/* test/net/test_frame.c -- frames as bytes: a frame that is written is read unchanged, and
 * invalid frames are rejected.
 *
 * Frames are untrusted input. The tests change fields of headers, deliver frames in pieces, and
 * check that a reader allocates memory only as bytes arrive.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "file/crc32c.h"
#include "net.pb-c.h"
#include "net/frame.h"
#include "net/hello.h"

static int64_t live;

static int begin(void **state)
{
    (void)state;
    live = ch__mem_live();
    return 0;
}

static int end(void **state)
{
    (void)state;
    return ch__mem_live() == live ? 0 : -1;
}

/* Returns a message with tensors of all dtypes, including a tensor without elements and a
 * tensor of strings. */
static ch_message *rich_message(void)
{
    const ch_str s[] = {{"one", 3}, {"", 0}, {"three\0four", 10}};
    ch_tensor   *t[CH_DTYPE_COUNT + 1] = {NULL};
    ch_message  *p = NULL;
    void        *bytes;

    for (int i = 0; i < CH_STR; i++) {
        assert_int_equal(ch_tensor_new((ch_dtype)i, ch_shape_of(3, 5), &t[i]), CH_OK);
        memset(ch_tensor_data_mut(t[i]), i + 1, ch_tensor_bytes(t[i]));
    }
    assert_int_equal(ch_tensor_copy_of(CH_STR, ch_shape_of(3), s, &t[CH_STR]), CH_OK);
    assert_int_equal(ch_tensor_new(CH_F64, ch_shape_of(7, 0, 2), &t[CH_DTYPE_COUNT]), CH_OK);
    assert_int_equal(ch__message_new(77, 1000, &bytes, CH_DTYPE_COUNT + 1, t, &p), CH_OK);
    memset(bytes, 'm', 1000);
    return p;
}

static ch_frame rich_frame(void)
{
    return (ch_frame){.kind = CH_FRAME_CALL,
                      .call = 0x123456789abcdef,
                      .from = UINT64_MAX,
                      .to = 3,
                      .timeout = 1000000000,
                      .message = rich_message()};
}

static ch_frame refusal(void)
{
    ch_fault f;
    ch_frame frame = {.kind = CH_FRAME_REPLY,
                      .ending = CH_ENDED_ERROR,
                      .status = CH_DATA_LOSS,
                      .call = 5,
                      .from = 9,
                      .to = 8};

    ch__fault_clear(&f);
    ch__fail_limit("row %d", 7);
    ch__fault_record(&f, CH_DATA_LOSS, 3, "gather");
    memcpy(f.task, "ps/0", 5);
    frame.fault = ch__fault_copy(&f);
    assert_non_null(frame.fault);
    return frame;
}

static void check_same_tensor(ch_tensor *a, ch_tensor *b)
{
    int64_t n = ch_tensor_count(a);

    assert_int_equal(ch_tensor_dtype(a), ch_tensor_dtype(b));
    assert_true(ch_shape_equal(ch_tensor_shape(a), ch_tensor_shape(b)));
    if (ch_tensor_dtype(a) != CH_STR) {
        if (n > 0)
            assert_memory_equal(ch_tensor_data(a), ch_tensor_data(b), ch_tensor_bytes(a));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const ch_str *x = (const ch_str *)ch_tensor_data(a) + i;
        const ch_str *y = (const ch_str *)ch_tensor_data(b) + i;

        assert_int_equal(x->size, y->size);
        assert_true(x->size == 0 || memcmp(x->data, y->data, x->size) == 0);
    }
}

static void check_same(const ch_frame *a, const ch_frame *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->ending, b->ending);
    assert_int_equal(a->status, b->status);
    assert_true(a->call == b->call && a->from == b->from && a->to == b->to);
    assert_true(a->timeout == b->timeout);
    assert_true((a->message == NULL) == (b->message == NULL));
    assert_true((a->fault == NULL) == (b->fault == NULL));
    if (a->fault != NULL) {
        assert_int_equal(a->fault->code, b->fault->code);
        assert_int_equal(a->fault->replica, b->fault->replica);
        assert_int_equal(a->fault->is_limit, b->fault->is_limit);
        assert_string_equal(a->fault->text, b->fault->text);
        assert_string_equal(a->fault->op, b->fault->op);
        assert_string_equal(a->fault->task, b->fault->task);
        assert_true(ch__fault_is_set(b->fault));
    }
    if (a->message == NULL)
        return;
    assert_int_equal(a->message->method, b->message->method);
    assert_int_equal(a->message->n_bytes, b->message->n_bytes);
    assert_int_equal(a->message->n_tensors, b->message->n_tensors);
    if (a->message->n_bytes > 0)
        assert_memory_equal(a->message->bytes, b->message->bytes, a->message->n_bytes);
    for (int i = 0; i < a->message->n_tensors; i++)
        check_same_tensor(a->message->tensor[i], b->message->tensor[i]);
}

/* Reads frames that arrive in pieces of `piece` bytes. The last frame is in r->frame. */
static ch_status read_pieces(ch_frame_reader *r, const uint8_t *bytes, size_t n, size_t piece,
                             int *n_whole)
{
    bool      is_whole;
    size_t    used;
    ch_status st = CH_OK;

    *n_whole = 0;
    for (size_t at = 0; at < n && st == CH_OK; at += used) {
        st = ch__frame_read(r, bytes + at, n - at < piece ? n - at : piece, &used, &is_whole);
        if (st == CH_OK && is_whole && ++*n_whole > 1 && at + used < n)
            ch__frame_drop(&r->frame);
    }
    return st;
}

static void check_round_trip_with(const ch_frame *f, bool has_checksums)
{
    static const size_t pieces[] = {1, 3, 64, 1000, 1 << 20};
    void               *bytes = NULL;
    size_t              size = 0;

    assert_int_equal(ch__frame_encode(f, has_checksums, &bytes, &size), CH_OK);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        ch_frame_reader r = {.max_bytes = 1 << 20, .has_checksums = has_checksums};
        int             n;

        assert_int_equal(read_pieces(&r, bytes, size, pieces[i], &n), CH_OK);
        assert_int_equal(n, 1);
        check_same(f, &r.frame);
        ch__frame_reader_drop(&r);
    }
    ch__free(bytes);
}

static void check_round_trip(ch_frame f)
{
    check_round_trip_with(&f, false);
    check_round_trip_with(&f, true);
    ch__frame_drop(&f);
}

static ch_frame hello_frame(void)
{
    ch_hello h = {.least_version = 2,
                  .most_version = 3,
                  .release = "0.2.0",
                  .job = "job-17",
                  .sender = "worker/1",
                  .receiver = "ps/0",
                  .role = "worker",
                  .incarnation = UINT64_MAX,
                  .calls = 64,
                  .bytes = 1 << 30,
                  .max_frame = INT64_MAX,
                  .host = "a host",
                  .features = 1ull << 63};
    ch_frame f = {.kind = CH_FRAME_HELLO};

    assert_int_equal(ch__hello_encode(&h, &f.message), CH_OK);
    return f;
}

static void frame_round_trip_is_exact(void **state)
{
    check_round_trip(rich_frame());
    check_round_trip(refusal());
    check_round_trip((ch_frame){.kind = CH_FRAME_CANCEL, .call = 1, .from = 2});
    check_round_trip(
        (ch_frame){.kind = CH_FRAME_REPLY, .ending = CH_ENDED_REPLACED, .call = 7});
    check_round_trip(hello_frame());
    check_round_trip((ch_frame){.kind = CH_FRAME_BYE, .from = 7});
    ch_frame why = refusal();
    why.kind = CH_FRAME_REFUSAL;
    why.ending = CH_ENDED_OK;
    check_round_trip(why);
    (void)state;
}

/* ---- hellos ---- */

static void hello_round_trip_is_exact(void **state)
{
    ch_frame            f = hello_frame();
    Cohort__FrameHello *m =
        cohort__frame_hello__unpack(NULL, f.message->n_bytes, f.message->bytes);
    ch_hello h;

    assert_non_null(m);
    assert_string_equal(m->sender, "worker/1");
    assert_true(m->incarnation == UINT64_MAX && m->max_frame == INT64_MAX && m->calls == 64);
    assert_int_equal(ch__hello_decode(f.message, &h), CH_OK);
    assert_true(h.least_version == 2 && h.most_version == 3 && h.calls == 64);
    assert_true(h.bytes == 1 << 30 && h.max_frame == INT64_MAX && h.features == 1ull << 63);
    assert_true(h.incarnation == UINT64_MAX);
    assert_string_equal(h.release, "0.2.0");
    assert_string_equal(h.job, "job-17");
    assert_string_equal(h.sender, "worker/1");
    assert_string_equal(h.receiver, "ps/0");
    assert_string_equal(h.role, "worker");
    assert_string_equal(h.host, "a host");
    cohort__frame_hello__free_unpacked(m, NULL);
    ch__frame_drop(&f);
    (void)state;
}

static ch_status decode_hello(const void *bytes, size_t n)
{
    void       *to;
    ch_message *m = NULL;
    ch_hello    h;
    ch_status   st;

    assert_int_equal(ch__message_new(0, n, &to, 0, NULL, &m), CH_OK);
    if (n > 0)
        memcpy(to, bytes, n);
    st = ch__hello_decode(m, &h);
    ch__message_unref(m);
    return st;
}

static void hello_decoder_rejects_damage_and_skips_unknown_fields(void **state)
{
    assert_int_equal(decode_hello("", 0), CH_OK);
    assert_int_equal(decode_hello("\x78\x05\xa2\x01\x01x", 6), CH_OK); /* fields 15 and 20 */
    assert_int_equal(decode_hello("\x2a\x03ps\n", 5), CH_DATA_LOSS);   /* a line in a name */
    assert_int_equal(decode_hello("\x2a\x03ps", 4), CH_DATA_LOSS);     /* it is cut */
    assert_int_equal(decode_hello("\x28\x03", 2), CH_DATA_LOSS);       /* a number for a name */
    assert_int_equal(decode_hello("\x0a\x01x", 3), CH_DATA_LOSS);
    /* calls: 2^31; bytes: 2^63 */
    assert_int_equal(decode_hello("\x48\x80\x80\x80\x80\x08", 6), CH_DATA_LOSS);
    assert_int_equal(decode_hello("\x50\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 11),
                     CH_DATA_LOSS);
    /* a release of 32 bytes */
    assert_int_equal(decode_hello("\x1a\x20xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 34),
                     CH_DATA_LOSS);
    (void)state;
}

/* ---- checksums ---- */

/* Returns true if the reader delivers any frame from these bytes. */
static bool is_accepted(const uint8_t *bytes, size_t n)
{
    ch_frame_reader r = {.max_bytes = 16 << 20, .has_checksums = true};
    int             n_whole = 0;

    (void)!read_pieces(&r, bytes, n, n, &n_whole);
    ch__frame_reader_drop(&r);
    return n_whole > 0;
}

/* Changes each bit of a frame, or if `step` is larger than 1 about one in `step`. */
static void check_flips(ch_frame f, size_t step)
{
    void    *bytes = NULL;
    uint8_t *at;
    size_t   size = 0;

    assert_int_equal(ch__frame_encode(&f, true, &bytes, &size), CH_OK);
    at = bytes;
    assert_true(is_accepted(at, size));
    for (size_t i = 0; i < 8 * size; i += step) {
        at[i / 8] ^= (uint8_t)(1u << i % 8);
        if (is_accepted(at, size))
            fail_msg("a frame of %zu bytes with another bit %zu was accepted", size, i);
        at[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    assert_true(is_accepted(at, size));
    ch__free(bytes);
    ch__frame_drop(&f);
}

/* A message of several pieces, with a tensor that begins and ends within a piece. */
static ch_frame large_frame(int64_t n)
{
    ch_tensor  *t = NULL;
    ch_message *p = NULL;
    void       *bytes;

    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(n), &t), CH_OK);
    for (int64_t i = 0; i < n; i++)
        ((float *)ch_tensor_data_mut(t))[i] = (float)i;
    assert_int_equal(ch__message_new(3, 100001, &bytes, 1, &t, &p), CH_OK);
    memset(bytes, 'm', 100001);
    return (ch_frame){.kind = CH_FRAME_CALL, .call = 1, .message = p};
}

static void frame_with_any_flipped_bit_is_not_accepted(void **state)
{
    check_flips(rich_frame(), 1);
    check_flips(refusal(), 1);
    check_flips(hello_frame(), 1);
    check_flips((ch_frame){.kind = CH_FRAME_CANCEL, .call = 1, .from = 2}, 1);
    check_flips(large_frame(100003), 40009);
    (void)state;
}

static void checksums_cover_pieces_of_64_kib(void **state)
{
    ch_frame f = large_frame(100003);
    void    *bytes = NULL, *plain = NULL;
    size_t   size = 0, plain_size = 0, header, pieces;

    assert_int_equal(ch__frame_encode(&f, true, &bytes, &size), CH_OK);
    assert_int_equal(ch__frame_encode(&f, false, &plain, &plain_size), CH_OK);
    header = 4 + (((uint8_t *)bytes)[2] | (size_t)((uint8_t *)bytes)[3] << 8);
    pieces = (plain_size - header + 65535) / 65536;
    assert_int_equal(pieces, 8);
    assert_int_equal(size, plain_size + 4 + 4 * pieces);
    for (size_t i = 0; i < pieces; i++) {
        size_t at = i * 65536,
               n = plain_size - header - at < 65536 ? plain_size - header - at : 65536;
        uint32_t crc = ch__crc32c(0, (uint8_t *)plain + header + at, n);

        assert_int_equal(crc, ch__le32((uint8_t *)bytes + size - 4 * (pieces - i)));
    }
    ch__free(bytes);
    ch__free(plain);
    ch__frame_drop(&f);
    (void)state;
}

/* ---- vectors, and reading in place ---- */

/* Sends a frame as a vector, in pieces of at most max_bytes of which every other is sent in part,
 * and reads it in place. */
static void check_in_place(const ch_frame *f, bool has_checksums, size_t max_bytes,
                           ch_receive_pool *pool)
{
    ch_frame_vec   *v = NULL;
    ch_frame_reader r = {.max_bytes = 16 << 20, .has_checksums = has_checksums, .pool = pool};
    struct iovec    part[3];
    bool            is_whole = false;

    assert_int_equal(ch__frame_vec_new(f, has_checksums, &v), CH_OK);
    for (size_t round = 0; v->sent < v->size; round++) {
        int    n = ch__frame_vec_next(v, max_bytes, part, 3);
        size_t all = 0, taken = 0, want;

        assert_true(n > 0);
        for (int i = 0; i < n; i++)
            all += part[i].iov_len;
        assert_true(all <= max_bytes);
        want = round % 2 == 0 ? all : (all + 1) / 2;
        for (int i = 0; i < n && taken < want; i++)
            for (size_t at = 0; at < part[i].iov_len && taken < want;) {
                void  *to;
                size_t room;

                assert_false(is_whole);
                assert_int_equal(ch__frame_next(&r, &to, &room), CH_OK);
                assert_true(room > 0);
                room = room < part[i].iov_len - at ? room : part[i].iov_len - at;
                room = room < want - taken ? room : want - taken;
                memcpy(to, (char *)part[i].iov_base + at, room);
                assert_int_equal(ch__frame_got(&r, room, &is_whole), CH_OK);
                at += room;
                taken += room;
            }
        ch__frame_vec_sent(v, taken);
    }
    assert_true(is_whole);
    check_same(f, &r.frame);
    ch__frame_vec_free(v);
    ch__frame_reader_drop(&r);
}

static void frame_vectors_and_reading_in_place_are_exact(void **state)
{
    ch_frame frames[] = {rich_frame(), refusal(), large_frame(100003), hello_frame()};

    for (size_t i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
        for (int sums = 0; sums < 2; sums++) {
            check_in_place(&frames[i], sums, 1 << 20, NULL);
            check_in_place(&frames[i], sums, 70001, NULL);
            check_in_place(&frames[i], sums, 1000, NULL);
        }
        ch__frame_drop(&frames[i]);
    }
    (void)state;
}

static void frame_vector_sends_tensors_from_where_they_are(void **state)
{
    ch_frame      f = large_frame(100003);
    ch_tensor    *t = f.message->tensor[0];
    ch_frame_vec *v = NULL;
    struct iovec  part[4];
    int64_t       before = ch__mem_allocs();

    assert_int_equal(ch__frame_vec_new(&f, true, &v), CH_OK);
    assert_int_equal(ch__mem_allocs() - before, 1);
    assert_int_equal(ch__frame_vec_next(v, SIZE_MAX, part, 4), 3);
    assert_ptr_equal(part[1].iov_base, ch_tensor_data(t));
    assert_int_equal(part[1].iov_len, ch_tensor_bytes(t));
    ch__frame_drop(&f); /* the vector has references */
    assert_true(((const float *)part[1].iov_base)[7] == 7);
    ch__frame_vec_free(v);
    (void)state;
}

static void received_tensors_use_kept_memory_again(void **state)
{
    ch_frame         f = large_frame(1 << 20);
    ch_receive_pool *pool = NULL;
    ch_frame_reader  r = {.max_bytes = 16 << 20};
    ch_tensor       *kept[2];
    const void      *where;
    void            *bytes = NULL;
    size_t           size = 0;
    int              n;

    assert_int_equal(ch__receive_pool_new(9 << 20, &pool), CH_OK);
    r.pool = pool;
    assert_int_equal(ch__frame_encode(&f, false, &bytes, &size), CH_OK);
    assert_int_equal(read_pieces(&r, bytes, size, 1 << 16, &n), CH_OK);
    where = ch_tensor_data(r.frame.message->tensor[0]);
    assert_int_equal(ch__receive_pool_kept(pool), 0);
    ch__frame_drop(&r.frame);
    assert_int_equal(ch__receive_pool_kept(pool), 4 << 20);
    for (int i = 0; i < 2; i++) {
        ch__mem_watch(true);
        assert_int_equal(read_pieces(&r, bytes, size, 1 << 16, &n), CH_OK);
        assert_true(i == 1 || ch__mem_peak() < 1 << 20); /* the message, and little else */
        ch__mem_watch(false);
        kept[i] = ch_tensor_ref(r.frame.message->tensor[0]);
        ch__frame_drop(&r.frame);
        assert_true((ch_tensor_data(kept[i]) == where) == (i == 0));
    }
    assert_int_equal(ch__receive_pool_kept(pool), 0);
    check_in_place(&f, true, 1 << 16, pool);
    check_in_place(&f, true, 1 << 16, pool);
    assert_int_equal(ch__receive_pool_kept(pool), 4 << 20);
    ch_tensor_unref(kept[0]);
    assert_int_equal(ch__receive_pool_kept(pool), 8 << 20);
    ch__frame_reader_drop(&r);
    ch__receive_pool_close(pool);
    ch_tensor_unref(kept[1]); /* the pool has been closed */
    ch__free(bytes);
    ch__frame_drop(&f);
    (void)state;
}

static void receive_pool_keeps_a_bounded_number_of_bytes(void **state)
{
    enum { N = 200, BYTES = 100 << 10 };
    ch_receive_pool *pool = NULL;
    void            *block[N];
    size_t           cap;

    assert_int_equal(ch__receive_pool_new(10 * BYTES + 1, &pool), CH_OK);
    for (int i = 0; i < N; i++) {
        block[i] = ch__receive_block(pool, BYTES, BYTES, &cap);
        assert_int_equal(cap, BYTES);
    }
    for (int i = 0; i < N; i++)
        ch__receive_block_release(block[i]);
    assert_int_equal(ch__receive_pool_kept(pool), 10 * BYTES);
    block[0] = ch__receive_block(pool, 1000, 1000, &cap); /* too small to be kept */
    ch__receive_block_release(block[0]);
    block[0] = ch__receive_block(pool, 20 * BYTES, 20 * BYTES, &cap); /* too large */
    ch__receive_block_release(block[0]);
    assert_int_equal(ch__receive_pool_kept(pool), 10 * BYTES);
    ch__receive_pool_close(pool);
    (void)state;
}

/* The header is the message that proto/net.proto defines. */
static void frame_header_is_the_message_of_net_proto(void **state)
{
    ch_frame              f = rich_frame();
    void                 *bytes = NULL;
    const uint8_t        *at;
    size_t                size, length;
    Cohort__FrameHeader  *h;
    Cohort__FrameTensors *t;

    assert_int_equal(ch__frame_encode(&f, false, &bytes, &size), CH_OK);
    at = bytes;
    length = at[2] | (size_t)at[3] << 8;
    assert_true(length <= CH_FRAME_HEADER);
    h = cohort__frame_header__unpack(NULL, length, at + 4);
    assert_non_null(h);
    assert_true(h->version == 2 && h->kind == 1 && h->call == f.call && h->from == f.from);
    assert_true(h->to == 3 && h->timeout_ns == 1000000000 && h->method == 77);
    assert_int_equal(h->n_tensors, CH_DTYPE_COUNT + 1);
    assert_int_equal(4 + length + h->tensor_headers_bytes + h->message_bytes + h->tensors_bytes,
                     size);
    t = cohort__frame_tensors__unpack(NULL, h->tensor_headers_bytes, at + 4 + length);
    assert_non_null(t);
    assert_int_equal(t->n_tensors, CH_DTYPE_COUNT + 1);
    assert_int_equal(t->tensors[CH_STR]->dtype, CH_STR);
    assert_int_equal(t->tensors[CH_STR]->bytes, 3 * 16 + 13);
    assert_int_equal(t->tensors[1]->n_shape, 2);
    cohort__frame_tensors__free_unpacked(t, NULL);
    cohort__frame_header__free_unpacked(h, NULL);
    ch__free(bytes);
    ch__frame_drop(&f);
    (void)state;
}

/* Writes a frame with this header and body to `room`. Returns its size. */
static size_t frame_of(Cohort__FrameHeader h, const void *body, size_t n, uint8_t *room)
{
    size_t length = cohort__frame_header__pack(&h, room + 4);

    room[0] = 'C';
    room[1] = 'H';
    room[2] = (uint8_t)length;
    room[3] = (uint8_t)(length >> 8);
    if (n > 0)
        memcpy(room + 4 + length, body, n);
    return 4 + length + n;
}

static Cohort__FrameHeader plain(void)
{
    Cohort__FrameHeader h = COHORT__FRAME_HEADER__INIT;

    h.version = 2;
    h.kind = 1;
    h.call = 1;
    return h;
}

static void check_refused(Cohort__FrameHeader h, const void *body, size_t n, ch_status want,
                          const char *text)
{
    uint8_t         room[2048];
    size_t          size = frame_of(h, body, n, room);
    ch_frame_reader r = {.max_bytes = 64 << 20};
    int             n_whole;

    ch__mem_watch(true);
    assert_int_equal(read_pieces(&r, room, size, size, &n_whole), want);
    assert_in_range(ch__mem_peak(), 0, (int64_t)size + (16 << 20));
    ch__mem_watch(false);
    if (strstr(ch_error_message(), text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", ch_error_message(), text);
    ch__frame_reader_drop(&r);
}

#define REFUSED(change, status, text)                                                          \
    do {                                                                                       \
        Cohort__FrameHeader h = plain();                                                       \
        change;                                                                                \
        check_refused(h, NULL, 0, status, text);                                               \
    } while (0)

static void frame_reader_rejects_invalid_headers(void **state)
{
    REFUSED(h.version = 1, CH_DATA_LOSS, "version 1");
    REFUSED(h.version = 3, CH_DATA_LOSS, "version 3");
    REFUSED(h.version = 0, CH_DATA_LOSS, "version 0");
    REFUSED(h.kind = 7, CH_DATA_LOSS, "kind is unknown");
    REFUSED((h.kind = 6, h.version = 3), CH_DATA_LOSS, "version 3");
    REFUSED(h.kind = 0, CH_DATA_LOSS, "kind is unknown");
    REFUSED(h.ending = 1, CH_DATA_LOSS, "ending is unknown");
    REFUSED((h.kind = 2, h.ending = 7), CH_DATA_LOSS, "ending is unknown");
    REFUSED(h.status = 17, CH_DATA_LOSS, "status");
    REFUSED(h.timeout_ns = UINT64_MAX, CH_DATA_LOSS, "too large");
    REFUSED((h.kind = 3, h.method = 1), CH_DATA_LOSS, "only calls");
    REFUSED((h.kind = 3, h.message_bytes = 1), CH_DATA_LOSS, "must not have");
    REFUSED(h.tensors_bytes = 1, CH_DATA_LOSS, "but no tensor");
    REFUSED(h.n_tensors = 1, CH_DATA_LOSS, "fewer or smaller");
    /* Sizes above the limits. */
    REFUSED(h.n_tensors = 8193, CH_RESOURCE_EXHAUSTED, "at most");
    REFUSED(h.tensor_headers_bytes = 2 << 20, CH_RESOURCE_EXHAUSTED, "at most");
    REFUSED(h.message_bytes = 1ull << 60, CH_RESOURCE_EXHAUSTED, "at most");
    REFUSED((h.kind = 4, h.message_bytes = 1025), CH_RESOURCE_EXHAUSTED, "a hello of 1025");
    REFUSED((h.kind = 4, h.version = 9, h.message_bytes = 1025), CH_RESOURCE_EXHAUSTED,
            "a hello of 1025");
    REFUSED((h.kind = 6, h.message_bytes = 1), CH_DATA_LOSS, "must not have");
    REFUSED((h.kind = 5, h.n_tensors = 1), CH_DATA_LOSS, "only calls");
    REFUSED(h.tensors_bytes = UINT64_MAX, CH_RESOURCE_EXHAUSTED, "at most");
    REFUSED((h.tensors_bytes = 64 << 20, h.message_bytes = 1), CH_RESOURCE_EXHAUSTED,
            "at most");
    (void)state;
}

static void check_look(uint32_t dtype, int rank, const uint64_t *shape, uint64_t bytes,
                       uint64_t all, const char *text)
{
    uint8_t              body[256];
    uint64_t             sizes[16] = {0};
    Cohort__FrameTensor  look = COHORT__FRAME_TENSOR__INIT, *list[1] = {&look};
    Cohort__FrameTensors looks = COHORT__FRAME_TENSORS__INIT;
    Cohort__FrameHeader  h = plain();

    memcpy(sizes, shape, (size_t)rank * sizeof(sizes[0]));
    look.dtype = dtype;
    look.n_shape = (size_t)rank;
    look.shape = sizes;
    look.bytes = bytes;
    looks.n_tensors = 1;
    looks.tensors = list;
    h.n_tensors = 1;
    h.tensors_bytes = all;
    h.tensor_headers_bytes = cohort__frame_tensors__pack(&looks, body);
    check_refused(h, body, h.tensor_headers_bytes, CH_DATA_LOSS, text);
}

static void frame_reader_rejects_invalid_tensor_headers(void **state)
{
    const uint64_t two[] = {2}, huge[] = {1ull << 40, 1ull << 40}, wide[] = {UINT64_MAX};
    const uint64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};

    check_look(0, 1, two, 9, 9, "do not match its shape");
    check_look(0, 1, two, 8, 9, "fewer or smaller");
    check_look(0, 1, two, 8, 7, "more bytes than its header says");
    check_look(0, 2, huge, 8, 8, "larger than the address space");
    check_look(0, 1, wide, 8, 8, "too many axes, or an axis is too large");
    check_look(0, 9, nine, 4, 4, "too many axes");
    check_look(14, 1, two, 8, 8, "dtype of a tensor is unknown");
    check_look(CH_STR, 1, two, 31, 31, "do not match its shape");
    (void)state;
}

static void check_strings(uint64_t first, uint64_t second, size_t n_text, const char *text)
{
    const uint64_t       rows[4] = {first, 0, second, 0};
    uint8_t              body[256];
    uint64_t             sizes[] = {2};
    Cohort__FrameTensor  look = COHORT__FRAME_TENSOR__INIT, *list[1] = {&look};
    Cohort__FrameTensors looks = COHORT__FRAME_TENSORS__INIT;
    Cohort__FrameHeader  h = plain();

    look.dtype = CH_STR;
    look.n_shape = 1;
    look.shape = sizes;
    look.bytes = h.tensors_bytes = sizeof(rows) + n_text;
    looks.n_tensors = 1;
    looks.tensors = list;
    h.n_tensors = 1;
    h.tensor_headers_bytes = cohort__frame_tensors__pack(&looks, body);
    memcpy(body + h.tensor_headers_bytes, rows, sizeof(rows));
    memset(body + h.tensor_headers_bytes + sizeof(rows), 't', n_text);
    check_refused(h, body, h.tensor_headers_bytes + sizeof(rows) + n_text, CH_DATA_LOSS, text);
}

static void frame_reader_rejects_strings_beyond_their_tensor(void **state)
{
    check_strings(3, 3, 5, "longer than the rest");
    check_strings(UINT64_MAX, 3, 5, "longer than the rest");
    check_strings(2, 2, 5, "text that belongs to no string");
    (void)state;
}

static void frame_reader_rejects_bytes_that_do_not_begin_a_frame(void **state)
{
    static const char *const begin_as[] = {"HTTP", "CHxx", "CH\0\0", "ch\4\0"};

    for (size_t i = 0; i < sizeof(begin_as) / sizeof(begin_as[0]); i++) {
        ch_frame_reader r = {.max_bytes = 1000};
        int             n;

        assert_int_equal(read_pieces(&r, (const uint8_t *)begin_as[i], 4, 4, &n), CH_DATA_LOSS);
        ch__frame_reader_drop(&r);
    }
    (void)state;
}

/* A tensor of 60 MiB of which only a few bytes arrive. */
static void frame_reader_allocates_as_bytes_arrive(void **state)
{
    ch_tensor      *t = NULL;
    ch_message     *p = NULL;
    void           *bytes = NULL;
    size_t          size = 0;
    ch_frame_reader r = {.max_bytes = 64 << 20};
    int             n;

    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(15 << 20), &t), CH_OK);
    assert_int_equal(ch__message_new(1, 0, NULL, 1, &t, &p), CH_OK);
    ch_frame f = {.kind = CH_FRAME_CALL, .call = 1, .message = p};
    assert_int_equal(ch__frame_encode(&f, false, &bytes, &size), CH_OK);
    ch__mem_watch(true);
    assert_int_equal(read_pieces(&r, bytes, 1 << 20, 4096, &n), CH_OK);
    assert_in_range(ch__mem_peak(), 0, 17 << 20);
    ch__mem_watch(false);
    assert_int_equal(
        read_pieces(&r, (uint8_t *)bytes + (1 << 20), size - (1 << 20), 1 << 16, &n), CH_OK);
    assert_int_equal(n, 1);
    check_same(&f, &r.frame);
    ch__frame_reader_drop(&r);
    ch__free(bytes);
    ch__frame_drop(&f);
    (void)state;
}

static void frame_reader_reads_frames_in_sequence(void **state)
{
    ch_frame        f = refusal();
    void           *bytes = NULL;
    size_t          size = 0;
    uint8_t        *twice;
    ch_frame_reader r = {.max_bytes = 1 << 20};
    bool            is_whole;
    size_t          used;

    assert_int_equal(ch__frame_encode(&f, false, &bytes, &size), CH_OK);
    twice = malloc(2 * size);
    memcpy(twice, bytes, size);
    memcpy(twice + size, bytes, size);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ch__frame_read(&r, twice + (size_t)i * size, (size_t)(2 - i) * size,
                                        &used, &is_whole),
                         CH_OK);
        assert_true(is_whole && used == size);
        check_same(&f, &r.frame);
        ch__frame_drop(&r.frame);
    }
    ch__frame_reader_drop(&r);
    free(twice);
    ch__free(bytes);
    ch__frame_drop(&f);
    (void)state;
}

static void frame_encode_and_read_report_lack_of_memory(void **state)
{
    ch_frame  f = rich_frame();
    void     *bytes = NULL;
    size_t    size = 0;
    ch_status rc = CH_RESOURCE_EXHAUSTED;
    int       whole;

    for (int64_t n = 1; rc != CH_OK; n++) {
        ch__mem_fail_at(n);
        rc = ch__frame_encode(&f, true, &bytes, &size);
        ch__mem_fail_at(0);
    }
    rc = CH_RESOURCE_EXHAUSTED;
    for (int64_t n = 1; rc != CH_OK; n++) {
        ch_frame_reader r = {.max_bytes = 1 << 20, .has_checksums = true};

        ch__mem_fail_at(n);
        rc = read_pieces(&r, bytes, size, 1000, &whole);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch__frame_reader_drop(&r);
    }
    ch__free(bytes);
    ch__frame_drop(&f);
    (void)state;
}

static void message_new_rejects_more_bytes_than_the_limit(void **state)
{
    ch_message *p = NULL;
    void       *bytes;

    assert_int_equal(ch__message_new(1, CH_MESSAGE_MAX_BYTES + 1, &bytes, 0, NULL, &p),
                     CH_INVALID_ARGUMENT);
    (void)state;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(frame_round_trip_is_exact),
        TEST(hello_round_trip_is_exact),
        TEST(hello_decoder_rejects_damage_and_skips_unknown_fields),
        TEST(frame_with_any_flipped_bit_is_not_accepted),
        TEST(checksums_cover_pieces_of_64_kib),
        TEST(frame_vectors_and_reading_in_place_are_exact),
        TEST(frame_vector_sends_tensors_from_where_they_are),
        TEST(received_tensors_use_kept_memory_again),
        TEST(receive_pool_keeps_a_bounded_number_of_bytes),
        TEST(frame_header_is_the_message_of_net_proto),
        TEST(frame_reader_rejects_invalid_headers),
        TEST(frame_reader_rejects_invalid_tensor_headers),
        TEST(frame_reader_rejects_strings_beyond_their_tensor),
        TEST(frame_reader_rejects_bytes_that_do_not_begin_a_frame),
        TEST(frame_reader_allocates_as_bytes_arrive),
        TEST(frame_reader_reads_frames_in_sequence),
        TEST(frame_encode_and_read_report_lack_of_memory),
        TEST(message_new_rejects_more_bytes_than_the_limit),
    };
    ch_tensor *t = NULL;

    if (ch_tensor_scalar(CH_F32, 1, &t) != CH_OK) /* objects that exist once in a process */
        return 1;
    ch_tensor_unref(t);
    return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
