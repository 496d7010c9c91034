/* kernel/block_type.h -- block functions of an element type. kernel/block.c includes this file
 * once for each type, after defining
 *     T            the type
 *     NAME(x)      x_f32, x_f64, ...
 *     IS_FLOAT     1 for f32 and f64
 *     IS_ARITH     0: the type can only be compared, selected and filled
 *     SATURATE(x)  the T nearest to the double x
 * and, if IS_ARITH is 1,
 *     U            an unsigned type of the same size, in which integers wrap; T for floats
 *     IS_SIGNED    1 for signed types
 *     LIBM(f)      the libm function f for T (floats only)
 *
 * An op is a function of elements, `x_of`. map1, map2 and the other map functions turn it into
 * a function of blocks. `f` is a constant there, so the compiler inlines and vectorises it.
 *
 * Invariant: element i of the output is written after element i of all inputs has been read,
 * and no other input element is needed for it. So the output may be an input.
 *
 * SPDX-License-Identifier: Apache-2.0 */

/* ---- comparison, select, fill ---- */

CH_SIMD_INLINE void NAME(map_compare)(int64_t n, const void *const *in, void *out,
                                      bool (*f)(T, T))
{
    const T *a = in[0], *b = in[1];
    uint8_t *y = out;

    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = f(a[i], b[i]);
}

CH_SIMD_INLINE bool NAME(equal_of)(T a, T b)
{
    return a == b;
}
CH_SIMD_INLINE bool NAME(not_equal_of)(T a, T b)
{
    return a != b;
}
CH_SIMD_INLINE bool NAME(less_of)(T a, T b)
{
    return a < b;
}
CH_SIMD_INLINE bool NAME(less_equal_of)(T a, T b)
{
    return a <= b;
}
CH_SIMD_INLINE bool NAME(greater_of)(T a, T b)
{
    return a > b;
}
CH_SIMD_INLINE bool NAME(greater_equal_of)(T a, T b)
{
    return a >= b;
}

#define BLOCK(op)                                                                              \
    static void NAME(op)(int64_t n, const void *const *in, void *out, const double *param)     \
    {                                                                                          \
        (void)param;                                                                           \
        NAME(map_compare)(n, in, out, NAME(op##_of));                                          \
    }
CH_BLOCKS_COMPARE(BLOCK)
#undef BLOCK

static void NAME(select)(int64_t n, const void *const *in, void *out, const double *param)
{
    const uint8_t *c = in[0];
    const T       *a = in[1], *b = in[2];
    T             *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++) {
        T yes = a[i], no = b[i]; /* both are loaded, so that no branch is needed */

        y[i] = c[i] ? yes : no;
    }
}

static void NAME(fill)(int64_t n, const void *const *in, void *out, const double *param)
{
    T *y = out, v = (T)SATURATE(param[0]);

    (void)in;
    for (int64_t i = 0; i < n; i++)
        y[i] = v;
}

#if IS_ARITH

CH_SIMD_INLINE void NAME(map1)(int64_t n, const void *const *in, void *out, T (*f)(T))
{
    const T *x = in[0];
    T       *y = out;

    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = f(x[i]);
}

CH_SIMD_INLINE void NAME(map2)(int64_t n, const void *const *in, void *out, T (*f)(T, T))
{
    const T *a = in[0], *b = in[1];
    T       *y = out;

    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = f(a[i], b[i]);
}

/* Applies a function with two parameters, which are attributes of the op. */
CH_SIMD_INLINE void NAME(map_param)(int64_t n, const void *const *in, void *out, T p, T q,
                                    T (*f)(T, T, T))
{
    const T *x = in[0];
    T       *y = out;

    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = f(x[i], p, q);
}

/* ---- arithmetic ---- */

CH_SIMD_INLINE bool NAME(is_negative)(T x)
{
#if IS_SIGNED
    return x < 0;
#else
    (void)x;
    return false;
#endif
}

CH_SIMD_INLINE T NAME(add_of)(T a, T b)
{
    return (T)((U)a + (U)b);
}
CH_SIMD_INLINE T NAME(sub_of)(T a, T b)
{
    return (T)((U)a - (U)b);
}
CH_SIMD_INLINE T NAME(mul_of)(T a, T b)
{
    return (T)((U)a * (U)b);
}
CH_SIMD_INLINE T NAME(square_of)(T x)
{
    return (T)((U)x * (U)x);
}
CH_SIMD_INLINE T NAME(relu_of)(T x)
{
    return NAME(is_negative)(x) ? 0 : x; /* NaN stays NaN */
}
CH_SIMD_INLINE T NAME(relu_mask_of)(T y, T d)
{
    return y > 0 ? d : 0;
}
CH_SIMD_INLINE T NAME(clip_of)(T x, T least, T most)
{
    x = x < least ? least : x;
    return x > most ? most : x;
}

#if IS_FLOAT

CH_SIMD_INLINE T NAME(neg_of)(T x)
{
    return -x;
}
CH_SIMD_INLINE T NAME(abs_of)(T x)
{
    return LIBM(fabs)(x);
}
CH_SIMD_INLINE T NAME(sign_of)(T x)
{
    T s = x < 0 ? (T)-1 : 0;

    s = x > 0 ? 1 : s;
    return x != x ? x : s;
}
CH_SIMD_INLINE T NAME(minimum_of)(T a, T b)
{
    return a < b || a != a ? a : b;
}
CH_SIMD_INLINE T NAME(maximum_of)(T a, T b)
{
    return a > b || a != a ? a : b;
}
CH_SIMD_INLINE T NAME(div_of)(T a, T b)
{
    return a / b;
}

/* Returns the remainder with the sign of the divisor. */
CH_SIMD_INLINE T NAME(mod_of)(T a, T b)
{
    T r = LIBM(fmod)(a, b);

    if (r == 0)
        return LIBM(copysign)(0, b);
    return (r < 0) != (b < 0) ? r + b : r;
}

/* Uses the exact remainder, because a / b may round up to the next integer. */
CH_SIMD_INLINE T NAME(floordiv_of)(T a, T b)
{
    T r, q, whole;

    if (b == 0)
        return a / b;
    r = LIBM(fmod)(a, b);
    q = (a - r) / b;
    if (r != 0 && (r < 0) != (b < 0))
        q -= 1;
    if (q == 0)
        return LIBM(copysign)(0, a / b);
    whole = LIBM(floor)(q);
    return q - whole > (T)0.5 ? whole + 1 : whole;
}

#else

CH_SIMD_INLINE T NAME(neg_of)(T x)
{
    return (T)(0 - (U)x);
}
CH_SIMD_INLINE T NAME(abs_of)(T x)
{
    return NAME(is_negative)(x) ? (T)(0 - (U)x) : x;
}
CH_SIMD_INLINE T NAME(sign_of)(T x)
{
    return (T)((x > 0) - NAME(is_negative)(x));
}
CH_SIMD_INLINE T NAME(minimum_of)(T a, T b)
{
    return a < b ? a : b;
}
CH_SIMD_INLINE T NAME(maximum_of)(T a, T b)
{
    return a > b ? a : b;
}
CH_SIMD_INLINE T NAME(div_of)(T a, T b)
{
    if (b == 0)
        return 0;
    if (IS_SIGNED && b == (T)-1) /* the smallest number / -1 overflows and traps */
        return (T)(0 - (U)a);
    return (T)(a / b);
}
CH_SIMD_INLINE T NAME(floordiv_of)(T a, T b)
{
    if (b == 0 || (IS_SIGNED && b == (T)-1))
        return NAME(div_of)(a, b);
    return (T)(a / b - (a % b != 0 && NAME(is_negative)(a) != NAME(is_negative)(b)));
}
CH_SIMD_INLINE T NAME(mod_of)(T a, T b)
{
    T r;

    if (b == 0 || (IS_SIGNED && b == (T)-1))
        return 0;
    r = (T)(a % b);
    return (T)(r != 0 && NAME(is_negative)(r) != NAME(is_negative)(b) ? r + b : r);
}

#endif

#define BLOCK(op)                                                                              \
    static void NAME(op)(int64_t n, const void *const *in, void *out, const double *param)     \
    {                                                                                          \
        (void)param;                                                                           \
        NAME(map1)(n, in, out, NAME(op##_of));                                                 \
    }
CH_BLOCKS_UNARY(BLOCK)
#undef BLOCK
#define BLOCK(op)                                                                              \
    static void NAME(op)(int64_t n, const void *const *in, void *out, const double *param)     \
    {                                                                                          \
        (void)param;                                                                           \
        NAME(map2)(n, in, out, NAME(op##_of));                                                 \
    }
CH_BLOCKS_BINARY(BLOCK)
#undef BLOCK

/* For integers the bounds are rounded inward, so that no result is outside of [least, most]. */
static void NAME(clip)(int64_t n, const void *const *in, void *out, const double *param)
{
    T least = IS_FLOAT ? (T)param[0] : SATURATE(ceil(param[0]));
    T most = IS_FLOAT ? (T)param[1] : SATURATE(floor(param[1]));

    NAME(map_param)(n, in, out, least, most, NAME(clip_of));
}

#endif

#if IS_FLOAT

/* ---- floats ---- */

CH_SIMD_INLINE T NAME(sqrt_of)(T x)
{
    return LIBM(sqrt)(x);
}
CH_SIMD_INLINE T NAME(rsqrt_of)(T x)
{
    return 1 / LIBM(sqrt)(x);
}
CH_SIMD_INLINE T NAME(floor_of)(T x)
{
    return LIBM(floor)(x);
}
CH_SIMD_INLINE T NAME(ceil_of)(T x)
{
    return LIBM(ceil)(x);
}
CH_SIMD_INLINE T NAME(round_of)(T x)
{
    return LIBM(rint)(x); /* halves round to even */
}
CH_SIMD_INLINE T NAME(leaky_relu_of)(T x, T alpha, T unused)
{
    (void)unused;
    return x < 0 ? alpha * x : x;
}
CH_SIMD_INLINE T NAME(elu_of)(T x, T alpha, T unused)
{
    T low = alpha * NAME(expm1_of)(x < 0 ? x : 0);

    (void)unused;
    return x < 0 ? low : x;
}

#define BLOCK(op)                                                                              \
    static void NAME(op)(int64_t n, const void *const *in, void *out, const double *param)     \
    {                                                                                          \
        (void)param;                                                                           \
        NAME(map1)(n, in, out, NAME(op##_of));                                                 \
    }
CH_BLOCKS_FLOAT_UNARY(BLOCK)
#undef BLOCK
#define BLOCK(op)                                                                              \
    static void NAME(op)(int64_t n, const void *const *in, void *out, const double *param)     \
    {                                                                                          \
        (void)param;                                                                           \
        NAME(map2)(n, in, out, NAME(op##_of));                                                 \
    }
CH_BLOCKS_FLOAT_BINARY(BLOCK)
#undef BLOCK
#define BLOCK(op)                                                                              \
    static void NAME(op)(int64_t n, const void *const *in, void *out, const double *param)     \
    {                                                                                          \
        NAME(map_param)(n, in, out, (T)param[0], 0, NAME(op##_of));                            \
    }
CH_BLOCKS_FLOAT_PARAM(BLOCK)
#undef BLOCK

#endif

#undef T
#undef U
#undef NAME
#undef LIBM
#undef SATURATE
#undef IS_FLOAT
#undef IS_ARITH
#undef IS_SIGNED
