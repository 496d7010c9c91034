/* test/data/test_cache.c -- caches in files and in memory.
 *
 * A cache file is complete or absent, and belongs to a single dataset. The tests let writers be
 * killed, several iterators write at the same time, bytes change, and every system call and
 * allocation fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../file/folder.h"
#include "base/mem.h"
#include "base/sys.h"
#include "pipeline.h"

/* Removes all files. Returns their number. */
static int empty_folder(void)
{
    DIR *d = opendir(t_folder);
    int  n = 0;

    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            assert_int_equal(remove(t_path(e->d_name)), 0);
            n++;
        }
    closedir(d);
    return n;
}

static bool is_there(const char *name)
{
    return access(t_path(name), F_OK) == 0;
}

static void write_all(const char *name, const char *data, size_t n)
{
    FILE *f = fopen(t_path(name), "wb");

    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* ---- the cached dataset ---- */

static int n_calls, fails_at = -1;

/* Converts "x" to x, (x, x + 1 ...) of up to 3, and a text. */
static ch_status rows(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t    x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0)), at = 0;
    float      some[3] = {(float)x, (float)x + 1, (float)x + 2};
    ch_tensor *t[3] = {NULL};
    char       text[32];
    ch_status  rc;

    (void)arg;
    n_calls++;
    if (x == fails_at)
        return CH_INTERNAL;
    rc = ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &x, &t[0]);
    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_F32, ch_shape_of(x % 4), some, &t[1]);
    if (rc == CH_OK)
        rc = ch_tensor_new(CH_STR, ch_shape_of(1), &t[2]);
    snprintf(text, sizeof(text), "%.*s", (int)(x % 7), "no more");
    if (rc == CH_OK)
        rc = ch_tensor_set_str(t[2], &at, (ch_str){text, strlen(text)});
    if (rc == CH_OK)
        rc = ch_tuple_of(3, t, out);
    for (int i = 0; i < 3; i++)
        ch_tensor_unref(t[i]);
    return rc;
}

static ch_dataset *source(int n)
{
    const ch_tensor_spec spec[] = {{.dtype = CH_I64},
                                   {.dtype = CH_F32, .shape = ch_shape_of(-1)},
                                   {.dtype = CH_STR, .shape = ch_shape_of(1)}};

    return ch_dataset_map_call(ch_dataset_shuffle(ch_dataset_range(0, n, 1), 5, NULL), rows,
                               NULL, 3, spec, NULL);
}

static ch_dataset *cached(int n, const char *name)
{
    return ch_dataset_cache(source(n), t_path(name));
}

/* Turns threads off, because they would prefetch. */
static ch_dataset *alone(ch_dataset *d)
{
    return ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
}

/* Returns all elements and errors as text, which is valid until the fourth next call. */
static const char *all_of(ch_dataset *d)
{
    static t_given given[4];
    static int     next;
    t_given       *g = &given[next = (next + 1) % 4];
    ch_iterator   *it = NULL;

    memset(g, 0, sizeof(*g));
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
    t_take(it, -1, g);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    return g->text;
}

/* ---- complete or absent ---- */

static void cache_file_of_one_pass_is_read_by_later_passes(void **state)
{
    const char *want = all_of(source(20)), *passes = all_of(ch_dataset_repeat(source(20), 1));

    (void)state;
    for (int k = 0; k < 3; k++) {
        const char *const name[] = {"plain", "packed.gz", "packed.zst"};

        if ((k == 1 && !CH_HAVE_ZLIB) || (k == 2 && !CH_HAVE_ZSTD))
            continue;
        n_calls = 0;
        assert_string_equal(all_of(cached(20, name[k])), want);
        assert_int_equal(n_calls, 20);
        assert_true(is_there(name[k]));
        assert_string_equal(all_of(cached(20, name[k])), want);
        assert_string_equal(
            all_of(ch_dataset_take(ch_dataset_repeat(cached(20, name[k]), 3), 20)), passes);
        assert_int_equal(n_calls, 20);
        assert_int_equal(empty_folder(), 1);
    }
}

/* The first pass writes the cache. Later passes read it, so they are not shuffled again. */
static void cache_gives_the_elements_of_the_first_pass_in_every_pass(void **state)
{
    static char want[65536];
    const char *once = all_of(source(9));

    (void)state;
    snprintf(want, sizeof(want), "%s | %s | %s", once, once, once);
    n_calls = 0;
    assert_string_equal(all_of(ch_dataset_repeat(cached(9, "c"), 3)), want);
    assert_int_equal(n_calls, 9);
    empty_folder();
    once = all_of(ch_dataset_take(source(9), 4));
    snprintf(want, sizeof(want), "%s | %s | %s", once, once, once);
    assert_string_equal(all_of(alone(ch_dataset_repeat(ch_dataset_take(cached(9, "c"), 4), 3))),
                        want);
    assert_int_equal(empty_folder(), 0);
}

static void cache_leaves_no_file_when_a_pass_is_incomplete(void **state)
{
    ch_iterator   *it = NULL;
    static t_given g;
    ch_dataset    *d = cached(40, "c");

    (void)state;
    d = alone(d);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, 3, &g);
    assert_false(is_there("c"));
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    assert_int_equal(empty_folder(), 0);
    fails_at = 7;
    assert_non_null(strstr(all_of(cached(20, "c")), "!INTERNAL"));
    fails_at = -1;
    assert_int_equal(empty_folder(), 0);
}

/* In memory and in a file: a pass with an error is incomplete, so the next pass computes the
 * elements again. */
static void cache_drops_a_pass_with_an_error(void **state)
{
    static t_given first, second, third;
    const char    *want = all_of(source(9));

    (void)state;
    for (int in_file = 0; in_file < 2; in_file++) {
        ch_dataset  *d = alone(ch_dataset_cache(source(9), in_file ? t_path("c") : NULL));
        ch_iterator *it = NULL;

        memset(&first, 0, sizeof(first));
        memset(&second, 0, sizeof(second));
        memset(&third, 0, sizeof(third));
        n_calls = 0;
        fails_at = 4;
        t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
        t_take(it, -1, &first);
        assert_non_null(strstr(first.text, "!INTERNAL"));
        assert_int_equal(first.n, 9);
        fails_at = -1;
        t_ok(ch_iterator_restart(it));
        t_take(it, -1, &second);
        assert_string_equal(second.text, want);
        assert_int_equal(n_calls, 18);
        t_ok(ch_iterator_restart(it));
        t_take(it, -1, &third);
        assert_string_equal(third.text, want);
        assert_int_equal(n_calls, 18);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
    assert_int_equal(empty_folder(), 1);
}

/* A pass that exceeds the budget is dropped, so the next pass exceeds it again. */
static void a_cache_that_was_too_small_is_filled_again(void **state)
{
    ch_dataset  *d = ch_dataset_cache(ch_dataset_range(0, 100, 1), NULL);
    ch_iterator *it = NULL;
    t_given     *g = calloc(3, sizeof(*g));

    (void)state;
    d = ch_dataset_with_options(d,
                                &(ch_dataset_options){.threads = CH_OFF, .memory_bytes = 8000});
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
    for (int pass = 0; pass < 3; pass++) {
        t_take(it, -1, &g[pass]);
        assert_non_null(strstr(g[pass].text, "!RESOURCE_EXHAUSTED"));
        assert_string_equal(g[pass].text, g[0].text);
        t_ok(ch_iterator_restart(it));
    }
    free(g);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

/* Starts a process that writes half a cache and is killed. */
static void write_half_and_die(void)
{
    pid_t child = fork();
    int   how = 0;

    assert_true(child >= 0);
    if (child == 0) {
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;

        if (ch_iterator_new(alone(cached(9, "c")), NULL, &it) == CH_OK &&
            ch_iterator_next(it, &t) == CH_OK)
            kill(getpid(), SIGKILL);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how));
}

static void cache_removes_temporary_files_of_killed_writers(void **state)
{
    static t_given rest;
    ch_dataset    *d = alone(cached(9, "c"));
    ch_iterator   *it = NULL;
    ch_tuple      *t = NULL;

    (void)state;
    for (int i = 0; i < 2; i++)
        write_half_and_die();
    write_all(".c.tmp-1-x", "", 0);
    write_all(".other.tmp-1-1", "", 0);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_ok(ch_iterator_next(it, &t)); /* this writer is alive, and continues below */
    ch_tuple_unref(t);
    assert_string_equal(all_of(ch_dataset_cache(source(9), t_path("c"))), all_of(source(9)));
    assert_int_equal(remove(t_path("c")), 0);
    t_take(it, -1, &rest);
    assert_true(is_there("c"));
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    assert_int_equal(empty_folder(), 3); /* the cache, and two files of unknown origin */
}

static void cache_is_right_when_several_iterators_write_it(void **state)
{
    const char    *want = all_of(source(30));
    static t_given g[2];
    ch_iterator   *it[2] = {NULL};
    ch_dataset    *d = cached(30, "c");

    (void)state;
    memset(g, 0, sizeof(g));
    for (int i = 0; i < 2; i++)
        t_ok(ch_iterator_new(d, NULL, &it[i]));
    for (int i = 0; i < 62; i++)
        t_take(it[i % 2], 1, &g[i % 2]);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(g[i].text, want);
        ch_iterator_unref(it[i]);
    }
    ch_dataset_unref(d);
    assert_string_equal(all_of(cached(30, "c")), want);
    assert_int_equal(empty_folder(), 1);
    for (int i = 0; i < 4; i++)
        if (fork() == 0)
            _exit(strcmp(all_of(ch_dataset_repeat(cached(30, "c"), 1)), want) != 0);
    for (int i = 0; i < 4; i++) {
        int status = -1;

        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_string_equal(all_of(cached(30, "c")), want);
    assert_int_equal(empty_folder(), 1);
}

/* ---- caches of other datasets, damaged caches ---- */

static void cache_rejects_a_file_of_another_dataset(void **state)
{
    float        a[] = {1, 2, 3}, b[] = {1, 2, 4};
    ch_tensor   *x = t_f32(ch_shape_of(3), a), *y = t_f32(ch_shape_of(3), b);
    ch_iterator *it = NULL;
    ch_tuple    *t = NULL;
    ch_dataset  *d;

    (void)state;
    t_gives(ch_dataset_cache(ch_dataset_slices(1, &x, NULL), t_path("c")), "1 | 2 | 3");
    d = ch_dataset_cache(ch_dataset_slices(1, &y, NULL), t_path("c"));
    t_ok(ch_iterator_new(d, NULL, &it));
    t_refused(ch_iterator_next(it, &t), CH_INVALID_ARGUMENT, t_path("c"), "another dataset");
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    t_gives(ch_dataset_cache(ch_dataset_slices(1, &y, NULL), t_path("c")),
            "!INVALID_ARGUMENT | 1 | 2 | 4");
    t_gives(ch_dataset_cache(ch_dataset_slices(1, &x, NULL), t_path("c")), "1 | 2 | 3");
    ch_tensor_unref(x);
    ch_tensor_unref(y);
    empty_folder();
}

static char *read_all(const char *name, size_t *n)
{
    FILE *f = fopen(t_path(name), "rb");
    char *data = malloc(1 << 16);

    assert_non_null(f);
    *n = fread(data, 1, 1 << 16, f);
    fclose(f);
    return data;
}

/* A checksum covers every byte of the file. */
static void cache_detects_a_changed_or_missing_byte_anywhere(void **state)
{
    char   want[1000], *good, *bad;
    size_t n;

    (void)state;
    snprintf(want, sizeof(want), "%s", all_of(cached(6, "c")));
    good = read_all("c", &n);
    bad = malloc(n);
    for (size_t i = 0; i < n; i++) {
        memcpy(bad, good, n);
        bad[i] = (char)(bad[i] ^ 1 << i % 8);
        write_all("c", bad, n);
        if (strstr(all_of(cached(6, "c")), "!DATA_LOSS") == NULL)
            fail_msg("byte %zu of %zu may be anything", i, n);
        write_all("c", good, i);
        if (strstr(all_of(cached(6, "c")), "!DATA_LOSS") == NULL)
            fail_msg("%zu of %zu bytes are enough", i, n);
    }
    write_all("c", good, n);
    assert_string_equal(all_of(cached(6, "c")), want);
    free(good);
    free(bad);
    assert_int_equal(empty_folder(), 1);
}

static void cache_damage_error_names_file_and_byte(void **state)
{
    ch_dataset  *d = cached(6, "c");
    ch_iterator *it = NULL;
    ch_tuple    *t = NULL;
    size_t       n;
    ch_status    rc = CH_OK;
    char        *data;

    (void)state;
    all_of(ch_dataset_ref(d));
    data = read_all("c", &n);
    write_all("c", data, n - 20);
    free(data);
    t_ok(ch_iterator_new(d, NULL, &it));
    for (int i = 0; i < 7 && rc == CH_OK; i++) {
        rc = ch_iterator_next(it, &t);
        ch_tuple_unref(t);
        t = NULL;
    }
    t_refused(rc, CH_DATA_LOSS, t_path("c"), "byte ");
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    empty_folder();
}

/* ---- failures ---- */

static void cache_reports_one_error_when_its_file_cannot_be_written(void **state)
{
    static char want[65536];

    (void)state;
    snprintf(want, sizeof(want), "!NOT_FOUND | %s", all_of(source(9)));
    assert_string_equal(all_of(cached(9, "no/such/folder")), want);
}

/* The elements are the same, and an existing file is a good one. */
static void cache_leaves_a_good_file_when_any_system_call_fails(void **state)
{
    static char want[65536];
    int64_t     calls = ch__file_calls();

    (void)state;
    snprintf(want, sizeof(want), "%s", all_of(source(9)));
    assert_string_equal(all_of(alone(cached(9, "c"))), want);
    calls = ch__file_calls() - calls;
    empty_folder();
    for (int64_t n = 1; n <= calls; n++) {
        ch_dataset *d = alone(cached(9, "c"));
        const char *got;

        ch__file_fail_at(n, EIO);
        got = all_of(d);
        ch__file_fail_at(0, 0);
        if (strstr(got, want) == NULL && n > 1 && got[0] != '!')
            assert_non_null(strstr(got, "| !"));
        assert_string_equal(all_of(cached(9, "c")), want);
        assert_int_equal(empty_folder(), 1);
    }
}

static void cache_fails_without_leak_when_out_of_memory(void **state)
{
    (void)state;
    for (int pass = 0; pass < 2; pass++) { /* writing, and reading */
        int64_t live, first, most = 0;

        all_of(cached(5, "c"));
        for (int64_t n = 0; n <= most; n++) {
            ch_dataset *d;

            if (pass == 0)
                empty_folder();
            d = alone(cached(5, "c"));
            live = ch__mem_live();
            first = ch__mem_allocs();
            ch__mem_fail_at(n);
            if (d != NULL) {
                static t_given g;
                ch_iterator   *it = NULL;

                memset(&g, 0, sizeof(g));
                if (ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it) == CH_OK)
                    for (int i = 0; i < 9; i++) {
                        ch_tuple *t = NULL;

                        if (ch_iterator_next(it, &t) == CH_OK && t == NULL)
                            break;
                        g.n += t != NULL;
                        ch_tuple_unref(t);
                    }
                ch_iterator_unref(it);
                if (n == 0)
                    assert_int_equal(g.n, 5);
            }
            ch__mem_fail_at(0);
            if (n == 0)
                most = ch__mem_allocs() - first;
            assert_int_equal(ch__mem_live(), live);
            ch_dataset_unref(d);
        }
    }
    empty_folder();
}

/* ---- positions ---- */

/* Positions are saved anywhere in three passes, of which the first writes. The state of the
 * file at the time of the restore does not matter. */
static void cache_restores_a_position_anywhere_in_any_pass(void **state)
{
    static t_given head, whole, rest;

    (void)state;
    for (int i = 0; i < 2 * 25; i++) {
        ch_dataset  *d = ch_dataset_repeat(cached(8, "c"), 3);
        ch_iterator *it = NULL, *other = NULL;
        void        *bytes = NULL;
        size_t       size = 0;

        memset(&head, 0, sizeof(head));
        memset(&whole, 0, sizeof(whole));
        memset(&rest, 0, sizeof(rest));
        t_ok(ch_iterator_new(d, NULL, &it));
        t_take(it, i / 2, &head);
        t_ok(ch_iterator_save(it, &bytes, &size));
        t_take(it, -1, &whole);
        ch_iterator_unref(it);
        if (i % 2 == 0)
            empty_folder();
        t_ok(ch_iterator_new(d, NULL, &other));
        t_ok(ch_iterator_restore(other, bytes, size));
        t_take(other, -1, &rest);
        if (strcmp(whole.text, rest.text) != 0)
            fail_msg("after %d elements:\n%s\nis not\n%s", i / 2, rest.text, whole.text);
        ch_bytes_free(bytes);
        ch_iterator_unref(other);
        ch_dataset_unref(d);
        assert_true(empty_folder() <= 1);
    }
}

/* ---- descriptions ---- */

static ch_dataset *in_a_body(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_cache(element, t_path("c"));
}

static void cache_file_name_is_encoded_with_the_dataset(void **state)
{
    ch_dataset  *d = ch_dataset_cache(ch_dataset_range(0, 3, 1), t_path("c")), *sent = NULL;
    ch_iterator *it = NULL;
    void        *bytes = NULL;
    size_t       n = 0;

    (void)state;
    t_ok(ch_dataset_encode(d, &bytes, &n));
    t_ok(ch_dataset_decode(bytes, n, &sent));
    ch_bytes_free(bytes);
    t_gives(sent, "0 | 1 | 2");
    assert_true(is_there("c"));
    t_gives(d, "0 | 1 | 2");
    assert_null(ch_dataset_cache(ch_dataset_range(0, 3, 1), ""));
    d = ch_dataset_flat_map(ch_dataset_range(0, 3, 1), in_a_body, NULL);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_refused(ch_iterator_next(it, &(ch_tuple *){NULL}), CH_UNIMPLEMENTED, "cache", "flat_map");
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    empty_folder();
}

/* If workers read different files, each worker has its own cache. */
static void cache_has_a_file_for_each_worker_when_workers_read_other_data(void **state)
{
    char        name[4][400];
    const char *list[] = {name[0], name[1], name[2], name[3]};
    ch_dataset *d;

    (void)state;
    for (int i = 0; i < 4; i++) {
        char text[2] = {(char)('a' + i), '\n'}, file[8];

        snprintf(file, sizeof(file), "%d.txt", i);
        write_all(file, text, 2);
        snprintf(name[i], sizeof(name[i]), "%s", t_path(file));
    }
    d = ch_dataset_batch(ch_dataset_cache(ch_dataset_lines(ch_dataset_file_list(4, list), NULL),
                                          t_path("lines.cache")),
                         2, NULL);
    for (int pass = 0; pass < 2; pass++)
        for (int w = 0; w < 2; w++) {
            ch_dataset *mine = NULL;

            t_ok(ch_dataset_distribute(
                d, &(ch_input_context){.n_pipelines = 2, .pipeline = w, .n_replicas = 0},
                &mine));
            t_gives(mine, w == 0 ? "a | c" : "b | d");
            assert_true(is_there(w == 0 ? "lines-0-of-2.cache" : "lines-1-of-2.cache"));
        }
    ch_dataset_unref(d);
    assert_int_equal(empty_folder(), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_file_of_one_pass_is_read_by_later_passes),
        cmocka_unit_test(cache_gives_the_elements_of_the_first_pass_in_every_pass),
        cmocka_unit_test(cache_leaves_no_file_when_a_pass_is_incomplete),
        cmocka_unit_test(cache_drops_a_pass_with_an_error),
        cmocka_unit_test(a_cache_that_was_too_small_is_filled_again),
        cmocka_unit_test(cache_removes_temporary_files_of_killed_writers),
        cmocka_unit_test(cache_is_right_when_several_iterators_write_it),
        cmocka_unit_test(cache_rejects_a_file_of_another_dataset),
        cmocka_unit_test(cache_detects_a_changed_or_missing_byte_anywhere),
        cmocka_unit_test(cache_damage_error_names_file_and_byte),
        cmocka_unit_test(cache_reports_one_error_when_its_file_cannot_be_written),
        cmocka_unit_test(cache_leaves_a_good_file_when_any_system_call_fails),
        cmocka_unit_test(cache_fails_without_leak_when_out_of_memory),
        cmocka_unit_test(cache_restores_a_position_anywhere_in_any_pass),
        cmocka_unit_test(cache_file_name_is_encoded_with_the_dataset),
        cmocka_unit_test(cache_has_a_file_for_each_worker_when_workers_read_other_data),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}
