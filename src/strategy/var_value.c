/* strategy/var_value.c -- variables outside steps: reading, setting, printing them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernel/accumulate.h"
#include "strategy/strategy.h"
#include "tensor/print.h"
#include "tensor/view.h"

/* ---- reading ---- */

/* The copy on the current device, or else the first. */
static ch_tensor *copy_here(const ch_var *v)
{
    for (int i = 0; i < v->n_copies; i++)
        if (ch_tensor_device(v->copy[i]) == ch_device_current())
            return v->copy[i];
    return v->copy[0];
}

/* What copies that differ on purpose are together. */
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
    ch__free(data);
    return CH_OK;
}

ch_status ch__var_check_outside(const ch_var *v, const char *instead)
{
    ch_strategy *st = v->strategy;

    if (ch__run_is_here())
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "variable %s: a step is running on this thread; a host function is given "
            "what it needs, and gives what is to be assigned",
            v->name);
    return ch__strategy_cross(&st, v->name, instead);
}

ch_status ch__var_get(ch_var *v, ch_tensor **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch__var_check_read(v);

    if (v->away != NULL)
        return v->strategy->away_vars->get(v, out);
    if (rc == CH_OK)
        rc = ch_tensor_new(v->dtype, v->shape, &t);
    if (rc == CH_OK && ch__var_is_own(v) && v->aggregation != CH_AGGREGATE_FIRST)
        rc = combine_copies(v, t);
    else if (rc == CH_OK)
        rc = ch_tensor_copy(ch__var_is_own(v) ? v->copy[0] : copy_here(v), t);
    if (rc != CH_OK) {
        ch_tensor_unref(t);
        return rc;
    }
    *out = t;
    return CH_OK;
}

ch_status ch__var_borrow(void *owner, const ch_resource *r, ch_tensor **out)
{
    ch_var *v = r->key;

    (void)owner;
    if (v->away != NULL || ch__var_is_own(v))
        return ch__var_get(v, out);
    *out = ch_tensor_ref(v->copy[0]);
    return CH_OK;
}

/* Bytes are compared, because the program may write to a copy (ch_var_copies) without a call that could be noticed. */
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
    ch_status rc = ch__want_given("variable get", "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = ch__var_check_outside(v, "ch_var_read");
    return rc == CH_OK ? ch__var_get(v, out) : rc;
}

/* ---- changing ---- */

static ch_status check_value(const ch_var *v, const ch_tensor *value)
{
    char have[160] = "NULL", want[160];

    if (value != NULL && value->dtype == v->dtype && ch_shape_equal(value->shape, v->shape))
        return CH_OK;
    if (value != NULL)
        ch_tensor_spec_print(&(ch_tensor_spec){.dtype = value->dtype, .shape = value->shape},
                             have, sizeof(have));
    ch_tensor_spec_print(&(ch_tensor_spec){.dtype = v->dtype, .shape = v->shape}, want,
                         sizeof(want));
    return ch__fail(CH_INVALID_ARGUMENT, "variable %s: the value is %s, want %s", v->name, have,
                    want);
}

/* Through double a large one would lose its end. */
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

/* x in a type, of the floats. */
static double rounded(ch_dtype dtype, double x)
{
    double room;

    ch__store(dtype, &room, x);
    return ch__load(dtype, &room);
}

/* Copy i's share of x: all have the same, but the last what is missing when those before it are added up as
 * they are read. That is at least half of x (but of one that is not finite), so the difference is exact. */
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

/* Copy i's share of a value: they add up to it. Of integers the first ones get what does not divide. */
static void set_share(const ch_var *v, const ch_tensor *value, int i)
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

static ch_status set_copies(ch_var *v, ch_tensor *value)
{
    bool       shares = ch__var_is_own(v) && v->aggregation == CH_AGGREGATE_SUM;
    ch_tensor *whole = NULL;
    ch_status  rc = ch_tensor_contiguous(value, &whole);

    if (rc == CH_OK && v->away != NULL)
        rc = v->strategy->away_vars->set(v, whole);
    for (int i = 0; v->away == NULL && i < v->n_copies && rc == CH_OK; i++)
        if (shares)
            set_share(v, whole, i);
        else
            rc = ch_tensor_copy(whole, v->copy[i]);
    ch_tensor_unref(whole);
    return rc;
}

/* What a follower is when its leader is set to `value`: that, but where its own, rounded, is
 * the same, it keeps its digits. So it does not matter in which order the two are restored. */
static ch_status follow(ch_var *f, ch_tensor *value)
{
    size_t     bytes = ch_dtype_bytes(value->dtype), wide = ch_dtype_bytes(f->dtype);
    ch_tensor *now = NULL, *rounded = NULL, *whole = NULL, *next = NULL;
    ch_status  rc = ch__var_get(f, &now);

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
    if (rc == CH_OK)
        rc = set_copies(f, next);
    ch_tensor_unref(now);
    ch_tensor_unref(rounded);
    ch_tensor_unref(whole);
    ch_tensor_unref(next);
    return rc;
}

ch_status ch__var_set(ch_var *v, ch_tensor *value)
{
    ch_status rc = check_value(v, value);

    if (rc == CH_OK)
        rc = set_copies(v, value);
    for (ch_var *f = v->follower; f != NULL && rc == CH_OK; f = f->next_follower)
        rc = follow(f, value);
    return rc;
}

ch_status ch_var_set(ch_var *v, ch_tensor *value)
{
    ch_status rc = v != NULL ? ch__var_check_outside(v, "ch_var_assign")
                             : ch__fail(CH_INVALID_ARGUMENT, "a variable to set is NULL");

    return rc == CH_OK ? ch__var_set(v, value) : rc;
}

/* copy += sign * delta. A sum of two f32 in double is rounded once. */
static ch_status add_to(ch_tensor *copy, ch_tensor *delta, int sign)
{
    size_t     bytes = ch_dtype_bytes(copy->dtype);
    ch_tensor *whole = NULL;
    ch_status  rc = ch_tensor_contiguous(delta, &whole);

    for (int64_t k = 0; rc == CH_OK && k < ch_tensor_count(whole); k++) {
        const char *from = (const char *)whole->data + (size_t)k * bytes;
        char       *to = (char *)copy->data + (size_t)k * bytes;

        if (ch_dtype_is_float(copy->dtype))
            ch__store(copy->dtype, to,
                      ch__load(copy->dtype, to) + sign * ch__load(copy->dtype, from));
        else
            store_integer(copy->dtype, to,
                          load_integer(copy->dtype, to) +
                              sign * load_integer(copy->dtype, from));
    }
    ch_tensor_unref(whole);
    return rc;
}

static ch_status change_away(ch_var *v, ch_tensor *delta, int sign)
{
    ch_tensor *now = NULL;
    ch_status  rc = v->strategy->away_vars->add(v, delta, sign < 0);

    if (rc == CH_OK && v->follower != NULL)
        rc = v->strategy->away_vars->get(v, &now);
    for (ch_var *f = v->follower; f != NULL && rc == CH_OK; f = f->next_follower)
        rc = follow(f, now);
    ch_tensor_unref(now);
    return rc;
}

/* Each copy, and each follower, from what it is. */
static ch_status change(ch_var *v, ch_tensor *delta, int sign, const char *name)
{
    ch_status rc = v != NULL ? ch__var_check_outside(v, "ch_var_assign_add")
                             : ch__fail(CH_INVALID_ARGUMENT, "a variable to change is NULL");

    if (rc == CH_OK)
        rc = check_value(v, delta);
    if (rc == CH_OK && !ch__can_accumulate(v->dtype))
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s of %s: %s cannot be added", name, v->name,
                      ch_dtype_name(v->dtype));
    if (rc == CH_OK)
        rc = ch__var_check_change(v, name);
    if (rc == CH_OK && v->away != NULL)
        return change_away(v, delta, sign);
    for (int i = 0; v != NULL && i < v->n_copies && rc == CH_OK; i++)
        rc = add_to(v->copy[i], delta, sign);
    for (ch_var *f = v != NULL ? v->follower : NULL; f != NULL && rc == CH_OK;
         f = f->next_follower)
        rc = follow(f, v->copy[0]);
    return rc;
}

ch_status ch_var_add(ch_var *v, ch_tensor *delta)
{
    return change(v, delta, 1, "variable add");
}

ch_status ch_var_sub(ch_var *v, ch_tensor *delta)
{
    return change(v, delta, -1, "variable sub");
}

/* What it is now: the copy itself is not in this process. */
/* The last reference to a fetched copy is gone, and so is its hold on the variable. */
static void drop_fetched(ch_tensor *t)
{
    ch_var_unref(t->home);
    ch__buffer_unref(t->buffer);
    ch__free(t);
}

ch_var *ch__var_fetched_as(const ch_tensor *t)
{
    return t->recycle == drop_fetched ? t->home : NULL;
}

/* A variable of another task is fetched. The tensor keeps the variable, of which it is a copy. */
static ch_status copy_of_away(ch_var *v, ch_value **out)
{
    ch_tensor *t = NULL, *copy = NULL;
    ch_status  rc = v->strategy->away_vars->get(v, &t);

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

ch_status ch_var_copies(ch_var *v, ch_value **out)
{
    ch_status rc = ch__want_given("variable copies", "the variable", v, "out", out);

    if (rc == CH_OK && v->away != NULL)
        return copy_of_away(v, out);
    if (rc != CH_OK)
        return rc;
    return ch_value_new(v->n_copies == 1    ? CH_PLAIN
                        : ch__var_is_own(v) ? CH_PER_REPLICA
                                            : CH_MIRRORED,
                        v->n_copies, v->copy, out);
}

/* ---- as text ---- */

/* The name of copy i: "w", "w/replica_1". */
static void print_copy(ch_var *v, int i, ch_text *o)
{
    ch_tensor *away = NULL;

    ch__text_add(o, "%s", v->name);
    if (i > 0)
        ch__text_add(o, "/replica_%d", i);
    ch__text_add(o, " ");
    if (v->away == NULL)
        ch__text_tensor(o, v->copy[i]);
    else if (v->strategy->away_vars->get(v, &away) == CH_OK)
        ch__text_tensor(o, away);
    else
        ch__text_add(o, "on %s, which does not answer", ch_var_device(v));
    ch_tensor_unref(away);
}

int ch_var_print(ch_var *v, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    if (v == NULL) {
        ch__text_add(&o, "NULL");
    } else if (v->n_copies == 1) {
        print_copy(v, 0, &o);
    } else {
        ch__text_add(&o, "%s:{", ch__var_is_own(v) ? "SyncOnReadVariable" : "MirroredVariable");
        for (int i = 0; i < v->n_copies; i++) {
            ch__text_add(&o, "%s\n  %d: ", i > 0 ? "," : "", i);
            print_copy(v, i, &o);
        }
        ch__text_add(&o, "\n}");
    }
    return ch__text_length(&o);
}
