/* test/spmd/test_exchange.c -- the op exchange: random reshards between groups of cores, on
 * threads and in turns.
 *
 * A case draws the shape and dtype of a value, a layout (maybe partial), and the regions that
 * the cores want. The expected elements are computed one by one from the layout.
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
#include "base/thread.h"
#include "cohort/cohort.h"
#include "graph/step.h"
#include "spmd/core_ops.h"

enum { MOST_CORES = 8, MOST_ELEMENTS = 1 << 14, REPEATS = 3 };

static unsigned seed = 7;

static int draw(int n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int)((seed >> 8) % (unsigned)n);
}

static void ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

/* ---- cases ---- */

typedef struct scene {
    int               n_cores;
    ch_dtype          dtype;
    ch_shape          whole;
    ch_core_layout    from;
    ch_region         want[CH_MAX_CORES];
    bool              wants[CH_MAX_CORES];
    double            partial[MOST_CORES][MOST_ELEMENTS]; /* by number of the partial result */
    double            value[MOST_ELEMENTS];
    int64_t           n_moved;
    ch_group_set      set;
    ch_call           call[MOST_CORES];
    ch_env            env[MOST_CORES];
    ch_traffic_counts count[MOST_CORES];
    void             *in[MOST_CORES];
    void             *out[MOST_CORES];
    ch_status         rc[MOST_CORES];
    int               n_repeats;
    bool              may_overwrite[MOST_CORES]; /* the result may be written over the input */
} scene;

/* Divides the axes into parts, and gives the parts to the cores in a random order. The factor
 * of the number of cores that is left are copies or, if `partial`, partial results. */
static void draw_layout(int n_cores, int rank, bool partial, ch_core_layout *l)
{
    int order[MOST_CORES], left = n_cores;

    ch__layout_replicated(n_cores, rank, l);
    for (int k = 0; k < rank; k++) {
        int p = 1 + draw(left);

        while (left % p != 0)
            p--;
        l->parts[k] = p;
        left /= p;
    }
    l->n_partial = partial ? left : 1;
    for (int i = 0; i < n_cores; i++) {
        int j = draw(i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    for (int c = 0; c < n_cores; c++) {
        int at = order[c];

        l->partial[c] = (unsigned char)(partial ? at % left : 0);
        at /= left;
        for (int k = 0; k < rank; k++) {
            l->part[k][c] = (unsigned char)(at % l->parts[k]);
            at /= l->parts[k];
        }
    }
}

static void draw_wants(scene *x)
{
    ch_core_layout to;
    int            kind = draw(4), halo = draw(2);

    draw_layout(x->n_cores, x->whole.rank, false, &to);
    if (kind == 0)
        ch__layout_replicated(x->n_cores, x->whole.rank, &to);
    for (int c = 0; c < x->n_cores; c++) {
        ch_region *w = &x->want[c];

        x->wants[c] = ch__core_region(&to, x->whole, c, w) && (kind != 1 || c == 1);
        for (int k = 0; k < x->whole.rank && halo; k++) {
            int64_t end = ch__min(w->begin[k] + w->size[k] + 1, x->whole.dim[k]);

            w->begin[k] -= w->begin[k] > 0;
            w->size[k] = end - w->begin[k];
        }
    }
}

static double combine(ch_partial_op op, double a, double b)
{
    switch (op) {
    case CH_PARTIAL_SUM:
        return a + b;
    case CH_PARTIAL_PRODUCT:
        return a * b;
    case CH_PARTIAL_MAX:
    case CH_PARTIAL_OR:
        return a > b ? a : b;
    default:
        return a < b ? a : b;
    }
}

static void draw_values(scene *x)
{
    int64_t n = ch_shape_count(x->whole);
    int     most = x->dtype == CH_BOOL ? 2 : 3;

    for (int64_t i = 0; i < n; i++)
        for (int p = 0; p < x->from.n_partial; p++) {
            x->partial[p][i] = draw(most);
            x->value[i] = p == 0 ? x->partial[0][i]
                                 : combine(x->from.combiner, x->value[i], x->partial[p][i]);
        }
}

static void draw_case(scene *x, bool large)
{
    static const ch_dtype dtypes[] = {CH_F32, CH_F64, CH_I32, CH_I64, CH_BF16, CH_I8};
    int                   rank = 1 + draw(3);

    memset(x, 0, sizeof(*x));
    x->n_cores = 2 + draw(MOST_CORES - 1);
    x->whole.rank = rank;
    for (int k = 0; k < rank; k++)
        x->whole.dim[k] = draw(10);
    if (large)
        x->whole = ch_shape_of(60 + draw(60), 100 + draw(30));
    rank = x->whole.rank;
    draw_layout(x->n_cores, rank, draw(2) == 0, &x->from);
    if (draw(8) == 0)
        ch__layout_on_core(x->n_cores, rank, draw(x->n_cores), &x->from);
    x->dtype = dtypes[draw(6)];
    x->from.combiner = x->from.n_partial > 1 ? (ch_partial_op)draw(6) : CH_PARTIAL_SUM;
    if (x->from.combiner == CH_PARTIAL_AND || x->from.combiner == CH_PARTIAL_OR)
        x->dtype = CH_BOOL;
    draw_wants(x);
    draw_values(x);
}

/* ---- elements ---- */

static void set_element(ch_dtype t, void *data, int64_t i, double v)
{
    switch (t) {
    case CH_F32:
        ((float *)data)[i] = (float)v;
        break;
    case CH_F64:
        ((double *)data)[i] = v;
        break;
    case CH_I32:
        ((int32_t *)data)[i] = (int32_t)v;
        break;
    case CH_I64:
        ((int64_t *)data)[i] = (int64_t)v;
        break;
    case CH_BF16: { /* small whole numbers: the upper half of the f32 */
        float    f = (float)v;
        uint32_t bits;

        memcpy(&bits, &f, sizeof(bits));
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        break;
    }
    default:
        ((int8_t *)data)[i] = (int8_t)v;
    }
}

/* Writes the elements of a region of `whole` to a contiguous array. */
static void fill(const scene *x, const ch_region *r, const double *whole, void *data)
{
    int64_t n = ch__region_count(r, x->whole.rank);

    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, stride = 1;

        for (int k = x->whole.rank - 1; k >= 0; k--) {
            at += (r->begin[k] + rest % r->size[k]) * stride;
            rest /= r->size[k];
            stride *= x->whole.dim[k];
        }
        set_element(x->dtype, data, i, whole[at]);
    }
}

static size_t bytes_of(const scene *x, const ch_region *r)
{
    return (size_t)ch__region_count(r, x->whole.rank) * ch_dtype_bytes(x->dtype);
}

/* ---- runs ---- */

typedef struct member {
    scene *x;
    int    core;
} member;

static ch_status run_core(scene *x, int c)
{
    return x->call[c].node->op->kernels[0]->run(&x->call[c], (ch_kernel_tile){0, 0});
}

static void run_member(void *arg)
{
    member *m = arg;

    for (int i = 0; i < m->x->n_repeats && m->x->rc[m->core] == CH_OK; i++)
        m->x->rc[m->core] = run_core(m->x, m->core);
}

static void run_on_threads(scene *x)
{
    ch_thread *thread[MOST_CORES];
    member     m[MOST_CORES];

    for (int c = 0; c < x->n_cores; c++) {
        m[c] = (member){x, c};
        ok(ch__thread_start("core", run_member, &m[c], &thread[c]));
    }
    for (int c = 0; c < x->n_cores; c++) {
        ch__thread_join(thread[c]);
        ok(x->rc[c]);
    }
}

static void run_in_turns(scene *x)
{
    int n_left = x->n_cores, done[MOST_CORES] = {0};

    while (n_left > 0)
        for (int c = 0; c < x->n_cores; c++)
            while (done[c] < x->n_repeats) {
                ch_status rc = run_core(x, c);

                if (rc == CH__BLOCKED)
                    break;
                ok(rc);
                n_left -= ++done[c] == x->n_repeats;
            }
}

/* Records the call of core c. */
static void record(scene *x, ch_step *s, const ch_reshard *plan, const ch_node *like, int c)
{
    ch_dims   dims = {.rank = x->whole.rank};
    ch_region r = {.size = {0}};
    ch_node  *in = NULL, *out = NULL;
    ch_prep   p = {.arena = NULL};

    const ch_exchange_table *table = NULL;

    if (ch__core_region(&x->from, x->whole, c, &r)) {
        for (int k = 0; k < dims.rank; k++)
            dims.dim[k] = ch__dim(r.size[k]);
        in = ch__step_add_input(s, NULL, x->dtype, &dims);
        x->in[c] = ch__alloc_aligned(bytes_of(x, &r) + 1);
        fill(x, &r, x->partial[x->from.partial[c]], x->in[c]);
    }
    for (int k = 0; k < dims.rank; k++)
        dims.dim[k] = ch__dim(x->want[c].size[k]);
    ok(ch__exchange_table_new(&s->graph->arena, plan, like->dtype, &table));
    ok(ch__exchange(s, table, like, in, x->wants[c] ? &dims : NULL, &out));
    x->env[c] = (ch_env){
        .n_replicas = 1, .cores = x->set.part.cores[0], .core = c, .traffic = &x->count[c]};
    x->call[c] = (ch_call){.in = (const void *const *)&x->in[c],
                           .out = &x->out[c],
                           .env = &x->env[c],
                           .node = s->graph->last};
    if (x->wants[c])
        x->out[c] = ch__alloc_aligned(bytes_of(x, &x->want[c]) + 1);
    p.node = s->graph->last;
    ok(s->graph->last->op->kernels[0]->prepare(p.node, &p));
    x->call[c].scratch = ch__alloc_aligned(p.scratch_bytes + 1);
    x->may_overwrite[c] = (p.over[0] & 1) != 0 && bytes_of(x, &r) == bytes_of(x, &x->want[c]);
}

static void compare(const scene *x)
{
    int64_t moved = 0;

    for (int c = 0; c < x->n_cores; c++) {
        void *want;

        for (int k = 0; k < CH_TRAFFIC_COUNT; k++)
            moved += x->count[c].bytes[k];
        if (!x->wants[c])
            continue;
        want = ch__alloc_aligned(bytes_of(x, &x->want[c]) + 1);
        fill(x, &x->want[c], x->value, want);
        assert_memory_equal(x->out[c], want, bytes_of(x, &x->want[c]));
        ch__free_aligned(want);
    }
    assert_int_equal(moved, x->n_repeats * x->n_moved * (int64_t)ch_dtype_bytes(x->dtype));
}

static void run(scene *x, bool in_turns)
{
    if (in_turns)
        run_in_turns(x);
    else
        run_on_threads(x);
    compare(x);
}

/* Runs the exchange once, with results in the memory of the inputs where this is allowed.
 * Returns true if there is such a core. */
static bool run_over_inputs(scene *x, bool in_turns)
{
    bool any = false;

    x->n_repeats = 1;
    memset(x->count, 0, sizeof(x->count));
    for (int c = 0; c < x->n_cores; c++) {
        if (!x->may_overwrite[c])
            continue;
        ch__free_aligned(x->out[c]);
        x->out[c] = x->in[c];
        any = true;
    }
    if (any)
        run(x, in_turns);
    for (int c = 0; c < x->n_cores; c++)
        if (x->may_overwrite[c])
            x->out[c] = NULL; /* it is the input */
    return any;
}

/* Returns false if the case needs no exchange. Counts cases with results over inputs. */
static bool run_case(scene *x, bool in_turns, int *n_over)
{
    ch_step          *s = NULL;
    const ch_reshard *plan = NULL;
    ch_node          *like;
    bool              is_needed;

    ok(ch__group_set_new("test", &(ch_group_options){0}, 1, x->n_cores, &x->set));
    ch__group_ops.reset(x->set.all, &(ch_group_run){.in_turns = in_turns});
    ok(ch__step_new("cores", NULL, &s));
    like = ch__step_add_input(s, NULL, x->dtype, &(ch_dims){0});
    ok(ch__reshard_plan(&x->from, x->whole, x->want, x->wants, &s->graph->arena, &plan));
    is_needed = plan->n_stages > 0;
    x->n_moved = plan->n_moved;
    for (int c = 0; c < x->n_cores && is_needed; c++)
        record(x, s, plan, like, c);
    if (is_needed) {
        x->n_repeats = REPEATS;
        run(x, in_turns);
        *n_over += run_over_inputs(x, in_turns);
    }
    for (int c = 0; c < x->n_cores && is_needed; c++) {
        ch__free_aligned(x->in[c]);
        ch__free_aligned(x->out[c]);
        ch__free_aligned(x->call[c].scratch);
    }
    ch__step_free(s);
    ch__group_set_free(&x->set);
    return is_needed;
}

static int n_cases = 400;

static void exchange_gives_every_core_its_region(void **state)
{
    scene *x = malloc(sizeof(*x));
    int    n = 0, n_over = 0;

    (void)state;
    assert_non_null(x);
    for (int i = 0; i < n_cases; i++) {
        draw_case(x, i % 8 == 0);
        n += run_case(x, i % 4 != 1, &n_over);
    }
    assert_true(n > n_cases / 2);
    assert_true(n_over > n_cases / 8);
    free(x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchange_gives_every_core_its_region),
    };

    if (argc > 1)
        n_cases = atoi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
