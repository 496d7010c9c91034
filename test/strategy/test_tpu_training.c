/* test/strategy/test_tpu_training.c -- replicas of several TPU cores train as a single device does
 * (divided.h).
 *
 * Each model is trained for 100 steps on eight cores, as 1 replica of 8 cores, 2 of 4, 4 of 2 and
 * 8 of 1, with variables that rules split and with variables that options split, with and without
 * `spmd`. After each step the copies of the replicas are compared (COHORT_CHECK_COPIES).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define DIVIDED_STEPS 100

#include "divided.h"

#include "base/config.h"
#include "tpu.h"

/* Trains an example in way `how` under TPUStrategy, and compares it with the unsharded run. */
static void check(const result *want, const example *e, way how, int n_cores,
                  const ch_tpu_options *opt, result *out)
{
    train_under(t_tpu_with(T_TPUS / n_cores, n_cores, opt), e, how, false, out);
    if (how == DOUBLES)
        check_close(out, &want[how], want[how].n, 1e-10);
    else
        check_close(out, &want[how], want[how].n_weights, 1e-4);
}

/* Trains an example on replicas of 8, 4, 2 and 1 cores. */
static void check_every_size(const example *e, int n_rules, const ch_split_rule *rule)
{
    static result got, again;
    const result *want = train_unsharded(e, 1);

    for (int n_cores = 8, i = 0; n_cores > 0; n_cores /= 2, i++) {
        ch_tpu_options by_rules = {.spmd = i % 2 == 0, .n_rules = n_rules, .rule = rule};
        ch_tpu_options by_rows = {.spmd = i % 2 != 0, .split_rows = true, .split_bytes = 8};

        check(want, e, DOUBLES, n_cores, &by_rules, &got);
        check(want, e, DOUBLES, n_cores, &by_rows, &got);
        by_rows.spmd = !by_rows.spmd;
        check(want, e, FLOATS_SGD, n_cores, &by_rows, &got);
        by_rules.spmd = !by_rules.spmd;
        check(want, e, FLOATS_SGD, n_cores, &by_rules, &got);
        check(want, e, FLOATS_SGD, n_cores, &by_rules, &again);
        assert_memory_equal(&got, &again, sizeof(got));
    }
}

/* ---- two layers, and short batches ---- */

static ch_node *mlp_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_tanh(ch_add(ch_matmul(x, false, w[0], false), w[1]));
    return ch_loss_mse(ch_add(ch_matmul(x, false, w[2], false), w[3]), y);
}

static const example mlp = {.n_in = 12,
                            .n_out = 5,
                            .n_vars = 4,
                            .var = (const param[]){{"k1", {.rank = 2, .dim = {12, 30}}, {0}},
                                                   {"b1", {.rank = 1, .dim = {30}}, {0}},
                                                   {"k2", {.rank = 2, .dim = {30, 5}}, {0}},
                                                   {"b2", {.rank = 1, .dim = {5}}, {0}}},
                            .loss = mlp_loss,
                            .options = {.clip_global_norm = 0.1}};

static void mlp_trains_on_replicas_of_any_number_of_cores_as_on_one(void **state)
{
    static const ch_split_rule units[] = {
        {"k1", 2, {CH_OFF, 0}}, {"b1", 1, {0}}, {"k2", 2, {0, CH_OFF}}};

    (void)state;
    check_every_size(&mlp, 3, units);
}

/* ---- a GPT ---- */

enum { TIME = 5, WIDTH = 8, HEADS = 4, HIDDEN = 10, CHARS = 10 };

static ch_node *forward(ch_step *s, int n, ch_node *const *in, bool training,
                        ch_layer *const *layer, void *arg)
{
    ch_node *ids = ch_mul(ch_add(in[0], ch_number(s, 1)), ch_number(s, CHARS / 2));
    ch_node *x, *place = ch_layer_call(layer[1], s, ch_range_like(in[0], 1, CH_I32), training);

    (void)n, (void)arg;
    x = ch_add(ch_layer_call(layer[0], s, ch_cast(ch_floor(ids), CH_I32), training), place);
    for (int i = 2; i < 5; i++)
        x = ch_layer_call(layer[i], s, x, training);
    return x;
}

static ch_layer *gpt_of_characters(void)
{
    const ch_layer_transformer_options causal = {.hidden = HIDDEN, .causal = true};
    ch_layer                          *layer[] = {ch_layer_embedding(CHARS, WIDTH, NULL),
                                                  ch_layer_embedding(TIME, WIDTH, NULL),
                                                  ch_layer_transformer_block(HEADS, &causal), ch_layer_layer_norm(0),
                                                  ch_layer_dense(CHARS, NULL)};

    return ch_layer_function("gpt", forward, NULL, 5, layer);
}

/* The target of each character is a class from 0 to 9. */
static ch_node *gpt_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    ch_step *s = ch_node_step(y);

    (void)w;
    y = ch_mul(ch_add(y, ch_number(s, 1)), ch_number(s, CHARS / 2));
    return ch_loss_sparse_categorical(x, ch_cast(ch_floor(y), CH_I32));
}

static const example gpt = {.n_in = TIME,
                            .n_out = TIME,
                            .layer = gpt_of_characters,
                            .row = {.rank = 1, .dim = {TIME}},
                            .loss = gpt_loss,
                            .options = {.clip_global_norm = 0.5}};

static void gpt_trains_on_replicas_of_any_number_of_cores_as_on_one(void **state)
{
    static const ch_split_rule heads[] = {
        {"*output/kernel", 2, {0, CH_OFF}},      {"*output/bias", 1, {CH_OFF}},
        {"*attention/*/kernel", 2, {CH_OFF, 0}}, {"*attention/*/bias", 1, {0}},
        {"*hidden/kernel", 2, {CH_OFF, 0}},      {"*hidden/bias", 1, {0}},
        {"*embedding/table", 2, {CH_OFF, 0}},    {"*dense/kernel", 2, {CH_OFF, 0}}};

    (void)state;
    check_every_size(&gpt, 8, heads);
}

static int begin(void **state)
{
    (void)state;
    t_ok(ch__config_set("check_copies", "true"));
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=1,TPU=8", .threads = 1}));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_trains_on_replicas_of_any_number_of_cores_as_on_one),
        cmocka_unit_test(gpt_trains_on_replicas_of_any_number_of_cores_as_on_one),
    };

    return cmocka_run_group_tests(tests, begin, NULL);
}
