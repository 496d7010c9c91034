/* ckpt/object_graph.c -- encodes and decodes the object graph of a checkpoint (CK-13, CK-15).
 *
 * The message is decoded twice. The first pass counts, so that the memory is limited and
 * allocated as a single block; the second pass fills the arrays.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/object_graph.h"

#include <string.h>

#include "base/bytes_builder.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/pbwire.h"

enum { GRAPH_BYTES = 8 << 20, MAX_NODES = 1 << 20 };

/* ---- encoding ---- */

/* Appends a field with a text, unless the text is NULL or empty. */
static void put_text(ch_bytes_builder *out, int field, const char *text)
{
    if (text != NULL && text[0] != '\0')
        ch__wire_put_text(out, field, text);
}

static void encode_node(const ch_object_node *x, ch_bytes_builder *out)
{
    for (int i = 0; i < x->n_children; i++) {
        size_t from = ch__wire_begin(out, 1);

        ch__wire_put_number(out, 1, (uint64_t)x->child[i].node);
        put_text(out, 2, x->child[i].name);
        ch__wire_end(out, from);
    }
    for (int i = 0; i < x->n_values; i++) {
        size_t from = ch__wire_begin(out, 2);

        put_text(out, 1, x->value[i].name);
        put_text(out, 2, x->value[i].full_name);
        put_text(out, 3, x->value[i].key);
        ch__wire_end(out, from);
    }
    for (int i = 0; i < x->n_slots; i++) {
        size_t from = ch__wire_begin(out, 3);

        ch__wire_put_number(out, 1, (uint64_t)x->slot[i].variable);
        put_text(out, 2, x->slot[i].name);
        ch__wire_put_number(out, 3, (uint64_t)x->slot[i].slot);
        ch__wire_end(out, from);
    }
    /* has_checkpoint_values */
    size_t from = ch__wire_begin(out, 5);
    ch__wire_put_number(out, 1, x->n_values > 0);
    ch__wire_end(out, from);
}

void ch__object_graph_encode(const ch_object_graph *g, ch_bytes_builder *out)
{
    for (int i = 0; i < g->n; i++) {
        size_t from = ch__wire_begin(out, 1);

        encode_node(&g->node[i], out);
        ch__wire_end(out, from);
    }
}

/* ---- decoding ---- */

/* Numbers of objects in a message. */
typedef struct graph_counts {
    int64_t nodes, children, values, slots, bytes; /* bytes: of texts, with their final zeros */
} graph_counts;

/* A graph that is being decoded. */
typedef struct graph_loading {
    ch_wire          wire;
    graph_counts     n;     /* so far in this pass */
    int64_t          nodes; /* in the whole message; 0 in the first pass */
    bool             fills; /* the second pass */
    ch_object_node  *node;  /* the arrays; NULL in the first pass */
    ch_object_child *child;
    ch_object_value *value;
    ch_object_slot  *slot;
    char            *text;
} graph_loading;

/* Decodes a text field. The first pass gives NULL. */
static const char *get_text(graph_loading *l, const ch_wire_field *f)
{
    size_t n = ch__wire_bytes(f->data);
    char  *to = l->fills ? l->text + l->n.bytes : NULL;

    if (f->type != CH_WIRE_BYTES || memchr(f->data.at, '\0', n) != NULL) {
        (void)ch__wire_fault(&l->wire, f->data.at, "invalid text");
        return NULL;
    }
    l->n.bytes += (int64_t)n + 1;
    if (to == NULL)
        return NULL;
    memcpy(to, f->data.at, n);
    to[n] = '\0';
    return to;
}

/* Decodes the number of a node. It is checked in the second pass. */
static int get_node(graph_loading *l, ch_wire_field *f)
{
    uint64_t x = 0;

    if (f->type != CH_WIRE_VARINT || !ch__wire_varint(&l->wire, &f->data, &x) ||
        (l->fills && x >= (uint64_t)l->nodes)) {
        (void)ch__wire_fault(&l->wire, f->data.at, "number of a node that does not exist");
        return 0;
    }
    return (int)x;
}

static void get_child(graph_loading *l, ch_wire_span s)
{
    ch_object_child x = {0, ""};
    ch_wire_field   f;

    while (ch__wire_next(&l->wire, &s, &f))
        if (f.number == 1)
            x.node = get_node(l, &f);
        else if (f.number == 2)
            x.name = get_text(l, &f);
    if (l->fills)
        l->child[l->n.children] = x;
    l->n.children++;
}

static void get_value(graph_loading *l, ch_wire_span s)
{
    ch_object_value x = {"", "", ""};
    ch_wire_field   f;

    while (ch__wire_next(&l->wire, &s, &f))
        if (f.number == 1)
            x.name = get_text(l, &f);
        else if (f.number == 2)
            x.full_name = get_text(l, &f);
        else if (f.number == 3)
            x.key = get_text(l, &f);
    if (l->fills)
        l->value[l->n.values] = x;
    l->n.values++;
}

static void get_slot(graph_loading *l, ch_wire_span s)
{
    ch_object_slot x = {0, "", 0};
    ch_wire_field  f;

    while (ch__wire_next(&l->wire, &s, &f))
        if (f.number == 1)
            x.variable = get_node(l, &f);
        else if (f.number == 2)
            x.name = get_text(l, &f);
        else if (f.number == 3)
            x.slot = get_node(l, &f);
    if (l->fills)
        l->slot[l->n.slots] = x;
    l->n.slots++;
}

static void get_graph_node(graph_loading *l, ch_wire_span s)
{
    graph_counts  before = l->n;
    ch_wire_field f;

    while (ch__wire_next(&l->wire, &s, &f))
        if (f.number < 1 || f.number > 3)
            continue;
        else if (f.type != CH_WIRE_BYTES)
            (void)ch__wire_fault(&l->wire, f.data.at, "field of a wrong type");
        else if (f.number == 1)
            get_child(l, f.data);
        else if (f.number == 2)
            get_value(l, f.data);
        else
            get_slot(l, f.data);
    if (l->fills)
        l->node[l->n.nodes] =
            (ch_object_node){.n_children = (int)(l->n.children - before.children),
                             .n_values = (int)(l->n.values - before.values),
                             .n_slots = (int)(l->n.slots - before.slots),
                             .child = l->child + before.children,
                             .value = l->value + before.values,
                             .slot = l->slot + before.slots};
    l->n.nodes++;
}

static ch_status pass(graph_loading *l, ch_str message)
{
    ch_wire_span  s;
    ch_wire_field f;

    l->n = (graph_counts){0};
    l->wire = ch__wire(message.data, message.size);
    s = l->wire.all;
    while (ch__wire_next(&l->wire, &s, &f))
        if (f.number == 1 && f.type == CH_WIRE_BYTES)
            get_graph_node(l, f.data);
        else if (f.number == 1)
            (void)ch__wire_fault(&l->wire, f.data.at, "field of a wrong type");
    return l->wire.fault == NULL
               ? CH_OK
               : ch__fail(CH_DATA_LOSS, "object graph: %s at byte %lld", l->wire.fault,
                          (long long)(l->wire.fault_at - l->wire.all.at));
}

ch_status ch__object_graph_decode(ch_str message, ch_object_graph *out)
{
    graph_loading l = {.fills = false};
    int64_t       bytes;
    char         *memory;
    ch_status     rc = pass(&l, message);

    if (rc != CH_OK)
        return rc;
    bytes = l.n.nodes * (int64_t)sizeof(*l.node) + l.n.children * (int64_t)sizeof(*l.child) +
            l.n.values * (int64_t)sizeof(*l.value) + l.n.slots * (int64_t)sizeof(*l.slot) +
            l.n.bytes;
    if (l.n.nodes > MAX_NODES || bytes > GRAPH_BYTES + 2 * (int64_t)message.size)
        return ch__fail_limit(
            "object graph: its %lld nodes need %lld bytes of memory, too many "
            "for a message of %zu bytes",
            (long long)l.n.nodes, (long long)bytes, message.size);
    memory = ch__malloc((size_t)bytes + 1);
    if (memory == NULL)
        return ch__fail_memory("object graph");
    /* All structs have the alignment of a pointer and a size that is a multiple of it. */
    l.node = (void *)memory;
    l.child = (void *)(l.node + l.n.nodes);
    l.value = (void *)(l.child + l.n.children);
    l.slot = (void *)(l.value + l.n.values);
    l.text = (void *)(l.slot + l.n.slots);
    l.nodes = l.n.nodes;
    l.fills = true;
    rc = pass(&l, message);
    if (rc == CH_OK)
        *out = (ch_object_graph){(int)l.n.nodes, l.node, memory};
    else
        ch__free(memory);
    return rc;
}

/* ---- keys ---- */

void ch__object_key_add(ch_bytes_builder *key, const char *edge)
{
    for (; *edge != '\0'; edge++)
        if (*edge == '.')
            ch__bytes_builder_text(key, "..");
        else if (*edge == '/')
            ch__bytes_builder_text(key, ".S");
        else
            ch__bytes_builder_add(key, edge, 1);
}

bool ch__object_key_unescape(char *text)
{
    char *to = text;

    for (; *text != '\0'; text++)
        if (*text == '/')
            return false;
        else if (*text != '.')
            *to++ = *text;
        else if (*++text == '.')
            *to++ = '.';
        else if (*text == 'S')
            *to++ = '/';
        else
            return false;
    *to = '\0';
    return true;
}
