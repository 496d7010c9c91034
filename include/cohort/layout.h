/* cohort/layout.h -- where a value is stored: into which parts it is divided, and which devices hold them.
 *
 * A layout divides each axis into parts that are as equal as possible: 13 rows in 5 parts are 3, 3, 3, 2 and 2.
 * Every part has one copy, or as many as `n_copies` says. Three layouts are common:
 *
 *     ch_layout one = {.device = &gpu};                                // whole, on one device
 *     ch_layout mirrored = {.n_copies = 4, .device = gpus};            // whole, a copy on each of four devices
 *     ch_layout sharded = {.parts = {[0] = 3}, .device = servers};     // three shards along axis 0
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LAYOUT_H
#define COHORT_LAYOUT_H

#include "cohort/device.h"
#include "cohort/shape.h"

enum { CH_LAYOUT_DEVICES = 4096 }; /* the most devices of a layout: parts times copies */

typedef struct ch_layout {
    int parts[CH_MAX_RANK]; /* number of parts of each axis; 0 means 1 */
    int n_copies;           /* of each part; 0 means 1 */
    /* Copy c of part p is on device[p * n_copies + c]. Parts are numbered with the last axis fastest. */
    ch_device **device;
} ch_layout;

#endif
