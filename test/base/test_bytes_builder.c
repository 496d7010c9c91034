/* test/base/test_bytes_builder.c -- a builder holds all bytes that were appended, or has
 * failed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes_builder.h"
#include "base/mem.h"

static void bytes_builder_holds_all_appended_bytes_in_order(void **state)
{
    ch_bytes_builder b = {0};
    int64_t          live = ch__mem_live();

    ch__bytes_builder_add(&b, NULL, 0);
    for (int i = 0; i < 10000; i++) {
        unsigned char byte = (unsigned char)(i * 7);

        ch__bytes_builder_add(&b, &byte, 1);
    }
    ch__bytes_builder_text(&b, "end");
    assert_int_equal(b.n, 10003);
    assert_true(b.capacity >= b.n && b.capacity < 3 * b.n);
    for (int i = 0; i < 10000; i++)
        assert_int_equal((unsigned char)b.at[i], (unsigned char)(i * 7));
    assert_memory_equal(b.at + 10000, "end", 3);
    ch__bytes_builder_clear(&b);
    assert_int_equal(b.n, 0);
    ch__bytes_builder_drop(&b);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void bytes_builder_encodes_integers_and_sized_bytes(void **state)
{
    static const unsigned char want[] = {
        0,    0x7f, 0x80, 1,                                           /* 0, 127, 128 */
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,       /* 2^64 - 1 */
        4,    3,    2,    1,    8,    7,    6,    5,    4,    3, 2, 1, /* fixed32, fixed64 */
        2,    'a',  'b',  0,                                           /* sized */
    };
    ch_bytes_builder b = {0};

    ch__bytes_builder_varint(&b, 0);
    ch__bytes_builder_varint(&b, 127);
    ch__bytes_builder_varint(&b, 128);
    ch__bytes_builder_varint(&b, UINT64_MAX);
    ch__bytes_builder_fixed32(&b, 0x01020304);
    ch__bytes_builder_fixed64(&b, 0x0102030405060708);
    ch__bytes_builder_sized(&b, "ab", 2);
    ch__bytes_builder_sized(&b, NULL, 0);
    assert_int_equal(b.n, sizeof(want));
    assert_memory_equal(b.at, want, sizeof(want));
    ch__bytes_builder_drop(&b);
    (void)state;
}

static void bytes_builder_fails_once_and_for_all_when_out_of_memory(void **state)
{
    ch_bytes_builder b = {0};

    ch__bytes_builder_text(&b, "kept");
    ch__mem_fail_from(1);
    assert_null(ch__bytes_builder_reserve(&b, 1 << 20));
    ch__mem_fail_from(0);
    assert_true(b.has_failed);
    ch__bytes_builder_text(&b, "not added");
    assert_int_equal(b.n, 4);
    assert_int_equal(ch__bytes_builder_write(&b, -1, "no file"), CH_RESOURCE_EXHAUSTED);
    assert_null(ch__bytes_builder_reserve(&b, SIZE_MAX));
    ch__bytes_builder_clear(&b);
    assert_null(ch__bytes_builder_reserve(&b, SIZE_MAX));
    ch__bytes_builder_clear(&b);
    ch__bytes_builder_text(&b, "again");
    assert_false(b.has_failed);
    assert_memory_equal(b.at, "again", 5);
    ch__bytes_builder_drop(&b);
    (void)state;
}

static void bytes_builder_reads_back_the_file_it_has_written(void **state)
{
    char             path[] = "/tmp/test_bytes_builder_XXXXXX";
    int              fd = mkstemp(path);
    ch_bytes_builder out = {0}, in = {0};
    size_t           n = 200000;

    assert_true(fd >= 0);
    memset(ch__bytes_builder_reserve(&out, n), 'x', n);
    assert_int_equal(ch__bytes_builder_write(&out, fd, path), CH_OK);
    assert_int_equal(out.n, 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(ch__bytes_builder_read(&in, fd, path), CH_OK);
    assert_int_equal(in.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(in.at[i], 'x');
    close(fd);
    unlink(path);
    assert_int_not_equal(ch__bytes_builder_read(&in, fd, path), CH_OK); /* closed */
    ch__bytes_builder_drop(&out);
    ch__bytes_builder_drop(&in);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_builder_holds_all_appended_bytes_in_order),
        cmocka_unit_test(bytes_builder_encodes_integers_and_sized_bytes),
        cmocka_unit_test(bytes_builder_fails_once_and_for_all_when_out_of_memory),
        cmocka_unit_test(bytes_builder_reads_back_the_file_it_has_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
