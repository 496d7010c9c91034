/* cohort/control.h -- ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_CONTROL_H
#define COHORT_CONTROL_H

#include "cohort/step.h"

#endif
