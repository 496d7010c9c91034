/* test/ckpt/test_directory.c -- state files, object graphs, and directories of checkpoints.
 *
 * A state file is the text file `checkpoint` that names the checkpoints of a directory. The
 * tests also cover the removal of leftovers of killed processes and the lock of a directory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "ckpt/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>

#include "ckpt/object_graph.h"
#include "ckpt/state_file.h"
#include "help.h"

/* ---- state files ---- */

/* CM-1, CM-2: paths, times, and what TensorFlow writes */
static void state_file_reads_back_as_written(void **state)
{
    const char       *paths[] = {"ckpt-1", "sub dir/ckpt-\"2\"\\", "ckpt-\xc3\xa9"};
    const double      times[] = {1600000000.25, 1.5, -2.125};
    static const char text[] = "model_checkpoint_path: \"ckpt-\\303\\251\"\n"
                               "all_model_checkpoint_paths: \"ckpt-1\"\n"
                               "all_model_checkpoint_paths: \"sub dir/ckpt-\\\"2\\\"\\\\\"\n"
                               "all_model_checkpoint_paths: \"ckpt-\\303\\251\"\n"
                               "all_model_checkpoint_timestamps: 1600000000.250000\n"
                               "all_model_checkpoint_timestamps: 1.500000\n"
                               "all_model_checkpoint_timestamps: -2.125000\n"
                               "last_preserved_timestamp: 12345.678900\n";
    ch_state_file     s = {.latest = paths[2],
                           .n = 3,
                           .path = paths,
                           .time = times,
                           .has_preserved = true,
                           .last_preserved = 12345.6789},
                  back;
    size_t n;
    char  *have;

    for (int i = 0; i < 2; i++)
        assert_int_equal(ch__state_file_write(t_folder, &s, i == 0), CH_OK);
    have = t_read(t_path("checkpoint"), &n);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(have, text, n);
    free(have);
    assert_int_equal(ch__state_file_read(t_folder, &back), CH_OK);
    assert_string_equal(back.latest, paths[2]);
    assert_int_equal(back.n, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(back.path[i], paths[i]);
        assert_true(back.time[i] == times[i]);
    }
    assert_true(back.has_preserved && back.last_preserved == 12345.6789);
    ch__free(back.memory);
    (void)state;
}

/* CM-3 */
static void state_file_parser_rejects_other_texts(void **state)
{
    static const struct {
        const char *text;
        ch_status   rc;
    } cases[] = {
        {"model_checkpoint_path: \"a\"", CH_OK},
        {"model_checkpoint_path : 'a' # text", CH_OK},
        {"model_checkpoint_path:\"a\";last_preserved_timestamp:1e9", CH_OK},
        {"model_checkpoint_path: \"\\x61\\141\\t\"", CH_OK},
        {"model_checkpoint_path: \"/dir/a\"", CH_OK},
        {"", CH_INVALID_ARGUMENT},
        {"last_preserved_timestamp: 1", CH_INVALID_ARGUMENT},
        {"model_checkpoint_path: \"../a\"", CH_INVALID_ARGUMENT},
        {"model_checkpoint_path: \"a/../../b\"", CH_INVALID_ARGUMENT},
        {"model_checkpoint_path: \"..\"", CH_INVALID_ARGUMENT},
        {"model_checkpoint_path: \"/etc/passwd\"", CH_INVALID_ARGUMENT},
        {"model_checkpoint_path: \"/dir/../b\"", CH_INVALID_ARGUMENT},
        {"model_checkpoint_path: \"\"", CH_INVALID_ARGUMENT},
        {"model_checkpoint_path: \"a", CH_DATA_LOSS},
        {"model_checkpoint_path: \"a\n\"", CH_DATA_LOSS},
        {"model_checkpoint_path: \"\\q\"", CH_DATA_LOSS},
        {"model_checkpoint_path: \"\\000\"", CH_DATA_LOSS},
        {"model_checkpoint_path: \"\\x\"", CH_DATA_LOSS},
        {"model_checkpoint_path: \"a\\", CH_DATA_LOSS},
        {"model_checkpoint_path: a", CH_DATA_LOSS},
        {"model_checkpoint_path \"a\"", CH_DATA_LOSS},
        {"model_checkpoint: \"a\"", CH_DATA_LOSS},
        {"last_preserved_timestamp: x", CH_DATA_LOSS},
        {"last_preserved_timestamp: 1e", CH_DATA_LOSS},
        {"last_preserved_timestamp: 1e9999", CH_DATA_LOSS},
        {"\xff", CH_DATA_LOSS},
        {"model_checkpoint_path: \"a\" all_model_checkpoint_timestamps: 1", CH_DATA_LOSS}};
    ch_state_file s;

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        ch_status rc = ch__state_file_parse("/dir", cases[i].text, strlen(cases[i].text), &s);

        t_assert_error(rc, cases[i].rc, rc == CH_OK ? "" : "/dir/checkpoint");
        if (rc == CH_OK)
            ch__free(s.memory);
    }
    unlink(t_path("checkpoint"));
    t_assert_error(ch__state_file_read(t_folder, &s), CH_NOT_FOUND, "checkpoint");
    (void)state;
}

/* CM-3: the path of the state file is no checkpoint */
static void state_file_writer_rejects_paths_outside_its_directory(void **state)
{
    const char *bad[] = {"../a", "/a", "", "checkpoint", "a/.."}, *good = "a";

    for (int i = 0; i < 5; i++) {
        ch_state_file s = {.latest = bad[i]}, t = {.latest = good, .n = 1, .path = &bad[i]};

        t_assert_error(ch__state_file_write(t_folder, &s, true), CH_INVALID_ARGUMENT, bad[i]);
        t_assert_error(ch__state_file_write(t_folder, &t, true), CH_INVALID_ARGUMENT,
                       i == 2 ? "the path \"\" is empty" : bad[i]);
    }
    (void)state;
}

static ch_status save_and_read_state(void)
{
    const char   *path = "a";
    ch_state_file s = {.latest = path, .n = 1, .path = &path}, back;
    ch_status     rc = ch__state_file_write(t_folder, &s, false);

    if (rc == CH_OK)
        rc = ch__state_file_read(t_folder, &back);
    if (rc == CH_OK)
        ch__free(back.memory);
    return rc;
}

static void state_file_survives_failing_calls_and_allocations(void **state)
{
    for (int which = 0; which < 2; which++)
        for (int64_t n = 1, done = 0; !done; n++) {
            int64_t   live = ch__mem_live();
            ch_status rc;

            which == 0 ? ch__file_fail_at(n, EIO) : ch__mem_fail_at(n);
            rc = save_and_read_state();
            ch__file_fail_at(0, EIO);
            ch__mem_fail_at(0);
            done = rc == CH_OK;
            assert_int_equal(ch__mem_live(), live);
        }
    (void)state;
}

/* ---- object graphs ---- */

/* CK-15 */
static void object_graph_reads_back_as_encoded(void **state)
{
    const ch_object_child child[] = {{1, "a.b"}, {2, "opt"}};
    const ch_object_value value[] = {{"VARIABLE_VALUE", "w", "a/.ATTRIBUTES/VARIABLE_VALUE"}};
    const ch_object_slot  slot[] = {{1, "m", 2}};
    const ch_object_node  node[] = {{.n_children = 2, .child = child},
                                    {.n_values = 1, .value = value},
                                    {.n_slots = 1, .slot = slot}};
    /* By hand, from the statement: nodes = 1 {children = 1 {node_id = 1, local_name = 2},
     * attributes = 2 {name = 1, full_name = 2, checkpoint_key = 3}, slot_variables = 3
     * {original_variable_node_id = 1, slot_name = 2, slot_variable_node_id = 3},
     * has_checkpoint_values = 5 {value = 1}}. */
    static const char golden[] =
        "0a 14 0a 07 08 01 12 03 61 2e 62 0a 07 08 02 12 03 6f 70 74 2a 00 "
        "0a 37 12 31 0a 0e 56 41 52 49 41 42 4c 45 5f 56 41 4c 55 45 12 01 "
        "77 1a 1c 61 2f 2e 41 54 54 52 49 42 55 54 45 53 2f 56 41 52 49 41 "
        "42 4c 45 5f 56 41 4c 55 45 2a 02 08 01 "
        "0a 0b 1a 07 08 01 12 01 6d 18 02 2a 00 ";
    unsigned char    bytes[200];
    size_t           n_golden = t_unhex(golden, bytes);
    ch_object_graph  g = {.n = 3, .node = node}, back;
    ch_bytes_builder b = {0};

    ch__object_graph_encode(&g, &b);
    assert_int_equal(b.n, n_golden);
    assert_memory_equal(b.at, bytes, n_golden);
    assert_int_equal(ch__object_graph_decode((ch_str){(char *)bytes, n_golden}, &back), CH_OK);
    assert_int_equal(back.n, 3);
    assert_int_equal(back.node[0].n_children, 2);
    assert_string_equal(back.node[0].child[0].name, "a.b");
    assert_int_equal(back.node[0].child[1].node, 2);
    assert_int_equal(back.node[1].n_values, 1);
    assert_string_equal(back.node[1].value[0].name, "VARIABLE_VALUE");
    assert_string_equal(back.node[1].value[0].full_name, "w");
    assert_string_equal(back.node[1].value[0].key, "a/.ATTRIBUTES/VARIABLE_VALUE");
    assert_int_equal(back.node[2].slot[0].variable, 1);
    assert_string_equal(back.node[2].slot[0].name, "m");
    assert_int_equal(back.node[2].slot[0].slot, 2);
    ch__free(back.memory);
    for (int64_t n = 1; n < 3; n++) {
        ch__mem_fail_at(n);
        (void)!(ch__object_graph_decode((ch_str){b.at, (size_t)b.n}, &back) == CH_OK &&
                (ch__free(back.memory), true));
        ch__mem_fail_at(0);
    }
    /* Reads a graph that refers to a missing node, an invalid text, and graphs with a damaged
     * byte. */
    t_assert_error(ch__object_graph_decode((ch_str){"\x0a\x04\x0a\x02\x08\x01", 6}, &back),
                   CH_DATA_LOSS, "node", "byte");
    t_assert_error(ch__object_graph_decode((ch_str){"\x0a\x05\x0a\x03\x12\x01\0", 7}, &back),
                   CH_DATA_LOSS, "text");
    t_assert_error(ch__object_graph_decode((ch_str){"\x08\x01", 2}, &back), CH_DATA_LOSS,
                   "type");
    t_assert_error(ch__object_graph_decode((ch_str){"\x0a\x02\x08\x01", 4}, &back),
                   CH_DATA_LOSS, "type");
    for (size_t i = 0; i < b.n; i++)
        for (int bit = 0; bit < 8; bit++) {
            b.at[i] ^= (char)(1 << bit);
            if (ch__object_graph_decode((ch_str){b.at, (size_t)b.n}, &back) == CH_OK)
                ch__free(back.memory);
            b.at[i] ^= (char)(1 << bit);
        }
    ch__bytes_builder_drop(&b);
    (void)state;
}

/* Decodes a message of many empty nodes. The size of the message must limit the memory. */
static void object_graph_memory_is_limited_by_the_message(void **state)
{
    enum { N = 4 << 20 };
    char           *message = malloc(N);
    ch_object_graph g;

    for (int i = 0; i < N; i++)
        message[i] = i % 2 == 0 ? '\x0a' : '\0';
    t_assert_error(ch__object_graph_decode((ch_str){message, N}, &g), CH_RESOURCE_EXHAUSTED,
                   "nodes");
    assert_int_equal(ch__object_graph_decode((ch_str){message, 1000}, &g), CH_OK);
    assert_int_equal(g.n, 500);
    ch__free(g.memory);
    free(message);
    (void)state;
}

/* CK-13 */
static void object_keys_escape_dots_and_slashes(void **state)
{
    ch_bytes_builder key = {0};
    char             text[32] = "a.Sb..c";

    ch__object_key_add(&key, "a/b");
    ch__bytes_builder_text(&key, "/");
    ch__object_key_add(&key, ".ATTRIBUTES");
    assert_int_equal(key.n, 17);
    assert_memory_equal(key.at, "a.Sb/..ATTRIBUTES", 17);
    ch__bytes_builder_drop(&key);
    assert_true(ch__object_key_unescape(text));
    assert_string_equal(text, "a/b.c");
    for (int i = 0; i < 3; i++) {
        static const char *const bad[] = {"a.x", "a.", "a/b"};

        snprintf(text, sizeof(text), "%s", bad[i]);
        assert_false(ch__object_key_unescape(text));
    }
    (void)state;
}

/* ---- directories ---- */

static void checkpoint_list_sorts_by_number(void **state)
{
    static const char *const names[] = {
        "ckpt-10.index", "ckpt-9.index", "a.index", ".b.index", "ckpt-11.data-00000-of-00001",
        "ckpt-2.index",  "index"};
    static const char *const want[] = {"a", "ckpt-2", "ckpt-9", "ckpt-10"};
    ch_ckpt_list             l = {0};

    mkdir(t_path("list"), 0700);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char name[64];

        snprintf(name, sizeof(name), "list/%s", names[i]);
        t_write(name, "", 0);
    }
    assert_int_equal(ch__ckpt_list(t_path("list"), &l), CH_OK);
    assert_int_equal(l.n, 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(l.name[i], want[i]);
    ch__ckpt_list_drop(&l);
    t_assert_error(ch__ckpt_list(t_path("nowhere"), &l), CH_NOT_FOUND, "nowhere");
    (void)state;
}

static void checkpoint_remove_removes_only_its_own_files(void **state)
{
    static const char *const gone[] = {"rm/ckpt-1.index", "rm/ckpt-1.data-00000-of-00002",
                                       "rm/ckpt-1.data-00001-of-00002"};
    static const char *const kept[] = {"rm/ckpt-11.data-00000-of-00001", "rm/ckpt-1.txt",
                                       "rm/ckpt-1.data-00000-of-0000x",
                                       "rm/ckpt-1.data-00000-of-000001"};

    mkdir(t_path("rm"), 0700);
    for (int i = 0; i < 3; i++)
        t_write(gone[i], "", 0);
    for (int i = 0; i < 4; i++)
        t_write(kept[i], "", 0);
    assert_int_equal(ch__ckpt_remove(t_path("rm/ckpt-1"), false), CH_OK);
    for (int i = 0; i < 3; i++)
        assert_int_not_equal(access(t_path(gone[i]), F_OK), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(access(t_path(kept[i]), F_OK), 0);
    assert_int_equal(ch__ckpt_remove(t_path("rm/ckpt-1"), true), CH_OK);
    (void)state;
}

static void checkpoint_leftovers_of_killed_processes_are_removed(void **state)
{
    static const char *const gone[] = {
        "lo/.ckpt-3.index.tmp-77-0", "lo/.ckpt-3.data-00000-of-00001.tmp-77-1",
        "lo/.checkpoint.tmp-77-2", "lo/ckpt-3.data-00000-of-00001"};
    static const char *const kept[] = {
        "lo/ckpt-2.data-00000-of-00001", "lo/ckpt-2.index", "lo/other-3.data-00000-of-00001",
        "lo/.other-3.index.tmp-77-0", "lo/.ckpt-5.index.tmp-1-1"};
    int fd;

    mkdir(t_path("lo"), 0700);
    for (int i = 0; i < 4; i++)
        t_write(gone[i], "", 0);
    for (int i = 0; i < 5; i++)
        t_write(kept[i], "", 0);
    fd = open(t_path(kept[4]), O_WRONLY); /* this checkpoint is being written */
    assert_true(ch__sys_lock(fd));
    ch__ckpt_remove_leftovers(t_path("lo"), "ckpt");
    for (int i = 0; i < 4; i++)
        assert_int_not_equal(access(t_path(gone[i]), F_OK), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(access(t_path(kept[i]), F_OK), 0);
    close(fd);
    (void)state;
}

/* CM-14: a second manager is refused */
static void checkpoint_lock_names_the_process_that_holds_it(void **state)
{
    ch_ckpt_lock *l = NULL, *second = NULL;
    char          pid[32];
    int           status, pipes[2];

    snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
    assert_int_equal(ch__ckpt_lock(t_folder, &l), CH_OK);
    t_assert_error(ch__ckpt_lock(t_folder, &second), CH_FAILED_PRECONDITION, t_folder, pid);
    ch__ckpt_unlock(l);
    assert_int_not_equal(access(t_path(".cohort-lock"), F_OK), 0);
    assert_int_equal(ch__ckpt_lock(t_folder, &l), CH_OK);
    ch__ckpt_unlock(l);
    ch__ckpt_unlock(NULL);
    /* The lock of a killed process is released. */
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        char ok = (char)(ch__ckpt_lock(t_folder, &l) == CH_OK);

        _exit(write(pipes[1], &ok, 1) == 1 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(read(pipes[0], pid, 1), 1);
    assert_int_equal(pid[0], 1);
    assert_int_equal(access(t_path(".cohort-lock"), F_OK), 0);
    assert_int_equal(ch__ckpt_lock(t_folder, &l), CH_OK);
    ch__ckpt_unlock(l);
    for (int64_t n = 1, done = 0; !done; n++) {
        ch_status rc;

        ch__file_fail_at(n, EIO);
        rc = ch__ckpt_lock(t_folder, &l);
        ch__file_fail_at(0, EIO);
        done = rc == CH_OK;
    }
    ch__ckpt_unlock(l);
    close(pipes[0]);
    close(pipes[1]);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_file_reads_back_as_written),
        cmocka_unit_test(state_file_parser_rejects_other_texts),
        cmocka_unit_test(state_file_writer_rejects_paths_outside_its_directory),
        cmocka_unit_test(state_file_survives_failing_calls_and_allocations),
        cmocka_unit_test(object_graph_reads_back_as_encoded),
        cmocka_unit_test(object_graph_memory_is_limited_by_the_message),
        cmocka_unit_test(object_keys_escape_dots_and_slashes),
        cmocka_unit_test(checkpoint_list_sorts_by_number),
        cmocka_unit_test(checkpoint_remove_removes_only_its_own_files),
        cmocka_unit_test(checkpoint_leftovers_of_killed_processes_are_removed),
        cmocka_unit_test(checkpoint_lock_names_the_process_that_holds_it),
    };

    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}
