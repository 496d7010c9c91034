/* save/save.h -- struct ch_checkpoint, and calls between the files of this module.
 *
 * checkpoint.c adds objects and saves them, restore.c restores them, manager.c decides when to
 * save and which checkpoints to keep.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_SAVE_H
#define SAVE_SAVE_H

#include <stdatomic.h>

#include "save/write.h"
#include "strategy/strategy.h"

/* Times and counts of the saves of a checkpoint, for ch_checkpoint_print_plan and managers. */
typedef struct ch_save_costs {
    int64_t n_saves;     /* saves that have begun */
    int64_t n_skipped;   /* saves that were due while another was being written */
    int64_t n_failed;    /* saves of which an error was reported */
    int64_t blocked_ns;  /* time of the last save, with the wait for the write before */
    int64_t copy_ns;     /* part of it: the copy to staging memory */
    int64_t write_ns;    /* time that the last write took in the background */
    int64_t state_bytes; /* bytes of the last save that are not variables */
    int64_t n_deltas;    /* deltas that were written */
    int64_t delta_bytes; /* of the files of the last delta */
    int64_t full_bytes;  /* of the files of the last full checkpoint; 0: there was none */
} ch_save_costs;

/* Largest number of a save, and of steps and runs that are restored: programs add to them. */
#define CH_SAVED_MAX 99999999999999999 /* 17 digits */

struct ch_checkpoint {
    atomic_int      refs;
    int             n_added, cap_added;
    ch_added       *added;
    int64_t         counter; /* number of saves with a number (CK-2, CK-3) */
    ch_team        *team;    /* copies and reads; NULL until the first use, or one core */
    ch_staging      staging;
    ch_write_memory write_memory;
    ch_save        *save;  /* the last save; NULL: its result was returned */
    ch_wait_limit   limit; /* of waits for saves */
    bool            has_logged_unstaged;
    /* Result of the last restore that the program did not ask for; its values wait. */
    ch_restored  *restored;
    ch_save_costs costs;
};

/* Returns true if the value of a variable is read from a cut of parameter servers. */
static inline bool ch__saved_is_remote(const ch_var *v)
{
    return !ch__var_is_local(v) && !v->per_worker && v->dtype != CH_STR;
}
/* Returns true if the value of a variable is the bytes of its first copy. Otherwise it must be
 * read with ch_var_ops.read. */
static inline bool ch__saved_is_bytes(const ch_var *v)
{
    return ch__var_is_local(v) && !ch__var_is_per_replica(v) && v->dtype != CH_STR;
}

/* Options of a save, besides those of the program. */
typedef struct ch_save_request {
    const char       *prefix;
    int64_t           began_ns; /* when the program called; 0: now */
    int64_t           step;     /* training steps; -1: not known */
    ch_save_committed committed;
    void             *arg; /* of `committed` */
    bool is_prepared;      /* the cut of the parameter servers was prepared (strategy/cut.h) */
    /* For deltas, else NULL. A full save begins the marks. */
    ch_save_marks *marks;
    const char    *base; /* name of the base of a delta; NULL: the save is full */
    uint64_t       base_id;
} ch_save_request;

/* Saves the state. Waits for the write in progress first, and returns its error instead. */
CH_MUST_CHECK ch_status ch__checkpoint_save_at(ch_checkpoint *c, const ch_save_request *request,
                                               const ch_write_options *opt);
/* Returns the error of the last write, once. If the write is in progress, waits for it if
 * `wait` is true, otherwise returns CH_OK. */
CH_MUST_CHECK ch_status ch__checkpoint_collect(ch_checkpoint *c, bool wait);
/* Returns true if a write is in progress. */
bool ch__checkpoint_is_writing(const ch_checkpoint *c);
/* Allocates staging memory for the variables that exist, so that the first save is as fast as
 * the others. staging_bytes is that of ch_write_options. */
CH_MUST_CHECK ch_status ch__checkpoint_prepare(ch_checkpoint *c, int64_t staging_bytes);
/* Is ch_checkpoint_restore. *is_damaged is true if an error means that the files of the
 * checkpoint are damaged, so that an older checkpoint may be better. It is false for errors of
 * the program: other shapes, other data, an error of its ch_state_ops.load. */
CH_MUST_CHECK ch_status ch__checkpoint_restore(ch_checkpoint *c, const char *path,
                                               const ch_restore_options *opt, ch_restored **out,
                                               bool *is_damaged);
/* Returns FAILED_PRECONDITION in a step or a host function. */
CH_MUST_CHECK ch_status ch__checkpoint_check_context(const char *call);
/* Returns the team of the checkpoint, which is created by the first call. NULL: one thread. */
ch_team *ch__checkpoint_team(ch_checkpoint *c);

#endif
