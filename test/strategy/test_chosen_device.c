/* test/strategy/test_chosen_device.c -- ch_logical_device_enter: variables and calls on one
 * logical device of each replica.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "cohort/logical.h"
#include "cohort/optimizer.h"
#include "cores.h"

enum { BATCH = 6, IN = 5, HIDDEN = 7, OUT = 3 };

/* Checks that only this device of each replica has a tile, and that it is the whole value. */
static void is_only_on(ch_var *v, int n_replicas, int n_cores, int device)
{
    ch_tensor *whole = NULL, *tile = NULL;

    t_ok(ch_var_get(v, &whole));
    for (int r = 0; r < n_replicas; r++)
        for (int c = 0; c < n_cores; c++) {
            if (c != device) {
                assert_int_equal(ch_var_get_tile(v, r, c, &tile), CH_NOT_FOUND);
                continue;
            }
            t_ok(ch_var_get_tile(v, r, c, &tile));
            assert_true(ch_shape_equal(ch_tensor_shape(tile), ch_tensor_shape(whole)));
            assert_memory_equal(ch_tensor_data(tile), ch_tensor_data(whole),
                                ch_tensor_bytes(whole));
            ch_tensor_unref(tile);
        }
    ch_tensor_unref(whole);
}

static ch_var *var_on(ch_strategy *st, int device, const char *name, ch_shape shape)
{
    ch_var *v = NULL;

    t_ok(ch_strategy_enter(st));
    t_ok(ch_logical_device_enter(NULL, device));
    t_ok(ch_var_new(
        st,
        &(ch_var_spec){
            .name = name, .dtype = CH_F32, .shape = shape, .init = ch_init_uniform(-1, 1)},
        &v));
    ch_logical_device_leave();
    ch_strategy_leave();
    return v;
}

static void add_one(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, ch_ones_like(ch_var_read(s, v)));
}

/* A variable is whole on one device: it is read, set, changed by steps, and cloned there. */
static void variable_is_on_the_chosen_device(void **state)
{
    for (int n_cores = 2; n_cores <= 4; n_cores += 2) {
        ch_strategy *st = t_cores_strategy(2, n_cores, NULL);
        ch_var      *v = var_on(st, 1, "v", ch_shape_of(3, 2)), *beside = NULL, *own = NULL;
        ch_function *f = t_function(add_one, v);
        ch_tensor   *t = t_f32(ch_shape_of(3, 2), (float[]){1, 2, 3, 4, 5, 6}), *now = NULL;

        is_only_on(v, 2, n_cores, 1);
        t_ok(ch_var_set(v, t));
        is_only_on(v, 2, n_cores, 1);
        t_ok(ch_strategy_run(st, f, NULL, NULL));
        is_only_on(v, 2, n_cores, 1);
        t_ok(ch_var_get(v, &now));
        for (int i = 0; i < 6; i++)
            assert_true(((const float *)ch_tensor_data(now))[i] == (float)(i + 2));
        ch_tensor_unref(now);

        t_ok(ch_strategy_enter(st));
        t_ok(ch_colocate_enter(st, v));
        t_ok(ch_logical_device_enter(st, 0)); /* colocation decides */
        t_ok(ch_var_new(st, &(ch_var_spec){.initial = t}, &beside));
        ch_logical_device_leave();
        ch_colocate_leave();
        t_ok(ch_logical_device_enter(st, 0)); /* the split of the variable decides */
        t_ok(ch_var_new(
            st, &(ch_var_spec){.initial = t, .split = (int[]){0, CH_OFF}, .n_split = 2}, &own));
        ch_logical_device_leave();
        ch_strategy_leave();
        is_only_on(beside, 2, n_cores, 1);
        t_ok(ch_var_get_tile(own, 0, n_cores - 1, &now));
        assert_true(ch_tensor_shape(now).dim[0] < 3);
        ch_tensor_unref(now);

        ch_var_unref(own);
        ch_var_unref(beside);
        ch_tensor_unref(t);
        ch_function_unref(f);
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* ---- two layers on two devices ---- */

typedef struct layers {
    ch_var       *w[2];
    ch_optimizer *adam;
    bool          is_on_devices;
} layers;

static ch_node *layer(ch_step *s, const layers *l, int i, ch_node *x)
{
    ch_node *y;

    if (l->is_on_devices)
        assert_int_equal(ch_logical_device_enter(NULL, i), CH_OK);
    y = ch_tanh(ch_matmul(x, false, ch_var_read(s, l->w[i]), false));
    if (l->is_on_devices)
        ch_logical_device_leave();
    return y;
}

static void train_layers(ch_step *s, void *arg)
{
    layers  *l = arg;
    ch_node *y = layer(s, l, 1, layer(s, l, 0, ch_step_in(s, 0)));
    ch_node *loss;

    if (l->is_on_devices)
        assert_int_equal(ch_logical_device_enter(NULL, 1), CH_OK);
    loss = ch_mean_all(ch_square(y));
    if (l->is_on_devices)
        ch_logical_device_leave();
    ch_step_out(s, "loss", loss);
    ch_optimizer_minimize(l->adam, s, loss, 2, l->w);
}

/* Trains 5 steps; copies the weights to `out`. */
static void train(ch_strategy *st, layers *l, float out[2][HIDDEN * IN],
                  ch_layout_report *planned, ch_layout_report *measured)
{
    ch_function *f = t_function(train_layers, l);
    float        x[BATCH * IN];
    ch_tensor   *t;
    ch_tuple    *in;

    for (int i = 0; i < BATCH * IN; i++)
        x[i] = (float)(i % 7) / 7 - 0.4F;
    t = t_f32(ch_shape_of(BATCH, IN), x);
    in = t_tuple(1, &t);
    for (int i = 0; i < 5; i++)
        t_ok(ch_strategy_run(st, f, in, NULL));
    if (planned != NULL)
        t_ok(ch_function_report_layouts(f, planned, measured));
    for (int i = 0; i < 2; i++) {
        t_ok(ch_var_get(l->w[i], &t));
        memcpy(out[i], ch_tensor_data(t), ch_tensor_bytes(t));
        ch_tensor_unref(t);
    }
    ch_tuple_unref(in);
    ch_function_unref(f);
}

/* The weights and their slots are on devices 0 and 1 and nowhere else. An activation moves
 * forward, and a gradient moves back. */
static void layers_on_two_devices_move_an_activation_and_a_gradient(void **state)
{
    ch_layout_report planned, measured;
    float            got[2][HIDDEN * IN], want[2][HIDDEN * IN];
    int64_t          activation = (int64_t)BATCH * HIDDEN * (int64_t)sizeof(float);

    for (int run = 0; run < 2; run++) {
        ch_strategy *st = run == 0 ? NULL : t_cores_strategy(1, 2, NULL);
        layers       l = {.is_on_devices = true};

        if (st == NULL)
            t_ok(ch_strategy_one_device("GPU:0", &st));
        l.w[0] = var_on(st, 0, "w0", ch_shape_of(IN, HIDDEN));
        l.w[1] = var_on(st, 1, "w1", ch_shape_of(HIDDEN, OUT));
        t_ok(ch_strategy_enter(st));
        t_ok(ch_optimizer_adam(0.01, NULL, NULL, &l.adam));
        ch_strategy_leave();
        if (run == 0) {
            train(st, &l, want, NULL, NULL);
        } else {
            train(st, &l, got, &planned, &measured);
            is_only_on(l.w[0], 1, 2, 0);
            is_only_on(l.w[1], 1, 2, 1);
            for (int i = 0; i < 2; i++) {
                is_only_on(ch_optimizer_slot(l.adam, l.w[i], "m"), 1, 2, i);
                is_only_on(ch_optimizer_slot(l.adam, l.w[i], "v"), 1, 2, i);
            }
        }
        ch_optimizer_unref(l.adam);
        ch_var_unref(l.w[0]);
        ch_var_unref(l.w[1]);
        ch_strategy_unref(st);
    }
    for (int i = 0; i < IN * HIDDEN; i++)
        assert_true(fabsf(got[0][i] - want[0][i]) < 1e-6F);
    for (int i = 0; i < HIDDEN * OUT; i++)
        assert_true(fabsf(got[1][i] - want[1][i]) < 1e-6F);
    assert_int_equal(measured.all_reduce.bytes + measured.reduce_scatter.bytes +
                         measured.all_gather.bytes + measured.all_to_all.bytes +
                         measured.halo.bytes + measured.other.bytes,
                     2 * activation);
    assert_int_equal(measured.other.bytes, planned.other.bytes);
    (void)state;
}

/* ---- graphs from messages ---- */

static void on_device_3(ch_step *s, void *arg)
{
    ch_node *x = ch_tanh(ch_step_in(s, 0));

    (void)arg;
    assert_int_equal(ch_logical_device_enter(NULL, 3), CH_OK);
    x = ch_exp(x);
    ch_logical_device_leave();
    ch_step_out(s, NULL, ch_replicate_to_logical_devices(x));
}

/* Returns a function of the graph of f, after it was encoded and decoded. */
static ch_function *decoded(ch_function *f)
{
    void        *bytes = NULL;
    size_t       n;
    ch_graph    *g = NULL;
    ch_function *back = NULL;

    t_ok(ch_graph_encode(ch_function_graph(f), &bytes, &n));
    t_ok(ch_graph_decode(bytes, n, &g));
    t_ok(ch_function_of_graph("decoded", g, &back));
    ch_graph_unref(g);
    ch_bytes_free(bytes);
    return back;
}

static void decoded_step_computes_on_the_chosen_device(void **state)
{
    ch_strategy *st = t_cores_strategy(1, 4, NULL), *two = t_cores_strategy(1, 2, NULL);
    ch_strategy *one = NULL;
    ch_function *f = t_function(on_device_3, NULL), *back;
    ch_tensor   *t = t_f32(ch_shape_of(3, 2), (float[]){1, 2, 3, 4, 5, 6});
    ch_tuple    *in = t_tuple(1, &t);
    char         text[1000];

    t_ok(ch_strategy_one_device("GPU:0", &one));
    t_ok(ch_strategy_run(st, f, in, NULL));
    for (int i = 0; i < 2; i++) {
        ch_function_print_layouts(f, text, sizeof(text));
        assert_non_null(strstr(text, "exp  f32(3, 2)  on core 3: ch_logical_device_enter"));
        back = decoded(f);
        t_ok(ch_strategy_run(st, back, in, NULL));
        ch_function_unref(f);
        f = back;
    }
    t_refused(ch_strategy_run(two, f, in, NULL), CH_INVALID_ARGUMENT, "logical device 3",
              "more logical devices than 2");
    t_ok(ch_strategy_run(one, f, in, NULL)); /* no logical devices: nothing is chosen */
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_strategy_unref(st);
    ch_strategy_unref(two);
    ch_strategy_unref(one);
    (void)state;
}

/* ---- errors ---- */

static void devices_that_do_not_exist_are_refused(void **state)
{
    ch_strategy *st = t_cores_strategy(1, 4, NULL), *other = t_mirrored(2);
    ch_var      *v;

    t_ok(ch_strategy_enter(st));
    t_refused(ch_logical_device_enter(st, 4), CH_INVALID_ARGUMENT, "logical device 4",
              "devices 0 to 3");
    t_refused(ch_logical_device_enter(st, -1), CH_INVALID_ARGUMENT, "logical device -1",
              "devices 0 to 3");
    t_refused(ch_logical_device_enter(other, 0), CH_FAILED_PRECONDITION, "mixing different",
              "Mirrored");
    for (int i = 0; i < 64; i++)
        t_ok(ch_logical_device_enter(st, i % 4));
    t_refused(ch_logical_device_enter(st, 0), CH_FAILED_PRECONDITION, "nested", "64");
    for (int i = 0; i < 64; i++)
        ch_logical_device_leave();
    ch_logical_device_leave(); /* does nothing */
    ch_strategy_leave();
    v = var_on(other, 1, "v", ch_shape_of(2)); /* no logical devices: nothing changes */
    is_only_on(v, 2, 1, 0);
    ch_var_unref(v);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variable_is_on_the_chosen_device),
        cmocka_unit_test(layers_on_two_devices_move_an_activation_and_a_gradient),
        cmocka_unit_test(decoded_step_computes_on_the_chosen_device),
        cmocka_unit_test(devices_that_do_not_exist_are_refused),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
