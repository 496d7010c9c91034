/* strategy/devices.h -- lists of devices, for strategies.
 *
 * With cohort/strategy_ops.h all that a strategy of the library needs: none sees the inside of another.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_DEVICES_H
#define STRATEGY_DEVICES_H

#include "cohort/device.h"

/* INVALID_ARGUMENT unless they are all there, and different. `what` is for messages. */
ch_status ch__devices_check(const char *what, int n, ch_device *const *device);
/* The devices of a type, all there are, in an array that the caller frees; what is asked for by name, each once
 * if `distinct`. */
ch_status ch__devices_of_type(const char *type, int *n, ch_device ***out);
ch_status ch__devices_named(const char *what, int n, const char *const *name, bool distinct,
                            ch_device ***out);

#endif
