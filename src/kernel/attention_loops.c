/* kernel/attention_loops.c -- loops over rows of scores; compiled for each SIMD level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernel/attention.h"

#define ELEMENT float
#define NAME(x) f32_##x
#include "kernel/attention_loops.inc"

#define ELEMENT double
#define NAME(x) f64_##x
#include "kernel/attention_loops.inc"

const ch_score_table CH_SIMD_NAME(ch__score_table) = {{f32_scale, f32_add, f32_hide},
                                                      {f64_scale, f64_add, f64_hide}};
