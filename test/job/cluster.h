/* test/job/cluster.h -- parameter servers in a simulation, and a client task that calls them.
 *
 * The client (asker) sends a message to a task and runs the simulation until the call has
 * ended.
 * Tests of servers and workers use it instead of a coordinator.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_JOB_CLUSTER_H
#define TEST_JOB_CLUSTER_H

#include "graph/graph.h"
#include "job/message.h"
#include "job/server.h"
#include "job/shard.h"
#include "job/step_exec.h"
#include "steps.h"
#include "strategy/strategy.h"
#include "tensor/device.h"

enum { SERVERS = 3, MOST_VARS = 64, MOST_SHARDS = 8, MOST_VALUES = 256 };

/* ---- a client that waits for each reply ---- */

typedef struct asker {
    ch_net     *net;
    ch_task    *task, *server[SERVERS];
    uint64_t    n_asked;
    bool        has_ended;
    ch_ending   ending;
    ch_message *answer;
    ch_fault    fault;
} asker;

static inline void on_answer(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox)
{
    asker *a = self;

    (void)now;
    (void)outbox;
    if (e->kind != CH_EVENT_REPLY || e->id != a->n_asked)
        return;
    a->has_ended = true;
    a->ending = e->ending;
    if (e->ending == CH_ENDED_OK)
        a->answer = ch__message_ref(e->message);
    else
        a->fault = *e->fault;
}

static inline void close_asker(void *self)
{
    (void)self;
}

static inline ch_status make_asker(void *arg, ch_task *t, uint64_t incarnation,
                                   ch_outbox *outbox, void **self)
{
    (void)t;
    (void)incarnation;
    (void)outbox;
    *self = arg;
    return CH_OK;
}

static inline bool has_ended(void *arg)
{
    return ((asker *)arg)->has_ended;
}

static inline void begin(asker *a, const ch_sim_options *opt)
{
    static const ch_task_ops ops = {on_answer, close_asker};
    static ch_server_options options[SERVERS];

    memset(a, 0, sizeof(*a));
    t_ok(ch__net_sim(opt, &a->net));
    for (int i = 0; i < SERVERS; i++) {
        char name[16];

        snprintf(name, sizeof(name), "ps/%d", i);
        t_ok(ch__device_of_task("ps", i, 0, &options[i].device));
        t_ok(ch__task_start(a->net,
                            &(ch_task_options){.name = name,
                                               .ops = &ch__server_ops,
                                               .make = ch__server_make,
                                               .arg = &options[i]},
                            &a->server[i]));
    }
    t_ok(ch__task_start(
        a->net,
        &(ch_task_options){.name = "worker/0", .ops = &ops, .make = make_asker, .arg = a},
        &a->task));
}

/* Sends a message, and waits for the end of the call. Takes over the reference to the message.
 * The reply, if there is one, is in a->answer. */
static inline ch_ending try_to_ask(asker *a, const char *name, ch_message *p)
{
    ch_outbox *outbox;

    ch__message_unref(a->answer);
    a->answer = NULL;
    a->has_ended = false;
    a->n_asked++;
    outbox = ch__task_enter(a->task);
    ch__outbox_call(
        outbox, ch__task_link(a->task, name), p,
        &(ch_call_options){.id = a->n_asked, .deadline = ch__task_now(a->task) + 1000000000});
    t_ok(ch__task_wait(a->task, has_ended, a, 10000, name));
    ch__task_leave(a->task);
    return a->ending;
}

/* Repeats the call until the task replies. The task may receive the message more than once. */
static inline void ask_task(asker *a, const char *name, ch_message *p)
{
    ch_ending ending;

    do
        ending = try_to_ask(a, name, ch__message_ref(p));
    while (ending != CH_ENDED_OK && ending != CH_ENDED_ERROR);
    ch__message_unref(p);
    if (ending == CH_ENDED_ERROR)
        t_ok(ch__fault_raise(&a->fault));
}

static inline void ask(asker *a, int server, ch_message *p)
{
    char name[16];

    snprintf(name, sizeof(name), "ps/%d", server);
    ask_task(a, name, p);
}

/* ---- variables on servers ---- */

typedef struct where {
    int places, axis, shards;
} where;

static const where wheres[] = {{1, 0, 1}, {3, 0, 1}, {1, 0, 2},
                               {2, 0, 3}, {1, 1, 2}, {2, 1, 3}};
enum { N_WHERES = sizeof(wheres) / sizeof(wheres[0]) };

typedef struct cluster {
    asker                a;
    int                  n, place[MOST_VARS], axis[MOST_VARS];
    ch_plan_variable     variable[MOST_VARS];
    struct ch_plan_shard shard[MOST_VARS][MOST_SHARDS];
    uint64_t             n_numbers;
} cluster;

static inline void place_variable(cluster *c, int i, ch_shape shape, where at)
{
    ch_plan_variable *v = &c->variable[i];
    int               size;

    v->axis = at.axis;
    v->n_shards = shape.rank > at.axis && shape.dim[at.axis] >= at.shards ? at.shards : 1;
    size = v->n_shards > 1 ? (int)shape.dim[at.axis] : 0;
    c->axis[i] = v->n_shards > 1 ? at.axis : -1;
    c->place[i] = (size * MOST_SHARDS + v->n_shards) * at.places + i % at.places;
    v->shard = c->shard[i];
    for (int k = 0; k < v->n_shards; k++)
        c->shard[i][k] = (struct ch_plan_shard){(c->place[i] + k) % SERVERS, ++c->n_numbers};
}

static inline void create(cluster *c, int i, ch_tensor *t)
{
    const ch_plan_variable *v = &c->variable[i];

    for (int k = 0; k < v->n_shards; k++) {
        Cohort__PsCreate m;
        ch_message      *p = NULL;
        ch_tensor       *cut = NULL;
        char             name[96];

        snprintf(name, sizeof(name), "%s/part_%d", v->name, k);
        cohort__ps_create__init(&m);
        m.variable = v->shard[k].variable;
        m.name = name;
        t_ok(ch__layout_cut(ch__layout_along(v->axis, v->n_shards), v->shape, t, k, &cut));
        t_ok(ch__message_pack(CH_PS_CREATE, &m.base, 1, &cut, &p));
        ask(&c->a, v->shard[k].server, p);
    }
}

static inline void create_all(cluster *c, const ch_graph *g, where at)
{
    c->n = g->n_resources;
    for (int i = 0; i < c->n; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(g->resource[i].key, &t));
        c->variable[i] = (ch_plan_variable){.name = g->resource[i].name,
                                            .dtype = ch_tensor_dtype(t),
                                            .shape = ch_tensor_shape(t)};
        place_variable(c, i, ch_tensor_shape(t), at);
        create(c, i, t);
        ch_tensor_unref(t);
    }
}

static inline ch_tensor *read_back(cluster *c, int i)
{
    const ch_plan_variable *v = &c->variable[i];
    ch_tensor              *part[MOST_SHARDS], *whole = NULL;

    for (int k = 0; k < v->n_shards; k++) {
        Cohort__PsRead m;
        ch_message    *p = NULL;
        uint64_t       number = v->shard[k].variable;

        cohort__ps_read__init(&m);
        m.n_variables = 1;
        m.variables = &number;
        t_ok(ch__message_pack(CH_PS_READ, &m.base, 0, NULL, &p));
        ask(&c->a, v->shard[k].server, p);
        part[k] = ch_tensor_ref(c->a.answer->tensor[0]);
    }
    t_ok(ch__layout_join(ch__layout_along(v->axis, v->n_shards), part, &whole));
    for (int k = 0; k < v->n_shards; k++)
        ch_tensor_unref(part[k]);
    return whole;
}

#endif
