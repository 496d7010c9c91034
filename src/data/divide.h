/* data/divide.h -- divides the stages of a dataset among workers; private to src/data/.
 *
 * A division builds a new tree of stages from the old tree. data/distribute.c uses it for
 * ch_dataset_distribute, data/parts.c for the parts of a dataset.
 *
 *     ch_division v = {.n = n_workers, .index = worker};
 *     policy = ch__division_choose(&v, d, CH_SHARD_AUTO, &divided, &why);
 *     rc = ch__divide(&v, d, policy, &divided);
 *     ch__division_free(&v);
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_DIVIDE_H
#define DATA_DIVIDE_H

#include "data/data.h"

typedef struct ch_division ch_division;
/* Returns the rewritten stage as a new reference; NULL on error. */
typedef ch_dataset *(*ch_stage_rewrite)(ch_division *v, ch_dataset *d);

/* The result of rewriting a stage. It is stored, so that a stage with several consumers is
 * rewritten only once. */
typedef struct ch_rewritten_stage {
    ch_stage_rewrite how;
    ch_dataset      *from, *to; /* `to` is referenced */
} ch_rewritten_stage;

struct ch_division {
    int n, index; /* number of workers, and the index of this worker */
    /* Divide by file only if this cannot change the elements that all workers read together. */
    bool                is_strict;
    char                why_not[160]; /* why the data cannot be divided by file; "": it can */
    const char         *remedy;       /* if AUTO became DATA: how to avoid that */
    int                 n_done, cap_done;
    ch_rewritten_stage *done;

    int                n_counted, cap_counted;
    const ch_dataset **counted; /* datasets of file names that were counted already */
};

/* Frees the fields of the division. */
void ch__division_free(ch_division *v);
/* Returns the policy for a requested policy, and the reason in *why. If AUTO becomes FILE, also
 * returns the divided dataset in *divided. */
ch_shard_policy ch__division_choose(ch_division *v, ch_dataset *d, ch_shard_policy requested,
                                    ch_dataset **divided, const char **why);
/* Divides the dataset by a policy other than AUTO, unless ch__division_choose has done so. With
 * DATA and OFF, *divided is the dataset itself. */
ch_status ch__divide(ch_division *v, ch_dataset *d, ch_shard_policy policy,
                     ch_dataset **divided);
/* Rewrites every shard with n = CH_BY_HINT. Returns NULL on error. */
ch_dataset *ch__divide_by_hint(ch_division *v, ch_dataset *d);
/* Creates a copy of the stage with other inputs and another body. Takes ownership of them. */
ch_dataset *ch__division_copy(const ch_division *v, const ch_dataset *d, ch_dataset *const *in,
                              ch_dataset *body);

static inline bool ch__dataset_has_trait(const ch_dataset *d, unsigned trait)
{
    return (d->stage->traits & trait) != 0;
}

#endif
