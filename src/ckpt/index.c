/* ckpt/index.c -- reads the index of a checkpoint into arrays and checks all of it.
 *
 * The index is read twice. The first pass counts, the second fills arrays of exactly the needed
 * size; so the memory is known, and limited, before it is allocated. If only a part of the
 * tensors is opened, a pass before these finds the range of names (visit_for_range), and
 * the others leave out all other names. Slices come first in an index, in the order of their
 * tensors' names. A tensor in slices finds its slices as the next run of slices with its name.
 * ckpt/open.c calls ch__ckpt_load_index. When it returns CH_OK:
 *
 *   1. Every shape has at most 8 axes, and its number of bytes does not overflow.
 *   2. Every span of numbers has the bytes of its shape.
 *   3. The slices of a tensor lie inside it, do not overlap, and have its dtype.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/index.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "ckpt/delta.h"
#include "ckpt/sstable.h"

/* Of the arrays, in addition to twice the size of the files. */
enum { ARRAY_BYTES = 8 << 20 };

/* ---- reading the index ---- */

/* Numbers of objects in an index. */
typedef struct ckpt_counts {
    int64_t tensors, slices, wholes; /* wholes: tensors that are not in slices */
    int64_t names;                   /* bytes */
    int64_t dims, extents;           /* elements */
} ckpt_counts;

/* An index that is being read. */
typedef struct ckpt_loading {
    ch_ckpt    *c;
    const char *path;
    bool        is_second; /* the pass that fills the arrays */
    bool        has_header;
    ckpt_counts n, limit;   /* so far in this pass; those of the first pass */
    int         next_slice; /* first slice after the last tensor's */
    const char *slice_name; /* of the last slice */
    char        name[2][CH_CKPT_MAX_NAME + 1]; /* of a slice and of the slice before */
} ckpt_loading;

static ch_status fail_entry(const ckpt_loading *l, ch_status rc, const char *name,
                            const char *problem)
{
    return ch__fail(rc, "%s: tensor \"%s\": %s", l->path, name, problem);
}

/* The same for damage, with the beginning of a key. */
static ch_status fail_key(const ckpt_loading *l, ch_str key, const char *problem)
{
    char shown[64];

    snprintf(shown, sizeof(shown), "%.*s", (int)key.size, key.data);
    return fail_entry(l, CH_DATA_LOSS, shown, problem);
}

/* Checks a span of numbers or strings with this shape. Returns NULL, or the fault. */
static const char *check_span(const ckpt_loading *l, const ch_ckpt_message *m, ch_shape shape)
{
    int     bytes = ch__ckpt_dtype_bytes(m->dtype);
    int64_t n;

    if (m->file < 0 || m->file >= l->c->header.n_files)
        return "its data file has no such number";
    if (m->offset < 0 || m->bytes < 0 || m->bytes > INT64_MAX - m->offset)
        return "invalid offset or size";
    if (bytes > 0 && (!ch__mul_size(ch_shape_count(shape), bytes, &n) || n != m->bytes))
        return "its size does not match its shape and dtype";
    return NULL;
}

static void set_span(ckpt_loading *l, int i, const ch_ckpt_message *m)
{
    l->c->span[i] = (ckpt_span){m->offset, m->bytes, m->crc, (int)m->file};
}

/* Adds to the counts. In the second pass, fails if the arrays do not have as much room, because
 * the file has changed since the first pass. */
static ch_status count(ckpt_loading *l, ckpt_counts more)
{
    ckpt_counts       *n = &l->n;
    const ckpt_counts *most = &l->limit;

    n->tensors += more.tensors;
    n->slices += more.slices;
    n->wholes += more.wholes;
    n->names += more.names;
    n->dims += more.dims;
    n->extents += more.extents;
    return !l->is_second || (n->tensors <= most->tensors && n->slices <= most->slices &&
                             n->wholes <= most->wholes && n->names <= most->names &&
                             n->dims <= most->dims && n->extents <= most->extents)
               ? CH_OK
               : ch__fail(CH_DATA_LOSS, "%s: was changed while it was read", l->path);
}

/* Copies a name of n bytes, which was just counted, to the memory of names. */
static const char *copy_name(const ckpt_loading *l, const char *name, size_t n)
{
    char *to = l->c->names + l->n.names - n - 1;

    memcpy(to, name, n);
    to[n] = '\0';
    return to;
}

/* ---- a part of the tensors ---- */

static bool ends_with(const char *name, size_t n, const char *suffix)
{
    size_t m = strlen(suffix);

    return n > m && memcmp(name + n - m, suffix, m) == 0;
}

/* Returns the length of the name of the tensor that a name of n bytes belongs to. */
static size_t shown_length(const char *name, size_t n)
{
    return ends_with(name, n, CH_DELTA_IDS)      ? n - strlen(CH_DELTA_IDS)
           : ends_with(name, n, CH_DELTA_VALUES) ? n - strlen(CH_DELTA_VALUES)
                                                 : n;
}

/* Compares n bytes with a text, as strcmp does. */
static int compare_text(const char *name, size_t n, const char *text)
{
    size_t m = strlen(text);
    int    order = memcmp(name, text, n < m ? n : m);

    return order != 0 ? order : n < m ? -1 : n > m;
}

bool ch__ckpt_is_in_range(const ch_ckpt *c, const char *name, size_t n)
{
    n = shown_length(name, n);
    return (c->range.after == NULL || compare_text(name, n, c->range.after) > 0) &&
           (c->range.last == NULL || compare_text(name, n, c->range.last) <= 0);
}

/* Returns true if a tensor must be loaded. The metadata is, because opening needs it. */
static bool is_loaded(const ckpt_loading *l, const char *name, size_t n)
{
    return ch__ckpt_is_in_range(l->c, name, n) ||
           compare_text(name, n, CH_CKPT_METADATA_KEY) == 0;
}

/* The search for the end of a range. */
typedef struct range_search {
    ch_ckpt *c;
    int64_t  room;      /* bytes of the arrays that are left for more names */
    bool     has_ended; /* the range is full */
} range_search;

/* Extends the range by a tensor, if there is room. */
static ch_status extend_range(range_search *s, const char *name, size_t n,
                              const ch_ckpt_message *m)
{
    ckpt_range *range = &s->c->range;
    int64_t     slice = (int64_t)(sizeof(ckpt_slice) + sizeof(ckpt_span)) + 1 +
                    (int64_t)sizeof(ch_ckpt_extent) * m->shape.rank;
    int64_t bytes = (int64_t)(sizeof(ckpt_tensor) + sizeof(ckpt_span)) + 8 * m->shape.rank +
                    (m->n_slices > 0 ? 2 : 1) * ((int64_t)n + 1) + m->n_slices * slice;

    n = shown_length(name, n);
    if (range->after != NULL && compare_text(name, n, range->after) <= 0)
        return CH_OK;
    if (range->last != NULL && compare_text(name, n, range->last) <= 0) {
        s->room -= bytes;
        return CH_OK;
    }
    s->has_ended |= range->last != NULL && bytes > s->room;
    if (s->has_ended) {
        s->c->has_more = true;
        return CH_OK;
    }
    s->room -= bytes;

    char *last = ch__realloc(range->last, n + 1);

    if (last == NULL)
        return ch__fail_memory(s->c->prefix);
    memcpy(last, name, n);
    last[n] = '\0';
    range->last = last;
    return CH_OK;
}

/* Counts the tensors and the data files of an index, and finds the end of the range. Entries
 * that are damaged are left to the passes that follow. */
static ch_status visit_for_range(void *arg, ch_str key, ch_str value)
{
    range_search   *s = arg;
    ch_ckpt        *c = s->c;
    ch_ckpt_message m;
    const char     *problem = NULL;

    if (key.size == 0) {
        ch_status rc = ch__ckpt_parse_header(value, &c->header, &problem);

        if (rc == CH_OK && c->is_named == NULL)
            c->is_named = ch__calloc((size_t)c->header.n_files + 1, 1);
        return rc != CH_OK || c->is_named != NULL ? CH_OK : ch__fail_memory(c->prefix);
    }
    if (ch__ckpt_parse_entry(value, &m) != NULL)
        return CH_OK;
    if (m.n_slices == 0 && c->is_named != NULL && m.file >= 0 && m.file < c->header.n_files)
        c->is_named[m.file] = 1;
    if (key.data[0] == '\0' || memchr(key.data, '\0', key.size) != NULL)
        return CH_OK;
    c->n_all++;
    c->n_values += ends_with(key.data, key.size, CH_DELTA_VALUES);
    return extend_range(s, key.data, key.size, &m);
}

/* ---- slices ---- */

static ch_status visit_slice(ckpt_loading *l, ch_str key, const ch_ckpt_message *m)
{
    ch_ckpt_extent extent[CH_MAX_RANK];
    char          *name = l->name[l->n.slices % 2];
    const char    *before = l->name[1 - l->n.slices % 2], *problem;
    ch_shape       shape = m->shape;
    bool           is_new;
    int            rank;
    ch_status      rc;

    problem = ch__ckpt_parse_slice_key(key, name, &rank, extent);
    if (problem == NULL && (rank != shape.rank || m->n_slices > 0))
        problem = "damaged entry of a slice";
    if (problem == NULL)
        problem = check_span(l, m, shape);
    for (int k = 0; problem == NULL && k < rank; k++)
        if (extent[k].size >= 0 && extent[k].size != shape.dim[k])
            problem = "Stored slice shape differs from the extent in its key";
    if (problem != NULL)
        return fail_entry(l, CH_DATA_LOSS, name, problem);
    if (!is_loaded(l, name, strlen(name)))
        return CH_OK;
    if (l->n.slices == CH_CKPT_MAX_ITEMS)
        return ch__fail_limit("%s: more than %d slices", l->path, CH_CKPT_MAX_ITEMS);
    is_new = l->n.slices == 0 || strcmp(name, before) != 0;
    rc = count(l, (ckpt_counts){.slices = 1,
                                .names = is_new ? (int64_t)strlen(name) + 1 : 0,
                                .extents = rank});
    if (rc == CH_OK && l->is_second) {
        int         i = (int)l->n.slices - 1;
        ckpt_slice *s = &l->c->slice[i];

        if (is_new)
            l->slice_name = copy_name(l, name, strlen(name));
        *s = (ckpt_slice){l->slice_name, l->c->extents + l->n.extents - rank, rank, m->dtype,
                          false};
        memcpy(s->extent, extent, (size_t)rank * sizeof(*extent));
        set_span(l, i, m);
    }
    return rc;
}

/* ---- tensors in slices ---- */

/* The tensor whose list of slices is being read. */
typedef struct ckpt_listing {
    ckpt_slice *slice; /* its slices, in ascending order of their extents */
    int         n, rank, n_listed;
} ckpt_listing;

static int compare_extents(const ch_ckpt_extent *a, const ch_ckpt_extent *b, int rank)
{
    for (int k = 0; k < rank; k++) {
        if (a[k].begin != b[k].begin)
            return a[k].begin < b[k].begin ? -1 : 1;
        if (a[k].size != b[k].size)
            return a[k].size < b[k].size ? -1 : 1;
    }
    return 0;
}

/* Finds a listed slice among the stored slices. */
static const char *find_listed(void *arg, const ch_ckpt_extent *extent)
{
    ckpt_listing *g = arg;
    int           low = 0, high = g->n;

    while (low < high) {
        int middle = low + (high - low) / 2;
        int order = compare_extents(g->slice[middle].extent, extent, g->rank);

        if (order == 0) {
            if (g->slice[middle].is_listed)
                return "lists a slice twice";
            g->slice[middle].is_listed = true;
            g->n_listed++;
            return NULL;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return "lists a slice that is not stored";
}

/* Replaces the extents of whole axes by their sizes, and checks that a slice lies inside its
 * tensor. */
static const char *check_slice(ckpt_slice *s, const ckpt_span *span, const ckpt_tensor *t)
{
    int64_t n = ch__ckpt_dtype_bytes(t->dtype);
    bool    is_fixed = n > 0;

    if (s->rank != t->rank || s->dtype != t->dtype)
        return "a slice has another dtype or number of axes";
    for (int k = 0; k < s->rank; k++) {
        ch_ckpt_extent *e = &s->extent[k];

        if (e->size < 0)
            e->size = t->dim[k];
        if (e->size == 0 || e->begin > t->dim[k] || e->size > t->dim[k] - e->begin)
            return "Stored slice shape: a slice does not lie inside the tensor";
        if (is_fixed && !ch__mul_size(n, e->size, &n))
            return "a slice is too large";
    }
    return is_fixed && n != span->bytes ? "Stored slice shape does not match its extent" : NULL;
}

/* The axis by which compare_begin sorts; set around each qsort. */
static _Thread_local int sort_axis;

static int compare_begin(const void *a, const void *b)
{
    const ch_ckpt_extent *const *x = a, *const *y = b;
    int64_t                      p = (*x)[sort_axis].begin, q = (*y)[sort_axis].begin;

    return p < q ? -1 : p > q;
}

static bool extents_overlap(const ch_ckpt_extent *a, const ch_ckpt_extent *b, int rank)
{
    for (int k = 0; k < rank; k++)
        if (a[k].begin >= b[k].begin + b[k].size || b[k].begin >= a[k].begin + a[k].size)
            return false;
    return true;
}

/* Sweeps along an axis: compares each slice with the slices that begin before its end. Returns
 * 1: some overlap, 0: none, -1: too many pairs along this axis. */
static int sweep(const ch_ckpt_extent **e, int n, int rank, int axis)
{
    int64_t pairs = 2000000 + 64 * (int64_t)n;

    sort_axis = axis;
    qsort(e, (size_t)n, sizeof(*e), compare_begin);
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n && e[j][axis].begin < e[i][axis].begin + e[i][axis].size;
             j++) {
            if (extents_overlap(e[i], e[j], rank))
                return 1;
            if (--pairs < 0)
                return -1;
        }
    return 0;
}

static ch_status check_overlap(const ckpt_loading *l, const ckpt_tensor *t)
{
    const ch_ckpt_extent **e;
    int                    found = t->rank == 0 && t->n_parts > 1 ? 1 : t->n_parts < 2 ? 0 : -1;

    if (found == 0)
        return CH_OK;
    e = ch__malloc((size_t)t->n_parts * sizeof(*e));
    if (e == NULL)
        return ch__fail_memory(l->path);
    for (int i = 0; i < t->n_parts; i++)
        e[i] = l->c->slice[t->first + i].extent;
    for (int k = 0; k < t->rank && found < 0; k++)
        found = sweep(e, t->n_parts, t->rank, k);
    ch__free(e);
    return found == 0 ? CH_OK
           : found > 0
               ? fail_entry(l, CH_INTERNAL, t->name, "its slices overlap")
               : ch__fail_limit("%s: tensor \"%s\": its %d slices are too many to check",
                                l->path, t->name, t->n_parts);
}

static ch_status link_slices(ckpt_loading *l, ch_str value, ckpt_tensor *t)
{
    ch_ckpt     *c = l->c;
    int          i = l->next_slice, end;
    ckpt_listing g;
    const char  *problem;

    while (i < c->n_slices && strcmp(c->slice[i].name, t->name) < 0)
        i++;
    for (end = i; end < c->n_slices && strcmp(c->slice[end].name, t->name) == 0 &&
                  c->slice[end].rank == t->rank;)
        end++;
    l->next_slice = end;
    t->first = i;
    t->n_parts = end - i;
    g = (ckpt_listing){c->slice + i, end - i, t->rank, 0};
    problem = ch__ckpt_parse_slices(value, t->rank, find_listed, &g);
    if (problem == NULL && g.n_listed != g.n)
        problem = "does not list all of its slices";
    for (int k = i; problem == NULL && k < end; k++)
        problem = check_slice(&c->slice[k], &c->span[k], t);
    return problem != NULL ? fail_entry(l, CH_DATA_LOSS, t->name, problem)
                           : check_overlap(l, t);
}

/* ---- whole tensors ---- */

static ch_status visit_tensor(ckpt_loading *l, ch_str key, ch_str value,
                              const ch_ckpt_message *m)
{
    const char  *problem = m->n_slices > 0 ? NULL : check_span(l, m, m->shape);
    int          rank = m->shape.rank;
    ckpt_tensor *t;
    ch_status    rc;

    if (memchr(key.data, '\0', key.size) != NULL)
        problem = "its name contains a zero byte";
    if (problem != NULL)
        return fail_key(l, key, problem);
    if (key.size > CH_CKPT_MAX_NAME)
        return ch__fail_limit("%s: a name has %zu bytes (at most %d are read)", l->path,
                              key.size, CH_CKPT_MAX_NAME);
    if (!is_loaded(l, key.data, key.size))
        return CH_OK;
    if (l->n.tensors == CH_CKPT_MAX_ITEMS)
        return ch__fail_limit("%s: more than %d tensors", l->path, CH_CKPT_MAX_ITEMS);
    rc = count(l, (ckpt_counts){.tensors = 1,
                                .wholes = m->n_slices == 0,
                                .names = (int64_t)key.size + 1,
                                .dims = rank});
    if (rc != CH_OK || !l->is_second)
        return rc;
    t = &l->c->tensor[l->n.tensors - 1];
    *t = (ckpt_tensor){.name = copy_name(l, key.data, key.size),
                       .dim = l->c->dims + l->n.dims - rank,
                       .first = l->c->n_slices + (int)l->n.wholes - 1,
                       .n_parts = 1,
                       .rank = (uint8_t)rank,
                       .dtype = (uint8_t)m->dtype,
                       .is_whole = m->n_slices == 0,
                       .rows = -1};
    memcpy(t->dim, m->shape.dim, (size_t)rank * sizeof(*t->dim));
    if (!t->is_whole)
        return link_slices(l, value, t);
    set_span(l, t->first, m);
    return CH_OK;
}

static ch_status visit_entry(void *arg, ch_str key, ch_str value)
{
    ckpt_loading   *l = arg;
    ch_ckpt_message m;
    ch_ckpt_header  header;
    const char     *problem = NULL;
    ch_status       rc;

    if (key.size == 0) {
        rc = ch__ckpt_parse_header(value, &header, &problem);
        l->has_header = true;
        if (rc == CH_OK && !l->is_second)
            l->c->header = header; /* the arrays of the second pass have room for this one */
        return rc == CH_OK ? rc : ch__fail(rc, "%s: header: %s", l->path, problem);
    }
    if (!l->has_header)
        return ch__fail(CH_DATA_LOSS, "%s: has no header", l->path);
    problem = ch__ckpt_parse_entry(value, &m);
    if (problem != NULL)
        return fail_key(l, key, problem);
    return key.data[0] == '\0' ? visit_slice(l, key, &m) : visit_tensor(l, key, value, &m);
}

/* Returns the size of all data files. */
static int64_t data_bytes(const ch_ckpt *c)
{
    size_t      room = ch__ckpt_path_room(c->prefix);
    char       *path = ch__malloc(room);
    struct stat about;
    int64_t     sum = 0;

    for (int i = 0; path != NULL && i < c->header.n_files; i++) {
        ch__ckpt_data_path(c->prefix, i, (int)c->header.n_files, path, room);
        if (ch__sys_lstat(path, &about) == 0 && S_ISREG(about.st_mode))
            sum += ch__min(about.st_size, INT64_C(1) << 40);
    }
    ch__free(path);
    return sum;
}

/* Allocates the arrays for the numbers that the first pass has counted. */
static ch_status allocate(const ckpt_loading *l, int64_t index_bytes)
{
    ch_ckpt *c = l->c;
    size_t   n_spans = (size_t)(l->n.slices + l->n.wholes), n_files;
    int64_t  bytes = l->n.tensors * (int64_t)sizeof(ckpt_tensor) +
                    (int64_t)n_spans * ((int64_t)sizeof(ckpt_span) + 1) +
                    l->n.slices * (int64_t)sizeof(ckpt_slice) + l->n.names + l->n.dims * 8 +
                    l->n.extents * (int64_t)sizeof(ch_ckpt_extent) + c->header.n_files * 12;

    if (bytes > ARRAY_BYTES + 2 * index_bytes &&
        bytes > ARRAY_BYTES + 2 * (index_bytes + data_bytes(c)))
        return ch__fail_limit("%s: its %lld tensors need %lld bytes of memory, too many for an "
                              "index of %lld bytes",
                              l->path, (long long)l->n.tensors, (long long)bytes,
                              (long long)index_bytes);
    c->n_tensors = (int)l->n.tensors;
    c->n_slices = (int)l->n.slices;
    n_files = (size_t)c->header.n_files;
    c->tensor = ch__calloc((size_t)l->n.tensors + 1, sizeof(*c->tensor));
    c->span = ch__calloc(n_spans + 1, sizeof(*c->span));
    c->slice = ch__calloc((size_t)l->n.slices + 1, sizeof(*c->slice));
    c->is_verified = ch__calloc(n_spans + 1, sizeof(*c->is_verified));
    c->names = ch__malloc((size_t)l->n.names + 1);
    c->dims = ch__malloc(((size_t)l->n.dims + 1) * sizeof(*c->dims));
    c->extents = ch__malloc(((size_t)l->n.extents + 1) * sizeof(*c->extents));
    c->fd = ch__malloc((n_files + 1) * sizeof(*c->fd));
    for (size_t i = 0; c->fd != NULL && i < n_files; i++)
        c->fd[i] = -1;
    c->file_bytes = ch__calloc(n_files + 1, sizeof(*c->file_bytes));
    return c->tensor != NULL && c->span != NULL && c->slice != NULL && c->is_verified != NULL &&
                   c->names != NULL && c->dims != NULL && c->extents != NULL && c->fd != NULL &&
                   c->file_bytes != NULL
               ? CH_OK
               : ch__fail_memory(l->path);
}

ch_status ch__ckpt_load_index(ch_ckpt *c, const char *path, int64_t room)
{
    ckpt_loading *l = ch__calloc(1, sizeof(*l));
    int           fd = -1;
    int64_t       bytes = 0;
    ch_status     rc = l != NULL ? CH_OK : ch__fail_memory(path);

    if (rc == CH_OK)
        rc = ch__ckpt_open_file(path, &fd, &bytes);
    if (rc == CH_NOT_FOUND)
        rc = ch__fail(rc,
                      "%s: no such checkpoint: there is no file %s; a checkpoint is named by "
                      "its prefix, without \".index\"",
                      c->prefix, path);
    if (rc == CH_OK) {
        c->index_bytes = bytes;
        c->n_all = room > 0 ? 0 : -1;
    }
    if (rc == CH_OK && room > 0)
        rc = ch__sst_read(fd, bytes, path, visit_for_range, &(range_search){c, room, false});
    if (rc == CH_OK) {
        *l = (ckpt_loading){.c = c, .path = path};
        rc = ch__sst_read(fd, bytes, path, visit_entry, l);
    }
    if (rc == CH_OK && !l->has_header)
        rc = ch__fail(CH_DATA_LOSS, "%s: has no header", path);
    if (rc == CH_OK)
        rc = allocate(l, bytes);
    if (rc == CH_OK) {
        *l = (ckpt_loading){.c = c, .path = path, .is_second = true, .limit = l->n};
        rc = ch__sst_read(fd, bytes, path, visit_entry, l);
        if (rc == CH_OK && memcmp(&l->n, &l->limit, sizeof(l->n)) != 0)
            rc = ch__fail(CH_DATA_LOSS, "%s: was changed while it was read", path);
    }
    if (fd >= 0)
        ch__sys_close(fd);
    ch__free(l);
    return rc;
}
