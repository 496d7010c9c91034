/* data/iterator.c -- iterators: the public functions that create, read, save and restore them.
 *
 * A ch_iterator (data/iterator.h) owns a tree of cursors and the threads that run the jobs of
 * their workqueues. The root of the tree is a cursor of the private stage `iterator`. Its
 * workqueue prefetches for the program. ch_iterator_next collects a group of its elements, one
 * for each replica, and returns the group as a tuple. The threads are in
 * data/iterator_threads.c, the profiles in data/profile.c.
 *
 * If a distribution divides batches among replicas, the stage `split` is the root and reads
 * from the stage `iterator`. So the workqueues hold whole batches, and a position between two
 * batches does not depend on the number of replicas.
 *
 * Callers: the program; src/fit/ and src/strategy/, which read batches; src/job/worker/, which
 * reads a stream of elements by number.
 *
 * Invariants:
 *   1. One thread at a time calls the functions of an iterator, so `group`, `root` and the
 *      flags need no lock. it->lock guards the workqueues, which the worker threads use too.
 *   2. Worker threads start with the first element and end when the iterator is freed.
 *   3. A position is saved and restored while the worker threads are paused: no job is running.
 *   4. A restore loads into new cursors. If it fails, the old cursors are still valid.
 *   5. The hash that a restore compares is that of the stage `iterator`, without `split`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/iterator.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/element_pool.h"
#include "data/position.h"
#include "data/rows.h"
#include "data/stages.h"

enum { MOST_REPLICAS = 1 << 16 };

/* ---- the stage `iterator`: prefetches for the program ---- */

/* A job has the elements of a step: a batch that is split, or an element for each replica. */
static ch_status out_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {ch__workqueue_pull_input, NULL};
    const ch_iterator            *it = c->it;
    ch_workqueue_options          opt = {.want = c->parent != NULL ? 1 : it->n_replicas,
                                         .prefetch = it->prefetch,
                                         .per_result = 1,
                                         .is_output = true};

    return ch__workqueue_open(c, &ops, &opt);
}

static void out_save(ch_cursor *c, ch_saver *s)
{
    ch_iterator *it = c->it;

    ch__save_int(s, it->has_ended);
    ch__save_int(s, it->n_group);
    for (int i = 0; i < it->n_group; i++)
        if (it->group[i] != NULL)
            ch__save_element(s, it->group[i]);
        else
            ch__save_fault(s, CH_ABORTED, "its error was returned", false);
    ch__queued_save(c, s);
}

static void drop_group(ch_iterator *it)
{
    for (int i = 0; i < it->n_group; i++)
        ch__element_free(it->group[i]);
    it->n_group = 0;
}

/* Returns true if the group is empty, or if all its elements failed. */
static bool is_lost(const ch_iterator *it)
{
    for (int i = 0; i < it->n_group; i++)
        if (it->group[i] != NULL)
            return false;
    return true;
}

/* Empties a full group if all its elements failed, because a step would have no data. */
static void drop_lost_group(ch_iterator *it)
{
    if (it->n_group == it->n_replicas && is_lost(it))
        it->n_group = 0;
}

static ch_status out_load(ch_cursor *c, ch_loader *l)
{
    ch_iterator *it = c->it;

    drop_group(it);
    it->has_ended = ch__load_int(l, 0, 1) != 0;
    int n = (int)ch__load_int(l, 0, it->n_replicas);
    for (int i = 0; i < n && !ch__load_fails(l); i++) {
        ch_status rc;

        it->group[i] = ch__load_result(l, it->dataset, &rc);
        it->n_group += it->group[i] != NULL || rc != CH_OK;
    }
    drop_lost_group(it);
    if (ch__load_fails(l))
        return ch__load_status(l);
    return ch__queued_load(c, l);
}

static const ch_stage out_stage = {
    .name = "iterator",
    .n_in = 1,
    .cursor_bytes = sizeof(ch_cursor),
    .infer = ch__infer_like_input,
    .open = out_open,
    .next = ch__queued_next,
    .rewind = ch__queued_rewind,
    .save = out_save,
    .load = out_load,
    .close = ch__close_nothing,
};

/* Returns the dataset of the root cursor of an iterator over `d`; NULL on an error. A prefetch
 * behind `split` is left out: the stage `iterator` prefetches before. */
static ch_dataset *root_of(ch_dataset *d)
{
    ch_dataset *split = d, *out;

    while (split->stage == &ch__stage_options || split->stage == &ch__stage_prefetch)
        split = split->in[0];
    if (split->stage != &ch__stage_split)
        split = NULL;
    d = ch_dataset_ref(split != NULL ? split->in[0] : d);
    out = ch__dataset_new(&out_stage, &(ch_dataset_make){.n_in = 1, .in = &d});
    if (split == NULL)
        return out;
    return ch__dataset_new(split->stage,
                           &(ch_dataset_make){.attrs = split->attrs, .n_in = 1, .in = &out});
}

/* Returns the hash of the dataset that positions belong to. */
static uint64_t hash_of(const ch_iterator *it)
{
    const ch_dataset *d = it->dataset;

    return d->stage == &out_stage ? d->hash : d->in[0]->hash;
}

/* ---- creating and freeing ---- */

static ch_status make_room(ch_iterator *it, const ch_iterator_options *opt)
{
    size_t n = (size_t)it->n_replicas;

    it->group = ch__calloc(n, sizeof(ch_element *));
    it->worker = ch__calloc((size_t)it->n_threads + 1, sizeof(ch_thread *));
    if (opt->device != NULL && (it->device = ch__calloc(n, sizeof(ch_device *))) != NULL)
        memcpy(it->device, opt->device, n * sizeof(ch_device *));
    if (it->group == NULL || it->worker == NULL || (opt->device != NULL && it->device == NULL))
        return ch__fail_memory("iterator");
    return CH_OK;
}

/* Frees the cursors and the group of the current position. */
static void free_position(ch_iterator *it)
{
    ch__cursor_close(it->root);
    if (it->group != NULL)
        drop_group(it);
    ch__free(it->group);
}

static void iterator_free(ch_iterator *it)
{
    ch__iterator_stop_workers(it);
    free_position(it);
    ch__row_tensors_drop(&it->tensors);
    ch_dataset_unref(it->dataset);
    pthread_cond_destroy(&it->idle.changed);
    pthread_cond_destroy(&it->others.changed);
    pthread_mutex_destroy(&it->lock);
    ch__free(it->workqueue);
    ch__free(it->worker);
    ch__free(it->device);
    ch__free(it->captured);
    if (it->owner.drop != NULL)
        it->owner.drop(it->owner.self);
    ch__free(it);
    ch__element_pool_close();
}

ch_status ch_iterator_new(ch_dataset *d, const ch_iterator_options *opt, ch_iterator **out)
{
    return ch__iterator_new_named(d, opt, (ch_stream_name){0}, out);
}

ch_status ch__iterator_new_named(ch_dataset *d, const ch_iterator_options *opt,
                                 ch_stream_name name, ch_iterator **out)
{
    static const ch_iterator_options none;
    ch_iterator                     *it;
    ch_status                        rc;

    if (d == NULL)
        return ch__fail_earlier(
            "iterator: the dataset is NULL, because an earlier call failed");
    rc = ch__check_not_null("iterator", "out", out, NULL, NULL);
    if (rc != CH_OK)
        return rc;
    if (opt == NULL)
        opt = &none;
    if (opt->n_replicas < 0 || opt->n_replicas > MOST_REPLICAS)
        return ch__fail(CH_INVALID_ARGUMENT, "iterator: n_replicas is %d, want 0 to %d",
                        opt->n_replicas, MOST_REPLICAS);
    if (opt->prefetch < CH_OFF)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "iterator: prefetch is %d, want 0 or more, or CH_OFF", opt->prefetch);
    it = ch__calloc(1, sizeof(*it));
    if (it == NULL)
        return ch__fail_memory("iterator");
    atomic_init(&it->refs, 1);
    ch__element_pool_open();
    ch__waiters_init(&it->idle);
    ch__waiters_init(&it->others);
    pthread_mutex_init(&it->lock, NULL);
    it->skips_made = it->skips;
    it->name = name;
    it->go_on = opt->go_on;
    it->n_replicas = opt->n_replicas > 0 ? opt->n_replicas : 1;
    it->prefetch = opt->prefetch;
    int threads = d->options.threads;
    it->n_threads = threads == 0 ? ch__cpu_count() : threads == CH_OFF ? 0 : threads;
    it->unordered = d->options.unordered;
    it->budget.most = ch__min(d->options.memory_bytes, INT64_MAX / 8);
    rc = make_room(it, opt);
    if (rc == CH_OK) {
        it->dataset = root_of(d);
        rc = it->dataset == NULL ? CH_RESOURCE_EXHAUSTED
                                 : ch__row_tensors_collect(&it->tensors, it->dataset);
    }
    if (rc == CH_OK)
        rc = ch__cursor_open(it, it->dataset, NULL, &it->root);
    if (rc == CH_OK)
        *out = it;
    else
        iterator_free(it);
    return rc;
}

ch_iterator *ch_iterator_ref(ch_iterator *it)
{
    if (it != NULL)
        atomic_fetch_add_explicit(&it->refs, 1, memory_order_relaxed);
    return it;
}

void ch_iterator_unref(ch_iterator *it)
{
    if (it != NULL && atomic_fetch_sub_explicit(&it->refs, 1, memory_order_acq_rel) == 1)
        iterator_free(it);
}

void ch__iterator_set_owner(ch_iterator *it, const ch_iterator_owner *owner)
{
    it->owner = *owner;
}

/* ---- reading elements ---- */

/* Returns the shape of a part in an element without rows. */
static ch_shape empty_shape(const ch_dataset *d, int part)
{
    ch_shape shape = d->spec[part].shape;
    bool     fixed = true;

    if (ch__rows_values_of(d, part) >= 0)
        return ch_shape_of(1); /* row splits of 0 rows: the single value 0 */
    for (int k = 0; k < shape.rank; k++) {
        fixed &= shape.dim[k] >= 0;
        shape.dim[k] = shape.dim[k] < 0 ? 0 : shape.dim[k];
    }
    if (shape.rank > 0 && (fixed || ch__rows_splits_of(d, part) >= 0))
        shape.dim[0] = 0;
    return shape;
}

ch_status ch__element_of_no_rows(const ch_dataset *d, ch_element **out)
{
    enum { VALUE_BYTES = 16 }; /* room for a scalar of any dtype */
    ch_element *e = ch__element_new(d->n_parts, 0, (size_t)d->n_parts * VALUE_BYTES);

    if (e == NULL)
        return ch__fail_memory("element without rows");
    memset(e->room, 0, (size_t)d->n_parts * VALUE_BYTES);
    for (int i = 0; i < d->n_parts; i++) {
        ch_shape shape = empty_shape(d, i);
        bool     has_value = ch_shape_count(shape) > 0;

        e->part[i] = (ch_part){.dtype = d->spec[i].dtype,
                               .shape = shape,
                               .data = has_value ? (char *)e->room + i * VALUE_BYTES : NULL};
    }
    *out = e;
    return CH_OK;
}

/* Fills the group with elements without rows: for the replicas whose element failed, and for
 * the replicas left over when the data has ended. */
static ch_status fill_gaps(ch_iterator *it)
{
    ch_status rc = CH_OK;

    while (it->n_group < it->n_replicas)
        it->group[it->n_group++] = NULL;
    for (int i = 0; i < it->n_group && rc == CH_OK; i++)
        if (it->group[i] == NULL)
            rc = ch__element_of_no_rows(it->dataset, &it->group[i]);
    return rc;
}

/* Fills the group. Sets *is_end if the data has ended and there is no element for the group.
 *
 * If an error interrupts it, the group is kept and the next call continues to fill it. An
 * element that failed leaves its entry NULL, so that the elements after it go to the same
 * replicas as without the error. A group whose elements all failed is skipped. */
static ch_status fill_group(ch_iterator *it, bool *is_end)
{
    while (it->n_group < it->n_replicas && !it->has_ended) {
        ch_element *e = NULL;
        ch_status   rc = ch__cursor_next(it->root, &e);

        it->has_ended = rc == CH_OK && e == NULL;
        if (e != NULL || (rc != CH_OK && !ch__error_is_between()))
            it->group[it->n_group++] = e;
        drop_lost_group(it);
        if (rc != CH_OK)
            return rc;
    }
    *is_end = is_lost(it);
    if (!*is_end)
        return fill_gaps(it);
    it->n_group = 0;
    return CH_OK;
}

ch_status ch_iterator_next(ch_iterator *it, ch_tuple **out)
{
    bool      is_end = false;
    ch_status rc = ch__check_not_null("iterator", "the iterator", it, "out", out);

    if (rc == CH_OK && it->owner.may_advance != NULL)
        rc = it->owner.may_advance(it->owner.self);
    if (rc != CH_OK)
        return rc;
    if (it->has_failed && !it->go_on)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "iterator: it ended with an error; call ch_iterator_restart, or set "
                        "go_on of ch_iterator_options (of ch_input_options, if a strategy made "
                        "the iterator) to continue after errors");
    if (!it->has_started)
        ch__iterator_start_workers(it);
    rc = fill_group(it, &is_end);
    it->has_failed |= rc != CH_OK;
    if (rc != CH_OK)
        return rc;
    if (is_end) {
        *out = NULL;
        return CH_OK;
    }
    it->n_group = 0;
    return ch__elements_to_tuple(it->n_replicas, it->group, it->dataset->spec, it->device, out);
}

ch_status ch__iterator_no_rows(ch_iterator *it, ch_tuple **out)
{
    ch_element **e = ch__calloc((size_t)it->n_replicas, sizeof(*e));
    ch_status    rc = e == NULL ? ch__fail_memory("batch without rows") : CH_OK;
    int          n = 0;

    for (; n < it->n_replicas && rc == CH_OK; n += rc == CH_OK)
        rc = ch__element_of_no_rows(it->dataset, &e[n]);
    if (rc == CH_OK)
        rc = ch__elements_to_tuple(n, e, it->dataset->spec, it->device, out);
    else
        for (int i = 0; i < n; i++)
            ch__element_free(e[i]);
    ch__free(e);
    return rc;
}

ch_status ch_iterator_get_next(ch_iterator *it, ch_tuple **out)
{
    ch_tuple *t = NULL;
    ch_status rc = ch__check_not_null("iterator", "the iterator", it, "out", out);

    if (rc == CH_OK)
        rc = ch_iterator_next(it, &t);
    if (rc == CH_OK && t == NULL)
        return ch__fail(CH_OUT_OF_RANGE, "iterator: end of the data");
    if (rc == CH_OK)
        *out = t;
    return rc;
}

ch_status ch_iterator_restart(ch_iterator *it)
{
    ch_status rc = ch__check_not_null("restart", "the iterator", it, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    drop_group(it);
    it->has_failed = it->has_ended = false;
    return ch__cursor_rewind(it->root);
}

int ch_iterator_element_spec(const ch_iterator *it, const ch_tensor_spec **out)
{
    return ch_dataset_element_spec(it != NULL ? it->dataset : NULL, out);
}

int64_t ch_iterator_skipped(const ch_iterator *it)
{
    return it != NULL ? atomic_load(&it->root->skips->n) : 0;
}

/* ---- positions ---- */

ch_status ch_iterator_save(ch_iterator *it, void **bytes, size_t *n)
{
    ch_status rc = ch__check_not_null("save", "the iterator", it, NULL, NULL);

    if (rc == CH_OK)
        rc = ch__check_not_null("save", "bytes", bytes, "n", n);
    if (rc != CH_OK)
        return rc;
    if (it->captured != NULL) {
        *bytes = ch__malloc(it->n_captured);
        if (*bytes == NULL)
            return ch__fail_memory("a position");
        memcpy(*bytes, it->captured, it->n_captured);
        *n = it->n_captured;
        return CH_OK;
    }
    ch__iterator_pause_workers(it);
    rc = ch__position_save(it->root, hash_of(it), bytes, n);
    ch__iterator_resume_workers(it);
    return rc;
}

ch_status ch__iterator_capture(ch_iterator *it)
{
    void     *bytes = NULL;
    size_t    n = 0;
    ch_status rc;

    ch__iterator_release(it);
    rc = ch_iterator_save(it, &bytes, &n);
    if (rc != CH_OK)
        return rc;
    it->captured = bytes;
    it->n_captured = n;
    return CH_OK;
}

void ch__iterator_release(ch_iterator *it)
{
    ch__free(it->captured);
    it->captured = NULL;
}

/* The fields of an iterator that a restore replaces. `root` and `group` are owned. */
typedef struct iterator_state {
    ch_cursor   *root;
    ch_element **group;
    int          n_group;
    bool         has_failed, has_ended;

    ch_stream_name name;
} iterator_state;

static iterator_state get_state(const ch_iterator *it)
{
    return (iterator_state){it->root,       it->group,     it->n_group,
                            it->has_failed, it->has_ended, it->name};
}

static void set_state(ch_iterator *it, const iterator_state *s)
{
    it->root = s->root;
    it->group = s->group;
    it->n_group = s->n_group;
    it->has_failed = s->has_failed;
    it->has_ended = s->has_ended;
    it->name = s->name;
}

/* Moves the iterator to a position. Loads into new cursors, so that the old cursors are
 * unchanged if the position is invalid. While both trees exist, the budget counts two trees. */
static ch_status load_position(ch_iterator *it, const Cohort__Position *position)
{
    iterator_state old = get_state(it), new;
    ch_status      rc;

    it->skips_made = &it->skips[it->root->skips == it->skips];
    *it->skips_made = (ch_skips){0};
    set_state(
        it, &(iterator_state){.group = ch__calloc((size_t)it->n_replicas, sizeof(ch_element *)),
                              .name = {position->reader, position->pass}});
    it->budget.n_more++;
    rc = it->group == NULL ? ch__fail_memory("iterator")
                           : ch__cursor_open(it, it->dataset, NULL, &it->root);
    if (rc == CH_OK)
        rc = ch__position_load(it->root, position);
    new = get_state(it);
    set_state(it, rc == CH_OK ? &old : &new);
    free_position(it);
    set_state(it, rc == CH_OK ? &new : &old);
    it->budget.n_more--;
    return rc;
}

/* Returns to the position saved in `bytes` after a restore failed with `rc`. Needed if a
 * generator has a single state for all cursors, because the failed restore has changed that
 * state. Returns `rc`; its message also says so if the generator could not be reset. */
static ch_status undo_restore(ch_iterator *it, const void *bytes, size_t n, ch_status rc)
{
    Cohort__Position *position = NULL;
    bool              had_failed = it->has_failed;
    char              message[CH_FAULT_TEXT];

    snprintf(message, sizeof(message), "%s", ch_error_message());
    if (ch__position_read(hash_of(it), bytes, n, &position) == CH_OK &&
        load_position(it, position) == CH_OK) {
        it->has_failed = had_failed;
        (void)ch__fail(rc, "%s", message);
    } else {
        it->has_failed = true;
        (void)ch__fail_at(
            rc, "restore: %s; the generator could not be reset to its old position", message);
    }
    ch__protobuf_free(position != NULL ? &position->base : NULL);
    return rc;
}

ch_status ch_iterator_restore(ch_iterator *it, const void *bytes, size_t n)
{
    Cohort__Position *position = NULL;
    void             *saved = NULL;
    size_t            n_saved = 0;
    ch_status         rc = ch__check_not_null("restore", "the iterator", it, "bytes", bytes);

    if (rc == CH_OK)
        rc = ch__position_read(hash_of(it), bytes, n, &position);
    if (rc != CH_OK)
        return rc;
    ch__iterator_pause_workers(it);
    if (it->dataset->shares_state)
        rc = ch__position_save(it->root, hash_of(it), &saved, &n_saved);
    if (rc == CH_OK) {
        rc = load_position(it, position);
        if (rc != CH_OK && saved != NULL)
            rc = undo_restore(it, saved, n_saved, rc);
    }
    ch__iterator_resume_workers(it);
    ch_bytes_free(saved);
    ch__protobuf_free(&position->base);
    return rc;
}
