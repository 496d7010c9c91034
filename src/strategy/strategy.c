/* strategy/strategy.c -- functions common to all strategies: creation, properties, runs.
 *
 * ch_strategy_new checks the ops and parts of a strategy and creates it. New strategies store
 * variables with ch__var_local and run steps with ch__exec_local; the parameter-server strategy
 * replaces both. The run functions fill in a ch_run (graph/run.h) and pass it to st->exec. They
 * may be called only in cross-replica context, outside steps.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/strategy.h"

#include <limits.h>
#include <string.h>
#include <strings.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/resolver.h"
#include "spmd/spmd.h"
#include "tensor/device.h"
#include "tensor/print.h"

/* ---- creation ---- */

/* The functions of the runs of all strategies, defined below. */
static const ch_run_ops run_ops;

static const ch_strategy_traits default_traits = {
    .should_init = true, .should_checkpoint = true, .should_save_summary = true};

/* Returns the number of logical devices of each replica. */
static int cores_of(const ch_strategy_parts *parts)
{
    return parts->n_cores > 0 ? parts->n_cores : 1;
}

static ch_status check_cores(const char *name, const ch_strategy_parts *parts)
{
    int64_t product = 1;

    if (parts->n_cores < 0 || parts->n_cores > CH_LOGICAL_DEVICES_MAX)
        return ch__fail(CH_INVALID_ARGUMENT, "strategy %s: %d logical devices, want 0 to %d",
                        name, parts->n_cores, CH_LOGICAL_DEVICES_MAX);
    if (parts->n_mesh < 0 || parts->n_mesh > CH_MESH_AXES_MAX)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "strategy %s: a logical mesh of %d axes, want 0 to %d", name,
                        parts->n_mesh, CH_MESH_AXES_MAX);
    for (int i = 0; i < parts->n_mesh; i++) {
        if (parts->mesh[i] < 1)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "strategy %s: axis %d of the logical mesh has %d logical devices, "
                            "want 1 or more",
                            name, i, parts->mesh[i]);
        if (product <= INT_MAX) /* a larger product does not get smaller */
            product *= parts->mesh[i];
    }
    if (parts->n_mesh > 0 && product != cores_of(parts))
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "strategy %s: the product of the axes of the logical mesh is %lld, want "
            "%d, the number of logical devices of a replica",
            name, (long long)product, cores_of(parts));
    return CH_OK;
}

/* Returns INVALID_ARGUMENT if the parts are inconsistent. */
static ch_status check_parts(const char *name, const ch_strategy_parts *parts)
{
    if (parts->n_replicas < 1)
        return ch__fail(CH_INVALID_ARGUMENT, "strategy %s: %d replicas, want 1 or more", name,
                        parts->n_replicas);
    if (parts->is_bare && parts->n_replicas > 1)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "strategy %s: is_bare is allowed with 1 replica only (got %d)", name,
                        parts->n_replicas);
    if (parts->n_parameter < 0 || (parts->n_parameter > 0 && parts->parameter == NULL))
        return ch__fail(CH_INVALID_ARGUMENT, "strategy %s: %d parameter devices%s", name,
                        parts->n_parameter,
                        parts->n_parameter < 0 ? ", want 0 or more"
                                               : ", and their list is NULL");
    for (int i = 0; i < parts->n_parameter; i++)
        if (parts->parameter[i] == NULL)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "strategy %s: parameter device %d of %d is NULL", name, i,
                            parts->n_parameter);
    if (parts->is_bare && parts->n_cores > 1)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "strategy %s: is_bare is allowed with 1 logical device only (got %d)",
                        name, parts->n_cores);
    if (check_cores(name, parts) != CH_OK)
        return CH_INVALID_ARGUMENT;
    return ch__communication_check(name, &parts->communication);
}

/* Stores the current devices of n replicas in *out, and checks them. */
static ch_status devices_of(const ch_strategy_ops *ops, void *self, int n,
                            ch_device *const **out)
{
    ch_status rc;

    *out = ops->devices(self);
    rc = ch__devices_check("its replicas", n, *out);
    return rc == CH_OK ? rc : ch__fail_at(rc, "strategy %s", ops->name);
}

ch_status ch__strategy_devices(const ch_strategy *st, ch_device *const **out)
{
    return devices_of(st->ops, st->self, st->n_local * st->n_cores, out);
}

ch_status ch__strategy_first_devices(ch_strategy *st, ch_device *const **out)
{
    ch_device *const *all;
    ch_status         rc = devices_of(st->ops, st->self, st->n_local * st->n_cores, &all);

    if (rc != CH_OK || st->n_cores == 1) {
        *out = all;
        return rc;
    }
    pthread_mutex_lock(&st->lock);
    for (int r = 0; r < st->n_local; r++)
        st->first_device[r] = all[r * st->n_cores];
    pthread_mutex_unlock(&st->lock);
    *out = st->first_device;
    return CH_OK;
}

/* Checks the arguments of ch_strategy_new. Default is not checked, because its devices may
 * still be configured when it is created. */
static ch_status check_new(const ch_strategy_ops *ops, void *self, const ch_strategy_parts *p)
{
    ch_device *const *device;
    ch_status         rc;

    if (ops->name == NULL || ops->devices == NULL || ops->place == NULL || ops->close == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "strategy %s: one of its functions is NULL",
                        ops->name != NULL ? ops->name : "without a name");
    rc = check_parts(ops->name, p);
    if (rc == CH_OK)
        rc = devices_of(ops, self, p->n_replicas * cores_of(p), &device);
    return rc;
}

/* Writes the label of a strategy. The number in it counts the strategies of the process. */
static void make_label(ch_strategy *st, int n, ch_device *const *device)
{
    static atomic_int made;
    ch_text           o = ch__text(st->label, sizeof(st->label));
    const int         max_listed = 4; /* maximum number of devices in the label */

    ch__text_add(&o, "%s#%d (", st->ops->name, atomic_fetch_add(&made, 1) + 1);
    for (int i = 0; i < n && i < max_listed; i++)
        ch__text_add(&o, "%s%s", i > 0 ? ", " : "", ch__device_short_name(device[i]));
    if (n > max_listed)
        ch__text_add(&o, " and %d more", n - max_listed);
    ch__text_add(&o, ")");
}

const char *ch_strategy_label(ch_strategy *st)
{
    return ch__strategy_or_current(st)->label;
}

/* Creates the groups of the replicas and their logical devices. */
static ch_status make_groups(ch_strategy *st)
{
    const ch_communication_options *c = &st->parts.communication;
    int                             n = st->n_local * st->n_cores;
    ch_group_options                opt = {.cross = c->implementation};
    ch_status                       rc;

    if (n == 1)
        return CH_OK;
    opt.timeout_seconds = c->timeout_seconds;
    opt.spin = !ch__devices_oversubscribed(n, st->ops->devices(st->self));
    rc = ch__group_set_new(st->ops->name, &opt, st->n_local, st->n_cores, &st->groups);
    st->group = st->groups.all;
    if (rc != CH_OK || st->n_cores == 1)
        return rc;
    st->first_device = ch__calloc((size_t)st->n_local, sizeof(ch_device *));
    return st->first_device == NULL ? ch__fail_memory("a strategy") : CH_OK;
}

/* Frees what ch__strategy_init has created. */
static void free_parts(ch_strategy *st)
{
    ch__free(st->first_device);
    ch__free(st->rule);
    ch__group_set_free(&st->groups);
    pthread_mutex_destroy(&st->lock);
    pthread_mutex_destroy(&st->search_lock);
}

ch_status ch__strategy_init(ch_strategy *st, const ch_strategy_ops *ops, void *self,
                            const ch_strategy_parts *parts)
{
    ch_status rc;

    st->ops = ops;
    st->self = self;
    st->var_ops = cores_of(parts) > 1 ? &ch__var_cores : &ch__var_local;
    st->exec = &ch__exec_local;
    atomic_init(&st->refs, 1);
    st->n_replicas = st->n_local = parts->n_replicas;
    st->n_cores = cores_of(parts);
    st->run_ops = &run_ops;
    st->parts = *parts;
    if (parts->n_mesh == 0) {
        st->parts.n_mesh = 1;
        st->parts.mesh[0] = st->n_cores;
    }
    st->traits = parts->traits != NULL ? *parts->traits : default_traits;
    st->parts.traits = &st->traits;
    pthread_mutex_init(&st->lock, NULL);
    pthread_mutex_init(&st->search_lock, NULL);
    rc = ch__split_rules_copy(ops->name, parts->n_rules, parts->rule, &st->rule);
    st->parts.rule = st->rule;
    return rc == CH_OK ? make_groups(st) : rc;
}

void ch__warn_of_copies(const char *strategy)
{
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;

    int         rank, copies;
    const char *launcher = ch__launcher(&rank, &copies);

    if (launcher == NULL ||
        atomic_flag_test_and_set_explicit(&has_warned, memory_order_relaxed))
        return;
    ch__log(
        CH_LOG_WARNING, "launcher",
        "strategy %s: %s started %d copies of this program (this is rank %d), and %s spans one "
        "process: each copy trains by itself, on all data; start one copy, or give each copy "
        "its own share of the data",
        strategy, launcher, copies, rank, strategy);
}

ch_status ch_strategy_new(const ch_strategy_ops *ops, void *self,
                          const ch_strategy_parts *parts, ch_strategy **out)
{
    ch_strategy *st;
    ch_status    rc = ch__check_not_null("strategy", "its functions", ops, "out", out);

    if (rc == CH_OK && parts == NULL)
        rc = ch__check_not_null("strategy", "its parts", parts, NULL, NULL);
    if (rc == CH_OK)
        rc = check_new(ops, self, parts);
    if (rc != CH_OK)
        return rc;
    st = ch__calloc(1, sizeof(*st));
    if (st == NULL)
        return ch__fail_memory("a strategy");
    rc = ch__strategy_init(st, ops, self, parts);
    if (rc != CH_OK) {
        free_parts(st);
        ch__free(st);
        return rc;
    }
    make_label(st, st->n_local * st->n_cores, ops->devices(self));
    ch__warn_of_copies(ops->name);
    *out = st;
    return CH_OK;
}

ch_strategy *ch_strategy_ref(ch_strategy *st)
{
    if (st != NULL)
        atomic_fetch_add_explicit(&st->refs, 1, memory_order_relaxed);
    return st;
}

/* The last reference to Default is never released. */
void ch_strategy_unref(ch_strategy *st)
{
    if (st == NULL || atomic_fetch_sub_explicit(&st->refs, 1, memory_order_acq_rel) != 1)
        return;
    st->ops->close(st->self);
    free_parts(st);
    ch__free(st);
}

const char *ch_strategy_name(ch_strategy *st)
{
    return ch__strategy_or_current(st)->ops->name;
}

int ch_strategy_replicas(ch_strategy *st)
{
    return ch__strategy_or_current(st)->n_replicas;
}

int ch_strategy_local_replicas(ch_strategy *st)
{
    return ch__strategy_or_current(st)->n_local;
}

int ch_strategy_logical_devices(ch_strategy *st)
{
    return ch__strategy_or_current(st)->n_cores;
}

ch_resolver *ch_strategy_resolver(const ch_strategy *st)
{
    return (st != NULL ? st : ch_strategy_current())->parts.resolver;
}

/* ---- properties ---- */

ch_status ch_reduce_op_parse(const char *text, ch_reduce_op *out)
{
    ch_status rc = ch__check_not_null("reduction", "its name", text, "out", out);

    if (rc != CH_OK)
        return rc;
    if (strcasecmp(text, "sum") != 0 && strcasecmp(text, "mean") != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "reduction \"%.40s\": want \"sum\" or \"mean\", in any case", text);
    *out = strcasecmp(text, "sum") == 0 ? CH_SUM : CH_MEAN;
    return CH_OK;
}

ch_strategy_traits ch_strategy_traits_of(ch_strategy *st)
{
    return ch__strategy_or_current(st)->traits;
}

void ch_strategy_configure(ch_strategy *st, const ch_session_config *in, ch_session_config *out)
{
    ch_session_config c = in != NULL ? *in : (ch_session_config){0};

    if (ch__strategy_or_current(st)->parts.isolates_state)
        c.isolate_session_state = true;
    if (out != NULL)
        *out = c;
}

static ch_status fail_no_devices(const ch_strategy *st, const char *which)
{
    return ch__fail(CH_FAILED_PRECONDITION,
                    "%s devices: unsupported by %s: it has none of its own, and "
                    "uses the current device (ch_device_current)",
                    which, st->label);
}

ch_status ch_strategy_worker_devices(ch_strategy *st, int *n, ch_device *const **out)
{
    st = ch__strategy_or_current(st);
    if (n == NULL || out == NULL)
        return ch__check_not_null("worker devices", "n", n, "out", out);
    if (st->uses_current_device)
        return fail_no_devices(st, "worker");
    *n = st->n_local;
    *out = st->ops->devices(st->self);
    return st->n_cores > 1 ? ch__strategy_first_devices(st, out) : CH_OK;
}

ch_status ch_strategy_parameter_devices(ch_strategy *st, int *n, ch_device *const **out)
{
    st = ch__strategy_or_current(st);
    if (n == NULL || out == NULL)
        return ch__check_not_null("parameter devices", "n", n, "out", out);
    if (st->uses_current_device)
        return fail_no_devices(st, "parameter");
    if (st->parts.n_parameter == 0)
        return ch_strategy_worker_devices(st, n, out);
    *n = st->parts.n_parameter;
    *out = st->parts.parameter;
    return CH_OK;
}

/* ---- runs ---- */

static ch_status end_run(const ch_run *run, const ch_graph *g)
{
    ch__split_rules_check(run->owner);
    return ch__vars_check_copies(run, g);
}

static const ch_run_ops run_ops = {.resource = ch__var_memory,
                                   .marks = ch__var_marks,
                                   .borrow = ch__var_borrow,
                                   .end = end_run,
                                   .partition = ch__cores_partition,
                                   .report_free = ch__step_report_free};

/* Fills in a run of `f` on the replicas of the strategy. */
static ch_status begin_run(ch_strategy *st, ch_function *f, ch_tuple *in, ch_run *run)
{
    *run = (ch_run){.function = f,
                    .in = in,
                    .ops = st->run_ops,
                    .step = -1,
                    .owner = st,
                    .generation = atomic_load(&st->generation),
                    .n_local = st->n_local,
                    .n_cores = st->n_cores,
                    .n_replicas = st->n_replicas,
                    .group = st->group,
                    .group_ops = &ch__group_ops,
                    .groups = st->groups.part};
    return ch__strategy_devices(st, &run->device);
}

static const char instead_in_step[] =
    "a plain call of the other step's C function, which records its ops into this one";

/* Runs `f` and waits for its end. `opt`, `timing` and `out` may be NULL. */
static ch_status run_function(ch_strategy *st, ch_function *f, ch_tuple *in,
                              const ch_run_options *opt, ch_timing *timing, ch_tuple **out)
{
    ch_run    run;
    ch_status rc = ch__strategy_check_cross(&st, "run", instead_in_step);

    if (rc != CH_OK)
        return rc;
    if (f == NULL)
        return ch__check_not_null("run", "the function", f, NULL, NULL);
    if (opt != NULL && opt->has_step_number && opt->step_number < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "run %s: its step number is %lld, want 0 or more",
                        ch_function_name(f), (long long)opt->step_number);
    rc = begin_run(st, f, in, &run);
    if (rc != CH_OK)
        return ch__fail_at(rc, "run %s", ch_function_name(f));
    run.timing = timing;
    if (opt != NULL) {
        run.seed = opt->seed;
        run.step = opt->has_step_number ? opt->step_number : -1;
    }
    return ch__exec_run(st->exec, &run, out);
}

ch_status ch__strategy_record(ch_strategy *st, ch_function *f, ch_tuple *in, bool rows_unknown,
                              ch_graph **out, int64_t *number)
{
    ch_run    run;
    ch_status rc = ch__strategy_check_cross(&st, "schedule", instead_in_step);

    if (rc == CH_OK)
        rc = begin_run(st, f, in, &run);
    if (rc != CH_OK)
        return rc;
    run.rows_unknown = rows_unknown;
    return ch__run_record(&run, out, number);
}

ch_status ch__strategy_start(ch_strategy *st, ch_function *f, ch_tuple *in, uint64_t snapshot,
                             ch_started *out)
{
    ch_run    run;
    ch_status rc = ch__strategy_check_cross(&st, "run", instead_in_step);

    if (rc == CH_OK)
        rc = begin_run(st, f, in, &run);
    if (rc != CH_OK)
        return rc;
    return st->exec->start(
        &run, &(ch_start_options){.snapshot = snapshot, .is_own = snapshot != 0}, out);
}

ch_status ch_strategy_run_with(ch_strategy *st, ch_function *f, ch_tuple *in,
                               const ch_run_options *opt, ch_tuple **out)
{
    return run_function(st, f, in, opt, NULL, out);
}

ch_status ch__strategy_run_timed(ch_strategy *st, ch_function *f, ch_tuple *in, ch_tuple **out,
                                 ch_timing *timing)
{
    int64_t   begin = ch__now_ns();
    ch_status rc;

    *timing = (ch_timing){0};
    rc = run_function(st, f, in, NULL, timing, out);
    ch__timing_close(timing, ch__now_ns() - begin);
    return rc;
}

ch_status ch_strategy_run(ch_strategy *st, ch_function *f, ch_tuple *in, ch_tuple **out)
{
    return run_function(st, f, in, NULL, NULL, out);
}

/* ---- recording without a run ---- */

/* Makes a value of this spec with a tensor for each replica. An unknown number of rows becomes
 * 0. */
static ch_status make_placeholder(const ch_strategy *st, const ch_tensor_spec *spec,
                                  ch_value **out)
{
    ch_tensor **t = ch__calloc((size_t)st->n_local, sizeof(ch_tensor *));
    ch_shape    shape = spec->shape;
    ch_status   rc = t == NULL ? ch__fail_memory("a declaration") : CH_OK;

    if (shape.rank > 0 && shape.dim[0] == -1)
        shape.dim[0] = 0;
    for (int i = 0; i < st->n_local && rc == CH_OK; i++)
        rc = ch_tensor_new(spec->dtype, shape, &t[i]);
    if (rc == CH_OK)
        rc = ch_value_new(st->n_local > 1 ? CH_PER_REPLICA : CH_PLAIN, st->n_local, t, out);
    for (int i = 0; t != NULL && i < st->n_local; i++)
        ch_tensor_unref(t[i]);
    ch__free(t);
    return rc;
}

/* Makes a tuple of n placeholders. */
static ch_status make_placeholders(const ch_strategy *st, int n, const ch_tensor_spec *spec,
                                   ch_tuple **out)
{
    ch_value   **v = ch__calloc((size_t)n + 1, sizeof(ch_value *));
    const char **name = ch__calloc((size_t)n + 1, sizeof(char *));
    ch_status    rc = v == NULL || name == NULL ? ch__fail_memory("a declaration") : CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        name[i] = spec[i].name;
        rc = make_placeholder(st, &spec[i], &v[i]);
        if (rc != CH_OK)
            rc = ch__fail_at(rc, "input %d", i);
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(n, v, name, out);
    for (int i = 0; v != NULL && i < n; i++)
        ch_value_unref(v[i]);
    ch__free(v);
    ch__free(name);
    return rc;
}

ch_status ch_function_declare(ch_function *f, ch_strategy *st, int n,
                              const ch_tensor_spec *spec)
{
    ch_tuple *in = NULL;
    ch_run    run;
    ch_status rc = ch__strategy_check_cross(
        &st, "declare", "a plain call of its C function, which records its ops into this step");

    if (rc == CH_OK)
        rc = ch__check_not_null("declare", "the function", f, n > 0 ? "its specs" : NULL, spec);
    if (rc == CH_OK && n < 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "declare: %d inputs, want none or more", n);
    if (rc == CH_OK)
        rc = make_placeholders(st, n, spec, &in);
    if (rc != CH_OK)
        return ch__fail_at(rc, "declare");
    rc = begin_run(st, f, in, &run);
    for (int i = 0; i < n; i++)
        run.rows_unknown |= spec[i].shape.rank > 0 && spec[i].shape.dim[0] == -1;
    if (rc == CH_OK)
        rc = ch__run_declare(&run);
    ch_tuple_unref(in);
    return rc;
}
