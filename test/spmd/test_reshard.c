/* test/spmd/test_reshard.c -- plans of reshards.
 *
 * An interpreter executes plans over arrays in memory: every core has an array of the whole
 * value, in which only the elements that the core holds are valid. It checks that each wanted
 * element is written once and has the right value. An independent count visits every element
 * and every core, and gives the number of elements that must move.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spmd/reshard.h"

enum { CORES = CH_MAX_CORES, ELEMENTS = 4096 };

/* The regions that cores want. */
typedef struct wanted {
    ch_region region[CORES];
    bool      wants[CORES];
} wanted;

static void ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

static unsigned draw(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

/* ---- the model ---- */

/* Sets index[] to the position of element e. */
static void position_of(ch_shape s, int64_t e, int64_t *index)
{
    for (int k = s.rank - 1; k >= 0; k--) {
        index[k] = e % s.dim[k];
        e /= s.dim[k];
    }
}

static bool is_inside(const ch_region *r, ch_shape s, int64_t e)
{
    int64_t index[CH_MAX_RANK];

    position_of(s, e, index);
    for (int k = 0; k < s.rank; k++) {
        if (index[k] < r->begin[k] || index[k] >= r->begin[k] + r->size[k])
            return false;
    }
    return true;
}

/* Returns the part of an axis that has a position: walks over the parts. */
static int part_at(const ch_core_layout *l, int axis, int64_t size, int64_t position)
{
    int64_t units = (size + l->unit[axis] - 1) / l->unit[axis], end = 0;

    for (int i = 0;; i++) {
        end += units / l->parts[axis] + (i < units % l->parts[axis]);
        if (position < end * l->unit[axis])
            return i;
    }
}

/* Returns true if a core has element e, or a partial result of it. */
static bool has_element(const ch_core_layout *l, ch_shape s, int core, int64_t e)
{
    int64_t index[CH_MAX_RANK];

    if ((l->cores >> core & 1) == 0)
        return false;
    position_of(s, e, index);
    for (int k = 0; k < s.rank; k++) {
        if (part_at(l, k, s.dim[k], index[k]) != l->part[k][core])
            return false;
    }
    return true;
}

/* Returns the number of elements that must move, counted one by one. */
static int64_t missing(const ch_core_layout *l, ch_shape s, const wanted *w)
{
    int64_t n = 0;

    for (int64_t e = 0; e < ch_shape_count(s); e++) {
        int needed = 0, without = 0;

        for (int c = 0; c < l->n_cores; c++) {
            if (!w->wants[c] || !is_inside(&w->region[c], s, e))
                continue;
            needed++;
            without += !has_element(l, s, c, e);
        }
        if (l->n_partial == 1)
            n += without;
        else if (needed > 0)
            n += (needed > without ? l->n_partial - 1 : l->n_partial) + needed - 1;
    }
    return n;
}

/* Partial result i of element e; the combinations of all are different for every element. */
static int64_t summand(ch_partial_op op, int64_t e, int i)
{
    if (op == CH_PARTIAL_AND)
        return e | INT64_C(1) << (20 + i);
    if (op == CH_PARTIAL_OR)
        return (e >> i & 1) << i | (i == 0 ? e : 0);
    return op == CH_PARTIAL_PRODUCT ? (i == 0 ? e + 1 : 1 + i % 2) : 7 * e * (i + 1) + i;
}

static int64_t combine(ch_partial_op op, int64_t a, int64_t b)
{
    switch (op) {
    case CH_PARTIAL_SUM:
        return a + b;
    case CH_PARTIAL_MAX:
        return a > b ? a : b;
    case CH_PARTIAL_MIN:
        return a < b ? a : b;
    case CH_PARTIAL_PRODUCT:
        return a * b;
    case CH_PARTIAL_AND:
        return a & b;
    case CH_PARTIAL_OR:
        return a | b;
    }
    return 0;
}

static int64_t value_of(const ch_core_layout *l, int64_t e)
{
    int64_t v = summand(l->combiner, e, 0);

    for (int i = 1; i < l->n_partial; i++)
        v = combine(l->combiner, v, summand(l->combiner, e, i));
    return v;
}

/* ---- the interpreter ---- */

/* The memory of a core, by element of the whole value. */
typedef struct memory {
    bool    is_valid[ELEMENTS];
    int64_t value[ELEMENTS];
} memory;

static memory before[CORES], after[CORES];

/* Executes a copy by core c. Returns the number of elements that move. */
static int64_t run_copy(const ch_reshard *r, int stage, int c, const ch_reshard_copy *copy)
{
    int64_t moved = 0;

    assert_true(copy->n_sources == (stage == 0 ? r->from->n_partial : 1));
    assert_true(ch__region_count(&copy->region, r->whole.rank) > 0);
    for (int64_t e = 0; e < ch_shape_count(r->whole); e++) {
        int64_t v = 0;

        if (!is_inside(&copy->region, r->whole, e))
            continue;
        for (int i = 0; i < copy->n_sources; i++) {
            int     source = copy->source[i];
            int64_t read = before[source].value[e];

            assert_true(before[source].is_valid[e]);
            if (stage == 0) /* the order of combination is the same on all cores */
                assert_int_equal(r->from->partial[source], i);
            v = i == 0 ? read : combine(r->combiner, v, read);
            moved += source != c;
        }
        assert_true(is_inside(&r->stage[stage][c].held, r->whole, e));
        assert_false(after[c].is_valid[e]); /* each element is written once */
        after[c].is_valid[e] = true;
        after[c].value[e] = v;
    }
    return moved;
}

/* Executes a plan, and checks the values and all counts. */
static void run(const ch_reshard *r, const wanted *w)
{
    const ch_core_layout *from = r->from;
    int64_t               n = ch_shape_count(r->whole), moved = 0;
    ch_reshard_cost       cost;

    assert_true(n <= ELEMENTS);
    for (int c = 0; c < r->n_cores; c++) {
        for (int64_t e = 0; e < n; e++) {
            before[c].is_valid[e] = has_element(from, r->whole, c, e);
            before[c].value[e] = summand(from->combiner, e, from->partial[c]);
        }
    }
    for (int i = 0; i < r->n_stages; i++) {
        for (int c = 0; c < r->n_cores; c++) {
            const ch_reshard_work *work = &r->stage[i][c];

            assert_true(work->has || work->n == 0);
            memset(after[c].is_valid, 0, (size_t)n);
            for (int j = 0; j < work->n; j++)
                moved += run_copy(r, i, c, &work->copy[j]);
        }
        for (int c = 0; c < r->n_cores; c++) {
            memcpy(before[c].is_valid, after[c].is_valid, (size_t)n);
            memcpy(before[c].value, after[c].value, sizeof(int64_t) * (size_t)n);
        }
    }
    for (int c = 0; c < r->n_cores; c++) {
        for (int64_t e = 0; e < n; e++) {
            bool is_wanted = w->wants[c] && is_inside(&w->region[c], r->whole, e);

            if (r->n_stages > 0)
                assert_true(before[c].is_valid[e] == is_wanted);
            if (!is_wanted)
                continue;
            assert_true(before[c].is_valid[e]);
            assert_int_equal(before[c].value[e], value_of(from, e));
        }
        if (r->n_stages > 0)
            assert_true(r->stage[r->n_stages - 1][c].has == w->wants[c]);
    }
    assert_int_equal(moved, r->n_moved);
    assert_int_equal(moved, missing(from, r->whole, w));
    ch__reshard_cost(from, r->whole, w->region, w->wants, &cost);
    assert_int_equal(moved, cost.n_moved);
    if (moved > 0)
        assert_int_equal(r->n_stages, cost.n_stages);
    assert_true((r->kind == CH_TRAFFIC_NONE) == (moved == 0));
}

/* ---- cases ---- */

/* The regions of a layout. */
static wanted wanted_by(const ch_core_layout *l, ch_shape s)
{
    wanted w = {.wants = {false}};

    for (int c = 0; c < l->n_cores; c++)
        w.wants[c] = ch__core_region(l, s, c, &w.region[c]);
    return w;
}

/* Regions [from[c], to[c]) of axis 0; whole along the other axes. */
static wanted wanted_rows(ch_shape s, int n, const int *from, const int *to)
{
    wanted w = {.wants = {false}};

    for (int c = 0; c < n; c++) {
        w.wants[c] = true;
        for (int k = 0; k < s.rank; k++)
            w.region[c].size[k] = s.dim[k];
        w.region[c].begin[0] = from[c];
        w.region[c].size[0] = to[c] - from[c];
    }
    return w;
}

static ch_core_layout split_by(int n_cores, int rank, int a, int b, int c, int d)
{
    ch_core_layout l;

    ch__layout_split(n_cores, rank, (int[]){a, b, c, d}, &l);
    return l;
}

/* All cores have a partial result of the whole value. */
static ch_core_layout partial_sum(int n_cores, int rank)
{
    ch_core_layout l;

    ch__layout_replicated(n_cores, rank, &l);
    l.n_partial = n_cores;
    for (int c = 0; c < n_cores; c++)
        l.partial[c] = (unsigned char)c;
    return l;
}

/* Plans and runs a reshard. Checks its kind and the number of elements that move. */
static void check(const ch_core_layout *from, ch_shape s, wanted w, ch_traffic_kind kind,
                  int64_t n_moved)
{
    ch_arena          arena = {.last = NULL};
    const ch_reshard *r = NULL;

    ok(ch__reshard_plan(from, s, w.region, w.wants, &arena, &r));
    run(r, &w);
    assert_int_equal(r->kind, kind);
    assert_int_equal(r->n_moved, n_moved);
    ch__arena_drop(&arena);
}

static void check_layouts(ch_core_layout from, ch_core_layout to, ch_shape s,
                          ch_traffic_kind kind, int64_t n_moved)
{
    check(&from, s, wanted_by(&to, s), kind, n_moved);
}

/* Layouts of two axes on n cores: every product of parts of two axes, partial results and
 * copies that is n, in three orders of cores, every such product below n on the first cores, and
 * the value on each single core. */
static int layouts_of_two_axes(int n, ch_core_layout *l)
{
    int count = 0;

    for (int code = 0; code < n * n * n * 4; code++) {
        int a = 1 + code % n, b = 1 + code / n % n, g = 1 + code / (n * n) % n;
        int order = code / (n * n * n);

        if (order == 3 ? a * b * g >= n || g == 1 : n % (a * b * g) != 0)
            continue;
        ch__layout_replicated(n, 2, &l[count]);
        l[count].parts[0] = a;
        l[count].parts[1] = b;
        l[count].n_partial = g;
        l[count].combiner = g > 1 ? (ch_partial_op)(code % 6) : CH_PARTIAL_SUM;
        for (int c = 0; c < n; c++) {
            /* in order; reversed; and with the copies of a part side by side */
            int i = order == 1 ? n - 1 - c : order == 2 ? c / (n / (a * b * g)) : c;

            if (order == 3 && c >= a * b * g) { /* the core has nothing to add */
                l[count].cores &= ~(UINT64_C(1) << c);
                continue;
            }
            l[count].part[0][c] = (unsigned char)(i % a);
            l[count].part[1][c] = (unsigned char)(i / a % b);
            l[count].partial[c] = (unsigned char)(i / (a * b) % g);
        }
        count++;
    }
    for (int c = 0; c < n; c++)
        ch__layout_on_core(n, 2, c, &l[count++]);
    return count;
}

/* TPU-4.8, TPU-5.5: every pair of layouts. */
static void reshard_moves_the_missing_elements_between_all_layouts(void **state)
{
    static ch_core_layout l[1000];
    const int             cores[] = {4, 6, 8};
    ch_shape              s = ch_shape_of(6, 8);

    (void)state;
    for (int i = 0; i < 3; i++) {
        int n = layouts_of_two_axes(cores[i], l);

        for (int j = 0; j < n * n; j++) {
            ch_arena          arena = {.last = NULL};
            const ch_reshard *r = NULL;
            wanted            w;

            if (l[j % n].n_partial > 1)
                continue;
            w = wanted_by(&l[j % n], s);
            ok(ch__reshard_plan(&l[j / n], s, w.region, w.wants, &arena, &r));
            run(r, &w);
            ch__arena_drop(&arena);
        }
    }
}

/* A random layout that keeps the invariant: the parts of cores are drawn, and then every
 * combination is given to a core that is drawn. */
static ch_core_layout random_layout(unsigned *seed, int n_cores, int rank)
{
    ch_core_layout l;

    for (;;) {
        int combinations;

        ch__layout_replicated(n_cores, rank, &l);
        l.n_partial = draw(seed, 2) == 0 ? 1 : 1 + (int)draw(seed, 4);
        if (l.n_partial > 1)
            l.combiner = (ch_partial_op)draw(seed, 6);
        combinations = l.n_partial;
        for (int k = 0; k < rank; k++) {
            l.parts[k] = 1 + (int)draw(seed, 5);
            l.unit[k] = l.parts[k] > 1 ? 1 + draw(seed, 3) : 1;
            combinations *= l.parts[k];
        }
        if (combinations > n_cores)
            continue;
        for (int c = 0, shift = (int)draw(seed, 64); c < n_cores; c++) {
            int i = c < combinations ? c : (int)draw(seed, (unsigned)combinations);
            int core = (c + shift) % n_cores;

            if (c >= combinations && draw(seed, 4) == 0) { /* a core without a part */
                l.cores &= ~(UINT64_C(1) << core);
                continue;
            }
            for (int k = 0; k < rank; i /= l.parts[k++])
                l.part[k][core] = (unsigned char)(i % l.parts[k]);
            l.partial[core] = (unsigned char)i;
        }
        return l;
    }
}

static wanted random_wanted(unsigned *seed, int n_cores, ch_shape s)
{
    wanted w = {.wants = {false}};

    for (int c = 0; c < n_cores; c++) {
        w.wants[c] = draw(seed, 5) != 0;
        if (c > 0 && draw(seed, 3) == 0) {
            w.region[c] = w.region[c - 1];
            continue;
        }
        for (int k = 0; k < s.rank; k++) {
            unsigned size = (unsigned)s.dim[k];

            w.region[c].begin[k] = draw(seed, size + 1);
            w.region[c].size[k] = draw(seed, size + 1 - (unsigned)w.region[c].begin[k]);
            if (draw(seed, 2) == 0) {
                w.region[c].begin[k] = 0;
                w.region[c].size[k] = size;
            }
        }
    }
    return w;
}

static void reshard_fills_random_regions_from_random_layouts(void **state)
{
    unsigned seed = 5;

    (void)state;
    for (int i = 0; i < 3000; i++) {
        int               n_cores = 1 + (int)draw(&seed, i % 50 == 0 ? 64 : 9);
        ch_shape          s = {.rank = (int)draw(&seed, 4)};
        ch_arena          arena = {.last = NULL};
        const ch_reshard *r = NULL;
        ch_core_layout    from;
        wanted            w;

        for (int k = 0; k < s.rank; k++)
            s.dim[k] = draw(&seed, 7);
        from = random_layout(&seed, n_cores, s.rank);
        w = random_wanted(&seed, n_cores, s);
        ok(ch__reshard_plan(&from, s, w.region, w.wants, &arena, &r));
        run(r, &w);
        ch__arena_drop(&arena);
    }
}

/* ---- numbers of elements of the usual patterns ---- */

static void reshard_does_nothing_when_regions_are_as_wanted(void **state)
{
    ch_core_layout    l = split_by(4, 2, 2, 2, 0, 0);
    ch_shape          s = ch_shape_of(5, 3);
    wanted            w = wanted_by(&l, s);
    ch_arena          arena = {.last = NULL};
    const ch_reshard *r = NULL;

    (void)state;
    w.wants[2] = false; /* a core may need nothing */
    ok(ch__reshard_plan(&l, s, w.region, w.wants, &arena, &r));
    assert_int_equal(r->n_stages, 0);
    assert_int_equal(r->kind, CH_TRAFFIC_NONE);
    w.region[0].size[0]--; /* a local copy */
    ok(ch__reshard_plan(&l, s, w.region, w.wants, &arena, &r));
    assert_int_equal(r->n_stages, 1);
    assert_int_equal(r->kind, CH_TRAFFIC_NONE);
    run(r, &w);
    ch__arena_drop(&arena);
}

static void reshard_names_and_counts_an_all_to_all(void **state)
{
    ch_core_layout from, to;

    (void)state;
    check_layouts(split_by(4, 2, 1, 4, 0, 0), split_by(4, 2, 4, 1, 0, 0), ch_shape_of(8, 8),
                  CH_TRAFFIC_ALL_TO_ALL, 192 / 4);
    ok(ch__layout_over_mesh("x", 2, (int[]){4, 2}, 3, (int[]){1, CH_OFF, 0}, &from));
    ok(ch__layout_over_mesh("x", 2, (int[]){4, 2}, 3, (int[]){CH_OFF, CH_MESH_ALL, CH_OFF},
                            &to));
    assert_int_equal(from.parts[0], 2);
    assert_int_equal(from.parts[2], 4);
    assert_int_equal(to.parts[1], 8);
    check_layouts(from, to, ch_shape_of(16, 16, 16), CH_TRAFFIC_ALL_TO_ALL, 14336 / 4);
    ch__layout_replicated(8, 3, &to); /* a device would drop most of what it gets */
    check_layouts(from, to, ch_shape_of(16, 16, 16), CH_TRAFFIC_ALL_GATHER, 114688 / 4);
    /* three rows on four cores: a core without rows needs columns */
    check_layouts(split_by(4, 2, 4, 1, 0, 0), split_by(4, 2, 1, 4, 0, 0), ch_shape_of(3, 8),
                  CH_TRAFFIC_ALL_TO_ALL, 18);
}

static void reshard_names_and_counts_a_halo(void **state)
{
    ch_core_layout rows = split_by(4, 1, 4, 0, 0, 0);
    ch_shape       s = ch_shape_of(2, 16, 16, 3), t = ch_shape_of(1, 16, 8, 2);
    ch_shape       u = ch_shape_of(1, 8, 8, 2);
    wanted         w;

    (void)state;
    check(&rows, ch_shape_of(48),
          wanted_rows(ch_shape_of(48), 4, (int[]){0, 16, 32, 40}, (int[]){16, 32, 40, 48}),
          CH_TRAFFIC_HALO, 64 / 4);
    check(&rows, ch_shape_of(16), /* a slice 2:14 */
          wanted_rows(ch_shape_of(16), 4, (int[]){2, 5, 8, 11}, (int[]){5, 8, 11, 14}),
          CH_TRAFFIC_HALO, 8 / 4);
    check(&rows, ch_shape_of(8), /* padding by 1, 1 */
          wanted_rows(ch_shape_of(8), 4, (int[]){0, 2, 5, 7}, (int[]){2, 5, 7, 8}),
          CH_TRAFFIC_HALO, 8 / 4);
    rows = split_by(4, 4, 1, 4, 1, 1);
    w = wanted_by(&rows, s); /* 3x3, stride 1, "same": a row above and below */
    for (int c = 0; c < 4; c++) {
        w.region[c].begin[1] = c == 0 ? 0 : 4 * c - 1;
        w.region[c].size[1] = c == 0 || c == 3 ? 5 : 6;
    }
    check(&rows, s, w, CH_TRAFFIC_HALO, 2304 / 4);
    w = wanted_by(&rows, t); /* 3x3, stride 2, "same": a row below */
    for (int c = 0; c < 3; c++)
        w.region[c].size[1] = 5;
    check(&rows, t, w, CH_TRAFFIC_HALO, 192 / 4);
    rows = split_by(4, 4, 1, 2, 2, 1); /* rows and columns */
    w = wanted_by(&rows, u);
    for (int c = 0; c < 4; c++) {
        for (int k = 1; k <= 2; k++) {
            w.region[c].begin[k] -= w.region[c].begin[k] > 0;
            w.region[c].size[k] = 5;
        }
    }
    check(&rows, u, w, CH_TRAFFIC_HALO, 288 / 4);
}

static void reshard_names_and_counts_an_all_gather(void **state)
{
    ch_core_layout rows = split_by(4, 2, 4, 1, 0, 0), whole, halves, quarters;

    (void)state;
    ch__layout_replicated(4, 2, &whole);
    check_layouts(rows, whole, ch_shape_of(8, 8), CH_TRAFFIC_ALL_GATHER, 3 * 64);
    check_layouts(rows, whole, ch_shape_of(3, 5), CH_TRAFFIC_ALL_GATHER, 3 * 15);
    /* a sparse gradient: ids (8) of i64 and rows (8, 8) of f32 */
    check_layouts(rows, whole, ch_shape_of(8, 1), CH_TRAFFIC_ALL_GATHER, 3 * 8);
    assert_int_equal(3 * 8 * 8 + 3 * 64 * 4, 960);
    ok(ch__layout_over_mesh("x", 2, (int[]){2, 2}, 2, (int[]){0, 1}, &quarters));
    ok(ch__layout_over_mesh("x", 2, (int[]){2, 2}, 2, (int[]){0, CH_OFF}, &halves));
    check_layouts(quarters, halves, ch_shape_of(8, 8), CH_TRAFFIC_ALL_GATHER, 64);
    check_layouts(halves, whole, ch_shape_of(8, 8), CH_TRAFFIC_ALL_GATHER, 128);
    ch__layout_on_core(4, 2, 2, &halves); /* a broadcast */
    check_layouts(halves, whole, ch_shape_of(8, 8), CH_TRAFFIC_ALL_GATHER, 3 * 64);
}

static void reshard_names_and_counts_other_patterns(void **state)
{
    ch_core_layout rows = split_by(4, 1, 4, 0, 0, 0), one, other;
    ch_shape       s = ch_shape_of(8, 3);

    (void)state;
    check(&rows, ch_shape_of(8), /* reversal */
          wanted_rows(ch_shape_of(8), 4, (int[]){6, 4, 2, 0}, (int[]){8, 6, 4, 2}),
          CH_TRAFFIC_OTHER, 32 / 4);
    rows = split_by(4, 2, 4, 1, 0, 0);
    check(&rows, s, /* rows 8 to 16 of a concat */
          wanted_rows(s, 4, (int[]){0, 0, 0, 4}, (int[]){0, 0, 4, 8}), CH_TRAFFIC_OTHER,
          72 / 4);
    ch__layout_on_core(4, 2, 1, &one);
    ch__layout_on_core(4, 2, 3, &other);
    check_layouts(one, other, s, CH_TRAFFIC_OTHER, 24);
    check_layouts(one, rows, s, CH_TRAFFIC_OTHER, 18);
    check_layouts(rows, one, s, CH_TRAFFIC_OTHER, 18);
}

static void reshard_names_and_counts_sums(void **state)
{
    ch_core_layout sum = partial_sum(4, 2), whole, one, pairs;
    ch_shape       s = ch_shape_of(8, 16);

    (void)state;
    ch__layout_replicated(4, 2, &whole);
    ch__layout_on_core(4, 2, 2, &one);
    check_layouts(sum, whole, s, CH_TRAFFIC_ALL_REDUCE, 3072 / 4);
    check_layouts(sum, split_by(4, 2, 4, 1, 0, 0), s, CH_TRAFFIC_REDUCE_SCATTER, 3 * 128);
    check_layouts(sum, one, s, CH_TRAFFIC_REDUCE_SCATTER, 3 * 128);
    /* scalars have no even shares */
    sum.rank = whole.rank = 0;
    check_layouts(sum, whole, ch_shape_scalar(), CH_TRAFFIC_ALL_REDUCE, 6);
    /* pairs of a mesh of 2 by 2: rows over axis 0, partial sums over axis 1 */
    ok(ch__layout_over_mesh("x", 2, (int[]){2, 2}, 2, (int[]){0, CH_OFF}, &pairs));
    whole = pairs;
    pairs.n_partial = 2;
    for (int c = 0; c < 4; c++)
        pairs.partial[c] = (unsigned char)(c % 2);
    check_layouts(pairs, whole, s, CH_TRAFFIC_ALL_REDUCE, 1024 / 4);
    check_layouts(pairs, split_by(4, 2, 4, 1, 0, 0), s, CH_TRAFFIC_REDUCE_SCATTER, 128);
}

/* ---- lengths of lists, and the cores that are read ---- */

static const ch_reshard *plan_of(const ch_core_layout *from, ch_shape s, const wanted *w,
                                 ch_arena *arena)
{
    const ch_reshard *r = NULL;

    ok(ch__reshard_plan(from, s, w->region, w->wants, arena, &r));
    run(r, w);
    return r;
}

static void reshard_lists_are_short(void **state)
{
    enum { N = 16 };
    ch_core_layout    rows = split_by(N, 2, N, 1, 0, 0), sum = partial_sum(N, 2), whole;
    ch_shape          s = ch_shape_of(48, 4);
    ch_arena          arena = {.last = NULL};
    wanted            halo = wanted_by(&rows, s), all;
    const ch_reshard *gather, *exchange, *reduce, *scatter, *wide;

    (void)state;
    ch__layout_replicated(N, 2, &whole);
    all = wanted_by(&whole, s);
    gather = plan_of(&rows, s, &all, &arena);
    reduce = plan_of(&sum, s, &all, &arena);
    scatter = plan_of(&sum, s, &halo, &arena);
    for (int c = 0; c < N; c++) {
        halo.region[c].begin[0] -= c > 0;
        halo.region[c].size[0] += c > 0 && c < N - 1 ? 2 : 1;
    }
    exchange = plan_of(&rows, s, &halo, &arena);
    wide = plan_of(&sum, s, &halo, &arena);
    assert_int_equal(reduce->n_stages, 2);
    assert_int_equal(wide->n_stages, 2);
    assert_int_equal(scatter->n_stages, 1);
    for (int c = 1; c < N - 1; c++) {
        assert_int_equal(gather->stage[0][c].n, N);
        assert_int_equal(exchange->stage[0][c].n, 3);
        assert_int_equal(reduce->stage[0][c].n, 1);
        assert_int_equal(reduce->stage[1][c].n, N);
        assert_int_equal(scatter->stage[0][c].n, 1);
        assert_true(wide->stage[0][c].n <= 3);
        assert_true(wide->stage[1][c].n <= 5);
    }
    ch__arena_drop(&arena);
}

/* Two partial results on two cores need one stage: each core reads the other's. */
static void reshard_adds_two_partial_results_in_one_stage(void **state)
{
    ch_core_layout    sum = partial_sum(2, 1), whole;
    ch_shape          s = ch_shape_of(9);
    ch_arena          arena = {.last = NULL};
    wanted            w;
    const ch_reshard *r;

    (void)state;
    ch__layout_replicated(2, 1, &whole);
    w = wanted_by(&whole, s);
    r = plan_of(&sum, s, &w, &arena);
    assert_int_equal(r->n_stages, 1);
    assert_int_equal(r->kind, CH_TRAFFIC_ALL_REDUCE);
    assert_int_equal(r->n_moved, 18);
    ch__arena_drop(&arena);
}

static void reshard_combines_even_shares(void **state)
{
    ch_core_layout    sum = partial_sum(4, 2), whole;
    ch_shape          s = ch_shape_of(3, 10);
    ch_arena          arena = {.last = NULL};
    wanted            w;
    const ch_reshard *r;

    (void)state;
    ch__layout_replicated(4, 2, &whole);
    w = wanted_by(&whole, s);
    r = plan_of(&sum, s, &w, &arena);
    for (int c = 0; c < 4; c++)
        assert_int_equal(ch__region_count(&r->stage[0][c].held, 2), c < 2 ? 9 : 6);
    ch__arena_drop(&arena);
}

static void reshard_reads_are_spread_over_copies(void **state)
{
    enum { N = 16 };
    ch_core_layout    l, whole;
    ch_shape          s = ch_shape_of(8);
    ch_arena          arena = {.last = NULL};
    wanted            w;
    const ch_reshard *r;
    int               reads[N] = {0};

    (void)state;
    ok(ch__layout_over_mesh("x", 2, (int[]){4, 4}, 1, (int[]){0}, &l));
    ch__layout_replicated(N, 1, &whole);
    w = wanted_by(&whole, s);
    r = plan_of(&l, s, &w, &arena);
    for (int c = 0; c < N; c++) {
        for (int i = 0; i < r->stage[0][c].n; i++)
            reads[r->stage[0][c].copy[i].source[0]]++;
    }
    for (int c = 0; c < N; c++)
        assert_int_equal(reads[c], 4); /* itself, and three others */
    ch__arena_drop(&arena);
}

/* ---- memory ---- */

static void reshard_plan_reports_failed_allocations(void **state)
{
    ch_core_layout from[] = {split_by(8, 2, 2, 4, 0, 0), partial_sum(8, 2)}, whole;
    ch_shape       s = ch_shape_of(16, 16);
    wanted         w;

    (void)state;
    ch__layout_replicated(8, 2, &whole);
    w = wanted_by(&whole, s);
    for (int i = 0; i < 2; i++) {
        ch_status rc = CH_RESOURCE_EXHAUSTED;
        int       n = 0;

        while (rc != CH_OK) {
            const ch_reshard *r = NULL;
            ch_arena          arena = {.last = NULL};

            ch__mem_fail_at(++n);
            rc = ch__reshard_plan(&from[i], s, w.region, w.wants, &arena, &r);
            ch__mem_fail_at(0);
            assert_true(rc == CH_OK || (rc == CH_RESOURCE_EXHAUSTED && r == NULL));
            ch__arena_drop(&arena);
        }
        assert_true(n > 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reshard_moves_the_missing_elements_between_all_layouts),
        cmocka_unit_test(reshard_fills_random_regions_from_random_layouts),
        cmocka_unit_test(reshard_does_nothing_when_regions_are_as_wanted),
        cmocka_unit_test(reshard_names_and_counts_an_all_to_all),
        cmocka_unit_test(reshard_names_and_counts_a_halo),
        cmocka_unit_test(reshard_names_and_counts_an_all_gather),
        cmocka_unit_test(reshard_names_and_counts_other_patterns),
        cmocka_unit_test(reshard_names_and_counts_sums),
        cmocka_unit_test(reshard_lists_are_short),
        cmocka_unit_test(reshard_adds_two_partial_results_in_one_stage),
        cmocka_unit_test(reshard_combines_even_shares),
        cmocka_unit_test(reshard_reads_are_spread_over_copies),
        cmocka_unit_test(reshard_plan_reports_failed_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
