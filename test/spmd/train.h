/* test/spmd/train.h -- steps whose printed plans test_report.c compares with whole texts. The
 * texts have lines of this file, so a step that moves changes them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_SPMD_TRAIN_H
#define TEST_SPMD_TRAIN_H

#include "cohort/cohort.h"

/* Trains two dense layers. */
static void train(ch_step *s, void *arg)
{
    ch_var *const *v = arg;
    ch_node       *x = ch_step_in(s, 0), *target = ch_step_in(s, 1), *w[2], *grad[2];

    for (int i = 0; i < 2; i++)
        w[i] = ch_var_read(s, v[i]);
    ch_step_enter(s, "net");
    ch_step_enter(s, "dense");
    x = ch_relu(ch_matmul(x, false, w[0], false));
    ch_step_leave(s);
    ch_step_enter(s, "dense_1");
    x = ch_matmul(x, false, w[1], false);
    ch_step_leave(s);
    ch_step_leave(s);
    x = ch_mean_all(ch_square(ch_sub(x, target)));
    ch_gradients(x, NULL, 2, w, grad);
    for (int i = 0; i < 2; i++)
        ch_var_assign_sub(s, v[i], ch_mul(grad[i], ch_number(s, 0.1)));
    ch_step_out(s, "loss", x);
}

/* Has layouts of all origins. */
static void origins(ch_step *s, void *arg)
{
    ch_var *const *v = arg;
    ch_node       *table = ch_var_read(s, v[0]), *x = ch_step_in(s, 0), *y;

    x = ch_split_to_logical_devices(x, 2, (int[]){4, 1});
    y = ch_matmul(ch_tanh(x), false, ch_var_read(s, v[1]), false);
    ch_step_out(s, "y", ch_assign_to_logical_device(y, 2));
    y = ch_sort(table, 0, false);
    ch_check(ch_less(ch_sum_all(y), ch_number(s, 1e9)), "small");
    y = ch_replicate_to_logical_devices(ch_mul(y, x));
    ch_var_assign(s, v[0], ch_add(table, ch_mesh_split(y, 2, (int[]){CH_OFF, 1})));
    ch_step_out(s, NULL, ch_sum(ch_mul(y, ch_step_replica_count(s)), 1, (int[]){0}, false));
}

/* ---- bodies ---- */

static void iterate(ch_step *s, void *w, ch_node *const *h, ch_node *const *x, ch_node **next,
                    ch_node **y)
{
    (void)s;
    next[0] = ch_matmul(ch_tanh(ch_add(h[0], x[0])), false, w, false);
    y[0] = next[0];
}

static ch_node *is_small(ch_step *s, void *arg, ch_node *const *state)
{
    ch_node *volatile y = ch_less(ch_sum_all(state[0]), ch_number(s, 1e9)); /* no tail call */

    (void)arg;
    return y;
}

static void grow(ch_step *s, void *w, ch_node *const *state, ch_node **next)
{
    (void)s;
    next[0] = ch_matmul(state[0], false, w, false);
}

static void positive(ch_step *s, void *y, ch_node **out)
{
    (void)s;
    out[0] = ch_relu(y);
}

static void negative(ch_step *s, void *y, ch_node **out)
{
    (void)s;
    out[0] = ch_neg(y);
}

static void bodies(ch_step *s, void *arg)
{
    const ch_scan_spec spec = {.n_carry = 1, .n_x = 1, .n_y = 1};
    ch_var *const     *v = arg;
    ch_node           *x = ch_step_in(s, 0), *w = ch_var_read(s, v[0]), *h, *all, *y;

    h = ch_mesh_split(ch_fill(s, CH_F32, ch_shape_of(4, 8), 0), 2, (int[]){CH_OFF, 0});
    ch_scan(s, &spec, iterate, w, &h, &x, &h, &all);
    ch_while(s, 1, 5, is_small, grow, w, &h, &y);
    ch_cond(ch_less(ch_sum_all(y), ch_number(s, 0)), 1, positive, negative, y, &y);
    ch_step_out(s, "y", y);
    ch_step_out(s, "all", all);
}

#endif
