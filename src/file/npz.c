/* file/npz.c -- loads and saves .npz files of numpy: zip archives of .npy files.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "file/npy.h"
#include "file/zip.h"
#include "file/zip_writer.h"

static const char suffix[] = ".npy";

/* ---- loading ---- */

/* The leaves of a tuple under construction. */
typedef struct leaves {
    int          n;
    ch_value   **value;
    const char **name;
    ch_arena     names;
} leaves;

static ch_status load_member(const ch_zip *z, int i, const ch_load_options *opt,
                             ch_block_pool *pool, ch_value **out)
{
    ch_reader *r = NULL;
    ch_tensor *t = NULL;
    ch_array   a;
    ch_status  rc = ch__zip_reader(z, i, opt, pool, &r);

    if (rc != CH_OK)
        return rc;
    rc = ch__npy_head(r, &a);
    if (rc == CH_OK)
        rc = ch__array_load(r, &a, &t);
    ch__reader_close(r);
    if (rc == CH_OK)
        rc = ch_value_new(CH_PLAIN, 1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

/* Loads all members with the suffix .npy and skips the others, because they are not arrays. */
static ch_status load_members(const ch_zip *z, const ch_load_options *opt, ch_block_pool *pool,
                              leaves *l)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < z->n && rc == CH_OK; i++) {
        const char *name = z->member[i].name;
        size_t      n = strlen(name), m = strlen(suffix);

        if (n < m || strcmp(name + n - m, suffix) != 0)
            continue;
        char *bare = ch__arena_copy(&l->names, name, n - m + 1);
        if (bare == NULL)
            return ch__fail_memory(z->path);
        bare[n - m] = '\0';
        l->name[l->n] = bare;
        rc = load_member(z, i, opt, pool, &l->value[l->n]);
        l->n += rc == CH_OK;
    }
    return rc;
}

static ch_status load_all(const ch_zip *z, const ch_load_options *opt, ch_tuple **out)
{
    leaves         l = {.value = ch__calloc((size_t)z->n + 1, sizeof(*l.value)),
                        .name = ch__calloc((size_t)z->n + 1, sizeof(*l.name))};
    ch_block_pool *pool = NULL;
    ch_status      rc = l.value == NULL || l.name == NULL ? ch__fail_memory(z->path)
                                                          : ch__block_pool_new(&pool);

    if (rc == CH_OK)
        rc = load_members(z, opt, pool, &l);
    if (rc == CH_OK)
        rc = ch_tuple_new(l.n, l.value, l.name, out);
    for (int i = 0; i < l.n; i++)
        ch_value_unref(l.value[i]);
    ch__block_pool_unref(pool);
    ch__arena_drop(&l.names);
    ch__free(l.value);
    ch__free(l.name);
    return rc;
}

ch_status ch_npz_load(const char *path, const ch_load_options *opt, ch_tuple **out)
{
    ch_zip   *z = NULL;
    ch_status rc;

    if (path != NULL && opt != NULL && opt->compression > CH_UNCOMPRESSED)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "%s: a .npz file declares its own compression; leave the option at CH_BY_NAME",
            path);
    rc = ch__zip_open(path, &z);
    if (rc != CH_OK)
        return rc;
    rc = load_all(z, opt, out);
    ch__zip_close(z);
    return rc;
}

/* ---- saving ---- */

static ch_status save_leaf(ch_zip_writer *z, const ch_tuple *t, int i)
{
    const char *given = ch_tuple_name(t, i);
    size_t      room = (given != NULL ? strlen(given) : 0) + 32;
    char       *name = ch__malloc(room);
    ch_writer  *w = NULL;
    ch_status   rc;

    if (name == NULL)
        return ch__fail_memory("names of a .npz file");
    if (given != NULL)
        snprintf(name, room, "%s%s", given, suffix);
    else
        snprintf(name, room, "arr_%d%s", i, suffix);
    rc = ch__zip_writer_begin(z, name, &w);
    if (rc == CH_OK)
        rc = ch__npy_put(w, ch_value_at(ch_tuple_at(t, i), 0));
    if (rc == CH_OK)
        rc = ch__zip_writer_end(z);
    ch__free(name);
    return rc;
}

ch_status ch_npz_save(const char *path, const ch_tuple *t, const ch_save_options *opt)
{
    ch_zip_writer *z = NULL;
    ch_status      rc;

    if (path == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "writing a file: no name given (path is NULL)");
    for (int i = 0; i < ch_tuple_count(t); i++)
        if (ch_value_kind_of(ch_tuple_at(t, i)) != CH_PLAIN)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: leaf %d has a tensor for each replica; a .npz file holds only "
                            "plain values",
                            path, i);
    rc = ch__zip_writer_open(path, opt, &z);
    for (int i = 0; i < ch_tuple_count(t) && rc == CH_OK; i++)
        rc = save_leaf(z, t, i);
    if (rc == CH_OK)
        return ch__zip_writer_commit(z);
    ch__zip_writer_drop(z);
    return rc;
}
