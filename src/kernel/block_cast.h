/* kernel/block_cast.h -- casts from an element type. kernel/block.c includes this file once for
 * each type, after defining T, NAME(x) and IS_FLOAT as for kernel/block_type.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */

/* clang-format off */
#define CASTS(X)                                                                               \
    X(f32, float) X(f64, double) X(i8, int8_t) X(i16, int16_t) X(i32, int32_t) X(i64, int64_t) \
    X(u8, uint8_t) X(u16, uint16_t) X(u32, uint32_t) X(u64, uint64_t)
/* clang-format on */

#if IS_FLOAT
/* Casts a float to an integer type with the range [least, most]; `end` is most + 1. The
 * fraction is dropped, values out of range give the nearer end, and NaN gives 0. The C cast is
 * applied only to values in range, because other values are undefined behaviour, and vectors
 * and scalars differ there. */
#define TO_INT(name, type, least, most, end)                                                   \
    CH_SIMD_INLINE type NAME(to_##name##_of)(T x)                                              \
    {                                                                                          \
        T    inside = x > (T)(least)-1 && x < (T)(end) ? x : 0;                                \
        type y = (type)inside;                                                                 \
                                                                                               \
        y = x >= (T)(end) ? most : y;                                                          \
        return x <= (T)(least) ? least : y;                                                    \
    }
TO_INT(i8, int8_t, INT8_MIN, INT8_MAX, 0x1p7)
TO_INT(i16, int16_t, INT16_MIN, INT16_MAX, 0x1p15)
TO_INT(i32, int32_t, INT32_MIN, INT32_MAX, 0x1p31)
TO_INT(i64, int64_t, INT64_MIN, INT64_MAX, 0x1p63)
TO_INT(u8, uint8_t, 0, UINT8_MAX, 0x1p8)
TO_INT(u16, uint16_t, 0, UINT16_MAX, 0x1p16)
TO_INT(u32, uint32_t, 0, UINT32_MAX, 0x1p32)
TO_INT(u64, uint64_t, 0, UINT64_MAX, 0x1p64)
#undef TO_INT
#else
#define TO_INT(name, type)                                                                     \
    CH_SIMD_INLINE type NAME(to_##name##_of)(T x)                                              \
    {                                                                                          \
        return (type)x;                                                                        \
    }
TO_INT(i8, int8_t)
TO_INT(i16, int16_t)
TO_INT(i32, int32_t)
TO_INT(i64, int64_t)
TO_INT(u8, uint8_t)
TO_INT(u16, uint16_t)
TO_INT(u32, uint32_t)
TO_INT(u64, uint64_t)
#undef TO_INT
#endif

CH_SIMD_INLINE float NAME(to_f32_of)(T x)
{
    return (float)x;
}
CH_SIMD_INLINE double NAME(to_f64_of)(T x)
{
    return (double)x;
}

#define CAST(name, type)                                                                       \
    static void NAME(to_##name)(int64_t n, const void *const *in, void *out,                   \
                                const double *param)                                           \
    {                                                                                          \
        const T *x = in[0];                                                                    \
        type    *y = out;                                                                      \
                                                                                               \
        (void)param;                                                                           \
        CH_SIMD_LOOP                                                                           \
        for (int64_t i = 0; i < n; i++)                                                        \
            y[i] = NAME(to_##name##_of)(x[i]);                                                 \
    }
CASTS(CAST)
#undef CAST
#undef CASTS

static void NAME(to_bool)(int64_t n, const void *const *in, void *out, const double *param)
{
    const T *x = in[0];
    uint8_t *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] != 0;
}

#undef T
#undef NAME
#undef IS_FLOAT
