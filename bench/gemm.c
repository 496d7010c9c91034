/* bench/gemm.c -- matrix products: a step with a single op, and engines called directly.
 *
 * Measures shapes of forward passes, of backward passes (an operand is transposed) and squares;
 * f32, a single thread. The peer is OpenBLAS. The limit is a direct call of oneDNN. The last
 * rows have other types.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* setenv */
#include <cblas.h>
#include <math.h>
#if CH_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "must.h"

typedef struct shape {
    int      m, n, k;
    bool     ta, tb;
    ch_dtype dtype;
} shape;

typedef struct job {
    shape        s;
    char         name[64];
    ch_function *f;
    ch_tuple    *in;
    void        *a, *b, *c; /* operands of the direct calls */
} job;

static void record(ch_step *s, void *arg)
{
    const job *j = arg;

    ch_step_out(s, NULL, ch_matmul(ch_step_in(s, 0), j->s.ta, ch_step_in(s, 1), j->s.tb));
}

static void run_step(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0)
        must(ch_strategy_run(NULL, j->f, j->in, NULL));
}

static void run_blas(void *arg, int64_t n)
{
    job            *j = arg;
    CBLAS_TRANSPOSE ta = j->s.ta ? CblasTrans : CblasNoTrans,
                    tb = j->s.tb ? CblasTrans : CblasNoTrans;
    int lda = j->s.ta ? j->s.m : j->s.k, ldb = j->s.tb ? j->s.k : j->s.n;

    while (n-- > 0) {
        if (j->s.dtype == CH_F64)
            cblas_dgemm(CblasRowMajor, ta, tb, j->s.m, j->s.n, j->s.k, 1, j->a, lda, j->b, ldb,
                        0, j->c, j->s.n);
        else
            cblas_sgemm(CblasRowMajor, ta, tb, j->s.m, j->s.n, j->s.k, 1, j->a, lda, j->b, ldb,
                        0, j->c, j->s.n);
    }
}

#if CH_HAVE_ONEDNN
static void run_onednn(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0)
        (void)dnnl_sgemm(j->s.ta ? 'T' : 'N', j->s.tb ? 'T' : 'N', j->s.m, j->s.n, j->s.k, 1,
                         j->a, j->s.ta ? j->s.m : j->s.k, j->b, j->s.tb ? j->s.k : j->s.n, 0,
                         j->c, j->s.n);
}
#endif

static void record_cast(ch_step *s, void *arg)
{
    ch_step_out(s, NULL, ch_cast(ch_step_in(s, 0), *(const ch_dtype *)arg));
}

/* Returns the same numbers in another type. */
static ch_tensor *as(ch_dtype t, ch_tensor *x)
{
    ch_function *f = NULL;
    ch_tuple    *in = NULL, *out = NULL;
    ch_tensor   *y;

    must(ch_function_new("cast", record_cast, &t, &f));
    must(ch_tuple_of(1, &x, &in));
    must(ch_strategy_run(NULL, f, in, &out));
    y = ch_tensor_ref(ch_value_at(ch_tuple_at(out, 0), 0));
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    return y;
}

/* Makes a tensor of random numbers. Returns a copy of its memory, for the direct calls. */
static void *noise(ch_dtype t, ch_shape s, unsigned seed, ch_tensor **out)
{
    int64_t    n = ch_shape_count(s);
    size_t     bytes = (size_t)n * ch_dtype_bytes(t);
    ch_tensor *x = NULL;
    void      *plain = malloc(bytes);
    float     *at;

    must(ch_tensor_new(CH_F32, s, &x));
    at = ch_tensor_data_mut(x);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        at[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    *out = as(t, x);
    ch_tensor_unref(x);
    if (plain == NULL)
        exit(1);
    return memcpy(plain, ch_tensor_data(*out), bytes);
}

static bool check(void *arg, char *why, size_t size)
{
    job         *j = arg;
    ch_tuple    *out = NULL;
    const float *got;
    double       worst = 0;

    if (j->s.dtype != CH_F32)
        return true;
    must(ch_strategy_run(NULL, j->f, j->in, &out));
    run_blas(j, 1);
    got = ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0));
    for (int64_t i = 0; i < (int64_t)j->s.m * j->s.n; i++)
        worst = fmax(worst, fabs((double)got[i] - ((const float *)j->c)[i]));
    ch_tuple_unref(out);
    if (worst < 1e-5 * j->s.k)
        return true;
    snprintf(why, size, "off by %g", worst);
    return false;
}

static job new_job(const shape *s)
{
    job        j = {.s = *s};
    ch_tensor *a = NULL, *b = NULL;
    int64_t    m = s->m, n = s->n, k = s->k;

    snprintf(j.name, sizeof(j.name), "%s %dx%dx%d %s%s", ch_dtype_name(s->dtype), s->m, s->n,
             s->k, s->ta ? "T" : "N", s->tb ? "T" : "N");
    j.a = noise(s->dtype, s->ta ? ch_shape_of(k, m) : ch_shape_of(m, k), 1, &a);
    j.b = noise(s->dtype, s->tb ? ch_shape_of(n, k) : ch_shape_of(k, n), 2, &b);
    j.c = calloc((size_t)(m * n), sizeof(double));
    must(ch_tuple_of(2, (ch_tensor *[]){a, b}, &j.in));
    ch_tensor_unref(a);
    ch_tensor_unref(b);
    return j;
}

static void measure(bench *b, const shape *s)
{
    job        j = new_job(s);
    bench_case c = {.name = j.name,
                    .unit = "GFLOP/s",
                    .better = BENCH_HIGHER,
                    .scale = 2e-9 * s->m * s->n * s->k,
                    .ours = {.run = run_step, .arg = &j},
                    .check = check};

    if (bench_wants(b, j.name)) {
        if (s->dtype == CH_F32 || s->dtype == CH_F64)
            c.peer[0] = (bench_side){.name = "OpenBLAS, direct", .run = run_blas, .arg = &j};
#if CH_HAVE_ONEDNN
        if (s->dtype == CH_F32)
            c.limit = (bench_side){.name = "oneDNN, direct", .run = run_onednn, .arg = &j};
#endif
        must(ch_function_new(j.name, record, &j, &j.f));
        ch_function_static_rows(j.f);
        bench_run(b, &c);
        ch_function_unref(j.f);
    }
    ch_tuple_unref(j.in);
    free(j.a);
    free(j.b);
    free(j.c);
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {
        {32, 64, 784, false, false, CH_F32},      {128, 512, 784, false, false, CH_F32},
        {784, 512, 128, true, false, CH_F32},     {128, 784, 512, false, true, CH_F32},
        {64, 64, 64, false, false, CH_F32},       {512, 512, 512, false, false, CH_F32},
        {1024, 1024, 1024, false, false, CH_F32}, {2048, 2048, 2048, false, false, CH_F32},
        {256, 4096, 1024, false, false, CH_F32},  {1024, 4096, 256, true, false, CH_F32},
        {16, 16, 16, false, false, CH_F32},       {128, 10, 512, false, false, CH_F32},
        {512, 512, 512, false, false, CH_F64},    {512, 512, 512, false, false, CH_BF16},
        {512, 512, 512, false, false, CH_F16},
    };
    bench *b;

    if (getenv("OMP_NUM_THREADS") == NULL) { /* OpenMP reads it when it is loaded */
        setenv("OMP_NUM_THREADS", "1", 1);
        execv("/proc/self/exe", argv);
    }
    b = bench_open("gemm", argc, argv);
    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = 1}));
    openblas_set_num_threads(1);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        measure(b, &shapes[i]);
    return bench_close(b);
}
