/* data/stages.c -- the table of all stages that a dataset may consist of.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/stages.h"

#define CH_STAGE_ROW(name) &ch__stage_##name,
static const ch_stage *const table[] = {CH_STAGE_MAP(CH_STAGE_ROW) NULL};

const ch_stage *const *ch__stages(void)
{
    return table;
}
