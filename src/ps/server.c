/* ps/server.c -- a parameter server.   SPDX-License-Identifier: Apache-2.0 */
#include "ps/server.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "data/message.h"
#include "graph/function.h"
#include "graph/run.h"
#include "kernel/rows.h"
#include "ps/map.h"
#include "ps/shelf.h"
#include "ps/speak.h"
#include "tensor/print.h"
#include "tensor/tensor.h"

typedef struct variable {
    uint64_t   number;
    ch_tensor *value;  /* referenced by nobody else when it is written */
    ch_tensor *spare;  /* the value before, for the next copy; NULL: none */
    int        n_idle; /* updates that did not need it */
    char       name[];
} variable;

/* A graph that changes variables. */
typedef struct update {
    struct server *server;
    ch_function   *function;
    ch_graph      *graph;
    int            n;
    variable      *variable[]; /* of its resources */
} update;

/* What an update gave that was applied. */
typedef struct applied {
    int        n;
    ch_tensor *given[];
} applied;

typedef struct fence {
    struct fence *next;
    uint64_t      least; /* incarnation that is heard */
    char          worker[];
} fence;

typedef struct pin {
    int n;
    struct {
        uint64_t   variable;
        ch_tensor *value;
    } kept[];
} pin;

typedef struct server {
    ch_device    *device;
    ch_server_saw saw; /* NULL: nobody looks */
    void         *arg;
    ch_map        variables, updates, pins;
    ch_map        applied; /* by step and sequence */
    int64_t       given,
        given_before; /* bytes that those hold, now and when it was last looked through */
    fence   *fences;
    ch_shelf shelf; /* for rows that are given */
    uint64_t retired, version;
    uint64_t released;   /* the largest pin that ever was */
    unsigned generation; /* changes when a value is elsewhere in memory */
} server;

/* What is assigned in a step is remembered beside its updates; no update has this number. */
static const uint32_t assigned = 0xffffffff;

static ch_key key(uint64_t number)
{
    return (ch_key){number, 0};
}

/* ---- variables ---- */

static ch_status find_variable(const server *s, uint64_t number, variable **out)
{
    *out = ch__map_find(&s->variables, key(number));
    return *out != NULL ? CH_OK
                        : ch__fail(CH_NOT_FOUND, "there is no variable %llu here",
                                   (unsigned long long)number);
}

/* A value of this server's own, in one piece, and on its device. */
static ch_status own_copy(const server *s, ch_tensor *t, ch_tensor **out)
{
    ch_status rc = ch_tensor_new_on(s->device, t->dtype, t->shape, out);

    if (rc == CH_OK)
        rc = ch_tensor_copy(t, *out);
    return rc;
}

static ch_status create(server *s, const ch_parcel *p, const Cohort__PsCreate *m)
{
    variable *v;
    ch_status rc;

    if (p->n_tensors != 1)
        return ch__fail(CH_INVALID_ARGUMENT, "variable %s comes with %d values, want 1",
                        m->name, p->n_tensors);
    if (m->variable == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "variable %s has no number", m->name);
    v = ch__map_find(&s->variables, key(m->variable));
    if (v != NULL) /* the call came twice */
        return strcmp(v->name, m->name) == 0
                   ? CH_OK
                   : ch__fail(CH_ALREADY_EXISTS, "variable %s: its number is that of %s",
                              m->name, v->name);
    v = ch__calloc(1, sizeof(*v) + strlen(m->name) + 1);
    if (v == NULL)
        return ch__fail_memory("a variable");
    v->number = m->variable;
    memcpy(v->name, m->name, strlen(m->name) + 1);
    rc = own_copy(s, p->tensor[0], &v->value);
    if (rc == CH_OK)
        rc = ch__map_set(&s->variables, key(v->number), v);
    if (rc == CH_OK)
        return CH_OK;
    ch_tensor_unref(v->value);
    ch__free(v);
    return ch__fail_at(rc, "variable %s", m->name);
}

static void drop_variable(variable *v)
{
    ch_tensor_unref(v->value);
    ch_tensor_unref(v->spare);
    ch__free(v);
}

static void drop_update(update *u)
{
    ch_function_unref(u->function);
    ch_graph_unref(u->graph);
    ch__free(u);
}

static bool uses(const update *u, const variable *v)
{
    for (int i = 0; i < u->n; i++)
        if (u->variable[i] == v)
            return true;
    return false;
}

/* Graphs over a variable end with it. */
static bool drop_if_uses(void *arg, ch_key k, void *value)
{
    (void)k;
    if (!uses(value, arg))
        return false;
    drop_update(value);
    return true;
}

typedef struct numbers {
    uint64_t first, n;
} numbers;

static bool drop_if_among(void *arg, ch_key k, void *value)
{
    const numbers *these = arg;

    if (k.a - these->first >= these->n)
        return false;
    drop_update(value);
    return true;
}

static void free_all(server *s, const Cohort__PsFree *m)
{
    numbers these = {m->first_function, m->functions};

    if (these.n > 0)
        ch__map_sift(&s->updates, drop_if_among, &these);
    for (size_t i = 0; i < m->n_variables; i++) {
        variable *v = ch__map_take(&s->variables, key(m->variables[i]));

        if (v == NULL)
            continue;
        ch__map_sift(&s->updates, drop_if_uses, v);
        drop_variable(v);
    }
}

/* ---- graphs ---- */

/* A graph from anywhere has the resources that the message says: dtype and shape are those of the variables. */
static ch_status check_resources(const update *u)
{
    if (u->graph->n_resources != u->n)
        return ch__fail(CH_INVALID_ARGUMENT, "its graph has %d variables, not %d",
                        u->graph->n_resources, u->n);
    for (int i = 0; i < u->n; i++) {
        const ch_resource *r = &u->graph->resource[i];
        const ch_tensor   *t = u->variable[i]->value;

        if (r->dtype != t->dtype || !ch_shape_equal(r->shape, t->shape))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "its graph takes another dtype or shape for %s",
                            u->variable[i]->name);
        for (int k = 0; k < i; k++)
            if (strcmp(r->name, u->graph->resource[k].name) == 0)
                return ch__fail(CH_INVALID_ARGUMENT, "its graph has %s twice", r->name);
    }
    return CH_OK;
}

static ch_status make_update(server *s, const Cohort__PsDefine *m, update *u)
{
    ch_status rc = ch_graph_decode(m->graph.data, m->graph.len, &u->graph);

    u->server = s;
    for (size_t i = 0; i < m->n_variables && rc == CH_OK; i++) {
        rc = find_variable(s, m->variables[i], &u->variable[i]);
        u->n++;
    }
    if (rc == CH_OK)
        rc = check_resources(u);
    return rc == CH_OK ? ch_function_of_graph(u->graph->name, u->graph, &u->function) : rc;
}

static ch_status define(server *s, const Cohort__PsDefine *m)
{
    update   *u;
    ch_status rc;

    if (m->function == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "a function without a number");
    if (ch__map_find(&s->updates, key(m->function)) != NULL)
        return CH_OK; /* the call came twice */
    u = ch__calloc(1, sizeof(*u) + m->n_variables * sizeof(u->variable[0]));
    if (u == NULL)
        return ch__fail_memory("a function");
    rc = make_update(s, m, u);
    if (rc == CH_OK)
        rc = ch__map_set(&s->updates, key(m->function), u);
    if (rc != CH_OK)
        drop_update(u);
    return rc;
}

/* ---- reading ---- */

static ch_status value_of(const server *s, uint64_t number, uint64_t pinned, ch_tensor **out)
{
    const pin *p = pinned != 0 ? ch__map_find(&s->pins, key(pinned)) : NULL;
    variable  *v = NULL;
    ch_status  rc;

    if (pinned != 0 && p == NULL)
        return ch__fail(CH_NOT_FOUND, "there is no pin %llu here", (unsigned long long)pinned);
    for (int i = 0; p != NULL && i < p->n; i++)
        if (p->kept[i].variable == number) {
            *out = p->kept[i].value;
            return CH_OK;
        }
    rc = find_variable(s, number, &v); /* what was made after the pin is as it is */
    if (rc == CH_OK)
        *out = v->value;
    return rc;
}

static ch_status read_values(const server *s, const Cohort__PsRead *m, ch_tensor **out)
{
    for (size_t i = 0; i < m->n_variables; i++) {
        ch_status rc = value_of(s, m->variables[i], m->pin, &out[i]);

        if (rc != CH_OK)
            return rc;
        (void)ch_tensor_ref(out[i]);
    }
    return CH_OK;
}

static ch_status read_rows(server *s, uint64_t number, uint64_t pinned, const ch_tensor *ids,
                           ch_tensor **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = value_of(s, number, pinned, &t);
    ch_shape   shape;
    int64_t    n, bad;

    if (rc != CH_OK)
        return rc;
    if (ids->dtype != CH_I64 || ids->shape.rank != 1 || !ids->contiguous || t->shape.rank < 1 ||
        t->dtype == CH_STR)
        return ch__fail(CH_INVALID_ARGUMENT, "ids of rows are a vector of i64, and neither a "
                                             "scalar nor strings have rows");
    shape = t->shape;
    n = shape.dim[0];
    shape.dim[0] = ids->shape.dim[0];
    bad = ch__ids_check((ch_ids){ids->data, true}, 0, shape.dim[0], n);
    if (bad >= 0)
        return ch__fail(CH_INVALID_ARGUMENT, "id %lld at position %lld is not in [0, %lld)",
                        (long long)((const int64_t *)(const void *)ids->data)[bad],
                        (long long)bad, (long long)n);
    rc = ch__shelf_take(&s->shelf, t->buffer->device, t->dtype, shape, out);
    if (rc == CH_OK)
        ch__rows_gather((ch_ids){ids->data, true}, 0, shape.dim[0], t->data, n,
                        n > 0 ? (int64_t)ch_tensor_bytes(t) / n : 0, (*out)->data);
    return rc;
}

/* ---- updates ---- */

static ch_status check_fence(const server *s, const Cohort__PsUpdate *m)
{
    for (const fence *f = s->fences; f != NULL; f = f->next)
        if (strcmp(f->worker, m->worker) == 0 && m->incarnation < f->least && CH_KEEPS(FENCE))
            return ch__fail(
                CH_ABORTED,
                "step %llu: %s was given up in its life %llu; from %llu on it is heard",
                (unsigned long long)m->step, m->worker, (unsigned long long)m->incarnation,
                (unsigned long long)f->least);
    return CH_OK;
}

static ch_status check_step(const server *s, uint64_t step)
{
    return step >= s->retired || !CH_KEEPS(RETIRE)
               ? CH_OK
               : ch__fail(CH_ABORTED, "step %llu is done, as are all below %llu",
                          (unsigned long long)step, (unsigned long long)s->retired);
}

static void drop_applied(server *s, applied *a)
{
    for (int i = 0; i < a->n; i++) {
        s->given -= (int64_t)ch_tensor_bytes(a->given[i]);
        ch_tensor_unref(a->given[i]);
    }
    ch__free(a);
}

static bool drop_if_retired(void *arg, ch_key k, void *value)
{
    server *s = arg;

    if (k.a >= s->retired)
        return false;
    drop_applied(s, value);
    return true;
}

/* What is remembered of steps that are done goes when there is as much again, of steps or of bytes. */
static void retire(server *s, uint64_t below)
{
    enum { FEW_BYTES = 1 << 20 };

    if (below <= s->retired)
        return;
    s->retired = below;
    if (4 * s->applied.n <= s->applied.cap && s->given <= 2 * s->given_before + FEW_BYTES)
        return;
    ch__map_sift(&s->applied, drop_if_retired, s);
    s->given_before = s->given;
}

/* All is there before anything is changed. */
static ch_status check_updates(const server *s, const ch_parcel *p, const Cohort__PsUpdate *m)
{
    int64_t n = 0;

    for (size_t i = 0; i < m->n_updates; i++) {
        const update *u = ch__map_find(&s->updates, key(m->updates[i]->function));

        if (u == NULL)
            return ch__fail(
                CH_NOT_FOUND,
                "there is no function %llu here (any more): was a variable freed that a "
                "step uses?",
                (unsigned long long)m->updates[i]->function);
        if (m->updates[i]->inputs != (uint32_t)u->graph->n_inputs)
            return ch__fail(CH_INVALID_ARGUMENT, "%s takes %d inputs, not %u", u->graph->name,
                            u->graph->n_inputs, m->updates[i]->inputs);
        if (m->updates[i]->sequence == assigned)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: no update has the number %u",
                            u->graph->name, assigned);
        n += m->updates[i]->inputs;
    }
    return n == p->n_tensors
               ? CH_OK
               : ch__fail(CH_INVALID_ARGUMENT, "%d tensors for updates that take %lld",
                          p->n_tensors, (long long)n);
}

static ch_status storage(void *owner, const ch_resource *r, int local, void **out)
{
    update *u = owner;

    (void)local;
    for (int i = 0; i < u->n; i++)
        if (strcmp(u->graph->resource[i].name, r->name) == 0) {
            *out = u->variable[i]->value->data;
            return CH_OK;
        }
    return ch__fail(CH_INTERNAL, "%s has no variable %s", u->graph->name, r->name);
}

static bool is_ours(const ch_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->buffer->refs, memory_order_acquire) == 1;
}

/* The spare is kept as long as there is use for it. */
static void keep_spare(variable *v, bool is_used)
{
    enum { LONG = 64 };

    v->n_idle = is_used ? 0 : v->n_idle + 1;
    if (v->spare == NULL || v->n_idle < LONG)
        return;
    ch_tensor_unref(v->spare);
    v->spare = NULL;
}

/* What is to be written and is in others' hands becomes theirs; we go on with a copy, and have what was theirs for the next one
 * when they are done with it. */
static ch_status make_own(server *s, variable *v)
{
    ch_tensor *was = v->value;
    ch_status  rc = CH_OK;

    keep_spare(v, !is_ours(was));
    if (is_ours(was))
        return CH_OK;
    if (v->spare != NULL && !is_ours(v->spare)) {
        ch_tensor_unref(v->spare);
        v->spare = NULL;
    }
    if (v->spare == NULL)
        rc = ch_tensor_new_on(s->device, was->dtype, was->shape, &v->spare);
    if (rc == CH_OK)
        rc = ch_tensor_copy(was, v->spare);
    if (rc != CH_OK)
        return ch__fail_at(rc, "variable %s", v->name);
    v->value = v->spare;
    v->spare = was;
    s->generation++;
    return CH_OK;
}

/* Nothing is copied: inputs are not written. */
static ch_status borrow_all(const server *s, int n, ch_tensor *const *in, ch_tuple **out)
{
    ch_tensor **t = ch__calloc((size_t)n + 1, sizeof(*t));
    ch_status   rc = t == NULL ? ch__fail_memory("inputs") : CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = ch__lend(in[i], s->device, &t[i]);
    if (rc == CH_OK)
        rc = ch_tuple_of(n, t, out);
    for (int i = 0; t != NULL && i < n; i++)
        ch_tensor_unref(t[i]);
    ch__free(t);
    return rc;
}

static ch_status run_update(server *s, update *u, uint64_t step, int n, ch_tensor *const *in,
                            ch_tuple **out)
{
    static const ch_run_ops ops = {.resource = storage};
    ch_tuple               *given = NULL;
    ch_status               rc = CH_OK;

    for (int i = 0; i < u->n && rc == CH_OK; i++)
        if (u->graph->resource[i].value != u->graph->resource[i].read)
            rc = make_own(s, u->variable[i]);
    if (rc == CH_OK)
        rc = borrow_all(s, n, in, &given);
    if (rc == CH_OK)
        rc = ch__run(&(ch_run){.function = u->function,
                               .owner = u,
                               .ops = &ops,
                               .generation = s->generation,
                               .n_local = 1,
                               .device = &s->device,
                               .n_replicas = 1,
                               .in = given,
                               .step = (int64_t)step},
                     out);
    ch_tuple_unref(given);
    return rc;
}

/* Remembered before it runs, so that memory cannot be short afterwards. */
static ch_status apply(server *s, update *u, ch_key at, ch_tensor *const *in)
{
    int       n = u->graph->n_outputs;
    applied  *a = ch__calloc(1, sizeof(*a) + (size_t)n * sizeof(a->given[0]));
    ch_tuple *out = NULL;
    ch_status rc = a == NULL ? ch__fail_memory("an update") : ch__map_set(&s->applied, at, a);

    if (rc != CH_OK) {
        ch__free(a);
        return rc;
    }
    rc = run_update(s, u, at.a, u->graph->n_inputs, in, &out);
    if (rc != CH_OK) {
        ch__free(ch__map_take(&s->applied, at));
        return rc;
    }
    for (a->n = 0; a->n < n; a->n++) {
        a->given[a->n] = ch_tensor_ref(ch_value_at(ch_tuple_at(out, a->n), 0));
        s->given += (int64_t)ch_tensor_bytes(a->given[a->n]);
    }
    ch_tuple_unref(out);
    s->version++;
    return CH_OK;
}

static ch_status apply_all(server *s, const ch_parcel *p, const Cohort__PsUpdate *m)
{
    ch_status rc = CH_OK;
    int       at = 0;

    for (size_t i = 0; i < m->n_updates && rc == CH_OK; i++) {
        const Cohort__PsUpdateOne *one = m->updates[i];
        ch_key                     k = {m->step, one->sequence};

        if (ch__map_find(&s->applied, k) == NULL || !CH_KEEPS(DEDUPE)) {
            rc = apply(s, ch__map_find(&s->updates, key(one->function)), k, p->tensor + at);
            if (rc == CH_OK && s->saw != NULL)
                s->saw(s->arg, m->worker, m->incarnation, m->step, one->sequence);
        }
        at += (int)one->inputs;
    }
    return rc;
}

/* ---- assigning ---- */

static ch_status check_assign(const server *s, const ch_parcel *p, const Cohort__PsAssign *m)
{
    if ((size_t)p->n_tensors != m->n_variables)
        return ch__fail(CH_INVALID_ARGUMENT, "%d values for %zu variables", p->n_tensors,
                        m->n_variables);
    for (size_t i = 0; i < m->n_variables; i++) {
        const ch_tensor *t = p->tensor[i];
        variable        *v = NULL;
        ch_status        rc = find_variable(s, m->variables[i], &v);

        if (rc != CH_OK)
            return rc;
        if (t->dtype != v->value->dtype || !ch_shape_equal(t->shape, v->value->shape))
            return ch__fail(CH_INVALID_ARGUMENT, "variable %s is %s, not %s", v->name,
                            ch__tensor_label(v->value).text, ch__tensor_label(t).text);
    }
    return CH_OK;
}

/* All values are there before any is changed. */
static ch_status assign_all(server *s, const ch_parcel *p, const Cohort__PsAssign *m)
{
    ch_tensor **value = ch__calloc(m->n_variables + 1, sizeof(*value));
    ch_status   rc = value == NULL ? ch__fail_memory("values") : CH_OK;

    for (size_t i = 0; i < m->n_variables && rc == CH_OK; i++)
        rc = own_copy(s, p->tensor[i], &value[i]);
    for (size_t i = 0; i < m->n_variables && rc == CH_OK; i++) {
        variable  *v = ch__map_find(&s->variables, key(m->variables[i]));
        ch_tensor *was = v->value;

        v->value = value[i];
        value[i] = was;
    }
    for (size_t i = 0; value != NULL && i < m->n_variables; i++)
        ch_tensor_unref(value[i]);
    ch__free(value);
    s->generation++;
    return rc;
}

/* Once for a step, as an update is. */
static ch_status assign(server *s, const ch_parcel *p, const Cohort__PsAssign *m)
{
    ch_key    at = {m->step, assigned};
    applied  *a;
    ch_status rc = check_step(s, m->step);

    if (rc != CH_OK || ch__map_find(&s->applied, at) != NULL)
        return rc;
    rc = check_assign(s, p, m);
    if (rc != CH_OK)
        return rc;
    a = ch__calloc(1, sizeof(*a));
    rc = a == NULL ? ch__fail_memory("an assign") : ch__map_set(&s->applied, at, a);
    if (rc != CH_OK) {
        ch__free(a);
        return rc;
    }
    rc = assign_all(s, p, m);
    if (rc == CH_OK)
        s->version++;
    else
        ch__free(ch__map_take(&s->applied, at));
    return rc;
}

/* ---- answers ---- */

static void done(const server *s, const ch_net_event *e, ch_post *post, Cohort__PsDone *m,
                 int n, ch_tensor *const *tensor)
{
    ch_parcel *p = NULL;
    ch_status  rc;

    m->version = s->version;
    rc = ch__speak(e->parcel->method, &m->base, n, tensor, &p);
    if (rc == CH_OK)
        ch__post_answer(post, e->call, p);
    else
        ch__refuse(post, e->call, rc, "answer");
}

static void answer(const server *s, const ch_net_event *e, ch_post *post, ch_status rc,
                   const char *op)
{
    Cohort__PsDone m;

    cohort__ps_done__init(&m);
    if (rc != CH_OK)
        ch__refuse(post, e->call, rc, op);
    else
        done(s, e, post, &m, 0, NULL);
}

/* With tensors, which are taken over; those of a failure too. */
static void give(const server *s, const ch_net_event *e, ch_post *post, ch_status rc,
                 const char *op, size_t n, ch_tensor **tensor)
{
    Cohort__PsDone m;

    cohort__ps_done__init(&m);
    if (rc == CH_OK)
        done(s, e, post, &m, (int)n, tensor);
    for (size_t i = 0; i < n && rc != CH_OK; i++)
        ch_tensor_unref(tensor[i]);
    if (rc != CH_OK)
        ch__refuse(post, e->call, rc, op);
    ch__free(tensor);
}

static void on_read(const server *s, const ch_net_event *e, ch_post *post,
                    const Cohort__PsRead *m)
{
    ch_tensor **t = ch__calloc(m->n_variables + 1, sizeof(*t));

    give(s, e, post, t == NULL ? ch__fail_memory("values") : read_values(s, m, t), "read",
         t == NULL ? 0 : m->n_variables, t);
}

static void on_rows(server *s, const ch_net_event *e, ch_post *post, const Cohort__PsRows *m)
{
    ch_tensor **t = ch__calloc(m->n_variables + 1, sizeof(*t));
    ch_status   rc = t == NULL ? ch__fail_memory("rows") : CH_OK;

    if (rc == CH_OK && e->parcel->n_tensors != (int)m->n_variables)
        rc = ch__fail(CH_INVALID_ARGUMENT, "ids for %d variables of %zu", e->parcel->n_tensors,
                      m->n_variables);
    for (size_t i = 0; i < m->n_variables && rc == CH_OK; i++)
        rc = read_rows(s, m->variables[i], m->pin, e->parcel->tensor[i], &t[i]);
    give(s, e, post, rc, "rows", t == NULL ? 0 : m->n_variables, t);
}

/* What the updates of a step gave, now or when they came first. */
static int gather_given(const server *s, const Cohort__PsUpdate *m, uint32_t *given,
                        ch_tensor **out)
{
    int n = 0;

    for (size_t i = 0; i < m->n_updates; i++) {
        const applied *a =
            ch__map_find(&s->applied, (ch_key){m->step, m->updates[i]->sequence});

        if (given != NULL)
            given[i] = (uint32_t)a->n;
        for (int k = 0; k < a->n; k++, n++)
            if (out != NULL)
                out[n] = ch_tensor_ref(a->given[k]);
    }
    return n;
}

static void answer_update(const server *s, const ch_net_event *e, ch_post *post,
                          const Cohort__PsUpdate *m)
{
    Cohort__PsDone answer;
    int            n = gather_given(s, m, NULL, NULL);
    ch_tensor    **t = ch__calloc((size_t)n + 1, sizeof(*t));
    uint32_t      *given = ch__calloc(m->n_updates + 1, sizeof(*given));

    if (t == NULL || given == NULL) {
        ch__refuse(post, e->call, ch__fail_memory("an answer"), "update");
    } else {
        cohort__ps_done__init(&answer);
        (void)gather_given(s, m, given, t);
        answer.n_given = m->n_updates;
        answer.given = given;
        done(s, e, post, &answer, n, t);
    }
    ch__free(t);
    ch__free(given);
}

static void on_update(server *s, const ch_net_event *e, ch_post *post,
                      const Cohort__PsUpdate *m)
{
    ch_status rc = check_fence(s, m);

    if (rc == CH_OK)
        rc = check_step(s, m->step);
    if (rc == CH_OK)
        rc = check_updates(s, e->parcel, m);
    if (rc == CH_OK)
        rc = apply_all(s, e->parcel, m);
    if (rc == CH_OK)
        answer_update(s, e, post, m);
    else
        ch__refuse(post, e->call, rc, "update");
    retire(s, m->retired);
}

static ch_status raise_fence(server *s, const Cohort__PsFence *m)
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
    f->least = m->incarnation > f->least ? m->incarnation : f->least;
    return CH_OK;
}

/* ---- pins ---- */

static void drop_pin(pin *p)
{
    for (int i = 0; p != NULL && i < p->n; i++)
        ch_tensor_unref(p->kept[i].value);
    ch__free(p);
}

static bool drop_if_released(void *arg, ch_key k, void *value)
{
    const server *s = arg;

    if (k.a > s->released)
        return false;
    drop_pin(value);
    return true;
}

static void release_pins(server *s, uint64_t last)
{
    if (last <= s->released)
        return;
    s->released = last;
    ch__map_sift(&s->pins, drop_if_released, s);
}

/* One that comes after its release, or twice, keeps nothing. */
static ch_status set_pin(server *s, const Cohort__PsPin *m)
{
    pin      *p;
    ch_status rc;

    if (m->pin == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "a pin without a number");
    if (m->pin <= s->released || ch__map_find(&s->pins, key(m->pin)) != NULL)
        return CH_OK;
    p = ch__calloc(1, sizeof(*p) + (size_t)s->variables.n * sizeof(p->kept[0]));
    if (p == NULL)
        return ch__fail_memory("a pin");
    for (int i = 0; i < s->variables.cap; i++) {
        variable *v = s->variables.entry[i].value;

        if (v == NULL)
            continue;
        p->kept[p->n].variable = v->number;
        p->kept[p->n++].value = ch_tensor_ref(v->value);
    }
    rc = ch__map_set(&s->pins, key(m->pin), p);
    if (rc != CH_OK)
        drop_pin(p);
    return rc;
}

static void on_pin(server *s, const ch_net_event *e, ch_post *post, const Cohort__PsPin *m)
{
    if (m->release)
        release_pins(s, m->pin);
    answer(s, e, post, m->release ? CH_OK : set_pin(s, m), "pin");
}

static void on_assign(server *s, const ch_net_event *e, ch_post *post,
                      const Cohort__PsAssign *m)
{
    answer(s, e, post, assign(s, e->parcel, m), "assign");
    retire(s, m->retired);
}

/* A step that is done and comes all the same finds that out here, not at its next update. */
static void on_ping(server *s, const ch_net_event *e, ch_post *post, const Cohort__PsPing *m)
{
    retire(s, m->retired);
    answer(s, e, post, CH_OK, "ping");
}

/* ---- the task ---- */

static const ProtobufCMessageDescriptor *type_of(uint32_t method)
{
    switch (method) {
    case CH_PS_CREATE:
        return &cohort__ps_create__descriptor;
    case CH_PS_FREE:
        return &cohort__ps_free__descriptor;
    case CH_PS_DEFINE:
        return &cohort__ps_define__descriptor;
    case CH_PS_READ:
        return &cohort__ps_read__descriptor;
    case CH_PS_ROWS:
        return &cohort__ps_rows__descriptor;
    case CH_PS_UPDATE:
        return &cohort__ps_update__descriptor;
    case CH_PS_FENCE:
        return &cohort__ps_fence__descriptor;
    case CH_PS_PIN:
        return &cohort__ps_pin__descriptor;
    case CH_PS_PING:
        return &cohort__ps_ping__descriptor;
    case CH_PS_ASSIGN:
        return &cohort__ps_assign__descriptor;
    default:
        return NULL;
    }
}

static void on_call(server *s, const ch_net_event *e, ch_post *post, ProtobufCMessage *message)
{
    const void *m = message;

    switch (e->parcel->method) {
    case CH_PS_CREATE:
        answer(s, e, post, create(s, e->parcel, m), "create");
        break;
    case CH_PS_FREE:
        free_all(s, m);
        answer(s, e, post, CH_OK, "free");
        break;
    case CH_PS_DEFINE:
        answer(s, e, post, define(s, m), "define");
        break;
    case CH_PS_READ:
        on_read(s, e, post, m);
        break;
    case CH_PS_ROWS:
        on_rows(s, e, post, m);
        break;
    case CH_PS_UPDATE:
        on_update(s, e, post, m);
        break;
    case CH_PS_FENCE:
        answer(s, e, post, raise_fence(s, m), "fence");
        break;
    case CH_PS_PIN:
        on_pin(s, e, post, m);
        break;
    case CH_PS_ASSIGN:
        on_assign(s, e, post, m);
        break;
    default:
        on_ping(s, e, post, m);
    }
}

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_post *post)
{
    const ProtobufCMessageDescriptor *type;
    ProtobufCMessage                 *m = NULL;
    ch_status                         rc;

    (void)now;
    if (e->kind != CH_EVENT_CALL)
        return;
    type = type_of(e->parcel->method);
    rc = type != NULL ? ch__hear(e->parcel, type, &m)
                      : ch__fail(CH_UNIMPLEMENTED, "a parameter server knows no method %u",
                                 e->parcel->method);
    if (rc == CH_OK)
        on_call(self, e, post, m);
    else
        ch__refuse(post, e->call, rc, "call");
    ch__message_free(m);
}

static void close_server(void *self)
{
    server *s = self;

    for (int i = 0; i < s->applied.cap; i++)
        if (s->applied.entry[i].value != NULL)
            drop_applied(s, s->applied.entry[i].value);
    for (int i = 0; i < s->updates.cap; i++)
        if (s->updates.entry[i].value != NULL)
            drop_update(s->updates.entry[i].value);
    for (int i = 0; i < s->pins.cap; i++)
        drop_pin(s->pins.entry[i].value);
    for (int i = 0; i < s->variables.cap; i++)
        if (s->variables.entry[i].value != NULL)
            drop_variable(s->variables.entry[i].value);
    ch__shelf_drop(&s->shelf);
    ch__map_drop(&s->applied);
    ch__map_drop(&s->updates);
    ch__map_drop(&s->pins);
    ch__map_drop(&s->variables);
    while (s->fences != NULL) {
        fence *f = s->fences;

        s->fences = f->next;
        ch__free(f);
    }
    ch__free(s);
}

const ch_task_ops ch__server_ops = {on_event, close_server};

ch_status ch__server_make(void *arg, ch_task *t, uint64_t incarnation, ch_post *post,
                          void **self)
{
    const ch_server_options *opt = arg;
    server                  *s = ch__calloc(1, sizeof(*s));

    (void)t;
    (void)incarnation;
    (void)post;
    if (s == NULL)
        return ch__fail_memory("a parameter server");
    s->device = opt->device;
    s->saw = opt->saw;
    s->arg = opt->arg;
    *self = s;
    return CH_OK;
}
