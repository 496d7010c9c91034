/* strategy/tpu.c -- TPUStrategy: replicas on the cores of a TPU system.
 *
 * The file turns a device assignment into a list of devices, and the options into the parts of
 * a strategy (ch_strategy_parts). Everything else is done by the code for logical devices:
 * var_cores.c stores variables, cores.c divides steps. It sees devices only, so it does not
 * matter that the TPU cores of this process are virtual.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/tpu.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cluster/tpu_system.h"
#include "cohort/strategy_ops.h"
#include "strategy/devices.h"

static const char label[] = "TPU strategy"; /* begins messages */

typedef struct tpu {
    int                n_replicas, n_cores;
    ch_device        **device;     /* device r * n_cores + c is core c of replica r */
    ch_resolver       *resolver;   /* referenced */
    ch_tpu_assignment *assignment; /* referenced; NULL: every device is a replica */
} tpu;

static ch_device *const *devices(void *self)
{
    return ((tpu *)self)->device;
}

/* Gives every variable a copy for each replica, on its core 0. The cores of a replica divide
 * the copy. */
static ch_status place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    tpu *t = self;

    (void)spec;
    out->n_copies = t->n_replicas;
    for (int r = 0; r < t->n_replicas; r++)
        out->device[r] = t->device[r * t->n_cores];
    return CH_OK;
}

static void close(void *self)
{
    tpu *t = self;

    ch_tpu_assignment_unref(t->assignment);
    ch_resolver_unref(t->resolver);
    ch__free(t->device);
    ch__free(t);
}

static const ch_strategy_ops tpu_ops = {"TPU", devices, place, close};

/* Returns INVALID_ARGUMENT unless the assignment is of the topology of the TPU system. */
static ch_status compare_topology(const ch_tpu_topology *has, const ch_tpu_assignment *a)
{
    const ch_tpu_mesh *want = ch_tpu_topology_mesh(has), *mesh;
    char               text[CH_TPU_VECTOR_TEXT], other[CH_TPU_VECTOR_TEXT];
    size_t             n;

    mesh = ch_tpu_topology_mesh(ch_tpu_assignment_topology(a));
    n = (size_t)want->tasks * (size_t)want->devices * CH_TPU_AXES * sizeof(*want->at);
    if (memcmp(mesh->size, want->size, sizeof(want->size)) == 0 && mesh->tasks == want->tasks &&
        mesh->devices == want->devices && (n == 0 || memcmp(mesh->at, want->at, n) == 0))
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "%s: the device assignment is of another topology: a mesh of %s with %d "
                    "tasks of %d devices, but the TPU system has a mesh of %s with %d tasks of "
                    "%d devices; build the assignment from the topology of ch_tpu_initialize",
                    label, ch__tpu_vector_text(mesh->size, text), mesh->tasks, mesh->devices,
                    ch__tpu_vector_text(want->size, other), want->tasks, want->devices);
}

/* Checks that the TPU system of the resolver has the devices of this process and, unless `a` is
 * NULL, that the assignment is of its topology. A system of which no topology is known fits. */
static ch_status check_topology(const ch_resolver *r, const ch_tpu_assignment *a)
{
    ch_tpu_topology *has = NULL;
    ch_status        rc = ch__tpu_system_topology(r, label, &has);

    if (rc == CH_OK && has != NULL && a != NULL)
        rc = compare_topology(has, a);
    ch_tpu_topology_unref(has);
    return rc;
}

static ch_status check_cores(const ch_tpu_assignment *a)
{
    int n = ch_tpu_assignment_cores(a);

    if (n <= CH_LOGICAL_DEVICES_MAX)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "%s: the device assignment gives %d cores to each replica, want at most %d",
                    label, n, CH_LOGICAL_DEVICES_MAX);
}

/* Finds the devices of the cores of an assignment. `all` are the n TPU devices of this
 * process. */
static ch_status find_assigned(tpu *t, int n, ch_device *const *all)
{
    for (int r = 0; r < t->n_replicas; r++)
        for (int c = 0; c < t->n_cores; c++) {
            int       task, ordinal;
            ch_status rc = ch_tpu_assignment_find(t->assignment, r, c, &task, &ordinal);

            if (rc != CH_OK)
                return ch__fail_at(rc, "%s", label);
            if (task != 0 || ordinal >= n)
                return ch__fail(CH_INVALID_ARGUMENT,
                                "%s: core %d of replica %d is device TPU:%d of task %d, and "
                                "this process is task 0 with %d TPU devices",
                                label, c, r, ordinal, task, n);
            t->device[r * t->n_cores + c] = all[ordinal];
        }
    return CH_OK;
}

static ch_status find_devices(tpu *t)
{
    int         n;
    ch_device **all = NULL;
    ch_status   rc;

    if (ch_device_count("TPU") == 0)
        return ch__tpu_no_devices(label);
    rc = check_topology(t->resolver, t->assignment);
    if (rc == CH_OK)
        rc = ch__devices_of_type("TPU", &n, &all);
    if (rc != CH_OK)
        return rc;
    if (t->assignment == NULL) {
        t->n_replicas = n;
        t->n_cores = 1;
        t->device = all;
        return CH_OK;
    }
    t->n_replicas = ch_tpu_assignment_replicas(t->assignment);
    t->n_cores = ch_tpu_assignment_cores(t->assignment);
    t->device = ch__calloc((size_t)t->n_replicas * (size_t)t->n_cores + 1, sizeof(*t->device));
    if (t->device == NULL)
        rc = ch__fail_memory(label);
    if (rc == CH_OK)
        rc = check_cores(t->assignment);
    if (rc == CH_OK)
        rc = find_assigned(t, n, all);
    ch__free(all);
    return rc;
}

static ch_status new_tpu(ch_resolver *r, ch_tpu_assignment *a, tpu **out)
{
    const int *mesh;
    ch_status  rc;
    tpu       *t = ch__calloc(1, sizeof(*t));

    if (t == NULL)
        return ch__fail_memory(label);
    *out = t;
    if (a != NULL)
        t->assignment = ch_tpu_assignment_ref(a);
    t->resolver = ch_resolver_ref(r);
    rc = r != NULL ? CH_OK : ch_resolver_tpu(NULL, NULL, &t->resolver);
    if (rc == CH_OK)
        rc = ch__resolver_tpu_local(t->resolver, label, &mesh);
    return rc == CH_OK ? find_devices(t) : rc;
}

ch_status ch_strategy_tpu(ch_resolver *r, ch_tpu_assignment *a, const ch_tpu_options *opt,
                          ch_strategy **out)
{
    static const ch_tpu_options     none;
    static const ch_strategy_traits traits = {.should_init = true,
                                              .should_checkpoint = true,
                                              .should_save_summary = true,
                                              .requires_static_shapes = true};

    ch_strategy_parts parts = {.traits = &traits, .isolates_state = true};
    tpu              *t = NULL;
    ch_status         rc;

    if (out == NULL)
        return ch__check_not_null(label, "out", out, NULL, NULL);
    opt = opt != NULL ? opt : &none;
    rc = new_tpu(r, a, &t);
    if (rc == CH_OK) {
        parts.n_replicas = t->n_replicas;
        parts.n_cores = t->n_cores;
        parts.n_mesh = opt->n_mesh;
        memcpy(parts.mesh, opt->mesh, sizeof(parts.mesh));
        parts.n_rules = opt->n_rules;
        parts.rule = opt->rule;
        parts.split_bytes = opt->split_bytes;
        parts.split_rows = opt->split_rows;
        parts.reshard_after_forward = opt->reshard_after_forward;
        parts.choose_layouts = opt->choose_layouts;
        parts.defaults_to_device_0 = !opt->spmd;
        parts.forbids_single_devices = opt->spmd;
        parts.communication = opt->communication;
        parts.resolver = t->resolver;
        parts.own_pipelines = true;
        parts.shares_by_device = true;
        rc = ch_strategy_new(&tpu_ops, t, &parts, out);
    }
    if (rc != CH_OK && t != NULL)
        close(t);
    return rc;
}
