/* data/format/libsvm.c -- parses a line of LibSVM text into an element.
 *
 * ch__libsvm_parse allocates the element first, for the largest number of values that the line
 * can have, and then parses each index:value pair into place. data/text.c calls it in worker
 * threads. Nothing in the line is trusted.
 *
 * Indices that rise strictly cannot occur twice. Only for a line in which they do not rise are
 * the indices parsed a second time, sorted and compared.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/libsvm.h"

#include <inttypes.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/format/number.h"
#include "data/format/show.h"

ch_status ch__libsvm_check(const ch_libsvm *o)
{
    int64_t count, bytes;

    if (o->n_features >= !o->sparse &&
        ch__tensor_size(CH_F32, ch_shape_of(o->n_features), &count, &bytes) == CH_OK)
        return CH_OK;
    return ch__fail(
        CH_INVALID_ARGUMENT, "libsvm: n_features is out of range (got %" PRId64 " features)%s",
        o->n_features, o->n_features == 0 ? "; 0 (no limit) needs the option sparse" : "");
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

/* Removes the first word from `rest` and stores it in *out. Returns false if there is no
 * word. */
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
    int64_t index; /* counted from 0 */
    float   value;
} pair;

static ch_status fail_pair(ch_str word)
{
    return ch__fail(CH_DATA_LOSS, "%s is not index:value", ch__show(word).text);
}

static ch_status fail_index(const ch_libsvm *o, int64_t index)
{
    if (o->n_features == 0)
        return ch__fail(CH_DATA_LOSS, "index %" PRId64 " is below the first index, %d", index,
                        !o->from_zero);
    return ch__fail(CH_DATA_LOSS,
                    "index %" PRId64 " is out of range: there are %" PRId64
                    " features, and the first index is %d",
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

/* Parses the next pair of `rest`. *found is false if there are no more. Skips query numbers. */
static ch_status next_pair(const ch_libsvm *o, ch_str *rest, pair *out, bool *found)
{
    ch_str word;

    do
        *found = next_word(rest, &word);
    while (*found && word.size >= 4 && memcmp(word.data, "qid:", 4) == 0);
    return *found ? read_pair(o, word, out) : CH_OK;
}

/* ---- indices that do not rise ---- */

/* Sorts in place (heapsort). It takes O(n log n) steps for every order, so that a hostile line
 * cannot make it slow. */
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

/* Returns DATA_LOSS if an index occurs twice. `pairs` has `n` valid pairs. Called only for
 * lines whose indices do not rise, which are rare. */
static ch_status check_twice(const ch_libsvm *o, ch_str pairs, size_t n)
{
    int64_t  *index = ch__malloc(n * sizeof(*index));
    ch_status rc = index == NULL ? ch__fail_memory("libsvm: line") : CH_OK;
    bool      found;
    pair      p = {0};

    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        rc = next_pair(o, &pairs, &p, &found);
        if (rc == CH_OK)
            index[i] = p.index;
    }
    if (rc == CH_OK)
        sort(index, n);
    for (size_t i = 1; i < n && rc == CH_OK; i++)
        if (index[i] == index[i - 1])
            rc = ch__fail(CH_DATA_LOSS, "index %" PRId64 " occurs twice",
                          index[i] + !o->from_zero);
    ch__free(index);
    return rc;
}

/* ---- elements ---- */

/* Pointers to the parts' data in the element that is being filled. */
typedef struct parts {
    float   *x;      /* dense elements */
    int64_t *ids;    /* sparse elements */
    float   *values; /* sparse elements */
} parts;

/* Parses all pairs into `to`. *n becomes their number. */
static ch_status fill(const ch_libsvm *o, ch_str pairs, const parts *to, size_t *n)
{
    ch_str    rest = pairs;
    int64_t   last = -1;
    bool      rises = true, found = true;
    ch_status rc;
    pair      p;

    for (*n = 0;; ++*n) {
        rc = next_pair(o, &rest, &p, &found);
        if (rc != CH_OK)
            return rc;
        if (!found)
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

/* Creates the element. Its room holds the label (padded to 16 bytes) and then x, or the ids
 * followed by the values. Each pair has a colon, so the number of colons bounds the number of
 * ids. */
static ch_status make_element(const ch_libsvm *o, float label, ch_str pairs, ch_element **out)
{
    size_t      most = o->sparse ? count_colons(pairs) : (size_t)o->n_features;
    size_t      each = o->sparse ? sizeof(int64_t) + sizeof(float) : sizeof(float);
    ch_element *e = ch__element_new(o->sparse ? 3 : 2, 0, 16 + most * each);
    size_t      n = 0;

    if (e == NULL)
        return ch__fail_memory("libsvm: line");
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
        return ch__fail(CH_DATA_LOSS, "the label %s is not a number", ch__show(label).text);
    return make_element(o, y, line, out);
}
