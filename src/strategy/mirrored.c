/* strategy/mirrored.c -- Mirrored: a replica and a copy of every variable on each device.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cohort/strategy_ops.h"
#include "strategy/devices.h"

typedef struct mirrored {
    int         n; /* number of replicas */
    ch_device **device;
} mirrored;

static ch_device *const *devices(void *self)
{
    return ((mirrored *)self)->device;
}

static ch_status place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    mirrored *m = self;

    (void)spec;
    out->n_copies = m->n;
    memcpy(out->device, m->device, (size_t)m->n * sizeof(*out->device));
    return CH_OK;
}

static void close(void *self)
{
    mirrored *m = self;

    ch__free(m->device);
    ch__free(m);
}

static const ch_strategy_ops mirrored_ops = {"Mirrored", devices, place, close};

/* Returns the device type that is used if the program names no devices. All devices of that
 * type are used. Accelerators are preferred to CPUs. */
static const char *best_type(void)
{
    return ch_device_count("TPU") > 0 ? "TPU" : ch_device_count("GPU") > 0 ? "GPU" : "CPU";
}

ch_status ch_strategy_mirrored(const ch_mirrored_options *opt, ch_strategy **out)
{
    static const ch_mirrored_options none;

    mirrored *m;
    ch_status rc;

    if (out == NULL)
        return ch__check_not_null("mirrored strategy", "out", out, NULL, NULL);
    opt = opt != NULL ? opt : &none;
    m = ch__calloc(1, sizeof(*m));
    if (m == NULL)
        return ch__fail_memory("mirrored strategy");
    m->n = opt->n_devices;
    if (m->n != 0)
        rc = ch__devices_named("mirrored strategy", m->n, opt->device, true, &m->device);
    else
        rc = ch__devices_of_type(best_type(), &m->n, &m->device);
    if (rc == CH_OK)
        rc = ch_strategy_new(&mirrored_ops, m,
                             &(ch_strategy_parts){.n_replicas = m->n,
                                                  .communication = opt->communication,
                                                  .isolates_state = true,
                                                  .own_pipelines = true},
                             out);
    if (rc != CH_OK)
        close(m);
    return rc;
}
