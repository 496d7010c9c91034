/* test/fit/test_resume.c -- trainings that are killed at a save point and go on in another
 * process.
 *
 * A `memory` is a checkpoint in memory, written without the checkpoints of the library: the
 * values of all variables, positions of iterators, and the state of the training. A `program`
 * runs ch_fit once; a keeper, a callback that handles save points, saves it and ends it there.
 * The next program has new objects and loads the memory. The last program must leave the
 * weights, history and log files of a program that was never killed, to the byte.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "resume_help.h"

#include "base/mem.h"
#include "fit/callback.h"
#include "fit/resume.h"
#include "train/model.h"
#include "training_help.h"

enum { MOST_PARTS = 16, MOST_VALUES = 32 };

/* ---- a checkpoint in memory ---- */

typedef struct part {
    char       name[64];
    int        n;
    ch_tensor *value[MOST_VALUES];
    void      *bytes; /* position of an iterator */
    size_t     size;
    int64_t    steps; /* of a model */
} part;

typedef struct memory {
    int       n;
    part      part[MOST_PARTS];
    ch_tuple *state;    /* NULL: nothing was saved */
    bool      is_built; /* a step has run, so the optimizer has its variables */
} memory;

static void forget(memory *m)
{
    for (int i = 0; i < m->n; i++) {
        for (int k = 0; k < m->part[i].n; k++)
            ch_tensor_unref(m->part[i].value[k]);
        ch_bytes_free(m->part[i].bytes);
    }
    ch_tuple_unref(m->state);
    *m = (memory){0};
}

static int vars_in(const ch_training_part *p, ch_var *const **v)
{
    return p->model != NULL       ? ch_model_vars(p->model, v)
           : p->optimizer != NULL ? ch_optimizer_vars(p->optimizer, v)
           : p->metric != NULL    ? ch_metric_vars(p->metric, v)
                                  : 0;
}

static ch_status save_part(void *arg, const ch_training_part *p)
{
    memory        *m = arg;
    part          *x = &m->part[m->n++];
    ch_var *const *v = NULL;

    assert_true(m->n <= MOST_PARTS);
    snprintf(x->name, sizeof(x->name), "%s", p->name);
    x->n = vars_in(p, &v);
    assert_true(x->n <= MOST_VALUES);
    for (int i = 0; i < x->n; i++)
        t_ok(ch_var_get(v[i], &x->value[i]));
    if (p->model != NULL)
        x->steps = ch__model_steps(p->model);
    if (p->iterator != NULL)
        t_ok(ch_iterator_save(p->iterator, &x->bytes, &x->size));
    return CH_OK;
}

static ch_status load_part(void *arg, const ch_training_part *p)
{
    memory        *m = arg;
    const part    *x = NULL;
    ch_var *const *v = NULL;

    for (int i = 0; i < m->n; i++)
        if (strcmp(m->part[i].name, p->name) == 0)
            x = &m->part[i];
    assert_non_null(x);
    assert_int_equal(vars_in(p, &v), x->n);
    for (int i = 0; i < x->n; i++)
        t_ok(ch_var_set(v[i], x->value[i]));
    if (p->model != NULL)
        ch__model_set_steps(p->model, x->steps);
    if (p->iterator != NULL)
        t_ok(ch_iterator_restore(p->iterator, x->bytes, x->size));
    return CH_OK;
}

/* ---- a callback that saves ---- */

typedef struct keeper {
    memory *m;
    int     kill_at;  /* number of the save point at which the program is killed; -1: none */
    int     pause_at; /* step after which the training is paused; 0: none */
    int     seen;     /* save points so far */
    int     fail_at;  /* allocation of the load that fails; 0: none */
    bool    has_paused;
    bool    keeps; /* a kill leaves the memory as it is */
} keeper;

static void save(keeper *k, ch_training *t)
{
    forget(k->m);
    t_ok(ch__training_drain(t));
    t_ok(ch__training_visit(t, save_part, k->m));
    t_ok(ch__training_save(t, &k->m->state));
    k->m->is_built = ch_training_step(t) > 0;
}

static ch_status load(keeper *k, ch_training *t)
{
    ch_status rc;

    t_ok(ch__training_visit(t, load_part, k->m));
    ch__mem_fail_at(k->fail_at);
    rc = ch__training_load(t, k->m->state);
    ch__mem_fail_at(0);
    return rc;
}

static ch_status keep(void *self, ch_training *t, ch_event event)
{
    keeper *k = self;

    if (event == CH_ON_STEP) {
        if (ch_training_step(t) == k->pause_at)
            ch__training_pause(t, "paused");
        return CH_OK;
    }
    if ((int)event == CH_SAVE_POINT_BEGIN)
        return k->m->state != NULL ? load(k, t) : CH_OK;
    if (t->pauses && !k->has_paused) {
        k->has_paused = true;
        save(k, t);
    }
    if (k->seen++ != k->kill_at)
        return CH_OK;
    if (!k->keeps)
        save(k, t);
    return CH_CANCELLED;
}

static void drop_nothing(void *self)
{
    (void)self;
}

static const ch_callback_ops keeper_ops = {.name = "keeper",
                                           .events = CH_SAVE_POINT_BEGIN | CH_SAVE_POINT_STEP |
                                                     CH_SAVE_POINT_EPOCH | CH_SAVE_POINT_END |
                                                     CH_ON_STEP,
                                           .on = keep,
                                           .drop = drop_nothing};

/* ---- a program ---- */

enum { CALLBACKS = 5 };

/* The callbacks of a program: some orders and numbers of them. */
typedef enum usage { USUAL, SWAPPED, FEWER, MORE } usage;

static int new_callbacks(const job *j, keeper *k, usage how, ch_callback **c)
{
    int n = 0;

    t_ok(ch__callback_make(&keeper_ops, k, &c[n++]));
    t_ok(ch_callback_csv_log(t_path("log.csv"),
                             &(ch_callback_log_file_options){.every_steps = 2}, &c[n++]));
    t_ok(ch_callback_reduce_on_plateau(
        &(ch_callback_plateau_options){
            .monitor = j->is_custom ? "mine" : "loss", .patience = 1, .min_delta = CH_OFF},
        &c[n++]));
    if (how == SWAPPED) {
        ch_callback *csv = c[1];

        c[1] = c[2];
        c[2] = csv;
    }
    if (j->patience > 0 && how != FEWER)
        t_ok(ch_callback_early_stopping(
            &(ch_callback_early_stopping_options){
                .monitor = "val_loss", .patience = j->patience, .restore_best = true},
            &c[n++]));
    if (how == MORE)
        t_ok(ch_callback_json_log(t_path("more.json"), NULL, &c[n++]));
    return n;
}

static void run_with(const job *j, keeper *k, usage how, outcome *o)
{
    ch_strategy *st = strategy_of(j->strategy);
    arrays       a = new_arrays(ROWS), test = new_arrays(2 * BATCH + 3);
    ch_model    *m = new_network(j, st);
    ch_callback *c[CALLBACKS] = {0};
    ch_history  *h = NULL;
    int          n = new_callbacks(j, k, how, c);

    if (k->m->is_built)
        warm_up(j, m);
    o->rc = fit(j, m, &a, &test, n, c, &h);
    if (o->rc == CH_OK)
        describe(j, m, h, o);
    ch_history_unref(h);
    for (int i = 0; i < n; i++)
        ch_callback_unref(c[i]);
    ch_model_unref(m);
    drop_arrays(&a);
    drop_arrays(&test);
    ch_strategy_unref(st);
}

static void run(const job *j, keeper *k, outcome *o)
{
    k->seen = 0;
    k->has_paused = false;
    run_with(j, k, USUAL, o);
}

static outcome want, got;

/* Runs the job without a kill. Returns the number of its save points. */
static int run_whole(const job *j)
{
    memory m = {0};
    keeper k = {.m = &m, .kill_at = -1};

    run(j, &k, &want);
    t_ok(want.rc);
    return k.seen;
}

/* Kills the job at every `stride`-th save point, and lets it go on. */
static void check(const job *j, int stride)
{
    int points = run_whole(j);

    assert_true(points > 10);
    for (int at = points - 1; at >= 0; at -= stride) {
        memory m = {0};
        keeper k = {.m = &m, .kill_at = at};

        run(j, &k, &got);
        assert_int_equal(got.rc, CH_CANCELLED);
        k.kill_at = -1;
        run(j, &k, &got);
        t_ok(got.rc);
        if (strcmp(got.text, want.text) != 0)
            fail_msg("killed at save point %d of %d:\n%s\nwant:\n%s", at, points, got.text,
                     want.text);
        forget(&m);
    }
}

/* ---- tests ---- */

static void training_goes_on_at_any_save_point_with_the_same_bits(void **state)
{
    check(&(job){.strategy = DEFAULT, .epochs = 3, .is_validated = true, .patience = 1}, 1);
    (void)state;
}

static void training_on_two_replicas_goes_on_with_the_same_bits(void **state)
{
    check(&(job){.strategy = MIRRORED_2,
                 .epochs = 2,
                 .is_validated = true,
                 .accumulate = 2,
                 .patience = 2},
          3);
    (void)state;
}

static void training_on_a_dataset_goes_on_with_the_same_bits(void **state)
{
    check(&(job){.strategy = ONE_DEVICE, .epochs = 3, .is_dataset = true}, 3);
    check(&(job){.strategy = DEFAULT,
                 .epochs = 4,
                 .is_dataset = true,
                 .is_validated = true,
                 .steps_per_epoch = 4},
          5);
    (void)state;
}

static void training_with_a_custom_step_goes_on_with_the_same_bits(void **state)
{
    check(&(job){.strategy = MIRRORED_2, .epochs = 2, .is_custom = true}, 3);
    (void)state;
}

static void train_and_evaluate_goes_on_with_the_same_bits(void **state)
{
    check(&(job){.strategy = DEFAULT, .is_evaluating = true}, 2);
    check(&(job){.strategy = DEFAULT, .is_evaluating = true, .is_dataset = true}, 7);
    (void)state;
}

/* The training is killed again and again, a few save points after it was loaded. */
static void training_survives_many_kills(void **state)
{
    job    j = {.strategy = DEFAULT, .epochs = 3, .is_validated = true, .patience = 2};
    memory m = {0};
    keeper k = {.m = &m, .kill_at = 3};
    int    kills = 0;

    run_whole(&j);
    do {
        run(&j, &k, &got);
        kills++;
        assert_true(kills < 60);
    } while (got.rc == CH_CANCELLED);
    t_ok(got.rc);
    assert_true(kills > 5);
    assert_string_equal(got.text, want.text);
    forget(&m);
    (void)state;
}

/* A pause, such as Ctrl-C, ends the epoch early; the next program goes on in its middle. */
static void training_that_was_paused_goes_on_in_mid_epoch(void **state)
{
    job j = {.strategy = DEFAULT, .epochs = 2, .is_validated = true};

    run_whole(&j);
    for (int step = 1; step <= 12; step += 5) {
        memory m = {0};
        keeper k = {.m = &m, .kill_at = -1, .pause_at = step};

        run(&j, &k, &got);
        t_ok(got.rc);
        assert_non_null(strstr(got.text, "stopped: paused"));
        k.pause_at = 0;
        run(&j, &k, &got);
        t_ok(got.rc);
        assert_string_equal(got.text, want.text);
        forget(&m);
    }
    (void)state;
}

static void training_that_is_over_trains_no_step_when_loaded(void **state)
{
    job    j = {.strategy = DEFAULT, .epochs = 4, .is_validated = true, .patience = 1};
    memory m = {0};
    keeper k = {.m = &m, .kill_at = run_whole(&j) - 1};

    run(&j, &k, &got);
    assert_int_equal(got.rc, CH_CANCELLED);
    k.kill_at = -1;
    run(&j, &k, &got);
    t_ok(got.rc);
    assert_string_equal(got.text, want.text);
    assert_int_equal(k.seen, 1);
    forget(&m);
    (void)state;
}

static void training_names_callbacks_that_have_changed(void **state)
{
    job      j = {.strategy = DEFAULT, .epochs = 2, .is_validated = true, .patience = 5};
    memory   m = {0};
    keeper   k = {.m = &m, .kill_at = 20};
    t_logged logged = {0};

    run(&j, &k, &got);
    assert_int_equal(got.rc, CH_CANCELLED);
    k.kill_at = -1;
    run_with(&j, &k, SWAPPED, &got);
    t_refused(got.rc, CH_FAILED_PRECONDITION, "callback 1 is reduce_on_plateau",
              "saved with csv_log there");
    ch_log_set_sink(t_sink, &logged, CH_LOG_WARNING);
    run_with(&j, &k, FEWER, &got);
    t_ok(got.rc);
    assert_int_equal(logged.n, 1);
    assert_non_null(strstr(logged.text, "4 callbacks when it was saved, and goes on with 3"));
    run_with(&j, &k, MORE, &got);
    t_ok(got.rc);
    assert_int_equal(logged.n, 2);
    assert_non_null(strstr(logged.text, "begin without a state"));
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    forget(&m);
    (void)state;
}

/* Saves while allocations fail, after the last epoch: then the threads that prefetch data are
 * idle, and do not allocate. */
static ch_status fail_to_save(void *self, ch_training *t, ch_event event)
{
    int      *n_failed = self;
    ch_tuple *out = NULL;
    ch_status rc = CH_RESOURCE_EXHAUSTED;

    (void)event;
    for (int n = 1; rc != CH_OK; n++) {
        int64_t live = ch__mem_live();

        ch__mem_fail_at(n);
        rc = ch__training_save(t, &out);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch_tuple_unref(out);
        out = NULL;
        assert_int_equal(ch__mem_live(), live);
        *n_failed += rc != CH_OK;
    }
    return CH_OK;
}

static void training_keeps_no_memory_when_its_save_fails(void **state)
{
    static const ch_callback_ops ops = {.name = "failing",
                                        .events = CH_SAVE_POINT_END,
                                        .on = fail_to_save,
                                        .drop = drop_nothing};
    job          j = {.strategy = DEFAULT, .epochs = 2, .is_validated = true, .patience = 1};
    ch_strategy *st = strategy_of(DEFAULT);
    ch_model    *m = new_network(&j, st);
    arrays       a = new_arrays(ROWS), test = new_arrays(BATCH);
    memory       none = {0};
    keeper       k = {.m = &none, .kill_at = -1};
    ch_callback *c[CALLBACKS + 1] = {0};
    int          n = new_callbacks(&j, &k, USUAL, c), n_failed = 0;

    t_ok(ch__callback_make(&ops, &n_failed, &c[n++]));
    t_ok(fit(&j, m, &a, &test, n, c, NULL));
    assert_true(n_failed > 50);
    for (int i = 0; i < n; i++)
        ch_callback_unref(c[i]);
    ch_model_unref(m);
    ch_strategy_unref(st);
    drop_arrays(&a);
    drop_arrays(&test);
    (void)state;
}

static void training_keeps_no_memory_when_its_load_fails(void **state)
{
    job    j = {.strategy = DEFAULT, .epochs = 1, .is_dataset = true};
    memory m = {0};
    keeper k = {.m = &m, .kill_at = 4};

    run_whole(&j);
    run(&j, &k, &got);
    assert_int_equal(got.rc, CH_CANCELLED);
    k.kill_at = -1;
    for (k.fail_at = 1; got.rc != CH_OK; k.fail_at++) {
        int64_t live = ch__mem_live();

        run(&j, &k, &got);
        assert_true(got.rc == CH_OK || got.rc == CH_RESOURCE_EXHAUSTED);
        assert_int_equal(ch__mem_live(), live);
        assert_true(k.fail_at < 200);
    }
    assert_string_equal(got.text, want.text);
    forget(&m);
    (void)state;
}

/* Returns the state without leaf `skip` or, if `other` is not NULL, with `other` in its place. */
static ch_tuple *damaged(const ch_tuple *state, int skip, ch_value *other)
{
    int         count = ch_tuple_count(state), n = 0;
    ch_value   *value[256];
    const char *name[256];
    ch_tuple   *out = NULL;

    assert_true(count <= 256);
    for (int i = 0; i < count; i++) {
        if (i == skip && other == NULL)
            continue;
        name[n] = ch_tuple_name(state, i);
        value[n++] = i == skip ? other : ch_tuple_at(state, i);
    }
    t_ok(ch_tuple_new(n, value, name, &out));
    return out;
}

/* A checkpoint may be damaged or hostile: each leaf of the state is missing, or has another dtype
 * and shape, or a large number. */
static void training_rejects_a_damaged_state(void **state)
{
    job        j = {.strategy = DEFAULT, .epochs = 2, .is_validated = true, .patience = 5};
    memory     m = {0};
    keeper     k = {.m = &m, .kill_at = 24};
    ch_tensor *t[2] = {t_f32(ch_shape_of(3), NULL), NULL};
    ch_value  *other[3] = {NULL};
    ch_tuple  *whole;
    int        n_rejected = 0;

    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &(int64_t){INT64_MAX}, &t[1]));
    for (int i = 0; i < 2; i++)
        t_ok(ch_value_new(CH_PLAIN, 1, &t[i], &other[i + 1]));
    run(&j, &k, &got);
    assert_int_equal(got.rc, CH_CANCELLED);
    k.kill_at = 1; /* the training need not go on */
    whole = m.state;
    for (int i = 0; i < ch_tuple_count(whole); i++)
        for (int way = 0; way < 3; way++) {
            m.state = damaged(whole, i, other[way]);
            k.keeps = true;
            run(&j, &k, &got);
            if (got.rc != CH_CANCELLED && got.rc != CH_OK) {
                n_rejected++;
                assert_true(strlen(ch_error_message()) > 20);
            }
            ch_tuple_unref(m.state);
        }
    assert_true(n_rejected >= 2 * ch_tuple_count(whole) - 20);
    m.state = whole;
    forget(&m);
    for (int i = 0; i < 2; i++) {
        ch_value_unref(other[i + 1]);
        ch_tensor_unref(t[i]);
    }
    (void)state;
}

static int set_up(void **state)
{
    return t_four_gpus(state) != 0 ? -1 : t_folder_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_goes_on_at_any_save_point_with_the_same_bits),
        cmocka_unit_test(training_on_two_replicas_goes_on_with_the_same_bits),
        cmocka_unit_test(training_on_a_dataset_goes_on_with_the_same_bits),
        cmocka_unit_test(training_with_a_custom_step_goes_on_with_the_same_bits),
        cmocka_unit_test(train_and_evaluate_goes_on_with_the_same_bits),
        cmocka_unit_test(training_survives_many_kills),
        cmocka_unit_test(training_that_was_paused_goes_on_in_mid_epoch),
        cmocka_unit_test(training_that_is_over_trains_no_step_when_loaded),
        cmocka_unit_test(training_names_callbacks_that_have_changed),
        cmocka_unit_test(training_keeps_no_memory_when_its_save_fails),
        cmocka_unit_test(training_keeps_no_memory_when_its_load_fails),
        cmocka_unit_test(training_rejects_a_damaged_state),
    };

    return cmocka_run_group_tests_name("resume", tests, set_up, t_folder_remove);
}
