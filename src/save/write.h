/* save/write.h -- a save: its plan, and the background thread that writes it.
 *
 * checkpoint.c fills a ch_save, copies the state, and calls ch__save_start. From then on the
 * background thread owns the fields, until ch__save_is_done returns true. A checkpoint has one
 * save at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_WRITE_H
#define SAVE_WRITE_H

#include "base/fault.h"
#include "save/staging.h"

typedef struct ch_save ch_save;

/* Runs on the background thread after the commit: state file and removal of old checkpoints. */
typedef ch_status (*ch_save_committed)(void *arg, const ch_save *s);

enum { CH_WRITE_THREADS = 4 };

/* Memory of the threads that write. The checkpoint keeps it between saves, as it keeps staging
 * memory. */
typedef struct ch_write_memory {
    struct ch_write_buffers {
        atomic_bool is_taken; /* by a thread that writes a file */
        char       *buffer;   /* CH_CKPT_BUFFER_BYTES; NULL: not allocated yet */
        char       *window;   /* `capacity` bytes, for parts of variables on servers */
        int64_t     capacity;
    } of[CH_WRITE_THREADS];
} ch_write_memory;

void ch__write_memory_drop(ch_write_memory *m);

/* A limit of the time that a program waits for writes. It may begin during a wait. */
typedef struct ch_wait_limit {
    int64_t (*until)(
        void *arg); /* a time of ch__now_ns; INT64_MAX: no limit now; NULL: never */
    void *arg;
} ch_wait_limit;

struct ch_save {
    char             *prefix; /* owned */
    bool              sync;
    bool              replace; /* removes the checkpoint at the prefix before the commit */
    ch_tree           tree;
    ch_save_plan      plan;
    const ch_staging *staging; /* borrowed from the checkpoint */
    ch_write_memory  *memory;  /* the same */
    ch_wait_limit     limit;
    int               n_cuts;
    /* A snapshot of each strategy with parameter servers. The array is owned; the checkpoint
     * references variables of the strategies. */
    ch_save_cut      *cut;
    ch_save_committed committed; /* may be NULL */
    void             *arg;       /* of `committed` */

    ch_ckpt_writer *writer; /* NULL: not writing */

    ch_thread   *thread;
    ch_gate      gate;         /* opens when the next three fields change */
    atomic_llong written;      /* bytes given to the file system */
    atomic_bool  is_past_vars; /* variables are not read any more: the program may go on */
    atomic_bool  is_done;      /* everything is on disk, or has failed */
    atomic_bool  is_abandoned; /* the write must fail at its next bytes, or before the commit */
    ch_fault     fault;        /* first error */
    int64_t      bytes;        /* of all files; 0: not committed */
    int64_t      began_ns, ended_ns;
};

/* Starts the background thread, and blocks until it no longer reads variables (CH_FROM_VAR).
 * On an error nothing was started. If the wait reaches its limit, the save is abandoned, and
 * may still read variables. */
CH_MUST_CHECK ch_status ch__save_start(ch_save *s);
/* Returns true if the write has ended. */
bool ch__save_is_done(ch_save *s);
/* Blocks until the write has ended. Returns its error. DEADLINE_EXCEEDED: no byte was written
 * for COHORT_WAIT_LIMIT_MS, or the limit of the save is over; the write is still in progress.
 */
CH_MUST_CHECK ch_status ch__save_wait(ch_save *s);
/* Blocks until the write has ended, at most until `until`, a time of ch__now_ns. */
void ch__save_wait_until(ch_save *s, int64_t until);
/* Waits for the end of the thread without a limit, and frees the save. s may be NULL. */
void ch__save_free(ch_save *s);

#endif
