/* data/libsvm.c -- a line of LibSVM text as an element.   SPDX-License-Identifier: Apache-2.0 */
#include "data/libsvm.h"

#include <inttypes.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/number.h"
#include "data/show.h"

ch_status ch__libsvm_check(const ch_libsvm *o)
{
    int64_t count, bytes;

    if (o->n_features >= !o->sparse &&
        ch__tensor_size(CH_F32, ch_shape_of(o->n_features), &count, &bytes) == CH_OK)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT, "libsvm: there cannot be %" PRId64 " features%s",
                    o->n_features,
                    o->n_features == 0 ? "; 0, for any number, goes with sparse alone" : "");
}

int ch__libsvm_spec(const ch_libsvm *o, ch_tensor_spec out[3])
{
    const ch_tensor_spec y = {"y", CH_F32, ch_shape_scalar()};

    if (!o->sparse) {
        out[0] = (ch_tensor_spec){"x", CH_F32, ch_shape_of(o->n_features)};
        out[1] = y;
        return 2;
    }
    out[0] = (ch_tensor_spec){"ids", CH_I64, ch_shape_of(-1)};
    out[1] = (ch_tensor_spec){"values", CH_F32, ch_shape_of(-1)};
    out[2] = y;
    return 3;
}

/* ---- tokens ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Takes a word off the beginning of `rest`; false if there is none. */
static bool next_word(ch_str *rest, ch_str *out)
{
    const char *at = rest->data, *end = at + rest->size;

    while (at < end && is_blank(*at))
        at++;
    out->data = at;
    while (at < end && !is_blank(*at))
        at++;
    out->size = (size_t)(at - out->data);
    *rest = (ch_str){at, (size_t)(end - at)};
    return out->size > 0;
}

typedef struct pair {
    int64_t index; /* from 0 on */
    float   value;
} pair;

static ch_status fail_pair(ch_str word)
{
    return ch__fail(CH_DATA_LOSS, "%s is no index:value", ch__show(word).text);
}

static ch_status fail_index(const ch_libsvm *o, int64_t index)
{
    if (o->n_features == 0)
        return ch__fail(CH_DATA_LOSS, "index %" PRId64 " is before the first, which is %d",
                        index, !o->from_zero);
    return ch__fail(CH_DATA_LOSS,
                    "index %" PRId64 " is none of the %" PRId64
                    " features, which begin with %d",
                    index, o->n_features, !o->from_zero);
}

static ch_status read_pair(const ch_libsvm *o, ch_str word, pair *out)
{
    const char *colon = memchr(word.data, ':', word.size);
    size_t      size = colon != NULL ? (size_t)(colon - word.data) : 0;
    int64_t     index;

    if (colon == NULL ||
        ch__number_parse(CH_I64, (ch_str){word.data, size}, &index) != CH_PARSED ||
        ch__number_parse(CH_F32, (ch_str){colon + 1, word.size - size - 1}, &out->value) !=
            CH_PARSED)
        return fail_pair(word);
    out->index = index - (index > INT64_MIN && !o->from_zero);
    if (out->index < 0 || (o->n_features > 0 && out->index >= o->n_features))
        return fail_index(o, index);
    return CH_OK;
}

/* The next pair; *there is false behind the last. The number of a query is passed over. */
static ch_status next_pair(const ch_libsvm *o, ch_str *rest, pair *out, bool *there)
{
    ch_str word;

    do
        *there = next_word(rest, &word);
    while (*there && word.size >= 4 && memcmp(word.data, "qid:", 4) == 0);
    return *there ? read_pair(o, word, out) : CH_OK;
}

/* ---- indices that do not rise ---- */

/* Sorts in place, in n log n steps whatever the order was: a heap whose largest goes last. */
static void sort(int64_t *x, size_t n)
{
    for (size_t built = n / 2, end = n; end > 1;) {
        int64_t moved;
        size_t  at = 0;

        if (built > 0) {
            at = --built;
            moved = x[at];
        } else {
            moved = x[--end];
            x[end] = x[0];
        }
        for (size_t child; (child = 2 * at + 1) < end; at = child) {
            child += child + 1 < end && x[child + 1] > x[child];
            if (x[child] <= moved)
                break;
            x[at] = x[child];
        }
        x[at] = moved;
    }
}

/* Fails if an index is there twice: `pairs` has n of them. Called for lines whose indices do not
 * rise, which few files have. */
static ch_status check_twice(const ch_libsvm *o, ch_str pairs, size_t n)
{
    int64_t  *index = ch__malloc(n * sizeof(*index));
    ch_status rc = index == NULL ? ch__fail_memory("line of libsvm") : CH_OK;
    bool      there;
    pair      p = {0};

    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        rc = next_pair(o, &pairs, &p, &there);
        if (rc == CH_OK)
            index[i] = p.index;
    }
    if (rc == CH_OK)
        sort(index, n);
    for (size_t i = 1; i < n && rc == CH_OK; i++)
        if (index[i] == index[i - 1])
            rc = ch__fail(CH_DATA_LOSS, "index %" PRId64 " is there twice",
                          index[i] + !o->from_zero);
    ch__free(index);
    return rc;
}

/* ---- elements ---- */

/* Where the parts of the element in the making are. */
typedef struct parts {
    float   *x; /* dense */
    int64_t *ids;
    float   *values;
} parts;

/* Reads all pairs; *n is how many there were. */
static ch_status fill(const ch_libsvm *o, ch_str pairs, const parts *to, size_t *n)
{
    ch_str    rest = pairs;
    int64_t   last = -1;
    bool      rises = true, there = true;
    ch_status rc;
    pair      p;

    for (*n = 0;; ++*n) {
        rc = next_pair(o, &rest, &p, &there);
        if (rc != CH_OK)
            return rc;
        if (!there)
            return rises ? CH_OK : check_twice(o, pairs, *n);
        rises &= p.index > last;
        last = p.index;
        if (!o->sparse) {
            to->x[p.index] = p.value;
        } else {
            to->ids[*n] = p.index;
            to->values[*n] = p.value;
        }
    }
}

static size_t count_colons(ch_str s)
{
    size_t n = 0;

    for (size_t i = 0; i < s.size; i++)
        n += s.data[i] == ':';
    return n;
}

/* The room is for the label, and then for x, or for as many ids and values as there are colons. */
static ch_status make_element(const ch_libsvm *o, float label, ch_str pairs, ch_element **out)
{
    size_t      most = o->sparse ? count_colons(pairs) : (size_t)o->n_features;
    size_t      each = o->sparse ? sizeof(int64_t) + sizeof(float) : sizeof(float);
    ch_element *e = ch__element_new(o->sparse ? 3 : 2, 0, 16 + most * each);
    size_t      n = 0;

    if (e == NULL)
        return ch__fail_memory("line of libsvm");
    float *y = e->room;
    parts  to = {.x = y + 4, .ids = (int64_t *)e->room + 2, .values = y + 4 + 2 * most};
    *y = label;
    e->part[e->n - 1] = (ch_part){.dtype = CH_F32, .shape = ch_shape_scalar(), .data = y};
    if (!o->sparse)
        memset(to.x, 0, most * sizeof(*to.x));
    ch_status rc = fill(o, pairs, &to, &n);
    if (rc != CH_OK) {
        ch__element_free(e);
        return rc;
    }
    if (o->sparse) {
        e->part[0] =
            (ch_part){.dtype = CH_I64, .shape = ch_shape_of((int64_t)n), .data = to.ids};
        e->part[1] =
            (ch_part){.dtype = CH_F32, .shape = ch_shape_of((int64_t)n), .data = to.values};
    } else {
        e->part[0] =
            (ch_part){.dtype = CH_F32, .shape = ch_shape_of(o->n_features), .data = to.x};
    }
    *out = e;
    return CH_OK;
}

ch_status ch__libsvm_parse(const ch_libsvm *o, ch_str line, ch_element **out)
{
    const char *comment = line.size > 0 ? memchr(line.data, '#', line.size) : NULL;
    ch_str      label;
    float       y;

    if (line.size == 0)
        line.data = "";
    if (comment != NULL)
        line.size = (size_t)(comment - line.data);
    if (!next_word(&line, &label)) {
        *out = NULL;
        return CH_OK;
    }
    if (ch__number_parse(CH_F32, label, &y) != CH_PARSED)
        return ch__fail(CH_DATA_LOSS, "the label %s is no number", ch__show(label).text);
    return make_element(o, y, line, out);
}
