/* test/strategy/test_seeds.c -- the examples of the pages that show a result, in C.
 *
 * B1 to B41 are rows of doc/seed-examples.md, which lists the tests of the other examples. An
 * example requires certain devices, and the devices of a process do not change. So the examples
 * for each set of devices run in their own process.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <sys/wait.h>
#include <unistd.h>

#include "../file/folder.h"
#include "values.h"

#define N(...) ((const double[]){__VA_ARGS__})

static ch_dataset *batches(int64_t n, int64_t size)
{
    return ch_dataset_batch(ch_dataset_range(0, n, 1), size, NULL);
}

/* MirroredStrategy(): all devices of the first type. */
static ch_strategy *mirrored(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    return st;
}

static ch_strategy *central(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_central_storage(NULL, &st));
    return st;
}

/* Checks that v is PR{a | b}, with each component on its GPU. */
static void is_per_replica(const ch_value *v, ch_dtype dtype, ch_shape a, ch_shape b,
                           const double *x, const double *y)
{
    assert_int_equal(ch_value_kind_of(v), CH_PER_REPLICA);
    assert_int_equal(ch_value_count(v), 2);
    t_is(ch_value_at(v, 0), dtype, a, x);
    t_is(ch_value_at(v, 1), dtype, b, y);
    t_on(ch_value_at(v, 0), "GPU:0");
    t_on(ch_value_at(v, 1), "GPU:1");
}

static void is_plain(const ch_value *v, ch_dtype dtype, ch_shape shape, const double *x,
                     const char *device)
{
    assert_int_equal(ch_value_kind_of(v), CH_PLAIN);
    t_is(ch_value_at(v, 0), dtype, shape, x);
    t_on(ch_value_at(v, 0), device);
}

/* Checks that the only leaf of a tuple has this number on each replica. */
static void local_results_are(ch_strategy *st, const ch_tuple *t, int n, ch_dtype dtype,
                              const double *x)
{
    ch_tuple *each[2] = {NULL, NULL};

    assert_int_equal(ch_strategy_local_replicas(st), n);
    t_ok(ch_strategy_local_results(st, t, n, each));
    for (int r = 0; r < n; r++) {
        assert_int_equal(ch_value_kind_of(ch_tuple_at(each[r], 0)), CH_PLAIN);
        t_is(ch_value_at(ch_tuple_at(each[r], 0), 0), dtype, ch_shape_scalar(), x + r);
        ch_tuple_unref(each[r]);
    }
}

/* Returns the next element, or the result of `f` for it. */
static ch_tuple *next_of(ch_strategy *st, ch_iterator *it, ch_function *f)
{
    ch_tuple *t = NULL, *out = NULL;

    t_ok(ch_iterator_get_next(it, &t));
    if (f == NULL)
        return t;
    t_ok(ch_strategy_run(st, f, t, &out));
    ch_tuple_unref(t);
    return out;
}

static void has_ended(ch_iterator *it)
{
    ch_tuple *t = NULL;

    t_ok(ch_iterator_next(it, &t));
    assert_null(t);
}

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

static void own_id(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "id", ch_step_replica_id(s));
}

/* ---- two GPUs ---- */

/* B1 */
static void mirrored_step_doubles_a_distributed_dataset(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(twice, NULL);
    ch_dataset  *d = batches(4, 2);
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (int step = 0; step < 2; step++) {
        ch_tuple *out = next_of(st, it, f);

        is_per_replica(ch_tuple_get(out, "y"), CH_I64, ch_shape_of(1), ch_shape_of(1),
                       N(4 * step), N(4 * step + 2));
        ch_tuple_unref(out);
    }
    has_ended(it);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* B9 */
static void reduce_sums_replica_ids_by_any_name_of_the_op(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(own_id, NULL);
    ch_reduce_op op[] = {CH_MEAN, CH_MEAN, CH_SUM};
    ch_tuple    *out = NULL;

    t_ok(ch_reduce_op_parse("SUM", &op[0]));
    t_ok(ch_reduce_op_parse("sum", &op[1]));
    t_ok(ch_strategy_run(st, f, NULL, &out));
    for (int i = 0; i < 3; i++) {
        ch_tensor *total = NULL;

        t_ok(ch_strategy_reduce(st, op[i], ch_tuple_at(out, 0), CH_NO_AXIS, &total));
        t_gave_number(total, CH_I32, 1);
    }
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

static ch_status how_many(const ch_value_context *c, void *arg, ch_tuple **out)
{
    (void)arg;
    *out = t_tuple(1, (ch_tensor *[]){t_number(CH_I32, c->n_replicas)});
    return CH_OK;
}

/* B14: the page prints a bare 4; here each replica has a 4 */
static void mirrored_step_doubles_values_from_a_function(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(twice, NULL);
    ch_tuple    *in = NULL, *out = NULL;

    t_ok(ch_strategy_distribute_values_from_function(st, how_many, NULL, &in));
    t_ok(ch_strategy_run(st, f, in, &out));
    is_per_replica(ch_tuple_get(out, "y"), CH_I32, ch_shape_scalar(), ch_shape_scalar(), N(4),
                   N(4));
    local_results_are(st, out, 2, CH_I32, N(4, 4));
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

static void sum_of_ids(ch_step *s, void *arg)
{
    ch_reduce_op op = CH_MEAN;

    (void)arg;
    t_ok(ch_reduce_op_parse("sum", &op));
    ch_step_out(s, "sum", ch_all_reduce(op, ch_step_replica_id(s)));
}

/* B15 */
static void all_reduce_sums_replica_ids(void **state)
{
    ch_strategy *st = NULL;
    ch_function *f = t_function(sum_of_ids, NULL);
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = 2, .device = (const char *[]){"gpu:0", "gpu:1"}},
        &st));
    t_ok(ch_strategy_run(st, f, NULL, &out));
    is_per_replica(ch_tuple_get(out, "sum"), CH_I32, ch_shape_scalar(), ch_shape_scalar(), N(1),
                   N(1));
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* Returns a variable of 1.0 that was created without a name or strategy. */
static ch_var *variable_of_1(void)
{
    return t_var(NULL, NULL, t_number(CH_F32, 1));
}

/* B16 */
static void a_variable_is_mirrored_inside_the_scope(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *inside, *outside;
    ch_value    *copies = NULL;
    char         text[200];

    t_ok(ch_strategy_enter(st));
    inside = variable_of_1();
    ch_strategy_leave();
    outside = variable_of_1();
    t_ok(ch_var_copies(inside, &copies));
    assert_int_equal(ch_value_kind_of(copies), CH_MIRRORED);
    assert_int_equal(ch_value_count(copies), 2);
    for (int i = 0; i < 2; i++) {
        t_is(ch_value_at(copies, i), CH_F32, ch_shape_scalar(), N(1));
        t_on(ch_value_at(copies, i), i == 0 ? "GPU:0" : "GPU:1");
    }
    ch_value_unref(copies);
    assert_string_equal(ch_var_name(inside), "Variable");
    ch_var_print(inside, text, sizeof(text));
    assert_string_equal(text, "MirroredVariable:{\n  0: Variable tensor(f32 () 1),\n"
                              "  1: Variable/replica_1 tensor(f32 () 1)\n}");
    assert_string_equal(ch_var_name(outside), "Variable");
    t_ok(ch_var_copies(outside, &copies));
    is_plain(copies, CH_F32, ch_shape_scalar(), N(1), "CPU:0");
    ch_value_unref(copies);
    ch_var_unref(inside);
    ch_var_unref(outside);
    ch_strategy_unref(st);
    (void)state;
}

static ch_dataset *ten_ones(ch_strategy *st)
{
    ch_tensor  *t = t_of(CH_F32, ch_shape_of(10), N(1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
    ch_dataset *d = ch_strategy_make_numpy_dataset(st, 1, &t, NULL);

    ch_tensor_unref(t);
    return d;
}

/* B29: two replicas: scalars cannot be divided, batches can */
static void numpy_dataset_is_divided_for_two_replicas(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_dataset  *d = ten_ones(st);
    ch_iterator *it = NULL;
    double       total = 0;

    t_refused(ch_strategy_distribute_dataset(st, d, NULL, &it), CH_INVALID_ARGUMENT, "scalar",
              "batch");
    d = ch_dataset_batch(d, 4, NULL);
    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (int step = 0; step < 3; step++) {
        ch_tuple  *t = next_of(st, it, NULL);
        ch_tensor *sum = NULL;
        double     x = 0;

        is_per_replica(ch_tuple_at(t, 0), CH_F32, ch_shape_of(2), ch_shape_of(step < 2 ? 2 : 0),
                       N(1, 1), N(1, 1));
        t_ok(ch_strategy_reduce(st, CH_SUM, ch_tuple_at(t, 0), 0, &sum));
        t_ok(ch_tensor_get(sum, NULL, &x));
        total += x;
        ch_tensor_unref(sum);
        ch_tuple_unref(t);
    }
    has_ended(it);
    assert_true(total == 10);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_strategy_unref(st);
    (void)state;
}

/* Four files of three records: "10", "11", "12" in the first, and so on. */
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

static void same(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_step_in(s, 0));
}

/* Returns a step whose input has the spec of a component of these batches, which differ in
 * size. */
static ch_function *declared_for(ch_strategy *st, ch_dataset *d)
{
    ch_function          *f = t_function(same, NULL);
    ch_iterator          *it = NULL;
    const ch_tensor_spec *spec = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    assert_int_equal(ch_iterator_element_spec(it, &spec), 1);
    assert_int_equal(spec[0].dtype, CH_STR);
    assert_true(ch_shape_equal(spec[0].shape, ch_shape_of(-1)));
    t_ok(ch_function_declare(f, st, 1, spec));
    assert_int_equal(ch_function_recordings(f), 1);
    assert_int_equal(ch_function_programs(f), 0);
    ch_iterator_unref(it);
    return f;
}

/* Takes over the reference to the tensor. */
static void refuses(ch_strategy *st, ch_function *f, ch_tensor *x, const char *word)
{
    ch_tuple *in = t_tuple(1, &x);

    t_refused(ch_strategy_run(st, f, in, NULL), CH_INVALID_ARGUMENT, "input 0", word);
    ch_tuple_unref(in);
}

/* B35: batches of 4 are divided into 2 and 2; of 5 into 3 and 2, and the last batch into 2 and
 * none */
static void a_declared_step_takes_every_batch_of_records(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_dataset  *fours = ch_dataset_batch(four_files(), 4, NULL);
    ch_function *f = declared_for(st, fours);
    ch_tensor   *rank_2 = NULL;

    for (int size = 4; size <= 5; size++) {
        ch_dataset  *d = size == 4 ? fours : ch_dataset_batch(four_files(), 5, NULL);
        ch_iterator *it = NULL;

        t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
        for (int step = 0; step < 3; step++) {
            ch_tuple *out = next_of(st, it, f);
            ch_value *v = ch_tuple_at(out, 0);

            assert_int_equal(ch_tensor_dtype(ch_value_at(v, 1)), CH_STR);
            assert_int_equal(ch_tensor_count(ch_value_at(v, 0)), size == 5 && step < 2 ? 3 : 2);
            assert_int_equal(ch_tensor_count(ch_value_at(v, 1)),
                             size == 5 && step == 2 ? 0 : 2);
            ch_tuple_unref(out);
        }
        has_ended(it);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
    t_ok(ch_tensor_new(CH_STR, ch_shape_of(2, 1), &rank_2));
    refuses(st, f, t_counting(CH_I64, ch_shape_of(2), 0), "i64");
    refuses(st, f, rank_2, "(2, 1)");
    assert_int_equal(ch_function_recordings(f), 1);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* Returns endless batches of ones, with the batch size of a replica if the global batch is
 * 8. */
static ch_dataset *ones(const ch_input_context *c, void *arg)
{
    int64_t     rows = 0;
    ch_tensor  *t = t_of(CH_F32, ch_shape_of(1, 1), N(1));
    ch_dataset *d = ch_dataset_of(1, &t, NULL);

    (void)arg;
    t_ok(ch_input_context_batch_size(c, 8, &rows));
    ch_tensor_unref(t);
    return ch_dataset_batch(ch_dataset_repeat(d, CH_INFINITE), rows, NULL);
}

/* B36 */
static void an_iterator_has_the_spec_of_its_dataset(void **state)
{
    ch_strategy          *st = t_mirrored(2);
    ch_dataset           *d = ones(&(ch_input_context){.n_replicas = 2}, NULL);
    ch_iterator          *it = NULL;
    const ch_tensor_spec *of_data = NULL, *of_iterator = NULL;

    t_ok(ch_strategy_distribute_datasets_from_function(st, ones, NULL, NULL, &it));
    assert_int_equal(ch_dataset_element_spec(d, &of_data), 1);
    assert_int_equal(ch_iterator_element_spec(it, &of_iterator), 1);
    assert_int_equal(of_data[0].dtype, CH_F32);
    assert_int_equal(of_iterator[0].dtype, CH_F32);
    assert_true(ch_shape_equal(of_data[0].shape, ch_shape_of(-1, 1, 1)));
    assert_true(ch_shape_equal(of_iterator[0].shape, ch_shape_of(-1, 1, 1)));
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_strategy_unref(st);
    (void)state;
}

/* B39: two GPUs, which are the compute devices by default */
static void central_storage_divides_batches_among_all_gpus(void **state)
{
    ch_strategy *st = central();
    ch_function *f = t_function(plus_1, NULL);
    ch_dataset  *d = batches(5, 2);
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (int step = 0; step < 3; step++) {
        ch_tuple *out = next_of(st, it, f);

        is_per_replica(ch_tuple_get(out, "y"), CH_I64, ch_shape_of(1),
                       ch_shape_of(step < 2 ? 1 : 0), N(2 * step + 1), N(2 * step + 2));
        ch_tuple_unref(out);
    }
    has_ended(it);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- a single GPU ---- */

static ch_status always_1(const ch_value_context *c, void *arg, ch_tuple **out)
{
    (void)c, (void)arg;
    *out = t_tuple(1, (ch_tensor *[]){t_number(CH_F32, 1)});
    return CH_OK;
}

static ch_status of_an_array(const ch_value_context *c, void *arg, ch_tuple **out)
{
    (void)arg;
    *out = t_tuple(1, (ch_tensor *[]){t_number(CH_F64, N(3, 2, 1)[c->replica])});
    return CH_OK;
}

/* B2', B3, B4: a single device */
static void values_from_a_function_are_made_for_one_replica(void **state)
{
    static const struct {
        ch_value_fn fn;
        ch_dtype    dtype;
        double      x;
    } row[] = {{always_1, CH_F32, 1}, {of_an_array, CH_F64, 3}, {how_many, CH_I32, 1}};
    ch_strategy *st = mirrored();

    for (int i = 0; i < 3; i++) {
        ch_tuple *t = NULL;

        t_ok(ch_strategy_distribute_values_from_function(st, row[i].fn, NULL, &t));
        assert_int_equal(ch_value_count(ch_tuple_at(t, 0)), 1);
        local_results_are(st, t, 1, row[i].dtype, &row[i].x);
        ch_tuple_unref(t);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* B28 */
static void one_device_runs_a_step_ten_times(void **state)
{
    ch_strategy *st = t_one_device();
    ch_function *f = t_function(twice, NULL);
    ch_value    *copies = NULL;
    ch_var      *v;
    double       result = 0;

    t_ok(ch_strategy_enter(st));
    v = variable_of_1();
    ch_strategy_leave();
    t_ok(ch_var_copies(v, &copies));
    is_plain(copies, CH_F32, ch_shape_scalar(), N(1), "GPU:0");
    for (int i = 0; i < 10; i++) {
        ch_tuple *in = t_tuple(1, (ch_tensor *[]){t_number(CH_I32, i)}), *out = NULL;

        t_ok(ch_strategy_run(st, f, in, &out));
        is_plain(ch_tuple_get(out, "y"), CH_I32, ch_shape_scalar(), N(2 * i), "GPU:0");
        result += *(const int32_t *)ch_tensor_data(ch_value_at(ch_tuple_get(out, "y"), 0));
        ch_tuple_unref(in);
        ch_tuple_unref(out);
    }
    assert_true(result == 90);
    assert_int_equal(ch_function_recordings(f), 1);
    ch_value_unref(copies);
    ch_var_unref(v);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* B28' */
static void one_device_accepts_any_form_of_a_device_name(void **state)
{
    static const char *const row[][2] = {{"/cpu:0", "CPU:0"},
                                         {"/device:CPU:0", "CPU:0"},
                                         {"/gpu:0", "GPU:0"},
                                         {"/device:GPU:0", "GPU:0"}};

    for (int i = 0; i < 4; i++) {
        ch_strategy *st = NULL;
        ch_var      *v;
        ch_value    *copies = NULL;

        t_ok(ch_strategy_one_device(row[i][0], &st));
        v = t_var(st, NULL, t_number(CH_F32, 1));
        t_ok(ch_var_copies(v, &copies));
        is_plain(copies, CH_F32, ch_shape_scalar(), N(1), row[i][1]);
        ch_value_unref(copies);
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* B29: a single replica */
static void numpy_dataset_gives_scalars_to_one_replica(void **state)
{
    ch_strategy *st[] = {t_one_device(), mirrored(), central()};

    for (int k = 0; k < 3; k++) {
        ch_dataset  *d = ten_ones(st[k]);
        ch_iterator *it = NULL;

        t_ok(ch_strategy_distribute_dataset(st[k], d, NULL, &it));
        for (int i = 0; i < 10; i++) {
            ch_tuple *t = next_of(st[k], it, NULL);

            is_plain(ch_tuple_at(t, 0), CH_F32, ch_shape_scalar(), N(1), "GPU:0");
            ch_tuple_unref(t);
        }
        has_ended(it);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
        ch_strategy_unref(st[k]);
    }
    (void)state;
}

/* B40: the variables are not on the CPU then, and there is a single compute device */
static void central_storage_with_one_gpu_gives_it_whole_batches(void **state)
{
    ch_strategy *st = central();
    ch_dataset  *d = batches(10, 2);
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (int i = 0; i < 5; i++) {
        ch_tuple *t = next_of(st, it, NULL);

        is_plain(ch_tuple_at(t, 0), CH_I64, ch_shape_of(2), N(2 * i, 2 * i + 1), "GPU:0");
        ch_tuple_unref(t);
    }
    has_ended(it);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- no GPU ---- */

/* B39: no GPU: the whole batch, on the CPU */
static void central_storage_without_gpus_runs_whole_batches_on_the_cpu(void **state)
{
    ch_strategy *st = central();
    ch_function *f = t_function(plus_1, NULL);
    ch_dataset  *d = batches(5, 2);
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (int step = 0; step < 3; step++) {
        ch_tuple *out = next_of(st, it, f);

        is_plain(ch_tuple_get(out, "y"), CH_I64, ch_shape_of(step < 2 ? 2 : 1),
                 N(2 * step + 1, 2 * step + 2), "CPU:0");
        ch_tuple_unref(out);
    }
    has_ended(it);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* Returns the strings of the batches of `it`, with a space after each. */
static const char *strings_of(ch_iterator *it)
{
    static char text[200];
    ch_tuple   *t = NULL;
    size_t      used = 0;

    text[0] = 0;
    for (t_ok(ch_iterator_next(it, &t)); t != NULL; t_ok(ch_iterator_next(it, &t))) {
        ch_tensor *batch = ch_value_at(ch_tuple_at(t, 0), 0);

        for (int64_t i = 0; i < ch_tensor_count(batch); i++) {
            ch_str s = {0};

            t_ok(ch_tensor_str(batch, &i, &s));
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%.*s ", (int)s.size,
                                     s.data);
        }
        ch_tuple_unref(t);
    }
    return text;
}

/* B32: two workers with a replica each: the input of a worker after the division */
static void dataset_distribute_gives_files_to_two_workers_in_turn(void **state)
{
    static const char *const want[] = {"10 11 12 30 31 32 ", "20 21 22 40 41 42 "};
    ch_dataset              *d = ch_dataset_batch(four_files(), 4, NULL);

    for (int w = 0; w < 2; w++) {
        ch_dataset  *mine = NULL;
        ch_iterator *it = NULL;

        t_ok(ch_dataset_distribute(
            d, &(ch_input_context){.n_pipelines = 2, .pipeline = w, .n_replicas = 2}, &mine));
        t_ok(ch_iterator_new(mine, NULL, &it));
        assert_string_equal(strings_of(it), want[w]);
        ch_iterator_unref(it);
        ch_dataset_unref(mine);
    }
    ch_dataset_unref(d);
    (void)state;
}

/* Runs tests in a child process that has these devices. Returns false if a test failed. */
static bool passes_with(const char *devices, const char *title, const struct CMUnitTest *test,
                        size_t n)
{
    int   result = 1;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        t_ok(ch_devices_configure(&(ch_devices_options){.spec = devices}));
        exit(_cmocka_run_group_tests(title, test, n, NULL, NULL) != 0);
    }
    return child > 0 && waitpid(child, &result, 0) == child && result == 0;
}

int main(void)
{
    static const struct CMUnitTest two[] = {
        cmocka_unit_test(mirrored_step_doubles_a_distributed_dataset),
        cmocka_unit_test(reduce_sums_replica_ids_by_any_name_of_the_op),
        cmocka_unit_test(mirrored_step_doubles_values_from_a_function),
        cmocka_unit_test(all_reduce_sums_replica_ids),
        cmocka_unit_test(a_variable_is_mirrored_inside_the_scope),
        cmocka_unit_test(numpy_dataset_is_divided_for_two_replicas),
        cmocka_unit_test_setup_teardown(a_declared_step_takes_every_batch_of_records,
                                        t_folder_make, t_folder_remove),
        cmocka_unit_test(an_iterator_has_the_spec_of_its_dataset),
        cmocka_unit_test(central_storage_divides_batches_among_all_gpus),
    };
    static const struct CMUnitTest one[] = {
        cmocka_unit_test(values_from_a_function_are_made_for_one_replica),
        cmocka_unit_test(one_device_runs_a_step_ten_times),
        cmocka_unit_test(one_device_accepts_any_form_of_a_device_name),
        cmocka_unit_test(numpy_dataset_gives_scalars_to_one_replica),
        cmocka_unit_test(central_storage_with_one_gpu_gives_it_whole_batches),
    };
    static const struct CMUnitTest none[] = {
        cmocka_unit_test(central_storage_without_gpus_runs_whole_batches_on_the_cpu),
        cmocka_unit_test_setup_teardown(dataset_distribute_gives_files_to_two_workers_in_turn,
                                        t_folder_make, t_folder_remove),
    };
    bool ok = passes_with("GPU=2", "two GPUs", two, sizeof(two) / sizeof(*two));

    ok = passes_with("GPU=1", "one GPU", one, sizeof(one) / sizeof(*one)) && ok;
    ok = passes_with("CPU=1", "no GPU", none, sizeof(none) / sizeof(*none)) && ok;
    return ok ? 0 : 1;
}
