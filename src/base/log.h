/* base/log.h -- writing to the log.   SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

#include "cohort/log.h"

/* Returns true if records of this level reach the sink. Test it before building costly text. */
bool ch__log_is_enabled(ch_log_level level);
/* Sends a record to the sink if its level is high enough. `code` is a short name of the
 * message's type, such as "wait". Newlines in the text become spaces. Any thread may call
 * it. */
void ch__log(ch_log_level level, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
