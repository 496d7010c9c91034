/* test/ops/test_splits.c -- every op, every split: the cores of a replica compute what one
 * device computes.
 *
 * Each sample is recorded and run call by call (calls.h). Then every call is a step of its own:
 * its inputs are those of the step, and it runs under OneDevice and under a strategy whose
 * replica has several cores. Annotations of the inputs and results split a factor of the call
 * (graph/factors.h), or two factors over a mesh of two axes. Sizes need not divide, and shards
 * may have no elements. The results must be those of one device: equal if all numbers are
 * whole, otherwise within the tolerance of the sample. The memory of the devices is filled with
 * NaN before each run.
 *
 * A call is annotated in four ways: its inputs and results, only its inputs, only its results,
 * or all along any axes, which need not fit together. In the first way operations have a high
 * price, so that the partitioner must divide the call; the sizes of the calls that the cores
 * have run show that it did.
 *
 * By default a call runs in a few ways, which change from call to call. With T_CASES of 1000 or
 * more it runs in all ways, on 1, 2, 3, 4, 6, 7 and 8 cores and in every dtype. T_OP is the name
 * of the only op whose calls run.
 *
 * T_FAMILIES lists, as X(name), the families whose samples are built.
 * SPDX-License-Identifier: Apache-2.0 */
#include "../mutant.h"
#include "../strategy/cores.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <math.h>

#include "base/config.h"
#include "calls.h"
#include "graph/attr.h"
#include "graph/function.h"
#include "graph/step.h"
#include "spmd/annotate.h"
#include "strategy/strategy.h"

#define T_FAMILY_ADDRESS(name) &name,
static const t_family *const families[] = {T_FAMILIES(T_FAMILY_ADDRESS) NULL};

enum { MOST_OPS = 1000, MOST_SEEN = 1 << 16, MOST_CORES = 8, WORKSPACE = 1 << 18 };

/* How the cores divide two factors. In the first SINGLES rows a single factor is split. */
enum { SINGLES = 7, SPLITS = 12 };
static const int splits[SPLITS][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {6, 1}, {8, 1},
                                      {7, 1}, {2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}};

/* Which values of a call are annotated. ANY: inputs and results, along any axes. */
typedef enum way { BOTH, INPUTS, RESULTS, ANY } way;
static const char *const way_name[] = {"inputs and results", "inputs", "results", "any axes"};

static bool         all_ways;          /* T_CASES is large */
static const char  *only;              /* T_OP; NULL: all ops */
static unsigned     turn;              /* changes the ways from call to call */
static bool         has_run[MOST_OPS]; /* by index in the table */
static bool         divided[MOST_OPS]; /* the same: cores ran parts of a call */
static uint64_t     seen[MOST_SEEN];   /* hashes of the calls that have run, by hash */
static ch_strategy *one, *cores[SPLITS];

static int index_of(const ch_op *op)
{
    int i = 0;

    while (ch__op_table()[i] != op)
        i++;
    return i;
}

/* Returns the next number of a sequence that is the same in every run of the program. */
static unsigned next(unsigned n)
{
    turn = turn * 1664525u + 1013904223u;
    return (turn >> 8) % n;
}

/* ---- a call as a step ---- */

typedef struct experiment {
    t_values         *v;
    const ch_node    *n;
    const ch_factors *f;
    double            tolerance;
    bool              has_cores;
    int               split;     /* index in `splits` */
    int               factor[2]; /* -1: none */
    way               way;
    int               n_values; /* different values among the inputs */
    const ch_node    *value[T_MAX_IN];
    ch_tuple         *in;
} experiment;

static void complain(const experiment *x, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));

static void complain(const experiment *x, const char *format, ...)
{
    char    text[1024], type[160];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ch__dims_print(&x->n->dims, type, sizeof(type));
    if (!x->has_cores)
        t_fail(x->v->c, "%s%s on one device: %s", x->n->op->name, type, text);
    t_fail(x->v->c, "%s%s, factors %d and %d on %d x %d cores, %s: %s", x->n->op->name, type,
           x->factor[0], x->factor[1], splits[x->split][0], splits[x->split][1],
           way_name[x->way], text);
}

/* Annotates an input or result: an axis whose outermost factor is split lies over the mesh axis
 * of this factor. Any axis may be split if the way is ANY. */
static ch_node *annotate(const experiment *x, ch_node *to, const ch_axis_rule *axis)
{
    int  at[CH_MAX_RANK];
    bool any = false;

    for (int k = 0; k < to->dims.rank; k++)
        at[k] = CH_OFF;
    for (int w = 0; w < 2; w++) {
        int rank = to->dims.rank, k = 0;

        if (x->way == ANY)
            k = rank > 0 ? (int)next((unsigned)rank + 1) : 0;
        else
            while (k < rank && (axis[k].n == 0 || axis[k].factor[0] != x->factor[w]))
                k++;
        if (k == rank || at[k] != CH_OFF || (w == 1 && splits[x->split][1] == 1))
            continue;
        at[k] = w;
        any = true;
    }
    return any || x->way == ANY ? ch__annotate(NULL, to, CH_ANNOTATION_MESH, to->dims.rank, at)
                                : to;
}

/* Returns true if a call or root of the sample reads output i. Other outputs need not have been
 * computed, and neither has all of the trace of a loop, which another loop reads up to the
 * iteration where the loop has ended. */
static bool is_read(const experiment *x, int i)
{
    const ch_graph *g = x->v->graph;
    const ch_node  *out = &x->n[i];

    for (int o = 0; o < g->n_outputs; o++)
        if (g->output[o].node == out)
            return true;
    for (const ch_node *n = g->first; n != NULL; n = ch__next(n))
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] == out && (n->op != x->n->op || strcmp(n->op->name, "scan") != 0))
                return true;
    return false;
}

static void record(ch_step *s, void *arg)
{
    const experiment *x = arg;
    ch_node          *value[T_MAX_IN], *in[T_MAX_IN], *call;

    for (int i = 0; i < x->n_values; i++)
        value[i] = ch_step_in(s, i);
    for (int i = 0; i < x->n->n_in; i++) {
        int k = 0;

        while (x->value[k] != x->n->in[i])
            k++;
        in[i] =
            x->has_cores && x->way != RESULTS ? annotate(x, value[k], x->f->in[i]) : value[k];
    }
    call = ch__graph_add(s->graph, x->n->op, x->n->attrs, x->n->n_in, in, x->n->n_out);
    assert_non_null(call);
    ch__call_copy_origin(call, x->n);
    for (int i = 0; i < x->n->n_out; i++) {
        call[i].dtype = x->n[i].dtype;
        call[i].dims = x->n[i].dims;
        call[i].varies = true;
    }
    for (int i = 0; i < x->n->n_out; i++)
        ch_step_out(s, NULL,
                    x->has_cores && x->way != INPUTS ? annotate(x, &call[i], x->f->out[i])
                                                     : &call[i]);
}

/* Fills the workspaces of the devices with NaN. */
static void spoil_memory(ch_strategy *st)
{
    ch_device *const *device = NULL;
    int               n = ch__strategy_cores(st);

    t_ok(ch__strategy_devices(st, &device));
    for (int c = 0; c < n; c++) {
        ch_workspace w = {0};

        ch__devices_hold(1, &device[c]);
        t_ok(ch__device_workspace(device[c], WORKSPACE, false, &w));
        memset(w.base, 0xff, w.bytes < WORKSPACE ? w.bytes : WORKSPACE);
        ch__devices_release(1, &device[c]);
    }
}

/* Returns true if a core has run a part of the call, or other ops in its place. */
static bool is_divided(const experiment *x, ch_function *f)
{
    bool has_op = false;

    for (int i = 0; i < f->programs->n_programs; i++)
        for (const ch_node *n = f->programs->program[i]->graph->first; n != NULL;
             n = ch__next(n)) {
            if (n->op != x->n->op || n->ordinal != x->n->ordinal)
                continue;
            has_op = true;
            for (int o = 0; o < n->n_out; o++)
                if (ch__count(&n[o]) < ch__count(&x->n[o]))
                    return true;
            for (int k = 0; k < n->n_in; k++)
                if (ch__count(n->in[k]) < ch__count(x->n->in[k]))
                    return true;
        }
    return !has_op;
}

/* Runs the call on the devices of a strategy. Sets *out to the results. Returns true if cores
 * have run parts of it. */
static bool run(const experiment *x, ch_strategy *st, ch_tuple **out)
{
    ch_function *f = NULL;
    experiment   arg = *x;
    bool         was_divided;

    t_ok(ch_function_new(x->n->op->name, record, &arg, &f));
    ch_function_static_rows(f);
    spoil_memory(st);
    if (ch_strategy_run(st, f, x->in, out) != CH_OK)
        complain(x, "%s", ch_error_message());
    was_divided = x->has_cores && is_divided(x, f);
    ch_function_unref(f);
    return was_divided;
}

/* ---- comparing ---- */

/* Returns the permitted difference of output i, relative to its size. Partial results may be
 * larger than their sum, and leave rounding errors of their own size. */
static double tolerance_of(const experiment *x, const ch_node *out, const t_array *want)
{
    double tolerance = 2 * t_tolerance(x->tolerance, x->v->c->dtype, out->dtype);
    double size = t_rms(want), larger = 0;
    bool   is_expanded = x->n->op->expand != NULL;

    if (t_is_exact(x->v, x->n) && !is_expanded)
        return 0;
    for (int k = 0; k < x->n->n_in; k++)
        if (ch_dtype_is_float(x->n->in[k]->dtype)) {
            t_array in = t_array_of(x->n->in[k], x->v->at[x->n->in[k]->id]);

            larger = fmax(larger, t_rms(&in) * sqrt((double)ch__count(x->n->in[k])));
        }
    if (out->dtype == CH_BF16 || out->dtype == CH_F16)
        tolerance *= MOST_CORES; /* every partial result is rounded */
    if (is_expanded)
        tolerance *= 16; /* plain ops round what the kernel keeps in f64 */
    return size > 0 ? tolerance * fmax(1, fmin(larger / size, 1e4)) : tolerance;
}

static void compare(const experiment *x, ch_tuple *got, ch_tuple *want)
{
    for (int i = 0; i < x->n->n_out; i++) {
        const ch_tensor *g = ch_value_at(ch_tuple_at(got, i), 0);
        const ch_tensor *w = ch_value_at(ch_tuple_at(want, i), 0);
        const ch_node   *out = &x->n[i];
        t_array          a, b;
        char             how[320];

        if (!ch_shape_equal(ch_tensor_shape(g), ch_tensor_shape(w)))
            complain(x, "output %d has another shape", i);
        if (memcmp(ch_tensor_data(g), ch_tensor_data(w), ch_tensor_bytes(w)) == 0)
            continue;
        a = t_array_of(out, ch_tensor_data(g));
        b = t_array_of(out, ch_tensor_data(w));
        (void)snprintf(how, sizeof(how),
                       "%s, factors %d and %d on %d x %d cores, %s: output %d", x->n->op->name,
                       x->factor[0], x->factor[1], splits[x->split][0], splits[x->split][1],
                       way_name[x->way], i);
        if (is_read(x, i))
            t_assert_near(x->v->c, how, out->dtype, &a, &b, tolerance_of(x, out, &b));
    }
}

/* ---- splitting a call ---- */

/* Returns true if an axis of an array is divided when it is annotated for a factor: an axis of
 * several factors is a range of the first if this has a position for each part. */
static bool divides(const experiment *x, const ch_axis_rule *axis, int rank, int w)
{
    int factor = x->factor[w];

    for (int k = 0; k < rank; k++)
        if (axis[k].n > 0 && axis[k].factor[0] == factor &&
            (axis[k].n == 1 || x->f->factor[factor].size.n >= splits[x->split][w]))
            return true;
    return false;
}

/* Returns true if an axis of an array consists of this factor and others, and the factor is not
 * the first of them or `any`. */
static bool is_among(const ch_axis_rule *axis, int rank, int factor, bool any)
{
    for (int k = 0; k < rank; k++)
        for (int j = 0; j < axis[k].n; j++)
            if (axis[k].factor[j] == factor && axis[k].n > 1 && (j > 0 || any))
                return true;
    return false;
}

/* Returns true if the parts of a factor are no ranges of an axis: the factor is inside another
 * one. If `any`: the factor shares an axis with another one. */
static bool shares_axis(const experiment *x, int factor, bool any)
{
    bool is = false;

    for (int i = 0; i < x->n->n_in; i++)
        is |= is_among(x->f->in[i], x->n->in[i]->dims.rank, factor, any);
    for (int i = 0; i < x->n->n_out; i++)
        is |= is_among(x->f->out[i], x->n[i].dims.rank, factor, any);
    return is;
}

/* Returns true if the rule of the call says that the cores compute parts of it. */
static bool must_divide(const experiment *x)
{
    bool must = false;

    if ((x->n->op->flags & CH_OP_EFFECT) != 0 || splits[x->split][0] == 1)
        return false; /* core 0 runs the call */
    for (int k = 0; k < x->f->n; k++)
        if (x->f->factor[k].size.n == 0)
            return false; /* there is no work */
    for (int w = 0; w < 2 && x->factor[w] >= 0; w++)
        if (shares_axis(x, x->factor[w], x->factor[1] >= 0))
            return false;
    for (int w = 0; w < 2; w++) {
        if (x->factor[w] < 0 || x->f->factor[x->factor[w]].kind == CH_FIX)
            continue;
        for (int i = 0; i < x->n->n_in; i++)
            must |= divides(x, x->f->in[i], x->n->in[i]->dims.rank, w);
        for (int i = 0; i < x->n->n_out; i++)
            must |= divides(x, x->f->out[i], x->n[i].dims.rank, w);
    }
    return must;
}

/* Runs the call on the cores with factors a and b (-1: none) split, and compares. */
static void split(experiment *x, ch_tuple *want, int s, int a, int b, way how)
{
    bool      was_divided;
    ch_tuple *got = NULL;
    double    price = how == BOTH ? 1e6 : 0;

    x->split = s;
    x->factor[0] = a;
    x->factor[1] = b;
    x->way = how;
    x->has_cores = true;
    cores[s]->bytes_per_operation = price;
    was_divided = run(x, cores[s], &got);
    if (how == BOTH && must_divide(x) && !was_divided)
        complain(x, "every core has run the whole call");
    divided[index_of(x->n->op)] |= was_divided;
    compare(x, got, want);
    ch_tuple_unref(got);
}

static bool is_long(const ch_factors *f, int i)
{
    return f->factor[i].size.n > 1;
}

/* Splits every factor, and pairs of factors. */
static void split_ways(experiment *x, ch_tuple *want, bool all)
{
    const ch_factors *f = x->f;
    int               pairs = 0, wanted;

    for (int a = 0; a < f->n; a++)
        for (int k = 0; is_long(f, a) && k < (all ? SINGLES : 1); k++)
            for (int w = 0; w < (all ? (int)ANY : 1); w++)
                split(x, want, all ? k : (int)next(SINGLES), a, -1, (way)w);
    for (int a = 0; a < f->n; a++)
        for (int b = a + 1; b < f->n; b++)
            pairs += is_long(f, a) && is_long(f, b);
    wanted = pairs > 0 ? (int)next((unsigned)pairs) : 0;
    for (int a = 0; a < f->n; a++)
        for (int b = a + 1; b < f->n; b++) {
            if (!is_long(f, a) || !is_long(f, b) || (!all && wanted-- != 0))
                continue;
            for (int k = 0; k < (all ? SPLITS - SINGLES : 1); k++)
                for (int w = 0; w < (all ? (int)ANY : 1); w++)
                    split(x, want, SINGLES + (all ? k : (int)next(SPLITS - SINGLES)), a, b,
                          all ? (way)w : (way)next(ANY));
        }
    for (int k = 0; k < (all ? 4 : 1); k++)
        split(x, want, (int)next(SPLITS), -1, -1, ANY);
}

static bool has_strings(const ch_node *n)
{
    bool any = false;

    for (int i = 0; i < n->n_in; i++)
        any |= n->in[i]->dtype == CH_STR;
    for (int i = 0; i < n->n_out; i++)
        any |= n[i].dtype == CH_STR;
    return any;
}

/* Returns true if a call of this op with these attributes, dtypes and sizes has run already. */
static bool was_seen(const ch_node *n)
{
    uint64_t h = n->attrs != NULL ? ch__attrs_hash(n->op, n->attrs) : 1;

    h = h * 31 + (uint64_t)index_of(n->op);
    for (int i = 0; i < n->n_in; i++) {
        h = h * 31 + (uint64_t)n->in[i]->dtype;
        for (int k = 0; k < n->in[i]->dims.rank; k++)
            h = h * 0x100000001b3u + (uint64_t)n->in[i]->dims.dim[k].n + 7;
        h = h * 31 + 5;
    }
    h |= 1;
    for (size_t at = h % MOST_SEEN;; at = (at + 1) % MOST_SEEN) {
        if (seen[at] == h)
            return true;
        if (seen[at] == 0) {
            seen[at] = h;
            return false;
        }
    }
}

/* Makes the inputs of the step from the different values that the call reads. */
static void set_inputs(experiment *x)
{
    ch_tensor *t[T_MAX_IN];

    for (int i = 0; i < x->n->n_in; i++) {
        const ch_node *in = x->n->in[i];
        int            k = 0;

        while (k < x->n_values && x->value[k] != in)
            k++;
        if (k < x->n_values)
            continue;
        x->value[x->n_values++] = in;
        t_ok(ch_tensor_copy_of(in->dtype, ch__shape(in), x->v->at[in->id], &t[k]));
    }
    t_ok(ch_tuple_of(x->n_values, t, &x->in));
    for (int k = 0; k < x->n_values; k++)
        ch_tensor_unref(t[k]);
}

static void check_call(t_values *v, const ch_node *n, ch_arena *arena, double tolerance)
{
    ch_factors f;
    experiment x = {.v = v, .n = n, .f = &f, .tolerance = tolerance};
    ch_tuple  *want = NULL;

    has_run[index_of(n->op)] = true;
    if (ch__factors_of(n, arena, &f) != CH_OK)
        complain(&x, "%s", ch_error_message());
    set_inputs(&x);
    (void)run(&x, one, &want);
    split_ways(&x, want, all_ways);
    ch_tuple_unref(want);
    ch_tuple_unref(x.in);
}

static void check_calls(t_values *v, double tolerance)
{
    ch_arena arena = {0};

    for (const ch_node *n = v->graph->first; n != NULL; n = ch__next(n))
        if (n->op->kernels != NULL && (n->op->flags & (CH_OP_HOST | CH_OP_COLLECTIVE)) == 0 &&
            n->n_in <= T_MAX_IN && !has_strings(n) &&
            (only == NULL || strcmp(n->op->name, only) == 0) && !was_seen(n))
            check_call(v, n, &arena, tolerance);
    ch__arena_drop(&arena);
}

/* TPU-5.5: every op in every split, on whole numbers and on others, in memory full of NaN. */
static void cores_compute_what_one_device_does(void **state)
{
    const t_sample *x = *state;
    t_sample        whole = t_in_whole_numbers(x);

    for (int i = 0; t_dtype_at(x, i) != CH_STR && (i == 0 || all_ways); i++) {
        t_see_calls(&whole, t_dtype_at(x, i), true, true, check_calls);
        memset(seen, 0, all_ways ? sizeof(seen) : 0);
        t_see_calls(x, t_dtype_at(x, i), false, all_ways, check_calls);
    }
}

/* ---- the table of ops ---- */

/* The ops whose calls do not run here, and the tests that run them on several cores. Calls on
 * words do not run here either: test_core_effects.c has these. */
static const struct {
    const char *op, *test;
} elsewhere[] = {
    {"input", "strategy/test_parts.c"},
    {"constant", "strategy/test_parts.c"},
    {"read", "strategy/test_tiles.c"},
    {"replica_count", "strategy/test_core_collectives.c"},
    {"global_rows", "strategy/test_divided.c"},
    {"matmul_fused", "spmd/test_random_graphs.c"},
    {"conv2d_fused", "spmd/test_random_graphs.c"},
    {"host_call", "strategy/test_core_effects.c"},
    {"all_reduce", "strategy/test_core_collectives.c"},
    {"all_reduce_begin", "strategy/test_divided.c"},
    {"all_reduce_end", "strategy/test_divided.c"},
    {"all_gather", "strategy/test_core_collectives.c"},
    {"reduce_scatter", "strategy/test_core_collectives.c"},
    {"broadcast", "strategy/test_core_collectives.c"},
    {"reduce_to_first", "strategy/test_core_collectives.c"},
};

static const char *test_of(const ch_op *op)
{
    for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++)
        if (strcmp(elsewhere[i].op, op->name) == 0)
            return elsewhere[i].test;
    return NULL;
}

static void every_op_runs_and_those_with_a_rule_are_divided(void **state)
{
    char text[8192] = "";

    for (int i = 0; ch__op_table()[i] != NULL; i++) {
        const ch_op *op = ch__op_table()[i];
        const char  *test = test_of(op), *what = NULL;

        if (op->factors == NULL && op->replicated == NULL)
            what = "has neither a partition rule nor a reason";
        else if (has_run[i] && test != NULL && !all_ways)
            what = "runs here";
        else if (!has_run[i] && test == NULL)
            what = "never runs, and the list names no other test";
        else if (test == NULL && op->factors != NULL && (op->flags & CH_OP_EFFECT) == 0 &&
                 !divided[i])
            what = "was never divided";
        if (what != NULL)
            (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "\n%s %s",
                           op->name, what);
    }
    if (text[0] != '\0')
        fail_msg("%s", text);
    (void)state;
}

static int start(void **state)
{
    t_eight_gpus(state);
    t_ok(ch__config_set("fuse", "0"));
    t_ok(ch__config_set("replicas", "turns"));
    t_ok(ch_strategy_one_device("GPU:0", &one));
    for (int i = 0; i < SPLITS; i++)
        cores[i] = t_cores_strategy(1, splits[i][0] * splits[i][1],
                                    (int[]){splits[i][0], splits[i][1], 0});
#if defined(__GLIBC__)
    (void)mallopt(M_PERTURB, 0x100); /* new memory is NaN */
#endif
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (int i = 0; i < SPLITS; i++)
        ch_strategy_unref(cores[i]);
    ch_strategy_unref(one);
    ch__devices_reset();
    return 0;
}

int main(void)
{
    const char *cases = getenv("T_CASES");

    t_leave_out_a_check();
    only = getenv("T_OP");
    all_ways = cases != NULL && atoi(cases) >= 1000;
    return t_run_sample_tests(
        families,
        &(t_sample_tests){.name = "splits",
                          .each = cores_compute_what_one_device_does,
                          .last = only == NULL ? every_op_runs_and_those_with_a_rule_are_divided
                                               : NULL,
                          .start = start,
                          .stop = stop});
}
