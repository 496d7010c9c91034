/* test/ops/test_sparse.c -- gradients of lookups stay sparse until the variable is updated.
 *
 * A sparse gradient is a list of ids and rows. The tests check its form, the memory of an
 * update, which must not hold a second table, and scatters into variables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cohort/cohort.h>
#include <string.h>

#include "graph/function.h"
#include "graph/step.h"
#include "ops/ops.h"

enum { ROWS = 1000, WIDTH = 64 };

static ch_tensor *tensor_of(ch_dtype dtype, ch_shape shape, const void *data)
{
    ch_tensor *t = NULL;

    assert_int_equal(ch_tensor_copy_of(dtype, shape, data, &t), CH_OK);
    return t;
}

static ch_var *new_table(void)
{
    ch_tensor *zeros = NULL;
    ch_var    *v = NULL;

    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(ROWS, WIDTH), &zeros), CH_OK);
    assert_int_equal(ch_var_new(NULL, &(ch_var_spec){.name = "table", .initial = zeros}, &v),
                     CH_OK);
    ch_tensor_unref(zeros);
    return v;
}

/* Runs a step with these ids as its inputs. */
static ch_status run(ch_function *f, int n, const int64_t *a, int m, const int64_t *b,
                     ch_tuple **out)
{
    ch_tensor *t[2] = {tensor_of(CH_I64, ch_shape_of(n), a),
                       tensor_of(CH_I64, ch_shape_of(m), b)};
    ch_tuple  *in = NULL;
    ch_status  rc;

    assert_int_equal(ch_tuple_of(2, t, &in), CH_OK);
    rc = ch_strategy_run(NULL, f, in, out);
    ch_tuple_unref(in);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return rc;
}

typedef struct seen {
    ch_var *v;
    bool    sparse, joined, dense;
} seen;

static void assert_untouched(ch_var *v)
{
    ch_tensor   *now = NULL;
    const float *row;

    assert_int_equal(ch_var_get(v, &now), CH_OK);
    row = ch_tensor_data(now);
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(row[i] == 0);
    ch_tensor_unref(now);
}

/* ---- the form of a gradient ---- */

static void look(ch_step *s, void *arg)
{
    seen    *x = arg;
    ch_node *table = ch_var_read(s, x->v);
    ch_node *a = ch_gather(table, ch_step_in(s, 0), 0),
            *b = ch_gather(table, ch_step_in(s, 1), 0);
    ch_node *both = ch_concat(2, (ch_node *[]){a, b}, 0), *d;

    x->sparse = ch__is_sparse(ch_gradient(a, table)) &&
                !ch__is_sparse(ch_segment_sum(a, ch_step_in(s, 0), ROWS));
    d = ch_gradient(both, table);
    x->joined = ch__is_sparse(d);
    ch_step_out(s, "ids", x->joined ? d->in[0] : NULL);
    ch_step_out(s, "d", d);
    d = ch_gradient(ch_add(ch_sum_all(both), ch_sum_all(table)), table);
    x->dense = d != NULL && strcmp(d->head->op->name, "scatter_add") == 0; /* in place */
    ch_step_out(s, "all", d);
}

static int n_notes;

static void count_notes(const ch_log_record *r, void *arg)
{
    (void)arg;
    n_notes += strcmp(r->code, "sparse-gradient-densified") == 0;
}

static void a_lookups_gradient_is_sparse_until_it_meets_a_dense_one(void **state)
{
    static const int64_t a[] = {3, 999, 3}, b[] = {0, 3};
    seen                 x = {.v = new_table()};
    ch_function         *f = NULL;
    ch_tuple            *out = NULL;
    const float         *d, *all;

    (void)state;
    ch_log_set_sink(count_notes, NULL, CH_LOG_INFO);
    assert_int_equal(ch_function_new("look", look, &x, &f), CH_OK);
    assert_int_equal(run(f, 3, a, 2, b, &out), CH_OK);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_true(x.sparse && x.joined && x.dense);
    assert_int_equal(n_notes, 1);
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 0), 0)), 5);
    d = ch_tensor_data(ch_value_at(ch_tuple_at(out, 1), 0));
    all = ch_tensor_data(ch_value_at(ch_tuple_at(out, 2), 0));
    for (int i = 0; i < ROWS; i++) {
        float want = i == 3 ? 3 : i == 0 || i == 999 ? 1 : 0;

        assert_true(d[i * WIDTH] == want && all[i * WIDTH + 63] == want + 1);
    }
    assert_untouched(x.v);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_var_unref(x.v);
}

/* ---- updates of the variable ---- */

static void descend(ch_step *s, void *arg)
{
    seen    *x = arg;
    ch_node *table = ch_var_read(s, x->v);
    ch_node *y = ch_embedding_bag(table, ch_step_in(s, 0), ch_step_in(s, 1), NULL);
    ch_node *d = ch_gradient(y, table);

    x->sparse = ch__is_sparse(d);
    ch_step_out(s, "ids", x->sparse ? d->in[0] : NULL);
    ch_var_assign_sub(s, x->v, d);
}

static void an_update_writes_the_rows_that_were_looked_up_and_no_others(void **state)
{
    static const int64_t ids[] = {7, 7, 5, 123456, -9}, splits[] = {0, 2, 2, 3};
    seen                 x = {.v = new_table()};
    ch_function         *f = NULL;
    ch_tuple            *out = NULL;
    ch_tensor           *now = NULL;
    const int64_t       *got;
    const float         *row;

    (void)state;
    assert_int_equal(ch_function_new("descend", descend, &x, &f), CH_OK);
    assert_int_equal(run(f, 5, ids, 4, splits, &out), CH_OK);
    assert_true(x.sparse);
    assert_true(f->last_prepared->program[0]->arena_bytes <
                ROWS * WIDTH); /* no memory for a second table */
    got = ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0));
    for (int i = 0; i < 5; i++) /* ids behind the last split denote no row */
        assert_int_equal(got[i], i < 3 ? ids[i] : -1);
    assert_int_equal(ch_var_get(x.v, &now), CH_OK);
    row = ch_tensor_data(now);
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(row[i] == (i / WIDTH == 7 ? -2 : i / WIDTH == 5 ? -1 : 0));
    ch_tensor_unref(now);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_var_unref(x.v);
}

/* ---- scatters ---- */

static void scatter(ch_step *s, void *arg)
{
    seen    *x = arg;
    ch_node *ids = ch_step_in(s, 0), *ones;

    ones = ch_broadcast_to(ch_reshape(ch_cast(ids, CH_F32), ch_shape_of(-1, 1)),
                           ch_shape_of(-1, WIDTH));
    ones = ch_ones_like(ones);
    ch_var_scatter_add(s, x->v, ids, ones);
    ch_var_scatter_update(s, x->v, ch_step_in(s, 1),
                          ch_fill(s, CH_F32, ch_shape_of(1, WIDTH), 8));
}

static void scatters_change_a_variable_in_place_or_not_at_all(void **state)
{
    static const int64_t good[] = {1, 2, 1}, bad[] = {1, 2, ROWS}, put[] = {2};
    seen                 x = {.v = new_table()};
    ch_function         *f = NULL;
    ch_tensor           *now = NULL;
    const float         *row;

    (void)state;
    assert_int_equal(ch_function_new("scatter", scatter, &x, &f), CH_OK);
    ch_function_static_rows(f);
    assert_int_equal(run(f, 3, bad, 1, put, NULL), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "id 1000 at position 2 is not in [0, 1000)"));
    assert_untouched(x.v);
    assert_int_equal(run(f, 3, good, 1, put, NULL), CH_OK);
    assert_true(f->last_prepared->program[0]->arena_bytes < ROWS * WIDTH);
    assert_int_equal(ch_var_get(x.v, &now), CH_OK);
    row = ch_tensor_data(now);
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(row[i] == (i / WIDTH == 1 ? 2 : i / WIDTH == 2 ? 8 : 0));
    ch_tensor_unref(now);
    ch_function_unref(f);
    ch_var_unref(x.v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lookups_gradient_is_sparse_until_it_meets_a_dense_one),
        cmocka_unit_test(an_update_writes_the_rows_that_were_looked_up_and_no_others),
        cmocka_unit_test(scatters_change_a_variable_in_place_or_not_at_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
