/* test/strategy/test_tpu.c -- TPUStrategy: its devices and properties, its variables, rules that
 * split them, and its errors.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"
#include "strategy/strategy.h"
#include "tensor/device.h"
#include "tpu.h"

/* Replicas of two cores in the order of a ring: the ordinals of their devices. */
static const int ring[] = {0, 1, 2, 3, 6, 7, 4, 5};

/* ---- devices and properties ---- */

/* Checks that device i has this ordinal. */
static void is_tpu(const ch_device *d, int ordinal)
{
    char want[64];

    snprintf(want, sizeof(want), "/job:localhost/replica:0/task:0/device:TPU:%d", ordinal);
    assert_string_equal(ch_device_name(d), want);
}

/* TPS-2, TPS-3, TPS-7: the resolver is NULL, and so is the assignment. */
static void every_tpu_device_is_a_replica_without_an_assignment(void **state)
{
    ch_strategy      *st = NULL;
    ch_device *const *device;
    int               n = 0;

    t_ok(ch_strategy_tpu(NULL, NULL, NULL, &st));
    assert_string_equal(ch_strategy_name(st), "TPU");
    assert_int_equal(ch_strategy_replicas(st), T_TPUS);
    assert_int_equal(ch_strategy_local_replicas(st), T_TPUS);
    assert_int_equal(ch_strategy_logical_devices(st), 1);
    t_ok(ch_strategy_worker_devices(st, &n, &device));
    assert_int_equal(n, T_TPUS);
    for (int i = 0; i < n; i++)
        is_tpu(device[i], i);
    ch_strategy_unref(st);
    (void)state;
}

/* TPS-4, TPS-7, TPS-10: a replica on the cores that the assignment gives to it. Its core 0 is
 * its worker device and its parameter device. */
static void replicas_are_on_the_cores_of_the_assignment(void **state)
{
    for (int spmd = 0; spmd < 2; spmd++) {
        ch_strategy      *st = t_tpu(4, 2, spmd);
        ch_device *const *device, *const *parameter;
        int n = 0;

        assert_int_equal(ch_strategy_replicas(st), 4);
        assert_int_equal(ch_strategy_logical_devices(st), 2);
        t_ok(ch__strategy_devices(st, &device));
        for (int i = 0; i < 8; i++)
            is_tpu(device[i], ring[i]);
        t_ok(ch_strategy_worker_devices(st, &n, &device));
        assert_int_equal(n, 4);
        for (int r = 0; r < 4; r++)
            is_tpu(device[r], ring[2 * r]);
        t_ok(ch_strategy_parameter_devices(st, &n, &parameter));
        assert_int_equal(n, 4);
        for (int r = 0; r < 4; r++)
            assert_ptr_equal(parameter[r], device[r]);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* TPS-1, TPS-11, TP-6 */
static void strategy_has_the_traits_and_the_resolver_of_the_page(void **state)
{
    ch_strategy       *st = t_tpu(1, 8, false);
    ch_strategy_traits t = ch_strategy_traits_of(st);
    ch_session_config  c;
    char               text[64];

    assert_true(t.requires_static_shapes);
    assert_false(t.is_multi_worker || t.between_graph);
    assert_true(t.should_init && t.should_checkpoint && t.should_save_summary);
    ch_strategy_configure(st, NULL, &c);
    assert_true(c.isolate_session_state);
    assert_non_null(ch_strategy_resolver(st));
    t_ok(ch_resolver_master(ch_strategy_resolver(st), NULL, -1, NULL, text, sizeof(text)));
    assert_string_equal(text, "");
    assert_non_null(strstr(ch_strategy_label(st), "(TPU:0, TPU:1, TPU:2, TPU:3 and 4 more)"));
    ch_strategy_unref(st);
    (void)state;
}

/* ---- variables ---- */

static ch_var *ones(ch_strategy *st, const char *name)
{
    return t_var(st, name, t_f32(ch_shape_of(2), (float[]){1, 1}));
}

/* Checks which of the devices have memory of v. */
static void is_on(const ch_var *v, int n, const int *ordinal)
{
    int found = 0;

    for (int i = 0; i < ch__var_tensors(v); i++)
        if (v->copy[i] != NULL) {
            assert_in_range(found, 0, n - 1);
            is_tpu(ch_tensor_device(v->copy[i]), ordinal[found++]);
        }
    assert_int_equal(found, n);
}

/* TPV-1, TPV-4: with spmd off each replica has one copy, on its core 0 or the chosen core. */
static void variable_is_on_the_current_logical_device(void **state)
{
    static const int first[] = {0, 2, 6, 4}, second[] = {1, 3, 7, 5};
    ch_strategy     *st = t_tpu(4, 2, false);
    ch_var          *v = ones(st, "v"), *w;

    is_on(v, 4, first);
    t_ok(ch_strategy_enter(st));
    t_ok(ch_logical_device_enter(NULL, 1));
    w = ones(NULL, "w");
    ch_logical_device_leave();
    ch_strategy_leave();
    is_on(w, 4, second);
    assert_ptr_equal(strstr(ch_var_device(v), "TPU:0"), strrchr(ch_var_device(v), 'T'));
    assert_string_equal(strrchr(ch_var_device(w), ':'), ":1");
    ch_var_unref(v);
    ch_var_unref(w);
    ch_strategy_unref(st);
    (void)state;
}

/* TPV-5, TPV-6: with spmd on every core has a copy. */
static void variable_is_on_every_core_with_spmd(void **state)
{
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7};

    for (int n_cores = 1; n_cores <= 2; n_cores++) {
        ch_strategy *st = t_tpu(8 / n_cores, n_cores, true);
        ch_var      *v = ones(st, "v");

        is_on(v, 8, n_cores == 1 ? all : ring);
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
    (void)state;
}

static void prints(ch_strategy *st, const char *const *name)
{
    ch_var *v = ones(st, "w");
    char    text[1024], want[64];

    ch_var_print(v, text, sizeof(text));
    if (ch_strategy_replicas(st) == 1) {
        snprintf(want, sizeof(want), "%s tensor(", name[0]);
        assert_ptr_equal(strstr(text, want), text);
    }
    for (int r = 0; r < ch_strategy_replicas(st) && ch_strategy_replicas(st) > 1; r++) {
        snprintf(want, sizeof(want), "  %d: %s tensor(", r, name[r]);
        if (strstr(text, want) == NULL)
            fail_msg("\"%s\" has not \"%s\"", text, want);
    }
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* TPV-2, TPV-6: a copy that all cores of its replica have has the number of the replica in its
 * name, also that of replica 0. */
static void copies_have_the_names_of_the_specification(void **state)
{
    static const char *const copy[] = {"w", "w/replica_1", "w/replica_2", "w/replica_3"};
    static const char *const each[] = {"w/r:0", "w/r:1", "w/r:2", "w/r:3"};

    prints(t_tpu(4, 2, false), copy);
    prints(t_tpu(4, 2, true), each);
    prints(t_tpu(1, 8, false), copy);
    prints(t_tpu(1, 8, true), each);
    prints(t_tpu(4, 1, true), copy);
    (void)state;
}

static ch_status make_3(ch_var_spec *spec, void *calls)
{
    (*(int *)calls)++;
    spec->init = ch_init_constant(3);
    return CH_OK;
}

/* TPV-1, TPV-3: a hook sees the variable once, and all copies get the value; a variable beside
 * another is on its devices. */
static void variable_is_initialized_once_and_may_be_colocated(void **state)
{
    static const int second[] = {1, 3, 7, 5};
    ch_strategy     *st = t_tpu(4, 2, false);
    ch_var          *v = NULL, *beside;
    int              calls = 0;

    t_ok(ch_strategy_enter(st));
    t_ok(ch_logical_device_enter(NULL, 1));
    t_ok(ch_var_creator_enter(make_3, &calls));
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "v", .dtype = CH_F32, .shape = ch_shape_of(2)},
                    &v));
    ch_var_creator_leave();
    ch_logical_device_leave();
    t_ok(ch_colocate_enter(NULL, v));
    beside = ones(NULL, "beside");
    ch_colocate_leave();
    ch_strategy_leave();
    assert_int_equal(calls, 1);
    for (int r = 0; r < 4; r++)
        assert_true(t_copy_of(v, r, 1) == 3);
    is_on(beside, 4, second);
    ch_var_unref(v);
    ch_var_unref(beside);
    ch_strategy_unref(st);
    (void)state;
}

/* TPV-8: a value that is set outside a step is in every copy, also after the step has read it as
 * one value. */
static void value_is_set_in_every_copy(void **state)
{
    ch_strategy *st = t_tpu(2, 4, true);
    ch_var      *v = ones(st, "v");
    ch_tensor   *t = t_f32(ch_shape_of(2), (float[]){5, 6}), *got = NULL;

    t_ok(ch_var_set(v, t));
    for (int i = 0; i < 8; i++)
        assert_memory_equal(ch_tensor_data(v->copy[i]), ch_tensor_data(t), 8);
    t_ok(ch_var_get(v, &got));
    assert_memory_equal(ch_tensor_data(got), ch_tensor_data(t), 8);
    ch_tensor_unref(got);
    ch_tensor_unref(t);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void add_one(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, ch_ones_like(ch_var_read(s, v)));
}

/* A core writes to its copy without a step. The check after the next step names both devices. */
static void copies_of_replicas_and_cores_are_compared(void **state)
{
    t_ok(ch__config_set("check_copies", "true"));
    for (int m = 1; m < 8; m++) {
        ch_strategy *st = t_tpu(4, 2, true);
        ch_var      *v = ones(st, "v");
        ch_function *f = t_function(add_one, v);
        char         other[64];

        t_ok(ch_strategy_run(st, f, NULL, NULL));
        ((float *)ch_tensor_data_mut(v->copy[m]))[1] = 7;
        snprintf(other, sizeof(other), "and /job:localhost/replica:0/task:0/device:TPU:%d ",
                 ring[m]);
        t_refused(ch_strategy_run(st, f, NULL, NULL), CH_INTERNAL, "device:TPU:0 ", other);
        ch_function_unref(f);
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
    t_ok(ch__config_set("check_copies", "false"));
    (void)state;
}

/* ---- rules ---- */

static int  n_warnings;
static char warning[2][1024];

static void see(const ch_log_record *r, void *arg)
{
    (void)arg;
    if (strcmp(r->code, "split-rule") != 0)
        return;
    assert_int_equal(r->level, CH_LOG_WARNING);
    assert_in_range(n_warnings, 0, 1);
    snprintf(warning[n_warnings++], sizeof(warning[0]), "%s", r->text);
}

/* A rule without a variable is a warning after the first step that has run, and never again. A
 * rule whose variable another rule has matched before is none. */
static void rule_without_a_variable_is_a_warning_after_the_first_step(void **state)
{
    const ch_split_rule rule[] = {{"*kernel", 1, {0}},
                                  {"*dense_1/kernel", 1, {0}},
                                  {"*kernal", 1, {0}},
                                  {"later", 1, {0}}};
    ch_strategy        *st =
        t_tpu_with(2, 4, &(ch_tpu_options){.spmd = true, .n_rules = 4, .rule = rule});
    ch_var      *v = ones(st, "net/dense_1/kernel"), *bias[20];
    ch_function *f = t_function(add_one, v);

    n_warnings = 0;
    ch_log_set_sink(see, NULL, CH_LOG_WARNING);
    for (int i = 0; i < 20; i++) {
        char name[16];

        snprintf(name, sizeof(name), "bias_%02d", i);
        bias[i] = ones(st, name);
    }
    assert_int_equal(n_warnings, 0);
    for (int i = 0; i < 3; i++)
        t_ok(ch_strategy_run(st, f, NULL, NULL));
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_int_equal(n_warnings, 2);
    for (int i = 0; i < 2; i++) {
        assert_non_null(strstr(warning[i], ch_strategy_label(st)));
        assert_non_null(strstr(warning[i], i == 0 ? "\"*kernal\"" : "\"later\""));
        assert_non_null(strstr(warning[i], "bias_00, bias_01"));
        assert_non_null(strstr(warning[i], "bias_11 and 9 more"));
    }
    for (int i = 0; i < 20; i++)
        ch_var_unref(bias[i]);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void rule_that_does_not_fit_is_an_error_of_the_variable(void **state)
{
    static const struct {
        ch_split_rule rule;
        const char   *problem;
    } row[] = {
        {{"w*", 1, {0}}, "variable w: the split has 1 axis, want 2"},
        {{"w*", 3, {0, CH_OFF, CH_OFF}}, "variable w: the split has 3 axes, want 2"},
        {{"w*", 2, {CH_OFF, 2}}, "axis 1 is split over mesh axis 2 (want 0 to 1"},
        {{"w*", 2, {-7, CH_OFF}}, "mesh axis -7"},
        {{"w*", 2, {1, 1}}, "mesh axis 1 occurs twice, for axes 0 and 1"},
        {{"w*", 2, {CH_MESH_ALL, 0}}, "mesh axis 0 occurs twice, for axes 0 and 1"},
    };
    const ch_var_spec spec = {.name = "w", .dtype = CH_F32, .shape = ch_shape_of(4, 8)};

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        for (int spmd = 0; spmd < 2; spmd++) {
            ch_strategy *st = t_tpu_with(1, 8,
                                         &(ch_tpu_options){.spmd = spmd,
                                                           .n_mesh = 2,
                                                           .mesh = {2, 4},
                                                           .n_rules = 1,
                                                           .rule = &row[i].rule});
            ch_var      *v = NULL;

            t_refused(ch_var_new(st, &spec, &v), CH_INVALID_ARGUMENT, "split rule \"w*\"",
                      row[i].problem);
            ch_strategy_unref(st);
        }
    (void)state;
}

/* ---- errors ---- */

static void options_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        ch_tpu_options opt;
        const char    *problem;
    } row[] = {
        {{.n_mesh = 2, .mesh = {2, 2}}, "product of the axes of the logical mesh is 4, want 8"},
        {{.n_mesh = 2, .mesh = {4, 4}}, "the logical mesh is 16, want 8"},
        {{.n_mesh = 1, .mesh = {0}}, "axis 0 of the logical mesh has 0 logical devices"},
        {{.n_mesh = 2, .mesh = {-2, -4}}, "axis 0 of the logical mesh has -2 logical devices"},
        {{.n_mesh = 5}, "a logical mesh of 5 axes, want 0 to 4"},
        {{.n_rules = 1}, "1 split rules, and their list is NULL"},
        {{.communication = {.timeout_seconds = -1}}, "timeout_seconds is -1"},
    };
    const ch_tpu_build b = t_tpu_build(1, 8);

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        ch_strategy *st = NULL;

        t_refused(t_tpu_new("", &b, &row[i].opt, &st), CH_INVALID_ARGUMENT,
                  "TPU: ", row[i].problem);
        assert_null(st);
    }
    t_refused(ch_strategy_tpu(NULL, NULL, NULL, NULL), CH_INVALID_ARGUMENT, "TPU strategy",
              "out is NULL");
    (void)state;
}

/* Creates a strategy from an assignment of a topology that is not that of the resolver. If
 * is_initialized is false, the resolver has no topology. */
static ch_status with_assignment(const ch_tpu_mesh *mesh, const ch_tpu_build *b,
                                 bool is_initialized)
{
    ch_resolver       *r = NULL;
    ch_tpu_topology   *own = NULL, *other = NULL;
    ch_tpu_assignment *a = NULL;
    ch_strategy       *st = NULL;
    ch_status          rc;

    t_ok(ch_resolver_tpu("", NULL, &r));
    if (is_initialized)
        t_ok(ch_tpu_initialize(r, &own));
    t_ok(ch_tpu_topology_new(mesh, &other));
    t_ok(ch_tpu_assignment_build(other, b, &a));
    rc = ch_strategy_tpu(r, a, NULL, &st);
    if (is_initialized)
        t_ok(ch_tpu_shutdown(r));
    ch_strategy_unref(st);
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(own);
    ch_tpu_topology_unref(other);
    ch_resolver_unref(r);
    return rc;
}

static void assignment_must_be_of_the_cores_of_this_process(void **state)
{
    static const ch_tpu_mesh same = {.size = {2, 2, 1, 2}}, line = {.size = {1, 1, 1, 8}},
                             large = {.size = {3, 2, 1, 2}},
                             tasks = {.size = {2, 2, 1, 2}, .tasks = 2},
                             many = {.size = {1, 1, 1, 65}};
    const ch_tpu_build one = {.replicas = 2}, all = {.replicas = 12}, last = {.replicas = 8},
                       wide = {.n = 4, .shape = {1, 1, 1, 65}};

    t_ok(with_assignment(&same, &one, true));
    t_ok(with_assignment(&line, &one, false)); /* the cores exist */
    t_refused(with_assignment(&line, &one, true), CH_INVALID_ARGUMENT,
              "is of another topology: a mesh of 1x1x1x8 with 1 tasks of 8 devices",
              "the TPU system has a mesh of 2x2x1x2 with 1 tasks of 8 devices");
    t_refused(with_assignment(&tasks, &one, true), CH_INVALID_ARGUMENT,
              "a mesh of 2x2x1x2 with 2 tasks of 4 devices", "1 tasks of 8 devices");
    t_refused(with_assignment(&large, &all, false), CH_INVALID_ARGUMENT,
              "is device TPU:8 of task 0", "this process is task 0 with 8 TPU devices");
    t_refused(with_assignment(&tasks, &last, false), CH_INVALID_ARGUMENT,
              "core 0 of replica 4 is device TPU:0 of task 1", "this process is task 0");
    t_refused(with_assignment(&many, &wide, false), CH_INVALID_ARGUMENT,
              "gives 65 cores to each replica", "want at most 64");
    (void)state;
}

/* The topology of a resolver that was not initialized is that of its name, or of the system of
 * this process, or of COHORT_TPU_MESH. */
static void topology_is_checked_when_another_resolver_was_initialized(void **state)
{
    static const ch_tpu_mesh line = {.size = {1, 1, 1, 8}}, same = {.size = {2, 2, 1, 2}};
    static const char       *of_system[] = {"a mesh of 1x1x1x8", "has a mesh of 2x2x1x2"};
    const ch_tpu_build       two = {.replicas = 2};
    ch_resolver             *r = NULL, *named = NULL, *large = NULL;
    ch_tpu_topology         *t = NULL, *other = NULL;
    ch_tpu_assignment       *a = NULL;
    ch_strategy             *st = NULL;

    t_ok(ch_resolver_tpu("", NULL, &r));
    t_ok(ch_resolver_tpu("virtual:2x2x1x2", NULL, &named));
    t_ok(ch_resolver_tpu("virtual:4x4x1x2", NULL, &large));
    t_ok(ch_tpu_topology_new(&line, &other));
    t_ok(ch_tpu_assignment_build(other, &two, &a));
    t_refused(ch_strategy_tpu(named, a, NULL, &st), CH_INVALID_ARGUMENT, of_system[0],
              of_system[1]);
    t_ok(ch_tpu_initialize(r, &t));
    t_refused(ch_strategy_tpu(NULL, a, NULL, &st), CH_INVALID_ARGUMENT, of_system[0],
              of_system[1]);
    t_ok(ch_tpu_shutdown(r));
    t_ok(ch__config_set("tpu_mesh", "2x2x1x2"));
    t_refused(ch_strategy_tpu(NULL, a, NULL, &st), CH_INVALID_ARGUMENT, of_system[0],
              of_system[1]);
    t_ok(ch__config_set("tpu_mesh", ""));
    t_ok(ch_strategy_tpu(NULL, a, NULL, &st));
    ch_strategy_unref(st);
    t_refused(ch_strategy_tpu(large, NULL, NULL, &st), CH_INVALID_ARGUMENT,
              "the mesh 4x4x1x2 has 32 cores", "this process has 8 TPU devices");
    t_ok(with_assignment(&same, &two, false));
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(other);
    ch_tpu_topology_unref(t);
    ch_resolver_unref(large);
    ch_resolver_unref(named);
    ch_resolver_unref(r);
    (void)state;
}

static void replicas_must_not_share_a_core(void **state)
{
    ch_tpu_topology   *t = NULL;
    ch_tpu_assignment *a = NULL;

    t_ok(ch_tpu_topology_new(&(ch_tpu_mesh){.size = {2, 2, 1, 2}}, &t));
    t_refused(ch_tpu_assignment_from_cores(t, 2, 2, 3,
                                           (int[]){0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1}, &a),
              CH_INVALID_ARGUMENT, "core 1 of replica 1, (0, 0, 0, 1)", "occurs twice");
    assert_null(a);
    ch_tpu_topology_unref(t);
    (void)state;
}

static void resolver_must_be_of_a_local_tpu_system(void **state)
{
    ch_resolver *r = NULL;
    ch_strategy *st = NULL;

    t_ok(ch_resolver_tpu("grpc://10.0.0.1", NULL, &r));
    t_refused(ch_strategy_tpu(r, NULL, NULL, &st), CH_UNIMPLEMENTED, "TPU strategy",
              "10.0.0.1:8470");
    ch_resolver_unref(r);
    (void)state;
}

static void process_without_tpu_devices_has_no_strategy(void **state)
{
    ch_strategy *st = NULL;

    ch__devices_reset();
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = 1}));
    t_refused(ch_strategy_tpu(NULL, NULL, NULL, &st), CH_NOT_FOUND, "TPU strategy",
              "COHORT_DEVICES");
    ch__devices_reset();
    (void)t_eight_tpus(state);
}

/* ---- runs ---- */

static void count(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    ch_step_out(s, "rows", ch_identity(ch_rows(x)));
    ch_step_out(s, "mean", ch_mean_all(x));
}

/* DYN-1, DYN-2, DYN-4: TensorFlow's options change nothing. No replica sees padding. */
static void options_of_dynamic_sizes_have_no_effect(void **state)
{
    static const ch_run_options opt[] = {
        {.seed = 0},
        {.dynamic_batch_size = CH_OFF},
        {.dynamic_padder = CH_OFF},
        {.dynamic_batch_size = 1, .dynamic_padder = 1, .bucketizing_dynamic_shape = true}};
    ch_strategy *st = t_tpu(4, 2, false);
    ch_function *f = t_function(count, NULL);

    for (int i = 0; i < 4; i++) {
        ch_tensor *x[4];
        ch_tuple  *in, *out = NULL;

        for (int r = 0; r < 4; r++) {
            x[r] = t_f32(ch_shape_of(r + 1), NULL);
            for (int k = 0; k <= r; k++)
                ((float *)ch_tensor_data_mut(x[r]))[k] = (float)(10 * r);
        }
        in = t_each(4, x);
        t_ok(ch_strategy_run_with(st, f, in, &opt[i], &out));
        for (int r = 0; r < 4; r++) {
            assert_int_equal(
                *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), r)), r + 1);
            assert_true(t_floats(out, 1, r)[0] == (float)(10 * r));
        }
        ch_tuple_unref(in);
        ch_tuple_unref(out);
    }
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tpu_device_is_a_replica_without_an_assignment),
        cmocka_unit_test(replicas_are_on_the_cores_of_the_assignment),
        cmocka_unit_test(strategy_has_the_traits_and_the_resolver_of_the_page),
        cmocka_unit_test(variable_is_on_the_current_logical_device),
        cmocka_unit_test(variable_is_on_every_core_with_spmd),
        cmocka_unit_test(copies_have_the_names_of_the_specification),
        cmocka_unit_test(variable_is_initialized_once_and_may_be_colocated),
        cmocka_unit_test(value_is_set_in_every_copy),
        cmocka_unit_test(copies_of_replicas_and_cores_are_compared),
        cmocka_unit_test(rule_without_a_variable_is_a_warning_after_the_first_step),
        cmocka_unit_test(rule_that_does_not_fit_is_an_error_of_the_variable),
        cmocka_unit_test(options_that_do_not_fit_are_refused),
        cmocka_unit_test(assignment_must_be_of_the_cores_of_this_process),
        cmocka_unit_test(topology_is_checked_when_another_resolver_was_initialized),
        cmocka_unit_test(replicas_must_not_share_a_core),
        cmocka_unit_test(resolver_must_be_of_a_local_tpu_system),
        cmocka_unit_test(process_without_tpu_devices_has_no_strategy),
        cmocka_unit_test(options_of_dynamic_sizes_have_no_effect),
    };

    return cmocka_run_group_tests(tests, t_eight_tpus, NULL);
}
