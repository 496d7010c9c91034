/* test/file/test_crc32c.c -- every implementation of CRC-32C gives the result of a bitwise
 * loop.
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/crc32c.h"

#include "help.h"

/* The definition of CRC-32C, a bit at a time. */
static uint32_t model(uint32_t crc, const void *data, size_t n)
{
    const unsigned char *p = data;

    crc = ~crc;
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint32_t last = (crc ^ (uint32_t)(p[i] >> bit)) & 1;

            crc = (crc >> 1) ^ (last ? 0x82f63b78u : 0);
        }
    return ~crc;
}

/* RFC 3720, B.4. */
static void crc32c_gives_the_values_of_rfc_3720(void **state)
{
    unsigned char data[32];

    assert_int_equal(ch__crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(ch__crc32c(0, "", 0), 0);
    memset(data, 0, sizeof(data));
    assert_int_equal(ch__crc32c(0, data, 32), 0x8a9136aau);
    memset(data, 0xff, sizeof(data));
    assert_int_equal(ch__crc32c(0, data, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        data[i] = (unsigned char)i;
    assert_int_equal(ch__crc32c(0, data, 32), 0x46dd794eu);
    (void)state;
}

static void crc32c_implementations_agree_with_the_definition(void **state)
{
    const char  *name;
    ch_crc32c_fn run;
    char        *data = t_noise(20000, 7);
    size_t       sizes[] = {2000, 3072, 4095,  6143,  6144,  6145,  6167,
                            6168, 8192, 12287, 12288, 12312, 16384, 20000 - 64};

    for (int i = 0; ch__crc32c_variant(i, &name, &run); i++) {
        if (run == NULL) {
            print_message("%s: not on this machine\n", name);
            continue;
        }
        for (size_t n = 0; n < 1600; n++)
            assert_int_equal(run((uint32_t)n * 77, data + n % 67, n),
                             model((uint32_t)n * 77, data + n % 67, n));
        for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++)
            assert_int_equal(run(5, data + k, sizes[k]), model(5, data + k, sizes[k]));
    }
    free(data);
    (void)state;
}

static void crc32c_can_be_computed_in_parts(void **state)
{
    char    *data = t_noise(5000, 3);
    uint32_t whole = ch__crc32c(0, data, 5000);

    for (size_t cut = 0; cut <= 5000; cut += 37)
        assert_int_equal(ch__crc32c(ch__crc32c(0, data, cut), data + cut, 5000 - cut), whole);
    free(data);
    (void)state;
}

/* TR-2, TBF-2: "hello" has bb1f1c19 behind it, in little endian. */
static void crc32c_mask_is_that_of_tfrecord(void **state)
{
    assert_int_equal(ch__crc32c_mask(ch__crc32c(0, "hello", 5)), 0x191c1fbbu);
    assert_int_equal(ch__crc32c_mask(ch__crc32c(0, "123456789", 9)), 0xc78ab0e5u);
    assert_int_equal(ch__crc32c_mask(0), 0xa282ead8u);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_gives_the_values_of_rfc_3720),
        cmocka_unit_test(crc32c_implementations_agree_with_the_definition),
        cmocka_unit_test(crc32c_can_be_computed_in_parts),
        cmocka_unit_test(crc32c_mask_is_that_of_tfrecord),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
