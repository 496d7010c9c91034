/* data/print.c -- prints the attributes of dataset stages, which are protobuf messages.
 *
 * protobuf-c describes each message by a table of its fields. Printing reads that table, so a
 * stage needs no code of its own for it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/print.h"

#include <string.h>

static void print_number(const ProtobufCFieldDescriptor *f, const void *at, ch_text *t)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
        ch__text_add(t, "%d", *(const int32_t *)at);
        break;
    case PROTOBUF_C_TYPE_UINT32:
        ch__text_add(t, "%u", *(const uint32_t *)at);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
        ch__text_add(t, "%lld", (long long)*(const int64_t *)at);
        break;
    case PROTOBUF_C_TYPE_UINT64:
        ch__text_add(t, "%llu", (unsigned long long)*(const uint64_t *)at);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        ch__text_add(t, "%g", *(const double *)at);
        break;
    case PROTOBUF_C_TYPE_STRING:
        ch__text_add(t, "\"%.100s\"", *(char *const *)at);
        break;
    default:
        ch__text_add(t, "...");
    }
}

static size_t bytes_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_BOOL:
        return 4;
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 8;
    }
}

/* Prints at most eight entries of a list of numbers or strings. */
static void print_list(const ProtobufCFieldDescriptor *f, const char *list, size_t n,
                       ch_text *t)
{
    ch__text_add(t, " %s=[", f->name);
    for (size_t i = 0; i < n && i < 8; i++) {
        ch__text_add(t, "%s", i > 0 ? ", " : "");
        print_number(f, list + i * bytes_of(f->type), t);
    }
    if (n > 8)
        ch__text_add(t, ", ... %zu of them", n);
    ch__text_add(t, "]");
}

/* Returns true if the field is 0, NULL or "", which proto3 does not encode. */
static bool is_default(const ProtobufCFieldDescriptor *f, const char *at)
{
    static const char zero[16];

    if (f->type == PROTOBUF_C_TYPE_STRING)
        return (*(char *const *)(const void *)at)[0] == '\0';
    return memcmp(at, zero, bytes_of(f->type)) == 0;
}

/* Returns the field `name` of a message, or "" if there is none. */
static const char *name_of(const ProtobufCMessage *m)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "name");

    return f != NULL && f->type == PROTOBUF_C_TYPE_STRING
               ? *(char *const *)(const void *)((const char *)m + f->offset)
               : "";
}

/* Prints the length of a list of messages, and the names of at most eight of them. */
static void print_messages(const ProtobufCFieldDescriptor *f, ProtobufCMessage *const *list,
                           size_t n, ch_text *t)
{
    ch__text_add(t, " %s=%zu", f->name, n);
    if (name_of(list[0])[0] == '\0')
        return;
    for (size_t i = 0; i < n && i < 8; i++)
        ch__text_add(t, "%s\"%.40s\"", i > 0 ? ", " : " [", name_of(list[i]));
    ch__text_add(t, n > 8 ? ", ...]" : "]");
}

static void print_scalar(const ProtobufCFieldDescriptor *f, const char *at, ch_text *t)
{
    uint32_t c = *(const uint32_t *)(const void *)at;

    if (f->type == PROTOBUF_C_TYPE_BOOL)
        ch__text_add(t, " %s", f->name);
    else if (strcmp(f->name, "separator") == 0 && c > ' ' && c < 127)
        ch__text_add(t, " %s='%c'", f->name, (char)c);
    else {
        ch__text_add(t, " %s=", f->name);
        print_number(f, at, t);
    }
}

/* Recursion is bounded: attributes nest at most two levels deep. */
void ch__protobuf_print(const ProtobufCMessage *m, ch_text *t)
{
    const ProtobufCMessageDescriptor *type = m->descriptor;

    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &type->fields[i];
        const char                     *at = (const char *)m + f->offset;

        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(const size_t *)(const void *)((const char *)m + f->quantifier_offset);

            if (n > 0 && f->type == PROTOBUF_C_TYPE_MESSAGE)
                print_messages(f, *(ProtobufCMessage *const *const *)(const void *)at, n, t);
            else if (n > 0)
                print_list(f, *(const char *const *)(const void *)at, n, t);
        } else if (is_default(f, at)) {
            continue;
        } else if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
            ch__protobuf_print(*(const ProtobufCMessage *const *)(const void *)at, t);
        } else {
            print_scalar(f, at, t);
        }
    }
}
