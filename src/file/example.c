/* file/example.c -- builds and encodes tf.train.Example messages (EX-1).
 *
 * The message, in protobuf; each field is a tag, a length and its contents:
 *
 *     Example   1: Features
 *     Features  1: entry, for each feature
 *     entry     1: name   2: Feature
 *     Feature   1: BytesList, 2: FloatList or 3: Int64List
 *     list      1: values; a field for each bytes value, a packed field for all numbers
 *
 * A ch_example holds its features sorted by name. ch_example_set encodes a feature at once, so
 * ch_example_encode only concatenates the encoded features. Users and file/record_writer.c are
 * the callers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/bytes_builder.h"
#include "base/fault.h"
#include "base/mem.h"
#include "cohort/file.h"
#include "tensor/tensor.h"

/* Tags of the length-delimited fields 1 to 3. */
enum { TAG_1 = 1 << 3 | 2, TAG_2 = 2 << 3 | 2, TAG_3 = 3 << 3 | 2 };

typedef enum list_kind { BYTES_LIST = TAG_1, FLOAT_LIST = TAG_2, INT64_LIST = TAG_3 } list_kind;

/* The largest message that protobuf accepts. */
static const size_t max_bytes = INT32_MAX;

typedef struct feature {
    char            *name;
    ch_bytes_builder field; /* the encoded entry of Features, with its tag and length */
} feature;

struct ch_example {
    feature         *feature; /* sorted by name */
    int              n, cap;
    ch_bytes_builder message; /* result of the last ch_example_encode */
};

/* Makes n bytes the contents of the builder, for the caller to fill, and returns their address.
 * Returns NULL if memory is exhausted; the builder keeps its contents then. */
static unsigned char *replace_contents(ch_bytes_builder *b, size_t n)
{
    ch_bytes_builder before = *b;
    char            *at;

    ch__bytes_builder_clear(b);
    at = ch__bytes_builder_reserve(b, n);
    if (at == NULL)
        *b = before;
    return (unsigned char *)at;
}

ch_status ch_example_new(ch_example **out)
{
    ch_example *e;
    ch_status   rc = ch__check_not_null("example", "out", out, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    e = ch__calloc(1, sizeof(*e));
    if (e == NULL)
        return ch__fail_memory("example");
    *out = e;
    return CH_OK;
}

void ch_example_clear(ch_example *e)
{
    if (e == NULL)
        return;
    for (int i = 0; i < e->n; i++) {
        ch__free(e->feature[i].name);
        ch__bytes_builder_drop(&e->feature[i].field);
    }
    e->n = 0;
}

void ch_example_free(ch_example *e)
{
    if (e == NULL)
        return;
    ch_example_clear(e);
    ch__free(e->feature);
    ch__bytes_builder_drop(&e->message);
    ch__free(e);
}

/* ---- wire format ---- */

/* Returns the size of a field with n bytes of contents, including tag and length. */
static size_t field_bytes(size_t n)
{
    return 1 + ch__varint_bytes(n) + n;
}

static unsigned char *put_head(unsigned char *at, int tag, size_t n)
{
    *at++ = (unsigned char)tag;
    return ch__put_varint(at, n);
}

static unsigned char *put_field(unsigned char *at, int tag, const void *data, size_t n)
{
    at = put_head(at, tag, n);
    if (n > 0)
        memcpy(at, data, n);
    return at + n;
}

/* ---- values of a tensor ---- */

static list_kind kind_of(ch_dtype dtype)
{
    if (dtype == CH_STR || dtype == CH_U8)
        return BYTES_LIST;
    return ch_dtype_is_float(dtype) ? FLOAT_LIST : INT64_LIST;
}

#define CASE_INT(code, type)                                                                   \
    case code:                                                                                 \
        return (uint64_t)(int64_t)((const type *)data)[i]

/* Returns element i of an integer tensor, converted to int64 and then to uint64, as a varint
 * encodes it. */
static uint64_t int_at(ch_dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
        CASE_INT(CH_I8, int8_t);
        CASE_INT(CH_I16, int16_t);
        CASE_INT(CH_I32, int32_t);
        CASE_INT(CH_U16, uint16_t);
        CASE_INT(CH_U32, uint32_t);
        CASE_INT(CH_BOOL, uint8_t);
    default:
        return ((const uint64_t *)data)[i];
    }
}

/* Returns the size of all elements as varints, in bytes. */
static size_t ints_bytes(const ch_tensor *t)
{
    size_t n = 0;

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        n += ch__varint_bytes(int_at(t->dtype, t->data, i));
    return n;
}

/* Returns the encoded size of the list for a tensor, without the list's own tag and length. */
static size_t list_bytes(const ch_tensor *t)
{
    const ch_str *s = (const ch_str *)(const void *)t->data;
    size_t        count = (size_t)ch_tensor_count(t), n = 0;

    if (t->dtype == CH_U8)
        return field_bytes(count);
    if (count == 0)
        return 0;
    if (t->dtype != CH_STR)
        return field_bytes(kind_of(t->dtype) == FLOAT_LIST ? 4 * count : ints_bytes(t));
    for (size_t i = 0; i < count; i++)
        n += field_bytes(s[i].size);
    return n;
}

static unsigned char *put_floats(unsigned char *at, const ch_tensor *t)
{
    size_t count = (size_t)ch_tensor_count(t), size = ch_dtype_bytes(t->dtype);

    at = put_head(at, TAG_1, 4 * count);
    for (size_t i = 0; i < count; i++) {
        float    x = (float)ch__load(t->dtype, t->data + i * size);
        uint32_t bits;

        memcpy(&bits, &x, sizeof(bits));
        at = ch__put_le(at, bits, 4);
    }
    return at;
}

static unsigned char *put_ints(unsigned char *at, const ch_tensor *t)
{
    at = put_head(at, TAG_1, ints_bytes(t));
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        at = ch__put_varint(at, int_at(t->dtype, t->data, i));
    return at;
}

static unsigned char *put_list(unsigned char *at, const ch_tensor *t)
{
    const ch_str *s = (const ch_str *)(const void *)t->data;
    int64_t       count = ch_tensor_count(t);

    if (t->dtype == CH_U8)
        return put_field(at, TAG_1, t->data, (size_t)count);
    if (count == 0)
        return at;
    if (t->dtype == CH_F32 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
        return put_field(at, TAG_1, t->data, 4 * (size_t)count);
    if (kind_of(t->dtype) == FLOAT_LIST)
        return put_floats(at, t);
    if (t->dtype != CH_STR)
        return put_ints(at, t);
    for (int64_t i = 0; i < count; i++)
        at = put_field(at, TAG_1, s[i].data, s[i].size);
    return at;
}

/* ---- features ---- */

/* Returns the index of the feature, or the index at which it must be inserted (*found is
 * false). */
static int find(const ch_example *e, const char *name, bool *found)
{
    int low = 0, high = e->n;

    *found = false;
    while (low < high && !*found) {
        int middle = (low + high) / 2, order = strcmp(name, e->feature[middle].name);

        *found = order == 0;
        if (order <= 0)
            high = middle;
        else
            low = middle + 1;
    }
    return high;
}

/* Encodes the feature as a field of Features. On failure the feature is not changed. */
static ch_status encode_feature(feature *f, const ch_tensor *t)
{
    size_t name = strlen(f->name), list = list_bytes(t), value = field_bytes(list);
    size_t entry = field_bytes(name) + field_bytes(value), all = field_bytes(entry);

    if (all > max_bytes)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "example: feature \"%s\" has %zu bytes; protobuf allows at most %zu",
                        f->name, all, max_bytes);
    unsigned char *at = replace_contents(&f->field, all);
    if (at == NULL)
        return ch__fail_memory("example");
    at = put_head(at, TAG_1, entry);
    at = put_field(at, TAG_1, f->name, name);
    at = put_head(at, TAG_2, value);
    at = put_head(at, (int)kind_of(t->dtype), list);
    put_list(at, t);
    return CH_OK;
}

/* Sets the feature, or adds it. On failure the example is not changed. */
static ch_status set_feature(ch_example *e, const char *name, const ch_tensor *t)
{
    feature   added = {0};
    bool      found;
    int       at = find(e, name, &found);
    ch_status rc;

    if (found)
        return encode_feature(&e->feature[at], t);
    if (!ch__grow((void **)&e->feature, &e->cap, e->n + 1, sizeof(*e->feature)) ||
        (added.name = ch__strdup(name)) == NULL)
        return ch__fail_memory("example");
    rc = encode_feature(&added, t);
    if (rc != CH_OK) {
        ch__free(added.name);
        return rc;
    }
    memmove(&e->feature[at + 1], &e->feature[at], (size_t)(e->n - at) * sizeof(added));
    e->feature[at] = added;
    e->n++;
    return CH_OK;
}

static ch_status check_feature(const char *name, const ch_tensor *t)
{
    if (name == NULL || t == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "example: a feature needs a name and a tensor");
    for (int64_t i = 0; t->dtype == CH_U64 && i < ch_tensor_count(t); i++)
        if (((const uint64_t *)(const void *)t->data)[i] > INT64_MAX)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "example: feature \"%s\": element %lld is above the largest int64",
                            name, (long long)i);
    return CH_OK;
}

ch_status ch_example_set(ch_example *e, const char *name, ch_tensor *t)
{
    ch_tensor *contiguous = NULL;
    ch_status  rc = ch__check_not_null("example", "the example", e, NULL, NULL);

    if (rc == CH_OK && t != NULL)
        rc = ch_tensor_contiguous(t, &contiguous);
    if (rc == CH_OK)
        rc = check_feature(name, contiguous);
    if (rc == CH_OK)
        rc = set_feature(e, name, contiguous);
    ch_tensor_unref(contiguous);
    return rc;
}

ch_status ch_example_encode(ch_example *e, ch_str *out)
{
    size_t         features = 0, all;
    unsigned char *at;
    ch_status      rc = ch__check_not_null("example", "the example", e, "out", out);

    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < e->n; i++)
        features += e->feature[i].field.n;
    all = field_bytes(features);
    if (all > max_bytes)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "example: the message has %zu bytes; protobuf allows at most %zu", all,
                        max_bytes);
    at = replace_contents(&e->message, all);
    if (at == NULL)
        return ch__fail_memory("example");
    at = put_head(at, TAG_1, features);
    for (int i = 0; i < e->n; i++) {
        const ch_bytes_builder *field = &e->feature[i].field;

        memcpy(at, field->at, field->n);
        at += field->n;
    }
    *out = (ch_str){e->message.at, all};
    return CH_OK;
}
