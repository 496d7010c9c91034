/* fit/json.h -- the numbers of a training as members of an object.   SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef FIT_JSON_H
#define FIT_JSON_H

#include "fit/bytes_builder.h"
#include "fit/training.h"

/* Adds `, "loss": 0.31` for each; what is not finite is null. */
void ch__json_logs(ch_bytes_builder *p, ch_training *t);

#endif
