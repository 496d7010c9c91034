/* kernel/move.c -- copies of boxes of elements between arrays of any strides.
 *
 * ch__move_make sorts and joins the axes (`struct axes`) and chooses the inner part: a line,
 * which is copied unit by unit, or a plane, which is transposed in squares (turn.inc).
 * ch__move_pieces walks over the outer axes. ch__border_make and ch__border_rows do the same
 * for padding. The callers are ops/box.h and the ops of arrays.
 *
 * Invariants:
 *   1. Every byte of the target belongs to exactly one piece, so pieces may run in any order.
 *   2. After ch__move_make the plan is read-only.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/move.h"

#include <string.h>

#define LINE  64         /* bytes of a cache line */
#define WIDE  256        /* source bytes of a plane at a time: see turn.inc */
#define PIECE (64 << 10) /* bytes that are worth a call */

/* ---- planning ---- */

typedef struct axes {
    int     rank;
    int64_t dim[CH_MOVE_RANK], from[CH_MOVE_RANK], to[CH_MOVE_RANK];
} axes;

static void axes_remove(axes *a, int i)
{
    for (a->rank--; i < a->rank; i++) {
        a->dim[i] = a->dim[i + 1];
        a->from[i] = a->from[i + 1];
        a->to[i] = a->to[i + 1];
    }
}

/* Inserts an axis. Keeps the largest target stride first, so that the target is written front
 * to back. */
static void axes_insert(axes *a, int64_t dim, int64_t from, int64_t to)
{
    int i = a->rank++;

    for (; i > 0 && a->to[i - 1] < to; i--) {
        a->dim[i] = a->dim[i - 1];
        a->from[i] = a->from[i - 1];
        a->to[i] = a->to[i - 1];
    }
    a->dim[i] = dim;
    a->from[i] = from;
    a->to[i] = to;
}

/* Joins two neighbour axes if both sides can walk them with a single stride. */
static void axes_join(axes *a)
{
    for (int i = a->rank - 2; i >= 0; i--) {
        int64_t n = a->dim[i + 1];

        if (a->from[i] != a->from[i + 1] * n || a->to[i] != a->to[i + 1] * n)
            continue;
        a->dim[i] *= n;
        a->from[i] = a->from[i + 1];
        a->to[i] = a->to[i + 1];
        axes_remove(a, i + 1);
    }
}

/* Returns the axis with elements that are adjacent in the source, if it is not the last and
 * transposing a plane pays; otherwise -1. */
static int axes_plane(const axes *a, int64_t unit)
{
    int last = a->rank - 1;

    if (unit > 8 || a->to[last] != unit || a->from[last] == 0 || (unit & (unit - 1)) != 0)
        return -1;
    for (int i = 0; i < last; i++)
        if (a->from[i] == unit)
            return i;
    return -1;
}

static int64_t at_least_1(int64_t n)
{
    return n > 1 ? n : 1;
}

/* Chooses the inner part and removes its axes from a. */
static void choose_inner(ch_move *m, axes *a)
{
    int last = a->rank - 1, lines = axes_plane(a, m->unit);

    m->n = a->dim[last];
    m->from_step = a->from[last];
    m->to_step = a->to[last];
    m->n_lines = 1;
    m->cut = at_least_1(PIECE / m->unit);
    if (lines >= 0) {
        m->n_lines = a->dim[lines];
        m->from_line = a->from[lines];
        m->to_line = a->to[lines];
        m->cut = at_least_1(PIECE / (m->n * WIDE)) * (WIDE / m->unit);
    }
    axes_remove(a, last);
    if (lines >= 0)
        axes_remove(a, lines);
}

void ch__move_make(ch_move *m, int rank, const int64_t *dim, const int64_t *from,
                   const int64_t *to, size_t bytes)
{
    int64_t unit = (int64_t)bytes, limit;
    axes    a = {0};
    int     last;

    memset(m, 0, sizeof(*m));
    m->unit = unit;
    for (int i = 0; i < rank; i++) {
        if (dim[i] == 0)
            return;
        if (dim[i] > 1)
            axes_insert(&a, dim[i], from[i] * unit, to[i] * unit);
    }
    axes_join(&a);
    last = a.rank - 1;
    if (last >= 1 && a.from[last] == unit && a.to[last] == unit &&
        a.dim[last] * unit <= PIECE) { /* a short run becomes the unit of a line */
        m->unit = a.dim[last] * unit;
        axes_remove(&a, last);
    }
    if (a.rank == 0)
        axes_insert(&a, 1, m->unit, m->unit);
    choose_inner(m, &a);
    limit = m->n_lines > 1 ? m->n_lines : m->n;
    m->cut = m->cut < limit ? m->cut : limit;
    m->n_cuts = (limit + m->cut - 1) / m->cut;
    m->n_pieces = m->n_cuts;
    m->rank = a.rank;
    memcpy(m->dim, a.dim, sizeof(m->dim));
    memcpy(m->from, a.from, sizeof(m->from));
    memcpy(m->to, a.to, sizeof(m->to));
    for (int i = 0; i < m->rank; i++)
        m->n_pieces *= m->dim[i];
}

int ch__move_is_run(const ch_move *m)
{
    return m->n_pieces == 0 || (m->rank == 0 && m->n_lines == 1 && m->from_step == m->unit &&
                                m->to_step == m->unit);
}

int64_t ch__move_bytes(const ch_move *m)
{
    return m->n_pieces == 0 ? 0 : m->n_pieces / m->n_cuts * m->n * m->n_lines * m->unit;
}

/* ---- lines ---- */

/* If `unit` is a compile-time constant, each memcpy becomes a load and a store. */
static inline void copy_units(int64_t unit, int64_t n, const char *from, int64_t from_step,
                              char *to, int64_t to_step)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * to_step, from + i * from_step, (size_t)unit);
}

static void copy_line(const ch_move *m, const char *from, char *to, int64_t n)
{
    if (m->from_step == m->unit && m->to_step == m->unit)
        memcpy(to, from, (size_t)(n * m->unit));
    else if (m->unit == 1)
        copy_units(1, n, from, m->from_step, to, m->to_step);
    else if (m->unit == 2)
        copy_units(2, n, from, m->from_step, to, m->to_step);
    else if (m->unit == 4)
        copy_units(4, n, from, m->from_step, to, m->to_step);
    else if (m->unit == 8)
        copy_units(8, n, from, m->from_step, to, m->to_step);
    else if (m->unit == 16)
        copy_units(16, n, from, m->from_step, to, m->to_step);
    else
        copy_units(m->unit, n, from, m->from_step, to, m->to_step);
}

/* ---- planes ---- */

typedef struct plane {
    int64_t n, from_step;
    int64_t n_lines, to_line;
} plane;

#define TURN(name) name##_1
#define TURN_TYPE  uint8_t
#define TURN_LANES 16
#define TURN_LOW   0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define TURN_HIGH  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#include "kernel/turn.inc"

#define TURN(name) name##_2
#define TURN_TYPE  uint16_t
#define TURN_LANES 8
#define TURN_LOW   0, 8, 1, 9, 2, 10, 3, 11
#define TURN_HIGH  4, 12, 5, 13, 6, 14, 7, 15
#include "kernel/turn.inc"

#define TURN(name) name##_4
#define TURN_TYPE  uint32_t
#define TURN_LANES 4
#define TURN_LOW   0, 4, 1, 5
#define TURN_HIGH  2, 6, 3, 7
#include "kernel/turn.inc"

#define TURN(name) name##_8
#define TURN_TYPE  uint64_t
#define TURN_LANES 2
#define TURN_LOW   0, 2
#define TURN_HIGH  1, 3
#include "kernel/turn.inc"

/* Copies a plane with few units in a line, unit by unit: for each unit, the source of all lines
 * is contiguous. */
static void copy_columns(const plane *p, int64_t unit, const char *from, char *to)
{
    for (int64_t i = 0; i < p->n; i++) {
        const char *at = from + i * p->from_step;
        char       *out = to + i * unit;

        if (unit == 1)
            copy_units(1, p->n_lines, at, 1, out, p->to_line);
        else if (unit == 2)
            copy_units(2, p->n_lines, at, 2, out, p->to_line);
        else if (unit == 4)
            copy_units(4, p->n_lines, at, 4, out, p->to_line);
        else
            copy_units(8, p->n_lines, at, 8, out, p->to_line);
    }
}

static void transpose_plane(const ch_move *m, const char *from, char *to, int64_t n_lines)
{
    plane p = {m->n, m->from_step, n_lines, m->to_line};

    if (p.n < 4 && p.n < n_lines)
        copy_columns(&p, m->unit, from, to);
    else if (m->unit == 1)
        plane_1(&p, from, to);
    else if (m->unit == 2)
        plane_2(&p, from, to);
    else if (m->unit == 4)
        plane_4(&p, from, to);
    else
        plane_8(&p, from, to);
}

/* ---- pieces ---- */

/* Copies cut number `cut` of the inner part that begins at `from` and `to`. */
static inline void move_cut(const ch_move *m, const char *from, char *to, int64_t cut)
{
    int64_t all = m->n_lines > 1 ? m->n_lines : m->n;
    int64_t first = cut * m->cut, n = all - first < m->cut ? all - first : m->cut;

    if (m->n_lines > 1)
        transpose_plane(m, from + first * m->from_line, to + first * m->to_line, n);
    else
        copy_line(m, from + first * m->from_step, to + first * m->to_step, n);
}

void ch__move_pieces(const ch_move *m, const void *from, void *to, int64_t begin, int64_t end)
{
    int64_t     index[CH_MOVE_RANK] = {0}, cut, at;
    const char *in = from;
    char       *out = to;

    if (begin >= end)
        return;
    cut = begin % m->n_cuts;
    at = begin / m->n_cuts;
    for (int i = m->rank - 1; i >= 0; i--) {
        index[i] = at % m->dim[i];
        at /= m->dim[i];
        in += index[i] * m->from[i];
        out += index[i] * m->to[i];
    }
    for (int64_t piece = begin; piece < end; piece++) {
        int i = m->rank - 1;

        move_cut(m, in, out, cut);
        if (++cut < m->n_cuts)
            continue;
        cut = 0;
        for (; i >= 0; i--) {
            in += m->from[i];
            out += m->to[i];
            if (++index[i] < m->dim[i])
                break;
            index[i] = 0;
            in -= m->from[i] * m->dim[i];
            out -= m->to[i] * m->dim[i];
        }
    }
}

/* ---- filling ---- */

static void fill_2(uint16_t *to, int64_t n, uint16_t value)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = value;
}

static void fill_4(uint32_t *to, int64_t n, uint32_t value)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = value;
}

static void fill_8(uint64_t *to, int64_t n, uint64_t value)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = value;
}

void ch__fill(void *to, int64_t n, size_t bytes, const void *value)
{
    const unsigned char *v = value;
    uint16_t             v2;
    uint32_t             v4;
    uint64_t             v8;
    size_t               i = 1;

    while (i < bytes && v[i] == v[0])
        i++;
    if (i == bytes) { /* mostly zeros */
        memset(to, v[0], (size_t)n * bytes);
    } else if (bytes == 2) {
        memcpy(&v2, value, 2);
        fill_2(to, n, v2);
    } else if (bytes == 4) {
        memcpy(&v4, value, 4);
        fill_4(to, n, v4);
    } else {
        memcpy(&v8, value, 8);
        fill_8(to, n, v8);
    }
}

/* ---- padding ---- */

/* Returns true if the axis has no border. */
static int is_whole(const ch_border_axis *a)
{
    return a->before == 0 && a->n == a->total && a->step == 1;
}

void ch__border_make(ch_border *p, int rank, const ch_border_axis *axis, size_t bytes,
                     const void *value)
{
    memset(p, 0, sizeof(*p));
    p->bytes = bytes;
    p->unit = 1;
    memcpy(p->value, value, bytes);
    for (; rank > 0 && is_whole(&axis[rank - 1]); rank--)
        p->unit *= axis[rank - 1].n;
    for (int i = 0; i < rank; i++) { /* joins axes without a border */
        if (p->rank > 0 && is_whole(&axis[i]) && is_whole(&p->axis[p->rank - 1])) {
            p->axis[p->rank - 1].n *= axis[i].n;
            p->axis[p->rank - 1].total *= axis[i].n;
        } else {
            p->axis[p->rank++] = axis[i];
        }
    }
    if (p->rank == 0)
        p->axis[p->rank++] = (ch_border_axis){1, 0, 1, 1};
    p->n_rows = 1;
    for (int i = 0; i < p->rank - 1; i++)
        p->n_rows *= p->axis[i].total;
}

/* Returns the source row of row `row` of the target; -1 if the row is border only. */
static int64_t source_row(const ch_border *p, int64_t row)
{
    int64_t source = 0, scale = 1;

    for (int i = p->rank - 2; i >= 0; i--) {
        const ch_border_axis *a = &p->axis[i];
        int64_t               at = row % a->total - a->before;

        if (at < 0 || at % a->step != 0 || at / a->step >= a->n)
            return -1;
        source += at / a->step * scale;
        scale *= a->n;
        row /= a->total;
    }
    return source;
}

static void pad_row(const ch_border *p, const char *from, char *to)
{
    const ch_border_axis *a = &p->axis[p->rank - 1];
    int64_t               unit = p->unit * (int64_t)p->bytes;
    int64_t               begin = a->before * unit, end = a->total * unit;

    ch__fill(to, a->before * p->unit, p->bytes, p->value);
    if (a->step == 1) {
        memcpy(to + begin, from, (size_t)(a->n * unit));
        begin += a->n * unit;
    } else {
        ch__fill(to + begin, (a->total - a->before) * p->unit, p->bytes, p->value);
        copy_units(unit, a->n, from, unit, to + begin, a->step * unit);
        begin = end;
    }
    ch__fill(to + begin, (end - begin) / (int64_t)p->bytes, p->bytes, p->value);
}

void ch__border_rows(const ch_border *p, const void *from, void *to, int64_t begin, int64_t end)
{
    const ch_border_axis *a = &p->axis[p->rank - 1];
    int64_t               unit = p->unit * (int64_t)p->bytes;

    for (int64_t row = begin; row < end; row++) {
        char   *out = (char *)to + row * a->total * unit;
        int64_t source = a->n > 0 ? source_row(p, row) : -1;

        if (source < 0)
            ch__fill(out, a->total * p->unit, p->bytes, p->value);
        else
            pad_row(p, (const char *)from + source * a->n * unit, out);
    }
}
