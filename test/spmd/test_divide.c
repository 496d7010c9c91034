/* test/spmd/test_divide.c -- divided steps: how many bytes the cores of a replica exchange.
 *
 * Each case records a small graph with numbers for all sizes, divides it among four cores, and
 * adds up the elements of the plans of its exchanges. The expected numbers were derived by hand
 * from the layouts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include <cohort/cohort.h>

#include "graph/step.h"
#include "spmd/annotate.h"
#include "spmd/core_ops.h"
#include "spmd/spmd.h"

enum { CORES = 4, REPLICATED = 9 };

/* A graph under construction. A variable has a number for each axis: its parts. */
typedef struct recording {
    ch_step *s;
    int      n_vars;
    struct {
        char name[16];
        int  parts[CH_MAX_RANK];
    } var[16];
} recording;

static void ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

static ch_node *input(recording *r, ch_dtype dtype, ch_shape shape)
{
    ch_dims dims = ch__dims_of(shape);

    return ch__step_add_input(r->s, NULL, dtype, &dims);
}

/* Returns a variable whose axis i is stored in parts[i] parts. */
static ch_node *var(recording *r, ch_shape shape, const int *parts)
{
    char *name = r->var[r->n_vars].name;

    (void)snprintf(name, sizeof(r->var[0].name), "v%d", r->n_vars);
    for (int i = 0; i < shape.rank; i++)
        r->var[r->n_vars].parts[i] = parts != NULL ? parts[i] : 1;
    r->n_vars++;
    return ch__step_read(r->s, name, name, CH_F32, shape);
}

static ch_node *split(ch_node *x, int n, const int *parts)
{
    return ch__annotate(NULL, x, CH_ANNOTATION_SPLIT, n, parts);
}

static ch_status variable_layout(void *arg, const ch_resource *v, ch_core_layout *out)
{
    const recording *r = arg;
    int              product = 1;

    for (int i = 0; i < r->n_vars; i++) {
        if (strcmp(r->var[i].name, v->name) != 0)
            continue;
        for (int k = 0; k < v->shape.rank; k++)
            product *= r->var[i].parts[k];
        if (product == CORES)
            ch__layout_split(CORES, v->shape.rank, r->var[i].parts, out);
        else
            ch__layout_replicated(CORES, v->shape.rank, out);
        return CH_OK;
    }
    return ch__fail(CH_NOT_FOUND, "no variable %s", v->name);
}

typedef struct traffic {
    int         exchanges, graphs;
    int64_t     bytes, all_reduces;
    const char *last_combined; /* op of the value in the last all-reduce */
} traffic;

/* Divides what `record` records, and adds up the exchanges. */
static traffic divide_over(void (*record)(recording *), int n_mesh, const int *mesh)
{
    recording       r = {.n_vars = 0};
    ch_spmd_options opt = {.n_cores = CORES,
                           .n_mesh = n_mesh,
                           .mesh = mesh,
                           .variable = variable_layout,
                           .arg = &r};
    ch_graph       *g = NULL, *core[CORES] = {NULL};
    traffic         t = {0};

    ok(ch__step_new("step", NULL, &r.s));
    record(&r);
    ok(ch_step_status(r.s));
    ok(ch__step_finish(r.s, &g));
    ch__step_free(r.s);
    g->is_concrete = true;
    g->step = NULL;
    ok(ch__pass_dead(g));
    ok(ch__spmd_divide(&opt, 1, &g, core));
    for (int c = 0; c < CORES; c++) {
        int same = 0;

        while (core[same] != core[c])
            same++;
        t.graphs += same == c;
    }
    for (const ch_node *n = core[0]->first; n != NULL; n = n->next)
        if (n->op == &ch__op_exchange) {
            const ch_reshard *plan = ch__exchange_plan(n);

            t.exchanges++;
            t.bytes += plan->n_moved * (int64_t)ch_dtype_bytes(ch__exchange_dtype(n));
            t.all_reduces += plan->kind == CH_TRAFFIC_ALL_REDUCE;
            if (plan->kind == CH_TRAFFIC_ALL_REDUCE)
                t.last_combined = n->in[0]->head->op->name;
        }
    for (int c = 0; c < CORES; c++)
        ch_graph_unref(core[c]);
    ch_graph_unref(g);
    return t;
}

static traffic divide(void (*record)(recording *))
{
    return divide_over(record, 1, (int[]){CORES});
}

/* ---- matrix products ---- */

static ch_node *two_layers(recording *r, ch_node *x, int64_t hidden, ch_node **w)
{
    w[0] = var(r, ch_shape_of(16, hidden), (int[]){1, 4});
    w[1] = var(r, ch_shape_of(hidden, 16), (int[]){4, 1});
    return ch_matmul(ch_relu(ch_matmul(x, false, w[0], false)), false, w[1], false);
}

static void record_two_layers(recording *r)
{
    ch_node *w[2];

    ch_step_out(r->s, "y", two_layers(r, input(r, CH_F32, ch_shape_of(8, 16)), 32, w));
}

static void record_uneven_layers(recording *r)
{
    ch_node *w[2];

    ch_step_out(r->s, "y", two_layers(r, input(r, CH_F32, ch_shape_of(8, 16)), 30, w));
}

static void product_split_by_units_needs_one_all_reduce(void **state)
{
    traffic t = divide(record_two_layers);

    (void)state;
    assert_int_equal(t.bytes, 3072);
    assert_int_equal(t.all_reduces, 1);
    assert_int_equal(t.exchanges, 1);
    assert_int_equal(t.graphs, 1);
    t = divide(record_uneven_layers);
    assert_int_equal(t.bytes, 3072);
    assert_int_equal(t.exchanges, 1);
}

/* Records the gradients of the sum of y * dy with respect to some of x, w[0] and w[1]. */
static void record_gradients(recording *r, bool of_x, bool of_w)
{
    ch_node *x = input(r, CH_F32, ch_shape_of(8, 16)),
            *dy = input(r, CH_F32, ch_shape_of(8, 16));
    ch_node *w[3], *grad[3];
    ch_node *y = two_layers(r, x, 32, w);

    w[2] = x;
    ch_gradients(y, dy, 3, w, grad);
    for (int i = 0; i < 3; i++)
        if (i == 2 ? of_x : of_w)
            ch_step_out(r->s, NULL, grad[i]);
}

static void record_gradients_of_w(recording *r)
{
    record_gradients(r, false, true);
}

static void record_gradients_of_x(recording *r)
{
    record_gradients(r, true, false);
}

static void gradients_of_split_products_move_only_the_sum_for_the_input(void **state)
{
    traffic t = divide(record_gradients_of_w);

    (void)state;
    assert_int_equal(t.bytes, 0);
    t = divide(record_gradients_of_x);
    assert_int_equal(t.bytes, 3072);
    assert_int_equal(t.all_reduces, 1);
}

static void record_rows(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(128, 784)), 2, (int[]){4, 1});
    ch_node *dy = split(input(r, CH_F32, ch_shape_of(128, 10)), 2, (int[]){4, 1});
    ch_node *w[2] = {var(r, ch_shape_of(784, 512), NULL), var(r, ch_shape_of(512, 10), NULL)};
    ch_node *grad[2];
    ch_node *y = ch_matmul(ch_relu(ch_matmul(x, false, w[0], false)), false, w[1], false);

    ch_gradients(y, dy, 2, w, grad);
    for (int i = 0; i < 2; i++) {
        ch_node *value =
            ch_sub(w[i], ch_mul(grad[i], ch_fill(r->s, CH_F32, (ch_shape){0}, 0.5)));

        ch__step_write(r->s, r->var[i].name, r->var[i].name, CH_F32, ch_node_shape(w[i]),
                       value);
    }
}

static void rows_split_needs_an_all_reduce_for_each_gradient(void **state)
{
    traffic t = divide(record_rows);

    (void)state;
    assert_int_equal(t.bytes, 9756672);
    assert_int_equal(t.all_reduces, 2);
}

/* Over a mesh of 2 x 2: x by rows over axis 0, the kernels over axis 1. */
static void record_mesh(recording *r)
{
    ch_node *x = ch__annotate(NULL, input(r, CH_F32, ch_shape_of(8, 16)), CH_ANNOTATION_MESH, 2,
                              (int[]){0, CH_OFF});
    ch_node *w1 = ch__annotate(NULL, input(r, CH_F32, ch_shape_of(16, 32)), CH_ANNOTATION_MESH,
                               2, (int[]){CH_OFF, 1});
    ch_node *w2 = ch__annotate(NULL, input(r, CH_F32, ch_shape_of(32, 16)), CH_ANNOTATION_MESH,
                               2, (int[]){1, CH_OFF});
    ch_node *y = ch_matmul(ch_relu(ch_matmul(x, false, w1, false)), false, w2, false);

    ch_step_out(r->s, "y", y);
}

static void product_over_two_axes_of_a_mesh_reduces_in_pairs(void **state)
{
    traffic t = divide_over(record_mesh, 2, (int[]){2, 2});

    (void)state;
    assert_int_equal(t.bytes, 1024);
}

/* ---- a transformer block ---- */

typedef struct block_sizes {
    int64_t batch, time, width, heads, hidden;
} block_sizes;

static const block_sizes *sizes; /* of record_block */

/* Returns (batch, heads, time, width / heads) from (batch, time, width). */
static ch_node *by_heads(ch_node *x)
{
    x = ch_reshape(
        x, ch_shape_of(sizes->batch, sizes->time, sizes->heads, sizes->width / sizes->heads));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

/* A block of a transformer, whose kernels are split by heads and by hidden units, and the
 * gradients of the kernels and the input. */
static void record_block(recording *r)
{
    const block_sizes *b = sizes;
    const int          columns[] = {1, 4}, rows[] = {4, 1};
    ch_shape           square = ch_shape_of(b->width, b->width);
    ch_shape           shape = ch_shape_of(b->batch, b->time, b->width);
    ch_node           *x = input(r, CH_F32, shape), *dy = input(r, CH_F32, shape);
    ch_node           *w[7], *norm[4], *grad[7], *h, *y;

    for (int i = 0; i < 3; i++)
        w[i] = var(r, square, columns);
    w[3] = var(r, square, rows);
    w[4] = var(r, ch_shape_of(b->width, b->hidden), columns);
    w[5] = var(r, ch_shape_of(b->hidden, b->width), rows);
    w[6] = x;
    for (int i = 0; i < 4; i++)
        norm[i] = var(r, ch_shape_of(b->width), NULL);
    h = ch_layer_norm(x, norm[0], norm[1], 1e-5);
    h = ch_attention(by_heads(ch_matmul(h, false, w[0], false)),
                     by_heads(ch_matmul(h, false, w[1], false)),
                     by_heads(ch_matmul(h, false, w[2], false)), NULL, NULL);
    h = ch_reshape(ch_transpose(h, 4, (int[]){0, 2, 1, 3}), shape);
    y = ch_add(x, ch_matmul(h, false, w[3], false));
    h = ch_layer_norm(y, norm[2], norm[3], 1e-5);
    h = ch_matmul(ch_gelu(ch_matmul(h, false, w[4], false)), false, w[5], false);
    y = ch_add(y, h);
    ch_gradients(y, dy, 7, w, grad);
    ch_step_out(r->s, "y", y);
    for (int i = 0; i < 7; i++)
        ch_step_out(r->s, NULL, grad[i]);
}

static void transformer_block_needs_four_all_reduces(void **state)
{
    static const block_sizes small = {2, 6, 16, 4, 64}, large = {8, 128, 384, 8, 1536};
    traffic                  t;

    (void)state;
    sizes = &small;
    t = divide(record_block);
    assert_int_equal(t.all_reduces, 4);
    assert_int_equal(t.bytes, 18432);
    assert_int_equal(t.graphs, 1);
    sizes = &large;
    t = divide(record_block);
    assert_int_equal(t.all_reduces, 4);
    assert_int_equal(t.bytes, 37748736);
}

/* ---- images ---- */

static void record_conv(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(2, 16, 16, 3)), 4, (int[]){1, 4, 1, 1});
    ch_node *filter = var(r, ch_shape_of(3, 3, 3, 8), NULL);

    ch_step_out(r->s, "y", ch_conv2d(x, filter, &(ch_conv_options){.padding = CH_PAD_SAME}));
}

static void record_filter_gradient(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(2, 16, 16, 3)), 4, (int[]){1, 4, 1, 1});
    ch_node *dy = split(input(r, CH_F32, ch_shape_of(2, 16, 16, 8)), 4, (int[]){1, 4, 1, 1});
    ch_node *filter = var(r, ch_shape_of(3, 3, 3, 8), NULL), *grad;
    ch_node *y = ch_conv2d(x, filter, &(ch_conv_options){.padding = CH_PAD_SAME});

    ch_step_out(r->s, "y", y);
    ch_gradients(y, dy, 1, &filter, &grad);
    ch_step_out(r->s, "gradient", grad);
}

static void record_strided_conv(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(1, 16, 8, 2)), 4, (int[]){1, 4, 1, 1});
    ch_node *filter = var(r, ch_shape_of(3, 3, 2, 8), NULL);

    ch_step_out(
        r->s, "y",
        ch_conv2d(x, filter, &(ch_conv_options){.stride = {2, 2}, .padding = CH_PAD_SAME}));
}

static void record_conv_in_two_axes(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(1, 8, 8, 2)), 4, (int[]){1, 2, 2, 1});
    ch_node *filter = var(r, ch_shape_of(3, 3, 2, 8), NULL);

    ch_step_out(r->s, "y", ch_conv2d(x, filter, &(ch_conv_options){.padding = CH_PAD_SAME}));
}

static void convolution_over_rows_of_the_image_moves_only_borders(void **state)
{
    traffic t = divide(record_conv);

    (void)state;
    assert_int_equal(t.bytes, 2304);
    assert_int_equal(t.graphs, 3);
    t = divide(record_filter_gradient);
    assert_int_equal(t.bytes, 2304 + 5184);
    assert_int_equal(t.all_reduces, 1);
    t = divide(record_strided_conv);
    assert_int_equal(t.bytes, 192);
    t = divide(record_conv_in_two_axes);
    assert_int_equal(t.bytes, 288);
}

/* ---- normalisation, softmax, losses ---- */

static void record_batch_norm(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(2, 16, 16, 8)), 4, (int[]){1, 4, 1, 1});
    ch_node *mean, *variance;

    ch_step_out(r->s, "y",
                ch_batch_norm(x, var(r, ch_shape_of(8), NULL), var(r, ch_shape_of(8), NULL),
                              1e-3, &mean, &variance));
}

static void record_layer_norm(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(8, 8)), 2, (int[]){1, 4});

    ch_step_out(
        r->s, "y",
        ch_layer_norm(x, var(r, ch_shape_of(8), NULL), var(r, ch_shape_of(8), NULL), 1e-3));
}

static void record_softmax(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(8, 8)), 2, (int[]){1, 4});

    ch_step_out(r->s, "y", ch_softmax(x, -1));
}

static void record_cross_entropy(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(2, 6, 100)), 3, (int[]){1, 1, 4});
    ch_node *labels = input(r, CH_I32, ch_shape_of(2, 6));

    ch_step_out(r->s, "y", ch_sparse_softmax_cross_entropy(x, labels));
}

static void sums_over_a_split_axis_move_only_the_sums(void **state)
{
    (void)state;
    assert_int_equal(divide(record_batch_norm).bytes, 384);
    assert_int_equal(divide(record_layer_norm).bytes, 384);
    assert_int_equal(divide(record_softmax).bytes, 384);
    assert_int_equal(divide(record_cross_entropy).bytes, 864);
}

static void record_added_maxima(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(8, 8)), 2, (int[]){1, 4});
    ch_node *y = split(input(r, CH_F32, ch_shape_of(8, 8)), 2, (int[]){1, 4});

    ch_step_out(r->s, "y",
                ch_add(ch_max(x, 1, (int[]){1}, false), ch_max(y, 1, (int[]){1}, false)));
}

static void record_added_sums(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(8, 8)), 2, (int[]){1, 4});
    ch_node *y = split(input(r, CH_F32, ch_shape_of(8, 8)), 2, (int[]){1, 4});

    ch_step_out(r->s, "y",
                ch_add(ch_sum(x, 1, (int[]){1}, false), ch_sum(y, 1, (int[]){1}, false)));
}

static void linear_ops_keep_partial_sums_but_no_partial_maxima(void **state)
{
    traffic t = divide(record_added_sums);

    (void)state;
    assert_int_equal(t.all_reduces, 1);
    assert_string_equal(t.last_combined, "add");
    t = divide(record_added_maxima);
    assert_int_equal(t.all_reduces, 2);
    assert_string_equal(t.last_combined, "max");
}

/* ---- rows by ids ---- */

static void record_lookup_by_rows(recording *r)
{
    ch_node *table = var(r, ch_shape_of(100, 8), (int[]){4, 1});

    ch_step_out(r->s, "y", ch_gather(table, input(r, CH_I64, ch_shape_of(10)), 0));
}

static void record_lookup_by_columns(recording *r)
{
    ch_node *table = var(r, ch_shape_of(100, 8), (int[]){1, 4});

    ch_step_out(r->s, "y", ch_gather(table, input(r, CH_I64, ch_shape_of(10)), 0));
}

static void record_sparse_gradient(recording *r)
{
    ch_node *table = var(r, ch_shape_of(100, 8), NULL);
    ch_node *ids = split(input(r, CH_I64, ch_shape_of(8)), 1, (int[]){4});
    ch_node *rows = split(input(r, CH_F32, ch_shape_of(8, 8)), 2, (int[]){4, 1});
    ch_node *value = ch_scatter_sub(table, ids, rows);

    ch__step_write(r->s, r->var[0].name, r->var[0].name, CH_F32, ch_node_shape(table), value);
}

static void lookups_in_a_split_table_sum_the_rows_that_cores_have(void **state)
{
    (void)state;
    assert_int_equal(divide(record_lookup_by_rows).bytes, 1920);
    assert_int_equal(divide(record_lookup_by_columns).bytes, 0);
    assert_int_equal(divide(record_sparse_gradient).bytes, 960);
}

/* ---- moves ---- */

static void record_transfer(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(8, 8)), 2, (int[]){1, 4});

    ch_step_out(r->s, "y", split(x, 2, (int[]){4, 1}));
}

static void record_reverse(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(8)), 1, (int[]){4});

    ch_step_out(r->s, "y", split(ch_reverse(x, 1, (int[]){0}), 1, (int[]){4}));
}

static void record_reshape(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(48)), 1, (int[]){4});

    ch_step_out(r->s, "y", split(ch_reshape(x, ch_shape_of(6, 8)), 2, (int[]){4, 1}));
}

static void record_concat(recording *r)
{
    ch_node *a = ch__annotate(NULL, input(r, CH_F32, ch_shape_of(8, 3)),
                              CH_ANNOTATION_REPLICATE, 0, NULL);
    ch_node *b = split(input(r, CH_F32, ch_shape_of(8, 3)), 2, (int[]){4, 1});

    ch_step_out(r->s, "y", split(ch_concat(2, (ch_node *[]){a, b}, 0), 2, (int[]){4, 1}));
}

static void record_slice(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(16)), 1, (int[]){4});

    ch_step_out(r->s, "y", ch_slice(x, 1, (int64_t[]){2}, (int64_t[]){12}));
}

static void record_pad(recording *r)
{
    ch_node *x = split(input(r, CH_F32, ch_shape_of(8)), 1, (int[]){4});

    ch_step_out(r->s, "y", ch_pad(x, 1, (int64_t[]){1}, (int64_t[]){1}, 0));
}

static void moves_transfer_the_missing_elements(void **state)
{
    (void)state;
    assert_int_equal(divide(record_transfer).bytes, 192);
    assert_int_equal(divide(record_reverse).bytes, 32);
    assert_int_equal(divide(record_reshape).bytes, 64);
    assert_int_equal(divide(record_concat).bytes, 72);
    assert_int_equal(divide(record_slice).bytes, 8);
    assert_int_equal(divide(record_pad).bytes, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_split_by_units_needs_one_all_reduce),
        cmocka_unit_test(gradients_of_split_products_move_only_the_sum_for_the_input),
        cmocka_unit_test(rows_split_needs_an_all_reduce_for_each_gradient),
        cmocka_unit_test(product_over_two_axes_of_a_mesh_reduces_in_pairs),
        cmocka_unit_test(transformer_block_needs_four_all_reduces),
        cmocka_unit_test(convolution_over_rows_of_the_image_moves_only_borders),
        cmocka_unit_test(sums_over_a_split_axis_move_only_the_sums),
        cmocka_unit_test(linear_ops_keep_partial_sums_but_no_partial_maxima),
        cmocka_unit_test(lookups_in_a_split_table_sum_the_rows_that_cores_have),
        cmocka_unit_test(moves_transfer_the_missing_elements),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
