/* data/divide.c -- divides the stages of a dataset among workers: by hint or by file.
 *
 * A ch_division (data/divide.h) holds the state of a rewrite: it builds a new tree of stages
 * from the old tree, with a `shard` where the data is divided. data/distribute.c and
 * data/parts.c are the callers.
 *
 * AUTO chooses FILE if there are enough files and the division cannot change the elements that
 * all workers read together. That holds if the stages behind the reader treat elements
 * independently or without regard to their order. Otherwise AUTO chooses DATA.
 *
 * Invariants:
 *   1. The old tree is not changed. A stage with several consumers is rewritten once, so it
 *      has several consumers in the new tree too.
 *   2. The division is the same on every worker, except for the index of the shard.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/divide.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/stages.h"

/* Remedies of the warning `autoshard`. */
#define REMEDY_FUNCTION                                                                        \
    "make a dataset for each worker (ch_strategy_distribute_datasets_from_function)"
#define REMEDY_FILES "read at least one file for each worker, or " REMEDY_FUNCTION

void ch__division_free(ch_division *v)
{
    for (int i = 0; i < v->n_done; i++)
        ch_dataset_unref(v->done[i].to);
    ch__free(v->done);
    ch__free(v->counted);
}

/* Returns true if the names were counted before, and records them. If memory is exhausted, the
 * names are not recorded and will be counted again. */
static bool was_counted(ch_division *v, const ch_dataset *names)
{
    for (int i = 0; i < v->n_counted; i++)
        if (v->counted[i] == names)
            return true;
    if (ch__grow((void **)&v->counted, &v->cap_counted, v->n_counted + 1, sizeof(*v->counted)))
        v->counted[v->n_counted++] = names;
    return false;
}

/* Returns the stored result of rewriting `d`, or calls `how` and stores its result. Returns
 * NULL on error. */
static ch_dataset *rewrite_once(ch_division *v, ch_dataset *d, ch_stage_rewrite how)
{
    ch_dataset *to;

    for (int i = 0; i < v->n_done; i++)
        if (v->done[i].from == d && v->done[i].how == how)
            return ch_dataset_ref(v->done[i].to);
    to = how(v, d);
    if (to == NULL)
        return NULL;
    if (!ch__grow((void **)&v->done, &v->cap_done, v->n_done + 1, sizeof(*v->done))) {
        (void)ch__fail_memory("distributing a dataset");
        ch_dataset_unref(to);
        return NULL;
    }
    v->done[v->n_done++] = (ch_rewritten_stage){how, d, ch_dataset_ref(to)};
    return to;
}

/* Creates a cache with a separate file for this worker: "train.zst" becomes "train-1-of-4.zst".
 * Takes ownership of `in`. */
static ch_dataset *worker_cache(const ch_division *v, const ch_dataset *d, ch_dataset *in)
{
    const char *path = CH_ATTRS_OF(d, Cohort__CacheFile)->path, *slash = strrchr(path, '/');
    const char *dot = strrchr(slash != NULL ? slash : path, '.');
    size_t      size = strlen(path) + 64, stem = dot != NULL ? (size_t)(dot - path) : size - 64;
    char       *own = ch__malloc(size);

    if (own == NULL) {
        (void)ch__fail_memory("cache_file");
        ch_dataset_unref(in);
        return NULL;
    }
    snprintf(own, size, "%.*s-%d-of-%d%s", (int)stem, path, v->index, v->n, path + stem);
    in = ch__dataset_cache_file(in, own);
    ch__free(own);
    return in;
}

ch_dataset *ch__division_copy(const ch_division *v, const ch_dataset *d, ch_dataset *const *in,
                              ch_dataset *body)
{
    if (d->stage == &ch__stage_cache_file && in[0]->hash != d->in[0]->hash)
        return worker_cache(v, d, in[0]);
    return ch__dataset_new(d->stage, &(ch_dataset_make){.attrs = d->attrs,
                                                        .n_in = d->n_in,
                                                        .in = in,
                                                        .body = body,
                                                        .element = ch_dataset_ref(d->element),
                                                        .graph = ch_graph_ref(d->graph),
                                                        .data = ch_tuple_ref(d->data),
                                                        .call = &d->call});
}

/* Creates a copy of the tree with every input rewritten by `each`, and the body by `inside`. If
 * `inside` is NULL, the body is not changed. Returns NULL on error. */
static ch_dataset *rewrite_parts(ch_division *v, ch_dataset *d, ch_stage_rewrite each,
                                 ch_stage_rewrite inside)
{
    ch_dataset **in = ch__calloc((size_t)d->n_in + 1, sizeof(ch_dataset *));
    ch_dataset  *out = NULL, *body = NULL;
    bool         is_whole = in != NULL;

    if (is_whole && d->body != NULL) {
        body = inside != NULL ? rewrite_once(v, d->body, inside) : ch_dataset_ref(d->body);
        is_whole = body != NULL;
    }
    for (int i = 0; i < d->n_in && is_whole; i++)
        is_whole = (in[i] = rewrite_once(v, d->in[i], each)) != NULL;
    if (is_whole) {
        out = ch__division_copy(v, d, in, body);
    } else {
        for (int i = 0; in != NULL && i < d->n_in; i++)
            ch_dataset_unref(in[i]);
        ch_dataset_unref(body);
    }
    ch__free(in);
    return out;
}

static ch_dataset *rewrite_inputs(ch_division *v, ch_dataset *d, ch_stage_rewrite each)
{
    return rewrite_parts(v, d, each, NULL);
}

/* ---- by hint ---- */

/* Shards in bodies are rewritten too (5.5.8). The stage `element` of a body is not copied,
 * because the stage that runs the body finds it by its address. */
ch_dataset *ch__divide_by_hint(ch_division *v, ch_dataset *d)
{
    if (d->stage == &ch__stage_element)
        return ch_dataset_ref(d);
    if (d->stage == &ch__stage_shard && CH_ATTRS_OF(d, Cohort__Shard)->n == CH_BY_HINT) {
        ch_dataset *in = rewrite_once(v, d->in[0], ch__divide_by_hint);

        return in != NULL ? ch_dataset_shard(in, v->n, v->index) : NULL;
    }
    return rewrite_parts(v, d, ch__divide_by_hint, ch__divide_by_hint);
}

/* ---- by file ---- */

static bool reads_files(const ch_dataset *d)
{
    if (ch__dataset_has_trait(d, CH_READS_FILES))
        return true;
    for (int i = 0; i < d->n_in; i++)
        if (reads_files(d->in[i]))
            return true;
    return d->body != NULL && reads_files(d->body);
}

/* Records why the data cannot be divided by file, and the remedy if AUTO was requested. Returns
 * NULL. */
static ch_dataset *fail_by_file(ch_division *v, const char *why, const ch_dataset *d,
                                const char *remedy)
{
    v->remedy = remedy;
    snprintf(v->why_not, sizeof(v->why_not), "%s %s", why, d->stage->name);
    (void)ch__fail(CH_NOT_FOUND,
                   "could not divide the data by file: %s; use policy CH_SHARD_DATA",
                   v->why_not);
    return NULL;
}

/* Returns true if the stage drops a short last batch. Each worker would then drop its own
 * remainder, so that together they read fewer elements than a single worker. */
static bool drops_rows(const ch_dataset *d)
{
    return (d->stage == &ch__stage_batch && CH_ATTRS_OF(d, Cohort__Batch)->drop_remainder) ||
           (d->stage == &ch__stage_padded_batch &&
            CH_ATTRS_OF(d, Cohort__PaddedBatch)->drop_remainder) ||
           (d->stage == &ch__stage_bucket && CH_ATTRS_OF(d, Cohort__Bucket)->drop_remainder) ||
           (d->stage == &ch__stage_rebatch && CH_ATTRS_OF(d, Cohort__Rebatch)->drop_remainder);
}

/* Divides the names of files. The shard goes below shuffles of names, so that the workers read
 * disjoint files whatever order they draw (5.5.4). */
static ch_dataset *divide_names(ch_division *v, ch_dataset *d)
{
    if (ch__dataset_has_trait(d, CH_KEEPS_NAMES))
        return rewrite_inputs(v, d, divide_names);
    return ch__dataset_shard(ch_dataset_ref(d), v->n, v->index, "files");
}

/* Divides the tree by file; NULL if that is not possible (v->why_not) or on error. */
static ch_dataset *divide_files(ch_division *v, ch_dataset *d)
{
    if (ch__dataset_has_trait(d, CH_READS_FILES))
        return rewrite_inputs(v, d, divide_names);
    if (d->body != NULL && reads_files(d->body) && !reads_files(d->in[0]))
        return rewrite_inputs(v, d, divide_names);
    if (d->n_in == 0)
        return fail_by_file(v, "its source is not a file but", d, REMEDY_FILES);
    if (v->is_strict && drops_rows(d))
        return fail_by_file(v, "each worker would drop a remainder of its own in", d,
                            "leave drop_remainder unset, or set policy CH_SHARD_FILE, so that "
                            "each worker drops its own remainder");
    if (ch__dataset_has_trait(d, CH_DIVIDES) ||
        (!v->is_strict && ch__dataset_has_trait(d, CH_DIVIDES_IF_ASKED)))
        return rewrite_inputs(v, d, divide_files);
    return fail_by_file(v, "files cannot be divided below", d,
                        ch__dataset_has_trait(d, CH_DIVIDES_IF_ASKED)
                            ? "set policy CH_SHARD_FILE if each worker may run that stage on "
                              "its own files"
                            : REMEDY_FUNCTION);
}

/* Returns the number of names, counted up to 2^20; -1: not known. */
static int64_t count_names(ch_dataset *names)
{
    ch_iterator *it = NULL;
    int64_t      n = 0;

    while (ch__dataset_has_trait(names, CH_KEEPS_NAMES))
        names = names->in[0];
    if (names->cardinality >= 0)
        return names->cardinality;
    if (names->cardinality == CH_INFINITE || ch_iterator_new(names, NULL, &it) != CH_OK)
        return -1;
    for (ch_tuple *t = NULL; n >= 0 && n < (1 << 20); n++) {
        if (ch_iterator_next(it, &t) != CH_OK)
            n = -2;
        else if (t == NULL)
            break;
        ch_tuple_unref(t);
        t = NULL;
    }
    ch_iterator_unref(it);
    return n;
}

/* Returns the smallest number of files of any reader below `d`; -1: some number is not
 * known. */
static int64_t fewest_below(ch_division *v, const ch_dataset *d)
{
    int64_t least = INT64_MAX;
    bool    is_reader =
        ch__dataset_has_trait(d, CH_READS_FILES) || (d->body != NULL && reads_files(d->body));

    for (int i = 0; i < d->n_in; i++) {
        ch_dataset *in = d->in[i];
        int64_t     n = least;

        if (!is_reader || reads_files(in))
            n = fewest_below(v, in);
        else if (!was_counted(v, in))
            n = count_names(in);
        least = n < least ? n : least;
    }
    return least;
}

static int64_t fewest_files(ch_division *v, const ch_dataset *d)
{
    v->n_counted = 0;
    return reads_files(d) ? fewest_below(v, d) : 0;
}

/* ---- the policy ---- */

ch_shard_policy ch__division_choose(ch_division *v, ch_dataset *d, ch_shard_policy requested,
                                    ch_dataset **divided, const char **why)
{
    int64_t n;

    *why = "the options say so";
    if (v->n == 1 && requested != CH_SHARD_OFF) {
        *why = "there is one worker";
        return requested == CH_SHARD_HINT ? CH_SHARD_HINT : CH_SHARD_DATA;
    }
    if (requested != CH_SHARD_AUTO)
        return requested;
    v->is_strict = true;
    v->remedy = REMEDY_FILES;
    n = fewest_files(v, d);
    *why = !reads_files(d) ? "it does not read files"
           : n < 0         ? "the number of its files is not known"
                           : "there are fewer files than workers";
    if (n >= v->n) {
        *divided = divide_files(v, d);
        *why = *divided != NULL ? "there are enough files" : v->why_not;
    }
    return *divided != NULL ? CH_SHARD_FILE : CH_SHARD_DATA;
}

ch_status ch__divide(ch_division *v, ch_dataset *d, ch_shard_policy policy,
                     ch_dataset **divided)
{
    if (*divided != NULL)
        return CH_OK;
    if (policy == CH_SHARD_HINT) {
        *divided = ch__divide_by_hint(v, d);
    } else if (policy == CH_SHARD_FILE) {
        int64_t n = fewest_files(v, d);

        if (reads_files(d) && n >= 0 && n < v->n)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "could not divide the data by file: there are %lld files, which is not "
                "enough for %d workers; use policy CH_SHARD_DATA, or fewer workers",
                (long long)n, v->n);
        *divided = divide_files(v, d);
    } else {
        *divided = ch_dataset_ref(d);
    }
    if (*divided != NULL)
        return CH_OK;
    /* The message is recorded already. */
    return v->why_not[0] != '\0' ? CH_NOT_FOUND : CH_INVALID_ARGUMENT;
}
