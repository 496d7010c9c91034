/* strategy/var_value.c -- variables outside steps: reads, writes, copies and text.
 *
 * Implements ch_var_get, ch_var_set, ch_var_add, ch_var_sub, ch_var_copies and ch_var_print on
 * top of ch_var_ops, and ch__var_write_from for checkpoints. Followers (master copies of 16-bit
 * variables) are updated after every change of their leader, except by ch__var_write_from. The
 * values are not synchronised with steps that run in other threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cohort/parameter_server.h"
#include "kernel/accumulate.h"
#include "strategy/strategy.h"
#include "tensor/print.h"

/* ---- reading ---- */

ch_status ch__var_check_outside(const ch_var *v, const char *instead)
{
    ch_strategy *st = v->strategy;

    if (ch__run_is_on_thread())
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "variable %s: a step is running on this thread; a host function must get values as "
            "inputs, and return the values to assign",
            v->name);
    return ch__strategy_check_cross(&st, v->name, instead);
}

ch_status ch__var_get(ch_var *v, ch_tensor **out)
{
    ch_status rc = ch__var_check_read(v);

    return rc == CH_OK ? v->strategy->var_ops->read(v, NULL, out) : rc;
}

/* Returns true if the snapshot has the current value. The bytes are compared, because the
 * program may write to a copy (ch_var_copies) without a call of the library. */
static bool is_current(const ch_var *v, const ch_tensor *snapshot)
{
    return snapshot != NULL &&
           memcmp(snapshot->data, v->copy[0]->data, ch_tensor_bytes(snapshot)) == 0;
}

ch_status ch__var_snapshot(ch_var *v, ch_tensor **out)
{
    pthread_mutex_t *lock = &v->strategy->lock;
    ch_tensor       *t, *before;
    ch_status        rc;

    pthread_mutex_lock(lock);
    t = ch_tensor_ref(v->snapshot);
    pthread_mutex_unlock(lock);
    if (is_current(v, t)) {
        *out = t;
        return CH_OK;
    }
    ch_tensor_unref(t);
    t = NULL;
    rc = ch__var_get(v, &t);
    if (rc != CH_OK)
        return rc;
    pthread_mutex_lock(lock);
    before = v->snapshot;
    v->snapshot = ch_tensor_ref(t);
    pthread_mutex_unlock(lock);
    ch_tensor_unref(before);
    *out = t;
    return CH_OK;
}

ch_status ch_var_get(ch_var *v, ch_tensor **out)
{
    ch_status rc = ch__check_not_null("variable get", "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = ch__var_check_outside(v, "ch_var_read");
    return rc == CH_OK ? ch__var_get(v, out) : rc;
}

ch_status ch_var_get_all(ch_var *v, ch_tuple **out)
{
    ch_status rc = ch__check_not_null("variable get_all", "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = ch__var_check_outside(v, "ch_var_read");
    if (rc == CH_OK && !v->per_worker)
        rc = ch__fail(
            CH_INVALID_ARGUMENT,
            "variable %s: it is not per_worker (ch_var_spec), so workers share one value; use "
            "ch_var_get",
            v->name);
    if (rc != CH_OK)
        return rc;
    rc = v->strategy->var_ops->read_workers(v, out);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

/* ---- changing ---- */

static void print_spec(ch_dtype dtype, ch_shape shape, char text[160])
{
    ch_tensor_spec_print(&(ch_tensor_spec){.dtype = dtype, .shape = shape}, text, 160);
}

/* Returns INVALID_ARGUMENT unless the value has v's dtype and shape. */
static ch_status check_value(const ch_var *v, const ch_tensor *value)
{
    char have[160] = "NULL", want[160];

    if (value != NULL && value->dtype == v->dtype && ch_shape_equal(value->shape, v->shape))
        return CH_OK;
    if (value != NULL)
        print_spec(value->dtype, value->shape, have);
    print_spec(v->dtype, v->shape, want);
    return ch__fail(CH_INVALID_ARGUMENT, "variable %s: the value is %s, want %s", v->name, have,
                    want);
}

static ch_status write_var(ch_var *v, ch_tensor *value)
{
    ch_tensor *whole = NULL;
    ch_status  rc = ch_tensor_contiguous(value, &whole);

    if (rc == CH_OK)
        rc = v->strategy->var_ops->write(v, NULL, whole);
    ch_tensor_unref(whole);
    return rc;
}

/* An element is not changed if the follower's element, rounded to the leader's dtype, already
 * equals the new value. So it keeps its extra digits, and the order in which a program sets the
 * two does not matter. */
ch_status ch__var_follower_value(ch_var *f, const ch_region *region, ch_tensor *value,
                                 ch_tensor **out)
{
    size_t     bytes = ch_dtype_bytes(value->dtype), wide = ch_dtype_bytes(f->dtype);
    ch_tensor *now = NULL, *rounded = NULL, *whole = NULL, *next = NULL;
    ch_status  rc = f->strategy->var_ops->read(f, region, &now);

    if (rc == CH_OK)
        rc = ch__tensor_cast(now, value->dtype, &rounded);
    if (rc == CH_OK)
        rc = ch_tensor_contiguous(value, &whole);
    if (rc == CH_OK)
        rc = ch__tensor_cast(whole, f->dtype, &next);
    for (size_t i = 0; rc == CH_OK && i < (size_t)ch_tensor_count(now); i++)
        if (memcmp((char *)rounded->data + i * bytes, (char *)whole->data + i * bytes, bytes) ==
            0)
            memcpy((char *)next->data + i * wide, (char *)now->data + i * wide, wide);
    ch_tensor_unref(now);
    ch_tensor_unref(rounded);
    ch_tensor_unref(whole);
    if (rc == CH_OK)
        *out = next;
    else
        ch_tensor_unref(next);
    return rc;
}

/* Sets a region of a follower, or all of it if `region` is NULL, after that of its leader was
 * set to `value`. */
static ch_status update_follower(ch_var *f, const ch_region *region, ch_tensor *value)
{
    ch_tensor *next = NULL;
    ch_status  rc = ch__var_follower_value(f, region, value, &next);

    if (rc == CH_OK)
        rc = f->strategy->var_ops->write(f, region, next);
    ch_tensor_unref(next);
    return rc;
}

/* Updates all followers of v after a region of v was set to `value`. */
static ch_status update_followers(ch_var *v, const ch_region *region, ch_tensor *value)
{
    ch_status rc = CH_OK;

    for (ch_var *f = ch__var_next_follower(v, NULL); f != NULL; f = ch__var_next_follower(v, f))
        if (rc == CH_OK)
            rc = update_follower(f, region, value);
    return rc;
}

ch_status ch__var_update_followers(ch_var *v)
{
    ch_region whole, piece;
    int       rank = v->shape.rank;
    int64_t   n;
    ch_var   *follower = ch__var_next_follower(v, NULL);
    ch_status rc = CH_OK;

    if (follower == NULL)
        return CH_OK;
    ch_var_unref(follower);
    ch__layout_region((ch_layout){.parts = {0}}, v->shape, 0, &whole);
    n = ch__region_count(&whole, rank);
    for (int64_t done = 0; done < n && rc == CH_OK;) {
        ch_tensor *value = NULL;

        done += ch__region_piece(&whole, rank, ch__piece_elements(v->dtype), done, &piece);
        rc = v->strategy->var_ops->read(v, &piece, &value);
        if (rc == CH_OK)
            rc = update_followers(v, &piece, value);
        ch_tensor_unref(value);
    }
    return rc;
}

ch_status ch__var_check_source(const ch_var *v, const ch_value_source *from)
{
    char have[160], want[160];

    if (from->dtype != CH_STR && from->dtype == v->dtype &&
        ch_shape_equal(from->shape, v->shape))
        return CH_OK;
    print_spec(from->dtype, from->shape, have);
    print_spec(v->dtype, v->shape, want);
    return ch__fail(CH_INVALID_ARGUMENT,
                    "%s is %s, want %s; restore a checkpoint of the same model, or change the "
                    "variable",
                    from->name, have, v->dtype == CH_STR ? "numbers" : want);
}

ch_status ch__var_write_from(ch_var *v, const ch_value_source *from)
{
    ch_status rc = ch__var_check_source(v, from);

    if (rc == CH_OK)
        rc = v->strategy->var_ops->write_from(v, from);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

ch_status ch__var_set(ch_var *v, ch_tensor *value)
{
    ch_status rc = check_value(v, value);

    if (rc == CH_OK)
        rc = write_var(v, value);
    return rc == CH_OK ? update_followers(v, NULL, value) : rc;
}

ch_status ch_var_set(ch_var *v, ch_tensor *value)
{
    ch_status rc = v != NULL
                       ? ch__var_check_outside(v, "ch_var_assign")
                       : ch__fail(CH_INVALID_ARGUMENT, "variable set: the variable is NULL");

    return rc == CH_OK ? ch__var_set(v, value) : rc;
}

/* Adds to a variable, or subtracts from it. `name` is for messages. */
static ch_status change(ch_var *v, ch_tensor *delta, bool subtract, const char *name)
{
    ch_status rc = v != NULL
                       ? ch__var_check_outside(v, "ch_var_assign_add")
                       : ch__fail(CH_INVALID_ARGUMENT, "variable change: the variable is NULL");

    if (rc == CH_OK)
        rc = check_value(v, delta);
    if (rc == CH_OK && !ch__can_accumulate(v->dtype))
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s of %s: %s cannot be added", name, v->name,
                      ch_dtype_name(v->dtype));
    if (rc == CH_OK)
        rc = ch__var_check_change(v, name);
    if (rc == CH_OK)
        rc = v->strategy->var_ops->add(v, delta, subtract);
    ch_var    *follower = rc == CH_OK ? ch__var_next_follower(v, NULL) : NULL;
    ch_tensor *now = NULL;

    if (follower != NULL)
        rc = v->strategy->var_ops->read(v, NULL, &now);
    if (now != NULL)
        rc = update_followers(v, NULL, now);
    ch_tensor_unref(now);
    ch_var_unref(follower);
    return rc;
}

ch_status ch_var_add(ch_var *v, ch_tensor *delta)
{
    return change(v, delta, false, "variable add");
}

ch_status ch_var_sub(ch_var *v, ch_tensor *delta)
{
    return change(v, delta, true, "variable sub");
}

/* Frees a fetched tensor and releases its reference to the variable (ch_tensor.recycle). */
static void drop_fetched(ch_tensor *t)
{
    ch_var_unref(t->home);
    ch__buffer_unref(t->buffer);
    ch__free(t);
}

ch_var *ch__var_of_fetched(const ch_tensor *t)
{
    return t->recycle == drop_fetched ? t->home : NULL;
}

/* Reads a remote variable into a tensor that holds a reference to the variable, so that
 * ch__var_of_fetched finds it. */
static ch_status fetch_copy(ch_var *v, ch_value **out)
{
    ch_tensor *t = NULL, *copy = NULL;
    ch_status  rc = v->strategy->var_ops->read(v, NULL, &t);

    if (rc == CH_OK)
        rc = ch__tensor_view(t->buffer, t->dtype, t->shape, t->stride, t->data, &copy);
    if (rc == CH_OK) {
        copy->home = ch_var_ref(v);
        copy->recycle = drop_fetched;
        rc = ch_value_new(CH_PLAIN, 1, &copy, out);
    }
    ch_tensor_unref(copy);
    ch_tensor_unref(t);
    return rc;
}

/* Gives the copies of a variable that logical devices store. Each replica must have a logical
 * device with the whole value. */
static ch_status whole_tiles(ch_var *v, ch_value **out)
{
    const ch_core_layout *l = v->tiles;
    ch_tensor           **copy;
    int                   core = 0;
    ch_status             rc;

    for (int k = 0; k < l->rank; k++)
        if (l->parts[k] > 1)
            return ch__fail(CH_FAILED_PRECONDITION,
                            "variable %s: it is stored in tiles on the %d logical "
                            "devices of a replica; use ch_var_get_tile, or ch_var_get for the "
                            "whole value",
                            v->name, l->n_cores);
    while (!ch__layout_has(l, core))
        core++;
    copy = ch__calloc((size_t)v->n_copies, sizeof(ch_tensor *));
    if (copy == NULL)
        return ch__fail_memory("the copies of a variable");
    for (int r = 0; r < v->n_copies; r++)
        copy[r] = v->copy[r * l->n_cores + core];
    rc = ch_value_new(v->n_copies == 1            ? CH_PLAIN
                      : ch__var_is_per_replica(v) ? CH_PER_REPLICA
                                                  : CH_MIRRORED,
                      v->n_copies, copy, out);
    ch__free(copy);
    return rc;
}

ch_status ch__var_copies(ch_var *v, ch_value **out)
{
    if (!ch__var_is_local(v))
        return fetch_copy(v, out);
    if (v->tiles != NULL)
        return whole_tiles(v, out);
    return ch_value_new(v->n_copies == 1            ? CH_PLAIN
                        : ch__var_is_per_replica(v) ? CH_PER_REPLICA
                                                    : CH_MIRRORED,
                        v->n_copies, v->copy, out);
}

ch_status ch_var_copies(ch_var *v, ch_value **out)
{
    ch_status rc = ch__check_not_null("ch_var_copies", "the variable", v, "out", out);

    if (rc != CH_OK)
        return rc;
    atomic_store(&v->is_exposed, true);
    rc = ch__var_copies(v, out);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "ch_var_copies");
}

/* ---- text ---- */

/* Prints the name of copy i: "w", "w/replica_1". If all logical devices of a replica have the
 * copy together, "w/r:0", "w/r:1". */
static void print_name(const ch_var *v, int i, ch_text *o)
{
    ch__text_add(o, "%s", v->name);
    if (v->tiles != NULL && !v->strategy->parts.defaults_to_device_0)
        ch__text_add(o, "/r:%d", i);
    else if (i > 0)
        ch__text_add(o, "/replica_%d", i);
}

/* Prints copy i with its name. */
static void print_copy(ch_var *v, int i, ch_text *o)
{
    ch_tensor *fetched = NULL;

    print_name(v, i, o);
    ch__text_add(o, " ");
    if (v->tiles == NULL && ch__var_is_local(v))
        ch__text_tensor(o, v->copy[i]);
    else if ((v->tiles != NULL ? ch__var_read_replica(v, i, NULL, &fetched)
                               : v->strategy->var_ops->read(v, NULL, &fetched)) == CH_OK)
        ch__text_tensor(o, fetched);
    else
        ch__text_add(o, "on %s, which does not reply", ch_var_device(v));
    ch_tensor_unref(fetched);
}

int ch_var_print(ch_var *v, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    if (v == NULL) {
        ch__text_add(&o, "NULL");
    } else if (v->n_copies == 1) {
        print_copy(v, 0, &o);
    } else {
        ch__text_add(&o, "%s:{",
                     ch__var_is_per_replica(v) ? "SyncOnReadVariable" : "MirroredVariable");
        for (int i = 0; i < v->n_copies; i++) {
            ch__text_add(&o, "%s\n  %d: ", i > 0 ? "," : "", i);
            print_copy(v, i, &o);
        }
        ch__text_add(&o, "\n}");
    }
    return ch__text_length(&o);
}
