/* test/cluster/test_topology.c -- topologies of TPU systems: meshes, coordinates, names, bytes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tpu_help.h"

/* ---- topologies from arrays ---- */

static void topology_has_the_sizes_and_devices_it_is_made_of(void **state)
{
    /* TOP-1, TOP-2, TOP-12: two tasks of two devices on four cores */
    static const int   at[] = {1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0};
    const ch_tpu_mesh  given = {.size = {2, 1, 1, 2}, .tasks = 2, .devices = 2, .at = at};
    ch_tpu_topology   *t = t_topology(&given);
    const ch_tpu_mesh *m = ch_tpu_topology_mesh(t);

    assert_int_equal(m->n, 4);
    t_is_at(m->size, 2, 1, 1, 2);
    assert_int_equal(m->tasks, 2);
    assert_int_equal(m->devices, 2);
    assert_memory_equal(m->at, at, sizeof(at));
    for (int i = 0; i < 4; i++) {
        int task = -1, ordinal = -1;

        t_ok(ch_tpu_topology_find(t, 4, at + 4 * i, &task, &ordinal));
        assert_int_equal(task, i / 2);
        assert_int_equal(ordinal, i % 2);
    }
    ch_tpu_topology_unref(ch_tpu_topology_ref(t));
    ch_tpu_topology_unref(t);
    (void)state;
}

static void topology_without_coordinates_has_the_core_fastest_then_x_y_z(void **state)
{
    /* TOP-19: the order of a slice with four chips; tasks take consecutive runs */
    static const int want[] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1,
                               0, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1};
    ch_tpu_topology *t = t_topology(&(ch_tpu_mesh){.size = {2, 2, 1, 2}});
    int              task, ordinal;

    assert_int_equal(ch_tpu_topology_mesh(t)->tasks, 1);
    assert_int_equal(ch_tpu_topology_mesh(t)->devices, 8);
    assert_memory_equal(ch_tpu_topology_mesh(t)->at, want, sizeof(want));
    ch_tpu_topology_unref(t);
    t = t_topology(&(ch_tpu_mesh){.size = {4, 1, 1, 2}, .tasks = 2});
    t_ok(ch_tpu_topology_find(t, 4, (int[]){2, 0, 0, 1}, &task, &ordinal));
    assert_int_equal(task, 1);
    assert_int_equal(ordinal, 1);
    ch_tpu_topology_unref(t);
    t = t_topology(&(ch_tpu_mesh){.size = {1, 1, 3, 1}, .tasks = 3});
    t_ok(ch_tpu_topology_find(t, 4, (int[]){0, 0, 2, 0}, &task, &ordinal));
    assert_int_equal(task, 2);
    ch_tpu_topology_unref(t);
    (void)state;
}

static void topology_vectors_of_three_entries_have_no_z(void **state)
{
    /* TOP-18: 3 entries are x, y, core, and z is 1 in sizes, 0 in coordinates */
    static const int at[] = {1, 0, 1, 0, 1, 0};
    ch_tpu_topology *t = t_topology(
        &(ch_tpu_mesh){.n = 3, .size = {2, 3, 2}, .tasks = 1, .devices = 2, .at = at});
    const ch_tpu_mesh *m = ch_tpu_topology_mesh(t);
    int                task, ordinal;

    t_is_at(m->size, 2, 3, 1, 2);
    t_is_at(m->at, 1, 0, 0, 1);
    t_is_at(m->at + 4, 0, 1, 0, 0);
    t_ok(ch_tpu_topology_find(t, 3, (int[]){0, 1, 0}, &task, &ordinal));
    assert_int_equal(ordinal, 1);
    t_refused(ch_tpu_topology_find(t, 2, at, &task, &ordinal), CH_INVALID_ARGUMENT,
              "a vector of 2 entries, want 3 (x, y, core) or 4");
    ch_tpu_topology_unref(t);
    (void)state;
}

static void topology_rejects_sizes_and_coordinates_that_do_not_fit(void **state)
{
    /* TOP-8, TOP-9, TOP-10, TOP-14: sizes and entries; outside the mesh; the same core twice */
    const struct {
        ch_tpu_mesh mesh;
        const char *words;
    } bad[] = {
        {{.n = 5, .size = {1, 1, 1, 1}}, "a vector of 5 entries"},
        {{.n = 2, .size = {1, 1}}, "a vector of 2 entries"},
        {{.n = 3, .size = {1, 1, 2, 2}}, "size has a fourth entry, 2, and n is 3"},
        {{.size = {2, 2, 2}}, "mesh 2x2x2x0: the size of axis 3 is 0, want at least 1"},
        {{.size = {-1, 2, 2, 2}}, "the size of axis 0 is -1"},
        {{.size = {1024, 1024, 1, 2}}, "mesh 1024x1024x1x2 has more than 1048576 cores"},
        {{.size = {2, 1, 1, 2}, .tasks = -1}, "-1 tasks"},
        {{.size = {2, 1, 1, 2}, .tasks = 3}, "4 cores are not a multiple of 3 tasks"},
        {{.size = {2, 1, 1, 2}, .tasks = 5, .devices = 1}, "more than the 4 cores"},
        {{.size = {2, 1, 1, 2}, .tasks = 1 << 30, .devices = 1 << 30}, "more than the 4 cores"},
        {{.size = {2, 1, 1, 2}, .devices = 1, .at = (const int[]){2, 0, 0, 0}},
         "(2, 0, 0, 0) are outside the mesh 2x1x1x2"},
        {{.size = {2, 1, 1, 2}, .devices = 1, .at = (const int[]){0, 0, 0, -1}},
         "(0, 0, 0, -1) are outside"},
        {{.size = {2, 1, 1, 2},
          .tasks = 2,
          .devices = 1,
          .at = (const int[]){1, 0, 0, 0, 1, 0, 0, 0}},
         "device 0 of task 0 and device 0 of task 1 are both at (1, 0, 0, 0)"},
        {{.size = {1, 1, 1, 1}, .embedding = 3}, "embedding 3"},
    };
    ch_tpu_topology *t = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch_tpu_topology_new(&bad[i].mesh, &t), CH_INVALID_ARGUMENT, bad[i].words);
    t_refused(ch_tpu_topology_new(NULL, &t), CH_INVALID_ARGUMENT, "mesh is NULL");
    assert_null(t);
    (void)state;
}

/* ---- look-ups ---- */

/* A mesh of 2x2x1x2 without the chip (1, 1). */
static ch_tpu_topology *degraded(void)
{
    static const int at[] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0,
                             1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1};

    return t_topology(&(ch_tpu_mesh){.size = {2, 2, 1, 2}, .devices = 6, .at = at});
}

static void topology_lists_missing_devices_in_row_major_order(void **state)
{
    /* TOP-13 */
    ch_tpu_topology *t = degraded();
    int              at[12] = {0}, task = -7, ordinal = -7;

    at[8] = 77;
    assert_int_equal(ch_tpu_topology_missing(t, 3, at), 2);
    t_is_at(at, 1, 1, 0, 0);
    t_is_at(at + 4, 1, 1, 0, 1);
    assert_int_equal(at[8], 77);
    at[4] = 77;
    assert_int_equal(ch_tpu_topology_missing(t, 1, at), 2);
    assert_int_equal(at[4], 77);
    assert_int_equal(ch_tpu_topology_missing(t, 0, NULL), 2);
    t_refused(ch_tpu_topology_find(t, 4, (int[]){1, 1, 0, 1}, &task, &ordinal), CH_NOT_FOUND,
              "there is no device at (1, 1, 0, 1)");
    t_refused(ch_tpu_topology_find(t, 4, (int[]){2, 0, 0, 0}, &task, &ordinal),
              CH_INVALID_ARGUMENT, "(2, 0, 0, 0) are outside the mesh 2x2x1x2");
    assert_int_equal(task, -7);
    ch_tpu_topology_unref(t);
    t = t_topology(
        &(ch_tpu_mesh){.size = {1, 2, 2, 1}, .devices = 1, .at = (int[]){0, 0, 1, 0}});
    assert_int_equal(ch_tpu_topology_missing(t, 3, at), 3);
    t_is_at(at, 0, 0, 0, 0);
    t_is_at(at + 4, 0, 1, 0, 0);
    t_is_at(at + 8, 0, 1, 1, 0);
    ch_tpu_topology_unref(t);
    (void)state;
}

static void topology_names_devices_and_their_hosts(void **state)
{
    /* TOP-15, TOP-16: /task:T/device:TPU:N, with a job in front if it is given */
    ch_tpu_topology *t = t_topology(&(ch_tpu_mesh){.size = {4, 1, 1, 2}, .tasks = 2});
    const int        at[] = {3, 0, 0, 1};
    char             text[64];

    t_ok(ch_tpu_topology_device_name(t, 4, at, NULL, text, sizeof(text)));
    assert_string_equal(text, "/task:1/device:TPU:3");
    t_ok(ch_tpu_topology_device_name(t, 4, at, "worker", text, sizeof(text)));
    assert_string_equal(text, "/job:worker/task:1/device:TPU:3");
    t_ok(ch_tpu_topology_host_name(t, 4, at, NULL, text, sizeof(text)));
    assert_string_equal(text, "/task:1/device:CPU:0");
    t_ok(ch_tpu_topology_host_name(t, 4, at, "w", text, sizeof(text)));
    assert_string_equal(text, "/job:w/task:1/device:CPU:0");
    t_refused(ch_tpu_topology_host_name(t, 4, at, "w", text, 10), CH_OUT_OF_RANGE,
              "needs 27 bytes, and the buffer has 10");
    t_refused(ch_tpu_topology_device_name(t, 4, at, "a/b", text, sizeof(text)),
              CH_INVALID_ARGUMENT, "the name of a job");
    ch_tpu_topology_unref(t);
    (void)state;
}

/* ---- bytes ---- */

/* mesh_shape 2,1,1,2; num_tasks 2; num_tpu_devices_per_task 1; (0,0,0,1) and (1,0,0,0); a
 * hardware feature V2 with 4 devices */
static const unsigned char two_tasks[] = {0x0a, 4, 2, 1, 1, 2, 0x10, 2, 0x18, 1, 0x22, 8, 0, 0,
                                          0,    1, 1, 0, 0, 0, 0x2a, 4, 8,    2, 16,   4};

static void topology_encode_writes_the_bytes_of_a_topology_proto(void **state)
{
    /* TOP-11 */
    static const int at[] = {0, 0, 0, 1, 1, 0, 0, 0};
    ch_tpu_mesh m = {.size = {2, 1, 1, 2}, .tasks = 2, .devices = 1, .at = at, .embedding = 2};
    ch_tpu_topology *t;
    void            *bytes = NULL;
    size_t           n = 0;

    m.embedding_devices = 4;
    t = t_topology(&m);
    t_ok(ch_tpu_topology_encode(t, &bytes, &n));
    assert_int_equal(n, sizeof(two_tasks));
    assert_memory_equal(bytes, two_tasks, n);
    ch_bytes_free(bytes);
    ch_tpu_topology_unref(t);
    m.embedding = m.embedding_devices = 0; /* without hardware the field is left out */
    t = t_topology(&m);
    t_ok(ch_tpu_topology_encode(t, &bytes, &n));
    assert_int_equal(n, sizeof(two_tasks) - 6);
    assert_memory_equal(bytes, two_tasks, n);
    ch_bytes_free(bytes);
    ch_tpu_topology_unref(t);
    (void)state;
}

static void check_same_bytes(const void *given, size_t size)
{
    ch_tpu_topology *t = NULL;
    void            *bytes = NULL;
    size_t           n = 0;

    t_ok(ch_tpu_topology_parse(given, size, &t));
    t_ok(ch_tpu_topology_encode(t, &bytes, &n));
    assert_int_equal(n, size);
    assert_memory_equal(bytes, given, n);
    ch_bytes_free(bytes);
    ch_tpu_topology_unref(t);
}

static void topology_parse_reads_the_bytes_and_encode_gives_them_back(void **state)
{
    /* TOP-3, TOP-11, TOP-17: also unpacked lists and unknown fields */
    static const unsigned char loose[] = {8, 1,    8, 1,    8, 1,    8, 2,    0x10, 1,    0x18,
                                          1, 0x20, 0, 0x20, 0, 0x20, 0, 0x20, 1,    0x78, 5};
    ch_tpu_topology           *t = NULL;
    const ch_tpu_mesh         *m;

    t_ok(ch_tpu_topology_parse(two_tasks, sizeof(two_tasks), &t));
    m = ch_tpu_topology_mesh(t);
    t_is_at(m->size, 2, 1, 1, 2);
    assert_int_equal(m->tasks, 2);
    assert_int_equal(m->devices, 1);
    t_is_at(m->at, 0, 0, 0, 1);
    t_is_at(m->at + 4, 1, 0, 0, 0);
    assert_int_equal(m->embedding, 2);
    assert_int_equal(m->embedding_devices, 4);
    assert_int_equal(ch_tpu_topology_missing(t, 0, NULL), 2);
    ch_tpu_topology_unref(t);
    check_same_bytes(two_tasks, sizeof(two_tasks));
    check_same_bytes(loose, sizeof(loose));
    t_ok(ch_tpu_topology_parse(loose, sizeof(loose), &t));
    t_is_at(ch_tpu_topology_mesh(t)->at, 0, 0, 0, 1);
    ch_tpu_topology_unref(t);
    t_ok(ch_tpu_topology_parse("\x0a\4\1\1\1\3", 6, &t)); /* no devices at all */
    assert_int_equal(ch_tpu_topology_missing(t, 0, NULL), 3);
    assert_int_equal(ch_tpu_topology_mesh(t)->tasks, 0);
    ch_tpu_topology_unref(t);
    (void)state;
}

static void topology_parse_checks_the_message_in_this_order(void **state)
{
    /* TOP-4, TOP-5, TOP-6, TOP-7, TOP-10, TOP-14: each message also has the faults below it */
#define MINUS_1 "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    static const struct {
        const char *bytes;
        size_t      n;
        const char *words;
    } bad[] = {
        {"\x0a", 1, "not a TopologyProto message"},
        {"", 0, "mesh_shape has 0 entries, want 4"},
        {"\x0a\3\2\2\2\x10" MINUS_1, 16, "mesh_shape has 3 entries, want 4"},
        {"\x0a\5\2\2\1\2\1", 7, "mesh_shape has 5 entries, want 4"},
        {"\x0a\4\2\0\1\2\x10" MINUS_1, 17, "mesh 2x0x1x2: the size of axis 1 is 0"},
        {"\x0a\x10\xff\xff\xff\x07\xff\xff\xff\x07\xff\xff\xff\x07\xff\xff\xff\x07", 18,
         "has more than 1048576 cores"},
        {"\x0a\4\2\2\1\2\x10" MINUS_1 "\x18" MINUS_1, 28, "num_tasks is -1"},
        {"\x0a\4\2\2\1\2\x10\1\x18" MINUS_1, 19, "num_tpu_devices_per_task is -1"},
        {"\x0a\4\2\2\1\2\x10\1\x18\1\x22\x0c" MINUS_1 "\0\0", 24, "3 device_coordinates"},
        {"\x0a\4\2\2\1\2\x10\1\x18\2\x22\x0d" MINUS_1 "\0\0\0", 25, "4 device_coordinates"},
        {"\x0a\4\2\2\1\2\x10\1\x18\1\x22\x0d" MINUS_1 "\0\0\0", 25,
         "(-1, 0, 0, 0) are outside"},
        {"\x0a\4\2\2\1\2\x10\1\x18\1\x22\4\0\0\0\2", 16, "(0, 0, 0, 2) are outside the mesh"},
        {"\x0a\4\2\2\1\2\x10\1\x18\2\x22\x08\0\0\0\1\0\0\0\1", 20,
         "device 0 of task 0 and device 1 of task 0 are both at (0, 0, 0, 1)"},
    };
    ch_tpu_topology *t = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch_tpu_topology_parse(bad[i].bytes, bad[i].n, &t), CH_INVALID_ARGUMENT,
                  bad[i].words);
    t_refused(ch_tpu_topology_parse(NULL, 3, &t), CH_INVALID_ARGUMENT, "bytes is NULL");
    assert_null(t);
    (void)state;
}

/* Altered bytes are refused, or give a topology that is whole. `./dev fuzz topology` tries a
 * million. */
static void topology_parse_survives_altered_bytes(void **state)
{
    uint64_t seed = 7;
    int      n_ok = 0;

    for (int i = 0; i < 20000; i++) {
        unsigned char    bytes[sizeof(two_tasks)];
        ch_tpu_topology *t = NULL;
        int64_t          live = ch__mem_live();

        memcpy(bytes, two_tasks, sizeof(bytes));
        for (int k = 0; k < 1 + i % 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[(seed >> 33) % sizeof(bytes)] =
                (unsigned char)(seed >> 50 & (i % 2 ? 7 : 255));
        }
        if (ch_tpu_topology_parse(bytes, sizeof(bytes), &t) == CH_OK) {
            const ch_tpu_mesh *m = ch_tpu_topology_mesh(t);
            int                task, ordinal;

            n_ok++;
            for (int d = 0; d < m->tasks * m->devices; d++) {
                t_ok(ch_tpu_topology_find(t, 4, m->at + 4 * d, &task, &ordinal));
                assert_int_equal(task * m->devices + ordinal, d);
            }
        }
        ch_tpu_topology_unref(t);
        assert_int_equal(ch__mem_live(), live);
    }
    assert_true(n_ok > 100);
    (void)state;
}

static void topology_parse_takes_bounded_memory(void **state)
{
    size_t           n = (size_t)4 << 20;
    unsigned char   *bytes = malloc(n);
    ch_tpu_topology *t = NULL;
    int64_t          live = ch__mem_live();

    for (size_t i = 0; i < n; i += 2) { /* device_coordinates, unpacked */
        bytes[i] = 0x20;
        bytes[i + 1] = 0;
    }
    ch__mem_watch(true);
    t_refused(ch_tpu_topology_parse(bytes, n, &t), CH_INVALID_ARGUMENT,
              "parsing a TPU topology");
    assert_true(ch__mem_peak() <= (int64_t)((size_t)2 << 20) + 8 * (int64_t)n);
    ch__mem_watch(false);
    assert_int_equal(ch__mem_live(), live);
    free(bytes);
    (void)state;
}

static ch_status there_and_back(void *arg)
{
    ch_tpu_topology *t = NULL, *again = NULL;
    void            *bytes = NULL, *more = NULL;
    size_t           n = 0, m = 0;
    ch_status        rc = ch_tpu_topology_new(arg, &t);

    if (rc == CH_OK)
        rc = ch_tpu_topology_encode(t, &bytes, &n);
    if (rc == CH_OK)
        rc = ch_tpu_topology_parse(bytes, n, &again);
    if (rc == CH_OK)
        rc = ch_tpu_topology_encode(again, &more, &m);
    ch_bytes_free(bytes);
    ch_bytes_free(more);
    ch_tpu_topology_unref(t);
    ch_tpu_topology_unref(again);
    return rc;
}

static void topology_leaks_nothing_when_out_of_memory(void **state)
{
    ch_tpu_mesh m = {.size = {2, 2, 1, 2}, .tasks = 2};

    t_out_of_memory(there_and_back, &m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topology_has_the_sizes_and_devices_it_is_made_of),
        cmocka_unit_test(topology_without_coordinates_has_the_core_fastest_then_x_y_z),
        cmocka_unit_test(topology_vectors_of_three_entries_have_no_z),
        cmocka_unit_test(topology_rejects_sizes_and_coordinates_that_do_not_fit),
        cmocka_unit_test(topology_lists_missing_devices_in_row_major_order),
        cmocka_unit_test(topology_names_devices_and_their_hosts),
        cmocka_unit_test(topology_encode_writes_the_bytes_of_a_topology_proto),
        cmocka_unit_test(topology_parse_reads_the_bytes_and_encode_gives_them_back),
        cmocka_unit_test(topology_parse_checks_the_message_in_this_order),
        cmocka_unit_test(topology_parse_survives_altered_bytes),
        cmocka_unit_test(topology_parse_takes_bounded_memory),
        cmocka_unit_test(topology_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
