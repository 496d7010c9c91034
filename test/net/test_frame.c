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

#include "base/mem.h"
#include "net.pb-c.h"
#include "net/frame.h"

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

static void check_round_trip(ch_frame f)
{
    static const size_t pieces[] = {1, 3, 64, 1000, 1 << 20};
    void               *bytes = NULL;
    size_t              size = 0;

    assert_int_equal(ch__frame_encode(&f, &bytes, &size), CH_OK);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        ch_frame_reader r = {.max_bytes = 1 << 20};
        int             n;

        assert_int_equal(read_pieces(&r, bytes, size, pieces[i], &n), CH_OK);
        assert_int_equal(n, 1);
        check_same(&f, &r.frame);
        ch__frame_reader_drop(&r);
    }
    ch__free(bytes);
    ch__frame_drop(&f);
}

static void frame_round_trip_is_exact(void **state)
{
    check_round_trip(rich_frame());
    check_round_trip(refusal());
    check_round_trip((ch_frame){.kind = CH_FRAME_CANCEL, .call = 1, .from = 2});
    check_round_trip(
        (ch_frame){.kind = CH_FRAME_REPLY, .ending = CH_ENDED_REPLACED, .call = 7});
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

    assert_int_equal(ch__frame_encode(&f, &bytes, &size), CH_OK);
    at = bytes;
    length = at[2] | (size_t)at[3] << 8;
    assert_true(length <= CH_FRAME_HEADER);
    h = cohort__frame_header__unpack(NULL, length, at + 4);
    assert_non_null(h);
    assert_true(h->version == 1 && h->kind == 1 && h->call == f.call && h->from == f.from);
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

    h.version = 1;
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
    REFUSED(h.version = 2, CH_DATA_LOSS, "version 2");
    REFUSED(h.version = 0, CH_DATA_LOSS, "version 0");
    REFUSED(h.kind = 4, CH_DATA_LOSS, "neither call nor reply");
    REFUSED(h.kind = 0, CH_DATA_LOSS, "neither call nor reply");
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
    assert_int_equal(ch__frame_encode(&f, &bytes, &size), CH_OK);
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

    assert_int_equal(ch__frame_encode(&f, &bytes, &size), CH_OK);
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
        rc = ch__frame_encode(&f, &bytes, &size);
        ch__mem_fail_at(0);
    }
    rc = CH_RESOURCE_EXHAUSTED;
    for (int64_t n = 1; rc != CH_OK; n++) {
        ch_frame_reader r = {.max_bytes = 1 << 20};

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
