/* data/position.c -- saves and restores the position of an iterator.
 *
 * A position (Cohort__Position) is a list of states, one for each cursor, in the order in which
 * the tree is walked. The state of a cursor has three lists: numbers, elements (or errors) and
 * texts. ch_stage.save appends to them through a ch_saver. ch_stage.load reads them through a
 * ch_loader, in the same order. data/iterator.c saves and restores whole trees;
 * data/cache_file.c and data/codec.c use the encoding of elements.
 *
 * Elements that can be made again without their data are saved as references (data/row_ref.h).
 * Consecutive references to the same tensors share a message, a `run`: a shuffle over rows in
 * memory takes a few bytes for each row.
 *
 * Invariants:
 *   1. Errors are sticky. After the first error a saver ignores all calls. A loader that failed
 *      returns 0, "" or NULL. Each stage must check the loader before it uses a loaded value.
 *   2. A position is untrusted. Each number is checked against the range that the stage gives,
 *      and each element against the stage's specs.
 *   3. The format is little-endian; elements are stored as they are in memory.
 *   4. A position does not depend on the number of replicas, unless it is inside a batch that
 *      is divided among them: between batches the stage `split` has no state, and the hash does
 *      not cover it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/position.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/pbwire.h"
#include "data/iterator.h"
#include "data/row_ref.h"
#include "data/rows.h"
#include "data/stages.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are written as they lie in memory, and the format is little-endian"
#endif

/* Version of the encoding. The two versions before it are read too. Positions of OLD_FORMAT
 * have no references; since FORMAT, positions may refer to earlier passes. */
enum { FORMAT = 4, OLD_FORMAT = 2 };

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

    ch_back               place; /* result of ch__save_place for the current cursor */
    const ch_row_tensors *tensors;
    Cohort__Element      *run;     /* the last element of `state` if it is a run; else NULL */
    size_t                cap_run; /* bytes; capacity of run->rows */
    int tensor[CH_MAX_PARTS];      /* the tensor where a part was found last; a hint */
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
    s->run = NULL;
}

ch_back ch__save_place(const ch_saver *s)
{
    return s->place;
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
    s->run = NULL;
    return m;
}

/* Ensures that references to these tensors, or numbers if `n` is 0, can be appended to s->run:
 * begins a run unless the last fits. Returns false after an error. */
static bool begin_run(ch_saver *s, int n, bool each_part)
{
    Cohort__Element *m = s->run;
    bool             fits = m != NULL && m->n_tensors == (size_t)n && m->each_part >= each_part;

    for (int i = 0; i < n && fits; i++)
        fits = m->tensors[i] == (uint32_t)s->tensor[i];
    if (fits)
        return true;
    m = add_element(s);
    if (m == NULL)
        return false;
    m->tensors = ch__arena_alloc(&s->arena, (size_t)(n + 1) * sizeof(*m->tensors));
    if (m->tensors == NULL) {
        no_memory(s);
        return false;
    }
    for (int i = 0; i < n; i++)
        m->tensors[m->n_tensors++] = (uint32_t)s->tensor[i];
    m->each_part = each_part;
    s->run = m;
    s->cap_run = 0;
    return true;
}

/* Appends a varint to the rows of s->run. */
static void put_varint(ch_saver *s, uint64_t x)
{
    ProtobufCBinaryData *b = &s->run->rows;

    if (b->len + CH_VARINT_BYTES > s->cap_run) {
        size_t   more = s->cap_run > 0 ? 2 * s->cap_run : 64;
        uint8_t *p = ch__arena_alloc(&s->arena, more);

        if (p == NULL) {
            no_memory(s);
            return;
        }
        if (b->len > 0)
            memcpy(p, b->data, b->len);
        b->data = p;
        s->cap_run = more;
    }
    b->len = (size_t)(ch__put_varint(b->data + b->len, x) - b->data);
}

/* Saves a reference. Returns false, and saves nothing, if a row is not found. */
static bool save_ref(ch_saver *s, bool is_number, int n, const ch_row_word *word)
{
    int64_t row[CH_MAX_PARTS];
    bool    each_part = false;

    if (is_number) {
        if (begin_run(s, 0, false)) {
            put_varint(s, (uint64_t)word->number << 1 ^ (uint64_t)(word->number >> 63));
            s->run->count++;
        }
        return true;
    }
    for (int i = 0; i < n; i++) {
        if (!ch__row_tensors_find(s->tensors, word[i].data, &s->tensor[i], &row[i]))
            return false;
        each_part |= row[i] != row[0];
    }
    if (!begin_run(s, n, each_part))
        return true;
    for (int i = 0; i < (s->run->each_part ? n : 1); i++)
        put_varint(s, (uint64_t)row[i]);
    s->run->count++;
    return true;
}

void ch__save_refs(ch_saver *s, const ch_row_refs *r, int64_t from)
{
    for (int64_t i = from; i < r->n && s->rc == CH_OK; i++) {
        bool is_found = save_ref(s, r->is_number, r->n_words, ch__row_refs_at(r, i));

        assert(is_found); /* only rows of these tensors are referenced */
        (void)is_found;
    }
}

void ch__save_element(ch_saver *s, const ch_element *e)
{
    bool             is_number;
    int              n = ch__row_ref_words(e, &is_number);
    ch_row_word      word[CH_MAX_PARTS];
    Cohort__Element *m;
    ch_status        rc;

    if (s->rc != CH_OK)
        return;
    if (n > 0) {
        ch__row_ref_write(e, word);
        if (save_ref(s, is_number, n, word))
            return;
    }
    m = add_element(s);
    rc = m != NULL ? ch__element_encode(&s->arena, e, m) : CH_OK;
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

/* Returns true if the position leaves the stage out, because it has no state. So a position
 * fits datasets with and without options, and for any number of replicas. */
static bool is_left_out(const ch_cursor *c)
{
    return c->stage == &ch__stage_options ||
           (c->parent == NULL && c->stage == &ch__stage_split && ch__split_is_between(c));
}

void ch__cursor_save_back(ch_cursor *c, ch_saver *s, ch_back to)
{
    if (is_left_out(c)) {
        ch__save_input_back(c, s, to);
        return;
    }
    ch__save_begin(s, c->stage->name);
    ch__save_int(s, c->epoch - to.passes);
    s->place = to;
    c->stage->save(c, s);
}

void ch__cursor_save(ch_cursor *c, ch_saver *s)
{
    ch__cursor_save_back(c, s, (ch_back){0});
}

ch_status ch__position_save(ch_cursor *root, uint64_t hash, void **bytes, size_t *n)
{
    ch_saver         s = {.tensors = &root->it->tensors};
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
    uint32_t                n_taken;               /* references read of the run at `element` */
    size_t                  at;                    /* bytes read of its rows */
    bool                    fails;
    ch_status               rc;       /* INVALID_ARGUMENT, or out of memory */
    char                    why[128]; /* the first error */
};

/* Makes the loader fail with `rc`. Keeps the first error. */
static void set_failure(ch_loader *l, ch_status rc, const char *why)
{
    if (l->fails)
        return;
    l->fails = true;
    l->rc = rc;
    snprintf(l->why, sizeof(l->why), "%s", why);
}

/* Makes the loader fail, because the position does not fit the dataset. */
static void set_error(ch_loader *l, const char *why)
{
    set_failure(l, CH_INVALID_ARGUMENT, why);
}

/* Makes the loader fail, because an element could not be made. */
static void set_element_error(ch_loader *l, ch_status rc)
{
    set_failure(l, rc == CH_RESOURCE_EXHAUSTED ? rc : CH_INVALID_ARGUMENT, ch_error_message());
}

bool ch__load_fails(const ch_loader *l)
{
    return l->fails;
}

ch_status ch__load_status(ch_loader *l)
{
    if (!l->fails)
        return CH_OK;
    return ch__fail(l->rc, "the saved position %s stage %s: %s",
                    l->rc == CH_INVALID_ARGUMENT ? "does not fit" : "cannot be loaded into",
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
    l->n_taken = 0;
    l->at = 0;
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

/* Returns the next element message, which may be a run; NULL: the loader fails. */
static const Cohort__Element *next_message(ch_loader *l)
{
    if (l->fails || l->element == l->state->n_elements) {
        set_error(l, "an element is missing");
        return NULL;
    }
    return l->state->elements[l->element];
}

/* Reads a varint of the run's rows. */
static uint64_t load_varint(ch_loader *l, const Cohort__Element *m)
{
    ch_wire      w = ch__wire(m->rows.data, m->rows.len);
    ch_wire_span left = {w.all.at + l->at, w.all.end};
    uint64_t     x = 0;

    if (left.at == left.end || !ch__wire_varint(&w, &left, &x))
        set_error(l, "a row is missing");
    l->at = (size_t)(left.at - w.all.at);
    return x;
}

/* Sets the word of a row of a tensor of the dataset. Both indices are untrusted. */
static void set_row(ch_loader *l, uint32_t tensor, uint64_t row, ch_row_word *word)
{
    const ch_row_tensors *t = &l->cursor->it->tensors;
    const ch_row_tensor  *x = tensor < (uint32_t)t->n ? &t->at[tensor] : NULL;

    if (x == NULL || !t->is_clear || row >= (uint64_t)x->n_rows)
        set_error(l, "it refers to a row that the data in memory does not have");
    else
        word->data = x->data + (size_t)row * x->row_bytes;
}

/* Reads the next reference of the run `m`, which is the message at l->element. Returns the
 * number of its words; 0: the loader fails. */
static int load_ref(ch_loader *l, const Cohort__Element *m, ch_row_word *word)
{
    uint64_t x = load_varint(l, m);

    if (m->n_tensors > CH_MAX_PARTS)
        set_error(l, "an element has too many parts");
    if (m->n_tensors == 0)
        word->number = (int64_t)(x >> 1 ^ -(x & 1));
    for (size_t i = 0; i < m->n_tensors && !l->fails; i++) {
        if (i > 0 && m->each_part)
            x = load_varint(l, m);
        set_row(l, m->tensors[i], x, &word[i]);
    }
    if (l->fails)
        return 0;
    if (++l->n_taken == m->count) {
        if (l->at != m->rows.len)
            set_error(l, "it has more rows than elements");
        l->element++;
        l->n_taken = 0;
        l->at = 0;
    }
    return m->n_tensors > 0 ? (int)m->n_tensors : 1;
}

/* Returns an element that was made with `rc`. Returns NULL, and makes the loader fail, if it
 * could not be made, or is no element of `like`. */
static ch_element *check_element(ch_loader *l, ch_status rc, ch_element *e,
                                 const ch_dataset *like)
{
    if (rc == CH_OK && like != NULL)
        rc = ch__dataset_check(like, e);
    if (rc == CH_OK)
        return e;
    set_element_error(l, rc);
    ch__element_free(e);
    return NULL;
}

/* Makes the element of the next reference of the run `m`. */
static ch_element *load_run(ch_loader *l, const Cohort__Element *m, const ch_dataset *like)
{
    ch_row_word word[CH_MAX_PARTS];
    bool        is_number = m->n_tensors == 0;
    int         n = load_ref(l, m, word);
    ch_element *e = NULL;
    ch_status   rc;

    if (n == 0)
        return NULL;
    rc = ch__row_ref_make(&l->cursor->it->tensors, is_number, n, word, &e);
    return check_element(l, rc, e, like);
}

/* Checks that references of the run `m` stand for elements of `like`. All of them have the same
 * type. */
static void check_run(ch_loader *l, const Cohort__Element *m, const ch_dataset *like)
{
    ch_loader   ahead = *l; /* so that this reference is read again */
    ch_element *e = load_run(&ahead, m, like);

    if (e == NULL)
        *l = ahead;
    ch__element_free(e);
}

ch_status ch__load_refs(ch_loader *l, int64_t n, const ch_dataset *like, ch_row_refs *out)
{
    for (int64_t i = 0; i < n && !l->fails; i++) {
        const Cohort__Element *m = next_message(l);
        ch_row_word            word[CH_MAX_PARTS], *to;

        if (m == NULL)
            break;
        if (m->count == 0)
            set_error(l, "an element is not a reference");
        else if (i == 0 || l->n_taken == 0)
            check_run(l, m, like);
        int n_words = l->fails ? 0 : load_ref(l, m, word);
        if (n_words == 0)
            break;
        if (i > 0 && (out->is_number != (m->n_tensors == 0) || out->n_words != n_words)) {
            set_error(l, "its references have different types");
            break;
        }
        to = ch__row_refs_add(out, m->n_tensors == 0, n_words, true);
        if (to == NULL)
            return ch__fail_memory("position of an iterator");
        memcpy(to, word, (size_t)n_words * sizeof(*word));
    }
    return ch__load_status(l);
}

bool ch__load_is_old(const ch_loader *l)
{
    return l->position->format == OLD_FORMAT;
}

bool ch__load_has_passes(const ch_loader *l)
{
    return l->position->format == FORMAT;
}

ch_element *ch__load_result(ch_loader *l, const ch_dataset *like, ch_status *rc)
{
    ch_element            *e = NULL;
    const Cohort__Element *m = next_message(l);
    ch_status              made;

    *rc = CH_OK;
    if (m == NULL)
        return NULL;
    if (m->count > 0)
        return load_run(l, m, like);
    l->element++;
    if (m->code != 0 && m->code < CH_STATUS_COUNT) {
        *rc = ch__fail((ch_status)m->code, "%s", m->error);
        if (m->between)
            (void)ch__error_between(*rc);
        return NULL;
    }
    made = ch__parts_decode(m->n_parts, m->parts, &e);
    return check_element(l, made, e, like);
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

/* Returns true if the next state belongs to a stage `split`. */
static bool is_split_next(const ch_loader *l)
{
    return l->next < l->position->n_states &&
           strcmp(l->position->states[l->next]->stage, ch__stage_split.name) == 0;
}

/* Returns true if the position has left the stage out (is_left_out). */
static bool was_left_out(const ch_cursor *c, const ch_loader *l)
{
    return c->stage == &ch__stage_options ||
           (c->parent == NULL && c->stage == &ch__stage_split && !is_split_next(l));
}

ch_status ch__cursor_load(ch_cursor *c, ch_loader *l)
{
    if (was_left_out(c, l))
        return ch__load_inputs(c, l);
    if (c->parent == NULL && c->stage != &ch__stage_split && is_split_next(l))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "restore: the position is inside a batch that was divided among "
                        "replicas, and this iterator does not divide batches; save the "
                        "position between two batches");
    l->cursor = c;
    ch__load_begin(l, c->stage->name);
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
    ProtobufCMessage *message = NULL;
    Cohort__Position *m;
    ch_status rc = ch__protobuf_unpack(&cohort__position__descriptor, bytes, n, &message);

    if (rc != CH_OK)
        return ch__fail_at(rc, "restore: the saved position");
    m = (Cohort__Position *)message;
    if (m->format < OLD_FORMAT || m->format > FORMAT)
        rc = ch__fail(CH_UNIMPLEMENTED,
                      "restore: unknown format of the position (got %u, want %d to %d)",
                      m->format, OLD_FORMAT, FORMAT);
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
        ch__protobuf_free(message);
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
