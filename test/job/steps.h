/* test/job/steps.h -- steps of all kinds, for tests that run a step in parts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_JOB_STEPS_H
#define TEST_JOB_STEPS_H

#include "../strategy/help.h"

static inline void same_bits(const char *what, const ch_tensor *a, const ch_tensor *b)
{
    assert_int_equal(ch_tensor_dtype(a), ch_tensor_dtype(b));
    assert_true(ch_shape_equal(ch_tensor_shape(a), ch_tensor_shape(b)));
    if (memcmp(ch_tensor_data(a), ch_tensor_data(b),
               (size_t)ch_tensor_count(a) * ch_dtype_bytes(ch_tensor_dtype(a))) != 0)
        fail_msg("%s differs", what);
}

static inline ch_var *new_var(const char *name, ch_shape shape, unsigned seed)
{
    ch_tensor *t = t_noise(shape, seed);
    ch_var    *v = NULL;

    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = name, .initial = t}, &v));
    ch_tensor_unref(t);
    return v;
}

static inline ch_tuple *tuple_of(int n, ch_tensor **t)
{
    ch_tuple *in = NULL;

    t_ok(ch_tuple_of(n, t, &in));
    for (int i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
    return in;
}

typedef struct job {
    ch_var       *w, *b, *n, *table;
    ch_optimizer *optimizer;
    ch_model     *model;
} job;

static inline ch_node *loss_of(ch_step *s, job *j)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_step_in(s, 1);
    ch_node *out =
        ch_add(ch_matmul(x, false, ch_var_read(s, j->w), false), ch_var_read(s, j->b));

    return ch_div(ch_sum_all(ch_square(ch_sub(out, y))), ch_step_global_rows(s));
}

static inline void by_hand(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *loss = loss_of(s, j);

    ch_var_assign_sub(s, j->w,
                      ch_mul(ch_number(s, 0.1), ch_gradient(loss, ch_var_read(s, j->w))));
    ch_var_assign_sub(s, j->b,
                      ch_mul(ch_number(s, 0.1), ch_gradient(loss, ch_var_read(s, j->b))));
    ch_step_out(s, "loss", loss);
    ch_step_out(s, "n", ch_var_assign_add(s, j->n, ch_number(s, 1)));
}

static inline void by_optimizer(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *loss = loss_of(s, j);

    ch_optimizer_minimize(j->optimizer, s, loss, 2, (ch_var *[]){j->w, j->b});
    ch_step_out(s, "loss", loss);
}

static inline ch_tuple *rows_of(int n)
{
    return tuple_of(
        2, (ch_tensor *[]){t_noise(ch_shape_of(n, 4), 1), t_noise(ch_shape_of(n, 3), 2)});
}

static inline ch_tensor *ids_of(int n, int below)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(CH_I64, ch_shape_of(n), &t));
    for (int i = 0; i < n; i++)
        ((int64_t *)ch_tensor_data_mut(t))[i] = i * 7 % below;
    return t;
}

static inline void make_job(job *j)
{
    memset(j, 0, sizeof(*j));
    j->w = new_var("w", ch_shape_of(4, 3), 3);
    j->b = new_var("b", ch_shape_of(3), 4);
    j->n = new_var("n", ch_shape_scalar(), 5);
    j->table = new_var("table", ch_shape_of(20, 3), 6);
}

static inline void drop_job(job *j)
{
    ch_var_unref(j->w);
    ch_var_unref(j->b);
    ch_var_unref(j->n);
    ch_var_unref(j->table);
    ch_optimizer_unref(j->optimizer);
    ch_model_unref(j->model);
}

static inline void look_rows_up(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *ids = ch_step_in(s, 0), *y = ch_step_in(s, 1);
    ch_node *rows = ch_gather(ch_var_read(s, j->table), ids, 0);
    ch_node *out = ch_matmul(ch_tanh(rows), false, ch_var_read(s, j->w), true);
    ch_node *loss = ch_div(ch_sum_all(ch_square(ch_sub(out, y))), ch_step_global_rows(s));

    ch_optimizer_minimize(j->optimizer, s, loss, 2, (ch_var *[]){j->table, j->w});
    ch_step_out(s, "loss", loss);
}

/* Looks up rows, computes ids from them, and looks up the rows of those ids. */
static inline void look_up_twice(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *first =
        ch_gather(ch_var_read(s, j->table), ch_mod(ch_step_in(s, 0), ch_number(s, 5)), 0);
    ch_node *next = ch_cast(
        ch_floor(ch_mul(ch_abs(ch_sum(first, 1, (int[]){1}, false)), ch_number(s, 3))), CH_I64);
    next = ch_mod(next, ch_number(s, 20));
    ch_node *second = ch_gather(ch_var_read(s, j->table), next, 0);

    ch_var_scatter_add(s, j->table, ch_step_in(s, 0), second);
    ch_step_out(s, "next", next);
    ch_step_out(s, "table", ch_sum_all(ch_var_assign_add(s, j->w, ch_number(s, 1))));
    ch_step_out(s, "five", ch_number(s, 5));
    ch_step_out(s, "ids", ch_step_in(s, 0));
}

static inline void assign_all_ways(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *w = ch_var_read(s, j->w);

    ch_var_assign(s, j->b, ch_sum(w, 1, (int[]){0}, false)); /* sum of the old value */
    ch_var_assign_add(s, j->b, ch_var_read(s, j->n));
    ch_var_assign(s, j->n, ch_number(s, 7));
    ch_var_assign(s, j->w, ch_add(ch_mul(w, ch_number(s, 0.9)), ch_sum_all(ch_step_in(s, 0))));
    ch_var_assign_sub(s, j->w, ch_number(s, 0.5));
    ch_var_scatter_update(s, j->table, ch_step_in(s, 1), ch_step_in(s, 2));
    ch_step_out(s, "was", w);
    ch_step_out(s, "is", ch_var_read(s, j->w));
}

/* The new elements of a row of w depend on each other. */
static inline void assign_softmax(ch_step *s, void *arg)
{
    job *j = arg;

    ch_var_assign(s, j->w, ch_softmax(ch_var_read(s, j->w), -1));
    ch_step_out(s, "is", ch_var_read(s, j->w));
}

#endif
