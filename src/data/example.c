/* data/example.c -- tf.train.Example: a record's features as the parts of an element.
 *
 * Three steps. Find: one pass over the message notes where each feature that is asked for has its
 * value (EX-3: in any order, the last of equal names). Measure: what kind of list each one is, how
 * many values it has and where they are. Fill: the element is made, with the room that was
 * measured, and each part looks into the record or is decoded.
 *
 * A list's values come in runs: a packed field is a run of any number of values, an
 * unpacked one or a string is a run of one. All writers pack, so that a list is one run; a
 * list of more is decoded run by run.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/example.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "base/fault.h"
#include "base/pbwire.h"
#include "data/example_schema.h"
#include "data/number.h"
#include "data/show.h"

/* The fields of Feature, of which it has one. */
typedef enum list_kind { NO_LIST, BYTES_LIST, FLOAT_LIST, INT64_LIST } list_kind;

static const char *const kind_name[] = {"no", "bytes", "float", "int64"};

/* What a record has of a feature. */
typedef struct list {
    ch_wire_span
              value; /* the fields of its Feature, from the first that counts; at NULL: none */
    list_kind kind;
    int64_t   count;
    int64_t   n_runs;
    ch_wire_span first; /* run */
    bool         stays; /* the values stay where they are: the part looks into the record */
    size_t       room;  /* bytes for them, if they do not */
} list;

enum { FEW = 32 }; /* features whose lists fit the stack */

typedef struct parse {
    const ch_example_schema *schema;
    ch_wire                  wire;
    list                    *list; /* one for each feature */
    list                     few[FEW];
} parse;

static ch_status fail_damaged(const parse *p)
{
    return ch__fail(CH_DATA_LOSS,
                    "parse_examples: byte %zu of %zu: %s: this is no tf.train.Example",
                    (size_t)(p->wire.fault_at - p->wire.all.at), ch__wire_bytes(p->wire.all),
                    p->wire.fault);
}

/* ---- find ---- */

/* An entry of the map: key = 1, value = 2. */
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

/* Gives the entries of the map one after the other: Example.features = 1, Features.feature = 1. */
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

/* The kind is that of the last field; those of the same kind before it are merged with it. */
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

/* A walk over the runs of a list. */
typedef struct walk {
    list_kind    kind;
    ch_wire_span value, values; /* what is left of the Feature, and of its list */
} walk;

static walk walk_of(const list *l)
{
    return (walk){l->kind, l->value, {0}};
}

/* A field of BytesList, FloatList, Int64List: value = 1, packed or not. */
static bool is_run(const ch_wire_field *f, list_kind kind)
{
    return f->number == 1 &&
           (f->type == CH_WIRE_BYTES || (f->type == CH_WIRE_32 && kind == FLOAT_LIST) ||
            (f->type == CH_WIRE_VARINT && kind == INT64_LIST));
}

static bool next_run(ch_wire *w, walk *at, ch_wire_span *run)
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

/* A varint ends with a byte below 128. */
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
        ch__wire_fault(w, run.at, "a list of floats whose bytes do not divide by 4");
    return (int64_t)(ch__wire_bytes(run) / sizeof(float));
}

/* The common case: a Feature of one list, which is one run. */
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
    walk         at;
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

static bool takes_kind(ch_dtype dtype, list_kind kind)
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

static bool takes_bytes_as_they_are(const ch_example_feature *f, const list *l)
{
    return l->kind == BYTES_LIST && f->part.dtype == CH_U8;
}

/* Names of features are a stranger's bytes; as many as fit. */
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
                    "parse_examples: feature \"%s\" is not in the example, or empty, and not "
                    "optional; the example has %s",
                    f->name, n > 0 ? names : "no features");
}

static ch_status fail_unfit(const ch_example_feature *f, const list *l)
{
    ch_label wanted = ch__label(f->part.dtype, f->part.shape);

    if (!takes_kind(f->part.dtype, l->kind))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: feature \"%s\" is a list of %s, of which no %s is "
                        "made",
                        f->name, kind_name[l->kind], wanted.text);
    if (takes_bytes_as_they_are(f, l) && l->n_runs != 1)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: feature \"%s\" has %" PRId64 " strings of bytes; for "
                        "%s there must be one",
                        f->name, l->n_runs, wanted.text);
    return ch__fail(CH_INVALID_ARGUMENT,
                    "parse_examples: feature \"%s\" has %" PRId64 " %s value%s; for %s there "
                    "must be %s%" PRId64,
                    f->name, l->count, kind_name[l->kind], l->count == 1 ? "" : "s",
                    wanted.text, f->varies ? "a multiple of " : "", f->count);
}

/* Finds out what the record has of a feature, and whether that will do. */
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
    if (!takes_kind(f->part.dtype, l->kind))
        return fail_unfit(f, l);
    if (takes_bytes_as_they_are(f, l)) {
        if (l->n_runs != 1)
            return fail_unfit(f, l);
        l->count = (int64_t)ch__wire_bytes(l->first);
    }
    if (f->varies ? l->count % f->count != 0 : l->count != f->count)
        return fail_unfit(f, l);
    return CH_OK;
}

static bool can_stay(const ch_example_feature *f, const list *l)
{
    return l->n_runs == 1 && ((l->kind == FLOAT_LIST && f->part.dtype == CH_F32) ||
                              takes_bytes_as_they_are(f, l));
}

/* What the element will need beside its parts. */
typedef struct needs {
    size_t room;
    bool   record;   /* some part looks into it */
    bool   defaults; /* some part is missing */
} needs;

static ch_status measure(parse *p, needs *out)
{
    for (int i = 0; i < p->schema->n; i++) {
        const ch_example_feature *f = &p->schema->feature[i];
        list                     *l = &p->list[i];
        ch_status                 rc = measure_feature(p, i);

        if (rc != CH_OK)
            return rc;
        l->stays = can_stay(f, l);
        if (l->kind != NO_LIST && !l->stays)
            l->room = ((size_t)l->count * f->bytes + 15) & ~(size_t)15;
        out->room += l->room; /* at most 8 bytes for each of the record's */
        out->record |= l->stays || (l->kind == BYTES_LIST && l->count > 0);
        out->defaults |= l->kind == NO_LIST && f->part.data != NULL;
    }
    return CH_OK;
}

/* ---- fill ---- */

static ch_status fail_range(const ch_example_feature *f, int64_t value)
{
    return ch__fail(CH_INVALID_ARGUMENT,
                    "parse_examples: feature \"%s\" has a value of %" PRId64
                    ", which %s does not hold",
                    f->name, value, ch_dtype_name(f->part.dtype));
}

/* Most types are not what a varint is decoded to: those are decoded a few at a time. */
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

/* The values of a list, run by run. */
static ch_status fill_list(ch_wire *w, const ch_example_feature *f, const list *l, char *to)
{
    walk         at = walk_of(l);
    ch_wire_span run;
    ch_status    rc = CH_OK;

    if (l->n_runs == 1)
        return fill_run(w, f, l->kind, l->first, &to);
    while (rc == CH_OK && next_run(w, &at, &run))
        rc = fill_run(w, f, l->kind, run, &to);
    return rc;
}

/* Makes one part, whose values, if they are decoded, go to `room`. */
static ch_status fill_part(parse *p, int i, char *room, ch_part *part)
{
    const ch_example_feature *f = &p->schema->feature[i];
    const list               *l = &p->list[i];

    *part = f->part;
    if (f->varies)
        part->shape.dim[0] = l->kind == NO_LIST ? 0 : l->count / f->count;
    if (l->kind == NO_LIST)
        return CH_OK;
    part->data = l->stays ? (const void *)l->first.at : room;
    if (l->stays)
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

static bool is_inside(const ch_element *record, const char *data)
{
    return (uintptr_t)data - (uintptr_t)record < (uintptr_t)record->bytes;
}

/* Hands what holds the record's bytes over to `e`: its owners, or the record as a whole. What is
 * left of the record is for the caller to free. */
static ch_status give_owners(ch_element **record, const char *data, ch_element *e)
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

/* One that looks into a block is made anew in its own memory, which is at hand, where other
 * memory would have to come from afar. False: that is not so, or it does not fit. */
static bool remake(ch_element **record, const char *data, int n, const needs *need,
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

/* The element, once all is known that it needs. Its last owner is that of defaults. On an error what
 * is in `out` and `record` is for the caller to free. */
static ch_status make_element(parse *p, const needs *need, ch_element **record,
                              ch_element **out)
{
    const char *data = (const char *)p->wire.all.at;
    int       n_owners = !need->record ? 0 : is_inside(*record, data) ? 1 : (*record)->n_owners;
    ch_status rc = CH_OK;

    if (!remake(record, data, p->schema->n, need, out)) {
        *out = ch__element_new(p->schema->n, n_owners + need->defaults, need->room);
        if (*out == NULL)
            return ch__fail_memory("parsed example");
        if (need->record)
            rc = give_owners(record, data, *out);
    }
    if (rc == CH_OK && need->defaults)
        (*out)->owner[n_owners] = ch__buffer_ref(p->schema->defaults);
    return rc == CH_OK ? fill(p, *out) : rc;
}

/* ---- all of it ---- */

static ch_status open_record(const ch_element *record, ch_str *out)
{
    const ch_part *part = record->part;

    if (record->n != 1 || part->dtype != CH_STR || ch_shape_count(part->shape) != 1)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: the element has %d component%s, of which the first is "
                        "%s, and an example is one string",
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
    ch__element_free(record); /* first: it may be a note of a block that *out has now */
    if (rc != CH_OK) {
        ch__element_free(*out);
        *out = NULL;
    }
    return rc;
}
