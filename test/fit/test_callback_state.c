/* test/fit/test_callback_state.c -- the state of callbacks: saved, and loaded by another process.
 *
 * The property test plays a training of 30 events. After any of them the state is saved, the
 * process goes on for some events and is killed, and another process loads the state and plays
 * the events from there on. What both processes leave must equal what a single process leaves:
 * learning rates, stops, saves, variables and log files.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "training_help.h"

#include <errno.h>
#include <fcntl.h>

#include "../file/folder.h"
#include "base/sys.h"
#include "fit/callback.h"

enum { EPOCHS = 6, STEPS = 3, PER_EPOCH = STEPS + 2, EVENTS = EPOCHS * PER_EPOCH };

enum { EARLY, PLATEAU, SCHEDULE, HOOK, CSV, CSV_STEPS, CSV_APPEND, JSON, JSON_APPEND, KINDS };

/* ---- files ---- */

static void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
}

/* Appends the text of a file, without the seconds of JSON lines, which may differ. */
static void add_file(char *to, size_t size, const char *path)
{
    char        all[8192];
    FILE       *f = fopen(path, "rb");
    size_t      n, used = strlen(to);
    const char *at = all;

    assert_non_null(f);
    n = fread(all, 1, sizeof(all) - 1, f);
    fclose(f);
    all[n] = '\0';
    for (; *at != '\0' && used + 1 < size; at++) {
        if (strncmp(at, "\"seconds\": ", 11) == 0)
            at = strchr(at, ',') + 2;
        to[used++] = *at;
    }
    to[used] = '\0';
}

/* ---- a process ---- */

static ch_model *new_model(void)
{
    ch_model *m = NULL;

    t_ok(ch_model_new(
        NULL, ch_layer_dense(3, NULL),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 2)}}}, &m));
    return m;
}

static void set_all(ch_model *m, double value)
{
    ch_var *const *v;
    int            n = ch_model_vars(m, &v);

    for (int i = 0; i < n; i++) {
        ch_tensor *x = NULL;

        t_ok(ch_tensor_new(CH_F32, ch_var_shape(v[i]), &x));
        for (int64_t k = 0; k < ch_tensor_count(x); k++)
            ((float *)ch_tensor_data_mut(x))[k] = (float)value;
        t_ok(ch_var_set(v[i], x));
        ch_tensor_unref(x);
    }
}

static double value_of(ch_model *m, int var)
{
    ch_var *const *v;
    ch_tensor     *x = NULL;
    double         value;

    assert_true(ch_model_vars(m, &v) > var);
    t_ok(ch_var_get(v[var], &x));
    value = ((const float *)ch_tensor_data(x))[0];
    ch_tensor_unref(x);
    return value;
}

typedef struct process {
    int           kind;
    const char   *path; /* of the log file */
    ch_callback  *c;
    ch_model     *m;
    ch_optimizer *o;
    ch_training   t;
    char         *left; /* what the process leaves; NULL: it is going to be killed */
    size_t        size;
} process;

static void leave(process *p, const char *format, double x)
{
    size_t used = p->left != NULL ? strlen(p->left) : 0;

    if (p->left != NULL)
        snprintf(p->left + used, p->size - used, format, x);
}

static ch_status save_model(ch_training *t, bool best, void *arg)
{
    leave(arg, best ? "saved %g " : "saved last %g ", (double)ch_training_step(t));
    return CH_OK;
}

static double slower(int epoch, double rate, void *arg)
{
    (void)arg;
    return epoch % 2 == 1 ? rate / 2 : rate;
}

static ch_status make(process *p)
{
    switch (p->kind) {
    case EARLY:
        return ch_callback_early_stopping(
            &(ch_callback_early_stopping_options){.patience = 2, .restore_best = true}, &p->c);
    case PLATEAU:
        return ch_callback_reduce_on_plateau(
            &(ch_callback_plateau_options){.patience = 1, .cooldown = 1, .factor = 0.5}, &p->c);
    case SCHEDULE:
        return ch_callback_rate_schedule(slower, NULL, &p->c);
    case HOOK:
        return ch_callback_save_hook(
            &(ch_callback_save_hook_options){.every_steps = 2, .monitor = "loss"}, save_model,
            p, &p->c);
    case JSON:
    case JSON_APPEND:
        return ch_callback_json_log(
            p->path,
            &(ch_callback_log_file_options){.every_steps = 2, .append = p->kind == JSON_APPEND},
            &p->c);
    default:
        return ch_callback_csv_log(
            p->path,
            &(ch_callback_log_file_options){.every_steps = p->kind == CSV ? 0 : 2,
                                            .append = p->kind == CSV_APPEND},
            &p->c);
    }
}

static process begin(int kind, const char *path, char *left, size_t size)
{
    process p = {.kind = kind, .path = path, .m = new_model(), .left = left, .size = size};

    t_ok(ch_optimizer_sgd(1, NULL, NULL, &p.o));
    p.t.model = p.m;
    p.t.optimizer = p.o;
    p.t.began_ns = ch__now_ns();
    return p;
}

static void drop(process *p)
{
    ch_callback_unref(p->c);
    ch_model_unref(p->m);
    ch_optimizer_unref(p->o);
    ch__logs_drop(&p->t.logs);
}

/* Plays event number i of the training. All it does depends on the seed and on i. */
static void play(process *p, unsigned seed, int i)
{
    ch_training *t = &p->t;
    int          k = i % PER_EPOCH;
    double       rate;

    for (int j = 0; j <= i; j++)
        (void)t_random(&seed, 2);
    t->epoch = i / PER_EPOCH;
    t->step = t->epoch * STEPS + (k < STEPS ? k : STEPS);
    if (k == 0) {
        ch__logs_drop(&t->logs);
        t_ok(t_tell(p->c, t, CH_ON_EPOCH_BEGIN));
        return;
    }
    set_all(p->m, i);
    t_log(t, "loss", t_random(&seed, 24) / 7.0);
    if (k <= STEPS) {
        t_ok(t_tell(p->c, t, CH_ON_STEP));
        return;
    }
    t_log(t, "val_loss", t_random(&seed, 24) / 7.0);
    t_ok(t_tell(p->c, t, CH_ON_EPOCH_END));
    t_ok(ch_optimizer_rate(p->o, &rate));
    leave(p, "rate %g ", rate);
    leave(p, t->stops ? "stops in %g " : "", t->epoch);
}

static void prepare_file(int kind, const char *path)
{
    put_file(path, kind == CSV_APPEND    ? "epoch,old\n9,8\n9,7"
                   : kind == JSON_APPEND ? "{\"old\": 1}\n{"
                                         : "of another program\n1,2\n3,4\n");
}

/* Plays all events. If `cut` is 0 or more, saves after event `cut`, plays `more` events, and
 * goes on in another process from the saved state. */
static void run(int kind, unsigned seed, int cut, int more, char *left, size_t size)
{
    const char *path = t_path("log");
    process     p = begin(kind, path, left, size);
    ch_tuple   *state = NULL;
    bool        stops = false;

    left[0] = '\0';
    prepare_file(kind, path);
    t_ok(make(&p));
    t_ok(t_tell(p.c, &p.t, CH_ON_BEGIN));
    for (int i = 0; i < EVENTS && !p.t.stops; i++) {
        play(&p, seed, i);
        if (i != cut)
            continue;
        t_ok(ch__callback_save(p.c, &state));
        assert_non_null(state);
        stops = p.t.stops;
        p.left = NULL;
        for (int j = i + 1; j <= i + more && j < EVENTS && !p.t.stops; j++)
            play(&p, seed, j);
        drop(&p);
        p = begin(kind, path, left, size);
        t_ok(make(&p));
        p.t.stops = stops;
        t_ok(t_tell(p.c, &p.t, CH_ON_BEGIN));
        t_ok(ch__callback_load(p.c, state));
        /* The variables and the logs of the epoch are restored by others. */
        set_all(p.m, i);
        p.t.epoch = i / PER_EPOCH;
        if (i % PER_EPOCH > 0) {
            unsigned s = seed;

            for (int j = 0; j <= i; j++)
                (void)t_random(&s, 2);
            t_log(&p.t, "loss", t_random(&s, 24) / 7.0);
        }
        p.t.step = p.t.epoch * STEPS + (i % PER_EPOCH < STEPS ? i % PER_EPOCH : STEPS);
        ch_tuple_unref(state);
    }
    t_ok(t_tell(p.c, &p.t, CH_ON_END));
    leave(&p, "kernel %g ", value_of(p.m, 0));
    leave(&p, "bias %g\n", value_of(p.m, 1));
    if (kind >= CSV)
        add_file(left, size, path);
    drop(&p);
}

static void callbacks_go_on_after_a_load_as_if_never_killed(void **state)
{
    static char want[16384], got[16384];

    for (int kind = 0; kind < KINDS; kind++)
        for (unsigned seed = 1; seed < (kind < CSV ? 9 : 2); seed++) {
            run(kind, seed, -1, 0, want, sizeof(want));
            for (int cut = 0; cut < EVENTS; cut++) {
                run(kind, seed, cut, (int)(seed + (unsigned)cut) % 8, got, sizeof(got));
                assert_string_equal(got, want);
            }
        }
    (void)state;
}

/* ---- log files that have changed ---- */

/* Writes two epochs to a CSV file and returns the saved state. */
static ch_tuple *two_epochs(const char *path, int more)
{
    process   p = begin(CSV, path, NULL, 0);
    ch_tuple *state = NULL;

    t_ok(make(&p));
    t_ok(t_tell(p.c, &p.t, CH_ON_BEGIN));
    for (int i = 0; i < (2 + more) * PER_EPOCH; i++) {
        play(&p, 3, i);
        if (i == 2 * PER_EPOCH - 1)
            t_ok(ch__callback_save(p.c, &state));
    }
    drop(&p);
    return state;
}

/* Begins another process, loads the state, and ends. Returns the status of the load. */
static ch_status load(const char *path, ch_tuple *state)
{
    process   p = begin(CSV, path, NULL, 0);
    ch_status rc = make(&p);

    if (rc == CH_OK)
        rc = t_tell(p.c, &p.t, CH_ON_BEGIN);
    if (rc == CH_OK)
        rc = ch__callback_load(p.c, state);
    if (p.c != NULL)
        t_ok(t_tell(p.c, &p.t, CH_ON_END));
    drop(&p);
    return rc;
}

static void log_file_warns_when_lines_before_the_checkpoint_are_missing(void **state)
{
    const char *path = t_path("short.csv");
    ch_tuple   *saved = two_epochs(path, 1);
    char        text[512] = "";
    t_logged    logged = {0};
    FILE       *f;

    ch_log_set_sink(t_sink, &logged, CH_LOG_WARNING);
    t_ok(load(path, saved));
    assert_int_equal(logged.n, 0);
    add_file(text, sizeof(text), path);
    f = fopen(path, "r+b"); /* a power failure has taken the last bytes */
    assert_non_null(f);
    assert_int_equal(ftruncate(fileno(f), (off_t)strlen(text) - 3), 0);
    fclose(f);
    t_ok(load(path, saved));
    assert_int_equal(logged.n, 1);
    assert_non_null(strstr(logged.text, "has only 1 of the 2 lines"));
    strrchr(text, '\n')[0] = '\0';
    strrchr(text, '\n')[1] = '\0';
    add_file(text + 256, 256, path);
    assert_string_equal(text + 256, text);

    assert_int_equal(unlink(path), 0);
    t_ok(load(path, saved));
    assert_int_equal(logged.n, 2);
    assert_non_null(strstr(logged.text, "has only 0 of the 2 lines"));
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    ch_tuple_unref(saved);
    (void)state;
}

static void log_file_rejects_a_file_of_another_training(void **state)
{
    static const char *const other = "epoch,loss,val_loss\n0,5,5\n1,4,4\n2,3,3\n";
    const char              *path = t_path("other.csv");
    ch_tuple                *saved = two_epochs(path, 0);
    char                     text[256] = "";

    put_file(path, other);
    t_refused(load(path, saved), CH_FAILED_PRECONDITION, "callback csv_log",
              "line 2 is \"1,4,4\"");
    add_file(text, sizeof(text), path);
    assert_string_equal(text, other);
    put_file(path, "name,value\n");
    t_refused(load(path, saved), CH_INVALID_ARGUMENT, "other.csv", "\"epoch\"");
    ch_tuple_unref(saved);
    (void)state;
}

/* A log to a pipe cannot be truncated; it goes on. */
static void log_file_that_is_not_a_file_has_a_state_too(void **state)
{
    process   p = begin(CSV, "/dev/null", NULL, 0);
    ch_tuple *saved = NULL;

    t_ok(make(&p));
    t_ok(t_tell(p.c, &p.t, CH_ON_BEGIN));
    for (int i = 0; i < PER_EPOCH; i++)
        play(&p, 1, i);
    t_ok(ch__callback_save(p.c, &saved));
    t_ok(ch__callback_load(p.c, saved));
    t_ok(t_tell(p.c, &p.t, CH_ON_END));
    ch_tuple_unref(saved);
    drop(&p);
    (void)state;
}

/* ---- states that do not fit ---- */

static void callback_rejects_the_state_of_another_log(void **state)
{
    process      p = begin(EARLY, NULL, NULL, 0);
    ch_callback *other = NULL;
    ch_tuple    *saved = NULL, *none = NULL;
    ch_tensor   *t = NULL;

    t_ok(make(&p));
    t_ok(ch_callback_early_stopping(
        &(ch_callback_early_stopping_options){.monitor = "val_accuracy"}, &other));
    t_ok(ch__callback_save(p.c, &saved));
    t_refused(ch__callback_load(other, saved), CH_INVALID_ARGUMENT,
              "callback early_stopping: its state", "\"val_accuracy\"");
    t_ok(ch_tensor_scalar(CH_F32, 1, &t));
    t_ok(ch_tuple_of(1, &t, &none));
    t_refused(ch__callback_load(p.c, none), CH_INVALID_ARGUMENT, "no leaf", "\"monitor\"");
    ch_tensor_unref(t);
    ch_tuple_unref(none);
    ch_tuple_unref(saved);
    ch_callback_unref(other);
    drop(&p);
    (void)state;
}

/* The model of the next process has not the variables that were saved. */
static void early_stopping_fails_when_the_model_has_other_variables(void **state)
{
    process   p = begin(EARLY, NULL, NULL, 0), next = begin(EARLY, NULL, NULL, 0);
    ch_tuple *saved = NULL;
    ch_model *other = NULL;

    t_ok(make(&p));
    t_ok(make(&next));
    t_ok(t_tell(p.c, &p.t, CH_ON_BEGIN));
    play(&p, 1, PER_EPOCH - 1);
    t_ok(ch__callback_save(p.c, &saved));
    t_ok(ch_model_new(
        NULL, ch_layer_dense(3, &(ch_layer_dense_options){.bias = CH_OFF}),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 2)}}}, &other));
    next.t.model = other;
    t_ok(t_tell(next.c, &next.t, CH_ON_BEGIN));
    t_ok(ch__callback_load(next.c, saved));
    t_refused(t_tell(next.c, &next.t, CH_ON_END), CH_FAILED_PRECONDITION, "best epoch",
              "another number of variables");
    ch_model_unref(other);
    ch_tuple_unref(saved);
    drop(&p);
    drop(&next);
    (void)state;
}

/* ---- callbacks of the program ---- */

static ch_status see(void *self, ch_training *t, ch_event event)
{
    (void)self;
    (void)t;
    (void)event;
    return CH_OK;
}

static ch_status save_nothing(void *self, ch_tuple **out)
{
    (void)self;
    (void)out;
    return CH_OK;
}

static ch_status save_without_names(void *self, ch_tuple **out)
{
    ch_tensor *t = self;

    return ch_tuple_of(2, (ch_tensor *[]){t, t}, out);
}

static ch_status save_per_replica(void *self, ch_tuple **out)
{
    ch_tensor *t = self;
    ch_value  *v = NULL;
    ch_status  rc = ch_value_new(CH_PER_REPLICA, 1, &t, &v);

    if (rc == CH_OK)
        rc = ch_tuple_new(1, &v, NULL, out);
    ch_value_unref(v);
    return rc;
}

static ch_status fail_to_save(void *self, ch_tuple **out)
{
    (void)self;
    (void)out;
    return CH_ABORTED;
}

static ch_status fail_to_load(void *self, ch_tuple *state)
{
    (void)self;
    (void)state;
    return CH_ABORTED;
}

static void callback_state_of_the_program_is_checked(void **state)
{
    static const struct {
        ch_status (*save)(void *self, ch_tuple **out);
        ch_status   code;
        const char *word;
    } each[] = {{save_nothing, CH_INVALID_ARGUMENT, "stored no tuple"},
                {save_without_names, CH_INVALID_ARGUMENT, "leaf 0 of its state has no name"},
                {save_per_replica, CH_INVALID_ARGUMENT, "leaf 0 of its state is not a plain"},
                {fail_to_save, CH_ABORTED, "callback mine: its state cannot be saved"}};
    ch_tensor      *t = NULL;
    ch_tuple       *saved = NULL;
    ch_callback    *c = NULL;
    ch_callback_ops ops = {
        .name = "mine", .events = CH_ON_STEP, .on = see, .load = fail_to_load};

    t_ok(ch_tensor_scalar(CH_F32, 1, &t));
    for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
        ops.save = each[i].save;
        t_ok(ch_callback_new(&ops, t, &c));
        t_refused(ch__callback_save(c, &saved), each[i].code, "callback mine", each[i].word);
        assert_null(saved);
        ch_callback_unref(c);
    }
    ops.save = NULL;
    t_ok(ch_callback_new(&ops, t, &c));
    t_ok(ch__callback_save(c, &saved));
    assert_null(saved);
    t_ok(ch_tuple_of(1, &t, &saved));
    t_refused(ch__callback_load(c, saved), CH_ABORTED, "callback mine: its state",
              "cannot be loaded");
    ch_callback_unref(c);
    ch_tuple_unref(saved);
    ch_tensor_unref(t);
    (void)state;
}

static void callback_events_of_the_library_are_refused(void **state)
{
    ch_callback *c = NULL;

    t_refused(
        ch_callback_new(
            &(ch_callback_ops){.name = "x", .events = CH_SAVE_POINT_STEP, .on = see}, NULL, &c),
        CH_INVALID_ARGUMENT, "callback x", "events");
    t_refused(ch_callback_of(CH_SAVE_POINT_END, NULL, NULL, &c), CH_INVALID_ARGUMENT, "fn",
              "NULL");
    assert_null(c);
    (void)state;
}

/* ---- faults ---- */

/* Saves and loads the state while an allocation or a file operation fails. */
static ch_status save_and_load(process *p)
{
    ch_tuple *state = NULL;
    ch_status rc = ch__callback_save(p->c, &state);

    if (rc == CH_OK)
        rc = ch__callback_load(p->c, state);
    ch_tuple_unref(state);
    return rc;
}

static void callbacks_keep_no_memory_when_save_or_load_fails(void **state)
{
    const char *path = t_path("fails");

    for (int kind = 0; kind < KINDS; kind++)
        for (int way = 0; way < 2; way++) {
            process   p = begin(kind, path, NULL, 0);
            ch_status rc = CH_UNIMPLEMENTED;
            ch_tuple *saved = NULL;
            int64_t   live;

            prepare_file(kind, path);
            t_ok(make(&p));
            t_ok(t_tell(p.c, &p.t, CH_ON_BEGIN));
            for (int i = 0; i < 2 * PER_EPOCH && !p.t.stops; i++)
                play(&p, 2, i);
            t_ok(ch__callback_save(p.c, &saved));
            t_ok(ch__callback_load(p.c, saved));
            live = ch__mem_live();
            for (int n = 1; rc != CH_OK; n++) {
                if (way == 0)
                    ch__mem_fail_at(n);
                else
                    ch__file_fail_at(n, EIO);
                rc = save_and_load(&p);
                ch__mem_fail_at(0);
                ch__file_fail_at(0, 0);
                t_ok(ch__callback_load(p.c, saved));
                assert_int_equal(ch__mem_live(), live);
                assert_true(n < 300);
            }
            ch_tuple_unref(saved);
            t_ok(t_tell(p.c, &p.t, CH_ON_END));
            drop(&p);
        }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callbacks_go_on_after_a_load_as_if_never_killed),
        cmocka_unit_test(log_file_warns_when_lines_before_the_checkpoint_are_missing),
        cmocka_unit_test(log_file_rejects_a_file_of_another_training),
        cmocka_unit_test(log_file_that_is_not_a_file_has_a_state_too),
        cmocka_unit_test(callback_rejects_the_state_of_another_log),
        cmocka_unit_test(early_stopping_fails_when_the_model_has_other_variables),
        cmocka_unit_test(callback_state_of_the_program_is_checked),
        cmocka_unit_test(callback_events_of_the_library_are_refused),
        cmocka_unit_test(callbacks_keep_no_memory_when_save_or_load_fails),
    };

    return cmocka_run_group_tests_name("callback_state", tests, t_folder_make, t_folder_remove);
}
