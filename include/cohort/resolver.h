/* cohort/resolver.h -- resolvers: where a process finds its cluster and its own task in it.
 *
 * A resolver reads a source, such as TF_CONFIG or the variables of Slurm, and returns the
 * cluster and the task type and id of this process: the ClusterResolver of TensorFlow.
 *
 *     rc = ch_resolver_auto(NULL, &r);               // from the environment
 *     rc = ch_resolver_cluster(r, &c);
 *     rc = ch_resolver_task_type(r, type, sizeof(type));
 *     rc = ch_resolver_task_id(r, &id);
 *
 *   - A resolver reads its source on each call. The next call sees a cluster that has changed.
 *     Invalid text is an error of the call that reads it.
 *   - The options of the program, and the setters below, override the source.
 *   - A task type that is not known is "", and a task id -1.
 *   - An RPC layer, such as "grpc", is written before addresses: "grpc://host:2222". "" means
 *     none.
 *   - Resolvers are reference counted. Several threads may read a resolver at the same time,
 *     but none of them may use it while another calls a setter.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_RESOLVER_H
#define COHORT_RESOLVER_H

#include "cohort/cluster.h"

typedef struct ch_resolver ch_resolver;

enum {
    CH_RPC_LAYER_BYTES = 32, /* bytes of an RPC layer, with the final 0 */
    /* Bytes of an address with its RPC layer, with the final 0. */
    CH_MASTER_BYTES = CH_ADDRESS_BYTES + CH_RPC_LAYER_BYTES + 4,
    CH_ACCELERATOR_TYPES = 8 /* most types of devices */
};

/* The number of devices of a type: {"GPU", 2}. */
typedef struct ch_accelerator_count {
    char type[32];
    int  count;
} ch_accelerator_count;

/* Numbers of devices, for `n` types. */
typedef struct ch_accelerators {
    int                  n;
    ch_accelerator_count item[CH_ACCELERATOR_TYPES];
} ch_accelerators;

/* Values that override the source. */
typedef struct ch_resolver_options {
    const char *task_type;   /* NULL: from the source */
    bool        has_task_id; /* false: the task id is from the source */
    int         task_id;
    const char *rpc_layer;   /* NULL: from the source; "": none */
    const char *environment; /* a note for the program, see ch_resolver_environment */
} ch_resolver_options;

/* ---- the resolvers ---- */

typedef struct ch_simple_options {
    ch_resolver_options mine;
    const char         *master;       /* ch_resolver_master without a task; NULL: "" */
    ch_accelerators     accelerators; /* result of ch_resolver_num_accelerators */
} ch_simple_options;

/* Creates a resolver for a given cluster. Holds a reference to the cluster. */
CH_API CH_MUST_CHECK ch_status ch_resolver_simple(ch_cluster *c, const ch_simple_options *opt,
                                                  ch_resolver **out);

/* Creates a resolver that reads the variable TF_CONFIG, which is JSON:
 *
 *     {"cluster": {"chief": ["c:2222"], "worker": ["w0:2222", "w1:2222"]},
 *      "task": {"type": "worker", "index": 1}}
 *
 * "rpc_layer" and "session_master" are optional. If the variable is not set, the cluster is
 * empty. */
CH_API CH_MUST_CHECK ch_status ch_resolver_tf_config(const ch_resolver_options *opt,
                                                     ch_resolver              **out);

typedef struct ch_slurm_count {
    const char *name;  /* of a job, or of a host */
    int         tasks; /* number of tasks */
} ch_slurm_count;

typedef struct ch_slurm_options {
    int n_jobs;
    /* Jobs with their numbers of tasks. Sorted by name, each job takes the next tasks. n_jobs
     * 0: all tasks are "worker". */
    const ch_slurm_count *job;
    int                   port_base; /* 0: 8888 */
    /* GPUs of a node. 0: from CUDA_VISIBLE_DEVICES, or from nvidia-smi; CH_OFF: none. */
    int gpus_per_node;
    int gpus_per_task;          /* 0: the GPUs of a node divided by its tasks; CH_OFF: none */
    int tasks_per_node;         /* the same for every host; 0: from SLURM_STEP_TASKS_PER_NODE */
    int n_hosts;                /* 0: the hosts of SLURM_STEP_NODELIST */
    const ch_slurm_count *host; /* hosts in rank order, with their numbers of tasks */
    ch_resolver_options   mine; /* rpc_layer NULL: "grpc" */
} ch_slurm_options;

/* Creates a resolver that reads the variables that srun sets for a step. Task k of a host
 * listens on port_base + k. Hosts keep the order of Slurm, so that each rank has its own
 * address. The task of this process is known after the first call of ch_resolver_cluster.
 * NOT_FOUND: a variable is missing; the error names it. */
CH_API CH_MUST_CHECK ch_status ch_resolver_slurm(const ch_slurm_options *opt,
                                                 ch_resolver           **out);
/* Writes the GPUs of this task, such as "2,3", in the format of CUDA_VISIBLE_DEVICES; "" if
 * there are none. The library does not change the environment: the program may set that
 * variable before it starts threads. */
CH_API CH_MUST_CHECK ch_status ch_resolver_slurm_gpus(ch_resolver *r, char *text, size_t size);

/* Creates a resolver that merges the clusters of several resolvers, each of which knows a part
 * of the job. Holds references to them. The tasks of a job are numbered consecutively, in the
 * order of the resolvers. If a resolver knows only some task numbers of a job, all tasks keep
 * their numbers; a number that occurs twice is ALREADY_EXISTS. Everything else comes from the
 * first resolver. */
CH_API CH_MUST_CHECK ch_status ch_resolver_union(int n, ch_resolver *const *r,
                                                 const ch_resolver_options *opt,
                                                 ch_resolver              **out);

typedef struct ch_auto_options {
    ch_cluster             *cluster; /* NULL: from the environment */
    ch_resolver_options     mine;
    const ch_slurm_options *slurm; /* for a step of Slurm; NULL: all workers, no GPUs */
    const char             *from;  /* only this source, such as "TF_CONFIG"; NULL: any */
} ch_auto_options;

/* Creates a resolver for the cluster that this process was started in. The first of these
 * sources that is present is used; ch_resolver_name returns its name, and the log has it too:
 *   - "options": the cluster of the options.
 *   - "COHORT": COHORT_CLUSTER and COHORT_TASK. COHORT_TASK alone selects the task in the
 *     cluster of another source.
 *   - "TF_CONFIG": TF_CONFIG.
 *   - "torchrun": RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Only worker 0 has an address;
 *     the others are "".
 *   - "Open MPI", "PMI" (MPICH, Intel MPI): a rank and a size. All addresses are "".
 *   - "Slurm": the variables of a step.
 *   - "none": no source is present. The cluster is empty, and this process is alone.
 *
 * If several sources are present, they must agree: COHORT and TF_CONFIG in cluster and task,
 * others in the number of tasks and in the rank. Otherwise the call returns
 * FAILED_PRECONDITION, which names both sources. A source with fewer tasks than the source in
 * use is not compared, because it has started the launcher and not this process. An example is
 * srun that starts mpirun. */
CH_API CH_MUST_CHECK ch_status ch_resolver_auto(const ch_auto_options *opt, ch_resolver **out);

CH_API ch_resolver *ch_resolver_ref(ch_resolver *r);
CH_API void         ch_resolver_unref(ch_resolver *r);

/* ---- reading and setting a resolver ---- */

CH_API const char *ch_resolver_name(const ch_resolver *r); /* such as "TF_CONFIG" */

/* Returns the cluster as it is now. The caller owns the reference. */
CH_API CH_MUST_CHECK ch_status ch_resolver_cluster(ch_resolver *r, ch_cluster **out);

/* Writes the address of a task with its RPC layer. task_type NULL, task_id -1 and rpc_layer
 * NULL stand for those of this process, or for the option `master` of ch_resolver_simple.
 * Writes "" if there is no task to connect to. A buffer of CH_MASTER_BYTES is large enough.
 * OUT_OF_RANGE: the text does not fit. */
CH_API CH_MUST_CHECK ch_status ch_resolver_master(ch_resolver *r, const char *task_type,
                                                  int task_id, const char *rpc_layer,
                                                  char *text, size_t size);

/* These functions write the task type, the task id and the RPC layer of this process. Buffers
 * of CH_JOB_BYTES and CH_RPC_LAYER_BYTES are large enough. OUT_OF_RANGE: the text does not
 * fit. */
CH_API CH_MUST_CHECK ch_status ch_resolver_task_type(ch_resolver *r, char *text, size_t size);
CH_API CH_MUST_CHECK ch_status ch_resolver_task_id(ch_resolver *r, int *out);
CH_API CH_MUST_CHECK ch_status ch_resolver_rpc_layer(ch_resolver *r, char *text, size_t size);
/* Returns the note of the options. Without a note, returns "", or NULL for
 * ch_resolver_tf_config. */
CH_API const char *ch_resolver_environment(const ch_resolver *r);

/* Counts the devices of this process that are not CPUs. If both task_type and task_id are
 * given, counts only devices that belong to that task (ch_devices_configure sets the task of
 * devices). A resolver of ch_resolver_simple returns the numbers of its options, and a resolver
 * of ch_resolver_slurm the GPUs of a task. */
CH_API CH_MUST_CHECK ch_status ch_resolver_num_accelerators(ch_resolver *r,
                                                            const char *task_type, int task_id,
                                                            ch_accelerators *out);

/* The setters override the source from now on. NULL and -1 restore the value of the source. */
CH_API CH_MUST_CHECK ch_status ch_resolver_set_task_type(ch_resolver *r, const char *task_type);
CH_API CH_MUST_CHECK ch_status ch_resolver_set_task_id(ch_resolver *r, int task_id);
CH_API CH_MUST_CHECK ch_status ch_resolver_set_rpc_layer(ch_resolver *r, const char *rpc_layer);

/* ---- custom resolvers ---- */

/* The task of this process. */
typedef struct ch_resolver_self {
    char task_type[CH_JOB_BYTES];       /* "": not known */
    int  task_id;                       /* -1: not known */
    char rpc_layer[CH_RPC_LAYER_BYTES]; /* "": none */
} ch_resolver_self;

/* The functions of a resolver. name, cluster, self and close must not be NULL. */
typedef struct ch_resolver_ops {
    const char *name;
    /* Returns the cluster as it is now, with a reference for the caller. */
    ch_status (*cluster)(void *self, ch_cluster **out);
    /* Writes the task of this process. *out is "", -1 and "" before the call. */
    ch_status (*self)(void *self, ch_resolver_self *out);
    /* Writes the address for ch_resolver_master. `asked` has its arguments, "" and -1 if not
     * given; its RPC layer is the final choice. `mine` is the task of this process, with the
     * overrides. NULL: the address of the task in `asked`, completed by `mine`. */
    ch_status (*master)(void *self, const ch_resolver_self *asked, const ch_resolver_self *mine,
                        char text[CH_MASTER_BYTES]);
    /* Counts devices for ch_resolver_num_accelerators. NULL: the devices of this process. */
    ch_status (*accelerators)(void *self, const ch_resolver_self *asked,
                              const ch_resolver_self *mine, ch_accelerators *out);
    void (*close)(void *self); /* called when the last reference is dropped */
} ch_resolver_ops;

/* Creates a resolver. `ops` and `self` are borrowed until `close` is called. On an error
 * `close` is not called. */
CH_API CH_MUST_CHECK ch_status ch_resolver_new(const ch_resolver_ops *ops, void *self,
                                               const ch_resolver_options *opt,
                                               ch_resolver              **out);

#endif
