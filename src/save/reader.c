/* save/reader.c -- reads checkpoint files for tools: the functions of
 * cohort/checkpoint_reader.h.
 *
 * A reader is an open checkpoint of ckpt/ with the paths of its data files. Values go to
 * tensors, in memory of at most the size of the files: a shape in a damaged index may be
 * larger.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/checkpoint_reader.h"

#include <limits.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "ckpt/ckpt.h"
#include "ckpt/directory.h"
#include "ckpt/fold.h"

enum {
    POLL_NS = 100000000, /* between two looks at a directory */
    PART_BYTES = 8 << 20 /* of the list of tensors in a part of a checkpoint */
};

struct ch_checkpoint_reader {
    ch_ckpt *c;
    char   **file; /* path of each data file; NULL: no tensor is in it */
};

/* ---- opening ---- */

static ch_status set_files(ch_checkpoint_reader *r)
{
    int    n = ch__ckpt_n_files(r->c);
    size_t room = strlen(ch__ckpt_prefix(r->c)) + 64;

    r->file = ch__calloc((size_t)n + 1, sizeof(*r->file));
    for (int i = 0; r->file != NULL && i < n; i++) {
        if (ch__ckpt_file_bytes(r->c, i) < 0)
            continue;
        r->file[i] = ch__malloc(room);
        if (r->file[i] == NULL)
            return ch__fail_memory(ch__ckpt_prefix(r->c));
        ch__ckpt_data_path(ch__ckpt_prefix(r->c), i, n, r->file[i], room);
    }
    return r->file != NULL ? CH_OK : ch__fail_memory(ch__ckpt_prefix(r->c));
}

/* Opens all tensors, or a part of them. */
static ch_status open_reader(const char *call, const char *path, bool is_part,
                             const char *after, ch_checkpoint_reader **out)
{
    ch_checkpoint_reader *r = NULL;
    char                  prefix[PATH_MAX];
    ch_status             rc = ch__check_not_null(call, "path", path, "out", out);

    if (rc == CH_OK)
        rc = ch__ckpt_resolve(path, prefix, sizeof(prefix));
    if (rc != CH_OK)
        return rc;
    r = ch__calloc(1, sizeof(*r));
    if (r == NULL)
        return ch__fail_memory(path);
    rc = is_part ? ch__ckpt_open_some(prefix, after, PART_BYTES, &r->c)
                 : ch__ckpt_open(prefix, &r->c);
    if (rc == CH_OK)
        rc = set_files(r);
    if (rc == CH_OK)
        *out = r;
    else
        ch_checkpoint_close(r);
    return rc;
}

ch_status ch_checkpoint_open(const char *path, ch_checkpoint_reader **out)
{
    return open_reader("ch_checkpoint_open", path, false, NULL, out);
}

ch_status ch_checkpoint_open_part(const char *path, const char *after,
                                  ch_checkpoint_reader **out)
{
    return open_reader("ch_checkpoint_open_part", path, true, after, out);
}

void ch_checkpoint_close(ch_checkpoint_reader *r)
{
    if (r == NULL)
        return;
    for (int i = 0; r->file != NULL && i < ch__ckpt_n_files(r->c); i++)
        ch__free(r->file[i]);
    ch__free(r->file);
    ch__ckpt_close(r->c);
    ch__free(r);
}

/* ---- descriptions ---- */

ch_status ch_checkpoint_describe(const ch_checkpoint_reader *r, ch_checkpoint_info *out)
{
    const ch_ckpt_metadata *m;
    ch_status rc = ch__check_not_null("ch_checkpoint_describe", "r", r, "out", out);

    if (rc != CH_OK)
        return rc;
    m = ch__ckpt_metadata(r->c);
    *out = (ch_checkpoint_info){.prefix = ch__ckpt_prefix(r->c),
                                .step = -1,
                                .n_files = ch__ckpt_n_files(r->c),
                                .n_tensors = ch__ckpt_count_all(r->c),
                                .next = ch__ckpt_last_name(r->c),
                                .bytes = ch__ckpt_index_bytes(r->c)};
    for (int i = 0; i < out->n_files; i++)
        if (r->file[i] != NULL)
            out->bytes += ch__ckpt_file_bytes(r->c, i);
    if (m != NULL) {
        out->format = m->format;
        out->id = m->id;
        out->time = (double)m->time * 1e-6;
        out->step = m->step;
        out->base_id = m->base_id;
        out->base = m->base != NULL ? ch__ckpt_prefix(ch__ckpt_base(r->c)) : NULL;
    }
    return CH_OK;
}

int ch_checkpoint_count(const ch_checkpoint_reader *r)
{
    return r != NULL ? ch__ckpt_count(r->c) : 0;
}

int ch_checkpoint_find(const ch_checkpoint_reader *r, const char *name)
{
    return r != NULL && name != NULL ? ch__ckpt_find(r->c, name) : -1;
}

static ch_status check_index(const char *call, const ch_checkpoint_reader *r, int i)
{
    return i >= 0 && i < ch__ckpt_count(r->c)
               ? CH_OK
               : ch__fail(CH_INVALID_ARGUMENT, "%s: %s: no tensor %d of %d", call,
                          ch__ckpt_prefix(r->c), i, ch__ckpt_count(r->c));
}

ch_status ch_checkpoint_entry(const ch_checkpoint_reader *r, int i, ch_checkpoint_item *out)
{
    ch_ckpt_entry e;
    ch_status     rc = ch__check_not_null("ch_checkpoint_entry", "r", r, "out", out);

    if (rc == CH_OK)
        rc = check_index("ch_checkpoint_entry", r, i);
    if (rc != CH_OK)
        return rc;
    ch__ckpt_entry(r->c, i, &e);
    *out = (ch_checkpoint_item){.name = e.name,
                                .dtype = e.dtype,
                                .dtype_name = ch__ckpt_dtype_name(e.dtype_number),
                                .shape = e.shape,
                                .bytes = e.bytes,
                                .n_parts = e.n_parts,
                                .is_whole = e.is_whole,
                                .n_rows = e.n_rows};
    return CH_OK;
}

ch_status ch_checkpoint_slice(const ch_checkpoint_reader *r, int i, int part,
                              ch_checkpoint_part *out)
{
    ch_ckpt_entry e;
    ch_ckpt_part  x;
    ch_status     rc = ch__check_not_null("ch_checkpoint_slice", "r", r, "out", out);

    if (rc == CH_OK)
        rc = check_index("ch_checkpoint_slice", r, i);
    if (rc != CH_OK)
        return rc;
    ch__ckpt_entry(r->c, i, &e);
    if (part < 0 || part >= e.n_parts)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "ch_checkpoint_slice: tensor \"%s\": no part %d of %d", e.name, part,
                        e.n_parts);
    ch__ckpt_part(r->c, i, part, &x);
    *out = (ch_checkpoint_part){
        .file = r->file[x.file], .offset = x.offset, .bytes = x.bytes, .crc = x.crc};
    memcpy(out->begin, x.region.begin, sizeof(out->begin));
    memcpy(out->size, x.region.size, sizeof(out->size));
    return CH_OK;
}

/* ---- values ---- */

/* Finds a tensor of a dtype that Cohort has. */
static ch_status find_tensor(const char *call, ch_checkpoint_reader *r, const char *name,
                             ch_ckpt_entry *out)
{
    int i = ch__ckpt_find(r->c, name);

    if (i < 0)
        return ch__fail(CH_NOT_FOUND, "%s: %s: the checkpoint has no tensor \"%s\"", call,
                        ch__ckpt_prefix(r->c), name);
    ch__ckpt_entry(r->c, i, out);
    return out->dtype != CH_DTYPE_COUNT
               ? CH_OK
               : ch__fail(CH_UNIMPLEMENTED, "%s: tensor \"%s\": Cohort has no dtype %s", call,
                          name, ch__ckpt_dtype_name(out->dtype_number));
}

/* Creates a tensor for n elements of a tensor of numbers. Refuses more elements than the files
 * hold, so that the shape in a damaged index cannot fill the memory. */
static ch_status make_tensor(ch_checkpoint_reader *r, const ch_ckpt_entry *e, ch_shape shape,
                             ch_tensor **out)
{
    return ch__ckpt_bytes(e->dtype, shape) <=
                   ch__ckpt_stored_bytes(r->c, ch__ckpt_find(r->c, e->name))
               ? ch_tensor_new(e->dtype, shape, out)
               : ch__fail(CH_INVALID_ARGUMENT,
                          "%s: tensor \"%s\": does not have sufficient slices to cover the "
                          "region",
                          ch__ckpt_prefix(r->c), e->name);
}

static ch_status read_strings(ch_checkpoint_reader *r, const ch_ckpt_entry *e,
                              const ch_region *region, ch_tensor **out)
{
    ch_str    *strings = NULL;
    ch_tensor *all = NULL, *view = NULL;
    ch_status  rc = ch__ckpt_read_strings(r->c, e->name, &strings);

    if (rc != CH_OK)
        return rc;
    rc = ch_tensor_wrap(CH_STR, e->shape, strings, ch__free, strings, &all);
    if (rc != CH_OK)
        ch__free(strings);
    if (rc == CH_OK)
        rc = ch__tensor_region(all, region, &view);
    if (rc == CH_OK)
        rc = ch_tensor_contiguous(view, out);
    ch_tensor_unref(view);
    ch_tensor_unref(all);
    return rc;
}

ch_status ch_checkpoint_read(ch_checkpoint_reader *r, const char *name, int n,
                             const int64_t *from, const int64_t *to, ch_tensor **out)
{
    static const char call[] = "ch_checkpoint_read";
    ch_ckpt_entry     e;
    ch_region         region = {.begin = {0}};
    ch_tensor        *t = NULL;
    ch_shape          shape;
    ch_status         rc = ch__check_not_null(call, "r", r, "name", name);

    if (rc == CH_OK)
        rc = ch__check_not_null(call, "out", out, NULL, NULL);
    if (rc == CH_OK && n != 0)
        rc = ch__check_not_null(call, "from", from, "to", to);
    if (rc == CH_OK)
        rc = find_tensor(call, r, name, &e);
    if (rc != CH_OK)
        return rc;
    if (n < 0 || n > e.shape.rank)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: tensor \"%s\": %d axes of %d", call, name, n,
                        e.shape.rank);
    shape = e.shape;
    for (int k = 0; k < e.shape.rank; k++) {
        int64_t begin = k < n ? from[k] : 0, end = k < n ? to[k] : shape.dim[k];

        if (begin < 0 || end < begin || end > shape.dim[k])
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: tensor \"%s\": axis %d: elements %lld to %lld of %lld", call,
                            name, k, (long long)begin, (long long)end, (long long)shape.dim[k]);
        region.begin[k] = begin;
        region.size[k] = shape.dim[k] = end - begin;
    }
    if (e.dtype == CH_STR)
        return read_strings(r, &e, &region, out);
    rc = make_tensor(r, &e, shape, &t);
    if (rc == CH_OK)
        rc = ch__ckpt_read(r->c, name, &region, ch_tensor_data_mut(t));
    if (rc == CH_OK)
        *out = t;
    else
        ch_tensor_unref(t);
    return rc;
}

ch_status ch_checkpoint_read_range(ch_checkpoint_reader *r, const char *name, int64_t from,
                                   int64_t to, ch_tensor **out)
{
    static const char call[] = "ch_checkpoint_read_range";
    ch_ckpt_entry     e;
    ch_tensor        *t = NULL;
    ch_status         rc = ch__check_not_null(call, "r", r, "name", name);

    if (rc == CH_OK)
        rc = ch__check_not_null(call, "out", out, NULL, NULL);
    if (rc == CH_OK)
        rc = find_tensor(call, r, name, &e);
    if (rc != CH_OK)
        return rc;
    if (e.dtype == CH_STR)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: tensor \"%s\" holds strings; use "
                        "ch_checkpoint_read",
                        call, name);
    if (from < 0 || to < from || to > ch_shape_count(e.shape))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: tensor \"%s\": elements %lld to %lld of %lld",
                        call, name, (long long)from, (long long)to,
                        (long long)ch_shape_count(e.shape));
    rc = make_tensor(r, &e, ch_shape_of(to - from), &t);
    if (rc == CH_OK)
        rc = ch__ckpt_read_range(r->c, name, NULL, from, to - from, ch_tensor_data_mut(t));
    if (rc == CH_OK)
        *out = t;
    else
        ch_tensor_unref(t);
    return rc;
}

ch_status ch_checkpoint_verify(ch_checkpoint_reader *r, int i)
{
    ch_status rc = ch__check_not_null("ch_checkpoint_verify", "r", r, NULL, NULL);

    if (rc == CH_OK)
        rc = check_index("ch_checkpoint_verify", r, i);
    return rc == CH_OK ? ch__ckpt_verify(r->c, i) : rc;
}

ch_status ch_checkpoint_fold(ch_checkpoint_reader *r, const char *prefix)
{
    ch_status rc = ch__check_not_null("ch_checkpoint_fold", "r", r, "prefix", prefix);

    return rc == CH_OK ? ch__ckpt_fold(r->c, prefix, NULL) : rc;
}

/* ---- directories ---- */

ch_status ch_checkpoint_list(const char *directory, ch_checkpoint_visit visit, void *arg)
{
    ch_ckpt_files found = {0};
    char          prefix[PATH_MAX];
    ch_status rc = ch__check_not_null("ch_checkpoint_list", "directory", directory, NULL, NULL);

    if (rc == CH_OK && visit == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "ch_checkpoint_list: visit is NULL");
    if (rc == CH_OK)
        rc = ch__ckpt_list_files(directory, &found);
    for (int i = 0; i < found.n && rc == CH_OK; i++) {
        const ch_ckpt_file *x = &found.file[i];
        uint64_t            mark = ch__fail_mark();

        rc = ch__ckpt_join(directory, x->name, prefix, sizeof(prefix));
        if (rc == CH_OK)
            rc = visit(arg, &(ch_checkpoint_found){prefix, x->has_index, x->bytes});
        rc = ch__fail_since(mark, rc);
    }
    ch__ckpt_files_drop(&found);
    return rc;
}

ch_status ch_checkpoint_find_latest(const char *directory, char *path, size_t size)
{
    ch_status rc =
        ch__check_not_null("ch_checkpoint_find_latest", "directory", directory, "path", path);

    return rc == CH_OK ? ch__ckpt_find_latest(directory, path, size) : rc;
}

ch_status ch_checkpoint_wait_next(const char *directory, const char *after, double seconds,
                                  char *path, size_t size)
{
    static const char call[] = "ch_checkpoint_wait_next";
    ch_gate           never = 0;
    char              latest[PATH_MAX];
    int64_t           now = ch__now_ns(), end = INT64_MAX;
    ch_status         rc = ch__check_not_null(call, "directory", directory, "path", path);

    if (rc != CH_OK)
        return rc;
    if (!(seconds >= 0))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: seconds is %g (want 0 or more)", call,
                        seconds);
    if (seconds < (double)(INT64_MAX - now) / 2e9)
        end = now + (int64_t)(seconds * 1e9);
    for (;;) {
        rc = ch__ckpt_find_latest(directory, latest, sizeof(latest));
        if (rc != CH_OK && rc != CH_NOT_FOUND)
            return rc;
        if (rc == CH_OK && (after == NULL || strcmp(latest, after) != 0))
            break;
        now = ch__now_ns();
        if (now >= end)
            return ch__fail(CH_DEADLINE_EXCEEDED, "%s: %s: no checkpoint%s%s after %g seconds",
                            call, directory, after != NULL ? " newer than " : "",
                            after != NULL ? after : "", seconds);
        ch__gate_idle_until(&never, 0, ch__min(end, now + POLL_NS));
    }
    if (strlen(latest) >= size)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the path needs %zu bytes (got %zu)", call,
                        strlen(latest) + 1, size);
    memcpy(path, latest, strlen(latest) + 1);
    return CH_OK;
}
