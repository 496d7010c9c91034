/* test/strategy/test_contexts.c -- runs of steps: arguments of replicas, results and errors,
 * under every strategy.
 *
 * The numbers in comments are rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "help.h"

/* Returns a per-replica or mirrored value of these numbers, each on its replica's GPU. */
static ch_value *value_of(ch_value_kind kind, int n, const float *x)
{
    ch_tensor *t[4] = {NULL};
    ch_value  *v = NULL;

    for (int i = 0; i < n; i++) {
        t_ok(ch_tensor_new_on(ch_device_at(i + 1), CH_F32, ch_shape_scalar(), &t[i]));
        *(float *)ch_tensor_data_mut(t[i]) = x[i];
    }
    t_ok(ch_value_new(kind, n, t, &v));
    for (int i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
    return v;
}

static ch_tuple *tuple_of(ch_value *v)
{
    ch_tuple *t = NULL;

    t_ok(ch_tuple_new(1, &v, NULL, &t));
    ch_value_unref(v);
    return t;
}

static ch_status run(ch_strategy *st, ch_step_fn step, void *arg, ch_tuple *in, ch_tuple **out)
{
    ch_function *f = t_function(step, arg);
    ch_status    rc = ch_strategy_run(st, f, in, out);

    ch_function_unref(f);
    return rc;
}

static float number_in(const ch_tuple *out, const char *name, int replica)
{
    return *(const float *)ch_tensor_data(ch_value_at(ch_tuple_get(out, name), replica));
}

/* Default, OneDevice, and Mirrored and CentralStorage with two and three replicas. */
enum { STRATEGIES = 6 };

static void make_all(ch_strategy **st)
{
    st[0] = NULL;
    t_ok(ch_strategy_one_device("GPU:2", &st[1]));
    st[2] = t_mirrored(2);
    st[3] = t_mirrored(3);
    st[4] = t_central(2);
    st[5] = t_central(3);
}

static void drop_all(ch_strategy **st)
{
    for (int i = 0; i < STRATEGIES; i++)
        ch_strategy_unref(st[i]);
}

/* ---- the context of a call ---- */

typedef struct caller {
    pthread_t thread;
    int       n_calls;
} caller;

static void note_caller(ch_step *s, void *arg)
{
    caller *c = arg;

    c->thread = pthread_self();
    c->n_calls++;
    ch_step_out(s, "one", ch_number(s, 1));
}

static void a_step_is_called_once_by_the_callers_thread(void **state) /* 1.4.3 */
{
    ch_strategy *st[STRATEGIES];

    make_all(st);
    for (int i = 0; i < STRATEGIES; i++) {
        caller c = {0};

        t_ok(run(st[i], note_caller, &c, NULL, NULL));
        assert_true(pthread_equal(c.thread, pthread_self()));
        assert_int_equal(c.n_calls, 1);
    }
    drop_all(st);
    (void)state;
}

static void tell_id(ch_step *s, void *arg)
{
    ch_node *id = ch_step_replica_id(s);

    (void)arg;
    assert_int_equal(ch_node_dtype(id), CH_I32);
    assert_int_equal(ch_node_shape(id).rank, 0);
    ch_step_out(s, "id", id);
    ch_step_out(s, "count", ch_cast(ch_step_replica_count(s), CH_I32));
}

static void replicas_are_numbered(void **state) /* 1.4.13 */
{
    ch_strategy *st[STRATEGIES];

    make_all(st);
    for (int i = 0; i < STRATEGIES; i++) {
        ch_tuple *out = NULL;
        int       n = ch_strategy_replicas(st[i]);

        t_ok(run(st[i], tell_id, NULL, NULL, &out));
        for (int r = 0; r < n; r++) {
            assert_int_equal(
                *(const int32_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), r)), r);
            assert_int_equal(
                *(const int32_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 1), r)), n);
        }
        ch_tuple_unref(out);
    }
    drop_all(st);
    (void)state;
}

/* ---- arguments and results ---- */

static void add_three(ch_step *s, void *arg)
{
    ch_step_out(s, "own", ch_step_in(s, 0));
    ch_step_out(s, "mirrored", ch_step_in(s, 1));
    ch_step_out(s, "shared", ch_step_in(s, 2));
    ch_step_out(s, "variable", ch_var_read(s, arg));
}

/* 1.4.4, 1.4.5, 2.1.3: a replica reads its component of a per-replica or mirrored value; other
 * values are shared. */
static void replica_reads_its_component_or_the_shared_value(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = t_var(st, "v", t_f32(ch_shape_scalar(), (float[]){40}));
    ch_tensor   *plain = t_f32(ch_shape_scalar(), (float[]){30});
    ch_value    *in[3] = {value_of(CH_PER_REPLICA, 2, (float[]){1, 2}),
                          value_of(CH_MIRRORED, 2, (float[]){7, 8})};
    ch_tuple    *t = NULL, *out = NULL;

    t_ok(ch_value_new(CH_PLAIN, 1, &plain, &in[2]));
    t_ok(ch_tuple_new(3, in, NULL, &t));
    t_ok(run(st, add_three, v, t, &out));
    for (int r = 0; r < 2; r++) {
        assert_true(number_in(out, "own", r) == (float)(r + 1));
        assert_true(number_in(out, "mirrored", r) == (float)(r + 7));
        assert_true(number_in(out, "shared", r) == 30);
        assert_true(number_in(out, "variable", r) == 40);
    }
    ch_tuple_unref(out);
    ch_tuple_unref(t);
    for (int i = 0; i < 3; i++)
        ch_value_unref(in[i]);
    ch_tensor_unref(plain);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void mirrored_value_outside_steps_is_that_of_the_current_device(void **state) /* 2.1.3 */
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v = value_of(CH_MIRRORED, 2, (float[]){7, 8});

    for (int i = 0; i < 3; i++) { /* without a component on the host the first is used */
        ch_tensor *t = NULL;

        t_ok(ch_device_enter(ch_device_at(i)));
        t_ok(ch_strategy_reduce(st, CH_MEAN, v, CH_NO_AXIS, &t));
        assert_true(*(const float *)ch_tensor_data(t) == (i == 2 ? 8 : 7));
        ch_tensor_unref(t);
        ch_device_leave();
    }
    ch_value_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void leaves(ch_step *s, void *arg)
{
    ch_node *id = ch_cast(ch_step_replica_id(s), CH_F32);

    (void)arg;
    ch_step_out(s, "b/first", ch_add(id, ch_number(s, 1)));
    ch_step_out(s, NULL, ch_add(id, ch_number(s, 3)));
    ch_step_out(s, "a", ch_cast(ch_number(s, 5), CH_F32)); /* the same for all */
}

static void results_keep_their_order_and_names(void **state) /* 2.2.1, 2.2.3 */
{
    ch_strategy *st = t_mirrored(2);
    ch_tuple    *out = NULL;

    t_ok(run(st, leaves, NULL, NULL, &out));
    assert_int_equal(ch_tuple_count(out), 3);
    assert_string_equal(ch_tuple_name(out, 0), "b/first");
    assert_null(ch_tuple_name(out, 1));
    assert_string_equal(ch_tuple_name(out, 2), "a");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ch_value_kind_of(ch_tuple_at(out, i)), CH_PER_REPLICA);
        for (int r = 0; r < 2; r++)
            assert_true(t_floats(out, i, r)[0] == (float)(1 + 2 * i + (i < 2 ? r : 0)));
    }
    ch_tuple_unref(out);
    ch_strategy_unref(st);
    (void)state;
}

static void take_one(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_add(ch_step_in(s, 0), ch_number(s, 1)));
}

static void values_of_one_kind_are_recorded_once(void **state) /* 2.1.6 */
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(take_one, NULL);

    for (int i = 0; i < 3; i++) {
        float     x[] = {(float)i, (float)(2 * i)};
        ch_tuple *in = tuple_of(value_of(CH_PER_REPLICA, 2, x)), *out = NULL;

        t_ok(ch_strategy_run(st, f, in, &out));
        for (int r = 0; r < 2; r++)
            assert_true(t_floats(out, 0, r)[0] == x[r] + 1);
        ch_tuple_unref(in);
        ch_tuple_unref(out);
    }
    assert_int_equal(ch_function_recordings(f), 1);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- runs after each other ---- */

static void first_link(ch_step *s, void *first)
{
    ch_node *id = ch_cast(ch_step_replica_id(s), CH_F32);

    ch_step_out(s, NULL, ch_add(id, ch_number(s, *(float *)first)));
}

static void second_link(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    ch_step_out(s, "a", ch_mul(x, ch_number(s, 2)));
    ch_step_out(s, "b", ch_mul(x, x));
}

static void third_link(ch_step *s, void *arg)
{
    ch_node *a = ch_step_in_named(s, "a"), *b = ch_step_in_named(s, "b");

    (void)arg;
    ch_step_out(s, NULL, ch_add(ch_add(a, ch_mul(b, ch_number(s, 2))), ch_number(s, 2)));
}

/* Runs three steps, each on the results of the step before. The first gives first + r on
 * replica r. */
static void chain(ch_strategy *st, float first, const float *want)
{
    ch_tuple *one = NULL, *two = NULL, *three = NULL;

    t_ok(run(st, first_link, &first, NULL, &one));
    t_ok(run(st, second_link, NULL, one, &two));
    t_ok(run(st, third_link, NULL, two, &three));
    for (int r = 0; r < ch_strategy_replicas(st); r++) {
        float x = first + (float)r;

        assert_true(t_floats(one, 0, r)[0] == x);
        assert_true(number_in(two, "a", r) == 2 * x);
        assert_true(number_in(two, "b", r) == x * x);
        assert_true(t_floats(three, 0, r)[0] == want[r]);
    }
    ch_tuple_unref(one);
    ch_tuple_unref(two);
    ch_tuple_unref(three);
}

static void results_are_arguments_of_the_next_run(void **state) /* 1.4.14, 1.4.15 */
{
    ch_strategy *two[] = {t_mirrored(2), t_central(2)}, *one = NULL;

    t_ok(ch_strategy_one_device("GPU:0", &one));
    for (int i = 0; i < 2; i++) {
        chain(two[i], 1, (float[]){6, 14});
        ch_strategy_unref(two[i]);
    }
    chain(one, 4, (float[]){42});
    chain(NULL, 4, (float[]){42});
    ch_strategy_unref(one);
    (void)state;
}

/* ---- errors ---- */

typedef enum where { IN_STEP, IN_MERGE, IN_REPLICA_CALL, IN_INNER_MERGE, PLACES } where;

typedef struct failing {
    where place, here;
    bool  when_it_runs; /* false: fails while it is recorded */
} failing;

static ch_status run_out(void *arg, int n_in, ch_tensor *const *in, int n_out,
                         ch_tensor *const *out)
{
    (void)arg;
    (void)n_in;
    (void)in;
    (void)n_out;
    (void)out;
    return ch_fail(CH_OUT_OF_RANGE, "no more of it");
}

static void deeper(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    failing     *f = arg;
    ch_host_spec call = {.name = "source", .fn = run_out};

    (void)n;
    (void)in;
    (void)out;
    if (f->here == f->place && f->when_it_runs)
        ch_host_call(s, &call, 0, NULL, NULL);
    else if (f->here == f->place)
        ch_step_fail(s, "no way at %d", (int)f->here);
    else if (++f->here == IN_REPLICA_CALL)
        ch_replica_call(s, deeper, f, 0, NULL, 0, NULL);
    else
        ch_merge_call(s, deeper, f, 0, NULL, 0, NULL);
}

static void fail_somewhere(ch_step *s, void *arg)
{
    ch_step_out(s, "one", ch_number(s, 1));
    deeper(s, 0, NULL, NULL, arg);
}

/* 1.4.9: the error keeps its code, and the next run is not affected. */
static void step_error_at_any_depth_reaches_the_caller(void **state)
{
    ch_strategy *st[STRATEGIES];

    make_all(st);
    for (int i = 0; i < STRATEGIES; i++) {
        for (where w = IN_STEP; w < PLACES; w++) {
            t_refused(run(st[i], fail_somewhere, &(failing){.place = w}, NULL, NULL),
                      CH_INVALID_ARGUMENT, "no way at", "step");
            if (w == IN_MERGE || w == IN_INNER_MERGE) /* merge calls have no host calls */
                continue;
            t_refused(run(st[i], fail_somewhere, &(failing){w, IN_STEP, true}, NULL, NULL),
                      CH_OUT_OF_RANGE, "no more of it", "source");
        }
        chain(st[i], 0, (float[]){2, 6, 14}); /* 2 + 2x + 2xx */
    }
    drop_all(st);
    (void)state;
}

/* ---- variables created in a step ---- */

typedef struct making {
    ch_var      *v;
    ch_strategy *in;
} making;

static void make_and_add(ch_step *s, void *arg)
{
    making     *m = arg;
    ch_var_spec spec = {
        .name = "made", .shape = ch_shape_of(2), .aggregation = CH_AGGREGATE_SUM};

    m->in = ch_step_strategy(s);
    if (m->v == NULL)
        t_ok(ch_var_new(NULL, &spec, &m->v));
    ch_var_assign_add(s, m->v, ch_cast(ch_add(ch_step_replica_id(s), ch_number(s, 1)), CH_F32));
}

static void a_variable_made_in_a_step_is_one_for_all_replicas(void **state) /* 1.4.18 */
{
    ch_strategy *st[STRATEGIES];

    make_all(st);
    for (int i = 0; i < STRATEGIES; i++) {
        making    m = {0};
        ch_value *copies = NULL;
        int       n = ch_strategy_replicas(st[i]);

        t_ok(run(st[i], make_and_add, &m, NULL, NULL));
        assert_string_equal(ch_var_name(m.v), "made");
        assert_ptr_equal(ch_var_strategy(m.v), st[i] != NULL ? st[i] : ch_strategy_current());
        assert_ptr_equal(m.in, ch_var_strategy(m.v));
        t_ok(ch_var_copies(m.v, &copies));
        assert_int_equal(ch_value_count(copies),
                         i == 2 || i == 3 ? n : 1); /* Mirrored: on each */
        for (int k = 0; k < ch_value_count(copies); k++)
            assert_true(t_copy_of(m.v, k, 1) == (float)(n * (n + 1) / 2));
        ch_value_unref(copies);
        ch_var_unref(m.v);
    }
    drop_all(st);
    (void)state;
}

/* ---- gathers in a merge call ---- */

static void gather_all(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)arg;
    assert_int_equal(n, 1);
    out[0] = ch_mul(ch_merge_gather(in[0], 0), ch_number(s, 10)); /* a single value now */
}

static void gather_own(ch_step *s, void *arg)
{
    ch_node *own = ch_expand_dims(ch_cast(ch_step_replica_id(s), CH_F32), 0), *all = NULL;

    ch_merge_call(s, gather_all, arg, 1, &own, 1, &all);
    ch_step_out(s, "all", all);
}

static void a_merge_call_may_gather(void **state) /* 1.4.6 */
{
    ch_strategy *st[STRATEGIES];

    make_all(st);
    for (int i = 0; i < STRATEGIES; i++) {
        ch_tuple *out = NULL;
        int       n = ch_strategy_replicas(st[i]);

        t_ok(run(st[i], gather_own, NULL, NULL, &out));
        for (int r = 0; r < n; r++) {
            assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 0), r)), n);
            for (int k = 0; k < n; k++)
                assert_true(t_floats(out, 0, r)[k] == (float)(10 * k));
        }
        ch_tuple_unref(out);
    }
    drop_all(st);
    (void)state;
}

/* ---- under Default ---- */

typedef struct alone {
    ch_function *f;
    ch_status    run;
    ch_context   in_step, in_merge;
    bool         is_set;
    ch_strategy *with;
} alone;

static void look_in_merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    alone *a = arg;

    (void)n;
    a->in_merge = ch_context_now();
    a->is_set = ch_strategy_is_set();
    a->with = ch_step_strategy(s);
    out[0] = in[0];
}

static void look_alone(ch_step *s, void *arg)
{
    alone   *a = arg;
    ch_node *x = ch_cast(ch_number(s, 4), CH_F32), *out = NULL;

    a->in_step = ch_context_now();
    a->run = ch_strategy_run(NULL, a->f, NULL, NULL);
    ch_merge_call(s, look_in_merge, a, 1, &x, 1, &out);
    ch_step_out(s, "four", out);
}

static void default_is_a_strategy_that_is_not_set(void **state) /* 1.1.8, 1.4.11, 1.4.12 */
{
    caller    unused = {0};
    alone     a = {.f = t_function(note_caller, &unused), .is_set = true};
    ch_tuple *out = NULL;

    t_ok(run(NULL, look_alone, &a, NULL, &out));
    assert_int_equal(a.in_step, CH_CONTEXT_REPLICA);
    assert_int_equal(a.in_merge, CH_CONTEXT_CROSS);
    assert_false(a.is_set);
    assert_ptr_equal(a.with, ch_strategy_current());
    assert_int_equal(a.run, CH_FAILED_PRECONDITION); /* a step cannot run inside itself */
    assert_true(number_in(out, "four", 0) == 4);
    ch_tuple_unref(out);
    ch_function_unref(a.f);
    (void)state;
}

/* ---- calls that are not allowed in steps ---- */

enum { CALLS = 9 };

typedef struct calls {
    ch_strategy *st, *other;
    ch_var      *v;
    ch_value    *x;
    ch_function *f;
    ch_iterator *it;
    ch_tensor   *array;
    ch_status    code[CALLS];
    const char  *word; /* in each message */
} calls;

static ch_dataset *sixteen_by_two(const ch_input_context *context, void *arg)
{
    (void)context;
    (void)arg;
    return ch_dataset_batch(ch_dataset_range(0, 16, 1), 2, NULL);
}

static void check_call(calls *c, int i, ch_status rc)
{
    c->code[i] = rc;
    if (rc != CH_OK && strstr(ch_error_message(), c->word) == NULL)
        fail_msg("call %d: \"%s\" has no \"%s\"", i, ch_error_message(), c->word);
}

static void call_each(calls *c)
{
    ch_destination to = {.device = "/cpu:0"}, beside = {.var = c->v};
    ch_value *out[2] = {NULL, NULL}, *const x = c->x;
    ch_dataset  *d;
    ch_iterator *it = NULL;
    ch_tensor   *sum = NULL;

    check_call(c, 0, ch_strategy_reduce_to(c->st, CH_SUM, x, &to, &out[0]));
    ch_value_unref(out[0]);
    check_call(
        c, 1,
        ch_strategy_batch_reduce_to(c->st, CH_SUM, 1, (const ch_value *[]){x}, &to, &out[1]));
    ch_value_unref(out[1]);
    out[0] = NULL;
    check_call(c, 2, ch_strategy_broadcast_to(c->st, ch_value_at(x, 0), &beside, &out[0]));
    ch_value_unref(out[0]);
    check_call(c, 3, ch_strategy_update_non_slot(c->st, &beside, c->f, NULL, NULL));
    check_call(c, 4, ch_strategy_run_steps(c->st, c->f, c->it, 1, NULL));
    d = ch_strategy_make_numpy_dataset(c->st, 1, &c->array, NULL);
    check_call(c, 5, d != NULL ? CH_OK : CH_FAILED_PRECONDITION);
    ch_dataset_unref(d);
    check_call(c, 6, ch_strategy_reduce(c->st, CH_SUM, x, CH_NO_AXIS, &sum));
    ch_tensor_unref(sum);
    check_call(c, 7, ch_strategy_update(c->st, c->v, c->f, NULL, NULL));
    check_call(
        c, 8,
        ch_strategy_make_input_fn_iterator(c->st, sixteen_by_two, NULL, CH_PER_WORKER, &it));
    ch_iterator_unref(it);
}

static void call_in_step(ch_step *s, void *arg)
{
    call_each(arg);
    ch_step_out(s, "one", ch_number(s, 1));
}

static void cross_replica_calls_are_refused_in_replica_context(
    void **state) /* 1.3.3, 1.3.5, 1.3.6, 1.3.12 */
{
    caller      unused = {0};
    ch_dataset *d;
    calls       c = {.st = t_mirrored(2), .other = t_mirrored(2), .word = ""};

    c.v = t_var(c.st, "v", t_f32(ch_shape_scalar(), (float[]){1}));
    c.x = value_of(CH_PER_REPLICA, 2, (float[]){1, 2});
    c.f = t_function(note_caller, &unused);
    c.array = t_f32(ch_shape_of(2), NULL);
    d = ch_dataset_batch(ch_dataset_range(0, 16, 1), 2, NULL);
    t_ok(ch_strategy_distribute_dataset(c.st, d, NULL, &c.it));
    for (int in_scope = 0; in_scope < 2; in_scope++) {
        if (in_scope)
            t_ok(ch_strategy_enter(c.st));
        call_each(&c);
        for (int i = 0; i < CALLS; i++)
            assert_int_equal(c.code[i], CH_OK);
        if (in_scope)
            ch_strategy_leave();
    }
    c.word = "outside steps";
    t_ok(run(c.st, call_in_step, &c, NULL, NULL));
    for (int i = 0; i < CALLS; i++)
        assert_int_equal(c.code[i], CH_FAILED_PRECONDITION);
    c.word = "mixing different strategies";
    t_ok(ch_strategy_enter(c.other));
    call_each(&c);
    for (int i = 0; i < CALLS; i++)
        assert_int_equal(c.code[i], CH_FAILED_PRECONDITION);
    ch_strategy_leave();
    ch_value_unref(c.x);
    ch_var_unref(c.v);
    ch_function_unref(c.f);
    ch_tensor_unref(c.array);
    ch_iterator_unref(c.it);
    ch_dataset_unref(d);
    ch_strategy_unref(c.st);
    ch_strategy_unref(c.other);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_called_once_by_the_callers_thread),
        cmocka_unit_test(replicas_are_numbered),
        cmocka_unit_test(replica_reads_its_component_or_the_shared_value),
        cmocka_unit_test(mirrored_value_outside_steps_is_that_of_the_current_device),
        cmocka_unit_test(results_keep_their_order_and_names),
        cmocka_unit_test(values_of_one_kind_are_recorded_once),
        cmocka_unit_test(results_are_arguments_of_the_next_run),
        cmocka_unit_test(step_error_at_any_depth_reaches_the_caller),
        cmocka_unit_test(a_variable_made_in_a_step_is_one_for_all_replicas),
        cmocka_unit_test(a_merge_call_may_gather),
        cmocka_unit_test(default_is_a_strategy_that_is_not_set),
        cmocka_unit_test(cross_replica_calls_are_refused_in_replica_context),
    };

    return cmocka_run_group_tests_name("contexts", tests, t_four_gpus, NULL);
}
