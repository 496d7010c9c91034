/* cohort/tpu.h -- TPUStrategy, and TPU systems: topologies, device assignments, and the TPU
 * devices of this process.
 *
 * The cores of a TPU system form a mesh: chips at x, y and z, and the cores of each chip. A
 * topology says where in the mesh the devices of each task are. A device assignment gives cores
 * to replicas:
 *
 *     rc = ch_resolver_tpu("", NULL, &r);            // COHORT_DEVICES="TPU=8"
 *     rc = ch_resolver_connect(r);
 *     rc = ch_tpu_initialize(r, &t);                 // a mesh of 2x2x1x2 cores
 *     ch_tpu_build b = {.n = 3, .shape = {1, 1, 2}, .replicas = 4};
 *     rc = ch_tpu_assignment_build(t, &b, &a);       // 4 replicas of 2 cores each
 *     rc = ch_strategy_tpu(r, a, NULL, &st);
 *
 *   - A vector (sizes of a mesh, coordinates, a shape, a stride) has 4 entries, for x, y, z and
 *     core, or 3, for x, y and core. With 3 entries the mesh has a single layer: its size in z
 *     is 1, and the coordinate z is 0.
 *   - The TPU devices of a process are virtual. Each core is a device with its own threads and
 *     memory (cohort/device.h). Topologies and assignments are plain data and may also describe
 *     cores that this process does not have.
 *   - Topologies and assignments are reference counted and never change, so several threads may
 *     use them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_TPU_H
#define COHORT_TPU_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/device.h"
#include "cohort/logical.h"
#include "cohort/resolver.h"
#include "cohort/strategy.h"

enum {
    CH_TPU_AXES = 4,               /* axes of a mesh: x, y, z, core */
    CH_TPU_CORES_MAX = 1024 * 1024 /* largest number of cores of a mesh */
};

/* ---- topologies ---- */

typedef struct ch_tpu_topology ch_tpu_topology;

/* The contents of a topology. */
typedef struct ch_tpu_mesh {
    int n;                 /* number of entries of each vector: 3 or 4; 0: 4 */
    int size[CH_TPU_AXES]; /* size of the mesh along each axis, such as {2, 2, 1, 2} */
    int tasks;             /* number of tasks; 0: 1 */
    int devices;           /* number of devices of each task; 0: cores / tasks */
    /* Coordinates of all devices, task by task, with n numbers for each device. NULL: the tasks
     * take consecutive cores, where the core changes fastest, then x, y and z. */
    const int *at;
    /* Hardware for embeddings: its generation (0: none, 1, 2), and its devices on each chip. */
    int embedding, embedding_devices;
} ch_tpu_mesh;

/* Creates a topology. Copies the coordinates. INVALID_ARGUMENT: a size is less than 1, there
 * are more devices than cores, a device is outside the mesh, or two devices are at the same
 * coordinates. A core of the mesh without a device is missing. */
CH_API CH_MUST_CHECK ch_status ch_tpu_topology_new(const ch_tpu_mesh *mesh,
                                                   ch_tpu_topology  **out);

/* Decodes TensorFlow's TopologyProto. The bytes may be untrusted. */
CH_API CH_MUST_CHECK ch_status ch_tpu_topology_parse(const void *bytes, size_t n,
                                                     ch_tpu_topology **out);
/* Encodes the topology as TensorFlow's TopologyProto. A topology that was decoded gives the
 * same bytes again. The caller frees `*bytes` with ch_bytes_free. */
CH_API CH_MUST_CHECK ch_status ch_tpu_topology_encode(const ch_tpu_topology *t, void **bytes,
                                                      size_t *n);

CH_API ch_tpu_topology *ch_tpu_topology_ref(ch_tpu_topology *t);
CH_API void             ch_tpu_topology_unref(ch_tpu_topology *t);

/* Returns the contents of the topology, which the topology owns. Vectors have 4 entries, all
 * coordinates are listed, and 0 tasks or devices are none. */
CH_API const ch_tpu_mesh *ch_tpu_topology_mesh(const ch_tpu_topology *t);

/* Finds the device at the n coordinates `at`: its task, and its ordinal in the task.
 * INVALID_ARGUMENT: they are outside the mesh. NOT_FOUND: the device is missing. */
CH_API CH_MUST_CHECK ch_status ch_tpu_topology_find(const ch_tpu_topology *t, int n,
                                                    const int *at, int *task, int *ordinal);
/* Write the name of the device at the n coordinates `at`, "/job:worker/task:1/device:TPU:0",
 * and of the CPU of its task, "/job:worker/task:1/device:CPU:0". `job` NULL: the name begins
 * with the task. OUT_OF_RANGE: the text does not fit. */
CH_API CH_MUST_CHECK ch_status ch_tpu_topology_device_name(const ch_tpu_topology *t, int n,
                                                           const int *at, const char *job,
                                                           char *text, size_t size);
CH_API CH_MUST_CHECK ch_status ch_tpu_topology_host_name(const ch_tpu_topology *t, int n,
                                                         const int *at, const char *job,
                                                         char *text, size_t size);
/* Returns the number of missing devices. Writes the coordinates of the first `room` of them to
 * `at`, 4 numbers each, the core fastest and x slowest. `at` may be NULL if `room` is 0. */
CH_API int ch_tpu_topology_missing(const ch_tpu_topology *t, int room, int *at);

/* ---- device assignments ---- */

typedef struct ch_tpu_assignment ch_tpu_assignment;

/* The order in which ch_tpu_assignment_build visits the cores. */
typedef enum ch_tpu_order {
    CH_TPU_AUTO, /* a ring if the replicas allow it, else the mesh */
    /* Neighbours in the list of chips are neighbours in the mesh, also the last and the first.
     * A replica must have all cores of its chips, its stride must be 1, and the replicas must
     * fill the mesh. If a size is odd and above 1, the order is that of the mesh, with a
     * warning. */
    CH_TPU_RING,
    /* Replicas: the core changes fastest, then x, y and z. Cores of a replica: the core changes
     * fastest, x slowest. */
    CH_TPU_MESH
} ch_tpu_order;

typedef struct ch_tpu_build {
    int n;                   /* entries of shape and stride: 3 or 4; 0: neither is given */
    int shape[CH_TPU_AXES];  /* cores of a replica along each axis; all entries 0: all 1 */
    int stride[CH_TPU_AXES]; /* distance of these cores; all entries 0: all 1 */
    int replicas;            /* number of replicas; 0: 1 */
    ch_tpu_order order;
} ch_tpu_build;

/* Creates an assignment: divides the mesh into blocks of `shape` cores and gives a block to
 * each replica. `b` NULL: all defaults, a single core. INVALID_ARGUMENT: shape times stride is
 * larger than the mesh, the replicas do not fit, or the order is CH_TPU_RING and its conditions
 * do not hold.
 *
 * If the topology has missing devices, the replicas take consecutive devices, task by task,
 * without regard to the geometry of the shape and to the order. The stride must then be 1.
 * INVALID_ARGUMENT: there are too few devices. */
CH_API CH_MUST_CHECK ch_status ch_tpu_assignment_build(ch_tpu_topology    *t,
                                                       const ch_tpu_build *b,
                                                       ch_tpu_assignment **out);

/* Creates an assignment from coordinates: n numbers for each core, replica by replica.
 * INVALID_ARGUMENT: a device is missing or outside the mesh, or occurs twice. */
CH_API CH_MUST_CHECK ch_status ch_tpu_assignment_from_cores(ch_tpu_topology *t, int replicas,
                                                            int cores, int n, const int *at,
                                                            ch_tpu_assignment **out);

CH_API ch_tpu_assignment *ch_tpu_assignment_ref(ch_tpu_assignment *a);
CH_API void               ch_tpu_assignment_unref(ch_tpu_assignment *a);

/* Returns the topology, which the assignment owns. */
CH_API ch_tpu_topology *ch_tpu_assignment_topology(const ch_tpu_assignment *a);
CH_API int              ch_tpu_assignment_replicas(const ch_tpu_assignment *a);
CH_API int ch_tpu_assignment_cores(const ch_tpu_assignment *a); /* cores of each replica */

/* Writes the coordinates of a core, x, y, z and core, to at[0] to at[3]. */
CH_API CH_MUST_CHECK ch_status ch_tpu_assignment_coordinates(const ch_tpu_assignment *a,
                                                             int replica, int core, int *at);
/* Finds the device of a core: its task, and its ordinal in the task. */
CH_API CH_MUST_CHECK ch_status ch_tpu_assignment_find(const ch_tpu_assignment *a, int replica,
                                                      int core, int *task, int *ordinal);
/* Write the names of the device of a core and of its host, as ch_tpu_topology_device_name and
 * ch_tpu_topology_host_name do. */
CH_API CH_MUST_CHECK ch_status ch_tpu_assignment_device_name(const ch_tpu_assignment *a,
                                                             int replica, int core,
                                                             const char *job, char *text,
                                                             size_t size);
CH_API CH_MUST_CHECK ch_status ch_tpu_assignment_host_name(const ch_tpu_assignment *a,
                                                           int replica, int core,
                                                           const char *job, char *text,
                                                           size_t size);
/* Sets *n to the number of replicas that have this core on this task, and writes the first
 * `room` of them to `replica`, in ascending order. `replica` may be NULL if `room` is 0.
 * INVALID_ARGUMENT: there are none. */
CH_API CH_MUST_CHECK ch_status ch_tpu_assignment_lookup_replicas(const ch_tpu_assignment *a,
                                                                 int task, int core, int room,
                                                                 int *replica, int *n);

/* ---- the resolver ---- */

typedef struct ch_tpu_resolver_options {
    const char *job;         /* job of the tasks that have the TPU devices; NULL: "worker" */
    const char *project;     /* of a TPU of Google Cloud; NULL: that of TPU_CONFIG */
    const char *zone;        /* the same */
    const char *coordinator; /* job of the coordinator; NULL: there is none */
    const char *coordinator_address; /* of its task 0; must be given if `coordinator` is */
    /* The task type is that of `job` and the task id 0 unless they are set here. rpc_layer is
     * ignored: it is "grpc". */
    ch_resolver_options mine;
} ch_tpu_resolver_options;

/* Creates a resolver for the TPU system of this name:
 *   - "local": the TPU devices of this process.
 *   - "virtual:4x4x1x2": the same, with this mesh: x, y, z, core, or x, y, core.
 *   - "grpc://10.0.0.1,grpc://10.0.0.2:8471": the tasks at these addresses. The port is 8470
 *     unless it is given; "grpc://" may be left out after the first.
 *   - "[\"local\"]": a list in JSON, which must have a single name.
 *   - Other text: a TPU of Google Cloud.
 *   - NULL or "": the name in KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, else in TPU_NAME, else in
 *     TPU_CONFIG, which is JSON: {"tpu_node_name": ..., "project": ..., "zone": ...}. If none
 *     of them is set: "local".
 * This call reads the environment; later calls do not read it again.
 *
 * Only TPU devices of this process can be used. For other names, each call that needs Google's
 * API or a network is UNIMPLEMENTED, with the name or the address in the error. A local system
 * has an empty cluster and the master "". For "grpc://" names, ch_resolver_cluster has the
 * addresses. */
CH_API CH_MUST_CHECK ch_status ch_resolver_tpu(const char                    *name,
                                               const ch_tpu_resolver_options *opt,
                                               ch_resolver                  **out);

/* Connects to the tasks of a resolver of any kind. Does nothing for a local TPU system, or if
 * the cluster has no tasks. Otherwise UNIMPLEMENTED. */
CH_API CH_MUST_CHECK ch_status ch_resolver_connect(ch_resolver *r);

/* The devices of a TPU system. */
typedef struct ch_tpu_system {
    int cores;          /* number of TPU devices */
    int hosts;          /* number of tasks that have TPU devices */
    int cores_per_host; /* number of TPU devices of each of these tasks */
    int devices;        /* number of devices of all types */
} ch_tpu_system;

/* Describes the TPU system of a resolver. Writes its first `room` devices of all types to
 * `device`, ordered by job, task, type and index. `device` may be NULL if `room` is 0. */
CH_API CH_MUST_CHECK ch_status ch_resolver_tpu_system(ch_resolver *r, ch_tpu_system *out,
                                                      int room, ch_device **device);
/* Returns the topology of the last ch_tpu_initialize with this resolver, which the resolver
 * owns. NULL: the system is not initialized. */
CH_API ch_tpu_topology *ch_resolver_tpu_topology(const ch_resolver *r);

/* ---- the system ---- */

/* Initializes the TPU system: returns a topology of a single task, which has the TPU devices of
 * this process. Its mesh is that of the resolver's name, else COHORT_TPU_MESH, else a default:
 * chips of two cores, as square as possible in x and y, x the longer side (8 devices:
 * 2x2x1x2); for an odd number of devices a single chip. `r` NULL: a resolver with the name
 * NULL.
 *
 * NOT_FOUND: this process has no TPU devices. INVALID_ARGUMENT: the mesh does not have as many
 * cores as there are devices, or `r` is not a resolver of ch_resolver_tpu. A second call logs a
 * warning and succeeds. Must not be called while another thread uses the resolver or calls
 * ch_strategy_tpu, ch_tpu_initialize or ch_tpu_shutdown. */
CH_API CH_MUST_CHECK ch_status ch_tpu_initialize(ch_resolver *r, ch_tpu_topology **out);
/* Ends the system, so that it can be initialized without a warning. Devices and variables stay
 * as they are. Logs a warning if the system is not initialized. `r`: as above. */
CH_API CH_MUST_CHECK ch_status ch_tpu_shutdown(ch_resolver *r);

/* ---- the strategy ---- */

/* NULL: all defaults. The annotations of cohort/logical.h may be used with all options. */
typedef struct ch_tpu_options {
    /* A value or variable whose layout nothing else chooses is on all cores of its replica, and
     * all of them compute it; single cores cannot be chosen (ch_assign_to_logical_device and
     * ch_logical_device_enter are INVALID_ARGUMENT). False: it is on core 0. Calls whose inputs
     * are split are computed on the cores that have the parts either way. */
    bool spmd;
    bool split_rows; /* splits inputs along axis 0 over all cores of a replica */
    /* The logical mesh of the cores of a replica, for ch_mesh_split and rules: {2, 4}. Its
     * product must be the number of cores. n_mesh 0: one axis of all cores. */
    int n_mesh, mesh[CH_MESH_AXES_MAX];
    /* Split variables by name; the first rule that matches a name holds. Copied. A rule that
     * has matched no variable when the first step has run is a warning. */
    int                  n_rules;
    const ch_split_rule *rule;
    /* Splits every other variable of at least this many bytes along its longest axis, over all
     * cores; 0: none. */
    int64_t split_bytes;
    /* Frees gathered values of variables after the forward pass, and gathers them again for the
     * backward pass. */
    bool reshard_after_forward;
    /* Searches for layouts of the variables and inputs that have no annotation, split or rule
     * (ch_strategy_parts.choose_layouts). */
    bool                     choose_layouts;
    ch_communication_options communication;
} ch_tpu_options;

/* Creates a TPUStrategy: a replica on the cores that the assignment gives to it, or on each TPU
 * device of this process if `a` is NULL. Core 0 of a replica has its inputs and results.
 * Variables are mirrored over the replicas. `r` NULL: a resolver with the name NULL. The
 * strategy references both. Several TPU strategies may use the same devices, and read each
 * other's variables (ch_var_read).
 *
 * NOT_FOUND: this process has no TPU devices. INVALID_ARGUMENT: the mesh in the resolver's name
 * has not as many cores as this process has TPU devices; the assignment is of another topology
 * than the TPU system, has a core that is no device of this process, or more than
 * CH_LOGICAL_DEVICES_MAX cores in a replica; or an option is invalid. The topology of the
 * system is that of ch_tpu_initialize with this resolver; else of the mesh in its name; else of
 * the last ch_tpu_initialize of this process, unless it was shut down; else of COHORT_TPU_MESH;
 * else not known, and every assignment of devices of this process is accepted. */
CH_API CH_MUST_CHECK ch_status ch_strategy_tpu(ch_resolver *r, ch_tpu_assignment *a,
                                               const ch_tpu_options *opt, ch_strategy **out);

#endif
