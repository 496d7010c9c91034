/* test/job/test_sharded.c -- sharded variables: values, assignments, gradients, and the
 * guarantees of updates.
 *
 * A sharded variable must behave as a whole variable does. Its shards can also be used as
 * variables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

/* ---- the whole and its shards ---- */

static void double_step(ch_step *s, void *w)
{
    ch_step_out(s, "twice", ch_mul(ch_number(s, 2), ch_var_read(s, w)));
}

/* SV-3, SV-5, B20: FixedShards(2) of w [100, 10], and 2.0 * w. */
static void sharded_variable_lists_its_parts_and_is_read_as_a_whole(void **state)
{
    ch_strategy *st = t_in_shards(2);
    ch_var      *w = t_table(st, "w", ch_shape_of(100, 10));
    ch_function *f = t_function(double_step, w);
    ch_tuple    *out = NULL;
    ch_tensor   *want = t_counted(ch_shape_of(100, 10));
    float       *x = ch_tensor_data_mut(want);

    (void)state;
    assert_int_equal(ch_var_shards(w), 2);
    assert_true(ch_shape_equal(ch_var_shape(w), ch_shape_of(100, 10)));
    for (int i = 0; i < 2; i++) {
        ch_var *part = ch_var_shard(w, i);
        char    name[16], device[64];

        snprintf(name, sizeof(name), "w/part_%d", i);
        snprintf(device, sizeof(device), "/job:ps/replica:0/task:%d/device:CPU:0", i);
        assert_string_equal(ch_var_name(part), name);
        assert_string_equal(ch_var_device(part), device);
        assert_int_equal(ch_var_dtype(part), CH_F32);
        assert_true(ch_shape_equal(ch_var_shape(part), ch_shape_of(50, 10)));
        assert_int_equal(ch_var_shards(part), 1);
        assert_ptr_equal(ch_var_strategy(part), st);
        t_var_is(part, x + (ptrdiff_t)i * 500);
    }
    t_var_is(w, x);
    for (int i = 0; i < 1000; i++)
        x[i] *= 2;
    t_ok(ch_strategy_run(st, f, NULL, &out));
    t_same(ch_tensor_ref(ch_value_at(ch_tuple_at(out, 0), 0)), ch_shape_of(100, 10), x);
    ch_tuple_unref(out);
    ch_tensor_unref(want);
    ch_function_unref(f);
    ch_var_unref(w);
    ch_strategy_unref(st);
}

/* SV-4, B20: a model lists the shards, each an ordinary variable, if the caller asks for the
 * stored variables. */
static void a_model_lists_its_shards(void **state)
{
    ch_strategy   *st = t_in_shards(2);
    ch_model      *m = NULL;
    ch_var *const *v = NULL;

    (void)state;
    t_ok(ch_model_new(
        st, ch_layer_dense(4, NULL),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 6)}}}, &m));
    assert_int_equal(ch_model_vars(m, &v), 2);
    assert_int_equal(ch_var_shards(v[0]), 2);
    assert_int_equal(ch_model_shards(m, &v), 4);
    assert_non_null(strstr(ch_var_name(v[0]), "kernel/part_0"));
    assert_non_null(strstr(ch_var_name(v[1]), "kernel/part_1"));
    assert_true(ch_shape_equal(ch_var_shape(v[1]), ch_shape_of(3, 4)));
    assert_non_null(strstr(ch_var_name(v[2]), "bias/part_0"));
    ch_model_unref(m);
    ch_strategy_unref(st);
}

/* SV-7, SV-5: shards of 2, 1 and 1 rows; another dtype or shape is rejected. */
static void var_set_and_add_give_each_shard_its_rows(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_var      *v = t_table(st, "w", ch_shape_of(4, 2));
    ch_tensor   *t = t_f32(ch_shape_of(4, 2), (float[]){4, 4, 5, 5, 6, 6, 7, 7});
    ch_tensor   *other = t_counted(ch_shape_of(2)),
              *ids = t_ids(ch_shape_of(4, 2), (int64_t[8]){0});

    (void)state;
    t_ok(ch_var_set(v, t));
    *(float *)ch_tensor_data_mut(t) = 99; /* the variable has a copy */
    t_var_is(ch_var_shard(v, 0), (float[]){4, 4, 5, 5});
    t_var_is(ch_var_shard(v, 1), (float[]){6, 6});
    t_var_is(ch_var_shard(v, 2), (float[]){7, 7});
    *(float *)ch_tensor_data_mut(t) = 4;
    t_ok(ch_var_add(v, t));
    t_var_is(v, (float[]){8, 8, 10, 10, 12, 12, 14, 14});
    t_ok(ch_var_sub(v, t));
    t_ok(ch_var_sub(v, t));
    t_var_is(v, (float[]){0, 0, 0, 0, 0, 0, 0, 0});
    t_refused(ch_var_set(v, other), CH_INVALID_ARGUMENT, "w", "f32(4, 2)");
    t_refused(ch_var_set(v, ids), CH_INVALID_ARGUMENT, "w", "i64");
    ch_tensor_unref(t);
    ch_tensor_unref(other);
    ch_tensor_unref(ids);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* SV-3: a value that is set in a shard is visible in the whole variable, and vice versa. */
static void a_shard_is_the_same_memory_as_its_rows_of_the_whole(void **state)
{
    ch_strategy *st = t_in_shards(2);
    ch_var      *v = t_table(st, "w", ch_shape_of(4));
    ch_tensor   *t = t_f32(ch_shape_of(2), (float[]){8, 9});

    (void)state;
    t_ok(ch_var_set(ch_var_shard(v, 1), t));
    t_var_is(v, (float[]){0, 1, 8, 9});
    t_ok(ch_var_add(ch_var_shard(v, 0), t));
    t_var_is(v, (float[]){8, 10, 8, 9});
    ch_tensor_unref(t);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* SV-19: a shard stays valid after the whole variable is freed, if the caller has a
 * reference. */
static void a_shard_may_outlive_the_whole(void **state)
{
    ch_strategy *st = t_in_shards(2);
    ch_var      *v = t_table(st, "w", ch_shape_of(4)), *part = ch_var_ref(ch_var_shard(v, 1)),
           *again;

    (void)state;
    ch_var_unref(v);
    t_var_is(part, (float[]){2, 3});
    assert_ptr_equal(ch_var_whole(part), part);
    again = t_table(st, "w", ch_shape_of(4));
    assert_string_equal(ch_var_name(again), "w");
    t_var_is(again, (float[]){0, 1, 2, 3});
    t_var_is(part, (float[]){2, 3});
    ch_var_unref(part);
    ch_var_unref(again);
    ch_strategy_unref(st);
}

/* ---- gradients ---- */

typedef struct line {
    ch_var *w;
} line;

static void descend_step(ch_step *s, void *arg)
{
    ch_var  *w = ((line *)arg)->w;
    ch_node *now = ch_var_read(s, w);
    ch_node *loss = ch_sum_all(
        ch_square(ch_sub(ch_matmul(ch_step_in(s, 0), false, now, false), ch_number(s, 1))));

    ch_var_assign_sub(s, w, ch_mul(ch_number(s, 0.01), ch_gradient(loss, now)));
    ch_step_out(s, "loss", loss);
}

static void descend(ch_strategy *st, line *l, int n)
{
    ch_function *f = t_function(descend_step, l);
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(3, 5), 4)});

    for (int i = 0; i < n; i++)
        t_ok(ch_strategy_run(st, f, in, NULL));
    ch_tuple_unref(in);
    ch_function_unref(f);
}

/* SV-20: the gradient is computed for the whole variable. */
static void a_variable_in_shards_is_differentiated_like_any_other(void **state)
{
    ch_strategy *st = t_in_shards(3);
    line         cut = {t_table(st, "w", ch_shape_of(5, 2))},
         whole = {t_table(NULL, "w", ch_shape_of(5, 2))};
    ch_tensor *want = NULL;

    (void)state;
    descend(st, &cut, 5);
    descend(NULL, &whole, 5);
    t_ok(ch_var_get(whole.w, &want));
    t_var_is(cut.w, ch_tensor_data(want));
    ch_tensor_unref(want);
    ch_var_unref(cut.w);
    ch_var_unref(whole.w);
    ch_strategy_unref(st);
}

typedef struct trained {
    ch_optimizer *optimizer;
    ch_var       *w, *list[3];
    int           n;
    bool          applies; /* the list has a gradient for each shard */
} trained;

static void train_step(ch_step *s, void *arg)
{
    const trained *t = arg;
    ch_node       *now = ch_var_read(s, t->w), *loss = ch_sum_all(ch_square(now)), *d[3];

    if (!t->applies) {
        ch_optimizer_minimize(t->optimizer, s, loss, t->n, t->list);
        return;
    }
    for (int i = 0; i < t->n; i++) /* the gradient of the sum of squares: twice the value */
        d[i] = ch_mul(ch_number(s, 2), ch_var_read(s, t->list[i]));
    ch_optimizer_apply(t->optimizer, s, t->n, t->list, d);
}

static ch_status train(ch_strategy *st, trained *t)
{
    ch_function *f = t_function(train_step, t);
    ch_status    rc = CH_OK;

    t_ok(ch_optimizer_adam(0.1, NULL, &(ch_optimizer_options){.clip_global_norm = 1},
                           &t->optimizer));
    for (int i = 0; i < 5 && rc == CH_OK; i++)
        rc = ch_strategy_run(st, f, NULL, NULL);
    ch_function_unref(f);
    return rc;
}

/* SV-20: an optimizer accepts the whole variable or all of its shards, with the same result. */
static void an_optimizer_takes_the_whole_or_its_shards(void **state)
{
    ch_tensor *want = NULL;

    (void)state;
    for (int way = 0; way < 4; way++) { /* unsharded, whole, shards, gradients of shards */
        ch_strategy *st = way > 0 ? t_in_shards(3) : NULL;
        trained t = {.w = t_table(st, "w", ch_shape_of(7, 2)), .n = 1, .applies = way == 3};

        t.list[0] = t.w;
        for (int i = 0; i < 3 && way > 1; i++)
            t.list[t.n = i] = ch_var_shard(t.w, 2 - i);
        t.n += way > 1;
        t_ok(train(st, &t));
        if (way == 0)
            t_ok(ch_var_get(t.w, &want));
        t_var_is(t.w, ch_tensor_data(want));
        ch_optimizer_unref(t.optimizer);
        ch_var_unref(t.w);
        ch_strategy_unref(st);
    }
    ch_tensor_unref(want);
}

/* SV-20 */
static void optimizer_rejects_some_of_the_shards_of_a_variable(void **state)
{
    ch_strategy *st = t_in_shards(3);
    trained      t = {.w = t_table(st, "w", ch_shape_of(7, 2)), .n = 2};

    (void)state;
    assert_ptr_equal(ch_var_whole(ch_var_shard(t.w, 1)), t.w);
    assert_ptr_equal(ch_var_whole(t.w), t.w);
    t.list[0] = ch_var_shard(t.w, 0);
    t.list[1] = ch_var_shard(t.w, 2);
    t_refused(train(st, &t), CH_INVALID_ARGUMENT, "w/part_1", "give all shards");
    ch_optimizer_unref(t.optimizer);
    t.list[0] = t.w;
    t_refused(train(st, &t), CH_INVALID_ARGUMENT, "w/part_2", "twice");
    ch_optimizer_unref(t.optimizer);
    ch_var_unref(t.w);
    ch_strategy_unref(st);
}

/* SV-18: a recorded function uses another variable of the same name and shape. */
static void recorded_step_accepts_a_new_variable_of_equal_name_and_shape(void **state)
{
    ch_strategy *st = t_in_shards(2);
    ch_var      *w = t_table(st, "w", ch_shape_of(4));
    ch_function *f = t_function(double_step, w);
    ch_tuple    *out = NULL;

    (void)state;
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    ch_var_unref(w);
    w = t_var(st, "w", t_f32(ch_shape_of(4), (float[]){5, 6, 7, 8}));
    t_ok(ch_strategy_run(st, f, NULL, &out));
    t_same(ch_tensor_ref(ch_value_at(ch_tuple_at(out, 0), 0)), ch_shape_of(4),
           (float[]){10, 12, 14, 16});
    assert_int_equal(ch_function_recordings(f), 1);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_var_unref(w);
    ch_strategy_unref(st);
}

/* ---- guarantees of updates ---- */

static void add_step(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, ch_step_in(s, 0));
}

static ch_function *adds_to(ch_var *v)
{
    ch_function *f = t_function(add_step, v);

    ch_function_static_rows(f);
    return f;
}

typedef struct assigning {
    ch_var *v;
    ch_node *(*assign)(ch_step *s, ch_var *v, ch_node *value);
} assigning;

static void assign_step(ch_step *s, void *arg)
{
    const assigning *a = arg;

    a->assign(s, a->v, ch_step_in(s, 0));
}

/* Runs a step that assigns ones. */
static ch_status try_assign(ch_var *v, const assigning *how, ch_dtype dtype, ch_shape shape)
{
    assigning    a = {v, how->assign};
    ch_function *f = t_function(assign_step, &a);
    ch_tensor   *ones = NULL;
    ch_tuple    *in;
    ch_status    rc;

    ch_function_static_rows(f);
    t_ok(ch_tensor_new(dtype, shape, &ones));
    for (int64_t i = 0; dtype == CH_F32 && i < ch_tensor_count(ones); i++)
        ((float *)ch_tensor_data_mut(ones))[i] = 1;
    in = t_tuple(1, &ones);
    rc = ch_strategy_run(ch_var_strategy(v), f, in, NULL);
    ch_tuple_unref(in);
    ch_function_unref(f);
    return rc;
}

/* UP-1: dtypes must be equal, and for assign also the sizes. assign_add and assign_sub
 * broadcast a value as ch_add does. */
static void assign_rejects_another_shape_or_dtype(void **state)
{
    static const assigning how[] = {{.assign = ch_var_assign},
                                    {.assign = ch_var_assign_add},
                                    {.assign = ch_var_assign_sub}};
    const ch_shape         fits[] = {ch_shape_of(1, 2), ch_shape_of(2), ch_shape_of(4, 1),
                                     ch_shape_scalar()};
    ch_strategy           *st = t_in_shards(2);
    ch_var                *v = t_table(st, "w", ch_shape_of(4, 2));

    (void)state;
    for (int k = 0; k < 3; k++) {
        t_refused(try_assign(v, &how[k], CH_F32, ch_shape_of(3, 2)), CH_INVALID_ARGUMENT,
                  "assign", "of w");
        t_refused(try_assign(v, &how[k], CH_F64, ch_shape_of(4, 2)), CH_INVALID_ARGUMENT,
                  "of w: the value is f64(4, 2), want f32", "ch_cast");
        t_refused(try_assign(v, &how[k], CH_I32, ch_shape_of(4, 2)), CH_INVALID_ARGUMENT,
                  "of w: the value is i32(4, 2), want f32", "ch_cast");
        t_var_is(v, (float[]){0, 1, 2, 3, 4, 5, 6, 7});
    }
    for (int i = 0; i < 4; i++) {
        t_refused(try_assign(v, &how[0], CH_F32, fits[i]), CH_INVALID_ARGUMENT, "assign of w",
                  "want f32(4, 2)");
        t_ok(try_assign(v, &how[1], CH_F32, fits[i]));
        t_var_is(v, (float[]){1, 2, 3, 4, 5, 6, 7, 8});
        t_ok(try_assign(v, &how[2], CH_F32, fits[i]));
        t_var_is(v, (float[]){0, 1, 2, 3, 4, 5, 6, 7});
    }
    ch_var_unref(v);
    ch_strategy_unref(st);
}

static void scatter_one_step(ch_step *s, void *v)
{
    ch_var_scatter_add(s, v, ch_step_in(s, 0), ch_step_in(s, 1));
}

/* UP-1, UP-2, UP-4, UP-5: 300 steps of three workers add k to all rows, and 1 to a single row.
 * No update is lost, and a later read sees all updates. */
static void updates_of_several_workers_are_all_applied(void **state)
{
    enum { STEPS = 300 };
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 3},
                  &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)}, NULL);
    ch_coordinator *co = NULL;
    ch_var         *dense = t_table(st, "dense", ch_shape_of(4)),
           *rows = t_table(st, "rows", ch_shape_of(4, 1));
    ch_function *f = adds_to(dense), *g = t_function(scatter_one_step, rows);
    ch_tuple    *k = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_of(4), (float[]){2, 2, 2, 2})});
    ch_tuple    *one = t_tuple(2, (ch_tensor *[]){t_ids(ch_shape_of(2), (int64_t[]){3, 3}),
                                                  t_f32(ch_shape_of(2, 1), (float[]){1, 1})});

    (void)state;
    t_ok(ch_coordinator_new(st, NULL, &co));
    for (int i = 0; i < STEPS; i++) {
        t_ok(ch_coordinator_schedule(co, f, &(ch_arguments){.in = k}, NULL));
        t_ok(ch_coordinator_schedule(co, g, &(ch_arguments){.in = one}, NULL));
    }
    t_ok(ch_coordinator_join(co));
    t_var_is(dense, (float[]){2 * STEPS, 1 + 2 * STEPS, 2 + 2 * STEPS, 3 + 2 * STEPS});
    t_var_is(rows, (float[]){0, 1, 2, 3 + 2 * STEPS});
    ch_tuple_unref(k);
    ch_tuple_unref(one);
    ch_function_unref(f);
    ch_function_unref(g);
    ch_var_unref(dense);
    ch_var_unref(rows);
    ch_coordinator_unref(co);
    ch_strategy_unref(st);
}

static void fill_step(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, ch_fill(s, CH_F32, ch_shape_of(4096), 1));
}

/* UP-3: all elements of a value that is read are from the same moment: they include the same
 * additions. */
static void var_get_is_atomic_while_steps_update_the_variable(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 1, .workers = 2}, NULL, NULL);
    ch_coordinator *co = NULL;
    ch_var         *v = NULL;
    ch_function    *f;

    (void)state;
    t_ok(ch_coordinator_new(st, NULL, &co));
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "v", .shape = ch_shape_of(4096)}, &v));
    f = t_function(fill_step, v);
    for (int i = 0; i < 200; i++)
        t_ok(ch_coordinator_schedule(co, f, NULL, NULL));
    for (int i = 0; i < 20; i++) {
        ch_tensor   *t = NULL;
        const float *x;

        t_ok(ch_var_get(v, &t));
        x = ch_tensor_data(t);
        for (int k = 1; k < 4096; k++)
            assert_true(x[k] == x[0]);
        ch_tensor_unref(t);
    }
    t_ok(ch_coordinator_join(co));
    ch_function_unref(f);
    ch_var_unref(v);
    ch_coordinator_unref(co);
    ch_strategy_unref(st);
}

typedef struct order {
    ch_var *v;
} order;

static void read_write_step(ch_step *s, void *arg)
{
    ch_var *v = ((order *)arg)->v;

    ch_step_out(s, "before", ch_var_read(s, v));
    ch_var_assign(s, v, ch_number(s, 5));
    ch_step_out(s, "after", ch_var_read(s, v));
    ch_var_assign_add(s, v, ch_number(s, 2));
    ch_step_out(s, "last", ch_var_read(s, v));
}

/* UP-4, CA-1: the reads and writes of a step keep their order; a variable that the step does
 * not write is read once. */
static void step_reads_its_own_writes(void **state)
{
    ch_strategy *st = t_cluster(NULL, NULL, NULL);
    order        o = {t_var_in(st, "v", 1)};
    ch_function *f = t_function(read_write_step, &o);
    ch_tuple    *out = NULL;

    (void)state;
    t_ok(ch_strategy_run(st, f, NULL, &out));
    assert_true(t_floats(out, 0, 0)[0] == 1);
    assert_true(t_floats(out, 1, 0)[0] == 5);
    assert_true(t_floats(out, 2, 0)[0] == 7);
    assert_true(t_value_of(o.v) == 7);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_var_unref(o.v);
    ch_strategy_unref(st);
}

/* ---- replicas in a worker ---- */

typedef struct summed {
    ch_var *v;
    bool    adds;
} summed;

static void assign_id_step(ch_step *s, void *arg)
{
    const summed *a = arg;
    ch_node      *x = ch_add(ch_cast(ch_step_replica_id(s), CH_F32), ch_number(s, 1));

    if (a->adds)
        ch_var_assign_add(s, a->v, x);
    else
        ch_var_assign(s, a->v, x);
}

static double assigned(ch_strategy *st, ch_aggregation how, bool adds)
{
    summed       a = {NULL, adds};
    ch_tensor   *one = t_f32(ch_shape_scalar(), (float[]){1});
    ch_function *f = t_function(assign_id_step, &a);
    double       x;

    t_ok(ch_var_new(st, &(ch_var_spec){.name = "v", .initial = one, .aggregation = how}, &a.v));
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    x = t_value_of(a.v);
    ch_tensor_unref(one);
    ch_function_unref(f);
    ch_var_unref(a.v);
    return x;
}

/* AV-1, AV-2: replicas of a worker assign 1, 2 and 3 to the same variable. */
static void variable_on_servers_aggregates_assignments_of_replicas(void **state)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2, .devices = 3}, NULL, NULL);
    ch_tensor *two = t_f32(ch_shape_scalar(), (float[]){2});
    ch_var    *v = NULL;

    (void)state;
    assert_true(assigned(st, CH_AGGREGATE_SUM, false) == 6);
    assert_true(assigned(st, CH_AGGREGATE_MEAN, false) == 2);
    assert_true(assigned(st, CH_AGGREGATE_FIRST, false) == 1);
    assert_true(assigned(st, CH_AGGREGATE_SUM, true) == 7);
    assert_true(assigned(st, CH_AGGREGATE_MEAN, true) == 3);
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "x", .aggregation = (ch_aggregation)9}, &v),
              CH_INVALID_ARGUMENT, "aggregation", "9");
    v = t_var_in(st, "outside", 1); /* outside of replica context: once */
    t_ok(ch_var_set(v, two));
    t_ok(ch_var_add(v, two));
    assert_true(t_value_of(v) == 4);
    ch_tensor_unref(two);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* ---- updates from outside a step ---- */

static void add_input_step(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, ch_step_in(s, 0));
    ch_step_out(s, "now", ch_var_read(s, v));
}

/* Returns a per-replica value for two replicas; the update of a single copy uses the first
 * component. */
static ch_tuple *per_replica(float a, float b)
{
    ch_tensor *t[2] = {t_f32(ch_shape_scalar(), &a), t_f32(ch_shape_scalar(), &b)};
    ch_value  *v = NULL;
    ch_tuple  *in = NULL;

    t_ok(ch_value_new(CH_PER_REPLICA, 2, t, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &in));
    ch_value_unref(v);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return in;
}

static void check_update(ch_strategy *st, ch_aggregation how, bool is_beside)
{
    ch_tensor     *one = t_f32(ch_shape_scalar(), (float[]){1});
    ch_var        *v = NULL;
    ch_function   *f;
    ch_tuple      *in = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){1})});
    ch_tuple      *each = per_replica(5, 7), *out = NULL;
    ch_destination where;

    t_ok(ch_var_new(st, &(ch_var_spec){.name = "v", .initial = one, .aggregation = how}, &v));
    f = t_function(add_input_step, v);
    where = (ch_destination){.var = v};
    t_ok(is_beside ? ch_strategy_update_non_slot(st, &where, f, in, NULL)
                   : ch_strategy_update(st, v, f, in, NULL));
    assert_true(t_value_of(v) == 2);
    t_ok(is_beside ? ch_strategy_update_non_slot(st, &where, f, each, &out)
                   : ch_strategy_update(st, v, f, each, &out));
    assert_true(t_value_of(v) == 7);
    assert_int_equal(ch_value_kind_of(ch_tuple_at(out, 0)), CH_PLAIN);
    assert_int_equal(ch_value_count(ch_tuple_at(out, 0)), 1);
    assert_true(*(const float *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0)) == 7);
    ch_tuple_unref(out);
    ch_tuple_unref(each);
    ch_tuple_unref(in);
    ch_tensor_unref(one);
    ch_function_unref(f);
    ch_var_unref(v);
}

static const ch_aggregation aggregations[] = {CH_AGGREGATE_NONE, CH_AGGREGATE_SUM,
                                              CH_AGGREGATE_MEAN, CH_AGGREGATE_FIRST};

static void
update_changes_a_variable_on_servers_once_when_a_worker_has_two_devices(void **state)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2, .devices = 2}, NULL, NULL);

    (void)state;
    for (int i = 0; i < 4; i++)
        check_update(st, aggregations[i], false);
    ch_strategy_unref(st);
}

static void update_non_slot_runs_once_beside_a_variable_on_servers(void **state)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2, .devices = 2}, NULL, NULL);

    (void)state;
    for (int i = 0; i < 4; i++)
        check_update(st, aggregations[i], true);
    ch_strategy_unref(st);
}

static void value_container_finds_a_variable_on_servers_by_its_copy(void **state)
{
    ch_strategy *st = t_in_shards(2), *other = t_in_shards(2);
    ch_var   *v = t_table(st, "w", ch_shape_of(5, 2)), *w = t_table(st, "x", ch_shape_of(5, 2));
    ch_value *copies = NULL, *again = NULL;
    ch_tensor *value = NULL;
    ch_var    *of;

    (void)state;
    t_ok(ch_var_copies(v, &copies));
    t_ok(ch_var_copies(w, &again));
    t_ok(ch_var_get(v, &value));
    of = ch_strategy_value_container(st, ch_value_at(copies, 0));
    assert_ptr_equal(of, v);
    ch_var_unref(of);
    of = ch_strategy_value_container(st, ch_value_at(again, 0));
    assert_ptr_equal(of, w);
    ch_var_unref(of);
    assert_null(ch_strategy_value_container(other, ch_value_at(copies, 0)));
    assert_null(ch_strategy_value_container(st, value)); /* a value, not a copy of a variable */
    ch_tensor_unref(value);
    ch_var_unref(v);
    ch_var_unref(w);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    ch_value_unref(copies);
    ch_value_unref(again);
}

/* AV-2: without an aggregation replicas must not assign different values. */
static void variable_on_servers_rejects_unequal_assignments_without_aggregation(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.devices = 2}, NULL, NULL);
    summed       a = {t_var_in(st, "v", 1), false};
    ch_function *f = t_function(assign_id_step, &a);

    (void)state;
    t_refused(ch_strategy_run(st, f, NULL, NULL), CH_INVALID_ARGUMENT, "v", "aggregation");
    assert_true(t_value_of(a.v) == 1);
    ch_function_unref(f);
    ch_var_unref(a.v);
    ch_strategy_unref(st);
}

/* AV-3: the variable is not copied into another strategy. */
static void var_clone_is_refused_in_the_scope_of_another_strategy(void **state)
{
    ch_strategy *st = t_in_shards(2), *other = NULL;
    ch_var      *v = t_table(st, "v", ch_shape_of(4)), *twin = NULL;

    (void)state;
    t_ok(ch_strategy_one_device("CPU:0", &other));
    t_ok(ch_strategy_enter(other));
    assert_int_equal(ch_var_clone(v, &twin), CH_FAILED_PRECONDITION);
    ch_strategy_leave();
    t_ok(ch_var_clone(v, &twin));
    assert_int_equal(ch_var_shards(twin), 2);
    t_var_is(twin, (float[]){0, 1, 2, 3});
    ch_var_unref(twin);
    ch_var_unref(v);
    ch_strategy_unref(other);
    ch_strategy_unref(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharded_variable_lists_its_parts_and_is_read_as_a_whole),
        cmocka_unit_test(a_model_lists_its_shards),
        cmocka_unit_test(var_set_and_add_give_each_shard_its_rows),
        cmocka_unit_test(a_shard_is_the_same_memory_as_its_rows_of_the_whole),
        cmocka_unit_test(a_shard_may_outlive_the_whole),
        cmocka_unit_test(a_variable_in_shards_is_differentiated_like_any_other),
        cmocka_unit_test(an_optimizer_takes_the_whole_or_its_shards),
        cmocka_unit_test(
            update_changes_a_variable_on_servers_once_when_a_worker_has_two_devices),
        cmocka_unit_test(update_non_slot_runs_once_beside_a_variable_on_servers),
        cmocka_unit_test(value_container_finds_a_variable_on_servers_by_its_copy),
        cmocka_unit_test(optimizer_rejects_some_of_the_shards_of_a_variable),
        cmocka_unit_test(recorded_step_accepts_a_new_variable_of_equal_name_and_shape),
        cmocka_unit_test(assign_rejects_another_shape_or_dtype),
        cmocka_unit_test(updates_of_several_workers_are_all_applied),
        cmocka_unit_test(var_get_is_atomic_while_steps_update_the_variable),
        cmocka_unit_test(step_reads_its_own_writes),
        cmocka_unit_test(variable_on_servers_aggregates_assignments_of_replicas),
        cmocka_unit_test(variable_on_servers_rejects_unequal_assignments_without_aggregation),
        cmocka_unit_test(var_clone_is_refused_in_the_scope_of_another_strategy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
