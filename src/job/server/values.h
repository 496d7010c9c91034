/* job/server/values.h -- the variables of a parameter server and their snapshots.
 *
 *     rc = ch__values_get(s, number, 0, &t);  // the current value; ch_tensor_ref to keep it
 *     ...
 *     rc = ch__values_make_private(s, v);     // must precede a write to v->value
 *
 * Invariants:
 *   1. Copy on write. A tensor that was returned is never changed. Before a write, if another
 *      reference to the value exists, the variable switches to a private copy. So a read copies
 *      nothing, and a write copies only while a reader still holds the value.
 *   2. A snapshot is a reference to the value of each variable at its moment.
 *   3. Snapshot numbers rise. Releasing a snapshot releases all up to its number for good, so a
 *      late duplicate of the call that took it keeps no memory.
 *   4. While `generation` stays the same, the memory of all values and marks stays at the same
 *      addresses. Programs that were planned for a generation may keep the pointers.
 *   5. While a variable has marks, every row is marked that has changed since they were made. A
 *      variable without marks may have changed in any row. So losing marks is always safe.
 *
 * Only state.c uses this module. One thread at a time may use a ch_values.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SERVER_VALUES_H
#define JOB_SERVER_VALUES_H

#include "base/map.h"
#include "job/server/init.h"
#include "tensor/buffer_pool.h"
#include "tensor/layout.h"
#include "tensor/row_marks.h"

enum { CH_SPARES = 2 };

/* A variable, or a shard of one. */
typedef struct ch_server_var {
    uint64_t   number;
    ch_tensor *value; /* contiguous, on the server's device */
    /* Memory for the next copies, such as the previous value. The second is used only while
     * spares are kept. */
    struct {
        ch_tensor *tensor;    /* NULL: none */
        int64_t    n_touched; /* bytes that were written before, from the first on */
    } spare[CH_SPARES];
    int n_idle; /* writes in a row that did not need a spare */
    /* Rows that have changed since a snapshot began the marks. NULL: rows are not marked. */
    ch_row_marks *marks;
    char          name[];
} ch_server_var;

/* To begin, set `device` and `max_init_bytes`, and zero the rest. */
typedef struct ch_values {
    ch_device     *device;         /* borrowed */
    int64_t        max_init_bytes; /* limit of a variable that is computed here; 0: none */
    ch_map         variables, snapshots; /* ch_server_var; references to values. By number */
    uint64_t       released;             /* number of the last snapshot that was released */
    unsigned       generation;           /* see invariant 4 */
    ch_buffer_pool pool;                 /* memory of the rows that are returned */
    bool           keeps_spares;         /* see ch__values_reserve */
} ch_values;

/* Frees all variables and snapshots. Tensors that were returned stay valid. */
void ch__values_drop(ch_values *s);

/* ---- variables ---- */

/* Adds a variable with a copy of `value`, or, if that is NULL, with the value that `init`
 * describes. A variable that exists under this number and name stays as it is. ALREADY_EXISTS
 * if it has another name. */
CH_MUST_CHECK ch_status ch__values_add(ch_values *s, uint64_t number, const char *name,
                                       ch_tensor *value, const Cohort__PsInit *init);
/* Finds a variable, which stays owned by `s`. NOT_FOUND if it does not exist. */
CH_MUST_CHECK ch_status ch__values_find(const ch_values *s, uint64_t number,
                                        ch_server_var **out);
/* Removes a variable. Snapshots keep their references to its values. */
void ch__values_remove(ch_values *s, ch_server_var *v);

/* Makes v->value writable (copy on write), until the value is next returned to a reader. */
CH_MUST_CHECK ch_status ch__values_make_private(ch_values *s, ch_server_var *v);
/* Copies values to n variables, which must exist: to all of them, or on an error to none. If
 * `region` is NULL, values replace whole variables. Otherwise value i is copied to region i.
 * The caller must have checked dtypes and shapes. */
CH_MUST_CHECK ch_status ch__values_set(ch_values *s, size_t n, const uint64_t *number,
                                       const ch_region *region, ch_tensor *const *value);

/* ---- reading ---- */

/* Gives the value of a variable in a snapshot, or if `snapshot` is 0, its current value;
 * borrowed. A variable that was created after the snapshot has its current value. NOT_FOUND if
 * the variable or the snapshot does not exist. */
CH_MUST_CHECK ch_status ch__values_get(const ch_values *s, uint64_t number, uint64_t snapshot,
                                       ch_tensor **out);
/* Copies rows of such a value to a new tensor, which the caller must unref. `ids` is untrusted:
 * INVALID_ARGUMENT unless it is a vector of i64 in range. */
CH_MUST_CHECK ch_status ch__values_rows(ch_values *s, uint64_t number, uint64_t snapshot,
                                        const ch_tensor *ids, ch_tensor **out);

/* Copies the marks of a variable in a snapshot, or if `snapshot` is 0, its current marks, to a
 * new vector of u8 (PsRead.marks), which the caller must unref. */
CH_MUST_CHECK ch_status ch__values_marks(const ch_values *s, uint64_t number, uint64_t snapshot,
                                         ch_tensor **out);

/* Takes a snapshot, which keeps the marks too. If begin_marks is true, no row is marked
 * afterwards, and writes mark their rows. Does nothing if the snapshot exists or was released.
 * On an error nothing changes. */
CH_MUST_CHECK ch_status ch__values_snapshot(ch_values *s, uint64_t snapshot, bool begin_marks);
/* Releases all snapshots up to number `last`, except the n snapshots `kept`. */
void ch__values_release(ch_values *s, uint64_t last, size_t n, const uint64_t *kept);
/* Ends marking. Snapshots keep their marks. */
void ch__values_end_marks(ch_values *s);

/* ---- memory for copies ---- */

/* Prepares for snapshots that are kept for long. Allocates spares of all variables, and writes
 * to at most `most` bytes of them, so that the first write after a snapshot costs only a copy.
 * Stores the number of bytes that were not written yet in *left; the caller must call again
 * until that is 0. From the first call on, spares are not freed, and a variable has two of them
 * if the current values are shared already, as in rounds of CH_SYNCHRONOUS. */
CH_MUST_CHECK ch_status ch__values_reserve(ch_values *s, int64_t most, int64_t *left);
/* Frees all spares. From now on a variable has at most one, and only while it is in use. */
void ch__values_unreserve(ch_values *s);

#endif
