/* strategy/var.c -- variables: a copy on each replica's device, named, counted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/fault.h"
#include "base/mem.h"
#include "graph/step.h"
#include "kernel/init.h"
#include "ops/ops.h"
#include "strategy/strategy.h"

/* ---- names ---- */

/* "w", or "w_1" if there is a "w", and so on. */
static char *unique_name(const ch_strategy *st, const char *wanted)
{
    size_t size = strlen(wanted) + 16;
    char  *name = ch__malloc(size);

    if (name == NULL)
        return NULL;
    snprintf(name, size, "%s", wanted);
    for (int i = 1; ch__by_name_get(&st->vars, name) != NULL; i++)
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
        ch__var_follow(v->shard[i], leader->shard[i]); /* who sets a shard sets that of both */
}

/* A reference to v, unless its last one is gone: then it is about to leave. */
static bool try_ref(ch_var *v)
{
    int refs = atomic_load(&v->refs);

    while (refs > 0)
        if (atomic_compare_exchange_weak(&v->refs, &refs, refs + 1))
            return true;
    return false;
}

ch_var *ch__var_follower(const ch_var *leader)
{
    ch_var *f;

    pthread_mutex_lock(&leader->strategy->lock);
    f = leader->follower;
    while (f != NULL && !try_ref(f))
        f = f->next_follower;
    pthread_mutex_unlock(&leader->strategy->lock);
    return f;
}

/* Nobody follows it, and it follows nobody, any more. */
static void part(ch_var *v)
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

/* ---- life ---- */

static void free_var(ch_var *v)
{
    for (int i = 0; i < v->n_copies; i++)
        ch_tensor_unref(v->copy[i]);
    ch_tensor_unref(v->snapshot);
    ch__free(v->shard);
    ch__free(v->name);
    ch__free(v);
}

/* The first value; the caller unrefs it. */
static ch_status first_value(const ch_var_spec *spec, const char *name, ch_tensor **out)
{
    if (spec->initial == NULL)
        return ch_init_tensor(&spec->init, name, spec->dtype, spec->shape, out);
    *out = ch_tensor_ref(spec->initial);
    return CH_OK;
}

static ch_status make_copies(ch_var *v, const ch_var_spec *spec, ch_device *const *device)
{
    ch_tensor *initial = NULL;
    ch_status  rc = first_value(spec, v->name, &initial);

    for (int i = 0; i < v->n_copies && rc == CH_OK; i++) {
        rc = ch_tensor_new_on(device[i], v->dtype, v->shape, &v->copy[i]);
        if (rc == CH_OK)
            rc = ch_tensor_copy(initial, v->copy[i]);
    }
    ch_tensor_unref(initial);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

/* One copy, of one replica or of all, has nothing to agree with: whatever is said of it is kept, and does nothing. */
static ch_status check_sync(ch_var *v, ch_sync sync, const ch_strategy *st)
{
    if (sync != CH_SYNC_NONE || v->n_copies == 1)
        return CH_OK;
    v->n_copies = 0;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "variable %s: NONE variable synchronization mode is not supported with "
                    "%s",
                    v->name, st->label);
}

static ch_status check_places(const ch_strategy *st, const ch_var *v, ch_device *const *device)
{
    ch_status rc = ch__devices_check("its copies", v->n_copies, device);

    return rc == CH_OK ? rc
                       : ch__fail_at(rc, "variable %s, as %s places it", v->name, st->label);
}

/* One copy that replicas share, elsewhere, where its first value is made too if that can be; or one for each worker, who is told it. */
static ch_status place_away(ch_strategy *st, ch_var *v, const ch_var_spec *spec,
                            const ch_var *beside)
{
    ch_tensor *initial = NULL;
    ch_status  rc;

    if (spec->initial == NULL && !spec->per_worker && ch__init_has_parts(&spec->init))
        rc = ch__init_check(&spec->init, v->dtype, v->shape);
    else
        rc = first_value(spec, v->name, &initial);
    v->n_copies = 1;
    if (rc == CH_OK)
        rc = st->away_vars->create(st, v, initial, &spec->init, beside);
    ch_tensor_unref(initial);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "variable %s", v->name);
}

static ch_status place_copies(ch_strategy *st, ch_var *v, const ch_var_spec *spec,
                              const ch_var *beside)
{
    ch_device **device = ch__calloc((size_t)st->n_local, sizeof(*device));
    ch_status   rc = CH_OK;

    if (device == NULL)
        return ch__fail_memory("a variable");
    v->n_copies = beside != NULL ? beside->n_copies : st->ops->place(st->self, spec, device);
    for (int i = 0; beside != NULL && i < v->n_copies; i++)
        device[i] = ch_tensor_device(beside->copy[i]);
    if (v->n_copies != 1 && v->n_copies != st->n_local) {
        rc = ch__fail(CH_INTERNAL, "variable %s: %s places %d copies, want 1 or %d", v->name,
                      st->label, v->n_copies, st->n_local);
        v->n_copies = 0;
    }
    if (rc == CH_OK && beside == NULL)
        rc = check_places(st, v, device);
    if (rc == CH_OK)
        rc = check_sync(v, spec->sync, st);
    if (rc == CH_OK)
        rc = make_copies(v, spec, device);
    ch__free(device);
    return rc;
}

/* Gives the variable the name that it is wanted to have, or the next one that is free. */
static ch_status take_name(ch_strategy *st, ch_var *v, const char *wanted)
{
    bool has_one;

    pthread_mutex_lock(&st->lock);
    v->name = unique_name(st, wanted);
    has_one = v->name != NULL && ch__by_name_put(&st->vars, v->name, v);
    atomic_fetch_add(&st->generation, 1);
    pthread_mutex_unlock(&st->lock);
    return has_one ? CH_OK : ch__fail_memory("a variable");
}

static void leave(ch_strategy *st, ch_var *v)
{
    pthread_mutex_lock(&st->lock);
    part(v);
    ch__by_name_remove(&st->vars, v->name);
    atomic_fetch_add(&st->generation, 1);
    pthread_mutex_unlock(&st->lock);
}

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

/* What each worker has its own of is the same wherever one is: what runs under one strategy runs under all. */
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
                            "variable %s: it is per_worker, and the size of axis %d is not "
                            "said: its shape must be fully defined",
                            name, i);
    if (s != NULL)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "variable %s: it is per_worker, and cannot be made in a step, which %s "
                        "is: make it before, and use it there",
                        name, s->graph->name);
    return CH_OK;
}

/* From now on others find it. */
static void show(ch_strategy *st, ch_var *v)
{
    pthread_mutex_lock(&st->lock);
    v->strategy = ch_strategy_ref(st);
    pthread_mutex_unlock(&st->lock);
}

static void drop_away(ch_strategy *st, ch_var *v)
{
    for (int i = 0; i < v->n_shards; i++) {
        v->shard[i]->whole = NULL;
        ch_var_unref(v->shard[i]);
    }
    v->n_shards = 0;
    if (v->away != NULL || v->each != NULL)
        st->away_vars->drop(v);
}

static ch_status make_var(ch_strategy *st, const ch_var_spec *spec, const ch_var *beside,
                          ch_var **out)
{
    ch_var   *v = ch__calloc(1, sizeof(*v) + (size_t)st->n_local * sizeof(v->copy[0]));
    ch_status rc;

    if (v == NULL)
        return ch__fail_memory("a variable");
    atomic_init(&v->refs, 1);
    v->dtype = spec->initial != NULL ? ch_tensor_dtype(spec->initial) : spec->dtype;
    v->shape = spec->initial != NULL ? ch_tensor_shape(spec->initial) : spec->shape;
    v->trainable =
        spec->trainable != CH_OFF &&
        (spec->trainable > 0 || (spec->sync != CH_SYNC_ON_READ && !spec->per_worker));
    v->per_worker = spec->per_worker;
    v->sync = spec->sync == CH_SYNC_AUTO ? CH_SYNC_ON_WRITE : spec->sync;
    v->aggregation = spec->aggregation;
    rc = check_policy(spec, v->dtype);
    if (rc == CH_OK)
        rc = check_per_worker(spec);
    if (rc == CH_OK)
        rc = take_name(st, v, spec->name != NULL ? spec->name : "Variable");
    if (rc == CH_OK) {
        rc = st->away_vars != NULL ? place_away(st, v, spec, beside)
                                   : place_copies(st, v, spec, beside);
        if (rc != CH_OK)
            leave(st, v);
    }
    if (rc != CH_OK) {
        drop_away(st, v);
        free_var(v);
        return rc;
    }
    show(st, v);
    *out = v;
    return CH_OK;
}

ch_status ch__var_part(ch_strategy *st, ch_var *whole, int i, ch_shape shape, void *away,
                       ch_var **out)
{
    size_t    size = strlen(whole->name) + 32;
    char     *name = ch__malloc(size);
    ch_var   *v = ch__calloc(1, sizeof(*v) + sizeof(v->copy[0]));
    ch_status rc = name == NULL || v == NULL ? ch__fail_memory("a variable") : CH_OK;

    if (rc == CH_OK) {
        snprintf(name, size, "%s/part_%d", whole->name, i);
        atomic_init(&v->refs, 1);
        v->dtype = whole->dtype;
        v->shape = shape;
        v->trainable = whole->trainable;
        v->sync = whole->sync;
        v->aggregation = whole->aggregation;
        v->n_copies = 1;
        v->whole = whole;
        rc = take_name(st, v, name);
    }
    ch__free(name);
    if (rc != CH_OK) {
        ch__free(v);
        return rc;
    }
    v->away = away;
    show(st, v);
    *out = v;
    return CH_OK;
}

ch_status ch_var_new(ch_strategy *st, const ch_var_spec *spec, ch_var **out)
{
    const ch_var *beside = NULL;
    ch_var_spec   own;
    ch_status     rc;

    st = ch__strategy_of(st);
    if (spec == NULL || out == NULL)
        return ch__want_given("variable", "its spec", spec, "out", out);
    own = *spec;
    rc = ch__var_specify(st, &own, &beside);
    return rc == CH_OK ? make_var(st, &own, beside, out) : rc;
}

ch_status ch__var_new_beside(const ch_var_spec *spec, const ch_var *beside, ch_var **out)
{
    const ch_var *entered = NULL;
    ch_var_spec   own = *spec;
    ch_status     rc = ch__var_specify(beside->strategy, &own, &entered);

    return rc == CH_OK ? make_var(beside->strategy, &own, beside, out) : rc;
}

static ch_status copy_away(ch_var *v, ch_var *twin)
{
    ch_tensor *t = NULL;
    ch_status  rc = v->strategy->away_vars->get(v, &t);

    if (rc == CH_OK)
        rc = v->strategy->away_vars->set(twin, t);
    ch_tensor_unref(t);
    return rc;
}

/* A follower is its leader's: a clone has none, and is nobody's. */
ch_status ch_var_clone(ch_var *v, ch_var **out)
{
    ch_strategy *st = v != NULL ? v->strategy : NULL;
    ch_var      *twin = NULL;
    ch_status    rc = ch__want_given("variable clone", "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = ch__strategy_cross(&st, v->name, "ch_var_new");
    if (rc == CH_OK)
        rc = make_var(st,
                      &(ch_var_spec){.name = v->name,
                                     .trainable = v->trainable ? 1 : CH_OFF,
                                     .sync = v->sync,
                                     .aggregation = v->aggregation,
                                     .initial = v->per_worker ? v->copy[0] : NULL,
                                     .dtype = v->dtype,
                                     .shape = v->shape,
                                     .per_worker = v->per_worker},
                      v, &twin);
    if (rc == CH_OK && v->away != NULL)
        rc = copy_away(v, twin);
    for (int i = 0; rc == CH_OK && v->away == NULL && i < v->n_copies; i++)
        rc = ch_tensor_copy(v->copy[i], twin->copy[i]);
    if (rc != CH_OK) {
        ch_var_unref(twin);
        return rc;
    }
    *out = twin;
    return CH_OK;
}

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
    list = ch__calloc(st->vars.n + 1, sizeof(*list));
    if (list == NULL)
        rc = ch__fail_memory("a list of variables");
    for (size_t i = 0; i < st->vars.cap && list != NULL; i++) {
        ch_var *v = ch__by_name_at(&st->vars, i);

        if (v != NULL && v->strategy != NULL && try_ref(v))
            list[(*n)++] = v;
    }
    pthread_mutex_unlock(&st->lock);
    if (rc == CH_OK) {
        qsort(list, (size_t)*n, sizeof(*list), by_name);
        *out = list;
    }
    return rc;
}

static bool has_copy(const ch_var *v, const ch_tensor *t)
{
    for (int i = 0; i < v->n_copies; i++)
        if (v->copy[i] == t)
            return true;
    return false;
}

ch_var *ch_strategy_value_container(ch_strategy *st, const ch_tensor *copy)
{
    ch_var *found = copy != NULL ? ch__var_fetched_as(copy) : NULL;

    st = ch__strategy_of(st);
    if (found != NULL)
        return found->strategy == st ? ch_var_ref(found) : NULL;
    pthread_mutex_lock(&st->lock);
    for (size_t i = 0; i < st->vars.cap && found == NULL && copy != NULL; i++) {
        ch_var *v = ch__by_name_at(&st->vars, i);

        if (v != NULL && v->strategy != NULL && has_copy(v, copy) && try_ref(v))
            found = v;
    }
    pthread_mutex_unlock(&st->lock);
    return found;
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
    leave(st, v);
    drop_away(st, v);
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
    return ch_device_name(v->away != NULL ? v->strategy->away_vars->device(v)
                                          : ch_tensor_device(v->copy[0]));
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

/* Looked up by name, so that a graph from elsewhere finds its variables too. */
/* With the lock held. */
static ch_status find_var(ch_strategy *st, const ch_resource *r, ch_var **out)
{
    ch_var *v = ch__by_name_get(&st->vars, r->name);

    if (v == NULL || v->strategy == NULL) /* or it is being made */
        return ch__fail(CH_NOT_FOUND, "variable %s: %s has none of this name (any more)",
                        r->name, st->label);
    if (v->dtype != r->dtype || !ch_shape_equal(v->shape, r->shape))
        return ch__fail(CH_FAILED_PRECONDITION,
                        "variable %s: its dtype or shape is not what was recorded", r->name);
    *out = v;
    return CH_OK;
}

ch_status ch__var_storage(void *owner, const ch_resource *r, int local, void **out)
{
    ch_strategy *st = owner;
    ch_var      *v = NULL;
    ch_status    rc;

    pthread_mutex_lock(&st->lock);
    rc = find_var(st, r, &v);
    if (rc == CH_OK && v->away != NULL)
        rc = ch__fail(CH_FAILED_PRECONDITION,
                      "variable %s is on %s, and this runs here; ch_strategy_run has workers "
                      "run it",
                      v->name, ch_var_device(v));
    if (rc == CH_OK)
        *out = ch__var_copy(v, local)->data;
    pthread_mutex_unlock(&st->lock);
    return rc;
}

ch_status ch__var_of_resource(ch_strategy *st, const ch_resource *r, ch_var **out)
{
    ch_var   *v = NULL;
    ch_status rc;

    pthread_mutex_lock(&st->lock);
    rc = find_var(st, r, &v);
    if (rc == CH_OK && !try_ref(v))
        rc = ch__fail(CH_NOT_FOUND, "variable %s: it is not there any more", r->name);
    pthread_mutex_unlock(&st->lock);
    if (rc == CH_OK)
        *out = v;
    return rc;
}

/* ---- looking after them ---- */

/* The first copy that differs from copy 0; 0: none does. */
static int odd_copy(const ch_var *v)
{
    size_t bytes = (size_t)ch_tensor_count(v->copy[0]) * ch_dtype_bytes(v->dtype);

    for (int i = 1; i < v->n_copies && bytes > 0; i++)
        if (memcmp(v->copy[0]->data, v->copy[i]->data, bytes) != 0)
            return i;
    return 0;
}

static ch_status check_copies(const ch_var *v)
{
    int odd = v->n_copies > 1 && v->sync != CH_SYNC_ON_READ && !v->has_warned ? odd_copy(v) : 0;

    if (odd == 0)
        return CH_OK;
    return ch__fail(CH_INTERNAL, "variable %s: its copies on %s and %s differ after a step",
                    v->name, ch_device_name(ch_tensor_device(v->copy[0])),
                    ch_device_name(ch_tensor_device(v->copy[odd])));
}

ch_status ch__vars_check_copies(const ch_run *run, const ch_graph *g)
{
    ch_strategy *st = run->owner;
    ch_status    rc = CH_OK;

    (void)g;
    if (!ch__config()->check_copies)
        return CH_OK;
    pthread_mutex_lock(&st->lock);
    for (size_t i = 0; i < st->vars.cap && rc == CH_OK; i++) {
        const ch_var *v = ch__by_name_at(&st->vars, i);

        if (v != NULL && v->strategy != NULL) /* else it is being made */
            rc = check_copies(v);
    }
    pthread_mutex_unlock(&st->lock);
    return rc;
}

/* Whether the copies of v are on the devices of a run, in their order. */
static bool is_beside(const ch_var *v, const ch_run *run)
{
    if (v->n_copies != run->n_local)
        return false;
    for (int i = 0; i < v->n_copies; i++)
        if (ch_tensor_device(v->copy[i]) != run->device[i])
            return false;
    return true;
}

ch_status ch__vars_check_update(const ch_run *run, const ch_graph *g)
{
    ch_strategy *st = run->owner;
    ch_status    rc = CH_OK;

    pthread_mutex_lock(&st->lock);
    for (int i = 0; i < g->n_resources && rc == CH_OK; i++) {
        const ch_var *v = ch__by_name_get(&st->vars, g->resource[i].name);

        if (g->resource[i].value == g->resource[i].read || v == NULL || v->n_copies == 1 ||
            is_beside(v, run))
            continue;
        rc =
            ch__fail(CH_FAILED_PRECONDITION,
                     "%s: it assigns to variable %s, whose %d copies are on %s and others, and "
                     "runs on %s%s: its copies would differ; use ch_strategy_update of it",
                     ch_function_name(run->function), v->name, v->n_copies,
                     ch_device_name(ch_tensor_device(v->copy[0])),
                     ch_device_name(run->device[0]), run->n_local > 1 ? " and others" : "");
    }
    pthread_mutex_unlock(&st->lock);
    return rc;
}
