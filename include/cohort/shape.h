/* cohort/shape.h -- dtypes and shapes: the element types of tensors and their sizes.
 *
 * A dtype is the type of an element. A shape is a rank and a size for each axis.
 *
 *     ch_shape s = ch_shape_of(2, 3);     // rank 2
 *     ch_shape scalar = ch_shape_scalar();
 *
 * Both are plain values: there is nothing to free, and threads may share copies. A size may be
 * 0: such a tensor has a shape and no elements.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_SHAPE_H
#define COHORT_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/status.h"

#define CH_MAX_RANK 8 /* maximum number of axes */

/* The dtypes: name, text, bytes of an element, class. ARITH: ops compute with this type (16-bit
 * floats are stored in 16 bits and computed in f32). MOVE: elements can only be stored, moved,
 * compared and cast. Strings are held by tensors and pass through input pipelines; steps do not
 * compute with them. */
/* clang-format off */
#define CH_DTYPE_MAP(X)              \
    X(F32,  "f32",    4, ARITH)      \
    X(F64,  "f64",    8, ARITH)      \
    X(BF16, "bf16",   2, ARITH)      \
    X(F16,  "f16",    2, ARITH)      \
    X(I8,   "i8",     1, ARITH)      \
    X(I32,  "i32",    4, ARITH)      \
    X(I64,  "i64",    8, ARITH)      \
    X(U8,   "u8",     1, ARITH)      \
    X(BOOL, "bool",   1, ARITH)      \
    X(I16,  "i16",    2, MOVE)       \
    X(U16,  "u16",    2, MOVE)       \
    X(U32,  "u32",    4, MOVE)       \
    X(U64,  "u64",    8, MOVE)       \
    X(STR,  "string", 16, MOVE)
/* clang-format on */

#define CH_DTYPE_CODE(name, text, bytes, kind) CH_##name,
typedef enum ch_dtype { CH_DTYPE_MAP(CH_DTYPE_CODE) CH_DTYPE_COUNT } ch_dtype;
#undef CH_DTYPE_CODE

/* An element of a CH_STR tensor: bytes without a final 0. The tensor owns the bytes. */
typedef struct ch_str {
    const char *data;
    size_t      size;
} ch_str;

typedef struct ch_shape {
    int     rank;
    int64_t dim[CH_MAX_RANK]; /* sizes; those past the rank are 0 */
} ch_shape;

CH_API size_t      ch_dtype_bytes(ch_dtype t); /* of an element; 0 if t is no dtype */
CH_API const char *ch_dtype_name(ch_dtype t);  /* such as "f32"; "?" if t is no dtype */
CH_API bool        ch_dtype_is_float(ch_dtype t);
CH_API bool        ch_dtype_is_int(ch_dtype t); /* signed or unsigned; not bool */
/* Parses the name of a dtype: "f32", or the name in numpy or TensorFlow ("<f4", "float32").
 * INVALID_ARGUMENT: no such dtype. */
CH_API CH_MUST_CHECK ch_status ch_dtype_parse(const char *text, ch_dtype *out);

/* Returns the shape with these sizes. If the rank is above CH_MAX_RANK, the result has rank -1,
 * which every call rejects. */
CH_API ch_shape ch_shape_make(int rank, const int64_t *dim);

CH_API bool ch_shape_equal(ch_shape a, ch_shape b);
/* Returns the number of elements; -1 if a size is negative or the product overflows. */
CH_API int64_t ch_shape_count(ch_shape s);
/* Writes the shape as "(2, 3)". Returns the length needed, as snprintf does. */
CH_API int ch_shape_print(ch_shape s, char *text, size_t size);

/* Returns the shape with the given sizes: ch_shape_of(2, 3). At least one size is needed. */
#ifdef __cplusplus
extern "C++" {
template <class... N> inline ch_shape ch_shape_of(N... n)
{
    const int64_t dim[] = {static_cast<int64_t>(n)...};
    return ch_shape_make(static_cast<int>(sizeof...(n)), dim);
}
}
#else
#define ch_shape_of(...)                                                                       \
    ch_shape_make((int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),             \
                  (const int64_t[]){__VA_ARGS__})
#endif

/* Returns the shape of a scalar: rank 0. */
static inline ch_shape ch_shape_scalar(void)
{
    return ch_shape_make(0, NULL);
}

#endif
