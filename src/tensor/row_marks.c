/* tensor/row_marks.c -- a bit for each row that has changed (row_marks.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/row_marks.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

ch_status ch__row_marks_new(int64_t n_rows, ch_row_marks **out)
{
    ch_row_marks *m = ch__calloc(1, sizeof(*m) + (size_t)ch__row_marks_bytes(n_rows));

    if (m == NULL)
        return ch__fail_memory("marks of changed rows");
    m->n_rows = n_rows;
    *out = m;
    return CH_OK;
}

ch_status ch__row_marks_copy(const ch_row_marks *m, ch_row_marks **out)
{
    ch_row_marks *copy = NULL;
    ch_status     rc = ch__row_marks_new(m->n_rows, &copy);

    if (rc != CH_OK)
        return rc;
    copy->all = m->all;
    memcpy(copy->bits, m->bits, (size_t)ch__row_marks_bytes(m->n_rows));
    *out = copy;
    return CH_OK;
}

void ch__row_marks_clear(ch_row_marks *m)
{
    m->all = false;
    memset(m->bits, 0, (size_t)ch__row_marks_bytes(m->n_rows));
}

static inline void mark(ch_row_marks *m, int64_t row)
{
    m->bits[row / 8] |= (uint8_t)(1u << (row % 8));
}

void ch__row_marks_add(ch_row_marks *m, int64_t n, const void *ids, bool wide)
{
    const int32_t *narrow_id = ids;
    const int64_t *wide_id = ids;

    for (int64_t i = 0; i < n && !m->all; i++) {
        int64_t id = wide ? wide_id[i] : narrow_id[i];

        if (id >= 0 && id < m->n_rows)
            mark(m, id);
    }
}

void ch__row_marks_add_range(ch_row_marks *m, int64_t from, int64_t to)
{
    if (from == 0 && to == m->n_rows)
        m->all = true;
    for (int64_t i = from; i < to && !m->all; i++)
        mark(m, i);
}

void ch__row_marks_add_all(ch_row_marks *m)
{
    m->all = true;
}

void ch__row_marks_add_region(ch_row_marks *m, const ch_region *region)
{
    if (m == NULL)
        return;
    if (region != NULL)
        ch__row_marks_add_range(m, region->begin[0], region->begin[0] + region->size[0]);
    else
        ch__row_marks_add_all(m);
}

/* Returns the byte at `at`, without the bits behind the last row. */
static uint8_t byte_at(int64_t n_rows, const uint8_t *bits, int64_t at)
{
    int64_t n = n_rows - 8 * at;

    return n < 8 ? bits[at] & (uint8_t)((1u << n) - 1) : bits[at];
}

static int64_t count(int64_t n_rows, const uint8_t *bits)
{
    int64_t n = 0;

    for (int64_t i = 0; i < ch__row_marks_bytes(n_rows); i++)
        n += __builtin_popcount(byte_at(n_rows, bits, i));
    return n;
}

ch_status ch__row_marks_list(int64_t n_rows, const uint8_t *bits, int64_t *n, int64_t **ids)
{
    int64_t  total = count(n_rows, bits), k = 0;
    int64_t *list = NULL;

    if (total == 0) {
        *n = 0;
        *ids = NULL;
        return CH_OK;
    }
    list = ch__calloc((size_t)total, sizeof(*list));
    if (list == NULL)
        return ch__fail_memory("a list of changed rows");
    for (int64_t i = 0; i < ch__row_marks_bytes(n_rows); i++)
        for (unsigned byte = byte_at(n_rows, bits, i); byte != 0; byte &= byte - 1)
            list[k++] = 8 * i + __builtin_ctz(byte);
    *n = total;
    *ids = list;
    return CH_OK;
}
