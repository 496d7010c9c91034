/* fit/json.h -- the logs of a training as JSON members.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_JSON_H
#define FIT_JSON_H

#include "base/bytes_builder.h"
#include "fit/training.h"

/* Appends `, "loss": 0.31` for each log. NaN and infinities are written as null. */
void ch__json_logs(ch_bytes_builder *p, ch_training *t);

#endif
