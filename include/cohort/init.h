/* cohort/init.h -- first values of variables.
 *
 *     rc = ch_var_new(st, &(ch_var_spec){.name = "w", .shape = ch_shape_of(784, 64),
 *                                        .init = ch_init_glorot_uniform()}, &w);
 *
 * A ch_init is a plain value; all zeros is "zeros". Random ones are drawn by Philox from its
 * seed and the variable's name, so two variables differ, and the same program starts from the
 * same numbers on every machine. Fans are Keras's: of (..., in, out), what comes before `in` is
 * the window of a convolution and multiplies both.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_INIT_H
#define COHORT_INIT_H

#include "cohort/tensor.h"

typedef enum ch_init_kind {
    CH_INIT_ZEROS,
    CH_INIT_CONSTANT,
    CH_INIT_UNIFORM,          /* in [a, b) */
    CH_INIT_NORMAL,           /* mean a, deviation b */
    CH_INIT_TRUNCATED_NORMAL, /* the same, within two deviations of the mean */
    CH_INIT_FAN_UNIFORM,      /* in [-limit, limit), limit = sqrt(3 a / fan) */
    CH_INIT_FAN_NORMAL,       /* truncated, deviation sqrt(a / fan) once truncated */
    CH_INIT_ORTHOGONAL,       /* rows or columns orthonormal, times a */
    CH_INIT_IDENTITY          /* a matrix with a on its diagonal */
} ch_init_kind;

typedef enum ch_fan { CH_FAN_IN, CH_FAN_OUT, CH_FAN_AVERAGE } ch_fan;

typedef struct ch_init {
    ch_init_kind kind;
    double       a, b;
    ch_fan       fan;
    uint64_t     seed;
} ch_init;

CH_API ch_init ch_init_zeros(void);
CH_API ch_init ch_init_constant(double value);
CH_API ch_init ch_init_uniform(double lo, double hi);
CH_API ch_init ch_init_normal(double mean, double deviation);
CH_API ch_init ch_init_truncated_normal(double mean, double deviation);
CH_API ch_init ch_init_glorot_uniform(void);
CH_API ch_init ch_init_glorot_normal(void);
CH_API ch_init ch_init_he_uniform(void);
CH_API ch_init ch_init_he_normal(void);
CH_API ch_init ch_init_orthogonal(double gain);
CH_API ch_init ch_init_identity(double gain);

/* A tensor of such values; `name` is part of the random stream's key, "" will do. Random ones
 * are floats; bf16 and f16 ones are f32 ones, rounded. */
CH_API CH_MUST_CHECK ch_status ch_init_tensor(const ch_init *init, const char *name,
                                              ch_dtype dtype, ch_shape shape, ch_tensor **out);

#endif
