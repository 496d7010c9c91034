/* spmd/report.h -- reports of divided steps: plain data about the calls and values of a step.
 *
 * partition.c fills in a report while it divides the step of replica 0. The report lives as
 * long as the prepared graph (ch_run_ops.partition), so it refers to nothing of the division:
 * its texts are copied, or are constants of the library. report.c makes a ch_layout_report of
 * it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_REPORT_H
#define SPMD_REPORT_H

#include "base/mem.h"
#include "cohort/logical.h"

typedef struct ch_step_report {
    ch_arena arena;
    int      n_calls, n_replicated; /* as in ch_layout_report */
    /* arithmetic operations of each core, and of the step on a single device */
    double operations[CH_LOGICAL_DEVICES_MAX], all_operations;
    /* how often the calls run that are being added: calls in bodies run several times */
    double times;
} ch_step_report;

ch_status ch__step_report_new(ch_step_report **out);
/* Frees a ch_step_report; `report` may be NULL. */
void ch__step_report_free(void *report);

#endif
