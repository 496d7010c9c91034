/* fuzz/job/calls.c -- calls to servers and workers, from bytes.
 *
 * next_call() is the entry point. The bytes of the input select the method, the fields of its
 * request and its tensors. Some calls are valid except for their numbers, so that tasks accept
 * them more often.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/calls.h"

#include "job/make.h"
#include "job/message.h"
#include "message.h"

enum { MOST_TENSORS = 4 };

static blob graph[GRAPHS], plan[PLANS], stream[STREAMS];

void calls_init(void)
{
    for (int i = 0; i < GRAPHS; i++)
        graph[i] = make_graph(i);
    for (int i = 0; i < PLANS; i++)
        plan[i] = make_plan(i, 1);
    for (int i = 0; i < STREAMS; i++)
        stream[i] = make_stream(i);
}

uint8_t next_byte(source *s)
{
    if (s->left == 0)
        return 0;
    s->left--;
    return *s->data++;
}

static uint64_t number(source *s)
{
    static const uint64_t odd[] = {UINT64_MAX, UINT64_MAX - 1, 0xffffffff, 1u << 31,
                                   1ull << 63, 1ull << 32,     1 << 20,    255};
    uint8_t               b = next_byte(s);

    return b < 224 ? b % 7 : odd[b % 8];
}

static void *field_memory(source *s, size_t bytes)
{
    void *p = calloc(1, bytes > 0 ? bytes : 1);

    MUST(p != NULL && s->n_fields < MOST_FIELDS);
    return s->field[s->n_fields++] = p;
}

/* Flips some bits, as the input selects. */
static void turn(source *s, uint8_t *data, size_t n)
{
    for (int k = next_byte(s) % 4; k > 0 && n > 0; k--) {
        size_t at = ((size_t)next_byte(s) << 8 | next_byte(s)) % n;

        data[at] ^= next_byte(s);
        s->is_turned = true;
    }
}

static ProtobufCBinaryData some_bytes(source *s)
{
    const blob         *from = &graph[next_byte(s) % GRAPHS];
    ProtobufCBinaryData b = {from->size, field_memory(s, from->size)};

    memcpy(b.data, from->data, from->size);
    turn(s, b.data, b.len);
    return b;
}

static char *some_text(source *s)
{
    static const char *const text[] = {"",        "x",   "worker/0", "worker/1",
                                       "asker/0", "f32", "table",    "a/b"};
    char                    *copy = field_memory(s, 16);

    snprintf(copy, 16, "%s", text[next_byte(s) % 8]);
    return copy;
}

static ProtobufCMessage *some_message(source *s, const ProtobufCMessageDescriptor *type);

static void fill(source *s, const ProtobufCFieldDescriptor *f, void *at)
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
        n = f->type == PROTOBUF_C_TYPE_BOOL ? next_byte(s) % 2 : number(s);
        memcpy(at, &n, field_bytes(f->type));
    }
}

static ProtobufCMessage *some_message(source *s, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *m = field_memory(s, type->sizeof_message);

    protobuf_c_message_init(type, m);
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &type->fields[i];
        char                           *at = (char *)m + f->offset;
        size_t                          size = field_bytes(f->type), n = next_byte(s) % 4;

        if (f->label != PROTOBUF_C_LABEL_REPEATED) {
            if (f->type != PROTOBUF_C_TYPE_MESSAGE || n % 2 == 1) /* a message may be absent */
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

/* Returns ids, of which some are just outside of the table. */
static ch_tensor *some_ids(source *s)
{
    ch_tensor *t = make_tensor(CH_I64, ch_shape_of(next_byte(s) % 5));

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((int64_t *)ch_tensor_data_mut(t))[i] = (int8_t)next_byte(s) % 6;
    return t;
}

static ch_tensor *some_view(void)
{
    ch_tensor *t = make_tensor(CH_F32, ch_shape_of(3, 4)), *view = NULL;

    must(ch_tensor_transpose(t, NULL, &view));
    ch_tensor_unref(t);
    return view;
}

/* Returns a step plan or a dataset as bytes, with some bits flipped. */
static ch_tensor *some_blob(source *s)
{
    uint8_t     b = next_byte(s);
    const blob *from = b % 4 < 3 ? &plan[b / 4 % PLANS] : &stream[b / 4 % STREAMS];
    ch_tensor  *t = make_bytes(from);

    turn(s, ch_tensor_data_mut(t), from->size);
    return t;
}

static ch_tensor *some_tensor(source *s)
{
    uint8_t b = next_byte(s);

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

/* A byte of the input is an index into this list, so its order must not change. */
static const uint32_t methods[] = {
    CH_PS_CREATE,   CH_PS_FREE,         CH_PS_DEFINE,   CH_PS_READ,     CH_PS_ROWS,
    CH_PS_UPDATE,   CH_PS_FENCE,        CH_PS_SNAPSHOT, CH_PS_PING,     CH_PS_ASSIGN,
    CH_PS_HOLD,     CH_WORKER_FUNCTION, CH_WORKER_RUN,  CH_WORKER_PING, CH_WORKER_STREAM,
    CH_WORKER_DROP, CH_WORKER_READ,     CH_PS_RESERVE,  CH_PS_SETTLE,
};
enum { METHODS = sizeof(methods) / sizeof(methods[0]) };

static int some_tensors(source *s, ch_tensor **t)
{
    int n = next_byte(s) % (MOST_TENSORS + 1);

    for (int i = 0; i < n; i++)
        t[i] = some_tensor(s);
    return n;
}

/* Returns a message whose bytes are the next bytes of the input. */
static ch_message *any_message(source *s, uint32_t method_number)
{
    ch_tensor  *t[MOST_TENSORS];
    int         n = some_tensors(s, t);
    size_t      size = next_byte(s);
    ch_message *p = NULL;
    void       *at = NULL;

    size = size < s->left ? size : s->left;
    must(ch__message_new(method_number, size, &at, n, t, &p));
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)at)[i] = next_byte(s);
    return p;
}

static ch_message *some_request(source *s, uint32_t method_number)
{
    ch_tensor        *t[MOST_TENSORS];
    int               n = some_tensors(s, t);
    ch_message       *p = NULL;
    ProtobufCMessage *message = some_message(s, ch__method(method_number)->request);

    must(ch__message_pack(method_number, message, n, t, &p));
    while (s->n_fields > 0)
        free(s->field[--s->n_fields]);
    return p;
}

/* ---- calls that are valid except for their numbers ---- */

static ch_tensor *two_ids(source *s)
{
    ch_tensor *t = make_tensor(CH_I64, ch_shape_of(2));

    for (int i = 0; i < 2; i++)
        ((int64_t *)ch_tensor_data_mut(t))[i] = next_byte(s) % 4;
    return t;
}

/* Update 0 has an input, the addend. Update 1 has two inputs, ids and rows. */
static ch_message *right_update(source *s)
{
    Cohort__PsUpdate    m;
    Cohort__PsUpdateOne one, *list = &one;
    char                worker[] = "worker/0";
    uint32_t            i = next_byte(s) % GRAPHS;
    ch_tensor          *t[2] = {i == 0 ? make_tensor(CH_F32, ch_shape_of(3)) : two_ids(s),
                       i == 0 ? NULL : make_tensor(CH_F32, ch_shape_of(2, 3))};
    ch_message *p = NULL;

    cohort__ps_update__init(&m);
    cohort__ps_update_one__init(&one);
    one.update = i + 1;
    one.inputs = i + 1;
    one.sequence = (uint32_t)number(s);
    m.step = number(s);
    m.retired = next_byte(s) % 4;
    m.worker = worker;
    m.n_updates = 1;
    m.updates = &list;
    must(ch__message_pack(CH_PS_UPDATE, &m.base, (int)i + 1, t, &p));
    return p;
}

static ch_message *right_rows(source *s)
{
    Cohort__PsRows m;
    uint64_t       table = 2;
    ch_tensor     *ids = two_ids(s);
    ch_message    *p = NULL;

    cohort__ps_rows__init(&m);
    m.n_variables = 1;
    m.variables = &table;
    m.snapshot = next_byte(s) % 2;
    must(ch__message_pack(CH_PS_ROWS, &m.base, 1, &ids, &p));
    return p;
}

/* Function 1 has three inputs. Some of them may come from elements of datasets, at positions
 * that the input selects. Function 3 has an input less, which is a per-worker variable.
 * Function 2 has ids. */
static ch_message *right_run(source *s)
{
    Cohort__WorkerRun      m;
    Cohort__WorkerElement  element[2] = {COHORT__WORKER_ELEMENT__INIT,
                                         COHORT__WORKER_ELEMENT__INIT};
    Cohort__WorkerElement *list[2] = {&element[0], &element[1]};
    uint8_t                kind = next_byte(s);
    int                    n = kind % 4 == 3 ? 1 : 3, streams = 0;
    ch_tensor             *t[3];
    ch_message            *p = NULL;

    cohort__worker_run__init(&m);
    m.function = n == 1 ? 2 : kind < 128 ? 1 : 3;
    m.step = number(s);
    m.registration = next_byte(s) % 2;
    m.elements = list;
    for (; n == 3 && m.n_elements < kind % 4; m.n_elements++) {
        list[m.n_elements]->stream = 1 + kind / 4 / (1 + m.n_elements) % STREAMS;
        list[m.n_elements]->number = next_byte(s) % 3;
        list[m.n_elements]->at = next_byte(s) % 4;
        streams += (int)list[m.n_elements]->stream;
    }
    n -= streams + (m.function == 3);
    for (int i = 0; i < n; i++)
        t[i] = m.function != 2 ? make_tensor(CH_F32, ch_shape_of(3)) : two_ids(s);
    must(ch__message_pack(CH_WORKER_RUN, &m.base, n > 0 ? n : 0, t, &p));
    return p;
}

/* Returns a call that creates a variable. The sizes are small or invalid. */
static ch_message *right_create(source *s)
{
    static char kind[][20] = {"zeros",      "constant",         "uniform",
                              "normal",     "truncated_normal", "fan_uniform",
                              "fan_normal", "orthogonal",       "identity"};
    static char fan[][8] = {"in", "out", "average"}, dtype[][8] = {"f32", "f64", "i64", "str"};
    Cohort__PsCreate m;
    Cohort__PsInit   init;
    char             name[] = "x";
    int64_t          shape[3];
    ch_message      *p = NULL;

    cohort__ps_create__init(&m);
    cohort__ps_init__init(&init);
    m.variable = 8 + next_byte(s) % 4;
    m.name = init.name = name;
    m.init = &init;
    init.kind = kind[next_byte(s) % 9];
    init.fan = fan[next_byte(s) % 3];
    init.dtype = dtype[next_byte(s) % 4];
    init.a = (int8_t)next_byte(s);
    init.b = (int8_t)next_byte(s);
    init.shape = shape;
    init.n_shape = next_byte(s) % 4;
    for (size_t i = 0; i < init.n_shape; i++)
        shape[i] = (int64_t)number(s);
    init.axis = next_byte(s) % 3;
    init.begin = (int64_t)number(s);
    init.size = (int64_t)number(s);
    must(ch__message_pack(CH_PS_CREATE, &m.base, 0, NULL, &p));
    return p;
}

static one_call right_call(source *s, int which)
{
    switch (which) {
    case 3:
        return (one_call){CH_PS_CREATE, false, right_create(s)};
    case 0:
        return (one_call){CH_PS_UPDATE, false, right_update(s)};
    case 1:
        return (one_call){CH_PS_ROWS, false, right_rows(s)};
    default:
        return (one_call){CH_WORKER_RUN, true, right_run(s)};
    }
}

one_call next_call(source *s)
{
    uint8_t     b = next_byte(s);
    uint32_t    m = methods[b % METHODS];
    bool        is_any = b / METHODS % 4 == 3, of_worker = m >= CH_WORKER_FUNCTION;
    ch_message *p;

    if (b >= 240 && b <= 250)
        return right_call(s, b % 4);
    p = is_any ? any_message(s, m) : some_request(s, m);
    /* Some calls go to the wrong kind of task. */
    return (one_call){m, b > 250 ? !of_worker : of_worker, p};
}
