/* test/job/test_sharded_rules.c -- optimizers on sharded variables, compared with the same
 * variable unsharded.
 *
 * Every rule, with every option that uses the norm of the gradient or of the variable, must
 * train a sharded variable as the Default strategy trains the unsharded variable. The terms of
 * norms are added in another order, so values agree to a tolerance.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rows.h"
#include "rules.h"

enum { ROWS = 11, WIDTH = 6, STEPS = 4, IDS = 5 };

/* ---- options ---- */

static const struct {
    const char          *name;
    ch_optimizer_options opt;
} options[] = {
    {"plain", {.name = NULL}},
    {"clip_norm", {.clip_norm = 0.02}},
    {"clip_global_norm", {.clip_global_norm = 0.02}},
    {"accumulate", {.accumulate = 2}},
    {"accumulate, clip_norm", {.accumulate = 2, .clip_norm = 0.02}},
    {"accumulate, skip", {.accumulate = 2, .nonfinite = CH_NONFINITE_SKIP}},
    {"average, decay", {.average = 0.9, .weight_decay = 0.1}},
};

enum { N_OPTIONS = sizeof(options) / sizeof(options[0]) };

/* ---- training ---- */

typedef struct training {
    ch_var       *w;
    ch_optimizer *opt;
    bool          is_sparse;
} training;

static void train_step(ch_step *s, void *arg)
{
    const training *t = arg;
    ch_node        *now = ch_var_read(s, t->w), *want;

    if (t->is_sparse)
        now = ch_gather(now, ch_step_in(s, 1), 0);
    want = ch_sum(ch_step_in(s, 0), 1, (int[]){0}, false);
    ch_optimizer_minimize(t->opt, s, ch_mean_all(ch_square(ch_sub(now, want))), 1,
                          (ch_var *[]){t->w});
}

/* Returns a batch in which some ids occur twice and some rows do not occur. */
static ch_tuple *batch(int step)
{
    const int64_t id[STEPS][IDS] = {
        {0, 10, 3, 3, 7}, {5, 1, 10, 0, 5}, {2, 2, 2, 8, 9}, {4, 6, 10, 1, 0}};
    ch_tensor *in[2] = {t_noise(ch_shape_of(3, WIDTH), 7 + step),
                        t_ids(ch_shape_of(IDS), id[step])};

    return t_tuple(2, in);
}

/* Trains the variable for STEPS steps, and stores its value. */
static void train(ch_strategy *st, int rule, int option, bool is_sparse, float *out)
{
    training     t = {.w = t_var(st, "w", t_noise(ch_shape_of(ROWS, WIDTH), 3)),
                      .is_sparse = is_sparse};
    ch_function *f = t_function(train_step, &t);
    ch_tensor   *is = NULL;

    t_ok(rules[rule].make(&options[option].opt, &t.opt));
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *in = batch(i);

        if (ch_strategy_run(st, f, in, NULL) != CH_OK)
            fail_msg("%s, %s, %s: step %d: %s", rules[rule].name, options[option].name,
                     is_sparse ? "sparse" : "dense", i, ch_error_message());
        ch_tuple_unref(in);
    }
    t_ok(ch_var_get(t.w, &is));
    memcpy(out, ch_tensor_data(is), ROWS * WIDTH * sizeof(float));
    ch_tensor_unref(is);
    ch_function_unref(f);
    ch_optimizer_unref(t.opt);
    ch_var_unref(t.w);
}

/* Trains with every rule and every option; the variable has this many shards along an axis.
 * Returns the number of differences. */
static int count_differences(int shards, int axis, bool is_sparse)
{
    ch_partitioner p = ch_partitioner_fixed(shards);
    ch_strategy   *st;
    int            n_wrong = 0;

    p.axis = axis;
    st = t_cluster(&(ch_local_cluster_options){.ps = 3, .workers = 1},
                   &(ch_parameter_server_options){.partitioner = p}, NULL);
    for (int r = 0; r < N_RULES; r++)
        for (int o = 0; o < N_OPTIONS; o++) {
            float want[ROWS * WIDTH], is[ROWS * WIDTH];
            float worst = 0;

            train(NULL, r, o, is_sparse, want);
            train(st, r, o, is_sparse, is);
            for (int i = 0; i < ROWS * WIDTH; i++)
                worst = fmaxf(worst, fabsf(is[i] - want[i]) / (1 + fabsf(want[i])));
            if (!(worst <= 2e-6f)) {
                print_error("%s, %s, %s, %d shards along axis %d: differs by %g\n",
                            rules[r].name, options[o].name, is_sparse ? "sparse" : "dense",
                            shards, axis, (double)worst);
                n_wrong++;
            }
        }
    ch_strategy_unref(st);
    return n_wrong;
}

static void rules_train_shards_as_one_variable_when_gradients_are_dense(void **state)
{
    (void)state;
    for (int shards = 1; shards <= 4; shards++)
        assert_int_equal(count_differences(shards, 0, false), 0);
}

static void rules_train_shards_as_one_variable_when_gradients_are_sparse(void **state)
{
    (void)state;
    for (int shards = 1; shards <= 4; shards++)
        assert_int_equal(count_differences(shards, 0, true), 0);
}

static void rules_train_shards_of_columns_as_one_variable(void **state)
{
    (void)state;
    for (int shards = 2; shards <= 4; shards++) {
        assert_int_equal(count_differences(shards, 1, false), 0);
        assert_int_equal(count_differences(shards, 1, true), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_train_shards_as_one_variable_when_gradients_are_dense),
        cmocka_unit_test(rules_train_shards_as_one_variable_when_gradients_are_sparse),
        cmocka_unit_test(rules_train_shards_of_columns_as_one_variable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
