/* test/train/test_memory.c -- training a model of layers allocates nothing after its first
 * steps.
 *
 * In f32 only code of the library runs, so the test counts every malloc of the process (unless
 * a sanitizer replaces malloc). In bf16, oneDNN multiplies on some CPUs and allocates a little
 * in every call; then the test counts only allocations of the library.
 *
 * The long form, 100,000 steps, is a row of bench/memory.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"

#include "../../bench/bench.h"
#include "base/mem.h"

/* Returns the number of allocations in the process so far, if they can be counted. */
static int64_t all_allocations(void)
{
#if TEST_COUNTS_MALLOC
    return bench_allocations();
#else
    return 0;
#endif
}

enum { IDS = 50, TIME = 4, CLASSES = 4, WARM = 10, STEPS = 100 };

typedef struct job {
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_metric    *loss, *accuracy, *confusion;
} job;

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *label = ch_step_in(s, 1);
    ch_node       *logits = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, label);
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, ch_loss_average(each, NULL), n, var);
    ch_metric_update(j->loss, s, NULL, each, NULL);
    ch_metric_update(j->accuracy, s, label, logits, NULL);
    ch_metric_update(j->confusion, s, label, logits, NULL);
}

/* Makes layers of many kinds, and an optimizer with many options. */
static void make_job(ch_strategy *st, ch_dtype dtype, job *j)
{
    ch_layer *layer[] = {
        ch_layer_embedding(IDS, 8, NULL),
        ch_layer_lstm(8, &(ch_layer_recurrent_options){.return_sequence = true}),
        ch_layer_transformer_block(2, &(ch_layer_transformer_options){.dropout = 0.1}),
        ch_layer_flatten(),
        ch_layer_batch_norm(&(ch_layer_batch_norm_options){.synchronized = true}),
        ch_layer_dropout(0.2),
        ch_layer_dense(CLASSES, NULL),
    };
    ch_schedule          rate = ch_schedule_cosine_restarts(1e-3, 100, 2, 0.5, 0.01);
    ch_optimizer_options opt = {.schedule = &rate,
                                .accumulate = 2,
                                .clip_global_norm = 1,
                                .average = 0.99,
                                .dynamic_loss_scale = true};

    t_ok(ch_model_new(st, ch_layer_sequential("net", 7, layer),
                      &(ch_model_options){.n_inputs = 1,
                                          .input = {{CH_I32, ch_shape_of(-1, TIME)}},
                                          .dtype = dtype},
                      &j->model));
    t_ok(ch_optimizer_adamw(1e-3, NULL, &opt, &j->optimizer));
    t_ok(ch_metric_new(st, ch_metric_mean(), &j->loss));
    t_ok(ch_metric_new(st, ch_metric_sparse_accuracy(), &j->accuracy));
    t_ok(ch_metric_new(st, ch_metric_confusion(CLASSES), &j->confusion));
}

/* Returns integers on the replica's own device, because a tensor on another device is copied in
 * every step. */
static ch_tensor *integers(int replica, ch_shape shape, int below)
{
    ch_device *device = NULL;
    ch_tensor *t = NULL;

    t_ok(ch_device_find(replica == 0 ? "CPU:0" : "CPU:1", &device));
    t_ok(ch_tensor_new_on(device, CH_I32, shape, &t));
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((int32_t *)ch_tensor_data_mut(t))[i] = (int32_t)(i * 7 % below);
    return t;
}

/* Replica r has 8 - 3 r rows. */
static ch_tuple *make_batch(int replicas)
{
    ch_tensor *id[2], *label[2];
    ch_value  *value[2] = {NULL};
    ch_tuple  *batch = NULL;

    for (int r = 0; r < replicas; r++) {
        id[r] = integers(r, ch_shape_of(8 - 3 * r, TIME), IDS);
        label[r] = integers(r, ch_shape_of(8 - 3 * r), CLASSES);
    }
    t_ok(ch_value_new(CH_PER_REPLICA, replicas, id, &value[0]));
    t_ok(ch_value_new(CH_PER_REPLICA, replicas, label, &value[1]));
    t_ok(ch_tuple_new(2, value, NULL, &batch));
    for (int r = 0; r < replicas; r++) {
        ch_tensor_unref(id[r]);
        ch_tensor_unref(label[r]);
    }
    ch_value_unref(value[0]);
    ch_value_unref(value[1]);
    return batch;
}

static void steps_of_many_layers_options_and_metrics_allocate_nothing(void **state)
{
    for (int k = 0; k < 4; k++) {
        int          replicas = 1 + k / 2;
        ch_strategy *st = NULL;
        job          j;
        ch_function *f;
        ch_tuple    *batch = make_batch(replicas);
        int64_t      allocs = 0, live = 0, anyones = 0;

        t_ok(ch_strategy_mirrored(
            &(ch_mirrored_options){.n_devices = replicas,
                                   .device = (const char *const[]){"CPU:0", "CPU:1"}},
            &st));
        make_job(st, k % 2 == 0 ? CH_F32 : CH_BF16, &j);
        f = t_function(train, &j);
        for (int i = 0; i < STEPS; i++) {
            if (i == WARM) {
                allocs = ch__mem_allocs();
                live = ch__mem_live();
                anyones = all_allocations();
            }
            t_ok(ch_strategy_run(st, f, batch, NULL));
        }
        if (k % 2 == 0)
            assert_int_equal(all_allocations() - anyones, 0);
        assert_int_equal(ch__mem_allocs() - allocs, 0);
        assert_int_equal(ch__mem_live() - live, 0);
        ch_function_unref(f);
        ch_tuple_unref(batch);
        ch_metric_unref(j.loss);
        ch_metric_unref(j.accuracy);
        ch_metric_unref(j.confusion);
        ch_optimizer_unref(j.optimizer);
        ch_model_unref(j.model);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* ---- gradients ---- */

enum { DEEP = 12, WIDE = 64 };

typedef struct deep {
    ch_model     *model;
    ch_optimizer *optimizer; /* NULL: the step updates the variables itself */
} deep;

static void train_deep(ch_step *s, void *arg)
{
    deep          *d = arg;
    ch_node       *y = ch_model_call(d->model, s, ch_step_in(s, 0), true);
    ch_node       *loss = ch_loss_average(ch_loss_mse(y, ch_step_in(s, 0)), NULL);
    ch_node       *by[2 * DEEP], *read[2 * DEEP];
    ch_var *const *var;
    int            n = ch_model_trainable(d->model, &var);

    if (d->optimizer != NULL) {
        ch_optimizer_minimize(d->optimizer, s, loss, n, var);
        return;
    }
    for (int i = 0; i < n; i++)
        read[i] = ch_var_read(s, var[i]);
    ch_gradients(loss, NULL, n, read, by);
    for (int i = 0; i < n; i++)
        ch_var_assign_sub(s, var[i], ch_mul(ch_number(s, 0.1), by[i]));
}

/* Each gradient is applied as soon as it is computed. Only options that need all gradients,
 * such as their common norm, keep all of them in memory. */
static void gradients_share_memory_unless_a_common_norm_is_needed(void **state)
{
    const double one = WIDE * WIDE * sizeof(float);

    for (int k = 0; k < 3; k++) {
        ch_optimizer_options opt = {.clip_global_norm = k == 2 ? 1 : 0};
        deep                 d = {0};
        ch_layer            *layer[DEEP];
        ch_tuple    *batch = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(2, WIDE), 1)});
        ch_function *f;
        double       bytes;

        for (int i = 0; i < DEEP; i++)
            layer[i] = ch_layer_dense(WIDE, &(ch_layer_dense_options){.activation = CH_TANH});
        t_ok(ch_model_new(NULL, ch_layer_sequential("deep", DEEP, layer), NULL, &d.model));
        if (k > 0)
            t_ok(ch_optimizer_adamw(1e-3, NULL, &opt, &d.optimizer));
        f = t_function(train_deep, &d);
        t_ok(ch_strategy_run(NULL, f, batch, NULL));
        bytes = t_arena_bytes(f);
        if (k < 2 ? bytes > 3 * one : bytes < DEEP * one)
            fail_msg("way %d: %.0f bytes, where a gradient takes %.0f", k, bytes, one);
        ch_function_unref(f);
        ch_tuple_unref(batch);
        ch_optimizer_unref(d.optimizer);
        ch_model_unref(d.model);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_many_layers_options_and_metrics_allocate_nothing),
        cmocka_unit_test(gradients_share_memory_unless_a_common_norm_is_needed),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2", .threads = 1}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
