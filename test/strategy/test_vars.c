/* test/strategy/test_vars.c -- variables of several replicas: assignments in replicas and
 * outside, synchronisation, aggregation, and reads.
 *
 * The numbers in comments are rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "help.h"
#include "strategy/strategy.h"

static ch_tensor *number(ch_dtype dtype, double value)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(dtype, ch_shape_scalar(), &t));
    if (dtype == CH_F32)
        *(float *)ch_tensor_data_mut(t) = (float)value;
    else if (dtype == CH_I32)
        *(int32_t *)ch_tensor_data_mut(t) = (int32_t)value;
    else
        *(int64_t *)ch_tensor_data_mut(t) = (int64_t)value;
    return t;
}

static double of(const ch_tensor *t)
{
    switch (ch_tensor_dtype(t)) {
    case CH_F32:
        return (double)*(const float *)ch_tensor_data(t);
    case CH_I32:
        return *(const int32_t *)ch_tensor_data(t);
    default:
        return (double)*(const int64_t *)ch_tensor_data(t);
    }
}

static ch_var *var(ch_strategy *st, double value, ch_sync sync, ch_aggregation aggregation)
{
    ch_tensor *initial = number(CH_F32, value);
    ch_var    *v = NULL;

    t_ok(ch_var_new(
        st,
        &(ch_var_spec){
            .name = "v", .initial = initial, .sync = sync, .aggregation = aggregation},
        &v));
    ch_tensor_unref(initial);
    return v;
}

static double value_of(ch_var *v)
{
    ch_tensor *t = NULL;
    double     x;

    t_ok(ch_var_get(v, &t));
    x = of(t);
    ch_tensor_unref(t);
    return x;
}

static void set(ch_var *v, double value)
{
    ch_tensor *t = number(ch_var_dtype(v), value);

    t_ok(ch_var_set(v, t));
    ch_tensor_unref(t);
}

static double copy_of(ch_var *v, int i)
{
    ch_value *copies = NULL;
    double    x;

    t_ok(ch_var_copies(v, &copies));
    x = of(ch_value_at(copies, i));
    ch_value_unref(copies);
    return x;
}

static void copies_are(ch_var *v, double first, double second)
{
    if (copy_of(v, 0) != first || copy_of(v, 1) != second)
        fail_msg("copies are %g, %g, want %g, %g", copy_of(v, 0), copy_of(v, 1), first, second);
}

/* ---- writing in a replica ---- */

typedef struct writing {
    ch_var *v;
    ch_node *(*assign)(ch_step *s, ch_var *v, ch_node *value);
    double base, per_id; /* base + per_id * replica */
    bool   is_literal;   /* the base alone, as a constant */
} writing;

static void write_it(ch_step *s, void *arg)
{
    const writing *w = arg;
    ch_node       *id = ch_cast(ch_step_replica_id(s), ch_var_dtype(w->v));
    ch_node       *x = ch_add(ch_mul(id, ch_number(s, w->per_id)), ch_number(s, w->base));
    ch_node       *now = w->assign(s, w->v, w->is_literal ? ch_number(s, w->base) : x);

    ch_step_out(s, "now", now);
}

static ch_status try_write(writing w)
{
    ch_function *f = t_function(write_it, &w);
    ch_status    rc = ch_strategy_run(ch_var_strategy(w.v), f, NULL, NULL);

    ch_function_unref(f);
    return rc;
}

static void replicas_write(ch_var *v, ch_node *(*assign)(ch_step *s, ch_var *v, ch_node *value),
                           double base, double per_id)
{
    t_ok(try_write((writing){v, assign, base, per_id, false}));
}

static void write_literal(ch_var *v, ch_node *(*assign)(ch_step *s, ch_var *v, ch_node *value),
                          double  value)
{
    t_ok(try_write((writing){v, assign, value, 0, true}));
}

/* ---- creation ---- */

static void var_new_rejects_invalid_synchronisation_and_aggregation(
    void **state) /* 3.1.2, 3.1.3, 3.1.4, 8.14 */
{
    static const ch_aggregation allowed[] = {CH_AGGREGATE_NONE, CH_AGGREGATE_SUM,
                                             CH_AGGREGATE_MEAN, CH_AGGREGATE_FIRST};
    ch_strategy                *st = t_mirrored(2), *central = t_central(2);
    ch_var                     *v = NULL;

    t_refused(ch_var_new(st, &(ch_var_spec){.name = "a", .sync = CH_SYNC_NONE}, &v),
              CH_INVALID_ARGUMENT, "NONE variable synchronization mode is not supported with",
              "Mirrored");
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "a", .sync = (ch_sync)9}, &v),
              CH_INVALID_ARGUMENT, "invalid variable synchronization mode: 9 for variable: a",
              "");
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "a", .aggregation = (ch_aggregation)9}, &v),
              CH_INVALID_ARGUMENT, "invalid variable aggregation mode: 9 for variable: a", "");
    t_refused(
        ch_var_new(
            st, &(ch_var_spec){.name = "a", .dtype = CH_I32, .aggregation = CH_AGGREGATE_MEAN},
            &v),
        CH_INVALID_ARGUMENT, "CH_AGGREGATE_MEAN", "i32");
    t_refused(ch_var_new(st,
                         &(ch_var_spec){.name = "a",
                                        .dtype = CH_I64,
                                        .sync = CH_SYNC_ON_READ,
                                        .aggregation = CH_AGGREGATE_MEAN},
                         &v),
              CH_INVALID_ARGUMENT, "CH_AGGREGATE_MEAN", "i64");
    t_refused(
        ch_var_new(
            central, /* 8.14: as under Mirrored */
            &(ch_var_spec){.name = "a", .dtype = CH_I32, .aggregation = CH_AGGREGATE_MEAN}, &v),
        CH_INVALID_ARGUMENT, "CH_AGGREGATE_MEAN", "i32");
    ch_strategy_unref(central);
    assert_null(v);
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "a"}, &v)); /* 3.1.3: the default */
    assert_int_equal(ch_var_aggregation(v), CH_AGGREGATE_NONE);
    ch_var_unref(v);
    for (int i = 0; i < 4; i++) { /* 3.1.3: allowed values */
        t_ok(ch_var_new(st, &(ch_var_spec){.name = "a", .aggregation = allowed[i]}, &v));
        assert_int_equal(ch_var_aggregation(v), allowed[i]);
        ch_var_unref(v);
    }
    ch_strategy_unref(st);
    (void)state;
}

static void variables_are_trainable_unless_synchronised_on_read(void **state) /* 3.1.1, 3.1.5 */
{
    static const struct {
        ch_sync sync;
        int     trainable;
        bool    is;
    } row[] = {
        {CH_SYNC_AUTO, 0, true},       {CH_SYNC_ON_WRITE, 0, true},
        {CH_SYNC_ON_READ, 0, false},   {CH_SYNC_ON_READ, 1, true},
        {CH_SYNC_AUTO, CH_OFF, false}, {CH_SYNC_ON_READ, CH_OFF, false},
    };
    ch_strategy *st[] = {t_mirrored(2), t_central(2), t_mirrored(1), NULL};

    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 6; i++) {
            ch_var *v = NULL;

            t_ok(ch_var_new(
                st[k], &(ch_var_spec){.sync = row[i].sync, .trainable = row[i].trainable}, &v));
            assert_int_equal(ch_var_is_trainable(v), row[i].is);
            assert_int_equal(ch_var_aggregation(v), CH_AGGREGATE_NONE);
            assert_int_equal(ch_var_sync(v), row[i].sync == CH_SYNC_ON_READ ? CH_SYNC_ON_READ
                                                                            : CH_SYNC_ON_WRITE);
            ch_var_unref(v);
        }
        ch_strategy_unref(st[k]);
    }
    (void)state;
}

static void
mirrored_variable_has_a_copy_on_each_device(void **state) /* 3.1.6, 3.1.7, 3.1.13, 6.5.5 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = NULL, *w = NULL;
    ch_value    *copies = NULL;
    char         text[512];

    t_ok(ch_var_new(st, &(ch_var_spec){.shape = ch_shape_of(2), .init = ch_init_uniform(-1, 1)},
                    &v));
    t_ok(ch_var_copies(v, &copies));
    assert_int_equal(ch_value_kind_of(copies), CH_MIRRORED);
    assert_int_equal(ch_value_count(copies), 2);
    for (int i = 0; i < 2; i++)
        assert_string_equal(ch_device_name(ch_tensor_device(ch_value_at(copies, i))),
                            i == 0 ? "/job:localhost/replica:0/task:0/device:GPU:0"
                                   : "/job:localhost/replica:0/task:0/device:GPU:1");
    assert_memory_equal(ch_tensor_data(ch_value_at(copies, 0)),
                        ch_tensor_data(ch_value_at(copies, 1)), 2 * sizeof(float));
    for (int i = 0; i < 2; i++) /* the initializer ran once */
        assert_true(((const float *)ch_tensor_data(ch_value_at(copies, 0)))[i] != 0);
    ch_value_unref(copies);
    assert_int_equal(ch_var_dtype(v), CH_F32);
    assert_true(ch_shape_equal(ch_var_shape(v), ch_shape_of(2)));
    assert_true(ch_var_is_trainable(v));
    assert_string_equal(ch_var_device(v), "/job:localhost/replica:0/task:0/device:GPU:0");
    w = var(st, 3, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
    ch_var_print(w, text, sizeof(text));
    assert_string_equal(text, "MirroredVariable:{\n  0: v tensor(f32 () 3),\n  1: v/replica_1 "
                              "tensor(f32 () 3)\n}");
    assert_string_equal(ch_var_name(v), "Variable");
    ch_var_unref(v);
    ch_var_unref(w);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- sync on write ---- */

static void count_warnings(const ch_log_record *r, void *arg)
{
    *(int *)arg += strcmp(r->code, "copies-differ") == 0;
}

/* 3.3, 3.3.1, 8.3: the log warns at the first write that makes copies differ, and only then.
 * CentralStorage has a single copy, and rejects the write. */
static void assign_without_aggregation_changes_the_copy_of_the_replica(void **state)
{
    ch_strategy *st = t_mirrored(2), *central = t_central(2);
    ch_var      *v = var(st, 1, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
    ch_var      *w = var(central, 1, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
    int          n_warnings = 0;

    ch_log_set_sink(count_warnings, &n_warnings, CH_LOG_WARNING);
    write_literal(v, ch_var_assign, 5);
    copies_are(v, 5, 5);
    assert_int_equal(n_warnings, 0);
    replicas_write(v, ch_var_assign, 0, 1);
    copies_are(v, 0, 1);
    assert_int_equal(n_warnings, 1);
    replicas_write(v, ch_var_assign_add, 2, 1);
    copies_are(v, 2, 4);
    assert_int_equal(n_warnings, 1);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    t_refused(try_write((writing){w, ch_var_assign, 0, 1, false}), CH_INVALID_ARGUMENT,
              "assign of v: replicas share the variable", "it needs an aggregation");
    ch_var_unref(v);
    ch_var_unref(w);
    ch_strategy_unref(st);
    ch_strategy_unref(central);
    (void)state;
}

static void assign_with_sum_adds_the_values_of_all_replicas(
    void **state) /* 3.3, 3.3.1, 3.3.4, 3.3.6, 8.7 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = var(st, 1, CH_SYNC_AUTO, CH_AGGREGATE_SUM);

    t_refused(try_write((writing){v, ch_var_assign, 5, 0, true}), CH_INVALID_ARGUMENT,
              "same value for all replicas", "cannot be summed");
    copies_are(v, 1, 1);
    write_literal(v, ch_var_assign_add, 0); /* a literal 0 is accepted */
    copies_are(v, 1, 1);
    replicas_write(v, ch_var_assign, 2, 0);
    copies_are(v, 4, 4);
    replicas_write(v, ch_var_assign_add, 1, 0);
    copies_are(v, 6, 6);
    replicas_write(v, ch_var_assign_sub, 0, 1);
    copies_are(v, 5, 5);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void assign_with_mean_averages_the_values_of_all_replicas(
    void **state) /* 3.3, 3.3.1, 3.3.2, 3.3.4, 8.7 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = var(st, 1, CH_SYNC_AUTO, CH_AGGREGATE_MEAN);

    replicas_write(v, ch_var_assign, 0, 1);
    copies_are(v, 0.5, 0.5);
    set(v, 1);
    replicas_write(v, ch_var_assign_add, 0, 1);
    copies_are(v, 1.5, 1.5);
    set(v, 5);
    replicas_write(v, ch_var_assign_sub, 0, 1);
    copies_are(v, 4.5, 4.5);
    set(v, 1);
    write_literal(v, ch_var_assign, 5);
    copies_are(v, 5, 5);
    set(v, 1);
    write_literal(v, ch_var_assign_add, 5);
    copies_are(v, 6, 6);
    set(v, 5);
    write_literal(v, ch_var_assign_sub, 1);
    copies_are(v, 4, 4);
    replicas_write(v, ch_var_assign, 2, 0);
    copies_are(v, 2, 2);
    write_literal(v, ch_var_assign_add, 0);
    copies_are(v, 2, 2);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void
assign_with_first_takes_the_value_of_the_first_replica(void **state) /* 3.3, 3.3.3, 3.3.4 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = var(st, 15, CH_SYNC_AUTO, CH_AGGREGATE_FIRST);

    replicas_write(v, ch_var_assign, 0, 1);
    copies_are(v, 0, 0);
    replicas_write(v, ch_var_assign, 2, 7);
    copies_are(v, 2, 2);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void var_set_and_add_change_all_copies(void **state) /* 3.1.9, 3.3, 3.3.5, 1.3.10 */
{
    static const ch_aggregation each[] = {CH_AGGREGATE_NONE, CH_AGGREGATE_SUM,
                                          CH_AGGREGATE_MEAN, CH_AGGREGATE_FIRST};
    ch_strategy                *st = t_mirrored(2), *other = t_mirrored(2);

    for (int i = 0; i < 4; i++) {
        ch_var    *v = var(st, 1, CH_SYNC_AUTO, each[i]);
        ch_tensor *six = number(CH_F32, 6), *two = number(CH_F32, 2);

        assert_ptr_equal(ch_var_strategy(v), st); /* 3.1.9 */
        set(v, 6);
        copies_are(v, 6, 6);
        set(v, 1);
        t_ok(ch_var_add(v, six));
        copies_are(v, 7, 7);
        t_ok(ch_var_add(v, two));
        copies_are(v, 9, 9);
        t_ok(ch_var_sub(v, two));
        copies_are(v, 7, 7);
        t_ok(ch_strategy_enter(other));
        t_refused(ch_var_set(v, six), CH_FAILED_PRECONDITION, "mixing different strategies",
                  "v");
        ch_strategy_leave();
        ch_tensor_unref(six);
        ch_tensor_unref(two);
        ch_var_unref(v);
    }
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

static void read_it(ch_step *s, void *v)
{
    ch_step_out(s, "v", ch_var_read(s, v));
}

/* 3.3.10, 8.16: in a replica its own copy */
static void var_get_reads_the_copy_on_the_current_device(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = var(st, 1, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
    ch_function *f = t_function(read_it, v);
    ch_tuple    *out = NULL;

    replicas_write(v, ch_var_assign, 0, 1);
    t_ok(ch_strategy_run(st, f, NULL, &out));
    assert_true(t_floats(out, 0, 0)[0] == 0 && t_floats(out, 0, 1)[0] == 1);
    ch_tuple_unref(out);
    ch_function_unref(f);
    assert_true(value_of(v) == 0);
    for (int i = 0; i < 2; i++) {
        ch_device *d = NULL;

        t_ok(ch_device_find(i == 0 ? "GPU:0" : "GPU:1", &d));
        t_ok(ch_device_enter(d));
        assert_true(value_of(v) == i);
        ch_device_leave();
    }
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- sync on read ---- */

static void
sync_on_read_variable_is_aggregated_when_it_is_read(void **state) /* 3.4.1, 3.4.2, 3.4.3 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *sum = var(st, 1, CH_SYNC_ON_READ, CH_AGGREGATE_SUM);
    ch_var      *mean = var(st, 1, CH_SYNC_ON_READ, CH_AGGREGATE_MEAN);
    ch_var      *first = var(st, 1, CH_SYNC_ON_READ, CH_AGGREGATE_FIRST);
    ch_value    *copies = NULL;

    assert_true(value_of(sum) == 2 && value_of(mean) == 1);
    set(sum, 6);
    copies_are(sum, 3, 3);
    assert_true(value_of(sum) == 6);
    set(mean, 6);
    assert_true(value_of(mean) == 6);
    replicas_write(sum, ch_var_assign, 0, 1);
    replicas_write(mean, ch_var_assign, 0, 1);
    replicas_write(first, ch_var_assign, 0, 1);
    assert_true(value_of(sum) == 1 && value_of(mean) == 0.5 && value_of(first) == 0);
    set(sum, 2);
    replicas_write(sum, ch_var_assign_add, 2, 1);
    copies_are(sum, 3, 4);
    assert_true(value_of(sum) == 7);
    replicas_write(mean, ch_var_assign, 0, 6);
    copies_are(mean, 0, 6);
    assert_true(value_of(mean) == 3);
    t_ok(ch_var_copies(mean, &copies));
    assert_int_equal(ch_value_kind_of(copies), CH_PER_REPLICA);
    ch_value_unref(copies);
    ch_var_unref(sum);
    ch_var_unref(mean);
    ch_var_unref(first);
    ch_strategy_unref(st);
    (void)state;
}

static ch_var *sum_of(ch_strategy *st, ch_dtype dtype)
{
    ch_var *v = NULL;

    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "v",
                                   .dtype = dtype,
                                   .sync = CH_SYNC_ON_READ,
                                   .aggregation = CH_AGGREGATE_SUM},
                    &v));
    return v;
}

static void set_in_merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *v)
{
    (void)n;
    (void)out;
    ch_var_assign(s, v, in[0]);
}

static void set_in_step(ch_step *s, void *v)
{
    ch_node *x = ch_step_in(s, 0);

    ch_merge_call(s, set_in_merge, v, 1, &x, 0, NULL);
}

/* The sum of the copies equals the value that was set, to the last bit, outside of steps and in
 * a merge call. */
static void sync_on_read_sum_reads_exactly_what_was_set(void **state) /* 3.4.1, 3.4.10 */
{
    const ch_dtype dtype[] = {CH_F32, CH_F64, CH_F16, CH_BF16, CH_I32, CH_I64};
    const double   special[] = {0, 1e-45, -3e38, INFINITY};

    for (int n = 2; n <= 4; n++)
        for (int d = 0; d < 6; d++) {
            ch_strategy *st = t_mirrored(n);
            ch_var      *v = sum_of(st, dtype[d]);
            ch_function *f = t_function(set_in_step, v);

            for (int k = 0; k < 300; k++) {
                bool       is_int = ch_dtype_is_int(dtype[d]);
                double     x = is_int  ? (k % 2 == 0 ? k : -k)
                               : k < 4 ? special[k]
                                       : k * (k % 2 == 0 ? 0.1 : -0.7);
                ch_tensor *t = NULL, *now = NULL;
                ch_tuple  *in;

                t_ok(ch_tensor_scalar(dtype[d], x, &t));
                in = t_tuple(1, (ch_tensor *[]){ch_tensor_ref(t)});
                if (k % 3 == 0)
                    t_ok(ch_strategy_run(st, f, in, NULL));
                else
                    t_ok(ch_var_set(v, t));
                t_ok(ch_var_get(v, &now));
                assert_memory_equal(ch_tensor_data(now), ch_tensor_data(t),
                                    ch_dtype_bytes(dtype[d]));
                ch_tensor_unref(now);
                ch_tensor_unref(t);
                ch_tuple_unref(in);
            }
            ch_function_unref(f);
            ch_var_unref(v);
            ch_strategy_unref(st);
        }
    (void)state;
}

static void sync_on_read_first_reads_the_first_copy(void **state) /* 3.4.4 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *own = var(st, 2, CH_SYNC_ON_READ, CH_AGGREGATE_FIRST);
    ch_var      *twin = var(st, 3, CH_SYNC_ON_WRITE, CH_AGGREGATE_FIRST);

    replicas_write(own, ch_var_assign_add, 5, 5);
    replicas_write(twin, ch_var_assign_add, 7, 7);
    copies_are(own, 7, 12);
    copies_are(twin, 10, 10);
    assert_true(value_of(own) == 7);
    replicas_write(own, ch_var_assign_add, 11, 11);
    replicas_write(twin, ch_var_assign_add, 13, 13);
    copies_are(own, 18, 34);
    copies_are(twin, 23, 23);
    assert_true(value_of(own) == 18);
    ch_var_unref(own);
    ch_var_unref(twin);
    ch_strategy_unref(st);
    (void)state;
}

static void var_add_and_sub_reject_a_sync_on_read_sum(void **state) /* 3.4, 3.4.10, 8.15 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *sum = var(st, 1, CH_SYNC_ON_READ, CH_AGGREGATE_SUM);
    ch_var      *none = var(st, 1, CH_SYNC_ON_READ, CH_AGGREGATE_NONE);
    ch_var      *mean = var(st, 1, CH_SYNC_ON_READ, CH_AGGREGATE_MEAN), *whole = NULL;
    ch_var      *first = var(st, 1, CH_SYNC_ON_READ, CH_AGGREGATE_FIRST);
    ch_tensor   *six = number(CH_F32, 6), *zero = number(CH_I64, 0), *t = NULL;

    t_refused(ch_var_add(sum, six), CH_INVALID_ARGUMENT, "CH_AGGREGATE_SUM", "add");
    t_refused(ch_var_sub(sum, six), CH_INVALID_ARGUMENT, "CH_AGGREGATE_SUM", "sub");
    t_ok(ch_var_add(mean, six));
    copies_are(mean, 7, 7);
    t_ok(ch_var_sub(mean, six));
    copies_are(mean, 1, 1);
    t_ok(ch_var_set(first, six));
    copies_are(first, 6, 6);
    t_ok(ch_var_add(first, six));
    copies_are(first, 12, 12);
    t_ok(ch_var_sub(first, six));
    copies_are(first, 6, 6);
    replicas_write(none, ch_var_assign_add, 1, 1); /* 2 and 3: each copy its own */
    copies_are(none, 2, 3);
    t_refused(ch_var_get(none, &t), CH_INVALID_ARGUMENT, "no aggregation", "v");
    t_ok(ch_var_set(none, six));
    copies_are(none, 6, 6);
    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "whole",
                                   .initial = zero,
                                   .sync = CH_SYNC_ON_READ,
                                   .aggregation = CH_AGGREGATE_SUM},
                    &whole));
    set(whole, 7); /* the first copy gets the remainder */
    copies_are(whole, 4, 3);
    assert_true(value_of(whole) == 7);
    set(whole, -7);
    copies_are(whole, -3, -4); /* the first copy is larger by 1 here too */
    assert_true(value_of(whole) == -7);
    ch_tensor_unref(six);
    ch_tensor_unref(zero);
    ch_var_unref(sum);
    ch_var_unref(none);
    ch_var_unref(mean);
    ch_var_unref(first);
    ch_var_unref(whole);
    ch_strategy_unref(st);
    (void)state;
}

static void read_and_add(ch_step *s, void *v)
{
    ch_step_out(s, "plus one", ch_add(ch_var_read(s, v), ch_number(s, 1)));
    ch_step_out(s, "sum", ch_all_reduce(CH_SUM, ch_var_read(s, v)));
}

static void
replica_reads_its_own_copy_of_a_variable(void **state) /* 3.3.11, 3.3.13, 3.4.5, 3.4.13 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *mean = var(st, 0, CH_SYNC_ON_READ, CH_AGGREGATE_MEAN);
    ch_var      *both = var(st, 2, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
    ch_var      *first = var(st, 0, CH_SYNC_ON_READ, CH_AGGREGATE_FIRST);
    ch_function *f = t_function(read_and_add, mean), *g = t_function(read_and_add, both);
    ch_function *h = t_function(read_and_add, first);
    ch_tuple    *out = NULL;

    replicas_write(first, ch_var_assign, 0, 3);
    t_ok(ch_strategy_run(st, h, NULL, &out));
    assert_true(t_floats(out, 1, 0)[0] == 3 && t_floats(out, 1, 1)[0] == 3);
    ch_tuple_unref(out);
    ch_function_unref(h);
    ch_var_unref(first);
    replicas_write(mean, ch_var_assign, 0, 1);
    t_ok(ch_strategy_run(st, f, NULL, &out));
    assert_true(t_floats(out, 0, 0)[0] == 1 && t_floats(out, 0, 1)[0] == 2);
    assert_true(t_floats(out, 1, 0)[0] == 1 && t_floats(out, 1, 1)[0] == 1);
    ch_tuple_unref(out);
    t_ok(ch_strategy_run(st, g, NULL, &out));
    assert_true(t_floats(out, 0, 0)[0] == 3 && t_floats(out, 0, 1)[0] == 3);
    assert_true(t_floats(out, 1, 0)[0] == 4 && t_floats(out, 1, 1)[0] == 4);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_function_unref(g);
    ch_var_unref(mean);
    ch_var_unref(both);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- rows ---- */

typedef ch_node *(*scatter_fn)(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);

typedef struct scattering {
    ch_var    *v;
    scatter_fn fn;
} scattering;

/* Scatters different ids and rows on each replica. */
static void scatter_it(ch_step *s, void *arg)
{
    const scattering *x = arg;

    ch_step_out(s, "now", x->fn(s, x->v, ch_step_in(s, 0), ch_step_in(s, 1)));
}

typedef struct rows {
    int   n; /* rows of each replica */
    int   id[2][2];
    float x[2][2];
} rows;

static ch_tuple *rows_tuple(ch_dtype dtype, const rows *in, int replicas)
{
    ch_tensor *id[2], *x[2];
    ch_value  *v[2] = {NULL};
    ch_tuple  *out = NULL;

    for (int r = 0; r < replicas; r++) {
        t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(in->n), in->id[r], &id[r]));
        t_ok(ch_tensor_new(dtype, ch_shape_of(in->n), &x[r]));
        for (int i = 0; i < in->n; i++)
            if (dtype == CH_F32)
                ((float *)ch_tensor_data_mut(x[r]))[i] = in->x[r][i];
            else
                ((int32_t *)ch_tensor_data_mut(x[r]))[i] = (int32_t)in->x[r][i];
    }
    t_ok(ch_value_new(CH_PER_REPLICA, replicas, id, &v[0]));
    t_ok(ch_value_new(CH_PER_REPLICA, replicas, x, &v[1]));
    t_ok(ch_tuple_new(2, v, NULL, &out));
    for (int r = 0; r < replicas; r++) {
        ch_tensor_unref(id[r]);
        ch_tensor_unref(x[r]);
    }
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    return out;
}

static ch_var *vector(ch_strategy *st, ch_dtype dtype, int n, const float *value,
                      ch_aggregation aggregation)
{
    ch_tensor *t = NULL;
    ch_var    *v = NULL;

    t_ok(ch_tensor_new(dtype, ch_shape_of(n), &t));
    for (int i = 0; i < n; i++)
        if (dtype == CH_F32)
            ((float *)ch_tensor_data_mut(t))[i] = value[i];
        else
            ((int32_t *)ch_tensor_data_mut(t))[i] = (int32_t)value[i];
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "v", .initial = t, .aggregation = aggregation},
                    &v));
    ch_tensor_unref(t);
    return v;
}

static ch_status try_scatter(ch_var *v, scatter_fn fn, const rows *in)
{
    ch_function *f = t_function(scatter_it, &(scattering){v, fn});
    ch_tuple    *t = rows_tuple(ch_var_dtype(v), in, 2);
    ch_status    rc = ch_strategy_run(ch_var_strategy(v), f, t, NULL);

    ch_tuple_unref(t);
    ch_function_unref(f);
    return rc;
}

static void holds(ch_var *v, const float *want)
{
    ch_value *copies = NULL;

    t_ok(ch_var_copies(v, &copies));
    for (int r = 0; r < ch_value_count(copies); r++)
        for (int i = 0; i < ch_tensor_count(ch_value_at(copies, r)); i++) {
            const void *data = ch_tensor_data(ch_value_at(copies, r));
            float       x = ch_var_dtype(v) == CH_F32 ? ((const float *)data)[i]
                                                      : (float)((const int32_t *)data)[i];

            if (x != want[i])
                fail_msg("copy %d, row %d: %g, want %g", r, i, (double)x, (double)want[i]);
        }
    ch_value_unref(copies);
}

static void scatter_applies_rows_of_all_replicas_to_copies_and_shared_variables(
    void **state) /* 3.6.2, 3.6.3, 3.6.4, 3.6.5 */
{
    static const struct {
        scatter_fn     fn;
        ch_aggregation aggregation;
        ch_dtype       dtype;
        float          before[3], after[3];
        rows           rows;
    } row[] = {
        {ch_var_scatter_sub,
         CH_AGGREGATE_MEAN,
         CH_F32,
         {0, 0, 0},
         {0, -1, -1},
         {2, {{0, 1}, {1, 2}}, {{0, 1}, {1, 2}}}},
        {ch_var_scatter_add,
         CH_AGGREGATE_SUM,
         CH_F32,
         {0, 0, 0},
         {0, 2, 2},
         {2, {{0, 1}, {1, 2}}, {{0, 1}, {1, 2}}}},
        {ch_var_scatter_div,
         CH_AGGREGATE_SUM,
         CH_I32,
         {1, 6, 1},
         {0, 2, 1},
         {1, {{0}, {1}}, {{2}, {3}}}},
        {ch_var_scatter_mul,
         CH_AGGREGATE_MEAN,
         CH_F32,
         {2, 1, 1},
         {2, 1.5F, 1},
         {1, {{0}, {1}}, {{2}, {3}}}},
        {ch_var_scatter_min,
         CH_AGGREGATE_FIRST,
         CH_F32,
         {0, 2, 0},
         {0, 1, 0},
         {1, {{1}, {0}}, {{1}, {-9}}}},
        {ch_var_scatter_max,
         CH_AGGREGATE_FIRST,
         CH_F32,
         {0, 0, 0},
         {1, 0, 0},
         {1, {{0}, {2}}, {{1}, {9}}}},
        {ch_var_scatter_update,
         CH_AGGREGATE_FIRST,
         CH_F32,
         {0, 0, 0},
         {0, 3, 0},
         {1, {{1}, {2}}, {{3}, {9}}}},
    };

    for (int shares = 0; shares < 2; shares++)
        for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
            ch_strategy *st = shares ? t_central(2) : t_mirrored(2);
            ch_var      *v = vector(st, row[i].dtype, 3, row[i].before, row[i].aggregation);

            t_ok(try_scatter(v, row[i].fn, &row[i].rows));
            holds(v, row[i].after);
            ch_var_unref(v);
            ch_strategy_unref(st);
        }
    (void)state;
}

static void scatter_ids(ch_step *s, void *v)
{
    ch_node *ids = ch_step_in(s, 0);

    ch_var_scatter_add(s, v, ids, ch_cast(ch_add(ids, ch_number(s, 1)), CH_F32));
}

/* Five rows in batches of four: the second batch has a row for the first replica and none for
 * the other. */
static void scatter_with_first_aggregation_accepts_a_short_batch(void **state) /* 3.6.5 */
{
    for (int shares = 0; shares < 2; shares++) {
        static const float zeros[5];
        ch_strategy       *st = shares ? t_central(2) : t_mirrored(2);
        ch_var            *v = vector(st, CH_F32, 5, zeros, CH_AGGREGATE_FIRST);
        ch_function       *f = t_function(scatter_ids, v);
        ch_dataset        *d = ch_dataset_batch(ch_dataset_range(0, 5, 1), 4, NULL);
        ch_iterator       *it = NULL;
        ch_tuple          *batch = NULL;

        t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
        for (int i = 0; i < 2; i++) {
            t_ok(ch_iterator_next(it, &batch));
            assert_non_null(batch);
            t_ok(ch_strategy_run(st, f, batch, NULL));
            ch_tuple_unref(batch);
        }
        holds(v, (float[]){1, 2, 0, 0, 5});
        ch_iterator_unref(it);
        ch_dataset_unref(d);
        ch_function_unref(f);
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* An update from outside of a step changes every copy. */
static void scatter_in_an_update_changes_all_copies(void **state) /* 3.6.7 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *sum = vector(st, CH_F32, 3, (float[]){1, 1, 1}, CH_AGGREGATE_SUM);
    ch_var      *none = vector(st, CH_F32, 3, (float[]){1, 1, 1}, CH_AGGREGATE_NONE);
    ch_function *add = t_function(scatter_it, &(scattering){sum, ch_var_scatter_add});
    ch_function *least = t_function(scatter_it, &(scattering){none, ch_var_scatter_min});
    ch_tuple    *in = rows_tuple(CH_F32, &(rows){1, {{0}, {0}}, {{2}, {2}}}, 2);

    t_ok(ch_strategy_update(st, sum, add, in, NULL));
    holds(sum, (float[]){3, 1, 1});
    t_ok(ch_strategy_update(st, none, least, in, NULL));
    holds(none, (float[]){1, 1, 1});
    ch_tuple_unref(in);
    ch_function_unref(add);
    ch_function_unref(least);
    ch_var_unref(sum);
    ch_var_unref(none);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- variables that replicas share ---- */

static void central_storage_variable_is_shared_and_aggregates_writes(
    void **state) /* 3.5.1, 3.5.2, 3.5.3, 3.1.15, 2.3.3 */
{
    for (int n = 2; n <= 4; n++) {
        ch_strategy *st = t_central(n);
        ch_var      *x = var(st, 10, CH_SYNC_AUTO, CH_AGGREGATE_SUM);
        ch_var      *y = var(st, 20, CH_SYNC_ON_READ, CH_AGGREGATE_SUM);
        ch_var      *z = var(st, 30, CH_SYNC_AUTO, CH_AGGREGATE_FIRST);
        ch_var      *none = var(st, 1, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
        ch_var      *mean = var(st, 1, CH_SYNC_AUTO, CH_AGGREGATE_MEAN);
        ch_tensor   *one = number(CH_F32, 1);
        ch_value    *copies = NULL;

        replicas_write(x, ch_var_assign_add, 1, 0);
        replicas_write(y, ch_var_assign_add, 1, 0);
        replicas_write(z, ch_var_assign_add, 1, 5);
        assert_true(value_of(x) == 10 + n && value_of(y) == 20 + n && value_of(z) == 31);
        t_refused(try_write((writing){x, ch_var_assign, 5, 0, true}), CH_INVALID_ARGUMENT,
                  "cannot be summed", "");
        t_refused(try_write((writing){none, ch_var_assign, 0, 1, false}), CH_INVALID_ARGUMENT,
                  "needs an aggregation", "v");
        write_literal(none, ch_var_assign, 8);
        for (int sync = CH_SYNC_AUTO; sync <= CH_SYNC_ON_READ; sync++) { /* all have one copy */
            ch_var *any = var(st, 3, (ch_sync)sync, CH_AGGREGATE_SUM);

            replicas_write(any, ch_var_assign_add, 1, 0);
            assert_true(value_of(any) == 3 + n);
            ch_var_unref(any);
        }
        assert_true(value_of(none) == 8);
        set(x, 6);
        assert_true(value_of(x) == 6);
        set(y, 7); /* not divided, though it is a sum on read */
        assert_true(value_of(y) == 7);
        t_ok(ch_var_add(y, one));
        assert_true(value_of(y) == 8);
        write_literal(mean, ch_var_assign, 8);
        assert_true(value_of(mean) == 8);
        ch_tensor_unref(one);
        ch_var_unref(mean);
        t_ok(ch_var_copies(x, &copies));
        assert_int_equal(ch_value_count(copies), 1);
        assert_string_equal(ch_device_name(ch_tensor_device(ch_value_at(copies, 0))),
                            "/job:localhost/replica:0/task:0/device:CPU:0");
        ch_value_unref(copies);
        ch_var_unref(x);
        ch_var_unref(y);
        ch_var_unref(z);
        ch_var_unref(none);
        ch_strategy_unref(st);
    }
    (void)state;
}

static void variable_of_one_replica_is_plain_and_on_its_device(void **state) /* 3.1.14, 6.4.5 */
{
    static const char *const where[] = {"GPU:1", "GPU:0", "GPU:0", "CPU:0"};
    ch_strategy             *one = NULL, *each[4];

    t_ok(ch_strategy_one_device("GPU:1", &one));
    each[0] = one;
    each[1] = t_central(1);
    each[2] = t_mirrored(1);
    each[3] = NULL; /* Default */
    for (int i = 0; i < 4; i++) {
        ch_var    *v = var(each[i], 1, CH_SYNC_ON_READ, CH_AGGREGATE_SUM);
        ch_value  *copies = NULL;
        ch_tensor *two = number(CH_F32, 2);

        write_literal(v, ch_var_assign, 5);
        assert_true(value_of(v) == 5);
        replicas_write(v, ch_var_assign_add, 1, 0);
        assert_true(value_of(v) == 6);
        t_ok(ch_var_add(v, two)); /* rejected for a sum of several replicas */
        assert_true(value_of(v) == 8);
        ch_tensor_unref(two);
        t_ok(ch_var_copies(v, &copies));
        assert_int_equal(ch_value_kind_of(copies), CH_PLAIN);
        assert_string_equal(ch_device_name(ch_tensor_device(ch_value_at(copies, 0))) +
                                strlen("/job:localhost/replica:0/task:0/device:"),
                            where[i]);
        ch_value_unref(copies);
        ch_var_unref(v);
        ch_strategy_unref(each[i]);
    }
    (void)state;
}

/* ---- threads ---- */

enum { MAKERS = 4, MADE = 400 };

typedef struct maker {
    pthread_t          thread;
    pthread_barrier_t *begin;
    ch_strategy       *strategy;
    ch_var            *var[MADE];
    int                rc; /* 0: success */
} maker;

static void *make_variables(void *arg)
{
    maker *m = arg;

    pthread_barrier_wait(m->begin);
    for (int i = 0; i < MADE; i++)
        m->rc |= (int)ch_var_new(
            m->strategy, &(ch_var_spec){.name = "w", .shape = ch_shape_of(1)}, &m->var[i]);
    return NULL;
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

/* All threads request the same name, so that the search for a free name takes most of the
 * time. */
static void variables_have_names_of_their_own_when_threads_make_them_at_once(void **state)
{
    static maker       m[MAKERS];
    static const char *name[MAKERS * MADE];
    pthread_barrier_t  begin;
    ch_strategy       *st = NULL;
    size_t             n = 0;

    t_ok(ch_strategy_one_device("CPU:0", &st));
    assert_int_equal(pthread_barrier_init(&begin, NULL, MAKERS), 0);
    for (int i = 0; i < MAKERS; i++) {
        m[i].begin = &begin;
        m[i].strategy = st;
        assert_int_equal(pthread_create(&m[i].thread, NULL, make_variables, &m[i]), 0);
    }
    for (int i = 0; i < MAKERS; i++) {
        assert_int_equal(pthread_join(m[i].thread, NULL), 0);
        assert_int_equal(m[i].rc, 0);
        for (int k = 0; k < MADE; k++)
            name[n++] = ch_var_name(m[i].var[k]);
    }
    qsort(name, n, sizeof(name[0]), by_text);
    for (size_t i = 1; i < n; i++)
        assert_string_not_equal(name[i - 1], name[i]);
    for (int i = 0; i < MAKERS * MADE; i++)
        ch_var_unref(m[i / MADE].var[i % MADE]);
    pthread_barrier_destroy(&begin);
    ch_strategy_unref(st);
    (void)state;
}

typedef struct setter {
    ch_var     *leader;
    atomic_bool stop;
    int         rc; /* 0: success */
} setter;

static void *set_leader(void *arg)
{
    setter    *s = arg;
    ch_tensor *one = number(CH_F32, 1);

    while (!atomic_load(&s->stop))
        s->rc |= (int)ch_var_set(s->leader, one);
    ch_tensor_unref(one);
    return NULL;
}

static void var_set_updates_followers_that_another_thread_makes_and_frees(void **state)
{
    ch_strategy *st = NULL;
    setter       s = {0};
    pthread_t    thread;

    t_ok(ch_strategy_one_device("CPU:0", &st));
    s.leader = var(st, 0, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
    assert_int_equal(pthread_create(&thread, NULL, set_leader, &s), 0);
    for (int i = 0; i < 2000; i++) {
        ch_var *f[2] = {var(st, 0, CH_SYNC_AUTO, CH_AGGREGATE_NONE),
                        var(st, 0, CH_SYNC_AUTO, CH_AGGREGATE_NONE)};

        ch__var_follow(f[0], s.leader);
        ch__var_follow(f[1], s.leader);
        ch_var_unref(f[i % 2]);
        ch_var_unref(f[1 - i % 2]);
    }
    atomic_store(&s.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(s.rc, 0);
    ch_var_unref(s.leader);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(var_new_rejects_invalid_synchronisation_and_aggregation),
        cmocka_unit_test(variables_have_names_of_their_own_when_threads_make_them_at_once),
        cmocka_unit_test(var_set_updates_followers_that_another_thread_makes_and_frees),
        cmocka_unit_test(variables_are_trainable_unless_synchronised_on_read),
        cmocka_unit_test(mirrored_variable_has_a_copy_on_each_device),
        cmocka_unit_test(assign_without_aggregation_changes_the_copy_of_the_replica),
        cmocka_unit_test(assign_with_sum_adds_the_values_of_all_replicas),
        cmocka_unit_test(assign_with_mean_averages_the_values_of_all_replicas),
        cmocka_unit_test(assign_with_first_takes_the_value_of_the_first_replica),
        cmocka_unit_test(var_set_and_add_change_all_copies),
        cmocka_unit_test(var_get_reads_the_copy_on_the_current_device),
        cmocka_unit_test(sync_on_read_variable_is_aggregated_when_it_is_read),
        cmocka_unit_test(sync_on_read_sum_reads_exactly_what_was_set),
        cmocka_unit_test(sync_on_read_first_reads_the_first_copy),
        cmocka_unit_test(var_add_and_sub_reject_a_sync_on_read_sum),
        cmocka_unit_test(replica_reads_its_own_copy_of_a_variable),
        cmocka_unit_test(scatter_applies_rows_of_all_replicas_to_copies_and_shared_variables),
        cmocka_unit_test(scatter_with_first_aggregation_accepts_a_short_batch),
        cmocka_unit_test(scatter_in_an_update_changes_all_copies),
        cmocka_unit_test(central_storage_variable_is_shared_and_aggregates_writes),
        cmocka_unit_test(variable_of_one_replica_is_plain_and_on_its_device),
    };

    return cmocka_run_group_tests_name("vars", tests, t_four_gpus, NULL);
}
