/* job/server/values.h -- the variables of a parameter server, and values of them that others have.
 *
 *     rc = ch__values_get(s, number, 0, &t);    // of now; ch_tensor_ref to keep it
 *     ...
 *     rc = ch__values_make_private(s, v);                  // before v->value is written
 *
 *   1. What is given is never changed: who writes to a variable owns its value first, and one in others' hands is left to them
 *      for a copy. So giving a value costs nothing where others release it in time.
 *   2. A pin is a reference to each value of its moment.
 *   3. Pins have rising numbers: releasing one ends all up to it for good, so that the second copy of a call, late, keeps no
 *      memory.
 *   4. Values of a generation stay where they are in memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SERVER_VALUES_H
#define JOB_SERVER_VALUES_H

#include "base/id_map.h"
#include "job/server/init.h"
#include "tensor/buffer_pool.h"
#include "tensor/layout.h"

typedef struct ch_server_var {
    uint64_t   number;
    ch_tensor *value;  /* contiguous, on the stock's device */
    ch_tensor *spare;  /* the value before, for the next copy; NULL: none */
    int        n_idle; /* writes that did not need it */
    char       name[];
} ch_server_var;

/* Zero-initialise one to begin, but for its device. */
typedef struct ch_values {
    ch_device     *device;
    int64_t        most_bytes; /* of a variable that is made here; 0: any number */
    ch_map         variables, snapshots;
    uint64_t       released; /* the largest pin that ever was */
    unsigned       generation;
    ch_buffer_pool pool; /* for rows that are given */
} ch_values;

void ch__values_drop(ch_values *s); /* what others have stays theirs */

/* ---- variables ---- */

/* With a copy of the value, or, where that is NULL, with what `first` says. One that is there under this number and name stays
 * as it is. */
CH_MUST_CHECK ch_status ch__values_add(ch_values *s, uint64_t number, const char *name,
                                       ch_tensor *value, const Cohort__PsInit *first);
CH_MUST_CHECK ch_status ch__values_find(const ch_values *s, uint64_t number,
                                        ch_server_var **out);
/* Pins keep what they have of it. */
void ch__values_remove(ch_values *s, ch_server_var *v);

/* From now until somebody is given its value, that may be written. */
CH_MUST_CHECK ch_status ch__values_make_private(ch_values *s, ch_server_var *v);
/* Copies values to n variables, which exist: to all of them, or to none. If `region` is NULL, values replace whole variables;
 * else value i is copied to region i. Dtypes and shapes are those of the variables or regions. */
CH_MUST_CHECK ch_status ch__values_set(ch_values *s, size_t n, const uint64_t *number,
                                       const ch_region *region, ch_tensor *const *value);

/* ---- reading ---- */

/* The value that a variable has now, or, unless `snapshot` is 0, had when that was set; borrowed. What was made after the pin is as
 * it is. */
CH_MUST_CHECK ch_status ch__values_get(const ch_values *s, uint64_t number, uint64_t snapshot,
                                       ch_tensor **out);
/* Rows of it, by a vector of ids in i64, from anywhere; the caller's. */
CH_MUST_CHECK ch_status ch__values_rows(ch_values *s, uint64_t number, uint64_t snapshot,
                                        const ch_tensor *ids, ch_tensor **out);

/* One that comes after its release, or twice, keeps nothing. */
CH_MUST_CHECK ch_status ch__values_snapshot(ch_values *s, uint64_t snapshot);
void                    ch__values_release(ch_values *s, uint64_t last);

#endif
