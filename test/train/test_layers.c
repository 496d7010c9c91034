/* test/train/test_layers.c -- every kind of layer against PyTorch (test/golden/layers.py).
 *
 * A table has a row for each golden case. The tests compare outputs and gradients, and then
 * properties that all layers share: batches without rows, replicas with any number of rows,
 * 16-bit floats, loops, and first calls that fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../golden/layers.h"
#include "base/mem.h"
#include "layer_help.h"

/* ---- the table ---- */

enum { MAX_VARS = 16 };

typedef struct golden_var {
    const char  *path;
    int          seed;
    const float *gradient;
} golden_var;

typedef struct golden {
    const char *name;
    ch_layer *(*make)(void);
    ch_shape     in[3]; /* made from noise of seeds 1, 2 and 3 */
    int          n_in;
    ch_shape     out;
    const float *y;
    golden_var   var[MAX_VARS + 1];
    bool         has_ids; /* its inputs are ids and perhaps row splits: see inputs_of */
    bool         training;
} golden;

static ch_layer *make_conv(void)
{
    return ch_layer_conv2d(5, 3, 3,
                           &(ch_layer_conv_options){.stride = {2, 1}, .activation = CH_RELU});
}

static ch_layer *make_grouped(void)
{
    return ch_layer_conv2d(
        6, 3, 3,
        &(ch_layer_conv_options){.dilation = {2, 2}, .padding = CH_PAD_SAME, .groups = 2});
}

static ch_layer *make_padded(void) /* the same */
{
    return ch_layer_conv2d(
        6, 3, 3,
        &(ch_layer_conv_options){
            .dilation = {2, 2}, .padding = CH_PAD_EXPLICIT, .pad = {2, 2, 2, 2}, .groups = 2});
}

static ch_layer *make_depthwise(void)
{
    return ch_layer_depthwise_conv2d(3, 3,
                                     &(ch_layer_conv_options){.multiplier = 2,
                                                              .padding = CH_PAD_SAME,
                                                              .activation = CH_TANH});
}

static ch_layer *make_separable(void)
{
    return ch_layer_separable_conv2d(3, 3, 3, &(ch_layer_conv_options){.multiplier = 2});
}

static ch_layer *make_transpose(void)
{
    return ch_layer_conv2d_transpose(3, 3, 3, &(ch_layer_conv_options){.stride = {2, 2}});
}

static ch_layer *make_transpose_same(void)
{
    return ch_layer_conv2d_transpose(
        3, 3, 3, &(ch_layer_conv_options){.stride = {2, 2}, .padding = CH_PAD_SAME});
}

static ch_layer *make_transpose_padded(void)
{
    return ch_layer_conv2d_transpose(3, 3, 3,
                                     &(ch_layer_conv_options){.stride = {2, 2},
                                                              .padding = CH_PAD_EXPLICIT,
                                                              .pad = {1, 1, 1, 1}});
}

static ch_layer *make_batch_norm(void)
{
    return ch_layer_batch_norm(NULL);
}

static ch_layer *make_layer_norm(void)
{
    return ch_layer_layer_norm(0);
}

static ch_layer *make_rms_norm(void)
{
    return ch_layer_rms_norm(0);
}

static ch_layer *make_embedding(void)
{
    return ch_layer_embedding(7, 3, NULL);
}

static ch_layer *make_bag(void)
{
    return ch_layer_embedding_bag(7, 3, CH_COMBINE_MEAN, NULL);
}

static ch_layer *make_weighted_bag(void)
{
    return ch_layer_embedding_bag(7, 3, CH_COMBINE_SUM,
                                  &(ch_layer_embedding_options){.weighted = true});
}

static ch_layer *make_attention(void)
{
    return ch_layer_multi_head_attention(2, &(ch_layer_multi_head_options){.causal = true});
}

static ch_layer *make_cross(void)
{
    return ch_layer_multi_head_attention(2, &(ch_layer_multi_head_options){.key_width = 3});
}

static ch_layer *make_block(void)
{
    return ch_layer_transformer_block(2, &(ch_layer_transformer_options){.causal = true});
}

static ch_layer *make_lstm(void)
{
    return ch_layer_lstm(2, &(ch_layer_recurrent_options){.return_sequence = true});
}

static ch_layer *make_gru(void)
{
    return ch_layer_gru(2, NULL);
}

#define SHAPE(rank, ...)                                                                       \
    {                                                                                          \
        rank,                                                                                  \
        {                                                                                      \
            __VA_ARGS__                                                                        \
        }                                                                                      \
    }

static const golden table[] = {
    {"conv",
     make_conv,
     {SHAPE(4, 2, 5, 6, 4)},
     1,
     SHAPE(4, 2, 2, 4, 5),
     conv_y,
     .var = {{"kernel", 10, conv_d0}, {"bias", 11, conv_d1}}},
    {"grouped",
     make_grouped,
     {SHAPE(4, 2, 5, 6, 4)},
     1,
     SHAPE(4, 2, 5, 6, 6),
     grouped_y,
     .var = {{"kernel", 10, grouped_d0}, {"bias", 11, grouped_d1}}},
    {"padded",
     make_padded,
     {SHAPE(4, 2, 5, 6, 4)},
     1,
     SHAPE(4, 2, 5, 6, 6),
     grouped_y,
     .var = {{"kernel", 10, grouped_d0}, {"bias", 11, grouped_d1}}},
    {"depthwise",
     make_depthwise,
     {SHAPE(4, 2, 5, 6, 4)},
     1,
     SHAPE(4, 2, 5, 6, 8),
     depthwise_y,
     .var = {{"kernel", 10, depthwise_d0}, {"bias", 11, depthwise_d1}}},
    {"separable",
     make_separable,
     {SHAPE(4, 2, 5, 6, 4)},
     1,
     SHAPE(4, 2, 3, 4, 3),
     separable_y,
     .var = {{"depthwise/kernel", 10, separable_d0},
             {"pointwise/kernel", 11, separable_d1},
             {"pointwise/bias", 12, separable_d2}}},
    {"transpose",
     make_transpose,
     {SHAPE(4, 2, 5, 6, 4)},
     1,
     SHAPE(4, 2, 11, 13, 3),
     transpose_y,
     .var = {{"kernel", 10, transpose_d0}, {"bias", 11, transpose_d1}}},
    {"transpose_same",
     make_transpose_same,
     {SHAPE(4, 2, 5, 6, 4)},
     1,
     SHAPE(4, 2, 10, 12, 3),
     transpose_same_y,
     .var = {{"kernel", 10, transpose_same_d0}, {"bias", 11, transpose_same_d1}}},
    {"batch_norm",
     make_batch_norm,
     {SHAPE(4, 3, 2, 2, 4)},
     1,
     SHAPE(4, 3, 2, 2, 4),
     batch_norm_y,
     .var = {{"gamma", 10, batch_norm_d0}, {"beta", 11, batch_norm_d1}},
     .training = true},
    {"layer_norm",
     make_layer_norm,
     {SHAPE(3, 3, 2, 5)},
     1,
     SHAPE(3, 3, 2, 5),
     layer_norm_y,
     .var = {{"gamma", 10, layer_norm_d0}, {"beta", 11, layer_norm_d1}}},
    {"rms_norm",
     make_rms_norm,
     {SHAPE(3, 3, 2, 5)},
     1,
     SHAPE(3, 3, 2, 5),
     rms_norm_y,
     .var = {{"gamma", 10, rms_norm_d0}}},
    {"embedding",
     make_embedding,
     {SHAPE(2, 2, 3)},
     1,
     SHAPE(3, 2, 3, 3),
     embedding_y,
     .var = {{"table", 10, embedding_d0}},
     .has_ids = true},
    {"bag",
     make_bag,
     {SHAPE(1, 6), SHAPE(1, 4)},
     2,
     SHAPE(2, 3, 3),
     bag_y,
     .var = {{"table", 10, bag_d0}},
     .has_ids = true},
    {"attention",
     make_attention,
     {SHAPE(3, 2, 3, 4)},
     1,
     SHAPE(3, 2, 3, 4),
     attention_y,
     .var = {{"query/kernel", 10, attention_d0},
             {"query/bias", 11, attention_d1},
             {"key/kernel", 12, attention_d2},
             {"key/bias", 13, attention_d3},
             {"value/kernel", 14, attention_d4},
             {"value/bias", 15, attention_d5},
             {"output/kernel", 16, attention_d6},
             {"output/bias", 17, attention_d7}}},
    {"cross",
     make_cross,
     {SHAPE(3, 2, 3, 4), SHAPE(3, 2, 5, 6)},
     2,
     SHAPE(3, 2, 3, 4),
     cross_y,
     .var = {{"query/kernel", 10, cross_d0},
             {"query/bias", 11, cross_d1},
             {"key/kernel", 12, cross_d2},
             {"key/bias", 13, cross_d3},
             {"value/kernel", 14, cross_d4},
             {"value/bias", 15, cross_d5},
             {"output/kernel", 16, cross_d6},
             {"output/bias", 17, cross_d7}}},
    {"block",
     make_block,
     {SHAPE(3, 2, 3, 4)},
     1,
     SHAPE(3, 2, 3, 4),
     block_y,
     .var = {{"norm_1/gamma", 10, block_d0},
             {"norm_1/beta", 11, block_d1},
             {"attention/query/kernel", 12, block_d2},
             {"attention/query/bias", 13, block_d3},
             {"attention/key/kernel", 14, block_d4},
             {"attention/key/bias", 15, block_d5},
             {"attention/value/kernel", 16, block_d6},
             {"attention/value/bias", 17, block_d7},
             {"attention/output/kernel", 18, block_d8},
             {"attention/output/bias", 19, block_d9},
             {"norm_2/gamma", 20, block_d10},
             {"norm_2/beta", 21, block_d11},
             {"hidden/kernel", 22, block_d12},
             {"hidden/bias", 23, block_d13},
             {"output/kernel", 24, block_d14},
             {"output/bias", 25, block_d15}}},
    {"lstm",
     make_lstm,
     {SHAPE(3, 2, 4, 3)},
     1,
     SHAPE(3, 2, 4, 2),
     lstm_y,
     .var = {{"kernel", 10, lstm_d0},
             {"recurrent_kernel", 11, lstm_d1},
             {"bias", 12, lstm_d2}}},
    {"gru",
     make_gru,
     {SHAPE(3, 2, 4, 3)},
     1,
     SHAPE(2, 2, 2),
     gru_y,
     .var = {{"kernel", 10, gru_d0}, {"recurrent_kernel", 11, gru_d1}, {"bias", 12, gru_d2}}},
    {"transpose_padded",
     make_transpose_padded,
     {SHAPE(4, 2, 5, 6, 4)},
     1,
     SHAPE(4, 2, 9, 11, 3),
     transpose_padded_y,
     .var = {{"kernel", 10, transpose_padded_d0}, {"bias", 11, transpose_padded_d1}}},
    {"weighted_bag",
     make_weighted_bag,
     {SHAPE(1, 6), SHAPE(1, 4), SHAPE(1, 6)},
     3,
     SHAPE(2, 3, 3),
     weighted_bag_y,
     .var = {{"table", 10, weighted_bag_d0}},
     .has_ids = true},
};

enum { N_GOLDEN = sizeof(table) / sizeof(table[0]) };

static const golden *golden_of(const char *name)
{
    for (int i = 0; i < N_GOLDEN; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    fail_msg("there is no %s", name);
    return NULL;
}

/* ---- running a case ---- */

static ch_tensor *ids_of(ch_shape shape, const int32_t *id)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_copy_of(CH_I32, shape, id, &t));
    return t;
}

/* Makes the inputs of a row of the table, or inputs without rows. */
static void inputs_of(const golden *g, bool empty, ch_tensor **in)
{
    static const int32_t ids[] = {0, 6, 2, 2, 2, 5}, bag[] = {0, 6, 2, 2, 5, 1};
    static const int32_t splits[] = {0, 2, 2, 6};

    for (int i = 0; i < g->n_in; i++) {
        ch_shape shape = g->in[i];

        if (empty)
            shape.dim[0] = g->has_ids && i == 1 ? 1 : 0;
        if (g->has_ids && i < 2)
            in[i] = ids_of(shape, i == 1 ? splits : g->n_in >= 2 ? bag : ids);
        else
            in[i] = t_noise(shape, (unsigned)i + 1);
    }
}

typedef struct run_of {
    const golden *golden;
    ch_layer     *layer;
    bool          training;
} run_of;

/* Results: y as f32, then the gradient of its mean square for every variable. */
static void differentiate(ch_step *s, void *arg)
{
    run_of  *r = arg;
    ch_node *in[3], *y, *value[MAX_VARS], *d[MAX_VARS];
    int      n = 0;

    for (int i = 0; i < ch_step_in_count(s); i++)
        in[i] = ch_step_in(s, i);
    y = ch_cast(ch_layer_call_n(r->layer, s, ch_step_in_count(s), in, r->training), CH_F32);
    ch_step_out(s, "y", y);
    for (; n < MAX_VARS && r->golden->var[n].path != NULL; n++)
        value[n] = ch_var_read(s, ch_layer_var(r->layer, r->golden->var[n].path));
    ch_gradients(ch_mean_all(ch_square(y)), NULL, n, value, d);
    for (int i = 0; i < n; i++)
        ch_step_out(s, NULL, ch_cast(d[i], CH_F32));
}

static ch_layer *made(const golden *g, ch_strategy *st, ch_dtype dtype)
{
    ch_layer  *l = g->make();
    ch_tensor *in[3];
    ch_tuple  *out = NULL;

    assert_non_null(l);
    ch_layer_set_dtype(l, dtype);
    inputs_of(g, false, in);
    t_ok(t_try(st, &(t_call){.layer = l}, g->n_in, in, &out)); /* makes the variables */
    ch_tuple_unref(out);
    for (int i = 0; i < MAX_VARS && g->var[i].path != NULL; i++)
        t_fill(l, g->var[i].path, (unsigned)g->var[i].seed);
    return l;
}

static void compare(const golden *g, const char *what, const ch_tensor *t, const float *want,
                    double off)
{
    double largest = 0;

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < ch_tensor_count(t); i++) {
        double have = ((const float *)ch_tensor_data(t))[i];

        if (!(fabs(have - want[i]) <= off * (0.1 + largest)))
            fail_msg("%s: %s[%d] is %.9g, want %.9g", g->name, what, (int)i, have, want[i]);
    }
}

static void check_golden(const golden *g, ch_dtype dtype, double off)
{
    run_of       r = {g, made(g, NULL, dtype), g->training};
    ch_function *f = t_function(differentiate, &r);
    ch_tensor   *in[3];
    ch_tuple    *batch, *out = NULL;

    inputs_of(g, false, in);
    batch = t_tuple(g->n_in, in);
    t_ok(ch_strategy_run(NULL, f, batch, &out));
    if (!ch_shape_equal(ch_tensor_shape(ch_value_at(ch_tuple_at(out, 0), 0)), g->out))
        fail_msg("%s: another shape", g->name);
    compare(g, "y", ch_value_at(ch_tuple_at(out, 0), 0), g->y, off);
    for (int i = 0; i < MAX_VARS && g->var[i].path != NULL; i++)
        compare(g, g->var[i].path, ch_value_at(ch_tuple_at(out, i + 1), 0), g->var[i].gradient,
                4 * off);
    ch_tuple_unref(out);
    ch_tuple_unref(batch);
    ch_function_unref(f);
    ch_layer_unref(r.layer);
}

static void layers_agree_with_pytorch_in_f32(void **state)
{
    for (int i = 0; i < N_GOLDEN; i++)
        check_golden(&table[i], CH_F32, 3e-6);
    (void)state;
}

static void layers_agree_with_pytorch_in_16_bits(void **state)
{
    for (int i = 0; i < N_GOLDEN; i++) {
        check_golden(&table[i], CH_F16, 0.01);
        check_golden(&table[i], CH_BF16, 0.06);
    }
    (void)state;
}

static void layers_agree_with_pytorch_in_f64(void **state)
{
    for (int i = 0; i < N_GOLDEN; i++)
        check_golden(&table[i], CH_F64, 2e-6);
    (void)state;
}

/* ---- rows ---- */

static void layers_accept_inputs_without_rows(void **state)
{
    for (int i = 0; i < N_GOLDEN; i++) {
        const golden *g = &table[i];
        t_call        c = {made(g, NULL, CH_F32), true, 0};
        ch_tensor    *in[3];
        ch_tuple     *out = NULL;

        inputs_of(g, true, in);
        t_ok(t_try(NULL, &c, g->n_in, in, &out));
        assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 0), 0)), 0);
        ch_tuple_unref(out);
        ch_layer_unref(c.layer);
    }
    (void)state;
}

/* Makes a step along the gradient of the sum of squares over the rows of all replicas. */
static void train(ch_step *s, void *arg)
{
    t_call        *c = arg;
    ch_node       *in[3], *y, *value[64], *d[64];
    ch_var *const *v;
    int            n;

    for (int i = 0; i < ch_step_in_count(s); i++)
        in[i] = ch_step_in(s, i);
    y = ch_layer_call_n(c->layer, s, ch_step_in_count(s), in, c->training);
    n = ch_layer_trainable(c->layer, &v);
    assert_true(n <= 64);
    for (int i = 0; i < n; i++)
        value[i] = ch_var_read(s, v[i]);
    ch_gradients(ch_sum_all(ch_square(y)), NULL, n, value, d);
    for (int i = 0; i < n; i++)
        ch_var_assign_sub(s, v[i], ch_mul(ch_all_reduce(CH_SUM, d[i]), ch_number(s, c->rate)));
}

static void run_train(ch_strategy *st, ch_layer *l, ch_tuple *batch)
{
    t_call       c = {l, true, 1e-3};
    ch_function *f = t_function(train, &c);

    t_ok(ch_strategy_run(st, f, batch, NULL));
    ch_function_unref(f);
}

/* Divides the rows of a batch into two per-replica parts. */
static ch_tuple *parted(int n, ch_tensor *const *in, const int64_t *end)
{
    ch_value *leaf[2] = {NULL, NULL};
    ch_tuple *batch = NULL;

    for (int i = 0; i < n; i++) {
        ch_tensor *part[2];

        t_ok(ch_tensor_rows(in[i], 0, end[0], &part[0]));
        t_ok(ch_tensor_rows(in[i], end[0], end[1], &part[1]));
        t_ok(ch_value_new(CH_PER_REPLICA, 2, part, &leaf[i]));
        ch_tensor_unref(part[0]);
        ch_tensor_unref(part[1]);
    }
    t_ok(ch_tuple_new(n, leaf, NULL, &batch));
    for (int i = 0; i < n; i++)
        ch_value_unref(leaf[i]);
    return batch;
}

static void assert_same_vars(const golden *g, ch_layer *a, ch_layer *b, double off)
{
    for (int i = 0; i < MAX_VARS && g->var[i].path != NULL; i++) {
        ch_var *v = ch_layer_var(a, g->var[i].path), *w = ch_layer_var(b, g->var[i].path);

        for (int64_t k = 0; k < ch_shape_count(ch_var_shape(v)); k++) {
            float x = t_copy_of(v, 0, (int)k), y = t_copy_of(w, 0, (int)k);

            assert_true(y == t_copy_of(w, 1, (int)k)); /* copies stay equal */
            if (!(fabs(x - y) <= off * (1 + fabs(x))))
                fail_msg("%s: %s[%d] is %.9g, and %.9g on two replicas", g->name,
                         g->var[i].path, (int)k, x, y);
        }
    }
}

/* For any division of the rows among replicas, the step must be that of the whole batch. */
static void check_parted(const golden *g, ch_strategy *st, int64_t first)
{
    ch_layer  *whole = made(g, NULL, CH_F32), *split = made(g, st, CH_F32);
    ch_tensor *in[3];
    ch_tuple  *batch, *parts;

    ch_layer_synchronize(split, true);
    inputs_of(g, false, in);
    parts = parted(g->n_in, in, (int64_t[]){first, g->in[0].dim[0]});
    batch = t_tuple(g->n_in, in);
    run_train(NULL, whole, batch);
    run_train(st, split, parts);
    assert_same_vars(g, whole, split, 1e-5);
    ch_tuple_unref(parts);
    ch_tuple_unref(batch);
    ch_layer_unref(whole);
    ch_layer_unref(split);
}

static void layers_on_two_replicas_take_the_step_of_the_whole_batch(void **state)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    for (int i = 0; i < N_GOLDEN; i++)
        if (strstr(table[i].name, "bag") == NULL) /* its rows are not those of its inputs */
            for (int64_t first = 0; first <= table[i].in[0].dim[0]; first++)
                check_parted(&table[i], st, first);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- batch norm ---- */

static void moving(ch_layer *l, int copy, int channel, float *mean, float *variance)
{
    *mean = t_copy_of(ch_layer_var(l, "moving_mean"), copy, channel);
    *variance = t_copy_of(ch_layer_var(l, "moving_variance"), copy, channel);
}

static void batch_norm_moves_its_statistics_in_training_only(void **state)
{
    const golden *g = golden_of("batch_norm");
    ch_layer     *l = made(g, NULL, CH_F32);
    ch_tensor    *x = t_noise(g->in[0], 1), *y;
    float         mean, variance, *gamma = t_values(l, "gamma"), *beta = t_values(l, "beta");
    ch_tuple     *out = NULL;

    assert_string_equal(g->name, "batch_norm");
    moving(l, 0, 0, &mean, &variance);
    assert_true(mean == 0 && variance == 1);
    t_ok(t_try(NULL, &(t_call){l, true, 0}, 1, (ch_tensor *[]){ch_tensor_ref(x)}, &out));
    ch_tuple_unref(out);
    y = t_apply(l, ch_tensor_ref(x)); /* uses the moving statistics */
    for (int c = 0; c < 4; c++) {
        moving(l, 0, c, &mean, &variance);
        t_near(mean, batch_norm_mean[c], 1e-6);
        t_near(variance, batch_norm_variance[c], 1e-6);
        for (int r = 0; r < 12; r++)
            t_near(((const float *)ch_tensor_data(y))[4 * r + c],
                   (((const float *)ch_tensor_data(x))[4 * r + c] - mean) /
                           sqrt(variance + 1e-3) * gamma[c] +
                       beta[c],
                   1e-5);
    }
    free(gamma);
    free(beta);
    ch_tensor_unref(x);
    ch_tensor_unref(y);
    ch_layer_unref(l);
    (void)state;
}

/* Computes the mean and the variance of rows [from, to) of (n, 4). */
static void rows_stats(const float *x, int from, int to, int c, double *mean, double *variance)
{
    *mean = *variance = 0;
    for (int r = from; r < to; r++)
        *mean += x[4 * r + c] / (double)(to - from);
    for (int r = from; r < to; r++)
        *variance += (x[4 * r + c] - *mean) * (x[4 * r + c] - *mean) / (to - from);
}

/* Each replica normalises by its own rows. The moving statistics are the weighted means. */
static void batch_norm_weighs_moving_statistics_by_rows(void **state)
{
    ch_strategy *st = NULL;
    ch_tensor   *x = t_noise(ch_shape_of(10, 4), 3);
    const float *data = ch_tensor_data(x);

    t_ok(ch_strategy_mirrored(NULL, &st));
    for (int first = 0; first <= 10; first += 5 - (first == 5) * 3) { /* 0, 5, 7, ... */
        ch_layer *l = ch_layer_batch_norm(&(ch_layer_batch_norm_options){.momentum = 0.5});
        ch_tuple *parts = parted(1, &x, (int64_t[]){first, 10});

        run_train(st, l, parts);
        for (int c = 0; c < 4; c++) {
            double mean[2], variance[2];
            float  have_mean, have_variance;

            rows_stats(data, 0, first, c, &mean[0], &variance[0]);
            rows_stats(data, first, 10, c, &mean[1], &variance[1]);
            for (int copy = 0; copy < 2; copy++) {
                moving(l, copy, c, &have_mean, &have_variance);
                t_near(have_mean, 0.05 * (first * mean[0] + (10 - first) * mean[1]), 1e-5);
                t_near(have_variance,
                       0.5 + 0.05 * (first * variance[0] + (10 - first) * variance[1]), 1e-5);
            }
        }
        ch_tuple_unref(parts);
        ch_layer_unref(l);
    }
    ch_tensor_unref(x);
    ch_strategy_unref(st);
    (void)state;
}

static void batch_norm_keeps_moving_statistics_when_there_are_no_rows(void **state)
{
    for (int many = 0; many < 2; many++)
        for (int sync = 0; sync < 2; sync++) {
            ch_strategy *st = NULL;
            ch_layer    *l = ch_layer_batch_norm(NULL);
            ch_tensor   *x = t_noise(ch_shape_of(0, 4), 1);
            ch_tuple    *in;
            float        mean, variance;

            ch_layer_synchronize(l, sync);
            if (many)
                t_ok(ch_strategy_mirrored(NULL, &st));
            in = t_tuple(1, &x);
            run_train(st, l, in);
            moving(l, 0, 0, &mean, &variance);
            assert_true(mean == 0 && variance == 1);
            ch_tuple_unref(in);
            ch_layer_unref(l);
            ch_strategy_unref(st);
        }
    (void)state;
}

static void synchronized_batch_norm_uses_the_statistics_of_all_rows(void **state)
{
    ch_strategy *st = NULL;
    ch_tensor   *x = t_noise(ch_shape_of(10, 4), 3);
    ch_layer    *l = ch_layer_sequential(
           "net", 1,
           (ch_layer *[]){ch_layer_batch_norm(&(ch_layer_batch_norm_options){.momentum = 0.5})});
    ch_tuple *parts = parted(1, &x, (int64_t[]){3, 10});

    t_ok(ch_strategy_mirrored(NULL, &st));
    ch_layer_synchronize(l, true);
    run_train(st, l, parts);
    for (int c = 0; c < 4; c++) {
        double mean, variance;

        rows_stats(ch_tensor_data(x), 0, 10, c, &mean, &variance);
        t_near(t_copy_of(ch_layer_var(l, "batch_norm/moving_mean"), 1, c), 0.5 * mean, 1e-5);
        t_near(t_copy_of(ch_layer_var(l, "batch_norm/moving_variance"), 1, c),
               0.5 + 0.5 * variance, 1e-5);
    }
    ch_tuple_unref(parts);
    ch_tensor_unref(x);
    ch_layer_unref(l);
    ch_strategy_unref(st);
    (void)state;
}

/* The rows are on another axis, whose size is a symbol too. */
static void norm_straight(ch_step *s, void *arg)
{
    ch_step_out(s, NULL, ch_layer_call(arg, s, ch_step_in(s, 0), true));
}

static void norm_transposed(ch_step *s, void *arg)
{
    static const int axis[] = {1, 0, 2};
    ch_node         *x = ch_transpose(ch_step_in(s, 0), 3, axis);

    ch_step_out(s, NULL, ch_transpose(ch_layer_call(arg, s, x, true), 3, axis));
}

/* Two axes are rows: (rows, rows, 1). */
static void norm_pairs(ch_step *s, void *arg)
{
    ch_node *x = ch_reshape(ch_step_in(s, 0), ch_shape_of(-1, 12));
    ch_node *pairs = ch_expand_dims(ch_matmul(x, false, x, true), -1);

    ch_step_out(s, NULL, ch_layer_call(arg, s, pairs, true));
}

static void check_counts(ch_strategy *st, ch_step_fn one, ch_step_fn other, bool fixed,
                         bool sync, ch_tuple *in, int channels)
{
    ch_layer    *l[2] = {ch_layer_batch_norm(NULL), ch_layer_batch_norm(NULL)};
    ch_function *f[2] = {t_function(one, l[0]), t_function(other, l[1])};
    ch_tuple    *out[2] = {NULL};

    if (fixed)
        ch_function_static_rows(f[0]);
    for (int i = 0; i < 2; i++) {
        ch_layer_synchronize(l[i], sync);
        t_ok(ch_strategy_run(st, f[i], in, &out[i]));
    }
    for (int r = 0; r < ch_value_count(ch_tuple_at(out[0], 0)); r++)
        for (int64_t i = 0; i < ch_tensor_count(ch_value_at(ch_tuple_at(out[0], 0), r)); i++)
            t_near(t_floats(out[1], 0, r)[i], t_floats(out[0], 0, r)[i], 1e-5);
    for (int c = 0; c < channels; c++) {
        float mean[2], variance[2];

        for (int i = 0; i < 2; i++)
            moving(l[i], 0, c, &mean[i], &variance[i]);
        t_near(mean[1], mean[0], 1e-5);
        t_near(variance[1], variance[0], 1e-5);
        assert_true(mean[0] != 0);
    }
    for (int i = 0; i < 2; i++) {
        ch_tuple_unref(out[i]);
        ch_function_unref(f[i]);
        ch_layer_unref(l[i]);
    }
}

static void batch_norm_counts_elements_with_rows_on_any_axis(void **state)
{
    ch_strategy *st = NULL;
    ch_tensor   *x = t_noise(ch_shape_of(10, 3, 4), 3);
    ch_tuple    *parts = parted(1, &x, (int64_t[]){7, 10}), *whole = t_tuple(1, &x);

    t_ok(ch_strategy_mirrored(NULL, &st));
    for (int sync = 0; sync < 2; sync++) {
        check_counts(NULL, norm_straight, norm_transposed, false, sync, whole, 4);
        check_counts(st, norm_straight, norm_transposed, false, sync, parts, 4);
        check_counts(NULL, norm_pairs, norm_pairs, true, sync, whole, 1);
    }
    ch_tuple_unref(parts);
    ch_tuple_unref(whole);
    ch_strategy_unref(st);
    (void)state;
}

/* Gradients with respect to the input, through the statistics of all rows, are those on a
 * single device. */
static void input_gradient(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_layer_call(arg, s, x, true);
    ch_node *weights = ch_cast(ch_range(s, CH_I64, 1, 5, 1), CH_F32);

    ch_step_out(s, NULL, ch_gradient(ch_sum_all(ch_mul(ch_square(ch_sigmoid(y)), weights)), x));
}

static void synchronized_batch_norm_gradients_cross_replicas(void **state)
{
    ch_strategy *st = NULL;
    ch_tensor   *x = t_noise(ch_shape_of(10, 4), 3);
    ch_layer    *one = ch_layer_batch_norm(NULL), *two = ch_layer_batch_norm(NULL);
    ch_function *f = t_function(input_gradient, one), *g = t_function(input_gradient, two);
    ch_tuple    *parts = parted(1, &x, (int64_t[]){3, 10}), *whole = t_tuple(1, &x);
    ch_tuple    *want = NULL, *have = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    ch_layer_synchronize(two, true);
    t_ok(ch_strategy_run(NULL, f, whole, &want));
    t_ok(ch_strategy_run(st, g, parts, &have));
    for (int i = 0; i < 40; i++)
        t_near(i < 12 ? t_floats(have, 0, 0)[i] : t_floats(have, 0, 1)[i - 12],
               t_floats(want, 0, 0)[i], 1e-5);
    ch_tuple_unref(parts);
    ch_tuple_unref(whole);
    ch_tuple_unref(want);
    ch_tuple_unref(have);
    ch_function_unref(f);
    ch_function_unref(g);
    ch_layer_unref(one);
    ch_layer_unref(two);
    ch_strategy_unref(st);
    (void)state;
}

static void batch_norm_statistics_are_f32_when_variables_are_16_bits(void **state)
{
    ch_layer *l = made(golden_of("batch_norm"), NULL, CH_BF16);

    assert_int_equal(ch_var_dtype(ch_layer_var(l, "gamma")), CH_BF16);
    assert_int_equal(ch_var_dtype(ch_layer_var(l, "moving_mean")), CH_F32);
    assert_int_equal(ch_var_dtype(ch_layer_var(l, "moving_variance")), CH_F32);
    ch_layer_unref(l);
    (void)state;
}

static void batch_norm_can_do_without_gamma_and_beta(void **state)
{
    ch_layer *l =
        ch_layer_batch_norm(&(ch_layer_batch_norm_options){.center = CH_OFF, .scale = CH_OFF});
    ch_tensor     *x = t_noise(ch_shape_of(4, 2), 1);
    ch_var *const *v;

    ch_tensor_unref(t_apply(l, x));
    assert_int_equal(ch_layer_vars(l, &v), 2);
    assert_int_equal(ch_layer_trainable(l, &v), 0);
    ch_layer_unref(l);
    (void)state;
}

/* ---- the rest ---- */

static void lstm_forget_bias_is_initially_1(void **state)
{
    ch_layer *l = ch_layer_lstm(3, NULL);
    float    *bias;

    ch_tensor_unref(t_apply(l, t_noise(ch_shape_of(2, 4, 5), 1)));
    bias = t_values(l, "bias");
    for (int i = 0; i < 12; i++)
        assert_true(bias[i] == (i >= 3 && i < 6));
    free(bias);
    ch_layer_unref(l);
    (void)state;
}

static void lstm_last_state_is_the_end_of_the_sequence(void **state)
{
    const golden *g = golden_of("lstm");
    ch_layer     *l = ch_layer_lstm(2, NULL);
    float         last[4];

    assert_string_equal(g->name, "lstm");
    ch_tensor_unref(t_apply(l, t_noise(g->in[0], 1)));
    for (int i = 0; i < 3; i++)
        t_fill(l, g->var[i].path, (unsigned)g->var[i].seed);
    for (int i = 0; i < 4; i++)
        last[i] = lstm_y[i / 2 * 8 + 6 + i % 2];
    t_is(t_apply(l, t_noise(g->in[0], 1)), ch_shape_of(2, 2), last, 1e-6);
    t_is(t_apply(l, t_noise(ch_shape_of(2, 0, 3), 1)), ch_shape_of(2, 2), (float[]){0, 0, 0, 0},
         0); /* a sequence of length 0 */
    ch_layer_unref(l);
    (void)state;
}

static void lstm_and_conv2d_use_the_same_variables_for_other_sizes(void **state)
{
    ch_layer *lstm = ch_layer_lstm(2, NULL), *conv = ch_layer_conv2d(2, 3, 3, NULL);

    ch_tensor_unref(t_apply(lstm, t_noise(ch_shape_of(2, 4, 3), 1)));
    ch_tensor_unref(t_apply(lstm, t_noise(ch_shape_of(5, 9, 3), 1)));
    t_refuses(lstm, t_noise(ch_shape_of(5, 9, 4), 1),
              "f32(?, 9, 4), but the layer was built for 3", "in lstm");
    ch_tensor_unref(t_apply(conv, t_noise(ch_shape_of(2, 5, 5, 3), 1)));
    ch_tensor_unref(t_apply(conv, t_noise(ch_shape_of(2, 8, 4, 3), 1)));
    t_refuses(conv, t_noise(ch_shape_of(2, 5, 5, 1), 1),
              "f32(?, 5, 5, 1), but the layer was built for 3", "in conv2d");
    t_refuses(conv, t_noise(ch_shape_of(2, 5, 5), 1), "want 4 axes", "in conv2d");
    ch_layer_unref(lstm);
    ch_layer_unref(conv);
    (void)state;
}

static void transformer_block_drops_in_training_only(void **state)
{
    ch_layer *l =
        ch_layer_transformer_block(2, &(ch_layer_transformer_options){.dropout = 0.5});
    ch_tensor *x = t_noise(ch_shape_of(2, 3, 4), 1), *a, *b;
    ch_tuple  *out = NULL;

    a = t_apply(l, ch_tensor_ref(x));
    b = t_apply(l, ch_tensor_ref(x));
    assert_memory_equal(ch_tensor_data(a), ch_tensor_data(b), 24 * sizeof(float));
    t_ok(t_try(NULL, &(t_call){l, true, 0}, 1, &x, &out));
    assert_memory_not_equal(ch_tensor_data(a), t_floats(out, 0, 0), 24 * sizeof(float));
    ch_tuple_unref(out);
    ch_tensor_unref(a);
    ch_tensor_unref(b);
    ch_layer_unref(l);
    (void)state;
}

static void transformer_block_can_have_rms_norms_and_no_biases(void **state)
{
    ch_layer *l = ch_layer_transformer_block(
        2, &(ch_layer_transformer_options){
               .rms_norm = true, .bias = CH_OFF, .hidden = 5, .activation = CH_SILU});
    ch_tensor     *x = t_noise(ch_shape_of(2, 3, 4), 1);
    ch_var *const *v;

    t_learns(NULL, l, 0.05, 1, &x);
    assert_int_equal(ch_layer_vars(l, &v), 8);
    assert_int_equal(ch_var_shape(ch_layer_var(l, "hidden/kernel")).dim[1], 5);
    ch_layer_unref(l);
    (void)state;
}

static void embedding_gradient_changes_its_rows_alone(void **state)
{
    const golden *g = golden_of("embedding");
    ch_layer     *l = made(g, NULL, CH_F32);
    float        *before = t_values(l, "table"), *after;
    ch_tensor    *in[3];
    ch_tuple     *batch;

    assert_string_equal(g->name, "embedding");
    inputs_of(g, false, in);
    batch = t_tuple(1, in);
    run_train(NULL, l, batch);
    after = t_values(l, "table");
    for (int r = 0; r < 7; r++) {
        bool used = r == 0 || r == 2 || r == 5 || r == 6, moved = false;

        for (int k = 3 * r; k < 3 * r + 3; k++)
            moved |= before[k] != after[k];
        assert_true(moved == used);
    }
    ch_tuple_unref(batch);
    free(before);
    free(after);
    ch_layer_unref(l);
    (void)state;
}

static void attention_mask_selects_the_visible_positions(void **state)
{
    const golden *g = golden_of("attention");
    ch_layer     *l = ch_layer_multi_head_attention(2, NULL);
    ch_tensor    *x = t_noise(g->in[0], 1), *mask = NULL;

    assert_string_equal(g->name, "attention"); /* which is causal */
    t_ok(ch_tensor_copy_of(CH_BOOL, ch_shape_of(2, 1, 3, 3),
                           (uint8_t[]){1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1},
                           &mask));
    ch_tensor_unref(t_apply(l, ch_tensor_ref(x)));
    for (int i = 0; g->var[i].path != NULL; i++)
        t_fill(l, g->var[i].path, (unsigned)g->var[i].seed);
    t_is(t_apply_n(l, 3, (ch_tensor *[]){ch_tensor_ref(x), x, mask}), g->out, g->y, 1e-5);
    ch_layer_unref(l);
    (void)state;
}

/* The bag has as many rows as the labels, so their values can be added. */
static void add_labels(ch_step *s, void *arg)
{
    ch_node *in[] = {ch_step_in(s, 0), ch_step_in(s, 1), ch_step_in(s, 2)};

    ch_step_out(s, NULL, ch_add(ch_layer_call_n(arg, s, 3, in, true), in[2]));
}

static void embedding_bag_has_the_rows_of_its_third_input(void **state)
{
    const golden *g = golden_of("bag");
    ch_layer     *l = made(g, NULL, CH_F32);
    ch_function  *f = t_function(add_labels, l);
    ch_tensor    *in[3] = {NULL, NULL, t_f32(ch_shape_of(3, 1), (float[]){1, 2, 3})};
    ch_tuple     *batch, *out = NULL;

    assert_string_equal(g->name, "bag");
    inputs_of(g, false, in);
    batch = t_tuple(3, in);
    t_ok(ch_strategy_run(NULL, f, batch, &out));
    for (int i = 0; i < 9; i++)
        t_near(t_floats(out, 0, 0)[i], bag_y[i] + 1 + i / 3, 1e-6);
    ch_tuple_unref(batch);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_layer_unref(l);
    (void)state;
}

/* Makes a net with a layer of each kind. Every allocation fails once, while it is made and
 * built. */
static ch_layer *everything(void)
{
    return ch_layer_sequential(
        "net", 10,
        (ch_layer *[]){
            ch_layer_embedding(5, 12, NULL), ch_layer_reshape(ch_shape_of(3, 4, 3)),
            ch_layer_conv2d(2, 2, 2, NULL), ch_layer_batch_norm(NULL),
            ch_layer_separable_conv2d(4, 2, 2, NULL), ch_layer_conv2d_transpose(4, 2, 2, NULL),
            ch_layer_reshape(ch_shape_of(-1, 4)),
            ch_layer_transformer_block(2, &(ch_layer_transformer_options){.dropout = 0.1}),
            ch_layer_lstm(2, &(ch_layer_recurrent_options){.return_sequence = true}),
            ch_layer_gru(2, NULL)});
}

static void model_of_all_layers_leaks_nothing_when_out_of_memory(void **state)
{
    ch_model_options o = {.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, 3)}}};
    ch_model        *m = NULL;
    int64_t          live;

    t_ok(ch_model_new(NULL, everything(), &o, &m)); /* objects that are made once exist now */
    ch_model_unref(m);
    live = ch__mem_live();
    for (int64_t k = 1;; k++) {
        ch_status rc;

        ch__mem_fail_at(k);
        rc = ch_model_new(NULL, everything(), &o, &m);
        ch__mem_fail_at(0);
        if (rc == CH_OK) {
            ch_model_unref(m);
            assert_true(k > 200);
            break;
        }
        assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
        assert_int_equal(ch__mem_live(), live);
    }
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void step_of_all_layers_allocates_nothing(void **state)
{
    t_call       c = {everything(), true, 1e-3};
    ch_function *f = t_function(train, &c);
    ch_tensor   *ids = ids_of(ch_shape_of(2, 3), (int32_t[]){0, 1, 4, 2, 2, 3});
    ch_tuple    *in = t_tuple(1, &ids);
    int64_t      before = 0;

    for (int i = 0; i < 20; i++) {
        if (i == 10)
            before = ch__mem_allocs();
        t_ok(ch_strategy_run(NULL, f, in, NULL));
    }
    assert_int_equal(ch__mem_allocs(), before);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_layer_unref(c.layer);
    (void)state;
}

/* ---- in a loop ---- */

static void iterate(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                    ch_node **next, ch_node **y)
{
    (void)x, (void)y;
    next[0] = ch_layer_call(arg, s, carry[0], false);
}

static ch_node *three_times(ch_step *s, int n, ch_node *const *in, bool training,
                            ch_layer *const *layer, void *arg)
{
    ch_node *last = NULL;

    (void)n, (void)training, (void)arg;
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = 3}, iterate, layer[0], in, NULL, &last,
            NULL);
    return last;
}

static void a_layer_can_be_called_in_a_scan(void **state)
{
    ch_init        twice = ch_init_identity(2);
    ch_layer      *l = ch_layer_dense(2, &(ch_layer_dense_options){.kernel_init = &twice});
    ch_tensor     *x = t_f32(ch_shape_of(1, 2), (float[]){1, -3});
    ch_var *const *v;

    l = ch_layer_function("loop", three_times, NULL, 1, &l);
    t_is(t_apply(l, ch_tensor_ref(x)), ch_shape_of(1, 2), (float[]){8, -24}, 1e-6);
    assert_int_equal(ch_layer_vars(l, &v), 2);
    assert_string_equal(ch_var_name(v[0]), "loop/dense/kernel");
    t_learns(NULL, l, 1e-5, 1, &x);
    ch_layer_unref(l);
    (void)state;
}

static void not_made(ch_layer *l, const char *word)
{
    assert_null(l);
    if (strstr(ch_error_message(), word) == NULL)
        fail_msg("\"%s\" has no \"%s\"", ch_error_message(), word);
}

/* The first call fails. A call of another size must then be a valid first call: of another
 * rank, of another width (sizes that are known only in the call), and after a part of the net
 * was built. */
static void layer_is_unchanged_when_its_first_call_fails(void **state)
{
    ch_shape flat = ch_shape_of(2, 4), images = ch_shape_of(2, 5, 6, 3),
             times = ch_shape_of(2, 3, 6);
    ch_layer *conv = ch_layer_conv2d(2, 2, 2, NULL), *lstm = ch_layer_lstm(2, NULL);
    ch_layer *norm = ch_layer_batch_norm(NULL), *heads = ch_layer_multi_head_attention(2, NULL);
    ch_layer *block = ch_layer_transformer_block(3, NULL);
    ch_layer *net = ch_layer_sequential(
        "net", 2, (ch_layer *[]){ch_layer_dense(3, NULL), ch_layer_conv2d(2, 2, 2, NULL)});
    ch_layer      *all[] = {conv, lstm, norm, heads, block, net};
    ch_var *const *v;

    t_refuses(conv, t_noise(flat, 1), "conv2d: input 0 is f32(", "want 4 axes");
    t_refuses(lstm, t_noise(flat, 1), "lstm: input 0 is f32(", "want 3 axes");
    t_refuses(norm, t_noise(ch_shape_of(2), 1), "batch_norm: input 0 is f32(",
              "want at least 2 axes");
    t_refuses(heads, t_noise(flat, 1), "attention: input 0", "want 3 axes");
    t_refuses(block, t_noise(ch_shape_of(2, 3, 4), 1), "a multiple of 3 heads", "key_width");
    t_refuses(net, t_noise(flat, 1), "conv2d: input 0", "in net/conv2d");
    for (int i = 0; i < 6; i++)
        assert_int_equal(ch_layer_vars(all[i], &v), 0);
    ch_tensor_unref(t_apply(conv, t_noise(images, 1)));
    ch_tensor_unref(t_apply(lstm, t_noise(times, 1)));
    ch_tensor_unref(t_apply(norm, t_noise(ch_shape_of(2, 5), 1)));
    ch_tensor_unref(t_apply(heads, t_noise(times, 1)));
    ch_tensor_unref(t_apply(block, t_noise(times, 1)));
    ch_tensor_unref(t_apply(net, t_noise(images, 1)));
    assert_string_equal(ch_var_name(ch_layer_var(net, "dense/kernel")), "net/dense/kernel");
    /* A layer that was called keeps its variables if a later call fails. */
    t_refuses(heads, t_noise(ch_shape_of(2, 3, 8), 1), "attention: the input is",
              "built for 6");
    t_refuses(net, t_noise(ch_shape_of(2, 5, 1, 3), 1), "conv2d", "in net/conv2d");
    assert_int_equal(ch_layer_vars(heads, &v), 8);
    assert_int_equal(ch_layer_vars(net, &v), 4);
    for (int i = 0; i < 6; i++)
        ch_layer_unref(all[i]);
    (void)state;
}

static void layers_reject_invalid_options_and_inputs(void **state)
{
    ch_layer *odd = ch_layer_multi_head_attention(3, NULL);
    ch_layer *groups = ch_layer_conv2d(4, 1, 1, &(ch_layer_conv_options){.groups = 2});
    ch_layer *nothing = ch_layer_conv2d_transpose(
        1, 2, 2, &(ch_layer_conv_options){.padding = CH_PAD_EXPLICIT, .pad = {1, 1, 1, 1}});

    not_made(ch_layer_conv2d(0, 3, 3, NULL), "0 filters");
    not_made(ch_layer_conv2d(1, 0, 3, NULL), "0 x 3");
    not_made(ch_layer_conv2d(1, 3, 3, &(ch_layer_conv_options){.stride = {-1, 1}}), "stride");
    not_made(ch_layer_depthwise_conv2d(3, 3, &(ch_layer_conv_options){.multiplier = -1}),
             "multiplier is -1");
    not_made(ch_layer_conv2d(2, 3, 3, &(ch_layer_conv_options){.multiplier = -1}),
             "conv2d: multiplier is -1");
    not_made(ch_layer_separable_conv2d(0, 3, 3, NULL), "separable_conv2d: 0 filters");
    not_made(ch_layer_separable_conv2d(1, 0, 3, NULL),
             "separable_conv2d: 1 filters with a window of 0 x 3");
    not_made(
        ch_layer_conv2d_transpose(1, 3, 3, &(ch_layer_conv_options){.padding = (ch_padding)9}),
        "padding is 9");
    not_made(
        ch_layer_conv2d(1, 3, 3, &(ch_layer_conv_options){.activation = (ch_activation)99}),
        "activation is 99");
    not_made(ch_layer_conv2d(
                 1, 3, 3,
                 &(ch_layer_conv_options){.padding = CH_PAD_EXPLICIT, .pad = {0, 0, -1, 0}}),
             "pad[2] is -1");
    not_made(ch_layer_conv2d(1, 3, 3, &(ch_layer_conv_options){.pad = {1, 1, 1, 1}}),
             "CH_PAD_EXPLICIT");
    not_made(ch_layer_conv2d_transpose(2, 3, 3, &(ch_layer_conv_options){.groups = 2}),
             "conv2d_transpose: option groups is not supported");
    not_made(ch_layer_depthwise_conv2d(3, 3, &(ch_layer_conv_options){.groups = 2}), "groups");
    not_made(ch_layer_separable_conv2d(2, 3, 3, &(ch_layer_conv_options){.groups = 2}),
             "separable_conv2d: option groups is not supported");
    not_made(ch_layer_conv2d(2, 3, 3, &(ch_layer_conv_options){.multiplier = 2}), "multiplier");
    not_made(ch_layer_embedding(2, 3, &(ch_layer_embedding_options){.weighted = true}),
             "embedding_bag");
    not_made(ch_layer_batch_norm(&(ch_layer_batch_norm_options){.momentum = 1}), "momentum 1");
    not_made(ch_layer_layer_norm(-1), "epsilon is -1");
    not_made(ch_layer_rms_norm(NAN), "epsilon");
    not_made(ch_layer_embedding(0, 3, NULL), "0 ids");
    not_made(ch_layer_embedding_bag(3, 3, (ch_combiner)7, NULL), "combiner is 7");
    not_made(ch_layer_multi_head_attention(0, NULL), "0 heads");
    not_made(ch_layer_multi_head_attention(1, &(ch_layer_multi_head_options){.dropout = 1}),
             "dropout is 1");
    not_made(ch_layer_transformer_block(0, NULL), "0 heads");
    not_made(ch_layer_transformer_block(1, &(ch_layer_transformer_options){.hidden = -1}),
             "-1");
    not_made(ch_layer_lstm(0, NULL), "lstm: 0 units");
    not_made(ch_layer_gru(-1, NULL), "gru: -1 units");
    t_refuses(odd, t_noise(ch_shape_of(2, 3, 4), 1), "4 is not a multiple of 3 heads",
              "in attention");
    t_refuses(groups, t_noise(ch_shape_of(2, 3, 3, 3), 1), "3 channels to 4 filters",
              "2 groups");
    t_refuses(nothing, t_noise(ch_shape_of(2, 1, 1, 3), 1), "axis 1 (size 1) has no size left",
              "in conv2d_transpose");
    ch_layer_unref(nothing);
    ch_layer_unref(odd);
    ch_layer_unref(groups);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_agree_with_pytorch_in_f32),
        cmocka_unit_test(layers_agree_with_pytorch_in_16_bits),
        cmocka_unit_test(layers_agree_with_pytorch_in_f64),
        cmocka_unit_test(layers_accept_inputs_without_rows),
        cmocka_unit_test(layers_on_two_replicas_take_the_step_of_the_whole_batch),
        cmocka_unit_test(batch_norm_moves_its_statistics_in_training_only),
        cmocka_unit_test(batch_norm_weighs_moving_statistics_by_rows),
        cmocka_unit_test(batch_norm_keeps_moving_statistics_when_there_are_no_rows),
        cmocka_unit_test(synchronized_batch_norm_uses_the_statistics_of_all_rows),
        cmocka_unit_test(batch_norm_counts_elements_with_rows_on_any_axis),
        cmocka_unit_test(synchronized_batch_norm_gradients_cross_replicas),
        cmocka_unit_test(batch_norm_statistics_are_f32_when_variables_are_16_bits),
        cmocka_unit_test(batch_norm_can_do_without_gamma_and_beta),
        cmocka_unit_test(lstm_forget_bias_is_initially_1),
        cmocka_unit_test(lstm_last_state_is_the_end_of_the_sequence),
        cmocka_unit_test(lstm_and_conv2d_use_the_same_variables_for_other_sizes),
        cmocka_unit_test(transformer_block_drops_in_training_only),
        cmocka_unit_test(transformer_block_can_have_rms_norms_and_no_biases),
        cmocka_unit_test(embedding_gradient_changes_its_rows_alone),
        cmocka_unit_test(attention_mask_selects_the_visible_positions),
        cmocka_unit_test(embedding_bag_has_the_rows_of_its_third_input),
        cmocka_unit_test(model_of_all_layers_leaks_nothing_when_out_of_memory),
        cmocka_unit_test(step_of_all_layers_allocates_nothing),
        cmocka_unit_test(a_layer_can_be_called_in_a_scan),
        cmocka_unit_test(layer_is_unchanged_when_its_first_call_fails),
        cmocka_unit_test(layers_reject_invalid_options_and_inputs),
    };

    if (ch_devices_configure(&(ch_devices_options){.spec = "CPU=2"}) != CH_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
