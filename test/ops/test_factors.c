/* test/ops/test_factors.c -- partition rules: the parts of a call make the whole call.
 *
 * Each sample is recorded, specialised and run call by call, without passes. Then every call
 * that has a rule is divided: along every factor that may be divided and along pairs of such
 * factors, into 2, 3, 4 and 8 parts. Sizes need not divide, and parts may have no positions. A
 * part gets exactly the regions of the inputs that the rule names; its outputs are filled with
 * NaN before. The regions and partial results of all parts must be the result of the whole
 * call: equal if all numbers are whole, otherwise within the tolerance of the sample. Each
 * sample also runs with small whole numbers in place of fractions.
 *
 * An op with `expand` is also recorded in plain ops, on the same inputs. The plain ops must
 * give the same outputs, and must divide every axis that the rule does not divide.
 *
 * By default a call is divided in a few ways, which change from call to call. With T_CASES of
 * 1000 or more it is divided in all ways, in every dtype, unless it is large. T_OP is the name of the only op whose
 * calls are divided.
 *
 * T_FAMILIES lists, as X(name), the families whose samples are built.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "calls.h"
#include "graph/attr.h"
#include "graph/step.h"
#include "tensor/layout.h"

#define T_FAMILY_ADDRESS(name) &name,
static const t_family *const families[] = {T_FAMILIES(T_FAMILY_ADDRESS) NULL};

enum { MOST_OPS = 1000, COUNTS = 4 };
static const int part_counts[COUNTS] = {2, 3, 4, 8};

static bool        all_ways;           /* T_CASES is large */
static const char *only;               /* T_OP; NULL: all ops */
static int         turn;               /* changes the ways from call to call */
static bool        divided[MOST_OPS];  /* by index in the table: a call of the op was divided */
static bool        expanded[MOST_OPS]; /* a call of the op was expanded */

static int index_of(const ch_op *op)
{
    int i = 0;

    while (ch__op_table()[i] != op)
        i++;
    return i;
}

/* ---- regions ---- */

/* Copies a region of an array of this shape to `part`, or back. */
static void copy_region(const ch_shape *whole, const ch_region *r, size_t size, char *array,
                        char *part, bool back)
{
    int64_t count = ch__region_count(r, whole->rank);

    for (int64_t k = 0; k < count; k++) {
        int64_t at = 0, step = 1, rest = k;

        for (int i = whole->rank - 1; i >= 0; i--) {
            at += (r->begin[i] + rest % r->size[i]) * step;
            step *= whole->dim[i];
            rest /= r->size[i];
        }
        memcpy(back ? array + (size_t)at * size : part + (size_t)k * size,
               back ? part + (size_t)k * size : array + (size_t)at * size, size);
    }
}

static ch_dims dims_of(const ch_region *r, int rank)
{
    ch_dims d = {.rank = rank};

    for (int k = 0; k < rank; k++)
        d.dim[k] = ch__dim(r->size[k]);
    return d;
}

/* Sets *out to the region of an array that a part needs or computes. Returns false if it is no
 * region. */
static bool region_of(const ch_factors *f, const ch_axis_rule *axis, const ch_node *x,
                      const int64_t *from, const int64_t *to, ch_region *out)
{
    bool is_range = true;

    for (int k = 0; k < x->dims.rank; k++)
        is_range &= ch__axis_range(f, &axis[k], x->dims.dim[k].n, from, to, k, out);
    return is_range;
}

/* ---- a call and its parts ---- */

/* A call that is divided. */
typedef struct division {
    t_values         *v;
    const ch_node    *n;
    const ch_factors *f;
    double            tolerance; /* of the sample */
    int               n_ways, factor[2], parts[2];
    char              text[256]; /* the factors and the numbers of parts, for messages */
    /* by output: the assembled value, and for each element whether a part has computed it */
    char **got;
    bool **is_set;
    double largest[CH_MAX_OUT]; /* by output: absolute value of the largest partial result */
} division;

static const char *type_text(const ch_node *n)
{
    static char text[160];

    ch__dims_print(&n->dims, text, sizeof(text));
    return text;
}

static void set_text(division *d)
{
    size_t used =
        (size_t)snprintf(d->text, sizeof(d->text), "%s%s of", d->n->op->name, type_text(d->n));

    for (int i = 0; i < d->n_ways; i++)
        used += (size_t)snprintf(d->text + used, sizeof(d->text) - used,
                                 " factor %d of size %lld in %d", d->factor[i],
                                 (long long)d->f->factor[d->factor[i]].size.n, d->parts[i]);
}

static bool has_factor(const ch_axis_rule *axis, int rank, int factor)
{
    for (int k = 0; k < rank; k++)
        for (int i = 0; i < axis[k].n; i++)
            if (axis[k].factor[i] == factor)
                return true;
    return false;
}

/* Sets *op to the combiner of the partial results of output i. Returns false if the parts
 * compute different regions of the output. */
static bool combiner_of(const division *d, int i, ch_partial_op *op)
{
    bool is_partial = false;

    for (int w = 0; w < d->n_ways; w++) {
        const ch_factor_info *info = &d->f->factor[d->factor[w]];

        if (has_factor(d->f->out[i], d->n[i].dims.rank, d->factor[w]))
            continue;
        if (is_partial && *op != info->combiner)
            t_fail(d->v->c, "%s: output %d has two combiners", d->text, i);
        *op = info->combiner;
        is_partial = true;
    }
    return is_partial;
}

static double combine(ch_partial_op op, double a, double b)
{
    switch (op) {
    case CH_PARTIAL_SUM:
        return a + b;
    case CH_PARTIAL_PRODUCT:
        return a * b;
    case CH_PARTIAL_MAX:
        return isnan(a) || isnan(b) ? a + b : a > b ? a : b;
    case CH_PARTIAL_MIN:
        return isnan(a) || isnan(b) ? a + b : a < b ? a : b;
    case CH_PARTIAL_AND:
        return a != 0 && b != 0;
    case CH_PARTIAL_OR:
        return a != 0 || b != 0;
    }
    return NAN;
}

/* The same for integers, which wrap. */
static int64_t combine_whole(ch_partial_op op, ch_dtype dtype, double a, double b)
{
    uint64_t x = (uint64_t)(int64_t)a, y = (uint64_t)(int64_t)b;
    uint64_t z = op == CH_PARTIAL_SUM       ? x + y
                 : op == CH_PARTIAL_PRODUCT ? x * y
                                            : (uint64_t)(int64_t)combine(op, a, b);

    return dtype == CH_I8    ? (int8_t)z
           : dtype == CH_U8  ? (uint8_t)z
           : dtype == CH_I32 ? (int32_t)z
                             : (int64_t)z;
}

/* Adds the result of a part to output i. */
static void assemble(division *d, int i, const ch_region *r, const char *part)
{
    ch_shape      whole = ch__shape(&d->n[i]);
    ch_dtype      dtype = d->n[i].dtype;
    size_t        size = ch_dtype_bytes(dtype);
    int64_t       count = ch__region_count(r, whole.rank);
    ch_partial_op op = CH_PARTIAL_SUM;
    bool          is_partial = combiner_of(d, i, &op);
    char         *was = t_alloc((size_t)count * size);
    bool         *is_set = t_alloc((size_t)count), *yes = t_alloc((size_t)count);
    char         *now = t_alloc((size_t)count * size);

    copy_region(&whole, r, size, d->got[i], was, false);
    copy_region(&whole, r, 1, (char *)d->is_set[i], (char *)is_set, false);
    memcpy(now, part, (size_t)count * size);
    for (int64_t k = 0; k < count; k++) {
        size_t at = (size_t)k * size;
        double a = ch__load(dtype, was + at), b = ch__load(dtype, now + at);

        yes[k] = true;
        d->largest[i] = is_partial ? fmax(d->largest[i], fabs(b)) : 0;
        if (!is_set[k])
            continue;
        if (!is_partial)
            t_fail(d->v->c, "%s: two parts compute the same element of output %d", d->text, i);
        ch__store(dtype, now + at,
                  ch_dtype_is_float(dtype) ? combine(op, a, b)
                                           : (double)combine_whole(op, dtype, a, b));
    }
    copy_region(&whole, r, size, d->got[i], now, true);
    copy_region(&whole, r, 1, (char *)d->is_set[i], (char *)yes, true);
}

/* Adds an input to the graph of a part. */
static ch_node *add_input(ch_graph *g, int i, ch_dtype dtype, const ch_dims *dims)
{
    ch_input_attrs a = {.index = i, .dtype = dtype, .dims = *dims};
    ch_node       *in = ch__graph_add(g, ch__roles.input, &a, 0, NULL, 1);

    assert_non_null(in);
    in->dtype = dtype;
    in->dims = *dims;
    return in;
}

/* Sets node->origins to a table of one core, if the op needs the positions of a part. */
static void set_origins(const division *d, ch_node *to, const ch_region *in,
                        const ch_region *out)
{
    ch_origins *o;

    if ((to->op->flags & CH_OP_ORIGIN) == 0)
        return;
    o = ch__arena_alloc(&to->graph->arena, sizeof(*o));
    o->n_cores = 1;
    o->in = ch__arena_alloc(&to->graph->arena, sizeof(*o->in));
    o->out = ch__arena_alloc(&to->graph->arena, sizeof(*o->out));
    if (d->n->n_in > 0) {
        o->whole_in = d->n->in[0]->dims;
        memcpy(o->in[0], in[0].begin, sizeof(in[0].begin));
    }
    o->whole_out = d->n->dims;
    memcpy(o->out[0], out[0].begin, sizeof(out[0].begin));
    to->origins = o;
}

/* Records the part in a graph of its own. */
static ch_node *record_part(const division *d, ch_graph *g, const ch_call_part *p)
{
    const ch_node *n = d->n;
    ch_node      **in = t_alloc(((size_t)n->n_in + 1) * sizeof(ch_node *)), *to;
    ch_dims        dims[CH_MAX_OUT];
    ch_dtype       dtype[CH_MAX_OUT];
    ch_infer       c = {.out = dims, .out_dtype = dtype};

    g->is_concrete = true;
    for (int i = 0; i < n->n_in; i++) {
        ch_dims need = dims_of(&p->in[i], n->in[i]->dims.rank);

        in[i] = add_input(g, i, n->in[i]->dtype, &need);
    }
    to = ch__graph_add(g, n->op, n->attrs, n->n_in, in, n->n_out);
    assert_non_null(to);
    to->ordinal = n->ordinal;
    to->scope = n->scope;
    if (n->op->local != NULL && n->op->local(n, p, to->attrs) != CH_OK)
        t_fail(d->v->c, "%s: attributes of a part: %s", d->text, ch_error_message());
    if (ch__call_infer(g, n->op, to->attrs, n->n_in, in, &c) != CH_OK)
        t_fail(d->v->c, "%s: a part: %s", d->text, ch_error_message());
    for (int i = 0; i < n->n_out; i++) {
        ch_dims want = dims_of(&p->out[i], n[i].dims.rank);

        to[i].dims = dims[i];
        to[i].dtype = dtype[i];
        if (c.n_out != n->n_out || dtype[i] != n[i].dtype || !ch__dims_same(&dims[i], &want)) {
            char text[160];

            ch__dims_print(&want, text, sizeof(text));
            t_fail(d->v->c, "%s: output %d of a part is %s, but the rule says %s", d->text, i,
                   type_text(&to[i]), text);
        }
    }
    set_origins(d, to, p->in, p->out);
    return to;
}

/* Runs the part with these ranges of the factors, and adds its results. Returns false if its
 * inputs or outputs are no regions. */
static bool run_part(division *d, const int64_t *from, const int64_t *to)
{
    const ch_node *n = d->n;
    ch_region     *in = t_alloc(((size_t)n->n_in + 1) * sizeof(*in)), out[CH_MAX_OUT] = {0};
    ch_call_part   p = {d->f, from, to, in, out};
    const void   **data = t_alloc(((size_t)n->n_in + 1) * sizeof(*data));
    void          *result[CH_MAX_OUT];
    const void    *before = t_last_block();
    ch_graph      *g = NULL;
    ch_node       *part;
    bool           is_empty = true;

    for (int i = 0; i < n->n_out; i++) {
        if (!region_of(d->f, d->f->out[i], &n[i], from, to, &out[i]))
            return false;
        is_empty = is_empty && ch__region_count(&out[i], n[i].dims.rank) == 0;
    }
    if (is_empty)
        return true;
    for (int i = 0; i < n->n_in; i++)
        if (!region_of(d->f, d->f->in[i], n->in[i], from, to, &in[i]))
            return false;
    assert_int_equal(ch__graph_new("part", &g), CH_OK);
    part = record_part(d, g, &p);
    for (int i = 0; i < n->n_in; i++) {
        ch_shape whole = ch__shape(n->in[i]);
        size_t   size = ch_dtype_bytes(n->in[i]->dtype);
        void    *own;

        own = t_block(ch__region_count(&in[i], whole.rank) * (int64_t)size);
        copy_region(&whole, &in[i], size, d->v->at[n->in[i]->id], own, false);
        data[i] = own;
    }
    for (int i = 0; i < n->n_out; i++)
        result[i] = t_block(ch__bytes(&part[i]));
    if (ch__kernel_for(part) == NULL)
        t_fail(d->v->c, "%s: no kernel fits a part", d->text);
    if (ch__call_run(part, ch__kernel_for(part), data, result, &d->v->env, NULL) != CH_OK)
        t_fail(d->v->c, "%s: a part: %s", d->text, ch_error_message());
    for (int i = 0; i < n->n_out; i++)
        assemble(d, i, &out[i], result[i]);
    t_forget_blocks(before);
    ch_graph_unref(g);
    return true;
}

/* ---- comparing ---- */

/* Returns the permitted difference of output i, relative to its size. Partial results, and what
 * the kernel subtracts to compute them, may be larger than their sum, and leave rounding errors
 * of their own size. */
static double tolerance_of(const division *d, int i, const t_array *want)
{
    const ch_node *n = &d->n[i];
    double         tolerance = 2 * t_tolerance(d->tolerance, d->v->c->dtype, n->dtype);
    double         size = t_rms(want), larger = d->largest[i];
    ch_partial_op  op;

    if (t_is_exact(d->v, d->n))
        return 0;
    if (!combiner_of(d, i, &op))
        return tolerance;
    for (int k = 0; k < d->n->n_in; k++)
        if (ch_dtype_is_float(d->n->in[k]->dtype)) {
            t_array in = t_array_of(d->n->in[k], d->v->at[d->n->in[k]->id]);

            larger = fmax(larger, t_rms(&in));
        }
    if (n->dtype == CH_BF16 || n->dtype == CH_F16)
        tolerance *= d->parts[0] * d->parts[1]; /* every partial result is rounded */
    return size > 0 ? tolerance * fmax(1, fmin(larger / size, 1e4)) : tolerance;
}

static void compare(const division *d)
{
    for (int i = 0; i < d->n->n_out; i++) {
        const ch_node *n = &d->n[i];
        t_array        got = t_array_of(n, d->got[i]), want = t_array_of(n, d->v->at[n->id]);
        char           how[320];

        for (int64_t k = 0; k < ch__count(n); k++)
            if (!d->is_set[i][k])
                t_fail(d->v->c, "%s: no part computes element %lld of output %d", d->text,
                       (long long)k, i);
        snprintf(how, sizeof(how), "%s: output %d", d->text, i);
        t_assert_near(d->v->c, how, n->dtype, &got, &want, tolerance_of(d, i, &want));
    }
}

/* ---- dividing a call ---- */

/* Divides a call along n factors, each into a number of parts. */
static void divide(t_values *v, const ch_node *n, const ch_factors *f, double tolerance,
                   int n_ways, const int *factor, const int *parts)
{
    division d = {
        .v = v, .n = n, .f = f, .tolerance = tolerance, .n_ways = n_ways, .parts = {1, 1}};
    int64_t from[CH_MAX_FACTORS] = {0}, to[CH_MAX_FACTORS];
    int     count = 1;
    bool    is_range = true;

    d.got = t_alloc((size_t)n->n_out * sizeof(*d.got));
    d.is_set = t_alloc((size_t)n->n_out * sizeof(*d.is_set));
    for (int i = 0; i < n->n_out; i++) {
        d.got[i] = t_alloc((size_t)ch__bytes(&n[i]));
        d.is_set[i] = t_alloc((size_t)ch__count(&n[i]));
    }
    for (int w = 0; w < n_ways; w++) {
        d.factor[w] = factor[w];
        d.parts[w] = parts[w];
        count *= parts[w];
    }
    set_text(&d);
    for (int i = 0; i < f->n; i++)
        to[i] = f->factor[i].size.n;
    for (int p = 0; p < count && is_range; p++) {
        bool has_part = true;

        for (int w = 0, rest = p; w < n_ways; w++) {
            int     part = rest % parts[w];
            int64_t size = f->factor[factor[w]].size.n;

            rest /= parts[w];
            from[factor[w]] = ch__part_begin(size, parts[w], part);
            to[factor[w]] = ch__part_begin(size, parts[w], part + 1);
        }
        for (int w = 0; w < n_ways; w++)
            has_part = has_part && from[factor[w]] < to[factor[w]];
        is_range = !has_part || run_part(&d, from, to);
    }
    if (!is_range)
        return;
    compare(&d);
    divided[index_of(n->op)] = true;
}

static bool may_divide(const ch_factors *f, int i)
{
    return f->factor[i].kind != CH_FIX && f->factor[i].size.n > 1;
}

/* Divides a call in all ways, or in a few: along every factor once, and along one pair. */
static void divide_ways(t_values *v, const ch_node *n, const ch_factors *f, bool all,
                        double tolerance)
{
    int pairs = 0, wanted;

    for (int a = 0; a < f->n; a++)
        for (int k = 0; may_divide(f, a) && k < (all ? COUNTS : 1); k++)
            divide(v, n, f, tolerance, 1, &a, &part_counts[(turn++ + k) % COUNTS]);
    for (int a = 0; a < f->n; a++)
        for (int b = a + 1; b < f->n; b++)
            pairs += may_divide(f, a) && may_divide(f, b);
    wanted = pairs > 0 ? turn % pairs : 0;
    for (int a = 0; a < f->n; a++)
        for (int b = a + 1; b < f->n; b++) {
            if (!may_divide(f, a) || !may_divide(f, b))
                continue;
            if (!all && wanted-- != 0)
                continue;
            for (int k = 0; k < (all ? COUNTS * COUNTS : 1); k++) {
                int parts[] = {part_counts[(turn + k) % COUNTS],
                               part_counts[(turn / COUNTS + k / COUNTS) % COUNTS]};

                divide(v, n, f, tolerance, 2, (int[]){a, b}, parts);
            }
            turn++;
        }
}

/* Checks the invariants of graph/factors.h. */
static void check_axes(const t_values *v, const ch_node *n, const ch_factors *f,
                       const ch_axis_rule *axis, const ch_node *x, bool is_output)
{
    for (int k = 0; k < x->dims.rank; k++) {
        int64_t size = 1;

        for (int i = 0; i < axis[k].n; i++)
            size *= f->factor[axis[k].factor[i]].size.n;
        if (axis[k].is_mapped && (is_output || axis[k].n != 1 || axis[k].map.div <= 0 ||
                                  (axis[k].by_windows && axis[k].map.mul <= 0)))
            t_fail(v->c, "%s: the map of axis %d is not valid", n->op->name, k);
        if (axis[k].n > 0 && !axis[k].is_mapped && size != x->dims.dim[k].n)
            t_fail(v->c, "%s: an axis of size %lld has factors of size %lld", n->op->name,
                   (long long)x->dims.dim[k].n, (long long)size);
    }
}

static void check_rule(const t_values *v, const ch_node *n, const ch_factors *f)
{
    if (f->n_set_out != n->n_out || f->n > CH_MAX_FACTORS)
        t_fail(v->c, "%s: the rule sets %d outputs of %d, %d factors", n->op->name,
               f->n_set_out, n->n_out, f->n);
    for (int i = 0; i < n->n_in; i++)
        check_axes(v, n, f, f->in[i], n->in[i], false);
    for (int i = 0; i < n->n_out; i++)
        check_axes(v, n, f, f->out[i], &n[i], true);
    for (int k = 0; k < f->n; k++)
        for (int i = 0; i < n->n_out; i++)
            if (f->factor[k].kind == CH_PAR && !has_factor(f->out[i], n[i].dims.rank, k))
                t_fail(v->c, "%s: output %d lacks the independent factor %d", n->op->name, i,
                       k);
}

/* ---- expansions ---- */

/* Marks the axes of x, an input or output of a call, that are this factor. */
static void mark(bool (*marked)[CH_MAX_RANK], const ch_axis_rule *axis, const ch_node *x,
                 int factor)
{
    for (int k = 0; k < x->dims.rank; k++)
        marked[x->id][k] |= ch__axis_factor(&axis[k]) == factor;
}

/* Checks that every call of an expansion may be divided along the axes that come from the
 * marked axes of its inputs, and marks those of the outputs. */
static void pass_marks(const t_values *v, const ch_node *call, bool (*marked)[CH_MAX_RANK])
{
    ch_arena arena = {0};

    for (const ch_node *n = v->graph->first; n != NULL; n = ch__next(n)) {
        ch_factors f;

        assert_int_equal(ch__factors_of(n, &arena, &f), CH_OK);
        for (int i = 0; i < n->n_in; i++)
            for (int k = 0; k < n->in[i]->dims.rank; k++) {
                const ch_axis_rule *axis = &f.in[i][k];
                int factor = f.n_set_out > 0 && axis->n == 1 ? axis->factor[0] : -1;

                if (!marked[n->in[i]->id][k])
                    continue;
                if (factor < 0 || (f.factor[factor].kind == CH_FIX && n->op->expand == NULL))
                    t_fail(v->c, "expansion of %s: axis %d of input %d of %s%s is not divided",
                           call->op->name, k, i, n->op->name, type_text(n));
                for (int o = 0; o < n->n_out; o++)
                    mark(marked, f.out[o], &n[o], factor);
            }
    }
    ch__arena_drop(&arena);
}

/* Checks that the plain ops divide an axis of an input of a call without a rule. */
static void check_input_axis(const t_values *v, const ch_node *n, int i, int k)
{
    bool(*marked)[CH_MAX_RANK] = t_alloc(((size_t)v->graph->n_values + 1) * sizeof(*marked));

    marked[v->graph->input[i]->id][k] = true;
    pass_marks(v, n, marked);
}

/* Checks that the plain ops divide the axes of factor `fixed`, which the rule does not. */
static void check_marks(const t_values *v, const ch_node *n, const ch_factors *f, int fixed)
{
    bool(*marked)[CH_MAX_RANK] = t_alloc(((size_t)v->graph->n_values + 1) * sizeof(*marked));

    for (int i = 0; i < n->n_in; i++)
        mark(marked, f->in[i], v->graph->input[i], fixed);
    pass_marks(v, n, marked);
    for (int i = 0; i < n->n_out; i++)
        for (int k = 0; k < n[i].dims.rank; k++)
            if (ch__axis_factor(&f->out[i][k]) == fixed &&
                !marked[v->graph->output[i].node->id][k])
                t_fail(v->c, "expansion of %s: axis %d of output %d is not divided",
                       n->op->name, k, i);
}

static void check_calls(t_values *v, double tolerance);

/* Records call n in plain ops. Returns NULL if it cannot be expanded. */
static ch_graph *record_expansion(const t_values *v, const ch_node *n)
{
    ch_node  *in[T_MAX_IN], *out[CH_MAX_OUT] = {0};
    ch_step  *s = NULL;
    ch_graph *g = NULL;
    bool      is_expanded;

    assert_int_equal(ch__step_new("expansion", NULL, &s), CH_OK);
    for (int i = 0; i < n->n_in; i++)
        in[i] = ch__step_add_input(s, NULL, n->in[i]->dtype, &n->in[i]->dims);
    is_expanded = n->op->expand(s, n, in, out);
    if (s->rc != CH_OK)
        t_fail(v->c, "expansion of %s: %s", n->op->name, s->error);
    for (int i = 0; i < n->n_out && is_expanded; i++)
        ch_step_out(s, NULL, out[i]);
    if (is_expanded)
        assert_int_equal(ch__step_finish(s, &g), CH_OK);
    ch__step_free(s);
    return g;
}

static void check_expansion(t_values *v, const ch_node *n, const ch_factors *f,
                            double tolerance)
{
    static const int variant = 0;
    ch_shape         shape[T_MAX_IN];
    const ch_shape  *shapes = shape;
    ch_signature     sig = {
            .n_replicas = 1, .n_variants = 1, .variant = &variant, .shape = &shapes};
    t_values  x = {.c = v->c, .env = v->env};
    ch_graph *g = record_expansion(v, n);

    if (g == NULL)
        return;
    for (int i = 0; i < n->n_in; i++)
        shape[i] = ch__shape(n->in[i]);
    if (ch__specialise(g, &sig, &x.graph) != CH_OK)
        t_fail(v->c, "expansion of %s: %s", n->op->name, ch_error_message());
    ch_graph_unref(g);
    x.at = t_alloc(((size_t)x.graph->n_values + 1) * sizeof(*x.at));
    for (int i = 0; i < n->n_in; i++)
        x.at[x.graph->input[i]->id] = v->at[n->in[i]->id];
    if (t_run_calls(&x) != CH_OK)
        t_fail(v->c, "expansion of %s: %s", n->op->name, ch_error_message());
    for (int i = 0; i < n->n_out; i++) {
        const ch_node *to = x.graph->output[i].node;
        t_array want = t_array_of(&n[i], v->at[n[i].id]), got = t_array_of(to, x.at[to->id]);
        char    how[160];

        if (to->dtype != n[i].dtype)
            t_fail(v->c, "expansion of %s: output %d is %s, want %s", n->op->name, i,
                   ch_dtype_name(to->dtype), ch_dtype_name(n[i].dtype));
        snprintf(how, sizeof(how), "expansion of %s: output %d", n->op->name, i);
        /* Plain ops round what the kernel keeps in f64, such as the mean of far numbers. */
        t_assert_near(v->c, how, to->dtype, &got, &want,
                      16 * t_tolerance(tolerance, v->c->dtype, to->dtype));
    }
    for (int k = 0; k < f->n; k++)
        if (f->factor[k].kind == CH_FIX && f->factor[k].size.n > 1)
            check_marks(&x, n, f, k);
    for (int i = 0; i < n->n_in && f->n_set_out == 0; i++)
        for (int k = 0; k < n->in[i]->dims.rank; k++)
            check_input_axis(&x, n, i, k);
    check_calls(&x, tolerance);
    ch_graph_unref(x.graph);
    expanded[index_of(n->op)] = true;
}

/* ---- samples ---- */

static void check_call(t_values *v, const ch_node *n, ch_arena *arena, double tolerance)
{
    ch_factors f;

    if (ch__factors_of(n, arena, &f) != CH_OK)
        t_fail(v->c, "%s: %s", n->op->name, ch_error_message());
    if (f.n_set_out > 0) {
        check_rule(v, n, &f);
        divide_ways(v, n, &f, all_ways && !t_is_large(n), tolerance);
    }
    if (n->op->expand != NULL)
        check_expansion(v, n, &f, tolerance);
}

static void check_calls(t_values *v, double tolerance)
{
    ch_arena arena = {0};

    for (const ch_node *n = v->graph->first; n != NULL; n = ch__next(n))
        if (n->op->kernels != NULL && (n->op->flags & CH_OP_HOST) == 0 &&
            (all_ways || !t_is_large(n) || !divided[index_of(n->op)]) &&
            (only == NULL || strcmp(n->op->name, only) == 0))
            check_call(v, n, &arena, tolerance);
    ch__arena_drop(&arena);
}

/* TPU-4.3, TPU-5.1, TPU-5.5: every op, divided along its factors. */
static void parts_make_the_whole(void **state)
{
    const t_sample *x = *state;
    t_sample        whole = t_in_whole_numbers(x);

    for (int i = 0; t_dtype_at(x, i) != CH_STR && (i == 0 || all_ways); i++) {
        t_see_calls(x, t_dtype_at(x, i), false, all_ways, check_calls);
        t_see_calls(&whole, t_dtype_at(x, i), true, true, check_calls);
    }
}

/* ---- the table of ops ---- */

static void every_op_is_divided_or_says_why_not(void **state)
{
    char text[8192] = "";

    for (int i = 0; ch__op_table()[i] != NULL; i++) {
        const ch_op *op = ch__op_table()[i];
        const char  *why = NULL;

        if (op->factors == NULL && op->replicated == NULL)
            why = "has neither a partition rule nor a reason";
        else if (op->factors != NULL && op->replicated != NULL)
            why = "has a partition rule and a reason to have none";
        else if (op->factors != NULL && !divided[i] && (op->flags & CH_OP_COLLECTIVE) == 0)
            why = "was never divided";
        else if (op->expand != NULL && !expanded[i])
            why = "was never expanded";
        if (why != NULL)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "\n%s %s", op->name,
                     why);
    }
    if (text[0] != '\0')
        fail_msg("%s", text);
    (void)state;
}

static int start(void **state)
{
    ch_devices_options opt = {.spec = "CPU=1", .threads = T_THREADS};

    (void)state;
    return ch_devices_configure(&opt) != CH_OK || ch__config_set("fuse", "0") != CH_OK;
}

static int stop(void **state)
{
    (void)state;
    ch__devices_reset();
    return 0;
}

int main(void)
{
    const char *cases = getenv("T_CASES");

    only = getenv("T_OP");
    all_ways = cases != NULL && atoi(cases) >= 1000;
    return t_run_sample_tests(
        families,
        &(t_sample_tests){.name = "factors",
                          .each = parts_make_the_whole,
                          .last = only == NULL ? every_op_is_divided_or_says_why_not : NULL,
                          .start = start,
                          .stop = stop});
}
