/* strategy/update.c -- what is done to each copy of a variable, from outside a step.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "strategy/values.h"

static const ch_run_ops update_ops = {
    .resource = ch__var_storage, .borrow = ch__var_borrow, .begin = ch__vars_check_update};

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

/* Makes the run, here or in another task. A single copy gets the first components of what comes in. */
static ch_status make_run(ch_run *run, bool is_away, ch_tuple **out)
{
    ch_tuple *first = NULL;
    ch_status rc = CH_OK;

    if (run->n_local == 1 && run->in != NULL) {
        rc = ch__tuple_of_replica("update", run->in, 0, &first);
        run->in = first;
    }
    if (rc == CH_OK)
        rc = is_away ? ch__away_run(run, out) : ch__run(run, out);
    ch_tuple_unref(first);
    return rc;
}

/* Runs `f` on each of these devices, as what is done to the copy there. */
static ch_status run_on(ch_strategy *st, int n, ch_device *const *device, ch_function *f,
                        ch_tuple *in, ch_tuple **out)
{
    ch_run    run = run_of(st, n, device, f, in);
    ch_status rc;

    if (f == NULL)
        return ch__want_given("update", "the function", f, NULL, NULL);
    rc = ch__devices_check("update", n, device);
    return rc == CH_OK ? make_run(&run, false, out) : rc;
}

/* A variable of another task has one copy. A worker computes what is done to it. */
static ch_status run_away(ch_strategy *st, ch_function *f, ch_tuple *in, ch_tuple **out)
{
    ch_run    run = run_of(st, 1, NULL, f, in);
    ch_status rc;

    if (f == NULL)
        return ch__want_given("update", "the function", f, NULL, NULL);
    rc = ch__strategy_devices(st, &run.device);
    return rc == CH_OK ? make_run(&run, true, out) : rc;
}

/* The same where the tensors are. */
static ch_status run_beside(ch_strategy *st, int n, ch_tensor *const *tensor, ch_function *f,
                            ch_tuple *in, ch_tuple **out)
{
    ch_device **device = ch__calloc((size_t)n, sizeof(*device));
    ch_status   rc;

    if (device == NULL)
        return ch__fail_memory("update");
    for (int i = 0; i < n; i++)
        device[i] = ch_tensor_device(tensor[i]);
    rc = run_on(st, n, device, f, in, out);
    ch__free(device);
    return rc;
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
    if (rc == CH_OK && v->away != NULL)
        return run_away(st, f, in, out);
    return rc == CH_OK ? run_beside(st, v->n_copies, v->copy, f, in, out) : rc;
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

static ch_status run_beside_value(ch_strategy *st, const ch_value *v, ch_function *f,
                                  ch_tuple *in, ch_tuple **out)
{
    if (v->n != 1 && v->n != st->n_local)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "update_non_slot: the value has %d components, want 1 or %d, as many as "
            "%s has replicas",
            v->n, st->n_local, st->label);
    return run_beside(st, v->n, v->tensor, f, in, out);
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
        return run_beside_value(st, where->value, f, in, out);
    if (where->var != NULL) {
        rc = check_own(st, where->var, "update_non_slot");
        if (rc == CH_OK && where->var->away != NULL)
            return run_away(st, f, in, out);
        return rc == CH_OK ? run_beside(st, where->var->n_copies, where->var->copy, f, in, out)
                           : rc;
    }
    rc = ch_device_find(where->device, &device);
    return rc == CH_OK ? run_on(st, 1, &device, f, in, out)
                       : ch__fail_at(rc, "update_non_slot");
}
