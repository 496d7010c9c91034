/* fit/interrupt.h -- signals that stop, end or save a training.
 *
 * A signal only counts: the training looks at the count between steps.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_INTERRUPT_H
#define FIT_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ch_interrupt {
    CH_INTERRUPT_STOP,      /* SIGINT, Ctrl-C: stop after the current step */
    CH_INTERRUPT_TERMINATE, /* SIGTERM: save, and end with an error */
    CH_INTERRUPT_SAVE,      /* SIGUSR1: save, and go on */
    CH_INTERRUPTS
} ch_interrupt;

/* Install and remove the handler of the signal. Calls nest, and several threads may call them;
 * a single signal is seen by all of them. The handler is installed by the first catch, and the
 * last release restores the previous action. If the process ignores the signal, as SIGINT under
 * nohup, it stays ignored.
 *
 * The second SIGINT, and the second SIGTERM, ends the process. The handler of the program is
 * called after ours for SIGTERM and SIGUSR1, and not called for SIGINT. */
void ch__interrupt_catch(ch_interrupt which);
/* Returns the number of signals until the handler was removed, or until now. */
int ch__interrupt_release(ch_interrupt which);

/* Returns the number of signals since the first ch__interrupt_catch that is not released yet.
 * */
int ch__interrupts(ch_interrupt which);
/* Returns the time of the first of them, of ch__now_ns; 0: there is none. */
int64_t ch__interrupt_ns(ch_interrupt which);
/* Returns true if Ctrl-C was pressed. */
static inline bool ch__interrupted(void)
{
    return ch__interrupts(CH_INTERRUPT_STOP) > 0;
}

#endif
