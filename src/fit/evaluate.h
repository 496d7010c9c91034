/* fit/evaluate.h -- a pass over data that changes nothing.   SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef FIT_EVALUATE_H
#define FIT_EVALUATE_H

#include "fit/loop.h"

/* At most so many steps (0: all); the numbers are in the loop's logs, with this before their
 * names. There are none of a validation that was stopped: of a part of the data they would be
 * taken for those of the whole. `call` is for messages. */
ch_status ch__evaluate_pass(ch_loop *l, const char *call, ch_source *s, int64_t steps,
                            const char *prefix);

#endif
