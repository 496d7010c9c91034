/* strategy/one_device.c -- OneDevice: one replica on one device.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "cohort/strategy_ops.h"

typedef struct one_device {
    ch_device *device;
} one_device;

static ch_device *const *devices(void *self)
{
    return &((one_device *)self)->device;
}

static ch_status place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    (void)spec;
    out->device[0] = ((one_device *)self)->device;
    return CH_OK;
}

static const ch_strategy_ops one_device_ops = {"OneDevice", devices, place, ch__free};

ch_status ch_strategy_one_device(const char *device, ch_strategy **out)
{
    one_device *o;
    ch_status rc = ch__check_not_null("one-device strategy", "the device", device, "out", out);

    if (rc != CH_OK)
        return rc;
    o = ch__calloc(1, sizeof(*o));
    if (o == NULL)
        return ch__fail_memory("one-device strategy");
    rc = ch_device_find(device, &o->device);
    if (rc != CH_OK)
        rc = ch__fail_at(rc, "one-device strategy");
    else
        rc = ch_strategy_new(&one_device_ops, o,
                             &(ch_strategy_parts){.n_replicas = 1, .is_bare = true}, out);
    if (rc != CH_OK)
        ch__free(o);
    return rc;
}
