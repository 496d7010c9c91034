/* test/strategy/test_tiles.c -- variables that the logical devices of a replica store in tiles,
 * against a model of plain arrays.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cores.h"
#include "strategy/strategy.h"

enum { MOST = 7 * 5 * 3 };

static const int core_numbers[] = {2, 3, 4, 6, 8};

typedef struct dice {
    uint32_t state;
} dice;

static int draw(dice *d, int n)
{
    d->state = d->state * 1664525u + 1013904223u;
    return (int)((d->state >> 8) % (uint32_t)n);
}

/* A variable and its value. */
typedef struct tiled {
    ch_strategy *st;
    ch_var      *v;
    ch_shape     shape;
    float        want[MOST];
} tiled;

static void check_tensor(const ch_tensor *t, ch_shape whole, const ch_region *at,
                         const float *want)
{
    ch_tensor   *all = NULL, *part = NULL, *same = NULL;
    const float *x = ch_tensor_data(t);

    t_ok(ch_tensor_copy_of(CH_F32, whole, want, &all));
    t_ok(ch__tensor_region(all, at, &part));
    t_ok(ch_tensor_contiguous(part, &same));
    assert_true(ch_shape_equal(ch_tensor_shape(t), ch_tensor_shape(same)));
    assert_memory_equal(x, ch_tensor_data(same), ch_tensor_bytes(same));
    ch_tensor_unref(all);
    ch_tensor_unref(part);
    ch_tensor_unref(same);
}

/* Checks the value, and each tile on each core. */
static void check_value(const tiled *x)
{
    ch_tensor *t = NULL;
    ch_region  at;

    t_ok(ch_var_get(x->v, &t));
    assert_memory_equal(ch_tensor_data(t), x->want, ch_tensor_bytes(t));
    ch_tensor_unref(t);
    for (int m = 0; m < ch__var_tensors(x->v); m++) {
        int n = x->v->tiles->n_cores;

        assert_true(ch__core_region(x->v->tiles, x->shape, m % n, &at));
        t_ok(ch_var_get_tile(x->v, m / n, m % n, &t));
        check_tensor(t, x->shape, &at, x->want);
        ch_tensor_unref(t);
    }
}

static ch_region draw_region(dice *d, ch_shape shape)
{
    ch_region r = {.begin = {0}};

    for (int k = 0; k < shape.rank; k++) {
        r.begin[k] = draw(d, (int)shape.dim[k]);
        r.size[k] = 1 + draw(d, (int)(shape.dim[k] - r.begin[k]));
    }
    return r;
}

/* Sets every element of a region of the model with `x`, in order. */
static void set_region(tiled *x, const ch_region *r, const float *from)
{
    int64_t n = ch__region_count(r, x->shape.rank);

    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, stride = 1;

        for (int k = x->shape.rank - 1; k >= 0; k--) {
            at += (r->begin[k] + rest % r->size[k]) * stride;
            rest /= r->size[k];
            stride *= x->shape.dim[k];
        }
        x->want[at] = from[i];
    }
}

static ch_shape shape_of_region(const ch_region *r, int rank)
{
    ch_shape shape = {.rank = rank};

    for (int k = 0; k < rank; k++)
        shape.dim[k] = r->size[k];
    return shape;
}

static ch_status read_noise(void *arg, const ch_region *region, void *to)
{
    const tiled *x = arg;
    ch_tensor   *all = NULL, *part = NULL, *same = NULL;

    t_ok(ch_tensor_copy_of(CH_F32, x->shape, x->want, &all));
    t_ok(ch__tensor_region(all, region, &part));
    t_ok(ch_tensor_contiguous(part, &same));
    memcpy(to, ch_tensor_data(same), ch_tensor_bytes(same));
    ch_tensor_unref(all);
    ch_tensor_unref(part);
    ch_tensor_unref(same);
    return CH_OK;
}

static void check_rows(tiled *x, dice *d)
{
    int64_t    id[4], each = ch_shape_count(x->shape) / x->shape.dim[0];
    ch_tensor *ids = NULL, *rows = NULL;

    for (int i = 0; i < 4; i++)
        id[i] = draw(d, (int)x->shape.dim[0]);
    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(4), id, &ids));
    t_ok(ch_var_lookup(x->v, ids, &rows));
    for (int i = 0; i < 4; i++)
        assert_memory_equal((const float *)ch_tensor_data(rows) + i * each,
                            x->want + id[i] * each, (size_t)each * sizeof(float));
    ch_tensor_unref(ids);
    ch_tensor_unref(rows);
    t_ok(ch_var_slice(x->v, 1, CH_SLICE_END, 2, &rows));
    for (int64_t i = 0; 1 + 2 * i < x->shape.dim[0]; i++)
        assert_memory_equal((const float *)ch_tensor_data(rows) + i * each,
                            x->want + (1 + 2 * i) * each, (size_t)each * sizeof(float));
    ch_tensor_unref(rows);
}

/* Changes a variable in a random way. */
static void change(tiled *x, dice *d)
{
    ch_region  r = draw_region(d, x->shape);
    ch_tensor *t = NULL;
    ch_var    *clone = NULL;

    switch (draw(d, 6)) {
    case 0:
        t = t_noise(x->shape, d->state);
        memcpy(x->want, ch_tensor_data(t), ch_tensor_bytes(t));
        t_ok(ch_var_set(x->v, t));
        break;
    case 1:
        t = t_noise(shape_of_region(&r, x->shape.rank), d->state);
        set_region(x, &r, ch_tensor_data(t));
        t_ok(ch__var_cores.write(x->v, &r, t));
        break;
    case 2:
        t = t_noise(x->shape, d->state);
        for (int64_t i = 0; i < ch_tensor_count(t); i++)
            x->want[i] = (float)((double)x->want[i] - ((const float *)ch_tensor_data(t))[i]);
        t_ok(ch_var_sub(x->v, t));
        break;
    case 3:
        t = t_noise(x->shape, d->state);
        for (int64_t i = 0; i < ch_tensor_count(t); i++)
            x->want[i] = (float)((double)x->want[i] + ((const float *)ch_tensor_data(t))[i]);
        t_ok(ch_var_add(x->v, t));
        break;
    case 4:
        t = t_noise(x->shape, d->state);
        memcpy(x->want, ch_tensor_data(t), ch_tensor_bytes(t));
        t_ok(ch__var_write_from(x->v, &(ch_value_source){.name = "the test",
                                                         .dtype = CH_F32,
                                                         .shape = x->shape,
                                                         .read = read_noise,
                                                         .arg = x}));
        break;
    default:
        t_ok(ch_var_clone(x->v, &clone));
        ch_var_unref(x->v);
        x->v = clone;
    }
    ch_tensor_unref(t);
    check_value(x);
    t_ok(ch__var_cores.read(x->v, &r, &t));
    check_tensor(t, x->shape, &r, x->want);
    ch_tensor_unref(t);
    check_rows(x, d);
}

static void check_case(uint32_t seed)
{
    dice  d = {seed};
    tiled x = {.shape = {.rank = 1 + draw(&d, 3)}};
    int   cores = core_numbers[draw(&d, 5)], mesh[3] = {cores}, axis[3], n_mesh = 1;
    int   replicas = cores <= 4 ? 1 + draw(&d, 2) : 1;

    if (cores % 2 == 0 && draw(&d, 2) == 0) {
        mesh[0] = 2;
        mesh[1] = cores / 2;
        n_mesh = 2;
    }
    x.st = t_cores_strategy(replicas, cores, mesh);
    for (int k = 0; k < x.shape.rank; k++) {
        x.shape.dim[k] = (int[]){7, 5, 3}[k] - draw(&d, 2);
        axis[k] = CH_OFF;
    }
    for (int i = 0; i < n_mesh; i++) {
        int k = draw(&d, x.shape.rank + 1);

        if (k < x.shape.rank && axis[k] == CH_OFF)
            axis[k] = i;
    }
    if (n_mesh == 2 && axis[0] == CH_OFF && x.shape.rank == 1)
        axis[0] = CH_MESH_ALL;
    t_ok(ch_var_new(x.st,
                    &(ch_var_spec){.name = "x",
                                   .shape = x.shape,
                                   .init = ch_init_normal(0, 1),
                                   .split = axis,
                                   .n_split = x.shape.rank},
                    &x.v));
    {
        ch_init    init = ch_init_normal(0, 1);
        ch_tensor *t = NULL;

        t_ok(ch_init_tensor(&init, "x", CH_F32, x.shape, &t));
        memcpy(x.want, ch_tensor_data(t), ch_tensor_bytes(t));
        ch_tensor_unref(t);
    }
    check_value(&x);
    for (int i = 0; i < 8; i++)
        change(&x, &d);
    ch_var_unref(x.v);
    ch_strategy_unref(x.st);
}

/* TPV-8: reads and writes outside a step are of the whole value, on all copies. */
static void tiles_have_the_value_of_a_plain_array(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 200; seed++)
        check_case(seed);
}

/* ---- rules ---- */

static ch_var *matrix(ch_strategy *st, const char *name, ch_init init, const int *split)
{
    ch_var *v = NULL;

    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = name,
                                   .shape = ch_shape_of(6, 5),
                                   .init = init,
                                   .split = split,
                                   .n_split = 2},
                    &v));
    return v;
}

static void initial_value_without_parts_is_split(void **state)
{
    ch_strategy *st = t_cores_strategy(1, 4, NULL);
    ch_init      init = ch_init_orthogonal(1);
    ch_var      *v = matrix(st, "q", init, (int[]){0, CH_OFF});
    ch_tensor   *want = NULL, *got = NULL;

    (void)state;
    t_ok(ch_init_tensor(&init, "q", CH_F32, ch_shape_of(6, 5), &want));
    t_ok(ch_var_get(v, &got));
    assert_memory_equal(ch_tensor_data(got), ch_tensor_data(want), ch_tensor_bytes(want));
    ch_tensor_unref(got);
    t_ok(ch_var_get_tile(v, 0, 1, &got));
    assert_int_equal(ch_tensor_shape(got).dim[0], 2);
    assert_memory_equal(ch_tensor_data(got), (const float *)ch_tensor_data(want) + 10,
                        ch_tensor_bytes(got));
    ch_tensor_unref(got);
    ch_tensor_unref(want);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

static void double_it(ch_step *s, void *arg)
{
    ch_var_assign(s, arg, ch_add(ch_var_read(s, arg), ch_var_read(s, arg)));
}

static void variable_can_be_split_once_before_it_is_used(void **state)
{
    ch_strategy *st = t_cores_strategy(1, 4, (int[]){2, 2, 0});
    ch_var      *v = matrix(st, "w", ch_init_normal(0, 1), NULL);
    ch_var      *used = matrix(st, "used", ch_init_normal(0, 1), NULL), *none = NULL;
    ch_tensor   *before = NULL, *after = NULL;
    ch_function *f = t_function(double_it, used);
    ch_value    *copies = NULL;

    (void)state;
    t_ok(ch_var_copies(v, &copies));
    ch_value_unref(copies);
    t_ok(ch_var_get(v, &before));
    t_refused(ch_var_split(v, 1, (int[]){0}), CH_INVALID_ARGUMENT,
              "ch_var_split: variable w:", "1 axis, want 2");
    t_refused(ch_var_split(v, 2, (int[]){2, 0}), CH_INVALID_ARGUMENT, "mesh axis 2", "w");
    t_refused(ch_var_split(v, 2, (int[]){1, 1}), CH_INVALID_ARGUMENT, "twice", "w");
    t_refused(ch_var_new(st,
                         &(ch_var_spec){.name = "short",
                                        .shape = ch_shape_of(6, 5),
                                        .split = (int[]){0},
                                        .n_split = 1},
                         &none),
              CH_INVALID_ARGUMENT, "variable short", "the split has 1 axis, want 2");
    t_ok(ch_var_split(v, 2, (int[]){CH_OFF, 1}));
    t_ok(ch_var_split(v, 2, (int[]){CH_OFF, 1}));
    t_refused(ch_var_split(v, 2, (int[]){0, 1}), CH_FAILED_PRECONDITION, "{2, 2}", "{1, 2}");
    t_ok(ch_var_get(v, &after));
    assert_memory_equal(ch_tensor_data(before), ch_tensor_data(after), ch_tensor_bytes(after));
    t_refused(ch_var_copies(v, &copies), CH_FAILED_PRECONDITION,
              "ch_var_copies: variable w:", "ch_var_get_tile");
    t_refused(ch_var_get_tile(v, 0, 4, &after), CH_INVALID_ARGUMENT,
              "ch_var_get_tile: variable w: logical device 4", "0 to 3");
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    t_refused(ch_var_split(used, 2, (int[]){0, 1}), CH_FAILED_PRECONDITION, "\"step\"",
              "{2, 2}");
    ch_tensor_unref(before);
    ch_tensor_unref(after);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_var_unref(used);
    ch_strategy_unref(st);
}

static void step_rejects_a_variable_that_was_created_again_in_another_layout(void **state)
{
    ch_strategy *st = t_cores_strategy(1, 4, NULL);
    ch_var      *v = matrix(st, "w", ch_init_normal(0, 1), (int[]){CH_OFF, 0});
    ch_function *f = t_function(double_it, v);

    (void)state;
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    ch_var_unref(v);
    v = matrix(st, "w", ch_init_normal(0, 1), (int[]){CH_OFF, 0});
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    ch_var_unref(v);
    v = matrix(st, "w", ch_init_normal(0, 1), (int[]){0, CH_OFF});
    t_refused(ch_strategy_run(st, f, NULL, NULL), CH_FAILED_PRECONDITION, "w", "another way");
    ch_var_unref(v);
    ch_function_unref(f);
    ch_strategy_unref(st);
}

static void split_is_ignored_without_logical_devices(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = matrix(st, "w", ch_init_normal(0, 1), (int[]){7, 7});
    ch_tensor   *t = NULL;

    (void)state;
    t_ok(ch_var_split(v, 2, (int[]){3, 3}));
    t_ok(ch_var_get_tile(v, 1, 0, &t));
    assert_int_equal(ch_tensor_count(t), 30);
    ch_tensor_unref(t);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* ---- rules ---- */

/* Checks the sizes of the tile that the last of four logical devices has. Takes over the
 * reference to the variable. */
static void check_tile(ch_var *v, int64_t rows, int64_t columns)
{
    ch_tensor *tile = NULL;

    t_ok(ch_var_get_tile(v, 0, 3, &tile));
    if (!ch_shape_equal(ch_tensor_shape(tile), ch_shape_of(rows, columns)))
        fail_msg("%s: a tile of (%d, %d)", ch_var_name(v), (int)ch_tensor_shape(tile).dim[0],
                 (int)ch_tensor_shape(tile).dim[1]);
    ch_tensor_unref(tile);
    ch_var_unref(v);
}

static void first_rule_that_matches_the_name_splits_a_variable(void **state)
{
    char                name[] = "*query/kernel";
    const ch_split_rule rule[] = {{name, 2, {CH_OFF, 0}},
                                  {"block_*/*/kernel", 2, {0, CH_OFF}},
                                  {"exact", 2, {CH_MESH_ALL, CH_OFF}},
                                  {"*a*b", 2, {0, 1}},
                                  {"bias", 1, {0}},
                                  {"far", 2, {CH_OFF, 2}}};
    const ch_init       init = ch_init_normal(0, 1);
    ch_strategy        *st = NULL;
    ch_var             *v;

    (void)state;
    t_ok(t_cores_new(1, 4, (int[]){2, 2, 0}, 6, rule, &st));
    memset(name, 'x', sizeof(name)); /* rules are copied */
    check_tile(matrix(st, "block_1/query/kernel", init, NULL), 6, 2);
    check_tile(matrix(st, "query/kernel", init, NULL), 6, 2);
    check_tile(matrix(st, "query/kernel/more", init, NULL), 6, 5);
    check_tile(matrix(st, "block_1/dense/kernel", init, NULL), 3, 5);
    check_tile(matrix(st, "block_1/kernel", init, NULL), 6, 5);
    check_tile(matrix(st, "exact", init, NULL), 1, 5);
    check_tile(matrix(st, "exactly", init, NULL), 6, 5);
    check_tile(matrix(st, "aabab", init, NULL), 3, 2);
    check_tile(matrix(st, "ba", init, NULL), 6, 5);
    /* a split of its own */
    check_tile(matrix(st, "query/kernel", init, (int[]){0, CH_OFF}), 3, 5);
    v = matrix(st, "query/kernel", init, NULL);
    t_ok(ch_var_split(v, 2, (int[]){0, 1}));
    check_tile(v, 3, 2);
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "bias", .shape = ch_shape_of(5, 6)}, &v),
              CH_INVALID_ARGUMENT, "rule \"bias\"", "variable bias: the split has");
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "far", .shape = ch_shape_of(5, 6)}, &v),
              CH_INVALID_ARGUMENT, "rule \"far\": variable far", "mesh axis 2");
    ch_strategy_unref(st);
}

static void malformed_rules_are_rejected(void **state)
{
    const ch_split_rule no_name = {NULL, 2, {0, CH_OFF}}, many = {"*", CH_MAX_RANK + 1, {0}};
    ch_strategy        *st = NULL;

    (void)state;
    t_refused(t_cores_new(1, 4, NULL, -1, NULL, &st), CH_INVALID_ARGUMENT, "-1 split rules",
              "Cores");
    t_refused(t_cores_new(1, 4, NULL, 1, NULL, &st), CH_INVALID_ARGUMENT, "list is NULL",
              "Cores");
    t_refused(t_cores_new(1, 4, NULL, 1, &no_name, &st), CH_INVALID_ARGUMENT, "rule 0",
              "no name");
    t_refused(t_cores_new(1, 4, NULL, 1, &many, &st), CH_INVALID_ARGUMENT, "rule 0",
              "0 to 8 axes");
}

/* ---- a value for each replica ---- */

static void count_rows(ch_step *s, void *arg)
{
    ch_var_assign_add(s, arg, ch_sum(ch_step_in(s, 0), 1, (int[]){0}, false));
}

/* TPV-12: a variable that is read across replicas has raw writes of each replica. */
static void replicas_have_their_own_sums_in_tiles(void **state)
{
    ch_strategy *st = t_cores_strategy(2, 2, NULL);
    ch_var      *v = NULL;
    ch_function *f;
    ch_tensor   *part[2], *t = NULL;
    ch_value    *in = NULL;
    ch_tuple    *tuple = NULL;

    (void)state;
    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "sum",
                                   .shape = ch_shape_of(3),
                                   .sync = CH_SYNC_ON_READ,
                                   .aggregation = CH_AGGREGATE_SUM,
                                   .split = (int[]){0},
                                   .n_split = 1},
                    &v));
    part[0] = t_f32(ch_shape_of(1, 3), (float[]){1, 2, 3});
    part[1] = t_f32(ch_shape_of(1, 3), (float[]){10, 20, 30});
    t_ok(ch_value_new(CH_PER_REPLICA, 2, part, &in));
    t_ok(ch_tuple_new(1, &in, NULL, &tuple));
    f = t_function(count_rows, v);
    t_ok(ch_strategy_run(st, f, tuple, NULL));
    t_ok(ch_strategy_run(st, f, tuple, NULL));
    t_ok(ch_var_get(v, &t));
    assert_memory_equal(ch_tensor_data(t), ((float[]){22, 44, 66}), 3 * sizeof(float));
    ch_tensor_unref(t);
    t_ok(ch_var_get_tile(v, 1, 0, &t));
    assert_memory_equal(ch_tensor_data(t), ((float[]){20, 40}), 2 * sizeof(float));
    ch_tensor_unref(t);
    t = t_f32(ch_shape_of(3), (float[]){10, 20, 30});
    t_ok(ch_var_set(v, t));
    ch_tensor_unref(t);
    t_ok(ch_var_get(v, &t));
    assert_memory_equal(ch_tensor_data(t), ((float[]){10, 20, 30}), 3 * sizeof(float));
    ch_tensor_unref(t);
    for (int i = 0; i < 2; i++)
        ch_tensor_unref(part[i]);
    ch_value_unref(in);
    ch_tuple_unref(tuple);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

static void update_changes_the_tiles_of_all_replicas(void **state)
{
    ch_strategy *st = t_cores_strategy(2, 2, NULL);
    tiled        x = {.st = st, .shape = ch_shape_of(6, 5)};
    ch_function *f;
    ch_tensor   *t = NULL;

    (void)state;
    x.v = matrix(st, "w", ch_init_normal(0, 1), (int[]){CH_OFF, 0});
    t_ok(ch_var_get(x.v, &t));
    for (int i = 0; i < 30; i++)
        x.want[i] = 2 * ((const float *)ch_tensor_data(t))[i];
    ch_tensor_unref(t);
    f = t_function(double_it, x.v);
    t_ok(ch_strategy_update(st, x.v, f, NULL, NULL));
    check_value(&x);
    ch_function_unref(f);
    ch_var_unref(x.v);
    ch_strategy_unref(st);
}

/* ---- checkpoints ---- */

/* TPV-9: the value is saved once, and restored in every copy. */
static void value_in_tiles_is_loaded_under_another_number_of_cores(void **state)
{
    static const int split[][2] = {{0, CH_OFF}, {CH_OFF, 0}, {CH_OFF, CH_OFF}};
    char             dir[] = "/tmp/tiles-XXXXXX", path[64], command[64];

    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 9; i++) {
        ch_strategy   *st = t_cores_strategy(1, core_numbers[i % 5], NULL);
        ch_strategy   *other = t_cores_strategy(1, core_numbers[(i + 2) % 5], NULL);
        ch_var        *v = matrix(st, "w", ch_init_normal(0, 1 + i), split[i % 3]);
        tiled          x = {.st = other, .shape = ch_shape_of(6, 5)};
        ch_checkpoint *a = NULL, *b = NULL;
        ch_tensor     *t = NULL;
        char           saved[256];

        (void)snprintf(path, sizeof(path), "%s/run%d", dir, i);
        x.v = matrix(other, "w", ch_init_zeros(), split[i / 3]);
        t_ok(ch_var_get(v, &t));
        memcpy(x.want, ch_tensor_data(t), ch_tensor_bytes(t));
        ch_tensor_unref(t);
        t_ok(ch_checkpoint_new(&a));
        t_ok(ch_checkpoint_new(&b));
        t_ok(ch_checkpoint_add_var(a, "w", v));
        t_ok(ch_checkpoint_add_var(b, "w", x.v));
        t_ok(ch_checkpoint_save(a, path, NULL, saved, sizeof(saved)));
        t_ok(ch_checkpoint_wait(a));
        t_ok(ch_checkpoint_restore(b, saved, NULL, NULL));
        check_value(&x);
        ch_checkpoint_unref(a);
        ch_checkpoint_unref(b);
        ch_var_unref(v);
        ch_var_unref(x.v);
        ch_strategy_unref(st);
        ch_strategy_unref(other);
    }
    (void)snprintf(command, sizeof(command), "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* ---- the state of an optimizer ---- */

enum { STATE_BYTES = 4096, STATE_STEPS = 5, COLUMNS = 7, STATE_ROWS = 4 };

typedef struct optimized {
    ch_var       *v;
    ch_optimizer *o;
} optimized;

/* The bytes of variables, one after the other. */
typedef struct bytes {
    size_t n;
    char   at[STATE_BYTES];
} bytes;

static void add_tensor(bytes *b, ch_tensor *t)
{
    assert_true(b->n + ch_tensor_bytes(t) <= sizeof(b->at));
    memcpy(b->at + b->n, ch_tensor_data(t), ch_tensor_bytes(t));
    b->n += ch_tensor_bytes(t);
    ch_tensor_unref(t);
}

static void add_var(bytes *b, ch_var *v)
{
    ch_tensor *t = NULL;

    t_ok(ch_var_get(v, &t));
    add_tensor(b, t);
}

/* Every element of the gradient depends on one element of the variable, so its bits do not
 * depend on the tiles. */
static void train_elements(ch_step *s, void *arg)
{
    const optimized *m = arg;
    ch_node         *w = ch_var_read(s, m->v);
    ch_node         *x = ch_cast(ch_step_in(s, 0), ch_var_dtype(m->v));
    ch_node         *loss = ch_sum_all(ch_square(ch_sub(ch_mul(x, w), ch_number(s, 1))));

    ch_optimizer_minimize(m->o, s, loss, 1, &m->v);
}

/* Trains, and takes down the variable and the state after each kind of change. Takes over the
 * reference to the strategy. */
static void train_state(ch_strategy *st, ch_dtype dtype, const int *split, bytes *out)
{
    optimized      m = {NULL, NULL};
    ch_function   *f;
    ch_tensor     *x = t_noise(ch_shape_of(STATE_ROWS, COLUMNS, 3), 5), *t = NULL;
    ch_tuple      *in = t_tuple(1, &x);
    ch_var *const *own = NULL;
    int            n;

    memset(out, 0, sizeof(*out));
    t_ok(ch_optimizer_adam(0.05, NULL, &(ch_optimizer_options){.average = 0.9}, &m.o));
    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "w",
                                   .dtype = dtype,
                                   .shape = ch_shape_of(COLUMNS, 3),
                                   .init = ch_init_normal(0, 1),
                                   .split = split,
                                   .n_split = 2},
                    &m.v));
    f = t_function(train_elements, &m);
    for (int i = 0; i < STATE_STEPS; i++)
        t_ok(ch_strategy_run(st, f, in, NULL));
    add_var(out, m.v);
    n = ch_optimizer_vars(m.o, &own);
    assert_true((ch_optimizer_slot(m.o, m.v, "master") != NULL) == (dtype != CH_F32));
    for (int i = 0; i < n; i++)
        add_var(out, own[i]);
    t_ok(ch_optimizer_average(m.o, m.v, &t));
    add_tensor(out, t);
    t_ok(ch_optimizer_swap_averages(m.o));
    add_var(out, m.v);
    t_ok(ch_optimizer_swap_averages(m.o));
    x = t_noise(ch_shape_of(COLUMNS, 3), 9);
    t_ok(ch__tensor_cast(x, dtype, &t));
    t_ok(ch_var_set(m.v, t)); /* and its master */
    ch_tensor_unref(t);
    ch_tensor_unref(x);
    t_ok(ch_strategy_run(st, f, in, NULL));
    add_var(out, m.v);
    for (int i = 0; i < n; i++)
        add_var(out, own[i]);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_optimizer_unref(m.o);
    ch_var_unref(m.v);
    ch_strategy_unref(st);
}

/* Slots, the average, and the master of a 16-bit variable. */
static void optimizer_in_tiles_has_the_bits_of_one_device(void **state) /* ANN-12 */
{
    static const int      split[][2] = {{0, CH_OFF}, {CH_OFF, 0}, {CH_OFF, CH_OFF}};
    static const ch_dtype dtype[] = {CH_BF16, CH_F16, CH_F32};

    (void)state;
    for (int d = 0; d < 3; d++)
        for (int replicas = 1; replicas <= 2; replicas++) {
            bytes        want, got;
            ch_strategy *st = NULL;

            t_ok(replicas == 1 ? ch_strategy_one_device("GPU:0", &st) : CH_OK);
            train_state(replicas == 1 ? st : t_mirrored(2), dtype[d], NULL, &want);
            for (int i = 0; i < 5; i++)
                for (int k = 0; k < 3 && replicas * core_numbers[i] <= T_MOST_DEVICES; k++) {
                    train_state(t_cores_strategy(replicas, core_numbers[i], NULL), dtype[d],
                                split[k], &got);
                    assert_int_equal(got.n, want.n);
                    if (memcmp(got.at, want.at, want.n) != 0)
                        fail_msg("%s, %d x %d cores, split %d: other bits",
                                 ch_dtype_name(dtype[d]), replicas, core_numbers[i], k);
                }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_have_the_value_of_a_plain_array),
        cmocka_unit_test(initial_value_without_parts_is_split),
        cmocka_unit_test(variable_can_be_split_once_before_it_is_used),
        cmocka_unit_test(step_rejects_a_variable_that_was_created_again_in_another_layout),
        cmocka_unit_test(split_is_ignored_without_logical_devices),
        cmocka_unit_test(first_rule_that_matches_the_name_splits_a_variable),
        cmocka_unit_test(malformed_rules_are_rejected),
        cmocka_unit_test(replicas_have_their_own_sums_in_tiles),
        cmocka_unit_test(update_changes_the_tiles_of_all_replicas),
        cmocka_unit_test(value_in_tiles_is_loaded_under_another_number_of_cores),
        cmocka_unit_test(optimizer_in_tiles_has_the_bits_of_one_device),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
