/* fit/interrupt.h -- Ctrl-C while a model is trained: once means finish the step, twice means
 * now.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_INTERRUPT_H
#define FIT_INTERRUPT_H

#include <stdbool.h>

/* Between these SIGINT is ours; what was there before is there again after the last of them.
 * They nest, and several threads may be between them: one Ctrl-C is for all. A SIGINT that the
 * process ignores, as under nohup, stays ignored. */
void ch__interrupt_catch(void);
void ch__interrupt_release(void);

/* Whether Ctrl-C was pressed since the first of them began. */
bool ch__interrupted(void);

#endif
