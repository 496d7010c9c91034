/* strategy/parameter_server_vars.c -- variables on parameter servers: placing, reading, setting them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/message.h"
#include "job/server/init.h"
#include "job/shard.h"
#include "job/slice.h"
#include "strategy/parameter_server.h"
#include "tensor/device.h"
#include "tensor/print.h"

static ch_layout layout_of(const ch_ps_place *p)
{
    return ch__layout_along(p->axis, p->n);
}

/* ---- which server ---- */

/* The one with the fewest bytes that the variable has no shard on yet, if there is one. */
static int least_loaded(const ch_ps *ps, const ch_ps_place *p, int n_placed)
{
    int best = -1, best_has = 0;

    for (int i = 0; i < ps->n_servers; i++) {
        int has = 0;

        for (int k = 0; k < n_placed; k++)
            has += p->store[k]->server == i;
        if (best < 0 || has < best_has || (has == best_has && ps->bytes[i] < ps->bytes[best])) {
            best = i;
            best_has = has;
        }
    }
    return best;
}

static void choose_servers(ch_ps *ps, ch_ps_place *p, const ch_ps_place *beside)
{
    (void)ch__task_enter(ps->chief);
    for (int i = 0; i < p->n; i++) {
        ch_ps_store *s = p->store[i];

        if (beside != NULL)
            s->server = beside->store[i < beside->n ? i : 0]->server;
        else if (ps->placement == CH_PLACE_BY_BYTES)
            s->server = least_loaded(ps, p, i);
        else
            s->server = ps->next++ % ps->n_servers;
        ps->bytes[s->server] += s->bytes;
    }
    ch__task_leave(ps->chief);
}

/* ---- life ---- */

static void free_there(ch_ps_store *s)
{
    Cohort__PsFree m;
    ch_parcel     *p = NULL;

    cohort__ps_free__init(&m);
    m.n_variables = 1;
    m.variables = &s->number;
    (void)ch__task_enter(s->ps->chief);
    s->ps->bytes[s->server] -= s->bytes;
    ch__task_leave(s->ps->chief);
    if (ch__speak(CH_PS_FREE, &m.base, 0, NULL, &p) == CH_OK)
        ch__chief_tell(s->ps->chief, s->server, p);
    ch__free(s);
}

static void store_unref(ch_ps_store *s)
{
    if (s != NULL && atomic_fetch_sub(&s->refs, 1) == 1)
        free_there(s);
}

static void drop(ch_var *v)
{
    ch_ps_place *p = v->away;

    if (v->each != NULL)
        ch__ps_each_drop(v);
    for (int i = 0; p != NULL && i < p->n; i++)
        store_unref(p->store[i]);
    for (int i = 0; p != NULL && i < 2; i++)
        ch_function_unref(p->change[i]);
    ch__free(p);
    v->away = NULL;
}

static ch_status new_place(int axis, int n, ch_ps_place **out)
{
    ch_ps_place *p = ch__calloc(1, sizeof(*p) + (size_t)n * sizeof(p->store[0]));

    if (p == NULL)
        return ch__fail_memory("a variable");
    p->axis = axis;
    p->n = n;
    *out = p;
    return CH_OK;
}

/* As the variable that it is beside, if it is cut there as that can be; else in one piece. */
static ch_layout layout_beside(const ch_var *v, const ch_var *beside)
{
    const ch_ps_place *b = beside->away;

    if (b->n > 1 && v->shape.rank > b->axis &&
        v->shape.dim[b->axis] == beside->shape.dim[b->axis])
        return layout_of(b);
    return ch__layout_along(0, 1);
}

static ch_status partition(const ch_ps *ps, const ch_tensor_spec *spec, ch_layout *out)
{
    int       axis = 0, n = 1;
    ch_status rc = ch_partition_of(&ps->partitioner, spec, &axis, &n);

    *out = ch__layout_along(axis, n);
    return rc;
}

static ch_status choose_layout(const ch_ps *ps, const ch_var *v, const ch_var *beside,
                               ch_layout *out)
{
    ch_tensor_spec spec = {.name = v->name, .dtype = v->dtype, .shape = v->shape};

    if (beside != NULL) {
        *out = layout_beside(v, beside);
        return CH_OK;
    }
    return partition(ps, &spec, out);
}

/* Stores with their numbers and bytes, nowhere yet. */
static ch_status make_stores(ch_ps *ps, const ch_var *v, ch_ps_place *p)
{
    uint64_t number = ch__chief_numbers(ps->chief, p->n);

    for (int i = 0; i < p->n; i++) {
        ch_ps_store *s = ch__calloc(1, sizeof(*s));

        if (s == NULL)
            return ch__fail_memory("a variable");
        atomic_init(&s->refs, 1);
        s->ps = ps;
        s->number = number + (uint64_t)i;
        s->bytes = ch_shape_count(ch__layout_shape(layout_of(p), v->shape, i)) *
                   (int64_t)ch_dtype_bytes(v->dtype);
        p->store[i] = s;
    }
    return CH_OK;
}

/* What a variable begins with: a value, or words. */
typedef struct beginning {
    ch_tensor     *value; /* NULL: */
    const ch_init *init;
} beginning;

/* Of a shard: its part of the value, or what it makes of the words. */
static ch_status speak_create(const ch_var *v, const ch_ps_place *p, const void *arg, int i,
                              ch_parcel **out)
{
    const beginning *b = arg;
    Cohort__PsCreate m;
    Cohort__PsFirst  words;
    ch_first   first = {.init = b->init, .name = v->name, .dtype = v->dtype, .whole = v->shape};
    ch_tensor *cut = NULL;
    size_t     size = strlen(v->name) + 32;
    char      *name = ch__malloc(size);
    ch_status  rc = name == NULL ? ch__fail_memory("a variable") : CH_OK;

    cohort__ps_create__init(&m);
    m.variable = p->store[i]->number;
    m.name = name;
    if (b->value == NULL) {
        ch__first_say(&first, layout_of(p), i, &words);
        m.first = &words;
    }
    if (rc == CH_OK)
        (void)snprintf(name, size, p->n > 1 ? "%s/part_%d" : "%s", v->name, i);
    if (rc == CH_OK && b->value != NULL)
        rc = ch__layout_cut(layout_of(p), v->shape, b->value, i, &cut);
    if (rc == CH_OK)
        rc = ch__speak(CH_PS_CREATE, &m.base, cut != NULL, &cut, out);
    ch__free(name);
    return rc;
}

/* A call to the server of each shard; the parcels are made by `speak`. */
typedef ch_status (*speak_fn)(const ch_var *v, const ch_ps_place *p, const void *arg, int i,
                              ch_parcel **out);

static ch_status ask_shards(const ch_var *v, const ch_ps_place *p, speak_fn speak,
                            const void *arg, ch_parcel **answer)
{
    ch_parcel **parcel = ch__calloc((size_t)p->n, sizeof(ch_parcel *));
    int        *server = ch__calloc((size_t)p->n, sizeof(int));
    ch_status   rc = parcel == NULL || server == NULL ? ch__fail_memory("a call") : CH_OK;

    for (int i = 0; i < p->n && rc == CH_OK; i++) {
        server[i] = p->store[i]->server;
        rc = speak(v, p, arg, i, &parcel[i]);
    }
    if (rc == CH_OK)
        rc = ch__chief_ask(p->store[0]->ps->chief, p->n, server, parcel, answer);
    else
        for (int i = 0; parcel != NULL && i < p->n; i++)
            ch__parcel_unref(parcel[i]);
    ch__free(parcel);
    ch__free(server);
    return rc;
}

/* Its shards are variables too. */
static ch_status make_parts(ch_var *v, ch_ps_place *p)
{
    ch_ps    *ps = p->store[0]->ps;
    ch_status rc = CH_OK;

    v->shard = ch__calloc((size_t)p->n, sizeof(ch_var *));
    if (v->shard == NULL)
        return ch__fail_memory("a variable");
    for (; v->n_shards < p->n && rc == CH_OK; v->n_shards += rc == CH_OK) {
        int          i = v->n_shards;
        ch_ps_place *part = NULL;

        rc = new_place(0, 1, &part);
        if (rc != CH_OK)
            break;
        part->store[0] = p->store[i];
        rc = ch__var_part(ps->strategy, v, i, ch__layout_shape(layout_of(p), v->shape, i), part,
                          &v->shard[i]);
        if (rc == CH_OK)
            atomic_fetch_add(&p->store[i]->refs, 1);
        else
            ch__free(part);
    }
    return rc;
}

static ch_status check_beside(const ch_var *beside)
{
    if (beside == NULL || beside->each == NULL)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "it is to be beside %s, which is per_worker, and on no server; leave that "
                    "colocation first, or make it per_worker too",
                    beside->name);
}

static ch_status create(ch_strategy *st, ch_var *v, ch_tensor *initial, const ch_init *init,
                        const ch_var *beside)
{
    ch_ps       *ps = st->self;
    ch_layout    l = {.n_copies = 1};
    ch_ps_place *p = NULL;
    ch_status    rc;

    if (v->per_worker)
        return ch__ps_each_create(ps, v, initial);
    rc = check_beside(beside);
    if (rc == CH_OK)
        rc = choose_layout(ps, v, beside, &l);
    if (rc == CH_OK)
        rc = new_place(ch__layout_axis(l), ch__layout_parts(l), &p);
    if (rc != CH_OK)
        return rc;
    v->away = p;
    rc = make_stores(ps, v, p);
    if (rc != CH_OK) {
        for (int i = 0; i < p->n; i++)
            ch__free(p->store[i]);
        ch__free(p);
        v->away = NULL;
        return rc;
    }
    choose_servers(ps, p, beside != NULL ? beside->away : NULL);
    rc = ask_shards(v, p, speak_create, &(beginning){initial, init}, NULL);
    if (rc == CH_OK && p->n > 1)
        rc = make_parts(v, p);
    return rc;
}

static ch_device *device(const ch_var *v)
{
    const ch_ps_place *p = v->away;

    return p->store[0]->ps->server_device[p->store[0]->server];
}

/* ---- reading ---- */

static ch_status speak_read(const ch_var *v, const ch_ps_place *p, const void *arg, int i,
                            ch_parcel **out)
{
    Cohort__PsRead m;

    (void)v;
    (void)arg;
    cohort__ps_read__init(&m);
    m.n_variables = 1;
    m.variables = &p->store[i]->number;
    return ch__speak(CH_PS_READ, &m.base, 0, NULL, out);
}

static ch_status check_answer(const ch_var *v, const ch_parcel *p)
{
    return p->n_tensors == 1 && p->tensor[0]->dtype == v->dtype
               ? CH_OK
               : ch__fail(CH_INTERNAL, "a server gave something else for %s", v->name);
}

/* The caller may change what he gets: a copy of what the server has. */
static ch_status copy_of(const ch_var *v, ch_tensor *t, ch_tensor **out)
{
    ch_status rc = ch_tensor_new(v->dtype, v->shape, out);

    return rc == CH_OK ? ch_tensor_copy(t, *out) : rc;
}

static ch_status join(const ch_var *v, const ch_ps_place *p, ch_parcel *const *answer,
                      ch_tensor **out)
{
    ch_tensor **part = ch__calloc((size_t)p->n, sizeof(ch_tensor *));
    ch_tensor  *whole = NULL;
    ch_status   rc = part == NULL ? ch__fail_memory("a value") : CH_OK;

    for (int i = 0; i < p->n && rc == CH_OK; i++) {
        rc = check_answer(v, answer[i]);
        if (rc == CH_OK)
            part[i] = answer[i]->tensor[0];
    }
    if (rc == CH_OK)
        rc = p->n > 1 ? ch__layout_join(layout_of(p), part, &whole)
                      : copy_of(v, part[0], &whole);
    if (rc == CH_OK && !ch_shape_equal(whole->shape, v->shape))
        rc = ch__fail(CH_INTERNAL, "servers gave other sizes for %s", v->name);
    ch__free(part);
    if (rc == CH_OK)
        *out = whole;
    else
        ch_tensor_unref(whole);
    return rc;
}

static ch_status get(ch_var *v, ch_tensor **out)
{
    ch_ps_place *p = v->away;
    ch_parcel  **answer = ch__calloc((size_t)p->n, sizeof(ch_parcel *));
    ch_status    rc = answer == NULL ? ch__fail_memory("a value")
                                     : ask_shards(v, p, speak_read, NULL, answer);

    if (rc == CH_OK)
        rc = join(v, p, answer, out);
    for (int i = 0; answer != NULL && i < p->n; i++)
        ch__parcel_unref(answer[i]);
    ch__free(answer);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

/* ---- changing ---- */

static ch_status set(ch_var *v, ch_tensor *value)
{
    ch_ps_place *p = v->away;
    size_t       n = (size_t)p->n;
    ch_tensor  **cut = ch__calloc(n, sizeof(ch_tensor *));
    uint64_t    *number = ch__calloc(n, sizeof(uint64_t));
    int         *server = ch__calloc(n, sizeof(int));
    ch_status    rc =
        cut == NULL || number == NULL || server == NULL ? ch__fail_memory("a value") : CH_OK;

    for (int i = 0; i < p->n && rc == CH_OK; i++) {
        number[i] = p->store[i]->number;
        server[i] = p->store[i]->server;
        rc = ch__layout_cut(layout_of(p), v->shape, value, i, &cut[i]);
    }
    if (rc == CH_OK)
        rc = ch__chief_assign(p->store[0]->ps->chief, p->n, server, number, cut);
    else
        for (int i = 0; cut != NULL && i < p->n; i++)
            ch_tensor_unref(cut[i]);
    ch__free(cut);
    ch__free(number);
    ch__free(server);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

static void record_change(ch_step *s, void *arg)
{
    const struct ch_ps_change *c = arg;

    if (c->takes_away)
        ch_var_assign_sub(s, c->var, ch_step_in(s, 0));
    else
        ch_var_assign_add(s, c->var, ch_step_in(s, 0));
}

/* The function that changes a variable from outside steps, made when it is first wanted, by whoever comes first. */
static ch_status find_change(ch_ps_place *p, ch_var *v, bool takes_away, ch_function **out)
{
    ch_task     *chief = p->store[0]->ps->chief;
    ch_function *made = NULL;
    ch_status    rc;

    (void)ch__task_enter(chief);
    *out = p->change[takes_away];
    p->arg[takes_away] = (struct ch_ps_change){v, takes_away};
    ch__task_leave(chief);
    if (*out != NULL)
        return CH_OK;
    rc = ch_function_new("add", record_change, &p->arg[takes_away], &made);
    if (rc != CH_OK)
        return rc;
    ch_function_static_rows(made);
    (void)ch__task_enter(chief);
    if (p->change[takes_away] == NULL) {
        p->change[takes_away] = made;
        made = NULL;
    }
    *out = p->change[takes_away];
    ch__task_leave(chief);
    ch_function_unref(made);
    return CH_OK;
}

/* A step like any other, so that it loses nothing of what steps change meanwhile. */
static ch_status add(ch_var *v, ch_tensor *delta, bool takes_away)
{
    ch_function *f = NULL;
    ch_tuple    *in = NULL;
    ch_status    rc = find_change(v->away, v, takes_away, &f);

    if (rc == CH_OK)
        rc = ch_tuple_of(1, &delta, &in);
    if (rc == CH_OK)
        rc = ch_strategy_run(v->strategy, f, in, NULL);
    ch_tuple_unref(in);
    return rc;
}

static ch_status pin(ch_strategy *st, uint64_t *out)
{
    return ch__chief_pin(((ch_ps *)st->self)->chief, out);
}

static void unpin(ch_strategy *st, uint64_t number)
{
    ch__chief_unpin(((ch_ps *)st->self)->chief, number);
}

const ch_away_vars ch__ps_vars = {.create = create,
                                  .drop = drop,
                                  .device = device,
                                  .get = get,
                                  .set = set,
                                  .add = add,
                                  .pin = pin,
                                  .unpin = unpin};

/* ---- the table ---- */

/* Widths of the columns, in characters: as the longest entry needs, but at least those of a usual table. */
typedef struct columns {
    int name, spec;
} columns;

static void print_spec(const ch_var *v, char *spec, size_t size)
{
    ch_tensor_spec_print(&(ch_tensor_spec){.dtype = v->dtype, .shape = v->shape}, spec, size);
}

static columns columns_of(int n, ch_var *const *var)
{
    columns w = {32, 24};
    char    spec[160];

    for (int i = 0; i < n; i++) {
        int name = (int)strlen(var[i]->name), is;

        if (var[i]->n_shards > 0)
            continue;
        print_spec(var[i], spec, sizeof(spec));
        is = (int)strlen(spec);
        w.name = name > w.name ? name : w.name;
        w.spec = is > w.spec ? is : w.spec;
    }
    return w;
}

static void print_var(const ch_ps *ps, const ch_var *v, columns w, ch_text *o, int64_t *bytes)
{
    char               spec[160];
    const ch_ps_place *p = v->away;

    if (v->n_shards > 0)
        return; /* its parts are in the list */
    print_spec(v, spec, sizeof(spec));
    if (v->each != NULL) {
        ch__text_add(o, "%-*s %-*s %12lld  each worker, and %s\n", w.name, v->name, w.spec,
                     spec, (long long)ch_tensor_bytes(v->copy[0]), ch_var_device(v));
        return;
    }
    ch__text_add(o, "%-*s %-*s %12lld  %s\n", w.name, v->name, w.spec, spec,
                 (long long)p->store[0]->bytes,
                 ch_device_name(ps->server_device[p->store[0]->server]));
    bytes[p->store[0]->server] += p->store[0]->bytes;
}

int ch_strategy_print_placement(ch_strategy *st, char *text, size_t size)
{
    ch_text      o = ch__text(text, size);
    const ch_ps *ps;
    ch_var     **var = NULL;
    int64_t     *bytes;
    columns      w;
    int          n = 0;

    st = ch__strategy_of(st);
    ps = ch__ps_of(st);
    bytes = ps != NULL ? ch__calloc((size_t)ps->n_servers, sizeof(*bytes)) : NULL;
    if (bytes == NULL || ch__strategy_vars(st, &n, &var) != CH_OK) {
        ch__text_add(&o, "%s: it has no parameter servers\n", st->ops->name);
        ch__free(bytes);
        return ch__text_length(&o);
    }
    w = columns_of(n, var);
    ch__text_add(&o, "%-*s %-*s %12s  %s\n", w.name, "variable", w.spec, "is", "bytes",
                 "where");
    for (int i = 0; i < n; i++) {
        print_var(ps, var[i], w, &o, bytes);
        ch_var_unref(var[i]);
    }
    for (int i = 0; i < ps->n_servers; i++)
        ch__text_add(&o, "%-*s %-*s %12lld  %s\n", w.name, "", w.spec, "in all",
                     (long long)bytes[i], ch_device_name(ps->server_device[i]));
    ch__free(var);
    ch__free(bytes);
    return ch__text_length(&o);
}
