/* base/id_map.h -- what has a number: a table of pointers by two numbers.   SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_ID_MAP_H
#define BASE_ID_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

typedef struct ch_key {
    uint64_t a, b;
} ch_key;

/* Of a thing with one number the second is 0. */
static inline ch_key ch__key(uint64_t number)
{
    return (ch_key){number, 0};
}

typedef struct ch_map_entry {
    ch_key key;
    void  *value; /* NULL: free */
} ch_map_entry;

/* Zero-initialise one to begin. The order of entries depends on the keys alone. */
typedef struct ch_map {
    int           n, cap; /* cap is 0 or a power of two */
    ch_map_entry *entry;
} ch_map;

void *ch__map_find(const ch_map *m, ch_key key); /* NULL: not there */
/* `value` is not NULL; one that is there is replaced. */
ch_status ch__map_set(ch_map *m, ch_key key, void *value);
/* Takes it out and returns it; NULL: not there. */
void *ch__map_remove(ch_map *m, ch_key key);
/* Takes all out that `when` is true of, which may free it; of what stays it may be asked twice. */
void ch__map_sift(ch_map *m, bool (*when)(void *arg, ch_key key, void *value), void *arg);
void ch__map_drop(ch_map *m); /* not what it points to */

#endif
