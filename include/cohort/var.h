/* cohort/var.h -- variables: values that steps read and write, and that stay.
 *
 *     ch_var *w = NULL;
 *     rc = ch_var_new(NULL, &(ch_var_spec){.name = "w", .initial = tensor}, &w);
 *     rc = ch_var_new(NULL, &(ch_var_spec){.name = "b", .shape = ch_shape_of(64)}, &b);
 *
 * A variable belongs to the strategy that made it (NULL: the current scope's, else Default),
 * which decides where it lives. Names are unique in a strategy: a second "w" becomes "w_1". A
 * strategy outlives its variables: each holds a reference to it.
 *
 * Where there are several replicas, each has a copy, or they share one, as the strategy says. What a step
 * assigns is aggregated over the replicas (ch_aggregation), so that copies stay equal; with
 * CH_AGGREGATE_NONE, and in an update (cohort/replica.h), that is the caller's affair: an assign of what differs
 * between replicas makes the copies differ, of which the log warns once. A variable that is CH_SYNC_ON_READ has each replica's own value on
 * purpose, and is aggregated when it is read outside a step.
 *
 * In a step, ch_var_read gives its value as a node and the assigns replace it; a read after an
 * assign sees what was assigned. Nothing changes before the whole step has gone well on
 * every replica: a step that fails changes no variable. (With parameter servers, but for an update whose result the step has used.)
 *
 * A function that was recorded knows a variable by its name: when it is freed, and another is made that has the
 * name, dtype and shape, the function uses that one.
 *
 * A variable that is per_worker has no value of the job: under ParameterServer each worker has its own copy, and the program another
 * (cohort/parameter_server.h). Under other strategies it is a variable like any other, so that one step runs under all.
 *
 * Threads may make, read and free variables at the same time. Outside a step nothing keeps one that changes a
 * variable, by ch_var_set or a run, apart from another that reads or changes it: that is the caller's affair.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_VAR_H
#define COHORT_VAR_H

#include "cohort/init.h"
#include "cohort/step.h"
#include "cohort/value.h"

typedef struct ch_var      ch_var;
typedef struct ch_strategy ch_strategy;

/* When the copies of a variable are made to agree. */
typedef enum ch_sync {
    CH_SYNC_AUTO,     /* CH_SYNC_ON_WRITE */
    CH_SYNC_NONE,     /* never: only for a variable that has one copy */
    CH_SYNC_ON_WRITE, /* a step's assign is aggregated first, and all copies get the result */
    CH_SYNC_ON_READ /* each replica has its own; they are aggregated when it is read outside a step */
} ch_sync;

/* What the values of several replicas become. */
typedef enum ch_aggregation {
    CH_AGGREGATE_NONE, /* each assigns to its own copy, and may only assign what is equal */
    CH_AGGREGATE_SUM,  /* not of what is one for all: a constant, or a plain input as it came */
    CH_AGGREGATE_MEAN,
    CH_AGGREGATE_FIRST /* the first replica's */
} ch_aggregation;

typedef struct ch_var_spec {
    const char *name;    /* NULL: "Variable" */
    ch_tensor  *initial; /* its dtype, shape and first value; copied. NULL: as said below */
    int     trainable;   /* 0: yes, unless CH_SYNC_ON_READ or per_worker; 1: yes; CH_OFF: no */
    ch_sync sync;
    ch_aggregation aggregation;
    ch_dtype       dtype;
    ch_shape       shape;
    ch_init        init; /* zeros, unless said; its random values depend on the name */
    /* Each worker has its own. All of its sizes are said, it is not trainable (INVALID_ARGUMENT), and it is not made in a step
     * (FAILED_PRECONDITION), whatever the strategy. */
    bool per_worker;
} ch_var_spec;

CH_API CH_MUST_CHECK ch_status ch_var_new(ch_strategy *st, const ch_var_spec *spec,
                                          ch_var **out);
/* Another one that is like it: copies of its copies, on their devices; workers begin a per_worker one with the program's. Not in
 * another strategy's scope, nor in a step. */
CH_API CH_MUST_CHECK ch_status ch_var_clone(ch_var *v, ch_var **out);
CH_API ch_var                 *ch_var_ref(ch_var *v);
CH_API void                    ch_var_unref(ch_var *v);

CH_API const char  *ch_var_name(const ch_var *v);
CH_API ch_dtype     ch_var_dtype(const ch_var *v);
CH_API ch_shape     ch_var_shape(const ch_var *v);
CH_API bool         ch_var_is_trainable(const ch_var *v);
CH_API ch_strategy *ch_var_strategy(const ch_var *v);

CH_API ch_sync        ch_var_sync(const ch_var *v); /* never CH_SYNC_AUTO */
CH_API ch_aggregation ch_var_aggregation(const ch_var *v);
/* "MirroredVariable:{\n  0: w tensor(...),\n  1: w/replica_1 tensor(...)\n}" */
CH_API int ch_var_print(ch_var *v, char *text, size_t size);
/* "/job:ps/replica:0/task:1/device:CPU:0": where it is, or its first copy, or its first shard. */
CH_API const char *ch_var_device(const ch_var *v);

/* A variable that a strategy has cut (cohort/parameter_server.h) is one variable, and so is each of its shards, "w/part_0", which live
 * as long as it. One in one piece has one shard, itself. NULL: there are not so many. Borrowed. */
CH_API int     ch_var_shards(const ch_var *v);
CH_API ch_var *ch_var_shard(ch_var *v, int i);
/* Of a shard the variable that it is of, as long as there is that; of any other itself. Borrowed. */
CH_API ch_var *ch_var_whole(ch_var *v);

/* Outside a step (while one is recorded, and in a host function of one that runs, FAILED_PRECONDITION), and not
 * in another strategy's scope: a copy of the value, and setting it; a 16-bit variable's master
 * (cohort/optimizer.h) is set with it. The value is that of the copy on the current device, or else of the first;
 * of one that is CH_SYNC_ON_READ what the copies add up to, and setting it makes them add up to that. */
CH_API CH_MUST_CHECK ch_status ch_var_get(ch_var *v, ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_var_set(ch_var *v, ch_tensor *value);
/* Adds to it, or takes away. Not of one that is CH_SYNC_ON_READ and CH_AGGREGATE_SUM. */
CH_API CH_MUST_CHECK ch_status ch_var_add(ch_var *v, ch_tensor *delta);
CH_API CH_MUST_CHECK ch_status ch_var_sub(ch_var *v, ch_tensor *delta);
/* Rows of a variable, outside a step, without reading the others. (In a step, ch_gather of ch_var_read reads no others either.)
 * INVALID_ARGUMENT: the variable is a scalar. UNIMPLEMENTED: it holds strings. */

/* Reads rows `start` to `stop` - 1, every `step`-th, like a slice in Python: negative bounds count from the end, CH_SLICE_END
 * leaves a bound out, and a bound past an end is at that end. INVALID_ARGUMENT: the step is 0. */
enum { CH_SLICE_END = -2147483647 - 1 };
CH_API CH_MUST_CHECK ch_status ch_var_slice(ch_var *v, int64_t start, int64_t stop,
                                            int64_t step, ch_tensor **out);
/* Reads rows by id, in the order of `ids` (i32 or i64, any shape). The first axes of the result are those of `ids`.
 * INVALID_ARGUMENT: an id is out of range. */
CH_API CH_MUST_CHECK ch_status ch_var_lookup(ch_var *v, ch_tensor *ids, ch_tensor **out);
/* Reads one row: x[index]; a negative index counts from the end. INVALID_ARGUMENT: there is no such row. */
CH_API CH_MUST_CHECK ch_status ch_var_row(ch_var *v, int64_t index, ch_tensor **out);

/* The copies themselves, one for each replica of this process: mirrored; per-replica of one that is
 * CH_SYNC_ON_READ; plain if there is one. */
CH_API CH_MUST_CHECK ch_status ch_var_copies(ch_var *v, ch_value **out);

/* Returns the variable's value, in a step. Steps of any strategy may read the variables of Default, which
 * all replicas read. A step that workers run (cohort/parameter_server.h) reads the value that the variable of
 * Default has when the step is scheduled, also if the step is run again because a worker was lost. Steps of
 * Default may read the variables of every strategy: the first copy, the aggregate if the variable is
 * CH_SYNC_ON_READ, the program's copy if it is per_worker, or the value that servers have when the run starts.
 *
 * A read of another strategy's variable is not synchronised with runs that change the variable: the caller must
 * not run both at the same time, unless the variable is on servers. A function that reads another strategy's
 * variable keeps a reference to it. Other mixtures, and writes, are FAILED_PRECONDITION. */
CH_API ch_node *ch_var_read(ch_step *s, ch_var *v);
/* In a step. The assigns return the new value. Those of a replica are aggregated, as the variable says: all
 * replicas come to them, and each copy gets the result. In a merge call every copy is assigned the one value;
 * in an update each copy is assigned what its replica has (cohort/replica.h). */
CH_API ch_node *ch_var_assign(ch_step *s, ch_var *v, ch_node *value);
CH_API ch_node *ch_var_assign_add(ch_step *s, ch_var *v, ch_node *delta);
CH_API ch_node *ch_var_assign_sub(ch_step *s, ch_var *v, ch_node *delta);
/* Rows `ids` of axis 0 are changed by `rows`, one after another; other rows are not touched. Where values of
 * several replicas are added up or averaged, the rows of all of them are used; min, max and update are not for
 * such variables. */
CH_API ch_node *ch_var_scatter_add(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_sub(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_mul(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_div(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_min(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_max(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_var_scatter_update(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows);

#endif
