/* data/number.c -- numbers into elements, and out of text.   SPDX-License-Identifier: Apache-2.0
 */
#include "data/number.h"

#include <string.h>

typedef struct range {
    int64_t low, high;
} range;

static range range_of(ch_dtype dtype)
{
    switch (dtype) {
    case CH_BOOL:
        return (range){0, 1};
    case CH_I8:
        return (range){INT8_MIN, INT8_MAX};
    case CH_U8:
        return (range){0, UINT8_MAX};
    case CH_I16:
        return (range){INT16_MIN, INT16_MAX};
    case CH_U16:
        return (range){0, UINT16_MAX};
    case CH_I32:
        return (range){INT32_MIN, INT32_MAX};
    case CH_U32:
        return (range){0, UINT32_MAX};
    case CH_U64:
        return (range){0, INT64_MAX};
    default:
        return (range){INT64_MIN, INT64_MAX};
    }
}

/* How many of them are in range, up to the first that is not. */
static int count_held(range r, int n, const int64_t *from)
{
    int i = 0;

    while (i < n && from[i] >= r.low && from[i] <= r.high)
        i++;
    return i;
}

/* Of a number in range the low bytes are the number, signed or not. */
static void store_low(size_t bytes, int n, const int64_t *from, void *to)
{
    switch (bytes) {
    case 1:
        for (int i = 0; i < n; i++)
            ((uint8_t *)to)[i] = (uint8_t)from[i];
        break;
    case 2:
        for (int i = 0; i < n; i++)
            ((uint16_t *)to)[i] = (uint16_t)from[i];
        break;
    case 4:
        for (int i = 0; i < n; i++)
            ((uint32_t *)to)[i] = (uint32_t)from[i];
        break;
    default:
        memcpy(to, from, (size_t)n * sizeof(*from));
    }
}

int ch__integers_store(ch_dtype dtype, int n, const int64_t *from, void *to)
{
    size_t bytes = ch_dtype_bytes(dtype);

    if (!ch_dtype_is_float(dtype)) {
        n = count_held(range_of(dtype), n, from);
        store_low(bytes, n, from, to);
        return n;
    }
    for (int i = 0; i < n; i++)
        if (dtype == CH_F32) /* by way of double it would be rounded twice */
            ((float *)to)[i] = (float)from[i];
        else
            ch__store(dtype, (char *)to + (size_t)i * bytes, (double)from[i]);
    return n;
}
