/* test/kernel/test_philox.c -- Philox against its published results, and numbers made from its
 * words.
 *
 * The numbers are uniform, normal, integers in a range and permutations. The tests compare
 * normals with quantiles of the normal distribution, and all levels bit by bit.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/philox.h"

enum { GROUPS = 64, N = GROUPS * CH_PHILOX_GROUP };

static ch_philox a_stream(uint64_t seed)
{
    return ch__philox_stream(
        &(ch_philox_name){.seed = seed, .own = 3, .step = 5, .ordinal = 7});
}

/* kat_vectors of Random123: philox4x32, 10 rounds. */
static void philox_blocks_are_the_published_ones(void **state)
{
    static const uint32_t known[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };

    for (int i = 0; i < 3; i++) {
        uint32_t out[4];

        ch__philox_block(known[i], known[i] + 4, out);
        assert_memory_equal(out, known[i] + 6, sizeof(out));
    }
    (void)state;
}

static void philox_lanes_hold_the_blocks_of_their_numbers(void **state)
{
    ch_philox p = a_stream(1);
    int64_t   group = ((int64_t)1 << 28) - 2; /* across the end of the counter's first word */
    uint32_t  w[4 * CH_PHILOX_GROUP];

    ch__philox()->words(&p, group, 4, w);
    for (int64_t i = 0; i < 4 * CH_PHILOX_LANES; i++) {
        uint64_t block = (uint64_t)group * CH_PHILOX_LANES + (uint64_t)i;
        uint32_t counter[] = {(uint32_t)block, (uint32_t)(block >> 32), p.high[0], p.high[1]};
        uint32_t out[4];
        const uint32_t *at = w + i / CH_PHILOX_LANES * CH_PHILOX_GROUP + i % CH_PHILOX_LANES;

        ch__philox_block(counter, p.key, out);
        for (int k = 0; k < 4; k++)
            assert_int_equal(at[k * CH_PHILOX_LANES], out[k]);
    }
    (void)state;
}

static void philox_stream_changes_with_any_part_of_its_name(void **state)
{
    ch_philox_name name[] = {{0},
                             {.seed = 1},
                             {.seed = (uint64_t)1 << 40},
                             {.own = 1},
                             {.step = 1},
                             {.step = -1},
                             {.step = (int64_t)1 << 40},
                             {.ordinal = 1},
                             {.replica = 1},
                             {.replica = 1, .ordinal = 1}};
    const int      n = (int)(sizeof(name) / sizeof(name[0]));

    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            ch_philox a = ch__philox_stream(&name[i]), b = ch__philox_stream(&name[k]);

            assert_memory_not_equal(&a, &b, sizeof(a));
        }
    (void)state;
}

/* Every level computes the same bits, for every length. */
static void philox_has_the_same_bits_at_every_level(void **state)
{
    static uint32_t        w[N], w2[N];
    static double          a[N], b[N], x[N];
    ch_philox              p = a_stream(2);
    ch_normal              normal = {1, 2, 0, 1};
    const ch_philox_table *base = ch__philox_at(CH_SIMD_BASE);

    base->words(&p, 0, GROUPS, w);
    for (int i = 0; i < N; i++)
        x[i] = i - 3.5;
    for (int level = 1; level <= (int)ch__simd_best(); level++) {
        const ch_philox_table *t = ch__philox_at((ch_simd)level);

        t->words(&p, 0, GROUPS, w2);
        assert_memory_equal(w, w2, sizeof(w));
        for (int64_t n = 1000; n <= 1024; n++) {
            memset(a, 0, sizeof(a));
            memset(b, 0, sizeof(b));
            base->uniform_f32(n, w, -1, 3, 1.5f, (float *)a);
            t->uniform_f32(n, w, -1, 3, 1.5f, (float *)b);
            assert_memory_equal(a, b, sizeof(a));
            base->uniform_f64(n, w, -1, 3, 1.5, a);
            t->uniform_f64(n, w, -1, 3, 1.5, b);
            assert_memory_equal(a, b, sizeof(a));
            base->normal_f32(n, w, &normal, (float *)a);
            t->normal_f32(n, w, &normal, (float *)b);
            assert_memory_equal(a, b, sizeof(a));
            base->normal_f64(n, w, &normal, a);
            t->normal_f64(n, w, &normal, b);
            assert_memory_equal(a, b, sizeof(a));
            base->keep_f64(n, w, 1u << 30, 4.0 / 3, x, a);
            t->keep_f64(n, w, 1u << 30, 4.0 / 3, x, b);
            assert_memory_equal(a, b, sizeof(a));
            base->keep_f32(n, w, 1u << 30, 4.0f / 3, (float *)x, (float *)a);
            t->keep_f32(n, w, 1u << 30, 4.0f / 3, (float *)x, (float *)b);
            assert_memory_equal(a, b, sizeof(a));
            base->pick_2(n, w, 1u << 30, 0x3c00, (uint16_t *)a);
            t->pick_2(n, w, 1u << 30, 0x3c00, (uint16_t *)b);
            assert_memory_equal(a, b, sizeof(a));
        }
    }
    (void)state;
}

/* P(X < z) must give u again, to a few units of 2^-52. */
static void philox_f64_normals_are_quantiles(void **state)
{
    static uint32_t w[N];
    static double   z[N / 2];
    ch_philox       p = a_stream(4);

    ch__philox()->words(&p, 0, GROUPS, w);
    w[0] = w[CH_PHILOX_LANES] = 0; /* both ends of the range */
    w[1] = w[CH_PHILOX_LANES + 1] = 0xffffffff;
    w[2] = 0x80000000, w[CH_PHILOX_LANES + 2] = 0;
    ch__philox()->normal_f64(N / 2, w, &(ch_normal){0, 1, 0, 1}, z);
    for (int i = 3; i < N / 2; i++) {
        const uint32_t *v = w + i / CH_PHILOX_LANES * 2 * CH_PHILOX_LANES + i % CH_PHILOX_LANES;
        uint64_t        bits = ((uint64_t)v[0] << 32 | v[CH_PHILOX_LANES]) >> 12;
        double          u = ((double)bits + 0.5) * 0x1p-52, back = 0.5 * erfc(-z[i] / sqrt(2));

        if (fabs(back - u) > 1e-13 * fmin(u, 1 - u) + 1e-16)
            fail_msg("the quantile of %.17g is %.17g, which is that of %.17g", u, z[i], back);
    }
    assert_true(z[0] < -6.6 && z[0] > -6.8);
    assert_true(z[1] == -z[0]);
    assert_true(fabs(z[2]) < 1e-15);
    (void)state;
}

static void philox_f32_normals_are_quantiles(void **state)
{
    static uint32_t w[N];
    static float    z[N];
    static double   fine[N / 2];
    ch_philox       p = a_stream(4);
    ch_normal       all = {0, 1, 0, 1}, within = {0, 1, 0.0227501319, 0.9544997362};

    ch__philox()->words(&p, 0, GROUPS, w);
    w[0] = 0;
    w[1] = 0xffffffff;
    w[2] = 0x80000000;
    w[3] = 0x7fffffff;
    for (int k = 0; k < 2; k++) {
        const ch_normal *of = k == 0 ? &all : &within;

        ch__philox()->normal_f32(N, w, of, z);
        for (int i = 0; i < N; i++) {
            uint32_t pair[2 * CH_PHILOX_LANES] = {w[i]};

            pair[CH_PHILOX_LANES] = 0x80000000; /* the middle of the interval of the word */
            ch__philox()->normal_f64(1, pair, of, fine);
            if (fabs(z[i] - fine[0]) > 1e-6 * fabs(fine[0]) + 1e-9)
                fail_msg("of word %08x it is %.9g, want %.9g", (unsigned)w[i], z[i], fine[0]);
        }
    }
    (void)state;
}

static void philox_integers_stay_within_their_range(void **state)
{
    static const uint64_t range[] = {1, 2, 3, 10, 1000, (uint64_t)1 << 32};
    static uint32_t       w[N];
    static uint64_t       x[N];
    ch_philox             p = a_stream(5);

    ch__philox()->words(&p, 0, GROUPS, w);
    w[0] = w[16] = w[32] = w[48] = 0xffffffff;
    for (size_t r = 0; r < sizeof(range) / sizeof(range[0]); r++) {
        ch__philox_below_2(N / 2, w, range[r], x);
        for (int i = 0; i < N / 2; i++)
            assert_true(x[i] < range[r]);
        assert_int_equal(x[0], range[r] - 1);
        ch__philox_below_4(N / 4, w, range[r], x);
        for (int i = 0; i < N / 4; i++)
            assert_true(x[i] < range[r]);
        assert_int_equal(x[0], range[r] - 1);
    }
    ch__philox_below_4(N / 4, w, UINT64_MAX, x);
    assert_true(x[0] == UINT64_MAX - 1);
    (void)state;
}

static int by_size(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void philox_permutation_has_every_number_once(void **state)
{
    static const int64_t size[] = {0, 1, 2, 3, 511, 512, 513, 5000};

    for (size_t k = 0; k < sizeof(size) / sizeof(size[0]); k++) {
        int64_t  *order = malloc((size_t)size[k] * sizeof(*order) + 1);
        ch_philox p = a_stream(6);

        ch__philox_permutation(&p, size[k], order);
        qsort(order, (size_t)size[k], sizeof(*order), by_size);
        for (int64_t i = 0; i < size[k]; i++)
            assert_int_equal(order[i], i);
        free(order);
    }
    (void)state;
}

/* Draws 24000 permutations of four. Each of the 24 must be about equally frequent: chi squared,
 * 23 degrees of freedom. */
static void philox_permutations_are_equally_likely(void **state)
{
    int    count[256] = {0}, kinds = 0;
    double chi = 0;

    for (uint64_t i = 0; i < 24000; i++) {
        ch_philox p = a_stream(i);
        int64_t   order[4];

        ch__philox_permutation(&p, 4, order);
        count[order[0] | order[1] << 2 | order[2] << 4 | order[3] << 6]++;
    }
    for (int i = 0; i < 256; i++)
        if (count[i] > 0) {
            kinds++;
            chi += (count[i] - 1000.0) * (count[i] - 1000.0) / 1000;
        }
    assert_int_equal(kinds, 24);
    assert_true(chi < 50); /* exceeded with probability 0.001 */
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_blocks_are_the_published_ones),
        cmocka_unit_test(philox_lanes_hold_the_blocks_of_their_numbers),
        cmocka_unit_test(philox_stream_changes_with_any_part_of_its_name),
        cmocka_unit_test(philox_has_the_same_bits_at_every_level),
        cmocka_unit_test(philox_f64_normals_are_quantiles),
        cmocka_unit_test(philox_f32_normals_are_quantiles),
        cmocka_unit_test(philox_integers_stay_within_their_range),
        cmocka_unit_test(philox_permutation_has_every_number_once),
        cmocka_unit_test(philox_permutations_are_equally_likely),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
