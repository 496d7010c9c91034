/* test/job/test_message.c -- the table of methods, and the dispatch of calls to handlers.
 *
 * The task reader/0 has a role with two handlers. The tests send it valid and invalid calls,
 * and check its replies, also if allocations fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../net/actor.h"
#include "job/coordinator/heartbeat.h"
#include "job/dispatch.h"
#include "job/local_cluster.h"
#include "net/wire.h"

static actor client;

/* ---- methods ---- */

static void methods_have_a_name_and_message_types(void **state)
{
    int n = 0;

    for (uint32_t i = 0; i < CH_METHOD_END; i++) {
        const ch_method *m = ch__method(i);

        if (m == NULL)
            continue;
        n++;
        assert_true(m->name[0] != '\0');
        assert_non_null(m->request);
        assert_non_null(m->reply);
    }
    assert_int_equal(n, 19);
    assert_null(ch__method(0));
    assert_null(ch__method(CH_METHOD_END));
    assert_null(ch__method(UINT32_MAX));
    (void)state;
}

/* ---- who may call ---- */

static void every_method_has_callers(void **state)
{
    for (uint32_t i = 0; i < CH_METHOD_END; i++) {
        const ch_method     *m = ch__method(i);
        const ch_net_method *c = &ch__method_callers[i];

        assert_true((m != NULL) == (c->name != NULL));
        if (m == NULL)
            continue;
        assert_string_equal(c->name, m->name);
        assert_int_equal(c->callers & ~(unsigned)(CH_ROLE_COORDINATOR | CH_ROLE_WORKER), 0);
        assert_true(c->callers != 0);
        if (i >= CH_WORKER_FUNCTION)
            assert_int_equal(c->callers, CH_ROLE_COORDINATOR);
    }
    assert_int_equal(ch__method_callers[CH_PS_UPDATE].callers, CH_ROLE_WORKER);
    assert_int_equal(ch__method_callers[CH_PS_FENCE].callers, CH_ROLE_COORDINATOR);
    (void)state;
}

/* Calls a method of a task of a local cluster, as a task of this name. */
static void call_as(const char *name, const char *callee, uint32_t method)
{
    ch_net           *own = NULL;
    ch_local_cluster *cluster = NULL;
    static actor      a;
    ch_outbox        *outbox;

    a = (actor){0};
    assert_int_equal(ch__net_sim(NULL, &own), CH_OK);
    assert_int_equal(
        ch__local_cluster_new_on(own, &(ch_local_cluster_options){.ps = 1, .workers = 1},
                                 &(ch_local_cluster_task_options){0}, &cluster),
        CH_OK);
    actor_start(own, &a, name);
    outbox = ch__task_enter(a.task);
    actor_post(&a, outbox, callee, message_of(method, 0), s_ns, 0);
    ch__task_leave(a.task);
    actor_wait(&a, &a.n_ended, 1);
    client.status = a.status;
    memcpy(client.text, a.text, sizeof(client.text));
    ch_local_cluster_unref(cluster);
}

static void tasks_of_a_job_refuse_calls_of_other_roles(void **state)
{
    client = (actor){0};
    call_as("worker/7", "ps/0", CH_PS_FENCE);
    assert_int_equal(client.status, CH_PERMISSION_DENIED);
    assert_string_equal(
        client.text, "call of fence (method 7) by worker/7: the role worker may not call it");
    call_as("ps/7", "worker/0", CH_WORKER_RUN);
    assert_int_equal(client.status, CH_PERMISSION_DENIED);
    call_as("chief/7", "ps/0", CH_PS_UPDATE);
    assert_int_equal(client.status, CH_PERMISSION_DENIED);
    call_as("someone", "ps/0", CH_PS_READ);
    assert_int_equal(client.status, CH_PERMISSION_DENIED);
    call_as("chief/7", "ps/0", CH_PS_PING);
    assert_int_equal(client.status, CH_OK);
    (void)state;
}

/* ---- signs of life ---- */

static void heartbeat_counts_ticks_without_any_frame(void **state)
{
    ch_link      l = {0};
    ch_heartbeat p = {0};

    for (int i = 1; i <= 5; i++) {
        (void)ch__heartbeat_tick(&p, &l, 100, false);
        assert_int_equal(p.n_silent, i);
    }
    ch__link_received(&l, 7); /* a part of a large reply, say */
    (void)ch__heartbeat_tick(&p, &l, 100, false);
    assert_int_equal(p.n_silent, 1);
    (void)ch__heartbeat_tick(&p, &l, 100, false);
    assert_int_equal(p.n_silent, 2);
    (void)state;
}

/* ---- a role ---- */

static int n_read;

static ch_status on_read(const ch_received *r, const void *request)
{
    const Cohort__PsRead *m = request;
    Cohort__PsReply       done;

    assert_ptr_equal(r->self, &n_read);
    n_read += (int)m->n_variables;
    cohort__ps_reply__init(&done);
    return ch__reply(r, &done.base, 0, NULL);
}

static ch_status on_fence(const ch_received *r, const void *request)
{
    (void)r;
    (void)request;
    return ch__fail(CH_ABORTED, "no fence today");
}

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox)
{
    static const ch_role role = {.name = "a reader",
                                 .handler = {[CH_PS_READ] = on_read, [CH_PS_FENCE] = on_fence}};

    if (e->kind == CH_EVENT_CALL)
        ch__dispatch(&role, self, e, now, outbox);
}

static void close_reader(void *self)
{
    (void)self;
}

static ch_status make_reader(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                             void **self)
{
    (void)t;
    (void)incarnation;
    (void)outbox;
    *self = arg;
    return CH_OK;
}

static ch_net *net;

static int open_net(void **state)
{
    static const ch_task_ops ops = {.on_event = on_event, .close = close_reader};
    ch_task                 *t = NULL;

    (void)state;
    n_read = 0;
    client = (actor){0};
    if (ch__net_sim(NULL, &net) != CH_OK)
        return 1;
    actor_start(net, &client, "client");
    return ch__task_start(
               net,
               &(ch_task_options){
                   .name = "reader/0", .ops = &ops, .make = make_reader, .arg = &n_read},
               &t) != CH_OK;
}

static int close_net(void **state)
{
    (void)state;
    ch__net_free(net);
    return 0;
}

/* Calls the reader, and waits for the end of the call. */
static void call(ch_message *p)
{
    ch_outbox *outbox = ch__task_enter(client.task);

    actor_post(&client, outbox, "reader/0", p, s_ns, 0);
    ch__task_leave(client.task);
    actor_wait(&client, &client.n_ended, client.n_ended + 1);
}

static ch_message *read_of(int n)
{
    static uint64_t number[4] = {1, 2, 3, 4};
    Cohort__PsRead  m;
    ch_message     *p = NULL;

    cohort__ps_read__init(&m);
    m.n_variables = (size_t)n;
    m.variables = number;
    assert_int_equal(ch__message_pack(CH_PS_READ, &m.base, 0, NULL, &p), CH_OK);
    return p;
}

static void is_refused(ch_status code, const char *op, const char *text)
{
    assert_int_equal(client.ended[CH_ENDED_ERROR], 1);
    assert_int_equal(client.status, code);
    assert_string_equal(client.op, op);
    assert_string_equal(client.text, text);
    assert_int_equal(n_read, 0);
}

static void dispatch_passes_the_request_to_the_handler_of_its_method(void **state)
{
    call(read_of(3));
    assert_int_equal(client.ended[CH_ENDED_OK], 1);
    assert_int_equal(client.answer->method, CH_PS_READ);
    assert_int_equal(n_read, 3);
    (void)state;
}

static void dispatch_names_the_method_when_the_request_is_not_valid(void **state)
{
    call(message_of(CH_PS_READ, 10)); /* field number 0 is invalid */
    is_refused(CH_INVALID_ARGUMENT, "read", "10 bytes are not a valid PsRead message");
    (void)state;
}

static void dispatch_names_the_method_when_the_role_does_not_have_it(void **state)
{
    call(message_of(CH_WORKER_RUN, 0));
    is_refused(CH_UNIMPLEMENTED, "run", "a reader has no method 33");
    (void)state;
}

static void dispatch_says_the_number_when_there_is_no_such_method(void **state)
{
    call(message_of(4000000000u, 0));
    is_refused(CH_UNIMPLEMENTED, "call", "a reader has no method 4000000000");
    (void)state;
}

static void dispatch_names_the_method_when_the_handler_fails(void **state)
{
    call(message_of(CH_PS_FENCE, 0));
    is_refused(CH_ABORTED, "fence", "no fence today");
    (void)state;
}

/* If there is no memory for the reply, the call is rejected or lost. It never has two
 * replies. */
static void dispatch_replies_once_when_any_allocation_fails(void **state)
{
    call(read_of(1)); /* creates the link */
    for (int64_t n = 1, before; n < 100; n++) {
        ch_message *p = read_of(1);
        int         ended;

        before = ch__mem_allocs();
        ch__mem_fail_at(n);
        call(p);
        ch__mem_fail_at(0);
        ended = client.ended[CH_ENDED_OK] + client.ended[CH_ENDED_ERROR] +
                client.ended[CH_ENDED_TIMEOUT] + client.ended[CH_ENDED_LOST];
        assert_int_equal(ended, client.n_ended);
        assert_int_equal(client.n_ended, n + 1);
        if (ch__mem_allocs() - before < n) {
            assert_true(client.ended[CH_ENDED_ERROR] > 0);
            return;
        }
    }
    fail_msg("the call never ends");
    (void)state;
}

#define WITH_READER(test) cmocka_unit_test_setup_teardown(test, open_net, close_net)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_have_a_name_and_message_types),
        cmocka_unit_test(every_method_has_callers),
        cmocka_unit_test(tasks_of_a_job_refuse_calls_of_other_roles),
        cmocka_unit_test(heartbeat_counts_ticks_without_any_frame),
        WITH_READER(dispatch_passes_the_request_to_the_handler_of_its_method),
        WITH_READER(dispatch_names_the_method_when_the_request_is_not_valid),
        WITH_READER(dispatch_names_the_method_when_the_role_does_not_have_it),
        WITH_READER(dispatch_says_the_number_when_there_is_no_such_method),
        WITH_READER(dispatch_names_the_method_when_the_handler_fails),
        WITH_READER(dispatch_replies_once_when_any_allocation_fails),
    };

    return cmocka_run_group_tests_name("message", tests, NULL, NULL);
}
