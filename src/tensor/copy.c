/* tensor/copy.c -- copies elements between views of any strides.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/view.h"

/* Two views of the same shape, which are walked together. Neighbouring axes that both views can
 * walk with a single stride are merged, so that the last axis (a row) is as long as possible.
 * The rank is at least 1. */
typedef struct pair {
    int     rank;
    int64_t dim[CH_MAX_RANK];
    int64_t from[CH_MAX_RANK], to[CH_MAX_RANK]; /* strides in bytes */
} pair;

/* Copies `n` elements at distances of `from_step` and `to_step` bytes. */
typedef ch_status (*row_copy)(size_t bytes, int64_t n, const char *from, int64_t from_step,
                              char *to, int64_t to_step);

static pair pair_of(ch_shape shape, const int64_t *from_stride, const int64_t *to_stride,
                    int64_t bytes)
{
    pair p = {.rank = 0};

    for (int i = 0; i < shape.rank; i++) {
        int64_t n = shape.dim[i], from = from_stride[i] * bytes, to = to_stride[i] * bytes;
        int     last = p.rank - 1;

        if (n == 1)
            continue;
        if (last >= 0 && p.from[last] == from * n && p.to[last] == to * n) {
            p.dim[last] *= n;
        } else {
            last = p.rank++;
            p.dim[last] = n;
        }
        p.from[last] = from;
        p.to[last] = to;
    }
    if (p.rank == 0)
        p = (pair){.rank = 1, .dim = {1}, .from = {bytes}, .to = {bytes}};
    return p;
}

static ch_status pair_copy(const pair *p, size_t bytes, const char *from, char *to,
                           row_copy copy)
{
    const int last = p->rank - 1;
    int64_t   index[CH_MAX_RANK] = {0};

    for (;;) {
        ch_status st = copy(bytes, p->dim[last], from, p->from[last], to, p->to[last]);
        int       axis = last - 1;

        if (st != CH_OK)
            return st;
        for (; axis >= 0; axis--) {
            from += p->from[axis];
            to += p->to[axis];
            if (++index[axis] < p->dim[axis])
                break;
            from -= p->from[axis] * p->dim[axis];
            to -= p->to[axis] * p->dim[axis];
            index[axis] = 0;
        }
        if (axis < 0)
            return CH_OK;
    }
}

/* Inlined with a constant `bytes`, so that each memcpy becomes a load and a store. */
static inline void copy_steps(size_t bytes, int64_t n, const char *from, int64_t from_step,
                              char *to, int64_t to_step)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * to_step, from + i * from_step, bytes);
}

static ch_status copy_row(size_t bytes, int64_t n, const char *from, int64_t from_step,
                          char *to, int64_t to_step)
{
    if (from_step == (int64_t)bytes && to_step == (int64_t)bytes)
        memcpy(to, from, (size_t)n * bytes);
    else if (bytes == 1)
        copy_steps(1, n, from, from_step, to, to_step);
    else if (bytes == 2)
        copy_steps(2, n, from, from_step, to, to_step);
    else if (bytes == 4)
        copy_steps(4, n, from, from_step, to, to_step);
    else if (bytes == 8)
        copy_steps(8, n, from, from_step, to, to_step);
    else
        copy_steps(bytes, n, from, from_step, to, to_step);
    return CH_OK;
}

static ch_status copy_strings(size_t bytes, int64_t n, const char *from, int64_t from_step,
                              char *to, int64_t to_step)
{
    (void)bytes;
    for (int64_t i = 0; i < n; i++) {
        const void *source = from + i * from_step;
        void       *target = to + i * to_step;
        ch_status   st = ch__str_set(target, *(const ch_str *)source);

        if (st != CH_OK)
            return st;
    }
    return CH_OK;
}

void ch__copy_strided(ch_dtype dtype, ch_shape shape, const char *from,
                      const int64_t *from_stride, char *to, const int64_t *to_stride)
{
    size_t bytes = ch_dtype_bytes(dtype);

    if (ch_shape_count(shape) <= 0)
        return;
    pair p = pair_of(shape, from_stride, to_stride, (int64_t)bytes);
    (void)pair_copy(&p, bytes, from, to, copy_row); /* rows of plain bytes cannot fail */
}

ch_status ch__copy_strings(ch_shape shape, const char *from, const int64_t *from_stride,
                           char *to, const int64_t *to_stride)
{
    if (ch_shape_count(shape) <= 0)
        return CH_OK;
    pair p = pair_of(shape, from_stride, to_stride, (int64_t)sizeof(ch_str));
    return pair_copy(&p, sizeof(ch_str), from, to, copy_strings);
}

void ch__str_drop(ch_str *at)
{
    void *owned; /* at->data without const: this tensor owns the bytes */

    memcpy(&owned, &at->data, sizeof(owned));
    ch__free(owned);
    *at = (ch_str){NULL, 0};
}

ch_status ch__str_set(ch_str *at, ch_str s)
{
    char *bytes = NULL;

    if (s.data == NULL && s.size > 0)
        return ch__fail(CH_INVALID_ARGUMENT, "string: data is NULL (got %zu bytes, want 0)",
                        s.size);
    if (s.size > 0) {
        bytes = ch__malloc(s.size);
        if (bytes == NULL)
            return ch__fail(CH_RESOURCE_EXHAUSTED, "string of %zu bytes: out of memory",
                            s.size);
        memcpy(bytes, s.data, s.size);
    }
    ch__str_drop(at); /* after the copy, because `s` may be the element itself */
    *at = (ch_str){bytes, s.size};
    return CH_OK;
}

ch_status ch__tensor_cast(ch_tensor *t, ch_dtype dtype, ch_tensor **out)
{
    size_t     from_bytes = ch_dtype_bytes(t->dtype), to_bytes = ch_dtype_bytes(dtype);
    ch_tensor *from = NULL, *to = NULL;
    ch_status  rc = ch_tensor_contiguous(t, &from);

    if (rc == CH_OK)
        rc = ch_tensor_new(dtype, t->shape, &to);
    for (int64_t i = 0; rc == CH_OK && i < ch_tensor_count(from); i++)
        ch__store(dtype, (char *)to->data + (size_t)i * to_bytes,
                  ch__load(from->dtype, (const char *)from->data + (size_t)i * from_bytes));
    if (rc == CH_OK)
        *out = to;
    ch_tensor_unref(from);
    return rc;
}

/* Stores the first element, then copies the filled part behind itself. Each copy doubles the
 * filled part, up to cache_bytes, so that the source stays in the cache. */
void ch__tensor_fill(ch_tensor *t, double value)
{
    const size_t cache_bytes = 32 << 10;
    size_t       bytes = ch_tensor_bytes(t), done = ch_dtype_bytes(t->dtype), n;

    if (bytes == 0)
        return;
    ch__store(t->dtype, t->data, value);
    for (; done < bytes; done += n) {
        n = done < cache_bytes ? done : cache_bytes;
        n = n < bytes - done ? n : bytes - done;
        memcpy(t->data + done, t->data, n);
    }
}
