/* kernel/gemm_blas.c -- matrix multiply by OpenBLAS.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/engine.h"
#include "kernel/gemm.h"

#if CH_HAVE_OPENBLAS
#include <cblas.h>
#include <limits.h>

static bool is_int(int64_t n)
{
    return n >= 0 && n <= INT_MAX;
}

static bool blas_fits(const ch_gemm_dims *d)
{
    return (d->dtype == CH_F32 || d->dtype == CH_F64) && d->m > 0 && d->n > 0 && d->k > 0 &&
           is_int(d->m) && is_int(d->n) && is_int(d->k) && is_int(d->lda) && is_int(d->ldb) &&
           is_int(d->ldc) && ch__openblas_is_on();
}

static ch_status blas_run(const ch_gemm_dims *d, const void *state, const void *a,
                          const void *b, void *c, void *scratch)
{
    CBLAS_TRANSPOSE ta = d->ta ? CblasTrans : CblasNoTrans,
                    tb = d->tb ? CblasTrans : CblasNoTrans;
    int m = (int)d->m, n = (int)d->n, k = (int)d->k;
    int lda = (int)d->lda, ldb = (int)d->ldb, ldc = (int)d->ldc;

    (void)state, (void)scratch;
    for (int64_t s = 0; s < d->batch; s++) {
        if (d->dtype == CH_F32)
            cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1.0f, (const float *)a + s * d->a_step,
                        lda, (const float *)b + s * d->b_step, ldb, d->add ? 1.0f : 0.0f,
                        (float *)c + s * d->c_step, ldc);
        else
            cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1.0, (const double *)a + s * d->a_step,
                        lda, (const double *)b + s * d->b_step, ldb, d->add ? 1.0 : 0.0,
                        (double *)c + s * d->c_step, ldc);
    }
    return CH_OK;
}

static ch_status blas_open(const ch_gemm_dims *d, void **state, size_t *scratch_bytes)
{
    (void)d, (void)state;
    *scratch_bytes = 0; /* OpenBLAS keeps buffers of its own */
    return CH_OK;
}

static void blas_close(void *state)
{
    (void)state;
}

const ch_gemm_engine ch__gemm_blas = {"openblas", blas_fits, blas_open, blas_run, blas_close};
#else
const ch_gemm_engine ch__gemm_blas = {"openblas", ch__gemm_never, NULL, NULL, NULL};
#endif
