/* ckpt/metadata.c -- encodes and decodes the metadata of a checkpoint.
 *
 * The message is decoded twice: the first pass counts the data files, the second copies their
 * sizes to memory of exactly the needed size. save/ encodes; ckpt/index.c decodes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/metadata.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/pbwire.h"
#include "base/sys.h"
#include "ckpt/ckpt.h"

enum {
    OLDEST_FORMAT = CH_CKPT_FORMAT > 2 ? CH_CKPT_FORMAT - 2 : 1,
    MAX_BASE = 255 - 6 /* bytes of a name that has room for ".index" */
};

/* Fields of the message Checkpoint in proto/checkpoint.proto. */
enum { FORMAT = 1, ID, TIME, STEP, FILE_BYTES, BASE_ID, BASE_NAME };

bool ch__ckpt_format_is_readable(uint64_t format)
{
    return format >= OLDEST_FORMAT && format <= CH_CKPT_FORMAT;
}

ch_status ch__ckpt_metadata_init(ch_ckpt_metadata *m)
{
    struct timespec now;
    ssize_t         n = 0;

    m->format = CH_CKPT_FORMAT;
    m->id = 0;
    while (m->id == 0 && (n >= 0 || errno == EINTR))
        n = getrandom(&m->id, sizeof(m->id), 0);
    if (m->id == 0)
        return ch__fail_errno(errno, "id of a checkpoint: no random numbers");
    clock_gettime(CLOCK_REALTIME, &now);
    m->time = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    return CH_OK;
}

/* Returns whether a text can be the name of a checkpoint in the directory of another. */
static bool is_plain_name(const char *name)
{
    size_t n = strlen(name);

    return n > 0 && n <= MAX_BASE && name[0] != '.' && strchr(name, '/') == NULL;
}

/* Returns NULL, or a description of the fault. */
static const char *check(const ch_ckpt_metadata *m)
{
    if (m->id == 0)
        return "no id";
    if (m->step < -1)
        return "invalid step";
    for (int i = 0; i < m->n_files; i++)
        if (m->file_bytes[i] < 0)
            return "invalid size of a data file";
    if ((m->base_id != 0) != (m->base != NULL))
        return "the base has no name or no id";
    if (m->base != NULL && !is_plain_name(m->base))
        return "the name of the base leads out of the directory";
    return m->base_id == m->id ? "the checkpoint is its own base" : NULL;
}

ch_status ch__ckpt_metadata_encode(const ch_ckpt_metadata *m, ch_bytes_builder *out,
                                   uint32_t *crc)
{
    ch_bytes_builder b = {0};
    const char      *problem = check(m);

    if (problem != NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "metadata of a checkpoint: %s", problem);
    ch__wire_put_number(&b, FORMAT, (uint64_t)m->format);
    ch__wire_put_fixed64(&b, ID, m->id);
    ch__wire_put_number(&b, TIME, (uint64_t)m->time);
    ch__wire_put_number(&b, STEP, (uint64_t)m->step);
    if (m->n_files > 0) {
        size_t from = ch__wire_begin(&b, FILE_BYTES);

        for (int i = 0; i < m->n_files; i++)
            ch__bytes_builder_fixed64(&b, (uint64_t)m->file_bytes[i]);
        ch__wire_end(&b, from);
    }
    if (m->base != NULL) {
        ch__wire_put_fixed64(&b, BASE_ID, m->base_id);
        ch__wire_put_text(&b, BASE_NAME, m->base);
    }
    if (!b.has_failed)
        ch__ckpt_encode_strings(1, &(ch_str){b.at, b.n}, out, crc);
    if (b.has_failed || out->has_failed) {
        ch__bytes_builder_drop(&b);
        return ch__fail_memory("metadata of a checkpoint");
    }
    ch__bytes_builder_drop(&b);
    return CH_OK;
}

/* ---- decoding ---- */

/* The fields of a message, as they are in its bytes. */
typedef struct metadata_fields {
    uint64_t     number[BASE_NAME + 1]; /* of the fields that are numbers */
    ch_wire_span base;
    size_t       n_files;
    int64_t     *file_bytes; /* NULL: the pass that counts */
} metadata_fields;

/* Decodes a number: a varint or eight bytes, as the field has it. */
static uint64_t get_number(ch_wire *w, ch_wire_field *f)
{
    uint64_t x = 0;
    bool     is_fixed = f->number == ID || f->number == BASE_ID;

    if (f->type != (is_fixed ? CH_WIRE_64 : CH_WIRE_VARINT))
        (void)ch__wire_fault(w, f->data.at, "field of a wrong type");
    else if (is_fixed)
        x = ch__le64(f->data.at);
    else
        (void)ch__wire_varint(w, &f->data, &x);
    return x;
}

/* Decodes sizes of data files: one, or several that are packed. */
static void get_file_bytes(ch_wire *w, const ch_wire_field *f, metadata_fields *x)
{
    size_t n = ch__wire_bytes(f->data) / 8;

    if ((f->type != CH_WIRE_64 && f->type != CH_WIRE_BYTES) || ch__wire_bytes(f->data) % 8 != 0)
        (void)ch__wire_fault(w, f->data.at, "field of a wrong type");
    for (size_t i = 0; x->file_bytes != NULL && w->fault == NULL && i < n; i++)
        x->file_bytes[x->n_files + i] = (int64_t)ch__le64(f->data.at + 8 * i);
    x->n_files += n;
}

static void get_base(ch_wire *w, const ch_wire_field *f, metadata_fields *x)
{
    if (f->type != CH_WIRE_BYTES || memchr(f->data.at, '\0', ch__wire_bytes(f->data)) != NULL)
        (void)ch__wire_fault(w, f->data.at, "invalid text");
    else
        x->base = f->data;
}

/* Decodes all fields. In the first pass x->file_bytes is NULL. */
static ch_status get_fields(ch_str message, metadata_fields *x)
{
    ch_wire       w = ch__wire(message.data, message.size);
    ch_wire_span  s = w.all;
    ch_wire_field f;

    x->n_files = 0;
    while (ch__wire_next(&w, &s, &f))
        if (f.number == FILE_BYTES)
            get_file_bytes(&w, &f, x);
        else if (f.number == BASE_NAME)
            get_base(&w, &f, x);
        else if (f.number <= BASE_NAME)
            x->number[f.number] = get_number(&w, &f);
    return w.fault == NULL ? CH_OK
                           : ch__fail(CH_DATA_LOSS, "metadata of a checkpoint: %s at byte %lld",
                                      w.fault, (long long)(w.fault_at - w.all.at));
}

static ch_status check_format(uint64_t format)
{
    if (ch__ckpt_format_is_readable(format))
        return CH_OK;
    if (format == 0)
        return ch__fail(CH_DATA_LOSS, "metadata of a checkpoint: no format");
    return ch__fail(CH_UNIMPLEMENTED,
                    "the checkpoint has format %llu, and this library reads formats %d to %d; "
                    "use %s version of Cohort",
                    (unsigned long long)format, OLDEST_FORMAT, CH_CKPT_FORMAT,
                    format > CH_CKPT_FORMAT ? "a newer" : "an older");
}

ch_status ch__ckpt_metadata_decode(ch_str message, ch_ckpt_metadata *out)
{
    metadata_fields  x = {.n_files = 0};
    ch_ckpt_metadata m;
    const char      *problem;
    char            *memory, *base;
    ch_status        rc = get_fields(message, &x);

    if (rc == CH_OK)
        rc = check_format(x.number[FORMAT]);
    if (rc == CH_OK && x.n_files > CH_CKPT_MAX_FILES)
        rc = ch__fail(
            CH_DATA_LOSS,
            "metadata of a checkpoint: the number of data files is %zu, want at most %d",
            x.n_files, CH_CKPT_MAX_FILES);
    if (rc != CH_OK)
        return rc;
    memory = ch__calloc(1, x.n_files * sizeof(int64_t) + ch__wire_bytes(x.base) + 1);
    if (memory == NULL)
        return ch__fail_memory("metadata of a checkpoint");
    base = memory + x.n_files * sizeof(int64_t);
    x.file_bytes = (void *)memory;
    rc = get_fields(message, &x);
    if (ch__wire_bytes(x.base) > 0)
        memcpy(base, x.base.at, ch__wire_bytes(x.base));
    m = (ch_ckpt_metadata){.format = (int)x.number[FORMAT],
                           .id = x.number[ID],
                           .time = (int64_t)x.number[TIME],
                           .step = (int64_t)x.number[STEP],
                           .n_files = (int)x.n_files,
                           .file_bytes = x.file_bytes,
                           .base_id = x.number[BASE_ID],
                           .base = ch__wire_bytes(x.base) > 0 ? base : NULL,
                           .memory = memory};
    problem = rc == CH_OK ? check(&m) : NULL;
    if (problem != NULL)
        rc = ch__fail(CH_DATA_LOSS, "metadata of a checkpoint: %s", problem);
    if (rc == CH_OK)
        *out = m;
    else
        ch__free(memory);
    return rc;
}
