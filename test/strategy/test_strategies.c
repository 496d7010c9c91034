/* test/strategy/test_strategies.c -- each strategy: its devices, its properties and its calls;
 * and a custom strategy that the test implements.
 *
 * The numbers in comments are rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "../job/help.h"
#include "tensor/device.h"

#define LOCAL "/job:localhost/replica:0/task:0/device:"

static void devices_are(const char *spec)
{
    ch__devices_reset();
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = spec, .threads = 1}));
}

static int reset(void **state)
{
    (void)state;
    ch__devices_reset();
    return 0;
}

/* Returns the names of n devices without their common prefix: "GPU:0 GPU:1". */
static const char *names(int n, ch_device *const *device)
{
    static char text[200];
    int         at = 0;

    text[0] = '\0';
    for (int i = 0; i < n; i++)
        at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%s", i > 0 ? " " : "",
                       ch_device_name(device[i]) + strlen(LOCAL));
    return text;
}

/* Checks the devices of the replicas and of the variables of a strategy. */
static void is_on(ch_strategy *st, const char *workers, const char *parameters)
{
    ch_device *const *device = NULL;
    int               n = 0;

    t_ok(ch_strategy_worker_devices(st, &n, &device));
    assert_int_equal(n, ch_strategy_local_replicas(st));
    assert_string_equal(names(n, device), workers);
    t_ok(ch_strategy_parameter_devices(st, &n, &device));
    assert_string_equal(names(n, device), parameters);
}

/* Checks the devices of a variable. Releases the variable. */
static void var_is_on(ch_var *v, const char *where)
{
    ch_device *device[4];
    ch_value  *copies = NULL;
    int        n;

    t_ok(ch_var_copies(v, &copies));
    n = ch_value_count(copies);
    for (int i = 0; i < n; i++)
        device[i] = ch_tensor_device(ch_value_at(copies, i));
    assert_string_equal(names(n, device), where);
    ch_value_unref(copies);
    ch_var_unref(v);
}

static ch_var *new_var(ch_strategy *st, const char *name)
{
    ch_var *v = NULL;

    t_ok(ch_var_new(st, &(ch_var_spec){.name = name}, &v));
    return v;
}

/* ---- devices ---- */

static void mirrored_takes_accelerators_before_cores(void **state) /* 6.5.1 */
{
    static const char *const row[][2] = {{"CPU=2", "CPU:0 CPU:1"},
                                         {"CPU=2,GPU=3", "GPU:0 GPU:1 GPU:2"},
                                         {"GPU=3,TPU=2", "TPU:0 TPU:1"}};

    setenv("TF_CONFIG", "{\"cluster\": {\"worker\": [\"a:1\", \"b:1\"]}}", 1); /* ignored */
    for (int i = 0; i < 3; i++) {
        ch_strategy *st = NULL;

        devices_are(row[i][0]);
        t_ok(ch_strategy_mirrored(NULL, &st));
        assert_null(ch_strategy_resolver(st));
        is_on(st, row[i][1], row[i][1]);
        var_is_on(new_var(st, "v"), row[i][1]);
        ch_strategy_unref(st);
    }
    unsetenv("TF_CONFIG");
    (void)state;
}

static void
mirrored_and_central_storage_reject_a_repeated_device(void **state) /* 6.5.2, 6.4.4 */
{
    static const char *const twice[] = {"/gpu:1", "/device:GPU:1"};
    static const char *const none[] = {"/gpu:7"};
    ch_strategy             *st = NULL;

    devices_are("GPU=2");
    t_refused(
        ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = 2, .device = twice}, &st),
        CH_INVALID_ARGUMENT, "GPU:1", "twice");
    t_refused(ch_strategy_central_storage(
                  &(ch_central_storage_options){.n_compute = 2, .compute = twice}, &st),
              CH_INVALID_ARGUMENT, "GPU:1", "twice");
    t_refused(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = 1, .device = none}, &st),
              CH_INVALID_ARGUMENT, "GPU:7", "GPU:1");
    t_refused(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = -1}, &st),
              CH_INVALID_ARGUMENT, "-1", "mirrored");
    t_refused(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = 2}, &st),
              CH_INVALID_ARGUMENT, "NULL", "mirrored");
    assert_null(st);
    (void)state;
}

static ch_status mirrored_over(const char *const *name, int n, ch_strategy **out)
{
    return ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = n, .device = name}, out);
}

/* The error gives the value of the setting that includes all requested devices, and not only
 * the first missing device. */
static void strategy_error_names_the_setting_that_has_all_devices(void **state)
{
    static const char *const gpus[] = {"/gpu:0", "GPU:1"},
                             *mixed[] = {"cpu:2", "gpu:3", "tpu:0"},
                             *elsewhere[] = {"gpu:0", "/job:other/gpu:6"};
    const ch_central_storage_options all = {.type = "GPU"};
    ch_strategy                     *st = NULL;

    (void)state;
    devices_are("CPU=2");
    t_refused(mirrored_over(gpus, 2, &st), CH_INVALID_ARGUMENT, "mirrored strategy",
              "COHORT_DEVICES=CPU=2,GPU=2,");
    t_refused(mirrored_over(mixed, 3, &st), CH_INVALID_ARGUMENT, "no " LOCAL "CPU:2",
              "COHORT_DEVICES=CPU=3,GPU=4,TPU=1,");
    t_refused(mirrored_over(elsewhere, 2, &st), CH_INVALID_ARGUMENT, "no " LOCAL "GPU:0",
              "COHORT_DEVICES=CPU=2,GPU=1,");
    t_refused(ch_strategy_central_storage(&all, &st), CH_INVALID_ARGUMENT,
              "central storage strategy: there is no device of type \"GPU\"",
              "COHORT_DEVICES=CPU=2,GPU=1,");
    devices_are("CPU=2,GPU=2");
    t_ok(mirrored_over(gpus, 2, &st));
    ch_strategy_unref(st);
    t_ok(ch_strategy_central_storage(&all, &st));
    ch_strategy_unref(st);
}

/* 6.4.1, 6.4.2, 6.4.5 */
static void central_storage_keeps_variables_with_the_one_device_or_the_host(void **state)
{
    static const char *const row[][3] = {{"CPU=2", "CPU:0", "CPU:0"},
                                         {"GPU=1", "GPU:0", "GPU:0"},
                                         {"GPU=2", "GPU:0 GPU:1", "CPU:0"}};
    static const char *const compute[] = {"gpu:1", "/task:0/gpu:0"};
    ch_strategy             *st = NULL;

    for (int i = 0; i < 3; i++) {
        devices_are(row[i][0]);
        t_ok(ch_strategy_central_storage(NULL, &st));
        is_on(st, row[i][1], row[i][2]);
        var_is_on(new_var(st, "v"), row[i][2]);
        ch_strategy_unref(st);
    }
    t_ok(ch_strategy_central_storage(&(ch_central_storage_options){.n_compute = 2,
                                                                   .compute = compute,
                                                                   .parameter = "/gpu:1"},
                                     &st));
    is_on(st, "GPU:1 GPU:0", "GPU:1");
    ch_strategy_unref(st);
    (void)state;
}

static void one_device_requires_an_existing_device(void **state) /* 6.3.2 */
{
    ch_strategy *st = NULL;

    devices_are("GPU=2");
    t_refused(ch_strategy_one_device(NULL, &st), CH_INVALID_ARGUMENT, "the device", "NULL");
    t_refused(ch_strategy_one_device("/gpu:2", &st), CH_INVALID_ARGUMENT, "GPU:2", "GPU:1");
    t_ok(ch_strategy_one_device("/gpu:0", &st));
    is_on(st, "GPU:0", "GPU:0");
    ch_strategy_unref(st);
    t_ok(ch_device_enter(ch_device_at(2)));
    t_ok(ch_strategy_one_device("/task:0", &st)); /* the entered device completes the name */
    ch_device_leave();
    is_on(st, "GPU:1", "GPU:1");
    ch_strategy_unref(st);
    (void)state;
}

static void variables_ignore_the_entered_device_except_under_default(void **state) /* 6.4.3 */
{
    ch_strategy *st[3] = {NULL};

    devices_are("GPU=2");
    t_ok(ch_strategy_one_device("/gpu:0", &st[0]));
    t_ok(ch_strategy_mirrored(NULL, &st[1]));
    t_ok(ch_strategy_central_storage(NULL, &st[2]));
    t_ok(ch_device_enter(ch_device_at(2)));
    var_is_on(new_var(st[0], "v"), "GPU:0");
    var_is_on(new_var(st[1], "v"), "GPU:0 GPU:1");
    var_is_on(new_var(st[2], "v"), "CPU:0");
    var_is_on(new_var(NULL, "v"), "GPU:1"); /* Default uses the entered device */
    ch_device_leave();
    for (int i = 0; i < 3; i++)
        ch_strategy_unref(st[i]);
    (void)state;
}

/* ---- properties of all strategies ---- */

static void nothing(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "id", ch_step_replica_id(s));
}

typedef struct row {
    const char *name, *workers, *parameters; /* NULL: none */
    int         replicas;
    bool        isolates, between_graph;
} row;

static void is_as(ch_strategy *st, const row *want)
{
    ch_strategy_traits t = ch_strategy_traits_of(st);
    ch_session_config  in = {.device_filter = "/job:x"}, out = {0};
    ch_function       *f = t_function(nothing, NULL);
    ch_tuple          *results = NULL;

    assert_string_equal(ch_strategy_name(st), want->name);
    assert_int_equal(ch_strategy_replicas(st), want->replicas);
    assert_int_equal(ch_strategy_local_replicas(st), want->replicas);
    assert_null(ch_strategy_resolver(st)); /* not needed on a single machine */
    assert_true(t.should_init && t.should_checkpoint && t.should_save_summary);
    assert_false(t.is_multi_worker || t.requires_static_shapes);
    assert_int_equal(t.between_graph, want->between_graph);
    ch_strategy_configure(st, &in, &out);
    assert_int_equal(out.isolate_session_state, want->isolates);
    assert_string_equal(out.device_filter, "/job:x");
    assert_string_equal(out.collective_group_leader, "");
    t_ok(ch_strategy_run(st, f, NULL, &results));
    assert_int_equal(ch_value_kind_of(ch_tuple_at(results, 0)),
                     want->replicas > 1 ? CH_PER_REPLICA : CH_PLAIN);
    if (want->workers != NULL)
        is_on(st, want->workers, want->parameters);
    ch_tuple_unref(results);
    ch_function_unref(f);
}

/* For variables b and a, non-slot variables are placed with a. */
static void non_slots_go_with_the_first(ch_strategy *st)
{
    ch_var        *v[] = {new_var(st, "b"), new_var(st, "a"), new_var(st, "c")};
    ch_destination where = {0};

    t_ok(ch_strategy_non_slot_devices(st, 3, v, &where));
    assert_ptr_equal(where.var, v[1]);
    assert_null(where.device);
    for (int i = 0; i < 3; i++)
        ch_var_unref(v[i]);
}

static void strategies_report_their_devices_and_traits(void **state) /* 6.2, 1.5.4 */
{
    static const char *const gpu[] = {"/gpu:1"};
    static const row         want[] = {{"Default", NULL, NULL, 1, false, false},
                                       {"OneDevice", "GPU:1", "GPU:1", 1, false, false},
                                       {"Mirrored", "GPU:1", "GPU:1", 1, true, false},
                                       {"Mirrored", "GPU:0 GPU:1", "GPU:0 GPU:1", 2, true, false},
                                       {"CentralStorage", "GPU:1", "GPU:1", 1, true, true},
                                       {"CentralStorage", "GPU:0 GPU:1", "CPU:0", 2, true, true}};
    ch_strategy             *st[6] = {NULL};

    devices_are("GPU=2");
    t_ok(ch_strategy_one_device("/gpu:1", &st[1]));
    t_ok(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = 1, .device = gpu}, &st[2]));
    t_ok(ch_strategy_mirrored(NULL, &st[3]));
    t_ok(ch_strategy_central_storage(
        &(ch_central_storage_options){.n_compute = 1, .compute = gpu}, &st[4]));
    t_ok(ch_strategy_central_storage(NULL, &st[5]));
    for (int i = 0; i < 6; i++) {
        is_as(st[i], &want[i]);
        non_slots_go_with_the_first(st[i]);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

static void default_has_no_devices_of_its_own(void **state) /* 1.5.3, 1.5.4, 1.5.5 */
{
    ch_strategy      *none = ch_strategy_current();
    ch_device *const *device = NULL;
    ch_tensor        *one = NULL;
    ch_value         *out = NULL;
    ch_var           *v = new_var(NULL, "v");
    int               n = 0;

    t_refused(ch_strategy_worker_devices(NULL, &n, &device), CH_FAILED_PRECONDITION, "worker",
              "unsupported by Default");
    t_refused(ch_strategy_parameter_devices(none, &n, &device), CH_FAILED_PRECONDITION,
              "parameter", "unsupported by Default");
    one = t_f32(ch_shape_scalar(), NULL);
    t_refused(ch_strategy_broadcast_to(none, one, &(ch_destination){.device = "/cpu:0"}, &out),
              CH_UNIMPLEMENTED, "Default", "ch_tensor_to");
    assert_ptr_equal(ch_var_strategy(v), none);
    assert_int_equal(ch_strategy_replicas(none), 1);
    ch_tensor_unref(one);
    ch_var_unref(v);
    (void)state;
}

/* ---- every call under every strategy ---- */

static ch_dataset *rows_of_four(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return ch_dataset_batch(ch_dataset_range(0, 16, 1), 4, NULL);
}

static ch_status make_row(const ch_value_context *c, void *arg, ch_tuple **out)
{
    (void)arg;
    *out = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_of(1), (float[]){(float)c->replica})});
    return CH_OK;
}

static void twice(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_mul(ch_step_in(s, 0), ch_number(s, 2)));
    ch_step_out(s, "id", ch_step_replica_id(s));
}

/* Runs a step on an element of an iterator, and compares the sum of "y". Releases the
 * iterator. */
static void runs_on(ch_strategy *st, ch_iterator *it, double want)
{
    ch_function *f = t_function(twice, NULL);
    ch_tuple    *element = NULL, *out = NULL;
    ch_tensor   *sum = NULL;
    double       x = 0;

    t_ok(ch_iterator_get_next(it, &element));
    t_ok(ch_strategy_run(st, f, element, &out));
    t_ok(ch_strategy_reduce(st, CH_SUM, ch_tuple_get(out, "y"), 0, &sum));
    t_ok(ch_tensor_get(sum, NULL, &x));
    assert_true(x == want);
    ch_tensor_unref(sum);
    ch_tuple_unref(out);
    ch_tuple_unref(element);
    ch_iterator_unref(it);
    ch_function_unref(f);
}

static void takes_data(ch_strategy *st)
{
    double       n = ch_strategy_replicas(st);
    ch_dataset  *d = rows_of_four(NULL, NULL);
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    runs_on(st, it, 12); /* 0 to 3, twice */
    t_ok(ch_strategy_make_dataset_iterator(st, d, &it));
    runs_on(st, it, 12);
    t_ok(ch_strategy_distribute_datasets_from_function(st, rows_of_four, NULL, NULL, &it));
    runs_on(st, it, 4 * n * (4 * n - 1)); /* four rows for each replica */
    t_ok(ch_strategy_make_input_fn_iterator(st, rows_of_four, NULL, CH_PER_WORKER, &it));
    runs_on(st, it, 4 * n * (4 * n - 1));
    ch_dataset_unref(d);
}

static void takes_arrays_and_runs(ch_strategy *st)
{
    ch_tensor   *array = t_f32(ch_shape_of(4), (float[]){1, 2, 3, 4});
    ch_dataset  *d = ch_strategy_make_numpy_dataset(st, 1, &array, NULL);
    ch_function *f = t_function(twice, NULL);
    ch_iterator *it = NULL;
    ch_tuple    *out = NULL;

    d = ch_dataset_batch(d, 2, NULL);
    t_ok(ch_strategy_make_dataset_iterator(st, d, &it));
    t_ok(ch_strategy_experimental_run(st, f, it, &out));
    assert_true(t_floats(out, 0, 0)[0] == 2);
    ch_tuple_unref(out);
    t_ok(ch_strategy_run_steps(st, f, it, 1, &out));
    assert_true(t_floats(out, 0, 0)[0] == 6);
    ch_tuple_unref(out);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_tensor_unref(array);
    ch_function_unref(f);
}

static void puts_values_together(ch_strategy *st)
{
    ch_tuple  *values = NULL, *local[2] = {NULL, NULL};
    ch_tensor *all = NULL;
    int        n = ch_strategy_replicas(st);

    t_ok(ch_strategy_distribute_values_from_function(st, make_row, NULL, &values));
    t_ok(ch_strategy_local_results(st, values, n, local));
    t_ok(ch_strategy_gather(st, ch_tuple_at(values, 0), 0, &all));
    assert_int_equal(ch_tensor_count(all), n);
    for (int i = 0; i < n; i++) {
        assert_true(((const float *)ch_tensor_data(all))[i] == (float)i);
        assert_true(t_floats(local[i], 0, 0)[0] == (float)i);
        ch_tuple_unref(local[i]);
    }
    ch_tensor_unref(all);
    ch_tuple_unref(values);
}

static void program_calls_work_under_every_strategy(void **state) /* 6.7.1, 6.7.2 */
{
    ch_strategy *st[4] = {NULL};

    devices_are("GPU=2");
    t_ok(ch_strategy_one_device("/gpu:1", &st[1]));
    t_ok(ch_strategy_mirrored(NULL, &st[2]));
    t_ok(ch_strategy_central_storage(NULL, &st[3]));
    for (int i = 0; i < 4; i++) {
        const ch_session_config in = {.device_filter = "/job:worker"};
        ch_session_config       config = {0};

        takes_data(st[i]);
        takes_arrays_and_runs(st[i]);
        puts_values_together(st[i]);
        ch_strategy_configure(st[i], &in, &config); /* update_config_proto */
        assert_string_equal(config.device_filter, in.device_filter);
        assert_int_equal(config.isolate_session_state, i >= 2);
        assert_null(ch_strategy_resolver(st[i]));
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* ---- the calls of `extended` ---- */

static void set_to_input(ch_step *s, void *v)
{
    ch_step_out(s, "now", ch_var_assign(s, v, ch_step_in(s, 0)));
}

static void give_back(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x", ch_step_in(s, 0));
}

/* Returns a value with a 1 for each replica. */
static ch_value *ones_of(ch_strategy *st)
{
    int        n = ch_strategy_replicas(st);
    ch_tensor *t[2] = {t_f32(ch_shape_scalar(), (float[]){1}),
                       t_f32(ch_shape_scalar(), (float[]){1})};
    ch_value  *v = NULL;

    t_ok(ch_value_new(n == 1 ? CH_PLAIN : CH_PER_REPLICA, n, t, &v));
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return v;
}

static float first_of(const ch_value *v)
{
    return *(const float *)ch_tensor_data(ch_value_at(v, 0));
}

/* Reduces ones to the location of v and to the CPU. The result is the number of replicas n. */
static void reduces_to_places(ch_strategy *st, ch_var *v)
{
    ch_destination        cpu = {.device = "/cpu:0"}, beside = {.var = v};
    ch_value             *ones = ones_of(st), *out[2] = {NULL, NULL};
    const ch_value *const both[] = {ones, ones};
    float                 n = (float)ch_strategy_replicas(st);

    t_ok(ch_strategy_reduce_to(st, CH_SUM, ones, &cpu, &out[0]));
    assert_true(first_of(out[0]) == n);
    ch_value_unref(out[0]);
    t_ok(
        ch_strategy_batch_reduce_to(st, CH_SUM, 2, both, (ch_destination[]){cpu, beside}, out));
    for (int i = 0; i < 2; i++) {
        assert_true(first_of(out[i]) == n);
        ch_value_unref(out[i]);
    }
    if (st != NULL) { /* Default rejects it: 1.5.4 */
        t_ok(ch_strategy_broadcast_to(st, ch_value_at(ones, 0), &beside, &out[0]));
        assert_true(first_of(out[0]) == 1);
        ch_value_unref(out[0]);
    }
    ch_value_unref(ones);
}

/* An update sets v to 5, update_non_slot computes on v's devices, and another variable is
 * colocated with v. */
static void updates_and_colocates(ch_strategy *st, ch_var *v)
{
    ch_function   *set = t_function(set_to_input, v), *back = t_function(give_back, NULL);
    ch_tuple      *five = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){5})});
    ch_tuple      *out = NULL;
    ch_value      *copies = NULL;
    ch_tensor     *now = NULL;
    ch_var        *of, *beside = NULL;
    ch_destination where = {0};

    t_ok(ch_strategy_update(st, v, set, five, NULL));
    t_ok(ch_var_get(v, &now)); /* read_var */
    assert_true(*(const float *)ch_tensor_data(now) == 5);
    ch_tensor_unref(now);
    t_ok(ch_strategy_non_slot_devices(st, 1, &v, &where));
    t_ok(ch_strategy_update_non_slot(st, &where, back, five, &out));
    assert_true(t_floats(out, 0, 0)[0] == 5);
    ch_tuple_unref(out);
    t_ok(ch_var_copies(v, &copies));
    of = ch_strategy_value_container(st, ch_value_at(copies, 0));
    assert_ptr_equal(of, v);
    ch_var_unref(of);
    ch_value_unref(copies);
    if (st != NULL) {
        t_ok(ch_strategy_enter(st));
        t_ok(ch_colocate_enter(NULL, v));
        beside = new_var(NULL, "beside");
        ch_colocate_leave();
        ch_strategy_leave();
        assert_string_equal(ch_var_device(beside), ch_var_device(v));
        assert_ptr_equal(ch_var_strategy(beside), st); /* variable_created_in_scope */
        ch_var_unref(beside);
    }
    ch_tuple_unref(five);
    ch_function_unref(set);
    ch_function_unref(back);
}

/* 6.7.5: the devices and traits are tested in strategies_report_their_devices_and_traits,
 * arrays and runs of several steps in takes_arrays_and_runs. */
static void extended_calls_work_under_every_strategy(void **state)
{
    enum { STRATEGIES = 5 };
    ch_strategy *st[STRATEGIES] = {NULL};

    devices_are("GPU=2");
    t_ok(ch_strategy_one_device("/gpu:1", &st[1]));
    t_ok(ch_strategy_mirrored(NULL, &st[2]));
    t_ok(ch_strategy_central_storage(NULL, &st[3]));
    st[4] =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2, .devices = 2}, NULL, NULL);
    for (int i = 0; i < STRATEGIES; i++) {
        ch_var            *v = new_var(st[i], "v");
        ch_strategy_traits t = ch_strategy_traits_of(st[i]);
        ch_device *const  *device = NULL;
        int                n = 0;

        reduces_to_places(st[i], v);
        updates_and_colocates(st[i], v);
        takes_arrays_and_runs(st[i]);
        assert_int_equal(ch_strategy_worker_devices(st[i], &n, &device),
                         i == 0 ? CH_FAILED_PRECONDITION : CH_OK);
        assert_int_equal(ch_strategy_parameter_devices(st[i], &n, &device),
                         i == 0 ? CH_FAILED_PRECONDITION : CH_OK);
        assert_false(t.requires_static_shapes);
        assert_true(t.should_checkpoint && t.should_save_summary);
        assert_true(i == 0 || t.should_init);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* ---- a single device ---- */

static void one_device_runs_the_whole_step_on_its_device(void **state) /* 6.3.1, 6.3.3 */
{
    ch_strategy *st = NULL;
    ch_function *f = t_function(twice, NULL);
    float        sum = 0;

    devices_are("GPU=2");
    t_ok(ch_strategy_one_device("/gpu:0", &st));
    var_is_on(new_var(st, "v"), "GPU:0");
    for (int i = 0; i < 10; i++) {
        ch_tuple *in = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){i})});
        ch_tuple *out = NULL;

        t_ok(ch_strategy_run(st, f, in, &out));
        sum += t_floats(out, 0, 0)[0];
        assert_int_equal(
            *(const int32_t *)ch_tensor_data(ch_value_at(ch_tuple_get(out, "id"), 0)), 0);
        assert_ptr_equal(ch_tensor_device(ch_value_at(ch_tuple_at(out, 0), 0)),
                         ch_device_at(1));
        ch_tuple_unref(in);
        ch_tuple_unref(out);
    }
    assert_true(sum == 90);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- placement of variables, and updates there ---- */

typedef struct adding {
    ch_var *v;
    ch_node *(*assign)(ch_step *s, ch_var *v, ch_node *value);
} adding;

static void change(ch_step *s, void *arg)
{
    adding *a = arg;

    ch_step_out(s, "now", a->assign(s, a->v, ch_step_in(s, 0)));
}

static void one_device_updates_and_colocates_variables(void **state) /* 6.3.5 */
{
    ch_strategy *st = NULL;
    adding       a = {NULL, ch_var_assign_add};
    ch_function *f = t_function(change, &a);
    ch_tuple    *in, *out = NULL;

    devices_are("GPU=2");
    in = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){3})});
    t_ok(ch_strategy_one_device("/gpu:1", &st));
    a.v = new_var(st, "v");
    t_ok(ch_strategy_update(st, a.v, f, in, NULL));
    t_ok(ch_strategy_update(st, a.v, f, in, &out));
    assert_true(t_floats(out, 0, 0)[0] == 6 && t_copy_of(a.v, 0, 0) == 6);
    t_ok(ch_strategy_enter(st));
    t_ok(ch_colocate_enter(st, a.v));
    var_is_on(new_var(NULL, "w"), "GPU:1");
    ch_colocate_leave();
    ch_strategy_leave();
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    var_is_on(a.v, "GPU:1");
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* Returns the input plus the number of the copy plus 1. */
static void count_copies(ch_step *s, void *arg)
{
    ch_node *id = ch_cast(ch_step_replica_id(s), CH_F32);

    (void)arg;
    ch_step_out(s, "which", ch_add(ch_step_in(s, 0), ch_add(id, ch_number(s, 1))));
}

/* 6.5.9, 6.4.7: on each device of the copies, so once if replicas share a copy. */
static void update_non_slot_runs_on_each_device_of_the_copies(void **state)
{
    ch_strategy *st[2] = {NULL};
    ch_tuple    *in;
    ch_function *f = t_function(count_copies, NULL);

    devices_are("GPU=2");
    in = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){10})});
    t_ok(ch_strategy_mirrored(NULL, &st[0]));
    t_ok(ch_strategy_central_storage(NULL, &st[1]));
    for (int i = 0; i < 2; i++) {
        ch_var        *v = new_var(st[i], "v");
        ch_destination where = {0};
        ch_tuple      *out = NULL;

        t_ok(ch_strategy_non_slot_devices(st[i], 1, &v, &where));
        t_ok(ch_strategy_update_non_slot(st[i], &where, f, in, &out));
        assert_int_equal(ch_value_count(ch_tuple_at(out, 0)), i == 0 ? 2 : 1);
        for (int k = 0; k < (i == 0 ? 2 : 1); k++)
            assert_true(t_floats(out, 0, k)[0] == (float)(11 + k));
        for (int k = 0; k < (i == 0 ? 2 : 1); k++)
            assert_ptr_equal(ch_tensor_device(ch_value_at(ch_tuple_at(out, 0), k)),
                             ch_device_at(i == 0 ? k + 1 : 0));
        ch_tuple_unref(out);
        t_refused(ch_strategy_update_non_slot(st[i], &(ch_destination){0}, f, in, &out),
                  CH_INVALID_ARGUMENT, "neither a variable nor a device", "update_non_slot");
        t_ok(ch_strategy_update_non_slot(st[i], &(ch_destination){.device = "/gpu:1"}, f, in,
                                         &out));
        assert_ptr_equal(ch_tensor_device(ch_value_at(ch_tuple_at(out, 0), 0)),
                         ch_device_at(2));
        ch_tuple_unref(out);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)state;
}

static void set_seven(ch_step *s, void *v)
{
    ch_var_assign(s, v, ch_number(s, 7));
}

/* 6.5.9: a function on a device that does not have all copies of a variable must not change
 * some of the copies. */
static void update_non_slot_is_refused_when_copies_would_differ(void **state)
{
    ch_strategy *st[2] = {NULL};

    devices_are("GPU=3");
    st[0] = t_mirrored(2);
    st[1] = t_central(2);
    for (int i = 0; i < 2; i++) {
        ch_var      *v = new_var(st[i], "v");
        ch_function *f = t_function(set_seven, v);
        ch_value    *there = NULL;

        t_ok(ch_var_copies(v, &there));
        for (int k = 0; k < 3; k++) {
            char      name[] = {'g', 'p', 'u', ':', (char)('0' + k), '\0'};
            ch_status rc = ch_strategy_update_non_slot(st[i], &(ch_destination){.device = name},
                                                       f, NULL, NULL);

            if (i == 0)
                t_refused(rc, CH_FAILED_PRECONDITION, "variable v", "would differ");
            else
                t_ok(rc); /* the variable has a single copy */
        }
        assert_true(t_copy_of(v, 0, 0) == (i == 0 ? 0 : 7));
        t_ok(ch_strategy_update_non_slot(st[i], &(ch_destination){.value = there}, f, NULL,
                                         NULL));
        assert_true(t_copy_of(v, 0, 0) == 7 && t_copy_of(v, 1 - i, 0) == 7);
        ch_value_unref(there);
        ch_function_unref(f);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

static void update_non_slot_rejects_invalid_destinations(void **state)
{
    ch_strategy *st;
    ch_function *f = t_function(count_copies, NULL);
    ch_tensor   *t[3];
    ch_value    *three = NULL, *same = NULL;
    ch_tuple    *in;

    devices_are("GPU=2");
    st = t_mirrored(2);
    for (int i = 0; i < 3; i++)
        t[i] = t_f32(ch_shape_scalar(), NULL);
    t_ok(ch_value_new(CH_PER_REPLICA, 3, t, &three));
    t_ok(ch_value_new(CH_PER_REPLICA, 2, t, &same)); /* both on the host */
    in = t_tuple(1, t);
    t_refused(ch_strategy_update_non_slot(st, &(ch_destination){.value = three}, f, in, NULL),
              CH_INVALID_ARGUMENT, "3 components", "1 or 2");
    t_refused(ch_strategy_update_non_slot(st, &(ch_destination){.value = same}, f, in, NULL),
              CH_INVALID_ARGUMENT, "CPU:0", "a different one for each");
    t_refused(ch_strategy_update_non_slot(
                  st, &(ch_destination){.value = same, .device = "gpu:0"}, f, in, NULL),
              CH_INVALID_ARGUMENT, "more than one", "update_non_slot");
    ch_tensor_unref(t[1]);
    ch_tensor_unref(t[2]);
    ch_value_unref(three);
    ch_value_unref(same);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- a custom strategy ---- */

typedef struct alternating {
    ch_device *device[2];
    int        next, n_copies, cut_axis, n_parts;
    ch_status  rc; /* result of `place` */
    bool       is_closed;
} alternating;

static ch_device *const *own_devices(void *self)
{
    return ((alternating *)self)->device;
}

static ch_status own_place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    alternating *a = self;

    (void)spec;
    out->device[0] = a->device[a->next++ % 2];
    out->parts[a->cut_axis] = a->n_parts;
    out->n_copies = a->n_copies;
    return a->rc == CH_OK ? CH_OK : ch_fail(a->rc, "no more devices");
}

static void own_close(void *self)
{
    ((alternating *)self)->is_closed = true;
}

static const ch_strategy_ops own_ops = {"Alternating", own_devices, own_place, own_close};

static ch_strategy *new_own(alternating *a)
{
    ch_strategy *st = NULL;

    devices_are("CPU=2");
    *a = (alternating){.device = {ch_device_at(0), ch_device_at(1)}, .n_copies = 1};
    t_ok(ch_strategy_new(&own_ops, a, &(ch_strategy_parts){.n_replicas = 2}, &st));
    return st;
}

static void
colocated_variables_are_on_the_devices_of_the_other(void **state) /* 3.1.10, 3.1.16, 6.4.3 */
{
    alternating  a;
    ch_strategy *st = new_own(&a), *other = NULL;
    ch_var      *first = new_var(st, "first"), *foreign;

    t_ok(ch_strategy_mirrored(NULL, &other));
    foreign = new_var(other, "foreign");
    assert_ptr_equal(ch_var_strategy(first), st);
    assert_ptr_equal(ch_var_strategy(foreign), other);
    t_ok(ch_strategy_enter(st));
    var_is_on(new_var(st, "second"), "CPU:1");
    t_ok(ch_colocate_enter(st, first));
    t_ok(ch_device_enter(a.device[1]));
    for (int i = 0; i < 3; i++)
        var_is_on(new_var(st, "beside"), "CPU:0");
    ch_device_leave();
    t_refused(ch_colocate_enter(st, foreign), CH_INVALID_ARGUMENT, "another strategy",
              "foreign");
    ch_colocate_leave();
    var_is_on(new_var(st, "third"), "CPU:0");
    var_is_on(new_var(st, "fourth"), "CPU:1");
    ch_strategy_leave();
    var_is_on(first, "CPU:0");
    ch_var_unref(foreign);
    ch_strategy_unref(other);
    ch_strategy_unref(st);
    assert_true(a.is_closed);
    (void)state;
}

static void strategy_new_and_var_new_reject_an_invalid_custom_strategy(void **state)
{
    alternating     a;
    ch_strategy_ops without = own_ops;
    ch_strategy    *st = new_own(&a), *none = NULL;
    ch_var         *v = NULL;

    a.n_copies = 3; /* the layout has space for two */
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "v"}, &v), CH_INTERNAL, "3 copies",
              "Alternating");
    a.n_copies = 1;
    a.n_parts = 2;
    a.cut_axis = 1;
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "v", .shape = ch_shape_of(4)}, &v),
              CH_INVALID_ARGUMENT, "2 parts of axis 1", "variable v");
    a.cut_axis = 0;
    a.n_parts = -2;
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "v", .shape = ch_shape_of(4)}, &v),
              CH_INVALID_ARGUMENT, "-2 parts of axis 0", "variable v");
    a.n_parts = CH_LAYOUT_DEVICES + 1;
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "v", .shape = ch_shape_of(4)}, &v),
              CH_INVALID_ARGUMENT, "more than 4096 parts", "variable v");
    a.n_parts = 0;
    a.rc = CH_RESOURCE_EXHAUSTED;
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "v"}, &v), CH_RESOURCE_EXHAUSTED,
              "no more devices", "variable v");
    ch_strategy_unref(st);
    without.place = NULL;
    t_refused(ch_strategy_new(&without, &a, &(ch_strategy_parts){.n_replicas = 2}, &none),
              CH_INVALID_ARGUMENT, "Alternating", "NULL");
    t_refused(ch_strategy_new(&own_ops, &a, &(ch_strategy_parts){.n_replicas = 0}, &none),
              CH_INVALID_ARGUMENT, "0 replicas", "Alternating");
    t_refused(ch_strategy_new(&own_ops, &a, NULL, &none), CH_INVALID_ARGUMENT, "its parts",
              "NULL");
    t_refused(ch_strategy_new(NULL, &a, &(ch_strategy_parts){.n_replicas = 1}, &none),
              CH_INVALID_ARGUMENT, "its functions", "NULL");
    assert_null(none);
    (void)state;
}

/* Each replica needs its own device, at creation and in every run. */
static void strategy_new_rejects_a_missing_or_repeated_device(void **state)
{
    alternating  a;
    ch_strategy *st = new_own(&a), *none = NULL;
    ch_function *f = t_function(nothing, NULL);
    ch_device   *first = a.device[0];
    ch_tuple    *out = NULL;
    ch_var      *v = NULL;

    for (int i = 0; i < 2; i++) {
        const char *word = i == 0 ? "device 1 of 2 is NULL" : "both " LOCAL "CPU:0";

        a.device[1] = i == 0 ? NULL : first;
        t_refused(ch_strategy_new(&own_ops, &a, &(ch_strategy_parts){.n_replicas = 2}, &none),
                  CH_INVALID_ARGUMENT, word, "Alternating");
        t_refused(ch_strategy_run(st, f, NULL, &out), CH_INVALID_ARGUMENT, word, "run step");
        assert_true(none == NULL && out == NULL);
    }
    a.n_copies = 2; /* only the first is placed */
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "v"}, &v), CH_INVALID_ARGUMENT,
              "device 1 of 2 is NULL", "variable v");
    a.n_copies = 1;
    a.device[0] = NULL;
    a.next = 0;
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "v"}, &v), CH_INVALID_ARGUMENT,
              "device 0 of 1 is NULL", "Alternating");
    a.device[0] = first;
    a.device[1] = ch_device_at(1);
    t_ok(ch_strategy_run(st, f, NULL, &out)); /* usable again */
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

static ch_dataset *own_rows(const ch_input_context *c, void *arg)
{
    (void)arg;
    return ch_dataset_batch(ch_dataset_range(c->pipeline * 10, c->pipeline * 10 + 2, 1), 2,
                            NULL);
}

/* A custom strategy may have all traits of the library's strategies. */
static void strategy_new_takes_traits_resolver_and_parameter_devices(void **state)
{
    const ch_strategy_traits traits = {.is_multi_worker = true, .requires_static_shapes = true};
    alternating              a;
    ch_strategy             *plain = new_own(&a), *st = NULL;
    int                      found = 0;
    ch_strategy_parts        parts = {.n_replicas = 2,
                                      .n_parameter = 1,
                                      .parameter = &a.device[1],
                                      .traits = &traits,
                                      .resolver = (ch_resolver *)(void *)&found,
                                      .isolates_state = true,
                                      .own_pipelines = true};
    ch_session_config        config = {0};
    ch_strategy_traits       told;
    ch_iterator             *it = NULL;

    t_ok(ch_strategy_new(&own_ops, &a, &parts, &st));
    is_on(plain, "CPU:0 CPU:1", "CPU:0 CPU:1");
    is_on(st, "CPU:0 CPU:1", "CPU:1");
    told = ch_strategy_traits_of(st);
    assert_true(told.is_multi_worker && told.requires_static_shapes && !told.should_init);
    assert_true(ch_strategy_traits_of(plain).should_init);
    assert_ptr_equal(ch_strategy_resolver(st), &found);
    ch_strategy_configure(st, NULL, &config);
    assert_true(config.isolate_session_state);
    t_ok(ch_strategy_distribute_datasets_from_function(
        st, own_rows, NULL, &(ch_input_options){.replication = CH_EACH_REPLICA}, &it));
    runs_on(st, it, 2 * (0 + 1 + 10 + 11));
    parts.is_bare = true;
    t_refused(ch_strategy_new(&own_ops, &a, &parts, &st), CH_INVALID_ARGUMENT, "is_bare",
              "got 2");
    parts = (ch_strategy_parts){.n_replicas = 2, .n_parameter = 1};
    t_refused(ch_strategy_new(&own_ops, &a, &parts, &st), CH_INVALID_ARGUMENT,
              "1 parameter devices", "NULL");
    ch_strategy_unref(st);
    ch_strategy_unref(plain);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(mirrored_takes_accelerators_before_cores, reset),
        cmocka_unit_test_teardown(mirrored_and_central_storage_reject_a_repeated_device, reset),
        cmocka_unit_test_teardown(strategy_error_names_the_setting_that_has_all_devices, reset),
        cmocka_unit_test_teardown(
            central_storage_keeps_variables_with_the_one_device_or_the_host, reset),
        cmocka_unit_test_teardown(one_device_requires_an_existing_device, reset),
        cmocka_unit_test_teardown(variables_ignore_the_entered_device_except_under_default,
                                  reset),
        cmocka_unit_test_teardown(strategies_report_their_devices_and_traits, reset),
        cmocka_unit_test_teardown(default_has_no_devices_of_its_own, reset),
        cmocka_unit_test_teardown(program_calls_work_under_every_strategy, reset),
        cmocka_unit_test_teardown(extended_calls_work_under_every_strategy, reset),
        cmocka_unit_test_teardown(one_device_runs_the_whole_step_on_its_device, reset),
        cmocka_unit_test_teardown(one_device_updates_and_colocates_variables, reset),
        cmocka_unit_test_teardown(update_non_slot_runs_on_each_device_of_the_copies, reset),
        cmocka_unit_test_teardown(update_non_slot_is_refused_when_copies_would_differ, reset),
        cmocka_unit_test_teardown(update_non_slot_rejects_invalid_destinations, reset),
        cmocka_unit_test_teardown(colocated_variables_are_on_the_devices_of_the_other, reset),
        cmocka_unit_test_teardown(strategy_new_and_var_new_reject_an_invalid_custom_strategy,
                                  reset),
        cmocka_unit_test_teardown(strategy_new_rejects_a_missing_or_repeated_device, reset),
        cmocka_unit_test_teardown(strategy_new_takes_traits_resolver_and_parameter_devices,
                                  reset),
    };

    return cmocka_run_group_tests_name("strategies", tests, NULL, NULL);
}
