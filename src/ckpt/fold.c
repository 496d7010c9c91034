/* ckpt/fold.c -- writes the state of a delta as a full checkpoint.
 *
 * The tensors of a delta need not fit into memory. So a fold walks through them in portions of
 * names (ch__ckpt_open_some), four times:
 *
 *   1. It verifies the tensors and sums up their sizes, which the new metadata states.
 *   2. It writes the data file.
 *   3. It adds the keys of slices to the index.
 *   4. It adds the keys of tensors.
 *
 * If the caller has opened the checkpoint as a whole, there is a single portion.
 *
 * An item of the new checkpoint is a part of a tensor of the delta, or, if the delta stores the
 * tensor as rows, of the tensor in the base. The checksums of all items stay in memory (4 bytes
 * each). The new metadata is the last item of the data file; among the keys it has its place.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/fold.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "ckpt/directory.h"
#include "ckpt/index.h"

/* The source of an item. */
typedef struct fold_source {
    int tensor, part;
} fold_source;

typedef struct folding {
    ch_ckpt         *whole; /* the delta as the caller has opened it */
    ch_ckpt_writer  *to;
    ch_bytes_builder metadata;
    ch_ckpt_item     metadata_item;
    ch_bytes_builder buffer; /* the bytes that the writer asked for last */
    /* The portion. */
    ch_ckpt      *c;
    int           n, cap_items, cap_sources; /* items */
    ch_ckpt_item *item;
    fold_source  *source;
    /* Since the walk began. */
    int64_t end;     /* of the items in the data file */
    int64_t n_items; /* before the portion */
    /* Checksums of all items, in the order of the walk. */
    int       n_crcs, cap_crcs;
    uint32_t *crc;
} folding;

/* Returns the checkpoint that holds the parts of tensor i, and sets *tensor to its index
 * there. */
static const ch_ckpt *holder(const ch_ckpt *c, int i, int *tensor)
{
    int rows = c->tensor[i].rows;

    *tensor = rows >= 0 ? c->rows[rows].base : i;
    return rows >= 0 ? c->base : c;
}

/* Adds the parts of tensor i. */
static ch_status add_items(folding *f, int i)
{
    int            tensor;
    const ch_ckpt *from = holder(f->c, i, &tensor);
    ch_ckpt_entry  e;
    ch_ckpt_part   part;

    ch__ckpt_entry(from, tensor, &e);
    if (e.dtype == CH_DTYPE_COUNT)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: tensor \"%s\": dtype %d of TensorFlow cannot be written",
                        f->c->prefix, e.name, e.dtype_number);
    if (!ch__grow((void **)&f->item, &f->cap_items, f->n + e.n_parts, sizeof(*f->item)) ||
        !ch__grow((void **)&f->source, &f->cap_sources, f->n + e.n_parts, sizeof(*f->source)))
        return ch__fail_memory(f->c->prefix);
    for (int k = 0; k < e.n_parts; k++, f->n++) {
        ch__ckpt_part(from, tensor, k, &part);
        f->source[f->n] = (fold_source){i, k};
        f->item[f->n] = (ch_ckpt_item){.name = f->c->tensor[i].name,
                                       .dtype = e.dtype,
                                       .whole = e.shape,
                                       .is_slice = !e.is_whole,
                                       .region = part.region,
                                       .bytes = part.bytes,
                                       .crc = part.crc}; /* of strings; others are computed */
    }
    return CH_OK;
}

/* Makes the items of the portion f->c, without the metadata. */
static ch_status make_items(folding *f)
{
    ch_status rc = CH_OK;

    f->n = 0;
    for (int i = 0; i < f->c->n_tensors && rc == CH_OK; i++)
        if (strcmp(f->c->tensor[i].name, CH_CKPT_METADATA_KEY) != 0)
            rc = add_items(f, i);
    f->end = ch__ckpt_layout_after(f->end, f->n, f->item);
    return rc;
}

/* Called for each portion, whose items have been made. */
typedef ch_status (*fold_step)(folding *f);

static ch_status visit_portion(folding *f, fold_step step)
{
    ch_status rc = make_items(f);

    /* The delta was changed between two walks, if it has more items now. */
    if (rc == CH_OK && f->to != NULL && f->n_items + f->n > f->n_crcs)
        rc = ch__fail(CH_DATA_LOSS, "%s: was changed while it was read", f->c->prefix);
    if (rc == CH_OK)
        rc = step(f);
    f->n_items += f->n;
    return rc;
}

/* Walks through the delta. */
static ch_status walk(folding *f, fold_step step)
{
    const ch_ckpt *whole = f->whole;
    char          *after = NULL;
    bool           has_more = true;
    ch_status      rc = CH_OK;

    f->end = f->n_items = 0;
    if (whole->room == 0) {
        f->c = f->whole;
        return visit_portion(f, step);
    }
    while (rc == CH_OK && has_more) {
        f->c = NULL;
        /* Half of the memory, because the base and the items of the portion need more. */
        rc = ch__ckpt_open_some(whole->prefix, after, whole->room / 2, &f->c);
        if (rc == CH_OK && (f->c->metadata.id != whole->metadata.id || f->c->base == NULL))
            rc = ch__fail(CH_DATA_LOSS, "%s: was replaced while it was read", whole->prefix);
        if (rc == CH_OK)
            rc = visit_portion(f, step);
        ch__free(after);
        after = NULL;
        has_more = rc == CH_OK && f->c->has_more;
        if (has_more && (after = ch__strdup(f->c->range.last)) == NULL)
            rc = ch__fail_memory(whole->prefix);
        ch__ckpt_close(f->c);
    }
    ch__free(after);
    return rc;
}

/* Makes the metadata of the new checkpoint. f->end is the end of the other items. */
static ch_status make_metadata(folding *f)
{
    int64_t          file_bytes = 0;
    ch_ckpt_metadata m = {
        .step = f->whole->metadata.step, .n_files = 1, .file_bytes = &file_bytes};
    ch_ckpt_item *item = &f->metadata_item;
    ch_status     rc = ch__ckpt_metadata_init(&m);

    m.time = f->whole->metadata.time;
    for (int i = 0; i < 2 && rc == CH_OK; i++) { /* the first time for its size */
        ch__bytes_builder_clear(&f->metadata);
        *item = (ch_ckpt_item){.name = CH_CKPT_METADATA_KEY, .dtype = CH_STR};
        rc = ch__ckpt_metadata_encode(&m, &f->metadata, &item->crc);
        item->bytes = (int64_t)f->metadata.n;
        file_bytes = ch__ckpt_layout_after(f->end, 1, item);
    }
    return rc;
}

/* Gives bytes of an item to the writer. */
static ch_status fetch(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    folding      *f = arg;
    ch_ckpt_item *x = &f->item[i];
    int64_t       element = (int64_t)ch_dtype_bytes(x->dtype);
    char         *to;
    ch_status     rc;

    ch__bytes_builder_clear(&f->buffer);
    to = ch__bytes_builder_reserve(&f->buffer, (size_t)n);
    if (to == NULL)
        return ch__fail_memory(f->c->prefix);
    /* The writer asks for whole elements, because items and chunks begin at multiples of 64. */
    if (x->dtype == CH_STR)
        rc = ch__ckpt_read_raw(f->c, f->source[i].tensor, f->source[i].part, from, n, to);
    else
        rc = ch__ckpt_read_range(f->c, x->name, &x->region, from / element, n / element, to);
    *bytes = to;
    return rc;
}

static ch_status fetch_metadata(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    const folding *f = arg;

    (void)i;
    (void)n;
    *bytes = f->metadata.at + from;
    return CH_OK;
}

/* ---- the four walks ---- */

static ch_status verify_portion(folding *f)
{
    int64_t   n = f->n_items + f->n;
    ch_status rc = CH_OK;

    for (int i = 0; i < f->c->n_tensors && rc == CH_OK; i++)
        rc = ch__ckpt_verify(f->c, i);
    if (rc != CH_OK)
        return rc;
    if (n > INT32_MAX || !ch__grow((void **)&f->crc, &f->cap_crcs, (int)n, sizeof(*f->crc)))
        return ch__fail_memory(f->c->prefix);
    f->n_crcs = (int)n;
    return CH_OK;
}

static ch_status write_portion(folding *f)
{
    ch_status rc = ch__ckpt_writer_add_data(f->to, f->n, f->item, fetch, f);

    for (int i = 0; i < f->n && rc == CH_OK; i++)
        f->crc[f->n_items + i] = f->item[i].crc;
    return rc;
}

/* Adds the keys of the portion, and that of the metadata to the portion that has its name. */
static ch_status add_keys(folding *f, ch_ckpt_key_kind which)
{
    int n = f->n;

    for (int i = 0; i < f->n; i++)
        f->item[i].crc = f->crc[f->n_items + i];
    if (ch__ckpt_find(f->c, CH_CKPT_METADATA_KEY) >= 0) {
        if (!ch__grow((void **)&f->item, &f->cap_items, n + 1, sizeof(*f->item)))
            return ch__fail_memory(f->c->prefix);
        f->item[n++] = f->metadata_item;
    }
    return ch__ckpt_writer_add_keys(f->to, n, f->item, which);
}

static ch_status add_slices(folding *f)
{
    return add_keys(f, CH_CKPT_SLICES);
}

static ch_status add_tensors(folding *f)
{
    return add_keys(f, CH_CKPT_TENSORS);
}

/* ---- the call ---- */

ch_status ch__ckpt_fold(ch_ckpt *c, const char *prefix, const ch_ckpt_write_options *opt)
{
    folding   f = {.whole = c};
    ch_status rc = CH_OK;

    if (c->base == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: is a full checkpoint already", c->prefix);
    if (c->header.is_big_endian)
        return ch__fail(CH_UNIMPLEMENTED, "%s: is big-endian and cannot be folded", c->prefix);
    rc = ch__ckpt_check_name(prefix);
    if (rc == CH_OK)
        rc = ch__ckpt_check_free(prefix, "choose another name");
    if (rc == CH_OK)
        rc = walk(&f, verify_portion);
    if (rc == CH_OK)
        rc = ch__ckpt_make_folder(prefix);
    if (rc == CH_OK)
        rc = make_metadata(&f);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_open(prefix, 1, opt, &f.to);
    if (rc == CH_OK)
        rc = walk(&f, write_portion);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_add_data(f.to, 1, &f.metadata_item, fetch_metadata, &f);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_begin_index(f.to);
    if (rc == CH_OK)
        rc = walk(&f, add_slices);
    if (rc == CH_OK)
        rc = walk(&f, add_tensors);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_commit(f.to);
    ch__ckpt_writer_close(f.to);
    ch__free(f.item);
    ch__free(f.source);
    ch__free(f.crc);
    ch__bytes_builder_drop(&f.metadata);
    ch__bytes_builder_drop(&f.buffer);
    return rc;
}
