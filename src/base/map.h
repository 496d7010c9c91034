/* base/map.h -- a hash table of pointers, keyed by one or two numbers or by a name.
 *
 * A table has keys of one kind. It does not copy names: the memory of a name must stay valid as
 * long as the name is in the table. A table is not synchronised.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

typedef struct ch_key {
    uint64_t a, b; /* the numbers; of a name: its hash and its address */
} ch_key;

/* Returns the key of an object that has a single number. */
static inline ch_key ch__key(uint64_t number)
{
    return (ch_key){number, 0};
}

typedef struct ch_map_entry {
    ch_key key;
    void  *value; /* NULL: the entry is free */
} ch_map_entry;

/* Zero-initialise a map before its first use. The map does not own its values. The order of its
 * entries depends on the keys and the order of calls, not on addresses. Loops over all values
 * read entry[0] to entry[cap - 1]. */
typedef struct ch_map {
    int           n, cap; /* used entries; all entries (0 or a power of two) */
    ch_map_entry *entry;
    bool          has_names; /* the keys are names */
} ch_map;

/* Returns the value of a key, or NULL if the key is not in the map. */
void *ch__map_find(const ch_map *m, ch_key key);
/* Adds or replaces the value of a key. `value` must not be NULL. Returns RESOURCE_EXHAUSTED if
 * memory is exhausted. */
ch_status ch__map_set(ch_map *m, ch_key key, void *value);
/* Removes a key. Returns its value, or NULL if the key is not in the map. */
void *ch__map_remove(ch_map *m, ch_key key);
/* The same for names. */
void     *ch__map_find_name(const ch_map *m, const char *name);
ch_status ch__map_set_name(ch_map *m, const char *name, void *value);
void     *ch__map_remove_name(ch_map *m, const char *name);
/* Removes every entry for which should_remove() returns true. should_remove() may free the
 * value. It may be called twice for an entry that stays. */
void ch__map_remove_if(ch_map *m, bool (*should_remove)(void *arg, ch_key key, void *value),
                       void   *arg);
/* Frees the memory of the map, but not the values. The map is empty afterwards. */
void ch__map_drop(ch_map *m);

#endif
