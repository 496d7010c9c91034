/* ckpt/read.c -- reads regions of tensors, strings, and verifies checksums.
 *
 * A tensor of numbers is stored whole or as slices, its parts. To read a region, the reader
 * intersects it with each part. The intersection is a sequence of runs: ranges that are
 * contiguous both in the part and in the destination. A part that was not verified yet is read
 * from its beginning to its end, because its checksum covers all of it; otherwise only the runs
 * are read. Data goes through a buffer of at most CHUNK bytes, unless a run can be read in
 * place. Tensors that a delta stores as rows are read by ckpt/delta.c, which calls back.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "ckpt/delta.h"
#include "ckpt/index.h"
#include "file/crc32c.h"

enum {
    CHUNK = 1 << 20,       /* bytes of a read */
    DIRECT_RUN = 64 << 10, /* runs of this size are read in place */
    STRING_BYTES = 16 << 20
};

/* ---- reading bytes ---- */

/* Sets this thread's message for a fault in a part of tensor t. */
static ch_status fail_part(const ch_ckpt *c, const ckpt_tensor *t, const ckpt_span *s,
                           ch_status rc, int error, const char *problem, int64_t byte)
{
    char path[512];

    ch__ckpt_data_path(c->prefix, s->file, (int)c->header.n_files, path, sizeof(path));
    if (error != 0)
        return ch__fail_errno(error, "%s: tensor \"%s\": %s at byte %lld", path, t->name,
                              problem, (long long)byte);
    return ch__fail(rc, "%s: tensor \"%s\": %s (%lld bytes at byte %lld)", path, t->name,
                    problem, (long long)s->bytes, (long long)byte);
}

/* Reads n bytes of a part, from byte `from` of the part. */
static ch_status read_part(const ch_ckpt *c, const ckpt_tensor *t, const ckpt_span *s,
                           int64_t from, char *to, int64_t n)
{
    int64_t at = s->offset + from;

    while (n > 0) {
        ssize_t got = ch__sys_pread(c->fd[s->file], to, (size_t)n, at);

        if (got < 0)
            return fail_part(c, t, s, CH_UNKNOWN, errno, "cannot be read", at);
        if (got == 0)
            return fail_part(c, t, s, CH_OUT_OF_RANGE, 0, "the file is truncated", at);
        to += got;
        at += got;
        n -= got;
    }
    return CH_OK;
}

/* Compares a checksum with that of the index, and remembers the success. */
static ch_status check_crc(ch_ckpt *c, const ckpt_tensor *t, int span, uint32_t crc)
{
    const ckpt_span *s = &c->span[span];

    if (ch__crc32c_mask(crc) != s->crc)
        return fail_part(c, t, s, CH_DATA_LOSS, 0, "Checksum does not match", s->offset);
    atomic_store_explicit(&c->is_verified[span], 1, memory_order_relaxed);
    return CH_OK;
}

static bool is_verified(const ch_ckpt *c, int span)
{
    return atomic_load_explicit(&c->is_verified[span], memory_order_relaxed) != 0;
}

/* ---- runs ---- */

/* The runs of an intersection, in ascending order of their bytes in the part. */
typedef struct ckpt_runs {
    int     axes;                   /* outer axes, over which the runs are counted */
    int64_t index[CH_MAX_RANK];     /* of the current run */
    int64_t n[CH_MAX_RANK];         /* number of indices along each outer axis */
    int64_t from_step[CH_MAX_RANK]; /* bytes in the part from an index to the next */
    int64_t to_step[CH_MAX_RANK];   /* the same in the destination */
    int64_t first_from, first_to;   /* bytes before the first run */
    int64_t from, to, bytes;        /* of the current run */
    bool    has_ended;
} ckpt_runs;

/* Begins with the first run of `both`, the intersection of the part and the destination. */
static ckpt_runs runs_begin(const ch_region *part, const ch_region *want, const ch_region *both,
                            int rank, int64_t element)
{
    ckpt_runs r = {.bytes = element};
    int64_t   from_step = element, to_step = element;
    bool      is_inner = true; /* the axis belongs to the runs */

    for (int k = rank - 1; k >= 0; k--) {
        r.first_from += (both->begin[k] - part->begin[k]) * from_step;
        r.first_to += (both->begin[k] - want->begin[k]) * to_step;
        if (is_inner) {
            r.bytes *= both->size[k];
            is_inner = both->size[k] == part->size[k] && both->size[k] == want->size[k];
            r.axes = k;
        }
        r.n[k] = both->size[k];
        r.from_step[k] = from_step;
        r.to_step[k] = to_step;
        from_step *= part->size[k];
        to_step *= want->size[k];
    }
    r.from = r.first_from;
    r.to = r.first_to;
    return r;
}

static void runs_next(ckpt_runs *r)
{
    int k = r->axes - 1;

    while (k >= 0 && ++r->index[k] == r->n[k])
        r->index[k--] = 0;
    r->has_ended = k < 0;
    r->from = r->first_from;
    r->to = r->first_to;
    for (int i = 0; i < r->axes; i++) {
        r->from += r->index[i] * r->from_step[i];
        r->to += r->index[i] * r->to_step[i];
    }
}

/* Copies the bytes [at, at + n) of a part, as far as they belong to runs. */
static void copy_runs(ckpt_runs *r, const char *chunk, int64_t at, int64_t n, char *to)
{
    while (!r->has_ended && r->from < at + n) {
        int64_t begin = r->from > at ? r->from : at;
        int64_t end = r->from + r->bytes < at + n ? r->from + r->bytes : at + n;

        memcpy(to + r->to + (begin - r->from), chunk + (begin - at), (size_t)(end - begin));
        if (end < r->from + r->bytes)
            return; /* the rest of the run is in the next chunk */
        runs_next(r);
    }
}

/* ---- parts ---- */

/* Reads bytes [from, end) of a part in chunks. If `in_place` is not NULL, they go there,
 * otherwise through `chunk`; then `runs` may be NULL if no data is needed. Adds to *crc. */
static ch_status read_chunks(ch_ckpt *c, const ckpt_tensor *t, const ckpt_span *s, int64_t from,
                             int64_t end, char *in_place, char *chunk, ckpt_runs *runs,
                             char *to, uint32_t *crc)
{
    ch_status rc = CH_OK;

    for (int64_t n; from < end && rc == CH_OK; from += n) {
        n = ch__min(end - from, CHUNK);
        rc = read_part(c, t, s, from, in_place != NULL ? in_place : chunk, n);
        if (rc != CH_OK)
            break;
        if (crc != NULL)
            *crc = ch__crc32c(*crc, in_place != NULL ? in_place : chunk, (size_t)n);
        if (in_place != NULL)
            in_place += n;
        else if (runs != NULL)
            copy_runs(runs, chunk, from, n, to);
    }
    return rc;
}

/* Allocates memory for the chunks of any part of tensor t, unless *chunk has it. */
static ch_status reserve_chunk(const ch_ckpt *c, const ckpt_tensor *t, char **chunk)
{
    int64_t most = 0;

    if (*chunk != NULL)
        return CH_OK;
    for (int k = 0; k < t->n_parts && most < CHUNK; k++)
        if (c->span[t->first + k].bytes > most)
            most = c->span[t->first + k].bytes;
    *chunk = ch__malloc((size_t)ch__min(most, CHUNK) + 1);
    return *chunk != NULL ? CH_OK : ch__fail_memory(t->name);
}

/* Reads the intersection of part `span` with the wanted region. */
static ch_status read_runs(ch_ckpt *c, const ckpt_tensor *t, int span, ckpt_runs *r, char *to,
                           char **chunk)
{
    const ckpt_span *s = &c->span[span];
    uint32_t         crc = 0;
    ch_status        rc = CH_OK;

    if (is_verified(c, span) && r->bytes >= DIRECT_RUN) {
        for (; !r->has_ended && rc == CH_OK; runs_next(r))
            rc = read_part(c, t, s, r->from, to + r->to, r->bytes);
        return rc;
    }
    if (r->bytes == s->bytes) {
        rc = read_chunks(c, t, s, 0, s->bytes, to + r->to, NULL, NULL, NULL, &crc);
        return rc == CH_OK ? check_crc(c, t, span, crc) : rc;
    }
    rc = reserve_chunk(c, t, chunk);
    if (rc != CH_OK)
        return rc;
    if (is_verified(c, span)) {
        int64_t end = r->first_from + r->bytes; /* of the last run */

        for (int k = 0; k < r->axes; k++)
            end += (r->n[k] - 1) * r->from_step[k];
        return read_chunks(c, t, s, r->from, end, NULL, *chunk, r, to, NULL);
    }
    rc = read_chunks(c, t, s, 0, s->bytes, NULL, *chunk, r, to, &crc);
    return rc == CH_OK ? check_crc(c, t, span, crc) : rc;
}

/* Reverses the bytes of each element. */
static void swap_bytes(char *at, int64_t n, int element)
{
    for (; n > 0; n--, at += element)
        for (int i = 0; i < element / 2; i++) {
            char x = at[i];

            at[i] = at[element - 1 - i];
            at[element - 1 - i] = x;
        }
}

static ch_status find_tensor(const ch_ckpt *c, const char *name, int *i)
{
    *i = ch__ckpt_find(c, name);
    return *i >= 0 ? CH_OK
                   : ch__fail(CH_NOT_FOUND, "%s: the checkpoint has no tensor \"%s\"",
                              c->prefix, name);
}

ch_status ch__ckpt_read_stored(ch_ckpt *c, const ckpt_tensor *t, const ch_region *region,
                               void *to)
{
    ch_shape     shape = ch_shape_make(t->rank, t->dim);
    ch_dtype     dtype = ch__ckpt_dtype_of(t->dtype);
    ch_region    want = {.begin = {0}}, both;
    ch_ckpt_part part;
    char        *chunk = NULL;
    int64_t      element = (int64_t)ch_dtype_bytes(dtype), n_read = 0, n_want;
    ch_status    rc = CH_OK;

    if (dtype == CH_DTYPE_COUNT || dtype == CH_STR)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: tensor \"%s\": dtype %d of TensorFlow cannot be read as numbers",
                        c->prefix, t->name, t->dtype);
    memcpy(want.size, shape.dim, sizeof(want.size));
    if (region != NULL && !ch__region_fits(region, shape))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: tensor \"%s\": the region does not fit into the tensor", c->prefix,
                        t->name);
    want = region != NULL ? *region : want;
    n_want = ch__region_count(&want, t->rank);
    for (int k = 0; k < t->n_parts && rc == CH_OK && n_want > 0; k++) {
        ckpt_runs runs;

        ch__ckpt_get_part(c, t, k, &part);
        if (!ch__region_intersect(&part.region, &want, t->rank, &both))
            continue;
        n_read += ch__region_count(&both, t->rank);
        runs = runs_begin(&part.region, &want, &both, t->rank, element);
        rc = read_runs(c, t, t->first + k, &runs, to, &chunk);
    }
    ch__free(chunk);
    if (rc == CH_OK && n_read < n_want)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "%s: tensor \"%s\": does not have sufficient slices to cover the region",
                      c->prefix, t->name);
    if (rc == CH_OK && c->header.is_big_endian)
        swap_bytes(to, n_want, (int)element);
    return rc;
}

ch_status ch__ckpt_read(ch_ckpt *c, const char *name, const ch_region *region, void *to)
{
    int       i;
    ch_status rc = find_tensor(c, name, &i);

    if (rc != CH_OK)
        return rc;
    return c->tensor[i].rows >= 0 ? ch__delta_read(c, &c->tensor[i], region, to)
                                  : ch__ckpt_read_stored(c, &c->tensor[i], region, to);
}

/* Reads elements [from, from + n) of the axes from `axis` on, in row-major order. The axes
 * before are fixed in `r`, of which `whole` is the region that the numbers refer to. */
static ch_status read_range(ch_ckpt *c, const char *name, int rank, const ch_region *whole,
                            ch_region *r, int axis, int64_t from, int64_t n, char *to,
                            int64_t element)
{
    int64_t   inner = 1, i;
    ch_status rc = CH_OK;

    if (axis == rank)
        return ch__ckpt_read(c, name, r, to);
    for (int k = axis + 1; k < rank; k++)
        inner *= whole->size[k];
    while (n > 0 && rc == CH_OK) {
        int64_t now;

        i = from / inner;
        r->begin[axis] = whole->begin[axis] + i;
        if (from % inner != 0 || n < inner) { /* a part of index i */
            now = ch__min(n, inner - from % inner);
            r->size[axis] = 1;
            rc = read_range(c, name, rank, whole, r, axis + 1, from % inner, now, to, element);
        } else {
            now = n - n % inner;
            r->size[axis] = n / inner;
            for (int k = axis + 1; k < rank; k++) {
                r->begin[k] = whole->begin[k];
                r->size[k] = whole->size[k];
            }
            rc = ch__ckpt_read(c, name, r, to);
        }
        from += now;
        n -= now;
        to += now * element;
    }
    return rc;
}

ch_status ch__ckpt_read_range(ch_ckpt *c, const char *name, const ch_region *region,
                              int64_t from, int64_t n, void *to)
{
    ch_region     whole = {.begin = {0}}, r = {.begin = {0}};
    ch_ckpt_entry e;
    int           i;
    ch_status     rc = find_tensor(c, name, &i);

    if (rc != CH_OK)
        return rc;
    ch__ckpt_entry(c, i, &e);
    memcpy(whole.size, e.shape.dim, sizeof(whole.size));
    whole = region != NULL ? *region : whole;
    if (!ch__region_fits(&whole, e.shape) || from < 0 || n < 0 ||
        n > ch__region_count(&whole, e.shape.rank) - from)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: tensor \"%s\": there are no %lld elements from element %lld on",
                        c->prefix, name, (long long)n, (long long)from);
    if (n == 0)
        return CH_OK;
    return read_range(c, name, e.shape.rank, &whole, &r, 0, from, n, to,
                      (int64_t)ch_dtype_bytes(e.dtype));
}

ch_status ch__ckpt_read_raw(ch_ckpt *c, int i, int part, int64_t from, int64_t n, void *to)
{
    const ckpt_tensor *t = &c->tensor[i];

    return read_part(c, t, &c->span[t->first + part], from, to, n);
}

/* ---- strings ---- */

/* Reads a part from its beginning to its end, through a buffer. */
typedef struct ckpt_source {
    ch_ckpt           *c;
    const ckpt_tensor *t;
    const ckpt_span   *s;
    char              *chunk; /* CHUNK bytes */
    int64_t            next;  /* byte of the part after the buffered bytes */
    int                at, n; /* position in the chunk, bytes in the chunk */
} ckpt_source;

static int64_t source_left(const ckpt_source *x)
{
    return x->s->bytes - x->next + (x->n - x->at);
}

/* Buffers at least one byte. */
static ch_status source_fill(ckpt_source *x)
{
    ch_status rc;

    if (x->at < x->n)
        return CH_OK;
    x->at = 0;
    x->n = (int)ch__min(x->s->bytes - x->next, CHUNK);
    if (x->n == 0)
        return fail_part(x->c, x->t, x->s, CH_DATA_LOSS, 0, "damaged lengths of strings",
                         x->s->offset);
    rc = read_part(x->c, x->t, x->s, x->next, x->chunk, x->n);
    x->next += x->n;
    return rc;
}

static ch_status source_varint(ckpt_source *x, uint64_t *out)
{
    ch_status rc = CH_OK;
    unsigned  shift = 0;
    uint8_t   byte = 0x80;

    for (*out = 0; rc == CH_OK && byte >= 0x80; shift += 7) {
        if (shift > 56)
            return fail_part(x->c, x->t, x->s, CH_DATA_LOSS, 0, "damaged lengths of strings",
                             x->s->offset);
        rc = source_fill(x);
        if (rc == CH_OK) {
            byte = (uint8_t)x->chunk[x->at++];
            *out |= (uint64_t)(byte & 0x7f) << shift;
        }
    }
    return rc;
}

/* Adds a length to a checksum, as TBF-15 defines. */
static uint32_t crc_length(uint32_t crc, uint64_t n, bool is_big_endian)
{
    unsigned char text[8];
    int           bytes = n <= UINT32_MAX ? 4 : 8;

    ch__put_le(text,
               is_big_endian
                   ? (bytes == 4 ? __builtin_bswap32((uint32_t)n) : __builtin_bswap64(n))
                   : n,
               bytes);
    return ch__crc32c(crc, text, (size_t)bytes);
}

/* Reads the strings of a part of n elements, and verifies the checksums. `out` (n elements) and
 * `bytes` (of all strings) may be NULL: then the strings are only verified. */
static ch_status scan_strings(ckpt_source *x, int64_t n, ch_str *out, char *bytes)
{
    uint32_t      crc = 0;
    uint64_t      length, sum = 0;
    unsigned char stored[4];
    ch_status     rc = CH_OK;

    if (n == 0 && x->s->bytes == 0) /* not even a checksum of the lengths (TBF-14) */
        return check_crc(x->c, x->t, (int)(x->s - x->c->span), 0);
    for (int64_t i = 0; i < n && rc == CH_OK; i++) {
        rc = source_varint(x, &length);
        if (rc != CH_OK)
            return rc;
        if (length > (uint64_t)source_left(x) || sum > (uint64_t)source_left(x) - length)
            return fail_part(x->c, x->t, x->s, CH_DATA_LOSS, 0,
                             "strings that are longer than the tensor", x->s->offset);
        if (out != NULL)
            out[i] = (ch_str){bytes + sum, length};
        sum += length;
        crc = crc_length(crc, length, x->c->header.is_big_endian);
    }
    for (int i = 0; i < 4 && rc == CH_OK; i++) {
        rc = source_fill(x);
        if (rc == CH_OK)
            stored[i] = (unsigned char)x->chunk[x->at++];
    }
    if (rc != CH_OK)
        return rc;
    uint32_t expect = ch__crc32c_mask(crc);
    if ((x->c->header.is_big_endian ? ch__be32(stored) : ch__le32(stored)) != expect)
        return fail_part(x->c, x->t, x->s, CH_DATA_LOSS, 0, "length checksum does not match",
                         x->s->offset);
    crc = ch__crc32c(crc, stored, 4);
    if (sum != (uint64_t)source_left(x))
        return fail_part(x->c, x->t, x->s, CH_DATA_LOSS, 0,
                         "strings that are shorter than the tensor", x->s->offset);
    for (int64_t at = 0; rc == CH_OK && source_left(x) > 0; at += x->n - x->at, x->at = x->n) {
        rc = source_fill(x);
        if (rc != CH_OK)
            break;
        crc = ch__crc32c(crc, x->chunk + x->at, (size_t)(x->n - x->at));
        if (bytes != NULL)
            memcpy(bytes + at, x->chunk + x->at, (size_t)(x->n - x->at));
    }
    return rc == CH_OK ? check_crc(x->c, x->t, (int)(x->s - x->c->span), crc) : rc;
}

static ch_status read_strings(ch_ckpt *c, const ckpt_tensor *t, ch_str *out, char *bytes)
{
    ckpt_source x = {.c = c, .t = t, .s = &c->span[t->first]};
    ch_status   rc;

    x.chunk = ch__malloc((size_t)ch__min(x.s->bytes, CHUNK) + 1);
    if (x.chunk == NULL)
        return ch__fail_memory(t->name);
    rc = scan_strings(&x, ch_shape_count(ch_shape_make(t->rank, t->dim)), out, bytes);
    ch__free(x.chunk);
    return rc;
}

ch_status ch__ckpt_read_strings(ch_ckpt *c, const char *name, ch_str **out)
{
    const ckpt_tensor *t;
    const ckpt_span   *s;
    int64_t            n;
    ch_str            *array;
    int                i;
    ch_status          rc = find_tensor(c, name, &i);

    if (rc != CH_OK)
        return rc;
    t = &c->tensor[i];
    s = &c->span[t->first];
    n = ch_shape_count(ch_shape_make(t->rank, t->dim));
    if (ch__ckpt_dtype_of(t->dtype) != CH_STR)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: tensor \"%s\" does not hold strings",
                        c->prefix, name);
    if (!t->is_whole)
        return ch__fail(CH_UNIMPLEMENTED, "%s: tensor \"%s\": slices of strings are not read",
                        c->prefix, name);
    if (n > s->bytes) /* a string has at least one byte, its length */
        return fail_part(c, t, s, CH_DATA_LOSS, 0, "more strings than bytes", s->offset);
    /* The array is limited because an empty string has 1 byte in the file and 16 in memory. */
    if (n * (int64_t)sizeof(ch_str) + s->bytes >
        STRING_BYTES - CHUNK + 2 * c->file_bytes[s->file])
        return ch__fail_limit("%s: tensor \"%s\": its %lld strings need too much memory for a "
                              "file of %lld bytes",
                              c->prefix, name, (long long)n, (long long)c->file_bytes[s->file]);
    array = ch__malloc((size_t)n * sizeof(ch_str) + (size_t)s->bytes + 1);
    if (array == NULL)
        return ch__fail_memory(name);
    rc = read_strings(c, t, array, (char *)(array + n));
    if (rc == CH_OK)
        *out = array;
    else
        ch__free(array);
    return rc;
}

void ch__ckpt_encode_strings(int64_t n, const ch_str *s, ch_bytes_builder *out, uint32_t *crc)
{
    uint32_t sum = 0;

    for (int64_t i = 0; i < n; i++) {
        ch__bytes_builder_varint(out, s[i].size);
        sum = crc_length(sum, s[i].size, false);
    }
    if (n > 0)
        ch__bytes_builder_fixed32(out, ch__crc32c_mask(sum));
    if (n > 0 && !out->has_failed)
        sum = ch__crc32c(sum, out->at + out->n - 4, 4);
    for (int64_t i = 0; i < n; i++) {
        ch__bytes_builder_add(out, s[i].data, s[i].size);
        sum = ch__crc32c(sum, s[i].data, s[i].size);
    }
    *crc = ch__crc32c_mask(sum);
}

/* ---- verifying ---- */

static ch_status verify_part(ch_ckpt *c, const ckpt_tensor *t, int span, char **chunk)
{
    uint32_t  crc = 0;
    ch_status rc;

    if (is_verified(c, span))
        return CH_OK;
    rc = reserve_chunk(c, t, chunk);
    if (rc == CH_OK)
        rc = read_chunks(c, t, &c->span[span], 0, c->span[span].bytes, NULL, *chunk, NULL, NULL,
                         &crc);
    return rc == CH_OK ? check_crc(c, t, span, crc) : rc;
}

ch_status ch__ckpt_verify_stored(ch_ckpt *c, const ckpt_tensor *t)
{
    char     *chunk = NULL;
    ch_status rc = CH_OK;

    if (ch__ckpt_dtype_of(t->dtype) == CH_STR && t->is_whole)
        return is_verified(c, t->first) ? CH_OK : read_strings(c, t, NULL, NULL);
    if (ch__ckpt_dtype_bytes(t->dtype) == 0)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: tensor \"%s\": dtype %d of TensorFlow cannot be verified",
                        c->prefix, t->name, t->dtype);
    for (int k = 0; k < t->n_parts && rc == CH_OK; k++)
        rc = verify_part(c, t, t->first + k, &chunk);
    ch__free(chunk);
    return rc;
}

/* Forgets that the parts of a tensor were verified. */
static void forget_parts(ch_ckpt *c, const ckpt_tensor *t)
{
    for (int k = 0; k < t->n_parts; k++)
        atomic_store_explicit(&c->is_verified[t->first + k], 0, memory_order_relaxed);
}

void ch__ckpt_verify_again(ch_ckpt *c, int i)
{
    const ckpt_tensor *t = &c->tensor[i];

    if (t->rows < 0) {
        forget_parts(c, t);
    } else {
        forget_parts(c->base, &c->base->tensor[c->rows[t->rows].base]);
        forget_parts(c, c->rows[t->rows].ids);
        forget_parts(c, c->rows[t->rows].values);
    }
}

ch_status ch__ckpt_verify(ch_ckpt *c, int i)
{
    return c->tensor[i].rows >= 0 ? ch__delta_verify(c, &c->tensor[i])
                                  : ch__ckpt_verify_stored(c, &c->tensor[i]);
}
