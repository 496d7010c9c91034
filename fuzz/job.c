/* fuzz/job.c -- arbitrary sequences of calls to a parameter server and a worker.
 *
 * The tasks have variables, graphs, steps and data, and run steps (job/session.h). fuzz/call.c
 * is faster, but runs nothing.
 *
 * covers: src/job/server/init.c src/job/server/server.c src/job/server/state.c src/job/server/steps.c src/job/server/values.c src/job/worker/worker.c src/job/worker/run.c src/job/worker/per_worker.c src/net/retry.c
 * longest: 120
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/session.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    session_init();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    session_run(data, size, HAS_ALL);
    return 0;
}
