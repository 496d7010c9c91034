/* base/by_name.h -- things that are found by their names.
 *
 * A name stays its owner's memory, and is there as long as it is in the table. Zero-initialise
 * a table to begin; one that is empty holds no memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_BY_NAME_H
#define BASE_BY_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ch_by_name {
    struct ch_by_name_place *place; /* `cap` of them, a power of 2 */
    size_t                   n, cap;
} ch_by_name;

/* What a name stands for; NULL if it is not there. */
void *ch__by_name_get(const ch_by_name *t, const char *name);
/* What is at place i, below t->cap; NULL: nothing. For walks over all of them, in no order. */
void *ch__by_name_at(const ch_by_name *t, size_t i);
/* Adds one that is not there, for a thing that is not NULL. False: out of memory. */
bool ch__by_name_put(ch_by_name *t, const char *name, void *what);
/* Takes one out that is there. */
void ch__by_name_remove(ch_by_name *t, const char *name);
void ch__by_name_drop(ch_by_name *t); /* all of them */

/* FNV-1a. */
uint64_t ch__name_fnv(const char *name);

#endif
