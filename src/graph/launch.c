/* graph/launch.c -- runs a prepared graph on all replicas of this process.
 *
 * graph/run.c calls ch__launch with a ch_launch: the inputs, the prepared graph and the result
 * set of a run. A ch_member_job is the part of a member: of a replica, or of a core of a
 * replica (graph/run.h). The members run on the threads of their devices, or in turns on the
 * calling thread (graph/turns.h). graph/exec.c runs a program on a device.
 *
 * Invariants:
 *   1. All devices of a run are held, in the order of ch_device_at, during run_held. Members of
 *      ch_prepared that belong to a run (run_memory, resource, marks, staged, turns) are used
 *      only then.
 *   2. A member that fails aborts the run, so that no other member waits for it.
 *   3. Nothing is allocated, except in the first run of a prepared graph.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/launch.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/fault.h"
#include "base/trace.h"
#include "graph/limit.h"
#include "graph/room.h"
#include "tensor/print.h"
#include "tensor/ragged.h"

/* ---- a member ---- */

void ch__run_member_print(int member, int n_cores, ch_device *const *device, char *text,
                          size_t size)
{
    ch_text o = ch__text(text, size);

    ch__text_add(&o, "replica %d", member / n_cores);
    if (n_cores > 1)
        ch__text_add(&o, ", core %d", member % n_cores);
    if (n_cores > 1 && device != NULL)
        ch__text_add(&o, " (%s)", ch__device_short_name(device[member]));
}

static ch_status barrier(void *arg)
{
    ch_member_job *j = arg;

    return j->launch->run->group_ops->barrier(j->launch->run->group, j->member);
}

/* Passes the outputs of an instruction to the observer, as tensors that refer to the arena. */
static void see(void *arg, const ch_instr *in, const ch_call *c)
{
    ch_member_job *j = arg;
    ch_tensor     *out[CH_MAX_OUT];
    char           name[128];
    int            n = 0;

    for (; n < in->n_out; n++)
        if (ch_tensor_wrap(in->node[n].dtype, ch__shape(&in->node[n]), c->out[n], NULL, NULL,
                           &out[n]) != CH_OK)
            break;
    snprintf(name, sizeof(name), "%s%s%s", in->node->scope != NULL ? in->node->scope : "",
             in->node->scope != NULL ? "/" : "", in->node->op->name);
    if (j->launch->p->n_cores > 1) {
        size_t used = strlen(name);

        snprintf(name + used, sizeof(name) - used, " on core %d", j->env.core);
    }
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

static void start_clock(ch_member_job *j, bool is_first)
{
    ch_device *on = j->launch->p->device[j->member];

    if (is_first)
        ch__clock_start(j->bind.clock, ch__trace_is_on() ? ch_device_name(on) : NULL);
    else
        ch__clock_continue(j->bind.clock);
}

static void stop_clock(ch_member_job *j, ch_status rc)
{
    if (rc == CH__BLOCKED)
        ch__clock_suspend(j->bind.clock);
    else
        ch__clock_stop(j->bind.clock, j->launch->run->function->name, rc != CH_OK);
}

/* Records the error of a member, with the names of its replica and core. */
static void record_fault(ch_member_job *j, ch_status rc)
{
    const ch_run *run = j->launch->run;

    if (j->launch->p->n_cores > 1)
        (void)ch__fail_at(rc, "core %d (%s)", j->env.core,
                          ch__device_short_name(j->launch->p->device[j->member]));
    ch__fault_record(&j->launch->fault, rc, run->n_replicas > 1 ? j->env.replica : -1, NULL);
}

/* Runs a member until it ends or returns CH__BLOCKED. After CH__BLOCKED the caller must call
 * advance again, with is_first false. */
static ch_status advance(ch_member_job *j, bool is_first)
{
    ch_launch   *l = j->launch;
    ch_instance *x = l->p->instance[j->member];
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
    record_fault(j, rc);
    if (l->run->group != NULL)
        l->run->group_ops->abort_run(l->run->group);
    return rc;
}

static void run_member(void *arg)
{
    (void)advance(arg, true);
}

/* Runs all members on this thread in rounds. In each round a member runs until it ends or must
 * wait for the others. */
static ch_status run_in_turns(ch_launch *l)
{
    int n_left = l->p->n_members;

    for (bool is_first = true; n_left > 0; is_first = false)
        for (int m = 0; m < l->p->n_members; m++) {
            ch_member_job *j = &l->job[m];
            ch_status      rc;

            if (!is_first && j->has_ended)
                continue;
            rc = ch_device_enter(l->p->device[m]);
            /* can happen for the first member only: the depth of all is equal */
            if (rc != CH_OK)
                return rc;
            j->has_ended = advance(j, is_first) != CH__BLOCKED;
            n_left -= j->has_ended;
            ch_device_leave();
        }
    return CH_OK;
}

/* ---- inputs, outputs and variables ---- */

/* Looks up the marks of the owner's variables. */
static void find_marks(const ch_launch *l)
{
    const ch_run *run = l->run;
    ch_prepared  *p = l->p;

    p->has_marks = false;
    for (int i = 0; i < p->graph->n_resources && run->ops->marks != NULL; i++) {
        const ch_resource *r = &p->graph->resource[i];

        p->marks[i] = !ch__is_borrowed(r) ? run->ops->marks(run->owner, r) : NULL;
        p->has_marks |= p->marks[i] != NULL;
    }
}

/* Looks up the storage and marks of the owner's variables, if their generation has changed. */
static ch_status find_resources(ch_launch *l)
{
    ch_prepared *p = l->p;
    int          n = p->graph->n_resources;

    if (p->has_resources && p->generation == l->run->generation)
        return CH_OK;
    for (int m = 0; m < p->n_members; m++)
        for (int i = 0; i < n; i++) {
            ch_resource r = p->graph->resource[i];
            ch_status   rc = CH_OK;

            r.layout = p->layout[i];
            if (!ch__is_borrowed(&r))
                rc = l->run->ops->resource(l->run->owner, &r, m / p->n_cores, m % p->n_cores,
                                           &p->resource[m * n + i]);
            if (rc != CH_OK)
                return ch__fail_at(rc, "%s", l->run->function->name);
        }
    find_marks(l);
    p->has_resources = true;
    p->generation = l->run->generation;
    return CH_OK;
}

/* Marks all rows of the resources of which a core of replica 0 may write any row. Called
 * before the run, because after the commit a barrier can still fail: so a run that fails marks
 * too many rows, never too few. */
static void mark_all_rows(const ch_prepared *p)
{
    for (int i = 0; i < p->graph->n_resources; i++)
        for (int c = 0; c < p->n_cores; c++)
            if (p->marks[i] != NULL && p->program[p->which[c]]->writes_all[i])
                ch__row_marks_add_all(p->marks[i]);
}

/* Makes all members read the fetched values of their replicas. */
static void bind_borrowed(const ch_launch *l)
{
    ch_prepared *p = l->p;
    int          n = p->graph->n_resources;

    for (int i = 0; i < n && l->borrowed != NULL; i++) {
        ch_tensor *const *value = &l->borrowed[i * l->run->n_local];

        for (int m = 0; m < p->n_members && value[0] != NULL; m++) {
            const ch_tensor *own = value[m / p->n_cores];

            p->resource[m * n + i] = own != NULL ? own->data : value[0]->data;
        }
    }
}

/* Sets *out to the data of input i for replica r. If the program needs room that the tensor
 * does not have, the data is copied to a larger buffer. */
static ch_status stage_input(ch_launch *l, int r, int i, const void **out)
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
        p->staged[at] = ch__device_alloc(p->device[r * p->n_cores], needs);
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
static void cut_output(ch_launch *l, int r, int o)
{
    const ch_prepared *p = l->p;
    ch_tensor         *t = ch__result_set_tensor(l->result_set, r, o);

    t->shape.dim[0] = p->graph->output[o].node->dims.dim[0].n *
                      l->args.tensor[r * p->n_in + p->live_input[o]]->shape.dim[0];
}

/* Sets input[i] and output[i] to the memory of inputs and results of replica r. */
static ch_status set_up_replica(ch_launch *l, int r, const void **input, void **output)
{
    const ch_prepared *p = l->p;

    for (int i = 0; i < p->n_in; i++) {
        ch_status rc = stage_input(l, r, i, &input[i]);

        if (rc != CH_OK)
            return rc;
    }
    for (int i = 0; i < p->n_out; i++) {
        output[i] = ch__result_set_data(l->result_set, r, i);
        if (p->live_input[i] >= 0)
            cut_output(l, r, i);
    }
    return CH_OK;
}

/* Sets what is the same in every run: pointers to the jobs, and some members of the jobs.
 * `input` and `output` are arrays for the pointers of all members. */
static void init_jobs(ch_prepared *p, ch_member_job *job, ch_traffic_counts *traffic,
                      void **list, const void **input, void **output)
{
    for (int m = 0; m < p->n_members; m++) {
        ch_member_job *j = &job[m];

        list[m] = j;
        *j = (ch_member_job){.member = m};
        j->env.local = m / p->n_cores;
        j->env.core = m % p->n_cores;
        j->env.traffic = p->n_cores > 1 ? &traffic[m] : NULL;
        j->bind.input = input + m * p->n_in;
        j->bind.output = output + m * p->n_out;
        j->bind.resource = &p->resource[m * p->graph->n_resources];
        j->bind.marking = p->n_cores > 1 ? &p->marking : NULL;
        j->bind.is_first = p->is_first[m];
        j->bind.env = &j->env;
        j->bind.barrier_arg = j->bind.see_arg = j;
    }
}

/* Returns the error that member m does not fit into the memory of its device. */
static ch_status fail_memory(const ch_launch *l, int m)
{
    const ch_prepared *p = l->p;
    const char        *device = ch__device_short_name(p->device[m]);
    char               where[96];
    ch_text            o = ch__text(where, sizeof(where));

    if (l->run->n_replicas > 1)
        ch__text_add(&o, "replica %d, ", l->run->first_replica + m / p->n_cores);
    if (p->n_cores > 1)
        ch__text_add(&o, "core %d (%s)", m % p->n_cores, device);
    else
        ch__text_add(&o, "%s", device);
    return ch__fail_program_memory(p->program[p->which[m]], p->device[m], where,
                                   l->run->function->name);
}

/* Prepares the job of member m for a run. */
static ch_status set_up_member(ch_launch *l, int m, int64_t number, int64_t global_rows)
{
    const ch_run  *run = l->run;
    ch_prepared   *p = l->p;
    ch_member_job *j = &l->job[m];
    ch_program    *program = p->program[p->which[m]];
    ch_status      rc = CH_OK;

    if (j->launch == NULL) /* the first run */
        rc = ch__device_team(p->device[m], &j->bind.team);
    if (rc == CH_OK)
        rc = ch__device_workspace(p->device[m], program->arena_bytes, program->touches_part,
                                  &j->workspace);
    if (rc == CH_RESOURCE_EXHAUSTED && ch__failed_at_limit())
        rc = fail_memory(l, m);
    if (rc != CH_OK)
        return rc;
    j->launch = l;
    j->env.replica = run->first_replica + j->env.local;
    j->env.n_replicas = run->n_replicas;
    j->env.step = number;
    j->env.seed = run->seed;
    j->env.global_rows = global_rows;
    j->env.group = run->group;
    j->env.team = j->bind.team;
    j->env.input = &l->args.tensor[j->env.local * p->n_in];
    j->env.stop = run->stop;
    if (p->n_cores > 1) {
        j->env.group = run->groups.replicas != NULL ? run->groups.replicas[j->env.core] : NULL;
        j->env.cores = run->groups.cores[j->env.local];
    }
    j->bind.marks = p->has_marks && j->env.local == 0 ? p->marks : NULL;
    j->bind.arena = j->workspace.base;
    j->bind.arena_generation = j->workspace.generation;
    j->bind.barrier = run->group != NULL && p->writes ? barrier : NULL;
    j->bind.clock = l->clock != NULL ? &l->clock[m] : NULL;
    j->bind.see = l->see != NULL && p->watched ? see : NULL;
    j->bind.doing = run->group != NULL ? run->group_ops->doing(run->group, m) : NULL;
    return CH_OK;
}

/* Copies the pointers to the inputs and results of a replica from core 0 to the other
 * cores. */
static void share_arrays(const ch_prepared *p, int r, const void **input, void **output)
{
    for (int c = 1; c < p->n_cores; c++) {
        int m = r * p->n_cores + c, first = r * p->n_cores;

        for (int i = 0; i < p->n_in; i++)
            input[m * p->n_in + i] = input[first * p->n_in + i];
        for (int o = 0; o < p->n_out; o++)
            output[m * p->n_out + o] = output[first * p->n_out + o];
    }
}

/* Prepares the jobs of all members for a run. */
static ch_status set_up_members(ch_launch *l, int64_t number, int64_t rows, const void **input,
                                void **output)
{
    ch_prepared *p = l->p;
    ch_status    rc = CH_OK;

    for (int m = 0; m < p->n_members && rc == CH_OK; m++) {
        const ch_env *env = &l->job[m].env;

        if (env->core == 0)
            rc = set_up_replica(l, env->local, input + m * p->n_in, output + m * p->n_out);
        if (rc == CH_OK && env->core == 0 && p->n_cores > 1)
            share_arrays(p, env->local, input, output);
        if (rc == CH_OK)
            rc = set_up_member(l, m, number, rows);
    }
    return rc;
}

/* ---- all members ---- */

/* Returns the rows of the first input over all local replicas. A plain value counts once for
 * each replica. */
static int64_t count_rows(const ch_run *run, const ch_args *a)
{
    int64_t rows = ch__tuple_rows(run->in);

    return a->n_in > 0 && ch_value_count(ch_tuple_at(run->in, 0)) == 1 ? rows * a->n_local
                                                                       : rows;
}

/* Adds up the counts of the cores of local replica 0 and, between replicas, of all members. A
 * call counts once, however many members take part. */
static void sum_traffic(const ch_launch *l)
{
    ch_prepared *p = l->p;

    memset(&p->traffic, 0, sizeof(p->traffic));
    for (int k = 0; k < CH_TRAFFIC_COUNT; k++)
        for (int m = 0; m < (k == CH_TRAFFIC_CROSS ? p->n_members : p->n_cores); m++) {
            p->traffic.bytes[k] += l->traffic[m].bytes[k];
            if (l->traffic[m].calls[k] > p->traffic.calls[k])
                p->traffic.calls[k] = l->traffic[m].calls[k];
        }
}

/* Runs all members in turns or on threads, and sums up their clocks. */
static ch_status run_members(ch_launch *l, bool in_turns, void **arg)
{
    ch_prepared *p = l->p;
    ch_status    rc;

    if (l->run->group != NULL)
        l->run->group_ops->reset(l->run->group,
                                 &(ch_group_run){p->device, l->clock, l->traffic, in_turns});
    rc = in_turns ? run_in_turns(l) : ch__devices_run(p->n_members, p->device, run_member, arg);
    if (rc == CH_OK && l->run->timing != NULL && in_turns)
        ch__timing_sum(l->run->timing, p->n_members, l->clock);
    else if (rc == CH_OK && l->run->timing != NULL)
        ch__timing_mean(l->run->timing, p->n_members, l->clock);
    return rc;
}

/* Runs all members in the configured mode or, if that is auto, in the mode that has been
 * faster. */
static ch_status run_measured(ch_launch *l, void **arg)
{
    ch_prepared     *p = l->p;
    ch_replicas_mode way = ch__config()->replicas;
    int64_t          begin;
    ch_status        rc;

    if (p->n_members == 1 || p->needs_threads || way != CH_REPLICAS_AUTO)
        return run_members(l, p->n_members > 1 && !p->needs_threads && way == CH_REPLICAS_TURNS,
                           arg);
    begin = ch__now_ns();
    rc = run_members(l, ch__turns_next(&p->turns), arg);
    ch__turns_note(&p->turns, ch__now_ns() - begin);
    return rc;
}

/* Runs the program while all devices are held. p->run_memory is used by this run only: it holds
 * the jobs, their addresses, the addresses of inputs and outputs, the clocks, and the counts of
 * bytes. */
static ch_status run_held(ch_launch *l, int64_t number)
{
    const ch_run *run = l->run;
    ch_prepared  *p = l->p;
    size_t        n = (size_t)p->n_members;
    size_t        n_in = n * (size_t)p->n_in, n_out = n * (size_t)p->n_out;
    bool          is_new = p->run_memory == NULL;
    ch_status     rc = find_resources(l);

    bind_borrowed(l);
    if (rc == CH_OK && run->ops->begin != NULL)
        rc = run->ops->begin(run, p->graph);
    if (rc == CH_OK && is_new)
        p->run_memory = ch__alloc_aligned(
            n * (sizeof(ch_member_job) + sizeof(ch_clock) + sizeof(ch_traffic_counts)) +
            (n + n_in + n_out) * sizeof(void *));
    if (rc == CH_OK && p->run_memory == NULL)
        rc = ch__fail_memory("a run");
    if (rc != CH_OK)
        return rc;
    l->job = p->run_memory;
    void       **job = (void **)(void *)(l->job + n);
    const void **input = (const void **)(void *)(job + n);
    void       **output = job + n + n_in;
    ch_clock    *clock = (ch_clock *)(void *)(output + n_out);
    int64_t      rows = run->has_rows ? run->global_rows : count_rows(run, &l->args);

    if (run->timing != NULL || ch__trace_is_on())
        l->clock = clock;
    l->traffic = (ch_traffic_counts *)(void *)(clock + n);
    memset(l->traffic, 0, n * sizeof(*l->traffic));
    if (is_new)
        init_jobs(p, l->job, l->traffic, job, input, output);
    rc = set_up_members(l, number, rows, input, output);
    if (rc == CH_OK && p->has_marks)
        mark_all_rows(p);
    if (rc == CH_OK)
        rc = run_measured(l, job);
    if (rc == CH_OK)
        rc = ch__fault_raise(&l->fault);
    if (rc != CH_OK && p->n_cores > 1)
        rc = ch__fail_at(rc, "%s, run %lld", run->function->name, (long long)number);
    if (p->n_members > 1)
        sum_traffic(l);
    return rc == CH_OK && run->ops->end != NULL ? run->ops->end(run, p->graph) : rc;
}

ch_status ch__launch(ch_launch *l, int64_t number)
{
    ch_status rc = ch__devices_check_fork(l->run->function->name);

    if (rc != CH_OK)
        return rc;
    ch__devices_hold(l->p->n_members, l->p->device);
    rc = run_held(l, number);
    ch__devices_release(l->p->n_members, l->p->device);
    return rc;
}
