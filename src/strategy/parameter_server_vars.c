/* strategy/parameter_server_vars.c -- variables on servers: placement, storage, values.
 *
 * Implements ch_strategy_ops.place and ch_var_ops for the parameter-server strategy, and prints
 * the table of ch_strategy_print_placement. Per-worker variables are passed on to
 * parameter_server_per_worker.c and, for the program's copy, to var_local.c.
 *
 * A ch_ps_shard is a shard on a server, counted; the last reference frees the shard on the
 * server. A divided variable and the variables of its shards share them. ps->next and ps->bytes
 * are used only between ch__task_enter and ch__task_leave.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/remote_var.h"
#include "kernel/init.h"
#include "strategy/parameter_server.h"
#include "tensor/buffer_pool.h"
#include "tensor/device.h"
#include "tensor/print.h"

/* ---- placement ---- */

/* Returns the server with the fewest bytes among the servers with the fewest shards of the
 * variable that is being placed. has[i] is the number of its shards on server i. */
static int least_loaded(const ch_ps *ps, const int *has, const int64_t *bytes)
{
    int best = 0;

    for (int i = 1; i < ps->n_servers; i++)
        if (has[i] < has[best] || (has[i] == has[best] && bytes[i] < bytes[best]))
            best = i;
    return best;
}

/* Returns the size of part i in bytes. */
static int64_t shard_bytes(ch_layout l, ch_dtype dtype, ch_shape shape, int i)
{
    return ch_shape_count(ch__layout_shape(l, shape, i)) * (int64_t)ch_dtype_bytes(dtype);
}

ch_status ch__ps_placement(void *self, const ch_var_spec *spec, ch_layout *out)
{
    ch_ps         *ps = self;
    ch_tensor_spec of = {.name = spec->name, .dtype = spec->dtype, .shape = spec->shape};
    int           *has;
    int64_t  *bytes; /* bytes of each server, including the shards that this call has placed */
    ch_status rc;

    if (spec->per_worker) {
        out->device[0] = ps->own_device;
        return CH_OK;
    }
    rc = ch_partitioner_divide(&ps->partitioner, &of, out);
    has = ch__calloc((size_t)ps->n_servers, sizeof(*has));
    bytes = ch__calloc((size_t)ps->n_servers, sizeof(*bytes));
    if (rc == CH_OK && (has == NULL || bytes == NULL))
        rc = ch__fail_memory("a variable");
    if (rc == CH_OK) {
        (void)ch__task_enter(ps->coord);
        memcpy(bytes, ps->bytes, (size_t)ps->n_servers * sizeof(*bytes));
        for (int i = 0; i < ch__layout_parts(*out); i++) {
            int server = ps->placement == CH_PLACE_BY_BYTES ? least_loaded(ps, has, bytes)
                                                            : ps->next++ % ps->n_servers;

            out->device[i] = ps->server_device[server];
            has[server]++;
            bytes[server] += shard_bytes(*out, spec->dtype, spec->shape, i);
        }
        ch__task_leave(ps->coord);
    }
    ch__free(has);
    ch__free(bytes);
    return rc;
}

/* Returns the number of the server that a device belongs to; -1 if it is not the device of a
 * server. */
static int server_of(const ch_ps *ps, const ch_device *d)
{
    for (int i = 0; i < ps->n_servers; i++)
        if (ps->server_device[i] == d)
            return i;
    return -1;
}

/* ---- storage ---- */

/* Releases a reference. The last release frees the shard on its server. */
static void shard_unref(ch_ps_shard *s)
{
    if (s == NULL || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    (void)ch__task_enter(s->ps->coord);
    s->ps->bytes[s->at.server] -= s->bytes;
    ch__task_leave(s->ps->coord);
    ch__remote_free(s->ps->coord, s->at);
    ch__free(s);
}

static void free_storage(ch_ps_var *s)
{
    for (int i = 0; i < s->on_servers.n_shards; i++)
        shard_unref(s->shard[i]);
    for (int i = 0; i < 2; i++)
        ch_function_unref(s->change[i]);
    ch__free(s->at);
    ch__free(s);
}

static void free_var(ch_var *v)
{
    ch_tensor_unref(v->copy[0]);
    if (v->storage != NULL && ch__ps_is_per_worker(v))
        ch__ps_per_worker_free(v->storage);
    else if (v->storage != NULL)
        free_storage(v->storage);
    v->storage = NULL;
}

/* Creates the storage of a variable, with a reference to each shard. */
static ch_status new_storage(ch_ps *ps, const char *name, ch_dtype dtype, ch_shape shape,
                             ch_layout l, ch_ps_shard *const *shard, ch_ps_var **out)
{
    int                   n = ch__layout_parts(l);
    struct ch_plan_shard *at = ch__calloc((size_t)n, sizeof(*at));
    ch_ps_var            *s = ch__calloc(1, sizeof(*s) + (size_t)n * sizeof(s->shard[0]));

    if (s == NULL || at == NULL) {
        ch__free(at);
        ch__free(s);
        return ch__fail_memory("a variable");
    }
    s->ps = ps;
    s->at = at;
    s->on_servers = (ch_plan_variable){.name = name,
                                       .dtype = dtype,
                                       .shape = shape,
                                       .axis = ch__layout_axis(l),
                                       .n_shards = n,
                                       .shard = at};
    for (int i = 0; i < n; i++) {
        atomic_fetch_add(&shard[i]->refs, 1);
        s->shard[i] = shard[i];
        at[i] = shard[i]->at;
    }
    *out = s;
    return CH_OK;
}

/* Creates n shards with new numbers and without references. Does not call the servers. */
static ch_status new_shards(ch_ps *ps, const ch_var *v, int n, ch_ps_shard **out)
{
    uint64_t number = ch__coord_new_numbers(ps->coord, n);

    for (int i = 0; i < n; i++) {
        out[i] = ch__calloc(1, sizeof(*out[i]));
        if (out[i] == NULL)
            return ch__fail_memory("a variable");
        atomic_init(&out[i]->refs, 0);
        out[i]->ps = ps;
        out[i]->at.server = server_of(ps, v->layout.device[i]);
        out[i]->at.variable = number + (uint64_t)i;
        out[i]->bytes = shard_bytes(v->layout, v->dtype, v->shape, i);
    }
    return CH_OK;
}

/* Creates the shards and the storage of `v`, and adds their bytes to the servers' totals. */
static ch_status make_storage(ch_ps *ps, ch_var *v)
{
    int           n = ch__layout_parts(v->layout);
    ch_ps_shard **shard = ch__calloc((size_t)n, sizeof(ch_ps_shard *));
    ch_ps_var    *s = NULL;
    ch_status rc = shard == NULL ? ch__fail_memory("a variable") : new_shards(ps, v, n, shard);

    if (rc == CH_OK)
        rc = new_storage(ps, v->name, v->dtype, v->shape, v->layout, shard, &s);
    for (int i = 0; rc != CH_OK && shard != NULL && i < n; i++)
        ch__free(shard[i]);
    if (rc == CH_OK) {
        (void)ch__task_enter(ps->coord);
        for (int i = 0; i < n; i++)
            ps->bytes[shard[i]->at.server] += shard[i]->bytes;
        ch__task_leave(ps->coord);
        v->storage = s;
    }
    ch__free(shard);
    return rc;
}

/* Creates a variable for each shard. */
static ch_status make_parts(ch_strategy *st, ch_var *v)
{
    const ch_ps_var *s = v->storage;
    int              n = s->on_servers.n_shards;
    ch_status        rc = CH_OK;

    v->shard = ch__calloc((size_t)n, sizeof(ch_var *));
    if (v->shard == NULL)
        return ch__fail_memory("a variable");
    for (; v->n_shards < n && rc == CH_OK; v->n_shards += rc == CH_OK) {
        int        i = v->n_shards;
        ch_ps_var *part = NULL;

        rc = new_storage(s->ps, NULL, v->dtype, ch__layout_shape(v->layout, v->shape, i),
                         (ch_layout){.n_copies = 1}, &s->shard[i], &part);
        if (rc == CH_OK)
            rc = ch__var_new_shard(st, v, i, part, &v->shard[i]);
        if (rc == CH_OK)
            part->on_servers.name = v->shard[i]->name;
        else if (part != NULL)
            free_storage(part);
    }
    return rc;
}

/* Computes the initial value, unless the servers can compute it. They can if the initialiser
 * allows each shard to be computed alone; then *out is unchanged. */
static ch_status initial_of(const ch_var_spec *spec, ch_tensor **out)
{
    if (spec->initial == NULL && !spec->per_worker && ch__init_has_parts(&spec->init))
        return ch__init_check(&spec->init, spec->dtype, spec->shape);
    return ch__var_initial(spec, out);
}

/* Creates the shards of `v` on their servers. `initial` may be NULL: the servers compute
 * `init`. */
static ch_status create_on_servers(ch_strategy *st, ch_var *v, ch_tensor *initial,
                                   const ch_init *init)
{
    ch_ps           *ps = st->self;
    const ch_ps_var *s;
    ch_status        rc;

    for (int i = 0; i < ch__layout_parts(v->layout); i++)
        if (server_of(ps, v->layout.device[i]) < 0)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "%s is not the device of a parameter server: the variable is colocated with a "
                "variable that is per_worker; leave that colocation first, or make this "
                "variable "
                "per_worker too",
                ch_device_name(v->layout.device[i]));
    rc = make_storage(ps, v);
    s = v->storage;
    if (rc == CH_OK)
        rc = ch__remote_create(ps->coord, &s->on_servers, initial, init);
    return rc == CH_OK && s->on_servers.n_shards > 1 ? make_parts(st, v) : rc;
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

/* ---- values ---- */

static ch_status read_var(ch_var *v, const ch_region *region, ch_tensor **out)
{
    const ch_ps_var *s = v->storage;
    ch_status        rc;

    if (ch__ps_is_per_worker(v))
        return ch__var_local.read(v, region, out);
    rc = ch__remote_read(s->ps->coord, &s->on_servers, region, out);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

static ch_status write_var(ch_var *v, const ch_region *region, ch_tensor *value)
{
    const ch_ps_var *s = v->storage;
    ch_status        rc;

    if (ch__ps_is_per_worker(v))
        return ch__var_local.write(v, region, value);
    rc = ch__remote_write(s->ps->coord, &s->on_servers, region, value);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

/* Reads a region of a source and writes it to the servers, in pieces. */
static ch_status write_region_from(ch_var *v, const ch_region *region,
                                   const ch_value_source *from, ch_buffer_pool *pool)
{
    const ch_ps_var *s = v->storage;
    int              rank = v->shape.rank;
    int64_t          n = ch__region_count(region, rank), most = ch__piece_elements(v->dtype);
    ch_region        piece;
    ch_status        rc = CH_OK;

    for (int64_t done = 0; done < n && rc == CH_OK;) {
        ch_tensor *t = NULL;

        done += ch__region_piece(region, rank, most, done, &piece);
        rc = ch__buffer_pool_get(pool, s->ps->own_device, v->dtype,
                                 ch_shape_make(rank, piece.size), &t);
        if (rc == CH_OK)
            rc = from->read(from->arg, &piece, t->data);
        if (rc == CH_OK)
            rc = ch__remote_write(s->ps->coord, &s->on_servers, &piece, t);
        ch_tensor_unref(t);
    }
    return rc;
}

/* Reads the value that workers start with. */
static ch_status restart_from(ch_var *v, const ch_value_source *from)
{
    ch_tensor *initial = NULL;
    ch_region  whole;
    ch_status  rc = ch_tensor_new_on(v->layout.device[0], v->dtype, v->shape, &initial);

    ch__layout_region(v->layout, v->shape, 0, &whole);
    if (rc == CH_OK && ch_shape_count(v->shape) > 0)
        rc = from->read(from->arg, &whole, initial->data);
    if (rc == CH_OK)
        ch__ps_per_worker_restart(v, initial);
    ch_tensor_unref(initial);
    return rc;
}

/* Each piece belongs to a single shard. */
static ch_status write_from(ch_var *v, const ch_value_source *from)
{
    ch_buffer_pool pool = {.now = 0};
    ch_region      region;
    ch_status      rc = CH_OK;

    if (ch__ps_is_per_worker(v))
        return restart_from(v, from);
    for (int i = 0; i < ch__layout_parts(v->layout) && rc == CH_OK; i++) {
        ch__layout_region(v->layout, v->shape, i, &region);
        rc = write_region_from(v, &region, from, &pool);
    }
    ch__buffer_pool_drop(&pool);
    return rc;
}

static ch_status gather(ch_var *v, ch_tensor *const *ids, ch_tensor **rows)
{
    const ch_ps_var *s = v->storage;

    return ch__ps_is_per_worker(v)
               ? ch__var_local.gather(v, ids, rows)
               : ch__remote_gather(s->ps->coord, &s->on_servers, 0, ids, rows);
}

/* The step that adds to a variable or subtracts from it. */
static void record_change(ch_step *s, void *arg)
{
    const struct ch_ps_change *c = arg;

    if (c->subtract)
        ch_var_assign_sub(s, c->var, ch_step_in(s, 0));
    else
        ch_var_assign_add(s, c->var, ch_step_in(s, 0));
}

/* Finds the step that adds to the variable or subtracts from it, and creates it at the first
 * use. If two threads create it at the same time, the first is used. */
static ch_status find_change(ch_ps_var *s, ch_var *v, bool subtract, ch_function **out)
{
    ch_task     *coord = s->ps->coord;
    ch_function *made = NULL;
    ch_status    rc;

    (void)ch__task_enter(coord);
    *out = s->change[subtract];
    s->arg[subtract] = (struct ch_ps_change){v, subtract};
    ch__task_leave(coord);
    if (*out != NULL)
        return CH_OK;
    rc = ch_function_new("add", record_change, &s->arg[subtract], &made);
    if (rc != CH_OK)
        return rc;
    ch_function_static_rows(made);
    (void)ch__task_enter(coord);
    if (s->change[subtract] == NULL) {
        s->change[subtract] = made;
        made = NULL;
    }
    *out = s->change[subtract];
    ch__task_leave(coord);
    ch_function_unref(made);
    return CH_OK;
}

/* Changes a variable on servers by running a step. So concurrent updates of other steps are not
 * lost. */
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

const ch_var_ops ch__ps_var_ops = {.create = create,
                                   .free = free_var,
                                   .read = read_var,
                                   .write = write_var,
                                   .write_from = write_from,
                                   .restart = ch__ps_per_worker_restart,
                                   .add = add_var,
                                   .copy = copy_var,
                                   .gather = gather,
                                   .read_workers = ch__ps_per_worker_read};

/* ---- the table of placements ---- */

/* Widths of the columns in characters: those of the longest entries, with a minimum. */
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

static void print_var(const ch_var *v, columns w, ch_text *o, int64_t *bytes)
{
    char             spec[160];
    const ch_ps_var *s = v->storage;

    if (v->n_shards > 0)
        return; /* the list contains its shards */
    print_spec(v, spec, sizeof(spec));
    if (ch__ps_is_per_worker(v)) {
        ch__text_add(o, "%-*s %-*s %12lld  each worker, and %s\n", w.name, v->name, w.spec,
                     spec, (long long)ch_tensor_bytes(v->copy[0]), ch_var_device(v));
        return;
    }
    ch__text_add(o, "%-*s %-*s %12lld  %s\n", w.name, v->name, w.spec, spec,
                 (long long)s->shard[0]->bytes, ch_var_device(v));
    bytes[s->shard[0]->at.server] += s->shard[0]->bytes;
}

int ch_strategy_print_placement(ch_strategy *st, char *text, size_t size)
{
    ch_text      o = ch__text(text, size);
    const ch_ps *ps;
    ch_var     **var = NULL;
    int64_t     *bytes;
    columns      w;
    int          n = 0;

    st = ch__strategy_or_current(st);
    ps = ch__ps_of(st);
    bytes = ps != NULL ? ch__calloc((size_t)ps->n_servers, sizeof(*bytes)) : NULL;
    if (bytes == NULL || ch__strategy_vars(st, &n, &var) != CH_OK) {
        ch__text_add(&o, "%s: %s\n", st->ops->name,
                     ps != NULL ? "out of memory" : "it has no parameter servers");
        ch__free(bytes);
        return ch__text_length(&o);
    }
    w = columns_of(n, var);
    ch__text_add(&o, "%-*s %-*s %12s  %s\n", w.name, "variable", w.spec, "is", "bytes",
                 "where");
    for (int i = 0; i < n; i++) {
        print_var(var[i], w, &o, bytes);
        ch_var_unref(var[i]);
    }
    for (int i = 0; i < ps->n_servers; i++)
        ch__text_add(&o, "%-*s %-*s %12lld  %s\n", w.name, "", w.spec, "in all",
                     (long long)bytes[i], ch_device_name(ps->server_device[i]));
    ch__free(var);
    ch__free(bytes);
    return ch__text_length(&o);
}
