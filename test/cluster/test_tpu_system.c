/* test/cluster/test_tpu_system.c -- the TPU devices of this process as a TPU system.
 *
 * Each test configures its devices with `with_devices`, and ends the system with `end`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"
#include "tensor/device.h"
#include "tpu_help.h"

/* Gives this process these devices, such as "TPU=8", and no mesh. */
static void with_devices(const char *spec)
{
    t_no_environment(NULL);
    ch__devices_reset();
    t_ok(ch__config_set("tpu_mesh", ""));
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = spec, .threads = 1}));
    t_count_warnings();
}

static ch_resolver *tpu(const char *name)
{
    ch_resolver *r = NULL;

    t_ok(ch_resolver_tpu(name, NULL, &r));
    return r;
}

static void end(ch_resolver *r)
{
    t_ok(ch_tpu_shutdown(r));
    ch_resolver_unref(r);
}

/* Checks the mesh of the system of this name; NULL name: no resolver at all. */
static void has_mesh(const char *name, int x, int y, int z, int core)
{
    ch_resolver     *r = name != NULL ? tpu(name) : NULL;
    ch_tpu_topology *t = NULL;

    t_ok(ch_tpu_initialize(r, &t));
    t_is_at(ch_tpu_topology_mesh(t)->size, x, y, z, core);
    assert_int_equal(ch_tpu_topology_mesh(t)->tasks, 1);
    assert_int_equal(ch_tpu_topology_mesh(t)->devices, x * y * z * core);
    assert_int_equal(ch_tpu_topology_missing(t, 0, NULL), 0);
    ch_tpu_topology_unref(t);
    end(r);
}

static void tpu_initialize_returns_the_devices_of_this_process(void **state)
{
    /* SYS-2, SYS-10, TPR-20: the topology is also in the resolver */
    ch_resolver       *r;
    ch_tpu_topology   *t = NULL, *again = NULL;
    ch_tpu_assignment *a = NULL;
    ch_device         *d = NULL;
    char               name[64];

    with_devices("TPU=8");
    r = tpu("");
    assert_null(ch_resolver_tpu_topology(r));
    t_ok(ch_resolver_connect(r));
    t_ok(ch_tpu_initialize(r, &t));
    assert_ptr_equal(ch_resolver_tpu_topology(r), t);
    assert_int_equal(t_warnings, 0);
    t_ok(ch_tpu_assignment_build(t, &(ch_tpu_build){.n = 3, .shape = {1, 1, 2}, .replicas = 4},
                                 &a));
    t_ok(ch_tpu_assignment_device_name(a, 2, 1, "localhost", name, sizeof(name)));
    assert_string_equal(name, "/job:localhost/task:0/device:TPU:7");
    t_ok(ch_device_find(name, &d)); /* a device of this process has this name */
    assert_string_equal(ch_device_name(d), "/job:localhost/replica:0/task:0/device:TPU:7");
    ch_tpu_assignment_unref(a);
    t_ok(ch_tpu_shutdown(r));
    assert_null(ch_resolver_tpu_topology(r));
    t_ok(ch_tpu_initialize(r, &again));
    assert_int_equal(t_warnings, 0);
    ch_tpu_topology_unref(t);
    ch_tpu_topology_unref(again);
    end(r);
    (void)state;
}

static void tpu_devices_have_threads_and_memory_of_their_own(void **state) /* SYS-13 */
{
    ch_device *core[2];
    void      *p;

    with_devices("TPU=2");
    for (int i = 0; i < 2; i++) {
        t_ok(ch_device_find(i == 0 ? "TPU:0" : "tpu:1", &core[i]));
        assert_string_equal(ch_device_where(core[i])->type, "TPU");
        assert_int_equal(ch_device_threads(core[i]), 1);
    }
    p = ch__device_alloc(core[1], 4096);
    assert_int_equal(ch_device_bytes(core[0]), 0);
    assert_int_equal(ch_device_bytes(core[1]), 4096);
    ch__device_free(core[1], p, 4096);
    (void)state;
}

static void tpu_mesh_is_of_two_core_chips_as_square_as_possible_by_default(void **state)
{
    /* SYS-12 */
    static const int want[][5] = {{1, 1, 1, 1, 1},  {2, 1, 1, 1, 2},   {3, 1, 1, 1, 3},
                                  {4, 2, 1, 1, 2},  {6, 3, 1, 1, 2},   {7, 1, 1, 1, 7},
                                  {8, 2, 2, 1, 2},  {12, 3, 2, 1, 2},  {16, 4, 2, 1, 2},
                                  {24, 4, 3, 1, 2}, {26, 13, 1, 1, 2}, {32, 4, 4, 1, 2}};
    char             spec[16];

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        snprintf(spec, sizeof(spec), "TPU=%d", want[i][0]);
        with_devices(spec);
        has_mesh("local", want[i][1], want[i][2], want[i][3], want[i][4]);
    }
    (void)state;
}

static void tpu_mesh_is_that_of_the_name_then_of_the_setting(void **state)
{
    /* SYS-10, SYS-12 */
    with_devices("TPU=8");
    has_mesh("virtual:4x1x1x2", 4, 1, 1, 2);
    has_mesh("virtual:2x4x1", 2, 4, 1, 1);
    has_mesh("virtual:8", 1, 1, 1, 8);
    t_ok(ch__config_set("tpu_mesh", "1x2x4x1"));
    has_mesh("local", 1, 2, 4, 1);
    has_mesh(NULL, 1, 2, 4, 1);
    has_mesh("virtual:4x1x1x2", 4, 1, 1, 2);
    t_ok(ch__config_set("tpu_mesh", "8"));
    has_mesh("local", 1, 1, 1, 8);
    (void)state;
}

static void tpu_initialize_rejects_a_mesh_that_has_not_as_many_cores(void **state)
{
    ch_resolver     *small, *local;
    ch_tpu_topology *t = NULL;

    with_devices("TPU=8");
    small = tpu("virtual:4x4x1x2");
    local = tpu("local");
    t_refused(ch_tpu_initialize(small, &t), CH_INVALID_ARGUMENT,
              "the mesh 4x4x1x2 has 32 cores, and this process has 8 TPU devices; set "
              "COHORT_DEVICES=TPU=32");
    t_ok(ch__config_set("tpu_mesh", "2x2x1x1"));
    t_refused(ch_tpu_initialize(local, &t), CH_INVALID_ARGUMENT,
              "the mesh 2x2x1x1 of COHORT_TPU_MESH has 4 cores");
    t_ok(ch__config_set("tpu_mesh", "2+2"));
    t_refused(ch_tpu_initialize(local, &t), CH_INVALID_ARGUMENT,
              "COHORT_TPU_MESH: \"2+2\" is not a mesh of TPU cores");
    assert_null(t);
    assert_null(ch_resolver_tpu_topology(local));
    ch_resolver_unref(small);
    ch_resolver_unref(local);
    (void)state;
}

static void tpu_initialize_without_tpu_devices_says_how_to_get_them(void **state)
{
    /* SYS-4, TPR-15 */
    ch_resolver     *r;
    ch_tpu_topology *t = NULL;
    ch_accelerators  a;

    with_devices("CPU=2");
    r = tpu("virtual:2x2x1x2");
    t_refused(ch_tpu_initialize(r, &t), CH_NOT_FOUND, "COHORT_DEVICES=TPU=8");
    t_refused(ch_tpu_initialize(r, &t), CH_NOT_FOUND, "ch_devices_configure");
    assert_null(t);
    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    assert_int_equal(a.n, 1);
    assert_int_equal(a.item[0].count, 0);
    ch_resolver_unref(r);
    (void)state;
}

static void tpu_initialize_again_warns_and_succeeds(void **state)
{
    /* SYS-3, SYS-9 */
    ch_resolver     *r, *other;
    ch_tpu_topology *t = NULL, *again = NULL, *third = NULL;

    with_devices("TPU=2");
    r = tpu("local");
    other = tpu("virtual:2x1x1x1");
    t_ok(ch_tpu_initialize(r, &t));
    assert_int_equal(t_warnings, 0);
    t_ok(ch_tpu_initialize(r, &again));
    assert_int_equal(t_warnings, 1);
    assert_non_null(strstr(t_warning, "is initialized again"));
    assert_ptr_equal(ch_resolver_tpu_topology(r), again);
    t_ok(ch_tpu_initialize(other, &third)); /* a process has a single system */
    assert_int_equal(t_warnings, 2);
    ch_tpu_topology_unref(t);
    ch_tpu_topology_unref(again);
    ch_tpu_topology_unref(third);
    ch_resolver_unref(other);
    end(r);
    assert_int_equal(t_warnings, 2);
    (void)state;
}

static void
tpu_shutdown_warns_if_the_system_was_not_initialized(void **state) /* SYS-7, SYS-9 */
{
    ch_resolver     *r;
    ch_tpu_topology *t = NULL;

    with_devices("TPU=2");
    r = tpu("local");
    t_ok(ch_tpu_shutdown(r));
    assert_int_equal(t_warnings, 1);
    assert_non_null(strstr(t_warning, "was not initialized"));
    t_ok(ch_tpu_initialize(NULL, &t));
    t_ok(ch_tpu_shutdown(NULL));
    assert_int_equal(t_warnings, 1);
    ch_tpu_topology_unref(t);
    ch_resolver_unref(r);
    (void)state;
}

static void tpu_system_needs_a_tpu_resolver(void **state) /* SYS-6 */
{
    ch_resolver     *r = t_simple("{}", NULL);
    ch_tpu_topology *t = NULL;
    ch_tpu_system    s;

    with_devices("TPU=2");
    t_refused(ch_tpu_initialize(r, &t), CH_INVALID_ARGUMENT,
              "the resolver is \"Simple\", want one of ch_resolver_tpu");
    t_refused(ch_tpu_shutdown(r), CH_INVALID_ARGUMENT, "Simple");
    t_refused(ch_resolver_tpu_system(r, &s, 0, NULL), CH_INVALID_ARGUMENT, "Simple");
    t_refused(ch_tpu_initialize(r, NULL), CH_INVALID_ARGUMENT, "out is NULL");
    assert_null(ch_resolver_tpu_topology(r));
    assert_null(t);
    ch_resolver_unref(r);
    (void)state;
}

static void tpu_system_lists_devices_by_type_and_index(void **state)
{
    /* TPR-14, TPR-16, TPR-17, TP-5 */
    ch_resolver    *r;
    ch_tpu_system   s;
    ch_device      *d[8] = {0};
    ch_accelerators a;

    with_devices("TPU=4,CPU=1,GPU=2");
    r = tpu("local");
    t_ok(ch_resolver_tpu_system(r, &s, 8, d));
    assert_int_equal(s.cores, 4);
    assert_int_equal(s.hosts, 1);
    assert_int_equal(s.cores_per_host, 4);
    assert_int_equal(s.devices, 7);
    assert_string_equal(ch_device_where(d[0])->type, "CPU");
    assert_string_equal(ch_device_where(d[1])->type, "GPU");
    for (int i = 0; i < 4; i++) {
        assert_string_equal(ch_device_where(d[3 + i])->type, "TPU");
        assert_int_equal(ch_device_where(d[3 + i])->index, i);
    }
    assert_null(d[7]);
    d[1] = NULL;
    t_ok(ch_resolver_tpu_system(r, &s, 1, d));
    assert_null(d[1]);
    t_ok(ch_resolver_tpu_system(r, &s, 0, NULL));
    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    assert_int_equal(a.item[0].count, 4);
    ch_resolver_unref(r);
    with_devices("CPU=1");
    r = tpu("local");
    t_ok(ch_resolver_tpu_system(r, &s, 0, NULL));
    assert_int_equal(s.cores + s.hosts + s.cores_per_host, 0);
    assert_int_equal(s.devices, 1);
    ch_resolver_unref(r);
    (void)state;
}

static ch_status initialize(void *arg)
{
    ch_resolver     *r = NULL;
    ch_tpu_topology *t = NULL, *again = NULL;
    ch_tpu_system    s;
    ch_status        rc = ch_resolver_tpu("local", NULL, &r);

    (void)arg;
    if (rc == CH_OK)
        rc = ch_tpu_initialize(r, &t);
    if (rc == CH_OK)
        rc = ch_tpu_initialize(NULL, &again);
    if (rc == CH_OK)
        rc = ch_resolver_tpu_system(r, &s, 0, NULL);
    ch__mem_fail_at(0); /* the process keeps the topology until the system is shut down */
    if (t != NULL)
        t_ok(ch_tpu_shutdown(r));
    ch_tpu_topology_unref(t);
    ch_tpu_topology_unref(again);
    ch_resolver_unref(r);
    return rc;
}

static void tpu_system_leaks_nothing_when_out_of_memory(void **state)
{
    with_devices("TPU=2");
    t_ok(initialize(NULL)); /* later calls make no devices */
    t_out_of_memory(initialize, NULL);
    (void)state;
}

static int reset(void **state)
{
    ch__devices_reset();
    (void)state;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tpu_initialize_returns_the_devices_of_this_process),
        cmocka_unit_test(tpu_devices_have_threads_and_memory_of_their_own),
        cmocka_unit_test(tpu_mesh_is_of_two_core_chips_as_square_as_possible_by_default),
        cmocka_unit_test(tpu_mesh_is_that_of_the_name_then_of_the_setting),
        cmocka_unit_test(tpu_initialize_rejects_a_mesh_that_has_not_as_many_cores),
        cmocka_unit_test(tpu_initialize_without_tpu_devices_says_how_to_get_them),
        cmocka_unit_test(tpu_initialize_again_warns_and_succeeds),
        cmocka_unit_test(tpu_shutdown_warns_if_the_system_was_not_initialized),
        cmocka_unit_test(tpu_system_needs_a_tpu_resolver),
        cmocka_unit_test(tpu_system_lists_devices_by_type_and_index),
        cmocka_unit_test(tpu_system_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, reset);
}
