/* strategy/reduce.c -- what replicas have, as one value on the host.   SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "kernel/accumulate.h"
#include "strategy/strategy.h"

static ch_status check_reduce(ch_strategy *st, ch_reduce_op op, const ch_value *v)
{
    const ch_tensor *first = ch_value_at(v, 0);

    if (st->n_replicas > 1 && ch_value_kind_of(v) == CH_PLAIN)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "reduce: a plain value cannot be reduced over %d replicas; it has one "
                        "component",
                        st->n_replicas);
    if (!ch__can_accumulate(first->dtype))
        return ch__fail(CH_INVALID_ARGUMENT, "reduce: %s cannot be added",
                        ch_dtype_name(first->dtype));
    if (op == CH_MEAN && !ch_dtype_is_float(first->dtype))
        return ch__fail(CH_INVALID_ARGUMENT, "reduce: the mean of %s is not one; cast it first",
                        ch_dtype_name(first->dtype));
    for (int i = 1; i < ch_value_count(v); i++) {
        char a[96], b[96];

        if (ch_shape_equal(first->shape, ch_value_at(v, i)->shape))
            continue;
        ch_shape_print(first->shape, a, sizeof(a));
        ch_shape_print(ch_value_at(v, i)->shape, b, sizeof(b));
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "reduce: components 0 and %d have shapes %s and %s, which cannot be added", i, a,
            b);
    }
    return CH_OK;
}

ch_status ch_strategy_reduce(ch_strategy *st, ch_reduce_op op, const ch_value *v, int axis,
                             ch_tensor **out)
{
    ch_status    rc;
    ch_tensor   *sum = NULL, **part;
    const void **data;
    int          n;

    if (axis != CH_NO_AXIS)
        return ch__fail(CH_UNIMPLEMENTED, "reduce: along an axis");
    rc = ch__strategy_cross(&st, "reduce", "ch_all_reduce");
    if (rc == CH_OK)
        rc = ch__want_given("reduce", "the value", v, "out", out);
    if (rc == CH_OK)
        rc = check_reduce(st, op, v);
    if (rc != CH_OK)
        return rc;
    n = ch_value_count(v);
    part = ch__calloc((size_t)n, sizeof(*part));
    data = ch__calloc((size_t)n, sizeof(*data));
    rc = part == NULL || data == NULL
             ? ch__fail_memory("reduce")
             : ch_tensor_new(ch_value_at(v, 0)->dtype, ch_value_at(v, 0)->shape, &sum);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = ch_tensor_contiguous(ch_value_at(v, i), &part[i]);
        data[i] = rc == CH_OK ? part[i]->data : NULL;
    }
    if (rc == CH_OK) {
        ch__accumulate(sum->dtype, ch_tensor_count(sum), n, data, sum->data,
                       op == CH_MEAN ? n : 1);
        *out = sum;
    } else {
        ch_tensor_unref(sum);
    }
    for (int i = 0; part != NULL && i < n; i++)
        ch_tensor_unref(part[i]);
    ch__free(part);
    ch__free(data);
    return rc;
}
