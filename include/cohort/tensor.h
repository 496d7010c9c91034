/* cohort/tensor.h -- n-dimensional values.
 *
 * A tensor is a counted reference to a view of a buffer: dtype, shape, strides, device.
 * Views share the buffer; dropping the last one frees it.
 *
 *     ch_tensor *x = NULL;
 *     if (ch_tensor_new(CH_F32, ch_shape_of(2, 3), &x) != CH_OK)
 *         return fprintf(stderr, "%s\n", ch_error_message()), 1;
 *     ch_tensor_unref(x);
 *
 * Rules, here and in every cohort/ header:
 *   - What can fail returns ch_status and writes *out only when it is CH_OK.
 *   - `new` and `ref` hand you one reference; `unref` takes it back, NULL is fine.
 *   - An argument is borrowed for the call unless its comment says "keeps".
 *   - Two threads may share an object only to read it, or to ref and unref it.
 *   - NULL in the place of an object is no crash: what returns a status refuses it and names the
 *     argument, what tells of an object says NULL, 0 or false, and printers print "NULL".
 *   - Preconditions that C cannot check: an object was not freed; a list has as many entries, and a
 *     buffer as many bytes, as the number beside it says; data has as many elements as its shape.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_TENSOR_H
#define COHORT_TENSOR_H

#include <stdio.h>

#include "cohort/device.h"
#include "cohort/shape.h"
#include "cohort/status.h"

typedef struct ch_tensor ch_tensor;

/* What a value will look like before it exists: a size of -1 is not known yet. */
typedef struct ch_tensor_spec {
    const char *name; /* NULL: none */
    ch_dtype    dtype;
    ch_shape    shape;
} ch_tensor_spec;

/* A new tensor on the current device, contiguous and zero-filled (strings: empty). */
CH_API CH_MUST_CHECK ch_status ch_tensor_new(ch_dtype dtype, ch_shape shape, ch_tensor **out);

/* The same, on a device; NULL is the current one. */
CH_API CH_MUST_CHECK ch_status ch_tensor_new_on(ch_device *device, ch_dtype dtype,
                                                ch_shape shape, ch_tensor **out);

/* A tensor with a copy of `data`, which is contiguous; strings are copied too. */
CH_API CH_MUST_CHECK ch_status ch_tensor_copy_of(ch_dtype dtype, ch_shape shape,
                                                 const void *data, ch_tensor **out);

/* A scalar. ch_tensor_of_text makes a CH_STR one of a C string. */
CH_API CH_MUST_CHECK ch_status ch_tensor_scalar(ch_dtype dtype, double value, ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_tensor_of_text(const char *text, ch_tensor **out);

/* A tensor over the caller's memory: keeps `data` until `release(arg)` is called,
 * once, when the last view goes. A NULL `release` means the memory outlives it.
 * `data` must be aligned for its element type; nothing is asked beyond that. */
CH_API CH_MUST_CHECK ch_status ch_tensor_wrap(ch_dtype dtype, ch_shape shape, void *data,
                                              void (*release)(void *arg), void *arg,
                                              ch_tensor **out);

/* Views. Rows [from, to) of axis 0; a step may be negative; axes in a new order; another
 * shape of as many elements (a copy where the strides do not allow a view), in which one size
 * may be -1: what is left. */
CH_API CH_MUST_CHECK ch_status ch_tensor_rows(ch_tensor *t, int64_t from, int64_t to,
                                              ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_tensor_slice(ch_tensor *t, int axis, int64_t from, int64_t to,
                                               int64_t step, ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_tensor_transpose(ch_tensor *t, const int *perm,
                                                   ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_tensor_reshape(ch_tensor *t, ch_shape shape, ch_tensor **out);

/* The same elements, contiguous: `t` itself, one reference more, where it is so already. */
CH_API CH_MUST_CHECK ch_status ch_tensor_contiguous(ch_tensor *t, ch_tensor **out);
/* The same elements on another device, as a copy; `t` itself where it is there already. */
CH_API CH_MUST_CHECK ch_status ch_tensor_to(ch_tensor *t, ch_device *device, ch_tensor **out);
/* A copy of elements into `to`, of the same dtype and shape; any strides, any devices. */
CH_API CH_MUST_CHECK ch_status ch_tensor_copy(const ch_tensor *from, ch_tensor *to);

CH_API ch_tensor *ch_tensor_ref(ch_tensor *t);
CH_API void       ch_tensor_unref(ch_tensor *t);

CH_API ch_dtype       ch_tensor_dtype(const ch_tensor *t);
CH_API ch_shape       ch_tensor_shape(const ch_tensor *t);
CH_API int64_t        ch_tensor_count(const ch_tensor *t);
CH_API size_t         ch_tensor_bytes(const ch_tensor *t);   /* count times element size */
CH_API const int64_t *ch_tensor_strides(const ch_tensor *t); /* in elements */
CH_API bool           ch_tensor_is_contiguous(const ch_tensor *t);
CH_API ch_device     *ch_tensor_device(const ch_tensor *t);

/* The first element. Writing through ch_tensor_data_mut is for whoever made the tensor,
 * before anybody else sees it. */
CH_API const void *ch_tensor_data(const ch_tensor *t);
CH_API void       *ch_tensor_data_mut(ch_tensor *t);

/* One element, converted; `index` has rank numbers. INVALID_ARGUMENT out of range or for
 * strings (their form is ch_tensor_str). */
CH_API CH_MUST_CHECK ch_status ch_tensor_get(const ch_tensor *t, const int64_t *index,
                                             double *out);
CH_API CH_MUST_CHECK ch_status ch_tensor_set(ch_tensor *t, const int64_t *index, double value);
CH_API CH_MUST_CHECK ch_status ch_tensor_str(const ch_tensor *t, const int64_t *index,
                                             ch_str *out);
CH_API CH_MUST_CHECK ch_status ch_tensor_set_str(ch_tensor *t, const int64_t *index, ch_str s);
/* The only element of a tensor that has one, whatever its rank. */
CH_API CH_MUST_CHECK ch_status ch_tensor_item(const ch_tensor *t, double *out);

/* Writes the tensor for people, as snprintf does and returns the length that was needed:
 * "tensor(f32 (2, 2) [[1 2]\n [3 4]])"; axes of more than seven show three at each end. */
CH_API int ch_tensor_print(const ch_tensor *t, char *text, size_t size);
/* "f32(?, 3)", with "name: " before it if it has one. */
CH_API int ch_tensor_spec_print(const ch_tensor_spec *spec, char *text, size_t size);

#endif
