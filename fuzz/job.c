/* fuzz/job.c -- what a parameter server and a worker make of any calls.
 *
 * An input is a list of calls to a server that has variables and graphs, and to a worker that has a step. Each is put together from
 * its bytes: a message field by field, or any bytes at all, and tensors of a few kinds beside it; graphs and routes are real ones, or real ones with
 * some bits turned. However odd, a call is answered or refused, memory stays within bounds, and nothing is left of it.
 *
 * What is accepted of turned graphs is not run: how long they take is not for a decoder to say.
 *
 * covers: src/ps/server.c src/ps/route_codec.c src/ps/speak.c
 * longest: 240
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "cohort/cohort.h"
#include "coord/worker.h"
#include "fuzz.h"
#include "graph/function.h"
#include "message.h"
#include "ps/route.h"
#include "ps/server.h"
#include "ps/speak.h"
#include "tensor/device.h"

enum { VARIABLES = 3, GRAPHS = 2, ROUTES = 2, MOST_FIELDS = 256, MOST_TENSORS = 4 };

#define MOST_MEMORY ((int64_t)32 << 20)

/* Bytes that were made once, to be sent and turned. */
typedef struct blob {
    void  *data;
    size_t size;
} blob;

static struct ch_route_shard where[VARIABLES];
static ch_var               *variable[VARIABLES];
static blob                  graph[GRAPHS], route[ROUTES];
static ch_server_options     server_options;
static ch_worker_options     worker_options;

static void must(ch_status rc)
{
    MUST(rc == CH_OK);
}

/* ---- what there is before the first call ---- */

static void add(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "is", ch_var_assign_add(s, variable[0], ch_step_in(s, 0)));
}

static void scatter(ch_step *s, void *arg)
{
    (void)arg;
    ch_var_scatter_add(s, variable[1], ch_step_in(s, 0), ch_step_in(s, 1));
}

static void train(ch_step *s, void *arg)
{
    ch_node *w = ch_var_read(s, variable[0]), *x = ch_step_in(s, 0);

    (void)arg;
    ch_var_assign_sub(s, variable[0], ch_mul(w, x));
    ch_step_out(s, "n", ch_var_assign_add(s, variable[2], ch_number(s, 1)));
}

static void look_up(ch_step *s, void *arg)
{
    ch_node *rows = ch_gather(ch_var_read(s, variable[1]), ch_step_in(s, 0), 0);

    (void)arg;
    ch_var_scatter_add(s, variable[1], ch_step_in(s, 0), ch_mul(rows, ch_number(s, 2)));
    ch_step_out(s, "rows", rows);
}

static ch_tensor *tensor_of(ch_dtype dtype, ch_shape shape)
{
    ch_tensor *t = NULL;

    must(ch_tensor_new(dtype, shape, &t));
    return t;
}

static ch_route *route_of(ch_step_fn step, int n, ch_tensor **in, ch_function **f)
{
    static const int place[VARIABLES] = {0, 1, 2};
    ch_tuple        *tuple = NULL;
    ch_route        *r = NULL;

    must(ch_function_new("step", step, NULL, f));
    ch_function_static_rows(*f);
    must(ch_tuple_of(n, in, &tuple));
    must(ch_strategy_run(NULL, *f, tuple, NULL));
    must(ch__route_new(ch_function_graph(*f), place, &r));
    ch_tuple_unref(tuple);
    for (int i = 0; i < n; i++)
        ch_tensor_unref(in[i]);
    return r;
}

static blob graph_of(ch_step_fn step, int n, ch_tensor **in)
{
    ch_function *f = NULL;
    ch_route    *r = route_of(step, n, in, &f);
    blob         b = {0};

    for (int i = 0; i < r->n_remotes; i++)
        if (b.data == NULL && r->remote[i].kind == CH_REMOTE_UPDATE)
            must(ch_graph_encode(r->remote[i].graph, &b.data, &b.size));
    ch__route_free(r);
    ch_function_unref(f);
    return b;
}

static int index_of(const ch_resource *r)
{
    int i = 0;

    while (variable[i] != r->key)
        i++;
    return i;
}

static blob route_bytes(ch_step_fn step, int n, ch_tensor **in)
{
    ch_function      *f = NULL;
    ch_route         *r = route_of(step, n, in, &f);
    const ch_graph   *g = ch_function_graph(f);
    ch_route_variable v[VARIABLES];
    uint64_t          function[16];
    blob              b = {0};

    for (int i = 0; i < g->n_resources; i++)
        v[i] = (ch_route_variable){.name = g->resource[i].name,
                                   .dtype = g->resource[i].dtype,
                                   .shape = g->resource[i].shape,
                                   .n_shards = 1,
                                   .shard = &where[index_of(&g->resource[i])]};
    for (int i = 0; i < 16; i++)
        function[i] = (uint64_t)i + 4;
    must(ch__route_encode(&(ch_sent_route){r, g->n_resources, v, function}, &b.data, &b.size));
    ch__route_free(r);
    ch_function_unref(f);
    return b;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const name[VARIABLES] = {"v", "table", "n"};
    const ch_shape shape[VARIABLES] = {ch_shape_of(3), ch_shape_of(4, 3), ch_shape_scalar()};

    (void)argc;
    (void)argv;
    for (int i = 0; i < VARIABLES; i++) {
        must(
            ch_var_new(NULL, &(ch_var_spec){.name = name[i], .shape = shape[i]}, &variable[i]));
        where[i] = (struct ch_route_shard){0, (uint64_t)i + 1};
    }
    graph[0] = graph_of(add, 1, (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(3))});
    graph[1] = graph_of(scatter, 2,
                        (ch_tensor *[]){tensor_of(CH_I64, ch_shape_of(2)),
                                        tensor_of(CH_F32, ch_shape_of(2, 3))});
    route[0] = route_bytes(train, 1, (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(3))});
    route[1] = route_bytes(look_up, 1, (ch_tensor *[]){tensor_of(CH_I64, ch_shape_of(2))});
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
    ch_task       *task;
    uint64_t       n_asked;
    bool           has_ended;
    ch_ending      ending;
    bool           is_turned; /* it was sent a graph or route that is not what it was */
    int            n_fields;
    void          *field[MOST_FIELDS]; /* memory of the message that is being made */
} session;

static void on_answer(void *self, const ch_net_event *e, int64_t now, ch_post *post)
{
    session *s = self;

    (void)now;
    (void)post;
    if (e->kind != CH_EVENT_ANSWER || e->id != s->n_asked)
        return;
    s->has_ended = true;
    s->ending = e->ending;
}

static void close_session(void *self)
{
    (void)self;
}

static ch_status make_session(void *arg, ch_task *t, uint64_t incarnation, ch_post *post,
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
    return ((session *)arg)->has_ended;
}

static void start(session *s, const char *name, const ch_task_ops *ops,
                  ch_status (*make)(void *, ch_task *, uint64_t, ch_post *, void **), void *arg)
{
    must(ch__task_start(s->net,
                        &(ch_task_options){.name = name, .ops = ops, .make = make, .arg = arg},
                        &s->task));
}

/* Takes the parcel over. */
static void ask(session *s, bool of_worker, ch_parcel *p)
{
    const char *peer = of_worker ? "worker/0" : "ps/0";
    ch_post    *post = ch__task_enter(s->task);

    s->has_ended = false;
    s->n_asked++;
    ch__post_call(
        post, ch__task_link(s->task, peer), p,
        &(ch_call_options){.id = s->n_asked, .deadline = ch__task_now(s->task) + 100000000});
    must(ch__task_wait(s->task, has_ended, s, 10000, peer));
    ch__task_leave(s->task);
    MUST(s->ending == CH_ENDED_OK || s->ending == CH_ENDED_REFUSED ||
         (of_worker && s->ending == CH_ENDED_LATE));
}

static void ask_well(session *s, bool of_worker, uint32_t method, const ProtobufCMessage *m,
                     int n, ch_tensor **t)
{
    ch_parcel *p = NULL;

    must(ch__speak(method, m, n, t, &p));
    ask(s, of_worker, p);
    MUST(s->ending == CH_ENDED_OK);
}

static ch_tensor *bytes_tensor(const blob *b)
{
    ch_tensor *t = NULL;

    must(ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)b->size), b->data, &t));
    return t;
}

static void create_all(session *s)
{
    for (int i = 0; i < VARIABLES; i++) {
        Cohort__PsCreate m;
        ch_tensor       *t = NULL;
        char             name[8] = "x";

        cohort__ps_create__init(&m);
        m.variable = (uint64_t)i + 1;
        m.name = name;
        must(ch_var_get(variable[i], &t));
        ask_well(s, false, CH_PS_CREATE, &m.base, 1, &t);
    }
}

static void define_all(session *s)
{
    for (uint64_t i = 0; i < GRAPHS; i++) {
        Cohort__PsDefine m;
        uint64_t         number = i + 1;

        cohort__ps_define__init(&m);
        m.function = i + 1;
        m.graph = (ProtobufCBinaryData){graph[i].size, graph[i].data};
        m.n_variables = 1;
        m.variables = &number;
        ask_well(s, false, CH_PS_DEFINE, &m.base, 0, NULL);
    }
    for (uint64_t i = 0; i < ROUTES; i++) {
        Cohort__WorkerFunction m;
        ch_tensor             *t = bytes_tensor(&route[i]);

        cohort__worker_function__init(&m);
        m.function = i + 1;
        ask_well(s, true, CH_WORKER_FUNCTION, &m.base, 1, &t);
    }
}

static void begin(session *s)
{
    static const ch_task_ops ops = {on_answer, close_session};

    must(ch__net_sim(&(ch_sim_options){.seed = 1}, &s->net));
    start(s, "ps/0", &ch__server_ops, ch__server_make, &server_options);
    start(s, "worker/0", &ch__worker_ops, ch__worker_make, &worker_options);
    start(s, "asker/0", &ops, make_session, s);
    create_all(s);
    define_all(s);
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
    ch_tensor *t = tensor_of(CH_I64, ch_shape_of(byte(s) % 5));

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((int64_t *)ch_tensor_data_mut(t))[i] = (int8_t)byte(s) % 6;
    return t;
}

static ch_tensor *some_view(void)
{
    ch_tensor *t = tensor_of(CH_F32, ch_shape_of(3, 4)), *view = NULL;

    must(ch_tensor_transpose(t, NULL, &view));
    ch_tensor_unref(t);
    return view;
}

static ch_tensor *some_route(session *s)
{
    const blob *from = &route[byte(s) % ROUTES];
    ch_tensor  *t = bytes_tensor(from);

    turn(s, ch_tensor_data_mut(t), from->size);
    return t;
}

static ch_tensor *some_tensor(session *s)
{
    uint8_t b = byte(s);

    switch (b % 9) {
    case 0:
        return tensor_of(CH_F32, ch_shape_of(3));
    case 1:
        return tensor_of(CH_F32, ch_shape_of(4, 3));
    case 2:
        return some_ids(s);
    case 3:
        return tensor_of(CH_F32, ch_shape_of(b / 9 % 5, 3));
    case 4:
        return tensor_of(CH_STR, ch_shape_of(b / 9 % 3));
    case 5:
        return tensor_of(CH_F32, ch_shape_scalar());
    case 6:
        return some_view();
    case 7:
        return tensor_of(b % 2 ? CH_I32 : CH_F64, ch_shape_of(2, 0));
    default:
        return some_route(s);
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
    if (s->is_turned && runs(m->number))
        ch__parcel_unref(p);
    else
        ask(s, of_worker, p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    session s = {.data = data, .left = size};
    int64_t live = ch__mem_live();

    ch__mem_watch(true);
    begin(&s);
    while (s.left > 0)
        call(&s);
    ch__net_free(s.net);
    MUST(ch__mem_most() < MOST_MEMORY);
    MUST(ch__mem_live() <= live + 4); /* workspaces of devices, once */
    ch__mem_watch(false);
    return 0;
}
