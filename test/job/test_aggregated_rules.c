/* test/job/test_aggregated_rules.c -- optimizers on variables that have an aggregation.
 *
 * An aggregation defines how the values that replicas assign are combined. An optimizer sums
 * the gradients over the replicas and gives every copy the same new value, so the aggregation
 * must not change the training. Every rule trains a variable of every aggregation under every
 * strategy. The result must have the same bits as the training without an aggregation.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rows.h"
#include "rules.h"

enum { ROWS = 11, WIDTH = 3, STEPS = 2, IDS = 5 };

/* ---- strategies ---- */

static ch_strategy *one_device(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_one_device("CPU:0", &st));
    return st;
}

static ch_strategy *mirrored(void)
{
    return t_mirrored(2);
}

static ch_strategy *central_storage(void)
{
    return t_central(2);
}

static ch_strategy *servers(int devices, int shards)
{
    return t_cluster(
        &(ch_local_cluster_options){.ps = 2, .workers = 1, .devices = devices},
        &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(shards)}, NULL);
}

static ch_strategy *servers_one_device(void)
{
    return servers(1, 1);
}

static ch_strategy *servers_two_devices(void)
{
    return servers(2, 1);
}

static ch_strategy *shards_one_device(void)
{
    return servers(1, 3);
}

static ch_strategy *shards_two_devices(void)
{
    return servers(2, 3);
}

/* ---- training ---- */

typedef struct training {
    ch_var       *w;
    ch_optimizer *opt;
    bool          is_sparse;
} training;

/* Replicas have different gradients. */
static void train_step(ch_step *s, void *arg)
{
    const training *t = arg;
    ch_node        *now = ch_var_read(s, t->w);
    ch_node        *want = ch_cast(ch_step_replica_id(s), CH_F32);

    if (t->is_sparse)
        now = ch_gather(now, ch_step_in(s, 0), 0);
    want = ch_sub(ch_cast(now, CH_F32), want);
    ch_optimizer_minimize(t->opt, s, ch_mean_all(ch_square(want)), 1, (ch_var *[]){t->w});
}

/* Returns a batch in which some ids occur twice and some rows do not occur. */
static ch_tuple *batch(int step)
{
    const int64_t id[STEPS][IDS] = {{0, 10, 3, 3, 7}, {5, 1, 10, 0, 5}};
    ch_tensor    *in = t_ids(ch_shape_of(IDS), id[step]);

    return t_tuple(1, &in);
}

static ch_var *new_var(ch_strategy *st, ch_dtype dtype, ch_aggregation aggregation)
{
    ch_tensor *initial = t_noise(ch_shape_of(ROWS, WIDTH), 3);
    ch_var    *v = NULL;

    if (dtype != CH_F32) {
        ch_tensor_unref(initial);
        t_ok(ch_tensor_new(dtype, ch_shape_of(ROWS, WIDTH), &initial));
    }
    t_ok(ch_var_new(
        st, &(ch_var_spec){.name = "w", .initial = initial, .aggregation = aggregation}, &v));
    ch_tensor_unref(initial);
    return v;
}

/* Options that add further variables to the trained variable. */
static const struct {
    const char          *name;
    ch_dtype             dtype;
    ch_optimizer_options opt;
} options[] = {
    {"plain", CH_F32, {.name = NULL}},
    {"accumulate", CH_F32, {.accumulate = 2}},
    {"average", CH_F32, {.average = 0.9}},
    {"loss scale", CH_F32, {.loss_scale = 8, .dynamic_loss_scale = true}},
    {"bf16", CH_BF16, {.name = NULL}},
};

enum { N_OPTIONS = sizeof(options) / sizeof(options[0]) };

/* How a variable is trained; indices of `rules` and `options`. */
typedef struct lesson {
    int  rule, option;
    bool is_sparse;
} lesson;

/* Returns the value of the variable after STEPS steps. */
static ch_tensor *train(ch_strategy *st, const lesson *l, ch_aggregation aggregation)
{
    training     t = {.w = new_var(st, options[l->option].dtype, aggregation),
                      .is_sparse = l->is_sparse};
    ch_function *f = t_function(train_step, &t);
    ch_tensor   *is = NULL;

    t_ok(rules[l->rule].make(&options[l->option].opt, &t.opt));
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *in = batch(i);

        if (ch_strategy_run(st, f, in, NULL) != CH_OK)
            fail_msg("%s, %s, %s, aggregation %d: step %d: %s", rules[l->rule].name,
                     options[l->option].name, l->is_sparse ? "sparse" : "dense", aggregation, i,
                     ch_error_message());
        ch_tuple_unref(in);
    }
    t_ok(ch_var_get(t.w, &is));
    ch_function_unref(f);
    ch_optimizer_unref(t.opt);
    ch_var_unref(t.w);
    return is;
}

/* Returns the number of aggregations that change the result. */
static int count_differences(ch_strategy *st, const lesson *l)
{
    static const ch_aggregation all[] = {CH_AGGREGATE_SUM, CH_AGGREGATE_MEAN,
                                         CH_AGGREGATE_FIRST};
    ch_tensor                  *want = train(st, l, CH_AGGREGATE_NONE);
    int                         n_wrong = 0;

    for (int i = 0; i < 3; i++) {
        ch_tensor *is = train(st, l, all[i]);

        if (memcmp(ch_tensor_data(is), ch_tensor_data(want), ch_tensor_bytes(want)) != 0) {
            print_error("%s, %s, %s: aggregation %d changes the result\n", rules[l->rule].name,
                        options[l->option].name, l->is_sparse ? "sparse" : "dense",
                        (int)all[i]);
            n_wrong++;
        }
        ch_tensor_unref(is);
    }
    ch_tensor_unref(want);
    return n_wrong;
}

static void check_rules(ch_strategy *st)
{
    int n_wrong = 0;

    for (int r = 0; r < N_RULES; r++)
        for (int o = 0; o < N_OPTIONS; o++)
            for (int sparse = 0; sparse < 2; sparse++)
                n_wrong += count_differences(st, &(lesson){r, o, sparse});
    assert_int_equal(n_wrong, 0);
    ch_strategy_unref(st);
}

#define CHECK(strategy)                                                                        \
    static void rules_ignore_the_aggregation_of_a_variable_of_##strategy(void **state)         \
    {                                                                                          \
        (void)state;                                                                           \
        check_rules(strategy());                                                               \
    }

CHECK(one_device)
CHECK(mirrored)
CHECK(central_storage)
CHECK(servers_one_device)
CHECK(servers_two_devices)
CHECK(shards_one_device)
CHECK(shards_two_devices)

/* ---- a training whose result is known ---- */

static void follow_one(ch_step *s, void *arg)
{
    const training *t = arg;
    ch_node        *off = ch_sub(ch_var_read(s, t->w), ch_number(s, 1));

    ch_optimizer_minimize(t->opt, s, ch_square(off), 1, (ch_var *[]){t->w});
}

/* The gradient over two replicas is 4 (w - 1): at rate 0.1 a step moves w by 0.4 of its
 * distance to 1. */
static void sgd_sums_gradients_when_the_variable_has_an_aggregation(void **state)
{
    ch_strategy *(*const make[])(void) = {mirrored, central_storage, servers_two_devices};

    (void)state;
    for (int i = 0; i < 3; i++)
        for (int a = CH_AGGREGATE_NONE; a <= CH_AGGREGATE_FIRST; a++) {
            ch_strategy *st = make[i]();
            training     t = {0};
            ch_function *f = t_function(follow_one, &t);

            t_ok(ch_var_new(
                st,
                &(ch_var_spec){.name = "w", .dtype = CH_F32, .aggregation = (ch_aggregation)a},
                &t.w));
            t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &t.opt));
            for (int k = 0; k < 3; k++)
                t_ok(ch_strategy_run(st, f, NULL, NULL));
            assert_true(fabs(t_value_of(t.w) - (1 - 0.6 * 0.6 * 0.6)) < 1e-6);
            ch_function_unref(f);
            ch_optimizer_unref(t.opt);
            ch_var_unref(t.w);
            ch_strategy_unref(st);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_ignore_the_aggregation_of_a_variable_of_one_device),
        cmocka_unit_test(rules_ignore_the_aggregation_of_a_variable_of_mirrored),
        cmocka_unit_test(rules_ignore_the_aggregation_of_a_variable_of_central_storage),
        cmocka_unit_test(rules_ignore_the_aggregation_of_a_variable_of_servers_one_device),
        cmocka_unit_test(rules_ignore_the_aggregation_of_a_variable_of_servers_two_devices),
        cmocka_unit_test(rules_ignore_the_aggregation_of_a_variable_of_shards_one_device),
        cmocka_unit_test(rules_ignore_the_aggregation_of_a_variable_of_shards_two_devices),
        cmocka_unit_test(sgd_sums_gradients_when_the_variable_has_an_aggregation),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
