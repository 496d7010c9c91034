/* cohort/math.h -- ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_MATH_H
#define COHORT_MATH_H

#include "cohort/step.h"

#endif
