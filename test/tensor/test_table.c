/* test/tensor/test_table.c -- static tables: lookups outside of steps.
 *
 * A ch_table maps ids or words to values. The model is a list that is searched from its
 * beginning. The tests compare both on random keys and check that invalid keys and values are
 * rejected.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/table.h"
#include "tensor/tensor.h"

static void ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

static ch_tensor *tensor(ch_dtype dtype, int64_t n, const void *data)
{
    ch_tensor *t = NULL;

    ok(ch_tensor_copy_of(dtype, ch_shape_of(n), data, &t));
    return t;
}

/* Takes ownership of the tensors. */
static ch_table *table(ch_tensor *keys, ch_tensor *values, double missing)
{
    ch_table *t = NULL;

    ok(ch_table_new(keys, values, missing, &t));
    ch_tensor_unref(keys);
    ch_tensor_unref(values);
    return t;
}

/* Takes ownership of the tensor. */
static ch_tensor *found(const ch_table *t, ch_tensor *keys)
{
    ch_tensor *out = NULL;

    ok(ch_table_find(t, keys, &out));
    ch_tensor_unref(keys);
    return out;
}

static void gives(const ch_table *t, ch_tensor *keys, const int64_t *want)
{
    ch_tensor *out = found(t, keys);

    assert_int_equal(ch_tensor_dtype(out), CH_I64);
    assert_memory_equal(ch_tensor_data(out), want,
                        (size_t)ch_tensor_count(out) * sizeof(*want));
    ch_tensor_unref(out);
}

static const ch_str word[] = {
    {"the", 3}, {"cat", 3}, {"", 0}, {"the cat sat", 11}, {"t\0e", 3}};

static void table_maps_ids_to_values(void **state)
{
    const int64_t keys[] = {0, 1, 2}, asked[] = {0, 1, -1};
    ch_table     *t = table(tensor(CH_I64, 3, keys), tensor(CH_I64, 3, keys), -2);

    assert_int_equal(ch_table_count(t), 3);
    gives(t, tensor(CH_I64, 3, asked), (int64_t[]){0, 1, -2});
    gives(t, tensor(CH_I32, 3, (int32_t[]){2, -1, 1}), (int64_t[]){2, -2, 1});
    gives(t, tensor(CH_I64, 0, NULL), NULL);
    ch_table_unref(t);
    (void)state;
}

static void table_maps_words_to_their_index_by_default(void **state)
{
    const ch_str asked[] = {{"cat", 3},  {"The", 3},          {"", 0},     {"the", 3},
                            {"t\0e", 3}, {"the cat sat", 11}, {"t\0d", 3}, {"the cat sad", 11}};
    ch_table    *t = table(tensor(CH_STR, 5, word), NULL, -1);

    assert_int_equal(ch_table_count(t), 5);
    gives(t, tensor(CH_STR, 8, asked), (int64_t[]){1, -1, 2, 0, 4, 3, -1, -1});
    ch_table_unref(t);
    (void)state;
}

static void a_table_may_be_empty(void **state)
{
    ch_table *ids = table(tensor(CH_I32, 0, NULL), NULL, 7);
    ch_table *words = table(tensor(CH_STR, 0, NULL), NULL, 7);

    assert_int_equal(ch_table_count(ids), 0);
    gives(ids, tensor(CH_I64, 2, (int64_t[]){0, -1}), (int64_t[]){7, 7});
    gives(words, tensor(CH_STR, 2, word + 2), (int64_t[]){7, 7});
    assert_false(ch__table_equal(ids, words));
    ch_table_unref(ids);
    ch_table_unref(words);
    (void)state;
}

static void table_accepts_strided_keys_and_values(void **state)
{
    const int64_t keys[] = {10, 0, 20, 0, INT64_MIN, 0, INT64_MAX, 0};
    const int64_t values[] = {3, 2, 1, 0};
    ch_tensor    *all = tensor(CH_I64, 8, keys), *forth = tensor(CH_I64, 4, values);
    ch_tensor    *some = NULL, *back = NULL;
    ch_table     *t;

    ok(ch_tensor_slice(all, 0, 0, 8, 2, &some));
    ok(ch_tensor_slice(forth, 0, 3, -1, -1, &back));
    t = table(ch_tensor_ref(some), back, -1);
    gives(t, some, (int64_t[]){0, 1, 2, 3});
    ch_tensor_unref(all);
    ch_tensor_unref(forth);
    ch_table_unref(t);
    (void)state;
}

static void table_find_result_has_the_shape_of_the_keys(void **state)
{
    const int32_t keys[] = {5, 6, 7, 8, 9, 10};
    ch_table     *t = table(tensor(CH_I32, 6, keys), NULL, -1);
    ch_tensor    *square = NULL, *out;

    ok(ch_tensor_copy_of(CH_I32, ch_shape_of(3, 2), keys, &square));
    out = found(t, square);
    assert_true(ch_shape_equal(ch_tensor_shape(out), ch_shape_of(3, 2)));
    ch_tensor_unref(out);
    ok(ch_tensor_scalar(CH_I64, 9, &square));
    out = found(t, square);
    assert_int_equal(ch_tensor_shape(out).rank, 0);
    assert_int_equal(*(const int64_t *)ch_tensor_data(out), 4);
    ch_tensor_unref(out);
    ch_table_unref(t);
    (void)state;
}

static void table_copies_its_keys_and_values(void **state)
{
    int64_t    keys[] = {1, 2}, values[] = {10, 20};
    ch_tensor *k = NULL, *v = NULL;
    ch_table  *t;

    ok(ch_tensor_wrap(CH_I64, ch_shape_of(2), keys, NULL, NULL, &k));
    ok(ch_tensor_wrap(CH_I64, ch_shape_of(2), values, NULL, NULL, &v));
    t = table(k, v, 0);
    keys[0] = values[0] = 99;
    assert_ptr_equal(ch_table_ref(t), t);
    ch_table_unref(t);
    gives(t, tensor(CH_I64, 2, (int64_t[]){1, 99}), (int64_t[]){10, 0});
    ch_table_unref(t);
    assert_null(ch_table_ref(NULL));
    ch_table_unref(NULL);
    assert_int_equal(ch_table_count(NULL), 0);
    (void)state;
}

/* ---- comparison with a list that is searched from its beginning ---- */

static uint64_t bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

enum { MOST = 300, TEXT = 24 };

typedef struct model {
    ch_dtype keys, values;
    int      n, n_asked;
    int64_t  id[MOST], asked[MOST];
    ch_str   word[MOST], asked_word[MOST];
    char     text[2 * MOST][TEXT];
    double   value[MOST], missing;
} model;

/* Returns few different keys, so that some are equal, some close together and some far
 * apart. */
static int64_t some_id(uint64_t *s, ch_dtype dtype)
{
    static const int64_t far[] = {INT64_MIN, INT64_MAX, (int64_t)1 << 32, -((int64_t)1 << 40)};
    int64_t              id = (int64_t)(bits(s) % 400) - 100;

    if (dtype == CH_I64 && bits(s) % 8 == 0)
        return far[bits(s) % 4];
    return bits(s) % 4 == 0 ? id * (1 << 20) : id;
}

static ch_str some_word(uint64_t *s, char *text)
{
    size_t n = bits(s) % 4 == 0 ? bits(s) % TEXT : bits(s) % 3;

    for (size_t i = 0; i < n; i++)
        text[i] = (char)("ab\0"[bits(s) % 3]);
    return (ch_str){text, n};
}

static bool is_same(const model *m, int i, int64_t id, ch_str w)
{
    return m->keys == CH_STR
               ? m->word[i].size == w.size && memcmp(m->word[i].data, w.data, w.size) == 0
               : m->id[i] == id;
}

static int place_of(const model *m, int n, int64_t id, ch_str w)
{
    for (int i = 0; i < n; i++)
        if (is_same(m, i, id, w))
            return i;
    return -1;
}

/* Returns a number that every numeric dtype holds. */
static double some_value(uint64_t *s, ch_dtype dtype)
{
    return dtype == CH_BOOL ? (double)(bits(s) % 2) : (double)(bits(s) % 100);
}

static model *make_model(uint64_t seed, ch_dtype keys, ch_dtype values)
{
    model *m = calloc(1, sizeof(*m));

    m->keys = keys;
    m->values = values;
    m->n = (int)(bits(&seed) % MOST);
    m->n_asked = (int)(bits(&seed) % MOST);
    m->missing = some_value(&seed, values);
    for (int i = 0; i < m->n; i++) {
        int first;

        m->id[i] = some_id(&seed, keys);
        m->word[i] = some_word(&seed, m->text[i]);
        first = place_of(m, i, m->id[i], m->word[i]);
        m->value[i] = first >= 0 ? m->value[first] : some_value(&seed, values);
    }
    for (int i = 0; i < m->n_asked; i++) {
        int k = m->n > 0 ? (int)(bits(&seed) % (uint64_t)m->n) : -1;

        m->asked[i] = k >= 0 && bits(&seed) % 2 == 0 ? m->id[k] : some_id(&seed, keys);
        m->asked_word[i] = some_word(&seed, m->text[MOST + i]);
    }
    return m;
}

static ch_tensor *keys_of(const model *m, int n, const int64_t *id, const ch_str *w)
{
    ch_tensor *t = NULL;

    if (m->keys == CH_STR)
        return tensor(CH_STR, n, w);
    ok(ch_tensor_new(m->keys, ch_shape_of(n), &t));
    for (int i = 0; i < n; i++)
        if (m->keys == CH_I64)
            ((int64_t *)(void *)t->data)[i] = id[i];
        else
            ((int32_t *)(void *)t->data)[i] = (int32_t)id[i];
    return t;
}

static ch_table *table_of(const model *m)
{
    ch_tensor *values = NULL;

    ok(ch_tensor_new(m->values, ch_shape_of(m->n), &values));
    for (int i = 0; i < m->n; i++)
        ch__store(m->values, values->data + (size_t)i * ch_dtype_bytes(m->values), m->value[i]);
    return table(keys_of(m, m->n, m->id, m->word), values, m->missing);
}

static int distinct(const model *m)
{
    int n = 0;

    for (int i = 0; i < m->n; i++)
        n += place_of(m, i, m->id[i], m->word[i]) < 0;
    return n;
}

static void check_model(const model *m)
{
    ch_table  *t = table_of(m);
    ch_tensor *out = found(t, keys_of(m, m->n_asked, m->asked, m->asked_word));

    assert_int_equal(ch_table_count(t), distinct(m));
    assert_int_equal(ch_tensor_dtype(out), m->values);
    for (int i = 0; i < m->n_asked; i++) {
        int    k = place_of(m, m->n, m->asked[i], m->asked_word[i]);
        double is = ch__load(m->values, out->data + (size_t)i * ch_dtype_bytes(m->values));

        assert_true(is == (k >= 0 ? m->value[k] : m->missing));
    }
    ch_tensor_unref(out);
    ch_table_unref(t);
}

static void table_agrees_with_a_list_on_random_keys(void **state)
{
    static const ch_dtype keys[] = {CH_I32, CH_I64, CH_STR};
    const char           *cases = getenv("T_CASES");
    uint64_t              n = cases != NULL ? strtoull(cases, NULL, 10) : 300;

    for (uint64_t seed = 0; seed < n; seed++) {
        model *m = make_model(seed, keys[seed % 3], (ch_dtype)(seed / 3 % CH_STR));

        check_model(m);
        free(m);
    }
    (void)state;
}

/* Hashes of these keys begin with the same bits, so all keys are in the same bucket. */
static void table_distinguishes_keys_of_one_bucket(void **state)
{
    enum { N = 500 };
    int64_t  id[2 * N], want[2 * N];
    uint64_t inverse = 1;

    for (int i = 0; i < 6; i++) /* Newton: inverse of the multiplier modulo 2^64 */
        inverse *= 2 - 0x9e3779b97f4a7c15u * inverse;
    for (int i = 0; i < 2 * N; i++) {
        uint64_t x = (uint64_t)i * inverse;

        id[i] = (int64_t)(x ^ x >> 32);
        want[i] = i < N ? i : -1;
    }
    ch_table *t = table(tensor(CH_I64, N, id), NULL, -1);

    assert_int_equal(t->first[1] - t->first[0], N);
    gives(t, tensor(CH_I64, 2 * N, id), want);
    ch_table_unref(t);
    (void)state;
}

static void table_does_not_depend_on_the_order_of_keys(void **state)
{
    enum { N = 40 };
    int64_t   a[N], b[N];
    ch_str    w[5];
    ch_table *t, *u;

    for (int i = 0; i < N; i++) {
        a[i] = i * i - 100;
        b[N - 1 - i] = a[i];
    }
    for (int i = 0; i < 5; i++)
        w[i] = word[4 - i];
    t = table(tensor(CH_I64, N, a), tensor(CH_I64, N, a), 0);
    u = table(tensor(CH_I64, N, b), tensor(CH_I64, N, b), 0);
    assert_true(ch__table_equal(t, u));
    assert_true(ch__table_hash(t) == ch__table_hash(u));
    ch_table_unref(u);
    u = table(tensor(CH_I64, N, b), tensor(CH_I64, N, a), 0);
    assert_false(ch__table_equal(t, u));
    ch_table_unref(t);
    ch_table_unref(u);
    t = table(tensor(CH_STR, 5, word), tensor(CH_U8, 5, "22222"), 0);
    u = table(tensor(CH_STR, 5, w), tensor(CH_U8, 5, "22222"), 0);
    assert_true(ch__table_equal(t, u));
    ch_table_unref(u);
    u = table(tensor(CH_STR, 5, w), tensor(CH_U8, 5, "22222"), 1);
    assert_false(ch__table_equal(t, u));
    assert_false(ch__table_equal(t, NULL));
    ch_table_unref(t);
    ch_table_unref(u);
    (void)state;
}

/* ---- refusals ---- */

/* Takes ownership of the tensors. */
static void refused(ch_tensor *keys, ch_tensor *values, double missing, const char *what,
                    const char *more)
{
    ch_table *t = NULL;

    assert_int_equal(ch_table_new(keys, values, missing, &t), CH_INVALID_ARGUMENT);
    assert_null(t);
    if (strstr(ch_error_message(), what) == NULL || strstr(ch_error_message(), more) == NULL)
        fail_msg("\"%s\" has not both \"%s\" and \"%s\"", ch_error_message(), what, more);
    ch_tensor_unref(keys);
    ch_tensor_unref(values);
}

static void table_rejects_a_key_with_two_values(void **state)
{
    const int64_t id[] = {4, 7, 9, 7}, place[] = {0, 1, 2, 3}, same[] = {0, 1, 2, 1};
    const ch_str  twice[] = {{"a\n", 2}, {"b", 1}, {"a\n", 2}};
    ch_table     *t;

    refused(tensor(CH_I64, 4, id), tensor(CH_I64, 4, place), 0, "key 7", "at 1 and 3");
    refused(tensor(CH_I64, 4, id), NULL, 0, "key 7", "at 1 and 3");
    refused(tensor(CH_STR, 3, twice), NULL, 0, "key \"a\\n\"", "at 0 and 2");
    t = table(tensor(CH_I64, 4, id), tensor(CH_I64, 4, same), -1);
    assert_int_equal(ch_table_count(t), 3);
    gives(t, tensor(CH_I64, 4, id), same);
    ch_table_unref(t);
    (void)state;
}

static void table_rejects_unequal_numbers_of_keys_and_values(void **state)
{
    const int64_t id[] = {4, 7, 9};

    refused(tensor(CH_I64, 3, id), tensor(CH_I64, 2, id), 0, "3 keys and 2 values",
            "key 9 has no value");
    refused(tensor(CH_STR, 2, word), tensor(CH_I64, 1, id), 0, "2 keys and 1 values",
            "key \"cat\" has no value");
    refused(tensor(CH_I64, 1, id), tensor(CH_I64, 3, id), 0, "1 keys and 3 values",
            "value 1 has no key");
    (void)state;
}

static void table_rejects_invalid_keys_and_values(void **state)
{
    ch_str     huge[] = {{"x", 3000000000u}, {"y", 2000000000u}};
    ch_tensor *square = NULL, *big = NULL, *out = NULL, *ids;
    ch_table  *t = NULL;

    ok(ch_tensor_new(CH_I64, ch_shape_of(2, 1), &square));
    refused(ch_tensor_ref(square), NULL, 0, "keys are i64(2, 1)", "string of rank 1");
    refused(tensor(CH_U8, 2, "ab"), square, 0, "keys are u8(2,)", "i32");
    refused(tensor(CH_STR, 2, word), tensor(CH_STR, 2, word), 0, "values are string",
            "numbers");
    ok(ch_tensor_scalar(CH_F32, 1, &square));
    refused(tensor(CH_STR, 1, word), square, 0, "values are f32()", "rank 1");
    refused(tensor(CH_STR, 1, word), tensor(CH_U8, 1, "x"), -1, "missing keys, -1", "u8");
    refused(tensor(CH_STR, 1, word), NULL, 0.5, "missing keys, 0.5", "i64");
    ok(ch_tensor_wrap(CH_STR, ch_shape_of(2), huge, NULL, NULL, &big));
    refused(big, NULL, 0, "first 2 keys", "4294967295 bytes");
    assert_int_equal(ch_table_new(NULL, NULL, 0, &t), CH_INVALID_ARGUMENT);
    ids = tensor(CH_I64, 1, (int64_t[]){1});
    assert_int_equal(ch_table_new(ids, NULL, 0, NULL), CH_INVALID_ARGUMENT);
    t = table(ch_tensor_ref(ids), NULL, 0);
    assert_int_equal(ch_table_find(NULL, ids, &out), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_table_find(t, NULL, &out), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_table_find(t, ids, NULL), CH_INVALID_ARGUMENT);
    ch_tensor_unref(ids);
    ids = tensor(CH_STR, 1, word);
    assert_int_equal(ch_table_find(t, ids, &out), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "i32 or i64"));
    ch_tensor_unref(ids);
    ch_table_unref(t);
    (void)state;
}

static void table_leaks_nothing_when_out_of_memory(void **state)
{
    ch_tensor *words = tensor(CH_STR, 5, word), *all = tensor(CH_STR, 5, word), *some = NULL;
    ch_status  rc = CH_RESOURCE_EXHAUSTED;

    ok(ch_tensor_slice(all, 0, 0, 5, 2, &some)); /* not contiguous: the library copies it */
    for (int n = 1; rc != CH_OK; n++) {
        int64_t    live = ch__mem_live();
        ch_table  *t = NULL;
        ch_tensor *out = NULL;

        ch__mem_fail_at(n);
        rc = ch_table_new(words, NULL, -1, &t);
        if (rc == CH_OK)
            rc = ch_table_find(t, some, &out);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch_tensor_unref(out);
        ch_table_unref(t);
        assert_int_equal(ch__mem_live(), live);
    }
    ch_tensor_unref(words);
    ch_tensor_unref(all);
    ch_tensor_unref(some);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_maps_ids_to_values),
        cmocka_unit_test(table_maps_words_to_their_index_by_default),
        cmocka_unit_test(a_table_may_be_empty),
        cmocka_unit_test(table_accepts_strided_keys_and_values),
        cmocka_unit_test(table_find_result_has_the_shape_of_the_keys),
        cmocka_unit_test(table_copies_its_keys_and_values),
        cmocka_unit_test(table_agrees_with_a_list_on_random_keys),
        cmocka_unit_test(table_distinguishes_keys_of_one_bucket),
        cmocka_unit_test(table_does_not_depend_on_the_order_of_keys),
        cmocka_unit_test(table_rejects_a_key_with_two_values),
        cmocka_unit_test(table_rejects_unequal_numbers_of_keys_and_values),
        cmocka_unit_test(table_rejects_invalid_keys_and_values),
        cmocka_unit_test(table_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
