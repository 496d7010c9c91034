/* job/worker/stream.c -- a dataset by numbers.
 *
 * An iterator gives one element after the other. It is put where it is needed by restoring it to a place, and from there reads on.
 *
 *   1. `next` is the number of what the iterator gives next, or LOST: after an error that is not the data's own an element may be
 *      missing from a buffer, and what comes then has no number that is known. It is restored before it is asked again.
 *   2. In a place that is kept no such error waits: from there on every element has its number, here and anywhere.
 *   3. The base is the place before all others; it is never given up, so every number that was given can be given again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/worker/stream.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pbwire.h"
#include "data/iterator.h"
#include "tensor/tensor.h"

enum {
    N_PLACES = 4,
    N_RECENT = 8,
    PLACES_BYTES = 64 << 20, /* of all but the base; the newest is kept whatever it takes */
    RECENT_BYTES = 32 << 20, /* of elements, likewise */
    LEAST_BYTES = 1 << 10,   /* for which an element counts: to read one takes its time */
    LOST = -1
};

typedef struct place {
    int64_t number; /* of the element that comes next there */
    void   *bytes;
    size_t  n;
} place;

/* What was read for a number. */
typedef struct result {
    int64_t   number;
    ch_tuple *element; /* NULL: an error, or that nothing is here */
    int64_t   bytes;
    ch_status rc;
    char      text[CH_FAULT_TEXT];
} result;

struct ch_stream {
    char                name[64];
    ch_dataset         *dataset;
    ch_iterator_options opt;
    ch_device         **device; /* what opt.device points at */
    ch_stream_name      draws;  /* names its random numbers */
    ch_iterator        *it;     /* NULL: not opened yet */
    int64_t             next;
    int64_t             end;  /* the number behind the last; INT64_MAX: not known yet */
    place               base; /* no bytes: the beginning, which is saved when it is opened */
    int                 n_places;
    place               place[N_PLACES]; /* the newest last */
    int64_t             place_bytes;     /* of the one that was saved or gone to last */
    int64_t             bytes_read;      /* since then */
    int64_t             n_results;       /* of all, of which i is recent[i % N_RECENT] */
    result              recent[N_RECENT];
};

/* Of the data, and so the same wherever and whenever it is read. A limit on records (RESOURCE_EXHAUSTED) would be too, but looks
 * like a lack of memory from here. */
static bool is_of_data(ch_status rc)
{
    return rc == CH_DATA_LOSS || rc == CH_INVALID_ARGUMENT || rc == CH_OUT_OF_RANGE;
}

/* ---- what was read ---- */

static int64_t tensor_bytes(const ch_tensor *t)
{
    int64_t       bytes = (int64_t)ch_tensor_bytes(t);
    const ch_str *s = t->dtype == CH_STR && t->contiguous ? ch_tensor_data(t) : NULL;

    for (int64_t i = 0; s != NULL && i < ch_tensor_count(t); i++)
        bytes += (int64_t)s[i].size;
    return bytes;
}

static int64_t element_bytes(const ch_tuple *t)
{
    int64_t bytes = 0;

    for (int i = 0; i < ch_tuple_count(t); i++) {
        const ch_value *v = ch_tuple_at(t, i);

        for (int k = 0; k < ch_value_count(v); k++)
            bytes += tensor_bytes(ch_value_at(v, k));
    }
    return bytes;
}

static void drop_result(result *r)
{
    ch_tuple_unref(r->element);
    r->element = NULL;
    r->rc = CH_OK;
    r->bytes = 0;
    r->number = LOST;
}

/* All but the newest, from the oldest on, until they are few enough bytes. */
static void drop_old_results(ch_stream *s)
{
    int64_t bytes = 0;

    for (int i = 0; i < N_RECENT; i++)
        bytes += s->recent[i].bytes;
    for (int i = 0; i < N_RECENT - 1 && bytes > RECENT_BYTES; i++) {
        result *oldest = &s->recent[(s->n_results + i) % N_RECENT];

        bytes -= oldest->bytes;
        drop_result(oldest);
    }
}

/* What stands for number s->next: an element, which is taken over, or this thread's error. */
static void keep_result(ch_stream *s, ch_tuple *element, ch_status rc)
{
    result *r = &s->recent[s->n_results++ % N_RECENT];

    drop_result(r);
    r->number = s->next;
    r->element = element;
    r->bytes = element != NULL ? element_bytes(element) : 0;
    r->rc = rc;
    if (rc != CH_OK)
        (void)snprintf(r->text, sizeof(r->text), "%s", ch_error_message());
    s->bytes_read += r->bytes > LEAST_BYTES ? r->bytes : LEAST_BYTES;
    drop_old_results(s);
}

static const result *find_result(const ch_stream *s, int64_t number)
{
    for (int i = 0; i < N_RECENT; i++)
        if (s->recent[i].number == number)
            return &s->recent[i];
    return NULL;
}

static ch_status give(const result *r, ch_tuple **out)
{
    if (r->rc != CH_OK)
        return ch__fail(r->rc, "%s", r->text);
    *out = ch_tuple_ref(r->element);
    return CH_OK;
}

/* ---- places ---- */

static void drop_place(place *p)
{
    ch__free(p->bytes);
    *p = (place){0};
}

static void drop_oldest_place(ch_stream *s)
{
    drop_place(&s->place[0]);
    s->n_places--;
    memmove(&s->place[0], &s->place[1], (size_t)s->n_places * sizeof(place));
}

/* Takes it over. */
static void add_place(ch_stream *s, place p)
{
    size_t bytes = p.n;

    for (int i = 0; i < s->n_places; i++)
        bytes += s->place[i].n;
    while (s->n_places > 0 && (s->n_places == N_PLACES || bytes > PLACES_BYTES)) {
        bytes -= s->place[0].n;
        drop_oldest_place(s);
    }
    s->place[s->n_places++] = p;
}

/* The last one from which `number` can be reached, which is not before the base. */
static const place *place_for(const ch_stream *s, int64_t number)
{
    const place *best = &s->base;

    for (int i = 0; i < s->n_places; i++)
        if (s->place[i].number <= number && s->place[i].number >= best->number)
            best = &s->place[i];
    return best;
}

/* Whether an error that is not of the data stands where an element should, in a message of proto/dataset.proto: at depth 0 a
 * Place, which has states, at 1 a State, which has elements, at 2 an Element. */
static bool has_passing_error(ch_wire *w, ch_wire_span message, int depth)
{
    enum { STATES = 3, ELEMENTS = 3, CODE = 2 };
    uint32_t      inner = depth == 0 ? STATES : ELEMENTS;
    ch_wire_field f;
    uint64_t      code = 0;

    while (ch__wire_next(w, &message, &f)) {
        if (depth < 2 && f.type == CH_WIRE_BYTES && f.number == inner &&
            has_passing_error(w, f.data, depth + 1))
            return true;
        if (depth == 2 && f.type == CH_WIRE_VARINT && f.number == CODE &&
            ch__wire_varint(w, &f.data, &code) && code != CH_OK && !is_of_data((ch_status)code))
            return true;
    }
    return w->fault != NULL;
}

/* Every so many elements, and only when as many bytes were read as the last place took: then it costs less than reading did.
 * Where it cannot be kept now, it will be later. */
static void keep_place(ch_stream *s)
{
    place   p = {.number = s->next};
    ch_wire w;

    if (s->next - place_for(s, s->next)->number < CH_STREAM_POSITIONS ||
        s->bytes_read < s->place_bytes)
        return;
    s->bytes_read = 0;
    if (ch_iterator_save(s->it, &p.bytes, &p.n) != CH_OK)
        return;
    s->place_bytes = (int64_t)p.n;
    w = ch__wire(p.bytes, p.n);
    if (has_passing_error(&w, w.all, 0))
        drop_place(&p);
    else
        add_place(s, p);
}

static ch_status go_to(ch_stream *s, const place *p)
{
    ch_status rc = ch_iterator_restore(s->it, p->bytes, p->n);

    if (rc != CH_OK)
        return ch__fail_at(rc, "%s: going to the place of element %lld", s->name,
                           (long long)p->number);
    s->next = p->number;
    s->bytes_read = 0;
    s->place_bytes = (int64_t)p->n;
    return CH_OK;
}

/* ---- reading ---- */

static ch_status open_iterator(ch_stream *s)
{
    ch_iterator *it = NULL;
    ch_status    rc;

    if (s->it != NULL)
        return CH_OK;
    rc = ch__iterator_new_named(s->dataset, &s->opt, s->draws, &it);
    if (rc == CH_OK && s->base.bytes == NULL) {
        rc = ch_iterator_save(it, &s->base.bytes, &s->base.n);
        s->next = rc == CH_OK ? s->base.number : LOST;
    }
    if (rc == CH_OK) {
        s->it = it;
        return CH_OK;
    }
    ch_iterator_unref(it);
    return ch__fail_at(rc, "%s: opening its dataset", s->name);
}

/* The next one, or that there is none. */
static ch_status read_next(ch_stream *s)
{
    ch_tuple *t = NULL;
    ch_status rc = ch_iterator_next(s->it, &t);

    if (rc != CH_OK)
        rc = ch__fail_at(rc, "%s: element %lld", s->name, (long long)s->next);
    if (rc != CH_OK && !is_of_data(rc)) {
        s->next = LOST;
        return rc;
    }
    if (rc == CH_OK && t == NULL) {
        s->end = s->next;
        return CH_OK;
    }
    keep_result(s, t, rc);
    s->next++;
    keep_place(s);
    return CH_OK;
}

/* Where `number` is yet to come, the last such place there is. */
static ch_status go_before(ch_stream *s, int64_t number)
{
    const place *from = place_for(s, number);

    if (s->next != LOST && s->next >= from->number && s->next <= number)
        return CH_OK;
    return go_to(s, from);
}

/* Up to `number`, and that too, or to the end. */
static ch_status read_on(ch_stream *s, int64_t number)
{
    ch_status rc = CH_OK;

    while (rc == CH_OK && s->next <= number && number < s->end)
        rc = read_next(s);
    return rc;
}

/* An error may be of a while ago, when threads worked ahead: it counts if it is there when all is read once more. */
static ch_status read_to(ch_stream *s, int64_t number)
{
    ch_status rc = open_iterator(s);

    if (rc == CH_OK)
        rc = go_before(s, number);
    if (rc == CH_OK && read_on(s, number) != CH_OK) {
        rc = go_before(s, number);
        if (rc == CH_OK)
            rc = read_on(s, number);
    }
    return rc;
}

ch_status ch__stream_element(ch_stream *s, int64_t number, ch_tuple **out)
{
    const result *r;
    ch_status     rc = CH_OK;

    if (number < s->base.number)
        return ch__fail(CH_OUT_OF_RANGE,
                        "%s: element %lld: it was taken up at element %lld; move it to an "
                        "earlier place",
                        s->name, (long long)number, (long long)s->base.number);
    r = find_result(s, number);
    if (r == NULL && number < s->end) {
        rc = read_to(s, number);
        r = find_result(s, number);
    }
    if (rc != CH_OK)
        return rc;
    if (r != NULL)
        return give(r, out);
    *out = NULL;
    return CH_OK;
}

bool ch__stream_position(const ch_stream *s, int64_t *number, const void **bytes, size_t *n)
{
    const place *p;

    if (s->n_places == 0)
        return false;
    p = &s->place[s->n_places - 1];
    *number = p->number;
    *bytes = p->bytes;
    *n = p->n;
    return true;
}

static ch_status copy_place(int64_t number, const void *bytes, size_t n, place *out)
{
    void *copy = ch__malloc(n > 0 ? n : 1);

    if (copy == NULL)
        return ch__fail_memory("a place in a stream");
    if (n > 0)
        memcpy(copy, bytes, n);
    *out = (place){number, copy, n};
    return CH_OK;
}

/* Whether `number` was reached before, and can be again. */
static bool has_been_at(const ch_stream *s, int64_t number)
{
    return number >= s->base.number &&
           (number <= s->next || place_for(s, number)->number == number);
}

ch_status ch__stream_move(ch_stream *s, int64_t number, const void *bytes, size_t n)
{
    place     p = {0};
    ch_status rc = ch__want_given(s->name, "place", bytes, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    if (number < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: a place before element %lld; the first is number 0", s->name,
                        (long long)number);
    if (has_been_at(s, number))
        return CH_OK;
    rc = open_iterator(s);
    if (rc == CH_OK)
        rc = copy_place(number, bytes, n, &p);
    if (rc == CH_OK)
        rc = go_to(s, &p);
    if (rc != CH_OK) {
        drop_place(&p);
        return rc;
    }
    if (number < s->base.number) {
        add_place(s, s->base);
        s->base = p;
    } else {
        add_place(s, p);
    }
    return CH_OK;
}

/* ---- making and letting go ---- */

static ch_status check(const ch_stream_options *opt, const char *name)
{
    if (opt->dataset == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: it has no dataset", name);
    if (opt->reader < 0 || opt->pass < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: reader %lld in pass %lld; want 0 or more",
                        name, (long long)opt->reader, (long long)opt->pass);
    if (opt->first < 0 || (opt->place == NULL && opt->first != 0))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: it begins with element %lld; want a number of 0 or more, and a "
                        "place if it is not 0",
                        name, (long long)opt->first);
    if (opt->n_replicas < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %d replicas", name, opt->n_replicas);
    return CH_OK;
}

/* Threads take elements as they come from stages that are unordered; one alone gives them the same order each time. */
static ch_status set_dataset(ch_stream *s, const void *bytes, size_t n)
{
    ch_dataset *d = NULL;
    ch_status   rc = ch_dataset_decode(bytes, n, &d);

    if (rc != CH_OK)
        return rc;
    if ((d->is_unordered || d->options.unordered) && d->options.threads != CH_OFF) {
        ch__log(CH_LOG_INFO, "serial-stream",
                "%s: its dataset has stages that give their elements in any order; it is read "
                "without threads, so that elements have numbers",
                s->name);
        d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
    }
    s->dataset = d;
    return d != NULL ? CH_OK : ch__fail_still("reading it without threads");
}

static ch_status set_devices(ch_stream *s, const ch_stream_options *opt)
{
    int n = opt->n_replicas > 0 ? opt->n_replicas : 1;

    s->opt = (ch_iterator_options){.go_on = true, .n_replicas = n};
    if (opt->device == NULL)
        return CH_OK;
    s->device = ch__calloc((size_t)n, sizeof(*s->device));
    if (s->device == NULL)
        return ch__fail_memory("devices");
    memcpy(s->device, opt->device, (size_t)n * sizeof(*s->device));
    s->opt.device = s->device;
    return CH_OK;
}

ch_status ch__stream_new(const ch_stream_options *opt, ch_stream **out)
{
    const char *name = opt->name != NULL ? opt->name : "stream";
    ch_stream  *s;
    ch_status   rc = check(opt, name);

    if (rc != CH_OK)
        return rc;
    s = ch__calloc(1, sizeof(*s));
    if (s == NULL)
        return ch__fail_memory(name);
    (void)snprintf(s->name, sizeof(s->name), "%s", name);
    s->draws = (ch_stream_name){opt->reader, opt->pass};
    s->next = LOST;
    s->end = INT64_MAX;
    s->base.number = opt->first;
    for (int i = 0; i < N_RECENT; i++)
        s->recent[i].number = LOST;
    rc = set_dataset(s, opt->dataset, opt->n_dataset);
    if (rc == CH_OK)
        rc = set_devices(s, opt);
    if (rc == CH_OK && opt->place != NULL)
        rc = copy_place(opt->first, opt->place, opt->n_place, &s->base);
    if (rc != CH_OK) {
        ch__stream_free(s);
        return ch__fail_at(rc, "%s", name);
    }
    *out = s;
    return CH_OK;
}

void ch__stream_free(ch_stream *s)
{
    if (s == NULL)
        return;
    ch_iterator_unref(s->it);
    for (int i = 0; i < N_RECENT; i++)
        drop_result(&s->recent[i]);
    while (s->n_places > 0)
        drop_oldest_place(s);
    drop_place(&s->base);
    ch_dataset_unref(s->dataset);
    ch__free(s->device);
    ch__free(s);
}
