/* fuzz/call.c -- what a parameter server and a worker make of any message.
 *
 * Every kind of message is decoded and checked against tasks that have a few variables and nothing else (job/session.h), so hardly
 * anything is run: for very many inputs. fuzz/job.c is for what comes of calls that follow each other, fuzz/step_plan.c for steps.
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
