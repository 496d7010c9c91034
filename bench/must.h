/* bench/must.h -- exits if a call has failed.   SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_MUST_H
#define BENCH_MUST_H

#include <stdio.h>
#include <stdlib.h>

#include "cohort/cohort.h"

static inline void must(ch_status rc)
{
    if (rc == CH_OK)
        return;
    fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
    exit(1);
}

#endif
