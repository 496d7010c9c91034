/* strategy/var.h -- the inside of a variable: its layout, its storage, and the calls of other files on it.
 *
 * A variable has a layout (cohort/layout.h), which the strategy chose, and a storage, which ch_var_ops creates,
 * reads and writes. There are two implementations: var_local.c keeps tensors in this process, one for each copy;
 * parameter_server_vars.c keeps shards on parameter servers. No other file asks which of them it is. If a value
 * must be in this process, as for a run here, ch__var_is_here tells.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_VAR_H
#define STRATEGY_VAR_H

#include <stdatomic.h>

#include "cohort/extended.h"
#include "cohort/replica.h"
#include "graph/step.h"
#include "tensor/layout.h"
#include "tensor/tensor.h"

/* Storage of variables. All functions block until they are done. */
typedef struct ch_var_ops {
    /* Allocates the storage of `v` as v->layout says, and writes its initial value. `spec` has v's name, dtype and shape.
     * After an error `free` is called. */
    ch_status (*create)(ch_strategy *st, ch_var *v, const ch_var_spec *spec);
    /* Frees what there is of the storage; if `create` failed, perhaps nothing. */
    void (*free)(ch_var *v);
    /* Reads a region, or all of it if `region` is NULL, into a new tensor. The value of a variable that is CH_SYNC_ON_READ
     * is the aggregate of its copies. */
    ch_status (*read)(ch_var *v, const ch_region *region, ch_tensor **out);
    /* Writes a region, or all of it if `region` is NULL. `value` is contiguous and has v's dtype and the region's shape. */
    ch_status (*write)(ch_var *v, const ch_region *region, ch_tensor *value);
    /* Adds `delta`, or subtracts it, without losing what steps write at the same time. */
    ch_status (*add)(ch_var *v, ch_tensor *delta, bool subtract);
    /* Copies the storage of a variable to that of another one with the same layout. */
    ch_status (*copy)(ch_var *from, ch_var *to);
    /* Reads rows. ids[i] (i64, in range) counts from the first row of part i of axis 0; if axis 0 is not divided,
     * there is one list. A list may be NULL if no rows are wanted. Writes a tensor of rows for each list. */
    ch_status (*gather)(ch_var *v, ch_tensor *const *ids, ch_tensor **rows);
    /* Reads the copy of each worker, of a per-worker variable. */
    ch_status (*read_workers)(ch_var *v, ch_tuple **out);
} ch_var_ops;

extern const ch_var_ops ch__var_local;

struct ch_var {
    atomic_int   refs;
    ch_strategy *strategy; /* referenced; NULL while the variable is being made */
    char        *name;
    ch_dtype     dtype;
    ch_shape     shape;
    bool         trainable;
    bool         per_worker;
    ch_var
        *leader; /* the 16-bit variable whose value this one holds more exactly; NULL: none */
    ch_var *follower; /* the first variable that has this one as its leader, not referenced */
    ch_var *next_follower;
    ch_sync sync; /* never CH_SYNC_AUTO */
    ch_aggregation aggregation;
    atomic_bool    has_warned; /* that its copies will differ */
    ch_layout      layout; /* where it is stored; the list of devices belongs to the variable */
    void          *storage;  /* belongs to the ch_var_ops; NULL: the copies are all */
    int            n_shards; /* 0: the variable is not divided */
    ch_var       **shard;    /* referenced */
    ch_var    *whole; /* of a shard, not referenced; NULL: this is no shard, or that is gone */
    ch_tensor *snapshot; /* of ch__var_snapshot, under the strategy's lock; or NULL */
    int        n_copies; /* of each part */
    ch_tensor *copy
        []; /* one for each local replica, or one that they share; NULL: not in this process */
};

/* Returns true if this process holds the value, in v->copy. */
static inline bool ch__var_is_here(const ch_var *v)
{
    return v->copy[0] != NULL;
}

/* Returns the copy of a local replica. */
static inline ch_tensor *ch__var_copy(const ch_var *v, int local)
{
    return v->copy[v->n_copies > 1 ? local : 0];
}

/* Returns true if each replica has a value of its own, on purpose. */
static inline bool ch__var_is_own(const ch_var *v)
{
    return v->sync == CH_SYNC_ON_READ && v->n_copies > 1;
}

/* ---- making variables (var.c, create.c) ---- */

/* As ch_var_new, for a variable that belongs to another one: its layout is that of `beside`, as far as the shape allows. */
ch_status ch__var_new_beside(const ch_var_spec *spec, const ch_var *beside, ch_var **out);
/* Makes shard i of `whole`, "<name>/part_<i>", with a storage that exists already. For implementations of ch_var_ops. */
ch_status ch__var_part(ch_strategy *st, ch_var *whole, int i, void *storage, ch_var **out);
/* Computes the initial value: spec->initial, or the values that spec->init describes. */
ch_status ch__var_initial(const ch_var_spec *spec, ch_tensor **out);
/* Applies hooks and colocation to the specification; *beside is the variable to share a layout with, or NULL. */
ch_status ch__var_specify(ch_strategy *st, ch_var_spec *spec, const ch_var **beside);
/* Return how many scopes of each kind this thread has entered and not left. */
int ch__colocate_depth(void);
int ch__creator_depth(void);

/* From now on, setting `leader` from outside a step also sets `v`, in v's dtype: a master copy follows its 16-bit variable.
 * Both belong to one strategy. This ends with either of them. */
void ch__var_follow(ch_var *v, ch_var *leader);
/* Returns a variable that follows `leader`, referenced; NULL: there is none. */
ch_var *ch__var_follower(const ch_var *leader);

/* ---- finding variables (var.c) ---- */

/* Lists all variables by name, each referenced, in memory that the caller frees with ch__free. */
ch_status ch__strategy_vars(ch_strategy *st, int *n, ch_var ***out);
/* Finds the variable that a graph names, referenced. NOT_FOUND: there is none; FAILED_PRECONDITION: its dtype or shape is another. */
ch_status ch__var_of_resource(ch_strategy *st, const ch_resource *r, ch_var **out);
/* Returns the variable that this tensor was fetched from by ch_var_copies; NULL: none. */
ch_var *ch__var_fetched_as(const ch_tensor *t);

/* ---- values outside steps (var_value.c) ---- */

/* As ch_var_get and ch_var_set, wherever the code is: also while variables are being made. */
ch_status ch__var_get(ch_var *v, ch_tensor **out);
ch_status ch__var_set(ch_var *v, ch_tensor *value);
/* Fails unless the code of this thread may read or change v: it must be outside steps, and in no other strategy's scope. */
ch_status ch__var_check_outside(const ch_var *v, const char *instead);
/* Returns the value of a variable of Default in a tensor that is never changed, for steps that run later. While the value
 * stays the same, byte by byte, the tensor does too: steps that wait for workers share it. The variable keeps the last
 * one as long as it lives. */
ch_status ch__var_snapshot(ch_var *v, ch_tensor **out);

/* ---- rules (assign.c) ---- */

/* Returns true if `call` may write v in s; if not, the error sticks to s. */
bool ch__var_may_write(ch_step *s, const ch_var *v, const char *call, const void *caller);
/* Fail unless v has one value outside replicas, and unless `name` may change that value. */
ch_status ch__var_check_read(const ch_var *v);
ch_status ch__var_check_change(const ch_var *v, const char *name);

/* ---- runs (graph/run.h) ---- */

/* Gives the memory of a variable's copy. (var.c) */
ch_status ch__var_memory(void *owner, const ch_resource *r, int local, void **out);
/* Gives the value of another strategy's variable: the first copy of a mirrored variable, the aggregate of one that is
 * CH_SYNC_ON_READ; a remote variable is fetched. (var_value.c) */
ch_status ch__var_borrow(void *owner, const ch_resource *r, ch_tensor **out);
/* After a run: INTERNAL if the copies of a variable that should be equal are not. (var.c) */
ch_status ch__vars_check_copies(const ch_run *run, const ch_graph *g);
/* Before an update: FAILED_PRECONDITION if it would change some copies of a variable and not the others. (var.c) */
ch_status ch__vars_check_update(const ch_run *run, const ch_graph *g);

#endif
