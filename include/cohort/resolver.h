/* cohort/resolver.h -- where it was learned who is in a job, and which task this process is.
 *
 *     rc = ch_resolver_auto(NULL, &r);               // whatever started this process
 *     rc = ch_resolver_cluster(r, &c);
 *     rc = ch_resolver_task_type(r, type, sizeof(type));
 *     rc = ch_resolver_task_id(r, &id);
 *
 * A resolver is counted. It asks its source each time that it is asked, so a cluster that has changed is
 * seen by the next call, and text that is wrong is an error of the call that reads it. What a program says,
 * when it makes the resolver or with a setter, goes before what the source says.
 *
 * A task type that nobody has said is "", a task id -1. An RPC layer, as in "grpc", is put before addresses, "grpc://host:2222";
 * "" is none. Two threads may ask a resolver at once, but not set it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_RESOLVER_H
#define COHORT_RESOLVER_H

#include "cohort/cluster.h"

typedef struct ch_resolver ch_resolver;

enum {
    CH_RPC_LAYER_BYTES = 32,
    CH_MASTER_BYTES = CH_ADDRESS_BYTES + CH_RPC_LAYER_BYTES + 4,
    CH_ACCELERATOR_TYPES = 8
};

/* How many devices of which types: {"GPU", 2}. */
typedef struct ch_accelerator_count {
    char type[32];
    int  count;
} ch_accelerator_count;

typedef struct ch_accelerators {
    int                  n;
    ch_accelerator_count item[CH_ACCELERATOR_TYPES];
} ch_accelerators;

/* What goes before the source's own words. */
typedef struct ch_resolver_options {
    const char *task_type;   /* NULL: as the source says */
    bool        has_task_id; /* false: as the source says */
    int         task_id;
    const char *rpc_layer;   /* NULL: as the source says; "": none */
    const char *environment; /* a note for the program, ch_resolver_environment */
} ch_resolver_options;

/* ---- the resolvers ---- */

typedef struct ch_simple_options {
    ch_resolver_options mine;
    const char         *master;       /* when no task is asked for; NULL: "" */
    ch_accelerators     accelerators; /* for ch_resolver_num_accelerators */
} ch_simple_options;

/* Of a cluster that the program has; keeps it. */
CH_API CH_MUST_CHECK ch_status ch_resolver_simple(ch_cluster *c, const ch_simple_options *opt,
                                                  ch_resolver **out);

/* Of the variable TF_CONFIG, which is JSON:
 *
 *     {"cluster": {"chief": ["c:2222"], "worker": ["w0:2222", "w1:2222"]},
 *      "task": {"type": "worker", "index": 1}}
 *
 * and may have "rpc_layer" and "session_master". Unset, it is {}: an empty cluster. */
CH_API CH_MUST_CHECK ch_status ch_resolver_tf_config(const ch_resolver_options *opt,
                                                     ch_resolver              **out);

typedef struct ch_slurm_count {
    const char *name; /* of a job, or of a host */
    int         tasks;
} ch_slurm_count;

typedef struct ch_slurm_options {
    int n_jobs;
    const ch_slurm_count
        *job;            /* by name, each takes the next tasks; n_jobs 0: all are "worker" */
    int  port_base;      /* 0: 8888 */
    int  gpus_per_node;  /* 0: those of CUDA_VISIBLE_DEVICES, or nvidia-smi's; CH_OFF: none */
    int  gpus_per_task;  /* 0: those of a node divided among its tasks; CH_OFF: none */
    int  tasks_per_node; /* on every host; 0: as SLURM_STEP_TASKS_PER_NODE says */
    int  n_hosts;        /* 0: those of SLURM_STEP_NODELIST */
    const ch_slurm_count *host; /* in the order of their ranks, with their tasks */
    ch_resolver_options   mine; /* rpc_layer NULL: "grpc" */
} ch_slurm_options;

/* Of the variables that srun sets for a step. Task k of a host listens at port_base + k. Hosts are in Slurm's order, so
 * that a rank's address is its own. NOT_FOUND names a variable that is missing. Which task this process is
 * is known once the cluster was asked for. */
CH_API CH_MUST_CHECK ch_status ch_resolver_slurm(const ch_slurm_options *opt,
                                                 ch_resolver           **out);
/* The GPUs of this task, "2,3", as CUDA_VISIBLE_DEVICES wants them; "": none. The library leaves the
 * environment alone: a program that wants it sets it, before it starts threads. */
CH_API CH_MUST_CHECK ch_status ch_resolver_slurm_gpus(ch_resolver *r, char *text, size_t size);

/* Of several, each knowing a part of the job; keeps them. Lists of a job follow each other in the order of the resolvers; where one
 * of them knows only some numbers, all keep theirs, and a number that comes twice is ALREADY_EXISTS. All
 * else the first one says. */
CH_API CH_MUST_CHECK ch_status ch_resolver_union(int n, ch_resolver *const *r,
                                                 const ch_resolver_options *opt,
                                                 ch_resolver              **out);

typedef struct ch_auto_options {
    ch_cluster             *cluster; /* NULL: the environment says it */
    ch_resolver_options     mine;
    const ch_slurm_options *slurm; /* for a job that Slurm started; NULL: workers, no GPUs */
    const char             *from;  /* "TF_CONFIG": this source and no other; NULL: any */
} ch_auto_options;

/* Which cluster am I in? What the options say; else COHORT_CLUSTER and COHORT_TASK ("COHORT"), TF_CONFIG, torchrun's variables ("torchrun"),
 * those of Open MPI, of PMI ("PMI": MPICH, Intel MPI), and of a step of Slurm, the first of these that is there;
 * ch_resolver_name says which, and so does the log. With none of them the cluster is empty and the name "none": this
 * process is alone.
 *
 * Two sources that disagree are FAILED_PRECONDITION, which names both: in the cluster or the task, or, of those that only say
 * a number and how many there are, in these. A source that started fewer processes than there are started
 * those who started this one (srun, then mpirun), and is not compared. torchrun, Open MPI and PMI do not say
 * addresses: they are "", but for that of worker 0 under torchrun. */
CH_API CH_MUST_CHECK ch_status ch_resolver_auto(const ch_auto_options *opt, ch_resolver **out);

CH_API ch_resolver *ch_resolver_ref(ch_resolver *r);
CH_API void         ch_resolver_unref(ch_resolver *r);

/* ---- asking one ---- */

CH_API const char *ch_resolver_name(const ch_resolver *r); /* "TF_CONFIG" */

/* Who is in the job now; a reference for the caller. */
CH_API CH_MUST_CHECK ch_status ch_resolver_cluster(ch_resolver *r, ch_cluster **out);

/* Where to connect: the address of a task, with the RPC layer before it; NULL, -1 and NULL are the resolver's own.
 * "" where there is nobody to connect to. CH_MASTER_BYTES are enough; what does not fit is OUT_OF_RANGE. */
CH_API CH_MUST_CHECK ch_status ch_resolver_master(ch_resolver *r, const char *task_type,
                                                  int task_id, const char *rpc_layer,
                                                  char *text, size_t size);

/* CH_JOB_BYTES and CH_RPC_LAYER_BYTES are enough. */
CH_API CH_MUST_CHECK ch_status ch_resolver_task_type(ch_resolver *r, char *text, size_t size);
CH_API CH_MUST_CHECK ch_status ch_resolver_task_id(ch_resolver *r, int *out);
CH_API CH_MUST_CHECK ch_status ch_resolver_rpc_layer(ch_resolver *r, char *text, size_t size);
CH_API const char *
ch_resolver_environment(const ch_resolver *r); /* "" if not said, of TF_CONFIG NULL */

/* Devices of this process that are not CPUs. Of one task if both are said, and only if these are its devices
 * (ch_devices_configure says whose they are). */
CH_API CH_MUST_CHECK ch_status ch_resolver_num_accelerators(ch_resolver *r,
                                                            const char *task_type, int task_id,
                                                            ch_accelerators *out);

/* From now on instead of what the source says; NULL and -1: as the source says again. */
CH_API CH_MUST_CHECK ch_status ch_resolver_set_task_type(ch_resolver *r, const char *task_type);
CH_API CH_MUST_CHECK ch_status ch_resolver_set_task_id(ch_resolver *r, int task_id);
CH_API CH_MUST_CHECK ch_status ch_resolver_set_rpc_layer(ch_resolver *r, const char *rpc_layer);

/* ---- writing one ---- */

/* Which task this process is. */
typedef struct ch_resolver_self {
    char task_type[CH_JOB_BYTES]; /* "": not said */
    int  task_id;                 /* -1: not said */
    char rpc_layer[CH_RPC_LAYER_BYTES];
} ch_resolver_self;

/* The first three and close are there; an entry that is NULL does as its comment says. */
typedef struct ch_resolver_ops {
    const char *name;
    ch_status (*cluster)(void *self, ch_cluster **out); /* anew each time */
    /* What the source says of this process; *out is empty before. */
    ch_status (*self)(void *self, ch_resolver_self *out);
    /* `asked` are the arguments of ch_resolver_master, "" and -1 where there are none, but for the RPC layer, which is
     * final; `mine` is this process, with what was set. NULL: the address of the one, else of the other. */
    ch_status (*master)(void *self, const ch_resolver_self *asked, const ch_resolver_self *mine,
                        char text[CH_MASTER_BYTES]);
    /* NULL: devices of this process, as ch_resolver_num_accelerators says. */
    ch_status (*accelerators)(void *self, const ch_resolver_self *asked,
                              const ch_resolver_self *mine, ch_accelerators *out);
    void (*close)(void *self);
} ch_resolver_ops;

/* `ops` and `self` are borrowed until close is called, which on an error is not. */
CH_API CH_MUST_CHECK ch_status ch_resolver_new(const ch_resolver_ops *ops, void *self,
                                               const ch_resolver_options *opt,
                                               ch_resolver              **out);

#endif
