/* strategy/strategy.h -- the inside of a strategy: its devices, its variables, how they meet.
 *
 * A strategy of this process is its list of devices: one replica on each, a copy of every
 * variable on each. One device is no special case anywhere.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_STRATEGY_H
#define STRATEGY_STRATEGY_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/by_name.h"
#include "cohort/extended.h"
#include "cohort/iterator.h"
#include "cohort/replica.h"
#include "cohort/strategy_ops.h"
#include "collective/group.h"
#include "graph/step.h"
#include "strategy/devices.h"
#include "tensor/tensor.h"

typedef struct ch_away_run ch_away_run; /* one that was begun, and goes on in another task */

/* Variables that are in other tasks. */
typedef struct ch_away_vars {
    /* Gives `v` its place, v->away, and its first value: `initial`, or, if that is NULL, what `init` says, which has parts
     * (kernel/init.h). `beside` is the variable that it is to be with, or NULL. */
    ch_status (*create)(ch_strategy *st, ch_var *v, ch_tensor *initial, const ch_init *init,
                        const ch_var *beside);
    void (*drop)(ch_var *v); /* its place, if it has one */
    ch_device *(*device)(const ch_var *v);
    ch_status (*get)(ch_var *v, ch_tensor **out);
    ch_status (*set)(ch_var *v, ch_tensor *value);
    ch_status (*add)(ch_var *v, ch_tensor *delta, bool takes_away);
    /* The values that they have now are kept, for runs that read them. */
    ch_status (*pin)(ch_strategy *st, uint64_t *out);
    void (*unpin)(ch_strategy *st, uint64_t pin);
} ch_away_vars;

/* Runs that go on in other tasks. */
typedef struct ch_away_runs {
    int (*workers)(ch_strategy *st); /* how many tasks run steps */
    /* `is_own`: it is the caller's affair alone, as one that reads a pin (0: none) always is; else see ch__strategy_run_ahead. */
    ch_status (*begin)(const ch_run *run, uint64_t pin, bool is_own, ch_away_run **out);
    bool (*has_ended)(const ch_away_run *r);
    ch_status (*fetch)(ch_away_run *r, ch_tuple **out); /* waits for it */
    void (*leave)(ch_away_run *r);
    ch_status (*room)(ch_strategy *st,
                      bool         is_own);       /* waits while workers have enough such to do */
    ch_status (*settle)(ch_strategy *st); /* waits for all that are nobody's own */
} ch_away_runs;

struct ch_strategy {
    const ch_strategy_ops *ops;
    void                  *self;      /* for ops */
    const ch_away_vars    *away_vars; /* NULL: its variables are in this process, */
    const ch_away_runs    *away_runs; /* NULL: and so are its runs */
    atomic_int             refs;
    int                    n_replicas; /* in the job */
    int                    n_local;    /* of those, in this process */
    ch_group              *group;      /* NULL for one replica */
    char                   label[96];  /* for messages: "Mirrored#2 (GPU:0, GPU:1)" */
    ch_strategy_parts      parts;      /* as it was made; its traits point to these: */
    ch_strategy_traits     traits;
    pthread_mutex_t        lock;       /* of what follows */
    ch_by_name             vars;       /* all of them, not referenced */
    atomic_uint            generation; /* changes when vars does */
};

struct ch_var {
    atomic_int     refs;
    ch_strategy   *strategy; /* referenced */
    char          *name;
    ch_dtype       dtype;
    ch_shape       shape;
    bool           trainable;
    bool           per_worker;
    ch_var        *leader;   /* whose value it holds more exactly; NULL: nobody's */
    ch_var        *follower; /* the first of those that do so of this one, not referenced */
    ch_var        *next_follower;
    ch_sync        sync; /* never CH_SYNC_AUTO */
    ch_aggregation aggregation;
    atomic_bool    has_warned; /* that its copies will differ */
    void          *away;       /* where it is, if that is another task: then its copy is NULL */
    void          *each; /* of one that is per_worker, where workers have theirs; else NULL */
    int            n_shards; /* 0: it is in one piece */
    ch_var       **shard;    /* referenced */
    ch_var        *whole;    /* of a shard, not referenced; NULL: it is none, or that is gone */
    ch_tensor     *snapshot; /* of ch__var_snapshot, under the strategy's lock; or NULL */
    int            n_copies;
    ch_tensor     *copy[]; /* one for each local replica, or one that they share */
};

/* The copy of a local replica. */
static inline ch_tensor *ch__var_copy(const ch_var *v, int local)
{
    return v->copy[v->n_copies > 1 ? local : 0];
}

/* From now on who sets `leader` from outside sets `v` too, in v's dtype: a master follows its
 * 16-bit variable. Both are of one strategy. Ends with either of them. */
void ch__var_follow(ch_var *v, ch_var *leader);
/* One that does so already, referenced; NULL: there is none. */
ch_var *ch__var_follower(const ch_var *leader);

/* The variable of another task that this tensor was fetched from by ch_var_copies; NULL: none. */
ch_var *ch__var_fetched_as(const ch_tensor *t);

/* As ch_var_new, for one that belongs to another: they are where that is. */
ch_status ch__var_new_beside(const ch_var_spec *spec, const ch_var *beside, ch_var **out);
/* A part of `whole`, "<name>/part_<i>", which has a place already. For those who make `whole`. */
ch_status ch__var_part(ch_strategy *st, ch_var *whole, int i, ch_shape shape, void *away,
                       ch_var **out);
/* All variables, by name, each referenced, in memory that ch__free returns. */
ch_status ch__strategy_vars(ch_strategy *st, int *n, ch_var ***out);
/* The variable that a graph names, referenced; NOT_FOUND, or FAILED_PRECONDITION if it is another now. */
ch_status ch__var_of_resource(ch_strategy *st, const ch_resource *r, ch_var **out);

ch_strategy *ch__strategy_default(void);
/* Who distributed what the iterator gives; NULL: nobody. Borrowed. (input.c) */
ch_strategy *ch__iterator_strategy(const ch_iterator *it);
/* The one meant by an argument: itself, or the current one. */
ch_strategy *ch__strategy_of(ch_strategy *st);
/* The same in *st, for a call that is for code outside replicas: FAILED_PRECONDITION in a step (which names
 * `instead`, if it is not NULL) and in another strategy's scope. */
ch_status ch__strategy_cross(ch_strategy **st, const char *call, const char *instead);
/* As ch_strategy_new, in memory that is the caller's. */
ch_status ch__strategy_init(ch_strategy *st, const ch_strategy_ops *ops, void *self,
                            const ch_strategy_parts *parts);
/* The devices of its replicas, as they are now; INVALID_ARGUMENT if they cannot be that. */
ch_status ch__strategy_devices(const ch_strategy *st, ch_device *const **out);

/* INVALID_ARGUMENT for options that make no sense. (communication.c) */
ch_status ch__communication_check(const char *name, const ch_communication_options *c);
/* The strategy's options, and over them a call's (NULL: none), which are checked. */
ch_status ch__communication_of(const ch_strategy *st, const char *call,
                               const ch_communication_options *over,
                               ch_communication_options       *out);

/* Returns whether `call` may write v in s; if not, the error sticks to s. (assign.c) */
bool ch__var_may_write(ch_step *s, const ch_var *v, const char *call, const void *caller);
/* Returns whether steps of `st` may read variables of `of`: their own, Default's, and under Default those
 * of every strategy. (assign.c) */
bool ch__strategy_may_read(const ch_strategy *st, const ch_strategy *of);
/* Whether v has one value outside replicas, and may be changed by something there. (assign.c) */
ch_status ch__var_check_read(const ch_var *v);
ch_status ch__var_check_change(const ch_var *v, const char *name);
/* Whether the code of this thread may read or change v: it is outside steps, and in no other strategy's scope. (var_value.c) */
ch_status ch__var_check_outside(const ch_var *v, const char *instead);
/* ch_var_get and ch_var_set wherever the code is: for variables that are being made. (var_value.c) */
ch_status ch__var_get(ch_var *v, ch_tensor **out);
ch_status ch__var_set(ch_var *v, ch_tensor *value);
/* Each replica has a value of its own, on purpose. */
static inline bool ch__var_is_own(const ch_var *v)
{
    return v->sync == CH_SYNC_ON_READ && v->n_copies > 1;
}
/* The specification as hooks and colocation make it, in *spec and *device, which is that of the variable to be
 * beside, or NULL. (create.c) */
ch_status ch__var_specify(ch_strategy *st, ch_var_spec *spec, const ch_var **beside);
/* How many of each this thread has entered and not left. (create.c) */
int ch__colocate_depth(void);
int ch__creator_depth(void);
/* Whom the code that is being recorded speaks of. (merge.c) */
ch_speaks_of ch__speaks_of(const ch_step *s);

/* The graph of a step for such inputs, referenced, and the number of this run. `rows_unknown`: those of `in` mean nothing. */
ch_status ch__strategy_record(ch_strategy *st, ch_function *f, ch_tuple *in, bool rows_unknown,
                              ch_graph **out, int64_t *number);

/* ---- runs of a strategy whose steps run in other tasks (away.c) ---- */

static inline bool ch__strategy_is_away(const ch_strategy *st)
{
    return st->away_runs != NULL;
}
/* Waits for it. */
ch_status ch__away_run(const ch_run *run, ch_tuple **out);
/* How many tasks run steps; 0: this process does. */
int ch__strategy_workers(ch_strategy *st);
/* ch_strategy_run for somebody who goes on meanwhile. `pin` 0: an error is that of settle too, or of the next such call, and ends all
 * that was begun so; steps are in the mode of the strategy's coordinator. Else it reads the variables as they were
 * pinned, and is nobody's affair but the caller's. */
ch_status ch__strategy_run_ahead(ch_strategy *st, ch_function *f, ch_tuple *in, uint64_t pin,
                                 ch_away_run **out);
/* What became of one: waits for it. `out` NULL: its results do not matter. */
ch_status ch__away_fetch(const ch_strategy *st, ch_away_run *r, ch_tuple **out);
bool      ch__away_has_ended(const ch_strategy *st, const ch_away_run *r);
void      ch__away_leave(const ch_strategy *st, ch_away_run *r); /* it goes on; NULL is fine */
/* Waits while more such runs wait already than keep the workers busy: runs that read this pin, or those that read none. */
ch_status ch__strategy_room(ch_strategy *st, uint64_t pin);
/* Waits for all that was begun without a pin: its first error. */
ch_status ch__strategy_settle(ch_strategy *st);
/* The values that variables have now are kept for runs with this pin. */
ch_status ch__strategy_pin(ch_strategy *st, uint64_t *out);
void      ch__strategy_unpin(ch_strategy *st, uint64_t pin); /* 0 is fine */

/* ch_strategy_run, and where its time went: also that of one that failed. */
ch_status ch__strategy_run_timed(ch_strategy *st, ch_function *f, ch_tuple *in, ch_tuple **out,
                                 ch_timing *timing);

/* For graph/run.h (var.c): the storage of a variable; after a run, INTERNAL if the copies of a variable that
 * should be equal are not; before an update, FAILED_PRECONDITION if it would change some of a variable's copies
 * and not the others. */
ch_status ch__var_storage(void *owner, const ch_resource *r, int local, void **out);
/* For graph/run.h (var_value.c): the value of another strategy's variable. A mirrored variable gives its
 * first copy, a sync-on-read variable the aggregate of its copies, a remote variable is fetched. */
ch_status ch__var_borrow(void *owner, const ch_resource *r, ch_tensor **out);
/* Returns the value of a variable of Default in a tensor that nobody changes, for steps that run later. It is the
 * same tensor again while the value is, byte by byte: steps that wait for workers share it. (var_value.c) */
ch_status ch__var_snapshot(ch_var *v, ch_tensor **out);
ch_status ch__vars_check_copies(const ch_run *run, const ch_graph *g);
ch_status ch__vars_check_update(const ch_run *run, const ch_graph *g);

#endif
