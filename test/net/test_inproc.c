/* test/net/test_inproc.c -- the inproc engine: wake-ups of threads, delivery, and the execution
 * of work beside turns.
 *
 * The tests count wake-ups and allocations, and let several threads and restarting tasks call
 * each other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "actor.h"

#include <sched.h>

#include "base/thread.h"
#include "net/threads.h"

static int64_t live;
static ch_net *net;
static actor   client, server, other;

static int open_with(int spin_us)
{
    live = ch__mem_live();
    client = server = other = (actor){0};
    return ch__net_inproc(&(ch_inproc_options){.spin_us = spin_us}, &net) == CH_OK ? 0 : -1;
}

static int open_net(void **state)
{
    (void)state;
    return open_with(0);
}

/* Threads spin for a second before they sleep, so that other load of the machine does not put
 * them to sleep. */
static int open_spinning(void **state)
{
    (void)state;
    return open_with(1000000);
}

static int close_net(void **state)
{
    (void)state;
    ch__net_free(net);
    return ch__mem_live() == live && client.n_closed == client.n_made ? 0 : -1;
}

static void start_both(int calls)
{
    actor_start(net, &client, "client");
    assert_int_equal(actor_try(net, &server, "server", calls, 0), CH_OK);
}

/* ---- waking ---- */

static void call_and_wait(int n)
{
    for (int i = 0; i < n; i++) {
        ch_outbox *outbox = ch__task_enter(client.task);
        reached    r = {&client.n_ended, (int)client.n_posted + 1};

        actor_post(&client, outbox, "server", message_of(1, 8), 10 * s_ns, 0);
        assert_int_equal(ch__task_wait(client.task, has_reached, &r, LIMIT_MS, "server"),
                         CH_OK);
        ch__task_leave(client.task);
    }
}

static void inproc_calls_between_spinning_tasks_wake_no_thread(void **state)
{
    int64_t n_wakes = INT64_MAX;

    if (ch__cpu_count() < 2)
        skip();
    start_both(0);
    /* Repeats until the scheduler has placed the threads on cores, which other programs use
     * too. */
    for (int i = 0; i < 100 && n_wakes > 25; i++) {
        int64_t before = ch__wake_count();

        call_and_wait(500);
        n_wakes = ch__wake_count() - before;
    }
    assert_in_range(n_wakes, 0, 25);
    (void)state;
}

static void inproc_calls_in_a_row_share_their_wakes(void **state)
{
    enum { N = 10000 };
    int64_t    before;
    ch_outbox *outbox;
    reached    r = {&client.ended[CH_ENDED_OK], N};

    start_both(N);
    before = ch__wake_count();
    outbox = ch__task_enter(client.task);
    for (int i = 0; i < N; i++)
        actor_post(&client, outbox, "server", message_of(1, 8), 100 * s_ns, 0);
    assert_int_equal(ch__task_wait(client.task, has_reached, &r, LIMIT_MS, "server"), CH_OK);
    ch__task_leave(client.task);
    assert_in_range(ch__wake_count() - before, 0, N / 20);
    (void)state;
}

/* Mailbox, outbox and table keep their memory; only messages are allocated. */
static void inproc_calls_allocate_only_their_messages(void **state)
{
    int64_t before;

    start_both(0);
    call_and_wait(300);
    before = ch__mem_allocs();
    call_and_wait(300);
    assert_in_range(ch__mem_allocs() - before, 300, 310);
    (void)state;
}

/* ---- work ---- */

typedef struct hold {
    atomic_bool has_begun, may_end, was_dropped;
} hold;

static void hold_on(void *arg)
{
    hold *h = arg;

    atomic_store(&h->has_begun, true);
    while (!atomic_load(&h->may_end))
        sched_yield();
}

static void note_drop(void *arg)
{
    atomic_store(&((hold *)arg)->was_dropped, true);
}

static void begin_to_hold(actor *a, hold *h)
{
    ch__outbox_work(ch__task_enter(a->task), 1, hold_on, note_drop, h);
    ch__task_leave(a->task);
    while (!atomic_load(&h->has_begun))
        sched_yield();
}

static void inproc_task_replies_and_runs_timers_while_it_works(void **state)
{
    hold       h = {false};
    ch_outbox *outbox;

    start_both(0);
    begin_to_hold(&server, &h);
    call_and_wait(50);
    assert_int_equal(server.n_works, 0);
    outbox = ch__task_enter(server.task);
    ch__outbox_timer(outbox, 1, ch__task_now(server.task) + 2 * ms_ns);
    ch__task_leave(server.task);
    while (true) { /* no thread waits here: the helper runs it */
        int n;

        ch__task_enter(server.task);
        n = server.n_timers;
        ch__task_leave(server.task);
        if (n > 0)
            break;
        sched_yield();
    }
    assert_int_equal(server.n_works, 0);
    atomic_store(&h.may_end, true);
    actor_wait(&server, &server.n_works, 1);
    assert_false(h.was_dropped);
    (void)state;
}

static void let_go_later(void *arg)
{
    hold *h = arg;

    for (int i = 0; i < 1000; i++)
        sched_yield();
    atomic_store(&h->may_end, true);
}

static void task_kill_waits_for_running_work_and_drops_its_result(void **state)
{
    hold       h = {false};
    ch_thread *t = NULL;

    start_both(0);
    begin_to_hold(&client, &h);
    assert_int_equal(ch__thread_start("later", let_go_later, &h, &t), CH_OK);
    ch__task_kill(client.task);
    assert_true(h.may_end);
    assert_true(h.was_dropped);
    assert_int_equal(client.n_closed, 1);
    assert_int_equal(client.n_works, 0);
    assert_int_equal(ch__task_restart(client.task), CH_OK);
    call_and_wait(3);
    ch__thread_join(t);
    (void)state;
}

/* ---- many threads ---- */

static bool never(void *arg)
{
    (void)arg;
    return false;
}

static void kill_client(void *arg)
{
    (void)arg;
    for (int i = 0; i < 1000; i++)
        sched_yield();
    ch__task_kill(client.task);
}

static void task_wait_ends_with_unavailable_when_the_task_is_killed(void **state)
{
    ch_thread *t = NULL;

    start_both(0);
    ch__task_enter(client.task);
    assert_int_equal(ch__thread_start("killer", kill_client, NULL, &t), CH_OK);
    assert_int_equal(ch__task_wait(client.task, never, NULL, LIMIT_MS, "what never comes"),
                     CH_UNAVAILABLE);
    assert_string_equal(ch_error_message(),
                        "task client ended while it waited for what never comes");
    ch__task_leave(client.task);
    ch__thread_join(t);
    (void)state;
}

/* Several threads of the program use the same task, each waiting for its own calls. */
enum { N_THREADS = 4, N_EACH = 300 };

static void call_from_a_thread(void *arg)
{
    int *mine = arg;

    for (int i = 0; i < N_EACH; i++) {
        ch_outbox *outbox = ch__task_enter(client.task);
        reached    r = {&client.ended[CH_ENDED_OK], 0};

        actor_post(&client, outbox, "server", message_of(1, 8), 100 * s_ns, 0);
        r.least = client.ended[CH_ENDED_OK] + 1; /* a reply to any thread is enough */
        if (ch__task_wait(client.task, has_reached, &r, LIMIT_MS, "server") == CH_OK)
            ++*mine;
        ch__task_leave(client.task);
    }
}

static void threads_may_share_a_task(void **state)
{
    ch_thread *t[N_THREADS];
    int        mine[N_THREADS] = {0};

    start_both(0);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(ch__thread_start("caller", call_from_a_thread, &mine[i], &t[i]),
                         CH_OK);
    for (int i = 0; i < N_THREADS; i++) {
        ch__thread_join(t[i]);
        assert_int_equal(mine[i], N_EACH);
    }
    actor_wait(&client, &client.ended[CH_ENDED_OK], N_THREADS * N_EACH);
    (void)state;
}

/* Tasks call each other all the time while they are killed and restarted. */
static void inproc_calls_end_when_tasks_restart_under_load(void **state)
{
    start_both(0);
    for (int i = 0; i < 200; i++) {
        actor_call(&client, "server", 0);
        actor_wait(&client, &client.n_ended, 2 * i);
        for (int k = 0; k < 20; k++)
            actor_call(&server, "client", 0);
        actor_call(&client, "server", 0);
        ch__task_kill(server.task);
        server.answer = NULL;
        assert_int_equal(ch__task_restart(server.task), CH_OK);
    }
    actor_wait(&client, &client.n_ended, 400);
    assert_int_equal(client.ended[CH_ENDED_OK] + client.ended[CH_ENDED_LOST], 400);
    (void)state;
}

/* ---- notices from other threads ---- */

static ch_threads_task *inner(const actor *a)
{
    return (ch_threads_task *)(void *)a->task;
}

static void post_broke(void *arg)
{
    ch_link *l = arg;

    /* The third call of the client, and later ones, were made over another connection. */
    assert_true(ch__mailbox_put_broke(inner(&client), l, 2, NULL));
}

static void broken_link_ends_the_calls_made_before(void **state)
{
    ch_thread *t = NULL;
    ch_link   *l;

    start_both(0);
    server.mode = KEEP;
    for (int i = 0; i < 4; i++)
        actor_call(&client, "server", 0);
    actor_wait(&server, &server.n_calls, 4);
    ch__task_enter(client.task);
    l = ch__task_link(client.task, "server");
    ch__task_leave(client.task);
    assert_int_equal(ch__thread_start("wire", post_broke, l, &t), CH_OK);
    actor_wait(&client, &client.ended[CH_ENDED_LOST], 2);
    ch__thread_join(t);
    for (int i = 0; i < 4; i++) {
        ch__outbox_reply(ch__task_enter(server.task), server.kept[i], message_of(1, 1));
        ch__task_leave(server.task);
    }
    actor_wait(&client, &client.ended[CH_ENDED_OK], 2);
    assert_int_equal(client.n_ended, 4);
    (void)state;
}

static void post_left(void *arg)
{
    assert_true(ch__mailbox_put_left(inner(&server), *(ch_return_path *)arg, NULL));
}

static void departed_caller_cancels_its_calls(void **state)
{
    ch_thread     *t = NULL;
    ch_return_path back = {0}, older;

    start_both(0);
    actor_start(net, &other, "other");
    server.mode = KEEP;
    for (int i = 0; i < 3; i++)
        actor_call(&client, "server", 0);
    actor_call(&other, "server", 0);
    actor_wait(&server, &server.n_calls, 4);
    ch__task_enter(server.task);
    for (int i = 0; i < server.task->table.cap; i++) {
        const ch_pending *e = &server.task->table.entry[i];

        if (e->kind == CH_PENDING_RECEIVED && strcmp(e->received.name, "client") == 0)
            back = e->received.back;
    }
    ch__task_leave(server.task);
    older = back;
    older.generation--;
    post_left(&older); /* a connection that has ended before */
    assert_int_equal(ch__thread_start("wire", post_left, &back, &t), CH_OK);
    actor_wait(&server, &server.n_cancels, 3);
    ch__thread_join(t);
    for (int i = 0; i < 4; i++) { /* only the call of the other client is still there */
        ch__outbox_reply(ch__task_enter(server.task), server.kept[i], message_of(1, 1));
        ch__task_leave(server.task);
    }
    actor_wait(&other, &other.ended[CH_ENDED_OK], 1);
    assert_int_equal(server.n_cancels, 3);
    assert_int_equal(client.n_ended, 0);
    (void)state;
}

/* The callee has the calls of a caller that was restarted, and replies before it has been told. */
static void reply_to_an_earlier_incarnation_is_ignored(void **state)
{
    ch_outbox *outbox;

    start_both(0);
    server.mode = KEEP;
    actor_call(&client, "server", 0);
    actor_wait(&server, &server.n_calls, 1);
    outbox = ch__task_enter(server.task);
    ch__task_kill(client.task);
    assert_int_equal(ch__task_restart(client.task), CH_OK);
    ch__outbox_reply(outbox, server.kept[0], message_of(1, 1));
    ch__task_leave(server.task);
    assert_false(ch__mailbox_has_events(inner(&client))); /* the path was stale */
    server.mode = ECHO;
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.n_ended, 1);
    assert_int_equal(client.last_id, 2);
    (void)state;
}

/* A cancelled call occupies room until the callee has received the cancellation, however often
 * the caller retries. */
static void hold_turn(void *arg)
{
    hold *h = arg;

    ch__task_enter(server.task);
    atomic_store(&h->has_begun, true);
    while (!atomic_load(&h->may_end))
        sched_yield();
    ch__task_leave(server.task);
}

static void cancelled_calls_take_room_until_the_callee_has_seen_them(void **state)
{
    hold       h = {false};
    ch_thread *t = NULL;

    start_both(8);
    assert_int_equal(ch__thread_start("turn", hold_turn, &h, &t), CH_OK);
    while (!atomic_load(&h.has_begun))
        sched_yield();
    for (int i = 0; i < 100; i++) {
        actor_call(&client, "server", 0);
        ch__outbox_cancel(ch__task_enter(client.task), client.n_posted);
        ch__task_leave(client.task);
    }
    actor_wait(&client, &client.n_ended, 100);
    assert_int_equal(client.ended[CH_ENDED_CANCELLED], 8);
    assert_int_equal(client.ended[CH_ENDED_NO_ROOM], 92);
    atomic_store(&h.may_end, true);
    ch__thread_join(t);
    actor_wait(&server, &server.n_calls, 8);
    call_and_wait(8);
    (void)state;
}

int main(void)
{
#define TEST(name)     cmocka_unit_test_setup_teardown(name, open_net, close_net)
#define SPINNING(name) cmocka_unit_test_setup_teardown(name, open_spinning, close_net)
    const struct CMUnitTest tests[] = {
        SPINNING(inproc_calls_between_spinning_tasks_wake_no_thread),
        TEST(inproc_calls_in_a_row_share_their_wakes),
        TEST(inproc_calls_allocate_only_their_messages),
        TEST(inproc_task_replies_and_runs_timers_while_it_works),
        TEST(task_kill_waits_for_running_work_and_drops_its_result),
        TEST(task_wait_ends_with_unavailable_when_the_task_is_killed),
        TEST(threads_may_share_a_task),
        TEST(inproc_calls_end_when_tasks_restart_under_load),
        TEST(broken_link_ends_the_calls_made_before),
        TEST(departed_caller_cancels_its_calls),
        TEST(reply_to_an_earlier_incarnation_is_ignored),
        TEST(cancelled_calls_take_room_until_the_callee_has_seen_them),
    };

    return cmocka_run_group_tests_name("inproc", tests, NULL, NULL);
}
