/* strategy/coordinator.c -- the public coordinator: its creation, steps and their results.
 *
 * ch_coordinator is a handle on a parameter-server strategy; a strategy has at most one. All
 * work is done by the coordinator task of the strategy (job/coordinator.h). This file checks
 * arguments, records steps, and passes the requests on. per_worker_data.c makes the per-worker
 * arguments of steps. ch_remote is the result of a scheduled step.
 *
 * Invariants:
 *   1. ch_ps.coordinator is not a reference. It is read and written only between ch__task_enter
 *      and ch__task_leave, and find_coordinator never revives a coordinator without references.
 *   2. A step is recorded once for all workers, with the sample values of its per-worker
 *      arguments.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/coordinator.h"

#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/print.h"

struct ch_remote {
    atomic_int      refs;
    ch_coordinator *coordinator; /* referenced */
    ch_scheduled   *step;
    ch_graph       *graph; /* graph of the step; names its results */
};

/* ---- creating a coordinator ---- */

static const char *const mode_name[] = {"CH_ASYNCHRONOUS", "CH_BOUNDED_STALENESS",
                                        "CH_SYNCHRONOUS"};

/* Numeric options; none may be negative. */
enum { N_NUMBERS = 5 };
static const char *const number_name[N_NUMBERS] = {"staleness", "round", "capacity",
                                                   "capacity_bytes", "step_seconds"};

static double number_of(const ch_coordinator_options *o, int i)
{
    const double number[N_NUMBERS] = {o->staleness, o->round, (double)o->capacity,
                                      (double)o->capacity_bytes, o->step_seconds};

    return number[i];
}

static ch_status check_options(const ch_coordinator_options *o)
{
    if ((unsigned)o->mode > CH_SYNCHRONOUS)
        return ch__fail(CH_INVALID_ARGUMENT, "coordinator: its mode is %d; want %s, %s or %s",
                        (int)o->mode, mode_name[0], mode_name[1], mode_name[2]);
    for (int i = 0; i < N_NUMBERS; i++)
        if (!(number_of(o, i) >= 0) || !isfinite(number_of(o, i)))
            return ch__fail(CH_INVALID_ARGUMENT, "coordinator: %s is %g; want 0 or more",
                            number_name[i], number_of(o, i));
    return CH_OK;
}

/* Returns FAILED_PRECONDITION if the requested options differ from those of the existing
 * coordinator. */
static ch_status check_same(const ch_coordinator_options *current,
                            const ch_coordinator_options *requested)
{
    char    text[256];
    ch_text t = ch__text(text, sizeof(text));

    if (current->mode != requested->mode)
        ch__text_add(&t, ", mode is %s and not %s", mode_name[current->mode],
                     mode_name[requested->mode]);
    for (int i = 0; i < N_NUMBERS; i++)
        if (number_of(current, i) != number_of(requested, i))
            ch__text_add(&t, ", %s is %.15g and not %.15g", number_name[i],
                         number_of(current, i), number_of(requested, i));
    if (current->backups != requested->backups)
        ch__text_add(&t, ", backups is %s and not %s", current->backups ? "true" : "false",
                     requested->backups ? "true" : "false");
    if (ch__text_length(&t) == 0)
        return CH_OK;
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "coordinator: the strategy already has a coordinator with other options: %s; pass "
        "these options to the first ch_coordinator_new, or NULL to get the existing one",
        text + strlen(", "));
}

/* Returns a new reference to the strategy's coordinator, or NULL if it has none or its last
 * reference is being released. Must be called after ch__task_enter(ps->coord). */
static ch_coordinator *find_coordinator(const ch_ps *ps)
{
    ch_coordinator *c = ps->coordinator;
    int             refs = c != NULL ? atomic_load(&c->refs) : 0;

    while (refs > 0)
        if (atomic_compare_exchange_weak(&c->refs, &refs, refs + 1))
            return c;
    return NULL;
}

ch_status ch_coordinator_new(ch_strategy *st, const ch_coordinator_options *opt,
                             ch_coordinator **out)
{
    static const ch_coordinator_options default_options;
    ch_status rc = ch__check_not_null("coordinator", "out", out, NULL, NULL);

    st = ch__strategy_or_current(st);
    ch_ps *ps = ch__ps_of(st);

    if (rc == CH_OK && ps == NULL)
        rc = ch__fail(
            CH_INVALID_ARGUMENT,
            "coordinator: only a strategy with parameter servers has a coordinator (got %s); "
            "use ch_strategy_parameter_server",
            st->label);
    if (rc == CH_OK && opt != NULL)
        rc = check_options(opt);
    if (rc != CH_OK)
        return rc;
    ch_coordinator *c = NULL, *made = ch__calloc(1, sizeof(*made));

    if (made == NULL)
        return ch__fail_memory("a coordinator");
    atomic_init(&made->refs, 1);
    made->strategy = ch_strategy_ref(st);
    made->ps = ps;
    (void)ch__task_enter(ps->coord);
    c = find_coordinator(ps);
    if (opt != NULL && ps->has_options)
        rc = check_same(&ps->options, opt);
    if (rc == CH_OK && !ps->has_options) {
        ps->options = opt != NULL ? *opt : default_options;
        ps->has_options = true;
    }
    if (rc == CH_OK && c == NULL)
        c = ps->coordinator = made;
    ch__task_leave(ps->coord);
    if (rc == CH_OK)
        ch__coord_set_options(ps->coord, &ps->options);
    if (c != made || rc != CH_OK)
        ch_coordinator_unref(made);
    if (rc == CH_OK)
        *out = c;
    else if (c != made)
        ch_coordinator_unref(c);
    return rc;
}

ch_coordinator *ch_coordinator_ref(ch_coordinator *c)
{
    if (c != NULL)
        atomic_fetch_add(&c->refs, 1);
    return c;
}

void ch_coordinator_unref(ch_coordinator *c)
{
    if (c == NULL || atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    (void)ch__task_enter(c->ps->coord);
    if (c->ps->coordinator == c)
        c->ps->coordinator = NULL;
    ch__task_leave(c->ps->coord);
    ch_strategy_unref(c->strategy);
    ch__free(c);
}

ch_strategy *ch_coordinator_strategy(const ch_coordinator *c)
{
    return c != NULL ? c->strategy : NULL;
}

/* ---- steps ---- */

/* Checks a list argument: its length must not be negative, and it must not be NULL unless it is
 * empty. */
static ch_status check_list(const char *call, const char *count, int n, const char *list,
                            const void *list_address)
{
    if (n < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %s is %d, want 0 or more", call, count, n);
    if (n > 0 && list_address == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %s is NULL, and %s is %d", call, list, count,
                        n);
    return CH_OK;
}

/* Checks the per-worker arguments of a step. */
static ch_status check_each(const ch_coordinator *c, const ch_arguments *a)
{
    ch_status rc = check_list("schedule", "n_each", a->n_each, "each", a->each);

    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < a->n_each; i++) {
        const ch_per_worker *p = a->each[i];

        if (p == NULL || p->input == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "schedule: each[%d] is %s", i,
                            p == NULL ? "NULL"
                                      : "a dataset; pass the result of ch_per_worker_iterate");
        if (p->coordinator->ps != c->ps)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "schedule: each[%d] belongs to another coordinator", i);
    }
    return CH_OK;
}

/* Makes a tuple of all inputs of a step: the leaves of a->in, then sample values for the
 * per-worker inputs. */
static ch_status sample_inputs(const ch_arguments *a, ch_tuple **out, bool *rows_unknown)
{
    int n = a->in != NULL ? ch_tuple_count(a->in) : 0, k = 0;

    for (int i = 0; i < a->n_each; i++)
        n += a->each[i]->width;
    ch_value   **v = ch__calloc((size_t)n + 1, sizeof(ch_value *));
    const char **name = ch__calloc((size_t)n + 1, sizeof(char *));
    ch_status    rc = v == NULL || name == NULL ? ch__fail_memory("a step") : CH_OK;

    for (; rc == CH_OK && a->in != NULL && k < ch_tuple_count(a->in); k++) {
        v[k] = ch_value_ref(ch_tuple_at(a->in, k));
        name[k] = ch_tuple_name(a->in, k);
    }
    for (int i = 0; i < a->n_each && rc == CH_OK; i++)
        for (int j = 0; j < a->each[i]->width; j++, k++) {
            v[k] = ch_value_ref(a->each[i]->sample[j]);
            name[k] = a->each[i]->name[j];
            *rows_unknown |= a->each[i]->rows_unknown;
        }
    if (rc == CH_OK)
        rc = ch_tuple_new(k, v, name, out);
    while (k > 0)
        ch_value_unref(v[--k]);
    ch__free(v);
    ch__free(name);
    return rc;
}

static ch_status new_remote(ch_coordinator *c, ch_graph *g, ch_remote **out)
{
    ch_remote *r = ch__calloc(1, sizeof(*r));

    if (r == NULL)
        return ch__fail_memory("a step's results");
    atomic_init(&r->refs, 1);
    r->coordinator = ch_coordinator_ref(c);
    r->graph = ch_graph_ref(g);
    *out = r;
    return CH_OK;
}

/* Sends the step to the queue of the coordinator task. *out may be NULL if the results are not
 * wanted. */
static ch_status schedule_step(ch_coordinator *c, const ch_function *f, const ch_arguments *a,
                               const ch_graph *g, uint64_t function, int64_t number,
                               ch_scheduled **out)
{
    enum { FEW = 16 };
    ch_worker_input *inline_input[FEW], **input = inline_input;
    ch_ps_inputs     in;
    ch_status        rc = ch__ps_inputs_read(c->ps, g, a->in, &in);

    if (rc != CH_OK)
        return rc;
    if (a->n_each > FEW &&
        (input = ch__calloc((size_t)a->n_each, sizeof(ch_worker_input *))) == NULL)
        rc = ch__fail_memory("a step");
    if (rc == CH_OK) {
        for (int i = 0; i < a->n_each; i++)
            input[i] = a->each[i]->input;
        rc = ch__coord_schedule(c->ps->coord,
                                &(ch_step_request){.function = function,
                                                   .number = number,
                                                   .n_in = in.n_in,
                                                   .n_inputs = in.n_inputs,
                                                   .n_shared = in.n_shared,
                                                   .in = in.in,
                                                   .n_worker_inputs = a->n_each,
                                                   .input = input,
                                                   .owner = f},
                                out);
    }
    if (input != inline_input)
        ch__free(input);
    ch__ps_inputs_drop(&in);
    return rc;
}

ch_status ch_coordinator_schedule(ch_coordinator *c, ch_function *f, const ch_arguments *args,
                                  ch_remote **out)
{
    static const ch_arguments none;
    const ch_arguments       *a = args != NULL ? args : &none;
    ch_remote                *r = NULL;
    ch_graph                 *g = NULL;
    ch_tuple                 *in = NULL;
    bool                      rows_unknown = false;
    uint64_t                  function = 0;
    int64_t                   number = 0;
    ch_status rc = ch__check_not_null("schedule", "the coordinator", c, "the function", f);

    if (rc == CH_OK)
        rc = check_each(c, a);
    if (rc == CH_OK && a->n_each > 0)
        rc = sample_inputs(a, &in, &rows_unknown);
    if (rc == CH_OK)
        rc = ch__strategy_record(c->strategy, f, in != NULL ? in : a->in, rows_unknown, &g,
                                 &number);
    ch_tuple_unref(in);
    if (rc == CH_OK)
        rc = ch__ps_function(c->ps, g, &function);
    if (rc == CH_OK && out != NULL)
        rc = new_remote(c, g, &r);
    if (rc == CH_OK)
        rc = schedule_step(c, f, a, g, function, number, out != NULL ? &r->step : NULL);
    ch_graph_unref(g);
    if (rc == CH_OK && out != NULL)
        *out = r;
    else
        ch_remote_unref(r);
    return rc;
}

ch_status ch_coordinator_join(ch_coordinator *c)
{
    ch_status rc = ch__check_not_null("join", "the coordinator", c, NULL, NULL);

    return rc == CH_OK ? ch__coord_join(c->ps->coord, 0) : rc;
}

/* Converts seconds to a limit for ch__coord_join: milliseconds, rounded up; CH_NO_WAIT for
 * 0. */
static ch_status seconds_to_limit(const char *call, double seconds, int64_t *limit_ms)
{
    static const double max_seconds = 1e8; /* three years */

    if (!(seconds >= 0))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: seconds: not a duration (got %g, want 0 or more)", call, seconds);
    *limit_ms = seconds > 0
                    ? (int64_t)ceil(1e3 * (seconds < max_seconds ? seconds : max_seconds))
                    : CH_NO_WAIT;
    return CH_OK;
}

ch_status ch_coordinator_join_for(ch_coordinator *c, double seconds)
{
    int64_t   limit_ms = 0;
    ch_status rc = ch__check_not_null("join", "the coordinator", c, NULL, NULL);

    if (rc == CH_OK)
        rc = seconds_to_limit("join", seconds, &limit_ms);
    return rc == CH_OK ? ch__coord_join(c->ps->coord, limit_ms) : rc;
}

ch_status ch_coordinator_cancel(ch_coordinator *c)
{
    ch_status rc = ch__check_not_null("cancel", "the coordinator", c, NULL, NULL);

    if (rc == CH_OK)
        ch__coord_cancel(c->ps->coord, NULL);
    return rc;
}

ch_status ch_coordinator_done(ch_coordinator *c, bool *out)
{
    ch_status rc = ch__check_not_null("done", "the coordinator", c, "out", out);

    return rc == CH_OK ? ch__coord_done(c->ps->coord, out) : rc;
}

ch_status ch_coordinator_get_stats(ch_coordinator *c, ch_coordinator_stats *out)
{
    ch_status rc = ch__check_not_null("stats", "the coordinator", c, "out", out);

    if (rc == CH_OK) {
        *out = (ch_coordinator_stats){0};
        ch__coord_stats(c->ps->coord, out);
    }
    return rc;
}

ch_status ch_coordinator_get_worker_stats(ch_coordinator *c, int worker, ch_worker_stats *out)
{
    ch_status rc = ch__check_not_null("worker stats", "the coordinator", c, "out", out);

    return rc == CH_OK ? ch__coord_worker_stats(c->ps->coord, worker, out) : rc;
}

/* ---- results ---- */

ch_remote *ch_remote_ref(ch_remote *r)
{
    if (r != NULL)
        atomic_fetch_add(&r->refs, 1);
    return r;
}

void ch_remote_unref(ch_remote *r)
{
    if (r == NULL || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    ch__scheduled_unref(r->step);
    ch_graph_unref(r->graph);
    ch_coordinator_unref(r->coordinator);
    ch__free(r);
}

/* Waits for a step, and makes a tuple of its results. If the wait times out, the message begins
 * with "fetch". */
static ch_status fetch(ch_remote *r, int64_t limit_ms, ch_tuple **out)
{
    const ch_message *p = NULL;
    ch_status         rc =
        ch__coord_wait(r->coordinator->ps->coord, r->step, r->graph->name, limit_ms, &p);

    if (rc == CH_DEADLINE_EXCEEDED && !ch_remote_has_ended(r))
        return ch__fail_at(rc, "fetch");
    return rc == CH_OK ? ch__ps_results(r->coordinator->ps, r->graph,
                                        r->coordinator->ps->n_devices, p, out)
                       : rc;
}

ch_status ch_remote_fetch(ch_remote *r, ch_tuple **out)
{
    ch_status rc = ch__check_not_null("fetch", "the remote value", r, "out", out);

    return rc == CH_OK ? fetch(r, 0, out) : rc;
}

ch_status ch_remote_fetch_for(ch_remote *r, double seconds, ch_tuple **out)
{
    int64_t   limit_ms = 0;
    ch_status rc = ch__check_not_null("fetch", "the remote value", r, "out", out);

    if (rc == CH_OK)
        rc = seconds_to_limit("fetch", seconds, &limit_ms);
    return rc == CH_OK ? fetch(r, limit_ms, out) : rc;
}

ch_status ch_remote_cancel(ch_remote *r)
{
    ch_status rc = ch__check_not_null("cancel", "the remote value", r, NULL, NULL);

    if (rc == CH_OK)
        ch__coord_cancel(r->coordinator->ps->coord, r->step);
    return rc;
}

long long ch_remote_step(const ch_remote *r)
{
    return r != NULL ? (long long)ch__scheduled_number(r->step) : 0;
}

bool ch_remote_has_ended(const ch_remote *r)
{
    return r == NULL || ch__coord_has_ended(r->coordinator->ps->coord, r->step);
}

ch_status ch_coordinator_fetch(ch_coordinator *c, int n, ch_remote *const *r, ch_tuple **out)
{
    ch_status rc = ch__check_not_null("fetch", "the coordinator", c, NULL, NULL);
    int       k = 0;

    if (rc == CH_OK)
        rc = check_list("fetch", "n", n, "the list of remote values", r);
    if (rc == CH_OK)
        rc = check_list("fetch", "n", n, "out", out);
    for (int i = 0; i < n && rc == CH_OK; i++)
        if (r[i] == NULL)
            rc = ch__fail(CH_INVALID_ARGUMENT, "fetch: remote value %d of %d is NULL", i, n);
    for (; k < n && rc == CH_OK; k += rc == CH_OK)
        rc = ch_remote_fetch(r[k], &out[k]);
    while (rc != CH_OK && k > 0) {
        ch_tuple_unref(out[--k]);
        out[k] = NULL;
    }
    return rc;
}
