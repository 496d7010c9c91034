/* save/plan.h -- the bytes that a save writes: in which file, in which order, and where from.
 *
 * A plan is made from a tree for each save. It divides the values into items of data files. The
 * items of a file are ordered by the source of their bytes (ch_item_from), so that the bytes
 * for which the program waits are written first. Staged items lie in staging memory as they do
 * in the file: staging memory is an image of a part of data file 0.
 *
 * A plan is made in two parts. ch__save_plan_make runs between steps, and plans the values of
 * this process. ch__save_plan_finish runs in the background: in a delta it asks the servers for
 * the changed rows. The second part does not move the items that are staged.
 *
 * In a delta, a variable whose rows are marked is stored as the rows that have changed since
 * the base, if that takes fewer bytes than the whole variable (ckpt/ckpt.h).
 *
 * write.c writes the items. A plan borrows its tree, which it needs for names and tensors.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_PLAN_H
#define SAVE_PLAN_H

#include "ckpt/ckpt.h"
#include "save/marks.h"
#include "save/tree.h"
#include "strategy/cut.h"

/* Where the bytes of an item are while it is written. */
typedef enum ch_item_from {
    CH_FROM_VAR, /* in a variable or other memory of the program, which waits for the write */
    CH_FROM_STAGING, /* in staging memory */
    CH_FROM_TENSOR,  /* in a tensor or text of the tree or the plan */
    CH_FROM_IDS,     /* ids of changed rows, in a list of the plan */
    CH_FROM_SNAPSHOT /* on a parameter server */
} ch_item_from;

typedef struct ch_item_source {
    ch_item_from from;
    const char  *bytes; /* in the variable, tensor, text or memory; NULL: on a server */
    ch_var      *var;   /* of CH_FROM_SNAPSHOT: the whole variable; with `rows` the shard */
    /* Rows of the variable or shard that the item consists of, one for each row of the item;
     * NULL: the item is a region. `bytes` is then the first row of the variable. */
    const int64_t *rows;
} ch_item_source;

/* A variable on parameter servers. */
typedef struct ch_plan_remote {
    const char *key;
    ch_var     *var;
    bool        has_marks; /* the rows that have changed since the base are known */
} ch_plan_remote;

/* A snapshot of the servers of a strategy. */
typedef struct ch_save_cut {
    ch_strategy *strategy; /* borrowed */
    ch_cut      *cut;      /* owned; NULL: not taken yet */
} ch_save_cut;

typedef struct ch_save_plan {
    ch_arena         memory;   /* of encoded texts and arrays */
    ch_ckpt_metadata metadata; /* with a base: the plan is that of a delta */
    int              n_items, cap_items, cap_sources;
    ch_ckpt_item    *item;
    ch_item_source  *source; /* of each item */
    int              n_remotes, cap_remotes;
    ch_plan_remote  *remote; /* variables of which ch__save_plan_finish makes items */
    int              n_ids, cap_ids;
    int64_t        **ids; /* lists of ids of rows; owned */
    int              n_files;
    int             *first; /* n_files + 1: items first[f] to first[f + 1] - 1 are in file f */
    int64_t         *file_bytes; /* n_files */
    /* Bytes of file 0 that have an image in staging memory. staged_from is a multiple of
     * 4096. */
    int64_t staged_from, staged_bytes;
    int64_t bytes;          /* of all data files */
    int64_t unstaged_bytes; /* of the items that are CH_FROM_VAR */
    int64_t state_bytes;    /* of the items that are not variables, without the metadata */
} ch_save_plan;

typedef struct ch_save_plan_options {
    int64_t              staging_bytes; /* that are staged at most; 0: all */
    int64_t              step;          /* training steps; -1: not known */
    const char          *base; /* of a delta: the name of its base; NULL: the save is full */
    uint64_t             base_id;
    const ch_save_marks *marks; /* of a delta */
} ch_save_plan_options;

/* Plans the values of this process, of a tree that was built with state. Reads the values of
 * variables that cannot be copied byte for byte (the aggregate of several copies, strings) into
 * tensors of the tree. Must be called between steps. The caller must drop the plan, also on an
 * error. */
CH_MUST_CHECK ch_status ch__save_plan_make(ch_tree *t, const ch_save_plan_options *opt,
                                           ch_save_plan *out);
/* Plans the variables on servers, and the metadata. The cuts must be those of all strategies of
 * these variables. */
CH_MUST_CHECK ch_status ch__save_plan_finish(ch_save_plan *p, int n_cuts,
                                             const ch_save_cut *cut);
void                    ch__save_plan_drop(ch_save_plan *p);
/* Computes the bytes that a full save of a tree writes to data files, without the values that
 * are not variables. */
CH_MUST_CHECK ch_status ch__save_plan_estimate(const ch_tree *t, int64_t *bytes);

/* Copies bytes [from, from + n) of an item whose source is a variable of this process. */
void ch__save_plan_copy(const ch_save_plan *p, int item, int64_t from, int64_t n, char *to);
/* Lists the strategies that have variables of a tree on parameter servers, without snapshots.
 * *n_cuts must be 0 and *cut NULL. The caller must free *cut, on an error too. */
CH_MUST_CHECK ch_status ch__save_list_cuts(const ch_tree *t, int *n_cuts, ch_save_cut **cut);
/* Returns the snapshot of the strategy of a variable on servers. */
const ch_cut *ch__save_cut_of(int n_cuts, const ch_save_cut *cut, const ch_var *v);

/* Returns the offset in staging memory of a staged item. */
static inline int64_t ch__save_plan_staged_at(const ch_save_plan *p, int item)
{
    return p->item[item].offset - p->staged_from;
}

#endif
