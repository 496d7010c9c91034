/* test/data/test_distribute.c -- a dataset divided among workers and their replicas.
 *
 * The tests cover the division of batches among replicas, shard policies, input contexts,
 * elements that fail, and positions. Numbers in comments are statements of doc/conformance.md,
 * section 5.
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

/* Checks the elements of worker w of W with R replicas each; "/" separates replicas. */
static void worker_gets(ch_dataset *d, int n_workers, int worker, int n_local, const char *want)
{
    static t_given         g;
    const ch_input_context c = {
        .n_pipelines = n_workers, .pipeline = worker, .n_replicas = n_workers * n_local};
    ch_dataset  *mine = NULL;
    ch_iterator *it = NULL;

    memset(&g, 0, sizeof(g));
    t_ok(ch_dataset_distribute(d, &c, &mine));
    t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = n_local}, &it));
    t_take(it, -1, &g);
    ch_iterator_unref(it);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
    assert_string_equal(g.text, want);
}

/* Returns x, and x repeated x % 3 times. */
static ch_status as_often(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t    x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));
    ch_tensor *t[2] = {NULL, ch_value_at(ch_tuple_at(in, 0), 0)};
    ch_status  rc = ch_tensor_copy_of(CH_I64, ch_shape_of(x % 3), (int64_t[]){x, x}, &t[0]);

    (void)arg;
    if (rc == CH_OK)
        rc = ch_tuple_of(2, t, out);
    ch_tensor_unref(t[0]);
    return rc;
}

static ch_dataset *ragged(int64_t n, int64_t size, bool drop)
{
    const ch_tensor_spec spec[] = {{.name = "v", .dtype = CH_I64, .shape = ch_shape_of(-1)},
                                   {.name = "x", .dtype = CH_I64}};

    return ch_dataset_batch(ch_dataset_map_call(range(n), as_often, NULL, 2, spec, NULL), size,
                            &(ch_batch_options){.ragged = true, .drop_remainder = drop});
}

static void same(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_step_in(s, 0));
}

static void sum_of_rows(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_sum(ch_step_in(s, 0), 1, (int[]){0}, true));
}

static void twice_the_rows(ch_step *s, void *arg)
{
    ch_node *both[] = {ch_step_in(s, 0), ch_step_in(s, 0)};

    (void)arg;
    ch_step_out(s, NULL, ch_concat(2, both, 0));
}

static ch_status keep(void *arg, ch_tuple *in, bool *yes)
{
    (void)arg;
    (void)in;
    *yes = true;
    return CH_OK;
}

static ch_dataset *whole(ch_dataset *element, void *arg)
{
    (void)arg;
    return element;
}

static void batch_size_of_a_pipeline_is_found(void **state)
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
        {ch_dataset_map(batches(32, 4), same, NULL, NULL), 4}, /* 5.2.2: it keeps the rows */
        {ch_dataset_map(batches(32, 4), sum_of_rows, NULL, NULL), 1},
        {ch_dataset_map(batches(32, 4), twice_the_rows, NULL, NULL), CH_UNKNOWN},
        {ch_dataset_map(dropping(32, 4), same, NULL, NULL), 4}, /* 5.2.1: static */
        {ch_dataset_cache(batches(32, 4), NULL), 4},
        {ch_dataset_filter_call(batches(32, 4), keep, NULL), 4},
        {ch_dataset_prefetch(batches(32, 4), 2), 4},
        {ch_dataset_repeat(batches(32, 4), 2), 4},
        {ch_dataset_shard(batches(32, 4), 2, 1), 4},
        {ch_dataset_shuffle(batches(32, 4), 2, NULL), 4},
        {ch_dataset_skip(batches(32, 4), 2), 4},
        {ch_dataset_with_options(batches(32, 4), NULL), 4},
        {ch_dataset_padded_batch(range(32), 4, NULL), 4},
        {ch_dataset_concatenate(2, (ch_dataset *[]){batches(32, 4), batches(9, 4)}), 4},
        {ch_dataset_concatenate(2, (ch_dataset *[]){batches(32, 4), batches(9, 5)}),
         CH_UNKNOWN},
        {ch_dataset_flat_map(batches(32, 4), whole, NULL), CH_UNKNOWN},
        {ragged(32, 4, false), 4},
        {ragged(32, 4, true), 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        assert_int_equal(ch_dataset_batch_size(row[i].d), row[i].size);
        ch_dataset_unref(row[i].d);
    }
}

/* 5.3.5, 5.3.7: fixed sizes of a full batch; a short batch fills replicas in order. Only the pipeline's own
 * drop_remainder drops rows, and no row crosses the end of a batch. */
static void distribute_splits_a_batch_for_replicas(void **state)
{
    (void)state;
    worker_gets(batches(14, 8), 1, 0, 2, "0 1 2 3 / 4 5 6 7 | 8 9 10 11 / 12 13");
    worker_gets(ch_dataset_map(batches(14, 8), same, NULL, NULL), 1, 0, 2,
                "0 1 2 3 / 4 5 6 7 | 8 9 10 11 / 12 13"); /* the map does not change this */
    worker_gets(ch_dataset_map(batches(3, 2), twice_the_rows, NULL, NULL), 1, 0, 2,
                "0 1 / 0 1 | 2 / 2");
    worker_gets(batches(9, 4), 1, 0, 2, "0 1 / 2 3 | 4 5 / 6 7 | 8 / ");
    worker_gets(batches(11, 5), 1, 0, 2, "0 1 2 / 3 4 | 5 6 7 / 8 9 | 10 / ");
    worker_gets(batches(10, 4), 1, 0, 3, "0 1 / 2 / 3 | 4 5 / 6 / 7 | 8 9 /  / ");
    worker_gets(batches(3, 1), 1, 0, 2, "0 /  | 1 /  | 2 / ");
    worker_gets(ch_dataset_repeat(batches(5, 4), 2), 1, 0, 2,
                "0 1 / 2 3 | 4 /  | 0 1 / 2 3 | 4 / ");
    worker_gets(batches(12, 5), 1, 0, 4, "0 1 / 2 / 3 / 4 | 5 6 / 7 / 8 / 9 | 10 11 /  /  / ");
    worker_gets(batches(3, 4), 1, 0, 2, "0 1 / 2");               /* 5.4.11 */
    worker_gets(dropping(2, 1), 1, 0, 2, "0 /  | 1 / ");          /* 5.4.12 */
    worker_gets(ch_dataset_range(0, 3, 1), 1, 0, 1, "0 | 1 | 2"); /* 5.1.2 */
}

/* 5.4.3: an empty ragged component has row_splits [0]. */
static void distribute_splits_a_ragged_batch_by_rows(void **state)
{
    const ch_tensor_spec *spec = NULL;
    ch_dataset           *d = ragged(8, 4, true), *mine = NULL;

    (void)state;
    worker_gets(ragged(6, 4, false), 1, 0, 2,
                "1 / 2 2, 0 0 1 / 0 2 2, 0 1 / 2 3 | 4 5 5 / , 0 1 3 / 0, 4 5 / ");
    worker_gets(ragged(5, 4, false), 1, 0, 2,
                "1 / 2 2, 0 0 1 / 0 2 2, 0 1 / 2 3 | 4 / , 0 1 / 0, 4 / ");
    worker_gets(ragged(5, 4, false), 2, 1, 2, "2 2 / , 0 2 / 0 0, 2 / 3 |  / , 0 / 0,  / ");
    t_ok(ch_dataset_distribute(d, &(ch_input_context){.n_replicas = 2}, &mine));
    assert_int_equal(ch_dataset_element_spec(mine, &spec), 3);
    assert_int_equal(spec[0].shape.dim[0], -1);
    assert_int_equal(spec[1].shape.dim[0], 3);
    assert_int_equal(spec[2].shape.dim[0], 2);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
}

/* 5.4.3: elements that fill a group. */
static void iterator_fills_missing_replicas_with_empty_ragged_rows(void **state)
{
    static t_given g;
    ch_dataset    *d = ragged(3, 2, false);
    ch_iterator   *it = NULL;

    (void)state;
    for (int drop = 0; drop < 2; drop++) {
        memset(&g, 0, sizeof(g));
        t_ok(ch_iterator_new(d, &(ch_iterator_options){.n_replicas = 3}, &it));
        t_take(it, -1, &g);
        assert_string_equal(g.text, drop ? "1 /  / , 0 0 1 / 0 / 0, 0 1 /  / "
                                         : "1 / 2 2 / , 0 0 1 / 0 2 / 0, 0 1 / 2 / ");
        ch_iterator_unref(it);
        ch_dataset_unref(d);
        d = ragged(3, 2, true);
    }
    ch_dataset_unref(d);
}

/* 5.3, 5.3.3, 5.3.4: column V2 of the table: sizes of the pieces of a full batch. */
static void split_sizes_of_a_full_batch_are_fixed(void **state)
{
    static const struct {
        int         rows, replicas;
        const char *sizes;
    } row[] = {
        {8, 2, "4 4"},     {6, 2, "3 3"},      {5, 2, "3 2"},     {3, 2, "2 1"},
        {1, 2, "1 0"},     {4, 3, "2 1 1"},    {5, 3, "2 2 1"},   {7, 3, "3 2 2"},
        {2, 3, "1 1 0"},   {10, 4, "3 3 2 2"}, {9, 4, "3 2 2 2"}, {7, 4, "2 2 2 1"},
        {6, 4, "2 2 1 1"}, {5, 4, "2 1 1 1"},  {3, 4, "1 1 1 0"}, {10, 8, "2 2 1 1 1 1 1 1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        for (int split = CH_SPLIT_NOMINAL; split <= CH_SPLIT_EVEN; split++) {
            ch_dataset  *d = batches(row[i].rows, row[i].rows), *mine = NULL;
            ch_iterator *it = NULL;
            ch_tuple    *t = NULL;
            char         text[100] = "";
            size_t       used = 0;

            t_ok(ch_dataset_distribute(d,
                                       &(ch_input_context){.n_replicas = row[i].replicas,
                                                           .split = (ch_batch_split)split},
                                       &mine));
            t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = row[i].replicas},
                                 &it));
            t_ok(ch_iterator_get_next(it, &t));
            for (int r = 0; r < row[i].replicas; r++)
                used += (size_t)snprintf(
                    text + used, sizeof(text) - used, "%s%lld", r > 0 ? " " : "",
                    (long long)ch_tensor_count(ch_value_at(ch_tuple_at(t, 0), r)));
            assert_string_equal(text, row[i].sizes);
            ch_tuple_unref(t);
            ch_iterator_unref(it);
            ch_dataset_unref(mine);
            ch_dataset_unref(d);
        }
}

/* 5.6.1, 5.4.1, 5.4.2, 5.4.4: the dataset of a function is taken as it is, an element for each replica. A
 * replica without an element gets an empty one, whether shapes are known or not: no element is lost. */
static void replicas_take_elements_in_turn(void **state)
{
    static const struct {
        int         prefetch, n_replicas;
        const char *name, *gives;
    } row[] = {
        {0, 2, "9 by 2", "0 1 / 2 3 | 4 5 / 6 7 | 8 / "},             /* 5.1.4, 5.4.5 */
        {0, 2, "9 by 2, dropped", "0 1 / 2 3 | 4 5 / 6 7"},           /* 5.4.5 */
        {0, 2, "10 by 2, dropped", "0 1 / 2 3 | 4 5 / 6 7 | 8 9 / "}, /* 5.4.9, 8.11 */
        {0, 2, "4", "0 / 1 | 2 / 3"},                                 /* 5.6.6 */
        {0, 3, "4", "0 / 1 / 2 | 3 / 0 / 0"},                         /* 5.4.3: zero scalars */
        {0, 2, "5 by 3", "0 1 2 / 3 4"},                              /* 5.6.7 */
        {0, 2, "20 by 16", "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 / 16 17 18 19"}, /* 5.6.7 */
        {2, 2, "9 by 2", "0 1 / 2 3 | 4 5 / 6 7 | 8 / "},                          /* 5.7.6 */
        {CH_OFF, 2, "9 by 2", "0 1 / 2 3 | 4 5 / 6 7 | 8 / "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        static t_given g;
        int            n = 0, by = 0;
        ch_dataset    *d;
        ch_iterator   *it = NULL;

        memset(&g, 0, sizeof(g));
        sscanf(row[i].name, "%d by %d", &n, &by);
        d = by == 0                          ? range(n)
            : strstr(row[i].name, "dropped") ? dropping(n, by)
                                             : batches(n, by);
        t_ok(ch_iterator_new(d,
                             &(ch_iterator_options){.n_replicas = row[i].n_replicas,
                                                    .prefetch = row[i].prefetch},
                             &it));
        t_take(it, -1, &g);
        assert_string_equal(g.text, row[i].gives);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
}

/* 5.6.8 */
static void shard_by_the_program_gives_each_worker_its_batches(void **state)
{
    (void)state;
    for (int id = 0; id < 2; id++) {
        static t_given a, b;
        ch_dataset    *d = ch_dataset_shard(
               ch_dataset_batch(ch_dataset_repeat(range(100), CH_INFINITE), 5, NULL), 2, id);
        ch_dataset  *e = ch_dataset_shard(batches(14, 4), 2, id);
        ch_iterator *it = NULL;

        memset(&a, 0, sizeof(a));
        memset(&b, 0, sizeof(b));
        t_ok(ch_iterator_new(d, NULL, &it));
        t_take(it, 1, &a);
        ch_iterator_unref(it);
        t_ok(ch_iterator_new(e, NULL, &it));
        t_take(it, -1, &b);
        ch_iterator_unref(it);
        assert_string_equal(a.text, id == 0 ? "0 1 2 3 4" : "5 6 7 8 9");
        assert_string_equal(b.text, id == 0 ? "0 1 2 3 | 8 9 10 11" : "4 5 6 7 | 12 13");
        ch_dataset_unref(d);
        ch_dataset_unref(e);
    }
}

/* 5.4.3: what a replica gets that the data did not reach, by what elements are. */
static void iterator_gives_empty_elements_to_replicas_without_data(void **state)
{
    float                 x[12] = {0};
    ch_tensor            *t = t_f32(ch_shape_of(3, 4), x);
    ch_dataset           *d = ch_dataset_slices(1, &t, NULL); /* rows of 4: all is known */
    ch_iterator          *it = NULL;
    ch_tuple             *step = NULL;
    const ch_tensor_spec *spec;

    (void)state;
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.n_replicas = 2}, &it));
    for (int i = 0; i < 2; i++) {
        ch_tuple_unref(step);
        t_ok(ch_iterator_get_next(it, &step));
    }
    assert_true(
        ch_shape_equal(ch_tensor_shape(ch_value_at(ch_tuple_at(step, 0), 0)), ch_shape_of(4)));
    assert_true(
        ch_shape_equal(ch_tensor_shape(ch_value_at(ch_tuple_at(step, 0), 1)), ch_shape_of(0)));
    assert_int_equal(ch_tensor_dtype(ch_value_at(ch_tuple_at(step, 0), 1)), CH_F32);
    ch_tuple_unref(step);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    d = ch_dataset_batch(ch_dataset_slices(1, &t, NULL), 2, NULL);
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.n_replicas = 3}, &it));
    t_ok(ch_iterator_get_next(it, &step));
    assert_true(ch_shape_equal(ch_tensor_shape(ch_value_at(ch_tuple_at(step, 0), 2)),
                               ch_shape_of(0, 4)));
    ch_tuple_unref(step);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    /* 5.8.2, 5.8.3: what is known of the rows of a piece */
    for (int i = 0; i < 3; i++) {
        ch_dataset *mine = NULL;

        d = i == 0 ? batches(10, 4) : dropping(10, 4);
        t_ok(
            ch_dataset_distribute(d, &(ch_input_context){.n_replicas = i == 2 ? 3 : 2}, &mine));
        assert_int_equal(ch_dataset_element_spec(mine, &spec), 1);
        assert_int_equal(spec[0].shape.dim[0], i == 1 ? 2 : -1);
        ch_dataset_unref(mine);
        ch_dataset_unref(d);
    }
    ch_tensor_unref(t);
}

/* Fails for element k if bit k of *arg is set. Elements count from 1, because 0 stands for none. */
static ch_status fail_by_mask(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));

    if (x > 0 && (*(const unsigned *)arg >> (x - 1) & 1) != 0)
        return ch_fail(CH_ABORTED, "%lld fails", (long long)x);
    *out = ch_tuple_ref(in);
    return CH_OK;
}

enum { N_MASKED = 7 };

/* Makes a dataset of 1 to N_MASKED, of which the elements of the mask fail. */
static ch_dataset *masked(unsigned *mask)
{
    const ch_tensor_spec one = {.dtype = CH_I64};

    return ch_dataset_map_call(ch_dataset_range(1, N_MASKED + 1, 1), fail_by_mask, mask, 1,
                               &one, NULL);
}

/* Computes the elements that n_replicas should get: element k belongs to replica k mod
 * n_replicas, whether other elements fail or not. There is no step without any element. */
static void model_groups(unsigned mask, int n_replicas, t_given *g)
{
    memset(g, 0, sizeof(*g));
    for (int first = 0; first < N_MASKED; first += n_replicas) {
        unsigned is_alive = 0;

        for (int k = first; k < first + n_replicas && k < N_MASKED; k++) {
            if ((mask >> k & 1) != 0)
                t_add(g, "%s!ABORTED", g->n++ > 0 ? " | " : "");
            else
                is_alive |= 1u << k;
        }
        for (int k = first; k < first + n_replicas && is_alive != 0; k++)
            t_add(g, "%s%d",
                  k > first    ? " / "
                  : g->n++ > 0 ? " | "
                               : "",
                  (is_alive >> k & 1) != 0 ? k + 1 : 0);
    }
}

/* Takes `before` results, saves the position, and takes the rest from a second iterator. */
static void take_in_two(ch_dataset *d, int n_replicas, int before, t_given *g)
{
    const ch_iterator_options opt = {.n_replicas = n_replicas, .go_on = true};
    ch_iterator              *it = NULL, *other = NULL;
    void                     *bytes = NULL;
    size_t                    n = 0;

    memset(g, 0, sizeof(*g));
    t_ok(ch_iterator_new(d, &opt, &it));
    t_take(it, before, g);
    t_ok(ch_iterator_save(it, &bytes, &n));
    ch_iterator_unref(it);
    t_ok(ch_iterator_new(d, &opt, &other));
    t_ok(ch_iterator_restore(other, bytes, n));
    t_take(other, -1, g);
    ch_iterator_unref(other);
    ch_bytes_free(bytes);
}

/* 5.1.5: for every set of elements that fail, and from a position saved at any result. */
static void elements_keep_their_replica_when_others_fail(void **state)
{
    static t_given want, g;
    unsigned       mask;

    (void)state;
    for (int threads = CH_OFF; threads < 3; threads += 3)
        for (int n_replicas = 1; n_replicas < 5; n_replicas++)
            for (mask = 0; mask < 1u << N_MASKED; mask++) {
                ch_dataset *d = ch_dataset_with_options(
                    masked(&mask), &(ch_dataset_options){.threads = threads});

                model_groups(mask, n_replicas, &want);
                for (int before = 0; before < (threads == CH_OFF ? N_MASKED : 1); before++) {
                    take_in_two(d, n_replicas, before, &g);
                    if (strcmp(g.text, want.text) != 0)
                        fail_msg("%d replicas, mask %#x, saved after %d: %s, want %s",
                                 n_replicas, mask, before, g.text, want.text);
                }
                ch_dataset_unref(d);
            }
}

/* 5.1.5: each worker gets its own elements, and the errors of these alone. */
static void elements_keep_their_worker_when_others_fail(void **state)
{
    static t_given want, g;
    unsigned       mask;

    (void)state;
    for (int n = 2; n < 5; n++)
        for (int w = 0; w < n; w++)
            for (mask = 0; mask < 1u << N_MASKED; mask++)
                for (int by_user = 0; by_user < 2; by_user++) {
                    const ch_input_context c = {.n_pipelines = n, .pipeline = w};
                    ch_dataset            *d = masked(&mask), *mine = NULL;

                    memset(&want, 0, sizeof(want));
                    for (int k = w; k < N_MASKED; k += n) {
                        t_add(&want, "%s", k > w ? " | " : "");
                        t_add(&want, (mask >> k & 1) != 0 ? "!ABORTED" : "%d", k + 1);
                    }
                    d = ch_dataset_with_options(
                        d, &(ch_dataset_options){.threads = CH_OFF, .shard = CH_SHARD_DATA});
                    if (by_user)
                        mine = ch_dataset_shard(ch_dataset_ref(d), n, w);
                    else
                        t_ok(ch_dataset_distribute(d, &c, &mine));
                    take_in_two(mine, 1, 1, &g);
                    if (strcmp(g.text, want.text) != 0)
                        fail_msg("worker %d of %d, mask %#x: %s, want %s", w, n, mask, g.text,
                                 want.text);
                    ch_dataset_unref(mine);
                    ch_dataset_unref(d);
                }
}

/* 5.1.5: a piece that a map behind the split refuses is one element; a row that fails below a batch is
 * none, because later rows fill the batch; a batch that fails below the split is a whole step. */
static void elements_keep_their_replica_when_batches_fail(void **state)
{
    static const struct {
        const char *want;
        bool        row_fails, is_split, piece_fails;
    } row[] = {
        {"1 2 / 3 4 | !ABORTED | 6 7 / 8 9 | 10 11 / 12", .row_fails = true},
        {"1 / 2 | 3 / 4 | !ABORTED | 6 / 7 | 8 / 9 | 10 / 11 | 12 / ", .row_fails = true,
         .is_split = true},
        {"1 / 2 | 3 / 4 | !ABORTED |  / 6 | 7 / 8 | 9 / 10 | 11 / 12", .is_split = true,
         .piece_fails = true},
        {"1 2 / 3 4 | !ABORTED |  / 7 8 | 9 10 / 11 12", .piece_fails = true},
        {"1 / 2 | 3 / 4 | !ABORTED | 6 / 7 | !ABORTED |  / 9 | 10 / 11 | 12 / ",
         .row_fails = true, .is_split = true, .piece_fails = true},
    };
    const ch_tensor_spec one = {.dtype = CH_I64};
    const ch_tensor_spec rows = {.dtype = CH_I64, .shape = ch_shape_of(-1)};

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        /* Row 5 fails. The piece fails that begins with 5 or, without row 5, with 8. */
        unsigned       row_mask = 1u << 4, piece_mask = row[i].row_fails ? 1u << 7 : 1u << 4;
        ch_dataset    *d = ch_dataset_range(1, 13, 1);
        static t_given g;

        if (row[i].row_fails)
            d = ch_dataset_map_call(d, fail_by_mask, &row_mask, 1, &one, NULL);
        d = ch_dataset_batch(d, 2, NULL);
        if (row[i].is_split) {
            ch_dataset *mine = NULL;

            t_ok(ch_dataset_distribute(d, &(ch_input_context){.n_replicas = 2}, &mine));
            ch_dataset_unref(d);
            d = mine;
        }
        if (row[i].piece_fails)
            d = ch_dataset_map_call(d, fail_by_mask, &piece_mask, 1, &rows, NULL);
        for (int before = 0; before < 6; before++) {
            take_in_two(d, 2, before, &g);
            assert_string_equal(g.text, row[i].want);
        }
        ch_dataset_unref(d);
    }
}

/* Makes rows 1 to 12. The rows of the mask fail. */
static ch_dataset *masked_rows(unsigned *mask)
{
    const ch_tensor_spec one = {.dtype = CH_I64};

    return ch_dataset_map_call(ch_dataset_range(1, 13, 1), fail_by_mask, mask, 1, &one, NULL);
}

/* Makes the same rows as vectors of length 1. */
static ch_dataset *masked_vectors(unsigned *mask)
{
    const ch_tensor_spec one = {.dtype = CH_I64, .shape = ch_shape_of(-1)};
    ch_dataset          *d = ch_dataset_batch(ch_dataset_range(1, 13, 1), 1, NULL);

    return ch_dataset_map_call(d, fail_by_mask, mask, 1, &one, NULL);
}

static ch_dataset *body_of_batches(ch_dataset *element, void *mask)
{
    ch_dataset_unref(element);
    return ch_dataset_batch(masked_rows(mask), 2, NULL);
}

/* In every stage that collects rows, later rows fill the batch, so that no batch is missing. */
static void batches_keep_their_replica_when_a_row_fails(void **state)
{
    unsigned    mask = 1u << 4;
    ch_dataset *d[] = {
        ch_dataset_batch(masked_rows(&mask), 2, NULL),
        ch_dataset_padded_batch(masked_rows(&mask), 2, NULL),
        ch_dataset_bucket_by_length(masked_vectors(&mask), 0, 1, (int64_t[]){8},
                                    (int64_t[]){2, 2}, NULL),
        ch_dataset_window(masked_rows(&mask), 2, NULL, NULL, NULL),
        ch_dataset_flat_map(range(1), body_of_batches, &mask),
        ch_dataset_rebatch(masked_vectors(&mask), 1, (int64_t[]){2}, NULL),
    };

    (void)state;
    for (size_t i = 0; i < sizeof(d) / sizeof(d[0]); i++) {
        static t_given g;

        for (int before = 0; before < 4; before++) {
            take_in_two(d[i], 2, before, &g);
            assert_string_equal(g.text, "1 2 / 3 4 | !ABORTED | 6 7 / 8 9 | 10 11 / 12");
        }
        ch_dataset_unref(d[i]);
    }
}

/* As iterator.h documents: a row is not an element, even if it would have been a batch of its
 * own. */
static void rows_move_up_to_another_replica_when_a_row_below_a_batch_fails(void **state)
{
    unsigned       mask = 1u << 4;
    ch_dataset    *d = ch_dataset_batch(masked_rows(&mask), 1, NULL);
    static t_given g;

    (void)state;
    take_in_two(d, 2, 1, &g);
    assert_string_equal(g.text, "1 / 2 | 3 / 4 | !ABORTED | 6 / 7 | 8 / 9 | 10 / 11 | 12 / ");
    ch_dataset_unref(d);
}

/* The failed row may have belonged to the batch of any shard. */
static void shards_all_get_an_error_between_batches(void **state)
{
    static const char *const want[] = {"1 2 | !ABORTED | 6 7 | 10 11",
                                       "3 4 | !ABORTED | 8 9 | 12"};
    unsigned                 mask = 1u << 4;

    (void)state;
    for (int w = 0; w < 2; w++)
        t_gives(ch_dataset_shard(ch_dataset_batch(masked_rows(&mask), 2, NULL), 2, w), want[w]);
}

static void position_after_errors_is_restored_by_fewer_replicas(void **state)
{
    unsigned       mask = 3;
    ch_dataset    *d = masked(&mask);
    ch_iterator   *it = NULL;
    void          *bytes = NULL;
    size_t         n = 0;
    static t_given g;

    (void)state;
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.n_replicas = 3, .go_on = true}, &it));
    t_take(it, 2, &g);
    t_ok(ch_iterator_save(it, &bytes, &n));
    ch_iterator_unref(it);
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.n_replicas = 2}, &it));
    t_ok(ch_iterator_restore(it, bytes, n));
    t_take(it, -1, &g);
    assert_string_equal(g.text, "!ABORTED | !ABORTED | 3 / 4 | 5 / 6 | 7 / 0");
    ch_iterator_unref(it);
    ch_bytes_free(bytes);
    ch_dataset_unref(d);
}

/* 5.1.7 */
static void distributed_iterator_restarts_at_the_first_element(void **state)
{
    const ch_shuffle_options same_order = {.seed = 3, .same_each_time = true};

    (void)state;
    for (int i = 0; i < 3; i++) {
        static t_given a, b;
        ch_dataset    *d = ch_dataset_shuffle(range(20), 20, i == 0 ? NULL : &same_order);
        ch_dataset    *mine = NULL;
        ch_iterator   *it = NULL;

        if (i == 2)
            d = ch_dataset_cache(ch_dataset_shuffle(d, 20, NULL), NULL);
        d = ch_dataset_batch(d, 4, NULL);
        memset(&a, 0, sizeof(a));
        memset(&b, 0, sizeof(b));
        t_ok(ch_dataset_distribute(d, &(ch_input_context){.n_replicas = 2}, &mine));
        t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = 2}, &it));
        t_take(it, -1, &a);
        t_ok(ch_iterator_restart(it));
        t_take(it, -1, &b);
        assert_int_equal(a.n, 5);
        assert_int_equal(b.n, 5);
        assert_int_equal(strcmp(a.text, b.text) == 0, i > 0);
        ch_iterator_unref(it);
        ch_dataset_unref(mine);
        ch_dataset_unref(d);
    }
}

static ch_status is_not_3(void *arg, ch_tuple *in, bool *yes)
{
    (void)arg;
    *yes = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0)) != 3;
    return CH_OK;
}

/* 5.1.6: a distributed dataset may be transformed further: map, take, filter, prefetch. */
static void a_distributed_dataset_may_be_transformed(void **state)
{
    ch_dataset    *d = batches(12, 4), *mine = NULL;
    static t_given g;
    ch_iterator   *it = NULL;

    (void)state;
    t_ok(ch_dataset_distribute(
        d, &(ch_input_context){.n_pipelines = 2, .pipeline = 1, .n_replicas = 4}, &mine));
    mine = ch_dataset_take(ch_dataset_map(mine, same, NULL, NULL), 5);
    mine = ch_dataset_prefetch(ch_dataset_filter_call(mine, is_not_3, NULL), 2);
    t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = 2}, &it));
    t_take(it, -1, &g);
    assert_string_equal(g.text, "2 / 6 | 7 / 10");
    ch_iterator_unref(it);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
}

/* 5.1.1, 8.2: cut for replicas, then as many pieces ready as there are replicas */
static void distribute_prefetches_one_piece_per_replica(void **state)
{
    ch_dataset *d = batches(12, 4), *mine = NULL;
    char        text[500];

    (void)state;
    t_ok(ch_dataset_distribute(d, &(ch_input_context){.n_replicas = 3}, &mine));
    ch_dataset_print(mine, text, sizeof(text));
    assert_memory_equal(text, "prefetch count=3 ", 17);
    assert_non_null(strstr(text, "\nsplit batch=4 n=3 "));
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
}

/* 5.3.6 */
static void split_rejects_components_of_unequal_rows(void **state)
{
    ch_dataset  *d = ch_dataset_zip(2, (ch_dataset *[]){batches(8, 4), batches(6, 3)});
    ch_dataset  *mine = NULL;
    ch_iterator *it = NULL;
    ch_tuple    *t = NULL;

    (void)state;
    t_ok(ch_dataset_distribute(d, &(ch_input_context){.n_replicas = 2}, &mine));
    t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = 2}, &it));
    t_refused(ch_iterator_next(it, &t), CH_INVALID_ARGUMENT, "4 and 3 rows", "split");
    ch_iterator_unref(it);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
}

/* Checks the elements that n replicas get of d if each batch is split evenly. Releases d. */
static void evenly(ch_dataset *d, int n, const char *want)
{
    static t_given         g;
    ch_dataset            *mine = NULL;
    ch_iterator           *it = NULL;
    const ch_input_context c = {.n_replicas = n, .split = CH_SPLIT_EVEN, .n_pipelines = 1};

    memset(&g, 0, sizeof(g));
    t_ok(ch_dataset_distribute(d, &c, &mine));
    t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = n}, &it));
    t_take(it, -1, &g);
    assert_string_equal(g.text, want);
    ch_iterator_unref(it);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
}

/* 5.3.1, 5.3.9: pieces are even, and the first ones get one row more */
static void split_even_gives_the_first_replicas_one_row_more(void **state)
{
    (void)state;
    evenly(batches(6, 8), 2, "0 1 2 / 3 4 5");
    evenly(batches(8, 4), 3, "0 1 / 2 / 3 | 4 5 / 6 / 7");
    evenly(batches(10, 4), 2, "0 1 / 2 3 | 4 5 / 6 7 | 8 / 9");
    evenly(batches(9, 4), 2, "0 1 / 2 3 | 4 5 / 6 7 | 8 / ");
    evenly(dropping(9, 4), 2, "0 1 / 2 3 | 4 5 / 6 7");
}

/* 5.5.10, 8.13: batches are divided by rows, and each worker has a share of each, so that they are never
 * too few; not even a batch of a row for ten workers */
static void shard_data_gives_workers_batches_without_rows_when_rows_are_too_few(void **state)
{
    static const ch_dataset_options data = {.shard = CH_SHARD_DATA};

    (void)state;
    for (int w = 0; w < 10; w++) {
        worker_gets(ch_dataset_with_options(batches(5, 1), &data), 10, w, 1,
                    w == 0 ? "0 | 1 | 2 | 3 | 4" : " |  |  |  | ");
        worker_gets(ch_dataset_with_options(batches(1, 1), &data), 10, w, 2,
                    w == 0 ? "0 / " : " / ");
        worker_gets(ch_dataset_with_options(batches(0, 1), &data), 10, w, 1, "");
    }
}

/* 5.5.6, 5.3.8, 5.3.10: the pieces of replica r = worker * R + local */
static void distribute_gives_each_worker_its_pieces(void **state)
{
    (void)state;
    worker_gets(batches(3, 1), 2, 0, 1, "0 | 1 | 2");
    worker_gets(batches(3, 1), 2, 1, 1, " |  | ");
    worker_gets(batches(4, 4), 3, 1, 1, "2");
    for (int w = 0; w < 5; w++)
        worker_gets(batches(4, 4), 5, w, 1, (const char *[]){"0", "1", "2", "3", ""}[w]);
    worker_gets(batches(7, 7), 2, 0, 2, "0 1 / 2 3");
    worker_gets(batches(7, 7), 2, 1, 2, "4 5 / 6");
    worker_gets(batches(4, 4), 3, 0, 1, "0 1");
    worker_gets(batches(4, 4), 3, 2, 1, "3");
    worker_gets(batches(8, 3), 2, 0, 1, "0 1 | 3 4 | 6 7");
    worker_gets(batches(8, 3), 2, 1, 1, "2 | 5 | ");
    worker_gets(batches(16, 8), 2, 0, 2, "0 1 / 2 3 | 8 9 / 10 11");
    worker_gets(batches(16, 8), 2, 1, 2, "4 5 / 6 7 | 12 13 / 14 15");
}

static ch_dataset *empty_batch(void)
{
    ch_tensor  *none = NULL;
    ch_dataset *d;

    t_ok(ch_tensor_new(CH_I64, ch_shape_of(0), &none));
    d = ch_dataset_of(1, &none, NULL);
    ch_tensor_unref(none);
    return d;
}

static ch_dataset *every_other(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_shard(ch_dataset_unbatch(element), CH_BY_HINT, 0);
}

static ch_status below_5(void *arg, ch_tuple *in, bool *keep)
{
    (void)arg;
    *keep = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0)) < 5;
    return CH_OK;
}

/* Elements that are not batches, with a replica on each worker, stay as they are. */
static void shard_policies_divide_elements_that_are_no_batches(void **state)
{
    static const ch_dataset_options off = {.shard = CH_SHARD_OFF},
                                    data = {.shard = CH_SHARD_DATA},
                                    hint = {.shard = CH_SHARD_HINT};
    ch_dataset *d = ch_dataset_with_options(range(5), &data), *out = NULL;

    (void)state;
    for (int w = 0; w < 2; w++) /* 5.5.3 */
        worker_gets(ch_dataset_with_options(range(4), &off), 2, w, 1, "0 | 1 | 2 | 3");
    for (int i = 0; i < 2; i++) { /* 5.5.9 */
        ch_dataset *ten = i > 0 ? ch_dataset_with_options(range(10), &data) : range(10);

        worker_gets(ch_dataset_ref(ten), 2, 0, 1, "0 | 2 | 4 | 6 | 8");
        worker_gets(ten, 2, 1, 1, "1 | 3 | 5 | 7 | 9");
    }
    /* 5.5.12 */
    worker_gets(ch_dataset_with_options(ch_dataset_shard(range(100), CH_BY_HINT, 0), &hint), 10,
                0, 1, "0 | 10 | 20 | 30 | 40 | 50 | 60 | 70 | 80 | 90");
    /* 5.5.10, 8.13: too few elements; the same if their number is not known before they are read */
    for (int w = 0; w < 20; w++) {
        ch_dataset *of =
            w < 10 ? ch_dataset_ref(d) : ch_dataset_filter_call(range(9), below_5, NULL);
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;

        if (w >= 10)
            of = ch_dataset_with_options(of, &data);
        t_ok(ch_dataset_distribute(
            of, &(ch_input_context){.n_pipelines = 10, .pipeline = w % 10, .n_replicas = 10},
            &out));
        ch_dataset_unref(of);
        t_ok(ch_iterator_new(out, NULL, &it));
        t_refused(ch_iterator_next(it, &t), CH_INVALID_ARGUMENT, "by elements: there are 5",
                  "10 workers");
        ch_iterator_unref(it);
        t_gives(out, "!INVALID_ARGUMENT");
    }
    ch_dataset_unref(d);
}

static void shard_policies_divide_batches_as_documented(void **state)
{
    ch_dataset  *d;
    ch_iterator *it = NULL;

    (void)state;
    /* 5.5.3, 5.5.14 */
    d = ch_dataset_with_options(batches(12, 8), &(ch_dataset_options){.shard = CH_SHARD_OFF});
    worker_gets(ch_dataset_ref(d), 2, 0, 1, "0 1 2 3 | 4 5 6 7 | 8 9 10 11");
    worker_gets(d, 2, 1, 1, "0 1 2 3 | 4 5 6 7 | 8 9 10 11");
    /* 5.5.14: the size is unknown, so each batch is cut evenly */
    d = ch_dataset_with_options(ch_dataset_flat_map(batches(12, 8), whole, NULL),
                                &(ch_dataset_options){.shard = CH_SHARD_OFF});
    worker_gets(d, 2, 1, 1, "0 1 2 3 | 4 5 6 7 | 8 9 | 10 11");
    /* a batch without rows is not a step if each worker has all the data */
    d = ch_dataset_with_options(
        ch_dataset_flat_map(
            ch_dataset_concatenate(
                3, (ch_dataset *[]){batches(2, 2), empty_batch(), batches(2, 2)}),
            whole, NULL),
        &(ch_dataset_options){.shard = CH_SHARD_OFF});
    worker_gets(d, 2, 1, 1, "0 | 1 | 0 | 1");
    /* 5.5.12 */
    d = ch_dataset_with_options(
        ch_dataset_batch(ch_dataset_shard(range(20), CH_BY_HINT, 0), 2, NULL),
        &(ch_dataset_options){.shard = CH_SHARD_HINT});
    worker_gets(d, 10, 0, 1, "0 | 10");
    d = ch_dataset_with_options(ch_dataset_batch(ch_dataset_shard(range(9), 1, 0), 3, NULL),
                                &(ch_dataset_options){.shard = CH_SHARD_HINT});
    worker_gets(d, 3, 1, 1, "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8"); /* 5.5.8: others stay */
    d = ch_dataset_shard(range(20), CH_BY_HINT, 0);
    t_refused(ch_iterator_new(d, NULL, &it), CH_FAILED_PRECONDITION, "shard", "HINT");
    ch_dataset_unref(d);
    /* also in bodies */
    d = ch_dataset_with_options(
        ch_dataset_batch(ch_dataset_flat_map(batches(8, 4), every_other, NULL), 2, NULL),
        &(ch_dataset_options){.shard = CH_SHARD_HINT});
    worker_gets(ch_dataset_ref(d), 2, 0, 1, "0 | 2 | 4 | 6");
    worker_gets(d, 2, 1, 1, "1 | 3 | 5 | 7");
    /* 5.5.1 */
    assert_int_equal(CH_SHARD_OFF, -1);
    assert_int_equal(CH_SHARD_AUTO, 0);
    assert_int_equal(CH_SHARD_FILE, 1);
    assert_int_equal(CH_SHARD_DATA, 2);
    assert_int_equal(CH_SHARD_HINT, 3);
    /* 5.5.5: with one worker there is nothing to divide */
    d = ch_dataset_with_options(batches(4, 2), &(ch_dataset_options){.shard = CH_SHARD_FILE});
    worker_gets(d, 1, 0, 2, "0 / 1 | 2 / 3");
    /* 5.5.5 */
    d = ch_dataset_with_options(batches(12, 8), &(ch_dataset_options){.shard = CH_SHARD_FILE});
    t_refused(
        ch_dataset_distribute(d, &(ch_input_context){.n_pipelines = 2, .n_replicas = 2}, &d),
        CH_NOT_FOUND, "range", "CH_SHARD_DATA");
    ch_dataset_unref(d);
}

static void distribute_rejects_invalid_input_contexts(void **state)
{
    ch_dataset *d = batches(12, 4), *out = NULL, *scalars = range(4);

    (void)state;
    t_refused(
        ch_dataset_distribute(
            d, &(ch_input_context){.n_pipelines = 2, .pipeline = 2, .n_replicas = 2}, &out),
        CH_INVALID_ARGUMENT, "worker 2", "2"); /* 5.5.2 */
    t_refused(
        ch_dataset_distribute(
            d, &(ch_input_context){.n_pipelines = 2, .pipeline = -1, .n_replicas = 2}, &out),
        CH_INVALID_ARGUMENT, "worker -1", "2"); /* 5.5.2 */
    t_refused(
        ch_dataset_distribute(d, &(ch_input_context){.n_pipelines = -1, .n_replicas = 2}, &out),
        CH_INVALID_ARGUMENT, "-1", ""); /* 5.5.2 */
    t_refused(
        ch_dataset_distribute(d, &(ch_input_context){.n_pipelines = 2, .n_replicas = 3}, &out),
        CH_INVALID_ARGUMENT, "3 replicas", "same number"); /* 5.1.3 */
    t_refused(ch_dataset_distribute(scalars, &(ch_input_context){.n_replicas = 2}, &out),
              CH_INVALID_ARGUMENT, "scalar", "batch"); /* 5.2.3, 5.3.2, 8.6 */
    t_refused(ch_dataset_distribute(d, &(ch_input_context){.n_replicas = -1}, &out),
              CH_INVALID_ARGUMENT, "-1 replicas", "");
    ch_dataset_unref(d);
    ch_dataset_unref(scalars);
}

static void input_context_batch_size_divides_the_global_batch(void **state)
{
    const ch_input_context c = {.n_pipelines = 3, .pipeline = 1, .n_replicas = 6};
    int64_t                size = 0;
    char                   text[100];

    (void)state;
    t_ok(ch_input_context_batch_size(&c, 12, &size)); /* 5.6.3 */
    assert_int_equal(size, 2);
    t_refused(ch_input_context_batch_size(&c, 13, &size), CH_INVALID_ARGUMENT, "13", "6");
    t_refused(ch_input_context_batch_size(&c, -12, &size), CH_INVALID_ARGUMENT, "-12", "6");
    t_refused(ch_input_context_batch_size(
                  &(ch_input_context){.n_pipelines = 2, .n_replicas = 3}, 6, &size),
              CH_INVALID_ARGUMENT, "3 replicas", "2 workers");
    t_ok(ch_input_context_batch_size(&(ch_input_context){.n_pipelines = 4}, 12, &size));
    assert_int_equal(size, 3);                      /* 0 replicas: a replica on each worker */
    ch_input_context_print(&c, text, sizeof(text)); /* 5.6.4 */
    assert_string_equal(text, "InputContext(input pipeline id 1, total: 3)");
}

/* Makes two elements for each worker, of which the first is its number. */
static ch_dataset *two_of_worker(const ch_input_context *c, void *arg)
{
    int64_t rows;

    *(int *)arg += 1;
    t_ok(ch_input_context_batch_size(c, 8, &rows));
    return ch_dataset_batch(
        ch_dataset_range(100 * c->pipeline, 100 * c->pipeline + 2 * rows, 1), rows, NULL);
}

static ch_dataset *nothing(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return ch_dataset_range(0, 9, 0);
}

/* 5.6.1: called once for a worker; what it gives stays as it is. */
static void dataset_from_function_calls_the_function_once_per_worker(void **state)
{
    ch_dataset *d = NULL;
    int         n = 0;

    (void)state;
    t_ok(ch_dataset_from_function(
        two_of_worker, &n,
        &(ch_input_context){.n_pipelines = 2, .pipeline = 1, .n_replicas = 4}, &d));
    assert_int_equal(n, 1);
    t_gives(d, "100 101 | 102 103");
    t_ok(ch_dataset_from_function(two_of_worker, &n, NULL, &d));
    t_gives(d, "0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15");
    t_refused(ch_dataset_from_function(
                  nothing, NULL,
                  &(ch_input_context){.n_pipelines = 2, .pipeline = 1, .n_replicas = 4}, &d),
              CH_INVALID_ARGUMENT, "range", "worker 1 of 2");
    t_refused(ch_dataset_from_function(NULL, NULL, NULL, &d), CH_INVALID_ARGUMENT,
              "the function is NULL", "worker 0 of 1");
    t_refused(ch_dataset_from_function(
                  nothing, NULL,
                  &(ch_input_context){.n_pipelines = 2, .pipeline = 2, .n_replicas = 4}, &d),
              CH_INVALID_ARGUMENT, "worker 2", "2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_size_of_a_pipeline_is_found),
        cmocka_unit_test(distribute_splits_a_batch_for_replicas),
        cmocka_unit_test(distribute_splits_a_ragged_batch_by_rows),
        cmocka_unit_test(iterator_fills_missing_replicas_with_empty_ragged_rows),
        cmocka_unit_test(split_sizes_of_a_full_batch_are_fixed),
        cmocka_unit_test(replicas_take_elements_in_turn),
        cmocka_unit_test(shard_by_the_program_gives_each_worker_its_batches),
        cmocka_unit_test(iterator_gives_empty_elements_to_replicas_without_data),
        cmocka_unit_test(elements_keep_their_replica_when_others_fail),
        cmocka_unit_test(elements_keep_their_worker_when_others_fail),
        cmocka_unit_test(elements_keep_their_replica_when_batches_fail),
        cmocka_unit_test(batches_keep_their_replica_when_a_row_fails),
        cmocka_unit_test(rows_move_up_to_another_replica_when_a_row_below_a_batch_fails),
        cmocka_unit_test(shards_all_get_an_error_between_batches),
        cmocka_unit_test(position_after_errors_is_restored_by_fewer_replicas),
        cmocka_unit_test(distributed_iterator_restarts_at_the_first_element),
        cmocka_unit_test(a_distributed_dataset_may_be_transformed),
        cmocka_unit_test(distribute_prefetches_one_piece_per_replica),
        cmocka_unit_test(split_rejects_components_of_unequal_rows),
        cmocka_unit_test(split_even_gives_the_first_replicas_one_row_more),
        cmocka_unit_test(distribute_gives_each_worker_its_pieces),
        cmocka_unit_test(shard_policies_divide_batches_as_documented),
        cmocka_unit_test(shard_policies_divide_elements_that_are_no_batches),
        cmocka_unit_test(shard_data_gives_workers_batches_without_rows_when_rows_are_too_few),
        cmocka_unit_test(distribute_rejects_invalid_input_contexts),
        cmocka_unit_test(input_context_batch_size_divides_the_global_batch),
        cmocka_unit_test(dataset_from_function_calls_the_function_once_per_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
