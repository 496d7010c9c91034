/* test/fit/test_callbacks.c -- callbacks: creation and events; callbacks that stop the
 * training, change the learning rate, or save.
 *
 * The tests call the events of a callback with a simulated training (training_help.h). Early
 * stopping and the plateau rule are compared with slow models over random sequences.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "training_help.h"

/* ---- creation and events ---- */

typedef struct seen {
    int       n_dropped, n_told;
    char      events[256];
    ch_status answer;
} seen;

static ch_status see(void *self, ch_training *t, ch_event event)
{
    seen *s = self;

    (void)t;
    s->n_told++;
    snprintf(s->events + strlen(s->events), sizeof(s->events) - strlen(s->events), "%x ",
             (unsigned)event);
    return s->answer;
}

static void drop_seen(void *self)
{
    ((seen *)self)->n_dropped++;
}

static void callback_new_rejects_invalid_ops(void **state)
{
    ch_callback *c = NULL;

    t_refused(ch_callback_new(NULL, NULL, &c), CH_INVALID_ARGUMENT, "ops", "NULL");
    t_refused(ch_callback_new(&(ch_callback_ops){.name = "x", .events = CH_ON_STEP, .on = see},
                              NULL, NULL),
              CH_INVALID_ARGUMENT, "out", "NULL");
    t_refused(ch_callback_new(&(ch_callback_ops){.events = CH_ON_STEP, .on = see}, NULL, &c),
              CH_INVALID_ARGUMENT, "name", "");
    t_refused(ch_callback_new(&(ch_callback_ops){.name = "x", .events = CH_ON_STEP}, NULL, &c),
              CH_INVALID_ARGUMENT, "callback x", "on");
    t_refused(
        ch_callback_new(&(ch_callback_ops){.name = "x", .events = 0, .on = see}, NULL, &c),
        CH_INVALID_ARGUMENT, "callback x", "0x0");
    t_refused(ch_callback_of(256, NULL, NULL, &c), CH_INVALID_ARGUMENT, "fn", "NULL");
    assert_null(c);
    assert_null(ch_callback_ref(NULL));
    ch_callback_unref(NULL);
    (void)state;
}

static void callback_receives_its_events_and_is_dropped_once(void **state)
{
    ch_callback_ops ops = {
        .name = "mine", .events = CH_ON_BEGIN | CH_ON_STEP, .on = see, .drop = drop_seen};
    seen         s = {0};
    ch_training  t = {0};
    ch_callback *c = NULL;

    t_ok(ch_callback_new(&ops, &s, &c));
    for (unsigned event = CH_ON_BEGIN; event <= CH_ON_END; event <<= 1)
        t_ok(t_tell(c, &t, (ch_event)event));
    assert_string_equal(s.events, "1 4 ");
    assert_ptr_equal(ch_callback_ref(c), c);
    ch_callback_unref(c);
    assert_int_equal(s.n_dropped, 0);
    ch_callback_unref(c);
    assert_int_equal(s.n_dropped, 1);
    (void)state;
}

static void callback_error_ends_the_training_and_all_callbacks_get_the_end(void **state)
{
    ch_callback_ops ops[] = {{.name = "first", .events = CH_ON_STEP | CH_ON_END, .on = see},
                             {.name = "second", .events = CH_ON_STEP | CH_ON_END, .on = see},
                             {.name = "third", .events = CH_ON_STEP | CH_ON_END, .on = see}};
    seen            s[3] = {{0}};
    ch_training     t = {0};
    ch_callback    *c[4] = {0};

    for (int i = 0; i < 3; i++)
        t_ok(ch_callback_new(&ops[i], &s[i], &c[i]));
    t_ok(ch__callbacks_notify(3, c, &t, CH_ON_STEP));
    s[1].answer = CH_ABORTED;
    s[2].answer = CH_NOT_FOUND;
    t_refused(ch__callbacks_notify(3, c, &t, CH_ON_STEP), CH_ABORTED,
              "callback second: ", ch_status_text(CH_ABORTED));
    assert_int_equal(s[0].n_told + s[1].n_told + s[2].n_told, 5);
    t_refused(ch__callbacks_notify(3, c, &t, CH_ON_END), CH_ABORTED,
              "callback second: ", ch_status_text(CH_ABORTED));
    assert_int_equal(s[2].n_told, 2);
    t_refused(ch__callbacks_notify(4, c, &t, CH_ON_BEGIN), CH_INVALID_ARGUMENT, "callback 3",
              "NULL");
    for (int i = 0; i < 3; i++)
        ch_callback_unref(c[i]);
    (void)state;
}

static ch_status count_steps(ch_training *t, ch_event event, void *arg)
{
    (void)t;
    *(int *)arg += event == CH_ON_STEP;
    return CH_OK;
}

static void callback_of_makes_a_callback_of_a_function(void **state)
{
    ch_training  t = {0};
    ch_callback *c = NULL;
    int          n = 0;

    t_ok(ch_callback_of(CH_ON_STEP, count_steps, &n, &c));
    t_ok(t_tell(c, &t, CH_ON_STEP));
    t_ok(t_tell(c, &t, CH_ON_END));
    t_ok(t_tell(c, &t, CH_ON_STEP));
    assert_int_equal(n, 2);
    ch_callback_unref(c);
    t_refused(ch_callback_of(0, count_steps, &n, &c), CH_INVALID_ARGUMENT, "events", "0x0");
    t_refused(ch_callback_of(CH_ON_STEP, count_steps, &n, NULL), CH_INVALID_ARGUMENT, "out",
              "NULL");
    (void)state;
}

/* ---- early stopping ---- */

/* A slow model of the rules, with the whole sequence: computes which epochs are better than all
 * before them, when the count of epochs last began, and whether an epoch stops. Returns the
 * epoch that stops; -1: none. */
static int slow_early(const ch_callback_early_stopping_options *o, int n, const double *x,
                      int *best)
{
    bool is_better[64] = {false}, starts[64] = {false};

    *best = -1;
    for (int i = o->start_epoch; i < n; i++) {
        double bar = o->goal == CH_GOAL_MAX ? -INFINITY : INFINITY;

        for (int k = o->start_epoch; k < i; k++)
            if (is_better[k])
                bar = x[k];
        is_better[i] =
            o->goal == CH_GOAL_MAX ? x[i] - o->min_delta > bar : x[i] + o->min_delta < bar;
        starts[i] =
            is_better[i] &&
            (!o->has_baseline || (o->goal == CH_GOAL_MAX ? x[i] - o->min_delta > o->baseline
                                                         : x[i] + o->min_delta < o->baseline));
    }
    for (int i = o->start_epoch; i < n; i++) {
        int since = i;

        while (since >= o->start_epoch && !starts[since])
            since--;
        if (is_better[i])
            *best = i;
        else if (*best < 0)
            *best = -2 - o->start_epoch; /* none yet: the first epoch compared */
        int wait = since >= o->start_epoch ? i - since : i - o->start_epoch + 1;
        if (!is_better[i] && wait >= o->patience && i > 0)
            return i;
    }
    return -1;
}

static ch_callback_early_stopping_options some_early(unsigned *seed)
{
    return (ch_callback_early_stopping_options){
        .monitor = "m",
        .goal = t_random(seed, 2) ? CH_GOAL_MAX : CH_GOAL_MIN,
        .min_delta = t_random(seed, 4) / 8.0,
        .patience = (int)t_random(seed, 6),
        .start_epoch = t_random(seed, 2) ? (int)t_random(seed, 5) : 0,
        .baseline = t_random(seed, 16) / 8.0,
        .has_baseline = t_random(seed, 3) == 0,
    };
}

static void early_stopping_stops_in_the_epoch_of_the_model(void **state)
{
    unsigned seed = 5;

    for (int round = 0; round < 3000; round++) {
        ch_callback_early_stopping_options o = some_early(&seed);
        ch_callback                       *c = NULL;
        ch_training                        t = {.epochs = 30};
        double                             x[30];
        int                                stopped = -1, best;

        for (int i = 0; i < 30; i++)
            x[i] = t_random(&seed, 20) == 0 ? NAN : t_random(&seed, 24) / 8.0;
        t_ok(ch_callback_early_stopping(&o, &c));
        t_begin(c, &t);
        for (int i = 0; i < 30 && stopped < 0; i++)
            stopped = t_epoch(c, &t, i, "m", x[i]) ? i : -1;
        t_end(c, &t);
        assert_int_equal(stopped, slow_early(&o, 30, x, &best));
        ch_callback_unref(c);
    }
    (void)state;
}

static ch_model *new_model(void)
{
    ch_model *m = NULL;

    t_ok(ch_model_new(
        NULL,
        ch_layer_sequential("net", 2,
                            (ch_layer *[]){ch_layer_dense(3, NULL), ch_layer_batch_norm(NULL)}),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 2)}}}, &m));
    return m;
}

/* Sets all elements of all variables. */
static void set_all(ch_model *m, double value)
{
    ch_var *const *v;
    int            n = ch_model_vars(m, &v);

    for (int i = 0; i < n; i++) {
        ch_tensor *x = NULL;

        t_ok(ch_var_get(v[i], &x));
        for (int64_t k = 0; k < ch_tensor_count(x); k++)
            ((float *)ch_tensor_data_mut(x))[k] = (float)value;
        t_ok(ch_var_set(v[i], x));
        ch_tensor_unref(x);
    }
}

static void assert_all(ch_model *m, double value)
{
    ch_var *const *v;
    int            n = ch_model_vars(m, &v);

    assert_int_equal(n, 6);
    for (int i = 0; i < n; i++) {
        ch_tensor *x = NULL;

        t_ok(ch_var_get(v[i], &x));
        for (int64_t k = 0; k < ch_tensor_count(x); k++)
            assert_float_equal(((const float *)ch_tensor_data(x))[k], value, 0);
        ch_tensor_unref(x);
    }
}

static void early_stopping_restores_the_variables_of_the_best_epoch(void **state)
{
    unsigned  seed = 11;
    ch_model *m = new_model();

    for (int round = 0; round < 60; round++) {
        ch_callback_early_stopping_options o = some_early(&seed);
        ch_callback                       *c = NULL;
        ch_training                        t = {.epochs = 12, .model = m};
        double                             x[12];
        int                                best, last = -1;

        o.restore_best = true;
        for (int i = 0; i < 12; i++)
            x[i] = t_random(&seed, 6) == 0 ? NAN : t_random(&seed, 24) / 8.0;
        t_ok(ch_callback_early_stopping(&o, &c));
        t_begin(c, &t);
        do {
            set_all(m, ++last);
        } while (!t_epoch(c, &t, last, "m", x[last]) && last < 11);
        t_end(c, &t);
        slow_early(&o, last + 1, x, &best);
        assert_all(m, best == -1 ? last : best < 0 ? -best - 2 : best);
        ch_callback_unref(c);
    }
    ch_model_unref(m);
    (void)state;
}

static void early_stopping_says_why_and_starts_anew_with_each_training(void **state)
{
    ch_callback *c = NULL;
    ch_training  t = {0};

    t_ok(ch_callback_early_stopping(&(ch_callback_early_stopping_options){.patience = 2}, &c));
    for (int round = 0; round < 2; round++) {
        t_begin(c, &t);
        assert_false(t_epoch(c, &t, 0, "val_loss", 0.25));
        assert_false(t_epoch(c, &t, 1, "val_loss", 0.5));
        assert_true(t_epoch(c, &t, 2, "val_loss", 0.25));
        assert_string_equal(
            t.why,
            "early_stopping: val_loss was best in epoch 1 (0.25), and not better in 2 since");
        t_end(c, &t);
    }
    t_begin(c, &t);
    assert_false(t_epoch(c, &t, 0, "val_loss", NAN));
    assert_true(t_epoch(c, &t, 1, "val_loss", NAN));
    assert_string_equal(t.why, "early_stopping: val_loss was no number in 2 epochs");
    t_end(c, &t);
    ch_callback_unref(c);
    (void)state;
}

static void early_stopping_warns_once_when_its_metric_is_missing(void **state)
{
    ch_callback *c = NULL;
    ch_training  t = {0};
    t_logged     logged = {0};

    ch_log_set_sink(t_sink, &logged, CH_LOG_WARNING);
    t_ok(ch_callback_early_stopping(NULL, &c));
    t_begin(c, &t);
    for (int i = 0; i < 5; i++)
        assert_false(t_epoch(c, &t, i, "loss", i));
    assert_int_equal(logged.n, 1);
    assert_non_null(strstr(logged.text, "\"val_loss\""));
    assert_non_null(strstr(logged.text, "its logs are: loss"));
    t_end(c, &t);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    ch_callback_unref(c);
    (void)state;
}

static void early_stopping_restores_nothing_in_an_evaluation(void **state)
{
    ch_model    *m = new_model();
    ch_callback *c = NULL;
    ch_training  t = {.model = m};

    t_ok(ch_callback_early_stopping(&(ch_callback_early_stopping_options){.restore_best = true},
                                    &c));
    t_begin(c, &t);
    set_all(m, 3);
    t_epoch(c, &t, 0, "val_loss", 1);
    set_all(m, 4);
    t.is_evaluation = true;
    t_ok(t_tell(c, &t, CH_ON_BEGIN));
    t_ok(t_tell(c, &t, CH_ON_END));
    assert_all(m, 4);
    t.is_evaluation = false;
    t_end(c, &t);
    assert_all(m, 3);
    ch_callback_unref(c);
    ch_model_unref(m);
    (void)state;
}

static void early_stopping_rejects_invalid_options(void **state)
{
    ch_callback *c = NULL;

    t_refused(
        ch_callback_early_stopping(&(ch_callback_early_stopping_options){.patience = -1}, &c),
        CH_INVALID_ARGUMENT, "patience", "-1");
    t_refused(
        ch_callback_early_stopping(&(ch_callback_early_stopping_options){.min_delta = -1}, &c),
        CH_INVALID_ARGUMENT, "min_delta", "-1");
    t_refused(
        ch_callback_early_stopping(&(ch_callback_early_stopping_options){.monitor = ""}, &c),
        CH_INVALID_ARGUMENT, "monitor", "\"\"");
    t_refused(ch_callback_early_stopping(
                  &(ch_callback_early_stopping_options){.goal = (ch_goal)7}, &c),
              CH_INVALID_ARGUMENT, "goal", "7");
    t_refused(ch_callback_early_stopping(
                  &(ch_callback_early_stopping_options){.baseline = (double)NAN,
                                                        .has_baseline = true},
                  &c),
              CH_INVALID_ARGUMENT, "baseline", "NaN");
    assert_null(c);
    (void)state;
}

/* ---- values that are not finite, and time limits ---- */

static void stop_on_nan_stops_when_the_loss_is_not_finite(void **state)
{
    ch_callback *c = NULL;
    ch_training  t = {0};

    t_ok(ch_callback_stop_on_nan(3, &c));
    t_log(&t, "loss", NAN);
    for (t.step = 1; t.step < 3; t.step++) {
        t_ok(t_tell(c, &t, CH_ON_STEP));
        assert_false(t.stops);
    }
    t_ok(t_tell(c, &t, CH_ON_STEP));
    assert_true(t.stops);
    assert_string_equal(t.why, "stop_on_nan: the loss is nan after step 3");
    t.stops = false;
    t_log(&t, "loss", 1e300);
    t_ok(t_tell(c, &t, CH_ON_EPOCH_END));
    assert_false(t.stops);
    t.step = 4;
    t_log(&t, "loss", -INFINITY);
    t_ok(t_tell(c, &t, CH_ON_EPOCH_END));
    assert_string_equal(t.why, "stop_on_nan: the loss is infinite after step 4");
    ch__logs_drop(&t.logs);
    ch_callback_unref(c);
    t_refused(ch_callback_stop_on_nan(-1, &c), CH_INVALID_ARGUMENT, "every_steps", "-1");
    (void)state;
}

static void stop_on_nan_warns_once_when_there_is_no_loss(void **state)
{
    ch_callback *c = NULL;
    ch_training  t = {0};
    t_logged     logged = {0};

    ch_log_set_sink(t_sink, &logged, CH_LOG_WARNING);
    t_ok(ch_callback_stop_on_nan(0, &c));
    for (t.step = 1; t.step < 4; t.step++)
        t_ok(t_tell(c, &t, CH_ON_STEP));
    assert_false(t.stops);
    assert_int_equal(logged.n, 1);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    ch_callback_unref(c);
    (void)state;
}

static void time_limit_stops_the_training(void **state)
{
    ch_callback *c = NULL;
    ch_training  t = {.began_ns = ch__now_ns(), .step = 7};

    t_ok(ch_callback_time_limit(3600, &c));
    t_ok(t_tell(c, &t, CH_ON_STEP));
    assert_false(t.stops);
    t.began_ns -= 3600 * INT64_C(1000000000);
    t_ok(t_tell(c, &t, CH_ON_STEP));
    assert_string_equal(t.why, "time_limit: 3600 seconds are over, after step 7");
    ch_callback_unref(c);
    t_refused(ch_callback_time_limit(0, &c), CH_INVALID_ARGUMENT, "time_limit", "more than 0");
    t_refused(ch_callback_time_limit((double)NAN, &c), CH_INVALID_ARGUMENT, "time_limit",
              "nan");
    (void)state;
}

/* ---- learning rates ---- */

static double rate_of(ch_optimizer *o)
{
    double rate;

    t_ok(ch_optimizer_rate(o, &rate));
    return rate;
}

static double halve(int epoch, double rate, void *arg)
{
    (void)arg;
    return epoch == 0 ? rate : epoch == 9 ? -1 : rate / 2;
}

static void rate_schedule_sets_the_rate_when_an_epoch_begins(void **state)
{
    ch_callback  *c = NULL;
    ch_optimizer *o = NULL;
    ch_training   t = {0};

    t_ok(ch_optimizer_sgd(0.5, NULL, NULL, &o));
    t_ok(ch_callback_rate_schedule(halve, NULL, &c));
    t.optimizer = o;
    t_begin(c, &t);
    for (int i = 0; i < 4; i++) {
        t_epoch(c, &t, i, "loss", 1);
        assert_float_equal(rate_of(o), 0.5 / (1 << i), 0);
    }
    t.epoch = 9;
    t_refused(t_tell(c, &t, CH_ON_EPOCH_BEGIN), CH_INVALID_ARGUMENT, "epoch 10",
              "the rate is -1");
    t_end(c, &t);
    t.optimizer = NULL;
    t_refused(t_tell(c, &t, CH_ON_BEGIN), CH_FAILED_PRECONDITION, "rate_schedule",
              "without an optimizer");
    t.is_evaluation = true;
    t_ok(t_tell(c, &t, CH_ON_BEGIN));
    ch_callback_unref(c);
    ch_optimizer_unref(o);
    t_refused(ch_callback_rate_schedule(NULL, NULL, &c), CH_INVALID_ARGUMENT, "fn", "NULL");
    (void)state;
}

static void rate_callbacks_reject_an_optimizer_with_a_schedule(void **state)
{
    ch_schedule   s = ch_schedule_constant(0.5);
    ch_callback  *c[2] = {0};
    ch_optimizer *o = NULL;
    ch_training   t = {0};

    t_ok(ch_optimizer_sgd(0.5, NULL, &(ch_optimizer_options){.schedule = &s}, &o));
    t.optimizer = o;
    t_ok(ch_callback_rate_schedule(halve, NULL, &c[0]));
    t_ok(ch_callback_reduce_on_plateau(NULL, &c[1]));
    t_refused(t_tell(c[0], &t, CH_ON_BEGIN), CH_FAILED_PRECONDITION, "rate_schedule",
              "the optimizer has a schedule");
    t_refused(t_tell(c[1], &t, CH_ON_BEGIN), CH_FAILED_PRECONDITION, "reduce_on_plateau",
              "create it without");
    ch_callback_unref(c[0]);
    ch_callback_unref(c[1]);
    ch_optimizer_unref(o);
    (void)state;
}

/* A slow model of the rule: returns the rate after n epochs. An epoch counts if it is not
 * better than the best before it, and is after the cooldown of the last change. `patience` such
 * epochs in a row change the rate. */
static double slow_plateau(const ch_callback_plateau_options *o, double rate, int n,
                           const double *x)
{
    double delta = o->min_delta == CH_OFF ? 0 : o->min_delta;
    int    changed = -1000, better = -1; /* epochs */
    double bar = o->goal == CH_GOAL_MAX ? -INFINITY : INFINITY;

    for (int i = 0; i < n; i++) {
        int first;

        if (o->goal == CH_GOAL_MAX ? x[i] > bar + delta : x[i] < bar - delta) {
            better = i;
            bar = x[i];
            continue;
        }
        first = better + 1;
        if (changed + 1 > first)
            first = changed + 1;
        if (changed + o->cooldown > first)
            first = changed + o->cooldown;
        if (i >= first && i - first + 1 >= o->patience && rate > o->min_rate) {
            rate = fmax(rate * o->factor, o->min_rate);
            changed = i;
        }
    }
    return rate;
}

static void reduce_on_plateau_reduces_the_rate_as_the_model(void **state)
{
    unsigned      seed = 3;
    ch_optimizer *optimizer = NULL;

    t_ok(ch_optimizer_sgd(1, NULL, NULL, &optimizer));
    for (int round = 0; round < 2000; round++) {
        ch_callback_plateau_options o = {.monitor = "m",
                                         .goal = t_random(&seed, 2) ? CH_GOAL_MAX : CH_GOAL_MIN,
                                         .factor = 0.5,
                                         .min_delta = t_random(&seed, 2) ? CH_OFF : 0.125,
                                         .min_rate = t_random(&seed, 2) ? 0.1 : 0,
                                         .patience = 1 + (int)t_random(&seed, 4),
                                         .cooldown = (int)t_random(&seed, 4)};
        ch_callback                *c = NULL;
        ch_training                 t = {.optimizer = optimizer};
        double                      x[24];

        t_ok(ch_optimizer_set_rate(optimizer, 1));
        t_ok(ch_callback_reduce_on_plateau(&o, &c));
        t_begin(c, &t);
        for (int i = 0; i < 24; i++) {
            x[i] = t_random(&seed, 20) == 0 ? NAN : t_random(&seed, 24) / 8.0;
            t_epoch(c, &t, i, "m", x[i]);
            assert_float_equal(rate_of(optimizer), slow_plateau(&o, 1, i + 1, x), 0);
        }
        t_end(c, &t);
        ch_callback_unref(c);
    }
    ch_optimizer_unref(optimizer);
    (void)state;
}

static void reduce_on_plateau_has_the_defaults_of_keras_and_starts_anew(void **state)
{
    ch_optimizer *o = NULL;
    ch_callback  *c = NULL;
    ch_training   t = {0};

    t_ok(ch_optimizer_sgd(1, NULL, NULL, &o));
    t.optimizer = o;
    t_ok(ch_callback_reduce_on_plateau(NULL, &c));
    for (int round = 0; round < 2; round++) {
        t_begin(c, &t);
        for (int i = 0; i < 10; i++)
            t_epoch(c, &t, i, "val_loss", 1 - i * 0.9e-5);
        assert_float_equal(rate_of(o), pow(0.1, round), 1e-12);
        t_epoch(c, &t, 10, "val_loss", 1);
        assert_float_equal(rate_of(o), pow(0.1, round + 1), 1e-12);
        t_end(c, &t);
    }
    ch_callback_unref(c);
    ch_optimizer_unref(o);
    (void)state;
}

static void reduce_on_plateau_rejects_invalid_options(void **state)
{
    ch_callback *c = NULL;

    t_refused(ch_callback_reduce_on_plateau(&(ch_callback_plateau_options){.factor = 1}, &c),
              CH_INVALID_ARGUMENT, "factor", "less than 1");
    t_refused(ch_callback_reduce_on_plateau(&(ch_callback_plateau_options){.min_rate = -1}, &c),
              CH_INVALID_ARGUMENT, "min_rate", "-1");
    t_refused(ch_callback_reduce_on_plateau(&(ch_callback_plateau_options){.cooldown = -1}, &c),
              CH_INVALID_ARGUMENT, "cooldown", "-1");
    t_refused(
        ch_callback_reduce_on_plateau(&(ch_callback_plateau_options){.min_delta = -2}, &c),
        CH_INVALID_ARGUMENT, "min_delta", "-2");
    assert_null(c);
    (void)state;
}

/* ---- saving ---- */

typedef struct saves {
    char      text[256];
    ch_status answer;
} saves;

/* Appends "3 " for a save after step 3 if the epoch is the best so far, otherwise "3- ". */
static ch_status save(ch_training *t, bool best, void *arg)
{
    saves *s = arg;

    snprintf(s->text + strlen(s->text), sizeof(s->text) - strlen(s->text), "%lld%s ",
             (long long)ch_training_step(t), best ? "" : "-");
    return s->answer;
}

/* Runs epochs of three steps and the given number of further steps. Each epoch has the given
 * loss. */
static const char *saved(const ch_callback_save_hook_options *o, int epochs, const double *loss,
                         int more)
{
    static saves s;
    ch_callback *c = NULL;
    ch_training  t = {0};

    s = (saves){0};
    t_ok(ch_callback_save_hook(o, save, &s, &c));
    t_begin(c, &t);
    for (int i = 0; i <= epochs; i++) {
        t.epoch = i;
        t_log(&t, "loss", loss != NULL ? loss[i] : 0);
        for (int k = 0; k < (i < epochs ? 3 : more); k++) {
            t.step++;
            t.began_ns -= 10 * INT64_C(1000000000); /* a step takes ten seconds */
            t_ok(t_tell(c, &t, CH_ON_STEP));
        }
        if (i < epochs)
            t_ok(t_tell(c, &t, CH_ON_EPOCH_END));
    }
    t_end(c, &t);
    ch_callback_unref(c);
    return s.text;
}

static void save_hook_is_called_by_epochs_steps_and_time(void **state)
{
    assert_string_equal(saved(NULL, 3, NULL, 0), "3 6 9 ");
    assert_string_equal(saved(NULL, 2, NULL, 1), "3 6 7 ");
    assert_string_equal(saved(NULL, 0, NULL, 0), "");
    assert_string_equal(saved(&(ch_callback_save_hook_options){.every_epochs = 2}, 3, NULL, 0),
                        "6 9 ");
    assert_string_equal(saved(&(ch_callback_save_hook_options){.every_steps = 2}, 3, NULL, 0),
                        "2 4 6 8 9 ");
    assert_string_equal(
        saved(&(ch_callback_save_hook_options){.every_steps = 2, .every_epochs = 1}, 2, NULL,
              0),
        "2 3 4 6 ");
    assert_string_equal(
        saved(&(ch_callback_save_hook_options){.every_seconds = 25}, 3, NULL, 0), "3 6 9 ");
    (void)state;
}

static void save_hook_with_monitor_saves_improvements_and_the_last_step(void **state)
{
    static const double loss[] = {5, 6, 4, 4, 3, NAN, 9};

    assert_string_equal(saved(&(ch_callback_save_hook_options){.monitor = "loss"}, 6, loss, 0),
                        "3 9 15 18- ");
    assert_string_equal(saved(&(ch_callback_save_hook_options){.monitor = "loss"}, 5, loss, 0),
                        "3 9 15 ");
    assert_string_equal(
        saved(&(ch_callback_save_hook_options){.monitor = "loss", .goal = CH_GOAL_MAX}, 6, loss,
              2),
        "3 6 20 ");
    (void)state;
}

static void save_hook_error_ends_the_training(void **state)
{
    saves        s = {.answer = CH_DATA_LOSS};
    ch_callback *c = NULL;
    ch_training  t = {0};

    t_ok(ch_callback_save_hook(NULL, save, &s, &c));
    t_begin(c, &t);
    t.step = 1;
    t_refused(t_tell(c, &t, CH_ON_EPOCH_END), CH_DATA_LOSS, "callback save_hook", "");
    ch_callback_unref(c);
    t_refused(ch_callback_save_hook(NULL, NULL, NULL, &c), CH_INVALID_ARGUMENT, "fn", "NULL");
    t_refused(ch_callback_save_hook(&(ch_callback_save_hook_options){.every_steps = -1}, save,
                                    &s, &c),
              CH_INVALID_ARGUMENT, "every -1 steps", "");
    t_refused(
        ch_callback_save_hook(&(ch_callback_save_hook_options){.monitor = ""}, save, &s, &c),
        CH_INVALID_ARGUMENT, "monitor", "");
    (void)state;
}

/* ---- memory ---- */

static ch_status make(int which, ch_callback **out)
{
    static int n;

    switch (which) {
    case 0:
        return ch_callback_early_stopping(
            &(ch_callback_early_stopping_options){.restore_best = true}, out);
    case 1:
        return ch_callback_stop_on_nan(0, out);
    case 2:
        return ch_callback_time_limit(1, out);
    case 3:
        return ch_callback_rate_schedule(halve, NULL, out);
    case 4:
        return ch_callback_reduce_on_plateau(NULL, out);
    case 5:
        return ch_callback_save_hook(&(ch_callback_save_hook_options){.monitor = "loss"}, save,
                                     NULL, out);
    default:
        return ch_callback_of(CH_ON_STEP, count_steps, &n, out);
    }
}

static void callbacks_leak_nothing_when_out_of_memory(void **state)
{
    for (int which = 0; which < 7; which++) {
        int64_t   live = ch__mem_live();
        ch_status rc = CH_RESOURCE_EXHAUSTED;

        for (int n = 1; rc != CH_OK; n++) {
            ch_callback *c = NULL;

            ch__mem_fail_at(n);
            rc = make(which, &c);
            ch__mem_fail_at(0);
            assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
            assert_true((rc == CH_OK) == (c != NULL));
            ch_callback_unref(c);
            assert_int_equal(ch__mem_live(), live);
        }
    }
    (void)state;
}

static void early_stopping_does_not_restore_an_incomplete_copy(void **state)
{
    ch_model    *m = new_model();
    ch_callback *c = NULL;
    ch_training  t = {.model = m};
    ch_status    rc = CH_RESOURCE_EXHAUSTED;

    t_ok(make(0, &c));
    for (int n = 1; rc != CH_OK; n++) {
        t_begin(c, &t);
        set_all(m, 1);
        t_epoch(c, &t, 0, "val_loss", 2);
        set_all(m, 5);
        t_log(&t, "val_loss", 1);
        ch__mem_fail_at(n);
        rc = t_tell(c, &t, CH_ON_EPOCH_END);
        ch__mem_fail_at(0);
        set_all(m, 6);
        t_end(c, &t);
        assert_all(m, rc == CH_OK ? 5 : 6);
    }
    ch_callback_unref(c);
    ch_model_unref(m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callback_new_rejects_invalid_ops),
        cmocka_unit_test(callback_receives_its_events_and_is_dropped_once),
        cmocka_unit_test(callback_error_ends_the_training_and_all_callbacks_get_the_end),
        cmocka_unit_test(callback_of_makes_a_callback_of_a_function),
        cmocka_unit_test(early_stopping_stops_in_the_epoch_of_the_model),
        cmocka_unit_test(early_stopping_restores_the_variables_of_the_best_epoch),
        cmocka_unit_test(early_stopping_says_why_and_starts_anew_with_each_training),
        cmocka_unit_test(early_stopping_warns_once_when_its_metric_is_missing),
        cmocka_unit_test(early_stopping_restores_nothing_in_an_evaluation),
        cmocka_unit_test(early_stopping_rejects_invalid_options),
        cmocka_unit_test(stop_on_nan_stops_when_the_loss_is_not_finite),
        cmocka_unit_test(stop_on_nan_warns_once_when_there_is_no_loss),
        cmocka_unit_test(time_limit_stops_the_training),
        cmocka_unit_test(rate_schedule_sets_the_rate_when_an_epoch_begins),
        cmocka_unit_test(rate_callbacks_reject_an_optimizer_with_a_schedule),
        cmocka_unit_test(reduce_on_plateau_reduces_the_rate_as_the_model),
        cmocka_unit_test(reduce_on_plateau_has_the_defaults_of_keras_and_starts_anew),
        cmocka_unit_test(reduce_on_plateau_rejects_invalid_options),
        cmocka_unit_test(save_hook_is_called_by_epochs_steps_and_time),
        cmocka_unit_test(save_hook_with_monitor_saves_improvements_and_the_last_step),
        cmocka_unit_test(save_hook_error_ends_the_training),
        cmocka_unit_test(callbacks_leak_nothing_when_out_of_memory),
        cmocka_unit_test(early_stopping_does_not_restore_an_incomplete_copy),
    };

    return cmocka_run_group_tests_name("callbacks", tests, NULL, NULL);
}
