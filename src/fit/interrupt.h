/* fit/interrupt.h -- Ctrl-C during a training.
 *
 * The first Ctrl-C asks the training to stop after its current step. The second ends the
 * process.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_INTERRUPT_H
#define FIT_INTERRUPT_H

#include <stdbool.h>

/* Install and remove the handler of SIGINT. Calls nest, and several threads may call them; a
 * single Ctrl-C is seen by all of them. The handler is installed by the first catch, and the
 * last release restores the previous action. If the process ignores SIGINT, as under nohup, it
 * stays ignored. */
void ch__interrupt_catch(void);
void ch__interrupt_release(void);

/* Returns true if Ctrl-C was pressed since the first ch__interrupt_catch that is not released
 * yet. */
bool ch__interrupted(void);

#endif
