/* test/job/test_step_plan.c -- a divided step gives the same bits as the undivided step.
 *
 * Every step runs twice: whole, under Default, and in parts, with a simple model of servers: a
 * list of tensors by name (store). Results and variables must be equal afterwards, for every
 * placement of the variables and every number of shards.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "graph/function.h"
#include "graph/run.h"
#include "job/shard.h"
#include "steps.h"
#include "strategy/strategy.h"

enum { MOST_VALUES = 256, MOST_VARS = 64, MOST_SHARDS = 8 };

/* ---- the model of servers ---- */

typedef struct store {
    int        n;
    char       name[MOST_VARS][96];
    ch_shape   shape[MOST_VARS];
    ch_layout  layout[MOST_VARS];
    ch_tensor *value[MOST_VARS][MOST_SHARDS];
    int        shard; /* shard on which a graph runs */
} store;

static int place_in(const store *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->name[i], name) == 0)
            return i;
    fail_msg("no variable %s", name);
    return -1;
}

static ch_status storage(void *owner, const ch_resource *r, int local, int core, void **out)
{
    const store *s = owner;

    (void)local, (void)core;
    *out = ch_tensor_data_mut(s->value[place_in(s, r->name)][s->shard]);
    return CH_OK;
}

static ch_layout layout_of(ch_shape shape, int axis, int n)
{
    bool cuts = shape.rank > axis && shape.dim[axis] >= n;

    return ch__layout_along(axis, cuts ? n : 1);
}

/* Copies the variables of a graph from their strategy into the store, and cuts them along an
 * axis if possible. */
static void fill_store(store *s, const ch_graph *g, int axis, int n)
{
    s->n = g->n_resources;
    s->shard = 0;
    for (int i = 0; i < s->n; i++) {
        ch_tensor *t = NULL;

        snprintf(s->name[i], sizeof(s->name[i]), "%s", g->resource[i].name);
        t_ok(ch_var_get(g->resource[i].key, &t));
        s->shape[i] = ch_tensor_shape(t);
        s->layout[i] = layout_of(s->shape[i], axis, n);
        for (int k = 0; k < ch__layout_parts(s->layout[i]); k++) {
            ch_tensor *cut = NULL;

            t_ok(ch__layout_cut(s->layout[i], s->shape[i], t, k, &cut));
            t_ok(ch_tensor_copy_of(ch_tensor_dtype(cut), ch_tensor_shape(cut),
                                   ch_tensor_data(cut), &s->value[i][k]));
            ch_tensor_unref(cut);
        }
        ch_tensor_unref(t);
    }
}

static void empty_store(store *s)
{
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < ch__layout_parts(s->layout[i]); k++)
            ch_tensor_unref(s->value[i][k]);
    s->n = 0;
}

/* ---- execution of the parts ---- */

typedef struct worker {
    const ch_graph     *g;
    const ch_step_plan *plan;
    store              *store;
    ch_tensor          *value[MOST_VALUES];
    int64_t             rows;
    int                 n_reads, n_lookups, n_updates;
} worker;

/* Runs a graph after it was encoded and decoded, as a worker does. */
static void run_graph(worker *w, ch_graph *g, int n_in, ch_tensor *const *in, int n_out,
                      ch_tensor **out)
{
    static const ch_run_ops ops = {.resource = storage};
    ch_function            *f = NULL;
    ch_tuple               *given = NULL, *result = NULL;
    ch_device              *device = ch_device_current();
    void                   *bytes = NULL;
    size_t                  n = 0;
    ch_graph               *sent = NULL;

    t_ok(ch_graph_encode(g, &bytes, &n));
    t_ok(ch_graph_decode(bytes, n, &sent));
    t_ok(ch_function_of_graph("part", sent, &f));
    t_ok(ch_tuple_of(n_in, in, &given));
    t_ok(ch__run(&(ch_run){.function = f,
                           .owner = w->store,
                           .ops = &ops,
                           .n_local = 1,
                           .device = &device,
                           .n_replicas = 1,
                           .in = given,
                           .has_rows = true,
                           .global_rows = w->rows,
                           .step = 0},
                 &result));
    assert_int_equal(ch_tuple_count(result), n_out);
    for (int i = 0; i < n_out; i++)
        out[i] = ch_tensor_ref(ch_value_at(ch_tuple_at(result, i), 0));
    ch_tuple_unref(result);
    ch_tuple_unref(given);
    ch_function_unref(f);
    ch_graph_unref(sent);
    ch_bytes_free(bytes);
}

static void run_local_part(worker *w, const ch_local_part *s)
{
    ch_tensor *in[MOST_VALUES], *out[MOST_VALUES];

    for (int i = 0; i < s->n_in; i++) {
        assert_non_null(w->value[s->in[i]]);
        in[i] = w->value[s->in[i]];
    }
    run_graph(w, s->graph, s->n_in, in, s->n_out, out);
    for (int i = 0; i < s->n_out; i++) {
        assert_null(w->value[s->out[i]]);
        w->value[s->out[i]] = out[i];
    }
}

static bool is_ready(const worker *w, const ch_remote_part *r)
{
    for (int i = 0; i < r->n_in; i++)
        if (w->value[r->in[i].value] == NULL)
            return false;
    return true;
}

static ch_id_split *split_of(const ch_tensor *ids, int64_t size, int n)
{
    ch_id_split *s = NULL;

    t_ok(ch__id_split_new(&s));
    t_ok(ch__id_split(s, ids, size, n));
    return s;
}

/* Returns the rows of a shard for ids that all belong to it. */
static ch_tensor *rows_of_shard(const ch_tensor *table, const ch_tensor *ids)
{
    ch_shape       shape = ch_tensor_shape(table);
    int64_t        k = ch_tensor_count(ids), n = shape.dim[0];
    size_t         bytes = n > 0 ? ch_tensor_bytes(table) / (size_t)n : 0;
    ch_tensor     *t = NULL;
    const int64_t *id = ch_tensor_data(ids);

    shape.dim[0] = k;
    t_ok(ch_tensor_new(ch_tensor_dtype(table), shape, &t));
    for (int64_t i = 0; i < k; i++) {
        assert_true(id[i] >= 0 && id[i] < n);
        memcpy((char *)ch_tensor_data_mut(t) + (size_t)i * bytes,
               (const char *)ch_tensor_data(table) + (size_t)id[i] * bytes, bytes);
    }
    return t;
}

/* Each shard has some columns of every row. */
static void look_up_pieces(worker *w, const ch_remote_part *r, int var)
{
    const store *st = w->store;
    ch_tensor   *ids = w->value[r->in[0].value], *part[MOST_SHARDS];
    ch_layout    l = st->layout[var];

    for (int k = 0; k < ch__layout_parts(l); k++)
        part[k] = rows_of_shard(st->value[var][k], ids);
    t_ok(ch__layout_join(l, part, &w->value[r->out[0]]));
    for (int k = 0; k < ch__layout_parts(l); k++)
        ch_tensor_unref(part[k]);
}

static void look_up(worker *w, const ch_remote_part *r, int var)
{
    const store *st = w->store;
    ch_shape     row = {.rank = st->shape[var].rank - 1};
    ch_id_split *s = split_of(w->value[r->in[0].value], st->shape[var].dim[0],
                              ch__layout_parts(st->layout[var]));
    ch_tensor   *part[MOST_SHARDS] = {NULL};

    for (int k = 0; k < row.rank; k++)
        row.dim[k] = st->shape[var].dim[k + 1];
    assert_true(r->or_zero || ch__id_split_first_invalid(s) == -1);
    for (int k = 0; k < ch__layout_parts(st->layout[var]); k++) {
        ch_tensor *ids = NULL;

        t_ok(ch__id_split_lookup_ids(s, k, &ids));
        if (ids != NULL)
            part[k] = rows_of_shard(st->value[var][k], ids);
        ch_tensor_unref(ids);
    }
    t_ok(ch__id_split_lookup_rows(s, ch_tensor_dtype(st->value[var][0]), row, part,
                                  &w->value[r->out[0]]));
    for (int k = 0; k < ch__layout_parts(st->layout[var]); k++)
        ch_tensor_unref(part[k]);
    ch__id_split_free(s);
}

/* Returns the widest variable of a graph. Its shape and layout determine how inputs are
 * divided. */
static int widest_of(const store *s, const ch_graph *g)
{
    int best = place_in(s, g->resource[0].name);

    for (int i = 1; i < g->n_resources; i++) {
        int at = place_in(s, g->resource[i].name);

        best = s->shape[at].rank > s->shape[best].rank ? at : best;
    }
    return best;
}

static ch_tensor *input_of_shard(const worker *w, const ch_remote_part *r, int var, int input,
                                 int k)
{
    const ch_plan_input *in = &r->in[input];
    ch_layout            l = w->store->layout[var];
    ch_shard_role        role = ch__shard_role(in->role, l);
    ch_shape             whole = w->store->shape[var];
    ch_tensor           *t = w->value[in->value], *out = NULL;
    ch_id_split         *s;

    if (role == CH_SHARD_WHOLE)
        return ch_tensor_ref(t);
    if (role == CH_SHARD_SLICE) {
        t_ok(ch__layout_cut(l, whole, t, k, &out));
        return out;
    }
    s = split_of(role == CH_SHARD_IDS ? t : w->value[r->in[in->ids].value], whole.dim[0],
                 ch__layout_parts(l));
    t_ok(role == CH_SHARD_IDS ? ch__id_split_update_ids(s, k, &out)
                              : ch__id_split_update_rows(s, t, k, &out));
    ch__id_split_free(s);
    return out;
}

static void update(worker *w, const ch_remote_part *r)
{
    int        var = widest_of(w->store, r->graph);
    ch_layout  l = w->store->layout[var];
    ch_tensor *in[MOST_VALUES], *out[CH_MAX_OUT][MOST_SHARDS], *each[CH_MAX_OUT];

    for (int k = 0; k < ch__layout_parts(l); k++) {
        ch_graph *g = NULL;

        w->store->shard = k;
        if (ch__layout_parts(l) > 1)
            t_ok(ch__shard_graph(r->graph, r->in, l, k, &g));
        for (int i = 0; i < r->n_in; i++)
            in[i] = input_of_shard(w, r, var, i, k);
        run_graph(w, g != NULL ? g : r->graph, r->n_in, in, r->n_out, each);
        for (int i = 0; i < r->n_out; i++)
            out[i][k] = each[i];
        for (int i = 0; i < r->n_in; i++)
            ch_tensor_unref(in[i]);
        ch_graph_unref(g);
    }
    w->store->shard = 0;
    for (int i = 0; i < r->n_out; i++) {
        t_ok(ch__layout_join(l, out[i], &w->value[r->out[i]]));
        for (int k = 0; k < ch__layout_parts(l); k++)
            ch_tensor_unref(out[i][k]);
    }
}

static void ask(worker *w, const ch_remote_part *r)
{
    int var = place_in(w->store, w->g->resource[r->variable[0]].name);

    w->n_reads += r->kind == CH_REMOTE_READ;
    w->n_lookups += r->kind == CH_REMOTE_ROWS;
    w->n_updates += r->kind == CH_REMOTE_UPDATE;
    if (r->kind == CH_REMOTE_UPDATE)
        update(w, r);
    else if (r->kind == CH_REMOTE_ROWS && ch__layout_axis(w->store->layout[var]) > 0)
        look_up_pieces(w, r, var);
    else if (r->kind == CH_REMOTE_ROWS)
        look_up(w, r, var);
    else {
        ch_tensor *now = NULL;

        t_ok(ch__layout_join(w->store->layout[var], w->store->value[var], &now));
        t_ok(ch_tensor_copy_of(ch_tensor_dtype(now), ch_tensor_shape(now), ch_tensor_data(now),
                               &w->value[r->out[0]]));
        ch_tensor_unref(now);
    }
}

/* Runs remote parts as soon as their inputs are available, and updates without results at the
 * end. */
static void ask_ready(worker *w, bool *done, bool last)
{
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < w->plan->n_remote_parts; i++) {
            const ch_remote_part *r = &w->plan->remote[i];
            bool                  now = r->kind != CH_REMOTE_UPDATE || r->n_out > 0 || last;

            if (!done[i] && now && is_ready(w, r)) {
                ask(w, r);
                more = done[i] = true;
            }
        }
    }
}

static void run_plan(worker *w)
{
    bool done[MOST_VALUES] = {false};

    assert_true(w->plan->n_values <= MOST_VALUES && w->plan->n_remote_parts <= MOST_VALUES);
    for (int i = 0; i < w->plan->n_local_parts; i++) {
        const ch_local_part *s = &w->plan->local_part[i];

        ask_ready(w, done, false);
        run_local_part(w, s);
    }
    ask_ready(w, done, true);
    for (int i = 0; i < w->plan->n_remote_parts; i++)
        assert_true(done[i]);
}

/* ---- whole and divided ---- */

typedef struct counts {
    int local_parts, reads, lookups, updates;
} counts;

/* The placement of variables: the number of servers, and the number of shards along an axis. */
typedef struct where {
    int places, axis, shards;
} where;

/* Variables on the same server are divided at the same rows. */
static int place_of(const store *s, int i, where at)
{
    ch_layout l = s->layout[i];
    int       size = ch__layout_parts(l) > 1 ? (int)s->shape[i].dim[ch__layout_axis(l)] : 0;

    return (size * MOST_SHARDS + ch__layout_parts(l)) * at.places + i % at.places;
}

/* Encodes and decodes the step plan, as if it was sent to a worker. */
static ch_step_plan *send(ch_step_plan *plan, const store *s, const int *place)
{
    static struct ch_plan_shard shard[MOST_VARS][MOST_SHARDS];
    static ch_plan_variable     variable[MOST_VARS];
    static uint64_t             function[MOST_VALUES];
    ch_placed_plan              sent = {plan, s->n, variable, function}, got;
    void                       *bytes = NULL;
    size_t                      n = 0;

    for (int i = 0; i < s->n; i++) {
        variable[i] = (ch_plan_variable){s->name[i],
                                         ch_tensor_dtype(s->value[i][0]),
                                         s->shape[i],
                                         ch__layout_axis(s->layout[i]),
                                         ch__layout_parts(s->layout[i]),
                                         shard[i]};
        for (int k = 0; k < ch__layout_parts(s->layout[i]); k++)
            shard[i][k] = (struct ch_plan_shard){place[i] * MOST_SHARDS + k, (uint64_t)i + 1};
    }
    for (int i = 0; i < plan->n_remote_parts; i++)
        function[i] = (uint64_t)i * MOST_SHARDS + 1;
    t_ok(ch__step_plan_encode(&sent, &bytes, &n));
    t_ok(ch__step_plan_decode(bytes, n, &got));
    assert_int_equal(got.n_variables, s->n);
    for (int i = 0; i < got.n_variables; i++) {
        assert_string_equal(got.variable[i].name, s->name[i]);
        assert_true(ch_shape_equal(got.variable[i].shape, s->shape[i]));
    }
    for (int i = 0; i < plan->n_remote_parts; i++)
        assert_int_equal(got.update[i], function[i]);
    ch__free(bytes);
    ch__step_plan_free(plan);
    return got.plan;
}

enum { N_WHERES = 8 };
static const where wheres[N_WHERES] = {{1, 0, 1}, {2, 0, 1}, {3, 0, 1}, {4, 0, 1},
                                       {1, 0, 2}, {2, 0, 3}, {1, 1, 2}, {2, 1, 3}};

/* Runs f once more whole and in parts. */
static counts both_ways(ch_function *f, ch_tuple *in, int64_t rows, where at)
{
    ch_graph     *g = ch_function_graph(f);
    int           place[MOST_VARS], axis[MOST_VARS];
    store         s;
    ch_step_plan *plan = NULL;
    ch_tuple     *out = NULL;
    worker        w = {.g = g, .store = &s, .rows = rows};
    counts        c;

    assert_true(g->n_resources <= MOST_VARS);
    fill_store(&s, g, at.axis, at.shards);
    for (int i = 0; i < g->n_resources; i++) {
        place[i] = place_of(&s, i, at);
        axis[i] = ch__layout_parts(s.layout[i]) > 1 ? ch__layout_axis(s.layout[i]) : -1;
    }
    t_ok(ch__step_plan_new(g, place, axis, &plan));
    plan = send(plan, &s, place);
    w.plan = plan;
    for (int i = 0; i < plan->n_inputs; i++)
        w.value[i] = ch_tensor_ref(ch_value_at(ch_tuple_at(in, i), 0));
    run_plan(&w);
    t_ok(ch_strategy_run_with(NULL, f, in, &(ch_run_options){.has_step_number = true}, &out));
    for (int i = 0; i < plan->n_outputs; i++)
        same_bits("a result", ch_value_at(ch_tuple_at(out, i), 0), w.value[plan->output[i]]);
    for (int i = 0; i < g->n_resources; i++) {
        ch_tensor *t = NULL, *now = NULL;

        t_ok(ch_var_get(g->resource[i].key, &t));
        t_ok(ch__layout_join(s.layout[i], s.value[i], &now));
        same_bits(s.name[i], t, now);
        ch_tensor_unref(now);
        ch_tensor_unref(t);
    }
    c = (counts){plan->n_local_parts, w.n_reads, w.n_lookups, w.n_updates};
    for (int i = 0; i < plan->n_values; i++)
        ch_tensor_unref(w.value[i]);
    ch__step_plan_free(plan);
    empty_store(&s);
    ch_tuple_unref(out);
    return c;
}

/* ---- steps ---- */

/* Records and runs the step once, so that all variables exist; then compares both forms,
 * twice. */
static counts check_step(ch_step_fn step, job *j, ch_tuple *in, int64_t rows, where at)
{
    ch_function *f = NULL;
    counts       c;

    t_ok(ch_function_new("step", step, j, &f));
    t_ok(ch_strategy_run(NULL, f, in, NULL));
    c = both_ways(f, in, rows, at);
    c = both_ways(f, in, rows, at);
    ch_function_unref(f);
    return c;
}

static void step_plan_reads_and_updates_variables_without_an_optimizer(void **state)
{
    (void)state;
    for (int n = 0; n < N_WHERES; n++) {
        ch_tuple *in = rows_of(8);
        job       j;
        counts    c;

        make_job(&j);
        c = check_step(by_hand, &j, in, 8, wheres[n]);
        assert_int_equal(c.local_parts, 1);
        assert_int_equal(c.reads, 2); /* n is written but not read */
        assert_int_equal(c.updates, 3);
        drop_job(&j);
        ch_tuple_unref(in);
    }
}

static void step_plan_gives_the_results_of_a_local_run_with_optimizers(void **state)
{
    (void)state;
    for (int k = 0; k < 6; k++)
        for (int n = 0; n < N_WHERES; n++) {
            ch_optimizer_options opt = {.accumulate = k == 3 ? 2 : 0,
                                        .clip_global_norm = k == 4 ? 0.5 : 0,
                                        .average = k == 5 ? 0.9 : 0};
            ch_tuple            *in = rows_of(8);
            job                  j;

            make_job(&j);
            t_ok(k == 0 ? ch_optimizer_sgd(0.1, NULL, &opt, &j.optimizer)
                        : ch_optimizer_adam(0.1, NULL, &opt, &j.optimizer));
            (void)check_step(by_optimizer, &j, in, 8, wheres[n]);
            drop_job(&j);
            ch_tuple_unref(in);
        }
}

/* ---- rows ---- */

static void step_plan_looks_rows_up_on_servers(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int n = 0; n < N_WHERES; n++) {
            ch_tuple *in =
                tuple_of(2, (ch_tensor *[]){ids_of(30, 20), t_noise(ch_shape_of(30, 4), 2)});
            job    j;
            counts c;

            make_job(&j);
            t_ok(k == 0   ? ch_optimizer_sgd(0.1, NULL, NULL, &j.optimizer)
                 : k == 1 ? ch_optimizer_adagrad(0.1, NULL, NULL, &j.optimizer)
                          : ch_optimizer_adam(0.1, NULL, NULL, &j.optimizer));
            c = check_step(look_rows_up, &j, in, 30, wheres[n]);
            assert_int_equal(c.lookups, 1);
            assert_int_equal(c.local_parts, 1);
            drop_job(&j);
            ch_tuple_unref(in);
        }
}

static void step_plan_has_two_local_parts_when_a_lookup_needs_a_lookup(void **state)
{
    (void)state;
    for (int n = 0; n < N_WHERES; n++) {
        ch_tuple *in = tuple_of(1, (ch_tensor *[]){ids_of(9, 20)});
        job       j;
        counts    c;

        make_job(&j);
        c = check_step(look_up_twice, &j, in, 9, wheres[n]);
        assert_int_equal(c.lookups, 2);
        assert_int_equal(c.reads, 0);
        assert_int_equal(c.local_parts, 2);
        drop_job(&j);
        ch_tuple_unref(in);
    }
}

/* ---- assigns ---- */

static void step_plan_gives_the_results_of_a_local_run_with_assigns(void **state)
{
    (void)state;
    for (int n = 0; n < N_WHERES; n++) {
        ch_tuple *in = tuple_of(3, (ch_tensor *[]){t_noise(ch_shape_of(4, 3), 9), ids_of(4, 20),
                                                   t_noise(ch_shape_of(4, 3), 8)});
        job       j;

        make_job(&j);
        (void)check_step(assign_all_ways, &j, in, 4, wheres[n]);
        drop_job(&j);
        ch_tuple_unref(in);
    }
}

static void step_plan_keeps_an_axis_whole_that_an_op_needs_whole(void **state)
{
    (void)state;
    for (int n = 0; n < N_WHERES; n++) {
        ch_tuple *in = rows_of(8);
        job       j;
        counts    c;

        make_job(&j);
        c = check_step(assign_softmax, &j, in, 8, wheres[n]);
        assert_int_equal(c.reads, wheres[n].axis == 1); /* else servers have whole rows */
        drop_job(&j);
        ch_tuple_unref(in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_plan_reads_and_updates_variables_without_an_optimizer),
        cmocka_unit_test(step_plan_gives_the_results_of_a_local_run_with_optimizers),
        cmocka_unit_test(step_plan_looks_rows_up_on_servers),
        cmocka_unit_test(step_plan_has_two_local_parts_when_a_lookup_needs_a_lookup),
        cmocka_unit_test(step_plan_gives_the_results_of_a_local_run_with_assigns),
        cmocka_unit_test(step_plan_keeps_an_axis_whole_that_an_op_needs_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
