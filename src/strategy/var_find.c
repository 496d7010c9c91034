/* strategy/var_find.c -- finds variables of a strategy, and checks their copies.
 *
 * Runs find variables by name through ch__var_memory, steps of parameter servers through
 * ch__var_of_resource. ch__vars_check_copies and ch__vars_check_update are called around a run
 * (ch_run_ops). ch_strategy_print_placement lists all variables with
 * ch__strategy_vars.
 *
 * Invariants:
 *   1. st->vars is read under the strategy's lock.
 *   2. A lookup ignores a variable that is being created (v->strategy is NULL), and a variable
 *      that is being freed (ch__var_try_ref fails).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/fault.h"
#include "base/mem.h"
#include "strategy/strategy.h"

/* ---- lists ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(ch_var *const *)a)->name, (*(ch_var *const *)b)->name);
}

ch_status ch__strategy_vars(ch_strategy *st, int *n, ch_var ***out)
{
    ch_var  **list;
    ch_status rc = CH_OK;

    *n = 0;
    pthread_mutex_lock(&st->lock);
    list = ch__calloc((size_t)st->vars.n + 1, sizeof(*list));
    if (list == NULL)
        rc = ch__fail_memory("a list of variables");
    for (int i = 0; i < st->vars.cap && list != NULL; i++) {
        ch_var *v = st->vars.entry[i].value;

        if (v != NULL && v->strategy != NULL && ch__var_try_ref(v))
            list[(*n)++] = v;
    }
    pthread_mutex_unlock(&st->lock);
    if (rc == CH_OK) {
        qsort(list, (size_t)*n, sizeof(*list), by_name);
        *out = list;
    }
    return rc;
}

/* Returns true if the tensor is a copy of v. */
static bool has_copy(const ch_var *v, const ch_tensor *t)
{
    for (int i = 0; i < ch__var_tensors(v); i++)
        if (v->copy[i] == t)
            return true;
    return false;
}

ch_var *ch_strategy_value_container(ch_strategy *st, const ch_tensor *copy)
{
    ch_var *found = copy != NULL ? ch__var_of_fetched(copy) : NULL;

    st = ch__strategy_or_current(st);
    if (found != NULL)
        return found->strategy == st ? ch_var_ref(found) : NULL;
    pthread_mutex_lock(&st->lock);
    for (int i = 0; i < st->vars.cap && found == NULL && copy != NULL; i++) {
        ch_var *v = st->vars.entry[i].value;

        if (v != NULL && v->strategy != NULL && has_copy(v, copy) && ch__var_try_ref(v))
            found = v;
    }
    pthread_mutex_unlock(&st->lock);
    return found;
}

/* ---- the variables of a run ---- */

/* Finds the variable of a resource by its name, so that a graph from a file or another process
 * finds its variables too. Checks the dtype and shape. The caller must hold the lock. */
static ch_status find_var(ch_strategy *st, const ch_resource *r, ch_var **out)
{
    ch_var *v = ch__map_find_name(&st->vars, r->name);

    if (v == NULL || v->strategy == NULL) /* NULL strategy: the variable is being created */
        return ch__fail(CH_NOT_FOUND,
                        "variable %s: %s has no variable of this name; it may have been freed",
                        r->name, st->label);
    if (v->dtype != r->dtype || !ch_shape_equal(v->shape, r->shape))
        return ch__fail(CH_FAILED_PRECONDITION,
                        "variable %s: its dtype or shape differs from the recorded variable",
                        r->name);
    *out = v;
    return CH_OK;
}

ch_status ch__var_memory(void *owner, const ch_resource *r, int local, int core, void **out)
{
    ch_strategy *st = owner;
    ch_var      *v = NULL;
    ch_status    rc;

    pthread_mutex_lock(&st->lock);
    rc = find_var(st, r, &v);
    if (rc == CH_OK && !ch__var_is_local(v))
        rc = ch__fail(
            CH_FAILED_PRECONDITION,
            "variable %s is on %s, and this run is local; use ch_strategy_run, which runs the "
            "step on a worker",
            v->name, ch_var_device(v));
    if (rc == CH_OK && v->tiles != NULL && r->layout != 0 &&
        r->layout != ch__layout_hash(v->tiles))
        rc = ch__fail(CH_FAILED_PRECONDITION,
                      "variable %s: it is split in another way than the variable that the step "
                      "was divided for; record the step again as a new function",
                      v->name);
    if (rc == CH_OK && v->tiles != NULL) {
        ch_tensor *const *copy = &v->copy[local * v->tiles->n_cores];
        const ch_tensor  *tile = copy[core];

        /* A run looks up the tiles of all cores, one after the other. */
        for (int c = 1; core == 0 && c < v->tiles->n_cores; c++)
            if (copy[c] != NULL)
                __builtin_prefetch(&copy[c]->data);
        *out = tile != NULL ? tile->data : NULL;
    } else if (rc == CH_OK) {
        *out = ch__var_copy(v, local)->data;
    }
    pthread_mutex_unlock(&st->lock);
    return rc;
}

ch_row_marks *ch__var_marks(void *owner, const ch_resource *r)
{
    ch_strategy  *st = owner;
    const ch_var *v;
    ch_row_marks *marks;

    pthread_mutex_lock(&st->lock);
    v = ch__map_find_name(&st->vars, r->name);
    marks = v != NULL ? v->marks : NULL;
    pthread_mutex_unlock(&st->lock);
    return marks;
}

ch_status ch__var_of_resource(ch_strategy *st, const ch_resource *r, ch_var **out)
{
    ch_var   *v = NULL;
    ch_status rc;

    pthread_mutex_lock(&st->lock);
    rc = find_var(st, r, &v);
    if (rc == CH_OK && !ch__var_try_ref(v))
        rc = ch__fail(CH_NOT_FOUND, "variable %s: it was freed", r->name);
    pthread_mutex_unlock(&st->lock);
    if (rc == CH_OK)
        *out = v;
    return rc;
}

/* ---- checks of copies ---- */

/* Returns true if two of the tensors of v have different bytes. They must have equal shapes. */
static bool differ(const ch_var *v, int a, int b)
{
    size_t bytes = (size_t)ch_tensor_count(v->copy[a]) * ch_dtype_bytes(v->dtype);

    return bytes > 0 && memcmp(v->copy[a]->data, v->copy[b]->data, bytes) != 0;
}

/* Returns the first tensor that must equal tensor i: the copy of replica 0, or the first tile
 * with the same part. */
static int first_equal(const ch_var *v, int i)
{
    const ch_core_layout *l = v->tiles;
    int                   first = 0;

    if (l == NULL)
        return 0;
    while (v->copy[first] == NULL || !ch__layout_same_part(l, first, i % l->n_cores))
        first++;
    return first;
}

/* Returns INTERNAL if the copies of a mirrored variable differ, or the tiles of logical devices
 * that have the same part, unless the log has warned of that. */
static ch_status check_copies(const ch_var *v)
{
    bool must_equal = v->sync != CH_SYNC_ON_READ && !v->has_warned;

    for (int i = 1; i < ch__var_tensors(v) && must_equal; i++) {
        int first = v->copy[i] != NULL ? first_equal(v, i) : i;

        if (first < i && differ(v, first, i))
            return ch__fail(CH_INTERNAL,
                            "variable %s: its copies on %s and %s differ after a step", v->name,
                            ch_device_name(ch_tensor_device(v->copy[first])),
                            ch_device_name(ch_tensor_device(v->copy[i])));
    }
    return CH_OK;
}

ch_status ch__vars_check_copies(const ch_run *run, const ch_graph *g)
{
    ch_strategy *st = run->owner;
    ch_status    rc = CH_OK;

    (void)g;
    if (!ch__config()->check_copies)
        return CH_OK;
    pthread_mutex_lock(&st->lock);
    for (int i = 0; i < st->vars.cap && rc == CH_OK; i++) {
        const ch_var *v = st->vars.entry[i].value;

        if (v != NULL && v->strategy != NULL) /* skips variables that are being created */
            rc = check_copies(v);
    }
    pthread_mutex_unlock(&st->lock);
    return rc;
}

/* Returns true if the copies of v, or its tiles, are on the devices of the run, in the same
 * order. */
static bool is_on_devices(const ch_var *v, const ch_run *run)
{
    int n_cores = run->n_cores > 1 ? run->n_cores : 1;

    if (ch__var_tensors(v) != run->n_local * n_cores)
        return false;
    for (int i = 0; i < ch__var_tensors(v); i++)
        if (v->copy[i] != NULL && ch_tensor_device(v->copy[i]) != run->device[i])
            return false;
    return true;
}

ch_status ch__vars_check_update(const ch_run *run, const ch_graph *g)
{
    ch_strategy *st = run->owner;
    ch_status    rc = CH_OK;

    pthread_mutex_lock(&st->lock);
    for (int i = 0; i < g->n_resources && rc == CH_OK; i++) {
        const ch_var *v = ch__map_find_name(&st->vars, g->resource[i].name);

        if (g->resource[i].value == g->resource[i].read || v == NULL ||
            ch__var_tensors(v) == 1 || is_on_devices(v, run))
            continue;
        rc = ch__fail(
            CH_FAILED_PRECONDITION,
            "%s: it assigns to variable %s, whose %d copies are on %s and others, and "
            "runs on %s%s: its copies would differ; use ch_strategy_update with this variable",
            ch_function_name(run->function), v->name, ch__var_tensors(v), ch_var_device(v),
            ch_device_name(run->device[0]), run->n_local > 1 ? " and others" : "");
    }
    pthread_mutex_unlock(&st->lock);
    return rc;
}
