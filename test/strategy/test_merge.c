/* test/strategy/test_merge.c -- merge calls, updates, and the calls that are allowed in each
 * context.
 *
 * The numbers in comments are rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../job/help.h"
#include "base/config.h"

static ch_var *var(ch_strategy *st, float value, ch_sync sync, ch_aggregation aggregation)
{
    ch_tensor *initial = t_f32(ch_shape_scalar(), &value);
    ch_var    *v = NULL;

    t_ok(ch_var_new(
        st, &(ch_var_spec){.initial = initial, .sync = sync, .aggregation = aggregation}, &v));
    ch_tensor_unref(initial);
    return v;
}

static float copy_of(ch_var *v, int i)
{
    ch_value *copies = NULL;
    float     x;

    t_ok(ch_var_copies(v, &copies));
    x = *(const float *)ch_tensor_data(ch_value_at(copies, i));
    ch_value_unref(copies);
    return x;
}

static ch_status run(ch_strategy *st, ch_step_fn step, void *arg, ch_tuple **out)
{
    ch_function *f = t_function(step, arg);
    ch_status    rc = ch_strategy_run(st, f, NULL, out);

    ch_function_unref(f);
    return rc;
}

static ch_node *own_number(ch_step *s)
{
    return ch_add(ch_cast(ch_step_replica_id(s), CH_F32), ch_number(s, 1));
}

/* ---- contexts ---- */

typedef struct seen {
    ch_context   replica, merge, again, update;
    ch_strategy *in_replica, *in_merge;
    bool         set_in_replica, set_in_merge;
    int          n_merges;
} seen;

static void see_update(ch_step *s, ch_var *v, int n, ch_node *const *in, ch_node **out,
                       void *arg)
{
    (void)s;
    (void)v;
    (void)n;
    (void)in;
    (void)out;
    ((seen *)arg)->update = ch_context_now();
}

static void see_replica(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s;
    (void)n;
    (void)in;
    (void)out;
    ((seen *)arg)->again = ch_context_now();
}

static void see_merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    seen *x = arg;

    (void)n;
    (void)in;
    (void)out;
    x->merge = ch_context_now();
    x->in_merge = ch_strategy_current();
    x->set_in_merge = ch_strategy_is_set();
    x->n_merges++;
    ch_replica_call(s, see_replica, x, 0, NULL, 0, NULL);
}

typedef struct looking {
    seen    seen;
    ch_var *v;
} looking;

static void look(ch_step *s, void *arg)
{
    looking *l = arg;

    l->seen.replica = ch_context_now();
    l->seen.in_replica = ch_strategy_current();
    l->seen.set_in_replica = ch_strategy_is_set();
    ch_merge_call(s, see_merge, &l->seen, 0, NULL, 0, NULL);
    ch_update(s, l->v, see_update, &l->seen, 0, NULL, 0, NULL);
    ch_step_out(s, "one", own_number(s));
}

static void context_changes_in_scopes_steps_merge_calls_and_updates(
    void **state) /* 1.1.2, 1.1.3, 1.1.4, 1.1.5, 1.1.6, 1.4.1, 1.4.10 */
{
    ch_strategy *st = t_mirrored(2), *none = ch_strategy_current();
    looking      l = {.v = var(st, 1, CH_SYNC_AUTO, CH_AGGREGATE_NONE)};

    assert_int_equal(ch_context_now(), CH_CONTEXT_DEFAULT);
    assert_false(ch_strategy_is_set());
    assert_string_equal(ch_strategy_name(none), "Default");
    for (int in_scope = 0; in_scope < 2; in_scope++) {
        if (in_scope)
            t_ok(ch_strategy_enter(st));
        assert_int_equal(ch_context_now(), in_scope ? CH_CONTEXT_CROSS : CH_CONTEXT_DEFAULT);
        assert_int_equal(ch_strategy_is_set(), in_scope);
        assert_ptr_equal(ch_strategy_current(), in_scope ? st : none);
        l.seen.set_in_replica = l.seen.set_in_merge = false;
        t_ok(run(st, look, &l, NULL));
        assert_int_equal(l.seen.replica, CH_CONTEXT_REPLICA);
        assert_int_equal(l.seen.merge, CH_CONTEXT_CROSS);
        assert_int_equal(l.seen.again, CH_CONTEXT_REPLICA);
        assert_int_equal(l.seen.update, CH_CONTEXT_UPDATE);
        assert_ptr_equal(l.seen.in_replica, st);
        assert_ptr_equal(l.seen.in_merge, st);
        assert_true(l.seen.set_in_replica && l.seen.set_in_merge);
        if (in_scope)
            ch_strategy_leave();
    }
    assert_int_equal(l.seen.n_merges, 2); /* once in each recording, not for each replica */
    assert_int_equal(ch_context_now(), CH_CONTEXT_DEFAULT);
    ch_var_unref(l.v);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- merge calls ---- */

static void add_up(ch_step *s, int n, ch_node *const *in, ch_node **out, void *v)
{
    ch_node *sum = ch_merge_reduce(CH_SUM, in[0]);

    assert_int_equal(n, 1);
    if (v != NULL)
        ch_var_assign(s, v, sum);
    out[0] = ch_mul(sum, ch_number(s, 10)); /* the reduced value is a single value */
}

static void merge_sum(ch_step *s, void *v)
{
    ch_node *x = ch_identity(ch_mul(own_number(s), ch_number(s, 0)));
    ch_node *one = ch_add(x, ch_number(s, 1)), *out = NULL;

    ch_merge_call(s, add_up, v, 1, &one, 1, &out);
    ch_step_out(s, "out", out);
}

/* 1.4.6, 4.2.13 */
static void merge_call_reduces_and_assigns_values_of_replicas(void **state)
{
    ch_strategy *one = NULL, *st[3];

    t_ok(ch_strategy_one_device("GPU:0", &one));
    st[0] = t_mirrored(2);
    st[1] = t_central(2);
    st[2] = one;
    for (int i = 0; i < 3; i++) {
        ch_var   *v = var(st[i], 7, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
        ch_tuple *out = NULL;
        float     want = i < 2 ? 2 : 1;

        t_ok(run(st[i], merge_sum, v, &out));
        for (int r = 0; r < ch_strategy_replicas(st[i]); r++)
            assert_true(t_floats(out, 0, r)[0] == 10 * want);
        assert_true(copy_of(v, 0) == want);
        if (i == 0)
            assert_true(copy_of(v, 1) == want);
        ch_tuple_unref(out);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

static void merge_in_default(ch_step *s, void *arg)
{
    ch_node *x = ch_cast(ch_number(s, 4), CH_F32), *out = NULL;

    (void)arg;
    ch_merge_call(s, add_up, NULL, 1, &x, 1, &out);
    ch_step_out(s, "out", out);
}

static void merge_call_under_default_is_a_plain_call(void **state) /* 1.4.12 */
{
    ch_tuple *out = NULL;

    t_ok(run(NULL, merge_in_default, NULL, &out));
    assert_true(t_floats(out, 0, 0)[0] == 40);
    ch_tuple_unref(out);
    (void)state;
}

static void add_ten(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)n;
    (void)arg;
    out[0] = ch_add(in[0], ch_number(s, 10));
    out[1] = ch_merge_reduce(CH_SUM, in[1]);
}

/* Merges a plain input and a value that each replica computes. */
static void merge_input(ch_step *s, void *arg)
{
    ch_node *in[2] = {ch_step_in(s, 0), own_number(s)}, *out[2] = {NULL};

    (void)arg;
    ch_merge_call(s, add_ten, NULL, 2, in, 2, out);
    ch_step_out(s, "plus_ten", out[0]);
    ch_step_out(s, "sum", out[1]);
}

static void merge_call_computes_with_a_plain_input_under_every_strategy(void **state)
{
    ch_strategy *st[] = {t_mirrored(2),
                         t_mirrored(1),
                         t_central(2),
                         t_central(1),
                         t_cluster(&(ch_local_cluster_options){.devices = 2}, NULL, NULL),
                         NULL,  /* OneDevice */
                         NULL}; /* Default */
    ch_function *f = t_function(merge_input, NULL);

    t_ok(ch_strategy_one_device("GPU:0", &st[5]));
    for (int i = 0; i < 7; i++) {
        int        n = ch_strategy_replicas(st[i]);
        ch_tensor *five = t_f32(ch_shape_scalar(), &(float){5});
        ch_tuple  *in = t_tuple(1, &five), *out = NULL;

        t_ok(ch_strategy_run(st[i], f, in, &out));
        for (int r = 0; r < n; r++) {
            assert_true(t_floats(out, 0, r)[0] == 15);
            assert_true(t_floats(out, 1, r)[0] == (n == 2 ? 3 : 1));
        }
        ch_tuple_unref(in);
        ch_tuple_unref(out);
        ch_strategy_unref(st[i]);
    }
    ch_function_unref(f);
    (void)state;
}

static void mean_of_id(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s;
    (void)n;
    (void)arg;
    out[0] = ch_merge_reduce(CH_MEAN, in[0]);
    out[1] = ch_merge_reduce(CH_MEAN, in[1]);
}

static void merge_mean(ch_step *s, void *arg)
{
    ch_node *in[2] = {ch_step_replica_id(s), ch_cast(ch_number(s, 3), CH_I32)},
            *out[2] = {NULL};

    (void)arg;
    ch_merge_call(s, mean_of_id, NULL, 2, in, 2, out);
    ch_step_out(s, "id", out[0]);
    ch_step_out(s, "three", out[1]);
}

static void merge_reduce_gives_the_mean_of_integers_as_a_float(void **state) /* 8.14 */
{
    ch_function *f = t_function(merge_mean, NULL);

    for (int n = 1; n < 3; n++) {
        ch_strategy *st = t_mirrored(n);
        ch_tuple    *out = NULL;

        t_ok(ch_strategy_run(st, f, NULL, &out));
        for (int i = 0; i < 2; i++) {
            const ch_tensor *t = ch_value_at(ch_tuple_at(out, i), 0);

            assert_int_equal(ch_tensor_dtype(t), CH_F64);
            assert_true(*(const double *)ch_tensor_data(t) == (i == 1 ? 3 : n == 2 ? 0.5 : 0));
        }
        ch_tuple_unref(out);
        ch_strategy_unref(st);
    }
    ch_function_unref(f);
    (void)state;
}

/* ---- calls that are rejected ---- */

static void use_opaque(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s;
    (void)n;
    (void)out;
    (void)arg;
    (void)ch_add(in[0], in[0]);
}

static void reduce_as_replica(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s;
    (void)n;
    (void)out;
    (void)arg;
    (void)ch_all_reduce(CH_SUM, in[0]);
}

static void sum_of_one_value(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)n;
    (void)in;
    (void)out;
    (void)arg;
    (void)ch_merge_reduce(CH_SUM, ch_add(ch_number(s, 1), ch_number(s, 2)));
}

static void ask_which_replica(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)n;
    (void)in;
    (void)out;
    (void)arg;
    (void)ch_step_replica_id(s);
}

static void merge_again(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)out;
    (void)arg;
    ch_merge_call(s, use_opaque, NULL, n, in, 0, NULL);
}

static void forget_result(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s;
    (void)n;
    (void)in;
    (void)out;
    (void)arg;
}

static void wrong_merge(ch_step *s, void *fn)
{
    ch_node *x = own_number(s), *out = NULL;

    ch_merge_call(s, *(ch_merge_fn *)fn, NULL, 1, &x, 1, &out);
}

static void merge_outside(ch_step *s, void *arg)
{
    (void)arg;
    (void)ch_merge_reduce(CH_SUM, own_number(s));
}

static void
merge_call_rejects_computing_with_per_replica_values(void **state) /* 1.3.14, 1.4.7, 2.1.2 */
{
    static const struct {
        ch_merge_fn fn;
        ch_status   code;
        const char *word;
    } row[] = {
        {use_opaque, CH_INVALID_ARGUMENT, "not inside a replica context"},
        {reduce_as_replica, CH_FAILED_PRECONDITION, "ch_merge_reduce"},
        {sum_of_one_value, CH_INVALID_ARGUMENT, "same for all replicas"},
        {ask_which_replica, CH_FAILED_PRECONDITION, "differs between replicas"},
        {merge_again, CH_FAILED_PRECONDITION, "must be called in replica context"},
        {forget_result, CH_INVALID_ARGUMENT, "did not set result 0"},
    };
    ch_strategy *st = t_mirrored(2);

    for (int i = 0; i < 6; i++) {
        ch_merge_fn fn = row[i].fn;

        t_refused(run(st, wrong_merge, &fn, NULL), row[i].code, row[i].word, "");
    }
    t_refused(run(st, merge_outside, NULL, NULL), CH_FAILED_PRECONDITION, "ch_all_reduce", "");
    ch_strategy_unref(st);
    (void)state;
}

/* ---- sync-on-read variables in a merge call ---- */

static void set_and_read(ch_step *s, int n, ch_node *const *in, ch_node **out, void *v)
{
    (void)n;
    (void)in;
    out[0] = ch_var_read(s, v);
    ch_var_assign(s, v, ch_number(s, 6));
}

static void merge_own(ch_step *s, void *v)
{
    ch_node *out = NULL;

    ch_var_assign_add(s, v, own_number(s));
    ch_merge_call(s, set_and_read, v, 0, NULL, 1, &out);
    ch_step_out(s, "read", out);
}

static void
merge_call_reads_the_aggregate_of_a_sync_on_read_variable(void **state) /* 3.4.1, 3.4.5 */
{
    static const struct {
        ch_aggregation aggregation;
        float          read, set;
    } row[] = {
        {CH_AGGREGATE_SUM, 3, 3}, {CH_AGGREGATE_MEAN, 1.5F, 6}, {CH_AGGREGATE_FIRST, 1, 6}};
    ch_strategy *st = t_mirrored(2);

    for (int i = 0; i < 3; i++) {
        ch_var   *v = var(st, 0, CH_SYNC_ON_READ, row[i].aggregation);
        ch_tuple *out = NULL;

        t_ok(run(st, merge_own, v, &out));
        assert_true(t_floats(out, 0, 0)[0] == row[i].read);
        assert_true(t_floats(out, 0, 1)[0] == row[i].read);
        assert_true(copy_of(v, 0) == row[i].set && copy_of(v, 1) == row[i].set);
        ch_tuple_unref(out);
        ch_var_unref(v);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* ---- updates ---- */

typedef struct changing {
    ch_var *v;
    ch_node *(*assign)(ch_step *s, ch_var *v, ch_node *value);
} changing;

static void change_copy(ch_step *s, void *arg)
{
    changing *c = arg;

    ch_step_out(s, "now", c->assign(s, c->v, ch_step_in(s, 0)));
}

static ch_tuple *two(float first, float second)
{
    ch_tensor *t[] = {t_f32(ch_shape_scalar(), &first), t_f32(ch_shape_scalar(), &second)};
    ch_value  *v = NULL;
    ch_tuple  *out = NULL;

    t_ok(ch_value_new(CH_PER_REPLICA, 2, t, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &out));
    ch_value_unref(v);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return out;
}

static void change(ch_strategy *st, changing c, float first, float second, ch_tuple **out)
{
    ch_function *f = t_function(change_copy, &c);
    ch_tuple    *in = two(first, second);

    t_ok(ch_strategy_update(st, c.v, f, in, out));
    ch_tuple_unref(in);
    ch_function_unref(f);
}

static void strategy_update_changes_each_copy_with_its_component(
    void **state) /* 3.2.1, 3.4.7, 3.4.8, 6.5.6, 6.5.7, 8.4 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *sum = var(st, 0, CH_SYNC_ON_READ, CH_AGGREGATE_SUM);
    ch_var      *v = var(st, 5, CH_SYNC_AUTO, CH_AGGREGATE_SUM);
    ch_tensor   *t = NULL;
    ch_tuple    *out = NULL;

    change(st, (changing){sum, ch_var_assign}, 5, 5, NULL);
    assert_true(copy_of(sum, 0) == 5 && copy_of(sum, 1) == 5);
    t_ok(ch_var_get(sum, &t));
    assert_true(*(const float *)ch_tensor_data(t) == 10);
    ch_tensor_unref(t);
    change(st, (changing){sum, ch_var_assign}, 1, 2, NULL);
    assert_true(copy_of(sum, 0) == 1 && copy_of(sum, 1) == 2);
    change(st, (changing){sum, ch_var_assign_add}, 1, 2, NULL);
    assert_true(copy_of(sum, 0) == 2 && copy_of(sum, 1) == 4);
    change(st, (changing){sum, ch_var_assign_sub}, 1, 2, NULL);
    assert_true(copy_of(sum, 0) == 1 && copy_of(sum, 1) == 2);
    change(st, (changing){v, ch_var_assign}, 1, 1, &out);
    assert_true(copy_of(v, 0) == 1 && copy_of(v, 1) == 1);
    assert_int_equal(ch_value_kind_of(ch_tuple_at(out, 0)), CH_MIRRORED);
    assert_true(t_floats(out, 0, 0)[0] == 1 && t_floats(out, 0, 1)[0] == 1);
    for (int i = 0; i < 2; i++) /* each on the device of its copy */
        assert_ptr_equal(ch_tensor_device(ch_value_at(ch_tuple_at(out, 0), i)),
                         ch_device_at(i + 1));
    ch_tuple_unref(out);
    ch_var_unref(sum);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void strategy_update_changes_a_shared_variable_once(void **state) /* 3.5.5 */
{
    ch_strategy *st = t_central(2);
    ch_var      *v = var(st, 1, CH_SYNC_AUTO, CH_AGGREGATE_SUM);
    ch_tuple    *out = NULL;

    change(st, (changing){v, ch_var_assign_add}, 3, 4, &out);
    assert_true(copy_of(v, 0) == 4); /* with the first component */
    assert_int_equal(ch_value_count(ch_tuple_at(out, 0)), 1);
    assert_ptr_equal(ch_tensor_device(ch_value_at(ch_tuple_at(out, 0), 0)), ch_device_at(0));
    assert_true(t_floats(out, 0, 0)[0] == 4);
    ch_tuple_unref(out);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void assign_own(ch_step *s, ch_var *v, int n, ch_node *const *in, ch_node **out,
                       void *arg)
{
    changing *c = arg;

    (void)n;
    out[0] = c->assign(s, v, in[0]);
}

static void update_in_replica(ch_step *s, void *arg)
{
    changing *c = arg;
    ch_node  *x = ch_add(ch_mul(own_number(s), ch_number(s, 0)), ch_number(s, 3)), *now = NULL;

    ch_update(s, c->v, assign_own, c, 1, &x, 1, &now);
    ch_step_out(s, "now", now);
}

static void update_in_replica_context_changes_each_copy_once(void **state) /* 1.3.6, 6.5.8 */
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = var(st, 5, CH_SYNC_AUTO, CH_AGGREGATE_SUM);
    static const struct {
        ch_node *(*assign)(ch_step *s, ch_var *v, ch_node *value);
        float want;
    } row[] = {{ch_var_assign_add, 8}, {ch_var_assign_sub, 5}, {ch_var_assign, 3}};

    for (int i = 0; i < 3; i++) { /* with 3, which is not summed over replicas */
        ch_tuple *out = NULL;

        t_ok(run(st, update_in_replica, &(changing){v, row[i].assign}, &out));
        for (int r = 0; r < 2; r++) {
            assert_true(copy_of(v, r) == row[i].want);
            assert_true(t_floats(out, 0, r)[0] == row[i].want);
        }
        ch_tuple_unref(out);
    }
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void update_with_own(ch_step *s, void *arg)
{
    changing *c = arg;
    ch_node  *x = own_number(s), *now = NULL;

    ch_update(s, c->v, assign_own, c, 1, &x, 1, &now);
    ch_step_out(s, "now", now);
}

static void merge_assign(ch_step *s, int n, ch_node *const *in, ch_node **out, void *v)
{
    (void)n;
    (void)out;
    ch_var_assign(s, v, in[0]);
}

static void merge_with_own(ch_step *s, void *arg)
{
    changing *c = arg;
    ch_node  *x = own_number(s);

    ch_merge_call(s, merge_assign, c->v, 1, &x, 0, NULL);
}

static void count_warnings(const ch_log_record *r, void *arg)
{
    *(int *)arg += strcmp(r->code, "copies-differ") == 0;
}

/* Runs an update with different values twice, and then an update that keeps the difference. */
static void assign_different(ch_strategy *st, ch_step_fn step, ch_var *v)
{
    changing c = {v, ch_var_assign};

    if (step != NULL) {
        t_ok(run(st, step, &c, NULL));
        t_ok(run(st, step, &c, NULL));
    } else {
        change(st, c, 1, 2, NULL);
        change(st, c, 1, 2, NULL);
    }
    t_ok(run(st, update_in_replica, &(changing){v, ch_var_assign_add}, NULL));
}

/* 6.5.6: the log warns once, and the check of copies skips such a variable. */
static void strategy_update_warns_once_when_copies_differ(void **state)
{
    static const ch_step_fn step[] = {update_with_own, merge_with_own, NULL};
    ch_strategy            *st[] = {t_mirrored(2), t_central(2)};
    int                     n_warnings = 0;

    t_ok(ch__config_set("check_copies", "true"));
    ch_log_set_sink(count_warnings, &n_warnings, CH_LOG_WARNING);
    for (int i = 0; i < 3; i++) {
        ch_var *v = var(st[0], 0, CH_SYNC_AUTO, CH_AGGREGATE_SUM);
        ch_var *shared = var(st[1], 0, CH_SYNC_AUTO, CH_AGGREGATE_SUM);

        assign_different(st[0], step[i], v);
        assert_true(copy_of(v, 0) == 4 && copy_of(v, 1) == 5);
        assert_int_equal(n_warnings, i + 1);
        assign_different(st[1], step[i], shared);
        assert_true(copy_of(shared, 0) == 4); /* from the value of the first replica */
        assert_int_equal(n_warnings, i + 1);
        ch_var_unref(v);
        ch_var_unref(shared);
    }
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    t_ok(ch__config_set("check_copies", "false"));
    ch_strategy_unref(st[0]);
    ch_strategy_unref(st[1]);
    (void)state;
}

/* A value that is the same for all copies keeps them equal, and there is no warning. */
static void strategy_update_with_one_value_for_all_copies_does_not_warn(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = var(st, 0, CH_SYNC_AUTO, CH_AGGREGATE_SUM);
    changing     c = {v, ch_var_assign};
    ch_function *f = t_function(change_copy, &c);
    ch_tuple    *both = two(3, 3), *mirrored = NULL;
    ch_value    *m = NULL;
    int          n_warnings = 0;

    t_ok(ch_value_new(CH_MIRRORED, 2,
                      (ch_tensor *[]){ch_value_at(ch_tuple_at(both, 0), 0),
                                      ch_value_at(ch_tuple_at(both, 0), 1)},
                      &m));
    t_ok(ch_tuple_new(1, &m, NULL, &mirrored));
    ch_log_set_sink(count_warnings, &n_warnings, CH_LOG_WARNING);
    t_ok(ch_strategy_update(st, v, f, mirrored, NULL));
    assert_int_equal(n_warnings, 0);
    t_ok(ch_strategy_update(st, v, f, both, NULL)); /* not known to be equal */
    assert_int_equal(n_warnings, 1);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_true(copy_of(v, 0) == 3 && copy_of(v, 1) == 3);
    ch_value_unref(m);
    ch_tuple_unref(mirrored);
    ch_tuple_unref(both);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_changes_in_scopes_steps_merge_calls_and_updates),
        cmocka_unit_test(merge_call_reduces_and_assigns_values_of_replicas),
        cmocka_unit_test(merge_call_under_default_is_a_plain_call),
        cmocka_unit_test(merge_call_computes_with_a_plain_input_under_every_strategy),
        cmocka_unit_test(merge_reduce_gives_the_mean_of_integers_as_a_float),
        cmocka_unit_test(merge_call_rejects_computing_with_per_replica_values),
        cmocka_unit_test(merge_call_reads_the_aggregate_of_a_sync_on_read_variable),
        cmocka_unit_test(strategy_update_changes_each_copy_with_its_component),
        cmocka_unit_test(strategy_update_changes_a_shared_variable_once),
        cmocka_unit_test(update_in_replica_context_changes_each_copy_once),
        cmocka_unit_test(strategy_update_warns_once_when_copies_differ),
        cmocka_unit_test(strategy_update_with_one_value_for_all_copies_does_not_warn),
    };

    return cmocka_run_group_tests_name("merge", tests, t_four_gpus, NULL);
}
