/* ops/array_cut.c -- slice, pad, reverse, tile.
 *
 * slice, reverse and tile copy elements as boxes (ops/box.h); a slice that is contiguous in its
 * input is a view. pad uses ch_border of kernel/move.h. slice and pad are each other's
 * gradient, so internal pads also have gaps between elements (`between`), for slices with
 * strides.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdalign.h>
#include <string.h>

#include "graph/step.h"
#include "ops/box.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

/* Copies a list. If the list is invalid, sets its length to -1; the shape rule then fails. */
static void set_ints(ch_ints *to, int n, const int64_t *from)
{
    to->n = n < 0 || n > CH_MAX_INTS || (n > 0 && from == NULL) ? -1 : n;
    for (int i = 0; i < to->n; i++)
        to->at[i] = from[i];
}

/* Fails unless list l has an element for each axis of input 0. `what` names its elements. */
static ch_status want_list(const ch_infer *c, const ch_ints *l, const char *what)
{
    if (l->n == c->in[0].rank)
        return CH_OK;
    return ch__infer_fail(c, "there are %d %s, want %d, one for each axis", l->n, what,
                          c->in[0].rank);
}

/* ---- slice: `size` elements of each axis, `stride` apart, from `begin` on ---- */

/* Special sizes. ALL is the whole axis. UNKNOWN is a size that depends on a symbol; the shape
 * rule then asks for numbers. */
enum { ALL = -1, UNKNOWN = -2 };

typedef struct slice_attrs {
    ch_ints begin, size, stride;
} slice_attrs;

static const ch_attr slice_rows[] = {
    CH_ATTR_INTS(slice_attrs, begin),
    CH_ATTR_INTS(slice_attrs, size),
    CH_ATTR_INTS(slice_attrs, stride),
    CH_ATTR_END,
};

/* Checks the slice of axis k, and replaces *d, the size of the axis, by the size of the
 * slice. */
static ch_status slice_axis(const ch_infer *c, int k, ch_dim *d)
{
    const slice_attrs *a = c->attrs;
    int64_t begin = a->begin.at[k], size = a->size.at[k], step = a->stride.at[k], last;

    if (size == ALL && begin == 0 && step == 1)
        return CH_OK;
    if (d->sym != 0)
        return ch__infer_want_number(c, *d);
    if (step == 0)
        return ch__infer_fail(c, "the stride of axis %d is 0, want a number other than 0", k);
    if (size < 0 || begin < 0 || (size > 0 && begin >= d->n))
        return ch__infer_fail(c, "cannot take %lld elements from %lld on: axis %d has %lld",
                              (long long)size, (long long)begin, k, (long long)d->n);
    if (size > 0 && (__builtin_mul_overflow(size - 1, step, &last) ||
                     __builtin_add_overflow(last, begin, &last) || last < 0 || last >= d->n))
        return ch__infer_fail(c, "cannot take %lld elements from %lld on: axis %d has %lld",
                              (long long)size, (long long)begin, k, (long long)d->n);
    *d = ch__dim(size);
    return CH_OK;
}

static ch_status slice_infer(ch_infer *c)
{
    const slice_attrs *a = c->attrs;
    ch_dims            d = c->in[0];
    ch_status          rc = want_list(c, &a->begin, "beginnings");

    if (rc == CH_OK)
        rc = want_list(c, &a->size, "sizes");
    if (rc == CH_OK)
        rc = want_list(c, &a->stride, "strides");
    for (int k = 0; k < d.rank && rc == CH_OK; k++)
        rc = slice_axis(c, k, &d.dim[k]);
    return rc != CH_OK ? rc : ch__infer_dims(c, 0, c->dtype[0], &d);
}

static ch_status slice_prepare(const ch_node *n, ch_prep *p)
{
    const slice_attrs *a = ch__attrs(n);
    ch_box_span        s = {.rank = n->dims.rank};
    ch_boxes          *b = ch__boxes_new(n, p, 1);

    if (b == NULL)
        return CH_RESOURCE_EXHAUSTED;
    ch__node_strides(n->in[0], s.from);
    ch__node_strides(n, s.to);
    for (int k = 0; k < s.rank; k++) {
        s.dim[k] = n->dims.dim[k].n;
        if (s.dim[k] > 0)
            s.from_begin += a->begin.at[k] * s.from[k];
        s.from[k] *= a->stride.at[k];
    }
    ch__boxes_set(b, 0, n, 0, 0, &s);
    return ch__boxes_done(b, p);
}

/* Pads the gradient with zeros, around and between its elements, so that each element is at its
 * position in the input. Axes with a negative stride are reversed first. */
static void slice_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const slice_attrs *a = ch__attrs(n);
    int64_t            before[CH_MAX_RANK], after[CH_MAX_RANK], between[CH_MAX_RANK];
    int                reversed[CH_MAX_RANK], n_turned = 0, rank = n->dims.rank;
    ch_node           *d = dout[0];

    (void)s;
    for (int k = 0; k < rank; k++) {
        int64_t begin = a->begin.at[k], size = a->size.at[k], step = a->stride.at[k];
        int64_t total = n->in[0]->dims.dim[k].n, last = begin + (size - 1) * step;
        int64_t low = step > 0 ? begin : last, high = step > 0 ? last : begin;

        before[k] = size == ALL ? 0 : size == 0 ? total : low;
        after[k] = size == ALL || size == 0 ? 0 : total - 1 - high;
        between[k] = size < 2 ? 0 : (step > 0 ? step : -step) - 1;
        if (step < 0 && size > 1)
            reversed[n_turned++] = k;
    }
    if (n_turned > 0)
        d = ch_reverse(d, n_turned, reversed);
    din[0] = ch__pad(d, rank, before, after, between, 0.0);
}

static ch_status slice_factors(const ch_node *n, ch_factors *f)
{
    const slice_attrs *a = ch__attrs(n);
    int                all[CH_MAX_RANK];

    for (int k = 0; k < n->dims.rank; k++)
        all[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, 0, n->dims.rank, all);
    for (int k = 0; k < n->dims.rank; k++) {
        int64_t begin = a->begin.at[k], step = a->stride.at[k];

        if (!ch__dim_same(n->dims.dim[k], n->in[0]->dims.dim[k]) || begin != 0 || step != 1)
            ch__factor_window(f, 0, k, (ch_axis_map){step, 1, begin, begin});
    }
    return ch__factor_out(f, n->dims.rank, all);
}

static ch_status slice_local(const ch_node *n, const ch_call_part *part, void *attrs)
{
    slice_attrs *a = attrs;

    for (int k = 0; k < n->dims.rank; k++) {
        if (a->size.at[k] == ALL)
            continue;
        a->begin.at[k] += part->out[0].begin[k] * a->stride.at[k] - part->in[0].begin[k];
        a->size.at[k] = part->out[0].size[k];
    }
    return CH_OK;
}

static const ch_kernel slice_move = {"move", .prepare = slice_prepare, .run = ch__boxes_run};

const ch_op ch__op_slice = {
    .name = "slice",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = slice_rows,
    .attrs_bytes = sizeof(slice_attrs),
    .infer = slice_infer,
    .grad = slice_grad,
    .factors = slice_factors,
    .local = slice_local,
    .kernels = (const ch_kernel *const[]){&slice_move, NULL},
    .room_rows = 1,
};

/* Returns the attributes of a slice that takes all of every axis of x. If n, the number of axes
 * that the caller gives, is invalid, the lists get an invalid length and the shape rule
 * fails. */
static slice_attrs slice_whole(const ch_node *x, int n)
{
    slice_attrs a;
    int         rank = x->dims.rank;

    a.begin.n = a.size.n = a.stride.n = n >= 0 && n <= rank ? rank : n > rank ? n : -1;
    for (int k = 0; k < CH_MAX_INTS; k++) {
        a.begin.at[k] = 0;
        a.size.at[k] = ALL;
        a.stride.at[k] = 1;
    }
    return a;
}

ch_node *ch_slice(ch_node *x, int n, const int64_t *begin, const int64_t *size)
{
    slice_attrs a;

    if (!ch__step_want(ch_node_step(x), n <= 0 || (begin != NULL && size != NULL), "slice",
                       "the list of beginnings or of sizes", __builtin_return_address(0)))
        return NULL;
    a = slice_whole(x, n);
    for (int k = 0; k < n && k < x->dims.rank; k++) {
        ch_dim d = x->dims.dim[k];

        a.begin.at[k] = begin[k];
        a.size.at[k] = size[k];
        if (size[k] == ALL && begin[k] != 0) /* from `begin` to the end */
            a.size.at[k] = d.sym != 0 ? UNKNOWN : d.n - begin[k];
        else if (d.sym == 0 && size[k] == d.n && begin[k] == 0)
            a.size.at[k] = ALL;
    }
    return ch__node(&ch__op_slice, &a, 1, &x);
}

/* Converts a slice bound by numpy's rule: a negative position counts from the end, and the
 * result is clamped to [low, high]. n is the size of the axis. */
static int64_t clamp_bound(int64_t at, int64_t n, int64_t low, int64_t high)
{
    if (at < 0)
        at = at < -n ? low : at + n;
    return at < low ? low : at > high ? high : at;
}

/* Sets axis k of `a` to [begin:end:step] of an axis of size d. */
static void strided_axis(slice_attrs *a, int k, ch_dim d, int64_t begin, int64_t end,
                         int64_t step)
{
    int64_t from, to;

    a->stride.at[k] = step;
    if (begin == 0 && end == CH_END && step == 1)
        return;
    a->size.at[k] = UNKNOWN;
    if (d.sym != 0 || step == 0)
        return;
    if (step > 0) {
        from = clamp_bound(begin, d.n, 0, d.n);
        to = end == CH_END ? d.n : clamp_bound(end, d.n, 0, d.n);
        a->size.at[k] = to > from ? (to - from - 1) / step + 1 : 0;
    } else {
        from = clamp_bound(begin, d.n, -1, d.n - 1);
        to = end == CH_END ? -1 : clamp_bound(end, d.n, -1, d.n - 1);
        a->size.at[k] = from > to ? (from - to - 1) / -step + 1 : 0;
    }
    a->begin.at[k] = a->size.at[k] > 0 ? from : 0;
    if (a->size.at[k] < 2)
        a->stride.at[k] = 1;
}

ch_node *ch_strided_slice(ch_node *x, int n, const int64_t *begin, const int64_t *end,
                          const int64_t *stride)
{
    ch_step    *s = ch_node_step(x);
    slice_attrs a;
    const void *before;
    ch_node    *y;

    if (!ch__step_want(s, n <= 0 || (begin != NULL && end != NULL), "strided_slice",
                       "the list of beginnings or of ends", __builtin_return_address(0)))
        return NULL;
    before = ch__step_begin(s);
    a = slice_whole(x, n);
    for (int k = 0; k < n && k < x->dims.rank; k++)
        strided_axis(&a, k, x->dims.dim[k], begin[k], end[k], stride != NULL ? stride[k] : 1);
    y = ch__node(&ch__op_slice, &a, 1, &x);
    ch__step_end(s, before);
    return y;
}

/* ---- pad ---- */

typedef struct pad_attrs {
    ch_ints before, after, between;
    double  value;
} pad_attrs;

static const ch_attr pad_rows[] = {
    CH_ATTR_INTS(pad_attrs, before),
    CH_ATTR_INTS(pad_attrs, after),
    CH_ATTR_INTS(pad_attrs, between),
    CH_ATTR_FLOAT(pad_attrs, value),
    CH_ATTR_END,
};

static ch_status pad_axis(const ch_infer *c, int k, ch_dim *d)
{
    const pad_attrs *a = c->attrs;
    int64_t          before = a->before.at[k], after = a->after.at[k], gap = a->between.at[k];
    int64_t          inner = 0;

    if (before == 0 && after == 0 && gap == 0)
        return CH_OK;
    if (before < 0 || after < 0 || gap < 0)
        return ch__infer_fail(c,
                              "the padding is %lld elements in axis %d, want 0 or more; use "
                              "ch_slice to remove elements",
                              (long long)(before < 0  ? before
                                          : after < 0 ? after
                                                      : gap),
                              k);
    if (d->sym != 0)
        return ch__infer_want_number(c, *d);
    if ((d->n > 0 && (__builtin_add_overflow(gap, 1, &inner) ||
                      __builtin_mul_overflow(inner, d->n - 1, &inner) ||
                      __builtin_add_overflow(inner, 1, &inner))) ||
        __builtin_add_overflow(inner, before, &inner) ||
        __builtin_add_overflow(inner, after, &inner))
        return ch__infer_fail(c, "axis %d would have more elements than 63 bits can count", k);
    *d = ch__dim(inner);
    return CH_OK;
}

static ch_status pad_infer(ch_infer *c)
{
    const pad_attrs *a = c->attrs;
    ch_dims          d = c->in[0];
    ch_status        rc = want_list(c, &a->before, "sizes before");

    if (rc == CH_OK)
        rc = want_list(c, &a->after, "sizes after");
    if (rc == CH_OK)
        rc = want_list(c, &a->between, "sizes between");
    if (rc == CH_OK && !ch__dtype_holds(c->dtype[0], a->value))
        rc = ch__infer_fail(c, "%s does not hold %g", ch_dtype_name(c->dtype[0]), a->value);
    for (int k = 0; k < d.rank && rc == CH_OK; k++)
        rc = pad_axis(c, k, &d.dim[k]);
    return rc != CH_OK ? rc : ch__infer_dims(c, 0, c->dtype[0], &d);
}

typedef struct pad_state {
    ch_border pad;
    int       tiles;
} pad_state;

static ch_status pad_prepare(const ch_node *n, ch_prep *p)
{
    const pad_attrs *a = ch__attrs(n);
    ch_border_axis   axis[CH_MAX_RANK];
    pad_state       *s = ch__prep_state(p, sizeof(*s));
    alignas(8) char  value[8];

    if (s == NULL)
        return ch__fail_memory("pad");
    for (int k = 0; k < n->dims.rank; k++)
        axis[k] = (ch_border_axis){n->in[0]->dims.dim[k].n, a->before.at[k], n->dims.dim[k].n,
                                   a->between.at[k] + 1};
    ch__store(n->dtype, value, a->value);
    ch__border_make(&s->pad, n->dims.rank, axis, ch_dtype_bytes(n->dtype), value);
    s->tiles = ch__move_tiles(s->pad.n_rows, ch__bytes(n));
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

static ch_status pad_run(const ch_call *c, ch_kernel_tile t)
{
    const pad_state *s = c->state;
    int64_t          from, to;

    ch__tile_range(s->pad.n_rows, s->tiles, t.index, &from, &to);
    ch__border_rows(&s->pad, c->in[0], c->out[0], from, to);
    return CH_OK;
}

static void pad_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const pad_attrs *a = ch__attrs(n);
    slice_attrs      back = slice_whole(n, n->dims.rank);

    (void)s;
    for (int k = 0; k < n->dims.rank; k++) {
        if (ch__dim_same(n->dims.dim[k], n->in[0]->dims.dim[k]))
            continue;
        back.size.at[k] = n->in[0]->dims.dim[k].n;
        back.begin.at[k] = back.size.at[k] > 0 ? a->before.at[k] : 0;
        back.stride.at[k] = back.size.at[k] > 1 ? a->between.at[k] + 1 : 1;
    }
    din[0] = ch__node(&ch__op_slice, &back, 1, dout);
}

static ch_status pad_factors(const ch_node *n, ch_factors *f)
{
    const pad_attrs *a = ch__attrs(n);
    int              all[CH_MAX_RANK];

    for (int k = 0; k < n->dims.rank; k++)
        all[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, 0, n->dims.rank, all);
    for (int k = 0; k < n->dims.rank; k++) {
        int64_t before = a->before.at[k], gap = a->between.at[k];

        if (before != 0 || gap != 0 || a->after.at[k] != 0)
            ch__factor_window(f, 0, k, (ch_axis_map){1, gap + 1, -before, -before});
    }
    return ch__factor_out(f, n->dims.rank, all);
}

/* A part has padding before its first element and after its last; a part without elements is
 * all padding. */
static ch_status pad_local(const ch_node *n, const ch_call_part *part, void *attrs)
{
    pad_attrs *a = attrs;

    for (int k = 0; k < n->dims.rank; k++) {
        int64_t from = part->out[0].begin[k], size = part->out[0].size[k];
        int64_t first = part->in[0].begin[k], count = part->in[0].size[k];
        int64_t apart = a->between.at[k] + 1;

        a->before.at[k] = count > 0 ? a->before.at[k] + first * apart - from : size;
        a->after.at[k] = count > 0 ? size - a->before.at[k] - (count - 1) * apart - 1 : 0;
    }
    return CH_OK;
}

static const ch_kernel pad_plain = {"plain", .prepare = pad_prepare, .run = pad_run};

const ch_op ch__op_pad = {
    .name = "pad",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = pad_rows,
    .attrs_bytes = sizeof(pad_attrs),
    .infer = pad_infer,
    .grad = pad_grad,
    .factors = pad_factors,
    .local = pad_local,
    .kernels = (const ch_kernel *const[]){&pad_plain, NULL},
    .room_rows = 1,
};

static ch_node *pad_at(const void *caller, ch_node *x, int n, const int64_t *before,
                       const int64_t *after, const int64_t *between, double value)
{
    pad_attrs a = {.value = value};

    set_ints(&a.before, n, before);
    set_ints(&a.after, n, after);
    a.between.n = a.before.n;
    if (between != NULL)
        set_ints(&a.between, n, between);
    return ch__node_at(caller, &ch__op_pad, &a, 1, &x);
}

ch_node *ch_pad(ch_node *x, int n, const int64_t *before, const int64_t *after, double value)
{
    return pad_at(__builtin_return_address(0), x, n, before, after, NULL, value);
}

ch_node *ch__pad(ch_node *x, int n, const int64_t *before, const int64_t *after,
                 const int64_t *between, double value)
{
    return pad_at(__builtin_return_address(0), x, n, before, after, between, value);
}

/* ---- reverse ---- */

typedef struct reverse_attrs {
    ch_ints axes;
} reverse_attrs;

static const ch_attr reverse_rows[] = {
    CH_ATTR_INTS(reverse_attrs, axes),
    CH_ATTR_END,
};

static ch_status reverse_infer(ch_infer *c)
{
    const reverse_attrs *a = c->attrs;
    unsigned             seen = 0;
    int                  axis;
    ch_status            rc = CH_OK;

    if (a->axes.n < 0 || a->axes.n > CH_MAX_INTS)
        rc = ch__infer_fail(c, "the list of axes is NULL or has an invalid length");
    for (int i = 0; rc == CH_OK && i < a->axes.n; i++) {
        rc = ch__infer_axis(c, a->axes.at[i], c->in[0].rank, &axis);
        if (rc == CH_OK && (seen >> axis & 1) != 0)
            rc = ch__infer_fail(c, "axis %d is listed twice", axis);
        seen |= rc == CH_OK ? 1u << axis : 0;
    }
    return rc != CH_OK ? rc : ch__infer_like(c, 0, 0);
}

static ch_status reverse_prepare(const ch_node *n, ch_prep *p)
{
    const reverse_attrs *a = ch__attrs(n);
    ch_box_span          s = {.rank = n->dims.rank};
    ch_boxes            *b = ch__boxes_new(n, p, 1);
    int                  axis;

    if (b == NULL)
        return CH_RESOURCE_EXHAUSTED;
    ch__node_strides(n, s.from);
    ch__node_strides(n, s.to);
    for (int k = 0; k < s.rank; k++)
        s.dim[k] = n->dims.dim[k].n;
    for (int i = 0; i < a->axes.n; i++) {
        (void)ch__axis(a->axes.at[i], s.rank, &axis);
        s.from_begin += s.dim[axis] > 0 ? (s.dim[axis] - 1) * s.from[axis] : 0;
        s.from[axis] = -s.from[axis];
    }
    ch__boxes_set(b, 0, n, 0, 0, &s);
    return ch__boxes_done(b, p);
}

static void reverse_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__node(&ch__op_reverse, ch__attrs(n), 1, dout);
}

static ch_status reverse_factors(const ch_node *n, ch_factors *f)
{
    const reverse_attrs *a = ch__attrs(n);
    int64_t              last[CH_MAX_RANK]; /* position of a reversed axis; -1: not reversed */
    int                  all[CH_MAX_RANK], axis;

    for (int k = 0; k < n->dims.rank; k++)
        last[k] = -1;
    for (int i = 0; i < a->axes.n; i++)
        if (ch__axis(a->axes.at[i], n->dims.rank, &axis))
            last[axis] = n->dims.dim[axis].n - 1;
    /* The positions of a reversed axis are known only if its size is a number. */
    for (int k = 0; k < n->dims.rank; k++)
        all[k] = ch__factor(f, last[k] >= 0 && n->dims.dim[k].sym != 0 ? CH_FIX : CH_PAR);
    ch__factor_map(f, 0, n->dims.rank, all);
    for (int k = 0; k < n->dims.rank; k++)
        if (last[k] >= 0)
            ch__factor_window(f, 0, k, (ch_axis_map){-1, 1, last[k], last[k]});
    return ch__factor_out(f, n->dims.rank, all);
}

static const ch_kernel reverse_move = {"move", .prepare = reverse_prepare,
                                       .run = ch__boxes_run};

const ch_op ch__op_reverse = {
    .name = "reverse",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = reverse_rows,
    .attrs_bytes = sizeof(reverse_attrs),
    .infer = reverse_infer,
    .grad = reverse_grad,
    .factors = reverse_factors,
    .kernels = (const ch_kernel *const[]){&reverse_move, NULL},
};

ch_node *ch_reverse(ch_node *x, int n, const int *axes)
{
    reverse_attrs a = {.axes.n = n < 0 || n > CH_MAX_INTS || (n > 0 && axes == NULL) ? -1 : n};

    for (int i = 0; i < a.axes.n; i++)
        a.axes.at[i] = axes[i];
    return ch__node(&ch__op_reverse, &a, 1, &x);
}

/* ---- tile ---- */

typedef struct tile_attrs {
    ch_ints times;
} tile_attrs;

static const ch_attr tile_rows[] = {
    CH_ATTR_INTS(tile_attrs, times),
    CH_ATTR_END,
};

static ch_status tile_infer(ch_infer *c)
{
    const tile_attrs *a = c->attrs;
    ch_dims           d = c->in[0];
    ch_status         rc = want_list(c, &a->times, "repeat counts");

    if (rc != CH_OK)
        return rc;
    for (int k = 0; k < d.rank; k++)
        if (a->times.at[k] < 0 || !ch__mul_size(d.dim[k].n, a->times.at[k], &d.dim[k].n))
            return ch__infer_fail(c,
                                  "axis %d is repeated %lld times, want 0 or more and a size "
                                  "that fits 63 bits",
                                  k, (long long)a->times.at[k]);
    return ch__infer_dims(c, 0, c->dtype[0], &d);
}

/* Each axis of the result becomes two axes of the box: the copy, and the position in the
 * copy. */
static ch_status tile_prepare(const ch_node *n, ch_prep *p)
{
    const tile_attrs *a = ch__attrs(n);
    int64_t           from[CH_MAX_RANK], to[CH_MAX_RANK];
    ch_box_span       s = {.rank = 2 * n->dims.rank};
    ch_boxes         *b = ch__boxes_new(n, p, 1);

    if (b == NULL)
        return CH_RESOURCE_EXHAUSTED;
    ch__node_strides(n->in[0], from);
    ch__node_strides(n, to);
    for (int k = 0; k < n->dims.rank; k++) {
        int64_t size = n->in[0]->dims.dim[k].n;

        s.dim[2 * k] = a->times.at[k];
        s.from[2 * k] = 0;
        s.to[2 * k] = to[k] * size;
        s.dim[2 * k + 1] = size;
        s.from[2 * k + 1] = from[k];
        s.to[2 * k + 1] = to[k];
    }
    ch__boxes_set(b, 0, n, 0, 0, &s);
    return ch__boxes_done(b, p);
}

/* Returns d summed over the `times` copies that axis k consists of. `size` is the size of the
 * axis in the result. */
static ch_node *tile_sum(ch_node *d, int k, int64_t times, ch_dim size)
{
    ch_dims whole, one, flat;

    if (d == NULL)
        return NULL;
    flat = d->dims;
    flat.dim[k] = size;
    whole = (ch_dims){.rank = 4, .dim = {{1, 0}, ch__dim(times), size, {1, 0}}};
    if (!ch__dims_product(&flat, 0, k, &whole.dim[0]) ||
        !ch__dims_product(&flat, k + 1, flat.rank, &whole.dim[3]))
        whole.dim[k > 0 ? 0 : 3].n = -1; /* makes reshape fail */
    one = whole;
    one.dim[1] = ch__dim(1);
    d = ch__reshape_dims(d, &whole);
    d = ch__unbroadcast(d, ch__fill_dims(ch_node_step(d), d->dtype, &one, 0.0));
    return ch__reshape_dims(d, &flat);
}

static void tile_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const tile_attrs *a = ch__attrs(n);

    (void)s;
    din[0] = dout[0];
    for (int k = 0; k < n->dims.rank; k++)
        if (a->times.at[k] != 1)
            din[0] = tile_sum(din[0], k, a->times.at[k], n->in[0]->dims.dim[k]);
}

/* An axis of the result is the copies, and in each the positions of the input. */
static ch_status tile_factors(const ch_node *n, ch_factors *f)
{
    const tile_attrs *a = ch__attrs(n);
    int               all[CH_MAX_RANK];

    for (int k = 0; k < n->dims.rank; k++)
        all[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, 0, n->dims.rank, all);
    (void)ch__factor_out(f, n->dims.rank, all);
    for (int k = 0; k < n->dims.rank; k++) {
        ch_axis_rule *out = &f->out[0][k];

        f->factor[all[k]].size = n->in[0]->dims.dim[k];
        if (a->times.at[k] == 1)
            continue;
        *out = (ch_axis_rule){.n = 2};
        out->factor[0] = (unsigned char)ch__factor(f, CH_PAR);
        out->factor[1] = (unsigned char)all[k];
        f->factor[out->factor[0]].size = ch__dim(a->times.at[k]);
    }
    return CH_OK;
}

static ch_status tile_local(const ch_node *n, const ch_call_part *part, void *attrs)
{
    tile_attrs *a = attrs;

    for (int k = 0; k < n->dims.rank; k++)
        if (a->times.at[k] != 1)
            a->times.at[k] = part->out[0].size[k] / part->in[0].size[k];
    return CH_OK;
}

static const ch_kernel tile_move = {"move", .prepare = tile_prepare, .run = ch__boxes_run};

const ch_op ch__op_tile = {
    .name = "tile",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = tile_rows,
    .attrs_bytes = sizeof(tile_attrs),
    .infer = tile_infer,
    .grad = tile_grad,
    .factors = tile_factors,
    .local = tile_local,
    .kernels = (const ch_kernel *const[]){&tile_move, NULL},
};

ch_node *ch_tile(ch_node *x, int n, const int64_t *times)
{
    tile_attrs a;

    set_ints(&a.times, n, times);
    return ch__node(&ch__op_tile, &a, 1, &x);
}
