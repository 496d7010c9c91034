/* data/call.h -- recorded steps on elements.
 *
 * A step of a pipeline is recorded when its dataset is made. It runs on elements, in several
 * threads at a time: each run takes a runner, that is, a program for the element's shapes with
 * memory of its own. Devices have no part in it, so it does not wait for a training step.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_CALL_H
#define DATA_CALL_H

#include "data/data.h"

/* Records `step` on elements of `in`. Sizes that differ from element to element are symbols. */
ch_status ch__call_record(const char *name, ch_step_fn step, void *arg, const ch_dataset *in,
                          ch_graph **out);
/* INVALID_ARGUMENT where a graph, from anywhere, does not take elements of `in`. */
ch_status ch__call_check(const ch_dataset *d, const ch_graph *g, const ch_dataset *in);
/* What output i looks like; and whether `d`, whose parts the outputs are, has same_rows. */
ch_tensor_spec ch__call_output(const ch_graph *g, int i);
bool           ch__call_same_rows(const ch_dataset *d, const ch_graph *g);
/* For `d` with its graph: all that comes out has as many rows as what goes in, however many. */
bool ch__call_keeps_rows(const ch_dataset *d);

typedef struct ch_caller ch_caller;

ch_status ch__caller_new(ch_graph *g, ch_caller **out);
void      ch__caller_free(ch_caller *c); /* NULL is fine */
/* Runs it for a stage that stands at `at`. Random numbers depend on the cursor's stream and epoch, and on
 * the place. Any number of threads at a time. */
ch_status ch__caller_run(ch_caller *c, const ch_cursor *at, int64_t place, const ch_element *in,
                         ch_element **out);

#endif
