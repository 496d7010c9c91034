/* job/server/values.c -- variables, and values of them that others have.   SPDX-License-Identifier: Apache-2.0 */
#include "job/server/values.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernel/rows.h"

typedef struct snapshot {
    int n;
    struct {
        uint64_t   variable;
        ch_tensor *value;
    } per_worker[];
} snapshot;

/* ---- variables ---- */

ch_status ch__values_find(const ch_values *s, uint64_t number, ch_server_var **out)
{
    *out = ch__map_find(&s->variables, ch__key(number));
    return *out != NULL ? CH_OK
                        : ch__fail(CH_NOT_FOUND,
                                   "there is no variable %llu here (any more): was one freed "
                                   "that a step uses?",
                                   (unsigned long long)number);
}

/* A value of the stock's own, in one piece, and on its device. */
static ch_status own_copy(const ch_values *s, ch_tensor *t, ch_tensor **out)
{
    ch_status rc = ch_tensor_new_on(s->device, t->dtype, t->shape, out);

    if (rc == CH_OK)
        rc = ch_tensor_copy(t, *out);
    return rc;
}

static void drop_variable(ch_server_var *v)
{
    ch_tensor_unref(v->value);
    ch_tensor_unref(v->spare);
    ch__free(v);
}

ch_status ch__values_add(ch_values *s, uint64_t number, const char *name, ch_tensor *value,
                         const Cohort__PsInit *first)
{
    ch_server_var *v = ch__map_find(&s->variables, ch__key(number));
    ch_status      rc;

    if (number == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "variable %s has no number", name);
    if (v != NULL) /* the call came twice */
        return strcmp(v->name, name) == 0
                   ? CH_OK
                   : ch__fail(CH_ALREADY_EXISTS, "variable %s: its number is that of %s", name,
                              v->name);
    v = ch__calloc(1, sizeof(*v) + strlen(name) + 1);
    if (v == NULL)
        return ch__fail_memory("a variable");
    v->number = number;
    memcpy(v->name, name, strlen(name) + 1);
    rc = value != NULL ? own_copy(s, value, &v->value)
                       : ch__init_spec_compute(first, s->device, s->most_bytes, &v->value);
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

static bool is_ours(const ch_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->buffer->refs, memory_order_acquire) == 1;
}

/* The spare is kept as long as there is use for it. */
static void keep_spare(ch_server_var *v, bool is_used)
{
    enum { LONG = 64 };

    v->n_idle = is_used ? 0 : v->n_idle + 1;
    if (v->spare == NULL || v->n_idle < LONG)
        return;
    ch_tensor_unref(v->spare);
    v->spare = NULL;
}

/* What is to be written and is in others' hands becomes theirs; we go on with a copy, and have what was theirs for the next one
 * when they are done with it. */
ch_status ch__values_make_private(ch_values *s, ch_server_var *v)
{
    ch_tensor *was = v->value;
    ch_status  rc = CH_OK;

    keep_spare(v, !is_ours(was));
    if (is_ours(was))
        return CH_OK;
    if (v->spare != NULL && !is_ours(v->spare)) {
        ch_tensor_unref(v->spare);
        v->spare = NULL;
    }
    if (v->spare == NULL)
        rc = ch_tensor_new_on(s->device, was->dtype, was->shape, &v->spare);
    if (rc == CH_OK)
        rc = ch_tensor_copy(was, v->spare);
    if (rc != CH_OK)
        return ch__fail_at(rc, "variable %s", v->name);
    v->value = v->spare;
    v->spare = was;
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

/* Makes the value that replaces that of `v`; NULL: the region will be written in the memory that `v` has. Strings need memory
 * when they are copied, so that a copy may fail: they are always replaced. */
static ch_status prepare_value(ch_values *s, ch_server_var *v, const ch_region *region,
                               ch_tensor *value, ch_tensor **out)
{
    ch_status rc;

    if (region == NULL)
        return own_copy(s, value, out);
    if (v->value->dtype != CH_STR)
        return ch__values_make_private(s, v);
    rc = own_copy(s, v->value, out);
    return rc == CH_OK ? copy_region(value, region, *out) : rc;
}

/* No variable changes before there is memory for all of them. */
ch_status ch__values_set(ch_values *s, size_t n, const uint64_t *number,
                         const ch_region *region, ch_tensor *const *value)
{
    ch_tensor **next = ch__calloc(n + 1, sizeof(*next));
    ch_status   rc = next == NULL ? ch__fail_memory("values") : CH_OK;

    for (size_t i = 0; i < n && rc == CH_OK; i++)
        rc = prepare_value(s, ch__map_find(&s->variables, ch__key(number[i])),
                           region != NULL ? &region[i] : NULL, value[i], &next[i]);
    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        ch_server_var *v = ch__map_find(&s->variables, ch__key(number[i]));
        ch_tensor     *was = v->value;

        if (next[i] == NULL) {
            ch__region_write(v->value, &region[i], value[i]);
        } else {
            v->value = next[i];
            next[i] = was;
        }
    }
    for (size_t i = 0; next != NULL && i < n; i++)
        ch_tensor_unref(next[i]);
    ch__free(next);
    s->generation++;
    return rc;
}

/* ---- reading ---- */

ch_status ch__values_get(const ch_values *s, uint64_t number, uint64_t pinned, ch_tensor **out)
{
    const snapshot *p = pinned != 0 ? ch__map_find(&s->snapshots, ch__key(pinned)) : NULL;
    ch_server_var  *v = NULL;
    ch_status       rc;

    if (pinned != 0 && p == NULL)
        return ch__fail(CH_NOT_FOUND, "there is no pin %llu here", (unsigned long long)pinned);
    for (int i = 0; p != NULL && i < p->n; i++)
        if (p->per_worker[i].variable == number) {
            *out = p->per_worker[i].value;
            return CH_OK;
        }
    rc = ch__values_find(s, number, &v); /* what was made after the pin is as it is */
    if (rc == CH_OK)
        *out = v->value;
    return rc;
}

ch_status ch__values_rows(ch_values *s, uint64_t number, uint64_t pinned, const ch_tensor *ids,
                          ch_tensor **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch__values_get(s, number, pinned, &t);
    ch_shape   shape;
    int64_t    n, bad;

    if (rc != CH_OK)
        return rc;
    if (ids->dtype != CH_I64 || ids->shape.rank != 1 || !ids->contiguous || t->shape.rank < 1 ||
        t->dtype == CH_STR)
        return ch__fail(CH_INVALID_ARGUMENT, "ids of rows are a vector of i64, and neither a "
                                             "scalar nor strings have rows");
    shape = t->shape;
    n = shape.dim[0];
    shape.dim[0] = ids->shape.dim[0];
    bad = ch__ids_check((ch_ids){ids->data, true}, 0, shape.dim[0], n);
    if (bad >= 0)
        return ch__fail(CH_INVALID_ARGUMENT, "id %lld at position %lld is not in [0, %lld)",
                        (long long)((const int64_t *)(const void *)ids->data)[bad],
                        (long long)bad, (long long)n);
    rc = ch__buffer_pool_get(&s->pool, t->buffer->device, t->dtype, shape, out);
    if (rc == CH_OK)
        ch__rows_gather((ch_ids){ids->data, true}, 0, shape.dim[0], t->data, n,
                        n > 0 ? (int64_t)ch_tensor_bytes(t) / n : 0, (*out)->data);
    return rc;
}

/* ---- pins ---- */

static void drop_snapshot(snapshot *p)
{
    for (int i = 0; p != NULL && i < p->n; i++)
        ch_tensor_unref(p->per_worker[i].value);
    ch__free(p);
}

ch_status ch__values_snapshot(ch_values *s, uint64_t number)
{
    snapshot *p;
    ch_status rc;

    if (number == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "a pin without a number");
    if (number <= s->released || ch__map_find(&s->snapshots, ch__key(number)) != NULL)
        return CH_OK;
    p = ch__calloc(1, sizeof(*p) + (size_t)s->variables.n * sizeof(p->per_worker[0]));
    if (p == NULL)
        return ch__fail_memory("a pin");
    for (int i = 0; i < s->variables.cap; i++) {
        const ch_server_var *v = s->variables.entry[i].value;

        if (v == NULL)
            continue;
        p->per_worker[p->n].variable = v->number;
        p->per_worker[p->n++].value = ch_tensor_ref(v->value);
    }
    rc = ch__map_set(&s->snapshots, ch__key(number), p);
    if (rc != CH_OK)
        drop_snapshot(p);
    return rc;
}

static bool drop_if_released(void *arg, ch_key k, void *value)
{
    const ch_values *s = arg;

    if (k.a > s->released)
        return false;
    drop_snapshot(value);
    return true;
}

void ch__values_release(ch_values *s, uint64_t last)
{
    if (last <= s->released)
        return;
    s->released = last;
    ch__map_sift(&s->snapshots, drop_if_released, s);
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
