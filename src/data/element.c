/* data/element.c -- elements: allocation, copies, and conversion to tuples.
 *
 * A ch_element lies in the element pool if it is small, in memory of malloc if it is large, or
 * in the notes of a file block. Its layout is: the struct with its parts, the
 * owner pointers, then the room for small values, aligned to 16. All stages use these calls;
 * the iterator converts elements to the tuples that the program receives.
 *
 * Invariants:
 *   1. An element whose memory is a note of a block has that block as owner[0].
 *   2. A part points into the element's own room, or into memory that an owner keeps alive.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/element.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/element_pool.h"
#include "file/block.h"
#include "tensor/tensor.h"

/* Enough for a record, and for an element of two features in its place. */
enum { NOTE_BYTES = 256 };

static size_t round_up(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

/* Sizes of the sections of an element. */
typedef struct layout {
    size_t parts, owners, head; /* bytes; the room begins at offset `head` */
} layout;

static layout layout_of(int n, int n_owners)
{
    size_t parts = sizeof(ch_element) + (size_t)n * sizeof(ch_part);
    size_t owners = (size_t)n_owners * sizeof(ch_buffer *);

    return (layout){parts, owners, round_up(parts + owners)};
}

/* The kind of memory that an element lies in. Fields as in ch_element. */
typedef struct storage {
    int  capacity;
    bool is_note;
} storage;

/* Initialises an element in `memory`, which must be large enough. */
static ch_element *lay_out(void *memory, storage h, int n, int n_owners, size_t room_bytes)
{
    layout      at = layout_of(n, n_owners);
    ch_element *e = memory;

    memset(e, 0, at.parts + at.owners);
    e->n = n;
    e->n_owners = n_owners;
    e->capacity = h.capacity;
    e->is_note = h.is_note;
    e->bytes = (int64_t)(at.head + room_bytes);
    e->owner = (ch_buffer **)((char *)e + at.parts);
    e->room = (char *)e + at.head;
    return e;
}

ch_element *ch__element_new(int n, int n_owners, size_t room_bytes)
{
    size_t  bytes = layout_of(n, n_owners).head + room_bytes;
    bool    is_small = bytes <= CH_ELEMENT_POOL_BYTES;
    void   *memory = is_small ? ch__element_pool_get() : ch__malloc(bytes);
    storage h = {.capacity = is_small ? CH_ELEMENT_POOL_BYTES : 0};

    return memory != NULL ? lay_out(memory, h, n, n_owners, room_bytes) : NULL;
}

ch_element *ch__element_note(int n, int n_owners, size_t room_bytes, ch_buffer *block)
{
    size_t      bytes = layout_of(n, n_owners).head + room_bytes;
    void       *memory = bytes <= NOTE_BYTES ? ch__block_alloc_note(block, NOTE_BYTES) : NULL;
    ch_element *e = memory != NULL
                        ? lay_out(memory, (storage){NOTE_BYTES, true}, n, n_owners, room_bytes)
                        : ch__element_new(n, n_owners, room_bytes);

    if (e != NULL)
        e->owner[0] = ch__buffer_ref(block);
    return e;
}

ch_element *ch__element_remake(ch_element *e, int n, int n_owners, size_t room_bytes)
{
    storage h = {e->capacity, e->is_note};

    if (layout_of(n, n_owners).head + room_bytes > (size_t)h.capacity)
        return NULL;
    return lay_out(e, h, n, n_owners, room_bytes);
}

/* Releases owner[0] last, because the memory of a note ends with it. */
void ch__element_free(ch_element *e)
{
    if (e == NULL)
        return;
    ch_buffer *first = e->n_owners > 0 ? e->owner[0] : NULL;
    for (int i = 1; i < e->n_owners; i++)
        if (e->owner[i] != NULL)
            ch__buffer_unref(e->owner[i]);
    if (!e->is_note && e->capacity > 0)
        ch__element_pool_put(e);
    else if (!e->is_note)
        ch__free(e);
    if (first != NULL)
        ch__buffer_unref(first);
}

/* Returns the bytes of the array in *array, and of the contents of its strings in *held. */
static void part_size(const ch_part *p, size_t *array, size_t *held)
{
    int64_t count = ch_shape_count(p->shape);

    *array = (size_t)count * ch_dtype_bytes(p->dtype);
    *held = 0;
    if (p->dtype == CH_STR)
        for (int64_t i = 0; i < count; i++)
            *held += ((const ch_str *)p->data)[i].size;
}

ch_status ch__elements_add(ch_elements *l, ch_element *e, const char *user)
{
    if (!ch__grow((void **)&l->at, &l->capacity, l->n + 1, sizeof(e))) {
        ch__element_free(e);
        return ch__fail_memory(user);
    }
    l->at[l->n++] = e;
    return CH_OK;
}

void ch__elements_empty(ch_elements *l)
{
    for (int i = 0; i < l->n; i++)
        ch__element_free(l->at[i]);
    l->n = 0;
}

void ch__elements_drop(ch_elements *l)
{
    ch__elements_empty(l);
    ch__free(l->at);
    *l = (ch_elements){0};
}

int64_t ch__part_bytes(const ch_part *p)
{
    size_t array, held;

    part_size(p, &array, &held);
    return (int64_t)(array + held);
}

static void copy_strings(const ch_part *from, ch_str *to, char *bytes)
{
    const ch_str *s = from->data;

    for (int64_t i = 0; i < ch_shape_count(from->shape); i++) {
        if (s[i].size > 0)
            memcpy(bytes, s[i].data, s[i].size);
        to[i] = (ch_str){bytes, s[i].size};
        bytes += s[i].size;
    }
}

/* Copies a part and its data to `room`. Returns the end of the copy, rounded up. */
static char *copy_part(const ch_part *from, ch_part *to, char *room)
{
    size_t array, held;

    part_size(from, &array, &held);
    *to = (ch_part){.dtype = from->dtype, .shape = from->shape, .data = room};
    if (from->dtype == CH_STR)
        copy_strings(from, (ch_str *)(void *)room, room + array);
    else if (array > 0)
        memcpy(room, from->data, array);
    return room + round_up(array + held);
}

ch_status ch__element_copy(const ch_element *e, ch_element **out)
{
    size_t room = 0, array, held;

    for (int i = 0; i < e->n; i++) {
        part_size(&e->part[i], &array, &held);
        room += round_up(array + held);
    }
    ch_element *copy = ch__element_new(e->n, 0, room);
    if (copy == NULL)
        return ch__fail_memory("copy of an element");
    char *at = copy->room;
    for (int i = 0; i < e->n; i++)
        at = copy_part(&e->part[i], &copy->part[i], at);
    *out = copy;
    return CH_OK;
}

/* Returns true if `p` points into the element itself. */
static bool is_own(const ch_element *e, const void *p)
{
    return (uintptr_t)p - (uintptr_t)e < (uintptr_t)e->bytes;
}

/* Returns the bytes of a part, and of its strings, that lie in the element itself. */
static size_t own_size(const ch_element *e, const ch_part *p)
{
    size_t bytes, held;

    if (!is_own(e, p->data))
        return 0;
    part_size(p, &bytes, &held);
    if (p->dtype == CH_STR)
        for (int64_t i = 0; i < ch_shape_count(p->shape); i++) {
            const ch_str *s = (const ch_str *)p->data + i;

            bytes += is_own(e, s->data) ? s->size : 0;
        }
    return bytes;
}

/* Returns own_size rounded up. */
static size_t own_bytes(const ch_element *e, const ch_part *p)
{
    return round_up(own_size(e, p));
}

int64_t ch__element_bytes(const ch_element *e)
{
    int64_t bytes = e->bytes;

    for (int i = 0; i < e->n; i++)
        bytes += ch__part_bytes(&e->part[i]) - (int64_t)own_size(e, &e->part[i]);
    return bytes;
}

/* Copies a part. Data in the element itself is copied to `room`; other data is shared. */
static void share_part(const ch_element *e, const ch_part *from, ch_part *to, char *room)
{
    int64_t count = ch_shape_count(from->shape);
    size_t  array = (size_t)count * ch_dtype_bytes(from->dtype);
    char   *text = room + array;

    *to = *from;
    if (!is_own(e, from->data))
        return;
    memcpy(room, from->data, array);
    to->data = room;
    for (int64_t i = 0; from->dtype == CH_STR && i < count; i++) {
        ch_str *s = (ch_str *)(void *)room + i;

        if (!is_own(e, s->data))
            continue;
        memcpy(text, s->data, s->size);
        s->data = text;
        text += s->size;
    }
}

ch_status ch__element_share(const ch_element *e, ch_element **out)
{
    size_t room = 0;

    for (int i = 0; i < e->n; i++)
        room += own_bytes(e, &e->part[i]);
    ch_element *other = ch__element_new(e->n, e->n_owners, room);
    if (other == NULL)
        return ch__fail_memory("element");
    char *at = other->room;
    for (int i = 0; i < e->n; i++) {
        share_part(e, &e->part[i], &other->part[i], at);
        at += own_bytes(e, &e->part[i]);
    }
    for (int i = 0; i < e->n_owners; i++)
        if (e->owner[i] != NULL)
            other->owner[i] = ch__buffer_ref(e->owner[i]);
    other->is_row = e->is_row;
    *out = other;
    return CH_OK;
}

ch_status ch__element_of_int(int64_t value, ch_element **out)
{
    ch_element *e = ch__element_new(1, 0, sizeof(value));

    if (e == NULL)
        return ch__fail_memory("element");
    memcpy(e->room, &value, sizeof(value));
    e->part[0] = (ch_part){.dtype = CH_I64, .data = e->room};
    *out = e;
    return CH_OK;
}

ch_status ch__element_of_tuple(const ch_tuple *t, ch_element **out)
{
    int         n = ch_tuple_count(t);
    ch_element *e = ch__element_new(n, n, 0);

    if (e == NULL)
        return ch__fail_memory("element");
    for (int i = 0; i < n; i++) {
        ch_tensor *x = NULL;
        ch_value  *v = ch_tuple_at(t, i);
        ch_status  rc = CH_OK;

        if (ch_value_kind_of(v) != CH_PLAIN)
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "element: component %d is a per-replica value; want one tensor", i);
        else
            rc = ch_tensor_contiguous(ch_value_at(v, 0), &x);
        if (rc != CH_OK) {
            ch__element_free(e);
            return rc;
        }
        e->part[i] = (ch_part){.dtype = x->dtype, .shape = x->shape, .data = x->data};
        e->owner[i] = ch__buffer_ref(x->buffer);
        ch_tensor_unref(x);
    }
    *out = e;
    return CH_OK;
}

/* ---- conversion to tuples ---- */

/* A buffer that owns an element, for the tensors that point into the element. */
typedef struct element_owner {
    ch_buffer   base; /* must be the first field */
    ch_element *element;
} element_owner;

static void release_element(ch_buffer *b)
{
    element_owner *k = (element_owner *)b;

    ch__element_free(k->element);
    ch__free(k);
}

/* Returns a buffer that owns `e`. device NULL: the current device. If memory is exhausted,
 * returns NULL, and the caller still owns `e`. */
static ch_buffer *own_element(ch_element *e, ch_device *device)
{
    element_owner *k = ch__calloc(1, sizeof(*k));

    if (k == NULL)
        return NULL;
    atomic_init(&k->base.refs, 1);
    k->base.release = release_element;
    k->base.device = device != NULL ? device : ch_device_current();
    k->element = e;
    return &k->base;
}

ch_buffer *ch__element_buffer(ch_element *e)
{
    ch_buffer *b = own_element(e, NULL);

    if (b == NULL)
        ch__element_free(e);
    return b;
}

static size_t alignment_of(ch_dtype dtype)
{
    return dtype == CH_STR ? sizeof(void *) : ch_dtype_bytes(dtype);
}

/* Returns the pointer without const, because the data pointer of a tensor is not const. No code
 * writes to the data of an element. */
static char *without_const(const void *data)
{
    char *p;

    memcpy(&p, &data, sizeof(p));
    return p;
}

/* Creates a view of the part's data, or a copy if the data is not aligned. */
static ch_status tensor_of_part(const ch_part *p, ch_buffer *keeper, ch_tensor **out)
{
    int64_t stride[CH_MAX_RANK];

    if (p->data == NULL || ch_shape_count(p->shape) == 0)
        return ch_tensor_new_on(keeper->device, p->dtype, p->shape, out);
    if ((uintptr_t)p->data % alignment_of(p->dtype) != 0) {
        ch_status rc = ch_tensor_new_on(keeper->device, p->dtype, p->shape, out);

        if (rc == CH_OK)
            memcpy((*out)->data, p->data, ch_tensor_bytes(*out));
        return rc;
    }
    ch__strides(p->shape, stride);
    ch_status rc =
        ch__tensor_view(keeper, p->dtype, p->shape, stride, without_const(p->data), out);
    if (rc == CH_OK)
        (*out)->room = p->room;
    return rc;
}

/* Creates a value of part `at` of all n elements. */
static ch_status value_of_parts(int n, ch_buffer *const *keeper, int at, ch_value **out)
{
    ch_tensor *few[8] = {NULL}, **t = few;
    ch_status  rc = CH_OK;

    if (n > 8 && (t = ch__calloc((size_t)n, sizeof(ch_tensor *))) == NULL)
        return ch__fail_memory("element");
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = tensor_of_part(&((element_owner *)keeper[i])->element->part[at], keeper[i], &t[i]);
    if (rc == CH_OK)
        rc = ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, t, out);
    for (int i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
    if (t != few)
        ch__free(t);
    return rc;
}

static ch_status tuple_of_parts(int n, ch_buffer *const *keeper, int n_parts,
                                const ch_tensor_spec *spec, ch_tuple **out)
{
    ch_value   **value = ch__calloc((size_t)n_parts + 1, sizeof(ch_value *));
    const char **name = ch__calloc((size_t)n_parts + 1, sizeof(char *));
    ch_status    rc = value == NULL || name == NULL ? ch__fail_memory("element") : CH_OK;

    for (int i = 0; i < n_parts && rc == CH_OK; i++) {
        rc = value_of_parts(n, keeper, i, &value[i]);
        name[i] = spec != NULL ? spec[i].name : NULL;
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(n_parts, value, name, out);
    for (int i = 0; value != NULL && i < n_parts; i++)
        ch_value_unref(value[i]);
    ch__free(value);
    ch__free(name);
    return rc;
}

ch_status ch__elements_to_tuple(int n, ch_element *const *e, const ch_tensor_spec *spec,
                                ch_device *const *device, ch_tuple **out)
{
    ch_buffer **keeper = ch__calloc((size_t)n + 1, sizeof(ch_buffer *));
    int         n_parts = e[0]->n;
    ch_status   rc = keeper == NULL ? ch__fail_memory("element") : CH_OK;

    for (int i = 0; i < n; i++) {
        if (rc == CH_OK &&
            (keeper[i] = own_element(e[i], device != NULL ? device[i] : NULL)) == NULL)
            rc = ch__fail_memory("element");
        if (keeper == NULL || keeper[i] == NULL)
            ch__element_free(e[i]);
    }
    if (rc == CH_OK)
        rc = tuple_of_parts(n, keeper, n_parts, spec, out);
    for (int i = 0; keeper != NULL && i < n; i++)
        if (keeper[i] != NULL)
            ch__buffer_unref(keeper[i]);
    ch__free(keeper);
    return rc;
}

ch_status ch__element_to_tuple(ch_element *e, const ch_tensor_spec *spec, ch_tuple **out)
{
    return ch__elements_to_tuple(1, &e, spec, NULL, out);
}
