/* job/server/state.c -- the state of a parameter server: variables and updates (state.h).
 *
 * A ch_server_state (private.h) holds the variables (values.h), the graphs of updates
 * (ch_server_update) and a table of applied updates. Only server.c and tests call it.
 *
 * Before an update runs, ch__server_state_update checks in this order that
 *   1. the worker's registration is not fenced (steps.c)
 *   2. the step has not ended (steps.c)
 *   3. the step is not held (steps.c)
 *   4. the graphs exist and the number of tensors is right (check_updates)
 * and then skips each update whose (step, sequence) is in the table of applied updates. A
 * deferred update is entered in the table when it arrives (defer), and runs when its step is
 * settled (ch__server_state_settle).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "graph/function.h"
#include "graph/run.h"
#include "job/server/private.h"
#include "tensor/print.h"
#include "tensor/tensor.h"

/* The graph of an update, which changes variables. Created when a worker defines it
 * (ch__server_state_define), owned by ch_server_state.updates. Freed when the coordinator frees
 * the update or a variable of it (ch__server_state_remove), or with the state. */
typedef struct ch_server_update {
    ch_function   *function;
    ch_graph      *graph;
    int            n;
    ch_server_var *variable[]; /* by index of the graph's resource; owned by the state */
} ch_server_update;

/* The sequence number under which an assign is remembered. Updates must not use it. */
static const uint32_t assign_sequence = 0xffffffff;

/* ---- variables ---- */

ch_status ch__server_state_create(ch_server_state *s, const Cohort__PsCreate *m, int n,
                                  ch_tensor *const *value)
{
    int want = m->init == NULL;

    if (n != want)
        return ch__fail(CH_INVALID_ARGUMENT, "variable %s: the message has %d values, want %d",
                        m->name, n, want);
    return ch__values_add(&s->values, m->variable, m->name, n > 0 ? value[0] : NULL, m->init);
}

static void drop_update(ch_server_update *f)
{
    ch_function_unref(f->function);
    ch_graph_unref(f->graph);
    ch__free(f);
}

static bool uses(const ch_server_update *f, const ch_server_var *v)
{
    for (int i = 0; i < f->n; i++)
        if (f->variable[i] == v)
            return true;
    return false;
}

/* Frees an update if it uses the variable `arg`; for ch__map_remove_if. */
static bool drop_if_uses(void *arg, ch_key k, void *value)
{
    (void)k;
    if (!uses(value, arg))
        return false;
    drop_update(value);
    return true;
}

/* The numbers first, ..., first + n - 1. */
typedef struct number_range {
    uint64_t first, n;
} number_range;

/* Frees an update if its number is in the range `arg`; for ch__map_remove_if. */
static bool drop_if_in_range(void *arg, ch_key k, void *value)
{
    const number_range *range = arg;

    if (k.a - range->first >= range->n)
        return false;
    drop_update(value);
    return true;
}

void ch__server_state_remove(ch_server_state *s, const Cohort__PsFree *m)
{
    number_range range = {m->first_update, m->n_updates};

    if (range.n > 0)
        ch__map_remove_if(&s->updates, drop_if_in_range, &range);
    for (size_t i = 0; i < m->n_variables; i++) {
        ch_server_var *v = ch__map_find(&s->values.variables, ch__key(m->variables[i]));

        if (v == NULL)
            continue;
        ch__map_remove_if(&s->updates, drop_if_uses, v);
        ch__values_remove(&s->values, v);
    }
}

/* ---- graphs ---- */

/* Checks an untrusted graph: its resources must be distinct and have the dtypes and shapes of
 * the variables that the message lists. */
static ch_status check_resources(const ch_server_update *f)
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

static ch_status make_update(const ch_server_state *s, const Cohort__PsDefine *m,
                             ch_server_update *f)
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
    ch_server_update *f;
    ch_status         rc;

    if (m->update == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "the function has no number");
    if (ch__map_find(&s->updates, ch__key(m->update)) != NULL)
        return CH_OK; /* a repeated call */
    f = ch__calloc(1, sizeof(*f) + m->n_variables * sizeof(f->variable[0]));
    if (f == NULL)
        return ch__fail_memory("a function");
    rc = make_update(s, m, f);
    if (rc == CH_OK)
        rc = ch__map_set(&s->updates, ch__key(m->update), f);
    if (rc != CH_OK)
        drop_update(f);
    return rc;
}

/* ---- reading ---- */

static void drop_tensors(size_t n, ch_tensor **t)
{
    for (size_t i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
}

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

/* Copies a region of a current value. A view would keep a reference to the whole value, and the
 * next write to the variable would copy all of it. */
static ch_status copy_view(const ch_server_state *s, const ch_tensor *view, ch_tensor **out)
{
    ch_tensor *t = NULL;
    ch_status  rc =
        view->dtype == CH_STR
             ? ch_tensor_new_on(s->values.device, view->dtype, view->shape, &t)
             : ch__tensor_new_untouched(s->values.device, view->dtype, view->shape, &t);

    if (rc == CH_OK)
        rc = ch_tensor_copy(view, t);
    if (rc == CH_OK)
        *out = t;
    else
        ch_tensor_unref(t);
    return rc;
}

/* Reads variable i of the message: its region i if the message has regions, or its marks. */
static ch_status read_value(const ch_server_state *s, const Cohort__PsRead *m, size_t i,
                            ch_tensor **out)
{
    ch_tensor *value = NULL, *view = NULL;
    ch_region  region;
    ch_status  rc;

    if (m->marks)
        return ch__values_marks(&s->values, m->variables[i], m->snapshot, out);
    rc = ch__values_get(&s->values, m->variables[i], m->snapshot, &value);
    if (rc == CH_OK && m->n_regions == 0)
        *out = ch_tensor_ref(value);
    if (rc != CH_OK || m->n_regions == 0)
        return rc;
    rc = parse_region(m->regions[i], value->shape, &region);
    if (rc == CH_OK)
        rc = ch__tensor_region(value, &region, &view);
    if (rc == CH_OK)
        rc = m->snapshot == 0 ? copy_view(s, view, out) : ch_tensor_contiguous(view, out);
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
    if (!m->release && !m->end_marks)
        return ch__values_snapshot(&s->values, m->snapshot, m->begin_marks);
    if (m->end_marks)
        ch__values_end_marks(&s->values);
    else
        ch__values_release(&s->values, m->snapshot, m->n_kept, m->kept);
    return CH_OK;
}

ch_status ch__server_state_reserve(ch_server_state *s, const Cohort__PsReserve *m,
                                   uint64_t *left)
{
    int64_t   bytes = 0;
    ch_status rc = CH_OK;

    if (m->release)
        ch__values_unreserve(&s->values);
    else
        rc = ch__values_reserve(&s->values,
                                m->bytes < INT64_MAX ? (int64_t)m->bytes : INT64_MAX, &bytes);
    *left = (uint64_t)bytes;
    return rc;
}

/* ---- updates ---- */

static ch_status fail_no_update(uint64_t update)
{
    return ch__fail(CH_NOT_FOUND,
                    "function %llu does not exist here; do not free a variable that a "
                    "scheduled step uses",
                    (unsigned long long)update);
}

/* Checks all updates of a message before the first is applied. */
static ch_status check_updates(const ch_server_state *s, const Cohort__PsUpdate *m, int n)
{
    int64_t wanted = 0;

    for (size_t i = 0; i < m->n_updates; i++) {
        const ch_server_update *f = ch__map_find(&s->updates, ch__key(m->updates[i]->update));

        if (f == NULL)
            return fail_no_update(m->updates[i]->update);
        if (m->updates[i]->inputs != (uint32_t)f->graph->n_inputs)
            return ch__fail(CH_INVALID_ARGUMENT, "%s takes %d inputs, not %u", f->graph->name,
                            f->graph->n_inputs, m->updates[i]->inputs);
        if (m->defer && f->graph->n_outputs > 0)
            return ch__fail(CH_INVALID_ARGUMENT, "%s has results, so it cannot be deferred",
                            f->graph->name);
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

/* Returns the variable that a resource of an update names; NULL: none. */
static ch_server_var *variable_of(const ch_server_update *f, const ch_resource *r)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->graph->resource[i].name, r->name) == 0)
            return f->variable[i];
    return NULL;
}

/* ch_run_ops.resource: gives the memory of the variable that a resource names. */
static ch_status variable_data(void *owner, const ch_resource *r, int local, int core,
                               void **out)
{
    const ch_server_update *f = owner;
    ch_server_var          *v = variable_of(f, r);

    (void)local, (void)core;
    if (v == NULL)
        return ch__fail(CH_INTERNAL, "%s has no variable %s", f->graph->name, r->name);
    *out = v->value->data;
    return CH_OK;
}

/* ch_run_ops.marks: returns the marks of that variable. */
static ch_row_marks *variable_marks(void *owner, const ch_resource *r)
{
    return variable_of(owner, r)->marks;
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
static ch_status run_update(ch_server_state *s, ch_server_update *f, uint64_t step, int n,
                            ch_tensor *const *in, ch_tuple **out)
{
    static const ch_run_ops ops = {.resource = variable_data, .marks = variable_marks};
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
static ch_status apply(ch_server_state *s, ch_server_update *f, ch_key at, ch_tensor *const *in)
{
    int         n = f->graph->n_outputs;
    ch_applied *a = ch__calloc(1, sizeof(*a) + (size_t)n * sizeof(a->result[0]));
    ch_tuple   *out = NULL;
    ch_status   rc = a == NULL ? ch__fail_memory("an update") : ch__map_set(&s->applied, at, a);

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

/* Returns the place of a deferred update in the list, which is by step and then by sequence. */
static ch_deferred **find_place(ch_server_state *s, const ch_deferred *d)
{
    ch_deferred **at = &s->deferred;

    while (*at != NULL &&
           ((*at)->step < d->step || ((*at)->step == d->step && (*at)->sequence < d->sequence)))
        at = &(*at)->next;
    return at;
}

/* Keeps an update until its step is settled, and remembers it under the key `at`. */
static ch_status defer(ch_server_state *s, const Cohort__PsUpdateOne *one, ch_key at,
                       ch_tensor *const *in)
{
    ch_applied   *a = ch__calloc(1, sizeof(*a));
    ch_deferred  *d = ch__calloc(1, sizeof(*d) + one->inputs * sizeof(d->in[0]));
    ch_deferred **place;
    ch_status     rc =
        a == NULL || d == NULL ? ch__fail_memory("an update") : ch__map_set(&s->applied, at, a);

    if (rc != CH_OK) {
        ch__free(a);
        ch__free(d);
        return rc;
    }
    d->step = at.a;
    d->update = one->update;
    d->sequence = one->sequence;
    for (; d->n < (int)one->inputs; d->n++)
        d->in[d->n] = ch_tensor_ref(in[d->n]);
    place = find_place(s, d);
    d->next = *place;
    *place = d;
    return CH_OK;
}

/* Applies or defers the updates of a message that are not in the table of applied updates. */
static ch_status apply_all(ch_server_state *s, const Cohort__PsUpdate *m, ch_tensor *const *in)
{
    ch_status rc = CH_OK;
    int       at = 0;

    for (size_t i = 0; i < m->n_updates && rc == CH_OK; i++) {
        const Cohort__PsUpdateOne *one = m->updates[i];
        ch_key                     k = {m->step, one->sequence};

        if (ch__map_find(&s->applied, k) == NULL || !CH_KEEPS(DEDUPE)) {
            if (m->defer)
                rc = defer(s, one, k, in + at);
            else
                rc = apply(s, ch__map_find(&s->updates, ch__key(one->update)), k, in + at);
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
    ch_status rc = ch__server_check_fence(s, m);

    if (rc == CH_OK)
        rc = ch__server_check_step(s, m->step);
    if (rc == CH_OK)
        rc = ch__server_check_hold(s, m->step);
    if (rc == CH_OK)
        rc = check_updates(s, m, n);
    return rc == CH_OK ? apply_all(s, m, in) : rc;
}

void ch__server_drop_deferred(ch_deferred *d)
{
    for (int i = 0; i < d->n; i++)
        ch_tensor_unref(d->in[i]);
    ch__free(d);
}

/* Runs a deferred update. Its graph may have been freed since the update arrived. */
static ch_status run_deferred(ch_server_state *s, const ch_deferred *d)
{
    ch_server_update *f = ch__map_find(&s->updates, ch__key(d->update));
    ch_tuple         *out = NULL;
    ch_status         rc;

    if (f == NULL || f->graph->n_inputs != d->n)
        return fail_no_update(d->update);
    rc = run_update(s, f, d->step, d->n, d->in, &out);
    ch_tuple_unref(out);
    s->version += rc == CH_OK;
    return rc;
}

ch_status ch__server_state_settle(ch_server_state *s, const Cohort__PsSettle *m,
                                  uint64_t *failed)
{
    ch_deferred **at = &s->deferred;
    size_t        i = 0; /* both lists rise */
    ch_status     rc = ch__server_check_rising(m->n_steps, m->steps);

    *failed = 0;
    while (rc == CH_OK && *at != NULL) {
        ch_deferred *d = *at;

        while (i < m->n_steps && m->steps[i] < d->step)
            i++;
        if (i == m->n_steps)
            break;
        if (m->steps[i] != d->step) {
            at = &d->next;
            continue;
        }
        rc = run_deferred(s, d);
        if (rc != CH_OK) {
            *failed = d->step;
        } else {
            *at = d->next;
            ch__server_drop_deferred(d);
        }
    }
    return rc;
}

int ch__server_state_results(const ch_server_state *s, const Cohort__PsUpdate *m,
                             uint32_t *count, ch_tensor **out)
{
    int n = 0;

    for (size_t i = 0; i < m->n_updates; i++) {
        const ch_applied *a =
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
    ch_key      at = {m->step, assign_sequence};
    ch_applied *a = ch__calloc(1, sizeof(*a));
    ch_status   rc = a == NULL ? ch__fail_memory("an assign") : ch__map_set(&s->applied, at, a);

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
    ch_status  rc = ch__server_check_step(s, m->step);

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
            ch__server_drop_applied(s, s->applied.entry[i].value);
    for (int i = 0; i < s->updates.cap; i++)
        if (s->updates.entry[i].value != NULL)
            drop_update(s->updates.entry[i].value);
    while (s->deferred != NULL) {
        ch_deferred *d = s->deferred;

        s->deferred = d->next;
        ch__server_drop_deferred(d);
    }
    ch__map_drop(&s->applied);
    ch__free(s->live);
    ch__free(s->held);
    ch__map_drop(&s->updates);
    ch__values_drop(&s->values);
    while (s->fences != NULL) {
        ch_fence *f = s->fences;

        s->fences = f->next;
        ch__free(f);
    }
    ch__free(s);
}
