/* tensor/tensor.c -- tensors: creation, reference counts, elements and copies.
 *
 * A tensor (struct ch_tensor) is a view of a buffer (struct ch_buffer): both are reference
 * counted, and several tensors can share a buffer. A buffer is memory of a device, or memory of
 * the caller (struct wrapped). view.c makes further views of a tensor, copy.c copies elements.
 *
 * Invariants:
 *   1. The elements of a CH_STR tensor own their bytes, unless its memory is wrapped.
 *   2. The last reference calls `release` of a buffer and `recycle` of a tensor, if they
 *      are set.
 *
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/tensor.h"

#include <stdint.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/device.h"
#include "tensor/print.h"
#include "tensor/view.h"

/* A buffer over memory of the caller. */
typedef struct wrapped {
    ch_buffer base; /* must be first: ch_buffer * and wrapped * convert */
    void (*release)(void *arg);
} wrapped;

static void release_owned(ch_buffer *b)
{
    ch__device_free(b->device, b->data, b->bytes);
    ch__free(b);
}

static void release_strings(ch_buffer *b)
{
    ch_str *s = b->data;

    for (size_t i = 0; i < b->bytes / sizeof(*s); i++)
        ch__str_drop(&s[i]);
    release_owned(b);
}

static void release_wrapped(ch_buffer *b)
{
    wrapped *w = (wrapped *)b;

    if (w->release != NULL)
        w->release(b->arg);
    ch__free(w);
}

static ch_buffer *buffer_new(ch_device *device, ch_dtype dtype, size_t bytes, bool is_zeroed)
{
    ch_buffer *b = ch__calloc(1, sizeof(*b));

    if (b == NULL)
        return NULL;
    b->data =
        is_zeroed ? ch__device_alloc(device, bytes) : ch__device_alloc_untouched(device, bytes);
    if (b->data == NULL) {
        ch__free(b);
        return NULL;
    }
    atomic_init(&b->refs, 1);
    b->bytes = bytes;
    b->device = device;
    b->release = dtype == CH_STR ? release_strings : release_owned;
    return b;
}

void ch__buffer_unref(ch_buffer *b)
{
    if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1)
        b->release(b);
}

/* Ignores the strides of axes of size 1. A tensor without elements is contiguous. */
static bool is_contiguous(ch_shape shape, const int64_t *stride)
{
    int64_t plain[CH_MAX_RANK];

    if (ch_shape_count(shape) == 0)
        return true;
    ch__strides(shape, plain);
    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i] != 1 && stride[i] != plain[i])
            return false;
    return true;
}

ch_status ch__tensor_view(ch_buffer *b, ch_dtype dtype, ch_shape shape, const int64_t *stride,
                          char *data, ch_tensor **out)
{
    ch_tensor *t = ch__calloc(1, sizeof(*t));

    if (t == NULL)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "tensor %s: out of memory",
                        ch__label(dtype, shape).text);
    atomic_init(&t->refs, 1);
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    t->dtype = dtype;
    t->contiguous = is_contiguous(shape, stride);
    t->shape = ch_shape_make(shape.rank, shape.dim); /* sizes past the rank become 0 */
    memcpy(t->stride, stride, (size_t)shape.rank * sizeof(*stride));
    t->data = data;
    t->buffer = b;
    *out = t;
    return CH_OK;
}

ch_status ch_tensor_new(ch_dtype dtype, ch_shape shape, ch_tensor **out)
{
    return ch_tensor_new_on(NULL, dtype, shape, out);
}

/* Creates a tensor. Its memory is zeroed, or has not been written to. */
static ch_status new_tensor(ch_device *device, ch_dtype dtype, ch_shape shape, bool is_zeroed,
                            ch_tensor **out)
{
    int64_t   count, bytes, stride[CH_MAX_RANK];
    ch_status st = ch__tensor_size(dtype, shape, &count, &bytes);

    if (st != CH_OK)
        return st;
    if (device == NULL)
        device = ch_device_current();
    if (device == NULL)
        return ch__fail_memory("devices of this process");
    ch_buffer *b = buffer_new(device, dtype, (size_t)bytes, is_zeroed);
    if (b == NULL)
        return ch__fail(CH_RESOURCE_EXHAUSTED,
                        "tensor %s on %s: out of memory (requested %lld bytes, %zu bytes are "
                        "in use there)",
                        ch__label(dtype, shape).text, ch_device_name(device), (long long)bytes,
                        ch_device_bytes(device));
    ch__strides(shape, stride);
    st = ch__tensor_view(b, dtype, shape, stride, b->data, out);
    ch__buffer_unref(b);
    return st;
}

ch_status ch_tensor_new_on(ch_device *device, ch_dtype dtype, ch_shape shape, ch_tensor **out)
{
    ch_status st = ch__check_not_null("tensor new", "out", out, NULL, NULL);

    return st == CH_OK ? new_tensor(device, dtype, shape, true, out) : st;
}

ch_status ch__tensor_new_untouched(ch_device *device, ch_dtype dtype, ch_shape shape,
                                   ch_tensor **out)
{
    return new_tensor(device, dtype, shape, false, out);
}

ch_status ch_tensor_copy_of(ch_dtype dtype, ch_shape shape, const void *data, ch_tensor **out)
{
    ch_tensor *t;
    ch_status  st = ch__check_not_null("tensor copy_of", "out", out, NULL, NULL);

    if (st == CH_OK)
        st = ch_tensor_new(dtype, shape, &t);
    if (st != CH_OK)
        return st;
    if (data == NULL && ch_tensor_count(t) > 0)
        st = ch__fail(CH_INVALID_ARGUMENT, "tensor copy_of: %s has elements, but data is NULL",
                      ch__tensor_label(t).text);
    else if (dtype == CH_STR)
        st = ch__copy_strings(t->shape, data, t->stride, t->data, t->stride);
    else
        ch__copy_strided(dtype, t->shape, data, t->stride, t->data, t->stride);
    if (st != CH_OK) {
        ch_tensor_unref(t);
        return st;
    }
    *out = t;
    return CH_OK;
}

ch_status ch_tensor_scalar(ch_dtype dtype, double value, ch_tensor **out)
{
    if (dtype == CH_STR)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "tensor scalar: %g is not a string; use ch_tensor_of_text", value);
    ch_status st = ch_tensor_new(dtype, ch_shape_scalar(), out);
    if (st == CH_OK)
        ch__store(dtype, (*out)->data, value);
    return st;
}

ch_status ch_tensor_of_text(const char *text, ch_tensor **out)
{
    if (text == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "tensor of_text: text is NULL");
    return ch_tensor_copy_of(CH_STR, ch_shape_scalar(), &(ch_str){text, strlen(text)}, out);
}

ch_status ch_tensor_wrap(ch_dtype dtype, ch_shape shape, void *data, void (*release)(void *arg),
                         void *arg, ch_tensor **out)
{
    int64_t    count, bytes, stride[CH_MAX_RANK];
    ch_device *device = ch_device_current();
    ch_status  st = ch__check_not_null("tensor wrap", "out", out, NULL, NULL);

    if (st == CH_OK)
        st = ch__tensor_size(dtype, shape, &count, &bytes);
    if (st != CH_OK)
        return st;
    if (data == NULL && count > 0)
        return ch__fail(CH_INVALID_ARGUMENT, "tensor wrap: %s has elements, but data is NULL",
                        ch__label(dtype, shape).text);
    size_t align = dtype == CH_STR ? _Alignof(ch_str) : ch_dtype_bytes(dtype);
    if ((uintptr_t)data % align != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "tensor wrap: data %p is not aligned to the %zu bytes that %s needs",
                        data, align, ch__label(dtype, shape).text);
    wrapped *w = ch__calloc(1, sizeof(*w));
    if (w == NULL || device == NULL) {
        ch__free(w);
        return ch__fail_memory("tensor wrap");
    }
    w->base = (ch_buffer){.data = data,
                          .bytes = (size_t)bytes,
                          .device = device,
                          .release = release_wrapped,
                          .arg = arg};
    w->release = release;
    ch__strides(shape, stride);
    st = ch__tensor_view(&w->base, dtype, shape, stride, data, out);
    if (st != CH_OK)
        ch__free(w); /* on failure, the caller's memory is not released */
    return st;
}

bool ch__tensor_is_wrapped(const ch_tensor *t)
{
    return t->buffer->release == release_wrapped;
}

ch_tensor *ch_tensor_ref(ch_tensor *t)
{
    if (t != NULL)
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void ch_tensor_unref(ch_tensor *t)
{
    if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (t->recycle != NULL) {
        t->recycle(t);
        return;
    }
    ch__buffer_unref(t->buffer);
    ch__free(t);
}

ch_dtype ch_tensor_dtype(const ch_tensor *t)
{
    return t != NULL ? t->dtype : CH_F32;
}

ch_shape ch_tensor_shape(const ch_tensor *t)
{
    return t != NULL ? t->shape : ch_shape_scalar();
}

int64_t ch_tensor_count(const ch_tensor *t)
{
    return t != NULL ? ch_shape_count(t->shape) : 0;
}

size_t ch_tensor_bytes(const ch_tensor *t)
{
    return (size_t)ch_tensor_count(t) * ch_dtype_bytes(ch_tensor_dtype(t));
}

const int64_t *ch_tensor_strides(const ch_tensor *t)
{
    return t != NULL ? t->stride : NULL;
}

bool ch_tensor_is_contiguous(const ch_tensor *t)
{
    return t != NULL && t->contiguous;
}

ch_device *ch_tensor_device(const ch_tensor *t)
{
    return t != NULL ? t->buffer->device : NULL;
}

const void *ch_tensor_data(const ch_tensor *t)
{
    return t != NULL ? t->data : NULL;
}

void *ch_tensor_data_mut(ch_tensor *t)
{
    return t != NULL ? t->data : NULL;
}

/* Gives the address of an element. `call` is for the message. */
static ch_status tensor_at(const ch_tensor *t, const int64_t *index, const char *call,
                           void **out)
{
    int64_t at = 0;

    if (index == NULL && t->shape.rank > 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "tensor %s: %s needs %d indices, but index is NULL", call,
                        ch__tensor_label(t).text, t->shape.rank);
    for (int i = 0; i < t->shape.rank; i++) {
        if (index[i] < 0 || index[i] >= t->shape.dim[i])
            return ch__fail(CH_INVALID_ARGUMENT,
                            "tensor %s: index %lld of axis %d of %s is not in [0, %lld)", call,
                            (long long)index[i], i, ch__tensor_label(t).text,
                            (long long)t->shape.dim[i]);
        at += index[i] * t->stride[i];
    }
    *out = t->data + at * (int64_t)ch_dtype_bytes(t->dtype);
    return CH_OK;
}

/* Checks the arguments of a call that reads or writes elements: strings, if want_strings, or
 * numbers. */
static ch_status check_elements(const ch_tensor *t, bool want_strings, const char *call,
                                const void *out)
{
    if (t == NULL || out == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "tensor %s: %s is NULL", call,
                        t == NULL ? "the tensor" : "out");
    if ((t->dtype == CH_STR) == want_strings)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT, "tensor %s: the elements of %s are %s", call,
                    ch__tensor_label(t).text,
                    want_strings ? "not strings; use ch_tensor_get and ch_tensor_set"
                                 : "strings; use ch_tensor_str and ch_tensor_set_str");
}

ch_status ch_tensor_get(const ch_tensor *t, const int64_t *index, double *out)
{
    void     *at;
    ch_status st = check_elements(t, false, "get", out);

    if (st == CH_OK)
        st = tensor_at(t, index, "get", &at);
    if (st == CH_OK)
        *out = ch__load(t->dtype, at);
    return st;
}

ch_status ch_tensor_set(ch_tensor *t, const int64_t *index, double value)
{
    void     *at;
    ch_status st = check_elements(t, false, "set", t);

    if (st == CH_OK)
        st = tensor_at(t, index, "set", &at);
    if (st == CH_OK)
        ch__store(t->dtype, at, value);
    return st;
}

ch_status ch_tensor_str(const ch_tensor *t, const int64_t *index, ch_str *out)
{
    void     *at;
    ch_status st = check_elements(t, true, "str", out);

    if (st == CH_OK)
        st = tensor_at(t, index, "str", &at);
    if (st == CH_OK)
        *out = *(const ch_str *)at;
    return st;
}

/* Returns an error if the tensor does not own its strings, because it could not free the
 * replaced strings. */
static ch_status check_owns_strings(const ch_tensor *t, const char *call)
{
    if (t->buffer->release == release_strings)
        return CH_OK;
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "tensor %s: the strings of %s are in wrapped memory and cannot be changed; write "
        "to a copy",
        call, ch__tensor_label(t).text);
}

ch_status ch_tensor_set_str(ch_tensor *t, const int64_t *index, ch_str s)
{
    void     *at;
    ch_status st = check_elements(t, true, "set_str", t);

    if (st == CH_OK)
        st = check_owns_strings(t, "set_str");
    if (st == CH_OK)
        st = tensor_at(t, index, "set_str", &at);
    return st == CH_OK ? ch__str_set(at, s) : st;
}

ch_status ch_tensor_item(const ch_tensor *t, double *out)
{
    ch_status st = check_elements(t, false, "item", out);

    if (st != CH_OK)
        return st;
    if (ch_tensor_count(t) != 1)
        return ch__fail(CH_INVALID_ARGUMENT, "tensor item: %s has %lld elements, want 1",
                        ch__tensor_label(t).text, (long long)ch_tensor_count(t));
    *out = ch__load(t->dtype, t->data);
    return CH_OK;
}

/* Gives the range of addresses [low, high) of a view that has elements. */
static void extent(const ch_tensor *t, uintptr_t *low, uintptr_t *high)
{
    int64_t bytes = (int64_t)ch_dtype_bytes(t->dtype), below = 0, above = bytes;

    for (int i = 0; i < t->shape.rank; i++) {
        int64_t reach = (t->shape.dim[i] - 1) * t->stride[i] * bytes;

        *(reach < 0 ? &below : &above) += reach;
    }
    *low = (uintptr_t)t->data + (uintptr_t)below;
    *high = (uintptr_t)t->data + (uintptr_t)above;
}

static bool overlap(const ch_tensor *a, const ch_tensor *b)
{
    uintptr_t a_low, a_high, b_low, b_high;

    if (ch_tensor_count(a) == 0)
        return false;
    extent(a, &a_low, &a_high);
    extent(b, &b_low, &b_high);
    return a_low < b_high && b_low < a_high;
}

static ch_status copy_disjoint(const ch_tensor *from, ch_tensor *to)
{
    if (from->dtype == CH_STR)
        return ch__copy_strings(from->shape, from->data, from->stride, to->data, to->stride);
    ch__copy_strided(from->dtype, from->shape, from->data, from->stride, to->data, to->stride);
    return CH_OK;
}

ch_status ch_tensor_copy(const ch_tensor *from, ch_tensor *to)
{
    ch_tensor *temporary;

    if (from == NULL || to == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "tensor copy: %s is NULL",
                        from == NULL ? "the source" : "the destination");
    if (from->dtype != to->dtype || !ch_shape_equal(from->shape, to->shape))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "tensor copy: %s into %s; want the same dtype and shape",
                        ch__tensor_label(from).text, ch__tensor_label(to).text);
    if (to->dtype == CH_STR) {
        ch_status st = check_owns_strings(to, "copy");

        if (st != CH_OK)
            return st;
    }
    if (!overlap(from, to))
        return copy_disjoint(from, to);
    ch_status st =
        ch_tensor_new_on(ch_tensor_device(from), from->dtype, from->shape, &temporary);
    if (st != CH_OK)
        return st;
    st = copy_disjoint(from, temporary);
    if (st == CH_OK)
        st = copy_disjoint(temporary, to);
    ch_tensor_unref(temporary);
    return st;
}
