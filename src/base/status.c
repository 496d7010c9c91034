/* base/status.c -- the table of status codes. Messages are in base/fault.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/status.h"

typedef struct {
    const char *name, *text;
    ch_breaks   breaks;
} status_row;

#define STATUS_ROW(name, number, text, breaks) [number] = {#name, text, CH_BREAKS_##breaks},
static const status_row rows[CH_STATUS_COUNT] = {CH_STATUS_MAP(STATUS_ROW)};
#undef STATUS_ROW

/* Maps a number that is no code to CH_UNKNOWN, because a peer may send any number. */
static const status_row *row_of(ch_status rc)
{
    unsigned i = (unsigned)rc;

    return &rows[i < CH_STATUS_COUNT ? i : CH_UNKNOWN];
}

const char *ch_status_name(ch_status rc)
{
    return row_of(rc)->name;
}

const char *ch_status_text(ch_status rc)
{
    return row_of(rc)->text;
}

ch_breaks ch_status_breaks(ch_status rc)
{
    return row_of(rc)->breaks;
}
