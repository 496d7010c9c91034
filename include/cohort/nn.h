/* cohort/nn.h -- ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_NN_H
#define COHORT_NN_H

#include "cohort/step.h"

#endif
