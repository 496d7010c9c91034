/* data/codec.c -- encodes and decodes datasets (proto/dataset.proto).
 *
 * `writer` collects the packed stages of a dataset; `reader` holds the stages decoded so far.
 * The coordinator encodes datasets for its workers, which decode them (job/worker/stream.c).
 *
 * Invariants:
 *   1. A stage follows all stages that it refers to, so it can be created when it is read. A
 *      stage that several stages refer to is written once.
 *   2. Decoding creates each stage with ch__dataset_new, and `infer` checks the attributes. So
 *      untrusted bytes result in a valid dataset or in an error.
 *   3. Messages use at most 16 MiB plus twice the size of the input.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/pbwire.h"
#include "data/position.h"
#include "data/stages.h"

enum { FORMAT = 1, MOST_STAGES = 1 << 16 };

/* ---- writing ---- */

typedef struct writer {
    ch_arena             arena;
    int                  n, cap;
    const ch_dataset   **seen; /* n stages in the order of the message */
    int                  cap_bytes;
    ProtobufCBinaryData *stage; /* n packed stages */
    /* Hash table from the address of a stage to 1 + its index in `seen`; 0: the bucket is free.
     * The size is a power of two. */
    size_t n_buckets;
    int   *bucket;
} writer;

/* Returns the bucket of the stage, or the free bucket for it. */
static size_t bucket_of(const writer *w, const ch_dataset *d)
{
    uint64_t hash = (uint64_t)(uintptr_t)d * 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */
    size_t   at = (size_t)(hash >> 32) & (w->n_buckets - 1);

    while (w->bucket[at] != 0 && w->seen[w->bucket[at] - 1] != d)
        at = (at + 1) & (w->n_buckets - 1);
    return at;
}

/* Returns the index of a stage that is written already; -1: it is not. */
static int index_of(const writer *w, const ch_dataset *d)
{
    return w->n_buckets > 0 ? w->bucket[bucket_of(w, d)] - 1 : -1;
}

/* Makes room for another stage, so that the table stays half empty. Returns false if memory is
 * exhausted. */
static bool reserve_bucket(writer *w)
{
    size_t n = w->n_buckets > 0 ? 2 * w->n_buckets : 64;
    int   *bucket;

    if (2 * ((size_t)w->n + 1) <= w->n_buckets)
        return true;
    bucket = ch__calloc(n, sizeof(*bucket));
    if (bucket == NULL)
        return false;
    ch__free(w->bucket);
    w->bucket = bucket;
    w->n_buckets = n;
    for (int i = 0; i < w->n; i++)
        w->bucket[bucket_of(w, w->seen[i])] = i + 1;
    return true;
}

static ch_status write_tensor(ch_arena *a, const char *name, const ch_tensor *t,
                              Cohort__Part **out)
{
    return ch__part_encode(a, &(ch_part){.dtype = t->dtype, .shape = t->shape, .data = t->data},
                           name, out);
}

static ch_status write_data(ch_arena *a, const ch_dataset *d, Cohort__Stage *m)
{
    int n = d->data != NULL ? ch_tuple_count(d->data) : 0;

    m->data = ch__arena_alloc(a, ((size_t)n + 1) * sizeof(*m->data));
    if (m->data == NULL)
        return ch__fail_memory("encoding a dataset");
    for (int i = 0; i < n; i++) {
        ch_status rc = write_tensor(a, ch_tuple_name(d->data, i),
                                    ch_value_at(ch_tuple_at(d->data, i), 0), &m->data[i]);

        if (rc != CH_OK)
            return rc;
        m->n_data++;
    }
    return CH_OK;
}

/* Fills in the message of a stage. The stages that it refers to must be written already. The
 * arena owns the memory of the message. */
static ch_status fill_stage(writer *w, ch_arena *a, const ch_dataset *d, Cohort__Stage *m)
{
    m->name = ch__arena_strdup(a, d->stage->name);
    m->version = (uint32_t)d->stage->version;
    m->inputs = ch__arena_alloc(a, ((size_t)d->n_in + 1) * sizeof(*m->inputs));
    if (m->name == NULL || m->inputs == NULL)
        return ch__fail_memory("encoding a dataset");
    for (int i = 0; i < d->n_in; i++)
        m->inputs[m->n_inputs++] = (uint32_t)index_of(w, d->in[i]);
    m->body = d->body != NULL ? 1 + (uint32_t)index_of(w, d->body) : 0;
    m->element = d->element != NULL ? 1 + (uint32_t)index_of(w, d->element) : 0;
    return write_data(a, d, m);
}

static ch_status pack_stage(const ch_dataset *d, Cohort__Stage *m, ProtobufCBinaryData *out)
{
    void     *attrs = NULL, *graph = NULL, *bytes = NULL;
    ch_status rc = CH_OK;

    if (d->attrs != NULL)
        rc = ch__protobuf_pack(d->attrs, &attrs, &m->attrs.len);
    if (rc == CH_OK && d->graph != NULL)
        rc = ch_graph_encode(d->graph, &graph, &m->graph.len);
    m->attrs.data = attrs;
    m->graph.data = graph;
    if (rc == CH_OK)
        rc = ch__protobuf_pack(&m->base, &bytes, &out->len);
    out->data = bytes;
    ch__free(attrs);
    ch_bytes_free(graph);
    return rc;
}

static ch_status write_stage(writer *w, const ch_dataset *d)
{
    Cohort__Stage m;
    ch_arena      a = {0};
    ch_status     rc;

    if (d->call.map != NULL || d->call.filter != NULL || d->call.generator.next != NULL)
        return ch__fail(
            CH_UNIMPLEMENTED,
            "encoding a dataset: stage %s calls a C function of this program, which "
            "cannot be encoded; %s",
            d->stage->name,
            d->call.generator.next != NULL
                ? "write its elements to files, and encode a dataset that reads the files"
                : "record it as a step");
    if (!reserve_bucket(w) ||
        !ch__grow((void **)&w->seen, &w->cap, w->n + 1, sizeof(*w->seen)) ||
        !ch__grow((void **)&w->stage, &w->cap_bytes, w->n + 1, sizeof(*w->stage)))
        return ch__fail_memory("encoding a dataset");
    cohort__stage__init(&m);
    rc = fill_stage(w, &a, d, &m);
    if (rc == CH_OK)
        rc = pack_stage(d, &m, &w->stage[w->n]);
    if (rc == CH_OK) {
        w->bucket[bucket_of(w, d)] = w->n + 1;
        w->seen[w->n++] = d;
    }
    ch__arena_drop(&a);
    return rc;
}

/* Writes the stages that `d` refers to, then `d`; each stage once. The depth is limited
 * (data/data.h). */
static ch_status write_tree(writer *w, const ch_dataset *d)
{
    ch_status rc = CH_OK;

    if (index_of(w, d) >= 0)
        return CH_OK;
    for (int i = 0; i < d->n_in && rc == CH_OK; i++)
        rc = write_tree(w, d->in[i]);
    if (rc == CH_OK && d->element != NULL)
        rc = write_tree(w, d->element);
    if (rc == CH_OK && d->body != NULL)
        rc = write_tree(w, d->body);
    return rc == CH_OK ? write_stage(w, d) : rc;
}

ch_status ch_dataset_encode(const ch_dataset *d, void **bytes, size_t *n)
{
    Cohort__Pipeline m = COHORT__PIPELINE__INIT;
    writer           w = {0};
    ch_status        rc;

    if (d == NULL)
        return ch__fail_earlier(
            "encoding a dataset: the dataset is NULL, because an earlier call failed");
    rc = ch__check_not_null("encoding a dataset", "bytes", bytes, "n", n);
    if (rc != CH_OK)
        return rc;
    rc = write_tree(&w, d);
    m.format = FORMAT;
    m.n_stages = (size_t)w.n;
    m.stages = w.stage;
    if (rc == CH_OK)
        rc = ch__protobuf_pack(&m.base, bytes, n);
    for (int i = 0; i < w.n; i++)
        ch__free(w.stage[i].data);
    ch__free(w.stage);
    ch__free(w.seen);
    ch__free(w.bucket);
    return rc;
}

/* ---- reading ---- */

typedef struct reader {
    int          n, cap;
    ch_dataset **made;       /* n stages; referenced */
    size_t       bytes_left; /* bytes that further stages may use */
} reader;

/* Returns the bytes of a stage and its components. They are limited, because a few bytes of
 * input that name a stage as an input copy all its components and their names. */
static size_t bytes_of(const ch_dataset *d)
{
    size_t bytes = sizeof(*d) + (size_t)d->n_parts * (sizeof(*d->spec) + sizeof(*d->name));

    for (int i = 0; i < d->n_parts; i++)
        bytes += d->name[i] != NULL ? strlen(d->name[i]) : 0;
    return bytes;
}

static ch_status add_made(reader *r, ch_dataset *d)
{
    size_t bytes = bytes_of(d);

    r->made[r->n++] = d;
    if (bytes > r->bytes_left)
        return ch__fail(CH_RESOURCE_EXHAUSTED,
                        "stage %d, %s: the components of all stages take too much memory",
                        r->n - 1, d->stage->name);
    r->bytes_left -= bytes;
    return CH_OK;
}

static const ch_stage *stage_named(const char *name)
{
    for (const ch_stage *const *s = ch__stages(); *s != NULL; s++)
        if (strcmp((*s)->name, name) == 0)
            return *s;
    return NULL;
}

/* Returns a reference to stage i; NULL if the stage is not decoded yet. */
static ch_dataset *stage_at(const reader *r, uint32_t i)
{
    return i < (uint32_t)r->n ? ch_dataset_ref(r->made[i]) : NULL;
}

static ch_status read_inputs(const reader *r, const ch_stage *stage, const Cohort__Stage *m,
                             ch_dataset **in)
{
    if (stage->n_in >= 0 ? m->n_inputs != (size_t)stage->n_in : m->n_inputs < 1)
        return ch__fail(CH_INVALID_ARGUMENT, "stage %d, %s: wrong number of inputs (got %zu)",
                        r->n, stage->name, m->n_inputs);
    for (size_t i = 0; i < m->n_inputs; i++)
        if (m->inputs[i] >= (uint32_t)r->n)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "stage %d, %s: its input %u does not come before it", r->n,
                            stage->name, m->inputs[i]);
    if (m->body > (uint32_t)r->n || m->element > (uint32_t)r->n)
        return ch__fail(CH_INVALID_ARGUMENT, "stage %d, %s: its body does not come before it",
                        r->n, stage->name);
    for (size_t i = 0; i < m->n_inputs; i++)
        in[i] = stage_at(r, m->inputs[i]);
    return CH_OK;
}

static ch_status read_data(const Cohort__Stage *m, ch_tuple **out)
{
    ch_element     *e = NULL;
    ch_tensor_spec *name;
    ch_status       rc;

    if (m->n_data == 0)
        return CH_OK;
    rc = ch__parts_decode(m->n_data, m->data, &e);
    if (rc != CH_OK)
        return rc;
    name = ch__calloc(m->n_data, sizeof(*name));
    if (name == NULL) {
        ch__element_free(e);
        return ch__fail_memory("decoding a dataset");
    }
    for (size_t i = 0; i < m->n_data; i++)
        name[i].name = m->data[i]->name[0] != '\0' ? m->data[i]->name : NULL;
    rc = ch__element_to_tuple(e, name, out);
    ch__free(name);
    return rc;
}

/* Sets the fields of `make` except the inputs. On error, the caller must still release
 * `make`. */
static ch_status read_parts(const reader *r, const ch_stage *stage, const Cohort__Stage *m,
                            ProtobufCMessage **attrs, ch_dataset_make *make)
{
    ch_status rc = CH_OK;

    make->body = m->body > 0 ? stage_at(r, m->body - 1) : NULL;
    make->element = m->element > 0 ? stage_at(r, m->element - 1) : NULL;
    if (stage->attrs != NULL) {
        rc = ch__protobuf_unpack(stage->attrs, m->attrs.data, m->attrs.len, attrs);
        if (rc != CH_OK)
            return ch__fail_at(rc, "stage %d, %s: its attributes", r->n, stage->name);
        make->attrs = *attrs;
    }
    rc = read_data(m, &make->data);
    if (rc == CH_OK && m->graph.len > 0)
        rc = ch_graph_decode(m->graph.data, m->graph.len, &make->graph);
    return rc;
}

static void release_make(ch_dataset_make *make)
{
    for (int i = 0; i < make->n_in; i++)
        ch_dataset_unref(make->in[i]);
    ch_dataset_unref(make->body);
    ch_dataset_unref(make->element);
    ch_tuple_unref(make->data);
    ch_graph_unref(make->graph);
}

static ch_status read_stage(reader *r, const Cohort__Stage *m)
{
    const ch_stage   *stage = stage_named(m->name);
    ch_dataset      **in = ch__calloc(m->n_inputs + 1, sizeof(ch_dataset *));
    ch_dataset_make   make = {.n_in = (int)m->n_inputs, .in = in};
    ProtobufCMessage *attrs = NULL;
    ch_dataset       *d = NULL;
    ch_status         rc;

    if (in == NULL)
        return ch__fail_memory("decoding a dataset");
    if (stage == NULL || m->version != (uint32_t)stage->version)
        rc = ch__fail(CH_UNIMPLEMENTED,
                      "stage %d: this library has no stage \"%.60s\" version %u", r->n, m->name,
                      m->version);
    else
        rc = read_inputs(r, stage, m, in);
    if (rc == CH_OK)
        rc = read_parts(r, stage, m, &attrs, &make);
    if (rc == CH_OK) {
        d = ch__dataset_new(stage, &make);
        rc = d == NULL ? ch__fail_earlier("stage %d", r->n) : CH_OK;
    } else {
        release_make(&make);
    }
    ch__protobuf_free(attrs);
    ch__free(in);
    return rc == CH_OK ? add_made(r, d) : rc;
}

/* Decodes the message of a stage, which may use at most `budget` bytes. */
static ch_status read_message(reader *r, ch_wire_span s, size_t budget)
{
    ProtobufCMessage *m = NULL;
    ch_status         rc;

    if (r->n == MOST_STAGES ||
        !ch__grow((void **)&r->made, &r->cap, r->n + 1, sizeof(ch_dataset *)))
        return ch__fail(CH_RESOURCE_EXHAUSTED, "more than %d stages, or memory is exhausted",
                        r->n);
    rc = ch__protobuf_unpack_within(&cohort__stage__descriptor, s.at, ch__wire_bytes(s), budget,
                                    &m);
    if (rc == CH_INVALID_ARGUMENT)
        return ch__fail(rc,
                        "stage %d: its message cannot be read, or would take "
                        "more than %zu bytes",
                        r->n, budget);
    if (rc == CH_OK)
        rc = read_stage(r, (const Cohort__Stage *)m);
    ch__protobuf_free(m);
    return rc;
}

static ch_status read_pipeline(reader *r, const void *bytes, size_t n)
{
    ch_wire       w = ch__wire(bytes, n);
    ch_wire_span  left = w.all;
    ch_wire_field f;
    uint64_t      format = 0;
    ch_status     rc = CH_OK;

    while (rc == CH_OK && ch__wire_next(&w, &left, &f)) {
        if (f.number == 1 && f.type == CH_WIRE_VARINT)
            (void)ch__wire_varint(&w, &f.data, &format);
        else if (f.number == 2 && f.type == CH_WIRE_BYTES)
            rc = read_message(r, f.data, ((size_t)16 << 20) + 2 * n);
    }
    if (rc == CH_OK && w.fault != NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "byte %zu: %s", (size_t)(w.fault_at - w.all.at),
                      w.fault);
    if (rc == CH_OK && format != FORMAT)
        rc = ch__fail(CH_UNIMPLEMENTED, "format %llu, this library reads %d",
                      (unsigned long long)format, FORMAT);
    if (rc == CH_OK && r->n == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "no stages");
    return rc;
}

ch_status ch_dataset_decode(const void *bytes, size_t n, ch_dataset **out)
{
    reader    r = {.bytes_left = ((size_t)16 << 20) + 2 * n};
    ch_status rc = ch__check_not_null("decoding a dataset", "bytes", bytes, "out", out);

    if (rc != CH_OK)
        return rc;
    rc = read_pipeline(&r, bytes, n);
    if (rc == CH_OK)
        *out = ch_dataset_ref(r.made[r.n - 1]);
    for (int i = 0; i < r.n; i++)
        ch_dataset_unref(r.made[i]);
    ch__free(r.made);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "decoding a dataset");
}
