/* cohort/var.h -- variables: values that steps read and write, and that persist between runs.
 *
 * A variable is a tensor that a strategy stores, such as a weight of a model.
 *
 *     rc = ch_var_new(NULL, &(ch_var_spec){.name = "w", .initial = tensor}, &w);
 *     rc = ch_var_new(NULL, &(ch_var_spec){.name = "b", .shape = ch_shape_of(64)}, &b);
 *
 *     ch_node *now = ch_var_read(s, w);                        // in a step
 *     ch_var_assign_sub(s, w, ch_mul(ch_number(s, 0.1), dw));
 *
 *   - Ownership: a variable is reference counted. It belongs to the strategy that created it,
 *     which decides where it is stored, and holds a reference to that strategy.
 *   - Names are unique in a strategy: a second "w" becomes "w_1". A recorded function finds its
 *     variables by name. If a variable is freed, and another is created with the same name,
 *     dtype and shape, the function uses the new variable.
 *   - Replicas: the strategy gives each replica a copy, or a single copy to all. Values that
 *     replicas assign in a step are aggregated first (ch_aggregation), so that copies stay
 *     equal. With CH_AGGREGATE_NONE, and in an update (cohort/replica.h), the caller must
 *     assign equal values. If the values may differ between replicas, the copies will differ,
 *     and the log warns once. If replicas share a single copy, an assign with CH_AGGREGATE_NONE
 *     is then an error. With CH_SYNC_ON_READ each replica has a value of its own; these are
 *     aggregated when the variable is read outside a step.
 *   - Steps: a read after an assign sees the assigned value. Variables change only after the
 *     whole step has succeeded on every replica, so a step that fails changes no variable.
 *     There is an exception: with parameter servers, an update whose result the step has used
 *     is applied when the result is needed, and stays if the step fails later.
 *   - Per-worker variables: with parameter servers, each worker has its own copy of such a
 *     variable, and the program has another (cohort/parameter_server.h). Under other strategies
 *     it is an ordinary variable, so that the same step runs under all of them.
 *   - Threads: several threads may create, read and free variables at the same time.
 *     ch_var_set, ch_var_get and runs are not synchronised with each other. If several threads
 *     use a variable and any of them changes it, the caller must lock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_VAR_H
#define COHORT_VAR_H

#include "cohort/init.h"
#include "cohort/step.h"
#include "cohort/value.h"

typedef struct ch_var      ch_var;
typedef struct ch_strategy ch_strategy;

/* When the copies of a variable are synchronised, as tf.VariableSynchronization. */
typedef enum ch_sync {
    CH_SYNC_AUTO,     /* CH_SYNC_ON_WRITE */
    CH_SYNC_NONE,     /* never; only for a variable with a single copy */
    CH_SYNC_ON_WRITE, /* an assign in a step is aggregated, and all copies get the result */
    CH_SYNC_ON_READ   /* copies differ; they are aggregated when read outside a step */
} ch_sync;

/* How the values of several replicas are combined, as tf.VariableAggregation. */
typedef enum ch_aggregation {
    CH_AGGREGATE_NONE, /* not at all: replicas must assign equal values */
    /* The sum. A value that all replicas share, such as a constant or a plain input, has no sum
     * and is an error. */
    CH_AGGREGATE_SUM,
    CH_AGGREGATE_MEAN, /* floats only */
    CH_AGGREGATE_FIRST /* the value of the first replica */
} ch_aggregation;

typedef struct ch_var_spec {
    const char *name;    /* NULL: "Variable" */
    ch_tensor  *initial; /* initial value; copied. NULL: from dtype, shape and init */
    int     trainable;   /* 0: yes, unless CH_SYNC_ON_READ or per_worker; 1: yes; CH_OFF: no */
    ch_sync sync;
    ch_aggregation aggregation;
    ch_dtype       dtype; /* not used if `initial` is given */
    ch_shape       shape; /* not used if `initial` is given */
    ch_init        init;  /* all zeros: zeros; random values depend on the name */
    /* Each worker has its own copy. All sizes must be known, and `trainable` must not be 1
     * (INVALID_ARGUMENT). The variable must not be created in a step (FAILED_PRECONDITION).
     * These rules hold under every strategy. */
    bool per_worker;
    /* How the logical devices of each replica store the variable (cohort/logical.h), as the
     * axes of ch_mesh_split: n_split is the rank. NULL: the rules of the strategy decide
     * (ch_split_rule), and without a rule each has the whole value. A strategy without logical
     * devices ignores it. */
    const int *split;
    int        n_split;
} ch_var_spec;

/* Creates a variable. `st` NULL: the current strategy. FAILED_PRECONDITION: the code is in the
 * scope of another strategy. */
CH_API CH_MUST_CHECK ch_status ch_var_new(ch_strategy *st, const ch_var_spec *spec,
                                          ch_var **out);
/* Creates a variable with the same properties and the same values of all copies, on the same
 * devices. The copies of workers of a per_worker variable start with the program's value. Must
 * not be called in a step, or in the scope of another strategy. */
CH_API CH_MUST_CHECK ch_status ch_var_clone(ch_var *v, ch_var **out);
CH_API ch_var                 *ch_var_ref(ch_var *v);
CH_API void                    ch_var_unref(ch_var *v);

CH_API const char  *ch_var_name(const ch_var *v);
CH_API ch_dtype     ch_var_dtype(const ch_var *v);
CH_API ch_shape     ch_var_shape(const ch_var *v);
CH_API bool         ch_var_is_trainable(const ch_var *v);
CH_API ch_strategy *ch_var_strategy(const ch_var *v); /* borrowed */

CH_API ch_sync        ch_var_sync(const ch_var *v); /* never CH_SYNC_AUTO */
CH_API ch_aggregation ch_var_aggregation(const ch_var *v);
/* Writes the variable as text: "w tensor(...)", or "MirroredVariable:{...}" with a line for
 * each copy. Copies are named "w", "w/replica_1", ..., or "w/r:0", "w/r:1", ... if all logical
 * devices of a replica have its copy. Returns the length needed, as snprintf does. */
CH_API int ch_var_print(ch_var *v, char *text, size_t size);
/* Returns the name of the device of the variable, or of its first copy or shard, such as
 * "/job:ps/replica:0/task:1/device:CPU:0". Borrowed. */
CH_API const char *ch_var_device(const ch_var *v);

/* ch_var_shards returns the number of shards, and ch_var_shard returns shard i, or NULL if i is
 * out of range. A shard of a variable that the strategy has divided (cohort/parameter_server.h)
 * is itself a variable, named "w/part_0". A variable that is not divided has a single shard,
 * itself. Borrowed; shards exist as long as the variable. */
CH_API int     ch_var_shards(const ch_var *v);
CH_API ch_var *ch_var_shard(ch_var *v, int i);
/* Returns the variable that a shard belongs to. For any other variable, and for a shard whose
 * variable has been freed, returns `v`. Borrowed. */
CH_API ch_var *ch_var_whole(ch_var *v);

/* ---- values, outside steps ----
 *
 * The functions of this section and of the next must be called outside steps. They return
 * FAILED_PRECONDITION while a step is recorded, in a host function of a running step, and in
 * the scope of another strategy. */

/* ch_var_get returns a copy of the value, and ch_var_set sets the value. The value is that of
 * the copy on the current device, or of the first copy. For CH_SYNC_ON_READ it is the aggregate
 * of the copies, and ch_var_set gives the copies values with that aggregate. ch_var_set on a
 * 16-bit variable also sets its master (cohort/optimizer.h). INVALID_ARGUMENT: the value does
 * not have the dtype and shape of the variable; or several copies are CH_SYNC_ON_READ with
 * CH_AGGREGATE_NONE, so that they have no aggregate. */
CH_API CH_MUST_CHECK ch_status ch_var_get(ch_var *v, ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_var_set(ch_var *v, ch_tensor *value);
/* ch_var_add and ch_var_sub add to the value and subtract from it. INVALID_ARGUMENT: the
 * variable is CH_SYNC_ON_READ with CH_AGGREGATE_SUM and has several copies. */
CH_API CH_MUST_CHECK ch_status ch_var_add(ch_var *v, ch_tensor *delta);
CH_API CH_MUST_CHECK ch_status ch_var_sub(ch_var *v, ch_tensor *delta);

/* ---- rows, outside steps ----
 *
 * These functions read only the rows that are asked for. (In a step, ch_gather of ch_var_read
 * does so too.) INVALID_ARGUMENT: the variable is a scalar. UNIMPLEMENTED: the variable holds
 * strings. */

/* Reads every `step`-th row from `start` up to but without `stop`, like a slice in Python.
 * Negative bounds count from the end, a bound past an end means that end, and CH_SLICE_END
 * leaves a bound out. INVALID_ARGUMENT: `step` is 0. */
enum { CH_SLICE_END = -2147483647 - 1 };
CH_API CH_MUST_CHECK ch_status ch_var_slice(ch_var *v, int64_t start, int64_t stop,
                                            int64_t step, ch_tensor **out);
/* Reads rows by id, in the order of `ids` (i32 or i64, of any shape). The first axes of the
 * result are those of `ids`. INVALID_ARGUMENT: an id is out of range. */
CH_API CH_MUST_CHECK ch_status ch_var_lookup(ch_var *v, ch_tensor *ids, ch_tensor **out);
/* Reads a single row: x[index]. A negative index counts from the end. INVALID_ARGUMENT: the
 * index is out of range. */
CH_API CH_MUST_CHECK ch_status ch_var_row(ch_var *v, int64_t index, ch_tensor **out);

/* ---- copies ---- */

/* Returns the tensors that hold the copies, not copies of them, for each replica of this
 * process. The value is mirrored, or per-replica for CH_SYNC_ON_READ, or plain if there is a
 * single copy. A variable on servers is fetched. FAILED_PRECONDITION: logical devices store the
 * variable in tiles (ch_var_get_tile); if each stores the whole value, the tensors are those of
 * the first, and the program must not write to them. The program may write to the tensors, so
 * from this call on checkpoints that store only changed rows store all rows of the variable. */
CH_API CH_MUST_CHECK ch_status ch_var_copies(ch_var *v, ch_value **out);

/* ---- in a step ---- */

/* Returns the value of the variable as a node. A step may read the variables of its own
 * strategy, and also:
 *   - A step of any strategy may read the variables of Default. All replicas read the same
 *     value. A step that workers run (cohort/parameter_server.h) reads the value that the
 *     variable has when the step is scheduled. A step that is repeated, because a worker was
 *     lost, reads the same value.
 *   - A step of Default may read the variables of every strategy: the first copy, the aggregate
 *     for CH_SYNC_ON_READ, the program's copy of a per_worker variable, or the value on the
 *     servers when the run starts.
 *   - A step of a TPUStrategy may read the variables of another. Each replica reads the copy
 *     that is on one of its devices, or that has a part there. INVALID_ARGUMENT: a replica has
 *     none, or a merge call reads a variable that is CH_SYNC_ON_READ.
 *
 * Other mixtures, and writes, are FAILED_PRECONDITION. A read of another strategy's variable is
 * not synchronised with runs that change the variable: the caller must not run both at the same
 * time, unless the variable is on servers. A function that reads another strategy's variable
 * holds a reference to it. */
CH_API ch_node *ch_var_read(ch_step *s, ch_var *v);
/* These functions assign, add and subtract a value, and return the new value of the variable.
 * In replica code, the values of all replicas are aggregated as the variable says, and each
 * copy gets the result. In a merge call, every copy gets the same value. In an update, each
 * copy gets the value of its replica (cohort/replica.h). */
CH_API ch_node *ch_var_assign(ch_step *s, ch_var *v, ch_node *value);
CH_API ch_node *ch_var_assign_add(ch_step *s, ch_var *v, ch_node *delta);
CH_API ch_node *ch_var_assign_sub(ch_step *s, ch_var *v, ch_node *delta);
/* These functions change the rows `ids` (n) of axis 0 by `rows` (n, ...), in order, and return
 * the new value of the variable. Other rows are not touched. If the variable sums or averages
 * the values of several replicas, the rows of all replicas are used; ch_var_scatter_min,
 * ch_var_scatter_max and ch_var_scatter_update are then UNIMPLEMENTED. So are all of these
 * functions for a CH_SYNC_ON_READ variable with several copies. */
CH_API ch_node *ch_var_scatter_add(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_sub(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_mul(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_div(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_min(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_max(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_update(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);

#endif
