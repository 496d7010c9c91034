/* cohort/random.h -- ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_RANDOM_H
#define COHORT_RANDOM_H

#include "cohort/step.h"

#endif
