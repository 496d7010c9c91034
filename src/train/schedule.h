/* train/schedule.h -- what optimizers ask of a schedule.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include "cohort/schedule.h"

/* INVALID_ARGUMENT, with the reason, for one that makes no sense. */
ch_status ch__schedule_check(const ch_schedule *p);
/* The rate at a step (i64), in f64. */
ch_node *ch__schedule_node(const ch_schedule *p, ch_node *step);

#endif
