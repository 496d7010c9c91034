/* cohort/shape.h -- element types and sizes.
 *
 *     ch_shape s = ch_shape_of(2, 3);     // rank 2
 *     ch_shape scalar = ch_shape_scalar();
 *
 * Both are plain values. A size may be 0: such a tensor has a shape and no elements.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_SHAPE_H
#define COHORT_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/status.h"

#define CH_MAX_RANK 8

/* Name, text, bytes of an element, class. ARITH: ops compute in it (the 16-bit floats are
 * stored so, and computed in f32); MOVE: it is stored, moved, compared and cast, no more.
 * Strings are held by tensors and move in input pipelines; no step computes with them. */
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

/* An element of a CH_STR tensor: bytes, not a C string. The tensor owns them. */
typedef struct ch_str {
    const char *data;
    size_t      size;
} ch_str;

typedef struct ch_shape {
    int     rank;
    int64_t dim[CH_MAX_RANK]; /* those past rank are 0 */
} ch_shape;

CH_API size_t      ch_dtype_bytes(ch_dtype t);
CH_API const char *ch_dtype_name(ch_dtype t); /* "f32"; "?" for what is none */
CH_API bool        ch_dtype_is_float(ch_dtype t);
CH_API bool        ch_dtype_is_int(ch_dtype t); /* signed or not; bool is not one */
/* Takes "f32" and numpy's and TensorFlow's names ("float32", "<f4"). */
CH_API CH_MUST_CHECK ch_status ch_dtype_parse(const char *text, ch_dtype *out);

/* The shape with these sizes. A rank above CH_MAX_RANK gives -1, which every call refuses. */
CH_API ch_shape ch_shape_make(int rank, const int64_t *dim);

CH_API bool ch_shape_equal(ch_shape a, ch_shape b);
/* The number of elements; -1 if a size is negative or the product overflows. */
CH_API int64_t ch_shape_count(ch_shape s);
/* Writes "(2, 3)" as snprintf does and returns the length that was needed. */
CH_API int ch_shape_print(ch_shape s, char *text, size_t size);

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

static inline ch_shape ch_shape_scalar(void)
{
    return ch_shape_make(0, NULL);
}

#endif
