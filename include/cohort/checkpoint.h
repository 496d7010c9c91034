/* cohort/checkpoint.h -- checkpoints: the state of a training on disk.
 *
 * A checkpoint object lists what belongs to a training: models, optimizers, iterators, metrics
 * and the program's own state. It writes their values to files and restores them, in another
 * process, under another strategy, or with another number of replicas, servers or shards.
 *
 *     ch_checkpoint *c = NULL;
 *     ch_checkpoint_manager *m = NULL;
 *     rc = ch_checkpoint_new(&c);
 *     rc = ch_checkpoint_add_model(c, "model", model);
 *     rc = ch_checkpoint_add_optimizer(c, "optimizer", optimizer);
 *     rc = ch_checkpoint_add_iterator(c, "data", it);
 *     rc = ch_checkpoint_manager_new(c, "run", &(ch_manager_options){.max_to_keep = 3}, &m);
 *     rc = ch_checkpoint_manager_restore(m, NULL, NULL);       // the newest, if there is any
 *     ...
 *     rc = ch_checkpoint_manager_save(m, false, NULL);         // run/ckpt-1, run/ckpt-2, ...
 *
 * A program that trains with ch_fit needs none of this: ch_callback_backup (cohort/callback.h)
 * saves the training and continues it.
 *
 *   - Files: a checkpoint "run/ckpt-7" is the index "run/ckpt-7.index" and its data files. The
 *     index is written last: without it there is no checkpoint. The format is TensorFlow's
 *     (doc/checkpoint-format.md).
 *   - Keys are made of the names that are given here and of the names of layers and weights,
 *     never of ch_var_name. A distributed variable is a single tensor, under the key that an
 *     ordinary variable has.
 *   - Saving copies the state to memory between two steps, and writes it in the background. An
 *     error of a background write is returned by the next call of this header on the same
 *     checkpoint, once.
 *   - Restoring compares names, shapes, dtypes and checksums first, and changes values only if
 *     everything is right. A value whose variable does not exist yet waits until the program
 *     creates the variable.
 *   - Ownership: checkpoints are reference counted. A checkpoint references the objects that
 *     were added to it, and a manager references its checkpoint.
 *   - Threads: the functions of a checkpoint and of its manager must be called by one thread at
 *     a time, outside steps. Saving and restoring need all runs of the added objects to be
 *     over, except runs of parameter servers, which the library holds back itself. Both may be
 *     called inside or outside a scope.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_CHECKPOINT_H
#define COHORT_CHECKPOINT_H

#include "cohort/coordinator.h"
#include "cohort/function.h"
#include "cohort/iterator.h"
#include "cohort/metric.h"
#include "cohort/model.h"
#include "cohort/optimizer.h"

typedef struct ch_checkpoint ch_checkpoint;

/* ---- what belongs to a checkpoint ---- */

CH_API CH_MUST_CHECK ch_status ch_checkpoint_new(ch_checkpoint **out);
CH_API ch_checkpoint          *ch_checkpoint_ref(ch_checkpoint *c);
/* The last reference waits until a write in the background has ended. NULL is fine. */
CH_API void ch_checkpoint_unref(ch_checkpoint *c);

/* These functions add an object under a name and reference the object. The name is an edge of
 * the object graph: it may contain any character, also "/". INVALID_ARGUMENT: the name is in
 * use, empty, or "save_counter". */

/* Adds the variables of a model. Keys are "<name>/<layer>/.../<weight>". Layers that are built
 * later are found when the checkpoint is saved. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_add_model(ch_checkpoint *c, const char *name,
                                                       ch_model *m);
/* Adds the state of an optimizer: iterations, rate, loss scale and the slots of each variable.
 * A slot is saved if its variable is part of the checkpoint; its key begins with the key of the
 * variable. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_add_optimizer(ch_checkpoint *c, const char *name,
                                                           ch_optimizer *o);
CH_API CH_MUST_CHECK ch_status ch_checkpoint_add_metric(ch_checkpoint *c, const char *name,
                                                        ch_metric *x);
CH_API CH_MUST_CHECK ch_status ch_checkpoint_add_var(ch_checkpoint *c, const char *name,
                                                     ch_var *v);
/* Adds the number of runs of a function (ch_function_runs), which its random numbers depend
 * on. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_add_function(ch_checkpoint *c, const char *name,
                                                          ch_function *f);
/* Adds the position of an iterator. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_add_iterator(ch_checkpoint *c, const char *name,
                                                          ch_iterator *it);
/* Adds the passes over a per-worker dataset (cohort/coordinator.h) and their positions. A pass
 * that was saved is continued by any number of workers, each example once. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_add_per_worker(ch_checkpoint *c, const char *name,
                                                            ch_per_worker *p);
/* The state of a program's own object, as a tuple of tensors. Either function may be NULL. */
typedef struct ch_state_ops {
    /* Stores a new tuple in *out. Its leaves have different names, or none if there is one
     * leaf. The caller unrefs it. A tensor may be over the program's memory (ch_tensor_wrap):
     * the save copies it before it returns. */
    ch_status (*save)(void *self, ch_tuple **out);
    /* Takes over the saved state. `state` is borrowed. Called after all variables are set. */
    ch_status (*load)(void *self, ch_tuple *state);
} ch_state_ops;
/* Adds state that the library does not know. `ops` and `self` are borrowed as long as the
 * checkpoint exists. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_add_state(ch_checkpoint *c, const char *name,
                                                       const ch_state_ops *ops, void *self);

/* ---- saving ---- */

typedef struct ch_write_options {
    bool wait; /* return when everything is on disk; false: when the state has been copied */
    /* Limit of the memory for the copy, in bytes; 0: the size of the state. If the state is
     * larger, the rest is written while the program waits. A manager also limits its restores
     * with it (ch_restore_options.staging_bytes). */
    int64_t staging_bytes;
    int     sync;    /* 0: fsync the files; CH_OFF: leave that to the system */
    bool    replace; /* an existing checkpoint is replaced; false: it is ALREADY_EXISTS */
} ch_write_options;

/* Saves the state at `prefix`, and creates the folders of this path that do not exist. `opt`
 * may be NULL. If a write is in progress, waits for it first, and returns its error instead of
 * saving.
 *
 * With `replace`, the new files are complete before the old index is removed, and that comes
 * before the first data file is replaced. So a full disk costs only the new checkpoint. A crash
 * may leave no checkpoint at `prefix`, never a mixture. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_write(ch_checkpoint *c, const char *prefix,
                                                   const ch_write_options *opt);
/* Saves the state at "<prefix>-<n>", and makes it the newest of its directory. n counts the
 * calls from 1, and continues after a restore. Writes the path to `path`, which may be NULL; a
 * path that does not fit `size` is INVALID_ARGUMENT.
 *
 * ch_checkpoint_write and ch_checkpoint_save do not look at the lock of a directory, which only
 * managers use. Two programs must not save under the same name at the same time. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_save(ch_checkpoint *c, const char *prefix,
                                                  const ch_write_options *opt, char *path,
                                                  size_t size);
/* Blocks until everything is on disk. Returns the first error of the writes since the last call
 * that returned one. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_wait(ch_checkpoint *c);
/* Prints what a save costs, as snprintf does:
 *   - the memory that it holds, here and at most on the servers;
 *   - the bytes of the values by kind, and those of the files of the last full save and the
 *     last delta. Before the first save it prints the least that the data files need for
 *     variables;
 *   - the time that the last save blocked the program, also to wait for the write before it,
 *     and the time of its write in the background. */
CH_API int ch_checkpoint_print_plan(ch_checkpoint *c, char *text, size_t size);

/* ---- restoring ---- */

/* The result of a restore: what matched, and what waits for variables that do not exist yet. */
typedef struct ch_restored ch_restored;

typedef struct ch_restore_options {
    bool partial; /* as ch_restored_expect_partial */
    /* Limit of the memory that holds values of this process between the check of the data and
     * the change of the variables, in bytes; 0: the size of the state. Values that do not fit
     * are read twice: to verify them, and to change their variables. */
    int64_t staging_bytes;
} ch_restore_options;

/* Restores the values of all objects of the checkpoint. `path` is a prefix ("run/ckpt-7"), or a
 * directory for the newest checkpoint in it. `opt` may be NULL. Values wait for variables that
 * do not exist yet until the result is freed. `out` may be NULL: then the checkpoint keeps the
 * result until its next restore without `out`, or until it is freed.
 *
 * On an error nothing has changed, with three exceptions:
 *   - ch_state_ops.load of the program has failed. It is called last, when all else is
 *     restored.
 *   - A parameter server is lost.
 *   - There was no memory for a copy of a value (staging_bytes), or for the old values on a
 *     server, and the second read of a value failed. It is verified again in that read.
 *     Variables that were set before the error keep their new values; restore again before you
 *     use them.
 *
 * Servers hold the old values during a restore, in the memory that saves use. NOT_FOUND: there
 * is no such checkpoint. INVALID_ARGUMENT: a value has another shape or dtype than its
 * variable. DATA_LOSS: a file is damaged; the message names the file and the byte. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_restore(ch_checkpoint *c, const char *path,
                                                     const ch_restore_options *opt,
                                                     ch_restored             **out);
CH_API ch_restored            *ch_restored_ref(ch_restored *r);
/* With the last reference, values that wait are dropped. If values were not used and
 * ch_restored_expect_partial was not called, the log lists them. NULL is fine. */
CH_API void ch_restored_unref(ch_restored *r);

/* Each of these functions returns FAILED_PRECONDITION, with the names and the nearest matches,
 * if its condition does not hold. */

/* Every variable that exists has a value in the checkpoint, and every value of the checkpoint
 * was used. */
CH_API CH_MUST_CHECK ch_status ch_restored_assert_consumed(ch_restored *r);
/* Every variable that exists has a value in the checkpoint. */
CH_API CH_MUST_CHECK ch_status ch_restored_assert_existing(ch_restored *r);
/* A value other than the counter of saves matched. */
CH_API CH_MUST_CHECK ch_status ch_restored_assert_nontrivial(ch_restored *r);
/* Says that values which are not used are expected, so that they are not logged. Returns r. */
CH_API ch_restored *ch_restored_expect_partial(ch_restored *r);
/* Prints what matched, what is missing and what is left over, as snprintf does. */
CH_API int ch_restored_print(ch_restored *r, char *text, size_t size);

/* ---- managers ---- */

/* A manager numbers the checkpoints of a directory, saves when a save is due, and removes old
 * ones. It locks the directory. */
typedef struct ch_checkpoint_manager ch_checkpoint_manager;

typedef struct ch_manager_options {
    /* Of the checkpoints; NULL: "ckpt". At most 150 bytes, without "/" and without "." at the
     * beginning. */
    const char *name;
    /* Number of newest checkpoints that stay; 0: all. A full checkpoint that one of them needs
     * (full_every) stays beside them. Damaged checkpoints do not count: their index cannot be
     * read, or a restore of this manager has skipped them. They are removed when max_to_keep
     * newer ones are there. */
    int    max_to_keep;
    double keep_every_hours; /* keep another one per period of this length; 0: none */
    /* i64 scalar that counts steps; for `interval`; referenced. NULL: the step in the
     * checkpoint is the largest number of runs or steps of the saved functions and models. */
    ch_var *step;
    int64_t interval; /* steps between two saves; 0: every call saves */
    /* Share of the time that saves may cost; 0: no limit. The manager measures what saves cost
     * and skips those that come too early. */
    double overhead;
    /* Every full_every-th checkpoint is full; 0 or 1: all are. The others are deltas. A delta
     * holds the rows that have changed since the full checkpoint, of variables that are updated
     * by rows, such as the tables of embeddings and their slots. All other values are in every
     * checkpoint. A restore reads the delta and its full checkpoint, so both must be kept; the
     * manager does that. The first save of a manager is full. If several managers save the same
     * variables, give this option to one of them. */
    int full_every;
    /* Called by ch_checkpoint_manager_restore if there is no checkpoint; NULL: nothing. */
    ch_status (*init)(void *arg);
    void            *init_arg;
    ch_write_options write; /* `replace` is not used */
} ch_manager_options;

/* Creates a manager, and the directory if it does not exist. Removes what a killed process left
 * there. `opt` may be NULL. INVALID_ARGUMENT: an option is out of range, or there is an
 * interval without a step. FAILED_PRECONDITION: another manager uses the directory; the message
 * names its process. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_manager_new(ch_checkpoint            *c,
                                                         const char               *directory,
                                                         const ch_manager_options *opt,
                                                         ch_checkpoint_manager   **out);
CH_API ch_checkpoint_manager  *ch_checkpoint_manager_ref(ch_checkpoint_manager *m);
CH_API void                    ch_checkpoint_manager_unref(ch_checkpoint_manager *m);

/* Saves, if a save is due, and then removes checkpoints that are too old. Sets *path to the
 * path of the checkpoint, or to NULL if no save was due; borrowed until the next call. `path`
 * may be NULL. `force` ignores the interval and the overhead. A step that was saved is never
 * saved again, but a step whose write has failed is.
 *
 * If the last write is still in progress, a save that the program requests waits for it: a save
 * with `force`, or of a manager without an interval. A save that is due by the interval is
 * skipped instead, and counted. With an overhead, no save is due while a write is in progress.
 *
 * In rounds of CH_SYNCHRONOUS, a save is due only between two rounds. A save with `force` in
 * the middle of a round ends the round, so later steps read other values than without it.
 *
 * UNAVAILABLE: a parameter server is lost, and the job has failed. The message names the last
 * checkpoint, from which the program can be started again. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_manager_save(ch_checkpoint_manager *m, bool force,
                                                          const char **path);
/* Restores the newest checkpoint that is whole. Older ones are tried in turn, and the log says
 * which were skipped and why. If there is none, calls the option `init`. `r` and `path` may be
 * NULL. *path is NULL if nothing was restored. If the last program was killed between the index
 * and the state file of a save, the state file is updated and old checkpoints are removed.
 * DATA_LOSS: there are checkpoints, and all are damaged. */
CH_API CH_MUST_CHECK ch_status ch_checkpoint_manager_restore(ch_checkpoint_manager *m,
                                                             ch_restored          **r,
                                                             const char           **path);

#endif
