/* tensor/tensor.h -- the structs of tensors, values and tuples, for other modules.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include <stdatomic.h>

#include "cohort/tensor.h"
#include "cohort/value.h"

/* Memory that views share. The last reference calls release(b). */
typedef struct ch_buffer {
    atomic_int refs;
    void      *data;
    size_t     bytes;
    ch_device *device;
    void (*release)(struct ch_buffer *b); /* frees data and b */
    void *arg;                            /* for release */
} ch_buffer;

struct ch_tensor {
    atomic_int refs;
    ch_dtype   dtype;
    bool       contiguous;
    ch_shape   shape;
    int64_t    stride[CH_MAX_RANK]; /* in elements */
    char      *data;                /* the view's first element */
    /* Bytes after the last element that may be read, if the tensor is contiguous. Their
     * contents are undefined (tensor/ragged.h). */
    size_t     room;
    ch_buffer *buffer;
    /* Called instead of freeing the struct when the last reference is released; NULL: the
     * struct is freed. The outputs of a program return to the program (`home`) in this way, so
     * that a step allocates nothing. */
    void (*recycle)(ch_tensor *t);
    void *home; /* for recycle */
};

/* recycle and home are as in ch_tensor. */
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
        char     *name; /* NULL: no name */
    } leaf[];
};

/* Adds a reference and returns `b`. */
static inline ch_buffer *ch__buffer_ref(ch_buffer *b)
{
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}
/* Releases a reference. The last one calls release. */
void ch__buffer_unref(ch_buffer *b);
/* Creates a tensor over `b` and adds a reference to `b`. `data` is the first element. */
CH_MUST_CHECK ch_status ch__tensor_view(ch_buffer *b, ch_dtype dtype, ch_shape shape,
                                        const int64_t *stride, char *data, ch_tensor **out);

/* Creates a tensor of numbers like ch_tensor_new_on, but does not write to its memory, so the
 * contents are undefined. For memory that is written later, or in pieces. */
CH_MUST_CHECK ch_status ch__tensor_new_untouched(ch_device *device, ch_dtype dtype,
                                                 ch_shape shape, ch_tensor **out);

/* Writes the strides of a contiguous tensor, in elements. */
void ch__strides(ch_shape shape, int64_t stride[CH_MAX_RANK]);
/* Computes the number of elements and bytes of a contiguous tensor. Returns INVALID_ARGUMENT
 * for an invalid dtype, a negative size, a rank out of range or a product that overflows; the
 * message names the shape. */
CH_MUST_CHECK ch_status ch__tensor_size(ch_dtype dtype, ch_shape shape, int64_t *count,
                                        int64_t *bytes);
/* Copies elements between two views of any strides, which must not overlap. Checks nothing. For
 * strings it copies the pointers: use ch_tensor_copy for them. */
void ch__copy_strided(ch_dtype dtype, ch_shape shape, const char *from,
                      const int64_t *from_stride, char *to, const int64_t *to_stride);
/* Converts an element to and from double. Not for strings. A value that does not fit an integer
 * becomes the nearer limit, and NaN becomes 0. `at` must be aligned for the dtype. */
double ch__load(ch_dtype dtype, const void *at);
void   ch__store(ch_dtype dtype, void *at, double value);
/* Sets every element of a contiguous tensor of numbers to `value`. */
void ch__tensor_fill(ch_tensor *t, double value);
/* Creates a tensor of numbers with the values of `t` in another dtype. */
CH_MUST_CHECK ch_status ch__tensor_cast(ch_tensor *t, ch_dtype dtype, ch_tensor **out);
/* Returns true if the dtype can hold this number exactly. Always true for floats, which
 * round. */
bool ch__dtype_holds(ch_dtype dtype, double value);

static inline bool ch__dtype_is_half(ch_dtype t)
{
    return t == CH_BF16 || t == CH_F16;
}
/* Conversions of 16-bit floats: round to nearest, ties to even. NaN stays NaN. */
float    ch__bf16_to_f32(uint16_t x);
uint16_t ch__bf16_of_f32(float x);
float    ch__f16_to_f32(uint16_t x);
uint16_t ch__f16_of_f32(float x);

#endif
