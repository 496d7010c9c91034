/* test/kernel/test_accumulate.c -- sums over replicas: each dtype, length and SIMD level.
 *
 * Each case is computed again element by element, by a model that the compiler does not
 * vectorise. It must give the same bits. Arrays begin an element behind an aligned address, and
 * the elements on either side of a result must not change.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "kernel/accumulate.h"
#include "tensor/tensor.h"

enum { LAST = 67, MOST_ARRAYS = 4, ROOM = LAST + 2 };

static const ch_dtype dtypes[] = {CH_F32, CH_F64, CH_BF16, CH_F16,
                                  CH_I8,  CH_I32, CH_I64,  CH_U8};
enum { N_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

/* Element 0 and the element behind the last are not part of the array. */
typedef struct array {
    _Alignas(64) char at[ROOM * sizeof(double)];
} array;

typedef struct sum {
    ch_dtype dtype;
    int64_t  n;
    int      n_src, n_dst, divisor;
    bool     in_place; /* the first result overwrites the last source */
} sum;

static void *element(ch_dtype t, array *a, int64_t i)
{
    return a->at + (size_t)(i + 1) * ch_dtype_bytes(t);
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Fills integers of every size, so that sums wrap, or floats in [-2, 2). */
static void fill(ch_dtype t, array *a, uint32_t seed)
{
    for (size_t i = 0; i < sizeof(a->at); i++)
        a->at[i] = (char)(next(&seed) >> 16);
    for (int64_t i = -1; i <= LAST && ch_dtype_is_float(t); i++)
        ch__store(t, element(t, a, i), (double)next(&seed) / (1 << 22) - 2);
}

/* Writes element i of the sum to `to`. */
static void model(const sum *s, array *src, int64_t i, void *to)
{
    const ch_dtype    t = s->dtype;
    volatile float    f = 0;
    volatile double   d = 0;
    volatile uint64_t u = 0;

    for (int k = 0; k < s->n_src; k++) {
        uint64_t wide = 0; /* low bytes first: only little-endian is supported */

        if (ch_dtype_is_float(t)) {
            double x = ch__load(t, element(t, &src[k], i));

            f = k == 0 ? (float)x : f + (float)x;
            d = k == 0 ? x : d + x;
        } else {
            memcpy(&wide, element(t, &src[k], i), ch_dtype_bytes(t));
            u = u + wide;
        }
    }
    f = f / (float)s->divisor;
    d = d / s->divisor;
    if (ch_dtype_is_float(t))
        ch__store(t, to, t == CH_F64 ? d : (double)f);
    else
        memcpy(to, (const void *)&(uint64_t){u}, ch_dtype_bytes(t));
}

static void check(const sum *s)
{
    const ch_dtype t = s->dtype;
    array          src[MOST_ARRAYS], dst[MOST_ARRAYS], want[MOST_ARRAYS];
    const void    *from[MOST_ARRAYS];
    void          *to[MOST_ARRAYS];

    for (int k = 0; k < MOST_ARRAYS; k++) {
        fill(t, &src[k], (uint32_t)k);
        fill(t, &dst[k], (uint32_t)(k + MOST_ARRAYS));
        from[k] = element(t, &src[k], 0);
        to[k] = element(t, &dst[k], 0);
        want[k] = dst[k];
    }
    if (s->in_place) {
        dst[0] = want[0] = src[s->n_src - 1];
        from[s->n_src - 1] = to[0];
    }
    for (int k = 0; k < s->n_dst; k++)
        for (int64_t i = 0; i < s->n; i++)
            model(s, src, i, element(t, &want[k], i));
    ch__accumulate_all(t, s->n, s->n_src, from, s->n_dst, to, s->divisor);
    for (int k = 0; k < MOST_ARRAYS; k++)
        if (memcmp(&dst[k], &want[k], ROOM * ch_dtype_bytes(t)) != 0)
            fail_msg("%s at level %s: result %d of %d elements of %d arrays, divided by %d",
                     ch_dtype_name(t), ch__simd_name(ch__simd_level()), k, (int)s->n, s->n_src,
                     s->divisor);
}

static void check_length(ch_dtype t, int64_t n)
{
    for (int n_src = 1; n_src <= MOST_ARRAYS; n_src++)
        for (int n_dst = 1; n_dst <= MOST_ARRAYS; n_dst++)
            for (int in_place = 0; in_place < 2; in_place++) {
                check(&(sum){t, n, n_src, n_dst, 1, in_place});
                if (ch_dtype_is_float(t))
                    check(&(sum){t, n, n_src, n_dst, 3, in_place});
            }
}

static void accumulate_agrees_with_the_model_at_every_length_and_level(void **state)
{
    (void)state;
    for (int level = 0; level <= (int)ch__simd_best(); level++) {
        ch__simd_set((ch_simd)level);
        for (int d = 0; d < N_DTYPES; d++)
            for (int64_t n = 0; n <= LAST; n++)
                check_length(dtypes[d], n);
    }
}

static void accumulate_supports_the_tested_dtypes_only(void **state)
{
    (void)state;
    for (int t = 0; t <= CH_STR; t++) {
        bool listed = false;

        for (int d = 0; d < N_DTYPES; d++)
            listed |= dtypes[d] == (ch_dtype)t;
        assert_int_equal(ch__can_accumulate((ch_dtype)t), listed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulate_agrees_with_the_model_at_every_length_and_level),
        cmocka_unit_test(accumulate_supports_the_tested_dtypes_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
