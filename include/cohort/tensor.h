/* cohort/tensor.h -- tensors: reference-counted n-dimensional arrays.
 *
 * A tensor is a reference to a view of a buffer, with a dtype, a shape, strides and a device.
 * Several tensors may be views of the same buffer. The buffer is freed with the last of them.
 *
 *     ch_tensor *x = NULL;
 *     if (ch_tensor_new(CH_F32, ch_shape_of(2, 3), &x) != CH_OK)
 *         return fprintf(stderr, "%s\n", ch_error_message()), 1;
 *     ch_tensor_unref(x);
 *
 * Rules of this header and of all others in cohort/:
 *   - A function that can fail returns a ch_status. It writes *out only if the status is CH_OK.
 *   - A `new` or `ref` function gives the caller a reference. The caller must drop it with
 *     `unref`, which accepts NULL.
 *   - An argument is borrowed for the duration of the call, unless its comment says that the
 *     function keeps it, holds a reference or takes it over. A result that is "borrowed" must
 *     not be unreferenced.
 *   - Several threads may share an object only to read it, or to ref and unref it, unless its
 *     header allows more.
 *   - NULL instead of an object does not crash: a function that returns a status returns
 *     INVALID_ARGUMENT and names the argument. Other functions return NULL, 0 or false, and
 *     print functions write "NULL".
 *   - Preconditions that C cannot check: an object has not been freed; a list has as many
 *     entries, and a buffer as many bytes, as the number next to it says; data has as many
 *     elements as its shape.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_TENSOR_H
#define COHORT_TENSOR_H

#include <stdio.h>

#include "cohort/device.h"
#include "cohort/shape.h"
#include "cohort/status.h"

typedef struct ch_tensor ch_tensor;

/* The name, dtype and shape of a value that need not exist yet. A size of -1 is unknown. */
typedef struct ch_tensor_spec {
    const char *name; /* NULL: no name */
    ch_dtype    dtype;
    ch_shape    shape;
} ch_tensor_spec;

/* Creates a tensor on the current device, contiguous and filled with zeros (empty strings). */
CH_API CH_MUST_CHECK ch_status ch_tensor_new(ch_dtype dtype, ch_shape shape, ch_tensor **out);

/* Creates such a tensor on a device. NULL: the current device. */
CH_API CH_MUST_CHECK ch_status ch_tensor_new_on(ch_device *device, ch_dtype dtype,
                                                ch_shape shape, ch_tensor **out);

/* Creates a tensor with a copy of `data`, which must be contiguous. Strings are copied too. */
CH_API CH_MUST_CHECK ch_status ch_tensor_copy_of(ch_dtype dtype, ch_shape shape,
                                                 const void *data, ch_tensor **out);

/* ch_tensor_scalar creates a scalar of any dtype except CH_STR, ch_tensor_of_text a CH_STR
 * scalar from a C string. */
CH_API CH_MUST_CHECK ch_status ch_tensor_scalar(ch_dtype dtype, double value, ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_tensor_of_text(const char *text, ch_tensor **out);

/* Creates a tensor over the caller's memory, on the current device. Keeps `data` until the last
 * view is freed, and then calls `release(arg)` once. If `release` is NULL, the memory must
 * outlive all views. On an error `release` is not called. `data` must be aligned for its
 * element type; no further alignment is needed. */
CH_API CH_MUST_CHECK ch_status ch_tensor_wrap(ch_dtype dtype, ch_shape shape, void *data,
                                              void (*release)(void *arg), void *arg,
                                              ch_tensor **out);

/* These functions return views, which share the buffer of `t`:
 *   - ch_tensor_rows: rows [from, to) of axis 0.
 *   - ch_tensor_slice: elements from, from + step, ... of an axis, up to but without `to`.
 *     `step` may be negative; `to` may then be -1. Bounds outside the axis are
 *     INVALID_ARGUMENT.
 *   - ch_tensor_transpose: axis i of the result is axis perm[i] of `t`. NULL: the axes in
 *     reverse order.
 *   - ch_tensor_reshape: another shape with as many elements. A single size may be -1: it is
 *     computed. The result is a copy if the strides do not allow a view. */
CH_API CH_MUST_CHECK ch_status ch_tensor_rows(ch_tensor *t, int64_t from, int64_t to,
                                              ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_tensor_slice(ch_tensor *t, int axis, int64_t from, int64_t to,
                                               int64_t step, ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_tensor_transpose(ch_tensor *t, const int *perm,
                                                   ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_tensor_reshape(ch_tensor *t, ch_shape shape, ch_tensor **out);

/* Returns the same elements as a contiguous tensor: a new reference to `t` if it is contiguous,
 * else a copy. */
CH_API CH_MUST_CHECK ch_status ch_tensor_contiguous(ch_tensor *t, ch_tensor **out);
/* Returns the same elements on a device: a new reference to `t` if it is there already, else a
 * copy. */
CH_API CH_MUST_CHECK ch_status ch_tensor_to(ch_tensor *t, ch_device *device, ch_tensor **out);
/* Copies elements to `to`, which must have the same dtype and shape. Strides and devices may
 * differ, and the tensors may overlap. */
CH_API CH_MUST_CHECK ch_status ch_tensor_copy(const ch_tensor *from, ch_tensor *to);

CH_API ch_tensor *ch_tensor_ref(ch_tensor *t);
CH_API void       ch_tensor_unref(ch_tensor *t);

CH_API ch_dtype       ch_tensor_dtype(const ch_tensor *t);
CH_API ch_shape       ch_tensor_shape(const ch_tensor *t);
CH_API int64_t        ch_tensor_count(const ch_tensor *t);
CH_API size_t         ch_tensor_bytes(const ch_tensor *t);   /* count * element size */
CH_API const int64_t *ch_tensor_strides(const ch_tensor *t); /* in elements */
CH_API bool           ch_tensor_is_contiguous(const ch_tensor *t);
CH_API ch_device     *ch_tensor_device(const ch_tensor *t);

/* ch_tensor_data and ch_tensor_data_mut return the address of the first element. Only the
 * creator of a tensor may write through ch_tensor_data_mut, and only before it shares the
 * tensor. */
CH_API const void *ch_tensor_data(const ch_tensor *t);
CH_API void       *ch_tensor_data_mut(ch_tensor *t);

/* These four functions read or write a single element. `index` has a number for each axis.
 * ch_tensor_get and ch_tensor_set convert numbers to and from double; ch_tensor_str and
 * ch_tensor_set_str are for strings. The bytes that ch_tensor_str returns are borrowed;
 * ch_tensor_set_str copies. INVALID_ARGUMENT: the index is out of range, or the function is for
 * the other kind of dtype. FAILED_PRECONDITION: ch_tensor_set_str on wrapped strings. */
CH_API CH_MUST_CHECK ch_status ch_tensor_get(const ch_tensor *t, const int64_t *index,
                                             double *out);
CH_API CH_MUST_CHECK ch_status ch_tensor_set(ch_tensor *t, const int64_t *index, double value);
CH_API CH_MUST_CHECK ch_status ch_tensor_str(const ch_tensor *t, const int64_t *index,
                                             ch_str *out);
CH_API CH_MUST_CHECK ch_status ch_tensor_set_str(ch_tensor *t, const int64_t *index, ch_str s);
/* Reads the only element of a tensor that has exactly one, of any rank. */
CH_API CH_MUST_CHECK ch_status ch_tensor_item(const ch_tensor *t, double *out);

/* Writes the tensor as text, such as "tensor(f32 (2, 2) [[1 2]\n [3 4]])". Axes of more than
 * seven elements show three at each end. Returns the length needed, as snprintf does. */
CH_API int ch_tensor_print(const ch_tensor *t, char *text, size_t size);
/* Writes a spec as "f32(?, 3)", preceded by "name: " if it has a name. Returns the length
 * needed, as snprintf does. */
CH_API int ch_tensor_spec_print(const ch_tensor_spec *spec, char *text, size_t size);

#endif
