/* fit/evaluate.h -- a pass over data that does not change the model.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_EVALUATE_H
#define FIT_EVALUATE_H

#include "fit/loop.h"

/* Runs the test step on at most `steps` batches (0: all data), and sends the validation events.
 * Writes the numbers to the logs of the loop; their names get the prefix. A validation that was
 * stopped has no numbers, because numbers for a part of the data could be mistaken for those of
 * all data. If the phase of the training is CH_PHASE_VALIDATING, because the training was
 * loaded there, goes on with the pass that the state belongs to. `call` is the name of the
 * public function, for messages. */
ch_status ch__evaluate_pass(ch_loop *l, const char *call, ch_source *s, int64_t steps,
                            const char *prefix);

#endif
