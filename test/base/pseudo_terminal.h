/* test/base/pseudo_terminal.h -- pseudo-terminals for tests, on systems that have them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_BASE_PSEUDO_TERMINAL_H
#define TEST_BASE_PSEUDO_TERMINAL_H

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* Opens both ends of a pseudo-terminal. Skips the test if the system has none, for example in a
 * root without /dev/pts. */
static inline void t_terminal(int *reader, int *writer)
{
    *reader = posix_openpt(O_RDWR | O_NOCTTY);
    *writer = -1;
    if (*reader >= 0 && grantpt(*reader) == 0 && unlockpt(*reader) == 0)
        *writer = open(ptsname(*reader), O_RDWR | O_NOCTTY);
    if (*writer >= 0)
        return;
    if (*reader >= 0)
        close(*reader);
    skip();
}

#endif
