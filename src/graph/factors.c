/* graph/factors.c -- the helper functions of partition rules (graph/factors.h).
 *
 * The `factors` functions of ops call the first group, job/step_plan/ and spmd/ the second.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/factors.h"

#include "base/fault.h"
#include "base/mutant.h"
#include "graph/op.h"

/* ---- for rules ---- */

int ch__factor(ch_factors *f, ch_factor_kind kind)
{
    f->factor[f->n] = (ch_factor_info){.kind = kind, .combiner = CH_PARTIAL_SUM};
    return f->n++;
}

int ch__factor_red(ch_factors *f, ch_partial_op combiner)
{
    f->factor[f->n] = (ch_factor_info){.kind = CH_RED, .combiner = combiner};
    return f->n++;
}

static void set_axes(ch_axis_rule *axis, int rank, const int *factor)
{
    for (int k = 0; k < rank; k++) {
        axis[k] = (ch_axis_rule){.n = factor[k] >= 0};
        axis[k].factor[0] = (unsigned char)factor[k];
    }
}

void ch__factor_map(ch_factors *f, int input, int rank, const int *factor)
{
    set_axes(f->in[input], rank, factor);
}

void ch__factor_window(ch_factors *f, int input, int axis, ch_axis_map map)
{
    f->in[input][axis].is_mapped = true;
    f->in[input][axis].map = map;
}

void ch__factor_neighbours(ch_factors *f, int input, int axis, ch_axis_map map, int64_t n)
{
    ch__factor_window(f, input, axis, map);
    f->in[input][axis].by_windows = true;
    f->in[input][axis].n_windows = n;
}

ch_status ch__factor_out(ch_factors *f, int rank, const int *factor)
{
    set_axes(f->out[f->n_set_out++], rank, factor);
    return CH_OK;
}

ch_status ch__factors_elementwise(const ch_node *n, ch_factors *f)
{
    int all[CH_MAX_RANK] = {0}, one[CH_MAX_RANK] = {0};

    for (int k = 0; k < n->dims.rank; k++)
        all[k] = ch__factor(f, CH_PAR);
    for (int i = 0; i < n->n_in; i++) {
        const ch_dims *d = &n->in[i]->dims;

        for (int k = 0; k < d->rank; k++) /* a size of 1 is broadcast */
            one[k] = ch__dim_is(d->dim[k], 1) ? -1 : all[n->dims.rank - d->rank + k];
        ch__factor_map(f, i, d->rank, one);
    }
    for (int i = 0; i < n->n_out; i++)
        (void)ch__factor_out(f, n->dims.rank, all);
    return CH_OK;
}

ch_status ch__factors_of_arrays(const ch_node *n, ch_factors *f, int axis)
{
    for (int i = 0; i < n->n_out; i++) {
        int in[CH_MAX_RANK] = {0}, out[CH_MAX_RANK] = {0};

        for (int k = 0; k < n[i].dims.rank; k++) {
            bool is_divided = k != axis && f->n < CH_MAX_FACTORS && k < n->in[i]->dims.rank;

            in[k] = out[k] = is_divided ? ch__factor(f, CH_PAR) : -1;
        }
        for (int k = n[i].dims.rank; k < n->in[i]->dims.rank; k++)
            in[k] = -1;
        ch__factor_map(f, i, n->in[i]->dims.rank, in);
        (void)ch__factor_out(f, n[i].dims.rank, out);
    }
    return CH_OK;
}

ch_status ch__local_dims(const ch_node *n, const ch_call_part *part, void *attrs)
{
    const ch_attr *row = n->op->attrs;

    while (row->kind != CH_ATTR_KIND_DIMS)
        row++;
    for (int k = 0; k < n->dims.rank; k++)
        ((ch_dims *)((char *)attrs + row->offset))->dim[k] = ch__dim(part->out[0].size[k]);
    return CH_OK;
}

/* ---- for users of rules ---- */

/* Sets the sizes of factors that are an axis of the given dims. */
static void set_sizes(ch_factors *f, const ch_axis_rule *axis, const ch_dims *d)
{
    for (int k = 0; k < d->rank; k++) {
        int i = ch__axis_factor(&axis[k]);

        if (i >= 0 && f->factor[i].size.n == 0 && f->factor[i].size.sym == 0)
            f->factor[i].size = d->dim[k];
    }
}

ch_status ch__factors_of(const ch_node *n, ch_arena *arena, ch_factors *f)
{
    ch_status rc = CH_OK;

    n = n->head;
    *f = (ch_factors){.n_in = n->n_in, .n_out = n->n_out};
    f->in = ch__arena_alloc(arena, ((size_t)n->n_in + 1) * sizeof(*f->in));
    f->out = ch__arena_alloc(arena, ((size_t)n->n_out + 1) * sizeof(*f->out));
    if (f->in == NULL || f->out == NULL)
        return ch__fail_memory("a partition rule");
    if (n->op->factors != NULL)
        rc = n->op->factors(n, f);
    for (int i = 0; i < n->n_out; i++)
        set_sizes(f, f->out[i], &n[i].dims);
    for (int i = 0; i < n->n_in; i++)
        set_sizes(f, f->in[i], &n->in[i]->dims);
    return rc;
}

/* ---- ties ---- */

ch_status ch__ties_of(const ch_node *n, ch_arena *arena, ch_body_ties *out)
{
    size_t most = (size_t)n->n_in + 2 * (size_t)n->n_out + 1;

    *out = (ch_body_ties){.tie = ch__arena_alloc(arena, most * sizeof(*out->tie)),
                          .iterations = -1};
    if (out->tie == NULL)
        return ch__fail_memory("the ties of a body");
    n->op->ties(n, out);
    return CH_OK;
}

int64_t ch__body_iterations(const ch_node *n)
{
    ch_body_ties t = {.iterations = -1};

    n->op->ties(n, &t);
    return t.iterations;
}

static void add_tie(ch_body_ties *t, ch_body_tie tie)
{
    if (t->tie != NULL)
        t->tie[t->n++] = tie;
}

void ch__tie_in(ch_body_ties *t, int call_at, int body, int body_in, bool is_slice)
{
    add_tie(t, (ch_body_tie){
                   .body = body, .call_at = call_at, .body_at = body_in, .is_slice = is_slice});
}

void ch__tie_out(ch_body_ties *t, int call_at, int body, bool is_body_out, int body_at,
                 bool is_slice)
{
    add_tie(t, (ch_body_tie){.body = body,
                             .is_call_out = true,
                             .is_body_out = is_body_out,
                             .call_at = call_at,
                             .body_at = body_at,
                             .is_slice = is_slice});
}

/* ---- ranges ---- */

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static int64_t clip(int64_t x, int64_t size)
{
    return x < 0 ? 0 : x > size ? size : x;
}

/* Returns the range that the map of an axis gives for positions [a, b), which is not empty. */
static void map_range(const ch_axis_map *m, int64_t size, int64_t a, int64_t b, int64_t *begin,
                      int64_t *end)
{
    int64_t first = m->mul >= 0 ? a : b - 1, last = m->mul >= 0 ? b - 1 : a;

    *begin = clip(-floor_div(-(first * m->mul + m->low), m->div), size);
    *end = clip(floor_div(last * m->mul + m->high, m->div) + 1, size);
    if (*end < *begin)
        *end = *begin;
}

/* Returns the range for positions [a, b) of an axis with windows: of these positions, and of
 * those that are in a window with one of them. */
static void neighbours_range(const ch_axis_rule *axis, int64_t size, int64_t a, int64_t b,
                             int64_t *begin, int64_t *end)
{
    const ch_axis_map *m = &axis->map;
    int64_t            from, to; /* of the windows, then of their positions */

    map_range(m, axis->n_windows, a, b, &from, &to);
    *begin = a;
    *end = b;
    if (from == to)
        return;
    map_range(&(ch_axis_map){m->div, m->mul, -m->high, -m->low}, size, from, to, &from, &to);
    *begin = ch__min(a, from);
    *end = b > to ? b : to;
}

bool ch__axis_range(const ch_factors *f, const ch_axis_rule *a, int64_t size,
                    const int64_t *from, const int64_t *to, int axis, ch_region *out)
{
    int64_t begin = 0, end = 0; /* of the last position */
    bool    is_empty = false, is_divided = false, is_range = true;

    if (a->n == 0 || (a->n == 1 && f->factor[a->factor[0]].kind == CH_FIX)) {
        out->begin[axis] = 0;
        out->size[axis] = size;
        return true;
    }
    for (int i = 0; i < a->n; i++) {
        int     k = a->factor[i];
        int64_t n = f->factor[k].size.n;

        is_empty |= from[k] >= to[k];
        /* Behind a factor with several positions, only whole factors continue the range. */
        is_range &= !is_divided || to[k] - from[k] == n;
        is_divided |= to[k] - from[k] > 1;
        begin = begin * n + from[k];
        end = end * n + to[k] - 1;
    }
    end++;
    if (is_empty)
        begin = end = 0;
    else if (a->by_windows && CH_KEEPS(INDEXMAP))
        neighbours_range(a, size, begin, end, &begin, &end);
    else if (a->is_mapped && CH_KEEPS(INDEXMAP))
        map_range(&a->map, size, begin, end, &begin, &end);
    else if (a->is_mapped)
        map_range(&(ch_axis_map){1, 1, 0, 0}, size, begin, end, &begin, &end);
    out->begin[axis] = begin;
    out->size[axis] = end - begin;
    return is_empty || is_range;
}
