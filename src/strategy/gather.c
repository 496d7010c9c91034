/* strategy/gather.c -- ch_strategy_gather: concatenates the components of a value on the host.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "strategy/values.h"

static ch_status check_axis(const ch_value *v, int axis)
{
    int rank = v->tensor[0]->shape.rank;

    if (rank == 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "gather: the value is a scalar and has no axis; give it one first "
                        "(ch_expand_dims)");
    if (axis < 0 || axis >= rank)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "gather: axis %d of a value of rank %d; want 0 to %d", axis, rank,
                        rank - 1);
    return CH_OK;
}

/* Returns INVALID_ARGUMENT unless the components agree in all sizes except that of `axis`. */
static ch_status check_shapes(const ch_value *v, int axis)
{
    ch_shape first = v->tensor[0]->shape;

    for (int i = 1; i < v->n; i++) {
        ch_shape other = v->tensor[i]->shape;

        if (first.rank != other.rank)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "gather: components 0 and %d have ranks %d and %d; want equal ones",
                            i, first.rank, other.rank);
        for (int k = 0; k < first.rank; k++)
            if (k != axis && first.dim[k] != other.dim[k])
                return ch__fail(
                    CH_INVALID_ARGUMENT,
                    "gather along axis %d: dimension %d of components 0 and %d has sizes %lld "
                    "and %lld; only the size of the gathered axis may differ",
                    axis, k, i, (long long)first.dim[k], (long long)other.dim[k]);
    }
    return CH_OK;
}

/* Copies each component into its region of `all`. */
static ch_status fill(const ch_value *v, int axis, ch_tensor *all)
{
    ch_status rc = CH_OK;

    for (int64_t i = 0, at = 0; i < v->n && rc == CH_OK; i++) {
        const ch_tensor *part = v->tensor[i];
        int64_t          end = at + part->shape.dim[axis];
        ch_tensor       *region = NULL;

        rc = ch_tensor_slice(all, axis, at, end, 1, &region);
        if (rc == CH_OK)
            rc = ch_tensor_copy(part, region);
        ch_tensor_unref(region);
        at = end;
    }
    return rc;
}

/* Concatenates the components of `v` along `axis` on the current device. */
static ch_status gather(ch_strategy *st, const ch_value *v, int axis, ch_tensor **out)
{
    ch_tensor *all = NULL;
    ch_shape   shape;
    ch_status  rc = ch__check_components(st, "gather", "gathered", v);

    if (rc == CH_OK)
        rc = check_axis(v, axis);
    if (rc == CH_OK)
        rc = check_shapes(v, axis);
    if (rc != CH_OK)
        return rc;
    if (v->n == 1)
        return ch_tensor_to(v->tensor[0], ch_device_current(), out);
    shape = v->tensor[0]->shape;
    for (int i = 1; i < v->n; i++)
        shape.dim[axis] += v->tensor[i]->shape.dim[axis];
    rc = ch_tensor_new(v->tensor[0]->dtype, shape, &all);
    if (rc == CH_OK)
        rc = fill(v, axis, all);
    if (rc == CH_OK)
        *out = all;
    else
        ch_tensor_unref(all);
    return rc;
}

ch_status ch_strategy_gather(ch_strategy *st, const ch_value *v, int axis, ch_tensor **out)
{
    ch_status rc = ch__strategy_check_cross(&st, "gather", "ch_all_gather");

    if (rc == CH_OK)
        rc = ch__check_not_null("gather", "the value", v, "out", out);
    return rc == CH_OK ? gather(st, v, axis, out) : rc;
}

/* Arguments of gather_leaf. */
typedef struct leaf_gathering {
    ch_strategy *st;
    int          axis;
} leaf_gathering;

static ch_status gather_leaf(void *arg, const ch_value *v, ch_tensor **out)
{
    const leaf_gathering *l = arg;

    return gather(l->st, v, l->axis, out);
}

ch_status ch_strategy_gather_tuple(ch_strategy *st, const ch_tuple *t, int axis, ch_tuple **out)
{
    ch_status      rc = ch__strategy_check_cross(&st, "gather", "ch_all_gather");
    leaf_gathering l = {st, axis};

    if (rc == CH_OK)
        rc = ch__check_not_null("gather", "the tuple", t, "out", out);
    return rc == CH_OK ? ch__tuple_map("gather", t, gather_leaf, &l, out) : rc;
}
