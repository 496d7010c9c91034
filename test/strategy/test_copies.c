/* test/strategy/test_copies.c -- copies of variables: how they are read, and how their rows are
 * changed.
 *
 * The numbers in comments are rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static ch_var *new_var(ch_strategy *st, int n, const float *x, ch_sync sync,
                       ch_aggregation aggregation)
{
    ch_tensor *initial = t_f32(n > 0 ? ch_shape_of(n) : ch_shape_scalar(), x);
    ch_var    *v = NULL;

    t_ok(ch_var_new(
        st,
        &(ch_var_spec){
            .name = "v", .initial = initial, .sync = sync, .aggregation = aggregation},
        &v));
    ch_tensor_unref(initial);
    return v;
}

static float value_of(ch_var *v)
{
    ch_tensor *t = NULL;
    float      x;

    t_ok(ch_var_get(v, &t));
    x = *(const float *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return x;
}

static ch_status run(ch_strategy *st, ch_step_fn step, void *arg, ch_tuple *in)
{
    ch_function *f = t_function(step, arg);
    ch_status    rc = ch_strategy_run(st, f, in, NULL);

    ch_function_unref(f);
    return rc;
}

/* ---- reading ---- */

static void add_1_and_2(ch_step *s, void *arg)
{
    ch_var **v = arg;
    ch_node *zero = ch_mul(ch_cast(ch_step_replica_id(s), CH_F32), ch_number(s, 0));

    for (int i = 0; i < 2; i++)
        ch_var_assign_add(s, v[i], ch_add(zero, ch_number(s, i + 1)));
}

static void sync_on_read_variable_read_in_no_scope_is_the_aggregate(void **state) /* 3.4.6 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v[2];

    for (int i = 0; i < 2; i++)
        v[i] = new_var(st, 0, NULL, CH_SYNC_ON_READ, CH_AGGREGATE_SUM);
    t_ok(run(st, add_1_and_2, v, NULL));
    assert_int_equal(ch_context_now(), CH_CONTEXT_DEFAULT);
    assert_true(value_of(v[0]) + value_of(v[1]) == 6);
    for (int i = 0; i < 2; i++)
        ch_var_unref(v[i]);
    ch_strategy_unref(st);
    (void)state;
}

static void set_own(ch_step *s, void *v)
{
    ch_var_assign(s, v, ch_add(ch_cast(ch_step_replica_id(s), CH_F32), ch_number(s, 3)));
}

static void var_get_reads_by_synchronisation_and_aggregation(void **state) /* 6.5.11 */
{
    static const struct {
        ch_sync        sync;
        ch_aggregation aggregation;
        float          on_host, on_second; /* if the copies are 3 and 4 */
    } row[] = {{CH_SYNC_ON_WRITE, CH_AGGREGATE_NONE, 3, 4},
               {CH_SYNC_ON_READ, CH_AGGREGATE_SUM, 7, 7},
               {CH_SYNC_ON_READ, CH_AGGREGATE_MEAN, 3.5F, 3.5F},
               {CH_SYNC_ON_READ, CH_AGGREGATE_FIRST, 3, 3}};
    ch_strategy *st = t_mirrored(2);

    for (int i = 0; i < 4; i++) {
        ch_var *v = new_var(st, 0, NULL, row[i].sync, row[i].aggregation);

        assert_int_equal(ch_var_sync(v), row[i].sync);
        assert_int_equal(ch_var_aggregation(v), row[i].aggregation);
        t_ok(run(st, set_own, v, NULL));
        assert_true(value_of(v) == row[i].on_host);
        t_ok(ch_device_enter(ch_device_at(2)));
        assert_true(value_of(v) == row[i].on_second);
        ch_device_leave();
        ch_var_unref(v);
    }
    ch_strategy_unref(st);
    (void)state;
}

static void read_twice(ch_step *s, void *v)
{
    ch_node *first = ch_var_read(s, v);

    assert_ptr_equal(ch_var_read(s, v), first);
    ch_var_assign(s, v, ch_add(first, ch_number(s, 1)));
    assert_ptr_not_equal(ch_var_read(s, v), first); /* the assigned value */
    ch_step_out(s, "was", first);
}

static void a_step_reads_a_variable_once(void **state) /* 3.5.6 */
{
    ch_strategy *st[] = {t_central(2), t_mirrored(2)};

    for (int i = 0; i < 2; i++) {
        ch_var *v = new_var(st[i], 0, NULL, CH_SYNC_AUTO, CH_AGGREGATE_MEAN);

        t_ok(run(st[i], read_twice, v, NULL));
        assert_true(value_of(v) == 1);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

static void
central_storage_rejects_mean_aggregation_of_integers(void **state) /* 3.5.4, 3.1.4 */
{
    ch_strategy *st = t_central(2);
    ch_var      *v = NULL;

    t_refused(
        ch_var_new(
            st, &(ch_var_spec){.name = "v", .dtype = CH_I32, .aggregation = CH_AGGREGATE_MEAN},
            &v),
        CH_INVALID_ARGUMENT, "CH_AGGREGATE_MEAN", "i32");
    assert_null(v);
    ch_strategy_unref(st);
    (void)state;
}

static void read_all(ch_step *s, int n, ch_node *const *in, ch_node **out, void *v)
{
    (void)n;
    (void)in;
    out[0] = ch_var_read(s, v);
}

static void read_own_and_all(ch_step *s, void *v)
{
    ch_node *all = NULL;

    ch_merge_call(s, read_all, v, 0, NULL, 1, &all);
    ch_step_out(s, "own", ch_add(ch_var_read(s, v), ch_number(s, 10)));
    ch_step_out(s, "all", ch_add(all, ch_number(s, 10)));
}

/* 3.4.11, 3.3.13: a merge call reads the value of all copies */
static void replica_reads_the_value_of_all_copies_through_a_merge_call(void **state)
{
    static const struct {
        ch_sync sync;
        float   own, all; /* if the value is 2; plus 10 */
    } row[] = {{CH_SYNC_ON_READ, 11, 12}, {CH_SYNC_ON_WRITE, 12, 12}};
    ch_strategy *st = t_mirrored(2);
    ch_tensor   *two = t_f32(ch_shape_scalar(), (float[]){2});

    for (int i = 0; i < 2; i++) {
        ch_var      *v = new_var(st, 0, NULL, row[i].sync, CH_AGGREGATE_SUM);
        ch_function *f = t_function(read_own_and_all, v);
        ch_tuple    *out = NULL;

        t_ok(ch_var_set(v, two)); /* with a sum on read: each copy is 1 */
        t_ok(ch_strategy_run(st, f, NULL, &out));
        for (int r = 0; r < 2; r++) {
            assert_true(t_floats(out, 0, r)[0] == row[i].own);
            assert_true(t_floats(out, 1, r)[0] == row[i].all);
        }
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_var_unref(v);
    }
    ch_tensor_unref(two);
    ch_strategy_unref(st);
    (void)state;
}

static void is_among(ch_strategy *st, ch_var *v, int n)
{
    ch_value *copies = NULL;

    t_ok(ch_var_copies(v, &copies));
    assert_int_equal(ch_value_count(copies), n);
    for (int i = 0; i < n; i++) {
        ch_var *of = ch_strategy_value_container(st, ch_value_at(copies, i));

        assert_ptr_equal(of, v);
        ch_var_unref(of);
    }
    ch_value_unref(copies);
}

static void value_container_finds_a_variable_by_its_copy(void **state) /* 2.5.1, 2.5.2, 6.7.5 */
{
    ch_strategy *st[] = {t_mirrored(2), t_central(2), t_mirrored(1), NULL, NULL};
    ch_tensor   *other = t_f32(ch_shape_scalar(), NULL);

    t_ok(ch_strategy_one_device("GPU:1", &st[3]));
    for (int i = 0; i < 5; i++) { /* the last is Default */
        ch_var *v = new_var(st[i], 0, NULL, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
        ch_var *w = new_var(st[i], 0, NULL, CH_SYNC_AUTO, CH_AGGREGATE_NONE);

        is_among(st[i], v, i == 0 ? 2 : 1);
        is_among(st[i], w, i == 0 ? 2 : 1);
        assert_null(ch_strategy_value_container(st[i], other));
        assert_null(ch_strategy_value_container(st[i], NULL));
        ch_var_unref(v);
        ch_var_unref(w);
        ch_strategy_unref(st[i]);
    }
    ch_tensor_unref(other);
    (void)state;
}

static void have_the_same_devices(ch_var *v, ch_var *w)
{
    ch_value *of_v = NULL, *of_w = NULL;

    t_ok(ch_var_copies(v, &of_v));
    t_ok(ch_var_copies(w, &of_w));
    for (int i = 0; i < ch_value_count(of_v); i++)
        assert_ptr_equal(ch_tensor_device(ch_value_at(of_v, i)),
                         ch_tensor_device(ch_value_at(of_w, i)));
    ch_value_unref(of_v);
    ch_value_unref(of_w);
}

static void var_clone_has_the_same_properties_and_its_own_value(void **state) /* 3.8.1 */
{
    ch_strategy *st[] = {t_mirrored(2), t_central(2)}, *other = t_mirrored(2);

    for (int i = 0; i < 2; i++) {
        ch_var    *v = new_var(st[i], 0, NULL, CH_SYNC_AUTO, CH_AGGREGATE_MEAN), *w = NULL;
        ch_tensor *five = t_f32(ch_shape_scalar(), (float[]){5});

        for (int in_scope = 0; in_scope < 2; in_scope++) {
            t_ok(ch_var_set(v, five));
            if (in_scope)
                t_ok(ch_strategy_enter(st[i]));
            t_ok(ch_var_clone(v, &w));
            if (in_scope)
                ch_strategy_leave();
            assert_ptr_equal(ch_var_strategy(w), st[i]);
            assert_int_equal(ch_var_aggregation(w), CH_AGGREGATE_MEAN);
            assert_int_equal(ch_var_sync(w), ch_var_sync(v));
            assert_true(value_of(w) == 5);
            is_among(st[i], w, i == 0 ? 2 : 1);
            have_the_same_devices(v, w);
            t_ok(ch_var_add(v, five));
            assert_true(value_of(v) == 10 && value_of(w) == 5);
            ch_var_unref(w);
        }
        t_ok(ch_strategy_enter(other));
        t_refused(ch_var_clone(v, &w), CH_FAILED_PRECONDITION, "mixing different", "");
        ch_strategy_leave();
        ch_tensor_unref(five);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
    ch_strategy_unref(other);
    (void)state;
}

/* ---- per-replica values in merge calls and updates ---- */

static void assign_as_it_is(ch_step *s, int n, ch_node *const *in, ch_node **out, void *v)
{
    (void)n;
    (void)out;
    ch_var_assign(s, v, in[0]);
}

static void merge_own(ch_step *s, void *v)
{
    ch_node *x = ch_step_in(s, 0);

    ch_merge_call(s, assign_as_it_is, v, 1, &x, 0, NULL);
}

/* Returns a tuple of a single value with these components for replicas 0 and 1. */
static ch_tuple *two(ch_value_kind kind, float first, float second)
{
    ch_tensor *t[] = {t_f32(ch_shape_scalar(), &first), t_f32(ch_shape_scalar(), &second)};
    ch_value  *v = NULL;
    ch_tuple  *out = NULL;

    t_ok(ch_value_new(kind, 2, t, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &out));
    ch_value_unref(v);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return out;
}

static void merge_call_assigns_each_copy_its_component(void **state) /* 3.3.8 */
{
    static const ch_value_kind kind[] = {CH_MIRRORED, CH_PER_REPLICA};
    ch_strategy               *st = t_mirrored(2);

    for (int i = 0; i < 2; i++) {
        ch_var   *v = new_var(st, 0, NULL, CH_SYNC_AUTO, CH_AGGREGATE_SUM);
        ch_tuple *in = two(kind[i], 5, i == 0 ? 5 : 6);

        t_ok(run(st, merge_own, v, in));
        assert_true(t_copy_of(v, 0, 0) == 5 && t_copy_of(v, 1, 0) == (i == 0 ? 5 : 6));
        ch_tuple_unref(in);
        ch_var_unref(v);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* ---- updates ---- */

static void add_twice_itself(ch_step *s, void *v)
{
    ch_node *now = ch_var_read(s, v);

    ch_step_out(s, "now", ch_var_assign_add(s, v, ch_add(now, now)));
}

static void an_update_reads_its_own_copy(void **state) /* 3.4.8, 6.5.6, 2.2.7 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = new_var(st, 0, NULL, CH_SYNC_ON_READ, CH_AGGREGATE_SUM);
    ch_function *f = t_function(add_twice_itself, v);
    ch_tuple    *out = NULL;

    t_ok(run(st, set_own, v, NULL)); /* 3 and 4 */
    t_ok(ch_strategy_update(st, v, f, NULL, &out));
    assert_true(t_copy_of(v, 0, 0) == 9 && t_copy_of(v, 1, 0) == 12);
    assert_int_equal(ch_value_kind_of(ch_tuple_at(out, 0)), CH_MIRRORED);
    assert_true(t_floats(out, 0, 0)[0] == 9 && t_floats(out, 0, 1)[0] == 12);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- rows ---- */

typedef ch_node *(*scatter)(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);

typedef struct scattering {
    ch_var *v;
    scatter change;
    int     id, per_id;     /* the first id: id + per_id * replica */
    float   x, per_x;       /* its value: x + per_x * replica */
    bool    is_two;         /* also the next id, with a value that is 1 larger */
    bool    in_merge, once; /* in a merge call; from constants */
    bool    one_x;          /* the value is the same constant on all replicas */
} scattering;

/* Returns `first`, and first + 1 if is_two, as a vector. */
static ch_node *vector(const scattering *c, ch_node *first)
{
    ch_step *s = ch_node_step(first);
    ch_node *both[] = {first, ch_add(first, ch_cast(ch_number(s, 1), ch_node_dtype(first)))};

    return ch_stack(c->is_two ? 2 : 1, both, 0);
}

static ch_node *ramp(ch_step *s, ch_dtype dtype, double base, double per_replica)
{
    ch_node *id = ch_cast(ch_step_replica_id(s), dtype);

    return ch_add(ch_mul(id, ch_cast(ch_number(s, per_replica), dtype)),
                  ch_cast(ch_number(s, base), dtype));
}

static void merge_scatter(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    scattering *c = arg;

    (void)n;
    (void)in;
    (void)out;
    c->change(s, c->v, vector(c, ch_cast(ch_number(s, c->id), CH_I64)),
              vector(c, ch_cast(ch_number(s, c->x), ch_var_dtype(c->v))));
}

static void scatter_it(ch_step *s, void *arg)
{
    scattering *c = arg;

    if (c->in_merge)
        ch_merge_call(s, merge_scatter, c, 0, NULL, 0, NULL);
    else if (c->once)
        merge_scatter(s, 0, NULL, NULL, c);
    else
        c->change(s, c->v, vector(c, ramp(s, CH_I64, c->id, c->per_id)),
                  vector(c, c->one_x
                                ? ch_cast(ch_number(s, c->x), ch_var_dtype(c->v))
                                : ramp(s, ch_var_dtype(c->v), (double)c->x, (double)c->per_x)));
}

static void scatters(scattering c)
{
    t_ok(run(ch_var_strategy(c.v), scatter_it, &c, NULL));
}

/* Checks that each copy has these values. Releases the variable. */
static void all_are(ch_var *v, const double *want)
{
    ch_value *copies = NULL;

    t_ok(ch_var_copies(v, &copies));
    for (int k = 0; k < ch_value_count(copies); k++)
        for (int64_t i = 0; i < ch_tensor_count(ch_value_at(copies, k)); i++) {
            double x = 0;

            t_ok(ch_tensor_get(ch_value_at(copies, k), &i, &x));
            if (x != want[i])
                fail_msg("element %d of copy %d is %g, want %g", (int)i, k, x, want[i]);
        }
    ch_value_unref(copies);
    ch_var_unref(v);
}

/* Replica r scatters (r, r + 1) to rows (r, r + 1). */
static void scatter_add_and_sub_combine_rows_of_all_replicas(void **state) /* 3.6.2, 3.6.3 */
{
    ch_strategy *st[] = {t_mirrored(2), t_central(2)};

    for (int i = 0; i < 2; i++) {
        ch_var *mean = new_var(st[i], 3, NULL, CH_SYNC_AUTO, CH_AGGREGATE_MEAN);
        ch_var *sum = new_var(st[i], 3, NULL, CH_SYNC_AUTO, CH_AGGREGATE_SUM);

        scatters((scattering){
            .v = mean, .change = ch_var_scatter_sub, .per_id = 1, .per_x = 1, .is_two = true});
        scatters((scattering){
            .v = sum, .change = ch_var_scatter_add, .per_id = 1, .per_x = 1, .is_two = true});
        all_are(mean, (double[]){0, -1, -1});
        all_are(sum, (double[]){0, 2, 2});
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* Replica r scatters r + 2 to row r. */
static void scatter_mul_and_div_combine_rows_of_all_replicas(void **state) /* 3.6.4 */
{
    ch_strategy *st = t_mirrored(2);
    ch_tensor   *t = NULL;
    ch_var      *whole = NULL;
    ch_var      *v = new_var(st, 3, (float[]){2, 1, 1}, CH_SYNC_AUTO, CH_AGGREGATE_MEAN);

    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(3), (int32_t[]){1, 6, 1}, &t));
    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "i", .initial = t, .aggregation = CH_AGGREGATE_SUM},
                    &whole));
    ch_tensor_unref(t);
    scatters((scattering){
        .v = whole, .change = ch_var_scatter_div, .per_id = 1, .x = 2, .per_x = 1});
    scatters(
        (scattering){.v = v, .change = ch_var_scatter_mul, .per_id = 1, .x = 2, .per_x = 1});
    all_are(whole, (double[]){0, 2, 1});
    all_are(v, (double[]){2, 1.5, 1});
    ch_strategy_unref(st);
    (void)state;
}

static void
scatter_with_first_aggregation_takes_rows_of_the_first_replica(void **state) /* 3.6.5 */
{
    static const struct {
        scatter change;
        float   was[3];
        int     id;
        float   x; /* larger on other replicas, which are ignored */
        double  want[3];
    } row[] = {{ch_var_scatter_min, {0, 2, 0}, 1, 1, {0, 1, 0}},
               {ch_var_scatter_max, {0, 0, 0}, 0, 1, {1, 0, 0}},
               {ch_var_scatter_update, {0, 0, 0}, 1, 3, {0, 3, 0}}};
    ch_strategy *st = t_mirrored(2);

    for (int i = 0; i < 3; i++) {
        ch_var *v = new_var(st, 3, row[i].was, CH_SYNC_AUTO, CH_AGGREGATE_FIRST);

        scatters((scattering){
            .v = v, .change = row[i].change, .id = row[i].id, .x = row[i].x, .per_x = 5});
        all_are(v, row[i].want);
    }
    ch_strategy_unref(st);
    (void)state;
}

static void
scatter_without_aggregation_changes_the_copy_of_the_replica(void **state) /* 3.6.6 */
{
    static const struct {
        scatter change;
        double  want;
    } row[] = {{ch_var_scatter_sub, 2},   {ch_var_scatter_add, 4}, {ch_var_scatter_max, 4},
               {ch_var_scatter_min, 2},   {ch_var_scatter_mul, 4}, {ch_var_scatter_div, 2},
               {ch_var_scatter_update, 2}};
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = new_var(st, 1, (float[]){4}, CH_SYNC_AUTO, CH_AGGREGATE_NONE);

    for (int i = 0; i < 7; i++) {
        scatters((scattering){.v = v, .change = row[i].change, .x = 2, .once = true});
        all_are(ch_var_ref(v), &row[i].want);
    }
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void scatter_in_a_merge_call_changes_all_copies(void **state) /* 3.6.7 */
{
    static const float ones[] = {1, 1, 1};
    ch_strategy       *st[] = {t_mirrored(2), t_central(2)};

    for (int i = 0; i < 2; i++) {
        ch_var *sum = new_var(st[i], 3, ones, CH_SYNC_AUTO, CH_AGGREGATE_SUM);
        ch_var *none = new_var(st[i], 3, ones, CH_SYNC_AUTO, CH_AGGREGATE_NONE);

        scatters(
            (scattering){.v = sum, .change = ch_var_scatter_add, .x = 2, .in_merge = true});
        scatters(
            (scattering){.v = none, .change = ch_var_scatter_min, .x = 2, .in_merge = true});
        all_are(sum, (double[]){3, 1, 1});
        all_are(none, (double[]){1, 1, 1});
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

static void count_warnings(const ch_log_record *r, void *arg)
{
    *(int *)arg += strcmp(r->code, "copies-differ") == 0;
}

/* A shared value at different rows makes copies differ. The library warns, or rejects it if
 * replicas share a single copy. */
static void
scatter_of_one_value_at_unequal_rows_warns_or_is_refused(void **state) /* 3.6.6, 3.5.2 */
{
    ch_strategy *st[] = {t_mirrored(2), t_central(2)};
    int          n_warnings = 0;

    ch_log_set_sink(count_warnings, &n_warnings, CH_LOG_WARNING);
    for (int i = 0; i < 2; i++) {
        ch_var    *v = new_var(st[i], 3, NULL, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
        scattering c = {
            .v = v, .change = ch_var_scatter_add, .per_id = 1, .x = 2, .one_x = true};
        ch_status rc = run(st[i], scatter_it, &c, NULL);

        if (i == 0) {
            t_ok(rc);
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < 3; k++)
                    assert_true(t_copy_of(v, r, k) == (k == r ? 2 : 0));
        } else {
            t_refused(rc, CH_INVALID_ARGUMENT, "v", "needs an aggregation");
        }
        assert_int_equal(n_warnings, 1);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    (void)state;
}

static void scatter_min_max_and_update_are_refused_with_sum_or_mean(void **state) /* 3.6.1 */
{
    static const struct {
        scatter     change;
        const char *name;
    } row[] = {{ch_var_scatter_min, "scatter_min"},
               {ch_var_scatter_max, "scatter_max"},
               {ch_var_scatter_update, "scatter_update"}};
    static const ch_aggregation aggregation[] = {CH_AGGREGATE_SUM, CH_AGGREGATE_MEAN};
    ch_strategy                *st = t_mirrored(2);

    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            ch_var    *v = new_var(st, 3, NULL, CH_SYNC_AUTO, aggregation[k]);
            scattering c = {.v = v, .change = row[i].change, .per_id = 1};

            t_refused(run(st, scatter_it, &c, NULL), CH_UNIMPLEMENTED, row[i].name, "v");
            ch_var_unref(v);
        }
    ch_strategy_unref(st);
    (void)state;
}

static void scatter_is_refused_on_a_sync_on_read_variable(void **state) /* 3.4.9 */
{
    static const scatter each[] = {ch_var_scatter_add,   ch_var_scatter_sub, ch_var_scatter_mul,
                                   ch_var_scatter_div,   ch_var_scatter_min, ch_var_scatter_max,
                                   ch_var_scatter_update};
    ch_strategy         *st = t_mirrored(2);
    ch_var              *v = new_var(st, 3, NULL, CH_SYNC_ON_READ, CH_AGGREGATE_SUM);

    for (int i = 0; i < 14; i++) {
        scattering c = {.v = v, .change = each[i / 2], .x = 1, .in_merge = i % 2 == 1};

        t_refused(run(st, scatter_it, &c, NULL), CH_UNIMPLEMENTED, "CH_SYNC_ON_READ", "v");
    }
    all_are(v, (double[]){0, 0, 0});
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sync_on_read_variable_read_in_no_scope_is_the_aggregate),
        cmocka_unit_test(var_get_reads_by_synchronisation_and_aggregation),
        cmocka_unit_test(a_step_reads_a_variable_once),
        cmocka_unit_test(central_storage_rejects_mean_aggregation_of_integers),
        cmocka_unit_test(replica_reads_the_value_of_all_copies_through_a_merge_call),
        cmocka_unit_test(value_container_finds_a_variable_by_its_copy),
        cmocka_unit_test(var_clone_has_the_same_properties_and_its_own_value),
        cmocka_unit_test(merge_call_assigns_each_copy_its_component),
        cmocka_unit_test(an_update_reads_its_own_copy),
        cmocka_unit_test(scatter_add_and_sub_combine_rows_of_all_replicas),
        cmocka_unit_test(scatter_mul_and_div_combine_rows_of_all_replicas),
        cmocka_unit_test(scatter_with_first_aggregation_takes_rows_of_the_first_replica),
        cmocka_unit_test(scatter_without_aggregation_changes_the_copy_of_the_replica),
        cmocka_unit_test(scatter_in_a_merge_call_changes_all_copies),
        cmocka_unit_test(scatter_of_one_value_at_unequal_rows_warns_or_is_refused),
        cmocka_unit_test(scatter_min_max_and_update_are_refused_with_sum_or_mean),
        cmocka_unit_test(scatter_is_refused_on_a_sync_on_read_variable),
    };

    return cmocka_run_group_tests_name("copies", tests, t_four_gpus, NULL);
}
