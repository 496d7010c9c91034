/* test/job/test_lookup.c -- rows of sharded variables: indices, slices, lookups, embeddings,
 * scatters.
 *
 * ch__message_pack is wrapped by the linker, so that the tests can count the calls to servers
 * and the bytes that are sent.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "job/message.h"
#include "rows.h"

static atomic_int   said[64]; /* messages of each method: calls and replies */
static atomic_llong most;     /* elements of the largest tensor that was read whole */
static atomic_llong moved;    /* bytes between workers and servers, both ways */

ch_status __real_ch__message_pack(uint32_t method, const ProtobufCMessage *m, int n,
                                  ch_tensor *const *tensor, ch_message **out);
ch_status __wrap_ch__message_pack(uint32_t method, const ProtobufCMessage *m, int n,
                                  ch_tensor *const *tensor, ch_message **out);

ch_status __wrap_ch__message_pack(uint32_t method, const ProtobufCMessage *m, int n,
                                  ch_tensor *const *tensor, ch_message **out)
{
    atomic_fetch_add(&said[method % 64], 1);
    for (int i = 0; i < n; i++)
        if (method == CH_PS_READ || method == CH_PS_ROWS || method == CH_PS_UPDATE)
            atomic_fetch_add(&moved, (long long)ch_tensor_bytes(tensor[i]));
    for (int i = 0; i < n && method == CH_PS_READ; i++)
        if (ch_tensor_count(tensor[i]) > atomic_load(&most))
            atomic_store(&most, ch_tensor_count(tensor[i]));
    return __real_ch__message_pack(method, m, n, tensor, out);
}

static void forget_said(void)
{
    for (int i = 0; i < 64; i++)
        atomic_store(&said[i], 0);
    atomic_store(&most, 0);
    atomic_store(&moved, 0);
}

/* Returns the number of calls of a method. Each call has a reply. */
static int calls(int method)
{
    return atomic_load(&said[method]) / 2;
}

/* ---- outside steps ---- */

/* SV-9: x[i]; a negative i counts from the end. */
static void var_row_reads_one_shard(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_var      *v = t_table(st, "w", ch_shape_of(8, 2));
    ch_tensor   *row = NULL;

    (void)state;
    forget_said();
    for (int i = -8; i < 8; i++) {
        float first = (float)(2 * ((i + 8) % 8));

        t_ok(ch_var_row(v, i, &row));
        t_same(row, ch_shape_of(2), (float[]){first, first + 1});
    }
    assert_int_equal(calls(CH_PS_ROWS), 16);
    assert_int_equal(calls(CH_PS_READ), 0);
    t_refused(ch_var_row(v, 8, &row), CH_INVALID_ARGUMENT, "w", "out of bounds");
    t_refused(ch_var_row(v, -9, &row), CH_INVALID_ARGUMENT, "w", "out of bounds");
    ch_var_unref(v);
    ch_strategy_unref(st);
}

typedef struct slice {
    int64_t start, stop, step;
    int     n;
    float   row[8];
} slice;

static void check_slice(ch_var *v, const slice *s)
{
    ch_tensor *t = NULL;
    float      want[16];

    for (int i = 0; i < s->n; i++) {
        want[2 * i] = 2 * s->row[i];
        want[2 * i + 1] = 2 * s->row[i] + 1;
    }
    t_ok(ch_var_slice(v, s->start, s->stop, s->step, &t));
    t_same(t, ch_shape_of(s->n, 2), want);
}

static const int64_t none = CH_SLICE_END;

/* SV-10, SV-13: rows 0 to 7 as shards 3, 3, 2. An empty slice keeps the tail of the shape, and a bound
 * beyond an end is clamped to it. */
static void var_slice_spans_shards(void **state)
{
    const slice s[] = {
        {none, none, 3, 3, {0, 3, 6}},
        {1, none, 6, 2, {1, 7}},
        {none, none, -5, 2, {7, 2}},
        {7, 1, -4, 2, {7, 3}},
        {2, -10, -1, 3, {2, 1, 0}},
        {-10, 2, 1, 2, {0, 1}},
        {5, 3, 1, 0, {0}},
        {-11, none, 3, 3, {0, 3, 6}},
        {20, none, -3, 3, {7, 4, 1}},
        {none, none, 1, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    };
    ch_strategy *st = t_in_shards(3);
    ch_var      *v = t_table(st, "w", ch_shape_of(8, 2));
    ch_tensor   *t = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(s) / sizeof(s[0]); i++)
        check_slice(v, &s[i]);
    t_refused(ch_var_slice(v, 0, 3, 0, &t), CH_INVALID_ARGUMENT, "slice of w", "step is 0");
    ch_var_unref(v);
    ch_strategy_unref(st);
}

static void var_slice_calls_only_servers_with_rows_of_the_slice(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_var      *v = t_table(st, "w", ch_shape_of(8, 2));

    (void)state;
    forget_said();
    check_slice(v, &(slice){3, 6, 1, 3, {3, 4, 5}});
    assert_int_equal(calls(CH_PS_ROWS), 1);
    check_slice(v, &(slice){2, 7, 4, 2, {2, 6}});
    assert_int_equal(calls(CH_PS_ROWS), 3);
    check_slice(v, &(slice){5, 3, 1, 0, {0}});
    assert_int_equal(calls(CH_PS_ROWS), 3);
    assert_int_equal(calls(CH_PS_READ), 0);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* SV-17, EM-4: rows in the order of the ids; the result has the shape of the ids, then that of a row. */
static void var_lookup_returns_rows_in_the_order_of_the_ids(void **state)
{
    const int64_t id[] = {21, 0, 12, 22, 10, 0};
    ch_strategy  *st = t_in_shards(3);
    ch_var       *v = t_table(st, "w", ch_shape_of(30));
    ch_tensor    *ids = t_ids(ch_shape_of(6), id), *more = t_ids(ch_shape_of(2, 1, 3), id);
    ch_tensor    *one = t_ids(ch_shape_scalar(), id), *t = NULL;

    (void)state;
    forget_said();
    t_ok(ch_var_lookup(v, ids, &t));
    t_same(t, ch_shape_of(6), (float[]){21, 0, 12, 22, 10, 0});
    assert_int_equal(calls(CH_PS_ROWS), 3);
    assert_int_equal(calls(CH_PS_READ), 0);
    t_ok(ch_var_lookup(v, more, &t));
    t_same(t, ch_shape_of(2, 1, 3), (float[]){21, 0, 12, 22, 10, 0});
    t_ok(ch_var_lookup(v, one, &t));
    t_same(t, ch_shape_scalar(), (float[]){21});
    ch_tensor_unref(ids);
    ch_tensor_unref(more);
    ch_tensor_unref(one);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* B22, 6.7.6: 13 rows in 5 shards. */
static void var_lookup_finds_rows_in_five_shards_of_thirteen_rows(void **state)
{
    static const int rows[] = {3, 3, 3, 2, 2};
    ch_strategy     *st = t_in_shards(5);
    ch_var          *v = t_table(st, "ids", ch_shape_of(13));
    ch_tensor       *ids = t_ids(ch_shape_of(3), (int64_t[]){12, 0, 9}), *t = NULL;
    float            next = 0;

    (void)state;
    assert_int_equal(ch_var_shards(v), 5);
    for (int i = 0; i < 5; i++) {
        t_var_is(ch_var_shard(v, i), (float[]){next, next + 1, next + 2});
        assert_int_equal(ch_var_shape(ch_var_shard(v, i)).dim[0], rows[i]);
        next += (float)rows[i];
    }
    t_ok(ch_var_row(ch_var_shard(v, 3), 0, &t));
    t_same(t, ch_shape_scalar(), (float[]){9});
    t_ok(ch_var_row(ch_var_shard(v, 4), 1, &t));
    t_same(t, ch_shape_scalar(), (float[]){12});
    t_ok(ch_var_lookup(v, ids, &t));
    t_same(t, ch_shape_of(3), (float[]){12, 0, 9});
    ch_tensor_unref(ids);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* SV-12: ids that are not integers or are out of range are rejected. */
static void var_lookup_rejects_ids_out_of_range_or_not_integer(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_var      *v = t_table(st, "w", ch_shape_of(8, 2)), *scalar = t_var_in(st, "s", 1);
    ch_tensor   *low = t_ids(ch_shape_of(2), (int64_t[]){1, -1}), *t = NULL;
    ch_tensor   *high = t_ids(ch_shape_of(1), (int64_t[]){8}), *f32 = t_counted(ch_shape_of(2));
    ch_tensor   *words = NULL;
    ch_var      *text;

    (void)state;
    t_ok(ch_tensor_copy_of(CH_STR, ch_shape_of(2), (const ch_str[]){{"a", 1}, {"b", 1}},
                           &words));
    text = t_var(st, "text", words);
    t_refused(ch_var_lookup(v, low, &t), CH_INVALID_ARGUMENT,
              "id -1 at position 1 is not in [0, 8)", "the rows of table w");
    t_refused(ch_var_lookup(v, high, &t), CH_INVALID_ARGUMENT, "lookup in w", "id 8");
    t_refused(ch_var_lookup(v, f32, &t), CH_INVALID_ARGUMENT, "f32", "i64");
    t_refused(ch_var_lookup(v, NULL, &t), CH_INVALID_ARGUMENT, "NULL", "i64");
    t_refused(ch_var_lookup(scalar, low, &t), CH_INVALID_ARGUMENT, "s", "scalar");
    t_refused(ch_var_slice(scalar, 0, 1, 1, &t), CH_INVALID_ARGUMENT, "s", "scalar");
    t_refused(ch_var_row(scalar, 0, &t), CH_INVALID_ARGUMENT, "s", "scalar");
    t_refused(ch_var_row(text, 0, &t), CH_UNIMPLEMENTED, "text", "strings");
    t_refused(ch_var_row(NULL, 0, &t), CH_INVALID_ARGUMENT, "row", "NULL");
    t_refused(ch_var_slice(v, 0, 1, 1, NULL), CH_INVALID_ARGUMENT, "slice", "NULL");
    ch_var_unref(text);
    ch_tensor_unref(low);
    ch_tensor_unref(high);
    ch_tensor_unref(f32);
    ch_var_unref(scalar);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* Each shard has some columns of every row. */
static void var_lookup_joins_rows_of_shards_along_the_last_axis(void **state)
{
    ch_partitioner p = ch_partitioner_fixed(3);
    ch_strategy   *st;
    ch_var        *v;
    ch_tensor     *ids = t_ids(ch_shape_of(3), (int64_t[]){2, 0, 2}), *t = NULL;

    (void)state;
    p.axis = -1;
    st = t_cluster(&(ch_local_cluster_options){.ps = 2},
                   &(ch_parameter_server_options){.partitioner = p}, NULL);
    v = t_table(st, "w", ch_shape_of(3, 4));
    assert_int_equal(ch_var_shards(v), 3);
    forget_said();
    t_ok(ch_var_lookup(v, ids, &t));
    t_same(t, ch_shape_of(3, 4), (float[]){8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11});
    assert_int_equal(calls(CH_PS_ROWS), 3);
    t_ok(ch_var_slice(v, none, none, -2, &t));
    t_same(t, ch_shape_of(2, 4), (float[]){8, 9, 10, 11, 0, 1, 2, 3});
    t_ok(ch_var_row(v, -2, &t));
    t_same(t, ch_shape_of(4), (float[]){4, 5, 6, 7});
    assert_int_equal(calls(CH_PS_READ), 0);
    ch_tensor_unref(ids);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

static void var_row_slice_and_lookup_read_a_variable_of_default(void **state)
{
    ch_var *v = t_table(NULL, "w", ch_shape_of(4, 2)),
           *empty = t_table(NULL, "e", ch_shape_of(0, 2));
    ch_tensor *ids = t_ids(ch_shape_of(2), (int64_t[]){3, 1}), *t = NULL;

    (void)state;
    t_ok(ch_var_lookup(v, ids, &t));
    t_same(t, ch_shape_of(2, 2), (float[]){6, 7, 2, 3});
    check_slice(v, &(slice){none, none, -3, 2, {3, 0}});
    t_ok(ch_var_row(v, -1, &t));
    t_same(t, ch_shape_of(2), (float[]){6, 7});
    t_ok(ch_var_slice(empty, none, none, 1, &t));
    t_same(t, ch_shape_of(0, 2), NULL);
    ch_tensor_unref(ids);
    ch_var_unref(empty);
    ch_var_unref(v);
}

/* If any allocation fails, the call returns an error and leaks nothing. Later, with memory, it
 * succeeds. */
static void var_lookup_and_slice_report_lack_of_memory(void **state)
{
    ch_var    *v = t_table(NULL, "w", ch_shape_of(4, 2));
    ch_tensor *ids = t_ids(ch_shape_of(2), (int64_t[]){3, 1}), *t = NULL;
    int        n_failed = 0;

    (void)state;
    for (int64_t n = 1; t == NULL; n++) {
        ch_status rc;

        ch__mem_fail_at(n);
        rc = ch_var_lookup(v, ids, &t);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || (rc == CH_RESOURCE_EXHAUSTED && t == NULL));
        n_failed += rc != CH_OK;
    }
    t_same(t, ch_shape_of(2, 2), (float[]){6, 7, 2, 3});
    assert_true(n_failed > 5);
    t = NULL;
    for (int64_t n = 1; t == NULL; n++) {
        ch_status rc;

        ch__mem_fail_at(n);
        rc = ch_var_slice(v, 1, 3, 1, &t);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || (rc == CH_RESOURCE_EXHAUSTED && t == NULL));
    }
    t_same(t, ch_shape_of(2, 2), (float[]){2, 3, 4, 5});
    ch_tensor_unref(ids);
    ch_var_unref(v);
}

/* ---- in steps ---- */

static void gather_step(ch_step *s, void *v)
{
    ch_step_out(s, "rows", ch_gather(ch_var_read(s, v), ch_step_in(s, 0), 0));
}

static ch_tensor *first_of(ch_tuple *out)
{
    ch_tensor *t = ch_tensor_ref(ch_value_at(ch_tuple_at(out, 0), 0));

    ch_tuple_unref(out);
    return t;
}

/* Runs a step that has a table and these inputs. */
static ch_tensor *run_with(ch_strategy *st, ch_step_fn step, void *arg, int n,
                           ch_tensor *const *in)
{
    ch_function *f = t_function(step, arg);
    ch_tuple    *given = t_tuple(n, in), *out = NULL;

    t_ok(ch_strategy_run(st, f, given, &out));
    ch_tuple_unref(given);
    ch_function_unref(f);
    return first_of(out);
}

/* EM-1, EM-2, EM-4: a gather for each shard, and no full read; a repeated id is requested
 * once. */
static void gather_in_a_step_calls_each_server_once(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_var      *v = t_table(st, "w", ch_shape_of(9, 1));
    ch_tensor   *ids = t_ids(ch_shape_of(2, 3), (int64_t[]){8, 0, 4, 4, 4, 8}), *t;
    ch_function *f = t_function(gather_step, v);
    ch_tuple    *in = t_tuple(1, &ids), *out = NULL;

    (void)state;
    t_ok(ch_strategy_run(st, f, in, NULL));
    forget_said();
    t_ok(ch_strategy_run(st, f, in, &out));
    t = first_of(out);
    t_same(t, ch_shape_of(2, 3, 1), (float[]){8, 0, 4, 4, 4, 8});
    assert_in_range(calls(CH_PS_ROWS), 2, 3); /* a call covers all shards on its server */
    assert_int_equal(calls(CH_PS_READ), 0);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

static void bounded_gather_step(ch_step *s, void *v)
{
    ch_node *rows = ch_gather(ch_var_read(s, v), ch_step_in(s, 0), 0);
    ch_node *norm = ch_sqrt(ch_sum(ch_square(rows), 1, (int[]){1}, true));

    ch_step_out(s, "rows",
                ch_mul(rows, ch_minimum(ch_div(ch_number(s, 5), norm), ch_number(s, 1))));
}

/* EM-5: rows are scaled down to a norm, here 5: [3, 4] stays, and [6, 8] does not. */
static void gather_with_a_maximum_norm_scales_rows_without_reading_the_table(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_var      *v = t_var(st, "w", t_f32(ch_shape_of(3, 2), (float[]){3, 4, 6, 8, 0.5f, 0}));
    ch_tensor   *ids = t_ids(ch_shape_of(3), (int64_t[]){1, 2, 0});

    (void)state;
    forget_said();
    t_same(run_with(st, bounded_gather_step, v, 1, &ids), ch_shape_of(3, 2),
           (float[]){3, 4, 0.5f, 0, 3, 4});
    assert_int_equal(calls(CH_PS_READ), 0);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

typedef struct bag {
    ch_var     *table;
    ch_combiner combiner;
    bool        weighted;
    ch_tensor  *one; /* (1, 1); not NULL: rows are divided by the norm of the weights */
} bag;

static void bag_step(ch_step *s, void *arg)
{
    const bag *b = arg;
    ch_node   *ids = ch_step_in(s, 0), *splits = ch_step_in(s, 1);
    ch_node   *weights = b->weighted ? ch_step_in(s, 2) : NULL;
    ch_node   *rows = ch_gather(ch_var_read(s, b->table), ids, 0); /* no full read */

    rows = ch_embedding_bag(rows, ch_range_like(ids, 0, CH_I64), splits,
                            &(ch_bag_options){.combiner = b->combiner, .weights = weights});

    if (b->one != NULL) {
        ch_node *squares =
            ch_embedding_bag(ch_constant(s, b->one), ch_mul(ids, ch_number(s, 0)), splits,
                             &(ch_bag_options){.weights = ch_square(weights), .like = rows});

        rows = ch_div(rows, ch_sqrt(squares));
    }
    ch_step_out(s, "rows", rows);
}

/* Shards [[1,2],[3,4]], [[5,6],[7,8]], [[9,10]]. */
static ch_var *five_rows(ch_strategy *st)
{
    return t_var(st, "w", t_f32(ch_shape_of(5, 2), (float[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

static ch_tensor *run_bag(ch_strategy *st, bag *b)
{
    ch_tensor *in[] = {t_ids(ch_shape_of(4), (int64_t[]){0, 3, 4, 1}),
                       t_ids(ch_shape_of(4), (int64_t[]){0, 2, 3, 4}),
                       t_f32(ch_shape_of(4), (float[]){3, 4, 2, 4})};

    if (!b->weighted)
        ch_tensor_unref(in[2]);
    return run_with(st, bag_step, b, b->weighted ? 3 : 2, in);
}

/* EM-6, EM-8: rows {0, 3}, {4}, {1}; combined by sum, by mean, and with weights. */
static void embedding_bag_combines_rows_by_sum_and_mean_with_weights(void **state)
{
    ch_strategy *st = t_in_shards(3);
    bag          b = {.table = five_rows(st), .combiner = CH_COMBINE_MEAN};
    ch_tensor   *ids = t_ids(ch_shape_of(3), (int64_t[]){0, 3, 4});

    (void)state;
    forget_said();
    t_same(run_with(st, gather_step, b.table, 1, &ids), ch_shape_of(3, 2),
           (float[]){1, 2, 7, 8, 9, 10});
    t_same(run_bag(st, &b), ch_shape_of(3, 2), (float[]){4, 5, 9, 10, 3, 4});
    b.weighted = true;
    t_same(run_bag(st, &b), ch_shape_of(3, 2), (float[]){31.f / 7, 38.f / 7, 9, 10, 3, 4});
    b.combiner = CH_COMBINE_SUM;
    t_same(run_bag(st, &b), ch_shape_of(3, 2), (float[]){31, 38, 18, 20, 12, 16});
    b.one = t_f32(ch_shape_of(1, 1), (float[]){1});
    t_same(run_bag(st, &b), ch_shape_of(3, 2), (float[]){6.2f, 7.6f, 9, 10, 3, 4});
    assert_int_equal(calls(CH_PS_READ), 0);
    ch_tensor_unref(b.one);
    ch_var_unref(b.table);
    ch_strategy_unref(st);
}

static void bag_of_what_is_left_step(ch_step *s, void *v)
{
    ch_node *ids = ch_step_in(s, 0), *rows = ch_gather(ch_var_read(s, v), ids, 0);

    ch_step_out(s, "rows",
                ch_embedding_bag(rows, ch_range_like(ids, 0, CH_I64), ch_step_in(s, 1),
                                 &(ch_bag_options){.combiner = CH_COMBINE_MEAN}));
}

/* EM-7, EM-8: the lists are {0, -1}, {4 with weight -1} and {1}. The remaining ids are {0}, {}
 * and {1}. Negative ids are not rows in any step. */
static void embedding_bag_gives_zeros_for_a_list_without_ids(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_var      *v = five_rows(st);
    ch_function *f = t_function(bag_of_what_is_left_step, v);
    ch_tensor   *in[] = {t_ids(ch_shape_of(2), (int64_t[]){0, 1}),
                         t_ids(ch_shape_of(4), (int64_t[]){0, 1, 1, 2})};
    ch_tuple    *bad = t_tuple(
           2, (ch_tensor *[]){t_ids(ch_shape_of(2), (int64_t[]){0, -1}), ch_tensor_ref(in[1])});

    (void)state;
    t_same(run_with(st, bag_of_what_is_left_step, v, 2, in), ch_shape_of(3, 2),
           (float[]){1, 2, 0, 0, 3, 4});
    t_refused(ch_strategy_run(st, f, bad, NULL), CH_INVALID_ARGUMENT,
              "id -1 at position 1 is not in [0, 5)", "the rows of table w");
    ch_tuple_unref(bad);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* ---- bags as a layer ---- */

typedef struct bags {
    ch_layer     *layer;
    ch_optimizer *optimizer;
} bags;

/* The inputs are ids and row_splits. The ids after the last split are padding. */
static void train_bags(ch_step *s, void *arg)
{
    bags          *b = arg;
    ch_node       *in[] = {ch_step_in(s, 0), ch_step_in(s, 1)}, *out, *loss;
    ch_var *const *var;
    int            n;

    out = ch_layer_call_n(b->layer, s, 2, in, true);
    loss = ch_sum_all(ch_square(out));
    n = ch_layer_trainable(b->layer, &var);
    ch_optimizer_minimize(b->optimizer, s, loss, n, var);
    ch_step_out(s, "loss", loss);
}

static ch_tuple *bags_of(const int64_t *ids, int n)
{
    static const int64_t splits[] = {0, 2, 2, 5};
    ch_tensor           *t[2] = {NULL};

    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(n), ids, &t[0]));
    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(4), splits, &t[1]));
    return t_tuple(2, t);
}

static float loss_after(ch_strategy *st, int steps)
{
    static const int64_t ids[] = {3, 19, 0, 3, 7, -1, 99}; /* the last two are padding */
    bags                 b = {.layer = ch_layer_embedding_bag(20, 4, CH_COMBINE_MEAN, NULL)};
    ch_function         *f = t_function(train_bags, &b);
    ch_tuple            *in = bags_of(ids, 7), *out = NULL;
    float                loss = 0;

    t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &b.optimizer));
    for (int i = 0; i < steps; i++) {
        t_ok(ch_strategy_run(st, f, in, &out));
        loss = *t_floats(out, 0, 0);
        ch_tuple_unref(out);
    }
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_optimizer_unref(b.optimizer);
    ch_layer_unref(b.layer);
    return loss;
}

/* EM-1, EM-6: only rows are requested, and the numbers equal those of a table in this
 * process. */
static void embedding_bag_layer_reads_rows_but_not_the_table(void **state)
{
    ch_strategy *st = t_in_shards(3);
    float        want = loss_after(NULL, 5);

    (void)state;
    forget_said();
    assert_true(fabsf(loss_after(st, 5) - want) <= 1e-6f * fabsf(want));
    assert_true(calls(CH_PS_ROWS) > 0);
    assert_true(atomic_load(&most) <= 1); /* only the learning rate is read whole */
    ch_strategy_unref(st);
}

/* ---- bags of a large table ---- */

enum { TABLE_ROWS = 20000, TABLE_WIDTH = 8 };

typedef struct large_bag {
    ch_var       *table;
    ch_optimizer *optimizer;
    bool          weighted;
    ch_combiner   combiner;
} large_bag;

static void train_large_bag(ch_step *s, void *arg)
{
    const large_bag *b = arg;
    ch_bag_options   opt = {.combiner = b->combiner,
                            .weights = b->weighted ? ch_step_in(s, 2) : NULL};
    ch_node         *y =
        ch_embedding_bag(ch_var_read(s, b->table), ch_step_in(s, 0), ch_step_in(s, 1), &opt);
    ch_node *loss = ch_sum_all(ch_square(ch_sub(y, ch_number(s, 1))));

    ch_optimizer_minimize(b->optimizer, s, loss, 1, (ch_var *[]){b->table});
    ch_step_out(s, "loss", loss);
}

/* Returns the loss of the third step. Stores the bytes that this step sent and received. */
static float train_large(ch_strategy *st, bool weighted, ch_combiner combiner, long long *bytes)
{
    large_bag    b = {.table =
                          t_var(st, "table", t_noise(ch_shape_of(TABLE_ROWS, TABLE_WIDTH), 3)),
                      .weighted = weighted,
                      .combiner = combiner};
    ch_function *f = t_function(train_large_bag, &b);
    ch_tensor   *in[] = {
          t_ids(ch_shape_of(6), (int64_t[]){7, 19999, 7, 12000, 5, -3}),
          t_ids(ch_shape_of(4), (int64_t[]){0, 3, 3, 5}), /* the last id is padding */
          t_f32(ch_shape_of(6), (float[]){1, 2, 0.5f, 3, 1, 9})};
    ch_tuple *args;
    float     loss = 0;

    if (!weighted)
        ch_tensor_unref(in[2]);
    args = t_tuple(weighted ? 3 : 2, in);
    t_ok(ch_optimizer_adagrad(0.1, NULL, NULL, &b.optimizer));
    for (int i = 0; i < 3; i++) {
        ch_tuple *out = NULL;

        forget_said();
        t_ok(ch_strategy_run(st, f, args, &out));
        loss = *t_floats(out, 0, 0);
        ch_tuple_unref(out);
    }
    *bytes = atomic_load(&moved);
    ch_tuple_unref(args);
    ch_function_unref(f);
    ch_optimizer_unref(b.optimizer);
    ch_var_unref(b.table);
    return loss;
}

/* EM-1: a step sends and receives its few rows, and not the table of 640,000 bytes. */
static void embedding_bag_moves_only_its_rows_when_the_table_is_on_servers(void **state)
{
    ch_strategy *st = t_in_shards(3);
    long long    bytes = 0, none_here = 0;

    (void)state;
    for (int weighted = 0; weighted < 2; weighted++)
        for (int mean = 0; mean < 2; mean++) {
            ch_combiner how = mean ? CH_COMBINE_MEAN : CH_COMBINE_SUM;
            float       want = train_large(NULL, weighted, how, &none_here);
            float       is = train_large(st, weighted, how, &bytes);

            assert_true(fabsf(is - want) <= 1e-5f * fabsf(want));
            assert_in_range(bytes, 4 * TABLE_WIDTH * sizeof(float), 4096);
        }
    assert_int_equal(none_here, 0);
    ch_strategy_unref(st);
}

static void only_bag_step(ch_step *s, void *table)
{
    ch_step_out(
        s, "y",
        ch_embedding_bag(ch_var_read(s, table), ch_step_in(s, 0), ch_step_in(s, 1), NULL));
}

static void embedding_bag_names_itself_and_the_table_when_an_id_is_out_of_range(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_var      *words = t_table(st, "words", ch_shape_of(8, 2));
    ch_function *f = t_function(only_bag_step, words);
    ch_tuple    *in = t_tuple(2, (ch_tensor *[]){t_ids(ch_shape_of(3), (int64_t[]){1, 2, -1}),
                                                 t_ids(ch_shape_of(3), (int64_t[]){0, 1, 3})});

    (void)state;
    t_refused(ch_strategy_run(st, f, in, NULL), CH_INVALID_ARGUMENT,
              "embedding_bag of table words: id -1 at position 2 is not in [0, 8)",
              CH_HAVE_LIBDW ? "at test_lookup.c:" : "worker/");
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_var_unref(words);
    ch_strategy_unref(st);
}

/* ---- scatters ---- */

typedef ch_node *(*scatter_fn)(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);

typedef struct scatter {
    scatter_fn fn;
    ch_var    *v;
} scatter;

static void scatter_step(ch_step *s, void *arg)
{
    const scatter *c = arg;

    c->fn(s, c->v, ch_step_in(s, 0), ch_step_in(s, 1));
}

static void scatter_to(ch_strategy *st, scatter *c)
{
    ch_function *f = t_function(scatter_step, c);
    ch_tensor   *in[] = {t_ids(ch_shape_of(5), (int64_t[]){7, 0, 3, 7, 4}),
                         t_f32(ch_shape_of(5, 2), (float[]){2, 4, -1, 8, 0.5f, 2, 3, 1, 16, -2})};
    ch_tuple    *given = t_tuple(2, in);

    t_ok(ch_strategy_run(st, f, given, NULL));
    ch_tuple_unref(given);
    ch_function_unref(f);
}

/* SV-16: the result equals that of a whole variable; rows with equal ids are applied in
 * order. */
static void scatter_on_shards_equals_scatter_on_a_whole_variable(void **state)
{
    static const scatter_fn fn[] = {
        ch_var_scatter_add, ch_var_scatter_sub, ch_var_scatter_mul,   ch_var_scatter_div,
        ch_var_scatter_min, ch_var_scatter_max, ch_var_scatter_update};
    ch_strategy *st = t_in_shards(3);

    (void)state;
    for (size_t i = 0; i < sizeof(fn) / sizeof(fn[0]); i++) {
        scatter    cut = {fn[i], t_table(st, "w", ch_shape_of(8, 2))};
        scatter    whole = {fn[i], t_table(NULL, "w", ch_shape_of(8, 2))};
        ch_tensor *want = NULL;

        scatter_to(st, &cut);
        scatter_to(NULL, &whole);
        t_ok(ch_var_get(whole.v, &want));
        t_var_is(cut.v, ch_tensor_data(want));
        ch_tensor_unref(want);
        ch_var_unref(cut.v);
        ch_var_unref(whole.v);
    }
    ch_strategy_unref(st);
}

/* ---- two changes in a step ---- */

/* After the seven scatters. */
enum { OPTIMIZER = 7, ASSIGN_ADD, WHOLE_READ, CHANGES };

/* Which inputs the second change shares with the first. */
enum { SHARE_NONE, SHARE_IDS, SHARE_ROWS, SHARE_BOTH, SHARINGS };

typedef struct two_changes {
    int           kind[2]; /* 0 to 6: a scatter */
    int           sharing;
    bool          is_returned;
    ch_var       *v;
    ch_optimizer *optimizer;
} two_changes;

static void two_changes_step(ch_step *s, void *arg)
{
    static const scatter_fn fn[] = {
        ch_var_scatter_add, ch_var_scatter_sub, ch_var_scatter_mul,   ch_var_scatter_div,
        ch_var_scatter_min, ch_var_scatter_max, ch_var_scatter_update};
    const two_changes *c = arg;

    for (int i = 0; i < 2; i++) {
        bool     ids_are_shared = c->sharing == SHARE_IDS || c->sharing == SHARE_BOTH;
        bool     rows_are_shared = c->sharing == SHARE_ROWS || c->sharing == SHARE_BOTH;
        ch_node *ids = ch_step_in(s, ids_are_shared ? 0 : 2 * i);
        ch_node *rows = ch_step_in(s, rows_are_shared ? 1 : 2 * i + 1);

        if (c->kind[i] < OPTIMIZER) {
            fn[c->kind[i]](s, c->v, ids, rows);
        } else if (c->kind[i] == ASSIGN_ADD) {
            ch_var_assign_add(s, c->v, ch_number(s, 3));
        } else if (c->kind[i] == WHOLE_READ) {
            ch_step_out(s, i == 0 ? "a" : "b", ch_sum_all(ch_var_read(s, c->v)));
        } else {
            ch_node *y = ch_mul(ch_gather(ch_var_read(s, c->v), ids, 0), rows);

            ch_optimizer_minimize(c->optimizer, s, ch_sum_all(y), 1, &c->v);
        }
    }
    if (c->is_returned)
        ch_step_out(s, "w", ch_var_read(s, c->v));
}

/* Runs a step with two changes twice. Returns the value of the variable. */
static ch_tensor *change_twice(ch_strategy *st, two_changes c)
{
    ch_function *f = t_function(two_changes_step, &c);
    ch_tensor   *value = NULL;
    ch_tensor   *in[] = {t_ids(ch_shape_of(4), (int64_t[]){7, 0, 7, 2}),
                         t_f32(ch_shape_of(4, 2), (float[]){2, 4, -1, 8, 0.5f, 2, 8, -4}),
                         t_ids(ch_shape_of(4), (int64_t[]){3, 7, 4, 0}),
                         t_f32(ch_shape_of(4, 2), (float[]){3, 1, 16, -2, 1, 4, 0.25f, 8})};
    ch_tuple    *given = t_tuple(4, in);

    c.v = t_table(st, "w", ch_shape_of(8, 2));
    t_ok(ch_optimizer_sgd(0.5, NULL, NULL, &c.optimizer));
    for (int i = 0; i < 2; i++)
        if (ch_strategy_run(st, f, given, NULL) != CH_OK)
            fail_msg("changes %d and %d, inputs %d: %s", c.kind[0], c.kind[1], c.sharing,
                     ch_error_message());
    t_ok(ch_var_get(c.v, &value));
    ch_tuple_unref(given);
    ch_function_unref(f);
    ch_optimizer_unref(c.optimizer);
    ch_var_unref(c.v);
    return value;
}

static void compare_changes(ch_strategy *const *st, two_changes c)
{
    ch_tensor *want = change_twice(NULL, c);

    for (int i = 0; i < 3; i++) {
        ch_tensor *have = change_twice(st[i], c);

        if (memcmp(ch_tensor_data(have), ch_tensor_data(want), ch_tensor_bytes(want)) != 0)
            fail_msg("changes %d and %d, inputs %d, result %d: strategy %d differs", c.kind[0],
                     c.kind[1], c.sharing, c.is_returned, i);
        ch_tensor_unref(have);
    }
    ch_tensor_unref(want);
}

/* SV-16: as a variable in one piece on a server, and as a variable of Default. */
static void two_changes_of_a_divided_variable_in_a_step_equal_those_of_a_whole(void **state)
{
    ch_partitioner columns = ch_partitioner_fixed(2);
    ch_strategy   *st[] = {t_in_shards(3), t_in_shards(1), NULL};

    (void)state;
    columns.axis = -1;
    st[2] = t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2},
                      &(ch_parameter_server_options){.partitioner = columns}, NULL);
    for (int i = 0; i < CHANGES * CHANGES * SHARINGS; i++)
        compare_changes(st, (two_changes){.kind = {i % CHANGES, i / CHANGES % CHANGES},
                                          .sharing = i / CHANGES / CHANGES,
                                          .is_returned = i % 3 == 0});
    for (int i = 0; i < 3; i++)
        ch_strategy_unref(st[i]);
}

/* SV-14: ids must have rank 1. */
static void scatter_rejects_ids_of_rank_two(void **state)
{
    ch_strategy *st = t_in_shards(3);
    scatter      c = {ch_var_scatter_add, t_table(st, "w", ch_shape_of(8, 2))};
    ch_function *f = t_function(scatter_step, &c);
    ch_tuple    *in = t_tuple(2, (ch_tensor *[]){t_ids(ch_shape_of(1, 2), (int64_t[]){1, 2}),
                                                 t_counted(ch_shape_of(1, 2, 2))});

    (void)state;
    assert_int_equal(ch_strategy_run(st, f, in, NULL), CH_INVALID_ARGUMENT);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_var_unref(c.v);
    ch_strategy_unref(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(var_row_reads_one_shard),
        cmocka_unit_test(var_slice_spans_shards),
        cmocka_unit_test(var_slice_calls_only_servers_with_rows_of_the_slice),
        cmocka_unit_test(var_lookup_returns_rows_in_the_order_of_the_ids),
        cmocka_unit_test(var_lookup_finds_rows_in_five_shards_of_thirteen_rows),
        cmocka_unit_test(var_lookup_rejects_ids_out_of_range_or_not_integer),
        cmocka_unit_test(var_lookup_joins_rows_of_shards_along_the_last_axis),
        cmocka_unit_test(var_row_slice_and_lookup_read_a_variable_of_default),
        cmocka_unit_test(var_lookup_and_slice_report_lack_of_memory),
        cmocka_unit_test(gather_in_a_step_calls_each_server_once),
        cmocka_unit_test(gather_with_a_maximum_norm_scales_rows_without_reading_the_table),
        cmocka_unit_test(embedding_bag_combines_rows_by_sum_and_mean_with_weights),
        cmocka_unit_test(embedding_bag_gives_zeros_for_a_list_without_ids),
        cmocka_unit_test(embedding_bag_layer_reads_rows_but_not_the_table),
        cmocka_unit_test(embedding_bag_moves_only_its_rows_when_the_table_is_on_servers),
        cmocka_unit_test(embedding_bag_names_itself_and_the_table_when_an_id_is_out_of_range),
        cmocka_unit_test(scatter_on_shards_equals_scatter_on_a_whole_variable),
        cmocka_unit_test(two_changes_of_a_divided_variable_in_a_step_equal_those_of_a_whole),
        cmocka_unit_test(scatter_rejects_ids_of_rank_two),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
