/* bench/spmd_bytes.c -- the bytes that four cores of a replica receive from each other in a
 * step, as the kernels count them.
 *
 * The limit of a row is derived by hand from the layouts: it is the smallest number of bytes
 * with which the cores can compute the step as it is split. So every ratio must be 1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "bench.h"
#include "graph/function.h"
#include "logical.h"

enum { FOUR = 4, MOST_VARS = 16, WHOLE = -1 };

typedef struct step_case step_case;

/* The state of a case: its variables, which are created when the step is recorded. */
typedef struct state {
    const step_case *c;
    ch_strategy     *strategy;
    int              n_vars, n_read;
    ch_var          *var[MOST_VARS];
} state;

struct step_case {
    const char *name;
    int64_t     bytes;
    void (*record)(ch_step *s, state *x);
    ch_shape in[3]; /* of the inputs; rank 0 ends them */
    bool     has_ids;
    int      mesh[2]; /* mesh[0] 0: one axis of all cores */
};

/* Reads the next variable, with axis `axis` split over all cores. */
static ch_node *var(ch_step *s, state *x, ch_shape shape, int axis)
{
    int i = x->n_read++, split[CH_MAX_RANK];

    for (int k = 0; k < shape.rank; k++)
        split[k] = k == axis ? 0 : CH_OFF;
    if (i == x->n_vars) {
        char name[16];

        (void)snprintf(name, sizeof(name), "v%d", i);
        must(ch_var_new(x->strategy,
                        &(ch_var_spec){.name = name,
                                       .dtype = CH_F32,
                                       .shape = shape,
                                       .init = ch_init_uniform(-1, 1),
                                       .split = split,
                                       .n_split = shape.rank},
                        &x->var[x->n_vars++]));
    }
    return ch_var_read(s, x->var[i]);
}

/* Splits an axis of x over all cores. */
static ch_node *split(ch_node *x, int axis)
{
    int n = ch_node_shape(x).rank, over[CH_MAX_RANK];

    for (int k = 0; k < n; k++)
        over[k] = k == axis ? 0 : CH_OFF;
    return ch_mesh_split(x, n, over);
}

static void put(ch_step *s, ch_node *y)
{
    ch_step_out(s, NULL, y);
}

/* ---- products ---- */

static ch_node *two_layers(ch_step *s, state *x, int64_t hidden, ch_node **w)
{
    w[0] = var(s, x, ch_shape_of(16, hidden), 1);
    w[1] = var(s, x, ch_shape_of(hidden, 16), 0);
    return ch_matmul(ch_relu(ch_matmul(ch_step_in(s, 0), false, w[0], false)), false, w[1],
                     false);
}

static void even_layers(ch_step *s, state *x)
{
    ch_node *w[2];

    put(s, two_layers(s, x, 32, w));
}

static void uneven_layers(ch_step *s, state *x)
{
    ch_node *w[2];

    put(s, two_layers(s, x, 30, w));
}

static void gradients_of_w(ch_step *s, state *x)
{
    ch_node *w[2], *grad[2], *y = two_layers(s, x, 32, w);

    ch_gradients(y, ch_step_in(s, 1), 2, w, grad);
    for (int i = 0; i < 2; i++)
        ch_var_assign_sub(s, x->var[i], grad[i]);
}

static void gradient_of_x(ch_step *s, state *x)
{
    ch_node *w[2], *in = ch_step_in(s, 0), *grad = NULL, *y = two_layers(s, x, 32, w);

    ch_gradients(y, ch_step_in(s, 1), 1, &in, &grad);
    put(s, grad);
}

static void rows(ch_step *s, state *x)
{
    ch_node *in = split(ch_step_in(s, 0), 0), *dy = split(ch_step_in(s, 1), 0);
    ch_node *w[2] = {var(s, x, ch_shape_of(784, 512), WHOLE),
                     var(s, x, ch_shape_of(512, 10), WHOLE)};
    ch_node *grad[2];

    ch_gradients(ch_matmul(ch_relu(ch_matmul(in, false, w[0], false)), false, w[1], false), dy,
                 2, w, grad);
    for (int i = 0; i < 2; i++)
        ch_var_assign_sub(s, x->var[i], grad[i]);
}

static void mesh(ch_step *s, state *x)
{
    ch_node *in = ch_mesh_split(ch_step_in(s, 0), 2, (int[]){0, CH_OFF});
    ch_node *w1 = ch_mesh_split(ch_step_in(s, 1), 2, (int[]){CH_OFF, 1});
    ch_node *w2 = ch_mesh_split(ch_step_in(s, 2), 2, (int[]){1, CH_OFF});

    (void)x;
    put(s, ch_matmul(ch_relu(ch_matmul(in, false, w1, false)), false, w2, false));
}

/* ---- a transformer block, with gradients of its kernels and input ---- */

typedef struct block_sizes {
    int64_t batch, time, width, heads, hidden;
} block_sizes;

static ch_node *by_heads(ch_node *x, const block_sizes *b)
{
    x = ch_reshape(x, ch_shape_of(b->batch, b->time, b->heads, b->width / b->heads));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

static ch_node *norm(ch_step *s, state *x, ch_node *in, int64_t width)
{
    ch_node *gamma = var(s, x, ch_shape_of(width), WHOLE);

    return ch_layer_norm(in, gamma, var(s, x, ch_shape_of(width), WHOLE), 1e-5);
}

static void block(ch_step *s, state *x, block_sizes b)
{
    ch_shape shape = ch_shape_of(b.batch, b.time, b.width);
    ch_node *in = ch_step_in(s, 0), *w[7], *grad[7], *h, *y;

    for (int i = 0; i < 3; i++)
        w[i] = var(s, x, ch_shape_of(b.width, b.width), 1);
    w[3] = var(s, x, ch_shape_of(b.width, b.width), 0);
    w[4] = var(s, x, ch_shape_of(b.width, b.hidden), 1);
    w[5] = var(s, x, ch_shape_of(b.hidden, b.width), 0);
    w[6] = in;
    h = norm(s, x, in, b.width);
    h = ch_attention(by_heads(ch_matmul(h, false, w[0], false), &b),
                     by_heads(ch_matmul(h, false, w[1], false), &b),
                     by_heads(ch_matmul(h, false, w[2], false), &b), NULL, NULL);
    h = ch_reshape(ch_transpose(h, 4, (int[]){0, 2, 1, 3}), shape);
    y = ch_add(in, ch_matmul(h, false, w[3], false));
    h = ch_gelu(ch_matmul(norm(s, x, y, b.width), false, w[4], false));
    y = ch_add(y, ch_matmul(h, false, w[5], false));
    ch_gradients(y, ch_step_in(s, 1), 7, w, grad);
    put(s, y);
    for (int i = 0; i < 7; i++)
        put(s, grad[i]);
}

static void small_block(ch_step *s, state *x)
{
    block(s, x, (block_sizes){2, 6, 16, 4, 64});
}

static void large_block(ch_step *s, state *x)
{
    block(s, x, (block_sizes){8, 128, 384, 8, 1536});
}

/* ---- images ---- */

static void conv(ch_step *s, state *x)
{
    put(s, ch_conv2d(split(ch_step_in(s, 0), 1), var(s, x, ch_shape_of(3, 3, 3, 8), WHOLE),
                     &(ch_conv_options){.padding = CH_PAD_SAME}));
}

static void filter_gradient(ch_step *s, state *x)
{
    ch_node *in = split(ch_step_in(s, 0), 1), *dy = split(ch_step_in(s, 1), 1), *grad = NULL;
    ch_node *filter = var(s, x, ch_shape_of(3, 3, 3, 8), WHOLE);
    ch_node *y = ch_conv2d(in, filter, &(ch_conv_options){.padding = CH_PAD_SAME});

    ch_gradients(y, dy, 1, &filter, &grad);
    put(s, y);
    put(s, grad);
}

static void strided_conv(ch_step *s, state *x)
{
    put(s, ch_conv2d(split(ch_step_in(s, 0), 1), var(s, x, ch_shape_of(3, 3, 2, 8), WHOLE),
                     &(ch_conv_options){.stride = {2, 2}, .padding = CH_PAD_SAME}));
}

static void conv_in_two_axes(ch_step *s, state *x)
{
    put(s, ch_conv2d(ch_split_to_logical_devices(ch_step_in(s, 0), 4, (int[]){1, 2, 2, 1}),
                     var(s, x, ch_shape_of(3, 3, 2, 8), WHOLE),
                     &(ch_conv_options){.padding = CH_PAD_SAME}));
}

/* ---- normalisation, softmax, losses ---- */

static void batch_norm(ch_step *s, state *x)
{
    ch_node *gamma = var(s, x, ch_shape_of(8), WHOLE), *mean, *variance;

    put(s, ch_batch_norm(split(ch_step_in(s, 0), 1), gamma, var(s, x, ch_shape_of(8), WHOLE),
                         1e-3, &mean, &variance));
}

static void layer_norm(ch_step *s, state *x)
{
    put(s, norm(s, x, split(ch_step_in(s, 0), 1), 8));
}

static void softmax(ch_step *s, state *x)
{
    (void)x;
    put(s, ch_softmax(split(ch_step_in(s, 0), 1), -1));
}

static void cross_entropy(ch_step *s, state *x)
{
    ch_node *label = ch_cast(ch_step_in(s, 1), CH_I32);

    (void)x;
    put(s, ch_sparse_softmax_cross_entropy(split(ch_step_in(s, 0), 2), label));
}

/* ---- rows by ids ---- */

static void lookup_by_rows(ch_step *s, state *x)
{
    put(s, ch_gather(var(s, x, ch_shape_of(100, 8), 0), ch_step_in(s, 0), 0));
}

static void lookup_by_columns(ch_step *s, state *x)
{
    put(s, ch_gather(var(s, x, ch_shape_of(100, 8), 1), ch_step_in(s, 0), 0));
}

static void sparse_gradient(ch_step *s, state *x)
{
    (void)var(s, x, ch_shape_of(100, 8), WHOLE);
    ch_var_scatter_sub(s, x->var[0], split(ch_step_in(s, 0), 0), split(ch_step_in(s, 1), 0));
}

/* ---- moves ---- */

static void transfer(ch_step *s, state *x)
{
    (void)x;
    put(s, split(split(ch_step_in(s, 0), 1), 0));
}

static void reverse(ch_step *s, state *x)
{
    (void)x;
    put(s, split(ch_reverse(split(ch_step_in(s, 0), 0), 1, (int[]){0}), 0));
}

static void reshape(ch_step *s, state *x)
{
    (void)x;
    put(s, split(ch_reshape(split(ch_step_in(s, 0), 0), ch_shape_of(6, 8)), 0));
}

static void concat(ch_step *s, state *x)
{
    ch_node *part[2] = {ch_replicate_to_logical_devices(ch_step_in(s, 0)),
                        split(ch_step_in(s, 1), 0)};

    (void)x;
    put(s, split(ch_concat(2, part, 0), 0));
}

static void slice(ch_step *s, state *x)
{
    (void)x;
    put(s, ch_slice(split(ch_step_in(s, 0), 0), 1, (int64_t[]){2}, (int64_t[]){12}));
}

static void pad(ch_step *s, state *x)
{
    (void)x;
    put(s, ch_pad(split(ch_step_in(s, 0), 0), 1, (int64_t[]){1}, (int64_t[]){1}, 0));
}

/* ---- the table ---- */

#define A                                                                                      \
    {                                                                                          \
        2,                                                                                     \
        {                                                                                      \
            8, 16                                                                              \
        }                                                                                      \
    }
#define B8                                                                                     \
    {                                                                                          \
        2,                                                                                     \
        {                                                                                      \
            8, 8                                                                               \
        }                                                                                      \
    }

static const step_case cases[] = {
    {"A: relu(X W1) W2, by units", 3072, even_layers, .in = {A}},
    {"gradients of A for W1 and W2", 0, gradients_of_w, .in = {A, A}},
    {"gradient of A for X", 3072, gradient_of_x, .in = {A, A}},
    {"A with 30 hidden units", 3072, uneven_layers, .in = {A}},
    {"gradients of 784-512-10, by rows", 9756672, rows,
     .in = {{2, {128, 784}}, {2, {128, 10}}}},
    {"A on mesh 2x2", 1024, mesh, .in = {A, {2, {16, 32}}, {2, {32, 16}}}, .mesh = {2, 2}},
    {"block (2,6,16), by heads and units", 18432, small_block,
     .in = {{3, {2, 6, 16}}, {3, {2, 6, 16}}}},
    {"block (8,128,384), by heads and units", 37748736, large_block,
     .in = {{3, {8, 128, 384}}, {3, {8, 128, 384}}}},
    {"conv 3x3, by rows of the image", 2304, conv, .in = {{4, {2, 16, 16, 3}}}},
    {"conv 3x3 and its filter gradient", 2304 + 5184, filter_gradient,
     .in = {{4, {2, 16, 16, 3}}, {4, {2, 16, 16, 8}}}},
    {"conv 3x3, stride 2", 192, strided_conv, .in = {{4, {1, 16, 8, 2}}}},
    {"conv 3x3, rows and columns by 2x2", 288, conv_in_two_axes, .in = {{4, {1, 8, 8, 2}}}},
    {"batch norm, by rows of the image", 384, batch_norm, .in = {{4, {2, 16, 16, 8}}}},
    {"layer norm (8,8), by columns", 384, layer_norm, .in = {B8}},
    {"softmax (8,8), by columns", 384, softmax, .in = {B8}},
    {"cross entropy (2,6,100), by classes", 864, cross_entropy,
     .in = {{3, {2, 6, 100}}, {2, {2, 6}}}},
    {"lookup in (100,8), by rows", 1920, lookup_by_rows, .in = {{1, {10}}}, .has_ids = true},
    {"lookup in (100,8), by columns", 0, lookup_by_columns, .in = {{1, {10}}}, .has_ids = true},
    {"sparse gradient of (100,8)", 960, sparse_gradient, .in = {{1, {8}}, B8}, .has_ids = true},
    {"(8,8), columns to rows", 192, transfer, .in = {B8}},
    {"reverse (8)", 32, reverse, .in = {{1, {8}}}},
    {"reshape (48) to (6,8)", 64, reshape, .in = {{1, {48}}}},
    {"concat (8,3) replicated, (8,3) by rows", 72, concat, .in = {{2, {8, 3}}, {2, {8, 3}}}},
    {"slice 2:14 of (16)", 8, slice, .in = {{1, {16}}}},
    {"pad (8) by 1, 1", 8, pad, .in = {{1, {8}}}},
};

static void record(ch_step *s, void *arg)
{
    state *x = arg;

    x->n_read = 0;
    x->c->record(s, x);
}

static void measure(bench *b, const step_case *c)
{
    cores             four = {.n = FOUR};
    state             x = {.c = c};
    ch_function      *f = NULL;
    ch_tensor        *in[3] = {NULL};
    ch_tuple         *batch = NULL;
    ch_traffic_counts moved;
    int               n = 0;
    double            bytes = 0;

    for (int i = 0; i < FOUR; i++)
        four.device[i] = ch_device_at(i);
    x.strategy = cores_strategy(&four, c->mesh[0] > 0 ? 2 : 0, c->mesh);
    for (; n < 3 && c->in[n].rank > 0; n++)
        must(ch_tensor_new(n == 0 && c->has_ids ? CH_I64 : CH_F32, c->in[n], &in[n]));
    must(ch_tuple_of(n, in, &batch));
    must(ch_function_new(c->name, record, &x, &f));
    ch_function_static_rows(f);
    must(ch_strategy_run(x.strategy, f, batch, NULL));
    ch__function_traffic(f, &moved);
    for (int k = 0; k < CH_TRAFFIC_COUNT; k++)
        bytes += k != CH_TRAFFIC_HOST ? (double)moved.bytes[k] : 0;
    bench_add(b, c->name, "B", BENCH_LOWER, bytes, (double)c->bytes);
    if (bytes != (double)c->bytes)
        bench_void(b, c->name, "the cores moved another number of bytes");
    ch_function_unref(f);
    ch_tuple_unref(batch);
    for (int i = 0; i < n; i++)
        ch_tensor_unref(in[i]);
    for (int i = 0; i < x.n_vars; i++)
        ch_var_unref(x.var[i]);
    ch_strategy_unref(x.strategy);
}

int main(int argc, char **argv)
{
    bench *b = bench_open("spmd-bytes", argc, argv);

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=4", .threads = 1}));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (bench_wants(b, cases[i].name))
            measure(b, &cases[i]);
    return bench_close(b);
}
