/* data/format/example.c -- parses tf.train.Example records: features become the parts of an
 * element.
 *
 * A `parse` holds the state of a call; it has a `list` for each feature of the schema. There
 * are three steps:
 *   1. Find: a single pass over the message records the value of each feature of the schema
 *      (EX-3: features come in any order; of equal names the last counts).
 *   2. Measure: determines the kind of each list, its number of values and their location.
 *   3. Fill: creates the element with the measured room. Each part points into the record or is
 *      decoded into the room.
 *
 * The values of a list come in runs: a packed field is a run of any number of values; an
 * unpacked field or a string is a run of a single value. All known writers pack, so a list is
 * usually a single run. Lists of several runs are decoded run by run.
 *
 * The stage `parse_examples` (data/examples.c) calls this file. Records are untrusted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/example.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "base/fault.h"
#include "base/pbwire.h"
#include "data/format/example_schema.h"
#include "data/format/number.h"
#include "data/format/show.h"

/* The kind of a feature's list: the field number in the message Feature, which has one of
 * them. */
typedef enum list_kind { NO_LIST, BYTES_LIST, FLOAT_LIST, INT64_LIST } list_kind;

static const char *const kind_name[] = {"no", "bytes", "float", "int64"};

/* The values of a feature in a record. */
typedef struct list {
    /* The fields of the message Feature, from the first that counts; value.at NULL: the record
     * does not have the feature. */
    ch_wire_span value;
    list_kind    kind;
    int64_t      count; /* values */
    int64_t      n_runs;
    ch_wire_span first;       /* the first run */
    bool         is_in_place; /* the part points at the values in the record */
    size_t       room;        /* bytes for decoded values; 0 if `is_in_place` */
} list;

enum { FEW = 32 }; /* up to this number of features, the lists are on the stack */

typedef struct parse {
    const ch_example_schema *schema;
    ch_wire                  wire;
    list                    *list; /* schema->n */
    list                     few[FEW];
} parse;

static ch_status fail_damaged(const parse *p)
{
    return ch__fail(CH_DATA_LOSS,
                    "parse_examples: byte %zu of %zu: %s: not a valid tf.train.Example",
                    (size_t)(p->wire.fault_at - p->wire.all.at), ch__wire_bytes(p->wire.all),
                    p->wire.fault);
}

/* ---- find ---- */

/* Reads an entry of the map of features: key = 1, value = 2. */
static void read_entry(ch_wire *w, ch_wire_span entry, ch_wire_span *key, ch_wire_span *value)
{
    ch_wire_span  rest = entry;
    ch_wire_field f;

    if (ch__wire_field(&rest, 1, key) && ch__wire_field(&rest, 2, value) && rest.at == rest.end)
        return;
    *key = *value = (ch_wire_span){entry.end, entry.end};
    while (ch__wire_next(w, &entry, &f))
        if (f.type == CH_WIRE_BYTES && f.number == 1)
            *key = f.data;
        else if (f.type == CH_WIRE_BYTES && f.number == 2)
            *value = f.data;
}

/* Returns the next entry of the map in *entry; false at the end or on a fault. Example.features
 * = 1, Features.feature = 1. */
static bool next_entry(ch_wire *w, ch_wire_span *example, ch_wire_span *features,
                       ch_wire_span *entry)
{
    ch_wire_field f;

    if (ch__wire_field(features, 1, entry))
        return true;
    for (;;) {
        while (ch__wire_next(w, features, &f))
            if (f.type == CH_WIRE_BYTES && f.number == 1) {
                *entry = f.data;
                return true;
            }
        if (w->fault != NULL || !ch__wire_next(w, example, &f))
            return false;
        if (f.type == CH_WIRE_BYTES && f.number == 1)
            *features = f.data;
    }
}

static void find_features(parse *p)
{
    ch_wire_span example = p->wire.all, features = {0}, entry, key, value;

    while (next_entry(&p->wire, &example, &features, &entry)) {
        read_entry(&p->wire, entry, &key, &value);
        int i = ch__names_find(&p->schema->names, key.at, ch__wire_bytes(key));
        if (i >= 0)
            p->list[i].value = value;
    }
}

/* ---- measure ---- */

/* Sets the kind of a list to that of the last field. Moves l->value to the first of the fields
 * of this kind that directly precede it, because protobuf merges them. */
static void read_kind(ch_wire *w, list *l)
{
    ch_wire_span  rest = l->value, start = l->value;
    ch_wire_field f;

    l->kind = NO_LIST;
    for (; ch__wire_next(w, &rest, &f); start = rest)
        if (f.type == CH_WIRE_BYTES && f.number <= INT64_LIST && f.number != l->kind) {
            l->kind = (list_kind)f.number;
            l->value = start;
        }
}

/* An iteration over the runs of a list. */
typedef struct run_walk {
    list_kind    kind;
    ch_wire_span value, values; /* the rest of the Feature, and of its present list */
} run_walk;

static run_walk walk_of(const list *l)
{
    return (run_walk){l->kind, l->value, {0}};
}

/* Returns true if the field holds values. In BytesList, FloatList and Int64List the field is
 * value = 1, packed or not. */
static bool is_run(const ch_wire_field *f, list_kind kind)
{
    return f->number == 1 &&
           (f->type == CH_WIRE_BYTES || (f->type == CH_WIRE_32 && kind == FLOAT_LIST) ||
            (f->type == CH_WIRE_VARINT && kind == INT64_LIST));
}

static bool next_run(ch_wire *w, run_walk *at, ch_wire_span *run)
{
    ch_wire_field f;

    for (;;) {
        while (ch__wire_next(w, &at->values, &f))
            if (is_run(&f, at->kind)) {
                *run = f.data;
                return true;
            }
        if (w->fault != NULL || !ch__wire_next(w, &at->value, &f))
            return false;
        if (f.type == CH_WIRE_BYTES && f.number == at->kind)
            at->values = f.data;
    }
}

/* Counts the varints of a run: each ends with a byte below 128. */
static int64_t count_varints(ch_wire *w, ch_wire_span run)
{
    int64_t n = 0;

    for (const uint8_t *at = run.at; at < run.end; at++)
        n += *at < 0x80;
    if (run.at < run.end && run.end[-1] >= 0x80)
        ch__wire_fault(w, run.end - 1, "a number that does not end");
    return n;
}

static int64_t count_values(ch_wire *w, list_kind kind, ch_wire_span run)
{
    if (kind == BYTES_LIST)
        return 1;
    if (kind == INT64_LIST)
        return count_varints(w, run);
    if (ch__wire_bytes(run) % sizeof(float) != 0)
        ch__wire_fault(w, run.at, "a list of floats with a size that is not a multiple of 4");
    return (int64_t)(ch__wire_bytes(run) / sizeof(float));
}

/* Reads a Feature with a single list of a single run, the common case. Returns false if the
 * Feature is different. */
static bool read_one_run(list *l)
{
    ch_wire_span rest = l->value, values;
    int          kind = rest.at < rest.end ? *rest.at >> 3 : NO_LIST;

    if (kind == NO_LIST || kind > INT64_LIST || !ch__wire_field(&rest, kind, &values))
        return false;
    l->kind = (list_kind)kind;
    l->n_runs = 1;
    return rest.at == rest.end && ch__wire_field(&values, 1, &l->first) &&
           values.at == values.end;
}

static void measure_list(ch_wire *w, list *l)
{
    run_walk     at;
    ch_wire_span run;

    if (read_one_run(l)) {
        l->count = count_values(w, l->kind, l->first);
        return;
    }
    read_kind(w, l);
    at = walk_of(l);
    l->count = l->n_runs = 0;
    while (next_run(w, &at, &run)) {
        l->count += count_values(w, l->kind, run);
        if (l->n_runs++ == 0)
            l->first = run;
    }
}

/* Returns true if values of the list kind can be converted to the dtype. */
static bool accepts_kind(ch_dtype dtype, list_kind kind)
{
    switch (kind) {
    case BYTES_LIST:
        return dtype == CH_STR || dtype == CH_U8;
    case FLOAT_LIST:
        return ch_dtype_is_float(dtype);
    default:
        return dtype != CH_STR;
    }
}

/* Returns true if the part is the bytes of a string as u8. */
static bool is_raw_bytes(const ch_example_feature *f, const list *l)
{
    return l->kind == BYTES_LIST && f->part.dtype == CH_U8;
}

/* Lists up to 16 names of the record in the message. The names are untrusted bytes. */
static ch_status fail_missing(parse *p, const ch_example_feature *f)
{
    char         names[400];
    ch_text      o = ch__text(names, sizeof(names));
    ch_wire_span example = p->wire.all, features = {0}, entry, key, value;
    int          n = 0;

    for (; n < 16 && next_entry(&p->wire, &example, &features, &entry); n++) {
        read_entry(&p->wire, entry, &key, &value);
        ch__text_add(&o, n > 0 ? ", " : "");
        ch__text_bytes(&o, (ch_str){(const char *)key.at, ch__wire_bytes(key)}, 40);
    }
    return ch__fail(CH_INVALID_ARGUMENT,
                    "parse_examples: feature \"%s\" is missing or empty, and not optional; the "
                    "example has %s",
                    f->name, n > 0 ? names : "no features");
}

static ch_status fail_unfit(const ch_example_feature *f, const list *l)
{
    ch_label wanted = ch__label(f->part.dtype, f->part.shape);

    if (!accepts_kind(f->part.dtype, l->kind))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: feature \"%s\" is a list of %s, which cannot be "
                        "converted to %s",
                        f->name, kind_name[l->kind], wanted.text);
    if (is_raw_bytes(f, l) && l->n_runs != 1)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: feature \"%s\" has %" PRId64 " byte strings; %s needs "
                        "exactly 1",
                        f->name, l->n_runs, wanted.text);
    return ch__fail(CH_INVALID_ARGUMENT,
                    "parse_examples: feature \"%s\" has %" PRId64 " %s value%s; %s needs "
                    "%s%" PRId64,
                    f->name, l->count, kind_name[l->kind], l->count == 1 ? "" : "s",
                    wanted.text, f->varies ? "a multiple of " : "", f->count);
}

/* Measures the list of feature i, and checks it against the schema. */
static ch_status measure_feature(parse *p, int i)
{
    const ch_example_feature *f = &p->schema->feature[i];
    list                     *l = &p->list[i];

    if (l->value.at != NULL)
        measure_list(&p->wire, l);
    if (p->wire.fault != NULL)
        return fail_damaged(p);
    if (l->kind == NO_LIST)
        return f->optional ? CH_OK : fail_missing(p, f);
    if (!accepts_kind(f->part.dtype, l->kind))
        return fail_unfit(f, l);
    if (is_raw_bytes(f, l)) {
        if (l->n_runs != 1)
            return fail_unfit(f, l);
        l->count = (int64_t)ch__wire_bytes(l->first);
    }
    if (f->varies ? l->count % f->count != 0 : l->count != f->count)
        return fail_unfit(f, l);
    return CH_OK;
}

/* Returns true if the part can point at the values in the record. */
static bool can_be_in_place(const ch_example_feature *f, const list *l)
{
    return l->n_runs == 1 &&
           ((l->kind == FLOAT_LIST && f->part.dtype == CH_F32) || is_raw_bytes(f, l));
}

/* Requirements of the element besides its parts. */
typedef struct needs {
    size_t room;     /* bytes */
    bool   record;   /* some part points into the record */
    bool   defaults; /* some part points at its default */
} needs;

static ch_status measure(parse *p, needs *out)
{
    for (int i = 0; i < p->schema->n; i++) {
        const ch_example_feature *f = &p->schema->feature[i];
        list                     *l = &p->list[i];
        ch_status                 rc = measure_feature(p, i);

        if (rc != CH_OK)
            return rc;
        l->is_in_place = can_be_in_place(f, l);
        if (l->kind != NO_LIST && !l->is_in_place)
            l->room = ((size_t)l->count * f->bytes + 15) & ~(size_t)15;
        out->room += l->room; /* in total at most 8 times the bytes of the record */
        out->record |= l->is_in_place || (l->kind == BYTES_LIST && l->count > 0);
        out->defaults |= l->kind == NO_LIST && f->part.data != NULL;
    }
    return CH_OK;
}

/* ---- fill ---- */

static ch_status fail_range(const ch_example_feature *f, int64_t value)
{
    return ch__fail(CH_INVALID_ARGUMENT,
                    "parse_examples: feature \"%s\" has the value %" PRId64
                    ", which is out of range for %s",
                    f->name, value, ch_dtype_name(f->part.dtype));
}

/* Decodes a run of varints. Only i64 values are decoded in place; for other dtypes they are
 * decoded 64 at a time and converted. */
static ch_status fill_integers(ch_wire *w, const ch_example_feature *f, ch_wire_span run,
                               char **to)
{
    bool    is_plain = f->part.dtype == CH_I64;
    int64_t few[64];

    while (run.at < run.end && w->fault == NULL) {
        int n = is_plain ? ch__wire_varints(w, &run, INT_MAX, (int64_t *)(void *)*to)
                         : ch__wire_varints(w, &run, 64, few);
        int held = is_plain ? n : ch__integers_store(f->part.dtype, n, few, *to);
        if (held < n)
            return fail_range(f, few[held]);
        *to += (size_t)n * f->bytes;
    }
    return CH_OK;
}

static void fill_floats(const ch_example_feature *f, ch_wire_span run, char **to)
{
    float x;

    if (f->part.dtype == CH_F32) {
        memcpy(*to, run.at, ch__wire_bytes(run));
        *to += ch__wire_bytes(run);
        return;
    }
    for (; run.at < run.end; run.at += sizeof(x), *to += f->bytes) {
        memcpy(&x, run.at, sizeof(x));
        ch__store(f->part.dtype, *to, x);
    }
}

static ch_status fill_run(ch_wire *w, const ch_example_feature *f, list_kind kind,
                          ch_wire_span run, char **to)
{
    if (kind == INT64_LIST)
        return fill_integers(w, f, run, to);
    if (kind == FLOAT_LIST) {
        fill_floats(f, run, to);
    } else {
        *(ch_str *)(void *)*to = (ch_str){(const char *)run.at, ch__wire_bytes(run)};
        *to += sizeof(ch_str);
    }
    return CH_OK;
}

/* Decodes the values of a list, run by run. */
static ch_status fill_list(ch_wire *w, const ch_example_feature *f, const list *l, char *to)
{
    run_walk     at = walk_of(l);
    ch_wire_span run;
    ch_status    rc = CH_OK;

    if (l->n_runs == 1)
        return fill_run(w, f, l->kind, l->first, &to);
    while (rc == CH_OK && next_run(w, &at, &run))
        rc = fill_run(w, f, l->kind, run, &to);
    return rc;
}

/* Fills in a part. Decoded values go to `room`. */
static ch_status fill_part(parse *p, int i, char *room, ch_part *part)
{
    const ch_example_feature *f = &p->schema->feature[i];
    const list               *l = &p->list[i];

    *part = f->part;
    if (f->varies)
        part->shape.dim[0] = l->kind == NO_LIST ? 0 : l->count / f->count;
    if (l->kind == NO_LIST)
        return CH_OK;
    part->data = l->is_in_place ? (const void *)l->first.at : room;
    if (l->is_in_place)
        return CH_OK;
    ch_status rc = fill_list(&p->wire, f, l, room);
    return rc == CH_OK && p->wire.fault != NULL ? fail_damaged(p) : rc;
}

static ch_status fill(parse *p, ch_element *e)
{
    char     *room = e->room;
    ch_status rc = CH_OK;

    for (int i = 0; i < p->schema->n && rc == CH_OK; i++) {
        rc = fill_part(p, i, room, &e->part[i]);
        room += p->list[i].room;
    }
    return rc;
}

/* ---- the element ---- */

/* Returns true if `data` lies in the record element itself. */
static bool is_inside(const ch_element *record, const char *data)
{
    return (uintptr_t)data - (uintptr_t)record < (uintptr_t)record->bytes;
}

/* Moves the ownership of the record's bytes to `e`: the owners of the record, or the record
 * itself, which is then NULL. Otherwise the caller must still free the record. */
static ch_status move_owners(ch_element **record, const char *data, ch_element *e)
{
    if (!is_inside(*record, data)) {
        for (int i = 0; i < (*record)->n_owners; i++) {
            e->owner[i] = (*record)->owner[i];
            (*record)->owner[i] = NULL;
        }
        return CH_OK;
    }
    e->owner[0] = ch__element_buffer(*record);
    *record = NULL;
    return e->owner[0] != NULL ? CH_OK : ch__fail_memory("parsed example");
}

/* Creates the new element in the memory of the record if the record points into a block. That
 * memory is already in the CPU cache, other memory would not be. Returns false if the record
 * does not point into a block, or if the new element does not fit. */
static bool reuse_record(ch_element **record, const char *data, int n, const needs *need,
                         ch_element **out)
{
    ch_buffer *block = (*record)->n_owners == 1 ? (*record)->owner[0] : NULL;

    if (block == NULL || !need->record || is_inside(*record, data))
        return false;
    *out = ch__element_remake(*record, n, 1 + need->defaults, need->room);
    if (*out == NULL)
        return false;
    (*out)->owner[0] = block;
    *record = NULL;
    return true;
}

/* Creates and fills the element. Its last owner is the buffer of defaults. On error, the caller
 * must free *out and *record if they are not NULL. */
static ch_status make_element(parse *p, const needs *need, ch_element **record,
                              ch_element **out)
{
    const char *data = (const char *)p->wire.all.at;
    int       n_owners = !need->record ? 0 : is_inside(*record, data) ? 1 : (*record)->n_owners;
    ch_status rc = CH_OK;

    if (!reuse_record(record, data, p->schema->n, need, out)) {
        *out = ch__element_new(p->schema->n, n_owners + need->defaults, need->room);
        if (*out == NULL)
            return ch__fail_memory("parsed example");
        if (need->record)
            rc = move_owners(record, data, *out);
    }
    if (rc == CH_OK && need->defaults)
        (*out)->owner[n_owners] = ch__buffer_ref(p->schema->defaults);
    return rc == CH_OK ? fill(p, *out) : rc;
}

/* ---- the parse ---- */

/* Returns the bytes of the record, which must be a string scalar. */
static ch_status open_record(const ch_element *record, ch_str *out)
{
    const ch_part *part = record->part;

    if (record->n != 1 || part->dtype != CH_STR || ch_shape_count(part->shape) != 1)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: the element has %d component%s, the first is %s; want "
                        "a single string",
                        record->n, record->n == 1 ? "" : "s",
                        record->n > 0 ? ch__label(part->dtype, part->shape).text : "none");
    memcpy(out, part->data, sizeof(*out));
    return CH_OK;
}

static ch_status run_parse(parse *p, ch_element **record, ch_element **out)
{
    needs     need = {0};
    ch_status rc;

    find_features(p);
    if (p->wire.fault != NULL)
        return fail_damaged(p);
    rc = measure(p, &need);
    return rc == CH_OK ? make_element(p, &need, record, out) : rc;
}

ch_status ch__example_parse(const ch_example_schema *s, ch_element *record, ch_element **out)
{
    parse     p;
    ch_str    bytes;
    ch_origin origin = record->origin != NULL ? *record->origin : (ch_origin){0};
    ch_status rc = open_record(record, &bytes);

    *out = NULL;
    if (rc == CH_OK) {
        size_t list_bytes = (size_t)s->n * sizeof(list);

        p.schema = s;
        p.wire = ch__wire(bytes.data, bytes.size);
        p.list = s->n <= FEW ? p.few : ch__malloc(list_bytes);
        if (p.list != NULL) {
            memset(p.list, 0, list_bytes);
            rc = run_parse(&p, &record, out);
        } else {
            rc = ch__fail_memory("parsed example");
        }
        if (p.list != p.few)
            ch__free(p.list);
    }
    if (rc != CH_OK && origin.path != NULL)
        (void)ch__fail_at(rc, "%s, byte %lld", origin.path, (long long)origin.offset);
    /* Frees the record before *out, because the record may be a note of a block that *out owns
     * now. */
    ch__element_free(record);
    if (rc != CH_OK) {
        ch__element_free(*out);
        *out = NULL;
    }
    return rc;
}
