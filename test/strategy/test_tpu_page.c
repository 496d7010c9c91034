/* test/strategy/test_tpu_page.c -- the examples and the methods of the page of TPUStrategy.
 *
 * The numbers in comments are rows of doc/conformance.md and doc/seed-examples.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../data/pipeline.h"
#include "strategy/strategy.h"
#include "tpu.h"
#include "values.h"

#define N(...) ((const double[]){__VA_ARGS__})

/* The orders of the replicas of two cores on the default mesh, and of all eight cores. */
static const int ring[] = {0, 1, 2, 3, 6, 7, 4, 5}, mesh[] = {0, 1, 2, 3, 4, 5, 6, 7};

static void on_tpu(const ch_tensor *t, int ordinal)
{
    char name[16];

    snprintf(name, sizeof(name), "TPU:%d", ordinal);
    t_on(t, name);
}

/* ---- values from functions ---- */

typedef struct placed {
    ch_tensor *t[T_TPUS];
    int        calls;
} placed;

static ch_status one_of(const ch_value_context *c, void *arg, ch_tuple **out)
{
    placed *p = arg;

    assert_int_equal(c->replica, p->calls++);
    assert_int_equal(c->n_replicas, T_TPUS);
    return ch_tuple_of(1, &p->t[c->replica], out);
}

/* B5, TPI-8: eight values that are placed on the worker devices. */
static void values_placed_on_worker_devices_stay_there(void **state)
{
    ch_strategy      *st = NULL;
    ch_device *const *device;
    placed            p = {.calls = 0};
    ch_tuple         *values = NULL, *each[T_TPUS];
    int               n;

    t_ok(ch_strategy_tpu(NULL, NULL, NULL, &st));
    t_ok(ch_strategy_worker_devices(st, &n, &device));
    assert_int_equal(n, T_TPUS);
    for (int i = 0; i < ch_strategy_replicas(st); i++) {
        t_ok(ch_device_enter(device[i]));
        p.t[i] = t_number(CH_F32, 1);
        ch_device_leave();
    }
    t_ok(ch_strategy_distribute_values_from_function(st, one_of, &p, &values));
    assert_int_equal(p.calls, T_TPUS);
    assert_int_equal(ch_value_kind_of(ch_tuple_at(values, 0)), CH_PER_REPLICA);
    t_ok(ch_strategy_local_results(st, values, T_TPUS, each));
    for (int i = 0; i < T_TPUS; i++) {
        t_is(ch_value_at(ch_tuple_at(each[i], 0), 0), CH_F32, ch_shape_scalar(), N(1));
        on_tpu(ch_value_at(ch_tuple_at(each[i], 0), 0), i);
        ch_tuple_unref(each[i]);
        ch_tensor_unref(p.t[i]);
    }
    ch_tuple_unref(values);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- B34 ---- */

enum { NOWHERE = 100 }; /* in place of a device: the value is not assigned */

static void assigned_sum(ch_step *s, void *device)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_add(x, x);

    if (*(int *)device != NOWHERE)
        y = ch_assign_to_logical_device(y, *(int *)device);
    ch_step_out(s, "y", y);
}

/* Runs the step on {1, 2}, {3, 4}, ... */
static ch_status run_sum(ch_strategy *st, int device, ch_tuple **out)
{
    ch_function *f = t_function(assigned_sum, &device);
    ch_tensor   *x[4];
    ch_tuple    *in;
    ch_status    rc;

    for (int r = 0; r < 4; r++)
        x[r] = t_of(CH_F32, ch_shape_of(2), N(2 * r + 1, 2 * r + 2));
    in = t_each(4, x);
    rc = ch_strategy_run(st, f, in, out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    return rc;
}

/* B34, ANN-1, ANN-18, ANN-21, TPN-3, TPN-5, TPN-7, TPN-15: four replicas of two cores. Results are on
 * core 0 of each replica, whichever core computes them. */
static void addition_is_assigned_to_a_logical_device(void **state)
{
    static const struct {
        const char  *system;
        ch_tpu_order order;
        const int   *ordinal;
    } row[] = {{"virtual:2x2x1x2", CH_TPU_AUTO, ring},
               {"virtual:2x2x1x2", CH_TPU_MESH, mesh},
               {"virtual:1x1x1x8", CH_TPU_AUTO, mesh}};

    for (int i = 0; i < 3; i++) {
        const ch_tpu_build b = {
            .n = 3, .shape = {1, 1, 2}, .replicas = 4, .order = row[i].order};
        ch_strategy      *st = NULL, *all = NULL;
        ch_device *const *device;
        ch_tuple         *out = NULL;

        t_ok(t_tpu_new(row[i].system, &b, NULL, &st));
        assert_int_equal(ch_strategy_replicas(st), 4);
        assert_int_equal(ch_strategy_logical_devices(st), 2);
        t_ok(ch__strategy_devices(st, &device));
        for (int d = 0; d < 8; d++)
            assert_int_equal(ch_device_where(device[d])->index, row[i].ordinal[d]);
        for (int id = 0; id < 2; id++) {
            t_ok(run_sum(st, id, &out));
            for (int r = 0; r < 4; r++) {
                ch_tensor *y = ch_value_at(ch_tuple_at(out, 0), r);

                t_is(y, CH_F32, ch_shape_of(2), N(4 * r + 2, 4 * r + 4));
                on_tpu(y, row[i].ordinal[2 * r]);
            }
            ch_tuple_unref(out);
        }
        t_refused(run_sum(st, 2, &out), CH_INVALID_ARGUMENT, "device 2", "want 0 to 1");
        t_refused(run_sum(st, -1, &out), CH_INVALID_ARGUMENT, "device -1", "want 0 to 1");

        t_ok(t_tpu_new(row[i].system, &b, &(ch_tpu_options){.spmd = true}, &all));
        t_refused(run_sum(all, 0, &out), CH_INVALID_ARGUMENT, "ch_assign_to_logical_device",
                  "compute every value together");
        t_refused(run_sum(all, 2, &out), CH_INVALID_ARGUMENT, "ch_assign_to_logical_device",
                  "compute every value together"); /* checked first */
        t_ok(run_sum(all, NOWHERE, &out));
        t_is(ch_value_at(ch_tuple_at(out, 0), 3), CH_F32, ch_shape_of(2), N(14, 16));
        ch_tuple_unref(out);
        ch_strategy_unref(st);
        ch_strategy_unref(all);
    }
    (void)state;
}

/* ---- B37 and B38 ---- */

enum {
    IMAGES = 4,
    WIDE = 32,
    HIGH = 64,
    CHANNELS = 3,
    PIXELS = IMAGES * WIDE * HIGH * CHANNELS
};

/* Returns whole numbers from -3 to 3. */
static ch_tensor *whole_numbers(ch_shape shape, int step)
{
    ch_tensor *t = t_f32(shape, NULL);

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((float *)ch_tensor_data_mut(t))[i] = (float)(i * step % 7 - 3);
    return t;
}

static ch_strategy *eight_cores(bool spmd)
{
    const ch_tpu_build b = {.n = 3, .shape = {2, 2, 2}, .replicas = 1};
    ch_strategy       *st = NULL;

    t_ok(t_tpu_new("virtual:2x2x1x2", &b, &(ch_tpu_options){.spmd = spmd}, &st));
    return st;
}

typedef struct model {
    ch_tensor *filter;
    bool       is_annotated;
} model;

static void loss_of_images(ch_step *s, void *arg)
{
    const ch_conv_options same = {.padding = CH_PAD_SAME};
    const model          *m = arg;
    ch_node              *images = ch_step_in(s, 0), *labels = ch_step_in(s, 1), *x, *output;

    if (m->is_annotated)
        images = ch_split_to_logical_devices(images, 4, (int[]){1, 2, 4, 1});
    x = ch_relu(ch_conv2d(images, ch_constant(s, m->filter), &same));
    output = ch_max(x, 2, (int[]){1, 2}, false);
    if (m->is_annotated) {
        labels = ch_replicate_to_logical_devices(labels);
        output = ch_replicate_to_logical_devices(output);
    }
    ch_step_out(s, "loss", ch_sum_all(ch_square(ch_sub(output, labels))));
    ch_step_out(s, "d", ch_gradient(ch_sum_all(x), images));
}

static ch_status run_model(ch_strategy *st, model *m, ch_tuple *in, ch_tuple **out)
{
    ch_function *f = t_function(loss_of_images, m);
    ch_status    rc = ch_strategy_run(st, f, in, out);

    ch_function_unref(f);
    return rc;
}

/* B37, ANN-8, ANN-15: as printed, a split over eight devices of two. With eight devices the loss
 * has the bits of the model without annotations. */
static void labels_and_output_are_replicated_for_the_loss(void **state)
{
    model      m = {.filter = whole_numbers(ch_shape_of(3, 3, CHANNELS, 2), 5)};
    ch_tensor *x[2] = {whole_numbers(ch_shape_of(IMAGES, WIDE, HIGH, CHANNELS), 3),
                       whole_numbers(ch_shape_of(IMAGES, 2), 2)};
    ch_tuple  *in = t_tuple(2, x);

    for (int spmd = 0; spmd < 2; spmd++) {
        ch_strategy *two = t_tpu(4, 2, spmd), *eight = eight_cores(spmd);
        ch_tuple    *plain = NULL, *split = NULL;

        m.is_annotated = true;
        t_refused(run_model(two, &m, in, &split), CH_INVALID_ARGUMENT,
                  "{1, 2, 4, 1} on 2 logical devices", "the product of the parts is 8, want 2");
        t_ok(run_model(eight, &m, in, &split));
        m.is_annotated = false;
        t_ok(run_model(eight, &m, in, &plain));
        for (int i = 0; i < 2; i++)
            assert_memory_equal(t_floats(split, i, 0), t_floats(plain, i, 0),
                                i == 0 ? 4 : PIXELS * sizeof(float));
        assert_true(t_floats(plain, 0, 0)[0] > 0 && t_floats(plain, 0, 0)[0] < 1 << 24);
        ch_tuple_unref(plain);
        ch_tuple_unref(split);
        ch_strategy_unref(two);
        ch_strategy_unref(eight);
    }
    ch_tuple_unref(in);
    ch_tensor_unref(m.filter);
    (void)state;
}

/* A split of images; n is its rank. */
typedef struct split {
    int     n, parts[4];
    ch_var *keep; /* is assigned the value; NULL: none */
} split;

static void split_images(ch_step *s, void *arg)
{
    const split *a = arg;
    ch_node     *x = ch_split_to_logical_devices(ch_step_in(s, 0), a->n, a->parts);

    if (a->keep != NULL)
        ch_var_assign(s, a->keep, x);
    ch_step_out(s, "x", x);
}

static ch_status run_split(ch_strategy *st, const split *a, ch_tuple *in, ch_tuple **out)
{
    split        copy = *a;
    ch_function *f = t_function(split_images, &copy);
    ch_status    rc;

    ch_function_static_rows(f);
    rc = ch_strategy_run(st, f, in, out);
    ch_function_unref(f);
    return rc;
}

/* Checks that core 4i + j has rows 16i to 16i + 15 and columns 16j to 16j + 15 of all images,
 * on the device that the ring gives to it. */
static void check_tiles(const ch_var *v, const float *x)
{
    for (int c = 0; c < T_TPUS; c++) {
        const float *tile = ch_tensor_data(v->copy[c]);

        assert_true(
            ch_shape_equal(ch_tensor_shape(v->copy[c]), ch_shape_of(IMAGES, 16, 16, 3)));
        on_tpu(v->copy[c], ring[c]);
        for (int n = 0; n < IMAGES; n++)
            for (int row = 0; row < 16; row++)
                assert_memory_equal(tile + (n * 16 + row) * 16 * CHANNELS,
                                    x + ((n * WIDE + c / 4 * 16 + row) * HIGH + c % 4 * 16) *
                                            CHANNELS,
                                    16 * CHANNELS * sizeof(float));
    }
}

/* B38, ANN-4, ANN-5, ANN-13, ANN-20, TPI-10, TPV-15: tile (i, j) is on logical core 4i + j; the value is
 * unchanged. */
static void images_are_split_over_eight_cores(void **state)
{
    const ch_var_spec spec = {.name = "tiles",
                              .dtype = CH_F32,
                              .shape = ch_shape_of(IMAGES, WIDE, HIGH, CHANNELS),
                              .split = (int[]){CH_OFF, 0, 1, CH_OFF},
                              .n_split = 4};
    ch_tensor        *x = whole_numbers(ch_shape_of(IMAGES, WIDE, HIGH, CHANNELS), 3);
    ch_tuple         *in = t_tuple(1, (ch_tensor *[]){ch_tensor_ref(x)});

    for (int spmd = 0; spmd < 2; spmd++) {
        ch_strategy *st =
            t_tpu_with(1, 8, &(ch_tpu_options){.spmd = spmd, .n_mesh = 2, .mesh = {2, 4}});
        split     a = {4, {1, 2, 4, 1}, NULL};
        ch_tuple *out = NULL;

        assert_int_equal(ch_strategy_logical_devices(st), 8);
        t_ok(ch_var_new(st, &spec, &a.keep));
        t_ok(run_split(st, &a, in, &out));
        check_tiles(a.keep, ch_tensor_data(x));
        assert_memory_equal(t_floats(out, 0, 0), ch_tensor_data(x), PIXELS * sizeof(float));
        on_tpu(ch_value_at(ch_tuple_at(out, 0), 0), 0);
        ch_tuple_unref(out);
        ch_var_unref(a.keep);
        ch_strategy_unref(st);
    }
    ch_tensor_unref(x);
    ch_tuple_unref(in);
    (void)state;
}

/* B38, ANN-2, ANN-3, ANN-6, ANN-14, ANN-19: the rank is checked first, then the product, then sizes. */
static void split_that_does_not_fit_is_an_error_in_the_order_of_the_page(void **state)
{
    static const struct {
        split       a;
        const char *subject, *problem;
    } row[] = {
        {{3, {2, 4, 1}, NULL}, "has rank 4", "there are 3 numbers"},
        {{4, {1, 3, 4, 1}, NULL}, "{1, 3, 4, 1}", "product of the parts is 12, want 8"},
        {{4, {1, 2, 1, 4}, NULL}, "{1, 2, 1, 4}", "axis 3 of size 3 is not divisible into 4"},
        {{4, {1, 2, 2, 1}, NULL}, "{1, 2, 2, 1}", "product of the parts is 4, want 8"},
        {{4, {1, 3, 2, 1}, NULL}, "{1, 3, 2, 1}", "product of the parts is 6, want 8"},
        {{4, {1, 0, 4, 1}, NULL}, "{1, 0, 4, 1}", "axis 1 in 0 parts (want 1 or more)"},
        {{4, {1 << 30, 1 << 30, 1 << 30, 1 << 30}, NULL},
         "1073741824",
         "is 1152921504606846976"},
    };
    ch_tensor *x = whole_numbers(ch_shape_of(IMAGES, WIDE, HIGH, CHANNELS), 3);
    ch_tuple  *in = t_tuple(1, &x);

    for (int spmd = 0; spmd < 2; spmd++) {
        ch_strategy *st = eight_cores(spmd);

        for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
            t_refused(run_split(st, &row[i].a, in, NULL), CH_INVALID_ARGUMENT, row[i].subject,
                      row[i].problem);
        ch_strategy_unref(st);
    }
    ch_tuple_unref(in);
    (void)state;
}

/* B38: the mesh 1x1x1x8 has no block of 2x2x2 cores. */
static void eight_cores_of_two_by_two_do_not_fit_a_line(void **state)
{
    const ch_tpu_build b = {.n = 3, .shape = {2, 2, 2}, .replicas = 1};
    ch_strategy       *st = NULL;

    t_refused(t_tpu_new("virtual:1x1x1x8", &b, NULL, &st), CH_INVALID_ARGUMENT, "2x2x1x2",
              "1x1x1x8");
    (void)state;
}

/* ---- the methods of the page, on all divisions of eight cores ---- */

typedef void (*method_fn)(ch_strategy *st);

static void under_all(method_fn fn)
{
    for (int n = 1; n <= T_TPUS; n *= 2)
        for (int spmd = 0; spmd < 2; spmd++) {
            ch_strategy *st = t_tpu(n, T_TPUS / n, spmd);

            fn(st);
            ch_strategy_unref(st);
        }
}

static void enter_scope(ch_strategy *st)
{
    ch_var *v;

    assert_false(ch_strategy_is_set());
    t_ok(ch_strategy_enter(st));
    assert_ptr_equal(ch_strategy_current(), st);
    assert_int_equal(ch_context_now(), CH_CONTEXT_CROSS);
    v = t_var(NULL, "v", t_number(CH_F32, 1));
    ch_strategy_leave();
    assert_false(ch_strategy_is_set());
    assert_ptr_equal(ch_var_strategy(v), st);
    ch_var_unref(v);
}

static void scope_makes_variables_of_the_strategy(void **state)
{
    under_all(enter_scope);
    (void)state;
}

static ch_status row_of(const ch_value_context *c, void *arg, ch_tuple **out)
{
    ch_tensor *t = t_of(CH_F32, ch_shape_of(1, 2), N(c->replica, c->n_replicas));
    ch_status  rc = ch_tuple_of(1, &t, out);

    (void)arg;
    ch_tensor_unref(t);
    return rc;
}

static void times_two(ch_step *s, void *arg)
{
    (void)arg;
    assert_int_equal(ch_context_now(), CH_CONTEXT_REPLICA);
    ch_step_out(s, "y", ch_mul(ch_step_in(s, 0), ch_number(s, 2)));
}

static void run_reduce_and_gather(ch_strategy *st)
{
    int          n = ch_strategy_replicas(st);
    ch_function *f = t_function(times_two, NULL);
    ch_tuple    *in = NULL, *out = NULL, *each[T_TPUS];
    ch_tensor   *t = NULL;
    ch_value    *y;
    double       want[2 * T_TPUS];

    t_ok(ch_strategy_distribute_values_from_function(st, row_of, NULL, &in));
    assert_int_equal(ch_value_kind_of(ch_tuple_at(in, 0)), CH_PER_REPLICA); /* n = 1 too */
    t_ok(ch_strategy_run(st, f, in, &out));
    assert_int_equal(ch_function_recordings(f), 1); /* for all replicas */
    y = ch_tuple_at(out, 0);
    assert_int_equal(ch_value_kind_of(y), n > 1 ? CH_PER_REPLICA : CH_PLAIN);
    t_ok(ch_strategy_local_results(st, out, n, each));
    for (int r = 0; r < n; r++) {
        want[2 * r] = 2 * r;
        want[2 * r + 1] = 2 * n;
        t_is(ch_value_at(ch_tuple_at(each[r], 0), 0), CH_F32, ch_shape_of(1, 2), &want[2 * r]);
        ch_tuple_unref(each[r]);
    }
    t_ok(ch_strategy_gather(st, y, 0, &t));
    t_on(t, "CPU:0");
    t_gave(t, CH_F32, ch_shape_of(n, 2), want);
    t_ok(ch_strategy_reduce(st, CH_SUM, y, CH_NO_AXIS, &t));
    t_on(t, "CPU:0");
    t_gave(t, CH_F32, ch_shape_of(1, 2), N(n * (n - 1), 2 * n * n));
    t_ok(ch_strategy_reduce(st, CH_MEAN, y, CH_NO_AXIS, &t));
    t_gave(t, CH_F32, ch_shape_of(1, 2), N(n - 1, 2 * n));
    t_ok(ch_strategy_reduce(st, CH_SUM, y, 1, &t));
    t_gave(t, CH_F32, ch_shape_of(1), N(n * (n - 1) + 2 * n * n));
    t_refused(ch_strategy_reduce(st, CH_SUM, y, 2, &t), CH_INVALID_ARGUMENT, "axis 2",
              "rank 2");
    t_refused(ch_strategy_gather(st, y, 2, &t), CH_INVALID_ARGUMENT, "axis 2", "rank 2");
    if (n > 1) {
        ch_value *plain = t_value(CH_PLAIN, 1, (ch_tensor *[]){t_number(CH_F32, 0)});

        t_refused(ch_strategy_reduce(st, CH_SUM, plain, CH_NO_AXIS, &t), CH_INVALID_ARGUMENT,
                  "a plain value cannot be", "replicas");
        ch_value_unref(plain);
    }
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_function_unref(f);
}

/* TPN-3, TPN-4, TPN-13, TPD-4, TPD-5, TPD-6, TPD-7, TPD-8, TPD-9, TPI-8: the results of a step are
 * gathered and reduced on the host. */
static void values_are_run_reduced_and_gathered(void **state)
{
    ch_reduce_op op;

    under_all(run_reduce_and_gather);
    t_ok(ch_reduce_op_parse("SUM", &op));
    assert_int_equal(op, CH_SUM);
    t_ok(ch_reduce_op_parse("mean", &op));
    assert_int_equal(op, CH_MEAN);
    (void)state;
}

static void nothing(ch_step *s, void *arg)
{
    (void)arg;
    (void)ch_step_in(s, 0);
}

static void run_with_wrong_inputs(ch_strategy *st)
{
    int          n = ch_strategy_replicas(st);
    ch_function *f = t_function(nothing, NULL);
    ch_tuple    *in = NULL, *out = NULL;
    ch_tensor   *x[T_TPUS + 1];

    t_ok(ch_strategy_distribute_values_from_function(st, row_of, NULL, &in));
    t_ok(ch_strategy_run(st, f, in, &out));
    assert_int_equal(ch_tuple_count(out), 0);
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    for (int r = 0; r < n && n > 1; r++) /* the last replica has another dtype */
        x[r] = t_number(r < n - 1 ? CH_F32 : CH_I32, 1);
    if (n > 1) {
        in = t_each(n, x);
        assert_int_equal(ch_strategy_run(st, f, in, NULL), CH_INVALID_ARGUMENT);
        ch_tuple_unref(in);
    }
    for (int r = 0; r <= n; r++) /* a component too many */
        x[r] = t_number(CH_F32, 1);
    in = t_each(n + 1, x);
    assert_int_equal(ch_strategy_run(st, f, in, NULL), CH_INVALID_ARGUMENT);
    ch_tuple_unref(in);
    ch_function_unref(f);
}

/* TPN-9, TPN-12 */
static void inputs_of_replicas_must_agree_and_results_may_be_none(void **state)
{
    under_all(run_with_wrong_inputs);
    (void)state;
}

/* Reads all elements of `it` as text; "/" separates replicas. */
static const char *all_of(ch_iterator *it)
{
    static t_given g;

    memset(&g, 0, sizeof(g));
    t_take(it, -1, &g);
    ch_iterator_unref(it);
    return g.text;
}

static const char *distribute(ch_strategy *st, ch_dataset *d)
{
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    ch_dataset_unref(d);
    return all_of(it);
}

static void is_text_of(int n, const char *text, const char *of_1, const char *of_2,
                       const char *of_4, const char *of_8)
{
    assert_string_equal(text, n == 1 ? of_1 : n == 2 ? of_2 : n == 4 ? of_4 : of_8);
}

static void distribute_datasets(ch_strategy *st)
{
    int         n = ch_strategy_replicas(st);
    float       ones[10];
    ch_tensor  *t;
    ch_dataset *d;

    d = ch_dataset_batch(ch_dataset_range(0, 15, 1), 8, NULL);
    is_text_of(n, distribute(st, d), "0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14",
               "0 1 2 3 / 4 5 6 7 | 8 9 10 11 / 12 13 14",
               "0 1 / 2 3 / 4 5 / 6 7 | 8 9 / 10 11 / 12 13 / 14",
               "0 / 1 / 2 / 3 / 4 / 5 / 6 / 7 | 8 / 9 / 10 / 11 / 12 / 13 / 14 / ");
    d = ch_dataset_batch(ch_dataset_range(0, 7, 1), 7, NULL);
    is_text_of(n, distribute(st, d), "0 1 2 3 4 5 6", "0 1 2 3 / 4 5 6", "0 1 / 2 3 / 4 5 / 6",
               "0 / 1 / 2 / 3 / 4 / 5 / 6 / ");
    for (int i = 0; i < 10; i++)
        ones[i] = 1;
    t = t_f32(ch_shape_of(10), ones);
    d = ch_dataset_batch(ch_strategy_make_numpy_dataset(st, 1, &t, NULL), 8, NULL);
    ch_tensor_unref(t);
    is_text_of(n, distribute(st, d), "1 1 1 1 1 1 1 1 | 1 1", "1 1 1 1 / 1 1 1 1 | 1 1 / ",
               "1 1 / 1 1 / 1 1 / 1 1 | 1 1 /  /  / ",
               "1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 | 1 / 1 /  /  /  /  /  / ");
}

/* TPI-1, TPI-5, TPI-6, TPI-7, TPI-9: the order of the rows is that of the dataset; a replica may have
 * no rows. */
static void dataset_is_distributed_in_order(void **state)
{
    under_all(distribute_datasets);
    (void)state;
}

static ch_dataset *pairs(const ch_input_context *c, void *calls)
{
    int64_t size = 0;

    (*(int *)calls)++;
    assert_int_equal(c->n_pipelines, 1);
    assert_int_equal(c->pipeline, 0);
    t_ok(ch_input_context_batch_size(c, 16, &size));
    assert_int_equal(size * c->n_replicas, 16);
    return ch_dataset_batch(ch_dataset_range(0, 16, 1), 2, NULL);
}

static void distribute_from_function(ch_strategy *st)
{
    int               n = ch_strategy_replicas(st), calls = 0;
    ch_device *const *device;
    ch_iterator      *it = NULL;
    ch_tuple         *t = NULL;

    t_ok(ch_strategy_distribute_datasets_from_function(st, pairs, &calls, NULL, &it));
    assert_int_equal(calls, 1);
    is_text_of(n, all_of(it), "0 1 | 2 3 | 4 5 | 6 7 | 8 9 | 10 11 | 12 13 | 14 15",
               "0 1 / 2 3 | 4 5 / 6 7 | 8 9 / 10 11 | 12 13 / 14 15",
               "0 1 / 2 3 / 4 5 / 6 7 | 8 9 / 10 11 / 12 13 / 14 15",
               "0 1 / 2 3 / 4 5 / 6 7 / 8 9 / 10 11 / 12 13 / 14 15");
    t_ok(ch_strategy_worker_devices(st, &n, &device));
    for (int on_host = 0; on_host < 2; on_host++) {
        const ch_input_options opt = {.fetch_to_device = on_host ? CH_OFF : 0};

        t_ok(ch_strategy_distribute_datasets_from_function(st, pairs, &calls, &opt, &it));
        t_ok(ch_iterator_next(it, &t));
        for (int r = 0; r < n; r++) {
            const ch_tensor *x = ch_value_at(ch_tuple_at(t, 0), r);

            if (on_host)
                t_on(x, "CPU:0");
            else
                assert_ptr_equal(ch_tensor_device(x), device[r]);
        }
        ch_tuple_unref(t);
        ch_iterator_unref(it);
    }
}

/* TPI-3, TPI-4, TPS-5, TPS-6, TPS-8: the function is called once, for the only host. Elements
 * are on core 0 of the replicas, or on the host. */
static void dataset_function_is_called_once_for_the_host(void **state)
{
    under_all(distribute_from_function);
    (void)state;
}

static void replica_number(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x", ch_identity(ch_cast(ch_step_replica_id(s), CH_F32)));
}

static void move_values(ch_strategy *st)
{
    int               n = ch_strategy_replicas(st);
    ch_function      *f = t_function(replica_number, NULL);
    ch_var           *v = t_var(st, "v", t_number(CH_F32, 7));
    ch_tuple         *out = NULL;
    ch_value         *all = NULL;
    ch_device *const *device;
    ch_tensor        *t;
    int               n_devices;

    t_ok(ch_strategy_run(st, f, NULL, &out));
    t_ok(ch_strategy_worker_devices(st, &n_devices, &device));
    assert_int_equal(n_devices, n);
    t_ok(ch_strategy_reduce_to(st, CH_SUM, ch_tuple_at(out, 0), &(ch_destination){.var = v},
                               &all));
    assert_int_equal(ch_value_count(all), n);
    for (int r = 0; r < n; r++) {
        t_is(ch_value_at(all, r), CH_F32, ch_shape_scalar(), N(n * (n - 1) / 2));
        assert_ptr_equal(ch_tensor_device(ch_value_at(all, r)), device[r]);
    }
    ch_value_unref(all);
    all = NULL;
    t = t_number(CH_F32, 5);
    t_ok(ch_strategy_broadcast_to(st, t, &(ch_destination){.var = v}, &all));
    assert_int_equal(ch_value_count(all), n);
    t_is(ch_value_at(all, n - 1), CH_F32, ch_shape_scalar(), N(5));
    ch_value_unref(all);
    ch_tensor_unref(t);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_var_unref(v);
}

/* TPN-4, TPN-7: strategy.extended */
static void values_move_to_the_devices_of_variables(void **state)
{
    under_all(move_values);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_placed_on_worker_devices_stay_there),
        cmocka_unit_test(addition_is_assigned_to_a_logical_device),
        cmocka_unit_test(labels_and_output_are_replicated_for_the_loss),
        cmocka_unit_test(images_are_split_over_eight_cores),
        cmocka_unit_test(split_that_does_not_fit_is_an_error_in_the_order_of_the_page),
        cmocka_unit_test(eight_cores_of_two_by_two_do_not_fit_a_line),
        cmocka_unit_test(scope_makes_variables_of_the_strategy),
        cmocka_unit_test(values_are_run_reduced_and_gathered),
        cmocka_unit_test(inputs_of_replicas_must_agree_and_results_may_be_none),
        cmocka_unit_test(dataset_is_distributed_in_order),
        cmocka_unit_test(dataset_function_is_called_once_for_the_host),
        cmocka_unit_test(values_move_to_the_devices_of_variables),
    };

    return cmocka_run_group_tests(tests, t_eight_tpus, NULL);
}
