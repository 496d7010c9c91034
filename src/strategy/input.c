/* strategy/input.c -- distributed input: datasets and iterators for the replicas of a strategy.
 *
 * data/distribute.c splits batches and divides datasets. This file decides which devices and
 * pipelines get the parts, and which code may advance the iterator. It also has the older calls
 * of tf.distribute (make_dataset_iterator, experimental_run, run_steps) and datasets of arrays.
 *
 * An iterator that a strategy has created holds a reference to the strategy as its owner. Only
 * code outside steps, and not in the scope of another strategy, may advance the iterator.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/input.h"

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "strategy/strategy.h"

/* ---- options ---- */

static const ch_input_options default_options;

/* Checks the options of a distributed dataset (5.7.3, 5.7.4). */
static ch_status check_options(const ch_strategy *st, const char *call, bool from_function,
                               const ch_input_options *opt)
{
    if (opt->replication != CH_PER_WORKER && opt->replication != CH_EACH_REPLICA)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: replication is %d, want a ch_replication",
                        call, (int)opt->replication);
    if (opt->fetch_to_device != 0 && opt->fetch_to_device != 1 &&
        opt->fetch_to_device != CH_OFF)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: fetch_to_device is %d, want 0, 1 or CH_OFF",
                        call, opt->fetch_to_device);
    if (opt->replication == CH_EACH_REPLICA && !(from_function && st->parts.own_pipelines))
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s of %s: a pipeline for each replica "
                        "(CH_EACH_REPLICA) needs distribute_datasets_from_function and a "
                        "strategy with own_pipelines, such as Mirrored",
                        call, st->label);
    if (opt->place_on_device && opt->replication != CH_EACH_REPLICA)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: place_on_device needs a pipeline for each replica "
                        "(CH_EACH_REPLICA)",
                        call);
    if (opt->place_on_device && opt->fetch_to_device != CH_OFF)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: with place_on_device elements are on their devices already; turn "
                        "fetch_to_device off (CH_OFF)",
                        call);
    return CH_OK;
}

/* ---- iterators that belong to a strategy ---- */

/* Returns FAILED_PRECONDITION unless this thread may advance an iterator of a strategy (1.3.9).
 * Iterators of Default may be advanced in the scope of any strategy, but not in a step. */
static ch_status may_advance(void *self)
{
    ch_strategy *st = self;

    if (st == ch__strategy_default() && ch__step_recording() == NULL)
        return CH_OK;
    return ch__strategy_check_cross(&st, "next element of a distributed dataset",
                                    "ch_step_in, and give the element to ch_strategy_run");
}

static void drop_strategy(void *self)
{
    ch_strategy_unref(self);
}

ch_strategy *ch__iterator_strategy(const ch_iterator *it)
{
    return it->owner.may_advance == may_advance ? it->owner.self : NULL;
}

/* Creates an iterator over the local part of the data. Takes over the caller's reference to
 * `d`, also on an error. */
static ch_status open_input(ch_strategy *st, ch_dataset *d, const ch_input_options *opt,
                            ch_iterator **out)
{
    bool                stays_on_host = opt->fetch_to_device == CH_OFF && !opt->place_on_device;
    ch_iterator_options o = {
        .n_replicas = st->n_local, .prefetch = opt->per_replica_buffer, .go_on = opt->go_on};
    ch_iterator *it = NULL;
    ch_status    rc = CH_OK;

    if (!stays_on_host && !st->uses_current_device)
        rc = ch__strategy_first_devices(st, &o.device);
    if (rc == CH_OK)
        rc = ch_iterator_new(d, &o, &it);
    ch_dataset_unref(d);
    if (rc != CH_OK)
        return rc;
    ch__iterator_set_owner(
        it, &(ch_iterator_owner){ch_strategy_ref(st), may_advance, drop_strategy});
    *out = it;
    return CH_OK;
}

ch_status ch_strategy_distribute_dataset(ch_strategy *st, ch_dataset *d,
                                         const ch_input_options *opt, ch_iterator **out)
{
    const char *call = "distribute_dataset";
    ch_dataset *mine = NULL;
    ch_status   rc = ch__check_not_null(call, "out", out, NULL, NULL);

    st = ch__strategy_or_current(st);
    opt = opt != NULL ? opt : &default_options;
    if (rc == CH_OK)
        rc = check_options(st, call, false, opt);
    if (rc == CH_OK)
        rc = ch_dataset_distribute(
            d, &(ch_input_context){.n_replicas = st->n_replicas, .split = opt->split}, &mine);
    return rc == CH_OK ? open_input(st, mine, opt, out) : rc;
}

/* Makes a dataset in which each replica reads its own pipeline, made by a call of the function
 * (5.7.5). */
static ch_status make_pipelines(const ch_strategy *st, ch_input_fn fn, void *arg,
                                ch_batch_split split, ch_dataset **out)
{
    int          n = st->n_local, made = 0;
    ch_dataset **each = ch__calloc((size_t)n, sizeof(ch_dataset *));
    ch_status    rc = each == NULL ? ch__fail_memory("pipelines of replicas") : CH_OK;

    for (; made < n && rc == CH_OK; made += rc == CH_OK)
        rc = ch_dataset_from_function(fn, arg,
                                      &(ch_input_context){.n_pipelines = n,
                                                          .pipeline = made,
                                                          .n_replicas = st->n_replicas,
                                                          .split = split},
                                      &each[made]);
    if (rc == CH_OK) {
        *out = ch__dataset_in_turn(n, each); /* owns the datasets from here on */
        made = 0;
        if (*out == NULL)
            rc = ch__fail_earlier("pipelines of %d replicas", n);
    }
    for (int i = 0; i < made; i++)
        ch_dataset_unref(each[i]);
    ch__free(each);
    return rc;
}

ch_status ch_strategy_distribute_datasets_from_function(ch_strategy *st, ch_input_fn fn,
                                                        void *arg, const ch_input_options *opt,
                                                        ch_iterator **out)
{
    const char *call = "distribute_datasets_from_function";
    ch_dataset *mine = NULL;
    ch_status   rc =
        ch__check_not_null(call, "the function", fn != NULL ? call : NULL, "out", out);

    st = ch__strategy_or_current(st);
    opt = opt != NULL ? opt : &default_options;
    if (rc == CH_OK)
        rc = check_options(st, call, true, opt);
    if (rc == CH_OK && opt->replication == CH_EACH_REPLICA)
        rc = make_pipelines(st, fn, arg, opt->split, &mine);
    else if (rc == CH_OK)
        rc = ch_dataset_from_function(
            fn, arg, &(ch_input_context){.n_replicas = st->n_replicas, .split = opt->split},
            &mine);
    return rc == CH_OK ? open_input(st, mine, opt, out) : rc;
}

/* ---- older names of tf.distribute ---- */

ch_status ch_strategy_make_dataset_iterator(ch_strategy *st, ch_dataset *d, ch_iterator **out)
{
    return ch_strategy_distribute_dataset(st, d, NULL, out);
}

ch_status ch_strategy_make_input_fn_iterator(ch_strategy *st, ch_input_fn fn, void *arg,
                                             ch_replication mode, ch_iterator **out)
{
    ch_status rc = ch__strategy_check_cross(&st, "make_input_fn_iterator", "ch_step_in");

    if (rc != CH_OK)
        return rc;
    if (mode != CH_PER_WORKER)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "make_input_fn_iterator: input replication mode %d is not supported; "
                        "want CH_PER_WORKER",
                        (int)mode);
    return ch_strategy_distribute_datasets_from_function(st, fn, arg, NULL, out);
}

/* Returns an error if the elements of the iterator are not for this strategy. Called before the
 * iterator is advanced, because an element that cannot be used would be lost. */
static ch_status check_iterator(const ch_strategy *st, const ch_iterator *it)
{
    const ch_strategy *distributor = it->owner.drop == drop_strategy ? it->owner.self : NULL;

    if (distributor != NULL && distributor != st && distributor != ch__strategy_default())
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "next element: mixing different strategies: %s distributed the iterator, "
            "and the step runs under %s",
            distributor->label, st->label);
    if (it->n_replicas > 1 && it->n_replicas != st->n_local)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "next element: the iterator's elements are for %d replicas, and %s has %d",
            it->n_replicas, st->label, st->n_local);
    return CH_OK;
}

/* Runs `f` with the next element of the iterator. */
static ch_status run_next(ch_strategy *st, ch_function *f, ch_iterator *it, ch_tuple **out)
{
    ch_tuple *in = NULL;
    ch_status rc = check_iterator(st, it);

    if (rc == CH_OK)
        rc = ch_iterator_get_next(it, &in);
    if (rc == CH_OK)
        rc = ch_strategy_run(st, f, in, out);
    ch_tuple_unref(in);
    return rc;
}

ch_status ch_strategy_experimental_run(ch_strategy *st, ch_function *f, ch_iterator *it,
                                       ch_tuple **out)
{
    ch_status rc = ch__strategy_check_cross(&st, "experimental_run", "ch_replica_call");

    if (rc == CH_OK)
        rc = ch__check_not_null("experimental_run", "the function", f, NULL, NULL);
    if (rc != CH_OK)
        return rc;
    return it != NULL ? run_next(st, f, it, out) : ch_strategy_run(st, f, NULL, out);
}

ch_status ch_strategy_run_steps(ch_strategy *st, ch_function *f, ch_iterator *it, int n,
                                ch_tuple **out)
{
    ch_tuple *last = NULL;
    ch_status rc = ch__strategy_check_cross(&st, "run_steps", "ch_replica_call");

    if (rc == CH_OK)
        rc = ch__check_not_null("run_steps", "the function", f, "the iterator", it);
    if (rc == CH_OK && n < 1)
        rc = ch__fail(CH_INVALID_ARGUMENT, "run_steps: %d steps, want at least one", n);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        ch_tuple_unref(last);
        last = NULL;
        rc = run_next(st, f, it, out != NULL ? &last : NULL);
        if (rc != CH_OK)
            rc = ch__fail_at(rc, "run_steps, step %d of %d", i, n);
    }
    if (rc == CH_OK && out != NULL)
        *out = last;
    else
        ch_tuple_unref(last);
    return rc;
}

/* ---- arrays ---- */

/* Copies an array to the host, because the program may change its own array later. */
static ch_status host_copy(ch_tensor *t, ch_tensor **out)
{
    ch_tensor *copy = NULL;
    ch_status  rc;

    if (t == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "numpy dataset: an array is NULL");
    rc = ch_tensor_new_on(ch_device_at(0), ch_tensor_dtype(t), ch_tensor_shape(t), &copy);
    if (rc == CH_OK)
        rc = ch_tensor_copy(t, copy);
    if (rc == CH_OK)
        *out = copy;
    else
        ch_tensor_unref(copy);
    return rc;
}

ch_dataset *ch_strategy_make_numpy_dataset(ch_strategy *st, int n, ch_tensor *const *array,
                                           const char *const *name)
{
    ch_tensor **copy;
    ch_dataset *d = NULL;
    ch_status   rc = ch__strategy_check_cross(&st, "make_numpy_dataset", "ch_constant");

    if (rc == CH_OK && (n < 1 || n > CH_MAX_PARTS || array == NULL))
        rc = ch__fail(CH_INVALID_ARGUMENT, "numpy dataset: arrays%s (got %d, want 1 to %d)",
                      array == NULL ? ": the list is NULL" : ": wrong number", n, CH_MAX_PARTS);
    if (rc != CH_OK)
        return NULL;
    copy = ch__calloc((size_t)n, sizeof(ch_tensor *));
    if (copy == NULL)
        rc = ch__fail_memory("numpy dataset");
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = host_copy(array[i], &copy[i]);
    if (rc == CH_OK)
        d = ch_dataset_slices(n, copy, name);
    for (int i = 0; copy != NULL && i < n; i++)
        ch_tensor_unref(copy[i]);
    ch__free(copy);
    return d;
}
