/* ckpt/write.c -- writes data files and the index of a checkpoint.
 *
 * ckpt_output is a file under its temporary name. Bytes are appended to it in order. Large
 * ranges at an address that is aligned like their offset are written with direct I/O from where
 * they are. All other bytes are collected in a buffer of BUFFER bytes, which begins at a
 * multiple of ALIGN in the file. The end of the file, which is no multiple of ALIGN, is written
 * through the page cache with a second descriptor. If the file system refuses direct I/O
 * (EINVAL), that descriptor writes everything.
 *
 *   1. All files are complete and synced under temporary names before the first gets its name.
 *   2. The index is renamed last, after the folder was synced: it is the commit.
 *   3. A checkpoint that is replaced is removed, durably, between 1 and 2. So an error before
 *      leaves it as it was, and a crash never leaves a mixture.
 *   4. After an error no temporary file is left.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "base/sys.h"
#include "ckpt/directory.h"
#include "ckpt/index.h"
#include "ckpt/sstable.h"
#include "file/crc32c.h"
#include "file/folder.h"
#include "file/temp.h"

enum {
    ALIGN = 4096,                          /* of offsets and addresses of direct I/O */
    SMALL_ALIGN = 64,                      /* of small items */
    LARGE_ITEM = 1 << 20,                  /* bytes of an item that is aligned to ALIGN */
    BUFFER = CH_CKPT_BUFFER_BYTES - ALIGN, /* a multiple of ALIGN */
    FETCH = 4 << 20,     /* bytes of an item that are checksummed and written at a time */
    MAX_SLICE = 64 << 20 /* bytes */
};

/* ---- layout ---- */

int64_t ch__ckpt_bytes(ch_dtype dtype, ch_shape shape)
{
    int64_t n = ch_shape_count(shape), bytes;

    return n >= 0 && ch__mul_size(n, (int64_t)ch_dtype_bytes(dtype), &bytes) ? bytes : -1;
}

int64_t ch__ckpt_slice_rows(ch_dtype dtype, ch_shape shape)
{
    int64_t bytes = ch__ckpt_bytes(dtype, shape), rows;

    if (shape.rank == 0)
        return 1;
    if (dtype == CH_F16 || dtype == CH_U16 || dtype == CH_U32 || dtype == CH_U64 ||
        dtype == CH_STR || bytes <= MAX_SLICE)
        return shape.dim[0];
    rows = MAX_SLICE / (bytes / shape.dim[0]);
    return rows > 0 ? rows : 1;
}

int64_t ch__ckpt_layout(int n, ch_ckpt_item *item)
{
    return ch__ckpt_layout_after(0, n, item);
}

int64_t ch__ckpt_layout_after(int64_t end, int n, ch_ckpt_item *item)
{
    for (int i = 0; i < n; i++) {
        item[i].offset = ch__round_up(end, item[i].bytes >= LARGE_ITEM ? ALIGN : SMALL_ALIGN);
        end = item[i].offset + item[i].bytes;
    }
    return end;
}

/* ---- a file under its temporary name ---- */

typedef struct ckpt_output {
    char   *path; /* destination; owned; NULL: the file was not opened */
    ch_temp temp;
    int     direct;   /* descriptor for direct I/O; -1: none */
    int64_t written;  /* bytes of the file that are on disk or in the page cache */
    char   *buffer;   /* BUFFER bytes, aligned to ALIGN; they follow `written` */
    char   *memory;   /* memory of the buffer; NULL: it is the caller's */
    int64_t n_buffer; /* bytes in the buffer */
} ckpt_output;

static ch_status fail_output(const ckpt_output *o, const char *action)
{
    return ch__fail_errno(errno, "%s: %s failed at byte %lld", o->path, action,
                          (long long)o->written);
}

/* An output that is not open. */
static const ckpt_output no_output = {.direct = -1, .temp = {.fd = -1, .lock = -1}};

/* Checks the object at the destination: anything but a regular file or a link is kept. */
static ch_status check_destination(const char *path)
{
    struct stat about;

    if (ch__sys_lstat(path, &about) != 0)
        return errno == ENOENT
                   ? CH_OK
                   : ch__fail_errno(errno, "%s: its attributes cannot be read", path);
    return S_ISREG(about.st_mode) || S_ISLNK(about.st_mode)
               ? CH_OK
               : ch__fail(CH_INVALID_ARGUMENT,
                          "%s: is no regular file and cannot be replaced; choose another name",
                          path);
}

/* Opens the file of a path, which is freed by output_drop; NULL: out of memory. `buffer` is
 * that of ch_ckpt_write_options. The caller must call output_drop, also after an error. */
static ch_status output_open(ckpt_output *o, char *path, bool is_direct, char *buffer)
{
    ch_status rc;

    *o = no_output;
    o->path = path;
    if (path == NULL)
        return ch__fail_memory("a checkpoint");
    rc = check_destination(path);
    if (rc != CH_OK)
        return rc;
    o->buffer = buffer;
    if (o->buffer == NULL)
        o->buffer = o->memory = ch__malloc(CH_CKPT_BUFFER_BYTES);
    if (o->buffer == NULL)
        return ch__fail_memory(path);
    o->buffer += ALIGN - (uintptr_t)o->buffer % ALIGN;
    rc = ch__temp_open(&o->temp, path);
    if (rc != CH_OK || !is_direct)
        return rc;
    /* A second descriptor, because a file system without direct I/O may create the file and
     * then fail. */
    o->direct = ch__sys_open(o->temp.name, O_WRONLY | O_DIRECT | O_NOFOLLOW, 0);
    return o->direct >= 0 || errno == EINVAL
               ? CH_OK
               : ch__fail_errno(errno, "%s: temporary file %s cannot be opened", path,
                                o->temp.name);
}

/* Closes the file and frees the buffer. The file stays, with its lock. */
static void output_close(ckpt_output *o)
{
    if (o->direct >= 0)
        ch__sys_close(o->direct);
    if (o->temp.fd >= 0)
        ch__sys_close(o->temp.fd);
    o->direct = o->temp.fd = -1;
    ch__free(o->memory);
    o->memory = o->buffer = NULL;
}

/* Removes the file, unless it has its name. */
static void output_drop(ckpt_output *o)
{
    output_close(o);
    ch__temp_drop(&o->temp);
    ch__free(o->path);
    *o = no_output;
}

/* Writes n bytes at the end of the file, past the buffer, which must be empty. */
static ch_status write_through(ckpt_output *o, const char *data, int64_t n)
{
    while (n > 0) {
        bool is_aligned =
            (((uintptr_t)data | (uintptr_t)o->written | (uintptr_t)n) & (ALIGN - 1)) == 0;
        bool    is_direct = o->direct >= 0 && is_aligned;
        ssize_t put =
            ch__sys_pwrite(is_direct ? o->direct : o->temp.fd, data, (size_t)n, o->written);

        if (put < 0 && is_direct && errno == EINVAL) {
            ch__sys_close(o->direct);
            o->direct = -1;
            continue;
        }
        if (put <= 0) {
            errno = put < 0 ? errno : ENOSPC;
            return fail_output(o, "writing");
        }
        data += put;
        n -= put;
        o->written += put;
    }
    return CH_OK;
}

static ch_status flush_output(ckpt_output *o)
{
    int64_t n = o->n_buffer;

    o->n_buffer = 0;
    return write_through(o, o->buffer, n);
}

/* Appends n bytes; data NULL: zeros. */
static ch_status put_output(ckpt_output *o, const char *data, int64_t n)
{
    ch_status rc = CH_OK;

    while (n > 0 && rc == CH_OK) {
        int64_t now, position = o->written + o->n_buffer;

        if (data != NULL && n >= LARGE_ITEM / 2 && position % ALIGN == 0 &&
            (uintptr_t)data % ALIGN == 0) {
            now = n - n % ALIGN;
            rc = flush_output(o);
            if (rc == CH_OK)
                rc = write_through(o, data, now);
        } else {
            now = ch__min(n, BUFFER - o->n_buffer);
            if (data != NULL)
                memcpy(o->buffer + o->n_buffer, data, (size_t)now);
            else
                memset(o->buffer + o->n_buffer, 0, (size_t)now);
            o->n_buffer += now;
            if (o->n_buffer == BUFFER)
                rc = flush_output(o);
        }
        data = data != NULL ? data + now : NULL;
        n -= now;
    }
    return rc;
}

/* Writes the rest of the buffer: full blocks directly, the end through the page cache. Syncs,
 * if `syncs`, and closes the file, which is complete now. */
static ch_status output_complete(ckpt_output *o, bool syncs)
{
    int64_t   n = o->n_buffer, aligned = n - n % ALIGN;
    ch_status rc;

    o->n_buffer = 0;
    rc = write_through(o, o->buffer, aligned);
    if (rc == CH_OK)
        rc = write_through(o, o->buffer + aligned, n - aligned);
    if (rc == CH_OK)
        rc = ch__temp_set_mode(&o->temp, -1);
    /* After a failed fsync the contents on disk are unknown, so there is no retry. */
    if (rc == CH_OK && syncs && ch__sys_sync(o->temp.fd) != 0)
        rc = fail_output(o, "syncing");
    output_close(o);
    return rc;
}

/* ---- data files ---- */

static ch_shape item_shape(const ch_ckpt_item *x)
{
    ch_shape shape = x->whole;

    for (int k = 0; k < shape.rank && x->is_slice; k++)
        shape.dim[k] = x->region.size[k];
    return shape;
}

/* Checks an item; `end` is the end of the item before it in its file. */
static ch_status check_item(const ch_ckpt_item *x, int64_t end)
{
    const char *problem = NULL;
    bool        is_valid =
        x->whole.rank >= 0 && x->whole.rank <= CH_MAX_RANK && ch_shape_count(x->whole) >= 0;

    if (x->name == NULL || x->name[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "writing a checkpoint: a tensor has no name");
    if (strlen(x->name) > CH_CKPT_MAX_NAME)
        problem = "the name is longer than 4096 bytes";
    else if ((unsigned)x->dtype >= CH_DTYPE_COUNT || !is_valid)
        problem = "invalid dtype or shape";
    else if (x->is_slice && !ch__region_fits(&x->region, x->whole))
        problem = "the slice does not fit into the tensor";
    else if (x->bytes < 0 ||
             (x->dtype != CH_STR && x->bytes != ch__ckpt_bytes(x->dtype, item_shape(x))))
        problem = "the size does not match shape and dtype";
    else if (x->offset < end || x->bytes > INT64_MAX - x->offset)
        problem = "the offsets do not ascend";
    return problem == NULL ? CH_OK
                           : ch__fail(CH_INVALID_ARGUMENT,
                                      "writing a checkpoint: \"%.80s\": %s", x->name, problem);
}

/* Writes the bytes of item i. */
static ch_status write_item(ckpt_output *o, ch_ckpt_item *x, int i, ch_ckpt_fetch fetch,
                            void *arg)
{
    uint32_t  crc = 0;
    ch_status rc = put_output(o, NULL, x->offset - (o->written + o->n_buffer));

    for (int64_t at = 0, n; at < x->bytes && rc == CH_OK; at += n) {
        const void *bytes = NULL;

        /* Chunks end at multiples of ALIGN in the file, so that the next chunk is aligned. */
        n = ch__min(x->bytes - at, FETCH - (x->offset + at) % ALIGN);
        rc = fetch(arg, i, at, n, &bytes);
        if (rc == CH_OK && x->dtype != CH_STR)
            crc = ch__crc32c(crc, bytes, (size_t)n);
        if (rc == CH_OK)
            rc = put_output(o, bytes, n);
    }
    if (rc == CH_OK && x->dtype != CH_STR)
        x->crc = ch__crc32c_mask(crc);
    return rc;
}

/* Checks and writes n items. *end is the end of the item before them, and becomes that of the
 * last. */
static ch_status write_items(ckpt_output *o, int64_t *end, int n, ch_ckpt_item *item,
                             ch_ckpt_fetch fetch, void *arg)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < n && rc == CH_OK; *end = item[i].offset + item[i].bytes, i++)
        rc = check_item(&item[i], *end);
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = write_item(o, &item[i], i, fetch, arg);
    return rc;
}

/* ---- the index ---- */

/* A key of the index, and the items that its entry describes. */
typedef struct ckpt_key {
    size_t offset, bytes; /* in the memory of keys */
    int    item;          /* the item; of a tensor in slices: the first */
    int    n_items;       /* items of a tensor in slices; 0: the entry is of the item itself */
} ckpt_key;

/* An index under construction. */
typedef struct ckpt_keys {
    ch_bytes_builder    memory;
    ckpt_key           *key;
    int                 n, capacity;
    const ch_ckpt_item *item;
    int                *order; /* items, sorted by name */
} ckpt_keys;

static bool add_key(ckpt_keys *k, size_t from, int item, int n_items)
{
    if (k->memory.has_failed ||
        !ch__grow((void **)&k->key, &k->capacity, k->n + 1, sizeof(*k->key)))
        return false;
    k->key[k->n++] = (ckpt_key){from, k->memory.n - from, item, n_items};
    return true;
}

/* Whether an item is stored as a slice. A slice of everything is stored whole (TBF-20). */
static bool is_slice(const ch_ckpt_item *x)
{
    return x->is_slice && !ch_shape_equal(item_shape(x), x->whole);
}

/* The arrays that qsort compares; set around each qsort. */
static _Thread_local const ckpt_keys *sort_keys;

static int compare_names(const void *a, const void *b)
{
    const int *x = a, *y = b;
    int        order = strcmp(sort_keys->item[*x].name, sort_keys->item[*y].name);

    return order != 0 ? order : *x - *y;
}

static int compare_keys(const void *a, const void *b)
{
    const ckpt_key *x = a, *y = b;
    const char     *memory = sort_keys->memory.at;
    size_t          n = x->bytes < y->bytes ? x->bytes : y->bytes;
    int             order = memcmp(memory + x->offset, memory + y->offset, n);

    return order != 0 ? order : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Adds the keys of the items order[from, to), which have the same name. */
static ch_status add_keys(ckpt_keys *k, int from, int to)
{
    const ch_ckpt_item *first = &k->item[k->order[from]];
    size_t              begin = k->memory.n;
    bool                fits = true;

    if (!is_slice(first)) {
        if (to > from + 1)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "writing a checkpoint: two tensors have the name \"%.80s\"",
                            first->name);
        ch__bytes_builder_text(&k->memory, first->name);
        return add_key(k, begin, k->order[from], 0) ? CH_OK : ch__fail_memory("index");
    }
    for (int i = from; i < to && fits; i++) {
        const ch_ckpt_item *x = &k->item[k->order[i]];

        if (!is_slice(x) || x->dtype != first->dtype || !ch_shape_equal(x->whole, first->whole))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "writing a checkpoint: the slices of \"%.80s\" have different "
                            "dtypes or shapes",
                            first->name);
        begin = k->memory.n;
        ch__ckpt_emit_slice_key(&k->memory, x->name, x->whole.rank, &x->region);
        fits = add_key(k, begin, k->order[i], 0);
    }
    begin = k->memory.n;
    ch__bytes_builder_text(&k->memory, first->name);
    return fits && add_key(k, begin, from, to - from) ? CH_OK : ch__fail_memory("index");
}

static ch_status sort_all(ckpt_keys *k, int n)
{
    ch_status rc = CH_OK;

    k->order = ch__malloc(((size_t)n + 1) * sizeof(*k->order));
    if (k->order == NULL)
        return ch__fail_memory("index");
    for (int i = 0; i < n; i++)
        k->order[i] = i;
    sort_keys = k;
    qsort(k->order, (size_t)n, sizeof(*k->order), compare_names);
    for (int i = 0, end; i < n && rc == CH_OK; i = end) {
        for (end = i + 1;
             end < n && strcmp(k->item[k->order[i]].name, k->item[k->order[end]].name) == 0;)
            end++;
        rc = add_keys(k, i, end);
    }
    if (rc != CH_OK || n <= 0)
        return rc;
    qsort(k->key, (size_t)k->n, sizeof(*k->key), compare_keys);
    for (int i = 1; i < k->n; i++)
        if (compare_keys(&k->key[i - 1], &k->key[i]) == 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "writing a checkpoint: two slices of \"%.80s\" are the same",
                            k->item[k->key[i].item].name);
    return CH_OK;
}

static void emit_entry(const ckpt_keys *k, const ckpt_key *key, ch_bytes_builder *value)
{
    if (key->n_items == 0) {
        const ch_ckpt_item *x = &k->item[key->item];

        ch__ckpt_emit_entry(value, x, item_shape(x));
        return;
    }
    ch__ckpt_emit_tensor(value, &k->item[k->order[key->item]]);
    for (int i = 0; i < key->n_items; i++) {
        const ch_ckpt_item *x = &k->item[k->order[key->item + i]];

        ch__ckpt_emit_slice(value, x->whole.rank, &x->region);
    }
}

/* Moves the bytes of the table to the file. */
static ch_status put_table(ch_sst_writer *w, ckpt_output *o)
{
    ch_status rc = w->out.has_failed ? ch__fail_memory("index")
                                     : put_output(o, w->out.at, (int64_t)w->out.n);

    w->n_taken += w->out.n;
    w->out.n = 0;
    return rc;
}

static ch_status put_header(ch_sst_writer *w, int n_files)
{
    ch_bytes_builder value = {0};
    ch_status        rc = CH_OK;

    ch__ckpt_emit_header(&value, n_files);
    if (value.has_failed)
        rc = ch__fail_memory("index");
    else
        ch__sst_add(w, (ch_str){"", 0}, value.at, value.n);
    ch__bytes_builder_drop(&value);
    return rc;
}

/* Appends the keys of the items to the index: those of slices, of tensors, or both. */
static ch_status put_keys(ch_sst_writer *w, ckpt_output *o, int n, const ch_ckpt_item *item,
                          unsigned which)
{
    ckpt_keys        k = {.item = item};
    ch_bytes_builder value = {0};
    ch_status        rc = sort_all(&k, n);

    for (int i = 0; i < k.n && rc == CH_OK; i++) {
        const char *key = k.memory.at + k.key[i].offset;

        if ((which & (*key == '\0' ? CH_CKPT_SLICES : CH_CKPT_TENSORS)) == 0)
            continue;
        value.n = 0;
        emit_entry(&k, &k.key[i], &value);
        if (value.has_failed)
            rc = ch__fail_memory("index");
        else
            ch__sst_add(w, (ch_str){key, k.key[i].bytes}, value.at, value.n);
        if (rc == CH_OK && (w->out.n >= FETCH || w->out.has_failed))
            rc = put_table(w, o);
    }
    ch__bytes_builder_drop(&value);
    ch__bytes_builder_drop(&k.memory);
    ch__free(k.key);
    ch__free(k.order);
    return rc;
}

static ch_status sync_folder_of(const char *path)
{
    int error = ch__folder_sync(path);

    return error == 0 ? CH_OK : ch__fail_errno(error, "%s: its folder cannot be synced", path);
}

static ch_status check_index_items(int n_files, int n, const ch_ckpt_item *item)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = check_item(&item[i], 0);
        if (rc == CH_OK && (item[i].file < 0 || item[i].file >= n_files))
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "writing a checkpoint: \"%.80s\": data file %d of %d", item[i].name,
                          item[i].file, n_files);
    }
    return rc;
}

/* ---- the writer ---- */

struct ch_ckpt_writer {
    char                 *prefix;
    ch_ckpt_write_options opt;
    int                   n_files;
    ckpt_output          *data;  /* of each file */
    int64_t               end;   /* of the last item in file 0, which is written in portions */
    ckpt_output           index; /* written through the page cache */
    ch_sst_writer         table; /* of the index */
};

ch_status ch__ckpt_writer_open(const char *prefix, int n_files,
                               const ch_ckpt_write_options *opt, ch_ckpt_writer **out)
{
    ch_ckpt_writer *w = ch__calloc(1, sizeof(*w));

    if (w == NULL)
        return ch__fail_memory(prefix);
    w->opt = opt != NULL ? *opt : (ch_ckpt_write_options){.no_sync = false};
    w->index = no_output;
    w->prefix = ch__strdup(prefix);
    w->data = ch__malloc((size_t)n_files * sizeof(*w->data));
    if (w->prefix == NULL || w->data == NULL) {
        ch__ckpt_writer_close(w);
        return ch__fail_memory(prefix);
    }
    w->n_files = n_files;
    for (int i = 0; i < n_files; i++)
        w->data[i] = no_output;
    *out = w;
    return CH_OK;
}

/* Opens a data file. */
static ch_status open_data(ch_ckpt_writer *w, int file, void *buffer)
{
    size_t room = ch__ckpt_path_room(w->prefix);
    char  *path = ch__malloc(room);

    if (path != NULL)
        ch__ckpt_data_path(w->prefix, file, w->n_files, path, room);
    return output_open(&w->data[file], path, !w->opt.no_direct, buffer);
}

static ch_status complete_data(ch_ckpt_writer *w, int file)
{
    return output_complete(&w->data[file], !w->opt.no_sync && CH_KEEPS(DATASYNC));
}

ch_status ch__ckpt_writer_add_file(ch_ckpt_writer *w, int file, int n, ch_ckpt_item *item,
                                   ch_ckpt_fetch fetch, void *arg, void *buffer)
{
    int64_t   end = 0;
    ch_status rc = open_data(w, file, buffer);

    if (rc == CH_OK)
        rc = write_items(&w->data[file], &end, n, item, fetch, arg);
    return rc == CH_OK ? complete_data(w, file) : rc;
}

ch_status ch__ckpt_writer_add_data(ch_ckpt_writer *w, int n, ch_ckpt_item *item,
                                   ch_ckpt_fetch fetch, void *arg)
{
    ch_status rc = w->data[0].path == NULL ? open_data(w, 0, w->opt.buffer) : CH_OK;

    return rc == CH_OK ? write_items(&w->data[0], &w->end, n, item, fetch, arg) : rc;
}

ch_status ch__ckpt_writer_begin_index(ch_ckpt_writer *w)
{
    size_t    room = ch__ckpt_path_room(w->prefix);
    char     *path;
    ch_status rc = w->data[0].temp.fd >= 0 ? complete_data(w, 0) : CH_OK;

    if (rc != CH_OK)
        return rc;
    path = ch__malloc(room);
    if (path != NULL)
        snprintf(path, room, "%s.index", w->prefix);
    rc = output_open(&w->index, path, false, w->opt.buffer);
    return rc == CH_OK ? put_header(&w->table, w->n_files) : rc;
}

ch_status ch__ckpt_writer_add_keys(ch_ckpt_writer *w, int n, const ch_ckpt_item *item,
                                   unsigned which)
{
    ch_status rc = check_index_items(w->n_files, n, item);

    return rc == CH_OK ? put_keys(&w->table, &w->index, n, item, which) : rc;
}

/* Gives all files their names, that of the index last. */
static ch_status rename_files(ch_ckpt_writer *w)
{
    bool      syncs = !w->opt.no_sync;
    ch_status rc = CH_OK;

    for (int i = 0; i < w->n_files && rc == CH_OK; i++)
        rc = ch__temp_rename(&w->data[i].temp);
    if (rc == CH_OK && syncs && CH_KEEPS(DATANAMES))
        rc = sync_folder_of(w->prefix);
    if (rc == CH_OK)
        rc = ch__temp_rename(&w->index.temp);
    return rc == CH_OK && syncs && CH_KEEPS(INDEXNAME) ? sync_folder_of(w->prefix) : rc;
}

/* Removes the files that have their names after an error, and returns the error. Not synced:
 * what comes back after a crash has no index, and managers remove it. */
static ch_status remove_files(const ch_ckpt_writer *w, ch_status rc)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_record(&why, rc, -1, NULL);
    if (ch__ckpt_remove(w->prefix, true) != CH_OK)
        ch__log(CH_LOG_WARNING, "checkpoint", "%s: files that were not committed remain: %s",
                w->prefix, ch_error_message());
    return ch__fault_raise(&why);
}

ch_status ch__ckpt_writer_commit(ch_ckpt_writer *w)
{
    bool      no_sync = w->opt.no_sync;
    ch_status rc;

    ch__sst_end(&w->table);
    rc = put_table(&w->table, &w->index);
    if (rc == CH_OK)
        rc = output_complete(&w->index, !no_sync && CH_KEEPS(INDEXSYNC));
    if (rc == CH_OK && w->opt.replace)
        rc = ch__ckpt_remove(w->prefix, no_sync || !CH_KEEPS(REPLACESYNC));
    if (rc != CH_OK)
        return rc;
    rc = rename_files(w);
    return rc == CH_OK ? CH_OK : remove_files(w, rc);
}

int64_t ch__ckpt_writer_bytes(const ch_ckpt_writer *w)
{
    int64_t sum = w->index.written;

    for (int i = 0; i < w->n_files; i++)
        sum += w->data[i].written;
    return sum;
}

void ch__ckpt_writer_close(ch_ckpt_writer *w)
{
    if (w == NULL)
        return;
    for (int i = 0; i < w->n_files; i++)
        output_drop(&w->data[i]);
    output_drop(&w->index);
    ch__sst_drop(&w->table);
    ch__free(w->data);
    ch__free(w->prefix);
    ch__free(w);
}
