/* graph/run.c -- a run of a function: collects inputs, finds the program, runs it on every
 * replica, and returns the results.
 *
 * Strategies call ch__run; a `launch` holds the state of one call. graph/function.c provides
 * the recording and the prepared graph, graph/exec.c runs a program on a device.
 *
 * Invariants:
 *   1. All devices of a run are held, in the order of ch_device_at, from run_held to its end.
 *      Members of ch_prepared that belong to a run (run_memory, resource, staged, turns) are
 *      used only then.
 *   2. If the input shapes were seen before, a run allocates nothing, unless an input must be
 *      made contiguous or moved to the device of its replica.
 *   3. Borrowed variables are fetched before any device is held, because the fetch may wait for
 *      another task.
 *   4. A replica that fails aborts the group, so that no other replica waits for it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/run.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/trace.h"
#include "graph/function.h"
#include "graph/room.h"
#include "graph/where.h"
#include "tensor/ragged.h"

/* inline capacity: inputs of all replicas, or resources, that need no allocation */
#define FEW 32

/* The part of a run that belongs to a replica. */
typedef struct replica_job {
    struct launch *launch;
    int            local;
    ch_env         env;
    ch_bind        bind;
    ch_workspace   workspace;
    bool           has_ended; /* in turns: the replica has finished or failed */
} replica_job;

/* The state of a run. few_tensors, few_shapes and few_borrowed are inline memory for small
 * runs. */
typedef struct launch {
    const ch_run         *run;
    ch_prepared          *p;
    ch_args               args;
    struct ch_result_set *result_set;
    ch_fault              fault; /* first error of a replica */
    ch_node_see           see;
    void                 *see_arg;
    replica_job          *job;
    ch_clock             *clock; /* by replica; NULL: the run is not timed */
    ch_tensor            *few_tensors[FEW];
    ch_tensor           **borrowed; /* by resource: values of borrowed variables; NULL: none */
    ch_tensor            *few_borrowed[FEW];
    ch_shape              few_shapes[FEW];
} launch;

/* ---- inputs ---- */

/* Sets *out to input i of replica r, referenced: contiguous and on the replica's device, or
 * unchanged if `as_is`. */
static ch_status collect_input(const launch *l, int r, int i, bool as_is, ch_tensor **out)
{
    const ch_value *v = ch_tuple_at(l->run->in, i);
    ch_tensor      *t = ch_value_at(v, r), *there;
    ch_status       rc;

    if (t == NULL || (ch_value_count(v) > l->run->n_local && ch_value_count(v) > 1))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: input %d has %d components for %d replicas; want 1, or a "
                        "component for each replica",
                        l->run->function->name, i, ch_value_count(v), l->run->n_local);
    if (as_is) {
        *out = ch_tensor_ref(t);
        return CH_OK;
    }
    rc = ch_tensor_to(t, l->run->device[r], &there);
    if (rc != CH_OK)
        return rc;
    rc = ch_tensor_contiguous(there, out);
    ch_tensor_unref(there);
    return rc;
}

static ch_status collect_inputs(launch *l, bool as_is)
{
    ch_args *a = &l->args;
    int      n;

    a->n_in = l->run->in != NULL ? ch_tuple_count(l->run->in) : 0;
    a->n_local = l->run->n_local;
    a->n_replicas = l->run->n_replicas;
    n = a->n_in * a->n_local;
    a->tensor = l->few_tensors;
    a->shape = l->few_shapes;
    if (n > FEW) {
        a->tensor = ch__calloc((size_t)n, sizeof(*a->tensor));
        a->shape = ch__calloc((size_t)n, sizeof(*a->shape));
        if (a->tensor == NULL || a->shape == NULL)
            return ch__fail_memory("inputs");
    }
    memset(a->tensor, 0, (size_t)n * sizeof(*a->tensor));
    for (int r = 0; r < a->n_local; r++)
        for (int i = 0; i < a->n_in; i++) {
            ch_status rc = collect_input(l, r, i, as_is, &a->tensor[r * a->n_in + i]);

            if (rc != CH_OK)
                return rc;
        }
    return CH_OK;
}

static void drop_inputs(launch *l)
{
    for (int i = 0; l->args.tensor != NULL && i < l->args.n_in * l->args.n_local; i++)
        ch_tensor_unref(l->args.tensor[i]);
    if (l->args.tensor != l->few_tensors) {
        ch__free(l->args.tensor);
        ch__free(l->args.shape);
    }
}

/* ---- the program ---- */

static ch_status check_not_recording(ch_function *f)
{
    if (atomic_load(&f->is_recording) && pthread_equal(f->recorder, pthread_self()))
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "%s: the function is being recorded; a step must not run its own function",
            f->name);
    return CH_OK;
}

/* Counts a run with graph g and returns its number. The function's lock must be held. */
static int64_t count_run(ch_function *f, const ch_run *run, ch_graph *g)
{
    if (f->last_graph != g) {
        ch_graph_unref(f->last_graph);
        f->last_graph = ch_graph_ref(g);
    }
    f->n_runs++;
    return run->step >= 0 ? run->step : f->n_runs - 1;
}

/* Sets l->p to the prepared graph for the inputs, referenced, and *number to the number of the
 * run. */
static ch_status find_program(launch *l, int64_t *number)
{
    ch_function *f = l->run->function;
    ch_graph    *g = NULL;
    const bool  *may_have_room = NULL;
    ch_status    rc = check_not_recording(f);

    if (rc != CH_OK)
        return rc;
    pthread_mutex_lock(&f->lock);
    rc = ch__function_record(f, l->run, &l->args, &g, &may_have_room);
    if (rc == CH_OK) {
        ch__function_shapes(f, g, may_have_room, &l->args);
        rc = ch__function_prepare(f, g, l->run, &l->args, &l->p);
    }
    if (rc == CH_OK) {
        ch__prepared_ref(l->p);
        if (f->last_program != l->p->program[0]) {
            ch__program_unref(f->last_program);
            f->last_program = ch__program_ref(l->p->program[0]);
        }
        *number = count_run(f, l->run, g);
        l->see = f->see;
        l->see_arg = f->see_arg;
    } else {
        l->p = NULL;
    }
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static ch_status declare(ch_function *f, const ch_run *run, const ch_args *a)
{
    ch_graph   *g = NULL;
    const bool *may_have_room = NULL;
    ch_status   rc;

    if (f->fixed_graph != NULL)
        return ch__fail(CH_FAILED_PRECONDITION, "declare %s: the function has a graph already",
                        f->name);
    if (f->static_rows && run->rows_unknown)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "declare %s: the step needs the number of rows "
                        "(ch_function_static_rows), but got -1; give the number",
                        f->name);
    rc = ch__function_record(f, run, a, &g, &may_have_room);
    if (rc == CH_OK)
        rc = ch__function_set_graph(f, g);
    if (rc != CH_OK)
        return rc;
    ch_graph_unref(f->last_graph);
    f->last_graph = ch_graph_ref(g);
    return CH_OK;
}

ch_status ch__run_declare(const ch_run *run)
{
    launch    l = {.run = run};
    ch_status rc = collect_inputs(&l, false);

    if (rc == CH_OK) {
        pthread_mutex_lock(&run->function->lock);
        rc = declare(run->function, run, &l.args);
        pthread_mutex_unlock(&run->function->lock);
    }
    drop_inputs(&l);
    return rc;
}

ch_status ch__run_record(const ch_run *run, ch_graph **out, int64_t *number)
{
    launch       l = {.run = run};
    ch_function *f = run->function;
    ch_graph    *g = NULL;
    const bool  *may_have_room = NULL;
    ch_status    rc = collect_inputs(&l, true);

    if (rc == CH_OK)
        rc = check_not_recording(f);
    if (rc == CH_OK) {
        pthread_mutex_lock(&f->lock);
        rc = ch__function_record(f, run, &l.args, &g, &may_have_room);
        if (rc == CH_OK) {
            *out = ch_graph_ref(g);
            *number = count_run(f, run, g);
        }
        pthread_mutex_unlock(&f->lock);
    }
    drop_inputs(&l);
    return rc;
}

/* Looks up the storage of the owner's variables, if their generation has changed. */
static ch_status find_resources(launch *l)
{
    ch_prepared *p = l->p;
    int          n = p->graph->n_resources;

    if (p->has_resources && p->generation == l->run->generation)
        return CH_OK;
    for (int r = 0; r < p->n_local; r++)
        for (int i = 0; i < n; i++) {
            ch_status rc = CH_OK;

            if (!ch__is_borrowed(&p->graph->resource[i]))
                rc = l->run->ops->resource(l->run->owner, &p->graph->resource[i], r,
                                           &p->resource[r * n + i]);
            if (rc != CH_OK)
                return ch__fail_at(rc, "%s", l->run->function->name);
        }
    p->has_resources = true;
    p->generation = l->run->generation;
    return CH_OK;
}

/* Fetches the values of borrowed variables for this run. */
static ch_status fetch_borrowed(launch *l)
{
    const ch_graph *g = l->p->graph;
    ch_status       rc = CH_OK;

    for (int i = 0; i < g->n_resources && rc == CH_OK; i++) {
        if (!ch__is_borrowed(&g->resource[i]))
            continue;
        if (l->borrowed == NULL && g->n_resources <= FEW)
            l->borrowed = memset(l->few_borrowed, 0, sizeof(l->few_borrowed));
        if (l->borrowed == NULL)
            l->borrowed = ch__calloc((size_t)g->n_resources, sizeof(*l->borrowed));
        rc = l->borrowed == NULL
                 ? ch__fail_memory("a run")
                 : l->run->ops->borrow(l->run->owner, &g->resource[i], &l->borrowed[i]);
    }
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "%s", l->run->function->name);
}

/* Makes all replicas read the fetched values. */
static void bind_borrowed(const launch *l)
{
    ch_prepared *p = l->p;
    int          n = p->graph->n_resources;

    for (int i = 0; i < n && l->borrowed != NULL; i++)
        for (int r = 0; r < p->n_local && l->borrowed[i] != NULL; r++)
            p->resource[r * n + i] = l->borrowed[i]->data;
}

static void drop_borrowed(launch *l)
{
    for (int i = 0; l->p != NULL && l->borrowed != NULL && i < l->p->graph->n_resources; i++)
        ch_tensor_unref(l->borrowed[i]);
    if (l->borrowed != l->few_borrowed)
        ch__free(l->borrowed);
}

/* ---- the launch ---- */

static ch_status barrier(void *arg)
{
    replica_job *j = arg;

    return j->launch->run->group_ops->barrier(j->launch->run->group, j->local);
}

/* Passes the outputs of an instruction to the observer, as tensors that refer to the arena. */
static void see(void *arg, const ch_instr *in, const ch_call *c)
{
    replica_job *j = arg;
    ch_tensor   *out[CH_MAX_OUT];
    char         name[128];
    int          n = 0;

    if (in->node == NULL)
        return;
    for (; n < in->n_out; n++)
        if (ch_tensor_wrap(in->node[n].dtype, ch__shape(&in->node[n]), c->out[n], NULL, NULL,
                           &out[n]) != CH_OK)
            break;
    snprintf(name, sizeof(name), "%s%s%s", in->node->scope != NULL ? in->node->scope : "",
             in->node->scope != NULL ? "/" : "", in->node->op->name);
    j->launch->see(name, j->env.replica, n, out, j->launch->see_arg);
    while (n > 0)
        ch_tensor_unref(out[--n]);
}

/* True if this thread is inside a run. A host function must not start another run, because that
 * run would wait for the devices that this run holds. */
static _Thread_local bool is_running;

bool ch__run_is_on_thread(void)
{
    return is_running;
}

static void start_clock(replica_job *j, bool is_first)
{
    ch_device *on = j->launch->p->device[j->local];

    if (is_first)
        ch__clock_start(j->bind.clock, ch__trace_is_on() ? ch_device_name(on) : NULL);
    else
        ch__clock_continue(j->bind.clock);
}

static void stop_clock(replica_job *j, ch_status rc)
{
    if (rc == CH__BLOCKED)
        ch__clock_suspend(j->bind.clock);
    else
        ch__clock_stop(j->bind.clock, j->launch->run->function->name, rc != CH_OK);
}

/* Runs a replica until it ends or returns CH__BLOCKED. After CH__BLOCKED the caller must call
 * advance again, with is_first false. */
static ch_status advance(replica_job *j, bool is_first)
{
    launch      *l = j->launch;
    ch_instance *x = l->p->instance[j->local];
    ch_status    rc;

    if (j->bind.clock != NULL)
        start_clock(j, is_first);
    is_running = true;
    rc = is_first ? ch__instance_run(x, &j->bind) : ch__instance_continue(x, &j->bind);
    is_running = false;
    if (j->bind.clock != NULL)
        stop_clock(j, rc);
    if (rc == CH_OK || rc == CH__BLOCKED)
        return rc;
    ch__fault_record(&l->fault, rc, l->run->n_replicas > 1 ? j->env.replica : -1, NULL);
    if (l->run->group != NULL)
        l->run->group_ops->abort_run(l->run->group);
    return rc;
}

static void run_replica(void *arg)
{
    (void)advance(arg, true);
}

/* Runs all replicas on this thread in rounds. In each round a replica runs until it ends or
 * must wait for the others. */
static ch_status run_in_turns(launch *l)
{
    int n_left = l->p->n_local;

    for (bool is_first = true; n_left > 0; is_first = false)
        for (int r = 0; r < l->p->n_local; r++) {
            replica_job *j = &l->job[r];
            ch_status    rc;

            if (!is_first && j->has_ended)
                continue;
            rc = ch_device_enter(l->p->device[r]);
            /* can happen for the first replica only: the depth of all is equal */
            if (rc != CH_OK)
                return rc;
            j->has_ended = advance(j, is_first) != CH__BLOCKED;
            n_left -= j->has_ended;
            ch_device_leave();
        }
    return CH_OK;
}

/* Sets *out to the data of input i for replica r. If the program needs room that the tensor
 * does not have, the data is copied to a larger buffer. */
static ch_status stage_input(launch *l, int r, int i, const void **out)
{
    ch_prepared     *p = l->p;
    int              at = r * p->n_in + i;
    const ch_tensor *t = l->args.tensor[at];
    size_t           has = ch_tensor_bytes(t), each = ch_dtype_bytes(t->dtype);
    size_t           needs = (size_t)ch_shape_count(p->shape[at]) * each;

    *out = t->data;
    if (has >= needs || (has + t->room >= needs && !ch__room_is_poisoned()))
        return CH_OK;
    if (p->staged[at] == NULL)
        p->staged[at] = ch__device_alloc(p->device[r], needs);
    if (p->staged[at] == NULL)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "input %d of %s: no memory for %zu bytes", i,
                        p->graph->name, needs);
    if (has > 0)
        memcpy(p->staged[at], t->data, has);
    if (ch__room_is_poisoned())
        ch__room_fill(t->dtype, (char *)p->staged[at] + has, (int64_t)((needs - has) / each));
    *out = p->staged[at];
    return CH_OK;
}

/* Sets the number of rows of a result to that of its input, without the room. */
static void cut_output(launch *l, int r, int o)
{
    const ch_prepared *p = l->p;
    ch_tensor         *t = ch__result_set_tensor(l->result_set, r, o);

    t->shape.dim[0] = p->graph->output[o].node->dims.dim[0].n *
                      l->args.tensor[r * p->n_in + p->live_input[o]]->shape.dim[0];
}

/* Prepares the job of replica r. `input` and `output` are arrays for its pointers. */
static ch_status set_up_replica(launch *l, int r, int64_t number, int64_t global_rows,
                                const void **input, void **output)
{
    const ch_run *run = l->run;
    ch_prepared  *p = l->p;
    replica_job  *j = &l->job[r];
    ch_program   *program = p->program[p->variant[r]];
    ch_team      *team = NULL;
    ch_status     rc = ch__device_team(p->device[r], &team);

    if (rc == CH_OK)
        rc = ch__device_workspace(p->device[r], program->arena_bytes, program->touches_part,
                                  &j->workspace);
    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < p->n_in && rc == CH_OK; i++)
        rc = stage_input(l, r, i, &input[i]);
    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < p->n_out; i++) {
        output[i] = ch__result_set_data(l->result_set, r, i);
        if (p->live_input[i] >= 0)
            cut_output(l, r, i);
    }
    j->launch = l;
    j->local = r;
    j->env = (ch_env){.replica = run->first_replica + r,
                      .n_replicas = run->n_replicas,
                      .step = number,
                      .seed = run->seed,
                      .global_rows = global_rows,
                      .group = run->group,
                      .team = team,
                      .local = r,
                      .stop = run->stop};
    j->bind =
        (ch_bind){.input = input,
                  .output = output,
                  .resource = &p->resource[r * p->graph->n_resources],
                  .arena = j->workspace.base,
                  .arena_generation = j->workspace.generation,
                  .env = &j->env,
                  .team = team,
                  .barrier = run->group != NULL ? barrier : NULL,
                  .barrier_arg = j,
                  .clock = l->clock != NULL ? &l->clock[r] : NULL,
                  .see = l->see != NULL && p->watched ? see : NULL,
                  .see_arg = j,
                  .doing = run->group != NULL ? run->group_ops->doing(run->group, r) : NULL};
    return CH_OK;
}

/* Returns the rows of the first input over all local replicas. A plain value counts once for
 * each replica. */
static int64_t count_rows(const ch_run *run, const ch_args *a)
{
    int64_t rows = ch__tuple_rows(run->in);

    return a->n_in > 0 && ch_value_count(ch_tuple_at(run->in, 0)) == 1 ? rows * a->n_local
                                                                       : rows;
}

/* Runs all replicas in turns or on threads, and sums up their clocks. */
static ch_status run_replicas(launch *l, bool in_turns, void **arg)
{
    ch_prepared *p = l->p;
    ch_status    rc;

    if (l->run->group != NULL)
        l->run->group_ops->reset(l->run->group, l->clock, in_turns);
    rc = in_turns ? run_in_turns(l) : ch__devices_run(p->n_local, p->device, run_replica, arg);
    if (rc == CH_OK && l->run->timing != NULL && in_turns)
        ch__timing_sum(l->run->timing, p->n_local, l->clock);
    else if (rc == CH_OK && l->run->timing != NULL)
        ch__timing_mean(l->run->timing, p->n_local, l->clock);
    return rc;
}

/* Runs all replicas in the configured mode or, if that is auto, in the mode that has been
 * faster. */
static ch_status run_measured(launch *l, void **arg)
{
    ch_prepared     *p = l->p;
    ch_replicas_mode way = ch__config()->replicas;
    int64_t          begin;
    ch_status        rc;

    if (p->n_local == 1 || p->needs_threads || way != CH_REPLICAS_AUTO)
        return run_replicas(l, p->n_local > 1 && !p->needs_threads && way == CH_REPLICAS_TURNS,
                            arg);
    begin = ch__now_ns();
    rc = run_replicas(l, ch__turns_next(&p->turns), arg);
    ch__turns_note(&p->turns, ch__now_ns() - begin);
    return rc;
}

static ch_status launch_jobs(launch *l, int64_t number, const void **input, void **output,
                             void **arg)
{
    ch_prepared *p = l->p;
    int64_t      rows = l->run->has_rows ? l->run->global_rows : count_rows(l->run, &l->args);
    ch_status    rc = CH_OK;

    for (int r = 0; r < p->n_local && rc == CH_OK; r++)
        rc = set_up_replica(l, r, number, rows, input + r * p->n_in, output + r * p->n_out);
    if (rc != CH_OK)
        return rc;
    for (int r = 0; r < p->n_local; r++)
        arg[r] = &l->job[r];
    rc = run_measured(l, arg);
    return rc != CH_OK ? rc : ch__fault_raise(&l->fault);
}

/* Holds or releases all devices, in the order of their ordinals. A fixed order prevents
 * deadlocks between runs. */
static void hold_all(ch_prepared *p, bool hold)
{
    int before = -1;

    for (int k = 0; k < p->n_local; k++) {
        int next = -1;

        for (int r = 0; r < p->n_local; r++) {
            int o = ch__device_ordinal(p->device[r]);

            if (o > before && (next < 0 || o < ch__device_ordinal(p->device[next])))
                next = r;
        }
        before = ch__device_ordinal(p->device[next]);
        if (hold)
            ch__device_hold(p->device[next]);
        else
            ch__device_release(p->device[next]);
    }
}

/* Runs the program while all devices are held. p->run_memory is used by this run only. */
static ch_status run_held(launch *l, int64_t number)
{
    ch_prepared *p = l->p;
    size_t       n = (size_t)p->n_local;
    size_t       n_in = n * (size_t)p->n_in, n_out = n * (size_t)p->n_out;
    void       **pointer;
    ch_status    rc = find_resources(l);

    bind_borrowed(l);
    if (rc == CH_OK && l->run->ops->begin != NULL)
        rc = l->run->ops->begin(l->run, p->graph);
    if (rc == CH_OK && p->run_memory == NULL)
        p->run_memory = ch__alloc_aligned(n * (sizeof(replica_job) + sizeof(ch_clock)) +
                                          (n + n_in + n_out) * sizeof(void *));
    if (rc == CH_OK && p->run_memory == NULL)
        rc = ch__fail_memory("a run");
    if (rc != CH_OK)
        return rc;
    l->job = p->run_memory;
    pointer = (void **)(void *)(l->job + n);
    if (l->run->timing != NULL || ch__trace_is_on())
        l->clock = (ch_clock *)(void *)(pointer + n + n_in + n_out);
    rc = launch_jobs(l, number, (const void **)(void *)(pointer + n), pointer + n + n_in,
                     pointer);
    return rc == CH_OK && l->run->ops->end != NULL ? l->run->ops->end(l->run, p->graph) : rc;
}

/* ---- strings ---- */

static bool gives_strings(const ch_graph *g)
{
    for (int i = 0; i < g->n_outputs; i++)
        if (g->output[i].node->dtype == CH_STR)
            return true;
    return false;
}

static ch_status copy_value(const ch_value *v, ch_value **out)
{
    int         n = ch_value_count(v);
    ch_tensor **t = ch__calloc((size_t)n, sizeof(*t));
    ch_status   rc = t == NULL ? ch__fail_memory("results") : CH_OK;

    for (int r = 0; r < n && rc == CH_OK; r++) {
        const ch_tensor *from = ch_value_at(v, r);

        rc = ch_tensor_new_on(ch_tensor_device(from), from->dtype, from->shape, &t[r]);
        if (rc == CH_OK)
            rc = ch_tensor_copy(from, t[r]);
    }
    if (rc == CH_OK)
        rc = ch_value_new(ch_value_kind_of(v), n, t, out);
    for (int r = 0; t != NULL && r < n; r++)
        ch_tensor_unref(t[r]);
    ch__free(t);
    return rc;
}

/* Replaces string results by copies. A string result is an unchanged input, and its characters
 * belong to that input. */
static ch_status copy_strings(const ch_graph *g, ch_tuple **results)
{
    size_t       n = (size_t)g->n_outputs;
    ch_value   **v = ch__calloc(n, sizeof(*v));
    const char **name = ch__calloc(n, sizeof(*name));
    ch_tuple    *own = NULL;
    ch_status    rc = v == NULL || name == NULL ? ch__fail_memory("results") : CH_OK;

    for (int i = 0; i < g->n_outputs && rc == CH_OK; i++) {
        ch_value *was = ch_tuple_at(*results, i);

        name[i] = g->output[i].name;
        if (g->output[i].node->dtype == CH_STR)
            rc = copy_value(was, &v[i]);
        else
            v[i] = ch_value_ref(was);
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(g->n_outputs, v, name, &own);
    for (size_t i = 0; v != NULL && i < n; i++)
        ch_value_unref(v[i]);
    ch__free(v);
    ch__free(name);
    ch_tuple_unref(*results);
    *results = own;
    return rc;
}

static ch_status return_results(launch *l, ch_tuple **out)
{
    ch_tuple *results = ch__result_set_tuple(l->result_set);
    ch_status rc = gives_strings(l->p->graph) ? copy_strings(l->p->graph, &results) : CH_OK;

    if (rc == CH_OK)
        *out = results;
    return rc;
}

ch_status ch__run(const ch_run *run, ch_tuple **out)
{
    launch    l;
    int64_t   number = 0;
    ch_status rc;

    if (is_running)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "run %s: a step is running on this thread; a host function must not "
                        "run another step",
                        run->function->name);
    l.run = run;
    l.p = NULL;
    l.result_set = NULL;
    l.clock = NULL;
    l.borrowed = NULL;
    l.args = (ch_args){0};
    ch__fault_clear(&l.fault);
    rc = collect_inputs(&l, false);
    if (rc == CH_OK)
        rc = find_program(&l, &number);
    if (rc == CH_OK)
        rc = fetch_borrowed(&l);
    if (rc == CH_OK)
        rc = ch__result_set_get(l.p, &l.result_set);
    if (rc == CH_OK) {
        hold_all(l.p, true);
        rc = run_held(&l, number);
        hold_all(l.p, false);
    }
    if (l.result_set != NULL && (rc != CH_OK || out == NULL))
        ch_tuple_unref(ch__result_set_tuple(l.result_set));
    else if (rc == CH_OK)
        rc = return_results(&l, out);
    drop_inputs(&l);
    drop_borrowed(&l);
    ch__prepared_unref(l.p);
    return rc;
}
