/* test/file/arrays.h -- arrays for tests of files, as test/golden/files.py makes them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_FILE_ARRAYS_H
#define TEST_FILE_ARRAYS_H

#include "../golden/files.inc"
#include "help.h"

/* Element i of the array of that dtype. */
static inline double t_element(ch_dtype dtype, int i)
{
    switch (dtype) {
    case CH_BOOL:
        return i % 2;
    case CH_U8:
    case CH_U16:
    case CH_U32:
    case CH_U64:
        return 3 * i;
    default:
        return ch_dtype_is_float(dtype) ? 1.5 * i - 4 : 3 * i - 4;
    }
}

/* Checks that the tensor has this dtype, this shape and the elements of t_element. */
static inline void t_assert_array(const ch_tensor *t, ch_dtype dtype, ch_shape shape)
{
    ch_shape have = ch_tensor_shape(t);

    assert_int_equal(ch_tensor_dtype(t), dtype);
    assert_true(ch_shape_equal(have, shape));
    assert_true(ch_tensor_is_contiguous(t));
    for (int64_t i = 0, count = ch_tensor_count(t); i < count; i++) {
        int64_t index[CH_MAX_RANK] = {0}, rest = i;
        double  x;

        for (int k = shape.rank - 1; k >= 0; k--) {
            index[k] = rest % shape.dim[k];
            rest /= shape.dim[k];
        }
        assert_int_equal(ch_tensor_get(t, index, &x), CH_OK);
        assert_true(x == t_element(dtype, (int)i));
    }
}

static inline ch_tensor *t_array(ch_dtype dtype, ch_shape shape)
{
    ch_tensor *t = NULL;
    int64_t    n = ch_shape_count(shape);

    assert_int_equal(ch_tensor_new(dtype, ch_shape_of(n), &t), CH_OK);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(ch_tensor_set(t, &i, t_element(dtype, (int)i)), CH_OK);
    ch_tensor *out = NULL;
    assert_int_equal(ch_tensor_reshape(t, shape, &out), CH_OK);
    ch_tensor_unref(t);
    return out;
}

/* Returns numpy's code of a dtype, as in the golden names: "little_f4". */
static inline ch_dtype t_dtype_of(const char *name)
{
    char     code[8];
    ch_dtype dtype;

    snprintf(code, sizeof(code), "%s%s", strstr(name, "b1") ? "|" : "<",
             strchr(name, '_') != NULL ? strchr(name, '_') + 1 : name);
    assert_int_equal(ch_dtype_parse(code, &dtype), CH_OK);
    return dtype;
}

#define T_COUNT(array) (sizeof(array) / sizeof(*(array)))

#endif
