/* test/job/test_step_exec.c -- step executions with real servers give the same bits as the
 * undivided step.
 *
 * The test makes the calls of a step execution itself, without a worker, and sends each call
 * twice. It also lets allocations fail and gives invalid replies.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "cluster.h"
#include "graph/function.h"
#include "graph/run.h"

static void define_all(cluster *c, const ch_placed_plan *r)
{
    for (int i = 0; i < r->plan->n_remote_parts; i++) {
        const ch_remote_part *u = &r->plan->remote[i];

        for (int k = 0; u->kind == CH_REMOTE_UPDATE && k < r->variable[u->variable[0]].n_shards;
             k++) {
            Cohort__PsDefine m;
            uint64_t         number[MOST_VARS];
            ch_graph        *g = NULL;
            ch_message      *p = NULL;
            void            *bytes = NULL;

            cohort__ps_define__init(&m);
            t_ok(ch__step_exec_update(r, i, k, &m.update, &g));
            t_ok(ch_graph_encode(g, &bytes, &m.graph.len));
            m.graph.data = bytes;
            m.n_variables = (size_t)u->n_variables;
            m.variables = number;
            for (int n = 0; n < u->n_variables; n++)
                number[n] = r->variable[u->variable[n]].shard[k].variable;
            t_ok(ch__message_pack(CH_PS_DEFINE, &m.base, 0, NULL, &p));
            ask(&c->a, r->variable[u->variable[0]].shard[k].server, p);
            ch_bytes_free(bytes);
            ch_graph_unref(g);
        }
    }
}

/* ---- a step ---- */

static ch_status no_resource(void *owner, const ch_resource *r, int local, int core, void **out)
{
    (void)owner;
    (void)local, (void)core;
    (void)out;
    return ch__fail(CH_INTERNAL, "a segment has variable %s", r->name);
}

static void run_local_part(ch_step_exec *t, const ch_local_part *s, int64_t rows)
{
    static const ch_run_ops ops = {.resource = no_resource};
    ch_function            *f = NULL;
    ch_tuple               *in = NULL, *out = NULL;
    ch_device              *device = ch_device_current();

    t_ok(ch__step_exec_inputs(t, &in));
    t_ok(ch_function_of_graph("part", s->graph, &f));
    t_ok(ch__run(&(ch_run){.function = f,
                           .owner = t,
                           .ops = &ops,
                           .n_local = 1,
                           .device = &device,
                           .n_replicas = 1,
                           .in = in,
                           .has_rows = true,
                           .global_rows = rows,
                           .step = 0},
                 &out));
    t_ok(ch__step_exec_computed(t, out));
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_function_unref(f);
}

/* Runs a step execution. Every call is made twice, and the second call must change nothing. */
static void run_exec(cluster *c, ch_step_exec *t, int64_t rows)
{
    while (!ch__step_exec_is_done(t)) {
        ch_step_exec_call *const *call = NULL;
        const ch_local_part      *s;
        int                       n = 0;

        t_ok(ch__step_exec_next_calls(t, &n, &call));
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 2; k++) {
                ask(&c->a, call[i]->server, ch__message_ref(call[i]->message));
                t_ok(ch__step_exec_on_reply(t, call[i], c->a.answer));
            }
        while ((s = ch__step_exec_local_part(t)) != NULL)
            run_local_part(t, s, rows);
    }
}

static void compare(cluster *c, const ch_graph *g, const ch_step_exec *t, const ch_tuple *out)
{
    for (int i = 0; i < ch_tuple_count(out); i++)
        same_bits("a result", ch_value_at(ch_tuple_at(out, i), 0),
                  ch__step_exec_result(t, i, 0));
    for (int i = 0; i < c->n; i++) {
        ch_tensor *is = read_back(c, i), *want = NULL;

        t_ok(ch_var_get(g->resource[i].key, &want));
        same_bits(c->variable[i].name, want, is);
        ch_tensor_unref(is);
        ch_tensor_unref(want);
    }
}

static void check_step(ch_step_fn step, job *j, ch_tuple *in, int64_t rows, where at)
{
    static cluster  c;
    static uint64_t function[MOST_VALUES];
    ch_function    *f = NULL;
    ch_step_plan   *plan = NULL;
    ch_graph       *g;
    ch_tensor      *input[8];

    memset(&c, 0, sizeof(c));
    begin(&c.a, &(ch_sim_options){.seed = 1, .encode = true});
    t_ok(ch_function_new("step", step, j, &f));
    t_ok(ch_strategy_run(NULL, f, in, NULL));
    g = ch_function_graph(f);
    create_all(&c, g, at);
    t_ok(ch__step_plan_new(g, c.place, c.axis, &plan));
    for (int i = 0; i < plan->n_remote_parts; i++)
        function[i] = (uint64_t)i * MOST_SHARDS + 1;
    define_all(&c, &(ch_placed_plan){plan, c.n, c.variable, function});
    for (int i = 0; i < ch_tuple_count(in); i++)
        input[i] = ch_value_at(ch_tuple_at(in, i), 0);
    for (uint64_t n = 0; n < 3; n++) {
        ch_placed_plan sent = {plan, c.n, c.variable, function};
        ch_step_exec  *t = NULL;
        ch_tuple      *out = NULL;

        t_ok(ch__step_exec_new(
            &sent,
            &(ch_step_identity){
                .step = n, .retired = n, .worker = "worker/0", .registration = 1},
            1, input, &t));
        run_exec(&c, t, rows);
        t_ok(ch_strategy_run_with(NULL, f, in, &(ch_run_options){.has_step_number = true},
                                  &out));
        compare(&c, g, t, out);
        ch_tuple_unref(out);
        ch__step_exec_free(t);
    }
    ch__step_plan_free(plan);
    ch_function_unref(f);
    ch__message_unref(c.a.answer);
    ch__net_free(c.a.net);
}

static void step_exec_gives_the_results_of_a_local_run(void **state)
{
    (void)state;
    for (int n = 0; n < N_WHERES; n++)
        for (int k = 0; k < 4; k++) {
            ch_tuple *two = rows_of(8),
                     *ids = tuple_of(
                         2, (ch_tensor *[]){ids_of(30, 20), t_noise(ch_shape_of(30, 4), 2)});
            ch_tuple *one = tuple_of(1, (ch_tensor *[]){ids_of(9, 20)});
            job       j;

            make_job(&j);
            t_ok(k == 1 ? ch_optimizer_sgd(0.1, NULL, NULL, &j.optimizer)
                        : ch_optimizer_adam(0.1, NULL, NULL, &j.optimizer));
            if (k == 0)
                check_step(by_hand, &j, two, 8, wheres[n]);
            else if (k == 1)
                check_step(by_optimizer, &j, two, 8, wheres[n]);
            else if (k == 2)
                check_step(look_rows_up, &j, ids, 30, wheres[n]);
            else
                check_step(look_up_twice, &j, one, 9, wheres[n]);
            drop_job(&j);
            ch_tuple_unref(two);
            ch_tuple_unref(ids);
            ch_tuple_unref(one);
        }
}

/* If any allocation fails, a step execution that builds calls returns the error, and can be freed. */
static void asks_without_memory(const ch_placed_plan *sent, ch_tensor *const *input)
{
    ch_status rc = CH_RESOURCE_EXHAUSTED;

    for (int k = 1; rc != CH_OK; k++) {
        ch_step_exec             *t = NULL;
        ch_step_exec_call *const *call = NULL;
        int                       n = 0;

        t_ok(ch__step_exec_new(sent, &(ch_step_identity){.worker = "worker/0"}, 1, input, &t));
        ch__mem_fail_at(k);
        rc = ch__step_exec_next_calls(t, &n, &call);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch__step_exec_free(t);
        assert_true(k < 1000);
    }
}

/* Replies of servers are not trusted: if a reply has fewer rows than were requested, the
 * execution does not read past the end. */
static void step_exec_reports_lack_of_memory_and_rejects_missing_rows(void **state)
{
    static cluster  c;
    static uint64_t function[MOST_VALUES];
    ch_tuple *in = tuple_of(2, (ch_tensor *[]){ids_of(30, 20), t_noise(ch_shape_of(30, 4), 2)});
    ch_tensor                *input[2] = {ch_value_at(ch_tuple_at(in, 0), 0),
                                          ch_value_at(ch_tuple_at(in, 1), 0)};
    ch_function              *f = NULL;
    ch_placed_plan            sent;
    ch_step_exec             *t = NULL;
    ch_step_exec_call *const *call = NULL;
    job                       j;
    int                       n = 0, n_refused = 0;

    (void)state;
    make_job(&j);
    t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &j.optimizer));
    memset(&c, 0, sizeof(c));
    begin(&c.a, &(ch_sim_options){.seed = 1});
    t_ok(ch_function_new("step", look_rows_up, &j, &f));
    t_ok(ch_strategy_run(NULL, f, in, NULL));
    create_all(&c, ch_function_graph(f), wheres[0]);
    sent = (ch_placed_plan){NULL, c.n, c.variable, function};
    t_ok(ch__step_plan_new(ch_function_graph(f), c.place, c.axis, &sent.plan));
    asks_without_memory(&sent, input);
    t_ok(ch__step_exec_new(&sent, &(ch_step_identity){.worker = "worker/0"}, 1, input, &t));
    t_ok(ch__step_exec_next_calls(t, &n, &call));
    for (int i = 0; i < n; i++) {
        ch_tensor  *few = NULL;
        ch_message *p = NULL;

        if (call[i]->message->method != CH_PS_ROWS)
            continue;
        /* 30 ids below 20, each distinct id once with 8 bytes, and their rows */
        assert_in_range((int64_t)call[i]->bytes, 10 * (8 + 3 * 4), 20 * (8 + 3 * 4));
        t_ok(ch_tensor_new(CH_F32, ch_shape_of(19, 3), &few));
        t_ok(ch__message_new(CH_PS_ROWS, 0, NULL, 1, &few, &p));
        t_refused(ch__step_exec_on_reply(t, call[i], p), CH_INTERNAL, "server", "table");
        ch__message_unref(p);
        n_refused++;
    }
    assert_int_equal(n_refused, 1);
    ch__step_exec_free(t);
    ch__step_plan_free(sent.plan);
    ch_function_unref(f);
    ch_tuple_unref(in);
    drop_job(&j);
    ch__message_unref(c.a.answer);
    ch__net_free(c.a.net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_exec_gives_the_results_of_a_local_run),
        cmocka_unit_test(step_exec_reports_lack_of_memory_and_rejects_missing_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
