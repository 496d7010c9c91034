/* tensor/ragged.c -- ragged components: flat values and row splits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ragged.h"

#include <string.h>

int ch__ragged_stem(const char *name, const char *end)
{
    size_t n = name != NULL ? strlen(name) : 0, m = strlen(end);

    return n > m && memcmp(name + n - m, end, m) == 0 ? (int)(n - m) : -1;
}

bool ch__ragged_is_pair(const char *values, const char *splits)
{
    int stem = ch__ragged_stem(values, CH_RAGGED_VALUES);

    return stem >= 0 && ch__ragged_stem(splits, CH_RAGGED_SPLITS) == stem &&
           memcmp(values, splits, (size_t)stem) == 0;
}

/* Returns true if the leaves have the form of a component, and not only its names: the splits
 * are a list of integers, and the values have an axis. */
static bool is_component(const ch_tuple *t, int values, int splits)
{
    const ch_tensor *v = ch_value_at(t->leaf[values].value, 0);
    const ch_tensor *s = ch_value_at(t->leaf[splits].value, 0);

    return v != NULL && s != NULL && v->shape.rank > 0 && s->shape.rank == 1 &&
           (s->dtype == CH_I64 || s->dtype == CH_I32);
}

int ch__tuple_ragged_half(const ch_tuple *t, int i, bool *is_values)
{
    const char *name = t->leaf[i].name;

    *is_values = ch__ragged_stem(name, CH_RAGGED_VALUES) >= 0;
    if (!*is_values && ch__ragged_stem(name, CH_RAGGED_SPLITS) < 0)
        return -1;
    for (int k = 0; k < t->n; k++) {
        const char *other = t->leaf[k].name;
        int         values = *is_values ? i : k, splits = *is_values ? k : i;

        if (ch__ragged_is_pair(*is_values ? name : other, *is_values ? other : name))
            return is_component(t, values, splits) ? k : -1;
    }
    return -1;
}

int64_t ch__tuple_rows(const ch_tuple *t)
{
    bool    is_values = false;
    int     half = t != NULL && t->n > 0 ? ch__tuple_ragged_half(t, 0, &is_values) : -1;
    int64_t rows = 0;

    if (t == NULL || t->n == 0)
        return 0;
    const ch_value *v = t->leaf[half >= 0 && is_values ? half : 0].value;
    for (int r = 0; r < ch_value_count(v); r++) {
        ch_shape s = ch_tensor_shape(ch_value_at(v, r));

        if (s.rank == 0)
            rows++;
        else if (half < 0 || s.dim[0] > 0) /* without splits there are no rows */
            rows += s.dim[0] - (half >= 0);
    }
    return rows;
}

int64_t ch__ragged_capacity(int64_t n)
{
    int64_t power = CH_RAGGED_LEAST, quarter;

    if (n > INT64_MAX / 2)
        return n;
    while (power < n && power < CH_RAGGED_COARSE)
        power *= 2;
    if (n <= power)
        return power;
    while (power * 2 <= n)
        power *= 2;
    quarter = power / 4;
    return (n + quarter - 1) / quarter * quarter;
}

int64_t ch__ragged_allocated(int64_t n)
{
    int64_t most = n / 4; /* the most room of a piece */

    if (most < CH_RAGGED_COARSE / 2)
        most = n < CH_RAGGED_COARSE / 2 ? n : CH_RAGGED_COARSE / 2;
    if (most < CH_RAGGED_LEAST)
        most = CH_RAGGED_LEAST;
    return n < INT64_MAX / 2 ? n + most : n;
}
