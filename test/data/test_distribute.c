/* test/data/test_distribute.c -- one dataset for many replicas on many workers.
 *
 * The numbers are those of spec/strategies.md, section 5.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "pipeline.h"

static ch_dataset *range(int64_t n)
{
    return ch_dataset_range(0, n, 1);
}

static ch_dataset *batches(int64_t n, int64_t size)
{
    return ch_dataset_batch(range(n), size, NULL);
}

static ch_dataset *dropping(int64_t n, int64_t size)
{
    return ch_dataset_batch(range(n), size, &(ch_batch_options){.drop_remainder = true});
}

/* What worker w of W gets, R replicas on each; replicas by "/". */
static void worker_gets(ch_dataset *d, int n_workers, int worker, int n_local, const char *want)
{
    static t_given         g;
    const ch_input_context c = {n_workers, worker, n_workers * n_local, CH_SPLIT_NOMINAL};
    ch_dataset            *mine = NULL;
    ch_iterator           *it = NULL;

    memset(&g, 0, sizeof(g));
    t_ok(ch_dataset_distribute(d, &c, &mine));
    t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = n_local}, &it));
    t_take(it, -1, &g);
    ch_iterator_unref(it);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
    assert_string_equal(g.text, want);
}

static void batch_sizes_are_found(void **state)
{
    const struct {
        ch_dataset *d;
        int64_t     size;
    } row[] = {
        {batches(32, 4), 4}, /* 5.2.2 */
        {ch_dataset_take(batches(32, 4), 5), 4},
        {ch_dataset_zip(2, (ch_dataset *[]){batches(32, 4), batches(32, 4)}), 4},
        {ch_dataset_zip(2, (ch_dataset *[]){batches(32, 4), batches(32, 8)}), CH_UNKNOWN},
        {ch_dataset_zip(2, (ch_dataset *[]){dropping(32, 4), dropping(32, 8)}), CH_UNKNOWN},
        {ch_dataset_unbatch(batches(32, 4)), CH_UNKNOWN},
        {dropping(32, 4), 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        assert_int_equal(ch_dataset_batch_size(row[i].d), row[i].size);
        ch_dataset_unref(row[i].d);
    }
}

/* DESIGN section 9: fixed sizes of a full batch; a short one fills replicas in order. */
static void a_batch_is_cut_for_replicas(void **state)
{
    (void)state;
    worker_gets(batches(14, 8), 1, 0, 2, "0 1 2 3 / 4 5 6 7 | 8 9 10 11 / 12 13");
    worker_gets(batches(9, 4), 1, 0, 2, "0 1 / 2 3 | 4 5 / 6 7 | 8 / ");
    worker_gets(batches(11, 5), 1, 0, 2, "0 1 2 / 3 4 | 5 6 7 / 8 9 | 10 / ");
    worker_gets(batches(10, 4), 1, 0, 3, "0 1 / 2 / 3 | 4 5 / 6 / 7 | 8 9 /  / ");
    worker_gets(batches(3, 1), 1, 0, 2, "0 /  | 1 /  | 2 / ");
    worker_gets(ch_dataset_repeat(batches(5, 4), 2), 1, 0, 2,
                "0 1 / 2 3 | 4 /  | 0 1 / 2 3 | 4 / ");
    worker_gets(ch_dataset_range(0, 3, 1), 1, 0, 1, "0 | 1 | 2");
}

static void an_even_split_is_even(void **state)
{
    ch_dataset            *d = batches(6, 8), *mine = NULL;
    static t_given         g;
    ch_iterator           *it = NULL;
    const ch_input_context c = {.n_replicas = 2, .split = CH_SPLIT_EVEN, .n_pipelines = 1};

    (void)state;
    t_ok(ch_dataset_distribute(d, &c, &mine));
    t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = 2}, &it));
    t_take(it, -1, &g);
    assert_string_equal(g.text, "0 1 2 / 3 4 5");
    ch_iterator_unref(it);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
}

static void workers_take_their_pieces(void **state)
{
    (void)state;
    worker_gets(batches(8, 3), 2, 0, 1, "0 1 | 3 4 | 6 7");
    worker_gets(batches(8, 3), 2, 1, 1, "2 | 5 | ");
    worker_gets(batches(16, 8), 2, 0, 2, "0 1 / 2 3 | 8 9 / 10 11");
    worker_gets(batches(16, 8), 2, 1, 2, "4 5 / 6 7 | 12 13 / 14 15");
}

static void policies_are_what_they_say(void **state)
{
    ch_dataset *d;

    (void)state;
    /* 5.5.14 */
    d = ch_dataset_with_options(batches(12, 8), &(ch_dataset_options){.shard = CH_SHARD_OFF});
    worker_gets(ch_dataset_ref(d), 2, 0, 1, "0 1 2 3 | 4 5 6 7 | 8 9 10 11");
    worker_gets(d, 2, 1, 1, "0 1 2 3 | 4 5 6 7 | 8 9 10 11");
    /* 5.5.12 */
    d = ch_dataset_with_options(
        ch_dataset_batch(ch_dataset_shard(range(20), CH_BY_HINT, 0), 2, NULL),
        &(ch_dataset_options){.shard = CH_SHARD_HINT});
    worker_gets(d, 10, 0, 1, "0 | 10");
    /* 5.5.5 */
    d = ch_dataset_with_options(batches(12, 8), &(ch_dataset_options){.shard = CH_SHARD_FILE});
    t_refused(ch_dataset_distribute(d, &(ch_input_context){2, 0, 2, 0}, &d), CH_NOT_FOUND,
              "range", "CH_SHARD_DATA");
    ch_dataset_unref(d);
}

static void wrong_contexts_are_refused(void **state)
{
    ch_dataset *d = batches(12, 4), *out = NULL, *scalars = range(4);

    (void)state;
    t_refused(ch_dataset_distribute(d, &(ch_input_context){2, 2, 2, 0}, &out),
              CH_INVALID_ARGUMENT, "worker 2", "2"); /* 5.5.2 */
    t_refused(ch_dataset_distribute(d, &(ch_input_context){2, 0, 3, 0}, &out),
              CH_INVALID_ARGUMENT, "3 replicas", "same number"); /* 5.1.3 */
    t_refused(ch_dataset_distribute(scalars, &(ch_input_context){1, 0, 2, 0}, &out),
              CH_INVALID_ARGUMENT, "scalar", "batch"); /* 8.6 */
    ch_dataset_unref(d);
    ch_dataset_unref(scalars);
}

static void contexts_divide_batches(void **state)
{
    const ch_input_context c = {3, 1, 6, 0};
    int64_t                size = 0;
    char                   text[100];

    (void)state;
    t_ok(ch_input_context_batch_size(&c, 12, &size)); /* 5.6.3 */
    assert_int_equal(size, 2);
    t_refused(ch_input_context_batch_size(&c, 13, &size), CH_INVALID_ARGUMENT, "13", "6");
    ch_input_context_print(&c, text, sizeof(text)); /* 5.6.4 */
    assert_string_equal(text, "InputContext(input pipeline id 1, total: 3)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_sizes_are_found),
        cmocka_unit_test(a_batch_is_cut_for_replicas),
        cmocka_unit_test(an_even_split_is_even),
        cmocka_unit_test(workers_take_their_pieces),
        cmocka_unit_test(policies_are_what_they_say),
        cmocka_unit_test(wrong_contexts_are_refused),
        cmocka_unit_test(contexts_divide_batches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
