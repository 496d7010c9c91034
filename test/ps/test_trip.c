/* test/ps/test_trip.c -- steps in parts through real servers, which give the bits of the step as it was.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "graph/function.h"
#include "graph/run.h"
#include "ps/server.h"
#include "ps/shard.h"
#include "ps/speak.h"
#include "ps/trip.h"
#include "steps.h"
#include "strategy/strategy.h"
#include "tensor/device.h"

enum { SERVERS = 3, MOST_VARS = 64, MOST_SHARDS = 8, MOST_VALUES = 256 };

/* ---- a worker that waits for each answer ---- */

typedef struct asker {
    ch_net    *net;
    ch_task   *task;
    uint64_t   n_asked;
    bool       has_ended;
    ch_ending  ending;
    ch_parcel *answer;
    ch_fault   fault;
} asker;

static void on_answer(void *self, const ch_net_event *e, int64_t now, ch_post *post)
{
    asker *a = self;

    (void)now;
    (void)post;
    if (e->kind != CH_EVENT_ANSWER || e->id != a->n_asked)
        return;
    a->has_ended = true;
    a->ending = e->ending;
    if (e->ending == CH_ENDED_OK)
        a->answer = ch__parcel_ref(e->parcel);
    else
        a->fault = *e->fault;
}

static void close_asker(void *self)
{
    (void)self;
}

static ch_status make_asker(void *arg, ch_task *t, uint64_t incarnation, ch_post *post,
                            void **self)
{
    (void)t;
    (void)incarnation;
    (void)post;
    *self = arg;
    return CH_OK;
}

static bool has_ended(void *arg)
{
    return ((asker *)arg)->has_ended;
}

static void begin(asker *a)
{
    static const ch_task_ops ops = {on_answer, close_asker};
    static ch_server_options options[SERVERS];

    memset(a, 0, sizeof(*a));
    t_ok(ch__net_sim(&(ch_sim_options){.seed = 1, .encode = true}, &a->net));
    for (int i = 0; i < SERVERS; i++) {
        char     name[16];
        ch_task *t = NULL;

        snprintf(name, sizeof(name), "ps/%d", i);
        t_ok(ch__device_of_task("ps", i, 0, &options[i].device));
        t_ok(ch__task_start(a->net,
                            &(ch_task_options){.name = name,
                                               .ops = &ch__server_ops,
                                               .make = ch__server_make,
                                               .arg = &options[i]},
                            &t));
    }
    t_ok(ch__task_start(
        a->net,
        &(ch_task_options){.name = "worker/0", .ops = &ops, .make = make_asker, .arg = a},
        &a->task));
}

/* Takes the parcel over; the answer is in a->answer. */
static void ask(asker *a, int server, ch_parcel *p)
{
    char     name[16];
    ch_post *post;

    snprintf(name, sizeof(name), "ps/%d", server);
    ch__parcel_unref(a->answer);
    a->answer = NULL;
    a->has_ended = false;
    a->n_asked++;
    post = ch__task_enter(a->task);
    ch__post_call(
        post, ch__task_link(a->task, name), p,
        &(ch_call_options){.id = a->n_asked, .deadline = ch__task_now(a->task) + 1000000000});
    t_ok(ch__task_wait(a->task, has_ended, a, 10000, name));
    ch__task_leave(a->task);
    if (a->ending == CH_ENDED_REFUSED)
        t_ok(ch__fault_raise(&a->fault));
    assert_int_equal(a->ending, CH_ENDED_OK);
}

/* ---- variables on servers ---- */

typedef struct where {
    int places, axis, shards;
} where;

static const where wheres[] = {{1, 0, 1}, {3, 0, 1}, {1, 0, 2},
                               {2, 0, 3}, {1, 1, 2}, {2, 1, 3}};
enum { N_WHERES = sizeof(wheres) / sizeof(wheres[0]) };

typedef struct cluster {
    asker                 a;
    int                   n, place[MOST_VARS];
    ch_route_variable     variable[MOST_VARS];
    struct ch_route_shard shard[MOST_VARS][MOST_SHARDS];
    uint64_t              n_numbers;
} cluster;

static void place_variable(cluster *c, int i, ch_shape shape, where at)
{
    ch_route_variable *v = &c->variable[i];
    int                size;

    v->axis = at.axis;
    v->n_shards = shape.rank > at.axis && shape.dim[at.axis] >= at.shards ? at.shards : 1;
    size = v->n_shards > 1 ? (int)shape.dim[at.axis] : 0;
    c->place[i] = (size * MOST_SHARDS + v->n_shards) * at.places + i % at.places;
    v->shard = c->shard[i];
    for (int k = 0; k < v->n_shards; k++)
        c->shard[i][k] = (struct ch_route_shard){(c->place[i] + k) % SERVERS, ++c->n_numbers};
}

static void create(cluster *c, int i, ch_tensor *t)
{
    const ch_route_variable *v = &c->variable[i];

    for (int k = 0; k < v->n_shards; k++) {
        Cohort__PsCreate m;
        ch_parcel       *p = NULL;
        ch_tensor       *cut = NULL;
        char             name[96];

        snprintf(name, sizeof(name), "%s/part_%d", v->name, k);
        cohort__ps_create__init(&m);
        m.variable = v->shard[k].variable;
        m.name = name;
        t_ok(ch__shard_cut(t, (ch_layout){v->axis, v->n_shards}, v->shape, k, &cut));
        t_ok(ch__speak(CH_PS_CREATE, &m.base, 1, &cut, &p));
        ask(&c->a, v->shard[k].server, p);
    }
}

static void create_all(cluster *c, const ch_graph *g, where at)
{
    c->n = g->n_resources;
    for (int i = 0; i < c->n; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(g->resource[i].key, &t));
        c->variable[i] = (ch_route_variable){.name = g->resource[i].name,
                                             .dtype = ch_tensor_dtype(t),
                                             .shape = ch_tensor_shape(t)};
        place_variable(c, i, ch_tensor_shape(t), at);
        create(c, i, t);
        ch_tensor_unref(t);
    }
}

static ch_tensor *read_back(cluster *c, int i)
{
    const ch_route_variable *v = &c->variable[i];
    ch_tensor               *part[MOST_SHARDS], *whole = NULL;

    for (int k = 0; k < v->n_shards; k++) {
        Cohort__PsRead m;
        ch_parcel     *p = NULL;
        uint64_t       number = v->shard[k].variable;

        cohort__ps_read__init(&m);
        m.n_variables = 1;
        m.variables = &number;
        t_ok(ch__speak(CH_PS_READ, &m.base, 0, NULL, &p));
        ask(&c->a, v->shard[k].server, p);
        part[k] = ch_tensor_ref(c->a.answer->tensor[0]);
    }
    t_ok(ch__shard_join((ch_layout){v->axis, v->n_shards}, part, &whole));
    for (int k = 0; k < v->n_shards; k++)
        ch_tensor_unref(part[k]);
    return whole;
}

static void define_all(cluster *c, const ch_sent_route *r)
{
    for (int i = 0; i < r->route->n_remotes; i++) {
        const ch_remote *u = &r->route->remote[i];

        for (int k = 0; u->kind == CH_REMOTE_UPDATE && k < r->variable[u->variable[0]].n_shards;
             k++) {
            Cohort__PsDefine m;
            uint64_t         number[MOST_VARS];
            ch_graph        *g = NULL;
            ch_parcel       *p = NULL;
            void            *bytes = NULL;

            cohort__ps_define__init(&m);
            t_ok(ch__trip_update(r, i, k, &m.function, &g));
            t_ok(ch_graph_encode(g, &bytes, &m.graph.len));
            m.graph.data = bytes;
            m.n_variables = (size_t)u->n_variables;
            m.variables = number;
            for (int n = 0; n < u->n_variables; n++)
                number[n] = r->variable[u->variable[n]].shard[k].variable;
            t_ok(ch__speak(CH_PS_DEFINE, &m.base, 0, NULL, &p));
            ask(&c->a, r->variable[u->variable[0]].shard[k].server, p);
            ch_bytes_free(bytes);
            ch_graph_unref(g);
        }
    }
}

/* ---- a step ---- */

static ch_status no_resource(void *owner, const ch_resource *r, int local, void **out)
{
    (void)owner;
    (void)local;
    (void)out;
    return ch__fail(CH_INTERNAL, "a segment has variable %s", r->name);
}

static void run_segment(ch_trip *t, const ch_segment *s, int64_t rows)
{
    static const ch_run_ops ops = {.resource = no_resource};
    ch_function            *f = NULL;
    ch_tuple               *in = NULL, *out = NULL;
    ch_device              *device = ch_device_current();

    t_ok(ch__trip_inputs(t, &in));
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
    t_ok(ch__trip_ran(t, out));
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_function_unref(f);
}

/* Every call is made twice: the second changes nothing. */
static void run_trip(cluster *c, ch_trip *t, int64_t rows)
{
    while (!ch__trip_is_done(t)) {
        ch_trip_call *const *call = NULL;
        const ch_segment    *s;
        int                  n = 0;

        t_ok(ch__trip_ask(t, &n, &call));
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 2; k++) {
                ask(&c->a, call[i]->server, ch__parcel_ref(call[i]->parcel));
                t_ok(ch__trip_answer(t, call[i], c->a.answer));
            }
        while ((s = ch__trip_segment(t)) != NULL)
            run_segment(t, s, rows);
    }
}

static void compare(cluster *c, const ch_graph *g, const ch_trip *t, const ch_tuple *out)
{
    for (int i = 0; i < ch_tuple_count(out); i++)
        same_bits("a result", ch_value_at(ch_tuple_at(out, i), 0), ch__trip_result(t, i, 0));
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
    ch_route       *route = NULL;
    ch_graph       *g;
    ch_tensor      *input[8];

    memset(&c, 0, sizeof(c));
    begin(&c.a);
    t_ok(ch_function_new("step", step, j, &f));
    t_ok(ch_strategy_run(NULL, f, in, NULL));
    g = ch_function_graph(f);
    create_all(&c, g, at);
    t_ok(ch__route_new(g, c.place, &route));
    for (int i = 0; i < route->n_remotes; i++)
        function[i] = (uint64_t)i * MOST_SHARDS + 1;
    define_all(&c, &(ch_sent_route){route, c.n, c.variable, function});
    for (int i = 0; i < ch_tuple_count(in); i++)
        input[i] = ch_value_at(ch_tuple_at(in, i), 0);
    for (uint64_t n = 0; n < 3; n++) {
        ch_sent_route sent = {route, c.n, c.variable, function};
        ch_trip      *t = NULL;
        ch_tuple     *out = NULL;

        t_ok(ch__trip_new(
            &sent,
            &(ch_attempt){.step = n, .retired = n, .worker = "worker/0", .incarnation = 1}, 1,
            input, &t));
        run_trip(&c, t, rows);
        t_ok(ch_strategy_run_with(NULL, f, in, &(ch_run_options){.has_step_number = true},
                                  &out));
        compare(&c, g, t, out);
        ch_tuple_unref(out);
        ch__trip_free(t);
    }
    ch__route_free(route);
    ch_function_unref(f);
    ch__parcel_unref(c.a.answer);
    ch__net_free(c.a.net);
}

static void steps_through_servers(void **state)
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
            t_ok(k == 1 ? ch_sgd(0.1, NULL, NULL, &j.optimizer)
                        : ch_adam(0.1, NULL, NULL, &j.optimizer));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_through_servers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
