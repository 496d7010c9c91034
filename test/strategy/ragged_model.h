/* test/strategy/ragged_model.h -- a training step over ragged values that gathers rows, for the
 * tests of programs with room.
 *
 * A batch has a word and a label for each value. The step looks up the row of each word,
 * computes a loss for each value and trains the table and a dense layer. The same step also
 * runs on the same numbers with exact sizes: the names of the inputs then do not say that they
 * are ragged, so that the library plans a program for each size.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_STRATEGY_RAGGED_MODEL_H
#define TEST_STRATEGY_RAGGED_MODEL_H

#include <math.h>

#include "graph/room.h"
#include "help.h"

enum { WORDS = 37, COLUMNS = 6, LABELS = 5, LISTS = 3, VARS = 5 };

/* A model with its optimizer and the function that trains it. */
typedef struct ragged_model {
    ch_var       *var[VARS]; /* table, weights, bias, gamma, beta */
    ch_optimizer *opt;
    ch_function  *train;
    bool          has_two_lists; /* the batches have a second list of words */
} ragged_model;

/* Returns the loss of each word of a list, summed up. */
static inline ch_node *list_loss(ch_step *s, const ragged_model *m, ch_node *words,
                                 ch_node *labels)
{
    ch_node *v[VARS], *x;

    for (int i = 0; i < VARS; i++)
        v[i] = ch_var_read(s, m->var[i]);
    x = ch_layer_norm(ch_gather(v[0], words, 0), v[3], v[4], 1e-5);
    x = ch_linear(x, v[1], v[2]);
    return ch_sum_all(ch_sparse_softmax_cross_entropy(x, labels));
}

static inline void train_words(ch_step *s, void *arg)
{
    const ragged_model *m = arg;
    ch_node            *words = ch_step_in(s, 0), *labels = ch_step_in(s, 2);
    ch_node            *table = ch_var_read(s, m->var[0]), *rows = ch_gather(table, words, 0);
    ch_node            *loss = list_loss(s, m, words, labels), *doubled;

    if (m->has_two_lists) {
        ch_node *more = ch_step_in(s, 4);

        labels = ch_cast(ch_gather(ch_range(s, CH_I32, 0, WORDS, 1), more, 0), CH_F32);
        labels = ch_cast(ch_floor(ch_div(labels, ch_number(s, 8))), CH_I32);
        loss = ch_add(loss, list_loss(s, m, more, labels));
    }
    doubled = ch_concat(2, (ch_node *[]){rows, rows}, 1);
    ch_step_out(s, "loss", loss);
    ch_step_out(s, "rows", rows);
    ch_step_out(s, "sums", ch_segment_sum(doubled, ch_step_in(s, 2), LABELS));
    ch_step_out(
        s, "bags",
        ch_embedding_bag(rows, ch_range_like(words, 0, CH_I64), ch_step_in(s, 1), NULL));
    ch_step_out(s, "mean", ch_div(ch_sum_all(rows), ch_rows(rows)));
    ch_optimizer_minimize(m->opt, s, loss, VARS, m->var);
}

static inline ragged_model new_ragged_model(ch_strategy *st, bool has_two_lists)
{
    ragged_model m = {.has_two_lists = has_two_lists};

    m.var[0] = t_var(st, "table", t_noise(ch_shape_of(WORDS, COLUMNS), 1));
    m.var[1] = t_var(st, "w", t_noise(ch_shape_of(COLUMNS, LABELS), 2));
    m.var[2] = t_var(st, "b", t_noise(ch_shape_of(LABELS), 3));
    m.var[3] = t_var(st, "gamma", t_noise(ch_shape_of(COLUMNS), 4));
    m.var[4] = t_var(st, "beta", t_noise(ch_shape_of(COLUMNS), 5));
    t_ok(ch_optimizer_adam(0.01, NULL, NULL, &m.opt));
    return m;
}

static inline void drop_ragged_model(ragged_model *m)
{
    ch_function_unref(m->train);
    ch_optimizer_unref(m->opt);
    for (int i = 0; i < VARS; i++)
        ch_var_unref(m->var[i]);
}

/* Returns a number in [0, limit) from a generator. */
static inline int64_t pick(uint64_t *state, int64_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(*state >> 33) % limit;
}

/* Returns a batch. Replica r has n[r][0] words with labels and n[r][1] words of the second
 * list. */
static inline ch_tuple *words_of(int n_replicas, int64_t (*n)[2], uint64_t seed, bool is_ragged)
{
    static const char *const ragged[] = {"u/values",     "u/row_splits", "y/values",
                                         "y/row_splits", "v/values",     "v/row_splits"};
    static const char *const exact[] = {"u", "us", "y", "ys", "v", "vs"};
    static const ch_dtype    dtype[] = {CH_I64, CH_I32, CH_I32};
    const int64_t            limit[] = {WORDS, LABELS, WORDS};
    ch_tensor               *t[2 * LISTS][4] = {{NULL}};
    ch_value                *v[2 * LISTS] = {NULL};
    ch_tuple                *in = NULL;

    for (int r = 0; r < n_replicas; r++)
        for (int k = 0; k < LISTS; k++) {
            int64_t count = n[r][k / 2];

            t_ok(ch_tensor_new(dtype[k], ch_shape_of(count), &t[2 * k][r]));
            for (int64_t i = 0; i < count; i++) {
                int64_t x = pick(&seed, limit[k]);

                if (dtype[k] == CH_I64)
                    ((int64_t *)ch_tensor_data_mut(t[2 * k][r]))[i] = x;
                else
                    ((int32_t *)ch_tensor_data_mut(t[2 * k][r]))[i] = (int32_t)x;
            }
            t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(3), (int64_t[]){0, count / 3, count},
                                   &t[2 * k + 1][r]));
        }
    for (int k = 0; k < 2 * LISTS; k++) {
        t_ok(ch_value_new(n_replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, n_replicas, t[k], &v[k]));
        for (int r = 0; r < n_replicas; r++)
            ch_tensor_unref(t[k][r]);
    }
    t_ok(ch_tuple_new(2 * LISTS, v, is_ragged ? ragged : exact, &in));
    for (int k = 0; k < 2 * LISTS; k++)
        ch_value_unref(v[k]);
    return in;
}

static inline void assert_near(const char *what, int step, const ch_tensor *got,
                               const ch_tensor *want)
{
    const float *a = ch_tensor_data(got), *b = ch_tensor_data(want);

    assert_true(ch_shape_equal(ch_tensor_shape(got), ch_tensor_shape(want)));
    for (int64_t i = 0; i < ch_tensor_count(want); i++)
        if (!(fabsf(a[i] - b[i]) <= 1e-5f * (1 + fabsf(b[i]))) && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("step %d: element %d of %s is %.9g, want %.9g", step, (int)i, what, a[i],
                     b[i]);
}

/* Trains two equal models for `steps` steps on batches of random lengths below `most`, one with
 * room and one with exact sizes, and compares all results and the variables. Returns the number
 * of programs of the model with room. */
static inline int train_both(ch_strategy *st[2], int n_replicas, bool has_two_lists, int steps,
                             int64_t most)
{
    ragged_model m[2];
    uint64_t     seed = 7;
    int          n_programs;

    for (int i = 0; i < 2; i++) {
        m[i] = new_ragged_model(st[i], has_two_lists);
        t_ok(ch_function_new(i == 0 ? "room" : "exact", train_words, &m[i], &m[i].train));
    }
    for (int step = 0; step < steps; step++) {
        int64_t   n[4][2];
        ch_tuple *out[2] = {NULL};

        for (int r = 0; r < n_replicas; r++)
            for (int k = 0; k < 2; k++)
                n[r][k] = k > 0 && !has_two_lists ? n[r][0]
                          : step == 0             ? 7 + 2 * k
                                                  : pick(&seed, most);
        for (int i = 0; i < 2; i++) {
            ch_tuple *in = words_of(n_replicas, n, (uint64_t)step, i == 0);

            t_ok(ch_strategy_run(st[i], m[i].train, in, &out[i]));
            ch_tuple_unref(in);
        }
        for (int k = 0; k < ch_tuple_count(out[1]); k++)
            for (int r = 0; r < ch_value_count(ch_tuple_at(out[1], k)); r++)
                assert_near(ch_tuple_name(out[1], k), step,
                            ch_value_at(ch_tuple_at(out[0], k), r),
                            ch_value_at(ch_tuple_at(out[1], k), r));
        ch_tuple_unref(out[0]);
        ch_tuple_unref(out[1]);
    }
    for (int k = 0; k < VARS; k++) {
        ch_tensor *t[2] = {NULL};

        for (int i = 0; i < 2; i++)
            t_ok(ch_var_get(m[i].var[k], &t[i]));
        assert_near(ch_var_name(m[0].var[k]), steps, t[0], t[1]);
        ch_tensor_unref(t[0]);
        ch_tensor_unref(t[1]);
    }
    n_programs = ch_function_programs(m[0].train);
    drop_ragged_model(&m[0]);
    drop_ragged_model(&m[1]);
    return n_programs;
}

#endif
