/* test/base/test_pbwire.c -- fields are read as they were written, and damaged bytes are
 * rejected.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/pbwire.h"

/* Appends a message with a field of each type, and a nested message of `inner` bytes. */
static void put_message(ch_bytes_builder *b, size_t inner)
{
    ch__wire_put_number(b, 1, 300);
    ch__wire_put_number(b, 2, 0); /* omitted */
    ch__wire_put_fixed32(b, 3, 0xfedcba98);
    ch__wire_put_fixed64(b, 4, 0);
    ch__wire_put_text(b, 5, "text");
    size_t start = ch__wire_begin(b, 1000);
    for (size_t i = 0; i < inner; i++)
        ch__bytes_builder_text(b, "i");
    ch__wire_end(b, start);
    ch__wire_put_number(b, 7, UINT64_MAX);
}

static ch_wire_field want_field(ch_wire *w, ch_wire_span *s, unsigned number, ch_wire_type type)
{
    ch_wire_field f = {0};

    assert_true(ch__wire_next(w, s, &f));
    assert_int_equal(f.number, number);
    assert_int_equal(f.type, type);
    return f;
}

static void want_varint(ch_wire *w, ch_wire_field f, uint64_t want)
{
    uint64_t x = 0;

    assert_true(ch__wire_varint(w, &f.data, &x));
    assert_true(x == want && f.data.at == f.data.end);
}

static void pbwire_reads_fields_as_they_were_written(void **state)
{
    static const size_t inner[] = {0, 1, 127, 128, 20000};

    for (int i = 0; i < 5; i++) {
        ch_bytes_builder b = {0};
        ch_wire_field    f;

        put_message(&b, inner[i]);
        assert_false(b.has_failed);
        ch_wire      w = ch__wire(b.at, b.n);
        ch_wire_span s = w.all;
        want_varint(&w, want_field(&w, &s, 1, CH_WIRE_VARINT), 300);
        f = want_field(&w, &s, 3, CH_WIRE_32);
        assert_true(ch__wire_bytes(f.data) == 4 && ch__le32(f.data.at) == 0xfedcba98);
        f = want_field(&w, &s, 4, CH_WIRE_64);
        assert_true(ch__wire_bytes(f.data) == 8 && ch__le64(f.data.at) == 0);
        f = want_field(&w, &s, 5, CH_WIRE_BYTES);
        assert_int_equal(ch__wire_bytes(f.data), 4);
        assert_memory_equal(f.data.at, "text", 4);
        f = want_field(&w, &s, 1000, CH_WIRE_BYTES);
        assert_int_equal(ch__wire_bytes(f.data), inner[i]);
        want_varint(&w, want_field(&w, &s, 7, CH_WIRE_VARINT), UINT64_MAX);
        assert_false(ch__wire_next(&w, &s, &f));
        assert_null(w.fault);
        ch__bytes_builder_drop(&b);
    }
    (void)state;
}

static void pbwire_varints_have_the_size_that_is_computed(void **state)
{
    for (int bit = 0; bit < 64; bit++)
        for (int less = 0; less < 2; less++) {
            unsigned char bytes[CH_VARINT_BYTES];
            uint64_t      x = ((uint64_t)1 << bit) - (uint64_t)less, back = 0;
            size_t        n = (size_t)(ch__put_varint(bytes, x) - bytes);
            ch_wire       w = ch__wire(bytes, n);
            ch_wire_span  s = w.all;

            assert_int_equal(n, ch__varint_bytes(x));
            assert_true(ch__wire_varint(&w, &s, &back) && back == x && s.at == s.end);
        }
    (void)state;
}

/* Every prefix of a message ends at a field or is rejected. The copy ends with the prefix, so
 * that a sanitizer finds a read behind it. */
static void pbwire_reports_a_fault_when_a_message_is_cut(void **state)
{
    ch_bytes_builder b = {0};
    int              n_whole = 0;

    put_message(&b, 5);
    for (size_t n = 0; n < b.n; n++) {
        uint8_t      *cut = malloc(n + 1);
        ch_wire       w;
        ch_wire_span  s;
        ch_wire_field f;

        assert_non_null(cut);
        memcpy(cut, b.at, n);
        w = ch__wire(cut, n);
        s = w.all;
        while (ch__wire_next(&w, &s, &f))
            assert_true(f.data.at <= f.data.end && f.data.end <= w.all.end);
        n_whole += w.fault == NULL;
        assert_true(w.fault != NULL || s.at == s.end);
        free(cut);
    }
    assert_int_equal(n_whole, 6); /* before each of the six fields */
    ch__bytes_builder_drop(&b);
    (void)state;
}

static void pbwire_reports_a_fault_for_invalid_fields(void **state)
{
    static const struct {
        size_t  n;
        uint8_t bytes[16];
    } bad[] = {
        {1, {0x00}},                                                       /* field 0 */
        {1, {0x0b}},                                                       /* a group */
        {6, {0xff, 0xff, 0xff, 0xff, 0x7f, 0}},                            /* field number */
        {12, {0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}}, /* long varint */
        {11, {0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}},      /* length 2^64 - 1 */
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ch_wire       w = ch__wire(bad[i].bytes, bad[i].n);
        ch_wire_span  s = w.all;
        ch_wire_field f;

        assert_false(ch__wire_next(&w, &s, &f));
        assert_non_null(w.fault);
        assert_true(w.fault_at >= w.all.at && w.fault_at <= w.all.end);
    }
    (void)state;
}

static void pbwire_writer_fails_without_damage_when_out_of_memory(void **state)
{
    int64_t live = ch__mem_live();

    for (int64_t n = 1; n <= 4; n++) {
        ch_bytes_builder b = {0};

        ch__mem_fail_from(n);
        put_message(&b, 20);
        assert_true(b.has_failed == (n <= 3)); /* 16 bytes, 32, 64 */
        ch__mem_fail_from(0);
        ch__bytes_builder_drop(&b);
    }
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pbwire_reads_fields_as_they_were_written),
        cmocka_unit_test(pbwire_varints_have_the_size_that_is_computed),
        cmocka_unit_test(pbwire_reports_a_fault_when_a_message_is_cut),
        cmocka_unit_test(pbwire_reports_a_fault_for_invalid_fields),
        cmocka_unit_test(pbwire_writer_fails_without_damage_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
