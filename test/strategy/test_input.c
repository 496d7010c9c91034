/* test/strategy/test_input.c -- datasets and iterators for the replicas of a strategy.
 *
 * The numbers in comments are rows of doc/conformance.md and doc/seed-examples.md. The division
 * of batches and data is tested in test/data/test_distribute.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../data/pipeline.h"
#include "../file/folder.h"
#include "base/mem.h"
#include "values.h"

#define N(...) ((const double[]){__VA_ARGS__})

static ch_dataset *batches(int64_t n, int64_t size)
{
    return ch_dataset_batch(ch_dataset_range(0, n, 1), size, NULL);
}

/* Returns all elements of `it` as text; "/" separates replicas. */
static const char *all_of(ch_iterator *it)
{
    static t_given g;

    memset(&g, 0, sizeof(g));
    t_take(it, -1, &g);
    return g.text;
}

/* Distributes d and compares its elements with the expected text. Takes over the reference
 * `d`. */
static void gives(ch_strategy *st, ch_dataset *d, const ch_input_options *opt, const char *want)
{
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, opt, &it));
    ch_dataset_unref(d);
    assert_string_equal(all_of(it), want);
    ch_iterator_unref(it);
}

static void refuses(ch_strategy *st, ch_dataset *d, const ch_input_options *opt, ch_status rc,
                    const char *word, const char *other)
{
    ch_iterator *it = NULL;

    t_refused(ch_strategy_distribute_dataset(st, d, opt, &it), rc, word, other);
    assert_null(it);
    ch_dataset_unref(d);
}

/* ---- elements of replicas ---- */

static void twice(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_mul(ch_step_in(s, 0), ch_number(s, 2)));
}

static void plus_1(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_add(ch_step_in(s, 0), ch_number(s, 1)));
}

static void sum(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "sum", ch_sum_all(ch_step_in(s, 0)));
}

static void mean(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "mean", ch_mean_all(ch_cast(ch_step_in(s, 0), CH_F32)));
}

/* Returns the results of `step` on all elements of d. Takes over the reference `d`. */
static const char *results(ch_strategy *st, ch_dataset *d, ch_step_fn step)
{
    static t_given g;
    ch_function   *f = t_function(step, NULL);
    ch_iterator   *it = NULL;
    ch_tuple      *batch = NULL;

    memset(&g, 0, sizeof(g));
    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (;;) {
        ch_tuple *out = NULL;

        t_ok(ch_iterator_next(it, &batch));
        if (batch == NULL)
            break;
        t_ok(ch_strategy_run(st, f, batch, &out));
        t_add_tuple(&g, out);
        ch_tuple_unref(out);
        ch_tuple_unref(batch);
    }
    assert_int_equal(ch_function_recordings(f), 1); /* also for short and empty batches */
    ch_dataset_unref(d);
    ch_iterator_unref(it);
    ch_function_unref(f);
    return g.text;
}

/* B1, 2.1.1, 5.7.2, 5.8.1 */
static void distribute_dataset_puts_parts_on_the_devices_of_replicas(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_dataset  *d = batches(4, 2);
    ch_iterator *it = NULL;
    ch_tuple    *batch = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (int step = 0; step < 2; step++) {
        ch_value *v;

        t_ok(ch_iterator_get_next(it, &batch));
        v = ch_tuple_at(batch, 0);
        assert_int_equal(ch_value_kind_of(v), CH_PER_REPLICA);
        assert_int_equal(ch_value_count(v), 2);
        for (int r = 0; r < 2; r++) {
            t_is(ch_value_at(v, r), CH_I64, ch_shape_of(1), N(2 * step + r));
            t_on(ch_value_at(v, r), r == 0 ? "GPU:0" : "GPU:1");
        }
        ch_tuple_unref(batch);
    }
    t_ok(ch_iterator_next(it, &batch));
    assert_null(batch);
    ch_iterator_unref(it);
    assert_string_equal(results(st, d, twice), "0 / 2 | 4 / 6");
    ch_strategy_unref(st);
    (void)state;
}

/* 5.7.2: elsewhere on the host */
static void distribute_dataset_leaves_elements_on_the_host_on_request(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_dataset  *d = batches(4, 2);
    ch_iterator *it = NULL;
    ch_tuple    *batch = NULL;

    t_ok(ch_strategy_distribute_dataset(
        st, d, &(ch_input_options){.fetch_to_device = CH_OFF, .per_replica_buffer = 2}, &it));
    t_ok(ch_iterator_get_next(it, &batch));
    for (int r = 0; r < 2; r++)
        t_on(ch_value_at(ch_tuple_at(batch, 0), r), "CPU:0");
    ch_tuple_unref(batch);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_strategy_unref(st);
    (void)state;
}

/* 8.1, B12, 5.4.11, 5.4.12 */
static void distribute_dataset_divides_batches_among_replicas(void **state)
{
    for (int i = 0; i < 2; i++) {
        ch_strategy *st = i == 0 ? t_mirrored(2) : t_central(2);

        gives(st, batches(6, 8), NULL, "0 1 2 3 / 4 5");
        gives(st, batches(6, 8), &(ch_input_options){.split = CH_SPLIT_EVEN}, "0 1 2 / 3 4 5");
        gives(st, batches(14, 8), NULL, "0 1 2 3 / 4 5 6 7 | 8 9 10 11 / 12 13");
        gives(st, batches(9, 4), NULL, "0 1 / 2 3 | 4 5 / 6 7 | 8 / ");
        gives(st, ch_dataset_batch(ch_dataset_range(5, 8, 1), 4, NULL), NULL, "5 6 / 7");
        assert_string_equal(
            results(st, ch_dataset_batch(ch_dataset_range(5, 8, 1), 4, NULL), mean), "5.5 / 7");
        gives(st,
              ch_dataset_batch(ch_dataset_range(5, 7, 1), 1,
                               &(ch_batch_options){.drop_remainder = true}),
              NULL, "5 /  | 6 / ");
        gives(st, batches(0, 4), NULL, "");
        ch_strategy_unref(st);
    }
    (void)state;
}

static void square_and_zeros(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "square", ch_square(ch_step_in(s, 0)));
    ch_step_out(s, "zeros", ch_fill(s, CH_F32, ch_shape_of(3), 0));
}

static void add_all_rows(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, ch_cast(ch_sum_all(ch_step_in(s, 0)), CH_F32));
}

/* 5.4.14: 5 to 8 in batches of 2, added up in a variable until the end: 26 after two steps */
static void rows_add_up_to_the_same_under_each_strategy(void **state)
{
    ch_strategy *st[] = {NULL,          t_one_device(), t_mirrored(1),
                         t_mirrored(2), t_mirrored(3),  t_central(2)};

    for (int i = 0; i < 6; i++) {
        ch_dataset  *d = ch_dataset_batch(ch_dataset_range(5, 9, 1), 2, NULL);
        ch_var      *v = NULL;
        ch_function *f;
        ch_iterator *it = NULL;
        ch_tuple    *batch = NULL;
        ch_tensor   *total = NULL;
        int          n_steps = 0;

        t_ok(ch_var_new(st[i], &(ch_var_spec){.aggregation = CH_AGGREGATE_SUM}, &v));
        f = t_function(add_all_rows, v);
        t_ok(ch_strategy_distribute_dataset(st[i], d, NULL, &it));
        for (;; n_steps++) {
            t_ok(ch_iterator_next(it, &batch));
            if (batch == NULL)
                break;
            t_ok(ch_strategy_run(st[i], f, batch, NULL));
            ch_tuple_unref(batch);
        }
        assert_int_equal(n_steps, 2);
        t_ok(ch_var_get(v, &total));
        t_gave_number(total, CH_F32, 26);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
        ch_function_unref(f);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* 5.4.10 */
static void a_step_takes_a_batch_of_no_rows(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_tensor   *five = t_of(CH_F32, ch_shape_of(1), N(5));
    ch_dataset  *d = ch_dataset_batch(ch_dataset_slices(1, &five, NULL), 2, NULL);

    assert_string_equal(results(st, d, square_and_zeros), "25 / , 0 0 0 / 0 0 0");
    ch_tensor_unref(five);
    ch_strategy_unref(st);
    (void)state;
}

typedef struct training {
    ch_model     *model;
    ch_optimizer *optimizer;
} training;

static void train(ch_step *s, void *arg)
{
    training      *t = arg;
    ch_node       *x = ch_step_in(s, 0), *y = ch_model_call(t->model, s, x, true);
    ch_node       *loss = ch_loss_average(ch_loss_mse(y, x), NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(t->model, &var);

    ch_optimizer_minimize(t->optimizer, s, loss, n, var);
    ch_step_out(s, "loss", loss);
}

/* Copies all numbers of a model, including those of batch norm. Returns their number. */
static int numbers_of(ch_model *m, float *out)
{
    ch_var *const *var;
    int            n = ch_model_vars(m, &var), count = 0;

    for (int i = 0; i < n; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(var[i], &t));
        memcpy(out + count, ch_tensor_data(t), ch_tensor_bytes(t));
        count += (int)ch_tensor_count(t);
        ch_tensor_unref(t);
    }
    return count;
}

/* 5.4.13 */
static void training_on_no_rows_changes_nothing(void **state)
{
    ch_model_options shapes = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 3)}}};
    ch_strategy     *st = t_mirrored(2);
    training         t = {NULL, NULL};
    ch_function     *f = t_function(train, &t);
    ch_tuple        *in =
        t_one(t_both(t_f32(ch_shape_of(0, 3), NULL), t_f32(ch_shape_of(0, 3), NULL)), NULL);
    float before[64], after[64];
    int   n;

    t_ok(ch_model_new(
        st,
        ch_layer_sequential("net", 2,
                            (ch_layer *[]){ch_layer_dense(3, NULL), ch_layer_batch_norm(NULL)}),
        &shapes, &t.model));
    t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &t.optimizer));
    n = numbers_of(t.model, before);
    assert_int_equal(n, 3 * 3 + 3 + 4 * 3);
    for (int i = 0; i < 100; i++) {
        ch_tuple  *out = NULL;
        ch_tensor *loss = NULL;

        t_ok(ch_strategy_run(st, f, in, &out));
        t_ok(ch_strategy_reduce(st, CH_SUM, ch_tuple_get(out, "loss"), CH_NO_AXIS, &loss));
        t_gave_number(loss, CH_F32, 0);
        ch_tuple_unref(out);
    }
    assert_int_equal(numbers_of(t.model, after), n);
    assert_memory_equal(before, after, (size_t)n * sizeof(float));
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_optimizer_unref(t.optimizer);
    ch_model_unref(t.model);
    ch_strategy_unref(st);
    (void)state;
}

/* 5.1.1, 5.1.2, 1.5.1, 6.3.6, 5.8.1, 5.9.4: with a single replica elements are not divided, and
 * values are plain */
static void distribute_dataset_gives_one_replica_whole_elements(void **state)
{
    ch_strategy *st[] = {NULL, t_one_device(), t_mirrored(1), t_central(1)};

    for (int i = 0; i < 4; i++) {
        ch_dataset  *d = ch_dataset_range(0, 10, 1);
        ch_iterator *it = NULL;
        ch_tuple    *e = NULL;

        t_ok(ch_strategy_distribute_dataset(st[i], d, NULL, &it));
        t_ok(ch_iterator_get_next(it, &e));
        assert_int_equal(ch_value_kind_of(ch_tuple_at(e, 0)), CH_PLAIN);
        t_is(ch_value_at(ch_tuple_at(e, 0), 0), CH_I64, ch_shape_scalar(), N(0));
        t_on(ch_value_at(ch_tuple_at(e, 0), 0), i == 0 ? "CPU:0" : "GPU:0");
        ch_tuple_unref(e);
        assert_string_equal(all_of(it), "1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9");
        ch_iterator_unref(it);
        ch_dataset_unref(d);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* 5.2.3, 8.6 */
static void distribute_dataset_rejects_scalar_elements(void **state)
{
    ch_strategy *st = t_mirrored(2);

    refuses(st, ch_dataset_range(0, 10, 1), NULL, CH_INVALID_ARGUMENT, "scalar", "batch");
    refuses(st, NULL, NULL, CH_INVALID_ARGUMENT, "dataset is NULL", "");
    t_refused(ch_strategy_distribute_dataset(st, NULL, NULL, NULL), CH_INVALID_ARGUMENT, "out",
              "NULL");
    ch_strategy_unref(st);
    (void)state;
}

/* ---- examples of the pages ---- */

/* B29, 5.9.8 */
static void make_numpy_dataset_gives_rows_of_an_array(void **state)
{
    ch_strategy *two = t_mirrored(2), *one = t_mirrored(1);
    double       ones[10];
    ch_tensor   *t;

    for (int i = 0; i < 10; i++)
        ones[i] = 1;
    t = t_of(CH_F32, ch_shape_of(10), ones);
    gives(one, ch_strategy_make_numpy_dataset(one, 1, &t, NULL), NULL,
          "1 | 1 | 1 | 1 | 1 | 1 | 1 | 1 | 1 | 1");
    refuses(two, ch_strategy_make_numpy_dataset(two, 1, &t, NULL), NULL, CH_INVALID_ARGUMENT,
            "scalar", "batch");
    gives(two, ch_dataset_batch(ch_strategy_make_numpy_dataset(two, 1, &t, NULL), 4, NULL),
          NULL, "1 1 / 1 1 | 1 1 / 1 1 | 1 1 / ");
    ch_tensor_unref(t);
    ch_strategy_unref(two);
    ch_strategy_unref(one);
    (void)state;
}

/* 5.9.8 */
static void make_numpy_dataset_copies_arrays_and_keeps_their_order(void **state)
{
    ch_strategy *st = t_mirrored(2), *one = NULL;
    ch_tensor   *xy[] = {t_counting(CH_F32, ch_shape_of(6, 2), 0),
                         t_counting(CH_I32, ch_shape_of(6), 100)};
    ch_dataset  *d = ch_strategy_make_numpy_dataset(st, 2, xy, (const char *[]){"x", "y"});
    ch_iterator *it = NULL;
    const char  *pass = "0 1 2 3 4 5 / 6 7 8 9 10 11, 100 101 102 / 103 104 105";
    char         both[200];

    ((float *)ch_tensor_data_mut(xy[0]))[0] = 77; /* the dataset has a copy */
    d = ch_dataset_batch(ch_dataset_repeat(d, 2), 6, NULL);
    t_ok(ch_strategy_make_dataset_iterator(st, d, &it)); /* 5.9.1 */
    snprintf(both, sizeof(both), "%s | %s", pass, pass);
    assert_string_equal(all_of(it), both);
    t_refused(ch_iterator_get_next(it, &(ch_tuple *){NULL}), CH_OUT_OF_RANGE, "end of the data",
              "");
    t_ok(ch_iterator_restart(it)); /* 5.9.5: as after initialize */
    assert_string_equal(all_of(it), both);
    ch_iterator_unref(it);
    t_ok(ch_strategy_one_device("/cpu:0", &one));
    t_ok(ch_strategy_make_dataset_iterator(one, d, &it)); /* 5.9.1: a device does not split */
    assert_string_equal(all_of(it), "0 1 2 3 4 5 6 7 8 9 10 11, 100 101 102 103 104 105 | "
                                    "0 1 2 3 4 5 6 7 8 9 10 11, 100 101 102 103 104 105");
    ch_iterator_unref(it);
    ch_strategy_unref(one);
    ch_dataset_unref(d);
    assert_null(ch_strategy_make_numpy_dataset(st, 0, xy, NULL));
    assert_non_null(strstr(ch_error_message(), "got 0, want 1 to 256"));
    assert_null(ch_strategy_make_numpy_dataset(st, 1, &(ch_tensor *){NULL}, NULL));
    assert_non_null(strstr(ch_error_message(), "NULL"));
    ch_tensor_unref(xy[0]);
    ch_tensor_unref(xy[1]);
    ch_strategy_unref(st);
    (void)state;
}

/* Returns endless batches of ones, with the batch size of a replica if the global batch is 8.
 * Stores the input context. */
static ch_dataset *ones(const ch_input_context *c, void *arg)
{
    ch_input_context *seen = arg;
    int64_t           rows = 0;
    ch_tensor        *t = t_of(CH_F32, ch_shape_of(1, 1), N(1));
    ch_dataset       *d = ch_dataset_of(1, &t, NULL);

    *seen = *c;
    t_ok(ch_input_context_batch_size(c, 8, &rows));
    ch_tensor_unref(t);
    return ch_dataset_batch(ch_dataset_repeat(d, CH_INFINITE), rows, NULL);
}

/* B30, 5.9.2, 5.9.6, 5.6.5 */
static void experimental_run_takes_elements_of_make_input_fn_iterator(void **state)
{
    for (int n = 1; n <= 2; n++) {
        ch_strategy     *st = t_mirrored(n);
        ch_function     *f = t_function(sum, NULL);
        ch_iterator     *it = NULL;
        ch_tuple        *t = NULL;
        ch_input_context seen = {0};

        t_ok(ch_strategy_make_input_fn_iterator(st, ones, &seen, CH_PER_WORKER, &it));
        assert_int_equal(seen.n_pipelines, 1);
        assert_int_equal(seen.pipeline, 0);
        assert_int_equal(seen.n_replicas, n);
        t_ok(ch_iterator_get_next(it, &t));
        assert_int_equal(ch_value_kind_of(ch_tuple_at(t, 0)),
                         n == 1 ? CH_PLAIN : CH_PER_REPLICA);
        for (int r = 0; r < n; r++)
            t_is(ch_value_at(ch_tuple_at(t, 0), r), CH_F32, ch_shape_of(8 / n, 1, 1),
                 N(1, 1, 1, 1, 1, 1, 1, 1));
        ch_tuple_unref(t);
        t_ok(ch_strategy_experimental_run(st, f, it, &t));
        for (int r = 0; r < n; r++)
            t_is(ch_value_at(ch_tuple_get(t, "sum"), r), CH_F32, ch_shape_scalar(), N(8 / n));
        assert_int_equal(ch_value_count(ch_tuple_get(t, "sum")), n);
        ch_tuple_unref(t);
        ch_iterator_unref(it);
        t_refused(ch_strategy_make_input_fn_iterator(st, ones, &seen, CH_EACH_REPLICA, &it),
                  CH_INVALID_ARGUMENT, "replication mode", "CH_PER_WORKER");
        ch_function_unref(f);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* B31, 5.8.8: a fold is a loop */
static void distributed_iterator_restarts_for_each_epoch(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_dataset  *d = batches(8, 4);
    ch_function *f = t_function(sum, NULL);
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (int epoch = 0; epoch < 2; epoch++) {
        int64_t total = 0;
        int     steps = 0;

        for (;; steps++) {
            ch_tuple  *batch = NULL, *out = NULL;
            ch_tensor *t = NULL;

            t_ok(ch_iterator_next(it, &batch));
            if (batch == NULL)
                break;
            t_ok(ch_strategy_run(st, f, batch, &out));
            t_ok(ch_strategy_reduce(st, CH_SUM, ch_tuple_get(out, "sum"), CH_NO_AXIS, &t));
            assert_int_equal(ch_tensor_dtype(t), CH_I64);
            total += *(const int64_t *)ch_tensor_data(t);
            ch_tensor_unref(t);
            ch_tuple_unref(out);
            ch_tuple_unref(batch);
        }
        assert_int_equal(steps, 2);
        assert_int_equal(total, 28);
        t_ok(ch_iterator_restart(it));
    }
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* Records "10", "11", "12" in file 1, and so on. */
static ch_dataset *four_files(void)
{
    static char path[4][100];
    const char *name[4];

    for (int i = 0; i < 4; i++) {
        ch_record_writer *w = NULL;
        char              text[20];

        snprintf(text, sizeof(text), "%d.tfrecord", i + 1);
        snprintf(path[i], sizeof(path[i]), "%s", t_path(text));
        name[i] = path[i];
        t_ok(ch_record_writer_open(path[i], NULL, &w));
        for (int k = 0; k < 3; k++) {
            int n = snprintf(text, sizeof(text), "%d%d", i + 1, k);

            t_ok(ch_record_writer_add(w, (ch_str){text, (size_t)n}));
        }
        t_ok(ch_record_writer_close(w));
    }
    return ch_dataset_tfrecord(ch_dataset_file_list(4, name), NULL);
}

/* B32, B35: a single process */
static void distribute_dataset_divides_records_of_files(void **state)
{
    ch_strategy          *one = t_one_device(), *two = t_central(2);
    ch_dataset           *d = four_files();
    ch_iterator          *it = NULL;
    const ch_tensor_spec *spec = NULL;

    gives(one, ch_dataset_ref(d), NULL,
          "10 | 11 | 12 | 20 | 21 | 22 | 30 | 31 | 32 | 40 | 41 | 42");
    refuses(two, ch_dataset_ref(d), NULL, CH_INVALID_ARGUMENT, "scalar", "batch");
    d = ch_dataset_batch(d, 4, NULL);
    gives(two, ch_dataset_ref(d), NULL, "10 11 / 12 20 | 21 22 / 30 31 | 32 40 / 41 42");
    t_ok(ch_strategy_distribute_dataset(two, d, NULL, &it));
    assert_int_equal(ch_iterator_element_spec(it, &spec), 1); /* of each component */
    assert_int_equal(spec[0].dtype, CH_STR);
    assert_true(ch_shape_equal(spec[0].shape, ch_shape_of(-1)));
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_strategy_unref(one);
    ch_strategy_unref(two);
    (void)state;
}

/* B33, B36, 5.6.1, 5.6.3 */
static void dataset_function_receives_the_input_context(void **state)
{
    ch_strategy          *st = t_mirrored(2);
    ch_function          *f = t_function(sum, NULL);
    ch_iterator          *it = NULL;
    ch_input_context      seen = {0};
    const ch_tensor_spec *spec = NULL;

    t_ok(ch_strategy_distribute_datasets_from_function(st, ones, &seen, NULL, &it));
    for (int step = 0; step < 3; step++) {
        ch_tuple  *batch = NULL, *out = NULL;
        ch_tensor *total = NULL;

        t_ok(ch_iterator_get_next(it, &batch));
        for (int r = 0; r < 2; r++)
            t_is(ch_value_at(ch_tuple_at(batch, 0), r), CH_F32, ch_shape_of(4, 1, 1),
                 N(1, 1, 1, 1));
        t_ok(ch_strategy_run(st, f, batch, &out));
        t_ok(ch_strategy_reduce(st, CH_SUM, ch_tuple_at(out, 0), CH_NO_AXIS, &total));
        t_gave_number(total, CH_F32, 8);
        ch_tuple_unref(out);
        ch_tuple_unref(batch);
    }
    t_refused(ch_input_context_batch_size(&seen, 7, &(int64_t){0}), CH_INVALID_ARGUMENT, "7",
              "2");
    assert_int_equal(ch_iterator_element_spec(it, &spec), 1);
    assert_int_equal(spec[0].dtype, CH_F32);
    assert_true(ch_shape_equal(spec[0].shape, ch_shape_of(-1, 1, 1)));
    ch_iterator_unref(it);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* B35, 5.8.5: a function that is declared for the component's spec accepts every batch, and
 * rejects other inputs */
static void step_declared_for_the_component_spec_takes_every_batch(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_dataset  *d = batches(9, 4);
    ch_function *g = t_function(plus_1, NULL);
    ch_iterator *it = NULL;
    ch_tuple    *batch = NULL, *rank_2, *floats;

    const ch_tensor_spec *spec = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    assert_int_equal(ch_iterator_element_spec(it, &spec), 1);
    t_ok(ch_function_declare(g, st, 1, spec));
    t_refused(ch_function_declare(g, st, 1, spec), CH_FAILED_PRECONDITION, "already", "");
    t_ok(ch_iterator_get_next(it, &batch));
    while (batch != NULL) {
        t_ok(ch_strategy_run(st, g, batch, NULL));
        ch_tuple_unref(batch);
        t_ok(ch_iterator_next(it, &batch));
    }
    rank_2 = t_one(t_both(t_counting(CH_I64, ch_shape_of(1, 1), 0),
                          t_counting(CH_I64, ch_shape_of(1, 1), 0)),
                   NULL);
    floats = t_one(
        t_both(t_counting(CH_F32, ch_shape_of(1), 0), t_counting(CH_F32, ch_shape_of(1), 0)),
        NULL);
    t_refused(ch_strategy_run(st, g, rank_2, NULL), CH_INVALID_ARGUMENT, "", "");
    t_refused(ch_strategy_run(st, g, floats, NULL), CH_INVALID_ARGUMENT, "f32", "i64");
    ch_tuple_unref(rank_2);
    ch_tuple_unref(floats);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    assert_int_equal(ch_function_recordings(g), 1);
    ch_function_unref(g);
    ch_strategy_unref(st);
    (void)state;
}

static void central_storage_uses_all_devices_of_a_type(void **state)
{
    ch_strategy *st = NULL, *cores = NULL;

    t_ok(ch_strategy_central_storage(&(ch_central_storage_options){.type = "GPU"}, &st));
    assert_int_equal(ch_strategy_replicas(st), ch_device_count("GPU"));
    t_ok(ch_strategy_central_storage(&(ch_central_storage_options){.type = "CPU"}, &cores));
    assert_int_equal(ch_strategy_replicas(cores), ch_device_count("CPU"));
    ch_strategy_unref(st);
    ch_strategy_unref(cores);
    t_refused(ch_strategy_central_storage(&(ch_central_storage_options){.type = "XPU"}, &st),
              CH_INVALID_ARGUMENT, "no device", "XPU");
    t_refused(ch_strategy_central_storage(
                  &(ch_central_storage_options){
                      .n_compute = 1, .compute = (const char *[]){"/cpu:0"}, .type = "CPU"},
                  &st),
              CH_INVALID_ARGUMENT, "central storage", "one of the two");
    (void)state;
}

static void central_storage_divides_batches_among_its_devices(void **state)
{
    ch_strategy *cpu = NULL, *one = t_central(1), *two = t_central(2);
    ch_iterator *it = NULL;
    ch_tuple    *e = NULL;
    ch_dataset  *d = batches(10, 2);

    t_ok(ch_strategy_central_storage(
        &(ch_central_storage_options){.n_compute = 1, .compute = (const char *[]){"/cpu:0"}},
        &cpu));
    assert_string_equal(results(cpu, batches(5, 2), plus_1), "1 2 | 3 4 | 5");
    assert_string_equal(results(two, batches(5, 2), plus_1), "1 / 2 | 3 / 4 | 5 / ");
    t_ok(ch_strategy_distribute_dataset(one, d, NULL, &it));
    t_ok(ch_iterator_get_next(it, &e));
    assert_int_equal(ch_value_kind_of(ch_tuple_at(e, 0)), CH_PLAIN);
    t_is(ch_value_at(ch_tuple_at(e, 0), 0), CH_I64, ch_shape_of(2), N(0, 1));
    t_on(ch_value_at(ch_tuple_at(e, 0), 0), "GPU:0");
    ch_tuple_unref(e);
    assert_string_equal(all_of(it), "2 3 | 4 5 | 6 7 | 8 9");
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_strategy_unref(cpu);
    ch_strategy_unref(one);
    ch_strategy_unref(two);
    (void)state;
}

/* B41, 6.4.6, 8.5: options are accepted */
static void reduce_sums_distributed_batches_under_central_storage(void **state)
{
    ch_strategy *st = NULL;
    ch_dataset  *d = batches(8, 8);
    ch_iterator *it = NULL;
    ch_tuple    *e = NULL;
    ch_tensor   *t = NULL;
    ch_value    *plain = NULL;

    t_ok(ch_strategy_central_storage(
        &(ch_central_storage_options){.n_compute = 2,
                                      .compute = (const char *[]){"/cpu:0", "/gpu:0"},
                                      .parameter = "/cpu:0"},
        &st));
    refuses(st, ch_dataset_range(0, 10, 1), NULL, CH_INVALID_ARGUMENT, "scalar", "batch");
    t_ok(ch_strategy_distribute_dataset(st, d, &(ch_input_options){0}, &it));
    t_ok(ch_iterator_get_next(it, &e));
    t_is(ch_value_at(ch_tuple_at(e, 0), 0), CH_I64, ch_shape_of(4), N(0, 1, 2, 3));
    t_is(ch_value_at(ch_tuple_at(e, 0), 1), CH_I64, ch_shape_of(4), N(4, 5, 6, 7));
    t_on(ch_value_at(ch_tuple_at(e, 0), 0), "CPU:0");
    t_on(ch_value_at(ch_tuple_at(e, 0), 1), "GPU:0");
    t_ok(ch_strategy_reduce(st, CH_SUM, ch_tuple_at(e, 0), 0, &t));
    t_gave_number(t, CH_I64, 28);
    t_ok(ch_strategy_reduce(st, CH_SUM, ch_tuple_at(e, 0), CH_NO_AXIS, &t));
    t_is(t, CH_I64, ch_shape_of(4), N(4, 6, 8, 10));
    plain = t_value(CH_PLAIN, 1, &t);
    t_refused(ch_strategy_reduce(st, CH_SUM, plain, 0, &t), CH_INVALID_ARGUMENT, "plain",
              "2 replicas");
    ch_value_unref(plain);
    ch_tuple_unref(e);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_strategy_unref(st);
    (void)state;
}

/* 5.4.8, 5.8.6: the end is not an error, unless an element was required */
static void distributed_iterator_repeats_the_end_of_the_data(void **state)
{
    ch_strategy *st = t_mirrored(2);

    for (int n = 0; n <= 2; n++) {
        ch_dataset  *d = batches(n, 2);
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;

        t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
        if (n > 0) {
            t_ok(ch_iterator_next(it, &t));
            assert_non_null(t);
            ch_tuple_unref(t);
        }
        for (int again = 0; again < 2; again++) {
            t_ok(ch_iterator_next(it, &t));
            assert_null(t);
            t_refused(ch_iterator_get_next(it, &t), CH_OUT_OF_RANGE, "end of the data", "");
        }
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* 5.8.3, 5.8.4: the number of rows is known if every batch is full */
static void iterator_element_spec_knows_rows_when_all_batches_are_full(void **state)
{
    ch_strategy *st = t_mirrored(2);

    for (int i = 0; i < 4; i++) {
        ch_dataset *d = ch_dataset_repeat(ch_dataset_range(0, 10, 1), i / 2 ? CH_INFINITE : 1);
        const ch_tensor_spec *spec = NULL;
        ch_iterator          *it = NULL;

        d = ch_dataset_batch(d, 4, &(ch_batch_options){.drop_remainder = i % 2});
        t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
        assert_int_equal(ch_iterator_element_spec(it, &spec), 1);
        assert_int_equal(spec[0].dtype, CH_I64);
        assert_true(ch_shape_equal(spec[0].shape, ch_shape_of(i % 2 ? 2 : -1)));
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* ---- functions that create datasets ---- */

static ch_dataset *four(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return ch_dataset_range(5, 9, 1);
}

static ch_dataset *nine_by_two(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return batches(9, 2);
}

static ch_dataset *five_by_two_dropped(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return ch_dataset_batch(ch_dataset_range(0, 10, 1), 2,
                            &(ch_batch_options){.drop_remainder = true});
}

static ch_dataset *five_by_three(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return batches(5, 3);
}

static ch_dataset *none(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    (void)ch_fail(CH_NOT_FOUND, "no such bucket");
    return NULL;
}

static void function_gives(ch_strategy *st, ch_input_fn fn, void *arg,
                           const ch_input_options *opt, const char *want)
{
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_datasets_from_function(st, fn, arg, opt, &it));
    assert_string_equal(all_of(it), want);
    ch_iterator_unref(it);
}

/* 5.6.1, 5.6.6, 5.6.7, 5.4.5, 5.4.9, 5.7.6, 8.11, 8.12: the elements of the function are dealt
 * to replicas as they are, and none is lost, even if the number of replicas does not divide
 * their number */
static void datasets_from_function_are_dealt_to_replicas_without_loss(void **state)
{
    for (int i = 0; i < 2; i++) {
        ch_strategy *st = i == 0 ? t_mirrored(2) : t_central(2);
        ch_iterator *it = NULL;

        function_gives(st, four, NULL, NULL, "5 / 6 | 7 / 8");
        function_gives(st, nine_by_two, NULL, NULL, "0 1 / 2 3 | 4 5 / 6 7 | 8 / ");
        function_gives(st, nine_by_two, NULL, &(ch_input_options){.per_replica_buffer = 2},
                       "0 1 / 2 3 | 4 5 / 6 7 | 8 / ");
        function_gives(st, nine_by_two, NULL, &(ch_input_options){.per_replica_buffer = CH_OFF},
                       "0 1 / 2 3 | 4 5 / 6 7 | 8 / ");
        function_gives(st, five_by_two_dropped, NULL, NULL, "0 1 / 2 3 | 4 5 / 6 7 | 8 9 / ");
        function_gives(st, five_by_three, NULL, NULL, "0 1 2 / 3 4");
        t_refused(ch_strategy_distribute_datasets_from_function(st, none, NULL, NULL, &it),
                  CH_NOT_FOUND, "no such bucket", "worker 0 of 1");
        t_refused(ch_strategy_distribute_datasets_from_function(st, NULL, NULL, NULL, &it),
                  CH_INVALID_ARGUMENT, "the function", "NULL");
        ch_strategy_unref(st);
    }
    (void)state;
}

/* 5.6.2, 5.6.5, 1.5.1, 6.3.6 */
static void input_context_counts_the_replicas_of_each_strategy(void **state)
{
    const struct {
        ch_strategy *st;
        int          n;
    } row[] = {{NULL, 1}, {t_one_device(), 1}, {t_mirrored(4), 4}, {t_central(2), 2}};

    for (int i = 0; i < 4; i++) {
        ch_input_context seen = {0};
        ch_iterator     *it = NULL;

        t_ok(ch_strategy_distribute_datasets_from_function(row[i].st, ones, &seen, NULL, &it));
        assert_int_equal(seen.n_pipelines, 1);
        assert_int_equal(seen.pipeline, 0);
        assert_int_equal(seen.n_replicas, row[i].n);
        ch_iterator_unref(it);
        ch_strategy_unref(row[i].st);
    }
    (void)state;
}

/* 1 to 9, times the pipeline's number + 1. The first pipeline has *arg numbers if arg is not
 * NULL. */
static ch_dataset *times_table(const ch_input_context *c, void *arg)
{
    int64_t k = c->pipeline + 1, n = c->pipeline == 0 && arg != NULL ? *(const int *)arg : 9;

    assert_int_equal(c->n_pipelines, 2);
    assert_int_equal(c->n_replicas, 2);
    return ch_dataset_batch(ch_dataset_range(k, k * n + 1, k), 1, NULL);
}

/* 5.6.5, 5.7.5 */
static void per_replica_input_makes_a_pipeline_for_each_replica(void **state)
{
    const ch_input_options each = {.replication = CH_EACH_REPLICA};
    const ch_input_options placed = {
        .replication = CH_EACH_REPLICA, .place_on_device = true, .fetch_to_device = CH_OFF};
    const char *table =
        "1 / 2 | 2 / 4 | 3 / 6 | 4 / 8 | 5 / 10 | 6 / 12 | 7 / 14 | 8 / 16 | 9 / 18";
    ch_strategy *st = t_mirrored(2);
    ch_iterator *it = NULL;
    ch_tuple    *e = NULL;

    function_gives(st, times_table, NULL, &each, table);
    function_gives(st, times_table, &(int){7}, &each, /* no rows after its end */
                   "1 / 2 | 2 / 4 | 3 / 6 | 4 / 8 | 5 / 10 | 6 / 12 | 7 / 14 |  / 16 |  / 18");
    function_gives(st, times_table, &(int){0}, &each,
                   " / 2 |  / 4 |  / 6 |  / 8 |  / 10 |  / 12 |  / 14 |  / 16 |  / 18");
    t_ok(ch_strategy_distribute_datasets_from_function(st, times_table, NULL, &placed, &it));
    t_ok(ch_iterator_get_next(it, &e));
    t_on(ch_value_at(ch_tuple_at(e, 0), 1), "GPU:1");
    ch_tuple_unref(e);
    t_ok(ch_iterator_restart(it));
    assert_string_equal(all_of(it), table);
    ch_iterator_unref(it);
    ch_strategy_unref(st);
    (void)state;
}

/* A position among pipelines of unequal lengths, saved at any step, can be restored by another
 * iterator. */
static void iterator_over_pipelines_saves_and_restores_its_position(void **state)
{
    const ch_input_options each = {.replication = CH_EACH_REPLICA};
    ch_strategy           *st = t_mirrored(2);
    static t_given         whole, parts;

    for (int at = 0; at <= 9; at++) {
        ch_iterator *it = NULL, *other = NULL;
        void        *bytes = NULL;
        size_t       n = 0;
        int          six = 6;

        memset(&whole, 0, sizeof(whole));
        memset(&parts, 0, sizeof(parts));
        t_ok(ch_strategy_distribute_datasets_from_function(st, times_table, &six, &each, &it));
        t_ok(ch_strategy_distribute_datasets_from_function(st, times_table, &six, &each,
                                                           &other));
        t_take(it, at, &parts);
        t_ok(ch_iterator_save(it, &bytes, &n));
        t_take(other, 3, &whole);
        t_ok(ch_iterator_restore(other, bytes, n));
        t_take(other, -1, &parts);
        memset(&whole, 0, sizeof(whole));
        t_ok(ch_iterator_restart(it));
        t_take(it, -1, &whole);
        assert_string_equal(parts.text, whole.text);
        ch_bytes_free(bytes);
        ch_iterator_unref(it);
        ch_iterator_unref(other);
    }
    ch_strategy_unref(st);
    (void)state;
}

static ch_status not_4(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));

    (void)arg;
    *out = ch_tuple_ref(in);
    return x == 4 ? ch_fail(CH_DATA_LOSS, "four is torn") : CH_OK;
}

static ch_dataset *torn(const ch_input_context *c, void *arg)
{
    const ch_tensor_spec one = {.dtype = CH_I64};

    (void)arg;
    return ch_dataset_map_call(ch_dataset_range(c->pipeline * 3, c->pipeline * 3 + 3, 1), not_4,
                               NULL, 1, &one, NULL);
}

static ch_dataset *of_another_type(const ch_input_context *c, void *arg)
{
    ch_tensor  *t = t_number(c->pipeline == 0 ? CH_F32 : CH_I32, 1);
    ch_dataset *d = ch_dataset_of(1, &t, NULL);

    (void)arg;
    ch_tensor_unref(t);
    return d;
}

static ch_dataset *not_for_1(const ch_input_context *c, void *arg)
{
    (void)arg;
    return c->pipeline == 1 ? none(c, NULL) : ch_dataset_range(0, 3, 1);
}

static void iterator_over_pipelines_reports_errors_of_a_pipeline(void **state)
{
    const ch_input_options each = {.replication = CH_EACH_REPLICA};
    ch_strategy           *st = t_mirrored(2);
    ch_iterator           *it = NULL;
    int64_t                live = ch__mem_live();

    function_gives(st, torn, NULL, &each, "0 / 3 | !DATA_LOSS | !FAILED_PRECONDITION");
    t_refused(
        ch_strategy_distribute_datasets_from_function(st, of_another_type, NULL, &each, &it),
        CH_INVALID_ARGUMENT, "f32", "i32");
    t_refused(ch_strategy_distribute_datasets_from_function(st, not_for_1, NULL, &each, &it),
              CH_NOT_FOUND, "no such bucket", "worker 1 of 2");
    assert_int_equal(ch__mem_live(), live);
    ch_strategy_unref(st);
    (void)state;
}

/* Batches of `size` rows, 0 to 7, of which the batch that begins with 4 fails. */
static ch_dataset *torn_batches(int64_t size)
{
    const ch_tensor_spec rows = {.dtype = CH_I64, .shape = ch_shape_of(-1)};

    return ch_dataset_map_call(batches(8, size), not_4, NULL, 1, &rows, NULL);
}

static ch_dataset *torn_by_one(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return torn_batches(1);
}

/* 5.1.5: a batch that fails before it is cut is missing for all replicas, an element of a function for
 * its own replica. */
static void distributed_iterator_continues_after_an_error_with_go_on(void **state)
{
    const ch_input_options go_on = {.go_on = true};
    const ch_input_options each = {.go_on = true, .replication = CH_EACH_REPLICA};
    ch_strategy           *st[] = {NULL, t_one_device(), t_central(2), t_mirrored(2)};

    for (int i = 0; i < 4; i++) {
        gives(st[i], torn_batches(2), &go_on,
              i < 2 ? "0 1 | 2 3 | !DATA_LOSS | 6 7" : "0 / 1 | 2 / 3 | !DATA_LOSS | 6 / 7");
        function_gives(st[i], torn_by_one, NULL, &go_on,
                       i < 2 ? "0 | 1 | 2 | 3 | !DATA_LOSS | 5 | 6 | 7"
                             : "0 / 1 | 2 / 3 | !DATA_LOSS |  / 5 | 6 / 7");
    }
    function_gives(st[3], torn, NULL, &each, "0 / 3 | !DATA_LOSS | 1 / 0 | 2 / 5");
    for (int i = 0; i < 4; i++)
        ch_strategy_unref(st[i]);
    (void)state;
}

static ch_status not_in_mask(void *mask, ch_tuple *in, ch_tuple **out)
{
    int64_t x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));

    *out = ch_tuple_ref(in);
    return (*(const unsigned *)mask >> x & 1) != 0 ? ch_fail(CH_ABORTED, "no") : CH_OK;
}

/* 1 to 3 for replica 0, 4 to 6 for replica 1; the elements of the mask fail. */
static ch_dataset *masked(const ch_input_context *c, void *mask)
{
    const ch_tensor_spec one = {.dtype = CH_I64};

    return ch_dataset_map_call(ch_dataset_range(c->pipeline * 3 + 1, c->pipeline * 3 + 4, 1),
                               not_in_mask, mask, 1, &one, NULL);
}

/* 5.1.5: for every set of elements that fail, and from a position saved at any result */
static void elements_of_pipelines_keep_their_replica_when_others_fail(void **state)
{
    const ch_input_options each = {.go_on = true, .replication = CH_EACH_REPLICA};
    ch_strategy           *st = t_mirrored(2);
    static t_given         want, g;

    for (unsigned mask = 0; mask < 1u << 7; mask += 2)
        for (int before = 0; before < 7; before++) {
            ch_iterator *it = NULL;
            void        *bytes = NULL;
            size_t       n = 0;

            memset(&want, 0, sizeof(want));
            memset(&g, 0, sizeof(g));
            for (int k = 1; k < 4; k++) {
                int a = (mask >> k & 1) != 0 ? 0 : k,
                    b = (mask >> (k + 3) & 1) != 0 ? 0 : k + 3;

                for (int i = 0; i < (a == 0) + (b == 0); i++)
                    t_add(&want, "%s!ABORTED", want.n++ > 0 ? " | " : "");
                if (a + b > 0)
                    t_add(&want, "%s%d / %d", want.n++ > 0 ? " | " : "", a, b);
            }
            t_ok(ch_strategy_distribute_datasets_from_function(st, masked, &mask, &each, &it));
            t_take(it, before, &g);
            t_ok(ch_iterator_save(it, &bytes, &n));
            ch_iterator_unref(it);
            t_ok(ch_strategy_distribute_datasets_from_function(st, masked, &mask, &each, &it));
            t_ok(ch_iterator_restore(it, bytes, n));
            t_take(it, -1, &g);
            ch_iterator_unref(it);
            ch_bytes_free(bytes);
            if (strcmp(g.text, want.text) != 0)
                fail_msg("mask %#x, saved after %d: %s, want %s", mask, before, g.text,
                         want.text);
        }
    ch_strategy_unref(st);
    (void)state;
}

static void distributed_iterator_ends_at_an_error_without_go_on(void **state)
{
    ch_strategy *st[] = {NULL, t_one_device(), t_central(2), t_mirrored(2)};

    for (int i = 0; i < 4; i++) {
        ch_iterator *it = NULL;
        ch_tuple    *e = NULL;

        gives(st[i], torn_batches(4), NULL,
              i < 2 ? "0 1 2 3 | !DATA_LOSS | !FAILED_PRECONDITION"
                    : "0 1 / 2 3 | !DATA_LOSS | !FAILED_PRECONDITION");
        t_ok(
            ch_strategy_distribute_datasets_from_function(st[i], torn_by_one, NULL, NULL, &it));
        assert_non_null(strstr(all_of(it), "!DATA_LOSS | !FAILED_PRECONDITION"));
        t_refused(ch_iterator_next(it, &e), CH_FAILED_PRECONDITION,
                  "go_on of ch_iterator_options", "ch_input_options");
        ch_iterator_unref(it);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* 5.7.1, 5.7.3, 5.7.4 */
static void input_options_that_do_not_fit_are_refused(void **state)
{
    const ch_input_options each = {.replication = CH_EACH_REPLICA};
    const ch_input_options placed = {.place_on_device = true, .fetch_to_device = CH_OFF};
    const ch_input_options twice_there = {.replication = CH_EACH_REPLICA,
                                          .place_on_device = true};
    ch_strategy           *st[] = {NULL, t_one_device(), t_central(2), t_mirrored(2)};
    ch_iterator           *it = NULL;

    for (int i = 0; i < 4; i++) {
        refuses(st[i], batches(4, 2), &each, CH_UNIMPLEMENTED, "CH_EACH_REPLICA", "Mirrored");
        refuses(st[i], batches(4, 2), &placed, CH_INVALID_ARGUMENT, "place_on_device",
                "CH_EACH_REPLICA");
        if (i < 3)
            t_refused(
                ch_strategy_distribute_datasets_from_function(st[i], four, NULL, &each, &it),
                CH_UNIMPLEMENTED, "CH_EACH_REPLICA", "Mirrored");
        t_refused(
            ch_strategy_distribute_datasets_from_function(st[i], four, NULL, &placed, &it),
            CH_INVALID_ARGUMENT, "place_on_device", "CH_EACH_REPLICA");
    }
    t_refused(
        ch_strategy_distribute_datasets_from_function(st[3], four, NULL, &twice_there, &it),
        CH_INVALID_ARGUMENT, "place_on_device", "fetch_to_device");
    t_refused(
        ch_strategy_distribute_datasets_from_function(
            st[3], four, NULL, &(ch_input_options){.replication = (ch_replication)5}, &it),
        CH_INVALID_ARGUMENT, "5", "ch_replication");
    for (int i = 0; i < 4; i++) {
        refuses(st[i], batches(4, 2), &(ch_input_options){.fetch_to_device = 5},
                CH_INVALID_ARGUMENT, "fetch_to_device is 5", "CH_OFF");
        refuses(st[i], batches(4, 2), &(ch_input_options){.split = (ch_batch_split)7},
                CH_INVALID_ARGUMENT, "split is 7", "CH_SPLIT_NOMINAL");
    }
    t_refused(ch_strategy_distribute_datasets_from_function(
                  st[3], four, NULL, &(ch_input_options){.per_replica_buffer = -2}, &it),
              CH_INVALID_ARGUMENT, "-2", "CH_OFF");
    for (int i = 0; i < 4; i++)
        ch_strategy_unref(st[i]);
    (void)state;
}

/* ---- contexts in which elements may be read ---- */

typedef struct taker {
    ch_iterator *it, *defaults;
} taker;

static void take_inside(ch_step *s, void *arg)
{
    const taker *a = arg;
    ch_tuple    *t = NULL;

    t_refused(ch_iterator_next(a->it, &t), CH_FAILED_PRECONDITION, "outside steps",
              "give the element to ch_strategy_run");
    t_refused(ch_iterator_get_next(a->it, &t), CH_FAILED_PRECONDITION, "outside steps", "");
    assert_int_equal(ch_iterator_next(a->defaults, &t), CH_FAILED_PRECONDITION);
    assert_null(t);
    ch_step_out(s, "x", ch_number(s, 1));
}

/* 1.3.9, 5.8.7 */
static void distributed_iterator_is_refused_in_steps_and_in_other_scopes(void **state)
{
    ch_strategy *st = t_mirrored(2), *other = t_central(2);
    ch_dataset  *d = batches(8, 2);
    taker        a = {NULL, NULL};
    ch_function *f = t_function(take_inside, &a), *g = t_function(sum, NULL);
    ch_tuple    *t = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &a.it));
    t_ok(ch_strategy_distribute_dataset(NULL, d, NULL, &a.defaults));
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    t_ok(ch_strategy_enter(other));
    t_refused(ch_iterator_next(a.it, &t), CH_FAILED_PRECONDITION, "mixing different strategies",
              "");
    t_ok(ch_iterator_next(a.defaults, &t)); /* an iterator of Default */
    ch_tuple_unref(t);
    ch_strategy_leave();
    t_ok(ch_strategy_enter(st));
    t_ok(ch_iterator_get_next(a.it, &t)); /* no element was lost */
    t_is(ch_value_at(ch_tuple_at(t, 0), 0), CH_I64, ch_shape_of(1), N(0));
    t_ok(ch_strategy_run(NULL, g, t, NULL));
    ch_strategy_leave();
    ch_tuple_unref(t);
    ch_strategy_unref(st); /* the iterator has a reference */
    t_ok(ch_iterator_get_next(a.it, &t));
    t_is(ch_value_at(ch_tuple_at(t, 0), 0), CH_I64, ch_shape_of(1), N(2));
    ch_tuple_unref(t);
    ch_iterator_unref(a.it);
    ch_iterator_unref(a.defaults);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_function_unref(g);
    ch_strategy_unref(other);
    (void)state;
}

static void may_distribute(ch_strategy *st)
{
    ch_dataset  *d = batches(4, 2);
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

static void make_inside(ch_step *s, void *arg)
{
    ch_input_context seen = {0};
    ch_iterator     *it = NULL;
    ch_tuple        *out = NULL;

    t_refused(ch_strategy_make_input_fn_iterator(arg, ones, &seen, CH_PER_WORKER, &it),
              CH_FAILED_PRECONDITION, "make_input_fn_iterator", "outside steps");
    t_refused(ch_strategy_run_steps(arg, NULL, NULL, 1, &out), CH_FAILED_PRECONDITION,
              "run_steps", "outside steps");
    t_refused(ch_strategy_experimental_run(arg, NULL, NULL, &out), CH_FAILED_PRECONDITION,
              "experimental_run", "outside steps");
    assert_null(ch_strategy_make_numpy_dataset(arg, 0, NULL, NULL));
    assert_non_null(strstr(ch_error_message(), "outside steps"));
    t_ok(ch_strategy_distribute_datasets_from_function(arg, four, NULL, NULL, &it));
    ch_iterator_unref(it);
    may_distribute(arg);
    ch_step_out(s, "x", ch_number(s, 1));
}

/* 1.3.5, 1.3.8, 1.3.12 */
static void input_calls_are_refused_in_steps_and_in_other_scopes(void **state)
{
    ch_strategy     *st = t_mirrored(2), *other = t_mirrored(2);
    ch_function     *f = t_function(make_inside, st);
    ch_iterator     *it = NULL;
    ch_input_context seen = {0};

    t_ok(ch_strategy_run(st, f, NULL, NULL));
    t_ok(ch_strategy_enter(other));
    t_refused(ch_strategy_make_input_fn_iterator(st, ones, &seen, CH_PER_WORKER, &it),
              CH_FAILED_PRECONDITION, "make_input_fn_iterator", "mixing different");
    t_refused(ch_strategy_run_steps(st, f, NULL, 1, NULL), CH_FAILED_PRECONDITION, "run_steps",
              "mixing different");
    assert_null(ch_strategy_make_numpy_dataset(st, 0, NULL, NULL));
    assert_non_null(strstr(ch_error_message(), "mixing different"));
    t_ok(ch_strategy_distribute_datasets_from_function(st, four, NULL, NULL, &it));
    ch_iterator_unref(it);
    may_distribute(st);
    ch_strategy_leave();
    ch_function_unref(f);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

/* ---- iterators of the first API ---- */

/* A function that returns numbers up to an end, and cannot be restarted. */
typedef struct counter {
    int64_t n, calls;
} counter;

static ch_status count_on(void *arg, ch_tuple **out)
{
    counter *c = arg;

    c->calls++;
    if (c->n < 10)
        *out = t_tuple(1, (ch_tensor *[]){t_number(CH_I64, (double)c->n++)});
    return CH_OK;
}

static ch_status stay(void *arg)
{
    (void)arg;
    return CH_OK;
}

static ch_dataset *counting(const ch_input_context *c, void *arg)
{
    static const ch_tensor_spec one = {.dtype = CH_I64};

    (void)c;
    return ch_dataset_generator(
        &(ch_generator){.spec = &one, .n_spec = 1, .next = count_on, .restart = stay}, NULL,
        NULL, arg);
}

static ch_dataset *ten(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return ch_dataset_range(0, 10, 1);
}

/* 5.9.3, 5.9.4 */
static void make_input_fn_iterator_restarts_datasets_but_not_generators(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_iterator *it = NULL;
    counter      c = {0, 0};

    t_ok(ch_strategy_make_input_fn_iterator(st, ten, NULL, CH_PER_WORKER, &it));
    for (int i = 0; i < 2; i++) {
        assert_string_equal(all_of(it), "0 / 1 | 2 / 3 | 4 / 5 | 6 / 7 | 8 / 9");
        t_refused(ch_iterator_get_next(it, &(ch_tuple *){NULL}), CH_OUT_OF_RANGE, "end", "");
        t_ok(ch_iterator_restart(it));
    }
    ch_iterator_unref(it);
    t_ok(ch_strategy_make_input_fn_iterator(st, counting, &c, CH_PER_WORKER, &it));
    assert_string_equal(all_of(it), "0 / 1 | 2 / 3 | 4 / 5 | 6 / 7 | 8 / 9");
    assert_int_equal(c.calls, 11); /* for each replica and step, and the end */
    t_ok(ch_iterator_restart(it));
    assert_string_equal(all_of(it), ""); /* it cannot be restarted, so it has ended */
    ch_iterator_unref(it);
    ch_strategy_unref(st);
    (void)state;
}

/* 5.9.6, 5.9.9 */
static void run_steps_takes_its_elements_from_the_iterator(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_dataset  *d = batches(8, 2);
    ch_function *f = t_function(sum, NULL);
    ch_iterator *it = NULL;
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_make_dataset_iterator(st, d, &it));
    t_ok(ch_strategy_run_steps(st, f, it, 2, &out));
    t_is(ch_value_at(ch_tuple_at(out, 0), 1), CH_I64, ch_shape_scalar(), N(3)); /* the last */
    ch_tuple_unref(out);
    out = NULL;
    t_ok(ch_strategy_run_steps(st, f, it, 1, NULL));
    t_refused(ch_strategy_run_steps(st, f, it, 3, &out), CH_OUT_OF_RANGE, "step 1 of 3", "end");
    assert_null(out);
    t_refused(ch_strategy_experimental_run(st, f, it, &out), CH_OUT_OF_RANGE, "end", "");
    t_refused(ch_strategy_run_steps(st, f, it, 0, &out), CH_INVALID_ARGUMENT, "0 steps", "");
    t_refused(ch_strategy_run_steps(st, f, NULL, 1, &out), CH_INVALID_ARGUMENT, "the iterator",
              "NULL");
    t_refused(ch_strategy_run_steps(st, NULL, it, 1, &out), CH_INVALID_ARGUMENT, "the function",
              "NULL");
    t_refused(ch_strategy_experimental_run(st, NULL, it, &out), CH_INVALID_ARGUMENT,
              "the function", "NULL");
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* 1.3.9 */
static void run_steps_rejects_an_iterator_of_another_strategy(void **state)
{
    ch_strategy *st = t_mirrored(2), *other[] = {t_mirrored(2), t_mirrored(3), NULL};
    ch_dataset  *d = batches(4, 2);
    ch_function *f = t_function(sum, NULL);
    ch_iterator *it = NULL, *own = NULL;
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.n_replicas = 2}, &own));
    for (int i = 0; i < 3; i++) {
        t_refused(ch_strategy_experimental_run(other[i], f, it, &out), CH_FAILED_PRECONDITION,
                  "mixing different strategies", "Mirrored");
        t_refused(ch_strategy_run_steps(other[i], f, it, 1, &out), CH_FAILED_PRECONDITION,
                  "mixing different strategies", "step 0 of 1");
    }
    t_refused(ch_strategy_experimental_run(other[1], f, own, &out), CH_INVALID_ARGUMENT,
              "2 replicas", "has 3");
    assert_null(out);
    assert_string_equal(all_of(it), "0 / 1 | 2 / 3");
    assert_string_equal(all_of(own), "0 1 / 2 3");
    ch_iterator_unref(it);
    ch_iterator_unref(own);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_strategy_unref(st);
    ch_strategy_unref(other[0]);
    ch_strategy_unref(other[1]);
    (void)state;
}

/* Divides a dataset for the replicas, and applies a map to the result. */
static ch_dataset *cut_and_doubled(const ch_input_context *c, void *dataset)
{
    ch_dataset *mine = NULL;

    if (ch_dataset_distribute(dataset, c, &mine) != CH_OK)
        return NULL;
    return ch_dataset_map(mine, twice, NULL, NULL);
}

/* 5.1.6: a distributed dataset may be transformed further */
static void distributed_dataset_is_transformed_further(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_dataset  *d = batches(7, 4);
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_datasets_from_function(st, cut_and_doubled, d, NULL, &it));
    assert_string_equal(all_of(it), "0 2 / 4 6 | 8 10 / 12");
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_strategy_unref(st);
    (void)state;
}

static void nothing_in(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "id", ch_step_replica_id(s));
}

/* 5.9.6: without an iterator the call is a run */
static void experimental_run_without_an_iterator_runs_once(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(nothing_in, NULL);
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_experimental_run(st, f, NULL, &out));
    t_is(ch_value_at(ch_tuple_at(out, 0), 1), CH_I32, ch_shape_scalar(), N(1));
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- positions ---- */

/* Returns the rows of `n` elements as text, whatever replica has them; -1: of all. */
static void add_batches(ch_iterator *it, int n, t_given *g)
{
    for (int i = 0; i != n; i++) {
        ch_tuple *t = NULL;
        ch_value *v;

        t_ok(ch_iterator_next(it, &t));
        if (t == NULL)
            return;
        v = ch_tuple_at(t, 0);
        t_add(g, "|");
        for (int r = 0; r < ch_value_count(v); r++)
            for (int64_t k = 0; k < ch_tensor_count(ch_value_at(v, r)); k++)
                t_add(g, " %lld",
                      (long long)((const int64_t *)ch_tensor_data(ch_value_at(v, r)))[k]);
        ch_tuple_unref(t);
    }
}

static void distributed_position_is_continued_under_any_strategy(void **state)
{
    ch_strategy *st[] = {ch_strategy_ref(ch_strategy_current()),
                         t_mirrored(1),
                         t_mirrored(2),
                         t_mirrored(3),
                         t_mirrored(4),
                         t_central(3)};
    enum { N = sizeof(st) / sizeof(st[0]) };
    ch_dataset *d = ch_dataset_batch(
        ch_dataset_shuffle(ch_dataset_range(0, 50, 1), 20, &(ch_shuffle_options){.seed = 3}), 7,
        NULL);
    static t_given want, got;

    (void)state;
    for (int k = 0; k < N; k++)
        for (int m = 0; m < N; m++) {
            ch_iterator *it = NULL;
            void        *bytes = NULL;
            size_t       n = 0;

            memset(&got, 0, sizeof(got));
            t_ok(ch_strategy_distribute_dataset(st[k], d, NULL, &it));
            add_batches(it, (k + m) % 8, &got);
            t_ok(ch_iterator_save(it, &bytes, &n));
            ch_iterator_unref(it);
            it = NULL;
            t_ok(ch_strategy_distribute_dataset(st[m], d, NULL, &it));
            t_ok(ch_iterator_restore(it, bytes, n));
            add_batches(it, -1, &got);
            ch_iterator_unref(it);
            ch_bytes_free(bytes);
            if (k == 0 && m == 0)
                want = got;
            assert_string_equal(got.text, want.text);
        }
    for (int i = 0; i < N; i++)
        ch_strategy_unref(st[i]);
    ch_dataset_unref(d);
}

static int set_up(void **state)
{
    return t_four_gpus(state) || t_folder_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribute_dataset_puts_parts_on_the_devices_of_replicas),
        cmocka_unit_test(distribute_dataset_leaves_elements_on_the_host_on_request),
        cmocka_unit_test(distribute_dataset_divides_batches_among_replicas),
        cmocka_unit_test(rows_add_up_to_the_same_under_each_strategy),
        cmocka_unit_test(a_step_takes_a_batch_of_no_rows),
        cmocka_unit_test(training_on_no_rows_changes_nothing),
        cmocka_unit_test(distribute_dataset_gives_one_replica_whole_elements),
        cmocka_unit_test(distribute_dataset_rejects_scalar_elements),
        cmocka_unit_test(make_numpy_dataset_gives_rows_of_an_array),
        cmocka_unit_test(make_numpy_dataset_copies_arrays_and_keeps_their_order),
        cmocka_unit_test(experimental_run_takes_elements_of_make_input_fn_iterator),
        cmocka_unit_test(distributed_iterator_restarts_for_each_epoch),
        cmocka_unit_test(distribute_dataset_divides_records_of_files),
        cmocka_unit_test(dataset_function_receives_the_input_context),
        cmocka_unit_test(step_declared_for_the_component_spec_takes_every_batch),
        cmocka_unit_test(central_storage_uses_all_devices_of_a_type),
        cmocka_unit_test(central_storage_divides_batches_among_its_devices),
        cmocka_unit_test(reduce_sums_distributed_batches_under_central_storage),
        cmocka_unit_test(distributed_iterator_repeats_the_end_of_the_data),
        cmocka_unit_test(iterator_element_spec_knows_rows_when_all_batches_are_full),
        cmocka_unit_test(datasets_from_function_are_dealt_to_replicas_without_loss),
        cmocka_unit_test(input_context_counts_the_replicas_of_each_strategy),
        cmocka_unit_test(per_replica_input_makes_a_pipeline_for_each_replica),
        cmocka_unit_test(iterator_over_pipelines_saves_and_restores_its_position),
        cmocka_unit_test(distributed_position_is_continued_under_any_strategy),
        cmocka_unit_test(iterator_over_pipelines_reports_errors_of_a_pipeline),
        cmocka_unit_test(distributed_iterator_continues_after_an_error_with_go_on),
        cmocka_unit_test(elements_of_pipelines_keep_their_replica_when_others_fail),
        cmocka_unit_test(distributed_iterator_ends_at_an_error_without_go_on),
        cmocka_unit_test(input_options_that_do_not_fit_are_refused),
        cmocka_unit_test(distributed_iterator_is_refused_in_steps_and_in_other_scopes),
        cmocka_unit_test(input_calls_are_refused_in_steps_and_in_other_scopes),
        cmocka_unit_test(make_input_fn_iterator_restarts_datasets_but_not_generators),
        cmocka_unit_test(run_steps_takes_its_elements_from_the_iterator),
        cmocka_unit_test(run_steps_rejects_an_iterator_of_another_strategy),
        cmocka_unit_test(distributed_dataset_is_transformed_further),
        cmocka_unit_test(experimental_run_without_an_iterator_runs_once),
    };

    return cmocka_run_group_tests(tests, set_up, t_folder_remove);
}
