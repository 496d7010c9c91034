/* base/log.h -- writing to the log.   SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

#include "cohort/log.h"

/* True if somebody listens at this level: ask before building costly text. */
bool ch__log_wants(ch_log_level level);
void ch__log(ch_log_level level, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
