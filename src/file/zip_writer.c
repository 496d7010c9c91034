/* file/zip_writer.c -- writes zip archives: members, their headers, the central directory.
 *
 * file/npz.c uses this file to save arrays. file/zip.c describes the format.
 *
 *   1. A local header is written before the sizes and the checksum of its member are known.
 *      ch__zip_writer_end writes the header again, at the same offset and with the same length.
 *   2. For this reason a local header always has an extra field with 64-bit sizes, as numpy's
 *      headers have. An entry of the directory has 64-bit numbers only if 32 bits are too few.
 *   3. Equal members give equal files, because the date is constant.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/zip_writer.h"

#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "file/codec.h"
#include "file/zip.h"

enum {
    HEADER_BYTES = 30,
    EXTRA_BYTES = 20, /* id, size, and two numbers of 8 bytes */
    VERSION = 45,     /* 4.5, the first version of the format with 64-bit sizes */
    DATE_1980 = 0x21, /* 1 January 1980, so that equal arrays give equal files */
    MAX_NAME_BYTES = 4096,
};

typedef struct member {
    char      *name;
    int64_t    offset; /* of the local header in the file, in bytes */
    ch_section section;
} member;

struct ch_zip_writer {
    ch_writer     *w;
    ch_compression kind; /* of all members: CH_UNCOMPRESSED or CH_RAW_DEFLATE */
    int            level;
    member        *member;
    int            n, cap;
};

ch_status ch__zip_writer_open(const char *path, const ch_save_options *opt, ch_zip_writer **out)
{
    static const ch_save_options defaults;
    ch_zip_writer               *z;
    ch_status                    rc;

    opt = opt != NULL ? opt : &defaults;
    if (opt->compression > CH_UNCOMPRESSED && opt->compression != CH_ZLIB)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: members of zip archives cannot have this compression; use "
                        "CH_UNCOMPRESSED or CH_ZLIB",
                        path);
    if ((rc = ch__zip_check_build(path)) != CH_OK)
        return rc;
    z = ch__calloc(1, sizeof(*z));
    if (z == NULL)
        return ch__fail_memory(path);
    z->kind = opt->compression == CH_ZLIB ? CH_RAW_DEFLATE : CH_UNCOMPRESSED;
    z->level = opt->level;
    rc = ch__writer_open(
        path, &(ch_save_options){.compression = CH_UNCOMPRESSED, .no_sync = opt->no_sync},
        &z->w);
    if (rc != CH_OK) {
        ch__free(z);
        return rc;
    }
    *out = z;
    return CH_OK;
}

void ch__zip_writer_drop(ch_zip_writer *z)
{
    if (z == NULL)
        return;
    ch__writer_drop(z->w);
    for (int i = 0; i < z->n; i++)
        ch__free(z->member[i].name);
    ch__free(z->member);
    ch__free(z);
}

/* ---- members ---- */

/* Writes to `at` the fields that the local header and the directory entry have in common.
 * Returns the position after them. */
static unsigned char *put_common(const ch_zip_writer *z, const member *m, uint32_t packed_bytes,
                                 uint32_t bytes, int extra_bytes, unsigned char *at)
{
    at = ch__put_le(at, VERSION, 2);
    at = ch__put_le(at, 0, 2);                                 /* flags */
    at = ch__put_le(at, z->kind == CH_RAW_DEFLATE ? 8 : 0, 2); /* method */
    at = ch__put_le(at, (uint64_t)DATE_1980 << 16, 4);         /* date and time */
    at = ch__put_le(at, m->section.crc, 4);
    at = ch__put_le(at, packed_bytes, 4);
    at = ch__put_le(at, bytes, 4);
    at = ch__put_le(at, strlen(m->name), 2);
    return ch__put_le(at, (uint64_t)extra_bytes, 2);
}

/* Encodes the local header and its extra field. The member's name, which lies between them in
 * the file, is not included. */
static void make_header(const ch_zip_writer *z, const member *m,
                        unsigned char header[HEADER_BYTES], unsigned char extra[EXTRA_BYTES])
{
    put_common(z, m, UINT32_MAX, UINT32_MAX, EXTRA_BYTES, ch__put_le(header, 0x04034b50, 4));
    extra = ch__put_le(extra, 1, 2);
    extra = ch__put_le(extra, EXTRA_BYTES - 4, 2);
    extra = ch__put_le(extra, (uint64_t)m->section.bytes, 8);
    ch__put_le(extra, (uint64_t)m->section.packed_bytes, 8);
}

static ch_status add_member(ch_zip_writer *z, const char *name)
{
    if (name[0] == '\0' || strlen(name) > MAX_NAME_BYTES)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: a member needs a name of 1 to %d bytes",
                        ch__writer_path(z->w), MAX_NAME_BYTES);
    for (int i = 0; i < z->n; i++)
        if (strcmp(z->member[i].name, name) == 0)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: two members have the name %s",
                            ch__writer_path(z->w), name);
    if (!ch__grow((void **)&z->member, &z->cap, z->n + 1, sizeof(*z->member)))
        return ch__fail_memory(ch__writer_path(z->w));
    z->member[z->n] = (member){.name = ch__strdup(name), .offset = ch__writer_offset(z->w)};
    if (z->member[z->n].name == NULL)
        return ch__fail_memory(ch__writer_path(z->w));
    z->n++;
    return CH_OK;
}

ch_status ch__zip_writer_begin(ch_zip_writer *z, const char *name, ch_writer **w)
{
    unsigned char header[HEADER_BYTES], extra[EXTRA_BYTES];
    ch_status     rc = add_member(z, name);

    if (rc != CH_OK)
        return rc;
    make_header(z, &z->member[z->n - 1], header, extra);
    rc = ch__writer_put(z->w, header, sizeof(header));
    if (rc == CH_OK)
        rc = ch__writer_put(z->w, name, strlen(name));
    if (rc == CH_OK)
        rc = ch__writer_put(z->w, extra, sizeof(extra));
    if (rc == CH_OK)
        rc = ch__writer_begin(z->w, z->kind, z->level);
    *w = z->w;
    return rc;
}

ch_status ch__zip_writer_end(ch_zip_writer *z)
{
    unsigned char header[HEADER_BYTES], extra[EXTRA_BYTES];
    member       *m = &z->member[z->n - 1];
    ch_status     rc = ch__writer_end(z->w, &m->section);

    if (rc != CH_OK)
        return rc;
    make_header(z, m, header, extra);
    rc = ch__writer_patch(z->w, m->offset, header, sizeof(header));
    if (rc == CH_OK)
        rc = ch__writer_patch(z->w, m->offset + HEADER_BYTES + (int64_t)strlen(m->name), extra,
                              sizeof(extra));
    return rc;
}

/* ---- the central directory ---- */

/* Returns x if x fits in 32 bits. Otherwise appends x to the extra field at *extra and returns
 * UINT32_MAX, which refers readers to the extra field. */
static uint32_t put_32_or_extra(int64_t x, unsigned char **extra)
{
    if (x < UINT32_MAX)
        return (uint32_t)x;
    *extra = ch__put_le(*extra, (uint64_t)x, 8);
    return UINT32_MAX;
}

static ch_status put_entry(ch_zip_writer *z, const member *m)
{
    unsigned char entry[46] = {0}, extra[4 + 3 * 8], *end = extra + 4, *at;
    uint32_t      bytes = put_32_or_extra(m->section.bytes, &end);
    uint32_t      packed_bytes = put_32_or_extra(m->section.packed_bytes, &end);
    uint32_t      offset = put_32_or_extra(m->offset, &end);
    int           extra_bytes = end > extra + 4 ? (int)(end - extra) : 0;
    ch_status     rc;

    ch__put_le(ch__put_le(extra, 1, 2), (uint64_t)(end - extra - 4), 2);
    at = ch__put_le(ch__put_le(entry, 0x02014b50, 4), VERSION, 2); /* version of the writer */
    put_common(z, m, packed_bytes, bytes, extra_bytes, at);
    ch__put_le(entry + 42, offset, 4);
    rc = ch__writer_put(z->w, entry, sizeof(entry));
    if (rc == CH_OK)
        rc = ch__writer_put(z->w, m->name, strlen(m->name));
    return rc == CH_OK ? ch__writer_put(z->w, extra, (size_t)extra_bytes) : rc;
}

/* Writes the zip64 end of directory and its locator. `directory` is the offset of the
 * directory, `bytes` its size. */
static ch_status put_end64(ch_zip_writer *z, int64_t directory, int64_t bytes)
{
    unsigned char end[56 + 20], *at = end;

    at = ch__put_le(at, 0x06064b50, 4);
    at = ch__put_le(at, 56 - 12, 8);
    at = ch__put_le(at, VERSION, 2);
    at = ch__put_le(at, VERSION, 2);
    at = ch__put_le(at, 0, 8); /* disk numbers */
    at = ch__put_le(at, (uint64_t)z->n, 8);
    at = ch__put_le(at, (uint64_t)z->n, 8);
    at = ch__put_le(at, (uint64_t)bytes, 8);
    at = ch__put_le(at, (uint64_t)directory, 8);
    at = ch__put_le(at, 0x07064b50, 4);
    at = ch__put_le(at, 0, 4);
    at = ch__put_le(at, (uint64_t)(directory + bytes), 8);
    ch__put_le(at, 1, 4);
    return ch__writer_put(z->w, end, sizeof(end));
}

/* Writes the entries of all members and the end of the directory. */
static ch_status put_directory(ch_zip_writer *z)
{
    unsigned char end[22] = {0}, *at = end;
    int64_t       directory = ch__writer_offset(z->w), bytes;
    ch_status     rc = CH_OK;

    for (int i = 0; i < z->n && rc == CH_OK; i++)
        rc = put_entry(z, &z->member[i]);
    bytes = ch__writer_offset(z->w) - directory;
    bool is_large = z->n >= UINT16_MAX || directory >= UINT32_MAX || bytes >= UINT32_MAX;
    if (rc == CH_OK && is_large)
        rc = put_end64(z, directory, bytes);
    at = ch__put_le(at, 0x06054b50, 4);
    at = ch__put_le(at, 0, 4);
    at = ch__put_le(at, is_large ? UINT16_MAX : (uint64_t)z->n, 2);
    at = ch__put_le(at, is_large ? UINT16_MAX : (uint64_t)z->n, 2);
    at = ch__put_le(at, is_large ? UINT32_MAX : (uint64_t)bytes, 4);
    ch__put_le(at, is_large ? UINT32_MAX : (uint64_t)directory, 4);
    return rc == CH_OK ? ch__writer_put(z->w, end, sizeof(end)) : rc;
}

ch_status ch__zip_writer_commit(ch_zip_writer *z)
{
    ch_status rc = put_directory(z);

    if (rc == CH_OK) {
        ch_writer *w = z->w;

        z->w = NULL;
        rc = ch__writer_commit(w);
    }
    ch__zip_writer_drop(z);
    return rc;
}
