/* test/strategy/test_timing.c -- the time of a run by kind of work, and its trace.
 *
 * Times are compared with each other, never with absolute limits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../base/trace_help.h"
#include "../file/folder.h"
#include "base/thread.h"
#include "base/trace.h"
#include "graph/function.h"
#include "strategy/strategy.h"

/* ---- a training step of two layers, the second without an activation ---- */

typedef struct training {
    ch_strategy  *st;
    ch_optimizer *optimizer;
    ch_var       *w[2], *bias;
    ch_function  *step;
    ch_tuple     *in;
} training;

static void train(ch_step *s, void *arg)
{
    training *t = arg;
    ch_node  *x = ch_step_in(s, 0), *y;
    ch_var   *var[] = {t->w[0], t->w[1], t->bias};

    ch_step_enter(s, "hidden");
    x = ch_matmul(x, false, ch_var_read(s, t->w[0]), false);
    x = ch_relu(ch_add(x, ch_var_read(s, t->bias)));
    ch_step_leave(s);
    y = ch_matmul(x, false, ch_var_read(s, t->w[1]), false);
    ch_optimizer_minimize(t->optimizer, s, ch_mean_all(ch_square(y)), 3, var);
}

/* Takes over the reference to the strategy. */
static training begin(ch_strategy *st)
{
    training t = {.st = st};

    t_ok(ch_optimizer_adam(0.01, NULL, NULL, &t.optimizer));
    t.w[0] = t_var(st, "w0", t_noise(ch_shape_of(64, 64), 1));
    t.w[1] = t_var(st, "w1", t_noise(ch_shape_of(64, 64), 2));
    t.bias = t_var(st, "bias", t_noise(ch_shape_of(64), 3));
    t.in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(96, 64), 4)});
    return t;
}

static void end(training *t)
{
    ch_tuple_unref(t->in);
    ch_function_unref(t->step);
    ch_optimizer_unref(t->optimizer);
    ch_var_unref(t->w[0]);
    ch_var_unref(t->w[1]);
    ch_var_unref(t->bias);
    ch_strategy_unref(t->st);
}

/* Returns the number of instructions of the last program with this kind of work whose op's name
 * begins with `name`; NULL: any name. */
static int count_instrs(const ch_function *f, const char *name, ch_work_kind work)
{
    const ch_program *p = f->last_prepared->program[0];
    int               n = 0;

    for (int i = 0; i < p->n_instrs; i++)
        n += p->instr[i].work == work && p->instr[i].node != NULL &&
             (name == NULL || strncmp(p->instr[i].node->op->name, name, strlen(name)) == 0);
    return n;
}

static void program_instructions_have_their_kind_of_work(void **state)
{
    training t = begin(t_mirrored(2));

    t.step = t_function(train, &t);
    t_ok(ch_strategy_run(t.st, t.step, t.in, NULL));
    assert_int_equal(count_instrs(t.step, "matmul", CH_WORK_FORWARD), 2);
    assert_int_equal(count_instrs(t.step, "matmul", CH_WORK_BACKWARD), 3);
    assert_int_equal(count_instrs(t.step, "matmul", CH_WORK_UPDATE), 0);
    assert_true(count_instrs(t.step, "all_reduce", CH_WORK_REDUCE) >= 2);
    assert_int_equal(count_instrs(t.step, "all_reduce", CH_WORK_REDUCE),
                     count_instrs(t.step, NULL, CH_WORK_REDUCE));
    assert_int_equal(count_instrs(t.step, "apply", CH_WORK_UPDATE), 3);
    assert_int_equal(count_instrs(t.step, "apply", CH_WORK_FORWARD), 0);
    end(&t);
    (void)state;
}

static void fused_instruction_keeps_its_kind_of_work(void **state)
{
    training          t = begin(t_mirrored(1));
    const ch_program *p;
    int               n_absorbed = 0;

    t.step = t_function(train, &t);
    t_ok(ch_strategy_run(t.st, t.step, t.in, NULL));
    p = t.step->last_prepared->program[0];
    for (int i = 0; i < p->n_instrs; i++)
        if (p->instr[i].node != NULL && p->instr[i].node->scope != NULL &&
            p->instr[i].work == CH_WORK_FORWARD)
            n_absorbed++;
    assert_int_equal(n_absorbed, 1); /* matmul, bias and relu are a single call */
    end(&t);
    (void)state;
}

/* ---- times ---- */

static void adds_up(const ch_timing *t)
{
    int64_t sum = 0;

    for (int w = 0; w < CH_WORKS; w++) {
        assert_true(t->ns[w] >= 0);
        sum += t->ns[w];
    }
    assert_int_equal(sum, t->total_ns);
}

static void timing_entries_add_up_to_the_total(void **state)
{
    ch_strategy *const all[] = {NULL, t_mirrored(1), t_mirrored(2), t_mirrored(4),
                                t_central(3)};

    for (int i = 0; i < 5; i++) {
        training  t = begin(i > 0 ? all[i] : ch_strategy_ref(ch__strategy_default()));
        ch_timing first, time;

        t.step = t_function(train, &t);
        t_ok(ch__strategy_run_timed(t.st, t.step, t.in, NULL, &first));
        adds_up(&first);
        assert_true(first.ns[CH_WORK_OTHER] > 0); /* recording, planning */
        for (int k = 0; k < 10; k++) {
            t_ok(ch__strategy_run_timed(t.st, t.step, t.in, NULL, &time));
            adds_up(&time);
            assert_true(time.total_ns > 0 && time.ns[CH_WORK_FORWARD] > 0 &&
                        time.ns[CH_WORK_BACKWARD] > 0 && time.ns[CH_WORK_UPDATE] > 0);
            assert_true((time.ns[CH_WORK_REDUCE] > 0) == (i > 1));
        }
        end(&t);
    }
    (void)state;
}

/* ---- replicas that wait ---- */

typedef struct lagging {
    int  who;     /* the slow replica; -1: none */
    bool fails;   /* then fails before the collective */
    bool reduces; /* the step has a collective */
} lagging;

static ch_status take_time(void *arg, int n_in, ch_tensor *const *in, int n_out,
                           ch_tensor *const *out)
{
    const lagging *l = arg;
    int64_t        until = ch__now_ns() + 30000000;

    (void)n_in, (void)n_out;
    *(float *)ch_tensor_data_mut(out[0]) = 1;
    if (*(const int32_t *)ch_tensor_data(in[0]) != l->who)
        return CH_OK;
    while (ch__now_ns() < until)
        ch__relax();
    return l->fails ? CH_INTERNAL : CH_OK;
}

static void lag(ch_step *s, void *arg)
{
    const lagging *l = arg;
    ch_node       *id = ch_step_replica_id(s), *y = NULL;

    ch_host_call(s,
                 &(ch_host_spec){.name = "lag",
                                 .fn = take_time,
                                 .arg = arg,
                                 .n_out = 1,
                                 .out = {{.dtype = CH_F32, .shape = ch_shape_scalar()}}},
                 1, &id, &y);
    ch_step_out(s, NULL, l->reduces ? ch_all_reduce(CH_SUM, y) : y);
}

/* Returns the share of a run's time that replicas wait. Replica 0 only waits. */
static double waited(bool reduces)
{
    lagging      l = {.who = 1, .reduces = reduces};
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(lag, &l);
    ch_timing    t;

    t_ok(ch_strategy_run(st, f, NULL, NULL));
    t_ok(ch__strategy_run_timed(st, f, NULL, NULL, &t));
    adds_up(&t);
    assert_true(t.ns[CH_WORK_REDUCE] < t.ns[CH_WORK_WAIT]); /* waiting is no reducing */
    ch_function_unref(f);
    ch_strategy_unref(st);
    return (double)t.ns[CH_WORK_WAIT] / (double)t.total_ns;
}

static void timing_counts_the_wait_for_a_late_replica_at_an_all_reduce(void **state)
{
    assert_true(waited(true) > 0.25);
    (void)state;
}

static void timing_counts_the_wait_for_a_late_replica_at_the_end(void **state)
{
    assert_true(waited(false) > 0.25);
    (void)state;
}

static void timing_of_a_failed_run_adds_up(void **state)
{
    lagging      l = {.who = 1, .reduces = true, .fails = true};
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(lag, &l);
    ch_timing    t;

    assert_int_equal(ch__strategy_run_timed(st, f, NULL, NULL, &t), CH_INTERNAL);
    adds_up(&t);
    assert_true(t.ns[CH_WORK_WAIT] > 0);
    assert_int_equal(ch__strategy_run_timed(st, NULL, NULL, NULL, &t), CH_INVALID_ARGUMENT);
    adds_up(&t);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* The clocks of a timed run do not affect the next run. */
static void timed_and_untimed_runs_may_alternate(void **state)
{
    training  t = begin(t_mirrored(2));
    ch_timing time;

    t.step = t_function(train, &t);
    for (int i = 0; i < 6; i++) {
        if (i % 2 == 0)
            t_ok(ch__strategy_run_timed(t.st, t.step, t.in, NULL, &time));
        else
            t_ok(ch_strategy_run(t.st, t.step, t.in, NULL));
        adds_up(&time);
    }
    end(&t);
    (void)state;
}

/* ---- the trace ---- */

static void trace_has_a_track_of_nested_spans_for_each_device(void **state)
{
    training t = begin(t_mirrored(3));
    t_trace *trace;

    t.step = t_function(train, &t);
    t_ok(ch_strategy_run(t.st, t.step, t.in, NULL));
    t_ok(ch__trace_open(t_path("train.json")));
    for (int i = 0; i < 3; i++)
        t_ok(ch_strategy_run(t.st, t.step, t.in, NULL));
    t_ok(ch__trace_close());
    trace = t_trace_read(t_path("train.json"));
    assert_int_equal(trace->n_tracks, 3);
    for (int i = 0; i < 3; i++) {
        const char *name[] = {"GPU:0", "GPU:1", "GPU:2"};

        assert_int_equal(t_count(trace, name[i], "step"), 3);
        assert_int_equal(t_count(trace, name[i], "hidden/matmul"), 3);
        assert_int_equal(t_count(trace, name[i], "backward/matmul"), 3 * 3);
        assert_int_equal(t_count(trace, name[i], "update/apply"), 3 * 3);
        assert_int_equal(t_count(trace, name[i], "reduce/all_reduce_begin"), 3);
    }
    free(trace);
    end(&t);
    (void)state;
}

static void trace_has_spans_for_waits_and_failed_runs(void **state)
{
    lagging      l = {.who = 1, .reduces = true};
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(lag, &l);
    t_trace     *trace;

    t_ok(ch__trace_open(t_path("lag.json")));
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    l.fails = true;
    assert_int_equal(ch_strategy_run(st, f, NULL, NULL), CH_INTERNAL);
    t_ok(ch__trace_close());
    trace = t_trace_read(t_path("lag.json"));
    assert_int_equal(t_count(trace, "GPU:0", "wait (all_reduce)"), 2);
    assert_int_equal(t_count(trace, "GPU:1", "step"), 2);
    assert_int_equal(t_count(trace, "GPU:1", "step (failed)"), 1);
    assert_int_equal(t_count(trace, "GPU:1", "host_call"), 2);
    assert_int_equal(t_count(trace, "GPU:1", "reduce/all_reduce"), 1);
    free(trace);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(program_instructions_have_their_kind_of_work),
        cmocka_unit_test(fused_instruction_keeps_its_kind_of_work),
        cmocka_unit_test(timing_entries_add_up_to_the_total),
        cmocka_unit_test(timing_counts_the_wait_for_a_late_replica_at_an_all_reduce),
        cmocka_unit_test(timing_counts_the_wait_for_a_late_replica_at_the_end),
        cmocka_unit_test(timing_of_a_failed_run_adds_up),
        cmocka_unit_test(timed_and_untimed_runs_may_alternate),
        cmocka_unit_test(trace_has_a_track_of_nested_spans_for_each_device),
        cmocka_unit_test(trace_has_spans_for_waits_and_failed_runs),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=4"}));
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}
