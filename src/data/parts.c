/* data/parts.c -- divides a dataset into parts for workers that fetch at their own pace.
 *
 * ch__dataset_part is called by strategy/per_worker_data.c. Each element stays whole and is in
 * exactly one part. A part consists of files (data/divide.h), or of blocks of elements, which
 * are taken below batches and maps, so that a worker does not compute elements of other parts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/divide.h"
#include "data/stages.h"
#include "graph/op.h"

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
    return ch__dataset_has_trait(d, CH_ONE_BY_ONE) ? 1 : 0;
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
static ch_status copy_rows(const ch_division *v, const ch_tensor *from, int64_t block,
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
static ch_dataset *own_rows(const ch_division *v, const ch_dataset *d, int64_t block)
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
static ch_dataset *divide_blocks(ch_division *v, ch_dataset *d, int64_t block,
                                 const char **above)
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
    return in != NULL ? ch__division_copy(v, d, &in, NULL) : NULL;
}

/* Creates a part so that each example is in exactly one part, whatever policy the options have.
 * Divides by HINT or FILE as ch__division_choose does, or else by blocks of elements. Prints
 * the policy and its reason to `how`. */
static ch_dataset *divide_part(ch_division *v, ch_dataset *d, char *how, size_t size,
                               bool *is_wasteful)
{
    const ch_shard_policy requested = d->options.shard;
    ch_dataset           *part = NULL;
    const char           *why, *above = NULL;

    v->is_strict = true;
    if (requested == CH_SHARD_HINT && has_open_shard(d)) {
        snprintf(how, size, "policy HINT, because the options say so");
        return ch__divide_by_hint(v, d);
    }
    if (requested == CH_SHARD_FILE || requested == CH_SHARD_AUTO) {
        (void)ch__division_choose(v, d, CH_SHARD_AUTO, &part, &why);
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
    ch_division v = {.n = n, .index = index};
    char        how[320] = "";
    bool        is_wasteful = false;

    if (n == 1 && !has_open_shard(d)) {
        *out = ch_dataset_ref(d);
        return CH_OK;
    }
    *out = divide_part(&v, d, how, sizeof(how), &is_wasteful);
    ch__division_free(&v);
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
