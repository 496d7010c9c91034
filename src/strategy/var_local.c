/* strategy/var_local.c -- storage of variables in this process.
 *
 * Implements ch_var_ops with a single tensor, or with a tensor for each local replica. The
 * copies of a variable are equal unless the variable is CH_SYNC_ON_READ. Then each replica has
 * its own value, and the value outside steps is the aggregate of the copies. Writing such a
 * variable gives the copies values with the written value as their aggregate. For a sum these
 * are shares of the value; otherwise every copy gets the value itself.
 *
 * A value from a source (a checkpoint) is read in pieces straight into the first copy, by all
 * threads of the devices if it is large.
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

/* ---- allocation ---- */

/* New memory is zero, so zeros are not computed and copied. */
static ch_status initial_of(const ch_var_spec *spec, ch_tensor **out)
{
    return spec->initial == NULL && spec->init.kind == CH_INIT_ZEROS
               ? ch__init_check(&spec->init, spec->dtype, spec->shape)
               : ch__var_initial(spec, out);
}

static ch_status create(ch_strategy *st, ch_var *v, const ch_var_spec *spec)
{
    ch_tensor *initial = NULL;
    ch_status  rc = ch__copies_check_sync(st, v, spec->sync);

    if (rc == CH_OK && ch__layout_parts(v->layout) > 1)
        rc = ch__fail(CH_UNIMPLEMENTED,
                      "%s divides it into %d parts; variables of this process have one part "
                      "(ch_strategy_ops.place)",
                      st->label, ch__layout_parts(v->layout));
    if (rc == CH_OK)
        rc = initial_of(spec, &initial);
    for (int i = 0; i < v->n_copies && rc == CH_OK; i++) {
        rc = ch__copy_new(v, v->layout.device[i], v->shape, &v->copy[i]);
        if (rc == CH_OK && initial != NULL)
            rc = ch_tensor_copy(initial, v->copy[i]);
    }
    ch_tensor_unref(initial);
    return rc;
}

static void free_copies(ch_var *v)
{
    for (int i = 0; i < v->n_copies; i++)
        ch__copy_free(v->copy[i]);
}

/* ---- reading ---- */

/* Returns the copy on the current device, or the first copy if there is none. */
static ch_tensor *nearest_copy(const ch_var *v)
{
    for (int i = 0; i < v->n_copies; i++)
        if (ch_tensor_device(v->copy[i]) == ch_device_current())
            return v->copy[i];
    return v->copy[0];
}

/* Copies the value of a variable into a new tensor on the current device. */
static ch_status read_whole(const ch_var *v, ch_tensor **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch_tensor_new(v->dtype, v->shape, &t);

    if (rc == CH_OK && ch__var_is_per_replica(v) && v->aggregation != CH_AGGREGATE_FIRST)
        rc = ch__copies_combine(v->aggregation, v->n_copies, v->copy, t);
    else if (rc == CH_OK)
        rc = ch_tensor_copy(ch__var_is_per_replica(v) ? v->copy[0] : nearest_copy(v), t);
    if (rc == CH_OK)
        *out = t;
    else
        ch_tensor_unref(t);
    return rc;
}

static ch_status read_region(ch_tensor *from, const ch_region *region, ch_tensor **out)
{
    ch_tensor *view = NULL, *t = NULL;
    ch_status  rc = ch__tensor_region(from, region, &view);

    if (rc == CH_OK)
        rc = ch_tensor_new(view->dtype, view->shape, &t);
    if (rc == CH_OK)
        rc = ch_tensor_copy(view, t);
    if (rc == CH_OK)
        *out = t;
    else
        ch_tensor_unref(t);
    ch_tensor_unref(view);
    return rc;
}

static ch_status read_var(ch_var *v, const ch_region *region, ch_tensor **out)
{
    ch_tensor *whole = NULL;
    ch_status  rc;

    if (region == NULL)
        return read_whole(v, out);
    if (!ch__var_is_per_replica(v))
        return read_region(nearest_copy(v), region, out);
    rc = read_whole(v, &whole); /* per-replica variables are small: counters and sums */
    if (rc == CH_OK)
        rc = read_region(whole, region, out);
    ch_tensor_unref(whole);
    return rc;
}

static ch_status gather(ch_var *v, ch_tensor *const *ids, ch_tensor **rows)
{
    ch_tensor *from = NULL;
    ch_shape   shape = v->shape;
    ch_status  rc = CH_OK;

    if (ids[0] == NULL)
        return CH_OK;
    if (ch__var_is_per_replica(v))
        rc = read_whole(v, &from);
    else
        from = ch_tensor_ref(nearest_copy(v));
    shape.dim[0] = ids[0]->shape.dim[0];
    if (rc == CH_OK)
        rc = ch_tensor_new(v->dtype, shape, &rows[0]);
    if (rc == CH_OK)
        ch__rows_gather(ch__ids(ids[0]->data, true), 0, shape.dim[0], from->data,
                        v->shape.dim[0], (int64_t)ch_tensor_bytes(from) / v->shape.dim[0],
                        rows[0]->data);
    ch_tensor_unref(from);
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

/* Writes the value to all copies, or its shares if the copies are summed when they are read. */
static ch_status write_whole(ch_var *v, ch_tensor *value)
{
    bool      shares = ch__var_is_per_replica(v) && v->aggregation == CH_AGGREGATE_SUM;
    ch_status rc = CH_OK;

    for (int i = 0; i < v->n_copies && rc == CH_OK; i++)
        if (shares)
            ch__copies_share(value, v->n_copies, i, v->copy[i]);
        else
            rc = ch_tensor_copy(value, v->copy[i]);
    return rc;
}

static ch_status write_region(ch_tensor *to, const ch_region *region, ch_tensor *value)
{
    ch_tensor *view = NULL;
    ch_status  rc = ch__tensor_region(to, region, &view);

    if (rc == CH_OK)
        rc = ch_tensor_copy(value, view);
    ch_tensor_unref(view);
    return rc;
}

static ch_status write_var(ch_var *v, const ch_region *region, ch_tensor *value)
{
    ch_tensor *whole = NULL;
    ch_status  rc = CH_OK;

    ch__row_marks_add_region(v->marks, region);
    if (region == NULL)
        return write_whole(v, value);
    if (!ch__var_is_per_replica(v)) {
        for (int i = 0; i < v->n_copies && rc == CH_OK; i++)
            rc = write_region(v->copy[i], region, value);
        return rc;
    }
    rc = read_whole(v, &whole);
    if (rc == CH_OK)
        rc = write_region(whole, region, value);
    if (rc == CH_OK)
        rc = write_whole(v, whole);
    ch_tensor_unref(whole);
    return rc;
}

/* ---- writing from a source ---- */

/* A value on its way from a source to all copies. Threads take its pieces in turn. */
typedef struct reading {
    const ch_var          *v;
    const ch_value_source *from;
    ch_region              whole;
    int64_t                n; /* elements */
    pthread_mutex_t        lock;
    int64_t                done; /* elements of the pieces that were taken; under the lock */
    ch_fault               fault;
} reading;

/* Takes the next piece. *at is its first element in the value. Returns false if there is none,
 * or after an error. */
static bool take_piece(reading *r, ch_region *piece, int64_t *at)
{
    bool has_piece = false;

    pthread_mutex_lock(&r->lock);
    *at = r->done;
    if (r->done < r->n && !ch__fault_is_set(&r->fault)) {
        r->done += ch__region_piece(&r->whole, r->v->shape.rank,
                                    ch__piece_elements(r->v->dtype), r->done, piece);
        has_piece = true;
    }
    pthread_mutex_unlock(&r->lock);
    return has_piece;
}

/* Reads pieces into the first copy, and copies them to the others. */
static void read_pieces(void *arg)
{
    reading      *r = arg;
    const ch_var *v = r->v;
    size_t        size = ch_dtype_bytes(v->dtype);
    ch_region     piece;
    int64_t       at;

    while (take_piece(r, &piece, &at)) {
        size_t    offset = (size_t)at * size;
        size_t    bytes = (size_t)ch__region_count(&piece, v->shape.rank) * size;
        ch_status rc = r->from->read(r->from->arg, &piece, v->copy[0]->data + offset);

        if (rc != CH_OK)
            ch__fault_record(&r->fault, rc, -1, NULL);
        for (int i = 1; i < v->n_copies && rc == CH_OK; i++)
            memcpy(v->copy[i]->data + offset, v->copy[0]->data + offset, bytes);
    }
}

/* Reads a value of more than one piece on all threads of v's devices. Inside a run these
 * devices are held, so the thread of the run reads all pieces. */
static ch_status read_copies(ch_var *v, const ch_value_source *from)
{
    reading   r = {.v = v, .from = from, .n = ch_shape_count(v->shape)};
    ch_status rc = CH_OK;

    ch__layout_region(v->layout, v->shape, 0, &r.whole);
    pthread_mutex_init(&r.lock, NULL);
    if (r.n > ch__piece_elements(v->dtype) && !ch__run_is_on_thread())
        rc = ch__devices_share_work(v->n_copies, v->layout.device, read_pieces, &r);
    else
        read_pieces(&r);
    pthread_mutex_destroy(&r.lock);
    return rc == CH_OK ? ch__fault_raise(&r.fault) : rc;
}

/* The copies of a per-replica variable get shares of the value, which needs memory of its own.
 * Such variables are small. */
static ch_status write_from(ch_var *v, const ch_value_source *from)
{
    ch_tensor *value = NULL;
    ch_region  whole;
    ch_status  rc;

    ch__row_marks_add_region(v->marks, NULL);
    if (!ch__var_is_per_replica(v))
        return read_copies(v, from);
    ch__layout_region(v->layout, v->shape, 0, &whole);
    rc = ch_tensor_new(v->dtype, v->shape, &value);
    if (rc == CH_OK && ch_shape_count(v->shape) > 0)
        rc = from->read(from->arg, &whole, value->data);
    if (rc == CH_OK)
        rc = write_whole(v, value);
    ch_tensor_unref(value);
    return rc;
}

/* ---- adding and copying ---- */

static ch_status add(ch_var *v, ch_tensor *delta, bool subtract)
{
    ch_tensor *whole = NULL;
    ch_status  rc = ch_tensor_contiguous(delta, &whole);

    ch__row_marks_add_region(v->marks, NULL);
    for (int i = 0; i < v->n_copies && rc == CH_OK; i++)
        ch__copy_add(v->copy[i], whole, subtract);
    ch_tensor_unref(whole);
    return rc;
}

static ch_status copy_var(ch_var *from, ch_var *to)
{
    ch_status rc = CH_OK;

    ch__row_marks_add_region(to->marks, NULL);
    for (int i = 0; i < from->n_copies && rc == CH_OK; i++)
        rc = ch_tensor_copy(from->copy[i], to->copy[i]);
    return rc;
}

const ch_var_ops ch__var_local = {.create = create,
                                  .free = free_copies,
                                  .read = read_var,
                                  .write = write_var,
                                  .write_from = write_from,
                                  .add = add,
                                  .copy = copy_var,
                                  .gather = gather,
                                  .read_workers = read_workers};
