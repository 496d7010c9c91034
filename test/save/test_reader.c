/* test/save/test_reader.c -- the public readers of checkpoint files.
 *
 * test/ckpt/ checks that bytes are read and written correctly. These tests check that the
 * public functions show them: tensors, slices, deltas, directories, errors.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>

#include "../ckpt/help.h"
#include "ckpt/directory.h"
#include "ckpt/state_file.h"
#include "cohort/checkpoint_reader.h"

static const ch_ckpt_write_options quick = {.no_sync = true};

static float numbers[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

/* Writes a checkpoint with a tensor in slices (4, 3), strings, an empty tensor and, if `id` is
 * not 0, metadata. */
static void write_some(const char *prefix, uint64_t id)
{
    static const ch_str words[] = {{"some", 4}, {"", 0}, {"words", 5}};
    static t_bundle     b;
    ch_bytes_builder    text = {0};
    ch_ckpt_metadata    m = {.format = 1, .id = id, .step = 7, .time = 1600000000250000};

    b = (t_bundle){0};
    t_add_slice(&b, "w", CH_F32, ch_shape_of(4, 3),
                t_region(2, (int64_t[]){0, 0}, (int64_t[]){1, 3}), numbers);
    t_add_slice(&b, "w", CH_F32, ch_shape_of(4, 3),
                t_region(2, (int64_t[]){1, 0}, (int64_t[]){3, 3}), numbers + 3);
    t_add_strings(&b, "words", ch_shape_of(3), words, &text);
    t_add(&b, "empty", CH_I64, ch_shape_of(0, 2), numbers);
    assert_int_equal(id != 0 ? t_write_checkpoint(&b, prefix, &m, &quick)
                             : t_write_bundle(&b, prefix, 1, false, &quick),
                     CH_OK);
    ch__bytes_builder_drop(&text);
}

static void write_state(const char *directory, const char *latest)
{
    ch_state_file s = {.latest = latest, .n = 1, .path = &latest};

    assert_int_equal(ch__state_file_write(directory, &s, true), CH_OK);
}

static void reader_shows_tensors_and_their_slices(void **state)
{
    ch_checkpoint_reader *r = NULL;
    ch_checkpoint_item    x;
    ch_checkpoint_part    part;
    int                   w;

    write_some(t_path("a"), 0);
    assert_int_equal(ch_checkpoint_open(t_path("a"), &r), CH_OK);
    assert_int_equal(ch_checkpoint_count(r), 3);
    w = ch_checkpoint_find(r, "w");
    assert_int_equal(ch_checkpoint_find(r, "v"), -1);
    assert_int_equal(ch_checkpoint_entry(r, w, &x), CH_OK);
    assert_string_equal(x.name, "w");
    assert_string_equal(x.dtype_name, "f32");
    assert_true(x.dtype == CH_F32 && ch_shape_equal(x.shape, ch_shape_of(4, 3)));
    assert_true(x.n_parts == 2 && !x.is_whole && x.bytes == 48 && x.n_rows == -1);
    assert_int_equal(ch_checkpoint_slice(r, w, 1, &part), CH_OK);
    assert_true(part.begin[0] == 1 && part.size[0] == 3 && part.size[1] == 3);
    assert_string_equal(part.file, t_path("a.data-00000-of-00001"));
    assert_true(part.offset == 64 && part.bytes == 36);
    assert_int_equal(part.crc, ch__crc32c_mask(ch__crc32c(0, numbers + 3, 36)));
    t_assert_error(ch_checkpoint_slice(r, w, 2, &part), CH_INVALID_ARGUMENT, "part 2 of 2");
    t_assert_error(ch_checkpoint_entry(r, 3, &x), CH_INVALID_ARGUMENT, "tensor 3 of 3");
    for (int i = 0; i < 3; i++)
        assert_int_equal(ch_checkpoint_verify(r, i), CH_OK);
    ch_checkpoint_close(r);
    (void)state;
}

static void reader_names_dtypes_that_cohort_does_not_have(void **state)
{
    assert_string_equal(ch__ckpt_dtype_name(8), "complex64");
    assert_string_equal(ch__ckpt_dtype_name(19), "f16");
    assert_string_equal(ch__ckpt_dtype_name(0), "?");
    assert_string_equal(ch__ckpt_dtype_name(99), "?");
    (void)state;
}

static void reader_describes_the_checkpoint(void **state)
{
    ch_checkpoint_reader *r = NULL;
    ch_checkpoint_info    info;
    struct stat           index, data;

    write_some(t_path("a"), 5);
    assert_int_equal(ch_checkpoint_open(t_path("a"), &r), CH_OK);
    assert_int_equal(ch_checkpoint_describe(r, &info), CH_OK);
    assert_string_equal(info.prefix, t_path("a"));
    assert_true(info.format == 1 && info.id == 5 && info.step == 7 && info.base == NULL);
    assert_true(info.time == 1600000000.25 && info.n_files == 1 && info.base_id == 0);
    assert_int_equal(stat(t_path("a.index"), &index), 0);
    assert_int_equal(stat(t_path("a.data-00000-of-00001"), &data), 0);
    assert_int_equal(info.bytes, index.st_size + data.st_size);
    ch_checkpoint_close(r);
    write_some(t_path("a"), 0);
    assert_int_equal(ch_checkpoint_open(t_path("a"), &r), CH_OK);
    assert_int_equal(ch_checkpoint_describe(r, &info), CH_OK);
    assert_true(info.format == 0 && info.id == 0 && info.step == -1 && info.time == 0);
    ch_checkpoint_close(r);
    (void)state;
}

static void reader_reads_regions_and_ranges(void **state)
{
    ch_checkpoint_reader *r = NULL;
    ch_tensor            *t = NULL;
    ch_str                word;

    write_some(t_path("a"), 0);
    assert_int_equal(ch_checkpoint_open(t_path("a"), &r), CH_OK);
    assert_int_equal(ch_checkpoint_read(r, "w", 0, NULL, NULL, &t), CH_OK);
    assert_memory_equal(ch_tensor_data(t), numbers, 48);
    ch_tensor_unref(t);
    assert_int_equal(ch_checkpoint_read(r, "w", 2, (int64_t[]){0, 1}, (int64_t[]){2, 3}, &t),
                     CH_OK);
    assert_true(ch_shape_equal(ch_tensor_shape(t), ch_shape_of(2, 2)));
    assert_memory_equal(ch_tensor_data(t), ((float[]){2, 3, 5, 6}), 16);
    ch_tensor_unref(t);
    for (int from = 0; from <= 12; from++)
        for (int to = from; to <= 12; to++) {
            assert_int_equal(ch_checkpoint_read_range(r, "w", from, to, &t), CH_OK);
            assert_int_equal(ch_tensor_count(t), to - from);
            assert_memory_equal(ch_tensor_data(t), numbers + from, (size_t)(to - from) * 4);
            ch_tensor_unref(t);
        }
    assert_int_equal(ch_checkpoint_read(r, "words", 1, (int64_t[]){1}, (int64_t[]){3}, &t),
                     CH_OK);
    assert_int_equal(ch_tensor_count(t), 2);
    assert_int_equal(ch_tensor_str(t, (int64_t[]){1}, &word), CH_OK);
    assert_memory_equal(word.data, "words", 5);
    ch_tensor_unref(t);
    assert_int_equal(ch_checkpoint_read(r, "empty", 0, NULL, NULL, &t), CH_OK);
    assert_int_equal(ch_tensor_count(t), 0);
    ch_tensor_unref(t);
    t_assert_error(ch_checkpoint_read(r, "v", 0, NULL, NULL, &t), CH_NOT_FOUND, "\"v\"");
    t_assert_error(ch_checkpoint_read(r, "w", 3, (int64_t[3]){0}, (int64_t[3]){0}, &t),
                   CH_INVALID_ARGUMENT, "3 axes of 2");
    t_assert_error(ch_checkpoint_read(r, "w", 1, (int64_t[]){2}, (int64_t[]){5}, &t),
                   CH_INVALID_ARGUMENT, "axis 0: elements 2 to 5 of 4");
    t_assert_error(ch_checkpoint_read_range(r, "w", 3, 13, &t), CH_INVALID_ARGUMENT,
                   "elements 3 to 13 of 12");
    t_assert_error(ch_checkpoint_read_range(r, "words", 0, 1, &t), CH_UNIMPLEMENTED, "strings");
    ch_checkpoint_close(r);
    (void)state;
}

static void reader_rejects_shapes_above_the_size_of_the_files(void **state)
{
    static t_bundle       b;
    ch_checkpoint_reader *r = NULL;
    ch_tensor            *t = NULL;

    b = (t_bundle){0};
    t_add_slice(&b, "huge", CH_F32, ch_shape_of(INT64_C(1) << 40), t_range(0, 3), numbers);
    assert_int_equal(t_write_bundle(&b, t_path("huge"), 1, true, &quick), CH_OK);
    assert_int_equal(ch_checkpoint_open(t_path("huge"), &r), CH_OK);
    t_assert_error(ch_checkpoint_read(r, "huge", 0, NULL, NULL, &t), CH_INVALID_ARGUMENT,
                   "sufficient slices");
    assert_int_equal(ch_checkpoint_read_range(r, "huge", 1, 3, &t), CH_OK);
    assert_memory_equal(ch_tensor_data(t), numbers + 1, 8);
    ch_tensor_unref(t);
    ch_checkpoint_close(r);
    (void)state;
}

static void reader_shows_a_delta_as_the_full_state(void **state)
{
    static t_bundle       b;
    static const int64_t  id = 2;
    static const float    row[3] = {-1, -2, -3};
    ch_ckpt_metadata      m = {.format = 1, .id = 6, .step = 9, .base_id = 5, .base = "a"};
    ch_checkpoint_reader *r = NULL, *full = NULL;
    ch_checkpoint_info    info;
    ch_checkpoint_item    x;
    ch_tensor            *t = NULL;

    write_some(t_path("a"), 5);
    b = (t_bundle){0};
    t_add(&b, "w" CH_DELTA_IDS, CH_I64, ch_shape_of(1), &id);
    t_add(&b, "w" CH_DELTA_VALUES, CH_F32, ch_shape_of(1, 3), row);
    assert_int_equal(t_write_checkpoint(&b, t_path("d"), &m, &quick), CH_OK);
    assert_int_equal(ch_checkpoint_open(t_path("d"), &r), CH_OK);
    assert_int_equal(ch_checkpoint_describe(r, &info), CH_OK);
    assert_string_equal(info.base, t_path("a"));
    assert_int_equal(info.base_id, 5);
    assert_int_equal(ch_checkpoint_entry(r, ch_checkpoint_find(r, "w"), &x), CH_OK);
    assert_true(x.n_rows == 1 && x.n_parts == 0 && x.bytes == 20);
    assert_int_equal(ch_checkpoint_fold(r, t_path("full")), CH_OK);
    assert_int_equal(ch_checkpoint_open(t_path("full"), &full), CH_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            ch_checkpoint_read(i == 0 ? r : full, "w", 1, (int64_t[]){1}, (int64_t[]){4}, &t),
            CH_OK);
        assert_memory_equal(ch_tensor_data(t), ((float[]){4, 5, 6, -1, -2, -3, 10, 11, 12}),
                            36);
        ch_tensor_unref(t);
    }
    ch_checkpoint_close(r);
    ch_checkpoint_close(full);
    (void)state;
}

/* CK-5, SVM-4: a prefix, a missing path, a SavedModel; and Cohort's other forms */
static void reader_opens_prefixes_indexes_and_directories(void **state)
{
    ch_checkpoint_reader *r = NULL;
    ch_checkpoint_info    info;
    char                  directory[600];

    write_some(t_path("a"), 0);
    write_some(t_path("b"), 0);
    write_state(t_folder, "b");
    assert_int_equal(ch_checkpoint_open(t_path("a.index"), &r), CH_OK);
    assert_int_equal(ch_checkpoint_describe(r, &info), CH_OK);
    assert_string_equal(info.prefix, t_path("a"));
    ch_checkpoint_close(r);
    snprintf(directory, sizeof(directory), "%s/", t_folder);
    assert_int_equal(ch_checkpoint_open(directory, &r), CH_OK);
    assert_int_equal(ch_checkpoint_describe(r, &info), CH_OK);
    assert_string_equal(info.prefix, t_path("b"));
    ch_checkpoint_close(r);
    t_assert_error(ch_checkpoint_open(t_path("c"), &r), CH_NOT_FOUND, "no such checkpoint",
                   "without \".index\"");
    assert_int_equal(mkdir(t_path("model"), 0777), 0);
    t_assert_error(ch_checkpoint_open(t_path("model"), &r), CH_NOT_FOUND, "no checkpoint",
                   "\"checkpoint\"");
    assert_int_equal(mkdir(t_path("model/variables"), 0777), 0);
    write_some(t_path("model/variables/variables"), 0);
    assert_int_equal(ch_checkpoint_open(t_path("model"), &r), CH_OK);
    ch_checkpoint_close(r);
    (void)state;
}

/* CM-3, CM-4: by the state file, if the checkpoint exists; the directory is not searched */
static void find_latest_gives_the_checkpoint_of_the_state_file(void **state)
{
    char path[600] = "?", small[4];

    write_some(t_path("a"), 0);
    write_some(t_path("b"), 0);
    write_state(t_folder, "a");
    assert_int_equal(ch_checkpoint_find_latest(t_folder, path, sizeof(path)), CH_OK);
    assert_string_equal(path, t_path("a"));
    t_assert_error(ch_checkpoint_find_latest(t_folder, small, sizeof(small)),
                   CH_INVALID_ARGUMENT, "bytes");
    write_state(t_folder, "gone");
    t_assert_error(ch_checkpoint_find_latest(t_folder, path, sizeof(path)), CH_NOT_FOUND,
                   "gone", "does not exist");
    assert_int_equal(remove(t_path("checkpoint")), 0);
    t_assert_error(ch_checkpoint_find_latest(t_folder, path, sizeof(path)), CH_NOT_FOUND,
                   "no file \"checkpoint\"");
    t_write("checkpoint", "no state file", 13);
    assert_int_equal(ch_checkpoint_find_latest(t_folder, path, sizeof(path)), CH_DATA_LOSS);
    t_write("checkpoint", "", 0);
    assert_int_equal(ch_checkpoint_find_latest(t_folder, path, sizeof(path)),
                     CH_INVALID_ARGUMENT);
    assert_string_equal(path, t_path("a")); /* is written by calls that succeed */
    assert_int_equal(remove(t_path("checkpoint")), 0);
    (void)state;
}

typedef struct listing {
    char    names[400];
    int     n, stop_at, n_complete;
    int64_t bytes;
} listing;

static ch_status visit(void *arg, const ch_checkpoint_found *found)
{
    listing *l = arg;
    size_t   n = strlen(l->names);

    snprintf(l->names + n, sizeof(l->names) - n, "%s ", strrchr(found->prefix, '/') + 1);
    l->n_complete += found->has_index;
    l->bytes = found->bytes;
    return ++l->n == l->stop_at ? ch_fail(CH_ABORTED, "stopped") : CH_OK;
}

static void list_visits_checkpoints_in_the_order_of_their_numbers(void **state)
{
    listing     l = {.n = 0};
    struct stat index, data;

    assert_int_equal(mkdir(t_path("run"), 0777), 0);
    for (int i = 11; i >= 8; i--) {
        char name[32];

        snprintf(name, sizeof(name), "run/ckpt-%d", i);
        write_some(t_path(name), 0);
    }
    assert_int_equal(remove(t_path("run/ckpt-9.index")), 0);
    t_write("run/checkpoint", "", 0);
    t_write("run/notes.txt", "", 0);
    assert_int_equal(ch_checkpoint_list(t_path("run"), visit, &l), CH_OK);
    assert_string_equal(l.names, "ckpt-8 ckpt-9 ckpt-10 ckpt-11 ");
    assert_int_equal(l.n_complete, 3);
    assert_int_equal(stat(t_path("run/ckpt-11.index"), &index), 0);
    assert_int_equal(stat(t_path("run/ckpt-11.data-00000-of-00001"), &data), 0);
    assert_int_equal(l.bytes, index.st_size + data.st_size);
    l = (listing){.stop_at = 2};
    t_assert_error(ch_checkpoint_list(t_path("run"), visit, &l), CH_ABORTED, "stopped");
    assert_int_equal(l.n, 2);
    assert_int_equal(ch_checkpoint_list(t_path("nowhere"), visit, &l), CH_NOT_FOUND);
    (void)state;
}

static void *write_later(void *arg)
{
    const char *name = arg;
    char        prefix[32];

    (void)mkdir(t_path("later"), 0777);
    snprintf(prefix, sizeof(prefix), "later/%s", name);
    write_some(t_path(prefix), 0);
    write_state(t_path("later"), name);
    return NULL;
}

static void wait_next_returns_when_a_checkpoint_is_newer(void **state)
{
    static char names[][8] = {"ckpt-1", "ckpt-2"};
    char        directory[600], path[600], last[600];

    snprintf(directory, sizeof(directory), "%s", t_path("later"));
    t_assert_error(ch_checkpoint_wait_next(directory, NULL, 0, path, sizeof(path)),
                   CH_DEADLINE_EXCEEDED, "no checkpoint after 0 seconds");
    for (int i = 0; i < 2; i++) {
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, write_later, names[i]), 0);
        t_assert_error(
            ch_checkpoint_wait_next(directory, i == 0 ? NULL : last, 20, path, sizeof(path)),
            CH_OK, "");
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_string_equal(strrchr(path, '/') + 1, names[i]);
        memcpy(last, path, sizeof(last));
    }
    t_assert_error(ch_checkpoint_wait_next(directory, last, 0.15, path, sizeof(path)),
                   CH_DEADLINE_EXCEEDED, "newer than", "ckpt-2");
    assert_int_equal(ch_checkpoint_wait_next(directory, "x", INFINITY, path, sizeof(path)),
                     CH_OK);
    t_assert_error(ch_checkpoint_wait_next(directory, "x", 1, path, 3), CH_INVALID_ARGUMENT,
                   "needs");
    assert_int_equal(ch_checkpoint_wait_next(directory, NULL, NAN, path, sizeof(path)),
                     CH_INVALID_ARGUMENT);
    (void)state;
}

static void reader_of_a_part_has_the_tensors_after_a_name(void **state)
{
    ch_checkpoint_reader *r = NULL;
    ch_checkpoint_info    info;

    write_some(t_path("part"), 5);
    assert_int_equal(ch_checkpoint_open_part(t_path("part"), "w", &r), CH_OK);
    assert_int_equal(ch_checkpoint_describe(r, &info), CH_OK);
    assert_int_equal(ch_checkpoint_count(r), 1); /* "words" */
    assert_int_equal(ch_checkpoint_find(r, "words"), 0);
    assert_true(info.n_tensors == 4 && info.next == NULL && info.id == 5);
    ch_checkpoint_close(r);
    r = NULL;
    assert_int_equal(ch_checkpoint_open_part(t_path("part"), "words", &r), CH_OK);
    assert_int_equal(ch_checkpoint_count(r), 0);
    ch_checkpoint_close(r);
    (void)state;
}

/* ---- failures ---- */

static ch_status use_all(const char *path)
{
    ch_checkpoint_reader *r = NULL;
    ch_tensor            *t = NULL, *words = NULL;
    listing               l = {.n = 0};
    ch_status             rc = ch_checkpoint_list(t_path("run"), visit, &l);

    if (rc == CH_OK)
        rc = ch_checkpoint_open(path, &r);
    if (rc == CH_OK)
        rc = ch_checkpoint_read(r, "w", 1, (int64_t[]){1}, (int64_t[]){3}, &t);
    if (rc == CH_OK)
        rc = ch_checkpoint_read(r, "words", 0, NULL, NULL, &words);
    for (int i = 0; i < ch_checkpoint_count(r) && rc == CH_OK; i++)
        rc = ch_checkpoint_verify(r, i);
    ch_checkpoint_close(r);
    r = NULL;
    if (rc == CH_OK)
        rc = ch_checkpoint_open_part(path, "v", &r);
    ch_tensor_unref(t);
    ch_tensor_unref(words);
    ch_checkpoint_close(r);
    return rc;
}

static void reader_returns_an_error_when_any_call_or_allocation_fails(void **state)
{
    write_some(t_path("f"), 3);
    for (int kind = 0; kind < 2; kind++) {
        bool done = false;

        for (int64_t n = 1; !done; n++) {
            int64_t   live = ch__mem_live();
            ch_status rc;

            ch__mem_fail_at(kind == 0 ? n : 0);
            ch__file_fail_at(kind == 1 ? n : 0, EIO);
            rc = use_all(t_path("f"));
            ch__mem_fail_at(0);
            done = kind == 0 ? rc == CH_OK : n > 200;
            ch__file_fail_at(0, EIO);
            assert_true(rc == CH_OK ||
                        rc == (kind == 0 ? CH_RESOURCE_EXHAUSTED : CH_DATA_LOSS));
            assert_int_equal(ch__mem_live(), live);
        }
    }
    (void)state;
}

static void reader_functions_accept_null(void **state)
{
    ch_checkpoint_reader *r = NULL;
    char                  path[8];

    ch_checkpoint_close(NULL);
    assert_int_equal(ch_checkpoint_count(NULL), 0);
    assert_int_equal(ch_checkpoint_find(NULL, "x"), -1);
    t_assert_error(ch_checkpoint_open(NULL, &r), CH_INVALID_ARGUMENT, "path is NULL");
    t_assert_error(ch_checkpoint_open_part(NULL, NULL, &r), CH_INVALID_ARGUMENT,
                   "path is NULL");
    t_assert_error(ch_checkpoint_verify(NULL, 0), CH_INVALID_ARGUMENT, "r is NULL");
    t_assert_error(ch_checkpoint_list("x", NULL, NULL), CH_INVALID_ARGUMENT, "visit is NULL");
    t_assert_error(ch_checkpoint_find_latest(NULL, path, 8), CH_INVALID_ARGUMENT, "directory");
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reader_shows_tensors_and_their_slices),
        cmocka_unit_test(reader_names_dtypes_that_cohort_does_not_have),
        cmocka_unit_test(reader_describes_the_checkpoint),
        cmocka_unit_test(reader_reads_regions_and_ranges),
        cmocka_unit_test(reader_rejects_shapes_above_the_size_of_the_files),
        cmocka_unit_test(reader_shows_a_delta_as_the_full_state),
        cmocka_unit_test(reader_opens_prefixes_indexes_and_directories),
        cmocka_unit_test(find_latest_gives_the_checkpoint_of_the_state_file),
        cmocka_unit_test(list_visits_checkpoints_in_the_order_of_their_numbers),
        cmocka_unit_test(wait_next_returns_when_a_checkpoint_is_newer),
        cmocka_unit_test(reader_of_a_part_has_the_tensors_after_a_name),
        cmocka_unit_test(reader_returns_an_error_when_any_call_or_allocation_fails),
        cmocka_unit_test(reader_functions_accept_null),
    };

    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}
