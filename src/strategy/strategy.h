/* strategy/strategy.h -- the interface of strategy/ to other modules, and struct ch_strategy.
 *
 * train/ and fit/ include this header to record and run steps and to create variables; they
 * call the functions below and those of strategy/var.h. Of the fields of ch_strategy they use
 * `exec` only.
 *
 * A strategy has n_local replicas in this process, each on its own device, or each on n_cores
 * devices (logical devices, graph/run.h). Its ch_strategy_ops choose the devices and the layout
 * of each variable. Its var_ops store the variables (strategy/var.h), and its exec runs the
 * steps (strategy/exec.h). A strategy with one device uses the same code as a strategy with
 * several.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_STRATEGY_H
#define STRATEGY_STRATEGY_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/map.h"
#include "cohort/iterator.h"
#include "cohort/strategy_ops.h"
#include "collective/group.h"
#include "strategy/devices.h"
#include "strategy/exec.h"
#include "strategy/var.h"

struct ch_strategy {
    const ch_strategy_ops *ops;
    void                  *self;    /* argument of the functions of `ops` */
    const ch_var_ops      *var_ops; /* storage of its variables */
    const ch_exec_ops     *exec;    /* execution of its steps */
    atomic_int             refs;
    int                    n_replicas; /* replicas of the job */
    int                    n_local;    /* replicas of this process */
    int                    n_cores;    /* logical devices of each replica; 1 for most */
    const ch_run_ops      *run_ops;    /* functions of its runs */
    /* The replica runs on the current device of the calling thread, so the strategy has no
     * devices of its own. True for Default only. */
    bool uses_current_device;
    /* The group of all replicas, or of all their logical devices: barrier and collectives. NULL
     * if there is one of them in all. It is `groups.all`. */
    ch_group    *group;
    ch_group_set groups;
    ch_device  **first_device; /* logical device 0 of each replica, if there are several */
    double       bytes_per_operation; /* ch_spmd_options.bytes_per_operation */
    char         label[96];           /* name for messages: "Mirrored#2 (GPU:0, GPU:1)" */
    /* Copy of the argument of ch_strategy_new. parts.traits and parts.rule point to the next
     * fields. */
    ch_strategy_parts  parts;
    ch_strategy_traits traits;
    ch_split_rule     *rule;              /* owned */
    atomic_bool        has_checked_rules; /* the log has named the rules without a variable */
    pthread_mutex_t    lock; /* protects vars and the fields of ch_var that name this lock */
    ch_map             vars; /* all variables by name, not referenced */
    atomic_uint        generation;  /* incremented when vars changes */
    pthread_mutex_t    search_lock; /* held while layouts are searched (found_layouts.c) */
    uint64_t           n_kin;       /* numbers of ch_var.kin that are used; under `lock` */
    /* As ch_var.marks_owner, for the variables on servers. */
    const void *marks_owner;
};

/* Returns the Default strategy, creating it at the first call. The program must not free it.
 * (default.c) */
ch_strategy *ch__strategy_default(void);
/* Returns the strategy that created the iterator with ch_strategy_distribute_dataset or a
 * similar call, or NULL if the program created it with ch_iterator_new. The result is borrowed.
 * (input.c) */
ch_strategy *ch__iterator_strategy(const ch_iterator *it);
/* Returns `st`, or the current strategy of this thread if `st` is NULL. (scope.c) */
ch_strategy *ch__strategy_or_current(ch_strategy *st);
/* Replaces a NULL *st by the current strategy, and checks that `call` may be used here: only in
 * cross-replica context, outside steps. Returns FAILED_PRECONDITION if this thread records a
 * step or is in the scope of another strategy. The message for a step recommends `instead`, or
 * ch_merge_call if that is NULL. (scope.c) */
ch_status ch__strategy_check_cross(ch_strategy **st, const char *call, const char *instead);
/* Does the work of ch_strategy_new in memory that the caller owns and has set to zero. Does not
 * check its arguments and does not set the label. */
ch_status ch__strategy_init(ch_strategy *st, const ch_strategy_ops *ops, void *self,
                            const ch_strategy_parts *parts);
/* Warns, once in a process, if a launcher has started several copies of the program. Every
 * strategy spans a single process, so each copy would train on all data. ch_strategy_new warns
 * with the strategy's name. Default is not created by the program, so ch_fit warns instead. */
void ch__warn_of_copies(const char *strategy);
/* Returns the number of logical devices of each replica. */
static inline int ch__strategy_cores(const ch_strategy *st)
{
    return st->n_cores;
}
/* Stores the current devices of the local replicas in *out, borrowed; n_cores of each replica.
 * Returns INVALID_ARGUMENT if a device is NULL or is listed twice. */
ch_status ch__strategy_devices(const ch_strategy *st, ch_device *const **out);
/* Stores logical device 0 of each local replica in *out, borrowed: where its inputs and results
 * are. */
ch_status ch__strategy_first_devices(ch_strategy *st, ch_device *const **out);

/* Implements ch_run_ops.partition: divides the step of each replica among its cores.
 * (cores.c) */
ch_status ch__cores_partition(void *owner, const ch_run *run, ch_graph *const *variant,
                              ch_graph **core, void **report);

/* Returns INVALID_ARGUMENT if an option is out of range. `name` begins the message.
 * (communication.c) */
ch_status ch__communication_check(const char *name, const ch_communication_options *c);
/* Stores the strategy's options in *out, overridden by the nonzero fields of `over`. Checks
 * `over`, which may be NULL. */
ch_status ch__communication_of(const ch_strategy *st, const char *call,
                               const ch_communication_options *over,
                               ch_communication_options       *out);

/* Returns the options for all-reducing the gradients of a step: bytes_per_pack of the step's
 * strategy. The other options are defaults, because the group has those of the strategy. */
ch_communication_options ch__communication_of_step(const ch_step *s);

/* Returns true if steps of `st` may read variables of `of`. That holds if the two are the same
 * strategy, if either is Default, or if both share copies by device. (assign.c) */
bool ch__strategy_may_read(const ch_strategy *st, const ch_strategy *of);
/* Returns true if the two are different strategies that share copies by device
 * (ch_strategy_parts.shares_by_device). (assign.c) */
bool ch__strategy_shares_by_device(const ch_strategy *st, const ch_strategy *of);
/* Returns the context of the code that is being recorded: replica context, cross-replica
 * context (a merge call) or an update. (merge.c) */
ch_step_context ch__step_context(const ch_step *s);

/* Records the graph of a step for inputs of the dtypes and shapes of `in`, or finds it if it
 * was recorded before. Stores a reference to the graph, and the number of this run. If
 * rows_unknown is true, the row counts of `in` are ignored. Does not run the step. */
ch_status ch__strategy_record(ch_strategy *st, ch_function *f, ch_tuple *in, bool rows_unknown,
                              ch_graph **out, int64_t *number);

/* Starts a run and returns before it ends if the strategy is asynchronous. The run reads
 * `snapshot`, or the current values if that is 0. If `snapshot` is 0, the run is started with
 * is_own false (ch_start_options). */
ch_status ch__strategy_start(ch_strategy *st, ch_function *f, ch_tuple *in, uint64_t snapshot,
                             ch_started *out);

/* Does the same as ch_strategy_run, and measures the time of each kind of work. *timing is also
 * complete if the run fails. */
ch_status ch__strategy_run_timed(ch_strategy *st, ch_function *f, ch_tuple *in, ch_tuple **out,
                                 ch_timing *timing);

#endif
