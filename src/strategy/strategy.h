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
#include "cohort/strategy.h"
#include "collective/group.h"
#include "tensor/tensor.h"

typedef struct ch_strategy_ops {
    const char *name;
    /* The devices that variables made now live on, and that a step run now uses; as many as
     * n_local. */
    ch_device *const *(*devices)(ch_strategy *st);
    void (*close)(ch_strategy *st); /* frees it; all its variables are gone */
} ch_strategy_ops;

struct ch_strategy {
    const ch_strategy_ops *ops;
    atomic_int             refs;
    int                    n_replicas; /* in the job */
    int                    n_local;    /* of those, in this process */
    ch_group              *group;      /* NULL for one replica */
    pthread_mutex_t        lock;       /* of what follows */
    ch_by_name             vars;       /* all of them, not referenced */
    atomic_uint            generation; /* changes when vars does */
};

struct ch_var {
    atomic_int   refs;
    ch_strategy *strategy; /* referenced */
    char        *name;
    ch_dtype     dtype;
    ch_shape     shape;
    bool         trainable;
    ch_var      *leader;   /* whose value it holds more exactly; NULL: nobody's */
    ch_var      *follower; /* the first of those that do so of this one, not referenced */
    ch_var      *next_follower;
    int          n_copies;
    ch_tensor   *copy[]; /* one for each local replica */
};

/* From now on who sets `leader` from outside sets `v` too, in v's dtype: a master follows its
 * 16-bit variable. Both are of one strategy. Ends with either of them. */
void ch__var_follow(ch_var *v, ch_var *leader);
/* One that does so already, referenced; NULL: there is none. */
ch_var *ch__var_follower(const ch_var *leader);

extern ch_strategy *ch__strategy_default(void);
/* The one meant by an argument: itself, or the current one. */
ch_strategy *ch__strategy_of(ch_strategy *st);
void         ch__strategy_init(ch_strategy *st, const ch_strategy_ops *ops, int n_replicas);

/* The storage of a variable, for graph/run.h. */
ch_status ch__var_storage(void *owner, const ch_resource *r, int local, void **out);

#endif
