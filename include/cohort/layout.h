/* cohort/layout.h -- layouts: how a value is divided into parts, and which devices hold them.
 *
 * A layout says into how many parts each axis of a value is divided, and how many copies each
 * part has. A strategy chooses a layout for each variable (cohort/strategy_ops.h). Three
 * layouts are common:
 *
 *     ch_layout single = {.device = &gpu};                         // whole, on a device
 *     ch_layout mirrored = {.n_copies = 4, .device = gpus};        // whole, on each of 4
 *     ch_layout sharded = {.parts = {[0] = 3}, .device = servers}; // 3 shards along axis 0
 *
 * The parts of an axis are as equal as possible: 13 rows in 5 parts are 3, 3, 3, 2 and 2.
 *
 * A layout is a plain value. It does not own its list of devices.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LAYOUT_H
#define COHORT_LAYOUT_H

#include "cohort/device.h"
#include "cohort/shape.h"

enum { CH_LAYOUT_DEVICES = 4096 }; /* maximum number of devices of a layout: parts * copies */

typedef struct ch_layout {
    int parts[CH_MAX_RANK]; /* number of parts of each axis; 0 means 1 */
    int n_copies;           /* number of copies of each part; 0 means 1 */
    /* Copy c of part p is on device[p * n_copies + c]. Parts are numbered with the last axis
     * fastest. */
    ch_device **device;
} ch_layout;

#endif
