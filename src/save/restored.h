/* save/restored.h -- struct ch_restored: the result of a restore, and the values that wait.
 *
 * restore.c fills it, restored.c answers questions about it. As long as it exists, it is
 * registered in strategy/waiting.h if values are left, and gives them to variables that are
 * created.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_RESTORED_H
#define SAVE_RESTORED_H

#include "save/match.h"
#include "save/save.h"
#include "strategy/waiting.h"

/* The argument of ch_value_source.read: a tensor of the file. */
typedef struct ch_restored_value {
    ch_restored *restored;
    int          entry;
} ch_restored_value;

struct ch_restored {
    atomic_int     refs;
    ch_checkpoint *checkpoint;
    /* The checkpoint is referenced. False: the checkpoint owns this object
     * (ch_checkpoint.restored). */
    bool                owns_checkpoint;
    char               *prefix;
    ch_ckpt            *file;
    ch_restored_value  *value;       /* one for each tensor of the file */
    ch_waiting_restore *pending;     /* NULL: no value waits */
    bool                is_complete; /* the restore has succeeded */
    bool                expects_partial;
    /* The match of the restore. It does not change afterwards, so any thread may read it. Its
     * arrays for nodes and values of the tree are those of the tree at that time. */
    ch_match match;
    int      n_layers;
    struct ch_restored_layer {
        const ch_layer *layer; /* the checkpoint references it */
        int             node;  /* of the graph */
    } * layer;                 /* layers that have a node of the graph */
};

/* Registers the values that are left for variables that are created later. */
CH_MUST_CHECK ch_status ch__restored_wait(ch_restored *r);
/* Returns a source for tensor `entry` of the file. */
ch_value_source ch__restored_source(ch_restored *r, int entry);
/* Returns true for the tensors that describe the checkpoint and belong to no object. */
bool ch__restored_is_internal(const char *name);

#endif
