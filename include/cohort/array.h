/* cohort/array.h -- ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_ARRAY_H
#define COHORT_ARRAY_H

#include "cohort/step.h"

#endif
