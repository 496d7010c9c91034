/* test/train/test_each.c -- each optimizer, layer and metric under each strategy, compared with
 * none.
 *
 * The same rows are trained under Default, OneDevice, Mirrored and CentralStorage. The
 * variables and metrics at the end must agree.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/config.h"
#include "layer_help.h"

enum { ROWS = 7, STEPS = 3, MOST = 4096, CLASSES = 3 };

/* ---- strategies ---- */

enum { DEFAULT, ONE_DEVICE, MIRRORED, CENTRAL, STRATEGIES };

static ch_strategy *strategy_of(int which)
{
    ch_strategy *st = NULL;

    switch (which) {
    case DEFAULT:
        return ch_strategy_ref(ch_strategy_current());
    case ONE_DEVICE:
        t_ok(ch_strategy_one_device("GPU:2", &st));
        return st;
    case MIRRORED:
        return t_mirrored(2);
    default:
        return t_central(3);
    }
}

/* ---- data ---- */

typedef enum data { VECTOR, IMAGE, SEQUENCE, IDS } data;

static ch_shape shape_of(data kind, int64_t rows)
{
    return kind == VECTOR ? ch_shape_of(rows, 6)
           : kind == IMAGE
               ? ch_shape_of(rows, 6, 6, 2)
               : (kind == SEQUENCE ? ch_shape_of(rows, 5, 4) : ch_shape_of(rows, 4));
}

/* Returns rows [from, to). */
static ch_tensor *rows_of(data kind, int from, int to)
{
    int64_t    width = ch_shape_count(shape_of(kind, 1));
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(kind == IDS ? CH_I32 : CH_F32, shape_of(kind, to - from), &t));
    for (int64_t i = 0; i < (to - from) * width; i++) {
        int64_t at = from * width + i;

        if (kind == IDS)
            ((int32_t *)ch_tensor_data_mut(t))[i] = (int32_t)(at * 5 % 11);
        else
            ((float *)ch_tensor_data_mut(t))[i] = sinf((float)(at * at % 97));
    }
    return t;
}

static ch_tensor *labels_of(int from, int to)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(CH_I32, ch_shape_of(to - from), &t));
    for (int i = from; i < to; i++)
        ((int32_t *)ch_tensor_data_mut(t))[i - from] = i * 2 % CLASSES;
    return t;
}

static ch_tuple *batch_of(data kind, int replicas)
{
    ch_tensor *x[4], *y[4];
    ch_value  *v[2] = {NULL};
    ch_tuple  *out = NULL;

    for (int r = 0; r < replicas; r++) {
        x[r] = rows_of(kind, ROWS * r / replicas, ROWS * (r + 1) / replicas);
        y[r] = labels_of(ROWS * r / replicas, ROWS * (r + 1) / replicas);
    }
    t_ok(ch_value_new(replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, replicas, x, &v[0]));
    t_ok(ch_value_new(replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, replicas, y, &v[1]));
    t_ok(ch_tuple_new(2, v, NULL, &out));
    for (int r = 0; r < replicas; r++) {
        ch_tensor_unref(x[r]);
        ch_tensor_unref(y[r]);
    }
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    return out;
}

/* ---- training ---- */

typedef struct job {
    ch_strategy  *st;
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_metric    *metric;
    int           truth; /* form of the truth: a row of `metrics` */
} job;

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *logits = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, ch_step_in(s, 1));
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, ch_loss_average(each, NULL), n, var);
}

static int vars_of(ch_model *m, float *out)
{
    ch_var *const *var;
    int            n = ch_model_vars(m, &var), count = 0;

    for (int i = 0; i < n; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(var[i], &t));
        if (ch_tensor_dtype(t) == CH_F32 && count + ch_tensor_count(t) <= MOST) {
            memcpy(out + count, ch_tensor_data(t), (size_t)ch_tensor_count(t) * sizeof(float));
            count += (int)ch_tensor_count(t);
        }
        ch_tensor_unref(t);
    }
    return count;
}

/* Trains a net of this layer and a dense layer for a few steps, and returns its variables. */
static int learn(int which, ch_layer *layer, data kind, ch_optimizer *o, float *out)
{
    ch_model_options shapes = {.n_inputs = 1,
                               .input = {{kind == IDS ? CH_I32 : CH_F32, shape_of(kind, -1)}}};
    job              j = {.st = strategy_of(which), .optimizer = o};
    ch_layer        *net = ch_layer_sequential(
               "net", 3, (ch_layer *[]){layer, ch_layer_flatten(), ch_layer_dense(CLASSES, NULL)});
    ch_tuple    *batch = batch_of(kind, ch_strategy_replicas(j.st));
    ch_function *f = t_function(train, &j);
    int          n;

    ch_layer_synchronize(net, true);
    t_ok(ch_model_new(j.st, net, &shapes, &j.model));
    for (int i = 0; i < STEPS; i++)
        t_ok(ch_strategy_run(j.st, f, batch, NULL));
    n = vars_of(j.model, out);
    ch_function_unref(f);
    ch_tuple_unref(batch);
    ch_optimizer_unref(o);
    ch_model_unref(j.model);
    ch_strategy_unref(j.st);
    return n;
}

static void same(const char *name, int which, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 2e-4f * (1 + fabsf(a[i]))))
            fail_msg("%s, strategy %d: number %d is %g, want %g", name, which, i, (double)b[i],
                     (double)a[i]);
}

/* ---- optimizers ---- */

enum { RULES = 18 };

/* Each rule is used with dense gradients and with the sparse gradients of an embedding. */
static ch_optimizer *rule_of(int i, const char **name)
{
    static const char *const names[RULES] = {
        "sgd",           "momentum",    "nesterov",        "adagrad",   "row-wise adagrad",
        "rmsprop",       "adam",        "amsgrad",         "adamw",     "adamax",
        "ftrl",          "lamb",        "accumulating",    "averaging", "clipping values",
        "clipping norm", "global norm", "scaling the loss"};
    ch_optimizer *o = NULL;

    *name = names[i];
    switch (i) {
    case 0:
        t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
        break;
    case 1:
    case 2:
        t_ok(ch_optimizer_sgd(
            0.1, &(ch_optimizer_sgd_options){.momentum = 0.9, .nesterov = i == 2}, NULL, &o));
        break;
    case 3:
    case 4:
        t_ok(ch_optimizer_adagrad(0.1, &(ch_optimizer_adagrad_options){.row_wise = i == 4},
                                  NULL, &o));
        break;
    case 5:
        t_ok(ch_optimizer_rmsprop(0.01, NULL, NULL, &o));
        break;
    case 6:
    case 7:
        t_ok(
            ch_optimizer_adam(0.01, &(ch_optimizer_adam_options){.amsgrad = i == 7}, NULL, &o));
        break;
    case 8:
        t_ok(ch_optimizer_adamw(0.01, NULL, NULL, &o));
        break;
    case 9:
        t_ok(ch_optimizer_adamax(0.01, NULL, NULL, &o));
        break;
    case 10:
        t_ok(ch_optimizer_ftrl(0.1, NULL, NULL, &o));
        break;
    case 11:
        t_ok(ch_optimizer_lamb(0.01, NULL, NULL, &o));
        break;
    default:
        t_ok(ch_optimizer_sgd(0.1, NULL,
                              &(ch_optimizer_options){.accumulate = i == 12 ? 2 : 0,
                                                      .average = i == 13 ? 0.9 : 0,
                                                      .clip_value = i == 14 ? 0.01 : 0,
                                                      .clip_norm = i == 15 ? 0.05 : 0,
                                                      .clip_global_norm = i == 16 ? 0.05 : 0,
                                                      .loss_scale = i == 17 ? 128 : 0},
                              &o));
    }
    return o;
}

static void optimizers_learn_alike_under_all_strategies(void **state)
{
    static float want[MOST], got[MOST];

    for (int i = 0; i < RULES; i++)
        for (int which = 0; which < STRATEGIES; which++) {
            const char   *name;
            ch_optimizer *o = rule_of(i, &name);
            ch_layer     *table = ch_layer_embedding(11, 3, NULL);
            int           n = learn(which, table, IDS, o, which == DEFAULT ? want : got);

            if (which != DEFAULT)
                same(name, which, want, got, n);
        }
    (void)state;
}

/* ---- layers ---- */

enum { LAYERS = 24 };

static ch_layer *layer_of(int i, data *kind)
{
    ch_layer_conv_options      conv = {.padding = CH_PAD_SAME, .activation = CH_RELU};
    ch_layer_dense_options     wide = {.activation = CH_GELU};
    ch_layer_recurrent_options all = {.return_sequence = true};

    *kind = i < 7 ? VECTOR : i < 16 ? IMAGE : SEQUENCE;
    switch (i) {
    case 0:
        return ch_layer_dense(5, &wide);
    case 1:
        return ch_layer_activation(CH_SILU);
    case 2:
        return ch_layer_batch_norm(NULL);
    case 3:
        return ch_layer_layer_norm(0);
    case 4:
        return ch_layer_rms_norm(0);
    case 5:
        return ch_layer_reshape(ch_shape_of(2, 3));
    case 6:
        *kind = IDS;
        return ch_layer_embedding(11, 3, NULL);
    case 7:
        return ch_layer_conv2d(3, 3, 3, &conv);
    case 8:
        return ch_layer_depthwise_conv2d(3, 3, &conv);
    case 9:
        return ch_layer_separable_conv2d(3, 3, 3, &conv);
    case 10:
        return ch_layer_conv2d_transpose(3, 3, 3, &conv);
    case 11:
        return ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID);
    case 12:
        return ch_layer_average_pool(2, 2, 0, 0, CH_PAD_VALID);
    case 13:
        return ch_layer_global_average_pool();
    case 14:
        return ch_layer_global_max_pool();
    case 15:
        return ch_layer_batch_norm(&(ch_layer_batch_norm_options){.momentum = 0.5});
    case 16:
        return ch_layer_multi_head_attention(2, NULL);
    case 17:
        return ch_layer_transformer_block(2, NULL);
    case 18:
        return ch_layer_transformer_block(
            1, &(ch_layer_transformer_options){.causal = true, .rms_norm = true});
    case 19:
        return ch_layer_lstm(3, NULL);
    case 20:
        return ch_layer_lstm(3, &all);
    case 21:
        return ch_layer_gru(3, NULL);
    case 22:
        return ch_layer_gru(3, &all);
    default:
        return ch_layer_flatten();
    }
}

static void layers_learn_alike_under_all_strategies(void **state)
{
    static float want[MOST], got[MOST];

    for (int i = 0; i < LAYERS; i++)
        for (int which = 0; which < STRATEGIES; which++) {
            ch_optimizer *o = NULL;
            data          kind;
            ch_layer     *layer = layer_of(i, &kind);
            char          name[64];
            int           n;

            snprintf(name, sizeof(name), "layer %d, %s", i, ch_layer_type(layer));
            t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
            n = learn(which, layer, kind, o, which == DEFAULT ? want : got);
            if (which != DEFAULT)
                same(name, which, want, got, n);
        }
    (void)state;
}

/* ---- bags: rows with any number of ids ---- */

enum { BAG_IDS = 9 };

/* Row i has i % 4 ids. Returns, for rows [from, to), the ids, the row splits or the labels. */
static ch_tensor *bag_part(int part, int from, int to)
{
    int32_t    id[4 * ROWS], split[ROWS + 1] = {0};
    int        n = 0;
    ch_tensor *t = NULL;

    for (int i = from; i < to; i++) {
        for (int k = 0; k < i % 4; k++)
            id[n++] = (i * 3 + k) % BAG_IDS;
        split[i - from + 1] = n;
    }
    if (part == 2)
        return labels_of(from, to);
    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(part == 0 ? n : to - from + 1),
                           part == 0 ? id : split, &t));
    return t;
}

static ch_tuple *bags_of(int replicas)
{
    ch_value *v[3] = {NULL};
    ch_tuple *out = NULL;

    for (int part = 0; part < 3; part++) {
        ch_tensor *t[4];

        for (int r = 0; r < replicas; r++)
            t[r] = bag_part(part, ROWS * r / replicas, ROWS * (r + 1) / replicas);
        t_ok(ch_value_new(replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, replicas, t, &v[part]));
        for (int r = 0; r < replicas; r++)
            ch_tensor_unref(t[r]);
    }
    t_ok(ch_tuple_new(3, v, NULL, &out));
    for (int part = 0; part < 3; part++)
        ch_value_unref(v[part]);
    return out;
}

static void train_bags(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *in[] = {ch_step_in(s, 0), ch_step_in(s, 1), ch_step_in(s, 2)};
    ch_node *each =
        ch_loss_sparse_categorical(ch_model_call_n(j->model, s, 3, in, true), in[2]);
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, ch_loss_average(each, NULL), n, var);
}

static int learn_bags(int which, ch_combiner combiner, float *out)
{
    ch_model_options shapes = {.n_inputs = 3,
                               .input = {{CH_I32, ch_shape_of(-1)},
                                         {CH_I32, ch_shape_of(-1)},
                                         {CH_I32, ch_shape_of(-1)}}};
    job              j = {.st = strategy_of(which)};
    ch_layer        *table = ch_layer_embedding_bag(BAG_IDS, CLASSES, combiner, NULL);
    ch_tuple        *batch = bags_of(ch_strategy_replicas(j.st));
    ch_function     *f = t_function(train_bags, &j);
    int              n;

    t_ok(ch_optimizer_adagrad(0.1, NULL, NULL, &j.optimizer));
    t_ok(ch_model_new(j.st, table, &shapes, &j.model));
    for (int i = 0; i < STEPS; i++)
        t_ok(ch_strategy_run(j.st, f, batch, NULL));
    n = vars_of(j.model, out);
    ch_function_unref(f);
    ch_tuple_unref(batch);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    ch_strategy_unref(j.st);
    return n;
}

static void embedding_bags_learn_alike_under_all_strategies(void **state)
{
    static float want[MOST], got[MOST];

    for (int which = 0; which < 2 * STRATEGIES; which++) {
        ch_combiner combiner = which < STRATEGIES ? CH_COMBINE_SUM : CH_COMBINE_MEAN;
        bool        is_first = which % STRATEGIES == DEFAULT;
        int         n = learn_bags(which % STRATEGIES, combiner, is_first ? want : got);

        assert_int_equal(n, BAG_IDS * CLASSES);
        if (!is_first)
            same("bags", which % STRATEGIES, want, got, n);
    }
    (void)state;
}

/* Random numbers differ between replicas, so the test checks only that training runs and
 * learns. */
static void dropout_layer_trains_under_all_strategies(void **state)
{
    static float first[MOST], got[MOST];

    for (int which = 0; which < STRATEGIES; which++) {
        ch_optimizer *o = NULL;
        int           n;

        t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
        n = learn(which, ch_layer_dropout(0.5), VECTOR, o, got);
        assert_true(n > 0 && isfinite(got[0]));
        t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
        assert_int_equal(learn(which, ch_layer_dropout(0.5), VECTOR, o, first), n);
        assert_memory_equal(first, got, (size_t)n * sizeof(*got));
    }
    (void)state;
}

/* ---- metrics ---- */

enum { METRICS = 19 };

static ch_metric *metric_of(int i, ch_strategy *st)
{
    const ch_metric_spec spec[METRICS] = {ch_metric_mean(),
                                          ch_metric_sum(),
                                          ch_metric_accuracy(),
                                          ch_metric_sparse_accuracy(),
                                          ch_metric_categorical_accuracy(),
                                          ch_metric_mse(),
                                          ch_metric_mae(),
                                          ch_metric_rmse(),
                                          ch_metric_sparse_cross_entropy(),
                                          ch_metric_categorical_cross_entropy(),
                                          ch_metric_binary_cross_entropy(),
                                          ch_metric_top_k(2),
                                          ch_metric_confusion(CLASSES),
                                          ch_metric_binary_accuracy(0.5),
                                          ch_metric_precision(0.5),
                                          ch_metric_recall(0.5),
                                          ch_metric_f1(0.5),
                                          ch_metric_auc(0),
                                          ch_metric_auc_exact(100)};
    ch_metric           *m = NULL;

    t_ok(ch_metric_new(st, spec[i], &m));
    return m;
}

/* Makes predictions from six numbers and truth from the label, in the form that the metric
 * takes. */
static void measure(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *x = ch_step_in(s, 0), *label = ch_step_in(s, 1);
    ch_node *logits = ch_slice(x, 2, (int64_t[]){0, 0}, (int64_t[]){-1, CLASSES});
    ch_node *one_hot = ch_one_hot(label, CLASSES, 1, 0, CH_F32);
    ch_node *guess = ch_sigmoid(ch_sum(x, 1, (int[]){1}, false));
    ch_node *yes = ch_cast(ch_greater(label, ch_number(s, 0)), CH_F32);

    switch (j->truth) {
    case 0:
    case 1:
        ch_metric_update(j->metric, s, NULL, guess, NULL);
        break;
    case 2:
        ch_metric_update(j->metric, s, label, ch_cast(ch_argmax(logits, 1), CH_I32), NULL);
        break;
    case 3:
    case 8:
    case 11:
    case 12:
        ch_metric_update(j->metric, s, label, logits, NULL);
        break;
    case 4:
    case 9:
        ch_metric_update(j->metric, s, one_hot, logits, NULL);
        break;
    default:
        ch_metric_update(j->metric, s, yes, guess, NULL);
    }
}

static double measured(int i, int which)
{
    job          j = {.st = strategy_of(which), .truth = i};
    ch_function *f = t_function(measure, &j);
    ch_tuple    *batch = batch_of(VECTOR, ch_strategy_replicas(j.st));
    double       x = 0;

    j.metric = metric_of(i, j.st);
    for (int k = 0; k < STEPS; k++)
        t_ok(ch_strategy_run(j.st, f, batch, NULL));
    t_ok(ch_metric_result(j.metric, &x));
    ch_tuple_unref(batch);
    ch_function_unref(f);
    ch_metric_unref(j.metric);
    ch_strategy_unref(j.st);
    return x;
}

static void metrics_are_alike_under_all_strategies(void **state)
{
    for (int i = 0; i < METRICS; i++) {
        double want = measured(i, DEFAULT);

        for (int which = 1; which < STRATEGIES; which++) {
            double got = measured(i, which);

            if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want))))
                fail_msg("metric %d, strategy %d: %g, want %g", i, which, got, want);
        }
    }
    (void)state;
}

static int set_up(void **state)
{
    t_ok(ch__config_set("check_copies", "true"));
    return t_four_gpus(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_learn_alike_under_all_strategies),
        cmocka_unit_test(layers_learn_alike_under_all_strategies),
        cmocka_unit_test(embedding_bags_learn_alike_under_all_strategies),
        cmocka_unit_test(dropout_layer_trains_under_all_strategies),
        cmocka_unit_test(metrics_are_alike_under_all_strategies),
    };

    return cmocka_run_group_tests_name("each", tests, set_up, NULL);
}
