/* save/marks.h -- the marks of changed rows that a manager needs for its deltas.
 *
 * A full save of a manager with deltas begins the marks of all variables that have rows
 * (strategy/changed_rows.h). A delta stores a variable as changed rows if this struct holds the
 * variable, because only then the marks began with the base. Every other variable is stored
 * whole: it was created later, has got another key, or was marked for another manager since.
 *
 * Variables and strategies name the owner of their marks (marks_owner), because a second
 * manager may begin marks of its own. manager.c owns the struct; checkpoint.c and plan.c use
 * it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_MARKS_H
#define SAVE_MARKS_H

#include "save/tree.h"

typedef struct ch_save_marks {
    ch_arena      memory; /* of the values of `marked` */
    ch_map        marked; /* by address of the variable: a private struct */
    int           n_strategies, cap_strategies;
    ch_strategy **strategy; /* with servers that mark rows; referenced */
} ch_save_marks;

/* Makes `m` the owner of the marks on the servers of a strategy. Must be called before a cut
 * that begins these marks. */
CH_MUST_CHECK ch_status ch__save_marks_own(ch_save_marks *m, ch_strategy *st);
/* Begins the marks of the variables of a tree: with a full save, between steps, and after cuts
 * that have begun the marks on servers. A variable for which there is no memory is not held. */
void ch__save_marks_begin(ch_save_marks *m, const ch_tree *t);
/* Returns true if the rows of a variable of the tree have been marked since the last call of
 * ch__save_marks_begin. */
bool ch__save_marks_hold(const ch_save_marks *m, const ch_saved_value *x);
/* Ends all marks and frees the memory. */
void ch__save_marks_end(ch_save_marks *m);

#endif
