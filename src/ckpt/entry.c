/* ckpt/entry.c -- encodes and decodes the messages and keys of an index (TBF-9 to TBF-12,
 * TBF-17, TBF-18).
 *
 * Messages are decoded with base/pbwire.h, because an index may have a million of them and is
 * untrusted. Unknown fields are skipped. ckpt/write.c encodes, ckpt/index.c decodes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/entry.h"

#include <string.h>

#include "base/bytes.h"

/* ---- dtypes ---- */

static const struct {
    ch_dtype dtype;
    int      number;
} dtypes[] = {{CH_F32, 1},  {CH_F64, 2},  {CH_I32, 3},  {CH_U8, 4},    {CH_I16, 5},
              {CH_I8, 6},   {CH_STR, 7},  {CH_I64, 9},  {CH_BOOL, 10}, {CH_BF16, 14},
              {CH_U16, 17}, {CH_F16, 19}, {CH_U32, 22}, {CH_U64, 23}};

int ch__ckpt_dtype_number(ch_dtype t)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
        if (dtypes[i].dtype == t)
            return dtypes[i].number;
    return 0;
}

ch_dtype ch__ckpt_dtype_of(int number)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
        if (dtypes[i].number == number)
            return dtypes[i].dtype;
    return CH_DTYPE_COUNT;
}

int ch__ckpt_dtype_bytes(int number)
{
    /* Of numbers 0 to 23; 0: not a number, or elements of no fixed size. */
    static const signed char bytes[] = {0, 4, 8, 4, 1, 2, 1,  0, 8, 8, 1, 1,
                                        1, 4, 2, 2, 2, 2, 16, 2, 0, 0, 4, 8};

    return number >= 0 && number < (int)sizeof(bytes) ? bytes[number] : 0;
}

const char *ch__ckpt_dtype_name(int number)
{
    static const char *const names[] = {
        [8] = "complex64",   [11] = "qint8",    [12] = "quint8",
        [13] = "qint32",     [15] = "qint16",   [16] = "quint16",
        [18] = "complex128", [20] = "resource", [21] = "variant"};
    ch_dtype t = ch__ckpt_dtype_of(number);

    if (t != CH_DTYPE_COUNT)
        return ch_dtype_name(t);
    return number > 0 && number < (int)(sizeof(names) / sizeof(*names)) && names[number] != NULL
               ? names[number]
               : "?";
}

/* ---- decoding helpers ---- */

/* Decodes the number of a varint field. Returns false and sets the fault if the field has
 * another type. */
static bool number_of(ch_wire *w, ch_wire_field *f, int64_t *out)
{
    uint64_t x;

    if (f->type != CH_WIRE_VARINT)
        return ch__wire_fault(w, f->data.at, "field of a wrong type");
    if (!ch__wire_varint(w, &f->data, &x))
        return false;
    *out = (int64_t)x;
    return true;
}

/* Returns whether the field is a submessage or text; otherwise sets the fault. */
static bool is_bytes(ch_wire *w, const ch_wire_field *f)
{
    return f->type == CH_WIRE_BYTES || ch__wire_fault(w, f->data.at, "field of a wrong type");
}

/* ---- header ---- */

void ch__ckpt_emit_header(ch_bytes_builder *b, int n_files)
{
    static const char version[] = {0x08, 1}; /* producer 1 */

    ch__wire_put_number(b, 1, (uint64_t)n_files);
    ch__wire_put_bytes(b, 3, version, sizeof(version));
}

/* Decodes field 3 and checks it against version 1, which this file implements (TBF-10). */
static void parse_version(ch_wire *w, ch_wire_span s, const char **refused)
{
    ch_wire_field f;
    int64_t       x;

    while (ch__wire_next(w, &s, &f)) {
        if (f.number == 3 && f.type == CH_WIRE_BYTES) { /* packed */
            int64_t bad;

            while (ch__wire_varints(w, &f.data, 1, &bad) == 1)
                if (bad == 1)
                    *refused = "the index excludes readers of version 1";
            continue;
        }
        if (f.number < 1 || f.number > 3)
            continue;
        if (!number_of(w, &f, &x))
            return;
        if (f.number == 1 && (int32_t)x < 0)
            *refused = "the producer's version is below 0";
        if (f.number == 2 && (int32_t)x > 1)
            *refused = "the index needs a reader of a version above 1";
        if (f.number == 3 && x == 1)
            *refused = "the index excludes readers of version 1";
    }
}

ch_status ch__ckpt_parse_header(ch_str message, ch_ckpt_header *out, const char **problem)
{
    ch_wire       w = ch__wire(message.data, message.size);
    ch_wire_span  s = w.all;
    ch_wire_field f;
    const char   *refused = NULL;
    int64_t       endian = 0;

    *out = (ch_ckpt_header){0};
    while (ch__wire_next(&w, &s, &f))
        if (f.number == 1)
            (void)number_of(&w, &f, &out->n_files);
        else if (f.number == 2)
            (void)number_of(&w, &f, &endian);
        else if (f.number == 3 && is_bytes(&w, &f))
            parse_version(&w, f.data, &refused);
    out->is_big_endian = endian == 1;
    *problem = w.fault != NULL                    ? w.fault
               : refused != NULL                  ? refused
               : endian != 0 && endian != 1       ? "unknown byte order"
               : out->n_files < 0                 ? "negative number of data files"
               : out->n_files > CH_CKPT_MAX_FILES ? "too many data files"
                                                  : NULL;
    return w.fault == NULL && refused != NULL ? CH_INVALID_ARGUMENT
           : *problem != NULL                 ? CH_DATA_LOSS
                                              : CH_OK;
}

/* ---- entries ---- */

static void emit_shape(ch_bytes_builder *b, ch_shape shape)
{
    size_t from = ch__wire_begin(b, 2);

    for (int k = 0; k < shape.rank; k++) {
        size_t dim = ch__wire_begin(b, 2);

        ch__wire_put_number(b, 1, (uint64_t)shape.dim[k]);
        ch__wire_end(b, dim);
    }
    ch__wire_end(b, from);
}

void ch__ckpt_emit_entry(ch_bytes_builder *b, const ch_ckpt_item *item, ch_shape shape)
{
    ch__wire_put_number(b, 1, (uint64_t)ch__ckpt_dtype_number(item->dtype));
    emit_shape(b, shape);
    ch__wire_put_number(b, 3, (uint64_t)item->file);
    ch__wire_put_number(b, 4, (uint64_t)item->offset);
    ch__wire_put_number(b, 5, (uint64_t)item->bytes);
    if (item->crc != 0)
        ch__wire_put_fixed32(b, 6, item->crc);
}

void ch__ckpt_emit_tensor(ch_bytes_builder *b, const ch_ckpt_item *item)
{
    ch__wire_put_number(b, 1, (uint64_t)ch__ckpt_dtype_number(item->dtype));
    emit_shape(b, item->whole);
}

void ch__ckpt_emit_slice(ch_bytes_builder *b, int rank, const ch_region *region)
{
    size_t from = ch__wire_begin(b, 7);

    for (int k = 0; k < rank; k++) {
        size_t extent = ch__wire_begin(b, 1);

        ch__wire_put_number(b, 1, (uint64_t)region->begin[k]);
        ch__bytes_builder_varint(b, 2 << 3 | CH_WIRE_VARINT); /* 0 too: it has no default */
        ch__bytes_builder_varint(b, (uint64_t)region->size[k]);
        ch__wire_end(b, extent);
    }
    ch__wire_end(b, from);
}

static void parse_dim(ch_wire *w, ch_wire_span s, int64_t *out)
{
    ch_wire_field f;

    *out = 0;
    while (ch__wire_next(w, &s, &f))
        if (f.number == 1)
            (void)number_of(w, &f, out);
    if (*out < 0)
        (void)ch__wire_fault(w, s.at, "negative size of an axis");
}

static void parse_shape(ch_wire *w, ch_wire_span s, ch_shape *out)
{
    ch_wire_field f;

    *out = (ch_shape){0};
    while (ch__wire_next(w, &s, &f)) {
        if (f.number == 3)
            (void)ch__wire_fault(w, f.data.at, "shape of unknown rank");
        if (f.number != 2 || !is_bytes(w, &f))
            continue;
        if (out->rank == CH_MAX_RANK)
            (void)ch__wire_fault(w, f.data.at, "shape of more than 8 axes");
        else
            parse_dim(w, f.data, &out->dim[out->rank++]);
    }
}

const char *ch__ckpt_parse_entry(ch_str message, ch_ckpt_message *out)
{
    ch_wire       w = ch__wire(message.data, message.size);
    ch_wire_span  s = w.all;
    ch_wire_field f;
    int64_t       dtype = 0;

    *out = (ch_ckpt_message){0};
    while (ch__wire_next(&w, &s, &f)) {
        switch (f.number) {
        case 1:
            (void)number_of(&w, &f, &dtype);
            break;
        case 2:
            if (is_bytes(&w, &f))
                parse_shape(&w, f.data, &out->shape);
            break;
        case 3:
            (void)number_of(&w, &f, &out->file);
            break;
        case 4:
            (void)number_of(&w, &f, &out->offset);
            break;
        case 5:
            (void)number_of(&w, &f, &out->bytes);
            break;
        case 6:
            if (f.type == CH_WIRE_32)
                out->crc = ch__le32(f.data.at);
            else
                (void)ch__wire_fault(&w, f.data.at, "checksum of a wrong type");
            break;
        case 7:
            out->n_slices += is_bytes(&w, &f);
            break;
        default:
            break;
        }
    }
    if (w.fault != NULL)
        return w.fault;
    if (dtype <= 0 || dtype > 255)
        return "invalid dtype";
    out->dtype = (int)dtype;
    return ch_shape_count(out->shape) < 0 ? "shape whose number of elements overflows" : NULL;
}

static void parse_extent(ch_wire *w, ch_wire_span s, ch_ckpt_extent *out)
{
    ch_wire_field f;

    *out = (ch_ckpt_extent){0, -1};
    while (ch__wire_next(w, &s, &f))
        if (f.number == 1)
            (void)number_of(w, &f, &out->begin);
        else if (f.number == 2 && number_of(w, &f, &out->size) && out->size < 0)
            (void)ch__wire_fault(w, s.at, "negative length of a slice");
    if (out->begin < 0 || (out->size < 0 && out->begin > 0))
        (void)ch__wire_fault(w, s.at, "invalid extent of a slice");
}

const char *ch__ckpt_parse_slices(ch_str message, int rank, ch_ckpt_slice_visit visit,
                                  void *arg)
{
    ch_wire        w = ch__wire(message.data, message.size);
    ch_wire_span   s = w.all;
    ch_wire_field  f, e;
    ch_ckpt_extent extent[CH_MAX_RANK];
    const char    *problem = NULL;

    while (problem == NULL && ch__wire_next(&w, &s, &f)) {
        int n = 0;

        if (f.number != 7)
            continue;
        while (ch__wire_next(&w, &f.data, &e)) {
            if (e.number != 1 || !is_bytes(&w, &e))
                continue;
            if (n == rank)
                return "slice with more axes than its tensor";
            parse_extent(&w, e.data, &extent[n++]);
        }
        if (w.fault != NULL)
            break;
        problem = n == rank ? visit(arg, extent) : "slice with fewer axes than its tensor";
    }
    return w.fault != NULL ? w.fault : problem;
}

/* ---- keys of slices ---- */

static void put_byte(ch_bytes_builder *b, int x)
{
    ch__bytes_builder_add(b, &(char){(char)x}, 1);
}

/* Appends a number: the count of its bytes, then the bytes, the highest first. */
static void emit_number_key(ch_bytes_builder *b, uint64_t x)
{
    int n = 0;

    while (n < 8 && x >> 8 * n > 0)
        n++;
    put_byte(b, n);
    while (n-- > 0)
        put_byte(b, (int)(x >> 8 * n & 0xff));
}

static void emit_string_key(ch_bytes_builder *b, const char *text)
{
    for (; *text != '\0'; text++) {
        put_byte(b, *text);
        if ((unsigned char)*text == 0xff)
            put_byte(b, 0);
    }
    put_byte(b, 0);
    put_byte(b, 1);
}

/* Returns the bytes of a signed key: the smallest n with -2^(7n - 1) <= x < 2^(7n - 1). */
static int signed_key_bytes(int64_t x)
{
    uint64_t magnitude = x < 0 ? ~(uint64_t)x : (uint64_t)x;
    int      n = 1;

    while (n < 10 && 7 * n - 1 < 64 && magnitude >> (7 * n - 1) > 0)
        n++;
    return n;
}

/* Writes the signed key of x to `text` and returns its bytes. */
static int signed_key(int64_t x, unsigned char text[10])
{
    int n = signed_key_bytes(x);

    for (int i = 0; i < n; i++) { /* byte i of n, the highest first */
        int shift = 8 * (n - 1 - i);

        text[i] = shift < 64 ? (unsigned char)((uint64_t)x >> shift) : x < 0 ? 0xff : 0;
    }
    text[0] ^= (unsigned char)(n >= 8 ? 0xff : 0xff << (8 - n));
    if (n > 8)
        text[1] ^= (unsigned char)(0xff << (16 - n));
    return n;
}

static void emit_signed_key(ch_bytes_builder *b, int64_t x)
{
    unsigned char text[10];
    int           n = signed_key(x, text);

    ch__bytes_builder_add(b, text, (size_t)n);
}

void ch__ckpt_emit_slice_key(ch_bytes_builder *b, const char *name, int rank,
                             const ch_region *region)
{
    emit_number_key(b, 0);
    emit_string_key(b, name);
    emit_number_key(b, (uint64_t)rank);
    for (int k = 0; k < rank; k++) {
        emit_signed_key(b, region->begin[k]);
        emit_signed_key(b, region->size[k]);
    }
}

static bool parse_number_key(ch_wire_span *s, uint64_t *out)
{
    int n;

    *out = 0;
    if (s->at == s->end || (n = *s->at++) > 8 || ch__wire_bytes(*s) < (size_t)n)
        return false;
    if (n > 0 && *s->at == 0)
        return false; /* not the shortest form: two keys would be equal */
    while (n-- > 0)
        *out = *out << 8 | *s->at++;
    return true;
}

/* Decodes a string without zero bytes. */
static bool parse_string_key(ch_wire_span *s, char *name)
{
    int n = 0;

    while (s->at < s->end) {
        uint8_t byte = *s->at++;

        if (byte == 0) {
            name[n] = '\0';
            return s->at < s->end && *s->at++ == 1;
        }
        if (byte == 0xff && (s->at == s->end || *s->at++ != 0))
            return false;
        if (n == CH_CKPT_MAX_NAME)
            return false;
        name[n++] = (char)byte;
    }
    return false;
}

static bool parse_signed_key(ch_wire_span *s, int64_t *out)
{
    unsigned char again[10] = {0};
    uint64_t      x;
    bool          is_negative;
    uint8_t       second;
    int           n = 0;

    if (s->at == s->end)
        return false;
    /* The top bits of a non-negative number are n ones, of a negative number n zeros. */
    is_negative = *s->at < 0x80;
    second = ch__wire_bytes(*s) > 1 ? s->at[1] : 0;
    for (unsigned bits = (unsigned)*s->at << 8 | second; n < 10; n++, bits <<= 1)
        if (((bits & 0x8000) == 0) != is_negative)
            break;
    if (ch__wire_bytes(*s) < (size_t)n)
        return false;
    x = is_negative ? UINT64_MAX : 0;
    for (int i = 0; i < n; i++) {
        uint8_t byte = s->at[i];

        if (i == 0)
            byte ^= (uint8_t)(n >= 8 ? 0xff : 0xff << (8 - n));
        if (i == 1 && n > 8)
            byte ^= (uint8_t)(0xff << (16 - n));
        x = x << 8 | byte;
    }
    s->at += n;
    *out = (int64_t)x;
    /* Only the shortest form of a number that fits is accepted. */
    return signed_key(*out, again) == n && memcmp(again, s->at - n, (size_t)n) == 0;
}

const char *ch__ckpt_parse_slice_key(ch_str key, char *name, int *rank,
                                     ch_ckpt_extent extent[CH_MAX_RANK])
{
    ch_wire      w = ch__wire(key.data, key.size);
    ch_wire_span s = w.all;
    uint64_t     zero, n;

    if (!parse_number_key(&s, &zero) || zero != 0 || !parse_string_key(&s, name) ||
        !parse_number_key(&s, &n) || n > CH_MAX_RANK)
        return "damaged key of a slice";
    for (uint64_t k = 0; k < n; k++) {
        if (!parse_signed_key(&s, &extent[k].begin) || !parse_signed_key(&s, &extent[k].size))
            return "damaged key of a slice";
        if (extent[k].begin < 0 || extent[k].size < -1 ||
            (extent[k].size == -1 && extent[k].begin > 0))
            return "invalid extent in the key of a slice";
    }
    *rank = (int)n;
    return s.at == s.end ? NULL : "damaged key of a slice";
}
