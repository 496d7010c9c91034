/* test/data/test_parts.c -- a dataset divided into parts, for workers that fetch elements on
 * demand.
 *
 * ch__dataset_part returns part i of n. The parts together have each element once. Some
 * tests count the calls of maps, or check the policy that the log names.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "../file/folder.h"
#include "data/data.h"
#include "pipeline.h"

enum { MOST = 64, FILES = 4, ROWS = 5 };

static char line[512]; /* the last line of the log */

static void sink(const ch_log_record *r, void *arg)
{
    (void)arg;
    if (strcmp(r->code, "autoshard") == 0)
        snprintf(line, sizeof(line), "%s", r->text);
}

/* ---- pipelines ---- */

static void add_one(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_add(ch_step_in(s, 0), ch_number(s, 1)));
}

static void add_noise(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL,
                ch_add(ch_cast(ch_step_in(s, 0), CH_F32),
                       ch_random_uniform(s, CH_F32, ch_shape_scalar(), 0, 1, 7)));
}

static void is_even(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_equal(ch_mod(ch_step_in(s, 0), ch_number(s, 2)), ch_number(s, 0)));
}

static ch_dataset *range(int64_t n)
{
    return ch_dataset_range(0, n, 1);
}

static ch_dataset *mapped(ch_dataset *d)
{
    return ch_dataset_map(d, add_one, NULL, NULL);
}

static ch_dataset *shuffled(ch_dataset *d)
{
    return ch_dataset_shuffle(d, 100, &(ch_shuffle_options){.seed = 3});
}

static ch_dataset *batched(ch_dataset *d, int64_t size)
{
    return ch_dataset_batch(d, size, NULL);
}

static ch_dataset *dropping(ch_dataset *d, int64_t size)
{
    return ch_dataset_batch(d, size, &(ch_batch_options){.drop_remainder = true});
}

static ch_dataset *with_policy(ch_dataset *d, ch_shard_policy policy)
{
    return ch_dataset_with_options(d, &(ch_dataset_options){.shard = policy});
}

/* Rows in memory, of two components. */
static ch_dataset *slices(int64_t n, bool text)
{
    ch_tensor  *t[2] = {NULL};
    ch_dataset *d;

    t_ok(ch_tensor_new(CH_I64, ch_shape_of(n, 2), &t[0]));
    t_ok(ch_tensor_new(text ? CH_STR : CH_F32, ch_shape_of(n), &t[1]));
    for (int64_t i = 0; i < n; i++) {
        t_ok(ch_tensor_set(t[0], (int64_t[]){i, 1}, (double)i));
        t_ok(text ? ch_tensor_set_str(t[1], &i, (ch_str){"word", (size_t)(i % 5)})
                  : ch_tensor_set(t[1], &i, (double)-i));
    }
    d = ch_dataset_slices(2, t, (const char *[]){"x", "y"});
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return d;
}

/* Makes a dataset of 0 to 19, in four files. */
static ch_dataset *numbers(void)
{
    return ch_dataset_csv(ch_dataset_files(t_path("n-*"), NULL), 1,
                          &(ch_csv_column){.name = "n", .dtype = CH_I64}, NULL);
}

static int write_files(void **state)
{
    if (t_folder_make(state) != 0)
        return -1;
    for (int f = 0; f < FILES; f++) {
        char  name[32];
        FILE *file;

        snprintf(name, sizeof(name), "n-%d", f);
        file = fopen(t_path(name), "w");
        assert_non_null(file);
        fprintf(file, "n\n");
        for (int i = 0; i < ROWS; i++)
            fprintf(file, "%d\n", f * ROWS + i);
        fclose(file);
    }
    return 0;
}

/* ---- elements of parts ---- */

typedef struct given {
    int     n;
    char    element[MOST][256];
    int64_t n_maps; /* elements that maps returned */
} given;

static void take(ch_dataset *d, given *g)
{
    static t_given   text;
    ch_stage_profile stage[16];
    ch_iterator     *it = NULL;
    int              n;

    g->n = 0;
    g->n_maps = 0;
    t_ok(ch_iterator_new(d, NULL, &it));
    for (;;) {
        ch_tuple *t = NULL;

        t_ok(ch_iterator_next(it, &t));
        if (t == NULL)
            break;
        memset(&text, 0, sizeof(text));
        t_add_tuple(&text, t);
        ch_tuple_unref(t);
        assert_true(g->n < MOST);
        assert_true(text.used < sizeof(g->element[0]));
        memcpy(g->element[g->n++], text.text, text.used + 1);
    }
    n = ch_iterator_profile(it, stage, 16);
    for (int i = 0; i < n && i < 16; i++)
        g->n_maps += strcmp(stage[i].stage, "map") == 0 ? stage[i].n_elements : 0;
    ch_iterator_unref(it);
}

static void take_part(ch_dataset *d, int n, int index, given *g)
{
    ch_dataset *part = NULL;

    t_ok(ch__dataset_part(d, n, index, &part));
    take(part, g);
    if (ch_dataset_cardinality(part) >= 0)
        assert_int_equal(ch_dataset_cardinality(part), g->n);
    ch_dataset_unref(part);
}

/* Counts the numbers of an element. Each must occur once. */
static int mark(const char *element, bool *seen)
{
    int   n = 0;
    char *end;

    for (const char *at = element; *at != '\0'; at = end, n++) {
        long x = strtol(at, &end, 10);

        assert_in_range(x, 0, MOST - 1);
        assert_false(seen[x]);
        seen[x] = true;
    }
    return n;
}

/* ---- parts ---- */

/* The k-th element of part i of n is element k * n + i, with any stages above the sources. So
 * each element is in exactly one part. */
static void dataset_part_has_every_n_th_element(void **state)
{
    ch_dataset *row[] = {
        range(10),
        batched(range(10), 4),
        batched(range(8), 4),
        dropping(range(11), 4),
        batched(mapped(range(23)), 3),
        mapped(batched(range(23), 3)),
        ch_dataset_prefetch(batched(mapped(batched(range(39), 3)), 2), 1),
        ch_dataset_padded_batch(mapped(range(10)), 3, NULL),
        batched(mapped(shuffled(range(23))), 4),
        slices(13, false),
        batched(slices(23, false), 3),
        batched(slices(2, false), 3),
        batched(shuffled(slices(13, false)), 3),
        batched(slices(13, true), 3),
        batched(ch_dataset_cache(mapped(range(9)), NULL), 2),
        batched(ch_dataset_filter(mapped(range(40)), is_even, NULL), 3),
        ch_dataset_map(range(9), add_noise, NULL, NULL),
        ch_dataset_repeat(batched(mapped(range(7)), 2), 3),
        ch_dataset_take(batched(mapped(range(30)), 2), 7),
        with_policy(batched(mapped(range(9)), 2), CH_SHARD_OFF),
        with_policy(batched(mapped(range(9)), 2), CH_SHARD_DATA),
        with_policy(batched(mapped(range(9)), 2), CH_SHARD_FILE),
        with_policy(batched(mapped(range(9)), 2), CH_SHARD_HINT),
        with_policy(batched(mapped(numbers()), 6), CH_SHARD_DATA),
        dropping(mapped(numbers()), 6), /* each file would drop its own remainder */
    };
    static given all, part;

    (void)state;
    for (size_t r = 0; r < sizeof(row) / sizeof(row[0]); r++) {
        take(row[r], &all);
        for (int n = 1; n <= 5; n++) {
            int in_all = 0;

            for (int i = 0; i < n; i++) {
                take_part(row[r], n, i, &part);
                for (int k = 0; k < part.n; k++)
                    assert_string_equal(part.element[k], all.element[k * n + i]);
                in_all += part.n;
            }
            assert_int_equal(in_all, all.n);
        }
        ch_dataset_unref(row[r]);
    }
}

/* If maps are below a shuffle, each part is shuffled by itself. Each example occurs once, in
 * the same number of batches, of the same sizes. */
static void shuffled_dataset_parts_have_each_example_once(void **state)
{
    static given part;
    ch_dataset  *d = batched(shuffled(mapped(range(23))), 4);

    (void)state;
    for (int n = 1; n <= 5; n++) {
        bool seen[MOST] = {false};
        int  rows = 0, short_ones = 0, elements = 0;

        for (int i = 0; i < n; i++) {
            take_part(d, n, i, &part);
            elements += part.n;
            for (int k = 0; k < part.n; k++) {
                int here = mark(part.element[k], seen);

                rows += here;
                short_ones += here < 4;
            }
        }
        assert_int_equal(rows, 23);
        assert_int_equal(elements, 6);
        assert_int_equal(short_ones, 1);
    }
    ch_dataset_unref(d);
}

/* 5.5.4: files are divided where there are enough, below all that may be: batches end with the files of a part then. */
static void dataset_parts_read_their_own_files(void **state)
{
    static given part;
    ch_dataset  *row[] = {
         mapped(numbers()),
         batched(mapped(numbers()), 3),
         batched(shuffled(mapped(numbers())), 4),
         with_policy(batched(mapped(numbers()), 3), CH_SHARD_FILE),
    };

    (void)state;
    for (size_t r = 0; r < sizeof(row) / sizeof(row[0]); r++) {
        for (int n = 2; n <= FILES; n++) {
            bool    seen[MOST] = {false};
            int     rows = 0;
            int64_t n_maps = 0;

            for (int i = 0; i < n; i++) {
                take_part(row[r], n, i, &part);
                for (int k = 0; k < part.n; k++)
                    rows += mark(part.element[k], seen);
                n_maps += part.n_maps;
                if (i == 0)
                    assert_non_null(
                        strstr(line, "policy FILE, because there are enough files"));
            }
            assert_int_equal(rows, FILES * ROWS);
            assert_int_equal(n_maps, FILES * ROWS);
        }
        ch_dataset_unref(row[r]);
    }
}

/* Maps compute each element in a single part. */
static void dataset_parts_compute_no_element_twice(void **state)
{
    static given part;
    struct {
        ch_dataset *d;
        int64_t     n_maps; /* calls of maps when the whole dataset is read */
        bool        is_shared;
    } row[] = {
        {batched(mapped(range(23)), 4), 23, true},
        {mapped(batched(range(23), 4)), 6, true},
        {batched(shuffled(mapped(range(23))), 4), 23, true},
        {mapped(batched(mapped(range(20)), 4)), 25, true},
        {with_policy(batched(mapped(numbers()), 4), CH_SHARD_DATA), 20, true},
        {ch_dataset_repeat(batched(mapped(range(8)), 4), 2), 16, false},
    };

    (void)state;
    for (size_t r = 0; r < sizeof(row) / sizeof(row[0]); r++) {
        int64_t n_maps = 0;

        for (int i = 0; i < 3; i++) {
            take_part(row[r].d, 3, i, &part);
            n_maps += part.n_maps;
        }
        assert_int_equal(n_maps, row[r].n_maps * (row[r].is_shared ? 1 : 3));
        ch_dataset_unref(row[r].d);
    }
}

/* An encoded part contains its own rows only. */
static void dataset_parts_of_rows_in_memory_are_no_larger_than_the_whole(void **state)
{
    enum { MANY = 3000 };
    ch_dataset *d = batched(slices(MANY, false), 8);
    size_t      all = 0, n = 0;
    void       *bytes = NULL;

    (void)state;
    for (int i = 0; i < 3; i++) {
        ch_dataset           *part = NULL;
        const ch_tensor_spec *spec = NULL;

        t_ok(ch__dataset_part(d, 3, i, &part));
        assert_int_equal(ch_dataset_element_spec(part, &spec), 2);
        assert_string_equal(spec[1].name, "y");
        t_ok(ch_dataset_encode(part, &bytes, &n));
        all += n;
        ch_bytes_free(bytes);
        ch_dataset_unref(part);
    }
    t_ok(ch_dataset_encode(d, &bytes, &n));
    assert_in_range(all, n, n + n / 10);
    ch_bytes_free(bytes);
    ch_dataset_unref(d);
}

/* 5.5.8: a shard whose number is left open is where it is divided. */
static void shard_hint_divides_at_the_open_shard_stage(void **state)
{
    static given part;
    ch_dataset  *d =
        with_policy(batched(ch_dataset_shard(range(10), CH_BY_HINT, 0), 2), CH_SHARD_HINT);

    (void)state;
    take_part(d, 2, 1, &part);
    assert_int_equal(part.n, 3);
    assert_string_equal(part.element[0], "1 3");
    ch_dataset_unref(d);
}

static void dataset_part_logs_the_policy_and_its_reason(void **state)
{
    struct {
        ch_dataset *d;
        const char *says;
    } row[] = {
        {batched(mapped(range(9)), 2),
         "policy DATA, because it does not read files; up to range every worker reads all"},
        {batched(slices(9, false), 2), "it does not read files; each has rows of its own"},
        {ch_dataset_repeat(mapped(range(9)), 2), "up to repeat every worker reads all"},
        {with_policy(range(9), CH_SHARD_OFF),
         "policy DATA, because OFF would give each example to every worker"},
        {with_policy(range(9), CH_SHARD_HINT), "because no shard is left open for HINT"},
        {with_policy(range(9), CH_SHARD_DATA), "because the options say so"},
        {with_policy(range(9), CH_SHARD_FILE), "because it does not read files"},
        {dropping(numbers(), 2), "each worker would drop a remainder of its own in batch"},
        {batched(numbers(), 2), "there are fewer files than workers"},
    };
    static given part;

    (void)state;
    for (size_t r = 0; r < sizeof(row) / sizeof(row[0]); r++) {
        int n = strstr(row[r].says, "fewer files") != NULL ? FILES + 1 : 3;

        line[0] = '\0';
        take_part(row[r].d, n, 0, &part);
        if (strstr(line, row[r].says) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", line, row[r].says);
        line[0] = '\0';
        take_part(row[r].d, n, 1, &part);
        assert_string_equal(line, ""); /* logged once */
        ch_dataset_unref(row[r].d);
    }
}

static int begin(void **state)
{
    ch_log_set_sink(sink, NULL, CH_LOG_INFO);
    return write_files(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dataset_part_has_every_n_th_element),
        cmocka_unit_test(shuffled_dataset_parts_have_each_example_once),
        cmocka_unit_test(dataset_parts_read_their_own_files),
        cmocka_unit_test(dataset_parts_compute_no_element_twice),
        cmocka_unit_test(dataset_parts_of_rows_in_memory_are_no_larger_than_the_whole),
        cmocka_unit_test(shard_hint_divides_at_the_open_shard_stage),
        cmocka_unit_test(dataset_part_logs_the_policy_and_its_reason),
    };

    return cmocka_run_group_tests(tests, begin, t_folder_remove);
}
