/* cluster/resolver.h -- helpers shared by the resolvers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_RESOLVER_H
#define CLUSTER_RESOLVER_H

#include "cluster/cluster.h"
#include "cohort/resolver.h"

/* Returns the value of an environment variable, or NULL if it is not set. The module reads the
 * environment only here and in ch__env_nonempty. */
const char *ch__env(const char *name);
/* Does the same as ch__env, but returns NULL also if the value is empty. */
const char *ch__env_nonempty(const char *name);

/* Returns the name of the launcher (torchrun, Open MPI, PMI, Slurm) that started this process
 * as one of several copies, with its rank and their number. Returns NULL if no launcher has set
 * a rank and a size above 1. */
const char *ch__launcher(int *rank, int *copies);

/* Does the same as ch_resolver_new. `environment` is the note of ch_resolver_environment if the
 * options have none; NULL is allowed. */
CH_MUST_CHECK ch_status ch__resolver_make(const ch_resolver_ops *ops, void *self,
                                          const ch_resolver_options *opt,
                                          const char *environment, ch_resolver **out);
/* Returns the `self` of a resolver if it has these ops, else NULL. `r` may be NULL. */
void *ch__resolver_self_of(const ch_resolver *r, const ch_resolver_ops *ops);
/* Stores the task of this process: the values set by the program, else those of the source. */
CH_MUST_CHECK ch_status ch__resolver_own_task(ch_resolver *r, ch_resolver_self *out);

/* Copies a text to a buffer of `size` bytes. Returns INVALID_ARGUMENT, with `label` in the
 * message, if it does not fit. */
CH_MUST_CHECK ch_status ch__copy_text(const char *label, const char *from, char *to,
                                      size_t size);
/* Copies a text to the caller's buffer. Returns OUT_OF_RANGE if it does not fit. */
CH_MUST_CHECK ch_status ch__store_text(const char *label, const char *from, char *text,
                                       size_t size);
/* Returns `requested`, with its missing type and id replaced by those of this process. */
ch_resolver_self ch__requested_or_own(const ch_resolver_self *requested,
                                      const ch_resolver_self *mine);
/* Writes the address of a task with its RPC layer: "grpc://host:2222". */
CH_MUST_CHECK ch_status ch__task_master(const ch_cluster *c, const ch_resolver_self *task,
                                        char text[CH_MASTER_BYTES]);
/* Counts the devices of this process, except CPUs. If `of` has a type and an id, counts only
 * the devices of that task. */
CH_MUST_CHECK ch_status ch__count_accelerators(const ch_resolver_self *of,
                                               ch_accelerators        *out);

/* The contents of a text {"cluster": ..., "task": ...}. */
typedef struct ch_tf_config {
    ch_cluster      *cluster; /* NULL before the text was parsed */
    ch_resolver_self self;
    bool             has_master; /* true: the text has a "session_master" */
    char             master[CH_MASTER_BYTES];
} ch_tf_config;
/* Parses the text. `label` is its name in messages. On success the caller must call
 * ch__tf_config_drop. */
CH_MUST_CHECK ch_status ch__tf_config_parse(const char *label, const char *text,
                                            ch_tf_config *out);
void                    ch__tf_config_drop(ch_tf_config *t);

#endif
