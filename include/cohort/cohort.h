/* cohort/cohort.h -- all of the library: includes every other header.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_COHORT_H
#define COHORT_COHORT_H

#include "cohort/device.h"
#include "cohort/log.h"
#include "cohort/shape.h"
#include "cohort/status.h"
#include "cohort/tensor.h"
#include "cohort/value.h"

#endif
