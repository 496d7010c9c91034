/* save/plan.h -- the bytes that a save writes: in which file, in which order, and where from.
 *
 * A plan is made from a tree for each save. It divides the values into items of data files. The
 * items of a file are ordered by the source of their bytes (ch_item_from), so that the bytes
 * for which the program waits are written first. Staged items lie in staging memory as they do
 * in the file: staging memory is an image of a part of data file 0.
 *
 * write.c writes the items. A plan borrows its tree, which it needs for names and tensors.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_PLAN_H
#define SAVE_PLAN_H

#include "ckpt/ckpt.h"
#include "save/tree.h"

/* Where the bytes of an item are while it is written. */
typedef enum ch_item_from {
    CH_FROM_VAR, /* in a variable of this process; the program waits until they are written */
    CH_FROM_STAGING, /* in staging memory */
    CH_FROM_TENSOR,  /* in a tensor or text of the tree or the plan */
    CH_FROM_SNAPSHOT /* on a parameter server */
} ch_item_from;

typedef struct ch_item_source {
    ch_item_from from;
    const char  *bytes; /* in the variable, tensor or text; NULL: on a server */
    ch_var      *var;   /* of CH_FROM_SNAPSHOT: the whole variable */
} ch_item_source;

typedef struct ch_save_plan {
    ch_arena        memory; /* of encoded texts and arrays */
    int             n_items, cap_items, cap_sources;
    ch_ckpt_item   *item;
    ch_item_source *source; /* of each item */
    int             n_files;
    int            *first; /* n_files + 1: items first[f] to first[f + 1] - 1 are in file f */
    int64_t        *file_bytes; /* n_files */
    /* Bytes of file 0 that have an image in staging memory. staged_from is a multiple of
     * 4096. */
    int64_t staged_from, staged_bytes;
    int64_t bytes;          /* of all data files */
    int64_t unstaged_bytes; /* of the items that are CH_FROM_VAR */
    int64_t state_bytes;    /* of the items that are CH_FROM_TENSOR */
} ch_save_plan;

/* Plans the values of a tree that was built with state. Reads the values of variables that
 * cannot be copied byte for byte (the aggregate of several copies, strings) into tensors of the
 * tree. At most staging_bytes are staged; 0: all. `step` is the number of training steps; -1:
 * not known. The caller must drop the plan, also on an error. */
CH_MUST_CHECK ch_status ch__save_plan_make(ch_tree *t, int64_t staging_bytes, int64_t step,
                                           ch_save_plan *out);
void                    ch__save_plan_drop(ch_save_plan *p);

/* Returns the offset in staging memory of a staged item. */
static inline int64_t ch__save_plan_staged_at(const ch_save_plan *p, int item)
{
    return p->item[item].offset - p->staged_from;
}

#endif
