/* fuzz/example.c -- ch__example_parse, with arbitrary bytes.
 *
 * The model is protobuf-c. If both parsers accept a message, the values must be equal. If
 * protobuf-c accepts a message and packs it again, ch__example_parse must accept the result.
 * The mutators change nested messages and correct the lengths around them (example/mutate.c).
 *
 * covers: src/data/format/example.c src/base/pbwire.c src/base/pbwire.h
 * longest: 1000
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/example.h"
#include "base/mem.h"
#include "element.h"
#include "example/mutate.h"
#include "model.pb-c.h"

/* ---- schemas ---- */

enum { N_SCHEMAS = 4, N_FEATURES = 4 };

/* Schema 0 is compared with the model. Its features have the same kinds as the lists. */
static const ch_feature feature[N_SCHEMAS][N_FEATURES] = {
    {{.name = "i", .dtype = CH_I64, .shape = {1, {-1}}, .optional = true},
     {.name = "f", .dtype = CH_F32, .shape = {1, {-1}}, .optional = true},
     {.name = "s", .dtype = CH_STR, .shape = {1, {-1}}, .optional = true},
     {.name = "u", .dtype = CH_STR, .shape = {1, {-1}}, .optional = true}},
    {{.name = "i", .dtype = CH_I32, .shape = {1, {-1}}, .optional = true},
     {.name = "f", .dtype = CH_F64, .shape = {2, {-1, 2}}, .optional = true},
     {.name = "s", .dtype = CH_U8, .shape = {1, {-1}}, .optional = true},
     {.name = "u", .dtype = CH_U8, .shape = {1, {4}}, .optional = true, .missing = 255}},
    {{.name = "i", .dtype = CH_BOOL},
     {.name = "f", .dtype = CH_F16},
     {.name = "s", .dtype = CH_STR},
     {.name = "u", .dtype = CH_I16, .optional = true, .missing = -1}},
    {{.name = "i", .dtype = CH_F64, .shape = {1, {2}}, .optional = true, .missing = 0.5},
     {.name = "f", .dtype = CH_F32, .shape = {1, {2}}, .optional = true},
     {.name = "s", .dtype = CH_STR, .shape = {1, {2}}, .optional = true, .missing_text = "no"},
     {.name = "u", .dtype = CH_U64, .shape = {1, {-1}}}},
};

static ch_example_schema *schema[N_SCHEMAS];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    for (int i = 0; i < N_SCHEMAS; i++)
        MUST(ch__example_schema_new(N_FEATURES, feature[i], &schema[i]) == CH_OK);
    ch_device_current(); /* creates the devices */
    (void)argc, (void)argv;
    return 0;
}

/* ---- records ---- */

static void release_block(ch_buffer *b)
{
    free(b->data);
    ch__free(b);
}

/* Returns an element that holds the record in its own memory, or else in a block. */
static ch_element *record_of(const void *data, size_t size, bool is_own)
{
    ch_buffer  *block = ch__calloc(1, sizeof(*block));
    ch_element *e = ch__element_new(1, 1, sizeof(ch_str)), *copy = NULL;

    MUST(block != NULL && e != NULL);
    atomic_init(&block->refs, 1);
    block->data = fuzz_alone(data, size);
    block->release = release_block;
    *(ch_str *)e->room = (ch_str){block->data, size};
    e->part[0] = (ch_part){.dtype = CH_STR, .shape = ch_shape_scalar(), .data = e->room};
    e->owner[0] = block;
    if (!is_own)
        return e;
    MUST(ch__element_copy(e, &copy) == CH_OK);
    ch__element_free(e);
    return copy;
}

static ch_status parse(int which, const void *data, size_t size, bool is_own, ch_element **out)
{
    const ch_tensor_spec *spec;
    ch_status             rc;

    *out = NULL;
    rc = ch__example_parse(schema[which], record_of(data, size, is_own), out);
    MUST(rc == CH_OK || rc == CH_DATA_LOSS || rc == CH_INVALID_ARGUMENT);
    MUST((*out != NULL) == (rc == CH_OK));
    if (rc == CH_OK)
        fuzz_check_element(*out, ch__example_schema_spec(schema[which], &spec), spec);
    return rc;
}

/* ---- the model ---- */

typedef Model__Feature model_feature;

static bool is_key(const Model__Entry *e, const char *name)
{
    const ProtobufCBinaryData *key = e->n_key > 0 ? &e->key[e->n_key - 1] : NULL;

    return key == NULL ? name[0] == '\0'
                       : key->len == strlen(name) && memcmp(key->data, name, key->len) == 0;
}

/* Returns the last feature of that name, or NULL. */
static const model_feature *model_find(const Model__Example *m, const char *name)
{
    const model_feature *found = NULL;

    for (size_t i = 0; i < m->n_features; i++)
        for (size_t k = 0; k < m->features[i]->n_feature; k++) {
            const Model__Entry *e = m->features[i]->feature[k];

            if (is_key(e, name))
                found = e->n_value > 0 ? e->value[e->n_value - 1] : NULL;
        }
    return found;
}

static int n_kinds(const model_feature *f)
{
    return f == NULL ? 0
                     : (f->n_bytes_list > 0) + (f->n_float_list > 0) + (f->n_int64_list > 0);
}

static int64_t check_bytes(const model_feature *f, const ch_part *p)
{
    const ch_str *s = p->data;
    int64_t       n = 0;

    for (size_t i = 0; i < f->n_bytes_list; i++)
        for (size_t k = 0; k < f->bytes_list[i]->n_value; k++, n++) {
            ProtobufCBinaryData want = f->bytes_list[i]->value[k];

            MUST(n < p->shape.dim[0] && s[n].size == want.len);
            MUST(want.len == 0 || memcmp(s[n].data, want.data, want.len) == 0);
        }
    return n;
}

static int64_t check_floats(const model_feature *f, const ch_part *p)
{
    const char *at = p->data;
    int64_t     n = 0;

    for (size_t i = 0; i < f->n_float_list; i++)
        for (size_t k = 0; k < f->float_list[i]->n_value; k++, n++, at += sizeof(float)) {
            MUST(n < p->shape.dim[0]);
            MUST(fuzz_same_bits(at, &f->float_list[i]->value[k], sizeof(float)));
        }
    return n;
}

/* Checks integers. A float feature accepts them too, rounded. */
static int64_t check_integers(const model_feature *f, const ch_part *p)
{
    int64_t n = 0;

    for (size_t i = 0; i < f->n_int64_list; i++)
        for (size_t k = 0; k < f->int64_list[i]->n_value; k++, n++) {
            int64_t want = f->int64_list[i]->value[k];

            MUST(n < p->shape.dim[0]);
            MUST(p->dtype == CH_F32 ? ((const float *)p->data)[n] == (float)want
                                    : ((const int64_t *)p->data)[n] == want);
        }
    return n;
}

static void check_part(const model_feature *f, const ch_part *p)
{
    int64_t n = 0;

    if (f != NULL)
        n = f->n_bytes_list > 0   ? check_bytes(f, p)
            : f->n_float_list > 0 ? check_floats(f, p)
                                  : check_integers(f, p);
    MUST(p->shape.dim[0] == n);
}

/* Returns true if the feature has no list, or a list of the kind that schema 0 expects. */
static bool fits(const model_feature *f, ch_dtype dtype)
{
    return n_kinds(f) == 0 || (dtype == CH_STR       ? f->n_bytes_list > 0
                               : f->n_float_list > 0 ? dtype == CH_F32
                                                     : f->n_int64_list > 0);
}

/* Checks that the element is equal to the model's message. Skips a Feature with several kinds
 * of lists, because the model does not keep their order. */
static void check_same(const Model__Example *m, ch_status rc, const ch_element *e)
{
    bool all_fit = true;

    for (int i = 0; i < N_FEATURES; i++) {
        const model_feature *f = model_find(m, feature[0][i].name);

        if (n_kinds(f) > 1)
            return;
        all_fit &= fits(f, feature[0][i].dtype);
    }
    MUST(rc == (all_fit ? CH_OK : CH_INVALID_ARGUMENT));
    for (int i = 0; i < N_FEATURES && all_fit; i++)
        check_part(model_find(m, feature[0][i].name), &e->part[i]);
}

static void drop_unknown(ProtobufCMessage *m)
{
    for (unsigned i = 0; i < m->n_unknown_fields; i++)
        free(m->unknown_fields[i].data);
    free(m->unknown_fields);
    m->unknown_fields = NULL;
    m->n_unknown_fields = 0;
}

static void drop_unknown_of_feature(model_feature *f)
{
    drop_unknown(&f->base);
    for (size_t i = 0; i < f->n_bytes_list; i++)
        drop_unknown(&f->bytes_list[i]->base);
    for (size_t i = 0; i < f->n_float_list; i++)
        drop_unknown(&f->float_list[i]->base);
    for (size_t i = 0; i < f->n_int64_list; i++)
        drop_unknown(&f->int64_list[i]->base);
}

static void drop_all_unknown(Model__Example *m)
{
    drop_unknown(&m->base);
    for (size_t i = 0; i < m->n_features; i++) {
        drop_unknown(&m->features[i]->base);
        for (size_t k = 0; k < m->features[i]->n_feature; k++) {
            Model__Entry *e = m->features[i]->feature[k];

            drop_unknown(&e->base);
            for (size_t j = 0; j < e->n_value; j++)
                drop_unknown_of_feature(e->value[j]);
        }
    }
}

static void check_model(const uint8_t *data, size_t size)
{
    Model__Example *m = model__example__unpack(NULL, size, data);
    ch_element     *e = NULL;
    ch_status       rc;

    if (m == NULL)
        return;
    rc = parse(0, data, size, false, &e);
    if (rc == CH_OK)
        check_same(m, rc, e);
    ch__element_free(e);

    drop_all_unknown(m);
    size_t   n = model__example__get_packed_size(m);
    uint8_t *again = malloc(n + 1);
    MUST(model__example__pack(m, again) == n);
    rc = parse(0, again, n, true, &e);
    check_same(m, rc, e);
    ch__element_free(e);
    free(again);
    model__example__free_unpacked(m, NULL);
}

/* Repeats the call with an allocation that fails. */
static void check_memory(const uint8_t *data, size_t size, unsigned which)
{
    ch_element *record = record_of(data, size, which % 2), *e = NULL;

    ch__mem_fail_at(1 + which / 2 % 2);
    if (ch__example_parse(schema[which / 4 % N_SCHEMAS], record, &e) == CH_OK)
        ch__element_free(e);
    ch__mem_fail_at(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t  live = ch__mem_live();
    unsigned h = fuzz_hash(data, size);

    for (int i = 0; i < N_SCHEMAS; i++) {
        ch_element *e = NULL;

        (void)parse(i, data, size, h % 8 == 0, &e);
        ch__element_free(e);
    }
    if (h % 2 == 0)
        check_model(data, size);
    if (h % 4 == 1)
        check_memory(data, size, h / 4);
    MUST(ch__mem_live() == live);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    dice   d = {seed};
    size_t n = 0;

    switch (roll(&d, 8)) {
    case 0:
        break;
    case 1:
        n = mutate_grow(&d, data, size, max_size);
        break;
    default:
        n = mutate_within(&d, data, size, max_size);
    }
    return n > 0 ? n : LLVMFuzzerMutate(data, size, max_size);
}
