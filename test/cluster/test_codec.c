/* test/cluster/test_codec.c -- clusters as bytes of the protobuf message ClusterDef.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static void cluster_encode_writes_the_bytes_of_a_cluster_def(void **state) /* CS-4, CS-9 */
{
    /* job { name: "ps" tasks { 0: "p:1" } } job { name: "worker" tasks { 1: "a" } tasks { 2: "b" } } */
    static const unsigned char want[] = {
        0x0a, 11,   0x0a, 2,   'p',  's', 0x12, 5,   0x12, 3,   'p',  ':', '1',
        0x0a, 22,   0x0a, 6,   'w',  'o', 'r',  'k', 'e',  'r', 0x12, 5,   0x08,
        1,    0x12, 1,    'a', 0x12, 5,   0x08, 2,   0x12, 1,   'b'};
    ch_cluster *c = t_cluster("{\"worker\": {\"2\": \"b\", \"1\": \"a\"}, \"ps\": [\"p:1\"]}");
    void       *bytes = NULL;
    size_t      n = 0;

    t_ok(ch_cluster_encode(c, &bytes, &n));
    assert_int_equal(n, sizeof(want));
    assert_memory_equal(bytes, want, n);
    ch_bytes_free(bytes);
    ch_cluster_unref(c);
    (void)state;
}

static void cluster_encode_gives_equal_bytes_for_equal_clusters(void **state) /* CS-4 */
{
    ch_cluster *c = t_cluster("{\"b\": [\"x:1\"], \"a\": []}");
    ch_cluster *d = t_cluster("{\"a\": {}, \"b\": {\"0\": \"x:1\"}}");
    void       *x = NULL, *y = NULL;
    size_t      n = 0, m = 0;

    t_ok(ch_cluster_encode(c, &x, &n));
    t_ok(ch_cluster_encode(d, &y, &m));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    ch_bytes_free(x);
    ch_bytes_free(y);
    ch_cluster_unref(c);
    ch_cluster_unref(d);
    (void)state;
}

/* Unknown fields are ignored, because a later version may add fields. */
static void cluster_decode_ignores_unknown_fields(void **state)
{
    static const unsigned char bytes[] = {0x0a, 3, 0x0a, 1, 'a', 0x78, 5};
    ch_cluster                *c = NULL;

    t_ok(ch_cluster_decode(bytes, sizeof(bytes), &c));
    t_prints(c, "{\"a\": {}}");
    ch_cluster_unref(c);
    c = NULL;
    t_ok(ch_cluster_decode(NULL, 0, &c));
    t_prints(c, "{}");
    ch_cluster_unref(c);
    (void)state;
}

static void cluster_decode_rejects_malformed_bytes(void **state)
{
    static const struct {
        const char *bytes;
        size_t      n;
        ch_status   rc;
        const char *words;
    } bad[] = {
        {"\x0a", 1, CH_INVALID_ARGUMENT, "not a ClusterDef message"},
        {"\x0a\x03\x0a\x01", 4, CH_INVALID_ARGUMENT, "not a ClusterDef message"},
        {"\x0a\x00", 2, CH_INVALID_ARGUMENT, "no name"},
        {"\x0a\x03\x0a\x01 ", 5, CH_INVALID_ARGUMENT, "blank"},
        {"\x0a\x03\x0a\x01"
         "a\x0a\x03\x0a\x01"
         "a",
         10, CH_ALREADY_EXISTS, "job \"a\" is listed twice"},
        {"\x0a\x07\x0a\x01"
         "a\x12\x00\x12\x00",
         9, CH_ALREADY_EXISTS, "task 0 of job \"a\""},
        {"\x0a\x10\x0a\x01"
         "a\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
         18, CH_INVALID_ARGUMENT, "task -1"},
    };
    ch_cluster *c = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        t_refused(ch_cluster_decode(bad[i].bytes, bad[i].n, &c), bad[i].rc, bad[i].words);
        t_refused(ch_cluster_decode(bad[i].bytes, bad[i].n, &c), bad[i].rc,
                  "decoding a cluster");
    }
    assert_null(c);
    (void)state;
}

/* Two bytes of a message create a task of fifty bytes, so the decoder must limit the memory. */
static void cluster_decode_takes_bounded_memory(void **state)
{
    size_t         n = (size_t)4 << 20, body = n - 5;
    unsigned char *bytes = malloc(n);
    ch_cluster    *c = NULL;
    int64_t        live = ch__mem_live();

    bytes[0] = 0x0a;
    for (int i = 0; i < 4; i++)
        bytes[1 + i] = (unsigned char)((body >> 7 * i & 127) | (i < 3 ? 128 : 0));
    for (size_t i = 5; i + 1 < n; i += 2) {
        bytes[i] = 0x12;
        bytes[i + 1] = 0;
    }
    bytes[n - 1] = 0;
    ch__mem_watch(true);
    assert_int_not_equal(ch_cluster_decode(bytes, n, &c), CH_OK);
    assert_true(ch__mem_peak() <= (int64_t)((size_t)17 << 20) + 2 * (int64_t)n);
    ch__mem_watch(false);
    assert_int_equal(ch__mem_live(), live);
    free(bytes);
    (void)state;
}

static void cluster_decode_rejects_too_many_jobs(void **state)
{
    static unsigned char bytes[2 * (CH_CLUSTER_JOBS + 1)];
    ch_cluster          *c = NULL;

    for (size_t i = 0; i < sizeof(bytes); i += 2)
        bytes[i] = 0x0a;
    t_refused(ch_cluster_decode(bytes, sizeof(bytes), &c), CH_RESOURCE_EXHAUSTED, "257 jobs");
    assert_null(c);
    (void)state;
}

static void cluster_codec_rejects_null_arguments(void **state)
{
    ch_cluster *c = NULL;
    void       *bytes;
    size_t      n;

    t_refused(ch_cluster_encode(NULL, &bytes, &n), CH_INVALID_ARGUMENT, "the cluster");
    t_refused(ch_cluster_decode(NULL, 3, &c), CH_INVALID_ARGUMENT, "bytes");
    t_refused(ch_cluster_decode("", 0, NULL), CH_INVALID_ARGUMENT, "out");
    (void)state;
}

static ch_status there_and_back(void *arg)
{
    ch_cluster *c = NULL;
    void       *bytes = NULL;
    size_t      n = 0;
    ch_status   rc = ch_cluster_encode(arg, &bytes, &n);

    if (rc == CH_OK)
        rc = ch_cluster_decode(bytes, n, &c);
    ch_bytes_free(bytes);
    ch_cluster_unref(c);
    return rc;
}

static void cluster_codec_leaks_nothing_when_out_of_memory(void **state)
{
    ch_cluster *c = t_cluster("{\"worker\": [\"a:1\", \"b:1\"], \"ps\": {\"3\": \"c:1\"}}");

    t_out_of_memory(there_and_back, c);
    ch_cluster_unref(c);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cluster_encode_writes_the_bytes_of_a_cluster_def),
        cmocka_unit_test(cluster_encode_gives_equal_bytes_for_equal_clusters),
        cmocka_unit_test(cluster_decode_ignores_unknown_fields),
        cmocka_unit_test(cluster_decode_rejects_malformed_bytes),
        cmocka_unit_test(cluster_decode_takes_bounded_memory),
        cmocka_unit_test(cluster_decode_rejects_too_many_jobs),
        cmocka_unit_test(cluster_codec_rejects_null_arguments),
        cmocka_unit_test(cluster_codec_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
