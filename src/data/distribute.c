/* data/distribute.c -- divides a dataset among workers.
 *
 * ch_dataset_distribute returns the dataset of a worker; strategies and programs call it. The
 * stage `split` (data/rebatch.c) cuts its batches for the replicas of the whole job. The shard
 * policy decides the division:
 *   DATA   each worker reads all data and keeps its own pieces of every batch
 *   FILE   each worker reads its own files and keeps all their elements
 *   HINT   each worker reads its own shard of every `shard` stage with n = CH_BY_HINT
 *   OFF    each worker reads all data and keeps all of it
 * AUTO chooses FILE if there are enough files and the division cannot change the elements that
 * all workers read together. That holds if the stages behind the reader treat elements
 * independently or without regard to their order. Otherwise AUTO chooses DATA.
 *
 * ch__dataset_part divides a dataset into parts for workers that fetch elements at their own
 * pace (strategy/per_worker_data.c). Each element stays whole and is in exactly one part. A
 * part consists of files, as above, or of blocks of elements, which are taken below batches and
 * maps.
 *
 * Both build a new tree of stages from the old. `division` holds the state of such a rewrite.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/call.h"
#include "data/iterator.h"
#include "data/rows.h"
#include "data/stages.h"
#include "graph/op.h"

static bool has_trait(const ch_dataset *d, unsigned trait)
{
    return (d->stage->traits & trait) != 0;
}

/* ---- the size of batches ---- */

/* Returns true if `d` is a map with as many output rows as input rows. */
static bool maps_row_by_row(const ch_dataset *d)
{
    return d->stage == &ch__stage_map && d->graph != NULL && ch__call_keeps_rows(d);
}

/* Follows 5.2.1, except for maps: if a map keeps the number of rows, the size of a full batch
 * is still known behind it (DESIGN section 9, different from 5.2.2). So a short batch is cut in
 * the same way before and behind the map. */
int64_t ch_dataset_batch_size(const ch_dataset *d)
{
    int64_t size = d != NULL ? ch__rows_known(d) : -2;

    if (size >= 0)
        return size;
    if (size == -2)
        return CH_UNKNOWN;
    if (d->stage == &ch__stage_batch)
        return CH_ATTRS_OF(d, Cohort__Batch)->size;
    if (d->stage == &ch__stage_padded_batch)
        return CH_ATTRS_OF(d, Cohort__PaddedBatch)->size;
    if (!has_trait(d, CH_KEEPS_BATCHES) && !maps_row_by_row(d))
        return CH_UNKNOWN;
    size = ch_dataset_batch_size(d->in[0]);
    for (int i = 1; i < d->n_in; i++)
        if (ch_dataset_batch_size(d->in[i]) != size)
            return CH_UNKNOWN;
    return size;
}

/* ---- rewriting trees ---- */

typedef struct division division;
/* Returns the rewritten stage as a new reference; NULL on error. */
typedef ch_dataset *(*rewrite)(division *v, ch_dataset *d);

/* The result of rewriting a stage. It is stored, so that a stage with several consumers is
 * rewritten only once. */
typedef struct rewritten {
    rewrite     how;
    ch_dataset *from, *to; /* `to` is referenced */
} rewritten;

struct division {
    int n, index; /* number of workers, and the index of this worker */
    /* Divide by file only if this cannot change the elements that all workers read together. */
    bool       is_strict;
    char       why_not[160]; /* why the data cannot be divided by file; "": it can */
    int        n_done, cap_done;
    rewritten *done;

    int                n_counted, cap_counted;
    const ch_dataset **counted; /* datasets of file names that were counted already */
};

static void division_free(division *v)
{
    for (int i = 0; i < v->n_done; i++)
        ch_dataset_unref(v->done[i].to);
    ch__free(v->done);
    ch__free(v->counted);
}

/* Returns true if the names were counted before, and records them. If memory is exhausted, the
 * names are not recorded and will be counted again. */
static bool was_counted(division *v, const ch_dataset *names)
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
static ch_dataset *rewrite_once(division *v, ch_dataset *d, rewrite how)
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
    v->done[v->n_done++] = (rewritten){how, d, ch_dataset_ref(to)};
    return to;
}

/* Creates a cache with a separate file for this worker: "train.zst" becomes "train-1-of-4.zst".
 * Takes ownership of `in`. */
static ch_dataset *worker_cache(const division *v, const ch_dataset *d, ch_dataset *in)
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

/* Creates a copy of the stage with other inputs and another body. Takes ownership of them. */
static ch_dataset *with_parts(const division *v, const ch_dataset *d, ch_dataset *const *in,
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
static ch_dataset *rewrite_parts(division *v, ch_dataset *d, rewrite each, rewrite inside)
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
        out = with_parts(v, d, in, body);
    } else {
        for (int i = 0; in != NULL && i < d->n_in; i++)
            ch_dataset_unref(in[i]);
        ch_dataset_unref(body);
    }
    ch__free(in);
    return out;
}

static ch_dataset *rewrite_inputs(division *v, ch_dataset *d, rewrite each)
{
    return rewrite_parts(v, d, each, NULL);
}

/* ---- by hint ---- */

/* Rewrites every shard with n = CH_BY_HINT, also in bodies (5.5.8). The stage `element` of a
 * body is not copied, because the stage that runs the body finds it by its address. */
static ch_dataset *by_hint(division *v, ch_dataset *d)
{
    if (d->stage == &ch__stage_element)
        return ch_dataset_ref(d);
    if (d->stage == &ch__stage_shard && CH_ATTRS_OF(d, Cohort__Shard)->n == CH_BY_HINT) {
        ch_dataset *in = rewrite_once(v, d->in[0], by_hint);

        return in != NULL ? ch_dataset_shard(in, v->n, v->index) : NULL;
    }
    return rewrite_parts(v, d, by_hint, by_hint);
}

/* ---- by file ---- */

static bool reads_files(const ch_dataset *d)
{
    if (has_trait(d, CH_READS_FILES))
        return true;
    for (int i = 0; i < d->n_in; i++)
        if (reads_files(d->in[i]))
            return true;
    return d->body != NULL && reads_files(d->body);
}

/* Records why the data cannot be divided by file, and returns NULL. */
static ch_dataset *fail_by_file(division *v, const char *why, const ch_dataset *d)
{
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
static ch_dataset *divide_names(division *v, ch_dataset *d)
{
    if (has_trait(d, CH_KEEPS_NAMES))
        return rewrite_inputs(v, d, divide_names);
    return ch__dataset_shard(ch_dataset_ref(d), v->n, v->index, "files");
}

/* Divides the tree by file; NULL if that is not possible (v->why_not) or on error. */
static ch_dataset *divide_files(division *v, ch_dataset *d)
{
    if (has_trait(d, CH_READS_FILES))
        return rewrite_inputs(v, d, divide_names);
    if (d->body != NULL && reads_files(d->body) && !reads_files(d->in[0]))
        return rewrite_inputs(v, d, divide_names);
    if (d->n_in == 0)
        return fail_by_file(v, "its source is not a file but", d);
    if (v->is_strict && drops_rows(d))
        return fail_by_file(v, "each worker would drop a remainder of its own in", d);
    if (has_trait(d, CH_DIVIDES) || (!v->is_strict && has_trait(d, CH_DIVIDES_IF_ASKED)))
        return rewrite_inputs(v, d, divide_files);
    return fail_by_file(v, "files cannot be divided below", d);
}

/* Returns the number of names, counted up to 2^20; -1: not known. */
static int64_t count_names(ch_dataset *names)
{
    ch_iterator *it = NULL;
    int64_t      n = 0;

    while (has_trait(names, CH_KEEPS_NAMES))
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
static int64_t fewest_below(division *v, const ch_dataset *d)
{
    int64_t least = INT64_MAX;
    bool is_reader = has_trait(d, CH_READS_FILES) || (d->body != NULL && reads_files(d->body));

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

static int64_t fewest_files(division *v, const ch_dataset *d)
{
    v->n_counted = 0;
    return reads_files(d) ? fewest_below(v, d) : 0;
}

/* ---- the distribution ---- */

/* Returns the context with zero fields replaced by their defaults. */
static ch_input_context with_defaults(const ch_input_context *context)
{
    ch_input_context c = context != NULL ? *context : (ch_input_context){0};

    c.n_pipelines = c.n_pipelines == 0 ? 1 : c.n_pipelines;
    c.n_replicas = c.n_replicas == 0 ? c.n_pipelines : c.n_replicas;
    return c;
}

static ch_status check_context(const ch_input_context *c)
{
    if (c->n_pipelines < 1 || c->pipeline < 0 || c->pipeline >= c->n_pipelines)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "distributing a dataset: worker %d of %d: want an index from 0 to the "
                        "number of workers less 1",
                        c->pipeline, c->n_pipelines);
    if (c->n_replicas < 1 || c->n_replicas % c->n_pipelines != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "distributing a dataset: %d replicas on %d workers; every worker must "
                        "have the same number of replicas",
                        c->n_replicas, c->n_pipelines);
    if (c->split != CH_SPLIT_NOMINAL && c->split != CH_SPLIT_EVEN)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "distributing a dataset: split is %d, want "
                        "CH_SPLIT_NOMINAL or CH_SPLIT_EVEN",
                        (int)c->split);
    return CH_OK;
}

/* Returns the index of a scalar component; -1: all components have rows. An element with a
 * scalar component cannot be cut. */
static int scalar_of(const ch_dataset *d)
{
    for (int i = 0; i < d->n_parts; i++)
        if (d->spec[i].shape.rank == 0)
            return i;
    return -1;
}

/* Returns an error if elements must be cut for several replicas of a worker but have a scalar
 * component. Elements that cannot be cut may only be divided among workers with a single
 * replica (8.6). */
static ch_status check_can_be_cut(const ch_dataset *d, const ch_input_context *c)
{
    int scalar = scalar_of(d);

    if (scalar < 0 || c->n_replicas == c->n_pipelines)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "distributing a dataset: component %d of its elements is a scalar and "
                    "cannot be cut for %d replicas; add a batch (ch_dataset_batch)",
                    scalar, c->n_replicas);
}

/* Returns an error if the order of elements may differ between workers. With policy DATA each
 * worker identifies its own pieces by their order. */
static ch_status check_order(const ch_dataset *d)
{
    if (!d->is_unordered)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "distributing a dataset: with CH_SHARD_DATA all workers must read the data "
                    "in the same order, but the dataset has unordered stages; make them "
                    "ordered, or divide the data by file (CH_SHARD_FILE)");
}

/* Returns the policy for a requested policy, and the reason in *why. If AUTO becomes FILE, also
 * returns the divided dataset in *divided. */
static ch_shard_policy choose(division *v, ch_dataset *d, ch_shard_policy requested,
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

/* Divides the dataset by a policy other than AUTO, unless `choose` has done so. */
static ch_status divide(division *v, ch_dataset *d, ch_shard_policy policy,
                        ch_dataset **divided)
{
    if (*divided != NULL)
        return CH_OK;
    if (policy == CH_SHARD_HINT) {
        *divided = by_hint(v, d);
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

/* Cuts the batches of `d` for the replicas. `batch` is the size of a full batch; 0 or less: not
 * known. With `all`, the worker keeps all pieces, else only those of its own replicas. */
static ch_dataset *split(ch_dataset *d, const ch_input_context *c, int64_t batch, bool all)
{
    Cohort__Split a = COHORT__SPLIT__INIT;
    int           local = c->n_replicas / c->n_pipelines;

    a.batch = batch > 0 && c->split == CH_SPLIT_NOMINAL ? batch : 0;
    a.n = (uint32_t)c->n_replicas;
    a.first = (uint32_t)(c->pipeline * local);
    a.count = (uint32_t)local;
    a.all = all;
    return ch__dataset_new(&ch__stage_split,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &d});
}

/* Selects the share of the worker in the data that it reads: its pieces of each batch, or every
 * n-th element if elements are not batches (5.5.9). `d` is the original dataset. Takes
 * ownership of `divided`. */
static ch_dataset *select_share(const ch_dataset *d, ch_dataset *divided,
                                const ch_input_context *c, ch_shard_policy policy)
{
    if (c->n_replicas == 1)
        return divided;
    if (scalar_of(d) < 0)
        divided = split(divided, c, ch_dataset_batch_size(d), policy != CH_SHARD_DATA);
    else if (policy == CH_SHARD_DATA)
        divided = ch__dataset_shard(divided, c->n_pipelines, c->pipeline, "elements");
    return ch_dataset_prefetch(divided, c->n_replicas);
}

/* Logs the policy and its reason. If AUTO became DATA, logs a warning, once for each dataset,
 * because every worker then does unnecessary work that the program did not ask for. */
static void log_policy(ch_dataset *d, const ch_input_context *c, ch_shard_policy policy,
                       const char *why)
{
    static const char *const name[] = {"OFF", "AUTO", "FILE", "DATA", "HINT"};
    bool is_wasteful = d->options.shard == CH_SHARD_AUTO && policy == CH_SHARD_DATA &&
                       c->n_pipelines > 1 &&
                       !atomic_exchange_explicit(&d->has_warned, true, memory_order_relaxed);

    ch__log(is_wasteful ? CH_LOG_WARNING : CH_LOG_INFO, "autoshard",
            "input of worker %d of %d: policy %s, because %s%s", c->pipeline, c->n_pipelines,
            name[policy + 1], why,
            is_wasteful ? "; every worker reads and maps all data and keeps only its share; "
                          "read at least one file for each worker, or make a dataset for each "
                          "(ch_strategy_distribute_datasets_from_function)"
                        : "");
}

ch_status ch_dataset_distribute(ch_dataset *d, const ch_input_context *context,
                                ch_dataset **out)
{
    ch_input_context c = with_defaults(context);
    division         v;
    ch_dataset      *divided = NULL;
    ch_shard_policy  policy;
    const char      *why;
    ch_status        rc;

    if (d == NULL)
        return ch__fail_earlier("distributing a dataset that was not made");
    rc = ch__check_not_null("distributing a dataset", "out", out, NULL, NULL);
    if (rc == CH_OK)
        rc = check_context(&c);
    if (rc == CH_OK)
        rc = check_can_be_cut(d, &c);
    if (rc != CH_OK)
        return rc;
    v = (division){.n = c.n_pipelines, .index = c.pipeline};
    policy = choose(&v, d, d->options.shard, &divided, &why);
    rc = policy == CH_SHARD_DATA && v.n > 1 ? check_order(d) : CH_OK;
    if (rc == CH_OK)
        rc = divide(&v, d, policy, &divided);
    division_free(&v);
    if (rc != CH_OK)
        return rc;
    log_policy(d, &c, policy, why);
    divided = select_share(d, divided, &c, policy);
    if (divided == NULL)
        return ch__fail_earlier("distributing a dataset");
    *out = divided;
    return CH_OK;
}

/* ---- parts of a dataset ---- */

/* Returns true if the tree has a shard with n = CH_BY_HINT. */
static bool has_open_shard(const ch_dataset *d)
{
    if (d->stage == &ch__stage_shard && CH_ATTRS_OF(d, Cohort__Shard)->n == CH_BY_HINT)
        return true;
    for (int i = 0; i < d->n_in; i++)
        if (has_open_shard(d->in[i]))
            return true;
    return d->body != NULL && has_open_shard(d->body);
}

/* Returns true if the results of the graph depend on more than its inputs. Random numbers, for
 * example, depend on the index of the element. */
static bool depends_on_position(const ch_graph *g)
{
    const unsigned own = CH_OP_RANDOM | CH_OP_READS_ENV | CH_OP_HOST | CH_OP_EFFECT;

    for (const ch_node *n = g->first; n != NULL; n = n->next) {
        if ((n->op->flags & own) != 0)
            return true;
        for (const ch_attr *row = n->op->attrs; row != NULL && row->name != NULL; row++)
            if (row->kind == CH_ATTR_KIND_GRAPH &&
                depends_on_position(*(ch_graph *const *)((const char *)n->attrs + row->offset)))
                return true;
    }
    return false;
}

/* Returns the number of consecutive input elements that an element of `d` is made of; 0: not
 * fixed. */
static int64_t elements_per_output(const ch_dataset *d)
{
    if (d->stage == &ch__stage_batch)
        return CH_ATTRS_OF(d, Cohort__Batch)->size;
    if (d->stage == &ch__stage_padded_batch)
        return CH_ATTRS_OF(d, Cohort__PaddedBatch)->size;
    if (d->stage == &ch__stage_map && (d->graph == NULL || depends_on_position(d->graph)))
        return 0;
    return has_trait(d, CH_ONE_BY_ONE) ? 1 : 0;
}

/* Returns true if a stage at or below `d` computes something that need not be computed for
 * every part. */
static bool saves_work(const ch_dataset *d)
{
    bool passes = d->stage == &ch__stage_shuffle || elements_per_output(d) > 0;

    if (!passes)
        return false;
    return d->stage == &ch__stage_map || d->stage == &ch__stage_examples ||
           elements_per_output(d) > 1 || saves_work(d->in[0]);
}

/* Copies the rows of this part: every n-th block of `block` rows. */
static ch_status copy_rows(const division *v, const ch_tensor *from, int64_t block,
                           ch_tensor **out)
{
    int64_t   rows = from->shape.dim[0], at = 0, n = 0;
    size_t    bytes = rows > 0 ? ch_tensor_bytes(from) / (size_t)rows : 0;
    ch_shape  shape = from->shape;
    ch_status rc;

    for (int64_t k = v->index * block; k < rows; k += v->n * block)
        n += block < rows - k ? block : rows - k;
    shape.dim[0] = n;
    rc = ch_tensor_new(from->dtype, shape, out);
    for (int64_t k = v->index * block; k < rows && rc == CH_OK; k += v->n * block) {
        n = block < rows - k ? block : rows - k;
        memcpy((*out)->data + (size_t)at * bytes, from->data + (size_t)k * bytes,
               (size_t)n * bytes);
        at += n;
    }
    return rc;
}

/* Creates the part of a `slices` dataset with only its own rows, because rows in memory are a
 * part of the description, which is sent to workers. Returns NULL on error. */
static ch_dataset *own_rows(const division *v, const ch_dataset *d, int64_t block)
{
    int          n = ch_tuple_count(d->data);
    ch_tensor  **t = ch__calloc((size_t)n, sizeof(ch_tensor *));
    const char **name = ch__calloc((size_t)n, sizeof(char *));
    ch_dataset  *own = NULL;
    ch_status    rc = t == NULL || name == NULL ? ch__fail_memory("a dataset") : CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        name[i] = ch_tuple_name(d->data, i);
        rc = copy_rows(v, ch_value_at(ch_tuple_at(d->data, i), 0), block, &t[i]);
    }
    if (rc == CH_OK)
        own = ch_dataset_slices(n, t, name);
    for (int i = 0; t != NULL && i < n; i++)
        ch_tensor_unref(t[i]);
    ch__free(t);
    ch__free(name);
    return own;
}

/* Returns true if `d` is a source of rows in memory that can be copied as bytes. */
static bool has_plain_rows(const ch_dataset *d)
{
    if (d->stage != &ch__stage_slices)
        return false;
    for (int i = 0; i < d->n_parts; i++)
        if (d->spec[i].dtype == CH_STR)
            return false;
    return true;
}

/* Keeps every n-th block of elements. The division is made as close to the sources as the
 * number and size of elements allow. Below a shuffle, each part is shuffled by itself, which
 * mixes less. So the division goes below a shuffle only if this saves work. Sets *above to the
 * name of the stage up to which every worker reads all data; leaves it unchanged if there is
 * none. Returns NULL on error. */
static ch_dataset *divide_blocks(division *v, ch_dataset *d, int64_t block, const char **above)
{
    int64_t size =
        d->stage == &ch__stage_shuffle && saves_work(d->in[0]) ? 1 : elements_per_output(d);
    ch_dataset *in;

    if (size <= 0 || block > INT64_MAX / 4 / size / v->n) {
        if (has_plain_rows(d))
            return own_rows(v, d, block);
        *above = d->stage->name;
        return ch__dataset_shard_blocks(ch_dataset_ref(d), v->n, v->index, block);
    }
    in = divide_blocks(v, d->in[0], block * size, above);
    return in != NULL ? with_parts(v, d, &in, NULL) : NULL;
}

/* Creates a part like `choose`, but so that each example is in exactly one part, whatever
 * policy the options have. If neither HINT nor FILE is possible, divides by blocks of elements.
 * Prints the policy and its reason to `how`. */
static ch_dataset *divide_part(division *v, ch_dataset *d, char *how, size_t size,
                               bool *is_wasteful)
{
    const ch_shard_policy requested = d->options.shard;
    ch_dataset           *part = NULL;
    const char           *why, *above = NULL;

    v->is_strict = true;
    if (requested == CH_SHARD_HINT && has_open_shard(d)) {
        snprintf(how, size, "policy HINT, because the options say so");
        return by_hint(v, d);
    }
    if (requested == CH_SHARD_FILE || requested == CH_SHARD_AUTO) {
        (void)choose(v, d, CH_SHARD_AUTO, &part, &why);
        if (part != NULL) {
            snprintf(how, size, "policy FILE, because %s", why);
            return part;
        }
    } else {
        why = requested == CH_SHARD_OFF    ? "OFF would give each example to every worker"
              : requested == CH_SHARD_HINT ? "no shard is left open for HINT"
                                           : "the options say so";
    }
    part = divide_blocks(v, d, 1, &above);
    snprintf(how, size, "policy DATA, because %s; %s%s%s", why,
             above != NULL ? "up to " : "each has rows of its own", above != NULL ? above : "",
             above != NULL ? " every worker reads all" : "");
    /* A range costs almost nothing, so it does not matter that every worker runs all of it. */
    *is_wasteful = requested == CH_SHARD_AUTO && above != NULL && above != ch__stage_range.name;
    return part;
}

ch_status ch__dataset_part(ch_dataset *d, int n, int index, ch_dataset **out)
{
    division v = {.n = n, .index = index};
    char     how[320] = "";
    bool     is_wasteful = false;

    if (n == 1 && !has_open_shard(d)) {
        *out = ch_dataset_ref(d);
        return CH_OK;
    }
    *out = divide_part(&v, d, how, sizeof(how), &is_wasteful);
    division_free(&v);
    if (*out == NULL)
        return ch__fail_earlier("dividing a dataset");
    if (index != 0)
        return CH_OK;
    is_wasteful =
        is_wasteful && !atomic_exchange_explicit(&d->has_warned, true, memory_order_relaxed);
    ch__log(is_wasteful ? CH_LOG_WARNING : CH_LOG_INFO, "autoshard",
            "data that %d workers share: %s", n, how);
    return CH_OK;
}

/* ---- functions that create a dataset for each worker ---- */

ch_status ch_input_context_batch_size(const ch_input_context *context, int64_t global,
                                      int64_t *out)
{
    ch_input_context c = with_defaults(context);
    ch_status        rc = check_context(&c);

    if (rc == CH_OK)
        rc = ch__check_not_null("input_context_batch_size", "out", out, NULL, NULL);
    if (rc != CH_OK)
        return rc;
    if (global < 0 || global % c.n_replicas != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a global batch of %lld rows cannot be divided evenly over %d replicas",
                        (long long)global, c.n_replicas);
    *out = global / c.n_replicas;
    return CH_OK;
}

int ch_input_context_print(const ch_input_context *context, char *text, size_t size)
{
    ch_input_context c = with_defaults(context);

    return snprintf(text, text != NULL ? size : 0,
                    "InputContext(input pipeline id %d, total: %d)", c.pipeline, c.n_pipelines);
}

ch_status ch_dataset_from_function(ch_input_fn fn, void *arg, const ch_input_context *context,
                                   ch_dataset **out)
{
    ch_input_context c = with_defaults(context);
    int              n = c.n_workers > 0 ? c.n_workers : c.n_pipelines;
    int              worker = c.n_workers > 0 ? c.worker : c.pipeline;
    ch_status        rc = ch__check_not_null("dataset of a function", "out", out, NULL, NULL);
    uint64_t         mark;

    if (rc == CH_OK)
        rc = check_context(&c);
    if (rc != CH_OK)
        return rc;
    if (fn == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "dataset of worker %d of %d: the function is NULL",
                        worker, n);
    mark = ch__fail_mark();
    *out = fn(&c, arg);
    if (*out != NULL)
        return CH_OK;
    if (mark == ch__fail_mark())
        (void)ch__fail(CH_INVALID_ARGUMENT,
                       "it returned NULL without an error; call ch_fail to give the reason");
    return ch__fail_earlier("the function's dataset for worker %d of %d", worker, n);
}
