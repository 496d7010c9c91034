/* train/parts.h -- the variables of layers, optimizers and metrics, with their names.
 *
 * Checkpoints (save/) name a variable by the objects that lead to it, not by ch_var_name, which
 * depends on the other variables of a strategy. The names here become part of keys on disk. A
 * name is unique in its object or, for a slot, among the slots that the optimizer has for the
 * variable. It depends on the object only, not on the strategy.
 *
 * A variable that does not exist yet is not visited. A restore can wait for it under the same
 * object and name (strategy/waiting.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_PARTS_H
#define TRAIN_PARTS_H

#include "cohort/layer.h"
#include "cohort/metric.h"
#include "cohort/optimizer.h"

/* Receives a variable and its name, such as "kernel". `of` is the variable that a slot belongs
 * to; NULL: the variable is not a slot. All are borrowed; the name is valid during the call.
 * Returns false to end the visit. */
typedef bool (*ch_part_visit)(void *arg, ch_var *of, const char *name, ch_var *v);

/* Visits the variables of the layer itself, without those of its children, in the order of
 * their creation. */
void ch__layer_visit(const ch_layer *l, ch_part_visit visit, void *arg);
/* Visits the optimizer's own variables ("iterations", "rate", "skipped", "loss_scale",
 * "good_steps"), then the slots of each variable.
 *
 * The slots are those of the rule ("m", "v"), "master" and "average". With accumulation, each
 * list of variables has a "sum" and perhaps a "touched" for every variable, and a counter
 * "pending", which is a slot of the first variable. If a variable is in several lists, the
 * slots of its later lists are named "sum_1", "touched_1", "pending_1" and so on. A master is
 * visited by every optimizer that shares it. */
void ch__optimizer_visit(const ch_optimizer *o, ch_part_visit visit, void *arg);
/* Removes the variables of the optimizer but the first n of ch_optimizer_vars, after a restore
 * that has created them and has failed. */
void ch__optimizer_drop_vars(ch_optimizer *o, int n);
/* Visits the variables of the metric: "state" and, if the metric keeps rows, "filled". */
void ch__metric_visit(const ch_metric *m, ch_part_visit visit, void *arg);

#endif
