/* test/cluster/test_assignment.c -- device assignments: the cores of each replica.
 *
 * The table `rows` has the worked examples of the reference. assignments_equal_those_of_a_
 * slower_program compares all small meshes, shapes, strides and numbers of replicas with a
 * program that goes the other way: it computes the replica and the core number of each core of
 * the mesh, and searches for the core of each replica.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "tpu_help.h"

enum { X, Y, Z, CORE };

static ch_tpu_topology *mesh(int x, int y, int z, int core)
{
    return t_topology(&(ch_tpu_mesh){.size = {x, y, z, core}});
}

static ch_tpu_assignment *assign(ch_tpu_topology *t, const ch_tpu_build *b)
{
    ch_tpu_assignment *a = NULL;

    t_ok(ch_tpu_assignment_build(t, b, &a));
    return a;
}

/* Prints an assignment as the examples do: "[0000 0001] [1000 1001]"; "0000, 0001" if replicas
 * have one core. `only` has the numbers of the replicas to print, and ends with -1; NULL: all. */
static void print(const ch_tpu_assignment *a, const int *only, char *text, size_t size)
{
    int    replicas = ch_tpu_assignment_replicas(a), cores = ch_tpu_assignment_cores(a), at[4];
    size_t n = 0;

    for (int i = 0; only != NULL ? only[i] >= 0 : i < replicas; i++) {
        const char *between = i == 0 ? "" : cores == 1 ? ", " : " ";

        n += (size_t)snprintf(text + n, size - n, "%s%s", between, cores > 1 ? "[" : "");
        for (int k = 0; k < cores; k++) {
            t_ok(ch_tpu_assignment_coordinates(a, only != NULL ? only[i] : i, k, at));
            n += (size_t)snprintf(text + n, size - n, "%s%d%d%d%d", k > 0 ? " " : "", at[X],
                                  at[Y], at[Z], at[CORE]);
        }
        n += (size_t)snprintf(text + n, size - n, "%s", cores > 1 ? "]" : "");
        assert_true(n < size);
    }
}

/* ---- worked examples ---- */

typedef struct row {
    int          mesh[4], shape[4], stride[4], replicas;
    ch_tpu_order order;
    const int   *only; /* the replicas that the row lists; NULL: all */
    bool         is_error;
    const char  *want; /* the assignment; of an error: words of its message */
} row;

/* clang-format off */
static const row rows[] = {
    {{2, 2, 1, 2}, {1, 1, 1, 1}, {0}, 1, CH_TPU_AUTO, NULL, false, "0000"},
    {{2, 2, 1, 2}, {1, 1, 1, 1}, {0}, 2, CH_TPU_AUTO, NULL, false, "0000, 0001"},
    {{2, 2, 1, 2}, {1, 1, 1, 1}, {0}, 3, CH_TPU_AUTO, NULL, false, "0000, 0001, 1000"},
    {{2, 2, 1, 2}, {1, 1, 1, 1}, {0}, 4, CH_TPU_AUTO, NULL, false, "0000, 0001, 1000, 1001"},
    {{2, 2, 1, 2}, {1, 1, 1, 1}, {0}, 5, CH_TPU_AUTO, NULL, false,
     "0000, 0001, 1000, 1001, 0100"},
    {{2, 2, 1, 2}, {1, 1, 1, 1}, {0}, 8, CH_TPU_AUTO, NULL, false,
     "0000, 0001, 1000, 1001, 0100, 0101, 1100, 1101"},
    {{2, 2, 1, 2}, {1, 1, 1, 1}, {0}, 8, CH_TPU_RING, NULL, true,
     "replicas must have all 2 cores of their chips (got 1)"},
    {{2, 2, 1, 2}, {1, 1, 1, 2}, {0}, 4, CH_TPU_AUTO, NULL, false,
     "[0000 0001] [1000 1001] [1100 1101] [0100 0101]"},
    {{2, 2, 1, 2}, {1, 1, 1, 2}, {0}, 4, CH_TPU_MESH, NULL, false,
     "[0000 0001] [1000 1001] [0100 0101] [1100 1101]"},
    {{2, 2, 1, 2}, {1, 1, 1, 2}, {0}, 2, CH_TPU_AUTO, NULL, false, "[0000 0001] [1000 1001]"},
    {{2, 2, 1, 2}, {1, 1, 1, 2}, {0}, 5, CH_TPU_AUTO, NULL, true,
     "5 replicas of shape 1x1x1x2 on a mesh of 2x2x1x2, want 1 to 4"},
    {{2, 2, 1, 2}, {2, 2, 1, 2}, {0}, 1, CH_TPU_AUTO, NULL, false,
     "[0000 0001 1000 1001 1100 1101 0100 0101]"},
    {{2, 2, 1, 2}, {2, 2, 1, 2}, {0}, 1, CH_TPU_MESH, NULL, false,
     "[0000 0001 0100 0101 1000 1001 1100 1101]"},
    {{2, 2, 1, 2}, {2, 1, 1, 2}, {0}, 2, CH_TPU_AUTO, NULL, false,
     "[0000 0001 1000 1001] [0100 0101 1100 1101]"},
    {{2, 2, 1, 2}, {2, 1, 1, 1}, {0}, 4, CH_TPU_AUTO, NULL, false,
     "[0000 1000] [0001 1001] [0100 1100] [0101 1101]"},
    {{2, 2, 1, 2}, {1, 1, 2, 2}, {0}, 1, CH_TPU_AUTO, NULL, true,
     "shape 1x1x2x2 with stride 1x1x1x1 is larger than the mesh 2x2x1x2"},
    {{2, 2, 2, 1}, {1, 1, 1, 1}, {0}, 8, CH_TPU_AUTO, NULL, false,
     "0000, 1000, 1100, 0100, 0110, 1110, 1010, 0010"},
    {{2, 2, 2, 1}, {2, 2, 2, 1}, {0}, 1, CH_TPU_AUTO, NULL, false,
     "[0000 1000 1100 0100 0110 1110 1010 0010]"},
    {{4, 4, 1, 2}, {2, 2, 1, 2}, {0}, 4, CH_TPU_AUTO, (const int[]){1, -1}, false,
     "[2000 2001 3000 3001 3100 3101 2100 2101]"},
    {{4, 4, 1, 2}, {1, 1, 1, 2}, {0}, 16, CH_TPU_AUTO, NULL, false,
     "[0000 0001] [1000 1001] [2000 2001] [3000 3001] [3100 3101] [2100 2101] [1100 1101] "
     "[1200 1201] [2200 2201] [3200 3201] [3300 3301] [2300 2301] [1300 1301] [0300 0301] "
     "[0200 0201] [0100 0101]"},
    {{4, 4, 1, 2}, {2, 1, 1, 1}, {2, 1, 1, 1}, 16, CH_TPU_AUTO, (const int[]){0, 1, 2, 4, 15, -1}, false,
     "[0000 2000] [0001 2001] [1000 3000] [0100 2100] [1301 3301]"},
    {{3, 2, 1, 1}, {1, 1, 1, 1}, {0}, 6, CH_TPU_AUTO, NULL, false,
     "0000, 1000, 2000, 0100, 1100, 2100"},
    {{1, 1, 1, 8}, {1, 1, 1, 2}, {0}, 4, CH_TPU_AUTO, NULL, false,
     "[0000 0001] [0002 0003] [0004 0005] [0006 0007]"},
};
/* clang-format on */

static void assignments_are_those_of_the_worked_examples(void **state)
{
    /* ASG-12, ASG-14, ASG-15, ASG-16, ASG-17, ASG-21, ASG-22, ASG-23, ASG-24, ASG-25, ASG-26,
     * ASG-29: the rows of the table; the last one is in the next test */
    char text[512];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const row         *r = &rows[i];
        ch_tpu_topology   *t = mesh(r->mesh[X], r->mesh[Y], r->mesh[Z], r->mesh[CORE]);
        ch_tpu_build       b = {.n = 4, .replicas = r->replicas, .order = r->order};
        ch_tpu_assignment *a = NULL;

        memcpy(b.shape, r->shape, sizeof(b.shape));
        memcpy(b.stride, r->stride, sizeof(b.stride));
        if (r->is_error) {
            t_refused(ch_tpu_assignment_build(t, &b, &a), CH_INVALID_ARGUMENT, r->want);
            assert_null(a);
        } else {
            a = assign(t, &b);
            print(a, r->only, text, sizeof(text));
            if (strcmp(text, r->want) != 0)
                fail_msg("row %d: %s, want %s", (int)i, text, r->want);
        }
        ch_tpu_assignment_unref(a);
        ch_tpu_topology_unref(t);
    }
    (void)state;
}

/* The blocks of row 19: the others begin at 2200 and 0200. */
static void blocks_of_a_ring_are_in_a_ring(void **state) /* ASG-22 */
{
    ch_tpu_topology   *t = mesh(4, 4, 1, 2);
    ch_tpu_assignment *a =
        assign(t, &(ch_tpu_build){.n = 4, .shape = {2, 2, 1, 2}, .replicas = 4});
    int at[4];

    t_ok(ch_tpu_assignment_coordinates(a, 2, 0, at));
    t_is_at(at, 2, 2, 0, 0);
    t_ok(ch_tpu_assignment_coordinates(a, 3, 0, at));
    t_is_at(at, 0, 2, 0, 0);
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(t);
    (void)state;
}

static void assignment_of_a_mesh_with_missing_devices_is_in_task_order(void **state)
{
    /* ASG-27, ASG-28, ASG-29: without the chip (1, 1); any order; too many replicas, strides */
    static const int at[] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0,
                             1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1};
    ch_tpu_topology *t =
        t_topology(&(ch_tpu_mesh){.size = {2, 2, 1, 2}, .devices = 6, .at = at});
    ch_tpu_build       b = {.n = 4, .shape = {1, 1, 1, 2}, .replicas = 3};
    ch_tpu_assignment *a = NULL;
    char               text[128];

    for (int order = CH_TPU_AUTO; order <= CH_TPU_MESH; order++) {
        b.order = (ch_tpu_order)order;
        a = assign(t, &b);
        print(a, NULL, text, sizeof(text));
        assert_string_equal(text, "[0000 0001] [1000 1001] [0100 0101]");
        ch_tpu_assignment_unref(a);
    }
    a = assign(t, &(ch_tpu_build){.n = 4, .shape = {2, 1, 1, 1}, .replicas = 3});
    print(a, NULL, text, sizeof(text)); /* the geometry of the shape is ignored */
    assert_string_equal(text, "[0000 0001] [1000 1001] [0100 0101]");
    ch_tpu_assignment_unref(a);
    a = NULL;
    b.replicas = 4;
    t_refused(ch_tpu_assignment_build(t, &b, &a), CH_INVALID_ARGUMENT,
              "4 replicas of 2 cores need 8 devices, and there are 6");
    b.replicas = 5; /* the number of replicas is that of the whole mesh */
    t_refused(ch_tpu_assignment_build(t, &b, &a), CH_INVALID_ARGUMENT, "want 1 to 4");
    b = (ch_tpu_build){.n = 4, .stride = {2, 1, 1, 1}, .replicas = 2};
    t_refused(ch_tpu_assignment_build(t, &b, &a), CH_INVALID_ARGUMENT,
              "every stride must be 1");
    assert_null(a);
    ch_tpu_topology_unref(t);
    (void)state;
}

/* ---- arguments ---- */

static void assignment_build_has_a_single_core_by_default(void **state)
{
    /* ASG-6, ASG-11, ASG-19, ASG-31: without options one replica with the core (0, 0, 0, 0) */
    ch_tpu_topology   *t = mesh(2, 2, 1, 2);
    ch_tpu_assignment *a = assign(t, NULL);
    char               text[64];

    assert_int_equal(ch_tpu_assignment_replicas(a), 1);
    assert_int_equal(ch_tpu_assignment_cores(a), 1);
    print(a, NULL, text, sizeof(text));
    assert_string_equal(text, "0000");
    t_ok(ch_tpu_assignment_device_name(a, 0, 0, NULL, text, sizeof(text)));
    assert_string_equal(text, "/task:0/device:TPU:0");
    t_ok(ch_tpu_assignment_host_name(a, 0, 0, NULL, text, sizeof(text)));
    assert_string_equal(text, "/task:0/device:CPU:0");
    ch_tpu_assignment_unref(ch_tpu_assignment_ref(a));
    ch_tpu_assignment_unref(a);
    a = assign(t, &(ch_tpu_build){.n = 3}); /* all entries 0: all 1; no replicas: 1 */
    print(a, NULL, text, sizeof(text));
    assert_string_equal(text, "0000");
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(t);
    (void)state;
}

static void assignment_build_takes_shapes_of_three_entries(void **state)
{
    /* TOP-18: [1, 1, 2] is [1, 1, 1, 2] */
    ch_tpu_topology   *t = mesh(2, 2, 1, 2);
    ch_tpu_assignment *a =
        assign(t, &(ch_tpu_build){.n = 3, .shape = {1, 1, 2}, .replicas = 4});
    char text[128];

    print(a, NULL, text, sizeof(text));
    assert_string_equal(text, "[0000 0001] [1000 1001] [1100 1101] [0100 0101]");
    ch_tpu_assignment_unref(a);
    a = assign(t, &(ch_tpu_build){.n = 3, .shape = {2, 2, 2}, .stride = {1, 1, 1}});
    assert_int_equal(ch_tpu_assignment_cores(a), 8);
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(t);
    (void)state;
}

static void assignment_build_checks_its_arguments_in_this_order(void **state)
{
    /* ASG-12, ASG-13, ASG-14, ASG-15, ASG-21: each row also has the faults of the rows below */
    static const struct {
        ch_tpu_build build;
        const char  *words;
    } bad[] = {
        {{.n = 2, .shape = {0, 1}, .stride = {-1, 1}, .replicas = 99}, "a vector of 2 entries"},
        {{.n = 0, .shape = {0, 1}}, "shape is given and n is 0"},
        {{.n = 0, .stride = {0, 1}}, "stride is given and n is 0"},
        {{.n = 3, .shape = {1, 1, 1, 2}}, "shape has a fourth entry, 2, and n is 3"},
        {{.n = 4, .shape = {9, 0, 1, 1}, .stride = {-1, 1, 1, 1}, .replicas = 99},
         "shape 9x0x1x1: entries must be at least 1 (got 0)"},
        {{.n = 4, .shape = {9, 1, 1, 1}, .stride = {-1, 1, 1, 1}, .replicas = 99},
         "stride -1x1x1x1: entries must be at least 1 (got -1)"},
        {{.n = 4, .shape = {2, 1, 1, 1}, .stride = {2, 1, 1, 1}, .replicas = 99},
         "shape 2x1x1x1 with stride 2x1x1x1 is larger than the mesh 2x2x1x2"},
        {{.n = 4, .shape = {1 << 30, 1, 1, 1}, .stride = {1 << 30, 1, 1, 1}}, "is larger than"},
        {{.n = 4, .shape = {2, 1, 1, 1}, .replicas = 5, .order = CH_TPU_RING}, "want 1 to 4"},
        {{.replicas = -1}, "-1 replicas"},
        {{.n = 4, .shape = {2, 1, 1, 1}, .replicas = 4, .order = CH_TPU_RING},
         "all 2 cores of their chips (got 1)"},
        {{.n = 4, .shape = {1, 1, 1, 2}, .replicas = 3, .order = CH_TPU_RING},
         "there must be 4 replicas (got 3)"},
        {{.n = 4,
          .shape = {1, 1, 1, 2},
          .stride = {2, 1, 1, 1},
          .replicas = 4,
          .order = CH_TPU_RING},
         "the stride must be 1"},
        {{.order = (ch_tpu_order)7}, "7 is not an order"},
    };
    ch_tpu_topology   *t = mesh(2, 2, 1, 2);
    ch_tpu_assignment *a = NULL;

    t_refused(ch_tpu_assignment_build(NULL, &bad[0].build, &a), CH_INVALID_ARGUMENT,
              "the topology is NULL");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch_tpu_assignment_build(t, &bad[i].build, &a), CH_INVALID_ARGUMENT,
                  bad[i].words);
    assert_null(a);
    ch_tpu_topology_unref(t);
    (void)state;
}

/* ---- assignments from coordinates ---- */

static void assignment_from_cores_has_these_cores(void **state)
{
    /* ASG-1, ASG-7, ASG-10, ASG-31: two replicas in reverse order */
    ch_tpu_topology   *t = mesh(2, 2, 1, 2);
    ch_tpu_assignment *a = NULL;
    int                at[4];
    char               text[64];

    t_ok(ch_tpu_assignment_from_cores(t, 2, 1, 4, (int[]){0, 0, 0, 1, 0, 0, 0, 0}, &a));
    assert_int_equal(ch_tpu_assignment_replicas(a), 2);
    assert_int_equal(ch_tpu_assignment_cores(a), 1);
    assert_ptr_equal(ch_tpu_assignment_topology(a), t);
    t_ok(ch_tpu_assignment_coordinates(a, 0, 0, at));
    t_is_at(at, 0, 0, 0, 1);
    t_ok(ch_tpu_assignment_device_name(a, 0, 0, NULL, text, sizeof(text)));
    assert_string_equal(text, "/task:0/device:TPU:1");
    t_ok(ch_tpu_assignment_device_name(a, 1, 0, NULL, text, sizeof(text)));
    assert_string_equal(text, "/task:0/device:TPU:0");
    ch_tpu_assignment_unref(a);
    t_ok(ch_tpu_assignment_from_cores(t, 1, 2, 3, (int[]){1, 1, 1, 0, 1, 0}, &a));
    print(a, NULL, text, sizeof(text));
    assert_string_equal(text, "[1101 0100]");
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(t);
    (void)state;
}

static void assignment_from_cores_rejects_cores_that_do_not_exist_or_occur_twice(void **state)
{
    /* ASG-2, ASG-3, ASG-4, ASG-5 */
    static const int one[] = {0, 0, 0, 0};
    const struct {
        int         replicas, cores, n;
        const int  *at;
        const char *words;
    } bad[] = {
        {0, 1, 4, one, "0 replicas of 1 cores"},
        {1, -1, 4, one, "1 replicas of -1 cores"},
        {1 << 20, 1 << 20, 4, one, "at most 3 cores in total"},
        {1, 1, 5, one, "a vector of 5 entries"},
        {1, 1, 4, (const int[]){0, 0, 1, 0}, "core 0 of replica 0"},
        {1, 1, 4, (const int[]){0, 0, 1, 0}, "(0, 0, 1, 0) are outside the mesh 2x1x1x2"},
        {1, 2, 4, (const int[]){0, 0, 0, 0, 1, 0, 0, 1}, "core 1 of replica 0"},
        {1, 2, 4, (const int[]){0, 0, 0, 0, 1, 0, 0, 1}, "there is no device at (1, 0, 0, 1)"},
        {2, 1, 4, (const int[]){1, 0, 0, 0, 1, 0, 0, 0},
         "core 0 of replica 1, (1, 0, 0, 0), occurs twice"},
    };
    ch_tpu_topology *t =
        t_topology(&(ch_tpu_mesh){.size = {2, 1, 1, 2}, .tasks = 3, .devices = 1});
    ch_tpu_assignment *a = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch_tpu_assignment_from_cores(t, bad[i].replicas, bad[i].cores, bad[i].n,
                                               bad[i].at, &a),
                  CH_INVALID_ARGUMENT, bad[i].words);
    t_refused(ch_tpu_assignment_from_cores(NULL, 1, 1, 4, one, &a), CH_INVALID_ARGUMENT,
              "the topology is NULL");
    t_refused(ch_tpu_assignment_from_cores(t, 1, 1, 4, NULL, &a), CH_INVALID_ARGUMENT,
              "at is NULL");
    assert_null(a);
    ch_tpu_topology_unref(t);
    (void)state;
}

/* ---- look-ups ---- */

static void assignment_finds_devices_hosts_and_replicas_of_two_tasks(void **state)
{
    /* ASG-7, ASG-8, ASG-9, ASG-30: task 0 has the chips x = 0 and 1, task 1 the others */
    ch_tpu_topology   *t = t_topology(&(ch_tpu_mesh){.size = {4, 1, 1, 2}, .tasks = 2});
    ch_tpu_assignment *a =
        assign(t, &(ch_tpu_build){.n = 4, .shape = {1, 1, 1, 2}, .replicas = 4});
    int  at[4], task = -7, ordinal = -7, replica[4] = {7, 7, 7, 7}, n = -7;
    char text[64];

    t_ok(ch_tpu_assignment_coordinates(a, 2, 0, at));
    t_is_at(at, 2, 0, 0, 0);
    t_ok(ch_tpu_assignment_find(a, 2, 0, &task, &ordinal));
    assert_int_equal(task, 1);
    assert_int_equal(ordinal, 0);
    t_ok(ch_tpu_assignment_device_name(a, 2, 0, NULL, text, sizeof(text)));
    assert_string_equal(text, "/task:1/device:TPU:0");
    t_ok(ch_tpu_assignment_device_name(a, 3, 1, "worker", text, sizeof(text)));
    assert_string_equal(text, "/job:worker/task:1/device:TPU:3");
    t_ok(ch_tpu_assignment_host_name(a, 2, 0, NULL, text, sizeof(text)));
    assert_string_equal(text, "/task:1/device:CPU:0");
    t_ok(ch_tpu_assignment_lookup_replicas(a, 1, 0, 4, replica, &n));
    assert_int_equal(n, 2);
    assert_memory_equal(replica, ((int[]){2, 3, 7, 7}), sizeof(replica));
    t_ok(ch_tpu_assignment_lookup_replicas(a, 0, 1, 1, replica, &n));
    assert_int_equal(n, 2);
    assert_memory_equal(replica, ((int[]){0, 3, 7, 7}), sizeof(replica));
    t_ok(ch_tpu_assignment_lookup_replicas(a, 0, 1, 0, NULL, &n));
    t_refused(ch_tpu_assignment_lookup_replicas(a, 2, 0, 4, replica, &n), CH_INVALID_ARGUMENT,
              "no replica has its core 0 on task 2");
    t_refused(ch_tpu_assignment_lookup_replicas(a, 0, 2, 4, replica, &n), CH_INVALID_ARGUMENT,
              "no replica has its core 2 on task 0");
    t_refused(ch_tpu_assignment_coordinates(a, 4, 0, at), CH_INVALID_ARGUMENT,
              "there is no core 0 of replica 4 (got 4 replicas of 2 cores)");
    t_refused(ch_tpu_assignment_find(a, 0, -1, &task, &ordinal), CH_INVALID_ARGUMENT,
              "there is no core -1");
    ch_tpu_topology_unref(t); /* the assignment keeps it */
    t_ok(ch_tpu_assignment_host_name(a, 0, 0, NULL, text, sizeof(text)));
    ch_tpu_assignment_unref(a);
    (void)state;
}

static void ring_of_an_odd_size_warns_and_is_in_the_order_of_the_mesh(void **state)
{
    /* ASG-23: a line of three chips is a ring of its own kind and does not warn */
    ch_tpu_topology   *t = mesh(3, 2, 1, 1), *line = mesh(1, 3, 1, 2);
    ch_tpu_assignment *a;
    char               text[128];

    t_count_warnings();
    a = assign(t, &(ch_tpu_build){.replicas = 6, .order = CH_TPU_RING});
    assert_int_equal(t_warnings, 1);
    assert_non_null(strstr(t_warning, "3x2x1 chips have an odd size"));
    print(a, NULL, text, sizeof(text));
    assert_string_equal(text, "0000, 1000, 2000, 0100, 1100, 2100");
    ch_tpu_assignment_unref(a);
    t_count_warnings();
    a = assign(line, &(ch_tpu_build){.n = 3, .shape = {1, 3, 2}});
    assert_int_equal(t_warnings, 0);
    print(a, NULL, text, sizeof(text));
    assert_string_equal(text, "[0000 0001 0100 0101 0200 0201]");
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(t);
    ch_tpu_topology_unref(line);
    (void)state;
}

/* ---- a slower program ---- */

/* The request, and what the slower program finds. */
typedef struct slow {
    int  mesh[4], shape[4], stride[4], replicas;
    bool is_ring_possible;
    int  most;    /* replicas that fit */
    int  grid[4]; /* replicas along each axis */
} slow;

static int times(const int v[4])
{
    return v[X] * v[Y] * v[Z] * v[CORE];
}

/* Chooses the grid of replicas with floating-point roots, axis by axis in sorted order. */
static void slow_grid(slow *s)
{
    int    key[4], remaining = s->replicas;
    double left = 4;

    for (int i = 0; i < 4; i++) {
        int fits = s->mesh[i] / (s->shape[i] * s->stride[i]) * s->stride[i];

        key[i] = fits * 4 + (i + 1) % 4;
    }
    s->most = key[X] / 4 * (key[Y] / 4) * (key[Z] / 4) * (key[CORE] / 4);
    for (int least = 0; left > 0; left--) {
        int axis = -1;

        for (int i = 0; i < 4; i++)
            if (key[i] >= least && (axis < 0 || key[i] < key[axis]))
                axis = i;
        least = key[axis] + 1;
        s->grid[axis] = (int)ceil(pow(remaining, 1.0 / left));
        if (s->grid[axis] > key[axis] / 4)
            s->grid[axis] = key[axis] / 4;
        remaining = (int)ceil((double)remaining / s->grid[axis]);
    }
    assert_int_equal(remaining, 1); /* the grid has room for all */
    s->is_ring_possible =
        s->shape[CORE] == s->mesh[CORE] && times(s->stride) == 1 && s->replicas == s->most;
}

/* Returns the number of the chip (u, v) in the ring over nu columns and nv rows. */
static int ring_number_2(int u, int v, int nu, int nv)
{
    if (u == 0)
        return v == 0 ? 0 : nu * nv - v;
    return 1 + v * (nu - 1) + (v % 2 == 0 ? u - 1 : nu - 1 - u);
}

/* Returns the number of a chip in the ring over a box. */
static int ring_number(const int at[3], const int size[3])
{
    int  n = size[X] * size[Y] * size[Z], layer = size[X] * size[Y] - 1, k;
    bool is_odd = false;

    for (int i = 0; i < 3; i++)
        is_odd |= size[i] > 1 && size[i] % 2 == 1;
    if (is_odd)
        return at[X] + size[X] * (at[Y] + size[Y] * at[Z]);
    if (size[X] == 1)
        return size[Y] == 1 ? at[Z] : ring_number_2(at[Y], at[Z], size[Y], size[Z]);
    if (size[Y] == 1 || size[Z] == 1)
        return size[Y] == 1 ? ring_number_2(at[X], at[Z], size[X], size[Z])
                            : ring_number_2(at[X], at[Y], size[X], size[Y]);
    if (at[X] == 0 && at[Y] == 0)
        return at[Z] == 0 ? 0 : n - at[Z];
    k = ring_number_2(at[X], at[Y], size[X], size[Y]) - 1;
    return 1 + at[Z] * layer + (at[Z] % 2 == 0 ? k : layer - 1 - k);
}

/* Finds the replica and the core number of the core `at` of the mesh. Returns false if no
 * replica has it. */
static bool slow_owner(const slow *s, const int at[4], bool is_ring, int *replica, int *core)
{
    int position[4], inside[4]; /* of the replica in the grid; of the core in the replica */

    for (int i = 0; i < 4; i++) {
        int block = s->shape[i] * s->stride[i];

        position[i] = at[i] / block * s->stride[i] + at[i] % s->stride[i];
        inside[i] = at[i] % block / s->stride[i];
        if (position[i] >= s->grid[i])
            return false;
    }
    if (is_ring) {
        *replica = ring_number(position, s->grid);
        *core = ring_number(inside, s->shape) * s->mesh[CORE] + inside[CORE];
    } else {
        *replica = position[CORE] +
                   s->grid[CORE] *
                       (position[X] + s->grid[X] * (position[Y] + s->grid[Y] * position[Z]));
        *core =
            inside[CORE] +
            s->shape[CORE] * (inside[Z] + s->shape[Z] * (inside[Y] + s->shape[Y] * inside[X]));
    }
    return *replica < s->replicas;
}

/* Compares an assignment with the owners of all cores of the mesh. */
static void compare(const slow *s, const ch_tpu_assignment *a, bool is_ring)
{
    int found = 0, at[4], want[4], replica = -1, core = -1;

    for (int i = 0; i < times(s->mesh); i++) {
        at[CORE] = i % s->mesh[CORE];
        at[Z] = i / s->mesh[CORE] % s->mesh[Z];
        at[Y] = i / s->mesh[CORE] / s->mesh[Z] % s->mesh[Y];
        at[X] = i / s->mesh[CORE] / s->mesh[Z] / s->mesh[Y];
        if (!slow_owner(s, at, is_ring, &replica, &core))
            continue;
        found++;
        t_ok(ch_tpu_assignment_coordinates(a, replica, core, want));
        if (memcmp(at, want, sizeof(at)) != 0)
            fail_msg("mesh %dx%dx%dx%d, shape %dx%dx%dx%d, stride %dx%dx%dx%d, %d replicas: "
                     "core %d of replica %d",
                     s->mesh[X], s->mesh[Y], s->mesh[Z], s->mesh[CORE], s->shape[X],
                     s->shape[Y], s->shape[Z], s->shape[CORE], s->stride[X], s->stride[Y],
                     s->stride[Z], s->stride[CORE], s->replicas, core, replica);
    }
    /* Each core of the mesh has at most one owner, so no core occurs twice. */
    assert_int_equal(found, s->replicas * times(s->shape));
    assert_int_equal(ch_tpu_assignment_replicas(a) * ch_tpu_assignment_cores(a), found);
}

/* Tries each number of replicas and each order. Returns the number of assignments. */
static int try_replicas(ch_tpu_topology *t, slow *s)
{
    ch_tpu_build b = {.n = 4};
    int          n = 0;

    memcpy(b.shape, s->shape, sizeof(b.shape));
    memcpy(b.stride, s->stride, sizeof(b.stride));
    s->most = 1;
    for (s->replicas = 1; s->replicas <= s->most; s->replicas++) {
        slow_grid(s);
        b.replicas = s->replicas;
        for (int order = CH_TPU_AUTO; order <= CH_TPU_MESH; order++) {
            ch_tpu_assignment *a = NULL;

            b.order = (ch_tpu_order)order;
            if (order == CH_TPU_RING && !s->is_ring_possible)
                continue;
            t_ok(ch_tpu_assignment_build(t, &b, &a));
            compare(s, a, s->is_ring_possible && order != CH_TPU_MESH);
            ch_tpu_assignment_unref(a);
            n++;
        }
    }
    b.replicas = s->most + 1;
    assert_int_equal(ch_tpu_assignment_build(t, &b, &(ch_tpu_assignment *){NULL}),
                     CH_INVALID_ARGUMENT);
    return n;
}

/* Tries all shapes and strides of the axes from `axis` on. */
static int try_shapes(ch_tpu_topology *t, slow *s, int axis)
{
    int n = 0;

    if (axis == 4)
        return try_replicas(t, s);
    for (s->shape[axis] = 1; s->shape[axis] <= s->mesh[axis]; s->shape[axis]++)
        for (s->stride[axis] = 1; s->stride[axis] * s->shape[axis] <= s->mesh[axis];
             s->stride[axis]++)
            n += try_shapes(t, s, axis + 1);
    return n;
}

static void assignments_equal_those_of_a_slower_program(void **state)
{
    /* ASG-16, ASG-17, ASG-18, ASG-20, ASG-22, ASG-23, ASG-24, ASG-25, ASG-26: all meshes up to
     * 4x4x2x2, all shapes and strides that fit, every number of replicas */
    int n = 0;

    t_count_warnings(); /* of odd rings; not printed */
    for (int i = 0; i < 4 * 4 * 2 * 2; i++) {
        slow             s = {.mesh = {1 + i % 4, 1 + i / 4 % 4, 1 + i / 16 % 2, 1 + i / 32}};
        ch_tpu_topology *t = mesh(s.mesh[X], s.mesh[Y], s.mesh[Z], s.mesh[CORE]);

        n += try_shapes(t, &s, 0);
        ch_tpu_topology_unref(t);
    }
    print_message("%d assignments\n", n);
    assert_true(n > 10000);
    (void)state;
}

/* Neighbours in a ring are neighbours in the mesh, also in large boxes. */
static void rings_of_even_sizes_join_neighbours(void **state) /* ASG-24, ASG-25 */
{
    static const int sizes[][3] = {{8, 6, 1}, {2, 1, 10}, {1, 6, 4}, {4, 6, 8}, {2, 2, 2}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const int         *s = sizes[i];
        int                n = s[X] * s[Y] * s[Z], at[4], next[4];
        ch_tpu_topology   *t = mesh(s[X], s[Y], s[Z], 1);
        ch_tpu_assignment *a = assign(t, &(ch_tpu_build){.replicas = n, .order = CH_TPU_RING});

        for (int r = 0; r < n; r++) {
            int distance = 0;

            t_ok(ch_tpu_assignment_coordinates(a, r, 0, at));
            t_ok(ch_tpu_assignment_coordinates(a, (r + 1) % n, 0, next));
            for (int axis = X; axis <= Z; axis++)
                distance += abs(at[axis] - next[axis]);
            assert_int_equal(distance, 1);
        }
        ch_tpu_assignment_unref(a);
        ch_tpu_topology_unref(t);
    }
    (void)state;
}

static void exact_roots_equal_rounded_ones_up_to_the_largest_mesh(void **state)
{
    /* ASG-20: a grid of k^3 replicas is a cube, one of k^3 + 1 is not */
    for (int k = 1; k <= 100; k++) {
        slow               s = {.mesh = {101, 101, 101, 1},
                                .shape = {1, 1, 1, 1},
                                .stride = {1, 1, 1, 1},
                                .replicas = k * k * k};
        ch_tpu_topology   *t;
        ch_tpu_assignment *a;
        int                at[4], edge;

        slow_grid(&s);
        assert_int_equal(s.grid[X], k);
        if (k % 33 != 0)
            continue;
        t = mesh(101, 101, 101, 1);
        for (int more = 0; more < 2; more++) {
            a = assign(t, &(ch_tpu_build){.replicas = k * k * k + more});
            edge = 0;
            do
                t_ok(ch_tpu_assignment_coordinates(a, edge++, 0, at));
            while (at[Y] == 0 && at[Z] == 0);
            assert_int_equal(edge - 1, k + more);
            ch_tpu_assignment_unref(a);
        }
        ch_tpu_topology_unref(t);
    }
    (void)state;
}

static ch_status make_both(void *arg)
{
    ch_tpu_assignment *a = NULL, *b = NULL;
    ch_status          rc = ch_tpu_assignment_build(
                 arg, &(ch_tpu_build){.n = 3, .shape = {1, 1, 2}, .replicas = 4}, &a);

    if (rc == CH_OK)
        rc = ch_tpu_assignment_from_cores(arg, 1, 1, 4, (int[]){1, 1, 0, 1}, &b);
    ch_tpu_assignment_unref(a);
    ch_tpu_assignment_unref(b);
    return rc;
}

static void assignment_leaks_nothing_when_out_of_memory(void **state)
{
    ch_tpu_topology *t = mesh(2, 2, 1, 2);

    t_out_of_memory(make_both, t);
    ch_tpu_topology_unref(t);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(assignments_are_those_of_the_worked_examples),
        cmocka_unit_test(blocks_of_a_ring_are_in_a_ring),
        cmocka_unit_test(assignment_of_a_mesh_with_missing_devices_is_in_task_order),
        cmocka_unit_test(assignment_build_has_a_single_core_by_default),
        cmocka_unit_test(assignment_build_takes_shapes_of_three_entries),
        cmocka_unit_test(assignment_build_checks_its_arguments_in_this_order),
        cmocka_unit_test(assignment_from_cores_has_these_cores),
        cmocka_unit_test(assignment_from_cores_rejects_cores_that_do_not_exist_or_occur_twice),
        cmocka_unit_test(assignment_finds_devices_hosts_and_replicas_of_two_tasks),
        cmocka_unit_test(ring_of_an_odd_size_warns_and_is_in_the_order_of_the_mesh),
        cmocka_unit_test(assignments_equal_those_of_a_slower_program),
        cmocka_unit_test(rings_of_even_sizes_join_neighbours),
        cmocka_unit_test(exact_roots_equal_rounded_ones_up_to_the_largest_mesh),
        cmocka_unit_test(assignment_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
