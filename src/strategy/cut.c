/* strategy/cut.c -- consistent snapshots of variables on parameter servers (cut.h).
 *
 * The coordinator task takes the snapshot (job/coordinator/snapshot.c), job/remote_var.c reads
 * it. The positions of per-worker datasets are in per_worker_data.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/cut.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/remote_var.h"
#include "strategy/parameter_server.h"

struct ch_cut {
    ch_strategy *strategy; /* referenced */
    ch_task     *coord;
    uint64_t     snapshot;
};

bool ch__cut_is_needed(const ch_strategy *st)
{
    return ch__ps_of(st) != NULL;
}

/* Makes a cut that has no snapshot yet. */
static ch_status new_cut(ch_strategy *st, ch_cut **out)
{
    const ch_ps *ps = ch__ps_of(st);
    ch_cut      *c;

    if (ps == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "cut: %s has no parameter servers", st->label);
    c = ch__calloc(1, sizeof(*c));
    if (c == NULL)
        return ch__fail_memory("a snapshot");
    c->coord = ps->coord;
    c->strategy = ch_strategy_ref(st);
    *out = c;
    return CH_OK;
}

/* Gives out a cut whose snapshot was taken with result `rc`. */
static ch_status give(ch_cut *c, ch_status rc, ch_cut **out)
{
    if (rc == CH_OK) {
        *out = c;
    } else {
        ch_strategy_unref(c->strategy);
        ch__free(c);
    }
    return rc;
}

static ch_status take(ch_strategy *st, bool is_prepared, ch_cut_marks marks,
                      ch_between_fn between, void *arg, ch_cut **out)
{
    ch_cut   *c = NULL;
    ch_status rc = new_cut(st, &c);

    if (rc != CH_OK)
        return rc;
    rc = ch__coord_reserve(c->coord);
    if (rc == CH_OK)
        rc = ch__coord_cut(c->coord, is_prepared, between, arg, marks == CH_MARKS_BEGIN,
                           &c->snapshot);
    return give(c, rc, out);
}

ch_status ch__cut_take_now(ch_strategy *st, ch_cut **out)
{
    ch_cut   *c = NULL;
    ch_status rc = new_cut(st, &c);

    return rc == CH_OK ? give(c, ch__coord_snapshot(c->coord, &c->snapshot), out) : rc;
}

ch_status ch__cut_take(ch_strategy *st, ch_cut_marks marks, ch_between_fn between, void *arg,
                       ch_cut **out)
{
    return take(st, false, marks, between, arg, out);
}

ch_status ch__cut_take_prepared(ch_strategy *st, ch_cut_marks marks, ch_between_fn between,
                                void *arg, ch_cut **out)
{
    return take(st, true, marks, between, arg, out);
}

bool ch__cut_prepare(ch_strategy *st)
{
    const ch_ps *ps = ch__ps_of(st);

    return ps != NULL && ch__coord_prepare_cut(ps->coord);
}

bool ch__cut_is_prepared(ch_strategy *st, bool *is_ready)
{
    const ch_ps *ps = ch__ps_of(st);

    *is_ready = false;
    return ps != NULL && ch__coord_is_cut_prepared(ps->coord, is_ready);
}

void ch__cut_give_up_prepared(ch_strategy *st)
{
    const ch_ps *ps = ch__ps_of(st);

    if (ps != NULL)
        ch__coord_give_up_cut(ps->coord);
}

void ch__cut_end(ch_cut *c)
{
    if (c == NULL)
        return;
    ch__coord_release_snapshot(c->coord, c->snapshot);
    ch_strategy_unref(c->strategy);
    ch__free(c);
}

/* Gives the description of a variable on the servers of the cut. */
static ch_status find_remote(const ch_cut *c, const ch_var *v, const ch_plan_variable **out)
{
    const ch_ps_var *s = v->storage;

    if (v->strategy != c->strategy || ch__ps_is_per_worker(v))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "variable %s is not on the parameter servers of %s", v->name,
                        c->strategy->label);
    *out = &s->on_servers;
    return CH_OK;
}

static ch_shape shape_of(const ch_var *v, const ch_region *region)
{
    return region != NULL ? ch_shape_make(v->shape.rank, region->size) : v->shape;
}

ch_status ch__cut_read(const ch_cut *c, ch_var *v, const ch_region *region, void *to)
{
    const ch_plan_variable *remote = NULL;
    ch_tensor              *t = NULL;
    ch_status               rc = find_remote(c, v, &remote);

    if (rc == CH_OK)
        rc = ch_tensor_wrap(v->dtype, shape_of(v, region), to, NULL, NULL, &t);
    if (rc == CH_OK)
        rc = ch__remote_read_to(c->coord, remote, c->snapshot, region, t);
    ch_tensor_unref(t);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

/* Gives the description of a variable in a single shard. */
static ch_status find_shard(const ch_cut *c, const ch_var *v, const ch_plan_variable **out)
{
    ch_status rc = find_remote(c, v, out);

    if (rc == CH_OK && (*out)->n_shards != 1)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "variable %s has %d shards; read the rows of each shard", v->name,
                      (*out)->n_shards);
    return rc;
}

/* Reads the rows of a piece to `to`. */
static ch_status read_rows(const ch_cut *c, const ch_plan_variable *shard, int64_t n,
                           const int64_t *ids, void *to)
{
    ch_tensor *list = NULL, *rows = NULL;
    ch_status  rc = ch_tensor_new(CH_I64, ch_shape_of(n), &list);

    if (rc == CH_OK) {
        memcpy(list->data, ids, (size_t)n * sizeof(*ids));
        rc = ch__remote_gather(c->coord, shard, c->snapshot, &list, &rows);
    }
    if (rc == CH_OK)
        memcpy(to, rows->data, ch_tensor_bytes(rows));
    ch_tensor_unref(list);
    ch_tensor_unref(rows);
    return rc;
}

ch_status ch__cut_read_rows(const ch_cut *c, ch_var *shard, int64_t n, const int64_t *ids,
                            void *to)
{
    const ch_plan_variable *remote = NULL;
    ch_status               rc = find_shard(c, shard, &remote);
    int64_t                 row = (int64_t)ch_dtype_bytes(shard->dtype), most;

    for (int k = 1; k < shard->shape.rank; k++)
        row *= shard->shape.dim[k];
    most = CH_PIECE_BYTES / (row > (int64_t)sizeof(*ids) ? row : (int64_t)sizeof(*ids));
    for (int64_t at = 0, some; at < n && rc == CH_OK; at += some) {
        some = ch__min(n - at, most > 0 ? most : 1);
        rc = read_rows(c, remote, some, ids + at, (char *)to + at * row);
    }
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "rows of variable %s", shard->name);
}

ch_status ch__cut_read_marks(const ch_cut *c, ch_var *shard, ch_tensor **out)
{
    const ch_plan_variable *remote = NULL;
    ch_status               rc = find_shard(c, shard, &remote);

    if (rc == CH_OK)
        rc = ch__remote_read_marks(c->coord, remote, c->snapshot, out);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "marks of variable %s", shard->name);
}

int ch__cut_server_of(const ch_var *shard)
{
    const ch_ps_var *s = shard->storage;

    if (ch__ps_of(shard->strategy) == NULL || ch__ps_is_per_worker(shard) ||
        s->on_servers.n_shards != 1)
        return -1;
    return s->at[0].server;
}

int ch__cut_count_servers(const ch_strategy *st)
{
    const ch_ps *ps = ch__ps_of(st);

    return ps != NULL ? ps->n_servers : 0;
}

int64_t ch__cut_function_runs(ch_strategy *st, const ch_function *f)
{
    const ch_ps *ps = ch__ps_of(st);

    return ch_function_runs(f) - (ps != NULL ? ch__coord_count_queued(ps->coord, f) : 0);
}

bool ch__cut_divides_round(ch_strategy *st)
{
    const ch_ps *ps = ch__ps_of(st);

    return ps != NULL && ch__coord_is_in_mid_round(ps->coord);
}

void ch__cut_free_memory(ch_strategy *st)
{
    const ch_ps *ps = ch__ps_of(st);

    if (ps != NULL)
        ch__coord_unreserve(ps->coord);
}

void ch__cut_name_checkpoint(ch_strategy *st, const char *path)
{
    const ch_ps *ps = ch__ps_of(st);

    if (ps != NULL)
        ch__coord_name_checkpoint(ps->coord, path);
}

void ch__cut_end_marks(ch_strategy *st)
{
    const ch_ps *ps = ch__ps_of(st);

    if (ps != NULL)
        ch__coord_end_marks(ps->coord);
}
