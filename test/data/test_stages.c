/* test/data/test_stages.c -- the elements of each stage, and restored positions in each stage.
 *
 * A table of pipelines, with every kind of stage, is run with different numbers of threads,
 * saved and restored at every position, encoded and decoded, and run with allocations that
 * fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "base/mem.h"
#include "pipeline.h"

static ch_dataset *range(int64_t n)
{
    return ch_dataset_range(0, n, 1);
}

/* ---- functions of pipelines ---- */

static void doubled(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_mul(ch_step_in(s, 0), ch_number(s, 2)));
}

static void noisy(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL,
                ch_add(ch_cast(ch_step_in(s, 0), CH_F32),
                       ch_random_uniform(s, CH_F32, ch_shape_scalar(), 0, 1, 7)));
}

static void is_odd(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_equal(ch_mod(ch_step_in(s, 0), ch_number(s, 2)), ch_number(s, 1)));
}

static void below_5(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_less(ch_step_in(s, 0), ch_number(s, 5)));
}

static int64_t int_of(ch_tuple *t)
{
    return *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(t, 0), 0));
}

static ch_status square_or_fail(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t    x = int_of(in), bad = arg != NULL ? *(int64_t *)arg : -1, y = x * x;
    ch_tensor *t = NULL;
    ch_status  rc;

    if (x == bad)
        return CH_DATA_LOSS;
    rc = ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &y, &t);
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

static const ch_tensor_spec one_int = {.dtype = CH_I64};

/* Returns x repeated x times, so that lengths are unequal. */
static ch_status as_often(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t    x = int_of(in), data[32];
    ch_tensor *t = NULL;
    ch_status  rc;

    (void)arg;
    for (int i = 0; i < 32; i++)
        data[i] = x;
    rc = ch_tensor_copy_of(CH_I64, ch_shape_of(x), data, &t);
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

static ch_dataset *lengths(int64_t n)
{
    const ch_tensor_spec spec = {.dtype = CH_I64, .shape = ch_shape_of(-1)};

    return ch_dataset_map_call(range(n), as_often, NULL, 1, &spec, NULL);
}

static ch_dataset *ragged(int64_t n, int64_t size)
{
    return ch_dataset_batch(lengths(n), size, &(ch_batch_options){.ragged = true});
}

/* Returns both components of ragged rows by name, the second first. */
static void twice_the_values(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x/row_splits", ch_step_in(s, 1));
    ch_step_out(s, "x/values", ch_mul(ch_step_in(s, 0), ch_number(s, 2)));
}

/* Returns row splits that do not fit the values. */
static ch_status bad_splits(void *arg, ch_tuple *in, ch_tuple **out)
{
    ch_tensor *t[2] = {NULL, NULL};
    ch_status  rc = ch_tensor_copy_of(CH_I64, ch_shape_of(3), (int64_t[]){1, 2, 3}, &t[0]);

    (void)in;
    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_I64, ch_shape_of(3), arg, &t[1]);
    if (rc == CH_OK)
        rc = ch_tuple_of(2, t, out);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return rc;
}

static ch_dataset *twice(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_repeat(element, 2);
}

static ch_dataset *rows_of(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_unbatch(element);
}

static ch_dataset *pairs(ch_dataset *window, void *arg)
{
    (void)arg;
    return ch_dataset_batch(window, 2, &(ch_batch_options){.drop_remainder = true});
}

/* ---- elements of stages ---- */

static void map_accepts_steps_and_c_functions(void **state)
{
    int64_t bad = 2;

    (void)state;
    t_gives(ch_dataset_map(range(4), doubled, NULL, NULL), "0 | 2 | 4 | 6");
    t_gives(ch_dataset_map(ch_dataset_batch(range(5), 2, NULL), doubled, NULL, NULL),
            "0 2 | 4 6 | 8");
    t_gives(ch_dataset_map_call(range(4), square_or_fail, NULL, 1, &one_int, NULL),
            "0 | 1 | 4 | 9");
    t_gives(ch_dataset_map_call(range(4), square_or_fail, &bad, 1, &one_int,
                                &(ch_map_options){.parallel = 4}),
            "0 | 1 | !DATA_LOSS | 9");
    t_gives(
        ch_dataset_batch(ch_dataset_map_call(range(6), square_or_fail, &bad, 1, &one_int, NULL),
                         2, NULL),
        "0 1 | !DATA_LOSS | 9 16 | 25");
    t_gives(ch_dataset_filter(range(7), is_odd, NULL), "1 | 3 | 5");
    t_gives(ch_dataset_take_while(range(9), below_5, NULL), "0 | 1 | 2 | 3 | 4");
}

/* (word, number) */
static ch_dataset *words(int64_t n)
{
    static const ch_str text[] = {{"a", 1}, {"", 0}, {"two words", 9}, {"d", 1}};
    ch_tensor          *t = NULL;
    ch_dataset         *d;

    if (ch_tensor_copy_of(CH_STR, ch_shape_of(4), text, &t) != CH_OK)
        return NULL;
    d = ch_dataset_slices(1, &t, (const char *[]){"word"});
    ch_tensor_unref(t);
    return ch_dataset_zip(2, (ch_dataset *[]){ch_dataset_repeat(d, CH_INFINITE), range(n)});
}

static void number_and_word(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "n", ch_mul(ch_step_in(s, 1), ch_number(s, 2)));
    ch_step_out(s, "w", ch_step_in(s, 0));
}

static void second_is_odd(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_equal(ch_mod(ch_step_in(s, 1), ch_number(s, 2)), ch_number(s, 1)));
}

static void only_number(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_step_in(s, 1));
}

static void sum_of_words(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_add(ch_step_in(s, 0), ch_step_in(s, 0)));
}

static void words_made_a_vector(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_reshape(ch_step_in(s, 0), ch_shape_of(1)));
}

static void map_step_passes_strings_through_and_rejects_other_use(void **state)
{
    ch_step_fn wrong[] = {sum_of_words, words_made_a_vector};

    (void)state;
    t_gives(ch_dataset_map(words(4), number_and_word, NULL, NULL),
            "0, a | 2,  | 4, two words | 6, d");
    t_gives(ch_dataset_map(ch_dataset_batch(words(3), 2, NULL), number_and_word, NULL, NULL),
            "0 2, a  | 4, two words");
    t_gives(ch_dataset_map(words(3), only_number, NULL, NULL), "0 | 1 | 2");
    t_gives(ch_dataset_filter(words(6), second_is_odd, NULL), ", 1 | d, 3 | , 5");
    for (int i = 0; i < 2; i++) {
        ch_iterator *it = NULL;

        assert_null(ch_dataset_map(words(3), wrong[i], NULL, NULL));
        t_refused(ch_iterator_new(NULL, NULL, &it), CH_INVALID_ARGUMENT, "map", "str");
    }
}

static void number_of_word(ch_step *s, void *arg)
{
    ch_step_out(s, "word", ch_table_lookup(arg, ch_step_in(s, 0)));
    ch_step_out(s, "n", ch_step_in(s, 1));
}

static void is_known(ch_step *s, void *arg)
{
    ch_step_out(s, NULL, ch_less(ch_table_lookup(arg, ch_step_in(s, 0)), ch_number(s, 9)));
}

/* The table may be released after the dataset is made. */
static void map_step_looks_words_up_in_a_table(void **state)
{
    static const ch_str known[] = {{"d", 1}, {"two words", 9}, {"a", 1}};
    ch_tensor          *t = NULL;
    ch_table           *numbers = NULL;
    ch_dataset         *one_by_one, *batches, *some;

    (void)state;
    t_ok(ch_tensor_copy_of(CH_STR, ch_shape_of(3), known, &t));
    t_ok(ch_table_new(t, NULL, 9, &numbers));
    ch_tensor_unref(t);
    one_by_one = ch_dataset_map(words(5), number_of_word, numbers, NULL);
    batches =
        ch_dataset_map(ch_dataset_batch(words(3), 2, NULL), number_of_word, numbers, NULL);
    some = ch_dataset_filter(words(6), is_known, numbers);
    ch_table_unref(numbers);
    t_gives(one_by_one, "2, 0 | 9, 1 | 1, 2 | 0, 3 | 2, 4");
    t_gives(batches, "2 9, 0 1 | 1, 2");
    t_gives(some, "a, 0 | two words, 2 | d, 3 | a, 4");
}

static void padded_batch_and_ragged_batch_accept_rows_of_unequal_length(void **state)
{
    (void)state;
    t_gives(ch_dataset_padded_batch(lengths(4), 2, NULL), "0 1 | 2 2 0 3 3 3");
    t_gives(ch_dataset_padded_batch(lengths(4), 3,
                                    &(ch_pad_options){.shape = (ch_shape[]){ch_shape_of(4)},
                                                      .value = (double[]){9}}),
            "9 9 9 9 1 9 9 9 2 2 9 9 | 3 3 3 9");
    t_gives(ch_dataset_batch(lengths(4), 3, &(ch_batch_options){.ragged = true}),
            "1 2 2, 0 0 1 3 | 3 3 3, 0 3");
    t_gives(
        ch_dataset_bucket_by_length(lengths(6), 0, 1, (int64_t[]){3}, (int64_t[]){2, 2}, NULL),
        "0 1 | 3 3 3 0 4 4 4 4 | 2 2 | 5 5 5 5 5");
}

static void unbatch_and_rebatch_keep_the_rows(void **state)
{
    (void)state;
    t_gives(ch_dataset_unbatch(ch_dataset_batch(range(5), 3, NULL)), "0 | 1 | 2 | 3 | 4");
    t_gives(ch_dataset_rebatch(ch_dataset_batch(range(9), 4, NULL), 2, (int64_t[]){3, 2}, NULL),
            "0 1 2 | 3 4 | 5 6 7 | 8");
    t_gives(ch_dataset_rebatch(ch_dataset_batch(range(5), 4, NULL), 2, (int64_t[]){1, 0}, NULL),
            "0 |  | 1 |  | 2 |  | 3 |  | 4 | "); /* 5.3.8: worker 0 of two */
    t_gives(ch_dataset_rebatch(ch_dataset_batch(range(3), 4, NULL), 2, (int64_t[]){0, 1}, NULL),
            " | 0 |  | 1 |  | 2 | "); /* 5.3.8: worker 1 */
}

static void unbatch_and_rebatch_keep_ragged_rows(void **state)
{
    const ch_tensor_spec *spec = NULL;
    ch_dataset           *d = ch_dataset_unbatch(ragged(5, 3));

    (void)state;
    assert_int_equal(ch_dataset_element_spec(d, &spec), 1);
    assert_null(spec[0].name);
    assert_int_equal(spec[0].shape.rank, 1);
    t_gives(d, " | 1 | 2 2 | 3 3 3 | 4 4 4 4");
    t_gives(ch_dataset_rebatch(ragged(5, 3), 1, (int64_t[]){2}, NULL),
            "1, 0 0 1 | 2 2 3 3 3, 0 2 5 | 4 4 4 4, 0 4");
    t_gives(ch_dataset_rebatch(ragged(4, 1), 1, (int64_t[]){3}, NULL),
            "1 2 2, 0 0 1 3 | 3 3 3, 0 3");
    t_gives(ch_dataset_rebatch(ragged(3, 2), 2, (int64_t[]){2, 0}, NULL),
            "1, 0 0 1 | , 0 | 2 2, 0 2");
    /* A ragged batch of ragged batches: each row is a batch. */
    t_gives(ch_dataset_unbatch(
                ch_dataset_batch(ragged(4, 2), 2, &(ch_batch_options){.ragged = true})),
            "1, 0 0 1 | 2 2 3 3 3, 0 2 5");
    t_gives(ch_dataset_unbatch(ch_dataset_unbatch(
                ch_dataset_batch(ragged(4, 2), 2, &(ch_batch_options){.ragged = true}))),
            " | 1 | 2 2 | 3 3 3");
    d = ch_dataset_map(ragged(4, 3), twice_the_values, NULL, NULL);
    t_gives(ch_dataset_rebatch(d, 1, (int64_t[]){2}, NULL), "0 0 1, 2 | 0 2 5, 4 4 6 6 6");
}

static void unbatch_and_rebatch_reject_invalid_row_splits(void **state)
{
    static int64_t       splits[][3] = {{0, 1, 4}, {1, 2, 3}, {0, 4, 3}, {0, -1, 3}, {0, 1, 2}};
    const ch_tensor_spec spec[] = {
        {.name = "x/values", .dtype = CH_I64, .shape = ch_shape_of(-1)},
        {.name = "x/row_splits", .dtype = CH_I64, .shape = ch_shape_of(-1)}};

    (void)state;
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
        ch_dataset *d = ch_dataset_map_call(range(1), bad_splits, splits[i], 2, spec, NULL);

        t_gives(ch_dataset_unbatch(ch_dataset_ref(d)), "!INVALID_ARGUMENT");
        t_gives(ch_dataset_rebatch(d, 1, (int64_t[]){1}, NULL), "!INVALID_ARGUMENT");
    }
    t_gives(ch_dataset_unbatch(
                ch_dataset_map_call(range(1), bad_splits, (int64_t[]){0, 0, 3}, 2, spec, NULL)),
            " | 1 2 3");
}

static void flat_map_interleave_and_window_replace_elements_by_bodies(void **state)
{
    (void)state;
    t_gives(ch_dataset_flat_map(range(3), twice, NULL), "0 | 0 | 1 | 1 | 2 | 2");
    t_gives(ch_dataset_flat_map(ch_dataset_batch(range(5), 2, NULL), rows_of, NULL),
            "0 | 1 | 2 | 3 | 4");
    t_gives(ch_dataset_interleave(ch_dataset_batch(range(8), 3, NULL), rows_of, NULL,
                                  &(ch_interleave_options){.cycle = 2}),
            "0 | 3 | 1 | 4 | 2 | 5 | 6 | 7");
    t_gives(ch_dataset_interleave(ch_dataset_batch(range(8), 4, NULL), rows_of, NULL,
                                  &(ch_interleave_options){.cycle = 2, .block = 2}),
            "0 | 1 | 4 | 5 | 2 | 3 | 6 | 7");
    t_gives(ch_dataset_window(range(5), 3, NULL, NULL, &(ch_window_options){.shift = 2}),
            "0 1 2 | 2 3 4 | 4");
    t_gives(ch_dataset_window(
                range(7), 2, NULL, NULL,
                &(ch_window_options){.shift = 1, .stride = 3, .drop_remainder = true}),
            "0 3 | 1 4 | 2 5 | 3 6");
    t_gives(ch_dataset_window(range(7), 3, pairs, NULL, NULL), "0 1 | 3 4");
}

static void sample_from_follows_its_weights(void **state)
{
    (void)state;
    t_gives(ch_dataset_sample_from(2, (ch_dataset *[]){range(3), ch_dataset_range(7, 9, 1)},
                                   (double[]){1, 0}, NULL),
            "0 | 1 | 2");
}

/* Names may be as long as the formats allow. */
static void component_names_of_any_length_are_kept(void **state)
{
    static char           name[2][4000], rename[2 * 4000 + 2], want[4020];
    const ch_tensor_spec *spec;
    const char           *list[] = {name[0], name[1]};
    ch_tensor            *t[2] = {NULL, NULL};
    ch_dataset           *d;

    (void)state;
    for (int i = 0; i < 2; i++) { /* the names differ in their last letter */
        memset(name[i], 'n', sizeof(name[i]) - 1);
        name[i][sizeof(name[i]) - 2] = (char)('a' + i);
        t_ok(ch_tensor_new(CH_F32, ch_shape_of(4), &t[i]));
    }
    d = ch_dataset_batch(ch_dataset_slices(2, t, list), 2, NULL);
    assert_int_equal(ch_dataset_element_spec(d, &spec), 2);
    assert_string_equal(spec[0].name, name[0]);
    assert_string_equal(spec[1].name, name[1]);
    snprintf(rename, sizeof(rename), "m%s=%s", name[0], name[1]);
    d = ch_dataset_select(d, 1, (const char *[]){rename});
    assert_int_equal(ch_dataset_element_spec(d, &spec), 1);
    snprintf(want, sizeof(want), "m%s", name[0]);
    assert_string_equal(spec[0].name, want);
    ch_dataset_unref(d);
    for (int i = 0; i < 2; i++)
        ch_tensor_unref(t[i]);
    /* also as the two components of ragged rows, and back */
    d = ch_dataset_map_call(
        range(4), square_or_fail, NULL, 2,
        (ch_tensor_spec[]){{.name = name[0], .dtype = CH_I64, .shape = {1, {-1}}},
                           {.name = name[1], .dtype = CH_I64, .shape = {1, {-1}}}},
        NULL);
    d = ch_dataset_unbatch(ch_dataset_batch(d, 2, &(ch_batch_options){.ragged = true}));
    assert_int_equal(ch_dataset_element_spec(d, &spec), 2);
    assert_string_equal(spec[0].name, name[0]);
    assert_string_equal(spec[1].name, name[1]);
    ch_dataset_unref(d);
}

static void select_chooses_components_by_name(void **state)
{
    int64_t     x[] = {1, 2}, y[] = {3, 4};
    ch_tensor  *t[2] = {NULL, NULL};
    const char *name[] = {"x", "y"};

    (void)state;
    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(2), x, &t[0]));
    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(2), y, &t[1]));
    t_gives(ch_dataset_select(ch_dataset_slices(2, t, name), 2, (const char *[]){"y", "a=x"}),
            "3, 1 | 4, 2");
    assert_null(ch_dataset_select(ch_dataset_slices(2, t, name), 1, (const char *[]){"z"}));
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
}

/* ---- positions ---- */

typedef ch_dataset *(*pipeline)(void);

static ch_dataset *p_map(void)
{
    return ch_dataset_map(range(30), noisy, NULL, NULL);
}

static ch_dataset *p_noisy_passes(void)
{
    return ch_dataset_repeat(
        ch_dataset_map(ch_dataset_shuffle(range(10), 4, NULL), noisy, NULL, NULL), 3);
}

static ch_dataset *p_batches(void)
{
    return ch_dataset_rebatch(
        ch_dataset_batch(ch_dataset_shuffle(range(40), 16, NULL), 7, NULL), 2,
        (int64_t[]){3, 2}, NULL);
}

static ch_dataset *p_interleave(void)
{
    ch_dataset *d = ch_dataset_interleave(ch_dataset_batch(range(30), 6, NULL), rows_of, NULL,
                                          &(ch_interleave_options){.cycle = 3, .block = 2});

    return ch_dataset_batch(ch_dataset_shuffle(d, 5, NULL), 4, NULL);
}

static ch_dataset *p_window(void)
{
    return ch_dataset_flat_map(
        ch_dataset_window(range(20), 4, NULL, NULL, &(ch_window_options){.shift = 3}), rows_of,
        NULL);
}

static ch_dataset *p_cache(void)
{
    return ch_dataset_repeat(ch_dataset_shuffle(ch_dataset_cache(p_map(), NULL), 10, NULL), 2);
}

static ch_dataset *p_short_cache(void)
{
    return ch_dataset_repeat(ch_dataset_take(ch_dataset_cache(p_map(), NULL), 7), 3);
}

static ch_dataset *p_bucket(void)
{
    return ch_dataset_bucket_by_length(ch_dataset_shuffle(lengths(20), 8, NULL), 0, 2,
                                       (int64_t[]){5, 12}, (int64_t[]){2, 3, 2}, NULL);
}

static ch_dataset *p_several(void)
{
    return ch_dataset_zip(
        2, (ch_dataset *[]){
               ch_dataset_sample_from(2, (ch_dataset *[]){range(9), range(20)},
                                      (double[]){1, 3}, NULL),
               ch_dataset_enumerate(
                   ch_dataset_concatenate(2, (ch_dataset *[]){range(5), range(30)}), 3)});
}

static ch_dataset *p_filter(void)
{
    return ch_dataset_prefetch(
        ch_dataset_take_while(ch_dataset_skip(ch_dataset_filter(range(40), is_odd, NULL), 2),
                              below_5, NULL),
        3);
}

static ch_dataset *p_padded(void)
{
    return ch_dataset_unbatch(ch_dataset_padded_batch(lengths(11), 3, NULL));
}

static ch_dataset *p_ragged(void)
{
    return ch_dataset_unbatch(ch_dataset_rebatch(ragged(11, 4), 2, (int64_t[]){3, 2}, NULL));
}

static ch_dataset *p_ragged_batches(void)
{
    return ch_dataset_rebatch(ragged(11, 4), 2, (int64_t[]){3, 2}, NULL);
}

static ch_dataset *p_strings(void)
{
    return ch_dataset_batch(
        ch_dataset_map(ch_dataset_shuffle(words(20), 6, NULL), number_and_word, NULL, NULL), 3,
        NULL);
}

static const pipeline pipelines[] = {
    p_strings, p_map,    p_noisy_passes, p_batches,       p_interleave,
    p_window,  p_cache,  p_short_cache,  p_bucket,        p_several,
    p_filter,  p_padded, p_ragged,       p_ragged_batches};

static void with_threads(ch_dataset **d, int threads)
{
    *d = ch_dataset_with_options(*d, &(ch_dataset_options){.threads = threads});
}

static void stages_give_the_same_elements_with_any_number_of_threads(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(pipelines) / sizeof(pipelines[0]); p++) {
        static t_given first, other;

        for (int threads = -1; threads < 5; threads++) {
            t_given     *g = threads == -1 ? &first : &other;
            ch_dataset  *d = pipelines[p]();
            ch_iterator *it = NULL;

            memset(g, 0, sizeof(*g));
            with_threads(&d, threads);
            t_ok(ch_iterator_new(d, NULL, &it));
            t_take(it, -1, g);
            ch_iterator_unref(it);
            ch_dataset_unref(d);
            if (threads > -1)
                assert_string_equal(first.text, other.text);
        }
    }
}

/* An iterator with any number of threads saves the position; an iterator with another number
 * restores it. */
static void stages_restore_a_position_anywhere(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(pipelines) / sizeof(pipelines[0]); p++) {
        static t_given whole, rest, head;
        int            n = 0;

        do {
            ch_dataset  *d = pipelines[p]();
            ch_iterator *it = NULL, *other = NULL;
            void        *bytes = NULL;
            size_t       size = 0;

            with_threads(&d, 2);
            memset(&whole, 0, sizeof(whole));
            memset(&rest, 0, sizeof(rest));
            memset(&head, 0, sizeof(head));
            t_ok(ch_iterator_new(d, NULL, &it));
            t_take(it, n, &head);
            t_ok(ch_iterator_save(it, &bytes, &size));
            t_take(it, -1, &whole);
            t_ok(ch_iterator_new(d, NULL, &other));
            if (n % 3 == 0)
                t_take(other, 2, &head);
            t_ok(ch_iterator_restore(other, bytes, size));
            t_take(other, -1, &rest);
            if (strcmp(whole.text, rest.text) != 0)
                fail_msg("pipeline %zu after %d elements:\n%s\nis not\n%s", p, n, rest.text,
                         whole.text);
            for (size_t cut = 0; cut < size; cut += 1 + size / 16)
                if (ch_iterator_restore(other, bytes, cut) == CH_OK && cut > 0)
                    fail_msg("%zu of %zu bytes were a place", cut, size);
            ch_bytes_free(bytes);
            ch_iterator_unref(it);
            ch_iterator_unref(other);
            ch_dataset_unref(d);
            n++;
        } while (whole.n > 0);
    }
}

/* A dataset that was encoded and decoded, as for another machine, gives the same elements. */
static void decoded_dataset_gives_the_same_elements(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(pipelines) / sizeof(pipelines[0]); p++) {
        static t_given first, other;
        ch_dataset    *d = pipelines[p](), *copy = NULL;
        ch_iterator   *it = NULL;
        void          *bytes = NULL;
        size_t         size = 0;
        ch_status      rc = ch_dataset_encode(d, &bytes, &size);

        if (rc == CH_UNIMPLEMENTED) {
            assert_non_null(strstr(ch_error_message(), "map"));
            ch_dataset_unref(d);
            continue;
        }
        t_ok(rc);
        t_ok(ch_dataset_decode(bytes, size, &copy));
        for (size_t cut = 0; cut < size; cut++) {
            ch_dataset *none = NULL;

            if (ch_dataset_decode(bytes, cut, &none) == CH_OK)
                ch_dataset_unref(none); /* it may be valid without its last stages */
        }
        ch_bytes_free(bytes);
        memset(&first, 0, sizeof(first));
        memset(&other, 0, sizeof(other));
        t_ok(ch_iterator_new(d, NULL, &it));
        t_take(it, -1, &first);
        ch_iterator_unref(it);
        t_ok(ch_iterator_new(copy, NULL, &it));
        t_take(it, -1, &other);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
        ch_dataset_unref(copy);
        assert_string_equal(first.text, other.text);
    }
}

static void iterator_unref_ends_its_threads_in_mid_flight(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        ch_dataset    *d = pipelines[(size_t)i % (sizeof(pipelines) / sizeof(pipelines[0]))]();
        ch_iterator   *it = NULL;
        static t_given g;

        with_threads(&d, 3);
        memset(&g, 0, sizeof(g));
        t_ok(ch_iterator_new(d, NULL, &it));
        t_take(it, i % 7, &g);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
}

/* Makes a pipeline, reads from it, saves and restores its position, while allocations may fail.
 * Returns the number of elements; -1: a call returned an error. */
static int try_all(pipeline make)
{
    ch_dataset  *d = make();
    ch_iterator *it = NULL;
    ch_tuple    *t = NULL;
    void        *bytes = NULL;
    size_t       size = 0;
    int          n = 0;
    bool         has_failed = false;

    d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
    if (ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it) == CH_OK) {
        for (int i = 0; i < 3; i++) {
            has_failed |= ch_iterator_next(it, &t) != CH_OK;
            n += t != NULL;
            ch_tuple_unref(t);
            t = NULL;
        }
        if (ch_iterator_save(it, &bytes, &size) == CH_OK) {
            has_failed |= ch_iterator_restore(it, bytes, size) != CH_OK;
            ch_bytes_free(bytes);
        } else {
            has_failed = true;
        }
        for (int i = 0; i < 100; i++) {
            ch_status rc = ch_iterator_next(it, &t);

            if (rc == CH_OK && t == NULL)
                break;
            has_failed |= rc != CH_OK;
            n += t != NULL;
            ch_tuple_unref(t);
            t = NULL;
        }
    } else {
        has_failed = true;
    }
    bytes = NULL;
    if (d != NULL && ch_dataset_encode(d, &bytes, &size) == CH_OK) {
        ch_dataset *copy = NULL;

        if (ch_dataset_decode(bytes, size, &copy) == CH_OK)
            ch_dataset_unref(copy);
        ch_bytes_free(bytes);
    }
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    return has_failed ? -1 : n;
}

static void stages_fail_without_leak_when_out_of_memory(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(pipelines) / sizeof(pipelines[0]); p++) {
        int64_t first, most, live;
        int     all = try_all(pipelines[p]), some; /* devices and the like exist now */

        first = ch__mem_allocs();
        assert_int_equal(try_all(pipelines[p]), all);
        most = ch__mem_allocs() - first;
        live = ch__mem_live();
        for (int64_t n = 1; n <= most; n += 1 + most / 400) {
            ch__mem_fail_at(n);
            some = try_all(pipelines[p]);
            ch__mem_fail_at(0);
            if (some != -1 && some != all)
                fail_msg(
                    "pipeline %zu: %d elements of %d and no error when allocation %lld fails",
                    p, some, all, (long long)n);
            if (ch__mem_live() != live)
                fail_msg(
                    "pipeline %zu: %lld blocks are left when allocation %lld of %lld fails", p,
                    (long long)(ch__mem_live() - live), (long long)n, (long long)most);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(map_accepts_steps_and_c_functions),
        cmocka_unit_test(map_step_passes_strings_through_and_rejects_other_use),
        cmocka_unit_test(map_step_looks_words_up_in_a_table),
        cmocka_unit_test(padded_batch_and_ragged_batch_accept_rows_of_unequal_length),
        cmocka_unit_test(unbatch_and_rebatch_keep_the_rows),
        cmocka_unit_test(unbatch_and_rebatch_keep_ragged_rows),
        cmocka_unit_test(unbatch_and_rebatch_reject_invalid_row_splits),
        cmocka_unit_test(flat_map_interleave_and_window_replace_elements_by_bodies),
        cmocka_unit_test(sample_from_follows_its_weights),
        cmocka_unit_test(select_chooses_components_by_name),
        cmocka_unit_test(component_names_of_any_length_are_kept),
        cmocka_unit_test(stages_give_the_same_elements_with_any_number_of_threads),
        cmocka_unit_test(stages_restore_a_position_anywhere),
        cmocka_unit_test(decoded_dataset_gives_the_same_elements),
        cmocka_unit_test(stages_fail_without_leak_when_out_of_memory),
        cmocka_unit_test(iterator_unref_ends_its_threads_in_mid_flight),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
