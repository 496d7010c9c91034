/* test/job/test_changed_rows.c -- marks of the rows that have changed, under every strategy.
 *
 * The property test runs random steps and compares the bits of all variables, slots included,
 * with their bits when marking began. Every row that differs must be listed. A variable that
 * only updates by rows have written must list no row outside of their ids.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/mem.h"
#include "rows.h"
#include "rules.h"
#include "scene.h"
#include "strategy/changed_rows.h"

enum { ROWS = 37, WIDTH = 6, IDS = 4, MOST_VARS = 64, REPLICAS = 2 };

static unsigned next_random(unsigned *seed, unsigned n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

/* ---- a job with tables ---- */

enum { TABLE, HALF, SCATTERED, MIXED, TABLES };
static const char *const table_name[TABLES] = {"table", "half", "scattered", "mixed"};

/* A variable without shards, or a shard. */
typedef struct part {
    ch_var    *v;
    int        table; /* the table it belongs to, or is a slot of; -1: none */
    int64_t    first; /* its first row in the whole variable */
    ch_tensor *base;  /* its value when marking began; NULL: it is not marked */
} part;

typedef struct world {
    ch_strategy  *st;
    bool          is_remote;
    int           replicas;
    ch_var       *table[TABLES];
    ch_optimizer *opt;
    ch_function  *minimize, *scatter, *chain, *mix, *branch, *keep_old;
    int           n;
    part          part[MOST_VARS];
    /* Rows that may differ since marking began; `any`: all rows. */
    bool may[TABLES][ROWS], any[TABLES];
} world;

static ch_node *rows_like(ch_step *s)
{
    return ch_step_in(s, 1);
}

/* Sparse gradients of two tables, of which the second has 16 bits and a master. */
static void minimize_step(ch_step *s, void *arg)
{
    const world *w = arg;
    ch_node     *ids = ch_step_in(s, 0);
    ch_node     *x = ch_gather(ch_var_read(s, w->table[TABLE]), ids, 0);
    ch_node     *y = ch_gather(ch_var_read(s, w->table[HALF]), ids, 0);

    x = ch_add(ch_square(ch_sub(x, rows_like(s))), ch_square(ch_cast(y, CH_F32)));
    ch_optimizer_minimize(w->opt, s, ch_mean_all(x), 2,
                          (ch_var *[]){w->table[TABLE], w->table[HALF]});
}

static void scatter_step(ch_step *s, void *arg)
{
    const world *w = arg;

    ch_var_scatter_sub(s, w->table[SCATTERED], ch_step_in(s, 0), rows_like(s));
    ch_var_scatter_add(s, w->table[MIXED], ch_step_in(s, 0), rows_like(s));
}

/* Two updates of rows of the same variable. */
static void chain_step(ch_step *s, void *arg)
{
    const world *w = arg;
    ch_node     *two = ch_sub(rows_like(s), ch_number(s, 2));

    ch_var_scatter_add(s, w->table[SCATTERED], ch_step_in(s, 0), rows_like(s));
    ch_var_scatter_mul(s, w->table[SCATTERED], ch_step_in(s, 2), two);
}

/* An update of rows and then one of all rows. */
static void mix_step(ch_step *s, void *arg)
{
    const world *w = arg;

    ch_var_scatter_add(s, w->table[MIXED], ch_step_in(s, 0), rows_like(s));
    ch_var_assign_add(s, w->table[MIXED],
                      ch_mul(ch_var_read(s, w->table[MIXED]), ch_number(s, 0.5)));
}

static void branch_then(ch_step *s, void *arg, ch_node **out)
{
    ch_node *const *in = arg;

    (void)s;
    out[0] = ch_scatter_add(in[0], in[1], in[2]);
}

static void branch_else(ch_step *s, void *arg, ch_node **out)
{
    ch_node *const *in = arg;

    out[0] = ch_mul(in[0], ch_number(s, 2));
}

static void branch_step(ch_step *s, void *arg)
{
    const world *w = arg;
    ch_node     *now = ch_var_read(s, w->table[MIXED]), *next = NULL;
    ch_node     *in[] = {now, ch_step_in(s, 0), rows_like(s)};

    ch_cond(ch_greater(ch_sum_all(rows_like(s)), ch_number(s, 0)), 1, branch_then, branch_else,
            in, &next);
    ch_var_assign(s, w->table[MIXED], next);
}

/* Gives the old value too, so the table cannot be updated in place. */
static void keep_old_step(ch_step *s, void *arg)
{
    const world *w = arg;
    ch_node     *old = ch_var_read(s, w->table[MIXED]);

    ch_var_scatter_add(s, w->table[MIXED], ch_step_in(s, 0), rows_like(s));
    ch_step_out(s, "old", old);
}

static ch_var *new_table(const world *w, int i)
{
    ch_tensor *f32 = t_noise(ch_shape_of(ROWS, WIDTH), (unsigned)i + 9), *t = NULL;
    ch_var    *v = NULL;

    t_ok(ch__tensor_cast(f32, i == HALF ? CH_BF16 : CH_F32, &t));
    t_ok(ch_var_new(
        w->st,
        &(ch_var_spec){.name = table_name[i], .initial = t, .aggregation = CH_AGGREGATE_SUM},
        &v));
    ch_tensor_unref(f32);
    ch_tensor_unref(t);
    return v;
}

/* Returns the table that a variable is, or is a slot of; -1: none. */
static int table_of(const char *name)
{
    for (int i = 0; i < TABLES; i++)
        if (strncmp(name, table_name[i], strlen(table_name[i])) == 0)
            return i;
    return -1;
}

static void add_part(world *w, ch_var *v, const char *whole, int64_t first)
{
    if (ch_var_shape(v).rank == 0)
        return;
    assert_true(w->n < MOST_VARS);
    w->part[w->n++] = (part){.v = ch_var_ref(v), .table = table_of(whole), .first = first};
}

/* Lists all variables with rows that exist now: whole, or their shards. */
static void list_parts(world *w)
{
    ch_var **list = NULL;
    int      n = 0;

    t_ok(ch__strategy_vars(w->st, &n, &list));
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < list[i]->n_shards; k++) {
            ch_region at;

            ch__layout_region(list[i]->layout, list[i]->shape, k, &at);
            add_part(w, list[i]->shard[k], list[i]->name, at.begin[0]);
        }
        if (list[i]->n_shards == 0 && list[i]->whole == NULL)
            add_part(w, list[i], list[i]->name, 0);
        ch_var_unref(list[i]);
    }
    ch__free(list);
}

/* ---- steps ---- */

static ch_tensor *random_ids(unsigned *seed, bool may[ROWS])
{
    int64_t id[IDS];

    for (int i = 0; i < IDS; i++) {
        id[i] = next_random(seed, ROWS);
        if (may != NULL)
            may[id[i]] = true;
    }
    return t_ids(ch_shape_of(IDS), id);
}

/* Returns an argument that differs between the replicas. */
static ch_value *per_replica(const world *w, ch_tensor *(*make)(unsigned *seed, bool may[ROWS]),
                             unsigned *seed, bool may[ROWS])
{
    ch_tensor *t[REPLICAS];
    ch_value  *v = NULL;

    for (int r = 0; r < w->replicas; r++)
        t[r] = make(seed, may);
    t_ok(ch_value_new(w->replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, w->replicas, t, &v));
    for (int r = 0; r < w->replicas; r++)
        ch_tensor_unref(t[r]);
    return v;
}

static ch_tensor *random_rows(unsigned *seed, bool may[ROWS])
{
    (void)may;
    return t_noise(ch_shape_of(IDS, WIDTH), next_random(seed, 1 << 20));
}

/* Runs a step with random ids. Notes the ids for n tables. */
static ch_status run(world *w, ch_function *f, unsigned *seed, int n, const int *table)
{
    bool      may[ROWS] = {false};
    ch_value *in[3] = {per_replica(w, random_ids, seed, may),
                       per_replica(w, random_rows, seed, NULL),
                       per_replica(w, random_ids, seed, may)};
    ch_tuple *all = NULL;
    ch_status rc;

    t_ok(ch_tuple_new(f == w->chain ? 3 : 2, in, NULL, &all));
    rc = ch_strategy_run(w->st, f, all, NULL);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < ROWS; k++)
            w->may[table[i]][k] |= may[k];
    ch_tuple_unref(all);
    for (int i = 0; i < 3; i++)
        ch_value_unref(in[i]);
    return rc;
}

/* Runs a step whose check of ids fails on some replica. */
static void run_failing(world *w)
{
    ch_tensor *in[2] = {t_ids(ch_shape_of(IDS), (int64_t[]){1, 2, ROWS, 3}),
                        t_noise(ch_shape_of(IDS, WIDTH), 5)};
    ch_tuple  *all = t_tuple(2, in);

    assert_int_equal(ch_strategy_run(w->st, w->scatter, all, NULL), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_strategy_run(w->st, w->mix, all, NULL), CH_INVALID_ARGUMENT);
    for (int i = 1; i <= 3; i++)
        w->may[SCATTERED][i] = true;
    w->any[MIXED] = true;
    ch_tuple_unref(all);
}

static void set_table(const world *w, unsigned seed)
{
    ch_tensor *t = t_noise(ch_shape_of(ROWS, WIDTH), seed);

    t_ok(ch_var_set(w->table[MIXED], t));
    ch_tensor_unref(t);
}

static void add_to_table(const world *w)
{
    ch_tensor *t = t_noise(ch_shape_of(ROWS, WIDTH), 3);

    t_ok(ch_var_add(w->table[MIXED], t));
    ch_tensor_unref(t);
}

static void run_action(world *w, unsigned *seed)
{
    switch (next_random(seed, 12)) {
    case 0:
        w->any[MIXED] = true;
        t_ok(run(w, w->mix, seed, 0, NULL));
        break;
    case 1:
        w->any[MIXED] = true;
        t_ok(run(w, w->branch, seed, 0, NULL));
        break;
    case 2:
        w->any[MIXED] = true;
        t_ok(run(w, w->keep_old, seed, 0, NULL));
        break;
    case 3:
        w->any[MIXED] = true;
        set_table(w, *seed);
        break;
    case 4:
        w->any[MIXED] = true;
        add_to_table(w);
        break;
    case 5:
        run_failing(w);
        break;
    case 6:
    case 7:
        t_ok(run(w, w->scatter, seed, 2, (int[]){SCATTERED, MIXED}));
        break;
    case 8:
    case 9:
        t_ok(run(w, w->chain, seed, 1, (int[]){SCATTERED}));
        break;
    default:
        t_ok(run(w, w->minimize, seed, 2, (int[]){TABLE, HALF}));
    }
}

/* ---- marks ---- */

static ch_tensor *value_of(const part *p, const ch_cut *cut)
{
    ch_tensor *t = NULL;

    if (cut != NULL)
        return t_cut_value(cut, p->v);
    t_ok(ch_var_get(p->v, &t));
    return t;
}

/* Takes a cut if the variables are on servers; otherwise returns NULL. */
static ch_cut *cut_of(const world *w, ch_cut_marks marks)
{
    ch_cut *cut = NULL;

    if (w->is_remote)
        t_ok(ch__cut_take(w->st, marks, NULL, NULL, &cut));
    return cut;
}

static void begin_marks(world *w)
{
    ch_cut *cut = cut_of(w, CH_MARKS_BEGIN);

    for (int i = 0; i < w->n; i++) {
        ch_tensor_unref(w->part[i].base);
        w->part[i].base = value_of(&w->part[i], cut);
        if (!w->is_remote)
            t_ok(ch__mark_rows(w->part[i].v));
    }
    ch__cut_end(cut);
    memset(w->may, 0, sizeof(w->may));
    memset(w->any, 0, sizeof(w->any));
}

static const char *row_at(const ch_tensor *t, int64_t row)
{
    size_t bytes = ch_tensor_bytes(t) / (size_t)ch_tensor_shape(t).dim[0];

    return (const char *)ch_tensor_data(t) + (size_t)row * bytes;
}

/* Reads the listed rows alone and compares them with the whole value. */
static void check_rows_read(const part *p, const ch_cut *cut, const ch_changed_rows *changed,
                            const ch_tensor *now)
{
    size_t bytes = ch_tensor_bytes(now) / (size_t)ch_tensor_shape(now).dim[0];
    char  *rows = malloc((size_t)changed->n * bytes + 1);

    t_ok(ch__cut_read_rows(cut, p->v, changed->n, changed->ids, rows));
    for (int64_t i = 0; i < changed->n; i++)
        assert_memory_equal(rows + (size_t)i * bytes, row_at(now, changed->ids[i]), bytes);
    free(rows);
}

static void check_part(const world *w, const part *p, const ch_cut *cut)
{
    ch_changed_rows changed;
    ch_tensor      *now = value_of(p, cut);
    int64_t         n = ch_tensor_shape(now).dim[0], at = 0;
    size_t          bytes = ch_tensor_bytes(now) / (size_t)n;

    t_ok(ch__changed_rows(cut, p->v, &changed));
    assert_true(!changed.all || changed.ids == NULL);
    for (int64_t i = 0; i < n; i++) {
        bool is_listed = at < changed.n && changed.ids[at] == i;
        bool differs = memcmp(row_at(now, i), row_at(p->base, i), bytes) != 0;

        at += is_listed;
        if (differs && !changed.all && !is_listed)
            fail_msg("%s: row %d has changed and is not listed", ch_var_name(p->v), (int)i);
        if (is_listed && p->table >= 0 && !w->any[p->table] && !w->may[p->table][p->first + i])
            fail_msg("%s: row %d is listed, and no step has written it", ch_var_name(p->v),
                     (int)i);
    }
    assert_int_equal(at, changed.n); /* ascending, and in range */
    if (changed.all && p->table >= 0 && !w->any[p->table])
        fail_msg("%s: all rows are listed after updates by rows", ch_var_name(p->v));
    if (cut != NULL && !changed.all)
        check_rows_read(p, cut, &changed, now);
    ch__changed_rows_drop(&changed);
    ch_tensor_unref(now);
}

/* A step after the cut must not change what the cut shows. */
static void check_marks(world *w)
{
    ch_cut  *cut = cut_of(w, CH_MARKS_KEEP);
    unsigned seed = 8;

    if (cut != NULL)
        t_ok(run(w, w->scatter, &seed, 2, (int[]){SCATTERED, MIXED}));
    for (int i = 0; i < w->n; i++)
        check_part(w, &w->part[i], cut);
    ch__cut_end(cut);
}

/* ---- the property ---- */

static void open_world(world *w, ch_strategy *st, bool is_remote, int replicas, rule_fn rule)
{
    unsigned seed = 4;

    memset(w, 0, sizeof(*w));
    w->st = st;
    w->is_remote = is_remote;
    w->replicas = replicas;
    for (int i = 0; i < TABLES; i++)
        w->table[i] = new_table(w, i);
    t_ok(rule(NULL, &w->opt));
    w->minimize = t_function(minimize_step, w);
    w->scatter = t_function(scatter_step, w);
    w->chain = t_function(chain_step, w);
    w->mix = t_function(mix_step, w);
    w->branch = t_function(branch_step, w);
    w->keep_old = t_function(keep_old_step, w);
    t_ok(run(w, w->minimize, &seed, 0, NULL)); /* creates the slots */
    list_parts(w);
}

static void close_world(world *w)
{
    for (int i = 0; i < w->n; i++) {
        if (!w->is_remote)
            ch__unmark_rows(w->part[i].v);
        ch_tensor_unref(w->part[i].base);
        ch_var_unref(w->part[i].v);
    }
    if (w->is_remote)
        ch__cut_end_marks(w->st);
    ch_function_unref(w->minimize);
    ch_function_unref(w->scatter);
    ch_function_unref(w->chain);
    ch_function_unref(w->mix);
    ch_function_unref(w->branch);
    ch_function_unref(w->keep_old);
    ch_optimizer_unref(w->opt);
    for (int i = 0; i < TABLES; i++)
        ch_var_unref(w->table[i]);
}

static const rule_fn sparse_rules[] = {sgd,  momentum, adagrad, adagrad_rows,
                                       adam, amsgrad,  ftrl};
enum { N_SPARSE = sizeof(sparse_rules) / sizeof(sparse_rules[0]) };

/* Trains under a strategy with every rule. Marks begin several times. */
static void check_strategy(ch_strategy *st, bool is_remote, int replicas)
{
    for (int rule = 0; rule < N_SPARSE; rule++) {
        unsigned seed = (unsigned)rule * 77 + 5;
        world    w;

        open_world(&w, st, is_remote, replicas, sparse_rules[rule]);
        for (int period = 0; period < 3; period++) {
            begin_marks(&w);
            check_marks(&w);
            for (int i = 0; i < 3; i++) {
                for (int k = 0; k < 4; k++)
                    run_action(&w, &seed);
                check_marks(&w);
            }
        }
        close_world(&w);
    }
    ch_strategy_unref(st);
}

static void changed_rows_are_listed_under_default(void **state)
{
    (void)state;
    check_strategy(ch_strategy_ref(ch__strategy_default()), false, 1);
}

static void changed_rows_are_listed_under_mirrored(void **state)
{
    (void)state;
    check_strategy(t_mirrored(REPLICAS), false, REPLICAS);
}

static void changed_rows_are_listed_under_central_storage(void **state)
{
    (void)state;
    check_strategy(t_central(REPLICAS), false, REPLICAS);
}

static void changed_rows_are_listed_under_parameter_servers(void **state)
{
    (void)state;
    check_strategy(t_in_shards(1), true, 1);
}

static void changed_rows_are_listed_in_shards_of_rows(void **state)
{
    (void)state;
    check_strategy(t_in_shards(3), true, 1);
}

static void changed_rows_are_listed_in_shards_of_columns(void **state)
{
    ch_partitioner p = ch_partitioner_fixed(2);

    (void)state;
    p.axis = 1;
    check_strategy(t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 1},
                             &(ch_parameter_server_options){.partitioner = p}, NULL),
                   true, 1);
}

/* ---- single cases ---- */

static void expect_all(const ch_cut *cut, ch_var *v, bool all, int64_t n)
{
    ch_changed_rows c;

    t_ok(ch__changed_rows(cut, v, &c));
    assert_true(c.all == all);
    assert_int_equal(c.n, n);
    ch__changed_rows_drop(&c);
}

static void variable_without_marks_lists_all_rows(void **state)
{
    ch_var *v = t_table(NULL, "v", ch_shape_of(ROWS, WIDTH)), *scalar = t_var_in(NULL, "x", 1);

    (void)state;
    expect_all(NULL, v, true, 0);
    t_refused(ch__mark_rows(scalar), CH_INVALID_ARGUMENT, "x", "rows");
    expect_all(NULL, scalar, true, 0);
    t_ok(ch__mark_rows(v));
    expect_all(NULL, v, false, 0);
    ch__unmark_rows(v);
    expect_all(NULL, v, true, 0);
    ch_var_unref(v);
    ch_var_unref(scalar);
}

/* The program may write to the memory of a copy at any time. */
static void variable_lists_all_rows_when_the_program_has_its_copies(void **state)
{
    ch_var   *v = t_table(NULL, "v", ch_shape_of(ROWS, WIDTH));
    ch_value *copies = NULL;

    (void)state;
    t_ok(ch__mark_rows(v));
    t_ok(ch_var_copies(v, &copies));
    ch_value_unref(copies);
    expect_all(NULL, v, true, 0);
    t_ok(ch__mark_rows(v));
    expect_all(NULL, v, true, 0);
    ch_var_unref(v);
}

static void variable_lists_all_rows_when_replicas_have_own_values(void **state)
{
    ch_strategy *st = t_mirrored(REPLICAS);
    ch_var      *v = NULL;

    (void)state;
    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "v",
                                   .dtype = CH_F32,
                                   .shape = ch_shape_of(ROWS),
                                   .sync = CH_SYNC_ON_READ,
                                   .aggregation = CH_AGGREGATE_SUM},
                    &v));
    t_ok(ch__mark_rows(v));
    expect_all(NULL, v, true, 0);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

static void variable_on_servers_lists_all_rows_until_a_cut_begins_marks(void **state)
{
    ch_strategy *st = t_in_shards(1);
    ch_var      *v = t_table(st, "v", ch_shape_of(ROWS, WIDTH)), *late;
    ch_cut      *cut = NULL;

    (void)state;
    t_refused(ch__mark_rows(v), CH_INVALID_ARGUMENT, "v", "servers");
    t_ok(ch__cut_take(st, CH_MARKS_BEGIN, NULL, NULL, &cut));
    expect_all(cut, v, true, 0); /* the marks from before */
    ch__cut_end(cut);
    late = t_table(st, "late", ch_shape_of(ROWS, WIDTH));
    t_ok(ch__cut_take(st, CH_MARKS_KEEP, NULL, NULL, &cut));
    expect_all(cut, v, false, 0);
    expect_all(cut, late, true, 0);
    ch__cut_end_marks(st);
    expect_all(cut, v, false, 0); /* the snapshot keeps its marks */
    ch__cut_end(cut);
    t_ok(ch__cut_take(st, CH_MARKS_KEEP, NULL, NULL, &cut));
    expect_all(cut, v, true, 0);
    ch__cut_end(cut);
    ch_var_unref(v);
    ch_var_unref(late);
    ch_strategy_unref(st);
}

static void write_to_a_region_marks_its_rows(void **state)
{
    ch_region  at = {.begin = {5, 1}, .size = {3, 2}};
    ch_tensor *t = t_noise(ch_shape_of(3, 2), 1);

    (void)state;
    for (int shards = 0; shards <= 2; shards += 2) {
        ch_strategy *st = shards > 0 ? t_in_shards(shards) : ch_strategy_ref(t_mirrored(2));
        ch_var      *v = t_table(st, "v", ch_shape_of(13, 4));
        ch_cut      *cut = NULL;

        if (shards > 0) {
            t_ok(ch__cut_take(st, CH_MARKS_BEGIN, NULL, NULL, &cut));
            ch__cut_end(cut);
        } else {
            t_ok(ch__mark_rows(v));
        }
        t_ok(st->var_ops->write(v, &at, t));
        if (shards > 0) { /* rows 0 to 6, and 7 to 12 */
            t_ok(ch__cut_take(st, CH_MARKS_KEEP, NULL, NULL, &cut));
            t_refused(ch__cut_read_rows(cut, v, 0, NULL, NULL), CH_INVALID_ARGUMENT, "shard",
                      "v");
            expect_all(cut, v->shard[0], false, 2);
            expect_all(cut, v->shard[1], false, 1);
            ch__cut_end(cut);
        } else {
            expect_all(NULL, v, false, 3);
            ch_strategy_unref(st);
        }
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
    ch_tensor_unref(t);
}

static ch_status read_zeros(void *arg, const ch_region *region, void *to)
{
    (void)arg;
    memset(to, 0, (size_t)(region->size[0] * region->size[1]) * sizeof(float));
    return CH_OK;
}

/* Changes a variable outside steps, in the i-th of five ways. */
static void change_outside_steps(ch_var *v, int i)
{
    ch_tensor      *t = t_noise(ch_var_shape(v), 6);
    ch_value_source zeros = {"zeros", CH_F32, ch_var_shape(v), read_zeros, NULL};
    ch_var         *other = NULL;

    switch (i) {
    case 0:
        t_ok(ch_var_set(v, t));
        break;
    case 1:
        t_ok(ch_var_add(v, t));
        break;
    case 2:
        t_ok(ch_var_sub(v, t));
        break;
    case 3:
        t_ok(ch__var_write_from(v, &zeros));
        break;
    default:
        t_ok(ch_var_clone(v, &other));
        t_ok(ch_var_strategy(v)->var_ops->copy(other, v));
    }
    ch_var_unref(other);
    ch_tensor_unref(t);
}

static void every_write_outside_steps_marks_all_rows(void **state)
{
    (void)state;
    for (int remote = 0; remote < 2; remote++) {
        ch_strategy *st = remote ? t_in_shards(1) : t_mirrored(2);
        ch_var      *v = t_table(st, "v", ch_shape_of(ROWS, WIDTH));

        for (int i = 0; i < 5; i++) {
            ch_cut *cut = NULL;

            if (remote) {
                t_ok(ch__cut_take(st, CH_MARKS_BEGIN, NULL, NULL, &cut));
                ch__cut_end(cut);
            } else {
                t_ok(ch__mark_rows(v));
            }
            change_outside_steps(v, i);
            cut = NULL;
            if (remote)
                t_ok(ch__cut_take(st, CH_MARKS_KEEP, NULL, NULL, &cut));
            expect_all(cut, v, true, 0);
            ch__cut_end(cut);
        }
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
}

/* ---- memory ---- */

static void marking_allocates_nothing_when_it_begins_again(void **state)
{
    ch_var *v = t_table(NULL, "v", ch_shape_of(ROWS, WIDTH));
    int64_t before;

    (void)state;
    t_ok(ch__mark_rows(v));
    before = ch__mem_allocs();
    t_ok(ch__mark_rows(v));
    assert_int_equal(ch__mem_allocs(), before);
    ch_var_unref(v);
}

/* Neither a step nor marks allocate, with marks or without. */
static void step_with_marks_allocates_nothing(void **state)
{
    ch_strategy *st = t_mirrored(REPLICAS);
    unsigned     seed = 3;
    world        w;
    int64_t      n[2];

    (void)state;
    open_world(&w, st, false, REPLICAS, adam);
    for (int marked = 0; marked < 2; marked++) {
        if (marked)
            begin_marks(&w);
        t_ok(run(&w, w.minimize, &seed, 0, NULL));
        t_ok(run(&w, w.minimize, &seed, 0, NULL));
        n[marked] = ch__mem_allocs();
        t_ok(run(&w, w.minimize, &seed, 0, NULL));
        n[marked] = ch__mem_allocs() - n[marked];
    }
    assert_int_equal(n[0], n[1]); /* those of the arguments */
    close_world(&w);
    ch_strategy_unref(st);
}

static void marks_are_complete_when_memory_is_exhausted(void **state)
{
    ch_strategy *st = t_mirrored(REPLICAS);
    unsigned     seed = 3;
    world        w;

    (void)state;
    open_world(&w, st, false, REPLICAS, adagrad_rows);
    for (int n = 1, failed = 1; failed != 0; n++) {
        failed = 0;
        begin_marks(&w);
        for (int i = 0; i < w.n; i++)
            ch__unmark_rows(w.part[i].v);
        ch__mem_fail_at(n);
        for (int i = 0; i < w.n; i++)
            failed += ch__mark_rows(w.part[i].v) != CH_OK;
        ch__mem_fail_at(0);
        for (int i = 0; i < TABLES; i++)
            w.any[i] = failed > 0;
        t_ok(run(&w, w.minimize, &seed, 2, (int[]){TABLE, HALF}));
        check_marks(&w);
    }
    close_world(&w);
    ch_strategy_unref(st);
}

static void cut_with_marks_changes_nothing_when_memory_is_exhausted(void **state)
{
    scene     s;
    world     w;
    unsigned  seed = 3;
    int       n_failed = 0;
    ch_cut   *cut = NULL;
    ch_status rc = CH_INTERNAL;

    (void)state;
    t_stage(&s, &(ch_local_cluster_options){.ps = 2, .workers = 1}, 1);
    t_ok(ch_strategy_parameter_server(
        ch_local_cluster_resolver(s.cluster),
        &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)}, &s.st));
    open_world(&w, s.st, true, 1, adagrad);
    begin_marks(&w);
    for (int n = 1; rc != CH_OK && n < 600; n++) {
        t_ok(run(&w, w.scatter, &seed, 2, (int[]){SCATTERED, MIXED}));
        ch__mem_fail_at(n);
        rc = ch__cut_take(s.st, CH_MARKS_KEEP, NULL, NULL, &cut);
        ch__mem_fail_at(0);
        n_failed += rc != CH_OK;
        if (rc == CH_OK)
            for (int i = 0; i < w.n; i++)
                check_part(&w, &w.part[i], cut);
        ch__cut_end(cut);
        cut = NULL;
    }
    assert_int_equal(rc, CH_OK);
    assert_true(n_failed > 10);
    check_marks(&w);
    for (int n = 1, failed = 1; failed != 0; n++) { /* a list of rows fails */
        ch_changed_rows c = {.ids = NULL};

        cut = cut_of(&w, CH_MARKS_KEEP);
        ch__mem_fail_at(n);
        failed = ch__changed_rows(cut, w.part[0].v, &c) != CH_OK;
        ch__mem_fail_at(0);
        ch__changed_rows_drop(&c);
        ch__cut_end(cut);
    }
    close_world(&w);
    ch_strategy_unref(s.st);
    ch_local_cluster_unref(s.cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changed_rows_are_listed_under_default),
        cmocka_unit_test(changed_rows_are_listed_under_mirrored),
        cmocka_unit_test(changed_rows_are_listed_under_central_storage),
        cmocka_unit_test(changed_rows_are_listed_under_parameter_servers),
        cmocka_unit_test(changed_rows_are_listed_in_shards_of_rows),
        cmocka_unit_test(changed_rows_are_listed_in_shards_of_columns),
        cmocka_unit_test(variable_without_marks_lists_all_rows),
        cmocka_unit_test(variable_lists_all_rows_when_the_program_has_its_copies),
        cmocka_unit_test(variable_lists_all_rows_when_replicas_have_own_values),
        cmocka_unit_test(variable_on_servers_lists_all_rows_until_a_cut_begins_marks),
        cmocka_unit_test(write_to_a_region_marks_its_rows),
        cmocka_unit_test(every_write_outside_steps_marks_all_rows),
        cmocka_unit_test(marking_allocates_nothing_when_it_begins_again),
        cmocka_unit_test(step_with_marks_allocates_nothing),
        cmocka_unit_test(marks_are_complete_when_memory_is_exhausted),
        cmocka_unit_test(cut_with_marks_changes_nothing_when_memory_is_exhausted),
    };

    return cmocka_run_group_tests_name("changed_rows", tests, t_four_gpus, NULL);
}
