/* strategy/move.c -- reductions and broadcasts to given devices, on the host.
 *
 * Implements ch_strategy_reduce_to, ch_strategy_batch_reduce_to and ch_strategy_broadcast_to.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "strategy/values.h"

/* ---- destinations ---- */

/* The devices of a ch_destination. The caller must free the list. */
typedef struct destinations {
    int         n;
    ch_device **device;
} destinations;

/* Returns INVALID_ARGUMENT unless exactly one field of the destination is set. */
static ch_status check_destination(const char *call, const ch_destination *to)
{
    int n;

    if (to == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the destination is NULL", call);
    n = (to->device != NULL) + (to->value != NULL) + (to->var != NULL);
    if (n == 1)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "%s: the destination %s; want one of a device, a value and a variable",
                    call, n == 0 ? "is empty" : "is more than one");
}

static ch_status device_named(const char *call, const char *name, ch_device **out)
{
    ch_status rc = ch_device_find(name, out);

    return rc == CH_OK ? rc : ch__fail_at(rc, "%s, destination", call);
}

/* Lists the devices of a destination: the named device, or those of the components of the value
 * or of the copies of the variable. */
static ch_status find_destinations(const char *call, const ch_destination *to, destinations *p)
{
    ch_value *copies = NULL;
    ch_status rc = check_destination(call, to);

    if (rc == CH_OK && to->var != NULL)
        rc = ch__var_copies(to->var, &copies);
    if (rc != CH_OK)
        return rc;
    const ch_value *at = copies != NULL ? copies : to->value;
    p->n = at != NULL ? at->n : 1;
    p->device = ch__calloc((size_t)p->n, sizeof(ch_device *));
    if (p->device == NULL)
        rc = ch__fail_memory(call);
    else if (to->device != NULL)
        rc = device_named(call, to->device, &p->device[0]);
    for (int i = 0; rc == CH_OK && at != NULL && i < at->n; i++)
        p->device[i] = ch_tensor_device(at->tensor[i]);
    ch_value_unref(copies);
    if (rc != CH_OK)
        ch__free(p->device);
    return rc;
}

/* Copies `t` to each device. The result is plain for one device, mirrored for several. */
static ch_status copy_to_devices(const char *call, ch_tensor *t, const destinations *p,
                                 ch_value **out)
{
    ch_tensor **copy = ch__calloc((size_t)p->n, sizeof(ch_tensor *));
    ch_status   rc = copy == NULL ? ch__fail_memory(call) : CH_OK;

    for (int i = 0; i < p->n && rc == CH_OK; i++)
        rc = ch_tensor_to(t, p->device[i], &copy[i]);
    if (rc == CH_OK)
        rc = ch_value_new(p->n > 1 ? CH_MIRRORED : CH_PLAIN, p->n, copy, out);
    for (int i = 0; copy != NULL && i < p->n; i++)
        ch_tensor_unref(copy[i]);
    ch__free(copy);
    return rc;
}

/* ---- reductions ---- */

/* Returns true if the reduction returns v itself: a mirrored float value equals its mean, and
 * it stays on its devices (4.2.7). */
static bool is_own_mean(ch_reduce_op op, const ch_value *v)
{
    return op == CH_MEAN && v->kind == CH_MIRRORED && ch_dtype_is_float(v->tensor[0]->dtype);
}

/* Reduces `v` on the first destination device, and copies the result to the other
 * destinations. */
static ch_status reduce_to(ch_strategy *st, const char *call, ch_cross_device cross,
                           ch_reduce_op op, const ch_value *v, const ch_destination *to,
                           ch_value **out)
{
    destinations p;
    ch_tensor   *sum = NULL;
    ch_status    rc;

    if (v == NULL)
        return ch__check_not_null(call, "the value", v, NULL, NULL);
    rc = find_destinations(call, to, &p);
    if (rc != CH_OK)
        return rc;
    rc = ch__reduce_value_as(
        cross, st, call, op, v,
        st->parts.is_bare || is_own_mean(op, v) ? ch_tensor_device(v->tensor[0]) : p.device[0],
        &sum);
    if (rc == CH_OK && is_own_mean(op, v))
        rc = ch_value_new(CH_MIRRORED, v->n, v->tensor, out);
    else if (rc == CH_OK && st->parts.is_bare) /* 4.2.11: the value stays where it is */
        rc = ch_value_new(CH_PLAIN, 1, &sum, out);
    else if (rc == CH_OK)
        rc = copy_to_devices(call, sum, &p, out);
    ch_tensor_unref(sum);
    ch__free(p.device);
    return rc;
}

ch_status ch_strategy_reduce_to(ch_strategy *st, ch_reduce_op op, const ch_value *v,
                                const ch_destination *to, ch_value **out)
{
    return ch_strategy_reduce_to_with(st, op, v, to, NULL, out);
}

ch_status ch_strategy_reduce_to_with(ch_strategy *st, ch_reduce_op op, const ch_value *v,
                                     const ch_destination           *to,
                                     const ch_communication_options *opt, ch_value **out)
{
    const char              *call = "reduce to";
    ch_communication_options how;
    ch_status                rc = ch__strategy_check_cross(&st, call, "ch_merge_reduce");

    if (rc == CH_OK)
        rc = ch__check_not_null(call, "out", out, NULL, NULL);
    if (rc == CH_OK)
        rc = ch__communication_of(st, call, opt, &how);
    return rc == CH_OK ? reduce_to(st, call, how.implementation, op, v, to, out) : rc;
}

ch_status ch_strategy_batch_reduce_to(ch_strategy *st, ch_reduce_op op, int n,
                                      const ch_value *const *v, const ch_destination *to,
                                      ch_value **out)
{
    return ch_strategy_batch_reduce_to_with(st, op, n, v, to, NULL, out);
}

ch_status ch_strategy_batch_reduce_to_with(ch_strategy *st, ch_reduce_op op, int n,
                                           const ch_value *const *v, const ch_destination *to,
                                           const ch_communication_options *opt, ch_value **out)
{
    const char              *call = "batch reduce to";
    ch_communication_options how;
    ch_value               **all;
    ch_status                rc = ch__strategy_check_cross(&st, call, "ch_merge_reduce");

    if (rc == CH_OK && (n < 0 || (n > 0 && (v == NULL || to == NULL || out == NULL))))
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: %d values%s", call, n,
                      n < 0 ? "; want none or more"
                            : ", and one of the lists of values, destinations and results is "
                              "NULL");
    if (rc == CH_OK)
        rc = ch__communication_of(st, call, opt, &how);
    if (rc != CH_OK)
        return rc;
    all = ch__calloc((size_t)n + 1, sizeof(ch_value *));
    if (all == NULL)
        return ch__fail_memory(call);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = reduce_to(st, call, how.implementation, op, v[i], &to[i], &all[i]);
        if (rc != CH_OK)
            rc = ch__fail_at(rc, "value %d of %d", i, n);
    }
    for (int i = 0; i < n; i++)
        if (rc == CH_OK)
            out[i] = all[i];
        else
            ch_value_unref(all[i]);
    ch__free(all);
    return rc;
}

/* ---- broadcasts ---- */

ch_status ch_strategy_broadcast_to(ch_strategy *st, ch_tensor *t, const ch_destination *to,
                                   ch_value **out)
{
    destinations p;
    ch_status    rc = ch__strategy_check_cross(&st, "broadcast to", "ch_broadcast");

    if (rc == CH_OK)
        rc = ch__check_not_null("broadcast to", "the tensor", t, "out", out);
    if (rc == CH_OK && st->uses_current_device)
        rc =
            ch__fail(CH_UNIMPLEMENTED,
                     "broadcast to: the Default strategy has no devices of its own to copy to; "
                     "use ch_tensor_to");
    if (rc == CH_OK)
        rc = find_destinations("broadcast to", to, &p);
    if (rc != CH_OK)
        return rc;
    rc = st->parts.is_bare ? ch_value_new(CH_PLAIN, 1, &t, out)
                           : copy_to_devices("broadcast to", t, &p, out);
    ch__free(p.device);
    return rc;
}
