/* save/plan.c -- divides the values of a tree into items of data files.
 *
 * Local variables and all other values are in file 0. A variable on parameter servers has an
 * item for each shard, in the file of the shard's server. Items above 64 MiB are cut into
 * slices of their first axis.
 *
 * The struct `planning` has the first error; after it nothing more is added.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "save/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "ckpt/metadata.h"
#include "ckpt/object_graph.h"
#include "save/save.h"
#include "strategy/cut.h"
#include "strategy/strategy.h"

enum { PAGE = 4096 };

typedef struct planning {
    ch_save_plan *plan;
    int64_t       left; /* bytes that may still be staged */
    ch_status     rc;   /* first error */
} planning;

static void out_of_memory(planning *p)
{
    if (p->rc == CH_OK)
        p->rc = ch__fail_memory("a checkpoint");
}

static void add_item(planning *p, const ch_ckpt_item *item, const ch_item_source *source)
{
    ch_save_plan *plan = p->plan;
    int           need = plan->n_items + 1;

    if (p->rc != CH_OK)
        return;
    if (!ch__grow((void **)&plan->item, &plan->cap_items, need, sizeof(*item)) ||
        !ch__grow((void **)&plan->source, &plan->cap_sources, need, sizeof(*source))) {
        out_of_memory(p);
        return;
    }
    plan->item[plan->n_items] = *item;
    plan->source[plan->n_items++] = *source;
}

/* Adds a region of a variable or tensor, in slices if it is large. source.bytes is the address
 * of the region, which is contiguous. */
static void add_region(planning *p, const char *key, ch_dtype dtype, ch_shape whole,
                       const ch_region *region, int file, ch_item_source source)
{
    ch_shape shape = whole;
    int64_t  rows, row_bytes;
    bool     is_local = source.from == CH_FROM_VAR;

    for (int k = 0; k < shape.rank; k++)
        shape.dim[k] = region->size[k];
    rows = shape.rank > 0 ? shape.dim[0] : 1;
    row_bytes = rows > 0 ? ch__ckpt_bytes(dtype, shape) / rows : 0;

    int64_t each = ch__ckpt_slice_rows(dtype, shape), at = 0;

    do {
        int64_t        now = ch__min(each, rows - at);
        ch_ckpt_item   item = {.name = key,
                               .dtype = dtype,
                               .whole = whole,
                               .file = file,
                               .bytes = now * row_bytes};
        ch_item_source from = source;

        item.region = *region;
        if (whole.rank > 0) {
            item.region.begin[0] += at;
            item.region.size[0] = now;
        }
        item.is_slice = ch__ckpt_bytes(dtype, whole) != item.bytes;
        if (from.bytes != NULL)
            from.bytes += at * row_bytes;
        if (is_local && item.bytes <= p->left) {
            from.from = CH_FROM_STAGING;
            p->left -= item.bytes;
        }
        add_item(p, &item, &from);
        at += now;
    } while (at < rows && p->rc == CH_OK);
}

static void add_strings(planning *p, const char *key, ch_shape shape, int64_t n,
                        const ch_str *text)
{
    ch_bytes_builder b = {NULL};
    ch_ckpt_item     item = {.name = key, .dtype = CH_STR, .whole = shape};
    const char      *bytes;

    ch__ckpt_encode_strings(n, text, &b, &item.crc);
    item.bytes = (int64_t)b.n;
    bytes = b.has_failed ? NULL : ch__arena_copy(&p->plan->memory, b.at, b.n);
    ch__bytes_builder_drop(&b);
    if (bytes == NULL && (n > 0 || b.has_failed))
        out_of_memory(p);
    add_item(p, &item, &(ch_item_source){CH_FROM_TENSOR, bytes, NULL});
}

static void add_tensor(planning *p, const char *key, ch_tensor *t)
{
    ch_shape  shape = ch_tensor_shape(t);
    ch_region all = {.begin = {0}};

    for (int k = 0; k < shape.rank; k++)
        all.size[k] = shape.dim[k];
    if (ch_tensor_dtype(t) == CH_STR)
        add_strings(p, key, shape, ch_tensor_count(t), ch_tensor_data(t));
    else
        add_region(p, key, ch_tensor_dtype(t), shape, &all, 0,
                   (ch_item_source){CH_FROM_TENSOR, ch_tensor_data(t), NULL});
}

/* Adds the shards of a variable on parameter servers. */
static void add_shards(planning *p, const char *key, ch_var *v)
{
    for (int i = 0; i < ch_var_shards(v); i++) {
        ch_region region;

        ch__layout_region(v->layout, v->shape, i, &region);
        add_region(p, key, v->dtype, v->shape, &region, ch__cut_server_of(ch_var_shard(v, i)),
                   (ch_item_source){CH_FROM_SNAPSHOT, NULL, v});
    }
}

static void add_value(planning *p, ch_saved_value *x)
{
    ch_var    *v = x->var;
    ch_tensor *read = NULL;

    if (v != NULL && ch__saved_is_remote(v)) {
        add_shards(p, x->key, v);
        return;
    }
    if (v != NULL && ch__saved_is_bytes(v)) {
        ch_region all;

        ch__layout_region((ch_layout){.parts = {0}}, v->shape, 0, &all);
        add_region(p, x->key, v->dtype, v->shape, &all, 0,
                   (ch_item_source){CH_FROM_VAR, v->copy[0]->data, NULL});
        return;
    }
    if (v != NULL)
        p->rc = ch__var_get(v, &x->state);
    if (p->rc == CH_OK)
        p->rc = ch_tensor_contiguous(x->state, &read);
    if (p->rc != CH_OK)
        return;
    ch_tensor_unref(x->state);
    x->state = read; /* the tree owns it, so its bytes stay valid */
    add_tensor(p, x->key, read);
}

/* ---- the object graph ---- */

/* Adds the object graph of the tree as a string (CK-15). */
static void add_graph(planning *p, const ch_tree *t)
{
    ch_arena         memory = {NULL, 0};
    ch_object_node  *node = ch__arena_alloc(&memory, (size_t)t->n_nodes * sizeof(*node));
    ch_bytes_builder b = {NULL};
    bool             fits = node != NULL;

    for (int i = 0; i < t->n_nodes && fits; i++) {
        const ch_saved_node *from = &t->node[i];
        ch_object_child     *child =
            ch__arena_alloc(&memory, (size_t)(from->n_edges + 1) * sizeof(*child));
        ch_object_value *value =
            ch__arena_alloc(&memory, (size_t)(from->n_values + 1) * sizeof(*value));
        ch_object_slot *slot =
            ch__arena_alloc(&memory, (size_t)(from->n_slots + 1) * sizeof(*slot));

        fits = child != NULL && value != NULL && slot != NULL;
        for (int k = 0; k < from->n_edges && fits; k++)
            child[k] = (ch_object_child){from->edge[k].node, from->edge[k].name};
        for (int k = 0; k < from->n_values && fits; k++) {
            const ch_saved_value *v = &t->value[from->first_value + k];

            value[k] = (ch_object_value){v->attribute,
                                         v->var != NULL ? ch_var_name(v->var) : "", v->key};
        }
        for (int k = 0; k < from->n_slots && fits; k++)
            slot[k] =
                (ch_object_slot){from->slot[k].var, from->slot[k].name, from->slot[k].node};
        node[i] =
            (ch_object_node){from->n_edges, from->n_values, from->n_slots, child, value, slot};
    }
    if (fits)
        ch__object_graph_encode(&(ch_object_graph){t->n_nodes, node, NULL}, &b);
    if (!fits || b.has_failed)
        out_of_memory(p);
    else
        add_strings(p, CH_OBJECT_GRAPH_KEY, ch_shape_scalar(), 1, &(ch_str){b.at, b.n});
    ch__bytes_builder_drop(&b);
    ch__arena_drop(&memory);
}

/* ---- files ---- */

/* The plan whose items qsort compares; set around the call. */
static _Thread_local const ch_save_plan *sort_plan;

static int compare_items(const void *a, const void *b)
{
    int                 x = *(const int *)a, y = *(const int *)b;
    const ch_save_plan *p = sort_plan;

    if (p->item[x].file != p->item[y].file)
        return p->item[x].file - p->item[y].file;
    if (p->source[x].from != p->source[y].from)
        return (int)p->source[x].from - (int)p->source[y].from;
    return x - y;
}

/* Orders the items by file and source, and finds the first item of each file. */
static ch_status sort_items(ch_save_plan *p)
{
    size_t          n = (size_t)p->n_items;
    int            *order = ch__malloc(n * sizeof(*order));
    ch_ckpt_item   *item = ch__malloc(n * sizeof(*item));
    ch_item_source *source = ch__malloc(n * sizeof(*source));

    p->first = ch__arena_alloc(&p->memory, ((size_t)p->n_files + 1) * sizeof(*p->first));
    p->file_bytes = ch__arena_alloc(&p->memory, (size_t)p->n_files * sizeof(*p->file_bytes));
    if (order == NULL || item == NULL || source == NULL || p->first == NULL ||
        p->file_bytes == NULL) {
        ch__free(order);
        ch__free(item);
        ch__free(source);
        return ch__fail_memory("a checkpoint");
    }
    for (int i = 0; i < p->n_items; i++)
        order[i] = i;
    sort_plan = p;
    qsort(order, n, sizeof(*order), compare_items);
    for (int i = 0; i < p->n_items; i++) {
        item[i] = p->item[order[i]];
        source[i] = p->source[order[i]];
        p->first[item[i].file + 1]++;
    }
    for (int f = 0; f < p->n_files; f++)
        p->first[f + 1] += p->first[f];
    ch__free(order);
    ch__free(p->item);
    ch__free(p->source);
    p->item = item;
    p->source = source;
    p->cap_items = p->cap_sources = p->n_items;
    return CH_OK;
}

/* Sets the offsets of all items, and the range of file 0 that is staged. */
static void lay_out(ch_save_plan *p)
{
    int64_t end = 0;

    p->bytes = p->unstaged_bytes = p->state_bytes = p->staged_from = 0;
    for (int f = 0; f < p->n_files; f++) {
        p->file_bytes[f] =
            ch__ckpt_layout(p->first[f + 1] - p->first[f], p->item + p->first[f]);
        p->bytes += p->file_bytes[f];
    }
    for (int i = p->first[1] - 1; i >= 0; i--) {
        if (p->source[i].from == CH_FROM_VAR)
            p->unstaged_bytes += p->item[i].bytes;
        if (p->source[i].from == CH_FROM_TENSOR)
            p->state_bytes += p->item[i].bytes;
        if (p->source[i].from != CH_FROM_STAGING)
            continue;
        if (end == 0)
            end = p->item[i].offset + p->item[i].bytes;
        p->staged_from = p->item[i].offset / PAGE * PAGE;
    }
    p->staged_bytes = end - p->staged_from;
}

/* Encodes the metadata into its item. */
static void set_metadata(planning *p, const ch_ckpt_metadata *m, int item)
{
    ch_save_plan    *plan = p->plan;
    ch_bytes_builder b = {NULL};

    if (p->rc != CH_OK)
        return;
    p->rc = ch__ckpt_metadata_encode(m, &b, &plan->item[item].crc);
    plan->item[item].bytes = (int64_t)b.n;
    plan->source[item].bytes = ch__arena_copy(&plan->memory, b.at, b.n);
    if (plan->source[item].bytes == NULL)
        out_of_memory(p);
    ch__bytes_builder_drop(&b);
}

/* Adds the metadata, and sets the offsets of all items. The metadata states the size of the
 * file that contains it, so it is encoded twice; its own size does not depend on the sizes that
 * it states. */
static void finish(planning *p, int64_t step)
{
    ch_save_plan    *plan = p->plan;
    ch_ckpt_metadata m = {.step = step};
    int              at = 0;

    add_strings(p, CH_CKPT_METADATA_KEY, ch_shape_scalar(), 0, NULL);
    for (int i = 0; i < plan->n_items; i++) {
        const ch_var *v = plan->source[i].var;
        int           n = v != NULL ? ch__cut_count_servers(ch_var_strategy(v)) : 1;

        plan->n_files = n > plan->n_files ? n : plan->n_files;
    }
    if (p->rc == CH_OK)
        p->rc = sort_items(plan);
    if (p->rc == CH_OK)
        p->rc = ch__ckpt_metadata_init(&m);
    if (p->rc != CH_OK)
        return;
    while (strcmp(plan->item[at].name, CH_CKPT_METADATA_KEY) != 0)
        at++;
    m.n_files = plan->n_files;
    m.file_bytes = plan->file_bytes;
    set_metadata(p, &m, at);
    lay_out(plan);
    set_metadata(p, &m, at);
}

ch_status ch__save_plan_make(ch_tree *t, int64_t staging_bytes, int64_t step, ch_save_plan *out)
{
    planning p = {.plan = out, .left = staging_bytes > 0 ? staging_bytes : INT64_MAX};

    *out = (ch_save_plan){.n_files = 1};
    for (int i = 0; i < t->n_values && p.rc == CH_OK; i++)
        add_value(&p, &t->value[i]);
    add_graph(&p, t);
    finish(&p, step);
    return p.rc;
}

void ch__save_plan_drop(ch_save_plan *p)
{
    ch__free(p->item);
    ch__free(p->source);
    ch__arena_drop(&p->memory);
    *p = (ch_save_plan){.n_files = 0};
}
