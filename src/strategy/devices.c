/* strategy/devices.c -- finds and checks lists of devices for strategies.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/devices.h"

#include <strings.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cohort/layout.h"
#include "tensor/device.h"

ch_status ch__devices_check(const char *label, int n, ch_device *const *device)
{
    if (n > 0 && device == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: its list of devices is NULL, want %d", label,
                        n);
    if (n > CH_LAYOUT_DEVICES) /* otherwise the loop would read past the end of the list */
        return ch__fail(CH_INVALID_ARGUMENT, "%s: too many devices (got %d, want at most %d)",
                        label, n, CH_LAYOUT_DEVICES);
    for (int i = 0; i < n; i++) {
        if (device[i] == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: device %d of %d is NULL", label, i, n);
        for (int k = 0; k < i; k++)
            if (device[k] == device[i])
                return ch__fail(CH_INVALID_ARGUMENT,
                                "%s: devices %d and %d are both %s; want a different one for "
                                "each",
                                label, k, i, ch_device_name(device[i]));
    }
    return CH_OK;
}

ch_status ch__devices_of_type(const char *type, int *n, ch_device ***out)
{
    int         count = ch_device_count(type), found = 0;
    ch_device **device = ch__calloc((size_t)count + 1, sizeof(*device));

    if (device == NULL)
        return ch__fail_memory("a list of devices");
    for (int i = 0; found < count && ch_device_at(i) != NULL; i++)
        if (strcasecmp(ch_device_where(ch_device_at(i))->type, type) == 0)
            device[found++] = ch_device_at(i);
    *n = found;
    *out = device;
    return CH_OK;
}

ch_status ch__devices_named(const char *label, int n, const char *const *name, bool distinct,
                            ch_device ***out)
{
    ch_device **device;
    ch_status   rc;

    if (n < 0 || (n > 0 && name == NULL))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %d devices%s", label, n,
                        n < 0 ? "; want 0 or more" : ", and the list of names is NULL");
    device = ch__calloc((size_t)n + 1, sizeof(*device));
    if (device == NULL)
        return ch__fail_memory("a list of devices");
    rc = ch__devices_find(n, name, device);
    if (rc != CH_OK)
        rc = ch__fail_at(rc, "%s", label);
    for (int i = 0; i < n && rc == CH_OK && distinct; i++)
        for (int k = 0; k < i && rc == CH_OK; k++)
            if (device[k] == device[i])
                rc = ch__fail(CH_INVALID_ARGUMENT, "%s: device %s is named twice (%d and %d)",
                              label, ch_device_name(device[i]), k, i);
    if (rc != CH_OK) {
        ch__free(device);
        return rc;
    }
    *out = device;
    return CH_OK;
}
