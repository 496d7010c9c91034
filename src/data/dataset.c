/* data/dataset.c -- datasets as descriptions: creation, release, printing.
 *
 * A ch_dataset is a stage of a description: a counted node with attributes, inputs and, for
 * some stages, a body. The public functions that create datasets are in the files of their
 * stages; all of them call ch__dataset_new. This file also sets and checks the specs of
 * elements for `infer`.
 *
 * Invariants:
 *   1. After ch__dataset_new a dataset does not change, except for `fingerprint` and
 *      `has_warned`.
 *   2. Depth and number of stages are limited, so functions may recurse over a tree.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/data.h"
#include "data/print.h"
#include "file/crc32c.h"
#include "tensor/print.h"

ch_dataset *ch_dataset_ref(ch_dataset *d)
{
    if (d != NULL)
        atomic_fetch_add_explicit(&d->refs, 1, memory_order_relaxed);
    return d;
}

static void drop_spec(ch_dataset *d)
{
    for (int i = 0; i < d->n_parts; i++)
        ch__free(d->name[i]);
    ch__free(d->name);
    ch__free(d->spec);
    d->spec = NULL;
    d->name = NULL;
    d->n_parts = 0;
}

/* Frees a stage and releases its references. Stages without references are added to `chain`. */
static void free_stage(ch_dataset *d, ch_dataset **chain);

/* Releases a reference. If it was the last, adds the stage to `chain`, so that freeing a deep
 * tree does not recurse. */
static void release(ch_dataset *d, ch_dataset **chain)
{
    if (d == NULL || atomic_fetch_sub_explicit(&d->refs, 1, memory_order_acq_rel) != 1)
        return;
    d->next_free = *chain;
    *chain = d;
}

static void call_lock_unref(ch_call_lock *t)
{
    if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&t->lock);
    ch__free(t);
}

/* Adds a reference to `t`, or creates a lock if `t` is NULL. Returns NULL if memory is
 * exhausted. */
static ch_call_lock *call_lock_ref(ch_call_lock *t)
{
    if (t != NULL) {
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
        return t;
    }
    t = ch__calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    atomic_init(&t->refs, 1);
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

static void free_stage(ch_dataset *d, ch_dataset **chain)
{
    for (int i = 0; i < d->n_in; i++)
        release(d->in[i], chain);
    release(d->body, chain);
    release(d->element, chain);
    ch_graph_unref(d->graph);
    ch_tuple_unref(d->data);
    ch__protobuf_free(d->attrs);
    call_lock_unref(d->call.call_lock);
    drop_spec(d);
    ch__free(d->in);
    ch__free(d);
}

void ch_dataset_unref(ch_dataset *d)
{
    ch_dataset *chain = NULL;

    release(d, &chain);
    while (chain != NULL) {
        ch_dataset *first = chain;

        chain = first->next_free;
        free_stage(first, &chain);
    }
}

/* ---- making ---- */

ch_status ch__dataset_fail(const ch_dataset *d, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)ch__failv(CH_INVALID_ARGUMENT, format, args);
    va_end(args);
    return ch__fail_at(CH_INVALID_ARGUMENT, "%s", d->stage->name);
}

ch_status ch__dataset_parts(ch_dataset *d, int n)
{
    drop_spec(d);
    if (n < 0 || n > CH_MAX_PARTS)
        return ch__dataset_fail(d, "number of components (got %d, want at most %d)", n,
                                CH_MAX_PARTS);
    d->spec = ch__calloc((size_t)n + 1, sizeof(*d->spec));
    d->name = ch__calloc((size_t)n + 1, sizeof(*d->name));
    if (d->spec == NULL || d->name == NULL)
        return ch__fail_memory(d->stage->name);
    d->n_parts = n;
    return CH_OK;
}

ch_status ch__dataset_set_part(ch_dataset *d, int i, const ch_tensor_spec *spec)
{
    ch_shape s = spec->shape;

    if ((unsigned)spec->dtype >= CH_DTYPE_COUNT || s.rank < 0 || s.rank > CH_MAX_RANK)
        return ch__dataset_fail(d, "component %d has an invalid dtype or rank", i);
    for (int k = 0; k < s.rank; k++)
        if (s.dim[k] < -1)
            return ch__dataset_fail(d, "component %d has size %lld, want -1 or more", i,
                                    (long long)s.dim[k]);
    d->spec[i] = (ch_tensor_spec){NULL, spec->dtype, ch_shape_make(s.rank, s.dim)};
    if (spec->name == NULL || spec->name[0] == '\0')
        return CH_OK;
    for (int k = 0; k < i; k++)
        if (d->spec[k].name != NULL && strcmp(d->spec[k].name, spec->name) == 0)
            return ch__dataset_fail(d, "two components are named \"%s\"", spec->name);
    d->spec[i].name = d->name[i] = ch__strdup(spec->name);
    return d->name[i] == NULL ? ch__fail_memory(d->stage->name) : CH_OK;
}

ch_status ch__dataset_set_parts(ch_dataset *d, int n, const ch_tensor_spec *spec)
{
    ch_status rc = ch__dataset_parts(d, n);

    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = ch__dataset_set_part(d, i, &spec[i]);
    return rc;
}

ch_status ch__dataset_like(ch_dataset *d, const ch_dataset *from)
{
    ch_status rc = ch__dataset_set_parts(d, from->n_parts, from->spec);

    d->same_rows = from->same_rows;
    d->cardinality = from->cardinality;
    return rc;
}

ch_status ch__dataset_widen(ch_dataset *d, const ch_dataset *other)
{
    if (other->n_parts != d->n_parts)
        return ch__dataset_fail(d, "inputs with %d and with %d components; want equal numbers",
                                d->n_parts, other->n_parts);
    for (int i = 0; i < d->n_parts; i++) {
        ch_shape *a = &d->spec[i].shape, b = other->spec[i].shape;

        if (d->spec[i].dtype != other->spec[i].dtype || a->rank != b.rank)
            return ch__dataset_fail(d, "component %d is %s in one input and %s in another", i,
                                    ch__label(d->spec[i].dtype, *a).text,
                                    ch__label(other->spec[i].dtype, b).text);
        for (int k = 0; k < a->rank; k++)
            a->dim[k] = a->dim[k] == b.dim[k] ? a->dim[k] : -1;
    }
    d->same_rows &= other->same_rows;
    return CH_OK;
}

/* Moves the inputs into `d`, copies the attributes, and computes the properties of the tree. If
 * an input is NULL, fails with the error that was recorded when that input was not made. */
static ch_status set_inputs(ch_dataset *d, const ch_dataset_make *m)
{
    bool complete = true;

    d->in = ch__calloc((size_t)m->n_in + 1, sizeof(ch_dataset *));
    for (int i = 0; d->in != NULL && i < m->n_in; i++) {
        d->in[i] = m->in[i];
        complete &= m->in[i] != NULL;
    }
    d->n_in = d->in != NULL ? m->n_in : 0;
    if (d->in == NULL)
        return ch__fail_memory(d->stage->name);
    if (!complete)
        return ch__fail_earlier("%s", d->stage->name);
    for (int i = 0; i < d->n_in; i++) {
        d->depth = d->in[i]->depth >= d->depth ? d->in[i]->depth + 1 : d->depth;
        d->shares_state |= d->in[i]->shares_state;
        d->skips_bad |= d->in[i]->skips_bad;
    }
    d->skips_bad |= d->body != NULL && d->body->skips_bad;
    if (d->body != NULL && d->body->depth >= d->depth)
        d->depth = d->body->depth + 1;
    if (d->depth > CH_MAX_DATASET_DEPTH)
        return ch__dataset_fail(d, "more than %d stages on top of each other",
                                CH_MAX_DATASET_DEPTH);
    d->n_stages = 1 + (d->body != NULL ? d->body->n_stages : 0);
    for (int i = 0; i < d->n_in && d->n_stages <= CH_MAX_DATASET_STAGES; i++)
        d->n_stages += d->in[i]->n_stages;
    if (d->n_stages > CH_MAX_DATASET_STAGES)
        return ch__dataset_fail(
            d, "more than %d stages; a stage that several stages read counts once for each",
            CH_MAX_DATASET_STAGES);
    if (d->stage->attrs != NULL)
        return ch__protobuf_copy(d->stage->attrs, m->attrs, &d->attrs);
    return CH_OK;
}

ch_status ch__infer_like_input(ch_dataset *d)
{
    return ch__dataset_like(d, d->in[0]);
}

/* Sets d->hash, an FNV-1a hash of the encoded description without data and C functions. Options
 * do not count, so a position can be restored with another number of threads. */
static ch_status set_hash(ch_dataset *d)
{
    void  *bytes = NULL;
    size_t n = 0;

    if (d->stage == &ch__stage_options) {
        d->hash = d->in[0]->hash;
        return CH_OK;
    }
    d->hash = ch__hash(CH_HASH_START, d->stage->name, strlen(d->stage->name));
    for (int i = 0; i < d->n_in; i++)
        d->hash = ch__hash(d->hash, &d->in[i]->hash, sizeof(d->hash));
    if (d->body != NULL)
        d->hash = ch__hash(d->hash, &d->body->hash, sizeof(d->hash));
    for (int i = 0; i < d->n_parts; i++) {
        const char     *dtype = ch_dtype_name(d->spec[i].dtype);
        const ch_shape *s = &d->spec[i].shape;

        d->hash = ch__hash(d->hash, dtype, strlen(dtype) + 1);
        d->hash = ch__hash(d->hash, s->dim, (size_t)s->rank * sizeof(s->dim[0]));
    }
    if (d->attrs != NULL) {
        ch_status rc = ch__protobuf_pack(d->attrs, &bytes, &n);

        if (rc != CH_OK)
            return rc;
        d->hash = ch__hash(d->hash, bytes, n);
        ch__free(bytes);
    }
    if (d->graph != NULL && ch_graph_encode(d->graph, &bytes, &n) == CH_OK) {
        d->hash = ch__hash(d->hash, bytes, n);
        ch_bytes_free(bytes);
    }
    return CH_OK;
}

/* Adds the contents of a tensor to a hash. */
static uint64_t hash_tensor(uint64_t h, const ch_tensor *t)
{
    const ch_str *s = ch_tensor_data(t);
    int64_t       n = ch_tensor_count(t);
    uint32_t      crc = 0;

    if (ch_tensor_dtype(t) != CH_STR)
        crc = ch__crc32c(crc, s, (size_t)n * ch_dtype_bytes(ch_tensor_dtype(t)));
    for (int64_t i = 0; ch_tensor_dtype(t) == CH_STR && i < n; i++) {
        crc = ch__crc32c(crc, &s[i].size, sizeof(s[i].size));
        crc = ch__crc32c(crc, s[i].data, s[i].size);
    }
    return ch__hash(h, &crc, sizeof(crc));
}

/* The result is stored, because computing it reads all data. Threads that compute it at the
 * same time store the same value. */
uint64_t ch__dataset_fingerprint(ch_dataset *d)
{
    uint64_t h = atomic_load_explicit(&d->fingerprint, memory_order_relaxed);

    if (h != 0)
        return h;
    if (d->stage == &ch__stage_options)
        return ch__dataset_fingerprint(d->in[0]);
    h = d->hash;
    for (int i = 0; d->data != NULL && i < ch_tuple_count(d->data); i++)
        h = hash_tensor(h, ch_value_at(ch_tuple_at(d->data, i), 0));
    for (int i = 0; i < d->n_in + (d->body != NULL); i++) {
        uint64_t in = ch__dataset_fingerprint(i < d->n_in ? d->in[i] : d->body);

        h = ch__hash(h, &in, sizeof(in));
    }
    atomic_store_explicit(&d->fingerprint, h, memory_order_relaxed);
    return h;
}

/* Releases everything that ch__dataset_new would own. */
static void drop_make(const ch_dataset_make *m)
{
    for (int i = 0; i < m->n_in; i++)
        ch_dataset_unref(m->in[i]);
    ch_dataset_unref(m->body);
    ch_dataset_unref(m->element);
    ch_graph_unref(m->graph);
    ch_tuple_unref(m->data);
}

static bool stage_is_unordered(const ch_dataset *d)
{
    return d->stage->is_unordered != NULL && d->stage->is_unordered(d);
}

/* Sets the options and is_unordered of the whole tree, so that no caller has to walk over
 * it. */
static void summarise(ch_dataset *d)
{
    d->options = ch__stage_options_of(d);
    d->is_unordered = stage_is_unordered(d) || (d->body != NULL && d->body->is_unordered);
    for (int i = 0; i < d->n_in; i++) {
        const ch_dataset_options *in = &d->in[i]->options;

        d->options.threads = d->options.threads != 0 ? d->options.threads : in->threads;
        d->options.shard = d->options.shard != 0 ? d->options.shard : in->shard;
        if (d->options.memory_bytes == 0)
            d->options.memory_bytes = in->memory_bytes;
        d->options.unordered |= in->unordered;
        d->is_unordered |= d->in[i]->is_unordered;
    }
}

/* Mark of the last error because of which a dataset was not made; 0: none. */
static _Thread_local uint64_t not_made;

/* Records that the last error prevented a dataset, and returns NULL. */
static ch_dataset *mark_not_made(void)
{
    not_made = ch__fail_mark();
    return NULL;
}

bool ch__dataset_was_not_made(void)
{
    return not_made != 0 && not_made == ch__fail_mark();
}

ch_dataset *ch__dataset_new(const ch_stage *stage, const ch_dataset_make *m)
{
    ch_dataset *d = m->rc == CH_OK ? ch__calloc(1, sizeof(*d)) : NULL;
    ch_status   rc;

    if (d == NULL) {
        if (m->rc == CH_OK)
            (void)ch__fail_memory(stage->name);
        drop_make(m);
        return mark_not_made();
    }
    atomic_init(&d->refs, 1);
    d->stage = stage;
    d->body = m->body;
    d->element = m->element;
    d->graph = m->graph;
    d->data = m->data;
    if (m->call != NULL) {
        d->call = *m->call;
        d->call.call_lock = call_lock_ref(m->call->call_lock);
    }
    d->cardinality = CH_UNKNOWN;
    rc = set_inputs(d, m);
    if (rc == CH_OK && m->call != NULL && d->call.call_lock == NULL)
        rc = ch__fail_memory(stage->name);
    if (rc == CH_OK)
        rc = stage->infer(d);
    if (rc == CH_OK)
        rc = set_hash(d);
    if (rc == CH_OK) {
        summarise(d);
        return d;
    }
    if (d->in == NULL)
        for (int i = 0; i < m->n_in; i++)
            ch_dataset_unref(m->in[i]);
    ch_dataset_unref(d);
    return mark_not_made();
}

/* ---- properties and printing ---- */

int64_t ch_dataset_cardinality(const ch_dataset *d)
{
    return d != NULL ? d->cardinality : CH_UNKNOWN;
}

int ch_dataset_element_spec(const ch_dataset *d, const ch_tensor_spec **out)
{
    if (out != NULL)
        *out = d != NULL ? d->spec : NULL;
    return d != NULL ? d->n_parts : 0;
}

static void print_spec(const ch_dataset *d, ch_text *t)
{
    char text[256];

    ch__text_add(t, "  (");
    for (int i = 0; i < d->n_parts; i++) {
        ch_tensor_spec_print(&d->spec[i], text, sizeof(text));
        ch__text_add(t, "%s%s", i > 0 ? ", " : "", text);
    }
    ch__text_add(t, ")");
    if (d->cardinality >= 0)
        ch__text_add(t, " x %lld", (long long)d->cardinality);
    else
        ch__text_add(t, d->cardinality == CH_INFINITE ? " without end" : " x ?");
}

/* Recurses at most CH_MAX_DATASET_DEPTH levels. */
static void print_tree(const ch_dataset *d, int indent, const char *mark, ch_text *t)
{
    ch__text_add(t, "%*s%s%s", indent, "", mark, d->stage->name);
    if (d->attrs != NULL)
        ch__protobuf_print(d->attrs, t);
    print_spec(d, t);
    ch__text_add(t, "\n");
    if (d->body != NULL)
        print_tree(d->body, indent + 4, "each: ", t);
    if (mark[0] == '-') /* sets its inputs apart from the next item of the list */
        indent += 2;
    for (int i = 0; i < d->n_in; i++)
        print_tree(d->in[i], d->n_in > 1 ? indent + 2 : indent, d->n_in > 1 ? "- " : "", t);
}

int ch_dataset_print(const ch_dataset *d, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    if (d != NULL)
        print_tree(d, 0, "", &t);
    else
        ch__text_add(&t, "NULL");
    return ch__text_length(&t);
}

/* ---- specs of elements ---- */

static ch_status encode_part(ch_arena *a, const ch_tensor_spec *spec, Cohort__Spec **out)
{
    Cohort__Spec *m = ch__arena_alloc(a, sizeof(*m));
    int           rank = spec->shape.rank;

    if (m == NULL)
        return ch__fail_memory("element spec");
    if (rank < 0 || rank > CH_MAX_RANK)
        return ch__fail(CH_INVALID_ARGUMENT, "element spec: rank %d, want 0 to %d", rank,
                        CH_MAX_RANK);
    cohort__spec__init(m);
    m->dtype = ch__arena_strdup(a, ch_dtype_name(spec->dtype));
    m->shape = ch__arena_copy(a, spec->shape.dim, sizeof(spec->shape.dim));
    m->n_shape = (size_t)rank;
    if (spec->name != NULL)
        m->name = ch__arena_strdup(a, spec->name);
    if (m->dtype == NULL || m->shape == NULL || m->name == NULL)
        return ch__fail_memory("element spec");
    *out = m;
    return CH_OK;
}

ch_status ch__spec_encode(ch_arena *a, int n, const ch_tensor_spec *spec,
                          Cohort__ElementSpec **out)
{
    Cohort__ElementSpec *m = ch__arena_alloc(a, sizeof(*m));

    if (n <= 0 || n > CH_MAX_PARTS || spec == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "element spec: %d components, want 1 to %d", n,
                        CH_MAX_PARTS);
    if (m != NULL) {
        cohort__element_spec__init(m);
        m->parts = ch__arena_alloc(a, (size_t)n * sizeof(*m->parts));
    }
    if (m == NULL || m->parts == NULL)
        return ch__fail_memory("element spec");
    for (int i = 0; i < n; i++) {
        ch_status rc = encode_part(a, &spec[i], &m->parts[i]);

        if (rc != CH_OK)
            return rc;
        m->n_parts++;
    }
    *out = m;
    return CH_OK;
}

ch_status ch__dataset_set_spec(ch_dataset *d, const Cohort__ElementSpec *spec)
{
    ch_status rc = ch__dataset_parts(d, spec->n_parts > CH_MAX_PARTS ? -1 : (int)spec->n_parts);

    for (int i = 0; i < d->n_parts && rc == CH_OK; i++) {
        const Cohort__Spec *m = spec->parts[i];
        ch_tensor_spec      part_spec = {.name = m->name};

        if (ch_dtype_parse(m->dtype, &part_spec.dtype) != CH_OK || m->n_shape > CH_MAX_RANK)
            return ch__dataset_fail(d, "component %d: invalid type \"%.20s\" or rank %zu", i,
                                    m->dtype, m->n_shape);
        part_spec.shape = ch_shape_make((int)m->n_shape, m->shape);
        rc = ch__dataset_set_part(d, i, &part_spec);
    }
    d->same_rows = spec->same_rows;
    return rc;
}

/* Returns true if the shape matches the spec, in which -1 stands for any size. */
static bool shape_fits(ch_shape is, ch_shape spec)
{
    bool same = is.rank == spec.rank;

    for (int i = 0; i < spec.rank && same; i++)
        same = spec.dim[i] == -1 || spec.dim[i] == is.dim[i];
    return same;
}

ch_status ch__dataset_check(const ch_dataset *d, const ch_element *e)
{
    char want[200];

    if (e->n != d->n_parts)
        return ch__dataset_fail(d, "an element has %d components, want %d", e->n, d->n_parts);
    for (int i = 0; i < e->n; i++) {
        const ch_part *p = &e->part[i];

        if (p->dtype == d->spec[i].dtype && shape_fits(p->shape, d->spec[i].shape))
            continue;
        ch_tensor_spec_print(&d->spec[i], want, sizeof(want));
        return ch__dataset_fail(d, "component %d of an element is %s, want %s", i,
                                ch__label(p->dtype, p->shape).text, want);
    }
    return CH_OK;
}
