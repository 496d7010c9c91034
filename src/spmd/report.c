/* spmd/report.c -- reports of the last run of a function.
 *
 * The numbers of transfers come from the graphs of the programs that ran: each exchange,
 * take_part and put_part has a table of its regions. The counts of the kernels are in
 * ch_prepared.traffic.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/report.h"

#include "base/fault.h"
#include "graph/function.h"
#include "spmd/core_ops.h"

ch_status ch__step_report_new(ch_step_report **out)
{
    *out = ch__calloc(1, sizeof(**out));
    if (*out == NULL)
        return ch__fail_memory("the report of a step");
    (*out)->times = 1;
    return CH_OK;
}

void ch__search_report_free(ch_search_report *r)
{
    if (r == NULL)
        return;
    ch__arena_drop(&r->arena);
    ch__free(r);
}

void ch__step_report_free(void *report)
{
    ch_step_report *r = report;

    if (r == NULL)
        return;
    ch__search_report_free(r->search);
    ch__arena_drop(&r->arena);
    ch__free(r);
}

const ch_step_report *ch__step_report_of(const ch_prepared *p)
{
    return p->report_free == ch__step_report_free ? p->report : NULL;
}

static void add_planned(const ch_graph *g, int core, ch_traffic_counts *out);

/* Adds what the bodies of a call will count. If only a run knows how often they run, they count
 * as if the body of a loop ran once, and the branch with the larger counts. */
static void add_bodies(const ch_node *call, int core, ch_traffic_counts *out)
{
    ch_graph         *body[CH_MAX_BODIES];
    int               n = ch__call_bodies(call, body);
    int64_t           times = n > 0 ? ch__body_iterations(call) : 0;
    ch_traffic_counts most = {.calls = {0}};

    for (int i = 0; i < n; i++) {
        ch_traffic_counts of_body = {.calls = {0}};

        add_planned(body[i], core, &of_body);
        for (int k = 0; k < CH_TRAFFIC_COUNT; k++) {
            most.calls[k] = of_body.calls[k] > most.calls[k] ? of_body.calls[k] : most.calls[k];
            most.bytes[k] = of_body.bytes[k] > most.bytes[k] ? of_body.bytes[k] : most.bytes[k];
        }
    }
    for (int k = 0; k < CH_TRAFFIC_COUNT && n > 0; k++) {
        out->calls[k] += most.calls[k] * (times >= 0 ? times : 1);
        out->bytes[k] += most.bytes[k] * (times >= 0 ? times : 1);
    }
}

/* Adds what the kernels of core c will count. */
static void add_planned(const ch_graph *g, int core, ch_traffic_counts *out)
{
    for (const ch_node *n = g->first; n != NULL; n = n->next) {
        if (n->op == &ch__op_exchange && core == 0) { /* the plan is that of all cores */
            const ch_reshard *plan = ch__exchange_plan(n);

            out->calls[plan->kind]++;
            out->bytes[plan->kind] +=
                plan->n_moved * (int64_t)ch_dtype_bytes(ch__exchange_dtype(n));
        } else if (n->op == &ch__op_take_part || n->op == &ch__op_put_part) {
            int64_t bytes = ch__core_part_bytes(n, core);

            out->calls[CH_TRAFFIC_HOST] += bytes > 0;
            out->bytes[CH_TRAFFIC_HOST] += bytes;
        } else if (n->op->ties != NULL) {
            add_bodies(n, core, out);
        }
    }
}

static ch_traffic_counts planned_traffic(const ch_prepared *p)
{
    ch_traffic_counts sum = {.calls = {0}};

    for (int c = 0; c < p->n_cores && p->n_cores > 1; c++) {
        ch_traffic_counts of_core = {.calls = {0}};

        add_planned(p->program[p->which[c]]->graph, c, &of_core);
        for (int k = 0; k < CH_TRAFFIC_COUNT; k++) {
            sum.calls[k] = of_core.calls[k] > sum.calls[k] ? of_core.calls[k] : sum.calls[k];
            sum.bytes[k] += of_core.bytes[k];
        }
    }
    sum.calls[CH_TRAFFIC_CROSS] = p->cross_calls;
    sum.bytes[CH_TRAFFIC_CROSS] = p->cross_bytes;
    return sum;
}

static void set_traffic(ch_layout_report *r, const ch_traffic_counts *t)
{
    ch_traffic *const to[CH_TRAFFIC_COUNT] = {
        [CH_TRAFFIC_ALL_REDUCE] = &r->all_reduce,
        [CH_TRAFFIC_REDUCE_SCATTER] = &r->reduce_scatter,
        [CH_TRAFFIC_ALL_GATHER] = &r->all_gather,
        [CH_TRAFFIC_ALL_TO_ALL] = &r->all_to_all,
        [CH_TRAFFIC_HALO] = &r->halo,
        [CH_TRAFFIC_OTHER] = &r->other,
        [CH_TRAFFIC_HOST] = &r->host,
        [CH_TRAFFIC_CROSS] = &r->cross_replica,
    };

    for (int k = 0; k < CH_TRAFFIC_COUNT; k++)
        if (to[k] != NULL)
            *to[k] = (ch_traffic){t->calls[k], t->bytes[k]};
}

/* Returns the bytes that a program needs: its arena, and its parts of variables. */
static int64_t planned_bytes(const ch_program *p)
{
    int64_t bytes = (int64_t)p->arena_bytes;

    for (int i = 0; i < p->graph->n_resources; i++) {
        const ch_resource *r = &p->graph->resource[i];

        if (!r->is_borrowed && (r->read != NULL || r->value != NULL))
            bytes += ch_shape_count(r->shape) * (int64_t)ch_dtype_bytes(r->dtype);
    }
    return bytes;
}

/* Returns the operations of the busiest core for each operation of the unsharded step. */
static double work_of(const ch_step_report *r, int n_cores)
{
    double most = 0;

    for (int c = 0; c < n_cores; c++)
        most = r->operations[c] > most ? r->operations[c] : most;
    return r->all_operations > 0 ? most / r->all_operations : 1;
}

/* Sets the members that the plan and the measurement share. */
static void set_common(const ch_prepared *p, ch_layout_report *r)
{
    const ch_step_report *own = ch__step_report_of(p);

    *r = (ch_layout_report){.devices = p->n_cores,
                            .programs = p->n_programs,
                            .calls = own != NULL ? own->n_calls : p->n_calls,
                            .replicated_calls = own != NULL ? own->n_replicated : 0,
                            .work = own != NULL ? work_of(own, p->n_cores) : 1};
}

void ch__report_planned(const ch_prepared *p, ch_layout_report *r)
{
    const ch_traffic_counts t = planned_traffic(p);

    set_common(p, r);
    set_traffic(r, &t);
    for (int c = 0; c < p->n_cores; c++)
        r->peak_bytes[c] = planned_bytes(p->program[p->which[c]]);
}

static void report_measured(const ch_prepared *p, ch_layout_report *r)
{
    set_common(p, r);
    set_traffic(r, &p->traffic);
    for (int c = 0; c < p->n_cores; c++)
        r->peak_bytes[c] = (int64_t)ch_device_peak_bytes(p->device[c]);
}

ch_status ch_function_report_layouts(ch_function *f, ch_layout_report *planned,
                                     ch_layout_report *measured)
{
    ch_prepared *p;

    if (f == NULL)
        return ch__check_not_null("report layouts", "the function", f, NULL, NULL);
    p = ch__function_last(f);
    if (p == NULL)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "report layouts of %s: the function has not run; run it first "
                        "(ch_strategy_run)",
                        f->name);
    if (planned != NULL)
        ch__report_planned(p, planned);
    if (measured != NULL)
        report_measured(p, measured);
    ch__prepared_unref(p);
    return CH_OK;
}
