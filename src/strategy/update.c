/* strategy/update.c -- updates of the copies of a variable, outside steps.
 *
 * Implements ch_strategy_update, ch_strategy_update_non_slot and ch_strategy_non_slot_devices.
 * An update is a run with a replica for each copy, in the context of an update: assigns change
 * the copy of their own replica and are not aggregated. If replicas have several logical
 * devices, the update of a variable runs on all of them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "spmd/spmd.h"
#include "strategy/values.h"

static const ch_run_ops update_ops = {.resource = ch__var_memory,
                                      .marks = ch__var_marks,
                                      .borrow = ch__var_borrow,
                                      .begin = ch__vars_check_update,
                                      .partition = ch__cores_partition,
                                      .report_free = ch__step_report_free};

/* Returns a run of `f` with n replicas on the devices. */
static ch_run run_of(ch_strategy *st, int n, ch_device *const *device, ch_function *f,
                     ch_tuple *in)
{
    return (ch_run){.function = f,
                    .owner = st,
                    .ops = &update_ops,
                    .generation = atomic_load(&st->generation),
                    .n_local = n,
                    .n_cores = st->n_cores,
                    .n_replicas = n,
                    .device = device,
                    .in = in,
                    .step = -1,
                    .context = CH_STEP_CONTEXT_UPDATE,
                    .group = n * st->n_cores > 1 ? st->group : NULL,
                    .group_ops = &ch__group_ops,
                    .groups = st->groups.part};
}

/* Runs `f` on each device as the update of the copy there. If n is 1, the run gets the first
 * components of `in`. If replicas have several logical devices, all of these run it, and n must
 * be the number of replicas. */
static ch_status run_on(ch_strategy *st, const ch_exec_ops *exec, int n,
                        ch_device *const *device, ch_function *f, ch_tuple *in, ch_tuple **out)
{
    ch_run    run = run_of(st, n, device, f, in);
    ch_tuple *first = NULL;
    ch_status rc;

    if (f == NULL)
        return ch__check_not_null("update", "the function", f, NULL, NULL);
    rc = st->n_cores == 1 ? ch__devices_check("update", n, device)
                          : ch__strategy_devices(st, &run.device);
    if (rc == CH_OK && st->n_cores > 1 && n != st->n_local)
        rc = ch__fail(
            CH_UNIMPLEMENTED,
            "update: on %d devices, but %s has %d replicas of several logical devices; "
            "use ch_strategy_update with a variable",
            n, st->label, st->n_local);
    if (rc == CH_OK && n == 1 && in != NULL) {
        rc = ch__tuple_of_replica("update", in, 0, &first);
        run.in = first;
    }
    if (rc == CH_OK)
        rc = ch__exec_run(exec, &run, out);
    ch_tuple_unref(first);
    return rc;
}

/* Runs `f` on the copies of a variable. If the variable is remote, a worker computes the update
 * of its single copy. */
static ch_status run_on_var(ch_strategy *st, const ch_var *v, ch_function *f, ch_tuple *in,
                            ch_tuple **out)
{
    ch_device *const *device = v->layout.device;
    ch_status rc = ch__var_is_local(v) ? CH_OK : ch__strategy_first_devices(st, &device);

    return rc == CH_OK ? run_on(st, ch__var_is_local(v) ? &ch__exec_local : st->exec,
                                v->n_copies, device, f, in, out)
                       : rc;
}

/* Returns INVALID_ARGUMENT unless v is a variable of `st`. */
static ch_status check_strategy(const ch_strategy *st, const ch_var *v, const char *call)
{
    if (v == NULL)
        return ch__check_not_null(call, "the variable", v, NULL, NULL);
    if (v->strategy != st)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: variable %s: another strategy made it: %s",
                        call, v->name, v->strategy->label);
    return CH_OK;
}

ch_status ch_strategy_update(ch_strategy *st, ch_var *v, ch_function *f, ch_tuple *in,
                             ch_tuple **out)
{
    ch_status rc = ch__strategy_check_cross(&st, "update", "ch_update");

    if (rc == CH_OK)
        rc = check_strategy(st, v, "update");
    return rc == CH_OK ? run_on_var(st, v, f, in, out) : rc;
}

/* ---- state that belongs to several variables ---- */

ch_status ch_strategy_non_slot_devices(ch_strategy *st, int n, ch_var *const *v,
                                       ch_destination *out)
{
    ch_var *first = NULL;

    st = ch__strategy_or_current(st);
    if (out == NULL || n < 1 || v == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "non-slot devices: %d variables%s", n,
                        out == NULL ? ", and out is NULL" : "");
    for (int i = 0; i < n; i++) {
        ch_status rc = check_strategy(st, v[i], "non-slot devices");

        if (rc != CH_OK)
            return rc;
        if (first == NULL || strcmp(v[i]->name, first->name) < 0)
            first = v[i];
    }
    *out = (ch_destination){.var = first};
    return CH_OK;
}

/* Runs `f` on the devices of the components of a value. */
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

ch_status ch_strategy_update_non_slot(ch_strategy *st, const ch_destination *dest,
                                      ch_function *f, ch_tuple *in, ch_tuple **out)
{
    ch_device *device = NULL;
    ch_status  rc = ch__strategy_check_cross(&st, "update_non_slot", NULL);
    int        n =
        dest == NULL ? 0 : (dest->var != NULL) + (dest->device != NULL) + (dest->value != NULL);

    if (rc != CH_OK)
        return rc;
    if (n != 1)
        return ch__fail(CH_INVALID_ARGUMENT, "update_non_slot: the destination is %s",
                        n == 0 ? "neither a variable nor a device nor a value"
                               : "more than one of a variable, a device and a value");
    if (dest->value != NULL)
        return run_on_value(st, dest->value, f, in, out);
    if (dest->var != NULL) {
        rc = check_strategy(st, dest->var, "update_non_slot");
        return rc == CH_OK ? run_on_var(st, dest->var, f, in, out) : rc;
    }
    rc = ch_device_find(dest->device, &device);
    return rc == CH_OK ? run_on(st, &ch__exec_local, 1, &device, f, in, out)
                       : ch__fail_at(rc, "update_non_slot");
}
