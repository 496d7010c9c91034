/* cohort/init.h -- initializers: the initial values of variables.
 *
 * A ch_init describes initial values. It is a plain struct; all zeros means zeros.
 *
 *     rc = ch_var_new(st, &(ch_var_spec){.name = "w", .shape = ch_shape_of(784, 64),
 *                                        .init = ch_init_glorot_uniform()}, &w);
 *
 *   - There is nothing to free, and any thread may use a ch_init.
 *   - Random values are drawn by Philox from the seed and the name of the variable. So two
 *     variables differ, and a program has the same initial values on every machine.
 *   - Fans are those of Keras: of a shape (..., in, out), the sizes before `in` are the window
 *     of a convolution, and are multiplied into both fans.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_INIT_H
#define COHORT_INIT_H

#include "cohort/tensor.h"

/* The fields `a`, `b` and `fan` of ch_init have the meanings given here. */
typedef enum ch_init_kind {
    CH_INIT_ZEROS,
    CH_INIT_CONSTANT,         /* a everywhere */
    CH_INIT_UNIFORM,          /* uniform in [a, b) */
    CH_INIT_NORMAL,           /* normal, mean a, standard deviation b */
    CH_INIT_TRUNCATED_NORMAL, /* the same, within two standard deviations of the mean */
    CH_INIT_FAN_UNIFORM,      /* uniform in [-limit, limit), limit = sqrt(3 a / fan) */
    CH_INIT_FAN_NORMAL,       /* truncated normal, then of standard deviation sqrt(a / fan) */
    CH_INIT_ORTHOGONAL,       /* orthonormal rows or columns, times a */
    CH_INIT_IDENTITY          /* a matrix with a on its diagonal */
} ch_init_kind;

typedef enum ch_fan { CH_FAN_IN, CH_FAN_OUT, CH_FAN_AVERAGE } ch_fan;

typedef struct ch_init {
    ch_init_kind kind;
    double       a, b;
    ch_fan       fan;
    uint64_t     seed; /* of random values */
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

/* Creates a tensor with these values. `name` is part of the key of the random stream, and may
 * be "". Random values need a float dtype; values of bf16 and f16 are rounded values of f32. */
CH_API CH_MUST_CHECK ch_status ch_init_tensor(const ch_init *init, const char *name,
                                              ch_dtype dtype, ch_shape shape, ch_tensor **out);

#endif
