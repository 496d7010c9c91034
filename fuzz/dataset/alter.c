/* fuzz/dataset/alter.c -- changes fields of messages, by their descriptors.
 *
 * The mutator unpacks a message, changes a field, packs the message, and restores the field
 * before it frees the message, because protobuf-c must free the original pointers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "alter.h"

#include "../message.h"
#include "base/mem.h"

/* The bytes before a change. */
typedef struct change {
    void  *at;
    char   was[16];
    size_t n;
} change;

static struct {
    int    n;
    change list[64];
} undo;

static void put(void *at, const void *now, size_t n)
{
    change *c = &undo.list[undo.n];

    if (undo.n == 64 || n > sizeof(c->was))
        return;
    *c = (change){.at = at, .n = n};
    memcpy(c->was, at, n);
    memcpy(at, now, n);
    undo.n++;
}

static void put_back(void)
{
    while (undo.n > 0) {
        change *c = &undo.list[--undo.n];

        memcpy(c->at, c->was, c->n);
    }
}

static int64_t some_number(dice *d, int64_t was)
{
    static const int64_t edges[] = {
        0,         1,         -1,        2,     255, 256,  INT32_MAX, INT32_MIN,
        INT64_MAX, INT64_MIN, 1LL << 40, 65536, 100, 1024, 1 << 20,   1000000007LL};

    switch (roll(d, 4)) {
    case 0:
        return (int64_t)((uint64_t)was + 1);
    case 1:
        return (int64_t)((uint64_t)was - 1);
    case 2:
        return (int64_t)roll(d, 40);
    default:
        return edges[roll(d, sizeof(edges) / sizeof(edges[0]))];
    }
}

static char *some_text(dice *d)
{
    static char words[][16] = {"",    "i64",  "f32",    "str",   "u8",       "bool",    "x",
                               "y=x", "take", "cache",  "range", "shuffle",  "element", "body",
                               "map", "zip",  "slices", "npz",   "tfrecord", "/tmp/*"};

    return words[roll(d, sizeof(words) / sizeof(words[0]))];
}

static void alter_message(dice *d, ProtobufCMessage *m, int depth);

static void alter_bytes(dice *d, ProtobufCBinaryData *at)
{
    static uint8_t      store[8][1024];
    static int          turn;
    uint8_t            *to = store[turn++ % 8];
    ProtobufCBinaryData now = {at->len < 1024 ? at->len : 1024, to};

    if (now.len > 0)
        memcpy(to, at->data, now.len);
    if (roll(d, 3) == 0)
        now.len = roll(d, now.len + 1);
    else
        now.len = LLVMFuzzerMutate(to, now.len, 1024);
    put(at, &now, sizeof(now));
}

static void alter_value(dice *d, const ProtobufCFieldDescriptor *f, char *at, int depth)
{
    void   *p;
    int64_t x = 0;

    switch (f->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        memcpy(&p, at, sizeof(p));
        if (p != NULL && roll(d, 12) == 0)
            put(at, &(void *){NULL}, f->label == PROTOBUF_C_LABEL_REPEATED ? 0 : sizeof(p));
        else if (p != NULL)
            alter_message(d, p, depth + 1);
        return;
    case PROTOBUF_C_TYPE_STRING:
        p = some_text(d);
        put(at, &p, sizeof(p));
        return;
    case PROTOBUF_C_TYPE_BYTES:
        alter_bytes(d, (ProtobufCBinaryData *)(void *)at);
        return;
    default:
        memcpy(&x, at, field_bytes(f->type));
        x = some_number(d, x);
        put(at, &x, field_bytes(f->type));
    }
}

/* Removes the last element, exchanges or copies elements, or changes an element. */
static void alter_list(dice *d, const ProtobufCFieldDescriptor *f, char *m, int depth)
{
    size_t *n = (size_t *)(void *)(m + f->quantifier_offset), width = field_bytes(f->type),
           less;
    char  *list, one[16], other[16];
    size_t i, k;

    memcpy(&list, m + f->offset, sizeof(list));
    if (*n == 0)
        return;
    i = roll(d, *n);
    k = roll(d, *n);
    switch (roll(d, 8)) {
    case 0:
        less = *n - 1;
        put(n, &less, sizeof(less));
        return;
    case 1:
        memcpy(one, list + i * width, width);
        memcpy(other, list + k * width, width);
        put(list + i * width, other, width);
        put(list + k * width, one, width);
        return;
    case 2: /* copies an element */
        memcpy(one, list + i * width, width);
        put(list + k * width, one, width);
        return;
    default:
        alter_value(d, f, list + i * width, depth);
    }
}

static void alter_message(dice *d, ProtobufCMessage *m, int depth)
{
    const ProtobufCMessageDescriptor *type = m->descriptor;
    const ProtobufCFieldDescriptor   *f;

    if (type->n_fields == 0 || depth > 8)
        return;
    f = &type->fields[roll(d, type->n_fields)];
    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        alter_list(d, f, (char *)m, depth);
    else
        alter_value(d, f, (char *)m + f->offset, depth);
}

/* Packs the changed message, then restores the fields. */
static size_t pack(const ProtobufCMessage *m, uint8_t *to, size_t room)
{
    size_t n = protobuf_c_message_get_packed_size(m);

    if (n <= room)
        n = protobuf_c_message_pack(m, to);
    else
        n = 0;
    put_back();
    return n;
}

static void alter_some(dice *d, ProtobufCMessage *m)
{
    for (uint64_t n = 1 + roll(d, 3); n > 0; n--)
        alter_message(d, m, 0);
}

/* Returns NULL if the bytes are not a message of this type. */
static ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
                                size_t n)
{
    ProtobufCMessage *m = NULL;

    return ch__protobuf_unpack(type, bytes, n, &m) == CH_OK ? m : NULL;
}

size_t alter_place(dice *d, uint8_t *data, size_t size, size_t max_size)
{
    ProtobufCMessage *m = unpack(&cohort__position__descriptor, data, size);
    Cohort__Position *p = (Cohort__Position *)(void *)m;
    size_t            n;

    if (m == NULL)
        return 0;
    if (p->n_states > 0 && roll(d, 8) > 0) /* most changes are in a state */
        alter_some(d, &p->states[roll(d, p->n_states)]->base);
    else
        alter_some(d, m);
    n = pack(m, data, max_size);
    ch__protobuf_free(m);
    return n;
}

size_t alter_cached(dice *d, uint8_t *data, size_t size, size_t max_size)
{
    ProtobufCMessage *m = unpack(&cohort__cached__descriptor, data, size);
    size_t            n;

    if (m == NULL)
        return 0;
    alter_some(d, m);
    n = pack(m, data, max_size);
    ch__protobuf_free(m);
    return n;
}

/* Changes the attributes of a stage, which are a message in its bytes. */
static size_t alter_attrs(dice *d, const Cohort__Stage *s, uint8_t *to, size_t room)
{
    for (const ch_stage *const *t = ch__stages(); *t != NULL; t++)
        if (strcmp((*t)->name, s->name) == 0 && (*t)->attrs != NULL) {
            ProtobufCMessage *m = unpack((*t)->attrs, s->attrs.data, s->attrs.len);
            size_t            n;

            if (m == NULL)
                return 0;
            alter_some(d, m);
            n = pack(m, to, room);
            ch__protobuf_free(m);
            return n;
        }
    return 0;
}

static size_t alter_stage(dice *d, const ProtobufCBinaryData *in, uint8_t *to, size_t room)
{
    static uint8_t    attrs[1024];
    ProtobufCMessage *m = unpack(&cohort__stage__descriptor, in->data, in->len);
    Cohort__Stage    *s = (Cohort__Stage *)(void *)m;
    size_t            n = 0;

    if (m == NULL)
        return 0;
    if (roll(d, 2) == 0)
        n = alter_attrs(d, s, attrs, sizeof(attrs));
    if (n > 0)
        put(&s->attrs, &(ProtobufCBinaryData){n, attrs}, sizeof(s->attrs));
    else
        alter_some(d, m);
    n = pack(m, to, room);
    ch__protobuf_free(m);
    return n;
}

size_t alter_dataset(dice *d, uint8_t *data, size_t size, size_t max_size)
{
    static uint8_t    stage[4096];
    ProtobufCMessage *m = unpack(&cohort__pipeline__descriptor, data, size);
    Cohort__Pipeline *p = (Cohort__Pipeline *)(void *)m;
    size_t            n = 0, i;

    if (m == NULL)
        return 0;
    if (p->n_stages > 0 && roll(d, 6) > 0) {
        i = roll(d, p->n_stages);
        n = alter_stage(d, &p->stages[i], stage, sizeof(stage));
        if (n > 0)
            put(&p->stages[i], &(ProtobufCBinaryData){n, stage}, sizeof(p->stages[i]));
    } else {
        alter_some(d, m);
    }
    n = pack(m, data, max_size);
    ch__protobuf_free(m);
    return n;
}
