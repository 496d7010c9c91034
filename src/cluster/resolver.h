/* cluster/resolver.h -- what resolvers share.   SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_RESOLVER_H
#define CLUSTER_RESOLVER_H

#include "cluster/cluster.h"
#include "cohort/resolver.h"

/* The one place of this module where the environment is read. NULL: it is not set. */
const char *ch__variable(const char *name);
/* The same, where one that is empty is not set. */
const char *ch__variable_said(const char *name);

/* Returns the name of the launcher (torchrun, Open MPI, PMI, Slurm) that started this process as one of several
 * copies, with its rank and their number; NULL if no launcher has set a rank and a size above 1. */
const char *ch__launcher(int *rank, int *copies);

/* ch_resolver_new, with the environment where the options do not say it; NULL: none. */
CH_MUST_CHECK ch_status ch__resolver_make(const ch_resolver_ops *ops, void *self,
                                          const ch_resolver_options *opt,
                                          const char *environment, ch_resolver **out);
/* What a resolver was made with, if these are its ops; else NULL. */
void *ch__resolver_is(const ch_resolver *r, const ch_resolver_ops *ops);
/* Which task this process is: what was set, else what the source says. */
CH_MUST_CHECK ch_status ch__resolver_mine(ch_resolver *r, ch_resolver_self *out);

/* Bounded copies; INVALID_ARGUMENT names `what` where it does not fit. */
CH_MUST_CHECK ch_status ch__take_text(const char *what, const char *from, char *to,
                                      size_t size);
/* What was asked for, and what was not, as this process is. */
ch_resolver_self ch__asked_or_mine(const ch_resolver_self *asked, const ch_resolver_self *mine);
/* "grpc://host:2222", the address of a task of a cluster. */
CH_MUST_CHECK ch_status ch__task_master(const ch_cluster *c, const ch_resolver_self *task,
                                        char text[CH_MASTER_BYTES]);
/* Devices of this process, without CPUs; of one task if type and id are said. */
CH_MUST_CHECK ch_status ch__count_accelerators(const ch_resolver_self *of,
                                               ch_accelerators        *out);

/* What {"cluster": ..., "task": ...} says; `what` is its name in messages. */
typedef struct ch_tf_config {
    ch_cluster      *cluster; /* NULL: nothing */
    ch_resolver_self self;
    bool             has_master;
    char             master[CH_MASTER_BYTES];
} ch_tf_config;
CH_MUST_CHECK ch_status ch__tf_config_parse(const char *what, const char *text,
                                            ch_tf_config *out);
void                    ch__tf_config_drop(ch_tf_config *t);

#endif
