/* test/net/test_engines.c -- the tests that every engine of the network must pass: calls,
 * incarnations, room, timers and work, waits, memory.
 *
 * Each test runs with the inproc engine and with the simulator. A client and a server (actor.h)
 * call each other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "actor.h"

#include <stdio.h>

#include "cohort/log.h"
#include "net/wire.h"

static int64_t live;
static ch_net *net;
static bool    is_sim;
static actor   client, server;

static int open_net(ch_status rc)
{
    client = server = (actor){0};
    return rc == CH_OK ? 0 : -1;
}

static int open_inproc(void **state)
{
    (void)state;
    is_sim = false;
    live = ch__mem_live();
    return open_net(ch__net_inproc(NULL, &net));
}

static int open_sim(void **state)
{
    (void)state;
    is_sim = true;
    live = ch__mem_live();
    return open_net(ch__net_sim(&(ch_sim_options){.seed = 7, .encode = true}, &net));
}

static int close_net(void **state)
{
    (void)state;
    ch__net_free(net);
    if (client.n_closed != client.n_made || server.n_closed != server.n_made)
        return -1;
    if (ch__mem_live() != live)
        fprintf(stderr, "%lld blocks are left\n", (long long)(ch__mem_live() - live));
    return ch__mem_live() == live ? 0 : -1;
}

static void start_both(void)
{
    actor_start(net, &client, "client");
    actor_start(net, &server, "server");
}

/* ---- calls ---- */

static void reply_carries_the_bytes_and_tensors_of_the_call(void **state)
{
    const float data[] = {1, 2, 3, 4, 5, 6};
    ch_tensor  *t[2] = {NULL}, *turned = NULL;
    ch_message *p = NULL;
    ch_outbox  *outbox;
    void       *bytes;
    ch_str      s;

    start_both();
    assert_int_equal(ch_tensor_copy_of(CH_F32, ch_shape_of(2, 3), data, &t[0]), CH_OK);
    assert_int_equal(ch_tensor_transpose(t[0], (const int[]){1, 0}, &turned), CH_OK);
    ch_tensor_unref(t[0]);
    t[0] = turned;
    assert_int_equal(ch_tensor_of_text("a text", &t[1]), CH_OK);
    assert_int_equal(ch__message_new(9, 5, &bytes, 2, t, &p), CH_OK);
    memcpy(bytes, "hello", 5);
    assert_int_equal(ch__message_size(p), 5 + 24 + 16 + 6);
    outbox = ch__task_enter(client.task);
    actor_post(&client, outbox, "server", p, 10 * s_ns, 0);
    ch__task_leave(client.task);
    actor_wait(&client, &client.ended[CH_ENDED_OK], 1);

    ch__task_enter(client.task);
    assert_int_equal(client.answer->method, 9);
    assert_int_equal(client.answer->n_bytes, 5);
    assert_memory_equal(client.answer->bytes, "hello", 5);
    assert_int_equal(client.answer->n_tensors, 2);
    for (int i = 0; i < 6; i++) {
        double x;

        assert_int_equal(
            ch_tensor_get(client.answer->tensor[0], (const int64_t[]){i % 3, i / 3}, &x),
            CH_OK);
        assert_true(x == data[i]);
    }
    assert_int_equal(ch_tensor_str(client.answer->tensor[1], NULL, &s), CH_OK);
    assert_true(s.size == 6 && memcmp(s.data, "a text", 6) == 0);
    assert_string_equal(client.answerer.name, "server");
    assert_int_equal(client.answerer.incarnation, server.incarnation);
    assert_int_equal(client.last_id, 1);
    ch__task_leave(client.task);
    ch__task_enter(server.task);
    assert_string_equal(server.caller.name, "client");
    assert_int_equal(server.caller.incarnation, client.incarnation);
    ch__task_leave(server.task);
    (void)state;
}

static void error_reply_names_the_task_and_the_reason(void **state)
{
    start_both();
    server.mode = REFUSE;
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.ended[CH_ENDED_ERROR], 1);
    assert_int_equal(client.status, CH_OUT_OF_RANGE);
    assert_string_equal(client.text, "row 7 of 5");
    assert_string_equal(client.by, "server");
    (void)state;
}

static void second_reply_to_a_call_is_ignored(void **state)
{
    start_both();
    server.mode = ANSWER_TWICE;
    for (int i = 1; i <= 20; i++) {
        actor_call(&client, "server", 0);
        actor_wait(&client, &client.n_ended, i);
    }
    assert_int_equal(client.ended[CH_ENDED_OK], 20);
    (void)state;
}

static void call_ends_at_its_deadline_and_is_cancelled_at_the_callee(void **state)
{
    ch_outbox *outbox;

    start_both();
    server.mode = KEEP;
    outbox = ch__task_enter(client.task);
    actor_post(&client, outbox, "server", message_of(1, 8), 5 * ms_ns, 0);
    ch__task_leave(client.task);
    actor_wait(&client, &client.ended[CH_ENDED_TIMEOUT], 1);
    assert_int_equal(client.status, CH_DEADLINE_EXCEEDED);
    assert_string_equal(client.text, "call to server: no reply before the deadline");
    actor_wait(&server, &server.n_cancels, 1);
    outbox = ch__task_enter(server.task);
    ch__outbox_reply(outbox, server.kept[0], message_of(1, 8)); /* the call has ended */
    ch__task_leave(server.task);
    server.mode = ECHO;
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.n_ended, 2);
    assert_int_equal(client.ended[CH_ENDED_OK], 1);
    (void)state;
}

static void a_call_can_be_cancelled(void **state)
{
    ch_outbox *outbox;

    start_both();
    server.mode = KEEP;
    actor_call(&client, "server", 0);
    actor_wait(&server, &server.n_calls, 1);
    outbox = ch__task_enter(client.task);
    ch__outbox_cancel(outbox, 1);
    ch__outbox_cancel(outbox, 1);
    ch__outbox_cancel(outbox, 99);
    assert_int_equal(client.n_ended, 0); /* no event during the turn */
    ch__task_leave(client.task);
    actor_wait(&client, &client.ended[CH_ENDED_CANCELLED], 1);
    actor_wait(&server, &server.n_cancels, 1);
    assert_int_equal(client.n_ended, 1);
    (void)state;
}

static void call_to_a_missing_task_is_lost(void **state)
{
    actor_start(net, &client, "client");
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.ended[CH_ENDED_LOST], 1);
    assert_int_equal(client.status, CH_UNAVAILABLE);
    actor_start(net, &server, "server"); /* the server starts later */
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.ended[CH_ENDED_OK], 1);
    (void)state;
}

/* ---- incarnations ---- */

static void calls_to_a_killed_task_are_lost(void **state)
{
    start_both();
    server.mode = KEEP;
    for (int i = 0; i < 5; i++)
        actor_call(&client, "server", 0);
    actor_wait(&server, &server.n_calls, 3);
    ch__task_kill(server.task);
    ch__task_kill(server.task);
    assert_int_equal(server.n_closed, 1);
    actor_wait(&client, &client.n_ended, 5);
    /* The simulator may lose the notice. Then the call ends at its deadline. */
    assert_int_equal(client.ended[CH_ENDED_LOST] + client.ended[CH_ENDED_TIMEOUT], 5);
    if (!is_sim)
        assert_int_equal(client.ended[CH_ENDED_LOST], 5);
    (void)state;
}

static void calls_of_a_killed_task_are_cancelled(void **state)
{
    start_both();
    server.mode = KEEP;
    for (int i = 0; i < 5; i++)
        actor_call(&client, "server", 0);
    actor_wait(&server, &server.n_calls, 5);
    ch__task_kill(client.task);
    actor_wait(&server, &server.n_cancels, 5);
    assert_int_equal(client.n_ended, 0);
    (void)state;
}

static void restarted_task_has_a_larger_incarnation(void **state)
{
    uint64_t   first;
    ch_outbox *outbox;

    start_both();
    first = server.incarnation;
    assert_int_equal(ch__task_restart(server.task), CH_FAILED_PRECONDITION);
    server.mode = KEEP;
    actor_call(&client, "server", first);
    actor_wait(&server, &server.n_calls, 1);
    ch__task_kill(server.task);
    assert_null(ch__task_self(server.task));
    assert_int_equal(ch__task_restart(server.task), CH_OK);
    assert_true(server.incarnation > first);
    outbox = ch__task_enter(server.task);
    ch__outbox_reply(outbox, server.kept[0],
                     message_of(1, 1)); /* of the earlier incarnation: dropped */
    server.mode = ECHO;
    ch__task_leave(server.task);
    actor_wait(&client, &client.n_ended, 1);
    assert_int_equal(client.ended[CH_ENDED_OK], 0);

    actor_call(&client, "server", first);
    actor_wait(&client, &client.ended[CH_ENDED_REPLACED], 1);
    assert_int_equal(client.status, CH_ABORTED);
    assert_int_equal(client.answerer.incarnation, server.incarnation);
    actor_call(&client, "server", server.incarnation);
    actor_wait(&client, &client.ended[CH_ENDED_OK], 1);
    assert_int_equal(server.n_calls, 2);
    (void)state;
}

/* Two nets number their incarnations as two processes do. */
static void incarnations_are_unique_and_growing(void **state)
{
    enum { N = 20 };
    const uint64_t ms = 1700000000000;
    uint64_t       seen[N], other;
    ch_net        *second = NULL;
    actor          in_second = {0};
    ch_status      st = is_sim ? ch__net_sim(&(ch_sim_options){.seed = 8}, &second)
                               : ch__net_inproc(NULL, &second);

    assert_int_equal(st, CH_OK);
    actor_start(second, &in_second, "server");
    other = in_second.incarnation;
    ch__net_free(second);
    start_both();
    for (int i = 0; i < N; i++) {
        seen[i] = server.incarnation;
        assert_true(seen[i] >> 20 >= ms && seen[i] >> 62 == 0 && seen[i] != other);
        assert_true(i == 0 || seen[i] > seen[i - 1]);
        assert_true(seen[i] != client.incarnation);
        ch__task_kill(server.task);
        assert_int_equal(ch__task_restart(server.task), CH_OK);
    }
    (void)state;
}

static void incarnation_number_is_the_time_and_random_bits(void **state)
{
    assert_true(ch__incarnation_number(5, 0xabcdef012345, 0) == (5u << 20 | 0x12345));
    /* The clock was set back by an hour. */
    assert_true(ch__incarnation_number(5, 1, 7u << 20) == (7u << 20) + 1);
    (void)state;
}

static void task_start_that_fails_leaves_nothing(void **state)
{
    actor *a = &client;
    char   name[80];

    memset(name, 'x', sizeof(name));
    name[64] = '\0';
    assert_int_equal(actor_try(net, a, name, 0, 0), CH_INVALID_ARGUMENT);
    assert_int_equal(actor_try(net, a, "", 0, 0), CH_INVALID_ARGUMENT);
    assert_int_equal(actor_try(net, a, "client", -1, 0), CH_INVALID_ARGUMENT);
    a->fails_to_begin = 1;
    assert_int_equal(actor_try(net, a, "client", 0, 0), CH_ABORTED);
    assert_string_equal(ch_error_message(), "task client: it does not want to");
    a->fails_to_begin = 0;
    actor_start(net, a, "client");
    assert_int_equal(actor_try(net, a, "client", 0, 0), CH_ALREADY_EXISTS);
    ch__task_kill(a->task);
    assert_int_equal(actor_try(net, a, "client", 0, 0), CH_ALREADY_EXISTS);
    a->fails_to_begin = 1;
    assert_int_equal(ch__task_restart(a->task), CH_ABORTED);
    a->fails_to_begin = 0;
    assert_int_equal(ch__task_restart(a->task), CH_OK);
    assert_int_equal(a->n_timers, 0);
    (void)state;
}

/* ---- room ---- */

static void link_limits_the_number_of_calls(void **state)
{
    ch_outbox *outbox;
    ch_link   *l;

    actor_start(net, &client, "client");
    assert_int_equal(actor_try(net, &server, "server", 4, 0), CH_OK);
    server.mode = KEEP;
    outbox = ch__task_enter(client.task);
    l = ch__task_link(client.task, "server");
    assert_ptr_equal(ch__task_link(client.task, "server"), l);
    assert_string_equal(ch__link_name(l), "server");
    assert_int_equal(ch__link_calls(l), 4);
    for (int i = 0; i < 6; i++)
        actor_post(&client, outbox, "server", message_of(1, 1), 10 * s_ns, 0);
    assert_int_equal(ch__link_calls(l), 0);
    assert_int_equal(ch__link_bytes(l), 0);
    ch__task_leave(client.task);
    actor_wait(&client, &client.ended[CH_ENDED_NO_ROOM], 2);
    actor_wait(&server, &server.n_calls, 4);
    assert_int_equal(client.n_ended, 2);
    outbox = ch__task_enter(server.task);
    ch__outbox_reply(outbox, server.kept[0], message_of(1, 1));
    ch__task_leave(server.task);
    actor_wait(&client, &client.ended[CH_ENDED_OK], 1);
    ch__task_enter(client.task);
    assert_int_equal(ch__link_calls(l), 1);
    ch__task_leave(client.task);
    (void)state;
}

static void link_limits_the_bytes_of_calls(void **state)
{
    ch_outbox *outbox;
    ch_link   *l;

    actor_start(net, &client, "client");
    assert_int_equal(actor_try(net, &server, "server", 0, 100), CH_OK);
    outbox = ch__task_enter(client.task);
    l = ch__task_link(client.task, "server");
    actor_post(&client, outbox, "server", message_of(1, 60), 10 * s_ns, 0);
    assert_int_equal(ch__link_bytes(l), 40);
    actor_post(&client, outbox, "server", message_of(1, 41), 10 * s_ns, 0);
    actor_post(&client, outbox, "server", message_of(1, 40), 10 * s_ns, 0);
    ch__task_leave(client.task);
    actor_wait(&client, &client.n_ended, 3);
    assert_int_equal(client.ended[CH_ENDED_NO_ROOM], 1);
    assert_int_equal(client.ended[CH_ENDED_OK], 2);
    outbox = ch__task_enter(client.task);
    actor_post(&client, outbox, "server", message_of(1, 1000), 10 * s_ns, 0); /* alone */
    actor_post(&client, outbox, "server", message_of(1, 1), 10 * s_ns, 0);
    ch__task_leave(client.task);
    actor_wait(&client, &client.n_ended, 5);
    assert_int_equal(client.ended[CH_ENDED_NO_ROOM], 2);
    assert_int_equal(client.ended[CH_ENDED_OK], 3);
    (void)state;
}

/* ---- roles ---- */

static void role_is_the_first_part_of_a_name(void **state)
{
    assert_int_equal(ch__role_of("worker/1"), CH_ROLE_WORKER);
    assert_int_equal(ch__role_of("ps/0"), CH_ROLE_PS);
    assert_int_equal(ch__role_of("chief/0"), CH_ROLE_COORDINATOR);
    assert_int_equal(ch__role_of("evaluator"), CH_ROLE_EVALUATOR);
    assert_int_equal(ch__role_of("work/1"), CH_ROLE_OTHER);
    assert_int_equal(ch__role_of("workers/1"), CH_ROLE_OTHER);
    assert_string_equal(ch__role_name(CH_ROLE_PS), "ps");
    (void)state;
}

static void call_of_another_role_is_denied(void **state)
{
    static const ch_net_method methods[] = {
        [2] = {"stop", CH_ROLE_COORDINATOR | CH_ROLE_PS}, [5] = {"update", CH_ROLE_WORKER}};
    ch_outbox *outbox;

    actor_start(net, &client, "ps/0");
    actor_start_for(net, &server, "ps/1", 6, methods);
    actor_call(&client, "ps/1", 0); /* method 5 */
    actor_wait(&client, &client.ended[CH_ENDED_ERROR], 1);
    assert_int_equal(client.status, CH_PERMISSION_DENIED);
    assert_string_equal(client.text,
                        "call of update (method 5) by ps/0: the role ps may not call it");
    assert_string_equal(client.by, "ps/1");
    assert_int_equal(client.answerer.incarnation, server.incarnation);
    outbox = ch__task_enter(client.task);
    actor_post(&client, outbox, "ps/1", message_of(2, 1), 10 * s_ns, 0);
    actor_post(&client, outbox, "ps/1", message_of(3, 1), 10 * s_ns, 0); /* no such method */
    actor_post(&client, outbox, "ps/1", message_of(6, 1), 10 * s_ns, 0); /* not in the table */
    ch__task_leave(client.task);
    actor_wait(&client, &client.n_ended, 4);
    assert_int_equal(client.ended[CH_ENDED_OK], 2);
    assert_int_equal(server.n_calls, 2);
    (void)state;
}

/* ---- deadlines ---- */

/* Records that bulk bytes move over the link until `at`. */
static void move_bytes_until(int64_t at)
{
    ch__task_enter(client.task);
    ch__link_moved(ch__task_link(client.task, "server"), at);
    ch__task_leave(client.task);
}

static void call_is_not_late_while_bytes_move(void **state)
{
    ch_outbox *outbox;
    int64_t    begin;

    start_both();
    server.mode = KEEP;
    outbox = ch__task_enter(client.task);
    begin = ch__task_now(client.task);
    actor_post(&client, outbox, "server", message_of(1, 8), 100 * ms_ns, 0);
    ch__outbox_timer(outbox, 1, begin + 300 * ms_ns);
    ch__task_leave(client.task);
    move_bytes_until(begin + 250 * ms_ns);
    actor_wait(&client, &client.n_timers, 1);
    assert_int_equal(client.n_ended, 0);
    move_bytes_until(0);
    actor_wait(&client, &client.ended[CH_ENDED_TIMEOUT], 1);
    assert_true(client.now >= begin + 350 * ms_ns);
    (void)state;
}

static void call_is_late_after_64_timeouts_even_if_bytes_move(void **state)
{
    ch_outbox *outbox;
    int64_t    begin;

    start_both();
    server.mode = KEEP;
    outbox = ch__task_enter(client.task);
    begin = ch__task_now(client.task);
    actor_post(&client, outbox, "server", message_of(1, 8), ms_ns, 0);
    ch__task_leave(client.task);
    move_bytes_until(INT64_MAX / 2);
    actor_wait(&client, &client.ended[CH_ENDED_TIMEOUT], 1);
    if (is_sim) /* the threads of inproc may see the deadline before the bytes */
        assert_true(client.now >= begin + 64 * ms_ns && client.now < begin + 66 * ms_ns);
    (void)state;
}

static void link_records_when_a_reply_was_received(void **state)
{
    int64_t at;

    start_both();
    ch__task_enter(client.task);
    assert_int_equal(ch__link_received_at(ch__task_link(client.task, "server")), 0);
    ch__task_leave(client.task);
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.ended[CH_ENDED_OK], 1);
    ch__task_enter(client.task);
    at = ch__link_received_at(ch__task_link(client.task, "server"));
    assert_true(at > 0 && at <= ch__task_now(client.task));
    ch__task_leave(client.task);
    ch__task_kill(server.task);
    actor_call(&client, "server", 0); /* lost: no sign of life */
    actor_wait(&client, &client.n_ended, 2);
    ch__task_enter(client.task);
    assert_int_equal(ch__link_received_at(ch__task_link(client.task, "server")), at);
    ch__task_leave(client.task);
    (void)state;
}

/* ---- timers and work ---- */

static void timers_can_be_moved_and_ended(void **state)
{
    ch_outbox *outbox;
    int64_t    now;

    actor_start(net, &client, "client");
    outbox = ch__task_enter(client.task);
    now = ch__task_now(client.task);
    ch__outbox_timer(outbox, 1, now + 30 * ms_ns);
    ch__outbox_timer(outbox, 2, now + 4 * ms_ns);
    ch__outbox_timer(outbox, 3, now + 6 * ms_ns);
    ch__outbox_timer(outbox, 4, now + 2 * ms_ns);
    ch__outbox_timer(outbox, 1, now + 1 * ms_ns);
    ch__outbox_timer(outbox, 3, INT64_MAX);
    ch__outbox_timer(outbox, 7, INT64_MAX);
    ch__outbox_timer(outbox, 5, now - 1);
    ch__task_leave(client.task);
    actor_wait(&client, &client.n_timers, 4);
    assert_memory_equal(client.timer, ((const uint64_t[]){5, 1, 4, 2}), 4 * sizeof(uint64_t));
    assert_true(client.timer_at[1] >= now + 1 * ms_ns && client.timer_at[3] >= now + 4 * ms_ns);
    outbox = ch__task_enter(client.task);
    ch__outbox_timer(outbox, 2, ch__task_now(client.task)); /* the id may be used again */
    ch__task_leave(client.task);
    actor_wait(&client, &client.n_timers, 5);
    (void)state;
}

static void add_one(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void work_is_done_in_order(void **state)
{
    atomic_int n_run = 0, n_dropped = 0;
    ch_outbox *outbox;

    actor_start(net, &client, "client");
    outbox = ch__task_enter(client.task);
    for (uint64_t i = 0; i < 5; i++)
        ch__outbox_work(outbox, 10 + i, add_one, i % 2 ? NULL : add_one,
                        i % 2 ? &n_run : &n_dropped);
    ch__task_leave(client.task);
    actor_wait(&client, &client.n_works, 5);
    assert_memory_equal(client.work, ((const uint64_t[]){10, 11, 12, 13, 14}), 40);
    assert_int_equal(n_run, 2);
    assert_int_equal(n_dropped, 3); /* all as run, none as drop */
    (void)state;
}

static void work_of_a_killed_task_is_dropped(void **state)
{
    atomic_int n_run[6] = {0}, n_dropped = 0;
    ch_outbox *outbox;

    actor_start(net, &client, "client");
    outbox = ch__task_enter(client.task);
    for (int i = 0; i < 6; i++)
        ch__outbox_work(outbox, 1, add_one, NULL, &n_run[i]);
    for (int i = 0; i < 6; i++)
        ch__outbox_work(outbox, 1, add_one, add_one, &n_dropped);
    ch__task_leave(client.task);
    ch__task_kill(client.task);
    assert_true(n_dropped >= 6 - client.n_works); /* each ran, was dropped, or both */
    outbox = ch__task_enter(client.task);
    ch__outbox_work(outbox, 1, add_one, add_one, &n_run[0]); /* the task is dead */
    ch__outbox_timer(outbox, 1, 0);
    actor_post(&client, outbox, "server", message_of(1, 1), s_ns, 0);
    ch__task_leave(client.task);
    assert_int_equal(client.n_timers, 0);
    (void)state;
}

/* ---- waiting ---- */

static bool never(void *arg)
{
    (void)arg;
    return false;
}

static void task_wait_ends_at_its_limit_and_names_what_it_waited_for(void **state)
{
    ch_outbox *outbox;

    actor_start(net, &client, "client");
    outbox = ch__task_enter(client.task);
    ch__outbox_timer(outbox, 1, ch__task_now(client.task) + s_ns * 1000);
    assert_int_equal(ch__task_wait(client.task, never, NULL, 20, "the 3rd worker"),
                     CH_DEADLINE_EXCEEDED);
    assert_string_equal(ch_error_message(), "task client: waited 20 ms for the 3rd worker");
    ch__outbox_timer(outbox, 1, INT64_MAX);
    ch__task_leave(client.task);
    (void)state;
}

/* ---- memory ---- */

/* A scenario that is run with each allocation failing in turn: nothing may leak, and every call
 * must end. */
static void scenario(void)
{
    ch_net     *own = NULL;
    actor       a = {0}, b = {0};
    atomic_int  n = 0;
    ch_message *p;
    ch_outbox  *outbox;
    ch_status   rc = is_sim ? ch__net_sim(&(ch_sim_options){.seed = 3, .encode = true}, &own)
                            : ch__net_inproc(&(ch_inproc_options){.spin_us = CH_OFF}, &own);

    if (rc == CH_OK && actor_try(own, &a, "a", 0, 0) == CH_OK &&
        actor_try(own, &b, "b", 0, 0) == CH_OK) {
        outbox = ch__task_enter(a.task);
        for (int i = 0; i < 3 && ch__task_link(a.task, "b") != NULL; i++)
            if ((p = message_of(1, 100)) != NULL)
                actor_post(&a, outbox, "b", p, 5 * ms_ns, 0);
        ch__outbox_work(outbox, 1, add_one, add_one, &n);
        ch__outbox_timer(outbox, 1, ch__task_now(a.task) + ms_ns);
        reached r = {&a.n_ended, (int)a.n_posted};
        rc = ch__task_wait(a.task, has_reached, &r, LIMIT_MS, "calls");
        ch__task_leave(a.task);
        assert_true(rc == CH_OK || rc == CH_UNAVAILABLE);
        b.mode = REFUSE;
        ch__task_kill(b.task);
        (void)!ch__task_restart(b.task);
    }
    ch__net_free(own);
    assert_int_equal(a.n_closed, a.n_made);
    assert_int_equal(b.n_closed, b.n_made);
}

static void ignore(const ch_log_record *r, void *arg)
{
    (void)r;
    (void)arg;
}

static void calls_end_and_leak_nothing_when_memory_is_short(void **state)
{
    ch_log_set_sink(ignore, NULL, CH_LOG_ERROR);
    for (int64_t n = 1, before; n < 1000; n++) {
        before = ch__mem_allocs();
        ch__mem_fail_at(n);
        scenario();
        ch__mem_fail_at(0);
        if (ch__mem_allocs() - before < n) {
            ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
            return;
        }
    }
    fail_msg("the scenario never ends");
    (void)state;
}

#define OVER(engine, test) cmocka_unit_test_setup_teardown(test, open_##engine, close_net)
#define TESTS(engine)                                                                          \
    OVER(engine, reply_carries_the_bytes_and_tensors_of_the_call),                             \
        OVER(engine, error_reply_names_the_task_and_the_reason),                               \
        OVER(engine, second_reply_to_a_call_is_ignored),                                       \
        OVER(engine, call_ends_at_its_deadline_and_is_cancelled_at_the_callee),                \
        OVER(engine, a_call_can_be_cancelled), OVER(engine, call_to_a_missing_task_is_lost),   \
        OVER(engine, calls_to_a_killed_task_are_lost),                                         \
        OVER(engine, calls_of_a_killed_task_are_cancelled),                                    \
        OVER(engine, restarted_task_has_a_larger_incarnation),                                 \
        OVER(engine, incarnations_are_unique_and_growing),                                     \
        OVER(engine, task_start_that_fails_leaves_nothing),                                    \
        OVER(engine, link_limits_the_number_of_calls),                                         \
        OVER(engine, link_limits_the_bytes_of_calls),                                          \
        OVER(engine, call_of_another_role_is_denied),                                          \
        OVER(engine, call_is_not_late_while_bytes_move),                                       \
        OVER(engine, call_is_late_after_64_timeouts_even_if_bytes_move),                       \
        OVER(engine, link_records_when_a_reply_was_received),                                  \
        OVER(engine, timers_can_be_moved_and_ended), OVER(engine, work_is_done_in_order),      \
        OVER(engine, work_of_a_killed_task_is_dropped),                                        \
        OVER(engine, task_wait_ends_at_its_limit_and_names_what_it_waited_for),                \
        OVER(engine, calls_end_and_leak_nothing_when_memory_is_short)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(incarnation_number_is_the_time_and_random_bits),
        cmocka_unit_test(role_is_the_first_part_of_a_name), TESTS(sim), TESTS(inproc)};
    ch_tensor *t = NULL;

    /* Allocates objects that exist once in a process. */
    if (ch_tensor_scalar(CH_F32, 1, &t) != CH_OK)
        return 1;
    ch_tensor_unref(t);
    return cmocka_run_group_tests_name("engines", tests, NULL, NULL);
}
