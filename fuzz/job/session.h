/* fuzz/job/session.h -- a server and a worker, which run the calls of an input.
 *
 * The first byte of an input selects the objects that the tasks have. The rest is a list of
 * calls (job/calls.h). Every call must end with a reply or an error. Memory must stay within
 * limits and must not leak, even if allocations fail.
 *
 * The tasks start again for each input, so that a single input reproduces a failure. Calls are
 * delivered without threads (job/net.h). Objects are created before the first call that may use
 * them, because creating all objects for every input would take most of the time. Graphs and
 * datasets with flipped bits are decoded but not run, because they could run for any time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_JOB_SESSION_H
#define FUZZ_JOB_SESSION_H

#include "fuzz.h"

/* Objects of the tasks: variables, graphs that update them, step functions, datasets. */
enum { HAS_VARIABLES = 1, HAS_GRAPHS = 2, HAS_FUNCTIONS = 4, HAS_STREAMS = 8, HAS_ALL = 15 };

void session_init(void); /* must be called first */
void session_run(const uint8_t *data, size_t size, unsigned may_have);

#endif
