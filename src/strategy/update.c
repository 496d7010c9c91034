/* strategy/update.c -- what is done to each copy of a variable, from outside a step.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "strategy/values.h"

/* Runs `f` on each of these devices, as what is done to the copy there. */
static ch_status run_on(ch_strategy *st, int n, ch_device *const *device, ch_function *f,
                        ch_tuple *in, ch_tuple **out)
{
    ch_run    run = {.function = f,
                     .owner = st,
                     .ops = &ch__strategy_run_ops,
                     .generation = atomic_load(&st->generation),
                     .n_local = n,
                     .n_replicas = n,
                     .device = device,
                     .in = in,
                     .step = -1,
                     .speaks_of = CH_SPEAKS_OF_COPY,
                     .group = n > 1 ? st->group : NULL,
                     .meet = &ch__group_as_meet};
    ch_tuple *first = NULL;
    ch_status rc = CH_OK;

    if (f == NULL)
        return ch__want_given("update", "the function", f, NULL, NULL);
    if (n == 1 && in != NULL) {
        rc = ch__tuple_of_replica("update", in, 0, &first);
        run.in = first;
    }
    if (rc == CH_OK)
        rc = ch__run(&run, out);
    ch_tuple_unref(first);
    return rc;
}

static ch_status run_beside(ch_strategy *st, const ch_var *v, ch_function *f, ch_tuple *in,
                            ch_tuple **out)
{
    ch_device **device = ch__calloc((size_t)v->n_copies, sizeof(*device));
    ch_status   rc;

    if (device == NULL)
        return ch__fail_memory("update");
    for (int i = 0; i < v->n_copies; i++)
        device[i] = ch_tensor_device(v->copy[i]);
    rc = run_on(st, v->n_copies, device, f, in, out);
    ch__free(device);
    return rc;
}

static ch_status check_own(const ch_strategy *st, const ch_var *v, const char *call)
{
    if (v == NULL)
        return ch__want_given(call, "the variable", v, NULL, NULL);
    if (v->strategy != st)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: variable %s was made by another strategy, a %s", call, v->name,
                        v->strategy->ops->name);
    return CH_OK;
}

ch_status ch_strategy_update(ch_strategy *st, ch_var *v, ch_function *f, ch_tuple *in,
                             ch_tuple **out)
{
    ch_status rc = ch__strategy_cross(&st, "update", "ch_update");

    if (rc == CH_OK)
        rc = check_own(st, v, "update");
    return rc == CH_OK ? run_beside(st, v, f, in, out) : rc;
}

/* ---- what belongs to several variables ---- */

ch_status ch_strategy_non_slot_devices(ch_strategy *st, int n, ch_var *const *v,
                                       ch_destination *out)
{
    ch_var *first = NULL;

    st = ch__strategy_of(st);
    if (out == NULL || n < 1 || v == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "non-slot devices: %d variables%s", n,
                        out == NULL ? ", and out is NULL" : "");
    for (int i = 0; i < n; i++) {
        ch_status rc = check_own(st, v[i], "non-slot devices");

        if (rc != CH_OK)
            return rc;
        if (first == NULL || strcmp(v[i]->name, first->name) < 0)
            first = v[i];
    }
    *out = (ch_destination){.var = first};
    return CH_OK;
}

ch_status ch_strategy_update_non_slot(ch_strategy *st, const ch_destination *where,
                                      ch_function *f, ch_tuple *in, ch_tuple **out)
{
    ch_device *device = NULL;
    ch_status  rc = ch__strategy_cross(&st, "update_non_slot", NULL);

    if (rc != CH_OK)
        return rc;
    if (where == NULL || (where->var == NULL && where->device == NULL))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "update_non_slot: where is neither a variable nor a device");
    if (where->var != NULL) {
        rc = check_own(st, where->var, "update_non_slot");
        return rc == CH_OK ? run_beside(st, where->var, f, in, out) : rc;
    }
    rc = ch_device_find(where->device, &device);
    return rc == CH_OK ? run_on(st, 1, &device, f, in, out)
                       : ch__fail_at(rc, "update_non_slot");
}
