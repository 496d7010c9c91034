/* test/train/test_parts.c -- the variables of layers, optimizers and metrics by name, and their
 * creation with values that wait for them.
 *
 * A small network (a table with sparse gradients, and dense layers) is trained under each
 * strategy. The test saves its variables in memory by their names, creates the network anew
 * while these values wait, and compares bits: of all variables, and of further steps of both.
 * ch_init_tensor and ch__init_part are wrapped by the linker and count the initial values that
 * are computed, on servers too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "train/parts.h"

#include "../strategy/source.h"
#include "base/mem.h"
#include "kernel/init.h"
#include "strategy/waiting.h"
#include "tensor/print.h"

enum { IDS = 11, WIDTH = 6, ROWS = 4, MOST = 128 };

/* ---- counting initial values ---- */

static atomic_int n_computed;

ch_status __real_ch_init_tensor(const ch_init *init, const char *name, ch_dtype dtype,
                                ch_shape shape, ch_tensor **out);
ch_status __wrap_ch_init_tensor(const ch_init *init, const char *name, ch_dtype dtype,
                                ch_shape shape, ch_tensor **out);
void      __real_ch__init_part(const ch_init *init, const char *name, ch_shape whole,
                               const int64_t *begin, ch_tensor *part);
void      __wrap_ch__init_part(const ch_init *init, const char *name, ch_shape whole,
                               const int64_t *begin, ch_tensor *part);

ch_status __wrap_ch_init_tensor(const ch_init *init, const char *name, ch_dtype dtype,
                                ch_shape shape, ch_tensor **out)
{
    n_computed++;
    return __real_ch_init_tensor(init, name, dtype, shape, out);
}

void __wrap_ch__init_part(const ch_init *init, const char *name, ch_shape whole,
                          const int64_t *begin, ch_tensor *part)
{
    n_computed += init->kind != CH_INIT_ZEROS;
    __real_ch__init_part(init, name, whole, begin, part);
}

/* ---- the network ---- */

static const struct {
    const char          *name;
    ch_dtype             dtype;
    bool                 is_adagrad; /* row-wise; otherwise Adam */
    ch_optimizer_options opt;
} kinds[] = {
    {"adam", CH_F32, false, {.accumulate = 2, .average = 0.9, .nonfinite = CH_NONFINITE_SKIP}},
    {"bf16", CH_BF16, false, {.accumulate = 2, .average = 0.9}},
    {"f16", CH_F16, false, {.average = 0.5, .dynamic_loss_scale = true, .loss_scale = 16}},
    {"adagrad by rows", CH_F32, true, {.accumulate = 2}},
};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

typedef struct network {
    ch_strategy  *st;
    ch_layer     *layer;
    ch_optimizer *opt;
    ch_function  *forward, *train;
    int           n_lists; /* 2: a second call minimizes the last variables only */
} network;

static void record_forward(ch_step *s, void *arg)
{
    const network *n = arg;

    ch_step_out(s, "y", ch_layer_call(n->layer, s, ch_step_in(s, 0), false));
}

static void record_train(ch_step *s, void *arg)
{
    const network *n = arg;
    ch_node       *y = ch_layer_call(n->layer, s, ch_step_in(s, 0), true), *loss;
    ch_var *const *var;
    int            n_vars = ch_layer_trainable(n->layer, &var);

    loss = ch_mean_all(ch_square(ch_sub(ch_cast(y, CH_F32), ch_step_in(s, 1))));
    ch_optimizer_minimize(n->opt, s, loss, n_vars, var);
    if (n->n_lists > 1) {
        y = ch_layer_call(n->layer, s, ch_step_in(s, 0), true);
        loss = ch_mean_all(ch_square(ch_cast(y, CH_F32)));
        ch_optimizer_minimize(n->opt, s, loss, 2, var + n_vars - 2);
    }
}

static network new_network(ch_strategy *st, int kind, uint64_t seed)
{
    network   n = {.st = st, .n_lists = 1};
    ch_layer *part[] = {ch_layer_embedding(IDS, WIDTH, NULL), ch_layer_flatten(),
                        ch_layer_named("hidden", ch_layer_dense(5, NULL)),
                        ch_layer_batch_norm(NULL), ch_layer_dense(3, NULL)};

    n.layer = ch_layer_sequential("net", 5, part);
    assert_non_null(n.layer);
    ch_layer_set_dtype(n.layer, kinds[kind].dtype);
    ch_layer_set_seed(n.layer, seed);
    t_ok(kinds[kind].is_adagrad
             ? ch_optimizer_adagrad(0.1, &(ch_optimizer_adagrad_options){.row_wise = true},
                                    &kinds[kind].opt, &n.opt)
             : ch_optimizer_adam(0.01, NULL, &kinds[kind].opt, &n.opt));
    return n;
}

/* The functions have the address of the network, which must not move any more. */
static void make_functions(network *n)
{
    n->forward = t_function(record_forward, n);
    n->train = t_function(record_train, n);
}

static void free_network(network *n)
{
    ch_function_unref(n->forward);
    ch_function_unref(n->train);
    ch_optimizer_unref(n->opt);
    ch_layer_unref(n->layer);
}

static ch_status run(network *n, bool trains, int step)
{
    int32_t    ids[ROWS][3];
    ch_tensor *in[2] = {NULL, t_noise(ch_shape_of(ROWS, 3), 7 + (unsigned)step)};
    ch_tuple  *batch;
    ch_status  rc;

    for (int i = 0; i < ROWS * 3; i++)
        ids[i / 3][i % 3] = (i * 5 + step * 3) % 7; /* some rows do not occur */
    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(ROWS, 3), ids, &in[0]));
    batch = t_tuple(2, in);
    rc = ch_strategy_run(n->st, trains ? n->train : n->forward, batch, NULL);
    ch_tuple_unref(batch);
    return rc;
}

/* ---- saved values ---- */

/* All variables of a network by name, with their values. */
typedef struct saved {
    network *of;
    int      n;
    struct {
        char     key[160]; /* "net/hidden/kernel", "optimizer/net/hidden/kernel/m" */
        ch_var  *var;      /* borrowed */
        t_source source;
    } entry[MOST];
    const char *object; /* during a visit: path of the object */
} saved;

static const char *key_of_var(const saved *s, const ch_var *v)
{
    for (int i = 0; i < s->n; i++)
        if (s->entry[i].var == v)
            return s->entry[i].key;
    return NULL;
}

static bool save_part(void *arg, ch_var *of, const char *name, ch_var *v)
{
    saved      *s = arg;
    const char *slot_of = of != NULL ? key_of_var(s, of) : NULL;
    ch_tensor  *t = NULL;

    assert_true(s->n < MOST);
    assert_true(of == NULL || slot_of != NULL);
    t_ok(ch__var_get(v, &t));
    s->entry[s->n].var = v;
    s->entry[s->n].source = (t_source){.value = t};
    snprintf(s->entry[s->n].key, sizeof(s->entry[0].key), "%s/%s%s%s", s->object,
             of != NULL ? slot_of : "", of != NULL ? "/" : "", name);
    for (int i = 0; i < s->n; i++)
        assert_string_not_equal(s->entry[i].key, s->entry[s->n].key);
    s->n++;
    return true;
}

static void save_layer(saved *s, const ch_layer *l, const char *path)
{
    ch_layer *const *child = NULL;
    char             below[128];

    s->object = path;
    ch__layer_visit(l, save_part, s);
    for (int i = 0, n = ch_layer_children(l, &child); i < n; i++) {
        snprintf(below, sizeof(below), "%s/%s", path, ch_layer_name(child[i]));
        save_layer(s, child[i], below);
    }
}

static void save(network *n, saved *s)
{
    *s = (saved){.of = n};
    save_layer(s, n->layer, "net");
    s->object = "optimizer";
    ch__optimizer_visit(n->opt, save_part, s);
}

static void drop_saved(saved *s)
{
    for (int i = 0; i < s->n; i++)
        ch_tensor_unref(s->entry[i].source.value);
}

static int index_of(const saved *s, const char *key)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->entry[i].key, key) == 0)
            return i;
    return -1;
}

/* Checks that both have the same variables with the same bits. */
static void check_same(const saved *is, const saved *want, const char *what)
{
    for (int i = 0; i < want->n; i++) {
        int k = index_of(is, want->entry[i].key);

        if (k < 0)
            fail_msg("%s: there is no %s", what, want->entry[i].key);
        if (memcmp(is->entry[k].source.value->data, want->entry[i].source.value->data,
                   ch_tensor_bytes(want->entry[i].source.value)) != 0)
            fail_msg("%s: the bits of %s differ", what, want->entry[i].key);
    }
    assert_int_equal(is->n, want->n);
}

/* ---- a restore of saved values ---- */

typedef struct restore {
    saved   *values;
    network *to; /* new network whose variables get the values */
    int      n_created, n_freed;
} restore;

/* Writes the path of a layer; "" if it is not below l. */
static bool find_path(const ch_layer *l, const void *object, const char *path, char out[128])
{
    ch_layer *const *child = NULL;
    bool             is_found = l == object;
    char             below[128];

    if (is_found)
        snprintf(out, 128, "%s", path);
    for (int i = 0, n = ch_layer_children(l, &child); i < n && !is_found; i++) {
        snprintf(below, sizeof(below), "%s/%s", path, ch_layer_name(child[i]));
        is_found = find_path(child[i], object, below, out);
    }
    return is_found;
}

typedef struct searched {
    const ch_var *var;
    const char   *path; /* of the layer that is visited */
    char          key[160];
} searched;

static bool compare_part(void *arg, ch_var *of, const char *name, ch_var *v)
{
    searched *w = arg;

    (void)of;
    if (v == w->var)
        snprintf(w->key, sizeof(w->key), "%s/%s", w->path, name);
    return v != w->var;
}

static void search_layer(searched *w, const ch_layer *l, const char *path)
{
    ch_layer *const *child = NULL;
    char             below[128];

    w->path = path;
    ch__layer_visit(l, compare_part, w);
    for (int i = 0, n = ch_layer_children(l, &child); i < n && w->key[0] == '\0'; i++) {
        snprintf(below, sizeof(below), "%s/%s", path, ch_layer_name(child[i]));
        search_layer(w, child[i], below);
    }
}

static bool restore_find(void *arg, const void *object, ch_var *of, const char *name,
                         ch_value_source *out)
{
    restore *r = arg;
    searched w = {.var = of};
    char     path[128] = "", key[400];
    int      i;

    if (object == r->to->opt)
        snprintf(path, sizeof(path), "optimizer");
    else if (!find_path(r->to->layer, object, "net", path))
        return false;
    if (of != NULL)
        search_layer(&w, r->to->layer, "net");
    snprintf(key, sizeof(key), "%s/%s%s%s", path, w.key, of != NULL ? "/" : "", name);
    i = index_of(r->values, key);
    if (i < 0)
        return false;
    *out = t_source_of(&r->values->entry[i].source);
    return true;
}

static void restore_created(void *arg, const void *object, ch_var *of, const char *name,
                            ch_var *v)
{
    (void)object;
    (void)of;
    (void)name;
    (void)v;
    ((restore *)arg)->n_created++;
}

static void restore_free(void *arg)
{
    ((restore *)arg)->n_freed++;
}

static const ch_waiting_ops restore_ops = {restore_find, restore_created, restore_free};

/* Creates all variables of a network without a step. */
static ch_status build_all(network *n)
{
    ch_var *const *var = NULL;
    int            n_vars;
    ch_status      rc = run(n, false, 0);

    if (rc != CH_OK)
        return rc;
    n_vars = ch_layer_trainable(n->layer, &var);
    rc = ch_optimizer_build(n->opt, n_vars, var);
    if (rc == CH_OK && n->n_lists > 1)
        rc = ch_optimizer_build(n->opt, 2, var + n_vars - 2);
    return rc;
}

/* ---- tests ---- */

static void parts_that_wait_are_created_with_their_bits(int strategy, int kind, int n_lists)
{
    ch_strategy        *st = t_strategy(strategy);
    network             old = new_network(st, kind, 1), new;
    saved               first, second;
    restore             r = {.values = &first, .to = &new};
    ch_waiting_restore *waiting;
    char                what[128];

    snprintf(what, sizeof(what), "%s, %s", t_strategy_name[strategy], kinds[kind].name);
    old.n_lists = n_lists;
    make_functions(&old);
    for (int i = 0; i < 3; i++)
        t_ok(run(&old, true, i));
    save(&old, &first);

    new = new_network(st, kind, 2);
    new.n_lists = n_lists;
    make_functions(&new);
    t_ok(ch__waiting_add(&restore_ops, &r, &waiting));
    n_computed = 0;
    t_ok(build_all(&new));
    assert_int_equal(n_computed, 0);
    assert_int_equal(r.n_created, first.n);
    ch__waiting_remove(waiting);
    assert_int_equal(r.n_freed, 1);
    save(&new, &second);
    check_same(&second, &first, what);
    drop_saved(&second);
    drop_saved(&first);

    for (int i = 3; i < 6; i++) {
        t_ok(run(&old, true, i));
        t_ok(run(&new, true, i));
    }
    save(&old, &first);
    save(&new, &second);
    check_same(&second, &first, what);
    drop_saved(&second);
    drop_saved(&first);
    free_network(&new);
    free_network(&old);
    ch_strategy_unref(st);
}

static void layers_and_optimizers_are_created_with_waiting_values(void **state)
{
    (void)state;
    for (int i = 0; i <= T_SHARDS; i++)
        for (int k = 0; k < N_KINDS; k++)
            parts_that_wait_are_created_with_their_bits(i, k, 1);
}

static void sums_of_two_lists_are_created_with_waiting_values(void **state)
{
    (void)state;
    parts_that_wait_are_created_with_their_bits(T_DEFAULT, 0, 2);
    parts_that_wait_are_created_with_their_bits(T_MIRRORED, 1, 2);
}

/* Counts a visit in *arg, and ends it after the second variable. */
static bool count_two(void *arg, ch_var *of, const char *name, ch_var *v)
{
    (void)of;
    assert_non_null(name);
    assert_non_null(v);
    return ++*(int *)arg < 2;
}

static void optimizer_visits_all_its_variables_once_by_unique_names(void **state)
{
    static const char *const want[] = {"optimizer/iterations",
                                       "optimizer/rate",
                                       "optimizer/skipped",
                                       "optimizer/net/embedding/table/m",
                                       "optimizer/net/hidden/bias/average",
                                       "optimizer/net/embedding/table/pending",
                                       "optimizer/net/embedding/table/sum",
                                       "optimizer/net/embedding/table/touched",
                                       "optimizer/net/dense/kernel/sum",
                                       "optimizer/net/dense/kernel/pending_1",
                                       "optimizer/net/dense/kernel/sum_1",
                                       "optimizer/net/dense/bias/sum_1"};
    network                  n = new_network(NULL, 0, 1);
    saved                    s;
    ch_var *const           *all = NULL;
    int                      n_layer = 0, n_all, n_seen = 0;

    (void)state;
    n.n_lists = 2;
    make_functions(&n);
    t_ok(build_all(&n));
    save(&n, &s);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
        if (index_of(&s, want[i]) < 0)
            fail_msg("there is no %s", want[i]);
    n_layer = ch_layer_vars(n.layer, &all);
    for (int i = 0; i < n_layer; i++)
        assert_non_null(key_of_var(&s, all[i]));
    n_all = ch_optimizer_vars(n.opt, &all);
    for (int i = 0; i < n_all; i++)
        assert_non_null(key_of_var(&s, all[i]));
    assert_int_equal(s.n, n_layer + n_all);
    for (int i = 0; i < s.n; i++)
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(s.entry[i].var, s.entry[k].var);
    ch__optimizer_visit(n.opt, count_two, &n_seen);
    assert_int_equal(n_seen, 2);
    drop_saved(&s);
    free_network(&n);
}

/* A rate with a schedule is not a variable, and a layer without weights has no parts. */
static void parts_that_do_not_exist_are_not_visited(void **state)
{
    ch_schedule   schedule = ch_schedule_exponential(0.1, 10, 0.5, false);
    ch_optimizer *o = NULL;
    ch_layer     *l = ch_layer_flatten();
    ch_var       *v = t_var(NULL, "w", t_noise(ch_shape_of(3), 1));
    int           n = 0;

    (void)state;
    t_ok(ch_optimizer_sgd(0.1, NULL, &(ch_optimizer_options){.schedule = &schedule}, &o));
    ch__optimizer_visit(o, count_two, &n);
    assert_int_equal(n, 0);
    t_ok(ch_optimizer_build(o, 1, &v));
    ch__optimizer_visit(o, count_two, &n);
    assert_int_equal(n, 1); /* iterations */
    ch__layer_visit(l, count_two, &n);
    assert_int_equal(n, 1);
    ch_var_unref(v);
    ch_layer_unref(l);
    ch_optimizer_unref(o);
}

static bool note_name(void *arg, ch_var *of, const char *name, ch_var *v)
{
    ch_text *names = arg;

    assert_null(of);
    assert_non_null(v);
    ch__text_add(names, "%s ", name);
    return true;
}

static void metric_visits_its_state_and_its_filled_rows(void **state)
{
    const ch_metric_spec spec[] = {ch_metric_mean(), ch_metric_auc(0)};

    (void)state;
    for (int i = 0; i < 2; i++) {
        ch_metric *m = NULL;
        char       text[64];
        ch_text    names = ch__text(text, sizeof(text));

        t_ok(ch_metric_new(NULL, spec[i], &m));
        ch__metric_visit(m, note_name, &names);
        assert_string_equal(text, ch_metric_vars(m, NULL) == 2 ? "state filled " : "state ");
        ch_metric_unref(m);
    }
}

/* A value of another shape fails the step that creates the variable. Without the restore the
 * step can be recorded again. */
static void step_fails_when_a_waiting_value_has_another_shape(void **state)
{
    network             old = new_network(NULL, 0, 1), new = new_network(NULL, 0, 2);
    saved               s;
    restore             r = {.values = &s, .to = &new};
    ch_waiting_restore *waiting;
    ch_tensor          *right;
    int                 i;

    (void)state;
    make_functions(&old);
    make_functions(&new);
    t_ok(build_all(&old));
    save(&old, &s);
    i = index_of(&s, "net/dense/bias");
    assert_true(i >= 0);
    right = s.entry[i].source.value;
    s.entry[i].source.value = t_noise(ch_shape_of(4), 1);
    t_ok(ch__waiting_add(&restore_ops, &r, &waiting));
    t_refused(run(&new, true, 0), CH_INVALID_ARGUMENT,
              "tensor \"saved\" of run/ckpt-7 is f32(4,)", "want f32(3,)");
    t_refused(run(&new, true, 0), CH_INVALID_ARGUMENT, "net/dense/bias", "f32(4,)");
    ch_tensor_unref(s.entry[i].source.value);
    s.entry[i].source.value = right;
    t_ok(build_all(&new)); /* the value is right now */
    ch__waiting_remove(waiting);
    t_ok(run(&new, true, 0));
    drop_saved(&s);
    free_network(&old);
    free_network(&new);
}

/* If memory is exhausted at any allocation, the call fails and can be repeated, until all
 * variables have their values. */
static void waiting_values_survive_exhausted_memory(void **state)
{
    network old = new_network(NULL, 1, 1);
    saved   first, second;
    int64_t live;

    (void)state;
    make_functions(&old);
    for (int i = 0; i < 3; i++)
        t_ok(run(&old, true, i));
    save(&old, &first);
    live = ch__mem_live();
    for (int pass = 0; pass < 2; pass++) { /* the second pass: what stays, stays once */
        network new = new_network(NULL, 1, 2);
        restore             r = {.values = &first, .to = &new};
        ch_waiting_restore *waiting;
        ch_status           rc = CH_RESOURCE_EXHAUSTED;

        make_functions(&new);
        t_ok(ch__waiting_add(&restore_ops, &r, &waiting));
        t_ok(run(&old, false, 0));
        for (int n = 1; rc == CH_RESOURCE_EXHAUSTED; n++) {
            ch_var *const *var = NULL;
            ch_tensor     *ids = NULL;
            ch_tuple      *batch;

            t_ok(ch_tensor_new(CH_I32, ch_shape_of(ROWS, 3), &ids));
            batch = t_tuple(1, &ids);
            ch__mem_fail_at(n);
            rc = ch_strategy_run(NULL, new.forward, batch, NULL);
            if (rc == CH_OK)
                rc = ch_layer_trainable(new.layer, &var) < 0 ? CH_RESOURCE_EXHAUSTED : CH_OK;
            if (rc == CH_OK)
                rc = ch_optimizer_build(new.opt, ch_layer_trainable(new.layer, &var), var);
            ch__mem_fail_at(0);
            ch_tuple_unref(batch);
        }
        t_ok(rc);
        ch__waiting_remove(waiting);
        assert_int_equal(r.n_freed, 1);
        save(&new, &second);
        check_same(&second, &first, "after failures");
        drop_saved(&second);
        free_network(&new);
        if (pass == 1)
            assert_int_equal(ch__mem_live(), live);
        live = ch__mem_live();
    }
    drop_saved(&first);
    free_network(&old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_and_optimizers_are_created_with_waiting_values),
        cmocka_unit_test(sums_of_two_lists_are_created_with_waiting_values),
        cmocka_unit_test(optimizer_visits_all_its_variables_once_by_unique_names),
        cmocka_unit_test(parts_that_do_not_exist_are_not_visited),
        cmocka_unit_test(metric_visits_its_state_and_its_filled_rows),
        cmocka_unit_test(step_fails_when_a_waiting_value_has_another_shape),
        cmocka_unit_test(waiting_values_survive_exhausted_memory),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
