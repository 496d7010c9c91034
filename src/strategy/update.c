/* strategy/update.c -- what is done to each copy of a variable, from outside a step.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "strategy/values.h"

static const ch_run_ops update_ops = {
    .resource = ch__var_memory, .borrow = ch__var_borrow, .begin = ch__vars_check_update};

static ch_run run_of(ch_strategy *st, int n, ch_device *const *device, ch_function *f,
                     ch_tuple *in)
{
    return (ch_run){.function = f,
                    .owner = st,
                    .ops = &update_ops,
                    .generation = atomic_load(&st->generation),
                    .n_local = n,
                    .n_replicas = n,
                    .device = device,
                    .in = in,
                    .step = -1,
                    .speaks_of = CH_SPEAKS_OF_COPY,
                    .group = n > 1 ? st->group : NULL,
                    .meet = &ch__group_as_meet};
}

/* Runs `f` on each of these devices, as what is done to the copy there. A single copy gets the first components of `in`. */
static ch_status run_on(ch_strategy *st, const ch_exec_ops *exec, int n,
                        ch_device *const *device, ch_function *f, ch_tuple *in, ch_tuple **out)
{
    ch_run    run = run_of(st, n, device, f, in);
    ch_tuple *first = NULL;
    ch_status rc;

    if (f == NULL)
        return ch__want_given("update", "the function", f, NULL, NULL);
    rc = ch__devices_check("update", n, device);
    if (rc == CH_OK && n == 1 && in != NULL) {
        rc = ch__tuple_of_replica("update", in, 0, &first);
        run.in = first;
    }
    if (rc == CH_OK)
        rc = ch__exec_run(exec, &run, out);
    ch_tuple_unref(first);
    return rc;
}

/* Runs `f` on the copies of a variable. If they are not in this process, a worker computes the update of the one copy. */
static ch_status run_on_var(ch_strategy *st, const ch_var *v, ch_function *f, ch_tuple *in,
                            ch_tuple **out)
{
    ch_device *const *device = v->layout.device;
    ch_status         rc = ch__var_is_here(v) ? CH_OK : ch__strategy_devices(st, &device);

    return rc == CH_OK ? run_on(st, ch__var_is_here(v) ? &ch__exec_local : st->exec,
                                v->n_copies, device, f, in, out)
                       : rc;
}

static ch_status check_own(const ch_strategy *st, const ch_var *v, const char *call)
{
    if (v == NULL)
        return ch__want_given(call, "the variable", v, NULL, NULL);
    if (v->strategy != st)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: variable %s: another strategy made it: %s",
                        call, v->name, v->strategy->label);
    return CH_OK;
}

ch_status ch_strategy_update(ch_strategy *st, ch_var *v, ch_function *f, ch_tuple *in,
                             ch_tuple **out)
{
    ch_status rc = ch__strategy_cross(&st, "update", "ch_update");

    if (rc == CH_OK)
        rc = check_own(st, v, "update");
    return rc == CH_OK ? run_on_var(st, v, f, in, out) : rc;
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

/* Runs `f` where the components of the value are. */
static ch_status run_on_value(ch_strategy *st, const ch_value *v, ch_function *f, ch_tuple *in,
                              ch_tuple **out)
{
    ch_device **device;
    ch_status   rc;

    if (v->n != 1 && v->n != st->n_local)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "update_non_slot: the value has %d components, want 1 or %d, as many as "
            "%s has replicas",
            v->n, st->n_local, st->label);
    device = ch__calloc((size_t)v->n, sizeof(*device));
    if (device == NULL)
        return ch__fail_memory("update");
    for (int i = 0; i < v->n; i++)
        device[i] = ch_tensor_device(v->tensor[i]);
    rc = run_on(st, &ch__exec_local, v->n, device, f, in, out);
    ch__free(device);
    return rc;
}

ch_status ch_strategy_update_non_slot(ch_strategy *st, const ch_destination *where,
                                      ch_function *f, ch_tuple *in, ch_tuple **out)
{
    ch_device *device = NULL;
    ch_status  rc = ch__strategy_cross(&st, "update_non_slot", NULL);
    int        n = where == NULL
                       ? 0
                       : (where->var != NULL) + (where->device != NULL) + (where->value != NULL);

    if (rc != CH_OK)
        return rc;
    if (n != 1)
        return ch__fail(CH_INVALID_ARGUMENT, "update_non_slot: where is %s",
                        n == 0 ? "neither a variable nor a device nor a value"
                               : "more than one of a variable, a device and a value");
    if (where->value != NULL)
        return run_on_value(st, where->value, f, in, out);
    if (where->var != NULL) {
        rc = check_own(st, where->var, "update_non_slot");
        return rc == CH_OK ? run_on_var(st, where->var, f, in, out) : rc;
    }
    rc = ch_device_find(where->device, &device);
    return rc == CH_OK ? run_on(st, &ch__exec_local, 1, &device, f, in, out)
                       : ch__fail_at(rc, "update_non_slot");
}
