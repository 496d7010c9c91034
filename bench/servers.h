/* bench/servers.h -- parameter servers in this process, and a client that calls them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_SERVERS_H
#define BENCH_SERVERS_H

#include <string.h>

#include "job/message.h"
#include "job/server.h"
#include "job/shard.h"
#include "job/step_plan.h"
#include "must.h"
#include "net/net.h"
#include "tensor/device.h"

enum { SERVERS = 2 };

/* A task that calls a peer, or two at the same time. Keeps the last reply. Makes the next call
 * when a reply arrives. */
typedef struct client {
    ch_net  *net;
    ch_task *task, *server[SERVERS];
    int      n_peers;
    ch_link *link[2];
    int64_t  n_left[2], n_open;
    uint64_t n_ids;
    ch_message *(*make)(void *arg, int peer); /* makes the next call */
    void (*on_end)(void *arg, int peer);      /* called when a call has ended; may be NULL */
    void       *arg;
    ch_message *answer;
} client;

static ch_server_options server_options[SERVERS];

/* Makes the next call to a peer. Bit 0 of the id of a call is the index of the peer. */
static inline void post_next(client *c, int peer, ch_outbox *outbox, int64_t now)
{
    c->n_left[peer]--;
    c->n_open++;
    c->n_ids += 2;
    ch__outbox_call(
        outbox, c->link[peer], c->make(c->arg, peer),
        &(ch_call_options){.id = c->n_ids + (uint64_t)peer, .deadline = now + 60000000000});
}

static inline void on_answer(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox)
{
    client *c = self;
    int     peer = (int)(e->id & 1);

    if (e->kind != CH_EVENT_REPLY)
        return;
    if (e->ending != CH_ENDED_OK) {
        fprintf(stderr, "%s: %s\n", ch__link_name(c->link[peer]), e->fault->text);
        exit(1);
    }
    ch__message_unref(c->answer);
    c->answer = ch__message_ref(e->message);
    c->n_open--;
    if (c->on_end != NULL)
        c->on_end(c->arg, peer);
    if (c->n_left[peer] > 0)
        post_next(c, peer, outbox, now);
}

static inline void close_client(void *self)
{
    client *c = self;

    ch__message_unref(c->answer);
}

static inline ch_status make_client(void *arg, ch_task *t, uint64_t incarnation,
                                    ch_outbox *outbox, void **self)
{
    (void)t;
    (void)incarnation;
    (void)outbox;
    *self = arg;
    return CH_OK;
}

static inline bool is_answered(void *arg)
{
    return ((client *)arg)->n_open == 0;
}

static inline void start_servers(client *c)
{
    static const ch_task_ops ops = {on_answer, close_client};

    memset(c, 0, sizeof(*c));
    must(ch__net_inproc(NULL, &c->net));
    for (int i = 0; i < SERVERS; i++) {
        char name[16];

        snprintf(name, sizeof(name), "ps/%d", i);
        must(ch__device_of_task("ps", i, 0, &server_options[i].device));
        must(ch__task_start(c->net,
                            &(ch_task_options){.name = name,
                                               .ops = &ch__server_ops,
                                               .make = ch__server_make,
                                               .arg = &server_options[i]},
                            &c->server[i]));
    }
    must(ch__task_start(
        c->net,
        &(ch_task_options){.name = "client/0", .ops = &ops, .make = make_client, .arg = c},
        &c->task));
}

/* Makes n calls to each peer, at most `window` at a time. Blocks until all have ended. */
static inline void ask_many(client *c, int n_peers, const char *const *peer, int64_t n,
                            int window)
{
    ch_outbox *outbox = ch__task_enter(c->task);

    for (int i = 0; i < n_peers; i++) {
        c->link[i] = ch__task_link(c->task, peer[i]);
        c->n_left[i] = n;
        for (int k = 0; k < window && c->n_left[i] > 0; k++)
            post_next(c, i, outbox, ch__task_now(c->task));
    }
    must(ch__task_wait(c->task, is_answered, c, 0, peer[0]));
    ch__task_leave(c->task);
}

static inline ch_message *given(void *arg, int peer)
{
    (void)peer;
    return arg;
}

static inline void ask_task(client *c, const char *name, ch_message *p)
{
    c->make = given;
    c->on_end = NULL;
    c->arg = p;
    ask_many(c, 1, &name, 1, 1);
}

/* Makes a single call. Consumes the message. */
static inline void ask(client *c, int server, ch_message *p)
{
    char name[16];

    snprintf(name, sizeof(name), "ps/%d", server);
    ask_task(c, name, p);
}

/* Creates a variable on a server. Consumes a reference to the value. */
static inline void create(client *c, int server, uint64_t number, const char *name,
                          ch_tensor *t)
{
    Cohort__PsCreate m;
    ch_message      *p = NULL;
    char             text[64];

    snprintf(text, sizeof(text), "%s", name);
    cohort__ps_create__init(&m);
    m.variable = number;
    m.name = text;
    must(ch__message_pack(CH_PS_CREATE, &m.base, 1, &t, &p));
    ask(c, server, p);
}

static inline ch_message *read_message(uint64_t number)
{
    Cohort__PsRead m;
    ch_message    *p = NULL;

    cohort__ps_read__init(&m);
    m.n_variables = 1;
    m.variables = &number;
    must(ch__message_pack(CH_PS_READ, &m.base, 0, NULL, &p));
    return p;
}

#endif
