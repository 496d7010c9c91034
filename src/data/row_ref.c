/* data/row_ref.c -- references to elements that can be made again without their data.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/row_ref.h"

#include <assert.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/stages.h"

/* ---- tensors ---- */

static bool overlaps(const ch_row_tensor *a, const ch_row_tensor *b)
{
    uintptr_t from = (uintptr_t)a->data, other = (uintptr_t)b->data;

    return from < other + (size_t)b->n_rows * b->row_bytes &&
           other < from + (size_t)a->n_rows * a->row_bytes;
}

/* Returns true if an address that is a row of both tensors stands for the same element. */
static bool has_same_rows(const ch_row_tensor *a, const ch_row_tensor *b)
{
    uintptr_t from = (uintptr_t)a->data, other = (uintptr_t)b->data;

    return a->dtype == b->dtype && ch_shape_equal(a->shape, b->shape) &&
           (from > other ? from - other : other - from) % a->row_bytes == 0;
}

static ch_status add_tensor(ch_row_tensors *t, const ch_tensor *x, bool is_whole)
{
    int skip = is_whole ? 0 : 1;
    ch_row_tensor new = {.data = x->data,
                         .n_rows = is_whole ? 1 : x->shape.dim[0],
                         .dtype = x->dtype,
                         .shape = ch_shape_make(x->shape.rank - skip, x->shape.dim + skip),
                         .buffer = x->buffer};

    new.row_bytes = (size_t)ch_shape_count(new.shape) * ch_dtype_bytes(new.dtype);
    if (!ch__grow((void **)&t->at, &t->capacity, t->n + 1, sizeof(*t->at)))
        return ch__fail_memory("tensors of a dataset");
    t->is_clear &= new.row_bytes > 0;
    for (int i = 0; i < t->n && t->is_clear; i++)
        t->is_clear = !overlaps(&t->at[i], &new) || has_same_rows(&t->at[i], &new);
    t->at[t->n++] = new;
    return CH_OK;
}

/* The recursion is bounded, because the size of a tree of stages is. */
static ch_status collect(ch_row_tensors *t, const ch_dataset *d)
{
    ch_status rc = CH_OK;

    for (int i = 0; d->data != NULL && i < ch_tuple_count(d->data) && rc == CH_OK; i++)
        rc = add_tensor(t, ch_value_at(ch_tuple_at(d->data, i), 0),
                        d->stage == &ch__stage_tensors);
    for (int i = 0; i < d->n_in && rc == CH_OK; i++)
        rc = collect(t, d->in[i]);
    return rc == CH_OK && d->body != NULL ? collect(t, d->body) : rc;
}

ch_status ch__row_tensors_collect(ch_row_tensors *t, const ch_dataset *d)
{
    t->is_clear = true;
    return collect(t, d);
}

void ch__row_tensors_drop(ch_row_tensors *t)
{
    ch__free(t->at);
    *t = (ch_row_tensors){0};
}

bool ch__row_tensors_find(const ch_row_tensors *t, const void *data, int *tensor, int64_t *row)
{
    for (int i = 0; i < t->n && t->is_clear; i++) {
        int                  k = *tensor + i < t->n ? *tensor + i : *tensor + i - t->n;
        const ch_row_tensor *x = &t->at[k];
        uintptr_t            offset = (uintptr_t)data - (uintptr_t)x->data;

        if (offset >= (size_t)x->n_rows * x->row_bytes || offset % x->row_bytes != 0)
            continue;
        *tensor = k;
        *row = (int64_t)(offset / x->row_bytes);
        return true;
    }
    return false;
}

/* ---- references ---- */

void ch__row_ref_write(const ch_element *e, ch_row_word *word)
{
    if (e->is_row)
        for (int i = 0; i < e->n; i++)
            word[i].data = e->part[i].data;
    else
        memcpy(&word->number, e->part[0].data, sizeof(word->number));
}

ch_status ch__row_ref_make(const ch_row_tensors *t, bool is_number, int n,
                           const ch_row_word *word, ch_element **out)
{
    int64_t     row;
    int         k = 0;
    ch_element *e;

    if (is_number)
        return ch__element_of_int(word->number, out);
    e = ch__element_new(n, n, 0);
    if (e == NULL)
        return ch__fail_memory("element");
    for (int i = 0; i < n; i++, k = k + 1 < t->n ? k + 1 : 0) {
        bool is_found = ch__row_tensors_find(t, word[i].data, &k, &row);

        assert(is_found); /* only rows of these tensors are referenced */
        (void)is_found;
        e->part[i] =
            (ch_part){.dtype = t->at[k].dtype, .shape = t->at[k].shape, .data = word[i].data};
        e->owner[i] = ch__buffer_ref(t->at[k].buffer);
    }
    e->is_row = true;
    *out = e;
    return CH_OK;
}

/* Makes the ring larger. */
static bool grow(ch_row_refs *r)
{
    int64_t      capacity = r->capacity > 0 ? 2 * r->capacity : 256;
    size_t       bytes = (size_t)r->n_words * sizeof(ch_row_word);
    ch_row_word *word = ch__calloc((size_t)capacity, bytes);

    if (word == NULL)
        return false;
    for (int64_t i = 0; i < r->n; i++)
        memcpy(word + ((r->first + i) & (capacity - 1)) * r->n_words, ch__row_refs_at(r, i),
               bytes);
    ch__free(r->word);
    r->word = word;
    r->capacity = capacity;
    return true;
}

ch_row_word *ch__row_refs_add(ch_row_refs *r, bool is_number, int n_words, bool grows)
{
    if (r->is_number != is_number || r->n_words != n_words) {
        ch__row_refs_drop(r);
        r->is_number = is_number;
        r->n_words = n_words;
    }
    if (r->n == r->capacity && (grows || r->capacity == 0) && !grow(r))
        return NULL;
    if (r->n == r->capacity)
        ch__row_refs_pop(r);
    return ch__row_refs_at(r, r->n++);
}

void ch__row_refs_drop(ch_row_refs *r)
{
    ch__free(r->word);
    *r = (ch_row_refs){0};
}
