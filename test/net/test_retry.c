/* test/net/test_retry.c -- retried calls under the simulator: lost, late, repeated, replaced,
 * rejected, cancelled, without room and without memory.
 *
 * A caller task makes retried calls to servers (actor.h) and counts the ends of each. Unless a
 * test has another policy, it uses `usual`, so the times of attempts are known exactly.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "actor.h"

#include <stdlib.h>

#include "cohort/log.h"
#include "net/retry.h"

enum { N_CALLS = 100 };

/* A retried call of the caller, and its outcome. */
typedef struct probe {
    ch_retry  retry; /* must be the first field */
    int       n_ends;
    ch_ending ending;
    ch_status code;
    int64_t   ended_at;
} probe;

typedef struct caller {
    ch_task   *task;
    ch_retries retries;
    probe      call[N_CALLS];
    uint64_t   n_calls;
    int        n_ended;
} caller;

static caller                self;
static actor                 server, other;
static const ch_retry_policy usual = {
    .timeout = 10000000, .pause = 5000000, .patience = INT64_MAX, .ends_if_replaced = true};

static void on_event(void *arg, const ch_net_event *e, int64_t now, ch_outbox *outbox)
{
    caller   *c = arg;
    ch_retry *ended = NULL;
    probe    *p;

    if (e->kind == CH_EVENT_TIMER)
        assert_true(ch__retries_on_timer(&c->retries, e->id, now, outbox));
    if (e->kind != CH_EVENT_REPLY ||
        !ch__retries_on_reply(&c->retries, e, now, outbox, &ended) || ended == NULL)
        return;
    p = (probe *)(void *)ended;
    p->n_ends++;
    p->ending = e->ending;
    p->code = e->fault != NULL ? e->fault->code : CH_OK;
    p->ended_at = now;
    c->n_ended++;
    ch__message_unref(ended->message);
}

static void close_caller(void *arg)
{
    caller   *c = arg;
    ch_retry *r;

    while ((r = ch__retries_cancel_to(&c->retries, NULL, NULL)) != NULL)
        ch__message_unref(r->message);
    ch__retries_free(&c->retries);
}

static ch_status make_caller(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                             void **out)
{
    (void)t;
    (void)incarnation;
    (void)outbox;
    *out = arg;
    return CH_OK;
}

static ch_net *open_net(const ch_sim_options *opt, int room)
{
    static const ch_task_ops ops = {.on_event = on_event, .close = close_caller};
    ch_net                  *net = NULL;

    self = (caller){0};
    server = other = (actor){0};
    if (ch__net_sim(opt, &net) != CH_OK)
        return NULL;
    if (ch__task_start(net,
                       &(ch_task_options){
                           .name = "caller", .ops = &ops, .make = make_caller, .arg = &self},
                       &self.task) == CH_OK &&
        actor_try(net, &server, "server", room, 0) == CH_OK &&
        actor_try(net, &other, "other", 0, 0) == CH_OK)
        return net;
    ch__net_free(net);
    return NULL;
}

/* Makes a retried call; an incarnation of 0 stands for any. NULL: no memory. */
static probe *call_to(const char *peer, ch_retry_policy policy, uint64_t incarnation)
{
    ch_outbox *outbox = ch__task_enter(self.task);
    probe     *p = &self.call[self.n_calls];

    *p = (probe){.retry = {.id = ++self.n_calls,
                           .link = ch__task_link(self.task, peer),
                           .incarnation = incarnation,
                           .message = message_of(7, 32),
                           .policy = policy}};
    if (p->retry.link == NULL || p->retry.message == NULL ||
        ch__retries_add(&self.retries, &p->retry) != CH_OK) {
        ch__message_unref(p->retry.message);
        p = NULL;
    } else {
        ch__retry_call(&p->retry, ch__task_now(self.task), outbox);
    }
    ch__task_leave(self.task);
    return p;
}

static void run_to_rest(ch_net *net)
{
    while (ch__sim_step(net))
        ;
}

/* Runs until just after a time in ms, so that all events of that time have happened. */
static void run_until_ms(ch_net *net, int64_t ms)
{
    ch__sim_run_until(net, ms * ms_ns + ms_ns / 2);
}

/* ---- replies ---- */

static void retry_ends_with_the_first_reply(void **state)
{
    ch_net *net = open_net(NULL, 0);
    probe  *p = call_to("server", usual, 0);

    run_to_rest(net);
    assert_int_equal(p->n_ends, 1);
    assert_int_equal(p->ending, CH_ENDED_OK);
    assert_int_equal(p->retry.n_attempts, 1);
    assert_int_equal(server.n_calls, 1);
    assert_int_equal(self.retries.by_id.n, 0);
    ch__net_free(net);
    (void)state;
}

static void retry_ends_with_the_error_when_the_peer_refuses(void **state)
{
    ch_net *net = open_net(NULL, 0);
    probe  *p;

    server.mode = REFUSE;
    p = call_to("server", usual, 0);
    run_to_rest(net);
    assert_int_equal(p->n_ends, 1);
    assert_int_equal(p->ending, CH_ENDED_ERROR);
    assert_int_equal(p->code, CH_OUT_OF_RANGE);
    assert_int_equal(server.n_calls, 1);
    ch__net_free(net);
    (void)state;
}

static void retry_ends_once_when_messages_are_repeated(void **state)
{
    ch_net *net = open_net(&(ch_sim_options){.seed = 3, .twice = 1000, .late = 300}, 0);

    for (int i = 0; i < 50; i++)
        assert_non_null(call_to("server", usual, 0));
    run_to_rest(net);
    assert_true(server.n_calls >= 100);
    for (int i = 0; i < 50; i++)
        assert_true(self.call[i].n_ends == 1 && self.call[i].ending == CH_ENDED_OK);
    ch__net_free(net);
    (void)state;
}

static void retry_passes_over_a_reply_to_an_earlier_attempt(void **state)
{
    ch_net    *net = open_net(NULL, 0);
    ch_outbox *outbox;
    probe     *p;

    server.mode = KEEP;
    p = call_to("server", usual, 0);
    run_until_ms(net, 16); /* the first attempt is late at 10 ms, the second made at 15 ms */
    assert_int_equal(server.n_calls, 2);
    outbox = ch__task_enter(server.task);
    ch__outbox_reply(outbox, server.kept[0], message_of(7, 1));
    ch__task_leave(server.task);
    run_until_ms(net, 17);
    assert_int_equal(p->n_ends, 0);
    outbox = ch__task_enter(server.task);
    ch__outbox_reply(outbox, server.kept[1], message_of(7, 1));
    ch__task_leave(server.task);
    run_to_rest(net);
    assert_int_equal(p->n_ends, 1);
    assert_int_equal(p->ending, CH_ENDED_OK);
    ch__net_free(net);
    (void)state;
}

/* ---- attempts ---- */

static void retry_sends_the_message_again_when_it_is_late(void **state)
{
    ch_net *net = open_net(NULL, 0);
    probe  *p;

    ch__sim_cut(net, "caller", "server", true);
    p = call_to("server", usual, 0);
    for (int n = 1; n <= 4; n++) { /* attempts at 0, 15, 30 and 45 ms */
        run_until_ms(net, 15 * (n - 1));
        assert_int_equal(p->retry.n_attempts, n);
        assert_true(p->retry.is_open);
        run_until_ms(net, 15 * (n - 1) + 10);
        assert_false(p->retry.is_open);
    }
    assert_int_equal(server.n_calls, 0);
    ch__sim_cut(net, "caller", "server", false);
    run_to_rest(net);
    assert_int_equal(p->n_ends, 1);
    assert_int_equal(p->retry.n_attempts, 5);
    assert_int_equal(p->retry.since, 0);
    assert_int_equal(server.n_calls, 1);
    ch__net_free(net);
    (void)state;
}

static void retry_doubles_the_timeout_as_often_as_the_policy_says(void **state)
{
    static const int64_t at_ms[] = {0, 15, 40, 85, 130}; /* 10, 20, 40 and 40 ms, and pauses */
    ch_net              *net = open_net(NULL, 0);
    ch_retry_policy      policy = usual;
    probe               *p;

    policy.doublings = 2;
    ch__sim_cut(net, "caller", "server", true);
    p = call_to("server", policy, 0);
    for (int n = 1; n < (int)(sizeof(at_ms) / sizeof(at_ms[0])); n++) {
        run_until_ms(net, at_ms[n] - 1);
        assert_int_equal(p->retry.n_attempts, n);
        run_until_ms(net, at_ms[n]);
        assert_int_equal(p->retry.n_attempts, n + 1);
    }
    ch__net_free(net);
    (void)state;
}

static void retry_sends_the_message_again_when_it_is_lost(void **state)
{
    ch_net *net = open_net(NULL, 0);
    probe  *p = call_to("nobody", usual, 0);

    run_until_ms(net, 4); /* there is no such task: the attempt ends at once */
    assert_int_equal(p->retry.n_attempts, 1);
    assert_false(p->retry.is_open);
    run_until_ms(net, 26);
    assert_in_range(p->retry.n_attempts, 5, 6);
    assert_int_equal(p->n_ends, 0);
    ch__net_free(net);
    (void)state;
}

static void retry_waits_when_the_link_has_no_room(void **state)
{
    ch_net    *net = open_net(NULL, 1);
    ch_outbox *outbox;
    probe     *first, *second;

    server.mode = KEEP;
    first = call_to("server", usual, 0);
    second = call_to("server", usual, 0);
    run_until_ms(net, 3);
    assert_int_equal(server.n_calls, 1);
    server.mode = ECHO;
    outbox = ch__task_enter(server.task);
    ch__outbox_reply(outbox, server.kept[0], message_of(7, 1));
    ch__task_leave(server.task);
    run_to_rest(net);
    assert_int_equal(first->retry.n_attempts, 1);
    assert_int_equal(second->retry.n_attempts, 2);
    assert_true(first->ending == CH_ENDED_OK && second->ending == CH_ENDED_OK);
    ch__net_free(net);
    (void)state;
}

static void retry_ends_when_its_patience_is_used_up(void **state)
{
    ch_net         *net = open_net(NULL, 0);
    ch_retry_policy policy = usual;
    probe          *p;

    policy.patience = 39 * ms_ns; /* attempts end at 10, 25 and 40 ms */
    ch__sim_cut(net, "caller", "server", true);
    p = call_to("server", policy, 0);
    run_to_rest(net);
    assert_int_equal(p->n_ends, 1);
    assert_int_equal(p->ending, CH_ENDED_TIMEOUT);
    assert_int_equal(p->code, CH_DEADLINE_EXCEEDED);
    assert_int_equal(p->ended_at, 40 * ms_ns);
    assert_int_equal(p->retry.n_attempts, 3);
    ch__net_free(net);
    (void)state;
}

/* ---- peers that restart ---- */

static void retry_reaches_the_next_incarnation_unless_it_names_one(void **state)
{
    ch_net *net = open_net(NULL, 0);
    probe  *p;

    server.mode = KEEP;
    p = call_to("server", usual, 0);
    run_until_ms(net, 1);
    ch__task_kill(server.task);
    server.mode = ECHO;
    assert_int_equal(ch__task_restart(server.task), CH_OK);
    run_to_rest(net);
    assert_int_equal(p->n_ends, 1);
    assert_int_equal(p->ending, CH_ENDED_OK);
    ch__net_free(net);
    (void)state;
}

static void retry_ends_when_the_peer_was_replaced(void **state)
{
    ch_net *net = open_net(NULL, 0);
    probe  *p;

    ch__task_kill(server.task);
    assert_int_equal(ch__task_restart(server.task), CH_OK);
    p = call_to("server", usual, server.incarnation - 1);
    run_to_rest(net);
    assert_int_equal(p->n_ends, 1);
    assert_int_equal(p->ending, CH_ENDED_REPLACED);
    assert_int_equal(p->retry.n_attempts, 1);
    assert_int_equal(server.n_calls, 0);
    ch__net_free(net);
    (void)state;
}

static void retry_goes_on_when_the_peer_was_replaced_and_the_policy_allows_it(void **state)
{
    ch_net         *net = open_net(NULL, 0);
    ch_retry_policy policy = usual;
    probe          *p;

    policy.ends_if_replaced = false;
    policy.patience = 12 * ms_ns;
    ch__task_kill(server.task);
    assert_int_equal(ch__task_restart(server.task), CH_OK);
    p = call_to("server", policy, server.incarnation - 1);
    run_to_rest(net);
    assert_int_equal(p->n_ends, 1);
    assert_int_equal(p->ending, CH_ENDED_REPLACED);
    assert_int_equal(p->retry.n_attempts, 4); /* about 5 ms apart: the last ends after 12 ms */
    ch__net_free(net);
    (void)state;
}

/* ---- cancelling ---- */

static ch_retry *cancel(uint64_t id)
{
    ch_outbox *outbox = ch__task_enter(self.task);
    ch_retry  *r = ch__retries_cancel(&self.retries, id, outbox);

    ch__task_leave(self.task);
    if (r != NULL)
        ch__message_unref(r->message);
    return r;
}

static void retry_cancelled_while_pending_cancels_its_call_and_reports_no_end(void **state)
{
    ch_net *net = open_net(NULL, 0);
    probe  *p;

    server.mode = KEEP;
    p = call_to("server", usual, 0);
    run_until_ms(net, 1);
    assert_ptr_equal(cancel(p->retry.id), &p->retry);
    assert_null(cancel(p->retry.id));
    run_until_ms(net, 3); /* before the deadline; the peer is cancelled */
    assert_int_equal(server.n_cancels, 1);
    run_to_rest(net);
    assert_int_equal(p->n_ends, 0);
    assert_int_equal(p->retry.n_attempts, 1);
    ch__net_free(net);
    (void)state;
}

static void retry_cancelled_between_attempts_makes_no_further_one(void **state)
{
    ch_net *net = open_net(NULL, 0);
    probe  *p;

    ch__sim_cut(net, "caller", "server", true);
    p = call_to("server", usual, 0);
    run_until_ms(net, 12);
    assert_false(p->retry.is_open);
    assert_ptr_equal(cancel(p->retry.id), &p->retry);
    run_to_rest(net);
    assert_int_equal(p->retry.n_attempts, 1);
    assert_int_equal(p->n_ends, 0);
    ch__net_free(net);
    (void)state;
}

static void retries_cancel_to_returns_the_calls_to_that_peer_alone(void **state)
{
    ch_net    *net = open_net(NULL, 0);
    ch_outbox *outbox;
    ch_link   *link;
    ch_retry  *r;
    int        n = 0;

    server.mode = other.mode = KEEP;
    for (int i = 0; i < 40; i++)
        assert_non_null(call_to(i % 4 == 0 ? "other" : "server", usual, 0));
    run_until_ms(net, 1);
    outbox = ch__task_enter(self.task);
    link = ch__task_link(self.task, "server");
    while ((r = ch__retries_cancel_to(&self.retries, link, outbox)) != NULL) {
        assert_ptr_equal(r->link, link);
        ch__message_unref(r->message);
        n++;
    }
    ch__task_leave(self.task);
    other.mode = ECHO;
    run_to_rest(net);
    assert_int_equal(n, 30);
    assert_int_equal(server.n_cancels, 30);
    for (int i = 0; i < 40; i++)
        assert_int_equal(self.call[i].n_ends, i % 4 == 0);
    ch__net_free(net);
    (void)state;
}

static void retries_pass_over_events_of_other_calls(void **state)
{
    ch_net      *net = open_net(NULL, 0);
    ch_net_event e = {.kind = CH_EVENT_REPLY, .ending = CH_ENDED_OK, .id = 77};
    ch_retry    *ended = NULL;
    ch_outbox   *outbox = ch__task_enter(self.task);

    assert_false(ch__retries_on_reply(&self.retries, &e, 0, outbox, &ended));
    assert_null(ended);
    assert_false(ch__retries_on_timer(&self.retries, 77, 0, outbox));
    assert_null(ch__retries_cancel_to(&self.retries, NULL, outbox));
    ch__task_leave(self.task);
    ch__net_free(net);
    (void)state;
}

/* ---- memory ---- */

static void ignore(const ch_log_record *r, void *arg)
{
    (void)r;
    (void)arg;
}

/* A call succeeds, or is rejected when it is added, or the caller's incarnation ends. */
static void make_calls_with_little_memory(void)
{
    ch_net *net = open_net(&(ch_sim_options){.seed = 5, .drop = 200, .encode = true}, 0);
    int     n = 0;

    if (net == NULL)
        return;
    for (int i = 0; i < 20; i++)
        n += ch__task_self(self.task) != NULL && call_to("server", usual, 0) != NULL;
    run_to_rest(net);
    assert_true(self.n_ended == n || ch__task_self(self.task) == NULL ||
                ch__task_self(server.task) == NULL);
    for (int i = 0; i < N_CALLS; i++)
        assert_true(self.call[i].n_ends <= 1);
    ch__net_free(net);
}

static void retry_ends_once_when_any_allocation_fails(void **state)
{
    ch_log_set_sink(ignore, NULL, CH_LOG_ERROR);
    for (int64_t n = 1, before, live = ch__mem_live(); n < 2000; n++) {
        before = ch__mem_allocs();
        ch__mem_fail_at(n);
        make_calls_with_little_memory();
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
        if (ch__mem_allocs() - before < n) {
            ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
            return;
        }
    }
    fail_msg("the scenario never ends");
    (void)state;
}

static void retries_stay_as_they_were_when_there_is_no_memory_for_another(void **state)
{
    ch_net *net = open_net(NULL, 0);
    probe   extra = {.retry = {.id = 50}};

    ch__mem_fail_at(1);
    assert_int_equal(ch__retries_add(&self.retries, &extra.retry), CH_RESOURCE_EXHAUSTED);
    ch__mem_fail_at(0);
    assert_int_equal(self.retries.by_id.n, 0);
    assert_non_null(call_to("server", usual, 0));
    run_to_rest(net);
    assert_int_equal(self.n_ended, 1);
    ch__net_free(net);
    (void)state;
}

/* ---- all faults together ---- */

static void kill_server(void *arg)
{
    (void)arg;
    ch__task_kill(server.task);
}

static void restart_server(void *arg)
{
    (void)arg;
    assert_int_equal(ch__task_restart(server.task), CH_OK);
}

static void heal(void *arg)
{
    ch__sim_faults(arg, NULL);
}

static void retry_ends_with_a_reply_whatever_happens_before(void **state)
{
    const char *cases = getenv("T_CASES");
    int         n = cases != NULL ? atoi(cases) : 100;
    int64_t     live = ch__mem_live();

    for (uint64_t seed = 1; seed <= (uint64_t)n; seed++) {
        ch_net *net = open_net(&(ch_sim_options){.seed = seed,
                                                 .drop = (int)(seed % 6) * 100,
                                                 .twice = (int)(seed % 3) * 200,
                                                 .late = (int)(seed % 5) * 100,
                                                 .encode = true},
                               1 + (int)(seed % 8));

        assert_int_equal(ch__sim_at(net, 20 * ms_ns, kill_server, NULL), CH_OK);
        assert_int_equal(ch__sim_at(net, 60 * ms_ns, restart_server, NULL), CH_OK);
        assert_int_equal(ch__sim_at(net, 100 * ms_ns, heal, net), CH_OK);
        for (int i = 0; i < 30; i++) {
            assert_non_null(call_to("server", usual, 0));
            run_until_ms(net, i);
        }
        run_to_rest(net);
        for (int i = 0; i < 30; i++)
            assert_true(self.call[i].n_ends == 1 && self.call[i].ending == CH_ENDED_OK);
        assert_int_equal(self.retries.by_id.n, 0);
        ch__net_free(net);
        assert_int_equal(ch__mem_live(), live);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retry_ends_with_the_first_reply),
        cmocka_unit_test(retry_ends_with_the_error_when_the_peer_refuses),
        cmocka_unit_test(retry_ends_once_when_messages_are_repeated),
        cmocka_unit_test(retry_passes_over_a_reply_to_an_earlier_attempt),
        cmocka_unit_test(retry_sends_the_message_again_when_it_is_late),
        cmocka_unit_test(retry_doubles_the_timeout_as_often_as_the_policy_says),
        cmocka_unit_test(retry_sends_the_message_again_when_it_is_lost),
        cmocka_unit_test(retry_waits_when_the_link_has_no_room),
        cmocka_unit_test(retry_ends_when_its_patience_is_used_up),
        cmocka_unit_test(retry_reaches_the_next_incarnation_unless_it_names_one),
        cmocka_unit_test(retry_ends_when_the_peer_was_replaced),
        cmocka_unit_test(retry_goes_on_when_the_peer_was_replaced_and_the_policy_allows_it),
        cmocka_unit_test(retry_cancelled_while_pending_cancels_its_call_and_reports_no_end),
        cmocka_unit_test(retry_cancelled_between_attempts_makes_no_further_one),
        cmocka_unit_test(retries_cancel_to_returns_the_calls_to_that_peer_alone),
        cmocka_unit_test(retries_pass_over_events_of_other_calls),
        cmocka_unit_test(retry_ends_once_when_any_allocation_fails),
        cmocka_unit_test(retries_stay_as_they_were_when_there_is_no_memory_for_another),
        cmocka_unit_test(retry_ends_with_a_reply_whatever_happens_before),
    };

    return cmocka_run_group_tests_name("retry", tests, NULL, NULL);
}
