/* train/schedule.h -- functions of a schedule for optimizers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include "cohort/schedule.h"

/* Returns INVALID_ARGUMENT if a parameter of the schedule is invalid. */
ch_status ch__schedule_check(const ch_schedule *p);
/* Records the rate at a step (i64), as f64. The schedule must be valid. */
ch_node *ch__schedule_node(const ch_schedule *p, ch_node *step);

#endif
