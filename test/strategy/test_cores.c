/* test/strategy/test_cores.c -- runs of replicas with two logical devices (cores) each.
 *
 * The partition of the step is written by hand: core c has half of the rows of the input x, and
 * half of the variable w (a tile). The step is y = x w; w += the sum of y over all rows of all
 * replicas. A core gathers w, multiplies its rows, adds up its rows to a partial sum, and
 * receives its half of the sum of the cores; the halves are then added over the replicas.
 *
 * Between these calls a core checks its row of the second input, so a NaN there makes this core
 * fail at that point. `test_cores 1000` runs 1000 random failures.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/config.h"
#include "base/mem.h"
#include "base/thread.h"
#include "graph/function.h"
#include "graph/step.h"
#include "help.h"
#include "spmd/core_ops.h"
#include "strategy/strategy.h"

enum { REPLICAS = 2, CORES = 2, ROWS = 3, POINTS = 4, MOST = 6001, LARGE = 6000 };

static int n_runs = 100;

/* ---- the strategy ---- */

typedef struct four {
    ch_device *device[REPLICAS * CORES];
    int        n_cols;
    float      tile[REPLICAS][CORES][MOST]; /* storage of w */
    bool       on_first; /* the variable is whole on core 0, and so is the step */
    int        n_graphs; /* made by the last partition */
} four;

static ch_device *const *devices(void *self)
{
    return ((four *)self)->device;
}

static ch_status place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    const four *f = self;

    (void)spec;
    for (int r = 0; r < REPLICAS; r++)
        out->device[r] = f->device[r * CORES];
    out->n_copies = REPLICAS;
    return CH_OK;
}

static void close_four(void *self)
{
    (void)self;
}

static ch_status tile_of(void *owner, const ch_resource *r, int local, int core, void **out)
{
    four *f = ((ch_strategy *)owner)->self;

    assert_string_equal(r->name, "w");
    *out = f->on_first && core > 0 ? NULL : f->tile[local][core];
    return CH_OK;
}

/* ---- the partition ---- */

static ch_region part_of(int64_t n, int c)
{
    int64_t from = ch__part_begin(n, CORES, c), to = ch__part_begin(n, CORES, c + 1);

    return (ch_region){.begin = {from}, .size = {to - from}};
}

static ch_core_regions rows_of(int64_t n_rows, int64_t n_cols)
{
    ch_core_regions at = {.cores = 3};

    for (int c = 0; c < CORES; c++) {
        at.at[c] = part_of(n_rows, c);
        at.at[c].size[1] = n_cols;
    }
    return at;
}

/* Records an exchange of a vector of n elements: a core wants all of it, or its half. */
static ch_node *exchange(ch_step *s, const ch_core_layout *from, int64_t n, bool all, int c,
                         const ch_node *like, ch_node *in)
{
    ch_region         want[CORES];
    bool              wants[CORES] = {true, true};
    const ch_reshard *plan = NULL;
    ch_node          *out = NULL;

    const ch_exchange_table *table = NULL;
    ch_dims                  dims = {.rank = 1};

    for (int i = 0; i < CORES; i++)
        want[i] = all ? (ch_region){.size = {n}} : part_of(n, i);
    t_ok(ch__reshard_plan(from, ch_shape_of(n), want, wants, &s->graph->arena, &plan));
    dims.dim[0] = ch__dim(want[c].size[0]);
    t_ok(ch__exchange_table_new(&s->graph->arena, plan, like->dtype, &table));
    t_ok(ch__exchange(s, table, like, in, &dims, &out));
    return out;
}

static void check(ch_step *s, ch_node *flags, int point)
{
    (void)s;
    assert_non_null(ch_check_numerics(
        ch_slice(flags, 2, (int64_t[]){0, point}, (int64_t[]){1, 1}), "the flag"));
}

static bool    has_stall; /* the graphs of cores call `stall` */
static ch_gate never;

/* Host function: is late if the flag is 5. */
static ch_status stall(void *arg, int n_in, ch_tensor *const *in, int n_out,
                       ch_tensor *const *out)
{
    (void)arg, (void)n_in, (void)n_out;
    if (*(const float *)ch_tensor_data(in[0]) == 5 &&
        ch__gate_wait_for(&never, 0, 600, "what never comes") == CH_OK)
        return CH_INTERNAL;
    return ch_tensor_copy(in[0], out[0]);
}

static void call_stall(ch_step *s, ch_node *flags)
{
    static const ch_host_spec spec = {
        .name = "stall",
        .fn = stall,
        .n_out = 1,
        .out = {{.dtype = CH_F32, .shape = {.rank = 2, .dim = {1, POINTS}}}}};
    ch_node *out = NULL;

    ch_host_call(s, &spec, 1, &flags, &out);
    assert_non_null(out);
}

static void put(ch_step *s, ch_node *part, const ch_node *whole, const ch_core_regions *at)
{
    ch_node   *n = ch__put_part(s, part, whole, CORES, 3, at);
    ch_output *o = ch__graph_add_output(s->graph);

    assert_non_null(n);
    assert_non_null(o);
    o->node = n;
}

/* Records the step of core c of a replica with this graph. */
static void record_core(ch_step *s, const ch_graph *g, int c)
{
    const ch_resource *w = &g->resource[0];
    const ch_node     *y = g->output[0].node;
    int64_t            n = w->shape.dim[0], n_rows = g->input[0]->dims.dim[0].n;
    ch_region          tile = part_of(n, c);
    ch_shape           shape = ch_shape_of(tile.size[0]);
    ch_core_regions    rows = rows_of(n_rows, n), flag = rows_of(CORES, POINTS), halves;
    ch_core_layout     split, partial;
    ch_node           *x, *flags, *own, *part, *sum;

    ch__layout_split(CORES, 1, (int[]){CORES}, &split);
    ch__layout_replicated(CORES, 1, &partial);
    partial.n_partial = CORES;
    partial.combiner = CH_PARTIAL_SUM;
    for (int i = 0; i < CORES; i++)
        partial.partial[i] = (unsigned char)i;
    halves.cores = 3;
    for (int i = 0; i < CORES; i++)
        halves.at[i] = part_of(n, i);
    x = ch__step_add_input(s, "x", CH_F32, &g->input[0]->dims);
    flags = ch__step_add_input(s, "flags", CH_F32, &g->input[1]->dims);
    flags = ch__take_part(s, flags, CORES, c, &flag);
    own = ch__step_read(s, w->key, w->name, CH_F32, shape);
    check(s, flags, 0);
    x = ch__take_part(s, x, CORES, c, &rows);
    part = ch_mul(x, exchange(s, &split, n, true, c, y, own));
    check(s, flags, 1);
    if (has_stall)
        call_stall(s, flags);
    sum = exchange(s, &partial, n, false, c, y, ch_sum(part, 1, (int[]){0}, false));
    check(s, flags, 2);
    sum = ch_all_reduce(CH_SUM, sum);
    check(s, flags, 3);
    own = ch__step_write(s, w->key, w->name, CH_F32, shape, ch_add(own, sum));
    put(s, part, y, &rows);
    put(s, own, g->output[1].node, &halves);
    t_ok(ch_step_status(s));
}

/* Records a step that core c = 0 executes alone. */
static void record_first(ch_step *s, const ch_graph *g, int c)
{
    const ch_resource *w = &g->resource[0];
    const ch_node     *y = g->output[0].node;
    int64_t            n = w->shape.dim[0], n_rows = g->input[0]->dims.dim[0].n;
    ch_core_regions    all = {.cores = 1};
    ch_node           *x = ch__step_add_input(s, "x", CH_F32, &g->input[0]->dims);
    ch_node           *own = NULL, *product = NULL;

    (void)ch__step_add_input(s, "flags", CH_F32, &g->input[1]->dims);
    all.at[0] = (ch_region){.size = {n_rows, n}};
    if (c == 0) {
        own = ch__step_read(s, w->key, w->name, CH_F32, w->shape);
        product = ch_mul(x, own);
        own = ch__step_write(
            s, w->key, w->name, CH_F32, w->shape,
            ch_add(own, ch_all_reduce(CH_SUM, ch_sum(product, 1, (int[]){0}, false))));
    } else {
        ch_resource *r = ch__graph_add_resource(s->graph);

        *r =
            (ch_resource){.name = w->name, .dtype = w->dtype, .shape = w->shape, .key = w->key};
    }
    put(s, product, y, &all);
    all.at[0] = (ch_region){.size = {n}};
    put(s, own, g->output[1].node, &all);
    t_ok(ch_step_status(s));
}

static ch_graph *graph_of(const ch_graph *g, int c, bool on_first)
{
    ch_step  *s = NULL;
    ch_graph *core = NULL;

    t_ok(ch__step_new("core", NULL, &s));
    (on_first ? record_first : record_core)(s, g, c);
    t_ok(ch__step_finish(s, &core));
    ch__step_free(s);
    core->is_concrete = true;
    core->step = NULL;
    return core;
}

/* Cores whose parts have equal sizes share a graph, and so do replicas of equal shapes. */
static ch_status partition(void *owner, const ch_run *run, ch_graph *const *variant,
                           ch_graph **core, void **report)
{
    four *f = ((ch_strategy *)owner)->self;

    (void)report;
    f->n_graphs = 0;
    for (int r = 0; r < run->n_local; r++)
        for (int c = 0; c < CORES; c++) {
            int64_t n = variant[r]->resource[0].shape.dim[0];
            int64_t n_rows = variant[r]->input[0]->dims.dim[0].n;
            bool    same_as_first = c > 0 && n % CORES == 0 && n_rows % CORES == 0;

            if (r > 0 && variant[r] == variant[0]) {
                core[r * CORES + c] = ch_graph_ref(core[c]);
            } else if (same_as_first && !f->on_first) {
                core[r * CORES + c] = ch_graph_ref(core[r * CORES]);
            } else {
                core[r * CORES + c] = graph_of(variant[r], c, f->on_first);
                f->n_graphs++;
            }
        }
    return CH_OK;
}

static const ch_strategy_ops four_ops = {"Four", devices, place, close_four};
static const ch_run_ops      four_runs = {.resource = tile_of, .partition = partition};

/* ---- the step ---- */

static void work(ch_step *s, void *arg)
{
    ch_node *y = ch_mul(ch_step_in(s, 0), ch_var_read(s, arg));

    (void)ch_check_numerics(ch_step_in(s, 1), "the flags");
    ch_step_out(s, "y", y);
    ch_step_out(
        s, "w",
        ch_var_assign_add(s, arg, ch_all_reduce(CH_SUM, ch_sum(y, 1, (int[]){0}, false))));
}

typedef struct fixture {
    four         self;
    ch_strategy *st;
    ch_var      *v;
    ch_function *f;
    ch_tuple    *in;
    int          n_rows[REPLICAS];
    double       want[MOST]; /* the value of w */
} fixture;

/* An element of x on a replica. Whole numbers, so that sums are exact in any order. */
static float x_at(int replica, int row, int col)
{
    return (float)((replica * 5 + row * 3 + col) % 3);
}

static ch_tuple *inputs_of(const fixture *x)
{
    ch_tensor *t[2][REPLICAS];
    ch_value  *v[2];

    for (int r = 0; r < REPLICAS; r++) {
        ch_device *d = x->self.device[r * CORES];

        t_ok(ch_tensor_new_on(d, CH_F32, ch_shape_of(x->n_rows[r], x->self.n_cols), &t[0][r]));
        t_ok(ch_tensor_new_on(d, CH_F32, ch_shape_of(CORES, POINTS), &t[1][r]));
        for (int i = 0; i < x->n_rows[r]; i++)
            for (int k = 0; k < x->self.n_cols; k++)
                ((float *)ch_tensor_data_mut(t[0][r]))[i * x->self.n_cols + k] = x_at(r, i, k);
    }
    for (int i = 0; i < 2; i++) {
        v[i] = NULL;
        t_ok(ch_value_new(CH_PER_REPLICA, REPLICAS, t[i], &v[i]));
        for (int r = 0; r < REPLICAS; r++)
            ch_tensor_unref(t[i][r]);
    }
    ch_tuple *in = NULL;
    t_ok(ch_tuple_new(2, v, NULL, &in));
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    return in;
}

static void set_tiles(fixture *x)
{
    int64_t middle =
        x->self.on_first ? x->self.n_cols : ch__part_begin(x->self.n_cols, CORES, 1);

    for (int k = 0; k < x->self.n_cols; k++) {
        x->want[k] = k % 4;
        for (int r = 0; r < REPLICAS; r++)
            x->self.tile[r][k >= middle][k >= middle ? k - middle : k] = (float)(k % 4);
    }
}

static fixture *new_fixture(int n_cols, int rows0, int rows1,
                            const ch_communication_options *how)
{
    static const char *const name[] = {"GPU:0", "GPU:1", "GPU:2", "GPU:3"};
    fixture                 *x = ch__calloc(1, sizeof(*x));

    assert_non_null(x);
    for (int i = 0; i < REPLICAS * CORES; i++)
        t_ok(ch_device_find(name[i], &x->self.device[i]));
    x->self.n_cols = n_cols;
    x->n_rows[0] = rows0;
    x->n_rows[1] = rows1;
    t_ok(ch_strategy_new(
        &four_ops, &x->self,
        &(ch_strategy_parts){.n_replicas = REPLICAS,
                             .n_cores = CORES,
                             .communication =
                                 how != NULL ? *how : (ch_communication_options){0}},
        &x->st));
    x->st->run_ops = &four_runs;
    x->v = t_var(x->st, "w", t_f32(ch_shape_of(n_cols), NULL));
    x->f = t_function(work, x->v);
    x->in = inputs_of(x);
    set_tiles(x);
    return x;
}

static void drop_fixture(fixture *x)
{
    ch_tuple_unref(x->in);
    ch_function_unref(x->f);
    ch_var_unref(x->v);
    ch_strategy_unref(x->st);
    ch__free(x);
}

static float tile_at(const fixture *x, int replica, int col)
{
    int64_t middle =
        x->self.on_first ? x->self.n_cols : ch__part_begin(x->self.n_cols, CORES, 1);

    return x->self.tile[replica][col >= middle][col >= middle ? col - middle : col];
}

static void tiles_are_as_wanted(const fixture *x)
{
    for (int r = 0; r < REPLICAS; r++)
        for (int k = 0; k < x->self.n_cols; k++)
            if (tile_at(x, r, k) != (float)x->want[k])
                fail_msg("w[%d] of replica %d is %g, want %g", k, r, tile_at(x, r, k),
                         x->want[k]);
}

/* Runs the step once, and compares y, w and the tiles with a plain computation. */
static void run_and_compare(fixture *x)
{
    ch_tuple *out = NULL;
    double    before[MOST];

    memcpy(before, x->want, sizeof(before));
    for (int r = 0; r < REPLICAS; r++)
        for (int i = 0; i < x->n_rows[r]; i++)
            for (int k = 0; k < x->self.n_cols; k++)
                x->want[k] += x_at(r, i, k) * before[k];
    t_ok(ch_strategy_run(x->st, x->f, x->in, &out));
    for (int r = 0; r < REPLICAS; r++) {
        const float *y = t_floats(out, 0, r), *w = t_floats(out, 1, r);

        for (int i = 0; i < x->n_rows[r]; i++)
            for (int k = 0; k < x->self.n_cols; k++)
                if (y[i * x->self.n_cols + k] != x_at(r, i, k) * (float)before[k])
                    fail_msg("y(%d, %d) of replica %d is %g", i, k, r,
                             y[i * x->self.n_cols + k]);
        for (int k = 0; k < x->self.n_cols; k++)
            assert_true(w[k] == (float)x->want[k]);
    }
    ch_tuple_unref(out);
    tiles_are_as_wanted(x);
}

static const char *const modes[] = {"threads", "turns", "auto"};

/* ---- results ---- */

static void step_on_cores_equals_the_whole_step(void **state)
{
    static const struct {
        int cols, rows0, rows1, n_graphs;
    } row[] = {{6, 4, 4, 1}, {6, 4, 2, 2},     {7, 5, 5, 2},        {7, 5, 4, 4},
               {1, 3, 1, 4}, {LARGE, 2, 2, 1}, {LARGE + 1, 3, 2, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        for (int m = 0; m < 3; m++) {
            fixture *x = new_fixture(row[i].cols, row[i].rows0, row[i].rows1, NULL);

            t_ok(ch__config_set("replicas", modes[m]));
            for (int k = 0; k < 3; k++)
                run_and_compare(x);
            assert_int_equal(x->self.n_graphs, row[i].n_graphs);
            drop_fixture(x);
        }
}

static void core_without_calls_takes_part_in_the_commit(void **state)
{
    (void)state;
    for (int m = 0; m < 3; m++) {
        fixture *x = new_fixture(6, 4, 3, NULL);

        x->self.on_first = true;
        set_tiles(x);
        t_ok(ch__config_set("replicas", modes[m]));
        for (int k = 0; k < 3; k++)
            run_and_compare(x);
        drop_fixture(x);
    }
}

static void strategy_with_cores_has_a_device_for_each(void **state)
{
    fixture          *x = new_fixture(6, 4, 4, NULL);
    ch_device *const *device = NULL;
    int               n = 0;

    (void)state;
    assert_int_equal(ch_strategy_logical_devices(x->st), CORES);
    assert_int_equal(ch_strategy_replicas(x->st), REPLICAS);
    t_ok(ch_strategy_worker_devices(x->st, &n, &device));
    assert_int_equal(n, REPLICAS);
    assert_ptr_equal(device[1], x->self.device[CORES]);
    drop_fixture(x);
}

static void strategy_rejects_inconsistent_cores(void **state)
{
    static const struct {
        ch_strategy_parts parts;
        const char       *word;
    } row[] = {
        {{.n_replicas = 1, .n_cores = -1}, "-1 logical devices"},
        {{.n_replicas = 1, .n_cores = 65}, "65 logical devices"},
        {{.n_replicas = 1, .n_cores = 4, .n_mesh = 5}, "5 axes"},
        {{.n_replicas = 1, .n_cores = 4, .n_mesh = 2, .mesh = {2, 3}}, "product"},
        {{.n_replicas = 1, .n_cores = 4, .n_mesh = 2, .mesh = {4, 0}},
         "axis 1 of the logical mesh has 0"},
        {{.n_replicas = 1, .n_cores = 2, .is_bare = true}, "is_bare"},
    };
    four f;

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        ch_strategy *st = NULL;

        t_refused(ch_strategy_new(&four_ops, &f, &row[i].parts, &st), CH_INVALID_ARGUMENT,
                  "strategy Four", row[i].word);
    }
}

/* ---- costs ---- */

static void step_on_cores_counts_barriers_and_bytes(void **state)
{
    (void)state;
    for (int large = 0; large < 2; large++) {
        int               cols = large ? LARGE : 6;
        fixture          *x = new_fixture(cols, 4, 2, NULL);
        const ch_group   *cores = x->st->groups.part.cores[1];
        const ch_group   *replicas = x->st->groups.part.replicas[1];
        ch_traffic_counts t;
        int64_t           n, n_cores, n_replicas, n_all;

        t_ok(ch__config_set("replicas", "threads"));
        run_and_compare(x);
        n_cores = ch__group_barriers(cores);
        n_replicas = ch__group_barriers(replicas);
        n_all = ch__group_barriers(x->st->group);
        run_and_compare(x);
        /* two exchanges of a stage each, an all_reduce, and the commit */
        assert_int_equal(ch__group_barriers(cores) - n_cores, large ? 4 : 2);
        assert_int_equal(ch__group_barriers(replicas) - n_replicas, large ? 2 : 1);
        assert_int_equal(ch__group_barriers(x->st->group) - n_all, 1);
        ch__function_traffic(x->f, &t);
        n = (int64_t)sizeof(float) * cols;
        assert_int_equal(t.bytes[CH_TRAFFIC_ALL_GATHER], n);
        assert_int_equal(t.calls[CH_TRAFFIC_ALL_GATHER], 1);
        assert_int_equal(t.bytes[CH_TRAFFIC_REDUCE_SCATTER], n);
        /* x and the flags of replica 0, and its two results */
        assert_int_equal(t.bytes[CH_TRAFFIC_HOST], 4 * n + 4 * CORES * POINTS + 4 * n + n);
        assert_int_equal(t.bytes[CH_TRAFFIC_OTHER], 0);
        drop_fixture(x);
    }
}

static void repeated_step_on_cores_allocates_nothing(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        fixture *x = new_fixture(LARGE, 4, 2, NULL);
        int64_t  allocs;

        t_ok(ch__config_set("replicas", modes[m]));
        for (int i = 0; i < 3; i++)
            t_ok(ch_strategy_run(x->st, x->f, x->in, NULL));
        allocs = ch__mem_allocs();
        for (int i = 0; i < 10; i++)
            t_ok(ch_strategy_run(x->st, x->f, x->in, NULL));
        assert_int_equal(ch__mem_allocs() - allocs, 0);
        drop_fixture(x);
    }
}

/* ---- faults ---- */

static void failure_of_a_core_names_it_and_changes_no_variable(void **state)
{
    unsigned seed = 99;

    (void)state;
    for (int m = 0; m < 2; m++) {
        fixture *x = new_fixture(m == 0 ? LARGE : 7, 3, 2, NULL);

        t_ok(ch__config_set("replicas", modes[m]));
        for (int i = 0; i < n_runs / 2; i++) {
            char   name[32];
            int    replica, core, point;
            float *flag;

            seed = seed * 1664525u + 1013904223u;
            replica = (int)(seed >> 10) % REPLICAS;
            core = (int)(seed >> 14) % CORES;
            point = (int)(seed >> 18) % POINTS;
            flag = ch_tensor_data_mut(ch_value_at(ch_tuple_at(x->in, 1), replica));
            flag[core * POINTS + point] = NAN;
            snprintf(name, sizeof(name), "core %d (GPU:%d)", core, replica * CORES + core);
            t_refused(ch_strategy_run(x->st, x->f, x->in, NULL), CH_INVALID_ARGUMENT, name,
                      replica == 0 ? "replica 0" : "replica 1");
            tiles_are_as_wanted(x);
            flag[core * POINTS + point] = 0;
            if (i % 16 == 0)
                run_and_compare(x), set_tiles(x);
        }
        drop_fixture(x);
    }
}

static void core_that_does_not_arrive_is_named(void **state)
{
    fixture *x;
    float   *flag;

    (void)state;
    has_stall = true;
    x = new_fixture(6, 4, 4, &(ch_communication_options){.timeout_seconds = 0.1});
    t_ok(ch__config_set("replicas", "threads"));
    flag = ch_tensor_data_mut(ch_value_at(ch_tuple_at(x->in, 1), 1));
    flag[0] = 5;
    t_refused(ch_strategy_run(x->st, x->f, x->in, NULL), CH_DEADLINE_EXCEEDED,
              "for replica 1, core ", "(GPU:");
    tiles_are_as_wanted(x);
    flag[0] = 0;
    run_and_compare(x);
    has_stall = false;
    drop_fixture(x);
}

/* ---- the partitioner of the library ---- */

/* Returns true if the copies of the variable have the values after n steps. */
static void copies_are(const fixture *x, const float *want)
{
    for (int r = 0; r < REPLICAS; r++)
        for (int k = 0; k < x->self.n_cols; k++)
            assert_true(t_copy_of(x->v, r, k) == want[k]);
}

/* The variable is whole on core 0 of each replica. */
static void strategy_with_cores_runs_steps_and_survives_failed_allocations(void **state)
{
    static const float ones[] = {1, 1, 1, 1, 1, 1};
    fixture           *x = new_fixture(6, 4, 3, NULL);
    const ch_run_ops  *library = NULL;
    ch_strategy       *other = t_mirrored(2);
    float              want[6];
    ch_tensor         *t = t_f32(ch_shape_of(6), ones);
    int                n = 0;

    (void)state;
    library = other->run_ops;
    x->st->run_ops = library;
    t_ok(ch__config_set("replicas", "turns"));
    t_ok(ch_var_set(x->v, t));
    ch_tensor_unref(t);
    for (ch_status rc = CH_RESOURCE_EXHAUSTED; rc != CH_OK;) {
        ch_function_unref(x->f);
        x->f = t_function(work, x->v);
        ch__mem_fail_at(++n);
        rc = ch_strategy_run(x->st, x->f, x->in, NULL);
        ch__mem_fail_at(0);
        if (rc != CH_OK) {
            assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
            copies_are(x, ones);
        }
    }
    assert_true(n > 100);
    for (int k = 0; k < 6; k++) {
        want[k] = 1;
        for (int r = 0; r < REPLICAS; r++)
            for (int i = 0; i < x->n_rows[r]; i++)
                want[k] += x_at(r, i, k);
    }
    copies_are(x, want);
    ch_strategy_unref(other);
    drop_fixture(x);
}

/* ---- memory ---- */

static void record_large(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y;

    ch_step_enter(s, "block");
    y = ch_matmul(x, false, x, true);
    y = ch_matmul(ch_matmul(y, false, y, false), false, x, false);
    ch_step_leave(s);
    ch_var_assign_add(s, arg, ch_sum_all(y));
}

/* The devices of this test have 1 MB each. */
static void step_that_exceeds_the_memory_of_a_device_fails_before_it_runs(void **state)
{
    ch_strategy *st = NULL;
    ch_var      *v = NULL, *big = NULL;
    ch_function *f = NULL;
    ch_device   *d = NULL;
    ch_tensor   *x[2] = {t_f32(ch_shape_of(500, 8), NULL), t_f32(ch_shape_of(100, 8), NULL)};
    size_t       peak;

    (void)state;
    t_ok(ch_device_find("GPU:3", &d));
    t_ok(ch_strategy_one_device("GPU:3", &st));
    v = t_var(st, "v", t_f32((ch_shape){0}, (float[]){7}));
    f = t_function(record_large, v);
    for (int i = 0; i < 2; i++) {
        ch_tuple *in = t_tuple(1, &x[i]);

        if (i == 0) {
            t_refused(ch_strategy_run(st, f, in, NULL), CH_RESOURCE_EXHAUSTED,
                      "the device has 1000000", "f32(500, 500) of matmul, in block, at ");
            assert_non_null(strstr(ch_error_message(), "test_cores.c:"));
            assert_true(t_copy_of(v, 0, 0) == 7);
        } else {
            t_ok(ch_strategy_run(st, f, in, NULL));
        }
        ch_tuple_unref(in);
    }
    peak = ch_device_peak_bytes(d);
    assert_true(peak > 2 * 100 * 100 * sizeof(float) && peak < 1000000);
    t_refused(
        ch_var_new(
            st, &(ch_var_spec){.name = "big", .dtype = CH_F32, .shape = ch_shape_of(250, 1000)},
            &big),
        CH_RESOURCE_EXHAUSTED, "big", "1000000");
    t_ok(ch_var_new(
        st, &(ch_var_spec){.name = "big", .dtype = CH_F32, .shape = ch_shape_of(150, 1000)},
        &big));
    assert_true(ch_device_peak_bytes(d) >= 600000 + 2 * 100 * 100 * sizeof(float));
    ch_var_unref(big);
    ch_var_unref(v);
    ch_function_unref(f);
    ch_strategy_unref(st);
}

static int small_gpus(void **state)
{
    (void)state;
    t_ok(ch__config_set("device_memory", "2M"));
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=4", .memory_bytes = 1000000}));
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_on_cores_equals_the_whole_step),
        cmocka_unit_test(core_without_calls_takes_part_in_the_commit),
        cmocka_unit_test(strategy_with_cores_has_a_device_for_each),
        cmocka_unit_test(strategy_rejects_inconsistent_cores),
        cmocka_unit_test(step_on_cores_counts_barriers_and_bytes),
        cmocka_unit_test(repeated_step_on_cores_allocates_nothing),
        cmocka_unit_test(failure_of_a_core_names_it_and_changes_no_variable),
        cmocka_unit_test(core_that_does_not_arrive_is_named),
        cmocka_unit_test(step_that_exceeds_the_memory_of_a_device_fails_before_it_runs),
        cmocka_unit_test(strategy_with_cores_runs_steps_and_survives_failed_allocations),
    };

    if (argc > 1)
        n_runs = atoi(argv[1]);
    return cmocka_run_group_tests(tests, small_gpus, NULL);
}
