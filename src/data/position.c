/* data/position.c -- saves and restores the position of an iterator.
 *
 * A position (Cohort__Position) is a list of states, one for each cursor, in the order in which
 * the tree is walked. The state of a cursor has three lists: numbers, elements (or errors) and
 * texts. ch_stage.save appends to them through a ch_saver. ch_stage.load reads them through a
 * ch_loader, in the same order. data/iterator.c saves and restores whole trees;
 * data/cache_file.c and data/codec.c use the encoding of elements.
 *
 * Invariants:
 *   1. Errors are sticky. After the first error a saver ignores all calls. A loader that failed
 *      returns 0, "" or NULL. Each stage must check the loader before it uses a loaded value.
 *   2. A position is untrusted. Each number is checked against the range that the stage gives,
 *      and each element against the stage's specs.
 *   3. The format is little-endian; elements are stored as they are in memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/position.h"

#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/pbwire.h"
#include "data/iterator.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are written as they lie in memory, and the format is little-endian"
#endif

enum { FORMAT = 2 }; /* version of the encoding; a position of another version is rejected */

/* ---- parts as messages ---- */

/* Encodes strings: their lengths as varints, and their bytes concatenated. */
static ch_status encode_strings(ch_arena *a, const ch_part *p, Cohort__Part *m)
{
    size_t        n = (size_t)ch_shape_count(p->shape), bytes = 0;
    const ch_str *s = p->data;

    for (size_t i = 0; i < n; i++)
        bytes += s[i].size;
    m->lengths.data = ch__arena_alloc(a, CH_VARINT_BYTES * n + 1);
    m->data.data = ch__arena_alloc(a, bytes + 1);
    if (m->lengths.data == NULL || m->data.data == NULL)
        return ch__fail_memory("strings of an element");
    uint8_t *end = m->lengths.data;
    for (size_t i = 0; i < n; i++) {
        end = ch__put_varint(end, s[i].size);
        if (s[i].size > 0)
            memcpy(m->data.data + m->data.len, s[i].data, s[i].size);
        m->data.len += s[i].size;
    }
    m->lengths.len = (size_t)(end - m->lengths.data);
    return CH_OK;
}

ch_status ch__part_encode(ch_arena *a, const ch_part *p, const char *name, Cohort__Part **out)
{
    Cohort__Part *m = ch__arena_alloc(a, sizeof(*m));
    size_t        bytes = (size_t)ch_shape_count(p->shape) * ch_dtype_bytes(p->dtype);

    if (m == NULL)
        return ch__fail_memory("element");
    cohort__part__init(m);
    m->n_shape = (size_t)p->shape.rank;
    m->shape = ch__arena_copy(a, p->shape.dim, sizeof(p->shape.dim));
    m->dtype = ch__arena_strdup(a, ch_dtype_name(p->dtype));
    if (name != NULL)
        m->name = ch__arena_strdup(a, name);
    if (m->shape == NULL || m->dtype == NULL || m->name == NULL)
        return ch__fail_memory("element");
    *out = m;
    if (p->dtype == CH_STR)
        return encode_strings(a, p, m);
    m->data.len = bytes;
    if (bytes > 0 && (m->data.data = ch__arena_copy(a, p->data, bytes)) == NULL)
        return ch__fail_memory("element");
    return CH_OK;
}

ch_status ch__element_encode(ch_arena *a, const ch_element *e, Cohort__Element *out)
{
    out->parts = ch__arena_alloc(a, ((size_t)e->n + 1) * sizeof(*out->parts));
    if (out->parts == NULL)
        return ch__fail_memory("element");
    for (int i = 0; i < e->n; i++) {
        ch_status rc = ch__part_encode(a, &e->part[i], NULL, &out->parts[i]);

        if (rc != CH_OK)
            return rc;
        out->n_parts++;
    }
    return CH_OK;
}

/* Checks that the message has `count` lengths, and that their sum is the number of bytes. */
static ch_status check_strings(const Cohort__Part *m, int64_t count)
{
    ch_wire      w = ch__wire(m->lengths.data, m->lengths.len);
    ch_wire_span left = w.all;
    uint64_t     size, sum = 0;
    int64_t      n = 0;

    for (; left.at < left.end && ch__wire_varint(&w, &left, &size); n++)
        if (size > m->data.len || (sum += size) > m->data.len)
            break;
    if (w.fault != NULL || n != count || sum != m->data.len)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a part of %lld strings: the lengths do not fit the data",
                        (long long)count);
    return CH_OK;
}

/* Checks a part and sets the dtype and the shape of *out. The number of bytes must be the
 * number that they need. *room becomes the size of the decoded data in bytes, a multiple of
 * 16. */
static ch_status check_part(const Cohort__Part *m, ch_part *out, size_t *room)
{
    int64_t count, bytes;

    if (ch_dtype_parse(m->dtype, &out->dtype) != CH_OK || m->n_shape > CH_MAX_RANK)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "a part has an unknown dtype or too many axes (got \"%.20s\", %zu axes)", m->dtype,
            m->n_shape);
    out->shape = ch_shape_make((int)m->n_shape, m->shape);
    if (ch__tensor_size(out->dtype, out->shape, &count, &bytes) != CH_OK)
        return CH_INVALID_ARGUMENT;
    if (out->dtype != CH_STR && m->data.len != (size_t)bytes)
        return ch__fail(CH_INVALID_ARGUMENT, "a part needs %lld bytes and has %zu",
                        (long long)bytes, m->data.len);
    if (out->dtype == CH_STR &&
        (count > (int64_t)m->lengths.len || check_strings(m, count) != CH_OK))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a part of %lld strings: the lengths do not fit the data",
                        (long long)count);
    *room = (size_t)bytes + (out->dtype == CH_STR ? m->data.len : 0);
    *room = (*room + 15) & ~(size_t)15;
    return CH_OK;
}

/* Writes the array of ch_str and, behind it, the bytes of the strings. */
static void fill_strings(const Cohort__Part *m, int64_t count, char *room)
{
    ch_str      *s = (ch_str *)(void *)room;
    char        *text = room + (size_t)count * sizeof(*s);
    ch_wire      w = ch__wire(m->lengths.data, m->lengths.len);
    ch_wire_span left = w.all;
    uint64_t     size = 0;

    if (m->data.len > 0)
        memcpy(text, m->data.data, m->data.len);
    for (int64_t i = 0; i < count && ch__wire_varint(&w, &left, &size); i++, text += size)
        s[i] = (ch_str){text, size};
}

static void fill_part(const Cohort__Part *m, ch_part *p, char *room)
{
    p->data = room;
    if (p->dtype == CH_STR)
        fill_strings(m, ch_shape_count(p->shape), room);
    else if (m->data.len > 0)
        memcpy(room, m->data.data, m->data.len);
}

ch_status ch__parts_decode(size_t n, Cohort__Part *const *part, ch_element **out)
{
    size_t  room = 0, own;
    ch_part p;

    if (n > CH_MAX_PARTS)
        return ch__fail(CH_INVALID_ARGUMENT, "an element has too many parts (got %zu)", n);
    for (size_t i = 0; i < n; i++) {
        ch_status rc = check_part(part[i], &p, &own);

        if (rc != CH_OK)
            return rc;
        room += own;
    }
    ch_element *e = ch__element_new((int)n, 0, room);
    if (e == NULL)
        return ch__fail_memory("element");
    char *at = e->room;
    for (size_t i = 0; i < n; i++) {
        (void)check_part(part[i], &e->part[i], &own);
        fill_part(part[i], &e->part[i], at);
        at += own;
    }
    *out = e;
    return CH_OK;
}

/* ---- saving ---- */

struct ch_saver {
    ch_arena       arena;                     /* memory of all messages */
    ch_status      rc;                        /* the first error */
    Cohort__State *state;                     /* of the current cursor */
    int cap_numbers, cap_elements, cap_texts; /* capacities of the lists in `state` */

    Cohort__State **states; /* of all cursors so far */
    int             n_states, cap_states;
};

void ch__save_fail(ch_saver *s, ch_status rc)
{
    if (s->rc == CH_OK)
        s->rc = rc;
}

static void no_memory(ch_saver *s)
{
    ch__save_fail(s, ch__fail_memory("position of an iterator"));
}

/* Ensures that the list has room for an entry after its `n` entries. Returns false after an
 * error. A list that grows is copied in the arena, which doubles its capacity; the old copies
 * take at most as much memory again. */
static bool reserve(ch_saver *s, void **list, size_t n, int *cap, size_t size)
{
    if (s->rc != CH_OK)
        return false;
    if ((int)n < *cap)
        return true;
    int   more = *cap > 0 ? 2 * *cap : 8;
    void *p = ch__arena_alloc(&s->arena, (size_t)more * size);
    if (p == NULL) {
        no_memory(s);
        return false;
    }
    if (n > 0)
        memcpy(p, *list, n * size);
    *list = p;
    *cap = more;
    return true;
}

void ch__save_begin(ch_saver *s, const char *stage)
{
    Cohort__State *m = ch__arena_alloc(&s->arena, sizeof(*m));

    if (s->rc != CH_OK)
        return;
    if (m == NULL || !ch__grow((void **)&s->states, &s->cap_states, s->n_states + 1,
                               sizeof(Cohort__State *))) {
        no_memory(s);
        return;
    }
    cohort__state__init(m);
    m->stage = ch__arena_strdup(&s->arena, stage);
    if (m->stage == NULL)
        no_memory(s);
    s->states[s->n_states++] = m;
    s->state = m;
    s->cap_numbers = s->cap_elements = s->cap_texts = 0;
}

void ch__save_int(ch_saver *s, int64_t value)
{
    if (s->rc == CH_OK && reserve(s, (void **)&s->state->numbers, s->state->n_numbers,
                                  &s->cap_numbers, sizeof(int64_t)))
        s->state->numbers[s->state->n_numbers++] = value;
}

void ch__save_text(ch_saver *s, const void *data, size_t size)
{
    ProtobufCBinaryData text = {size, NULL};

    if (s->rc != CH_OK ||
        !reserve(s, (void **)&s->state->texts, s->state->n_texts, &s->cap_texts, sizeof(text)))
        return;
    if (size > 0 && (text.data = ch__arena_copy(&s->arena, data, size)) == NULL)
        no_memory(s);
    else
        s->state->texts[s->state->n_texts++] = text;
}

/* Appends an empty element to the state. Returns NULL after an error. */
static Cohort__Element *add_element(ch_saver *s)
{
    Cohort__Element *m = NULL;

    if (s->rc != CH_OK || !reserve(s, (void **)&s->state->elements, s->state->n_elements,
                                   &s->cap_elements, sizeof(m)))
        return NULL;
    m = ch__arena_alloc(&s->arena, sizeof(*m));
    if (m == NULL) {
        no_memory(s);
        return NULL;
    }
    cohort__element__init(m);
    s->state->elements[s->state->n_elements++] = m;
    return m;
}

void ch__save_element(ch_saver *s, const ch_element *e)
{
    Cohort__Element *m = add_element(s);
    ch_status        rc = m != NULL ? ch__element_encode(&s->arena, e, m) : CH_OK;

    if (rc != CH_OK)
        ch__save_fail(s, rc);
}

void ch__save_elements(ch_saver *s, const ch_elements *list)
{
    ch__save_int(s, list->n);
    for (int i = 0; i < list->n; i++)
        ch__save_element(s, list->at[i]);
}

void ch__save_fault(ch_saver *s, ch_status rc, const char *text, bool is_between)
{
    Cohort__Element *m = add_element(s);

    if (m == NULL)
        return;
    m->code = (uint32_t)rc;
    m->between = is_between;
    m->error = ch__arena_strdup(&s->arena, text != NULL ? text : "");
    if (m->error == NULL)
        no_memory(s);
}

void ch__cursor_save(ch_cursor *c, ch_saver *s)
{
    /* The stage `options` has no state. It is left out, so that a position fits datasets with
     * and without options. */
    if (c->stage == &ch__stage_options) {
        ch__save_inputs(c, s);
        return;
    }
    ch__save_begin(s, c->stage->name);
    ch__save_int(s, c->epoch);
    c->stage->save(c, s);
}

ch_status ch__position_save(ch_cursor *root, uint64_t hash, void **bytes, size_t *n)
{
    ch_saver         s = {0};
    Cohort__Position m;

    ch__cursor_save(root, &s);
    cohort__position__init(&m);
    m.format = FORMAT;
    m.dataset = hash;
    m.n_states = (size_t)s.n_states;
    m.states = s.states;
    m.skipped = (uint64_t)root->skips->gone; /* cursors that are open save their own counts */
    m.reader = root->it->name.reader;
    m.pass = root->it->name.pass;
    if (s.rc == CH_OK)
        s.rc = ch__protobuf_pack(&m.base, bytes, n);
    ch__free(s.states);
    ch__arena_drop(&s.arena);
    return s.rc;
}

/* ---- loading ---- */

struct ch_loader {
    const Cohort__Position *position;
    size_t                  next;   /* index of the next state */
    ch_cursor              *cursor; /* the cursor that is being loaded */
    const Cohort__State    *state;  /* its state; NULL: the position has no more */
    size_t                  number, element, text; /* index of the next entry of each list */
    bool                    fails;
    ch_status               rc;
    char                    why[128]; /* the first error */
};

/* Makes the loader fail. Keeps the first reason. */
static void set_error(ch_loader *l, const char *why)
{
    if (!l->fails)
        snprintf(l->why, sizeof(l->why), "%s", why);
    l->fails = true;
}

bool ch__load_fails(const ch_loader *l)
{
    return l->fails;
}

ch_status ch__load_status(ch_loader *l)
{
    if (!l->fails)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT, "the saved position does not fit stage %s: %s",
                    l->state != NULL ? l->state->stage : "(none)", l->why);
}

void ch__load_begin(ch_loader *l, const char *stage)
{
    if (l->next == l->position->n_states) {
        l->state = NULL;
        set_error(l, "the position has fewer stages than the dataset");
        return;
    }
    l->state = l->position->states[l->next++];
    l->number = l->element = l->text = 0;
    if (strcmp(l->state->stage, stage) != 0) {
        char why[96];

        snprintf(why, sizeof(why), "the dataset has stage %.60s there", stage);
        set_error(l, why);
    }
}

int64_t ch__load_int(ch_loader *l, int64_t least, int64_t most)
{
    if (l->fails || l->number == l->state->n_numbers) {
        set_error(l, "a number is missing");
        return 0;
    }
    int64_t x = l->state->numbers[l->number++];
    if (x < least || x > most) {
        set_error(l, "a number is out of range");
        return 0;
    }
    return x;
}

int64_t ch__load_count(ch_loader *l)
{
    return ch__load_int(l, 0, INT64_MAX / 2);
}

ch_str ch__load_text(ch_loader *l)
{
    if (l->fails || l->text == l->state->n_texts) {
        set_error(l, "a text is missing");
        return (ch_str){"", 0};
    }
    ProtobufCBinaryData *b = &l->state->texts[l->text++];
    return (ch_str){b->len > 0 ? (const char *)b->data : "", b->len};
}

ch_element *ch__load_result(ch_loader *l, const ch_dataset *like, ch_status *rc)
{
    ch_element      *e = NULL;
    Cohort__Element *m;

    *rc = CH_OK;
    if (l->fails || l->element == l->state->n_elements) {
        set_error(l, "an element is missing");
        return NULL;
    }
    m = l->state->elements[l->element++];
    if (m->code != 0 && m->code < CH_STATUS_COUNT) {
        *rc = ch__fail((ch_status)m->code, "%s", m->error);
        if (m->between)
            (void)ch__error_between(*rc);
        return NULL;
    }
    if (ch__parts_decode(m->n_parts, m->parts, &e) == CH_OK &&
        (like == NULL || ch__dataset_check(like, e) == CH_OK))
        return e;
    set_error(l, ch_error_message());
    ch__element_free(e);
    return NULL;
}

ch_element *ch__load_element(ch_loader *l, const ch_dataset *like)
{
    ch_status   rc;
    ch_element *e = ch__load_result(l, like, &rc);

    if (rc != CH_OK)
        set_error(l, "it has an error where an element is needed");
    return e;
}

ch_status ch__load_elements(ch_loader *l, int64_t most, const ch_dataset *like,
                            ch_elements *list)
{
    int64_t   n = ch__load_int(l, 0, ch__min(most, INT32_MAX));
    ch_status rc = CH_OK;

    for (int64_t i = 0; i < n && rc == CH_OK; i++) {
        ch_element *e = ch__load_element(l, like);

        if (e == NULL)
            break;
        rc = ch__elements_add(list, e, l->state->stage);
        if (rc == CH_OK && l->cursor->it->budget.most > 0)
            rc = ch__budget_charge(l->cursor, e);
    }
    return rc == CH_OK ? ch__load_status(l) : rc;
}

ch_status ch__cursor_load(ch_cursor *c, ch_loader *l)
{
    if (c->stage == &ch__stage_options)
        return ch__load_inputs(c, l);
    ch__load_begin(l, c->stage->name);
    l->cursor = c;
    c->epoch = ch__load_count(l);
    return l->fails ? ch__load_status(l) : c->stage->load(c, l);
}

/* Adds `n`, which is untrusted, to the number of records that closed cursors skipped. */
static void add_gone(ch_skips *s, uint64_t n)
{
    int64_t gone = (int64_t)(n < INT64_MAX / 2 ? n : INT64_MAX / 2);

    atomic_fetch_add(&s->gone, gone);
    atomic_fetch_add(&s->n, gone);
}

ch_status ch__position_read(uint64_t hash, const void *bytes, size_t n, Cohort__Position **out)
{
    Cohort__Position *m =
        (Cohort__Position *)ch__protobuf_unpack(&cohort__position__descriptor, bytes, n);
    ch_status rc = CH_OK;

    if (m == NULL)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "restore: the %zu bytes are not a saved position, or memory is exhausted", n);
    if (m->format != FORMAT)
        rc = ch__fail(CH_UNIMPLEMENTED,
                      "restore: unknown format of the position (got %u, want %d)", m->format,
                      FORMAT);
    else if (m->dataset != hash)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "restore: the position was saved by an iterator over another dataset");
    else if (m->reader < 0 || m->pass < 0)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "restore: the position has reader %lld and pass %lld, want 0 or more",
                      (long long)m->reader, (long long)m->pass);
    if (rc == CH_OK)
        *out = m;
    else
        ch__protobuf_free(&m->base);
    return rc;
}

ch_status ch__position_load(ch_cursor *root, const Cohort__Position *position)
{
    ch_loader l = {.position = position};
    ch_status rc = ch__cursor_load(root, &l);

    if (rc == CH_OK && l.next != position->n_states)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "restore: the position has more stages than the dataset");
    if (rc == CH_OK)
        add_gone(root->skips, position->skipped);
    return rc;
}
