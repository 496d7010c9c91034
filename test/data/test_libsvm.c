/* test/data/test_libsvm.c -- lines of LibSVM text become dense and sparse elements.
 *
 * The tests compare random lines with the numbers that were written, cut and change lines at
 * every byte, and check that the errors name the wrong part of the line.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include "data/format/libsvm.h"
#include "random.h"

static const ch_libsvm dense = {.n_features = 5}, sparse = {.n_features = 5, .sparse = true};

static ch_status parse(const ch_libsvm *o, const void *text, size_t n, ch_element **out)
{
    char     *alone = t_alone(text, n);
    ch_status rc = ch__libsvm_parse(o, (ch_str){alone, n}, out);

    free(alone);
    return rc;
}

static ch_element *parsed(const ch_libsvm *o, const char *text)
{
    ch_element *e = NULL;

    if (parse(o, text, strlen(text), &e) != CH_OK)
        fail_msg("%s", ch_error_message());
    assert_non_null(e);
    return e;
}

static void assert_dense(const char *text, float y, const float *x)
{
    ch_element *e = parsed(&dense, text);

    assert_int_equal(e->n, 2);
    assert_true(ch_shape_equal(e->part[0].shape, ch_shape_of(5)));
    assert_memory_equal(e->part[0].data, x, 5 * sizeof(*x));
    assert_int_equal(e->part[1].shape.rank, 0);
    assert_true(*(const float *)e->part[1].data == y);
    ch__element_free(e);
}

static void libsvm_line_gives_a_label_and_a_dense_vector(void **state)
{
    assert_dense("1 1:0.5 3:-2", 1, (float[]){0.5f, 0, -2, 0, 0});
    assert_dense("+1", 1, (float[]){0, 0, 0, 0, 0});
    assert_dense("\t-1.5e0  5:1e-3\t", -1.5f, (float[]){0, 0, 0, 0, 1e-3f});
    assert_dense("0 qid:7 2:1 # 3:4 and more", 0, (float[]){0, 1, 0, 0, 0});
    assert_dense("3#", 3, (float[]){0, 0, 0, 0, 0});
    assert_dense("3 5:1 1:2 3:4", 3, (float[]){2, 0, 4, 0, 1}); /* any order */
    (void)state;
}

static void libsvm_sparse_element_keeps_the_order_of_the_line(void **state)
{
    ch_element *e = parsed(&sparse, "2 4:0.5 qid:1 1:0 2:3");

    assert_int_equal(e->n, 3);
    assert_true(ch_shape_equal(e->part[0].shape, ch_shape_of(3)));
    assert_true(ch_shape_equal(e->part[1].shape, ch_shape_of(3)));
    assert_memory_equal(e->part[0].data, ((int64_t[]){3, 0, 1}), 24);
    assert_memory_equal(e->part[1].data, ((float[]){0.5f, 0, 3}), 12);
    assert_true(*(const float *)e->part[2].data == 2);
    ch__element_free(e);
    e = parsed(&sparse, "2");
    assert_true(ch_shape_equal(e->part[0].shape, ch_shape_of(0)));
    ch__element_free(e);
    (void)state;
}

static void libsvm_from_zero_accepts_index_0_and_unbounded_indices(void **state)
{
    const ch_libsvm o = {.n_features = 0, .from_zero = true, .sparse = true};
    ch_element     *e = parsed(&o, "1 0:1 9223372036854775807:2"), *out = NULL;

    assert_memory_equal(e->part[0].data, ((int64_t[]){0, INT64_MAX}), 16);
    ch__element_free(e);
    t_assert_error(parse(&o, "1 -1:1", 6, &out), CH_DATA_LOSS, "index -1", "first");
    t_assert_error(parse(&o, "1 -9223372036854775808:1", 24, &out), CH_DATA_LOSS,
                   "index -9223372036854775808");
    (void)state;
}

static void libsvm_line_of_blanks_or_a_comment_is_no_element(void **state)
{
    static const char *const rows[] = {"", " \t ", "# 1 2:3", "  #"};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ch_element *e = (ch_element *)&e;

        assert_int_equal(parse(&dense, rows[i], strlen(rows[i]), &e), CH_OK);
        assert_null(e);
    }
    assert_int_equal(ch__libsvm_parse(&dense, (ch_str){NULL, 0}, &(ch_element *){NULL}), CH_OK);
    (void)state;
}

static void libsvm_parse_error_names_the_wrong_part(void **state)
{
    static const struct {
        const char *line, *word;
    } rows[] = {
        {"x 1:2", "label \"x\""},
        {"1:2 3:4", "label \"1:2\""},
        {"1,2 3:4", "label \"1,2\""},
        {"1 2", "\"2\" is not index:value"},
        {"1 2:", "\"2:\""},
        {"1 :2", "\":2\""},
        {"1 2:3:4", "\"2:3:4\""},
        {"1 a:3", "\"a:3\""},
        {"1 1.0:3", "\"1.0:3\""},
        {"1 2:x", "\"2:x\""},
        {"1 2: 3", "\"2:\""},
        {"1 99999999999999999999:3", "is not index:value"},
        {"1 0:3", "index 0 is out of range: there are 5"},
        {"1 6:3", "index 6 is out of range: there are 5"},
        {"1 -1:3", "index -1 is out of range: there are 5"},
        {"1 2:3 2:3", "index 2 occurs twice"},
        {"1 5:1 4:2 1:3 2:4 4:5", "index 4 occurs twice"},
        {"1 qid 2:3", "\"qid\""},
    };
    int64_t     live = ch__mem_live();
    ch_element *e = NULL;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        t_assert_error(parse(&dense, rows[i].line, strlen(rows[i].line), &e), CH_DATA_LOSS,
                       rows[i].word);
        t_assert_error(parse(&sparse, rows[i].line, strlen(rows[i].line), &e), CH_DATA_LOSS,
                       rows[i].word);
    }
    t_assert_error(parse(&dense, "1 2:3\0", 6, &e), CH_DATA_LOSS, "\\x00");
    assert_null(e);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void libsvm_check_rejects_invalid_options_and_spec_follows_them(void **state)
{
    ch_tensor_spec spec[3];

    assert_int_equal(ch__libsvm_check(&dense), CH_OK);
    assert_int_equal(ch__libsvm_check(&(ch_libsvm){.sparse = true}), CH_OK);
    t_assert_error(ch__libsvm_check(&(ch_libsvm){0}), CH_INVALID_ARGUMENT, "0 features",
                   "sparse");
    t_assert_error(ch__libsvm_check(&(ch_libsvm){-1, false, true}), CH_INVALID_ARGUMENT, "-1");
    t_assert_error(ch__libsvm_check(&(ch_libsvm){INT64_MAX, false, false}), CH_INVALID_ARGUMENT,
                   "features");
    assert_int_equal(ch__libsvm_spec(&dense, spec), 2);
    assert_string_equal(spec[0].name, "x");
    assert_true(ch_shape_equal(spec[0].shape, ch_shape_of(5)));
    assert_string_equal(spec[1].name, "y");
    assert_int_equal(ch__libsvm_spec(&sparse, spec), 3);
    assert_string_equal(spec[0].name, "ids");
    assert_int_equal(spec[0].dtype, CH_I64);
    assert_string_equal(spec[1].name, "values");
    assert_true(ch_shape_equal(spec[1].shape, ch_shape_of(-1)));
    assert_string_equal(spec[2].name, "y");
    (void)state;
}

/* ---- random lines ---- */

enum { N = 200 };

typedef struct line {
    int   n;
    int   index[N]; /* from 1 on, in the order of the line */
    float value[N];
    char  text[N * 40];
    bool  is_twice;
} line;

static void roll_line(dice *d, line *l)
{
    size_t n = (size_t)snprintf(l->text, sizeof(l->text), "%d", (int)roll(d, 10));
    bool   seen[N + 1] = {false}, rises = roll(d, 2);

    l->n = (int)roll(d, rises ? 60 : 20);
    l->is_twice = false;
    for (int i = 0; i < l->n; i++) {
        l->index[i] = rises ? 1 + i * 3 : 1 + (int)roll(d, N);
        l->value[i] = (float)roll(d, 1000) / 7;
        l->is_twice |= seen[l->index[i]];
        seen[l->index[i]] = true;
        n += (size_t)snprintf(l->text + n, sizeof(l->text) - n, "%s%d:%.9g",
                              roll(d, 4) ? " " : " \t", l->index[i], (double)l->value[i]);
    }
}

static void libsvm_reads_random_lines_as_written(void **state)
{
    const ch_libsvm both[] = {{.n_features = N}, {.n_features = N, .sparse = true}};

    for (uint64_t seed = 0; seed < 3000; seed++) {
        dice             d = {seed};
        line             l;
        const ch_libsvm *o = &both[seed % 2];
        ch_element      *e = NULL;

        roll_line(&d, &l);
        ch_status rc = parse(o, l.text, strlen(l.text), &e);
        assert_int_equal(rc, l.is_twice ? CH_DATA_LOSS : CH_OK);
        if (rc != CH_OK)
            continue;
        float x[N] = {0};
        for (int i = 0; i < l.n; i++) {
            x[l.index[i] - 1] = l.value[i];
            if (o->sparse) {
                assert_int_equal(((const int64_t *)e->part[0].data)[i], l.index[i] - 1);
                assert_true(((const float *)e->part[1].data)[i] == l.value[i]);
            }
        }
        if (o->sparse)
            assert_int_equal(e->part[0].shape.dim[0], l.n);
        else
            assert_memory_equal(e->part[0].data, x, sizeof(x));
        ch__element_free(e);
    }
    (void)state;
}

static void libsvm_parse_survives_a_line_cut_or_changed_anywhere(void **state)
{
    const ch_libsvm both[] = {{.n_features = N}, {.n_features = N, .sparse = true}};
    int64_t         live = ch__mem_live();

    for (uint64_t seed = 0; seed < 20; seed++) {
        dice        d = {seed};
        line        l;
        ch_element *e = NULL;

        roll_line(&d, &l);
        size_t n = strlen(l.text);
        for (size_t i = 0; i <= n; i++) {
            if (parse(&both[seed % 2], l.text, i, &e) == CH_OK)
                ch__element_free(e);
            l.text[i] = (": \t#\0"
                         "0")[roll(&d, 6)];
            if (parse(&both[seed % 2], l.text, n, &e) == CH_OK)
                ch__element_free(e);
        }
        assert_int_equal(ch__mem_live(), live);
    }
    (void)state;
}

/* All indices decrease: parsing must not be quadratic. */
static void libsvm_parse_of_falling_indices_is_not_quadratic(void **state)
{
    enum { MANY = 300000 };
    char       *text = malloc(MANY * 10);
    ch_libsvm   o = {.n_features = MANY, .sparse = true};
    ch_element *e = NULL;
    size_t      n = (size_t)snprintf(text, 10, "1");

    for (int i = MANY; i > 0; i--)
        n += (size_t)snprintf(text + n, 11, " %d:1", i);
    assert_int_equal(ch__libsvm_parse(&o, (ch_str){text, n}, &e), CH_OK);
    assert_int_equal(e->part[0].shape.dim[0], MANY);
    ch__element_free(e);
    free(text);
    (void)state;
}

static void libsvm_parse_leaks_nothing_when_out_of_memory(void **state)
{
    int64_t   live = ch__mem_live();
    ch_status rc = CH_RESOURCE_EXHAUSTED;

    for (int k = 1; rc != CH_OK; k++) {
        ch_element *e = NULL;

        ch__mem_fail_at(k);
        rc = ch__libsvm_parse(&sparse, t_text("1 3:1 2:1"), &e);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch__element_free(e);
        assert_int_equal(ch__mem_live(), live);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(libsvm_line_gives_a_label_and_a_dense_vector),
        cmocka_unit_test(libsvm_sparse_element_keeps_the_order_of_the_line),
        cmocka_unit_test(libsvm_from_zero_accepts_index_0_and_unbounded_indices),
        cmocka_unit_test(libsvm_line_of_blanks_or_a_comment_is_no_element),
        cmocka_unit_test(libsvm_parse_error_names_the_wrong_part),
        cmocka_unit_test(libsvm_check_rejects_invalid_options_and_spec_follows_them),
        cmocka_unit_test(libsvm_reads_random_lines_as_written),
        cmocka_unit_test(libsvm_parse_survives_a_line_cut_or_changed_anywhere),
        cmocka_unit_test(libsvm_parse_of_falling_indices_is_not_quadratic),
        cmocka_unit_test(libsvm_parse_leaks_nothing_when_out_of_memory),
    };
    return cmocka_run_group_tests_name("libsvm", tests, NULL, NULL);
}
