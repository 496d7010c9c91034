/* test/net/test_sim.c -- the simulator: its clock, its faults and its replays; and random
 * tasks, compared with a model.
 *
 * Random tasks call each other under random faults. The model records every call, and checks
 * that each call ends once, in the incarnation that made it, and that its ending agrees with
 * the events of the callee.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "actor.h"

#include <stdlib.h>

#include "../mutant.h"
#include "net/wire.h"

static actor client, server;

static ch_net *open_sim(const ch_sim_options *opt)
{
    ch_net *net = NULL;

    client = server = (actor){0};
    assert_int_equal(ch__net_sim(opt, &net), CH_OK);
    actor_start(net, &client, "client");
    actor_start(net, &server, "server");
    return net;
}

/* ---- the clock ---- */

static void push_to(void *arg)
{
    int64_t **at = arg;

    *(*at)++ = 1;
}

static void sim_clock_jumps_to_the_next_event(void **state)
{
    ch_net    *net = open_sim(NULL);
    int64_t    seen[4] = {0}, *at = seen;
    ch_outbox *outbox;

    assert_int_equal(ch__sim_now(net), 0);
    assert_false(ch__sim_step(net));
    outbox = ch__task_enter(client.task);
    ch__outbox_timer(outbox, 1, 3600 * s_ns);
    ch__task_leave(client.task);
    assert_int_equal(ch__sim_at(net, 5, push_to, &at), CH_OK);
    ch__sim_run_until(net, 4);
    assert_int_equal(ch__sim_now(net), 4);
    assert_int_equal(seen[0], 0);
    assert_true(ch__sim_step(net));
    assert_int_equal(ch__sim_now(net), 5);
    assert_int_equal(seen[0], 1);
    assert_true(ch__sim_step(net));
    assert_int_equal(ch__sim_now(net), 3600 * s_ns);
    assert_int_equal(client.n_timers, 1);
    ch__net_free(net);
    (void)state;
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}

static void kill_server(void *arg)
{
    (void)arg;
    ch__task_kill(server.task);
}

static void sim_wait_without_further_events_is_an_error(void **state)
{
    ch_net *net = open_sim(NULL);

    ch__task_enter(server.task);
    assert_int_equal(ch__task_wait(server.task, never, NULL, 10, "nothing"),
                     CH_FAILED_PRECONDITION);
    assert_string_equal(
        ch_error_message(),
        "task server: waits for nothing, but the simulation has no more events");
    assert_int_equal(ch__sim_at(net, 50, kill_server, NULL), CH_OK);
    assert_int_equal(ch__task_wait(server.task, never, NULL, 10, "nothing"), CH_UNAVAILABLE);
    ch__task_leave(server.task);
    ch__net_free(net);
    (void)state;
}

/* ---- faults ---- */

static int ok_of_100(const ch_sim_options *opt, const char *cut_from)
{
    ch_net    *net = open_sim(opt);
    ch_outbox *outbox;

    if (cut_from != NULL)
        ch__sim_cut(net, "server", cut_from, true);
    for (int i = 0; i < 100; i++) {
        outbox = ch__task_enter(client.task);
        actor_post(&client, outbox, "server", message_of(1, 8), 50 * ms_ns, 0);
        ch__task_leave(client.task);
        actor_wait(&client, &client.n_ended, i + 1);
    }
    assert_int_equal(client.ended[CH_ENDED_OK] + client.ended[CH_ENDED_TIMEOUT], 100);
    ch__net_free(net);
    return client.ended[CH_ENDED_OK];
}

static void sim_faults_happen_at_their_rates(void **state)
{
    assert_int_equal(ok_of_100(&(ch_sim_options){.seed = 1}, NULL), 100);
    assert_in_range(ok_of_100(&(ch_sim_options){.seed = 1, .drop = 200}, NULL), 40, 85);
    assert_int_equal(ok_of_100(&(ch_sim_options){.seed = 1, .drop = 1000}, NULL), 0);
    assert_int_equal(ok_of_100(&(ch_sim_options){.seed = 1, .twice = 1000}, NULL), 100);
    assert_in_range(server.n_calls, 200, 200);
    assert_int_equal(ok_of_100(&(ch_sim_options){.seed = 1}, "client"), 0);
    assert_int_equal(ok_of_100(&(ch_sim_options){.seed = 1}, "somebody"), 100);
    (void)state;
}

static void sim_calls_overtake_each_other(void **state)
{
    ch_net    *net = open_sim(&(ch_sim_options){.seed = 4, .late = 300});
    ch_outbox *outbox = ch__task_enter(client.task);
    bool       in_order = true;

    server.mode = KEEP;
    for (int i = 0; i < 50; i++)
        actor_post(&client, outbox, "server", message_of(1, (size_t)i), 10 * s_ns, 0);
    ch__task_leave(client.task);
    actor_wait(&server, &server.n_calls, 50);
    server.mode = ECHO;
    outbox = ch__task_enter(server.task);
    for (int i = 0; i < 50; i++)
        ch__outbox_reply(outbox, server.kept[i], message_of(1, 1));
    ch__task_leave(server.task);
    for (uint64_t last = 0; client.n_ended < 50; last = client.last_id) {
        actor_wait(&client, &client.n_ended, client.n_ended + 1);
        in_order = in_order && client.last_id > last;
    }
    assert_false(in_order);
    ch__net_free(net);
    (void)state;
}

static void sim_work_takes_time_and_is_dropped_in_a_crash(void **state)
{
    ch_net *net = open_sim(&(ch_sim_options){.seed = 4, .work_us = 10000});
    int64_t runs[2] = {0}, *run = runs, drops[2] = {0}, *drop = drops;

    ch__outbox_work(ch__task_enter(server.task), 1, push_to, NULL, &run);
    ch__task_leave(server.task);
    actor_wait(&server, &server.n_works, 1);
    assert_true(ch__sim_now(net) > 10000);
    ch__outbox_work(ch__task_enter(server.task), 2, push_to, push_to, &drop);
    ch__task_leave(server.task);
    kill_server(NULL);
    assert_int_equal(drops[0], 1);
    while (ch__sim_step(net))
        ;
    assert_true(drops[1] == 0 && runs[0] == 1 && runs[1] == 0);
    ch__net_free(net);
    (void)state;
}

/* ---- connections ---- */

static void sim_broken_connection_ends_the_calls_on_both_sides(void **state)
{
    ch_net *net = open_sim(&(ch_sim_options){.seed = 2});

    server.mode = KEEP;
    for (int i = 0; i < 3; i++)
        actor_call(&client, "server", 0);
    actor_wait(&server, &server.n_calls, 3);
    ch__sim_break(net, "server", "client");
    ch__sim_break(net, "server", "client"); /* there is none */
    actor_call(&client, "server", 0);       /* over the next connection */
    actor_wait(&server, &server.n_calls, 4);
    ch__sim_run_until(net, ch__sim_now(net) + ms_ns); /* long before the deadlines */
    assert_int_equal(client.ended[CH_ENDED_LOST], 3);
    assert_int_equal(client.n_ended, 3);
    assert_int_equal(server.n_cancels, 3);
    ch__outbox_reply(ch__task_enter(server.task), server.kept[3], message_of(1, 1));
    ch__task_leave(server.task);
    actor_wait(&client, &client.ended[CH_ENDED_OK], 1);
    ch__net_free(net);
    (void)state;
}

/* The reply is sent after the break, before the callee is told of it. */
static void sim_reply_along_a_stale_path_is_ignored(void **state)
{
    ch_net *net = open_sim(&(ch_sim_options){.seed = 2});

    server.mode = KEEP;
    actor_call(&client, "server", 0);
    actor_wait(&server, &server.n_calls, 1);
    ch__sim_break(net, "server", "client");
    ch__outbox_reply(ch__task_enter(server.task), server.kept[0], message_of(1, 1));
    ch__task_leave(server.task);
    ch__sim_run_until(net, ch__sim_now(net) + ms_ns);
    assert_int_equal(client.ended[CH_ENDED_LOST], 1);
    assert_int_equal(client.n_ended, 1);
    assert_int_equal(server.n_cancels, 0); /* it has replied */
    ch__net_free(net);
    (void)state;
}

/* A client that ignores the room of its link has at most twice that many calls at the server. */
static void sim_calls_beyond_twice_the_room_are_not_delivered(void **state)
{
    ch_net    *net = NULL;
    ch_outbox *outbox;
    actor      other = {0};

    client = server = (actor){0};
    assert_int_equal(ch__net_sim(&(ch_sim_options){.seed = 2}, &net), CH_OK);
    actor_start(net, &client, "client");
    actor_start(net, &other, "other");
    assert_int_equal(actor_try(net, &server, "server", 4, 0), CH_OK);
    server.mode = KEEP;
    outbox = ch__task_enter(client.task);
    ch__link_set_credit(ch__task_link(client.task, "server"), 1000, INT64_MAX);
    for (int i = 0; i < 50; i++)
        actor_post(&client, outbox, "server", message_of(1, 1), 10 * s_ns, 0);
    ch__task_leave(client.task);
    ch__sim_run_until(net, 10 * ms_ns);
    assert_int_equal(server.n_calls, 8);
    outbox = ch__task_enter(server.task);
    for (int i = 0; i < 3; i++)
        ch__outbox_reply(outbox, server.kept[i], message_of(1, 1));
    ch__task_leave(server.task);
    outbox = ch__task_enter(client.task); /* a cancelled call makes room too */
    for (uint64_t id = 1; id <= 50; id++)
        if (id % 2 == 0)
            ch__outbox_cancel(outbox, id);
    ch__task_leave(client.task);
    ch__sim_run_until(net, 20 * ms_ns);
    assert_true(server.n_calls - server.n_cancels - 3 <= 8 && server.n_calls > 11);
    actor_call(&other, "server", 0); /* is not blocked by the client */
    ch__sim_run_until(net, 30 * ms_ns);
    assert_string_equal(server.caller.name, "other");
    ch__net_free(net);
    (void)state;
}

/* No further call is delivered while more than 64 MiB of replies are on their way: each of 1 MiB
 * takes 10 ms. */
static void sim_calls_wait_while_replies_are_unsent(void **state)
{
    enum { N = 66, MIB = 1 << 20 };
    ch_net     *net = NULL;
    ch_message *m = message_of(1, MIB);
    ch_outbox  *outbox;

    client = server = (actor){0};
    assert_int_equal(ch__net_sim(&(ch_sim_options){.seed = 2, .bytes_per_ms = MIB / 10}, &net),
                     CH_OK);
    actor_start(net, &client, "client");
    assert_int_equal(actor_try(net, &server, "server", N, 0), CH_OK);
    server.mode = KEEP;
    for (int round = 0; round < 2; round++) {
        int n = 64 + round; /* replies: exactly 64 MiB, and more */

        outbox = ch__task_enter(client.task);
        for (int i = 0; i < n; i++)
            actor_post(&client, outbox, "server", message_of(1, 1), 10 * s_ns, 0);
        ch__task_leave(client.task);
        server.n_calls = 0;
        actor_wait(&server, &server.n_calls, n);
        outbox = ch__task_enter(server.task);
        for (int i = 0; i < n; i++)
            ch__outbox_reply(outbox, server.kept[i], ch__message_ref(m));
        ch__task_leave(server.task);
        actor_call(&client, "server", 0);
        ch__sim_run_until(net, ch__sim_now(net) + 5 * ms_ns);
        assert_int_equal(server.n_calls, round == 0 ? n + 1 : n);
        actor_wait(&server, &server.n_calls, n + 1);
        ch__outbox_reply(ch__task_enter(server.task), server.kept[n], message_of(1, 1));
        ch__task_leave(server.task);
        actor_wait(&client, &client.n_ended, (int)client.n_posted);
    }
    assert_int_equal(client.ended[CH_ENDED_OK], 64 + 65 + 2);
    ch__message_unref(m);
    ch__net_free(net);
    (void)state;
}

static int bulk_call(int64_t bytes_per_ms, int64_t timeout, int64_t *took)
{
    ch_net    *net = open_sim(&(ch_sim_options){.seed = 2, .bytes_per_ms = bytes_per_ms});
    ch_outbox *outbox = ch__task_enter(client.task);

    actor_post(&client, outbox, "server", message_of(1, 4 << 20), timeout, 0);
    ch__task_leave(client.task);
    actor_wait(&client, &client.n_ended, 1);
    *took = ch__sim_now(net);
    ch__net_free(net);
    return client.ended[CH_ENDED_OK];
}

/* 4 MiB each way. */
static void sim_deadline_counts_silence(void **state)
{
    int64_t took;

    assert_int_equal(bulk_call(0, ms_ns, &took), 1);
    assert_int_equal(bulk_call(1 << 20, ms_ns, &took), 1);
    assert_true(took >= 8 * ms_ns && took < 10 * ms_ns);
    assert_int_equal(bulk_call(1 << 16, ms_ns, &took), 0); /* 128 timeouts */
    assert_true(took >= 64 * ms_ns && took < 66 * ms_ns);
    (void)state;
}

/* ---- random tasks and their model ---- */

/* The record of a call in the model, by its number in the whole run. */
typedef struct known {
    bool     was_seen, has_ended, is_gone; /* is_gone: the incarnation that made it has ended */
    bool     was_cancelled;
    int      by, to;
    uint64_t incarnation, to_incarnation; /* of the caller; that was called, 0: any */
    int64_t  made, deadline;
} known;

enum { N_NODES = 4, MOST_CALLS = 4000, MOST_KEPT = 8 };

typedef struct world world;

typedef struct node {
    world     *world;
    int        index;
    ch_task   *task;
    uint64_t   incarnation, peer_incarnation[N_NODES];
    int        n_kept;
    ch_call_id kept[MOST_KEPT];
    uint64_t   kept_number[MOST_KEPT];
    uint64_t   work; /* that the node waits for; 0: none */
} node;

struct world {
    ch_net *net;
    node    node[N_NODES];
    known   call[MOST_CALLS];
    int     n_calls, n_done[N_ENDINGS], n_works, n_work_ends;
    bool    is_ending, has_twins;
    int64_t broke[N_NODES][N_NODES]; /* last time when the connection of two nodes was broken */
};

static const char *const name_of[N_NODES] = {"chief", "ps/0", "worker/0", "worker/1"};

static ch_message *numbered(uint32_t method, uint64_t number)
{
    void       *bytes;
    ch_message *p = NULL;

    assert_int_equal(ch__message_new(method, sizeof(number), &bytes, 0, NULL, &p), CH_OK);
    memcpy(bytes, &number, sizeof(number));
    return p;
}

static uint64_t number_of(const ch_message *p)
{
    uint64_t number;

    assert_int_equal(p->n_bytes, sizeof(number));
    memcpy(&number, p->bytes, sizeof(number));
    return number;
}

static void call_somebody(node *n, int64_t now, ch_outbox *outbox)
{
    world   *w = n->world;
    int      to = (int)ch__sim_draw(w->net, N_NODES);
    uint64_t number = (uint64_t)w->n_calls;
    int64_t  deadline = now + 1 + ch__sim_draw(w->net, 3 * ms_ns);

    if (w->n_calls == MOST_CALLS)
        return;
    w->call[w->n_calls++] =
        (known){.by = n->index,
                .to = to,
                .incarnation = n->incarnation,
                .to_incarnation = ch__sim_draw(w->net, 3) == 0 ? n->peer_incarnation[to] : 0,
                .made = now,
                .deadline = deadline,
                .was_cancelled = ch__sim_draw(w->net, 20) == 0};
    ch__outbox_call(outbox, ch__task_link(n->task, name_of[to]), numbered(1, number),
                    &(ch_call_options){.id = number,
                                       .deadline = deadline,
                                       .incarnation = w->call[number].to_incarnation});
    if (w->call[number].was_cancelled)
        ch__outbox_cancel(outbox, number);
}

static void answer(node *n, ch_call_id call, uint64_t number, ch_outbox *outbox)
{
    ch_fault why;

    if (ch__sim_draw(n->world->net, 10) > 0) {
        ch__outbox_reply(outbox, call, numbered(2, number));
        return;
    }
    ch__fault_clear(&why);
    ch__fail(CH_ABORTED, "%llu", (unsigned long long)number);
    ch__fault_record(&why, CH_ABORTED, -1, NULL);
    ch__outbox_reply_error(outbox, call, &why);
}

static void took_call(node *n, const ch_net_event *e, ch_outbox *outbox)
{
    uint64_t     number = number_of(e->message);
    const known *k = &n->world->call[number];

    assert_true(number < (uint64_t)n->world->n_calls);
    assert_true(k->to == n->index);
    assert_true(k->to_incarnation == 0 || k->to_incarnation == n->incarnation);
    n->world->call[number].was_seen = true;
    if (ch__sim_draw(n->world->net, 4) > 0 || n->n_kept == MOST_KEPT) {
        answer(n, e->call, number, outbox);
        return;
    }
    n->kept[n->n_kept] = e->call;
    n->kept_number[n->n_kept++] = number;
}

/* A received call ends without a reply only if its caller does not wait for it. */
static void took_cancel(const node *n, const ch_net_event *e, int64_t now)
{
    const world *w = n->world;

    for (int i = 0; i < n->n_kept; i++) {
        const known *k = &w->call[n->kept_number[i]];

        if (n->kept[i] == e->call)
            assert_true(k->has_ended || k->is_gone || k->was_cancelled || now >= k->deadline ||
                        w->broke[k->by][k->to] >= k->made);
    }
}

/* Every call ends once, in the incarnation that made it. Whether the callee has received the
 * call must agree with its ending. */
static void took_ending(node *n, const ch_net_event *e, int64_t now)
{
    world *w = n->world;
    known *k = &w->call[e->id];

    assert_true(e->id < (uint64_t)w->n_calls);
    assert_false(k->has_ended || k->is_gone);
    assert_true(k->by == n->index && k->incarnation == n->incarnation);
    k->has_ended = true;
    w->n_done[e->ending]++;
    for (int i = 0; i < N_NODES; i++)
        if (strcmp(name_of[i], e->peer.name) == 0 && e->peer.incarnation > 0)
            n->peer_incarnation[i] = e->peer.incarnation;
    switch (e->ending) {
    case CH_ENDED_OK:
        assert_true(k->was_seen && number_of(e->message) == e->id && e->message->method == 2);
        break;
    case CH_ENDED_ERROR:
        assert_true(k->was_seen && strtoull(e->fault->text, NULL, 10) == e->id);
        break;
    case CH_ENDED_TIMEOUT:
        assert_true(now >= k->deadline);
        break;
    case CH_ENDED_REPLACED: /* a twin may have reached the old incarnation */
        assert_true(!k->was_seen || w->has_twins);
        break;
    case CH_ENDED_NO_ROOM:
        assert_false(k->was_seen);
        break;
    default:
        break;
    }
}

static void do_nothing(void *arg)
{
    (void)arg;
}

static void work_ends(void *arg)
{
    ((world *)arg)->n_work_ends++;
}

static void node_on_event(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox)
{
    node  *n = self;
    world *w = n->world;

    if (e->kind == CH_EVENT_CALL) {
        took_call(n, e, outbox);
    } else if (e->kind == CH_EVENT_REPLY) {
        took_ending(n, e, now);
    } else if (e->kind == CH_EVENT_CANCEL) {
        took_cancel(n, e, now);
    } else if (e->kind == CH_EVENT_WORK) {
        w->n_work_ends++;
        assert_int_equal(e->id, n->work);
        n->work = 0;
    } else if (e->kind == CH_EVENT_TIMER) {
        while (n->n_kept > 0 && ch__sim_draw(w->net, 3) > 0) {
            n->n_kept--;
            answer(n, n->kept[n->n_kept], n->kept_number[n->n_kept], outbox);
        }
        if (w->is_ending)
            return;
        for (int64_t i = ch__sim_draw(w->net, 12); i > 0; i--)
            call_somebody(n, now, outbox);
        if (n->work == 0 && ch__sim_draw(w->net, 4) == 0) {
            n->work = (uint64_t)++w->n_works;
            ch__outbox_work(outbox, n->work, do_nothing, work_ends, w);
        }
        ch__outbox_timer(outbox, 1, now + 1 + ch__sim_draw(w->net, ms_ns));
    }
}

static void node_close(void *self)
{
    node  *n = self;
    world *w = n->world;

    for (int i = 0; i < w->n_calls; i++)
        if (w->call[i].by == n->index && !w->call[i].has_ended)
            w->call[i].is_gone = true;
}

static ch_status node_make(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                           void **self)
{
    node *n = arg;

    n->task = t;
    assert_true(incarnation > n->incarnation);
    n->incarnation = incarnation;
    n->n_kept = 0;
    n->work = 0;
    ch__outbox_timer(outbox, 1, ch__task_now(t) + 1);
    *self = n;
    return CH_OK;
}

static void disturb(void *arg)
{
    world *w = arg;
    node  *n = &w->node[ch__sim_draw(w->net, N_NODES)];
    int    a = (int)ch__sim_draw(w->net, N_NODES), b = (int)ch__sim_draw(w->net, N_NODES);

    switch (ch__sim_draw(w->net, 6)) {
    case 0:
        ch__task_kill(n->task);
        break;
    case 4:
    case 5:
        ch__sim_break(w->net, name_of[a], name_of[b]);
        w->broke[a][b] = w->broke[b][a] = ch__sim_now(w->net);
        break;
    case 1:
        ch__task_kill(n->task);
        assert_int_equal(ch__task_restart(n->task), CH_OK);
        break;
    case 2:
        ch__sim_cut(w->net, name_of[a], name_of[b], true);
        break;
    default:
        ch__sim_cut(w->net, name_of[a], name_of[b], false);
    }
}

static uint64_t run_world(uint64_t seed, world *w)
{
    static const ch_task_ops ops = {.on_event = node_on_event, .close = node_close};
    uint64_t                 hash;

    *w = (world){.has_twins = seed % 3 > 0};
    assert_int_equal(ch__net_sim(&(ch_sim_options){.seed = seed,
                                                   .drop = (int)(seed % 5) * 20,
                                                   .twice = (int)(seed % 3) * 50,
                                                   .late = (int)(seed % 7) * 20,
                                                   .encode = true},
                                 &w->net),
                     CH_OK);
    for (int i = 0; i < N_NODES; i++) {
        ch_task *t;

        w->node[i] = (node){.world = w, .index = i};
        assert_int_equal(ch__task_start(w->net,
                                        &(ch_task_options){.name = name_of[i],
                                                           .ops = &ops,
                                                           .make = node_make,
                                                           .arg = &w->node[i],
                                                           .calls = 6},
                                        &t),
                         CH_OK);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(ch__sim_at(w->net, (i + 1) * ms_ns / 2, disturb, w), CH_OK);
    ch__sim_run_until(w->net, 12 * ms_ns);
    w->is_ending = true;
    ch__sim_faults(w->net, NULL);
    while (ch__sim_step(w->net))
        ;
    hash = ch__sim_hash(w->net);
    ch__net_free(w->net);
    return hash;
}

static void check_world(const world *w)
{
    for (int i = 0; i < w->n_calls; i++)
        assert_true(w->call[i].has_ended != w->call[i].is_gone);
    assert_int_equal(w->n_works, w->n_work_ends);
}

static void sim_calls_end_once_under_random_faults(void **state)
{
    static world w, again;
    const char  *cases = getenv(getenv("T_SEEDS") != NULL ? "T_SEEDS" : "T_CASES");
    const char  *begin = getenv("T_FIRST_SEED");
    uint64_t     first = begin != NULL ? strtoull(begin, NULL, 10) + 1 : 1;
    int          n = cases != NULL ? atoi(cases) : 200, total[N_ENDINGS] = {0};
    int64_t      live = ch__mem_live();
    uint64_t     last = 0;

    for (uint64_t seed = first; seed < first + (uint64_t)n; seed++) {
        uint64_t hash = run_world(seed, &w);

        check_world(&w);
        assert_true(hash != last);
        last = hash;
        if (seed % 10 == 0) {
            assert_true(run_world(seed, &again) == hash);
            assert_int_equal(again.n_calls, w.n_calls);
        }
        for (int i = 0; i < N_ENDINGS; i++)
            total[i] += w.n_done[i];
        assert_int_equal(ch__mem_live(), live);
    }
    for (int i = 0; i < N_ENDINGS; i++)
        assert_true(total[i] > 0); /* every kind of ending occurred */
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_clock_jumps_to_the_next_event),
        cmocka_unit_test(sim_wait_without_further_events_is_an_error),
        cmocka_unit_test(sim_faults_happen_at_their_rates),
        cmocka_unit_test(sim_calls_overtake_each_other),
        cmocka_unit_test(sim_work_takes_time_and_is_dropped_in_a_crash),
        cmocka_unit_test(sim_broken_connection_ends_the_calls_on_both_sides),
        cmocka_unit_test(sim_reply_along_a_stale_path_is_ignored),
        cmocka_unit_test(sim_calls_beyond_twice_the_room_are_not_delivered),
        cmocka_unit_test(sim_calls_wait_while_replies_are_unsent),
        cmocka_unit_test(sim_deadline_counts_silence),
        cmocka_unit_test(sim_calls_end_once_under_random_faults),
    };

    (void)t_leave_out_a_check();
    return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
