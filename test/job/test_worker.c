/* test/job/test_worker.c -- a worker and its servers, over a network that loses, delays and
 * repeats messages.
 *
 * A client sends steps to the worker, each until the worker replies, and runs the same steps
 * whole under Default. The variables must have the same bits, so no update was lost or applied
 * twice. The results must be equal too, unless a step was repeated.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/mem.h"
#include "cluster.h"
#include "graph/function.h"
#include "job/worker.h"

enum { MOST_PARTS = 256, STEPS = 12 };

typedef struct setting {
    cluster        c;
    ch_function   *f;
    ch_task       *worker;
    ch_placed_plan sent;
    uint64_t       function[MOST_PARTS];
} setting;

static ch_worker_options options;

static void send_function(setting *s)
{
    Cohort__WorkerFunction m;
    ch_message            *p = NULL;
    ch_tensor             *bytes = NULL;
    void                  *data = NULL;
    size_t                 n = 0;
    uint64_t               incarnation[SERVERS];

    cohort__worker_function__init(&m);
    m.function = 1;
    m.n_servers = SERVERS;
    m.servers = incarnation;
    for (int i = 0; i < SERVERS; i++)
        incarnation[i] = ch__task_incarnation(s->c.a.server[i]);
    t_ok(ch__step_plan_encode(&s->sent, &data, &n));
    t_ok(ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)n), data, &bytes));
    t_ok(ch__message_pack(CH_WORKER_FUNCTION, &m.base, 1, &bytes, &p));
    ask_task(&s->c.a, "worker/1", p);
    ch__free(data);
}

static ch_message *run_message(const setting *s, uint64_t step, ch_tuple *in)
{
    Cohort__WorkerRun m;
    ch_message       *p = NULL;
    ch_tensor        *t[8];
    int               n = ch_tuple_count(in);

    (void)s;
    cohort__worker_run__init(&m);
    m.step = m.retired = step;
    m.function = 1;
    for (int i = 0; i < n; i++)
        t[i] = ch_tensor_ref(ch_value_at(ch_tuple_at(in, i), 0));
    t_ok(ch__message_pack(CH_WORKER_RUN, &m.base, n, t, &p));
    return p;
}

static void set_up(setting *s, ch_step_fn step, job *j, ch_tuple *in, where at,
                   const ch_sim_options *opt)
{
    ch_step_plan *plan = NULL;

    memset(s, 0, sizeof(*s));
    begin(&s->c.a, opt);
    options = (ch_worker_options){.n_devices = 1,
                                  .call_ns = 20000000,
                                  .retry_ns = 1000000,
                                  .patience_ns = (int64_t)1 << 50};
    t_ok(ch__device_of_task("worker", 1, 0, &options.device[0]));
    t_ok(ch__task_start(s->c.a.net,
                        &(ch_task_options){.name = "worker/1",
                                           .ops = &ch__worker_ops,
                                           .make = ch__worker_make,
                                           .arg = &options},
                        &s->worker));
    t_ok(ch_function_new("step", step, j, &s->f));
    t_ok(ch_strategy_run(NULL, s->f, in, NULL));
    create_all(&s->c, ch_function_graph(s->f), at);
    t_ok(ch__step_plan_new(ch_function_graph(s->f), s->c.place, s->c.axis, &plan));
    for (int i = 0; i < plan->n_remote_parts; i++)
        s->function[i] = (uint64_t)i * MOST_SHARDS + 1;
    s->sent = (ch_placed_plan){plan, s->c.n, s->c.variable, s->function};
    send_function(s);
}

static void tear_down(setting *s)
{
    ch__step_plan_free(s->sent.plan);
    ch_function_unref(s->f);
    ch__message_unref(s->c.a.answer);
    ch__net_free(s->c.a.net);
}

static void compare_variables(setting *s, bool only_counters)
{
    const ch_graph *g = ch_function_graph(s->f);

    for (int i = 0; i < s->c.n; i++) {
        ch_tensor *is = read_back(&s->c, i), *want = NULL;

        t_ok(ch_var_get(g->resource[i].key, &want));
        if (!only_counters || ch_tensor_shape(is).rank == 0)
            same_bits(s->c.variable[i].name, want, is);
        ch_tensor_unref(is);
        ch_tensor_unref(want);
    }
}

static void compare_results(setting *s, const ch_tuple *out)
{
    assert_int_equal(s->c.a.answer->n_tensors, ch_tuple_count(out));
    for (int i = 0; i < ch_tuple_count(out); i++)
        same_bits("a result", ch_value_at(ch_tuple_at(out, i), 0), s->c.a.answer->tensor[i]);
}

static void run_whole(setting *s, ch_tuple *in, ch_tuple **out)
{
    t_ok(ch_strategy_run_with(NULL, s->f, in, &(ch_run_options){.has_step_number = true}, out));
}

static void check_step(ch_step_fn step, job *j, ch_tuple *in, where at,
                       const ch_sim_options *opt)
{
    static setting s;

    set_up(&s, step, j, in, at, opt);
    for (uint64_t n = 0; n < STEPS; n++) {
        ch_tuple *out = NULL;

        ask_task(&s.c.a, "worker/1", run_message(&s, n, in));
        run_whole(&s, in, &out);
        if (opt->drop + opt->twice + opt->late == 0)
            compare_results(&s, out); /* a repeated step reads its own updates */
        compare_variables(&s, false);
        ch_tuple_unref(out);
    }
    tear_down(&s);
}

static void check_all(const ch_sim_options *opt, int n)
{
    job       j;
    ch_tuple *two = rows_of(8), *one = tuple_of(1, (ch_tensor *[]){ids_of(9, 20)});
    ch_tuple *ids =
        tuple_of(2, (ch_tensor *[]){ids_of(30, 20), t_noise(ch_shape_of(30, 4), 2)});

    make_job(&j);
    t_ok(ch_optimizer_adam(0.1, NULL, NULL, &j.optimizer));
    check_step(by_hand, &j, two, wheres[n % N_WHERES], opt);
    check_step(by_optimizer, &j, two, wheres[(n + 1) % N_WHERES], opt);
    check_step(look_rows_up, &j, ids, wheres[(n + 2) % N_WHERES], opt);
    check_step(look_up_twice, &j, one, wheres[(n + 3) % N_WHERES], opt);
    drop_job(&j);
    ch_tuple_unref(one);
    ch_tuple_unref(two);
    ch_tuple_unref(ids);
}

static void a_worker_runs_steps(void **state)
{
    (void)state;
    for (int n = 0; n < N_WHERES; n++)
        check_all(&(ch_sim_options){.seed = 1, .encode = true}, n);
}

static void worker_steps_are_correct_when_messages_are_lost_or_repeated(void **state)
{
    const char *cases = getenv("T_CASES");
    int         n = cases != NULL ? atoi(cases) : 20;

    (void)state;
    for (int i = 0; i < n; i++)
        check_all(&(ch_sim_options){.seed = (uint64_t)i,
                                    .encode = true,
                                    .drop = i * 7 % 200,
                                    .twice = i * 13 % 300,
                                    .late = i * 5 % 100},
                  i);
}

/* ---- a worker that is killed ---- */

typedef struct killing {
    setting *s;
    int      n;
} killing;

static void kill_worker(void *arg)
{
    killing *k = arg;

    ch__task_kill(k->s->worker);
    t_ok(ch__task_restart(k->s->worker));
    k->n++;
}

/* Updates that the killed worker has sent, and updates that the restarted worker sends for the
 * same step, are applied once. */
static void step_is_applied_once_when_its_worker_dies_and_restarts(void **state)
{
    static setting s;
    ch_tuple      *in = rows_of(8);

    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        killing k = {&s, 0};
        job     j;

        make_job(&j);
        t_ok(ch_optimizer_adam(0.1, NULL, NULL, &j.optimizer));
        set_up(&s, seed % 2 == 0 ? by_hand : by_optimizer, &j, in, wheres[seed % N_WHERES],
               &(ch_sim_options){.seed = seed, .encode = true});
        for (uint64_t n = 0; n < STEPS; n++) {
            ch_tuple *out = NULL;
            ch_ending ending;

            t_ok(ch__sim_at(s.c.a.net,
                            ch__sim_now(s.c.a.net) + ch__sim_draw(s.c.a.net, 1500000),
                            kill_worker, &k));
            do {
                ending = try_to_ask(&s.c.a, "worker/1", run_message(&s, n, in));
                if (ending == CH_ENDED_ERROR && s.c.a.fault.code == CH_NOT_FOUND)
                    send_function(&s); /* the new incarnation has no functions */
            } while (ending != CH_ENDED_OK);
            run_whole(&s, in, &out);
            assert_int_equal(s.c.a.answer->n_tensors, ch_tuple_count(out));
            ch_tuple_unref(out);
            /* The values that a repeated attempt computes depend on the updates of the attempt
             * before; the number of updates does not. */
            compare_variables(&s, true);
        }
        assert_true(k.n > 0);
        tear_down(&s);
        drop_job(&j);
    }
    ch_tuple_unref(in);
}

/* ---- invalid calls ---- */

static void sum_of_three(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "sum", ch_add(ch_add(ch_step_in(s, 0), ch_step_in(s, 1)), ch_step_in(s, 2)));
}

static ch_tensor *number_tensor(int number)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_scalar(CH_I64, number, &t));
    return t;
}

static void send_stream(setting *s)
{
    Cohort__WorkerStream m;
    ch_dataset          *d = ch_dataset_range(0, 4, 1);
    ch_message          *p = NULL;
    ch_tensor           *bytes = NULL;
    void                *data = NULL;
    size_t               n = 0;

    cohort__worker_stream__init(&m);
    m.stream = 1;
    t_ok(ch_dataset_encode(d, &data, &n));
    t_ok(ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)n), data, &bytes));
    t_ok(ch__message_pack(CH_WORKER_STREAM, &m.base, 1, &bytes, &p));
    ask_task(&s->c.a, "worker/1", p);
    ch_bytes_free(data);
    ch_dataset_unref(d);
}

/* Runs a step with an input in the message and two elements, which are inputs number `first`
 * and `second`. */
static ch_ending run_with_elements(setting *s, uint32_t first, uint32_t second)
{
    Cohort__WorkerRun     m;
    Cohort__WorkerElement e[2], *list[2] = {&e[0], &e[1]};
    ch_tensor            *t = number_tensor(10);
    ch_message           *p = NULL;

    cohort__worker_run__init(&m);
    cohort__worker_element__init(&e[0]);
    cohort__worker_element__init(&e[1]);
    m.function = e[0].stream = e[1].stream = 1;
    m.n_elements = 2;
    m.elements = list;
    e[0].at = first;
    e[1].at = second;
    e[1].number = 3;
    t_ok(ch__message_pack(CH_WORKER_RUN, &m.base, 1, &t, &p));
    return try_to_ask(&s->c.a, "worker/1", p);
}

static void worker_rejects_two_elements_for_one_input(void **state)
{
    static setting s;
    ch_tensor     *t[3];
    ch_tuple      *in;

    (void)state;
    for (int i = 0; i < 3; i++)
        t[i] = number_tensor(i);
    in = t_tuple(3, t);
    set_up(&s, sum_of_three, NULL, in, wheres[0], &(ch_sim_options){.seed = 1});
    send_stream(&s);
    assert_int_equal(run_with_elements(&s, 0, 2), CH_ENDED_OK);
    assert_int_equal(*(const int64_t *)ch_tensor_data(s.c.a.answer->tensor[0]), 13);
    assert_int_equal(run_with_elements(&s, 0, 0), CH_ENDED_ERROR);
    assert_int_equal(s.c.a.fault.code, CH_INVALID_ARGUMENT);
    assert_non_null(strstr(s.c.a.fault.text, "input 1 of the step is missing"));
    tear_down(&s);
    ch_tuple_unref(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_runs_steps),
        cmocka_unit_test(worker_steps_are_correct_when_messages_are_lost_or_repeated),
        cmocka_unit_test(step_is_applied_once_when_its_worker_dies_and_restarts),
        cmocka_unit_test(worker_rejects_two_elements_for_one_input),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
