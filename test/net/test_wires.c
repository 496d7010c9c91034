/* test/net/test_wires.c -- a net with several wires: which wire a link has, the credit before the
 * peer's hello, and threads that make progress on an engine while they sleep.
 *
 * Two nets stand for two processes. Each has, besides its inproc wire, a `post`: a wire whose
 * frames wait in a queue of the receiving net, until a thread that sleeps in that wire puts them
 * into mailboxes. Its addresses are "post:<task>".
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "actor.h"

#include <pthread.h>

#include "net/threads.h"

enum { QUEUE = 256, PREFIX = 5 };

typedef struct post post;

/* A frame that has not been put into a mailbox yet. */
typedef struct letter {
    char     to[64];
    ch_frame frame;
} letter;

struct post {
    ch_net_wire     wire; /* must be first */
    post           *other;
    pthread_mutex_t lock; /* guards the rest */
    letter          queue[QUEUE];
    int             n, n_links, n_left;
    ch_gate         bell;       /* opened when a letter arrives and when a thread is woken */
    bool            says_hello; /* links learn the room of their peer when they connect */
};

/* The wire's data of a link, and of its slot in the other net. */
typedef struct post_link {
    const char    *caller;
    char           callee[64];
    ch_return_path back; /* for the other net's tasks */
} post_link;

static int64_t live;
static ch_net *near, *far;
static post   *here, *there;
static actor   client, server, other;

static void post_letter(post *p, const char *to, const ch_frame *f)
{
    pthread_mutex_lock(&p->lock);
    assert_true(p->n < QUEUE);
    memcpy(p->queue[p->n].to, to, strlen(to) + 1);
    p->queue[p->n++].frame = *f;
    pthread_mutex_unlock(&p->lock);
    ch__gate_open(&p->bell);
}

static ch_status post_connect(ch_net_wire *w, ch_link *l, const char *address)
{
    post      *p = (post *)w;
    post_link *e;

    if (strncmp(address, "post:", PREFIX) != 0)
        return CH_NOT_FOUND;
    e = ch__calloc(1, sizeof(*e));
    if (e == NULL)
        return CH_RESOURCE_EXHAUSTED;
    e->caller = l->task->name;
    strncpy(e->callee, address + PREFIX, sizeof(e->callee) - 1);
    assert_true(ch__slots_add(&p->other->wire.slots, &p->other->wire, e, &e->back));
    l->end = e;
    p->n_links++;
    if (p->says_hello)
        ch__link_set_credit(l, 32, 1 << 24);
    return CH_OK;
}

static ch_ending post_call(ch_link *l, ch_frame *f)
{
    post_link *e = l->end;

    f->name = e->caller;
    f->back = e->back;
    post_letter(((post *)l->wire)->other, e->callee, f);
    return CH_ENDED_OK;
}

static void post_cancel(ch_link *l, uint64_t call, int64_t bytes)
{
    ch_frame f = {.kind = CH_FRAME_CANCEL, .call = call, .from = l->task->incarnation};

    (void)bytes;
    (void)post_call(l, &f);
}

static void post_reply(ch_task *t, ch_return_path back, ch_frame *f)
{
    ch_slot *slot = ch__slots_at(&back.wire->slots, back);

    f->name = t->name;
    if (slot == NULL)
        ch__frame_drop(f);
    else
        post_letter(((post *)back.wire)->other, ((post_link *)slot->end)->caller, f);
    ch__gate_open(&((post *)back.wire)->bell); /* the next call may be delivered now */
}

static void post_close_link(ch_link *l)
{
    post_link *e = l->end;
    post      *to = ((post *)l->wire)->other;

    if (to != NULL)
        ch__slots_end(&to->wire.slots, e->back);
    ((post *)l->wire)->n_left++;
    ch__free(e);
}

static void post_close(ch_net_wire *w, ch_task *t)
{
    post *p = (post *)w;

    if (t != NULL)
        return;
    for (int i = 0; i < p->n; i++)
        ch__frame_drop(&p->queue[i].frame);
    if (p->other != NULL)
        p->other->other = NULL;
    ch__slots_free(&w->slots);
    pthread_mutex_destroy(&p->lock);
    ch__free(p);
}

/* Returns true if the first letter must wait, because its connection has too many calls. */
static bool must_wait(post *p)
{
    const ch_frame *f = &p->queue[0].frame;
    const ch_task  *t = ch__net_find(p->wire.net, p->queue[0].to);

    if (f->kind != CH_FRAME_CALL || t == NULL || ch__return_path_may_deliver(t, f->back)) {
        if (f->kind == CH_FRAME_CALL)
            ch__slots_deliver(&p->wire.slots, f->back);
        return false;
    }
    return true;
}

/* Puts one letter into a mailbox. Returns false if there is none that may be delivered. */
static bool deliver(post *p)
{
    letter   l;
    ch_task *t;

    pthread_mutex_lock(&p->lock);
    if (p->n == 0 || must_wait(p)) {
        pthread_mutex_unlock(&p->lock);
        return false;
    }
    l = p->queue[0];
    memmove(p->queue, p->queue + 1, (size_t)--p->n * sizeof(l));
    pthread_mutex_unlock(&p->lock);
    t = ch__net_find(p->wire.net, l.to);
    if (t == NULL || !ch__mailbox_put((ch_threads_task *)(void *)t, &l.frame, NULL))
        ch__frame_drop(&l.frame);
    return true;
}

static void post_sleep(ch_net_wire *w, ch_gate *g, unsigned seen, int64_t until)
{
    post *p = (post *)w;

    do {
        unsigned rung = atomic_load(&p->bell);

        while (deliver(p))
            ;
        if (g == NULL || atomic_load(g) != seen)
            return;
        ch__gate_idle_until(&p->bell, rung, until);
    } while (ch__now_ns() < until);
}

static void post_wake(ch_net_wire *w, ch_gate *g)
{
    ch__gate_open(g);
    ch__gate_open(&((post *)w)->bell);
}

static const ch_wire_ops post_ops = {.connect = post_connect,
                                     .call = post_call,
                                     .cancel = post_cancel,
                                     .reply = post_reply,
                                     .close_link = post_close_link,
                                     .close = post_close,
                                     .sleep = post_sleep,
                                     .wake = post_wake};

static post *post_new(ch_net *net)
{
    post *p = ch__calloc(1, sizeof(*p));

    assert_non_null(p);
    p->wire.ops = &post_ops;
    p->wire.polls_while_spins = p->wire.counts_calls = true;
    assert_int_equal(pthread_mutex_init(&p->lock, NULL), 0);
    ch__net_add_wire(net, &p->wire);
    return p;
}

static int open_nets(void **state)
{
    (void)state;
    live = ch__mem_live();
    client = server = other = (actor){0};
    if (ch__net_inproc(NULL, &near) != CH_OK || ch__net_inproc(NULL, &far) != CH_OK)
        return -1;
    here = post_new(near);
    there = post_new(far);
    here->other = there;
    there->other = here;
    return 0;
}

/* The tasks of both nets must have ended before a wire is freed. */
static int close_nets(void **state)
{
    (void)state;
    for (int i = 0; i < near->n_tasks; i++)
        ch__task_kill(near->task[i]);
    ch__net_free(far);
    ch__net_free(near);
    return ch__mem_live() == live && client.n_closed == client.n_made ? 0 : -1;
}

static void start_apart(void)
{
    actor_start(near, &client, "client");
    actor_start(far, &server, "server");
    assert_int_equal(ch__net_set_address(near, "server", "post:server"), CH_OK);
}

/* ---- which wire ---- */

static void link_has_the_wire_that_reaches_its_peer(void **state)
{
    ch_link *l;

    here->says_hello = true;
    start_apart();
    actor_start(near, &other, "local");
    for (int i = 0; i < 20; i++) {
        actor_call(&client, "server", 0);
        actor_call(&client, "local", 0);
        actor_wait(&client, &client.ended[CH_ENDED_OK], 2 * i + 2);
    }
    assert_int_equal(server.n_calls, 20);
    assert_int_equal(other.n_calls, 20);
    assert_string_equal(server.caller.name, "client");
    ch__task_enter(client.task);
    l = ch__task_link(client.task, "server");
    assert_ptr_equal(l->wire, &here->wire);
    assert_ptr_equal(ch__task_link(client.task, "local")->wire, near->wire[0]);
    ch__task_leave(client.task);
    assert_int_equal(here->n_links, 1);
    (void)state;
}

static void call_is_lost_until_the_book_has_an_address(void **state)
{
    char long_name[65];

    memset(long_name, 'x', 64);
    long_name[64] = '\0';
    actor_start(near, &client, "client");
    actor_start(far, &server, "server");
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.ended[CH_ENDED_LOST], 1);
    assert_int_equal(ch__net_set_address(near, "server", "other:server"), CH_OK);
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.ended[CH_ENDED_LOST], 2);
    assert_int_equal(ch__net_set_address(near, "server", "post:server"), CH_OK);
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.ended[CH_ENDED_OK], 1);
    assert_int_equal(ch__net_set_address(near, "server", NULL), CH_OK);
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.ended[CH_ENDED_LOST], 3);
    assert_int_equal(ch__net_set_address(near, long_name, "post:server"), CH_INVALID_ARGUMENT);
    assert_int_equal(server.n_calls, 1);
    (void)state;
}

static void pending_calls_are_lost_when_the_address_changes(void **state)
{
    start_apart();
    actor_start(far, &other, "other");
    server.mode = KEEP;
    actor_call(&client, "server", 0);
    actor_call(&client, "server", 0);
    actor_wait(&server, &server.n_calls, 2);
    assert_int_equal(ch__net_set_address(near, "server", "post:server"), CH_OK); /* the same */
    actor_call(&client, "server", 0);
    actor_wait(&server, &server.n_calls, 3);
    assert_int_equal(here->n_left, 0);
    assert_int_equal(ch__net_set_address(near, "server", "post:other"), CH_OK);
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.n_ended, 4);
    assert_int_equal(client.ended[CH_ENDED_LOST], 3);
    assert_int_equal(client.ended[CH_ENDED_OK], 1);
    assert_int_equal(other.n_calls, 1);
    assert_int_equal(here->n_left, 1);
    ch__outbox_reply(ch__task_enter(server.task), server.kept[0], message_of(1, 1));
    ch__task_leave(server.task); /* along a path that has ended */
    actor_call(&client, "server", 0);
    actor_wait(&client, &client.n_ended, 5);
    assert_int_equal(client.ended[CH_ENDED_OK], 2);
    (void)state;
}

/* ---- credit ---- */

static void link_has_room_for_few_calls_before_the_hello(void **state)
{
    ch_outbox *outbox;
    ch_link   *l;

    start_apart();
    server.mode = KEEP;
    outbox = ch__task_enter(client.task);
    l = ch__task_link(client.task, "server");
    assert_int_equal(ch__link_calls(l), 8);
    assert_int_equal(ch__link_bytes(l), 1 << 20);
    for (int i = 0; i < 10; i++)
        actor_post(&client, outbox, "server", message_of(1, 1), 10 * s_ns, 0);
    ch__task_leave(client.task);
    actor_wait(&client, &client.ended[CH_ENDED_NO_ROOM], 2);
    actor_wait(&server, &server.n_calls, 8);
    ch__link_set_credit(l, 11, 1 << 22); /* the hello arrives */
    outbox = ch__task_enter(client.task);
    assert_int_equal(ch__link_calls(l), 3);
    for (int i = 0; i < 4; i++)
        actor_post(&client, outbox, "server", message_of(1, 1), 10 * s_ns, 0);
    ch__task_leave(client.task);
    actor_wait(&client, &client.ended[CH_ENDED_NO_ROOM], 3);
    actor_wait(&server, &server.n_calls, 11);
    assert_int_equal(client.n_ended, 3);
    (void)state;
}

/* The client ignores the room of its link. Its further calls stay in the wire. */
static void calls_beyond_twice_the_room_are_not_delivered(void **state)
{
    ch_outbox *outbox;

    actor_start(near, &client, "client");
    assert_int_equal(actor_try(far, &server, "server", 4, 0), CH_OK);
    assert_int_equal(ch__net_set_address(near, "server", "post:server"), CH_OK);
    server.mode = KEEP;
    outbox = ch__task_enter(client.task);
    ch__link_set_credit(ch__task_link(client.task, "server"), 1000, INT64_MAX);
    for (int i = 0; i < 50; i++)
        actor_post(&client, outbox, "server", message_of(1, 1), 100 * s_ns, 0);
    ch__task_leave(client.task);
    for (int answered = 0, n = 8; n <= 50; n += 3) {
        actor_wait(&server, &server.n_calls, n);
        outbox = ch__task_enter(server.task);
        assert_int_equal(server.n_calls, n);
        for (int i = 0; i < 3; i++)
            ch__outbox_reply(outbox, server.kept[answered++], message_of(1, 1));
        ch__task_leave(server.task);
    }
    actor_wait(&server, &server.n_calls, 50);
    (void)state;
}

/* ---- progress ---- */

static void wait_for_timers(actor *a, int n)
{
    ch_outbox *outbox = ch__task_enter(a->task);

    ch__outbox_timer(outbox, 1, ch__task_now(a->task) + 20 * ms_ns);
    ch__task_leave(a->task);
    actor_wait(a, &a->n_timers, n);
}

/* No thread but the tasks' own and the waiting thread delivers letters. */
static void sleeping_threads_make_progress(void **state)
{
    here->says_hello = true;
    start_apart();
    for (int i = 0; i < 3; i++) {
        wait_for_timers(&server, i + 1); /* all threads sleep meanwhile */
        wait_for_timers(&client, i + 1);
        actor_call(&client, "server", 0);
        actor_wait(&client, &client.ended[CH_ENDED_OK], i + 1);
    }
    (void)state;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_nets, close_nets)
    const struct CMUnitTest tests[] = {
        TEST(link_has_the_wire_that_reaches_its_peer),
        TEST(call_is_lost_until_the_book_has_an_address),
        TEST(pending_calls_are_lost_when_the_address_changes),
        TEST(link_has_room_for_few_calls_before_the_hello),
        TEST(calls_beyond_twice_the_room_are_not_delivered),
        TEST(sleeping_threads_make_progress),
    };

    return cmocka_run_group_tests_name("wires", tests, NULL, NULL);
}
