/* strategy/var.c -- variables: creation, names, layout, followers and properties.
 *
 * ch_var (strategy/var.h) is independent of its storage, which st->var_ops creates. make_var
 * creates a variable in this order: register the name, choose the layout, create the storage,
 * publish. var_find.c finds variables for runs.
 *
 * Invariants:
 *   1. st->vars contains every variable of the strategy, without a reference. Names are unique.
 *   2. A variable is visible to other threads only when v->strategy is set (publish).
 *   3. st->generation changes whenever st->vars does, so that runs find their variables again.
 *   4. The links between a leader and its followers are changed under the strategy's lock. They
 *      are removed before either variable is freed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "graph/step.h"
#include "kernel/init.h"
#include "ops/ops.h"
#include "strategy/strategy.h"

/* ---- names ---- */

/* Returns "w", or "w_1" if "w" is used, and so on; NULL if memory is exhausted. The caller must
 * hold the lock. */
static char *unique_name(const ch_strategy *st, const char *wanted)
{
    size_t size = strlen(wanted) + 16;
    char  *name = ch__malloc(size);

    if (name == NULL)
        return NULL;
    snprintf(name, size, "%s", wanted);
    for (int i = 1; ch__map_find_name(&st->vars, name) != NULL; i++)
        snprintf(name, size, "%s_%d", wanted, i);
    return name;
}

/* ---- followers ---- */

void ch__var_follow(ch_var *v, ch_var *leader)
{
    pthread_mutex_lock(&leader->strategy->lock);
    v->leader = leader;
    v->next_follower = leader->follower;
    leader->follower = v;
    pthread_mutex_unlock(&leader->strategy->lock);
    for (int i = 0; i < v->n_shards && v->n_shards == leader->n_shards; i++)
        ch__var_follow(
            v->shard[i],
            leader->shard[i]); /* setting a shard of the leader sets the shard of v */
}

ch_var *ch__var_next_follower(const ch_var *leader, ch_var *before)
{
    ch_var *f;

    pthread_mutex_lock(&leader->strategy->lock);
    f = before != NULL ? before->next_follower : leader->follower;
    while (f != NULL && !ch__var_try_ref(f))
        f = f->next_follower;
    pthread_mutex_unlock(&leader->strategy->lock);
    ch_var_unref(before); /* may free it, which takes the lock */
    return f;
}

/* Removes v from the list of its leader, and ends the links of its followers. The caller must
 * hold the lock. */
static void unlink_followers(ch_var *v)
{
    for (ch_var *f = v->follower; f != NULL; f = f->next_follower)
        f->leader = NULL;
    if (v->leader != NULL) {
        ch_var **link = &v->leader->follower;

        while (*link != v)
            link = &(*link)->next_follower;
        *link = v->next_follower;
    }
}

/* ---- memory ---- */

static void free_var(ch_var *v)
{
    ch_tensor_unref(v->snapshot);
    ch__free(v->marks);
    ch__free(v->layout.device);
    ch__free(v->tiles);
    ch__free(v->used_by);
    ch__free(v->shard);
    ch__free(v->name);
    ch__free(v);
}

ch_status ch__var_initial(const ch_var_spec *spec, ch_tensor **out)
{
    if (spec->initial == NULL)
        return ch_init_tensor(&spec->init, spec->name, spec->dtype, spec->shape, out);
    *out = ch_tensor_ref(spec->initial);
    return CH_OK;
}

/* ---- layout ---- */

/* Returns the layout of a variable of this shape that is colocated with another variable. The
 * new variable is divided in the same way if the sizes of the divided axes are equal. Otherwise
 * it is not divided and is on the device of the first part. */
static ch_layout colocated_layout(ch_shape shape, const ch_var *colocated)
{
    ch_layout l = colocated->layout;

    for (int k = 0; k < CH_MAX_RANK; k++)
        if (ch__layout_parts_of(l, k) > 1 &&
            (k >= shape.rank || shape.dim[k] != colocated->shape.dim[k]))
            return (ch_layout){.n_copies = l.n_copies, .device = l.device};
    return l;
}

/* Checks a layout that ch_strategy_ops.place has returned, because a strategy may be written by
 * the user. */
static ch_status check_layout(const ch_strategy *st, const ch_var *v, ch_layout l)
{
    int64_t parts = 1;

    for (int k = 0; k < CH_MAX_RANK; k++) {
        if (l.parts[k] < 0 || (k >= v->shape.rank && l.parts[k] > 1))
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "variable %s, as %s places it: %d parts of axis %d (the variable has "
                "%d axes)",
                v->name, st->label, l.parts[k], k, v->shape.rank);
        parts *= ch__layout_parts_of(l, k);
        if (parts > CH_LAYOUT_DEVICES)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "variable %s, as %s places it: more than %d parts", v->name,
                            st->label, CH_LAYOUT_DEVICES);
    }
    if (ch__layout_copies(l) != 1 && ch__layout_copies(l) != st->n_local)
        return ch__fail(CH_INTERNAL, "variable %s: %s places %d copies, want 1 or %d", v->name,
                        st->label, l.n_copies, st->n_local);
    for (int p = 0; p < parts; p++) {
        ch_status rc = ch__devices_check("its copies", ch__layout_copies(l),
                                         l.device + p * ch__layout_copies(l));

        if (rc != CH_OK)
            return ch__fail_at(rc, "variable %s, as %s places it", v->name, st->label);
    }
    return CH_OK;
}

/* Chooses the layout of `v`. A per-worker variable is not colocated, because every worker has
 * its own copy. */
static ch_status choose_layout(ch_strategy *st, ch_var *v, const ch_var_spec *spec,
                               const ch_var *colocated)
{
    ch_device **device = ch__calloc(CH_LAYOUT_DEVICES, sizeof(ch_device *)), **own;
    ch_layout   l = {.device = device};
    ch_status   rc = CH_OK;
    size_t      n;

    if (device == NULL)
        return ch__fail_memory("a variable");
    if (colocated != NULL && !v->per_worker) {
        l = colocated_layout(v->shape, colocated);
    } else {
        rc = st->ops->place(st->self, spec, &l);
        if (rc == CH_OK)
            rc = check_layout(st, v, l);
        else
            rc = ch__fail_at(rc, "variable %s", v->name);
    }
    if (rc == CH_OK) {
        n = (size_t)ch__layout_parts(l) * (size_t)ch__layout_copies(l);
        own = ch__malloc(n * sizeof(ch_device *));
        if (own != NULL)
            memcpy(own, l.device, n * sizeof(ch_device *));
        v->layout = l;
        v->layout.device = own;
        v->n_copies = ch__layout_copies(l);
        rc = own == NULL ? ch__fail_memory("a variable") : CH_OK;
    }
    if (rc == CH_OK && st->n_cores > 1)
        rc = ch__var_choose_tiles(st, v, spec, colocated);
    ch__free(device);
    return rc;
}

/* Gives the variable the wanted name, or the next free name of that form, and adds it to
 * st->vars. */
static ch_status register_name(ch_strategy *st, ch_var *v, const char *wanted)
{
    bool is_registered;

    pthread_mutex_lock(&st->lock);
    v->name = unique_name(st, wanted);
    is_registered = v->name != NULL && ch__map_set_name(&st->vars, v->name, v) == CH_OK;
    atomic_fetch_add(&st->generation, 1);
    pthread_mutex_unlock(&st->lock);
    return is_registered ? CH_OK : ch__fail_memory("a variable");
}

/* Removes the variable from st->vars and from its leader or followers. */
static void unregister(ch_strategy *st, ch_var *v)
{
    pthread_mutex_lock(&st->lock);
    unlink_followers(v);
    (void)ch__map_remove_name(&st->vars, v->name);
    if (st->vars.n == 0)
        ch__map_drop(&st->vars);
    atomic_fetch_add(&st->generation, 1);
    pthread_mutex_unlock(&st->lock);
}

/* Checks the synchronisation and aggregation of a spec. */
static ch_status check_policy(const ch_var_spec *spec, ch_dtype dtype)
{
    const char *name = spec->name != NULL ? spec->name : "Variable";

    if ((unsigned)spec->sync > CH_SYNC_ON_READ)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "invalid variable synchronization mode: %d for variable: %s",
                        (int)spec->sync, name);
    if ((unsigned)spec->aggregation > CH_AGGREGATE_FIRST)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "invalid variable aggregation mode: %d for variable: %s",
                        (int)spec->aggregation, name);
    if (spec->aggregation == CH_AGGREGATE_MEAN && !ch_dtype_is_float(dtype))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "variable %s: CH_AGGREGATE_MEAN is for floats, and it is %s", name,
                        ch_dtype_name(dtype));
    return CH_OK;
}

/* Checks a per-worker spec. The rules are the same under all strategies, so that a program that
 * runs under one strategy runs under all. */
static ch_status check_per_worker(const ch_var_spec *spec)
{
    const char    *name = spec->name != NULL ? spec->name : "Variable";
    const ch_step *s = ch__step_recording();

    if (!spec->per_worker)
        return CH_OK;
    if (spec->trainable > 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "variable %s: it is per_worker, and cannot be trainable: each worker "
                        "would train its own; leave one of the two out",
                        name);
    for (int i = 0; spec->initial == NULL && i < spec->shape.rank; i++)
        if (spec->shape.dim[i] < 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "variable %s: it is per_worker, and the size of axis %d is "
                            "unknown: its shape must be fully defined",
                            name, i);
    if (s != NULL)
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "variable %s: it is per_worker, and cannot be created in a step (%s is being "
            "recorded); create it before the step",
            name, s->graph->name);
    return CH_OK;
}

/* Makes the variable visible to lookups. Its creation must be complete. */
static void publish(ch_strategy *st, ch_var *v)
{
    pthread_mutex_lock(&st->lock);
    v->strategy = ch_strategy_ref(st);
    pthread_mutex_unlock(&st->lock);
}

/* Releases the variables of the shards, and frees the storage. */
static void free_storage(ch_strategy *st, ch_var *v)
{
    for (int i = 0; i < v->n_shards; i++) {
        v->shard[i]->whole = NULL;
        ch_var_unref(v->shard[i]);
    }
    v->n_shards = 0;
    st->var_ops->free(v);
}

/* Creates the storage with the initial value of the spec or, if `from` is not NULL, with its
 * value. Then the storage begins with zeros, because new memory is zero. The initial value is
 * only checked, so that a wrong spec fails with a checkpoint as it does without. */
static ch_status create_storage(ch_strategy *st, ch_var *v, ch_var_spec spec,
                                const ch_value_source *from)
{
    ch_status rc = from != NULL ? ch__var_check_source(v, from) : CH_OK;

    if (from != NULL && rc == CH_OK && spec.initial == NULL)
        rc = ch__init_check(&spec.init, v->dtype, v->shape);
    if (from != NULL) {
        spec.initial = NULL;
        spec.init = ch_init_zeros();
    }
    if (rc == CH_OK)
        rc = st->var_ops->create(st, v, &spec);
    return rc == CH_OK && from != NULL ? st->var_ops->write_from(v, from) : rc;
}

/* Creates a variable, with the layout of `colocated` and the value of `from`, if they are not
 * NULL. */
static ch_status make_var(ch_strategy *st, const ch_var_spec *wanted, const ch_var *colocated,
                          const ch_value_source *from, ch_var **out)
{
    size_t      n = (size_t)st->n_local * (size_t)st->n_cores;
    ch_var     *v = ch__calloc(1, sizeof(*v) + n * sizeof(v->copy[0]));
    ch_var_spec spec = *wanted;
    ch_status   rc;

    if (v == NULL)
        return ch__fail_memory("a variable");
    atomic_init(&v->refs, 1);
    if (spec.initial != NULL) {
        spec.dtype = ch_tensor_dtype(spec.initial);
        spec.shape = ch_tensor_shape(spec.initial);
    }
    v->dtype = spec.dtype;
    v->shape = spec.shape;
    v->trainable = spec.trainable != CH_OFF &&
                   (spec.trainable > 0 || (spec.sync != CH_SYNC_ON_READ && !spec.per_worker));
    v->per_worker = spec.per_worker;
    v->sync = spec.sync == CH_SYNC_AUTO ? CH_SYNC_ON_WRITE : spec.sync;
    v->aggregation = spec.aggregation;
    rc = check_policy(&spec, v->dtype);
    if (rc == CH_OK)
        rc = check_per_worker(&spec);
    if (rc == CH_OK)
        rc = register_name(st, v, spec.name != NULL ? spec.name : "Variable");
    if (rc != CH_OK) {
        free_var(v);
        return rc;
    }
    spec.name = v->name;
    rc = choose_layout(st, v, &spec, colocated);
    if (rc == CH_OK) {
        rc = create_storage(st, v, spec, from);
        if (rc != CH_OK)
            rc = ch__fail_at(
                rc, colocated != NULL ? "variable %s, colocated with %s" : "variable %s",
                v->name, colocated != NULL ? colocated->name : "");
    }
    if (rc != CH_OK) {
        unregister(st, v);
        free_storage(st, v);
        free_var(v);
        return rc;
    }
    publish(st, v);
    *out = v;
    return CH_OK;
}

ch_status ch__var_new_shard(ch_strategy *st, ch_var *whole, int i, void *storage, ch_var **out)
{
    size_t      size = strlen(whole->name) + 32;
    char       *name = ch__malloc(size);
    ch_device **device = ch__malloc(sizeof(ch_device *));
    ch_var     *v = ch__calloc(1, sizeof(*v) + sizeof(v->copy[0]));
    ch_status   rc =
        name == NULL || device == NULL || v == NULL ? ch__fail_memory("a variable") : CH_OK;

    if (rc == CH_OK) {
        snprintf(name, size, "%s/part_%d", whole->name, i);
        atomic_init(&v->refs, 1);
        v->dtype = whole->dtype;
        v->shape = ch__layout_shape(whole->layout, whole->shape, i);
        v->trainable = whole->trainable;
        v->sync = whole->sync;
        v->aggregation = whole->aggregation;
        v->n_copies = 1;
        v->whole = whole;
        *device = whole->layout.device[i];
        rc = register_name(st, v, name);
    }
    ch__free(name);
    if (rc != CH_OK) {
        ch__free(device);
        ch__free(v);
        return rc;
    }
    v->layout.device = device;
    v->storage = storage;
    publish(st, v);
    *out = v;
    return CH_OK;
}

ch_status ch__var_new_from(ch_strategy *st, const ch_var_spec *spec, const ch_var *beside,
                           const ch_value_source *from, ch_var **out)
{
    const ch_var *colocated = NULL;
    ch_var_spec   own = *spec;
    ch_status     rc;

    st = ch__strategy_or_current(st);
    rc = ch__var_apply_scopes(st, &own, &colocated);
    return rc == CH_OK ? make_var(st, &own, beside != NULL ? beside : colocated, from, out)
                       : rc;
}

ch_status ch_var_new(ch_strategy *st, const ch_var_spec *spec, ch_var **out)
{
    if (spec == NULL || out == NULL)
        return ch__check_not_null("variable", "its spec", spec, "out", out);
    return ch__var_new_from(st, spec, NULL, NULL, out);
}

/* The clone has neither the followers nor the leader of v. */
ch_status ch_var_clone(ch_var *v, ch_var **out)
{
    ch_strategy *st = v != NULL ? v->strategy : NULL;
    ch_var      *clone = NULL;
    ch_status    rc = ch__check_not_null("variable clone", "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = ch__strategy_check_cross(&st, v->name, "ch_var_new");
    if (rc == CH_OK)
        rc = make_var(
            st,
            &(ch_var_spec){.name = v->name,
                           .trainable = v->trainable ? 1 : CH_OFF,
                           .sync = v->sync,
                           .aggregation = v->aggregation,
                           .initial = v->per_worker && v->tiles == NULL ? v->copy[0] : NULL,
                           .dtype = v->dtype,
                           .shape = v->shape,
                           .per_worker = v->per_worker},
            v, NULL, &clone);
    if (rc == CH_OK) {
        clone->is_split = v->is_split;
        clone->rule = v->rule;
        rc = st->var_ops->copy(v, clone);
    }
    if (rc != CH_OK) {
        ch_var_unref(clone);
        return rc;
    }
    *out = clone;
    return CH_OK;
}

ch_var *ch_var_ref(ch_var *v)
{
    if (v != NULL)
        atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
    return v;
}

void ch_var_unref(ch_var *v)
{
    ch_strategy *st;

    if (v == NULL || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) != 1)
        return;
    st = v->strategy;
    unregister(st, v);
    free_storage(st, v);
    free_var(v);
    ch_strategy_unref(st);
}

int ch_var_shards(const ch_var *v)
{
    return v == NULL ? 0 : v->n_shards > 0 ? v->n_shards : 1;
}

ch_var *ch_var_shard(ch_var *v, int i)
{
    if (v == NULL || i < 0 || i >= ch_var_shards(v))
        return NULL;
    return v->n_shards > 0 ? v->shard[i] : v;
}

ch_var *ch_var_whole(ch_var *v)
{
    return v != NULL && v->whole != NULL ? v->whole : v;
}

const char *ch_var_device(const ch_var *v)
{
    if (v == NULL)
        return NULL;
    for (int m = 0; v->tiles != NULL && m < ch__var_tensors(v); m++)
        if (v->copy[m] != NULL) /* its layout gives a part to this member */
            return ch_device_name(ch_tensor_device(v->copy[m]));
    return ch_device_name(v->layout.device[0]);
}

const char *ch_var_name(const ch_var *v)
{
    return v != NULL ? v->name : NULL;
}

ch_dtype ch_var_dtype(const ch_var *v)
{
    return v != NULL ? v->dtype : CH_F32;
}

ch_shape ch_var_shape(const ch_var *v)
{
    return v != NULL ? v->shape : ch_shape_scalar();
}

bool ch_var_is_trainable(const ch_var *v)
{
    return v != NULL && v->trainable;
}

ch_strategy *ch_var_strategy(const ch_var *v)
{
    return v != NULL ? v->strategy : NULL;
}

ch_sync ch_var_sync(const ch_var *v)
{
    return v != NULL ? v->sync : CH_SYNC_ON_WRITE;
}

ch_aggregation ch_var_aggregation(const ch_var *v)
{
    return v != NULL ? v->aggregation : CH_AGGREGATE_NONE;
}
