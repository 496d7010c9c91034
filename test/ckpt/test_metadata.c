/* test/ckpt/test_metadata.c -- the metadata of checkpoints, against protobuf-c; and open
 * checkpoints whose files do not match it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>

#include "checkpoint.pb-c.h"
#include "ckpt/metadata.h"
#include "help.h"

static const ch_ckpt_write_options quick = {.no_sync = true};

static uint64_t dice = 1;

static int64_t roll(int64_t n)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(dice >> 33) % n;
}

enum { MOST_FILES = 9 };

static ch_ckpt_metadata some_metadata(int64_t *file_bytes)
{
    ch_ckpt_metadata m = {.step = roll(1000) - 1, .n_files = 1 + (int)roll(MOST_FILES)};

    assert_int_equal(ch__ckpt_metadata_init(&m), CH_OK);
    assert_true(m.id != 0 && m.format == CH_CKPT_FORMAT && m.time > 1600000000000000);
    for (int i = 0; i < m.n_files; i++)
        file_bytes[i] = roll(2) == 0 ? roll(100) : roll(1 << 30) << 20;
    m.file_bytes = file_bytes;
    if (roll(2) == 0) {
        m.base_id = m.id + 1;
        m.base = roll(2) == 0 ? "ckpt-7" : "a";
    }
    return m;
}

/* Returns the message in the bytes of a string scalar. */
static ch_str message_in(const ch_bytes_builder *item)
{
    size_t n = (unsigned char)item->at[0], head = 1;

    if (n >= 0x80) {
        n = (n & 0x7f) | (size_t)(unsigned char)item->at[1] << 7;
        head = 2;
    }
    assert_int_equal(item->n, head + 4 + n);
    return (ch_str){item->at + head + 4, n};
}

static void assert_same(const ch_ckpt_metadata *a, const ch_ckpt_metadata *b)
{
    assert_true(a->format == b->format && a->id == b->id && a->time == b->time);
    assert_true(a->step == b->step && a->n_files == b->n_files && a->base_id == b->base_id);
    assert_memory_equal(a->file_bytes, b->file_bytes, (size_t)a->n_files * sizeof(int64_t));
    assert_true((a->base == NULL) == (b->base == NULL));
    if (a->base != NULL)
        assert_string_equal(a->base, b->base);
}

static void metadata_has_the_bytes_of_protobuf(void **state)
{
    for (int round = 0; round < 300; round++) {
        int64_t          file_bytes[MOST_FILES], zeros[MOST_FILES] = {0};
        uint64_t         files[MOST_FILES];
        ch_ckpt_metadata m = some_metadata(file_bytes), back;
        ch_bytes_builder item = {0}, other = {0};
        uint8_t          packed[256];
        char             base[16] = "";
        uint32_t         crc;
        size_t           n;

        assert_int_equal(ch__ckpt_metadata_encode(&m, &item, &crc), CH_OK);
        ch_str message = message_in(&item);

        Cohort__Checkpoint x;
        cohort__checkpoint__init(&x);
        x.format = (uint32_t)m.format;
        x.id = m.id;
        x.time = m.time;
        x.step = m.step;
        x.n_file_bytes = (size_t)m.n_files;
        x.file_bytes = files;
        for (int i = 0; i < m.n_files; i++)
            files[i] = (uint64_t)file_bytes[i];
        x.base_id = m.base_id;
        if (m.base != NULL)
            snprintf(base, sizeof(base), "%s", m.base);
        x.base_name = base;
        n = cohort__checkpoint__pack(&x, packed);
        assert_int_equal(ch__ckpt_metadata_decode((ch_str){(char *)packed, n}, &back), CH_OK);
        assert_same(&m, &back);
        ch__free(back.memory);

        Cohort__Checkpoint *y =
            cohort__checkpoint__unpack(NULL, message.size, (const uint8_t *)message.data);
        assert_non_null(y);
        assert_true(y->id == m.id && y->step == m.step && y->time == m.time);
        assert_int_equal(y->n_file_bytes, m.n_files);
        assert_memory_equal(y->file_bytes, file_bytes, (size_t)m.n_files * 8);
        assert_string_equal(y->base_name, m.base != NULL ? m.base : "");
        cohort__checkpoint__free_unpacked(y, NULL);

        assert_int_equal(ch__ckpt_metadata_decode(message, &back), CH_OK);
        assert_same(&m, &back);
        ch__free(back.memory);

        m.file_bytes = zeros; /* the sizes of files do not change the size of the item */
        assert_int_equal(ch__ckpt_metadata_encode(&m, &other, &crc), CH_OK);
        assert_int_equal(item.n, other.n);
        ch__bytes_builder_drop(&item);
        ch__bytes_builder_drop(&other);
    }
    (void)state;
}

static void metadata_of_the_last_three_formats_is_readable(void **state)
{
    ch_ckpt_metadata m;

    for (int i = 0; i < 3; i++)
        assert_true(ch__ckpt_format_is_readable(CH_CKPT_FORMAT - (uint64_t)i) ==
                    (CH_CKPT_FORMAT - i > 0));
    assert_false(ch__ckpt_format_is_readable(0));
    assert_false(ch__ckpt_format_is_readable(CH_CKPT_FORMAT + 1));
    /* format 99, and fields that this version does not know */
    t_assert_error(ch__ckpt_metadata_decode((ch_str){"\x08\x63\x78\x01", 4}, &m),
                   CH_UNIMPLEMENTED, "format 99", "formats 1 to 1", "newer");
    (void)state;
}

static void metadata_decoder_rejects_damaged_messages(void **state)
{
#define ID "\x11\x01\0\0\0\0\0\0\0"
    static const struct {
        const char *bytes;
        size_t      n;
        const char *problem;
    } bad[] = {
#define MESSAGE(text) text, sizeof(text) - 1
        {MESSAGE(""), "no format"},
        {MESSAGE(ID), "no format"},
        {MESSAGE("\x08\x01"), "no id"},
        {MESSAGE("\x08\x01\x10\x01"), "wrong type at byte 3"},
        {MESSAGE("\x0d\x01\0\0\0"), "wrong type"},
        {MESSAGE("\x08\x01" ID "\x20\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "invalid step"},
        {MESSAGE("\x08\x01" ID "\x2a\x07\0\0\0\0\0\0\0"), "wrong type"},
        {MESSAGE("\x08\x01" ID "\x29\0\0\0\0\0\0\0\x80"), "size of a data file"},
        {MESSAGE("\x08\x01" ID "\x31\x02\0\0\0\0\0\0\0"), "no name or no id"},
        {MESSAGE("\x08\x01" ID "\x3a\x01"
                 "a"),
         "no name or no id"},
        {MESSAGE("\x08\x01" ID "\x31\x02\0\0\0\0\0\0\0\x3a\x03"
                 "a/b"),
         "leads out"},
        {MESSAGE("\x08\x01" ID "\x31\x02\0\0\0\0\0\0\0\x3a\x02"
                 ".."),
         "leads out"},
        {MESSAGE("\x08\x01" ID "\x31\x02\0\0\0\0\0\0\0\x3a\x02"
                 "a\0"),
         "invalid text"},
        {MESSAGE("\x08\x01" ID "\x31\x01\0\0\0\0\0\0\0\x3a\x01"
                 "a"),
         "its own base"},
        {MESSAGE("\x08\x01" ID "\x3a\x05"
                 "a"),
         "longer than the rest"},
    };
    ch_ckpt_metadata m;

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        t_assert_error(ch__ckpt_metadata_decode((ch_str){bad[i].bytes, bad[i].n}, &m),
                       CH_DATA_LOSS, bad[i].problem);
    (void)state;
}

static void metadata_encoder_rejects_invalid_values(void **state)
{
    int64_t          file_bytes[MOST_FILES];
    ch_ckpt_metadata m = some_metadata(file_bytes);
    ch_bytes_builder item = {0};
    uint32_t         crc;

    m.base_id = 3;
    m.base = "run/ckpt-1";
    t_assert_error(ch__ckpt_metadata_encode(&m, &item, &crc), CH_INVALID_ARGUMENT, "leads out");
    (void)state;
}

static void metadata_returns_an_error_when_memory_is_exhausted(void **state)
{
    int64_t          file_bytes[MOST_FILES] = {7}, live = ch__mem_live();
    ch_ckpt_metadata m = {.n_files = 1, .file_bytes = file_bytes}, back;
    bool             done = false;

    assert_int_equal(ch__ckpt_metadata_init(&m), CH_OK);
    for (int64_t n = 1; !done; n++) {
        ch_bytes_builder item = {0};
        uint32_t         crc;
        ch_status        rc;

        ch__mem_fail_at(n);
        rc = ch__ckpt_metadata_encode(&m, &item, &crc);
        if (rc == CH_OK)
            rc = ch__ckpt_metadata_decode(message_in(&item), &back);
        ch__mem_fail_at(0);
        done = rc == CH_OK;
        if (done)
            ch__free(back.memory);
        else
            assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
        ch__bytes_builder_drop(&item);
    }
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

/* ---- open checkpoints ---- */

static void write_one(const char *prefix, uint64_t id)
{
    static const float x[3] = {1, 2, 3};
    static t_bundle    b;
    ch_ckpt_metadata   m = {.step = 42};

    b = (t_bundle){0};
    assert_int_equal(ch__ckpt_metadata_init(&m), CH_OK);
    m.id = id;
    t_add(&b, "x", CH_F32, ch_shape_of(3), x);
    assert_int_equal(t_write_checkpoint(&b, prefix, &m, &quick), CH_OK);
}

static void checkpoint_has_the_metadata_of_its_save(void **state)
{
    ch_ckpt                *c = NULL;
    const ch_ckpt_metadata *m;

    write_one(t_path("m"), 99);
    assert_int_equal(ch__ckpt_open(t_path("m"), &c), CH_OK);
    m = ch__ckpt_metadata(c);
    assert_non_null(m);
    assert_true(m->id == 99 && m->step == 42 && m->base == NULL && ch__ckpt_base(c) == NULL);
    assert_int_equal(m->file_bytes[0], ch__ckpt_file_bytes(c, 0));
    assert_true(ch__ckpt_index_bytes(c) > 100);
    ch__ckpt_close(c);
    (void)state;
}

static void metadata_of_a_delta_is_read_without_its_base(void **state)
{
    static t_bundle  b;
    ch_ckpt_metadata m = {.format = 1, .id = 5, .step = 3, .base_id = 4, .base = "lost"}, back;

    b = (t_bundle){0};
    t_add(&b, "x", CH_F32, ch_shape_of(1), "abcd");
    assert_int_equal(t_write_checkpoint(&b, t_path("d"), &m, &quick), CH_OK);
    assert_int_equal(ch__ckpt_load_metadata(t_path("d"), &back), CH_OK);
    assert_true(back.id == 5 && back.base_id == 4);
    assert_string_equal(back.base, "lost");
    ch__free(back.memory);
    b = (t_bundle){0};
    t_add(&b, "x", CH_F32, ch_shape_of(1), "abcd");
    assert_int_equal(t_write_bundle(&b, t_path("tf"), 1, true, &quick), CH_OK);
    assert_int_equal(ch__ckpt_load_metadata(t_path("tf"), &back), CH_OK);
    assert_true(back.id == 0 && back.memory == NULL);
    assert_int_equal(ch__ckpt_load_metadata(t_path("nowhere"), &back), CH_NOT_FOUND);
    (void)state;
}

static void checkpoint_open_rejects_a_data_file_of_another_size(void **state)
{
    ch_ckpt *c = NULL;

    write_one(t_path("m"), 99);
    FILE *f = fopen(t_path("m.data-00000-of-00001"), "ab");
    fputc(0, f);
    fclose(f);
    t_assert_error(ch__ckpt_open(t_path("m"), &c), CH_DATA_LOSS, "m.data-00000-of-00001",
                   "from another save");
    (void)state;
}

static void checkpoint_open_rejects_metadata_that_is_no_message(void **state)
{
    static t_bundle  b;
    ch_bytes_builder text = {0};
    ch_str           word[2] = {{"\x08\x01", 2}, {"", 0}};
    ch_ckpt         *c = NULL;

    b = (t_bundle){0};
    t_add(&b, CH_CKPT_METADATA_KEY, CH_F32, ch_shape_of(1), "abcd");
    assert_int_equal(t_write_bundle(&b, t_path("n"), 1, true, &quick), CH_OK);
    t_assert_error(ch__ckpt_open(t_path("n"), &c), CH_INVALID_ARGUMENT, "_COHORT");
    for (int n = 1; n <= 2; n++) {
        b = (t_bundle){0};
        ch__bytes_builder_clear(&text);
        t_add_strings(&b, CH_CKPT_METADATA_KEY, ch_shape_of(n), word, &text);
        assert_int_equal(t_write_bundle(&b, t_path("n"), 1, true, &quick), CH_OK);
        t_assert_error(ch__ckpt_open(t_path("n"), &c), CH_DATA_LOSS,
                       "/n: ", n == 1 ? "no id" : "not a string");
    }
    ch__bytes_builder_drop(&text);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_has_the_bytes_of_protobuf),
        cmocka_unit_test(metadata_of_the_last_three_formats_is_readable),
        cmocka_unit_test(metadata_decoder_rejects_damaged_messages),
        cmocka_unit_test(metadata_encoder_rejects_invalid_values),
        cmocka_unit_test(metadata_returns_an_error_when_memory_is_exhausted),
        cmocka_unit_test(checkpoint_has_the_metadata_of_its_save),
        cmocka_unit_test(metadata_of_a_delta_is_read_without_its_base),
        cmocka_unit_test(checkpoint_open_rejects_a_data_file_of_another_size),
        cmocka_unit_test(checkpoint_open_rejects_metadata_that_is_no_message),
    };

    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}
