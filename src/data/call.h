/* data/call.h -- runs recorded steps on elements.
 *
 * A step of a pipeline (map, filter, take_while) is recorded when its dataset is made. It runs
 * on elements, in several threads at a time: each run uses its own runner, a program for the
 * shapes of the element with its own memory. Devices are not involved, so a run does not wait
 * for a training step.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_CALL_H
#define DATA_CALL_H

#include "data/data.h"

/* Records `step` on elements of `in`. Sizes that differ between elements become symbols. */
ch_status ch__call_record(const char *name, ch_step_fn step, void *arg, const ch_dataset *in,
                          ch_graph **out);
/* Returns CH_INVALID_ARGUMENT if the graph, which is untrusted, does not accept elements of
 * `in`. */
ch_status ch__call_check(const ch_dataset *d, const ch_graph *g, const ch_dataset *in);
/* Returns the spec of output i. The graph owns the name. */
ch_tensor_spec ch__call_output(const ch_graph *g, int i);
/* Returns true if `d`, the parts of which are the outputs of `g`, has same_rows. */
bool ch__call_same_rows(const ch_dataset *d, const ch_graph *g);
/* Returns true if every output of d->graph has as many rows as its inputs, for any number of
 * rows. */
bool ch__call_keeps_rows(const ch_dataset *d);

typedef struct ch_caller ch_caller;

/* Creates a caller of the graph, which is referenced. */
ch_status ch__caller_new(ch_graph *g, ch_caller **out);
void      ch__caller_free(ch_caller *c); /* NULL is allowed */
/* Runs the graph on the element `in` for the cursor `at`. Random numbers depend on the cursor's
 * stream and epoch, and on `index`, the index of the element. The caller owns *out. Any number
 * of threads may call it at the same time. */
ch_status ch__caller_run(ch_caller *c, const ch_cursor *at, int64_t index, const ch_element *in,
                         ch_element **out);

#endif
