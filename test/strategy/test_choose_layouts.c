/* test/strategy/test_choose_layouts.c -- layouts that are found by search, in training:
 * variables are moved with their values before the first run, and keep their layouts; results
 * are those of one device; the memory of the devices is respected.
 *
 * test/spmd/test_search.c has the plans that the search finds.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"
#include "divided.h"
#include "tensor/device.h"

enum { CORES = 4 };

static ch_strategy *strategy(int n_replicas, const ch_tpu_options *opt)
{
    ch_tpu_build       b = {.n = 3, .shape = {1, 1, CORES}, .replicas = n_replicas};
    ch_resolver       *r = NULL;
    ch_tpu_topology   *t = NULL;
    ch_tpu_assignment *a = NULL;
    ch_strategy       *st = NULL;

    t_ok(ch_resolver_tpu("virtual:2x1x1x4", NULL, &r));
    t_ok(ch_tpu_initialize(r, &t));
    t_ok(ch_tpu_assignment_build(t, &b, &a));
    t_ok(ch_strategy_tpu(r, a, opt, &st));
    t_ok(ch_tpu_shutdown(r));
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(t);
    ch_resolver_unref(r);
    return st;
}

static ch_strategy *searching(int n_replicas)
{
    return strategy(n_replicas, &(ch_tpu_options){.spmd = true, .choose_layouts = true});
}

static void configure(const char *memory)
{
    ch__devices_reset();
    t_ok(ch__config_set("device_memory", memory));
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "TPU=8,GPU=1", .threads = 1}));
}

static int eight_cores(void **state)
{
    (void)state;
    configure("0");
    return 0;
}

/* Returns the parts of an axis of a variable, by the tile of core 0. */
static int64_t parts_of(ch_var *v, int axis)
{
    ch_tensor *t = NULL;
    int64_t    n;

    t_ok(ch_var_get_tile(v, 0, 0, &t));
    n = ch_var_shape(v).dim[axis] / ch_tensor_shape(t).dim[axis];
    ch_tensor_unref(t);
    return n;
}

/* ---- training ---- */

static const param mlp_vars[] = {{"kernel/a", {2, {8, 32}}, {0}},
                                 {"bias/a", {1, {32}}, {0}},
                                 {"kernel/b", {2, {32, 3}}, {0}},
                                 {"bias/b", {1, {3}}, {0}}};

static ch_node *mlp_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_tanh(ch_add(ch_matmul(x, false, w[0], false), w[1]));
    return ch_loss_mse(ch_add(ch_matmul(x, false, w[2], false), w[3]), y);
}

static ch_layer *conv_net(void)
{
    const ch_layer_conv_options same = {.padding = CH_PAD_SAME};

    return ch_layer_sequential("net", 4,
                               (ch_layer *[]){ch_layer_conv2d(4, 3, 3, &same),
                                              ch_layer_activation(CH_TANH), ch_layer_flatten(),
                                              ch_layer_dense(3, NULL)});
}

static ch_node *mean_square(ch_node *x, ch_node *y, ch_node *const *w)
{
    (void)w;
    return ch_loss_mse(x, y);
}

/* Trains 50 steps, also with short batches, in f64 with Adam. */
static void trains_as_on_one_device(const example *e, int n_replicas)
{
    static result got, want;

    train_under(unsharded(1), e, DOUBLES, false, &want);
    train_under(searching(n_replicas), e, DOUBLES, false, &got);
    check_close(&got, &want, want.n, 1e-10);
}

static void training_with_found_layouts_equals_that_of_one_device(void **state)
{
    const example mlp = {.n_in = 8,
                         .n_out = 3,
                         .n_vars = 4,
                         .var = mlp_vars,
                         .loss = mlp_loss,
                         .options = {.average = 0.9}};
    const example cnn = {.n_in = 8 * 8 * 2,
                         .n_out = 3,
                         .layer = conv_net,
                         .loss = mean_square,
                         .row = {3, {8, 8, 2}}};

    (void)state;
    trains_as_on_one_device(&mlp, 1);
    trains_as_on_one_device(&mlp, 2);
    trains_as_on_one_device(&cnn, 1);
}

/* ---- variables ---- */

enum { WIDE = 1024 }; /* wide enough that to divide a kernel saves more than a barrier costs */

/* Two functions with kernels in common. */
typedef struct two {
    ch_var *v[4]; /* those of the first function: 0 and 1; of the second: 0, 2 and 3 */
    bool    is_second;
} two;

static void record_two(ch_step *s, void *arg)
{
    const two *t = arg;
    ch_node   *x = ch_step_in(s, 0);

    for (int i = 0; i < 4; i++)
        if (t->is_second ? i != 1 : i < 2)
            x = ch_tanh(ch_matmul(x, false, ch_var_read(s, t->v[i]), false));
    ch_step_out(s, "y", x);
}

static void run_two(ch_strategy *st, two *t, ch_tuple *in, bool is_second, char *text,
                    size_t size)
{
    ch_function     *f = t_function(record_two, t);
    ch_layout_report planned, measured;

    t->is_second = is_second;
    t_ok(ch_strategy_run(st, f, in, NULL));
    t_ok(ch_function_report_layouts(f, &planned, &measured));
    assert_int_equal(planned.all_gather.bytes, measured.all_gather.bytes);
    assert_int_equal(planned.all_reduce.bytes, measured.all_reduce.bytes);
    (void)ch_function_print_layouts(f, text, size);
    ch_function_unref(f);
}

static ch_var *kernel(ch_strategy *st, const char *name, int64_t width, const int *split)
{
    ch_var *v = NULL;

    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = name,
                                   .shape = ch_shape_of(WIDE, width),
                                   .split = split,
                                   .n_split = 2,
                                   .init = ch_init_uniform(-0.1, 0.1)},
                    &v));
    return v;
}

static void keeps_value(ch_var *v, ch_tensor *want)
{
    ch_tensor *now = NULL;

    t_ok(ch_var_get(v, &now));
    assert_memory_equal(ch_tensor_data(now), ch_tensor_data(want),
                        (size_t)ch_tensor_count(want) * sizeof(float));
    ch_tensor_unref(now);
}

static void variables_move_with_their_values_and_keep_their_layouts(void **state)
{
    static char  text[1 << 16];
    ch_strategy *st = searching(1);
    two        t = {.v = {kernel(st, "layer/a", WIDE, NULL), kernel(st, "layer/b", WIDE, NULL),
                          kernel(st, "layer/c", WIDE, NULL), kernel(st, "layer/a_1", WIDE, NULL)}};
    ch_tensor *x = t_noise(ch_shape_of(1, WIDE), 3), *value[4];
    ch_tuple  *in = t_tuple(1, &x);
    int64_t    parts[2];

    (void)state;
    for (int i = 0; i < 4; i++) { /* as by a checkpoint that is loaded before the first run */
        value[i] = t_noise(ch_shape_of(WIDE, WIDE), (unsigned)i);
        t_ok(ch_var_set(t.v[i], value[i]));
    }
    run_two(st, &t, in, false, text, sizeof(text));
    assert_non_null(strstr(text, "layouts found by search: cost "));
    assert_non_null(strstr(text, "inputs  "));
    assert_non_null(strstr(text, "layer/b  f32(1024, 1024)  {"));
    assert_non_null(strstr(text, "start: variables along axis 0, inputs whole: cost "));
    assert_non_null(strstr(text, "read layer/a  f32(1024, 1024)  {"));
    assert_non_null(strstr(text, "each: found by search"));
    assert_int_equal(parts_of(t.v[0], 0) * parts_of(t.v[0], 1), CORES);
    parts[0] = parts_of(t.v[0], 0);
    parts[1] = parts_of(t.v[0], 1);
    run_two(st, &t, in, true, text, sizeof(text));
    /* layer/a_1 is of the class of layer/a, whose layout was found before */
    for (int axis = 0; axis < 2; axis++) {
        assert_int_equal(parts_of(t.v[0], axis), parts[axis]);
        assert_int_equal(parts_of(t.v[3], axis), parts[axis]);
    }
    assert_null(strstr(text, "layer/a  f32(1024, 1024)  {1, 4}\n"));
    assert_non_null(strstr(text, "    layer/c  f32(1024, 1024)  "));
    for (int i = 0; i < 4; i++)
        keeps_value(t.v[i], value[i]);
    for (int i = 0; i < 4; i++) {
        ch_tensor_unref(value[i]);
        ch_var_unref(t.v[i]);
    }
    ch_tuple_unref(in);
    ch_strategy_unref(st);
}

static void layouts_that_the_program_chose_stay(void **state)
{
    static char         text[1 << 16];
    const ch_split_rule rule = {"by_rule", 2, {0, CH_OFF}};
    ch_strategy        *st = strategy(
               1,
               &(ch_tpu_options){.spmd = true, .choose_layouts = true, .n_rules = 1, .rule = &rule});
    const int  columns[] = {CH_OFF, 0}, rows[] = {0, CH_OFF};
    two        t = {.v = {kernel(st, "by_spec", WIDE, columns), kernel(st, "later", WIDE, NULL),
                          kernel(st, "by_rule", WIDE, NULL), kernel(st, "found", WIDE, NULL)}};
    ch_tensor *x = t_noise(ch_shape_of(1, WIDE), 3);
    ch_tuple  *in = t_tuple(1, &x);

    (void)state;
    t_ok(ch_var_split(t.v[1], 2, rows));
    run_two(st, &t, in, false, text, sizeof(text));
    run_two(st, &t, in, true, text, sizeof(text));
    assert_int_equal(parts_of(t.v[0], 1), CORES);
    assert_int_equal(parts_of(t.v[1], 0), CORES);
    assert_int_equal(parts_of(t.v[2], 0), CORES);
    assert_null(strstr(text, "    by_rule  f32"));
    assert_non_null(strstr(text, "    found  f32"));
    t_refused(ch_var_split(t.v[3], 2, rows), CH_FAILED_PRECONDITION, "found", "used it");
    for (int i = 0; i < 4; i++)
        ch_var_unref(t.v[i]);
    ch_tuple_unref(in);
    ch_strategy_unref(st);
}

/* ---- memory ---- */

enum { SIDE = 64, CHANNELS = 8, FILTERS = 3 };

/* Convolutions of one image, trained. */
typedef struct image_net {
    ch_var       *filter[FILTERS];
    ch_optimizer *o;
} image_net;

static void record_image(ch_step *s, void *arg)
{
    const ch_conv_options same = {.padding = CH_PAD_SAME};
    image_net            *n = arg;
    ch_node              *x = ch_step_in(s, 0), *loss;

    for (int i = 0; i < FILTERS; i++)
        x = ch_tanh(ch_conv2d(x, ch_var_read(s, n->filter[i]), &same));
    loss = ch_mean_all(ch_square(x));
    ch_optimizer_minimize(n->o, s, loss, FILTERS, n->filter);
    ch_step_out(s, "loss", loss);
}

/* Runs two steps. Sets *planned to the report and text to the printed plan, if they succeed. */
static ch_status train_image(const char *memory, ch_layout_report *planned, char *text,
                             size_t size)
{
    image_net    n;
    ch_tensor   *x = NULL;
    ch_tuple    *in;
    ch_function *f = NULL;
    ch_strategy *st;
    ch_status    rc = CH_OK;

    configure(memory);
    st = searching(1);
    x = t_noise(ch_shape_of(1, SIDE, SIDE, CHANNELS), 1);
    in = t_tuple(1, &x);
    for (int i = 0; i < FILTERS; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "filter%d", i);
        t_ok(ch_var_new(st,
                        &(ch_var_spec){.name = name,
                                       .shape = ch_shape_of(3, 3, CHANNELS, CHANNELS),
                                       .init = ch_init_uniform(-0.1, 0.1)},
                        &n.filter[i]));
    }
    t_ok(ch_optimizer_adam(0.01, NULL, NULL, &n.o));
    f = t_function(record_image, &n);
    for (int i = 0; i < 2 && rc == CH_OK; i++)
        rc = ch_strategy_run(st, f, in, NULL);
    if (rc == CH_OK) {
        t_ok(ch_function_report_layouts(f, planned, NULL));
        (void)ch_function_print_layouts(f, text, size);
    }
    ch_function_unref(f);
    ch_tuple_unref(in);
    for (int i = 0; i < FILTERS; i++)
        ch_var_unref(n.filter[i]);
    ch_optimizer_unref(n.o);
    ch_strategy_unref(st);
    return rc;
}

static void image_that_exceeds_the_memory_of_a_core_is_split(void **state)
{
    static char      text[1 << 16];
    ch_layout_report planned;
    const int64_t    value = SIDE * SIDE * CHANNELS * 4;

    (void)state;
    t_ok(train_image("600K", &planned, text, sizeof(text)));
    assert_non_null(strstr(text, "inputs  split along axis 1\n"));
    assert_non_null(strstr(text, "exceeds the memory\n"));
    assert_true(planned.halo.bytes > 0);
    for (int c = 0; c < CORES; c++)
        assert_in_range(planned.peak_bytes[c], value / 2, 600 << 10);
    assert_int_equal(train_image("100K", &planned, text, sizeof(text)), CH_RESOURCE_EXHAUSTED);
    assert_ptr_equal(
        strstr(ch_error_message(), "step: no layouts fit the memory of the devices"),
        ch_error_message()); /* the name of the step is there once */
    assert_non_null(strstr(ch_error_message(), "for slots"));
    configure("0");
}

enum { TABLE_ROWS = 4096, TABLE_COLUMNS = 64, IDS = 512 };

static void record_lookup(ch_step *s, void *table)
{
    ch_step_out(s, "y", ch_sum_all(ch_gather(ch_var_read(s, table), ch_step_in(s, 0), 0)));
}

static void record_matrices(ch_step *s, void *arg)
{
    ch_node *x = ch_matmul(ch_step_in(s, 0), true, ch_step_in(s, 0), false);

    (void)arg;
    ch_step_out(s, "y", ch_sum_all(ch_softmax(ch_matmul(x, false, x, false), -1)));
}

/* Runs lookups in a table of 1 MiB on devices with `limit` bytes, after a step that needs a
 * large workspace if `is_after` is set. */
static ch_status look_up(int64_t limit, bool is_after)
{
    ch_tensor   *ids = NULL, *x = t_noise(ch_shape_of(16, 256), 1), *value;
    ch_tuple    *in, *large = t_tuple(1, &x);
    ch_var      *table = NULL;
    ch_function *f, *before = t_function(record_matrices, NULL);
    ch_strategy *st;
    char         memory[32];
    ch_status    rc;

    (void)snprintf(memory, sizeof(memory), "%lld", (long long)limit);
    configure(memory);
    st = searching(1);
    t_ok(ch_tensor_new(CH_I32, ch_shape_of(IDS), &ids));
    for (int i = 0; i < IDS; i++)
        ((int32_t *)ch_tensor_data_mut(ids))[i] = i;
    in = t_tuple(1, &ids);
    if (is_after)
        t_ok(ch_strategy_run(st, before, large, NULL));
    t_ok(ch_var_new(
        st, &(ch_var_spec){.name = "table", .shape = ch_shape_of(TABLE_ROWS, TABLE_COLUMNS)},
        &table));
    value = t_noise(ch_shape_of(TABLE_ROWS, TABLE_COLUMNS), 2);
    t_ok(ch_var_set(table, value));
    f = t_function(record_lookup, table);
    rc = ch_strategy_run(st, f, in, NULL);
    keeps_value(table, value);
    ch_function_unref(f);
    ch_function_unref(before);
    ch_var_unref(table);
    ch_tensor_unref(value);
    ch_tuple_unref(in);
    ch_tuple_unref(large);
    ch_strategy_unref(st);
    configure("0");
    return rc;
}

/* The old and the new tile of the table together exceed most of these limits. */
static void tiles_move_when_the_device_has_no_room_for_old_and_new(void **state)
{
    const int64_t table = (int64_t)TABLE_ROWS * TABLE_COLUMNS * 4;

    (void)state;
    for (int64_t limit = table / CORES + (64 << 10); limit < 2 * table; limit += 64 << 10)
        if (look_up(limit, false) != CH_OK)
            fail_msg("%lld bytes: %s", (long long)limit, ch_error_message());
}

/* After a step with a large workspace, which is not used any more. */
static void tiles_move_into_the_workspace_of_an_earlier_step(void **state)
{
    const int64_t table = (int64_t)TABLE_ROWS * TABLE_COLUMNS * 4;

    (void)state;
    for (int64_t limit = table * 5 / 4; limit < 2 * table; limit += 64 << 10)
        if (look_up(limit, true) != CH_OK)
            fail_msg("%lld bytes: %s", (long long)limit, ch_error_message());
}

enum { LAYERS = 6 };

typedef struct model_run {
    ch_model     *model;
    ch_optimizer *o;
    bool          is_image;
} model_run;

static void record_model(ch_step *s, void *arg)
{
    model_run     *m = arg;
    ch_node       *y = ch_model_call(m->model, s, ch_step_in(s, 0), true);
    ch_node       *loss = ch_loss_average(ch_loss_mse(y, ch_step_in(s, 1)), NULL);
    ch_var *const *v;
    int            n = ch_model_trainable(m->model, &v);

    ch_optimizer_minimize(m->o, s, loss, n, v);
    ch_step_out(s, "loss", loss);
}

/* Trains six layers of different widths on devices with `limit` bytes for a step. */
static ch_status train_layers(int64_t limit)
{
    const ch_layer_dense_options relu = {.activation = CH_RELU};
    ch_tensor                   *t[2] = {t_noise(ch_shape_of(64, 32), 1),
                                         t_noise(ch_shape_of(64, 64 + LAYERS - 1), 2)};
    ch_tuple                    *in = t_tuple(2, t);
    ch_layer                    *layer[LAYERS];
    model_run                    m = {.is_image = false};
    ch_function                 *f = t_function(record_model, &m);
    char                         memory[32];
    ch_strategy                 *st;
    ch_status                    rc;

    (void)snprintf(memory, sizeof(memory), "%lld", (long long)limit);
    configure(memory);
    st = searching(1);
    for (int i = 0; i < LAYERS; i++)
        layer[i] = ch_layer_dense(64 + i, &relu);
    t_ok(ch_model_new(
        st, ch_layer_sequential("net", LAYERS, layer),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 32)}}},
        &m.model));
    t_ok(ch_optimizer_adam(0.01, NULL, NULL, &m.o));
    rc = ch_strategy_run(st, f, in, NULL);
    if (rc != CH_OK) { /* the variables stay open: a smaller step may be tried */
        assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(ch_error_message(), "no layouts fit the memory of the devices"));
        assert_int_equal(ch_strategy_run(st, f, in, NULL), CH_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(ch_error_message(), "no layouts fit the memory of the devices"));
    }
    ch_function_unref(f);
    ch_tuple_unref(in);
    ch_model_unref(m.model);
    ch_optimizer_unref(m.o);
    ch_strategy_unref(st);
    return rc;
}

/* A plan is accepted only if its programs fit. A limit is enough if a smaller one is. */
static void step_that_fits_a_limit_fits_every_larger_one(void **state)
{
    int n[2] = {0, 0}; /* limits that are too small, and the others */

    (void)state;
    for (int64_t limit = 100000; limit <= 400000; limit += 10000) {
        ch_status rc = train_layers(limit);

        n[rc == CH_OK]++;
        if (rc != CH_OK && n[1] > 0)
            fail_msg("%lld bytes: %s", (long long)limit, ch_error_message());
    }
    assert_true(n[0] > 0 && n[1] > 0);
    configure("0");
}

/* ---- the estimate of the memory ---- */

/* Returns the estimate of the search divided by what the planner needs on the core with most
 * memory. */
static double estimate_of(ch_layer *l, ch_shape x, ch_shape y)
{
    static char      text[1 << 18];
    ch_strategy     *st;
    ch_tensor       *t[2] = {t_noise(x, 1), t_noise(y, 2)};
    ch_tuple        *in = t_tuple(2, t);
    model_run        m;
    ch_function     *f = t_function(record_model, &m);
    ch_shape         rows = x;
    ch_layout_report r;
    const char      *at;
    int64_t          most = 0;

    rows.dim[0] = -1;
    st = searching(1);
    t_ok(ch_model_new(st, l, &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, rows}}},
                      &m.model));
    t_ok(ch_optimizer_adam(0.01, NULL, NULL, &m.o));
    t_ok(ch_strategy_run(st, f, in, NULL));
    t_ok(ch_function_report_layouts(f, &r, NULL));
    for (int c = 0; c < CORES; c++)
        most = r.peak_bytes[c] > most ? r.peak_bytes[c] : most;
    (void)ch_function_print_layouts(f, text, sizeof(text));
    at = strstr(text, "memory of a device: about ");
    assert_non_null(at);
    ch_function_unref(f);
    ch_tuple_unref(in);
    ch_model_unref(m.model);
    ch_optimizer_unref(m.o);
    ch_strategy_unref(st);
    return strtod(at + strlen("memory of a device: about "), NULL) / (double)most;
}

static void estimated_memory_is_near_that_of_the_planner(void **state)
{
    const ch_layer_conv_options same = {.padding = CH_PAD_SAME};
    double                      of[3];

    (void)state;
    configure("64M");
    of[0] = estimate_of(ch_layer_sequential("mlp", 3,
                                            (ch_layer *[]){ch_layer_dense(256, NULL),
                                                           ch_layer_activation(CH_RELU),
                                                           ch_layer_dense(64, NULL)}),
                        ch_shape_of(64, 128), ch_shape_of(64, 64));
    of[1] = estimate_of(
        ch_layer_transformer_block(4, &(ch_layer_transformer_options){.causal = true}),
        ch_shape_of(8, 32, 64), ch_shape_of(8, 32, 64));
    of[2] = estimate_of(ch_layer_sequential("cnn", 3,
                                            (ch_layer *[]){ch_layer_conv2d(8, 3, 3, &same),
                                                           ch_layer_activation(CH_TANH),
                                                           ch_layer_conv2d(8, 3, 3, &same)}),
                        ch_shape_of(4, 32, 32, 8), ch_shape_of(4, 32, 32, 8));
    for (int i = 0; i < 3; i++)
        if (of[i] < 0.75 || of[i] > 1.4)
            fail_msg("model %d: the estimate is %.3f of the memory that is needed (%.3f, %.3f, "
                     "%.3f)",
                     i, of[i], of[0], of[1], of[2]);
    configure("0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_with_found_layouts_equals_that_of_one_device),
        cmocka_unit_test(variables_move_with_their_values_and_keep_their_layouts),
        cmocka_unit_test(layouts_that_the_program_chose_stay),
        cmocka_unit_test(image_that_exceeds_the_memory_of_a_core_is_split),
        cmocka_unit_test(tiles_move_when_the_device_has_no_room_for_old_and_new),
        cmocka_unit_test(tiles_move_into_the_workspace_of_an_earlier_step),
        cmocka_unit_test(step_that_fits_a_limit_fits_every_larger_one),
        cmocka_unit_test(estimated_memory_is_near_that_of_the_planner),
    };

    return cmocka_run_group_tests(tests, eight_cores, NULL);
}
