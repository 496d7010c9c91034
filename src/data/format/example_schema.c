/* data/format/example_schema.c -- creates example schemas: checks the features and builds
 * tables.
 *
 * A ch_example_schema has the features, a hash table of their names, and a buffer with the
 * default values of optional features. The stage `parse_examples` (data/examples.c) creates it;
 * data/format/example.c uses it. The features may come from a decoded dataset, so they are
 * untrusted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/example_schema.h"

#include <string.h>

#include "base/fault.h"
#include "tensor/print.h"

enum { NAME_BYTES = 4096 }; /* longest name of a feature */

/* ---- checks ---- */

static ch_status check_name(const ch_feature *f, int i)
{
    if (f->name == NULL || f->name[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "parse_examples: feature %d has no name", i);
    if (strlen(f->name) > NAME_BYTES)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: the name of feature %d has %zu bytes, want at most %d",
                        i, strlen(f->name), NAME_BYTES);
    if (f->dtype < 0 || f->dtype >= CH_DTYPE_COUNT)
        return ch__fail(CH_INVALID_ARGUMENT, "parse_examples: feature \"%s\": invalid dtype %d",
                        f->name, (int)f->dtype);
    return CH_OK;
}

/* Returns the number of values of the shape in *count. If the first size is -1, returns that of
 * a row. */
static ch_status check_shape(const ch_feature *f, int64_t *count)
{
    ch_shape s = f->shape;
    bool     varies = s.rank > 0 && s.rank <= CH_MAX_RANK && s.dim[0] == -1;
    int64_t  bytes;

    if (varies)
        s.dim[0] = 1;
    if (ch__tensor_size(f->dtype, s, count, &bytes) != CH_OK || (varies && *count == 0))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: feature \"%s\": invalid shape %s; want sizes of 0 or "
                        "more, or a first size of -1 and others of 1 or more",
                        f->name, ch__label(f->dtype, f->shape).text);
    return CH_OK;
}

static ch_status check_missing(const ch_feature *f)
{
    if (!f->optional || f->dtype == CH_STR || ch__dtype_holds(f->dtype, f->missing))
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "parse_examples: feature \"%s\": %s cannot represent its default %.17g "
                    "(`missing`)",
                    f->name, ch_dtype_name(f->dtype), f->missing);
}

/* ---- defaults ---- */

static size_t round_up(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

static void release_defaults(ch_buffer *b)
{
    ch__free(b);
}

/* Returns true if the schema stores values for a missing feature. A feature with a first size
 * of -1 has no rows then. */
static bool has_default(const ch_feature *f)
{
    return f->optional && !(f->shape.rank > 0 && f->shape.dim[0] == -1);
}

/* Returns the bytes of all default values, including the contents of strings, in *out. Returns
 * false if they are too many. */
static bool measure_defaults(const ch_example_schema *s, const ch_feature *feature, size_t *out)
{
    size_t total = 0, bytes;

    for (int i = 0; i < s->n; i++) {
        const ch_feature *f = &feature[i];

        if (!has_default(f))
            continue;
        /* Each number is below 2^63 (see check_shape), so an overflow of the sum is
         * detected. */
        bytes = round_up((size_t)s->feature[i].count * s->feature[i].bytes);
        if (f->dtype == CH_STR && f->missing_text != NULL)
            bytes += round_up(strlen(f->missing_text));
        if (__builtin_add_overflow(total, bytes, &total) || total > PTRDIFF_MAX - CH_ALIGN)
            return false;
    }
    *out = total;
    return true;
}

/* Writes the default values of a feature at `at`. Returns their end, rounded up. */
static char *fill_default(ch_example_feature *to, const ch_feature *f, char *at)
{
    char  *end = at + round_up((size_t)to->count * to->bytes);
    ch_str text = {end, f->missing_text != NULL ? strlen(f->missing_text) : 0};

    to->part.data = at;
    for (int64_t i = 0; i < to->count; i++, at += to->bytes)
        if (f->dtype == CH_STR)
            *(ch_str *)(void *)at = text;
        else
            ch__store(f->dtype, at, f->missing);
    if (f->dtype == CH_STR && text.size > 0)
        memcpy(end, f->missing_text, text.size);
    return end + (f->dtype == CH_STR ? round_up(text.size) : 0);
}

/* Limit of the default values. An untrusted description of a few bytes must not exhaust the
 * memory. */
static const size_t most_defaults = (size_t)16 << 20;

static ch_status make_defaults(ch_example_schema *s, const ch_feature *feature)
{
    size_t bytes, head = round_up(sizeof(ch_buffer));

    if (!measure_defaults(s, feature, &bytes) || bytes > most_defaults)
        return ch__fail(CH_RESOURCE_EXHAUSTED,
                        "parse_examples: the defaults of optional features take more than %zu "
                        "MiB; a first size of -1 needs no default",
                        most_defaults >> 20);
    if (bytes == 0)
        return CH_OK;
    s->defaults = ch__malloc(head + bytes);
    if (s->defaults == NULL)
        return ch__fail_memory("values of missing features");
    char *at = (char *)s->defaults + head;
    memset(s->defaults, 0, sizeof(ch_buffer));
    atomic_init(&s->defaults->refs, 1);
    s->defaults->data = at;
    s->defaults->bytes = bytes;
    s->defaults->release = release_defaults;
    for (int i = 0; i < s->n; i++)
        if (has_default(&feature[i]))
            at = fill_default(&s->feature[i], &feature[i], at);
    return CH_OK;
}

/* ---- making ---- */

static ch_status add_feature(ch_example_schema *s, int i, const ch_feature *f)
{
    ch_example_feature *to = &s->feature[i];
    ch_status           rc = check_name(f, i);

    if (rc == CH_OK)
        rc = check_shape(f, &to->count);
    if (rc == CH_OK)
        rc = check_missing(f);
    if (rc != CH_OK)
        return rc;
    if (ch__names_find(&s->names, f->name, strlen(f->name)) >= 0)
        return ch__fail(CH_INVALID_ARGUMENT, "parse_examples: feature \"%s\" is given twice",
                        f->name);
    if (!ch__names_put(&s->names, &s->arena, i, f->name))
        return ch__fail_memory("schema of examples");
    to->name = s->names.name[i].text;
    to->part = (ch_part){.dtype = f->dtype, .shape = f->shape};
    to->bytes = ch_dtype_bytes(f->dtype);
    to->varies = f->shape.rank > 0 && f->shape.dim[0] == -1;
    to->optional = f->optional;
    s->spec[i] = (ch_tensor_spec){to->name, f->dtype, f->shape};
    return CH_OK;
}

static ch_status make_room(ch_example_schema *s, int n)
{
    s->n = n;
    s->feature = ch__arena_alloc(&s->arena, (size_t)n * sizeof(*s->feature));
    s->spec = ch__arena_alloc(&s->arena, (size_t)n * sizeof(*s->spec));
    if (s->feature == NULL || s->spec == NULL || !ch__names_new(n, &s->arena, &s->names))
        return ch__fail_memory("schema of examples");
    return CH_OK;
}

ch_status ch__example_schema_new(int n, const ch_feature *feature, ch_example_schema **out)
{
    if (n < 1 || feature == NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: number of features (got %d, want 1 or more)", n);
    ch_example_schema *s = ch__calloc(1, sizeof(*s));
    if (s == NULL)
        return ch__fail_memory("schema of examples");
    ch_status rc = make_room(s, n);
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = add_feature(s, i, &feature[i]);
    if (rc == CH_OK)
        rc = make_defaults(s, feature);
    if (rc != CH_OK) {
        ch__example_schema_free(s);
        return rc;
    }
    *out = s;
    return CH_OK;
}

void ch__example_schema_free(ch_example_schema *s)
{
    if (s == NULL)
        return;
    if (s->defaults != NULL)
        ch__buffer_unref(s->defaults);
    ch__arena_drop(&s->arena);
    ch__free(s);
}

int ch__example_schema_spec(const ch_example_schema *s, const ch_tensor_spec **out)
{
    *out = s->spec;
    return s->n;
}
