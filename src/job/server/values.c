/* job/server/values.c -- variables with copy on write, and snapshots (values.h).
 *
 * A value may be written in place only if the ch_server_var has the only reference to its
 * tensor and the tensor has the only reference to its buffer (is_private). Readers, snapshots
 * and replies on their way hold references. A write to a shared value copies it to a spare of
 * the variable, which is usually the value from before the last copy. If readers release
 * their references in time, the two buffers alternate and a write allocates nothing.
 *
 * A snapshot for a checkpoint is kept for long. A variable then has two spares: one is held by
 * that snapshot, the other alternates with the value. Spares are prepared in advance
 * (ch__values_reserve), because a copy to new memory takes several times as long, and the
 * server does not reply meanwhile.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/server/values.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernel/rows.h"

/* References to the values of all variables at a moment, and their marks. */
typedef struct snapshot {
    int n;
    struct {
        uint64_t      variable;
        ch_tensor    *value;
        ch_row_marks *marks; /* owned; NULL: rows were not marked */
    } entry[];
} snapshot;

/* ---- variables ---- */

ch_status ch__values_find(const ch_values *s, uint64_t number, ch_server_var **out)
{
    *out = ch__map_find(&s->variables, ch__key(number));
    return *out != NULL ? CH_OK
                        : ch__fail(CH_NOT_FOUND,
                                   "variable %llu does not exist here; do not free a "
                                   "variable that a scheduled step uses",
                                   (unsigned long long)number);
}

/* Copies a tensor to a new contiguous tensor on the server's device. */
static ch_status copy_to_device(const ch_values *s, ch_tensor *t, ch_tensor **out)
{
    ch_status rc = ch_tensor_new_on(s->device, t->dtype, t->shape, out);

    if (rc == CH_OK)
        rc = ch_tensor_copy(t, *out);
    return rc;
}

static void drop_spare(ch_server_var *v, int i)
{
    ch_tensor_unref(v->spare[i].tensor);
    v->spare[i].tensor = NULL;
    v->spare[i].n_touched = 0;
}

static void drop_spares(ch_server_var *v)
{
    for (int i = 0; i < CH_SPARES; i++)
        drop_spare(v, i);
}

static void drop_variable(ch_server_var *v)
{
    ch_tensor_unref(v->value);
    drop_spares(v);
    ch__free(v->marks);
    ch__free(v);
}

ch_status ch__values_add(ch_values *s, uint64_t number, const char *name, ch_tensor *value,
                         const Cohort__PsInit *init)
{
    ch_server_var *v = ch__map_find(&s->variables, ch__key(number));
    ch_status      rc;

    if (number == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "variable %s has no number", name);
    if (v != NULL) /* a repeated call */
        return strcmp(v->name, name) == 0
                   ? CH_OK
                   : ch__fail(CH_ALREADY_EXISTS,
                              "variable %s: number %llu is already used by variable %s", name,
                              (unsigned long long)number, v->name);
    v = ch__calloc(1, sizeof(*v) + strlen(name) + 1);
    if (v == NULL)
        return ch__fail_memory("a variable");
    v->number = number;
    memcpy(v->name, name, strlen(name) + 1);
    rc = value != NULL ? copy_to_device(s, value, &v->value)
                       : ch__init_spec_compute(init, s->device, s->max_init_bytes, &v->value);
    if (rc == CH_OK)
        rc = ch__map_set(&s->variables, ch__key(number), v);
    if (rc == CH_OK)
        return CH_OK;
    drop_variable(v);
    return ch__fail_at(rc, "variable %s", name);
}

void ch__values_remove(ch_values *s, ch_server_var *v)
{
    (void)ch__map_remove(&s->variables, ch__key(v->number));
    drop_variable(v);
}

/* ---- writing ---- */

/* Returns true if no other reference to the tensor or to its buffer exists. */
static bool is_private(const ch_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->buffer->refs, memory_order_acquire) == 1;
}

/* Counts writes that did not need a spare, and frees the spares after 64 of them in a row. */
static void count_spare_use(const ch_values *s, ch_server_var *v, bool is_used)
{
    enum { MAX_IDLE = 64 };

    v->n_idle = is_used ? 0 : v->n_idle + 1;
    if (v->n_idle >= MAX_IDLE && !s->keeps_spares)
        drop_spares(v);
}

/* Creates memory for a copy of `t`. The memory of strings must be zeroed. */
static ch_status new_spare(const ch_values *s, const ch_tensor *t, ch_tensor **out)
{
    return t->dtype == CH_STR ? ch_tensor_new_on(s->device, t->dtype, t->shape, out)
                              : ch__tensor_new_untouched(s->device, t->dtype, t->shape, out);
}

/* Returns the spare to which the next copy goes: one that has no readers, else an empty one,
 * else the first, which is replaced. */
static int choose_spare(const ch_values *s, const ch_server_var *v)
{
    int n = s->keeps_spares ? CH_SPARES : 1, best = 0;

    for (int i = n - 1; i >= 0; i--)
        if (v->spare[i].tensor == NULL)
            best = i;
    for (int i = 0; i < n; i++)
        if (v->spare[i].tensor != NULL && is_private(v->spare[i].tensor))
            return i;
    return best;
}

/* If the value is shared, the variable continues with a copy in a spare, and the shared tensor
 * becomes a spare. That can be used when its readers have released it. */
ch_status ch__values_make_private(ch_values *s, ch_server_var *v)
{
    ch_tensor *old = v->value;
    ch_status  rc = CH_OK;
    int        i;

    count_spare_use(s, v, !is_private(old));
    if (is_private(old))
        return CH_OK;
    i = choose_spare(s, v);
    if (v->spare[i].tensor != NULL && !is_private(v->spare[i].tensor))
        drop_spare(v, i);
    if (v->spare[i].tensor == NULL)
        rc = new_spare(s, old, &v->spare[i].tensor);
    if (rc == CH_OK)
        rc = ch_tensor_copy(old, v->spare[i].tensor);
    if (rc != CH_OK)
        return ch__fail_at(rc, "variable %s", v->name);
    v->value = v->spare[i].tensor;
    v->spare[i].tensor = old;
    v->spare[i].n_touched = (int64_t)ch_tensor_bytes(old);
    s->generation++;
    return CH_OK;
}

/* Copies a value to a region of a tensor. */
static ch_status copy_region(ch_tensor *value, const ch_region *region, ch_tensor *to)
{
    ch_tensor *view = NULL;
    ch_status  rc = ch__tensor_region(to, region, &view);

    if (rc == CH_OK)
        rc = ch_tensor_copy(value, view);
    ch_tensor_unref(view);
    return rc;
}

/* Prepares an assign, so that nothing can fail afterwards. *out is the new value of `v`, or
 * stays NULL if the region will be written in place. Strings always get a new value, because
 * copying a string may fail: it allocates memory. The new value is a copy of `old`. */
static ch_status prepare_value(ch_values *s, ch_server_var *v, const ch_region *region,
                               ch_tensor *old, ch_tensor *value, ch_tensor **out)
{
    ch_status rc;

    if (region == NULL)
        return copy_to_device(s, value, out);
    if (v->value->dtype != CH_STR)
        return ch__values_make_private(s, v);
    rc = copy_to_device(s, old, out);
    return rc == CH_OK ? copy_region(value, region, *out) : rc;
}

/* Allocates memory for all variables before the first changes. */
ch_status ch__values_set(ch_values *s, size_t n, const uint64_t *number,
                         const ch_region *region, ch_tensor *const *value)
{
    ch_tensor **next = ch__calloc(n + 1, sizeof(*next));
    ch_status   rc = next == NULL ? ch__fail_memory("values") : CH_OK;

    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        ch_server_var *v = ch__map_find(&s->variables, ch__key(number[i]));
        ch_tensor     *old = v->value;

        /* Another region of the same variable may have a new value already. */
        for (size_t k = 0; k < i && old->dtype == CH_STR; k++)
            old = number[k] == number[i] ? next[k] : old;
        rc = prepare_value(s, v, region != NULL ? &region[i] : NULL, old, value[i], &next[i]);
    }
    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        ch_server_var *v = ch__map_find(&s->variables, ch__key(number[i]));
        ch_tensor     *old = v->value;

        ch__row_marks_add_region(v->marks, region != NULL ? &region[i] : NULL);
        if (next[i] == NULL) {
            ch__region_write(v->value, &region[i], value[i]);
        } else {
            v->value = next[i];
            next[i] = old;
        }
    }
    for (size_t i = 0; next != NULL && i < n; i++)
        ch_tensor_unref(next[i]);
    ch__free(next);
    s->generation++;
    return rc;
}

/* ---- reading ---- */

/* A variable at a moment; both are borrowed. */
typedef struct moment {
    ch_tensor          *value;
    const ch_row_marks *marks; /* NULL: rows are not marked */
} moment;

/* Finds a variable in a snapshot, or if its number is 0, as it is now. A variable that was
 * created after the snapshot is found as it is now. */
static ch_status find_moment(const ch_values *s, uint64_t number, uint64_t snapshot_number,
                             moment *out)
{
    const snapshot *p =
        snapshot_number != 0 ? ch__map_find(&s->snapshots, ch__key(snapshot_number)) : NULL;
    ch_server_var *v = NULL;
    ch_status      rc;

    if (snapshot_number != 0 && p == NULL)
        return ch__fail(CH_NOT_FOUND, "snapshot %llu does not exist here",
                        (unsigned long long)snapshot_number);
    for (int i = 0; p != NULL && i < p->n; i++)
        if (p->entry[i].variable == number) {
            *out = (moment){p->entry[i].value, p->entry[i].marks};
            return CH_OK;
        }
    rc = ch__values_find(s, number, &v); /* the snapshot is older than the variable */
    if (rc == CH_OK)
        *out = (moment){v->value, v->marks};
    return rc;
}

ch_status ch__values_get(const ch_values *s, uint64_t number, uint64_t snapshot_number,
                         ch_tensor **out)
{
    moment    m;
    ch_status rc = find_moment(s, number, snapshot_number, &m);

    if (rc == CH_OK)
        *out = m.value;
    return rc;
}

ch_status ch__values_marks(const ch_values *s, uint64_t number, uint64_t snapshot_number,
                           ch_tensor **out)
{
    moment    m;
    int64_t   bytes;
    ch_status rc = find_moment(s, number, snapshot_number, &m);

    if (rc != CH_OK)
        return rc;
    bytes = m.marks != NULL && !m.marks->all ? ch__row_marks_bytes(m.marks->n_rows) : 0;
    rc = ch_tensor_new(CH_U8, ch_shape_of(bytes), out);
    if (rc == CH_OK && bytes > 0)
        memcpy((*out)->data, m.marks->bits, (size_t)bytes);
    return rc;
}

ch_status ch__values_rows(ch_values *s, uint64_t number, uint64_t snapshot_number,
                          const ch_tensor *ids, ch_tensor **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch__values_get(s, number, snapshot_number, &t);
    ch_shape   shape;
    int64_t    n, bad;

    if (rc != CH_OK)
        return rc;
    if (ids->dtype != CH_I64 || ids->shape.rank != 1 || !ids->contiguous || t->shape.rank < 1 ||
        t->dtype == CH_STR)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "rows: ids must be a vector of i64, and the variable "
                        "must be neither a scalar nor strings");
    shape = t->shape;
    n = shape.dim[0];
    shape.dim[0] = ids->shape.dim[0];
    bad = ch__ids_check(ch__ids(ids->data, true), 0, shape.dim[0], n);
    if (bad >= 0)
        return ch__fail(CH_INVALID_ARGUMENT, "id %lld at position %lld is not in [0, %lld)",
                        (long long)((const int64_t *)(const void *)ids->data)[bad],
                        (long long)bad, (long long)n);
    rc = ch__buffer_pool_get(&s->pool, t->buffer->device, t->dtype, shape, out);
    if (rc == CH_OK)
        ch__rows_gather(ch__ids(ids->data, true), 0, shape.dim[0], t->data, n,
                        n > 0 ? (int64_t)ch_tensor_bytes(t) / n : 0, (*out)->data);
    return rc;
}

/* ---- snapshots ---- */

static void drop_snapshot(snapshot *p)
{
    for (int i = 0; p != NULL && i < p->n; i++) {
        ch_tensor_unref(p->entry[i].value);
        ch__free(p->entry[i].marks);
    }
    ch__free(p);
}

/* Creates the marks that a variable has after the snapshot, if `begin` is true, or the copy
 * that the snapshot keeps. *out stays NULL if there are none. */
static ch_status new_marks(const ch_server_var *v, bool begin, ch_row_marks **out)
{
    if (begin)
        return v->value->shape.rank > 0 ? ch__row_marks_new(v->value->shape.dim[0], out)
                                        : CH_OK;
    return v->marks != NULL ? ch__row_marks_copy(v->marks, out) : CH_OK;
}

/* Adds a variable to a snapshot. */
static ch_status add_entry(snapshot *p, const ch_server_var *v, bool begin_marks)
{
    p->entry[p->n].variable = v->number;
    p->entry[p->n].value = ch_tensor_ref(v->value);
    return new_marks(v, begin_marks, &p->entry[p->n++].marks);
}

/* Exchanges the marks of a snapshot, which are new, with those of the variables. */
static void exchange_marks(ch_values *s, snapshot *p)
{
    for (int i = 0; i < p->n; i++) {
        ch_server_var *v = ch__map_find(&s->variables, ch__key(p->entry[i].variable));
        ch_row_marks  *before = v->marks;

        v->marks = p->entry[i].marks;
        p->entry[i].marks = before;
    }
    s->generation++;
}

ch_status ch__values_snapshot(ch_values *s, uint64_t number, bool begin_marks)
{
    snapshot *p;
    ch_status rc = CH_OK;

    if (number == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "the snapshot has no number");
    if (number <= s->released || ch__map_find(&s->snapshots, ch__key(number)) != NULL)
        return CH_OK;
    p = ch__calloc(1, sizeof(*p) + (size_t)s->variables.n * sizeof(p->entry[0]));
    if (p == NULL)
        return ch__fail_memory("a snapshot");
    for (int i = 0; i < s->variables.cap && rc == CH_OK; i++)
        if (s->variables.entry[i].value != NULL)
            rc = add_entry(p, s->variables.entry[i].value, begin_marks);
    if (rc == CH_OK)
        rc = ch__map_set(&s->snapshots, ch__key(number), p);
    if (rc != CH_OK)
        drop_snapshot(p);
    else if (begin_marks)
        exchange_marks(s, p);
    return rc;
}

void ch__values_end_marks(ch_values *s)
{
    for (int i = 0; i < s->variables.cap; i++) {
        ch_server_var *v = s->variables.entry[i].value;

        if (v == NULL)
            continue;
        ch__free(v->marks);
        v->marks = NULL;
    }
    s->generation++;
}

/* The snapshots up to `last`, except n of them. */
typedef struct released {
    uint64_t        last;
    size_t          n;
    const uint64_t *kept;
} released;

/* Frees a snapshot if it was released; for ch__map_remove_if. */
static bool drop_if_released(void *arg, ch_key k, void *value)
{
    const released *r = arg;

    for (size_t i = 0; i < r->n; i++)
        if (r->kept[i] == k.a)
            return false;
    if (k.a > r->last)
        return false;
    drop_snapshot(value);
    return true;
}

/* Calls may arrive late or twice. That is harmless, because a snapshot that a call releases is
 * never in use again. */
void ch__values_release(ch_values *s, uint64_t last, size_t n, const uint64_t *kept)
{
    released r = {last, n, kept};

    if (last > s->released)
        s->released = last;
    ch__map_remove_if(&s->snapshots, drop_if_released, &r);
}

/* ---- memory for copies ---- */

/* Prepares spare i of a variable: writes to at most *most bytes, and subtracts them. Adds the
 * bytes that are left to *left. */
static ch_status reserve_spare(ch_values *s, ch_server_var *v, int i, int64_t *most,
                               int64_t *left)
{
    int64_t   bytes = (int64_t)ch_tensor_bytes(v->value), n;
    ch_status rc = CH_OK;

    if (v->spare[i].tensor == NULL)
        rc = new_spare(s, v->value, &v->spare[i].tensor);
    if (rc != CH_OK)
        return ch__fail_at(rc, "memory for a copy of variable %s", v->name);
    n = bytes - v->spare[i].n_touched;
    if (n > *most)
        n = *most;
    if (n > 0)
        memset(v->spare[i].tensor->data + v->spare[i].n_touched, 0, (size_t)n);
    v->spare[i].n_touched += n;
    *most -= n;
    *left += bytes - v->spare[i].n_touched;
    return CH_OK;
}

ch_status ch__values_reserve(ch_values *s, int64_t most, int64_t *left)
{
    int       n = s->snapshots.n > 0 ? CH_SPARES : 1;
    ch_status rc = CH_OK;

    s->keeps_spares = true;
    *left = 0;
    for (int i = 0; i < s->variables.cap && rc == CH_OK; i++) {
        ch_server_var *v = s->variables.entry[i].value;

        for (int k = 0; k < n && rc == CH_OK && v != NULL && v->value->dtype != CH_STR; k++)
            rc = reserve_spare(s, v, k, &most, left);
    }
    return rc;
}

void ch__values_unreserve(ch_values *s)
{
    s->keeps_spares = false;
    for (int i = 0; i < s->variables.cap; i++)
        if (s->variables.entry[i].value != NULL)
            drop_spares(s->variables.entry[i].value);
}

void ch__values_drop(ch_values *s)
{
    for (int i = 0; i < s->snapshots.cap; i++)
        drop_snapshot(s->snapshots.entry[i].value);
    for (int i = 0; i < s->variables.cap; i++)
        if (s->variables.entry[i].value != NULL)
            drop_variable(s->variables.entry[i].value);
    ch__map_drop(&s->snapshots);
    ch__map_drop(&s->variables);
    ch__buffer_pool_drop(&s->pool);
}
