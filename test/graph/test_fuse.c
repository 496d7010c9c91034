/* test/graph/test_fuse.c -- fusion joins chains of elementwise calls and changes no result.
 *
 * The tests count the kernel calls of a program and the bytes of its arena, and check that
 * variables are still updated in place. Random graphs must give the same bits with and without
 * fusion.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"

#include "base/config.h"
#include "graph/function.h"

enum { ROWS = 4, COLUMNS = 6 };

static void set_fusion(bool on)
{
    assert_int_equal(ch__config_set("fuse", on ? "1" : "0"), CH_OK);
}

static ch_tuple *run(ch_function *f, int n, ch_tensor *const *in)
{
    ch_tuple *args = NULL, *out = NULL;

    t_ok(ch_tuple_of(n, in, &args));
    t_ok(ch_strategy_run(NULL, f, args, &out));
    ch_tuple_unref(args);
    return out;
}

/* Kernel calls of the last program, and copies that the planner had to add. */
static int calls(const ch_function *f)
{
    int n = 0;

    for (int i = 0; i < f->last_prepared->program[0]->n_instrs; i++)
        n += f->last_prepared->program[0]->instr[i].kernel != NULL;
    return n;
}

static int copies(const ch_function *f)
{
    return f->last_prepared->program[0]->n_instrs - calls(f);
}

static bool has_call(const ch_function *f, const char *op)
{
    for (int i = 0; i < f->last_prepared->program[0]->n_instrs; i++)
        if (f->last_prepared->program[0]->instr[i].node != NULL &&
            strcmp(f->last_prepared->program[0]->instr[i].node->op->name, op) == 0)
            return true;
    return false;
}

/* Runs a step on a matrix and counts the calls of its program. */
static ch_function *ran(ch_step_fn step, void *arg)
{
    ch_function *f = t_function(step, arg);
    ch_tensor   *x = t_noise(ch_shape_of(ROWS, COLUMNS), 1);

    ch_tuple_unref(run(f, 1, &x));
    ch_tensor_unref(x);
    return f;
}

/* ---- chains that are fused ---- */

static void chain(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_tanh(ch_add(ch_mul(x, x), ch_number(s, 1)));

    (void)arg;
    ch_step_out(s, "y", ch_sub(y, x));
}

static void fuse_makes_a_chain_one_call_without_memory(void **state)
{
    ch_function *f = ran(chain, NULL);

    assert_int_equal(calls(f), 1);
    assert_int_equal(f->last_prepared->program[0]->arena_bytes, 0);
    ch_function_unref(f);
    (void)state;
}

static void two_parts(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);
    ch_node *a = ch_exp(ch_neg(x)), *b = ch_sqrt(ch_abs(x)); /* both chains join in this sum */

    (void)arg;
    ch_step_out(s, "a", a);
    ch_step_out(s, "y", ch_add(a, b));
}

static void fuse_makes_chains_that_join_one_call_with_several_results(void **state)
{
    ch_function *f = ran(two_parts, NULL);

    assert_int_equal(calls(f), 1);
    assert_int_equal(copies(f), 0);
    ch_function_unref(f);
    (void)state;
}

static void around(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *a = ch_mul(x, x);
    ch_node *sum = ch_sum_all(a); /* between two parts of the chain: reads a */

    (void)arg;
    ch_step_out(s, "y", ch_neg(ch_mul(a, sum)));
}

static void fuse_does_not_fuse_around_a_call_outside_the_chain(void **state)
{
    ch_function *f = ran(around, NULL);

    assert_int_equal(calls(f), 3);
    ch_function_unref(f);
    (void)state;
}

static void thousand(ch_step *s, void *arg)
{
    ch_node *x = ch_sum_all(ch_step_in(s, 0)), *y = x;

    (void)arg;
    for (int i = 0; i < 1000; i++)
        y = ch_add(ch_mul(y, x), x);
    ch_step_out(s, "y", y);
}

static void fuse_makes_a_long_chain_a_few_calls(void **state)
{
    ch_function *f = ran(thousand, NULL);

    assert_true(calls(f) <= 1 + (2000 + CH_FUSED_STEPS - 1) / CH_FUSED_STEPS);
    ch_function_unref(f);
    (void)state;
}

static void spread(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);
    ch_node *d = ch_gradient(ch_sum_all(ch_square(x)), x);

    (void)arg;
    ch_step_out(s, "d", d);
}

/* The gradient of a sum broadcasts a scalar. In a chain, the broadcast costs nothing. */
static void fuse_adds_a_broadcast_to_the_chain_that_uses_it(void **state)
{
    ch_function *f = ran(spread, NULL);

    assert_false(has_call(f, "broadcast_to"));
    assert_true(calls(f) <= 1);
    ch_function_unref(f);
    (void)state;
}

/* ---- variables are overwritten in place ---- */

typedef struct momentum {
    ch_var *w, *m;
} momentum;

static void momentum_step(ch_step *s, void *arg)
{
    momentum *o = arg;
    ch_node  *g = ch_mul(ch_step_in(s, 0), ch_number(s, 0.5));
    ch_node  *m = ch_add(ch_mul(ch_var_read(s, o->m), ch_number(s, 0.9)), g);

    ch_var_assign(s, o->m, m);
    ch_var_assign_sub(s, o->w, ch_mul(m, ch_number(s, 0.1)));
}

static void fuse_makes_an_optimizer_update_one_call_in_place(void **state)
{
    momentum     o = {t_var(NULL, "w", t_noise(ch_shape_of(ROWS, COLUMNS), 2)),
                      t_var(NULL, "m", t_noise(ch_shape_of(ROWS, COLUMNS), 3))};
    ch_function *f = t_function(momentum_step, &o);
    ch_tensor   *x = t_noise(ch_shape_of(ROWS, COLUMNS), 1);

    ch_function_static_rows(f);
    ch_tuple_unref(run(f, 1, &x));
    assert_int_equal(calls(f), 1);
    assert_int_equal(copies(f), 0);
    assert_int_equal(f->last_prepared->program[0]->arena_bytes, 0);
    ch_tensor_unref(x);
    ch_function_unref(f);
    ch_var_unref(o.w);
    ch_var_unref(o.m);
    (void)state;
}

/* A lookup that can fail reads `twice`, and so does the update of w. If `twice` were fused with
 * the update, w could not be overwritten before the lookup has succeeded. */
static void waited_for(ch_step *s, void *arg)
{
    momentum *o = arg;
    ch_node  *twice = ch_add(ch_step_in(s, 0), ch_step_in(s, 0));

    ch_var_assign_add(s, o->w, twice);
    ch_step_out(
        s, "rows",
        ch_gather(twice,
                  ch_check_ids(ch_cast(ch_reshape(twice, ch_shape_of(-1)), CH_I64), 1 << 20),
                  0));
}

static void fuse_does_not_delay_a_value_that_other_calls_read(void **state)
{
    momentum     o = {t_var(NULL, "w", t_f32(ch_shape_of(2, 3), (float[]){1, 2, 3, 4, 5, 6})),
                      NULL};
    ch_function *f = t_function(waited_for, &o);
    ch_tensor   *x = t_f32(ch_shape_of(2, 3), (float[]){0, 0, 0, 0.5f, 0, 0.5f}), *w = NULL;

    ch_function_static_rows(f);
    ch_tuple_unref(run(f, 1, &x));
    assert_int_equal(copies(f), 0);
    t_ok(ch_var_get(o.w, &w));
    assert_memory_equal(ch_tensor_data(w), ((float[]){1, 2, 3, 5, 5, 7}), 6 * sizeof(float));
    ch_tensor_unref(w);
    ch_tensor_unref(x);
    ch_function_unref(f);
    ch_var_unref(o.w);
    (void)state;
}

/* ---- random graphs have the same bits ---- */

typedef struct random_graph {
    unsigned seed;
    ch_var  *var[2];
} random_graph;

static unsigned next(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

enum { NODES = 60 };

static ch_node *random_call(unsigned *seed, ch_step *s, ch_node *a, ch_node *b)
{
    switch (next(seed) % 16) {
    case 0:
        return ch_mul(a, b);
    case 1:
        return ch_sub(a, b);
    case 2:
        return ch_tanh(a);
    case 3:
        return ch_maximum(a, b);
    case 4:
        return ch_select(ch_less(a, b), a, ch_sin(b));
    case 5:
        return ch_clip(a, -0.5, 0.5);
    case 6:
        return ch_mean(a, 0, NULL, false); /* not elementwise */
    case 7:
        return ch_broadcast_to(ch_mean(b, 0, NULL, true), ch_shape_of(ROWS, COLUMNS));
    case 8:
        return ch_softmax(a, -1);
    case 9:
        return ch_cast(ch_cast(a, CH_BF16), CH_F32);
    case 10:
        return ch_cast(ch_mul(ch_cast(a, CH_F16), ch_cast(b, CH_F16)), CH_F32);
    case 11:
        return ch_mean(a, 1, (int[]){(int)(next(seed) % 2)}, true);
    case 12:
        return ch_mul(a, ch_number(s, 0.5));
    case 13:
        return ch_full_like(a, 0.25);
    default:
        return ch_add(a, b);
    }
}

/* Values of different shapes that all broadcast together. */
static void random_step(ch_step *s, void *arg)
{
    random_graph *r = arg;
    unsigned      seed = r->seed;
    ch_node      *x[NODES];
    int           n = 0;

    x[n++] = ch_step_in(s, 0);
    x[n++] = ch_var_read(s, r->var[0]);
    x[n++] = ch_var_read(s, r->var[1]);
    while (n < NODES) {
        ch_node *a = x[next(&seed) % (unsigned)n], *b = x[next(&seed) % (unsigned)n];
        ch_shape shape;

        if (n > 8 && next(&seed) % 2 == 0) /* mostly recent values, so that chains grow */
            a = x[n - 1 - (int)(next(&seed) % 4)];
        x[n] = random_call(&seed, s, a, b);
        shape = ch_node_shape(x[n]);
        if (shape.rank == 2 && shape.dim[0] == ROWS && shape.dim[1] == COLUMNS &&
            next(&seed) % 16 == 0)
            ch_var_assign(s, r->var[next(&seed) % 2], x[n]);
        if (next(&seed) % 6 == 0)
            ch_step_out(s, NULL, x[n]);
        n++;
    }
    ch_step_out(s, NULL, x[n - 1]);
}

/* Runs the graph twice. Returns the results of the second run and the variables after it. */
static int run_random(unsigned seed, bool fuse, ch_tensor **out, int *n_calls)
{
    random_graph r = {.seed = seed};
    ch_function *f = t_function(random_step, &r);
    ch_tensor   *x = t_noise(ch_shape_of(ROWS, COLUMNS), seed + 7);
    ch_tuple    *got;
    int          n;

    set_fusion(fuse);
    for (int i = 0; i < 2; i++)
        r.var[i] = t_var(NULL, "v", t_noise(ch_shape_of(ROWS, COLUMNS), seed + (unsigned)i));
    ch_function_static_rows(f);
    ch_tuple_unref(run(f, 1, &x));
    got = run(f, 1, &x);
    n = ch_tuple_count(got);
    for (int i = 0; i < n; i++)
        out[i] = ch_tensor_ref(ch_value_at(ch_tuple_at(got, i), 0));
    for (int i = 0; i < 2; i++) {
        t_ok(ch_var_get(r.var[i], &out[n++]));
        ch_var_unref(r.var[i]);
    }
    *n_calls = calls(f);
    ch_tuple_unref(got);
    ch_tensor_unref(x);
    ch_function_unref(f);
    set_fusion(true);
    return n;
}

static void fuse_keeps_the_bits_of_random_graphs(void **state)
{
    int fewer = 0;

    for (unsigned k = 0; k <= 300; k++) {
        /* With the last seed, the planner could put two new values where an old value was. */
        unsigned   seed = k < 300 ? k : 6871;
        ch_tensor *fused[NODES + 3], *plain[NODES + 3];
        int        n_fused, n_plain, n = run_random(seed, true, fused, &n_fused);

        assert_int_equal(run_random(seed, false, plain, &n_plain), n);
        fewer += n_fused < n_plain;
        for (int i = 0; i < n; i++) {
            if (ch_tensor_bytes(fused[i]) != ch_tensor_bytes(plain[i]) ||
                memcmp(ch_tensor_data(fused[i]), ch_tensor_data(plain[i]),
                       ch_tensor_bytes(plain[i])) != 0)
                fail_msg("graph %u: result %d of %d differs when fused", seed, i, n);
            ch_tensor_unref(fused[i]);
            ch_tensor_unref(plain[i]);
        }
    }
    assert_true(fewer > 250);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fuse_makes_a_chain_one_call_without_memory),
        cmocka_unit_test(fuse_makes_chains_that_join_one_call_with_several_results),
        cmocka_unit_test(fuse_does_not_fuse_around_a_call_outside_the_chain),
        cmocka_unit_test(fuse_makes_a_long_chain_a_few_calls),
        cmocka_unit_test(fuse_adds_a_broadcast_to_the_chain_that_uses_it),
        cmocka_unit_test(fuse_makes_an_optimizer_update_one_call_in_place),
        cmocka_unit_test(fuse_does_not_delay_a_value_that_other_calls_read),
        cmocka_unit_test(fuse_keeps_the_bits_of_random_graphs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
