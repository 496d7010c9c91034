/* fuzz/job/session.h -- a server and a worker, for one input.
 *
 * An input says what they have to begin with, and is then a list of calls to them (job/calls.h). However odd, a call is answered or refused,
 * memory stays within bounds, and nothing is left of it, also if memory is short meanwhile.
 *
 * Tasks begin anew with each input, so that one alone shows again what it found, and calls go straight to them (job/net.h). What
 * they have is told them before the first call that may use it: to decode it for every input would take most of the time. What is
 * accepted of turned graphs and datasets is not run: how long they take is not for a decoder to say.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_JOB_SESSION_H
#define FUZZ_JOB_SESSION_H

#include "fuzz.h"

/* What they can have: variables, graphs over those, steps, data. */
enum { HAS_VARIABLES = 1, HAS_GRAPHS = 2, HAS_FUNCTIONS = 4, HAS_STREAMS = 8, HAS_ALL = 15 };

void session_init(void); /* once */
void session_run(const uint8_t *data, size_t size, unsigned may_have);

#endif
