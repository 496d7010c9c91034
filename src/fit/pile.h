/* fit/pile.h -- bytes that pile up until they are written to a file.
 *
 * That there was no memory sticks, and shows when they are written. Zero-initialise one to
 * begin.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_PILE_H
#define FIT_PILE_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/status.h"

typedef struct ch_pile {
    char *at;
    int   n, capacity;
    bool  has_failed;
} ch_pile;

/* Room for n bytes more, which now belong to it; NULL: no memory. */
char *ch__pile_room(ch_pile *p, size_t n);
void  ch__pile_add(ch_pile *p, const void *data, size_t n);
void  ch__pile_text(ch_pile *p, const char *text);
void  ch__pile_drop(ch_pile *p);

/* Writes all of it to an open file, of which `path` is the name, and empties it. */
CH_MUST_CHECK ch_status ch__pile_write(ch_pile *p, int fd, const char *path);
/* Adds all of a file. */
CH_MUST_CHECK ch_status ch__pile_read(ch_pile *p, int fd, const char *path);

#endif
