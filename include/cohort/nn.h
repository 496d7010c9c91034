/* cohort/nn.h -- ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_NN_H
#define COHORT_NN_H

#include "cohort/step.h"

/* ---- linear algebra and convolution ----
 *
 * These run on oneDNN and OpenBLAS where that is fastest, always single-threaded: a device
 * shares large ones among its threads itself. oneDNN's OpenMP is told so for the length of a
 * call, and the program's own OpenMP settings stay as they were. OpenBLAS knows only one number
 * of threads for the whole process: it is set to 1 when Cohort first uses OpenBLAS, unless
 * COHORT_BLAS_THREADS=true says to leave it alone. COHORT_ENGINES=false uses neither. */

/* (..., m, n) = a (..., m, k) . b (..., k, n); with `ta`, a is stored as (..., k, m), with
 * `tb`, b as
 * (..., n, k). The axes before the last two broadcast. Floats and integers; integers wrap. */
CH_API ch_node *ch_matmul(ch_node *a, bool ta, ch_node *b, bool tb);

#endif
