/* test/strategy/test_order.c -- the planner reorders calls, but the effects of a step are those
 * of the recorded order.
 *
 * Random steps read, compute, differentiate, check, and change variables in any order. Each
 * runs as planned, and again watched, so that no call is moved and no value overwritten. A step
 * that fails must change nothing. Replicas on threads and replicas in turns must give the same
 * bits. T_CASES is the number of cases.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/config.h"
#include "help.h"

enum { VARS = 5, SIDE = 3, MOST = 64, RUNS = 2, KINDS = 14 };

typedef struct job {
    ch_strategy *st;
    ch_var      *var[VARS];
    unsigned     seed, dice;
    bool         fails;
} job;

static int roll(job *j, int sides)
{
    j->dice = j->dice * 1664525u + 1013904223u;
    return (int)((j->dice >> 16) % (unsigned)sides);
}

/* Returns small whole numbers that depend on x. */
static ch_node *ids_of(ch_node *x)
{
    ch_node *column = ch_slice(x, 2, (int64_t[]){0, 0}, (int64_t[]){SIDE, 1});

    return ch_cast(ch_clip(ch_round(ch_reshape(column, ch_shape_of(SIDE))), 0, SIDE - 1),
                   CH_I32);
}

/* Returns the gradient of a product, with or without a lookup of rows. */
static ch_node *gradient_of(ch_node *x, ch_node *y, ch_node *w, bool looks_up)
{
    ch_node *z = ch_matmul(y, false, w, true);

    if (looks_up)
        z = ch_add(z, ch_gather(w, ids_of(x), 0));
    return ch_tanh(ch_gradient(ch_sum_all(ch_square(z)), w));
}

static void change(ch_step *s, int how, ch_var *v, ch_node *x, ch_node *y)
{
    if (how == 0)
        ch_var_assign(s, v, ch_tanh(x));
    else if (how == 1)
        ch_var_assign_sub(s, v, ch_tanh(x));
    else
        ch_var_scatter_add(s, v, ids_of(x), ch_tanh(y));
}

/* Records a random call with x, y and a variable. Returns its result; NULL: no result. */
static ch_node *make(ch_step *s, job *j, int kind, ch_node *x, ch_node *y)
{
    ch_var  *v = j->var[roll(j, VARS)];
    ch_node *quarter = ch_number(s, 0.25);

    switch (kind) {
    case 0:
        return ch_add(x, y);
    case 1:
        return ch_mul(quarter, ch_matmul(x, roll(j, 2), y, roll(j, 2)));
    case 2:
        return ch_tanh(ch_mul(x, y));
    case 3:
        return ch_transpose(x, 0, NULL);
    case 4:
        return ch_sub(x, ch_mul(quarter, ch_mean_all(ch_square(y))));
    case 5:
        return ch_reshape(ch_reshape(x, ch_shape_of(SIDE * SIDE)), ch_shape_of(SIDE, SIDE));
    case 6:
        return gradient_of(x, y, ch_var_read(s, v), roll(j, 2));
    case 7:
        ch_step_out(s, NULL, x);
        return NULL;
    case 8:
        ch_check(ch_less(ch_sum_all(x), ch_number(s, j->fails ? -1e9 : 1e30)), "by chance");
        return NULL;
    case 9:
    case 10:
    case 11:
        change(s, kind - 9, v, x, y);
        return NULL;
    default:
        return ch_var_read(s, v);
    }
}

static void step(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *made[MOST] = {ch_step_in(s, 0), ch_step_in(s, 1)}, *x;
    int      n = 2, calls;

    j->dice = j->seed;
    calls = 10 + roll(j, MOST - 12);
    for (int i = 0; i < calls; i++) {
        int a = roll(j, n), b = roll(j, n);

        x = make(s, j, roll(j, KINDS), made[a], made[b]);
        if (x != NULL)
            made[n++] = x;
    }
}

/* ---- planned and watched ---- */

static void see(const char *name, int replica, int n, ch_tensor *const *out, void *arg)
{
    (void)name;
    (void)replica;
    (void)n;
    (void)out;
    (void)arg;
}

typedef struct results {
    int   n;
    float x[(MOST * RUNS + VARS) * SIDE * SIDE];
} results;

static void put(results *r, const ch_tensor *t)
{
    memcpy(r->x + r->n, ch_tensor_data(t), SIDE * SIDE * sizeof(float));
    r->n += SIDE * SIDE;
}

static void set_vars(job *j)
{
    for (unsigned i = 0; i < VARS; i++) {
        ch_tensor *t = t_noise(ch_shape_of(SIDE, SIDE), i);

        t_ok(ch_var_set(j->var[i], t));
        ch_tensor_unref(t);
    }
}

static void put_vars(job *j, results *r)
{
    for (int i = 0; i < VARS; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(j->var[i], &t));
        put(r, t);
        ch_tensor_unref(t);
    }
}

/* Returns false if the step failed. */
static bool run(job *j, ch_tuple *in, bool watched, results *r)
{
    ch_function *f = t_function(step, j);
    ch_status    rc = CH_OK;

    r->n = 0;
    set_vars(j);
    ch_function_static_rows(f);
    if (watched)
        ch_function_watch(f, see, NULL);
    for (int i = 0; i < RUNS && rc == CH_OK; i++) {
        ch_tuple *out = NULL;

        rc = ch_strategy_run(j->st, f, in, &out);
        for (int k = 0; rc == CH_OK && k < ch_tuple_count(out); k++)
            put(r, ch_value_at(ch_tuple_at(out, k), 0));
        ch_tuple_unref(out);
    }
    put_vars(j, r);
    ch_function_unref(f);
    if (rc != CH_OK && strstr(ch_error_message(), "by chance") == NULL)
        fail_msg("seed %u: %s", j->seed, ch_error_message());
    return rc == CH_OK;
}

static void make_vars(job *j)
{
    for (unsigned i = 0; i < VARS; i++) {
        ch_tensor *t = t_noise(ch_shape_of(SIDE, SIDE), i);

        t_ok(ch_var_new(j->st,
                        &(ch_var_spec){.name = (const char[]){(char)('a' + i), 0},
                                       .initial = t,
                                       .aggregation = j->st != NULL ? CH_AGGREGATE_MEAN
                                                                    : CH_AGGREGATE_NONE},
                        &j->var[i]));
        ch_tensor_unref(t);
    }
}

/* As `run`, with replicas on threads, and again in turns. Both results must be equal. */
static bool run_both_ways(job *j, ch_tuple *in, results *r)
{
    static results in_turns;
    bool           runs;

    t_ok(ch__config_set("replicas", "turns"));
    runs = run(j, in, false, &in_turns);
    t_ok(ch__config_set("replicas", "threads"));
    if (run(j, in, false, r) != runs || r->n != in_turns.n ||
        memcmp(r->x, in_turns.x, (size_t)r->n * sizeof(r->x[0])) != 0)
        fail_msg("seed %u: in turns the results are others", j->seed);
    return runs;
}

static void random_steps(ch_strategy *st, int n)
{
    static results planned, watched;
    int            failed = 0;
    job            j = {.st = st};
    ch_tuple      *in = t_tuple(2, (ch_tensor *[]){t_noise(ch_shape_of(SIDE, SIDE), 8),
                                                   t_noise(ch_shape_of(SIDE, SIDE), 9)});

    make_vars(&j);
    for (int i = 0; i < n; i++) {
        j.seed = (unsigned)i * 2654435761u;
        j.fails = false;
        assert_true(run_both_ways(&j, in, &planned) && run(&j, in, true, &watched));
        assert_int_equal(planned.n, watched.n);
        for (int k = 0; k < planned.n; k++)
            if (!(fabsf(planned.x[k] - watched.x[k]) <= 1e-4f * (1 + fabsf(watched.x[k]))))
                fail_msg("seed %u: %g, watched %g", j.seed, planned.x[k], watched.x[k]);
        j.fails = true;
        if (run_both_ways(&j, in, &planned))
            continue;
        failed++;
        set_vars(&j);
        watched.n = 0;
        put_vars(&j, &watched);
        assert_memory_equal(planned.x, watched.x, VARS * SIDE * SIDE * sizeof(float));
    }
    assert_true(failed > n / 4);
    for (int i = 0; i < VARS; i++)
        ch_var_unref(j.var[i]);
    ch_tuple_unref(in);
    ch_strategy_unref(st);
}

static int cases(int usual)
{
    return getenv("T_CASES") != NULL ? atoi(getenv("T_CASES")) : usual;
}

static void random_steps_do_what_was_recorded(void **state)
{
    random_steps(NULL, cases(400));
    (void)state;
}

static void random_steps_of_mirrored_replicas_do_what_was_recorded(void **state)
{
    random_steps(t_mirrored(2), cases(100));
    (void)state;
}

static void random_steps_of_central_storage_do_what_was_recorded(void **state)
{
    random_steps(t_central(3), cases(200));
    (void)state;
}

/* A custom strategy that has some variables once and some for each replica. */
static ch_device *two[2];

static ch_device *const *mixed_devices(void *self)
{
    (void)self;
    return two;
}

static ch_status mixed_place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    (void)self;
    out->device[0] = two[0];
    out->device[1] = two[1];
    out->n_copies = spec->name[0] % 2 == 0 ? 1 : 2;
    return CH_OK;
}

static void mixed_close(void *self)
{
    (void)self;
}

static void random_steps_with_some_shared_variables_do_what_was_recorded(void **state)
{
    static const ch_strategy_ops ops = {"Mixed", mixed_devices, mixed_place, mixed_close};
    ch_strategy                 *st = NULL;

    t_ok(ch_device_find("GPU:0", &two[0]));
    t_ok(ch_device_find("GPU:1", &two[1]));
    t_ok(ch_strategy_new(&ops, NULL, &(ch_strategy_parts){.n_replicas = 2}, &st));
    random_steps(st, cases(200));
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_steps_do_what_was_recorded),
        cmocka_unit_test(random_steps_of_mirrored_replicas_do_what_was_recorded),
        cmocka_unit_test(random_steps_of_central_storage_do_what_was_recorded),
        cmocka_unit_test(random_steps_with_some_shared_variables_do_what_was_recorded),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
