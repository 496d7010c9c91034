/* bench/conv.c -- convolutions: a step with a single op, and oneDNN called directly.
 *
 * Measures shapes of small and large networks, forward, and for two shapes also the gradients;
 * f32, a single thread. The direct call has its filter in oneDNN's preferred layout from the
 * start. A step must convert the filter each time, because the filter changes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* setenv */
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "must.h"

typedef enum kind { OUTPUT, INPUT, FILTER } kind;

typedef struct shape {
    int  n, size, c, o, window, stride, groups;
    kind what;
} shape;

typedef struct job {
    shape        s;
    int          out; /* rows and columns of the result */
    char         name[80];
    ch_function *f;
    ch_tuple    *in;

    dnnl_primitive_t primitive; /* the direct call */
    dnnl_exec_arg_t  arg[4];
    int              n_args;
} job;

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void must_dnn(dnnl_status_t rc)
{
    if (rc == dnnl_success)
        return;
    fprintf(stderr, "oneDNN: status %d\n", (int)rc);
    exit(1);
}

/* ---- ours ---- */

static void record(ch_step *s, void *arg)
{
    const job      *j = arg;
    ch_node        *x = ch_step_in(s, 0), *f = ch_step_in(s, 1), *y, *d;
    ch_conv_options opt = {
        .stride = {j->s.stride, j->s.stride}, .padding = CH_PAD_SAME, .groups = j->s.groups};

    y = ch_conv2d(x, f, &opt);
    if (j->s.what == OUTPUT) {
        ch_step_out(s, NULL, y);
        return;
    }
    ch_gradients(y, ch_step_in(s, 2), 1, j->s.what == INPUT ? &x : &f, &d);
    ch_step_out(s, NULL, d);
}

static void run_step(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0)
        must(ch_strategy_run(NULL, j->f, j->in, NULL));
}

static ch_tensor *noise(ch_shape s)
{
    ch_tensor *t = NULL;
    float     *x;
    unsigned   seed = 1;

    must(ch_tensor_new(CH_F32, s, &t));
    x = ch_tensor_data_mut(t);
    for (int64_t i = 0; i < ch_shape_count(s); i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    return t;
}

/* ---- direct ---- */

static void run_direct(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0)
        must_dnn(dnnl_primitive_execute(j->primitive, stream, j->n_args, j->arg));
}

static void new_desc(const job *j, dnnl_convolution_desc_t *d, kind what)
{
    const shape       *s = &j->s;
    dnnl_memory_desc_t x, f, y;
    int                g = s->groups, rank = g > 1 ? 5 : 4, skip = g == 1;
    int                pad = (j->out - 1) * s->stride + s->window - s->size;
    dnnl_dims_t        xs = {s->n, s->c, s->size, s->size}, ys = {s->n, s->o, j->out, j->out};
    dnnl_dims_t        fs = {g, s->o / g, s->c / g, s->window, s->window};
    dnnl_dims_t        stride = {s->stride, s->stride}, before, after, none = {0, 0};

    pad = pad > 0 ? pad : 0;
    for (int i = 0; i < 2; i++) {
        before[i] = pad / 2;
        after[i] = (j->out - 1) * s->stride + s->window - s->size - pad / 2;
    }
    must_dnn(dnnl_memory_desc_init_by_tag(&x, 4, xs, dnnl_f32, dnnl_nhwc));
    must_dnn(dnnl_memory_desc_init_by_tag(&y, 4, ys, dnnl_f32, dnnl_nhwc));
    must_dnn(dnnl_memory_desc_init_by_tag(&f, rank, fs + skip, dnnl_f32, dnnl_format_tag_any));
    if (what == OUTPUT)
        must_dnn(dnnl_dilated_convolution_forward_desc_init(
            d, dnnl_forward_training, dnnl_convolution_direct, &x, &f, NULL, &y, stride, none,
            before, after));
    else if (what == INPUT)
        must_dnn(dnnl_dilated_convolution_backward_data_desc_init(
            d, dnnl_convolution_direct, &x, &f, &y, stride, none, before, after));
    else
        must_dnn(dnnl_dilated_convolution_backward_weights_desc_init(
            d, dnnl_convolution_direct, &x, &f, NULL, &y, stride, none, before, after));
}

/* Adds an argument filled with ones. Denormal numbers would slow the computation down. */
static void add_arg(job *j, const_dnnl_primitive_desc_t pd, int arg)
{
    const dnnl_memory_desc_t *md =
        dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arg);
    dnnl_memory_t m = NULL;
    void         *data = NULL;

    must_dnn(dnnl_memory_create(&m, md, engine, DNNL_MEMORY_ALLOCATE));
    must_dnn(dnnl_memory_get_data_handle(m, &data));
    for (size_t i = 0; i < dnnl_memory_desc_get_size(md) / sizeof(float); i++)
        ((float *)data)[i] = 1;
    j->arg[j->n_args++] = (dnnl_exec_arg_t){arg, m};
}

static void open_direct(job *j)
{
    static const int args[3][3] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS},
    };
    dnnl_convolution_desc_t forward, d;
    dnnl_primitive_desc_t   hint = NULL, pd = NULL;

    new_desc(j, &forward, OUTPUT);
    new_desc(j, &d, j->s.what);
    must_dnn(dnnl_primitive_desc_create(&hint, &forward, NULL, engine, NULL));
    must_dnn(dnnl_primitive_desc_create(&pd, &d, NULL, engine, hint));
    must_dnn(dnnl_primitive_create(&j->primitive, pd));
    for (int i = 0; i < 3; i++)
        add_arg(j, pd, args[j->s.what][i]);
    dnnl_primitive_desc_destroy(hint);
    dnnl_primitive_desc_destroy(pd);
}

static void close_direct(job *j)
{
    for (int i = 0; i < j->n_args; i++)
        dnnl_memory_destroy(j->arg[i].memory);
    dnnl_primitive_destroy(j->primitive);
}

/* ---- rows ---- */

static void measure(bench *b, const shape *s)
{
    static const char *const what[] = {"", ", dx", ", dfilter"};
    job                      j = {.s = *s, .out = (s->size + s->stride - 1) / s->stride};
    ch_tensor               *in[3];
    double                   work =
        (double)s->n * j.out * j.out * s->o * s->window * s->window * s->c / s->groups;

    snprintf(j.name, sizeof(j.name), "%dx%dx%d c%d o%d %dx%d/%d%s%s", s->n, s->size, s->size,
             s->c, s->o, s->window, s->window, s->stride,
             s->groups == 1      ? ""
             : s->groups == s->c ? " depthwise"
                                 : " grouped",
             what[s->what]);
    if (!bench_wants(b, j.name))
        return;
    in[0] = noise(ch_shape_of(s->n, s->size, s->size, s->c));
    in[1] = noise(ch_shape_of(s->window, s->window, s->c / s->groups, s->o));
    in[2] = noise(ch_shape_of(s->n, j.out, j.out, s->o));
    must(ch_tuple_of(3, in, &j.in));
    must(ch_function_new("conv", record, &j, &j.f));
    ch_function_static_rows(j.f);
    open_direct(&j);
    bench_run(
        b, &(bench_case){.name = j.name,
                         .unit = "GFLOP/s",
                         .better = BENCH_HIGHER,
                         .scale = 2e-9 * work,
                         .ours = {.run = run_step, .arg = &j},
                         .peer = {{.name = "oneDNN, direct", .run = run_direct, .arg = &j}}});
    close_direct(&j);
    ch_function_unref(j.f);
    ch_tuple_unref(j.in);
    for (int i = 0; i < 3; i++)
        ch_tensor_unref(in[i]);
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {
        {32, 28, 1, 32, 3, 1, 1, OUTPUT},   {32, 28, 32, 64, 3, 1, 1, OUTPUT},
        {32, 32, 16, 16, 3, 1, 1, OUTPUT},  {32, 14, 64, 64, 3, 1, 1, OUTPUT},
        {8, 56, 64, 64, 3, 1, 1, OUTPUT},   {8, 56, 64, 256, 1, 1, 1, OUTPUT},
        {8, 28, 128, 128, 3, 2, 1, OUTPUT}, {8, 14, 256, 256, 3, 1, 1, OUTPUT},
        {4, 112, 3, 64, 7, 2, 1, OUTPUT},   {8, 56, 64, 64, 3, 1, 64, OUTPUT},
        {32, 14, 64, 64, 3, 1, 1, INPUT},   {32, 14, 64, 64, 3, 1, 1, FILTER},
        {8, 28, 128, 128, 3, 2, 1, INPUT},  {8, 28, 128, 128, 3, 2, 1, FILTER},
    };
    bench *b;

    if (getenv("OMP_NUM_THREADS") == NULL) { /* OpenMP reads it when it is loaded */
        setenv("OMP_NUM_THREADS", "1", 1);
        execv("/proc/self/exe", argv);
    }
    b = bench_open("conv", argc, argv);
    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = 1}));
    must_dnn(dnnl_engine_create(&engine, dnnl_cpu, 0));
    must_dnn(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        measure(b, &shapes[i]);
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return bench_close(b);
}
