/* fuzz/decode/alter.c -- changes a field of a message of any type.
 *
 * alter() unpacks the message by its descriptor, changes one to four fields, and packs it
 * again. Numbers get small or boundary values, texts become names of ops, attributes or dtypes,
 * and lists get longer, shorter or change their order. fuzz/decode.c and fuzz/step_plan.c call
 * it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "../message.h"
#include "decode/decode.h"
#include "graph/graph.pb-c.h"

typedef const ProtobufCFieldDescriptor field_type;

int64_t some_integer(dice *d)
{
    static const int64_t edge[] = {INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, 1LL << 31,
                                   1LL << 32, 1LL << 62, 1LL << 40, 65536,     1000000007};

    switch (roll(d, 8)) {
    case 0:
        return edge[roll(d, sizeof(edge) / sizeof(edge[0]))];
    case 1:
        return (int64_t)roll(d, 100);
    default:
        return (int64_t)roll(d, 8) - 2;
    }
}

double some_number(dice *d)
{
    static const double edge[] = {0.0,  -0.0, 1e-300, 1e300, -1e300, 1.0 / 0.0,   -1.0 / 0.0,
                                  0.25, 1.0,  -1.0,   0.5,   1e-5,   2147483648.0};

    return roll(d, 16) == 0 ? 0.0 / 0.0 : edge[roll(d, sizeof(edge) / sizeof(edge[0]))];
}

static char *some_text(dice *d)
{
    const ch_op *const *table = ch__op_table();
    size_t              n = 0;

    while (table[n] != NULL)
        n++;
    if (roll(d, 2) == 0)
        return strdup(ch_dtype_name((ch_dtype)roll(d, CH_DTYPE_COUNT)));
    table += roll(d, n);
    n = 0;
    while ((*table)->attrs != NULL && (*table)->attrs[n].name != NULL)
        n++;
    return strdup(n > 0 && roll(d, 2) == 0 ? (*table)->attrs[roll(d, n)].name : (*table)->name);
}

/* ---- a field ---- */

static void alter_message(dice *d, ProtobufCMessage *m);

/* Changes bytes. They may hold the body of a call, which is a message itself. */
static void alter_bytes(dice *d, ProtobufCBinaryData *b)
{
    Cohort__Graph *body = roll(d, 4) > 0 ? cohort__graph__unpack(NULL, b->len, b->data) : NULL;

    if (body != NULL) {
        alter_message(d, &body->base);
        free(b->data);
        b->len = cohort__graph__get_packed_size(body);
        b->data = malloc(b->len + 1);
        cohort__graph__pack(body, b->data);
        cohort__graph__free_unpacked(body, NULL);
    } else if (b->len > 0 && roll(d, 2) == 0) {
        b->data[roll(d, b->len)] = (uint8_t)roll(d, 256);
    } else if (b->len > 0) {
        b->len -= roll(d, b->len < 8 ? b->len : 8);
    }
}

static void alter_element(dice *d, field_type *f, void *at)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage **)at != NULL)
            alter_message(d, *(ProtobufCMessage **)at);
        break;
    case PROTOBUF_C_TYPE_STRING:
        if (*(const char **)at != (const char *)protobuf_c_empty_string)
            free(*(char **)at);
        *(char **)at = some_text(d);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        alter_bytes(d, at);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_UINT64:
        *(int64_t *)at = some_integer(d);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at = some_number(d);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = roll(d, 2) == 0;
        break;
    default:
        *(uint32_t *)at = roll(d, 4) == 0 ? (uint32_t)some_integer(d) : (uint32_t)roll(d, 12);
    }
}

static ProtobufCMessage *copy_of(const ProtobufCMessage *m)
{
    size_t            n = protobuf_c_message_get_packed_size(m);
    uint8_t          *bytes = malloc(n + 1);
    ProtobufCMessage *copy;

    protobuf_c_message_pack(m, bytes);
    copy = protobuf_c_message_unpack(m->descriptor, NULL, n, bytes);
    free(bytes);
    return copy;
}

static void insert_element(dice *d, field_type *f, size_t *n, char **list)
{
    size_t bytes = field_bytes(f->type);
    char  *longer = realloc(*list, (*n + 1) * bytes);

    *list = longer;
    memset(longer + *n * bytes, 0, bytes);
    if (f->type != PROTOBUF_C_TYPE_MESSAGE)
        alter_element(d, f, longer + *n * bytes);
    else if (*n > 0)
        ((ProtobufCMessage **)(void *)longer)[*n] =
            copy_of(((ProtobufCMessage **)(void *)longer)[roll(d, *n)]);
    else
        ((ProtobufCMessage **)(void *)longer)[*n] =
            protobuf_c_message_unpack(f->descriptor, NULL, 0, NULL);
    ++*n;
}

static void remove_element(dice *d, field_type *f, size_t *n, char *list)
{
    size_t bytes = field_bytes(f->type), i = roll(d, *n);

    if (f->type == PROTOBUF_C_TYPE_MESSAGE)
        protobuf_c_message_free_unpacked(((ProtobufCMessage **)(void *)list)[i], NULL);
    --*n;
    memmove(list + i * bytes, list + (i + 1) * bytes, (*n - i) * bytes);
}

static void alter_list(dice *d, field_type *f, size_t *n, char **list)
{
    size_t bytes = field_bytes(f->type);
    char   aside[sizeof(ProtobufCBinaryData)], *a, *b;

    if (*n == 0 || roll(d, 8) == 0) {
        insert_element(d, f, n, list);
        return;
    }
    a = *list + roll(d, *n) * bytes;
    b = *list + roll(d, *n) * bytes;
    switch (roll(d, 8)) {
    case 0:
        remove_element(d, f, n, *list);
        break;
    case 1:
        memcpy(aside, a, bytes);
        memmove(a, b, bytes);
        memcpy(b, aside, bytes);
        break;
    default:
        alter_element(d, f, a);
    }
}

/* ---- a message ---- */

static void alter_message(dice *d, ProtobufCMessage *m)
{
    field_type *f = &m->descriptor->fields[roll(d, m->descriptor->n_fields)];
    char       *at = (char *)m + f->offset;
    bool        is_one_of = (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
    size_t     *n = (size_t *)(void *)((char *)m + f->quantifier_offset);

    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        alter_list(d, f, n, (char **)(void *)at);
    else if (!is_one_of || *(uint32_t *)(void *)n == f->id)
        alter_element(d, f, at);
}

size_t alter(dice *d, const ProtobufCMessageDescriptor *type, uint8_t *data, size_t size,
             size_t max_size)
{
    ProtobufCMessage *m = protobuf_c_message_unpack(type, NULL, size, data);
    size_t            n;

    if (m == NULL)
        return 0;
    for (uint64_t i = roll(d, 4) + 1; i > 0; i--)
        alter_message(d, m);
    n = protobuf_c_message_get_packed_size(m);
    if (n > max_size)
        n = 0;
    if (n > 0)
        protobuf_c_message_pack(m, data);
    protobuf_c_message_free_unpacked(m, NULL);
    return n;
}
