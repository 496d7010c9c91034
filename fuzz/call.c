/* fuzz/call.c -- arbitrary messages to a parameter server and a worker.
 *
 * The tasks have a few variables and no graphs, steps or data (job/session.h). They decode and
 * check messages of every kind but run almost nothing, so that the target is fast. fuzz/job.c
 * tests sequences of calls, and fuzz/step_plan.c tests steps.
 *
 * covers: src/job/message.c src/job/dispatch.c
 * longest: 64
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
    session_run(data, size, HAS_VARIABLES);
    return 0;
}
