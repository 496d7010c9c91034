/* test/spmd/examples.h -- steps on four logical devices, and the bytes that these receive from
 * each other. test_divide.c and bench/spmd_bytes.c run them.
 *
 * The bytes are derived by hand from the layouts: they are the fewest with which the devices
 * can compute the step as it is split. With several replicas, they include those between the
 * replicas.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_SPMD_EXAMPLES_H
#define TEST_SPMD_EXAMPLES_H

#include "cohort/cohort.h"

enum { MOST_INPUTS = 3, MOST_VARIABLES = 11 };

/* An input. */
typedef struct source {
    ch_dtype dtype;
    ch_shape shape;
} source;

/* A variable, and the axis of the mesh over which each of its axes is split. */
typedef struct variable {
    ch_shape shape;
    int      split[CH_MAX_RANK];
} variable;

#define UNSPLIT                                                                                \
    {                                                                                          \
        CH_OFF, CH_OFF, CH_OFF, CH_OFF                                                         \
    }
#define BY_ROWS                                                                                \
    {                                                                                          \
        0, CH_OFF, CH_OFF                                                                      \
    }
#define BY_COLUMNS                                                                             \
    {                                                                                          \
        CH_OFF, 0, CH_OFF                                                                      \
    }

typedef struct divided_step {
    const char *name;
    int64_t     bytes;
    /* Records the step. x are the inputs, w the values of the variables. */
    void (*record)(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v);
    source   in[MOST_INPUTS];        /* shape.rank is 0 after the last */
    variable var[MOST_VARIABLES];    /* likewise */
    int      mesh[CH_MESH_AXES_MAX]; /* 0 after the last axis; all 0: one axis */
    int      n_replicas;             /* 0: one */
} divided_step;

/* Returns the bytes that devices received from each other. */
static inline int64_t bytes_of(const ch_layout_report *r)
{
    return r->all_reduce.bytes + r->reduce_scatter.bytes + r->all_gather.bytes +
           r->all_to_all.bytes + r->halo.bytes + r->other.bytes + r->cross_replica.bytes;
}

/* The argument of record_divided_step. */
typedef struct recording {
    const divided_step *e;
    int                 n_in, n_vars;
    ch_var             *v[MOST_VARIABLES];
} recording;

static void record_divided_step(ch_step *s, void *arg)
{
    recording *r = arg;
    ch_node   *x[MOST_INPUTS], *w[MOST_VARIABLES];

    for (int i = 0; i < r->n_in; i++)
        x[i] = ch_step_in(s, i);
    for (int i = 0; i < r->n_vars; i++)
        w[i] = ch_var_read(s, r->v[i]);
    r->e->record(s, x, w, r->v);
}

/* Creates the variables of a step under a strategy. */
static inline ch_status new_variables(ch_strategy *st, recording *r)
{
    ch_status rc = CH_OK;

    for (; r->n_vars < MOST_VARIABLES && r->e->var[r->n_vars].shape.rank > 0 && rc == CH_OK;
         r->n_vars += rc == CH_OK) {
        const variable *v = &r->e->var[r->n_vars];
        char            name[16];

        (void)snprintf(name, sizeof(name), "v%d", r->n_vars);
        rc = ch_var_new(st,
                        &(ch_var_spec){.name = name,
                                       .shape = v->shape,
                                       .init = ch_init_uniform(-1, 1),
                                       .split = v->split,
                                       .n_split = v->shape.rank,
                                       .aggregation = CH_AGGREGATE_SUM},
                        &r->v[r->n_vars]);
    }
    return rc;
}

/* ---- matrix products ---- */

static ch_node *two_layers(ch_node *x, ch_node *const *w)
{
    return ch_matmul(ch_relu(ch_matmul(x, false, w[0], false)), false, w[1], false);
}

static void record_two_layers(ch_step *s, ch_node *const *x, ch_node *const *w,
                              ch_var *const *v)
{
    (void)v;
    ch_step_out(s, "y", two_layers(x[0], w));
}

/* Records gradients of the sum of y * dy: of x, or of the variables. */
static void gradients(ch_step *s, ch_node *const *x, ch_node *const *w, int n,
                      ch_node *const *of)
{
    ch_node *grad[2];

    ch_gradients(two_layers(x[0], w), x[1], n, of, grad);
    for (int i = 0; i < n; i++)
        ch_step_out(s, NULL, grad[i]);
}

static void record_gradients_of_w(ch_step *s, ch_node *const *x, ch_node *const *w,
                                  ch_var *const *v)
{
    (void)v;
    gradients(s, x, w, 2, w);
}

static void record_sums_of_gradients(ch_step *s, ch_node *const *x, ch_node *const *w,
                                     ch_var *const *v)
{
    ch_node *grad[2];

    (void)v;
    ch_gradients(two_layers(x[0], w), x[1], 2, w, grad);
    for (int i = 0; i < 2; i++)
        ch_step_out(s, NULL, ch_all_reduce(CH_SUM, grad[i]));
}

static void record_gradient_of_x(ch_step *s, ch_node *const *x, ch_node *const *w,
                                 ch_var *const *v)
{
    (void)v;
    gradients(s, x, w, 1, x);
}

/* Records the gradients of two layers and changes their variables. Rows are split. */
static void record_rows(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    ch_node *of[2] = {ch_split_to_logical_devices(x[0], 2, (int[]){4, 1}),
                      ch_split_to_logical_devices(x[1], 2, (int[]){4, 1})};
    ch_node *grad[2];

    ch_gradients(two_layers(of[0], w), of[1], 2, w, grad);
    for (int i = 0; i < 2; i++)
        ch_var_assign(s, v[i], ch_sub(w[i], ch_mul(grad[i], ch_number(s, 0.5))));
}

static void record_mesh(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)v;
    ch_step_out(s, "y", two_layers(ch_mesh_split(x[0], 2, (int[]){0, CH_OFF}), w));
}

/* ---- a transformer block ---- */

typedef struct block_sizes {
    int64_t batch, time, width, heads, hidden;
} block_sizes;

/* Returns (batch, heads, time, width / heads) from (batch, time, width). */
static ch_node *by_heads(ch_node *x, const block_sizes *b)
{
    x = ch_reshape(x, ch_shape_of(b->batch, b->time, b->heads, b->width / b->heads));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

/* A block of a transformer, whose kernels are split by heads and by hidden units, and the
 * gradients of the kernels and the input. */
static void record_block(ch_step *s, ch_node *const *x, ch_node *const *w, block_sizes b)
{
    ch_node *const *norm = &w[6];
    ch_node        *of[7] = {w[0], w[1], w[2], w[3], w[4], w[5], x[0]}, *grad[7], *h, *y;

    h = ch_layer_norm(x[0], norm[0], norm[1], 1e-5);
    h = ch_attention(by_heads(ch_matmul(h, false, w[0], false), &b),
                     by_heads(ch_matmul(h, false, w[1], false), &b),
                     by_heads(ch_matmul(h, false, w[2], false), &b), NULL, NULL);
    h = ch_reshape(ch_transpose(h, 4, (int[]){0, 2, 1, 3}),
                   ch_shape_of(b.batch, b.time, b.width));
    y = ch_add(x[0], ch_matmul(h, false, w[3], false));
    h = ch_layer_norm(y, norm[2], norm[3], 1e-5);
    h = ch_matmul(ch_gelu(ch_matmul(h, false, w[4], false)), false, w[5], false);
    y = ch_add(y, h);
    ch_gradients(y, x[1], 7, of, grad);
    ch_step_out(s, "y", y);
    for (int i = 0; i < 7; i++)
        ch_step_out(s, NULL, grad[i]);
}

static void record_small_block(ch_step *s, ch_node *const *x, ch_node *const *w,
                               ch_var *const *v)
{
    (void)v;
    record_block(s, x, w, (block_sizes){2, 6, 16, 4, 64});
}

static void record_large_block(ch_step *s, ch_node *const *x, ch_node *const *w,
                               ch_var *const *v)
{
    (void)v;
    record_block(s, x, w, (block_sizes){8, 128, 384, 8, 1536});
}

/* ---- images ---- */

static ch_node *by_image_rows(ch_node *x)
{
    return ch_split_to_logical_devices(x, 4, (int[]){1, 4, 1, 1});
}

static ch_node *conv(ch_node *x, ch_node *filter)
{
    return ch_conv2d(x, filter, &(ch_conv_options){.padding = CH_PAD_SAME});
}

static void record_conv(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)v;
    ch_step_out(s, "y", conv(by_image_rows(x[0]), w[0]));
}

static void record_filter_gradient(ch_step *s, ch_node *const *x, ch_node *const *w,
                                   ch_var *const *v)
{
    ch_node *y = conv(by_image_rows(x[0]), w[0]), *grad;

    (void)v;
    ch_step_out(s, "y", y);
    ch_gradients(y, by_image_rows(x[1]), 1, w, &grad);
    ch_step_out(s, "gradient", grad);
}

static void record_strided_conv(ch_step *s, ch_node *const *x, ch_node *const *w,
                                ch_var *const *v)
{
    (void)v;
    ch_step_out(s, "y",
                ch_conv2d(by_image_rows(x[0]), w[0],
                          &(ch_conv_options){.stride = {2, 2}, .padding = CH_PAD_SAME}));
}

static void record_conv_in_two_axes(ch_step *s, ch_node *const *x, ch_node *const *w,
                                    ch_var *const *v)
{
    (void)v;
    ch_step_out(s, "y", conv(ch_split_to_logical_devices(x[0], 4, (int[]){1, 2, 2, 1}), w[0]));
}

/* ---- normalisation, softmax, losses ---- */

static ch_node *by_columns(ch_node *x)
{
    return ch_split_to_logical_devices(x, 2, (int[]){1, 4});
}

static void record_batch_norm(ch_step *s, ch_node *const *x, ch_node *const *w,
                              ch_var *const *v)
{
    ch_node *mean, *variance;

    (void)v;
    ch_step_out(s, "y", ch_batch_norm(by_image_rows(x[0]), w[0], w[1], 1e-3, &mean, &variance));
}

static void record_layer_norm(ch_step *s, ch_node *const *x, ch_node *const *w,
                              ch_var *const *v)
{
    (void)v;
    ch_step_out(s, "y", ch_layer_norm(by_columns(x[0]), w[0], w[1], 1e-3));
}

static void record_softmax(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(s, "y", ch_softmax(by_columns(x[0]), -1));
}

static void record_cross_entropy(ch_step *s, ch_node *const *x, ch_node *const *w,
                                 ch_var *const *v)
{
    ch_node *logits = ch_split_to_logical_devices(x[0], 3, (int[]){1, 1, 4});

    (void)w;
    (void)v;
    ch_step_out(s, "y", ch_sparse_softmax_cross_entropy(logits, x[1]));
}

/* ---- rows by ids ---- */

static void record_lookup(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)v;
    ch_step_out(s, "y", ch_gather(w[0], x[0], 0));
}

static void record_sparse_gradient(ch_step *s, ch_node *const *x, ch_node *const *w,
                                   ch_var *const *v)
{
    ch_node *ids = ch_split_to_logical_devices(x[0], 1, (int[]){4});
    ch_node *rows = ch_split_to_logical_devices(x[1], 2, (int[]){4, 1});

    ch_var_assign(s, v[0], ch_scatter_sub(w[0], ids, rows));
}

/* ---- moves ---- */

static ch_node *by_rows(ch_node *x, int rank)
{
    return ch_split_to_logical_devices(x, rank, (int[]){4, 1});
}

static void record_transfer(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(s, "y", by_rows(by_columns(x[0]), 2));
}

static void record_reverse(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(s, "y", by_rows(ch_reverse(by_rows(x[0], 1), 1, (int[]){0}), 1));
}

static void record_reshape(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(
        s, "y",
        ch_mesh_split(ch_reshape(by_rows(x[0], 1), ch_shape_of(6, 8)), 2, (int[]){0, CH_OFF}));
}

static void record_concat(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    ch_node *parts[2] = {ch_replicate_to_logical_devices(x[0]), by_rows(x[1], 2)};

    (void)w;
    (void)v;
    ch_step_out(s, "y", by_rows(ch_concat(2, parts, 0), 2));
}

static void record_slice(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(s, "y", ch_slice(by_rows(x[0], 1), 1, (int64_t[]){2}, (int64_t[]){12}));
}

static void record_pad(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(s, "y", ch_pad(by_rows(x[0], 1), 1, (int64_t[]){1}, (int64_t[]){1}, 0));
}

/* ---- the table ---- */

/* clang-format off */
#define F32(...) {CH_F32, {__VA_ARGS__}}
#define I64(...) {CH_I64, {__VA_ARGS__}}
#define A_HIDDEN(n) {{{2, {16, n}}, BY_COLUMNS}, {{2, {n, 16}}, BY_ROWS}}
#define BLOCK(width, hidden) \
    {{{2, {width, width}}, BY_COLUMNS}, {{2, {width, width}}, BY_COLUMNS}, \
     {{2, {width, width}}, BY_COLUMNS}, {{2, {width, width}}, BY_ROWS}, \
     {{2, {width, hidden}}, BY_COLUMNS}, {{2, {hidden, width}}, BY_ROWS}, \
     {{1, {width}}, UNSPLIT}, {{1, {width}}, UNSPLIT}, \
     {{1, {width}}, UNSPLIT}, {{1, {width}}, UNSPLIT}}

static const divided_step divided_steps[] = {
    {"A: relu(X W1) W2, by units", 3072, record_two_layers,
     .in = {F32(2, {8, 16})}, .var = A_HIDDEN(32)},
    {"gradients of A for W1 and W2", 0, record_gradients_of_w,
     .in = {F32(2, {8, 16}), F32(2, {8, 16})}, .var = A_HIDDEN(32)},
    {"gradients of A, between two replicas", 8192, record_sums_of_gradients,
     .in = {F32(2, {8, 16}), F32(2, {8, 16})}, .var = A_HIDDEN(32), .n_replicas = 2},
    {"gradient of A for X", 3072, record_gradient_of_x,
     .in = {F32(2, {8, 16}), F32(2, {8, 16})}, .var = A_HIDDEN(32)},
    {"A with 30 hidden units", 3072, record_two_layers,
     .in = {F32(2, {8, 16})}, .var = A_HIDDEN(30)},
    {"gradients of 784-512-10, by rows", 9756672, record_rows,
     .in = {F32(2, {128, 784}), F32(2, {128, 10})},
     .var = {{{2, {784, 512}}, UNSPLIT}, {{2, {512, 10}}, UNSPLIT}}},
    {"A on mesh 2x2", 1024, record_mesh,
     .in = {F32(2, {8, 16})},
     .var = {{{2, {16, 32}}, {CH_OFF, 1}}, {{2, {32, 16}}, {1, CH_OFF}}}, .mesh = {2, 2}},
    {"block (2,6,16), by heads and units", 18432, record_small_block,
     .in = {F32(3, {2, 6, 16}), F32(3, {2, 6, 16})}, .var = BLOCK(16, 64)},
    {"block (8,128,384), by heads and units", 37748736, record_large_block,
     .in = {F32(3, {8, 128, 384}), F32(3, {8, 128, 384})}, .var = BLOCK(384, 1536)},
    {"conv 3x3, by rows of the image", 2304, record_conv,
     .in = {F32(4, {2, 16, 16, 3})}, .var = {{{4, {3, 3, 3, 8}}, UNSPLIT}}},
    {"conv 3x3 and its filter gradient", 2304 + 5184, record_filter_gradient,
     .in = {F32(4, {2, 16, 16, 3}), F32(4, {2, 16, 16, 8})}, .var = {{{4, {3, 3, 3, 8}}, UNSPLIT}}},
    {"conv 3x3, stride 2", 192, record_strided_conv,
     .in = {F32(4, {1, 16, 8, 2})}, .var = {{{4, {3, 3, 2, 8}}, UNSPLIT}}},
    {"conv 3x3, rows and columns by 2x2", 288, record_conv_in_two_axes,
     .in = {F32(4, {1, 8, 8, 2})}, .var = {{{4, {3, 3, 2, 8}}, UNSPLIT}}},
    {"batch norm, by rows of the image", 384, record_batch_norm,
     .in = {F32(4, {2, 16, 16, 8})}, .var = {{{1, {8}}, UNSPLIT}, {{1, {8}}, UNSPLIT}}},
    {"layer norm (8,8), by columns", 384, record_layer_norm,
     .in = {F32(2, {8, 8})}, .var = {{{1, {8}}, UNSPLIT}, {{1, {8}}, UNSPLIT}}},
    {"softmax (8,8), by columns", 384, record_softmax, .in = {F32(2, {8, 8})}},
    {"cross entropy (2,6,100), by classes", 864, record_cross_entropy,
     .in = {F32(3, {2, 6, 100}), I64(2, {2, 6})}},
    {"lookup in (100,8), by rows", 1920, record_lookup,
     .in = {I64(1, {10})}, .var = {{{2, {100, 8}}, BY_ROWS}}},
    {"lookup in (100,8), by columns", 0, record_lookup,
     .in = {I64(1, {10})}, .var = {{{2, {100, 8}}, BY_COLUMNS}}},
    {"sparse gradient of (100,8)", 960, record_sparse_gradient,
     .in = {I64(1, {8}), F32(2, {8, 8})}, .var = {{{2, {100, 8}}, UNSPLIT}}},
    {"(8,8), columns to rows", 192, record_transfer, .in = {F32(2, {8, 8})}},
    {"reverse (8)", 32, record_reverse, .in = {F32(1, {8})}},
    {"reshape (48) to (6,8)", 64, record_reshape, .in = {F32(1, {48})}},
    {"concat (8,3) replicated, (8,3) by rows", 72, record_concat,
     .in = {F32(2, {8, 3}), F32(2, {8, 3})}},
    {"slice 2:14 of (16)", 8, record_slice, .in = {F32(1, {16})}},
    {"pad (8) by 1, 1", 8, record_pad, .in = {F32(1, {8})}},
};
/* clang-format on */

enum { DIVIDED_STEPS = sizeof(divided_steps) / sizeof(divided_steps[0]) };

#endif
