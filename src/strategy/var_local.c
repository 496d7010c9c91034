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
#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernel/accumulate.h"
#include "kernel/init.h"
#include "kernel/rows.h"
#include "strategy/strategy.h"
#include "tensor/device.h"

/* ---- allocation ---- */

/* Rejects CH_SYNC_NONE for several copies. A single copy is always consistent, so every mode is
 * accepted for it. */
static ch_status check_sync(const ch_strategy *st, const ch_var *v, ch_sync sync)
{
    if (sync != CH_SYNC_NONE || v->n_copies == 1)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "NONE variable synchronization mode is not supported with %s", st->label);
}

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
    ch_status  rc = check_sync(st, v, spec->sync);

    if (rc == CH_OK && ch__layout_parts(v->layout) > 1)
        rc = ch__fail(CH_UNIMPLEMENTED,
                      "%s divides it into %d parts; variables of this process have one part "
                      "(ch_strategy_ops.place)",
                      st->label, ch__layout_parts(v->layout));
    if (rc == CH_OK)
        rc = initial_of(spec, &initial);
    for (int i = 0; i < v->n_copies && rc == CH_OK; i++) {
        rc = ch_tensor_new_on(v->layout.device[i], v->dtype, v->shape, &v->copy[i]);
        if (rc == CH_OK && initial != NULL)
            rc = ch_tensor_copy(initial, v->copy[i]);
    }
    ch_tensor_unref(initial);
    return rc;
}

static void free_copies(ch_var *v)
{
    for (int i = 0; i < v->n_copies; i++)
        ch_tensor_unref(v->copy[i]);
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

/* Sets the elements that are equal in all copies: their mean is that element, without the
 * rounding of a sum and a division. So a mean that was written reads back to the same bits. */
static void keep_equal(const ch_var *v, ch_tensor *mean)
{
    size_t bytes = ch_dtype_bytes(v->dtype), end = ch_tensor_bytes(mean);

    for (size_t at = 0; at < end; at += bytes) {
        const char *first = (const char *)v->copy[0]->data + at;
        int         i = 1;

        while (i < v->n_copies &&
               memcmp(first, (const char *)v->copy[i]->data + at, bytes) == 0)
            i++;
        if (i == v->n_copies)
            memcpy((char *)mean->data + at, first, bytes);
    }
}

/* Sums or averages the copies of a per-replica variable. */
static ch_status combine_copies(const ch_var *v, ch_tensor *out)
{
    const void **data = ch__calloc((size_t)v->n_copies, sizeof(*data));
    int          n = v->n_copies;

    if (data == NULL)
        return ch__fail_memory("the value of a variable");
    for (int i = 0; i < n; i++)
        data[i] = v->copy[i]->data;
    ch__accumulate(v->dtype, ch_tensor_count(out), n, data, out->data,
                   v->aggregation == CH_AGGREGATE_MEAN ? n : 1);
    if (v->aggregation == CH_AGGREGATE_MEAN)
        keep_equal(v, out);
    ch__free(data);
    return CH_OK;
}

/* Copies the value of a variable into a new tensor on the current device. */
static ch_status read_whole(const ch_var *v, ch_tensor **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch_tensor_new(v->dtype, v->shape, &t);

    if (rc == CH_OK && ch__var_is_per_replica(v) && v->aggregation != CH_AGGREGATE_FIRST)
        rc = combine_copies(v, t);
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
        ch__rows_gather((ch_ids){ids[0]->data, true}, 0, shape.dim[0], from->data,
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

/* Loads an integer. 8-byte integers are not converted to double, which would round large
 * values. */
static int64_t load_integer(ch_dtype dtype, const void *at)
{
    int64_t x = 0;

    if (ch_dtype_bytes(dtype) < sizeof(x))
        return (int64_t)ch__load(dtype, at);
    memcpy(&x, at, sizeof(x));
    return x;
}

static void store_integer(ch_dtype dtype, void *at, int64_t x)
{
    if (ch_dtype_bytes(dtype) < sizeof(x))
        ch__store(dtype, at, (double)x);
    else
        memcpy(at, &x, sizeof(x));
}

/* Returns x rounded to a float dtype. */
static double rounded(ch_dtype dtype, double x)
{
    double bytes;

    ch__store(dtype, &bytes, x);
    return ch__load(dtype, &bytes);
}

/* Returns the share of x for copy i of n. All shares are equal, except that the last is the
 * rest after the others were added in the order of a read. The rest is at least half of x, so
 * it is exact. If x is not finite, all shares are equal. */
static double share_of(ch_dtype dtype, double x, int n, int i)
{
    ch_dtype work = ch__dtype_is_half(dtype) ? CH_F32 : dtype;
    double   each = rounded(dtype, x / n), sum = each;

    if (i < n - 1 || !isfinite(x))
        return each;
    for (int k = 1; k < n - 1; k++)
        sum = rounded(work, sum + each);
    return x - sum;
}

/* Writes the shares of copy i; the shares of all copies add up to the value. If an integer is
 * not divisible by the number of copies, the first copies get 1 more. */
static void write_share(const ch_var *v, const ch_tensor *value, int i)
{
    size_t bytes = ch_dtype_bytes(v->dtype);
    int    n = v->n_copies;

    for (int64_t k = 0; k < ch_tensor_count(value); k++) {
        const char *from = (const char *)value->data + (size_t)k * bytes;
        char       *to = (char *)v->copy[i]->data + (size_t)k * bytes;

        if (ch_dtype_is_float(v->dtype)) {
            ch__store(v->dtype, to, share_of(v->dtype, ch__load(v->dtype, from), n, i));
        } else {
            int64_t x = load_integer(v->dtype, from), rest = (x % n + n) % n;

            store_integer(v->dtype, to, (x - rest) / n + (i < rest));
        }
    }
}

/* Writes the value to all copies, or its shares if the copies are summed when they are read. */
static ch_status write_whole(ch_var *v, ch_tensor *value)
{
    bool      shares = ch__var_is_per_replica(v) && v->aggregation == CH_AGGREGATE_SUM;
    ch_status rc = CH_OK;

    for (int i = 0; i < v->n_copies && rc == CH_OK; i++)
        if (shares)
            write_share(v, value, i);
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

/* Computes copy += sign * delta. Float sums are computed in double, so an f32 sum is rounded
 * once. */
static void add_to(ch_tensor *copy, const ch_tensor *delta, int sign)
{
    size_t bytes = ch_dtype_bytes(copy->dtype);

    for (int64_t k = 0; k < ch_tensor_count(delta); k++) {
        const char *from = (const char *)delta->data + (size_t)k * bytes;
        char       *to = (char *)copy->data + (size_t)k * bytes;

        if (ch_dtype_is_float(copy->dtype))
            ch__store(copy->dtype, to,
                      ch__load(copy->dtype, to) + sign * ch__load(copy->dtype, from));
        else
            store_integer(copy->dtype, to,
                          load_integer(copy->dtype, to) +
                              sign * load_integer(copy->dtype, from));
    }
}

static ch_status add(ch_var *v, ch_tensor *delta, bool subtract)
{
    ch_tensor *whole = NULL;
    ch_status  rc = ch_tensor_contiguous(delta, &whole);

    ch__row_marks_add_region(v->marks, NULL);
    for (int i = 0; i < v->n_copies && rc == CH_OK; i++)
        add_to(v->copy[i], whole, subtract ? -1 : 1);
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
