/* test/strategy/test_annotations.c -- annotations of values for logical devices: their errors,
 * and the examples of the TPUStrategy page.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../job/help.h"
#include "cores.h"

enum { IMAGE_BYTES = 32 * 64 * 3 * 4 };

typedef enum call { SPLIT, MESH, ASSIGN, REPLICATE } call;

/* A call that annotates a value, with the n numbers of its arguments. */
typedef struct annotation {
    call call;
    int  n, at[4];
} annotation;

typedef struct job {
    const annotation *a;
    bool              is_doubled; /* of the image plus itself, not of the image */
} job;

static ch_node *annotate(const annotation *a, ch_node *x)
{
    switch (a->call) {
    case SPLIT:
        return ch_split_to_logical_devices(x, a->n, a->at);
    case MESH:
        return ch_mesh_split(x, a->n, a->at);
    case REPLICATE:
        return ch_replicate_to_logical_devices(x);
    default:
        return ch_assign_to_logical_device(x, a->at[0]);
    }
}

static void step(ch_step *s, void *arg)
{
    const job *j = arg;
    ch_node   *x = ch_step_in(s, 0);

    ch_step_out(s, "y", annotate(j->a, j->is_doubled ? ch_add(x, x) : x));
}

/* Runs a step that annotates images (rows, 32, 64, 3); the number of rows is a symbol. If the
 * run succeeds, checks the results, and sets *report to its plan unless that is NULL. */
static ch_status run(ch_strategy *st, const annotation *a, bool is_doubled, int rows,
                     ch_layout_report *report)
{
    job          j = {a, is_doubled};
    int          n = ch_strategy_replicas(st);
    ch_function *f = t_function(step, &j);
    ch_tensor   *image[T_MOST_DEVICES];
    ch_value    *v = NULL;
    ch_tuple    *in = NULL, *out = NULL;
    ch_status    rc;

    for (int r = 0; r < n; r++)
        image[r] = t_noise(ch_shape_of(rows, 32, 64, 3), (unsigned)r);
    t_ok(ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, image, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &in));
    rc = ch_strategy_run(st, f, in, &out);
    if (rc == CH_OK && report != NULL)
        t_ok(ch_function_report_layouts(f, report, NULL));
    for (int r = 0; r < n; r++) {
        const float *x = ch_tensor_data(image[r]);

        for (int64_t i = 0; rc == CH_OK && i < ch_tensor_count(image[r]); i++)
            assert_true(t_floats(out, 0, r)[i] == (is_doubled ? 2 * x[i] : x[i]));
        ch_tensor_unref(image[r]);
    }
    ch_value_unref(v);
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_function_unref(f);
    return rc;
}

/* ---- errors ---- */

/* ANN-2, ANN-3, ANN-6, TPU-5.4: the rank is checked first, then the parts and their product, then sizes. */
static void annotation_that_does_not_fit_is_an_error_with_its_line(void **state)
{
    static const struct {
        annotation  a;
        const char *subject, *problem;
    } row[] = {
        {{SPLIT, 3, {2, 4, 1}}, "{2, 4, 1} on 8", "has rank 4, but there are 3 numbers"},
        {{SPLIT, 3, {0, 4, 1}}, "{0, 4, 1} on 8", "has rank 4, but there are 3 numbers"},
        {{SPLIT, 4, {1, 0, 4, 1}}, "{1, 0, 4, 1} on 8", "axis 1 in 0 parts (want 1 or more)"},
        {{SPLIT, 4, {1, -2, -4, 1}}, "{1, -2, -4, 1} on 8", "axis 1 in -2 parts"},
        {{SPLIT, 4, {1, 2, 2, 1}}, "{1, 2, 2, 1} on 8", "product"},
        {{SPLIT, 4, {1, 3, 4, 1}}, "{1, 3, 4, 1} on 8", "product"},
        {{SPLIT, 4, {1, 1, 1, 8}},
         "{1, 1, 1, 8} on 8",
         "axis 3 of size 3 is not divisible into 8 parts"},
        {{ASSIGN, 1, {-1}}, "device -1", "want 0 to 7"},
        {{ASSIGN, 1, {8}}, "device 8", "want 0 to 7"},
        {{MESH, 3, {0, 1, CH_OFF}}, "{0, 1, CH_OFF} on 8", "has rank 4, but there are 3"},
        {{MESH, 4, {CH_OFF, 2, CH_OFF, CH_OFF}},
         "{CH_OFF, 2, CH_OFF, CH_OFF} on 8",
         "axis 1 is split over mesh axis 2 (want 0 to 1"},
        {{MESH, 4, {CH_OFF, -3, 0, CH_OFF}}, "{CH_OFF, -3, 0, CH_OFF}", "mesh axis -3"},
        {{MESH, 4, {CH_OFF, 1, 1, CH_OFF}},
         "{CH_OFF, 1, 1, CH_OFF} on 8",
         "mesh axis 1 occurs twice, for axes 1 and 2"},
        {{MESH, 4, {CH_OFF, CH_MESH_ALL, 1, CH_OFF}},
         "{CH_OFF, CH_MESH_ALL, 1, CH_OFF} on 8",
         "mesh axis 1 occurs twice, for axes 1 and 2"},
    };
    ch_strategy *st = t_cores_strategy(1, 8, (int[]){2, 4, 0});

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        t_refused(run(st, &row[i].a, false, 4, NULL), CH_INVALID_ARGUMENT, row[i].subject,
                  row[i].problem);
        t_refused(CH_INVALID_ARGUMENT, CH_INVALID_ARGUMENT, "f32(rows, 32, 64, 3)",
                  ", at test_annotations.c:");
    }
    ch_strategy_unref(st);
}

/* DYN-2: the number of rows is a symbol. A short batch is divided unevenly. */
static void number_of_rows_need_not_divide(void **state)
{
    const annotation by_rows = {SPLIT, 4, {8, 1, 1, 1}};
    ch_strategy     *st = t_cores_strategy(1, 8, NULL);

    (void)state;
    for (int rows = 0; rows < 10; rows += 3)
        t_ok(run(st, &by_rows, true, rows, NULL));
    ch_strategy_unref(st);
}

/* ---- strategies without logical devices ---- */

/* Records annotations that no number of logical devices allows. */
static void annotate_anyhow(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    assert_ptr_equal(ch_split_to_logical_devices(x, 3, (int[]){0, -4, 1}), x);
    assert_ptr_equal(ch_mesh_split(x, 9, (int[]){77}), x);
    assert_ptr_equal(ch_assign_to_logical_device(x, 5), x);
    assert_ptr_equal(ch_replicate_to_logical_devices(x), x);
    ch_step_out(s, "y", ch_gradient(ch_square(ch_replicate_to_logical_devices(x)), x));
}

static void annotation_without_logical_devices_is_the_value_itself(void **state)
{
    ch_strategy *st[] = {t_mirrored(2),
                         t_central(2),
                         t_cluster(&(ch_local_cluster_options){.devices = 2}, NULL, NULL),
                         t_cores_strategy(2, 1, NULL),
                         NULL,  /* OneDevice */
                         NULL}; /* Default */

    (void)state;
    t_ok(ch_strategy_one_device("GPU:0", &st[4]));
    for (int i = 0; i < 6; i++) {
        ch_function *f = t_function(annotate_anyhow, NULL);
        ch_tensor   *x = t_f32(ch_shape_of(2), (float[]){3, 4});
        ch_tuple    *in = t_tuple(1, &x), *out = NULL;

        assert_int_equal(ch_strategy_logical_devices(st[i]), 1);
        t_ok(ch_strategy_run(st[i], f, in, &out));
        for (int r = 0; r < ch_strategy_replicas(st[i]); r++)
            assert_true(t_floats(out, 0, r)[0] == 6 && t_floats(out, 0, r)[1] == 8);
        ch_tuple_unref(in);
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_strategy_unref(st[i]);
    }
}

/* ---- encoded graphs ---- */

/* Annotations of all kinds for 4 logical devices, also in a body. */
static ch_node *grow(ch_node *x)
{
    return ch_tanh(ch_mesh_split(x, 2, (int[]){CH_OFF, CH_MESH_ALL}));
}

static void iterate(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                    ch_node **next, ch_node **y)
{
    (void)s;
    (void)arg;
    (void)x;
    (void)y;
    next[0] = grow(carry[0]);
}

static void annotated(ch_step *s, void *arg)
{
    const ch_scan_spec twice = {.n_carry = 1, .length = 2};
    ch_node           *x = ch_step_in(s, 0), *y;

    (void)arg;
    y = ch_square(ch_split_to_logical_devices(x, 2, (int[]){4, 1}));
    ch_scan(s, &twice, iterate, NULL, &y, NULL, &y, NULL);
    ch_step_out(s, "y", ch_replicate_to_logical_devices(y));
    ch_step_out(s, "dx", ch_assign_to_logical_device(ch_gradient(ch_sum_all(y), x), 3));
}

/* Returns the bytes that the devices of a replica received from each other. */
static int64_t moved(ch_function *f)
{
    ch_layout_report r;

    t_ok(ch_function_report_layouts(f, NULL, &r));
    return r.all_gather.bytes + r.all_reduce.bytes + r.all_to_all.bytes + r.other.bytes +
           r.halo.bytes + r.reduce_scatter.bytes;
}

/* Returns a function of the graph of the last run of f, which is encoded and decoded. */
static ch_function *sent(ch_function *f)
{
    ch_graph    *g = NULL;
    ch_function *back = NULL;
    void        *bytes = NULL;
    size_t       n = 0;

    t_ok(ch_graph_encode(ch_function_graph(f), &bytes, &n));
    t_ok(ch_graph_decode(bytes, n, &g));
    t_ok(ch_function_of_graph("sent", g, &back));
    ch_bytes_free(bytes);
    ch_graph_unref(g);
    return back;
}

static void annotations_of_an_encoded_graph_hold(void **state)
{
    ch_strategy *four = t_cores_strategy(1, 4, NULL), *two = t_cores_strategy(1, 2, NULL);
    ch_strategy *without[] = {t_mirrored(1),
                              t_cluster(&(ch_local_cluster_options){.devices = 1}, NULL, NULL)};
    ch_function *f = t_function(annotated, NULL), *back;
    ch_tensor   *x = t_noise(ch_shape_of(8, 8), 3);
    ch_tuple    *in = t_tuple(1, &x), *want = NULL, *got = NULL;

    (void)state;
    t_ok(ch_strategy_run(four, f, in, &want));
    back = sent(f);
    t_ok(ch_strategy_run(four, back, in, &got));
    for (int i = 0; i < 2; i++)
        assert_memory_equal(t_floats(got, i, 0), t_floats(want, i, 0), 256);
    assert_true(moved(f) > 0);
    assert_int_equal(moved(back), moved(f));
    ch_tuple_unref(got);
    got = NULL;
    t_refused(ch_strategy_run(two, back, in, &got), CH_INVALID_ARGUMENT, "annotation",
              "logical devices than 2");
    for (int i = 0; i < 2; i++) {
        t_ok(ch_strategy_run(without[i], back, in, &got));
        for (int k = 0; k < 64; k++)
            assert_true(t_floats(got, 0, 0)[k] == t_floats(want, 0, 0)[k]);
        ch_tuple_unref(got);
        got = NULL;
        ch_strategy_unref(without[i]);
    }
    ch_tuple_unref(want);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_function_unref(back);
    ch_strategy_unref(four);
    ch_strategy_unref(two);
}

/* ---- two annotations ---- */

static void split_twice(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y;

    (void)arg;
    x = ch_split_to_logical_devices(x, 2, (int[]){1, 4});
    y = ch_split_to_logical_devices(x, 2, (int[]){4, 1});
    ch_step_out(s, "y", ch_square(y));
}

/* The value is moved from the first layout to the second: each device lacks 3 of 4 columns. */
static void later_annotation_of_a_value_holds(void **state)
{
    ch_strategy     *st = t_cores_strategy(1, 4, NULL);
    ch_function     *f = t_function(split_twice, NULL);
    ch_tensor       *x = t_noise(ch_shape_of(8, 8), 3);
    ch_tuple        *in = t_tuple(1, &x);
    ch_layout_report r;

    (void)state;
    t_ok(ch_strategy_run(st, f, in, NULL));
    t_ok(ch_function_report_layouts(f, &r, NULL));
    assert_int_equal(r.all_to_all.count, 1);
    assert_int_equal(r.all_to_all.bytes, 192);
    assert_int_equal(r.host.bytes, 2 * 256); /* each part of x and of y once */
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_strategy_unref(st);
}

static void gradient_of_a_square(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *dy = ch_step_in(s, 1), *dx;
    ch_node *y = ch_square(ch_split_to_logical_devices(x, 2, (int[]){1, 4}));

    (void)arg;
    ch_gradients(y, dy, 1, &x, &dx);
    ch_step_out(s, "dx", dx);
}

/* ANN-9 */
static void gradient_has_the_annotation_of_its_value(void **state)
{
    ch_strategy     *st = t_cores_strategy(1, 4, NULL);
    ch_function     *f = t_function(gradient_of_a_square, NULL);
    ch_tensor       *x[2] = {t_noise(ch_shape_of(8, 8), 3), t_noise(ch_shape_of(8, 8), 4)};
    ch_tuple        *in = t_tuple(2, x), *out = NULL;
    ch_layout_report r;

    (void)state;
    t_ok(ch_strategy_run(st, f, in, &out));
    t_ok(ch_function_report_layouts(f, &r, NULL));
    assert_int_equal(r.replicated_calls, 0);
    assert_int_equal(r.host.bytes, 3 * 256);
    assert_int_equal(r.all_gather.bytes + r.all_to_all.bytes + r.other.bytes, 0);
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
}

/* ---- inputs and results ---- */

/* A part that a device reads from an input counts; a whole input is used in place, and
 * does not. Every element of a result counts once, whether a device writes all of it or not. */
static void parts_of_inputs_and_all_results_count_as_host_bytes(void **state)
{
    const struct {
        annotation a;
        int64_t    count, bytes;
    } row[] = {
        {{SPLIT, 4, {1, 4, 1, 1}}, 2, 2 * IMAGE_BYTES},
        {{MESH, 4, {CH_OFF, CH_OFF, CH_OFF, 0}}, 2, 2 * IMAGE_BYTES}, /* 1, 1, 1, 0 channels */
        {{REPLICATE, 0, {0}}, 1, IMAGE_BYTES},
        {{ASSIGN, 1, {2}}, 1, IMAGE_BYTES},
    };
    ch_strategy *st = t_cores_strategy(1, 4, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        ch_layout_report r;

        t_ok(run(st, &row[i].a, true, 1, &r));
        assert_int_equal(r.host.count, row[i].count);
        assert_int_equal(r.host.bytes, row[i].bytes);
        assert_int_equal(r.all_gather.bytes + r.other.bytes, 0);
    }
    ch_strategy_unref(st);
}

/* ---- the examples of the page ---- */

/* B34: an addition is assigned to logical device 0 of two, on each of four replicas. */
static void sum_is_assigned_to_a_logical_device(void **state)
{
    ch_strategy     *st = t_cores_strategy(4, 2, NULL);
    ch_layout_report r;

    (void)state;
    for (int c = 0; c < 2; c++) {
        t_ok(run(st, &(annotation){ASSIGN, 1, {c}}, true, 2, &r));
        assert_int_equal(r.all_gather.bytes + r.other.bytes, 0);
        assert_true(r.peak_bytes[1 - c] <= r.peak_bytes[c]);
    }
    ch_strategy_unref(st);
}

/* B38: images are split over eight logical devices, 2 in width and 4 in height. */
static void images_are_split_over_eight_logical_devices(void **state)
{
    ch_strategy     *st = t_cores_strategy(1, 8, NULL);
    ch_layout_report r;

    (void)state;
    t_ok(run(st, &(annotation){SPLIT, 4, {1, 2, 4, 1}}, true, 4, &r));
    assert_true(r.work == 1.0 / 8);
    assert_int_equal(r.all_gather.bytes + r.other.bytes, 0);
    ch_strategy_unref(st);
}

static void model_with_a_loss(ch_step *s, void *arg)
{
    ch_node *images = ch_step_in(s, 0), *labels = ch_step_in(s, 1), *out, *loss;

    (void)arg;
    images = ch_split_to_logical_devices(images, 4, (int[]){1, 2, 4, 1});
    out = ch_sum(ch_tanh(images), 3, (int[]){1, 2, 3}, true);
    labels = ch_replicate_to_logical_devices(labels);
    out = ch_replicate_to_logical_devices(ch_reshape(out, ch_shape_of(-1, 1)));
    loss = ch_loss_average(ch_loss_mse(out, labels), NULL);
    ch_step_out(s, "loss", loss);
}

/* B37: logits and labels are replicated over the logical devices for the loss. */
static void logits_and_labels_are_replicated_for_the_loss(void **state)
{
    ch_tensor *x[2] = {t_noise(ch_shape_of(4, 32, 64, 3), 1), t_noise(ch_shape_of(4, 1), 2)};
    ch_tuple  *in = t_tuple(2, x);
    double     loss[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        ch_strategy *st = t_cores_strategy(1, i == 0 ? 8 : 1, NULL);
        ch_function *f = t_function(model_with_a_loss, NULL);
        ch_tuple    *out = NULL;

        t_ok(ch_strategy_run(st, f, in, &out));
        loss[i] = t_floats(out, 0, 0)[0];
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_strategy_unref(st);
    }
    assert_true(loss[0] - loss[1] < 1e-4 * loss[1] && loss[1] - loss[0] < 1e-4 * loss[1]);
    ch_tuple_unref(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(annotation_that_does_not_fit_is_an_error_with_its_line),
        cmocka_unit_test(number_of_rows_need_not_divide),
        cmocka_unit_test(annotation_without_logical_devices_is_the_value_itself),
        cmocka_unit_test(annotations_of_an_encoded_graph_hold),
        cmocka_unit_test(later_annotation_of_a_value_holds),
        cmocka_unit_test(gradient_has_the_annotation_of_its_value),
        cmocka_unit_test(parts_of_inputs_and_all_results_count_as_host_bytes),
        cmocka_unit_test(sum_is_assigned_to_a_logical_device),
        cmocka_unit_test(images_are_split_over_eight_logical_devices),
        cmocka_unit_test(logits_and_labels_are_replicated_for_the_loss),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
