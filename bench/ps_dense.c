/* bench/ps_dense.c -- a variable on a parameter server: pull, push, step, empty calls.
 *
 * Server and client are tasks of this process, each with a thread. A pull ends when the client
 * has copied the value. A push ends when the server has subtracted the gradient, times a rate,
 * from its variable. In a step the client keeps the pulled value while it pushes, as a worker
 * does, so the server must not write to that memory.
 *
 * The limits are the necessary work on a single core. For a pull it is a copy of the value, for
 * a push the subtraction, and for a step the subtraction into other memory. The peer is
 * PyTorch's RPC, which copies between processes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "bench.h"
#include "graph/function.h"
#include "servers.h"

enum { WINDOW = 64 };

#define RATE 0.5

typedef struct job {
    client      c;
    int64_t     count;
    uint64_t    step;
    bool        is_push; /* in a step: the next call is a push */
    ch_tensor  *gradient, *hyper;
    ch_message *pulled;
    float      *a, *b, *to; /* operands of the limits */
} job;

/* ---- calls ---- */

static ch_message *ping(void *arg, int peer)
{
    Cohort__PsPing m;
    ch_message    *p = NULL;

    (void)arg;
    (void)peer;
    cohort__ps_ping__init(&m);
    must(ch__message_pack(CH_PS_PING, &m.base, 0, NULL, &p));
    return p;
}

static ch_message *pull(void *arg, int peer)
{
    (void)arg;
    (void)peer;
    return read_message(1);
}

/* Copies the pulled value to the client's memory, then pulls again. A worker reads the value
 * without a copy, but the peer copies it. */
static ch_message *pull_and_copy(void *arg, int peer)
{
    job *j = arg;

    if (j->c.answer != NULL && j->c.answer->n_tensors == 1)
        memcpy(j->to, ch_tensor_data(j->c.answer->tensor[0]), (size_t)j->count * sizeof(float));
    return pull(j, peer);
}

static ch_message *push(void *arg, int peer)
{
    job                *j = arg;
    Cohort__PsUpdate    m;
    Cohort__PsUpdateOne one, *list = &one;
    char                worker[] = "client/0";
    ch_tensor          *t[2] = {ch_tensor_ref(j->gradient), ch_tensor_ref(j->hyper)};
    ch_message         *p = NULL;

    (void)peer;
    cohort__ps_update__init(&m);
    cohort__ps_update_one__init(&one);
    m.step = m.retired = ++j->step;
    m.worker = worker;
    m.n_updates = 1;
    m.updates = &list;
    one.update = 1;
    one.inputs = 2;
    must(ch__message_pack(CH_PS_UPDATE, &m.base, 2, t, &p));
    return p;
}

/* Keeps the pulled value until the next pull. */
static ch_message *pull_or_push(void *arg, int peer)
{
    job *j = arg;

    j->is_push = !j->is_push;
    if (!j->is_push) {
        ch__message_unref(j->pulled);
        j->pulled = NULL;
        return pull(j, peer);
    }
    j->pulled = j->c.answer != NULL ? ch__message_ref(j->c.answer) : NULL;
    return push(j, peer);
}

static void run_calls(job *j, ch_message *(*make)(void *arg, int peer), int64_t n, int window)
{
    static const char *const server[] = {"ps/0"};

    j->c.make = make;
    j->c.arg = j;
    ask_many(&j->c, 1, server, n, window);
}

static void run_round_trips(void *arg, int64_t n)
{
    run_calls(arg, ping, n, 1);
}

static void run_pipelined(void *arg, int64_t n)
{
    run_calls(arg, ping, n, WINDOW);
}

static void run_pulls(void *arg, int64_t n)
{
    run_calls(arg, pull_and_copy, n, 1);
}

static void drop_pulled(job *j)
{
    ch__message_unref(j->pulled);
    ch__message_unref(j->c.answer);
    j->pulled = j->c.answer = NULL;
}

static void run_pushes(void *arg, int64_t n)
{
    drop_pulled(arg);
    run_calls(arg, push, n, 1);
}

static void run_steps(void *arg, int64_t n)
{
    job *j = arg;

    j->is_push = true;
    run_calls(j, pull_or_push, 2 * n, 1);
}

/* ---- the update, as a step makes it ---- */

typedef struct model {
    ch_var       *v;
    ch_optimizer *opt;
} model;

static void descend(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *gradient = ch_step_in(s, 0);

    ch_optimizer_apply(m->opt, s, 1, &m->v, &gradient);
}

/* Returns the second input of the update. The local part of the step computes it from the
 * number of iterations and the rate. */
static ch_tensor *hyper_of(const ch_local_part *s, ch_tensor *gradient)
{
    ch_function *f = NULL;
    ch_tensor   *in[3] = {gradient}, *hyper;
    ch_tuple    *tuple = NULL, *out = NULL;

    must(ch_tensor_scalar(CH_I64, 0, &in[1]));
    must(ch_tensor_scalar(CH_F64, RATE, &in[2]));
    must(ch_tuple_of(3, in, &tuple));
    must(ch_function_of_graph("worker", s->graph, &f));
    must(ch_strategy_run(NULL, f, tuple, &out));
    hyper = ch_tensor_ref(ch_value_at(ch_tuple_at(out, 1), 0));
    ch_tuple_unref(tuple);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_tensor_unref(in[1]);
    ch_tensor_unref(in[2]);
    return hyper;
}

static const ch_remote_part *update_of(const ch_step_plan *r, const ch_graph *g)
{
    for (int i = 0; i < r->n_remote_parts; i++)
        if (r->remote[i].kind == CH_REMOTE_UPDATE &&
            strcmp(g->resource[r->remote[i].variable[0]].name, "v") == 0)
            return &r->remote[i];
    must(CH_INTERNAL);
    return NULL;
}

static void tell(job *j, const ch_graph *g)
{
    Cohort__PsDefine m;
    ch_message      *p = NULL;
    uint64_t         number = 1;
    void            *bytes = NULL;

    cohort__ps_define__init(&m);
    must(ch_graph_encode(g, &bytes, &m.graph.len));
    m.graph.data = bytes;
    m.update = 1;
    m.n_variables = 1;
    m.variables = &number;
    must(ch__message_pack(CH_PS_DEFINE, &m.base, 0, NULL, &p));
    ask(&j->c, 0, p);
    ch_bytes_free(bytes);
}

static void define(job *j, ch_tensor *zeros)
{
    model         m = {0};
    ch_function  *f = NULL;
    ch_tuple     *in = NULL;
    ch_step_plan *plan = NULL;

    must(ch_var_new(NULL, &(ch_var_spec){.name = "v", .initial = zeros}, &m.v));
    must(ch_optimizer_sgd(RATE, NULL, NULL, &m.opt));
    must(ch_function_new("descend", descend, &m, &f));
    ch_function_static_rows(f);
    must(ch_tuple_of(1, &zeros, &in));
    must(ch_strategy_run(NULL, f, in, NULL));
    must(ch__step_plan_new(ch_function_graph(f), (int[]){0, 0, 0}, (int[]){-1, -1, -1}, &plan));
    j->hyper = hyper_of(&plan->local_part[0], zeros);
    tell(j, update_of(plan, ch_function_graph(f))->graph);
    ch__step_plan_free(plan);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_optimizer_unref(m.opt);
    ch_var_unref(m.v);
}

/* ---- limits ---- */

static void run_copy(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0) {
        memcpy(j->to, j->a, (size_t)j->count * sizeof(float));
        __asm__ volatile("" : : "r"(j->to) : "memory");
    }
}

static void subtract(const float *a, const float *b, float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = a[i] - (float)RATE * b[i];
    __asm__ volatile("" : : "r"(to) : "memory");
}

static void run_subtract(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0)
        subtract(j->a, j->b, j->a, j->count);
}

static void run_subtract_apart(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0)
        subtract(j->a, j->b, n % 2 ? j->a : j->to, j->count);
}

/* ---- rows ---- */

/* Checks the values after some steps, and that a value that was pulled before has not changed.
 * The gradient has small integers, so that the results are exact. */
static bool applies_right(void *arg, char *why, size_t size)
{
    job         *j = arg;
    ch_message  *kept;
    float       *was = malloc((size_t)j->count * sizeof(float));
    const float *g = ch_tensor_data(j->gradient), *is, *now;
    bool         is_right = true;

    if (was == NULL)
        exit(1);
    run_pulls(j, 1);
    kept = ch__message_ref(j->c.answer);
    is = ch_tensor_data(kept->tensor[0]);
    memcpy(was, is, (size_t)j->count * sizeof(float));
    run_steps(j, 3);
    run_pulls(j, 1);
    now = ch_tensor_data(j->c.answer->tensor[0]);
    for (int64_t i = 0; i < j->count && is_right; i++) {
        is_right = is[i] == was[i] && now[i] == was[i] - 3 * (float)RATE * g[i];
        if (!is_right)
            snprintf(why, size, "element %lld is %g, was %g and %g", (long long)i, now[i],
                     was[i], is[i]);
    }
    ch__message_unref(kept);
    free(was);
    return is_right;
}

static float *numbers(int64_t n, int64_t times)
{
    float *x = aligned_alloc(4096, (size_t)(n + 1024) * sizeof(float));

    if (x == NULL)
        exit(1);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i % 5 * times);
    return x;
}

static void set_up(job *j, int64_t bytes)
{
    ch_tensor *zeros = NULL;

    memset(j, 0, sizeof(*j));
    start_servers(&j->c);
    j->count = bytes / (int64_t)sizeof(float);
    must(ch_tensor_new(CH_F32, ch_shape_of(j->count), &zeros));
    must(ch_tensor_new(CH_F32, ch_shape_of(j->count), &j->gradient));
    for (int64_t i = 0; i < j->count; i++)
        ((float *)ch_tensor_data_mut(j->gradient))[i] = (float)(i % 7);
    create(&j->c, 0, 1, "v", ch_tensor_ref(zeros));
    define(j, zeros);
    ch_tensor_unref(zeros);
    j->a = numbers(j->count, 1);
    j->b = numbers(j->count, 0);
    j->to = numbers(j->count, 1);
}

static void tear_down(job *j)
{
    ch__message_unref(j->pulled);
    ch_tensor_unref(j->gradient);
    ch_tensor_unref(j->hyper);
    ch__net_free(j->c.net);
    free(j->a);
    free(j->b);
    free(j->to);
}

static void measure(bench *b, int64_t bytes, const char *size)
{
    static const struct {
        const char *name;
        void (*run)(void *arg, int64_t n), (*limit)(void *arg, int64_t n);
        int times; /* transfers of the bytes in a run */
    } row[] = {{"pull", run_pulls, run_copy, 1},
               {"push", run_pushes, run_subtract, 1},
               {"step", run_steps, run_subtract_apart, 2}};

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        static job j;
        char       name[64], command[128];
        bool       is_small = bytes < 1 << 20;
        bench_case c = {.name = name,
                        .unit = is_small ? "us" : "GB/s",
                        .better = is_small ? BENCH_LOWER : BENCH_HIGHER,
                        .scale = is_small ? 1e6 : 1e-9 * (double)bytes * row[i].times,
                        .ours = {.run = row[i].run, .arg = &j},
                        .limit = {.run = row[i].limit, .arg = &j},
                        .check = applies_right};

        snprintf(name, sizeof(name), "%s %s", row[i].name, size);
        snprintf(command, sizeof(command), "exec $PYTHON $PEERS/torch_rpc.py %s %lld",
                 row[i].name, (long long)bytes);
        if (!bench_wants(b, name))
            continue;
        c.peer[0] = (bench_side){.name = "PyTorch RPC, 2 processes", .command = command};
        set_up(&j, bytes);
        bench_run(b, &c);
        tear_down(&j);
    }
}

static void measure_null(bench *b)
{
    static job j;
    bench_side peer = {.name = "PyTorch RPC, 2 processes",
                       .command = "exec $PYTHON $PEERS/torch_rpc.py null 1"};

    if (!bench_wants(b, "null call, round trip") && !bench_wants(b, "null calls, pipelined"))
        return;
    set_up(&j, 64);
    bench_run(b, &(bench_case){.name = "null call, round trip",
                               .unit = "us",
                               .better = BENCH_LOWER,
                               .scale = 1e6,
                               .ours = {.run = run_round_trips, .arg = &j},
                               .peer = {peer}});
    peer.command = "exec $PYTHON $PEERS/torch_rpc.py null 64";
    bench_run(b, &(bench_case){.name = "null calls, pipelined",
                               .unit = "k calls/s",
                               .better = BENCH_HIGHER,
                               .scale = 1e-3,
                               .ours = {.run = run_pipelined, .arg = &j},
                               .peer = {peer}});
    tear_down(&j);
}

int main(int argc, char **argv)
{
    bench *b = bench_open("ps-dense", argc, argv);

    measure_null(b);
    measure(b, 4 << 10, "4 KiB");
    measure(b, 1 << 20, "1 MiB");
    measure(b, 4 << 20, "4 MiB");
    measure(b, 64 << 20, "64 MiB");
    return bench_close(b);
}
