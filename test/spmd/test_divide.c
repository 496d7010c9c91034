/* test/spmd/test_divide.c -- divided steps: how many bytes the logical devices exchange.
 *
 * Each case runs a small step on replicas of four logical devices. The bytes of the plan must
 * equal the bytes that the kernels counted, and both must equal a number that was derived by
 * hand from the layouts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/cores.h"
#include "examples.h"

enum { CORES = 4 };

/* Returns numbers, or zeros of another dtype, which are valid ids. */
static ch_tensor *values(const source *from)
{
    ch_tensor *t = NULL;

    if (from->dtype == CH_F32)
        return t_noise(from->shape, 7);
    t_ok(ch_tensor_new(from->dtype, from->shape, &t));
    return t;
}

static void same_traffic(const ch_traffic *a, const ch_traffic *b)
{
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->bytes, b->bytes);
}

/* Checks that the kernels have counted what the plan says. */
static void same_transfers(const ch_layout_report *planned, const ch_layout_report *measured)
{
    same_traffic(&planned->all_reduce, &measured->all_reduce);
    same_traffic(&planned->reduce_scatter, &measured->reduce_scatter);
    same_traffic(&planned->all_gather, &measured->all_gather);
    same_traffic(&planned->all_to_all, &measured->all_to_all);
    same_traffic(&planned->halo, &measured->halo);
    same_traffic(&planned->other, &measured->other);
    same_traffic(&planned->host, &measured->host);
    same_traffic(&planned->cross_replica, &measured->cross_replica);
}

/* Runs a step. Returns its report, which must have these bytes between devices. */
static ch_layout_report moves(const divided_step *e, int64_t bytes)
{
    int              n = e->n_replicas > 0 ? e->n_replicas : 1;
    ch_strategy     *st = t_cores_strategy(n, CORES, e->mesh[0] > 0 ? e->mesh : NULL);
    recording        r = {.e = e};
    ch_tensor       *in[MOST_INPUTS];
    ch_function     *f = t_function(record_divided_step, &r);
    ch_layout_report planned, measured;
    ch_tuple        *given, *out = NULL;

    for (; r.n_in < MOST_INPUTS && e->in[r.n_in].shape.rank > 0; r.n_in++)
        in[r.n_in] = values(&e->in[r.n_in]);
    t_ok(new_variables(st, &r));
    given = t_tuple(r.n_in, in);
    ch_function_static_rows(f);
    t_ok(ch_strategy_run(st, f, given, &out));
    t_ok(ch_function_report_layouts(f, &planned, &measured));
    same_transfers(&planned, &measured);
    assert_int_equal(planned.devices, CORES);
    assert_int_equal(bytes_of(&planned), bytes);
    ch_tuple_unref(out);
    ch_tuple_unref(given);
    ch_function_unref(f);
    for (int i = 0; i < r.n_vars; i++)
        ch_var_unref(r.v[i]);
    ch_strategy_unref(st);
    return planned;
}

static bool was_run[DIVIDED_STEPS];

/* Runs a step of the table, which must move the bytes of the table. */
static ch_layout_report run_step(const char *name)
{
    int i = 0;

    while (strcmp(divided_steps[i].name, name) != 0)
        if (++i == DIVIDED_STEPS)
            fail_msg("no step is named %s", name);
    was_run[i] = true;
    return moves(&divided_steps[i], divided_steps[i].bytes);
}

/* ---- matrix products ---- */

/* TPU-4.4, TPU-4.10: two products, split by columns and by rows. */
static void product_split_by_units_needs_one_all_reduce(void **state)
{
    ch_layout_report r = run_step("A: relu(X W1) W2, by units");

    (void)state;
    assert_int_equal(r.all_reduce.count, 1);
    assert_int_equal(r.all_reduce.bytes, 3072);
    assert_int_equal(r.programs, 1);
    assert_int_equal(r.calls, 3);
    assert_int_equal(r.replicated_calls, 0);
    assert_true(r.work == 1.0 / CORES);
    r = run_step("A with 30 hidden units");
    assert_int_equal(r.all_reduce.count, 1);
    assert_int_equal(r.programs, 2);
    assert_true(r.work == 8.0 / 30);
}

/* TPU-4.4, TPU-4.12: gradients of the same products. */
static void gradients_of_split_products_move_only_the_sum_for_the_input(void **state)
{
    (void)state;
    (void)run_step("gradients of A for W1 and W2");
    assert_int_equal(run_step("gradient of A for X").all_reduce.count, 1);
}

static void gradients_of_tiles_are_summed_between_the_devices_of_equal_number(void **state)
{
    ch_layout_report r = run_step("gradients of A, between two replicas");

    (void)state;
    assert_int_equal(r.cross_replica.bytes, 8192);
}

/* TPU-4.4, TPU-4.12: products of rows that are split. */
static void rows_split_needs_an_all_reduce_for_each_gradient(void **state)
{
    ch_layout_report r = run_step("gradients of 784-512-10, by rows");

    (void)state;
    assert_int_equal(r.all_reduce.count, 2);
    assert_int_equal(r.all_reduce.bytes, 9756672);
}

/* TPU-4.10: a mesh of two axes. */
static void product_over_two_axes_of_a_mesh_reduces_in_pairs(void **state)
{
    (void)state;
    (void)run_step("A on mesh 2x2");
}

/* ---- a transformer block ---- */

/* TPU-4.2, TPU-4.10: the kernels are split; all other layouts follow from them. */
static void transformer_block_needs_four_all_reduces(void **state)
{
    ch_layout_report r = run_step("block (2,6,16), by heads and units");

    (void)state;
    assert_int_equal(r.all_reduce.count, 4);
    assert_int_equal(r.all_reduce.bytes, 18432);
    assert_int_equal(r.programs, 1);
    r = run_step("block (8,128,384), by heads and units");
    assert_int_equal(r.all_reduce.count, 4);
}

/* ---- attention, split by time ---- */

static ch_node *by_time(ch_node *x)
{
    return ch_split_to_logical_devices(x, 4, (int[]){1, 1, 4, 1});
}

static void record_causal_attention(ch_step *s, ch_node *const *x, ch_node *const *w,
                                    ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(s, "y",
                ch_attention(by_time(x[0]), by_time(x[1]), by_time(x[2]), NULL,
                             &(ch_attention_options){.causal = true}));
}

static void record_full_attention(ch_step *s, ch_node *const *x, ch_node *const *w,
                                  ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(s, "y", ch_attention(by_time(x[0]), by_time(x[1]), by_time(x[2]), NULL, NULL));
}

/* Device c has times 2 c and 2 c + 1. A time of the keys or values has 2 * 4 numbers. */
static void causal_attention_moves_keys_up_to_the_last_query_of_a_device(void **state)
{
    const source  heads = {CH_F32, ch_shape_of(1, 2, 8, 4)};
    const int64_t time = 2 * 4 * (int64_t)sizeof(float);
    divided_step  e = {.in = {heads, heads, heads}, .record = record_causal_attention};

    (void)state;
    (void)moves(&e, 2 * time * (0 + 2 + 4 + 6));
    e.record = record_full_attention;
    (void)moves(&e, 2 * time * 4 * 6);
}

/* ---- images ---- */

/* TPU-4.5, TPU-4.10: convolutions and the gradient of the filter. */
static void convolution_over_rows_of_the_image_moves_only_borders(void **state)
{
    ch_layout_report r = run_step("conv 3x3, by rows of the image");

    (void)state;
    assert_int_equal(r.halo.bytes, 2304);
    assert_int_equal(r.halo.count, 1);
    assert_int_equal(r.programs, 3);
    r = run_step("conv 3x3 and its filter gradient");
    assert_int_equal(r.halo.bytes, 2304);
    assert_int_equal(r.all_reduce.bytes, 5184);
    (void)run_step("conv 3x3, stride 2");
    (void)run_step("conv 3x3, rows and columns by 2x2");
}

static ch_pool_options pool_options; /* of record_pool_gradient */

static void record_pool_gradient(ch_step *s, ch_node *const *x, ch_node *const *w,
                                 ch_var *const *v)
{
    ch_node *image = by_image_rows(x[0]), *grad;

    (void)w;
    (void)v;
    ch_gradients(ch_square(ch_max_pool2d(image, &pool_options)), NULL, 1, &image, &grad);
    ch_step_out(s, "gradient", grad);
}

/* A row of the image has 1,024 bytes. Each device has 4 rows. The part of the gradient needs the
 * rows of all windows that contain one of them, and the results and gradients of these
 * windows. */
static void gradient_of_max_pooling_moves_the_rows_of_windows_of_two_devices(void **state)
{
    enum { ROW = 2 * 16 * 8 * 4 };
    static const struct {
        ch_pool_options o;
        int64_t         bytes;
    } cases[] = {
        {{.window = {2, 2}}, 0},
        {{.window = {4, 1}}, 0},
        {{.window = {2, 2}, .stride = {4, 4}}, 0},
        /* window o has rows 2 o to 2 o + 2: a row below for the pooling; two above and one below
         * for the gradient, and the gradient of the window above, a row of 8 columns */
        {{.window = {3, 3}, .stride = {2, 2}, .padding = CH_PAD_SAME},
         3 * ROW + 3 * (2 + 1) * ROW + 3 * ROW / 2},
        /* rows o and o + 1: a row below; one above and one below; the window above */
        {{.window = {2, 2}, .stride = {1, 1}, .padding = CH_PAD_SAME},
         3 * ROW + 3 * 2 * ROW + 3 * ROW},
        /* rows o - 1 to o + 1: one above and one below; two of each; windows above and below */
        {{.window = {3, 1}, .stride = {1, 1}, .padding = CH_PAD_SAME},
         6 * ROW + 12 * ROW + 6 * ROW},
        /* rows 0, 1 | 3, 4 | 6, 7 | 9, 10 | 12, 13, the first two on device 0: 14 columns of row
         * 4 for the pooling; row 4, and row 3 and the gradient of its window, of 5 columns */
        {{.window = {2, 2}, .stride = {3, 3}}, ROW * 14 / 16 + 2 * ROW + ROW * 5 / 16},
        /* rows -1, 0 | 1, 2 | .. | 15, 16: 9 windows, of which devices have 3, 2, 2, 2: rows 4,
         * 8 and 12 for the pooling. Device c has rows of windows 2 c to 2 c + 2: a row above
         * and one below; gradients of 9 columns of windows 2, 4 and 6 */
        {{.window = {2, 2}, .stride = {2, 2}, .padding = CH_PAD_EXPLICIT, .pad = {1, 1, 1, 1}},
         3 * ROW + 6 * ROW + 3 * ROW * 9 / 16},
    };
    divided_step e = {.in = {{CH_F32, ch_shape_of(2, 16, 16, 8)}},
                      .record = record_pool_gradient};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        print_message("case %d\n", (int)i);
        pool_options = cases[i].o;
        (void)moves(&e, cases[i].bytes);
    }
}

/* ---- normalisation, softmax, losses ---- */

/* TPU-4.10, TPU-4.11: norms, softmax and cross entropy. */
static void sums_over_a_split_axis_move_only_the_sums(void **state)
{
    (void)state;
    (void)run_step("batch norm, by rows of the image");
    (void)run_step("layer norm (8,8), by columns");
    (void)run_step("softmax (8,8), by columns");
    (void)run_step("cross entropy (2,6,100), by classes");
}

/* ---- partial sums ---- */

typedef ch_node *(*sums_fn)(ch_step *s, ch_node *p, ch_node *q);

static sums_fn made_of_sums; /* of record_sums */

/* p and q are partial sums of 8 numbers. */
static void record_sums(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(s, "y",
                made_of_sums(s, ch_sum(by_columns(x[0]), 1, (int[]){1}, false),
                             ch_sum(by_columns(x[1]), 1, (int[]){1}, false)));
}

static ch_node *half(ch_step *s, ch_node *x)
{
    return ch_mul(x, ch_number(s, 0.5));
}

static ch_node *add(ch_step *s, ch_node *p, ch_node *q)
{
    (void)s;
    return ch_add(p, q);
}

static ch_node *subtract(ch_step *s, ch_node *p, ch_node *q)
{
    (void)s;
    return ch_sub(p, q);
}

static ch_node *negate_and_add(ch_step *s, ch_node *p, ch_node *q)
{
    (void)s;
    return ch_add(ch_neg(p), q);
}

static ch_node *negate_both(ch_step *s, ch_node *p, ch_node *q)
{
    (void)s;
    return ch_sub(ch_neg(p), ch_neg(ch_neg(q)));
}

static ch_node *halve_one(ch_step *s, ch_node *p, ch_node *q)
{
    return ch_add(half(s, p), q);
}

static ch_node *halve_both(ch_step *s, ch_node *p, ch_node *q)
{
    return ch_add(half(s, p), ch_mul(ch_number(s, 0.5), q));
}

static ch_node *divide_one(ch_step *s, ch_node *p, ch_node *q)
{
    return ch_sub(p, ch_div(q, ch_number(s, 0.5)));
}

/* The other factor is an array, equal on all devices. */
static ch_node *multiply_by_elements(ch_step *s, ch_node *p, ch_node *q)
{
    ch_node *mask = ch_random_uniform(s, CH_F32, ch_shape_of(8), 1, 2, 3);

    return ch_sub(ch_mul(mask, p), ch_div(q, mask));
}

static ch_node *move_and_add(ch_step *s, ch_node *p, ch_node *q)
{
    (void)s;
    return ch_add(ch_transpose(ch_reshape(p, ch_shape_of(2, 4)), 2, (int[]){1, 0}),
                  ch_reshape(q, ch_shape_of(4, 2)));
}

static ch_node *add_three(ch_step *s, ch_node *p, ch_node *q)
{
    return ch_sub(ch_add(half(s, p), q), ch_div(p, ch_number(s, 3)));
}

/* An all-reduce of 8 numbers over 4 devices moves 192 bytes. */
static void linear_ops_keep_partial_sums(void **state)
{
    static const sums_fn with_one[] = {
        add,        subtract,   negate_and_add, negate_both, halve_one,
        halve_both, divide_one, move_and_add,   add_three,   multiply_by_elements};
    divided_step e = {.in = {{CH_F32, ch_shape_of(8, 8)}, {CH_F32, ch_shape_of(8, 8)}},
                      .record = record_sums};

    (void)state;
    for (size_t i = 0; i < sizeof(with_one) / sizeof(with_one[0]); i++) {
        print_message("case %d\n", (int)i);
        made_of_sums = with_one[i];
        assert_int_equal(moves(&e, 192).all_reduce.count, 1);
    }
}

static ch_node *use_twice(ch_step *s, ch_node *p, ch_node *q)
{
    (void)q;
    return ch_add(half(s, p), ch_tanh(p));
}

static ch_node *use_in_two_ways(ch_step *s, ch_node *p, ch_node *q)
{
    (void)q;
    return ch_mul(ch_tanh(ch_neg(p)), ch_tanh(half(s, p)));
}

static ch_node *use_both_twice(ch_step *s, ch_node *p, ch_node *q)
{
    return ch_mul(half(s, ch_add(p, q)), ch_mul(ch_tanh(p), ch_tanh(q)));
}

static ch_node *multiply(ch_step *s, ch_node *p, ch_node *q)
{
    (void)s;
    return ch_mul(p, q);
}

static ch_node *square(ch_step *s, ch_node *p, ch_node *q)
{
    (void)s;
    (void)q;
    return ch_mul(p, p);
}

/* A sum that other calls need complete is reduced once, before all of them. */
static void partial_sums_that_are_needed_complete_are_reduced_once(void **state)
{
    static const struct {
        sums_fn made;
        int     n_sums;
    } cases[] = {
        {use_twice, 1}, {use_in_two_ways, 1}, {use_both_twice, 2}, {multiply, 2}, {square, 1}};
    divided_step e = {.in = {{CH_F32, ch_shape_of(8, 8)}, {CH_F32, ch_shape_of(8, 8)}},
                      .record = record_sums};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        print_message("case %d\n", (int)i);
        made_of_sums = cases[i].made;
        assert_int_equal(moves(&e, 192 * (int64_t)cases[i].n_sums).all_reduce.count,
                         cases[i].n_sums);
    }
}

static ch_node *negate_and_split(ch_step *s, ch_node *p, ch_node *q)
{
    (void)s;
    return ch_split_to_logical_devices(ch_add(ch_neg(p), q), 1, (int[]){4});
}

/* A reduce-scatter of 8 numbers moves 96 bytes. */
static void linear_ops_keep_partial_sums_of_a_split_result(void **state)
{
    divided_step     e = {.in = {{CH_F32, ch_shape_of(8, 8)}, {CH_F32, ch_shape_of(8, 8)}},
                          .record = record_sums};
    ch_layout_report r;

    (void)state;
    made_of_sums = negate_and_split;
    r = moves(&e, 96);
    assert_int_equal(r.reduce_scatter.count, 1);
}

static ch_node *use_of_maxima(ch_step *s, ch_node *const *x)
{
    (void)s;
    return ch_add(ch_max(by_columns(x[0]), 1, (int[]){1}, false),
                  ch_max(by_columns(x[1]), 1, (int[]){1}, false));
}

static ch_node *use_of_minima(ch_step *s, ch_node *const *x)
{
    return half(s, ch_sub(ch_min(by_columns(x[0]), 1, (int[]){1}, false),
                          ch_min(by_columns(x[1]), 1, (int[]){1}, false)));
}

static ch_node *use_of_products(ch_step *s, ch_node *const *x)
{
    (void)s;
    return ch_neg(ch_add(ch_prod(by_columns(x[0]), 1, (int[]){1}, false),
                         ch_prod(by_columns(x[1]), 1, (int[]){1}, false)));
}

static ch_node *(*made_of_inputs)(ch_step *s, ch_node *const *x); /* of record_made */

static void record_made(ch_step *s, ch_node *const *x, ch_node *const *w, ch_var *const *v)
{
    (void)w;
    (void)v;
    ch_step_out(s, "y", made_of_inputs(s, x));
}

static void linear_ops_keep_no_partial_maxima_minima_and_products(void **state)
{
    ch_node *(*const cases[])(ch_step *, ch_node *const *) = {use_of_maxima, use_of_minima,
                                                              use_of_products};
    divided_step e = {.in = {{CH_F32, ch_shape_of(8, 8)}, {CH_F32, ch_shape_of(8, 8)}},
                      .record = record_made};

    (void)state;
    for (int i = 0; i < 3; i++) {
        made_of_inputs = cases[i];
        assert_int_equal(moves(&e, 2 * 192).all_reduce.count, 2);
    }
}

static ch_node *rows_of(ch_node *x)
{
    return ch_mesh_split(x, 2, (int[]){0, CH_OFF});
}

static ch_node *use_of_row_sum(ch_step *s, ch_node *const *x)
{
    (void)s;
    return ch_replicate_to_logical_devices(ch_sum(rows_of(x[0]), 1, (int[]){0}, false));
}

static ch_node *use_of_row_maximum(ch_step *s, ch_node *const *x)
{
    (void)s;
    return ch_replicate_to_logical_devices(ch_max(rows_of(x[0]), 1, (int[]){0}, false));
}

static ch_node *split_use_of_row_sum(ch_step *s, ch_node *const *x)
{
    (void)s;
    return ch_mesh_split(ch_sum(rows_of(x[0]), 1, (int[]){0}, false), 1, (int[]){0});
}

static ch_node *use_of_two_row_sums(ch_step *s, ch_node *const *x)
{
    return ch_replicate_to_logical_devices(
        ch_add(ch_neg(ch_sum(rows_of(x[0]), 1, (int[]){0}, false)),
               half(s, ch_sum(rows_of(x[1]), 1, (int[]){0}, false))));
}

/* Devices beyond the last row have no partial result of the 32 bytes of a sum of rows. With g
 * partial results, a device that has one reads g - 1, and the other devices copy the result. */
static void devices_without_rows_have_no_partial_result(void **state)
{
    static const struct {
        ch_node *(*made)(ch_step *, ch_node *const *);
        int64_t rows, bytes;
    } cases[] = {{use_of_row_sum, 4, (3 + 3) * 32},
                 {use_of_row_sum, 3, (2 + 3) * 32},
                 {use_of_row_maximum, 2, (1 + 3) * 32},
                 {use_of_row_sum, 1, 3 * 32},
                 {use_of_row_sum, 0, 0},
                 {use_of_two_row_sums, 3, (2 + 3) * 32},
                 {use_of_two_row_sums, 1, 3 * 32},
                 {split_use_of_row_sum, 5, 3 * 32},
                 /* the fourth device has no summand of its quarter */
                 {split_use_of_row_sum, 3, 2 * 24 + 3 * 8},
                 {split_use_of_row_sum, 1, 24}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const source x = {CH_F32, ch_shape_of(cases[i].rows, 8)};

        print_message("case %d\n", (int)i);
        made_of_inputs = cases[i].made;
        (void)moves(&(divided_step){.in = {x, x}, .record = record_made}, cases[i].bytes);
    }
}

/* Records the gradient of x, of which two products use a multiple. */
static void record_gradient_of_multiples(ch_step *s, ch_node *const *x, ch_node *const *w,
                                         ch_var *const *v)
{
    ch_node *a = ch_matmul(half(s, x[0]), false, w[0], false);
    ch_node *b = ch_matmul(ch_neg(x[0]), false, w[1], false), *grad;

    (void)v;
    ch_gradients(ch_add(ch_square(a), ch_tanh(b)), NULL, 1, x, &grad);
    ch_step_out(s, "gradient", grad);
}

/* TPU-4.4: the gradients of both products are partial sums of (8, 16). */
static void gradient_through_multiples_needs_one_all_reduce(void **state)
{
    (void)state;
    assert_int_equal(moves(&(divided_step){.in = {{CH_F32, ch_shape_of(8, 16)}},
                                           .var = {{ch_shape_of(16, 32), BY_COLUMNS},
                                                   {ch_shape_of(16, 32), BY_COLUMNS}},
                                           .record = record_gradient_of_multiples},
                           3072)
                         .all_reduce.count,
                     1);
}

/* ---- rows by ids ---- */

/* TPU-4.7, TPU-4.10: lookups and the gradient of a table. */
static void lookups_in_a_split_table_sum_the_rows_that_cores_have(void **state)
{
    (void)state;
    (void)run_step("lookup in (100,8), by rows");
    (void)run_step("lookup in (100,8), by columns");
    (void)run_step("sparse gradient of (100,8)");
}

/* ---- moves ---- */

/* TPU-4.6, TPU-4.11: ops that move elements. */
static void moves_transfer_the_missing_elements(void **state)
{
    (void)state;
    assert_int_equal(run_step("(8,8), columns to rows").all_to_all.bytes, 192);
    assert_int_equal(run_step("reverse (8)").other.bytes, 32);
    (void)run_step("reshape (48) to (6,8)");
    (void)run_step("concat (8,3) replicated, (8,3) by rows");
    assert_int_equal(run_step("slice 2:14 of (16)").halo.bytes, 8);
    (void)run_step("pad (8) by 1, 1");
}

static ch_node *use_of_many_parts(ch_step *s, ch_node *const *x)
{
    enum { MANY = 70 };
    ch_node *part[MANY];

    for (int i = 0; i < MANY; i++)
        part[i] = half(s, i == 0 ? by_columns(x[0]) : part[i - 1]);
    return ch_concat(MANY, part, 0);
}

static void call_of_many_inputs_is_divided(void **state)
{
    (void)state;
    made_of_inputs = use_of_many_parts;
    (void)moves(&(divided_step){.in = {{CH_F32, ch_shape_of(2, 8)}}, .record = record_made}, 0);
}

/* Must be the last test. */
static void steps_of_the_table_were_run(void **state)
{
    (void)state;
    for (int i = 0; i < DIVIDED_STEPS; i++)
        if (!was_run[i])
            fail_msg("%s was not run", divided_steps[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_split_by_units_needs_one_all_reduce),
        cmocka_unit_test(gradients_of_split_products_move_only_the_sum_for_the_input),
        cmocka_unit_test(gradients_of_tiles_are_summed_between_the_devices_of_equal_number),
        cmocka_unit_test(rows_split_needs_an_all_reduce_for_each_gradient),
        cmocka_unit_test(product_over_two_axes_of_a_mesh_reduces_in_pairs),
        cmocka_unit_test(transformer_block_needs_four_all_reduces),
        cmocka_unit_test(causal_attention_moves_keys_up_to_the_last_query_of_a_device),
        cmocka_unit_test(convolution_over_rows_of_the_image_moves_only_borders),
        cmocka_unit_test(gradient_of_max_pooling_moves_the_rows_of_windows_of_two_devices),
        cmocka_unit_test(sums_over_a_split_axis_move_only_the_sums),
        cmocka_unit_test(linear_ops_keep_partial_sums),
        cmocka_unit_test(partial_sums_that_are_needed_complete_are_reduced_once),
        cmocka_unit_test(linear_ops_keep_partial_sums_of_a_split_result),
        cmocka_unit_test(linear_ops_keep_no_partial_maxima_minima_and_products),
        cmocka_unit_test(devices_without_rows_have_no_partial_result),
        cmocka_unit_test(gradient_through_multiples_needs_one_all_reduce),
        cmocka_unit_test(lookups_in_a_split_table_sum_the_rows_that_cores_have),
        cmocka_unit_test(moves_transfer_the_missing_elements),
        cmocka_unit_test(call_of_many_inputs_is_divided),
        cmocka_unit_test(steps_of_the_table_were_run),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
