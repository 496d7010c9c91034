/* strategy/var_borrow.c -- values of variables of another strategy, for a run.
 *
 * If one of the strategies is Default, all replicas read the value that ch_var_get returns. Two
 * strategies that share copies by device (ch_strategy_parts.shares_by_device) have devices in
 * common: each replica of the run reads the copy that is on its own devices. The copies of a
 * mirrored variable are equal. Those of a variable that is CH_SYNC_ON_READ are not, so which
 * copy a replica reads matters.
 *
 * A borrowed value is the memory of the copy itself if that is one tensor, else a new tensor.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "strategy/strategy.h"
#include "tensor/device.h"
#include "tensor/print.h"

/* Returns the number of the first tensor of v on this device, or -1. */
static int tensor_on(const ch_var *v, const ch_device *device)
{
    for (int i = 0; i < ch__var_tensors(v); i++)
        if (v->copy[i] != NULL && ch_tensor_device(v->copy[i]) == device)
            return i;
    return -1;
}

/* ---- the devices of copies and replicas as text ---- */

enum { MOST_LISTED = 16 }; /* devices in a list */

static void add_device(ch_text *o, int i, const ch_device *device)
{
    if (i < MOST_LISTED)
        ch__text_add(o, "%s%s", i > 0 ? ", " : "", ch__device_short_name(device));
    else if (i == MOST_LISTED)
        ch__text_add(o, ", ...");
}

static void print_copies(const ch_var *v, char *text, size_t size)
{
    ch_text o = ch__text(text, size);
    int     listed = 0;

    for (int i = 0; i < ch__var_tensors(v); i++)
        if (v->copy[i] != NULL)
            add_device(&o, listed++, ch_tensor_device(v->copy[i]));
}

static void print_devices(int n, ch_device *const *device, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    for (int i = 0; i < n; i++)
        add_device(&o, i, device[i]);
}

/* ---- matching ---- */

static ch_status fail_unmatched(const ch_var *v, int replica, int n, int n_cores,
                                ch_device *const *device)
{
    char copies[256], replicas[256];

    print_copies(v, copies, sizeof(copies));
    print_devices(n * n_cores, device, replicas, sizeof(replicas));
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "ch_var_read: variable %s: %s made it, and has no copy of it on a device "
        "of replica %d: its copies are on %s, and the %d replica%s of %d device%s run "
        "on %s; create it in a strategy that has a copy on a device of each replica",
        v->name, v->strategy->label, replica, copies, n, n > 1 ? "s" : "", n_cores,
        n_cores > 1 ? "s" : "", replicas);
}

ch_status ch__var_match_copies(const ch_var *v, int n, int n_cores, ch_device *const *device,
                               int *at)
{
    for (int r = 0; r < n; r++) {
        int i = -1;

        for (int c = 0; c < n_cores && i < 0; c++)
            i = tensor_on(v, device[r * n_cores + c]);
        if (i < 0)
            return fail_unmatched(v, r, n, n_cores, device);
        if (at != NULL)
            at[r] = i;
    }
    return CH_OK;
}

/* ---- values ---- */

/* Gives the whole value of the copy that tensor `at` is, or is a part of. */
static ch_status borrow_copy(ch_var *v, int at, ch_tensor **out)
{
    if (!ch_shape_equal(v->copy[at]->shape, v->shape))
        return ch__var_read_replica(v, at / v->tiles->n_cores, NULL, out);
    *out = ch_tensor_ref(v->copy[at]);
    return CH_OK;
}

/* Gives each replica of the run the copy on its devices. */
static ch_status borrow_by_device(ch_var *v, const ch_run *run, ch_tensor **out)
{
    int      *at = ch__calloc((size_t)run->n_local, sizeof(*at));
    ch_status rc = at == NULL ? ch__fail_memory("a run") : CH_OK;

    if (rc == CH_OK)
        rc = ch__var_match_copies(v, run->n_local, ch__run_cores(run), run->device, at);
    for (int r = 0; r < run->n_local && rc == CH_OK; r++)
        rc = borrow_copy(v, at[r], &out[r]);
    ch__free(at);
    return rc;
}

ch_status ch__var_borrow(const ch_run *run, const ch_resource *r, ch_tensor **out)
{
    ch_var *v = r->key;

    if (ch__strategy_shares_by_device(run->owner, v->strategy))
        return borrow_by_device(v, run, out);
    if (!ch__var_is_local(v) || ch__var_is_per_replica(v) || v->tiles != NULL)
        return ch__var_get(v, out);
    *out = ch_tensor_ref(v->copy[0]);
    return CH_OK;
}
