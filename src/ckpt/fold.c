/* ckpt/fold.c -- writes the state of a delta as a full checkpoint.
 *
 * An item of the new checkpoint is a part of a tensor of the delta, or, if the delta stores the
 * tensor as rows, of the tensor in the base. The last item is the new metadata.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/fold.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "ckpt/directory.h"
#include "ckpt/index.h"

/* The source of an item. */
typedef struct fold_source {
    int tensor, part;
} fold_source;

typedef struct folding {
    ch_ckpt         *c;
    int              n; /* items, including the metadata */
    ch_ckpt_item    *item;
    fold_source     *source;
    ch_bytes_builder metadata;
    ch_bytes_builder buffer; /* the bytes that the writer asked for last */
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

/* Adds the metadata of the new checkpoint, and sets the offsets of all items. */
static ch_status add_metadata(folding *f)
{
    int64_t          file_bytes = 0;
    ch_ckpt_metadata m = {.step = f->c->metadata.step, .n_files = 1, .file_bytes = &file_bytes};
    ch_ckpt_item    *item = &f->item[f->n++];
    ch_status        rc = ch__ckpt_metadata_init(&m);

    m.time = f->c->metadata.time;
    for (int i = 0; i < 2 && rc == CH_OK; i++) { /* the first time for its size */
        ch__bytes_builder_clear(&f->metadata);
        *item = (ch_ckpt_item){.name = CH_CKPT_METADATA_KEY, .dtype = CH_STR};
        rc = ch__ckpt_metadata_encode(&m, &f->metadata, &item->crc);
        item->bytes = (int64_t)f->metadata.n;
        file_bytes = ch__ckpt_layout(f->n, f->item);
    }
    return rc;
}

static ch_status plan(folding *f)
{
    int       metadata = ch__ckpt_find(f->c, CH_CKPT_METADATA_KEY);
    size_t    n = 1;
    ch_status rc = CH_OK;

    for (int i = 0; i < f->c->n_tensors; i++) {
        int            tensor;
        const ch_ckpt *from = holder(f->c, i, &tensor);

        n += (size_t)from->tensor[tensor].n_parts;
    }
    f->item = ch__calloc(n, sizeof(*f->item));
    f->source = ch__calloc(n, sizeof(*f->source));
    if (f->item == NULL || f->source == NULL)
        return ch__fail_memory(f->c->prefix);
    for (int i = 0; i < f->c->n_tensors && rc == CH_OK; i++)
        if (i != metadata)
            rc = add_items(f, i);
    return rc == CH_OK ? add_metadata(f) : rc;
}

/* Gives bytes of an item to the writer. */
static ch_status fetch(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    folding      *f = arg;
    ch_ckpt_item *x = &f->item[i];
    int64_t       element = (int64_t)ch_dtype_bytes(x->dtype);
    char         *to;
    ch_status     rc;

    if (i == f->n - 1) {
        *bytes = f->metadata.at + from;
        return CH_OK;
    }
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

/* Fails if there is a checkpoint at the prefix. */
static ch_status check_free(const char *prefix)
{
    size_t      room = ch__ckpt_path_room(prefix);
    char       *path = ch__malloc(room);
    struct stat about;
    int         error;

    if (path == NULL)
        return ch__fail_memory(prefix);
    snprintf(path, room, "%s.index", prefix);
    error = ch__sys_lstat(path, &about) == 0 ? EEXIST : errno;
    ch__free(path);
    return error == ENOENT ? CH_OK
           : error == EEXIST
               ? ch__fail(CH_ALREADY_EXISTS, "%s: there is a checkpoint; choose another name",
                          prefix)
               : ch__fail_errno(error, "%s: cannot be written", prefix);
}

/* Removes the files of the new checkpoint after an error, and returns the error. There was no
 * checkpoint at the prefix, so that all files are new. */
static ch_status remove_written(const char *prefix, ch_status rc)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_record(&why, rc, -1, NULL);
    (void)!ch__ckpt_remove(prefix, true);
    return ch__fault_raise(&why);
}

ch_status ch__ckpt_fold(ch_ckpt *c, const char *prefix, const ch_ckpt_write_options *opt)
{
    folding   f = {.c = c};
    ch_status rc = CH_OK;

    if (c->base == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: is a full checkpoint already", c->prefix);
    if (c->header.is_big_endian)
        return ch__fail(CH_UNIMPLEMENTED, "%s: is big-endian and cannot be folded", c->prefix);
    rc = check_free(prefix);
    for (int i = 0; i < c->n_tensors && rc == CH_OK; i++)
        rc = ch__ckpt_verify(c, i);
    if (rc == CH_OK)
        rc = plan(&f);
    if (rc == CH_OK)
        rc = ch__ckpt_write_data(prefix, 0, 1, f.n, f.item, fetch, &f, opt);
    if (rc == CH_OK) {
        rc = ch__ckpt_write_index(prefix, 1, f.n, f.item, opt);
        if (rc != CH_OK)
            rc = remove_written(prefix, rc);
    }
    ch__free(f.item);
    ch__free(f.source);
    ch__bytes_builder_drop(&f.metadata);
    ch__bytes_builder_drop(&f.buffer);
    return rc;
}
