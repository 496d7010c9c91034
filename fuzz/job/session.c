/* fuzz/job/session.c -- a server and a worker, which run the calls of an input.
 *
 * session_init() makes the tasks and the messages that create their objects. session_run()
 * starts the tasks, makes the calls of an input, and ends the tasks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/session.h"

#include "base/mem.h"
#include "job/calls.h"
#include "job/make.h"
#include "job/message.h"
#include "job/net.h"
#include "job/server.h"
#include "job/worker.h"
#include "tensor/device.h"

static const int64_t most_memory = 32 << 20, most_variable = 64 << 10;

static ch_message *create[VARIABLES], *define[GRAPHS], *function[FUNCTIONS], *follow[STREAMS];
static ch_server_options server_options;
static ch_worker_options worker_options;
static ch_net           *net;
static ch_task          *server, *worker;
static int64_t           live; /* blocks of memory before the first input */

/* ---- objects of the tasks ---- */

static ch_message *message_of(uint32_t method, const ProtobufCMessage *m, ch_tensor *t)
{
    ch_message *p = NULL;

    must(ch__message_pack(method, m, t != NULL, &t, &p));
    return p;
}

static ch_message *creation_of(int i)
{
    Cohort__PsCreate m;
    ch_tensor       *t = NULL;
    char             name[] = "x";

    cohort__ps_create__init(&m);
    m.variable = (uint64_t)i + 1;
    m.name = name;
    must(ch_var_get(make_variables()[i], &t));
    return message_of(CH_PS_CREATE, &m.base, t);
}

static ch_message *definition_of(int i)
{
    Cohort__PsDefine m;
    uint64_t         number = (uint64_t)i + 1;
    blob             graph = make_graph(i);
    ch_message      *p;

    cohort__ps_define__init(&m);
    m.update = number;
    m.graph = (ProtobufCBinaryData){graph.size, graph.data};
    m.n_variables = 1;
    m.variables = &number;
    p = message_of(CH_PS_DEFINE, &m.base, NULL);
    ch_bytes_free(graph.data);
    return p;
}

static ch_tensor *plan_tensor(int i)
{
    blob       b = make_plan(i, 1);
    ch_tensor *t = make_bytes(&b);

    ch__free(b.data);
    return t;
}

/* Returns step function i: one for each step plan, and a last one of step plan 0 whose last
 * input and result are per-worker variables 1 and 2. */
static ch_message *function_of(int i)
{
    Cohort__WorkerFunction m;
    Cohort__WorkerVariable per_worker[2], *list[2] = {&per_worker[0], &per_worker[1]};
    uint64_t               registration = 1;
    ch_tensor             *t[3] = {plan_tensor(i % PLANS)};
    ch_message            *p = NULL;

    cohort__worker_function__init(&m);
    m.function = (uint64_t)i + 1;
    m.n_servers = 1;
    m.servers = &registration;
    m.per_worker = list;
    for (; i == PLANS && m.n_per_worker < 2; m.n_per_worker++) {
        cohort__worker_variable__init(list[m.n_per_worker]);
        per_worker[m.n_per_worker].variable = m.n_per_worker + 1;
        per_worker[m.n_per_worker].read = m.n_per_worker == 0;
        per_worker[m.n_per_worker].written = m.n_per_worker == 1;
        t[1 + m.n_per_worker] =
            make_tensor(CH_F32, m.n_per_worker == 0 ? ch_shape_of(3) : ch_shape_scalar());
    }
    must(ch__message_pack(CH_WORKER_FUNCTION, &m.base, 1 + (int)m.n_per_worker, t, &p));
    return p;
}

static ch_tensor *stream_tensor(int i)
{
    blob       b = make_stream(i);
    ch_tensor *t = make_bytes(&b);

    ch_bytes_free(b.data);
    return t;
}

static ch_message *stream_of(int i)
{
    Cohort__WorkerStream m;

    cohort__worker_stream__init(&m);
    m.stream = (uint64_t)i + 1;
    return message_of(CH_WORKER_STREAM, &m.base, stream_tensor(i));
}

static void no_log(const ch_log_record *record, void *arg)
{
    (void)record, (void)arg;
}

static ch_task *task_of(const char *name, const ch_task_ops *ops,
                        ch_status (*make)(void *, ch_task *, uint64_t, ch_outbox *, void **),
                        void *arg)
{
    ch_task *t = NULL;

    must(ch__task_start(
        net, &(ch_task_options){.name = name, .ops = ops, .make = make, .arg = arg}, &t));
    direct_end(t);
    return t;
}

void session_init(void)
{
    ch_log_set_sink(no_log, NULL, CH_LOG_ERROR);
    calls_init();
    for (int i = 0; i < VARIABLES; i++)
        create[i] = creation_of(i);
    for (int i = 0; i < GRAPHS; i++)
        define[i] = definition_of(i);
    for (int i = 0; i < FUNCTIONS; i++)
        function[i] = function_of(i);
    for (int i = 0; i < STREAMS; i++)
        follow[i] = stream_of(i);
    must(ch__device_of_task("ps", 0, 0, &server_options.device));
    server_options.max_init_bytes = most_variable;
    worker_options = (ch_worker_options){
        .n_devices = 1, .call_ns = 5000000, .retry_ns = 1000000, .patience_ns = 1};
    must(ch__device_of_task("worker", 0, 0, &worker_options.device[0]));
    net = direct_net();
    server = task_of("ps/0", &ch__server_ops, ch__server_make, &server_options);
    worker = task_of("worker/0", &ch__worker_ops, ch__worker_make, &worker_options);
    live = ch__mem_live();
}

/* ---- a session ---- */

typedef struct session {
    source   from;
    unsigned has;      /* HAS_*: objects that are still to be created */
    bool     is_short; /* allocations fail */
} session;

static void tell(session *s, unsigned what, ch_task *whom, int n, ch_message *const *p)
{
    if ((s->has & what) == 0)
        return;
    s->has &= ~what;
    for (int i = 0; i < n; i++)
        MUST(direct_ask(whom, ch__message_ref(p[i])) == CH_ENDED_OK || s->is_short);
}

/* Creates the objects that a call of this method may use, unless they exist. */
static void prepare(session *s, uint32_t method_number)
{
    bool uses_all = method_number == CH_WORKER_RUN || method_number == CH_WORKER_DROP ||
                    method_number == CH_WORKER_READ;

    if (method_number < CH_WORKER_FUNCTION || method_number == CH_WORKER_RUN)
        tell(s, HAS_VARIABLES, server, VARIABLES, create);
    if (method_number == CH_PS_DEFINE || method_number == CH_PS_UPDATE ||
        method_number == CH_PS_FREE)
        tell(s, HAS_GRAPHS, server, GRAPHS, define);
    if (uses_all || method_number == CH_WORKER_FUNCTION)
        tell(s, HAS_FUNCTIONS, worker, FUNCTIONS, function);
    if (uses_all || method_number == CH_WORKER_STREAM)
        tell(s, HAS_STREAMS, worker, STREAMS, follow);
}

static bool runs(uint32_t method_number)
{
    return method_number == CH_PS_UPDATE || method_number == CH_WORKER_RUN;
}

static void call(session *s)
{
    one_call  c = next_call(&s->from);
    ch_ending e;

    if (s->from.is_turned && runs(c.method)) {
        ch__message_unref(c.message);
        return;
    }
    prepare(s, c.method);
    if (s->is_short)
        ch__mem_fail_at(1 + next_byte(&s->from) % 64);
    e = direct_ask(c.of_worker ? worker : server, c.message);
    ch__mem_fail_at(0);
    MUST(e == CH_ENDED_OK || e == CH_ENDED_ERROR || s->is_short ||
         (c.of_worker && e == CH_ENDED_TIMEOUT));
}

void session_run(const uint8_t *data, size_t size, unsigned may_have)
{
    session  s = {.from = {.data = data, .left = size}};
    unsigned which = fuzz_hash(data, size);

    ch__mem_watch(which % 16 == 0);
    s.has = next_byte(&s.from) & may_have;
    s.has &= s.has & HAS_VARIABLES ? HAS_ALL : HAS_ALL - HAS_GRAPHS;
    s.is_short = which % 16 == 1;
    direct_begin(server);
    direct_begin(worker);
    while (s.from.left > 0)
        call(&s);
    direct_end(worker);
    direct_end(server);
    MUST(which % 16 != 0 || ch__mem_peak() < most_memory);
    MUST(ch__mem_live() <= live + 64); /* memory that tasks and devices keep */
    ch__mem_watch(false);
}
