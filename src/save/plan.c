/* save/plan.c -- divides the values of a tree into items of data files.
 *
 * Variables of this process, and values that are not variables, are in file 0. A variable in
 * tiles has an item for each tile. A variable on parameter servers has an item for each shard,
 * in the file of the shard's server. Items above 64 MiB are cut into slices of their first
 * axis.
 *
 * Changed rows of a delta. A variable has parts along axis 0, and each part has a shard, or
 * several if other axes are divided. The shards of a part share a list of ids: the union of
 * their changed rows. The tensor of ids is divided by parts, that of values by shards.
 *
 * The struct `planning` has the first error; after it nothing more is added.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "save/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "ckpt/metadata.h"
#include "ckpt/object_graph.h"
#include "save/save.h"
#include "strategy/changed_rows.h"
#include "strategy/strategy.h"
#include "tensor/view.h"

enum { PAGE = 4096 };

typedef struct planning {
    ch_save_plan *plan;
    int64_t       left; /* bytes that may still be staged */
    ch_status     rc;   /* first error */
    /* Of a delta, in ch__save_plan_make: the marks. */
    const ch_save_marks *marks;
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
 * of the region, which is contiguous, unless source.rows is set. */
static void add_region(planning *p, const char *key, ch_dtype dtype, ch_shape whole,
                       const ch_region *region, int file, ch_item_source source)
{
    ch_shape shape = whole;
    int64_t  rows, row_bytes;
    bool     may_change = source.from == CH_FROM_VAR;

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
        if (from.rows != NULL)
            from.rows += at;
        else if (from.bytes != NULL)
            from.bytes += at * row_bytes;
        if (may_change && item.bytes <= p->left) {
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
    add_item(p, &item, &(ch_item_source){.from = CH_FROM_TENSOR, .bytes = bytes});
}

/* Adds a tensor of the tree. Memory of the program is copied like that of a variable, because
 * the program may change it when it goes on. */
static void add_tensor(planning *p, const char *key, ch_tensor *t)
{
    ch_shape     shape = ch_tensor_shape(t);
    ch_region    all = {.begin = {0}};
    ch_item_from from = ch__tensor_is_wrapped(t) ? CH_FROM_VAR : CH_FROM_TENSOR;

    for (int k = 0; k < shape.rank; k++)
        all.size[k] = shape.dim[k];
    if (ch_tensor_dtype(t) == CH_STR)
        add_strings(p, key, shape, ch_tensor_count(t), ch_tensor_data(t));
    else
        add_region(p, key, ch_tensor_dtype(t), shape, &all, 0,
                   (ch_item_source){.from = from, .bytes = ch_tensor_data(t)});
}

/* ---- variables ---- */

/* Returns true if core c of replica 0 has a tile that no lower core has. These tiles make the
 * value, and are saved like the shards of a variable on servers. */
static bool is_saved_tile(const ch_var *v, int c)
{
    for (int lower = 0; lower < c; lower++)
        if (v->copy[lower] != NULL && ch__layout_same_part(v->tiles, lower, c))
            return false;
    return v->copy[c] != NULL;
}

/* Gives the region of a shard or of the tile of a core, and the source of its values. A
 * variable of this process that is not in tiles has a single shard. Returns the number of its
 * file. */
static int find_shard(ch_var *v, int shard, ch_region *region, ch_item_source *source)
{
    if (!ch__saved_is_remote(v)) {
        if (v->tiles != NULL)
            (void)ch__core_region(v->tiles, v->shape, shard, region);
        else
            ch__layout_region((ch_layout){.parts = {0}}, v->shape, 0, region);
        *source = (ch_item_source){.from = CH_FROM_VAR, .bytes = v->copy[shard]->data};
        return 0;
    }
    ch__layout_region(v->layout, v->shape, shard, region);
    *source = (ch_item_source){.from = CH_FROM_SNAPSHOT, .var = v};
    return ch__cut_server_of(ch_var_shard(v, shard));
}

static int count_shards(const ch_var *v)
{
    if (v->tiles != NULL)
        return v->tiles->n_cores;
    return ch__saved_is_remote(v) ? ch_var_shards(v) : 1;
}

static void add_whole(planning *p, const char *key, ch_var *v)
{
    for (int i = 0; i < count_shards(v); i++) {
        ch_region      region;
        ch_item_source source;
        int            file;

        if (v->tiles != NULL && !is_saved_tile(v, i))
            continue;
        file = find_shard(v, i, &region, &source);
        if (v->tiles != NULL && ch__region_count(&region, v->shape.rank) == 0 &&
            ch_shape_count(v->shape) > 0)
            continue;
        add_region(p, key, v->dtype, v->shape, &region, file, source);
    }
}

/* ---- changed rows ---- */

/* The changed rows of a variable. */
typedef struct rows_of {
    ch_var          *var;
    int              n_parts; /* along axis 0 */
    ch_changed_rows *part;    /* counted from the first row of the part */
    int64_t          n;       /* rows of all parts */
    const char      *ids_key, *values_key;
} rows_of;

/* Returns the part of a shard: axis 0 is divided first. */
static int part_of_shard(const rows_of *r, int shard)
{
    return shard / (count_shards(r->var) / r->n_parts);
}

/* Returns the first row of a part. */
static int64_t part_begin(const rows_of *r, int part)
{
    return ch__part_begin(r->var->shape.dim[0], r->n_parts, part);
}

/* Adds the rows in `more` to `rows`, and drops `more`. */
static ch_status unite(ch_changed_rows *rows, ch_changed_rows *more)
{
    ch_changed_rows both = {.all = rows->all || more->all};
    int64_t         i = 0, k = 0;

    if (!both.all && rows->n > 0 && more->n > 0) {
        both.ids = ch__malloc((size_t)(rows->n + more->n) * sizeof(*both.ids));
        if (both.ids == NULL) {
            ch__changed_rows_drop(more);
            return ch__fail_memory("a list of changed rows");
        }
        while (i < rows->n || k < more->n) {
            bool is_first = k == more->n || (i < rows->n && rows->ids[i] <= more->ids[k]);
            bool is_second = i == rows->n || (k < more->n && more->ids[k] <= rows->ids[i]);

            both.ids[both.n++] = is_first ? rows->ids[i] : more->ids[k];
            i += is_first;
            k += is_second;
        }
    } else if (!both.all) {
        ch_changed_rows *only = rows->n > 0 ? rows : more;

        both = *only;
        *only = (ch_changed_rows){.n = 0};
    }
    ch__changed_rows_drop(rows);
    ch__changed_rows_drop(more);
    *rows = both;
    return CH_OK;
}

/* Finds the changed rows of all parts. `cut` is NULL for a variable of this process. */
static ch_status find_rows(rows_of *r, const ch_cut *cut)
{
    ch_var   *v = r->var;
    ch_status rc = CH_OK;

    for (int i = 0; i < count_shards(v) && rc == CH_OK; i++) {
        ch_changed_rows changed = {.n = 0};

        rc = ch__changed_rows(cut, ch_var_shard(v, i), &changed);
        if (rc == CH_OK)
            rc = unite(&r->part[part_of_shard(r, i)], &changed);
    }
    for (int k = 0; k < r->n_parts && rc == CH_OK; k++) {
        if (r->part[k].all)
            r->part[k].n = part_begin(r, k + 1) - part_begin(r, k);
        r->n += r->part[k].n;
    }
    return rc;
}

/* Returns n new ids: from[0, n) plus `begin`, or 0 to n - 1 if `from` is NULL. NULL: out of
 * memory. */
static int64_t *new_ids(int64_t n, const int64_t *from, int64_t begin)
{
    int64_t *ids = ch__malloc((size_t)n * sizeof(*ids));

    for (int64_t i = 0; i < n && ids != NULL; i++)
        ids[i] = from != NULL ? from[i] + begin : i;
    return ids;
}

/* Gives a list of n ids to the plan, and returns it. `ids` is NULL if memory is exhausted. */
static const int64_t *own_ids(planning *p, int64_t n, int64_t *ids)
{
    ch_save_plan *plan = p->plan;

    if (ids == NULL ||
        !ch__grow((void **)&plan->ids, &plan->cap_ids, plan->n_ids + 1, sizeof(*plan->ids))) {
        ch__free(ids);
        out_of_memory(p);
        return NULL;
    }
    plan->ids[plan->n_ids++] = ids;
    p->left -= ch__min(p->left, n * (int64_t)sizeof(*ids));
    return ids;
}

/* Adds the ids and values of a part, which has rows. `at` is the number of rows of the parts
 * before. */
static void add_part(planning *p, const rows_of *r, int part, int64_t at)
{
    ch_changed_rows *rows = &r->part[part];
    ch_var          *v = r->var;
    ch_shape         whole = v->shape;
    bool             has_ids = false;
    int64_t          begin = part_begin(r, part);
    const int64_t   *in_part, *ids; /* counted from the first row of the part, the variable */

    in_part = own_ids(p, rows->n, rows->all ? new_ids(rows->n, NULL, 0) : rows->ids);
    rows->ids = NULL;
    ids = in_part;
    if (begin > 0 && in_part != NULL)
        ids = own_ids(p, rows->n, new_ids(rows->n, in_part, begin));
    whole.dim[0] = r->n;
    for (int i = 0; i < count_shards(v) && p->rc == CH_OK; i++) {
        ch_region      region;
        ch_item_source source;
        int            file = find_shard(v, i, &region, &source);

        if (part_of_shard(r, i) != part)
            continue;
        region.begin[0] = at;
        region.size[0] = rows->n;
        if (!has_ids) /* once, in the file of the part's first shard */
            add_region(p, r->ids_key, CH_I64, ch_shape_of(r->n), &region, file,
                       (ch_item_source){.from = CH_FROM_IDS, .bytes = (const char *)ids});
        has_ids = true;
        if (source.var != NULL)
            source.var = ch_var_shard(v, i);
        source.rows = in_part;
        add_region(p, r->values_key, v->dtype, whole, &region, file, source);
    }
}

/* Adds a tensor of ids and a tensor of values without rows. */
static void add_no_rows(planning *p, const rows_of *r)
{
    ch_shape  whole = r->var->shape;
    ch_region none = {.begin = {0}};

    whole.dim[0] = 0;
    add_region(p, r->ids_key, CH_I64, ch_shape_of(0), &none, 0,
               (ch_item_source){.from = CH_FROM_IDS});
    memcpy(none.size, whole.dim, sizeof(none.size));
    add_region(p, r->values_key, r->var->dtype, whole, &none, 0,
               (ch_item_source){.from = CH_FROM_IDS});
}

static const char *add_suffix(planning *p, const char *key, const char *suffix)
{
    size_t size = strlen(key) + strlen(suffix) + 1;
    char  *joined = ch__arena_alloc(&p->plan->memory, size);

    if (joined == NULL)
        out_of_memory(p);
    else
        snprintf(joined, size, "%s%s", key, suffix);
    return joined;
}

/* Adds a variable whose rows are marked: the changed rows, or the whole if that is smaller. */
static void add_rows(planning *p, const char *key, ch_var *v, const ch_cut *cut)
{
    rows_of r = {.var = v,
                 .n_parts = ch__saved_is_remote(v) ? ch__layout_parts_of(v->layout, 0) : 1};
    int64_t bytes = ch__ckpt_bytes(v->dtype, v->shape), row_bytes = bytes / v->shape.dim[0];

    r.ids_key = add_suffix(p, key, CH_DELTA_IDS);
    r.values_key = add_suffix(p, key, CH_DELTA_VALUES);
    r.part = ch__calloc((size_t)r.n_parts, sizeof(*r.part));
    if (r.part == NULL)
        out_of_memory(p);
    if (p->rc == CH_OK)
        p->rc = find_rows(&r, cut);
    if (p->rc != CH_OK || r.n * (row_bytes + (int64_t)sizeof(int64_t)) >= bytes)
        add_whole(p, key, v);
    else if (r.n == 0)
        add_no_rows(p, &r);
    else
        for (int64_t k = 0, at = 0; k < r.n_parts; at += r.part[k++].n)
            if (r.part[k].n > 0)
                add_part(p, &r, (int)k, at);
    for (int k = 0; k < r.n_parts && r.part != NULL; k++)
        ch__changed_rows_drop(&r.part[k]);
    ch__free(r.part);
}

/* ---- values ---- */

static void add_remote(planning *p, const ch_plan_remote *remote)
{
    ch_save_plan *plan = p->plan;

    if (ch__grow((void **)&plan->remote, &plan->cap_remotes, plan->n_remotes + 1,
                 sizeof(*plan->remote)))
        plan->remote[plan->n_remotes++] = *remote;
    else
        out_of_memory(p);
}

static void add_value(planning *p, ch_saved_value *x)
{
    ch_var    *v = x->var;
    ch_tensor *read = NULL;
    bool       has_marks = v != NULL && p->marks != NULL && ch__save_marks_hold(p->marks, x);

    if (v != NULL && ch__saved_is_remote(v)) {
        add_remote(p, &(ch_plan_remote){x->key, v, has_marks});
        return;
    }
    if (v != NULL && ch__saved_is_bytes(v)) {
        if (has_marks)
            add_rows(p, x->key, v, NULL);
        else
            add_whole(p, x->key, v);
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

/* Adds the items from `first` on to the bytes that are not variables. */
static void count_state(ch_save_plan *p, int first)
{
    for (int i = first; i < p->n_items; i++)
        p->state_bytes += p->item[i].bytes;
}

/* ---- the object graph ---- */

/* Adds the object graph of the tree as a string (CK-15). */
static void add_graph(planning *p, const ch_tree *t)
{
    ch_arena         memory = {NULL, 0};
    ch_object_node  *node = ch__arena_alloc(&memory, (size_t)t->n_nodes * sizeof(*node));
    ch_bytes_builder b = {NULL};
    bool             fits = node != NULL;
    int              first = p->plan->n_items;

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
    count_state(p->plan, first);
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

    p->bytes = p->unstaged_bytes = p->staged_from = 0;
    for (int f = 0; f < p->n_files; f++) {
        p->file_bytes[f] =
            ch__ckpt_layout(p->first[f + 1] - p->first[f], p->item + p->first[f]);
        p->bytes += p->file_bytes[f];
    }
    for (int i = p->first[1] - 1; i >= 0; i--) {
        if (p->source[i].from == CH_FROM_VAR)
            p->unstaged_bytes += p->item[i].bytes;
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

/* Encodes the metadata, and sets the offsets of all items. The metadata states the size of the
 * file that contains it, so it is encoded twice; its own size does not depend on the sizes that
 * it states. */
static void add_metadata(planning *p)
{
    ch_save_plan     *plan = p->plan;
    ch_ckpt_metadata *m = &plan->metadata;
    int               at = 0;

    add_strings(p, CH_CKPT_METADATA_KEY, ch_shape_scalar(), 0, NULL);
    if (p->rc == CH_OK)
        p->rc = sort_items(plan);
    if (p->rc == CH_OK)
        p->rc = ch__ckpt_metadata_init(m);
    if (p->rc != CH_OK)
        return;
    while (strcmp(plan->item[at].name, CH_CKPT_METADATA_KEY) != 0)
        at++;
    m->n_files = plan->n_files;
    m->file_bytes = plan->file_bytes;
    set_metadata(p, m, at);
    lay_out(plan);
    set_metadata(p, m, at);
}

ch_status ch__save_plan_make(ch_tree *t, const ch_save_plan_options *opt, ch_save_plan *out)
{
    planning p = {.plan = out,
                  .left = opt->staging_bytes > 0 ? opt->staging_bytes : INT64_MAX,
                  .marks = opt->base != NULL ? opt->marks : NULL};

    *out =
        (ch_save_plan){.n_files = 1, .metadata = {.step = opt->step, .base_id = opt->base_id}};
    if (opt->base != NULL) {
        out->metadata.base = ch__arena_strdup(&out->memory, opt->base);
        if (out->metadata.base == NULL)
            out_of_memory(&p);
    }
    for (int i = 0; i < t->n_values && p.rc == CH_OK; i++) {
        int first = out->n_items;

        add_value(&p, &t->value[i]);
        if (t->value[i].var == NULL)
            count_state(out, first);
    }
    add_graph(&p, t);
    if (p.rc == CH_OK)
        p.rc = sort_items(out);
    if (p.rc == CH_OK)
        lay_out(out);
    return p.rc;
}

ch_status ch__save_plan_finish(ch_save_plan *p, int n_cuts, const ch_save_cut *cut)
{
    planning x = {.plan = p};

    for (int i = 0; i < p->n_remotes && x.rc == CH_OK; i++) {
        const ch_plan_remote *remote = &p->remote[i];
        int                   n = ch__cut_count_servers(ch_var_strategy(remote->var));

        p->n_files = n > p->n_files ? n : p->n_files;
        if (remote->has_marks)
            add_rows(&x, remote->key, remote->var, ch__save_cut_of(n_cuts, cut, remote->var));
        else
            add_whole(&x, remote->key, remote->var);
    }
    add_metadata(&x);
    return x.rc;
}

/* Adds a variable without its value. */
static void add_size(planning *p, const char *key, ch_var *v)
{
    ch_region all;

    if (ch__saved_is_remote(v) || ch__saved_is_bytes(v)) {
        add_whole(p, key, v);
    } else if (v->dtype != CH_STR) {
        ch__layout_region((ch_layout){.parts = {0}}, v->shape, 0, &all);
        add_region(p, key, v->dtype, v->shape, &all, 0,
                   (ch_item_source){.from = CH_FROM_TENSOR});
    }
}

ch_status ch__save_plan_estimate(const ch_tree *t, int64_t *bytes)
{
    ch_save_plan plan = {.n_files = 1};
    planning     p = {.plan = &plan, .left = INT64_MAX};

    for (int i = 0; i < t->n_values && p.rc == CH_OK; i++) {
        ch_var *v = t->value[i].var;
        int     n = ch__saved_is_remote(v) ? ch__cut_count_servers(ch_var_strategy(v)) : 1;

        plan.n_files = n > plan.n_files ? n : plan.n_files;
        add_size(&p, t->value[i].key, v);
    }
    add_graph(&p, t);
    if (p.rc == CH_OK)
        p.rc = sort_items(&plan);
    if (p.rc == CH_OK)
        lay_out(&plan);
    *bytes = plan.bytes;
    ch__save_plan_drop(&plan);
    return p.rc;
}

void ch__save_plan_copy(const ch_save_plan *p, int item, int64_t from, int64_t n, char *to)
{
    const ch_item_source *s = &p->source[item];

    if (s->rows == NULL) {
        memcpy(to, s->bytes + from, (size_t)n);
        return;
    }
    int64_t row = p->item[item].bytes / p->item[item].region.size[0];
    int64_t i = from / row, at = from % row;

    for (int64_t now; n > 0; to += now, n -= now, at = 0) {
        now = ch__min(row - at, n);
        memcpy(to, s->bytes + s->rows[i++] * row + at, (size_t)now);
    }
}

ch_status ch__save_list_cuts(const ch_tree *t, int *n_cuts, ch_save_cut **cut)
{
    int cap = 0;

    for (int i = 0; i < t->n_values; i++) {
        ch_var *v = t->value[i].var;
        int     k = 0;

        if (v == NULL || !ch__saved_is_remote(v))
            continue;
        while (k < *n_cuts && (*cut)[k].strategy != v->strategy)
            k++;
        if (k < *n_cuts)
            continue;
        if (!ch__grow((void **)cut, &cap, k + 1, sizeof(**cut)))
            return ch__fail_memory("a checkpoint");
        (*cut)[(*n_cuts)++] = (ch_save_cut){v->strategy, NULL};
    }
    return CH_OK;
}

const ch_cut *ch__save_cut_of(int n_cuts, const ch_save_cut *cut, const ch_var *v)
{
    for (int i = 0; i < n_cuts; i++)
        if (cut[i].strategy == ch_var_strategy(v))
            return cut[i].cut;
    return NULL;
}

void ch__save_plan_drop(ch_save_plan *p)
{
    for (int i = 0; i < p->n_ids; i++)
        ch__free(p->ids[i]);
    ch__free(p->ids);
    ch__free(p->remote);
    ch__free(p->item);
    ch__free(p->source);
    ch__arena_drop(&p->memory);
    *p = (ch_save_plan){.n_files = 0};
}
