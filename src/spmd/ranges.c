/* spmd/ranges.c -- layouts of values as ranges of the factors of a call, and back.
 *
 * The ranges of a call are a ch_core_layout with a factor in place of each axis: `parts` is the
 * number of ranges of each factor, and part[c] are the ranges of core c. To lift is to make
 * ranges from the layout of an input or output; to lower is to make the layout of an input or
 * output from ranges. propagate.c and choose.c lift and lower, actions.c only lowers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mutant.h"
#include "spmd/divide.h"

/* ---- lifting ---- */

int ch__outputs_with(const ch_factors *f, int factor)
{
    int n = 0;

    for (int i = 0; i < f->n_set_out; i++) {
        bool has = false;

        for (int k = 0; k < CH_MAX_RANK; k++)
            for (int j = 0; j < f->out[i][k].n; j++)
                has |= f->out[i][k].factor[j] == factor;
        n += has;
    }
    return n;
}

/* Divides factor `k` into n ranges: a core with part i of the axis has range i / each % n. */
static void divide_factor(ch_core_layout *out, const ch_core_layout *l, int axis, int k, int n,
                          int each)
{
    unsigned char range[CH_MAX_CORES + 1]; /* by part */

    out->parts[k] = n;
    if (n == l->parts[axis]) {
        memcpy(out->part[k], l->part[axis], sizeof(out->part[k]));
        return;
    }
    for (int i = 0; i < l->parts[axis]; i++)
        range[i] = (unsigned char)(i / each % n);
    for (int c = 0; c < l->n_cores; c++)
        out->part[k][c] = range[l->part[axis][c]];
}

/* Lifts the parts of axis `axis` of `l` to the factors of the axis. The outermost factors are
 * divided first, as far as possible into single positions. */
static bool lift_axis(const ch_factors *f, const ch_axis_rule *a, const ch_core_layout *l,
                      int axis, ch_lift which, ch_core_layout *out)
{
    int left = l->parts[axis]; /* ranges that the factors from j on must have together */

    for (int j = 0; j < a->n && left > 1; j++) {
        int     k = a->factor[j], n;
        int64_t size = f->factor[k].size.n;

        if (j < a->n - 1 && left > size && left % (size > 0 ? size : 1) == 0 && size > 0)
            n = (int)size;
        else if (left <= size || j == a->n - 1)
            n = left;
        else
            return false;
        left /= n;
        if (n == 1 || f->factor[k].kind == CH_FIX ||
            (which == CH_LIFT_RESULT && ch__outputs_with(f, k) == 0))
            continue;
        if (out->parts[k] > 1)
            return false; /* two axes with this factor, as in the diagonal of a matrix */
        divide_factor(out, l, axis, k, n, left);
        out->unit[k] = a->n == 1 && !a->is_mapped ? l->unit[axis] : 1;
    }
    return true;
}

bool ch__lift(const ch_factors *f, const ch_axis_rule *axis, const ch_core_layout *l,
              ch_lift which, bool keep_partial, ch_core_layout *out)
{
    ch__layout_replicated(l->n_cores, f->n, out);
    out->cores = l->cores;
    if (keep_partial && l->n_partial > 1 && l->combiner == CH_PARTIAL_SUM)
        ch__layout_set_partial(out, l);
    for (int k = 0; k < l->rank; k++)
        if (l->parts[k] > 1 && !lift_axis(f, &axis[k], l, k, which, out))
            return false;
    return true;
}

/* ---- lowering ---- */

/* Sets the parts of axis `axis` of `out` to the ranges of its factors. */
static bool lower_axis(const ch_factors *f, const ch_core_layout *ranges, const ch_axis_rule *a,
                       int axis, int64_t size, ch_core_layout *out)
{
    int64_t inner = 1; /* positions of the axis for each position of factor j */
    bool    is_inner_divided = false;

    out->parts[axis] = 1;
    for (int j = a->n - 1; j >= 0; j--) {
        int     k = a->factor[j], n = ranges->parts[k];
        int64_t own = f->factor[k].size.n;

        /* Only single positions of an outer factor continue the ranges of an inner one. */
        if (is_inner_divided && (n > 1 || own > 1) && (n != own || ranges->unit[k] > 1))
            return false;
        if (n > 1) {
            int64_t unit = ranges->unit[k] * (inner > 0 ? inner : 1);

            if (is_inner_divided && out->unit[axis] > 1)
                return false;
            for (int c = 0; c < CH_MAX_CORES; c++)
                out->part[axis][c] =
                    (unsigned char)(out->part[axis][c] + ranges->part[k][c] * out->parts[axis]);
            if (!is_inner_divided)
                out->unit[axis] = a->is_mapped ? 1 : unit;
            out->parts[axis] *= n;
            is_inner_divided = true;
        }
        inner *= own;
    }
    /* Parts of equal size need no unit. Unequal parts inside an outer factor repeat, so they
     * are no parts of the axis. */
    if (out->unit[axis] > 1 && size % out->unit[axis] == 0 &&
        size / out->unit[axis] % out->parts[axis] == 0)
        out->unit[axis] = 1;
    return true;
}

/* Returns true if the parts of a divided inner factor have equal sizes, or if no outer factor
 * is divided. */
static bool repeats_evenly(const ch_factors *f, const ch_core_layout *ranges,
                           const ch_axis_rule *a)
{
    bool is_outer_divided = false;

    for (int j = 0; j < a->n; j++) {
        int k = a->factor[j], n = ranges->parts[k];

        if (is_outer_divided && n > 1 && (ranges->unit[k] > 1 || f->factor[k].size.n % n != 0))
            return false;
        is_outer_divided |= n > 1;
    }
    return true;
}

/* Returns the number of ranges of a divided factor that have positions: they are the first. */
static int full_ranges(const ch_factors *f, const ch_core_layout *ranges, int k)
{
    int64_t units = ch__units(f->factor[k].size.n, ranges->unit[k]);

    return CH_KEEPS(EMPTY) ? (int)ch__min(ranges->parts[k], units) : ranges->parts[k];
}

/* Numbers the partial results: one for each combination of ranges of the divided factors that
 * the array does not have. A core with an empty range has no partial result, and no part of the
 * array. A factor of kind CH_PAR is an axis of another output of the call, such as another
 * array of a gather: the array then has copies. Returns false if their combiners differ. */
static bool lower_partial(const ch_factors *f, const ch_core_layout *ranges, const bool *has,
                          ch_core_layout *out)
{
    ch__layout_set_partial(out, ranges);
    for (int k = 0; k < f->n; k++) {
        int n = full_ranges(f, ranges, k);

        if (has[k] || ranges->parts[k] == 1 || f->factor[k].kind == CH_PAR ||
            f->factor[k].size.n == 0)
            continue;
        for (uint64_t m = n < ranges->parts[k] ? out->cores : 0; m != 0; m &= m - 1)
            if (ranges->part[k][ch__first_core(m)] >= n)
                out->cores &= ~(m & -m);
        if (n == 1)
            continue;
        if (out->n_partial > 1 && out->combiner != f->factor[k].combiner)
            return false;
        for (int c = 0; c < CH_MAX_CORES; c++)
            out->partial[c] = (unsigned char)(out->partial[c] * n + ranges->part[k][c]);
        out->n_partial *= n;
        out->combiner = CH_KEEPS(COMBINER) ? f->factor[k].combiner : CH_PARTIAL_SUM;
    }
    return true;
}

bool ch__lower(const ch_factors *f, const ch_core_layout *ranges, const ch_axis_rule *axis,
               const ch_dims *d, bool in, ch_core_layout *out)
{
    bool has[CH_MAX_FACTORS] = {false};

    ch__layout_replicated(ranges->n_cores, d->rank, out);
    out->cores = ranges->cores;
    for (int k = 0; k < d->rank; k++) {
        if (!lower_axis(f, ranges, &axis[k], k, d->dim[k].n, out) ||
            !repeats_evenly(f, ranges, &axis[k]))
            return false;
        for (int j = 0; j < axis[k].n; j++)
            has[axis[k].factor[j]] = true;
    }
    return in || lower_partial(f, ranges, has, out);
}

bool ch__has_partial(ch_core_division *d, const ch_node *call, const ch_factors *f,
                     const ch_core_layout *ranges, int i, const ch_core_layout *has)
{
    const ch_core_layout *unique;
    ch_core_layout        l;

    if (!ch__lower(f, ranges, f->in[i], &call->in[i]->dims, true, &l))
        return false;
    ch__layout_set_partial(&l, ranges);
    return ch__layout_intern(d->layouts, &l, &unique) == CH_OK && unique == has;
}

/* ---- ranges and regions of a core ---- */

/* Returns true if a core with an empty range of factor k has a part of the call. The factor may
 * be an axis of some outputs only, such as of one array of a gather. If a reduced factor has no
 * positions at all, every core computes the whole result. */
static bool may_be_empty(const ch_factors *f, int k)
{
    return ch__outputs_with(f, k) < f->n_set_out &&
           (f->factor[k].kind == CH_PAR || f->factor[k].size.n == 0);
}

bool ch__core_ranges(const ch_factors *f, const ch_core_layout *ranges, int core, int64_t *from,
                     int64_t *to)
{
    bool has = ch__layout_has(ranges, core);

    for (int k = 0; k < f->n && has; k++) {
        ch__core_part(ranges, k, f->factor[k].size.n, ranges->part[k][core], &from[k], &to[k]);
        has = from[k] < to[k] || ranges->parts[k] == 1 || may_be_empty(f, k);
    }
    return has;
}

void ch__range_table_set(const ch_factors *f, const ch_core_layout *ranges, ch_range_table *out)
{
    out->ranges = ranges;
    out->cores = ranges->cores;
    for (int k = 0; k < f->n; k++) {
        int64_t size = f->factor[k].size.n;
        int     n = (int)ch__min(ranges->parts[k], ch__units(size, ranges->unit[k]));

        (void)ch__core_parts(ranges, k, size, out->begin[k]);
        if (ranges->parts[k] == 1 || n == ranges->parts[k] || may_be_empty(f, k))
            continue;
        for (uint64_t m = out->cores; m != 0; m &= m - 1)
            if (ranges->part[k][ch__first_core(m)] >= n)
                out->cores &= ~(m & -m);
    }
}

void ch__range_table_core(const ch_range_table *t, int core, int64_t *from, int64_t *to)
{
    for (int k = 0; k < t->ranges->rank; k++) {
        const int64_t *begin = &t->begin[k][t->ranges->part[k][core]];

        from[k] = begin[0];
        to[k] = begin[1];
    }
}

double ch__operations(const ch_factors *f, const int64_t *from, const int64_t *to)
{
    double product = 1;

    for (int k = 0; k < f->n; k++) {
        product *= (double)(to[k] - from[k]);
        if (f->factor[k].kind == CH_RED)
            product *= 2; /* a product and a sum */
    }
    return product;
}

double ch__all_operations(const ch_factors *f, const ch_core_layout *ranges)
{
    int64_t        from[CH_MAX_FACTORS], to[CH_MAX_FACTORS];
    int            copies = ch__layout_n_copies(ranges);
    ch_range_table t;
    double         sum = 0;

    if (copies > 0) { /* the parts of the cores are the whole call, so many times */
        for (int k = 0; k < f->n; k++) {
            from[k] = 0;
            to[k] = f->factor[k].size.n;
        }
        return (double)copies * ranges->n_partial * ch__operations(f, from, to);
    }
    ch__range_table_set(f, ranges, &t);
    for (uint64_t m = t.cores; m != 0; m &= m - 1) {
        ch__range_table_core(&t, ch__first_core(m), from, to);
        sum += ch__operations(f, from, to);
    }
    return sum;
}

bool ch__ranges_are_full(const ch_factors *f, const ch_core_layout *ranges)
{
    for (int k = 0; k < f->n; k++)
        if (ranges->parts[k] > 1 &&
            ch__units(f->factor[k].size.n, ranges->unit[k]) < ranges->parts[k])
            return false;
    return true;
}

/* Returns the unique layout of the regions of input i; NULL: they are none, or a core has an
 * empty range. */
static const ch_core_layout *layout_of_full(ch_core_division *d, const ch_node *call,
                                            const ch_factors *f, const ch_core_layout *ranges,
                                            int i)
{
    const ch_core_layout *unique;
    ch_core_layout        l;

    for (int k = 0; k < call->in[i]->dims.rank; k++)
        if (f->in[i][k].is_mapped)
            return NULL;
    return ch__ranges_are_full(f, ranges) &&
                   ch__lower(f, ranges, f->in[i], &call->in[i]->dims, true, &l) &&
                   ch__layout_intern(d->layouts, &l, &unique) == CH_OK
               ? unique
               : NULL;
}

/* Sets the ranges of axis k of an input of the cores. Cores with equal ranges of the factors of
 * the axis have equal ranges of the axis. Returns false if they need positions that are no
 * range. */
static bool axis_regions(const ch_factors *f, const ch_axis_rule *a, int64_t size,
                         const ch_range_table *t, int k, ch_region *at)
{
    const ch_core_layout *l = t->ranges;
    int64_t               from[CH_MAX_FACTORS], to[CH_MAX_FACTORS];
    unsigned char number[CH_MAX_CORES] = {0}; /* by core: of the combination of ranges */
    int           known[CH_MAX_CORES];        /* by number: a core that has it */
    uint64_t      seen = 0;

    for (int j = 0; j < a->n; j++)
        for (int c = 0; c < CH_MAX_CORES && l->parts[a->factor[j]] > 1; c++)
            number[c] =
                (unsigned char)(number[c] * l->parts[a->factor[j]] + l->part[a->factor[j]][c]);
    for (uint64_t m = t->cores; m != 0; m &= m - 1) {
        int c = ch__first_core(m), i = number[c];

        if (!ch__has_core(seen, i)) {
            ch__range_table_core(t, c, from, to);
            if (!ch__axis_range(f, a, size, from, to, k, &at[c]))
                return false;
            known[i] = c;
            seen |= UINT64_C(1) << i;
        }
        at[c].begin[k] = at[known[i]].begin[k];
        at[c].size[k] = at[known[i]].size[k];
    }
    return true;
}

const ch_core_regions *ch__input_regions(ch_core_division *d, const ch_node *call,
                                         const ch_factors *f, const ch_core_layout *ranges,
                                         int i, ch_core_regions *room)
{
    const ch_core_layout *l = layout_of_full(d, call, f, ranges, i);
    const ch_dims        *dims = &call->in[i]->dims;
    ch_range_table        t;

    if (l != NULL)
        return ch__layout_regions(d->layouts, l, ch__shape(call->in[i]));
    ch__range_table_set(f, ranges, &t);
    room->cores = t.cores;
    room->layout = NULL;
    room->same_sizes = false;
    for (int k = 0; k < dims->rank; k++)
        if (!axis_regions(f, &f->in[i][k], dims->dim[k].n, &t, k, room->at))
            return NULL;
    return room;
}
