/* base/by_name.h -- a hash table of pointers, keyed by name.
 *
 * The table does not copy names. The memory of a name must stay valid as long as the name is in
 * the table. Zero-initialise a table before its first use. An empty table holds no memory. A
 * table is not synchronised.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_BY_NAME_H
#define BASE_BY_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ch_by_name {
    struct ch_by_name_bucket *bucket; /* `cap` buckets; NULL if cap is 0 */
    size_t                    n, cap; /* used buckets; all buckets (0 or a power of 2) */
} ch_by_name;

/* Returns the value of a name, or NULL if the name is not in the table. */
void *ch__by_name_get(const ch_by_name *t, const char *name);
/* Returns the value in bucket i, where i < t->cap, or NULL if the bucket is free. For loops
 * over all values; their order is unspecified. */
void *ch__by_name_at(const ch_by_name *t, size_t i);
/* Adds a name that is not in the table yet. `value` must not be NULL. Returns false if memory
 * is exhausted; the table is unchanged then. */
bool ch__by_name_put(ch_by_name *t, const char *name, void *value);
/* Removes a name, which must be in the table. */
void ch__by_name_remove(ch_by_name *t, const char *name);
/* Removes all names and frees the table's memory. The values are not freed. */
void ch__by_name_drop(ch_by_name *t);

/* Returns the FNV-1a hash of a name. */
uint64_t ch__name_fnv(const char *name);

#endif
