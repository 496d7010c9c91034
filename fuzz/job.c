/* fuzz/job.c -- what a parameter server and a worker make of any calls.
 *
 * An input says what the server and the worker have to begin with, and is then a list of calls to them. Each is put together from
 * its bytes: a message field by field, or any bytes at all, and tensors of a few kinds beside it; graphs, routes and datasets are
 * real ones, or real ones with some bits turned. However odd, a call is answered or refused, memory stays within bounds, and nothing is left
 * of it, also if memory is short meanwhile.
 *
 * Tasks are made for each input, so that one alone shows again what it found, and calls go straight to them (job/net.h). What is
 * accepted of turned graphs and datasets is not run: how long they take is not for a decoder to say.
 *
 * covers: src/ps/server.c src/ps/speak.c
 * longest: 160
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "coord/worker.h"
#include "fuzz.h"
#include "job/make.h"
#include "job/net.h"
#include "message.h"
#include "ps/server.h"
#include "ps/speak.h"
#include "tensor/device.h"

enum { STREAMS = 2, MOST_FIELDS = 256, MOST_TENSORS = 4 };

#define MOST_MEMORY ((int64_t)32 << 20)

static blob       graph[GRAPHS], route[ROUTES], stream[STREAMS];
static ch_parcel *create[VARIABLES], *define[GRAPHS], *function[ROUTES], *follow[STREAMS];
static ch_server_options server_options;
static ch_worker_options worker_options;

/* ---- what there is before the first call ---- */

static ch_tensor *bytes_tensor(const blob *b)
{
    ch_tensor *t = NULL;

    must(ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)b->size), b->data, &t));
    return t;
}

static ch_parcel *parcel_of(uint32_t method, const ProtobufCMessage *m, ch_tensor *t)
{
    ch_parcel *p = NULL;

    must(ch__speak(method, m, t != NULL, &t, &p));
    return p;
}

static ch_parcel *creation_of(int i)
{
    Cohort__PsCreate m;
    ch_tensor       *t = NULL;
    char             name[] = "x";

    cohort__ps_create__init(&m);
    m.variable = (uint64_t)i + 1;
    m.name = name;
    must(ch_var_get(make_variables()[i], &t));
    return parcel_of(CH_PS_CREATE, &m.base, t);
}

static ch_parcel *definition_of(int i)
{
    Cohort__PsDefine m;
    uint64_t         number = (uint64_t)i + 1;

    cohort__ps_define__init(&m);
    m.function = number;
    m.graph = (ProtobufCBinaryData){graph[i].size, graph[i].data};
    m.n_variables = 1;
    m.variables = &number;
    return parcel_of(CH_PS_DEFINE, &m.base, NULL);
}

static ch_parcel *function_of(int i)
{
    Cohort__WorkerFunction m;
    uint64_t               life = 1;

    cohort__worker_function__init(&m);
    m.function = (uint64_t)i + 1;
    m.n_servers = 1;
    m.servers = &life;
    return parcel_of(CH_WORKER_FUNCTION, &m.base, bytes_tensor(&route[i]));
}

static ch_parcel *stream_of(int i)
{
    Cohort__WorkerStream m;

    cohort__worker_stream__init(&m);
    m.stream = (uint64_t)i + 1;
    return parcel_of(CH_WORKER_STREAM, &m.base, bytes_tensor(&stream[i]));
}

/* Two elements: of one component that route 0 takes, or of two. */
static blob make_stream(int i)
{
    ch_tensor         *t[] = {make_tensor(CH_F32, ch_shape_of(2, 3)),
                              make_tensor(CH_F32, ch_shape_of(2, 3))};
    const char *const  name[] = {"x", "y"};
    ch_dataset        *d = ch_dataset_slices(1 + i, t, name);
    ch_dataset_options no_threads = {.threads = CH_OFF};
    blob               b = {0};

    d = ch_dataset_with_options(d, &no_threads);
    must(ch_dataset_encode(d, &b.data, &b.size));
    ch_dataset_unref(d);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return b;
}

static void no_log(const ch_log_record *record, void *arg)
{
    (void)record, (void)arg;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ch_log_set_sink(no_log, NULL, CH_LOG_ERROR);
    for (int i = 0; i < VARIABLES; i++)
        create[i] = creation_of(i);
    for (int i = 0; i < GRAPHS; i++) {
        graph[i] = make_graph(i);
        define[i] = definition_of(i);
    }
    for (int i = 0; i < ROUTES; i++) {
        route[i] = make_route(i, 1);
        function[i] = function_of(i);
    }
    for (int i = 0; i < STREAMS; i++) {
        stream[i] = make_stream(i);
        follow[i] = stream_of(i);
    }
    must(ch__device_of_task("ps", 0, 0, &server_options.device));
    worker_options = (ch_worker_options){
        .n_devices = 1, .call_ns = 5000000, .retry_ns = 1000000, .patience_ns = 1};
    must(ch__device_of_task("worker", 0, 0, &worker_options.device[0]));
    return 0;
}

/* ---- a session ---- */

typedef struct session {
    const uint8_t *data;
    size_t         left;
    ch_net        *net;
    ch_task       *server, *worker;
    bool  is_turned; /* it was sent a graph, route or dataset that is not what it was */
    bool  is_short;  /* of memory */
    int   n_fields;
    void *field[MOST_FIELDS]; /* memory of the message that is being made */
} session;

/* Takes the parcel over. */
static void ask(session *s, bool of_worker, ch_parcel *p)
{
    ch_ending e = direct_ask(of_worker ? s->worker : s->server, p);

    MUST(e == CH_ENDED_OK || e == CH_ENDED_REFUSED || s->is_short ||
         (of_worker && e == CH_ENDED_LATE));
}

static void ask_each(session *s, bool of_worker, int n, ch_parcel *const *p)
{
    for (int i = 0; i < n; i++)
        MUST(direct_ask(of_worker ? s->worker : s->server, ch__parcel_ref(p[i])) ==
             CH_ENDED_OK);
}

static void begin(session *s, unsigned has)
{
    s->net = direct_net();
    must(ch__task_start(s->net,
                        &(ch_task_options){.name = "ps/0",
                                           .ops = &ch__server_ops,
                                           .make = ch__server_make,
                                           .arg = &server_options},
                        &s->server));
    must(ch__task_start(s->net,
                        &(ch_task_options){.name = "worker/0",
                                           .ops = &ch__worker_ops,
                                           .make = ch__worker_make,
                                           .arg = &worker_options},
                        &s->worker));
    if (has & 1)
        ask_each(s, false, VARIABLES, create);
    if ((has & 3) == 3)
        ask_each(s, false, GRAPHS, define);
    if (has & 4)
        ask_each(s, true, ROUTES, function);
    if (has & 8)
        ask_each(s, true, STREAMS, follow);
}

/* ---- calls from bytes ---- */

static uint8_t byte(session *s)
{
    if (s->left == 0)
        return 0;
    s->left--;
    return *s->data++;
}

static uint64_t number(session *s)
{
    static const uint64_t odd[] = {UINT64_MAX, UINT64_MAX - 1, 0xffffffff, 1u << 31,
                                   1ull << 63, 1ull << 32,     1 << 20,    255};
    uint8_t               b = byte(s);

    return b < 224 ? b % 7 : odd[b % 8];
}

static void *field_memory(session *s, size_t bytes)
{
    void *p = calloc(1, bytes > 0 ? bytes : 1);

    MUST(p != NULL && s->n_fields < MOST_FIELDS);
    return s->field[s->n_fields++] = p;
}

/* Some of its bits, if the input says so. */
static void turn(session *s, uint8_t *data, size_t n)
{
    for (int k = byte(s) % 4; k > 0 && n > 0; k--) {
        size_t at = ((size_t)byte(s) << 8 | byte(s)) % n;

        data[at] ^= byte(s);
        s->is_turned = true;
    }
}

static ProtobufCBinaryData some_bytes(session *s)
{
    const blob         *from = &graph[byte(s) % GRAPHS];
    ProtobufCBinaryData b = {from->size, field_memory(s, from->size)};

    memcpy(b.data, from->data, from->size);
    turn(s, b.data, b.len);
    return b;
}

static char *some_text(session *s)
{
    static const char *const text[] = {"",        "x",   "worker/0", "worker/1",
                                       "asker/0", "f32", "table",    "a/b"};
    char                    *copy = field_memory(s, 16);

    snprintf(copy, 16, "%s", text[byte(s) % 8]);
    return copy;
}

static ProtobufCMessage *some_message(session *s, const ProtobufCMessageDescriptor *type);

static void fill(session *s, const ProtobufCFieldDescriptor *f, void *at)
{
    uint64_t n;

    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = some_text(s);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *)at = some_bytes(s);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)at = some_message(s, f->descriptor);
        break;
    default:
        n = f->type == PROTOBUF_C_TYPE_BOOL ? byte(s) % 2 : number(s);
        memcpy(at, &n, field_bytes(f->type));
    }
}

static ProtobufCMessage *some_message(session *s, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *m = field_memory(s, type->sizeof_message);

    protobuf_c_message_init(type, m);
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &type->fields[i];
        char                           *at = (char *)m + f->offset;
        size_t                          size = field_bytes(f->type), n = byte(s) % 4;

        if (f->label != PROTOBUF_C_LABEL_REPEATED) {
            fill(s, f, at);
            continue;
        }
        *(size_t *)(void *)((char *)m + f->quantifier_offset) = n;
        *(void **)(void *)at = field_memory(s, n * size);
        for (size_t k = 0; k < n; k++)
            fill(s, f, *(char **)(void *)at + k * size);
    }
    return m;
}

/* Ids are within the table, or nearly. */
static ch_tensor *some_ids(session *s)
{
    ch_tensor *t = make_tensor(CH_I64, ch_shape_of(byte(s) % 5));

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((int64_t *)ch_tensor_data_mut(t))[i] = (int8_t)byte(s) % 6;
    return t;
}

static ch_tensor *some_view(void)
{
    ch_tensor *t = make_tensor(CH_F32, ch_shape_of(3, 4)), *view = NULL;

    must(ch_tensor_transpose(t, NULL, &view));
    ch_tensor_unref(t);
    return view;
}

/* A route or a dataset, as bytes. */
static ch_tensor *some_blob(session *s)
{
    uint8_t     b = byte(s);
    const blob *from = b % 4 < 3 ? &route[b / 4 % ROUTES] : &stream[b / 4 % STREAMS];
    ch_tensor  *t = bytes_tensor(from);

    turn(s, ch_tensor_data_mut(t), from->size);
    return t;
}

static ch_tensor *some_tensor(session *s)
{
    uint8_t b = byte(s);

    switch (b % 9) {
    case 0:
        return make_tensor(CH_F32, ch_shape_of(3));
    case 1:
        return make_tensor(CH_F32, ch_shape_of(4, 3));
    case 2:
        return some_ids(s);
    case 3:
        return make_tensor(CH_F32, ch_shape_of(b / 9 % 5, 3));
    case 4:
        return make_tensor(CH_STR, ch_shape_of(b / 9 % 3));
    case 5:
        return make_tensor(CH_F32, ch_shape_scalar());
    case 6:
        return some_view();
    case 7:
        return make_tensor(b % 2 ? CH_I32 : CH_F64, ch_shape_of(2, 0));
    default:
        return some_blob(s);
    }
}

typedef struct method {
    uint32_t                          number;
    const ProtobufCMessageDescriptor *type;
} method;

static const method methods[] = {
    {CH_PS_CREATE, &cohort__ps_create__descriptor},
    {CH_PS_FREE, &cohort__ps_free__descriptor},
    {CH_PS_DEFINE, &cohort__ps_define__descriptor},
    {CH_PS_READ, &cohort__ps_read__descriptor},
    {CH_PS_ROWS, &cohort__ps_rows__descriptor},
    {CH_PS_UPDATE, &cohort__ps_update__descriptor},
    {CH_PS_FENCE, &cohort__ps_fence__descriptor},
    {CH_PS_PIN, &cohort__ps_pin__descriptor},
    {CH_PS_PING, &cohort__ps_ping__descriptor},
    {CH_PS_ASSIGN, &cohort__ps_assign__descriptor},
    {CH_WORKER_FUNCTION, &cohort__worker_function__descriptor},
    {CH_WORKER_RUN, &cohort__worker_run__descriptor},
    {CH_WORKER_PING, &cohort__worker_ping__descriptor},
    {CH_WORKER_STREAM, &cohort__worker_stream__descriptor},
    {CH_WORKER_DROP, &cohort__worker_drop__descriptor},
};
enum { METHODS = sizeof(methods) / sizeof(methods[0]) };

static int some_tensors(session *s, ch_tensor **t)
{
    int n = byte(s) % (MOST_TENSORS + 1);

    for (int i = 0; i < n; i++)
        t[i] = some_tensor(s);
    return n;
}

/* What is there of the input is the message. */
static ch_parcel *any_parcel(session *s, uint32_t method_number)
{
    ch_tensor *t[MOST_TENSORS];
    int        n = some_tensors(s, t);
    size_t     size = byte(s);
    ch_parcel *p = NULL;
    void      *at = NULL;

    size = size < s->left ? size : s->left;
    must(ch__parcel_new(method_number, size, &at, n, t, &p));
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)at)[i] = byte(s);
    return p;
}

static ch_parcel *some_parcel(session *s, const method *m)
{
    ch_tensor        *t[MOST_TENSORS];
    int               n = some_tensors(s, t);
    ch_parcel        *p = NULL;
    ProtobufCMessage *message = some_message(s, m->type);

    must(ch__speak(m->number, message, n, t, &p));
    while (s->n_fields > 0)
        free(s->field[--s->n_fields]);
    return p;
}

static bool runs(uint32_t method_number)
{
    return method_number == CH_PS_UPDATE || method_number == CH_WORKER_RUN;
}

static void call(session *s)
{
    uint8_t       b = byte(s);
    const method *m = &methods[b % METHODS];
    bool          is_any = b / METHODS % 4 == 3, of_worker = m->number >= CH_WORKER_FUNCTION;
    ch_parcel    *p;

    if (b > 250) /* to who does not expect it */
        of_worker = !of_worker;
    p = is_any ? any_parcel(s, m->number) : some_parcel(s, m);
    if (s->is_turned && runs(m->number)) {
        ch__parcel_unref(p);
        return;
    }
    if (s->is_short)
        ch__mem_fail_at(1 + byte(s) % 64);
    ask(s, of_worker, p);
    ch__mem_fail_at(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    session  s = {.data = data, .left = size};
    unsigned which = fuzz_hash(data, size);
    int64_t  live = ch__mem_live();

    ch__mem_watch(which % 16 == 0);
    begin(&s, byte(&s));
    s.is_short = which % 16 == 1;
    while (s.left > 0)
        call(&s);
    ch__net_free(s.net);
    MUST(which % 16 != 0 || ch__mem_most() < MOST_MEMORY);
    MUST(ch__mem_live() <= live + 4); /* workspaces of devices, once */
    ch__mem_watch(false);
    return 0;
}
