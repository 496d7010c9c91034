/* kernel/gemm_onednn.c -- matrix multiply of bf16 by oneDNN.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/engine.h"
#include "kernel/gemm.h"

#if CH_HAVE_ONEDNN

/* With fewer multiplications, the call of oneDNN costs more than the work. */
static const int64_t least_onednn = 8 << 10;

static bool is_worth_a_call(const ch_gemm_dims *d)
{
    double work = (double)d->batch * (double)d->m * (double)d->n * (double)d->k;

    return work >= (double)least_onednn &&
           ch__dnn_supports(3, (int64_t[]){d->batch, d->m, d->k}) &&
           ch__dnn_supports(3, (int64_t[]){d->batch, d->k, d->n}) &&
           ch__dnn_supports(3, (int64_t[]){d->batch, d->m, d->n});
}

/* Describes the three matrices to oneDNN as (batch, rows, columns) with any strides. A batch of
 * size 1 is repeated. */
static ch_status describe(const ch_gemm_dims *d, dnnl_memory_desc_t md[3],
                          dnnl_primitive_desc_t *pd)
{
    int64_t            a_batch = d->a_step == 0 ? 1 : d->batch;
    int64_t            b_batch = d->b_step == 0 ? 1 : d->batch;
    dnnl_dims_t        a = {a_batch, d->m, d->k}, b = {b_batch, d->k, d->n};
    dnnl_dims_t        c = {d->batch, d->m, d->n};
    dnnl_dims_t        a_to = {d->a_step, d->ta ? 1 : d->lda, d->ta ? d->lda : 1};
    dnnl_dims_t        b_to = {d->b_step, d->tb ? 1 : d->ldb, d->tb ? d->ldb : 1};
    dnnl_dims_t        c_to = {d->c_step, d->ldc, 1};
    dnnl_matmul_desc_t desc;
    int                skip = d->batch == 1, rank = 3 - skip;

    if (dnnl_memory_desc_init_by_strides(&md[0], rank, a + skip, dnnl_bf16, a_to + skip) !=
            dnnl_success ||
        dnnl_memory_desc_init_by_strides(&md[1], rank, b + skip, dnnl_bf16, b_to + skip) !=
            dnnl_success ||
        dnnl_memory_desc_init_by_strides(&md[2], rank, c + skip, dnnl_bf16, c_to + skip) !=
            dnnl_success ||
        dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]) != dnnl_success)
        return ch__fail(CH_UNIMPLEMENTED,
                        "matrix multiply: oneDNN does not support this layout");
    return ch__dnn_describe(&desc, d->add, NULL, pd);
}

static bool onednn_fits(const ch_gemm_dims *d)
{
    dnnl_memory_desc_t    md[3];
    dnnl_primitive_desc_t pd = NULL;

    if (d->dtype != CH_BF16 || !is_worth_a_call(d) || !ch__onednn_is_on() ||
        describe(d, md, &pd) != CH_OK)
        return false;
    dnnl_primitive_desc_destroy(pd);
    return true;
}

static ch_status onednn_open(const ch_gemm_dims *d, void **state, size_t *scratch_bytes)
{
    dnnl_memory_desc_t    md[3];
    dnnl_primitive_desc_t pd = NULL;
    ch_dnn               *dnn = NULL;
    ch_status             rc = describe(d, md, &pd);

    if (rc != CH_OK)
        return rc;
    rc = ch__dnn_new(pd, 3,
                     (ch_dnn_arg[]){{DNNL_ARG_SRC, &md[0]},
                                    {DNNL_ARG_WEIGHTS, &md[1]},
                                    {DNNL_ARG_DST, &md[2]}},
                     &dnn);
    dnnl_primitive_desc_destroy(pd);
    if (rc != CH_OK)
        return rc;
    *state = dnn;
    *scratch_bytes = ch__dnn_scratch_bytes(dnn);
    return CH_OK;
}

static ch_status onednn_run(const ch_gemm_dims *d, const void *state, const void *a,
                            const void *b, void *c, void *scratch)
{
    (void)d;
    return ch__dnn_run(state, (const void *const[]){a, b, c}, scratch);
}

static void onednn_close(void *state)
{
    ch__dnn_free(state);
}

const ch_gemm_engine ch__gemm_onednn = {"onednn",   onednn_fits,  onednn_open,
                                        onednn_run, onednn_close, NULL};
#else
const ch_gemm_engine ch__gemm_onednn = {"onednn", ch__gemm_never, NULL, NULL, NULL, NULL};
#endif
