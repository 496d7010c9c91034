/* file/zip.c -- reads zip archives.
 *
 *     local header, bytes     for each member
 *     directory               an entry for each member
 *     end of directory        offset and size of the directory; in large archives, the zip64
 *                             end of directory (64-bit numbers) and its locator precede it
 *
 * A field of which all bits are 1 refers to a 64-bit number elsewhere. In the end of directory,
 * the number is in the zip64 end. In headers and entries, the number is in an extra field. That
 * field has only the numbers that are needed, in this order: bytes, packed bytes, offset.
 *
 * `opening` is the state while an archive is opened; `zip` is the result. file/npz.c and
 * data/arrays.c are the callers. Archives are untrusted:
 *
 *   1. Every offset and size is checked against the file size before it is used.
 *   2. The members together, with their headers, must not be larger than the file, so that
 *      overlapping members cannot cost more time and memory than the file has bytes.
 *   3. No two members have the same name.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/zip.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "file/codec.h"

enum {
    LOCAL_SIGNATURE = 0x04034b50,
    ENTRY_SIGNATURE = 0x02014b50,
    END_SIGNATURE = 0x06054b50,
    LOCATOR_SIGNATURE = 0x07064b50,
    END64_SIGNATURE = 0x06064b50,
    LOCAL_BYTES = 30,
    ENTRY_BYTES = 46,
    END_BYTES = 22,
    LOCATOR_BYTES = 20,
    END64_BYTES = 56,
    MAX_COMMENT_BYTES = 65535,
    FLAG_ENCRYPTED = 1,
    /* the sizes and the checksum follow the member's bytes; the local header lacks them */
    FLAG_DATA_DESCRIPTOR = 8,
    EXTRA_ZIP64 = 1,
    STORED = 0,
    DEFLATED = 8,
};

/* Limits of an archive. Archives are untrusted, so the memory for them must be bounded. */
static const int64_t max_directory_bytes = 16 << 20;
static const size_t  max_name_bytes = 4096;
static const int     max_members = 1000000;

/* An archive that is being opened. */
typedef struct opening {
    const char *path;
    int         fd;
    int64_t     file_bytes;
    /* offset and size of the directory, and number of members */
    int64_t directory, directory_bytes, n;
    /* size of all members so far, with their local headers */
    int64_t used_bytes;
    char   *entries; /* the directory, as in the file */
    /* Buffer for the file's tail, later for a local header with name and extra field. Must be
     * the last field: ch__zip_open does not clear it, because usually only a small part is
     * used. */
    char local[LOCAL_BYTES + 65535 + 65535];
} opening;

struct zip {
    ch_zip         base; /* must be the first field */
    char          *path;
    ch_zip_member *member;
    ch_arena       names;
};
typedef struct zip zip;

static ch_status fail_zip(const opening *o, int64_t at, const char *problem)
{
    return ch__fail(CH_DATA_LOSS, "%s: damaged, or not a zip archive: %s at byte %lld", o->path,
                    problem, (long long)at);
}

/* Reads exactly n bytes at `offset`. DATA_LOSS: the file has fewer bytes. */
static ch_status read_at(const opening *o, int64_t offset, void *to, size_t n)
{
    char *at = to;

    if (offset < 0 || (int64_t)n > o->file_bytes || offset > o->file_bytes - (int64_t)n)
        return fail_zip(o, offset, "its headers declare more bytes than the file has");
    while (n > 0) {
        ssize_t got = ch__sys_pread(o->fd, at, n, offset);

        if (got < 0)
            return ch__fail_errno(errno, "%s: reading failed at byte %lld", o->path,
                                  (long long)offset);
        if (got == 0)
            return fail_zip(o, offset, "unexpected end of the file");
        at += got;
        offset += got;
        n -= (size_t)got;
    }
    return CH_OK;
}

/* ---- the end of the directory ---- */

/* Returns the position of the end of directory in `tail`, the last n bytes of the file, or -1
 * if there is none. The record's comment must reach exactly to the end of the file. */
static int64_t find_end(const char *tail, int64_t n)
{
    for (int64_t i = n - END_BYTES; i >= 0; i--)
        if (ch__le32(tail + i) == END_SIGNATURE && i + END_BYTES + ch__le16(tail + i + 20) == n)
            return i;
    return -1;
}

/* Reads the zip64 end of directory. `end` is the offset of the end of directory, which its
 * locator precedes. */
static ch_status read_end64(opening *o, int64_t end)
{
    char      locator[LOCATOR_BYTES], end64[END64_BYTES];
    ch_status rc = read_at(o, end - LOCATOR_BYTES, locator, sizeof(locator));

    if (rc != CH_OK)
        return rc;
    if (ch__le32(locator) != LOCATOR_SIGNATURE || ch__le64(locator + 8) > INT64_MAX)
        return fail_zip(o, end - LOCATOR_BYTES,
                        "the locator of its 64-bit directory is missing");
    int64_t at = (int64_t)ch__le64(locator + 8);
    rc = read_at(o, at, end64, sizeof(end64));
    if (rc != CH_OK)
        return rc;
    if (ch__le32(end64) != END64_SIGNATURE || ch__le64(end64 + 24) != ch__le64(end64 + 32) ||
        ch__le64(end64 + 32) > INT64_MAX || ch__le64(end64 + 40) > INT64_MAX ||
        ch__le64(end64 + 48) > INT64_MAX)
        return fail_zip(o, at, "the end of its 64-bit directory is damaged");
    o->n = (int64_t)ch__le64(end64 + 32);
    o->directory_bytes = (int64_t)ch__le64(end64 + 40);
    o->directory = (int64_t)ch__le64(end64 + 48);
    return CH_OK;
}

/* Finds the end of directory and reads the location of the directory into `o`. */
static ch_status read_end(opening *o)
{
    int64_t   n = o->file_bytes < END_BYTES + MAX_COMMENT_BYTES ? o->file_bytes
                                                                : END_BYTES + MAX_COMMENT_BYTES;
    char     *tail = o->local; /* the buffer is not in use yet */
    ch_status rc = read_at(o, o->file_bytes - n, tail, (size_t)n);

    if (rc != CH_OK)
        return rc;
    int64_t position = find_end(tail, n), end = o->file_bytes - n + position;
    if (position < 0)
        return fail_zip(o, o->file_bytes, "no end of a directory");
    const char *e = tail + position;
    if (ch__le32(e + 4) != 0 || ch__le16(e + 8) != ch__le16(e + 10))
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: the zip archive is split into several files; join them first",
                        o->path);
    o->n = ch__le16(e + 10);
    o->directory_bytes = ch__le32(e + 12);
    o->directory = ch__le32(e + 16);
    if (o->n == UINT16_MAX || o->directory_bytes == UINT32_MAX || o->directory == UINT32_MAX)
        rc = read_end64(o, end);
    if (rc != CH_OK)
        return rc;
    if (o->directory > end || o->directory_bytes > end - o->directory)
        return fail_zip(o, end, "its directory is outside the file");
    if (o->directory_bytes > max_directory_bytes || o->n > max_members)
        return ch__fail_limit(
            "%s: the directory has %lld members and %lld bytes (limits: %d and %lld)", o->path,
            (long long)o->n, (long long)o->directory_bytes, max_members,
            (long long)max_directory_bytes);
    if (o->n > o->directory_bytes / ENTRY_BYTES)
        return fail_zip(o, o->directory, "more members than its directory has room for");
    return CH_OK;
}

/* ---- members ---- */

/* Sizes and offset of a member, from 32-bit or 64-bit fields. */
typedef struct numbers {
    int64_t bytes, packed_bytes, offset;
} numbers;

/* Replaces each number that is UINT32_MAX by the number in the extra field. Returns false if
 * the field is damaged or a number is missing. */
static bool read_extra(const char *extra, size_t n, numbers *x)
{
    int64_t *const field[] = {&x->bytes, &x->packed_bytes, &x->offset};

    while (n >= 4) {
        size_t      size = ch__le16(extra + 2);
        const char *at = extra + 4, *end;

        if (size > n - 4)
            return false;
        end = at + size;
        for (int i = 0; i < 3 && ch__le16(extra) == EXTRA_ZIP64; i++)
            if (*field[i] == UINT32_MAX && end - at >= 8) {
                uint64_t number = ch__le64(at);

                if (number > INT64_MAX)
                    return false;
                *field[i] = (int64_t)number;
                at += 8;
            }
        extra = end;
        n -= 4 + size;
    }
    return n == 0 && x->bytes != UINT32_MAX && x->packed_bytes != UINT32_MAX &&
           x->offset != UINT32_MAX;
}

/* Reads the local header of a member into o->local. Sets *n to the size of name and extra field
 * together. Adds the member to o->used_bytes and fails if the sum exceeds the file
 * size, which happens only if members overlap. */
static ch_status read_local(opening *o, const numbers *x, size_t *n)
{
    ch_status rc = read_at(o, x->offset, o->local, LOCAL_BYTES);

    if (rc != CH_OK)
        return rc;
    if (ch__le32(o->local) != LOCAL_SIGNATURE)
        return fail_zip(o, x->offset, "the header of a member is missing");
    *n = (size_t)ch__le16(o->local + 26) + ch__le16(o->local + 28);
    o->used_bytes += LOCAL_BYTES + (int64_t)*n;
    if (x->packed_bytes > o->file_bytes || o->used_bytes > o->file_bytes - x->packed_bytes)
        return fail_zip(o, x->offset, "members overlap");
    o->used_bytes += x->packed_bytes;
    return read_at(o, x->offset + LOCAL_BYTES, o->local + LOCAL_BYTES, *n);
}

/* Returns whether the local header agrees with the directory entry. `n` is the size of the
 * header's name and extra field. */
static bool header_matches_entry(const char *header, size_t n, const char *entry,
                                 const numbers *x)
{
    numbers y = {ch__le32(header + 22), ch__le32(header + 18), 0};
    size_t  n_name = ch__le16(entry + 28);

    if (ch__le16(header + 26) != n_name ||
        memcmp(header + LOCAL_BYTES, entry + ENTRY_BYTES, n_name) != 0 ||
        ch__le16(header + 6) != ch__le16(entry + 8) || /* flags and method */
        ch__le16(header + 8) != ch__le16(entry + 10))
        return false;
    if ((ch__le16(header + 6) & FLAG_DATA_DESCRIPTOR) != 0)
        return true;
    return read_extra(header + LOCAL_BYTES + n_name, n - n_name, &y) && y.bytes == x->bytes &&
           y.packed_bytes == x->packed_bytes && ch__le32(header + 14) == ch__le32(entry + 16);
}

/* Checks the local header of a member and sets m->offset. */
static ch_status check_local(opening *o, const char *entry, const numbers *x, ch_zip_member *m)
{
    size_t    n = 0;
    ch_status rc = read_local(o, x, &n);

    if (rc != CH_OK)
        return rc;
    if (!header_matches_entry(o->local, n, entry, x))
        return fail_zip(o, x->offset, "a member's header and the directory differ");
    m->offset = x->offset + LOCAL_BYTES + (int64_t)n;
    if (m->offset > o->directory || x->packed_bytes > o->directory - m->offset)
        return fail_zip(o, m->offset, "a member overlaps the directory");
    return CH_OK;
}

static ch_status check_kind(const opening *o, const char *entry, const ch_zip_member *m)
{
    int method = ch__le16(entry + 10);

    if ((ch__le16(entry + 8) & FLAG_ENCRYPTED) != 0)
        return ch__fail(CH_UNIMPLEMENTED, "%s: member %s is encrypted, which is not supported",
                        o->path, m->name);
    if (method != STORED && method != DEFLATED)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: member %s is compressed by method %d; only 0 (stored) and 8 "
                        "(deflated) are supported",
                        o->path, m->name, method);
    if (method == STORED && m->bytes != m->packed_bytes)
        return fail_zip(o, m->offset, "a stored member declares two different sizes");
    return CH_OK;
}

/* Reads the directory entry at position `at` of the directory into *m and checks it. Sets
 * *bytes to the size of the entry. */
static ch_status read_member(opening *o, zip *z, size_t at, ch_zip_member *m, size_t *bytes)
{
    const char *e = o->entries + at;
    size_t      left = (size_t)o->directory_bytes - at;
    int64_t     position = o->directory + (int64_t)at;

    if (left < ENTRY_BYTES || ch__le32(e) != ENTRY_SIGNATURE)
        return fail_zip(o, position, "its directory is damaged");
    size_t n_name = ch__le16(e + 28), n_extra = ch__le16(e + 30);
    *bytes = ENTRY_BYTES + n_name + n_extra + ch__le16(e + 32);
    const char *name = e + ENTRY_BYTES;
    if (*bytes > left || n_name == 0 || n_name > max_name_bytes ||
        memchr(name, '\0', n_name) != NULL)
        return fail_zip(o, position, "its directory is damaged");
    numbers x = {ch__le32(e + 24), ch__le32(e + 20), ch__le32(e + 42)};
    if (!read_extra(name + n_name, n_extra, &x))
        return fail_zip(o, position, "a 64-bit size is missing in its directory");
    char *copy = ch__arena_alloc(&z->names, n_name + 1);
    if (copy == NULL)
        return ch__fail_memory(o->path);
    memcpy(copy, name, n_name);
    *m = (ch_zip_member){.name = copy,
                         .packed_bytes = x.packed_bytes,
                         .bytes = x.bytes,
                         .crc = ch__le32(e + 16),
                         .is_deflated = ch__le16(e + 10) == DEFLATED};
    ch_status rc = check_local(o, e, &x, m);
    return rc == CH_OK ? check_kind(o, e, m) : rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const ch_zip_member *const *)a)->name,
                  (*(const ch_zip_member *const *)b)->name);
}

/* Returns DATA_LOSS if two members have the same name. */
static ch_status check_names(const opening *o, const zip *z)
{
    ch_status             rc = CH_OK;
    const ch_zip_member **sorted = ch__calloc((size_t)o->n + 1, sizeof(*sorted));

    if (sorted == NULL)
        return ch__fail_memory(o->path);
    for (int64_t i = 0; i < o->n; i++)
        sorted[i] = &z->member[i];
    qsort(sorted, (size_t)o->n, sizeof(*sorted), compare_names);
    for (int64_t i = 1; i < o->n && rc == CH_OK; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            rc = ch__fail(CH_DATA_LOSS, "%s: two members have the name %s, at byte %lld",
                          o->path, sorted[i]->name, (long long)sorted[i]->offset);
    ch__free(sorted);
    return rc;
}

static ch_status read_directory(opening *o, zip *z)
{
    size_t    at = 0, bytes = 0;
    ch_status rc;

    o->entries = ch__malloc((size_t)o->directory_bytes);
    z->member = ch__calloc((size_t)o->n + 1, sizeof(*z->member));
    if (o->entries == NULL || z->member == NULL)
        return ch__fail_memory(o->path);
    rc = read_at(o, o->directory, o->entries, (size_t)o->directory_bytes);
    for (int64_t i = 0; i < o->n && rc == CH_OK; i++, at += bytes)
        rc = read_member(o, z, at, &z->member[i], &bytes);
    if (rc == CH_OK && at != (size_t)o->directory_bytes)
        rc = fail_zip(o, o->directory + (int64_t)at,
                      "bytes after the last entry of the directory");
    return rc == CH_OK ? check_names(o, z) : rc;
}

/* ---- opening ---- */

static ch_status open_file(opening *o)
{
    struct stat about;

    /* O_NONBLOCK: opening a FIFO must not block. */
    o->fd = ch__sys_open(o->path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (o->fd < 0)
        return ch__fail_errno(errno, "%s: cannot be opened", o->path);
    if (ch__sys_stat(o->fd, &about) != 0)
        return ch__fail_errno(errno, "%s: its attributes cannot be read", o->path);
    if (!S_ISREG(about.st_mode))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: not a regular file, which a zip archive must be", o->path);
    o->file_bytes = about.st_size;
    return CH_OK;
}

static ch_status open_zip(opening *o, zip *z)
{
    ch_status rc = open_file(o);

    if (rc == CH_OK)
        rc = read_end(o);
    if (rc == CH_OK)
        rc = read_directory(o, z);
    if (rc != CH_OK)
        return rc;
    z->path = ch__strdup(o->path);
    if (z->path == NULL)
        return ch__fail_memory(o->path);
    z->base = (ch_zip){z->path, (int)o->n, z->member};
    return CH_OK;
}

ch_status ch__zip_check_build(const char *path)
{
    if (CH_HAVE_ZLIB)
        return CH_OK;
    return ch__fail(CH_UNIMPLEMENTED,
                    "%s: this build of Cohort has no zlib, which zip archives need; configure "
                    "it with -Dzlib=enabled",
                    path);
}

ch_status ch__zip_open(const char *path, ch_zip **out)
{
    opening  *o;
    zip      *z;
    ch_status rc;

    if (path == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "reading a file: no name given (path is NULL)");
    if ((rc = ch__zip_check_build(path)) != CH_OK)
        return rc;
    o = ch__malloc(sizeof(*o));
    z = ch__calloc(1, sizeof(*z));
    if (o == NULL || z == NULL) {
        ch__free(o);
        ch__free(z);
        return ch__fail_memory(path);
    }
    memset(o, 0, offsetof(opening, local));
    o->path = path;
    o->fd = -1;
    rc = open_zip(o, z);
    if (o->fd >= 0)
        ch__sys_close(o->fd);
    ch__free(o->entries);
    ch__free(o);
    if (rc != CH_OK) {
        ch__zip_close(&z->base);
        return rc;
    }
    *out = &z->base;
    return CH_OK;
}

void ch__zip_close(ch_zip *base)
{
    zip *z = (zip *)base;

    if (z == NULL)
        return;
    ch__arena_drop(&z->names);
    ch__free(z->member);
    ch__free(z->path);
    ch__free(z);
}

/* ---- reading ---- */

int ch__zip_find(const ch_zip *z, const char *name)
{
    for (int i = 0; i < z->n; i++)
        if (strcmp(z->member[i].name, name) == 0)
            return i;
    return -1;
}

ch_status ch__zip_reader(const ch_zip *z, int i, const ch_load_options *opt,
                         ch_block_pool *pool, ch_reader **out)
{
    const ch_zip_member *m = &z->member[i];
    ch_file_stream      *s = NULL;
    char                 label[1024];

    snprintf(label, sizeof(label), "%.700s, member %.300s", z->path, m->name);
    ch_status rc = ch__stream_open_part(
        z->path,
        &(ch_file_part){.label = label,
                        .from = m->offset,
                        .bytes = m->packed_bytes,
                        .compression = m->is_deflated ? CH_RAW_DEFLATE : CH_UNCOMPRESSED,
                        .expect_bytes = m->bytes,
                        .expect_crc = m->crc},
        opt, &s);
    return rc == CH_OK ? ch__reader_over(s, pool, out) : rc;
}
