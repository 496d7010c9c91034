/* kernel/math32.h -- functions of f32 without branches, for loops that are to be vectorised.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_MATH32_H
#define KERNEL_MATH32_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernel/simd.h"

CH_SIMD_INLINE float ch__exp32(float x)
{
    return expf(x);
}
CH_SIMD_INLINE float ch__expm132(float x)
{
    return expm1f(x);
}
CH_SIMD_INLINE float ch__log32(float x)
{
    return logf(x);
}
CH_SIMD_INLINE float ch__log1p32(float x)
{
    return log1pf(x);
}
CH_SIMD_INLINE float ch__sin32(float x)
{
    return sinf(x);
}
CH_SIMD_INLINE float ch__cos32(float x)
{
    return cosf(x);
}
CH_SIMD_INLINE float ch__tanh32(float x)
{
    return tanhf(x);
}
CH_SIMD_INLINE float ch__sigmoid32(float x)
{
    return 1.0f / (1.0f + expf(-x));
}
CH_SIMD_INLINE float ch__erf32(float x)
{
    return erff(x);
}
CH_SIMD_INLINE float ch__pow32(float x, float y)
{
    return powf(x, y);
}
CH_SIMD_INLINE float ch__gelu32(float x)
{
    return 0.5f * x * (1 + erff(x * 0.70710678f));
}
CH_SIMD_INLINE float ch__gelu_tanh32(float x)
{
    return x * ch__sigmoid32(1.5957691216f * (x + 0.044715f * x * x * x));
}
CH_SIMD_INLINE float ch__silu32(float x)
{
    return x * ch__sigmoid32(x);
}
CH_SIMD_INLINE float ch__softplus32(float x)
{
    return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
}

#endif
