/* test/strategy/test_scope.c -- the scope of a strategy, seeds and step numbers of runs, and
 * lifetimes of objects.
 *
 * The tests make calls inside and outside of scopes, steps and host calls, and check that
 * objects live as long as they have references.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "base/mem.h"
#include "help.h"

/* ---- scope ---- */

static void variable_made_in_a_scope_belongs_to_its_strategy(void **state) /* 1.1.9 */
{
    ch_strategy *st = NULL, *other = NULL;
    ch_var      *in = NULL, *out = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_strategy_mirrored(NULL, &other));
    t_ok(ch_strategy_enter(st));
    assert_ptr_equal(ch_strategy_current(), st);
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "in"}, &in));
    assert_ptr_equal(ch_var_strategy(in), st);
    assert_string_equal(ch_strategy_name(NULL), "Mirrored");
    assert_int_equal(ch_strategy_replicas(NULL), 2);
    t_refused(ch_strategy_enter(other), CH_FAILED_PRECONDITION, "mixing different strategies",
              "");
    t_ok(ch_strategy_enter(st)); /* scopes nest */
    ch_strategy_leave();
    assert_ptr_equal(ch_strategy_current(), st);
    ch_strategy_leave();
    assert_string_equal(ch_strategy_name(NULL), "Default");
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "out"}, &out));
    assert_ptr_equal(ch_var_strategy(out), ch_strategy_current());
    ch_strategy_leave(); /* without a scope the call does nothing */
    assert_string_equal(ch_strategy_name(NULL), "Default");
    ch_var_unref(in);
    ch_var_unref(out);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

static void scopes_nest_64_deep(void **state)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    for (int i = 0; i < 64; i++)
        t_ok(ch_strategy_enter(st));
    t_refused(ch_strategy_enter(st), CH_FAILED_PRECONDITION, "more than 64 deep", "");
    ch_strategy_unref(st); /* the scope has a reference */
    assert_int_equal(ch_strategy_replicas(NULL), 2);
    for (int i = 0; i < 64; i++)
        ch_strategy_leave();
    assert_string_equal(ch_strategy_name(NULL), "Default");
    (void)state;
}

/* ---- calls that are allowed in each context ---- */

static void *look_around(void *arg)
{
    *(ch_context *)arg = ch_context_now();
    return NULL;
}

static void scope_does_not_reach_other_threads(void **state) /* 1.1.1, 1.1.7 */
{
    ch_strategy *st = NULL;
    ch_context   there = CH_CONTEXT_REPLICA;
    pthread_t    thread;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_strategy_enter(st));
    assert_int_equal(pthread_create(&thread, NULL, look_around, &there), 0);
    pthread_join(thread, NULL);
    assert_int_equal(there, CH_CONTEXT_DEFAULT);
    assert_int_equal(ch_context_now(), CH_CONTEXT_CROSS);
    ch_strategy_leave();
    ch_strategy_unref(st);
    (void)state;
}

static void
strategy_leave_ends_the_scope_at_the_outermost_level(void **state) /* 1.2.1, 1.2.2, 1.2.4 */
{
    ch_strategy *st = NULL, *other = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_strategy_mirrored(NULL, &other));
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < 3; i++)
            t_ok(ch_strategy_enter(st));
        t_refused(ch_strategy_enter(other), CH_FAILED_PRECONDITION,
                  "mixing different strategies", "Mirrored");
        for (int i = 0; i < 3; i++) {
            assert_ptr_equal(ch_strategy_current(), st);
            ch_strategy_leave();
        }
        assert_false(ch_strategy_is_set());
    }
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

static void default_scope_allows_the_scope_of_another_strategy(void **state) /* 1.2.7, 1.2.8 */
{
    ch_strategy *none = ch_strategy_current(), *st = NULL;
    ch_var      *v = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_strategy_enter(none));
    t_ok(ch_strategy_enter(none));
    assert_int_equal(ch_context_now(), CH_CONTEXT_DEFAULT);
    t_ok(ch_strategy_enter(st));
    assert_ptr_equal(ch_strategy_current(), st);
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "own"}, &v));
    assert_ptr_equal(ch_var_strategy(v), st);
    ch_var_unref(v);
    v = NULL;
    t_refused(ch_strategy_enter(none), CH_FAILED_PRECONDITION, "Default", "inside");
    t_refused(ch_var_new(none, &(ch_var_spec){.name = "v"}, &v), CH_FAILED_PRECONDITION,
              "mixing different strategies", "v");
    for (int i = 0; i < 3; i++)
        ch_strategy_leave();
    assert_false(ch_strategy_is_set());
    ch_strategy_unref(st);
    (void)state;
}

static void strategy_set_holds_outside_scopes_and_is_refused_inside(void **state) /* 1.2.9 */
{
    ch_strategy *a = NULL, *b = NULL;

    t_ok(ch_strategy_mirrored(NULL, &a));
    t_ok(ch_strategy_mirrored(NULL, &b));
    t_ok(ch_strategy_set(a));
    assert_ptr_equal(ch_strategy_current(), a);
    assert_int_equal(ch_context_now(), CH_CONTEXT_CROSS);
    t_ok(ch_strategy_set(b));
    assert_ptr_equal(ch_strategy_current(), b);
    t_ok(ch_strategy_set(NULL));
    assert_false(ch_strategy_is_set());
    t_ok(ch_strategy_enter(a));
    t_refused(ch_strategy_set(NULL), CH_FAILED_PRECONDITION, "inside a scope", "Mirrored");
    t_refused(ch_strategy_set(a), CH_FAILED_PRECONDITION, "inside a scope", "Mirrored");
    t_refused(ch_strategy_set(b), CH_FAILED_PRECONDITION, "inside a scope", "Mirrored");
    assert_ptr_equal(ch_strategy_current(), a);
    ch_strategy_leave();
    ch_strategy_unref(a);
    ch_strategy_unref(b);
    (void)state;
}

static void nothing(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "one", ch_number(s, 1));
}

typedef struct calling {
    ch_strategy *st, *other;
    ch_function *f;
    ch_var      *v;
    ch_status    enter, run, update, colocate, mixed;
    char         text[200];
} calling;

static void call_from_a_replica(ch_step *s, void *arg)
{
    calling *c = arg;

    c->enter = ch_strategy_enter(c->st);
    c->run = ch_strategy_run(c->st, c->f, NULL, NULL);
    snprintf(c->text, sizeof(c->text), "%s", ch_error_message());
    c->update = ch_strategy_update(c->st, c->v, c->f, NULL, NULL);
    c->colocate = ch_colocate_enter(NULL, c->v);
    ch_colocate_leave();
    c->mixed = ch_strategy_run(c->other, c->f, NULL, NULL);
    ch_step_out(s, "one", ch_number(s, 1));
}

/* 1.2.3, 1.3.1, 1.3.2, 1.3.6, 1.3.7, 1.3.12, 1.4.10 */
static void enter_run_and_update_are_refused_in_replica_context(void **state)
{
    calling      c = {.f = t_function(nothing, NULL)};
    ch_function *f = t_function(call_from_a_replica, &c);
    ch_var      *v = NULL;

    t_ok(ch_strategy_mirrored(NULL, &c.st));
    t_ok(ch_strategy_mirrored(NULL, &c.other));
    t_ok(ch_var_new(c.st, &(ch_var_spec){.name = "v"}, &c.v));
    t_ok(ch_strategy_run(c.st, f, NULL, NULL));
    assert_int_equal(c.enter, CH_FAILED_PRECONDITION);
    assert_int_equal(c.run, CH_FAILED_PRECONDITION);
    assert_non_null(strstr(c.text, "outside steps"));
    assert_int_equal(c.update, CH_FAILED_PRECONDITION);
    assert_int_equal(c.colocate, CH_OK);
    assert_int_equal(c.mixed, CH_FAILED_PRECONDITION);
    t_refused(ch_colocate_enter(c.st, c.v), CH_FAILED_PRECONDITION, "scope", "v");
    t_ok(ch_strategy_enter(c.other));
    t_refused(ch_strategy_run(c.st, c.f, NULL, NULL), CH_FAILED_PRECONDITION,
              "mixing different strategies", "run");
    t_refused(ch_strategy_update(c.st, c.v, c.f, NULL, NULL), CH_FAILED_PRECONDITION,
              "mixing different strategies", "update");
    t_refused(ch_colocate_enter(c.st, c.v), CH_FAILED_PRECONDITION,
              "mixing different strategies", "v");
    t_refused(ch_colocate_enter(NULL, c.v), CH_INVALID_ARGUMENT, "another strategy", "v");
    t_refused(ch_var_new(c.st, &(ch_var_spec){.name = "w"}, &v), CH_FAILED_PRECONDITION,
              "mixing different strategies", "w");
    ch_strategy_leave();
    ch_var_unref(c.v);
    ch_function_unref(c.f);
    ch_function_unref(f);
    ch_strategy_unref(c.st);
    ch_strategy_unref(c.other);
    (void)state;
}

/* ---- placement of variables ---- */

static ch_status rename_it(ch_var_spec *spec, void *arg)
{
    if (strcmp(spec->name, "bad") == 0)
        return ch_fail(CH_INVALID_ARGUMENT, "no such name here");
    spec->name = arg;
    return CH_OK;
}

static ch_status refuse_without_a_word(ch_var_spec *spec, void *arg)
{
    (void)spec;
    (void)arg;
    return CH_PERMISSION_DENIED;
}

static void var_creator_may_rename_or_refuse_a_variable(void **state)
{
    char    outer[] = "outer", inner[] = "inner";
    ch_var *v = NULL;

    t_ok(ch_var_creator_enter(rename_it, outer));
    t_ok(ch_var_creator_enter(rename_it, inner));
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "mine"}, &v));
    assert_string_equal(ch_var_name(v), "outer"); /* the innermost hook is called first */
    ch_var_unref(v);
    t_refused(ch_var_new(NULL, &(ch_var_spec){.name = "bad"}, &v), CH_INVALID_ARGUMENT,
              "no such name here", "bad");
    ch_var_creator_leave();
    ch_var_creator_leave();
    t_ok(ch_var_creator_enter(refuse_without_a_word, NULL));
    t_refused(ch_var_new(NULL, &(ch_var_spec){.name = "mine"}, &v), CH_PERMISSION_DENIED,
              "mine", "");
    assert_null(strstr(ch_error_message(), "no such name")); /* of an earlier error */
    ch_var_creator_leave();
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "mine"}, &v));
    assert_string_equal(ch_var_name(v), "mine");
    ch_var_unref(v);
    (void)state;
}

/* Devices and hooks that were entered in a scope end with it. Those that were entered before
 * stay. */
static void
strategy_leave_ends_devices_and_hooks_entered_in_the_scope(void **state) /* 1.2.5, 1.2.6 */
{
    char         outer[] = "outer", inner[] = "inner";
    ch_strategy *st = NULL;
    ch_device   *d = NULL, *now = ch_device_current();
    ch_var      *v = NULL, *w = NULL;

    t_ok(ch_strategy_central_storage(NULL, &st));
    t_ok(ch_device_find("CPU:1", &d));
    assert_ptr_not_equal(d, now);
    t_ok(ch_var_creator_enter(rename_it, outer));
    t_ok(ch_strategy_enter(st));
    t_ok(ch_var_creator_enter(rename_it, inner));
    t_ok(ch_device_enter(d));
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "mine"}, &v));
    assert_string_equal(ch_var_name(v), "outer");
    t_ok(ch_colocate_enter(NULL, v));
    ch_strategy_leave();
    assert_ptr_equal(ch_device_current(), now);
    ch_var_creator_leave();
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "mine"}, &w));
    assert_string_equal(ch_var_name(w), "mine"); /* only the outer hook was left */
    ch_var_unref(w);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- variables outside steps ---- */

typedef struct touch {
    ch_var    *v;
    ch_tensor *five;
    ch_status  get, set, add; /* results of the calls in a step */
    bool       in_host;
} touch;

static void touch_it(touch *t)
{
    ch_tensor *now = NULL;

    t->get = ch_var_get(t->v, &now);
    t->set = ch_var_set(t->v, t->five);
    t->add = ch_var_add(t->v, t->five);
    ch_tensor_unref(now);
}

static ch_status touch_from_host(void *arg, int n_in, ch_tensor *const *in, int n_out,
                                 ch_tensor *const *out)
{
    (void)n_in;
    (void)in;
    (void)n_out;
    (void)out;
    touch_it(arg);
    return CH_OK;
}

static void touch_in_step(ch_step *s, void *arg)
{
    touch *t = arg;

    if (t->in_host)
        ch_host_call(s, &(ch_host_spec){.name = "touch", .fn = touch_from_host, .arg = t}, 0,
                     NULL, NULL);
    else
        touch_it(t);
    ch_step_out(s, "v", ch_var_read(s, t->v));
}

static void var_get_and_set_are_refused_inside_steps(void **state) /* 1.3.10, 3.2.1 */
{
    float        five = 5;
    ch_strategy *st = NULL, *other = NULL;
    touch        t = {.five = t_f32(ch_shape_scalar(), &five)};
    ch_tensor   *now = NULL;

    t_ok(ch_strategy_central_storage(NULL, &st)); /* one replica: no other writer */
    t_ok(ch_strategy_mirrored(NULL, &other));
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "v"}, &t.v));
    for (int in_host = 0; in_host < 2; in_host++) {
        ch_function *f = t_function(touch_in_step, &t);

        t.in_host = in_host != 0;
        t_ok(ch_strategy_run(st, f, NULL, NULL));
        assert_int_equal(t.get, CH_FAILED_PRECONDITION);
        assert_int_equal(t.set, CH_FAILED_PRECONDITION);
        assert_int_equal(t.add, CH_FAILED_PRECONDITION);
        assert_true(t_copy_of(t.v, 0, 0) == 0);
        ch_function_unref(f);
    }
    t_ok(ch_strategy_enter(other));
    t_refused(ch_var_get(t.v, &now), CH_FAILED_PRECONDITION, "mixing different", "v");
    t_refused(ch_var_set(t.v, t.five), CH_FAILED_PRECONDITION, "mixing different", "v");
    ch_strategy_leave();
    t_ok(ch_var_set(t.v, t.five)); /* outside of any scope, as in its own */
    t_ok(ch_strategy_enter(st));
    t_ok(ch_var_get(t.v, &now));
    ch_strategy_leave();
    assert_true(*(const float *)ch_tensor_data(now) == 5);
    ch_tensor_unref(now);
    ch_tensor_unref(t.five);
    ch_var_unref(t.v);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

/* ---- seeds and step numbers ---- */

static void draw(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "u", ch_random_uniform(s, CH_F32, ch_shape_of(4), 0, 1, 0));
    ch_step_out(s, "number", ch_step_number(s));
}

typedef struct drawn {
    float   u[4];
    int64_t number;
} drawn;

static drawn run_draw(ch_function *f, const ch_run_options *opt)
{
    ch_tuple *out = NULL;
    drawn     d = {0};

    t_ok(ch_strategy_run_with(NULL, f, NULL, opt, &out));
    memcpy(d.u, t_floats(out, 0, 0), sizeof(d.u));
    d.number = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_get(out, "number"), 0));
    ch_tuple_unref(out);
    return d;
}

static bool same(drawn a, drawn b)
{
    for (int i = 0; i < 4; i++)
        if (a.u[i] != b.u[i])
            return false;
    return true;
}

static void random_numbers_depend_on_seed_and_step_number_alone(void **state)
{
    ch_function *f = t_function(draw, NULL), *g = t_function(draw, NULL);
    drawn        first = run_draw(f, NULL), second = run_draw(f, NULL);
    drawn        other = run_draw(f, &(ch_run_options){.seed = 1});
    drawn again = run_draw(f, &(ch_run_options){.has_step_number = true, .step_number = 1});
    drawn elsewhere =
        run_draw(g, &(ch_run_options){.has_step_number = true, .step_number = 2, .seed = 1});

    assert_int_equal(first.number, 0);
    assert_int_equal(second.number, 1);
    assert_int_equal(other.number, 2);
    assert_int_equal(again.number, 1);
    assert_false(same(first, second));
    assert_false(same(first, other));
    assert_true(same(again, second));
    assert_true(same(elsewhere, other));
    t_refused(
        ch_strategy_run_with(
            NULL, f, NULL, &(ch_run_options){.has_step_number = true, .step_number = -5}, NULL),
        CH_INVALID_ARGUMENT, "step number is -5", "");
    ch_function_unref(f);
    ch_function_unref(g);
    (void)state;
}

/* ---- lifetimes ---- */

static void twice(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_add(ch_step_in(s, 0), ch_step_in(s, 0)));
}

static void a_graph_outlives_its_function(void **state)
{
    ch_function *f = t_function(twice, NULL), *again = NULL;
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_of(1), (float[]){3})});
    ch_tuple    *out = NULL;
    ch_graph    *g;

    t_ok(ch_strategy_run(NULL, f, in, NULL));
    g = ch_graph_ref(ch_function_graph(f));
    ch_function_unref(f);
    assert_int_equal(ch_graph_nodes(g), 2); /* the input and the sum */
    t_ok(ch_function_of_graph("again", g, &again));
    ch_graph_unref(g);
    t_ok(ch_strategy_run(NULL, again, in, &out));
    assert_float_equal(t_floats(out, 0, 0)[0], 6, 0);
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(again);
    (void)state;
}

static void a_variable_lives_until_its_last_reference_and_its_strategy_as_long(void **state)
{
    int64_t      live = ch__mem_live();
    ch_strategy *st = NULL;
    ch_var      *v;
    ch_tensor   *now = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    ch_strategy_unref(ch_strategy_ref(st));
    v = t_var(st, "w", t_f32(ch_shape_of(1), (float[]){3}));
    ch_strategy_unref(st);
    ch_var_unref(ch_var_ref(v));
    t_ok(ch_var_get(v, &now));
    assert_float_equal(*(const float *)ch_tensor_data(now), 3, 0);
    assert_int_equal(ch_strategy_replicas(ch_var_strategy(v)), 2);
    ch_tensor_unref(now);
    ch_var_unref(v);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void a_tensor_is_made_on_the_device_that_is_named(void **state)
{
    ch_device *d = ch_device_at(1);
    ch_tensor *t = NULL;
    size_t     before = ch_device_bytes(d);

    t_ok(ch_tensor_new_on(d, CH_F64, ch_shape_of(8), &t));
    assert_ptr_equal(ch_tensor_device(t), d);
    assert_int_equal(ch_device_bytes(d), before + 64);
    ch_tensor_unref(t);
    assert_int_equal(ch_device_bytes(d), before);
    t_ok(ch_tensor_new_on(NULL, CH_F64, ch_shape_of(8), &t));
    assert_ptr_equal(ch_tensor_device(t), ch_device_current());
    ch_tensor_unref(t);
    (void)state;
}

/* ---- the status of a recording ---- */

static void stop_early(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    assert_int_equal(ch_step_status(s), CH_OK);
    ch_step_fail(s, "no more than %d", 3);
    assert_int_equal(ch_step_status(s), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "no more than 3"));
    ch_step_fail(s, "something else"); /* the first stays */
    assert_null(ch_add(x, x));
    assert_int_equal(ch_step_status(s), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "no more than 3"));
}

static void step_status_returns_the_first_error_during_recording(void **state)
{
    ch_function *f = t_function(stop_early, NULL);
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(2), 1)});

    t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, "no more than 3", "");
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variable_made_in_a_scope_belongs_to_its_strategy),
        cmocka_unit_test(scopes_nest_64_deep),
        cmocka_unit_test(scope_does_not_reach_other_threads),
        cmocka_unit_test(strategy_leave_ends_the_scope_at_the_outermost_level),
        cmocka_unit_test(default_scope_allows_the_scope_of_another_strategy),
        cmocka_unit_test(strategy_set_holds_outside_scopes_and_is_refused_inside),
        cmocka_unit_test(enter_run_and_update_are_refused_in_replica_context),
        cmocka_unit_test(var_creator_may_rename_or_refuse_a_variable),
        cmocka_unit_test(strategy_leave_ends_devices_and_hooks_entered_in_the_scope),
        cmocka_unit_test(var_get_and_set_are_refused_inside_steps),
        cmocka_unit_test(random_numbers_depend_on_seed_and_step_number_alone),
        cmocka_unit_test(a_graph_outlives_its_function),
        cmocka_unit_test(a_variable_lives_until_its_last_reference_and_its_strategy_as_long),
        cmocka_unit_test(a_tensor_is_made_on_the_device_that_is_named),
        cmocka_unit_test(step_status_returns_the_first_error_during_recording),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2"}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
