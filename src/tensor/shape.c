/* tensor/shape.c -- element types, shapes and sizes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/shape.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/print.h"
#include "tensor/tensor.h"

static const struct {
    const char *name;
    size_t      bytes;
} dtypes[CH_DTYPE_COUNT] = {
#define ROW(name, text, bytes, kind) [CH_##name] = {text, bytes},
    CH_DTYPE_MAP(ROW)
#undef ROW
};

/* Other names of dtypes: those of TensorFlow, and the codes of numpy in little-endian order.
 * The short codes of numpy without an order, such as "i8", are missing, because they are names
 * of other dtypes here. */
static const struct {
    const char *text;
    ch_dtype    dtype;
} aliases[] = {
    {"float32", CH_F32},   {"<f4", CH_F32},     {"float64", CH_F64}, {"<f8", CH_F64},
    {"bfloat16", CH_BF16}, {"float16", CH_F16}, {"half", CH_F16},    {"<f2", CH_F16},
    {"int8", CH_I8},       {"|i1", CH_I8},      {"<i1", CH_I8},      {"int16", CH_I16},
    {"<i2", CH_I16},       {"int32", CH_I32},   {"<i4", CH_I32},     {"int64", CH_I64},
    {"<i8", CH_I64},       {"uint8", CH_U8},    {"|u1", CH_U8},      {"<u1", CH_U8},
    {"uint16", CH_U16},    {"<u2", CH_U16},     {"uint32", CH_U32},  {"<u4", CH_U32},
    {"uint64", CH_U64},    {"<u8", CH_U64},     {"|b1", CH_BOOL},    {"<b1", CH_BOOL},
    {"str", CH_STR},
};

static bool is_dtype(ch_dtype t)
{
    return (unsigned)t < CH_DTYPE_COUNT;
}

size_t ch_dtype_bytes(ch_dtype t)
{
    return is_dtype(t) ? dtypes[t].bytes : 0;
}

const char *ch_dtype_name(ch_dtype t)
{
    return is_dtype(t) ? dtypes[t].name : "?";
}

bool ch_dtype_is_float(ch_dtype t)
{
    return t == CH_F32 || t == CH_F64 || t == CH_BF16 || t == CH_F16;
}

bool ch_dtype_is_int(ch_dtype t)
{
    return is_dtype(t) && !ch_dtype_is_float(t) && t != CH_BOOL && t != CH_STR;
}

ch_status ch_dtype_parse(const char *text, ch_dtype *out)
{
    if (text == NULL || out == NULL)
        return ch__check_not_null("dtype parse", "the text", text, "out", out);
    for (int i = 0; i < CH_DTYPE_COUNT; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *out = (ch_dtype)i;
            return CH_OK;
        }
    }
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++) {
        if (strcmp(text, aliases[i].text) == 0) {
            *out = aliases[i].dtype;
            return CH_OK;
        }
    }
    return ch__fail(CH_INVALID_ARGUMENT,
                    "dtype parse: \"%s\" is no element type; want a name such as \"f32\", "
                    "\"float32\", \"<f4\", \"i64\", \"bool\" or \"string\"",
                    text);
}

ch_shape ch_shape_make(int rank, const int64_t *dim)
{
    ch_shape s = {.rank = rank};

    if (rank < 0 || rank > CH_MAX_RANK || (rank > 0 && dim == NULL)) {
        s.rank = -1;
        return s;
    }
    for (int i = 0; i < rank; i++)
        s.dim[i] = dim[i];
    return s;
}

bool ch_shape_equal(ch_shape a, ch_shape b)
{
    if (a.rank != b.rank || a.rank > CH_MAX_RANK)
        return false;
    for (int i = 0; i < a.rank; i++)
        if (a.dim[i] != b.dim[i])
            return false;
    return true;
}

/* Also checks the other sizes of an empty shape for overflow. Otherwise its strides, and the
 * rows that are added later, could not be computed. */
int64_t ch_shape_count(ch_shape s)
{
    int64_t product = 1;
    bool    is_empty = false;

    if (s.rank < 0 || s.rank > CH_MAX_RANK)
        return -1;
    for (int i = 0; i < s.rank; i++) {
        if (s.dim[i] < 0)
            return -1;
        if (s.dim[i] == 0)
            is_empty = true;
        else if (!ch__mul_size(product, s.dim[i], &product))
            return -1;
    }
    return is_empty ? 0 : product;
}

int ch_shape_print(ch_shape s, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    ch__text_shape(&o, s);
    return ch__text_length(&o);
}

void ch__strides(ch_shape shape, int64_t stride[CH_MAX_RANK])
{
    int64_t step = 1;

    memset(stride, 0, CH_MAX_RANK * sizeof(*stride));
    for (int i = shape.rank - 1; i >= 0; i--) {
        stride[i] = step;
        if (shape.dim[i] > 1)
            step *= shape.dim[i];
    }
}

ch_status ch__tensor_size(ch_dtype dtype, ch_shape shape, int64_t *count, int64_t *bytes)
{
    int64_t n = ch_shape_count(shape), size;

    if (!is_dtype(dtype))
        return ch__fail(CH_INVALID_ARGUMENT, "tensor: %d is no element type", (int)dtype);
    if (shape.rank < 0 || shape.rank > CH_MAX_RANK)
        return ch__fail(CH_INVALID_ARGUMENT, "tensor: rank %d of %s; want 0 to %d", shape.rank,
                        ch__label(dtype, shape).text, CH_MAX_RANK);
    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i] < 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "tensor: size %lld of axis %d of %s is negative",
                            (long long)shape.dim[i], i, ch__label(dtype, shape).text);
    if (n < 0 || !ch__mul_size(n, (int64_t)dtypes[dtype].bytes, &size))
        return ch__fail(CH_INVALID_ARGUMENT, "tensor: the bytes of %s do not fit into 63 bits",
                        ch__label(dtype, shape).text);
    *count = n;
    *bytes = size;
    return CH_OK;
}
