/* strategy/var_cores.c -- storage of variables under strategies whose replicas have several
 * logical devices (cores).
 *
 * Implements ch_var_ops with a tile for each member: copy[r * n_cores + c] is the part of the
 * value that core c of local replica r stores, on the device of that core, or NULL if v->tiles
 * gives it none. Every replica has a value of its own. The values of the replicas are equal
 * unless the variable is CH_SYNC_ON_READ; then the value outside steps is their aggregate, as
 * in var_local.c. The value of the variable is always the whole value.
 *
 * Invariants:
 *   1. The cores of a replica with the same part have equal tiles.
 *   2. A read or write copies between the caller's tensor and the tiles. Only these functions
 *      need memory for a whole value: `create`, if an initial value is given or has no parts,
 *      and reads and writes of variables that are CH_SYNC_ON_READ, which are small.
 *
 * Nothing here is locked: if several threads use a variable, the caller must lock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernel/init.h"
#include "kernel/rows.h"
#include "strategy/strategy.h"
#include "strategy/var_copies.h"
#include "tensor/device.h"

/* ---- tiles ---- */

static ch_tensor *tile_of(const ch_var *v, int replica, int core)
{
    return v->copy[replica * v->tiles->n_cores + core];
}

/* Returns true if core c has a part that no lower core has. These parts make the value. */
static bool is_first(const ch_core_layout *l, int core)
{
    if (!ch__layout_has(l, core))
        return false;
    for (int c = 0; c < core; c++)
        if (ch__layout_has(l, c) && ch__layout_same_part(l, c, core))
            return false;
    return true;
}

static void whole_region(const ch_var *v, ch_region *out)
{
    ch__layout_region((ch_layout){.parts = {0}}, v->shape, 0, out);
}

/* Sets *view to a view of the elements of the region `part` in a tensor that holds the region
 * `of`. */
static ch_status view_of(ch_tensor *t, const ch_region *of, const ch_region *part,
                         ch_tensor **view)
{
    ch_region inside = *part;

    for (int k = 0; k < t->shape.rank; k++)
        inside.begin[k] -= of->begin[k];
    return ch__tensor_region(t, &inside, view);
}

/* Copies the elements that two regions of a variable share. */
static ch_status copy_overlap(ch_tensor *from, const ch_region *at_from, ch_tensor *to,
                              const ch_region *at_to)
{
    ch_tensor *source = NULL, *target = NULL;
    ch_region  both;
    ch_status  rc;

    if (!ch__region_intersect(at_from, at_to, to->shape.rank, &both))
        return CH_OK;
    rc = view_of(from, at_from, &both, &source);
    if (rc == CH_OK)
        rc = view_of(to, at_to, &both, &target);
    if (rc == CH_OK)
        rc = ch_tensor_copy(source, target);
    ch_tensor_unref(source);
    ch_tensor_unref(target);
    return rc;
}

/* Copies a region of a replica's value to a tensor. */
static ch_status read_replica(const ch_var *v, int replica, const ch_region *region,
                              ch_tensor *to)
{
    ch_region at;
    ch_status rc = CH_OK;

    for (int c = 0; c < v->tiles->n_cores && rc == CH_OK; c++)
        if (is_first(v->tiles, c) && ch__core_region(v->tiles, v->shape, c, &at))
            rc = copy_overlap(tile_of(v, replica, c), &at, to, region);
    return rc;
}

/* Copies the value of a region to the tiles of a replica. */
static ch_status write_replica(const ch_var *v, int replica, const ch_region *region,
                               ch_tensor *value)
{
    ch_region at;
    ch_status rc = CH_OK;

    for (int c = 0; c < v->tiles->n_cores && rc == CH_OK; c++)
        if (ch__core_region(v->tiles, v->shape, c, &at))
            rc = copy_overlap(value, region, tile_of(v, replica, c), &at);
    return rc;
}

/* Copies the tiles of the lowest cores with a part to all other members with the part. */
static ch_status spread_tiles(const ch_var *v)
{
    const ch_core_layout *l = v->tiles;
    ch_status             rc = CH_OK;

    for (int m = 0; m < v->n_copies * l->n_cores && rc == CH_OK; m++) {
        int c = m % l->n_cores, first = 0;

        if (!ch__layout_has(l, c))
            continue;
        while (!ch__layout_has(l, first) || !ch__layout_same_part(l, first, c))
            first++;
        if (m != first)
            rc = ch_tensor_copy(v->copy[first], v->copy[m]);
    }
    return rc;
}

/* ---- allocation ---- */

static ch_status new_tiles(const ch_strategy *st, const ch_var *v, const ch_core_layout *l,
                           ch_tensor **tile)
{
    ch_device *const *device;
    ch_status         rc = ch__strategy_devices(st, &device);

    for (int m = 0; m < v->n_copies * l->n_cores && rc == CH_OK; m++) {
        ch_shape  shape = v->shape;
        ch_region at;

        if (!ch__core_region(l, v->shape, m % l->n_cores, &at))
            continue;
        for (int k = 0; k < shape.rank; k++)
            shape.dim[k] = at.size[k];
        rc = ch__copy_new(v, device[m], shape, &tile[m]);
    }
    return rc;
}

/* Computes the initial value part by part. */
static ch_status init_parts(const ch_var *v, const ch_var_spec *spec)
{
    ch_region at;
    ch_status rc = ch__init_check(&spec->init, v->dtype, v->shape);

    for (int c = 0; c < v->tiles->n_cores && rc == CH_OK; c++)
        if (is_first(v->tiles, c) && ch__core_region(v->tiles, v->shape, c, &at))
            ch__init_part(&spec->init, spec->name, v->shape, at.begin, v->copy[c]);
    return rc == CH_OK ? spread_tiles(v) : rc;
}

static ch_status init_whole(const ch_var *v, const ch_var_spec *spec)
{
    ch_tensor *initial = NULL;
    ch_region  whole;
    ch_status  rc = ch__var_initial(spec, &initial);

    whole_region(v, &whole);
    for (int r = 0; r < v->n_copies && rc == CH_OK; r++)
        rc = write_replica(v, r, &whole, initial);
    ch_tensor_unref(initial);
    return rc;
}

static ch_status create(ch_strategy *st, ch_var *v, const ch_var_spec *spec)
{
    ch_status rc = ch__copies_check_sync(st, v, spec->sync);

    if (rc == CH_OK && (ch__layout_parts(v->layout) > 1 || v->n_copies != st->n_local))
        rc =
            ch__fail(CH_UNIMPLEMENTED,
                     "%s places it in %d parts and %d copies; if replicas have several logical "
                     "devices, a variable has a copy for each replica (ch_strategy_ops.place)",
                     st->label, ch__layout_parts(v->layout), v->n_copies);
    if (rc == CH_OK)
        rc = new_tiles(st, v, v->tiles, v->copy);
    if (rc != CH_OK)
        return rc;
    if (spec->initial == NULL && spec->init.kind == CH_INIT_ZEROS) /* as new memory */
        return ch__init_check(&spec->init, v->dtype, v->shape);
    return spec->initial == NULL && ch__init_has_parts(&spec->init) ? init_parts(v, spec)
                                                                    : init_whole(v, spec);
}

static void free_tiles(ch_var *v)
{
    for (int m = 0; m < ch__var_tensors(v); m++)
        ch__copy_free(v->copy[m]);
}

/* ---- reading ---- */

/* Returns the replica that the current device belongs to, or 0. */
static int nearest_replica(const ch_var *v)
{
    for (int m = 0; m < ch__var_tensors(v); m++)
        if (v->copy[m] != NULL && ch_tensor_device(v->copy[m]) == ch_device_current())
            return m / v->tiles->n_cores;
    return 0;
}

static ch_status new_for(const ch_var *v, const ch_region *region, ch_tensor **out)
{
    ch_shape shape = v->shape;

    for (int k = 0; k < shape.rank; k++)
        shape.dim[k] = region->size[k];
    return ch_tensor_new(v->dtype, shape, out);
}

ch_status ch__var_read_replica(ch_var *v, int replica, const ch_region *region, ch_tensor **out)
{
    ch_tensor *t = NULL;
    ch_region  at;
    ch_status  rc;

    whole_region(v, &at);
    if (region != NULL)
        at = *region;
    rc = new_for(v, &at, &t);
    if (rc == CH_OK)
        rc = read_replica(v, replica, &at, t);
    if (rc == CH_OK)
        *out = t;
    else
        ch_tensor_unref(t);
    return rc;
}

/* Reads a region of the sum or the mean of the values of the replicas. */
static ch_status read_aggregate(ch_var *v, const ch_region *region, ch_tensor **out)
{
    ch_tensor **each = ch__calloc((size_t)v->n_copies, sizeof(ch_tensor *));
    ch_tensor  *t = NULL;
    ch_status   rc = each == NULL ? ch__fail_memory("the value of a variable") : CH_OK;

    for (int r = 0; r < v->n_copies && rc == CH_OK; r++)
        rc = ch__var_read_replica(v, r, region, &each[r]);
    if (rc == CH_OK)
        rc = ch_tensor_new(v->dtype, each[0]->shape, &t);
    if (rc == CH_OK)
        rc = ch__copies_combine(v->aggregation, v->n_copies, each, t);
    for (int r = 0; each != NULL && r < v->n_copies; r++)
        ch_tensor_unref(each[r]);
    ch__free(each);
    if (rc == CH_OK)
        *out = t;
    else
        ch_tensor_unref(t);
    return rc;
}

static ch_status read_var(ch_var *v, const ch_region *region, ch_tensor **out)
{
    bool is_per_replica = ch__var_is_per_replica(v);

    if (is_per_replica && v->aggregation != CH_AGGREGATE_FIRST)
        return read_aggregate(v, region, out);
    return ch__var_read_replica(v, is_per_replica ? 0 : nearest_replica(v), region, out);
}

/* Copies the rows `ids` of the tile `from` to their places in `rows`. `at` is the region of the
 * tile. */
static void gather_from(const ch_var *v, const ch_tensor *from, const ch_region *at,
                        const ch_tensor *ids, ch_tensor *rows)
{
    const int64_t *id = (const int64_t *)ids->data;
    size_t         each = ch_dtype_bytes(v->dtype);
    ch_shape       row = v->shape, part = from->shape;
    ch_region      in_row = *at;
    ch_region_runs runs;
    int64_t        row_count, part_count;

    row.dim[0] = part.dim[0] = 1;
    in_row.begin[0] = 0;
    row_count = ch_shape_count(row);
    part_count = ch_shape_count(part);
    if (part_count == 0)
        return;
    ch__region_runs(in_row.begin, part, row, &runs);
    for (int64_t i = 0; i < ids->shape.dim[0]; i++) {
        const char *source;

        if (id[i] < at->begin[0] || id[i] >= at->begin[0] + at->size[0])
            continue;
        source =
            (const char *)from->data + (size_t)((id[i] - at->begin[0]) * part_count) * each;
        for (int64_t k = 0; k < runs.n; k++)
            memcpy((char *)rows->data +
                       (size_t)(i * row_count + ch__region_run(&runs, k)) * each,
                   source + (size_t)(k * runs.length) * each, (size_t)runs.length * each);
    }
}

/* Reads rows of the aggregate of the replicas, which is small. */
static ch_status gather_aggregate(ch_var *v, const ch_tensor *ids, ch_tensor *rows)
{
    ch_tensor *whole = NULL;
    ch_region  at;
    ch_status  rc = read_var(v, NULL, &whole);

    whole_region(v, &at);
    if (rc == CH_OK)
        gather_from(v, whole, &at, ids, rows);
    ch_tensor_unref(whole);
    return rc;
}

static ch_status gather(ch_var *v, ch_tensor *const *ids, ch_tensor **rows)
{
    ch_shape  shape = v->shape;
    int       replica = nearest_replica(v);
    ch_region at;
    ch_status rc;

    if (ids[0] == NULL)
        return CH_OK;
    shape.dim[0] = ids[0]->shape.dim[0];
    rc = ch_tensor_new(v->dtype, shape, &rows[0]);
    if (rc == CH_OK && ch__var_is_per_replica(v))
        return gather_aggregate(v, ids[0], rows[0]);
    for (int c = 0; c < v->tiles->n_cores && rc == CH_OK; c++)
        if (is_first(v->tiles, c) && ch__core_region(v->tiles, v->shape, c, &at))
            gather_from(v, tile_of(v, replica, c), &at, ids[0], rows[0]);
    return rc;
}

/* There are no workers: this process is the only one, so the tuple has one element. */
static ch_status read_workers(ch_var *v, ch_tuple **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch__var_get(v, &t);

    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

/* ---- writing ---- */

/* Writes the whole value, or its shares if the values of the replicas are summed when they are
 * read. */
static ch_status write_whole(ch_var *v, ch_tensor *value)
{
    bool       shares = ch__var_is_per_replica(v) && v->aggregation == CH_AGGREGATE_SUM;
    ch_tensor *share = NULL;
    ch_region  whole;
    ch_status  rc = shares ? ch_tensor_new(v->dtype, v->shape, &share) : CH_OK;

    whole_region(v, &whole);
    for (int r = 0; r < v->n_copies && rc == CH_OK; r++) {
        if (shares)
            ch__copies_share(value, v->n_copies, r, share);
        rc = write_replica(v, r, &whole, shares ? share : value);
    }
    ch_tensor_unref(share);
    return rc;
}

/* Writes a region of a variable whose replicas have their own values: the whole aggregate gets
 * new shares. */
static ch_status write_region_of_aggregate(ch_var *v, const ch_region *region, ch_tensor *value)
{
    ch_tensor *now = NULL;
    ch_region  whole;
    ch_status  rc = read_var(v, NULL, &now);

    whole_region(v, &whole);
    if (rc == CH_OK)
        rc = copy_overlap(value, region, now, &whole);
    if (rc == CH_OK)
        rc = write_whole(v, now);
    ch_tensor_unref(now);
    return rc;
}

static ch_status write_var(ch_var *v, const ch_region *region, ch_tensor *value)
{
    ch_status rc = CH_OK;

    if (region == NULL)
        return write_whole(v, value);
    if (ch__var_is_per_replica(v))
        return write_region_of_aggregate(v, region, value);
    for (int r = 0; r < v->n_copies && rc == CH_OK; r++)
        rc = write_replica(v, r, region, value);
    return rc;
}

/* ---- writing from a source ---- */

/* A value on its way from a source to the first tile with each part. Threads take its pieces in
 * turn. */
typedef struct reading {
    const ch_var          *v;
    const ch_value_source *from;
    pthread_mutex_t        lock;
    int                    core; /* whose tile is being read; under the lock */
    int64_t                done; /* elements of the tile that were taken; under the lock */
    ch_fault               fault;
} reading;

/* Takes the next piece, and sets *to to its memory. Returns false if there is none, or after an
 * error. */
static bool take_piece(reading *r, ch_region *piece, char **to)
{
    const ch_var *v = r->v;
    bool          has_piece = false;

    pthread_mutex_lock(&r->lock);
    while (!has_piece && r->core < v->tiles->n_cores && !ch__fault_is_set(&r->fault)) {
        ch_region at;

        if (is_first(v->tiles, r->core) && ch__core_region(v->tiles, v->shape, r->core, &at) &&
            r->done < ch__region_count(&at, v->shape.rank)) {
            *to = v->copy[r->core]->data + (size_t)r->done * ch_dtype_bytes(v->dtype);
            r->done += ch__region_piece(&at, v->shape.rank, ch__piece_elements(v->dtype),
                                        r->done, piece);
            has_piece = true;
        } else {
            r->core++;
            r->done = 0;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return has_piece;
}

static void read_pieces(void *arg)
{
    reading  *r = arg;
    ch_region piece;
    char     *to;

    while (take_piece(r, &piece, &to)) {
        ch_status rc = r->from->read(r->from->arg, &piece, to);

        if (rc != CH_OK)
            ch__fault_record(&r->fault, rc, -1, NULL);
    }
}

/* Reads a value of more than one piece on all threads of the strategy's devices. Inside a run
 * these devices are held, so the thread of the run reads all pieces. */
static ch_status read_tiles(ch_var *v, const ch_value_source *from)
{
    reading    r = {.v = v, .from = from};
    ch_device *device[CH_MAX_CORES];
    int        n = 0;
    ch_status  rc = CH_OK;

    for (int c = 0; c < v->tiles->n_cores; c++)
        if (v->copy[c] != NULL)
            device[n++] = ch_tensor_device(v->copy[c]);
    pthread_mutex_init(&r.lock, NULL);
    if (ch_shape_count(v->shape) > ch__piece_elements(v->dtype) && !ch__run_is_on_thread())
        rc = ch__devices_share_work(n, device, read_pieces, &r);
    else
        read_pieces(&r);
    pthread_mutex_destroy(&r.lock);
    if (rc == CH_OK)
        rc = ch__fault_raise(&r.fault);
    return rc == CH_OK ? spread_tiles(v) : rc;
}

static ch_status write_from(ch_var *v, const ch_value_source *from)
{
    ch_tensor *value = NULL;
    ch_region  whole;
    ch_status  rc;

    if (!ch__var_is_per_replica(v))
        return read_tiles(v, from);
    whole_region(v, &whole);
    rc = ch_tensor_new(v->dtype, v->shape, &value);
    if (rc == CH_OK && ch_shape_count(v->shape) > 0)
        rc = from->read(from->arg, &whole, value->data);
    if (rc == CH_OK)
        rc = write_whole(v, value);
    ch_tensor_unref(value);
    return rc;
}

/* ---- adding and copying ---- */

static ch_status add_to_tile(ch_tensor *tile, const ch_region *at, ch_tensor *delta,
                             bool subtract)
{
    ch_tensor *view = NULL, *part = NULL;
    ch_status  rc = ch__tensor_region(delta, at, &view);

    if (rc == CH_OK)
        rc = ch_tensor_contiguous(view, &part);
    if (rc == CH_OK)
        ch__copy_add(tile, part, subtract);
    ch_tensor_unref(view);
    ch_tensor_unref(part);
    return rc;
}

static ch_status add(ch_var *v, ch_tensor *delta, bool subtract)
{
    ch_region at;
    ch_status rc = CH_OK;

    for (int m = 0; m < ch__var_tensors(v) && rc == CH_OK; m++)
        if (ch__core_region(v->tiles, v->shape, m % v->tiles->n_cores, &at))
            rc = add_to_tile(v->copy[m], &at, delta, subtract);
    return rc;
}

/* Copies the value of each replica of `from` to tiles in the layout `l`. */
static ch_status fill_tiles(const ch_var *from, const ch_core_layout *l, ch_tensor *const *tile)
{
    ch_region at;
    ch_status rc = CH_OK;

    for (int m = 0; m < from->n_copies * l->n_cores && rc == CH_OK; m++)
        if (ch__core_region(l, from->shape, m % l->n_cores, &at))
            rc = read_replica(from, m / l->n_cores, &at, tile[m]);
    return rc;
}

static ch_status copy_var(ch_var *from, ch_var *to)
{
    return fill_tiles(from, to->tiles, to->copy);
}

/* ---- moving ---- */

/* Creates tiles as new_tiles does. If the limit of a device is exceeded, frees the workspaces
 * of earlier programs first. */
static ch_status make_room_for_tiles(const ch_var *v, const ch_core_layout *l, ch_tensor **tile)
{
    ch_device *const *device;
    ch_status         rc = new_tiles(v->strategy, v, l, tile);

    if (rc != CH_RESOURCE_EXHAUSTED || !ch__failed_at_limit())
        return rc;
    rc = ch__strategy_devices(v->strategy, &device);
    for (int m = 0; m < ch__var_tensors(v); m++) {
        ch__copy_free(tile[m]);
        tile[m] = NULL;
        if (rc == CH_OK)
            ch__device_workspace_free(device[m]);
    }
    return rc == CH_OK ? new_tiles(v->strategy, v, l, tile) : rc;
}

/* Replaces the tiles of a variable, which have left their devices. */
static ch_status replace_tiles(ch_var *v, const ch_core_layout *l)
{
    size_t          n = (size_t)ch__var_tensors(v);
    ch_tensor     **tile = ch__calloc(n, sizeof(ch_tensor *)), *before;
    ch_core_layout *own = ch__malloc(sizeof(*own));
    bool            is_replaced = false;
    ch_status       rc = tile == NULL || own == NULL ? ch__fail_memory("a variable") : CH_OK;

    if (rc == CH_OK)
        rc = make_room_for_tiles(v, l, tile);
    if (rc == CH_OK)
        rc = fill_tiles(v, l, tile);
    if (rc == CH_OK) {
        ch__layout_copy(l, own);
        pthread_mutex_lock(&v->strategy->lock);
        ch__free(v->tiles);
        v->tiles = own;
        own = NULL;
        for (size_t m = 0; m < n; m++) {
            before = v->copy[m];
            v->copy[m] = tile[m];
            tile[m] = before;
        }
        atomic_fetch_add(&v->strategy->generation, 1);
        pthread_mutex_unlock(&v->strategy->lock);
        is_replaced = true;
    }
    for (size_t m = 0; tile != NULL && m < n; m++)
        if (is_replaced)
            ch_tensor_unref(tile[m]);
        else
            ch__copy_free(tile[m]);
    ch__free(tile);
    ch__free(own);
    return rc;
}

/* The values go through host memory: all old tiles leave their devices before the first new
 * tile is created, so a device never needs room for both. */
ch_status ch__vars_set_tiles(int n, const ch_tile_move *move)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < n; i++)
        for (int m = 0; m < ch__var_tensors(move[i].var); m++)
            ch__copy_leave_device(move[i].var->copy[m]);
    for (int i = 0; i < n; i++) {
        if (rc == CH_OK)
            rc = replace_tiles(move[i].var, &move[i].to);
        for (int m = 0; rc != CH_OK && m < ch__var_tensors(move[i].var); m++)
            ch__copy_return_to_device(move[i].var->copy[m]);
    }
    return rc;
}

const ch_var_ops ch__var_cores = {.create = create,
                                  .free = free_tiles,
                                  .read = read_var,
                                  .write = write_var,
                                  .write_from = write_from,
                                  .add = add,
                                  .copy = copy_var,
                                  .gather = gather,
                                  .read_workers = read_workers};
