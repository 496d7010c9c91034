/* strategy/var.h -- struct ch_var, the storage of variables, and calls for other modules.
 *
 * strategy/strategy.h includes this header, so it is also a part of the interface of strategy/
 * to train/ and fit/.
 *
 * A variable has a layout (cohort/layout.h) and a storage. The strategy chooses the layout
 * (ch_strategy_ops.place). The storage is created, read and written by a ch_var_ops. There are
 * three implementations. var_local.c stores one tensor for each copy in this process.
 * var_cores.c stores the tiles of each copy, on the logical devices of a replica.
 * parameter_server_vars.c stores shards on parameter servers. Other files do not depend on the
 * implementation. Code that needs the value in the memory of this process, such as a local run,
 * checks ch__var_is_local.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_VAR_H
#define STRATEGY_VAR_H

#include <stdatomic.h>

#include "cohort/extended.h"
#include "cohort/replica.h"
#include "graph/step.h"
#include "spmd/layout.h"
#include "tensor/layout.h"
#include "tensor/row_marks.h"
#include "tensor/tensor.h"

/* A value of numbers that is read region by region, such as a tensor of a checkpoint. */
typedef struct ch_value_source {
    const char *name; /* for messages: "tensor \"w\" of run/ckpt-7" */
    ch_dtype    dtype;
    ch_shape    shape;
    /* Reads a region to contiguous memory. Several threads may call it at the same time. */
    ch_status (*read)(void *arg, const ch_region *region, void *to);
    void *arg;
} ch_value_source;

/* Storage of variables. All functions block until they are done. */
typedef struct ch_var_ops {
    /* Allocates the storage of `v` with the layout v->layout, and writes the initial value.
     * `spec` has v's name, dtype and shape. After an error the caller calls `free`. */
    ch_status (*create)(ch_strategy *st, ch_var *v, const ch_var_spec *spec);
    /* Frees the storage. If `create` failed, the storage may be incomplete or missing. */
    void (*free)(ch_var *v);
    /* Reads a region into a new tensor, or the whole value if `region` is NULL. For a variable
     * that is CH_SYNC_ON_READ the value is the aggregate of its copies. */
    ch_status (*read)(ch_var *v, const ch_region *region, ch_tensor **out);
    /* Writes a region, or the whole value if `region` is NULL. `value` must be contiguous and
     * must have v's dtype and the region's shape. */
    ch_status (*write)(ch_var *v, const ch_region *region, ch_tensor *value);
    /* Sets the value from a source of v's dtype and shape. Reads pieces of at most
     * CH_PIECE_BYTES, in any order. For a per-worker variable on workers, does what `restart`
     * does, and an error changes nothing. After an error the value of another variable is
     * undefined. */
    ch_status (*write_from)(ch_var *v, const ch_value_source *from);
    /* Sets the program's copy of a per-worker variable and the value that workers start with,
     * and starts the copies of all workers anew. Cannot fail. `initial` must be contiguous with
     * v's dtype and shape; it is referenced and must not be changed any more. No scheduled step
     * may use the variable. NULL: the strategy has no workers with copies. */
    void (*restart)(ch_var *v, ch_tensor *initial);
    /* Adds `delta`, or subtracts it. A concurrent update by a step is not lost if the variable
     * is on servers. */
    ch_status (*add)(ch_var *v, ch_tensor *delta, bool subtract);
    /* Copies the value of each copy or shard to another variable of the same layout. */
    ch_status (*copy)(ch_var *from, ch_var *to);
    /* Reads rows. ids[i] holds i64 row numbers, in range, that count from the first row of part
     * i of axis 0. If axis 0 is not divided, there is a single list. A list may be NULL if no
     * rows of its part are wanted. Stores a tensor of rows in rows[i] for each list. */
    ch_status (*gather)(ch_var *v, ch_tensor *const *ids, ch_tensor **rows);
    /* Reads the copies that the workers have of a per-worker variable, one tuple element for
     * each worker. */
    ch_status (*read_workers)(ch_var *v, ch_tuple **out);
} ch_var_ops;

extern const ch_var_ops ch__var_local, ch__var_cores;

struct ch_var {
    atomic_int   refs;
    ch_strategy *strategy; /* referenced; NULL while the variable is created */
    char        *name;
    ch_dtype     dtype;
    ch_shape     shape;
    bool         trainable;
    bool         per_worker; /* true: each worker has its own copy (ch_var_spec) */
    /* The 16-bit variable that this variable is the master copy of, in higher precision; NULL:
     * none. The strategy's lock protects the three links. */
    ch_var *leader;
    /* First variable that has this variable as its leader; not referenced. */
    ch_var        *follower;
    ch_var        *next_follower;
    ch_sync        sync; /* never CH_SYNC_AUTO */
    ch_aggregation aggregation;
    /* True after the warning that the copies will differ. They are then not compared any
     * more. */
    atomic_bool has_warned;
    ch_layout   layout; /* the variable owns layout.device */
    /* How the logical devices of each replica store the variable, owned. NULL: the replicas of
     * the strategy have one device. */
    ch_core_layout *tiles;
    bool            is_split; /* the program chose `tiles` (ch_var_spec.split, ch_var_split) */
    const char     *rule;     /* name of the split rule of `tiles`, in parts.rule; NULL: none */
    /* `tiles` are provisional: the first step that uses the variable chooses them; and `tiles`
     * were found by a search (found_layouts.c). The strategy's lock protects both. */
    bool is_open, is_found;
    /* The same number for a variable and those that were created beside it, such as its slots;
     * 0: the strategy does not choose layouts. */
    uint64_t kin;
    /* If there are tiles: the first step that read or wrote the variable, owned; NULL: none.
     * The strategy's lock protects it. */
    char *used_by;
    /* Data of the ch_var_ops implementation; NULL if the copies are the whole storage. */
    void    *storage;
    int      n_shards; /* 0: the variable is not divided */
    ch_var **shard;    /* one variable for each shard, referenced */
    /* The variable that this variable is a shard of, not referenced. NULL: this is not a shard,
     * or the whole variable was freed. */
    ch_var *whole;
    /* Last tensor of ch__var_snapshot, or NULL; the strategy's lock protects it. */
    ch_tensor *snapshot;
    /* Marks of the rows of copy[0] that have changed (strategy/changed_rows.h); NULL: rows are
     * not marked. Set between steps; the strategy's generation changes then. */
    ch_row_marks *marks;
    /* The program has had the tensors of the copies, so it may write to them at any time. */
    atomic_bool is_exposed;
    /* Whose deltas the marks of changed rows are for, if the value is in this process; NULL:
     * none. Only compared (save/marks.h). */
    const void *marks_owner;
    int         n_copies; /* copies of each part */
    /* One copy for each local replica, or a single copy that all replicas share. copy[0] is
     * NULL if the value is not in this process. If there are tiles: the tile of each member,
     * core c of local replica r at r * n_cores + c, or NULL if the core has none. */
    ch_tensor *copy[];
};

/* Returns true if this process holds the value, in v->copy. */
static inline bool ch__var_is_local(const ch_var *v)
{
    return v->tiles != NULL || v->copy[0] != NULL;
}

/* Returns the number of elements of v->copy. */
static inline int ch__var_tensors(const ch_var *v)
{
    return v->n_copies * (v->tiles != NULL ? v->tiles->n_cores : 1);
}

/* Returns the copy that a local replica uses. There must be no tiles. */
static inline ch_tensor *ch__var_copy(const ch_var *v, int local)
{
    return v->copy[v->n_copies > 1 ? local : 0];
}

/* Returns true if each replica has its own value of v, so that the copies differ by design. */
static inline bool ch__var_is_per_replica(const ch_var *v)
{
    return v->sync == CH_SYNC_ON_READ && v->n_copies > 1;
}

/* Adds a reference to v and returns true, unless its last reference was released. Then another
 * thread is about to free v. The caller must hold the strategy's lock. */
static inline bool ch__var_try_ref(ch_var *v)
{
    int refs = atomic_load(&v->refs);

    while (refs > 0)
        if (atomic_compare_exchange_weak(&v->refs, &refs, refs + 1))
            return true;
    return false;
}

/* ---- creating variables (var.c, create.c) ---- */

/* Creates a variable as ch_var_new does. If `beside` is not NULL, the variable gets its layout;
 * if the shape does not allow that, the variable is not divided and is on the device of the
 * first part. If `from` is not NULL, the variable gets that value, and the initial value of the
 * spec is not computed. INVALID_ARGUMENT: `from` has another dtype or shape. */
ch_status ch__var_new_from(ch_strategy *st, const ch_var_spec *spec, const ch_var *beside,
                           const ch_value_source *from, ch_var **out);
/* Creates the variable of shard i of `whole`, named "<name>/part_<i>". `storage` must exist;
 * after success the new variable owns it. For implementations of ch_var_ops. */
ch_status ch__var_new_shard(ch_strategy *st, ch_var *whole, int i, void *storage, ch_var **out);
/* Stores a new reference to the initial value in *out: spec->initial, or a tensor with the
 * values that spec->init describes. */
ch_status ch__var_initial(const ch_var_spec *spec, ch_tensor **out);
/* Applies the creator hooks of this thread to `spec`. Stores the variable of the innermost
 * colocation scope in *colocated if it belongs to `st`; otherwise leaves *colocated unchanged.
 * Returns FAILED_PRECONDITION in the scope of another strategy. */
ch_status ch__var_apply_scopes(ch_strategy *st, ch_var_spec *spec, const ch_var **colocated);
/* Return the number of open colocation scopes and creator scopes of this thread. */
int ch__colocate_depth(void);
int ch__creator_depth(void);
int ch__logical_device_depth(void);
/* Returns the logical device that this thread has chosen for new variables of `st`; -1:
 * none. */
int ch__logical_device_chosen(const ch_strategy *st);

/* Makes `v` a follower of `leader`: setting `leader` outside steps also sets `v`, converted to
 * v's dtype. This keeps the master copy of a 16-bit variable up to date. Both must belong to
 * the same strategy. The link ends when either variable is freed. */
void ch__var_follow(ch_var *v, ch_var *leader);
/* Returns a new reference to the follower of `leader` after `before`, or to the first if
 * `before` is NULL; NULL if there is none. Releases the caller's reference to `before`, which
 * must be a follower of `leader`. */
ch_var *ch__var_next_follower(const ch_var *leader, ch_var *before);

/* ---- variables in tiles (var_cores.c, var_split.c) ---- */

/* Copies a region of the value of a replica to a new tensor, or all of it if `region` is
 * NULL. */
ch_status ch__var_read_replica(ch_var *v, int replica, const ch_region *region,
                               ch_tensor **out);
/* A variable that gets tiles in another layout. */
typedef struct ch_tile_move {
    ch_var        *var;
    ch_core_layout to;
} ch_tile_move;
/* Moves the values of n distinct variables to tiles in other layouts. No run may use the
 * variables, and the caller must not hold devices. After an error the first variables are
 * moved, and the others have their old tiles. */
ch_status ch__vars_set_tiles(int n, const ch_tile_move *move);
/* Chooses the layout of the tiles of a new variable: that of spec->split, else that of
 * `colocated` along axes of equal sizes, else whole on the chosen logical device, else that of
 * the first rule that matches its name, else that of the parts of the strategy (split_bytes,
 * defaults_to_device_0). */
ch_status ch__var_choose_tiles(ch_strategy *st, ch_var *v, const ch_var_spec *spec,
                               const ch_var *colocated);
/* Copies the split rules of a strategy to memory that the caller must free with ch__free. *out
 * is NULL if there are none. INVALID_ARGUMENT: a rule is malformed. */
ch_status ch__split_rules_copy(const char *strategy, int n, const ch_split_rule *rule,
                               ch_split_rule **out);
/* Warns of the split rules that match no variable, if a step of the strategy has not run
 * before. */
void ch__split_rules_check(ch_strategy *st);
/* Notes that step s uses v, so that v can no longer be split in another way. A step that only
 * creates variables (ch_step.is_discarded) does not count. */
void ch__var_note_use(ch_step *s, ch_var *v);

/* ---- finding variables (var_find.c) ---- */

/* Lists all variables, sorted by name. Each is referenced. The caller must free the list with
 * ch__free. */
ch_status ch__strategy_vars(ch_strategy *st, int *n, ch_var ***out);
/* Finds the variable that a resource of a graph names, and stores a new reference. Returns
 * NOT_FOUND if there is none, and FAILED_PRECONDITION if its dtype or shape differs from the
 * resource. */
ch_status ch__var_of_resource(ch_strategy *st, const ch_resource *r, ch_var **out);
/* Returns the variable that ch_var_copies has fetched this tensor from, borrowed; NULL if the
 * tensor was not fetched. */
ch_var *ch__var_of_fetched(const ch_tensor *t);

/* ---- values outside steps (var_value.c) ---- */

/* Do the work of ch_var_get and ch_var_set without the check of the context. They may also be
 * used while variables are created. */
ch_status ch__var_get(ch_var *v, ch_tensor **out);
ch_status ch__var_set(ch_var *v, ch_tensor *value);
/* Returns INVALID_ARGUMENT unless v can have the value of the source. The message does not name
 * v. */
ch_status ch__var_check_source(const ch_var *v, const ch_value_source *from);
/* Sets v from a source, without its followers: so the values of a leader and its followers can
 * be set in any order. Does not check the context. Several threads may set different variables
 * at the same time. INVALID_ARGUMENT: `from` has another dtype or shape. After any other error
 * the value is undefined. */
ch_status ch__var_write_from(ch_var *v, const ch_value_source *from);
/* Sets the followers of v from its value, as ch__var_set does. */
ch_status ch__var_update_followers(ch_var *v);
/* Gives the value of a follower, or of its region, after that of its leader was set to `value`,
 * in a new tensor. */
ch_status ch__var_follower_value(ch_var *f, const ch_region *region, ch_tensor *value,
                                 ch_tensor **out);
/* Does the work of ch_var_copies, for a caller that does not write to the tensors. */
ch_status ch__var_copies(ch_var *v, ch_value **out);
/* Returns FAILED_PRECONDITION unless this thread may read or change v: it must be outside steps
 * and host functions, and not in the scope of another strategy. The message recommends
 * `instead`. */
ch_status ch__var_check_outside(const ch_var *v, const char *instead);
/* Stores a new reference to a tensor with the current value of a variable of Default. The
 * tensor is never changed, so steps that are queued for workers can read it. Calls return the
 * same tensor as long as the bytes of the value do not change. The variable keeps a reference
 * to the last tensor until the variable is freed. */
ch_status ch__var_snapshot(ch_var *v, ch_tensor **out);

/* ---- rules (assign.c) ---- */

/* Returns true if `call` may write v in step s. Otherwise records the error in s and returns
 * false. */
bool ch__var_may_write(ch_step *s, const ch_var *v, const char *call, const void *caller);
/* The first fails if v has no single value in cross-replica context. The second fails if `name`
 * (assign_add, ...) must not change v there. */
ch_status ch__var_check_read(const ch_var *v);
ch_status ch__var_check_change(const ch_var *v, const char *name);

/* ---- callbacks of runs (graph/run.h) ---- */

/* Stores the address of the copy of local replica `local` in *out, or of the tile of a core of
 * the replica; NULL if the core has none. (var_find.c) */
ch_status ch__var_memory(void *owner, const ch_resource *r, int local, int core, void **out);
/* Returns the marks of the rows of a variable; NULL: they are not marked. (var_find.c) */
ch_row_marks *ch__var_marks(void *owner, const ch_resource *r);
/* Implements ch_run_ops.borrow. If one of the two strategies is Default, the value for all
 * replicas is that of ch_var_get. Otherwise each replica gets the copy that is on its devices.
 * (var_borrow.c) */
ch_status ch__var_borrow(const ch_run *run, const ch_resource *r, ch_tensor **out);
/* Finds the copies of v that are on the devices of n replicas of another strategy; core c of
 * replica r is device[r * n_cores + c]. A copy of v is on every device that stores it or a part
 * of it, and the lowest core decides. Stores the index of that tensor in v->copy in at[r]; `at`
 * may be NULL. INVALID_ARGUMENT: a replica has none. (var_borrow.c) */
ch_status ch__var_match_copies(const ch_var *v, int n, int n_cores, ch_device *const *device,
                               int *at);
/* Called after a run. Returns INTERNAL if COHORT_CHECK_COPIES is set and the copies of a
 * mirrored variable differ. (var_find.c) */
ch_status ch__vars_check_copies(const ch_run *run, const ch_graph *g);
/* Called before an update. Returns FAILED_PRECONDITION if the update would change some copies
 * of a variable and not the others. (var_find.c) */
ch_status ch__vars_check_update(const ch_run *run, const ch_graph *g);

#endif
