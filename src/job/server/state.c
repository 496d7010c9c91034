/* job/server/state.c -- the state of a parameter server (state.h).
 *
 * A ch_server_state holds the variables (values.h), the functions of updates
 * (ch_server_function) and a table of applied updates. Only server.c and tests call it.
 *
 * Before an update runs, ch__server_state_update checks in this order that
 *   1. the worker's registration is not fenced (check_fence)
 *   2. the step has not ended (check_step)
 *   3. the step is not held (check_hold)
 *   4. the functions exist and the number of tensors is right (check_updates)
 * and then skips each update whose (step, sequence) is in the table of applied updates.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/server/state.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "graph/function.h"
#include "graph/run.h"
#include "job/server/values.h"
#include "tensor/print.h"

/* A server's record of a function that updates run: a graph that changes variables. Created
 * when a worker defines it (ch__server_state_define), owned by ch_server_state.functions. Freed
 * when the coordinator frees the function or a variable of it (ch__server_state_remove), or
 * with the state. */
typedef struct ch_server_function {
    ch_function   *function;
    ch_graph      *graph;
    int            n;
    ch_server_var *variable[]; /* by index of the graph's resource; owned by the state */
} ch_server_function;

/* The results of an update that was applied; of an assign n is 0. */
typedef struct applied {
    int        n;
    ch_tensor *result[];
} applied;

/* A worker that was declared lost at least once. */
typedef struct fence {
    struct fence *next;
    uint64_t      oldest; /* oldest accepted registration */
    char          worker[];
} fence;

struct ch_server_state {
    ch_values values;
    ch_map    functions; /* ch_server_function, by number */
    ch_map    applied;   /* struct applied, by step and sequence */
    /* Bytes of the remembered results, now and after the last drop_if_large. */
    int64_t result_bytes, bytes_before;
    fence  *fences;
    /* All steps below `retired` have ended. `version` counts applied updates and assigns. */
    uint64_t  retired, version;
    uint64_t  below; /* of the steps below this number, only those in `live` have not ended */
    size_t    n_live;
    uint64_t *live;  /* rising */
    uint64_t  round; /* of the last hold, or of the last release */
    size_t    n_held;
    uint64_t *held;        /* steps of the hold, rising */
    ch_update_watch watch; /* for tests; NULL: none */
    void           *arg;   /* for the watch function */
};

/* The sequence number under which an assign is remembered. Updates must not use it. */
static const uint32_t assign_sequence = 0xffffffff;

/* ---- variables ---- */

ch_status ch__server_state_create(ch_server_state *s, const Cohort__PsCreate *m, int n,
                                  ch_tensor *const *value)
{
    int want = m->first == NULL;

    if (n != want)
        return ch__fail(CH_INVALID_ARGUMENT, "variable %s: the message has %d values, want %d",
                        m->name, n, want);
    return ch__values_add(&s->values, m->variable, m->name, n > 0 ? value[0] : NULL, m->first);
}

static void drop_function(ch_server_function *f)
{
    ch_function_unref(f->function);
    ch_graph_unref(f->graph);
    ch__free(f);
}

static bool uses(const ch_server_function *f, const ch_server_var *v)
{
    for (int i = 0; i < f->n; i++)
        if (f->variable[i] == v)
            return true;
    return false;
}

/* Frees a function if it uses the variable `arg`; for ch__map_remove_if. */
static bool drop_if_uses(void *arg, ch_key k, void *value)
{
    (void)k;
    if (!uses(value, arg))
        return false;
    drop_function(value);
    return true;
}

/* The numbers first, ..., first + n - 1. */
typedef struct number_range {
    uint64_t first, n;
} number_range;

/* Frees a function if its number is in the range `arg`; for ch__map_remove_if. */
static bool drop_if_in_range(void *arg, ch_key k, void *value)
{
    const number_range *range = arg;

    if (k.a - range->first >= range->n)
        return false;
    drop_function(value);
    return true;
}

void ch__server_state_remove(ch_server_state *s, const Cohort__PsFree *m)
{
    number_range range = {m->first_function, m->functions};

    if (range.n > 0)
        ch__map_remove_if(&s->functions, drop_if_in_range, &range);
    for (size_t i = 0; i < m->n_variables; i++) {
        ch_server_var *v = ch__map_find(&s->values.variables, ch__key(m->variables[i]));

        if (v == NULL)
            continue;
        ch__map_remove_if(&s->functions, drop_if_uses, v);
        ch__values_remove(&s->values, v);
    }
}

/* ---- graphs ---- */

/* Checks an untrusted graph: its resources must be distinct and have the dtypes and shapes of
 * the variables that the message lists. */
static ch_status check_resources(const ch_server_function *f)
{
    if (f->graph->n_resources != f->n)
        return ch__fail(CH_INVALID_ARGUMENT, "the graph has %d variables, the message lists %d",
                        f->graph->n_resources, f->n);
    for (int i = 0; i < f->n; i++) {
        const ch_resource *r = &f->graph->resource[i];
        const ch_tensor   *t = f->variable[i]->value;

        if (r->dtype != t->dtype || !ch_shape_equal(r->shape, t->shape))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "the graph has another dtype or shape for variable %s",
                            f->variable[i]->name);
        for (int k = 0; k < i; k++)
            if (strcmp(r->name, f->graph->resource[k].name) == 0)
                return ch__fail(CH_INVALID_ARGUMENT, "the graph has variable %s twice",
                                r->name);
    }
    return CH_OK;
}

static ch_status make_function(const ch_server_state *s, const Cohort__PsDefine *m,
                               ch_server_function *f)
{
    ch_status rc = ch_graph_decode(m->graph.data, m->graph.len, &f->graph);

    for (size_t i = 0; i < m->n_variables && rc == CH_OK; i++) {
        rc = ch__values_find(&s->values, m->variables[i], &f->variable[i]);
        f->n++;
        if (rc != CH_OK && i < (size_t)f->graph->n_resources)
            rc = ch__fail(rc,
                          "variable %s does not exist here; do not free a variable that a "
                          "scheduled step uses",
                          f->graph->resource[i].name);
    }
    if (rc == CH_OK)
        rc = check_resources(f);
    return rc == CH_OK ? ch_function_of_graph(f->graph->name, f->graph, &f->function) : rc;
}

ch_status ch__server_state_define(ch_server_state *s, const Cohort__PsDefine *m)
{
    ch_server_function *f;
    ch_status           rc;

    if (m->function == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "the function has no number");
    if (ch__map_find(&s->functions, ch__key(m->function)) != NULL)
        return CH_OK; /* a repeated call */
    f = ch__calloc(1, sizeof(*f) + m->n_variables * sizeof(f->variable[0]));
    if (f == NULL)
        return ch__fail_memory("a function");
    rc = make_function(s, m, f);
    if (rc == CH_OK)
        rc = ch__map_set(&s->functions, ch__key(m->function), f);
    if (rc != CH_OK)
        drop_function(f);
    return rc;
}

/* ---- reading ---- */

static void drop_tensors(size_t n, ch_tensor **t)
{
    for (size_t i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
}

/* ---- regions ---- */

/* Decodes a region of an untrusted message, for a variable of this shape. */
static ch_status parse_region(const Cohort__PsRegion *m, ch_shape shape, ch_region *out)
{
    size_t rank = (size_t)shape.rank;

    *out = (ch_region){.begin = {0}};
    if (m->n_begin != rank || m->n_size != rank)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "region: begin has %zu axes and size %zu, the variable has %zu",
                        m->n_begin, m->n_size, rank);
    for (size_t k = 0; k < rank; k++) {
        out->begin[k] = m->begin[k];
        out->size[k] = m->size[k];
    }
    return ch__region_fits(out, shape)
               ? CH_OK
               : ch__fail(CH_INVALID_ARGUMENT, "the region is outside of its variable");
}

static ch_status check_regions(size_t n, size_t n_variables)
{
    return n == 0 || n == n_variables
               ? CH_OK
               : ch__fail(CH_INVALID_ARGUMENT, "%zu regions for %zu variables", n, n_variables);
}

/* Reads variable i of the message, or its region i if the message has regions. */
static ch_status read_value(const ch_server_state *s, const Cohort__PsRead *m, size_t i,
                            ch_tensor **out)
{
    ch_tensor *value = NULL, *view = NULL;
    ch_region  region;
    ch_status  rc = ch__values_get(&s->values, m->variables[i], m->snapshot, &value);

    if (rc == CH_OK && m->n_regions == 0)
        *out = ch_tensor_ref(value);
    if (rc != CH_OK || m->n_regions == 0)
        return rc;
    rc = parse_region(m->regions[i], value->shape, &region);
    if (rc == CH_OK)
        rc = ch__tensor_region(value, &region, &view);
    if (rc == CH_OK)
        rc = ch_tensor_contiguous(view, out);
    ch_tensor_unref(view);
    return rc;
}

ch_status ch__server_state_read(const ch_server_state *s, const Cohort__PsRead *m,
                                ch_tensor **out)
{
    ch_status rc = check_regions(m->n_regions, m->n_variables);

    for (size_t i = 0; i < m->n_variables && rc == CH_OK; i++) {
        rc = read_value(s, m, i, &out[i]);
        if (rc != CH_OK)
            drop_tensors(i, out);
    }
    return rc;
}

ch_status ch__server_state_rows(ch_server_state *s, const Cohort__PsRows *m, int n,
                                ch_tensor *const *ids, ch_tensor **out)
{
    if (n != (int)m->n_variables)
        return ch__fail(CH_INVALID_ARGUMENT, "rows: ids for %d variables, want %zu", n,
                        m->n_variables);
    for (size_t i = 0; i < m->n_variables; i++) {
        ch_status rc =
            ch__values_rows(&s->values, m->variables[i], m->snapshot, ids[i], &out[i]);

        if (rc != CH_OK) {
            drop_tensors(i, out);
            return rc;
        }
    }
    return CH_OK;
}

ch_status ch__server_state_snapshot(ch_server_state *s, const Cohort__PsSnapshot *m)
{
    if (!m->release)
        return ch__values_snapshot(&s->values, m->snapshot);
    ch__values_release(&s->values, m->snapshot);
    return CH_OK;
}

/* ---- fences and steps that have ended ---- */

ch_status ch__server_state_fence(ch_server_state *s, const Cohort__PsFence *m)
{
    fence *f = s->fences;

    while (f != NULL && strcmp(f->worker, m->worker) != 0)
        f = f->next;
    if (f == NULL) {
        f = ch__calloc(1, sizeof(*f) + strlen(m->worker) + 1);
        if (f == NULL)
            return ch__fail_memory("a fence");
        memcpy(f->worker, m->worker, strlen(m->worker) + 1);
        f->next = s->fences;
        s->fences = f;
    }
    f->oldest = m->registration > f->oldest ? m->registration : f->oldest;
    return CH_OK;
}

static ch_status check_fence(const ch_server_state *s, const Cohort__PsUpdate *m)
{
    for (const fence *f = s->fences; f != NULL; f = f->next)
        if (strcmp(f->worker, m->worker) == 0 && m->registration < f->oldest && CH_KEEPS(FENCE))
            return ch__fail(
                CH_ABORTED,
                "step %llu: update from %s rejected: registration %llu is fenced (oldest "
                "accepted: %llu)",
                (unsigned long long)m->step, m->worker, (unsigned long long)m->registration,
                (unsigned long long)f->oldest);
    return CH_OK;
}

/* Returns true if a rising list contains a number (binary search). */
static bool is_in_list(size_t n, const uint64_t *list, uint64_t wanted)
{
    size_t from = 0;

    while (from < n) {
        size_t at = from + (n - from) / 2;

        if (list[at] == wanted)
            return true;
        if (list[at] < wanted)
            from = at + 1;
        else
            n = at;
    }
    return false;
}

static bool has_ended(const ch_server_state *s, uint64_t step)
{
    return step < s->retired || (step < s->below && !is_in_list(s->n_live, s->live, step));
}

static ch_status check_step(const ch_server_state *s, uint64_t step)
{
    return !has_ended(s, step) || !CH_KEEPS(RETIRE)
               ? CH_OK
               : ch__fail(CH_ABORTED,
                          "step %llu has ended, as have all steps below %llu; its "
                          "updates are rejected",
                          (unsigned long long)step, (unsigned long long)s->retired);
}

static void drop_applied(ch_server_state *s, applied *a)
{
    for (int i = 0; i < a->n; i++) {
        s->result_bytes -= (int64_t)ch_tensor_bytes(a->result[i]);
        ch_tensor_unref(a->result[i]);
    }
    ch__free(a);
}

static bool drop_if_ended(void *arg, ch_key k, void *value)
{
    ch_server_state *s = arg;

    if (!has_ended(s, k.a))
        return false;
    drop_applied(s, value);
    return true;
}

/* Drops the remembered updates of steps that have ended. Scans the table only if more than a
 * quarter of it is in use, or if the results take more than twice the bytes that they took
 * after the last scan. */
static void drop_if_large(ch_server_state *s)
{
    enum { FEW_BYTES = 1 << 20 };

    if (4 * s->applied.n <= s->applied.cap &&
        s->result_bytes <= 2 * s->bytes_before + FEW_BYTES)
        return;
    ch__map_remove_if(&s->applied, drop_if_ended, s);
    s->bytes_before = s->result_bytes;
}

void ch__server_state_retire(ch_server_state *s, uint64_t below)
{
    if (below <= s->retired)
        return;
    s->retired = below;
    drop_if_large(s);
}

static ch_status check_rising(size_t n, const uint64_t *step)
{
    for (size_t i = 1; i < n; i++)
        if (step[i] <= step[i - 1])
            return ch__fail(CH_INVALID_ARGUMENT, "the list of steps is not in rising order");
    return CH_OK;
}

/* Messages may arrive out of order, so the old and the new list are merged. The list with the
 * larger `below` is kept, without the steps that have ended according to either list. */
ch_status ch__server_state_live(ch_server_state *s, uint64_t below, size_t n,
                                const uint64_t *live)
{
    const uint64_t *from = below >= s->below ? live : s->live;
    size_t          n_from = below >= s->below ? n : s->n_live, n_new = 0;
    uint64_t       *list;

    if (below == 0)
        return CH_OK; /* the message has no list */
    if (check_rising(n, live) != CH_OK)
        return CH_INVALID_ARGUMENT;
    list = ch__calloc(n_from + 1, sizeof(*list));
    if (list == NULL)
        return ch__fail_memory("the list of live steps");
    for (size_t i = 0; i < n_from; i++)
        if (!has_ended(s, from[i]) && (from[i] >= below || is_in_list(n, live, from[i])))
            list[n_new++] = from[i];
    ch__free(s->live);
    s->live = list;
    s->n_live = n_new;
    s->below = below > s->below ? below : s->below;
    drop_if_large(s);
    return CH_OK;
}

/* ---- holds: steps that may be cancelled ---- */

static bool was_applied(const ch_server_state *s, uint64_t step)
{
    for (int i = 0; i < s->applied.cap; i++)
        if (s->applied.entry[i].value != NULL && s->applied.entry[i].key.a == step)
            return true;
    return false;
}

ch_status ch__server_state_hold(ch_server_state *s, const Cohort__PsHold *m, uint64_t *begun,
                                size_t *n_begun)
{
    ch_status rc = check_rising(m->n_steps, m->steps);
    uint64_t *held;

    if (rc != CH_OK)
        return rc;
    if (m->round > s->round) {
        held = ch__calloc(m->n_steps + 1, sizeof(*held));
        if (held == NULL)
            return ch__fail_memory("the list of held steps");
        memcpy(held, m->steps, m->n_steps * sizeof(*held));
        ch__free(s->held);
        s->held = held;
        s->n_held = m->n_steps;
        s->round = m->round;
    }
    *n_begun = 0;
    for (size_t i = 0; i < m->n_steps; i++)
        if (was_applied(s, m->steps[i]))
            begun[(*n_begun)++] = m->steps[i];
    return CH_OK;
}

void ch__server_state_release(ch_server_state *s, uint64_t round)
{
    if (round < s->round)
        return;
    s->round = round; /* so that a late hold of this round holds nothing */
    s->n_held = 0;
}

static ch_status check_hold(const ch_server_state *s, uint64_t step)
{
    return !is_in_list(s->n_held, s->held, step) || !CH_KEEPS(HOLD)
               ? CH_OK
               : ch__fail(CH_ABORTED, "step %llu: update rejected: the step is being cancelled",
                          (unsigned long long)step);
}

/* ---- updates ---- */

/* Checks all updates of a message before the first is applied. */
static ch_status check_updates(const ch_server_state *s, const Cohort__PsUpdate *m, int n)
{
    int64_t wanted = 0;

    for (size_t i = 0; i < m->n_updates; i++) {
        const ch_server_function *f =
            ch__map_find(&s->functions, ch__key(m->updates[i]->function));

        if (f == NULL)
            return ch__fail(
                CH_NOT_FOUND,
                "function %llu does not exist here; do not free a variable that a scheduled "
                "step uses",
                (unsigned long long)m->updates[i]->function);
        if (m->updates[i]->inputs != (uint32_t)f->graph->n_inputs)
            return ch__fail(CH_INVALID_ARGUMENT, "%s takes %d inputs, not %u", f->graph->name,
                            f->graph->n_inputs, m->updates[i]->inputs);
        if (m->updates[i]->sequence == assign_sequence)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: sequence number %u is reserved",
                            f->graph->name, assign_sequence);
        wanted += m->updates[i]->inputs;
    }
    return wanted == n ? CH_OK
                       : ch__fail(CH_INVALID_ARGUMENT,
                                  "the message has %d tensors, its updates take %lld", n,
                                  (long long)wanted);
}

/* ch_run_ops.resource: gives the memory of the variable that a resource names. */
static ch_status variable_data(void *owner, const ch_resource *r, int local, void **out)
{
    ch_server_function *f = owner;

    (void)local;
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->graph->resource[i].name, r->name) == 0) {
            *out = f->variable[i]->value->data;
            return CH_OK;
        }
    return ch__fail(CH_INTERNAL, "%s has no variable %s", f->graph->name, r->name);
}

/* Makes a tuple of the inputs for the server's device. Does not copy them, because graphs do
 * not write their inputs. */
static ch_status lend_inputs(const ch_server_state *s, int n, ch_tensor *const *in,
                             ch_tuple **out)
{
    ch_tensor **t = ch__calloc((size_t)n + 1, sizeof(*t));
    ch_status   rc = t == NULL ? ch__fail_memory("inputs") : CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = ch__tensor_share(in[i], s->values.device, &t[i]);
    if (rc == CH_OK)
        rc = ch_tuple_of(n, t, out);
    for (int i = 0; t != NULL && i < n; i++)
        ch_tensor_unref(t[i]);
    ch__free(t);
    return rc;
}

/* Runs the graph of an update. First makes the variables private that the graph writes. */
static ch_status run_update(ch_server_state *s, ch_server_function *f, uint64_t step, int n,
                            ch_tensor *const *in, ch_tuple **out)
{
    static const ch_run_ops ops = {.resource = variable_data};
    ch_tuple               *inputs = NULL;
    ch_status               rc = CH_OK;

    for (int i = 0; i < f->n && rc == CH_OK; i++)
        if (f->graph->resource[i].value != f->graph->resource[i].read)
            rc = ch__values_make_private(&s->values, f->variable[i]);
    if (rc == CH_OK)
        rc = lend_inputs(s, n, in, &inputs);
    if (rc == CH_OK)
        rc = ch__run(&(ch_run){.function = f->function,
                               .owner = f,
                               .ops = &ops,
                               .generation = s->values.generation,
                               .n_local = 1,
                               .device = &s->values.device,
                               .n_replicas = 1,
                               .in = inputs,
                               .step = (int64_t)step},
                     out);
    ch_tuple_unref(inputs);
    return rc;
}

/* Applies an update and remembers it under the key `at`. Enters it in the table before it runs,
 * because after the run an error must not occur any more. */
static ch_status apply(ch_server_state *s, ch_server_function *f, ch_key at,
                       ch_tensor *const *in)
{
    int       n = f->graph->n_outputs;
    applied  *a = ch__calloc(1, sizeof(*a) + (size_t)n * sizeof(a->result[0]));
    ch_tuple *out = NULL;
    ch_status rc = a == NULL ? ch__fail_memory("an update") : ch__map_set(&s->applied, at, a);

    if (rc != CH_OK) {
        ch__free(a);
        return rc;
    }
    rc = run_update(s, f, at.a, f->graph->n_inputs, in, &out);
    if (rc != CH_OK) {
        ch__free(ch__map_remove(&s->applied, at));
        return rc;
    }
    for (a->n = 0; a->n < n; a->n++) {
        a->result[a->n] = ch_tensor_ref(ch_value_at(ch_tuple_at(out, a->n), 0));
        s->result_bytes += (int64_t)ch_tensor_bytes(a->result[a->n]);
    }
    ch_tuple_unref(out);
    s->version++;
    return CH_OK;
}

/* Applies the updates of a message that are not in the table of applied updates. */
static ch_status apply_all(ch_server_state *s, const Cohort__PsUpdate *m, ch_tensor *const *in)
{
    ch_status rc = CH_OK;
    int       at = 0;

    for (size_t i = 0; i < m->n_updates && rc == CH_OK; i++) {
        const Cohort__PsUpdateOne *one = m->updates[i];
        ch_key                     k = {m->step, one->sequence};

        if (ch__map_find(&s->applied, k) == NULL || !CH_KEEPS(DEDUPE)) {
            rc = apply(s, ch__map_find(&s->functions, ch__key(one->function)), k, in + at);
            if (rc == CH_OK && s->watch != NULL)
                s->watch(s->arg, m->worker, m->registration, m->step, one->sequence);
        }
        at += (int)one->inputs;
    }
    return rc;
}

ch_status ch__server_state_update(ch_server_state *s, const Cohort__PsUpdate *m, int n,
                                  ch_tensor *const *in)
{
    ch_status rc = check_fence(s, m);

    if (rc == CH_OK)
        rc = check_step(s, m->step);
    if (rc == CH_OK)
        rc = check_hold(s, m->step);
    if (rc == CH_OK)
        rc = check_updates(s, m, n);
    return rc == CH_OK ? apply_all(s, m, in) : rc;
}

int ch__server_state_results(const ch_server_state *s, const Cohort__PsUpdate *m,
                             uint32_t *count, ch_tensor **out)
{
    int n = 0;

    for (size_t i = 0; i < m->n_updates; i++) {
        const applied *a =
            ch__map_find(&s->applied, (ch_key){m->step, m->updates[i]->sequence});

        if (count != NULL)
            count[i] = (uint32_t)a->n;
        for (int k = 0; k < a->n; k++, n++)
            if (out != NULL)
                out[n] = ch_tensor_ref(a->result[k]);
    }
    return n;
}

/* ---- assigning ---- */

/* Checks an untrusted message and decodes its regions. `region` has room for m->n_regions. */
static ch_status check_assign(const ch_server_state *s, const Cohort__PsAssign *m, int n,
                              ch_tensor *const *value, ch_region *region)
{
    ch_status rc = check_regions(m->n_regions, m->n_variables);

    if (rc == CH_OK && (size_t)n != m->n_variables)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%d values for %zu variables", n, m->n_variables);
    for (size_t i = 0; i < m->n_variables && rc == CH_OK; i++) {
        const ch_tensor *t = value[i];
        ch_server_var   *v = NULL;
        ch_shape         want;

        rc = ch__values_find(&s->values, m->variables[i], &v);
        if (rc != CH_OK)
            return rc;
        want = v->value->shape;
        if (m->n_regions > 0)
            rc = parse_region(m->regions[i], want, &region[i]);
        for (int k = 0; rc == CH_OK && m->n_regions > 0 && k < want.rank; k++)
            want.dim[k] = region[i].size[k];
        if (rc == CH_OK && (t->dtype != v->value->dtype || !ch_shape_equal(t->shape, want)))
            rc = ch__fail(CH_INVALID_ARGUMENT, "variable %s is %s; got a value of %s", v->name,
                          ch__tensor_label(v->value).text, ch__tensor_label(t).text);
    }
    return rc;
}

/* Assigns, and remembers that the step has assigned here. */
static ch_status assign_once(ch_server_state *s, const Cohort__PsAssign *m,
                             const ch_region *region, ch_tensor *const *value)
{
    ch_key    at = {m->step, assign_sequence};
    applied  *a = ch__calloc(1, sizeof(*a));
    ch_status rc = a == NULL ? ch__fail_memory("an assign") : ch__map_set(&s->applied, at, a);

    if (rc != CH_OK) {
        ch__free(a);
        return rc;
    }
    rc = ch__values_set(&s->values, m->n_variables, m->variables,
                        m->n_regions > 0 ? region : NULL, value);
    if (rc == CH_OK)
        s->version++;
    else
        ch__free(ch__map_remove(&s->applied, at));
    return rc;
}

ch_status ch__server_state_assign(ch_server_state *s, const Cohort__PsAssign *m, int n,
                                  ch_tensor *const *value)
{
    ch_region *region;
    ch_status  rc = check_step(s, m->step);

    if (rc != CH_OK || ch__map_find(&s->applied, (ch_key){m->step, assign_sequence}) != NULL)
        return rc;
    region = ch__calloc(m->n_regions + 1, sizeof(*region));
    rc = region == NULL ? ch__fail_memory("an assign") : check_assign(s, m, n, value, region);
    if (rc == CH_OK)
        rc = assign_once(s, m, region, value);
    ch__free(region);
    return rc;
}

/* ---- the state ---- */

uint64_t ch__server_state_version(const ch_server_state *s)
{
    return s->version;
}

void ch__server_state_watch(ch_server_state *s, ch_update_watch watch, void *arg)
{
    s->watch = watch;
    s->arg = arg;
}

ch_status ch__server_state_new(ch_device *device, int64_t max_init_bytes, ch_server_state **out)
{
    ch_server_state *s = ch__calloc(1, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("a parameter server");
    s->values.device = device;
    s->values.max_init_bytes = max_init_bytes;
    *out = s;
    return CH_OK;
}

void ch__server_state_free(ch_server_state *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < s->applied.cap; i++)
        if (s->applied.entry[i].value != NULL)
            drop_applied(s, s->applied.entry[i].value);
    for (int i = 0; i < s->functions.cap; i++)
        if (s->functions.entry[i].value != NULL)
            drop_function(s->functions.entry[i].value);
    ch__map_drop(&s->applied);
    ch__free(s->live);
    ch__free(s->held);
    ch__map_drop(&s->functions);
    ch__values_drop(&s->values);
    while (s->fences != NULL) {
        fence *f = s->fences;

        s->fences = f->next;
        ch__free(f);
    }
    ch__free(s);
}
