/* strategy/devices.h -- lists of devices, for implementations of strategies.
 *
 * Mirrored, CentralStorage and OneDevice use only this header and cohort/strategy_ops.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_DEVICES_H
#define STRATEGY_DEVICES_H

#include "cohort/device.h"

/* Returns INVALID_ARGUMENT if the list or a device is NULL, if a device is listed twice, or if
 * there are more than CH_LAYOUT_DEVICES. `label` begins the message. */
ch_status ch__devices_check(const char *label, int n, ch_device *const *device);
/* The first lists all devices of a type, the second finds n devices by their names. If
 * `distinct` is true, a device that is named twice is INVALID_ARGUMENT. The caller must free
 * the array with ch__free. */
ch_status ch__devices_of_type(const char *type, int *n, ch_device ***out);
ch_status ch__devices_named(const char *label, int n, const char *const *name, bool distinct,
                            ch_device ***out);

#endif
