/* ckpt/open.c -- opens and closes checkpoints, and describes their tensors.
 *
 * A checkpoint is opened in this order: the index (ckpt/index.c), the data files that it names,
 * the metadata, and the base of a delta, for the same range of names. When ch__ckpt_open
 * returns CH_OK, the index is valid (index.c has the list), and:
 *
 *   1. Every span lies inside its data file.
 *   2. If Cohort wrote the checkpoint, the data files have the sizes that its metadata states.
 *   3. A delta has its base: the full checkpoint with the id that the delta names.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "ckpt/delta.h"
#include "ckpt/index.h"

/* ---- files ---- */

size_t ch__ckpt_path_room(const char *prefix)
{
    return strlen(prefix) + 64;
}

void ch__ckpt_data_path(const char *prefix, int file, int n_files, char *path, size_t room)
{
    snprintf(path, room, "%s.data-%05d-of-%05d", prefix, file, n_files);
}

/* O_NONBLOCK: opening a FIFO must not wait for its writer. O_NOFOLLOW: the files of a hostile
 * checkpoint must not lead out of its directory. */
ch_status ch__ckpt_open_file(const char *path, int *fd, int64_t *bytes)
{
    struct stat about;
    int         error = 0;

    *fd = ch__sys_open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW, 0);
    if (*fd < 0 && errno == ELOOP)
        return ch__fail(CH_DATA_LOSS,
                        "%s: is a symbolic link, which is not followed; replace it by the file",
                        path);
    if (*fd < 0)
        return ch__fail_errno(errno, "%s: cannot be opened", path);
    if (ch__sys_stat(*fd, &about) != 0)
        error = errno;
    if (error == 0 && S_ISREG(about.st_mode)) {
        *bytes = about.st_size;
        return CH_OK;
    }
    ch__sys_close(*fd);
    *fd = -1;
    return error != 0 ? ch__fail_errno(error, "%s: its size cannot be read", path)
                      : ch__fail(CH_DATA_LOSS, "%s: byte 0: not a regular file", path);
}

/* ---- data files ---- */

/* Opens a data file, unless that was done. */
static ch_status open_data(ch_ckpt *c, int file, char *path, size_t room)
{
    if (c->fd[file] >= 0)
        return CH_OK;
    ch__ckpt_data_path(c->prefix, file, (int)c->header.n_files, path, room);
    return ch__ckpt_open_file(path, &c->fd[file], &c->file_bytes[file]);
}

/* Opens the data file of a tensor, and checks that the span lies inside it. */
static ch_status check_file(ch_ckpt *c, const ckpt_span *s, const char *name, char *path,
                            size_t room)
{
    int       n_files = (int)c->header.n_files;
    ch_status rc = open_data(c, s->file, path, room);

    if (rc != CH_OK || s->bytes + s->offset <= c->file_bytes[s->file])
        return rc;
    ch__ckpt_data_path(c->prefix, s->file, n_files, path, room);
    return ch__fail(CH_OUT_OF_RANGE,
                    "%s: truncated: it has %lld bytes, and tensor \"%s\" is at byte %lld to "
                    "%lld",
                    path, (long long)c->file_bytes[s->file], name, (long long)s->offset,
                    (long long)(s->offset + s->bytes));
}

/* Opens every data file that the index names, also for a slice of a tensor that is not listed,
 * so that a missing file is noticed whichever part of the checkpoint is opened. */
static ch_status open_files(ch_ckpt *c)
{
    size_t    room = ch__ckpt_path_room(c->prefix);
    char     *path = ch__malloc(room);
    ch_status rc = path != NULL ? CH_OK : ch__fail_memory(c->prefix);

    for (int i = 0; i < c->n_tensors && rc == CH_OK; i++)
        for (int k = 0; k < c->tensor[i].n_parts && rc == CH_OK; k++)
            rc = check_file(c, &c->span[c->tensor[i].first + k], c->tensor[i].name, path, room);
    for (int i = 0; i < c->n_slices && rc == CH_OK; i++)
        rc = open_data(c, c->span[i].file, path, room);
    for (int i = 0; c->is_named != NULL && i < c->header.n_files && rc == CH_OK; i++)
        if (c->is_named[i])
            rc = open_data(c, i, path, room);
    ch__free(path);
    return rc;
}

/* ---- metadata ---- */

/* Checks that the data files have the sizes that they had when the checkpoint was saved. */
static ch_status check_sizes(const ch_ckpt *c, char *path, size_t room)
{
    const ch_ckpt_metadata *m = &c->metadata;

    if (m->n_files != c->header.n_files)
        return ch__fail(CH_DATA_LOSS,
                        "%s: the number of data files is %lld in the index and %d in the "
                        "metadata",
                        c->prefix, (long long)c->header.n_files, m->n_files);
    for (int i = 0; i < m->n_files; i++)
        if (c->fd[i] >= 0 && c->file_bytes[i] != m->file_bytes[i]) {
            ch__ckpt_data_path(c->prefix, i, m->n_files, path, room);
            return ch__fail(CH_DATA_LOSS,
                            "%s: has %lld bytes, and had %lld when the checkpoint was saved: "
                            "it is from another save, or was changed",
                            path, (long long)c->file_bytes[i], (long long)m->file_bytes[i]);
        }
    return CH_OK;
}

/* Reads the metadata, if the checkpoint is from Cohort. */
static ch_status load_metadata(ch_ckpt *c, char *path, size_t room)
{
    int           i = ch__ckpt_find(c, CH_CKPT_METADATA_KEY);
    ch_ckpt_entry e;
    ch_str       *text = NULL;
    ch_status     rc;

    if (i < 0)
        return CH_OK;
    ch__ckpt_entry(c, i, &e);
    if (ch_shape_count(e.shape) != 1)
        return ch__fail(CH_DATA_LOSS, "%s: tensor \"" CH_CKPT_METADATA_KEY "\": not a string",
                        c->prefix);
    rc = ch__ckpt_read_strings(c, CH_CKPT_METADATA_KEY, &text);
    if (rc != CH_OK)
        return rc;
    rc = ch__ckpt_metadata_decode(text[0], &c->metadata);
    ch__free(text);
    return rc == CH_OK ? check_sizes(c, path, room) : ch__fail_at(rc, "%s", c->prefix);
}

/* Removes the metadata from the tensors, unless it is in the range. */
static void hide_metadata(ch_ckpt *c)
{
    int i = ch__ckpt_find(c, CH_CKPT_METADATA_KEY);

    if (i < 0 || ch__ckpt_is_in_range(c, CH_CKPT_METADATA_KEY, strlen(CH_CKPT_METADATA_KEY)))
        return;
    memmove(&c->tensor[i], &c->tensor[i + 1],
            (size_t)(c->n_tensors - i - 1) * sizeof(*c->tensor));
    c->n_tensors--;
}

/* Opens the tensors of a checkpoint in a range of names, without the base of a delta. `room` is
 * that of ch__ckpt_load_index. Takes the range over. */
static ch_status open_alone(const char *prefix, ckpt_range range, int64_t room, ch_ckpt **out)
{
    ch_ckpt  *c = ch__calloc(1, sizeof(*c));
    size_t    size = ch__ckpt_path_room(prefix);
    char     *path = ch__malloc(size);
    ch_status rc = CH_OK;

    if (c != NULL) {
        c->prefix = ch__strdup(prefix);
        c->range = range;
        c->room = room;
    } else {
        ch__free(range.after);
        ch__free(range.last);
    }
    if (c == NULL || path == NULL || c->prefix == NULL)
        rc = ch__fail_memory(prefix);
    if (rc == CH_OK) {
        snprintf(path, size, "%s.index", prefix);
        rc = ch__ckpt_load_index(c, path, room);
    }
    if (rc == CH_OK)
        rc = open_files(c);
    if (rc == CH_OK)
        rc = load_metadata(c, path, size);
    if (rc == CH_OK)
        hide_metadata(c);
    ch__free(path);
    if (rc == CH_OK)
        *out = c;
    else
        ch__ckpt_close(c);
    return rc;
}

ch_status ch__ckpt_load_metadata(const char *prefix, ch_ckpt_metadata *out)
{
    ch_ckpt  *c = NULL;
    ch_status rc = open_alone(prefix, (ckpt_range){NULL, NULL}, 0, &c);

    if (rc != CH_OK)
        return rc;
    *out = c->metadata;
    c->metadata.memory = NULL; /* the caller owns it */
    ch__ckpt_close(c);
    return CH_OK;
}

/* Copies a range. */
static ch_status copy_range(const ckpt_range *from, ckpt_range *out)
{
    *out = (ckpt_range){from->after != NULL ? ch__strdup(from->after) : NULL,
                        from->last != NULL ? ch__strdup(from->last) : NULL};
    if ((out->after == NULL) == (from->after == NULL) &&
        (out->last == NULL) == (from->last == NULL))
        return CH_OK;
    ch__free(out->after);
    ch__free(out->last);
    return ch__fail_memory("a checkpoint");
}

/* Opens the base of a delta, which is in the same directory, for the same range. */
static ch_status open_base(const ch_ckpt *c, ch_ckpt **out)
{
    const char *slash = strrchr(c->prefix, '/');
    int         n = slash != NULL ? (int)(slash + 1 - c->prefix) : 0;
    size_t      room = (size_t)n + strlen(c->metadata.base) + 1;
    char       *prefix = ch__malloc(room);
    ckpt_range  range;
    ch_status rc = prefix != NULL ? copy_range(&c->range, &range) : ch__fail_memory(c->prefix);

    if (rc != CH_OK) {
        ch__free(prefix);
        return rc;
    }
    snprintf(prefix, room, "%.*s%s", n, c->prefix, c->metadata.base);
    rc = open_alone(prefix, range, 0, out);
    ch__free(prefix);
    return rc == CH_OK ? rc : ch__fail_at(rc, "%s: the base of this delta", c->prefix);
}

static ch_status open_range(const char *prefix, ckpt_range range, int64_t room, ch_ckpt **out)
{
    ch_ckpt  *c = NULL;
    ch_status rc = open_alone(prefix, range, room, &c);

    if (rc == CH_OK && c->metadata.base != NULL) {
        rc = open_base(c, &c->base);
        if (rc == CH_OK)
            rc = ch__delta_link(c);
    }
    if (rc == CH_OK)
        *out = c;
    else
        ch__ckpt_close(c);
    return rc;
}

ch_status ch__ckpt_open(const char *prefix, ch_ckpt **out)
{
    return open_range(prefix, (ckpt_range){NULL, NULL}, 0, out);
}

ch_status ch__ckpt_open_some(const char *prefix, const char *after, int64_t bytes,
                             ch_ckpt **out)
{
    ckpt_range range = {after != NULL ? ch__strdup(after) : NULL, NULL};

    if (after != NULL && range.after == NULL)
        return ch__fail_memory(prefix);
    return open_range(prefix, range, bytes > 0 ? bytes : 1, out);
}

void ch__ckpt_close(ch_ckpt *c)
{
    if (c == NULL)
        return;
    for (int64_t i = 0; c->fd != NULL && i < c->header.n_files; i++)
        if (c->fd[i] >= 0)
            ch__sys_close(c->fd[i]);
    ch__free(c->tensor);
    ch__free(c->span);
    ch__free(c->slice);
    ch__free(c->is_verified);
    ch__free(c->names);
    ch__free(c->dims);
    ch__free(c->extents);
    ch__free(c->fd);
    ch__free(c->file_bytes);
    ch__free(c->metadata.memory);
    ch__free(c->rows);
    ch__free(c->row_names);
    ch__free(c->range.after);
    ch__free(c->range.last);
    ch__free(c->is_named);
    ch__ckpt_close(c->base);
    ch__free(c->prefix);
    ch__free(c);
}

/* ---- entries ---- */

int ch__ckpt_count(const ch_ckpt *c)
{
    return c->n_tensors;
}

int64_t ch__ckpt_count_all(const ch_ckpt *c)
{
    /* In a delta, the ids and values of rows are a single tensor. */
    return c->n_all < 0               ? c->n_tensors
           : c->metadata.base != NULL ? c->n_all - c->n_values
                                      : c->n_all;
}

const char *ch__ckpt_last_name(const ch_ckpt *c)
{
    return c->has_more ? c->range.last : NULL;
}

int ch__ckpt_n_files(const ch_ckpt *c)
{
    return (int)c->header.n_files;
}

const ch_ckpt_metadata *ch__ckpt_metadata(const ch_ckpt *c)
{
    return c->metadata.id != 0 ? &c->metadata : NULL;
}

ch_ckpt *ch__ckpt_base(const ch_ckpt *c)
{
    return c->base;
}

const char *ch__ckpt_prefix(const ch_ckpt *c)
{
    return c->prefix;
}

int64_t ch__ckpt_index_bytes(const ch_ckpt *c)
{
    return c->index_bytes;
}

int64_t ch__ckpt_file_bytes(const ch_ckpt *c, int file)
{
    return c->fd[file] >= 0 ? c->file_bytes[file] : -1;
}

/* Returns the bytes of all parts of a tensor; INT64_MAX if there are more. */
static int64_t part_bytes(const ch_ckpt *c, const ckpt_tensor *t)
{
    int64_t sum = 0;

    for (int k = 0; k < t->n_parts; k++)
        if (__builtin_add_overflow(sum, c->span[t->first + k].bytes, &sum))
            return INT64_MAX; /* slices of strings may be the same bytes */
    return sum;
}

int64_t ch__ckpt_stored_bytes(const ch_ckpt *c, int i)
{
    const ckpt_tensor *t = &c->tensor[i];

    return t->rows < 0 ? part_bytes(c, t)
                       : part_bytes(c->base, &c->base->tensor[c->rows[t->rows].base]);
}

void ch__ckpt_entry(const ch_ckpt *c, int i, ch_ckpt_entry *out)
{
    const ckpt_tensor *t = &c->tensor[i];
    const ckpt_rows   *rows = t->rows >= 0 ? &c->rows[t->rows] : NULL;

    *out = (ch_ckpt_entry){.name = t->name,
                           .dtype = ch__ckpt_dtype_of(t->dtype),
                           .dtype_number = t->dtype,
                           .shape = ch_shape_make(t->rank, t->dim),
                           .n_parts = t->n_parts,
                           .is_whole = t->is_whole,
                           .bytes = rows == NULL ? part_bytes(c, t)
                                                 : part_bytes(c, rows->ids) +
                                                       part_bytes(c, rows->values),
                           .n_rows = rows != NULL ? rows->ids->dim[0] : -1};
}

void ch__ckpt_part(const ch_ckpt *c, int i, int part, ch_ckpt_part *out)
{
    ch__ckpt_get_part(c, &c->tensor[i], part, out);
}

void ch__ckpt_get_part(const ch_ckpt *c, const ckpt_tensor *t, int part, ch_ckpt_part *out)
{
    const ckpt_span *s = &c->span[t->first + part];

    *out =
        (ch_ckpt_part){.file = s->file, .offset = s->offset, .bytes = s->bytes, .crc = s->crc};
    for (int k = 0; k < t->rank; k++) {
        const ch_ckpt_extent *e = t->is_whole ? NULL : &c->slice[t->first + part].extent[k];

        out->region.begin[k] = e != NULL ? e->begin : 0;
        out->region.size[k] = e != NULL ? e->size : t->dim[k];
    }
}

int ch__ckpt_find(const ch_ckpt *c, const char *name)
{
    int low = 0, high = c->n_tensors;

    while (low < high) {
        int middle = low + (high - low) / 2, order = strcmp(c->tensor[middle].name, name);

        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}
