/* graph/limit.h -- the error of a program that needs more memory than its device has.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_LIMIT_H
#define GRAPH_LIMIT_H

#include "graph/program.h"

/* Returns RESOURCE_EXHAUSTED with a message that states the bytes that a run of the program
 * needs on device d, the bytes that the device may have, and the largest values of the program
 * with their lines. `where` names the device, `step` the function. */
ch_status ch__fail_program_memory(const ch_program *p, const ch_device *d, const char *where,
                                  const char *step);

#endif
