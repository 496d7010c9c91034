/* test/file/test_example.c -- tf.train.Example messages, and TFRecord files of them.
 *
 * The tests compare encoded examples with their bytes in hexadecimal digits. Files of examples
 * are read back, and a failure of any call must leave no file.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/record.h"

#include "help.h"

static ch_example *example_new(void)
{
    ch_example *e = NULL;

    assert_int_equal(ch_example_new(&e), CH_OK);
    return e;
}

static void set(ch_example *e, const char *name, ch_dtype dtype, ch_shape shape,
                const void *data)
{
    ch_tensor *t = NULL;

    assert_int_equal(ch_tensor_copy_of(dtype, shape, data, &t), CH_OK);
    assert_int_equal(ch_example_set(e, name, t), CH_OK);
    ch_tensor_unref(t);
}

static void assert_message(ch_example *e, const char *hex)
{
    ch_str s;
    char   have[1000];

    assert_int_equal(ch_example_encode(e, &s), CH_OK);
    assert_true(2 * s.size < sizeof(have));
    have[0] = '\0';
    for (size_t i = 0; i < s.size; i++)
        snprintf(have + 2 * i, 3, "%02x", (unsigned char)s.data[i]);
    assert_string_equal(have, hex);
}

/* EX-1, EX-2 */
static void example_encode_writes_lists_as_protobuf_does(void **state)
{
    ch_example *e = example_new();

    assert_message(e, "0a00");
    set(e, "a", CH_I64, ch_shape_of(2), (int64_t[]){1, 2});
    assert_message(e, "0a0d0a0b0a016112061a040a020102");
    /* Negative numbers have ten bytes. */
    set(e, "a", CH_I64, ch_shape_scalar(), (int64_t[]){-1});
    assert_message(e, "0a150a130a0161120e1a0c0a0affffffffffffffffff01");
    set(e, "a", CH_F32, ch_shape_of(2), (float[]){1.0f, -2.0f});
    assert_message(e, "0a130a110a0161120c120a0a080000803f000000c0");
    set(e, "a", CH_STR, ch_shape_of(2), (ch_str[]){{"xy", 2}, {"", 0}});
    assert_message(e, "0a0f0a0d0a016112080a060a0278790a00");
    /* An empty feature. */
    set(e, "a", CH_I64, ch_shape_of(0), NULL);
    assert_message(e, "0a090a070a016112021a00");
    ch_example_free(e);
    (void)state;
}

static void example_encode_writes_every_dtype_to_its_list(void **state)
{
    static const char ints[] = "0a0d0a0b0a016112061a040a020102";
    ch_example       *e = example_new();

    set(e, "a", CH_I8, ch_shape_of(2), (int8_t[]){1, 2});
    assert_message(e, ints);
    set(e, "a", CH_I16, ch_shape_of(2), (int16_t[]){1, 2});
    assert_message(e, ints);
    set(e, "a", CH_I32, ch_shape_of(2), (int32_t[]){1, 2});
    assert_message(e, ints);
    set(e, "a", CH_U16, ch_shape_of(2), (uint16_t[]){1, 2});
    assert_message(e, ints);
    set(e, "a", CH_U32, ch_shape_of(1, 2), (uint32_t[]){1, 2});
    assert_message(e, ints);
    set(e, "a", CH_U64, ch_shape_of(2, 1), (uint64_t[]){1, 2});
    assert_message(e, ints);
    set(e, "a", CH_I32, ch_shape_scalar(), (int32_t[]){-2});
    assert_message(e, "0a150a130a0161120e1a0c0a0afeffffffffffffffff01");
    set(e, "a", CH_U32, ch_shape_scalar(), (uint32_t[]){UINT32_MAX});
    assert_message(e, "0a100a0e0a016112091a070a05ffffffff0f");
    set(e, "a", CH_BOOL, ch_shape_of(2), (uint8_t[]){1, 0});
    assert_message(e, "0a0d0a0b0a016112061a040a020100");
    set(e, "a", CH_F64, ch_shape_of(2), (double[]){1.0, -2.0});
    assert_message(e, "0a130a110a0161120c120a0a080000803f000000c0");
    set(e, "a", CH_F16, ch_shape_of(2), (uint16_t[]){0x3c00, 0xc000});
    assert_message(e, "0a130a110a0161120c120a0a080000803f000000c0");
    set(e, "a", CH_BF16, ch_shape_of(2), (uint16_t[]){0x3f80, 0xc000});
    assert_message(e, "0a130a110a0161120c120a0a080000803f000000c0");
    /* An image is a single value of bytes. */
    set(e, "a", CH_U8, ch_shape_of(1, 3), (uint8_t[]){1, 2, 255});
    assert_message(e, "0a0e0a0c0a016112070a050a030102ff");
    set(e, "a", CH_U8, ch_shape_of(0, 3), NULL);
    assert_message(e, "0a0b0a090a016112040a020a00");
    ch_example_free(e);
    (void)state;
}

/* EX-4: the order of a map means nothing; ours is that of the names. */
static void example_encode_sorts_features_by_name(void **state)
{
    static const char *const names[] = {"b", "ab", "", "aa", "c", "a"};
    ch_example              *e = example_new(), *f = example_new();
    ch_str                   x, y;

    for (int i = 0; i < 6; i++) {
        set(e, names[i], CH_U8, ch_shape_of(0), NULL);
        set(f, names[5 - i], CH_U8, ch_shape_of(0), NULL);
    }
    assert_int_equal(ch_example_encode(e, &x), CH_OK);
    assert_int_equal(ch_example_encode(f, &y), CH_OK);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    ch_example_clear(e);
    assert_message(e, "0a00");
    set(e, "a", CH_I64, ch_shape_of(2), (int64_t[]){1, 2});
    assert_message(e, "0a0d0a0b0a016112061a040a020102");
    ch_example_free(e);
    ch_example_free(f);
    ch_example_free(NULL);
    (void)state;
}

static void example_encode_writes_long_lists(void **state)
{
    enum { N = 100000 };
    ch_example *e = example_new();
    ch_tensor  *t = NULL;
    ch_str      s;

    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(N), &t), CH_OK);
    assert_int_equal(ch_example_set(e, "x", t), CH_OK);
    assert_int_equal(ch_example_encode(e, &s), CH_OK);
    /* bytes: list 4 + 4N, feature 4 more, entry 3 + 4 more, features 4 more, example 4 more */
    assert_int_equal(s.size, 4 * N + 4 + 4 + 3 + 4 + 4 + 4);
    ch_tensor_unref(t);
    ch_example_free(e);
    (void)state;
}

static void example_set_writes_strided_tensors_in_row_major_order(void **state)
{
    ch_example *e = example_new();
    ch_tensor  *t = NULL, *turned = NULL;

    assert_int_equal(ch_tensor_copy_of(CH_I64, ch_shape_of(2, 1), (int64_t[]){2, 1}, &t),
                     CH_OK);
    assert_int_equal(ch_tensor_slice(t, 0, 1, -1, -1, &turned), CH_OK);
    assert_int_equal(ch_example_set(e, "a", turned), CH_OK);
    assert_message(e, "0a0d0a0b0a016112061a040a020102");
    ch_tensor_unref(t);
    ch_tensor_unref(turned);
    ch_example_free(e);
    (void)state;
}

static void example_set_rejects_values_that_no_list_holds(void **state)
{
    ch_example *e = example_new();
    ch_tensor  *t = NULL;
    uint64_t    large = (uint64_t)INT64_MAX + 1;

    assert_int_equal(ch_tensor_copy_of(CH_U64, ch_shape_scalar(), &large, &t), CH_OK);
    t_assert_error(ch_example_set(e, "big", t), CH_INVALID_ARGUMENT, "big", "int64");
    t_assert_error(ch_example_set(e, NULL, t), CH_INVALID_ARGUMENT, "name");
    t_assert_error(ch_example_set(e, "none", NULL), CH_INVALID_ARGUMENT, "tensor");
    assert_message(e, "0a00");
    ch_tensor_unref(t);
    ch_example_free(e);
    (void)state;
}

static void example_set_allocates_nothing_the_second_time(void **state)
{
    ch_example *e = example_new();
    ch_tensor  *t = NULL;
    ch_str      s;

    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(100), &t), CH_OK);
    for (int i = 0; i < 3; i++) {
        int64_t before = ch__mem_allocs();

        assert_int_equal(ch_example_set(e, "x", t), CH_OK);
        assert_int_equal(ch_example_encode(e, &s), CH_OK);
        if (i > 0)
            assert_int_equal(ch__mem_allocs(), before);
    }
    ch_tensor_unref(t);
    ch_example_free(e);
    (void)state;
}

static void example_set_leaves_the_example_unchanged_when_out_of_memory(void **state)
{
    ch_example *e = example_new();
    ch_tensor  *t = NULL;
    ch_status   rc = CH_RESOURCE_EXHAUSTED;
    ch_str      before, after;
    char        copy[64];

    assert_int_equal(ch_tensor_scalar(CH_I64, 7, &t), CH_OK);
    assert_int_equal(ch_example_set(e, "m", t), CH_OK);
    assert_int_equal(ch_example_encode(e, &before), CH_OK);
    assert_true(before.size <= sizeof(copy));
    memcpy(copy, before.data, before.size);
    for (int64_t n = 1; rc != CH_OK; n++) {
        ch__mem_fail_at(n);
        rc = ch_example_set(e, "a", t);
        ch__mem_fail_at(0);
        if (rc == CH_OK)
            break;
        assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
        assert_int_equal(ch_example_encode(e, &after), CH_OK);
        assert_int_equal(after.size, before.size);
        assert_memory_equal(after.data, copy, after.size);
    }
    ch_tensor_unref(t);
    ch_example_free(e);
    (void)state;
}

/* ---- files ---- */

static ch_status write_records(const char *name, const ch_save_options *opt)
{
    ch_record_writer *w = NULL;
    ch_example       *e = NULL;
    ch_tensor        *t = NULL;
    ch_status         rc = ch_tensor_scalar(CH_I64, 7, &t);

    if (rc == CH_OK)
        rc = ch_example_new(&e);
    if (rc == CH_OK)
        rc = ch_record_writer_open(t_path(name), opt, &w);
    if (rc == CH_OK)
        rc = ch_record_writer_add(w, (ch_str){"hello", 5});
    if (rc == CH_OK)
        rc = ch_record_writer_add(w, (ch_str){NULL, 0});
    if (rc == CH_OK)
        rc = ch_example_set(e, "label", t);
    if (rc == CH_OK)
        rc = ch_record_writer_add_example(w, e);
    if (rc == CH_OK)
        rc = ch_record_writer_close(w);
    else
        ch_record_writer_drop(w);
    ch_example_free(e);
    ch_tensor_unref(t);
    return rc;
}

/* TR-1, TR-2, TR-4 */
static void record_writer_output_is_read_back(void **state)
{
    static const char *const names[] = {"r", "r.gz", "r.zst"};
    size_t                   n;

    for (int i = 0; i < 3; i++) {
        ch_reader *r = NULL;
        ch_record  x;

        assert_int_equal(write_records(names[i], NULL), CH_OK);
        assert_int_equal(ch__reader_open(t_path(names[i]), NULL, NULL, &r), CH_OK);
        assert_int_equal(ch__record_next(r, 1000, &x), CH_OK);
        assert_int_equal(x.size, 5);
        assert_true(ch__record_is_good(&x));
        assert_int_equal(ch__record_next(r, 1000, &x), CH_OK);
        assert_int_equal(x.size, 0);
        assert_true(ch__record_is_good(&x));
        assert_int_equal(ch__record_next(r, 1000, &x), CH_OK);
        assert_int_equal(x.size, 18);
        assert_true(ch__record_is_good(&x));
        assert_int_equal(ch__record_next(r, 1000, &x), CH_OK);
        assert_null(x.data);
        ch__reader_close(r);
    }
    char *data = t_read(t_path("r"), &n);
    assert_memory_equal(data,
                        "\x05\0\0\0\0\0\0\0\xea\xb2\x04\x3ehello\xbb\x1f\x1c\x19"
                        "\0\0\0\0\0\0\0\0\x29\x03\x98\x07\xd8\xea\x82\xa2",
                        37);
    free(data);
    (void)state;
}

static void record_writer_drop_leaves_no_file(void **state)
{
    ch_record_writer *w = NULL;

    assert_int_equal(ch_record_writer_open(t_path("dropped"), NULL, &w), CH_OK);
    assert_int_equal(ch_record_writer_add(w, (ch_str){"hello", 5}), CH_OK);
    t_assert_error(ch_record_writer_add(w, (ch_str){NULL, 5}), CH_INVALID_ARGUMENT, "dropped");
    ch_record_writer_drop(w);
    ch_record_writer_drop(NULL);
    assert_int_not_equal(access(t_path("dropped"), F_OK), 0);
    (void)state;
}

static void record_writer_leaves_no_file_when_an_example_cannot_be_encoded(void **state)
{
    ch_record_writer *w = NULL;
    ch_example       *e = example_new();

    assert_int_equal(ch_record_writer_open(t_path("unencoded"), NULL, &w), CH_OK);
    ch__mem_fail_at(1); /* the message of the example */
    t_assert_error(ch_record_writer_add_example(w, e), CH_RESOURCE_EXHAUSTED, "example");
    ch__mem_fail_at(0);
    t_assert_error(ch_record_writer_add(w, (ch_str){"hello", 5}), CH_RESOURCE_EXHAUSTED,
                   "failed before");
    t_assert_error(ch_record_writer_close(w), CH_RESOURCE_EXHAUSTED, "failed before");
    assert_int_not_equal(access(t_path("unencoded"), F_OK), 0);
    ch_example_free(e);
    (void)state;
}

static void record_writer_leaves_no_file_when_a_call_or_allocation_fails(void **state)
{
    int64_t live = ch__mem_live(), calls = ch__file_calls(), allocs = ch__mem_allocs();

    assert_int_equal(write_records("f", NULL), CH_OK);
    calls = ch__file_calls() - calls;
    allocs = ch__mem_allocs() - allocs;
    int files = t_count_files();
    for (int64_t i = 1; i <= calls + allocs; i++) {
        i <= calls ? ch__file_fail_at(i, EIO) : ch__mem_fail_at(i - calls);
        t_assert_error(write_records("f", NULL),
                       i <= calls ? CH_DATA_LOSS : CH_RESOURCE_EXHAUSTED, "");
        ch__file_fail_at(0, 0);
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
        assert_int_equal(t_count_files(), files);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example_encode_writes_lists_as_protobuf_does),
        cmocka_unit_test(example_encode_writes_every_dtype_to_its_list),
        cmocka_unit_test(example_encode_sorts_features_by_name),
        cmocka_unit_test(example_encode_writes_long_lists),
        cmocka_unit_test(example_set_writes_strided_tensors_in_row_major_order),
        cmocka_unit_test(example_set_rejects_values_that_no_list_holds),
        cmocka_unit_test(example_set_allocates_nothing_the_second_time),
        cmocka_unit_test(example_set_leaves_the_example_unchanged_when_out_of_memory),
        cmocka_unit_test(record_writer_output_is_read_back),
        cmocka_unit_test(record_writer_drop_leaves_no_file),
        cmocka_unit_test(record_writer_leaves_no_file_when_an_example_cannot_be_encoded),
        cmocka_unit_test(record_writer_leaves_no_file_when_a_call_or_allocation_fails),
    };

    if (!t_can_pack())
        return 77;
    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}
