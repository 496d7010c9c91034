/* data/element.c -- elements: making, copying, and what a program sees of them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/element.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/view.h"

static size_t round_up(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

ch_element *ch__element_new(int n, int n_owners, size_t room_bytes)
{
    size_t      parts = sizeof(ch_element) + (size_t)n * sizeof(ch_part);
    size_t      owners = (size_t)n_owners * sizeof(ch_buffer *);
    size_t      head = round_up(parts + owners);
    ch_element *e = ch__malloc(head + room_bytes);

    if (e == NULL)
        return NULL;
    memset(e, 0, parts + owners);
    e->n = n;
    e->n_owners = n_owners;
    e->bytes = (int64_t)(head + room_bytes);
    e->owner = (ch_buffer **)((char *)e + parts);
    e->room = (char *)e + head;
    return e;
}

void ch__element_free(ch_element *e)
{
    if (e == NULL)
        return;
    for (int i = 0; i < e->n_owners; i++)
        if (e->owner[i] != NULL)
            ch__buffer_unref(e->owner[i]);
    ch__free(e);
}

/* Bytes of the array itself, and of what its strings hold. */
static void part_size(const ch_part *p, size_t *array, size_t *held)
{
    int64_t count = ch_shape_count(p->shape);

    *array = (size_t)count * ch_dtype_bytes(p->dtype);
    *held = 0;
    if (p->dtype == CH_STR)
        for (int64_t i = 0; i < count; i++)
            *held += ((const ch_str *)p->data)[i].size;
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

/* The part anew, with its data at `room`; returns what is behind that. */
static char *copy_part(const ch_part *from, ch_part *to, char *room)
{
    size_t array, held;

    part_size(from, &array, &held);
    *to = (ch_part){from->dtype, from->shape, room};
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
                          "element: component %d has a tensor for each replica, and an element "
                          "of a dataset has one for all",
                          i);
        else
            rc = ch_tensor_contiguous(ch_value_at(v, 0), &x);
        if (rc != CH_OK) {
            ch__element_free(e);
            return rc;
        }
        e->part[i] = (ch_part){x->dtype, x->shape, x->data};
        e->owner[i] = ch__buffer_ref(x->buffer);
        ch_tensor_unref(x);
    }
    *out = e;
    return CH_OK;
}

/* ---- as a tuple ---- */

/* A buffer that keeps an element for the tensors that look into it. */
typedef struct kept {
    ch_buffer   base; /* first */
    ch_element *element;
} kept;

static void release_kept(ch_buffer *b)
{
    kept *k = (kept *)b;

    ch__element_free(k->element);
    ch__free(k);
}

static ch_status keep(ch_element *e, ch_buffer **out)
{
    kept *k = ch__calloc(1, sizeof(*k));

    if (k == NULL)
        return ch__fail_memory("element");
    atomic_init(&k->base.refs, 1);
    k->base.release = release_kept;
    k->base.device = ch_device_current();
    k->element = e;
    *out = &k->base;
    return CH_OK;
}

static size_t alignment_of(ch_dtype dtype)
{
    return dtype == CH_STR ? sizeof(void *) : ch_dtype_bytes(dtype);
}

/* A tensor's data is not const, and nobody writes to an element's. */
static char *of_tensor(const void *data)
{
    char *p;

    memcpy(&p, &data, sizeof(p));
    return p;
}

/* Where the data is, or a copy where it is not aligned. */
static ch_status tensor_of_part(const ch_part *p, ch_buffer *keeper, ch_tensor **out)
{
    int64_t     stride[CH_MAX_RANK];
    const char *data = p->data;

    if (data == NULL || ch_shape_count(p->shape) == 0)
        return ch_tensor_new(p->dtype, p->shape, out);
    if ((uintptr_t)data % alignment_of(p->dtype) != 0) {
        ch_status rc = ch_tensor_new(p->dtype, p->shape, out);

        if (rc == CH_OK)
            memcpy((*out)->data, data, ch_tensor_bytes(*out));
        return rc;
    }
    ch__strides(p->shape, stride);
    return ch__tensor_view(keeper, p->dtype, p->shape, stride, of_tensor(data), out);
}

ch_status ch__element_to_tuple(ch_element *e, const ch_tensor_spec *spec, ch_tuple **out)
{
    int          n = e->n;
    ch_buffer   *keeper = NULL;
    ch_value   **value = ch__calloc((size_t)n + 1, sizeof(ch_value *));
    const char **name = ch__calloc((size_t)n + 1, sizeof(char *));
    ch_status    rc =
        value == NULL || name == NULL ? ch__fail_memory("element") : keep(e, &keeper);

    if (rc != CH_OK)
        ch__element_free(e);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        ch_tensor *t = NULL;

        rc = tensor_of_part(&e->part[i], keeper, &t);
        if (rc == CH_OK)
            rc = ch_value_new(CH_PLAIN, 1, &t, &value[i]);
        ch_tensor_unref(t);
        name[i] = spec != NULL ? spec[i].name : NULL;
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(n, value, name, out);
    for (int i = 0; value != NULL && i < n; i++)
        ch_value_unref(value[i]);
    if (keeper != NULL)
        ch__buffer_unref(keeper);
    ch__free(value);
    ch__free(name);
    return rc;
}
