/* test/fit/test_history_print.c -- ch_history_print and ch_history_print_time: a history as
 * text.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"

#include <math.h>
#include <stdlib.h>

#include "cohort/callback.h"
#include "fit/history.h"
#include "fit/report/number.h"

/* Returns a history of three epochs. The second epoch has no validation. */
static ch_history *make(void)
{
    ch_history *h = NULL;

    t_ok(ch__history_new(&h));
    for (int e = 0; e < 3; e++) {
        ch_logs logs = {0};

        t_ok(ch__logs_set(&logs, "loss", 1.0 / (e + 1)));
        if (e != 1)
            t_ok(ch__logs_set(&logs, "val_loss", e == 0 ? 0.25 : -(double)NAN));
        t_ok(ch__history_add(h, &logs));
        ch__logs_drop(&logs);
    }
    return h;
}

static void history_print_counts_epochs_from_one_and_shows_nan(void **state)
{
    ch_history *h = make();
    char        text[512];
    int         n = ch_history_print(h, text, sizeof(text));

    assert_int_equal(n, strlen(text));
    assert_string_equal(text, "epoch       loss   val_loss\n"
                              "    1          1       0.25\n"
                              "    2        0.5          -\n"
                              "    3     0.3333        nan\n");
    ch_history_unref(h);
    (void)state;
}

/* The time between steps includes everything that the loop does, except validation, callbacks
 * and planning. */
static void history_print_time_excludes_validation_and_callbacks_from_speed(void **state)
{
    ch_history *h = make();
    char        text[1024];

    h->time = (ch_time_table){.total = 100, .steps = 1, .examples = 96, .replicas = 1};
    h->time.seconds[CH_TIME_FORWARD] = 0.008;
    h->time.seconds[CH_TIME_OTHER] = 0.03;
    h->time.seconds[CH_TIME_WORKERS] = 0.01;
    h->time.seconds[CH_TIME_CALLBACKS] = 60;
    h->time.seconds[CH_TIME_PLANNING] = 39;
    h->time.seconds[CH_TIME_VALIDATE] = 0.952;
    ch_history_print_time(h, text, sizeof(text));
    assert_non_null(strstr(text, "\n1 step of 48.0 ms; 2000 examples/s on 1 replica\n"));
    h->time.examples = 3850000000;
    h->time.steps = 100;
    h->time.replicas = 2;
    h->time.one_replica_step = 0.00036;
    ch_history_print_time(h, text, sizeof(text));
    assert_non_null(strstr(text,
                           "\n100 steps of 0.48 ms; 80208333333 examples/s on 2 replicas\n"
                           "1.50 times the speed of one replica\n"));
    h->time.steps = 0;
    ch_history_print_time(h, text, sizeof(text));
    assert_null(strstr(text, "examples/s"));
    ch_history_unref(h);
    (void)state;
}

static void history_print_time_of_a_short_training_is_in_milliseconds(void **state)
{
    ch_history *h = make();
    char        text[1024];

    h->time = (ch_time_table){.total = 2, .steps = 1, .examples = 1, .replicas = 1};
    h->time.seconds[CH_TIME_FORWARD] = 2;
    ch_history_print_time(h, text, sizeof(text));
    assert_non_null(strstr(text, "where the time went         seconds   share\n"
                                 "  forward                     2.000 100.0 %\n"
                                 "  all                         2.000 100.0 %\n"));
    h->time.total = h->time.seconds[CH_TIME_FORWARD] = 0.0125;
    ch_history_print_time(h, text, sizeof(text));
    assert_non_null(strstr(text, "where the time went              ms   share\n"
                                 "  forward                    12.500 100.0 %\n"
                                 "  all                        12.500 100.0 %\n"));
    ch_history_unref(h);
    (void)state;
}

static void history_print_time_shows_saves_and_skipped_saves(void **state)
{
    ch_history *h = make();
    char        text[1024];

    h->time = (ch_time_table){.total = 2, .steps = 1, .examples = 1, .replicas = 1};
    h->time.seconds[CH_TIME_FORWARD] = 1.5;
    h->time.seconds[CH_TIME_SAVE] = 0.5;
    ch_history_print_time(h, text, sizeof(text));
    assert_non_null(strstr(text, "  saving                      0.500  25.0 %\n"));
    assert_null(strstr(text, "save\n"));
    h->time.saves = 1;
    ch_history_print_time(h, text, sizeof(text));
    assert_non_null(strstr(text, "\n1 save\n"));
    h->time.saves = 3;
    h->time.skipped_saves = 2;
    ch_history_print_time(h, text, sizeof(text));
    assert_non_null(strstr(text, "\n3 saves, 2 skipped because another was being written\n"));
    ch_history_unref(h);
    (void)state;
}

static void time_table_says_what_to_do_when_waiting_takes_more_than_a_fifth(void **state)
{
    static const struct {
        ch_time     row;
        bool        is_of_arrays;
        const char *advice;
    } waits[] = {
        {CH_TIME_INPUT, false, "\nSteps wait for data: see which stage is slow"},
        {CH_TIME_INPUT, true, "\nSteps wait for data: use a larger batch, or a dataset"},
        {CH_TIME_WAIT, true, "\nReplicas wait for each other: use a larger batch"},
        {CH_TIME_WORKERS, false, "\nSteps wait for workers: use more workers"},
    };
    enum { N = sizeof(waits) / sizeof(waits[0]) };
    ch_history *h = make();
    char        text[2048];

    for (int i = 0; i < N; i++) {
        h->time = (ch_time_table){.total = 10, .steps = 1, .examples = 1, .replicas = 2};
        h->is_of_arrays = waits[i].is_of_arrays;
        h->time.seconds[CH_TIME_FORWARD] = 10 - 1.9;
        h->time.seconds[waits[i].row] = 1.9;
        ch_history_print_time(h, text, sizeof(text));
        assert_null(strstr(text, " wait for "));
        h->time.seconds[waits[i].row] = 2.1;
        ch_history_print_time(h, text, sizeof(text));
        for (int k = 0; k < N; k++)
            assert_int_equal(strstr(text, waits[k].advice) != NULL, k == i);
        h->has_failed = true; /* then the times contain no information about the speed */
        ch_history_print_time(h, text, sizeof(text));
        assert_null(strstr(text, " wait for "));
        h->has_failed = false;
    }
    ch_history_unref(h);
    (void)state;
}

static void history_plot_draws_loss_over_steps_and_others_over_epochs(void **state)
{
    ch_history *h = make();
    char        text[4096];

    setenv("LC_ALL", "C", 1);
    for (int i = 0; i < 64; i++)
        t_ok(ch__history_point(h, 1 - i / 100.0));
    h->time.steps = 640;
    ch_history_plot(h, "loss", 40, 6, text, sizeof(text));
    assert_non_null(strstr(text, " step 1                         640\n"));
    ch_history_plot(h, "val_loss", 40, 6, text, sizeof(text));
    assert_non_null(strstr(text, " epoch 1                          3\n"));
    ch_history_plot(h, "accuracy", 40, 6, text, sizeof(text));
    assert_string_equal(text,
                        "no epoch has a log named \"accuracy\"; there are loss, val_loss\n");
    ch_history_plot(h, NULL, 40, 6, text, sizeof(text));
    assert_string_equal(text, "no epoch has a log named \"\"; there are loss, val_loss\n");
    assert_true(ch_history_plot(NULL, "loss", 40, 6, text, sizeof(text)) > 40);
    ch_history_unref(h);
    (void)state;
}

static void rounded_text_has_no_digits_below_its_unit(void **state)
{
    assert_string_equal(ch__rounded_text(0.015975159000000003, 1e6).text, "0.015975");
    assert_string_equal(ch__rounded_text(3.2, 1e6).text, "3.2");
    assert_string_equal(ch__rounded_text(1e9 + 0.1, 1e6).text, "1000000000.1");
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(history_print_counts_epochs_from_one_and_shows_nan),
        cmocka_unit_test(history_print_time_excludes_validation_and_callbacks_from_speed),
        cmocka_unit_test(history_print_time_of_a_short_training_is_in_milliseconds),
        cmocka_unit_test(history_print_time_shows_saves_and_skipped_saves),
        cmocka_unit_test(time_table_says_what_to_do_when_waiting_takes_more_than_a_fifth),
        cmocka_unit_test(history_plot_draws_loss_over_steps_and_others_over_epochs),
        cmocka_unit_test(rounded_text_has_no_digits_below_its_unit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
