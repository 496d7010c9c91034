/* strategy/mirrored.c -- a replica, and a copy of every variable, on each of several devices.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "strategy/strategy.h"
#include "tensor/device.h"

typedef struct mirrored {
    ch_strategy base; /* first, so ch_strategy * and mirrored * convert */
    ch_device  *device[];
} mirrored;

static ch_device *const *mirrored_devices(ch_strategy *st)
{
    return ((mirrored *)st)->device;
}

static void mirrored_close(ch_strategy *st)
{
    ch__group_free(st->group);
    pthread_mutex_destroy(&st->lock);
    ch__free(st);
}

static const ch_strategy_ops mirrored_ops = {"Mirrored", mirrored_devices, mirrored_close};

/* The type whose devices are all taken when none are named: accelerators before cores. */
static const char *best_type(void)
{
    return ch_device_count("TPU") > 0 ? "TPU" : ch_device_count("GPU") > 0 ? "GPU" : "CPU";
}

static ch_status find_named(const ch_mirrored_options *opt, ch_device **device)
{
    for (int i = 0; i < opt->n_devices; i++) {
        ch_status rc = ch_device_find(opt->device[i], &device[i]);

        if (rc != CH_OK)
            return ch__fail_at(rc, "mirrored strategy");
        for (int k = 0; k < i; k++)
            if (device[k] == device[i])
                return ch__fail(CH_INVALID_ARGUMENT,
                                "mirrored strategy: device %s is named twice (%d and %d)",
                                ch_device_name(device[i]), k, i);
    }
    return CH_OK;
}

static ch_status find_all(const char *type, int n, ch_device **device)
{
    int found = 0;

    for (int i = 0; found < n; i++) {
        ch_device  *d = ch_device_at(i);
        const char *a = d != NULL ? ch_device_where(d)->type : NULL;

        if (a == NULL)
            return ch__fail(CH_INTERNAL, "mirrored strategy: %d %s devices, only %d found", n,
                            type, found);
        if (strcmp(a, type) == 0)
            device[found++] = d;
    }
    return CH_OK;
}

ch_status ch_strategy_mirrored(const ch_mirrored_options *opt, ch_strategy **out)
{
    bool        named = opt != NULL && opt->n_devices != 0;
    const char *type = best_type();
    int         n = named ? opt->n_devices : ch_device_count(type);
    mirrored   *m;
    ch_status   rc;

    if (out == NULL)
        return ch__want_given("mirrored strategy", "out", out, NULL, NULL);
    if (n < 0 || (named && opt->device == NULL))
        return ch__fail(CH_INVALID_ARGUMENT, "mirrored strategy: %d devices%s", n,
                        n < 0 ? "" : " without their names");
    m = ch__calloc(1, sizeof(*m) + (size_t)n * sizeof(m->device[0]));
    if (m == NULL)
        return ch__fail_memory("mirrored strategy");
    rc = named ? find_named(opt, m->device) : find_all(type, n, m->device);
    if (rc != CH_OK) {
        ch__free(m);
        return rc;
    }
    ch__strategy_init(&m->base, &mirrored_ops, n);
    if (n > 1)
        rc = ch__group_new(n, !ch__devices_crowded(n, m->device), &m->base.group);
    if (rc != CH_OK) {
        mirrored_close(&m->base);
        return rc;
    }
    *out = &m->base;
    return CH_OK;
}
