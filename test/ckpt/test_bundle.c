/* test/ckpt/test_bundle.c -- the bytes of checkpoint files, and the results of reading them.
 *
 * Golden bytes come from the description of the format, whose statements the tests cite (G-1,
 * TBF-1). The tests write bundles and their tables, read them back, and read bundles that are
 * damaged, compressed or contradictory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>

#include "ckpt/entry.h"
#include "ckpt/snappy.h"
#include "ckpt/sstable.h"
#include "help.h"

static const ch_ckpt_write_options quick = {.no_sync = true};

static ch_ckpt *open_ok(const char *prefix)
{
    ch_ckpt *c = NULL;

    t_assert_error(ch__ckpt_open(prefix, &c), CH_OK, "");
    return c;
}

static void assert_bytes(const char *path, const void *data, size_t n)
{
    size_t have;
    char  *back = t_read(path, &have);

    assert_int_equal(have, n);
    assert_memory_equal(back, data, n);
    free(back);
}

/* G-1, TBF-1, TBF-3, TBF-4, TBF-9, TBF-11: one tensor */
static void bundle_of_one_tensor_has_the_golden_bytes(void **state)
{
    static const float v[2] = {1, 2};
    static t_bundle    b;
    unsigned char      want[300];
    size_t             n;

    b = (t_bundle){0};
    t_add(&b, "v", CH_F32, ch_shape_of(2), v);
    assert_int_equal(t_write_bundle(&b, t_path("g1"), 1, true, NULL), CH_OK);
    n = t_unhex("0000803f 00000040", want);
    assert_bytes(t_path("g1.data-00000-of-00001"), want, n);
    n = t_unhex("000006 08011a020801 00010f 76 0801 1204 12020802 2808 35 593ce535"
                "00000000 01000000 00 30559358 00000000 01000000 00 c0f2a1b0 000102 77 0024"
                "00000000 01000000 00 9460b2cd 2908 360e",
                want);
    memset(want + n, 0, 36);
    n += 36;
    n += t_unhex("57fb808b247547db", want + n);
    assert_int_equal(n, 121);
    assert_bytes(t_path("g1.index"), want, n);
    (void)state;
}

/* G-2, TBF-17, TBF-18, TBF-19: a tensor in two slices */
static void bundle_of_two_slices_has_the_golden_bytes(void **state)
{
    static const float w[4] = {1, 2, 3, 4};
    static t_bundle    b;
    unsigned char      want[300];
    float              back[4];
    size_t             n;
    ch_ckpt           *c;

    b = (t_bundle){0};
    t_add_slice(&b, "w", CH_F32, ch_shape_of(4), t_range(0, 2), w);
    t_add_slice(&b, "w", CH_F32, ch_shape_of(4), t_range(2, 2), w + 2);
    assert_int_equal(t_write_bundle(&b, t_path("g2"), 1, true, NULL), CH_OK);
    assert_bytes(t_path("g2.data-00000-of-00001"), w, 16);
    n = t_unhex("00000608011a02080100080f00770001010180820801120412020802280835593ce535060211"
                "828208011204120208022008280835620a976b0001167708011204120208043a040a0210023a"
                "060a0408021002000000000100000000c7d2661a000000000100000000c0f2a1b00001027800"
                "5b000000000100000000c24dcf0960086d0e",
                want);
    memset(want + n, 0, 36);
    n += 36;
    n += t_unhex("57fb808b247547db", want + n);
    assert_int_equal(n, 176);
    assert_bytes(t_path("g2.index"), want, n);
    c = open_ok(t_path("g2"));
    assert_int_equal(ch__ckpt_read(c, "w", NULL, back), CH_OK);
    assert_memory_equal(back, w, 16);
    ch__ckpt_close(c);
    (void)state;
}

/* G-3, TBF-15: TensorFlow's fixture old_string_tensors/foo. We do not have the file, so the test
 * writes its tensors, whose values TensorFlow's tensor_bundle_test.cc states. It compares the
 * numbers that G-3 gives: the keys, the size of the index, its three handles, and offset, size
 * and checksum of "floats". */
static void bundle_with_strings_has_the_numbers_of_the_fixture(void **state)
{
    static char      many[1024];
    const ch_str     empty = {"", 0}, hello = {"hello", 5};
    const ch_str     strs[4] = {{"hello", 5}, {"", 0}, {"x01", 3}, {many, 1024}};
    const char      *key[4] = {"floats", "scalar", "string_tensor", "strs"};
    ch_bytes_builder e[3] = {{0}};
    float            floats[6], back[6];
    static t_bundle  b;
    unsigned char    want[10];
    size_t           n;
    char            *index;
    ch_str          *read = NULL;
    ch_ckpt_part     part;
    ch_ckpt         *c;

    memset(many, 'c', sizeof(many));
    for (int i = 0; i < 6; i++)
        floats[i] = 16.18f;
    b = (t_bundle){0};
    t_add_strings(&b, "string_tensor", ch_shape_of(1), &empty, &e[0]);
    t_add_strings(&b, "scalar", ch_shape_of(1), &hello, &e[1]);
    t_add_strings(&b, "strs", ch_shape_of(4), strs, &e[2]);
    t_add(&b, "floats", CH_F32, ch_shape_of(2, 3), floats);
    assert_int_equal(t_write_bundle(&b, t_path("g3"), 1, true, NULL), CH_OK);
    index = t_read(t_path("g3.index"), &n);
    assert_int_equal(n, 211);
    assert_int_equal(t_unhex("8301 08 9001 0e", want), 6); /* (131, 8) and (144, 14) */
    assert_memory_equal(index + n - 48, want, 6);
    assert_int_equal(t_unhex("00 01 02 74 00 7e", want), 6); /* index block: "t", (0, 126) */
    assert_memory_equal(index + 144, want, 6);
    free(index);
    c = open_ok(t_path("g3"));
    assert_int_equal(ch__ckpt_count(c), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ch__ckpt_find(c, key[i]), i);
    ch__ckpt_part(c, 0, 0, &part);
    assert_int_equal(part.offset, 1056);
    assert_int_equal(part.bytes, 24);
    assert_int_equal(part.crc, 0x59889a44u);
    assert_int_equal(ch__ckpt_read(c, "floats", NULL, back), CH_OK);
    assert_memory_equal(back, floats, sizeof(back));
    assert_int_equal(ch__ckpt_read_strings(c, "strs", &read), CH_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(read[i].size, strs[i].size);
        assert_memory_equal(read[i].data, strs[i].data, strs[i].size);
    }
    ch__free(read);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ch__ckpt_verify(c, i), CH_OK);
    t_assert_error(ch__ckpt_read(c, "strs", NULL, back), CH_UNIMPLEMENTED, "strs");
    t_assert_error(ch__ckpt_read_strings(c, "floats", &read), CH_INVALID_ARGUMENT, "floats");
    ch__ckpt_close(c);
    for (int i = 0; i < 3; i++)
        ch__bytes_builder_drop(&e[i]);
    (void)state;
}

/* TBF-15 */
static void strings_are_lengths_checksum_and_bytes(void **state)
{
    const ch_str     a = {"a", 1};
    ch_bytes_builder e = {0};
    uint32_t         crc;

    ch__ckpt_encode_strings(1, &a, &e, &crc);
    assert_int_equal(e.n, 6);
    assert_memory_equal(e.at, "\x01\x1d\x15\x82\x65\x61", 6);
    assert_int_equal(crc, 0x2f051c09u);
    ch__bytes_builder_drop(&e);
    (void)state;
}

/* TBF-11, TBF-14: scalars and tensors without elements */
static void bundle_stores_scalars_and_empty_tensors(void **state)
{
    static t_bundle  b;
    ch_bytes_builder m = {0};
    double           x = 2.5, back = 0;
    ch_ckpt_entry    e;
    ch_ckpt_part     part;
    ch_ckpt         *c;

    b = (t_bundle){0};
    t_add(&b, "scalar", CH_F64, ch_shape_scalar(), &x);
    t_add(&b, "none", CH_F32, ch_shape_of(3, 0, 2), "");
    assert_int_equal(t_write_bundle(&b, t_path("s"), 1, false, &quick), CH_OK);
    b.item[0].offset = b.item[0].bytes = 0;
    b.item[0].crc = 0;
    ch__ckpt_emit_entry(&m, &b.item[0], b.item[0].whole);
    assert_int_equal(m.n, 4);
    assert_memory_equal(m.at, "\x08\x02\x12\x00", 4);
    m.n = 0;
    b.item[1].offset = 0;
    ch__ckpt_emit_entry(&m, &b.item[1], b.item[1].whole);
    assert_memory_equal(m.at, "\x08\x01\x12\x0a\x12\x02\x08\x03\x12\x00\x12\x02\x08\x02\x35",
                        15);
    ch__bytes_builder_drop(&m);
    c = open_ok(t_path("s"));
    ch__ckpt_entry(c, 0, &e);
    assert_string_equal(e.name, "none");
    assert_true(ch_shape_equal(e.shape, ch_shape_of(3, 0, 2)));
    ch__ckpt_part(c, 0, 0, &part);
    assert_int_equal(part.bytes, 0);
    assert_int_equal(part.crc, 0xa282ead8u);
    assert_int_equal(ch__ckpt_read(c, "none", NULL, NULL), CH_OK);
    assert_int_equal(ch__ckpt_verify(c, 0), CH_OK);
    assert_int_equal(ch__ckpt_read(c, "scalar", NULL, &back), CH_OK);
    assert_true(back == 2.5);
    ch__ckpt_close(c);
    (void)state;
}

/* TBF-12 */
static void dtypes_have_the_numbers_of_tensorflow(void **state)
{
    static const int numbers[CH_DTYPE_COUNT] = {
        [CH_F32] = 1,  [CH_F64] = 2,  [CH_I32] = 3,  [CH_U8] = 4,    [CH_I16] = 5,
        [CH_I8] = 6,   [CH_STR] = 7,  [CH_I64] = 9,  [CH_BOOL] = 10, [CH_BF16] = 14,
        [CH_U16] = 17, [CH_F16] = 19, [CH_U32] = 22, [CH_U64] = 23};

    for (int t = 0; t < CH_DTYPE_COUNT; t++) {
        assert_int_equal(ch__ckpt_dtype_number((ch_dtype)t), numbers[t]);
        assert_int_equal(ch__ckpt_dtype_of(numbers[t]), t);
        if (t != CH_STR)
            assert_int_equal(ch__ckpt_dtype_bytes(numbers[t]), ch_dtype_bytes((ch_dtype)t));
    }
    assert_int_equal(ch__ckpt_dtype_of(8), CH_DTYPE_COUNT);
    assert_int_equal(ch__ckpt_dtype_bytes(8), 8);
    assert_int_equal(ch__ckpt_dtype_bytes(18), 16);
    assert_int_equal(ch__ckpt_dtype_bytes(99), 0);
    (void)state;
}

/* TBF-18, TBF-19: keys of slices, and back */
static void slice_keys_encode_numbers_in_order(void **state)
{
    static const int64_t numbers[] = {
        0, 1, 63, 64, 8191, 8192, 0x424242, 1000000007, INT64_C(1) << 40, INT64_MAX};
    ch_bytes_builder key = {0};
    ch_ckpt_extent   back[CH_MAX_RANK];
    char             name[CH_CKPT_MAX_NAME + 1];
    int              rank;
    ch_region        r = t_region(2, (int64_t[]){0, 0}, (int64_t[]){-1, 1});

    ch__ckpt_emit_slice_key(&key, "foo", 2, &r);
    assert_int_equal(key.n, 12);
    assert_memory_equal(key.at, "\x00\x66\x6f\x6f\x00\x01\x01\x02\x80\x7f\x80\x81", 12);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        r = t_range(numbers[i], numbers[i]);
        key.n = 0;
        ch__ckpt_emit_slice_key(&key, "a\xff\x01z", 1, &r);
        assert_null(
            ch__ckpt_parse_slice_key((ch_str){key.at, (size_t)key.n}, name, &rank, back));
        assert_string_equal(name, "a\xff\x01z");
        assert_int_equal(rank, 1);
        assert_int_equal(back[0].begin, numbers[i]);
        assert_int_equal(back[0].size, numbers[i]);
        for (size_t cut = 0; cut < key.n; cut++)
            assert_non_null(
                ch__ckpt_parse_slice_key((ch_str){key.at, (size_t)cut}, name, &rank, back));
    }
    key.n = 0;
    r = t_region(4, (int64_t[]){64, 8192, -2048, 0x424242}, (int64_t[]){0, -1, 63, 0});
    ch__ckpt_emit_slice_key(&key, "", 4, &r);
    assert_memory_equal(key.at + 5,
                        "\xc0\x40\x80\xe0\x20\x00\x7f\x38\x00\xbf\xf0\x42\x42\x42\x80", 15);
    ch__bytes_builder_drop(&key);
    (void)state;
}

/* ---- tables ---- */

typedef struct seen {
    int    n;
    size_t bytes;
} seen;

static ch_status see(void *arg, ch_str key, ch_str value)
{
    seen *s = arg;
    char  want[32];

    if (s->n > 0) {
        snprintf(want, sizeof(want), "key%06d", s->n);
        assert_int_equal(key.size, strlen(want));
        assert_memory_equal(key.data, want, key.size);
    }
    s->n++;
    s->bytes += value.size;
    return CH_OK;
}

static ch_status read_table(const void *data, size_t n, seen *s)
{
    const char *path = t_write("table", data, n);
    int         fd = open(path, O_RDONLY);
    ch_status   rc;

    *s = (seen){0};
    rc = ch__sst_read(fd, (int64_t)n, "table", see, s);
    close(fd);
    return rc;
}

/* TBF-4, TBF-6, TBF-7: a table of several blocks, one of them with a large entry */
static void table_of_many_blocks_reads_back(void **state)
{
    ch_sst_writer w = {0};
    char         *large = calloc(1, 600000), key[32];
    size_t        bytes = 0;
    int           n_blocks = 0;
    seen          s;

    ch__sst_add(&w, (ch_str){"", 0}, "h", 1);
    for (int i = 1; i < 20000; i++) {
        size_t n = i == 9000 ? 600000 : (size_t)(i % 60);

        snprintf(key, sizeof(key), "key%06d", i);
        ch__sst_add(&w, (ch_str){key, strlen(key)}, large, n);
        bytes += n;
    }
    n_blocks = w.index.n_entries;
    ch__sst_end(&w);
    assert_false(w.out.has_failed);
    assert_true(n_blocks >= 4);
    assert_int_equal(read_table(w.out.at, (size_t)w.out.n, &s), CH_OK);
    assert_int_equal(s.n, 20000);
    assert_int_equal(s.bytes, bytes + 1);
    ch__sst_drop(&w);
    free(large);
    (void)state;
}

/* TBF-7 */
static void table_shortens_keys_of_its_index_block(void **state)
{
    static const struct {
        const char *last, *next, *key;
    } cases[] = {{"abc", "abz", "abd"},
                 {"abc", "abd", "abc"},
                 {"ab", "abc", "ab"},
                 {"abc", "b", "abc"},
                 {"ax", "cq", "b"}};
    char *large = calloc(1, 600000);

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        ch_sst_writer w = {0};

        ch__sst_add(&w, (ch_str){cases[i].last, strlen(cases[i].last)}, large, 600000);
        ch__sst_add(&w, (ch_str){cases[i].next, strlen(cases[i].next)}, large, 1);
        assert_int_equal(w.index.last_key.n, strlen(cases[i].key));
        assert_memory_equal(w.index.last_key.at, cases[i].key, strlen(cases[i].key));
        ch__sst_end(&w);
        assert_int_equal(w.ended.n, 1);
        assert_int_equal(w.ended.at[0], cases[i].next[0] + 1);
        ch__sst_drop(&w);
    }
    free(large);
    (void)state;
}

/* TBF-5, TBF-8: damage at any byte is noticed */
static void table_reader_reports_damage_at_any_byte(void **state)
{
    ch_sst_writer w = {0};
    seen          s;
    char         *copy;

    ch__sst_add(&w, (ch_str){"", 0}, "value", 5);
    ch__sst_add(&w, (ch_str){"key000001", 9}, "another", 7);
    ch__sst_end(&w);
    copy = malloc((size_t)w.out.n);
    for (size_t i = 0; i < w.out.n; i++) {
        ch_status rc;

        memcpy(copy, w.out.at, (size_t)w.out.n);
        copy[i] ^= 0x11;
        rc = read_table(copy, (size_t)w.out.n, &s);
        /* The metaindex block, the padding of the footer and the handle of that block are not
         * used. */
        if (rc == CH_OK)
            assert_true(i >= w.out.n - 48 - 14 - 22);
        else
            assert_true(rc == CH_DATA_LOSS || rc == CH_RESOURCE_EXHAUSTED);
    }
    for (size_t cut = 0; cut < w.out.n; cut++)
        t_assert_error(read_table(w.out.at, (size_t)cut, &s), CH_DATA_LOSS, "table");
    copy[0] = 'x';
    free(copy);
    ch__sst_drop(&w);
    (void)state;
}

/* Gives block [0, n) of a table a type, and mends its checksum. */
static void set_type(char *table, int n, int type)
{
    uint32_t crc;

    table[n] = (char)type;
    crc = ch__crc32c_mask(ch__crc32c(0, table, (size_t)n + 1));
    memcpy(table + n + 1, &crc, 4);
}

/* TBF-5: blocks may be compressed with snappy */
static void table_reader_accepts_snappy_and_no_other_compression(void **state)
{
    /* An entry with key "" and 20 times 'v', and a single restart: literal, then a copy. */
    static const unsigned char packed[] = {31, 3 << 2,     0, 0,      20, 'v', 1 | 7 << 2,
                                           1,  1 | 4 << 2, 1, 7 << 2, 0,  0,   0,
                                           0,  1,          0, 0,      0};
    char                       table[200] = {0}, plain[31];
    uint32_t                   size;
    ch_sst_writer              w = {0};
    seen                       s;
    int                        n = sizeof(packed);
    ch_bytes_builder           foot = {0};

    assert_true(ch__snappy_bytes(packed, sizeof(packed), &size));
    assert_int_equal(size, 31);
    assert_true(ch__snappy_decode(packed, sizeof(packed), plain));
    assert_memory_equal(plain, "\0\0\x14vvvvvvvvvvvvvvvvvvvv\0\0\0\0\1\0\0\0", 31);
    for (size_t cut = 0; cut < sizeof(packed); cut++)
        assert_false(ch__snappy_decode(packed, cut, plain));
    memcpy(table, packed, sizeof(packed));
    set_type(table, n, 1);
    n += 5;
    /* The index block: key "x", handle of the data block. */
    memcpy(table + n, (const uint8_t[]){0, 1, 2, 'x', 0}, 5);
    table[n + 5] = sizeof(packed);
    memcpy(table + n + 6, (const uint8_t[]){0, 0, 0, 0, 1, 0, 0, 0}, 8);
    set_type(table + n, 14, 0);
    ch__bytes_builder_varint(&foot, 0);
    ch__bytes_builder_varint(&foot, 0);
    ch__bytes_builder_varint(&foot, (uint64_t)n);
    ch__bytes_builder_varint(&foot, 14);
    n += 14 + 5;
    memcpy(table + n, foot.at, (size_t)foot.n);
    memcpy(table + n + 40, (const uint8_t[]){0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb},
           8);
    n += 48;
    t_assert_error(read_table(table, (size_t)n, &s), CH_OK, "");
    assert_int_equal(s.n, 1);
    assert_int_equal(s.bytes, 20);
    set_type(table, sizeof(packed), 2);
    t_assert_error(read_table(table, (size_t)n, &s), CH_DATA_LOSS, "compression 2");
    set_type(table, sizeof(packed), 1);
    memcpy(table, (const uint8_t[]){0xff, 0xff, 0xff, 0xff, 0x0f}, 5); /* states 4 GiB */
    set_type(table, sizeof(packed), 1);
    t_assert_error(read_table(table, (size_t)n, &s), CH_RESOURCE_EXHAUSTED, "4294967295");
    ch__bytes_builder_drop(&foot);
    ch__sst_drop(&w);
    (void)state;
}

/* TBF-9, TBF-10 */
static void header_version_is_checked(void **state)
{
    static const struct {
        const char *hex;
        ch_status   rc;
    } cases[] = {{"0801 1a02 0801", CH_OK},
                 {"0802 1001 1a02 0801", CH_OK},
                 {"0801", CH_OK},
                 {"0801 1a02 1001", CH_OK},
                 {"0801 1a02 1002", CH_INVALID_ARGUMENT},
                 {"0801 1a0b 08ffffffffffffffffff01", CH_INVALID_ARGUMENT},
                 {"0801 1a02 1801", CH_INVALID_ARGUMENT},
                 {"0801 1a04 1a020501", CH_INVALID_ARGUMENT},
                 {"0801 1a02 1802", CH_OK},
                 {"0801 1002", CH_DATA_LOSS},
                 {"0801 1a", CH_DATA_LOSS},
                 {"08ffffffffffffffffff01", CH_DATA_LOSS},
                 {"08ffffff0f", CH_DATA_LOSS},
                 {"0d00000000", CH_DATA_LOSS}};
    unsigned char bytes[64];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        size_t         n = t_unhex(cases[i].hex, bytes);
        ch_ckpt_header h;
        const char    *problem;

        assert_int_equal(ch__ckpt_parse_header((ch_str){(char *)bytes, n}, &h, &problem),
                         cases[i].rc);
        assert_int_equal(problem == NULL, cases[i].rc == CH_OK);
        if (i == 1)
            assert_true(h.is_big_endian && h.n_files == 2);
    }
    (void)state;
}

/* ---- errors ---- */

/* TBF-24 */
static void bundle_errors_name_file_and_byte(void **state)
{
    static const float v[2] = {1, 2};
    const ch_str       hello = {"hello", 5};
    ch_bytes_builder   e = {0};
    static t_bundle    b;
    float              back[2];
    size_t             n;
    char              *data;
    ch_str            *strings;
    ch_ckpt           *c = NULL;

    b = (t_bundle){0};
    t_add(&b, "v", CH_F32, ch_shape_of(2), v);
    t_add_strings(&b, "z", ch_shape_of(1), &hello, &e);
    t_assert_error(ch__ckpt_open(t_path("absent"), &c), CH_NOT_FOUND, "absent.index", "prefix");
    assert_int_equal(t_write_bundle(&b, t_path("e"), 1, false, &quick), CH_OK);
    c = open_ok(t_path("e"));
    t_assert_error(ch__ckpt_read(c, "x", NULL, back), CH_NOT_FOUND, "\"x\"");
    ch__ckpt_close(c);

    data = t_read(t_path("e.data-00000-of-00001"), &n);
    assert_int_equal(n, 64 + 10);
    data[3] ^= 1;
    data[64 + 1] ^= 1;
    t_write("e.data-00000-of-00001", data, n);
    c = open_ok(t_path("e"));
    t_assert_error(ch__ckpt_read(c, "v", NULL, back), CH_DATA_LOSS, "e.data-00000-of-00001",
                   "Checksum does not match", "at byte 0");
    t_assert_error(ch__ckpt_verify(c, 0), CH_DATA_LOSS, "Checksum does not match");
    t_assert_error(ch__ckpt_read_strings(c, "z", &strings), CH_DATA_LOSS,
                   "length checksum does not match", "at byte 64");
    t_assert_error(ch__ckpt_verify(c, 1), CH_DATA_LOSS, "length checksum");
    ch__ckpt_close(c);
    data[3] ^= 1;
    data[64 + 1] ^= 1;
    data[64 + 7] ^= 1;
    t_write("e.data-00000-of-00001", data, n);
    c = open_ok(t_path("e"));
    t_assert_error(ch__ckpt_read_strings(c, "z", &strings), CH_DATA_LOSS,
                   "Checksum does not match");
    assert_int_equal(ch__ckpt_verify(c, 0), CH_OK);
    assert_int_equal(truncate(t_path("e.data-00000-of-00001"), 3), 0); /* while it is open */
    t_assert_error(ch__ckpt_read(c, "v", NULL, back), CH_OUT_OF_RANGE, "truncated");
    ch__ckpt_close(c);
    t_assert_error(ch__ckpt_open(t_path("e"), &c), CH_OUT_OF_RANGE, "truncated", "3 bytes");
    unlink(t_path("e.data-00000-of-00001"));
    t_assert_error(ch__ckpt_open(t_path("e"), &c), CH_NOT_FOUND, "e.data-00000-of-00001");
    t_add(&b, "v", CH_F32, ch_shape_of(2), v);
    t_assert_error(t_write_bundle(&b, t_path("e"), 1, false, &quick), CH_INVALID_ARGUMENT,
                   "two tensors", "\"v\"");
    ch__bytes_builder_drop(&e);
    free(data);
    (void)state;
}

/* Opens an index with a single entry, whose value is given in hexadecimal digits. `slices` are
 * pairs of key and value before that entry. */
static ch_status open_entry(const char *const *slices, const char *value)
{
    ch_sst_writer w = {0};
    unsigned char bytes[256], key[64];
    ch_ckpt      *c = NULL;
    ch_status     rc;

    ch__sst_add(&w, (ch_str){"", 0}, "\x08\x01\x1a\x02\x08\x01", 6);
    for (; slices != NULL && *slices != NULL; slices += 2) {
        size_t n_key = t_unhex(slices[0], key), n = t_unhex(slices[1], bytes);

        ch__sst_add(&w, (ch_str){(char *)key, n_key}, bytes, n);
    }
    ch__sst_add(&w, (ch_str){"w", 1}, bytes, t_unhex(value, bytes));
    ch__sst_end(&w);
    t_write("x.index", w.out.at, (size_t)w.out.n);
    t_write("x.data-00000-of-00001", "0123456789abcdef", 16);
    ch__sst_drop(&w);
    rc = ch__ckpt_open(t_path("x"), &c);
    ch__ckpt_close(c);
    return rc;
}

/* TBF-22, TBF-24: entries that contradict themselves */
static void bundle_reader_rejects_entries_that_contradict_themselves(void **state)
{
    /* w in slices [0, 2) and [2, 4) as in G-2, and variants of it */
    static const char *const good[] = {"0077000101018082", "0801120412020802 2808",
                                       "0077000101018282", "0801120412020802 2008 2808", NULL};
    static const char *const shape[] = {"0077000101018082", "0801120412020803 280c",
                                        "0077000101018282", "0801120412020802 2008 2808", NULL};
    static const char *const type[] = {"0077000101018082", "0803120412020802 2808",
                                       "0077000101018282", "0801120412020802 2008 2808", NULL};
    static const char *const overlap[] = {"0077000101018082", "0801120412020802 2808",
                                          "0077000101018182", "0801120412020802 2008 2808",
                                          NULL};
    const char              *whole = "0801 1204 12020804 3a04 0a021002 3a06 0a0408021002";

    assert_int_equal(open_entry(NULL, "0801 1204 12020804 2810"), CH_OK);
    t_assert_error(open_entry(NULL, "0801 1204 12020804 2811"), CH_DATA_LOSS, "size");
    t_assert_error(open_entry(NULL, "0801 1204 12020804 2810 1801"), CH_DATA_LOSS, "data file");
    t_assert_error(open_entry(NULL, "0801 1204 12020804 2810 2001"), CH_OUT_OF_RANGE,
                   "16 bytes");
    t_assert_error(open_entry(NULL, "0801 1204 12020804 2810 20ffffffffffffffffff01"),
                   CH_DATA_LOSS, "offset");
    t_assert_error(open_entry(NULL, "0801 1204 12020804 2810 20ffffffffffffffff7f"),
                   CH_DATA_LOSS, "offset");
    t_assert_error(open_entry(NULL, "1204 12020804 2810"), CH_DATA_LOSS, "dtype");
    t_assert_error(open_entry(NULL, "0801 120d 120b08ffffffffffffffffff01"), CH_DATA_LOSS,
                   "negative size");
    t_assert_error(open_entry(NULL, "0801 1212 1200 1200 1200 1200 1200 1200 1200 1200 1200"),
                   CH_DATA_LOSS, "8 axes");
    t_assert_error(open_entry(NULL, "0801 1216 120908ffffffffffffff7f 120908ffffffffffffff7f"),
                   CH_DATA_LOSS, "overflow");
    t_assert_error(open_entry(NULL, "0801 1202 1801"), CH_DATA_LOSS, "unknown rank");
    t_assert_error(open_entry(NULL, "0801 12"), CH_DATA_LOSS, "");
    assert_int_equal(open_entry(good, whole), CH_OK);
    t_assert_error(open_entry(shape, whole), CH_DATA_LOSS, "Stored slice shape");
    t_assert_error(open_entry(type, whole), CH_DATA_LOSS, "dtype");
    /* TBF-21: slices may not overlap */
    t_assert_error(open_entry(overlap, "0801 1204 12020804 3a04 0a021002 3a06 0a0408011002"),
                   CH_INTERNAL, "overlap");
    t_assert_error(open_entry(good, "0801 1204 12020803 3a04 0a021002 3a06 0a0408021002"),
                   CH_DATA_LOSS, "Stored slice shape");
    t_assert_error(open_entry(good, "0801 1204 12020804 3a04 0a021002"), CH_DATA_LOSS,
                   "not list all");
    t_assert_error(open_entry(good, "0801 1204 12020804 3a04 0a021002 3a04 0a021002"),
                   CH_DATA_LOSS, "twice");
    t_assert_error(open_entry(good, "0801 1204 12020804 3a04 0a021002 3a06 0a0408031002"),
                   CH_DATA_LOSS, "not stored");
    t_assert_error(open_entry(good, "0801 1204 12020804 3a04 0a021002 3a00"), CH_DATA_LOSS,
                   "fewer axes");
    t_assert_error(open_entry(good, "0801 1204 12020804 3a08 0a021002 0a021002"), CH_DATA_LOSS,
                   "more axes");
    (void)state;
}

/* TBF-20, TBF-21: a whole axis and its explicit extent are equal when read */
static void slice_of_a_whole_axis_equals_its_explicit_extent(void **state)
{
    static const char *const full[] = {
        "00770001010280 7f 80 81", "0801120812020802 12020801 2808", "00770001010280 7f 81 81",
        "0801120812020802 12020801 2008 2808", NULL};

    assert_int_equal(open_entry(full, "0801 1208 12020802 12020802 3a06 0a00 0a021001"
                                      "3a08 0a00 0a0408011001"),
                     CH_OK);
    (void)state;
}

/* TBF-20: a slice of everything is an ordinary tensor */
static void slice_of_everything_is_stored_whole(void **state)
{
    static const float v[2] = {1, 2};
    static t_bundle    b;
    ch_ckpt_entry      e;
    ch_ckpt           *c;

    b = (t_bundle){0};
    t_add_slice(&b, "v", CH_F32, ch_shape_of(2), t_range(0, 2), v);
    assert_int_equal(t_write_bundle(&b, t_path("a"), 1, false, &quick), CH_OK);
    c = open_ok(t_path("a"));
    ch__ckpt_entry(c, 0, &e);
    assert_true(e.is_whole);
    ch__ckpt_close(c);
    (void)state;
}

/* TBF-21 */
static void bundle_read_fails_when_slices_do_not_cover_the_region(void **state)
{
    static const float v[4] = {1, 2, 3, 4};
    static t_bundle    b;
    float              back[6];
    ch_region          r;
    ch_ckpt           *c;

    b = (t_bundle){0};
    t_add_slice(&b, "v", CH_F32, ch_shape_of(6), t_range(0, 2), v);
    t_add_slice(&b, "v", CH_F32, ch_shape_of(6), t_range(4, 2), v + 2);
    assert_int_equal(t_write_bundle(&b, t_path("a"), 1, false, &quick), CH_OK);
    c = open_ok(t_path("a"));
    t_assert_error(ch__ckpt_read(c, "v", NULL, back), CH_INVALID_ARGUMENT, "sufficient slices");
    r = t_range(1, 2);
    t_assert_error(ch__ckpt_read(c, "v", &r, back), CH_INVALID_ARGUMENT, "sufficient slices");
    r = t_range(4, 2);
    assert_int_equal(ch__ckpt_read(c, "v", &r, back), CH_OK);
    assert_true(back[0] == 3 && back[1] == 4);
    r = t_range(5, 2);
    t_assert_error(ch__ckpt_read(c, "v", &r, back), CH_INVALID_ARGUMENT, "does not fit");
    ch__ckpt_close(c);
    (void)state;
}

/* TBF-25 */
static void bundle_reader_swaps_bytes_of_the_other_byte_order(void **state)
{
    static const unsigned char data[] = {0x3f, 0x80, 0, 0, 0x40, 0, 0, 0};
    static t_bundle            b;
    ch_sst_writer              w = {0};
    ch_bytes_builder           value = {0};
    float                      back[2];
    ch_ckpt                   *c;

    b = (t_bundle){0};
    t_add(&b, "v", CH_F32, ch_shape_of(2), data);
    assert_int_equal(t_write_bundle(&b, t_path("big"), 1, false, &quick), CH_OK);
    ch__ckpt_emit_entry(&value, &b.item[0], b.item[0].whole);
    ch__sst_add(&w, (ch_str){"", 0}, "\x08\x01\x10\x01\x1a\x02\x08\x01", 8);
    ch__sst_add(&w, (ch_str){"v", 1}, value.at, (size_t)value.n);
    ch__sst_end(&w);
    t_write("big.index", w.out.at, (size_t)w.out.n);
    c = open_ok(t_path("big"));
    assert_int_equal(ch__ckpt_read(c, "v", NULL, back), CH_OK);
    assert_true(back[0] == 1 && back[1] == 2);
    ch__ckpt_close(c);
    ch__sst_drop(&w);
    ch__bytes_builder_drop(&value);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundle_of_one_tensor_has_the_golden_bytes),
        cmocka_unit_test(bundle_of_two_slices_has_the_golden_bytes),
        cmocka_unit_test(bundle_with_strings_has_the_numbers_of_the_fixture),
        cmocka_unit_test(strings_are_lengths_checksum_and_bytes),
        cmocka_unit_test(bundle_stores_scalars_and_empty_tensors),
        cmocka_unit_test(dtypes_have_the_numbers_of_tensorflow),
        cmocka_unit_test(slice_keys_encode_numbers_in_order),
        cmocka_unit_test(table_of_many_blocks_reads_back),
        cmocka_unit_test(table_shortens_keys_of_its_index_block),
        cmocka_unit_test(table_reader_reports_damage_at_any_byte),
        cmocka_unit_test(table_reader_accepts_snappy_and_no_other_compression),
        cmocka_unit_test(header_version_is_checked),
        cmocka_unit_test(bundle_errors_name_file_and_byte),
        cmocka_unit_test(bundle_reader_rejects_entries_that_contradict_themselves),
        cmocka_unit_test(slice_of_a_whole_axis_equals_its_explicit_extent),
        cmocka_unit_test(slice_of_everything_is_stored_whole),
        cmocka_unit_test(bundle_read_fails_when_slices_do_not_cover_the_region),
        cmocka_unit_test(bundle_reader_swaps_bytes_of_the_other_byte_order),
    };

    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}
