/* tensor/tensor.h -- what other modules may see of tensors, values and devices.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include <stdatomic.h>

#include "cohort/tensor.h"
#include "cohort/value.h"

/* Memory that views share. When the last reference goes, `release(arg)` is called. */
typedef struct ch_buffer {
    atomic_int refs;
    void      *data;
    size_t     bytes;
    ch_device *device;
    void (*release)(struct ch_buffer *b); /* frees data and b */
    void *arg;
} ch_buffer;

struct ch_tensor {
    atomic_int refs;
    ch_dtype   dtype;
    bool       contiguous;
    ch_shape   shape;
    int64_t    stride[CH_MAX_RANK]; /* in elements */
    char      *data;                /* the view's first element */
    size_t room; /* bytes behind its last element that may be read, if it is contiguous; they
                        may hold anything (tensor/ragged.h) */
    ch_buffer *buffer;
    /* Where the tensor struct itself goes when its last reference does: NULL frees it. A
     * program's outputs go back to the program, so that a step allocates nothing. */
    void (*recycle)(ch_tensor *t);
    void *home;
};

/* Values and tuples go home in the same way. */
struct ch_value {
    atomic_int    refs;
    ch_value_kind kind;
    int           n;
    void (*recycle)(ch_value *v);
    void      *home;
    ch_tensor *tensor[];
};

struct ch_tuple {
    atomic_int refs;
    int        n;
    void (*recycle)(ch_tuple *t);
    void *home;
    struct ch_leaf {
        ch_value *value;
        char     *name; /* NULL: none */
    } leaf[];
};

/* Adds a reference to `b`, and returns it. */
static inline ch_buffer *ch__buffer_ref(ch_buffer *b)
{
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}
void ch__buffer_unref(ch_buffer *b);
/* Makes a tensor over `b`, of which it takes a reference; `data` is its first element. */
CH_MUST_CHECK ch_status ch__tensor_view(ch_buffer *b, ch_dtype dtype, ch_shape shape,
                                        const int64_t *stride, char *data, ch_tensor **out);

/* Contiguous strides of a shape. */
void ch__strides(ch_shape shape, int64_t stride[CH_MAX_RANK]);
/* Bytes of a contiguous tensor; INVALID_ARGUMENT (the shape named) for negative sizes, ranks
 * out of range and products that overflow. */
CH_MUST_CHECK ch_status ch__tensor_size(ch_dtype dtype, ch_shape shape, int64_t *count,
                                        int64_t *bytes);
/* Copies elements of any strides between two dense or strided views that do not overlap; no
 * checks. Of strings it copies the pointers: for those, use ch_tensor_copy. */
void ch__copy_strided(ch_dtype dtype, ch_shape shape, const char *from,
                      const int64_t *from_stride, char *to, const int64_t *to_stride);
/* One element to and from double, by dtype; not for strings. What does not fit an integer goes
 * to its nearer end, and NaN to 0. */
double ch__load(ch_dtype dtype, const void *at);
void   ch__store(ch_dtype dtype, void *at, double value);
/* Makes every element of a contiguous tensor of numbers this one. */
void ch__tensor_fill(ch_tensor *t, double value);
/* A new tensor of numbers with t's values in another dtype. */
CH_MUST_CHECK ch_status ch__tensor_cast(ch_tensor *t, ch_dtype dtype, ch_tensor **out);
/* True if the dtype holds this number exactly, or is a float, which rounds. */
bool ch__dtype_holds(ch_dtype dtype, double value);

static inline bool ch__dtype_is_half(ch_dtype t)
{
    return t == CH_BF16 || t == CH_F16;
}
/* 16-bit floats; to nearest, ties to even; NaN stays NaN. */
float    ch__bf16_to_f32(uint16_t x);
uint16_t ch__bf16_of_f32(float x);
float    ch__f16_to_f32(uint16_t x);
uint16_t ch__f16_of_f32(float x);

#endif
