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
#include "kernel/init.h"
#include "strategy/parameter_server.h"
#include "tensor/device.h"
#include "tensor/print.h"

/* ---- layout ---- */

/* Returns the server with the fewest bytes, among those that hold the fewest shards of the variable that is being placed:
 * has[i] is the number that server i holds. */
static int least_loaded(const ch_ps *ps, const int *has, const int64_t *bytes)
{
    int best = 0;

    for (int i = 1; i < ps->n_servers; i++)
        if (has[i] < has[best] || (has[i] == has[best] && bytes[i] < bytes[best]))
            best = i;
    return best;
}

static int64_t shard_bytes(ch_layout l, ch_dtype dtype, ch_shape shape, int i)
{
    return ch_shape_count(ch__layout_shape(l, shape, i)) * (int64_t)ch_dtype_bytes(dtype);
}

ch_status ch__ps_place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    ch_ps         *ps = self;
    ch_tensor_spec of = {.name = spec->name, .dtype = spec->dtype, .shape = spec->shape};
    int           *has;
    int64_t       *bytes; /* with those of the shards that were placed by this call */
    ch_status      rc;

    if (spec->per_worker) {
        out->device[0] = ps->own_device;
        return CH_OK;
    }
    rc = ch_partition_of(&ps->partitioner, &of, out);
    has = ch__calloc((size_t)ps->n_servers, sizeof(*has));
    bytes = ch__calloc((size_t)ps->n_servers, sizeof(*bytes));
    if (rc == CH_OK && (has == NULL || bytes == NULL))
        rc = ch__fail_memory("a variable");
    if (rc == CH_OK) {
        (void)ch__task_enter(ps->chief);
        memcpy(bytes, ps->bytes, (size_t)ps->n_servers * sizeof(*bytes));
        for (int i = 0; i < ch__layout_parts(*out); i++) {
            int server = ps->placement == CH_PLACE_BY_BYTES ? least_loaded(ps, has, bytes)
                                                            : ps->next++ % ps->n_servers;

            out->device[i] = ps->server_device[server];
            has[server]++;
            bytes[server] += shard_bytes(*out, spec->dtype, spec->shape, i);
        }
        ch__task_leave(ps->chief);
    }
    ch__free(has);
    ch__free(bytes);
    return rc;
}

/* Returns the number of the server that a device belongs to; -1: it is no server's. */
static int server_of(const ch_ps *ps, const ch_device *d)
{
    for (int i = 0; i < ps->n_servers; i++)
        if (ps->server_device[i] == d)
            return i;
    return -1;
}

/* ---- life ---- */

static void free_shard(ch_ps_shard *s)
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

static void shard_unref(ch_ps_shard *s)
{
    if (s != NULL && atomic_fetch_sub(&s->refs, 1) == 1)
        free_shard(s);
}

static void free_var(ch_var *v)
{
    ch_ps_var *s = v->storage;

    ch_tensor_unref(v->copy[0]);
    if (s != NULL && ch__ps_is_per_worker(v)) {
        ch__ps_per_worker_free(s);
    } else if (s != NULL) {
        for (int i = 0; i < s->n; i++)
            shard_unref(s->shard[i]);
        for (int i = 0; i < 2; i++)
            ch_function_unref(s->change[i]);
        ch__free(s);
    }
    v->storage = NULL;
}

static ch_status new_storage(ch_ps *ps, int n, ch_ps_var **out)
{
    ch_ps_var *s = ch__calloc(1, sizeof(*s) + (size_t)n * sizeof(s->shard[0]));

    if (s == NULL)
        return ch__fail_memory("a variable");
    s->ps = ps;
    s->n = n;
    *out = s;
    return CH_OK;
}

/* Makes the shards with their numbers and bytes. The servers do not know them yet. */
static ch_status make_shards(ch_ps *ps, const ch_var *v, ch_ps_var *s)
{
    uint64_t number = ch__chief_numbers(ps->chief, s->n);

    for (int i = 0; i < s->n; i++) {
        ch_ps_shard *shard = ch__calloc(1, sizeof(*shard));

        if (shard == NULL)
            return ch__fail_memory("a variable");
        atomic_init(&shard->refs, 1);
        shard->ps = ps;
        shard->number = number + (uint64_t)i;
        shard->server = server_of(ps, v->layout.device[i]);
        shard->bytes = shard_bytes(v->layout, v->dtype, v->shape, i);
        s->shard[i] = shard;
    }
    return CH_OK;
}

/* What a variable begins with: a value, or words. */
typedef struct beginning {
    ch_tensor     *value; /* NULL: */
    const ch_init *init;
} beginning;

/* Of a shard: its part of the value, or what it makes of the words. */
static ch_status speak_create(const ch_var *v, const ch_ps_var *s, const void *arg, int i,
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
    m.variable = s->shard[i]->number;
    m.name = name;
    if (b->value == NULL) {
        ch__first_say(&first, v->layout, i, &words);
        m.first = &words;
    }
    if (rc == CH_OK)
        (void)snprintf(name, size, s->n > 1 ? "%s/part_%d" : "%s", v->name, i);
    if (rc == CH_OK && b->value != NULL)
        rc = ch__layout_cut(v->layout, v->shape, b->value, i, &cut);
    if (rc == CH_OK)
        rc = ch__speak(CH_PS_CREATE, &m.base, cut != NULL, &cut, out);
    ch__free(name);
    return rc;
}

/* A call to the server of each shard; the parcels are made by `speak`. */
typedef ch_status (*speak_fn)(const ch_var *v, const ch_ps_var *s, const void *arg, int i,
                              ch_parcel **out);

static ch_status ask_shards(const ch_var *v, const ch_ps_var *s, speak_fn speak,
                            const void *arg, ch_parcel **answer)
{
    ch_parcel **parcel = ch__calloc((size_t)s->n, sizeof(ch_parcel *));
    int        *server = ch__calloc((size_t)s->n, sizeof(int));
    ch_status   rc = parcel == NULL || server == NULL ? ch__fail_memory("a call") : CH_OK;

    for (int i = 0; i < s->n && rc == CH_OK; i++) {
        server[i] = s->shard[i]->server;
        rc = speak(v, s, arg, i, &parcel[i]);
    }
    if (rc == CH_OK)
        rc = ch__chief_ask(s->ps->chief, s->n, server, parcel, answer);
    else
        for (int i = 0; parcel != NULL && i < s->n; i++)
            ch__parcel_unref(parcel[i]);
    ch__free(parcel);
    ch__free(server);
    return rc;
}

/* Makes a variable of each shard. */
static ch_status make_parts(ch_strategy *st, ch_var *v, ch_ps_var *s)
{
    ch_status rc = CH_OK;

    v->shard = ch__calloc((size_t)s->n, sizeof(ch_var *));
    if (v->shard == NULL)
        return ch__fail_memory("a variable");
    for (; v->n_shards < s->n && rc == CH_OK; v->n_shards += rc == CH_OK) {
        int        i = v->n_shards;
        ch_ps_var *part = NULL;

        rc = new_storage(s->ps, 1, &part);
        if (rc != CH_OK)
            break;
        part->shard[0] = s->shard[i];
        rc = ch__var_part(st, v, i, part, &v->shard[i]);
        if (rc == CH_OK)
            atomic_fetch_add(&s->shard[i]->refs, 1);
        else
            ch__free(part);
    }
    return rc;
}

/* Servers compute an initial value themselves if every shard of it can be computed alone. */
static ch_status initial_of(const ch_var_spec *spec, ch_tensor **out)
{
    if (spec->initial == NULL && !spec->per_worker && ch__init_has_parts(&spec->init))
        return ch__init_check(&spec->init, spec->dtype, spec->shape);
    return ch__var_initial(spec, out);
}

static ch_status create_on_servers(ch_strategy *st, ch_var *v, ch_tensor *initial,
                                   const ch_init *init)
{
    ch_ps     *ps = st->self;
    ch_ps_var *s = NULL;
    ch_status  rc;

    for (int i = 0; i < ch__layout_parts(v->layout); i++)
        if (server_of(ps, v->layout.device[i]) < 0)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "%s is no parameter server's, because a variable that is per_worker is on "
                "no server; leave that colocation first, or make this variable "
                "per_worker too",
                ch_device_name(v->layout.device[i]));
    rc = new_storage(ps, ch__layout_parts(v->layout), &s);
    if (rc != CH_OK)
        return rc;
    rc = make_shards(ps, v, s);
    if (rc != CH_OK) {
        for (int i = 0; i < s->n; i++)
            ch__free(s->shard[i]);
        ch__free(s);
        return rc;
    }
    (void)ch__task_enter(ps->chief);
    for (int i = 0; i < s->n; i++)
        ps->bytes[s->shard[i]->server] += s->shard[i]->bytes;
    ch__task_leave(ps->chief);
    v->storage = s;
    rc = ask_shards(v, s, speak_create, &(beginning){initial, init}, NULL);
    return rc == CH_OK && s->n > 1 ? make_parts(st, v, s) : rc;
}

static ch_status create(ch_strategy *st, ch_var *v, const ch_var_spec *spec)
{
    ch_tensor *initial = NULL;
    ch_status  rc = initial_of(spec, &initial);

    if (rc == CH_OK)
        rc = v->per_worker ? ch__ps_per_worker_create(st->self, v, initial)
                           : create_on_servers(st, v, initial, &spec->init);
    ch_tensor_unref(initial);
    return rc;
}

/* ---- reading ---- */

static ch_status speak_read(const ch_var *v, const ch_ps_var *s, const void *arg, int i,
                            ch_parcel **out)
{
    Cohort__PsRead m;

    (void)v;
    (void)arg;
    cohort__ps_read__init(&m);
    m.n_variables = 1;
    m.variables = &s->shard[i]->number;
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

static ch_status join(const ch_var *v, const ch_ps_var *s, ch_parcel *const *answer,
                      ch_tensor **out)
{
    ch_tensor **part = ch__calloc((size_t)s->n, sizeof(ch_tensor *));
    ch_tensor  *whole = NULL;
    ch_status   rc = part == NULL ? ch__fail_memory("a value") : CH_OK;

    for (int i = 0; i < s->n && rc == CH_OK; i++) {
        rc = check_answer(v, answer[i]);
        if (rc == CH_OK)
            part[i] = answer[i]->tensor[0];
    }
    if (rc == CH_OK)
        rc = s->n > 1 ? ch__layout_join(v->layout, part, &whole) : copy_of(v, part[0], &whole);
    if (rc == CH_OK && !ch_shape_equal(whole->shape, v->shape))
        rc = ch__fail(CH_INTERNAL, "servers gave other sizes for %s", v->name);
    ch__free(part);
    if (rc == CH_OK)
        *out = whole;
    else
        ch_tensor_unref(whole);
    return rc;
}

static ch_status get_whole(ch_var *v, ch_tensor **out)
{
    ch_ps_var  *s = v->storage;
    ch_parcel **answer = ch__calloc((size_t)s->n, sizeof(ch_parcel *));
    ch_status   rc = answer == NULL ? ch__fail_memory("a value")
                                    : ask_shards(v, s, speak_read, NULL, answer);

    if (rc == CH_OK)
        rc = join(v, s, answer, out);
    for (int i = 0; answer != NULL && i < s->n; i++)
        ch__parcel_unref(answer[i]);
    ch__free(answer);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

/* ---- changing ---- */

static ch_status set_whole(ch_var *v, ch_tensor *value)
{
    ch_ps_var  *s = v->storage;
    size_t      n = (size_t)s->n;
    ch_tensor **cut = ch__calloc(n, sizeof(ch_tensor *));
    uint64_t   *number = ch__calloc(n, sizeof(uint64_t));
    int        *server = ch__calloc(n, sizeof(int));
    ch_status   rc =
        cut == NULL || number == NULL || server == NULL ? ch__fail_memory("a value") : CH_OK;

    for (int i = 0; i < s->n && rc == CH_OK; i++) {
        number[i] = s->shard[i]->number;
        server[i] = s->shard[i]->server;
        rc = ch__layout_cut(v->layout, v->shape, value, i, &cut[i]);
    }
    if (rc == CH_OK)
        rc = ch__chief_assign(s->ps->chief, s->n, server, number, cut);
    else
        for (int i = 0; cut != NULL && i < s->n; i++)
            ch_tensor_unref(cut[i]);
    ch__free(cut);
    ch__free(number);
    ch__free(server);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

static void record_change(ch_step *s, void *arg)
{
    const struct ch_ps_change *c = arg;

    if (c->subtract)
        ch_var_assign_sub(s, c->var, ch_step_in(s, 0));
    else
        ch_var_assign_add(s, c->var, ch_step_in(s, 0));
}

/* The function that changes a variable from outside steps, made when it is first wanted, by whoever comes first. */
static ch_status find_change(ch_ps_var *s, ch_var *v, bool subtract, ch_function **out)
{
    ch_task     *chief = s->ps->chief;
    ch_function *made = NULL;
    ch_status    rc;

    (void)ch__task_enter(chief);
    *out = s->change[subtract];
    s->arg[subtract] = (struct ch_ps_change){v, subtract};
    ch__task_leave(chief);
    if (*out != NULL)
        return CH_OK;
    rc = ch_function_new("add", record_change, &s->arg[subtract], &made);
    if (rc != CH_OK)
        return rc;
    ch_function_static_rows(made);
    (void)ch__task_enter(chief);
    if (s->change[subtract] == NULL) {
        s->change[subtract] = made;
        made = NULL;
    }
    *out = s->change[subtract];
    ch__task_leave(chief);
    ch_function_unref(made);
    return CH_OK;
}

/* A step like any other, so that it loses nothing of what steps change meanwhile. */
static ch_status add(ch_var *v, ch_tensor *delta, bool subtract)
{
    ch_function *f = NULL;
    ch_tuple    *in = NULL;
    ch_status    rc = find_change(v->storage, v, subtract, &f);

    if (rc == CH_OK)
        rc = ch_tuple_of(1, &delta, &in);
    if (rc == CH_OK)
        rc = ch_strategy_run(v->strategy, f, in, NULL);
    ch_tuple_unref(in);
    return rc;
}

static ch_status read_var(ch_var *v, const ch_region *region, ch_tensor **out)
{
    ch_tensor *whole = NULL, *view = NULL;
    ch_status  rc;

    if (ch__ps_is_per_worker(v))
        return ch__var_local.read(v, region, out);
    if (region == NULL)
        return get_whole(v, out);
    rc = get_whole(v, &whole);
    if (rc == CH_OK)
        rc = ch__tensor_region(whole, region, &view);
    if (rc == CH_OK)
        rc = ch_tensor_contiguous(view, out);
    ch_tensor_unref(view);
    ch_tensor_unref(whole);
    return rc;
}

static ch_status write_var(ch_var *v, const ch_region *region, ch_tensor *value)
{
    ch_tensor *whole = NULL, *view = NULL;
    ch_status  rc;

    if (ch__ps_is_per_worker(v))
        return ch__var_local.write(v, region, value);
    if (region == NULL)
        return set_whole(v, value);
    rc = get_whole(v, &whole);
    if (rc == CH_OK)
        rc = ch__tensor_region(whole, region, &view);
    if (rc == CH_OK)
        rc = ch_tensor_copy(value, view);
    if (rc == CH_OK)
        rc = set_whole(v, whole);
    ch_tensor_unref(view);
    ch_tensor_unref(whole);
    return rc;
}

static ch_status add_var(ch_var *v, ch_tensor *delta, bool subtract)
{
    return ch__ps_is_per_worker(v) ? ch__var_local.add(v, delta, subtract)
                                   : add(v, delta, subtract);
}

static ch_status copy_var(ch_var *from, ch_var *to)
{
    ch_tensor *t = NULL;
    ch_status  rc = read_var(from, NULL, &t);

    if (rc == CH_OK)
        rc = write_var(to, NULL, t);
    ch_tensor_unref(t);
    return rc;
}

/* ---- rows ---- */

static ch_status speak_rows(const ch_ps_shard *s, ch_tensor *ids, ch_parcel **out)
{
    Cohort__PsRows m;
    uint64_t       number = s->number;

    cohort__ps_rows__init(&m);
    m.n_variables = 1;
    m.variables = &number;
    (void)ch_tensor_ref(ids);
    return ch__speak(CH_PS_ROWS, &m.base, 1, &ids, out);
}

static ch_status check_rows(const ch_var *v, int shard, const ch_tensor *ids,
                            const ch_parcel *p)
{
    ch_shape want = ch__layout_shape(v->layout, v->shape, shard);

    want.dim[0] = ids->shape.dim[0];
    return p->n_tensors == 1 && p->tensor[0]->dtype == v->dtype &&
                   ch_shape_equal(p->tensor[0]->shape, want)
               ? CH_OK
               : ch__fail(CH_INTERNAL, "a server gave other rows than were asked for");
}

/* Asks the shards that have any of the rows. If axis 0 is divided, shard i gets ids[i]; if not, every shard has a piece of each
 * row, and gets ids[0]. */
static ch_status ask_rows(const ch_var *v, ch_tensor *const *ids, ch_tensor **out)
{
    const ch_ps_var *s = v->storage;
    size_t           most = (size_t)s->n;
    ch_parcel      **parcel = ch__calloc(2 * most, sizeof(ch_parcel *));
    ch_parcel      **answer = parcel != NULL ? parcel + most : NULL;
    int             *server = ch__calloc(2 * most, sizeof(int));
    int             *shard = server != NULL ? server + most : NULL;
    ch_status        rc = parcel == NULL || server == NULL ? ch__fail_memory("rows") : CH_OK;
    int              n = 0, by_rows = ch__layout_axis(v->layout) == 0;

    for (int i = 0; i < s->n && rc == CH_OK; i++) {
        if (ids[by_rows ? i : 0] == NULL)
            continue;
        server[n] = s->shard[i]->server;
        shard[n] = i;
        rc = speak_rows(s->shard[i], ids[by_rows ? i : 0], &parcel[n]);
        n += rc == CH_OK;
    }
    if (rc == CH_OK && n > 0)
        rc = ch__chief_ask(s->ps->chief, n, server, parcel, answer);
    else
        for (int k = 0; k < n; k++)
            ch__parcel_unref(parcel[k]);
    for (int k = 0; k < n && rc == CH_OK; k++) {
        rc = check_rows(v, shard[k], ids[by_rows ? shard[k] : 0], answer[k]);
        if (rc == CH_OK)
            out[shard[k]] = ch_tensor_ref(answer[k]->tensor[0]);
    }
    for (int k = 0; answer != NULL && k < n; k++)
        ch__parcel_unref(answer[k]);
    ch__free(parcel);
    ch__free(server);
    return rc;
}

static ch_status gather(ch_var *v, ch_tensor *const *ids, ch_tensor **rows)
{
    const ch_ps_var *s = v->storage;
    ch_tensor      **piece;
    ch_status        rc;

    if (ch__ps_is_per_worker(v))
        return ch__var_local.gather(v, ids, rows);
    if (ch__layout_axis(v->layout) == 0)
        return ask_rows(v, ids, rows);
    piece = ch__calloc((size_t)s->n, sizeof(ch_tensor *));
    rc = piece == NULL ? ch__fail_memory("rows") : ask_rows(v, ids, piece);
    if (rc == CH_OK && ids[0] != NULL)
        rc = ch__layout_join(v->layout, piece, &rows[0]);
    for (int i = 0; piece != NULL && i < s->n; i++)
        ch_tensor_unref(piece[i]);
    ch__free(piece);
    return rc;
}

const ch_var_ops ch__ps_var_ops = {.create = create,
                                   .free = free_var,
                                   .read = read_var,
                                   .write = write_var,
                                   .add = add_var,
                                   .copy = copy_var,
                                   .gather = gather,
                                   .read_workers = ch__ps_per_worker_read};

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
    char             spec[160];
    const ch_ps_var *s = v->storage;

    if (v->n_shards > 0)
        return; /* its parts are in the list */
    print_spec(v, spec, sizeof(spec));
    if (ch__ps_is_per_worker(v)) {
        ch__text_add(o, "%-*s %-*s %12lld  each worker, and %s\n", w.name, v->name, w.spec,
                     spec, (long long)ch_tensor_bytes(v->copy[0]), ch_var_device(v));
        return;
    }
    ch__text_add(o, "%-*s %-*s %12lld  %s\n", w.name, v->name, w.spec, spec,
                 (long long)s->shard[0]->bytes,
                 ch_device_name(ps->server_device[s->shard[0]->server]));
    bytes[s->shard[0]->server] += s->shard[0]->bytes;
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
