/* strategy/reduce.c -- reductions of per-replica values on the host.
 *
 * Implements ch_strategy_reduce, _reduce_axes and _reduce_tuple, and ch__reduce_value for
 * move.c. struct reduction describes a reduction, add_up() computes it. The order of operations
 * is fixed, so that the result does not depend on timing:
 *
 *   1. If there are axes, each component is folded along them by itself. So components may
 *      differ in the size of a folded axis, and a component without rows adds nothing.
 *   2. The components are added in the order of `cross`. CH_CROSS_AUTO is replica order.
 *   3. A mean is divided at the end. Its integers are added in i64, and 16-bit floats in f32,
 *      so that no sum is rounded or overflows if the mean fits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "collective/collective.h"
#include "kernel/accumulate.h"
#include "kernel/block.h"
#include "kernel/reduce.h"
#include "strategy/values.h"

/* ---- checks ---- */

ch_status ch__check_components(ch_strategy *st, const char *call, const char *verb,
                               const ch_value *v)
{
    const ch_tensor *first = ch_value_at(v, 0);

    if (st->n_replicas > 1 && v->kind == CH_PLAIN)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: a plain value cannot be %s over %d replicas; it has one component",
                        call, verb, st->n_replicas);
    if (v->n != st->n_local)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the value has %d components, and %s has %d replicas", call, v->n,
                        st->label, st->n_local);
    for (int i = 1; i < v->n; i++)
        if (v->tensor[i]->dtype != first->dtype)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: components 0 and %d are %s and %s, which cannot be %s", call,
                            i, ch_dtype_name(first->dtype), ch_dtype_name(v->tensor[i]->dtype),
                            verb);
    return CH_OK;
}

int ch__component_on(const ch_value *v, const ch_device *device)
{
    for (int i = 0; i < v->n; i++)
        if (ch_tensor_device(v->tensor[i]) == device)
            return i;
    return 0;
}

/* Returns INVALID_ARGUMENT if the values cannot be added, or if a mirrored value would be
 * summed. */
static ch_status check_op(const ch_strategy *st, const char *call, ch_reduce_op op,
                          const ch_value *v)
{
    ch_dtype t = ch_value_at(v, 0)->dtype;

    if (op != CH_SUM && op != CH_MEAN)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: %d is no ch_reduce_op; want CH_SUM or CH_MEAN", call, (int)op);
    if (!ch_dtype_is_float(t) && !ch_dtype_is_int(t))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %s cannot be added%s", call, ch_dtype_name(t),
                        t == CH_BOOL ? "; cast it first" : "");
    if (op == CH_SUM && v->kind == CH_MIRRORED && st->n_replicas > 1)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "%s: the value is mirrored: its %d components are the same value and cannot be "
            "summed; use CH_MEAN, or a component (ch_value_at)",
            call, v->n);
    return CH_OK;
}

/* ---- description of a reduction ---- */

typedef struct reduction {
    const char     *call; /* for messages */
    ch_reduce_op    op;
    ch_device      *device;
    ch_dtype        work, to; /* dtype of the additions, dtype of the result */
    int             n;        /* number of components that are added */
    ch_cross_device cross;    /* algorithm that defines the order of the additions */
    bool            has_axes; /* true if any entry of is_folded is */
    bool            is_folded[CH_MAX_RANK];
} reduction;

static ch_dtype result_dtype(ch_reduce_op op, ch_dtype t)
{
    return op == CH_SUM ? t : ch__mean_dtype(t);
}

/* Returns the dtype of the additions for components of dtype t. */
static ch_dtype work_dtype(const reduction *r, ch_dtype t)
{
    if (ch_dtype_is_float(t))
        return ch__dtype_is_half(t) && r->has_axes ? CH_F32 : t;
    if (r->op == CH_SUM && !r->has_axes && ch__can_accumulate(t))
        return t;
    return r->op == CH_MEAN && t == CH_U64 ? CH_F64 : CH_I64;
}

/* Marks the folded axes. Negative axes count from the end. */
static ch_status read_axes(reduction *r, int n, const int *axis, int rank)
{
    for (int i = 0; i < n; i++) {
        int k = axis[i] < 0 ? axis[i] + rank : axis[i];

        if (k < 0 || k >= rank)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: axis %d is out of range for a value of rank %d", r->call,
                            axis[i], rank);
        if (r->is_folded[k])
            return ch__fail(CH_INVALID_ARGUMENT, "%s: axis %d is listed twice", r->call, k);
        r->is_folded[k] = true;
    }
    r->has_axes = n > 0;
    return CH_OK;
}

/* Returns the shape without the folded axes. */
static ch_shape result_shape(const reduction *r, ch_shape shape)
{
    ch_shape result = {0};

    for (int k = 0; k < shape.rank; k++)
        if (!r->is_folded[k])
            result.dim[result.rank++] = shape.dim[k];
    return result;
}

/* Returns INVALID_ARGUMENT unless the components have the same shape, except for the folded
 * axes. */
static ch_status check_shapes(const reduction *r, const ch_value *v)
{
    ch_shape first = v->tensor[0]->shape;

    for (int i = 1; i < v->n; i++) {
        ch_shape other = v->tensor[i]->shape;
        char     a[96], b[96];

        if (first.rank == other.rank &&
            ch_shape_equal(result_shape(r, first), result_shape(r, other)))
            continue;
        ch_shape_print(first, a, sizeof(a));
        ch_shape_print(other, b, sizeof(b));
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "%s: components 0 and %d have shapes %s and %s, which cannot be added%s", r->call,
            i, a, b, r->has_axes ? "" : "; only the sizes of reduced axes may differ");
    }
    return CH_OK;
}

/* ---- computation ---- */

/* Converts a contiguous tensor to another dtype; integers wrap. Takes over the reference to
 * `t`, also on an error. */
static ch_status as_dtype(ch_device *device, ch_tensor *t, ch_dtype to, ch_tensor **out)
{
    const ch_block_table *b = ch__blocks();
    const void           *in[] = {t->data};
    ch_block_fn           fn = ch__dtype_is_half(t->dtype) ? b->widen[t->dtype]
                               : ch__dtype_is_half(to)     ? b->narrow[to]
                                                           : b->cast[t->dtype][to];
    ch_status             rc = CH_OK;

    if (t->dtype == to) {
        *out = t;
        return CH_OK;
    }
    rc = ch_tensor_new_on(device, to, t->shape, out);
    if (rc == CH_OK && ch_tensor_count(t) > 0)
        fn(ch_tensor_count(t), in, (*out)->data, NULL);
    ch_tensor_unref(t);
    return rc;
}

/* Sums `t` over the folded axes into `out`, which must be zero. */
static ch_status fold(const reduction *r, const ch_tensor *t, ch_tensor *out)
{
    ch_fold f;
    void   *scratch = NULL;

    if (ch_tensor_count(t) == 0)
        return CH_OK; /* out is already zero */
    ch__fold_init(&f, CH_FOLD_SUM, r->work, t->shape, r->is_folded, 1);
    if (ch__fold_scratch(&f) > 0) {
        scratch = ch__malloc(ch__fold_scratch(&f));
        if (scratch == NULL)
            return ch__fail_memory(r->call);
    }
    for (int i = 0; i < f.tiles; i++)
        ch__fold_tile(&f, i, t->data, out->data, scratch);
    if (f.parts > 1)
        ch__fold_join(&f, scratch, out->data);
    ch__free(scratch);
    return CH_OK;
}

/* Makes the addend of a component: contiguous, in the dtype of the additions, folded. */
static ch_status part_of(const reduction *r, ch_tensor *component, ch_tensor **out)
{
    ch_tensor *t = NULL, *folded = NULL;
    ch_status  rc = ch_tensor_contiguous(component, &t);

    if (rc == CH_OK)
        rc = as_dtype(r->device, t, r->work, &t);
    if (rc != CH_OK)
        return rc;
    if (!r->has_axes) {
        *out = t;
        return CH_OK;
    }
    rc = ch_tensor_new_on(r->device, r->work, result_shape(r, t->shape), &folded);
    if (rc == CH_OK)
        rc = fold(r, t, folded);
    ch_tensor_unref(t);
    if (rc == CH_OK)
        *out = folded;
    else
        ch_tensor_unref(folded);
    return rc;
}

enum { INLINE_PARTS = 16 };

/* The addends. Up to INLINE_PARTS need no allocation of a list, because a loss is reduced after
 * every step. */
typedef struct parts {
    int          n;
    ch_tensor  **tensor;
    const void **data;
    ch_tensor   *inline_tensor[INLINE_PARTS];
    const void  *inline_data[INLINE_PARTS];
} parts;

static void drop_parts(parts *p)
{
    for (int i = 0; p->tensor != NULL && i < p->n; i++)
        ch_tensor_unref(p->tensor[i]);
    if (p->tensor != p->inline_tensor)
        ch__free(p->tensor);
    if (p->data != p->inline_data)
        ch__free(p->data);
}

static ch_status make_parts(const reduction *r, ch_tensor *const *component, parts *p)
{
    ch_status rc = CH_OK;
    bool      inline_tensor = r->n <= INLINE_PARTS;

    p->n = 0;
    p->tensor =
        inline_tensor ? p->inline_tensor : ch__calloc((size_t)r->n, sizeof(ch_tensor *));
    p->data = inline_tensor ? p->inline_data : ch__calloc((size_t)r->n, sizeof(void *));
    if (p->tensor == NULL || p->data == NULL)
        rc = ch__fail_memory(r->call);
    for (int i = 0; i < r->n && rc == CH_OK; i++) {
        rc = part_of(r, component[i], &p->tensor[i]);
        if (rc == CH_OK)
            p->data[p->n++] = p->tensor[i]->data;
    }
    return rc;
}

/* Divides a sum by `count`. An i64 sum is converted to f64 first. Takes over the reference to
 * `sum`, also on an error. */
static ch_status divide(ch_device *device, ch_tensor *sum, int64_t count, ch_tensor **out)
{
    ch_status rc = sum->dtype == CH_I64 ? as_dtype(device, sum, CH_F64, &sum) : CH_OK;
    int64_t   n;

    if (rc != CH_OK)
        return rc;
    n = ch_tensor_count(sum);
    for (int64_t i = 0; i < n && sum->dtype == CH_F64; i++)
        ((double *)(void *)sum->data)[i] /= (double)count;
    for (int64_t i = 0; i < n && sum->dtype == CH_F32; i++) {
        float *x = (float *)(void *)sum->data + i;

        *x = (float)((double)*x / (double)count);
    }
    *out = sum;
    return CH_OK;
}

/* Returns the number of elements that are added up in each element of the result. */
static int64_t count_of(const reduction *r, ch_tensor *const *component)
{
    int64_t n = 0;

    for (int i = 0; i < r->n; i++) {
        ch_shape shape = component[i]->shape;
        int64_t  each = 1;

        for (int k = 0; k < shape.rank; k++)
            each *= r->is_folded[k] ? shape.dim[k] : 1;
        n += each;
    }
    return n;
}

/* Adds the components and divides the sum for a mean. A mean of floats without axes is divided
 * by ch__reduce_on_one_thread itself, as in a collective. */
static ch_status add_up(const reduction *r, ch_tensor *const *component, ch_tensor **out)
{
    bool       at_once = r->op == CH_MEAN && !r->has_axes && ch_dtype_is_float(r->work);
    ch_tensor *sum = NULL;
    parts      p;
    ch_status  rc = make_parts(r, component, &p);

    if (rc == CH_OK)
        rc = ch_tensor_new_on(r->device, r->work, result_shape(r, component[0]->shape), &sum);
    if (rc == CH_OK)
        ch__reduce_on_one_thread(r->cross, r->work, ch_tensor_count(sum), p.n, p.data,
                                 sum->data, at_once ? p.n : 1);
    drop_parts(&p);
    if (rc == CH_OK && r->op == CH_MEAN && !at_once)
        rc = divide(r->device, sum, count_of(r, component), &sum);
    return rc == CH_OK ? as_dtype(r->device, sum, r->to, out) : rc;
}

/* Checks and computes a reduction. If a single component is needed and its dtype is right, the
 * result is that component on `device`. */
static ch_status reduce_in(ch_cross_device cross, ch_strategy *st, const char *call,
                           ch_reduce_op op, const ch_value *v, int n, const int *axis,
                           ch_device *device, ch_tensor **out)
{
    reduction r = {
        .call = call, .op = op, .device = device, .n = ch_value_count(v), .cross = cross};
    ch_tensor *const *component = v->tensor;
    ch_status         rc = ch__check_components(st, call, "reduced", v);

    if (rc == CH_OK)
        rc = check_op(st, call, op, v);
    if (rc == CH_OK)
        rc = read_axes(&r, n, axis, component[0]->shape.rank);
    if (rc == CH_OK)
        rc = check_shapes(&r, v);
    if (rc != CH_OK)
        return rc;
    r.work = work_dtype(&r, component[0]->dtype);
    r.to = result_dtype(op, component[0]->dtype);
    if (v->kind == CH_MIRRORED) { /* all components are equal */
        component += ch__component_on(v, device);
        r.n = 1;
    }
    if (r.n == 1 && !r.has_axes && r.to == component[0]->dtype)
        return ch_tensor_to(component[0], device, out);
    return add_up(&r, component, out);
}

ch_status ch__reduce_value(ch_strategy *st, const char *call, ch_reduce_op op,
                           const ch_value *v, int n, const int *axis, ch_device *device,
                           ch_tensor **out)
{
    return reduce_in(CH_CROSS_AUTO, st, call, op, v, n, axis, device, out);
}

ch_status ch__reduce_value_as(ch_cross_device cross, ch_strategy *st, const char *call,
                              ch_reduce_op op, const ch_value *v, ch_device *device,
                              ch_tensor **out)
{
    return reduce_in(cross, st, call, op, v, 0, NULL, device, out);
}

/* ---- public functions ---- */

/* Checks the context and the arguments of a public function. Replaces a NULL *st by the current
 * strategy. */
static ch_status check_call(ch_strategy **st, const void *v, const char *what, const void *out)
{
    ch_status rc = ch__strategy_check_cross(st, "reduce", "ch_all_reduce");

    return rc == CH_OK ? ch__check_not_null("reduce", what, v, "out", out) : rc;
}

ch_status ch_strategy_reduce(ch_strategy *st, ch_reduce_op op, const ch_value *v, int axis,
                             ch_tensor **out)
{
    ch_status rc = check_call(&st, v, "the value", out);

    if (rc != CH_OK)
        return rc;
    return ch__reduce_value(st, "reduce", op, v, axis != CH_NO_AXIS, &axis, ch_device_current(),
                            out);
}

ch_status ch_strategy_reduce_axes(ch_strategy *st, ch_reduce_op op, const ch_value *v, int n,
                                  const int *axis, ch_tensor **out)
{
    ch_status rc = check_call(&st, v, "the value", out);

    if (rc == CH_OK && (n < 0 || (n > 0 && axis == NULL)))
        rc = ch__fail(CH_INVALID_ARGUMENT, "reduce: %d axes%s", n,
                      n < 0 ? "; want none or more" : ", and their list is NULL");
    if (rc != CH_OK)
        return rc;
    return ch__reduce_value(st, "reduce", op, v, n, axis, ch_device_current(), out);
}

/* Arguments of reduce_leaf. */
typedef struct leaf_reduction {
    ch_strategy *st;
    ch_reduce_op op;
    int          axis;
} leaf_reduction;

static ch_status reduce_leaf(void *arg, const ch_value *v, ch_tensor **out)
{
    const leaf_reduction *l = arg;

    return ch__reduce_value(l->st, "reduce", l->op, v, l->axis != CH_NO_AXIS, &l->axis,
                            ch_device_current(), out);
}

ch_status ch_strategy_reduce_tuple(ch_strategy *st, ch_reduce_op op, const ch_tuple *t,
                                   int axis, ch_tuple **out)
{
    ch_status      rc = check_call(&st, t, "the tuple", out);
    leaf_reduction l = {st, op, axis};

    return rc == CH_OK ? ch__tuple_map("reduce", t, reduce_leaf, &l, out) : rc;
}
